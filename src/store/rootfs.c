/*
 * Builds a template's root image: takes stage 1 from the cache or makes it (debian.c), unpacks it, adds Husk's own files in
 * /.husk, and writes the result as EROFS. Called by versions.c through template.h. Steps that read untrusted data
 * (unpacking, writing the image) run in cells (builder.c); here, only the documents of a container image are parsed.
 *
 * Unfinished work is in one directory of the cache, locked by this process; finished files are renamed into place. Symbolic
 * links inside an unpacked root are never followed, because the root is untrusted.
 */
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "store/builder.h"
#include "store/rootfs.h"

#define WORK_PREFIX "work-"

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

/* Opens and locks a directory; -1 if another process holds it. */
static int lock_directory(const char *path, int mode)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

	if (fd >= 0 && flock(fd, mode) < 0) {
		fd_close(&fd);
		return -1;
	}
	return fd;
}

/* Removes the remains of killed builds. */
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

/* Removes stage 1 of earlier versions of this definition: <name>-<digest>.tar with another digest. */
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

/* Makes stage 1 as `tar`, unless another process has just made it. One build runs at a time: two builds of the same
 * definition would do the same work twice, and several builds would slow each other down. */
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

/* The path of stage 1's tar; it is made if the cache does not have it. */
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

/* ---- stage 2: Husk's own files ---- */

/* Makes a directory of the root if it is missing. A link in its place is refused: files would be written elsewhere. */
static int seed_directory(int root, uint32_t owner, const char *path, mode_t mode, struct husk_error *err)
{
	cleanup_close int fd = -1;

	if (mkdirat(root, path, mode) == 0)
		return fchmodat(root, path, mode, 0) < 0 || fchownat(root, path, owner, owner, AT_SYMLINK_NOFOLLOW) < 0
			       ? husk_fail_errno(err, "cannot set up '/%s' in the root", path)
			       : 0;
	if (errno == EEXIST)
		fd = openat(root, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	return fd < 0 ? husk_fail_errno(err, "'/%s' in the root is not a directory", path) : 0;
}

static int seed_file(int root, uint32_t owner, const char *path, const char *from, mode_t mode, struct husk_error *err)
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
	if (count < 0 || fchown(out, owner, owner) < 0 || fchmod(out, mode) < 0)
		return husk_fail_errno(err, "cannot copy '%s' into the root", from);
	return 0;
}

struct seed {
	int root;
	uint32_t owner;
};

static int seed_guest(void *data, const char *name, const char *path, struct husk_error *err)
{
	const struct seed *seed = data;
	cleanup_free char *inside = str_format(".husk/guest/%s", name);

	if (!inside)
		return husk_fail_memory(err);
	return seed_file(seed->root, seed->owner, inside, path, access(path, X_OK) == 0 ? 0755 : 0644, err);
}

