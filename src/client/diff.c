/*
 * husk_diff: the files of one state against those of another: sandboxes, checkpoints, snapshots (moment.c) or their
 * template. The agents of both list the files that differ from the template, and this file merges the two lists. A file
 * in both lists is the same if nothing has touched it since the two were one machine (listing_untouched). Otherwise it
 * is compared byte by byte.
 *
 *     base            sandbox         in the result
 *     -               added           added
 *     added           -               removed
 *     changed         -               changed: the sandbox has the template's
 *     changed         changed         changed, unless they are the same
 *     removed         -               added: the sandbox has the template's
 *     removed         removed         -
 */
#include "client/diff.h"

#include "client/call.h"
#include "client/listing.h"
#include "instance/contact.h"
#include "instance/instance.h"

/* ---- two files ---- */

/* A file of a sandbox, piece by piece. */
struct stream {
	struct call *call;
	const char *data;
	size_t size;
	bool ended;
};

static void stream_close(struct stream *stream)
{
	call_free(stream->call);
}
#define cleanup_stream cleanup(stream_close)

static int stream_open(const struct listing *side, const char *path, struct stream *stream, struct husk_error *err)
{
	cleanup_buf struct buf arguments = { 0 };

	if (check_arguments(wire_put_string(&arguments, TAG_PATH, path), err) < 0)
		return -1;
	return call_start(side->husk, side->sandbox, METHOD_FILE_READ, &arguments, &stream->call, err);
}

/* Until there are bytes, or it has ended. */
static int stream_fill(struct stream *stream, struct husk_error *err)
{
	struct call_event event;

	while (stream->size == 0 && !stream->ended) {
		if (call_next(stream->call, &event, err) < 0)
			return -1;
		if (event.type == WIRE_END) {
			stream->ended = true;
			return wire_end_status(event.data, event.size, err);
		}
		if (event.type == WIRE_DATA && event.stream == STREAM_OUT) {
			stream->data = event.data;
			stream->size = event.size;
		}
	}
	return 0;
}

/* 1: the same bytes; 0: not. A file that cannot be read on one side any more, or is longer than both lists say, has changed: the
 * agents are the guests', and could send without an end. */
static int same_bytes(const struct listing *base, const struct listing *side, const struct husk_file *file,
		      struct husk_error *err)
{
	cleanup_stream struct stream left = { 0 }, right = { 0 };
	struct husk_error why = { 0 };

	uint64_t rest = file->size;

	if (stream_open(base, file->path, &left, err) < 0 || stream_open(side, file->path, &right, err) < 0)
		return -1;
	for (;;) {
		if (stream_fill(&left, &why) < 0 || stream_fill(&right, &why) < 0) {
			if (why.code == HUSK_NOT_FOUND || why.code == HUSK_INVALID)
				return 0;
			return husk_fail(err, why.code, "%s", why.message);
		}
		size_t size = MIN(left.size, right.size);
		if (size == 0)
			return left.size == right.size;
		if (size > rest || memcmp(left.data, right.data, size) != 0)
			return 0;
		rest -= size;
		left.data += size, left.size -= size;
		right.data += size, right.size -= size;
	}
}

static bool same_attributes(const struct husk_file *a, const struct husk_file *b)
{
	return a->type == b->type && a->mode == b->mode && a->uid == b->uid && a->gid == b->gid &&
	       (a->type != HUSK_FILE || a->size == b->size) &&
	       (!a->target == !b->target && (!a->target || str_equal(a->target, b->target)));
}

/* 1, 0, or -1 with err. */
static int same_entry(const struct listing *base, const struct listed *old, const struct listing *side,
		      const struct listed *new, struct husk_error *err)
{
	if (!same_attributes(&old->change.file, &new->change.file))
		return 0;
	if (new->change.file.type != HUSK_FILE || listing_untouched(old, new))
		return 1;
	return same_bytes(base, side, &new->change.file, err);
}

/* ---- two lists ---- */

struct result {
	struct husk_change **list; /* with room for every entry of both sides */
	size_t count;
};

static void result_free(struct result *result)
{
	husk_change_list_free(result->list);
}
#define cleanup_result cleanup(result_free)

/* Takes the file, and `before` (NULL: not known), unless it fails. */
static int result_add(struct result *result, enum husk_change_kind kind, struct husk_file *file,
		      struct husk_file *before, struct husk_error *err)
{
	struct husk_change *change = calloc(1, sizeof(*change));

