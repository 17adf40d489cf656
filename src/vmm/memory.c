/*
 * Guest memory: the mapping, and the checked accessor. Everything in husk-vmm that touches guest memory calls it. No other
 * file may turn a guest address into a pointer.
 */
#include "vmm/memory.h"

#include <fcntl.h>
#include <sys/mman.h>

int memory_create(struct memory *memory, uint64_t size, struct husk_error *err)
{
	void *host = MAP_FAILED;

	if (size < VMM_MEMORY_MIN || size > VMM_MEMORY_MAX || size % (2u << 20) != 0)
		return husk_fail(err, HUSK_INVALID,
				 "guest memory of %llu bytes; give %llu MiB to %llu GiB in steps of 2 MiB",
				 (unsigned long long)size, VMM_MEMORY_MIN >> 20, VMM_MEMORY_MAX >> 30);
	host = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (host == MAP_FAILED)
		return husk_fail_errno(err, "cannot reserve %llu MiB of guest memory", (unsigned long long)size >> 20);
	memory->host = host;
	memory->size = size;
	memory->low = MIN(size, MEMORY_HOLE);
	return memory_set_apart(memory, err);
}

int memory_set_part_apart(const struct memory *memory, uint64_t at, uint64_t size, struct husk_error *err)
{
	if (madvise(memory->host + at, size, MADV_DONTDUMP) < 0 || madvise(memory->host + at, size, MADV_DONTFORK) < 0)
		return husk_fail_errno(err, "cannot set guest memory apart");
	return 0;
}

int memory_set_apart(const struct memory *memory, struct husk_error *err)
{
	return memory_set_part_apart(memory, 0, memory->size, err);
}

void memory_free(struct memory *memory)
{
	if (memory->host)
		munmap(memory->host, memory->size);
	for (size_t i = 0; i < memory->layer_count; i++)
		fd_close(&memory->layers[i]);
	free(memory->runs);
	memory->host = NULL;
	memory->runs = NULL;
	memory->layer_count = memory->run_count = 0;
	memory->open = false;
}

void *memory_at(const struct memory *memory, uint64_t address, uint64_t size)
{
	uint64_t end;

	if (size == 0 || __builtin_add_overflow(address, size, &end))
		return NULL;
	if (end <= memory->low)
		return memory->host + address;
	if (address >= MEMORY_HIGH && end - MEMORY_HIGH <= memory->size - memory->low)
		return memory->host + memory->low + (address - MEMORY_HIGH);
	return NULL;
}

int memory_read(const struct memory *memory, uint64_t address, void *out, size_t size)
{
	const void *at = memory_at(memory, address, size);

	if (!at)
		return -1;
	memcpy(out, at, size);
	return 0;
}

int memory_write(const struct memory *memory, uint64_t address, const void *data, size_t size)
{
	void *at = memory_at(memory, address, size);

	if (!at)
		return -1;
	memcpy(at, data, size);
	return 0;
}

void memory_discard(const struct memory *memory, uint64_t address, uint64_t size)
{
	uint8_t *at = memory_at(memory, address, size);

	if (!at)
		return;
	uint64_t start = ((uintptr_t)at + PAGE_BYTES - 1) & ~(PAGE_BYTES - 1);
	uint64_t end = ((uintptr_t)at + size) & ~(PAGE_BYTES - 1);
	/* Only a hint of the guest: if the host refuses, the page just stays. */
	if (end > start)
		(void)!madvise((void *)start, end - start, MADV_DONTNEED);
}
