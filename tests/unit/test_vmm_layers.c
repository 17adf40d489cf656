/*
 * Layers: of memory (what has changed is found, written and mapped again, generation after generation), of a disk
 * (copy-on-write, discard, a stack that is squashed when it is full), and the state file's form. No virtual machine.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "vmm/disk.h"
#include "vmm/memory.h"
#include "vmm/state.h"

#define PAGES (VMM_MEMORY_MIN / PAGE_BYTES)

static int new_file(void)
{
	int fd = memfd_create("layer", MFD_CLOEXEC);

	assert_true(fd >= 0);
	return fd;
}

/* ---- memory ---- */

static void memory_open(struct memory *memory)
{
	*memory = (struct memory){ .pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC) };
	assert_true(memory->pagemap >= 0);
	assert_int_equal(memory_create(memory, VMM_MEMORY_MIN, NULL), 0);
}

static void memory_close(struct memory *memory)
{
	close(memory->pagemap);
	memory_free(memory);
}

static void set_page(const struct memory *memory, uint64_t page, uint8_t value)
{
	memset(memory->host + page * PAGE_BYTES, value, PAGE_BYTES);
}

static uint8_t get_page(const struct memory *memory, uint64_t page)
{
	const uint8_t *at = memory->host + page * PAGE_BYTES;

	assert_int_equal(at[0], at[PAGE_BYTES - 1]);
	return at[0];
}

/* Saves what has changed; how many pages that were. The runs to restore it with go to `runs`. */
static uint64_t save(struct memory *memory, struct memory_run **runs, size_t *count, int *file)
{
	struct memory_delta delta;

	*file = new_file();
	assert_int_equal(memory_delta_find(memory, &delta, NULL), 0);
	assert_int_equal(memory_delta_write(memory, &delta, *file, NULL), 0);
	*count = delta.run_count;
	*runs = malloc(delta.run_count * sizeof(**runs) + 1);
	memcpy(*runs, delta.runs, delta.run_count * sizeof(**runs));
	uint64_t pages = delta.pages;
	assert_int_equal(memory_delta_adopt(memory, &delta, dup(*file), NULL), 0);
	memory_delta_free(&delta);
	return pages;
}

static void only_changes_are_saved(void **state)
{
	struct memory parent, child;
	struct memory_run *runs;
	size_t count;
	int first, second;

	(void)state;
	memory_open(&parent);
	memory_open(&child);
	set_page(&parent, 3, 1);
	set_page(&parent, 100, 2);
	set_page(&parent, PAGES - 1, 3);
	(void)get_page(&parent, 500); /* looked at, not changed */
	assert_int_equal(save(&parent, &runs, &count, &first), 3);
	free(runs);
	assert_int_equal(get_page(&parent, 100), 2);
	/* Nothing has changed since: nothing is written. */
	assert_int_equal(save(&parent, &runs, &count, &second), 0);
	free(runs);
	close(second);
	set_page(&parent, 100, 9);
	set_page(&parent, 7000, 4);
	set_page(&parent, 3, 0); /* zeroes over something do count */
	assert_int_equal(save(&parent, &runs, &count, &second), 3);
	assert_int_equal(memory_add_layer(&child, first, NULL), 0);
	assert_int_equal(memory_add_layer(&child, second, NULL), 0);
	assert_int_equal(memory_map_runs(&child, runs, count, NULL), 0);
	assert_int_equal(get_page(&child, 3), 0);
	assert_int_equal(get_page(&child, 100), 9);
	assert_int_equal(get_page(&child, 7000), 4);
	assert_int_equal(get_page(&child, PAGES - 1), 3);
	assert_int_equal(get_page(&child, 4), 0);
	/* Each goes its own way. */
	set_page(&child, 100, 10);
	assert_int_equal(get_page(&parent, 100), 9);
	memory_close(&parent);
	memory_close(&child);
}

