/*
 * Seccomp filters as tables. A file that makes system calls lists them beside the code that needs them:
 *
 *	const struct jail_rule block_rules[] = { JAIL_ALLOW(preadv), JAIL_ALLOW(pwritev), JAIL_END };
 *
 * and the file that starts a kind of thread combines the lists of all code that runs on it:
 *
 *	static const struct jail_rule *const lists[] = { jail_libc_rules, vcpu_rules, NULL };
 *	static const struct jail_filter filter = { .name = "vcpu", .lists = lists };
 *
 * Compiled when Husk is built (scripts/filters.c); installed in each thread of that kind before it touches the guest. A
 * call that is on no list kills the whole process (unless the filter says otherwise), and the host's kernel log names
 * the call.
 */
#ifndef HUSK_JAIL_SECCOMP_H
#define HUSK_JAIL_SECCOMP_H

#include <linux/filter.h>
#include <sched.h>
#include <seccomp.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "base/base.h"

/* One listed call, optionally with the condition that one argument, masked, has a value. A call that is listed twice is
 * allowed if either condition holds; without a condition it is always allowed. */
struct jail_rule {
	const char *name; /* NULL ends a list */
	int call;
	int argument; /* counted from 1; 0: no condition */
	uint32_t mask, value;
	int refused; /* the call is not made and fails with this errno; 0: it is made */
};

/* clang-format off */
#define JAIL_END { .name = NULL }
#define JAIL_ALLOW(call_name) { .name = #call_name, .call = SCMP_SYS(call_name) }
/* The kernel reads an int from the low 32 bits of an argument, so the high bits are ignored. */
#define JAIL_ALLOW_MASKED(call_name, number, bits, wanted) \
	{ .name = #call_name, .call = SCMP_SYS(call_name), .argument = (number), .mask = (bits), .value = (uint32_t)(wanted) }
/* JAIL_ALLOW_IF(shutdown, 2, SHUT_WR): the second argument is SHUT_WR. */
#define JAIL_ALLOW_IF(call_name, number, wanted) JAIL_ALLOW_MASKED(call_name, number, UINT32_MAX, wanted)
/* For a call whose arguments a filter cannot see: the C library then uses another call. */
#define JAIL_REFUSE(call_name, number) { .name = #call_name, .call = SCMP_SYS(call_name), .refused = (number) }
/* clang-format on */

#define JAIL_IOCTL(request) JAIL_ALLOW_IF(ioctl, 2, request)
#define JAIL_FCNTL(command) JAIL_ALLOW_IF(fcntl, 2, command)
#define JAIL_MADVISE(advice) JAIL_ALLOW_IF(madvise, 3, advice)
#define JAIL_PRCTL(option) JAIL_ALLOW_IF(prctl, 1, option)
#define JAIL_SOCKET_UNIX JAIL_ALLOW_IF(socket, 1, AF_UNIX)
/* Memory that is not executable. */
#define JAIL_MMAP JAIL_ALLOW_MASKED(mmap, 3, PROT_EXEC, 0)
#define JAIL_MPROTECT JAIL_ALLOW_MASKED(mprotect, 3, PROT_EXEC, 0)

/* Starting a thread and nothing else: no process, no namespace. A filter cannot see the flags of clone3. */
#define JAIL_NAMESPACES                                                                                                \
	(CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET)
#define JAIL_CLONE_THREAD                                                                                              \
	JAIL_REFUSE(clone3, ENOSYS), JAIL_ALLOW_MASKED(clone, 1, CLONE_THREAD | JAIL_NAMESPACES, CLONE_THREAD)

/* The calls of the C library itself on any thread: allocation, locks, the end of a thread, signal return. */
extern const struct jail_rule jail_libc_rules[];

struct jail_filter {
	const char *name;                     /* the kind of thread, for messages */
	const struct jail_rule *const *lists; /* NULL-terminated */
	int refuses;                          /* errno of calls on no list; 0: such a call kills the process */
};

/* A compiled filter. */
struct jail_program {
	const char *name;
	struct sock_fprog code;
};

int jail_filter_compile(const struct jail_filter *filter, struct jail_program **out, struct husk_error *err);
void jail_program_free(struct jail_program *program); /* NULL is allowed; installed filters stay */

/* ---- install.c: separate, so that a program that only installs filters does not link libseccomp ---- */

/* Installs the filter on the calling thread only, for good; threads that it starts later inherit it. A second filter
 * can only restrict further. */
int jail_filter_install(const struct jail_program *program, struct husk_error *err);

#endif
