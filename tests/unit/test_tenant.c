/*
 * Tenants: what one sees of another (nothing), quotas, tokens, idempotency keys as rows, cursors, signatures, and the
 * upgrade of a catalog that was made before there were tenants. A real instance in a directory of its own, without
 * machines behind its rows.
 */
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "instance/contact.h"
#include "instance/instance.h"

struct world {
	char directory[32];
	struct husk *husk;
	struct husk *red, *blue; /* tenants; red has quotas: 2 sandboxes, 3 GiB, 1000 bytes of snapshots */
	struct husk_error err;
};

static struct husk *tenant(struct world *w, char *name, uint32_t sandboxes, uint64_t memory, uint64_t snapshots)
{
	struct husk_token token = {
		.tenant = name, .max_sandboxes = sandboxes, .max_memory_bytes = memory, .max_snapshot_bytes = snapshots
	};
	struct husk *view = NULL;

	if (husk_as(w->husk, &token, &view, &w->err))
		fail_msg("%s", w->err.message);
	return view;
}

static int set_up(void **state)
{
	struct world *w = calloc(1, sizeof *w);

	assert_non_null(w);
	strcpy(w->directory, "/tmp/husk-tenant-XXXXXX");
	assert_non_null(mkdtemp(w->directory));
	assert_int_equal(husk_open(w->directory, &w->husk, &w->err), 0);
	w->red = tenant(w, "red", 2, 3ull << 30, 1000);
	w->blue = tenant(w, "blue", 0, 0, 0);
	*state = w;
	return 0;
}

static int tear_down(void **state)
{
	struct world *w = *state;

	husk_close(w->red);
	husk_close(w->blue);
	husk_close(w->husk);
	assert_int_equal(dir_remove(w->directory, &w->err), 0);
	free(w);
	return 0;
}

static struct catalog_sandbox sandbox(char *id, char *name)
{
	return (struct catalog_sandbox){ .id = id,
					 .name = name,
					 .template_name = "base",
					 .template_digest = "d1",
					 .isolation = "gvisor",
					 .state = CATALOG_HIBERNATED,
					 .created_ms = time_wall_ms(),
					 .persistent = true,
					 .memory_bytes = 1ull << 30 };
}

static int try_add(struct world *w, struct husk *view, char *id, char *name, enum catalog_state as)
{
	struct catalog_sandbox row = sandbox(id, name);

	row.state = as;
	return catalog_sandbox_add(view->catalog, &row, &w->err);
}

static void add(struct world *w, struct husk *view, char *id, char *name)
{
	if (try_add(w, view, id, name, CATALOG_HIBERNATED))
		fail_msg("%s", w->err.message);
}

static void refused(struct world *w, int result, enum husk_code code, const char *part)
{
	assert_int_equal(result, -1);
	assert_int_equal(w->err.code, code);
	if (!strstr(w->err.message, part))
		fail_msg("'%s' does not say '%s'", w->err.message, part);
}

static void listed(struct world *w, struct husk *view, const struct husk_filter *filter, const char *expected)
{
	cleanup_buf struct buf joined = { 0 };
	struct husk_sandbox **list = NULL;

	assert_int_equal(husk_list(view, filter, &list, &w->err), 0);
	for (size_t i = 0; list[i]; i++)
		assert_int_equal(buf_printf(&joined, "%s%s", i ? " " : "", list[i]->id), 0);
	husk_sandbox_list_free(list);
	assert_string_equal(joined.data ? joined.data : "", expected);
}

/* ---- apart ---- */

