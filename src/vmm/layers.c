/*
 * Where guest memory comes from and which pages have changed: maps the runs of layer files copy-on-write, finds the
 * pages that differ from them, and writes those as the next layer. Called by snapshot.c and restore.c while the machine
 * is paused. A layer file in use must never change; nothing here writes to one after it was adopted.
 *
 * Example: eight pages of a guest, restored from layer 0, then snapshotted twice.
 *
 *     page            0 1 2 3 4 5 6 7
 *     restored        0 0 0 0 0 0 0 0      one run of layer 0, mapped private
 *     guest writes        x x              the kernel gives pages 2 and 3 anonymous copies
 *     1st snapshot    0 0 1 1 0 0 0 0      both become layer 1; three runs, all mapped from files again
 *     guest writes            x            page 4 is anonymous
 *     2nd snapshot    0 0 1 1 2 0 0 0      layer 2 holds one page; layers 0 and 1 are as they were
 */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "vmm/memory.h"

#define PAGEMAP_CHUNK 8192 /* pages per read: 64 KiB of entries */
#define PAGEMAP_PRESENT (1ull << 63)
#define PAGEMAP_SWAPPED (1ull << 62)
#define PAGEMAP_FILE (1ull << 61)
/* Runs closer than this are written as one: one more unchanged page costs less than one more mapping. */
#define GAP_PAGES 8u

int memory_add_layer(struct memory *memory, int fd, struct husk_error *err)
{
	if (memory->layer_count >= VMM_LAYERS_MAX)
		return husk_fail(err, HUSK_LIMIT, "more than %d memory layers", VMM_LAYERS_MAX);
	memory->layers[memory->layer_count++] = fd;
	return 0;
}

/* ---- mapping ---- */

static int check_runs(const struct memory *memory, const struct memory_run *runs, size_t count, struct husk_error *err)
{
	uint64_t next = 0, pages = memory->size / PAGE_BYTES;
	uint64_t end[VMM_LAYERS_MAX] = { 0 };
	struct stat st;

	if (count > MEMORY_RUNS_MAX)
		return husk_fail(err, HUSK_INVALID, "%zu runs of memory, at most %d can be mapped", count,
				 MEMORY_RUNS_MAX);
	for (size_t i = 0; i < count; i++) {
		if (runs[i].page < next || runs[i].count == 0 || runs[i].page >= pages ||
		    runs[i].count > pages - runs[i].page || runs[i].layer >= memory->layer_count)
			return husk_fail(err, HUSK_INVALID, "run %zu of memory makes no sense", i);
		next = runs[i].page + runs[i].count;
		end[runs[i].layer] = next * PAGE_BYTES;
	}
	/* A mapping past the end of its file would raise SIGBUS at the guest's first access. */
	for (size_t i = 0; i < memory->layer_count; i++) {
		if (fstat(memory->layers[i], &st) < 0)
			return husk_fail_errno(err, "cannot look at memory layer %zu", i);
		if ((uint64_t)st.st_size < end[i])
			return husk_fail(err, HUSK_INVALID, "memory layer %zu is cut off: %lld bytes, not %llu", i,
					 (long long)st.st_size, (unsigned long long)end[i]);
	}
	return 0;
}

int memory_map_run(const struct memory *memory, const struct memory_run *run, struct husk_error *err)
{
	uint64_t at = run->page * PAGE_BYTES, size = run->count * PAGE_BYTES;
	void *mapped = mmap(memory->host + at, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE,
			    memory->layers[run->layer], (off_t)at);

	return mapped == MAP_FAILED
		       ? husk_fail_errno(err, "cannot map %llu pages of guest memory", (unsigned long long)run->count)
		       : 0;
}

int memory_map_runs(struct memory *memory, struct memory_run *runs, size_t count, struct husk_error *err)
{
	int result = check_runs(memory, runs, count, err);

	for (size_t i = 0; result == 0 && i < count; i++)
		result = memory_map_run(memory, &runs[i], err);
	if (result < 0 || memory_set_apart(memory, err) < 0) {
		free(runs);
		return -1;
	}
	free(memory->runs);
	memory->runs = runs;
	memory->run_count = count;
	return 0;
}

