/*
 * Prints a change as a unified diff, made by diff(1). The two files are the guests': diff reads copies of them, without
 * privileges and within limits, and its output reaches a terminal without control characters.
 */
#include "cli/patch.h"

#include <fcntl.h>
#include <grp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "cli/cli.h"

#define TEXT_MAX (1u << 20) /* of a file that is shown as text */
#define DIFF_MS 20000
#define DIFF_MEMORY (512u << 20)
#define NOBODY 65534

/* ---- the two files ---- */

struct copy {
	int fd;
	uint64_t size;
};

static int copy_bytes(void *data, const void *bytes, size_t size)
{
	struct copy *copy = data;

	copy->size += size;
	return copy->size > TEXT_MAX || write_full(copy->fd, bytes, size) < 0 ? -1 : 0;
}

/* 1: it is there; 0: too large. `sandbox` NULL: the file of the template of `of`. */
static int copy_file(struct husk *husk, const char *of, const char *sandbox, const char *path, const char *to,
		     struct husk_error *err)
{
	cleanup_close int fd = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	struct copy copy = { .fd = fd };

	if (fd < 0 || (geteuid() == 0 && fchown(fd, NOBODY, NOBODY) < 0))
		return husk_fail_errno(err, "cannot write '%s'", to);
	int result = sandbox ? husk_file_read(husk, sandbox, path, 0, 0, copy_bytes, &copy, err)
			     : husk_template_file_read(husk, of, path, copy_bytes, &copy, err);
	if (copy.size > TEXT_MAX)
		return 0;
	return result < 0 ? -1 : 1;
}

/* ---- diff ---- */

static int give_up_rights(void *data)
{
	const struct rlimit memory = { DIFF_MEMORY, DIFF_MEMORY }, none = { 0, 0 };

	(void)data;
	if (setrlimit(RLIMIT_AS, &memory) < 0 || setrlimit(RLIMIT_FSIZE, &none) < 0 ||
	    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		return 2;
	if (geteuid() == 0 &&
	    (setgroups(0, NULL) < 0 || setresgid(NOBODY, NOBODY, NOBODY) < 0 || setresuid(NOBODY, NOBODY, NOBODY) < 0))
		return 2;
	return 0;
}

/* diff's exit status is 1 when the files differ. */
static int run_diff(const char *directory, const char *old_label, const char *new_label, struct buf *out,
		    struct husk_error *err)
{
	const char *const argv[] = {
		"sh",      "-c", "diff -u --label \"$1\" --label \"$2\" old new; [ $? -le 1 ]", "husk-diff", old_label,
		new_label, NULL
	};
	struct command command = { COMMAND_INIT,
				   .argv = argv,
				   .directory = directory,
				   .output = out,
				   .before_exec = give_up_rights,
				   .timeout_ms = DIFF_MS };

	return command_run(&command, err);
}

static void put(const char *text, size_t size)
{
	if (isatty(STDOUT_FILENO))
		output_safe(stdout, text, true);
	else
		fwrite(text, 1, size, stdout);
}

/* ---- one change ---- */

static void drop_directory(char **directory)
{
	if (*directory)
		dir_remove(*directory, NULL);
	free(*directory);
}

static char *make_directory(struct husk_error *err)
{
	char *path = strdup("/tmp/husk-diff.XXXXXX");

	if (path && mkdtemp(path) && (geteuid() != 0 || chown(path, NOBODY, NOBODY) == 0))
		return path;
	husk_fail_errno(err, "cannot make a directory in /tmp");
	free(path);
	return NULL;
}

/* An empty file for the side that has none. */
static int copy_side(struct husk *husk, const char *of, const char *sandbox, const char *path, bool there,
		     const char *to, struct husk_error *err)
{
	cleanup_close int fd = -1;

	if (there)
		return copy_file(husk, of, sandbox, path, to, err);
	fd = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
	return fd < 0 ? husk_fail_errno(err, "cannot write '%s'", to) : 1;
}

static int print_text(struct husk *husk, const char *sandbox, const char *base, const struct husk_change *change,
		      struct husk_error *err)
{
	cleanup(drop_directory) char *directory = make_directory(err);
	cleanup_free char *old = directory ? str_format("%s/old", directory) : NULL;
	cleanup_free char *new = directory ? str_format("%s/new", directory) : NULL;
	const char *path = change->file.path;
	cleanup_free char *a = str_format("a%s", path), *b = str_format("b%s", path);
	cleanup_buf struct buf out = { 0 };

	if (!directory)
		return -1;
	if (!old || !new || !a || !b)
		return husk_fail_memory(err);
	bool was = change->kind != HUSK_ADDED, is = change->kind != HUSK_REMOVED;
	int left = copy_side(husk, sandbox, base, path, was, old, err);
	int right = left < 0 ? -1 : copy_side(husk, sandbox, sandbox, path, is, new, err);
	if (right < 0)
		return -1;
	if (left == 0 || right == 0) {
		output_note("%s is larger than %u bytes, and not shown", path, TEXT_MAX);
		return 0;
	}
	if (run_diff(directory, was ? a : "/dev/null", is ? b : "/dev/null", &out, err) < 0)
		return -1;
	put(out.data ? out.data : "", out.size);
	return 0;
}

int patch_print(struct husk *husk, const char *sandbox, const char *base, const struct husk_change *change,
		struct husk_error *err)
{
	static const char *const words[] = {
		[HUSK_ADDED] = "new", [HUSK_REMOVED] = "deleted", [HUSK_CHANGED] = "changed"
	};
	cleanup_free char *line = str_format("diff husk a%s b%s\n%s mode %04o\n", change->file.path, change->file.path,
					     words[change->kind], change->file.mode);
	struct husk_error why = { 0 };

	if (!line)
		return husk_fail_memory(err);
	put(line, strlen(line));
	if (change->file.type != HUSK_FILE)
		return 0;
	if (print_text(husk, sandbox, base, change, &why) == 0)
		return 0;
	/* The file was another type before, or has gone since: the line above says what there is to say. */
	if (why.code == HUSK_NOT_FOUND || why.code == HUSK_INVALID)
		return 0;
	if (err)
		*err = why;
	return -1;
}
