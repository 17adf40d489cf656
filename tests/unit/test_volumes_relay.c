/*
 * The supervisor's relay between the agent link and the jailed process of a volume, against an agent played by this test
 * that breaks the rules: it costs the guest its volume or its link, and ending never waits for it. Needs root; skips
 * without.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <pthread.h>

#include "engine/engine.h"
#include "supervisor/volumes.h"
#include "volume/nodes.h"
#include "volume/process.h"

#include "scratch.h"

#define MOUNTS "[{\"id\":\"vol-test\",\"name\":\"test\",\"path\":\"/data\",\"read_only\":false}]"
#define WAIT_MS 20000
#define END_MS 10000 /* against hanging; a loaded host is slow */

struct stage {
	struct supervisor s;
	int from_host, to_host; /* the agent's ends */
	int to_agent, from_agent;
	uint32_t channel;
	char payload[WIRE_PAYLOAD_MAX];
};

static void need_root(void)
{
	if (geteuid() != 0) {
		print_message("skipped: not root\n");
		skip();
	}
}

/* ---- the agent ---- */

/* The next frame; false when none comes in time, or the link has ended. */
static bool hear(struct stage *stage, struct wire_header *header, int timeout_ms)
{
	struct pollfd wait = { .fd = stage->from_host, .events = POLLIN };

	return poll(&wait, 1, timeout_ms) == 1 && wire_receive(stage->from_host, header, stage->payload, NULL) == 1;
}

static void await(struct stage *stage, enum wire_type type)
{
	struct wire_header header = { 0 };

	while (header.type != type)
		if (!hear(stage, &header, WAIT_MS))
			fail_msg("no frame of type %d came", type);
}

static int say(struct stage *stage, enum wire_type type, const void *bytes, size_t size)
{
	return wire_send(stage->to_host, stage->channel, type, type == WIRE_CREDIT ? STREAM_IN : STREAM_OUT, bytes,
			 size, NULL);
}

static void *mount_it(void *data)
{
	struct stage *stage = data;
	struct wire_header header;

	if (!hear(stage, &header, WAIT_MS) || header.type != WIRE_OPEN)
		return NULL;
	stage->channel = header.channel;
	say(stage, WIRE_MSG, NULL, 0);
	return stage;
}

struct getattr {
	struct fuse_in_header head;
	struct fuse_getattr_in in;
};

static const struct getattr getattr = {
	.head = { .len = sizeof(getattr), .opcode = FUSE_GETATTR, .unique = 5, .nodeid = NODE_ROOT },
};

static void assert_answers(struct stage *stage)
{
	struct fuse_out_header answer;

	assert_int_equal(say(stage, WIRE_DATA, &getattr, sizeof(getattr)), 0);
	await(stage, WIRE_DATA);
	memcpy(&answer, stage->payload, sizeof(answer));
	assert_int_equal(answer.error, 0);
}

/* ---- the host ---- */

static const struct engine no_shares = { .name = "test" };

static int set_up(void **state)
{
	struct stage *stage = calloc(1, sizeof(*stage));
	const struct catalog_volume row = { .id = "vol-test", .name = "test", .limit_bytes = 1u << 20 };
	int down[2], up[2];

	*state = stage;
	if (geteuid() != 0)
		return 0;
	dir_remove(at("home"), NULL);
	cleanup_free char *home = strdup(at("home")), *catalog = NULL;
	if (!stage || paths_open(home, &stage->s.husk.paths, NULL) < 0 ||
	    !(catalog = path_catalog(&stage->s.husk.paths)) ||
	    catalog_open(catalog, &stage->s.husk.catalog, NULL) < 0 ||
	    catalog_volume_add(stage->s.husk.catalog, &row, NULL) < 0 || pipe2(down, O_CLOEXEC) < 0 ||
	    pipe2(up, O_CLOEXEC) < 0)
		return -1;
	stage->from_host = down[0];
	stage->to_agent = down[1];
	stage->from_agent = up[0];
	stage->to_host = up[1];
	stage->s.slot = 0x3ffe;
	stage->s.engine = &no_shares;
	return link_start(stage->to_agent, stage->from_agent, false, &stage->s.link, NULL);
}