static void sees_nothing_of_another(void **state)
{
	struct world *w = *state;
	struct husk_sandbox *found = NULL;
	char missing[sizeof w->err.message];
	char *logs = NULL;

	add(w, w->red, "sb-redred0001", "worker");
	add(w, w->blue, "sb-blueblue01", "worker"); /* names are each tenant's own */
	add(w, w->husk, "sb-instance01", "worker");
	listed(w, w->red, NULL, "sb-redred0001");
	listed(w, w->blue, NULL, "sb-blueblue01");
	assert_int_equal(husk_inspect(w->red, "worker", &found, &w->err), 0);
	assert_string_equal(found->id, "sb-redred0001");
	assert_string_equal(found->tenant, "red");
	husk_sandbox_free(found);

	/* Another's thing and a thing that is not there are told in the same words, near misses included. */
	refused(w, husk_inspect(w->red, "sb-blueblue02", &found, &w->err), HUSK_NOT_FOUND, "not found (husk ls)");
	strcpy(missing, w->err.message);
	refused(w, husk_inspect(w->red, "sb-blueblue01", &found, &w->err), HUSK_NOT_FOUND, "not found (husk ls)");
	missing[strcspn(missing, "2")] = '1';
	assert_string_equal(w->err.message, missing);

	refused(w, husk_kill(w->red, "sb-blueblue01", &w->err), HUSK_NOT_FOUND, "not found");
	refused(w, husk_extend(w->red, "sb-blueblue01", 60, false, NULL, &w->err), HUSK_NOT_FOUND, "not found");
	refused(w, husk_set_metadata(w->red, "sb-blueblue01", NULL, 0, &w->err), HUSK_NOT_FOUND, "not found");
	refused(w, husk_logs(w->red, "sb-blueblue01", HUSK_LOG_CONSOLE, NULL, &logs, &w->err), HUSK_NOT_FOUND,
		"not found");
	refused(w, husk_connect(w->red, "sb-blueblue01", &w->err), HUSK_NOT_FOUND, "not found");
	refused(w, husk_wake(w->red, "sb-instance01", &w->err), HUSK_NOT_FOUND, "not found");
	refused(w, husk_fork(w->red, "sb-blueblue01", 1, NULL, NULL, &w->err), HUSK_NOT_FOUND, "not found");
	refused(w, husk_snapshot_create(w->red, "sb-blueblue01", NULL, NULL, &w->err), HUSK_NOT_FOUND, "not found");
}

static void instance_sees_all_by_id(void **state)
{
	struct world *w = *state;
	struct husk_sandbox *found = NULL;

	add(w, w->red, "sb-redred0001", "worker");
	refused(w, husk_inspect(w->husk, "worker", &found, &w->err), HUSK_NOT_FOUND, "not found");
	assert_int_equal(husk_inspect(w->husk, "sb-redred0001", &found, &w->err), 0);
	assert_string_equal(found->tenant, "red");
	husk_sandbox_free(found);
	add(w, w->husk, "sb-instance01", "worker");
	assert_int_equal(husk_inspect(w->husk, "worker", &found, &w->err), 0);
	assert_string_equal(found->id, "sb-instance01");
	assert_null(found->tenant);
	husk_sandbox_free(found);
	refused(w, try_add(w, w->red, "sb-redred0002", "worker", CATALOG_HIBERNATED), HUSK_CONFLICT, "named 'worker'");
}

static void events_are_the_tenants(void **state)
{
	struct world *w = *state;
	struct husk_event *events = NULL;
	size_t count = 0;

	add(w, w->red, "sb-redred0001", NULL);
	add(w, w->blue, "sb-blueblue01", NULL);
	/* as a supervisor writes them, through a handle without a tenant */
	assert_int_equal(catalog_event(w->husk->catalog, "sb-redred0001", "created", NULL, &w->err), 0);
	assert_int_equal(catalog_event(w->husk->catalog, "sb-blueblue01", "created", NULL, &w->err), 0);
	assert_int_equal(catalog_event(w->husk->catalog, NULL, "template", NULL, &w->err), 0);
	assert_int_equal(catalog_event(w->blue->catalog, NULL, "template", NULL, &w->err), 0);
	assert_int_equal(husk_events(w->red, NULL, 0, 0, 0, &events, &count, &w->err), 0);
	assert_int_equal(count, 1);
	assert_string_equal(events[0].sandbox, "sb-redred0001");
	husk_event_list_free(events, count);
	assert_int_equal(husk_events(w->blue, NULL, 0, 0, 0, &events, &count, &w->err), 0);
	assert_int_equal(count, 2);
	husk_event_list_free(events, count);
	assert_int_equal(husk_events(w->husk, NULL, 0, 0, 0, &events, &count, &w->err), 0);
	assert_int_equal(count, 4);
	husk_event_list_free(events, count);
	refused(w, husk_events(w->red, "sb-blueblue01", 0, 0, 0, &events, &count, &w->err), HUSK_NOT_FOUND,
		"not found");
}

static void put_snapshot(struct world *w, struct husk *view, char *id, char *name)
{
	struct catalog_snapshot row = { .id = id, .name = name, .template_digest = "d1", .created_ms = 1 };

	assert_int_equal(catalog_snapshot_add(view->catalog, &row, &w->err), 0);
}

