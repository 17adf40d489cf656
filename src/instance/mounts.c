/*
 * Volume mounts as options, as JSON and as public structures; see mounts.h. Called by create, by the supervisor and by
 * view.c. A path that would hide what the guest itself needs is refused.
 */
#include "instance/mounts.h"

#include <jansson.h>

#define PATH_LENGTH_MAX 1024u

void mounts_free(struct mount_row *rows, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		free(rows[i].id);
		free(rows[i].name);
		free(rows[i].path);
		free(rows[i].subpath);
	}
	free(rows);
}

static int take_row(const json_t *item, struct mount_row *out)
{
	const char *id = NULL, *name = NULL, *path = NULL, *subpath = NULL;
	int read_only = 0;

	if (json_unpack((json_t *)item, "{s:s, s:s, s:s, s:b, s?s}", "id", &id, "name", &name, "path", &path,
			"read_only", &read_only, "subpath", &subpath) < 0)
		return -1;
	*out = (struct mount_row){ strdup(id), strdup(name), strdup(path), read_only,
				   subpath ? strdup(subpath) : NULL };
	return out->id && out->name && out->path && (out->subpath || !subpath) ? 0 : -1;
}

int mounts_parse(const char *json, struct mount_row **out, size_t *count, struct husk_error *err)
{
	json_t *root = json ? json_loads(json, 0, NULL) : json_array();
	size_t size = json_array_size(root);
	struct mount_row *rows = calloc(size + 1, sizeof(*rows));
	int result = json_is_array(root) && rows ? 0 : husk_fail(err, HUSK_INTERNAL, "the list of volumes is damaged");

	for (size_t i = 0; i < size && result == 0; i++)
		if (take_row(json_array_get(root, i), &rows[i]) < 0)
			result = husk_fail(err, HUSK_INTERNAL, "the list of volumes is damaged");
	json_decref(root);
	if (result < 0) {
		mounts_free(rows, rows ? size : 0);
		return -1;
	}
	*out = rows;
	*count = size;
	return 0;
}

/* ---- checking ---- */

static bool is_within(const char *path, const char *directory)
{
	size_t size = strlen(directory);

	return str_starts(path, directory) && (path[size] == '/' || path[size] == '\0');
}

static int check_path(const char *path, struct husk_error *err)
{
	static const char *const own[] = { "/proc", "/sys",  "/dev", "/.husk", "/etc",
					   "/bin",  "/sbin", "/lib", "/lib64", "/usr" };
	size_t length = path ? strlen(path) : 0;

	if (!length || path[0] != '/' || length > PATH_LENGTH_MAX || !str_is_utf8(path, length))
		return husk_fail_field(err, "volumes", "the path '%.80s' of a volume is not absolute; begin it with /",
				       path ? path : "");
	if (length == 1 || path[length - 1] == '/' || strstr(path, "//") || strstr(path, "/./") ||
	    strstr(path, "/../") || str_ends(path, "/.") || str_ends(path, "/.."))
		return husk_fail_field(err, "volumes",
				       "the path '%.80s' of a volume is not plain; name a directory, "
				       "without //, . and .. in it and without / at its end",
				       path);
	for (size_t i = 0; i < ARRAY_SIZE(own); i++)
		if (str_equal(path, own[i]) || (i < 4 && is_within(path, own[i])))
			return husk_fail_field(err, "volumes",
					       "a volume cannot be mounted at '%s', which the sandbox itself needs",
					       path);
	return 0;
}

static int check_subpath(const char *subpath, struct husk_error *err)
{
	cleanup_free char *framed = str_format("/%s/", subpath);

	if (!framed)
		return husk_fail_memory(err);
	if (!*subpath || strlen(subpath) > PATH_LENGTH_MAX || !str_is_utf8(subpath, strlen(subpath)) ||
	    strstr(framed, "//") || strstr(framed, "/./") || strstr(framed, "/../"))
		return husk_fail_field(
			err, "volumes",
			"the subpath '%.80s' of a volume is not plain; name a directory of it as in a/b, "
			"without //, . and .. in it and without / at its ends",
			subpath);
	return 0;
}

