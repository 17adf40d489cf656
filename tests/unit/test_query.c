/*
 * What needs no supervisor: lists with filters, events with waiting, logs, metadata, ends by force. The instance is a
 * real one in a directory of its own, without engines or sandboxes behind its rows.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "instance/console.h"
#include "instance/recover.h"

struct world {
	char directory[32];
	struct husk husk;
	struct husk_error err;
};

static int set_up(void **state)
{
	struct world *w = calloc(1, sizeof *w);

	assert_non_null(w);
	strcpy(w->directory, "/tmp/husk-query-XXXXXX");
	assert_non_null(mkdtemp(w->directory));
	assert_int_equal(paths_open(w->directory, &w->husk.paths, &w->err), 0);
	cleanup_free char *database = path_catalog(&w->husk.paths);

	assert_int_equal(catalog_open(database, &w->husk.catalog, &w->err), 0);
	*state = w;
	return 0;
}

static int tear_down(void **state)
{
	struct world *w = *state;

	catalog_close(w->husk.catalog);
	paths_close(&w->husk.paths);
	assert_int_equal(dir_remove(w->directory, &w->err), 0);
	free(w);
	return 0;
}

static uint32_t add(struct world *w, char *id, char *name, enum catalog_state state, char *metadata)
{
	struct catalog_sandbox row = {
		.id = id, .name = name, .isolation = "gvisor", .state = state, .created_ms = 1, .metadata = metadata
	};

	if (catalog_sandbox_add(w->husk.catalog, &row, &w->err))
		fail_msg("%s", w->err.message);
	return row.slot;
}

/* The ids that a filter lets through, joined. */
static void listed(struct world *w, const struct husk_filter *filter, const char *expected)
{
	cleanup_buf struct buf joined = { 0 };
	struct husk_sandbox **list = NULL;

	if (husk_list(&w->husk, filter, &list, &w->err))
		fail_msg("%s", w->err.message);
	assert_int_equal(buf_append_string(&joined, ""), 0);
	for (size_t i = 0; list[i]; i++)
		assert_int_equal(buf_printf(&joined, "%s%s", i ? " " : "", list[i]->id), 0);
	husk_sandbox_list_free(list);
	assert_string_equal(joined.data, expected);
}

static void lists_with_filters(void **state)
{
	struct world *w = *state;
	const struct husk_pair both[] = { { "team", "red" }, { "job", "1" } };
	struct husk_sandbox **list = NULL;

	add(w, "run", NULL, CATALOG_RUNNING, "{\"team\":\"red\",\"job\":\"1\"}");
	add(w, "sleep", NULL, CATALOG_HIBERNATED, "{\"team\":\"red\"}");
	add(w, "over", NULL, CATALOG_RUNNING, NULL);
	add(w, "pool", NULL, CATALOG_POOL, NULL);
	add(w, "prepare", NULL, CATALOG_PREPARING, NULL);
	assert_int_equal(catalog_sandbox_end(w->husk.catalog, "over", "ttl", &w->err), 0);
	listed(w, NULL, "sleep run");
	listed(w, &(struct husk_filter){ 0 }, "sleep run");
	listed(w, &(struct husk_filter){ .with_ended = true }, "over sleep run");
	listed(w, &(struct husk_filter){ .state = HUSK_ENDED }, "over");
	listed(w, &(struct husk_filter){ .state = HUSK_RUNNING }, "run");
	listed(w, &(struct husk_filter){ .state = HUSK_CREATING }, "");
	listed(w, &(struct husk_filter){ .metadata = both, .metadata_count = 1 }, "sleep run");
	listed(w, &(struct husk_filter){ .metadata = both, .metadata_count = 2 }, "run");
	assert_int_equal(husk_list(&w->husk, &(struct husk_filter){ .state = 77 }, &list, &w->err), -1);
	assert_int_equal(w->err.code, HUSK_INVALID);
}

