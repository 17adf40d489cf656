/*
 * husk_image_push: an image of the store (store/image_store.h) into a registry. Config and layers are sent first, except
 * those that the repository already has; the manifest is sent last. An interrupted push changes nothing that has a name.
 */
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/jansson.h"
#include "instance/images.h"
#include "instance/instance.h"
#include "registry/registry.h"
#include "store/image_store.h"
#include "store/portable.h"

#define MANIFEST_MAX (8u << 20)

struct image_push {
	const struct image_store *store;
	struct registry *registry;
	husk_progress progress;
	void *data;
	uint64_t done;
	struct husk_pushed *result;
};

/* Also asked while a layer is on its way. */
static bool stop_asked(void *data)
{
	const struct image_push *push = data;

	return push->progress && push->progress(push->data, push->done, push->result->bytes);
}

/* Sends a blob, unless it is there. The file is mapped: a layer may be larger than the memory. */
static int push_blob(struct image_push *push, const char *digest, struct husk_error *err)
{
	cleanup_free char *path = image_store_blob(push->store, digest);
	cleanup_close int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	struct stat found;

	if (fd < 0 || fstat(fd, &found) < 0)
		return husk_fail_errno(err, "cannot read the blob %.12s… of the image", digest);
	size_t size = (size_t)found.st_size;
	int known = registry_has(push->registry, digest, err);
	if (known < 0)
		return -1;
	if (!known) {
		void *bytes = size ? mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0) : NULL;
		if (bytes == MAP_FAILED)
			return husk_fail_errno(err, "cannot map the blob %.12s… of the image", digest);
		int result = registry_put_blob(push->registry, digest, bytes, size, err);
		if (bytes)
			munmap(bytes, size);
		if (result < 0)
			return -1;
		push->result->sent_bytes += size;
		push->result->sent_chunks++;
	}
	push->result->chunks++;
	return 0;
}

static int push_blobs(struct image_push *push, const struct oci_image *image, struct husk_error *err)
{
	for (size_t i = 0; i < image->layer_count; i++)
		push->result->bytes += image->layers[i].size;
	for (size_t i = 0; i < image->layer_count; i++) {
		if (stop_asked(push))
			return husk_fail(err, HUSK_GONE, "interrupted");
		if (push_blob(push, image->layers[i].digest, err) < 0)
			return -1;
		push->done += image->layers[i].size;
	}
	return push_blob(push, image->config, err);
}

static int push_manifest(struct image_push *push, const char *digest, struct husk_error *err)
{
	cleanup_free char *path = image_store_blob(push->store, digest);
	cleanup_free char *text = path ? file_read(path, MANIFEST_MAX, NULL, err) : NULL;
	cleanup_json json_t *root = text ? json_loads(text, 0, NULL) : NULL;
	const char *type = json_string_value(json_object_get(root, "mediaType"));

	if (!text)
		return -1;
	return registry_put_manifest(push->registry, type ? type : PORTABLE_MANIFEST_TYPE, text, err);
}

/* The name in the registry. A name without one, as `husk build -t tool` gives, needs another. */
static int target_of(const char *name, const char *reference, struct reference *out, struct husk_error *err)
{
	const char *wanted = reference ? reference : name;

	if (reference_parse(wanted, getenv("HUSK_REGISTRY"), out, err) < 0)
		return -1;
	if (!out->tag)
		return husk_fail_field(err, "name", "'%.120s' names a digest; give REGISTRY/NAME:TAG to push it to",
				       wanted);
	if (!reference && !strchr(name, '/'))
		return husk_fail_field(err, "name", "'%.120s' names no registry; give REGISTRY/NAME:TAG to push it to",
				       name);
	return 0;
}

static int push_to(struct image_push *push, const struct husk_image *image, struct husk_error *err)
{
	cleanup(oci_image_free) struct oci_image found = { 0 };

	if (oci_load(push->store->path, image->name, image->name, &found, err) < 0 || push_blobs(push, &found, err) < 0)
		return -1;
	return push_manifest(push, image->digest + strlen("sha256:"), err);
}

int husk_image_push(struct husk *husk, const char *name, const char *reference, husk_progress progress, void *data,
		    struct husk_pushed **out, struct husk_error *err)
{
	if (husk->remote)
		return remote_refuse(husk->remote, "pushing an image", "do it on the server's host", err);
	cleanup(image_store_close) struct image_store store = { 0 };
	cleanup(reference_free) struct reference target = { 0 };
	cleanup_registry struct registry *registry = NULL;
	cleanup_free char *folder = path_images(&husk->paths);
	struct husk_image *image = NULL;
	struct husk_pushed *result = calloc(1, sizeof(*result));

	if (!folder || !result) {
		free(result);
		return husk_fail_memory(err);
	}
	struct image_push push = { .store = &store, .progress = progress, .data = data, .result = result };
	int status = husk_owner_only(husk, "pushing an image", err);
	if (status == 0)
		status = target_of(name, reference, &target, err);
	if (status == 0)
		status = image_store_open(folder, &store, err);
	cleanup_close int lock = status == 0 ? image_store_lock(store.path, LOCK_SH, err) : -1;
	if (lock < 0 || husk_image_inspect(husk, name, &image, err) < 0 ||
	    registry_open(&target, stop_asked, &push, &registry, err) < 0)
		status = -1;
	if (status == 0) {
		registry_for_push(registry);
		push.registry = registry;
		result->name = reference_name(&target);
		result->digest = strdup(image->digest);
		status = result->name && result->digest ? push_to(&push, image, err) : husk_fail_memory(err);
	}
	husk_image_free(image);
	if (status == 0 && out)
		*out = result;
	else
		husk_pushed_free(result);
	return status;
}
