/*
 * Copies changed memory into the next layer before a snapshot is taken, piece by piece, while the guest runs. So the pause
 * of a snapshot does not depend on how much has changed. A piece is copied and written first. Then the guest is paused for
 * a moment: pages of the piece that changed meanwhile are written again, and the layer replaces the pages in memory. Pages
 * that change later are anonymous again, and the next sweep or the snapshot finds them. Called by serve.c on the first
 * thread. The layer is not part of any image until a snapshot closes it, so its file may still change; but the content of a
 * page that is mapped from it must never change in the file.
 */
#include <sys/mman.h>

#include "vmm/vm.h"

#define WINDOW_PAGES 2048u /* examined at a time */
#define GAP_PAGES 8u       /* as in layers.c: one more unchanged page costs less than one more mapping */

int memory_ahead_open(struct memory *memory, int fd, struct husk_error *err)
{
	if (memory->open)
		return husk_fail(err, HUSK_CONFLICT, "a memory layer is open already");
	memory->layers[memory->layer_count++] = fd;
	memory->open = true;
	memory->open_bytes = memory->cursor = 0;
	return 0;
}

void memory_piece_free(struct memory_piece *piece)
{
	free(piece->list);
	piece->list = NULL;
	piece->count = piece->pages = 0;
}

/* ---- finding ---- */

struct window {
	const struct memory *memory;
	uint32_t layer;
	struct memory_list changed, zero;
	size_t run; /* cursor of memory_in_layer */
};

static int note_page(void *data, uint64_t page, bool written)
{
	struct window *window = data;

	if (!written)
		return 0;
	if (!memory_in_layer(window->memory, page, &window->run) && memory_page_is_zero(window->memory, page))
		return memory_list_add(&window->zero, page, 1, window->layer, 0);
	return memory_list_add(&window->changed, page, 1, window->layer, GAP_PAGES);
}

/* If there are too many layers, the pages of the layers between the oldest and the open one are moved too. */
static int add_middle(struct window *window, uint64_t from, uint64_t to)
{
	const struct memory *memory = window->memory;
	struct memory_list middle = { 0 };
	int result = 0;

	for (size_t i = 0; result == 0 && i < memory->run_count; i++) {
		const struct memory_run *run = &memory->runs[i];
		uint64_t start = MAX(run->page, from), end = MIN(run->page + run->count, to);

		if (run->layer > 0 && run->layer < window->layer && start < end)
			result = memory_list_add(&middle, start, end - start, window->layer, 0);
	}
	if (result == 0)
		result = memory_list_put_under(&window->changed, &middle);
	free(middle.runs);
	return result;
}

/* Takes as many of the sorted runs as fit. Returns the page after the last one taken. */
static uint64_t take_runs(struct memory_piece *piece, const struct window *window, uint64_t end)
{
	const struct memory_list *lists[] = { &window->changed, &window->zero };
	size_t at[2] = { 0 };

	while (at[0] < lists[0]->count || at[1] < lists[1]->count) {
		bool zero = at[0] == lists[0]->count ||
			    (at[1] < lists[1]->count && lists[1]->runs[at[1]].page < lists[0]->runs[at[0]].page);
		const struct memory_run *run = &lists[zero]->runs[at[zero]++];
		size_t room = PIECE_PAGES - piece->pages;

		if (piece->count == PIECE_RUNS || room == 0)
			return run->page;
		piece->runs[piece->count] = *run;
		piece->runs[piece->count].count = (uint32_t)MIN(run->count, room);
		piece->zero[piece->count++] = zero;
		piece->pages += MIN(run->count, room);
		if (run->count > room)
			return run->page + room;
	}
	return end;
}

static int look_through(struct memory *memory, struct memory_piece *piece, struct husk_error *err)
{
	uint64_t from = memory->cursor, to = MIN(from + WINDOW_PAGES, memory->size / PAGE_BYTES);
	struct window window = { .memory = memory, .layer = (uint32_t)memory->layer_count - 1 };
	int result = memory_visit_part(memory, from, to, note_page, &window, err);

	if (result == 0 && memory_must_squash(memory) && add_middle(&window, from, to) < 0)
		result = husk_fail_memory(err);
	if (result == 0)
		memory->cursor = take_runs(piece, &window, to);
	free(window.changed.runs);
	free(window.zero.runs);
	return result;
}

/* ---- copying ---- */

/* Memory's runs after the piece is adopted. A page of zeroes that joins two changed runs is in both lists, which is
 * harmless. */
static int plan(const struct memory *memory, struct memory_piece *piece, struct husk_error *err)
{
	struct memory_run kept[PIECE_RUNS];
	struct memory_list list = { 0 };
	size_t count = 0;

	for (size_t i = 0; i < piece->count; i++)
		if (!piece->zero[i])
			kept[count++] = piece->runs[i];
	if (memory_list_overlay(memory->runs, memory->run_count, kept, count, &list) < 0) {
		free(list.runs);
		return husk_fail_memory(err);
	}
	piece->list = list.runs;
	piece->list_count = list.count;
	return 0;
}

static int grow(struct memory *memory, const struct memory_piece *piece)
{
	uint64_t end = 0;

	for (size_t i = 0; i < piece->count; i++)
		if (!piece->zero[i])
			end = MAX(end, (piece->runs[i].page + piece->runs[i].count) * PAGE_BYTES);
	if (end <= memory->open_bytes)
		return 0;
	if (ftruncate(memory->layers[memory->layer_count - 1], (off_t)end) < 0)
		return -1;
	memory->open_bytes = end;
	return 0;
}

