/*
 * A husk-vmm whose system calls are watched one by one: which kind of thread made which, and, when asked for, one of them
 * failing, being another one, or being the last thing the process does. One thread of the test traces it (ptrace); the
 * test itself speaks to it as the engine would. The filters stay in force: what is put in a call's place goes through them.
 */
#ifndef HUSK_TEST_VMM_TRACE_H
#define HUSK_TEST_VMM_TRACE_H

#include <pthread.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>

#include <linux/ptrace.h>

#include "vmm_world.h"

#define TRACE_THREADS 32

enum trace_action { TRACE_NOTHING, TRACE_FAIL, TRACE_KILL, TRACE_REPLACE };

struct trace_call {
	uint64_t number, arguments[6];
};

/* What is to happen at the `at`-th call from now (0: the next) that threads of this kind make. */
struct trace_plan {
	enum trace_action action;
	enum rules_kind kind;
	uint64_t only; /* count only this call, when `filter` */
	bool filter;
	unsigned at, times;     /* TRACE_FAIL: how many in a row from there on; 0: one */
	int error;              /* TRACE_FAIL: the errno */
	struct trace_call call; /* TRACE_REPLACE */
};

struct trace_thread {
	pid_t tid;
	enum rules_kind kind;
	bool confined; /* its own filter is on */
	bool failing;
	uint64_t saved;  /* first argument of the call that is made to fail */
	uint64_t number; /* of its call */
};

struct trace {
	struct vmm vmm;
	pthread_t thread;
	int theirs;
	int started, tell; /* a pipe: the pid is known */
	pthread_mutex_t lock;
	struct trace_plan plan;
	unsigned counted; /* calls of the plan's kind since it was set */
	bool struck;
	void (*seen)(void *data, enum rules_kind kind, const struct trace_call *call);
	void *data;
	struct trace_thread threads[TRACE_THREADS];
	size_t thread_count;
	bool main_confined;
	int status; /* of the process, when it has ended */
};

static void trace_be_born(void *data)
{
	struct trace *trace = data;
	static char *const argv[] = { "husk-vmm", WORLD_UID, WORLD_UID, NULL }, *const none[] = { NULL };
	char path[PATH_MAX];
	ssize_t size = readlink("/proc/self/exe", path, sizeof(path) - 20);

	/* Beside the folder this test is in, as built; in an installed tree there are no tests. */
	path[size < 0 ? 0 : size] = '\0';
	for (int i = 0; i < 2 && strrchr(path, '/'); i++)
		*strrchr(path, '/') = '\0';
	strcat(path, "/husk-vmm");
	sigset_t none_blocked;
	sigemptyset(&none_blocked);
	sigprocmask(SIG_SETMASK, &none_blocked, NULL);
	if (dup2(trace->theirs, CONTROL_FD) < 0 || dup2(trace->vmm.log, 2) < 0 || ptrace(PTRACE_TRACEME, 0, 0, 0) < 0)
		_exit(126);
	syscall(SYS_close_range, CONTROL_FD + 1, ~0u, 0u);
	execve(path, argv, none);
	_exit(127);
}

static struct trace_thread *trace_thread_of(struct trace *trace, pid_t tid)
{
	for (size_t i = 0; i < trace->thread_count; i++)
		if (trace->threads[i].tid == tid)
			return &trace->threads[i];
	/* The first is the first, the second runs the disks, all others are vCPUs. */
	world_check(trace->thread_count < TRACE_THREADS);
	trace->threads[trace->thread_count] =
		(struct trace_thread){ .tid = tid, .kind = (enum rules_kind)MIN(trace->thread_count, RULES_VCPU) };
	return &trace->threads[trace->thread_count++];
}

static void trace_fail_entry(struct trace_thread *thread)
{
	struct user_regs_struct regs;

	/* A call that every filter allows, and that fails without touching anything. */
	if (ptrace(PTRACE_GETREGS, thread->tid, 0, &regs) < 0)
		return;
	thread->failing = true;
	thread->saved = regs.rdi;
	regs.orig_rax = SYS_clock_gettime;
	regs.rdi = INT32_MAX;
	ptrace(PTRACE_SETREGS, thread->tid, 0, &regs);
}

