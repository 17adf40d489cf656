/*
 * A husk-agent of one's own for the tests of it: the real binary ($HUSK_AGENT, or the one of the build) run on the host
 * over two pipes, and calls on it by hand-made frames. Several calls may be open at once; each has its own record of
 * what arrived. Not PID 1, so the agent leaves the machine alone.
 */
#ifndef HUSK_TEST_AGENT_WORLD_H
#define HUSK_TEST_AGENT_WORLD_H

#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "wire/wire.h"

#define CALLS_MAX 64
#define PATIENCE_MS 20000

struct message {
	struct buf fields;
};

struct call {
	uint32_t number;
	bool ended, eof;
	bool no_credit; /* a reader that never reads */
	int64_t credit; /* what we may still send */
	struct buf out, err, end;
	struct husk_error error; /* of END */
	struct message messages[512];
	size_t message_count;
};

struct world {
	pid_t agent;
	int to, from;
	char directory[64];
	struct call *calls[CALLS_MAX];
	uint32_t last;
	struct buf arguments; /* of the call being put together */
};

/* ---- frames ---- */

static inline void world_send(struct world *world, uint32_t channel, enum wire_type type, uint8_t stream,
			      const void *data, size_t size)
{
	struct husk_error err;

	if (wire_send(world->to, channel, type, stream, data, size, &err) < 0)
		fail_msg("%s", err.message);
}

static inline struct call *world_call(struct world *world, uint32_t number)
{
	assert_true(number < CALLS_MAX && world->calls[number]);
	return world->calls[number];
}

static inline void call_data(struct world *world, struct call *call, uint8_t stream, const char *data, size_t size)
{
	uint8_t back[4] = { (uint8_t)size, (uint8_t)(size >> 8), (uint8_t)(size >> 16), (uint8_t)(size >> 24) };

	assert_int_equal(buf_append(stream == STREAM_OUT ? &call->out : &call->err, data, size), 0);
	if (!call->no_credit)
		world_send(world, call->number, WIRE_CREDIT, stream, back, sizeof(back));
}

/* Takes one frame and files it; false when none came in time. */
static inline bool world_take(struct world *world, int timeout_ms)
{
	static char payload[WIRE_PAYLOAD_MAX];
	struct pollfd ready = { .fd = world->from, .events = POLLIN };
	struct wire_header header;
	struct husk_error err;

	if (poll(&ready, 1, timeout_ms) <= 0)
		return false;
	int got = wire_receive(world->from, &header, payload, &err);
	if (got <= 0)
		fail_msg("the agent is gone: %s", got < 0 ? err.message : "end of stream");
	struct call *call = world_call(world, header.channel);
	assert_false(call->ended); /* nothing follows an END */
	if (header.type == WIRE_DATA) {
		call_data(world, call, header.stream, payload, header.size);
	} else if (header.type == WIRE_MSG) {
		assert_true(call->message_count < ARRAY_SIZE(call->messages));
		assert_int_equal(buf_append(&call->messages[call->message_count++].fields, payload, header.size), 0);
	} else if (header.type == WIRE_CREDIT) {
		call->credit += (uint8_t)payload[0] | (uint8_t)payload[1] << 8 | (uint8_t)payload[2] << 16;
	} else if (header.type == WIRE_EOF) {
		call->eof = true;
	} else {
		assert_int_equal(header.type, WIRE_END);
		call->ended = true;
		call->error = (struct husk_error){ 0 };
		wire_end_status(payload, header.size, &call->error);
		assert_int_equal(buf_append(&call->end, payload, header.size), 0);
	}
	return true;
}

/* ---- calls: arguments first, then the call ---- */

static inline void with_string(struct world *world, uint16_t tag, const char *value)
{
	assert_int_equal(wire_put_string(&world->arguments, tag, value), 0);
}

static inline void with_int(struct world *world, uint16_t tag, int64_t value)
{
	assert_int_equal(wire_put_int(&world->arguments, tag, value), 0);
}

static inline struct call *call_open(struct world *world, enum wire_method method)
{
	struct call *call = calloc(1, sizeof(*call));

	assert_non_null(call);
	assert_true(world->last + 1 < CALLS_MAX);
	call->number = ++world->last;
	call->credit = WIRE_WINDOW;
	world->calls[call->number] = call;
	with_int(world, TAG_METHOD, method);
	world_send(world, call->number, WIRE_OPEN, 0, world->arguments.data, world->arguments.size);
	buf_free(&world->arguments);
	return call;
}

static inline void call_wait(struct world *world, struct call *call)
{
	while (!call->ended)
		if (!world_take(world, PATIENCE_MS))
			fail_msg("call %u has not ended in time", call->number);
}

static inline void call_wait_message(struct world *world, struct call *call, size_t count)
{
	while (!call->ended && call->message_count < count)
		if (!world_take(world, PATIENCE_MS))
			fail_msg("call %u has not told anything in time", call->number);
	assert_true(call->message_count >= count);
}

static inline void call_wait_output(struct world *world, struct call *call, size_t size)
{
	while (!call->ended && call->out.size < size)
		if (!world_take(world, PATIENCE_MS))
			fail_msg("call %u has %zu bytes of %zu", call->number, call->out.size, size);
}

