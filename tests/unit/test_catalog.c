/*
 * The catalog against a real SQLite file: what its header promises, one caller at a time.
 */
#include <sqlite3.h>
#include <sys/stat.h>

#include "catalog_world.h"

/* ---- opening ---- */

static void opens_private_and_again(void **state)
{
	static const char *const suffixes[] = { "", "-wal", "-shm" };
	struct world *w = *state;
	struct catalog *second = NULL;
	struct stat st;

	add(w, "sb-1", NULL, CATALOG_RUNNING);
	for (size_t i = 0; i < ARRAY_SIZE(suffixes); i++) {
		cleanup_free char *path = str_format("%s%s", w->path, suffixes[i]);

		assert_int_equal(stat(path, &st), 0);
		assert_int_equal(st.st_mode & 0777, 0600);
	}
	assert_int_equal(catalog_open(w->path, &second, &w->err), 0);
	catalog_close(w->catalog);
	w->catalog = second;
	catalog_sandbox_free(get(w, "sb-1"));
}

static void refuses_garbage(void **state)
{
	struct world *w = *state;
	struct catalog *second = NULL;
	cleanup_free char *path = str_format("%s/garbage.db", w->directory);
	char noise[8192];

	memset(noise, 'x', sizeof noise);
	assert_int_equal(file_write_atomic(path, noise, sizeof noise, 0600, &w->err), 0);
	refused(w, catalog_open(path, &second, &w->err), HUSK_UNAVAILABLE, "damaged");
	refused(w, catalog_open("/nonexistent/catalog.db", &second, &w->err), HUSK_NOT_FOUND,
		"/nonexistent/catalog.db");
}

static void change_by_hand(struct world *w, const char *sql)
{
	sqlite3 *db;

	assert_int_equal(sqlite3_open(w->path, &db), SQLITE_OK);
	assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
	sqlite3_close(db);
}

static void refuses_newer_schema(void **state)
{
	struct world *w = *state;
	struct catalog *second = NULL;

	change_by_hand(w, "PRAGMA user_version = 99; PRAGMA application_id = 99");
	refused(w, catalog_open(w->path, &second, &w->err), HUSK_UNAVAILABLE, "newer husk");
	change_by_hand(w, "PRAGMA application_id = 0");
	refused(w, catalog_open(w->path, &second, &w->err), HUSK_UNAVAILABLE, "newer husk");
	assert_null(second);
}

/* A newer husk has only added things, and says so. */
static void uses_newer_schema_that_only_adds(void **state)
{
	struct world *w = *state;
	struct catalog *second = NULL;

	change_by_hand(w, "ALTER TABLE sandboxes ADD COLUMN mood TEXT; CREATE TABLE moods (name TEXT); PRAGMA "
			  "application_id = 99");
	assert_int_equal(catalog_open(w->path, &second, &w->err), 0);
	catalog_close(w->catalog);
	w->catalog = second;
	add(w, "sb-1", NULL, CATALOG_RUNNING);
	catalog_sandbox_free(get(w, "sb-1"));
}

static int64_t number_by_hand(struct world *w, const char *sql)
{
	sqlite3_stmt *statement;
	sqlite3 *db;

	assert_int_equal(sqlite3_open(w->path, &db), SQLITE_OK);
	assert_int_equal(sqlite3_prepare_v2(db, sql, -1, &statement, NULL), SQLITE_OK);
	assert_int_equal(sqlite3_step(statement), SQLITE_ROW);
	int64_t number = sqlite3_column_int64(statement, 0);
	sqlite3_finalize(statement);
	sqlite3_close(db);
	return number;
}

/* The step to schema 9 does not suit this catalog: it has a table of that name. */
static void tries_an_upgrade_on_a_copy(void **state)
{
	struct world *w = *state;
	struct catalog *second = NULL;

	add(w, "sb-1", NULL, CATALOG_RUNNING);
	change_by_hand(w, "DROP TRIGGER sandboxes_ended; DROP TRIGGER sandboxes_removed; DROP INDEX points_label;"
			  "DROP TRIGGER sandboxes_removed_effects; DROP TABLE effects;"
			  "DROP TRIGGER sandboxes_removed_recordings; DROP TABLE recordings;"
			  "ALTER TABLE sandboxes DROP COLUMN effect; ALTER TABLE sandboxes DROP COLUMN each_call;"
			  "ALTER TABLE sandboxes DROP COLUMN thinned; ALTER TABLE sandboxes DROP COLUMN origin;"
			  "ALTER TABLE snapshots DROP COLUMN moment;"
			  "ALTER TABLE sandboxes DROP COLUMN point; PRAGMA user_version = 8");
	refused(w, catalog_open(w->path, &second, &w->err), HUSK_UNAVAILABLE, "nothing was changed");
	assert_int_equal(number_by_hand(w, "PRAGMA user_version"), 8);
	change_by_hand(w, "DROP TABLE points");
	assert_int_equal(catalog_open(w->path, &second, &w->err), 0);
	catalog_close(w->catalog);
	w->catalog = second;
	catalog_sandbox_free(get(w, "sb-1"));
	assert_true(number_by_hand(w, "PRAGMA user_version") > 8);
	assert_true(number_by_hand(w, "PRAGMA application_id") > 8);
}

