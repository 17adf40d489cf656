/*
 * Stored secrets in the catalog: values that a tenant stores once and that the policies of its sandboxes name. Only
 * catalog_secret_value reads a value, for the leash of a sandbox. Listed rows, errors and events never contain one. A
 * secret of another tenant is not found.
 */
#include "store/catalog_kit.h"

#define SECRETS_MAX 1000 /* of one tenant */

static const struct field secret_fields[] = {
	FIELD(husk_stored_secret, FIELD_TEXT, id),          FIELD(husk_stored_secret, FIELD_TEXT, name),
	FIELD(husk_stored_secret, FIELD_TEXT, metadata),    FIELD(husk_stored_secret, FIELD_INT64, version),
	FIELD(husk_stored_secret, FIELD_INT64, created_ms), FIELD(husk_stored_secret, FIELD_INT64, updated_ms),
};
static const struct table secrets = { "secrets", sizeof(struct husk_stored_secret), secret_fields,
				      ARRAY_SIZE(secret_fields) };

#define MEANT "(id = ?1 OR name = ?1) AND tenant IS ?2"

void husk_stored_secret_free(struct husk_stored_secret *secret)
{
	table_free_row(&secrets, secret);
}

void husk_stored_secret_list_free(struct husk_stored_secret **list)
{
	table_free_list(&secrets, (void **)list);
}

static int not_found(const char *word, struct husk_error *err)
{
	return husk_fail(err, HUSK_NOT_FOUND, "secret '%.80s' not found", word);
}

static int insert(struct catalog *catalog, const struct husk_stored_secret *secret, const char *value,
		  struct husk_error *err)
{
	const char *tenant = catalog->view.tenant;
	int64_t taken = 0, count = 0;

	if (catalog_number(catalog, "SELECT 1 FROM secrets WHERE name = ?1 AND tenant IS ?2",
			   ARGUMENTS(text(secret->name), text(tenant)), &taken, err) < 0 ||
	    catalog_number(catalog, "SELECT count(*) FROM secrets WHERE tenant IS ?1", ARGUMENTS(text(tenant)), &count,
			   err) < 0)
		return -1;
	if (taken)
		return husk_fail(err, HUSK_CONFLICT, "a secret is named '%.80s' already", secret->name);
	if (count >= SECRETS_MAX)
		return husk_fail(err, HUSK_LIMIT, "%d secrets are stored, which is the most; remove some first",
				 SECRETS_MAX);
	return catalog_run(catalog,
			   "INSERT INTO secrets (id, name, tenant, value, metadata, version, created_ms, updated_ms) "
			   "VALUES (?1, ?2, ?3, ?4, ?5, 1, ?6, ?6)",
			   ARGUMENTS(text(secret->id), text(secret->name), text(tenant), text(value),
				     text(secret->metadata), number(secret->created_ms)),
			   err);
}

int catalog_secret_add(struct catalog *catalog, const struct husk_stored_secret *secret, const char *value,
		       struct husk_error *err)
{
	if (catalog_begin(catalog, CATALOG_WRITE, err))
		return -1;
	return catalog_finish(catalog, insert(catalog, secret, value, err), err) < 0 ? -1 : 0;
}

/* Runs one statement on one secret; ?1 is its id or name and ?2 the tenant. The old value is also removed from the
 * disk, unless another process reads at that moment: then the next change removes it. */
static int change(struct catalog *catalog, const char *id_or_name, const char *sql, const struct argument *arguments,
		  struct husk_error *err)
{
	if (catalog_begin(catalog, CATALOG_WRITE, err))
		return -1;
	int changed = catalog_run(catalog, sql, arguments, err);

	if (changed == 0)
		changed = not_found(id_or_name, err);
	if (catalog_finish(catalog, changed, err) < 0)
		return -1;
	pthread_mutex_lock(catalog->lock);
	sqlite3_wal_checkpoint_v2(catalog->db, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL, NULL);
	pthread_mutex_unlock(catalog->lock);
	return 0;
}

int catalog_secret_change(struct catalog *catalog, const char *id_or_name, const char *value, const char *metadata,
			  struct husk_error *err)
{
	return change(catalog, id_or_name,
		      "UPDATE secrets SET value = ?3, metadata = coalesce(?4, metadata), version = version + 1, "
		      "updated_ms = ?5 WHERE " MEANT,
		      ARGUMENTS(text(id_or_name), text(catalog->view.tenant), text(value), text(metadata),
				number(time_wall_ms())),
		      err);
}

int catalog_secret_remove(struct catalog *catalog, const char *id_or_name, struct husk_error *err)
{
	return change(catalog, id_or_name, "DELETE FROM secrets WHERE " MEANT,
		      ARGUMENTS(text(id_or_name), text(catalog->view.tenant)), err);
}

int catalog_secret_get(struct catalog *catalog, const char *id_or_name, struct husk_stored_secret **out,
		       struct husk_error *err)
{
	void *row = NULL;

	if (catalog_begin(catalog, CATALOG_READ, err))
		return -1;
	int result = table_one(catalog, &secrets, "WHERE " MEANT,
			       ARGUMENTS(text(id_or_name), text(catalog->view.tenant)), &row, err);

	if (result == 0)
		result = not_found(id_or_name, err);
	if (catalog_finish(catalog, result, err) < 0) {
		husk_stored_secret_free(row);
		return -1;
	}
	*out = row;
	return 0;
}

int catalog_secret_list(struct catalog *catalog, struct husk_stored_secret ***out, struct husk_error *err)
{
	void **list = NULL;

	if (catalog_begin(catalog, CATALOG_READ, err))
		return -1;
	int result = table_all(catalog, &secrets, "WHERE tenant IS ?1 ORDER BY id",
			       ARGUMENTS(text(catalog->view.tenant)), &list, err);

	if (catalog_finish(catalog, result, err)) {
		table_free_list(&secrets, list);
		return -1;
	}
	*out = (struct husk_stored_secret **)list;
	return 0;
}

int catalog_secret_value(struct catalog *catalog, const char *id_or_name, char **out, struct husk_error *err)
{
	cleanup_strv char **found = NULL;

	if (catalog_begin(catalog, CATALOG_READ, err))
		return -1;
	int result = catalog_strings(catalog, "SELECT value FROM secrets WHERE " MEANT,
				     ARGUMENTS(text(id_or_name), text(catalog->view.tenant)), &found, err);

	if (catalog_finish(catalog, result, err) < 0)
		return -1;
	if (!found || !found[0])
		return not_found(id_or_name, err);
	*out = strdup(found[0]);
	explicit_bzero(found[0], strlen(found[0]));
	return *out ? 0 : husk_fail_memory(err);
}