static void snapshots_are_apart(void **state)
{
	struct world *w = *state;
	struct husk_snapshot **list = NULL;
	struct husk_create_options from = { .snapshot = "sn-blue" };

	put_snapshot(w, w->blue, "sn-blue", "ready");
	put_snapshot(w, w->red, "sn-red", "ready");
	assert_int_equal(catalog_snapshot_finish(w->blue->catalog, "sn-blue", 5000, &w->err), 0);
	assert_int_equal(catalog_snapshot_finish(w->red->catalog, "sn-red", 900, &w->err), 0);
	assert_int_equal(husk_snapshot_list(w->red, &list, &w->err), 0);
	assert_string_equal(list[0]->id, "sn-red");
	assert_string_equal(list[0]->tenant, "red");
	assert_null(list[1]);
	husk_snapshot_list_free(list);
	refused(w, husk_snapshot_remove(w->red, "sn-blue", &w->err), HUSK_NOT_FOUND, "snapshot 'sn-blue' not found");
	refused(w, husk_create(w->red, &from, NULL, &w->err), HUSK_NOT_FOUND, "snapshot 'sn-blue' not found");

	put_snapshot(w, w->red, "sn-red2", NULL);
	refused(w, catalog_snapshot_finish(w->red->catalog, "sn-red2", 200, &w->err), HUSK_LIMIT,
		"max_snapshot_bytes does not allow it: snapshots, checkpoints and recordings take 900 of 1000 bytes, "
		"and this needs 200 more");
	assert_int_equal(catalog_snapshot_finish(w->red->catalog, "sn-red2", 100, &w->err), 0);
	refused(w, catalog_quota_snapshots(w->red->catalog, &w->err), HUSK_LIMIT, "1000 of 1000");
}

static void put_template(struct world *w, struct husk *view, char *name, char *digest)
{
	struct catalog_template row = { .name = name, .digest = digest, .isolation = "gvisor", .disk_bytes = 1 << 20 };

	assert_int_equal(catalog_template_add(view->catalog, &row, &w->err), 0);
}

static void template_digest_is(struct world *w, struct husk *view, const char *name, const char *digest)
{
	struct catalog_template *row = NULL;

	if (catalog_template_get(view->catalog, name, &row, &w->err))
		fail_msg("%s", w->err.message);
	assert_string_equal(row->digest, digest);
	catalog_template_free(row);
}

static void own_templates_come_first(void **state)
{
	struct world *w = *state;
	struct husk_template **list = NULL;
	struct catalog_template *row = NULL;

	put_template(w, w->husk, "base", "d1");
	put_template(w, w->red, "base", "d2");
	put_template(w, w->red, "redbox", "d3");
	put_template(w, w->red, "redbox", "d4"); /* a newer version of it */
	template_digest_is(w, w->red, "base", "d2");
	template_digest_is(w, w->red, "redbox", "d4");
	template_digest_is(w, w->blue, "base", "d1");
	template_digest_is(w, w->husk, "base", "d1");
	refused(w, catalog_template_get(w->blue->catalog, "redbax", &row, &w->err), HUSK_NOT_FOUND,
		"template 'redbax' not found (husk template ls)");
	assert_int_equal(husk_template_list(w->red, &list, &w->err), 0);
	assert_string_equal(list[0]->digest, "d2");
	assert_string_equal(list[0]->tenant, "red");
	assert_string_equal(list[1]->digest, "d4");
	assert_null(list[2]);
	husk_template_list_free(list);
	refused(w, husk_template_remove(w->blue, "base", &w->err), HUSK_DENIED, "belongs to the instance");
	refused(w, husk_template_remove(w->blue, "redbox", &w->err), HUSK_NOT_FOUND, "not found");
	assert_int_equal(husk_template_remove(w->red, "base", &w->err), 0);
	template_digest_is(w, w->red, "base", "d1");
}

static void owner_only(void **state)
{
	struct world *w = *state;
	struct husk_check *checks = NULL;
	struct husk_token **tokens = NULL;
	struct husk *view = NULL;
	size_t count = 0;

	refused(w, husk_gc(w->red, false, NULL, &w->err), HUSK_DENIED, "owner");
	refused(w, husk_leaks(w->red, &checks, &count, &w->err), HUSK_DENIED, "owner");
	refused(w, husk_doctor(w->red, &checks, &count, &w->err), HUSK_DENIED, "owner");
	refused(w, husk_token_list(w->red, &tokens, &w->err), HUSK_DENIED, "owner");
	refused(w, husk_token_revoke(w->red, "x", &w->err), HUSK_DENIED, "owner");
	refused(w, husk_as(w->red, &(struct husk_token){ .tenant = "blue" }, &view, &w->err), HUSK_DENIED, "owner");
	/* A name that is missing is not the instance. */
	refused(w, husk_as(w->husk, &(struct husk_token){ .name = "x" }, &view, &w->err), HUSK_INTERNAL,
		"one of the two");
	refused(w, husk_as(w->husk, &(struct husk_token){ .tenant = "blue", .admin = true }, &view, &w->err),
		HUSK_INTERNAL, "one of the two");
}

/* ---- quotas ---- */

