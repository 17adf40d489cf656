/*
 * Starts a process by clone(CLONE_VM | CLONE_VFORK): no page table is copied, and the child reports failures through shared
 * memory. Called by exec.c only. Until exec the child runs on the agent's memory: it makes direct system calls, and must
 * never allocate, take a lock, or write to anything except `struct spawn`.
 */
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

#include "agent/spawn.h"

#define SPAWN_STACK_SIZE (64u * 1024u)
#define SPAWN_ARGUMENTS_MAX 1024 /* for a script without #!, which is started by the shell */

/* The child never returns from its frames (exec discards them), so the address sanitizer must not mark them: the next
 * child uses the same stack. */
#define CHILD __attribute__((no_sanitize("address"))) static

/* The shell runs a script without an interpreter line, as with execvp. */
CHILD void exec_by_shell(const char *file, const struct spawn *spawn)
{
	const char *argv[SPAWN_ARGUMENTS_MAX + 3] = { "/bin/sh", file };

	for (size_t i = 1; spawn->argv[i]; i++) {
		if (i >= SPAWN_ARGUMENTS_MAX) {
			errno = E2BIG;
			return;
		}
		argv[i + 1] = spawn->argv[i];
	}
	execve("/bin/sh", (char *const *)argv, spawn->environment);
}

CHILD void exec_file(const char *file, const struct spawn *spawn)
{
	execve(file, spawn->argv, spawn->environment);
	if (errno == ENOEXEC)
		exec_by_shell(file, spawn);
}

/* Searches PATH as a shell does: a file that may not be executed is remembered, and the search continues. */
CHILD int exec_search(const struct spawn *spawn)
{
	const char *name = spawn->argv[0];
	char file[PATH_MAX];
	int seen = ENOENT;

	for (const char *at = spawn->path; at;) {
		size_t length = strcspn(at, ":");
		/* An empty element of PATH is the current directory. */
		int size = snprintf(file, sizeof(file), "%.*s/%s", length ? (int)length : 1, length ? at : ".", name);
		if (size > 0 && (size_t)size < sizeof(file)) {
			/* access() first: a failing exec costs half a millisecond in gVisor, and most directories do
			 * not have the program. */
			if (access(file, F_OK) == 0)
				exec_file(file, spawn);
			if (errno == EACCES)
				seen = EACCES;
			else if (errno != ENOENT && errno != ENOTDIR)
				return errno;
		}
		at = at[length] == ':' ? at + length + 1 : NULL;
	}
	return seen;
}

/* Raw system calls: the C library would change every thread of the agent, and this child is not a thread. */
CHILD int become(const struct user *user)
{
	if (user->uid == 0)
		return 0;
	if (syscall(SYS_setgroups, user->group_count, user->groups) < 0 ||
	    syscall(SYS_setresgid, user->gid, user->gid, user->gid) < 0 ||
	    syscall(SYS_setresuid, user->uid, user->uid, user->uid) < 0)
		return -1;
	return 0;
}

CHILD int child_prepare(struct spawn *spawn)
{
	sigset_t none;

	sigemptyset(&none);
	if (setsid() < 0)
		return -1;
	for (int i = 0; i < 3; i++) {
		if (spawn->stdio[i] >= 0 && dup2(spawn->stdio[i], i) < 0)
			return -1;
	}
	if (spawn->terminal && ioctl(0, TIOCSCTTY, 0) < 0)
		return -1;
	if (spawn->group_tasks >= 0 && write(spawn->group_tasks, "0", 1) < 0)
		return -1;
	if (become(spawn->user) < 0)
		return -1;
	if (chdir(spawn->directory) < 0) {
		if (spawn->directory_must) {
			spawn->outcome = SPAWN_DIRECTORY;
			return -1;
		}
		if (chdir("/") < 0)
			return -1;
	}
	return sigprocmask(SIG_SETMASK, &none, NULL);
}

CHILD int child_main(void *data)
{
	struct spawn *spawn = data;

	spawn->outcome = SPAWN_FAILED;
	if (child_prepare(spawn) < 0) {
		spawn->error = errno;
		_exit(127);
	}
	/* Set in advance: after a successful exec, the child cannot set it. */
	spawn->outcome = SPAWN_STARTED;
	if (strchr(spawn->argv[0], '/')) {
		exec_file(spawn->argv[0], spawn);
		spawn->error = errno;
	} else {
		spawn->error = exec_search(spawn);
	}
	bool missing = spawn->error == ENOENT || spawn->error == ENOTDIR;
	spawn->outcome = missing ? SPAWN_NOT_FOUND : SPAWN_NOT_EXECUTABLE;
	_exit(missing ? 127 : 126);
}

pid_t spawn(struct spawn *spawn)
{
	static char stack[SPAWN_STACK_SIZE] __attribute__((aligned(64))); /* one start at a time */

	return clone(child_main, stack + sizeof(stack), CLONE_VM | CLONE_VFORK | SIGCHLD, spawn);
}
