/*
 * Snapshots in the catalog. A row is added before its image is written and marked ready afterwards. So what a killed
 * process left half-written is found as "not ready" and removed. A snapshot that is not ready must never be found by its
 * name.
 */
#include "store/catalog_kit.h"

static const struct field snapshot_fields[] = {
	FIELD(catalog_snapshot, FIELD_TEXT, id),
	FIELD(catalog_snapshot, FIELD_TEXT, name),
	FIELD(catalog_snapshot, FIELD_TEXT, sandbox),
	FIELD(catalog_snapshot, FIELD_TEXT, template_name),
	FIELD(catalog_snapshot, FIELD_TEXT, template_digest),
	FIELD(catalog_snapshot, FIELD_TEXT, isolation),
	FIELD(catalog_snapshot, FIELD_INT64, created_ms),
	FIELD(catalog_snapshot, FIELD_UINT64, bytes),
	FIELD(catalog_snapshot, FIELD_UINT64, memory_bytes),
	FIELD(catalog_snapshot, FIELD_UINT64, disk_bytes),
	FIELD(catalog_snapshot, FIELD_UINT32, cpu_milli),
	FIELD(catalog_snapshot, FIELD_UINT32, pids),
	FIELD(catalog_snapshot, FIELD_BOOL, ready),
	FIELD(catalog_snapshot, FIELD_TEXT, environment),
	FIELD(catalog_snapshot, FIELD_TEXT, metadata),
	FIELD(catalog_snapshot, FIELD_TEXT, tenant),
	FIELD(catalog_snapshot, FIELD_TEXT, egress),
	FIELD(catalog_snapshot, FIELD_TEXT, volumes),
	FIELD(catalog_snapshot, FIELD_BOOL, shared),
	FIELD(catalog_snapshot, FIELD_BOOL, moment),
};
static const struct table snapshots = { "snapshots", sizeof(struct catalog_snapshot), snapshot_fields,
					ARRAY_SIZE(snapshot_fields) };

void catalog_snapshot_free(struct catalog_snapshot *row)
{
	table_free_row(&snapshots, row);
}

void catalog_snapshot_list_free(struct catalog_snapshot **list)
{
	table_free_list(&snapshots, (void **)list);
}

static int not_found(struct catalog *catalog, const char *word, struct husk_error *err)
{
	return catalog_not_found(catalog, "snapshot", word,
				 "SELECT id FROM snapshots WHERE ready AND (?1 IS NULL OR tenant = ?1) UNION "
				 "SELECT name FROM snapshots WHERE ready AND name IS NOT NULL AND tenant IS ?1 UNION "
				 "SELECT name FROM snapshot_tags WHERE tenant IS ?1",
				 "husk snapshot ls", err);
}

static int check_name(struct catalog *catalog, const char *name, struct husk_error *err)
{
	int64_t taken = 0;

	if (catalog_number(catalog,
			   "SELECT 1 FROM snapshots WHERE name = ?1 AND tenant IS ?2 UNION "
			   "SELECT 1 FROM snapshot_tags WHERE name = ?1 AND tenant IS ?2",
			   ARGUMENTS(text(name), text(catalog->view.tenant)), &taken, err) < 0)
		return -1;
	if (!taken)
		return 0;
	return husk_fail(err, HUSK_CONFLICT,
			 "a snapshot is named '%s' already; choose another name, or remove it (husk snapshot rm %s)",
			 name, name);
}

static int insert_snapshot(struct catalog *catalog, const struct catalog_snapshot *row, struct husk_error *err)
{
	if (row->name && check_name(catalog, row->name, err) < 0)
		return -1;
	cleanup_free char *names = NULL;
	struct catalog_snapshot owned = *row;

	if (values_put(catalog, row->id, row->environment, &names, err) < 0)
		return -1;
	owned.tenant = (char *)catalog->view.tenant;
	owned.environment = names;
	return table_insert(catalog, &snapshots, &owned, err);
}

int catalog_snapshot_add(struct catalog *catalog, const struct catalog_snapshot *row, struct husk_error *err)
{
	if (catalog_begin(catalog, CATALOG_WRITE, err))
		return -1;
	int result = catalog_finish(catalog, insert_snapshot(catalog, row, err), err);
	if (result < 0)
		values_drop(catalog, row->id);
	return result;
}

