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
	int pagemap; /* of this process */
};

/* Reserves address space; no page is used before it is touched. */
int memory_create(struct memory *memory, uint64_t size, struct husk_error *err);
void memory_free(struct memory *memory);
/* Secrets of the guest must not end up in a core file, nor be shared by a stray fork: said of all of it, also of what was
 * mapped since. An error when a part of it is not mapped at all. */
int memory_set_apart(const struct memory *memory, struct husk_error *err);

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
	uint64_t pages;
	struct memory_run *runs;
	size_t run_count;
	bool squash; /* the new layer holds everything but the oldest: layers in between are not needed any more */
};
int memory_delta_find(const struct memory *memory, struct memory_delta *out, struct husk_error *err);
int memory_delta_write(const struct memory *memory, const struct memory_delta *delta, int fd, struct husk_error *err);
/* The written layer takes the place of the changed pages here too. Takes over the descriptor and the delta's runs. */
int memory_delta_adopt(struct memory *memory, struct memory_delta *delta, int fd, struct husk_error *err);
void memory_delta_free(struct memory_delta *delta);
/* Calls back for each page that is there, in order: `written` when it is this machine's alone. */
int memory_visit(const struct memory *memory, int (*visit)(void *data, uint64_t page, bool written), void *data,
		 struct husk_error *err);
/* Bytes of memory that are this machine's alone. */
int memory_private_bytes(const struct memory *memory, uint64_t *out, struct husk_error *err);

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