static void quotas_hold(void **state)
{
	struct world *w = *state;
	unsigned asleep = 1u << CATALOG_HIBERNATED;
	struct catalog_sandbox large = sandbox("sb-redred0002", NULL);

	assert_int_equal(try_add(w, w->red, "sb-redred0001", NULL, CATALOG_RUNNING), 0);
	large.state = CATALOG_CREATING;
	large.memory_bytes = 5ull << 29; /* 2.5 GiB */
	refused(w, catalog_sandbox_add(w->red->catalog, &large, &w->err), HUSK_LIMIT,
		"max_memory_bytes does not allow it: 1073741824 of 3221225472 bytes");
	large.memory_bytes = 2ull << 30;
	assert_int_equal(catalog_sandbox_add(w->red->catalog, &large, &w->err), 0);
	refused(w, try_add(w, w->red, "sb-redred0003", NULL, CATALOG_CREATING), HUSK_LIMIT,
		"max_sandboxes does not allow it: 2 of 2 sandboxes are live");
	refused(w, catalog_quota(w->red->catalog, 1, 0, &w->err), HUSK_LIMIT, "max_sandboxes");
	assert_int_equal(try_add(w, w->blue, "sb-blueblue01", NULL, CATALOG_RUNNING), 0);

	/* One that sleeps counts, but not its memory; to wake, it needs that again. */
	assert_int_equal(catalog_sandbox_end(w->husk->catalog, "sb-redred0001", "killed", &w->err), 0);
	add(w, w->red, "sb-redred0003", NULL);
	assert_int_equal(catalog_sandbox_move(w->red->catalog, "sb-redred0003", asleep, CATALOG_CREATING, &w->err), 0);
	assert_int_equal(catalog_sandbox_end(w->husk->catalog, "sb-redred0003", "killed", &w->err), 0);
	struct catalog_sandbox sleeper = sandbox("sb-redred0004", NULL);
	sleeper.memory_bytes = 5ull << 29;
	struct husk *roomy = tenant(w, "red", 0, 0, 0);
	assert_int_equal(catalog_sandbox_add(roomy->catalog, &sleeper, &w->err), 0);
	refused(w, catalog_sandbox_move(w->red->catalog, "sb-redred0004", asleep, CATALOG_CREATING, &w->err),
		HUSK_LIMIT, "max_memory_bytes");
	assert_int_equal(catalog_sandbox_move(roomy->catalog, "sb-redred0004", asleep, CATALOG_CREATING, &w->err), 0);
	husk_close(roomy);
}

/* ---- tokens ---- */

static void tokens_open_and_close(void **state)
{
	struct world *w = *state;
	struct husk_token_options options = { .name = "ci", .tenant = "team", .max_sandboxes = 3 };
	struct husk_token *token = NULL, *again = NULL;
	struct husk_token **list = NULL;
	cleanup_free char *secret = NULL;
	cleanup_free char *other = NULL;

	assert_int_equal(husk_token_create(w->husk, &options, &secret, &token, &w->err), 0);
	assert_int_equal(strlen(secret), 45);
	assert_true(str_starts(secret, "husk_"));
	assert_string_equal(token->tenant, "team");
	refused(w, husk_token_create(w->husk, &options, &other, NULL, &w->err), HUSK_CONFLICT, "named 'ci'");
	assert_int_equal(husk_token_check(w->husk, secret, &again, &w->err), 0);
	assert_string_equal(again->id, token->id);
	assert_int_equal(again->max_sandboxes, 3);
	husk_token_free(again);
	refused(w, husk_token_check(w->husk, "husk_0000000000000000000000000000000000000000", &again, &w->err),
		HUSK_DENIED, "not known");
	refused(w, husk_token_check(w->husk, NULL, &again, &w->err), HUSK_DENIED, "not known");

	/* Nothing of the secret is on disk. */
	cleanup_free char *database = path_catalog(&w->husk->paths);
	cleanup_free char *log = str_format("%s-wal", database);
	size_t size = 0;
	cleanup_free char *bytes = file_read(log, 64u << 20, &size, &w->err);
	assert_non_null(bytes);
	assert_null(memmem(bytes, size, secret + 5, 40));

	refused(w, husk_token_revoke(w->husk, "cj", &w->err), HUSK_NOT_FOUND, "did you mean 'ci'?");
	assert_int_equal(husk_token_revoke(w->husk, "ci", &w->err), 0);
	refused(w, husk_token_check(w->husk, secret, &again, &w->err), HUSK_DENIED, "token 'ci' was revoked");
	assert_int_equal(husk_token_create(w->husk, &options, &other, NULL, &w->err), 0); /* the name is free again */
	assert_string_not_equal(secret, other);
	assert_int_equal(husk_token_list(w->husk, &list, &w->err), 0);
	assert_true(list[0]->revoked && !list[1]->revoked && !list[2]);
	husk_token_list_free(list);
	husk_token_free(token);
}