static void generations(void **state)
{
	struct memory memory;
	struct memory_run *runs;
	size_t count;
	int file;

	(void)state;
	memory_open(&memory);
	for (unsigned i = 1; i <= 3 * VMM_LAYERS_MAX; i++) {
		set_page(&memory, 10 * i, (uint8_t)i);
		assert_true(save(&memory, &runs, &count, &file) > 0);
		assert_true(memory.layer_count <= VMM_LAYERS_MAX);
		free(runs);
		close(file);
	}
	for (unsigned i = 1; i <= 3 * VMM_LAYERS_MAX; i++)
		assert_int_equal(get_page(&memory, 10 * i), i);
	memory_close(&memory);
}

static void scattered_pages(void **state)
{
	struct memory memory;
	struct memory_run *runs;
	size_t count;
	int file;

	(void)state;
	memory_open(&memory);
	for (uint64_t i = 0; i < PAGES; i += 2)
		set_page(&memory, i, 5);
	save(&memory, &runs, &count, &file);
	assert_true(count <= MEMORY_RUNS_MAX);
	for (uint64_t i = 0; i < PAGES; i++)
		assert_int_equal(get_page(&memory, i), i % 2 ? 0 : 5);
	free(runs);
	close(file);
	memory_close(&memory);
}

/* ---- ahead of a snapshot ---- */

/* One piece; false at the end of memory. `meanwhile` is what the guest does between copying and adopting. */
static bool bring_piece(struct memory *memory, void (*meanwhile)(struct memory *, const struct memory_piece *))
{
	cleanup_free struct memory_piece *piece = malloc(sizeof(*piece));
	bool lost = true;

	assert_int_equal(memory_ahead_find(memory, piece, UINT32_MAX, NULL), 0);
	if (piece->count == 0)
		return false;
	if (meanwhile)
		meanwhile(memory, piece);
	assert_int_equal(memory_ahead_adopt(memory, piece, &lost, NULL), 0);
	assert_false(lost);
	memory_piece_free(piece);
	return true;
}

static int open_ahead(struct memory *memory)
{
	int file = new_file();

	assert_int_equal(memory_ahead_open(memory, dup(file), NULL), 0);
	assert_int_equal(memory_ahead_open(memory, file, NULL), -1); /* one at a time */
	return file;
}

/* A memory that goes on from the same layers as `parent`, whose newest is `files[count - 1]`. */
static void continue_from(struct memory *child, const int *files, size_t file_count, struct memory_run *runs,
			  size_t count)
{
	memory_open(child);
	for (size_t i = 0; i < file_count; i++)
		assert_int_equal(memory_add_layer(child, dup(files[i]), NULL), 0);
	assert_int_equal(memory_map_runs(child, runs, count, NULL), 0);
}

static void write_meanwhile(struct memory *memory, const struct memory_piece *piece)
{
	for (size_t i = 0; i < piece->count; i++)
		set_page(memory, piece->runs[i].page, 77);
}

static void ahead_is_the_layer(void **state)
{
	struct memory parent, child;
	struct memory_run *runs;
	size_t count;
	int files[2], unused;

	(void)state;
	memory_open(&parent);
	for (uint64_t i = 0; i < 3000; i++)
		set_page(&parent, 5000 + i, (uint8_t)(1 + i % 200));
	set_page(&parent, 20000, 0); /* touched, over nothing */
	files[0] = open_ahead(&parent);
	while (bring_piece(&parent, NULL))
		;
	/* All of it is in the layer already; what changes now is left for the snapshot, in the same file. */
	uint64_t bytes;
	assert_int_equal(memory_private_bytes(&parent, &bytes, NULL), 0);
	assert_int_equal(bytes, 0);
	set_page(&parent, 5001, 250);
	set_page(&parent, 30000, 251);
	assert_int_equal(save(&parent, &runs, &count, &unused), 3001);
	assert_false(parent.open);
	assert_int_equal(parent.layer_count, 1);
	struct stat st;
	assert_int_equal(fstat(unused, &st), 0);
	assert_int_equal(st.st_size, 0);
	close(unused);
	continue_from(&child, files, 1, runs, count);
	for (uint64_t i = 0; i < 3000; i++) {
		uint8_t wanted = i == 1 ? 250 : (uint8_t)(1 + i % 200);

		assert_int_equal(get_page(&child, 5000 + i), wanted);
		assert_int_equal(get_page(&parent, 5000 + i), wanted);
	}
	assert_int_equal(get_page(&child, 30000), 251);
	assert_int_equal(get_page(&child, 20000), 0);
	/* Nothing has changed: an open layer with nothing in it is no layer. */
	close(open_ahead(&parent));
	while (bring_piece(&parent,
			   NULL)) /* zeroes that came with a huge page, where the host makes those, are dropped */
		;
	assert_int_equal(save(&parent, &runs, &count, &unused), 0);
	assert_int_equal(parent.layer_count, 1);
	assert_false(parent.open);
	free(runs);
	close(unused);
	close(files[0]);
	memory_close(&parent);
	memory_close(&child);
}

