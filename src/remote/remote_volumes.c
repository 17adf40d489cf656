/*
 * Volumes over the API: create, show, list, remove, and the files in them, whose content is sent in pieces.
 */
#include "remote/remote_http.h"
#include "remote/remote_read.h"
#include "remote/remote_write.h"

static void *read_one(const json_t *item, struct husk_error *err)
{
	return read_volume(item, err);
}

static void drop_one(void *volume)
{
	husk_volume_free(volume);
}

static int check_name(const char *volume, struct husk_error *err)
{
	if (volume && *volume && !str_equal(volume, ".") && !str_equal(volume, ".."))
		return 0;
	return husk_fail(err, HUSK_NOT_FOUND, "volume '%s' not found (husk volume ls)", volume ? volume : "");
}

static int take_volume(json_t *document, struct husk_volume **out, struct husk_error *err)
{
	*out = read_volume(document, err);
	json_decref(document);
	return *out ? 0 : -1;
}

int remote_volume_create(struct remote *remote, const char *name, uint64_t limit_bytes, struct husk_volume **out,
			 struct husk_error *err)
{
	json_t *document = NULL;
	struct writing w;

	write_begin(&w);
	write_text(&w, "name", name);
	write_size(&w, "size", limit_bytes);
	struct exchange x = { .method = "POST", .body = write_done(&w, err) };
	if (!x.body)
		return -1;
	x.target = target_make("/v1/volumes");
	return exchange_run(remote, &x, &document, err) < 0 ? -1 : take_volume(document, out, err);
}

int remote_volume_inspect(struct remote *remote, const char *volume, struct husk_volume **out, struct husk_error *err)
{
	json_t *document = NULL;

	if (check_name(volume, err) < 0 ||
	    exchange_get(remote, target_make("/v1/volumes/%s", volume), &document, err) < 0)
		return -1;
	return take_volume(document, out, err);
}

int remote_volume_list(struct remote *remote, struct husk_volume ***out, struct husk_error *err)
{
	cleanup_json json_t *document = NULL;

	if (exchange_get(remote, target_make("/v1/volumes"), &document, err) < 0)
		return -1;
	return read_list(document, "volumes", read_one, drop_one, (void ***)out, err);
}

int remote_volume_remove(struct remote *remote, const char *volume, struct husk_error *err)
{
	if (check_name(volume, err) < 0)
		return -1;
	struct exchange x = { .method = "DELETE", .target = target_make("/v1/volumes/%s", volume) };
	return exchange_run(remote, &x, NULL, err);
}

/* ---- files ---- */

/* "/v1/volumes/NAME/files<what>?path=…" */
static char *file_target(const char *volume, const char *what, const char *path)
{
	cleanup_free char *start = target_make("/v1/volumes/%s/files", volume);

	return target_add(start ? str_format("%s%s", start, what) : NULL, "path", path);
}

int remote_volume_file_stat(struct remote *remote, const char *volume, const char *path, struct husk_file *out,
			    struct husk_error *err)
{
	cleanup_json json_t *document = NULL;

	if (check_name(volume, err) < 0 || exchange_get(remote, file_target(volume, "/stat", path), &document, err) < 0)
		return -1;
	return read_file(document, out, err);
}

int remote_volume_file_list(struct remote *remote, const char *volume, const char *path, uint32_t depth,
			    struct husk_file **out, size_t *count, struct husk_error *err)
{
	cleanup_json json_t *document = NULL;

	if (check_name(volume, err) < 0 ||
	    exchange_get(remote, target_add_int(file_target(volume, "/list", path), "depth", depth), &document, err) <
		    0)
		return -1;
	const json_t *array = read_array(document, "entries", err);
	size_t size = json_array_size(array);
	struct husk_file *list = array ? calloc(size + 1, sizeof(*list)) : NULL;
	if (!list)
		return array ? husk_fail_memory(err) : -1;
	for (size_t i = 0; i < size; i++)
		if (read_file(json_array_get(array, i), &list[i], err) < 0) {
			husk_file_list_free(list, i);
			return -1;
		}
	*out = list;
	*count = size;
	return 0;
}

