/*
 * husk_workspace_apply: what a sandbox changed in its workspace goes back to the directory of the caller.
 *
 *     1. The directory is locked, and a stage is made in it (.husk-apply), on the same file system.
 *     2. Everything that the sandbox changed is copied into the stage (scan.c). A full disk shows here.
 *     3. Each path is decided three-way (threeway.c) against the directory as it is now; text is merged in the stage.
 *     4. With a conflict that nobody resolved, it ends here, and nothing has changed.
 *     5. The stage is put in place by renames, and undone if one fails (replace.c).
 *     6. The record's base becomes what the sandbox had. Killed before that, the next call finds the files as they should be.
 */
#include "workspace/apply.h"

#include <fcntl.h>
#include <sys/file.h>

#include "workspace/host.h"

void apply_free(struct apply *apply)
{
	if (apply->stage_path)
		dir_remove(apply->stage_path, NULL);
	free(apply->stage_path);
	fd_close(&apply->stage);
	fd_close(&apply->directory);
	work_free(&apply->work);
	record_free(&apply->record);
	free(apply->ops);
	husk_merged_free(apply->merged);
}

void husk_merged_free(struct husk_merged *merged)
{
	if (!merged)
		return;
	for (size_t i = 0; i < merged->count; i++) {
		free(merged->entries[i].path);
		free(merged->entries[i].conflict);
	}
	free(merged->entries);
	free(merged->target);
	strv_free(merged->left_out);
	strv_free(merged->reasons);
	free(merged);
}

/* ---- the stage ---- */