/* One that lost its tables, or says a schema that cannot be. */
static void refuses_what_was_tampered_with(void **state)
{
	struct world *w = *state;
	struct catalog *second = NULL;
	struct catalog_sandbox **list = NULL;

	change_by_hand(w, "DROP TABLE sandboxes");
	assert_int_equal(catalog_open(w->path, &second, &w->err), 0);
	refused(w, catalog_sandbox_list(second, ~0u, &list, &w->err), HUSK_UNAVAILABLE, "damaged");
	catalog_close(second);
	second = NULL;
	change_by_hand(w, "PRAGMA user_version = -7");
	refused(w, catalog_open(w->path, &second, &w->err), HUSK_UNAVAILABLE, "damaged");
	change_by_hand(w, "PRAGMA user_version = 0");
	refused(w, catalog_open(w->path, &second, &w->err), HUSK_UNAVAILABLE, "damaged");
	assert_null(second);
}

/* No bytes beside data is one that was emptied; no bytes and no data is a new one. */
static void refuses_an_emptied_one(void **state)
{
	struct world *w = *state;
	struct catalog *second = NULL;
	cleanup_free char *made = str_format("%s/snapshots/sn-1", w->directory);
	cleanup_free char *other = str_format("%s/other.db", w->directory);

	assert_int_equal(truncate(w->path, 0), 0);
	assert_int_equal(dir_make(made, 0700, &w->err), 0);
	refused(w, catalog_open(w->path, &second, &w->err), HUSK_UNAVAILABLE, "is empty");
	assert_int_equal(catalog_open(other, &second, &w->err), 0); /* moved away: one starts anew */
	catalog_close(second);
	second = NULL;
	assert_int_equal(dir_remove(made, &w->err), 0);
	assert_int_equal(truncate(other, 0), 0);
	assert_int_equal(catalog_open(other, &second, &w->err), 0);
	catalog_close(second);
}

/* ---- values of environments ---- */

/* Is it anywhere in the instance? */
static bool on_disk(struct world *w, const char *value)
{
	cleanup_free char *command = str_format("grep -raq '%s' '%s'", value, w->directory);

	return system(command) == 0;
}

static void forgets_values_with_the_sandbox(void **state)
{
	struct world *w = *state;
	struct catalog_sandbox row = sandbox("sb-1", "one", CATALOG_CREATING);
	struct catalog_snapshot shot = { .id = "sn-1", .template_name = "base", .environment = "{\"K\":\"VALUE-s\"}" };
	struct catalog_snapshot *kept = NULL;
	struct catalog *reader = NULL;

	row.environment = "{\"KEY\":\"VALUE-1\"}";
	assert_int_equal(catalog_open(w->path, &reader, &w->err), 0); /* stays open, as a server does */
	assert_int_equal(catalog_sandbox_add(w->catalog, &row, &w->err), 0);
	row.environment = "{\"KEY\":\"VALUE-2\"}";
	assert_int_equal(catalog_sandbox_update(w->catalog, &row, &w->err), 0);
	assert_false(on_disk(w, "VALUE-1"));
	struct catalog_sandbox *got = NULL;
	assert_int_equal(catalog_sandbox_get(reader, "one", &got, &w->err), 0);
	assert_string_equal(got->environment, row.environment);
	catalog_sandbox_free(got);
	assert_int_equal(catalog_snapshot_add(w->catalog, &shot, &w->err), 0);
	assert_int_equal(catalog_sandbox_end(w->catalog, "sb-1", "killed", &w->err), 0);
	assert_false(on_disk(w, "VALUE-2"));
	assert_int_equal(catalog_snapshot_get(reader, "sn-1", &kept, &w->err), 0);
	assert_string_equal(kept->environment, shot.environment);
	catalog_snapshot_free(kept);
	assert_int_equal(catalog_snapshot_remove(w->catalog, "sn-1", &w->err), 0);
	assert_false(on_disk(w, "VALUE"));
	catalog_close(reader);
}

static void sweeps_values_without_a_row(void **state)
{
	struct world *w = *state;
	cleanup_free char *left = str_format("%s/environments/sb-9", w->directory);

	add(w, "sb-1", "one", CATALOG_RUNNING);
	assert_int_equal(file_write_atomic(left, "{}", 2, 0600, &w->err), 0);
	assert_int_equal(catalog_values_sweep(w->catalog, &w->err), 0);
	assert_int_equal(access(left, F_OK), -1);
	struct catalog_sandbox *got = get(w, "one");
	assert_string_equal(got->environment, "{\"TOKEN\":\"x\"}");
	catalog_sandbox_free(got);
}