int remote_volume_file_read(struct remote *remote, const char *volume, const char *path, uint64_t offset,
			    uint64_t length, husk_sink sink, void *data, struct husk_error *err)
{
	if (check_name(volume, err) < 0)
		return -1;
	char *target = file_target(volume, "", path);
	if (offset)
		target = target_add_int(target, "offset", (int64_t)MIN(offset, (uint64_t)INT64_MAX));
	if (length)
		target = target_add_int(target, "length", (int64_t)MIN(length, (uint64_t)INT64_MAX));
	struct exchange x = { .method = "GET", .target = target, .sink = sink, .sink_data = data };
	return exchange_run(remote, &x, NULL, err);
}

int remote_volume_file_write(struct remote *remote, const char *volume, const char *path,
			     const struct husk_file_attributes *attributes, husk_source source, void *data,
			     struct husk_error *err)
{
	static const struct husk_file_attributes keep = { HUSK_KEEP, HUSK_KEEP, HUSK_KEEP, false };
	const struct husk_file_attributes *wanted = attributes ? attributes : &keep;
	char mode[16];

	if (check_name(volume, err) < 0)
		return -1;
	char *target = file_target(volume, "", path);
	snprintf(mode, sizeof(mode), "%04o", wanted->mode);
	target = target_add(target, "mode", wanted->mode == HUSK_KEEP ? NULL : mode);
	if (wanted->uid != HUSK_KEEP)
		target = target_add_int(target, "uid", wanted->uid);
	if (wanted->gid != HUSK_KEEP)
		target = target_add_int(target, "gid", wanted->gid);
	target = target_add(target, "fresh", wanted->fresh ? "true" : NULL);
	struct exchange x = { .method = "PUT",
			      .target = target,
			      .source = source,
			      .source_data = data,
			      .type = "application/octet-stream" };
	return exchange_run(remote, &x, NULL, err);
}

/* mkdir and change: a path and attributes. */
static int send_attributes(struct remote *remote, const char *volume, const char *what, const char *path,
			   const struct husk_file_attributes *attributes, bool alone, struct husk_error *err)
{
	struct writing w;
	char mode[16];

	if (check_name(volume, err) < 0)
		return -1;
	write_begin(&w);
	write_text(&w, "path", path);
	if (attributes) {
		snprintf(mode, sizeof(mode), "%04o", attributes->mode);
		write_text(&w, "mode", attributes->mode == HUSK_KEEP ? NULL : mode);
		if (attributes->uid != HUSK_KEEP)
			write_json(&w, "uid", json_integer(attributes->uid));
		if (attributes->gid != HUSK_KEEP)
			write_json(&w, "gid", json_integer(attributes->gid));
	}
	if (alone)
		write_json(&w, "parents", json_false());
	struct exchange x = { .method = "POST", .body = write_done(&w, err) };
	if (!x.body)
		return -1;
	x.target = file_target(volume, what, NULL);
	return exchange_run(remote, &x, NULL, err);
}

int remote_volume_file_mkdir(struct remote *remote, const char *volume, const char *path,
			     const struct husk_file_attributes *attributes, bool parents, struct husk_error *err)
{
	return send_attributes(remote, volume, "/mkdir", path, attributes, !parents, err);
}

int remote_volume_file_change(struct remote *remote, const char *volume, const char *path,
			      const struct husk_file_attributes *attributes, struct husk_error *err)
{
	return send_attributes(remote, volume, "/change", path, attributes, false, err);
}

int remote_volume_file_remove(struct remote *remote, const char *volume, const char *path, struct husk_error *err)
{
	if (check_name(volume, err) < 0)
		return -1;
	struct exchange x = { .method = "DELETE", .target = file_target(volume, "", path) };
	return exchange_run(remote, &x, NULL, err);
}
