/*
 * husk_merge: the files that one sandbox changed go into another one, three-way. Example: `work` was forked into A and B.
 *
 *     base (work)    ours (B)     theirs (A)     B gets
 *     -              -            new            A's file
 *     old            old          -              removed
 *     old            changed      changed        the merged text, or a conflict
 *
 * The base is the state that both last shared, at the moment of the fork (merge_base.c), or one that the caller names; without one,
 * the template. All three are machines of one template: their agents list what differs from it (listing.h), and a path that two of them
 * do not list, or list as untouched, is the same in both. Everything is read and decided before the first write, and is
 * written all or none (commit.c), also if this process is killed. Both machines run on: a file is replaced as a whole, so a reader sees
 * the old or the new.
 */
#include <openssl/evp.h>

#include "client/listing.h"
#include "instance/contact.h"
#include "instance/instance.h"
#include "workspace/commit.h"
#include "workspace/merge_base.h"
#include "workspace/threeway.h"

#define LIMIT_DEFAULT (UINT64_C(1) << 30)

/* One path in the three machines; NULL: as in the template. */
struct trio {
	const char *path;
	const struct listed *base, *ours, *theirs;
};

/* A write that is to be made. */
struct step {
	struct trio trio;
	struct version old, new;
	struct buf content; /* of the new file */
	bool only_mode;     /* the content stays */
};

struct merge {
	struct husk *husk;
	const struct husk_merge_options *options;
	struct listing base, ours, theirs;
	bool from_template; /* the base is the template: its list is empty */
	struct husk_merged *merged;
	struct step *steps;
	size_t step_count;
	uint64_t bytes, limit;
};

static void merge_free(struct merge *merge)
{
	listing_free(&merge->base);
	listing_free(&merge->ours);
	listing_free(&merge->theirs);
	for (size_t i = 0; i < merge->step_count; i++) {
		version_free(&merge->steps[i].old);
		version_free(&merge->steps[i].new);
		buf_free(&merge->steps[i].content);
	}
	free(merge->steps);
	husk_merged_free(merge->merged);
}

/* ---- what a machine has at a path ---- */

struct reader {
	struct merge *merge;
	struct buf *out;
	bool too_large;
};

static int read_bytes(void *data, const void *bytes, size_t size)
{
	struct reader *reader = data;

	reader->merge->bytes += size;
	reader->too_large = reader->merge->bytes > reader->merge->limit;
	return reader->too_large || buf_append(reader->out, bytes, size) < 0 ? -1 : 0;
}

static int read_content(struct merge *merge, const struct listing *side, bool of_template, const char *path,
			struct buf *out, struct husk_error *err)
{
	struct reader reader = { .merge = merge, .out = out };
	int result = of_template ? husk_template_file_read(merge->husk, side->sandbox, path, read_bytes, &reader, err)
				 : husk_file_read(merge->husk, side->sandbox, path, 0, 0, read_bytes, &reader, err);

	if (result < 0 && reader.too_large)
		return husk_fail(
			err, HUSK_LIMIT,
			"the changed files are more than %llu MiB; nothing was written (--limit SIZE allows more)",
			(unsigned long long)(merge->limit >> 20));
	return result;
}

static int hash_content(const struct buf *content, struct version *version, struct husk_error *err)
{
	unsigned char digest[EVP_MAX_MD_SIZE];

	if (EVP_Digest(content->data ? content->data : "", content->size, digest, NULL, EVP_sha256(), NULL) != 1)
		return husk_fail_memory(err);
	for (size_t i = 0; i < 32; i++)
		snprintf(version->hash + 2 * i, 3, "%02x", digest[i]);
	version->size = content->size;
	return 0;
}

/* The version that a machine lists. */
static int listed_version(struct merge *merge, const struct listing *side, const struct listed *listed,
			  struct version *out, struct buf *content, struct husk_error *err)
{
	const struct husk_file *file = &listed->change.file;

	version_free(out);
	if (listed->change.kind == HUSK_REMOVED)
		return 0;
	*out = (struct version){ .type = file->type, .mode = file->mode & 07777, .size = file->size };
	if (file->type == HUSK_SYMLINK && !(out->target = strdup(file->target ? file->target : "")))
		return husk_fail_memory(err);
	if (file->type != HUSK_FILE)
		return 0;
	return read_content(merge, side, false, file->path, content, err) < 0 ? -1 : hash_content(content, out, err);
}

