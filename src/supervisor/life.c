/*
 * The life of a supervised sandbox; see life.h. The table below lists every allowed change of state.
 *
 *     preparing ──> pool ──claim──┐            ┌──pause──> paused ──resume──┐
 *     creating ────────start──────┴──> running ┴<───────────────────────────┘
 *                                       │ hibernate, or rewind (from paused too)
 *                                       └──> hibernated            any of them ──end──> ended (or back to where it was)
 */
#include "supervisor/life.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <time.h>

#include "base/thread.h"

#define TURN_MS (20 * 60 * 1000) /* longer than any step may take */
#define SESSIONS_MAX 4000 /* clients that may use the guest; a client above this limit can still end the sandbox */
#define POOL_LOOK_MS 5000 /* how often a pool entry checks whether the process that claimed it has died */

#define IN(state) (1u << CATALOG_##state)

static const struct {
	unsigned from;
	enum catalog_state to; /* CATALOG_ENDED: the state does not change */
} steps[LIFE_STEPS] = {
	[LIFE_POOL] = { IN(PREPARING), CATALOG_POOL },
	[LIFE_START] = { IN(CREATING), CATALOG_RUNNING },
	[LIFE_CLAIM] = { IN(POOL), CATALOG_RUNNING },
	[LIFE_CHECKPOINT] = { IN(RUNNING), CATALOG_ENDED },
	[LIFE_HIBERNATE] = { IN(RUNNING), CATALOG_HIBERNATED },
	[LIFE_REWIND] = { IN(RUNNING) | IN(PAUSED), CATALOG_HIBERNATED },
	[LIFE_PAUSE] = { IN(RUNNING), CATALOG_PAUSED },
	[LIFE_RESUME] = { IN(PAUSED), CATALOG_RUNNING },
	[LIFE_EGRESS] = { IN(RUNNING) | IN(PAUSED), CATALOG_ENDED },
	[LIFE_RESIZE] = { IN(RUNNING), CATALOG_ENDED },
	[LIFE_EFFECT] = { IN(RUNNING) | IN(PAUSED), CATALOG_ENDED },
	[LIFE_RELIEVE] = { IN(RUNNING), CATALOG_ENDED },
};

/* With the lock held. */
static void tell(struct life *life)
{
	uint64_t one = 1;

	pthread_cond_broadcast(&life->changed);
	(void)!write(life->wake_fd, &one, sizeof(one));
}

/* With the lock held: sets the clock to the next thing that is due. */
static void set_clock(struct life *life)
{
	int64_t next = life->due_ms ? life->due_ms : INT64_MAX;

	if (life->idle_seconds && !life->persistent && life->sessions == 0 && life->state == CATALOG_RUNNING)
		next = MIN(next, life->idle_ms + life->idle_seconds * 1000);
	if (life->state == CATALOG_POOL)
		next = MIN(next, time_boot_ms() + POOL_LOOK_MS);
	if (next == INT64_MAX)
		next = 0; /* stands still */
	else
		next = MAX(next, 1);
	struct itimerspec at = { .it_value = { .tv_sec = next / 1000, .tv_nsec = next % 1000 * 1000000 } };
	timerfd_settime(life->clock_fd, TFD_TIMER_ABSTIME, &at, NULL);
}

int life_open(struct life *life, const char *id, enum catalog_state state, struct husk_error *err)
{
	*life = (struct life){ .state = state, .end_fd = -1, .idle_ms = time_boot_ms() };
	pthread_mutex_init(&life->lock, NULL);
	cond_open(&life->changed);
	life->clock_fd = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
	life->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	life->id = strdup(id);
	if (life->clock_fd < 0 || life->wake_fd < 0 || !life->id)
		return husk_fail_errno(err, "cannot set up the supervisor");
	return 0;
}

struct life_view life_look(struct life *life)
{
	struct life_view view = { 0 };

	pthread_mutex_lock(&life->lock);
	view.id = life->id;
	view.state = life->state;
	view.ending = life->ending;
	view.over = life->over;
	view.sleepy = life->state == CATALOG_HIBERNATED ||
		      (life->busy && (life->step == LIFE_HIBERNATE || life->step == LIFE_REWIND));
	memcpy(view.reason, life->reason, sizeof(view.reason));
	view.expires_ms = life->expires_ms;
	view.sessions = life->sessions;
	pthread_mutex_unlock(&life->lock);
	return view;
}

const char *life_id(struct life *life)
{
	return life_look(life).id;
}

int life_rename(struct life *life, const char *id)
{
	char *copy = strdup(id);

	if (!copy)
		return -1;
	pthread_mutex_lock(&life->lock);
	life->id = copy;
	pthread_mutex_unlock(&life->lock);
	return 0;
}

/* ---- turns ---- */

/* With the lock held: the reason why the step is not allowed. */
static int refuse(struct life *life, enum life_step step, struct husk_error *err)
{
	const char *wanted = step == LIFE_RESUME ? "paused" : step == LIFE_CLAIM ? "in the pool" : "running";

	if (life->state == CATALOG_PAUSED && step != LIFE_PAUSE)
		return husk_fail(err, HUSK_CONFLICT, "sandbox %s is paused; resume it first (husk resume %s)", life->id,
				 life->id);
	return husk_fail(err, HUSK_CONFLICT, "sandbox %s is not %s", life->id, wanted);
}