static int seed_environment(int root, const struct build *build, struct husk_error *err)
{
	cleanup_close int fd = openat(root, ".husk/environment", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
	char **environment = build->image.environment ? build->image.environment : build->definition->environment;

	if (fd < 0 || fchown(fd, build->jail->uid_base, build->jail->uid_base) < 0)
		return husk_fail_errno(err, "cannot write '/.husk/environment' in the root");
	for (; environment && *environment; environment++)
		if (write_full(fd, *environment, strlen(*environment)) < 0 || write_full(fd, "\n", 1) < 0)
			return husk_fail_errno(err, "cannot write '/.husk/environment' in the root");
	return 0;
}

/* Writes the process settings of a container image, for the agent. */
static int seed_process(int root, const struct build *build, struct husk_error *err)
{
	cleanup_close int fd = openat(root, ".husk/process", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
	const struct oci_image *image = &build->image;
	cleanup_buf struct buf text = { 0 };
	int bad = 0;

	if (image->user)
		bad |= buf_printf(&text, "user=%s%c", image->user, '\0');
	if (image->directory)
		bad |= buf_printf(&text, "cwd=%s%c", image->directory, '\0');
	for (char **word = image->command; word && *word; word++)
		bad |= buf_printf(&text, "arg=%s%c", *word, '\0');
	if (bad)
		return husk_fail_memory(err);
	if (fd < 0 || fchown(fd, build->jail->uid_base, build->jail->uid_base) < 0 ||
	    write_full(fd, text.data ? text.data : "", text.size) < 0)
		return husk_fail_errno(err, "cannot write '/.husk/process' in the root");
	return 0;
}

static int seed_all(const struct build *build, const char *tree, struct husk_error *err)
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
	const uint32_t owner = build->jail->uid_base; /* root, as seen by the cell that makes the image */

	if (!agent)
		return template_libfile_missing("husk-agent", err);
	if (!old)
		return husk_fail_memory(err);
	if (root < 0)
		return husk_fail_errno(err, "cannot open '%s'", tree);
	if (dir_remove(old, err) < 0)
		return -1;
	for (size_t i = 0; i < ARRAY_SIZE(directories); i++)
		if (seed_directory(root, owner, directories[i].path, directories[i].mode, err) < 0)
			return -1;
	struct seed guest = { root, owner };
	if (seed_file(root, owner, ".husk/agent", agent, 0755, err) < 0 || guest_files(seed_guest, &guest, err) < 0)
		return -1;
	if (build->definition->kind == TEMPLATE_IMAGE && seed_process(root, build, err) < 0)
		return -1;
	return seed_environment(root, build, err);
}

/* ---- the image ---- */

int build_directory(const struct build *build, const char *path, struct husk_error *err)
{
	if (dir_make(path, 0755, err) < 0)
		return -1;
	if (chown(path, build->jail->uid_base, build->jail->uid_base) < 0)
		return husk_fail_errno(err, "cannot hand '%s' over", path);
	return 0;
}

static int unpack(const struct build *build, const char *tar, const char *field, const char *directory,
		  struct husk_error *err)
{
	cleanup_close int fd = open(tar, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return husk_fail_errno(err, "cannot read '%s'", tar);
	return step_unpack(build->jail, fd, tar, field, 0, directory, err);
}

int build_copy(const struct build *build, const char *from, bool as_root, const char *to, struct husk_error *err)
{
	struct command command = {
		COMMAND_INIT,
		.argv = (const char *[]){ "tar", "--create", "--format=posix", "--numeric-owner", "--one-file-system",
					  "--exclude=./dev/*", as_root ? "--owner=0" : "--numeric-owner",
					  as_root ? "--group=0" : "--numeric-owner", "--directory", from, ".", NULL },
	};
	int ends[2], status;

	if (pipe2(ends, O_CLOEXEC) < 0)
		return husk_fail_errno(err, "cannot make a pipe");
	cleanup_close int in = ends[0], out = ends[1];
	command.stdout_fd = out;
	pid_t pid = command_start(&command, err);
	fd_close(&out);
	if (pid < 0)
		return -1;
	int result = step_unpack(build->jail, in, from, "rootfs", 0, to, err);
	fd_close(&in); /* a tar that still writes then ends */
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return husk_fail_errno(err, "cannot wait for tar");
	/* 1: a file changed while it was read. SIGPIPE: the reader saw the end of the archive and left before the padding
	 * after it was written. */
	bool whole = WIFEXITED(status) ? WEXITSTATUS(status) <= 1 : WTERMSIG(status) == SIGPIPE;
	if (result == 0 && !whole)
		return husk_fail(err, HUSK_INTERNAL, "cannot read all of '%s' (tar ended with status %d)", from,
				 status);
	return result;
}

static int lay_layers(const struct build *build, const char *layout, const char *tree, struct husk_error *err)
{
	const struct oci_image *image = &build->image;
	const char *where = build->definition->source;

	for (size_t i = 0; i < image->layer_count; i++) {
		const struct oci_layer *layer = &image->layers[i];
		cleanup_free char *name = str_format("%s: layer %zu (%.12s)", where, i + 1, layer->digest);
		if (!name)
			return husk_fail_memory(err);
		build_say(build, "layer %zu of %zu", i + 1, image->layer_count);
		cleanup_close int fd = oci_open(layout, where, layer->path, err);
		if (fd < 0 || step_layer(build->jail, fd, name, layer, tree, err) < 0)
			return -1;
	}
	return 0;
}

/* Unpacks a container image: a layout directly, a tar of one after unpacking it. */
static int lay_image(struct build *build, const char *tree, struct husk_error *err)
{
	const struct template_definition *definition = build->definition;
	cleanup_free char *unpacked = str_format("%s/layout", build->work);
	const char *layout = definition->source;
	struct stat status;

	if (!unpacked)
		return husk_fail_memory(err);
	if (stat(layout, &status) < 0)
		return husk_fail_errno(err, "cannot read '%s'", layout);
	if (!S_ISDIR(status.st_mode)) {
		layout = unpacked;
		if (build_directory(build, unpacked, err) < 0 ||
		    unpack(build, definition->source, "image", unpacked, err) < 0)
			return -1;
	}
	if (oci_load(layout, definition->source, definition->reference, &build->image, err) < 0)
		return -1;
	return lay_layers(build, layout, tree, err);
}

/* Makes the template's root as a tree at `tree`. */
static int lay_out(struct build *build, const char *cache, const char *tree, struct husk_error *err)
{
	const struct template_definition *definition = build->definition;
	cleanup_free char *tar = NULL;

	if (definition->kind == TEMPLATE_DEFINITION && stage1(build, cache, &tar, err) < 0)
		return -1;
	if (build_directory(build, tree, err) < 0)
		return -1;
	build_say(build, "unpacking the root");
	if (definition->kind == TEMPLATE_DIRECTORY)
		return build_copy(build, definition->source, false, tree, err);
	if (definition->kind == TEMPLATE_IMAGE)
		return lay_image(build, tree, err);
	return unpack(build, tar ? tar : definition->source, "tar", tree, err);
}

static int write_image(const struct build *build, const char *tree, const char *out_image, struct husk_error *err)
{
	cleanup_free char *part = str_format("%s.part", out_image);
	struct stat status;

	if (!part)
		return husk_fail_memory(err);
	build_say(build, "writing the image");
	cleanup_close int fd = open(part, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0 || fchown(fd, build->jail->uid_base, build->jail->uid_base) < 0)
		return husk_fail_errno(err, "cannot write '%s'", part);
	if (step_image(build->jail, tree, part, err) < 0) {
		unlink(part);
		return husk_wrap(err, "cannot make the root image");
	}
	if (fchown(fd, geteuid(), getegid()) < 0 || fchmod(fd, 0644) < 0 || fstat(fd, &status) < 0 ||
	    rename(part, out_image) < 0) {
		husk_fail_errno(err, "cannot write '%s'", out_image);
		unlink(part);
		return -1;
	}
	build_say(build, "root image of %lld MB done", (long long)(status.st_size >> 20));
	return 0;
}

int template_build_rootfs(const struct template_definition *definition, const struct template_jail *jail,
			  const char *cache_dir, const char *out_image, template_progress progress, void *data,
			  struct husk_error *err)
{
	cleanup(work_close) char *work = NULL;
	cleanup_close int lock = -1;
	struct build build = { .definition = definition,
			       .jail = jail,
			       .progress = progress,
			       .data = data,
			       .started_ms = time_monotonic_ms() };
	cleanup_free char *tree = NULL;

	if (work_open(cache_dir, &work, &lock, err) < 0)
		return -1;
	build.work = work;
	tree = str_format("%s/tree", work);
	if (!tree)
		return husk_fail_memory(err);
	int result = lay_out(&build, cache_dir, tree, err);
	if (result == 0)
		result = seed_all(&build, tree, err);
	if (result == 0)
		result = write_image(&build, tree, out_image, err);
	oci_image_free(&build.image);
	return result < 0 ? husk_wrap(err, "template '%s'", definition->name) : 0;
}
