/*
 * A checkpoint of the gVisor engine as a directory: runsc's three files, and a small file `ok`, written last, that says
 * what they were made from. Called by gvisor.c around the checkpoint and restore calls. An image must never reach runsc
 * if it has no `ok`, if a file has another size or checksum, or if it was made with another runsc, root image or disk
 * size: runsc would fail without a useful message, or worse, not fail.
 *
 * Nothing here waits for the disk. The marker names the boot of the host; after another boot, only an image that was
 * flushed (engine_image_sync) is accepted.
 */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "engine/gvisor/gvisor.h"

#define SPACE_MIN (1u << 20)

static const char *const file_names[IMAGE_FILES] = {
	[IMAGE_STATE] = "checkpoint.img", [IMAGE_META] = "pages_meta.img", [IMAGE_PAGES] = "pages.img"
};

static char *file_path(const char *image, enum gvisor_file file, bool part)
{
	return str_format("%s/%s%s", image, file_names[file], part ? ".part" : "");
}

void image_close(int fds[static IMAGE_FILES])
{
	for (size_t i = 0; i < IMAGE_FILES; i++)
		fd_close(&fds[i]);
}

/* ---- sums ---- */

static int digest_file(int fd, size_t size, char out[static MARKER_DIGEST_TEXT], struct husk_error *err)
{
	void *bytes = size ? mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0) : NULL;
	int result;

	if (bytes == MAP_FAILED)
		return husk_fail_errno(err, "cannot map an image file");
	result = marker_digest(bytes ? bytes : "", size, out, err);
	if (bytes)
		munmap(bytes, size);
	return result;
}

int image_identify(const struct engine_spec *spec, const char *version, struct gvisor_identity *out,
		   struct husk_error *err)
{
	*out = (struct gvisor_identity){ 0 };
	snprintf(out->version, sizeof(out->version), "%s", version);
	return marker_identify(engine_gvisor.name, spec->rootfs, spec->disk_bytes, &out->common, err);
}

/* ---- writing ---- */