/* ---- lists of runs ---- */

int memory_list_add(struct memory_list *list, uint64_t page, uint64_t count, uint32_t layer, uint64_t gap)
{
	struct memory_run *last = list->count ? &list->runs[list->count - 1] : NULL;

	if (last && last->layer == layer && page - (last->page + last->count) <= gap &&
	    page + count - last->page <= UINT32_MAX) {
		last->count = (uint32_t)(page + count - last->page);
		return 0;
	}
	if (list->count == list->capacity) {
		size_t capacity = list->capacity ? 2 * list->capacity : 256;
		struct memory_run *bigger = reallocarray(list->runs, capacity, sizeof(*bigger));

		if (!bigger)
			return -1;
		list->runs = bigger;
		list->capacity = capacity;
	}
	list->runs[list->count++] = (struct memory_run){ .page = page, .count = (uint32_t)count, .layer = layer };
	return 0;
}

int memory_list_overlay(const struct memory_run *under, size_t under_count, const struct memory_run *over,
			size_t over_count, struct memory_list *out)
{
	size_t u = 0, o = 0;
	uint64_t from = 0; /* pages before this are done */

	while (u < under_count || o < over_count) {
		uint64_t start = u < under_count ? MAX(under[u].page, from) : UINT64_MAX;
		uint64_t end = u < under_count ? under[u].page + under[u].count : 0;

		if (o < over_count && over[o].page <= start) {
			if (memory_list_add(out, over[o].page, over[o].count, over[o].layer, 0) < 0)
				return -1;
			from = over[o].page + over[o].count;
			o++;
		} else {
			uint64_t stop = o < over_count ? MIN(end, over[o].page) : end;

			if (stop > start && memory_list_add(out, start, stop - start, under[u].layer, 0) < 0)
				return -1;
			from = MAX(from, stop);
		}
		while (u < under_count && under[u].page + under[u].count <= from)
			u++;
	}
	return 0;
}

int memory_list_put_under(struct memory_list *list, const struct memory_list *under)
{
	struct memory_list both = { 0 };

	if (memory_list_overlay(under->runs, under->count, list->runs, list->count, &both) < 0) {
		free(both.runs);
		return -1;
	}
	free(list->runs);
	*list = both;
	return 0;
}

/* ---- changed pages ---- */

bool memory_page_is_zero(const struct memory *memory, uint64_t page)
{
	const uint64_t *words = (const uint64_t *)(memory->host + page * PAGE_BYTES);

	for (size_t i = 0; i < PAGE_BYTES / sizeof(*words); i += 4)
		if (words[i] | words[i + 1] | words[i + 2] | words[i + 3])
			return false;
	return true;
}

bool memory_in_layer(const struct memory *memory, uint64_t page, size_t *at)
{
	while (*at < memory->run_count && memory->runs[*at].page + memory->runs[*at].count <= page)
		(*at)++;
	return *at < memory->run_count && memory->runs[*at].page <= page;
}

int memory_visit_part(const struct memory *memory, uint64_t from, uint64_t to,
		      int (*visit)(void *data, uint64_t page, bool written), void *data, struct husk_error *err)
{
	cleanup_free uint64_t *entries = malloc(PAGEMAP_CHUNK * sizeof(*entries));
	uint64_t first = (uintptr_t)memory->host / PAGE_BYTES;

	if (!entries)
		return husk_fail_memory(err);
	for (uint64_t at = from; at < to; at += PAGEMAP_CHUNK) {
		size_t count = (size_t)MIN(PAGEMAP_CHUNK, to - at), size = count * sizeof(*entries);

		if (pread(memory->pagemap, entries, size, (off_t)((first + at) * sizeof(*entries))) != (ssize_t)size)
			return husk_fail_errno(err, "cannot read the page map");
		for (size_t i = 0; i < count; i++) {
			/* A page that was written to is anonymous. */
			bool written = (entries[i] & PAGEMAP_PRESENT && !(entries[i] & PAGEMAP_FILE)) ||
				       entries[i] & PAGEMAP_SWAPPED;

			if ((written || entries[i] & PAGEMAP_PRESENT) && visit(data, at + i, written) < 0)
				return husk_fail_memory(err);
		}
	}
	return 0;
}