static void tokens_expire_and_are_checked(void **state)
{
	struct world *w = *state;
	struct husk_token *token = NULL;
	cleanup_free char *secret = NULL;
	sqlite3 *db;

	assert_int_equal(
		husk_token_create(w->husk,
				  &(struct husk_token_options){ .name = "root", .admin = true, .ttl_seconds = 60 },
				  &secret, &token, &w->err),
		0);
	assert_null(token->tenant);
	assert_true(token->expires_ms - token->created_ms == 60000);
	husk_token_free(token);
	cleanup_free char *database = path_catalog(&w->husk->paths);
	assert_int_equal(sqlite3_open(database, &db), SQLITE_OK);
	assert_int_equal(sqlite3_exec(db, "UPDATE tokens SET expires_ms = 1", NULL, NULL, NULL), SQLITE_OK);
	sqlite3_close(db);
	refused(w, husk_token_check(w->husk, secret, &token, &w->err), HUSK_DENIED, "token 'root' has expired");

	static const struct {
		struct husk_token_options options;
		const char *field;
	} bad[] = {
		{ { .name = NULL }, "name" },
		{ { .name = "Not A Name" }, "name" },
		{ { .name = "x", .tenant = "../x" }, "tenant" },
		{ { .name = "x", .tenant = "y", .admin = true }, "tenant" },
		{ { .name = "x", .admin = true, .max_sandboxes = 1 }, "admin" },
		{ { .name = "x", .ttl_seconds = -1 }, "ttl_seconds" },
	};
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		char *none = NULL;
		refused(w, husk_token_create(w->husk, &bad[i].options, &none, NULL, &w->err), HUSK_INVALID, "");
		assert_string_equal(w->err.field, bad[i].field);
		assert_null(none);
	}
}

/* ---- keys, cursors, fields ---- */

static void keys_are_kept_a_day(void **state)
{
	struct world *w = *state;
	struct catalog_sandbox row = sandbox("sb-blueblue01", NULL), *found = NULL;

	row.idempotency_key = "k1";
	row.request = "hash";
	assert_int_equal(catalog_sandbox_add(w->blue->catalog, &row, &w->err), 0);
	assert_int_equal(catalog_sandbox_by_key(w->blue->catalog, "k1", &found, &w->err), 1);
	assert_string_equal(found->id, "sb-blueblue01");
	assert_string_equal(found->request, "hash");
	catalog_sandbox_free(found);
	assert_int_equal(catalog_sandbox_by_key(w->red->catalog, "k1", &found, &w->err), 0);
	row.id = "sb-redred0001";
	assert_int_equal(catalog_sandbox_add(w->red->catalog, &row, &w->err), 0); /* each tenant has its own keys */
	row.id = "sb-blueblue02";
	refused(w, catalog_sandbox_add(w->blue->catalog, &row, &w->err), HUSK_CONFLICT, "idempotency key");

	/* the same request again, and another one with its key */
	struct husk_create_options again = { .idempotency_key = "k1" };
	refused(w, husk_create(w->blue, &again, NULL, &w->err), HUSK_CONFLICT, "was used for another request");

	row.id = "sb-instance01";
	row.created_ms = time_wall_ms() - 25ll * 3600 * 1000;
	assert_int_equal(catalog_sandbox_add(w->husk->catalog, &row, &w->err), 0);
	assert_int_equal(catalog_sandbox_by_key(w->husk->catalog, "k1", &found, &w->err), 0);
	row.id = "sb-instance02";
	row.created_ms = time_wall_ms();
	assert_int_equal(catalog_sandbox_add(w->husk->catalog, &row, &w->err), 0); /* the old one gave it up */
	assert_int_equal(catalog_sandbox_by_key(w->husk->catalog, "k1", &found, &w->err), 1);
	assert_string_equal(found->id, "sb-instance02");
	catalog_sandbox_free(found);
}

