/*
 * Connections to a server: the unix socket, or TCP to the first of the host's addresses that answers. Each error
 * message says what to type, because new users meet these errors first.
 */
#include <fcntl.h>
#include <grp.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pwd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "remote/remote_http.h"

#define CONNECT_MS 10000
#define GROUP "husk"

/* ---- the unix socket ---- */

/* True if the user is listed in the group, but this process does not have the group yet. */
static bool joined_later(const char *user, gid_t group)
{
	gid_t listed[256];
	int count = ARRAY_SIZE(listed);
	const struct passwd *entry = getpwnam(user);

	if (!entry || getgrouplist(user, entry->pw_gid, listed, &count) < 0)
		return false;
	for (int i = 0; i < count; i++)
		if (listed[i] == group)
			return true;
	return false;
}

/* The group that may use the socket, by name or number; NULL: none. If the socket cannot be looked at, Husk's own
 * group. */
static char *socket_group(const char *path, gid_t *number)
{
	struct stat status;
	bool seen = stat(path, &status) == 0;
	const struct group *group = seen ? getgrgid(status.st_gid) : getgrnam(GROUP);

	if ((seen && !(status.st_mode & S_IWGRP)) || (!seen && !group))
		return NULL;
	*number = group ? group->gr_gid : status.st_gid;
	return group ? strdup(group->gr_name) : str_format("%u", status.st_gid);
}

static int fail_closed(const struct remote *remote, struct husk_error *err)
{
	const struct passwd *entry = getpwuid(geteuid());
	cleanup_free char *user = entry ? strdup(entry->pw_name) : str_format("%u", geteuid());
	gid_t number = 0;
	cleanup_free char *group = socket_group(remote->path, &number);

	if (!user)
		return husk_fail_memory(err);
	if (!group)
		return husk_fail(err, HUSK_DENIED,
				 "the server's socket '%s' is for root alone, because the server found no group '" GROUP
				 "'; run: sudo groupadd --system " GROUP " && sudo usermod -aG " GROUP
				 " %s, start huskd again, and log in again",
				 remote->path, user);
	if (joined_later(user, number))
		return husk_fail(
			err, HUSK_DENIED,
			"you were added to the group '%s' after this session began; log in again, or run: newgrp %s",
			group, group);
	return husk_fail(
		err, HUSK_DENIED,
		"the server's socket '%s' is for root and for the group '%s'; run: sudo usermod -aG %s %s, and log in "
		"again",
		remote->path, group, group, user);
}

static int connect_unix(const struct remote *remote, struct husk_error *err)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	cleanup_close int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return husk_fail_errno(err, "cannot make a socket");
	if (strlen(remote->path) >= sizeof(address.sun_path))
		return husk_fail_field(err, "host", "the socket's path '%s' is longer than %zu bytes", remote->path,
				       sizeof(address.sun_path) - 1);
	memcpy(address.sun_path, remote->path, strlen(remote->path) + 1);
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0)
		return steal_fd(&fd);
	if (errno == EACCES || errno == EPERM)
		return fail_closed(remote, err);
	if (errno == ENOENT || errno == ECONNREFUSED || errno == ENOTDIR)
		return husk_fail(err, HUSK_UNAVAILABLE,
				 "no server listens on '%s'; start one with: sudo husk serve, or use husk as root",
				 remote->path);
	husk_fail_errno(err, "cannot connect to '%s'", remote->path);
	if (err)
		err->code = HUSK_UNAVAILABLE;
	return -1;
}

/* ---- TCP ---- */

/* A server that vanished is noticed within a minute, even if the client only reads. */
static void set_options(int fd)
{
	int timeout = 60000;

	fd_set_keepalive(fd, 30, 10, 3);
	setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout, sizeof(timeout));
}

/* -1 with errno. */
static int connect_address(const struct addrinfo *address)
{
	cleanup_close int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	int failure = 0;
	socklen_t size = sizeof(failure);

	if (fd < 0)
		return -1;
	if (connect(fd, address->ai_addr, address->ai_addrlen) < 0) {
		struct pollfd wait = { .fd = fd, .events = POLLOUT };
		if (errno != EINPROGRESS)
			return -1;
		int ready;
		do
			ready = poll(&wait, 1, CONNECT_MS);
		while (ready < 0 && errno == EINTR);
		if (ready == 0)
			failure = ETIMEDOUT;
		else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &failure, &size) < 0)
			failure = errno;
	}
	if (failure) {
		errno = failure;
		return -1;
	}
	set_options(fd);
	return fd_set_nonblocking(fd, false) < 0 ? -1 : steal_fd(&fd);
}

static int connect_tcp(const struct remote *remote, struct husk_error *err)
{
	const struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV };
	struct addrinfo *list = NULL;
	int fd = -1;
	int failed = getaddrinfo(remote->host, remote->port, &hints, &list);

	if (failed)
		return husk_fail(err, HUSK_UNAVAILABLE,
				 "cannot find the host '%s' of %s: %s; check --host and HUSK_HOST", remote->host,
				 remote->url, gai_strerror(failed));
	for (const struct addrinfo *each = list; each && fd < 0; each = each->ai_next)
		fd = connect_address(each);
	int number = errno;
	freeaddrinfo(list);
	if (fd >= 0)
		return fd;
	return husk_fail(
		err, HUSK_UNAVAILABLE,
		"cannot reach %s: %s; is huskd running there, and does it listen beyond its own machine (husk serve "
		"--listen ADDR:PORT)?",
		remote->url, strerror(number));
}

int remote_connect(struct remote *remote, struct husk_error *err)
{
	if (remote->path)
		return connect_unix(remote, err);
	int fd = connect_tcp(remote, err);
	return fd < 0 || !remote->tls ? fd : tls_wrap(remote, fd, err);
}
