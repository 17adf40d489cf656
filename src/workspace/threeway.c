/*
 * The table of threeway.h, for one path:
 *
 *     base    ours    theirs     verdict
 *     A       B       B          same
 *     A       A       B          take theirs (also: removed, or another type)
 *     A       B       A          same: only our side has changed
 *     A       B       C          two files: merge the text; the mode by the same table. Otherwise a conflict
 *     -       B       C          two files: merge with an empty base, which shows both
 *     A       -       B          conflict, and so is A B -
 */
#include "workspace/threeway.h"

#include <fcntl.h>
#include <sys/stat.h>

#define MERGE_MS 20000

void version_free(struct version *version)
{
	free(version->target);
	*version = (struct version){ 0 };
}

int version_copy(const struct version *from, struct version *to, struct husk_error *err)
{
	struct version copy = *from;

	if (from->target && !(copy.target = strdup(from->target)))
		return husk_fail_memory(err);
	version_free(to);
	*to = copy;
	return 0;
}

static bool same_content(const struct version *a, const struct version *b)
{
	return a->type == HUSK_FILE && b->type == HUSK_FILE && str_equal(a->hash, b->hash);
}

/* The mode of a directory does not count: it is the owner's choice, and a new one gets theirs. */
bool version_same(const struct version *a, const struct version *b)
{
	if (a->type != b->type)
		return false;
	if (a->type == HUSK_FILE)
		return a->mode == b->mode && same_content(a, b);
	return a->type != HUSK_SYMLINK || str_equal(a->target, b->target);
}

/* ---- the verdict ---- */

static const char *conflict_reason(const struct version *base, const struct version *ours, const struct version *theirs)
{
	if (!theirs->type)
		return "removed in the sandbox, changed here";
	if (!ours->type)
		return "changed in the sandbox, removed here";
	if (ours->type == theirs->type)
		return base->type ? "changed on both sides" : "added on both sides";
	return "of different types on the two sides";
}

/* Both are files, and both have changed. */
static struct decision decide_files(const struct version *base, const struct version *ours,
				    const struct version *theirs)
{
	uint32_t old = base->type == HUSK_FILE ? base->mode : ours->mode;
	struct decision out = { .mode = theirs->mode == old ? ours->mode : theirs->mode };

	if (ours->mode != old && theirs->mode != old && ours->mode != theirs->mode)
		return (struct decision){ VERDICT_CONFLICT, ours->mode, "given different modes on the two sides" };
	if (same_content(ours, theirs) || same_content(base, theirs))
		out.verdict = out.mode == ours->mode ? VERDICT_SAME : VERDICT_MODE;
	else
		out.verdict = same_content(base, ours) ? VERDICT_TAKE : VERDICT_MERGE;
	return out;
}

struct decision threeway_decide(const struct version *base, const struct version *ours, const struct version *theirs)
{
	if (version_same(ours, theirs) || version_same(base, theirs))
		return (struct decision){ .verdict = VERDICT_SAME, .mode = ours->mode };
	if (version_same(base, ours))
		return (struct decision){ .verdict = VERDICT_TAKE, .mode = theirs->mode };
	if (ours->type == HUSK_FILE && theirs->type == HUSK_FILE)
		return decide_files(base, ours, theirs);
	return (struct decision){ VERDICT_CONFLICT, ours->mode, conflict_reason(base, ours, theirs) };
}

/* ---- text ---- */

bool text_is_plain(struct text text)
{
	return text.size <= VERSION_TEXT_MAX && !(text.size && memchr(text.data, '\0', text.size));
}

static void drop_directory(char **directory)
{
	if (*directory)
		dir_remove(*directory, NULL);
	free(*directory);
}

static int put_text(const char *directory, const char *name, struct text text, struct husk_error *err)
{
	cleanup_free char *path = str_format("%s/%s", directory, name);
	cleanup_close int fd = path ? open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600) : -1;

	if (!path)
		return husk_fail_memory(err);
	if (fd < 0 || write_full(fd, text.data, text.size) < 0 ||
	    (geteuid() == 0 && fchown(fd, COMMAND_NOBODY, COMMAND_NOBODY) < 0))
		return husk_fail_errno(err, "cannot write '%s'", path);
	return 0;
}

/* diff3 as RCS's merge calls it. Its exit status, 1 with conflicts, is the last byte of the output. */
static int run_diff3(const char *directory, const char *our_label, const char *their_label, struct buf *out,
		     struct husk_error *err)
{
	static const char script[] = "diff3 -E -a -m -L \"$1\" -L base -L \"$2\" ours base theirs; printf %d $?";
	const char *const argv[] = { "sh", "-c", script, "husk-merge", our_label, their_label, NULL };
	struct command command = { COMMAND_INIT,
				   .argv = argv,
				   .directory = directory,
				   .output = out,
				   .before_exec = command_unprivileged,
				   .timeout_ms = MERGE_MS };

	if (command_run(&command, err) < 0)
		return -1;
	char status = out->size ? out->data[--out->size] : '?';
	if (out->data)
		out->data[out->size] = '\0';
	if (status != '0' && status != '1')
		return husk_fail(err, HUSK_INTERNAL, "diff3 failed; is the package diffutils installed?");
	return status - '0';
}

int text_merge(struct text base, struct text ours, struct text theirs, const char *our_label, const char *their_label,
	       struct buf *out, struct husk_error *err)
{
	cleanup(drop_directory) char *directory = strdup("/tmp/husk-merge.XXXXXX");

	if (!directory)
		return husk_fail_memory(err);
	if (!mkdtemp(directory)) {
		free(steal_pointer(directory));
		return husk_fail_errno(err, "cannot make a directory in /tmp");
	}
	if (geteuid() == 0 && chown(directory, COMMAND_NOBODY, COMMAND_NOBODY) < 0)
		return husk_fail_errno(err, "cannot make a directory in /tmp");
	if (put_text(directory, "base", base, err) < 0 || put_text(directory, "ours", ours, err) < 0 ||
	    put_text(directory, "theirs", theirs, err) < 0)
		return -1;
	return run_diff3(directory, our_label, their_label, out, err);
}