static void trace_fail_exit(struct trace_thread *thread, int error)
{
	struct user_regs_struct regs;

	thread->failing = false;
	if (ptrace(PTRACE_GETREGS, thread->tid, 0, &regs) < 0)
		return;
	regs.rdi = thread->saved;
	regs.rax = (unsigned long long)-error;
	ptrace(PTRACE_SETREGS, thread->tid, 0, &regs);
}

static void trace_replace(pid_t tid, const struct trace_call *call)
{
	struct user_regs_struct regs;

	if (ptrace(PTRACE_GETREGS, tid, 0, &regs) < 0)
		return;
	regs.orig_rax = call->number;
	regs.rdi = call->arguments[0];
	regs.rsi = call->arguments[1];
	regs.rdx = call->arguments[2];
	regs.r10 = call->arguments[3];
	regs.r8 = call->arguments[4];
	regs.r9 = call->arguments[5];
	ptrace(PTRACE_SETREGS, tid, 0, &regs);
}

static void trace_strike(struct trace *trace, struct trace_thread *thread)
{
	const struct trace_plan *plan = &trace->plan;

	if (plan->action == TRACE_NOTHING || plan->kind != thread->kind || !thread->confined ||
	    (plan->filter && plan->only != thread->number))
		return;
	/* Waiting does not fail, and the C library ends a program in which it does; brk has its own way to say no. */
	if (plan->action == TRACE_FAIL && (thread->number == SYS_futex || thread->number == SYS_brk))
		return;
	unsigned number = trace->counted++;
	if (number < plan->at || number >= plan->at + MAX(plan->times, 1u))
		return;
	trace->struck = true;
	if (plan->action == TRACE_FAIL)
		trace_fail_entry(thread);
	else if (plan->action == TRACE_KILL)
		kill(trace->vmm.pid, SIGKILL);
	else
		trace_replace(thread->tid, &plan->call);
}

static void trace_syscall(struct trace *trace, struct trace_thread *thread)
{
	struct ptrace_syscall_info info;

	if (ptrace(PTRACE_GET_SYSCALL_INFO, thread->tid, sizeof(info), &info) <= 0)
		return;
	pthread_mutex_lock(&trace->lock);
	if (info.op == PTRACE_SYSCALL_INFO_ENTRY) {
		struct trace_call call = { .number = info.entry.nr };

		memcpy(call.arguments, info.entry.args, sizeof(call.arguments));
		thread->number = call.number;
		/* A vCPU's thread lives by the filter it inherited as well as by its own. */
		if (trace->seen && thread->kind == RULES_VCPU && trace->main_confined)
			trace->seen(trace->data, RULES_MAIN, &call);
		if (trace->seen && thread->confined)
			trace->seen(trace->data, thread->kind, &call);
		trace_strike(trace, thread);
	} else if (info.op == PTRACE_SYSCALL_INFO_EXIT) {
		if (thread->failing)
			trace_fail_exit(thread, trace->plan.error);
		if (thread->number == SYS_seccomp && info.exit.rval == 0) {
			thread->confined = true;
			trace->main_confined |= thread->kind == RULES_MAIN;
		}
	}
	pthread_mutex_unlock(&trace->lock);
}

