/*
 * METHOD_FREEZE and METHOD_THAW: around a checkpoint, every process of the guest except the agent is stopped. So no process
 * runs in a copy before the copy has its own identity. Parents are stopped before their children and continued after them,
 * so that a shell never sees its job stopped. A process that was stopped before the freeze stays stopped after it.
 */
#include <signal.h>
#include <time.h>

#include "agent/agent.h"
#include "agent/guest.h"
#include "agent/process.h"

#define FREEZE_PATIENCE_MS 10000
#define FREEZE_PAUSE_NS 200000

static bool was_stopped_by_us(const struct agent *agent, pid_t pid)
{
	for (size_t i = 0; i < agent->stopped_count; i++) {
		if (agent->stopped[i] == pid)
			return true;
	}
	return false;
}

/* True if the process runs no code, and will not before it is continued. A process in an uninterruptible wait stops
 * before it leaves the wait: a vfork parent, for example, waits for a child that is already stopped. */
static bool is_still(const struct agent *agent, const struct guest_process *process)
{
	if (process->state == 'D')
		return was_stopped_by_us(agent, process->pid);
	return strchr("TtZX", process->state) != NULL;
}

static int stop_process(struct agent *agent, pid_t pid, struct husk_error *err)
{
	if (kill(pid, SIGSTOP) < 0)
		return errno == ESRCH ? 0 : husk_fail_errno(err, "cannot stop process %d", pid);
	if (was_stopped_by_us(agent, pid))
		return 0;
	pid_t *bigger = reallocarray(agent->stopped, agent->stopped_count + 1, sizeof(*bigger));
	if (!bigger)
		return husk_fail_memory(err);
	agent->stopped = bigger;
	agent->stopped[agent->stopped_count++] = pid;
	return 0;
}

/* One pass over the guest. Returns how many processes were still running, or -1. */
static ssize_t stop_running(struct agent *agent, struct husk_error *err)
{
	cleanup_free struct guest_process *list = NULL;
	ssize_t count = guest_scan(&list, err), running = 0;

	for (ssize_t i = 0; i < count; i++) {
		if (is_still(agent, &list[i]))
			continue;
		running++;
		if (stop_process(agent, list[i].pid, err) < 0)
			return -1;
	}
	return count < 0 ? -1 : running;
}

static void let_go(struct agent *agent)
{
	if (agent->still)
		return;
	for (size_t i = agent->stopped_count; i-- > 0;) {
		if (kill(agent->stopped[i], SIGCONT) < 0 && errno != ESRCH)
			log_line(LOG_ERROR, "cannot continue process %d: %s", agent->stopped[i], strerror(errno));
	}
	free(agent->stopped);
	agent->stopped = NULL;
	agent->stopped_count = 0;
}

int freeze_answer(struct agent *agent, const struct request *request, struct buf *results, struct husk_error *err)
{
	const struct timespec pause = { .tv_nsec = FREEZE_PAUSE_NS };
	int64_t give_up = time_monotonic_ms() + FREEZE_PATIENCE_MS;
	ssize_t running;

	(void)request;
	(void)results;
	if (agent->frozen)
		return 0;
	/* A process may fork between being listed and being stopped, so passes repeat until one finds no running
	 * process. */
	while ((running = stop_running(agent, err)) > 0) {
		if (time_monotonic_ms() > give_up) {
			running = husk_fail(err, HUSK_TIMEOUT, "%zd processes would not stop", running);
			break;
		}
		nanosleep(&pause, NULL);
	}
	if (running < 0) {
		let_go(agent);
		return -1;
	}
	agent->frozen = true;
	agent->frozen_at_ms = time_monotonic_ms();
	return 0;
}

void freeze_end(struct agent *agent)
{
	if (!agent->frozen)
		return;
	agent->frozen = false;
	process_shift_timers(agent, time_monotonic_ms() - agent->frozen_at_ms);
	let_go(agent);
	uplink_replay_deferred(agent);
}

int thaw_answer(struct agent *agent, const struct request *request, struct buf *results, struct husk_error *err)
{
	(void)request;
	(void)results;
	(void)err;
	freeze_end(agent);
	return 0;
}
