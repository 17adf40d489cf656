/*
 * husk_diff: the files of a sandbox against its template, or against another sandbox of the same template. The agents of both
 * list what differs from the template; this file puts the two lists together. A file that both have is the same if nothing
 * has touched it since the two were one machine (inode and time of its last change), and is compared byte by byte otherwise.
 *
 *     base            sandbox         in the result
 *     -               added           added
 *     added           -               removed
 *     changed         -               changed: the sandbox has the template's
 *     changed         changed         changed, unless they are the same
 *     removed         -               added: the sandbox has the template's
 *     removed         removed         -
 */
#include "client/call.h"
#include "client/files.h"
#include "instance/contact.h"
#include "instance/instance.h"

#define CHANGES_MAX 1000000u
#define CHANGES_BYTES_MAX (256u * 1024u * 1024u)

/* One path that differs from the template. */
struct entry {
	struct husk_change change;
	int64_t inode, ctime_ns;
};

struct side {
	struct husk *husk;
	const char *sandbox;
	struct entry *entries;
	size_t count, room, bytes;
};

static void side_free(struct side *side)
{
	for (size_t i = 0; i < side->count; i++)
		husk_file_free(&side->entries[i].change.file);
	free(side->entries);
}
#define cleanup_side cleanup(side_free)

/* ---- what one machine says ---- */

static int entry_read(const struct call_event *event, struct entry *out, struct husk_error *err)
{
	int64_t change = wire_get_int(event->data, event->size, TAG_CHANGE, 0);

	if (change < CHANGE_ADDED || change > CHANGE_CHANGED)
		return husk_fail(err, HUSK_PROTOCOL, "the agent described a change of an unknown kind");
	*out = (struct entry){ .change.kind = (enum husk_change_kind)change,
			       .inode = wire_get_int(event->data, event->size, TAG_INODE, 0),
			       .ctime_ns = wire_get_int(event->data, event->size, TAG_CTIME_NS, 0) };
	return file_from_fields(event->data, event->size, &out->change.file, err);
}

static int side_add(struct side *side, const struct call_event *event, struct husk_error *err)
{
	side->bytes += event->size;
	if (side->count == CHANGES_MAX || side->bytes > CHANGES_BYTES_MAX)
		return husk_fail(err, HUSK_LIMIT,
				 "sandbox %s has more than %u changes or %u MiB of them; name a path to compare less",
				 side->sandbox, CHANGES_MAX, CHANGES_BYTES_MAX >> 20);
	if (side->count == side->room) {
		size_t room = side->room ? side->room * 2 : 64;
		struct entry *grown = reallocarray(side->entries, room, sizeof(*grown));
		if (!grown)
			return husk_fail_memory(err);
		side->entries = grown;
		side->room = room;
	}
	if (entry_read(event, &side->entries[side->count], err) < 0)
		return -1;
	side->count++;
	return 0;
}

/* As strcmp, but '/' comes first: what is below a directory follows it at once. */
static int compare_paths(const char *a, const char *b)
{
	while (*a && *a == *b)
		a++, b++;
	int left = *a == '/' ? 1
		   : *a      ? (unsigned char)*a + 1
			     : 0,
	    right = *b == '/' ? 1
		    : *b      ? (unsigned char)*b + 1
			      : 0;
	return left - right;
}

static int by_path(const void *a, const void *b)
{
	return compare_paths(((const struct entry *)a)->change.file.path, ((const struct entry *)b)->change.file.path);
}

static int side_load(struct side *side, const char *path, bool all, struct husk_error *err)
{
	cleanup_buf struct buf arguments = { 0 };
	cleanup_call struct call *call = NULL;
	struct call_event event = { 0 };
	int bad = wire_put_string(&arguments, TAG_PATH, path);

	bad |= wire_put_int(&arguments, TAG_FLAGS, all ? CHANGES_ALL : 0);
	if (check_arguments(bad, err) < 0)
		return -1;
	int result = call_start(side->husk, side->sandbox, METHOD_CHANGES, &arguments, &call, err);
	while (result == 0 && (result = call_next(call, &event, err)) == 0 && event.type != WIRE_END)
		if (event.type == WIRE_MSG)
			result = side_add(side, &event, err);
	if (result == 0)
		result = wire_end_status(event.data, event.size, err);
	if (result == 0 && side->count)
		qsort(side->entries, side->count, sizeof(*side->entries), by_path);
	return result;
}

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

static int stream_open(const struct side *side, const char *path, struct stream *stream, struct husk_error *err)
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