/* The template's version, where one machine has it and another has changed it: `witness` has it. */
static int template_version(struct merge *merge, const struct listing *witness, const char *path, struct version *out,
			    struct buf *content, struct husk_error *err)
{
	struct husk_file file = { 0 };
	struct husk_error missing = { 0 };

	version_free(out);
	if (husk_file_stat(merge->husk, witness->sandbox, path, false, &file, &missing) < 0)
		return missing.code == HUSK_NOT_FOUND || missing.code == HUSK_INVALID
			       ? 0
			       : husk_fail(err, missing.code, "%s", missing.message);
	*out = (struct version){ .type = file.type, .mode = file.mode & 07777, .size = file.size };
	out->target = file.type == HUSK_SYMLINK ? strdup(file.target ? file.target : "") : NULL;
	husk_file_free(&file);
	if (out->type != HUSK_FILE)
		return 0;
	return read_content(merge, witness, false, path, content, err) < 0 ? -1 : hash_content(content, out, err);
}

/* The template's version of a path that both machines have changed. */
static int changed_version(struct merge *merge, const struct trio *trio, struct version *out, struct buf *content,
			   struct husk_error *err)
{
	struct husk_error why = { 0 };

	version_free(out);
	if (trio->ours->change.kind == HUSK_ADDED || trio->theirs->change.kind == HUSK_ADDED)
		return 0;
	if (read_content(merge, &merge->theirs, true, trio->path, content, &why) == 0) {
		/* Its mode is not known: ours counts as the old one, so that theirs wins where it differs. */
		*out = (struct version){ .type = HUSK_FILE, .mode = trio->ours->change.file.mode & 07777 };
		return hash_content(content, out, err);
	}
	if (why.code != HUSK_NOT_FOUND && why.code != HUSK_INVALID)
		return husk_fail(err, why.code, "%s", why.message);
	out->type = HUSK_OTHER; /* not a file: it is like neither side, which is a conflict unless both are the same */
	return 0;
}

static int base_version(struct merge *merge, const struct trio *trio, struct version *out, struct buf *content,
			struct husk_error *err)
{
	if (trio->base)
		return listed_version(merge, &merge->base, trio->base, out, content, err);
	if (!merge->from_template)
		return template_version(merge, &merge->base, trio->path, out, content, err);
	return changed_version(merge, trio, out, content, err);
}

static int side_version(struct merge *merge, const struct listing *side, const struct listed *listed, const char *path,
			struct version *out, struct buf *content, struct husk_error *err)
{
	return listed ? listed_version(merge, side, listed, out, content, err)
		      : template_version(merge, side, path, out, content, err);
}

/* ---- one path ---- */

static bool untouched(const struct listed *a, const struct listed *b)
{
	if (!a || !b)
		return a == b;
	if (a->change.kind == HUSK_REMOVED || b->change.kind == HUSK_REMOVED)
		return a->change.kind == b->change.kind;
	return listing_untouched(a, b) && a->change.file.mode == b->change.file.mode;
}

static struct husk_merge_entry *add_result(struct merge *merge, const char *path, const struct version *ours,
					   const struct version *theirs, struct husk_error *err)
{
	struct husk_merge_entry *entry = &merge->merged->entries[merge->merged->count];

	*entry = (struct husk_merge_entry){ .path = strdup(path),
					    .kind = !theirs->type ? HUSK_REMOVED
						    : ours->type  ? HUSK_CHANGED
								  : HUSK_ADDED };
	if (!entry->path) {
		husk_fail_memory(err);
		return NULL;
	}
	merge->merged->count++;
	return entry;
}

struct versions {
	struct version base, ours, theirs;
	struct buf base_content, our_content, their_content;
};

static void versions_free(struct versions *v)
{
	version_free(&v->base);
	version_free(&v->ours);
	version_free(&v->theirs);
	buf_free(&v->base_content);
	buf_free(&v->our_content);
	buf_free(&v->their_content);
}

static struct text text_of(const struct buf *buf)
{
	return (struct text){ buf->data ? buf->data : "", buf->size };
}

/* Takes the versions' contents for the write. `content`: the new one, if it is not theirs. */
static int add_step(struct merge *merge, const struct trio *trio, struct versions *v, uint32_t mode,
		    struct buf *content, struct husk_error *err)
{
	struct step *step = &merge->steps[merge->step_count];

