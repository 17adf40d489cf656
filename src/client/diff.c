/*
 * husk_diff: the files of one state against those of another: sandboxes, checkpoints, snapshots (moment.c) or their
 * template. The agents of both list the files that differ from the template, and this file merges the two lists. A file
 * in both lists is the same if nothing has touched it since the two were one machine (listing_untouched). Otherwise it
 * is compared byte by byte.
 *
 * Two forks of one state are first asked what was touched since then. Only those paths are listed and compared.
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
#include "client/files.h"
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
static int same_bytes(struct stream *left, struct stream *right, uint64_t rest, struct husk_error *err)
{
	struct husk_error why = { 0 };

	for (;;) {
		if (stream_fill(left, &why) < 0 || stream_fill(right, &why) < 0) {
			if (why.code == HUSK_NOT_FOUND || why.code == HUSK_INVALID)
				return 0;
			return husk_fail(err, why.code, "%s", why.message);
		}
		size_t size = MIN(left->size, right->size);
		if (size == 0)
			return left->size == right->size;
		if (size > rest || memcmp(left->data, right->data, size) != 0)
			return 0;
		rest -= size;
		left->data += size, left->size -= size;
		right->data += size, right->size -= size;
	}
}

static bool same_attributes(const struct husk_file *a, const struct husk_file *b)
{
	return a->type == b->type && a->mode == b->mode && a->uid == b->uid && a->gid == b->gid &&
	       (a->type != HUSK_FILE || a->size == b->size) &&
	       (!a->target == !b->target && (!a->target || str_equal(a->target, b->target)));
}

/* ---- two lists ---- */

struct result {
	struct husk_change **list; /* with room for every entry of both sides */
	size_t count;
	size_t *open; /* of the list: the content must be compared; with the same room */
	size_t open_count;
};