/* A dry run needs no place on the same file system, and leaves the directory alone. */
int apply_stage(struct apply *apply, struct husk_error *err)
{
	if (apply->options->dry_run) {
		char path[] = "/tmp/husk-apply.XXXXXX";
		apply->stage_path = mkdtemp(path) ? strdup(path) : NULL;
		if (!apply->stage_path)
			return husk_fail_errno(err, "cannot make a directory in /tmp");
	} else {
		apply->stage_path = str_format("%s/" STAGE_NAME, apply->record.directory);
		if (!apply->stage_path)
			return husk_fail_memory(err);
		/* Of an apply that was killed: the directory is locked, so nobody uses it. */
		if (dir_remove(apply->stage_path, err) < 0)
			return -1;
		if (mkdirat(apply->directory, STAGE_NAME, 0700) < 0)
			return husk_fail_errno(err, "cannot write to directory '%s'", apply->record.directory);
	}
	apply->stage = open(apply->stage_path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	return apply->stage < 0 ? husk_fail_errno(err, "cannot open '%s'", apply->stage_path) : 0;
}

static int open_directory(struct apply *apply, struct husk_error *err)
{
	const char *path = apply->record.directory;

	apply->directory = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (apply->directory < 0)
		return husk_fail_errno(err, "cannot open directory '%s'", path);
	if (flock(apply->directory, LOCK_EX | LOCK_NB) < 0)
		return husk_fail(err, HUSK_CONFLICT, "another husk writes to '%s' now; try again", path);
	return apply_stage(apply, err);
}

/* ---- one path ---- */

static struct op *add_op(struct apply *apply, enum op_kind kind, const struct work_item *item,
			 const struct stat *before)
{
	struct op *op = &apply->ops[apply->op_count++];

	*op = (struct op){ .kind = kind, .path = item->path, .before = *before };
	return op;
}

/* The new file gets the owner of the old one, or of the directory. */
static int finish_staged(const struct apply *apply, const char *name, uint32_t mode, const struct stat *before,
			 bool existed, struct husk_error *err)
{
	struct stat owner;
	cleanup_close int fd = openat(apply->stage, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);

	if (existed)
		owner = *before;
	if (fd < 0 || (!existed && fstat(apply->directory, &owner) < 0) ||
	    (geteuid() == 0 && fchown(fd, owner.st_uid, owner.st_gid) < 0) || fchmod(fd, mode) < 0 || fdatasync(fd) < 0)
		return husk_fail_errno(err, "cannot finish a staged file");
	return 0;
}

static int stage_link(const struct apply *apply, const struct work_item *item, const char *name, struct husk_error *err)
{
	struct stat owner;

	if (symlinkat(item->theirs.target, apply->stage, name) < 0 || fstat(apply->directory, &owner) < 0 ||
	    (geteuid() == 0 && fchownat(apply->stage, name, owner.st_uid, owner.st_gid, AT_SYMLINK_NOFOLLOW) < 0))
		return husk_fail_errno(err, "cannot store link '%s'", item->path);
	return 0;
}

/* A file or link comes, in the place of `ours`. */
static int plan_put(struct apply *apply, const struct work_item *item, const struct version *ours, const char *name,
		    uint32_t mode, const struct stat *before, struct husk_error *err)
{
	bool existed = ours->type && ours->type != HUSK_DIRECTORY;

	if (ours->type == HUSK_DIRECTORY)
		add_op(apply, OP_RMDIR, item, before);
	struct op *op = add_op(apply, OP_PUT, item, before);
	op->existed = existed;
	snprintf(op->name, sizeof(op->name), "%s", name);
	if (item->theirs.type == HUSK_SYMLINK)
		return stage_link(apply, item, name, err);
	return finish_staged(apply, name, mode, before, existed, err);
}

static int plan_take(struct apply *apply, const struct work_item *item, const struct version *ours, uint32_t mode,
		     const struct stat *before, struct husk_error *err)
{
	char name[STAGE_NAME_SIZE];

	if (item->theirs.type == HUSK_FILE || item->theirs.type == HUSK_SYMLINK) {
		snprintf(name, sizeof(name), "%zu", item->number);
		return plan_put(apply, item, ours, name, mode, before, err);
	}
	if (ours->type == HUSK_DIRECTORY)
		add_op(apply, OP_RMDIR, item, before)->optional = true;
	else if (ours->type)
		add_op(apply, OP_REMOVE, item, before);
	if (item->theirs.type == HUSK_DIRECTORY) {
		add_op(apply, OP_MKDIR, item, before)->mode = item->theirs.mode | 0700;
		if (ours->type)
			apply->cleared = item->path;
	}
	return 0;
}

/* The text of the directory's file. 1, or 0 if it is not text. */
static int our_text(const struct apply *apply, const char *path, struct buf *out, struct husk_error *err)
{
	const char *base;
	cleanup_close int parent = host_parent(apply->directory, path, &base);
	cleanup_close int fd = parent < 0 ? -1 : openat(parent, base, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);

	if (fd < 0)
		return husk_fail_errno(err, "cannot open '%s'", path);
	if (buf_reserve(out, VERSION_TEXT_MAX + 2) < 0)
		return husk_fail_memory(err);
	ssize_t size = read_full(fd, out->data, VERSION_TEXT_MAX + 1);
	if (size < 0)
		return husk_fail_errno(err, "cannot read '%s'", path);
	out->size = (size_t)size;
	out->data[out->size] = '\0';
	return text_is_plain((struct text){ out->data, out->size });
}

static struct text text_of(const struct buf *buf)
{
	return (struct text){ buf->data ? buf->data : "", buf->size };
}

/* Merges into the stage, as `name`. 0: without conflicts; 1: with markers; 2: it is not text; 3: ours has it all already. */
static int merge_item(struct apply *apply, const struct work_item *item, const char *name, struct husk_error *err)
{
	cleanup_buf struct buf base = { 0 }, ours = { 0 }, theirs = { 0 }, out = { 0 };
	const struct record_entry *entry = record_find(&apply->record, item->path);
	int result = entry && item->base.type == HUSK_FILE ? record_content(&apply->record, entry, &base, err) : 1;

	if (result > 0)
		result = our_text(apply, item->path, &ours, err);
	if (result > 0)
		result = stage_text(apply->stage, item->number, &theirs, err);
	if (result <= 0)
		return result < 0 ? -1 : 2;
	result = text_merge(text_of(&base), text_of(&ours), text_of(&theirs), "here", apply->record.sandbox, &out, err);
	if (result < 0)
		return -1;
	if (result == 0 && out.size == ours.size && (!out.size || memcmp(out.data, ours.data, out.size) == 0))
		return 3;
	cleanup_close int fd = openat(apply->stage, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0 || write_full(fd, out.data, out.size) < 0)
		return husk_fail_errno(err, "cannot store '%s'", item->path);
	return result;
}

/* ---- the plan ---- */

static struct husk_merge_entry *add_result(struct apply *apply, const struct work_item *item,
					   const struct version *ours, struct husk_error *err)
{
	struct husk_merge_entry *entry = &apply->merged->entries[apply->merged->count];

	*entry = (struct husk_merge_entry){ .path = strdup(item->path),
					    .kind = !item->theirs.type ? HUSK_REMOVED
						    : ours->type       ? HUSK_CHANGED
								       : HUSK_ADDED };
	if (!entry->path) {
		husk_fail_memory(err);
		return NULL;
	}
	apply->merged->count++;
	return entry;
}

/* A conflict, as the options say. `markers`: the name of the merged text in the stage; NULL: there is none. */
static int plan_conflict(struct apply *apply, const struct work_item *item, const struct version *ours, const char *why,
			 const char *markers, bool in_the_way, const struct stat *before, struct husk_error *err)
{
	const char *how = apply->options->conflicts;
	struct husk_merge_entry *entry = add_result(apply, item, ours, err);

	if (!entry)
		return -1;
	entry->conflict = strdup(why);
	if (!entry->conflict)
		return husk_fail_memory(err);
	entry->resolved = str_equal(how, "ours") || (str_equal(how, "theirs") && !in_the_way) ||
			  (str_equal(how, "markers") && markers);
	apply->merged->conflicts += !entry->resolved;
	if (str_equal(how, "theirs") && !in_the_way)
		return plan_take(apply, item, ours, item->theirs.mode, before, err);
	if (str_equal(how, "markers") && markers)
		return plan_put(apply, item, ours, markers, ours->mode, before, err);
	return 0;
}

static int plan_merge(struct apply *apply, const struct work_item *item, const struct version *ours, uint32_t mode,
		      const struct stat *before, struct husk_error *err)
{
	char name[STAGE_NAME_SIZE];

	snprintf(name, sizeof(name), "merged-%zu", item->number);
	int result = merge_item(apply, item, name, err);
	if (result < 0)
		return -1;
	if (result == 3 && mode == ours->mode)
		return 0;
	if (result == 3) {
		add_op(apply, OP_MODE, item, before)->mode = mode;
		return add_result(apply, item, ours, err) ? 0 : -1;
	}
	const char *why = !item->base.type ? "added on both sides" : "changed on both sides";
	if (result == 2)
		why = item->base.type ? "changed on both sides, and not text" : "added on both sides, and not text";
	if (result > 0)
		return plan_conflict(apply, item, ours, why, result == 1 ? name : NULL, false, before, err);
	struct husk_merge_entry *entry = add_result(apply, item, ours, err);
	if (!entry)
		return -1;
	entry->merged = true;
	return plan_put(apply, item, ours, name, mode, before, err);
}

static bool is_below(const char *path, const char *directory)
{
	size_t size = directory ? strlen(directory) : 0;

	return size && strncmp(path, directory, size) == 0 && path[size] == '/';
}

static int plan_item(struct apply *apply, const struct work_item *item, struct husk_error *err)
{
	struct version ours = { 0 };
	struct stat before = { 0 };
	bool in_the_way = false;
	int result = host_version(apply->directory, item->path, &ours, &before, &in_the_way, err);

	if (result < 0)
		return -1;
	if (is_below(item->path, apply->cleared))
		in_the_way = false;
	struct decision decision = threeway_decide(&item->base, &ours, &item->theirs);
	if (in_the_way && item->theirs.type)
		result = plan_conflict(apply, item, &ours, "below what is a file or a link here", NULL, true, &before,
				       err);
	else if (decision.verdict == VERDICT_CONFLICT)
		result = plan_conflict(apply, item, &ours, decision.why, NULL, false, &before, err);
	else if (decision.verdict == VERDICT_MERGE)
		result = plan_merge(apply, item, &ours, decision.mode, &before, err);
	else if (decision.verdict != VERDICT_SAME && !add_result(apply, item, &ours, err))
		result = -1;
	else if (decision.verdict == VERDICT_TAKE)
		result = plan_take(apply, item, &ours, decision.mode, &before, err);
	else if (decision.verdict == VERDICT_MODE)
		add_op(apply, OP_MODE, item, &before)->mode = decision.mode;
	version_free(&ours);
	return result;
}

static int plan(struct apply *apply, struct husk_error *err)
{
	size_t room = apply->work.count + 1;

	apply->ops = calloc(room * 2, sizeof(*apply->ops));
	apply->merged->entries = calloc(room, sizeof(*apply->merged->entries));
	apply->merged->target = strdup(apply->record.directory);
	if (!apply->ops || !apply->merged->entries || !apply->merged->target)
		return husk_fail_memory(err);
	for (size_t i = 0; i < apply->work.count; i++)
		if (plan_item(apply, &apply->work.items[i], err) < 0)
			return -1;
	apply->merged->left_out = steal_pointer(apply->work.left_out);
	apply->merged->reasons = steal_pointer(apply->work.reasons);
	apply->merged->ignored = apply->work.ignored;
	return 0;
}

/* ---- the new base ---- */

static bool is_open_conflict(const struct apply *apply, const char *path)
{
	for (size_t i = 0; i < apply->merged->count; i++)
		if (str_equal(apply->merged->entries[i].path, path))
			return apply->merged->entries[i].conflict && !apply->merged->entries[i].resolved;
	return false;
}

/* Before the commit, which takes the files out of the stage. */
static int renew_entry(struct apply *apply, const struct work_item *item, struct husk_error *err)
{
	struct record_entry *entry =
		item->recorded ? record_find(&apply->record, item->path) : record_add(&apply->record, item->path, err);
	cleanup_buf struct buf content = { 0 };

	if (!entry || version_copy(&item->theirs, &entry->version, err) < 0)
		return -1;
	entry->inode = item->inode;
	entry->ctime_ns = item->ctime_ns;
	entry->offset = -1;
	if (item->theirs.type != HUSK_FILE || item->theirs.size > VERSION_TEXT_MAX)
		return 0;
	int plain = stage_text(apply->stage, item->number, &content, err);
	return plain > 0 ? record_keep(&apply->record, entry, text_of(&content), err) : plain;
}

/* First the entries that there are, which are found in sorted order; then new ones. */
static int renew_base(struct apply *apply, struct husk_error *err)
{
	for (int fresh = 0; fresh < 2; fresh++)
		for (size_t i = 0; i < apply->work.count; i++) {
			const struct work_item *item = &apply->work.items[i];
			if (item->recorded == (fresh != 0) ||
			    (apply->merged->conflicts && is_open_conflict(apply, item->path)))
				continue;
			if (renew_entry(apply, item, err) < 0)
				return -1;
		}
	record_sort(&apply->record);
	return 0;
}

/* ---- the call ---- */

int apply_check(const struct husk_merge_options *options, struct husk_error *err)
{
	const char *how = options->conflicts;

	if (!how || str_equal(how, "markers") || str_equal(how, "ours") || str_equal(how, "theirs"))
		return 0;
	return husk_fail_field(err, "conflicts", "'%s' is not one of markers, ours, theirs", how);
}

/* Either all paths go, or the options said what becomes of those that cannot. */
static bool may_write(const struct apply *apply)
{
	bool told = apply->leave || str_equal(apply->options->conflicts, "markers");

	return !apply->options->dry_run && (apply->merged->conflicts == 0 || told);
}

int apply_work(struct apply *apply, struct husk_error *err)
{
	if (plan(apply, err) < 0)
		return -1;
	if (!may_write(apply))
		return 0;
	if (renew_base(apply, err) < 0 ||
	    replace_all(apply->directory, apply->stage, apply->ops, apply->op_count, err) < 0)
		return -1;
	apply->merged->written = true;
	return 0;
}

static int apply_all(struct apply *apply, struct husk *husk, struct husk_error *err)
{
	uint64_t limit = apply->options->limit_bytes ? apply->options->limit_bytes : APPLY_LIMIT;

	if (open_directory(apply, err) < 0 ||
	    work_scan(husk, &apply->record, apply->stage, limit, &apply->work, err) < 0 || apply_work(apply, err) < 0)
		return -1;
	return apply->merged->written ? record_save(&apply->record, err) : 0;
}

int husk_workspace_apply(struct husk *husk, const char *sandbox, const struct husk_merge_options *options,
			 struct husk_merged **out, struct husk_error *err)
{
	static const struct husk_merge_options defaults = { 0 };
	cleanup(apply_free) struct apply apply = { .options = options ? options : &defaults,
						   .directory = -1,
						   .stage = -1 };

	apply.merged = calloc(1, sizeof(*apply.merged));
	if (!apply.merged)
		return husk_fail_memory(err);
	if (apply_check(apply.options, err) < 0 || record_open(husk, sandbox, &apply.record, err) < 0 ||
	    apply_all(&apply, husk, err) < 0)
		return -1;
	if (out)
		*out = steal_pointer(apply.merged);
	return 0;
}
