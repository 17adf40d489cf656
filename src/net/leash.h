/*
 * The leash: one small process per sandbox that may use the network (`husk leash`, policy allow or open), and the only
 * way out of it. This header is the supervisor's side: start it, give it another policy, read what it saw, end it.
 *
 * The gateway namespace must stand ready before the start: loopback and the veth end up, the resolver's address
 * on loopback, a route "local 0.0.0.0/0 dev lo" (so that every destination is delivered here), and no other way anywhere.
 * Its rules let in, from guest addresses only: udp and tcp port 53 to the resolver's address; other tcp by
 * `tproxy ip to :LEASH_TCP_PORT`; other udp by `tproxy ip to :LEASH_UDP_PORT`. Without a leash there is no socket there
 * and everything is dropped.
 *
 * The process is started from this binary with the control socket (a SOCK_SEQPACKET pair) on descriptor 0 and the gateway
 * namespace on 1. It opens its sockets in the gateway namespace, returns to the host's, gives up every privilege, and
 * then waits for its first policy. One packet is one JSON object:
 *
 *   to the leash:   {"serial":N,"policy":{…},"resolvers":["192.0.2.1:53"],"used":BYTES,"secrets":{…}}
 *                   {"flush":N}
 *   from the leash: {"ready":true}  {"applied":N}  {"flushed":N}  {"failed":"why"}
 *                   {"event":{…},"count":N}        see struct leash_event
 *                   {"traffic":[{"host","port","sent","received","connections","denied"}]}   since the last one
 *
 * It ends when the other end of the socket closes, so it cannot outlive its supervisor. When it dies the supervisor's
 * side starts it anew with the same policy; until it stands nothing gets out.
 */
#ifndef HUSK_LEASH_H
#define HUSK_LEASH_H

#include <netinet/in.h>

#include "base/base.h"
#include "net/policy.h"

#define LEASH_TCP_PORT 40001
#define LEASH_UDP_PORT 40002
#define LEASH_UID_BASE 0x0fff0000u /* plus the slot: a uid that nothing else has */
#define LEASH_LOG_MAX 1000         /* events kept, the newest */
#define LEASH_DESTINATIONS_MAX 256 /* counted apart; the rest as "other" */

struct cgroup;

/* One connection, lookup or flow that was let through or refused. Strings live for the call only. */
struct leash_event {
	int64_t at_ms;       /* wall clock */
	const char *verdict; /* "allowed", "denied", "failed" */
	const char *kind;    /* "dns", "http", "tls", "tcp", "udp" */
	const char *host;    /* the name asked for, or the address */
	uint16_t port;       /* 0: dns */
	const char *reason;  /* denied, failed: one sentence; else "" */
	const char *rule;    /* denied: what would allow it ("example.com:8080"); "" when nothing would */
	uint64_t count;      /* how many alike since the last report of one */
};

struct leash_spec {
	const char *program;     /* the husk binary */
	int gateway;             /* the gateway namespace; copied */
	struct in_addr resolver; /* where the guest asks for names */
	uint32_t uid;            /* it runs as this uid and gid */
	struct cgroup *cgroup;   /* entered before exec, so it must outlive the leash; NULL: the supervisor's own */
	/* Called from a thread of the leash's own, one at a time; bounded to a few tens a second. May be NULL. */
	void (*on_event)(void *data, const struct leash_event *event);
	void *data;
};

struct leash;

/* Starts it without a policy: it lets nothing through until leash_set. Returns once the process is launched, so that its
 * start-up runs beside other work; leash_set waits for it. `saved` (may be NULL) is what leash_save gave. */
int leash_start(const struct leash_spec *spec, const char *saved, struct leash **out, struct husk_error *err);
/* Gives it this policy and these secrets (secrets.h; NULL: none) and waits until they hold. Connections that the new
 * policy would not allow are cut before it returns. On failure the old policy holds. */
int leash_set(struct leash *leash, const struct policy *policy, const char *secrets, struct husk_error *err);
/* Ends the process and frees. NULL is fine. */
void leash_stop(struct leash *leash);

struct leash_totals {
	uint64_t sent, received; /* bytes, seen from the guest */
	uint64_t connections, denied;
	uint32_t restarts; /* times it had to be started anew */
	pid_t pid;         /* 0: not running at the moment */
};
/* Up to the moment: asks the process for what it has not told yet. */
void leash_totals(struct leash *leash, struct leash_totals *out);
/* JSON for people and the API, caller frees, NULL without memory:
 * {"sent","received","connections","denied","restarts","destinations":[{"host","port","sent",…}]} */
char *leash_traffic(struct leash *leash);
/* JSON list of the newest `limit` events (0: all kept), oldest first: [{"at_ms","verdict","kind","host","port","reason",
 * "rule","count"}]. */
char *leash_log(struct leash *leash, size_t limit);
/* Counters and log in one text, for a sandbox that hibernates; holds no secret. */
char *leash_save(struct leash *leash);

/* `husk leash`: the process itself. */
int leash_main(int argc, char **argv);

#endif