/* ---- sandboxes ---- */

static void keeps_every_field(void **state)
{
	struct world *w = *state;
	struct catalog_sandbox row = sandbox("sb-1", "one", CATALOG_CREATING);

	row.parent = "sb-0";
	row.memory_bytes = UINT64_MAX;
	row.pids = UINT32_MAX;
	row.persistent = row.warm = true;
	row.end_reason = "ttl";
	row.ended_ms = INT64_MAX;
	assert_int_equal(catalog_sandbox_add(w->catalog, &row, &w->err), 0);
	struct catalog_sandbox *got = get(w, "one");

	assert_string_equal(got->id, "sb-1");
	assert_string_equal(got->name, "one");
	assert_string_equal(got->template_name, "base");
	assert_string_equal(got->template_digest, "d1");
	assert_string_equal(got->parent, "sb-0");
	assert_string_equal(got->isolation, "gvisor");
	assert_string_equal(got->end_reason, "ttl");
	assert_string_equal(got->metadata, row.metadata);
	assert_string_equal(got->environment, row.environment);
	assert_int_equal(got->state, CATALOG_CREATING);
	assert_true(got->warm && got->persistent);
	assert_int_equal(got->created_ms, 1000);
	assert_int_equal(got->expires_ms, 2000);
	assert_true(got->ended_ms == INT64_MAX);
	assert_int_equal(got->idle_seconds, 30);
	assert_true(got->memory_bytes == UINT64_MAX && got->disk_bytes == 1ull << 33);
	assert_true(got->cpu_milli == 2000 && got->pids == UINT32_MAX && got->slot == 1);
	catalog_sandbox_free(got);
}

static void finds_by_id_and_name(void **state)
{
	struct world *w = *state;
	struct catalog_sandbox *row;

	add(w, "sb-old", "worker", CATALOG_RUNNING);
	assert_int_equal(catalog_sandbox_end(w->catalog, "sb-old", "killed", &w->err), 0);
	row = get(w, "worker"); /* ended, but nobody else has the name */
	assert_string_equal(row->id, "sb-old");
	catalog_sandbox_free(row);
	add(w, "sb-new", "worker", CATALOG_RUNNING);
	row = get(w, "worker");
	assert_string_equal(row->id, "sb-new");
	catalog_sandbox_free(row);
	add(w, "sb-thief", "sb-old", CATALOG_RUNNING);
	row = get(w, "sb-old"); /* an id wins over a name */
	assert_string_equal(row->id, "sb-old");
	catalog_sandbox_free(row);
}

static void suggests_what_was_meant(void **state)
{
	struct world *w = *state;
	struct catalog_sandbox *row = NULL;

	add(w, "sb-1", "builder", CATALOG_RUNNING);
	add(w, "sb-pool", NULL, CATALOG_POOL);
	refused(w, catalog_sandbox_get(w->catalog, "bulider", &row, &w->err), HUSK_NOT_FOUND,
		"sandbox 'bulider' not found; did you mean 'builder'? (husk ls)");
	refused(w, catalog_sandbox_get(w->catalog, "sb-pool", &row, &w->err), HUSK_NOT_FOUND, "'sb-pool' not found");
	refused(w, catalog_sandbox_get(w->catalog, "", &row, &w->err), HUSK_INVALID, "no sandbox given");
	refused(w, catalog_sandbox_get(w->catalog, "'; DROP TABLE sandboxes; --", &row, &w->err), HUSK_NOT_FOUND,
		"DROP");
	assert_null(row);
	catalog_sandbox_free(get(w, "sb-1"));
}

static void lists_by_state_newest_first(void **state)
{
	struct world *w = *state;
	struct catalog_sandbox **list = NULL;

	add(w, "sb-1", NULL, CATALOG_RUNNING);
	add(w, "sb-2", NULL, CATALOG_PAUSED);
	add(w, "sb-3", NULL, CATALOG_POOL);
	assert_int_equal(catalog_sandbox_list(w->catalog, 1u << CATALOG_RUNNING | 1u << CATALOG_PAUSED, &list, &w->err),
			 0);
	assert_string_equal(list[0]->id, "sb-2");
	assert_string_equal(list[1]->id, "sb-1");
	assert_null(list[2]);
	catalog_sandbox_list_free(list);
	assert_int_equal(catalog_sandbox_list(w->catalog, 0, &list, &w->err), 0);
	assert_null(list[0]);
	catalog_sandbox_list_free(list);
}

