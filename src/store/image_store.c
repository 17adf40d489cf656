/*
 * The store of pulled images (image_store.h). A removal first removes the name. Blobs are removed when no name leads to
 * them, and never while a process holds the store. If the index cannot be read, nothing is removed: a damaged index
 * must not look like an empty one.
 */
#include "store/image_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "base/jansson.h"

#define INDEX_MAX (16u << 20)
#define NAME "io.containerd.image.name" /* the name by which oci.c finds an image */
#define TEMPLATE "io.husk.template"
#define PULLED "io.husk.pulled"
#define KEY "io.husk.build"
#define WARM "io.husk.warm"
#define BLOB_LOCK ".husk-lock"
#define INDEX_LOCK ".husk-index"

void image_entry_free(struct image_entry *entry)
{
	free(entry->name);
	free(entry->template);
	free(entry->key);
	free(entry->warm);
	*entry = (struct image_entry){ 0 };
}

void image_list_free(struct image_list *list)
{
	for (size_t i = 0; i < list->count; i++)
		image_entry_free(&list->entries[i]);
	free(list->entries);
	*list = (struct image_list){ 0 };
}

/* ---- places ---- */

static int lock_file(const char *path, const char *name, int mode, struct husk_error *err)
{
	cleanup_free char *file = str_format("%s/%s", path, name);
	cleanup_close int fd = file ? open(file, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600) : -1;

	if (fd < 0)
		return husk_fail_errno(err, "cannot open '%s'", file ? file : name);
	while (flock(fd, mode) < 0) {
		if (errno == EWOULDBLOCK)
			return -1;
		if (errno != EINTR)
			return husk_fail_errno(err, "cannot lock '%s'", file);
	}
	return steal_fd(&fd);
}

int image_store_lock(const char *path, int mode, struct husk_error *err)
{
	return lock_file(path, BLOB_LOCK, mode, err);
}

bool image_store_is(const char *path)
{
	cleanup_free char *lock = str_format("%s/" BLOB_LOCK, path);

	return lock && access(lock, F_OK) == 0;
}

int image_store_open(const char *folder, struct image_store *out, struct husk_error *err)
{
	static const char version[] = "{\"imageLayoutVersion\":\"1.0.0\"}\n";
	cleanup_free char *path = str_format("%s/pulled", folder),
			  *blobs = str_format("%s/pulled/blobs/sha256", folder);
	cleanup_free char *partial = str_format("%s/pulled/partial", folder);
	cleanup_free char *mark = str_format("%s/pulled/oci-layout", folder);

	*out = (struct image_store){ 0 };
	if (!path || !blobs || !partial || !mark)
		return husk_fail_memory(err);
	if (dir_make(blobs, 0700, err) < 0 || dir_make(partial, 0700, err) < 0)
		return -1;
	if (access(mark, F_OK) < 0 && file_write_atomic(mark, version, strlen(version), 0600, err) < 0)
		return -1;
	cleanup_close int lock = image_store_lock(path, LOCK_SH | LOCK_NB, err); /* makes the file */
	out->path = steal_pointer(path);
	return 0;
}

void image_store_close(struct image_store *store)
{
	free(store->path);
	store->path = NULL;
}

char *image_store_blob(const struct image_store *store, const char *hex)
{
	return str_format("%s/blobs/sha256/%s", store->path, hex);
}

char *image_store_partial(const struct image_store *store, const char *hex)
{
	return str_format("%s/partial/%s", store->path, hex);
}

bool image_store_has(const struct image_store *store, const char *hex, uint64_t size)
{
	cleanup_free char *path = image_store_blob(store, hex);
	struct stat status;

	return path && lstat(path, &status) == 0 && S_ISREG(status.st_mode) && (uint64_t)status.st_size == size;
}

int image_store_write(const struct image_store *store, const char *hex, const char *text, size_t size,
		      struct husk_error *err)
{
	cleanup_free char *path = image_store_blob(store, hex);

	if (!path)
		return husk_fail_memory(err);
	return image_store_has(store, hex, size) ? 0 : file_write_atomic(path, text, size, 0400, err);
}

/* ---- the index ---- */