static void sets_metadata(void **state)
{
	struct world *w = *state;
	const struct husk_pair pair = { "colour", "blue" }, bad = { "", "x" };

	add(w, "sb-1", "one", CATALOG_RUNNING, "{\"old\":\"1\"}");
	assert_int_equal(husk_set_metadata(&w->husk, "one", &pair, 1, &w->err), 0);
	listed(w, &(struct husk_filter){ .metadata = &pair, .metadata_count = 1 }, "sb-1");
	listed(w, &(struct husk_filter){ .metadata = &(struct husk_pair){ "old", "1" }, .metadata_count = 1 }, "");
	assert_int_equal(husk_set_metadata(&w->husk, "one", &bad, 1, &w->err), -1);
	assert_int_equal(w->err.code, HUSK_INVALID);
	assert_int_equal(husk_set_metadata(&w->husk, "two", &pair, 1, &w->err), -1);
	assert_int_equal(w->err.code, HUSK_NOT_FOUND);
	assert_int_equal(catalog_sandbox_end(w->husk.catalog, "sb-1", "ttl", &w->err), 0);
	assert_int_equal(husk_set_metadata(&w->husk, "one", &pair, 1, &w->err), -1);
	assert_int_equal(w->err.code, HUSK_GONE);
}

static void *emit_later(void *data)
{
	struct world *w = data;

	usleep(60000);
	return catalog_event(w->husk.catalog, "sb-1", "woken", NULL, NULL) ? w : NULL;
}

static void waits_for_events(void **state)
{
	struct world *w = *state;
	struct husk_event *events = NULL;
	size_t count = 0;
	pthread_t thread;
	void *failed = NULL;
	int64_t start = time_monotonic_ms();

	add(w, "sb-1", "one", CATALOG_RUNNING, NULL);
	assert_int_equal(husk_events(&w->husk, "one", 0, 10, 40, &events, &count, &w->err), 0);
	assert_int_equal(count, 0);
	assert_in_range(time_monotonic_ms() - start, 40, 1000);
	husk_event_list_free(events, count);

	assert_int_equal(pthread_create(&thread, NULL, emit_later, w), 0);
	assert_int_equal(husk_events(&w->husk, "one", 0, 10, 10000, &events, &count, &w->err), 0);
	assert_int_equal(count, 1);
	assert_string_equal(events[0].kind, "woken");
	assert_in_range(time_monotonic_ms() - start, 90, 5000);
	husk_event_list_free(events, count);
	assert_int_equal(pthread_join(thread, &failed), 0);
	assert_null(failed);
}

static void finds_events_of_the_forgotten(void **state)
{
	struct world *w = *state;
	struct husk_event *events = NULL;
	size_t count = 0;

	assert_int_equal(catalog_event(w->husk.catalog, "sb-failed", "recovered", NULL, &w->err), 0);
	assert_int_equal(husk_events(&w->husk, "sb-failed", 0, 10, 0, &events, &count, &w->err), 0);
	assert_int_equal(count, 1);
	husk_event_list_free(events, count);
	assert_int_equal(husk_events(&w->husk, "sb-never", 0, 10, 0, &events, &count, &w->err), -1);
	assert_int_equal(w->err.code, HUSK_NOT_FOUND);
}

static void write_log(struct world *w, char *directory, const char *name, const char *text, size_t size)
{
	cleanup_free char *path = str_format("%s/%s", directory, name);

	assert_int_equal(dir_make(directory, 0700, &w->err), 0);
	assert_int_equal(file_write_atomic(path, text, size, 0600, &w->err), 0);
}

/* What a reader gets; the caller's `position` goes on from there. */
static void reads(struct world *w, enum husk_log_source source, struct husk_log_position *position,
		  const char *expected)
{
	cleanup_free char *text = NULL;

	if (husk_logs(&w->husk, "sb-1", source, position, &text, &w->err) < 0)
		fail_msg("%s", w->err.message);
	assert_string_equal(text, expected);
}

