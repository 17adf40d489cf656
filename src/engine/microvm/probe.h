/*
 * Shared by the two files of the probe: the tiny guest (probe_guest.c) and the host's side that runs it (probe.c).
 * Other files use only microvm_probe in microvm.h.
 *
 * The guest has 256 KiB of memory at address 0, mapped one to one, and starts each step in ring 0 of long mode with
 * these tables in place. A step ends in hlt, with its outcome in the mailbox.
 */
#ifndef HUSK_MICROVM_PROBE_H
#define HUSK_MICROVM_PROBE_H

#include <stdint.h>

/* Guest addresses. The assembler reads these lines too: plain numbers only. */
#define PROBE_PML4 0x1000
#define PROBE_PDPT 0x2000
#define PROBE_PD 0x3000
#define PROBE_PT 0x4000 /* the first 2 MiB, in 4 KiB pages */
#define PROBE_GDT 0x5000
#define PROBE_IDT 0x6000
#define PROBE_TSS 0x7000
#define PROBE_MAILBOX 0x8000
#define PROBE_GDT_POINTER 0x8800 /* what lgdt and lidt read */
#define PROBE_IDT_POINTER 0x8810
#define PROBE_STACK 0xb000
#define PROBE_USER_STACK 0xd000
#define PROBE_PAGE_A 0xe000 /* each holds its own address in its first eight bytes */
#define PROBE_PAGE_B 0xf000
#define PROBE_CODE 0x10000
#define PROBE_XSAVE 0x20000
#define PROBE_MEMORY 0x40000
#define PROBE_MMIO 0x100000 /* mapped by the guest, with no memory behind it */
#define PROBE_PORT 0x80
#define PROBE_ANSWER 0x5a /* the host's value for a read of port or MMIO */

#define PROBE_CS 0x08
#define PROBE_DS 0x10
#define PROBE_USER32 0x18 /* sysret counts from here */
#define PROBE_USER_DS 0x20
#define PROBE_USER_CS 0x28
#define PROBE_TR 0x30
#define PROBE_VECTORS 49
#define PROBE_VECTOR_SIZE 16 /* bytes of each stub */
#define PROBE_INTERRUPT 48
#define PROBE_LOOPS 10000

enum { PROBE_PASSED = 1, PROBE_WRONG, PROBE_EXCEPTION }; /* a step's own report */

/* At PROBE_MAILBOX; the offsets are known to the assembler. */
struct probe_mailbox {
	uint32_t said;     /* 0x00 */
	uint32_t vector;   /* 0x04: of the last exception or interrupt */
	uint32_t expected; /* 0x08: the vector that a step expects; others end it */
	uint32_t detail;   /* 0x0c: for the message, such as the number of an MSR */
	uint64_t handler;  /* 0x10: where to continue after the expected one */
	uint64_t unused;
	uint64_t scratch[4]; /* 0x20: aligned to 16 for cmpxchg16b */
};

/* A step: something that a stock kernel does, and its place in the code. */
struct probe_step {
	const char *name;
	const char *code;
};
extern const struct probe_step probe_steps[];
#define PROBE_STEPS_MAX 32

extern const char probe_guest_begin[], probe_guest_end[], probe_guest_vectors[], probe_guest_loop[];

/* The loop of probe_guest_loop, on the host, for comparison. */
void probe_loop_here(void);

#endif
