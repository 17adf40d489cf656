/*
 * Checkpoints in the catalog: numbered points of one sandbox, which its supervisor adds and which end with it (triggers of
 * the schema). A row is added before its image is written and marked ready afterwards, so what a killed supervisor left
 * half-written is found as "not ready". The sandbox's own row is looked up by the caller, whose view decides on tenants.
 */
#include "store/catalog_kit.h"

static const struct field point_fields[] = {
	FIELD(catalog_point, FIELD_TEXT, sandbox),
	FIELD(catalog_point, FIELD_TEXT, label),
	FIELD(catalog_point, FIELD_INT64, number),
	FIELD(catalog_point, FIELD_INT64, parent),
	FIELD(catalog_point, FIELD_INT64, created_ms),
	FIELD(catalog_point, FIELD_UINT64, bytes),
	FIELD(catalog_point, FIELD_BOOL, ready),
	FIELD(catalog_point, FIELD_TEXT, traffic),
	FIELD(catalog_point, FIELD_INT64, effect),
	FIELD(catalog_point, FIELD_TEXT, origin),
	FIELD(catalog_point, FIELD_INT64, origin_effect),
	FIELD(catalog_point, FIELD_BOOL, automatic),
	FIELD(catalog_point, FIELD_TEXT, ran),
	FIELD(catalog_point, FIELD_TEXT, files),
};
static const struct table points = { "points", sizeof(struct catalog_point), point_fields, ARRAY_SIZE(point_fields) };

void catalog_point_free(struct catalog_point *row)
{
	table_free_row(&points, row);
}

void catalog_point_list_free(struct catalog_point **list)
{
	table_free_list(&points, (void **)list);
}

static int check_label(struct catalog *catalog, const struct catalog_point *row, struct husk_error *err)
{
	int64_t taken = 0;

	if (catalog_number(catalog, "SELECT number FROM points WHERE sandbox = ?1 AND label = ?2",
			   ARGUMENTS(text(row->sandbox), text(row->label)), &taken, err) < 0)
		return -1;
	return taken ? husk_fail(err, HUSK_CONFLICT,
				 "checkpoint %lld of %s has the label '%s' already; choose another (husk history %s)",
				 (long long)taken, row->sandbox, row->label, row->sandbox)
		     : 0;
}

static int insert_point(struct catalog *catalog, struct catalog_point *row, struct husk_error *err)
{
	const struct argument *sandbox = ARGUMENTS(text(row->sandbox));
	int64_t count = 0;

	if (row->label && check_label(catalog, row, err) < 0)
		return -1;
	if (catalog_number(catalog, "SELECT count(*) FROM points WHERE sandbox = ?1", sandbox, &count, err) < 0)
		return -1;
	if (count >= CATALOG_POINTS_MAX)
		return husk_fail(err, HUSK_LIMIT,
				 "sandbox %s has %d checkpoints, the most there can be; remove some (husk history %s "
				 "--rm NUMBER)",
				 row->sandbox, CATALOG_POINTS_MAX, row->sandbox);
	if (catalog_number(catalog, "SELECT coalesce(max(number), 0) + 1 FROM points WHERE sandbox = ?1", sandbox,
			   &row->number, err) < 0 ||
	    catalog_number(catalog, "SELECT point FROM sandboxes WHERE id = ?1", sandbox, &row->parent, err) < 0)
		return -1;
	return table_insert(catalog, &points, row, err);
}

int catalog_point_add(struct catalog *catalog, struct catalog_point *row, struct husk_error *err)
{
	if (catalog_begin(catalog, CATALOG_WRITE, err))
		return -1;
	return catalog_finish(catalog, insert_point(catalog, row, err), err);
}

static int reach(struct catalog *catalog, const char *sandbox, int64_t point, struct husk_error *err)
{
	return catalog_run(catalog, "UPDATE sandboxes SET point = ?2 WHERE id = ?1",
			   ARGUMENTS(text(sandbox), number(point)), err);
}

int catalog_point_finish(struct catalog *catalog, const char *sandbox, int64_t point, uint64_t bytes, int64_t effect,
			 struct husk_error *err)
{
	if (catalog_begin(catalog, CATALOG_WRITE, err))
		return -1;
	int changed = catalog_run(
		catalog, "UPDATE points SET ready = 1, bytes = ?3, effect = ?4 WHERE sandbox = ?1 AND number = ?2",
		ARGUMENTS(text(sandbox), number(point), number((int64_t)bytes), number(effect)), err);

	if (changed == 0)
		changed = husk_fail(err, HUSK_GONE, "sandbox %s has ended", sandbox);
	if (changed > 0)
		changed = reach(catalog, sandbox, point, err);
	return catalog_finish(catalog, changed, err) < 0 ? -1 : 0;
}

int catalog_point_show(struct catalog *catalog, const char *sandbox, int64_t point, bool ready, struct husk_error *err)
{
	if (catalog_begin(catalog, CATALOG_WRITE, err))
		return -1;
	int changed = catalog_run(catalog, "UPDATE points SET ready = ?3 WHERE sandbox = ?1 AND number = ?2",
				  ARGUMENTS(text(sandbox), number(point), number(ready)), err);
	return catalog_finish(catalog, changed, err) < 0 ? -1 : 0;
}

int catalog_point_reach(struct catalog *catalog, const char *sandbox, int64_t point, struct husk_error *err)
{
	if (catalog_begin(catalog, CATALOG_WRITE, err))
		return -1;
	int result = reach(catalog, sandbox, point, err);

	if (result >= 0)
		result = effects_reach(catalog, sandbox, point, err);
	return catalog_finish(catalog, result, err) < 0 ? -1 : 0;
}

