/*
 * COPY and ADD of a Dockerfile, from the context, from another stage, from an image, from a heredoc, or from a URL
 * (fetch.c). Uses only the guest's agent, so that it works in an image without a shell (FROM scratch). Bytes of one
 * guest reach another through an unnamed file; the host parses none of them.
 */
#include <fcntl.h>
#include <sys/stat.h>

#include "build/work.h"
#include "client/files.h"
#include "wire/wire.h"

#define COPY_BYTES_MAX (UINT64_C(64) << 30)
#define MATCHES_MAX 10000
#define ARCHIVE "/tmp/.husk-add"
#define DOWNLOAD_MODE 0600 /* as in Docker */

/* ---- bytes ---- */

struct file_bytes {
	int fd;
	off_t at;
	uint64_t left;
	struct husk_error why;
};

static int put_bytes(void *data, const void *bytes, size_t size)
{
	struct file_bytes *file = data;

	if (size > file->left)
		return husk_fail(&file->why, HUSK_LIMIT, "the files are larger than the limit");
	file->left -= size;
	return write_full(file->fd, bytes, size) < 0 ? husk_fail_errno(&file->why, "cannot keep the files") : 0;
}

static ssize_t get_bytes(void *data, void *bytes, size_t size)
{
	struct file_bytes *file = data;
	ssize_t count = pread(file->fd, bytes, size, file->at);

	file->at += MAX(count, 0);
	return count;
}

static int check_bytes(int result, const struct file_bytes *file, struct husk_error *err)
{
	return result < 0 && file->why.code ? husk_fail(err, file->why.code, "%s", file->why.message) : result;
}

int tree_out(struct build *build, const char *sandbox, const char *path, int fd, uint64_t limit, struct husk_error *err)
{
	cleanup_free char *inside = str_format("%s/.", str_equal(path, "/") ? "" : path);
	struct file_bytes file = { .fd = fd, .left = limit };

	if (!inside)
		return husk_fail_memory(err);
	return check_bytes(husk_tar_read(build->husk, sandbox, inside, put_bytes, &file, err), &file, err);
}

int tree_in(struct build *build, const char *sandbox, const char *path, const char *owner, int fd,
	    struct husk_error *err)
{
	struct file_bytes file = { .fd = fd };

	/* Links are copied as they are: a virtual environment's leads to the interpreter of its image. */
	return tar_write_flags(build->husk, sandbox, path, owner, TAR_ANY_LINKS, get_bytes, &file, err);
}

/* ---- targets ---- */

/* A target of COPY: the directory for the files, and the name for one file (NULL: its own). */
struct target {
	char *directory, *name;
};

static void target_free(struct target *target)
{
	free(target->directory);
	free(target->name);
}

static bool is_directory(struct build *build, const char *sandbox, const char *path)
{
	struct husk_file file = { 0 };
	bool found = husk_file_stat(build->husk, sandbox, path, true, &file, NULL) == 0 && file.type == HUSK_DIRECTORY;

	husk_file_free(&file);
	return found;
}

/* `one`: the source is one file. */
static int make_target(struct build *build, const char *sandbox, const struct plan_step *step, const char *word,
		       bool one, struct target *out, struct husk_error *err)
{
	cleanup_free char *path = word[0] == '/' ? strdup(word) : str_format("%s/%s", step->cwd, word);
	bool folder = str_ends(word, "/") || str_equal(word, ".") || str_ends(word, "/.");
	size_t size = path ? strlen(path) : 0;

	if (!path)
		return husk_fail_memory(err);
	while (size > 1 && (path[size - 1] == '/' || (path[size - 1] == '.' && path[size - 2] == '/')))
		path[--size] = '\0';
	char *slash = strrchr(path, '/');
	if (!one || folder || is_directory(build, sandbox, path)) {
		out->directory = steal_pointer(path);
		return 0;
	}
	out->name = strdup(slash + 1);
	out->directory = slash == path ? strdup("/") : strndup(path, (size_t)(slash - path));
	return out->name && out->directory ? 0 : husk_fail_memory(err);
}

/* ---- archives that ADD unpacks ---- */

enum archive_kind { ARCHIVE_NONE, ARCHIVE_TAR, ARCHIVE_PACKED };

static enum archive_kind archive_kind(int fd)
{
	static const struct {
		const char *bytes;
		size_t size;
	} packed[] = { { "\x1f\x8b", 2 },
		       { "BZh", 3 },
		       { "\xfd"
			 "7zXZ",
			 5 },
		       { "\x28\xb5\x2f\xfd", 4 } };
	char head[265] = "";
	ssize_t size = pread(fd, head, sizeof(head), 0);

