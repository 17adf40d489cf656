/*
 * Unit tests of the client's end of a call (src/client/call.c) and of the process handle on top of it, against a peer
 * thread in this process that speaks the wire: credit in both directions, readers that are slow or absent, an END in the
 * middle, and bytes that no honest agent would send.
 */
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/socket.h>

#include <cmocka.h>

#include "client/call.h"

#define MIB (1024u * 1024u)

/* ---- the peer: a script run in a thread on the other end of the connection ---- */

typedef void (*script)(int fd);

static script next_script; /* what the next husk_connect finds at the other end */
static pthread_t peer_thread;

struct peer_start {
	script run;
	int fd;
};

static void *peer_main(void *argument)
{
	struct peer_start *start = argument;

	start->run(start->fd);
	close(start->fd);
	free(start);
	return NULL;
}

int husk_connect(struct husk *husk, const char *sandbox, struct husk_error *err)
{
	int pair[2];
	struct peer_start *start = malloc(sizeof(*start));

	(void)husk, (void)sandbox, (void)err;
	assert_non_null(start);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
	*start = (struct peer_start){ next_script, pair[1] };
	assert_int_equal(pthread_create(&peer_thread, NULL, peer_main, start), 0);
	return pair[0];
}

int husk_call(struct husk *husk, const char *sandbox, uint16_t method, const struct buf *arguments, struct buf *results,
	      struct husk_error *err)
{
	cleanup_call struct call *call = NULL;

	if (call_start(husk, sandbox, (enum wire_method)method, arguments, &call, err) < 0)
		return -1;
	return call_finish(call, -1, results, err);
}

static struct call *begin(script run)
{
	struct call *call = NULL;

	next_script = run;
	assert_int_equal(call_start(NULL, "s", METHOD_EXEC, NULL, &call, NULL), 0);
	return call;
}

static void finish(struct call *call)
{
	call_free(call);
	pthread_join(peer_thread, NULL);
}

