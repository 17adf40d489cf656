/*
 * Finds the state that two sandboxes last shared (merge_base.h). Each sandbox knows its parent and the moment of its fork. Example:
 *
 *     work --m1-- A --m3-- C        A and B:     m1 (the earlier of the two forks from `work`)
 *          \-m2-- B                 C and B:     m1 (C's line left `work` at m1)
 *                                   A and work:  m1
 *
 * A sandbox that was made from a snapshot counts as a fork, at that snapshot, of the sandbox that it was taken from.
 */
#include "workspace/merge_base.h"

#define LINEAGE_MAX 64

/* One sandbox of a line, and the moment at which it left its parent. */
struct link {
	char *id;
	char *moment; /* NULL: unknown, or it was made from a template */
};

struct line {
	struct link links[LINEAGE_MAX]; /* the youngest first */
	size_t count;
};

static void line_free(struct line *line)
{
	for (size_t i = 0; i < line->count; i++) {
		free(line->links[i].id);
		free(line->links[i].moment);
	}
}
#define cleanup_line cleanup(line_free)

/* The sandbox that this one left; NULL: none, or it is not known any more. */
static char *parent_of(struct husk *husk, const struct catalog_sandbox *row)
{
	struct catalog_snapshot *snapshot = NULL;
	char *parent = NULL;

	if (!row->parent)
		return NULL;
	if (str_starts(row->parent, "sb-"))
		return strdup(row->parent);
	if (catalog_snapshot_get(husk->catalog, row->parent, &snapshot, NULL) == 0) {
		parent = snapshot->sandbox ? strdup(snapshot->sandbox) : NULL;
		catalog_snapshot_free(snapshot);
	}
	return parent;
}

static int line_load(struct husk *husk, const char *sandbox, struct line *line, struct husk_error *err)
{
	cleanup_free char *word = strdup(sandbox);

	while (word && line->count < LINEAGE_MAX) {
		cleanup_row struct catalog_sandbox *row = NULL;
		struct husk_error why = { 0 };
		struct link *link = &line->links[line->count];
		if (catalog_sandbox_get(husk->catalog, word, &row, &why) < 0) {
			if (line->count == 0)
				return husk_fail(err, why.code, "%s", why.message);
			line->count++; /* an ancestor that was cleared away: its name still counts */
			link->id = steal_pointer(word);
			return 0;
		}
		*link = (struct link){ .id = strdup(row->id), .moment = row->origin ? strdup(row->origin) : NULL };
		line->count++;
		if (!link->id || (row->origin && !link->moment))
			return husk_fail_memory(err);
		free(word);
		word = parent_of(husk, row);
	}
	return 0;
}

/* When the moment was; 0: it is gone. */
static int64_t moment_time(struct husk *husk, const char *word)
{
	const char *at = word ? strchr(word, '@') : NULL;
	cleanup_free char *sandbox = at ? strndup(word, (size_t)(at - word)) : NULL;
	cleanup_point struct catalog_point *point = NULL;
	struct catalog_snapshot *snapshot = NULL;
	int64_t time = 0;

	if (sandbox && catalog_point_get(husk->catalog, sandbox, at + 1, &point, NULL) == 0)
		return point->created_ms;
	if (word && !at && catalog_snapshot_get(husk->catalog, word, &snapshot, NULL) == 0) {
		time = snapshot->created_ms;
		catalog_snapshot_free(snapshot);
	}
	return time;
}

/* The two lines meet in left[a] and right[b], which are the same sandbox. */
static int choose(struct husk *husk, const struct line *left, size_t a, const struct line *right, size_t b, char **out,
		  struct husk_error *err)
{
	const char *one = a ? left->links[a - 1].moment : NULL, *other = b ? right->links[b - 1].moment : NULL;
	int64_t one_ms = moment_time(husk, one), other_ms = moment_time(husk, other);

	if (a == 0 && b == 0)
		return husk_fail_field(err, "into", "sandbox %s cannot be merged into itself", left->links[0].id);
	if ((a && !one_ms) || (b && !other_ms))
		return husk_fail(
			err, HUSK_GONE,
			"the state of sandbox %s when %s was forked from it is not kept any more; name a common "
			"version (--base %s takes it as it is now)",
			left->links[a].id, a && !one_ms ? left->links[a - 1].id : right->links[b - 1].id,
			left->links[a].id);
	*out = strdup(b == 0 || (a && one_ms <= other_ms) ? one : other);
	return *out ? 0 : husk_fail_memory(err);
}

int merge_base(struct husk *husk, const char *from, const char *into, char **out, struct husk_error *err)
{
	cleanup_line struct line left = { 0 }, right = { 0 };

	*out = NULL;
	if (line_load(husk, from, &left, err) < 0 || line_load(husk, into, &right, err) < 0)
		return -1;
	for (size_t a = 0; a < left.count; a++)
		for (size_t b = 0; b < right.count; b++)
			if (str_equal(left.links[a].id, right.links[b].id))
				return choose(husk, &left, a, &right, b, out, err);
	return 0;
}
