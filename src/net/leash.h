/*
 * The leash: one small process per sandbox that may use the network (`husk leash`, policy allow or open). All traffic
 * of the sandbox goes through it. This header is the supervisor's side: start it, change its policy, read its reports,
 * end it.
 *
 * The gateway namespace must be ready before the start: loopback and the veth end are up, the resolver's address is on
 * loopback, a route "local 0.0.0.0/0 dev lo" delivers every destination here, and there is no other route. Its rules
 * let in, from guest addresses only: udp and tcp port 53 to the resolver's address; other tcp by `tproxy ip to
 * :LEASH_TCP_PORT`; other udp by `tproxy ip to :LEASH_UDP_PORT`. Without a leash there is no socket there and
 * everything is dropped.
 *
 * The process is started from this binary with the control socket (a SOCK_SEQPACKET pair) on descriptor 0 and the
 * gateway namespace on 1. It opens its sockets in the gateway namespace, returns to the host's, gives up every
 * privilege, and then waits for its first policy. One packet is one JSON object:
 *
 *   to the leash:   {"serial":N,"policy":{…},"resolvers":["192.0.2.1:53"],"used":BYTES,"secrets":{…}}
 *                   {"flush":N}
 *                   {"held":KEY,"effect":N} or {"held":KEY,"status":"507 …","reason":"why"}
 *                   {"send":{"key",…}}             a held request to send; its bytes follow (leash_parcel.h)
 *   from the leash: {"ready":true}  {"applied":N}  {"flushed":N}  {"failed":"why"}
 *                   {"event":{…},"count":N}        see struct leash_event
 *                   {"request":{"at_ms","method","url"},"missed":N}   a request that is about to leave; N were not told of
 *                   {"hold":{"key","method",…}}    a request to be held; its bytes follow
 *                   {"sent":KEY,"status":N} or {"sent":KEY,"failed":"why","maybe":bool}
 *                   {"traffic":[{"host","port","sent","received","connections","denied"}]}   since the last one
 *
 * The process ends when the other end of the socket closes, so it cannot outlive its supervisor. If it dies, the
 * supervisor's side starts it again with the same policy; until it is ready, nothing gets out.
 */
#ifndef HUSK_LEASH_H
#define HUSK_LEASH_H

#include <jansson.h>
#include <netinet/in.h>

#include "base/base.h"
#include "net/policy.h"

#define LEASH_TCP_PORT 40001
#define LEASH_UDP_PORT 40002
#define LEASH_UID_BASE 0x0fff0000u /* plus the slot: a uid that is used for nothing else */
#define LEASH_LOG_MAX 1000         /* events kept, the newest */
#define LEASH_REQUESTS_MAX 500     /* requests kept, the newest */
#define LEASH_URL_MAX 512
#define LEASH_DESTINATIONS_MAX 256 /* counted separately; the rest as "other" */

struct cgroup;

/* One connection, lookup or flow that was allowed or refused. The strings are valid during the call only. */
struct leash_event {
	int64_t at_ms;       /* wall clock */
	const char *verdict; /* "allowed", "denied", "failed", "held" */
	const char *kind;    /* "dns", "http", "tls", "tcp", "udp" */
	const char *host;    /* the name asked for, or the address */
	uint16_t port;       /* 0: dns */
	const char *reason;  /* denied, failed: one sentence; else "" */
	const char *rule;    /* denied: the rule that would allow it ("example.com:8080"); "" if none would */
	uint64_t count;      /* how many equal ones since the last report */
};

/* The answer to a request that is to be held. */
struct leash_held {
	int64_t effect;  /* its number; 0: refused */
	char status[48]; /* refused: "507 Insufficient Storage" */
	char reason[1024];
};

/* What became of a request that was sent. */
struct leash_sent {
	uint64_t key; /* 0: the process has died */
	int status;   /* of the host's answer; 0: none */
	bool maybe;   /* no answer, but the host may have got it */
	char reason[512];
};

struct leash_spec {
	const char *program;     /* the husk binary */
	int gateway;             /* the gateway namespace; copied */
	struct in_addr resolver; /* the guest's name server */
	uint32_t uid;            /* it runs as this uid and gid */
	struct cgroup *cgroup;   /* entered before exec, so it must outlive the leash; NULL: the supervisor's cgroup */
	/* Called from a thread of the leash, one at a time, at most a few tens per second. May be NULL. */
	void (*on_event)(void *data, const struct leash_event *event);
	/* A request of the guest to be held: must be on disk when this returns. Same thread. NULL: none can be. */
	void (*on_hold)(void *data, const json_t *head, const char *request, size_t size, struct leash_held *out);
	void (*on_sent)(void *data, const struct leash_sent *sent); /* same thread; may be NULL */
	void *data;
};

struct leash;

/* Starts the leash without a policy: it allows nothing before leash_set. Returns once the process is launched, so that
 * it starts in parallel with other work; leash_set waits for it. `saved` (may be NULL) is the text of leash_save. */
int leash_start(const struct leash_spec *spec, const char *saved, struct leash **out, struct husk_error *err);
/* Sets this policy and these secrets (secrets.h; NULL: none), and waits until they are in force. Connections that the
 * new policy does not allow are cut before it returns. On failure the old policy stays in force. */
int leash_set(struct leash *leash, const struct policy *policy, const char *secrets, struct husk_error *err);
/* Hands a held request over to be sent; on_sent is called later. UNAVAILABLE: there is no process, and nothing was sent. The
 * key is not 0 and was not used before. */
int leash_deliver(struct leash *leash, uint64_t key, json_t *head, const char *request, size_t size,
		  struct husk_error *err);
/* Ends the process and frees. NULL is allowed. */
void leash_stop(struct leash *leash);

struct leash_totals {
	uint64_t sent, received; /* bytes, seen from the guest */
	uint64_t connections, denied;
	uint32_t restarts; /* how often it was restarted */
	pid_t pid;         /* 0: not running at the moment */
};
/* Current values: asks the process for counts that it has not reported yet. */
void leash_totals(struct leash *leash, struct leash_totals *out);
/* JSON for people and the API, caller frees, NULL without memory:
 * {"sent","received","connections","denied","restarts","destinations":[{"host","port","sent",…}]} */
char *leash_traffic(struct leash *leash);
/* JSON list of the newest `limit` events (0: all kept), oldest first: [{"at_ms","verdict","kind","host","port","reason",
 * "rule","count"}]. */
char *leash_log(struct leash *leash, size_t limit);
/* JSON {"total":N,"list":[{"last","method","url","count"}]}: the newest requests that were read on their way out; `last` is the
 * number of the last of `count` equal ones in a row. */
char *leash_requests(struct leash *leash);
/* Counters and log in one text, for a sandbox that hibernates; contains no secret. */
char *leash_save(struct leash *leash);

/* `husk leash`: the process itself. */
int leash_main(int argc, char **argv);

#endif
