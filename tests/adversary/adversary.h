/*
 * The hostile agent: husk-agent as it is, with a man in the middle between it and the host. Until it is told otherwise it
 * passes every frame on, so templates are baked and sandboxes created with it as with any other. Then
 *
 *     husk exec BOX -- /.husk/break RULE [METHOD]
 *
 * is answered by the middle itself, and from that moment on the agent breaks RULE: at once, or when the host opens a call
 * of METHOD (a number of enum wire_method). An armed rule is part of the machine's memory: it goes along into snapshots,
 * forks and hibernated images. The file /.husk/guest/break, where the root image has one, arms a rule at the boot.
 */
#ifndef HUSK_ADVERSARY_H
#define HUSK_ADVERSARY_H

#include "wire/wire.h"

/* A call of the host's that a rule is about. Channel 0: there is none, the rule acts by itself. */
struct victim {
	uint32_t channel;
	int64_t method;
	const struct wire_header *header; /* of the frame that is being held; NULL: there is none */
	const char *payload;
};

enum verdict { PASS, SWALLOW };

struct rule {
	const char *name;
	/* On a thread of its own when the rule is armed without a METHOD; else in place of the matching OPEN, and nothing more
	 * is read from the host until it returns. NULL: the two below do it all. */
	enum verdict (*act)(const struct victim *victim);
	/* Each frame that the agent sends. NULL: they pass. */
	enum verdict (*filter)(const struct wire_header *header, const char *payload);
	/* Milliseconds between two bytes that are read from the host; -1: none is ever read again. */
	int read_pause_ms;
	bool aside; /* `act` never returns: on a thread of its own although there is a METHOD */
};

extern const struct rule rules[];
const struct rule *rule_find(const char *name);

/* ---- middle.c, for the rules ---- */

/* A frame to the host, whatever is in it; blocks while the host does not read. */
void tell(uint32_t channel, unsigned type, unsigned stream, const void *payload, size_t size);
void tell_bytes(const void *bytes, size_t size);
/* The last OPEN of METHOD_VOLUME, 0 when there was none. */
uint32_t volume_channel(void);
/* The host's credit for STREAM_OUT on the victim's channel since it was opened, as given so far. */
uint64_t credit_given(void);
void hang_up(void);
/* Passes the frame that is being held on to the agent. */
void pass_on(const struct victim *victim);

#endif