/* The guest may write there meanwhile: a torn page differs later, and is written again. */
static int copy_piece(struct memory *memory, struct memory_piece *piece, struct husk_error *err)
{
	uint8_t *copy = piece->copy;

	if (grow(memory, piece) < 0)
		return husk_fail_errno(err, "cannot size the memory layer");
	for (size_t i = 0; i < piece->count; i++) {
		uint64_t at = piece->runs[i].page * PAGE_BYTES, size = piece->runs[i].count * PAGE_BYTES;

		if (piece->zero[i])
			continue;
		memcpy(copy, memory->host + at, size);
		if (memory_write_layer(memory->layers[memory->layer_count - 1], copy, at, size) < 0)
			return husk_fail_errno(err, "cannot write guest memory");
		copy += size;
	}
	return 0;
}

int memory_ahead_find(struct memory *memory, struct memory_piece *piece, unsigned windows, struct husk_error *err)
{
	piece->count = piece->pages = 0;
	piece->list = NULL;
	/* Close to the limit of mappings, longer runs are needed: the snapshot finds them. */
	if (memory->run_count + 2 * PIECE_RUNS > MEMORY_RUNS_MAX)
		memory->cursor = memory->size / PAGE_BYTES;
	for (; windows > 0 && piece->count == 0 && memory->cursor < memory->size / PAGE_BYTES; windows--)
		if (look_through(memory, piece, err) < 0)
			return -1;
	if (piece->count == 0) {
		if (memory->cursor >= memory->size / PAGE_BYTES)
			memory->cursor = 0;
		return 0;
	}
	if (plan(memory, piece, err) < 0 || copy_piece(memory, piece, err) < 0) {
		memory_piece_free(piece);
		return -1;
	}
	return 0;
}

/* ---- adopting ---- */

static int write_changed(const struct memory *memory, const struct memory_run *run, const uint8_t *copy)
{
	for (uint64_t page = run->page; page < run->page + run->count; page++, copy += PAGE_BYTES) {
		uint64_t at = page * PAGE_BYTES;

		if (memcmp(memory->host + at, copy, PAGE_BYTES) != 0 &&
		    memory_write_layer(memory->layers[memory->layer_count - 1], memory->host + at, at, PAGE_BYTES) < 0)
			return -1;
	}
	return 0;
}

static void give_back_zeroes(const struct memory *memory, const struct memory_run *run)
{
	for (uint64_t page = run->page; page < run->page + run->count; page++)
		if (!memory_page_is_zero(memory, page))
			return;
	/* If the host refuses, the page just stays. */
	(void)!madvise(memory->host + run->page * PAGE_BYTES, run->count * PAGE_BYTES, MADV_DONTNEED);
}

int memory_ahead_adopt(struct memory *memory, struct memory_piece *piece, bool *lost, struct husk_error *err)
{
	const uint8_t *copy = piece->copy;
	int result = 0;

	*lost = false;
	for (size_t i = 0; i < piece->count; i++) {
		if (piece->zero[i])
			continue;
		if (write_changed(memory, &piece->runs[i], copy) < 0)
			return husk_fail_errno(err, "cannot write guest memory");
		copy += piece->runs[i].count * PAGE_BYTES;
	}
	for (size_t i = 0; i < piece->count; i++) {
		const struct memory_run *run = &piece->runs[i];

		if (piece->zero[i]) {
			give_back_zeroes(memory, run);
			continue;
		}
		/* A refused mapping leaves the pages and their content as they are. If the host has removed the old
		 * mapping first, the next line finds the hole. */
		bool mapped = memory_map_run(memory, run, NULL) == 0;
		if (memory_set_part_apart(memory, run->page * PAGE_BYTES, run->count * PAGE_BYTES, err) < 0) {
			*lost |= !mapped;
			result = -1;
		}
	}
	free(memory->runs);
	memory->runs = steal_pointer(piece->list);
	memory->run_count = piece->list_count;
	return result;
}

/* ---- with a machine ---- */

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Moves one piece. *busy: a device had a request in progress that must not be waited for; the piece is found again
 * later. */
static int bring_over(struct vm *vm, struct memory_piece *piece, bool *busy, uint64_t *held, struct husk_error *err)
{
	bool running = vm->stage == VM_RUNNING, lost = false;
	uint64_t begin = now_ns();

	if (running && !vm_try_hold(vm)) {
		*busy = true;
		vm->memory.cursor = piece->runs[0].page;
		return 0;
	}
	int result = memory_ahead_adopt(&vm->memory, piece, &lost, err);
	if (lost)
		vm_end(vm, HUSK_INTERNAL, "cannot go on after a part of a snapshot: %s", err->message);
	else if (running)
		vm_release(vm);
	*held = MAX(*held, now_ns() - begin);
	return result;
}

int ahead_step(struct vm *vm, uint64_t most, uint64_t done[static CONTROL_VALUES], struct husk_error *err)
{
	cleanup_free struct memory_piece *piece = malloc(sizeof(*piece));
	bool busy = false;

	if (!piece)
		return husk_fail_memory(err);
	if (!vm->memory.open)
		return husk_fail(err, HUSK_CONFLICT, "no memory layer is open: give one");
	do {
		if (memory_ahead_find(&vm->memory, piece, AHEAD_WINDOWS, err) < 0)
			return -1;
		if (piece->count == 0)
			break;
		int result = bring_over(vm, piece, &busy, &done[AHEAD_HELD], err);
		done[AHEAD_PAGES] += busy || result < 0 ? 0 : piece->pages;
		memory_piece_free(piece);
		if (result < 0)
			return -1;
	} while (!busy && done[AHEAD_PAGES] < most);
	done[AHEAD_SWEPT] = !busy && vm->memory.cursor == 0;
	done[AHEAD_BUSY] = busy;
	return 0;
}