static void gives_each_its_slot_and_name(void **state)
{
	struct world *w = *state;
	struct catalog_sandbox row = sandbox("sb-4", "one", CATALOG_CREATING);

	assert_int_equal(add(w, "sb-1", "one", CATALOG_RUNNING), 1);
	assert_int_equal(add(w, "sb-2", NULL, CATALOG_RUNNING), 2);
	assert_int_equal(add(w, "sb-3", NULL, CATALOG_RUNNING), 3);
	refused(w, catalog_sandbox_add(w->catalog, &row, &w->err), HUSK_CONFLICT, "named 'one' already");
	assert_int_equal(row.slot, 0);
	row.id = "sb-1";
	refused(w, catalog_sandbox_add(w->catalog, &row, &w->err), HUSK_CONFLICT, "sb-1 exists");
	assert_int_equal(catalog_sandbox_end(w->catalog, "sb-2", "ttl", &w->err), 0);
	assert_int_equal(add(w, "sb-5", NULL, CATALOG_RUNNING), 2);
	assert_int_equal(catalog_sandbox_forget(w->catalog, "sb-1", &w->err), 0);
	assert_int_equal(add(w, "sb-6", "one", CATALOG_RUNNING), 1);
}

static void says_when_slots_run_out(void **state)
{
	struct world *w = *state;
	struct catalog_sandbox row = sandbox("sb-last", NULL, CATALOG_RUNNING);
	sqlite3 *db;

	add(w, "sb-first", NULL, CATALOG_RUNNING);
	assert_int_equal(sqlite3_open(w->path, &db), SQLITE_OK);
	assert_int_equal(
		sqlite3_exec(
			db,
			"WITH RECURSIVE n(i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < 16383) "
			"INSERT INTO sandboxes (id, template_name, template_digest, parent, isolation, end_reason, "
			"state, "
			"warm, created_ms, expires_ms, ended_ms, idle_seconds, persistent, memory_bytes, disk_bytes, "
			"cpu_milli, pids, slot, metadata, environment) "
			"SELECT 'x' || i, template_name, template_digest, parent, "
			"isolation, end_reason, state, warm, created_ms, expires_ms, ended_ms, idle_seconds, "
			"persistent, memory_bytes, disk_bytes, cpu_milli, pids, i, metadata, environment "
			"FROM n, sandboxes",
			NULL, NULL, NULL),
		SQLITE_OK);
	sqlite3_close(db);
	refused(w, catalog_sandbox_add(w->catalog, &row, &w->err), HUSK_LIMIT, "16383");
	assert_int_equal(catalog_sandbox_end(w->catalog, "x9000", "killed", &w->err), 0);
	assert_int_equal(catalog_sandbox_add(w->catalog, &row, &w->err), 0);
	assert_int_equal(row.slot, 9000);
}

static void moves_only_from_where_it_may(void **state)
{
	struct world *w = *state;
	unsigned running = 1u << CATALOG_RUNNING;

	add(w, "sb-1", NULL, CATALOG_RUNNING);
	assert_int_equal(catalog_sandbox_move(w->catalog, "sb-1", running, CATALOG_HIBERNATED, &w->err), 0);
	refused(w, catalog_sandbox_move(w->catalog, "sb-1", running, CATALOG_PAUSED, &w->err), HUSK_CONFLICT,
		"sandbox sb-1 is hibernated");
	refused(w, catalog_sandbox_move(w->catalog, "sb-9", running, CATALOG_PAUSED, &w->err), HUSK_NOT_FOUND, "sb-9");
	assert_int_equal(catalog_sandbox_end(w->catalog, "sb-1", "ttl", &w->err), 0);
	refused(w, catalog_sandbox_move(w->catalog, "sb-1", ~0u, CATALOG_RUNNING, &w->err), HUSK_CONFLICT,
		"ended (ttl)");
	refused(w, catalog_sandbox_move(w->catalog, "sb-1", ~0u, CATALOG_ENDED, &w->err), HUSK_INTERNAL, "reason");
}

