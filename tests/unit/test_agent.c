/*
 * husk-agent's processes and machine: start, output, input, terminals, timeouts, signals, attach and replay, flow
 * control, dialling, freeze, out of memory; and that garbage on the link ends it with a message.
 */
#include "agent_world.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

static struct call *shell(struct world *world, const char *line)
{
	with_string(world, TAG_SHELL, line);
	return call_run(world, METHOD_EXEC);
}

static struct call *shell_open(struct world *world, const char *line, int64_t flags)
{
	with_string(world, TAG_SHELL, line);
	with_int(world, TAG_FLAGS, flags);
	return call_open(world, METHOD_EXEC);
}

/* ---- start and end ---- */

static void output_and_exit_code(void **state)
{
	struct call *call = shell(*state, "echo out; echo err >&2; exit 3");

	assert_call(call);
	assert_output(call, "out\n");
	assert_string_equal(call->err.data, "err\n");
	assert_int_equal(end_int(call, TAG_EXIT_CODE), 3);
	assert_true(end_int(call, TAG_PID) > 0);
	assert_int_equal(message_int(call, 0, TAG_PID), end_int(call, TAG_PID));
	assert_true(end_int(call, TAG_DURATION_MS) >= 0);
}

static void argv_is_passed_as_it_is(void **state)
{
	with_string(*state, TAG_ARG, "printf");
	with_string(*state, TAG_ARG, "%s|%s");
	with_string(*state, TAG_ARG, "a b");
	with_string(*state, TAG_ARG, "$HOME;\xff");
	assert_output(call_run(*state, METHOD_EXEC), "a b|$HOME;\xff");
}

static void environment_and_directory(void **state)
{
	with_string(*state, TAG_ENV, "A=1");
	with_string(*state, TAG_ENV, "A=2");
	with_string(*state, TAG_CWD, "/usr");
	assert_output(shell(*state, "echo $A $LANG $USER $HOME; pwd"), "2 C.UTF-8 root /root\n/usr\n");

	with_string(*state, TAG_ENV, "novalue");
	assert_refused(shell(*state, "true"), HUSK_INVALID, "KEY=VALUE");
	with_string(*state, TAG_CWD, "/no/such/place");
	assert_refused(shell(*state, "true"), HUSK_NOT_FOUND, "/no/such/place");
	with_string(*state, TAG_USER, "nobody-of-that-name");
	assert_refused(shell(*state, "true"), HUSK_NOT_FOUND, "nobody-of-that-name");
	assert_refused(call_run(*state, METHOD_EXEC), HUSK_INVALID, "empty");
}

static void identity_gives_environment(void **state)
{
	with_string(*state, TAG_ENV, "WHO=me");
	with_int(*state, TAG_MEMORY, 12345);
	assert_call(call_run(*state, METHOD_IDENTITY));
	assert_output(shell(*state, "echo $WHO"), "me\n");
	assert_int_equal(end_int(call_run(*state, METHOD_STATS), TAG_MEMORY_TOTAL), 12345);
}

static void exit_codes_of_failures(void **state)
{
	with_string(*state, TAG_ARG, "no-such-command");
	struct call *call = call_run(*state, METHOD_EXEC);
	assert_int_equal(end_int(call, TAG_EXIT_CODE), 127);
	assert_non_null(strstr(call->err.data, "no-such-command: command not found"));

	with_string(*state, TAG_ARG, "/etc/passwd");
	assert_int_equal(end_int(call_run(*state, METHOD_EXEC), TAG_EXIT_CODE), 126);
	with_string(*state, TAG_ARG, "/etc");
	assert_int_equal(end_int(call_run(*state, METHOD_EXEC), TAG_EXIT_CODE), 126);

	call = shell(*state, "kill -TERM $$");
	assert_int_equal(end_int(call, TAG_EXIT_CODE), 128 + SIGTERM);
	assert_int_equal(end_int(call, TAG_SIGNAL), SIGTERM);
}

