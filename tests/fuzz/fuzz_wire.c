/*
 * Fuzz target: everything on the host that reads bytes an agent wrote. The input is fed to the header and field readers
 * as it is, and then to a call (src/client/call.c) as the stream of a peer, either raw or cut into frames with right
 * sizes, so that the fuzzer gets past the headers quickly.
 *
 * The call runs in this thread alone, against a socket pair that already holds all its peer will ever say: a call that
 * does not come to an end shows as a hang.
 */
#include <sys/socket.h>

#include "client/call.h"

#define INPUT_MAX (48u * 1024u) /* has to fit in a socket's buffer: nobody reads it while we write */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The other end of the next connection, prepared by feed_call. */
static int connection = -1;

int husk_connect(struct husk *husk, const char *sandbox, struct husk_error *err)
{
	(void)husk, (void)sandbox, (void)err;
	return steal_fd(&connection);
}

static void read_fields(const char *data, size_t size)
{
	struct husk_error err = { 0 };
	struct wire_field field;
	size_t cursor = 0, walked = 0;
	int got;

	while ((got = wire_next(data, size, &cursor, &field)) > 0)
		walked += field.size;
	if (wire_valid(data, size) != (got == 0) || walked > size)
		abort();
	cleanup_free char *message = wire_get_string(data, size, TAG_MESSAGE);
	cleanup_strv char **arguments = wire_get_strings(data, size, TAG_ARG);
	if ((message && strlen(message) > size) || (arguments && strv_length(arguments) > size))
		abort();
	wire_get_int(data, size, TAG_PID, 0);
	if (wire_end_status(data, size, &err) < 0 && err.code == HUSK_OK)
		abort();
	for (int64_t method = METHOD_EXEC; got == 0 && method <= METHOD_SANDBOX_REWIND; method++)
		if (wire_check(method, WIRE_OPEN, data, size, &err) < 0 && err.code != HUSK_INVALID)
			abort();
}

static void read_header(const uint8_t *data, size_t size)
{
	struct wire_header header;
	uint8_t again[WIRE_HEADER_SIZE];

	if (size < WIRE_HEADER_SIZE || wire_header_decode(data, &header, NULL) < 0)
		return;
	if (header.size > WIRE_PAYLOAD_MAX || header.stream >= STREAM_COUNT)
		abort();
	wire_header_encode(&header, again);
	if (memcmp(again, data, WIRE_HEADER_SIZE) != 0)
		abort();
}

/* Three bytes of input (type, stream, size) and what follows become one frame of channel 1. */
static int put_frames(struct buf *stream, const uint8_t *data, size_t size)
{
	while (size >= 3) {
		size_t length = MIN((size_t)data[2], size - 3);
		uint8_t header[WIRE_HEADER_SIZE];
		wire_header_encode(
			&(struct wire_header){ (uint32_t)length, 1, (uint8_t)(data[0] % 10), (uint8_t)(data[1] % 4) },
			header);
		if (buf_append(stream, header, sizeof(header)) < 0 ||
		    (length && buf_append(stream, data + 3, length) < 0))
			return -1;
		data += 3 + length;
		size -= 3 + length;
	}
	return 0;
}

/* A call whose peer says exactly these bytes and hangs up. It has to come to an end, and to say how. */
static void feed_call(const char *bytes, size_t size, bool writes)
{
	struct call_event event = { 0 };
	struct husk_error err = { 0 };
	struct call *call = NULL;
	int pair[2];

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
		abort();
	connection = pair[0];
	if (write_full(pair[1], bytes, size) < 0 || shutdown(pair[1], SHUT_WR) < 0)
		abort();
	if (call_start(NULL, "fuzz", METHOD_EXEC, NULL, &call, &err) < 0)
		abort();
	if (writes)
		call_write(call, "0123456789", 10, NULL);
	while (call_next(call, &event, &err) == 0) {
		if (event.type == WIRE_DATA && event.stream == STREAM_IN)
			abort();
		if (event.type == WIRE_MSG || event.type == WIRE_END)
			read_fields(event.data, event.size);
	}
	if (err.code != HUSK_GONE && err.code != HUSK_PROTOCOL)
		abort();
	call_free(call);
	close(pair[1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	cleanup_buf struct buf stream = { 0 };

	if (size == 0 || size > INPUT_MAX)
		return 0;
	read_header(data, size);
	read_fields((const char *)data, size);
	if (data[0] & 1)
		feed_call((const char *)data + 1, size - 1, data[0] & 2);
	else if (put_frames(&stream, data + 1, size - 1) == 0 && stream.size <= INPUT_MAX)
		feed_call(stream.data, stream.size, data[0] & 2);
	return 0;
}