/* What the guest writes between the copy and the moment it stands still is in the layer; what it writes later is not lost. */
static void ahead_of_a_writer(void **state)
{
	struct memory parent, child;
	struct memory_run *runs;
	size_t count;
	int file, unused;

	(void)state;
	memory_open(&parent);
	for (uint64_t i = 0; i < PAGES; i += 3)
		set_page(&parent, i, 9);
	file = open_ahead(&parent);
	while (bring_piece(&parent, write_meanwhile))
		;
	for (uint64_t i = 0; i < PAGES; i += 30)
		set_page(&parent, i, 10);
	while (bring_piece(&parent, write_meanwhile)) /* another sweep, over what the first one left */
		;
	set_page(&parent, 30, 11);
	save(&parent, &runs, &count, &unused);
	close(unused);
	uint8_t *wanted = malloc(PAGES);
	for (uint64_t i = 0; i < PAGES; i++)
		wanted[i] = get_page(&parent, i);
	/* What it does after the snapshot is its own. */
	set_page(&parent, 60, 99);
	continue_from(&child, &file, 1, runs, count);
	for (uint64_t i = 0; i < PAGES; i++)
		assert_int_equal(get_page(&child, i), wanted[i]);
	assert_int_equal(wanted[30], 11);
	assert_int_equal(wanted[0], 77);
	free(wanted);
	close(file);
	memory_close(&parent);
	memory_close(&child);
}

/* Where layers get too many, the open one takes the others in. */
static void ahead_generations(void **state)
{
	struct memory memory, child;
	struct memory_run *runs;
	int files[VMM_LAYERS_MAX + 1], unused;
	size_t count, file_count = 0;

	(void)state;
	memory_open(&memory);
	for (unsigned i = 1; i <= 3 * VMM_LAYERS_MAX; i++) {
		for (uint64_t page = 0; page < 300; page++)
			set_page(&memory, 300 * i + page, (uint8_t)i);
		size_t before = memory.layer_count;
		files[file_count++] = open_ahead(&memory);
		/* Some of them are not finished: the snapshot does what is left. */
		for (unsigned piece = 0; piece < i && bring_piece(&memory, NULL); piece++)
			;
		set_page(&memory, 10 * i, (uint8_t)i);
		assert_true(save(&memory, &runs, &count, &unused) > 0);
		close(unused);
		if (memory.layer_count <= before) { /* squashed: the oldest and the newest are left */
			assert_int_equal(memory.layer_count, 2);
			for (size_t k = 1; k < file_count - 1; k++)
				close(files[k]);
			files[1] = files[file_count - 1];
			file_count = 2;
		}
		assert_int_equal(file_count, memory.layer_count);
		continue_from(&child, files, file_count, runs, count);
		for (uint64_t page = 0; page < 300 * (i + 1); page++)
			assert_int_equal(get_page(&child, page), get_page(&memory, page));
		memory_close(&child);
	}
	for (size_t k = 0; k < file_count; k++)
		close(files[k]);
	memory_close(&memory);
}

static void bad_runs(void **state)
{
	static const struct memory_run bad[][2] = {
		{ { .page = 5, .count = 1 }, { .page = 5, .count = 1 } },
		{ { .page = 5, .count = 0 }, { .page = 6, .count = 1 } },
		{ { .page = 0, .count = 1 }, { .page = PAGES, .count = 1 } },
		{ { .page = 0, .count = 1 }, { .page = PAGES - 1, .count = 2 } },
		{ { .page = 0, .count = 1 }, { .page = UINT64_MAX, .count = 2 } },
		{ { .page = 0, .count = 1 }, { .page = 1, .count = 1, .layer = 1 } },
		{ { .page = 0, .count = 1 }, { .page = 40, .count = 1 } }, /* past the end of the file */
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		struct memory memory;
		struct memory_run *runs = malloc(sizeof(bad[i]));
		int file = new_file();

		memory_open(&memory);
		assert_int_equal(ftruncate(file, 20 * (off_t)PAGE_BYTES), 0);
		assert_int_equal(memory_add_layer(&memory, file, NULL), 0);
		memcpy(runs, bad[i], sizeof(bad[i]));
		assert_int_equal(memory_map_runs(&memory, runs, 2, NULL), -1);
		memory_close(&memory);
	}
}