static void updates_and_ends(void **state)
{
	struct world *w = *state;
	struct catalog_sandbox *row;

	add(w, "sb-0", "taken", CATALOG_RUNNING);
	add(w, "sb-1", NULL, CATALOG_CREATING);
	row = get(w, "sb-1");
	row->name = strdup("mine");
	row->state = CATALOG_RUNNING;
	row->pids = 7;
	row->expires_ms = 77;
	assert_int_equal(catalog_sandbox_update(w->catalog, row, &w->err), 0);
	assert_int_equal(catalog_sandbox_update(w->catalog, row, &w->err), 0); /* its own name is no conflict */
	free(row->name);
	row->name = strdup("taken");
	refused(w, catalog_sandbox_update(w->catalog, row, &w->err), HUSK_CONFLICT, "named 'taken' already");
	catalog_sandbox_free(row);

	assert_int_equal(catalog_sandbox_set_expiry(w->catalog, "sb-1", 99, true, &w->err), 0);
	assert_int_equal(catalog_sandbox_set_metadata(w->catalog, "sb-1", "{}", &w->err), 0);
	row = get(w, "mine");
	assert_true(row->pids == 7 && row->expires_ms == 99 && row->persistent && row->state == CATALOG_RUNNING);
	assert_string_equal(row->metadata, "{}");
	catalog_sandbox_free(row);

	assert_int_equal(catalog_sandbox_end(w->catalog, "sb-1", "killed", &w->err), 0);
	assert_int_equal(catalog_sandbox_end(w->catalog, "sb-1", "ttl", &w->err), 0);
	row = get(w, "sb-1");
	assert_string_equal(row->end_reason, "killed"); /* the first reason stays */
	assert_true(row->state == CATALOG_ENDED && row->slot == 0 && row->ended_ms > 0);
	assert_null(row->environment);
	row->state = CATALOG_RUNNING;
	refused(w, catalog_sandbox_update(w->catalog, row, &w->err), HUSK_GONE, "has ended (killed)");
	catalog_sandbox_free(row);
	refused(w, catalog_sandbox_set_expiry(w->catalog, "sb-1", 1, false, &w->err), HUSK_GONE, "has ended");
	refused(w, catalog_sandbox_end(w->catalog, "sb-9", "ttl", &w->err), HUSK_NOT_FOUND, "sb-9");
}

static void claims_what_fits(void **state)
{
	struct world *w = *state;
	struct catalog_sandbox *row = NULL;

	add(w, "sb-p", NULL, CATALOG_POOL);
	add(w, "sb-q", NULL, CATALOG_PREPARING);
	assert_int_equal(catalog_pool_count(w->catalog, "d1", 1ull << 33, false, &w->err), 2);
	assert_int_equal(catalog_pool_count(w->catalog, "d2", 1ull << 33, false, &w->err), 0);
	assert_int_equal(catalog_pool_claim(w->catalog, "d1", 1ull << 33, true, &row, &w->err), 0);
	assert_int_equal(catalog_pool_claim(w->catalog, "d1", 1ull << 32, false, &row, &w->err), 0);
	assert_int_equal(catalog_pool_claim(w->catalog, "d1", 1ull << 33, false, &row, &w->err), 1);
	assert_string_equal(row->id, "sb-p");
	assert_int_equal(row->state, CATALOG_CREATING);
	catalog_sandbox_free(row);
	row = get(w, "sb-p");
	assert_int_equal(row->state, CATALOG_CREATING);
	catalog_sandbox_free(row);
	row = NULL;
	assert_int_equal(catalog_pool_claim(w->catalog, "d1", 1ull << 33, false, &row, &w->err), 0);
	assert_null(row);
}

static void wakes_in_a_pool_entry(void **state)
{
	struct world *w = *state;
	struct catalog_sandbox *row = NULL;

	add(w, "sb-1", "sleeper", CATALOG_CREATING);
	assert_int_equal(add(w, "sb-p", NULL, CATALOG_POOL), 2);
	assert_int_equal(catalog_pool_claim(w->catalog, "d1", 1ull << 33, false, &row, &w->err), 1);
	catalog_sandbox_free(row);
	assert_int_equal(catalog_pool_adopt(w->catalog, "sb-1", "sb-p", &w->err), 0);
	row = get(w, "sleeper");
	assert_int_equal(row->slot, 2);
	catalog_sandbox_free(row);
	refused(w, catalog_pool_adopt(w->catalog, "sb-1", "sb-p", &w->err), HUSK_NOT_FOUND, "sb-p");
	assert_int_equal(add(w, "sb-2", NULL, CATALOG_RUNNING), 1);
	refused(w, catalog_pool_adopt(w->catalog, "sb-2", "sb-1", &w->err), HUSK_CONFLICT, "sb-2"); /* not waking */
	catalog_sandbox_free(get(w, "sleeper")); /* and the refusal left it alone */
}

/* ---- snapshots ---- */

static struct catalog_snapshot snapshot(char *id, char *name)
{
	return (struct catalog_snapshot){
		.id = id,
		.name = name,
		.sandbox = "sb-1",
		.template_name = "base",
		.template_digest = "d1",
		.isolation = "gvisor",
		.created_ms = 5,
		.memory_bytes = 6,
		.disk_bytes = 7,
		.cpu_milli = 8,
		.pids = 9,
		.environment = "{\"E\":\"1\"}",
		.metadata = "{\"M\":\"2\"}",
	};
}

