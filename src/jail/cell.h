/*
 * A cell: the jail for one step in building a root image. Such a step parses what a stranger wrote (tars, layers, trees of
 * files) and has to be root over the files it makes, of 65,536 owners. So it is root of a user namespace of its own
 * that maps them to host uids which own nothing else, and for the rest it is locked up as the leash is: an empty root with
 * only the files it was given, no network, no process but its own, four capabilities over its own files, limits, and a
 * list of system calls.
 *
 *     husk builder ──cell_run──> pid 1 of the cell: root, then inside(data)
 *
 * For a process without threads: it forks and goes on in the child without exec.
 */
#ifndef HUSK_JAIL_CELL_H
#define HUSK_JAIL_CELL_H

#include "base/base.h"

#define CELL_IDS 65536u

/* A file or a directory of the host, without what is mounted below it, as it is called inside. */
struct cell_file {
	const char *from, *to;
	enum { CELL_READ, CELL_WRITE, CELL_DEVICE, CELL_LINK } how; /* a symbolic link is copied as one */
};

struct cell {
	uint32_t uid_base;             /* the first of CELL_IDS host uids and gids of its own */
	const struct cell_file *files; /* the last has no `from` */
	uint64_t memory_bytes;         /* address space; 0: no limit but the cgroup's */
	uint64_t file_bytes;           /* the largest file it may write */
	unsigned cpu_seconds;
	bool executes; /* it will become another program, one of `files` */
	bool installs; /* it puts a system together from packages: has the host's network, a /proc, and may mount and start
			* programs in its own namespaces; no list of system calls */
};

/* Runs `inside` in a cell and waits for its end: what it returned (0 to 255), or -1 when the cell could not be made, or did
 * not end by itself. The cell has the caller's standard descriptors and no others. It ends with the caller. */
int cell_run(const struct cell *cell, int (*inside)(void *data), void *data, struct husk_error *err);

#endif