int mounts_check(const struct husk_mount *mounts, size_t count, struct husk_error *err)
{
	if (count > MOUNTS_MAX)
		return husk_fail_field(err, "volumes", "a sandbox can have %d volumes, not %zu", MOUNTS_MAX, count);
	for (size_t i = 0; i < count; i++) {
		if (!mounts[i].volume || !*mounts[i].volume)
			return husk_fail_field(err, "volumes", "a volume is missing its name");
		if (check_path(mounts[i].path, err) < 0 ||
		    (mounts[i].subpath && check_subpath(mounts[i].subpath, err) < 0))
			return -1;
		for (size_t k = 0; k < i; k++)
			if (is_within(mounts[i].path, mounts[k].path) || is_within(mounts[k].path, mounts[i].path))
				return husk_fail_field(err, "volumes",
						       "volumes at '%s' and '%s' lie in each other; choose other paths",
						       mounts[k].path, mounts[i].path);
	}
	return 0;
}

/* ---- planning ---- */

static int add_wanted(struct husk *husk, json_t *list, const struct husk_mount *mount, struct husk_error *err)
{
	struct catalog_volume *volume = NULL;

	if (catalog_volume_get(husk->catalog, mount->volume, &volume, err) < 0)
		return -1;
	json_t *item = json_pack("{s:s, s:s, s:s, s:b, s:s*}", "id", volume->id, "name", volume->name, "path",
				 mount->path, "read_only", mount->read_only, "subpath", mount->subpath);
	catalog_volume_free(volume);
	return item && json_array_append_new(list, item) == 0 ? 0 : husk_fail_memory(err);
}

static int check_list(const json_t *list, struct husk_error *err)
{
	struct husk_mount all[2 * MOUNTS_MAX];
	size_t count = json_array_size(list);

	for (size_t i = 0; i < MIN(count, ARRAY_SIZE(all)); i++) {
		const json_t *item = json_array_get(list, i);
		all[i] = (struct husk_mount){ json_string_value(json_object_get(item, "name")),
					      json_string_value(json_object_get(item, "path")), false,
					      json_string_value(json_object_get(item, "subpath")) };
	}
	return mounts_check(all, count, err);
}

int mounts_plan(struct husk *husk, const char *inherited, const struct husk_mount *mounts, size_t count, char **out,
		struct husk_error *err)
{
	json_t *list = inherited ? json_loads(inherited, 0, NULL) : json_array();
	int result = json_is_array(list) ? 0 : husk_fail(err, HUSK_INTERNAL, "the list of volumes is damaged");

	for (size_t i = 0; i < count && result == 0; i++)
		result = add_wanted(husk, list, &mounts[i], err);
	if (result == 0)
		result = check_list(list, err);
	*out = NULL;
	if (result == 0 && json_array_size(list) > 0 && !(*out = json_dumps(list, JSON_COMPACT)))
		result = husk_fail_memory(err);
	json_decref(list);
	return result;
}

/* ---- the view ---- */

void mounts_view_free(struct husk_mount *mounts, size_t count)
{
	for (size_t i = 0; mounts && i < count; i++) {
		free((char *)mounts[i].volume);
		free((char *)mounts[i].path);
		free((char *)mounts[i].subpath);
	}
	free(mounts);
}

int mounts_view(const char *json, struct husk_mount **out, size_t *count)
{
	struct mount_row *rows = NULL;
	size_t size = 0;

	if (mounts_parse(json, &rows, &size, NULL) < 0)
		return -1;
	struct husk_mount *list = calloc(size + 1, sizeof(*list));
	for (size_t i = 0; list && i < size; i++)
		list[i] = (struct husk_mount){ steal_pointer(rows[i].name), steal_pointer(rows[i].path),
					       rows[i].read_only, steal_pointer(rows[i].subpath) };
	mounts_free(rows, size);
	*out = list;
	*count = list ? size : 0;
	return list ? 0 : -1;
}
