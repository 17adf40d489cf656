/*
 * Creates, lists and removes volumes. Part of the public API (husk.h has the contracts). The row is added before the
 * directory and removed before it. So a directory without a row has no owner, and may be removed at any time.
 */
#include "client/volume_manage.h"

#include "instance/recover.h"
#include "instance/volume_home.h"

#define ID_LENGTH 10 /* after "vol-" */
#define DEFAULT_LIMIT (10ull << 30)
#define LIMIT_MIN (1ull << 20)
#define LIMIT_MAX (16ull << 40)

void husk_volume_free(struct husk_volume *volume)
{
	if (!volume)
		return;
	free(volume->id);
	free(volume->name);
	free(volume->tenant);
	strv_free(volume->sandboxes);
	free(volume);
}

void husk_volume_list_free(struct husk_volume **list)
{
	for (size_t i = 0; list && list[i]; i++)
		husk_volume_free(list[i]);
	free(list);
}

int volume_find(struct husk *husk, const char *id_or_name, struct volume *out, struct husk_error *err)
{
	struct catalog_volume *row = NULL;

	if (catalog_volume_get(husk->catalog, id_or_name, &row, err) < 0)
		return -1;
	int result = volume_home_open(husk, row, out, err);
	catalog_volume_free(row);
	return result;
}

/* `now`: its use at this moment. A list does not wait for the disk. */
static struct husk_volume *show(struct husk *husk, const struct catalog_volume *row, bool now, struct husk_error *err)
{
	struct husk_volume *out = calloc(1, sizeof(*out));

	if (!out) {
		husk_fail_memory(err);
		return NULL;
	}
	*out = (struct husk_volume){ .id = strdup(row->id),
				     .name = strdup(row->name),
				     .tenant = row->tenant ? strdup(row->tenant) : NULL,
				     .created_ms = row->created_ms,
				     .limit_bytes = row->limit_bytes };
	int result = out->id && out->name && (!row->tenant || out->tenant) ? 0 : husk_fail_memory(err);
	if (result == 0)
		result = catalog_volume_users(husk->catalog, row->id, &out->sandboxes, err);
	if (result == 0)
		result = volume_home_used(husk, row, now, &out->used_bytes, err);
	if (result < 0) {
		husk_volume_free(out);
		return NULL;
	}
	return out;
}

static int check_name(const char *name, struct husk_error *err)
{
	if (!name)
		return husk_fail_field(err, "name", "a volume needs a name");
	size_t length = strlen(name);
	if (length == 0 || length > 63 || strchr("-_.", name[0]) ||
	    strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") != length)
		return husk_fail_field(err, "name",
				       "name '%.80s' is not valid: use 1 to 63 of a-z A-Z 0-9 - _ . and start with "
				       "a letter or digit",
				       name);
	if (is_random_id(name, "vol-", ID_LENGTH))
		return husk_fail_field(err, "name", "name '%s' looks like an id; choose one without 'vol-' in front",
				       name);
	return 0;
}

int husk_volume_create(struct husk *husk, const char *name, uint64_t limit_bytes, struct husk_volume **out,
		       struct husk_error *err)
{
	if (husk->remote)
		return remote_volume_create(husk->remote, name, limit_bytes, out, err);
	char id[32];

	if (check_name(name, err) < 0)
		return -1;
	if (limit_bytes && (limit_bytes < LIMIT_MIN || limit_bytes > LIMIT_MAX))
		return husk_fail_field(err, "size", "size must be between 1 MiB and 16 TiB, not %llu bytes",
				       (unsigned long long)limit_bytes);
	if (random_id("vol-", ID_LENGTH, id) < 0)
		return husk_fail_errno(err, "cannot make an id");
	struct catalog_volume row = { .id = id,
				      .name = (char *)name,
				      .created_ms = time_wall_ms(),
				      .limit_bytes = limit_bytes ? limit_bytes : DEFAULT_LIMIT };
	if (catalog_volume_add(husk->catalog, &row, err) < 0)
		return -1;
	const struct engine_shares *shares = NULL;
	cleanup_free char *directory = NULL;
	if (volume_home(husk, &row, &directory, &shares, err) < 0) {
		catalog_volume_remove(husk->catalog, id, NULL);
		return -1;
	}
	return out ? husk_volume_inspect(husk, id, out, err) : 0;
}

int husk_volume_inspect(struct husk *husk, const char *volume, struct husk_volume **out, struct husk_error *err)
{
	if (husk->remote)
		return remote_volume_inspect(husk->remote, volume, out, err);
	struct catalog_volume *row = NULL;

	if (catalog_volume_get(husk->catalog, volume, &row, err) < 0)
		return -1;
	*out = show(husk, row, true, err);
	catalog_volume_free(row);
	return *out ? 0 : -1;
}

int husk_volume_list(struct husk *husk, struct husk_volume ***out, struct husk_error *err)
{
	if (husk->remote)
		return remote_volume_list(husk->remote, out, err);
	struct catalog_volume **rows = NULL;
	size_t count = 0;

	if (catalog_volume_list(husk->catalog, &rows, err) < 0)
		return -1;
	while (rows[count])
		count++;
	struct husk_volume **list = calloc(count + 1, sizeof(*list));
	int result = list ? 0 : husk_fail_memory(err);
	for (size_t i = 0; i < count && result == 0; i++)
		if (!(list[i] = show(husk, rows[i], false, err)))
			result = -1;
	catalog_volume_list_free(rows);
	if (result < 0)
		husk_volume_list_free(list);
	else
		*out = list;
	return result;
}

int husk_volume_remove(struct husk *husk, const char *volume, struct husk_error *err)
{
	if (husk->remote)
		return remote_volume_remove(husk->remote, volume, err);
	struct catalog_volume *row = NULL;

	if (catalog_volume_get(husk->catalog, volume, &row, err) < 0)
		return -1;
	/* A sandbox whose supervisor was killed does not use the volume any more. */
	husk_recover(husk, NULL);
	cleanup_free char *directory = path_volume(&husk->paths, row->id);
	int result = directory ? catalog_volume_remove(husk->catalog, row->id, err) : husk_fail_memory(err);
	catalog_volume_free(row);
	return result == 0 ? engine_remove(directory, err) : -1;
}