/* Runs one statement on one snapshot (?1 is its id) that adds `more` bytes; NOT_FOUND if no row changed. */
static int change(struct catalog *catalog, const char *id, uint64_t more, const char *sql,
		  const struct argument *arguments, struct husk_error *err)
{
	if (catalog_begin(catalog, CATALOG_WRITE, err))
		return -1;
	int changed = more ? quota_check_snapshots(catalog, more, err) : 0;

	if (changed == 0)
		changed = catalog_run(catalog, sql, arguments, err);
	if (changed == 0)
		changed = not_found(catalog, id, err);
	return catalog_finish(catalog, changed, err) < 0 ? -1 : 0;
}

int catalog_snapshot_finish(struct catalog *catalog, const char *id, uint64_t bytes, struct husk_error *err)
{
	return change(catalog, id, bytes, "UPDATE snapshots SET ready = 1, bytes = ?2 WHERE id = ?1",
		      ARGUMENTS(text(id), number((int64_t)bytes)), err);
}

int catalog_snapshot_remove(struct catalog *catalog, const char *id, struct husk_error *err)
{
	if (change(catalog, id, 0, "DELETE FROM snapshots WHERE id = ?1", ARGUMENTS(text(id)), err) < 0)
		return -1;
	values_drop(catalog, id);
	return 0;
}

/* The row that was found, with the values of its environment; the row is freed if that fails or `result` is a failure. */
static int hand_out(struct catalog *catalog, int result, struct catalog_snapshot *row, struct catalog_snapshot **out,
		    struct husk_error *err)
{
	if (result < 0 || values_get(catalog, row->id, &row->environment, err) < 0) {
		catalog_snapshot_free(row);
		return -1;
	}
	*out = row;
	return 0;
}

int catalog_snapshot_get(struct catalog *catalog, const char *id_or_name, struct catalog_snapshot **out,
			 struct husk_error *err)
{
	void *row = NULL;

	if (!id_or_name || !*id_or_name)
		return husk_fail(err, HUSK_INVALID, "no snapshot given: pass an id or a name (husk snapshot ls)");
	if (catalog_begin(catalog, CATALOG_READ, err))
		return -1;
	int result = table_one(
		catalog, &snapshots,
		"WHERE (id = ?1 AND (?2 IS NULL OR tenant = ?2)) OR (name = ?1 AND ready AND tenant IS ?2) OR "
		"id = (SELECT snapshot FROM snapshot_tags WHERE name = ?1 AND tenant IS ?2) "
		"ORDER BY id = ?1 DESC LIMIT 1",
		ARGUMENTS(text(id_or_name), text(catalog->view.tenant)), &row, err);

	if (result == 0)
		result = not_found(catalog, id_or_name, err);
	return hand_out(catalog, catalog_finish(catalog, result, err), row, out, err);
}

int catalog_snapshot_get_shared(struct catalog *catalog, const char *tenant, const char *name,
				struct catalog_snapshot **out, struct husk_error *err)
{
	void *row = NULL;

	if (catalog_begin(catalog, CATALOG_READ, err))
		return -1;
	int result = table_one(catalog, &snapshots,
			       "WHERE shared AND ready AND tenant IS ?2 AND (name = ?1 OR id = ?1 OR "
			       "id = (SELECT snapshot FROM snapshot_tags WHERE name = ?1 AND tenant IS ?2))",
			       ARGUMENTS(text(name), text(tenant)), &row, err);

	if (result == 0)
		result = husk_fail(err, HUSK_NOT_FOUND, "snapshot '%.80s' not found among those that are shared", name);
	return hand_out(catalog, catalog_finish(catalog, result, err), row, out, err);
}

int catalog_snapshot_share(struct catalog *catalog, const char *id, bool shared, struct husk_error *err)
{
	return change(catalog, id, 0, "UPDATE snapshots SET shared = ?2 WHERE id = ?1",
		      ARGUMENTS(text(id), number(shared)), err);
}

int catalog_snapshot_list(struct catalog *catalog, bool unready, struct catalog_snapshot ***out, struct husk_error *err)
{
	void **list = NULL;

	if (catalog_begin(catalog, CATALOG_READ, err))
		return -1;
	int result = table_all(catalog, &snapshots,
			       "WHERE ready = ?1 AND NOT moment AND (?2 IS NULL OR tenant = ?2) "
			       "ORDER BY created_ms DESC, rowid DESC",
			       ARGUMENTS(number(!unready), text(catalog->view.tenant)), &list, err);

	if (catalog_finish(catalog, result, err)) {
		table_free_list(&snapshots, list);
		return -1;
	}
	*out = (struct catalog_snapshot **)list;
	return 0;
}