/* cmocka's assertions work in the main thread only: a peer that sees something wrong says so and ends the test. */
#define peer_check(condition)                                                                                          \
	do {                                                                                                           \
		if (!(condition)) {                                                                                    \
			fprintf(stderr, "peer: %s:%d: %s\n", __FILE__, __LINE__, #condition);                          \
			abort();                                                                                       \
		}                                                                                                      \
	} while (0)

static _Thread_local char frame[WIRE_PAYLOAD_MAX];

static enum wire_type receive(int fd, struct wire_header *header)
{
	int got = wire_receive(fd, header, frame, NULL);

	peer_check(got >= 0);
	return got == 0 ? 0 : (enum wire_type)header->type;
}

static void expect_open(int fd)
{
	struct wire_header header;

	peer_check(receive(fd, &header) == WIRE_OPEN && header.channel == 1);
}

static void send_data(int fd, uint8_t stream, const void *data, size_t size)
{
	peer_check(wire_send(fd, 1, WIRE_DATA, stream, data, size, NULL) == 0);
}

static void send_credit(int fd, uint32_t credit)
{
	uint8_t bytes[4] = { (uint8_t)credit, (uint8_t)(credit >> 8), (uint8_t)(credit >> 16),
			     (uint8_t)(credit >> 24) };

	wire_send(fd, 1, WIRE_CREDIT, STREAM_IN, bytes, 4, NULL);
}

static uint32_t credit_of_frame(void)
{
	const uint8_t *b = (const uint8_t *)frame;

	return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

static void send_exit(int fd, int64_t code)
{
	cleanup_buf struct buf results = { 0 };

	peer_check(wire_put_int(&results, TAG_EXIT_CODE, code) == 0);
	wire_send_end(fd, 1, NULL, &results, NULL);
}

/* Waits for the client to hang up, taking what it still sends. */
static void until_hangup(int fd)
{
	struct wire_header header;

	while (wire_receive(fd, &header, frame, NULL) > 0)
		;
}

/* ---- opening and ending ---- */

static void script_results(int fd)
{
	cleanup_buf struct buf results = { 0 };
	struct wire_header header;

	peer_check(receive(fd, &header) == WIRE_OPEN);
	peer_check(wire_get_int(frame, header.size, TAG_METHOD, 0) == METHOD_EXEC);
	cleanup_free char *path = wire_get_string(frame, header.size, TAG_PATH);
	peer_check(path && strcmp(path, "/x") == 0);
	peer_check(wire_put_int(&results, TAG_SIZE, 42) == 0);
	wire_send_end(fd, 1, NULL, &results, NULL);
	until_hangup(fd);
}

static void test_arguments_and_results(void **state)
{
	cleanup_buf struct buf arguments = { 0 }, results = { 0 };
	struct call *call = NULL;
	struct call_event event;
	struct husk_error err = { 0 };

	(void)state;
	next_script = script_results;
	assert_int_equal(wire_put_string(&arguments, TAG_PATH, "/x"), 0);
	assert_int_equal(call_start(NULL, "s", METHOD_EXEC, &arguments, &call, &err), 0);
	assert_int_equal(call_finish(call, -1, &results, &err), 0);
	assert_int_equal(wire_get_int(results.data, results.size, TAG_SIZE, 0), 42);
	/* After END there is nothing, and nothing can be sent. */
	assert_int_equal(call_next(call, &event, &err), -1);
	assert_int_equal(err.code, HUSK_GONE);
	assert_int_equal(call_write(call, "x", 1, &err), -1);
	finish(call);
}

static void script_refuse(int fd)
{
	struct husk_error why = { .code = HUSK_NOT_FOUND, .message = "no such thing" };

	expect_open(fd);
	wire_send_end(fd, 1, &why, NULL, NULL);
	until_hangup(fd);
}

static void test_error_of_end(void **state)
{
	struct call *call = begin(script_refuse);
	struct husk_error err = { 0 };

	(void)state;
	assert_int_equal(call_finish(call, -1, NULL, &err), -1);
	assert_int_equal(err.code, HUSK_NOT_FOUND);
	assert_string_equal(err.message, "no such thing");
	finish(call);
}

static void test_first_message_or_error(void **state)
{
	struct call *call = begin(script_refuse);
	struct call_event event;
	struct husk_error err = { 0 };

	(void)state;
	assert_int_equal(call_first_message(call, &event, &err), -1);
	assert_int_equal(err.code, HUSK_NOT_FOUND);
	finish(call);
}

static void script_hang_up(int fd)
{
	expect_open(fd);
	peer_check(write_full(fd, "\x40\x00\x00\x00\x01\x00", 6) == 0);
}

static void test_peer_hangs_up_inside_a_frame(void **state)
{
	struct call *call = begin(script_hang_up);
	struct husk_error err = { 0 };

	(void)state;
	assert_int_equal(call_finish(call, -1, NULL, &err), -1);
	assert_int_equal(err.code, HUSK_GONE);
	assert_int_equal(call_write(call, "x", 1, &err), -1);
	finish(call);
}

/* ---- sending against credit ---- */

static bool is_silent(int fd)
{
	char byte;

	usleep(50 * 1000);
	return recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN;
}

static void script_strict_receiver(int fd)
{
	struct wire_header header;
	size_t total = 0, credit = WIRE_WINDOW;
	enum wire_type type;

	expect_open(fd);
	while ((type = receive(fd, &header)) == WIRE_DATA) {
		peer_check(header.stream == STREAM_IN && header.size <= credit);
		for (size_t i = 0; i < header.size; i++)
			peer_check(frame[i] == (char)((total + i) % 251));
		total += header.size;
		credit -= header.size;
		if (credit == 0) {
			peer_check(is_silent(fd));
			send_credit(fd, WIRE_WINDOW);
			credit = WIRE_WINDOW;
		}
	}
	peer_check(type == WIRE_EOF && total == 3 * MIB + 17);
	wire_send_end(fd, 1, NULL, NULL, NULL);
	until_hangup(fd);
}

static char *pattern(size_t size)
{
	char *bytes = malloc(size);

	assert_non_null(bytes);
	for (size_t i = 0; i < size; i++)
		bytes[i] = (char)(i % 251);
	return bytes;
}

static void test_write_keeps_to_the_credit(void **state)
{
	struct call *call = begin(script_strict_receiver);
	size_t size = 3 * MIB + 17;
	cleanup_free char *bytes = pattern(size);
	struct husk_error err = { 0 };

	(void)state;
	assert_int_equal(call_write(call, bytes, size, &err), 0);
	assert_int_equal(call_write_eof(call, &err), 0);
	assert_int_equal(call_finish(call, -1, NULL, &err), 0);
	finish(call);
}

static void test_write_some_never_waits(void **state)
{
	struct call *call = begin(script_strict_receiver);
	size_t size = 3 * MIB + 17, sent = WIRE_WINDOW;
	cleanup_free char *bytes = pattern(size);
	struct husk_error err = { 0 };

	(void)state;
	assert_int_equal(call_make_pollable(call, &err), 0);
	assert_int_equal(call_unread(call), 0);
	assert_int_equal(call_write_some(call, bytes, size, &err), WIRE_WINDOW);
	assert_int_equal(call_write_some(call, bytes + sent, size - sent, &err), 0);
	assert_int_equal(call_unread(call), WIRE_WINDOW);
	while (sent < size) {
		struct pollfd p = { .fd = call_poll_fd(call), .events = POLLIN };
		assert_int_equal(poll(&p, 1, 30000), 1);
		call_wait(call, 0);
		ssize_t count = call_write_some(call, bytes + sent, size - sent, &err);
		assert_true(count >= 0);
		sent += (size_t)count;
	}
	assert_int_equal(call_write_eof(call, &err), 0);
	assert_int_equal(call_finish(call, -1, NULL, &err), 0);
	assert_int_equal(call_write_some(call, "x", 1, &err), -1);
	assert_int_equal(err.code, HUSK_GONE);
	finish(call);
}

static void script_full_disk(int fd)
{
	struct husk_error why = { .code = HUSK_LIMIT, .message = "disk full" };
	struct wire_header header;

	expect_open(fd);
	peer_check(receive(fd, &header) == WIRE_DATA);
	wire_send_end(fd, 1, &why, NULL, NULL);
	/* It closes without reading the rest: the write that fails must not hide the END that is waiting. */
}

static void test_end_in_the_middle_of_a_write(void **state)
{
	struct call *call = begin(script_full_disk);
	cleanup_free char *bytes = pattern(4 * MIB);
	struct husk_error err = { 0 };

	(void)state;
	assert_int_equal(call_write(call, bytes, 4 * MIB, &err), -1);
	assert_int_equal(err.code, HUSK_GONE);
	assert_int_equal(call_finish(call, -1, NULL, &err), -1);
	assert_int_equal(err.code, HUSK_LIMIT);
	assert_string_equal(err.message, "disk full");
	finish(call);
}

/* ---- receiving ---- */

#define SLOW_TOTAL (4 * MIB)

static void script_fast_sender(int fd)
{
	struct wire_header header;
	size_t credit = WIRE_WINDOW;
	cleanup_free char *bytes = malloc(SLOW_TOTAL + 251);

	peer_check(bytes != NULL);
	for (size_t i = 0; i < SLOW_TOTAL + 251; i++)
		bytes[i] = (char)(i % 251);
	expect_open(fd);
	for (size_t sent = 0; sent < SLOW_TOTAL;) {
		size_t size = MIN(MIN(credit, (size_t)50000), SLOW_TOTAL - sent);
		if (size == 0) {
			peer_check(receive(fd, &header) == WIRE_CREDIT && header.stream == STREAM_OUT);
			credit += credit_of_frame();
			peer_check(credit <= WIRE_WINDOW);
			continue;
		}
		send_data(fd, STREAM_OUT, bytes + sent % 251, size);
		sent += size;
		credit -= size;
	}
	wire_send(fd, 1, WIRE_EOF, STREAM_OUT, NULL, 0, NULL);
	wire_send_end(fd, 1, NULL, NULL, NULL);
	until_hangup(fd);
}

static void test_slow_reader_gets_every_byte(void **state)
{
	struct call *call = begin(script_fast_sender);
	struct call_event event;
	size_t total = 0;
	bool eof = false;

	(void)state;
	for (;;) {
		assert_int_equal(call_next(call, &event, NULL), 0);
		if (event.type == WIRE_END)
			break;
		eof = eof || event.type == WIRE_EOF;
		for (size_t i = 0; i < event.size; i++)
			if (event.data[i] != (char)((total + i) % 251))
				fail_msg("wrong byte at %zu", total + i);
		total += event.size;
		if (total < WIRE_WINDOW)
			usleep(2000);
	}
	assert_true(eof);
	assert_int_equal(total, SLOW_TOTAL);
	finish(call);
}

#define CRUMBS 100000

/* Output in single bytes, both streams in turn, then more input than one window: the client has no reader. */
static void script_crumbs(int fd)
{
	struct wire_header header;
	enum wire_type type;

	expect_open(fd);
	for (size_t i = 0; i < CRUMBS; i++) {
		char byte = (char)(i % 251);
		send_data(fd, STREAM_OUT, &byte, 1);
		send_data(fd, STREAM_ERR, &byte, 1);
	}
	while ((type = receive(fd, &header)) == WIRE_DATA)
		send_credit(fd, header.size);
	peer_check(type == WIRE_EOF);
	wire_send_end(fd, 1, NULL, NULL, NULL);
	until_hangup(fd);
}

static void test_write_without_a_reader_queues_output(void **state)
{
	struct call *call = begin(script_crumbs);
	cleanup_free char *bytes = pattern(2 * MIB);
	size_t total[STREAM_COUNT] = { 0 };
	struct call_event event = { 0 };

	(void)state;
	assert_int_equal(call_write(call, bytes, 2 * MIB, NULL), 0);
	assert_int_equal(call_write_eof(call, NULL), 0);
	for (;;) {
		assert_int_equal(call_next(call, &event, NULL), 0);
		if (event.type == WIRE_END)
			break;
		for (size_t i = 0; i < event.size; i++)
			if (event.data[i] != (char)((total[event.stream] + i) % 251))
				fail_msg("wrong byte on stream %d", event.stream);
		total[event.stream] += event.size;
	}
	assert_int_equal(total[STREAM_OUT], CRUMBS);
	assert_int_equal(total[STREAM_ERR], CRUMBS);
	finish(call);
}

static void script_credit_only(int fd)
{
	struct wire_header header;

	expect_open(fd);
	peer_check(receive(fd, &header) == WIRE_DATA);
	send_credit(fd, header.size);
	until_hangup(fd);
}

static void test_credit_is_not_an_event(void **state)
{
	struct call *call = begin(script_credit_only);
	int64_t before = time_monotonic_ms();

	(void)state;
	assert_int_equal(call_write(call, "hello", 5, NULL), 0);
	assert_int_equal(call_wait(call, time_monotonic_ms() + 100), 0);
	assert_in_range(time_monotonic_ms() - before, 95, 5000);
	assert_int_equal(call_wait(call, 0), 0);
	struct husk_error err = { 0 };
	assert_int_equal(call_finish(call, 0, NULL, &err), -1);
	assert_int_equal(err.code, HUSK_TIMEOUT);
	finish(call);
}

/* ---- two threads on one call ---- */

#define ECHO_TOTAL (8 * MIB)

/* Sends back what it gets, both ways within credit. It stops reading while it cannot send, so both directions fill up. */
static void script_echo(int fd)
{
	struct wire_header header;
	size_t credit = WIRE_WINDOW;
	enum wire_type type;
	cleanup_buf struct buf waiting = { 0 };
	bool eof = false;

	expect_open(fd);
	while (!eof || waiting.size > 0) {
		size_t size = MIN(MIN(waiting.size, credit), (size_t)65536);
		if (size > 0) {
			send_data(fd, STREAM_OUT, waiting.data, size);
			buf_consume(&waiting, size);
			credit -= size;
			send_credit(fd, (uint32_t)size);
			continue;
		}
		type = receive(fd, &header);
		if (type == WIRE_DATA)
			peer_check(buf_append(&waiting, frame, header.size) == 0);
		else if (type == WIRE_CREDIT)
			credit += credit_of_frame();
		else
			eof = type == WIRE_EOF;
		peer_check(waiting.size <= WIRE_WINDOW && credit <= WIRE_WINDOW);
	}
	send_exit(fd, 7);
	until_hangup(fd);
}

static void script_echo_process(int fd)
{
	cleanup_buf struct buf first = { 0 };

	peer_check(wire_put_int(&first, TAG_PID, 99) == 0);
	peer_check(wire_send(fd, 1, WIRE_MSG, 0, first.data, first.size, NULL) == 0);
	script_echo(fd);
}

static void *writer_main(void *argument)
{
	cleanup_free char *bytes = malloc(ECHO_TOTAL);

	peer_check(bytes != NULL);
	for (size_t i = 0; i < ECHO_TOTAL; i++)
		bytes[i] = (char)(i % 251);
	for (size_t at = 0; at < ECHO_TOTAL; at += 100000)
		peer_check(husk_process_write(argument, bytes + at, MIN((size_t)100000, ECHO_TOTAL - at), NULL) == 0);
	peer_check(husk_process_close_stdin(argument, NULL) == 0);
	return NULL;
}

static void test_one_thread_reads_while_another_writes(void **state)
{
	struct husk_exec_options options = { .shell = "cat", .keep_stdin = true };
	struct husk_process *process = NULL;
	struct husk_process_event event = { 0 };
	pthread_t writer;
	int64_t pid = 0;
	size_t total = 0;

	(void)state;
	next_script = script_echo_process;
	assert_int_equal(husk_exec(NULL, "s", &options, &process, &pid, NULL), 0);
	assert_int_equal(pid, 99);
	assert_int_equal(pthread_create(&writer, NULL, writer_main, process), 0);
	while (event.kind != HUSK_EXIT) {
		assert_int_equal(husk_process_next(process, &event, NULL), 0);
		for (size_t i = 0; i < event.size; i++)
			if (event.data[i] != (char)((total + i) % 251))
				fail_msg("wrong byte at %zu", total + i);
		total += event.size;
		if (total % 7 == 0)
			usleep(500);
	}
	assert_int_equal(total, ECHO_TOTAL);
	assert_int_equal(event.exit_code, 7);
	pthread_join(writer, NULL);
	struct husk_error err = { 0 };
	assert_int_equal(husk_process_next(process, &event, &err), -1);
	assert_int_equal(err.code, HUSK_GONE);
	husk_process_free(process);
	pthread_join(peer_thread, NULL);
}

/* A reader that sleeps in poll must be woken for what the writing thread has taken in. */
static void test_poll_sees_what_a_writer_took_in(void **state)
{
	struct husk_exec_options options = { .shell = "cat", .keep_stdin = true };
	struct husk_process *process = NULL;
	struct husk_process_event event = { 0 };
	pthread_t writer;
	size_t total = 0;

	(void)state;
	next_script = script_echo_process;
	assert_int_equal(husk_exec(NULL, "s", &options, &process, NULL, NULL), 0);
	assert_int_equal(pthread_create(&writer, NULL, writer_main, process), 0);
	while (event.kind != HUSK_EXIT) {
		struct pollfd p = { .fd = husk_process_fd(process), .events = POLLIN };
		assert_int_equal(poll(&p, 1, 10000), 1);
		if (!husk_process_pending(process))
			continue;
		assert_int_equal(husk_process_next(process, &event, NULL), 0);
		total += event.size;
	}
	assert_int_equal(total, ECHO_TOTAL);
	pthread_join(writer, NULL);
	husk_process_free(process);
	pthread_join(peer_thread, NULL);
}

/* ---- processes ---- */

static void script_ends_at_once(int fd)
{
	expect_open(fd);
	send_exit(fd, 127);
	until_hangup(fd);
}

static void test_exit_before_anything(void **state)
{
	const char *argv[] = { "nosuch", NULL };
	struct husk_result result;
	struct husk_error err = { 0 };

	(void)state;
	next_script = script_ends_at_once;
	assert_int_equal(husk_run(NULL, "s", &(struct husk_exec_options){ .argv = argv }, &result, &err), 0);
	assert_int_equal(result.exit_code, 127);
	assert_string_equal(result.output, "");
	husk_result_free(&result);
	pthread_join(peer_thread, NULL);
	assert_int_equal(husk_exec(NULL, "s", &(struct husk_exec_options){ .argv = argv }, NULL, NULL, &err), -1);
	assert_int_equal(err.code, HUSK_NOT_FOUND);
	pthread_join(peer_thread, NULL);
}

static void script_impossible_exit(int fd)
{
	expect_open(fd);
	send_exit(fd, 70000);
	until_hangup(fd);
}

static void test_impossible_exit_is_refused(void **state)
{
	struct husk_result result;
	struct husk_error err = { 0 };

	(void)state;
	next_script = script_impossible_exit;
	assert_int_equal(husk_run(NULL, "s", &(struct husk_exec_options){ .shell = "true" }, &result, &err), -1);
	assert_int_equal(err.code, HUSK_PROTOCOL);
	pthread_join(peer_thread, NULL);
}

static void test_arguments_are_checked(void **state)
{
	const char *argv[] = { "", NULL };
	struct husk_process *process = NULL;
	struct husk_error err = { 0 };
	const struct husk_exec_options bad[] = {
		{ 0 },
		{ .argv = argv },
		{ .shell = "x", .cwd = "relative" },
		{ .shell = "x", .user = "" },
		{ .shell = "x", .timeout_ms = -1 },
		{ .shell = "x", .rows = 24 },
		{ .shell = "x", .environment = &(struct husk_pair){ "A=B", "c" }, .environment_count = 1 },
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		assert_int_equal(husk_exec(NULL, "s", &bad[i], &process, NULL, &err), -1);
		assert_int_equal(err.code, HUSK_INVALID);
	}
	assert_null(process);
	assert_int_equal(husk_process_kill(NULL, "s", 1, 0, &err), -1);
	assert_int_equal(err.code, HUSK_INVALID);
}

/* ---- bytes that no honest agent sends ---- */

struct lie {
	const char *what;
	struct wire_header header;
	const char *payload;
};

static const struct lie lies[] = {
	{ "another channel", { 0, 2, WIRE_END, 0 }, "" },
	{ "data on our stream", { 1, 1, WIRE_DATA, STREAM_IN }, "x" },
	{ "credit for its own stream", { 4, 1, WIRE_CREDIT, STREAM_OUT }, "\1\0\0\0" },
	{ "credit for what was never sent", { 4, 1, WIRE_CREDIT, STREAM_IN }, "\1\0\0\0" },
	{ "end of stream with content", { 1, 1, WIRE_EOF, STREAM_OUT }, "x" },
	{ "malformed message", { 5, 1, WIRE_MSG, 0 }, "abcde" },
	{ "field longer than its message", { 8, 1, WIRE_END, 0 }, "\1\0\0\0\xff\xff\xff\xff" },
	{ "end without a status", { 0, 1, WIRE_END, 0 }, "" },
	{ "open", { 0, 1, WIRE_OPEN, 0 }, "" },
	{ "cancel", { 0, 1, WIRE_CANCEL, 0 }, "" },
	{ "hello on a channel", { 0, 1, WIRE_HELLO, 0 }, "" },
	{ "unknown type", { 0, 1, 99, 0 }, "" },
	{ "unknown stream", { 0, 1, WIRE_DATA, 9 }, "" },
	{ "size past the limit", { WIRE_PAYLOAD_MAX + 1, 1, WIRE_DATA, STREAM_OUT }, "" },
};
static const struct lie *current_lie;

static void script_lie(int fd)
{
	uint8_t bytes[WIRE_HEADER_SIZE];

	expect_open(fd);
	wire_header_encode(&current_lie->header, bytes);
	peer_check(write_full(fd, bytes, sizeof(bytes)) == 0);
	if (current_lie->header.size <= WIRE_PAYLOAD_MAX)
		peer_check(write_full(fd, current_lie->payload, current_lie->header.size) == 0);
	until_hangup(fd);
}

static void test_lies_end_the_call(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(lies); i++) {
		struct husk_error err = { 0 };
		current_lie = &lies[i];
		struct call *call = begin(script_lie);
		assert_int_equal(call_finish(call, -1, NULL, &err), -1);
		if (err.code != HUSK_PROTOCOL)
			fail_msg("%s: code %d, %s", lies[i].what, err.code, err.message);
		finish(call);
	}
}

static void script_past_credit(int fd)
{
	cleanup_free char *bytes = calloc(1, 65536);

	peer_check(bytes != NULL);
	expect_open(fd);
	for (size_t sent = 0; sent <= WIRE_WINDOW; sent += 65536)
		wire_send(fd, 1, WIRE_DATA, STREAM_OUT, bytes, 65536, NULL);
	until_hangup(fd);
}

static void script_data_after_eof(int fd)
{
	expect_open(fd);
	wire_send(fd, 1, WIRE_EOF, STREAM_ERR, NULL, 0, NULL);
	wire_send(fd, 1, WIRE_DATA, STREAM_ERR, "x", 1, NULL);
	until_hangup(fd);
}

static void script_message_flood(int fd)
{
	expect_open(fd);
	for (size_t i = 0; i < 5000; i++)
		if (wire_send(fd, 1, WIRE_MSG, 0, NULL, 0, NULL) < 0)
			return;
	until_hangup(fd);
}

/* What was sent within the rules is still delivered; then the call fails. The writes make the client take frames in
 * without anybody reading them. */
static void test_broken_rules_end_the_call(void **state)
{
	static const script scripts[] = { script_past_credit, script_data_after_eof, script_message_flood };
	cleanup_free char *bytes = pattern(2 * WIRE_WINDOW);

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(scripts); i++) {
		struct husk_error err = { 0 };
		struct call *call = begin(scripts[i]);
		assert_int_equal(call_write(call, bytes, 2 * WIRE_WINDOW, &err), -1);
		assert_int_equal(err.code, HUSK_PROTOCOL);
		err = (struct husk_error){ 0 };
		assert_int_equal(call_finish(call, -1, NULL, &err), -1);
		assert_int_equal(err.code, HUSK_PROTOCOL);
		finish(call);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_arguments_and_results),
		cmocka_unit_test(test_error_of_end),
		cmocka_unit_test(test_first_message_or_error),
		cmocka_unit_test(test_peer_hangs_up_inside_a_frame),
		cmocka_unit_test(test_write_keeps_to_the_credit),
		cmocka_unit_test(test_write_some_never_waits),
		cmocka_unit_test(test_end_in_the_middle_of_a_write),
		cmocka_unit_test(test_slow_reader_gets_every_byte),
		cmocka_unit_test(test_write_without_a_reader_queues_output),
		cmocka_unit_test(test_credit_is_not_an_event),
		cmocka_unit_test(test_one_thread_reads_while_another_writes),
		cmocka_unit_test(test_poll_sees_what_a_writer_took_in),
		cmocka_unit_test(test_exit_before_anything),
		cmocka_unit_test(test_impossible_exit_is_refused),
		cmocka_unit_test(test_arguments_are_checked),
		cmocka_unit_test(test_lies_end_the_call),
		cmocka_unit_test(test_broken_rules_end_the_call),
	};

	signal(SIGPIPE, SIG_IGN); /* for the peers; libhusk itself never raises it */
	alarm(60);
	return cmocka_run_group_tests_name("call", tests, NULL, NULL);
}
