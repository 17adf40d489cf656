/*
 * The virtqueue; see queue.h. Called by every device. A number from the guest must never be used before it was copied and
 * checked, and a loop in the guest's descriptors must never be followed without end.
 */
#include "vmm/queue.h"

#define DESCRIPTOR_NEXT 1u
#define DESCRIPTOR_WRITE 2u
#define DESCRIPTOR_INDIRECT 4u
#define AVAILABLE_NO_INTERRUPT 1u

struct descriptor {
	uint64_t address;
	uint32_t size;
	uint16_t flags, next;
};

struct used_element {
	uint32_t head, size;
};

/* ---- the rings: offsets in guest memory, all checked by memory_at ---- */

static uint16_t *ring16(const struct memory *memory, uint64_t base, uint64_t offset)
{
	uint64_t address;

	if (__builtin_add_overflow(base, offset, &address))
		return NULL;
	return memory_at(memory, address, sizeof(uint16_t));
}

/* The guest may write these at any time: an index is loaded once, before the entries that it announces. */
static int ring_load(const struct memory *memory, uint64_t base, uint64_t offset, uint16_t *out)
{
	const uint16_t *at = ring16(memory, base, offset);

	if (!at)
		return -1;
	*out = __atomic_load_n(at, __ATOMIC_ACQUIRE);
	return 0;
}

static uint64_t available_size(const struct queue *queue)
{
	return 6 + 2ull * queue->size;
}

static uint64_t used_size(const struct queue *queue)
{
	return 6 + 8ull * queue->size;
}

bool queue_valid(const struct queue *queue, const struct memory *memory)
{
	if (queue->size == 0 || queue->size > QUEUE_SIZE_MAX || (queue->size & (queue->size - 1)) != 0)
		return false;
	if (queue->descriptors % 16 != 0 || queue->available % 2 != 0 || queue->used % 4 != 0)
		return false;
	return memory_at(memory, queue->descriptors, 16ull * queue->size) &&
	       memory_at(memory, queue->available, available_size(queue)) &&
	       memory_at(memory, queue->used, used_size(queue));
}

/* ---- chains ---- */

static int add_segment(struct chain *chain, const struct memory *memory, const struct descriptor *d)
{
	bool writable = d->flags & DESCRIPTOR_WRITE;
	size_t count = chain->readable + chain->writable;
	size_t *bytes = writable ? &chain->writable_bytes : &chain->readable_bytes;
	void *data = memory_at(memory, d->address, d->size);

	/* Readable segments come first, and the sum must fit into a used element. */
	if (!data || count >= CHAIN_MAX || (!writable && chain->writable > 0) || *bytes + d->size > INT32_MAX)
		return -1;
	chain->vector[count] = (struct iovec){ .iov_base = data, .iov_len = d->size };
	*bytes += d->size;
	if (writable)
		chain->writable++;
	else
		chain->readable++;
	return 0;
}

/* Follows a list of descriptors in the table at `table`. Each step uses up one of `length`, so a loop ends. */
static int walk(struct chain *chain, const struct memory *memory, uint64_t table, uint32_t length, uint16_t first,
		bool nested)
{
	struct descriptor d;
	uint16_t at = first;

	for (uint32_t steps = 0; steps < length; steps++) {
		if (at >= length || memory_read(memory, table + 16ull * at, &d, sizeof(d)) < 0)
			return -1;
		if (d.flags & DESCRIPTOR_INDIRECT) {
			/* An indirect table must be the whole request, and contains no further tables. */
			if (nested || steps > 0 || d.flags & DESCRIPTOR_NEXT || d.size % 16 != 0 || d.size == 0 ||
			    d.size / 16 > CHAIN_MAX || !memory_at(memory, d.address, d.size))
				return -1;
			return walk(chain, memory, d.address, d.size / 16, 0, true);
		}
		if (add_segment(chain, memory, &d) < 0)
			return -1;
		if (!(d.flags & DESCRIPTOR_NEXT))
			return 0;
		at = d.next;
	}
	return -1;
}

static int fail(struct queue *queue)
{
	queue->broken = 1;
	return -1;
}