static void other_user(void **state)
{
	struct stat root;

	if (geteuid() != 0 || stat("/", &root) < 0 || !(root.st_mode & S_IXOTH)) {
		print_message(
			"# not root, or a root directory closed to others: no other user can run a program here\n");
		skip();
	}
	with_string(*state, TAG_USER, "nobody");
	assert_output(shell(*state, "id -un; id -u; echo $USER"), "nobody\n65534\nnobody\n");
	with_string(*state, TAG_USER, "4242");
	assert_output(shell(*state, "id -u"), "4242\n");
}

static void children_hold_nothing_of_the_agent(void **state)
{
	assert_output(shell(*state, "exec ls /proc/self/fd"), "0\n1\n2\n3\n");
}

static void script_without_interpreter(void **state)
{
	struct world *world = *state;
	const char *path = path_in(world, "script");

	assert_int_equal(file_write_atomic(path, "echo plain $1\n", 14, 0755, NULL), 0);
	with_string(world, TAG_ARG, path);
	with_string(world, TAG_ARG, "argument");
	assert_output(call_run(world, METHOD_EXEC), "plain argument\n");
}

/* Gone, or a zombie that its new parent has not buried yet. */
static bool is_dead(pid_t pid)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	for (int i = 0; i < 100; i++) {
		cleanup_free char *text = file_read(path, 4096, NULL, NULL);
		if (!text || strstr(text, ") Z "))
			return true;
		usleep(20000);
	}
	return false;
}

static void timeout_kills_the_group(void **state)
{
	with_int(*state, TAG_TIMEOUT_MS, 150);
	struct call *call = shell(*state, "sleep 100 & echo $!; wait");

	assert_int_equal(end_int(call, TAG_EXIT_CODE), 124);
	assert_int_equal(end_int(call, TAG_TIMED_OUT), 1);
	assert_true(end_int(call, TAG_DURATION_MS) < 5000);
	assert_true(is_dead(atoi(call->out.data)));
}

static void background_child_does_not_hold_the_end(void **state)
{
	int64_t before = time_monotonic_ms();
	struct call *call = shell(*state, "sleep 30 & echo started");

	assert_output(call, "started\n");
	assert_true(time_monotonic_ms() - before < 5000);
}

/* ---- input, signals, terminals ---- */

static void input_is_fed_and_ended(void **state)
{
	size_t size = 3 * 1024 * 1024;
	char *data = malloc(size);

	assert_non_null(data);
	assert_int_equal(random_bytes(data, size), 0);
	struct call *call = shell_open(*state, "cat", EXEC_STDIN);
	call_write(*state, call, data, size);
	call_end_input(*state, call);
	call_wait(*state, call);
	assert_int_equal(call->out.size, size);
	assert_memory_equal(call->out.data, data, size);
	free(data);
}

static void without_stdin_it_reads_nothing(void **state)
{
	assert_output(shell(*state, "cat; echo over"), "over\n");
}

static void input_for_one_that_does_not_read(void **state)
{
	static char data[1024 * 1024];
	struct call *call = shell_open(*state, "exec 0<&-; sleep 0.3; echo alive", EXEC_STDIN);

	call_write(*state, call, data, sizeof(data));
	call_end_input(*state, call);
	call_wait(*state, call);
	assert_output(call, "alive\n");
}

static void signals_reach_the_group(void **state)
{
	cleanup_buf struct buf message = { 0 };
	struct call *call =
		shell_open(*state, "trap 'echo caught; exit 5' USR1; echo ready; while :; do sleep 0.05; done", 0);

	call_wait_output(*state, call, 6);
	assert_int_equal(wire_put_int(&message, TAG_SIGNAL, SIGUSR1), 0);
	world_send(*state, call->number, WIRE_MSG, 0, message.data, message.size);
	call_wait(*state, call);
	assert_output(call, "ready\ncaught\n");
	assert_int_equal(end_int(call, TAG_EXIT_CODE), 5);

	with_int(*state, TAG_PID, end_int(call, TAG_PID));
	with_int(*state, TAG_SIGNAL, SIGTERM);
	assert_refused(call_run(*state, METHOD_PROCESS_SIGNAL), HUSK_NOT_FOUND, "is over");
	with_int(*state, TAG_PID, 1);
	with_int(*state, TAG_SIGNAL, SIGTERM);
	assert_refused(call_run(*state, METHOD_PROCESS_SIGNAL), HUSK_NOT_FOUND, "no process 1");
}

