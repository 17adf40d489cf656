/*
 * The filter of a viewer's messages; see rfb_filter.h. A message is judged once, when its head is complete; the rest is
 * only counted, and passed or dropped. The client is careless or hostile: every length is bounded, and memory is
 * constant.
 */
#include "server/rfb_filter.h"

#define VERSION_SIZE 12
#define SECURITY_NONE 1

enum {
	SET_PIXEL_FORMAT = 0,
	SET_ENCODINGS = 2,
	UPDATE_REQUEST = 3,
	KEY_EVENT = 4,
	POINTER_EVENT = 5,
	CUT_TEXT = 6,
	CONTINUOUS_UPDATES = 150,
	FENCE = 248,
	XVP = 250,
	DESKTOP_SIZE = 251,
	QEMU = 255,
	QEMU_KEY = 0, /* the second byte of QEMU */
};

static uint16_t get16(const uint8_t *bytes)
{
	return (uint16_t)(bytes[0] << 8 | bytes[1]);
}

static uint32_t get32(const uint8_t *bytes)
{
	return (uint32_t)get16(bytes) << 16 | get16(bytes + 2);
}

static void put32(uint8_t *bytes, uint32_t value)
{
	for (int i = 0; i < 4; i++)
		bytes[i] = (uint8_t)(value >> (24 - 8 * i));
}

/* ---- the form of messages ---- */

/* How many bytes show the length of a message of this type; 0: unknown type. */
static size_t head_size(uint8_t type)
{
	switch (type) {
	case SET_PIXEL_FORMAT:
		return 20;
	case SET_ENCODINGS:
		return 4;
	case UPDATE_REQUEST:
	case CONTINUOUS_UPDATES:
		return 10;
	case KEY_EVENT:
	case CUT_TEXT:
	case DESKTOP_SIZE:
		return 8;
	case POINTER_EVENT:
		return 6;
	case FENCE:
		return 9;
	case XVP:
		return 4;
	case QEMU:
		return 12; /* a key event; others are not supported */
	default:
		return 0;
	}
}

static bool is_input(uint8_t type)
{
	return type == KEY_EVENT || type == POINTER_EVENT || type == CUT_TEXT || type >= XVP;
}

/* The bytes after the head. A negative length of ClientCutText is the extended clipboard's. */
static int rest_size(const uint8_t *head, size_t *out, struct husk_error *err)
{
	int64_t length = (int32_t)get32(head + 4);
	size_t most = SIZE_MAX;

	*out = 0;
	switch (head[0]) {
	case SET_ENCODINGS:
		*out = get16(head + 2) * 4u;
		most = RFB_ENCODINGS_MAX * 4u;
		break;
	case CUT_TEXT:
		*out = (size_t)(length < 0 ? -length : length);
		most = RFB_CLIPBOARD_MAX;
		break;
	case FENCE:
		*out = head[8];
		most = 64;
		break;
	case DESKTOP_SIZE:
		*out = head[6] * 16u;
		break;
	default:
		break;
	}
	if (*out > most)
		return husk_fail(err, HUSK_INVALID, "a VNC message of type %u has %zu bytes; the limit is %zu", head[0],
				 *out, most);
	if (head[0] == QEMU && head[1] != QEMU_KEY)
		return husk_fail(err, HUSK_INVALID, "QEMU's VNC message %u is not supported", head[1]);
	return 0;
}

/* ---- what is held down ---- */

static void note_key(struct rfb_filter *filter, bool down, struct rfb_key key)
{
	for (size_t i = 0; i < filter->key_count; i++) {
		if (filter->keys[i].symbol != key.symbol || filter->keys[i].code != key.code)
			continue;
		filter->keys[i] = filter->keys[--filter->key_count];
		break;
	}
	if (down && filter->key_count < RFB_KEYS_MAX)
		filter->keys[filter->key_count++] = key;
}

static void note_input(struct rfb_filter *filter)
{
	const uint8_t *head = filter->head;

	if (head[0] == KEY_EVENT)
		note_key(filter, head[1], (struct rfb_key){ .symbol = get32(head + 4) });
	if (head[0] == QEMU)
		note_key(filter, get16(head + 2),
			 (struct rfb_key){ .symbol = get32(head + 4), .code = get32(head + 8) });
	if (head[0] == POINTER_EVENT) {
		filter->buttons = head[1];
		filter->x = get16(head + 2);
		filter->y = get16(head + 4);
	}
}