static void shows_logs(void **state)
{
	struct world *w = *state;
	uint32_t slot = add(w, "sb-1", "one", CATALOG_RUNNING, NULL);
	cleanup_free char *sandbox = path_sandbox(&w->husk.paths, "sb-1"),
			  *machine = path_machine(&w->husk.paths, slot);

	reads(w, HUSK_LOG_SUPERVISOR, NULL, "");
	reads(w, HUSK_LOG_CONSOLE, NULL, "");
	write_log(w, sandbox, "log.old", "before\n", 7);
	write_log(w, sandbox, "log", "supervisor\n", 11);
	write_log(w, machine, "console.log", "he\0llo\r\n\033[2J\xff\n", 14);
	reads(w, HUSK_LOG_SUPERVISOR, NULL, "before\nsupervisor\n");
	reads(w, HUSK_LOG_CONSOLE, NULL, "he\\x00llo\n\\x1b[2J\\xff\n");
	assert_int_equal(catalog_sandbox_end(w->husk.catalog, "sb-1", "ttl", &w->err), 0);
	reads(w, HUSK_LOG_CONSOLE, NULL, ""); /* the slot is another's */
}

static void keeps_consoles(void **state)
{
	struct world *w = *state;
	uint32_t slot = add(w, "sb-1", NULL, CATALOG_RUNNING, NULL);
	cleanup_free char *sandbox = path_sandbox(&w->husk.paths, "sb-1"),
			  *machine = path_machine(&w->husk.paths, slot);
	struct husk_log_position reader = { 0 };

	write_log(w, machine, "console.log", "first\n", 6);
	console_keep(&w->husk.paths, slot, "sb-1"); /* its directory is not there: lost, and no harm */
	write_log(w, sandbox, "log", "", 0);
	write_log(w, machine, "console.log", "first\n", 6);
	reads(w, HUSK_LOG_CONSOLE, &reader, "first\n");
	write_log(w, machine, "panic.log", "panic\n", 6);
	console_keep(&w->husk.paths, slot, "sb-1");
	console_keep(&w->husk.paths, slot, "sb-1"); /* nothing left to keep: nothing changes */
	reads(w, HUSK_LOG_CONSOLE, NULL, "first\npanic\n");
	reads(w, HUSK_LOG_CONSOLE, &reader, "panic\n");
	write_log(w, machine, "panic.log", "", 0);
	write_log(w, machine, "console.log", "second\n", 7); /* after it slept */
	reads(w, HUSK_LOG_CONSOLE, &reader, "second\n");
	console_keep(&w->husk.paths, slot, "sb-1");
	assert_int_equal(catalog_sandbox_end(w->husk.catalog, "sb-1", "killed", &w->err), 0);
	reads(w, HUSK_LOG_CONSOLE, &reader, "");
	reads(w, HUSK_LOG_CONSOLE, NULL, "first\npanic\nsecond\n");
}

static void follows_over_rotation_and_cuts(void **state)
{
	struct world *w = *state;
	uint32_t slot = add(w, "sb-1", NULL, CATALOG_RUNNING, NULL);
	cleanup_free char *sandbox = path_sandbox(&w->husk.paths, "sb-1"),
			  *machine = path_machine(&w->husk.paths, slot);
	cleanup_free char *log = str_format("%s/log", sandbox), *old = str_format("%s/log.old", sandbox),
			  *console = str_format("%s/console.log", machine);
	struct husk_log_position reader = { 0 };

	write_log(w, sandbox, "log", "one\ntwo\n", 8);
	reads(w, HUSK_LOG_SUPERVISOR, &reader, "one\ntwo\n");
	reads(w, HUSK_LOG_SUPERVISOR, &reader, "");
	cleanup_file FILE *end = fopen(log, "a");
	assert_true(end && fputs("three\n", end) >= 0 && fflush(end) == 0);
	assert_int_equal(rename(log, old), 0);
	write_log(w, sandbox, "log", "four\n", 5);
	reads(w, HUSK_LOG_SUPERVISOR, &reader, "three\nfour\n");
	write_log(w, machine, "console.log", "long console\n", 13);
	reader = (struct husk_log_position){ 0 };
	reads(w, HUSK_LOG_CONSOLE, &reader, "long console\n");
	assert_int_equal(truncate(console, 4), 0);
	reads(w, HUSK_LOG_CONSOLE, &reader, "long");
}