static void terminal_with_resize(void **state)
{
	cleanup_buf struct buf message = { 0 };

	with_int(*state, TAG_ROWS, 33);
	with_int(*state, TAG_COLUMNS, 77);
	struct call *call =
		shell_open(*state, "stty size; read line; stty size; echo got $line >&2; test -t 1", EXEC_STDIN);
	call_wait_output(*state, call, 7);
	assert_memory_equal(call->out.data, "33 77\r\n", 7);
	assert_int_equal(wire_put_int(&message, TAG_ROWS, 50), 0);
	assert_int_equal(wire_put_int(&message, TAG_COLUMNS, 120), 0);
	world_send(*state, call->number, WIRE_MSG, 0, message.data, message.size);
	call_write(*state, call, "hello\n", 6);
	call_wait(*state, call);
	assert_non_null(strstr(call->out.data, "50 120\r\n"));
	assert_non_null(strstr(call->out.data, "got hello"));
	assert_int_equal(call->err.size, 0);
	assert_int_equal(end_int(call, TAG_EXIT_CODE), 0);
}

static void end_of_input_on_a_terminal(void **state)
{
	with_int(*state, TAG_ROWS, 24);
	with_int(*state, TAG_COLUMNS, 80);
	struct call *call = shell_open(*state, "stty -echo; echo go; cat; echo end", EXEC_STDIN);

	call_wait_output(*state, call, 4);
	call_write(*state, call, "text\n", 5);
	call_end_input(*state, call);
	call_wait(*state, call);
	assert_non_null(strstr(call->out.data, "text"));
	assert_non_null(strstr(call->out.data, "end"));
}

/* ---- detach, attach, list, forget ---- */

static void detached_lives_on_and_is_replayed(void **state)
{
	struct call *start = shell_open(*state, "echo one; sleep 0.3; echo two; exit 4", EXEC_DETACH);

	call_wait(*state, start);
	int64_t pid = message_int(start, 0, TAG_PID);
	assert_int_equal(end_int(start, TAG_PID), pid);

	with_int(*state, TAG_PID, pid);
	struct call *follow = call_run(*state, METHOD_ATTACH);
	assert_output(follow, "one\ntwo\n");
	assert_int_equal(end_int(follow, TAG_EXIT_CODE), 4);

	with_int(*state, TAG_PID, pid); /* over, and replayed from the middle */
	with_int(*state, TAG_OFFSET_OUT, 4);
	struct call *again = call_run(*state, METHOD_ATTACH);
	assert_output(again, "two\n");
	assert_int_equal(message_int(again, 0, TAG_OFFSET_OUT), 4);
	assert_int_equal(message_int(again, 0, TAG_DROPPED_OUT), 0);

	with_int(*state, TAG_PID, pid);
	with_int(*state, TAG_OFFSET_OUT, 9);
	assert_refused(call_run(*state, METHOD_ATTACH), HUSK_INVALID, "past the 8 bytes");
}

static void cancel_detaches(void **state)
{
	struct call *call = shell_open(*state, "echo begin; read line; echo $line; exit 6", EXEC_STDIN);

	call_wait_output(*state, call, 6);
	call_cancel(*state, call);
	assert_call(call);
	assert_int_equal(end_int(call, TAG_RUNNING), 1);

	with_int(*state, TAG_PID, end_int(call, TAG_PID));
	with_int(*state, TAG_FLAGS, EXEC_STDIN);
	struct call *again = call_open(*state, METHOD_ATTACH);
	call_write(*state, again, "later\n", 6);
	call_wait(*state, again);
	assert_output(again, "begin\nlater\n");
	assert_int_equal(end_int(again, TAG_EXIT_CODE), 6);
}

