/*
 * The guest's DNS resolver. It answers for names that the policy allows, asks the host's resolvers with its own questions,
 * and records every address that it returns: a rule with a name opens those addresses and no others. Answers with private
 * addresses are refused from every resolver, so that a name cannot lead where its address may not go.
 *
 * Each question runs on its own thread. The number of threads is bounded; further questions are dropped.
 */
#include <arpa/inet.h>
#include <poll.h>

#include "net/leash_proxy.h"

#define LOOKUPS_MAX 64
#define TRY_MS 2000
#define ROUNDS 2
#define TTL_MIN 10u /* an address must stay open long enough for a connection */
#define TTL_MAX 3600u
#define TCP_IDLE_MS 10000

/* ---- asking the host's resolvers ---- */

static ssize_t exchange_datagram(int fd, const uint8_t *query, size_t size, uint16_t id, const char *name,
				 uint16_t type, uint8_t *out, struct dns_answer *answer)
{
	int64_t end = time_monotonic_ms() + TRY_MS;

	if (send(fd, query, size, MSG_NOSIGNAL) != (ssize_t)size)
		return -1;
	while (flow_wait(fd, POLLIN, (int)MAX(0, end - time_monotonic_ms()))) {
		ssize_t got = recv(fd, out, DNS_MESSAGE_MAX, MSG_DONTWAIT);

		if (got < 0 && errno != EAGAIN)
			return -1;
		/* A message that is not the answer may be forged: wait for the real one. */
		if (got > 0 && dns_answer_parse(out, (size_t)got, id, name, type, answer) == 0)
			return got;
	}
	return -1;
}

static int transfer(int fd, void *data, size_t size, bool sending, int64_t end)
{
	char *at = data;

	while (size > 0) {
		if (!flow_wait(fd, sending ? POLLOUT : POLLIN, (int)MAX(0, end - time_monotonic_ms())))
			return -1;
		ssize_t moved =
			sending ? send(fd, at, size, MSG_NOSIGNAL | MSG_DONTWAIT) : recv(fd, at, size, MSG_DONTWAIT);
		if (moved == 0 || (moved < 0 && errno != EAGAIN && errno != EINTR))
			return -1;
		if (moved > 0) {
			at += moved;
			size -= (size_t)moved;
		}
	}
	return 0;
}

/* One message with its length before it. */
static ssize_t receive_framed(int fd, uint8_t *out, int64_t end)
{
	uint8_t length[2];

	if (transfer(fd, length, sizeof(length), false, end) < 0)
		return -1;
	size_t size = (size_t)length[0] << 8 | length[1];
	return transfer(fd, out, size, false, end) < 0 ? -1 : (ssize_t)size;
}

static int send_framed(int fd, const uint8_t *data, size_t size, int64_t end)
{
	uint8_t framed[DNS_MESSAGE_MAX + 2];

	framed[0] = (uint8_t)(size >> 8);
	framed[1] = (uint8_t)size;
	memcpy(framed + 2, data, size);
	return transfer(fd, framed, size + 2, true, end);
}

static int open_socket(const struct resolver *resolver, int kind)
{
	int fd = socket(resolver->address.ss_family, kind | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd >= 0 && connect(fd, (const struct sockaddr *)&resolver->address, resolver->size) < 0 &&
	    errno != EINPROGRESS)
		fd_close(&fd);
	return fd;
}

/* Asks one resolver over UDP, and over TCP if the answer is too long. */
static ssize_t ask_one(const struct resolver *resolver, const char *name, uint16_t type, uint8_t *out,
		       struct dns_answer *answer)
{
	uint8_t query[DNS_UDP_PLAIN];
	uint16_t id;

	if (random_bytes(&id, sizeof(id)) < 0)
		return -1;
	size_t size = dns_build_query(query, id, name, type);
	cleanup_close int fd = open_socket(resolver, SOCK_DGRAM);
	if (size == 0 || fd < 0)
		return -1;
	ssize_t got = exchange_datagram(fd, query, size, id, name, type, out, answer);
	if (got < 0 || !answer->truncated)
		return got;
	int64_t end = time_monotonic_ms() + TRY_MS;
	cleanup_close int stream = open_socket(resolver, SOCK_STREAM);
	if (stream < 0 || send_framed(stream, query, size, end) < 0)
		return -1;
	got = receive_framed(stream, out, end);
	return got >= 0 && dns_answer_parse(out, (size_t)got, id, name, type, answer) == 0 ? got : -1;
}

