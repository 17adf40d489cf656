/*
 * The node numbers that a guest's kernel uses for entries of a volume, and the names behind them. A node is a name in a
 * directory and the inode that was found there. It is opened by its path each time, so a supervisor that takes over a
 * restored guest needs only this table. If another sandbox has removed or replaced the entry, using the node fails with
 * ESTALE. Numbers are never reused. The table is bounded, because the guest decides what is looked up.
 *
 * A node is freed in one function only, nodes_sweep, which the server calls between two requests. So a pointer to a
 * node is valid until the end of the request that found it. A handle keeps its node longer, by node->handles.
 */
#ifndef HUSK_VOLUME_NODES_H
#define HUSK_VOLUME_NODES_H

#include "base/base.h"

#define NODE_ROOT 1u

struct node {
	struct node *next_by_id, *next_by_name;
	uint64_t id;
	struct node *parent; /* NULL: the root */
	uint64_t inode;
	uint64_t lookups; /* the guest's kernel counts them too, and reports when it forgets */
	struct node *next_idle;
	uint32_t children, handles;
	bool dead; /* its name was removed, or belongs to another file */
	bool idle; /* on the list that the next sweep checks */
	char *name;
};

struct nodes {
	struct node **by_id, **by_name;
	uint64_t next_id;
	struct node *idle;
	size_t count, limit, evict_at;
};

int nodes_open(struct nodes *nodes, uint64_t root_inode, size_t limit);
void nodes_close(struct nodes *nodes);
/* Frees the nodes that are no longer needed. If the table is full, frees one more, so that a request finds room. No
 * pointer to a node may be held except by handles. */
void nodes_sweep(struct nodes *nodes);
struct node *nodes_find(const struct nodes *nodes, uint64_t id);
/* The node with this name and inode, created if missing. An older node of this name with another inode becomes dead.
 * NULL: no memory, or the table is full. */
struct node *nodes_take(struct nodes *nodes, struct node *parent, const char *name, uint64_t inode);
/* Writes the node's path from the root into out[VOLUME_PATH_MAX], followed by `name` (NULL: none). -1 with errno. */
int nodes_path(const struct node *node, const char *name, char *out);
/* The guest forgot that many lookups of the node. */
void nodes_forget(struct nodes *nodes, uint64_t id, uint64_t lookups);
/* A handle of the node was closed. */
void nodes_release(struct nodes *nodes, struct node *node);
/* The name was removed. */
void nodes_removed(struct nodes *nodes, struct node *parent, const char *name);
void nodes_renamed(struct nodes *nodes, struct node *from, const char *old_name, struct node *to, const char *new_name);

/* The whole table as bytes, and back. Malformed bytes are refused. */
int nodes_save(const struct nodes *nodes, struct buf *out);
int nodes_load(struct nodes *nodes, const char *bytes, size_t size);

#endif