int catalog_point_thin(struct catalog *catalog, const char *sandbox, int64_t point, struct husk_error *err)
{
	if (catalog_begin(catalog, CATALOG_WRITE, err))
		return -1;
	int changed = catalog_run(catalog, "UPDATE sandboxes SET thinned = max(thinned, ?2) WHERE id = ?1",
				  ARGUMENTS(text(sandbox), number(point)), err);
	return catalog_finish(catalog, changed, err) < 0 ? -1 : 0;
}

int catalog_point_compared(struct catalog *catalog, const char *sandbox, int64_t point, const char *files,
			   struct husk_error *err)
{
	if (catalog_begin(catalog, CATALOG_WRITE, err))
		return -1;
	int changed = catalog_run(catalog, "UPDATE points SET files = ?3 WHERE sandbox = ?1 AND number = ?2",
				  ARGUMENTS(text(sandbox), number(point), text(files)), err);
	return catalog_finish(catalog, changed, err) < 0 ? -1 : 0;
}

/* The nearest checkpoint that is left of those around a thinned one. 0: it was not thinned. */
static int nearest(struct catalog *catalog, const char *sandbox, const char *word, int64_t *out, struct husk_error *err)
{
	int64_t wanted, thinned = 0;

	*out = 0;
	if (str_to_int64(word, 1, INT64_MAX, &wanted) < 0)
		return 0;
	if (catalog_number(catalog, "SELECT thinned FROM sandboxes WHERE id = ?1", ARGUMENTS(text(sandbox)), &thinned,
			   err) < 0)
		return -1;
	return wanted <= thinned ? catalog_number(catalog,
						  "SELECT number FROM points WHERE sandbox = ?1 AND ready"
						  " ORDER BY abs(number - ?2), number LIMIT 1",
						  ARGUMENTS(text(sandbox), number(wanted)), out, err)
				 : 0;
}

/* Chooses the error: no checkpoints, the current one was removed, or no such checkpoint. */
static int not_found(struct catalog *catalog, const char *sandbox, const char *word, struct husk_error *err)
{
	int64_t count = 0;

	if (catalog_number(catalog, "SELECT count(*) FROM points WHERE sandbox = ?1 AND ready",
			   ARGUMENTS(text(sandbox)), &count, err) < 0)
		return -1;
	if (count == 0)
		return husk_fail(err, HUSK_NOT_FOUND,
				 "sandbox %s has no checkpoint; take one first (husk checkpoint %s)", sandbox, sandbox);
	if (!*word)
		return husk_fail(err, HUSK_NOT_FOUND,
				 "the last checkpoint of sandbox %s was removed; say which one (husk history %s)",
				 sandbox, sandbox);
	int64_t near = 0;
	if (nearest(catalog, sandbox, word, &near, err) < 0)
		return -1;
	if (near)
		return husk_fail(
			err, HUSK_NOT_FOUND,
			"checkpoint %s of sandbox %s was thinned out, to make room for later ones; the nearest one "
			"is %lld (husk history %s)",
			word, sandbox, (long long)near, sandbox);
	return husk_fail(err, HUSK_NOT_FOUND, "sandbox %s has no checkpoint '%.80s' (husk history %s)", sandbox, word,
			 sandbox);
}

int catalog_point_get(struct catalog *catalog, const char *sandbox, const char *word, struct catalog_point **out,
		      struct husk_error *err)
{
	void *row = NULL;

	if (catalog_begin(catalog, CATALOG_READ, err))
		return -1;
	/* A label is never a number (husk_checkpoint). */
	int result = table_one(catalog, &points,
			       "WHERE sandbox = ?1 AND ready AND (CAST(number AS TEXT) = ?2 OR label = ?2)",
			       ARGUMENTS(text(sandbox), text(word)), &row, err);

	if (result == 0)
		result = not_found(catalog, sandbox, word, err);
	if (catalog_finish(catalog, result, err) < 0) {
		catalog_point_free(row);
		return -1;
	}
	*out = row;
	return 0;
}

int catalog_point_list(struct catalog *catalog, const char *sandbox, bool unready, struct catalog_point ***out,
		       struct husk_error *err)
{
	void **list = NULL;

	if (catalog_begin(catalog, CATALOG_READ, err))
		return -1;
	int result = table_all(catalog, &points, "WHERE sandbox = ?1 AND ready = ?2 ORDER BY number",
			       ARGUMENTS(text(sandbox), number(!unready)), &list, err);

	if (catalog_finish(catalog, result, err)) {
		table_free_list(&points, list);
		return -1;
	}
	*out = (struct catalog_point **)list;
	return 0;
}

static int remove_point(struct catalog *catalog, const char *sandbox, int64_t point, struct husk_error *err)
{
	const struct argument *arguments = ARGUMENTS(text(sandbox), number(point));

	/* Its children become children of its parent. */
	if (catalog_run(catalog,
			"UPDATE points SET parent = (SELECT p.parent FROM points p WHERE p.sandbox = ?1 AND p.number = "
			"?2) WHERE sandbox = ?1 AND parent = ?2",
			arguments, err) < 0 ||
	    catalog_run(catalog,
			"UPDATE sandboxes SET point = coalesce((SELECT p.parent FROM points p WHERE p.sandbox = ?1 AND "
			"p.number = ?2), 0) WHERE id = ?1 AND point = ?2",
			arguments, err) < 0)
		return -1;
	return catalog_run(catalog, "DELETE FROM points WHERE sandbox = ?1 AND number = ?2", arguments, err);
}

int catalog_point_remove(struct catalog *catalog, const char *sandbox, int64_t point, struct husk_error *err)
{
	if (catalog_begin(catalog, CATALOG_WRITE, err))
		return -1;
	return catalog_finish(catalog, remove_point(catalog, sandbox, point, err), err) < 0 ? -1 : 0;
}