static void snapshots_become_ready(void **state)
{
	struct world *w = *state;
	struct catalog_snapshot row = snapshot("sn-1", "before"), *got = NULL, **list = NULL;

	assert_int_equal(catalog_snapshot_add(w->catalog, &row, &w->err), 0);
	refused(w, catalog_snapshot_get(w->catalog, "before", &got, &w->err), HUSK_NOT_FOUND, "snapshot 'before'");
	assert_int_equal(catalog_snapshot_list(w->catalog, true, &list, &w->err), 0);
	assert_string_equal(list[0]->id, "sn-1");
	catalog_snapshot_list_free(list);
	assert_int_equal(catalog_snapshot_finish(w->catalog, "sn-1", 4096, &w->err), 0);
	assert_int_equal(catalog_snapshot_get(w->catalog, "before", &got, &w->err), 0);
	assert_true(got->ready && got->bytes == 4096 && got->created_ms == 5 && got->memory_bytes == 6);
	assert_true(got->disk_bytes == 7 && got->cpu_milli == 8 && got->pids == 9);
	assert_string_equal(got->sandbox, "sb-1");
	assert_string_equal(got->environment, "{\"E\":\"1\"}");
	assert_string_equal(got->metadata, "{\"M\":\"2\"}");
	catalog_snapshot_free(got);
	assert_int_equal(catalog_snapshot_list(w->catalog, true, &list, &w->err), 0);
	assert_null(list[0]);
	catalog_snapshot_list_free(list);

	row.id = "sn-2";
	refused(w, catalog_snapshot_add(w->catalog, &row, &w->err), HUSK_CONFLICT, "named 'before' already");
	row.name = NULL;
	assert_int_equal(catalog_snapshot_add(w->catalog, &row, &w->err), 0);
	refused(w, catalog_snapshot_get(w->catalog, "befor", &got, &w->err), HUSK_NOT_FOUND,
		"did you mean 'before'? (husk snapshot ls)");
	assert_int_equal(catalog_snapshot_remove(w->catalog, "sn-1", &w->err), 0);
	refused(w, catalog_snapshot_remove(w->catalog, "sn-1", &w->err), HUSK_NOT_FOUND, "sn-1");
	refused(w, catalog_snapshot_finish(w->catalog, "sn-9", 1, &w->err), HUSK_NOT_FOUND, "sn-9");
}

/* ---- templates ---- */

static void add_template(struct world *w, char *name, char *digest, int64_t created_ms)
{
	struct catalog_template row = { .name = name,
					.digest = digest,
					.description = "for tests",
					.isolation = "gvisor",
					.created_ms = created_ms,
					.bytes = 10,
					.disk_bytes = 20 };

	if (catalog_template_add(w->catalog, &row, &w->err))
		fail_msg("%s", w->err.message);
}

/* The digests of a list, joined, and the list freed. */
static void digests(struct catalog_template **list, const char *expected)
{
	cleanup_buf struct buf joined = { 0 };

	assert_int_equal(buf_append_string(&joined, ""), 0);
	for (size_t i = 0; list[i]; i++)
		assert_int_equal(buf_printf(&joined, "%s%s", i ? " " : "", list[i]->digest), 0);
	catalog_template_list_free(list);
	assert_string_equal(joined.data, expected);
}

static void template_names_point_at_the_newest(void **state)
{
	struct world *w = *state;
	struct catalog_template *row = NULL, **list = NULL;

	add_template(w, "base", "d1", 1);
	add_template(w, "base", "d2", 2);
	add_template(w, "agent", "d3", 3);
	assert_int_equal(catalog_template_get(w->catalog, "base", &row, &w->err), 0);
	assert_string_equal(row->digest, "d2");
	assert_string_equal(row->description, "for tests");
	assert_true(row->current && row->bytes == 10 && row->disk_bytes == 20);
	catalog_template_free(row);
	refused(w, catalog_template_get(w->catalog, "agnet", &row, &w->err), HUSK_NOT_FOUND,
		"template 'agnet' not found; did you mean 'agent'? (husk template ls)");
	assert_int_equal(catalog_template_list(w->catalog, false, &list, &w->err), 0);
	digests(list, "d3 d2");
	assert_int_equal(catalog_template_list(w->catalog, true, &list, &w->err), 0);
	digests(list, "d3 d2 d1");
	add_template(w, "base", "d1", 4); /* back to what it was */
	assert_int_equal(catalog_template_list(w->catalog, false, &list, &w->err), 0);
	digests(list, "d3 d1");
}

static int take_away(void *data, struct husk_error *err)
{
	(void)err;
	++*(unsigned *)data;
	return 0;
}

static int fail_to_take(void *data, struct husk_error *err)
{
	(void)data;
	return husk_fail(err, HUSK_INTERNAL, "it stays");
}