	if (!change)
		return husk_fail_memory(err);
	*change = (struct husk_change){ .kind = kind, .file = *file };
	*file = (struct husk_file){ 0 };
	if (kind == HUSK_CHANGED && before) {
		change->before = *before;
		*before = (struct husk_file){ 0 };
	}
	result->list[result->count++] = change;
	return 0;
}

/* Is `path` below the directory `gone`, which is not there? */
static bool is_below(const char *path, const char *gone)
{
	size_t size = gone ? strlen(gone) : 0;

	return size && strncmp(path, gone, size) == 0 && path[size] == '/';
}

/* The sandbox has there what the template has. `gone`: a directory that the sandbox has removed. */
static int add_of_base(struct result *result, struct listed *old, const struct listing *side, const char *gone,
		       struct husk_error *err)
{
	struct husk_file *file = &old->change.file, now = { 0 };
	bool below = is_below(file->path, gone);

	if (old->change.kind == HUSK_REMOVED && below)
		return 0;
	if (old->change.kind == HUSK_ADDED || below)
		return result_add(result, HUSK_REMOVED, file, NULL, err);
	if (old->change.kind == HUSK_REMOVED)
		return result_add(result, HUSK_ADDED, file, NULL, err);
	if (husk_file_stat(side->husk, side->sandbox, file->path, false, &now, err) < 0)
		return -1;
	int status = result_add(result, HUSK_CHANGED, &now, file, err);
	husk_file_free(&now);
	return status;
}

static int add_of_both(struct result *result, const struct listing *base, struct listed *old,
		       const struct listing *side, struct listed *new, struct husk_error *err)
{
	bool was = old->change.kind != HUSK_REMOVED, is = new->change.kind != HUSK_REMOVED;

	if (was && is) {
		int same = same_entry(base, old, side, new, err);
		return same == 0 ? result_add(result, HUSK_CHANGED, &new->change.file, &old->change.file, err)
				 : MIN(same, 0);
	}
	if (was)
		return result_add(result, HUSK_REMOVED, &old->change.file, NULL, err);
	return is ? result_add(result, HUSK_ADDED, &new->change.file, NULL, err) : 0;
}

/* The directory that was removed last on a side, as the two lists are walked. */
static void note_removed(const struct listed *entry, char **gone)
{
	if (entry->change.kind == HUSK_REMOVED && !is_below(entry->change.file.path, *gone)) {
		free(*gone);
		*gone = strdup(entry->change.file.path);
	}
}

static int merge(struct listing *base, struct listing *side, struct result *result, struct husk_error *err)
{
	cleanup_free char *gone_base = NULL, *gone = NULL;
	size_t i = 0, j = 0;
	int status = 0;

	while (status == 0 && (i < base->count || j < side->count)) {
		struct listed *old = i < base->count ? &base->entries[i] : NULL;
		struct listed *new = j < side->count ? &side->entries[j] : NULL;
		int order = !old ? 1 : !new ? -1 : listing_compare(old->change.file.path, new->change.file.path);
		if (order <= 0)
			note_removed(old, &gone_base), i++;
		if (order >= 0)
			note_removed(new, &gone), j++;
		if (order < 0)
			status = add_of_base(result, old, side, gone, err);
		else if (order == 0)
			status = add_of_both(result, base, old, side, new, err);
		else if (!is_below(new->change.file.path, gone_base))
			status = result_add(result, new->change.kind, &new->change.file, &new->change.before, err);
		else if (new->change.kind != HUSK_REMOVED)
			status = result_add(result, HUSK_ADDED, &new->change.file, NULL, err);
	}
	return status;
}

/* ---- the call ---- */

void husk_change_list_free(struct husk_change **list)
{
	for (size_t i = 0; list && list[i]; i++) {
		husk_file_free(&list[i]->file);
		husk_file_free(&list[i]->before);
		free(list[i]);
	}
	free(list);
}

const char *husk_change_name(enum husk_change_kind kind)
{
	static const char *const names[] = {
		[HUSK_ADDED] = "added", [HUSK_REMOVED] = "removed", [HUSK_CHANGED] = "changed"
	};

	return kind >= HUSK_ADDED && kind <= HUSK_CHANGED ? names[kind] : "unknown";
}

struct comparison {
	struct husk *husk;
	struct husk_moment new, old;
	bool of_template; /* `old` is the template itself, which needs no machine */
};

static void comparison_end(struct comparison *c)
{
	husk_moment_close(c->husk, &c->new);
	husk_moment_close(c->husk, &c->old);
}