	for (size_t i = 0; i < ARRAY_SIZE(packed); i++)
		if (size > (ssize_t)packed[i].size && memcmp(head, packed[i].bytes, packed[i].size) == 0)
			return ARCHIVE_PACKED;
	return size > 262 && memcmp(head + 257, "ustar", 5) == 0 ? ARCHIVE_TAR : ARCHIVE_NONE;
}

/* The guest's tar unpacks a compressed archive, because its bytes are untrusted. */
static int unpack_in_guest(struct build *build, const char *sandbox, const char *directory, int fd,
			   struct husk_error *err)
{
	const char *argv[] = { "tar", "-x", "-f", ARCHIVE, "-C", directory, NULL };
	struct file_bytes file = { .fd = fd };
	struct husk_error why = { 0 };

	if (husk_file_mkdir(build->husk, sandbox, directory, 0755, NULL, err) < 0 ||
	    husk_file_write(build->husk, sandbox, ARCHIVE, 0600, NULL, get_bytes, &file, err) < 0)
		return -1;
	int code = run_quietly(build, sandbox, argv, &why);
	husk_file_remove(build->husk, sandbox, ARCHIVE, NULL);
	return code ? husk_fail(err, HUSK_INVALID, "the archive cannot be unpacked in this stage: %s", why.message) : 0;
}

/* 1: the source is an archive, and is unpacked. */
static int add_archive(struct build *build, const char *sandbox, const struct plan_step *step,
		       const struct context_source *source, const char *word, struct husk_error *err)
{
	cleanup(target_free) struct target target = { 0 };
	cleanup_close int fd = source->directory ? -1 : context_open_file(&build->plan.context, source->path);
	enum archive_kind kind = fd < 0 ? ARCHIVE_NONE : archive_kind(fd);
	if (kind == ARCHIVE_NONE)
		return 0;
	if (make_target(build, sandbox, step, word, false, &target, err) < 0)
		return -1;
	int result = kind == ARCHIVE_TAR ? tree_in(build, sandbox, target.directory, step->owner, fd, err)
					 : unpack_in_guest(build, sandbox, target.directory, fd, err);
	return result < 0 ? -1 : 1;
}

/* ---- from the context ---- */

static int find_sources(struct build *build, const struct plan_step *step, struct context_sources *out,
			struct husk_error *err)
{
	size_t count = strv_length(step->words) - 1;

	for (size_t i = 0; i < count; i++)
		if (!str_starts(step->words[i], "<<") && dockerfile_source(step->words[i]) == SOURCE_FILE &&
		    context_find(&build->plan.context, step->words[i], out, err) < 0)
			return -1;
	return 0;
}

/* Downloads what the plan did not have to: what has a checksum. */
static int fetch_missing(struct build *build, const struct plan_step *step, struct husk_error *err)
{
	for (size_t i = 0; i < step->download_count; i++) {
		struct plan_download *download = &step->downloads[i];
		char wanted[sizeof(download->digest)];
		if (download->fd >= 0)
			continue;
		memcpy(wanted, download->digest, sizeof(wanted));
		if (step_fetch(build, download, err) < 0)
			return -1;
		if (str_equal(wanted, download->digest))
			continue;
		husk_fail(err, HUSK_INVALID, "the file has the sha256 %s, not the one of --checksum", download->digest);
		memcpy(download->digest, wanted, sizeof(wanted));
		fd_close(&download->fd);
		return -1;
	}
	return 0;
}

static int write_downloads(const struct plan_step *step, const char *name, struct archive *archive,
			   struct husk_error *err)
{
	for (size_t i = 0; i < step->download_count; i++) {
		const struct plan_download *download = &step->downloads[i];
		const char *called = name ? name : download->name;
		if (!called)
			return husk_fail(err, HUSK_INVALID,
					 "the target is a directory, and '%.120s' has no name for the file",
					 download->url);
		const struct context_file file = { .name = called,
						   .mode = step->mode >= 0 ? step->mode : DOWNLOAD_MODE,
						   .modified = download->modified };
		if (context_tar_file(&file, download->fd, archive, err) < 0)
			return -1;
	}
	return 0;
}

