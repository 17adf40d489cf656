/*
 * The probe's guest: machine code between two symbols, with one short piece of ring 0 code for each thing that a stock
 * Linux kernel does and that a KVM without hardware support may not be able to do. probe.c copies it into a machine and
 * starts one step after the other. It never runs on the host, except the loop that both sides run for the comparison.
 *
 * Steps are independent: each begins with new tables and registers and ends in hlt.
 */
#include "engine/microvm/probe.h"

#include <stddef.h>

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)
#define AT(address) TEXT(address)
#define STEP(name) "probe_guest_" #name ":\n"
#define PASS "	jmp probe_guest_pass\n"
#define WRONG_IF(condition) "	j" condition " probe_guest_wrong\n"
/* Offsets into struct probe_mailbox. */
#define SAID AT(PROBE_MAILBOX)
#define VECTOR AT(PROBE_MAILBOX) "+4"
#define EXPECTED AT(PROBE_MAILBOX) "+8"
#define DETAIL AT(PROBE_MAILBOX) "+12"
#define HANDLER AT(PROBE_MAILBOX) "+16"
#define SCRATCH AT(PROBE_MAILBOX) "+32" /* aligned to 16 */
#define PTE(address) AT(PROBE_PT) "+" AT(address) "/4096*8"
_Static_assert(offsetof(struct probe_mailbox, handler) == 16 && offsetof(struct probe_mailbox, scratch) == 32,
	       "the assembler's offsets");
/* clang-format off */
/* Continues at a local label when this vector arrives. */
#define EXPECT(vector, label) \
	"	movl $" AT(vector) ", " EXPECTED "\n" \
	"	lea " label "(%rip), %rax\n" \
	"	mov %rax, " HANDLER "\n"