static void result_free(struct result *result)
{
	husk_change_list_free(result->list);
	free(result->open);
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

static int add_of_both(struct result *result, struct listed *old, struct listed *new, struct husk_error *err)
{
	bool was = old->change.kind != HUSK_REMOVED, is = new->change.kind != HUSK_REMOVED;
	bool alike = was && is && same_attributes(&old->change.file, &new->change.file);

	if (alike && (new->change.file.type != HUSK_FILE || listing_untouched(old, new)))
		return 0;
	if (alike)
		result->open[result->open_count++] = result->count;
	if (was && is)
		return result_add(result, HUSK_CHANGED, &new->change.file, &old->change.file, err);
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

	while (status == 0) {
		struct listed *old = i < base->count ? &base->entries[i] : NULL;
		struct listed *new = j < side->count ? &side->entries[j] : NULL;
		if (!old && !new)
			break;
		int order = !old ? 1 : !new ? -1 : listing_compare(old->change.file.path, new->change.file.path);
		if (order <= 0)
			note_removed(old, &gone_base), i++;
		if (order >= 0)
			note_removed(new, &gone), j++;
		if (order < 0)
			status = add_of_base(result, old, side, gone, err);
		else if (order == 0)
			status = add_of_both(result, old, new, err);
		else if (!is_below(new->change.file.path, gone_base))
			status = result_add(result, new->change.kind, &new->change.file, &new->change.before, err);
		else if (new->change.kind != HUSK_REMOVED)
			status = result_add(result, HUSK_ADDED, &new->change.file, NULL, err);
	}
	return status;
}

/* ---- contents ---- */

/* Files at a time that are read: a call takes longer to be answered than a small file to be read. */
#define READ_AHEAD 16u

static int compare_some(const struct listing *base, const struct listing *side, struct result *result, size_t from,
			size_t count, struct husk_error *err)
{
	struct stream left[READ_AHEAD] = { 0 }, right[READ_AHEAD] = { 0 };
	int status = 0;

	for (size_t i = 0; i < count && status == 0; i++) {
		const char *path = result->list[result->open[from + i]]->file.path;
		status = file_read_begin(base->husk, base->sandbox, path, &left[i].call, err);
		if (status == 0)
			status = file_read_begin(side->husk, side->sandbox, path, &right[i].call, err);
	}
	for (size_t i = 0; i < count && status == 0; i++) {
		struct husk_change *change = result->list[result->open[from + i]];
		int same = same_bytes(&left[i], &right[i], change->file.size, err);
		status = MIN(same, 0);
		if (same > 0)
			change->kind = 0;
	}
	for (size_t i = 0; i < count; i++) {
		call_free(left[i].call);
		call_free(right[i].call);
	}
	return status;
}

/* Drops what turns out to be the same. */
static int compare_contents(const struct listing *base, const struct listing *side, struct result *result,
			    struct husk_error *err)
{
	size_t kept = 0;

	for (size_t i = 0; i < result->open_count; i += READ_AHEAD)
		if (compare_some(base, side, result, i, MIN(READ_AHEAD, result->open_count - i), err) < 0)
			return -1;
	for (size_t i = 0; i < result->count; i++) {
		struct husk_change *change = result->list[i];
		if (change->kind) {
			result->list[kept++] = change;
			continue;
		}
		husk_file_free(&change->file);
		husk_file_free(&change->before);
		free(change);
	}
	result->list[kept] = NULL;
	result->count = kept;
	return 0;
}

/* ---- which paths ---- */

#define PATHS_MAX 256u         /* that are listed one by one; with more, everything is */
#define CLOCKS_MS INT64_C(100) /* a guest's clock is set when it begins, and is not behind by more */

/* Since when two machines may differ: both began as the same snapshot, and neither has changed anything before it was made. -1: not
 * known. The number of a checkpoint may be used again for a later one, so it does not name a state for ever. */
static int64_t differ_since(struct husk *husk, const char *a, const char *b)
{
	cleanup_row struct catalog_sandbox *left = NULL, *right = NULL;

	if (husk->remote || catalog_sandbox_get(husk->catalog, a, &left, NULL) < 0 ||
	    catalog_sandbox_get(husk->catalog, b, &right, NULL) < 0 || !left->origin ||
	    !str_equal(left->origin, right->origin) || strchr(left->origin, '@'))
		return -1;
	return MAX(0, MIN(left->created_ms, right->created_ms) - CLOCKS_MS) * 1000000;
}

static bool is_within(const char *path, const char *wanted)
{
	return !wanted || str_equal(path, wanted) || is_below(path, wanted);
}

/* Adds a touched path, as far as it is wanted. In a touched directory names came or went, so it is compared as a whole. 1: that is
 * everything; -1: no memory. */
static int add_path(char ***paths, const struct husk_file *file, const char *wanted)
{
	const char *path = file->path;

	if (wanted && file->type == HUSK_DIRECTORY && (str_equal(path, "/") || is_below(wanted, path)))
		path = wanted;
	if (str_equal(path, "/"))
		return 1;
	if (!is_within(path, wanted))
		return 0;
	for (char **each = *paths; each && *each; each++)
		if (str_equal(path, *each) || is_below(path, *each))
			return 0;
	return strv_add(paths, path);
}

/* Files that both have touched are taken as they are listed. The other paths of both must be listed again. Returns as add_path. */
static int sort_touched(struct listing *a, struct listing *b, struct listing *new, struct listing *old,
			const char *wanted, char ***paths, struct husk_error *err)
{
	size_t i = 0, j = 0;
	int result = 0;

	while (result == 0 && (i < a->count || j < b->count) && strv_length(*paths) <= PATHS_MAX) {
		struct listed *left = i < a->count ? &a->entries[i] : NULL;
		struct listed *right = j < b->count ? &b->entries[j] : NULL;
		int order = !left ? 1 : !right ? -1 : listing_compare(left->change.file.path, right->change.file.path);
		struct listed *any = order <= 0 ? left : right;
		bool files = order == 0 && left->change.file.type != HUSK_DIRECTORY &&
			     right->change.file.type != HUSK_DIRECTORY;
		i += order <= 0;
		j += order >= 0;
		if (order == 0 && right->change.file.type == HUSK_DIRECTORY)
			any = right;
		if (!files)
			result = add_path(paths, &any->change.file, wanted);
		else if (is_within(any->change.file.path, wanted))
			result = listing_take(new, left, err) < 0 ? -1 : listing_take(old, right, err);
	}
	return result == 0 && strv_length(*paths) > PATHS_MAX ? 1 : result;
}

/* Lists what was touched since the two were one. 1: in the lists, but for *paths; 0: not known, or too much. */
static int list_touched(struct listing *new, struct listing *old, const char *wanted, char ***paths,
			struct husk_error *err)
{
	cleanup_listing struct listing a = { .husk = new->husk, .sandbox = new->sandbox };
	cleanup_listing struct listing b = { .husk = old->husk, .sandbox = old->sandbox };
	int64_t since_ns = differ_since(new->husk, new->sandbox, old->sandbox);
	struct husk_error why = { 0 };

	if (since_ns < 0 || listing_load_both(&a, &b, NULL, since_ns, &why) < 0 || !a.exact || !b.exact)
		return 0;
	int everything = sort_touched(&a, &b, new, old, wanted, paths, err);
	return everything < 0 ? husk_fail_memory(err) : !everything;
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

/* What both have changed of their template, as far as the two may differ. */
static int list_both(struct listing *new, struct listing *old, const char *path, struct husk_error *err)
{
	cleanup_strv char **paths = NULL;
	int found = list_touched(new, old, path, &paths, err);

	if (found < 0)
		return -1;
	if (found > 0)
		return paths ? listing_load_both(new, old, paths, -1, err) : 0;
	char *const wanted[] = { (char *)path, NULL };
	listing_free(new);
	listing_free(old);
	*new = (struct listing){ .husk = new->husk, .sandbox = new->sandbox };
	*old = (struct listing){ .husk = old->husk, .sandbox = old->sandbox };
	return listing_load_both(new, old, wanted, -1, err);
}

int diff_machines(struct husk *husk, const char *sandbox, const char *base, const char *path, struct husk_change ***out,
		  struct husk_error *err)
{
	cleanup_listing struct listing new = { .husk = husk, .sandbox = sandbox };
	cleanup_listing struct listing old = { .husk = husk, .sandbox = base };
	cleanup_result struct result result = { 0 };

	if ((base ? list_both(&new, &old, path, err) : listing_load(&new, path, false, err)) < 0)
		return -1;
	result.list = calloc(new.count + old.count + 1, sizeof(*result.list));
	result.open = calloc(new.count + 1, sizeof(*result.open));
	if (!result.list || !result.open)
		return husk_fail_memory(err);
	if (merge(&old, &new, &result, err) < 0 || compare_contents(&old, &new, &result, err) < 0)
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