static void templates_in_use_stay(void **state)
{
	struct world *w = *state;
	struct catalog_snapshot taken = snapshot("sn-1", NULL);
	struct catalog_template **list = NULL;

	add_template(w, "base", "d1", 1);
	add_template(w, "base", "d2", 2);
	add_template(w, "twin", "d2", 3);
	add_template(w, "base", "d3", 4);
	add(w, "sb-1", NULL, CATALOG_HIBERNATED); /* of d1 */
	assert_int_equal(catalog_snapshot_add(w->catalog, &taken, &w->err), 0);
	assert_int_equal(catalog_template_unused(w->catalog, &list, &w->err), 0);
	digests(list, ""); /* d1 is used, d2 has another name */
	assert_int_equal(catalog_sandbox_end(w->catalog, "sb-1", "ttl", &w->err), 0);
	assert_int_equal(catalog_template_unused(w->catalog, &list, &w->err), 0);
	digests(list, ""); /* the snapshot still needs it */
	assert_int_equal(catalog_snapshot_remove(w->catalog, "sn-1", &w->err), 0);
	assert_int_equal(catalog_template_remove(w->catalog, "twin", &w->err), 0);
	refused(w, catalog_template_remove(w->catalog, "twin", &w->err), HUSK_NOT_FOUND, "twin");
	assert_int_equal(catalog_template_unused(w->catalog, &list, &w->err), 0);
	digests(list, "d1 d2");
	unsigned taken_away = 0;
	assert_int_equal(catalog_template_forget(w->catalog, "d1", take_away, &taken_away, &w->err), 1);
	assert_int_equal(catalog_template_forget(w->catalog, "d3", take_away, &taken_away, &w->err), 0); /* current */
	assert_int_equal(taken_away, 1);
	taken = snapshot("sn-2", NULL); /* of d2, since it was found to be unused */
	taken.template_digest = "d2";
	assert_int_equal(catalog_snapshot_add(w->catalog, &taken, &w->err), 0);
	assert_int_equal(catalog_template_forget(w->catalog, "d2", take_away, &taken_away, &w->err), 0);
	assert_int_equal(taken_away, 1);
	assert_int_equal(catalog_snapshot_remove(w->catalog, "sn-2", &w->err), 0);
	assert_int_equal(catalog_template_forget(w->catalog, "d2", fail_to_take, NULL, &w->err), -1);
	assert_int_equal(catalog_template_forget(w->catalog, "d2", take_away, &taken_away, &w->err), 1);
	assert_int_equal(catalog_template_list(w->catalog, true, &list, &w->err), 0);
	digests(list, "d3");
}

/* ---- events ---- */

static void events_are_followed(void **state)
{
	struct world *w = *state;
	struct husk_event *events = NULL;
	size_t count = 0;

	assert_int_equal(catalog_events(w->catalog, NULL, 0, 10, &events, &count, &w->err), 0);
	assert_int_equal(count, 0);
	husk_event_list_free(events, count);
	assert_int_equal(catalog_event(w->catalog, "sb-1", "created", "{\"x\":1}", &w->err), 0);
	assert_int_equal(catalog_event(w->catalog, NULL, "template", NULL, &w->err), 0);
	assert_int_equal(catalog_event(w->catalog, "sb-1", "ended", NULL, &w->err), 0);
	assert_int_equal(catalog_events(w->catalog, NULL, 0, 2, &events, &count, &w->err), 0);
	assert_int_equal(count, 2);
	assert_string_equal(events[0].detail, "{\"x\":1}");
	assert_null(events[1].sandbox);
	assert_string_equal(events[1].detail, "{}");
	assert_true(events[0].at_ms > 0 && events[1].sequence > events[0].sequence);
	int64_t after = events[0].sequence;

	husk_event_list_free(events, count);
	assert_int_equal(catalog_events(w->catalog, "sb-1", after, 10, &events, &count, &w->err), 0);
	assert_int_equal(count, 1);
	assert_string_equal(events[0].kind, "ended");
	husk_event_list_free(events, count);
}

static void trimmed_numbers_do_not_come_back(void **state)
{
	struct world *w = *state;
	struct husk_event *events = NULL;
	size_t count = 0;

	for (int i = 0; i < 5; i++)
		assert_int_equal(catalog_event(w->catalog, NULL, "tick", NULL, &w->err), 0);
	assert_int_equal(catalog_events_trim(w->catalog, 10, &w->err), 0);
	assert_int_equal(catalog_events_trim(w->catalog, 2, &w->err), 0);
	assert_int_equal(catalog_events(w->catalog, NULL, 0, 0, &events, &count, &w->err), 0);
	assert_int_equal(count, 2);
	assert_int_equal(events[0].sequence, 4);
	husk_event_list_free(events, count);
	assert_int_equal(catalog_events_trim(w->catalog, 0, &w->err), 0);
	assert_int_equal(catalog_event(w->catalog, NULL, "tick", NULL, &w->err), 0);
	assert_int_equal(catalog_events(w->catalog, NULL, 0, 0, &events, &count, &w->err), 0);
	assert_int_equal(count, 1);
	assert_int_equal(events[0].sequence, 6);
	husk_event_list_free(events, count);
}

