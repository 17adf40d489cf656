/*
 * Declarations that the files of the leash process share (`husk leash`; leash.h is the supervisor's side). One process
 * serves one sandbox. leash_main.c is its main loop, leash_jail.c gives up its privileges, leash_flow.c decides about
 * TCP connections, leash_relay.c and leash_web.c carry their bytes, leash_hold.c holds requests, leash_effect.c sends them
 * later, leash_dns.c is the resolver, leash_udp.c carries datagrams, leash_report.c reports to the supervisor.
 *
 * Every connection has its own thread with simple blocking code. All threads run without privileges.
 */
#ifndef HUSK_LEASH_PROXY_H
#define HUSK_LEASH_PROXY_H

#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>

#include "base/base.h"
#include "net/dns.h"
#include "net/leash.h"
#include "net/leash_parcel.h"
#include "net/policy.h"

#define RESOLVERS_MAX 4
#define CONNECT_TIMEOUT_MS 15000
#define LINGER_MS 1000 /* time for the client to read a refusal */

/* ---- leash_terms.c: the terms in force; never changed, only replaced ---- */

struct terms {
	atomic_int references;
	struct policy *policy;
	struct resolver {
		struct sockaddr_storage address;
		socklen_t size;
	} resolvers[RESOLVERS_MAX];
	size_t resolver_count;
	char **values;       /* values of the policy's secrets, by index; NULL: none */
	char **placeholders; /* the placeholders that the guest has instead */
	struct authority *authority;
	struct ssl_ctx_st *client; /* for hosts with secrets; made when first needed, under tls_lock of the proxy */
};

/* Parses a message of the supervisor; NULL with err, which never contains a value. */
struct terms *terms_read(const char *message, uint64_t *serial, uint64_t *used, struct husk_error *err);
void terms_drop(struct terms *terms); /* one reference; NULL is allowed */

/* ---- leash_book.c: the addresses the resolver gave ---- */

#define BOOK_MAX 2048
struct book_entry {
	char *name;
	uint32_t address;
	int64_t expires_ms; /* monotonic; 0: free */
};
struct book {
	pthread_mutex_t lock;
	struct book_entry entries[BOOK_MAX];
};
/* Records that the guest got this address for this name, for `ttl` seconds. */
void book_add(struct book *book, const char *name, uint32_t address, uint32_t ttl);
bool book_has(struct book *book, const char *name, uint32_t address);
/* The newest name for the address, into name[POLICY_NAME_MAX + 1]; false: none. */
bool book_name(struct book *book, uint32_t address, char *name);
/* The recorded addresses of a name: how many, and for how many more seconds. 0: ask a resolver. */
size_t book_addresses(struct book *book, const char *name, uint32_t *addresses, size_t max, uint32_t *ttl);
/* True if the address belongs to a held host. */
bool book_has_hold(struct book *book, const struct policy *policy, uint32_t address, uint16_t port);
/* True if the address belongs to a host of a secret. */
bool book_has_secret(struct book *book, const struct policy *policy, uint32_t address, uint16_t port);

/* ---- leash_main.c, leash_terms.c: the process ---- */

struct hold; /* a request that is being handed to the supervisor; leash_hold.c */
struct holds {
	pthread_mutex_t lock; /* guards the list, and the answers in it */
	pthread_cond_t changed;
	struct hold *first;
	uint64_t last; /* key */
	pthread_mutex_t sending;
};

struct tally; /* counts for one destination; leash_report.c */
struct flow;
struct reporter;

struct proxy {
	/* Descriptors; the first five are sockets in the gateway namespace. */
	int tcp, udp, dns, dns_tcp, raw;
	int control, route, authorities;
	struct in_addr resolver;

	pthread_mutex_t lock; /* guards terms and the list of flows */
	struct terms *terms;  /* NULL: none yet, and nothing is allowed */
	struct flow *flows;
	uint32_t flow_count;
	atomic_uint lookups; /* DNS questions in progress */

	struct book book;
	struct reporter *reporter;
	pthread_mutex_t route_lock, tls_lock;

	struct holds holds;
	struct parcel parcel;    /* a request to send, as it arrives; of the main thread */
	atomic_size_t collected; /* bytes of requests that are being held */
};

struct terms *proxy_terms(struct proxy *proxy); /* a reference to the terms in force; terms_drop */
/* Puts new terms in force and cuts the flows that they do not allow. Takes the reference. */
void proxy_apply(struct proxy *proxy, struct terms *terms);
/* The kind of the address, with the host's own addresses at this moment. */
enum policy_place proxy_place(struct proxy *proxy, uint32_t address);
/* Starts a detached thread, which owns `argument`. */
int proxy_thread(void *(*function)(void *argument), void *argument);

/* ---- leash_jail.c: the stages, in this order ---- */

int jail_open_sockets(struct proxy *proxy, int gateway_space, struct husk_error *err); /* as root */
int jail_drop(uint32_t uid, struct husk_error *err); /* an empty root, the uid, no capabilities, seccomp: for good */

