/*
 * Frames: the header's encoding, and blocking send and receive. Both ends of every link use these functions. Bytes may come
 * from an attacker, so nothing is used before wire_header_decode has checked it.
 */
#include <limits.h>
#include <poll.h>
#include <sys/uio.h>

#include "wire/wire.h"

static void put_u32(uint8_t *bytes, uint32_t value)
{
	bytes[0] = (uint8_t)value;
	bytes[1] = (uint8_t)(value >> 8);
	bytes[2] = (uint8_t)(value >> 16);
	bytes[3] = (uint8_t)(value >> 24);
}

static uint32_t get_u32(const uint8_t *bytes)
{
	return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

void wire_header_encode(const struct wire_header *header, uint8_t bytes[static WIRE_HEADER_SIZE])
{
	put_u32(bytes, header->size);
	put_u32(bytes + 4, header->channel);
	bytes[8] = header->type;
	bytes[9] = header->stream;
	bytes[10] = 0;
	bytes[11] = 0;
}

int wire_header_decode(const uint8_t bytes[static WIRE_HEADER_SIZE], struct wire_header *out, struct husk_error *err)
{
	out->size = get_u32(bytes);
	out->channel = get_u32(bytes + 4);
	out->type = bytes[8];
	out->stream = bytes[9];
	if (out->size > WIRE_PAYLOAD_MAX)
		return husk_fail(err, HUSK_PROTOCOL, "frame of %u bytes: the limit is %u", out->size, WIRE_PAYLOAD_MAX);
	if (out->type < WIRE_HELLO || out->type > WIRE_CANCEL)
		return husk_fail(err, HUSK_PROTOCOL, "frame of unknown type %u", out->type);
	if (out->stream >= STREAM_COUNT)
		return husk_fail(err, HUSK_PROTOCOL, "frame for unknown stream %u", out->stream);
	if (bytes[10] || bytes[11])
		return husk_fail(err, HUSK_PROTOCOL, "frame with reserved bytes set");
	if (out->type == WIRE_CREDIT && out->size != 4)
		return husk_fail(err, HUSK_PROTOCOL, "credit frame of %u bytes, not 4", out->size);
	if ((out->channel == 0) != (out->type == WIRE_HELLO))
		return husk_fail(err, HUSK_PROTOCOL, "frame of type %u on channel %u", out->type, out->channel);
	return 0;
}

int wire_send(int fd, uint32_t channel, enum wire_type type, uint8_t stream, const void *payload, size_t size,
	      struct husk_error *err)
{
	uint8_t bytes[WIRE_HEADER_SIZE];

	if (size > WIRE_PAYLOAD_MAX)
		return husk_fail(err, HUSK_INVALID, "message of %zu bytes: the limit is %u", size, WIRE_PAYLOAD_MAX);
	wire_header_encode(&(struct wire_header){ (uint32_t)size, channel, (uint8_t)type, stream }, bytes);

	struct iovec parts[2] = { { bytes, sizeof(bytes) }, { (void *)payload, size } };
	size_t left = sizeof(bytes) + size;
	while (left > 0) {
		ssize_t n = writev(fd, parts, 2);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && (errno == EPIPE || errno == ECONNRESET))
			return husk_fail(err, HUSK_GONE, "the other side has closed the connection");
		if (n < 0)
			return husk_fail_errno(err, "cannot send a frame");
		left -= (size_t)n;
		for (size_t i = 0; i < 2; i++) {
			size_t used = MIN((size_t)n, parts[i].iov_len);
			parts[i].iov_base = (char *)parts[i].iov_base + used;
			parts[i].iov_len -= used;
			n -= (ssize_t)used;
		}
	}
	return 0;
}