	*step = (struct step){ .trio = *trio };
	merge->step_count++;
	if (version_copy(&v->ours, &step->old, err) < 0 || version_copy(&v->theirs, &step->new, err) < 0)
		return -1;
	step->new.mode = mode;
	struct buf *from = content ? content : &v->their_content;
	step->content = *from;
	*from = (struct buf){ 0 };
	return 0;
}

static int add_conflict(struct merge *merge, const struct trio *trio, struct versions *v, const char *why,
			struct buf *markers, struct husk_error *err)
{
	const char *how = merge->options->conflicts;
	struct husk_merge_entry *entry = add_result(merge, trio->path, &v->ours, &v->theirs, err);
	bool marked = str_equal(how, "markers") && markers, theirs = str_equal(how, "theirs");

	if (!entry || !(entry->conflict = strdup(why)))
		return husk_fail_memory(err);
	entry->resolved = marked || theirs || str_equal(how, "ours");
	merge->merged->conflicts += !entry->resolved;
	if (marked)
		return add_step(merge, trio, v, v->ours.mode, markers, err);
	return theirs ? add_step(merge, trio, v, v->theirs.mode, NULL, err) : 0;
}

static int merge_text(struct merge *merge, const struct trio *trio, struct versions *v, uint32_t mode,
		      struct husk_error *err)
{
	cleanup_buf struct buf out = { 0 };

	if (!text_is_plain(text_of(&v->base_content)) || !text_is_plain(text_of(&v->our_content)) ||
	    !text_is_plain(text_of(&v->their_content)))
		return add_conflict(merge, trio, v, "changed on both sides, and not text", NULL, err);
	int result = text_merge(text_of(&v->base_content), text_of(&v->our_content), text_of(&v->their_content),
				merge->ours.sandbox, merge->theirs.sandbox, &out, err);
	if (result < 0)
		return -1;
	if (result > 0)
		return add_conflict(merge, trio, v, v->base.type ? "changed on both sides" : "added on both sides",
				    &out, err);
	/* Their changes are in ours already: an earlier merge. */
	if (mode == v->ours.mode && out.size == v->our_content.size &&
	    (!out.size || memcmp(out.data, v->our_content.data, out.size) == 0))
		return 0;
	struct husk_merge_entry *entry = add_result(merge, trio->path, &v->ours, &v->theirs, err);
	if (!entry)
		return -1;
	entry->merged = true;
	return add_step(merge, trio, v, mode, &out, err);
}

static const char *side_reason(const char *why)
{
	if (str_equal(why, "removed in the sandbox, changed here"))
		return "removed on their side, changed on ours";
	if (str_equal(why, "changed in the sandbox, removed here"))
		return "changed on their side, removed on ours";
	return why;
}

static bool is_below(const char *path, const char *directory)
{
	size_t size = directory ? strlen(directory) : 0;

	return size && strncmp(path, directory, size) == 0 && path[size] == '/';
}

static const struct listed *head(const struct listing *listing, size_t at)
{
	return at < listing->count ? &listing->entries[at] : NULL;
}