int rfb_filter_release(struct rfb_filter *filter, struct buf *out, struct husk_error *err)
{
	int bad = 0;

	for (size_t i = 0; i < filter->key_count; i++) {
		uint8_t plain[8] = { KEY_EVENT }, qemu[12] = { QEMU, QEMU_KEY };
		put32(plain + 4, filter->keys[i].symbol);
		put32(qemu + 4, filter->keys[i].symbol);
		put32(qemu + 8, filter->keys[i].code);
		bad |= filter->keys[i].code ? buf_append(out, qemu, sizeof(qemu))
					    : buf_append(out, plain, sizeof(plain));
	}
	if (filter->buttons) {
		uint8_t pointer[6] = {
			POINTER_EVENT,     0, (uint8_t)(filter->x >> 8), (uint8_t)filter->x, (uint8_t)(filter->y >> 8),
			(uint8_t)filter->y
		};
		bad |= buf_append(out, pointer, sizeof(pointer));
	}
	filter->key_count = 0;
	filter->buttons = 0;
	return bad ? husk_fail_memory(err) : 0;
}

bool rfb_filter_inside(const struct rfb_filter *filter)
{
	return filter->left > 0 && !filter->dropped;
}

/* ---- the stream ---- */

/* The handshake: a version, a way to log in, and whether others may stay. The last is always yes: a viewer must not
 * put others out. */
static int handshake(struct rfb_filter *filter, struct husk_error *err)
{
	switch (filter->phase) {
	case RFB_VERSION:
		if (memcmp(filter->head, "RFB 003.008\n", VERSION_SIZE) != 0 &&
		    memcmp(filter->head, "RFB 003.007\n", VERSION_SIZE) != 0)
			return husk_fail(err, HUSK_INVALID, "the viewer does not speak RFB 3.7 or 3.8");
		filter->phase = RFB_SECURITY;
		return 0;
	case RFB_SECURITY:
		if (filter->head[0] != SECURITY_NONE)
			return husk_fail(err, HUSK_INVALID,
					 "the viewer wants VNC security type %u; only 1 (none) is supported",
					 filter->head[0]);
		filter->phase = RFB_INIT;
		return 0;
	case RFB_INIT:
	case RFB_MESSAGES:
		filter->head[0] = 1;
		filter->phase = RFB_MESSAGES;
		break;
	}
	return 0;
}

/* The size of the head that is being read; 0: a message of an unknown type. */
static size_t wanted(const struct rfb_filter *filter)
{
	if (filter->phase == RFB_VERSION)
		return VERSION_SIZE;
	if (filter->phase != RFB_MESSAGES || filter->have == 0)
		return 1;
	return head_size(filter->head[0]);
}

/* A head is complete. */
static int judge(struct rfb_filter *filter, bool control, struct buf *out, struct husk_error *err)
{
	size_t size = filter->have;

	filter->have = 0;
	if (filter->phase != RFB_MESSAGES) {
		if (handshake(filter, err) < 0)
			return -1;
		return buf_append(out, filter->head, size) < 0 ? husk_fail_memory(err) : 0;
	}
	if (rest_size(filter->head, &filter->left, err) < 0)
		return -1;
	filter->dropped = is_input(filter->head[0]) && !control;
	if (filter->dropped)
		return 0;
	note_input(filter);
	return buf_append(out, filter->head, size) < 0 ? husk_fail_memory(err) : 0;
}

/* Passes or drops what has come of the rest of a message; returns the count. */
static size_t take_rest(struct rfb_filter *filter, const char *bytes, size_t size, struct buf *out, bool *failed)
{
	size_t count = MIN(size, filter->left);

	if (!filter->dropped && count)
		*failed |= buf_append(out, bytes, count) < 0;
	filter->left -= count;
	return count;
}

int rfb_filter_feed(struct rfb_filter *filter, const char *bytes, size_t size, bool control, struct buf *out,
		    struct husk_error *err)
{
	bool failed = false;

	while (size > 0 && !failed) {
		size_t count = take_rest(filter, bytes, size, out, &failed);
		bytes += count;
		size -= count;
		if (size == 0)
			break;
		filter->head[filter->have++] = (uint8_t)*bytes++;
		size--;
		size_t whole = wanted(filter);
		if (whole == 0)
			return husk_fail(err, HUSK_INVALID, "the viewer sent a VNC message of the unknown type %u",
					 filter->head[0]);
		if (filter->have == whole && judge(filter, control, out, err) < 0)
			return -1;
	}
	return failed ? husk_fail_memory(err) : 0;
}
