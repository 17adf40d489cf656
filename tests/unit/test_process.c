/*
 * The husk-vmm process as its engine holds it: ended by one thread while another talks to it, and spoken to after its end.
 * A child that only waits plays husk-vmm, so no KVM is needed.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "engine/microvm/microvm.h"

static struct microvm_process silent_process(void)
{
	struct microvm_process process = MICROVM_PROCESS_INIT;
	int ends[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
	pid_t pid = fork();
	if (pid == 0) {
		fd_close(&ends[0]);
		for (;;)
			pause();
	}
	assert_true(pid > 0);
	fd_close(&ends[1]);
	process.control = ends[0];
	process.pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	assert_true(process.pidfd >= 0);
	return process;
}

static int post(struct microvm_process *process, struct husk_error *err)
{
	return microvm_post(process, CONTROL_PAUSE, NULL, 0, NULL, NULL, 0, err);
}

/* A number that was closed may be a stranger's the next moment: nothing may use it again. */
static void nothing_is_posted_after_the_end(void **state)
{
	struct microvm_process process = silent_process();
	struct husk_error err = { 0 };

	(void)state;
	assert_int_equal(post(&process, &err), 0);
	microvm_process_stop(&process);
	microvm_process_stop(&process);
	assert_int_equal(post(&process, &err), -1);
	assert_int_equal(err.code, HUSK_GONE);
	/* The supervisor may poll them, and another thread may wait on them. */
	assert_true(fcntl(process.pidfd, F_GETFD) >= 0 && fcntl(process.control, F_GETFD) >= 0);
	int pidfd = process.pidfd, control = process.control;
	microvm_process_free(&process);
	microvm_process_free(&process);
	assert_true(fcntl(pidfd, F_GETFD) < 0 && fcntl(control, F_GETFD) < 0);
	assert_int_equal(post(&process, &err), -1);
	assert_int_equal(err.code, HUSK_GONE);
}

static void *stop_soon(void *data)
{
	usleep(100000);
	microvm_process_stop(data);
	return NULL;
}

static void the_end_ends_a_wait(void **state)
{
	struct microvm_process process = silent_process();
	struct husk_error err = { 0 };
	pthread_t thread;

	(void)state;
	assert_int_equal(post(&process, &err), 0);
	assert_int_equal(pthread_create(&thread, NULL, stop_soon, &process), 0);
	int64_t begun = time_monotonic_ms();
	assert_int_equal(microvm_settle(&process, 60000, NULL, &err), -1);
	assert_int_equal(err.code, HUSK_GONE);
	assert_true(time_monotonic_ms() - begun < 30000);
	pthread_join(thread, NULL);
	microvm_process_free(&process);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nothing_is_posted_after_the_end),
		cmocka_unit_test(the_end_ends_a_wait),
	};

	return cmocka_run_group_tests_name("process", tests, NULL, NULL);
}