/* 1: the same bytes; 0: not. A file that cannot be read on one side any more has changed. */
static int same_bytes(const struct side *base, const struct side *side, const char *path, struct husk_error *err)
{
	cleanup_stream struct stream left = { 0 }, right = { 0 };
	struct husk_error why = { 0 };

	if (stream_open(base, path, &left, err) < 0 || stream_open(side, path, &right, err) < 0)
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
		if (memcmp(left.data, right.data, size) != 0)
			return 0;
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
static int same_entry(const struct side *base, const struct entry *old, const struct side *side,
		      const struct entry *new, struct husk_error *err)
{
	if (!same_attributes(&old->change.file, &new->change.file))
		return 0;
	if (new->change.file.type != HUSK_FILE || (old->inode == new->inode && old->ctime_ns == new->ctime_ns))
		return 1;
	return same_bytes(base, side, new->change.file.path, err);
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

/* Takes the file, unless it fails. */
static int result_add(struct result *result, enum husk_change_kind kind, struct husk_file *file, struct husk_error *err)
{
	struct husk_change *change = calloc(1, sizeof(*change));

	if (!change)
		return husk_fail_memory(err);
	*change = (struct husk_change){ .kind = kind, .file = *file };
	*file = (struct husk_file){ 0 };
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
static int add_of_base(struct result *result, struct entry *old, const struct side *side, const char *gone,
		       struct husk_error *err)
{
	struct husk_file *file = &old->change.file, now = { 0 };
	bool below = is_below(file->path, gone);

	if (old->change.kind == HUSK_REMOVED && below)
		return 0;
	if (old->change.kind == HUSK_ADDED || below)
		return result_add(result, HUSK_REMOVED, file, err);
	if (old->change.kind == HUSK_REMOVED)
		return result_add(result, HUSK_ADDED, file, err);
	if (husk_file_stat(side->husk, side->sandbox, file->path, false, &now, err) < 0)
		return -1;
	int status = result_add(result, HUSK_CHANGED, &now, err);
	husk_file_free(&now);
	return status;
}

static int add_of_both(struct result *result, const struct side *base, struct entry *old, const struct side *side,
		       struct entry *new, struct husk_error *err)
{
	bool was = old->change.kind != HUSK_REMOVED, is = new->change.kind != HUSK_REMOVED;

	if (was && is) {
		int same = same_entry(base, old, side, new, err);
		return same == 0 ? result_add(result, HUSK_CHANGED, &new->change.file, err) : MIN(same, 0);
	}
	if (was)
		return result_add(result, HUSK_REMOVED, &old->change.file, err);
	return is ? result_add(result, HUSK_ADDED, &new->change.file, err) : 0;
}

/* The directory that was removed last on a side, as the two lists are walked. */
static void note_removed(const struct entry *entry, char **gone)
{
	if (entry->change.kind == HUSK_REMOVED && !is_below(entry->change.file.path, *gone)) {
		free(*gone);
		*gone = strdup(entry->change.file.path);
	}
}

static int merge(struct side *base, struct side *side, struct result *result, struct husk_error *err)
{
	cleanup_free char *gone_base = NULL, *gone = NULL;
	size_t i = 0, j = 0;
	int status = 0;

	while (status == 0 && (i < base->count || j < side->count)) {
		struct entry *old = i < base->count ? &base->entries[i] : NULL;
		struct entry *new = j < side->count ? &side->entries[j] : NULL;
		int order = !old ? 1 : !new ? -1 : by_path(old, new);
		if (order <= 0)
			note_removed(old, &gone_base), i++;
		if (order >= 0)
			note_removed(new, &gone), j++;
		if (order < 0)
			status = add_of_base(result, old, side, gone, err);
		else if (order == 0)
			status = add_of_both(result, base, old, side, new, err);
		else if (!is_below(new->change.file.path, gone_base))
			status = result_add(result, new->change.kind, &new->change.file, err);
		else if (new->change.kind != HUSK_REMOVED)
			status = result_add(result, HUSK_ADDED, &new->change.file, err);
	}
	return status;
}

/* ---- the call ---- */

void husk_change_list_free(struct husk_change **list)
{
	for (size_t i = 0; list && list[i]; i++) {
		husk_file_free(&list[i]->file);
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

/* Both lists are about one and the same template, or they cannot be held against each other. */
static int check_template(struct husk *husk, const char *sandbox, const char *base, struct husk_error *err)
{
	struct catalog_sandbox *new = NULL, *old = NULL;
	int result = catalog_sandbox_get(husk->catalog, sandbox, &new, err);

	if (result == 0)
		result = catalog_sandbox_get(husk->catalog, base, &old, err);
	if (result == 0 && !str_equal(new->template_digest, old->template_digest))
		result = husk_fail_field(
			err, "against",
			"sandbox %s is of template '%s' and %s of %s '%s'; only sandboxes of the same build of a "
			"template can be compared",
			new->id, new->template_name, old->id,
			str_equal(new->template_name, old->template_name) ? "another build of" : "template",
			old->template_name);
	catalog_sandbox_free(new);
	catalog_sandbox_free(old);
	return result;
}

int husk_diff(struct husk *husk, const char *sandbox, const char *base, const char *path, struct husk_change ***out,
	      struct husk_error *err)
{
	if (husk->remote)
		return remote_diff(husk->remote, sandbox, base, path, out, err);
	cleanup_side struct side new = { .husk = husk, .sandbox = sandbox }, old = { .husk = husk, .sandbox = base };
	cleanup_result struct result result = { 0 };

	if ((path && check_path("path", path, err) < 0) || (base && check_template(husk, sandbox, base, err) < 0))
		return -1;
	if (side_load(&new, path, base != NULL, err) < 0 || (base && side_load(&old, path, true, err) < 0))
		return -1;
	result.list = calloc(new.count + old.count + 1, sizeof(*result.list));
	if (!result.list)
		return husk_fail_memory(err);
	if (merge(&old, &new, &result, err) < 0)
		return -1;
	*out = steal_pointer(result.list);
	return 0;
}