/* Asks the driver to notify about the next request; true if one has arrived meanwhile. */
static bool arm(struct queue *queue, const struct memory *memory)
{
	uint16_t *event, index;

	if (!queue->event_index)
		return false; /* the driver always notifies */
	event = ring16(memory, queue->used, used_size(queue) - 2);
	if (!event)
		return false;
	__atomic_store_n(event, queue->next_available, __ATOMIC_RELAXED);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	return ring_load(memory, queue->available, 2, &index) == 0 && index != queue->next_available;
}

int queue_pop(struct queue *queue, const struct memory *memory, struct chain *chain)
{
	uint16_t index, head;

	if (!queue->ready || queue->broken)
		return queue->broken ? -1 : 0;
	if (ring_load(memory, queue->available, 2, &index) < 0)
		return fail(queue);
	if (index == queue->next_available && !arm(queue, memory))
		return 0;
	if (ring_load(memory, queue->available, 2, &index) < 0 ||
	    (uint16_t)(index - queue->next_available) > queue->size)
		return fail(queue);
	if (ring_load(memory, queue->available, 4 + 2ull * (queue->next_available % queue->size), &head) < 0 ||
	    head >= queue->size)
		return fail(queue);
	chain->head = head;
	chain->readable = chain->writable = chain->readable_bytes = chain->writable_bytes = 0;
	if (walk(chain, memory, queue->descriptors, queue->size, head, false) < 0)
		return fail(queue);
	queue->next_available++;
	return 1;
}

void queue_unpop(struct queue *queue)
{
	queue->next_available--;
}

void queue_push(struct queue *queue, const struct memory *memory, uint16_t head, uint32_t written)
{
	const struct used_element element = { .head = head, .size = written };
	uint16_t *index = ring16(memory, queue->used, 2);

	if (!index || memory_write(memory, queue->used + 4 + 8ull * (queue->next_used % queue->size), &element,
				   sizeof(element)) < 0) {
		fail(queue);
		return;
	}
	queue->next_used++;
	__atomic_store_n(index, queue->next_used, __ATOMIC_RELEASE);
}

bool queue_wants_interrupt(struct queue *queue, const struct memory *memory)
{
	uint16_t value, since = queue->signalled;
	bool first = !queue->signalled_once;

	if (!queue->ready || queue->broken || (!first && since == queue->next_used))
		return false;
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	queue->signalled = queue->next_used;
	queue->signalled_once = 1;
	if (!queue->event_index)
		return ring_load(memory, queue->available, 0, &value) == 0 && !(value & AVAILABLE_NO_INTERRUPT);
	if (ring_load(memory, queue->available, available_size(queue) - 2, &value) < 0)
		return false;
	/* True if next_used has passed the entry that the driver named, since its last interrupt. */
	return first || (uint16_t)(queue->next_used - value - 1) < (uint16_t)(queue->next_used - since);
}

/* ---- bytes of a chain ---- */

int chain_slice(const struct chain *chain, bool writable, size_t offset, size_t size,
		struct iovec out[static CHAIN_MAX])
{
	const struct iovec *vector = chain->vector + (writable ? chain->readable : 0);
	size_t count = writable ? chain->writable : chain->readable;
	int used = 0;

	for (size_t i = 0; i < count && size > 0; i++) {
		size_t length = vector[i].iov_len;

		if (offset >= length) {
			offset -= length;
			continue;
		}
		length = MIN(length - offset, size);
		out[used++] = (struct iovec){ .iov_base = (char *)vector[i].iov_base + offset, .iov_len = length };
		offset = 0;
		size -= length;
	}
	return size == 0 ? used : -1;
}

int chain_read(const struct chain *chain, size_t offset, void *out, size_t size)
{
	struct iovec slice[CHAIN_MAX];
	int count = chain_slice(chain, false, offset, size, slice);
	char *to = out;

	for (int i = 0; i < count; to += slice[i].iov_len, i++)
		memcpy(to, slice[i].iov_base, slice[i].iov_len);
	return count < 0 ? -1 : 0;
}

int chain_write(const struct chain *chain, size_t offset, const void *data, size_t size)
{
	struct iovec slice[CHAIN_MAX];
	int count = chain_slice(chain, true, offset, size, slice);
	const char *from = data;

	for (int i = 0; i < count; from += slice[i].iov_len, i++)
		memcpy(slice[i].iov_base, from, slice[i].iov_len);
	return count < 0 ? -1 : 0;
}
