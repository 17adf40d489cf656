/*
 * The life of a sandbox: what may follow what, one turn at a time, and an end that wins over everything and waits for
 * nothing. The machine is a process that sleeps.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "supervisor/life.h"

struct engine_machine {
	int pidfd;
};

struct world {
	struct life life;
	struct husk_error err;
	pid_t process;
	struct engine_machine machine;
};

static int end_fd(struct engine_machine *machine)
{
	return machine->pidfd;
}

static void kill_it(struct engine_machine *machine)
{
	syscall(SYS_pidfd_send_signal, machine->pidfd, SIGKILL, NULL, 0);
}

static const struct engine engine = { .end_fd = end_fd, .kill = kill_it };

static int set_up(void **state)
{
	struct world *w = calloc(1, sizeof(*w));

	*state = w;
	return life_open(&w->life, "sb-1", CATALOG_CREATING, &w->err);
}

static int tear_down(void **state)
{
	struct world *w = *state;

	fd_close(&w->life.clock_fd);
	fd_close(&w->life.wake_fd);
	fd_close(&w->life.end_fd);
	if (w->process) {
		waitpid(w->process, NULL, 0);
		fd_close(&w->machine.pidfd);
	}
	free(w->life.id);
	free(w);
	return 0;
}

static void take(struct world *w, enum life_step step)
{
	assert_int_equal(life_begin(&w->life, step, &w->err), 0);
	life_finish(&w->life, true);
}

static void refused(struct world *w, enum life_step step, enum husk_code code)
{
	w->err.code = HUSK_OK;
	assert_int_equal(life_begin(&w->life, step, &w->err), -1);
	assert_int_equal(w->err.code, code);
}

static void start_machine(struct world *w)
{
	w->process = fork();
	if (w->process == 0) {
		pause();
		_exit(0);
	}
	w->machine.pidfd = (int)syscall(SYS_pidfd_open, w->process, 0);
	life_arm(&w->life, &engine, &w->machine);
}

static bool dead(struct world *w)
{
	struct pollfd wait = { life_end_fd(&w->life), POLLIN, 0 };

	return poll(&wait, 1, 5000) == 1;
}

static void test_states(void **state)
{
	struct world *w = *state;

	refused(w, LIFE_CHECKPOINT, HUSK_CONFLICT);
	refused(w, LIFE_CLAIM, HUSK_CONFLICT);
	take(w, LIFE_START);
	assert_int_equal(life_look(&w->life).state, CATALOG_RUNNING);
	refused(w, LIFE_START, HUSK_CONFLICT);
	refused(w, LIFE_RESUME, HUSK_CONFLICT);
	take(w, LIFE_CHECKPOINT);
	take(w, LIFE_PAUSE);
	refused(w, LIFE_CHECKPOINT, HUSK_CONFLICT);
	assert_non_null(strstr(w->err.message, "husk resume sb-1"));
	take(w, LIFE_EGRESS);
	assert_int_equal(life_look(&w->life).state, CATALOG_PAUSED);
	take(w, LIFE_RESUME);
	take(w, LIFE_HIBERNATE);
	refused(w, LIFE_CHECKPOINT, HUSK_CONFLICT);
}

static void test_failed_step_changes_nothing(void **state)
{
	struct world *w = *state;

	take(w, LIFE_START);
	assert_int_equal(life_begin(&w->life, LIFE_PAUSE, &w->err), 0);
	life_finish(&w->life, false);
	assert_int_equal(life_look(&w->life).state, CATALOG_RUNNING);
}

static void *wait_for_turn(void *argument)
{
	struct world *w = argument;
	struct husk_error err = { 0 };

	return life_begin(&w->life, LIFE_PAUSE, &err) < 0 && err.code == HUSK_GONE ? w : NULL;
}

/* Whoever has the turn never gives it back, as one that waits for a disk: the end kills the machine all the same. */
static void test_end_waits_for_nobody(void **state)
{
	struct world *w = *state;
	pthread_t thread;
	void *gone = NULL;

	start_machine(w);
	take(w, LIFE_START);
	assert_int_equal(life_begin(&w->life, LIFE_CHECKPOINT, &w->err), 0);
	pthread_create(&thread, NULL, wait_for_turn, w);
	assert_true(life_end(&w->life, "ttl"));
	assert_true(life_end(&w->life, "killed"));
	assert_true(dead(w));
	pthread_join(thread, &gone);
	assert_ptr_equal(gone, w);
	assert_string_equal(life_look(&w->life).reason, "ttl");
	assert_false(life_commit(&w->life));
	life_finish(&w->life, true);
	refused(w, LIFE_CHECKPOINT, HUSK_GONE);
}

static void test_machine_that_comes_after_the_end(void **state)
{
	struct world *w = *state;

	assert_true(life_end(&w->life, "killed"));
	start_machine(w);
	assert_true(dead(w));
}

static void test_sleep_that_was_committed_wins(void **state)
{
	struct world *w = *state;

	take(w, LIFE_START);
	assert_int_equal(life_begin(&w->life, LIFE_HIBERNATE, &w->err), 0);
	assert_true(life_commit(&w->life));
	assert_false(life_end(&w->life, "killed"));
	assert_false(life_look(&w->life).ending);
	life_finish(&w->life, true);
}