static void oldest_output_is_dropped_and_counted(void **state)
{
	struct call *start = shell_open(*state, "head -c 3000000 /dev/zero; printf tail", EXEC_DETACH);

	call_wait(*state, start);
	int64_t pid = end_int(start, TAG_PID), written = 0;
	while (written < 3000004) { /* nobody reads, and still it comes to its end */
		struct call *list = call_run(*state, METHOD_PROCESS_LIST);
		written = message_int(list, 0, TAG_OFFSET_OUT);
		usleep(20000);
	}
	with_int(*state, TAG_PID, pid);
	with_int(*state, TAG_OFFSET_OUT, 10);
	struct call *call = call_run(*state, METHOD_ATTACH);
	int64_t from = message_int(call, 0, TAG_OFFSET_OUT);
	assert_int_equal(from, 3000004 - 1024 * 1024);
	assert_int_equal(message_int(call, 0, TAG_DROPPED_OUT), from - 10);
	assert_int_equal(call->out.size, 1024 * 1024);
	assert_memory_equal(call->out.data + call->out.size - 4, "tail", 4);
}

static void assert_kept(void **state, size_t bytes)
{
	with_int(*state, TAG_KEEP, (int64_t)bytes);
	struct call *start = shell_open(*state, "seq 1 700000", EXEC_DETACH);

	call_wait(*state, start);
	int64_t pid = end_int(start, TAG_PID), written = 0;
	while (written < 4788895) {
		struct call *list = call_run(*state, METHOD_PROCESS_LIST);
		written = message_int(list, 0, TAG_OFFSET_OUT);
		usleep(20000);
	}
	with_int(*state, TAG_PID, pid);
	struct call *call = call_run(*state, METHOD_ATTACH);
	assert_int_equal(call->out.size, bytes);
	assert_int_equal(message_int(call, 0, TAG_DROPPED_OUT), 4788895 - (int64_t)bytes);
	for (size_t i = 0; i < call->out.size - 14; i += 7) { /* lines of 7 bytes; the first may be a part of one */
		const char *line = memchr(call->out.data + i, '\n', 7);
		assert_non_null(line);
		assert_int_equal(atoi(line + 8), atoi(line + 1) + 1);
	}
}

/* The newest 2 MiB: one in memory, one in a file that was written round. */
static void more_output_is_kept_in_a_file(void **state)
{
	assert_kept(state, 2 * 1024 * 1024);
}

/* The file is much smaller than what leaves the memory at once. */
static void a_little_more_output_is_kept_in_a_file(void **state)
{
	assert_kept(state, 1024 * 1024 + 3);
}

static void listed_and_forgotten(void **state)
{
	with_string(*state, TAG_NAME, "sleeper");
	struct call *start = shell_open(*state, "sleep 100", EXEC_DETACH);

	call_wait(*state, start);
	shell(*state, "exit 9");
	struct call *list = call_run(*state, METHOD_PROCESS_LIST);
	assert_int_equal(list->message_count, 2);
	assert_string_equal(message_string(list, 0, TAG_NAME), "sleeper");
	assert_string_equal(message_string(list, 0, TAG_ARG), "/bin/sh");
	assert_string_equal(message_string(list, 0, TAG_USER), "root");
	assert_int_equal(message_int(list, 0, TAG_RUNNING), 1);
	assert_int_equal(message_int(list, 0, TAG_FLAGS), EXEC_DETACH);
	assert_int_equal(message_int(list, 1, TAG_RUNNING), 0);
	assert_int_equal(message_int(list, 1, TAG_EXIT_CODE), 9);
	assert_true(message_int(list, 0, TAG_STARTED_MS) > 1600000000000);

	with_int(*state, TAG_PID, end_int(start, TAG_PID));
	assert_call(call_run(*state, METHOD_PROCESS_FORGET));
	assert_int_equal(call_run(*state, METHOD_PROCESS_LIST)->message_count, 1);
	with_int(*state, TAG_PID, end_int(start, TAG_PID));
	assert_refused(call_run(*state, METHOD_ATTACH), HUSK_NOT_FOUND, "no process");
}

