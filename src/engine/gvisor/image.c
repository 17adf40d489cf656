/*
 * A checkpoint of the gVisor engine as a directory: runsc's three files, and a small file `ok` written last that says
 * what they are an image of. Called by gvisor.c around the checkpoint and restore calls. An image without `ok`, with a
 * file of another size or sum, or of another runsc, root image or disk size must never reach runsc: it would fail
 * there in ways that say nothing, or worse, not fail.
 *
 * Nobody waits for the disk here. The marker names the boot of the host it was written in; after another boot only an
 * image that was flushed since (engine_image_sync) is taken.
 */
#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "engine/gvisor/gvisor.h"

#define MARKER "ok"
#define EDGE_SIZE (64u << 10)
#define SPACE_MIN (1u << 20)
#define DIGEST_TEXT 65 /* SHA-256 in hex */

static const char *const file_names[IMAGE_FILES] = {
	[IMAGE_STATE] = "checkpoint.img", [IMAGE_META] = "pages_meta.img", [IMAGE_PAGES] = "pages.img"
};

static char *file_path(const char *image, enum gvisor_file file, bool part)
{
	return str_format("%s/%s%s", image, file_names[file], part ? ".part" : "");
}

static char *marker_path(const char *image)
{
	return str_format("%s/" MARKER, image);
}

void image_close(int fds[static IMAGE_FILES])
{
	for (size_t i = 0; i < IMAGE_FILES; i++)
		base_cleanup_close(&fds[i]);
}

/* ---- sums ---- */

static void digest_text(const unsigned char *digest, char out[static DIGEST_TEXT])
{
	for (size_t i = 0; i < (DIGEST_TEXT - 1) / 2; i++)
		snprintf(out + 2 * i, 3, "%02x", digest[i]);
}

/* Digest of the ends of a file and its size: enough to tell root images apart, which are large and never change. */
static int digest_edges(const char *path, char out[static DIGEST_TEXT], struct husk_error *err)
{
	cleanup_close int fd = open(path, O_RDONLY | O_CLOEXEC);
	cleanup_free char *edges = malloc(2 * EDGE_SIZE + sizeof(uint64_t));
	unsigned char digest[EVP_MAX_MD_SIZE];
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
	if (EVP_Digest(edges, (size_t)(head + tail) + sizeof(size), digest, NULL, EVP_sha256(), NULL) != 1)
		return husk_fail(err, HUSK_INTERNAL, "cannot compute a digest");
	digest_text(digest, out);
	return 0;
}

static int digest_file(int fd, size_t size, char out[static DIGEST_TEXT], struct husk_error *err)
{
	unsigned char digest[EVP_MAX_MD_SIZE];
	void *bytes = size ? mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0) : NULL;
	int done;

	if (bytes == MAP_FAILED)
		return husk_fail_errno(err, "cannot map an image file");
	done = EVP_Digest(bytes ? bytes : "", size, digest, NULL, EVP_sha256(), NULL);
	if (bytes)
		munmap(bytes, size);
	if (done != 1)
		return husk_fail(err, HUSK_INTERNAL, "cannot compute a digest");
	digest_text(digest, out);
	return 0;
}

int image_identify(const struct engine_spec *spec, const char *version, struct gvisor_identity *out,
		   struct husk_error *err)
{
	*out = (struct gvisor_identity){ .disk_bytes = spec->disk_bytes };
	snprintf(out->version, sizeof(out->version), "%s", version);
	snprintf(out->rootfs_path, sizeof(out->rootfs_path), "%s", spec->rootfs);
	return digest_edges(spec->rootfs, out->rootfs, err);
}

static char *boot_id(struct husk_error *err)
{
	char *text = file_read("/proc/sys/kernel/random/boot_id", 128, NULL, err);

	if (text)
		text[strcspn(text, "\n")] = '\0';
	return text;
}

/* ---- writing ---- */

