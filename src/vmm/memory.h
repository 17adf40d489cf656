/*
 * Guest memory, and the only ways to access it. The guest is hostile: every address it gives is checked by memory_at,
 * address and length together. The content can change at any moment, so callers copy a structure once (memory_read) and
 * use the copy.
 *
 * The guest sees [0, 3 GiB) and, if it has more, the rest from 4 GiB on; in this process all of it is one mapping.
 *
 * A list of runs says where pages come from: runs of a layer file are mapped copy-on-write, all other pages are
 * anonymous. A written page is anonymous, which is how a snapshot finds changes.
 */
#ifndef HUSK_VMM_MEMORY_H
#define HUSK_VMM_MEMORY_H

#include "base/base.h"
#include "vmm/control.h"

#define PAGE_BYTES 4096ull
#define MEMORY_HOLE 0xC0000000ull  /* devices live here … */
#define MEMORY_HIGH 0x100000000ull /* … up to here */
#define MEMORY_RUNS_MAX 24576      /* each costs a mapping, and the host allows a process 65,530 */

/* Pages [page, page + count) of memory come from this layer's file, at the same offset. */
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
	int pagemap; /* of this process */
	bool open;   /* the newest layer is not part of an image yet: ahead.c and the next snapshot write to it */
	uint64_t open_bytes; /* the size of its file */
	uint64_t cursor;     /* where the search for the next piece starts */
};

/* Reserves address space; no page is used before it is touched. */
int memory_create(struct memory *memory, uint64_t size, struct husk_error *err);
void memory_free(struct memory *memory);
/* Secrets of the guest must not get into a core file, or be shared by an accidental fork. Applies to all of memory,
 * including parts mapped later. Fails if a part is not mapped at all. */
int memory_set_apart(const struct memory *memory, struct husk_error *err);
int memory_set_part_apart(const struct memory *memory, uint64_t at, uint64_t size, struct husk_error *err);

/* The bytes at a guest address. NULL unless all `size` bytes are memory, on one side of the hole. */
void *memory_at(const struct memory *memory, uint64_t address, uint64_t size);
int memory_read(const struct memory *memory, uint64_t address, void *out, size_t size);
int memory_write(const struct memory *memory, uint64_t address, const void *data, size_t size);

/* Returns pages to the host; the guest then reads zeroes or the layer's content there. Partial pages are kept. */
void memory_discard(const struct memory *memory, uint64_t address, uint64_t size);

/* ---- layers.c ---- */

/* Takes ownership of the descriptor of the next layer. */
int memory_add_layer(struct memory *memory, int fd, struct husk_error *err);
/* Checks the runs (from a file that may be damaged) and maps them. Takes ownership of `runs`. */
int memory_map_runs(struct memory *memory, struct memory_run *runs, size_t count, struct husk_error *err);

/* What a snapshot would write: the changed pages as runs of layer `layer`, and the resulting list of runs. */
struct memory_delta {
	struct memory_run *changed;
	size_t changed_count;
	uint32_t layer; /* its number */
	uint64_t pages; /* in the written layer: the changed pages, and those that an open layer already has */
	struct memory_run *runs;
	size_t run_count;
	bool squash; /* the new layer contains all but the oldest layer: those in between are not needed any more */
};
int memory_delta_find(const struct memory *memory, struct memory_delta *out, struct husk_error *err);
int memory_delta_write(const struct memory *memory, const struct memory_delta *delta, int fd, struct husk_error *err);
/* Replaces the changed pages by the written layer in this machine too. Takes ownership of the descriptor and the
 * delta's runs. If a layer is already open, that one is written and kept, and the descriptor is closed. */
int memory_delta_adopt(struct memory *memory, struct memory_delta *delta, int fd, struct husk_error *err);
void memory_delta_free(struct memory_delta *delta);
/* Calls back for each present page, in order. `written`: only this machine has the page. */
int memory_visit(const struct memory *memory, int (*visit)(void *data, uint64_t page, bool written), void *data,
		 struct husk_error *err);
