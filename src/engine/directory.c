/*
 * An image as a directory. It appears by one rename when all of it is on disk, and disappears by one rename before its
 * first file is deleted. So after a kill or a power failure at any moment there is a complete image or none. Called by
 * everything that keeps images: the supervisor, the bake, snapshots, gc.
 *
 *     image.partial --image_keep--> image --image_hide--> image.gone-x7k2mqab --engine_remove--> nothing
 *
 * An image may be a link to another image (image_lend). Readers see the other image; a removal removes only the link.
 *
 * No image may be used before its marker, durable mark and file sizes were checked.
 */
#include <fcntl.h>
#include <sys/stat.h>

#include "engine/engine.h"
#include "engine/marker.h"

#define GONE ".gone-"

/* ---- on disk ---- */

static int sync_path(int directory, const char *name, int flags, struct husk_error *err)
{
	cleanup_close int fd = openat(directory, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | flags);

	if (fd < 0 || fsync(fd) < 0)
		return husk_fail_errno(err, "cannot flush '%s'", name);
	return 0;
}

static int sync_files(const char *image, struct husk_error *err)
{
	cleanup_dir DIR *dir = opendir(image);
	struct dirent *entry;

	if (!dir)
		return husk_fail_errno(err, "cannot open image '%s'", image);
	while ((entry = readdir(dir))) {
		if (entry->d_name[0] != '.' && sync_path(dirfd(dir), entry->d_name, 0, err) < 0)
			return -1;
	}
	return 0;
}

static int sync_parent(const char *path, struct husk_error *err)
{
	/* By its name, not as "path/..": if the image is a link, ".." leads elsewhere. */
	const char *name = strrchr(path, '/');
	cleanup_free char *parent = name ? strndup(path, (size_t)(name - path)) : strdup(".");

	return parent ? sync_path(AT_FDCWD, parent, O_DIRECTORY, err) : husk_fail_memory(err);
}

int engine_image_sync(const char *image, struct husk_error *err)
{
	cleanup_free char *marker = str_format("%s/" ENGINE_IMAGE_DURABLE, image);

	if (!marker)
		return husk_fail_memory(err);
	/* The marker is written only when everything that it lists is on disk. */
	if (sync_files(image, err) < 0 || file_write_atomic(marker, "", 0, 0600, err) < 0 ||
	    sync_path(AT_FDCWD, image, O_DIRECTORY, err) < 0 || sync_parent(image, err) < 0)
		return husk_wrap(err, "image '%s'", image);
	return 0;
}

static bool is_durable(const char *image)
{
	cleanup_free char *marker = str_format("%s/" ENGINE_IMAGE_DURABLE, image);

	return marker && access(marker, F_OK) == 0;
}

/* ---- appearing and disappearing ---- */

int image_keep(const char *partial, const char *image, struct husk_error *err)
{
	if (!is_durable(partial) && engine_image_sync(partial, err) < 0)
		return -1;
	if (renameat2(AT_FDCWD, partial, AT_FDCWD, image, RENAME_NOREPLACE) < 0)
		return husk_fail_errno(err, "cannot keep the image '%s'", image);
	return sync_parent(image, err);
}

/* RENAME_EXCHANGE if the name exists already: there is an image at every moment. */
static int take_place(const char *partial, const char *image)
{
	if (renameat2(AT_FDCWD, partial, AT_FDCWD, image, RENAME_NOREPLACE) == 0)
		return 0;
	return errno == EEXIST ? renameat2(AT_FDCWD, partial, AT_FDCWD, image, RENAME_EXCHANGE) : -1;
}

int image_lend(const char *target, const char *image, struct husk_error *err)
{
	cleanup_free char *partial = str_format(IMAGE_PARTIAL, image);

	if (!partial)
		return husk_fail_memory(err);
	if (engine_remove(partial, err) < 0)
		return -1;
	if (symlink(target, partial) < 0 || take_place(partial, image) < 0)
		return husk_fail_errno(err, "cannot put '%s' in the place of the image '%s'", target, image);
	return sync_parent(image, err);
}

void image_lend_settle(const char *image)
{
	cleanup_free char *partial = str_format(IMAGE_PARTIAL, image);

	if (partial)
		engine_remove(partial, NULL);
}

void image_lend_undo(const char *image)
{
	cleanup_free char *partial = str_format(IMAGE_PARTIAL, image);

	if (!partial || renameat2(AT_FDCWD, partial, AT_FDCWD, image, RENAME_EXCHANGE) < 0)
		image_discard(image, NULL); /* nothing was in its place before */
	image_lend_settle(image);
}

bool image_is_lent(const char *image, char *target, size_t size)
{
	ssize_t length = readlink(image, target, size - 1);

	if (length < 0 || (size_t)length >= size - 1)
		return false;
	target[length] = '\0';
	return true;
}

int engine_remove(const char *directory, struct husk_error *err)
{
	struct stat found;
	bool lent = lstat(directory, &found) == 0 && S_ISLNK(found.st_mode);

	for (size_t i = 0; engines[i] && !lent; i++)
		if (engines[i]->drop)
			engines[i]->drop(directory);
	return dir_remove(directory, err);
}

bool image_is_gone(const char *name)
{
	return strstr(name, GONE) != NULL;
}

int image_hide(const char *image, char **gone, struct husk_error *err)
{
	char tail[16];

	*gone = NULL;
	if (random_id(GONE, 8, tail) < 0)
		return husk_fail_errno(err, "cannot make an id");
	cleanup_free char *hidden = str_format("%s%s", image, tail);
	if (!hidden)
		return husk_fail_memory(err);
	if (rename(image, hidden) < 0)
		return errno == ENOENT ? 0 : husk_fail_errno(err, "cannot remove '%s'", image);
	*gone = steal_pointer(hidden);
	return 0;
}

int image_discard(const char *image, struct husk_error *err)
{
	cleanup_free char *gone = NULL;

	if (image_hide(image, &gone, err) < 0)
		return -1;
	return gone ? engine_remove(gone, err) : 0;
}

void image_sweep(const char *directory)
{
	cleanup_dir DIR *dir = opendir(directory);
	struct dirent *entry;

	while (dir && (entry = readdir(dir))) {
		cleanup_free char *path =
			image_is_gone(entry->d_name) ? str_format("%s/%s", directory, entry->d_name) : NULL;

		if (path)
			engine_remove(path, NULL);
	}
}

/* ---- what counts ---- */

bool engine_image_whole(const char *image)
{
	json_t *marker = is_durable(image) ? marker_load(image, NULL) : NULL;
	const struct engine *engine = marker ? engine_find(marker_text(marker, "engine")) : NULL;

	json_decref(marker);
	return engine && engine->check(image, NULL, 0, NULL) == 0;
}

int engine_image_check(const char *engine_name, const char *image, const char *rootfs, uint64_t disk_bytes,
		       struct husk_error *err)
{
	const struct engine *engine = engine_find(engine_name);

	if (!engine)
		return husk_fail(err, HUSK_UNAVAILABLE, "no engine '%s' in this build", engine_name);
	if (engine->check(image, rootfs, disk_bytes, err) < 0)
		return -1;
	if (!is_durable(image))
		return husk_fail(err, HUSK_CONFLICT, "the image in '%s' is not on disk yet", image);
	return 0;
}