int image_begin(const char *image, int fds[static IMAGE_FILES], struct husk_error *err)
{
	cleanup_free char *marker = marker_path(image);

	for (size_t i = 0; i < IMAGE_FILES; i++)
		fds[i] = -1;
	if (!marker)
		return husk_fail_memory(err);
	if (access(marker, F_OK) == 0)
		return husk_fail(err, HUSK_CONFLICT, "'%s' holds an image already", image);
	for (enum gvisor_file i = 0; i < IMAGE_FILES; i++) {
		cleanup_free char *path = file_path(image, i, true);

		/* Readable for us too, for the sums; runsc insists on nothing here. */
		fds[i] = path ? open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600) : -1;
		if (fds[i] < 0) {
			husk_fail_errno(err, "cannot write an image into '%s'", image);
			image_abandon(image, fds);
			return -1;
		}
	}
	return 0;
}

void image_abandon(const char *image, int fds[static IMAGE_FILES])
{
	for (enum gvisor_file i = 0; i < IMAGE_FILES; i++) {
		/* runsc keeps files it failed to write open for a while: they must not hold on to the space. */
		if (fds[i] >= 0)
			(void)!ftruncate(fds[i], 0);
		for (int part = 0; part < 2; part++) {
			cleanup_free char *path = file_path(image, i, part);

			if (path)
				unlink(path);
		}
	}
	image_close(fds);
}

bool image_out_of_space(int fd)
{
	struct statvfs found;

	return fstatvfs(fd, &found) == 0 && found.f_bavail * found.f_frsize < SPACE_MIN;
}

/* Size of each file, and the digest of the small ones: pages.img is as large as the guest's memory and disk. */
static json_t *describe_files(const int fds[static IMAGE_FILES], struct husk_error *err)
{
	json_t *files = json_object();

	for (enum gvisor_file i = 0; files && i < IMAGE_FILES; i++) {
		char digest[DIGEST_TEXT] = "";
		struct stat found;

		if (fstat(fds[i], &found) < 0) {
			husk_fail_errno(err, "cannot look at %s", file_names[i]);
			goto fail;
		}
		if (i != IMAGE_PAGES && digest_file(fds[i], (size_t)found.st_size, digest, err) < 0)
			goto fail;
		if (json_object_set_new(files, file_names[i],
					json_pack("{s:I, s:s}", "size", (json_int_t)found.st_size, "sha256", digest)) <
		    0) {
			husk_fail_memory(err);
			goto fail;
		}
	}
	if (!files)
		husk_fail_memory(err);
	return files;
fail:
	json_decref(files);
	return NULL;
}

static int marker_write(const char *image, json_t *files, const struct gvisor_identity *identity,
			struct husk_error *err)
{
	cleanup_free char *path = marker_path(image);
	cleanup_free char *boot = boot_id(err);
	cleanup_free char *text = NULL;
	json_t *marker;

	if (!boot) {
		json_decref(files);
		return -1;
	}
	marker = json_pack("{s:s, s:s, s:s, s:I, s:s, s:o}", "engine", engine_gvisor.name, "version", identity->version,
			   "rootfs", identity->rootfs, "disk_bytes", (json_int_t)identity->disk_bytes, "boot", boot,
			   "files", files);
	text = marker ? json_dumps(marker, JSON_INDENT(1)) : NULL;
	json_decref(marker);
	if (!path || !text)
		return husk_fail_memory(err);
	return file_write_atomic(path, text, strlen(text), 0600, err);
}

int image_finish(const char *image, const int fds[static IMAGE_FILES], const struct gvisor_identity *identity,
		 struct husk_error *err)
{
	json_t *files = describe_files(fds, err);