static void lists_in_pages(void **state)
{
	struct world *w = *state;
	struct husk_sandbox **list = NULL;
	char ids[5][16];

	for (size_t i = 0; i < 5; i++) {
		snprintf(ids[i], sizeof ids[i], "sb-page%zu", i);
		struct catalog_sandbox row = sandbox(ids[i], NULL);
		row.created_ms = 1000 + (int64_t)i / 2; /* some of the same millisecond */
		row.template_name = i == 3 ? "agent" : "base";
		row.metadata = i % 2 ? "{\"odd\":\"yes\"}" : "{}";
		assert_int_equal(catalog_sandbox_add(w->blue->catalog, &row, &w->err), 0);
	}
	add(w, w->red, "sb-redred0001", NULL);
	struct husk_pair odd = { "odd", "yes" };
	listed(w, w->blue, &(struct husk_filter){ .limit = 2 }, "sb-page4 sb-page3");
	listed(w, w->blue, &(struct husk_filter){ .limit = 2, .after = "sb-page3" }, "sb-page2 sb-page1");
	listed(w, w->blue, &(struct husk_filter){ .limit = 2, .after = "sb-page1" }, "sb-page0");
	listed(w, w->blue, &(struct husk_filter){ .after = "sb-page0" }, "");
	listed(w, w->blue, &(struct husk_filter){ .template_name = "agent" }, "sb-page3");
	listed(w, w->blue, &(struct husk_filter){ .metadata = &odd, .metadata_count = 1, .limit = 1 }, "sb-page3");
	listed(w, w->blue,
	       &(struct husk_filter){ .metadata = &odd, .metadata_count = 1, .limit = 1, .after = "sb-page3" },
	       "sb-page1");
	assert_int_equal(catalog_sandbox_end(w->blue->catalog, "sb-page3", "killed", &w->err), 0);
	listed(w, w->blue, &(struct husk_filter){ .limit = 1, .after = "sb-page3" }, "sb-page2"); /* ended meanwhile */
	refused(w, husk_list(w->blue, &(struct husk_filter){ .after = "sb-redred0001" }, &list, &w->err), HUSK_INVALID,
		"cursor");
	assert_string_equal(w->err.field, "cursor");
}

static void fields_are_named(void **state)
{
	struct world *w = *state;
	struct husk_pair bad = { "1X", "v" };
	const struct {
		struct husk_create_options options;
		const char *field;
	} cases[] = {
		{ { .name = "No Name" }, "name" },
		{ { .ttl_seconds = -1 }, "ttl_seconds" },
		{ { .idle_seconds = -1 }, "idle_seconds" },
		{ { .memory_bytes = 1 }, "memory" },
		{ { .disk_bytes = 1 }, "disk" },
		{ { .cpu_milli = 1 }, "cpus" },
		{ { .pids = 1 }, "pids" },
		{ { .isolation = "hope" }, "isolation" },
		{ { .template_name = "a", .snapshot = "b" }, "snapshot" },
		{ { .environment = &bad, .environment_count = 1 }, "env" },
		{ { .idempotency_key = "a b" }, "idempotency_key" },
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		refused(w, husk_create(w->husk, &cases[i].options, NULL, &w->err), HUSK_INVALID, "");
		assert_string_equal(w->err.field, cases[i].field);
	}
	refused(w, husk_fork(w->husk, "x", 0, NULL, NULL, &w->err), HUSK_INVALID, "count");
	assert_string_equal(w->err.field, "count");
}

/* ---- signing ---- */

static void *sign(void *data)
{
	char *signature = NULL;

	assert_int_equal(husk_sign(data, "text", &signature, NULL), 0);
	return signature;
}

static void signs_with_one_key(void **state)
{
	struct world *w = *state;
	pthread_t threads[8];
	cleanup_free char *first = NULL, *other = NULL;
	struct stat st;

	for (size_t i = 0; i < ARRAY_SIZE(threads); i++) /* all of them find no key at first */
		assert_int_equal(pthread_create(&threads[i], NULL, sign, w->husk), 0);
	for (size_t i = 0; i < ARRAY_SIZE(threads); i++) {
		void *signature;
		assert_int_equal(pthread_join(threads[i], &signature), 0);
		if (!first)
			first = strdup(signature);
		assert_string_equal(signature, first);
		free(signature);
	}
	assert_int_equal(strlen(first), 64);
	assert_int_equal(husk_sign(w->red, "texT", &other, &w->err), 0);
	assert_string_not_equal(first, other);
	cleanup_free char *path = path_signing_key(&w->husk->paths);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0600);
	assert_int_equal(st.st_size, 32);
}

/* ---- before there were tenants ---- */

