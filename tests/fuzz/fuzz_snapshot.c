/*
 * Snapshot files that are not what they should be: the state file's sections, the runs of memory and the header of a disk
 * layer. A loader may refuse, never fault. The checksum is made right, so that what lies behind it is reached.
 */
#include <sys/mman.h>

#include "vmm/disk.h"
#include "vmm/memory.h"
#include "vmm/state.h"
#include "vmm/virtio.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int file_of(const void *data, size_t size)
{
	int fd = memfd_create("fuzz", MFD_CLOEXEC);

	if (fd < 0 || write_full(fd, data, size) < 0)
		abort();
	return fd;
}

static void load_runs(const struct buf *sections)
{
	struct memory memory = { .pagemap = -1 };
	size_t size = 0;
	const void *runs = state_find(sections, SECTION_RUNS, 0, &size);
	int layer = memfd_create("fuzz", MFD_CLOEXEC);

	if (!runs || memory_create(&memory, VMM_MEMORY_MIN, NULL) < 0 || ftruncate(layer, 1 << 20) < 0 ||
	    memory_add_layer(&memory, layer, NULL) < 0) {
		close(layer);
		memory_free(&memory);
		return;
	}
	struct memory_run *copy = malloc(size + 1);
	memcpy(copy, runs, size);
	memory_map_runs(&memory, copy, size / sizeof(*copy), NULL);
	for (size_t i = 0; i < memory.run_count; i++)
		memory.host[memory.runs[i].page * PAGE_BYTES] = 1; /* would fault past the end of a file */
	memory_free(&memory);
}

static void load_touched(const struct buf *sections)
{
	struct memory memory = { .pagemap = -1 };
	size_t size = 0;
	const void *runs = state_find(sections, SECTION_TOUCHED, 0, &size);

	if (runs && memory_create(&memory, VMM_MEMORY_MIN, NULL) == 0)
		memory_prefetch(&memory, runs, size / sizeof(struct memory_touched));
	memory_free(&memory);
}

static void load_state(const uint8_t *data, size_t size)
{
	cleanup_buf struct buf sections = { 0 }, again = { 0 };
	struct virtio_state device;
	int fd = memfd_create("fuzz", MFD_CLOEXEC);

	if (buf_append(&sections, data, size) < 0 || state_write(fd, &sections, NULL) < 0)
		abort();
	if (state_read(fd, &again, NULL) == 0) {
		state_get(&again, SECTION_DEVICE, 0, &device, sizeof(device), "device", NULL);
		load_runs(&again);
		load_touched(&again);
	}
	close(fd);
}

static void load_disk(const uint8_t *data, size_t size)
{
	cleanup(disk_close) struct disk disk = DISK_INIT;
	const uint64_t bytes = 16 * CLUSTER_BYTES;
	struct disk_header header = { .magic = DISK_LAYER_MAGIC,
				      .version = DISK_LAYER_VERSION,
				      .cluster_bytes = CLUSTER_BYTES,
				      .disk_bytes = bytes };
	char byte;
	struct iovec vector = { .iov_base = &byte, .iov_len = 1 };
	int fd = file_of(&header, sizeof(header));

	/* As it would be, but for the states of its clusters; an odd first byte cuts it off. */
	if (ftruncate(fd, size && data[0] & 1 ? (off_t)size : (off_t)(17 * CLUSTER_BYTES)) < 0 ||
	    pwrite(fd, data, MIN(size, 16u), 4096) < 0)
		abort();
	if (disk_add_layer(&disk, fd, bytes, NULL) < 0) {
		close(fd);
		return;
	}
	for (uint64_t at = 0; at < bytes; at += CLUSTER_BYTES) {
		vector = (struct iovec){ .iov_base = &byte, .iov_len = 1 };
		disk_read(&disk, at, &vector, 1, 1);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size == 0)
		return 0;
	if (data[0] & 2)
		load_state(data + 1, size - 1);
	else
		load_disk(data + 1, size - 1);
	/* As a file: without a right checksum. */
	cleanup_buf struct buf sections = { 0 };
	int fd = file_of(data, size);
	state_read(fd, &sections, NULL);
	close(fd);
	return 0;
}
