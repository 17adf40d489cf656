/*
 * rtnetlink requests; see netlink.h. The kernel is the only peer. A request either succeeds, or fails with an error
 * that names the step: a set-up must never continue after a failed step.
 */
#include "net/netlink.h"

#include <linux/rtnetlink.h>
#include <sys/socket.h>

#define ANSWER_SIZE (32u << 10)

int netlink_open(struct husk_error *err)
{
	struct sockaddr_nl kernel = { .nl_family = AF_NETLINK };
	struct timeval patience = { .tv_sec = 10 };
	cleanup_close int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);

	if (fd < 0 || connect(fd, (struct sockaddr *)&kernel, sizeof(kernel)) < 0 ||
	    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)) < 0)
		return husk_fail_errno(err, "cannot talk to the kernel about networks");
	return steal_fd(&fd);
}

static void append(struct netlink_message *message, const void *data, size_t size)
{
	size_t room = NLMSG_ALIGN(size);

	if (message->overflow || room > sizeof(message->data) - message->size) {
		message->overflow = true;
		return;
	}
	memset(message->data + message->size, 0, room);
	if (size)
		memcpy(message->data + message->size, data, size);
	message->size += room;
}

void netlink_begin(struct netlink_message *message, uint16_t type, uint16_t flags, const void *header, size_t size)
{
	struct nlmsghdr head = { .nlmsg_type = type, .nlmsg_flags = (uint16_t)(NLM_F_REQUEST | flags), .nlmsg_seq = 1 };

	message->size = 0;
	message->overflow = false;
	append(message, &head, sizeof(head));
	append(message, header, size);
}

void netlink_put(struct netlink_message *message, uint16_t type, const void *data, size_t size)
{
	struct nlattr head = { .nla_len = (uint16_t)(NLA_HDRLEN + size), .nla_type = type };

	append(message, &head, sizeof(head));
	append(message, data, size);
}

size_t netlink_nest(struct netlink_message *message, uint16_t type, const void *header, size_t size)
{
	size_t at = message->size;

	netlink_put(message, type, header, size);
	return at;
}

void netlink_nest_end(struct netlink_message *message, size_t nest)
{
	struct nlattr *head = (struct nlattr *)(void *)(message->data + nest);

	if (!message->overflow)
		head->nla_len = (uint16_t)(message->size - nest);
}

static int send_request(int fd, struct netlink_message *message, const char *what, struct husk_error *err)
{
	struct nlmsghdr *head = (struct nlmsghdr *)(void *)message->data;

	if (message->overflow)
		return husk_fail(err, HUSK_INTERNAL, "%s: the request is too long", what);
	head->nlmsg_len = (uint32_t)message->size;
	if (send(fd, message->data, message->size, 0) != (ssize_t)message->size)
		return husk_fail_errno(err, "%s", what);
	return 0;
}

/* The error in an NLMSG_ERROR or NLMSG_DONE, as a positive errno; 0: success. */
static int answer_error(const struct nlmsghdr *head)
{
	int number = 0;

	if (head->nlmsg_len >= NLMSG_LENGTH(sizeof(number)))
		memcpy(&number, NLMSG_DATA(head), sizeof(number));
	return -number;
}

/* Reads until the answer to a request is complete. */
static int receive(int fd, const char *what, void (*each)(void *data, const struct nlmsghdr *answer), void *data,
		   struct husk_error *err)
{
	cleanup_free char *answer = malloc(ANSWER_SIZE);

	if (!answer)
		return husk_fail_memory(err);
	for (;;) {
		ssize_t got = recv(fd, answer, ANSWER_SIZE, 0);
		size_t left = got > 0 ? (size_t)got : 0;

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return husk_fail_errno(err, "%s", what);
		for (struct nlmsghdr *head = (struct nlmsghdr *)(void *)answer; NLMSG_OK(head, left);
		     head = NLMSG_NEXT(head, left)) {
			if (head->nlmsg_type != NLMSG_ERROR && head->nlmsg_type != NLMSG_DONE) {
				if (each)
					each(data, head);
				continue;
			}
			errno = answer_error(head);
			return errno ? husk_fail_errno(err, "%s", what) : 0;
		}
	}
}

int netlink_ask(int fd, struct netlink_message *message, const char *what,
		void (*each)(void *data, const struct nlmsghdr *answer), void *data, struct husk_error *err)
{
	struct nlmsghdr *head = (struct nlmsghdr *)(void *)message->data;

	head->nlmsg_flags |= NLM_F_ACK;
	if (send_request(fd, message, what, err) < 0)
		return -1;
	return receive(fd, what, each, data, err);
}

int netlink_talk(int fd, struct netlink_message *message, const char *what, struct husk_error *err)
{
	return netlink_ask(fd, message, what, NULL, NULL, err);
}

int netlink_dump(int fd, struct netlink_message *message, const char *what,
		 void (*each)(void *data, const struct nlmsghdr *answer), void *data, struct husk_error *err)
{
	struct nlmsghdr *head = (struct nlmsghdr *)(void *)message->data;

	head->nlmsg_flags |= NLM_F_DUMP;
	if (send_request(fd, message, what, err) < 0)
		return -1;
	return receive(fd, what, each, data, err);
}
