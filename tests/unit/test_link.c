/*
 * The host's end of the agent link against an agent played by this test: calls, credit, abandoned channels, and every way a
 * hostile guest can break the protocol.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <pthread.h>

#include "link/link.h"

struct pair {
	struct link *link;
	int from_host, to_host; /* the agent's ends */
	int to_agent, from_agent;
};

static int set_up(void **state)
{
	struct pair *pair = calloc(1, sizeof(*pair));
	int down[2], up[2];

	if (!pair || pipe2(down, O_CLOEXEC) < 0 || pipe2(up, O_CLOEXEC) < 0)
		return -1;
	*pair = (struct pair){ .from_host = down[0], .to_agent = down[1], .from_agent = up[0], .to_host = up[1] };
	*state = pair;
	return link_start(pair->to_agent, pair->from_agent, false, &pair->link, NULL);
}

static int tear_down(void **state)
{
	struct pair *pair = *state;

	link_free(pair->link);
	close(pair->from_host);
	close(pair->to_host);
	close(pair->to_agent);
	close(pair->from_agent);
	free(pair);
	return 0;
}

/* Takes one frame as the agent would. */
static struct wire_header receive(struct pair *pair, char *payload)
{
	struct wire_header header = { 0 };

	assert_int_equal(wire_receive(pair->from_host, &header, payload, NULL), 1);
	return header;
}

static void *answer_calls(void *argument)
{
	struct pair *pair = argument;
	static char payload[WIRE_PAYLOAD_MAX];
	struct wire_header header = receive(pair, payload);
	cleanup_buf struct buf results = { 0 };

	wire_put_int(&results, TAG_COUNT, wire_get_int(payload, header.size, TAG_METHOD, 0));
	wire_send_end(pair->to_host, header.channel, NULL, &results, NULL);
	return NULL;
}

static void test_call(void **state)
{
	struct pair *pair = *state;
	struct husk_error err = { 0 };
	cleanup_buf struct buf results = { 0 };
	pthread_t agent;

	pthread_create(&agent, NULL, answer_calls, pair);
	assert_int_equal(link_call(pair->link, METHOD_STATS, NULL, &results, 5000, &err), 0);
	assert_int_equal(wire_get_int(results.data, results.size, TAG_COUNT, 0), METHOD_STATS);
	pthread_join(agent, NULL);
	assert_int_equal(link_channels(pair->link), 0);
}

static void test_call_times_out(void **state)
{
	struct pair *pair = *state;
	struct husk_error err = { 0 };
	static char payload[WIRE_PAYLOAD_MAX];

	assert_int_equal(link_call(pair->link, METHOD_STATS, NULL, NULL, 50, &err), -1);
	assert_int_equal(err.code, HUSK_TIMEOUT);
	struct wire_header open = receive(pair, payload);
	assert_int_equal(receive(pair, payload).type, WIRE_CANCEL);
	/* The late answer finds nobody, and the number is free again. */
	wire_send_end(pair->to_host, open.channel, NULL, NULL, NULL);
	for (int i = 0; i < 1000 && link_channels(pair->link); i++)
		usleep(1000);
	assert_int_equal(link_channels(pair->link), 0);
	assert_false(link_is_down(pair->link));
}

struct seen {
	pthread_mutex_t lock;
	size_t bytes;
	bool ended;
	struct husk_error end;
};

static void watch(void *data, const struct wire_header *header, const char *payload)
{
	struct seen *seen = data;

	pthread_mutex_lock(&seen->lock);
	if (header->type == WIRE_DATA)
		seen->bytes += header->size;
	if (header->type == WIRE_END) {
		seen->ended = true;
		wire_end_status(payload, header->size, &seen->end);
	}
	pthread_mutex_unlock(&seen->lock);
}

static void count_frames(void *data, const struct wire_header *header, const char *payload)
{
	struct seen *seen = data;

	(void)payload;
	pthread_mutex_lock(&seen->lock);
	seen->bytes++;
	seen->ended |= header->type == WIRE_END;
	pthread_mutex_unlock(&seen->lock);
}

static void wait_end(struct seen *seen)
{
	for (int i = 0; i < 5000; i++, usleep(1000)) {
		pthread_mutex_lock(&seen->lock);
		bool ended = seen->ended;
		pthread_mutex_unlock(&seen->lock);
		if (ended)
			return;
	}
	fail_msg("the channel did not end");
}

