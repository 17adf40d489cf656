/*
 * Families of sandboxes and snapshots as JSON, each member below its parent. Built from the two lists of libhusk, so it
 * is the same for an instance and for a server. A member that has ended or was removed is kept while it has children.
 * Used by the command line and the server.
 */
#include "json/json.h"

#define DEPTH_MAX 500 /* generations shown; JSON parsers accept little more */

struct node {
	const char *id, *parent;              /* from the lists; parent NULL: made from a template */
	const struct husk_sandbox *sandbox;   /* one of the two; both NULL: removed */
	const struct husk_snapshot *snapshot; /* … */
	struct node *up, *first, *last, *next;
	bool shown;
};

struct family {
	struct husk_sandbox **sandboxes;
	struct husk_snapshot **snapshots;
	struct node *nodes; /* first the `known` ones, by id; then those that are only named as a parent */
	size_t known, count;
};

/* ---- parents and children ---- */

static int by_id(const void *one, const void *other)
{
	return strcmp(((const struct node *)one)->id, ((const struct node *)other)->id);
}

static struct node *find(const struct family *family, const char *id)
{
	struct node wanted = { .id = id };

	return id ? bsearch(&wanted, family->nodes, family->known, sizeof(wanted), by_id) : NULL;
}

static int64_t born(const struct node *node)
{
	return node->sandbox ? node->sandbox->created_ms : node->snapshot ? node->snapshot->created_ms : 0;
}

/* Links a child below its parent, the oldest first. */
static void join(struct node *parent, struct node *child)
{
	struct node **place = &parent->first;

	child->up = parent;
	if (parent->last && born(parent->last) <= born(child))
		place = &parent->last->next;
	while (*place && born(*place) <= born(child))
		place = &(*place)->next;
	child->next = *place;
	*place = child;
	if (!child->next)
		parent->last = child;
}

static int gather(struct family *family, struct husk_error *err)
{
	size_t count = 0;

	for (size_t i = 0; family->sandboxes[i]; i++)
		count++;
	for (size_t i = 0; family->snapshots[i]; i++)
		count++;
	family->nodes =
		calloc(2 * count + 1, sizeof(*family->nodes)); /* each may name a parent that no longer exists */
	if (!family->nodes)
		return husk_fail_memory(err);
	for (size_t i = 0; family->sandboxes[i]; i++)
		family->nodes[family->count++] = (struct node){ .id = family->sandboxes[i]->id,
								.parent = family->sandboxes[i]->parent,
								.sandbox = family->sandboxes[i] };
	for (size_t i = 0; family->snapshots[i]; i++)
		family->nodes[family->count++] = (struct node){ .id = family->snapshots[i]->id,
								.parent = family->snapshots[i]->sandbox,
								.snapshot = family->snapshots[i] };
	return 0;
}

static int by_parent(const void *one, const void *other)
{
	const struct node *const *a = one, *const *b = other;

	return strcmp((*a)->parent, (*b)->parent);
}

/* Adds one node for each missing parent, even if several children name it. */
static void connect_orphans(struct family *family, struct node **orphans, size_t count)
{
	struct node *gone = NULL;

	qsort(orphans, count, sizeof(*orphans), by_parent);
	for (size_t i = 0; i < count; i++) {
		if (!gone || strcmp(gone->id, orphans[i]->parent) != 0) {
			gone = &family->nodes[family->count++];
			*gone = (struct node){ .id = orphans[i]->parent };
		}
		join(gone, orphans[i]);
	}
}

static int connect_all(struct family *family, struct husk_error *err)
{
	size_t orphan_count = 0;
	cleanup_free struct node **orphans = calloc(family->count + 1, sizeof(struct node *));

	if (!orphans)
		return husk_fail_memory(err);
	family->known = family->count;
	qsort(family->nodes, family->known, sizeof(*family->nodes), by_id);
	for (size_t i = 0; i < family->known; i++) {
		struct node *node = &family->nodes[i], *parent = find(family, node->parent);

		if (parent && parent != node)
			join(parent, node);
		else if (node->parent && *node->parent && !parent)
			orphans[orphan_count++] = node;
	}
	connect_orphans(family, orphans, orphan_count);
	return 0;
}

/* True for a live sandbox or a kept snapshot. */
static bool is_there(const struct node *node)
{
	return node->snapshot || (node->sandbox && node->sandbox->state != HUSK_ENDED);
}