/* ---- disk ---- */

#define DISK (4 * CLUSTER_BYTES)

static void put_bytes(struct disk *disk, uint64_t offset, char value, size_t size)
{
	cleanup_free char *data = malloc(size);
	struct iovec vector = { .iov_base = data, .iov_len = size };

	memset(data, value, size);
	assert_int_equal(disk_write(disk, offset, &vector, 1, size), 0);
}

static void next_layer(struct disk *disk, size_t needed, int fd)
{
	assert_int_equal(disk_start_layer(disk, fd, NULL), 0);
	disk_next_layer(disk, needed, fd);
}

static char get_byte(struct disk *disk, uint64_t offset)
{
	char value = 'x';
	struct iovec vector = { .iov_base = &value, .iov_len = 1 };

	assert_int_equal(disk_read(disk, offset, &vector, 1, 1), 0);
	return value;
}

static void disk_layers(void **state)
{
	cleanup(disk_close) struct disk disk = DISK_INIT, copy = DISK_INIT;
	int files[3];
	size_t needed;

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(files); i++)
		files[i] = new_file();
	assert_int_equal(disk_add_layer(&disk, dup(files[0]), DISK, NULL), 0);
	put_bytes(&disk, 1000, 'a', 10);
	put_bytes(&disk, CLUSTER_BYTES - 5, 'b', 10);
	assert_int_equal(disk_seal(&disk, &needed, NULL), 0);
	next_layer(&disk, needed, dup(files[1]));
	/* The rest of a cluster comes along when a part of it is written. */
	put_bytes(&disk, 2000, 'c', 1);
	assert_int_equal(get_byte(&disk, 1005), 'a');
	assert_int_equal(disk_discard(&disk, CLUSTER_BYTES, CLUSTER_BYTES), 0);
	assert_int_equal(get_byte(&disk, CLUSTER_BYTES), 0);
	assert_int_equal(get_byte(&disk, CLUSTER_BYTES - 1), 'b');

	assert_int_equal(disk_add_layer(&copy, dup(files[0]), DISK, NULL), 0);
	assert_int_equal(disk_add_layer(&copy, dup(files[2]), DISK, NULL), 0);
	assert_int_equal(get_byte(&copy, 2000), 0);
	assert_int_equal(get_byte(&copy, CLUSTER_BYTES), 'b');
	assert_int_equal(get_byte(&copy, DISK - 1), 0);
	for (size_t i = 0; i < ARRAY_SIZE(files); i++)
		close(files[i]);
}

static void disk_generations(void **state)
{
	cleanup(disk_close) struct disk disk = DISK_INIT;
	size_t needed;

	(void)state;
	assert_int_equal(disk_add_layer(&disk, new_file(), DISK, NULL), 0);
	put_bytes(&disk, 3 * CLUSTER_BYTES, 'z', 10);
	for (unsigned i = 0; i < 3 * VMM_LAYERS_MAX; i++) {
		put_bytes(&disk, 100 * i, (char)('A' + i % 20), 100);
		if (i == 5)
			assert_int_equal(disk_discard(&disk, 3 * CLUSTER_BYTES, CLUSTER_BYTES), 0);
		assert_int_equal(disk_seal(&disk, &needed, NULL), 0);
		next_layer(&disk, needed, new_file());
		assert_true(disk.layer_count <= VMM_LAYERS_MAX);
	}
	for (unsigned i = 0; i < 3 * VMM_LAYERS_MAX; i++)
		assert_int_equal(get_byte(&disk, 100 * i + 50), 'A' + i % 20);
	assert_int_equal(get_byte(&disk, 3 * CLUSTER_BYTES), 0);
}