static int write_tar(struct build *build, const struct plan_step *step, const struct context_sources *sources,
		     const char *name, int fd, struct husk_error *err)
{
	const struct context_target target = { .name = name, .mode = step->mode };
	struct archive *archive = context_tar_begin(fd, err);
	int result = archive ? 0 : -1;

	for (size_t i = 0; result == 0 && i < sources->count; i++)
		if (sources->items[i].path)
			result = context_tar_add(&build->plan.context, &sources->items[i], &target, archive, err);
	for (size_t i = 0; result == 0 && step->texts && step->texts[i]; i++)
		result = context_tar_text(name ? name : step->step->heredocs[i].name, step->texts[i], step->mode,
					  archive, err);
	if (result == 0)
		result = write_downloads(step, name, archive, err);
	if (archive && context_tar_end(archive, result < 0 ? NULL : err) < 0)
		result = -1;
	return result;
}

/* Archives of ADD are unpacked and taken out of the list. */
static int add_archives(struct build *build, const char *sandbox, const struct plan_step *step,
			struct context_sources *sources, const char *word, size_t *left, struct husk_error *err)
{
	for (size_t i = 0; i < sources->count; i++) {
		int unpacked = step->step->kind == STEP_ADD
				       ? add_archive(build, sandbox, step, &sources->items[i], word, err)
				       : 0;
		if (unpacked < 0)
			return -1;
		if (unpacked) {
			free(sources->items[i].path);
			sources->items[i].path = NULL;
			--*left;
		}
	}
	return 0;
}

static int copy_context(struct build *build, const char *sandbox, const struct plan_step *step, struct husk_error *err)
{
	cleanup(context_sources_free) struct context_sources sources = { 0 };
	cleanup(target_free) struct target target = { 0 };
	const char *word = step->words[strv_length(step->words) - 1];
	/* Files that are not of the context: heredocs and downloads. */
	size_t texts = (step->texts ? strv_length(step->texts) : 0) + step->download_count;

	if (find_sources(build, step, &sources, err) < 0 || fetch_missing(build, step, err) < 0)
		return -1;
	size_t left = sources.count;
	bool one = left + texts == 1 && (texts || !sources.items[0].directory);
	if (left + texts > 1 && !str_ends(word, "/"))
		return husk_fail(err, HUSK_INVALID, "several files need a target that is a directory and ends with /");
	if (add_archives(build, sandbox, step, &sources, word, &left, err) < 0 || left + texts == 0)
		return left + texts == 0 ? 0 : -1;
	if (make_target(build, sandbox, step, word, one, &target, err) < 0)
		return -1;
	cleanup_close int fd = build_scratch(build, err);
	if (fd < 0 || write_tar(build, step, &sources, target.name, fd, err) < 0)
		return -1;
	return tree_in(build, sandbox, target.directory, step->owner, fd, err);
}

/* ---- from a sandbox ---- */

/* The paths that a pattern matches in a sandbox, component by component. */
static int match_paths(struct build *build, const char *from, const char *folder, const char *rest, char ***out,
		       struct husk_error *err)
{
	rest += strspn(rest, "/");
	size_t size = strcspn(rest, "/"), count = 0;
	cleanup_free char *part = strndup(rest, size);
	struct husk_file *list = NULL;
	int result = 0;

	if (!part)
		return husk_fail_memory(err);
	if (!*part)
		return strv_add(out, *folder ? folder : "/") < 0 ? husk_fail_memory(err) : 0;
	if (!pattern_is(part)) {
		cleanup_free char *path = str_format("%s/%s", folder, part);
		return path ? match_paths(build, from, path, rest + size, out, err) : husk_fail_memory(err);
	}
	if (husk_file_list(build->husk, from, *folder ? folder : "/", 1, &list, &count, NULL) < 0)
		return 0; /* not a directory */
	for (size_t i = 0; result == 0 && i < count; i++) {
		const char *slash = strrchr(list[i].path, '/'), *name = slash ? slash + 1 : list[i].path;
		cleanup_free char *path = str_format("%s/%s", folder, name);
		if (!pattern_match(part, name))
			continue;
		if (*out && strv_length(*out) > MATCHES_MAX)
			result = husk_fail(err, HUSK_LIMIT, "a pattern matches more than %d files", MATCHES_MAX);
		else
			result = path ? match_paths(build, from, path, rest + size, out, err) : husk_fail_memory(err);
	}
	husk_file_list_free(list, count);
	return result;
}

static int copy_file(struct build *build, const char *sandbox, const char *from, const char *path, const char *target,
		     const char *owner, uint32_t mode, struct husk_error *err)
{
	cleanup_close int fd = build_scratch(build, err);
	struct file_bytes file = { .fd = fd, .left = COPY_BYTES_MAX };

	if (fd < 0 || check_bytes(husk_file_read(build->husk, from, path, 0, 0, put_bytes, &file, err), &file, err) < 0)
		return -1;
	return husk_file_write(build->husk, sandbox, target, mode, owner ? owner : "root", get_bytes, &file, err);
}