/* Handles one report; the signal to hand on. */
static int trace_report(struct trace *trace, pid_t tid, int status)
{
	int number = WSTOPSIG(status);
	unsigned long started = 0;

	/* In the order they were made in, which need not be the order they get to run in. */
	if (status >> 8 == (SIGTRAP | PTRACE_EVENT_CLONE << 8) && ptrace(PTRACE_GETEVENTMSG, tid, 0, &started) == 0)
		trace_thread_of(trace, (pid_t)started);
	if (number == (SIGTRAP | 0x80)) {
		trace_syscall(trace, trace_thread_of(trace, tid));
		return 0;
	}
	trace_thread_of(trace, tid);
	/* It would be sent again and again: the first process of a pid namespace does not die of a handed-on signal. */
	if (number == SIGSEGV || number == SIGBUS || number == SIGABRT) {
		fprintf(stderr, "husk-vmm got signal %d\n", number);
		kill(trace->vmm.pid, SIGKILL);
	}
	/* A new thread says so with these; all others are meant. */
	return number == SIGTRAP || number == SIGSTOP ? 0 : number;
}

static void *trace_run(void *data)
{
	struct trace *trace = data;
	const long options = PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL;
	int status;
	pid_t tid;

	trace->vmm.pid = jail_clone(CLONE_NEWPID, trace_be_born, trace, &trace->vmm.pidfd);
	world_check(trace->vmm.pid > 0);
	world_check(waitpid(trace->vmm.pid, &status, __WALL) == trace->vmm.pid && WIFSTOPPED(status));
	world_check(ptrace(PTRACE_SETOPTIONS, trace->vmm.pid, 0, options) == 0);
	trace_thread_of(trace, trace->vmm.pid);
	close(trace->theirs);
	world_check(write(trace->tell, "x", 1) == 1);
	ptrace(PTRACE_SYSCALL, trace->vmm.pid, 0, 0);
	while ((tid = waitpid(-1, &status, __WALL | __WNOTHREAD)) > 0 || errno == EINTR) {
		if (tid > 0 && WIFSTOPPED(status))
			ptrace(PTRACE_SYSCALL, tid, 0, trace_report(trace, tid, status));
		else if (tid == trace->vmm.pid)
			trace->status = status;
	}
	return NULL;
}

/* Starts husk-vmm under the eyes of a thread of its own. */
static inline void trace_start(struct trace *trace, void (*seen)(void *, enum rules_kind, const struct trace_call *),
			       void *data)
{
	int ends[2];
	char byte;

	*trace = (struct trace){ .lock = PTHREAD_MUTEX_INITIALIZER, .seen = seen, .data = data };
	vmm_open(&trace->vmm, &trace->theirs);
	world_check(pipe2(ends, O_CLOEXEC) == 0);
	trace->started = ends[0];
	trace->tell = ends[1];
	world_check(pthread_create(&trace->thread, NULL, trace_run, trace) == 0);
	world_check(read(trace->started, &byte, 1) == 1);
	close(ends[0]);
	close(ends[1]);
}

static inline void trace_plan(struct trace *trace, struct trace_plan plan)
{
	pthread_mutex_lock(&trace->lock);
	trace->plan = plan;
	trace->counted = 0;
	trace->struck = false;
	pthread_mutex_unlock(&trace->lock);
}

/* Nothing more is to happen; whether it had. */
static inline bool trace_calm(struct trace *trace)
{
	pthread_mutex_lock(&trace->lock);
	bool struck = trace->struck;
	trace->plan.action = TRACE_NOTHING;
	pthread_mutex_unlock(&trace->lock);
	return struck;
}

/* Ends it; what it ended with, as wait says. */
static inline int trace_end(struct trace *trace)
{
	close(trace->vmm.control);
	syscall(SYS_pidfd_send_signal, trace->vmm.pidfd, SIGKILL, NULL, 0);
	pthread_join(trace->thread, NULL);
	close(trace->vmm.console);
	close(trace->vmm.log);
	close(trace->vmm.pidfd);
	if (trace->vmm.link >= 0)
		close(trace->vmm.link);
	return trace->status;
}

/* Waits for its own end, which something has brought about; the same. */
static inline int trace_wait_end(struct trace *trace)
{
	struct pollfd end = { .fd = trace->vmm.pidfd, .events = POLLIN };

	world_check(poll(&end, 1, WORLD_PATIENCE_MS) == 1);
	return trace_end(trace);
}

#endif
