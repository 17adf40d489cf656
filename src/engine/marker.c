/*
 * The marker of an image; see marker.h. Called by each engine around checkpoint and restore. An image must never be
 * continued when it has no marker, belongs to another engine, root image or disk size, or was not yet on disk when the host
 * went down.
 */
#include "engine/marker.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/stat.h>

#include "engine/engine.h"

#define MARKER "ok"
#define MARKER_MAX (1u << 20) /* with as many past addresses as there can be, a third of that */
#define EDGE_SIZE (64u << 10)

int marker_digest(const void *data, size_t size, char out[static MARKER_DIGEST_TEXT], struct husk_error *err)
{
	unsigned char digest[EVP_MAX_MD_SIZE];

	if (EVP_Digest(data, size, digest, NULL, EVP_sha256(), NULL) != 1)
		return husk_fail(err, HUSK_INTERNAL, "cannot compute a digest");
	for (size_t i = 0; i < (MARKER_DIGEST_TEXT - 1) / 2; i++)
		snprintf(out + 2 * i, 3, "%02x", digest[i]);
	return 0;
}

/* Digest of the ends of a file and its size: enough to tell root images apart, which are large and never change. */
static int digest_edges(const char *path, char out[static MARKER_DIGEST_TEXT], struct husk_error *err)
{
	cleanup_close int fd = open(path, O_RDONLY | O_CLOEXEC);
	cleanup_free char *edges = malloc(2 * EDGE_SIZE + sizeof(uint64_t));
	struct stat found;
	uint64_t size;
	ssize_t head, tail;

	if (!edges)
		return husk_fail_memory(err);
	if (fd < 0 || fstat(fd, &found) < 0)
		return husk_fail_errno(err, "cannot open root image '%s'", path);
	size = (uint64_t)found.st_size;
	head = pread(fd, edges, EDGE_SIZE, 0);
	tail = pread(fd, edges + EDGE_SIZE, EDGE_SIZE, found.st_size > EDGE_SIZE ? found.st_size - EDGE_SIZE : 0);
	if (head < 0 || tail < 0)
		return husk_fail_errno(err, "cannot read root image '%s'", path);
	memmove(edges + head, edges + EDGE_SIZE, (size_t)tail);
	memcpy(edges + head + tail, &size, sizeof(size));
	return marker_digest(edges, (size_t)(head + tail) + sizeof(size), out, err);
}

int marker_identify(const char *engine, const char *rootfs, uint64_t disk_bytes, struct marker_identity *out,
		    struct husk_error *err)
{
	*out = (struct marker_identity){ .engine = engine, .disk_bytes = disk_bytes };
	snprintf(out->rootfs_path, sizeof(out->rootfs_path), "%s", rootfs);
	return digest_edges(rootfs, out->rootfs, err);
}

static char *boot_id(struct husk_error *err)
{
	char *text = file_read("/proc/sys/kernel/random/boot_id", 128, NULL, err);

	if (text)
		text[strcspn(text, "\n")] = '\0';
	return text;
}

static char *marker_path(const char *image)
{
	return str_format("%s/" MARKER, image);
}

bool marker_exists(const char *image)
{
	cleanup_free char *path = marker_path(image);

	return path && access(path, F_OK) == 0;
}

/* ---- writing ---- */

int marker_write(const char *image, const struct marker_identity *identity, json_t *more, struct husk_error *err)
{
	cleanup_free char *path = marker_path(image);
	cleanup_free char *boot = boot_id(err);
	cleanup_free char *text = NULL;
	json_t *marker =
		!boot ? NULL
		      : json_pack("{s:s, s:s, s:I, s:s}", "engine", identity->engine, "rootfs", identity->rootfs,
				  "disk_bytes", (json_int_t)identity->disk_bytes, "boot", boot);

	if (marker && (!more || json_object_update(marker, more) == 0))
		text = json_dumps(marker, JSON_INDENT(1));
	json_decref(marker);
	json_decref(more);
	if (!boot)
		return -1;
	if (!path || !text)
		return husk_fail_memory(err);
	return file_write_atomic(path, text, strlen(text), 0600, err);
}

/* ---- reading ---- */

const char *marker_text(json_t *marker, const char *key)
{
	const char *value = json_string_value(json_object_get(marker, key));

	return value ? value : "";
}

json_t *marker_load(const char *image, struct husk_error *err)
{
	cleanup_free char *path = marker_path(image);
	cleanup_free char *text = path ? file_read(path, MARKER_MAX, NULL, NULL) : NULL;
	json_t *marker;

	if (!text) {
		husk_fail(err, HUSK_NOT_FOUND, "'%s' holds no complete image", image);
		return NULL;
	}
	marker = json_loads(text, 0, NULL);
	if (!json_is_object(marker)) {
		json_decref(marker);
		husk_fail(err, HUSK_INVALID, "the image in '%s' is damaged: its '" MARKER "' file makes no sense",
			  image);
		return NULL;
	}
	return marker;
}

static int check_durable(const char *image, json_t *marker, struct husk_error *err)
{
	cleanup_free char *durable = str_format("%s/" ENGINE_IMAGE_DURABLE, image);
	cleanup_free char *boot = boot_id(err);

	if (!boot)
		return -1;
	if (!durable)
		return husk_fail_memory(err);
	if (strcmp(marker_text(marker, "boot"), boot) != 0 && access(durable, F_OK) < 0)
		return husk_fail(err, HUSK_GONE, "the image in '%s' was not on disk yet when the host went down",
				 image);
	return 0;
}

static int check_identity(const char *image, json_t *marker, const struct marker_identity *identity,
			  struct husk_error *err)
{
	json_int_t disk = json_integer_value(json_object_get(marker, "disk_bytes"));

	if (strcmp(marker_text(marker, "engine"), identity->engine) != 0)
		return husk_fail(err, HUSK_INVALID, "the image in '%s' was made by the engine '%s', not by '%s'", image,
				 marker_text(marker, "engine"), identity->engine);
	if (strcmp(marker_text(marker, "rootfs"), identity->rootfs) != 0)
		return husk_fail(err, HUSK_CONFLICT, "the image in '%s' was made from another root image than '%s'",
				 image, identity->rootfs_path);
	if (disk < 0 || (uint64_t)disk != identity->disk_bytes)
		return husk_fail(err, HUSK_CONFLICT,
				 "the image in '%s' has a disk of %lld bytes, this machine one of %llu", image,
				 (long long)disk, (unsigned long long)identity->disk_bytes);
	return 0;
}

json_t *marker_read(const char *image, const struct marker_identity *identity, struct husk_error *err)
{
	json_t *marker = marker_load(image, err);

	if (marker && (check_durable(image, marker, err) < 0 || check_identity(image, marker, identity, err) < 0)) {
		json_decref(marker);
		return NULL;
	}
	return marker;
}