static int64_t take_point(struct world *w, char *label)
{
	struct catalog_point row = { .sandbox = "sb-1", .label = label, .created_ms = 5, .traffic = "[]" };

	if (catalog_point_add(w->catalog, &row, &w->err) ||
	    catalog_point_finish(w->catalog, "sb-1", row.number, 7, 0, &w->err))
		fail_msg("%s", w->err.message);
	return row.number;
}

/* "1<0 3<1": each ready one, and the one before it; where the sandbox is stands behind. */
static void assert_points(struct world *w, const char *wanted)
{
	cleanup_buf struct buf found = { 0 };
	struct catalog_point **list = NULL;
	struct catalog_sandbox *row = get(w, "sb-1");

	assert_int_equal(catalog_point_list(w->catalog, "sb-1", false, &list, &w->err), 0);
	for (size_t i = 0; list[i]; i++)
		buf_printf(&found, "%lld<%lld ", (long long)list[i]->number, (long long)list[i]->parent);
	buf_printf(&found, "at %lld", (long long)row->point);
	assert_string_equal(found.data, wanted);
	catalog_point_list_free(list);
	catalog_sandbox_free(row);
}

static void points_are_a_sandboxs_own(void **state)
{
	struct world *w = *state;
	struct catalog_point half = { .sandbox = "sb-1", .label = "half" }, *found = NULL, **list = NULL;

	add(w, "sb-1", NULL, CATALOG_RUNNING);
	assert_int_equal(catalog_point_get(w->catalog, "sb-1", "1", &found, &w->err), -1);
	assert_non_null(strstr(w->err.message, "take one first"));
	assert_int_equal(take_point(w, "first"), 1);
	assert_int_equal(take_point(w, NULL), 2);
	assert_int_equal(catalog_point_reach(w->catalog, "sb-1", 1, &w->err), 0);
	assert_int_equal(take_point(w, NULL), 3);
	assert_points(w, "1<0 2<1 3<1 at 3");

	assert_int_equal(catalog_point_get(w->catalog, "sb-1", "first", &found, &w->err), 0);
	assert_int_equal(found->number, 1);
	assert_int_equal(found->bytes, 7);
	assert_string_equal(found->traffic, "[]");
	catalog_point_free(found);
	struct catalog_point again = { .sandbox = "sb-1", .label = "first" };
	assert_int_equal(catalog_point_add(w->catalog, &again, &w->err), -1);
	assert_int_equal(w->err.code, HUSK_CONFLICT);

	assert_int_equal(catalog_point_add(w->catalog, &half, &w->err), 0); /* not ready: nobody finds it */
	assert_int_equal(catalog_point_get(w->catalog, "sb-1", "half", &found, &w->err), -1);
	assert_int_equal(w->err.code, HUSK_NOT_FOUND);
	assert_int_equal(catalog_point_list(w->catalog, "sb-1", true, &list, &w->err), 0);
	assert_int_equal(list[0]->number, 4);
	catalog_point_list_free(list);

	assert_int_equal(catalog_point_remove(w->catalog, "sb-1", 1, &w->err), 0);
	assert_points(w, "2<0 3<0 at 3");
	assert_int_equal(catalog_point_remove(w->catalog, "sb-1", 3, &w->err), 0);
	assert_points(w, "2<0 at 0");
	assert_int_equal(catalog_sandbox_end(w->catalog, "sb-1", "killed", &w->err), 0);
	assert_points(w, "at 0");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(opens_private_and_again),
		TEST(refuses_newer_schema),
		TEST(uses_newer_schema_that_only_adds),
		TEST(tries_an_upgrade_on_a_copy),
		TEST(refuses_garbage),
		TEST(refuses_what_was_tampered_with),
		TEST(refuses_an_emptied_one),
		TEST(forgets_values_with_the_sandbox),
		TEST(sweeps_values_without_a_row),
		TEST(keeps_every_field),
		TEST(finds_by_id_and_name),
		TEST(suggests_what_was_meant),
		TEST(lists_by_state_newest_first),
		TEST(gives_each_its_slot_and_name),
		TEST(says_when_slots_run_out),
		TEST(moves_only_from_where_it_may),
		TEST(updates_and_ends),
		TEST(claims_what_fits),
		TEST(wakes_in_a_pool_entry),
		TEST(snapshots_become_ready),
		TEST(points_are_a_sandboxs_own),
		TEST(template_names_point_at_the_newest),
		TEST(templates_in_use_stay),
		TEST(events_are_followed),
		TEST(trimmed_numbers_do_not_come_back),
	};

	return cmocka_run_group_tests_name("catalog", tests, NULL, NULL);
}