static void upgrades_an_old_catalog(void **state)
{
	static const char old_schema[] =
		"CREATE TABLE sandboxes (id TEXT PRIMARY KEY, name TEXT, template_name TEXT, template_digest TEXT,"
		" parent TEXT, isolation TEXT, end_reason TEXT, state TEXT NOT NULL, warm INTEGER NOT NULL,"
		" created_ms INTEGER NOT NULL, expires_ms INTEGER NOT NULL, ended_ms INTEGER NOT NULL,"
		" idle_seconds INTEGER NOT NULL, persistent INTEGER NOT NULL, memory_bytes INTEGER NOT NULL,"
		" disk_bytes INTEGER NOT NULL, cpu_milli INTEGER NOT NULL, pids INTEGER NOT NULL, slot INTEGER NOT "
		"NULL,"
		" metadata TEXT, environment TEXT);"
		"CREATE UNIQUE INDEX sandboxes_live_name ON sandboxes (name) WHERE name IS NOT NULL AND state <> "
		"'ended';"
		"CREATE UNIQUE INDEX sandboxes_slot ON sandboxes (slot) WHERE slot > 0;"
		"CREATE INDEX sandboxes_name ON sandboxes (name) WHERE name IS NOT NULL;"
		"CREATE INDEX sandboxes_state ON sandboxes (state, template_digest, disk_bytes, warm);"
		"CREATE TABLE snapshots (id TEXT PRIMARY KEY, name TEXT UNIQUE, sandbox TEXT, template_name TEXT,"
		" template_digest TEXT, isolation TEXT, created_ms INTEGER NOT NULL, bytes INTEGER NOT NULL,"
		" memory_bytes INTEGER NOT NULL, disk_bytes INTEGER NOT NULL, cpu_milli INTEGER NOT NULL,"
		" pids INTEGER NOT NULL, ready INTEGER NOT NULL, environment TEXT, metadata TEXT);"
		"CREATE TABLE templates (name TEXT NOT NULL, digest TEXT NOT NULL, description TEXT, isolation TEXT,"
		" created_ms INTEGER NOT NULL, bytes INTEGER NOT NULL, disk_bytes INTEGER NOT NULL,"
		" current INTEGER NOT NULL, PRIMARY KEY (name, digest));"
		"CREATE UNIQUE INDEX templates_current ON templates (name) WHERE current;"
		"CREATE TABLE events (sequence INTEGER PRIMARY KEY AUTOINCREMENT, at_ms INTEGER NOT NULL, sandbox TEXT,"
		" kind TEXT NOT NULL, detail TEXT NOT NULL);"
		"CREATE INDEX events_sandbox ON events (sandbox, sequence);"
		"INSERT INTO sandboxes VALUES ('sb-old', 'keeper', 'base', 'd1', NULL, 'gvisor', NULL, 'hibernated', "
		"0, 1, 0,"
		" 0, 0, 1, 5, 6, 7, 8, 9, '{\"a\":\"b\"}', '{}');"
		"INSERT INTO snapshots VALUES ('sn-old', 'point', 'sb-old', 'base', 'd1', 'gvisor', 1, 2, 3, 4, 5, 6, "
		"1, '{}',"
		" '{}');"
		"INSERT INTO templates VALUES ('base', 'd1', 'text', 'gvisor', 1, 2, 3, 1);"
		"INSERT INTO events (at_ms, sandbox, kind, detail) VALUES (1, 'sb-old', 'created', '{}');"
		"PRAGMA user_version = 1;";
	struct world *w = *state;
	cleanup_free char *path = str_format("%s/old.db", w->directory);
	struct catalog *catalog = NULL;
	struct catalog_sandbox *row = NULL;
	struct catalog_snapshot *snapshot = NULL;
	struct catalog_template *template = NULL;
	struct husk_event *events = NULL;
	size_t count = 0;
	sqlite3 *db;

	assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
	assert_int_equal(sqlite3_exec(db, old_schema, NULL, NULL, NULL), SQLITE_OK);
	sqlite3_close(db);
	if (catalog_open(path, &catalog, &w->err))
		fail_msg("%s", w->err.message);
	assert_int_equal(catalog_sandbox_get(catalog, "keeper", &row, &w->err), 0);
	assert_true(str_equal(row->metadata, "{\"a\":\"b\"}") && row->pids == 8 && row->slot == 9 && !row->tenant);
	catalog_sandbox_free(row);
	assert_int_equal(catalog_snapshot_get(catalog, "point", &snapshot, &w->err), 0);
	assert_true(snapshot->bytes == 2 && snapshot->pids == 6 && snapshot->ready);
	catalog_snapshot_free(snapshot);
	assert_int_equal(catalog_template_get(catalog, "base", &template, &w->err), 0);
	assert_true(template->disk_bytes == 3 && template->current && str_equal(template->description, "text"));
	catalog_template_free(template);
	assert_int_equal(catalog_events(catalog, NULL, 0, 0, &events, &count, &w->err), 0);
	assert_int_equal(count, 1);
	husk_event_list_free(events, count);
	catalog_close(catalog);
	assert_int_equal(catalog_open(path, &catalog, &w->err), 0); /* and is not upgraded twice */
	catalog_close(catalog);
}

