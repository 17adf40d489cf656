/*
 * From a template to its root image: stage 1 from the cache or made anew (debian.c), unpacked (unpack.c), what Husk
 * brings put into /.husk, and all of it written as EROFS. Called by the bake through template.h.
 *
 * Everything unfinished lives in one directory of the cache that this process holds a lock on; finished things are
 * renamed into place. Paths inside an unpacked root are never followed through symbolic links: the root may be
 * anybody's.
 */
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "store/oci.h"
#include "store/rootfs.h"

#define WORK_PREFIX "work-"
#define TOOL_TIMEOUT_MS (20 * 60 * 1000)

void build_say(const struct build *build, const char *format, ...)
{
	char text[512], line[640];
	va_list arguments;

	if (!build->progress)
		return;
	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	snprintf(line, sizeof(line), "%s: %s (%.1f s)", build->definition->name, text,
		 (double)(time_monotonic_ms() - build->started_ms) / 1000);
	build->progress(build->data, line);
}

/* ---- the work directory ---- */

/* Opened and locked, or -1 when another process holds it. */
static int lock_directory(const char *path, int mode)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

	if (fd >= 0 && flock(fd, mode) < 0) {
		close(fd);
		return -1;
	}
	return fd;
}

/* Removes what builds that were killed left. */
static void sweep(const char *cache)
{
	cleanup_dir DIR *dir = opendir(cache);
	struct dirent *entry;

	while (dir && (entry = readdir(dir))) {
		if (!str_starts(entry->d_name, WORK_PREFIX))
			continue;
		cleanup_free char *path = str_format("%s/%s", cache, entry->d_name);
		cleanup_close int fd = path ? lock_directory(path, LOCK_EX | LOCK_NB) : -1;
		struct husk_error problem;
		if (fd >= 0 && dir_remove(path, &problem) < 0)
			log_line(LOG_WARN, "%s", problem.message);
	}
}

static int work_open(const char *cache, char **path, int *lock, struct husk_error *err)
{
	char name[32];

	if (dir_make(cache, 0700, err) < 0)
		return -1;
	sweep(cache);
	if (random_id(WORK_PREFIX, 8, name) < 0)
		return husk_fail_errno(err, "cannot make a random name");
	*path = str_format("%s/%s", cache, name);
	if (!*path)
		return husk_fail_memory(err);
	if (dir_make(*path, 0700, err) < 0)
		return -1;
	*lock = lock_directory(*path, LOCK_EX | LOCK_NB);
	return *lock < 0 ? husk_fail_errno(err, "cannot lock '%s'", *path) : 0;
}

static void work_close(char **path)
{
	struct husk_error problem;

	if (*path && dir_remove(*path, &problem) < 0)
		log_line(LOG_WARN, "%s", problem.message);
	free(*path);
}

/* ---- stage 1 ---- */

/* Drops stage 1 of earlier versions of this definition: <name>-<digest>.tar of another digest. */
static void prune(const char *cache, const char *name, const char *keep)
{
	cleanup_dir DIR *dir = opendir(cache);
	size_t length = strlen(name);
	struct dirent *entry;

	while (dir && (entry = readdir(dir))) {
		const char *each = entry->d_name;
		if (strncmp(each, name, length) == 0 && each[length] == '-' && str_ends(each, ".tar") &&
		    strlen(each) == length + 1 + TEMPLATE_DIGEST_LENGTH + 4 &&
		    strncmp(each + length + 1, keep, TEMPLATE_DIGEST_LENGTH) != 0)
			unlinkat(dirfd(dir), each, 0);
	}
}

/* Makes stage 1 as `tar`, unless somebody else just did. One build at a time: two of the same definition would do the
 * same work twice, and more would only be in each other's way. */
static int stage1_make(const struct build *build, const char *cache, const char *tar, struct husk_error *err)
{
	cleanup_free char *made = str_format("%s/root.tar", build->work);
	cleanup_free char *log = str_format("%s/%s.log", cache, build->definition->name);
	cleanup_close int lock = lock_directory(cache, LOCK_EX | LOCK_NB);

	if (!made || !log)
		return husk_fail_memory(err);
	if (lock < 0) {
		build_say(build, "waiting for another build");
		lock = lock_directory(cache, LOCK_EX);
	}
	if (lock < 0)
		return husk_fail_errno(err, "cannot lock '%s'", cache);
	if (access(tar, R_OK) == 0)
		return 0;
	if (debian_build(build, made, log, err) < 0)
		return -1;
	if (rename(made, tar) < 0)
		return husk_fail_errno(err, "cannot keep '%s'", tar);
	unlink(log);
	return 0;
}

