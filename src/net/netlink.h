/*
 * The part of rtnetlink that is needed to set up a gateway namespace and to read the host's routes: messages built in
 * place, one request and its answer at a time. Used by gateway.c and address.c only.
 */
#ifndef HUSK_NETLINK_H
#define HUSK_NETLINK_H

#include <linux/netlink.h>

#include "base/base.h"

/* A request that is being built. If an attribute does not fit, netlink_talk fails. */
struct netlink_message {
	_Alignas(struct nlmsghdr) char data[1024];
	size_t size;
	bool overflow;
};

/* A socket in the calling thread's network namespace. */
int netlink_open(struct husk_error *err);
/* `header` is the fixed part after nlmsghdr (struct ifinfomsg, …). */
void netlink_begin(struct netlink_message *message, uint16_t type, uint16_t flags, const void *header, size_t size);
void netlink_put(struct netlink_message *message, uint16_t type, const void *data, size_t size);
/* Attributes added between the two calls are nested in this attribute. */
size_t netlink_nest(struct netlink_message *message, uint16_t type, const void *header, size_t size);
void netlink_nest_end(struct netlink_message *message, size_t nest);

/* Sends it and waits for the kernel's answer; `what` names the step in the error. */
int netlink_talk(int fd, struct netlink_message *message, const char *what, struct husk_error *err);
/* The same, for a request that returns data. */
int netlink_ask(int fd, struct netlink_message *message, const char *what,
		void (*each)(void *data, const struct nlmsghdr *answer), void *data, struct husk_error *err);
/* Sends a dump request and calls back for each answer (payload after nlmsghdr). */
int netlink_dump(int fd, struct netlink_message *message, const char *what,
		 void (*each)(void *data, const struct nlmsghdr *answer), void *data, struct husk_error *err);

#endif