/* ---- flow control ---- */

static void slow_reader_stalls_only_itself(void **state)
{
	struct call *slow = shell_open(*state, "head -c 4000000 /dev/zero; printf end", 0);

	slow->no_credit = true;
	call_wait_output(*state, slow, WIRE_WINDOW);
	for (int i = 0; i < 5; i++)
		assert_output(shell(*state, "echo quick"), "quick\n");
	assert_int_equal(slow->out.size, WIRE_WINDOW); /* not a byte past its credit */
	assert_false(slow->ended);

	/* When it reads again it has lost nothing: the process was held back. */
	uint8_t given[4] = { 0, 0, (uint8_t)(WIRE_WINDOW >> 16), 0 };
	slow->no_credit = false;
	world_send(*state, slow->number, WIRE_CREDIT, STREAM_OUT, given, sizeof(given));
	call_wait(*state, slow);
	assert_int_equal(slow->out.size, 4000003);
	assert_memory_equal(slow->out.data + 4000000, "end", 3);
}

/* ---- the machine ---- */

static void frozen_says_nothing(void **state)
{
	struct call *call = shell_open(*state, "while :; do echo tick; sleep 0.02; done", 0);

	call_wait_output(*state, call, 10);
	assert_call(call_run(*state, METHOD_FREEZE));
	assert_false(world_take(*state, 300));
	struct call *early = shell_open(*state, "echo waited", 0);
	assert_false(world_take(*state, 200));
	size_t before = call->out.size;
	assert_call(call_run(*state, METHOD_THAW));
	call_wait(*state, early);
	assert_output(early, "waited\n");
	call_wait_output(*state, call, before + 20);
}

static void stopped_before_stays_stopped(void **state)
{
	struct call *call = shell_open(*state, "kill -STOP $$; echo continued", 0);

	call_wait_message(*state, call, 1);
	usleep(200000);
	assert_call(call_run(*state, METHOD_FREEZE));
	assert_call(call_run(*state, METHOD_THAW));
	assert_false(world_take(*state, 300));
	with_int(*state, TAG_PID, message_int(call, 0, TAG_PID));
	with_int(*state, TAG_SIGNAL, SIGCONT);
	assert_call(call_run(*state, METHOD_PROCESS_SIGNAL));
	call_wait(*state, call);
	assert_output(call, "continued\n");
}

static void limits_are_required(void **state)
{
	with_int(*state, TAG_MEMORY, 256 << 20);
	with_int(*state, TAG_CPU_MILLI, 1000);
	assert_call(call_run(*state, METHOD_LIMITS));
	with_int(*state, TAG_MEMORY, 256 << 20);
	assert_refused(call_run(*state, METHOD_LIMITS), HUSK_INVALID, "cpu");
}

static void identity_drops_channels_and_thaws(void **state)
{
	struct call *call = shell_open(*state, "sleep 0.2; echo still here", 0);

	call_wait_message(*state, call, 1);
	assert_call(call_run(*state, METHOD_FREEZE));
	assert_call(call_run(*state, METHOD_IDENTITY));
	with_int(*state, TAG_PID, message_int(call, 0, TAG_PID));
	assert_output(call_run(*state, METHOD_ATTACH), "still here\n");
	assert_false(call->ended); /* its channel is of another life */
}

static void short_memory_kills_the_largest(void **state)
{
	struct call *small = shell_open(*state, "sleep 60", 0);
	struct call *large = shell_open(*state,
					"exec python3 -c 'x = b\"x\" * 60000000; print(\"ready\", flush=True); "
					"import time; time.sleep(60)'",
					0);

	call_wait_output(*state, large, 6);
	struct call *oom = call_run(*state, METHOD_OOM);
	assert_call(oom);
	call_wait(*state, large);
	assert_int_equal(end_int(oom, TAG_PID), end_int(large, TAG_PID));
	assert_int_equal(end_int(large, TAG_OOM), 1);
	assert_int_equal(end_int(large, TAG_EXIT_CODE), 128 + SIGKILL);
	assert_false(small->ended);
}

