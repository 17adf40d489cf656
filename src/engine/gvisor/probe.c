/*
 * Does gVisor work on this host? Called by engine_choose and `husk doctor`. The probe does what every sandbox needs,
 * through the engine's own ops: it boots a machine from a tiny root image, which echoes a byte; checkpoints and ends
 * it; restores it into another machine, which echoes again. A yes is cached until runsc changes or the host reboots; a
 * no is never cached. The probe must leave nothing behind.
 */
#include <elf.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>

#include "engine/gvisor/gvisor.h"

#define MEMORY_NAME "probe-gvisor"
#define ANSWER_MS 20000
#define PROBE_DISK (16u << 20)
/* Above every range of sandboxes. */
#define PROBE_UID 0x7f000000u

/*
 * The guest's program: reads a byte, writes it back, until end of file. It is machine code between two symbols, so that
 * a static executable can be made without a compiler on the host.
 */
#if defined(__x86_64__)
#define PROBE_MACHINE EM_X86_64
__asm__(".pushsection .rodata\n"
	"gvisor_probe_code:\n"
	"	sub $16, %rsp\n"
	"1:	xor %eax, %eax\n" /* read(0, stack, 1) */
	"	xor %edi, %edi\n"
	"	mov %rsp, %rsi\n"
	"	mov $1, %edx\n"
	"	syscall\n"
	"	cmp $1, %rax\n"
	"	jne 2f\n"
	"	mov $1, %eax\n" /* write(1, stack, 1) */
	"	mov $1, %edi\n"
	"	mov %rsp, %rsi\n"
	"	mov $1, %edx\n"
	"	syscall\n"
	"	jmp 1b\n"
	"2:	mov $231, %eax\n" /* exit_group(0) */
	"	xor %edi, %edi\n"
	"	syscall\n"
	"gvisor_probe_code_end:\n"
	".popsection\n");
#elif defined(__aarch64__)
#define PROBE_MACHINE EM_AARCH64
__asm__(".pushsection .rodata\n"
	".balign 4\n"
	"gvisor_probe_code:\n"
	"	sub sp, sp, #16\n"
	"1:	mov x8, #63\n" /* read(0, stack, 1) */
	"	mov x0, #0\n"
	"	mov x1, sp\n"
	"	mov x2, #1\n"
	"	svc #0\n"
	"	cmp x0, #1\n"
	"	b.ne 2f\n"
	"	mov x8, #64\n" /* write(1, stack, 1) */
	"	mov x0, #1\n"
	"	mov x1, sp\n"
	"	mov x2, #1\n"
	"	svc #0\n"
	"	b 1b\n"
	"2:	mov x8, #94\n" /* exit_group(0) */
	"	mov x0, #0\n"
	"	svc #0\n"
	"gvisor_probe_code_end:\n"
	".popsection\n");
#else
#error "gVisor runs on x86-64 and arm64 only"
#endif
extern const char gvisor_probe_code[], gvisor_probe_code_end[];

static int write_program(const char *path, struct husk_error *err)
{
	const uint64_t base = 0x400000, code_size = (uint64_t)(gvisor_probe_code_end - gvisor_probe_code);
	struct {
		Elf64_Ehdr header;
		Elf64_Phdr segment;
	} elf = {
		.header = { .e_ident = { ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64, ELFDATA2LSB, EV_CURRENT },
			    .e_type = ET_EXEC,
			    .e_machine = PROBE_MACHINE,
			    .e_version = EV_CURRENT,
			    .e_entry = base + sizeof(elf),
			    .e_phoff = sizeof(Elf64_Ehdr),
			    .e_ehsize = sizeof(Elf64_Ehdr),
			    .e_phentsize = sizeof(Elf64_Phdr),
			    .e_phnum = 1 },
		.segment = { .p_type = PT_LOAD,
			     .p_flags = PF_R | PF_X,
			     .p_vaddr = base,
			     .p_paddr = base,
			     .p_filesz = sizeof(elf) + code_size,
			     .p_memsz = sizeof(elf) + code_size,
			     .p_align = 0x1000 },
	};
	cleanup_buf struct buf file = { 0 };

	if (buf_append(&file, &elf, sizeof(elf)) < 0 || buf_append(&file, gvisor_probe_code, (size_t)code_size) < 0)
		return husk_fail_memory(err);
	return file_write_atomic(path, file.data, file.size, 0755, err);
}

