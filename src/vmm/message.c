/*
 * Messages with descriptors over the control socket. Both sides use the same code: it is compiled into husk-vmm and
 * into libhusk. A received descriptor that is not passed to the caller is closed, also after a failure.
 */
#include <sys/socket.h>

#include "vmm/control.h"

int control_send(int fd, const void *message, size_t size, const int *fds, size_t count, struct husk_error *err)
{
	_Alignas(struct cmsghdr) char space[CMSG_SPACE(CONTROL_FDS_MAX * sizeof(int))] = { 0 };
	struct iovec vector = { .iov_base = (void *)message, .iov_len = size };
	struct msghdr header = { .msg_iov = &vector, .msg_iovlen = 1 };
	ssize_t sent;

	if (count > CONTROL_FDS_MAX)
		return husk_fail(err, HUSK_INTERNAL, "too many descriptors for one message");
	if (count > 0) {
		struct cmsghdr *rights = (struct cmsghdr *)space;

		header.msg_control = space;
		header.msg_controllen = CMSG_SPACE(count * sizeof(int));
		rights->cmsg_level = SOL_SOCKET;
		rights->cmsg_type = SCM_RIGHTS;
		rights->cmsg_len = CMSG_LEN(count * sizeof(int));
		memcpy(CMSG_DATA(rights), fds, count * sizeof(int));
	}
	do
		sent = sendmsg(fd, &header, MSG_NOSIGNAL);
	while (sent < 0 && errno == EINTR);
	return sent == (ssize_t)size ? 0 : husk_fail_errno(err, "cannot send to the machine's process");
}

static void take_fds(struct msghdr *header, int fds[static CONTROL_FDS_MAX], size_t *count)
{
	*count = 0;
	for (struct cmsghdr *part = CMSG_FIRSTHDR(header); part; part = CMSG_NXTHDR(header, part)) {
		if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS)
			continue;
		size_t given = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (size_t i = 0; i < given; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
			if (*count < CONTROL_FDS_MAX)
				fds[(*count)++] = fd;
			else
				fd_close(&fd);
		}
	}
}

int control_receive(int fd, void *message, size_t size, int fds[static CONTROL_FDS_MAX], size_t *count,
		    struct husk_error *err)
{
	_Alignas(struct cmsghdr) char space[CMSG_SPACE(CONTROL_FDS_MAX * sizeof(int))];
	struct iovec vector = { .iov_base = message, .iov_len = size };
	struct msghdr header = {
		.msg_iov = &vector, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof(space)
	};
	ssize_t got;

	do
		got = recvmsg(fd, &header, MSG_CMSG_CLOEXEC);
	while (got < 0 && errno == EINTR);
	if (got < 0)
		return husk_fail_errno(err, "cannot receive from the machine's process");
	take_fds(&header, fds, count);
	if (got > 0 && got == (ssize_t)size && !(header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)))
		return 1;
	for (size_t i = 0; i < *count; i++)
		fd_close(&fds[i]);
	*count = 0;
	return got == 0 ? 0 : husk_fail(err, HUSK_PROTOCOL, "a message of %zd bytes, not %zu", got, size);
}
