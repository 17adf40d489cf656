/*
 * Child processes: what they are given, how their end is told, and that limits on time and output hold.
 */
#include "base/base.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "scratch.h"

#define SHELL(script)                                                                                                  \
	(const char *const[])                                                                                          \
	{                                                                                                              \
		"sh", "-c", script, NULL                                                                               \
	}

static void command_collects_output(void **state)
{
	cleanup_buf struct buf output = { 0 };
	struct command command = { COMMAND_INIT, .argv = SHELL("echo out; echo err >&2; pwd; cat"), .output = &output };
	struct husk_error err = { 0 };

	(void)state;
	assert_int_equal(command_run(&command, &err), 0);
	assert_string_equal(output.data, "out\n/\n");
	command.argv = SHELL("exit 0");
	command.output = NULL;
	assert_int_equal(command_run(&command, &err), 0);
}

static void command_takes_much_output_on_both_streams(void **state)
{
	cleanup_buf struct buf output = { 0 };
	struct command command = { COMMAND_INIT, .output = &output,
				   .argv = SHELL(
					   "head -c 3000000 /dev/zero; head -c 3000000 /dev/zero >&2; echo end") };
	struct husk_error err = { 0 };

	(void)state;
	assert_int_equal(command_run(&command, &err), 0);
	assert_int_equal(output.size, 3000004);
	buf_free(&output);
	command.argv = SHELL("head -c 20000000 /dev/zero");
	assert_int_equal(command_run(&command, &err), -1);
	assert_int_equal(err.code, HUSK_LIMIT);
}

static void command_reports_how_it_ended(void **state)
{
	struct command command = { COMMAND_INIT, .argv = SHELL("echo 'no such thing' >&2; echo >&2; exit 3") };
	struct husk_error err = { 0 };

	(void)state;
	assert_int_equal(command_run(&command, &err), -1);
	assert_string_equal(err.message, "sh failed with exit status 3: no such thing");
	command.argv = SHELL("kill -SEGV $$");
	assert_int_equal(command_run(&command, &err), -1);
	assert_true(str_starts(err.message, "sh was killed by signal 11"));
	command.argv = (const char *const[]){ "husk-no-such-program", NULL };
	assert_int_equal(command_run(&command, &err), -1);
	assert_int_equal(err.code, HUSK_UNAVAILABLE);
	assert_non_null(strstr(err.message, "husk-no-such-program"));
	command.argv = (const char *const[]){ "/etc/passwd", NULL };
	assert_int_equal(command_run(&command, &err), -1);
	command.argv = SHELL("true");
	command.directory = "/no/such/directory";
	assert_int_equal(command_run(&command, &err), -1);
	assert_non_null(strstr(err.message, "/no/such/directory"));
}

static void command_shows_only_the_tail_of_its_errors(void **state)
{
	struct command command = {
		COMMAND_INIT,
		.argv = SHELL(
			"for i in $(seq 2000); do echo \"line $i\" >&2; done; printf '\\033[31mlast' >&2; exit 1")
	};
	struct husk_error err = { 0 };

	(void)state;
	assert_int_equal(command_run(&command, &err), -1);
	assert_true(str_ends(err.message, "line 2000; [31mlast"));
	assert_null(strchr(err.message, '\033'));
	assert_null(strstr(err.message, "line 1;"));
}

static void command_timeout_ends_the_whole_group(void **state)
{
	cleanup_free char *script = str_format("(while sleep 0.05; do echo x >>%s/alive; done) & sleep 60", scratch);
	struct command command = { COMMAND_INIT, .argv = SHELL(script), .timeout_ms = 2000 };
	struct husk_error err = { 0 };
	int64_t started = time_monotonic_ms();
	struct stat first, second;

	(void)state;
	assert_int_equal(command_run(&command, &err), -1);
	assert_int_equal(err.code, HUSK_TIMEOUT);
	assert_true(time_monotonic_ms() - started < 30000);
	assert_int_equal(stat(at("alive"), &first), 0);
	usleep(300000);
	assert_int_equal(stat(at("alive"), &second), 0);
	assert_int_equal(first.st_size, second.st_size);
}

static void command_does_not_wait_for_what_it_left_behind(void **state)
{
	cleanup_buf struct buf output = { 0 };
	/* The child left behind holds both pipes open; the output that is there already must not be lost. */
	struct command command = { COMMAND_INIT, .argv = SHELL("sleep 20 & echo started"), .output = &output };
	struct husk_error err = { 0 };
	int64_t started = time_monotonic_ms();

	(void)state;
	assert_int_equal(command_run(&command, &err), 0);
	assert_true(time_monotonic_ms() - started < 15000);
	assert_string_equal(output.data, "started\n");
}