static void stats_make_sense(void **state)
{
	struct call *sleeper = shell_open(*state, "sleep 60", 0);

	call_wait_message(*state, sleeper, 1);
	struct call *call = call_run(*state, METHOD_STATS);
	assert_call(call);
	assert_true(end_int(call, TAG_COUNT) >= 1);
	assert_true(end_int(call, TAG_CPU_US) >= 0);
	assert_in_range(end_int(call, TAG_MEMORY), 1, end_int(call, TAG_MEMORY_TOTAL));
	assert_in_range(end_int(call, TAG_DISK), 1, end_int(call, TAG_DISK_TOTAL));
}

static int listener(int family, uint16_t *port)
{
	struct sockaddr_in6 v6 = { .sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT };
	struct sockaddr_in v4 = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct sockaddr *address = family == AF_INET ? (struct sockaddr *)&v4 : (struct sockaddr *)&v6;
	socklen_t size = family == AF_INET ? sizeof(v4) : sizeof(v6);
	int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0 || bind(fd, address, size) < 0 || listen(fd, 4) < 0 || getsockname(fd, address, &size) < 0)
		return -1;
	*port = ntohs(family == AF_INET ? v4.sin_port : v6.sin6_port);
	return fd;
}

/* The arguments of the call are given; the listener waits for it. */
static void dial_listener(void **state, int listening)
{
	static char big[1500000];
	struct call *call = call_open(*state, METHOD_DIAL);
	cleanup_close int peer = accept(listening, NULL, NULL);
	assert_true(peer >= 0);
	call_wait_message(*state, call, 1);
	call_write(*state, call, "ping", 4);
	char text[8];
	assert_int_equal(read_full(peer, text, 4), 4);
	assert_memory_equal(text, "ping", 4);

	pid_t writer = fork();
	assert_true(writer >= 0);
	if (writer == 0)
		_exit(write_full(peer, big, sizeof(big)) < 0 || shutdown(peer, SHUT_WR) < 0);
	while (!call->eof)
		assert_true(world_take(*state, PATIENCE_MS));
	assert_int_equal(call->out.size, sizeof(big));
	int status;
	assert_int_equal(waitpid(writer, &status, 0), writer);
	assert_int_equal(status, 0);
	assert_false(call->ended); /* our half is still open */
	call_end_input(*state, call);
	call_wait(*state, call);
	assert_call(call);
	assert_int_equal(read(peer, text, 1), 0);
}

static void dial_family(void **state, int family)
{
	uint16_t port = 0;
	cleanup_close int listening = listener(family, &port);

	if (listening < 0)
		skip();
	with_int(*state, TAG_PORT, port);
	dial_listener(state, listening);
}

static void dial_ipv4(void **state)
{
	dial_family(state, AF_INET);
}

static void dial_ipv6(void **state)
{
	dial_family(state, AF_INET6);
}

static void dial_unix(void **state)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	cleanup_free char *path = str_format("/tmp/husk-dial-%d.sock", (int)getpid());
	cleanup_close int listening = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_non_null(path);
	snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
	unlink(path);
	with_string(*state, TAG_PATH, path);
	assert_refused(call_run(*state, METHOD_DIAL), HUSK_NOT_FOUND, "nothing listens on socket /tmp/husk-dial-");
	assert_int_equal(bind(listening, (struct sockaddr *)&address, sizeof(address)), 0);
	with_string(*state, TAG_PATH, path);
	assert_refused(call_run(*state, METHOD_DIAL), HUSK_NOT_FOUND, "nothing listens on socket /tmp/husk-dial-");
	assert_int_equal(listen(listening, 4), 0);
	with_string(*state, TAG_PATH, path);
	dial_listener(state, listening);
	unlink(path);
}