int memory_visit(const struct memory *memory, int (*visit)(void *data, uint64_t page, bool written), void *data,
		 struct husk_error *err)
{
	return memory_visit_part(memory, 0, memory->size / PAGE_BYTES, visit, data, err);
}

/* Layers that are part of an image: all except an open one. */
static size_t closed_layers(const struct memory *memory)
{
	return memory->layer_count - memory->open;
}

bool memory_must_squash(const struct memory *memory)
{
	return closed_layers(memory) >= VMM_LAYERS_MAX;
}

struct search {
	const struct memory *memory;
	struct memory_list changed;
	uint32_t layer;
	uint64_t gap;
	size_t run; /* cursor of memory_in_layer */
};

/* A page of zeroes without a layer below counts as absent: the guest has only read or cleared it. */
static int note_changed(void *data, uint64_t page, bool written)
{
	struct search *search = data;

	if (!written)
		return 0;
	if (!memory_in_layer(search->memory, page, &search->run) && memory_page_is_zero(search->memory, page))
		return 0;
	return memory_list_add(&search->changed, page, 1, search->layer, search->gap);
}

/* With a squash, everything outside the oldest and the open layer counts as changed. */
static int add_middle_layers(struct search *search)
{
	const struct memory *memory = search->memory;
	struct memory_list middle = { 0 };
	int result = 0;

	for (size_t i = 0; result == 0 && i < memory->run_count; i++)
		if (memory->runs[i].layer > 0 && memory->runs[i].layer < closed_layers(memory))
			result =
				memory_list_add(&middle, memory->runs[i].page, memory->runs[i].count, search->layer, 0);
	if (result == 0)
		result = memory_list_put_under(&search->changed, &middle);
	free(middle.runs);
	return result;
}

/* Memory's runs with the changed ones on top. An open layer has the number that the written layer will have. */
static int overlay_changed(const struct search *search, struct memory_list *out)
{
	const struct memory *memory = search->memory;
	struct memory_list under = { 0 };
	int result = 0;

	for (size_t i = 0; result == 0 && i < memory->run_count; i++) {
		const struct memory_run *run = &memory->runs[i];

		result = memory_list_add(&under, run->page, run->count, MIN(run->layer, search->layer), 0);
	}
	if (result == 0)
		result = memory_list_overlay(under.runs, under.count, search->changed.runs, search->changed.count, out);
	free(under.runs);
	return result;
}

static int find_once(const struct memory *memory, struct memory_delta *out, uint64_t gap, struct husk_error *err)
{
	uint32_t newest = (uint32_t)closed_layers(memory);
	struct search search = { .memory = memory, .gap = gap, .layer = out->squash ? MIN(newest, 1u) : newest };
	struct memory_list runs = { 0 };

	if (memory_visit(memory, note_changed, &search, err) < 0) {
		free(search.changed.runs);
		return -1;
	}
	if ((out->squash && add_middle_layers(&search) < 0) || overlay_changed(&search, &runs) < 0) {
		free(search.changed.runs);
		free(runs.runs);
		return husk_fail_memory(err);
	}
	out->changed = search.changed.runs;
	out->changed_count = search.changed.count;
	out->runs = runs.runs;
	out->run_count = runs.count;
	out->layer = search.layer;
	return 0;
}

static uint64_t pages_of(const struct memory_delta *delta)
{
	uint64_t pages = 0;

	for (size_t i = 0; i < delta->run_count; i++)
		if (delta->runs[i].layer == delta->layer)
			pages += delta->runs[i].count;
	return pages;
}