__asm__(".pushsection .rodata\n"
	".balign 16\n"
	".globl probe_guest_begin, probe_guest_end, probe_guest_vectors, probe_guest_loop\n"
	".hidden probe_guest_begin, probe_guest_end, probe_guest_vectors, probe_guest_loop\n"
	"probe_guest_begin:\n"
	"probe_guest_pass:\n"
	"	movl $1, " SAID "\n"
	"1:	hlt\n"
	"	jmp 1b\n"
	"probe_guest_wrong:\n"
	"	movl $2, " SAID "\n"
	"1:	hlt\n"
	"	jmp 1b\n"

	/* One stub for each vector, all of one size. */
	".balign " AT(PROBE_VECTOR_SIZE) "\n"
	"probe_guest_vectors:\n"
	".set number, 0\n"
	".rept " AT(PROBE_VECTORS) "\n"
	"	.balign " AT(PROBE_VECTOR_SIZE) "\n"
	"	movl $number, " VECTOR "\n"
	"	jmp probe_guest_vector\n"
	"	.set number, number + 1\n"
	".endr\n"
	"probe_guest_vector:\n"
	"	push %rax\n"
	"	mov " VECTOR ", %eax\n"
	"	cmp %eax, " EXPECTED "\n"
	"	pop %rax\n"
	"	jne 2f\n"
	"	jmp *" HANDLER "\n"
	"2:	movl $3, " SAID "\n"
	"3:	hlt\n"
	"	jmp 3b\n"

	STEP(cpuid)
	"	mov $0x80000001, %eax\n"
	"	cpuid\n"
	"	bt $29, %edx\n" /* long mode */
	WRONG_IF("nc")
	PASS

	STEP(tables)
	"	lgdt " AT(PROBE_GDT_POINTER) "\n"
	"	lidt " AT(PROBE_IDT_POINTER) "\n"
	"	mov $" AT(PROBE_DS) ", %eax\n"
	"	mov %eax, %ds\n"
	"	mov %eax, %es\n"
	"	mov %eax, %ss\n"
	"	pushq $" AT(PROBE_CS) "\n"
	"	lea 1f(%rip), %rax\n"
	"	push %rax\n"
	"	lretq\n"
	"1:	mov $" AT(PROBE_TR) ", %eax\n"
	"	ltr %ax\n"
	"	xor %eax, %eax\n"
	"	lldt %ax\n"
	"	str %eax\n"
	"	cmp $" AT(PROBE_TR) ", %eax\n"
	WRONG_IF("ne")
	PASS

	STEP(control)
	"	mov %cr0, %rax\n"
	"	bts $16, %rax\n" /* WP */
	"	mov %rax, %cr0\n"
	"	clts\n"
	"	mov %cr4, %rax\n"
	"	btc $7, %rax\n" /* PGE, there and back: how a kernel flushes everything */
	"	mov %rax, %cr4\n"
	"	btc $7, %rax\n"
	"	mov %rax, %cr4\n"
	"	mov %cr3, %rax\n"
	"	mov %rax, %cr3\n"
	"	mov %cr3, %rbx\n"
	"	cmp %rax, %rbx\n"
	WRONG_IF("ne")
	"	xor %eax, %eax\n"
	"	mov %rax, %dr6\n"
	"	mov %dr7, %rax\n"
	"	mov %rax, %dr7\n"
	"	wbinvd\n"
	PASS

	STEP(msr)
	"	lea 2f(%rip), %rbx\n"
	"1:	mov (%rbx), %ecx\n"
	"	test %ecx, %ecx\n"
	"	jz probe_guest_pass\n"
	"	mov %ecx, " DETAIL "\n"
	"	rdmsr\n"
	"	wrmsr\n"
	"	add $4, %rbx\n"
	"	jmp 1b\n"
	"	.balign 4\n"
	/* TSC, APIC_BASE, SYSENTER_CS, _ESP, _EIP, PAT, MTRR_DEF_TYPE, EFER, STAR, LSTAR, CSTAR, SFMASK, FS_BASE, GS_BASE,
	 * KERNEL_GS_BASE */
	"2:	.long 0x10, 0x1b, 0x174, 0x175, 0x176, 0x277, 0x2ff, 0xc0000080, 0xc0000081, 0xc0000082, 0xc0000083\n"
	"	.long 0xc0000084, 0xc0000100, 0xc0000101, 0xc0000102, 0\n"

	STEP(swapgs)
	"	xor %edx, %edx\n"
	"	mov $0xc0000101, %ecx\n" /* GS_BASE */
	"	mov $" AT(PROBE_PAGE_A) ", %eax\n"
	"	wrmsr\n"
	"	mov $0xc0000102, %ecx\n" /* KERNEL_GS_BASE */
	"	mov $" AT(PROBE_PAGE_B) ", %eax\n"
	"	wrmsr\n"
	"	cmpq $" AT(PROBE_PAGE_A) ", %gs:0\n"
	WRONG_IF("ne")
	"	swapgs\n"
	"	cmpq $" AT(PROBE_PAGE_B) ", %gs:0\n"
	WRONG_IF("ne")
	PASS

	STEP(invlpg)
	"	mov " AT(PROBE_PAGE_A) ", %rax\n"
	"	cmp $" AT(PROBE_PAGE_A) ", %rax\n"
	WRONG_IF("ne")
	"	mov " PTE(PROBE_PAGE_B) ", %rax\n"
	"	mov %rax, " PTE(PROBE_PAGE_A) "\n"
	"	invlpg " AT(PROBE_PAGE_A) "\n"
	"	mov " AT(PROBE_PAGE_A) ", %rax\n"
	"	cmp $" AT(PROBE_PAGE_B) ", %rax\n"
	WRONG_IF("ne")
	PASS

	STEP(atomic)
	"	mov $5, %eax\n"
	"	mov $7, %ecx\n"
	"	mov %rax, " SCRATCH "\n"
	"	lock xadd %rcx, " SCRATCH "\n" /* 12, was 5 */
	"	lock btsq $63, " SCRATCH "\n"
	"	lock btrq $63, " SCRATCH "\n"
	WRONG_IF("nc")
	"	mov $12, %eax\n"
	"	lock cmpxchg %rcx, " SCRATCH "\n"
	WRONG_IF("ne")
	"	cmpq $5, " SCRATCH "\n"
	WRONG_IF("ne")
	"	mfence\n"
	PASS

	STEP(cmpxchg16b)
	"	mov $1, %eax\n"
	"	mov $2, %edx\n"
	"	mov $3, %ebx\n"
	"	mov $4, %ecx\n"
	"	mov %rax, " SCRATCH "\n"
	"	mov %rdx, " SCRATCH "+8\n"
	"	lock cmpxchg16b " SCRATCH "\n"
	WRONG_IF("ne")
	"	cmp %rbx, " SCRATCH "\n"
	WRONG_IF("ne")
	"	cmp %rcx, " SCRATCH "+8\n"
	WRONG_IF("ne")
	PASS

	STEP(string)
	"	mov $" AT(PROBE_XSAVE) ", %edi\n"
	"	mov $0x0123456789abcdef, %rax\n"
	"	mov $256, %ecx\n"
	"	rep stosq\n"
	"	mov $" AT(PROBE_XSAVE) ", %esi\n"
	"	mov $" AT(PROBE_XSAVE) "+0x4000, %edi\n"
	"	mov $2048, %ecx\n"
	"	rep movsb\n"
	"	cmp %rax, " AT(PROBE_XSAVE) "+0x4000+2040\n"
	WRONG_IF("ne")
	PASS

	STEP(fxsave)
	"	mov %cr4, %rax\n"
	"	or $0x600, %rax\n" /* OSFXSR, OSXMMEXCPT */
	"	mov %rax, %cr4\n"
	"	fninit\n"
	"	mov $0x0123456789abcdef, %rax\n"
	"	movq %rax, %xmm0\n"
	"	fxsave64 " AT(PROBE_XSAVE) "\n"
	"	pxor %xmm0, %xmm0\n"
	"	fxrstor64 " AT(PROBE_XSAVE) "\n"
	"	movq %xmm0, %rbx\n"
	"	cmp %rax, %rbx\n"
	WRONG_IF("ne")
	PASS

	STEP(xsave)
	"	mov $1, %eax\n"
	"	cpuid\n"
	"	bt $26, %ecx\n" /* without it, a kernel uses fxsave */
	"	jnc probe_guest_pass\n"
	"	mov %cr4, %rax\n"
	"	or $0x40600, %rax\n" /* OSXSAVE too */
	"	mov %rax, %cr4\n"
	"	xor %ecx, %ecx\n"
	"	xgetbv\n"
	"	or $3, %eax\n" /* x87 and SSE */
	"	xsetbv\n"
	"	mov $0x0123456789abcdef, %rsi\n"
	"	movq %rsi, %xmm0\n"
	"	mov $3, %eax\n"
	"	xor %edx, %edx\n"
	"	xsave64 " AT(PROBE_XSAVE) "\n"
	"	pxor %xmm0, %xmm0\n"
	"	xrstor64 " AT(PROBE_XSAVE) "\n"
	"	movq %xmm0, %rbx\n"
	"	cmp %rsi, %rbx\n"
	WRONG_IF("ne")
	PASS

	STEP(interrupt)
	EXPECT(PROBE_INTERRUPT, "1f")
	"	xor %ebx, %ebx\n"
	"	int $" AT(PROBE_INTERRUPT) "\n"
	"	cmp $1, %ebx\n"
	WRONG_IF("ne")
	EXPECT(6, "2f")
	"	ud2\n"
	"	cmp $3, %ebx\n"
	WRONG_IF("ne")
	PASS
	"1:	add $1, %ebx\n"
	"	iretq\n"
	"2:	add $2, %ebx\n"
	"	addq $2, (%rsp)\n" /* past the ud2 */
	"	iretq\n"

	STEP(fault)
	EXPECT(14, "1f")
	"	andq $~1, " PTE(PROBE_PAGE_B) "\n"
	"	invlpg " AT(PROBE_PAGE_B) "\n"
	"	mov " AT(PROBE_PAGE_B) ", %rbx\n"
	"	cmp $" AT(PROBE_PAGE_B) ", %rbx\n"
	WRONG_IF("ne")
	PASS
	"1:	mov %cr2, %rax\n"
	"	cmp $" AT(PROBE_PAGE_B) ", %rax\n"
	WRONG_IF("ne")
	"	orq $1, " PTE(PROBE_PAGE_B) "\n"
	"	add $8, %rsp\n" /* the error code */
	"	iretq\n"

	/* Down to ring 3 by iretq, up by syscall, down by sysret, and up again. */
	STEP(user)
	"	mov $0xc0000081, %ecx\n" /* STAR */
	"	xor %eax, %eax\n"
	"	mov $" AT(PROBE_USER32) "<<16|" AT(PROBE_CS) ", %edx\n"
	"	wrmsr\n"
	"	mov $0xc0000082, %ecx\n" /* LSTAR */
	"	lea 2f(%rip), %rax\n"
	"	xor %edx, %edx\n"
	"	wrmsr\n"
	"	mov $0xc0000080, %ecx\n" /* EFER: SCE */
	"	rdmsr\n"
	"	or $1, %eax\n"
	"	wrmsr\n"
	"	xor %ebx, %ebx\n"
	"	pushq $" AT(PROBE_USER_DS) "+3\n"
	"	pushq $" AT(PROBE_USER_STACK) "\n"
	"	pushq $2\n" /* flags */
	"	pushq $" AT(PROBE_USER_CS) "+3\n"
	"	lea 1f(%rip), %rax\n"
	"	push %rax\n"
	"	iretq\n"
	"1:	push %rbx\n" /* ring 3: its stack works */
	"	pop %rbx\n"
	"	add $1, %ebx\n"
	"	syscall\n"
	"	add $4, %ebx\n"
	"	mov %cs, %eax\n"
	"	cmp $" AT(PROBE_USER_CS) "+3, %eax\n"
	"	je 3f\n"
	"	mov $100, %ebx\n"
	"3:	syscall\n"
	"	ud2\n"
	"2:	cmp $1, %ebx\n" /* ring 0 again; the return address is in rcx, the flags in r11 */
	"	jne 4f\n"
	"	sysretq\n"
	"4:	cmp $5, %ebx\n"
	WRONG_IF("ne")
	PASS

	STEP(device)
	"	mov $0x77, %al\n"
	"	out %al, $" AT(PROBE_PORT) "\n"
	"	in $" AT(PROBE_PORT) ", %al\n"
	"	cmp $" AT(PROBE_ANSWER) ", %al\n"
	WRONG_IF("ne")
	"	movl $0x77, " AT(PROBE_MMIO) "\n"
	"	mov " AT(PROBE_MMIO) ", %eax\n"
	"	cmp $" AT(PROBE_ANSWER) ", %eax\n"
	WRONG_IF("ne")
	PASS

	STEP(clock)
	"	rdtsc\n"
	"	mov %eax, %esi\n"
	"	mov %edx, %edi\n"
	"	mov $100, %ecx\n"
	"1:	pause\n"
	"	loop 1b\n"
	"	rdtsc\n"
	"	sub %esi, %eax\n"
	"	sbb %edi, %edx\n"
	WRONG_IF("c")
	PASS

	STEP(loop)
	"1:	incq " SCRATCH "\n"
	"	dec %edi\n" /* how often, as the host has set it */
	"	jnz 1b\n"
	PASS
	"probe_guest_end:\n"
	".popsection\n");