static void begin(struct stage *stage)
{
	struct husk_error err = { 0 };
	pthread_t agent;
	void *mounted;

	assert_int_equal(pthread_create(&agent, NULL, mount_it, stage), 0);
	int result = volumes_begin(&stage->s, MOUNTS, &err);
	pthread_join(agent, &mounted);
	if (result < 0)
		fail_msg("%s", err.message);
	assert_non_null(mounted);
}

/* They stay for the life of a supervisor, and are no leak. */
static struct volumes *kept[16];
static size_t kept_count;

/* As a machine ends: its engine first, then its link, then its volumes. */
static int tear_down(void **state)
{
	struct stage *stage = *state;

	if (stage->s.link) {
		int64_t start = time_monotonic_ms();
		fd_close(&stage->from_host);
		fd_close(&stage->to_host);
		link_close(stage->s.link);
		volumes_end(&stage->s);
		if (time_monotonic_ms() - start > END_MS)
			return -1;
		link_free(stage->s.link);
		fd_close(&stage->to_agent);
		fd_close(&stage->from_agent);
		catalog_close(stage->s.husk.catalog);
		paths_close(&stage->s.husk.paths);
		kept[kept_count++ % ARRAY_SIZE(kept)] = stage->s.volumes;
	}
	free(stage);
	return 0;
}

/* ---- what it does ---- */

static void an_honest_one_is_served_and_saved(void **state)
{
	struct stage *stage = *state;
	struct husk_error err = { 0 };

	need_root();
	begin(stage);
	assert_answers(stage);
	if (volumes_save(&stage->s, stage->s.husk.paths.home, &err) < 0)
		fail_msg("%s", err.message);
	assert_true(exists(at("home/volume-0")));
	assert_answers(stage);
}

/* Many small ones are no reason to end anything: credit comes back for each. */
static void a_flood_of_requests_without_answers_passes(void **state)
{
	struct stage *stage = *state;
	struct {
		struct fuse_in_header head;
		struct fuse_forget_in in;
	} forget = { .head = { .len = sizeof(forget), .opcode = FUSE_FORGET, .nodeid = 99 }, .in = { 1 } };
	struct wire_header header;
	uint32_t credit = WIRE_WINDOW, more;

	need_root();
	begin(stage);
	for (int i = 0; i < 60000; i++) {
		while (credit < sizeof(forget)) {
			assert_true(hear(stage, &header, WAIT_MS));
			assert_int_equal(header.type, WIRE_CREDIT);
			memcpy(&more, stage->payload, sizeof(more));
			credit += more;
		}
		credit -= (uint32_t)sizeof(forget);
		assert_int_equal(say(stage, WIRE_DATA, &forget, sizeof(forget)), 0);
	}
	assert_answers(stage);
}

static void bytes_that_are_no_request_cost_the_volume(void **state)
{
	struct stage *stage = *state;

	need_root();
	begin(stage);
	assert_int_equal(say(stage, WIRE_DATA, "x", 1), 0);
	await(stage, WIRE_CANCEL);
	assert_false(link_is_down(stage->s.link));
}

/* Credit does not bound frames without bytes: nobody queues one. */
static void empty_frames_are_not_queued(void **state)
{
	struct stage *stage = *state;

	need_root();
	begin(stage);
	for (int i = 0; i < 1000; i++)
		assert_int_equal(say(stage, WIRE_DATA, NULL, 0), 0);
	assert_answers(stage);
}

static void a_request_of_another_size_costs_the_volume(void **state)
{
	struct stage *stage = *state;
	struct getattr wrong = getattr;

	need_root();
	begin(stage);
	wrong.head.len = 4096;
	assert_int_equal(say(stage, WIRE_DATA, &wrong, sizeof(wrong)), 0);
	await(stage, WIRE_CANCEL);
	assert_false(link_is_down(stage->s.link));
}

