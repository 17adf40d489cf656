/*
 * The virtqueue against drivers that break the rules: whatever they write, a queue yields checked requests or breaks
 * alone. Runs on plain memory; no virtual machine is needed.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "vmm/queue.h"

#define DESCRIPTORS 0x10000ull
#define AVAILABLE 0x11000ull
#define USED 0x12000ull
#define DATA 0x20000ull
#define SIZE 16

struct descriptor {
	uint64_t address;
	uint32_t size;
	uint16_t flags, next;
};

enum { NEXT = 1, WRITE = 2, INDIRECT = 4 };

static struct memory memory;
static struct queue queue;
static struct chain chain;
static uint16_t published;

static int setup(void **state)
{
	(void)state;
	memory = (struct memory){ .pagemap = -1 };
	published = 0;
	queue = (struct queue){
		.descriptors = DESCRIPTORS, .available = AVAILABLE, .used = USED, .size = SIZE, .ready = 1
	};
	return memory_create(&memory, VMM_MEMORY_MIN, NULL);
}

static int teardown(void **state)
{
	(void)state;
	memory_free(&memory);
	return 0;
}

static void put_at(uint64_t table, uint16_t index, uint64_t address, uint32_t size, uint16_t flags, uint16_t next)
{
	const struct descriptor d = { .address = address, .size = size, .flags = flags, .next = next };

	assert_int_equal(memory_write(&memory, table + 16ull * index, &d, sizeof(d)), 0);
}

static void put(uint16_t index, uint64_t address, uint32_t size, uint16_t flags, uint16_t next)
{
	put_at(DESCRIPTORS, index, address, size, flags, next);
}

static void publish(uint16_t head)
{
	assert_int_equal(memory_write(&memory, AVAILABLE + 4 + 2ull * (published % SIZE), &head, sizeof(head)), 0);
	published++;
	assert_int_equal(memory_write(&memory, AVAILABLE + 2, &published, sizeof(published)), 0);
}

static int pop(void)
{
	return queue_pop(&queue, &memory, &chain);
}

static void assert_breaks(void)
{
	publish(0);
	assert_int_equal(pop(), -1);
	assert_int_equal(pop(), -1);
	assert_true(queue.broken);
}

/* ---- requests as they should be ---- */

static void plain_chain(void **state)
{
	char text[5] = { 0 };

	(void)state;
	assert_true(queue_valid(&queue, &memory));
	assert_int_equal(pop(), 0);
	put(0, DATA, 2, NEXT, 3);
	put(3, DATA + 100, 3, NEXT, 1);
	put(1, DATA + 200, 8, WRITE, 0);
	assert_int_equal(memory_write(&memory, DATA, "ab", 2), 0);
	assert_int_equal(memory_write(&memory, DATA + 100, "cde", 3), 0);
	publish(0);
	assert_int_equal(pop(), 1);
	assert_int_equal(chain.readable, 2);
	assert_int_equal(chain.readable_bytes, 5);
	assert_int_equal(chain.writable_bytes, 8);
	assert_int_equal(chain_read(&chain, 1, text, 4), 0);
	assert_string_equal(text, "bcde");
	assert_int_equal(chain_read(&chain, 2, text, 4), -1);
	assert_int_equal(chain_write(&chain, 0, "12345678", 8), 0);
	assert_int_equal(chain_write(&chain, 1, "12345678", 8), -1);
	assert_memory_equal(memory_at(&memory, DATA + 200, 8), "12345678", 8);
	assert_int_equal(pop(), 0);
}

static void used_and_interrupts(void **state)
{
	uint32_t element[2];
	uint16_t index, no_interrupt = 1;

	(void)state;
	put(5, DATA, 8, WRITE, 0);
	publish(5);
	assert_int_equal(pop(), 1);
	queue_push(&queue, &memory, chain.head, 8);
	memory_read(&memory, USED + 2, &index, sizeof(index));
	memory_read(&memory, USED + 4, element, sizeof(element));
	assert_int_equal(index, 1);
	assert_int_equal(element[0], 5);
	assert_int_equal(element[1], 8);
	assert_true(queue_wants_interrupt(&queue, &memory));
	assert_false(queue_wants_interrupt(&queue, &memory));
	memory_write(&memory, AVAILABLE, &no_interrupt, sizeof(no_interrupt));
	queue_push(&queue, &memory, chain.head, 8);
	assert_false(queue_wants_interrupt(&queue, &memory));
}

static void event_index(void **state)
{
	uint16_t event = 2, armed;

	(void)state;
	queue.event_index = 1;
	queue_push(&queue, &memory, 0, 0);
	assert_true(queue_wants_interrupt(&queue, &memory));
	/* The driver wants to hear of the third one. */
	memory_write(&memory, AVAILABLE + 4 + 2 * SIZE, &event, sizeof(event));
	queue_push(&queue, &memory, 0, 0);
	assert_false(queue_wants_interrupt(&queue, &memory));
	queue_push(&queue, &memory, 0, 0);
	assert_true(queue_wants_interrupt(&queue, &memory));
	/* With nothing waiting the device asks to be told of the next. */
	assert_int_equal(pop(), 0);
	memory_read(&memory, USED + 4 + 8 * SIZE, &armed, sizeof(armed));
	assert_int_equal(armed, queue.next_available);
}