/* Both lists are about one and the same template, or they cannot be compared. */
static int check_template(struct husk *husk, const struct comparison *c, const char *new_word, const char *old_word,
			  struct husk_error *err)
{
	cleanup_row struct catalog_sandbox *new = NULL, *old = NULL;

	if (catalog_sandbox_get(husk->catalog, c->new.sandbox, &new, err) < 0 ||
	    catalog_sandbox_get(husk->catalog, c->old.sandbox, &old, err) < 0)
		return -1;
	if (str_equal(new->template_digest, old->template_digest))
		return 0;
	return husk_fail_field(
		err, "against",
		"%s is of template '%s' and %s of %s '%s'; only states of the same build of a template can "
		"be compared",
		new_word, new->template_name, old_word,
		str_equal(new->template_name, old->template_name) ? "another build of" : "template",
		old->template_name);
}

/* Is the word the template that the row was made from, in the same build, and no sandbox or snapshot? */
static bool is_own_template(struct husk *husk, const struct catalog_sandbox *row, const char *word)
{
	cleanup_row struct catalog_sandbox *sandbox = NULL;
	struct catalog_snapshot *snapshot = NULL;
	struct catalog_template *template = NULL;
	bool same = str_equal(word, row->template_name) &&
		    catalog_sandbox_get(husk->catalog, word, &sandbox, NULL) < 0 &&
		    catalog_snapshot_get(husk->catalog, word, &snapshot, NULL) < 0 &&
		    catalog_template_get(husk->catalog, word, &template, NULL) == 0 &&
		    str_equal(template->digest, row->template_digest);

	catalog_snapshot_free(snapshot);
	if (template)
		catalog_template_free(template);
	return same;
}

/* The state that a sandbox began with. */
static int open_origin(struct comparison *c, const struct catalog_sandbox *row, struct husk_error *err)
{
	struct husk_error why = { 0 };

	c->of_template = c->new.is_copy || !row->parent;
	if (c->of_template)
		return 0;
	if (row->origin && husk_moment_open(c->husk, row->origin, &c->old, &why) == 0)
		return 0;
	if (row->origin && why.code != HUSK_NOT_FOUND && why.code != HUSK_GONE)
		return husk_fail(err, why.code, "%s", why.message);
	return husk_fail(
		err, HUSK_GONE,
		"the state that sandbox %s started from is no longer stored; name what to compare with, such as its "
		"template (husk diff %s %s) or %s as it is now",
		row->id, row->template_name, row->id, row->parent);
}

static int open_both(struct comparison *c, const char *new_word, const char *old_word, struct husk_error *err)
{
	cleanup_row struct catalog_sandbox *row = NULL;

	if (husk_moment_open(c->husk, new_word, &c->new, err) < 0 ||
	    catalog_sandbox_get(c->husk->catalog, c->new.sandbox, &row, err) < 0)
		return -1;
	if (!old_word)
		return open_origin(c, row, err);
	c->of_template = is_own_template(c->husk, row, old_word);
	if (c->of_template)
		return 0;
	if (husk_moment_open(c->husk, old_word, &c->old, err) < 0)
		return -1;
	return check_template(c->husk, c, new_word, old_word, err);
}

int diff_machines(struct husk *husk, const char *sandbox, const char *base, const char *path, struct husk_change ***out,
		  struct husk_error *err)
{
	cleanup_listing struct listing new = { .husk = husk, .sandbox = sandbox };
	cleanup_listing struct listing old = { .husk = husk, .sandbox = base };
	cleanup_result struct result result = { 0 };

	if (listing_load(&new, path, base != NULL, err) < 0 || (base && listing_load(&old, path, true, err) < 0))
		return -1;
	result.list = calloc(new.count + old.count + 1, sizeof(*result.list));
	if (!result.list)
		return husk_fail_memory(err);
	if (merge(&old, &new, &result, err) < 0)
		return -1;
	*out = steal_pointer(result.list);
	return 0;
}

int husk_diff(struct husk *husk, const char *sandbox, const char *base, const char *path, struct husk_change ***out,
	      struct husk_error *err)
{
	if (husk->remote)
		return remote_diff(husk->remote, sandbox, base, path, out, err);
	cleanup(comparison_end) struct comparison c = { .husk = husk };

	if ((path && check_path("path", path, err) < 0) || open_both(&c, sandbox, base, err) < 0)
		return -1;
	return diff_machines(husk, c.new.sandbox, c.of_template ? NULL : c.old.sandbox, path, out, err);
}