static void disk_reuses_discarded(void **state)
{
	cleanup(disk_close) struct disk disk = DISK_INIT;

	(void)state;
	assert_int_equal(disk_add_layer(&disk, new_file(), DISK, NULL), 0);
	put_bytes(&disk, 0, 'q', CLUSTER_BYTES);
	assert_int_equal(disk_discard(&disk, 0, CLUSTER_BYTES), 0);
	put_bytes(&disk, 10, 'r', 1);
	assert_int_equal(get_byte(&disk, 9), 0);
	assert_int_equal(get_byte(&disk, 10), 'r');
	/* A part of a cluster is zeroed in place. */
	put_bytes(&disk, 0, 's', CLUSTER_BYTES);
	assert_int_equal(disk_discard(&disk, 100, 200), 0);
	assert_int_equal(get_byte(&disk, 99), 's');
	assert_int_equal(get_byte(&disk, 100), 0);
	assert_int_equal(get_byte(&disk, 300), 's');
}

static void bad_disk_files(void **state)
{
	cleanup(disk_close) struct disk disk = DISK_INIT, good = DISK_INIT;
	int file = new_file();
	size_t needed;

	(void)state;
	assert_int_equal(disk_add_layer(&disk, file, DISK + 1, NULL), -1);
	assert_int_equal(disk_add_layer(&good, dup(file), DISK, NULL), 0);
	put_bytes(&good, 0, 'a', 1);
	assert_int_equal(disk_seal(&good, &needed, NULL), 0);
	assert_int_equal(disk_add_layer(&disk, file, 2 * DISK, NULL), -1);
	disk_close(&disk);
	assert_int_equal(pwrite(file, "\x07", 1, 4096), 1); /* a state there is not */
	assert_int_equal(disk_add_layer(&disk, file, DISK, NULL), -1);
	disk_close(&disk);
	assert_int_equal(ftruncate(file, 5000), 0);
	assert_int_equal(disk_add_layer(&disk, file, DISK, NULL), -1);
	close(file);
}

/* ---- state ---- */

static void state_file(void **state)
{
	cleanup_buf struct buf out = { 0 }, in = { 0 }, cut = { 0 };
	struct husk_error err;
	int file = new_file();
	size_t size = 0;
	char text[4];

	(void)state;
	assert_int_equal(state_put(&out, SECTION_REGS, 1, "abc", 4), 0);
	assert_int_equal(state_put(&out, SECTION_RUNS, 0, NULL, 0), 0);
	assert_int_equal(state_write(file, &out, NULL), 0);
	assert_int_equal(state_read(file, &in, NULL), 0);
	assert_int_equal(state_get(&in, SECTION_REGS, 1, text, sizeof(text), "text", NULL), 0);
	assert_string_equal(text, "abc");
	assert_int_equal(state_get(&in, SECTION_REGS, 0, text, sizeof(text), "text", NULL), -1);
	assert_non_null(state_find(&in, SECTION_RUNS, 0, &size));
	assert_int_equal(size, 0);
	/* One bit, one byte less, and another version are all refused. */
	assert_int_equal(pwrite(file, "abd", 3, sizeof(struct state_header) + sizeof(struct state_section_header)), 3);
	assert_int_equal(state_read(file, &cut, &err), -1);
	assert_non_null(strstr(err.message, "checksum"));
	assert_int_equal(ftruncate(file, 60), 0);
	assert_int_equal(state_read(file, &cut, &err), -1);
	assert_int_equal(ftruncate(file, 10), 0);
	assert_int_equal(state_read(file, &cut, &err), -1);
	close(file);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(only_changes_are_saved),
		cmocka_unit_test(generations),
		cmocka_unit_test(scattered_pages),
		cmocka_unit_test(ahead_is_the_layer),
		cmocka_unit_test(ahead_of_a_writer),
		cmocka_unit_test(ahead_generations),
		cmocka_unit_test(bad_runs),
		cmocka_unit_test(disk_layers),
		cmocka_unit_test(disk_generations),
		cmocka_unit_test(disk_reuses_discarded),
		cmocka_unit_test(bad_disk_files),
		cmocka_unit_test(state_file),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
