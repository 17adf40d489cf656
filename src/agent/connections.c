/*
 * Ends TCP connections that a restored machine inherited from the machine it was copied from. Their other ends belong to
 * that machine, so a program that waits for an answer would never get one. Called on IDENTITY, while every process is
 * stopped. Loopback connections and listening sockets stay open.
 */
#include <netinet/in.h>
#include <sys/socket.h>

#include "agent/agent.h"

/* From <linux/netlink.h> and <linux/inet_diag.h>, which musl does not provide. */
#define NETLINK_DIAG 4
#define DIAG_LIST 20
#define DIAG_DESTROY 21
#define FLAG_REQUEST 0x001
#define FLAG_ACK 0x004
#define FLAG_DUMP 0x300
#define TYPE_ERROR 2
#define TYPE_DONE 3
#define STATE_TIME_WAIT 6
#define STATE_CLOSE 7
#define STATE_LISTEN 10
#define STATE_NEW 12

struct diag_header {
	uint32_t size;
	uint16_t type, flags;
	uint32_t number, port;
};
struct diag_id {
	uint16_t source_port, target_port;
	uint32_t source[4], target[4];
	uint32_t interface, cookie[2];
};
struct diag_request {
	struct diag_header header;
	uint8_t family, protocol, extra, zero;
	uint32_t states;
	struct diag_id id;
};
struct diag_socket {
	uint8_t family, state, timer, retries;
	struct diag_id id;
	uint32_t expires, receive_queue, send_queue, uid, inode;
};

/* True for a socket with a peer outside the machine: not for loopback in any form, nor for a socket without an
 * address. */
static bool leaves(const struct diag_socket *at)
{
	const uint32_t *source = at->id.source;
	bool mapped = at->family == AF_INET6 && !source[0] && !source[1] && source[2] == htonl(0xffff);
	uint32_t plain = ntohl(at->family == AF_INET ? source[0] : source[3]);

	if (at->family == AF_INET || mapped)
		return plain != 0 && plain >> 24 != 127;
	return source[0] || source[1] || source[2] || plain > 1;
}

static int ask(int fd, struct diag_request *request, struct husk_error *err)
{
	request->header.size = sizeof(*request);
	if (send(fd, request, sizeof(*request), 0) != (ssize_t)sizeof(*request))
		return husk_fail_errno(err, "cannot ask for connections");
	return 0;
}

static void destroy(int fd, const struct diag_socket *at, uint8_t protocol)
{
	struct diag_request request = { .header = { .type = DIAG_DESTROY, .flags = FLAG_REQUEST | FLAG_ACK },
					.family = at->family,
					.protocol = protocol,
					.states = UINT32_MAX,
					.id = at->id };
	char answer[256];

	/* A connection that has ended meanwhile is fine. */
	if (ask(fd, &request, NULL) == 0)
		(void)!recv(fd, answer, sizeof(answer), 0);
}

/* Handles each socket of one part of a listing; returns 1 at the end of the listing. */
static int take_part(const char *part, size_t size, int second, uint8_t protocol)
{
	struct diag_header header;
	struct diag_socket at;

	for (size_t from = 0; from + sizeof(header) <= size; from += (header.size + 3u) & ~3u) {
		memcpy(&header, part + from, sizeof(header));
		if (header.type == TYPE_DONE || header.type == TYPE_ERROR || header.size < sizeof(header) ||
		    header.size > size - from)
			return 1;
		if (header.size < sizeof(header) + sizeof(at))
			continue;
		memcpy(&at, part + from + sizeof(header), sizeof(at));
		if (leaves(&at))
			destroy(second, &at, protocol);
	}
	return 0;
}

static int cut(int first, int second, uint8_t family, uint8_t protocol, struct husk_error *err)
{
	static char part[32 * 1024];
	struct diag_request request = { .header = { .type = DIAG_LIST, .flags = FLAG_REQUEST | FLAG_DUMP },
					.family = family,
					.protocol = protocol,
					.states = ~(1u << STATE_TIME_WAIT | 1u << STATE_CLOSE | 1u << STATE_LISTEN |
						    1u << STATE_NEW) };

	if (ask(first, &request, err) < 0)
		return -1;
	for (;;) {
		ssize_t size = recv(first, part, sizeof(part), 0);

		if (size < 0)
			return husk_fail_errno(err, "cannot list connections");
		if (size == 0 || take_part(part, (size_t)size, second, protocol))
			return 0;
	}
}

int connections_cut(bool moved, struct husk_error *err)
{
	static const uint8_t families[] = { AF_INET, AF_INET6 }, protocols[] = { IPPROTO_TCP, IPPROTO_UDP };
	size_t protocol_count = moved ? 2 : 1;
	/* A second socket ends the connections, so that answers do not mix. */
	cleanup_close int first = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_DIAG);
	cleanup_close int second = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_DIAG);

	if (first < 0 || second < 0)
		return husk_fail_errno(err, "cannot ask for connections");
	for (size_t i = 0; i < ARRAY_SIZE(families); i++)
		for (size_t j = 0; j < protocol_count; j++)
			if (cut(first, second, families[i], protocols[j], err) < 0)
				return -1;
	return 0;
}