int life_begin(struct life *life, enum life_step step, struct husk_error *err)
{
	int64_t end = time_monotonic_ms() + TURN_MS;
	int waited = 0, result = 0;

	pthread_mutex_lock(&life->lock);
	/* The thread of relief does not wait for a turn: the thread that has the turn may be waiting for relief to
	 * end. */
	while (life->busy && !life->ending && waited == 0 && step != LIFE_RELIEVE)
		waited = cond_wait_until(&life->changed, &life->lock, end);
	if (life->ending || life->over)
		result = husk_fail(err, HUSK_GONE, "sandbox %s has ended", life->id);
	else if (life->busy)
		result = husk_fail(err, HUSK_TIMEOUT, "sandbox %s is busy", life->id);
	else if (!(1u << life->state & steps[step].from))
		result = refuse(life, step, err);
	if (result == 0) {
		life->busy = true;
		life->step = step;
	}
	pthread_mutex_unlock(&life->lock);
	return result;
}

/* With the lock held. */
static void arrive(struct life *life)
{
	if (steps[life->step].to != CATALOG_ENDED)
		life->state = steps[life->step].to;
}

bool life_commit(struct life *life)
{
	pthread_mutex_lock(&life->lock);
	bool first = !life->ending;
	if (first)
		arrive(life);
	pthread_mutex_unlock(&life->lock);
	return first;
}

void life_finish(struct life *life, bool done)
{
	pthread_mutex_lock(&life->lock);
	if (done && !life->ending)
		arrive(life);
	life->busy = false;
	life->idle_ms = time_boot_ms();
	set_clock(life);
	tell(life);
	pthread_mutex_unlock(&life->lock);
}

/* ---- the end ---- */

static void kill_machine(struct life *life)
{
	if (life->machine)
		life->engine->kill(life->machine);
}

void life_arm(struct life *life, const struct engine *engine, struct engine_machine *machine)
{
	pthread_mutex_lock(&life->lock);
	life->engine = engine;
	life->machine = machine;
	life->end_fd = fcntl(engine->end_fd(machine), F_DUPFD_CLOEXEC, 3);
	if (life->ending)
		kill_machine(life);
	tell(life);
	pthread_mutex_unlock(&life->lock);
}

int life_end_fd(struct life *life)
{
	pthread_mutex_lock(&life->lock);
	int fd = life->end_fd;
	pthread_mutex_unlock(&life->lock);
	return fd;
}

bool life_end(struct life *life, const char *reason)
{
	pthread_mutex_lock(&life->lock);
	bool asleep = life->state == CATALOG_HIBERNATED;
	/* A claimed machine already answers for a sandbox, perhaps for one that wakes. A kill of that sandbox must not
	 * get lost. */
	bool claimed = life->busy && life->step == LIFE_CLAIM;
	bool never = (life->state == CATALOG_POOL && !claimed) || life->state == CATALOG_PREPARING;
	bool retreats =
		life->ending && !*life->reason; /* the sandbox goes back to its old state: hibernated, or none */
	if (!asleep && !retreats && reason && !never && !*life->reason)
		snprintf(life->reason, sizeof(life->reason), "%s", reason);
	if (!asleep && !life->ending) {
		life->ending = true;
		kill_machine(life);
		tell(life);
	}
	pthread_mutex_unlock(&life->lock);
	return !asleep && !(retreats && reason);
}

void life_seize(struct life *life)
{
	pthread_mutex_lock(&life->lock);
	while (life->busy)
		pthread_cond_wait(&life->changed, &life->lock);
	life->busy = true;
	pthread_mutex_unlock(&life->lock);
}

void life_set_over(struct life *life)
{
	pthread_mutex_lock(&life->lock);
	life->over = true;
	tell(life);
	pthread_mutex_unlock(&life->lock);
}

bool life_wait_over(struct life *life, int timeout_ms)
{
	int64_t end = time_monotonic_ms() + timeout_ms;
	int waited = 0;

	pthread_mutex_lock(&life->lock);
	while (!life->over && waited == 0)
		waited = cond_wait_until(&life->changed, &life->lock, end);
	bool over = life->over;
	pthread_mutex_unlock(&life->lock);
	return over;
}

/* ---- time ---- */

void life_set_expiry(struct life *life, int64_t expires_ms, bool persistent)
{
	pthread_mutex_lock(&life->lock);
	life->expires_ms = expires_ms;
	life->due_ms = expires_ms ? MAX(time_boot_ms() + expires_ms - time_wall_ms(), 1) : 0;
	life->persistent = persistent;
	set_clock(life);
	pthread_mutex_unlock(&life->lock);
}

void life_set_idle(struct life *life, int64_t idle_seconds)
{
	pthread_mutex_lock(&life->lock);
	life->idle_seconds = idle_seconds;
	life->idle_ms = time_boot_ms();
	set_clock(life);
	pthread_mutex_unlock(&life->lock);
}

int life_session(struct life *life, bool begins)
{
	pthread_mutex_lock(&life->lock);
	life->sessions += begins ? 1 : (size_t)-1;
	life->idle_ms = time_boot_ms();
	int result = life->sessions > SESSIONS_MAX ? -1 : 0;
	set_clock(life);
	tell(life);
	pthread_mutex_unlock(&life->lock);
	return result;
}

enum life_due life_due(struct life *life)
{
	enum life_due due = LIFE_NOTHING_DUE;
	uint64_t rings;

	(void)!read(life->clock_fd, &rings, sizeof(rings));
	pthread_mutex_lock(&life->lock);
	int64_t now = time_boot_ms();
	if (life->due_ms && now >= life->due_ms) {
		due = LIFE_EXPIRED;
	} else if (life->idle_seconds && !life->persistent && life->sessions == 0 && life->state == CATALOG_RUNNING &&
		   now >= life->idle_ms + life->idle_seconds * 1000) {
		due = LIFE_IDLE;
		life->idle_ms = now;
	}
	if (due != LIFE_EXPIRED) /* the caller then sets another time or ends the sandbox */
		set_clock(life);
	pthread_mutex_unlock(&life->lock);
	return due;
}
