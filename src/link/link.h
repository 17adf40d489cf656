/*
 * The host's end of the link to one guest agent. A thread of the link's own takes frames in, checks them (the guest is
 * hostile: channel known, order right, credit kept), and hands each to the owner of its channel. Used by the supervisor,
 * which relays clients' channels over it, and by the bake of templates.
 *
 * Nobody ever waits inside of a read or a write of the guest's. A frame that the guest does not take at once is queued;
 * the queue is bounded, and whoever finds it full waits for a bounded time and fails with HUSK_TIMEOUT. Taking the link
 * down wakes everybody.
 *
 * A link that breaks the protocol, or whose machine ends, goes down once: every open channel gets a made-up END with
 * HUSK_GONE or HUSK_PROTOCOL, and every later call fails the same way.
 */
#ifndef HUSK_LINK_H
#define HUSK_LINK_H

#include "wire/wire.h"

#define LINK_SEND_MS 1000   /* how long link_open and link_send wait for their turn and for room */
#define LINK_REPLY_MS 30000 /* the same for link_reply, whose caller has nobody else to serve */

struct link;

/* Called on the link's thread for each frame of a channel; it must not block and must not call back into the link. After a WIRE_END frame the channel is over and `data` is not touched again. */
typedef void (*link_handler)(void *data, const struct wire_header *header, const char *payload);

/* Takes no ownership of the descriptors. `expect_hello`: a machine that boots greets first; a restored one does not. */
int link_start(int to_agent, int from_agent, bool expect_hello, struct link **out, struct husk_error *err);
/* A byte goes to this descriptor before the first frame in a while, so that a resting machine is ready; it is copied. */
void link_wake_with(struct link *link, int fd);
/* Waits for the greeting of a machine that boots. */
int link_wait_hello(struct link *link, int timeout_ms, struct husk_error *err);
/* Takes the link down and ends its thread; the descriptors are not used after this. Calls fail from now on. */
void link_close(struct link *link);
/* The same; whoever has a channel open is told why, in place of the machine's end. */
void link_close_because(struct link *link, const char *reason);
void link_free(struct link *link); /* closes it too; nobody may use it any more */
bool link_is_down(struct link *link);

/* Opens a channel; the OPEN payload is sent as it is. Returns its number (> 0) in *channel. After HUSK_TIMEOUT (the link is
 * held, or the guest does not read) nothing was sent, and the caller may try again. The same holds for link_send. */
int link_open(struct link *link, const void *payload, size_t size, link_handler handler, void *data, uint32_t *channel,
	      struct husk_error *err);
/* A frame to the agent on the channel that `owner` (the handler's data) opened; silently dropped when that channel is
 * over already (it raced END). */
int link_send(struct link *link, uint32_t channel, const void *owner, enum wire_type type, uint8_t stream,
	      const void *payload, size_t size, struct husk_error *err);
/* The same, also while another thread holds the link: answers that the guest must have before it can be still. */
int link_reply(struct link *link, uint32_t channel, const void *owner, enum wire_type type, uint8_t stream,
	       const void *payload, size_t size, struct husk_error *err);
/* The handler's owner goes away before END: once this returns its handler is not and will not be running; the agent is
 * told with CANCEL, and the number stays taken until it answers with END. */
void link_abandon(struct link *link, uint32_t channel, const void *owner);

/* A call without streams: method and arguments in, results (the END payload) out. */
int link_call(struct link *link, enum wire_method method, const struct buf *arguments, struct buf *results,
	      int timeout_ms, struct husk_error *err);
/* While held, frames leave for the agent from the holding thread only, so that at a checkpoint no byte is under way. */
void link_hold(struct link *link);
void link_release(struct link *link);
/* Number of open channels: is anybody at work? */
size_t link_channels(struct link *link);

#endif