/* Opens a channel, lets `misbehave` write as the agent, and expects the link to go down with PROTOCOL. */
static void expect_refusal(struct pair *pair, void (*misbehave)(struct pair *pair, uint32_t channel))
{
	struct seen seen = { .lock = PTHREAD_MUTEX_INITIALIZER };
	struct husk_error err = { 0 };
	uint32_t channel = 0;

	assert_int_equal(link_open(pair->link, "", 0, watch, &seen, &channel, &err), 0);
	misbehave(pair, channel);
	wait_end(&seen);
	assert_int_equal(seen.end.code, HUSK_PROTOCOL);
	assert_true(link_is_down(pair->link));
	assert_int_equal(link_call(pair->link, METHOD_STATS, NULL, NULL, 1000, &err), -1);
	assert_int_equal(err.code, HUSK_PROTOCOL);
}

static void send_past_credit(struct pair *pair, uint32_t channel)
{
	static char data[65536];

	for (size_t sent = 0; sent <= WIRE_WINDOW; sent += sizeof(data))
		wire_send(pair->to_host, channel, WIRE_DATA, STREAM_OUT, data, sizeof(data), NULL);
}

static void send_unknown_channel(struct pair *pair, uint32_t channel)
{
	wire_send(pair->to_host, channel + 1, WIRE_EOF, STREAM_OUT, NULL, 0, NULL);
}

static void send_malformed_end(struct pair *pair, uint32_t channel)
{
	wire_send(pair->to_host, channel, WIRE_END, 0, "abc", 3, NULL);
}

static void send_open(struct pair *pair, uint32_t channel)
{
	wire_send(pair->to_host, channel, WIRE_OPEN, 0, NULL, 0, NULL);
}

static void send_giant_header(struct pair *pair, uint32_t channel)
{
	uint8_t bytes[WIRE_HEADER_SIZE];

	wire_header_encode(&(struct wire_header){ UINT32_MAX, channel, WIRE_DATA, STREAM_OUT }, bytes);
	write_full(pair->to_host, bytes, sizeof(bytes));
}

static void test_past_credit(void **state)
{
	expect_refusal(*state, send_past_credit);
}
static void test_unknown_channel(void **state)
{
	expect_refusal(*state, send_unknown_channel);
}
static void test_malformed_end(void **state)
{
	expect_refusal(*state, send_malformed_end);
}
static void test_open_from_guest(void **state)
{
	expect_refusal(*state, send_open);
}
static void test_giant_header(void **state)
{
	expect_refusal(*state, send_giant_header);
}

static void test_credit_goes_on(void **state)
{
	struct pair *pair = *state;
	struct seen seen = { .lock = PTHREAD_MUTEX_INITIALIZER };
	static char data[65536], payload[WIRE_PAYLOAD_MAX];
	uint32_t channel = 0, more = sizeof(data);
	size_t rounds = 3 * WIRE_WINDOW / sizeof(data);

	assert_int_equal(link_open(pair->link, "", 0, watch, &seen, &channel, NULL), 0);
	receive(pair, payload);
	for (size_t i = 0; i < rounds; i++) {
		wire_send(pair->to_host, channel, WIRE_DATA, STREAM_OUT, data, sizeof(data), NULL);
		assert_int_equal(link_send(pair->link, channel, &seen, WIRE_CREDIT, STREAM_OUT, &more, 4, NULL), 0);
		assert_int_equal(receive(pair, payload).type, WIRE_CREDIT);
	}
	wire_send_end(pair->to_host, channel, NULL, NULL, NULL);
	wait_end(&seen);
	assert_int_equal(seen.end.code, HUSK_OK);
	assert_int_equal(seen.bytes, rounds * sizeof(data));
}

static void test_stranger_cannot_use_a_channel(void **state)
{
	struct pair *pair = *state;
	struct seen seen = { .lock = PTHREAD_MUTEX_INITIALIZER };
	uint32_t channel = 0;
	int stranger;

	assert_int_equal(link_open(pair->link, "", 0, watch, &seen, &channel, NULL), 0);
	link_abandon(pair->link, channel, &stranger); /* a number used again: not the stranger's any more */
	wire_send_end(pair->to_host, channel, NULL, NULL, NULL);
	wait_end(&seen);
}

static void test_machine_ends(void **state)
{
	struct pair *pair = *state;
	struct seen seen = { .lock = PTHREAD_MUTEX_INITIALIZER };
	uint32_t channel = 0;

	assert_int_equal(link_open(pair->link, "", 0, watch, &seen, &channel, NULL), 0);
	close(pair->to_host);
	pair->to_host = -1;
	wait_end(&seen);
	assert_int_equal(seen.end.code, HUSK_GONE);
}

/* Sends until the link takes no more; the number of bytes it took. */
static size_t fill(struct pair *pair, uint32_t channel, const void *owner, struct husk_error *err)
{
	static char data[65536];
	size_t taken = 0;

	while (link_send(pair->link, channel, owner, WIRE_DATA, STREAM_IN, data, sizeof(data), err) == 0) {
		taken += sizeof(data);
		assert_true(taken < 64u << 20);
	}
	return taken;
}