/* --chmod for a copied tree: the mode of every entry that came with it. */
static int set_modes(struct build *build, const char *sandbox, const char *from, const char *path, const char *target,
		     uint32_t mode, struct husk_error *err)
{
	size_t count = 0, skip = strlen(path);
	struct husk_file *list = NULL;
	int result = husk_file_list(build->husk, from, path, 256, &list, &count, err);

	for (size_t i = 0; result == 0 && i < count; i++) {
		if (list[i].type == HUSK_SYMLINK || strncmp(list[i].path, path, skip) != 0)
			continue;
		cleanup_free char *there = str_format("%s/%s", target, list[i].path + skip);
		result = there ? husk_file_chmod(build->husk, sandbox, there, mode, err) : husk_fail_memory(err);
	}
	husk_file_list_free(list, count);
	return result;
}

static int copy_tree(struct build *build, const char *sandbox, const char *from, const char *path, const char *target,
		     const char *owner, int64_t mode, struct husk_error *err)
{
	cleanup_close int fd = build_scratch(build, err);

	if (fd < 0 || tree_out(build, from, path, fd, COPY_BYTES_MAX, err) < 0 ||
	    tree_in(build, sandbox, target, owner, fd, err) < 0)
		return -1;
	return mode < 0 ? 0 : set_modes(build, sandbox, from, path, target, (uint32_t)mode, err);
}

static int copy_path(struct build *build, const char *sandbox, const struct plan_step *step, const char *from,
		     const char *path, const char *word, struct husk_error *err)
{
	cleanup(target_free) struct target target = { 0 };
	struct husk_file file = { 0 };

	if (husk_file_stat(build->husk, from, path, true, &file, err) < 0)
		return -1;
	bool directory = file.type == HUSK_DIRECTORY;
	uint32_t mode = step->mode >= 0 ? (uint32_t)step->mode : file.mode;
	husk_file_free(&file);
	if (make_target(build, sandbox, step, word, !directory, &target, err) < 0)
		return -1;
	if (directory)
		return copy_tree(build, sandbox, from, path, target.directory, step->owner, step->mode, err);
	const char *own = strrchr(path, '/') + 1;
	cleanup_free char *whole = str_format("%s/%s", str_equal(target.directory, "/") ? "" : target.directory,
					      target.name ? target.name : own);
	return whole ? copy_file(build, sandbox, from, path, whole, step->owner, mode, err) : husk_fail_memory(err);
}

static int copy_sandbox(struct build *build, const char *sandbox, const struct plan_step *step, const char *from,
			struct husk_error *err)
{
	size_t count = strv_length(step->words) - 1;
	cleanup_strv char **paths = NULL;

	for (size_t i = 0; i < count; i++)
		if (match_paths(build, from, "", step->words[i], &paths, err) < 0)
			return -1;
	if (!paths)
		return husk_fail(err, HUSK_INVALID, "no file matches '%.120s' there", step->words[0]);
	if (strv_length(paths) > 1 && !str_ends(step->words[count], "/"))
		return husk_fail(err, HUSK_INVALID, "several files need a target that is a directory and ends with /");
	for (size_t i = 0; paths && paths[i]; i++)
		if (copy_path(build, sandbox, step, from, paths[i], step->words[count], err) < 0)
			return -1;
	return 0;
}

int copy_to(struct build *build, const char *sandbox, const char *from, const char *source, const char *target,
	    const char *owner, struct husk_error *err)
{
	cleanup_free char *path = from && source[0] != '/' ? str_format("/%s", source) : strdup(source);
	char *words[] = { path, (char *)target, NULL };
	const struct dockerfile_step written = { .kind = STEP_COPY };
	const struct plan_step step = {
		.step = &written, .words = words, .mode = -1, .cwd = (char *)"/", .owner = (char *)owner
	};

	if (!path)
		return husk_fail_memory(err);
	return from ? copy_sandbox(build, sandbox, &step, from, err) : copy_context(build, sandbox, &step, err);
}

int step_copy(struct build *build, const char *sandbox, const struct plan_step *step, struct husk_error *err)
{
	const char *from = NULL;

	if (step->step->from >= 0) {
		if (build_stage(build, (size_t)step->step->from, &from, err) < 0)
			return -1;
	} else if (step->image) {
		if (build_image(build, step->image, &from, err) < 0)
			return -1;
	}
	return from ? copy_sandbox(build, sandbox, step, from, err) : copy_context(build, sandbox, step, err);
}