static void command_gives_a_clean_world(void **state)
{
	cleanup_buf struct buf output = { 0 };
	cleanup_close int leaked = open("/dev/null", O_RDONLY); /* without close-on-exec, on purpose */
	struct command command = { COMMAND_INIT,
				   .argv = SHELL("ls /proc/self/fd | wc -l; env | cut -d= -f1 | sort | tr '\\n' ' '"),
				   .output = &output };
	struct husk_error err = { 0 };
	sigset_t blocked, old;

	(void)state;
	assert_true(leaked >= 0);
	setenv("HUSK_TEST_SECRET", "hunter2", 1);
	unsetenv("HUSK_STRICT"); /* tests hand it on */
	assert_int_equal(command_run(&command, &err), 0);
	unsetenv("HUSK_TEST_SECRET");
	/* 0, 1, 2 and the one ls reads the directory with. PWD is the shell's own. */
	assert_true(str_starts(output.data, "4\n"));
	assert_null(strstr(output.data, "SECRET"));
	assert_non_null(strstr(output.data, "HOME LANG "));
	/* Neither blocked nor ignored signals are passed on. */
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGTERM);
	sigprocmask(SIG_BLOCK, &blocked, &old);
	signal(SIGPIPE, SIG_IGN);
	buf_free(&output);
	command.argv = SHELL("sed -n 's/^Sig\\(Blk\\|Ign\\):.//p' /proc/self/status");
	assert_int_equal(command_run(&command, &err), 0);
	signal(SIGPIPE, SIG_DFL);
	sigprocmask(SIG_SETMASK, &old, NULL);
	/* Two lines of mask. 32 and 33 are the C library's own: posix_spawn leaves them ignored, and nobody can change it. */
	assert_true(output.data && output.size == 34);
	assert_true((strtoull(output.data, NULL, 16) & ~0x180000000ull) == 0);
	assert_true((strtoull(output.data + 17, NULL, 16) & ~0x180000000ull) == 0);
}

static void command_takes_environment_directory_and_descriptors(void **state)
{
	cleanup_close int in = -1, out = -1;
	struct husk_error err = { 0 };
	char *text;

	(void)state;
	put(at("in"), "input");
	in = open(at("in"), O_RDONLY | O_CLOEXEC);
	out = open(at("out"), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644);
	assert_true(in >= 0 && out >= 0);
	struct command command = { .argv = SHELL("cat; echo \":$GREETING:$(pwd)\"; echo wrong >&2"),
				   .environment = (const char *const[]){ "GREETING=hello", "PATH=/usr/bin:/bin", NULL },
				   .directory = "/usr",
				   .stdin_fd = in,
				   .stdout_fd = out,
				   .stderr_fd = out };

	assert_int_equal(command_run(&command, &err), 0);
	text = file_read(at("out"), 1000, NULL, &err);
	assert_string_equal(text, "input:hello:/usr\nwrong\n");
	free(text);
}

static int refuse(void *data)
{
	return *(int *)data;
}

static int keep(void *data)
{
	return fd_set_cloexec(*(int *)data, false) < 0;
}

static void command_before_exec_decides(void **state)
{
	cleanup_buf struct buf output = { 0 };
	cleanup_close int handed_on = open("/dev/null", O_RDONLY | O_CLOEXEC);
	cleanup_free char *script = str_format("test -e /proc/self/fd/%d && echo here", handed_on);
	int status = 42;
	struct command command = { COMMAND_INIT, .argv = SHELL("true"), .before_exec = refuse, .data = &status };
	struct husk_error err = { 0 };

	(void)state;
	assert_int_equal(command_run(&command, &err), -1);
	assert_string_equal(err.message, "sh failed with exit status 42");
	command = (struct command){ COMMAND_INIT, .argv = SHELL(script), .before_exec = keep, .data = &handed_on,
				    .output = &output };
	assert_int_equal(command_run(&command, &err), 0);
	assert_string_equal(output.data, "here\n");
}

static int own_session(void *data)
{
	(void)data;
	return setsid() < 0;
}

static void command_start_leaves_it_running(void **state)
{
	struct command command = { COMMAND_INIT, .argv = SHELL("sleep 30"), .before_exec = own_session };
	struct husk_error err = { 0 };
	int status;
	pid_t pid = command_start(&command, &err);

	(void)state;
	assert_true(pid > 0);
	assert_int_equal(getpgid(pid), pid);
	assert_int_equal(getsid(pid), pid);
	assert_int_equal(kill(pid, SIGTERM), 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
	command.argv = (const char *const[]){ "husk-no-such-program", NULL };
	assert_int_equal(command_start(&command, &err), -1);
	assert_int_equal(err.code, HUSK_UNAVAILABLE);
	/* The failed one was reaped. */
	assert_int_equal(waitpid(-1, &status, WNOHANG), -1);
	assert_int_equal(errno, ECHILD);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(command_collects_output),
		cmocka_unit_test(command_takes_much_output_on_both_streams),
		cmocka_unit_test(command_reports_how_it_ended),
		cmocka_unit_test(command_shows_only_the_tail_of_its_errors),
		cmocka_unit_test(command_timeout_ends_the_whole_group),
		cmocka_unit_test(command_does_not_wait_for_what_it_left_behind),
		cmocka_unit_test(command_gives_a_clean_world),
		cmocka_unit_test(command_takes_environment_directory_and_descriptors),
		cmocka_unit_test(command_before_exec_decides),
		cmocka_unit_test(command_start_leaves_it_running),
	};

	return cmocka_run_group_tests_name("command", tests, make_scratch, remove_scratch);
}