/* It reads nothing: whoever sends fails in time, memory is bounded, and the link ends at once all the same. */
static void test_guest_that_does_not_read(void **state)
{
	struct pair *pair = *state;
	struct seen seen = { .lock = PTHREAD_MUTEX_INITIALIZER };
	struct husk_error err = { 0 };
	uint32_t channel = 0;

	assert_int_equal(link_open(pair->link, "", 0, watch, &seen, &channel, NULL), 0);
	fill(pair, channel, &seen, &err);
	assert_int_equal(err.code, HUSK_TIMEOUT);
	assert_int_equal(link_call(pair->link, METHOD_STATS, NULL, NULL, 50, &err), -1);
	assert_int_equal(err.code, HUSK_TIMEOUT);
	link_close(pair->link);
	wait_end(&seen);
	assert_int_equal(seen.end.code, HUSK_GONE);
}

/* What was queued arrives whole and in order once the guest reads again. */
static void test_guest_that_reads_late(void **state)
{
	struct pair *pair = *state;
	struct seen seen = { .lock = PTHREAD_MUTEX_INITIALIZER };
	static char payload[WIRE_PAYLOAD_MAX];
	struct husk_error err = { 0 };
	uint32_t channel = 0;

	assert_int_equal(link_open(pair->link, "", 0, watch, &seen, &channel, NULL), 0);
	size_t taken = fill(pair, channel, &seen, &err);
	assert_int_equal(receive(pair, payload).type, WIRE_OPEN);
	for (size_t got = 0; got < taken;) {
		struct wire_header header = receive(pair, payload);
		assert_int_equal(header.type, WIRE_DATA);
		got += header.size;
	}
	link_abandon(pair->link, channel, &seen);
	assert_int_equal(receive(pair, payload).type, WIRE_CANCEL);
}

struct late {
	struct pair *pair;
	int result;
	struct husk_error err;
};

static void *call_while_held(void *argument)
{
	struct late *late = argument;

	late->result = link_call(late->pair->link, METHOD_STATS, NULL, NULL, 30000, &late->err);
	return NULL;
}

/* Whoever waits behind a hold is woken by the end. */
static void test_hold_ends_with_the_link(void **state)
{
	struct late late = { .pair = *state };
	pthread_t thread;

	link_hold(late.pair->link);
	pthread_create(&thread, NULL, call_while_held, &late);
	usleep(50000);
	link_close(late.pair->link);
	pthread_join(thread, NULL);
	assert_int_equal(late.result, -1);
}

/* A guest may end a channel that it was not told of yet. The call that waits to be
 * sent then returns that END, and frees it. */
static void test_end_before_open(void **state)
{
	struct late late = { .pair = *state };
	pthread_t caller;

	link_hold(late.pair->link);
	pthread_create(&caller, NULL, call_while_held, &late);
	for (int i = 0; i < 5000 && link_channels(late.pair->link) == 0; i++)
		usleep(1000);
	wire_send_end(late.pair->to_host, 1, &(struct husk_error){ .code = HUSK_CONFLICT, .message = "too early" },
		      NULL, NULL);
	for (int i = 0; i < 5000 && link_channels(late.pair->link) != 0; i++)
		usleep(1000);
	link_close_because(late.pair->link, "the test is over");
	pthread_join(caller, NULL);
	assert_int_equal(late.result, -1);
	assert_int_equal(late.err.code, HUSK_CONFLICT);
}

/* Frames of no length cost no credit: nobody gets to see them, so nobody can be made to keep them. */
static void test_empty_data_is_dropped(void **state)
{
	struct pair *pair = *state;
	struct seen seen = { .lock = PTHREAD_MUTEX_INITIALIZER };
	uint32_t channel = 0;

	assert_int_equal(link_open(pair->link, "", 0, count_frames, &seen, &channel, NULL), 0);
	for (int i = 0; i < 1000; i++)
		wire_send(pair->to_host, channel, WIRE_DATA, STREAM_OUT, "", 0, NULL);
	wire_send_end(pair->to_host, channel, NULL, NULL, NULL);
	wait_end(&seen);
	assert_int_equal(seen.bytes, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_call, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_call_times_out, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_past_credit, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_unknown_channel, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_malformed_end, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_open_from_guest, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_giant_header, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_credit_goes_on, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_stranger_cannot_use_a_channel, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_machine_ends, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_guest_that_does_not_read, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_guest_that_reads_late, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_hold_ends_with_the_link, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_end_before_open, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_empty_data_is_dropped, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