	if (!files)
		return -1;
	for (enum gvisor_file i = 0; i < IMAGE_FILES; i++) {
		cleanup_free char *part = file_path(image, i, true);
		cleanup_free char *path = file_path(image, i, false);

		if (!part || !path || rename(part, path) < 0) {
			json_decref(files);
			return husk_fail_errno(err, "cannot complete the image in '%s'", image);
		}
	}
	return marker_write(image, files, identity, err);
}

/* ---- reading ---- */

static json_t *marker_read(const char *image, struct husk_error *err)
{
	cleanup_free char *path = marker_path(image);
	cleanup_free char *text = path ? file_read(path, 64u << 10, NULL, NULL) : NULL;
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

static const char *marker_text(json_t *marker, const char *key)
{
	const char *value = json_string_value(json_object_get(marker, key));

	return value ? value : "";
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

static int check_identity(const char *image, json_t *marker, const struct gvisor_identity *identity,
			  struct husk_error *err)
{
	json_int_t disk = json_integer_value(json_object_get(marker, "disk_bytes"));

	if (strcmp(marker_text(marker, "engine"), engine_gvisor.name) != 0)
		return husk_fail(err, HUSK_INVALID, "the image in '%s' was made by the engine '%s', not by '%s'", image,
				 marker_text(marker, "engine"), engine_gvisor.name);
	if (strcmp(marker_text(marker, "version"), identity->version) != 0)
		return husk_fail(
			err, HUSK_CONFLICT,
			"the image in '%s' was made by runsc %s and cannot be continued by %s; make it again, or "
			"install that version",
			image, marker_text(marker, "version"), identity->version);
	if (strcmp(marker_text(marker, "rootfs"), identity->rootfs) != 0)
		return husk_fail(err, HUSK_CONFLICT, "the image in '%s' was made from another root image than '%s'",
				 image, identity->rootfs_path);
	if (disk < 0 || (uint64_t)disk != identity->disk_bytes)
		return husk_fail(err, HUSK_CONFLICT,
				 "the image in '%s' has a disk of %lld bytes, this machine one of %llu", image,
				 (long long)disk, (unsigned long long)identity->disk_bytes);
	return 0;
}

static int check_file(const char *image, json_t *marker, enum gvisor_file file, int fd, struct husk_error *err)
{
	json_t *entry = json_object_get(json_object_get(marker, "files"), file_names[file]);
	char digest[DIGEST_TEXT];
	struct stat found;

	if (fstat(fd, &found) < 0)
		return husk_fail_errno(err, "cannot look at %s", file_names[file]);
	if (!entry || json_integer_value(json_object_get(entry, "size")) != (json_int_t)found.st_size)
		return husk_fail(err, HUSK_INVALID,
				 "the image in '%s' is damaged: %s has another size than when it was made", image,
				 file_names[file]);
	if (file == IMAGE_PAGES)
		return 0;
	if (digest_file(fd, (size_t)found.st_size, digest, err) < 0)
		return -1;
	if (strcmp(marker_text(entry, "sha256"), digest) != 0)
		return husk_fail(err, HUSK_INVALID, "the image in '%s' is damaged: %s was changed", image,
				 file_names[file]);
	return 0;
}

int image_open(const char *image, const struct gvisor_identity *identity, int fds[static IMAGE_FILES],
	       struct husk_error *err)
{
	json_t *marker = marker_read(image, err);
	int result = marker ? 0 : -1;

	for (size_t i = 0; i < IMAGE_FILES; i++)
		fds[i] = -1;
	if (result == 0 && (check_durable(image, marker, err) < 0 || check_identity(image, marker, identity, err) < 0))
		result = -1;
	for (enum gvisor_file i = 0; result == 0 && i < IMAGE_FILES; i++) {
		cleanup_free char *path = file_path(image, i, false);

		fds[i] = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
		result = fds[i] < 0 ? husk_fail_errno(err, "cannot open the image in '%s'", image)
				    : check_file(image, marker, i, fds[i], err);
	}
	if (result < 0)
		image_close(fds);
	json_decref(marker);
	return result;
}