int image_begin(const char *image, int fds[static IMAGE_FILES], struct husk_error *err)
{
	for (size_t i = 0; i < IMAGE_FILES; i++)
		fds[i] = -1;
	if (marker_exists(image))
		return husk_fail(err, HUSK_CONFLICT, "'%s' holds an image already", image);
	for (enum gvisor_file i = 0; i < IMAGE_FILES; i++) {
		cleanup_free char *path = file_path(image, i, true);

		/* Also readable, for the checksums; runsc requires no special mode. */
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
		/* runsc keeps files open for a while after a failed write: they must not use disk space. */
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
		char digest[MARKER_DIGEST_TEXT] = "";
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

int image_finish(const char *image, const int fds[static IMAGE_FILES], const struct gvisor_identity *identity,
		 json_t *addresses, struct husk_error *err)
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
	return marker_write(image, &identity->common,
			    json_pack("{s:s, s:b, s:b, s:o, s:O}", "version", identity->version, "cloned",
				      identity->cloned, "shares", identity->shares, "files", files, "addresses",
				      addresses),
			    err);
}

/* ---- reading ---- */

const char *image_way_out(const char *image)
{
	return disk_in_image(image) ? " (husk reboot starts a sandbox anew with its files)" : "";
}

static int check_version(const char *image, json_t *marker, const struct gvisor_identity *identity,
			 struct husk_error *err)
{
	if (strcmp(marker_text(marker, "version"), identity->version) != 0)
		return husk_fail(
			err, HUSK_CONFLICT,
			"the image in '%s' was made by runsc %s and cannot be continued by %s; make it again, or "
			"set HUSK_RUNSC to that version%s",
			image, marker_text(marker, "version"), identity->version, image_way_out(image));
	return 0;
}

/* Checks where the writable layer is: in the files, or beside them as a directory. */
static int check_disk(const char *image, json_t *marker, const struct gvisor_identity *identity, struct husk_error *err)
{
	bool cloned = json_is_true(json_object_get(marker, "cloned"));

	if (cloned && !disk_in_image(image))
		return husk_fail(err, HUSK_INVALID, "the image in '%s' is damaged: its disk is missing", image);
	if (cloned != identity->cloned)
		return husk_fail(err, HUSK_CONFLICT,
				 "the image in '%s' has its disk %s and cannot be continued by this machine", image,
				 cloned ? "beside its memory" : "in its memory");
	return 0;
}

static int check_file(const char *image, json_t *marker, enum gvisor_file file, int fd, bool sum,
		      struct husk_error *err)
{
	json_t *entry = json_object_get(json_object_get(marker, "files"), file_names[file]);
	char digest[MARKER_DIGEST_TEXT];
	struct stat found;

	if (fstat(fd, &found) < 0)
		return husk_fail_errno(err, "cannot look at %s", file_names[file]);
	if (!entry || json_integer_value(json_object_get(entry, "size")) != (json_int_t)found.st_size)
		return husk_fail(err, HUSK_INVALID,
				 "the image in '%s' is damaged: %s has another size than when it was made", image,
				 file_names[file]);
	if (file == IMAGE_PAGES || !sum)
		return 0;
	if (digest_file(fd, (size_t)found.st_size, digest, err) < 0)
		return -1;
	if (strcmp(marker_text(entry, "sha256"), digest) != 0)
		return husk_fail(err, HUSK_INVALID, "the image in '%s' is damaged: %s was changed", image,
				 file_names[file]);
	return 0;
}

/* Opens and checks all files; also after a failure, close `fds` with image_close. */
static int open_files(const char *image, json_t *marker, bool sums, int fds[static IMAGE_FILES], struct husk_error *err)
{
	for (size_t i = 0; i < IMAGE_FILES; i++)
		fds[i] = -1;
	for (enum gvisor_file i = 0; i < IMAGE_FILES; i++) {
		cleanup_free char *path = file_path(image, i, false);

		fds[i] = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
		if (fds[i] < 0)
			return husk_fail_errno(err, "the image in '%s' is damaged: cannot open %s", image,
					       file_names[i]);
		if (check_file(image, marker, i, fds[i], sums, err) < 0)
			return -1;
	}
	return 0;
}

int image_open(const char *image, const struct gvisor_identity *identity, int fds[static IMAGE_FILES],
	       json_t **addresses, struct husk_error *err)
{
	json_t *marker = marker_read(image, &identity->common, err);
	int result = -1;

	for (size_t i = 0; i < IMAGE_FILES; i++)
		fds[i] = -1;
	if (marker && check_version(image, marker, identity, err) == 0 && check_disk(image, marker, identity, err) == 0)
		result = open_files(image, marker, true, fds, err);
	if (result < 0)
		image_close(fds);
	else
		*addresses = json_incref(json_object_get(marker, "addresses"));
	json_decref(marker);
	return result;
}

bool image_has_shares(const char *image)
{
	json_t *marker = marker_load(image, NULL);
	bool shares = json_is_true(json_object_get(marker, "shares"));

	json_decref(marker);
	return shares;
}

int image_version(const char *image, char *out, size_t size)
{
	json_t *marker = marker_load(image, NULL);
	int result = *marker_text(marker, "version") ? 0 : -1;

	snprintf(out, size, "%s", marker_text(marker, "version"));
	json_decref(marker);
	return result;
}

/* Checks that everything exists, for any machine. */
static int check_parts(const char *image, struct husk_error *err)
{
	json_t *marker = marker_load(image, err);
	struct gvisor_identity own = { .cloned = json_is_true(json_object_get(marker, "cloned")) };
	int fds[IMAGE_FILES], result = -1;

	if (!marker)
		return -1;
	if (check_disk(image, marker, &own, err) == 0) {
		result = open_files(image, marker, false, fds, err);
		image_close(fds);
	}
	json_decref(marker);
	return result;
}

int image_check(const char *image, const char *rootfs, uint64_t disk_bytes, struct husk_error *err)
{
	struct engine_spec spec = { .rootfs = rootfs, .disk_bytes = disk_bytes };
	struct gvisor_identity identity;
	struct gvisor_program program;
	int fds[IMAGE_FILES];
	json_t *past = NULL;

	char version[sizeof(program.version)];

	if (!rootfs)
		return check_parts(image, err);
	if (image_version(image, version, sizeof(version)) < 0)
		return husk_fail(err, HUSK_NOT_FOUND, "'%s' holds no complete image", image);
	if (gvisor_program_find(NULL, version, &program, err) < 0)
		return husk_wrap(err, "the image in '%s' was made by runsc %s and cannot be continued%s", image,
				 version, image_way_out(image));
	if (image_identify(&spec, program.version, &identity, err) < 0)
		return -1;
	identity.cloned = disk_in_image(image);
	if (image_open(image, &identity, fds, &past, err) < 0)
		return -1;
	image_close(fds);
	json_decref(past);
	return identity.cloned ? disk_check(image, err) : 0;
}