static void stored_secrets_are_apart(void **state)
{
	struct world *w = *state;
	struct husk_stored_secret *secret = NULL, **list = NULL;
	const struct husk_pair pairs[] = { { "team", "a" } };
	char *value = NULL;

	assert_int_equal(husk_secret_store(w->red, "Key", "red value", pairs, 1, &secret, &w->err), 0);
	assert_string_equal(secret->name, "key");
	assert_string_equal(secret->metadata, "{\"team\":\"a\"}");
	refused(w, husk_secret_value(w->blue, "key", &value, &w->err), HUSK_NOT_FOUND, "key");
	refused(w, husk_secret_value(w->husk, secret->id, &value, &w->err), HUSK_NOT_FOUND, secret->id);
	refused(w, husk_secret_remove(w->blue, secret->id, &w->err), HUSK_NOT_FOUND, secret->id);
	husk_stored_secret_free(secret);
	refused(w, husk_secret_store(w->red, "KEY", "x", NULL, 0, &secret, &w->err), HUSK_CONFLICT, "key");
	assert_int_equal(husk_secret_store(w->blue, "key", "blue value", NULL, 0, &secret, &w->err), 0);
	husk_stored_secret_free(secret);
	assert_int_equal(husk_secret_change(w->red, "key", "newer", NULL, 0, &secret, &w->err), 0);
	assert_int_equal(secret->version, 2);
	husk_stored_secret_free(secret);
	assert_int_equal(husk_secret_value(w->red, "key", &value, &w->err), 0);
	assert_string_equal(value, "newer");
	free(value);
	assert_int_equal(husk_secret_list(w->blue, &list, &w->err), 0);
	assert_true(list[0] && !list[1]);
	husk_stored_secret_list_free(list);
	assert_int_equal(husk_secret_remove(w->red, "key", &w->err), 0);
	refused(w, husk_secret_store(w->red, "a}b", "x", NULL, 0, &secret, &w->err), HUSK_INVALID, "name");
	refused(w, husk_secret_store(w->red, "a", "two\nlines", NULL, 0, &secret, &w->err), HUSK_INVALID, "value");
}

static void snapshots_have_further_names(void **state)
{
	struct world *w = *state;
	struct catalog_snapshot *row = NULL;
	char **tags = NULL;

	put_snapshot(w, w->blue, "sn-one", "tool");
	put_snapshot(w, w->blue, "sn-two", NULL);
	assert_int_equal(catalog_snapshot_finish(w->blue->catalog, "sn-one", 1, &w->err), 0);
	assert_int_equal(catalog_snapshot_finish(w->blue->catalog, "sn-two", 1, &w->err), 0);
	assert_int_equal(husk_snapshot_tag(w->blue, "tool", "tool.v1", &w->err), 0);
	assert_int_equal(husk_snapshot_tag(w->blue, "sn-two", "tool.v2", &w->err), 0);
	assert_int_equal(catalog_snapshot_get(w->blue->catalog, "tool.v2", &row, &w->err), 0);
	assert_string_equal(row->name, "tool.v2"); /* the first of its names */
	catalog_snapshot_free(row);
	refused(w, catalog_snapshot_tag(w->blue->catalog, "sn-two", "tool.v1", &w->err), HUSK_CONFLICT, "tool.v1");
	refused(w, catalog_snapshot_get(w->red->catalog, "tool.v1", &row, &w->err), HUSK_NOT_FOUND, "tool.v1");
	/* Its own name goes, a further one takes its place; then it moves to the other, and nothing is left of it. */
	assert_int_equal(husk_snapshot_untag(w->blue, "tool", &w->err), 0);
	assert_int_equal(catalog_snapshot_get(w->blue->catalog, "sn-one", &row, &w->err), 0);
	assert_string_equal(row->name, "tool.v1");
	catalog_snapshot_free(row);
	assert_int_equal(husk_snapshot_tag(w->blue, "sn-two", "tool.v1", &w->err), 0);
	refused(w, catalog_snapshot_get(w->blue->catalog, "sn-one", &row, &w->err), HUSK_NOT_FOUND, "sn-one");
	assert_int_equal(catalog_snapshot_tags(w->blue->catalog, "sn-two", &tags, &w->err), 0);
	assert_string_equal(tags[0], "tool.v1");
	strv_free(tags);
	assert_int_equal(husk_snapshot_remove(w->blue, "tool.v1", &w->err), 0);
	refused(w, husk_snapshot_untag(w->blue, "tool.v1", &w->err), HUSK_NOT_FOUND, "tool.v1");
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(sees_nothing_of_another),
		TEST(instance_sees_all_by_id),
		TEST(events_are_the_tenants),
		TEST(snapshots_are_apart),
		TEST(stored_secrets_are_apart),
		TEST(snapshots_have_further_names),
		TEST(own_templates_come_first),
		TEST(owner_only),
		TEST(quotas_hold),
		TEST(tokens_open_and_close),
		TEST(tokens_expire_and_are_checked),
		TEST(keys_are_kept_a_day),
		TEST(lists_in_pages),
		TEST(fields_are_named),
		TEST(signs_with_one_key),
		TEST(upgrades_an_old_catalog),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