/* The path of stage 1's tar, made when the cache does not have it. */
static int stage1(const struct build *build, const char *cache, char **out, struct husk_error *err)
{
	const char *name = build->definition->name;
	char key[TEMPLATE_DIGEST_LENGTH + 1];

	if (digest_stage1(build->definition, key, err) < 0)
		return -1;
	*out = str_format("%s/%s-%s.tar", cache, name, key);
	if (!*out)
		return husk_fail_memory(err);
	if (access(*out, R_OK) == 0)
		build_say(build, "packages: unchanged, from the cache");
	else if (stage1_make(build, cache, *out, err) < 0)
		return -1;
	prune(cache, name, key);
	return 0;
}

/* ---- stage 2: what Husk brings ---- */

/* A directory of the root, made when missing. A link in its place is refused: what is put in would land elsewhere. */
static int seed_directory(int root, const char *path, mode_t mode, struct husk_error *err)
{
	cleanup_close int fd = -1;

	if (mkdirat(root, path, mode) == 0)
		return fchmodat(root, path, mode, 0) < 0 ? husk_fail_errno(err, "cannot set up '/%s' in the root", path)
							 : 0;
	if (errno == EEXIST)
		fd = openat(root, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	return fd < 0 ? husk_fail_errno(err, "'/%s' in the root is no directory", path) : 0;
}

static int seed_file(int root, const char *path, const char *from, mode_t mode, struct husk_error *err)
{
	cleanup_close int in = open(from, O_RDONLY | O_CLOEXEC);
	cleanup_close int out = openat(root, path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
	char data[1 << 16];
	ssize_t count;

	if (in < 0)
		return husk_fail_errno(err, "cannot read '%s'", from);
	if (out < 0)
		return husk_fail_errno(err, "cannot write '/%s' in the root", path);
	while ((count = read_full(in, data, sizeof(data))) > 0)
		if (write_full(out, data, (size_t)count) < 0)
			return husk_fail_errno(err, "cannot write '/%s' in the root", path);
	if (count < 0 || fchmod(out, mode) < 0)
		return husk_fail_errno(err, "cannot copy '%s' into the root", from);
	return 0;
}

static int seed_guest(void *data, const char *name, const char *path, struct husk_error *err)
{
	cleanup_free char *inside = str_format(".husk/guest/%s", name);

	if (!inside)
		return husk_fail_memory(err);
	return seed_file(*(int *)data, inside, path, access(path, X_OK) == 0 ? 0755 : 0644, err);
}

static int seed_environment(int root, const struct build *build, struct husk_error *err)
{
	cleanup_close int fd = openat(root, ".husk/environment", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
	char **environment = build->environment ? build->environment : build->definition->environment;

	if (fd < 0)
		return husk_fail_errno(err, "cannot write '/.husk/environment' in the root");
	for (; environment && *environment; environment++)
		if (write_full(fd, *environment, strlen(*environment)) < 0 || write_full(fd, "\n", 1) < 0)
			return husk_fail_errno(err, "cannot write '/.husk/environment' in the root");
	return 0;
}

static int seed(const struct build *build, const char *tree, struct husk_error *err)
{
	static const struct {
		const char *path;
		mode_t mode;
	} directories[] = {
		{ "proc", 0555 },  { "sys", 0555 },        { "dev", 0755 },        { "run", 0755 },
		{ "tmp", 01777 },  { "etc", 0755 },        { "root", 0700 },       { "workspace", 01777 },
		{ ".husk", 0755 }, { ".husk/disk", 0755 }, { ".husk/root", 0755 }, { ".husk/guest", 0755 },
	};
	cleanup_free char *agent = template_libfile("husk-agent");
	cleanup_free char *old = str_format("%s/.husk", tree);
	cleanup_close int root = open(tree, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (!agent)
		return template_libfile_missing("husk-agent", err);
	if (!old)
		return husk_fail_memory(err);
	if (root < 0)
		return husk_fail_errno(err, "cannot open '%s'", tree);
	if (dir_remove(old, err) < 0)
		return -1;
	for (size_t i = 0; i < ARRAY_SIZE(directories); i++)
		if (seed_directory(root, directories[i].path, directories[i].mode, err) < 0)
			return -1;
	if (seed_file(root, ".husk/agent", agent, 0755, err) < 0 || guest_files(seed_guest, &root, err) < 0)
		return -1;
	return seed_environment(root, build, err);
}

/* ---- the image ---- */

static int copy_tree(const char *from, const char *to, struct husk_error *err)
{
	cleanup_free char *content = str_format("%s/.", from);
	struct command command = {
		COMMAND_INIT,
		.argv = (const char *[]){ "cp", "-a", "--one-file-system", "--", content, to, NULL },
		.timeout_ms = TOOL_TIMEOUT_MS,
	};

	if (!content)
		return husk_fail_memory(err);
	return command_run(&command, err);
}

static int lay_layers(const struct build *build, const struct oci_image *image, const char *layout, const char *tree,
		      struct husk_error *err)
{
	const char *where = build->definition->source;

	for (size_t i = 0; i < image->layer_count; i++) {
		const struct oci_layer *layer = &image->layers[i];
		cleanup_free char *name = str_format("%s: layer %zu (%.12s)", where, i + 1, layer->digest);
		if (!name)
			return husk_fail_memory(err);
		build_say(build, "layer %zu of %zu", i + 1, image->layer_count);
		cleanup_close int fd =
			oci_verify(layout, where, layer, err) < 0 ? -1 : oci_open(layout, where, layer->path, err);
		if (fd < 0 || unpack_layer(fd, name, tree, err) < 0)
			return -1;
	}
	return 0;
}

/* A container image: a layout as it is, or a tar of one unpacked first. */
static int lay_image(struct build *build, const char *tree, struct husk_error *err)
{
	const struct template_definition *definition = build->definition;
	cleanup_free char *unpacked = str_format("%s/layout", build->work);
	cleanup(oci_image_free) struct oci_image image = { 0 };
	const char *layout = definition->source;
	struct stat status;

	if (!unpacked)
		return husk_fail_memory(err);
	if (stat(layout, &status) < 0)
		return husk_fail_errno(err, "cannot read '%s'", layout);
	if (!S_ISDIR(status.st_mode)) {
		layout = unpacked;
		if (dir_make(unpacked, 0700, err) < 0 || unpack_tar(definition->source, unpacked, err) < 0)
			return -1;
	}
	if (oci_load(layout, definition->source, definition->reference, &image, err) < 0)
		return -1;
	build->environment = steal_pointer(image.environment);
	return lay_layers(build, &image, layout, tree, err);
}

/* The template's root as a tree at `tree`. */
static int lay_out(struct build *build, const char *cache, const char *tree, struct husk_error *err)
{
	const struct template_definition *definition = build->definition;
	cleanup_free char *tar = NULL;

	if (definition->kind == TEMPLATE_DEFINITION && stage1(build, cache, &tar, err) < 0)
		return -1;
	if (dir_make(tree, 0755, err) < 0)
		return -1;
	build_say(build, "unpacking the root");
	if (definition->kind == TEMPLATE_DIRECTORY)
		return copy_tree(definition->source, tree, err);
	if (definition->kind == TEMPLATE_IMAGE)
		return lay_image(build, tree, err);
	return unpack_tar(tar ? tar : definition->source, tree, err);
}

/* noinline_data: gVisor reads no other. Times are kept: python recompiles a module whose source has another than its
 * compiled form remembers. No extended attributes: nothing in a guest may depend on the host's labels. */
static int write_image(const struct build *build, const char *tree, const char *out_image, struct husk_error *err)
{
	cleanup_free char *part = str_format("%s.part", out_image);
	struct command command = {
		COMMAND_INIT,
		.argv = (const char *[]){ "mkfs.erofs", "--quiet", "-Enoinline_data", "-x-1", part, tree, NULL },
		.timeout_ms = TOOL_TIMEOUT_MS,
	};
	struct stat status;

	if (!part)
		return husk_fail_memory(err);
	build_say(build, "writing the image");
	if (command_run(&command, err) < 0) {
		unlink(part);
		return husk_wrap(err, "cannot make the root image with mkfs.erofs (package erofs-utils)");
	}
	if (chmod(part, 0644) < 0 || rename(part, out_image) < 0) {
		husk_fail_errno(err, "cannot write '%s'", out_image);
		unlink(part);
		return -1;
	}
	if (stat(out_image, &status) == 0)
		build_say(build, "root image of %lld MB done", (long long)(status.st_size >> 20));
	return 0;
}

int template_build_rootfs(const struct template_definition *definition, const char *cache_dir, const char *out_image,
			  template_progress progress, void *data, struct husk_error *err)
{
	cleanup(work_close) char *work = NULL;
	cleanup_close int lock = -1;
	struct build build = {
		.definition = definition, .progress = progress, .data = data, .started_ms = time_monotonic_ms()
	};
	cleanup_free char *tree = NULL;

	if (work_open(cache_dir, &work, &lock, err) < 0)
		return -1;
	build.work = work;
	tree = str_format("%s/tree", work);
	if (!tree)
		return husk_fail_memory(err);
	int result = lay_out(&build, cache_dir, tree, err);
	if (result == 0)
		result = seed(&build, tree, err);
	if (result == 0)
		result = write_image(&build, tree, out_image, err);
	strv_free(build.environment);
	return result < 0 ? husk_wrap(err, "template '%s'", definition->name) : 0;
}
