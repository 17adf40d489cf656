/*
 * The cage around a process that works for a hostile guest: husk-vmm first of all.
 *
 * It is built from both sides. The parent (an engine in the supervisor) starts the program with jail_start: as pid 1 of
 * a pid namespace, born in the sandbox's cgroup, with the descriptors it was given, no others, and no environment. The
 * program itself calls jail_enter at the top of its main, while it is single-threaded and before it reads a byte that a
 * guest could have written; after that it can name no file, no process, no user and no network of the host. Then each
 * of its threads puts on its seccomp filter (jail/seccomp.h).
 *
 * Because nothing can be opened from inside, every file the program will ever need (/dev/kvm, images, taps,
 * /dev/userfaultfd) is opened outside and handed over as a descriptor, at the start or over its control socket.
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
	struct cgroup *cgroup;   /* it is born inside; NULL: stays in the caller's */
};
#define JAIL_FDS_MAX 32

/* 0 once the program runs; its pid and pidfd (readable when it has ended) are the caller's to reap and close. May be
 * called from a process with threads. The program's end is the caller's to bring about: a control socket among `fds`
 * whose end it watches, and the cgroup when it does not listen. */
int jail_start(const struct jail_start *start, pid_t *pid, int *pidfd, struct husk_error *err);

/* A fork with `flags` (CLONE_NEW*) and a pidfd, which runs `child` and never returns from it. No handler of the parent
 * runs in the child, and `child` may only call what is async-signal-safe. The pid, or -1 with errno. */
pid_t jail_clone(unsigned long flags, void (*child)(void *data), void *data, int *pidfd);

/* ---- from inside: the program, first thing in main ---- */

struct jail {
	uint32_t uid, gid;   /* of this sandbox's own range; never 0 */
	int netns;           /* descriptor of a network namespace to join; -1: a new, empty one */
	uint32_t files;      /* most descriptors it may have open */
	uint32_t threads;    /* most threads of this uid */
	uint64_t file_bytes; /* largest file it may write; 0: no bound */
	uint64_t memory;     /* bytes of private memory it may have; 0: no bound */
	/* A directory of the host that becomes its root, without devices, programs and set-uid bits; NULL: an empty one. */
	const char *root;
	bool root_read_only;
	uint64_t capabilities; /* bits of those it keeps, for the files below its root; 0: none */
};

/* All stages, in the only order that works. After a failure the process must exit: it is neither in nor out. */
int jail_enter(const struct jail *jail, struct husk_error *err);

/* The stages, for jail_enter and for the tests that look at each from inside. What each does and must never do stands
 * with it in jail.c. */
int jail_limit(const struct jail *jail, struct husk_error *err);
int jail_leave_network(const struct jail *jail, struct husk_error *err);
int jail_leave_host(struct husk_error *err);
int jail_leave_files(const struct jail *jail, struct husk_error *err);
int jail_drop_privileges(const struct jail *jail, struct husk_error *err);
int jail_become(const struct jail *jail, struct husk_error *err);
int jail_check(const struct jail *jail, struct husk_error *err);

#endif