static void dial_one_of_two(void **state)
{
	char path[200];

	assert_refused(call_run(*state, METHOD_DIAL), HUSK_INVALID, "give a port, or the path");
	with_int(*state, TAG_PORT, 80);
	with_string(*state, TAG_PATH, "/run/x.sock");
	assert_refused(call_run(*state, METHOD_DIAL), HUSK_INVALID, "give a port, or the path");
	memset(path, '/', sizeof(path));
	path[sizeof(path) - 1] = '\0';
	with_string(*state, TAG_PATH, path);
	assert_refused(call_run(*state, METHOD_DIAL), HUSK_INVALID, "path");
}

static void dial_nobody(void **state)
{
	uint16_t port = 0;
	int fd = listener(AF_INET, &port);

	close(fd);
	with_int(*state, TAG_PORT, port);
	assert_refused(call_run(*state, METHOD_DIAL), HUSK_NOT_FOUND, "nothing listens on port");
	with_int(*state, TAG_PORT, 70000);
	assert_refused(call_run(*state, METHOD_DIAL), HUSK_INVALID, "65535");
}

/* ---- the link ---- */

static void unknown_method(void **state)
{
	assert_refused(call_run(*state, (enum wire_method)9999), HUSK_UNAVAILABLE, "an older husk made");
}

/* Sends bytes that make no sense to an agent of their own and wants it to end by itself, with an exit and not a crash.
 * */
static void expect_death(const void *bytes, size_t size)
{
	struct world *world;
	void *state;
	int status;

	assert_int_equal(world_setup(&state), 0);
	world = state;
	assert_int_equal(write_full(world->to, bytes, size), 0);
	assert_int_equal(waitpid(world->agent, &status, 0), world->agent);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 1);
	close(world->to);
	close(world->from);
	assert_int_equal(dir_remove(world->directory, NULL), 0);
	free(world);
}

static void garbage_ends_the_agent(void **state)
{
	static const uint8_t too_long[] = { 0xff, 0xff, 0xff, 0x7f, 1, 0, 0, 0, WIRE_OPEN, 0, 0, 0 };
	static const uint8_t bad_type[] = { 0, 0, 0, 0, 1, 0, 0, 0, 99, 0, 0, 0 };
	static const uint8_t bad_fields[] = { 3, 0, 0, 0, 1, 0, 0, 0, WIRE_OPEN, 0, 0, 0, 1, 2, 3 };

	(void)state;
	expect_death(too_long, sizeof(too_long));
	expect_death(bad_type, sizeof(bad_type));
	expect_death(bad_fields, sizeof(bad_fields));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		agent_test(output_and_exit_code),
		agent_test(argv_is_passed_as_it_is),
		agent_test(environment_and_directory),
		agent_test(identity_gives_environment),
		agent_test(exit_codes_of_failures),
		agent_test(other_user),
		agent_test(children_hold_nothing_of_the_agent),
		agent_test(script_without_interpreter),
		agent_test(timeout_kills_the_group),
		agent_test(background_child_does_not_hold_the_end),
		agent_test(input_is_fed_and_ended),
		agent_test(without_stdin_it_reads_nothing),
		agent_test(input_for_one_that_does_not_read),
		agent_test(signals_reach_the_group),
		agent_test(terminal_with_resize),
		agent_test(end_of_input_on_a_terminal),
		agent_test(detached_lives_on_and_is_replayed),
		agent_test(cancel_detaches),
		agent_test(oldest_output_is_dropped_and_counted),
		agent_test(more_output_is_kept_in_a_file),
		agent_test(a_little_more_output_is_kept_in_a_file),
		agent_test(listed_and_forgotten),
		agent_test(slow_reader_stalls_only_itself),
		agent_test(frozen_says_nothing),
		agent_test(stopped_before_stays_stopped),
		agent_test(limits_are_required),
		agent_test(identity_drops_channels_and_thaws),
		agent_test(short_memory_kills_the_largest),
		agent_test(stats_make_sense),
		agent_test(dial_ipv4),
		agent_test(dial_ipv6),
		agent_test(dial_nobody),
		agent_test(dial_unix),
		agent_test(dial_one_of_two),
		agent_test(unknown_method),
		cmocka_unit_test(garbage_ends_the_agent),
	};

	cmocka_set_message_output(CM_OUTPUT_TAP);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
