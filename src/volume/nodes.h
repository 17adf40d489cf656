/*
 * The numbers by which a guest's kernel names what it has seen of a volume, and the names behind them. A node is a name in
 * a directory and the inode that was found there: it is opened by its path each time, so that a supervisor which takes
 * over a restored guest can go on with nothing but this table. What is no longer what it was (removed or replaced by
 * another sandbox) is ESTALE. Numbers are never given twice. Bounded: the guest decides what is looked up.
 *
 * A node is freed in one function only, nodes_sweep, which the server calls between two requests. So a pointer to a node
 * is good until the end of the request that found it, whatever that request does to the table; a handle keeps its node
 * longer, by node->handles.
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
	uint64_t lookups; /* the guest's kernel counts them too, and says when it forgets */
	struct node *next_idle;
	uint32_t children, handles;
	bool dead; /* its name is gone, or somebody else's */
	bool idle; /* on the list of those that the next sweep looks at */
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
/* Frees what nothing needs any more, and in a full table one more node, so that a request finds room. Nobody may hold a
 * pointer to a node but by its handles. */
void nodes_sweep(struct nodes *nodes);
struct node *nodes_find(const struct nodes *nodes, uint64_t id);
/* The node of this name with this inode, made when there is none; another inode there before is dead. NULL: no memory,
 * or no room. */
struct node *nodes_take(struct nodes *nodes, struct node *parent, const char *name, uint64_t inode);
/* Its path from the root into out[VOLUME_PATH_MAX], with `name` (NULL: none) behind it. -1 with errno. */
int nodes_path(const struct node *node, const char *name, char *out);
/* The guest forgot that many lookups of it. */
void nodes_forget(struct nodes *nodes, uint64_t id, uint64_t lookups);
/* A handle of it was closed. */
void nodes_release(struct nodes *nodes, struct node *node);
/* The name is gone. */
void nodes_removed(struct nodes *nodes, struct node *parent, const char *name);
void nodes_renamed(struct nodes *nodes, struct node *from, const char *old_name, struct node *to, const char *new_name);

/* The whole table as bytes, and back. Refuses bytes that make no sense. */
int nodes_save(const struct nodes *nodes, struct buf *out);
int nodes_load(struct nodes *nodes, const char *bytes, size_t size);

#endif
