/*
 * The memory that a guest needs first. When a template is baked, its image is restored once, and the pages that the guest
 * has touched by the time the agent answers are recorded beside the image (CONTROL_TOUCHED). A later restore has the host
 * load those pages in a few calls before the guest runs, instead of in one page fault each (CONTROL_PREFETCH). Called by
 * serve.c and restore.c. The list is advice: when it is damaged, or refused by the host, only the time changes.
 */
#include <sys/mman.h>

#include "vmm/memory.h"

struct record {
	struct memory_touched *runs;
	size_t count, capacity;
	uint64_t pages;
};

static int note_touched(void *data, uint64_t page, bool written)
{
	struct record *record = data;
	struct memory_touched *last = &record->runs[record->count ? record->count - 1 : 0];

	if (record->pages == TOUCHED_PAGES_MAX)
		return 0;
	if (record->count && last->written == written && last->page + last->count == page) {
		last->count++;
	} else {
		if (record->count == record->capacity)
			return 0;
		record->runs[record->count++] = (struct memory_touched){ .page = page, .count = 1, .written = written };
	}
	record->pages++;
	return 0;
}

int memory_touched_find(const struct memory *memory, struct memory_touched **out, size_t *count, struct husk_error *err)
{
	struct record record = { .capacity = TOUCHED_RUNS_MAX };

	record.runs = calloc(record.capacity, sizeof(*record.runs));
	if (!record.runs)
		return husk_fail_memory(err);
	if (memory_visit(memory, note_touched, &record, err) < 0) {
		free(record.runs);
		return -1;
	}
	*out = record.runs;
	*count = record.count;
	return 0;
}

uint64_t memory_prefetch(const struct memory *memory, const struct memory_touched *runs, size_t count)
{
	uint64_t all = memory->size / PAGE_BYTES, pages = 0;

	for (size_t i = 0; i < MIN(count, TOUCHED_RUNS_MAX) && pages < TOUCHED_PAGES_MAX; i++) {
		if (runs[i].page >= all || runs[i].count > all - runs[i].page ||
		    runs[i].count > TOUCHED_PAGES_MAX - pages)
			continue;
		if (madvise(memory->host + runs[i].page * PAGE_BYTES, runs[i].count * PAGE_BYTES,
			    runs[i].written ? MADV_POPULATE_WRITE : MADV_POPULATE_READ) == 0)
			pages += runs[i].count;
	}
	return pages;
}
