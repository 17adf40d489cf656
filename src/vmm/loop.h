/*
 * A loop over descriptors: husk-vmm has one in its first thread (control, network, sockets) and one for the disk, whose
 * work may take long. A watch stays registered until it is removed; the caller owns it.
 */
#ifndef HUSK_VMM_LOOP_H
#define HUSK_VMM_LOOP_H

#include "base/base.h"

struct watch {
	int fd; /* -1: none */
	uint32_t events;
	void (*ready)(struct watch *watch, uint32_t events);
	void *data; /* for `ready` */
};

struct loop {
	int epoll;
};

int loop_open(struct loop *loop, struct husk_error *err);
void loop_close(struct loop *loop);
int loop_watch(struct loop *loop, struct watch *watch, int fd, uint32_t events, void (*ready)(struct watch *, uint32_t),
	       void *data, struct husk_error *err);
/* Changes the events of a registered watch; 0 keeps it registered without events. */
void loop_change(struct loop *loop, struct watch *watch, uint32_t events);
/* Removes the watch; the descriptor stays open, and the caller still owns it. */
void loop_unwatch(struct loop *loop, struct watch *watch);
/* Waits for an event and handles one event per call, because a handler may remove any watch. */
int loop_turn(struct loop *loop, struct husk_error *err);

#endif