/* As read_full, but fails with ETIMEDOUT at the deadline. */
static ssize_t read_until(int fd, void *data, size_t size, int64_t deadline_ms)
{
	size_t done = 0;

	while (done < size) {
		struct pollfd wait = { fd, POLLIN, 0 };
		int64_t left = deadline_ms < 0 ? -1 : MAX(0, deadline_ms - time_monotonic_ms());
		int ready = left == 0 ? 0 : poll(&wait, 1, (int)MIN(left, INT_MAX));
		if (ready ==
		    0) /* checked even if bytes are available: a peer that never stops sending gets no extra time */
			errno = ETIMEDOUT;
		if (ready == 0 || (ready < 0 && errno != EINTR))
			return -1;
		ssize_t got = ready < 0 ? -1 : read(fd, (char *)data + done, size - done);
		if (got < 0 && (errno == EINTR || errno == EAGAIN))
			continue;
		if (got < 0)
			return -1;
		if (got == 0)
			break;
		done += (size_t)got;
	}
	return (ssize_t)done;
}

static int fail_receive(struct husk_error *err)
{
	return errno == ETIMEDOUT ? husk_fail(err, HUSK_TIMEOUT, "the other side does not answer")
				  : husk_fail_errno(err, "cannot receive a frame");
}

int wire_receive_until(int fd, struct wire_header *header, char *payload, int64_t deadline_ms, struct husk_error *err)
{
	uint8_t bytes[WIRE_HEADER_SIZE];
	ssize_t n = deadline_ms < 0 ? read_full(fd, bytes, sizeof(bytes))
				    : read_until(fd, bytes, sizeof(bytes), deadline_ms);

	if (n == 0 || (n < 0 && errno == ECONNRESET))
		return 0;
	if (n < 0)
		return fail_receive(err);
	if ((size_t)n < sizeof(bytes))
		return husk_fail(err, HUSK_GONE, "the connection ended inside a frame");
	if (wire_header_decode(bytes, header, err) < 0)
		return -1;
	n = deadline_ms < 0 ? read_full(fd, payload, header->size) : read_until(fd, payload, header->size, deadline_ms);
	if (n < 0)
		return fail_receive(err);
	if ((size_t)n < header->size)
		return husk_fail(err, HUSK_GONE, "the connection ended inside a frame");
	return 1;
}

int wire_receive(int fd, struct wire_header *header, char *payload, struct husk_error *err)
{
	return wire_receive_until(fd, header, payload, -1, err);
}

int wire_send_end(int fd, uint32_t channel, const struct husk_error *e, const struct buf *results,
		  struct husk_error *err)
{
	cleanup_buf struct buf message = { 0 };

	if (wire_put_int(&message, TAG_STATUS, e ? (int64_t)e->code : HUSK_OK) < 0)
		return husk_fail_memory(err);
	if (e && e->code != HUSK_OK && wire_put_string(&message, TAG_MESSAGE, e->message) < 0)
		return husk_fail_memory(err);
	if (results && results->size && buf_append(&message, results->data, results->size) < 0)
		return husk_fail_memory(err);
	return wire_send(fd, channel, WIRE_END, 0, message.data, message.size, err);
}

/* The sandbox may be older than this program: it wakes with the agent that it was made with. */
static int fail_unknown(const char *number, struct husk_error *err)
{
	int64_t method;
	const char *name = str_to_int64(number, 1, 1000, &method) == 0 ? wire_method_name(method) : "this";

	return husk_fail(err, HUSK_UNAVAILABLE,
			 "'%s' is not supported in this sandbox, which an older husk made; build its template again "
			 "(husk template build NAME) and create a new one",
			 name);
}

int wire_end_status(const char *payload, size_t size, struct husk_error *err)
{
	int64_t status = wire_get_int(payload, size, TAG_STATUS, HUSK_PROTOCOL);
	cleanup_free char *message = NULL;

	if (status == HUSK_OK)
		return 0;
	if (status < HUSK_OK || status > HUSK_INTERNAL)
		status = HUSK_PROTOCOL;
	message = wire_get_string(payload, size, TAG_MESSAGE);
	if (message && str_starts(message, WIRE_UNKNOWN_METHOD))
		return fail_unknown(message + strlen(WIRE_UNKNOWN_METHOD), err);
	return husk_fail(err, (enum husk_code)status, "%s", message ? message : "the call failed without a reason");
}