/* The first conclusive answer; a resolver that fails or refuses is skipped. */
static ssize_t ask(const struct terms *terms, const char *name, uint16_t type, uint8_t *out, struct dns_answer *answer)
{
	for (int round = 0; round < ROUNDS; round++)
		for (size_t i = 0; i < terms->resolver_count; i++) {
			ssize_t got = ask_one(&terms->resolvers[i], name, type, out, answer);

			if (got >= 0 && (answer->rcode == DNS_NOERROR || answer->rcode == DNS_NXDOMAIN))
				return got;
		}
	return -1;
}

/* ---- answering the guest ---- */

struct lookup {
	struct proxy *proxy;
	struct terms *terms;
	struct dns_query query;
	struct sockaddr_in from;
	uint8_t answer[DNS_MESSAGE_MAX];
};

static size_t plain_answer(struct lookup *lookup, int rcode)
{
	return dns_build_answer(lookup->answer, &lookup->query, rcode, NULL, 0, 0, NULL);
}

static size_t refuse(struct lookup *lookup, const char *reason, const char *rule)
{
	const char *name = *lookup->query.name ? lookup->query.name : "?";

	report_event(lookup->proxy, &(struct verdict){ "denied", "dns", name, 0, reason, rule });
	return dns_build_answer(lookup->answer, &lookup->query, DNS_REFUSED, NULL, 0, 0, reason);
}

/* Asks for the addresses of a name, keeps the reachable ones, and records them. *hidden: an address that may not be
 * reached, or 0. -1: no resolver answers. */
static int look_up(struct proxy *proxy, const struct terms *terms, const char *name, uint8_t *scratch,
		   struct dns_answer *answer, uint32_t *hidden)
{
	size_t kept = 0;

	*hidden = 0;
	if (ask(terms, name, DNS_A, scratch, answer) < 0)
		return -1;
	answer->ttl = MAX(TTL_MIN, MIN(answer->ttl, TTL_MAX));
	for (size_t i = 0; i < answer->count; i++) {
		uint32_t address = answer->addresses[i];
		enum policy_place place = proxy_place(proxy, address);

		if (place != PLACE_PUBLIC && !policy_lists_address(terms->policy, address, 0, place)) {
			*hidden = address;
			continue;
		}
		answer->addresses[kept++] = address;
		book_add(&proxy->book, name, address, answer->ttl);
	}
	answer->count = kept;
	return 0;
}

void dns_learn(struct proxy *proxy, const struct terms *terms, const char *name)
{
	uint32_t known[1], ttl, hidden;
	cleanup_free uint8_t *scratch = malloc(DNS_MESSAGE_MAX);
	struct dns_answer answer;

	if (scratch && book_addresses(&proxy->book, name, known, ARRAY_SIZE(known), &ttl) == 0)
		look_up(proxy, terms, name, scratch, &answer, &hidden);
}

static size_t give(struct lookup *lookup, const uint32_t *addresses, size_t count, uint32_t ttl)
{
	return dns_build_answer(lookup->answer, &lookup->query, DNS_NOERROR, addresses, count, ttl, NULL);
}

static size_t answer_address(struct lookup *lookup)
{
	const char *name = lookup->query.name;
	uint32_t known[DNS_ADDRESSES_MAX], ttl, hidden;
	size_t count = book_addresses(&lookup->proxy->book, name, known, ARRAY_SIZE(known), &ttl);
	struct dns_answer answer;
	char reason[FLOW_TEXT], text[INET_ADDRSTRLEN];

	if (count)
		return give(lookup, known, count, ttl);
	if (look_up(lookup->proxy, lookup->terms, name, lookup->answer, &answer, &hidden) < 0)
		return plain_answer(lookup, DNS_SERVFAIL);
	if (answer.count)
		return give(lookup, answer.addresses, answer.count, answer.ttl);
	if (!hidden)
		return plain_answer(lookup, answer.rcode);
	struct in_addr address = { htonl(hidden) };
	inet_ntop(AF_INET, &address, text, sizeof(text));
	snprintf(reason, sizeof(reason), "%s stands for %s, a private address or one of the host", name, text);
	return refuse(lookup, reason, text);
}

/* Records without addresses are passed on as the resolver sent them. */
static size_t answer_other(struct lookup *lookup)
{
	struct dns_answer answer;
	ssize_t got = ask(lookup->terms, lookup->query.name, lookup->query.type, lookup->answer, &answer);

	if (got < 0)
		return plain_answer(lookup, DNS_SERVFAIL);
	dns_readdress(lookup->answer, (size_t)got, &lookup->query);
	return (size_t)got;
}

