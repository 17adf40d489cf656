/*
 * Volumes in the catalog. The rows of sandboxes say which sandbox uses which volume, so a volume is free as soon as its
 * last sandbox has ended. The check and the removal are one transaction; so are the check and the creation of a sandbox.
 */
#include "store/catalog_kit.h"

static const struct field volume_fields[] = {
	FIELD(catalog_volume, FIELD_TEXT, id),
	FIELD(catalog_volume, FIELD_TEXT, name),
	FIELD(catalog_volume, FIELD_TEXT, tenant),
	FIELD(catalog_volume, FIELD_INT64, created_ms),
	FIELD(catalog_volume, FIELD_UINT64, limit_bytes),
};
static const struct table volumes = { "volumes", sizeof(struct catalog_volume), volume_fields,
				      ARRAY_SIZE(volume_fields) };

void catalog_volume_free(struct catalog_volume *row)
{
	table_free_row(&volumes, row);
}

void catalog_volume_list_free(struct catalog_volume **list)
{
	table_free_list(&volumes, (void **)list);
}

static int not_found(struct catalog *catalog, const char *word, struct husk_error *err)
{
	return catalog_not_found(catalog, "volume", word,
				 "SELECT id FROM volumes WHERE ?1 IS NULL OR tenant = ?1 UNION "
				 "SELECT name FROM volumes WHERE tenant IS ?1",
				 "husk volume ls", err);
}

static int insert_volume(struct catalog *catalog, const struct catalog_volume *row, struct husk_error *err)
{
	struct catalog_volume owned = *row;
	int64_t taken = 0;

	owned.tenant = (char *)catalog->view.tenant;
	if (catalog_number(catalog, "SELECT 1 FROM volumes WHERE name = ?1 AND tenant IS ?2",
			   ARGUMENTS(text(row->name), text(owned.tenant)), &taken, err) < 0)
		return -1;
	if (taken)
		return husk_fail(
			err, HUSK_CONFLICT,
			"a volume is named '%s' already; choose another name, or remove it (husk volume rm %s)",
			row->name, row->name);
	return table_insert(catalog, &volumes, &owned, err);
}

int catalog_volume_add(struct catalog *catalog, const struct catalog_volume *row, struct husk_error *err)
{
	if (catalog_begin(catalog, CATALOG_WRITE, err))
		return -1;
	return catalog_finish(catalog, insert_volume(catalog, row, err), err);
}

int catalog_volume_get(struct catalog *catalog, const char *id_or_name, struct catalog_volume **out,
		       struct husk_error *err)
{
	void *row = NULL;

	if (!id_or_name || !*id_or_name)
		return husk_fail(err, HUSK_INVALID, "no volume given: pass an id or a name (husk volume ls)");
	if (catalog_begin(catalog, CATALOG_READ, err))
		return -1;
	int result = table_one(catalog, &volumes,
			       "WHERE (id = ?1 AND (?2 IS NULL OR tenant = ?2)) OR (name = ?1 AND tenant IS ?2) "
			       "ORDER BY id = ?1 DESC LIMIT 1",
			       ARGUMENTS(text(id_or_name), text(catalog->view.tenant)), &row, err);

	if (result == 0)
		result = not_found(catalog, id_or_name, err);
	if (catalog_finish(catalog, result, err) < 0) {
		catalog_volume_free(row);
		return -1;
	}
	*out = row;
	return 0;
}

int catalog_volume_list(struct catalog *catalog, struct catalog_volume ***out, struct husk_error *err)
{
	void **list = NULL;

	if (catalog_begin(catalog, CATALOG_READ, err))
		return -1;
	int result =
		table_all(catalog, &volumes, "WHERE ?1 IS NULL OR tenant = ?1 ORDER BY created_ms DESC, rowid DESC",
			  ARGUMENTS(text(catalog->view.tenant)), &list, err);

	if (catalog_finish(catalog, result, err)) {
		table_free_list(&volumes, list);
		return -1;
	}
	*out = (struct catalog_volume **)list;
	return 0;
}

static int users(struct catalog *catalog, const char *id, char ***out, struct husk_error *err)
{
	return catalog_strings(catalog,
			       "SELECT id FROM sandboxes WHERE state <> 'ended' AND volumes IS NOT NULL AND EXISTS "
			       "(SELECT 1 FROM json_each(volumes) WHERE json_extract(value, '$.id') = ?1) "
			       "ORDER BY created_ms, rowid",
			       ARGUMENTS(text(id)), out, err);
}

int catalog_volume_users(struct catalog *catalog, const char *id, char ***out, struct husk_error *err)
{
	if (catalog_begin(catalog, CATALOG_READ, err))
		return -1;
	return catalog_finish(catalog, users(catalog, id, out, err), err) < 0 ? -1 : 0;
}

static int remove_unused(struct catalog *catalog, const char *id, struct husk_error *err)
{
	cleanup_strv char **list = NULL;
	cleanup_buf struct buf names = { 0 };

	if (users(catalog, id, &list, err) < 0)
		return -1;
	for (size_t i = 0; list && list[i]; i++)
		if (buf_printf(&names, "%s%s", i ? ", " : "", list[i]) < 0)
			return husk_fail_memory(err);
	if (names.size)
		return husk_fail(err, HUSK_CONFLICT, "volume %s is in use by %.600s; end them first (husk rm)", id,
				 names.data);
	int removed = catalog_run(catalog, "DELETE FROM volumes WHERE id = ?1", ARGUMENTS(text(id)), err);
	return removed == 0 ? not_found(catalog, id, err) : removed;
}

int catalog_volume_remove(struct catalog *catalog, const char *id, struct husk_error *err)
{
	if (catalog_begin(catalog, CATALOG_WRITE, err))
		return -1;
	return catalog_finish(catalog, remove_unused(catalog, id, err), err) < 0 ? -1 : 0;
}
