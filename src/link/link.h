/*
 * The host's end of the link to one guest agent. The link has a thread, which reads frames, checks them, and passes
 * each to the owner of its channel. The guest is hostile, so channel, order and credit of each frame are checked. Used
 * by the supervisor, which relays clients' channels over the link, and by the bake of templates.
 *
 * No thread ever waits in a read from or a write to the guest. If the guest does not accept a frame at once, the frame
 * is queued. The queue is bounded: if it is full, the sender waits for a limited time and then fails with HUSK_TIMEOUT.
 * Closing the link wakes all waiting threads.
 *
 * If a guest breaks the protocol, or its machine ends, the link goes down once: every open channel gets an END with
 * HUSK_GONE or HUSK_PROTOCOL, and every later call fails with the same code.
 */
#ifndef HUSK_LINK_H
#define HUSK_LINK_H

#include "wire/wire.h"

#define LINK_SEND_MS 1000   /* how long link_open and link_send wait to be allowed to send and for room */
#define LINK_REPLY_MS 30000 /* the same for link_reply, whose caller serves nobody else */

struct link;

/* Called on the link's thread for each frame of a channel. A handler must not block and must not call the link. After a
 * WIRE_END frame the channel is over and `data` is not used again. */
typedef void (*link_handler)(void *data, const struct wire_header *header, const char *payload);

/* Takes no ownership of the descriptors. `expect_hello`: a booting machine sends a greeting first; a restored machine
 * does not. */
int link_start(int to_agent, int from_agent, bool expect_hello, struct link **out, struct husk_error *err);
/* One byte is written to this descriptor before the first frame after a pause, so that a resting machine gets ready.
 * The descriptor is copied. */
void link_wake_with(struct link *link, int fd);
/* Waits for the greeting of a booting machine. */
int link_wait_hello(struct link *link, int timeout_ms, struct husk_error *err);
/* Takes the link down and ends its thread. Afterwards the descriptors are not used, and calls fail. */
void link_close(struct link *link);
/* The same; open channels end with this reason, not with the end of the machine. */
void link_close_because(struct link *link, const char *reason);
void link_free(struct link *link); /* also closes it; no thread may use the link any more */
bool link_is_down(struct link *link);

/* Opens a channel; the OPEN payload is sent unchanged. *channel gets the number (> 0). After HUSK_TIMEOUT (the link is
 * held, or the guest does not read) nothing was sent, and the caller may try again. The same holds for link_send. After
 * success the handler sees exactly one END, which may be that of a link that went down meanwhile; after a failure the
 * handler has not run and will not run. */
int link_open(struct link *link, const void *payload, size_t size, link_handler handler, void *data, uint32_t *channel,
	      struct husk_error *err);
/* Sends a frame to the agent on the channel that `owner` (the handler's data) opened. If the channel has already ended,
 * the frame is dropped without an error, because END may have arrived in between. */
int link_send(struct link *link, uint32_t channel, const void *owner, enum wire_type type, uint8_t stream,
	      const void *payload, size_t size, struct husk_error *err);
/* The same, also while another thread holds the link: for answers without which the guest cannot come to rest. */
int link_reply(struct link *link, uint32_t channel, const void *owner, enum wire_type type, uint8_t stream,
	       const void *payload, size_t size, struct husk_error *err);
/* The owner of the handler ends before END. When this call returns, the handler does not run and will not run again.
 * The agent gets a CANCEL, and the number stays in use until the agent answers with END. */
void link_abandon(struct link *link, uint32_t channel, const void *owner);

/* A call without streams: method and arguments in, results (the END payload) out. */
int link_call(struct link *link, enum wire_method method, const struct buf *arguments, struct buf *results,
	      int timeout_ms, struct husk_error *err);
/* While the link is held, only the holding thread sends frames to the agent. So no byte is in transit during a
 * checkpoint. */
void link_hold(struct link *link);
void link_release(struct link *link);
/* Number of open channels; 0: the link is not in use. */
size_t link_channels(struct link *link);

#endif
