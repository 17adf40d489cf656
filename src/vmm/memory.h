/*
 * Guest memory, and the only ways to reach it. The guest is hostile: every address it gives passes memory_at, which
 * checks address and length together. What is found there can change at any moment, so callers copy a structure once
 * (memory_read) and use the copy.
 *
 * The guest sees [0, 3 GiB) and, if it has more, the rest from 4 GiB on; in this process all of it is one mapping.
 *
 * Where its pages come from is a list of runs: those of a layer file are mapped copy-on-write, the rest is anonymous.
 * A page that was written to is anonymous, which is how a snapshot finds what has changed.
 */
#ifndef HUSK_VMM_MEMORY_H
#define HUSK_VMM_MEMORY_H

#include "base/base.h"
#include "vmm/control.h"

#define PAGE_BYTES 4096ull
#define MEMORY_HOLE 0xC0000000ull  /* devices live here … */
#define MEMORY_HIGH 0x100000000ull /* … up to here */
#define MEMORY_RUNS_MAX 24576      /* each costs a mapping, and the host allows a process 65,530 */

/* Pages [page, page + count) of memory are those of this layer's file, at the same place in it. */
struct memory_run {
	uint64_t page;
	uint32_t count;
	uint32_t layer;
};

struct memory {
	uint8_t *host;
	uint64_t size;
	uint64_t low; /* bytes below the hole */
	int layers[VMM_LAYERS_MAX + 1];
	size_t layer_count;
	struct memory_run *runs; /* sorted, none overlapping */
	size_t run_count;
	int pagemap;         /* of this process */
	bool open;           /* the newest layer is part of no image yet: ahead.c and the next snapshot write to it */
	uint64_t open_bytes; /* the size of its file */
	uint64_t cursor;     /* the page where the next piece of it is looked for */
};

/* Reserves address space; no page is used before it is touched. */
int memory_create(struct memory *memory, uint64_t size, struct husk_error *err);
void memory_free(struct memory *memory);
/* Secrets of the guest must not end up in a core file, nor be shared by a stray fork: said of all of it, also of what was
 * mapped since. An error when a part of it is not mapped at all. */
int memory_set_apart(const struct memory *memory, struct husk_error *err);
int memory_set_part_apart(const struct memory *memory, uint64_t at, uint64_t size, struct husk_error *err);

/* The bytes at a guest address, or NULL unless all `size` of them are memory, on one side of the hole. */
void *memory_at(const struct memory *memory, uint64_t address, uint64_t size);
int memory_read(const struct memory *memory, uint64_t address, void *out, size_t size);
int memory_write(const struct memory *memory, uint64_t address, const void *data, size_t size);

/* Gives pages back to the host; the guest finds something else or zeroes there. Partial pages are left alone. */
void memory_discard(const struct memory *memory, uint64_t address, uint64_t size);

/* ---- layers.c ---- */

/* Takes over the descriptor of the next layer. */
int memory_add_layer(struct memory *memory, int fd, struct husk_error *err);
/* Checks the runs (from a file that may be damaged) and maps them. Takes over `runs`. */
int memory_map_runs(struct memory *memory, struct memory_run *runs, size_t count, struct husk_error *err);

/* What a snapshot would write: the changed pages as runs of layer `layer`, and the list of runs as it will be then. */
struct memory_delta {
	struct memory_run *changed;
	size_t changed_count;
	uint32_t layer; /* its number */
	uint64_t pages; /* in the layer that is written: those, and what an open one holds already */
	struct memory_run *runs;
	size_t run_count;
	bool squash; /* the new layer holds everything but the oldest: layers in between are not needed any more */
};
int memory_delta_find(const struct memory *memory, struct memory_delta *out, struct husk_error *err);
int memory_delta_write(const struct memory *memory, const struct memory_delta *delta, int fd, struct husk_error *err);
/* The written layer takes the place of the changed pages here too. Takes over the descriptor and the delta's runs. With a
 * layer that is open already, that one is written and kept, and the descriptor is closed. */