static json_t *index_load(const struct image_store *store, struct husk_error *err)
{
	cleanup_free char *path = str_format("%s/index.json", store->path);
	struct husk_error why = { 0 };
	cleanup_free char *text = path ? file_read(path, INDEX_MAX, NULL, &why) : NULL;

	if (!text && path && why.code == HUSK_NOT_FOUND)
		return json_pack("{s:i, s:s, s:[]}", "schemaVersion", 2, "mediaType",
				 "application/vnd.oci.image.index.v1+json", "manifests");
	json_t *root = text ? json_loads(text, 0, NULL) : NULL;
	if (json_is_array(json_object_get(root, "manifests")))
		return root;
	json_decref(root);
	husk_fail(err, why.code ? why.code : HUSK_INTERNAL, "'%s' cannot be read%s%s", path ? path : "index.json",
		  why.code ? ": " : "", why.code ? why.message : "");
	return NULL;
}

static int index_save(const struct image_store *store, json_t *index, struct husk_error *err)
{
	cleanup_free char *path = str_format("%s/index.json", store->path), *text = json_dumps(index, JSON_INDENT(1));

	if (!path || !text)
		return husk_fail_memory(err);
	return file_write_atomic(path, text, strlen(text), 0600, err);
}

static const char *annotation(json_t *entry, const char *key)
{
	return json_string_value(json_object_get(json_object_get(entry, "annotations"), key));
}

/* 1: read; 0: not an entry of Husk. */
static int read_entry(json_t *from, struct image_entry *out, struct husk_error *err)
{
	static const char prefix[] = "sha256:";
	const char *name = annotation(from, NAME), *template = annotation(from, TEMPLATE);
	const char *digest = json_string_value(json_object_get(from, "digest")), *when = annotation(from, PULLED);

	if (!name || !template || !digest || strlen(digest) != strlen(prefix) + OCI_HEX_LENGTH)
		return 0;
	out->name = strdup(name);
	out->template = strdup(template);
	memcpy(out->manifest, digest + strlen(prefix), OCI_HEX_LENGTH + 1);
	out->size = (uint64_t)json_integer_value(json_object_get(from, "size"));
	if (!when || str_to_int64(when, 0, INT64_MAX, &out->pulled_ms) < 0)
		out->pulled_ms = 0;
	const char *key = annotation(from, KEY), *warm = annotation(from, WARM);
	out->key = key ? strdup(key) : NULL;
	out->warm = warm ? strdup(warm) : NULL;
	if (out->name && out->template && (!key || out->key) && (!warm || out->warm))
		return 1;
	image_entry_free(out);
	return husk_fail_memory(err);
}

int image_store_list(const struct image_store *store, struct image_list *out, struct husk_error *err)
{
	cleanup_json json_t *index = index_load(store, err);
	json_t *list = json_object_get(index, "manifests"), *each;
	size_t i;

	*out = (struct image_list){ 0 };
	if (!index)
		return -1;
	out->entries = calloc(json_array_size(list) + 1, sizeof(*out->entries));
	if (!out->entries)
		return husk_fail_memory(err);
	json_array_foreach(list, i, each)
	{
		int taken = read_entry(each, &out->entries[out->count], err);
		if (taken < 0) {
			image_list_free(out);
			return -1;
		}
		out->count += (size_t)taken;
	}
	return 0;
}

/* Returns how many entries of that name were removed. */
static size_t take_out(json_t *index, const char *name)
{
	json_t *list = json_object_get(index, "manifests");
	size_t gone = 0;

	for (size_t i = json_array_size(list); i-- > 0;)
		if (str_equal(annotation(json_array_get(list, i), NAME), name))
			gone += json_array_remove(list, i) == 0;
	return gone;
}

