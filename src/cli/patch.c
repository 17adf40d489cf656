/*
 * Prints a change as a unified diff, made by diff(1). The two files are the guests': diff reads copies of them, without
 * privileges and within limits, and its output reaches a terminal without control characters.
 */
#include "cli/patch.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "cli/cli.h"

#define TEXT_MAX (1u << 20) /* of a file that is shown as text */
#define DIFF_MS 20000

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

/* The two files of a change. */
struct pair {
	struct husk *husk;
	const char *sandbox;
	const char *base; /* the sandbox that it is compared with; NULL: its template, or with `root` its workspace */
	const char *root; /* paths are relative to this one; NULL: they are absolute */
	struct patch_stat *stat; /* counts lines instead of printing them; NULL: prints */
};

static int read_old(const struct pair *pair, const char *path, struct copy *copy, struct husk_error *err)
{
	if (pair->root)
		return husk_workspace_base_read(pair->husk, pair->sandbox, path, copy_bytes, copy, err);
	if (pair->base)
		return husk_file_read(pair->husk, pair->base, path, 0, 0, copy_bytes, copy, err);
	return husk_template_file_read(pair->husk, pair->sandbox, path, copy_bytes, copy, err);
}

static int read_new(const struct pair *pair, const char *path, struct copy *copy, struct husk_error *err)
{
	cleanup_free char *full = str_format("%s%s%s", pair->root ? pair->root : "", pair->root ? "/" : "", path);

	if (!full)
		return husk_fail_memory(err);
	return husk_file_read(pair->husk, pair->sandbox, full, 0, 0, copy_bytes, copy, err);
}

/* 1: it is there; 0: too large. */
static int copy_file(const struct pair *pair, bool old, const char *path, const char *to, struct husk_error *err)
{
	cleanup_close int fd = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	struct copy copy = { .fd = fd };
	struct husk_error why = { 0 };

	if (fd < 0 || (geteuid() == 0 && fchown(fd, COMMAND_NOBODY, COMMAND_NOBODY) < 0))
		return husk_fail_errno(err, "cannot write '%s'", to);
	int result = old ? read_old(pair, path, &copy, &why) : read_new(pair, path, &copy, &why);
	if (copy.size > TEXT_MAX || (result < 0 && why.code == HUSK_LIMIT))
		return 0;
	if (result < 0 && err)
		*err = why;
	return result < 0 ? -1 : 1;
}

/* ---- diff ---- */

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
				   .before_exec = command_unprivileged,
				   .timeout_ms = DIFF_MS };

	return command_run(&command, err);
}

/* The lines of a unified diff that begin with + or -, after its two lines of names. */
static void count_lines(const char *text, size_t size, struct patch_stat *stat)
{
	const char *end = text + size;
	bool inside = false;

	stat->binary = size >= 6 && strncmp(text, "Binary", 6) == 0;
	for (const char *line = text; line < end && !stat->binary;) {
		const char *stop = memchr(line, '\n', (size_t)(end - line));
		inside |= *line == '@';
		stat->added += inside && *line == '+';
		stat->removed += inside && *line == '-';
		line = stop ? stop + 1 : end;
	}
}

static void put(const char *text, size_t size)
{
	if (isatty(STDOUT_FILENO))
		output_safe(stdout, text, true);
	else
		fwrite(text, 1, size, stdout);
}

/* ---- one change ---- */

/* A name as git writes it: quoted if it holds what could be taken for another line of the patch. The caller frees it. */
static char *quote_name(const char *side, const char *path)
{
	cleanup_buf struct buf out = { 0 };
	bool plain = true;
	int bad = 0;

	for (const char *at = path; *at; at++)
		plain &= (unsigned char)*at >= ' ' && *at != 0x7f && *at != '"' && *at != '\\';
	if (plain)
		return str_format("%s%s", side, path);
	bad |= buf_printf(&out, "\"%s", side);
	for (const char *at = path; *at && !bad; at++) {
		if (*at == '"' || *at == '\\')
			bad = buf_printf(&out, "\\%c", *at);
		else if ((unsigned char)*at < ' ' || *at == 0x7f)
			bad = buf_printf(&out, "\\%03o", (unsigned char)*at);
		else
			bad = buf_append(&out, at, 1);
	}
	bad |= buf_append_string(&out, "\"");
	return bad ? NULL : buf_steal(&out);
}

static void drop_directory(char **directory)
{
	if (*directory)
		dir_remove(*directory, NULL);
	free(*directory);
}

static char *make_directory(struct husk_error *err)
{
	char *path = strdup("/tmp/husk-diff.XXXXXX");

	if (path && mkdtemp(path) && (geteuid() != 0 || chown(path, COMMAND_NOBODY, COMMAND_NOBODY) == 0))
		return path;
	husk_fail_errno(err, "cannot make a directory in /tmp");
	free(path);
	return NULL;
}

/* An empty file for the side that has none. */
static int copy_side(const struct pair *pair, bool old, const char *path, bool there, const char *to,
		     struct husk_error *err)
{
	cleanup_close int fd = -1;

