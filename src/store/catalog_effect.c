/*
 * Effects in the catalog: requests of a sandbox that the leash holds instead of sending. The supervisor adds one before the
 * guest gets its answer, so an effect that the guest knows of survives a kill of any process.
 *
 *     held ──> sending ──> sent         the host has answered
 *      │  ^       │
 *      │  └───────┤                     nothing of it has left: it can be sent again
 *      v          └──> uncertain        cut off in between: it may have been sent, and is never sent again
 *    dropped
 *
 * Only `held` and `sending` effects have their request; the others are only a record, and the oldest are removed first.
 */
#include "store/catalog_kit.h"

static const struct field effect_fields[] = {
	FIELD(catalog_effect, FIELD_TEXT, sandbox),     FIELD(catalog_effect, FIELD_TEXT, method),
	FIELD(catalog_effect, FIELD_TEXT, scheme),      FIELD(catalog_effect, FIELD_TEXT, host),
	FIELD(catalog_effect, FIELD_TEXT, target),      FIELD(catalog_effect, FIELD_TEXT, state),
	FIELD(catalog_effect, FIELD_TEXT, detail),      FIELD(catalog_effect, FIELD_INT64, number),
	FIELD(catalog_effect, FIELD_INT64, created_ms), FIELD(catalog_effect, FIELD_INT64, done_ms),
	FIELD(catalog_effect, FIELD_UINT64, bytes),     FIELD(catalog_effect, FIELD_INT64, port),
	FIELD(catalog_effect, FIELD_INT64, status),
};
static const struct table effects = { "effects", sizeof(struct catalog_effect), effect_fields,
				      ARRAY_SIZE(effect_fields) };

void catalog_effect_free(struct catalog_effect *row)
{
	table_free_row(&effects, row);
}

void catalog_effect_list_free(struct catalog_effect **list)
{
	table_free_list(&effects, (void **)list);
}

/* ---- adding ---- */

static int check_room(struct catalog *catalog, const struct catalog_effect *row, size_t request, struct husk_error *err)
{
	const struct argument *sandbox = ARGUMENTS(text(row->sandbox));
	int64_t count = 0, size = 0;

	if (catalog_number(catalog, "SELECT count(*) FROM effects WHERE sandbox = ?1 AND state = 'held'", sandbox,
			   &count, err) < 0 ||
	    catalog_number(
		    catalog,
		    "SELECT coalesce(sum(length(request)), 0) FROM effects WHERE sandbox = ?1 AND state = 'held'",
		    sandbox, &size, err) < 0)
		return -1;
	if (count >= CATALOG_EFFECTS_MAX)
		return husk_fail(err, HUSK_LIMIT,
				 "sandbox %s holds %d requests, the most there can be; send or drop some (husk effects "
				 "%s)",
				 row->sandbox, CATALOG_EFFECTS_MAX, row->sandbox);
	if ((uint64_t)size + request > CATALOG_EFFECT_BYTES_MAX)
		return husk_fail(err, HUSK_LIMIT,
				 "the requests that sandbox %s holds would be larger than %llu MiB; send or drop some "
				 "(husk effects %s)",
				 row->sandbox, (unsigned long long)(CATALOG_EFFECT_BYTES_MAX >> 20), row->sandbox);
	return 0;
}

static int insert_effect(struct catalog *catalog, struct catalog_effect *row, const char *request, size_t size,
			 struct husk_error *err)
{
	const struct argument *sandbox = ARGUMENTS(text(row->sandbox));

	if (check_room(catalog, row, size, err) < 0 ||
	    catalog_number(catalog, "SELECT coalesce(max(number), 0) + 1 FROM effects WHERE sandbox = ?1", sandbox,
			   &row->number, err) < 0 ||
	    table_insert(catalog, &effects, row, err) < 0)
		return -1;
	if (catalog_run(catalog, "UPDATE effects SET request = ?3 WHERE sandbox = ?1 AND number = ?2",
			ARGUMENTS(text(row->sandbox), number(row->number), bytes(request, size)), err) < 0)
		return -1;
	return catalog_run(
		catalog, "DELETE FROM effects WHERE sandbox = ?1 AND state NOT IN ('held', 'sending') AND number <= ?2",
		ARGUMENTS(text(row->sandbox), number(row->number - CATALOG_EFFECTS_KEPT)), err);
}

int catalog_effect_add(struct catalog *catalog, struct catalog_effect *row, const char *request, size_t size,
		       struct husk_error *err)
{
	row->state = (char *)"held";
	if (catalog_begin(catalog, CATALOG_WRITE, err))
		return -1;
	return catalog_finish(catalog, insert_effect(catalog, row, request, size, err), err) < 0 ? -1 : 0;
}

/* ---- reading ---- */

int catalog_effect_list(struct catalog *catalog, const char *sandbox, struct catalog_effect ***out,
			struct husk_error *err)
{
	if (catalog_begin(catalog, CATALOG_READ, err))
		return -1;
	int result = table_all(catalog, &effects, "WHERE sandbox = ?1 ORDER BY number", ARGUMENTS(text(sandbox)),
			       (void ***)out, err);
	return catalog_finish(catalog, result, err);
}

int catalog_effect_get(struct catalog *catalog, const char *sandbox, int64_t which, struct catalog_effect **out,
		       struct buf *request, struct husk_error *err)
{
	const struct argument *key = ARGUMENTS(text(sandbox), number(which));
	void *row = NULL;