static void put_back(void **state)
{
	(void)state;
	put(0, DATA, 8, 0, 0);
	publish(0);
	assert_int_equal(pop(), 1);
	queue_unpop(&queue);
	assert_int_equal(pop(), 1);
	assert_int_equal(pop(), 0);
}

static void indirect_table(void **state)
{
	(void)state;
	put(0, DATA + 0x1000, 3 * 16, INDIRECT, 0);
	put_at(DATA + 0x1000, 0, DATA, 10, NEXT, 2);
	put_at(DATA + 0x1000, 2, DATA + 50, 20, WRITE, 0);
	publish(0);
	assert_int_equal(pop(), 1);
	assert_int_equal(chain.readable_bytes, 10);
	assert_int_equal(chain.writable_bytes, 20);
}

/* ---- and as they should not ---- */

static void loop_ends(void **state)
{
	(void)state;
	put(0, DATA, 8, NEXT, 1);
	put(1, DATA, 8, NEXT, 0);
	assert_breaks();
}

static void next_out_of_range(void **state)
{
	(void)state;
	put(0, DATA, 8, NEXT, SIZE);
	assert_breaks();
}

static void head_out_of_range(void **state)
{
	(void)state;
	publish(SIZE);
	assert_int_equal(pop(), -1);
}

static void index_runs_ahead(void **state)
{
	uint16_t far = SIZE + 1;

	(void)state;
	memory_write(&memory, AVAILABLE + 2, &far, sizeof(far));
	assert_int_equal(pop(), -1);
}

static void address_outside(void **state)
{
	(void)state;
	put(0, VMM_MEMORY_MIN, 8, 0, 0);
	assert_breaks();
}

static void address_crosses_the_end(void **state)
{
	(void)state;
	put(0, VMM_MEMORY_MIN - 4, 8, 0, 0);
	assert_breaks();
}

static void address_wraps(void **state)
{
	(void)state;
	put(0, UINT64_MAX - 3, 8, 0, 0);
	assert_breaks();
}

static void address_in_the_hole(void **state)
{
	(void)state;
	put(0, MEMORY_HOLE, 8, 0, 0);
	assert_breaks();
}

static void empty_segment(void **state)
{
	(void)state;
	put(0, DATA, 0, 0, 0);
	assert_breaks();
}

static void readable_after_writable(void **state)
{
	(void)state;
	put(0, DATA, 8, WRITE | NEXT, 1);
	put(1, DATA, 8, 0, 0);
	assert_breaks();
}

static void nested_tables(void **state)
{
	(void)state;
	put(0, DATA + 0x1000, 16, INDIRECT, 0);
	put_at(DATA + 0x1000, 0, DATA + 0x2000, 16, INDIRECT, 0);
	assert_breaks();
}

static void odd_table(void **state)
{
	(void)state;
	put(0, DATA, 24, INDIRECT, 0);
	assert_breaks();
}

static void huge_table(void **state)
{
	(void)state;
	put(0, DATA, 16 * 1024, INDIRECT, 0);
	assert_breaks();
}

static void bad_rings(void **state)
{
	struct queue bad;

	(void)state;
	bad = queue, bad.size = 3;
	assert_false(queue_valid(&bad, &memory));
	bad = queue, bad.size = 2 * QUEUE_SIZE_MAX;
	assert_false(queue_valid(&bad, &memory));
	bad = queue, bad.used = VMM_MEMORY_MIN - 16;
	assert_false(queue_valid(&bad, &memory));
	bad = queue, bad.descriptors = UINT64_MAX - 15;
	assert_false(queue_valid(&bad, &memory));
	bad = queue, bad.available = AVAILABLE + 1;
	assert_false(queue_valid(&bad, &memory));
}

static void memory_with_a_hole(void **state)
{
	struct memory large = { .pagemap = -1 };

	(void)state;
	assert_int_equal(memory_create(&large, 4ull << 30, NULL), 0);
	assert_non_null(memory_at(&large, MEMORY_HOLE - 1, 1));
	assert_null(memory_at(&large, MEMORY_HOLE - 1, 2));
	assert_null(memory_at(&large, MEMORY_HOLE, 1));
	assert_null(memory_at(&large, MEMORY_HIGH - 1, 2));
	assert_ptr_equal(memory_at(&large, MEMORY_HIGH, 1), large.host + MEMORY_HOLE);
	assert_non_null(memory_at(&large, MEMORY_HIGH + (1ull << 30) - 1, 1));
	assert_null(memory_at(&large, MEMORY_HIGH + (1ull << 30), 1));
	assert_null(memory_at(&large, 0, 0));
	memory_free(&large);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(plain_chain),
		TEST(used_and_interrupts),
		TEST(event_index),
		TEST(put_back),
		TEST(indirect_table),
		TEST(loop_ends),
		TEST(next_out_of_range),
		TEST(head_out_of_range),
		TEST(index_runs_ahead),
		TEST(address_outside),
		TEST(address_crosses_the_end),
		TEST(address_wraps),
		TEST(address_in_the_hole),
		TEST(empty_segment),
		TEST(readable_after_writable),
		TEST(nested_tables),
		TEST(odd_table),
		TEST(huge_table),
		TEST(bad_rings),
		TEST(memory_with_a_hole),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
