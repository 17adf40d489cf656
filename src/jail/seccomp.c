/*
 * Compiles tables of allowed system calls to seccomp filters. Runs when Husk is built (scripts/filters.c), so that no
 * program compiles them at start; install.c installs the result. A rule that cannot be expressed is an error, never a
 * wider rule.
 */
#include "jail/seccomp.h"

const struct jail_rule jail_libc_rules[] = {
	JAIL_ALLOW(futex),
	JAIL_ALLOW(exit),
	JAIL_ALLOW(exit_group),
	JAIL_ALLOW(rt_sigreturn),
	JAIL_ALLOW(rt_sigprocmask), /* at the start and the end of a thread */
	JAIL_ALLOW(restart_syscall),
	/* Growing and shrinking the heap; a large block is a mapping of its own. */
	JAIL_ALLOW(brk),
	JAIL_MMAP,
	JAIL_MPROTECT,
	JAIL_ALLOW(munmap),
	JAIL_MADVISE(MADV_DONTNEED),   /* the stack of a thread that ends */
	JAIL_ALLOW(sched_getaffinity), /* malloc sizes its arenas once eight threads have one */
	/* For hosts where user space cannot read the clock, such as those with an unstable TSC. */
	JAIL_ALLOW(clock_gettime),
#if defined(__SANITIZE_ADDRESS__)
	/* Additional calls of the sanitizer's run-time; such a build is for tests only. */
	JAIL_ALLOW(sigaltstack),
	JAIL_ALLOW(madvise),
	JAIL_ALLOW(gettid),
	JAIL_ALLOW(sched_yield),
#endif
	JAIL_END,
};

static void context_release(scmp_filter_ctx *context)
{
	if (*context)
		seccomp_release(*context);
}

static int fail_with(struct husk_error *err, int result, const char *doing, const char *filter, const char *call)
{
	errno = -result;
	return husk_fail_errno(err, "cannot %s the system call filter '%s'%s%s", doing, filter, call ? " at " : "",
			       call ? call : "");
}

static int add_rule(scmp_filter_ctx context, const struct jail_rule *rule)
{
	struct scmp_arg_cmp condition = { .arg = (unsigned)rule->argument - 1,
					  .op = SCMP_CMP_MASKED_EQ,
					  .datum_a = rule->mask,
					  .datum_b = rule->value };
	uint32_t action = rule->refused ? SCMP_ACT_ERRNO((uint32_t)rule->refused) : SCMP_ACT_ALLOW;
	int result = seccomp_rule_add_exact_array(context, action, rule->call, rule->argument ? 1 : 0, &condition);

	/* Two files may list the same call: not a conflict. */
	return result == -EEXIST ? 0 : result;
}

static int add_rules(scmp_filter_ctx context, const struct jail_filter *filter, struct husk_error *err)
{
	for (size_t l = 0; filter->lists[l]; l++) {
		for (const struct jail_rule *rule = filter->lists[l]; rule->name; rule++) {
			int result = add_rule(context, rule);

			if (result < 0)
				return fail_with(err, result, "build", filter->name, rule->name);
		}
	}
	return 0;
}

/* The library writes the compiled code only to a descriptor. */
static int export_code(scmp_filter_ctx context, struct jail_program *program, struct husk_error *err)
{
	cleanup_close int fd = memfd_create("husk-filter", MFD_CLOEXEC);
	int result = fd < 0 ? -errno : seccomp_export_bpf(context, fd);
	off_t size = result < 0 ? -1 : lseek(fd, 0, SEEK_END);

	if (result < 0)
		return fail_with(err, result, "write", program->name, NULL);
	if (size <= 0 || (size_t)size % sizeof(struct sock_filter) ||
	    (size_t)size / sizeof(struct sock_filter) > BPF_MAXINSNS)
		return husk_fail(err, HUSK_INTERNAL, "the system call filter '%s' came out as %lld bytes",
				 program->name, (long long)size);
	program->code.filter = malloc((size_t)size);
	if (!program->code.filter)
		return husk_fail_memory(err);
	if (pread(fd, program->code.filter, (size_t)size, 0) != size)
		return husk_fail_errno(err, "cannot read back the system call filter '%s'", program->name);
	program->code.len = (unsigned short)((size_t)size / sizeof(struct sock_filter));
	return 0;
}

int jail_filter_compile(const struct jail_filter *filter, struct jail_program **out, struct husk_error *err)
{
	const uint32_t other = filter->refuses ? SCMP_ACT_ERRNO((uint32_t)filter->refuses) : SCMP_ACT_KILL_PROCESS;
	cleanup(context_release) scmp_filter_ctx context = seccomp_init(other);
	struct jail_program *program = calloc(1, sizeof(*program));
	int result;

	if (!context || !program) {
		free(program);
		return husk_fail_memory(err);
	}
	program->name = filter->name;
	/* Calls of another architecture (32-bit on x86) have other numbers: always killed. */
	result = seccomp_attr_set(context, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_KILL_PROCESS);
	/* A tree instead of a chain, because KVM_RUN passes the filter at every exit of the guest. */
	if (result == 0)
		result = seccomp_attr_set(context, SCMP_FLTATR_CTL_OPTIMIZE, 2);
	if (result < 0)
		fail_with(err, result, "prepare", filter->name, NULL);
	if (result < 0 || add_rules(context, filter, err) < 0 || export_code(context, program, err) < 0) {
		jail_program_free(program);
		return -1;
	}
	*out = program;
	return 0;
}

void jail_program_free(struct jail_program *program)
{
	if (!program)
		return;
	free(program->code.filter);
	free(program);
}