static void follows_no_link_and_bounds_logs(void **state)
{
	struct world *w = *state;
	size_t size = 3u << 20;
	cleanup_free char *sandbox = path_sandbox(&w->husk.paths, "sb-1"), *big = malloc(size), *text = NULL;
	cleanup_free char *machine = path_machine(&w->husk.paths, add(w, "sb-1", NULL, CATALOG_RUNNING, NULL));
	cleanup_free char *console = str_format("%s/console.log", machine);

	assert_non_null(big);
	memset(big, 'x', size);
	memcpy(big + size - 4, "end\n", 4);
	write_log(w, sandbox, "log", big, size);
	assert_int_equal(husk_logs(&w->husk, "sb-1", HUSK_LOG_SUPERVISOR, NULL, &text, &w->err), 0);
	assert_true(strlen(text) < (1u << 20) + 100);
	assert_true(str_starts(text, "(earlier lines left out)\n") && str_ends(text, "xend\n"));
	free(steal_pointer(text));
	assert_int_equal(dir_make(machine, 0700, &w->err), 0);
	assert_int_equal(symlink("/etc/passwd", console), 0);
	assert_int_equal(husk_logs(&w->husk, "sb-1", HUSK_LOG_CONSOLE, NULL, &text, &w->err), -1);
	assert_null(text);
	console_keep(&w->husk.paths, 1, "sb-1");
	cleanup_free char *kept = str_format("%s/console", sandbox);
	assert_int_equal(access(kept, F_OK), -1);
	assert_int_equal(husk_logs(&w->husk, "sb-1", (enum husk_log_source)7, NULL, &text, &w->err), -1);
	assert_int_equal(w->err.code, HUSK_INVALID);
}

static void lists_snapshots_and_templates(void **state)
{
	struct world *w = *state;
	struct catalog_snapshot ready = { .id = "sn-1", .name = "first", .ready = true, .bytes = 9 },
				unready = { .id = "sn-2" };
	struct catalog_template template = { .name = "base", .digest = "d1", .bytes = 8 };
	struct husk_snapshot **snapshots = NULL;
	struct husk_template **templates = NULL;

	assert_int_equal(catalog_snapshot_add(w->husk.catalog, &ready, &w->err), 0);
	assert_int_equal(catalog_snapshot_add(w->husk.catalog, &unready, &w->err), 0);
	assert_int_equal(catalog_template_add(w->husk.catalog, &template, &w->err), 0);
	assert_int_equal(husk_snapshot_list(&w->husk, &snapshots, &w->err), 0);
	assert_string_equal(snapshots[0]->name, "first");
	assert_int_equal(snapshots[0]->bytes, 9);
	assert_null(snapshots[1]);
	husk_snapshot_list_free(snapshots);
	assert_int_equal(husk_template_list(&w->husk, &templates, &w->err), 0);
	assert_string_equal(templates[0]->digest, "d1");
	assert_null(templates[1]);
	husk_template_list_free(templates);
}

/* The process that was waking it has put it back to sleep: a kill must not take that for the end. */
static void a_sleeper_is_not_ended_by_force(void **state)
{
	struct world *w = *state;
	struct catalog_sandbox *row = NULL;

	add(w, "sb-asleep", NULL, CATALOG_HIBERNATED, NULL);
	assert_int_equal(supervisor_force(&w->husk, "sb-asleep", "killed", &w->err), -1);
	assert_int_equal(w->err.code, HUSK_CONFLICT);
	assert_int_equal(husk_kill(&w->husk, "sb-asleep", &w->err), 0);
	assert_int_equal(catalog_sandbox_get(w->husk.catalog, "sb-asleep", &row, &w->err), 0);
	assert_int_equal(row->state, CATALOG_ENDED);
	catalog_sandbox_free(row);
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(lists_with_filters),
		TEST(sets_metadata),
		TEST(waits_for_events),
		TEST(finds_events_of_the_forgotten),
		TEST(shows_logs),
		TEST(keeps_consoles),
		TEST(follows_over_rotation_and_cuts),
		TEST(follows_no_link_and_bounds_logs),
		TEST(lists_snapshots_and_templates),
		TEST(a_sleeper_is_not_ended_by_force),
	};

	return cmocka_run_group_tests_name("query", tests, NULL, NULL);
}