int memory_delta_find(const struct memory *memory, struct memory_delta *out, struct husk_error *err)
{
	*out = (struct memory_delta){ .squash = memory_must_squash(memory) };
	for (uint64_t gap = GAP_PAGES; find_once(memory, out, gap, err) == 0; gap *= 4) {
		if (out->run_count <= MEMORY_RUNS_MAX) {
			out->pages = pages_of(out);
			return 0;
		}
		memory_delta_free(out);
		out->squash = true; /* too scattered: fewer and longer runs, in fewer layers */
		if (gap * PAGE_BYTES > memory->size)
			return husk_fail(err, HUSK_INTERNAL, "guest memory is too scattered to be saved");
	}
	return -1;
}

int memory_write_layer(int fd, const void *data, uint64_t at, uint64_t size)
{
	while (size > 0) {
		ssize_t put = pwrite(fd, data, MIN(size, 1ull << 30), (off_t)at);

		if (put < 0 && errno == EINTR)
			continue;
		if (put <= 0)
			return -1;
		data = (const uint8_t *)data + put;
		at += (uint64_t)put;
		size -= (uint64_t)put;
	}
	return 0;
}

int memory_delta_write(const struct memory *memory, const struct memory_delta *delta, int fd, struct husk_error *err)
{
	if (delta->changed_count == 0)
		return 0;
	const struct memory_run *last = &delta->changed[delta->changed_count - 1];
	uint64_t end = (last->page + last->count) * PAGE_BYTES;

	/* An open layer has its own descriptor, and must not shrink, because its pages are mapped. */
	if (memory->open) {
		fd = memory->layers[memory->layer_count - 1];
		end = MAX(end, memory->open_bytes);
	}
	if (ftruncate(fd, (off_t)end) < 0)
		return husk_fail_errno(err, "cannot size the memory layer");
	for (size_t i = 0; i < delta->changed_count; i++) {
		uint64_t at = delta->changed[i].page * PAGE_BYTES, size = delta->changed[i].count * PAGE_BYTES;

		if (memory_write_layer(fd, memory->host + at, at, size) < 0)
			return husk_fail_errno(err, "cannot write guest memory");
	}
	return 0;
}

/* The remaining layers: all, or after a squash only the oldest; then the written one. */
static void take_layer(struct memory *memory, const struct memory_delta *delta, int fd)
{
	size_t closed = closed_layers(memory), keep = delta->squash ? MIN(closed, 1u) : closed;

	if (memory->open) {
		fd_close(&fd);
		fd = memory->layers[closed];
	}
	for (size_t i = keep; i < closed; i++)
		fd_close(&memory->layers[i]);
	memory->layers[keep] = fd;
	memory->layer_count = keep + 1;
	memory->open = false;
}

int memory_delta_adopt(struct memory *memory, struct memory_delta *delta, int fd, struct husk_error *err)
{
	if (delta->pages == 0 && !delta->squash) {
		fd_close(&fd);
		if (memory->open)
			fd_close(&memory->layers[--memory->layer_count]);
		memory->open = false;
		return 0;
	}
	take_layer(memory, delta, fd);
	/* Only runs that moved are mapped again; after a squash these are all runs of the layers between. If the host
	 * refuses a mapping, the pages and their content stay, and count as changed the next time. If the host has
	 * removed the old mapping first, the last line finds the hole. */
	for (size_t i = 0; i < delta->changed_count; i++)
		(void)!memory_map_run(memory, &delta->changed[i], NULL);
	free(memory->runs);
	memory->runs = steal_pointer(delta->runs);
	memory->run_count = delta->run_count;
	return memory_set_apart(memory, err);
}

void memory_delta_free(struct memory_delta *delta)
{
	free(delta->changed);
	free(delta->runs);
	*delta = (struct memory_delta){ 0 };
}

static int count_page(void *data, uint64_t page, bool written)
{
	(void)page;
	*(uint64_t *)data += written ? PAGE_BYTES : 0;
	return 0;
}

int memory_private_bytes(const struct memory *memory, uint64_t *out, struct husk_error *err)
{
	*out = 0;
	return memory_visit(memory, count_page, out, err);
}
