/*
 * The handshake of a VNC client; see rfb_client.h. Every part has a fixed size or a bound, and one deadline covers the
 * whole handshake. Updates are requested at intervals, not after each update, so that no update must be parsed to find
 * its end.
 */
#include "client/rfb_client.h"

#include <poll.h>
#include <sys/socket.h>

#define VERSION "RFB 003.008\n"
#define VERSION_SIZE 12
#define SECURITY_NONE 1
#define INIT_SIZE 24
#define NAME_MAX_BYTES 4096u

/* The form of pixels, and the encodings, of noVNC; without Cursor, so that the server paints the pointer into the picture.
 * film/film_screen.c reads these. */
static const uint8_t pixel_format[] = { 32, 24, 0, 1, 0, 255, 0, 255, 0, 255, 0, 8, 16, 0, 0, 0 };
static const int32_t encodings[] = {
	1,    /* CopyRect */
	7,    /* Tight */
	5,    /* Hextile */
	0,    /* Raw */
	-24,  /* JPEG of quality 8 of 9 inside Tight */
	-250, /* compression 6 of 9 */
	-223, /* DesktopSize */
	-224, /* LastRect */
};

static void put16(uint8_t *to, uint16_t value)
{
	to[0] = (uint8_t)(value >> 8);
	to[1] = (uint8_t)value;
}

static void put32(uint8_t *to, uint32_t value)
{
	put16(to, (uint16_t)(value >> 16));
	put16(to + 2, (uint16_t)value);
}

static int take(int fd, void *bytes, size_t size, int64_t until, struct husk_error *err)
{
	uint8_t *at = bytes;

	while (size > 0) {
		struct pollfd wait = { .fd = fd, .events = POLLIN };
		int64_t left = until - time_monotonic_ms();
		if (left <= 0)
			return husk_fail(err, HUSK_TIMEOUT, "the VNC server of the desktop does not answer");
		if (poll(&wait, 1, (int)left) <= 0)
			continue;
		ssize_t count = recv(fd, at, size, MSG_DONTWAIT);
		if (count < 0 && (errno == EAGAIN || errno == EINTR))
			continue;
		if (count <= 0)
			return husk_fail(err, HUSK_PROTOCOL, "the VNC server of the desktop ended the connection");
		at += count;
		size -= (size_t)count;
	}
	return 0;
}

/* All that is sent here is small: a socket that does not take it at once is of a server that does not read. */
static int give(int fd, const void *bytes, size_t size, struct husk_error *err)
{
	if (send(fd, bytes, size, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)size)
		return 0;
	return husk_fail(err, HUSK_PROTOCOL, "the VNC server of the desktop does not read");
}

static int log_in(int fd, int64_t until, struct husk_error *err)
{
	uint8_t version[VERSION_SIZE], count, types[255], result[4];
	uint8_t none = SECURITY_NONE;

	if (take(fd, version, sizeof(version), until, err) < 0)
		return -1;
	if (memcmp(version, VERSION, VERSION_SIZE) != 0)
		return husk_fail(err, HUSK_PROTOCOL, "the VNC server of the desktop does not speak RFB 3.8");
	if (give(fd, VERSION, VERSION_SIZE, err) < 0 || take(fd, &count, 1, until, err) < 0 ||
	    take(fd, types, count, until, err) < 0)
		return -1;
	if (!memchr(types, SECURITY_NONE, count))
		return husk_fail(err, HUSK_PROTOCOL, "the VNC server of the desktop wants a password");
	if (give(fd, &none, 1, err) < 0 || take(fd, result, sizeof(result), until, err) < 0)
		return -1;
	static const uint8_t good[4];
	return memcmp(result, good, sizeof(good)) == 0
		       ? 0
		       : husk_fail(err, HUSK_PROTOCOL, "the VNC server of the desktop refuses connections");
}

/* The size of the screen; the name of the desktop is dropped. */
static int read_init(int fd, int64_t until, struct rfb_hello *out, struct husk_error *err)
{
	uint8_t shared = 1, init[INIT_SIZE], name[256];

	if (give(fd, &shared, 1, err) < 0 || take(fd, init, sizeof(init), until, err) < 0)
		return -1;
	out->width = (uint16_t)(init[0] << 8 | init[1]);
	out->height = (uint16_t)(init[2] << 8 | init[3]);
	uint32_t length = (uint32_t)init[20] << 24 | (uint32_t)init[21] << 16 | (uint32_t)init[22] << 8 | init[23];
	if (length > NAME_MAX_BYTES)
		return husk_fail(err, HUSK_PROTOCOL, "the name of the desktop has %u bytes", length);
	for (; length > 0; length -= MIN(length, (uint32_t)sizeof(name)))
		if (take(fd, name, MIN(length, sizeof(name)), until, err) < 0)
			return -1;
	return 0;
}

static int choose_form(int fd, struct husk_error *err)
{
	uint8_t format[4 + sizeof(pixel_format)] = { 0 };
	uint8_t wanted[4 + sizeof(encodings)] = { 2 };

	memcpy(format + 4, pixel_format, sizeof(pixel_format));
	put16(wanted + 2, ARRAY_SIZE(encodings));
	for (size_t i = 0; i < ARRAY_SIZE(encodings); i++)
		put32(wanted + 4 + 4 * i, (uint32_t)encodings[i]);
	return give(fd, format, sizeof(format), err) < 0 ? -1 : give(fd, wanted, sizeof(wanted), err);
}

/* RFB 3.3 for players: the server decides that there is no login. */
static void make_hello(struct rfb_hello *hello)
{
	static const char begin[] = "RFB 003.003\n\0\0\0\1";
	static const char name[] = "\0\0\0\4husk";
	uint8_t *at = hello->bytes;

	memcpy(at, begin, sizeof(begin) - 1);
	at += sizeof(begin) - 1;
	put16(at, hello->width);
	put16(at + 2, hello->height);
	memcpy(at + 4, pixel_format, sizeof(pixel_format));
	at += 4 + sizeof(pixel_format);
	memcpy(at, name, sizeof(name) - 1);
	at += sizeof(name) - 1;
	hello->size = (size_t)(at - hello->bytes);
}

int rfb_client_open(int fd, int timeout_ms, struct rfb_hello *out, struct husk_error *err)
{
	int64_t until = time_monotonic_ms() + timeout_ms;

	if (log_in(fd, until, err) < 0 || read_init(fd, until, out, err) < 0 || choose_form(fd, err) < 0)
		return -1;
	make_hello(out);
	return 0;
}

int rfb_client_ask(int fd, bool all)
{
	/* The server cuts the area to its screen, which may have another size by now. */
	uint8_t request[10] = { 3, !all, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff };

	/* A full socket has earlier requests in it. */
	return send(fd, request, sizeof(request), MSG_DONTWAIT | MSG_NOSIGNAL) >= 0 || errno == EAGAIN ? 0 : -1;
}