/* It asks and asks, and gives no credit for the answers: they wait, bounded, and the end does not wait for them. */
static void one_that_gives_no_credit_waits_alone(void **state)
{
	struct stage *stage = *state;
	struct wire_header header;
	size_t asked = 0, answered = 0;
	uint32_t credit = WIRE_WINDOW, more;

	need_root();
	begin(stage);
	for (;;) {
		bool may = credit >= sizeof(getattr);
		if (may) {
			assert_int_equal(say(stage, WIRE_DATA, &getattr, sizeof(getattr)), 0);
			credit -= (uint32_t)sizeof(getattr);
			asked++;
		}
		if (!hear(stage, &header, may ? 0 : 2000)) {
			if (may)
				continue;
			break; /* nothing moves any more */
		}
		memcpy(&more, stage->payload, sizeof(more));
		answered += header.type == WIRE_DATA ? header.size : 0;
		credit += header.type == WIRE_CREDIT ? more : 0;
	}
	assert_true(answered <= WIRE_WINDOW);
	assert_true(asked * sizeof(getattr) <= 8 * WIRE_WINDOW);
	assert_false(link_is_down(stage->s.link));
}

static void *close_soon(void *data)
{
	struct stage *stage = data;

	usleep(200000);
	fd_close(&stage->to_host);
	return NULL;
}

/* A guest that does not say that it is held is waited for no longer than its machine lives. */
static void a_hold_ends_with_the_link(void **state)
{
	struct stage *stage = *state;
	struct husk_error err = { 0 };
	pthread_t closer;

	need_root();
	begin(stage);
	int64_t start = time_monotonic_ms();
	assert_int_equal(pthread_create(&closer, NULL, close_soon, stage), 0);
	assert_int_equal(volumes_hold(&stage->s, &err), -1);
	assert_true(time_monotonic_ms() - start < END_MS);
	pthread_join(closer, NULL);
}

static void a_guest_that_ends_the_channel_loses_the_volume(void **state)
{
	struct stage *stage = *state;
	cleanup_buf struct buf status = { 0 };
	struct husk_error err = { 0 };

	need_root();
	begin(stage);
	assert_int_equal(wire_put_int(&status, TAG_STATUS, HUSK_OK), 0);
	assert_int_equal(say(stage, WIRE_END, status.data, status.size), 0);
	/* Once it is seen, nothing is held of it, and nothing waits for it. */
	for (int64_t end = time_monotonic_ms() + WAIT_MS; volumes_hold(&stage->s, &err) < 0;) {
		assert_int_equal(err.code, HUSK_GONE);
		assert_true(time_monotonic_ms() < end);
	}
	assert_false(link_is_down(stage->s.link));
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(an_honest_one_is_served_and_saved, set_up, tear_down),
		cmocka_unit_test_setup_teardown(a_flood_of_requests_without_answers_passes, set_up, tear_down),
		cmocka_unit_test_setup_teardown(bytes_that_are_no_request_cost_the_volume, set_up, tear_down),
		cmocka_unit_test_setup_teardown(empty_frames_are_not_queued, set_up, tear_down),
		cmocka_unit_test_setup_teardown(a_request_of_another_size_costs_the_volume, set_up, tear_down),
		cmocka_unit_test_setup_teardown(one_that_gives_no_credit_waits_alone, set_up, tear_down),
		cmocka_unit_test_setup_teardown(a_hold_ends_with_the_link, set_up, tear_down),
		cmocka_unit_test_setup_teardown(a_guest_that_ends_the_channel_loses_the_volume, set_up, tear_down),
	};

	if (argc > 1 && str_equal(argv[1], "volume-server"))
		return volume_server_main(argc - 1, argv + 1);
	setenv("HUSK_BIN", "/proc/self/exe", 1);
	return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
