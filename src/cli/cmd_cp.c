/*
 * `husk cp`: copies files and directories between the host and a sandbox, and tar streams on stdin and stdout. A file
 * or a new directory appears on the host only when it is complete. Directories pass through a pipe between libhusk's
 * call and a thread that packs or unpacks (tree.c).
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>

#include "cli/cli.h"
#include "cli/interrupt.h"
#include "cli/tree.h"

struct cp_arguments {
	const char *user;
};

static const struct option_spec cp_options[] = {
	OPTION('u', "user", OPTION_STRING, struct cp_arguments, user, "USER",
	       "the owner of the copied files in the sandbox (root)"),
	{ 0 },
};

#define SKIPPED_SHOWN 5 /* names of left-out files; the rest is counted */

/* One copy under way. */
struct copy {
	struct cli *cli;
	const char *sandbox, *guest_path, *host_path, *user;
	struct progress *progress;
	uint64_t bytes;
	json_t *skipped;
	int fd;       /* our end of the file or pipe */
	bool stopped; /* by this program: a write failed, or the user interrupted */
};

/* ---- between libhusk and a descriptor ---- */

static int sink_fd(void *data, const void *bytes, size_t size)
{
	struct copy *copy = data;

	copy->bytes += size;
	progress_bytes(copy->progress, size);
	copy->stopped = interrupt_seen() || write_full(copy->fd, bytes, size) < 0;
	return copy->stopped;
}

static ssize_t source_fd(void *data, void *bytes, size_t size)
{
	struct copy *copy = data;
	ssize_t count;

	do
		count = read(copy->fd, bytes, size);
	while (count < 0 && errno == EINTR);
	copy->stopped = interrupt_seen() || count < 0;
	if (copy->stopped)
		return -1;
	copy->bytes += (size_t)count;
	progress_bytes(copy->progress, (size_t)count);
	return count;
}

static void on_skipped(void *data, const char *name, const char *reason)
{
	struct copy *copy = data;

	/* called in the thread of the tree; no other thread uses the list before the thread is joined */
	json_array_append_new(copy->skipped, json_text0(name));
	if (json_array_size(copy->skipped) <= SKIPPED_SHOWN)
		output_note("left out '%s': %s", name, reason);
}

/* ---- one file ---- */

static int file_out_to(struct copy *copy, int fd, struct husk_error *err)
{
	copy->fd = fd;
	if (husk_file_read(copy->cli->husk, copy->sandbox, copy->guest_path, 0, 0, sink_fd, copy, err) == 0)
		return 0;
	return copy->stopped && !interrupt_seen() ? husk_fail_errno(err, "cannot write '%s'", copy->host_path) : -1;
}

/* Written beside the target and renamed over it. If the target is not a plain file (a device, a pipe, a link such as
 * /dev/stdout), it is written directly: replacing it would be a surprise. */
static int file_out(struct copy *copy, const char *target, mode_t mode, struct husk_error *err)
{
	struct stat status;

	copy->host_path = target;
	if (lstat(target, &status) == 0 && !S_ISREG(status.st_mode)) {
		cleanup_close int fd = open(target, O_WRONLY | O_TRUNC | O_CREAT | O_CLOEXEC, 0644);
		return fd < 0 ? husk_fail_errno(err, "cannot open '%s'", target) : file_out_to(copy, fd, err);
	}
	cleanup_free char *beside = str_format("%s.husk-XXXXXX", target);
	if (!beside)
		return husk_fail_memory(err);
	cleanup_close int fd = mkostemp(beside, O_CLOEXEC);
	if (fd < 0)
		return husk_fail_errno(err, "cannot write '%s'", target);
	int result = file_out_to(copy, fd, err);
	if (result == 0 && (fchmod(fd, mode & 0777) < 0 || rename(beside, target) < 0))
		result = husk_fail_errno(err, "cannot write '%s'", target);
	if (result < 0)
		unlink(beside);
	return result;
}