int memory_delta_adopt(struct memory *memory, struct memory_delta *delta, int fd, struct husk_error *err);
void memory_delta_free(struct memory_delta *delta);
/* Calls back for each page that is there, in order: `written` when it is this machine's alone. */
int memory_visit(const struct memory *memory, int (*visit)(void *data, uint64_t page, bool written), void *data,
		 struct husk_error *err);
/* Bytes of memory that are this machine's alone. */
int memory_private_bytes(const struct memory *memory, uint64_t *out, struct husk_error *err);

/* ---- ahead.c: what has changed goes into the next layer piece by piece, while the guest runs ---- */

#define PIECE_PAGES 256u /* 1 MiB: what is brought over while the guest stands still once */
#define PIECE_RUNS 64u

/* Starts the next layer; takes the descriptor over. One that is open already is an error. */
int memory_ahead_open(struct memory *memory, int fd, struct husk_error *err);

/* Some changed pages and their copy. Pages of zeroes over nothing need none: they are given back to the host. */
struct memory_piece {
	struct memory_run runs[PIECE_RUNS];
	bool zero[PIECE_RUNS];
	size_t count, pages;
	struct memory_run *list; /* memory's runs, as they are with this piece in the layer */
	size_t list_count;
	uint8_t copy[PIECE_PAGES * PAGE_BYTES];
};
/* Finds the next piece from the cursor on, copies it and writes it to the open layer, with the guest at work. No piece (count
 * 0) when `windows` parts of memory were looked through, or the end was reached: the cursor is 0 then. */
int memory_ahead_find(struct memory *memory, struct memory_piece *piece, unsigned windows, struct husk_error *err);
/* With the guest standing still: what it has changed since is written again, and the layer takes the place of the piece.
 * An error leaves the content of memory as it was, unless *lost says that a part of it is not mapped any more. */
int memory_ahead_adopt(struct memory *memory, struct memory_piece *piece, bool *lost, struct husk_error *err);
void memory_piece_free(struct memory_piece *piece);

/* ---- layers.c, for ahead.c ---- */

struct memory_list {
	struct memory_run *runs;
	size_t count, capacity;
};
/* Adds at the end; joins the last one when it goes on there, or nearly (`gap` pages are then taken along). */
int memory_list_add(struct memory_list *list, uint64_t page, uint64_t count, uint32_t layer, uint64_t gap);
/* `over` lies on top of `under`: of that only what it leaves uncovered is kept. */
int memory_list_overlay(const struct memory_run *under, size_t under_count, const struct memory_run *over,
			size_t over_count, struct memory_list *out);
/* The same where `list` is the one on top, and becomes both. */
int memory_list_put_under(struct memory_list *list, const struct memory_list *under);
bool memory_page_is_zero(const struct memory *memory, uint64_t page);
/* Is the page one of a layer? *at is a cursor in memory's runs: 0 at first, for pages in order. */
bool memory_in_layer(const struct memory *memory, uint64_t page, size_t *at);
/* As memory_visit, for the pages [from, to). */
int memory_visit_part(const struct memory *memory, uint64_t from, uint64_t to,
		      int (*visit)(void *data, uint64_t page, bool written), void *data, struct husk_error *err);
int memory_map_run(const struct memory *memory, const struct memory_run *run, struct husk_error *err);
/* All of `size` bytes; 0, or -1 with errno. */
int memory_write_layer(int fd, const void *data, uint64_t at, uint64_t size);
/* Are the closed layers so many that the next one holds all of them but the oldest? */
bool memory_must_squash(const struct memory *memory);

/* ---- prefetch.c ---- */

#define TOUCHED_RUNS_MAX 4096u
#define TOUCHED_PAGES_MAX (16384u) /* 64 MiB */

/* Pages that a guest needed before its first answer; the layout is part of the image. */
struct memory_touched {
	uint64_t page;
	uint32_t count;
	uint32_t written; /* it changed them: they are copied ahead too */
};
/* What has been touched since it was mapped, at most so much; the list is the caller's to free. */
int memory_touched_find(const struct memory *memory, struct memory_touched **out, size_t *count,
			struct husk_error *err);
/* Has it ready; what makes no sense is left out. How many pages. */
uint64_t memory_prefetch(const struct memory *memory, const struct memory_touched *runs, size_t count);

#endif
