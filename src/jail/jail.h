/*
 * The jail of a process that works for a hostile guest, above all husk-vmm.
 *
 * Both sides build it. The parent (an engine in the supervisor) starts the program with jail_start: as pid 1 of a pid
 * namespace, in the sandbox's cgroup, with only the given descriptors and no environment. The program calls jail_enter
 * at the top of its main, while it has one thread and before it reads a byte of the guest. After that it can name no
 * file, no process, no user and no network of the host. Then each of its threads installs its seccomp filter
 * (jail/seccomp.h).
 *
 * Because nothing can be opened from inside, every file the program will ever need (/dev/kvm, images, taps,
 * /dev/userfaultfd) is opened outside and passed as a descriptor, at the start or over its control socket.
 */
#ifndef HUSK_JAIL_H
#define HUSK_JAIL_H

#include "base/base.h"

struct cgroup; /* jail/cgroup.h */

/* ---- from outside: the engine ---- */

struct jail_start {
	const char *program;     /* absolute path */
	const char *const *argv; /* NULL-terminated */
	const int *fds;          /* become 3, 4, 5 … in the program, in this order */
	size_t fd_count;         /* at most JAIL_FDS_MAX */
	int log;                 /* its standard output and error; -1: /dev/null */
	struct cgroup *cgroup;   /* the program starts inside; NULL: stays in the caller's */
};
#define JAIL_FDS_MAX 32

/* Returns 0 once the program runs. The caller reaps its pid and closes its pidfd, which is readable when it has ended.
 * May be called from a process with threads. The caller must end the program: by a control socket among `fds` that the
 * program watches, or by the cgroup if it does not react. */
int jail_start(const struct jail_start *start, pid_t *pid, int *pidfd, struct husk_error *err);

/* A fork with `flags` (CLONE_NEW*) and a pidfd. Runs `child`, which must not return. No handler of the parent runs in
 * the child, and `child` may only make async-signal-safe calls. Returns the pid, or -1 with errno. */
pid_t jail_clone(unsigned long flags, void (*child)(void *data), void *data, int *pidfd);

/* ---- from inside: the program, first thing in main ---- */

struct jail {
	uint32_t uid, gid;   /* only this sandbox uses them; never 0 */
	int netns;           /* descriptor of a network namespace to join; -1: a new, empty one */
	uint32_t files;      /* most descriptors it may have open */
	uint32_t threads;    /* most threads of this uid */
	uint64_t file_bytes; /* largest file it may write; 0: no bound */
	uint64_t memory;     /* bytes of private memory it may have; 0: no bound */
	/* A directory of the host that becomes its root, without devices, programs and set-uid bits; NULL: an empty
	 * root. */
	const char *root;
	int root_fd; /* a detached mount of that directory, in place of its path; is closed. 0: none */
	bool root_read_only;
	uint64_t capabilities; /* capabilities to keep, as bits, for the files below its root; 0: none */
};

/* Runs all stages, in the only order that works. After a failure the process must exit, because it is only partly
 * jailed. */
int jail_enter(const struct jail *jail, struct husk_error *err);

/* The stages, for jail_enter and for the tests that check each from inside. jail.c describes what each stage does and
 * must never do. */
int jail_limit(const struct jail *jail, struct husk_error *err);
int jail_leave_network(const struct jail *jail, struct husk_error *err);
int jail_leave_host(struct husk_error *err);
int jail_leave_files(const struct jail *jail, struct husk_error *err);
int jail_drop_privileges(const struct jail *jail, struct husk_error *err);
int jail_become(const struct jail *jail, struct husk_error *err);
int jail_check(const struct jail *jail, struct husk_error *err);

#endif