	if (there)
		return copy_file(pair, old, path, to, err);
	fd = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
	return fd < 0 ? husk_fail_errno(err, "cannot write '%s'", to) : 1;
}

static int print_text(const struct pair *pair, const struct husk_change *change, struct husk_error *err)
{
	cleanup(drop_directory) char *directory = make_directory(err);
	cleanup_free char *old = directory ? str_format("%s/old", directory) : NULL;
	cleanup_free char *new = directory ? str_format("%s/new", directory) : NULL;
	const char *path = change->file.path;
	cleanup_free char *a = quote_name(pair->root ? "a/" : "a", path);
	cleanup_free char *b = quote_name(pair->root ? "b/" : "b", path);
	cleanup_buf struct buf out = { 0 };

	if (!directory)
		return -1;
	if (!old || !new || !a || !b)
		return husk_fail_memory(err);
	bool was = change->kind != HUSK_ADDED, is = change->kind != HUSK_REMOVED;
	int left = copy_side(pair, true, path, was, old, err);
	int right = left < 0 ? -1 : copy_side(pair, false, path, is, new, err);
	if (right < 0)
		return -1;
	if (pair->stat && (left == 0 || right == 0)) {
		pair->stat->binary = true;
		return 0;
	}
	if (left == 0 || right == 0) {
		output_note("%s is %slarger than %u bytes, and not shown", path, pair->root ? "not text, or " : "",
			    TEXT_MAX);
		return 0;
	}
	if (run_diff(directory, was ? a : "/dev/null", is ? b : "/dev/null", &out, err) < 0)
		return -1;
	if (pair->stat)
		count_lines(out.data ? out.data : "", out.size, pair->stat);
	else
		put(out.data ? out.data : "", out.size);
	return 0;
}

static int print_change(const struct pair *pair, char *line, const struct husk_change *change, struct husk_error *err)
{
	struct husk_error why = { 0 };

	if (!line)
		return husk_fail_memory(err);
	put(line, strlen(line));
	if (change->file.type != HUSK_FILE)
		return 0;
	if (print_text(pair, change, &why) == 0)
		return 0;
	/* The file was another type before, or has gone since: the line above says what there is to say. */
	if (why.code == HUSK_NOT_FOUND || why.code == HUSK_INVALID)
		return 0;
	if (err)
		*err = why;
	return -1;
}

int patch_count(struct husk *husk, const char *sandbox, const char *base, const struct husk_change *change,
		struct patch_stat *out, struct husk_error *err)
{
	const struct pair pair = { .husk = husk, .sandbox = sandbox, .base = base, .stat = out };
	struct husk_error why = { 0 };

	*out = (struct patch_stat){ 0 };
	if (change->file.type != HUSK_FILE || print_text(&pair, change, &why) == 0 || why.code == HUSK_NOT_FOUND ||
	    why.code == HUSK_INVALID)
		return 0;
	*err = why;
	return -1;
}

int patch_print(struct husk *husk, const char *sandbox, const char *base, const struct husk_change *change,
		struct husk_error *err)
{
	static const char *const words[] = {
		[HUSK_ADDED] = "new", [HUSK_REMOVED] = "deleted", [HUSK_CHANGED] = "changed"
	};
	const struct pair pair = { .husk = husk, .sandbox = sandbox, .base = base };
	cleanup_free char *a = quote_name("a", change->file.path), *b = quote_name("b", change->file.path);
	cleanup_free char *line = str_format("diff husk %s %s\n%s mode %04o\n", a ? a : "", b ? b : "",
					     words[change->kind], change->file.mode);

	return print_change(&pair, line, change, err);
}

/* The lines before the text, in git's form. A link is a file whose text is its target. */
static char *git_header(const struct husk_change *change)
{
	const struct husk_file *file = &change->file;
	cleanup_free char *mode = NULL;
	unsigned type = file->type == HUSK_SYMLINK ? 0120000 : 0100000 | (file->mode & 0777);

	if (change->kind != HUSK_CHANGED)
		mode = str_format("%s file mode %o\n", change->kind == HUSK_ADDED ? "new" : "deleted", type);
	cleanup_free char *a = quote_name("a/", file->path), *b = quote_name("b/", file->path);
	if (!a || !b)
		return NULL;
	cleanup_free char *head = str_format("diff --git %s %s\n%s", a, b, mode ? mode : "");
	if (!head || file->type != HUSK_SYMLINK || change->kind != HUSK_ADDED || !file->target)
		return steal_pointer(head);
	if (strchr(file->target, '\n'))
		return steal_pointer(head);
	return str_format("%s--- /dev/null\n+++ %s\n@@ -0,0 +1 @@\n+%s\n\\ No newline at end of file\n", head, b,
			  file->target);
}

int patch_print_workspace(struct husk *husk, const char *sandbox, const char *root, const struct husk_change *change,
			  struct husk_error *err)
{
	const struct pair pair = { .husk = husk, .sandbox = sandbox, .root = root };

	if (change->file.type == HUSK_DIRECTORY) /* git knows none */
		return 0;
	cleanup_free char *line = git_header(change);
	return print_change(&pair, line, change, err);
}