int image_store_put(const struct image_store *store, const struct image_entry *entry, struct husk_error *err)
{
	cleanup_close int lock = lock_file(store->path, INDEX_LOCK, LOCK_EX, err);
	cleanup_json json_t *index = lock < 0 ? NULL : index_load(store, err);
	char digest[sizeof("sha256:") + OCI_HEX_LENGTH], when[24];

	if (!index)
		return -1;
	snprintf(digest, sizeof(digest), "sha256:%s", entry->manifest);
	snprintf(when, sizeof(when), "%lld", (long long)entry->pulled_ms);
	take_out(index, entry->name);
	json_t *made = json_pack("{s:s, s:s, s:I, s:{s:s, s:s, s:s, s:s*, s:s*}}", "mediaType",
				 "application/vnd.oci.image.manifest.v1+json", "digest", digest, "size",
				 (json_int_t)entry->size, "annotations", NAME, entry->name, TEMPLATE, entry->template,
				 PULLED, when, KEY, entry->key, WARM, entry->warm);
	if (json_array_append_new(json_object_get(index, "manifests"), made) < 0)
		return husk_fail_memory(err);
	return index_save(store, index, err);
}

int image_store_drop(const struct image_store *store, const char *name, struct husk_error *err)
{
	cleanup_close int lock = lock_file(store->path, INDEX_LOCK, LOCK_EX, err);
	cleanup_json json_t *index = lock < 0 ? NULL : index_load(store, err);

	if (!index)
		return -1;
	if (take_out(index, name) == 0)
		return husk_fail(err, HUSK_NOT_FOUND, "image '%.200s' is not here (husk image ls)", name);
	return index_save(store, index, err);
}

/* ---- unused blobs ---- */

static int keep(char ***kept, const char *hex, struct husk_error *err)
{
	return strv_add(kept, hex) < 0 ? husk_fail_memory(err) : 0;
}

static int compare(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The digests of everything that an image needs, sorted. */
static int needed(const struct image_store *store, char ***kept, struct husk_error *err)
{
	cleanup(image_list_free) struct image_list list = { 0 };

	if (image_store_list(store, &list, err) < 0)
		return -1;
	for (size_t i = 0; i < list.count; i++) {
		cleanup(oci_image_free) struct oci_image image = { 0 };
		if (oci_load(store->path, store->path, list.entries[i].name, &image, err) < 0)
			return husk_wrap(err, "image '%s' (husk image rm removes it)", list.entries[i].name);
		if (keep(kept, list.entries[i].manifest, err) < 0 || keep(kept, image.config, err) < 0)
			return -1;
		for (size_t k = 0; k < image.layer_count; k++)
			if (keep(kept, image.layers[k].digest, err) < 0)
				return -1;
	}
	if (*kept)
		qsort(*kept, strv_length(*kept), sizeof(**kept), compare);
	return 0;
}

static int clear(const char *folder, char **kept, uint64_t *bytes, struct husk_error *err)
{
	cleanup_dir DIR *dir = opendir(folder);
	size_t count = kept ? strv_length(kept) : 0;

	if (!dir)
		return husk_fail_errno(err, "cannot read '%s'", folder);
	for (struct dirent *entry; (entry = readdir(dir));) {
		const char *name = entry->d_name;
		struct stat status;
		if (str_equal(name, ".") || str_equal(name, "..") ||
		    (count && bsearch(&name, kept, count, sizeof(*kept), compare)))
			continue;
		if (fstatat(dirfd(dir), name, &status, AT_SYMLINK_NOFOLLOW) == 0 &&
		    unlinkat(dirfd(dir), name, 0) == 0 && bytes)
			*bytes += (uint64_t)status.st_blocks * 512;
	}
	return 0;
}

int image_store_sweep(const struct image_store *store, uint64_t *bytes, struct husk_error *err)
{
	struct husk_error why = { 0 };
	cleanup_close int lock = image_store_lock(store->path, LOCK_EX | LOCK_NB, &why);
	cleanup_free char *blobs = str_format("%s/blobs/sha256", store->path);
	cleanup_free char *partial = str_format("%s/partial", store->path);
	cleanup_strv char **kept = NULL;

	if (!blobs || !partial)
		return husk_fail_memory(err);
	if (lock < 0) /* another process pulls or builds: try later */
		return why.code ? husk_fail(err, why.code, "%s", why.message) : 0;
	if (needed(store, &kept, err) < 0)
		return -1;
	return clear(blobs, kept, bytes, err) < 0 || clear(partial, NULL, bytes, err) < 0 ? -1 : 0;
}