/* Bytes of memory that only this machine has. */
int memory_private_bytes(const struct memory *memory, uint64_t *out, struct husk_error *err);

/* ---- ahead.c: moves changed pages into the next layer piece by piece, while the guest runs ---- */

#define PIECE_PAGES 256u /* 1 MiB: moved per stop of the guest */
#define PIECE_RUNS 64u

/* Starts the next layer; takes ownership of the descriptor. Fails if a layer is already open. */
int memory_ahead_open(struct memory *memory, int fd, struct husk_error *err);

/* Some changed pages and their copy. Pages of zeroes without a layer below need no copy: they are returned to the
 * host. */
struct memory_piece {
	struct memory_run runs[PIECE_RUNS];
	bool zero[PIECE_RUNS];
	size_t count, pages;
	struct memory_run *list; /* memory's runs once this piece is in the layer */
	size_t list_count;
	uint8_t copy[PIECE_PAGES * PAGE_BYTES];
};
/* Finds the next piece from the cursor on, copies it and writes it to the open layer while the guest runs. Finds no
 * piece (count 0) if `windows` parts of memory were searched, or at the end of memory, where the cursor becomes 0. */
int memory_ahead_find(struct memory *memory, struct memory_piece *piece, unsigned windows, struct husk_error *err);
/* While the guest is stopped: writes the pages again that it has changed since, and replaces the piece by the layer.
 * After an error the content of memory is unchanged, unless *lost: then a part is no longer mapped. */
int memory_ahead_adopt(struct memory *memory, struct memory_piece *piece, bool *lost, struct husk_error *err);
void memory_piece_free(struct memory_piece *piece);

/* ---- layers.c, for ahead.c ---- */

struct memory_list {
	struct memory_run *runs;
	size_t count, capacity;
};
/* Adds a run at the end. Joins it with the last run if it continues there, or if at most `gap` pages lie between, which
 * are included. */
int memory_list_add(struct memory_list *list, uint64_t page, uint64_t count, uint32_t layer, uint64_t gap);
/* `over` lies on top of `under`: of `under` only uncovered pages are kept. */
int memory_list_overlay(const struct memory_run *under, size_t under_count, const struct memory_run *over,
			size_t over_count, struct memory_list *out);
/* The same, where `list` is on top and receives the result. */
int memory_list_put_under(struct memory_list *list, const struct memory_list *under);
bool memory_page_is_zero(const struct memory *memory, uint64_t page);
/* True if the page is in a layer. *at is a cursor in memory's runs: 0 at first, for pages in order. */
bool memory_in_layer(const struct memory *memory, uint64_t page, size_t *at);
/* As memory_visit, for the pages [from, to). */
int memory_visit_part(const struct memory *memory, uint64_t from, uint64_t to,
		      int (*visit)(void *data, uint64_t page, bool written), void *data, struct husk_error *err);
int memory_map_run(const struct memory *memory, const struct memory_run *run, struct husk_error *err);
/* All of `size` bytes; 0, or -1 with errno. */
int memory_write_layer(int fd, const void *data, uint64_t at, uint64_t size);
/* True if there are so many closed layers that the next one must contain all except the oldest. */
bool memory_must_squash(const struct memory *memory);

/* ---- prefetch.c ---- */

#define TOUCHED_RUNS_MAX 4096u
#define TOUCHED_PAGES_MAX (16384u) /* 64 MiB */

/* Pages that a guest needed before its first answer; the layout is part of the image. */
struct memory_touched {
	uint64_t page;
	uint32_t count;
	uint32_t written; /* the guest changed them: they are also copied in advance */
};
/* The pages touched since they were mapped, up to a limit; the caller frees the list. */
int memory_touched_find(const struct memory *memory, struct memory_touched **out, size_t *count,
			struct husk_error *err);
/* Loads these pages; invalid runs are skipped. Returns how many pages. */
uint64_t memory_prefetch(const struct memory *memory, const struct memory_touched *runs, size_t count);

#endif