	if (catalog_begin(catalog, CATALOG_READ, err))
		return -1;
	int result = table_one(catalog, &effects, "WHERE sandbox = ?1 AND number = ?2", key, &row, err);
	if (result == 0)
		result = husk_fail(err, HUSK_NOT_FOUND, "sandbox %s has no effect %lld (husk effects %s)", sandbox,
				   (long long)which, sandbox);
	if (result > 0 && request)
		result = catalog_bytes(catalog, "SELECT request FROM effects WHERE sandbox = ?1 AND number = ?2", key,
				       request, err);
	if (catalog_finish(catalog, result, err) < 0) {
		catalog_effect_free(row);
		return -1;
	}
	*out = row;
	return 0;
}

int catalog_effect_last(struct catalog *catalog, const char *sandbox, int64_t *out, struct husk_error *err)
{
	if (catalog_begin(catalog, CATALOG_READ, err))
		return -1;
	int result = catalog_number(catalog, "SELECT coalesce(max(number), 0) FROM effects WHERE sandbox = ?1",
				    ARGUMENTS(text(sandbox)), out, err);
	return catalog_finish(catalog, result, err) < 0 ? -1 : 0;
}

/* ---- changing ---- */

int catalog_effect_move(struct catalog *catalog, const char *sandbox, int64_t which, const char *from, const char *to,
			int64_t status, const char *detail, struct husk_error *err)
{
	bool keeps = str_equal(to, "held") || str_equal(to, "sending");

	if (catalog_begin(catalog, CATALOG_WRITE, err))
		return -1;
	int changed = catalog_run(catalog,
				  "UPDATE effects SET state = ?4, status = ?5, detail = ?6, done_ms = ?7,"
				  " request = CASE WHEN ?8 THEN request END"
				  " WHERE sandbox = ?1 AND number = ?2 AND state = ?3",
				  ARGUMENTS(text(sandbox), number(which), text(from), text(to), number(status),
					    text(detail), number(keeps ? 0 : time_wall_ms()), number(keeps)),
				  err);
	return catalog_finish(catalog, changed, err);
}

int catalog_effects_settle(struct catalog *catalog, const char *sandbox, struct husk_error *err)
{
	if (catalog_begin(catalog, CATALOG_WRITE, err))
		return -1;
	int changed = catalog_run(catalog,
				  "UPDATE effects SET state = 'uncertain', request = NULL, done_ms = ?2,"
				  " detail = 'cut off while it was being sent'"
				  " WHERE sandbox = ?1 AND state = 'sending'",
				  ARGUMENTS(text(sandbox), number(time_wall_ms())), err);
	return catalog_finish(catalog, changed, err) < 0 ? -1 : 0;
}

/* ---- with a checkpoint ---- */

static int drop_after(struct catalog *catalog, const char *sandbox, int64_t last, const char *why,
		      struct husk_error *err)
{
	return catalog_run(catalog,
			   "UPDATE effects SET state = 'dropped', request = NULL, detail = ?3, done_ms = ?4"
			   " WHERE sandbox = ?1 AND state = 'held' AND number > ?2",
			   ARGUMENTS(text(sandbox), number(last), text(why), number(time_wall_ms())), err);
}

/* The effects of a promoted fork that its image knows of become those of the sandbox whose place it takes. */
static int take_over(struct catalog *catalog, const char *sandbox, int64_t point, struct husk_error *err)
{
	const struct argument *key = ARGUMENTS(text(sandbox), number(point));
	int64_t last = 0;

	if (catalog_number(catalog, "SELECT coalesce(max(number), 0) FROM effects WHERE sandbox = ?1",
			   ARGUMENTS(text(sandbox)), &last, err) < 0 ||
	    catalog_run(catalog,
			"UPDATE effects SET sandbox = ?1, number = number + ?3 WHERE state = 'held' AND sandbox ="
			" (SELECT origin FROM points WHERE sandbox = ?1 AND number = ?2) AND number <="
			" (SELECT origin_effect FROM points WHERE sandbox = ?1 AND number = ?2)",
			ARGUMENTS(text(sandbox), number(point), number(last)), err) < 0)
		return -1;
	return catalog_run(catalog,
			   "UPDATE points SET origin = NULL, effect = (SELECT coalesce(max(number), 0) FROM effects"
			   " WHERE sandbox = ?1) WHERE sandbox = ?1 AND number = ?2",
			   key, err);
}

int effects_reach(struct catalog *catalog, const char *sandbox, int64_t point, struct husk_error *err)
{
	const struct argument *key = ARGUMENTS(text(sandbox), number(point));
	int64_t last = 0, origin = 0;

	int found = catalog_number(catalog, "SELECT effect FROM points WHERE sandbox = ?1 AND number = ?2", key, &last,
				   err);
	if (found <= 0)
		return found;
	if (catalog_number(catalog, "SELECT origin IS NOT NULL FROM points WHERE sandbox = ?1 AND number = ?2", key,
			   &origin, err) < 0 ||
	    drop_after(catalog, sandbox, last, origin ? "a fork took its place" : "rewound", err) < 0)
		return -1;
	return origin ? take_over(catalog, sandbox, point, err) : 0;
}
