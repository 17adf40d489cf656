/*
 * The values of environments, beside the database: <home>/environments/<id>, one file for each sandbox and snapshot with
 * variables. SQLite keeps deleted data in its log and on free pages for as long as a process has the database open; an
 * unlinked file is gone. The catalog row has the names only. Called inside the write transaction that adds the row, and
 * after the transaction that ends it. A process that is killed in between leaves a file without a row, which
 * catalog_values_sweep removes.
 */
#include <fcntl.h>
#include <jansson.h>
#include <sys/stat.h>

#include "store/catalog_kit.h"

#define VALUES_MAX (16u << 20)

static char *path_of(const struct catalog *catalog, const char *id)
{
	return str_format("%s/%s", catalog->values, id);
}

/* The same object with empty values. */
static char *names_of(const char *environment)
{
	json_t *object = json_loads(environment, 0, NULL);
	const char *key;
	json_t *value;
	bool bad = !object;

	json_object_foreach(object, key, value) bad |= json_object_set_new(object, key, json_string("")) < 0;
	char *names = bad ? NULL : json_dumps(object, JSON_COMPACT);
	json_decref(object);
	return names;
}

static bool is_empty(const char *environment)
{
	return !environment || !*environment || str_equal(environment, "{}");
}

int values_put(struct catalog *catalog, const char *id, const char *environment, char **names, struct husk_error *err)
{
	cleanup_free char *path = path_of(catalog, id);

	*names = NULL;
	if (!path)
		return husk_fail_memory(err);
	if (is_empty(environment)) {
		*names = environment ? strdup(environment) : NULL;
		return environment && !*names ? husk_fail_memory(err) : 0;
	}
	if (mkdir(catalog->values, 0700) < 0 && errno != EEXIST)
		return husk_fail_errno(err, "cannot make '%s'", catalog->values);
	*names = names_of(environment);
	if (!*names)
		return husk_fail_memory(err);
	return file_write_atomic(path, environment, strlen(environment), 0600, err);
}

/* Replaces the names by the content of the file; a row of an older husk has the values itself. */
int values_get(struct catalog *catalog, const char *id, char **environment, struct husk_error *err)
{
	cleanup_free char *path = path_of(catalog, id);

	if (!path)
		return husk_fail_memory(err);
	if (is_empty(*environment) || access(path, F_OK) < 0)
		return 0;
	char *whole = file_read(path, VALUES_MAX, NULL, err);
	if (!whole)
		return -1;
	free(*environment);
	*environment = whole;
	return 0;
}

void values_drop(struct catalog *catalog, const char *id)
{
	cleanup_free char *path = path_of(catalog, id);

	if (path)
		unlink(path);
}

static int sweep(struct catalog *catalog, struct husk_error *err)
{
	cleanup_dir DIR *dir = opendir(catalog->values);
	struct dirent *entry;

	while (dir && (entry = readdir(dir))) {
		int64_t known = 0;

		if (entry->d_type != DT_REG)
			continue;
		if (catalog_number(catalog,
				   "SELECT 1 FROM sandboxes WHERE id = ?1 AND state <> 'ended' UNION "
				   "SELECT 1 FROM snapshots WHERE id = ?1",
				   ARGUMENTS(text(entry->d_name)), &known, err) < 0)
			return -1;
		if (!known)
			unlinkat(dirfd(dir), entry->d_name, 0);
	}
	return 0;
}

int catalog_values_sweep(struct catalog *catalog, struct husk_error *err)
{
	if (catalog_begin(catalog, CATALOG_WRITE, err))
		return -1;
	return catalog_finish(catalog, sweep(catalog, err), err);
}
