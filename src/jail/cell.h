/*
 * A cell: the jail for one step in building a root image. Such a step parses untrusted input (tars, layers, trees of
 * files) and must be root over the files it makes, of 65,536 owners. So it is root of its own user namespace, which
 * maps these owners to host uids that own nothing else. Otherwise it is jailed like the leash: an empty root with only
 * the given files, no network, no processes except its own, four capabilities over its own files, limits, and a list of
 * system calls.
 *
 *     husk builder ──cell_run──> pid 1 of the cell: root, then inside(data)
 *
 * The caller must have no other threads: the cell forks and continues in the child without exec.
 */
#ifndef HUSK_JAIL_CELL_H
#define HUSK_JAIL_CELL_H

#include "base/base.h"

#define CELL_IDS 65536u

/* A file or a directory of the host, without mounts below it, and its path inside. */
struct cell_file {
	const char *from, *to;
	enum { CELL_READ, CELL_WRITE, CELL_DEVICE, CELL_LINK } how; /* a symbolic link is copied as one */
};

struct cell {
	uint32_t uid_base;             /* the first of CELL_IDS host uids and gids that only this cell uses */
	const struct cell_file *files; /* the last has no `from` */
	uint64_t memory_bytes;         /* address space; 0: only the cgroup's limit */
	uint64_t file_bytes;           /* the largest file it may write */
	unsigned cpu_seconds;
	bool executes; /* it will exec another program, one of `files` */
	/* It installs packages: has the host's network and a /proc, and may mount and start programs in its own namespaces;
	 * no list of system calls. */
	bool installs;
};

/* Runs `inside` in a cell and waits for its end. Returns its result (0 to 255), or -1 if the cell could not be made or
 * was killed. The cell has only the caller's standard descriptors. It ends with the caller. */
int cell_run(const struct cell *cell, int (*inside)(void *data), void *data, struct husk_error *err);

#endif