static int file_in(struct copy *copy, const char *target, mode_t mode, struct husk_error *err)
{
	cleanup_close int fd = open(copy->host_path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return husk_fail_errno(err, "cannot open '%s'", copy->host_path);
	copy->fd = fd;
	/* mode 0 means "the default" to libhusk: a file with mode 0 is changed afterwards */
	if (husk_file_write(copy->cli->husk, copy->sandbox, target, mode & 0777, copy->user, source_fd, copy, err) < 0)
		return copy->stopped && !interrupt_seen() ? husk_fail_errno(err, "cannot read '%s'", copy->host_path)
							  : -1;
	return mode & 0777 ? 0 : husk_file_chmod(copy->cli->husk, copy->sandbox, target, 0, err);
}

/* ---- trees ---- */

/* The thread at the other end of the pipe. */
struct tree_job {
	struct copy *copy;
	int fd, directory; /* directory: where it unpacks; -1: it packs */
	const char *strip;
	atomic_bool failed;
	struct husk_error err;
	pthread_t thread;
};

static void *tree_main(void *data)
{
	struct tree_job *job = data;
	int result;

	if (job->directory >= 0)
		result = tree_unpack(job->fd, job->directory, job->strip, on_skipped, job->copy, &job->err);
	else
		result = tree_pack(job->copy->host_path, job->fd, on_skipped, job->copy, &job->err);
	atomic_store(&job->failed, result < 0); /* before the other end sees that the pipe is closed */
	fd_close(&job->fd);
	return NULL;
}

static ssize_t source_tree(void *data, void *bytes, size_t size)
{
	struct tree_job *job = data;
	ssize_t count = source_fd(job->copy, bytes, size);

	/* if the tree could not be read, the end of the stream is not the end of the tree */
	if (count == 0 && atomic_load(&job->failed)) {
		job->copy->stopped = true;
		return -1;
	}
	return count;
}

/* Runs the call with the thread at the other end; reports the failure that caused the other one. */
static int tree_transfer(struct tree_job *job, const char *guest_path, struct husk_error *err)
{
	struct copy *copy = job->copy;
	bool out = job->directory >= 0;
	int ends[2], result;

	if (pipe2(ends, O_CLOEXEC) < 0)
		return husk_fail_errno(err, "cannot make a pipe");
	job->fd = ends[out ? 0 : 1];
	copy->fd = ends[out ? 1 : 0];
	errno = pthread_create(&job->thread, NULL, tree_main, job);
	if (errno) {
		fd_close(&ends[0]);
		fd_close(&ends[1]);
		return husk_fail_errno(err, "cannot start a thread");
	}
	if (out)
		result = husk_tar_read(copy->cli->husk, copy->sandbox, guest_path, sink_fd, copy, err);
	else
		result = husk_tar_write(copy->cli->husk, copy->sandbox, guest_path, copy->user, source_tree, job, err);
	fd_close(&copy->fd);
	pthread_join(job->thread, NULL);
	if (job->failed && (copy->stopped || (out && result == 0))) {
		*err = job->err;
		return -1;
	}
	return result;
}

/* Into an existing directory. */
static int tree_out_into(struct copy *copy, const char *target, const char *strip, struct husk_error *err)
{
	cleanup_close int directory = open(target, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct tree_job job = { .copy = copy, .directory = directory, .strip = strip };

	if (directory < 0)
		return husk_fail_errno(err, "cannot open directory '%s'", target);
	return tree_transfer(&job, copy->guest_path, err);
}

/* A new directory is made under another name first, so that an interrupted copy leaves nothing. */
static int tree_out(struct copy *copy, const char *target, const char *strip, struct husk_error *err)
{
	struct stat status;

	if (stat(target, &status) == 0)
		return tree_out_into(copy, target, strip, err);
	cleanup_free char *beside = str_format("%s.husk-XXXXXX", target);
	if (!beside)
		return husk_fail_memory(err);
	if (!mkdtemp(beside))
		return husk_fail_errno(err, "cannot make directory '%s'", target);
	int result = tree_out_into(copy, beside, strip, err);
	if (result == 0 && (chmod(beside, 0755) < 0 || rename(beside, target) < 0))
		result = husk_fail_errno(err, "cannot make directory '%s'", target);
	if (result < 0)
		dir_remove(beside, NULL);
	return result;
}

static int tree_in(struct copy *copy, const char *target, struct husk_error *err)
{
	struct tree_job job = { .copy = copy, .directory = -1 };

	return tree_transfer(&job, target, err);
}

/* ---- destinations ---- */

/* The last component of a path; "" for "/", "." and "..", which are not names. Caller frees. */
static char *base_name(const char *path)
{
	size_t end = strlen(path);

	while (end > 1 && path[end - 1] == '/')
		end--;
	size_t start = end;
	while (start > 0 && path[start - 1] != '/')
		start--;
	char *name = strndup(path + start, end - start);
	if (name && (str_equal(name, ".") || str_equal(name, "..")))
		*name = '\0';
	return name;
}

/* As cp: if the destination is an existing directory, into it under the source's name; otherwise exactly there. A
 * file's destination with a slash at its end also means a directory; a tree's destination is the new directory
 * itself. */
static char *place(const char *destination, bool is_directory, bool tree, const char *name)
{
	bool slash = str_ends(destination, "/");

	if (*name && (is_directory || (slash && !tree)))
		return str_format("%s%s%s", destination, slash ? "" : "/", name);
	char *target = strdup(destination);
	for (size_t size = target ? strlen(target) : 0; size > 1 && target[size - 1] == '/'; size--)
		target[size - 1] = '\0';
	return target;
}

static int copy_in(struct copy *copy, struct husk_error *err)
{
	struct husk_file there = { 0 };
	struct husk_error missing = { 0 };
	struct stat status;

	if (str_equal(copy->host_path, "-")) {
		copy->fd = STDIN_FILENO;
		return husk_tar_write(copy->cli->husk, copy->sandbox, copy->guest_path, copy->user, source_fd, copy,
				      err);
	}
	if (stat(copy->host_path, &status) < 0)
		return husk_fail_errno(err, "cannot read '%s'", copy->host_path);
	bool exists = husk_file_stat(copy->cli->husk, copy->sandbox, copy->guest_path, true, &there, &missing) == 0;
	bool is_directory = exists && there.type == HUSK_DIRECTORY, tree = S_ISDIR(status.st_mode);
	if (exists)
		husk_file_free(&there);
	else if (missing.code != HUSK_NOT_FOUND) {
		*err = missing;
		return -1;
	}
	cleanup_free char *name = base_name(copy->host_path);
	cleanup_free char *target = name ? place(copy->guest_path, is_directory, tree, name) : NULL;
	if (!target)
		return husk_fail_memory(err);
	return tree ? tree_in(copy, target, err) : file_in(copy, target, status.st_mode, err);
}

static int copy_out(struct copy *copy, struct husk_error *err)
{
	struct husk_file source = { 0 };
	struct stat status;

	if (str_equal(copy->host_path, "-")) {
		copy->fd = STDOUT_FILENO;
		return husk_tar_read(copy->cli->husk, copy->sandbox, copy->guest_path, sink_fd, copy, err);
	}
	if (husk_file_stat(copy->cli->husk, copy->sandbox, copy->guest_path, true, &source, err) < 0)
		return -1;
	enum husk_file_type type = source.type;
	mode_t mode = source.mode;
	husk_file_free(&source);
	bool is_directory = stat(copy->host_path, &status) == 0 && S_ISDIR(status.st_mode);
	cleanup_free char *name = base_name(copy->guest_path);
	cleanup_free char *target = name ? place(copy->host_path, is_directory, type == HUSK_DIRECTORY, name) : NULL;
	if (!target)
		return husk_fail_memory(err);
	if (type == HUSK_DIRECTORY)
		return tree_out(copy, target, *name ? name : NULL, err);
	if (type == HUSK_FILE)
		return file_out(copy, target, mode, err);
	return husk_fail(err, HUSK_INVALID, "'%s' is neither a file nor a directory", copy->guest_path);
}

/* ---- the command ---- */

/* SANDBOX:PATH. A word with a slash before the colon, or with a leading dot, is a path of the host. */
static bool split_guest(char *word, const char **sandbox, const char **path)
{
	char *colon = strchr(word, ':');
	const char *slash = strchr(word, '/');

	if (!colon || colon == word || word[0] == '.' || (slash && slash < colon))
		return false;
	*colon = '\0';
	*sandbox = word;
	*path = colon[1] ? colon + 1 : "/";
	return true;
}

static int cp_finish(struct copy *copy, bool in, struct husk_error *err)
{
	if (!copy->cli->json || str_equal(copy->host_path, "-"))
		return 0;
	cleanup_sandbox struct husk_sandbox *sandbox = NULL;
	if (husk_inspect(copy->cli->husk, copy->sandbox, &sandbox, err) < 0)
		return -1;
	return output_json(json_pack("{s:s, s:s, s:o, s:o, s:I, s:O}", "id", sandbox->id, "direction",
				     in ? "in" : "out", "path", json_text0(copy->guest_path), "host_path",
				     json_text0(copy->host_path), "bytes", (json_int_t)copy->bytes, "skipped",
				     copy->skipped),
			   err);
}

static int cp_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	const struct cp_arguments *arguments = data;
	cleanup_json json_t *skipped = json_array();
	struct copy copy = { .cli = cli, .user = arguments->user, .skipped = skipped };
	const char *other_sandbox, *other_path;

	(void)argc;
	if (!skipped)
		return husk_fail_memory(err);
	bool out = split_guest(argv[0], &copy.sandbox, &copy.guest_path);
	bool in = split_guest(argv[1], out ? &other_sandbox : &copy.sandbox, out ? &other_path : &copy.guest_path);
	if (out == in)
		return husk_fail(err, HUSK_INVALID,
				 in ? "cp works between the host and one sandbox; copy out first, then in"
				    : "cp needs one SANDBOX:PATH; a host path with a colon is written ./a:b");
	copy.host_path = argv[in ? 0 : 1];
	const char *host_path = copy.host_path;
	if (interrupt_hold(err) < 0)
		return -1;
	copy.progress = progress_begin("copying %s", in ? copy.host_path : copy.guest_path);
	int result = in ? copy_in(&copy, err) : copy_out(&copy, err);
	progress_end(&copy.progress);
	if (result < 0)
		return interrupt_seen() ? husk_fail(err, HUSK_GONE, "interrupted before all was copied") : -1;
	copy.host_path = host_path;
	if (json_array_size(skipped) > SKIPPED_SHOWN)
		output_note("left out %zu more; --json lists them all", json_array_size(skipped) - SKIPPED_SHOWN);
	return cp_finish(&copy, in, err);
}

const struct cli_command cli_cp = {
	.name = "cp",
	.operands = "SOURCE DESTINATION",
	.summary = "Copy files and directories into and out of a sandbox",
	.details = "One of the two is SANDBOX:PATH. As with cp, a destination that is a directory receives the source "
		   "under its\n"
		   "own name. \"-\" on the host's side is a tar stream: husk cp - box:/dir <x.tar, husk cp box:/dir - "
		   ">x.tar.\n"
		   "Content from a sandbox is not trusted: devices and links that lead outside are left out.\n",
	.groups = { { cp_options, 0 } },
	.arguments_size = sizeof(struct cp_arguments),
	.min = 2,
	.max = 2,
	.run = cp_run,
};
