/*
 * connect HOST PORT SOCKET: one TCP connection of the guest as a unix socket. `husk build` downloads what ADD names over
 * it (src/build/fetch.c): the connection passes the egress policy of the sandbox like every other one of the guest,
 * while the host runs HTTP and TLS over it.
 *
 * The name is looked up and the connection made before the socket exists. Then "ready" is printed, the first client of
 * the socket is accepted, and bytes are copied in both directions until both ends are finished.
 */
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define CHUNK 65536
#define WAIT_SECONDS 60 /* for the client of the socket */

static int fail(const char *what, const char *why)
{
	fprintf(stderr, "%s: %s\n", what, why);
	return -1;
}

static int open_connection(const char *host, const char *port)
{
	const struct addrinfo hints = { .ai_family = AF_INET, .ai_socktype = SOCK_STREAM };
	struct addrinfo *list = NULL;
	int fd = -1, why = getaddrinfo(host, port, &hints, &list);

	if (why)
		return fail(host, gai_strerror(why));
	for (const struct addrinfo *at = list; at && fd < 0; at = at->ai_next) {
		fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (fd >= 0 && connect(fd, at->ai_addr, at->ai_addrlen) < 0) {
			why = errno;
			close(fd);
			fd = -1;
		}
	}
	freeaddrinfo(list);
	return fd < 0 ? fail(host, strerror(why)) : fd;
}

static int take_client(const char *path)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (strlen(path) >= sizeof(address.sun_path))
		return fail(path, "the path is too long");
	memcpy(address.sun_path, path, strlen(path) + 1);
	unlink(path);
	if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof(address)) < 0 || listen(listener, 1) < 0)
		return fail(path, strerror(errno));
	puts("ready");
	fflush(stdout);
	struct pollfd wait = { .fd = listener, .events = POLLIN };
	int fd = poll(&wait, 1, WAIT_SECONDS * 1000) > 0 ? accept(listener, NULL, NULL) : -1;
	close(listener);
	unlink(path);
	return fd < 0 ? fail(path, "nobody came") : fd;
}

/* Carries what is readable to the other side; false: that direction has ended. */
static bool carry(int from, int to)
{
	static char bytes[CHUNK];
	ssize_t size = read(from, bytes, sizeof(bytes));

	for (ssize_t at = 0, sent; at < size; at += sent)
		if ((sent = write(to, bytes + at, (size_t)(size - at))) <= 0)
			return false;
	if (size > 0)
		return true;
	shutdown(to, SHUT_WR);
	return false;
}

int main(int argc, char **argv)
{
	struct pollfd ends[2];

	if (argc != 4)
		return 2;
	signal(SIGPIPE, SIG_IGN);
	int outside = open_connection(argv[1], argv[2]);
	int inside = outside < 0 ? -1 : take_client(argv[3]);
	if (inside < 0)
		return 1;
	ends[0] = (struct pollfd){ .fd = inside, .events = POLLIN };
	ends[1] = (struct pollfd){ .fd = outside, .events = POLLIN };
	while (ends[0].fd >= 0 || ends[1].fd >= 0) {
		if (poll(ends, 2, -1) < 0)
			return 1;
		if (ends[0].fd >= 0 && ends[0].revents && !carry(inside, outside))
			ends[0].fd = -1;
		if (ends[1].fd >= 0 && ends[1].revents && !carry(outside, inside))
			ends[1].fd = -1;
	}
	return 0;
}
