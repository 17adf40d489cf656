/*
 * Receives listening sockets from systemd; see activation.h. Called by main.c, once. Example: huskd.socket has
 * ListenStream=/run/husk/huskd.sock, systemd starts `LISTEN_PID=712 LISTEN_FDS=1 huskd` as process 712, and descriptor
 * 3 is that socket. Two sockets may be passed, one unix and one TCP.
 */
#include "server/activation.h"

#include <fcntl.h>
#include <sys/socket.h>

#define FIRST_FD 3
#define SOCKETS_MAX 16 /* more is a mistake in the unit */

static int take_path(struct activation *out, const struct sockaddr_un *address, socklen_t size, struct husk_error *err)
{
	size_t length = size > offsetof(struct sockaddr_un, sun_path)
				? strnlen(address->sun_path, size - offsetof(struct sockaddr_un, sun_path))
				: 0;

	if (length == 0 || length >= sizeof(out->path))
		return husk_fail(err, HUSK_INVALID,
				 "the unix socket from systemd has no path; set ListenStream=/run/husk/huskd.sock");
	memcpy(out->path, address->sun_path, length);
	out->path[length] = '\0';
	return 0;
}

static int take_socket(struct activation *out, int fd, struct husk_error *err)
{
	union {
		struct sockaddr any;
		struct sockaddr_un local;
		struct sockaddr_storage room;
	} address = { 0 };
	socklen_t address_size = sizeof(address), size = sizeof(int);
	int listening = 0, type = 0;

	if (fcntl(fd, F_SETFD, FD_CLOEXEC) < 0 || getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) < 0 ||
	    getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) < 0 ||
	    getsockname(fd, &address.any, &address_size) < 0)
		return husk_fail_errno(err, "descriptor %d from systemd (LISTEN_FDS) is not a socket", fd);
	bool local = address.any.sa_family == AF_UNIX;
	bool tcp = address.any.sa_family == AF_INET || address.any.sa_family == AF_INET6;
	if (type != SOCK_STREAM || !listening || !(local || tcp))
		return husk_fail(err, HUSK_INVALID,
				 "huskd cannot serve descriptor %d from systemd; use ListenStream= and Accept=no", fd);
	int *place = local ? &out->local : &out->tcp;
	if (*place >= 0)
		return husk_fail(err, HUSK_INVALID, "systemd passed two %s sockets; huskd serves one",
				 local ? "unix" : "TCP");
	*place = fd;
	return local ? take_path(out, &address.local, address_size, err) : 0;
}

int activation_take(struct activation *out, struct husk_error *err)
{
	const char *pid = getenv("LISTEN_PID"), *count_text = getenv("LISTEN_FDS");
	int64_t owner = 0, count = 0;

	*out = (struct activation){ .local = -1, .tcp = -1 };
	bool ours = pid && count_text && str_to_int64(pid, 1, INT32_MAX, &owner) == 0 && owner == getpid();
	if (ours && str_to_int64(count_text, 0, SOCKETS_MAX, &count) < 0)
		return husk_fail(err, HUSK_INVALID, "LISTEN_FDS is '%s'; give 0 to %d", count_text, SOCKETS_MAX);
	unsetenv("LISTEN_PID");
	unsetenv("LISTEN_FDS");
	unsetenv("LISTEN_FDNAMES");
	for (int i = 0; i < (int)count; i++)
		if (take_socket(out, FIRST_FD + i, err) < 0)
			return -1;
	return 0;
}