/* A root image like a template's, with the one program in it. */
static int write_rootfs(const char *scratch, const char *rootfs, struct husk_error *err)
{
	static const char *const directories[] = { "proc", "sys", "dev", "tmp", ".husk/disk", ".husk/root" };
	cleanup_free char *program = str_format("%s/root/.husk/agent", scratch);
	cleanup_free char *tree = str_format("%s/root", scratch);
	const char *const argv[] = { "mkfs.erofs", "-T0", "-Enoinline_data", rootfs, tree, NULL };
	struct command command = { COMMAND_INIT, .argv = argv, .timeout_ms = 30000 };

	if (!program || !tree)
		return husk_fail_memory(err);
	for (size_t i = 0; i < ARRAY_SIZE(directories); i++) {
		cleanup_free char *path = str_format("%s/%s", tree, directories[i]);

		if (!path)
			return husk_fail_memory(err);
		if (dir_make(path, 0755, err) < 0)
			return -1;
	}
	if (write_program(program, err) < 0)
		return -1;
	if (command_run(&command, err) < 0)
		return husk_wrap(err, "cannot make a root image (package erofs-utils)");
	return 0;
}

static int check_echo(struct engine_machine *machine, char byte, struct husk_error *err)
{
	struct pollfd wait = { .events = POLLIN };
	char back = 0;
	int to_agent;

	engine_gvisor.link(machine, &to_agent, &wait.fd);
	if (write_full(to_agent, &byte, 1) < 0)
		return husk_fail_errno(err, "cannot write to the guest");
	if (poll(&wait, 1, ANSWER_MS) <= 0)
		return husk_fail(err, HUSK_TIMEOUT, "the guest did not answer within %d s", ANSWER_MS / 1000);
	if (read_full(wait.fd, &back, 1) != 1 || back != byte)
		return husk_fail(err, HUSK_UNAVAILABLE, "the guest ended without an answer");
	return 0;
}

/* Runs one machine: with `restoring` from `image`, otherwise booted and then saved there. */
static int run_machine(const struct engine_spec *spec, const char *image, bool restoring, struct husk_error *err)
{
	struct engine_machine *machine = NULL;
	int result = engine_gvisor.prepare(spec, &machine, err);

	if (result == 0)
		result =
			restoring ? engine_gvisor.restore(machine, image, err) : engine_gvisor.boot(machine, NULL, err);
	if (result == 0)
		result = check_echo(machine, restoring ? 'b' : 'a', err);
	if (result == 0 && !restoring)
		result = engine_gvisor.checkpoint(machine, image, err);
	if (machine)
		engine_gvisor.free(machine);
	return result;
}

static int probe_in(const char *scratch, const char *runtime, const char *id, struct husk_error *err)
{
	cleanup_free char *rootfs = str_format("%s/root.img", scratch);
	cleanup_free char *image = str_format("%s/image", scratch);
	cleanup_free char *first = str_format("%s/first", scratch);
	cleanup_free char *second = str_format("%s/second", scratch);
	struct engine_spec spec = { .id = id,
				    .directory = first,
				    .runtime = runtime,
				    .rootfs = rootfs,
				    .agent = "/.husk/agent",
				    .disk_bytes = PROBE_DISK,
				    .uid_base = PROBE_UID };

	if (!rootfs || !image || !first || !second)
		return husk_fail_memory(err);
	if (dir_make(image, 0700, err) < 0 || write_rootfs(scratch, rootfs, err) < 0 ||
	    run_machine(&spec, image, false, err) < 0)
		return -1;
	spec.directory = second;
	return run_machine(&spec, image, true, err);
}

int gvisor_probe(const char *runtime, struct husk_error *err)
{
	cleanup_free char *known = NULL, *scratch = NULL;
	struct gvisor_program program;
	char id[24];
	int result;

	if (gvisor_program_find(runtime, NULL, &program, err) < 0)
		return -1;
	if (engine_remembered(runtime, MEMORY_NAME, program.key, &known) == 0)
		return 0;
	if (random_id("probe-", 8, id) < 0)
		return husk_fail_errno(err, "cannot get random bytes");
	scratch = str_format("%s/%s", runtime, id);
	if (!scratch)
		return husk_fail_memory(err);
	result = dir_make(scratch, 0700, err);
	if (result == 0)
		result = probe_in(scratch, runtime, id, err);
	dir_remove(scratch, NULL);
	if (result < 0)
		return husk_wrap(err, "gVisor (runsc %s) does not work here", program.version);
	engine_remember(runtime, MEMORY_NAME, program.key, "works");
	return 0;
}
