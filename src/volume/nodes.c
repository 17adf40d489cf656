/*
 * The table of nodes of one mounted volume; see nodes.h. Called by the server on the thread of that mount only. The guest
 * decides what is entered, so the table is bounded, and chains of parents are followed to a bounded depth. A node that a
 * dishonest guest uses after forgetting it is simply not found. Only nodes_sweep and nodes_close may free a node.
 */
#include "volume/nodes.h"

#include "volume/volume.h"

#define BUCKETS 16384u

static size_t id_bucket(uint64_t id)
{
	return (size_t)(id % BUCKETS);
}

static size_t name_bucket(const struct node *parent, const char *name)
{
	uint64_t hash = parent->id * 0x9e3779b97f4a7c15u;

	for (const char *at = name; *at; at++)
		hash = (hash ^ (unsigned char)*at) * 0x100000001b3u;
	return (size_t)(hash >> 20) % BUCKETS;
}

static void enter_name(struct nodes *nodes, struct node *node)
{
	struct node **bucket = &nodes->by_name[name_bucket(node->parent, node->name)];

	node->next_by_name = *bucket;
	*bucket = node;
}

static struct node *node_new(struct nodes *nodes, uint64_t id, struct node *parent, const char *name, uint64_t inode)
{
	struct node *node = calloc(1, sizeof(*node));

	if (!node || !(node->name = strdup(name))) {
		free(node);
		return NULL;
	}
	node->id = id;
	node->inode = inode;
	node->parent = parent;
	node->next_by_id = nodes->by_id[id_bucket(id)];
	nodes->by_id[id_bucket(id)] = node;
	if (parent) {
		parent->children++;
		enter_name(nodes, node);
	}
	nodes->count++;
	return node;
}

static void leave_name(struct nodes *nodes, struct node *node)
{
	struct node **at = &nodes->by_name[name_bucket(node->parent, node->name)];

	while (*at && *at != node)
		at = &(*at)->next_by_name;
	if (*at)
		*at = node->next_by_name;
	node->next_by_name = NULL;
}

static void node_free(struct nodes *nodes, struct node *node)
{
	struct node **at = &nodes->by_id[id_bucket(node->id)];

	while (*at != node)
		at = &(*at)->next_by_id;
	*at = node->next_by_id;
	if (!node->dead)
		leave_name(nodes, node);
	nodes->count--;
	free(node->name);
	free(node);
}

static bool unneeded(const struct node *node)
{
	return node->parent && !node->children && !node->handles && (node->dead || !node->lookups);
}

/* The next sweep frees the node, unless it is in use again by then. */
static void settle(struct nodes *nodes, struct node *node)
{
	if (node->idle || !unneeded(node))
		return;
	node->idle = true;
	node->next_idle = nodes->idle;
	nodes->idle = node;
}

static void free_idle(struct nodes *nodes)
{
	while (nodes->idle) {
		struct node *node = nodes->idle;
		nodes->idle = node->next_idle;
		node->idle = false;
		if (!unneeded(node))
			continue;
		struct node *parent = node->parent;
		node_free(nodes, node);
		parent->children--;
		settle(nodes, parent);
	}
}

/* The oldest node in a chain that nothing refers to. */
static struct node *evictable(struct node *chain)
{
	struct node *found = NULL;

	for (struct node *node = chain; node; node = node->next_by_id)
		if (node->parent && !node->children && !node->handles)
			found = node;
	return found;
}

/* A guest that never forgets (as gVisor) must not fill the table for ever. If the guest's kernel needs an evicted node
 * again, it looks the name up. */
static void evict_one(struct nodes *nodes)
{
	for (size_t i = 0; i < BUCKETS; i++) {
		struct node *node = evictable(nodes->by_id[nodes->evict_at++ % BUCKETS]);
		if (!node)
			continue;
		node->lookups = 0;
		settle(nodes, node);
		return;
	}
}

void nodes_sweep(struct nodes *nodes)
{
	free_idle(nodes);
	if (nodes->count >= nodes->limit) {
		evict_one(nodes);
		free_idle(nodes);
	}
}

int nodes_open(struct nodes *nodes, uint64_t root_inode, size_t limit)
{
	*nodes = (struct nodes){ .next_id = NODE_ROOT + 1, .limit = limit };
	nodes->by_id = calloc(BUCKETS, sizeof(*nodes->by_id));
	nodes->by_name = calloc(BUCKETS, sizeof(*nodes->by_name));
	if (nodes->by_id && nodes->by_name && node_new(nodes, NODE_ROOT, NULL, "", root_inode))
		return 0;
	nodes_close(nodes);
	return -1;
}

void nodes_close(struct nodes *nodes)
{
	for (size_t i = 0; nodes->by_id && i < BUCKETS; i++) {
		for (struct node *node = nodes->by_id[i], *next; node; node = next) {
			next = node->next_by_id;
			free(node->name);
			free(node);
		}
	}
	free(nodes->by_id);
	free(nodes->by_name);
	*nodes = (struct nodes){ 0 };
}

struct node *nodes_find(const struct nodes *nodes, uint64_t id)
{
	struct node *node = nodes->by_id[id_bucket(id)];

	while (node && node->id != id)
		node = node->next_by_id;
	return node;
}

static struct node *find_name(const struct nodes *nodes, struct node *parent, const char *name)
{
	struct node *node = nodes->by_name[name_bucket(parent, name)];

	while (node && !(node->parent == parent && strcmp(node->name, name) == 0))
		node = node->next_by_name;
	return node;
}

static void die(struct nodes *nodes, struct node *node)
{
	leave_name(nodes, node);
	node->dead = true;
	settle(nodes, node);
}