/* ---- leash_report.c ---- */

int report_open(struct proxy *proxy, struct husk_error *err);
/* A connection or lookup was allowed, refused or failed. `rule`: the rule that would allow it, or "". */
struct verdict {
	const char *verdict, *kind, *host;
	uint16_t port;
	const char *reason, *rule;
};
void report_event(struct proxy *proxy, const struct verdict *verdict);
/* A request is about to leave. Beyond a number in a second, requests are counted only. */
struct request_report {
	const char *method, *scheme, *host, *target;
	size_t method_size, target_size;
	uint16_t port;
};
void report_request(struct proxy *proxy, const struct request_report *request);
/* Sends a message that must arrive: waits a little for the supervisor. */
int report_send(struct proxy *proxy, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Reports the counts since the last time. `all`: also those that are held back to be reported together. */
void report_flush(struct proxy *proxy, bool all);
/* If nothing is left to flush: the descriptor that becomes readable when there is something again. Otherwise -1. */
int report_rest(struct proxy *proxy);
void report_used(struct proxy *proxy, uint64_t used); /* bytes that earlier leash processes of the sandbox carried */

struct tally *tally_get(struct proxy *proxy, const char *host, uint16_t port); /* counts a connection; tally_put */
void tally_put(struct proxy *proxy, struct tally *tally);
/* Counts bytes, and waits if the rate requires it. False: the byte limit is reached, and no more may pass. */
bool tally_count(struct proxy *proxy, struct tally *tally, const struct policy *policy, uint64_t sent,
		 uint64_t received);
/* How many bytes to move at once, so that waits for the rate are short; at most `most`. */
size_t tally_chunk(const struct policy *policy, size_t most);
bool report_exhausted(struct proxy *proxy, const struct policy *policy); /* the byte limit is reached */

/* ---- leash_flow.c ---- */

enum flow_kind { FLOW_TCP, FLOW_TLS, FLOW_HTTP };

struct flow {
	struct proxy *proxy;
	struct flow *next, *previous;
	int guest, remote; /* the two ends; remote -1: not connected */
	uint32_t address;  /* the guest's destination */
	uint16_t port;
	char address_text[INET_ADDRSTRLEN];
	enum policy_place place;
	enum flow_kind kind;
	char host[POLICY_NAME_MAX + 1]; /* the name that the rule allowed; "": the address was allowed */
	bool permitted;                 /* in progress: cut if new rules do not allow it */
	bool secret;                    /* may carry secrets: cut whenever the terms change */
	atomic_bool reset;              /* end it with a reset towards the guest */
	struct tally *tally;
};

/* Takes ownership of an accepted connection. */
void flow_start(struct proxy *proxy, int guest);
/* Connects to the guest's destination. A failure is reported. */
int flow_connect(struct flow *flow);
/* Ends the connection to the destination with a reset. */
void flow_disconnect(struct flow *flow);
/* True if these rules allow this name over this flow. Otherwise sets the reason and the rule that would allow it; both
 * may be up to 512 bytes. */
bool flow_allows(struct flow *flow, const struct terms *terms, const char *name, char *reason, char *rule);
#define FLOW_TEXT 512
/* The same, but asks the resolver if the address is not recorded for an allowed name. May take seconds. */
bool flow_check(struct flow *flow, const struct terms *terms, const char *name, char *reason, char *rule);
/* Reports a refusal of the flow. */
void flow_denied(struct flow *flow, const char *host, const char *reason, const char *rule);
void flow_failed(struct flow *flow, const char *reason);
/* Refuses with a TLS alert, for a client that has sent its hello. */
void flow_refuse_tls(struct flow *flow);
/* Gives the guest time to read the last bytes. */
void flow_linger(struct flow *flow);
/* The flow is allowed: reports and counts it. False if new rules came meanwhile that do not allow it. */
bool flow_permit(struct flow *flow, const char *host);
void flow_again(struct flow *flow);  /* reports one more request to the host that the flow is permitted for */
void flow_revoke(struct flow *flow); /* it is refused after all */
/* Waits until `fd` is ready; false: timed out or broken. */
bool flow_wait(int fd, short events, int timeout_ms);

/* ---- leash_relay.c, leash_web.c ---- */

/* Carries bytes in both directions until both sides have ended. */
void relay_run(struct flow *flow);
/* Carries HTTP requests one by one, each checked. */
void web_run(struct flow *flow);
/* Terminates TLS here with a certificate of the sandbox's authority, and carries requests with their secrets. */
void web_run_tls(struct flow *flow, struct terms *terms, const char *name);

/* ---- leash_dns.c, leash_udp.c ---- */

/* Looks an allowed name up, unless its addresses are known, and records them. */
void dns_learn(struct proxy *proxy, const struct terms *terms, const char *name);
void dns_serve_datagram(struct proxy *proxy);           /* one question is waiting on proxy->dns */
void dns_serve_connection(struct proxy *proxy, int fd); /* takes it */
int udp_start(struct proxy *proxy, struct husk_error *err);

#endif
