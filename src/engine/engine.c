/*
 * The list of engines and what is the same for all of them: choosing one, and making an image outlast a power cut.
 * The supervisor and `husk doctor` call it. It must never fall to an engine that was not proven to work here.
 */
#include "engine/engine.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "engine/gvisor/gvisor.h"

const struct engine *const engines[] = { &engine_microvm, &engine_gvisor, NULL };

const struct engine *engine_find(const char *name)
{
	for (size_t i = 0; engines[i]; i++)
		if (str_equal(engines[i]->name, name))
			return engines[i];
	return NULL;
}

const struct engine *engine_choose(const char *runtime, struct husk_error *err)
{
	cleanup_buf struct buf reasons = { 0 };

	for (size_t i = 0; engines[i]; i++) {
		struct husk_error why = { 0 };

		if (engines[i]->probe(runtime, &why) == 0)
			return engines[i];
		buf_printf(&reasons, "%s%s: %s", i ? "; " : "", engines[i]->name, why.message);
	}
	husk_fail(err, HUSK_UNAVAILABLE, "no isolation engine works here: %s", reasons.data ? reasons.data : "");
	return NULL;
}

void engine_sweep(const char *runtime, const char *id)
{
	gvisor_sweep(runtime, id);
}

/* ---- memory of what was found out ---- */

/* Kept as two lines: the key, the text. */
int engine_remembered(const char *runtime, const char *name, const char *key, char **out)
{
	cleanup_free char *path = str_format("%s/%s", runtime, name);
	cleanup_free char *text = path ? file_read(path, 4096, NULL, NULL) : NULL;
	size_t length = strlen(key);

	if (!text || strncmp(text, key, length) != 0 || text[length] != '\n')
		return -1;
	*out = strndup(text + length + 1, strcspn(text + length + 1, "\n"));
	return *out ? 0 : -1;
}

void engine_remember(const char *runtime, const char *name, const char *key, const char *text)
{
	cleanup_free char *path = str_format("%s/%s", runtime, name);
	cleanup_free char *content = str_format("%s\n%s\n", key, text);

	if (path && content)
		file_write_atomic(path, content, strlen(content), 0600, NULL);
}

/* ---- durable images ---- */

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

int engine_image_sync(const char *image, struct husk_error *err)
{
	cleanup_free char *marker = str_format("%s/" ENGINE_IMAGE_DURABLE, image);
	cleanup_free char *parent = str_format("%s/..", image);

	if (!marker || !parent)
		return husk_fail_memory(err);
	/* The marker goes in only when everything it vouches for is on disk. */
	if (sync_files(image, err) < 0 || file_write_atomic(marker, "", 0, 0600, err) < 0 ||
	    sync_path(AT_FDCWD, image, O_DIRECTORY, err) < 0 || sync_path(AT_FDCWD, parent, O_DIRECTORY, err) < 0)
		return husk_wrap(err, "image '%s'", image);
	return 0;
}