/* clang-format on */

#define CODE(name) extern const char probe_guest_##name[];
CODE(cpuid)
CODE(tables)
CODE(control)
CODE(msr)
CODE(swapgs)
CODE(invlpg)
CODE(atomic)
CODE(cmpxchg16b)
CODE(string)
CODE(fxsave)
CODE(xsave)
CODE(interrupt)
CODE(fault)
CODE(user)
CODE(device)
CODE(clock)

const struct probe_step probe_steps[] = {
	{ "cpuid", probe_guest_cpuid },
	{ "lgdt, lidt, ltr, far return", probe_guest_tables },
	{ "mov to cr0, cr3, cr4 and dr7", probe_guest_control },
	{ "rdmsr and wrmsr", probe_guest_msr },
	{ "swapgs", probe_guest_swapgs },
	{ "invlpg", probe_guest_invlpg },
	{ "locked xadd, bts, cmpxchg", probe_guest_atomic },
	{ "cmpxchg16b", probe_guest_cmpxchg16b },
	{ "rep stos and movs", probe_guest_string },
	{ "fxsave and fxrstor", probe_guest_fxsave },
	{ "xsave and xrstor", probe_guest_xsave },
	{ "interrupt and iret", probe_guest_interrupt },
	{ "page fault and iret", probe_guest_fault },
	{ "ring 3, syscall, sysret", probe_guest_user },
	{ "port and memory-mapped I/O", probe_guest_device },
	{ "rdtsc", probe_guest_clock },
	{ 0 },
};

_Static_assert(sizeof(probe_steps) / sizeof(probe_steps[0]) <= PROBE_STEPS_MAX, "a result for each step");

void probe_loop_here(void)
{
	uint32_t count = PROBE_LOOPS;
	uint64_t memory = 0;

	__asm__ volatile("1:	incq %0\n"
			 "	dec %1\n"
			 "	jnz 1b\n"
			 : "+m"(memory), "+r"(count)
			 :
			 : "cc");
}