/* The first entry whose path is not before this one. */
static size_t find_path(const struct listing *listing, const char *path)
{
	size_t low = 0, high = listing->count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (listing_compare(listing->entries[middle].change.file.path, path) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* Has our side changed anything below this directory, which theirs no longer has? What is below follows the directory. */
static bool own_work_below(const struct merge *merge, const char *path)
{
	for (size_t i = find_path(&merge->ours, path); i < merge->ours.count; i++) {
		const struct listed *ours = &merge->ours.entries[i], *base;
		const char *mine = ours->change.file.path;

		if (str_equal(mine, path))
			continue;
		if (!is_below(mine, path))
			return false;
		base = head(&merge->base, find_path(&merge->base, mine));
		if (base && !str_equal(base->change.file.path, mine))
			base = NULL;
		if (ours->change.kind != HUSK_REMOVED && !untouched(base, ours))
			return true;
	}
	return false;
}

static int decide_path(struct merge *merge, const struct trio *trio, struct husk_error *err)
{
	cleanup(versions_free) struct versions v = { 0 };

	if (untouched(trio->base, trio->theirs) || untouched(trio->ours, trio->theirs))
		return 0;
	if (side_version(merge, &merge->theirs, trio->theirs, trio->path, &v.theirs, &v.their_content, err) < 0 ||
	    side_version(merge, &merge->ours, trio->ours, trio->path, &v.ours, &v.our_content, err) < 0)
		return -1;
	if (v.theirs.type == HUSK_OTHER || version_same(&v.ours, &v.theirs))
		return 0;
	if (untouched(trio->base, trio->ours)) {
		if (version_copy(&v.ours, &v.base, err) < 0)
			return -1;
	} else if (base_version(merge, trio, &v.base, &v.base_content, err) < 0) {
		return -1;
	}
	struct decision decision = threeway_decide(&v.base, &v.ours, &v.theirs);
	if (decision.verdict == VERDICT_SAME)
		return 0;
	if (v.ours.type == HUSK_DIRECTORY && decision.verdict == VERDICT_TAKE && own_work_below(merge, trio->path))
		return add_conflict(merge, trio, &v, "removed on their side, changed on ours", NULL, err);
	if (decision.verdict == VERDICT_CONFLICT)
		return add_conflict(merge, trio, &v, side_reason(decision.why), NULL, err);
	if (decision.verdict == VERDICT_MERGE)
		return merge_text(merge, trio, &v, decision.mode, err);
	if (!add_result(merge, trio->path, &v.ours, &v.theirs, err))
		return -1;
	if (add_step(merge, trio, &v, decision.mode, NULL, err) < 0)
		return -1;
	merge->steps[merge->step_count - 1].only_mode = decision.verdict == VERDICT_MODE;
	return 0;
}

/* ---- all paths ---- */

static const char *first_path(const char *a, const struct listed *b)
{
	if (!b)
		return a;
	return !a || listing_compare(b->change.file.path, a) < 0 ? b->change.file.path : a;
}

/* The place in one list, as all are walked. */
struct cursor {
	const struct listing *listing;
	size_t at;
	const char *gone; /* a directory of the template that was removed: nothing below is listed */
};

static const struct listed *take(struct cursor *cursor, const char *path)
{
	static const struct listed removed = { .change.kind = HUSK_REMOVED };
	const struct listed *found = head(cursor->listing, cursor->at);

	if (!found || !str_equal(found->change.file.path, path))
		return is_below(path, cursor->gone) ? &removed : NULL;
	cursor->at++;
	if (found->change.kind == HUSK_REMOVED && !is_below(path, cursor->gone))
		cursor->gone = found->change.file.path;
	return found;
}

static int decide_all(struct merge *merge, struct husk_error *err)
{
	struct cursor base = { .listing = &merge->base }, ours = { .listing = &merge->ours };
	struct cursor theirs = { .listing = &merge->theirs };
	size_t room = merge->base.count + merge->ours.count + merge->theirs.count + 1;

	merge->merged->entries = calloc(room, sizeof(*merge->merged->entries));
	merge->steps = calloc(room, sizeof(*merge->steps));
	if (!merge->merged->entries || !merge->steps)
		return husk_fail_memory(err);
	for (;;) {
		const char *path = first_path(NULL, head(&merge->base, base.at));
		path = first_path(path, head(&merge->ours, ours.at));
		path = first_path(path, head(&merge->theirs, theirs.at));
		if (!path)
			return 0;
		struct trio trio = { .path = path };
		trio.base = take(&base, path);
		trio.ours = take(&ours, path);
		trio.theirs = take(&theirs, path);
		if (decide_path(merge, &trio, err) < 0)
			return -1;
	}
}

/* ---- writing ---- */

static int stage_step(struct commit *commit, const struct step *step, struct husk_error *err)
{
	const struct version *new = &step->new;
	const char *path = step->trio.path;
	const struct listed *theirs = step->trio.theirs;
	const char *user = !step->old.type && theirs ? theirs->change.file.user : NULL;

	if (!new->type)
		return commit_remove(commit, path, err);
	if (step->only_mode || (new->type == HUSK_DIRECTORY && step->old.type == HUSK_DIRECTORY))
		return commit_mode(commit, path, new->mode, err);
	if (new->type == HUSK_DIRECTORY)
		return commit_directory(commit, path, new->mode, user, err);
	if (new->type == HUSK_SYMLINK)
		return commit_link(commit, path, new->target, err);
	if (new->type != HUSK_FILE)
		return 0;
	return commit_file(commit, path, &step->content, new->mode ? new->mode : 0600, user, err);
}

/* In the order of paths: a directory before what is in it. */
static int write_all(struct merge *merge, struct husk_error *err)
{
	cleanup_commit struct commit commit = { .lock = -1 };

	if (commit_begin(&commit, merge->husk, merge->ours.sandbox, err) < 0)
		return -1;
	for (size_t i = 0; i < merge->step_count; i++)
		if (stage_step(&commit, &merge->steps[i], err) < 0)
			return -1;
	if (commit_finish(&commit, err) < 0)
		return -1;
	merge->merged->written = true;
	return 0;
}

/* ---- the call ---- */

static int check_family(struct husk *husk, const char *from, const char *other, const char *field,
			struct husk_error *err)
{
	cleanup_row struct catalog_sandbox *a = NULL, *b = NULL;

	if (catalog_sandbox_get(husk->catalog, from, &a, err) < 0 ||
	    catalog_sandbox_get(husk->catalog, other, &b, err) < 0)
		return -1;
	if (b->state == CATALOG_ENDED)
		return husk_fail(err, HUSK_GONE, "sandbox %s has ended%s", b->id,
				 str_equal(field, "base") ? "; name another common version (--base)" : "");
	if (str_equal(a->template_digest, b->template_digest))
		return 0;
	return husk_fail_field(err, field, "sandboxes %s and %s are not of the same build of a template", a->id, b->id);
}

static int load_sides(struct merge *merge, const char *path, struct husk_error *err)
{
	bool all = !merge->from_template;

	return listing_load(&merge->theirs, path, all, err) < 0 || listing_load(&merge->ours, path, all, err) < 0 ||
			       (all && listing_load(&merge->base, path, true, err) < 0)
		       ? -1
		       : 0;
}

static int merge_run(struct merge *merge, const char *path, struct husk_error *err)
{
	const char *how = merge->options->conflicts;

	if (how && !str_equal(how, "markers") && !str_equal(how, "ours") && !str_equal(how, "theirs"))
		return husk_fail_field(err, "conflicts", "'%s' is not one of markers, ours, theirs", how);
	merge->limit = merge->options->limit_bytes ? merge->options->limit_bytes : LIMIT_DEFAULT;
	merge->merged->target = strdup(merge->ours.sandbox);
	if (!merge->merged->target)
		return husk_fail_memory(err);
	if (load_sides(merge, path, err) < 0 || decide_all(merge, err) < 0)
		return -1;
	if (merge->options->dry_run || (merge->merged->conflicts && !str_equal(how, "markers")))
		return 0;
	return write_all(merge, err);
}

/* Opens the common version: one that the caller names, or the state that both last shared; neither: the template. */
static int open_base(struct husk *husk, const char *from, const char *into, const char *base, struct husk_moment *out,
		     struct husk_error *err)
{
	cleanup_free char *shared = NULL;

	if (!base && merge_base(husk, from, into, &shared, err) < 0)
		return -1;
	base = base ? base : shared;
	if (!base)
		return 0;
	if (husk_moment_open(husk, base, out, err) < 0)
		return husk_wrap(err, "the common version");
	return check_family(husk, from, out->sandbox, "base", err);
}

int husk_merge(struct husk *husk, const char *from, const char *into, const char *base, const char *path,
	       const struct husk_merge_options *options, struct husk_merged **out, struct husk_error *err)
{
	static const struct husk_merge_options defaults = { 0 };

	if (husk->remote)
		return remote_merge(husk->remote, from, into, base, path, options ? options : &defaults, out, err);
	if (check_family(husk, into, from, "from", err) < 0 || check_family(husk, from, into, "into", err) < 0)
		return -1;
	struct husk_moment common = { 0 };
	cleanup(merge_free) struct merge merge = { .husk = husk,
						   .options = options ? options : &defaults,
						   .ours = { .husk = husk, .sandbox = into },
						   .theirs = { .husk = husk, .sandbox = from },
						   .merged = calloc(1, sizeof(*merge.merged)) };
	int result = merge.merged ? open_base(husk, from, into, base, &common, err) : husk_fail_memory(err);
	merge.base = (struct listing){ .husk = husk, .sandbox = common.sandbox };
	merge.from_template = !common.sandbox;
	if (result == 0)
		result = merge_run(&merge, path, err);
	husk_moment_close(husk, &common);
	if (result == 0 && out)
		*out = steal_pointer(merge.merged);
	return result;
}