struct node *nodes_take(struct nodes *nodes, struct node *parent, const char *name, uint64_t inode)
{
	struct node *node = find_name(nodes, parent, name);

	if (node && node->inode != inode) {
		die(nodes, node);
		node = NULL;
	}
	if (!node && nodes->count < nodes->limit)
		node = node_new(nodes, nodes->next_id++, parent, name, inode);
	if (!node)
		errno = ENFILE;
	return node;
}

/* Puts "part" before the existing text, with a slash between them. */
static int prepend(char *path, size_t *at, const char *part)
{
	size_t size = strlen(part);

	if (size + 1 > *at) {
		errno = ENAMETOOLONG;
		return -1;
	}
	if (path[*at])
		path[--*at] = '/';
	while (size > 0)
		path[--*at] = part[--size];
	return 0;
}

int nodes_path(const struct node *node, const char *name, char *out)
{
	char path[VOLUME_PATH_MAX];
	size_t at = sizeof(path) - 1;

	path[at] = '\0';
	if (name && prepend(path, &at, name) < 0)
		return -1;
	/* Parents may form a ring if two sandboxes move directories at the same time: the length limit ends the
	 * loop. */
	for (; node->parent; node = node->parent) {
		if (node->dead) {
			errno = ESTALE;
			return -1;
		}
		if (prepend(path, &at, node->name) < 0)
			return -1;
	}
	memcpy(out, path + at, sizeof(path) - at);
	return 0;
}

void nodes_forget(struct nodes *nodes, uint64_t id, uint64_t lookups)
{
	struct node *node = nodes_find(nodes, id);

	if (!node)
		return;
	node->lookups -= MIN(lookups, node->lookups);
	settle(nodes, node);
}

void nodes_release(struct nodes *nodes, struct node *node)
{
	node->handles--;
	settle(nodes, node);
}

void nodes_removed(struct nodes *nodes, struct node *parent, const char *name)
{
	struct node *node = find_name(nodes, parent, name);

	if (node)
		die(nodes, node);
}

void nodes_renamed(struct nodes *nodes, struct node *from, const char *old_name, struct node *to, const char *new_name)
{
	struct node *node = find_name(nodes, from, old_name);
	char *name = node ? strdup(new_name) : NULL;

	if (node && find_name(nodes, to, new_name) == node) {
		free(name);
		return;
	}
	nodes_removed(nodes, to, new_name);
	if (node) {
		leave_name(nodes, node);
		from->children--;
		node->parent = to;
		to->children++;
		node->dead = !name; /* no memory for the name: the node is stale, which the guest's kernel can handle */
		if (name) {
			free(node->name);
			node->name = name;
			enter_name(nodes, node);
		}
		settle(nodes, node);
	}
	settle(nodes, from);
}

/* ---- across a restore ---- */

/* One node: id, parent, inode, lookups, then its name with a NUL. Integers are in host byte order: images are not moved
 * to other machines. */
int nodes_save(const struct nodes *nodes, struct buf *out)
{
	int bad = buf_append(out, &nodes->next_id, sizeof(nodes->next_id));

	for (size_t i = 0; i < BUCKETS; i++) {
		for (const struct node *node = nodes->by_id[i]; node; node = node->next_by_id) {
			if (!node->parent || node->dead)
				continue;
			uint64_t fixed[4] = { node->id, node->parent->id, node->inode, node->lookups };
			bad |= buf_append(out, fixed, sizeof(fixed));
			bad |= buf_append(out, node->name, strlen(node->name) + 1);
		}
	}
	return bad ? -1 : 0;
}

/* The fixed part and the name of the next node; 0 at the end. */
static int next_saved(const char *bytes, size_t size, size_t *at, uint64_t fixed[static 4], const char **name)
{
	size_t left = size - *at;

	if (left == 0)
		return 0;
	if (left <= 4 * sizeof(*fixed) || !memchr(bytes + *at + 4 * sizeof(*fixed), 0, left - 4 * sizeof(*fixed)))
		return -1;
	memcpy(fixed, bytes + *at, 4 * sizeof(*fixed));
	*name = bytes + *at + 4 * sizeof(*fixed);
	*at += 4 * sizeof(*fixed) + strlen(*name) + 1;
	return 1;
}

int nodes_load(struct nodes *nodes, const char *bytes, size_t size)
{
	struct node *root = nodes_find(nodes, NODE_ROOT);
	uint64_t fixed[4];
	const char *name;
	size_t at = sizeof(nodes->next_id);
	int more;

	if (size < at)
		return -1;
	memcpy(&nodes->next_id, bytes, at);
	/* First all nodes below the root, because a parent may come after its children. */
	while ((more = next_saved(bytes, size, &at, fixed, &name)) > 0) {
		if (fixed[0] <= NODE_ROOT || fixed[0] >= nodes->next_id || nodes->count >= nodes->limit || !*name ||
		    strchr(name, '/') || nodes_find(nodes, fixed[0]))
			return -1;
		struct node *node = node_new(nodes, fixed[0], root, name, fixed[2]);
		if (!node)
			return -1;
		node->lookups = fixed[3];
	}
	at = sizeof(nodes->next_id);
	while (more == 0 && next_saved(bytes, size, &at, fixed, &name) > 0) {
		struct node *node = nodes_find(nodes, fixed[0]), *parent = nodes_find(nodes, fixed[1]);
		if (!node || parent == root)
			continue;
		leave_name(nodes, node);
		node->dead = !parent;
		if (!parent)
			continue;
		root->children--;
		node->parent = parent;
		parent->children++;
		enter_name(nodes, node);
	}
	return more;
}
