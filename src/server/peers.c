/*
 * The TCP connections of huskd, and how long a client may hold one without being known. Called by http.c when
 * libmicrohttpd opens and closes a connection, and around each request.
 *
 * A connection is *known* while a request with a good token is under way on it; nothing here touches it then. At any other
 * time (nothing sent yet, half a head, a refused request, idle after an answer) it has a deadline that bytes do not move,
 * and one address may have a bounded number of such connections. When the table or an address's share is full, the one
 * that has been unknown for the longest time makes room for the new one. So clients without a token, however many
 * connections they open, never keep others out. The unix socket has a server, and so a table, of its own.
 *
 *     4,096 idle connections from 203.0.113.9        at most 512 of them are left, the newest
 *     a head that comes in a byte every 5 seconds    cut after 20 s
 *     a stream of events, 3 hours old                known: left alone
 */
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <time.h>

#include "server/core.h"

#define FIRST_MS 20000           /* from the connection to the head of its first request */
#define UNKNOWN_MS 60000         /* from the end of a request to the head of the next */
#define UNKNOWN_PER_ADDRESS 512u /* connections */
#define LOOK_MS 1000

struct peer {
	struct peer *previous, *next;
	int fd; /* a copy: libmicrohttpd closes its own before it calls back, and the number may be used again */
	unsigned char address[16]; /* IPv6 by its /64, which belongs to one customer */
	int64_t deadline_ms;       /* 0: known */
	bool cut;
};

static struct {
	pthread_mutex_t lock;
	struct peer *newest;
	size_t count;
	bool watching;
} table = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void read_address(const struct sockaddr *from, unsigned char out[static 16])
{
	memset(out, 0, 16);
	if (from && from->sa_family == AF_INET)
		memcpy(out, &((const struct sockaddr_in *)from)->sin_addr, 4);
	else if (from && from->sa_family == AF_INET6)
		memcpy(out, &((const struct sockaddr_in6 *)from)->sin6_addr, 8);
}

/* Its thread sees the end of the stream and closes it. Under the lock. */
static void cut(struct peer *peer)
{
	peer->cut = true;
	shutdown(peer->fd, SHUT_RDWR);
}

/* Makes room for one more connection from this address; under the lock. */
static void make_room(const unsigned char address[static 16])
{
	struct peer *oldest = NULL, *oldest_here = NULL;
	size_t here = 0;

	for (struct peer *peer = table.newest; peer; peer = peer->next) {
		if (!peer->deadline_ms || peer->cut)
			continue;
		bool same = memcmp(peer->address, address, 16) == 0;

		here += same;
		if (!oldest || peer->deadline_ms <= oldest->deadline_ms)
			oldest = peer;
		if (same && (!oldest_here || peer->deadline_ms <= oldest_here->deadline_ms))
			oldest_here = peer;
	}
	if (here >= UNKNOWN_PER_ADDRESS && oldest_here)
		cut(oldest_here);
	else if (table.count >= PEERS_MAX && oldest)
		cut(oldest);
}

/* Every second: cuts connections whose time is over. */
static void *watch(void *data)
{
	const struct timespec pause = { .tv_sec = LOOK_MS / 1000, .tv_nsec = LOOK_MS % 1000 * 1000000L };

	(void)data;
	for (;;) {
		nanosleep(&pause, NULL);
		int64_t now = time_monotonic_ms();
		pthread_mutex_lock(&table.lock);
		for (struct peer *peer = table.newest; peer; peer = peer->next)
			if (peer->deadline_ms && !peer->cut && peer->deadline_ms <= now)
				cut(peer);
		pthread_mutex_unlock(&table.lock);
	}
	return NULL;
}

int peers_watch(struct husk_error *err)
{
	pthread_t thread;

	if (!table.watching && thread_start(&thread, true, watch, NULL) != 0)
		return husk_fail(err, HUSK_INTERNAL, "cannot start a thread");
	table.watching = true;
	return 0;
}

/* NULL if memory or descriptors have run out: then only libmicrohttpd's timeouts apply. */
static struct peer *peer_open(struct MHD_Connection *connection)
{
	const union MHD_ConnectionInfo *socket = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
	const union MHD_ConnectionInfo *from = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
	struct peer *peer = socket ? calloc(1, sizeof(*peer)) : NULL;

	if (!peer || (peer->fd = fcntl(socket->connect_fd, F_DUPFD_CLOEXEC, 3)) < 0) {
		free(peer);
		return NULL;
	}
	read_address(from ? from->client_addr : NULL, peer->address);
	peer->deadline_ms = time_monotonic_ms() + FIRST_MS;
	pthread_mutex_lock(&table.lock);
	make_room(peer->address);
	peer->next = table.newest;
	if (peer->next)
		peer->next->previous = peer;
	table.newest = peer;
	table.count++;
	pthread_mutex_unlock(&table.lock);
	return peer;
}

static void peer_close(struct peer *peer)
{
	pthread_mutex_lock(&table.lock);
	if (peer->previous)
		peer->previous->next = peer->next;
	else
		table.newest = peer->next;
	if (peer->next)
		peer->next->previous = peer->previous;
	table.count--;
	pthread_mutex_unlock(&table.lock);
	fd_close(&peer->fd);
	free(peer);
}

void peers_notify(void *data, struct MHD_Connection *connection, void **context,
		  enum MHD_ConnectionNotificationCode what)
{
	(void)data;
	if (what == MHD_CONNECTION_NOTIFY_STARTED) {
		*context = peer_open(connection);
	} else if (*context) {
		peer_close(*context);
		*context = NULL;
	}
}

void peers_known(struct MHD_Connection *connection, bool known)
{
	const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
	struct peer *peer = info ? info->socket_context : NULL;

	if (!peer)
		return;
	pthread_mutex_lock(&table.lock);
	peer->deadline_ms = known ? 0 : time_monotonic_ms() + UNKNOWN_MS;
	pthread_mutex_unlock(&table.lock);
}