/* A rewind leaves a running or paused machine for another; the end before its commit wins, and callers come again later. */
static void test_rewind(void **state)
{
	struct world *w = *state;

	take(w, LIFE_START);
	take(w, LIFE_PAUSE);
	assert_int_equal(life_begin(&w->life, LIFE_REWIND, &w->err), 0);
	assert_true(life_look(&w->life).sleepy);
	life_finish(&w->life, false);
	assert_int_equal(life_look(&w->life).state, CATALOG_PAUSED);
	take(w, LIFE_RESUME);
	assert_int_equal(life_begin(&w->life, LIFE_REWIND, &w->err), 0);
	assert_true(life_commit(&w->life));
	assert_int_equal(life_look(&w->life).state, CATALOG_HIBERNATED);
	assert_false(life_end(&w->life, "killed"));
	life_finish(&w->life, true);
	refused(w, LIFE_REWIND, HUSK_CONFLICT);
}

static void test_end_before_a_rewind(void **state)
{
	struct world *w = *state;

	start_machine(w);
	take(w, LIFE_START);
	assert_int_equal(life_begin(&w->life, LIFE_REWIND, &w->err), 0);
	assert_true(life_end(&w->life, "ttl"));
	assert_true(dead(w));
	assert_false(life_commit(&w->life));
	life_finish(&w->life, true);
	refused(w, LIFE_REWIND, HUSK_GONE);
}

static void test_pool_entry_ends_without_a_reason(void **state)
{
	struct world *w = *state;

	w->life.state = CATALOG_PREPARING;
	take(w, LIFE_POOL);
	assert_true(life_end(&w->life, "killed"));
	assert_string_equal(life_look(&w->life).reason, "");
}

/* It may be waking a sandbox, which would be hibernated again after a kill that was answered. */
static void test_kill_of_a_claimed_machine_has_its_reason(void **state)
{
	struct world *w = *state;

	w->life.state = CATALOG_PREPARING;
	take(w, LIFE_POOL);
	assert_int_equal(life_begin(&w->life, LIFE_CLAIM, &w->err), 0);
	assert_true(life_end(&w->life, "killed"));
	assert_string_equal(life_look(&w->life).reason, "killed");
	life_finish(&w->life, false);
}

/* Whoever asks for its end then has to ask again, once it is hibernated. */
static void test_kill_of_a_failed_wake_comes_too_late(void **state)
{
	struct world *w = *state;

	assert_int_equal(life_begin(&w->life, LIFE_START, &w->err), 0);
	assert_true(life_end(&w->life, NULL));
	assert_false(life_end(&w->life, "killed"));
	assert_string_equal(life_look(&w->life).reason, "");
	life_finish(&w->life, false);
}

static bool rings(struct world *w, int timeout_ms)
{
	struct pollfd wait = { w->life.clock_fd, POLLIN, 0 };

	return poll(&wait, 1, timeout_ms) == 1;
}

static void test_clock(void **state)
{
	struct world *w = *state;

	take(w, LIFE_START);
	assert_false(rings(w, 50));
	life_set_expiry(&w->life, time_wall_ms() + 100, false);
	assert_true(rings(w, 5000));
	assert_int_equal(life_due(&w->life), LIFE_EXPIRED);
	life_set_expiry(&w->life, 0, true);
	assert_false(rings(w, 50));
	assert_int_equal(life_due(&w->life), LIFE_NOTHING_DUE);
	/* Of the past: due at once. */
	life_set_expiry(&w->life, time_wall_ms() - 100000, false);
	assert_true(rings(w, 5000));
	assert_int_equal(life_due(&w->life), LIFE_EXPIRED);
}

static void test_idle(void **state)
{
	struct world *w = *state;

	life_set_idle(&w->life, 1);
	take(w, LIFE_START);
	assert_int_equal(life_session(&w->life, true), 0);
	assert_false(rings(w, 1500));
	life_session(&w->life, false);
	assert_true(rings(w, 5000));
	assert_int_equal(life_due(&w->life), LIFE_IDLE);
	assert_int_equal(life_due(&w->life), LIFE_NOTHING_DUE);
}

static void test_too_many_clients(void **state)
{
	struct world *w = *state;
	int refused_at = 0;

	for (int i = 1; i < 5000 && !refused_at; i++)
		if (life_session(&w->life, true) < 0)
			refused_at = i;
	assert_in_range(refused_at, 100, 4999);
}

int main(void)
{
#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)
	const struct CMUnitTest tests[] = {
		TEST(test_states),
		TEST(test_failed_step_changes_nothing),
		TEST(test_end_waits_for_nobody),
		TEST(test_machine_that_comes_after_the_end),
		TEST(test_sleep_that_was_committed_wins),
		TEST(test_rewind),
		TEST(test_end_before_a_rewind),
		TEST(test_pool_entry_ends_without_a_reason),
		TEST(test_kill_of_a_claimed_machine_has_its_reason),
		TEST(test_kill_of_a_failed_wake_comes_too_late),
		TEST(test_clock),
		TEST(test_idle),
		TEST(test_too_many_clients),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