static void show(const struct family *family, bool all)
{
	for (size_t i = 0; i < family->count; i++) {
		bool wanted = all || is_there(&family->nodes[i]);

		/* If a node is shown, its ancestors are shown already. */
		for (struct node *node = &family->nodes[i]; wanted && node && !node->shown; node = node->up)
			node->shown = true;
	}
}

static const struct node *root_of(const struct node *node, size_t count)
{
	while (node->up && count-- > 0)
		node = node->up;
	return node;
}

/* ---- telling ---- */

static json_t *node_json(const struct node *node, const struct node *asked, unsigned depth)
{
	const struct husk_sandbox *sandbox = node->sandbox;
	const struct husk_snapshot *snapshot = node->snapshot;
	json_t *children = json_array();
	json_t *document =
		json_pack("{s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:b, s:o}", "id", node->id, "kind",
			  sandbox    ? "sandbox"
			  : snapshot ? "snapshot"
				     : "removed",
			  "name",
			  json_text0(sandbox    ? sandbox->name
				     : snapshot ? snapshot->name
						: NULL),
			  "state", json_text0(sandbox ? husk_state_name(sandbox->state) : NULL), "end_reason",
			  json_text0(sandbox ? sandbox->end_reason : NULL), "template",
			  json_text0(sandbox    ? sandbox->template_name
				     : snapshot ? snapshot->template_name
						: NULL),
			  "created_at", json_time(born(node)), "ended_at", json_time(sandbox ? sandbox->ended_ms : 0),
			  "bytes", snapshot ? json_integer((json_int_t)snapshot->bytes) : json_null(), "asked",
			  node == asked, "children", children);

	for (const struct node *child = node->first; document && child && depth < DEPTH_MAX; child = child->next)
		if (child->shown)
			json_array_append_new(children, node_json(child, asked, depth + 1));
	return document;
}

static int by_birth(const void *one, const void *other)
{
	int64_t a = born(*(const struct node *const *)one), b = born(*(const struct node *const *)other);

	return a < b ? -1 : a > b;
}

/* The nodes without a parent; or only the root of `asked`. */
static json_t *roots_json(const struct family *family, const struct node *asked)
{
	cleanup_free const struct node **roots = calloc(family->count + 1, sizeof(struct node *));
	json_t *array = json_array();
	size_t count = 0;

	if (!roots)
		return NULL;
	for (size_t i = 0; i < family->count && !asked; i++)
		if (!family->nodes[i].up && family->nodes[i].shown)
			roots[count++] = &family->nodes[i];
	if (asked)
		roots[count++] = root_of(asked, family->count);
	qsort(roots, count, sizeof(*roots), by_birth);
	for (size_t i = 0; i < count; i++)
		json_array_append_new(array, node_json(roots[i], asked, 0));
	return array;
}

/* The id of the wanted member; NOT_FOUND with libhusk's message. */
static int resolve(struct husk *husk, const struct family *family, const char *name, char **out, struct husk_error *err)
{
	cleanup_sandbox struct husk_sandbox *sandbox = NULL;

	for (size_t i = 0; family->snapshots[i]; i++)
		if (str_equal(family->snapshots[i]->id, name) || str_equal(family->snapshots[i]->name, name))
			return (*out = strdup(family->snapshots[i]->id)) ? 0 : husk_fail_memory(err);
	if (husk_inspect(husk, name, &sandbox, err) < 0)
		return -1;
	return (*out = strdup(sandbox->id)) ? 0 : husk_fail_memory(err);
}

int json_tree(struct husk *husk, const char *of, bool all, json_t **out, struct husk_error *err)
{
	const struct husk_filter everybody = { .with_ended = true };
	cleanup_sandboxes struct husk_sandbox **sandboxes = NULL;
	cleanup_snapshots struct husk_snapshot **snapshots = NULL;
	cleanup_free char *id = NULL;

	if (husk_list(husk, &everybody, &sandboxes, err) < 0 || husk_snapshot_list(husk, &snapshots, err) < 0)
		return -1;
	struct family family = { .sandboxes = sandboxes, .snapshots = snapshots };
	int result = of ? resolve(husk, &family, of, &id, err) : 0;
	if (result == 0)
		result = gather(&family, err);
	if (result == 0)
		result = connect_all(&family, err);
	if (result == 0) {
		show(&family, all || of);
		*out = roots_json(&family, find(&family, id));
		result = *out ? 0 : husk_fail_memory(err);
	}
	free(family.nodes);
	return result;
}