/* ---- moments ---- */

int catalog_moment_keep(struct catalog *catalog, const char *id, uint64_t bytes, struct husk_error *err)
{
	return change(catalog, id, 0, "UPDATE snapshots SET ready = 1, moment = 1, bytes = ?2 WHERE id = ?1",
		      ARGUMENTS(text(id), number((int64_t)bytes)), err);
}

int catalog_moment_list(struct catalog *catalog, bool idle, struct catalog_snapshot ***out, struct husk_error *err)
{
	void **list = NULL;

	if (catalog_begin(catalog, CATALOG_READ, err))
		return -1;
	int result =
		table_all(catalog, &snapshots,
			  "WHERE moment AND NOT (?1 AND id IN ("
			  "WITH RECURSIVE family (parent, origin) AS ("
			  "SELECT parent, origin FROM sandboxes WHERE state <> 'ended' UNION "
			  "SELECT s.parent, s.origin FROM sandboxes s JOIN family f ON s.id = f.parent) "
			  "SELECT origin FROM family WHERE origin IS NOT NULL)) ORDER BY created_ms DESC, rowid DESC",
			  ARGUMENTS(number(idle)), &list, err);

	if (catalog_finish(catalog, result, err)) {
		table_free_list(&snapshots, list);
		return -1;
	}
	*out = (struct catalog_snapshot **)list;
	return 0;
}

/* ---- further names ---- */

static int add_tag(struct catalog *catalog, const char *id, const char *name, struct husk_error *err)
{
	if (check_name(catalog, name, err) < 0)
		return -1;
	int changed = catalog_run(catalog, "UPDATE snapshots SET name = ?2 WHERE id = ?1 AND name IS NULL",
				  ARGUMENTS(text(id), text(name)), err);

	if (changed != 0)
		return changed;
	return catalog_run(catalog, "INSERT INTO snapshot_tags (name, tenant, snapshot) VALUES (?1, ?2, ?3)",
			   ARGUMENTS(text(name), text(catalog->view.tenant), text(id)), err);
}

int catalog_snapshot_tag(struct catalog *catalog, const char *id, const char *name, struct husk_error *err)
{
	if (catalog_begin(catalog, CATALOG_WRITE, err))
		return -1;
	return catalog_finish(catalog, add_tag(catalog, id, name, err), err) < 0 ? -1 : 0;
}

/* If the main name is removed, one of the additional names replaces it. */
static int remove_name(struct catalog *catalog, const char *name, struct husk_error *err)
{
	const struct argument *arguments = ARGUMENTS(text(name), text(catalog->view.tenant));
	int changed =
		catalog_run(catalog, "DELETE FROM snapshot_tags WHERE name = ?1 AND tenant IS ?2", arguments, err);
	int64_t known = 0;

	if (changed != 0)
		return changed < 0 ? -1 : 0;
	if (catalog_number(catalog, "SELECT 1 FROM snapshots WHERE name = ?1 AND ready AND tenant IS ?2", arguments,
			   &known, err) < 0)
		return -1;
	if (!known)
		return not_found(catalog, name, err);
	changed = catalog_run(
		catalog,
		"UPDATE snapshots SET name = (SELECT min(t.name) FROM snapshot_tags t WHERE t.snapshot = id) "
		"WHERE name = ?1 AND tenant IS ?2 AND id IN (SELECT snapshot FROM snapshot_tags)",
		arguments, err);
	if (changed <= 0)
		return changed < 0 ? -1 : 1;
	return catalog_run(
		       catalog,
		       "DELETE FROM snapshot_tags WHERE EXISTS (SELECT 1 FROM snapshots s WHERE s.id = snapshot AND "
		       "s.name = snapshot_tags.name)",
		       NULL, err) < 0
		       ? -1
		       : 0;
}

int catalog_snapshot_untag(struct catalog *catalog, const char *name, struct husk_error *err)
{
	if (catalog_begin(catalog, CATALOG_WRITE, err))
		return -1;
	return catalog_finish(catalog, remove_name(catalog, name, err), err);
}

int catalog_snapshot_tags(struct catalog *catalog, const char *id, char ***out, struct husk_error *err)
{
	if (catalog_begin(catalog, CATALOG_READ, err))
		return -1;
	return catalog_finish(catalog,
			      catalog_strings(catalog,
					      "SELECT name FROM snapshot_tags WHERE snapshot = ?1 ORDER BY name",
					      ARGUMENTS(text(id)), out, err),
			      err) < 0
		       ? -1
		       : 0;
}
