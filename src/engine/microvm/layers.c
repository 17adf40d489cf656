/*
 * The layer files of machines and images. Called by microvm.c. A layer is shared by hard links: between the machine that
 * made it, the images that contain it, and the machines continued from those. So an image can be removed at any time, and a
 * file lives for as long as it is needed. On another filesystem a layer is copied. Nothing here ever writes to a layer.
 */
#include <fcntl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>

#include "engine/microvm/microvm.h"

void layers_init(struct microvm_layers *layers, const char *directory, const char *kind)
{
	*layers = (struct microvm_layers){ .directory = directory, .kind = kind };
}

void layers_free(struct microvm_layers *layers)
{
	for (size_t i = 0; i < layers->count; i++)
		free(layers->paths[i]);
	layers->count = 0;
}

static char *next_path(struct microvm_layers *layers, struct husk_error *err)
{
	char *path = NULL;

	if (layers->count >= ARRAY_SIZE(layers->paths))
		husk_fail(err, HUSK_LIMIT, "more than %zu %s layers", ARRAY_SIZE(layers->paths), layers->kind);
	else if (!(path = str_format("%s/%s-%u", layers->directory, layers->kind, layers->next++)))
		husk_fail_memory(err);
	return path;
}

int layers_add(struct microvm_layers *layers, struct husk_error *err)
{
	cleanup_free char *path = next_path(layers, err);
	int fd;

	if (!path)
		return -1;
	fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0)
		return husk_fail_errno(err, "cannot make '%s'", path);
	layers->paths[layers->count++] = steal_pointer(path);
	return fd;
}

static void drop(struct microvm_layers *layers, size_t index)
{
	unlink(layers->paths[index]);
	free(layers->paths[index]);
	layers->count--;
	memmove(&layers->paths[index], &layers->paths[index + 1], (layers->count - index) * sizeof(layers->paths[0]));
}

void layers_drop_newest(struct microvm_layers *layers)
{
	if (layers->count > 0)
		drop(layers, layers->count - 1);
}

void layers_squash(struct microvm_layers *layers, size_t keep, size_t tail)
{
	while (layers->count > keep + tail)
		drop(layers, keep);
}

static char *image_path(const char *image, const char *kind, size_t index)
{
	return str_format("%s/%s.%zu", image, kind, index);
}

/* Copies the data at the same offsets: a layer is mostly holes. */
static int copy_data(int from, int to)
{
	struct stat st;
	off_t at = 0, end;

	if (fstat(from, &st) < 0 || ftruncate(to, st.st_size) < 0)
		return -1;
	while ((at = lseek(from, at, SEEK_DATA)) >= 0) {
		end = lseek(from, at, SEEK_HOLE);
		if (end < 0 || lseek(to, at, SEEK_SET) < 0)
			return -1;
		while (at < end)
			if (sendfile(to, from, &at, (size_t)(end - at)) <= 0)
				return -1;
	}
	return errno == ENXIO ? 0 : -1; /* only a hole is left */
}

/* A second name for a layer; if images are on another filesystem, a copy. */
static int link_layer(const char *from, const char *path)
{
	cleanup_close int in = -1, out = -1;

	if (link(from, path) == 0)
		return 0;
	if (errno != EXDEV)
		return -1;
	in = open(from, O_RDONLY | O_CLOEXEC);
	out = in < 0 ? -1 : open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (out < 0)
		return -1;
	if (copy_data(in, out) == 0)
		return 0;
	int error = errno;
	unlink(path);
	errno = error;
	return -1;
}

int layers_export(const struct microvm_layers *layers, size_t count, const char *image, struct husk_error *err)
{
	for (size_t i = 0; i < count; i++) {
		cleanup_free char *path = image_path(image, layers->kind, i);

		if (!path)
			return husk_fail_memory(err);
		if (link_layer(layers->paths[i], path) < 0)
			return husk_fail_errno(err, "cannot put a %s layer into '%s'", layers->kind, image);
	}
	return 0;
}

int layers_import(struct microvm_layers *layers, const char *image, size_t count, struct husk_error *err)
{
	for (size_t i = 0; i < count; i++) {
		cleanup_free char *from = image_path(image, layers->kind, i), *path = next_path(layers, err);

		if (!from || !path)
			return from ? -1 : husk_fail_memory(err);
		if (link_layer(from, path) < 0)
			return husk_fail_errno(err, "cannot take a %s layer from '%s'", layers->kind, image);
		layers->paths[layers->count++] = steal_pointer(path);
	}
	return 0;
}

json_t *layers_describe(const char *image, const char *kind, size_t count, struct husk_error *err)
{
	json_t *sizes = json_array();

	for (size_t i = 0; sizes && i < count; i++) {
		cleanup_free char *path = image_path(image, kind, i);
		struct stat st;

		if (!path || stat(path, &st) < 0 || json_array_append_new(sizes, json_integer(st.st_size)) < 0) {
			json_decref(sizes);
			husk_fail_errno(err, "cannot look at a %s layer in '%s'", kind, image);
			return NULL;
		}
	}
	if (!sizes)
		husk_fail_memory(err);
	return sizes;
}

int layers_check(const char *image, const char *kind, json_t *sizes, struct husk_error *err)
{
	size_t i;
	json_t *size;

	if (!json_is_array(sizes) || json_array_size(sizes) > VMM_LAYERS_MAX)
		return husk_fail(err, HUSK_INVALID, "the image in '%s' is damaged: it does not list its %s layers",
				 image, kind);
	json_array_foreach(sizes, i, size)
	{
		cleanup_free char *path = image_path(image, kind, i);
		struct stat st;

		if (!path)
			return husk_fail_memory(err);
		if (stat(path, &st) < 0)
			return husk_fail_errno(err, "the image in '%s' is damaged: %s layer %zu", image, kind, i);
		if (st.st_size != json_integer_value(size))
			return husk_fail(err, HUSK_INVALID,
					 "the image in '%s' is damaged: %s layer %zu has another size than "
					 "when it was made",
					 image, kind, i);
	}
	return 0;
}