/* Input against credit, as a well-behaved host sends it. */
static inline void call_write(struct world *world, struct call *call, const char *data, size_t size)
{
	while (size > 0 && !call->ended) {
		size_t part = MIN(size, 60000);
		while (!call->ended && call->credit < (int64_t)part)
			assert_true(world_take(world, PATIENCE_MS));
		if (call->ended)
			break;
		world_send(world, call->number, WIRE_DATA, STREAM_IN, data, part);
		call->credit -= (int64_t)part;
		data += part;
		size -= part;
	}
}

static inline void call_end_input(struct world *world, struct call *call)
{
	if (!call->ended)
		world_send(world, call->number, WIRE_EOF, STREAM_IN, NULL, 0);
}

static inline void call_cancel(struct world *world, struct call *call)
{
	world_send(world, call->number, WIRE_CANCEL, 0, NULL, 0);
	call_wait(world, call);
}

static inline struct call *call_run(struct world *world, enum wire_method method)
{
	struct call *call = call_open(world, method);
	call_wait(world, call);
	return call;
}

static inline int64_t end_int(const struct call *call, uint16_t tag)
{
	return wire_get_int(call->end.data, call->end.size, tag, -1);
}

static inline int64_t message_int(const struct call *call, size_t index, uint16_t tag)
{
	assert_true(index < call->message_count);
	return wire_get_int(call->messages[index].fields.data, call->messages[index].fields.size, tag, -1);
}

/* Valid until the next call of it. */
static inline const char *message_string(const struct call *call, size_t index, uint16_t tag)
{
	static char *last;

	free(last);
	last = wire_get_string(call->messages[index].fields.data, call->messages[index].fields.size, tag);
	return last ? last : "";
}

static inline void assert_call(const struct call *call)
{
	if (call->error.code != HUSK_OK)
		fail_msg("call %u failed: %s", call->number, call->error.message);
}

static inline void assert_refused(const struct call *call, enum husk_code code, const char *words)
{
	if (call->error.code != code || !strstr(call->error.message, words))
		fail_msg("expected code %d with '%s', got %d: %s", code, words, call->error.code, call->error.message);
}

static inline void assert_output(const struct call *call, const char *text)
{
	assert_int_equal(call->out.size, strlen(text));
	assert_memory_equal(call->out.size ? call->out.data : "", text, call->out.size);
}

/* ---- a life ---- */

static inline const char *agent_path(void)
{
	static char path[512];
	const char *given = getenv("HUSK_AGENT"), *build = getenv("HUSK_BUILD");

	if (given)
		return given;
	snprintf(path, sizeof(path), "%s/husk-agent", build ? build : "build");
	return path;
}

static inline int world_setup(void **state)
{
	struct world *world = calloc(1, sizeof(*world));
	int to[2], from[2];
	struct wire_header header;
	static char payload[WIRE_PAYLOAD_MAX];

	assert_non_null(world);
	signal(SIGPIPE, SIG_IGN);
	assert_int_equal(pipe2(to, O_CLOEXEC), 0);
	assert_int_equal(pipe2(from, O_CLOEXEC), 0);
	strcpy(world->directory, "/tmp/husk-test-agent-XXXXXX");
	assert_non_null(mkdtemp(world->directory));
	world->agent = fork();
	assert_true(world->agent >= 0);
	if (world->agent == 0) {
		dup2(to[0], 0);
		dup2(from[1], 1);
		signal(SIGPIPE, SIG_DFL);
		execl(agent_path(), "husk-agent", NULL);
		perror(agent_path());
		_exit(127);
	}
	close(to[0]);
	close(from[1]);
	world->to = to[1];
	world->from = from[0];
	*state = world;
	assert_int_equal(wire_receive(world->from, &header, payload, NULL), 1);
	assert_int_equal(header.type, WIRE_HELLO);
	assert_int_equal(wire_get_int(payload, header.size, TAG_VERSION, 0), WIRE_VERSION);
	return 0;
}

static inline void call_free(struct call *call)
{
	for (size_t i = 0; i < call->message_count; i++)
		buf_free(&call->messages[i].fields);
	buf_free(&call->out);
	buf_free(&call->err);
	buf_free(&call->end);
	free(call);
}

/* The end of the link ends the agent, cleanly. */
static inline int world_teardown(void **state)
{
	struct world *world = *state;
	int status;

	close(world->to);
	close(world->from);
	assert_int_equal(waitpid(world->agent, &status, 0), world->agent);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	for (size_t i = 0; i < CALLS_MAX; i++)
		if (world->calls[i])
			call_free(world->calls[i]);
	assert_int_equal(dir_remove(world->directory, NULL), 0);
	free(world);
	return 0;
}

/* A path inside the test's own directory; valid until three more were asked for. */
static inline const char *path_in(const struct world *world, const char *name)
{
	static char paths[4][256];
	static unsigned next;
	char *path = paths[next++ % ARRAY_SIZE(paths)];

	snprintf(path, sizeof(paths[0]), "%s/%s", world->directory, name);
	return path;
}

#define agent_test(function) cmocka_unit_test_setup_teardown(function, world_setup, world_teardown)

#endif