/* Returns the answer's size; 0: no answer. */
static size_t answer_query(struct lookup *lookup, const uint8_t *data, size_t size)
{
	struct dns_query *query = &lookup->query;
	const struct policy *policy = lookup->terms->policy;
	char reason[FLOW_TEXT];
	int rcode;

	if (dns_query_parse(data, size, query, &rcode) < 0)
		return 0;
	if (rcode != DNS_NOERROR)
		return plain_answer(lookup, rcode);
	if (!*query->name || !policy_allows_name(policy, query->name, 0)) {
		snprintf(reason, sizeof(reason), "%s is not allowed", *query->name ? query->name : "that name");
		return refuse(lookup, reason, query->name);
	}
	if (query->type >= DNS_TRANSFERS || query->type == DNS_OPT)
		return plain_answer(lookup, DNS_NOTIMP);
	/* IPv6 is not supported. Service records are refused, because their content (keys that hide names, other ports)
	 * must not be opened. */
	if (query->type == DNS_AAAA || query->type == DNS_SVCB || query->type == DNS_HTTPS)
		return plain_answer(lookup, DNS_NOERROR);
	return query->type == DNS_A ? answer_address(lookup) : answer_other(lookup);
}

static struct lookup *lookup_new(struct proxy *proxy)
{
	struct lookup *lookup = malloc(sizeof(*lookup));

	if (!lookup)
		return NULL;
	lookup->proxy = proxy;
	lookup->terms = proxy_terms(proxy);
	return lookup;
}

static void lookup_free(struct lookup *lookup)
{
	terms_drop(lookup->terms);
	free(lookup);
}

/* ---- over UDP ---- */

struct datagram {
	struct lookup *lookup;
	size_t size;
	uint8_t data[DNS_UDP_MAX];
};

static void *run_datagram(void *argument)
{
	struct datagram *datagram = argument;
	struct lookup *lookup = datagram->lookup;
	struct proxy *proxy = lookup->proxy;
	size_t size = answer_query(lookup, datagram->data, datagram->size);

	if (size) {
		size = dns_truncate(lookup->answer, size, &lookup->query);
		sendto(proxy->dns, lookup->answer, size, MSG_DONTWAIT | MSG_NOSIGNAL, (struct sockaddr *)&lookup->from,
		       sizeof(lookup->from));
	}
	lookup_free(lookup);
	free(datagram);
	atomic_fetch_sub(&proxy->lookups, 1);
	return NULL;
}

void dns_serve_datagram(struct proxy *proxy)
{
	struct datagram *datagram = malloc(sizeof(*datagram));
	struct lookup *lookup = datagram ? lookup_new(proxy) : NULL;
	socklen_t size = sizeof(struct sockaddr_in);

	if (!lookup) {
		free(datagram);
		return;
	}
	datagram->lookup = lookup;
	ssize_t got = recvfrom(proxy->dns, datagram->data, sizeof(datagram->data), MSG_DONTWAIT,
			       (struct sockaddr *)&lookup->from, &size);
	if (got > 0 && atomic_load(&proxy->lookups) < LOOKUPS_MAX) {
		datagram->size = (size_t)got;
		atomic_fetch_add(&proxy->lookups, 1);
		if (proxy_thread(run_datagram, datagram) == 0)
			return;
		atomic_fetch_sub(&proxy->lookups, 1);
	}
	lookup_free(lookup);
	free(datagram);
}

/* ---- over TCP ---- */

struct connection {
	struct proxy *proxy;
	int fd;
	uint8_t query[DNS_MESSAGE_MAX];
};

static void *run_connection(void *argument)
{
	struct connection *connection = argument;
	struct proxy *proxy = connection->proxy;

	for (;;) {
		ssize_t got = receive_framed(connection->fd, connection->query, time_monotonic_ms() + TCP_IDLE_MS);
		struct lookup *lookup = got > 0 ? lookup_new(proxy) : NULL;
		bool more = false;

		if (lookup) {
			size_t size = answer_query(lookup, connection->query, (size_t)got);

			more = size && send_framed(connection->fd, lookup->answer, size,
						   time_monotonic_ms() + TCP_IDLE_MS) == 0;
			lookup_free(lookup);
		}
		if (!more)
			break;
	}
	fd_close(&connection->fd);
	free(connection);
	atomic_fetch_sub(&proxy->lookups, 1);
	return NULL;
}

void dns_serve_connection(struct proxy *proxy, int fd)
{
	struct connection *connection = malloc(sizeof(*connection));

	if (connection && atomic_load(&proxy->lookups) < LOOKUPS_MAX) {
		connection->proxy = proxy;
		connection->fd = fd;
		atomic_fetch_add(&proxy->lookups, 1);
		if (proxy_thread(run_connection, connection) == 0)
			return;
		atomic_fetch_sub(&proxy->lookups, 1);
	}
	free(connection);
	fd_close(&fd);
}
