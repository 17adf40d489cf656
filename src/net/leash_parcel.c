/*
 * See leash_parcel.h. Called by leash.c in the supervisor, and by leash_hold.c and leash_main.c in the leash.
 */
#include "net/leash_parcel.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define PART_MAX (32u << 10)
#define SEND_MS 10000

static int send_packet(int fd, struct iovec *parts, size_t count, int64_t end_ms)
{
	struct pollfd room = { .fd = fd, .events = POLLOUT };
	struct msghdr message = { .msg_iov = parts, .msg_iovlen = count };

	while (sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
		int64_t left = end_ms - time_monotonic_ms();

		if (errno != EINTR && (errno != EAGAIN || left <= 0 || poll(&room, 1, (int)left) <= 0))
			return -1;
	}
	return 0;
}

int parcel_send(int fd, const char *kind, json_t *head, uint64_t key, const char *data, size_t size)
{
	int64_t end = time_monotonic_ms() + SEND_MS;
	char mark[1 + sizeof(key)] = { 0 };

	if (json_object_set_new(head, "key", json_integer((json_int_t)key)) < 0 ||
	    json_object_set_new(head, "size", json_integer((json_int_t)size)) < 0)
		return -1;
	json_t *root = json_pack("{s:O}", kind, head);
	cleanup_free char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;
	json_decref(root);
	if (!text || send_packet(fd, &(struct iovec){ text, strlen(text) }, 1, end) < 0)
		return -1;
	memcpy(mark + 1, &key, sizeof(key));
	for (size_t at = 0; at < size; at += PART_MAX) {
		struct iovec parts[] = { { mark, sizeof(mark) }, { (char *)data + at, MIN(PART_MAX, size - at) } };

		if (send_packet(fd, parts, ARRAY_SIZE(parts), end) < 0)
			return -1;
	}
	return 0;
}

int parcel_begin(struct parcel *parcel, json_t *head)
{
	json_int_t key = json_integer_value(json_object_get(head, "key"));
	json_int_t size = json_integer_value(json_object_get(head, "size"));

	parcel_drop(parcel);
	if (key <= 0 || size <= 0 || size > (json_int_t)PARCEL_MAX)
		return -1;
	*parcel = (struct parcel){ .head = json_incref(head), .key = (uint64_t)key, .size = (size_t)size };
	return 0;
}

bool parcel_part(struct parcel *parcel, const char *packet, size_t size)
{
	uint64_t key;

	if (size <= 1 + sizeof(key))
		return false;
	memcpy(&key, packet + 1, sizeof(key));
	if (!parcel->head || parcel->key != key)
		return false;
	size -= 1 + sizeof(key);
	if (size > parcel->size - parcel->data.size || buf_append(&parcel->data, packet + 1 + sizeof(key), size) < 0) {
		parcel_drop(parcel);
		return false;
	}
	return parcel->data.size == parcel->size;
}

void parcel_drop(struct parcel *parcel)
{
	json_decref(parcel->head);
	buf_free(&parcel->data);
	*parcel = (struct parcel){ 0 };
}
