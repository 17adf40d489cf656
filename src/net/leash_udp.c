/*
 * UDP datagrams of the guest, on one thread. Each pair of ends that the policy allows gets a connected socket in the host's
 * namespace. Answers go back through a raw socket, because an answer must come from the address that the guest sent to. A
 * datagram names no host, so only rules with addresses apply: in mode "allow", those that are listed.
 *
 * Answers are accepted only from where the guest sent to (the kernel ensures this), and go only to the guest.
 */
#include <arpa/inet.h>
#include <netinet/ip.h>
#include <netinet/udp.h>
#include <poll.h>

#include "net/leash_proxy.h"

#define PAIRS_MAX 256
#define IDLE_MS 60000
#define TICK_MS 5000
#define DATAGRAM_MAX 65536u
#define MTU 1500u

struct pair {
	int fd; /* -1: free */
	uint32_t address;
	uint16_t port;
	struct sockaddr_in guest; /* includes the address: a copied machine may use an earlier one */
	struct terms *terms;      /* the terms of the last check */
	struct tally *tally;
	int64_t used_ms;
};

struct relay {
	struct proxy *proxy;
	struct pair pairs[PAIRS_MAX];
	uint8_t data[DATAGRAM_MAX];
};

/* ---- the verdict ---- */

/* Blocks DNS by datagram to other servers, encrypted or not, unless the address is listed explicitly. */
static bool is_resolver_port(uint16_t port)
{
	return port == 53 || port == 853 || port == 5353;
}

static bool allows(struct proxy *proxy, const struct terms *terms, uint32_t address, uint16_t port)
{
	const struct policy *policy = terms->policy;
	enum policy_place place = proxy_place(proxy, address);

	if (report_exhausted(proxy, policy))
		return false;
	if (book_has_hold(&proxy->book, policy, address, port)) /* HTTP/3 could not be read */
		return false;
	if (policy_lists_address(policy, address, port, place))
		return true;
	return !is_resolver_port(port) && policy_allows_address(policy, address, port, place);
}

static void refuse(struct proxy *proxy, uint32_t address, uint16_t port)
{
	char text[INET_ADDRSTRLEN], reason[FLOW_TEXT], rule[FLOW_TEXT];
	struct in_addr to = { htonl(address) };

	inet_ntop(AF_INET, &to, text, sizeof(text));
	snprintf(rule, sizeof(rule), "%s:%u", text, port);
	if (is_resolver_port(port))
		snprintf(reason, sizeof(reason), "names are resolved by the sandbox's own resolver only");
	else
		snprintf(reason, sizeof(reason), "udp to %s port %u is not allowed", text, port);
	report_event(proxy, &(struct verdict){ "denied", "udp", text, port, reason, rule });
}

/* ---- pairs ---- */

static void pair_close(struct proxy *proxy, struct pair *pair)
{
	if (pair->fd < 0)
		return;
	fd_close(&pair->fd);
	terms_drop(pair->terms);
	tally_put(proxy, pair->tally);
	*pair = (struct pair){ .fd = -1 };
}

/* The pair with these ends, or a free slot, or the pair that has been idle longest. */
static struct pair *pair_find(struct relay *relay, const struct sockaddr_in *guest, uint32_t address, uint16_t port,
			      bool *found)
{
	struct pair *best = &relay->pairs[0];

	*found = false;
	for (size_t i = 0; i < PAIRS_MAX; i++) {
		struct pair *pair = &relay->pairs[i];

		if (pair->fd >= 0 && pair->guest.sin_port == guest->sin_port &&
		    pair->guest.sin_addr.s_addr == guest->sin_addr.s_addr && pair->address == address &&
		    pair->port == port) {
			*found = true;
			return pair;
		}
		if (best->fd >= 0 && (pair->fd < 0 || pair->used_ms < best->used_ms))
			best = pair;
	}
	return best;
}

static int pair_open(struct proxy *proxy, struct pair *pair, const struct sockaddr_in *guest, uint32_t address,
		     uint16_t port)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(port), .sin_addr = { htonl(address) } };
	char label[POLICY_NAME_MAX + 1];
	cleanup_close int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof(to)) < 0)
		return -1;
	pair_close(proxy, pair);
	if (!book_name(&proxy->book, address, label))
		inet_ntop(AF_INET, &to.sin_addr, label, sizeof(label));
	*pair = (struct pair){ .fd = steal_fd(&fd),
			       .address = address,
			       .port = port,
			       .guest = *guest,
			       .terms = proxy_terms(proxy),
			       .tally = tally_get(proxy, label, port) };
	report_event(proxy, &(struct verdict){ "allowed", "udp", label, port, "", "" });
	return 0;
}

/* Checks the pair again if the terms have changed. */
static bool pair_holds(struct proxy *proxy, struct pair *pair)
{
	struct terms *now = proxy_terms(proxy);

	if (now == pair->terms) {
		terms_drop(now);
		return true;
	}
	terms_drop(pair->terms);
	pair->terms = now;
	if (allows(proxy, now, pair->address, pair->port))
		return true;
	refuse(proxy, pair->address, pair->port);
	pair_close(proxy, pair);
	return false;
}

/* ---- from the guest ---- */

/* Receives one datagram and its destination. */
static ssize_t receive(struct relay *relay, struct sockaddr_in *from, struct sockaddr_in *to)
{
	char control[CMSG_SPACE(sizeof(struct sockaddr_in)) * 2];
	struct iovec part = { relay->data, DATAGRAM_MAX };
	struct msghdr message = { .msg_name = from,
				  .msg_namelen = sizeof(*from),
				  .msg_iov = &part,
				  .msg_iovlen = 1,
				  .msg_control = control,
				  .msg_controllen = sizeof(control) };
	ssize_t got = recvmsg(relay->proxy->udp, &message, MSG_DONTWAIT);

	for (struct cmsghdr *header = got < 0 ? NULL : CMSG_FIRSTHDR(&message); header;
	     header = CMSG_NXTHDR(&message, header))
		if (header->cmsg_level == IPPROTO_IP && header->cmsg_type == IP_ORIGDSTADDR) {
			memcpy(to, CMSG_DATA(header), sizeof(*to));
			return got;
		}
	return -1;
}

static void from_guest(struct relay *relay)
{
	struct proxy *proxy = relay->proxy;
	struct sockaddr_in from, to;
	ssize_t size = receive(relay, &from, &to);
	bool found;

	if (size < 0)
		return;
	uint32_t address = ntohl(to.sin_addr.s_addr);
	uint16_t port = ntohs(to.sin_port);
	struct pair *pair = pair_find(relay, &from, address, port, &found);
	if (found && !pair_holds(proxy, pair))
		return;
	if (!found) {
		struct terms *terms = proxy_terms(proxy);
		bool allowed = terms && allows(proxy, terms, address, port);

		terms_drop(terms);
		if (!allowed) {
			refuse(proxy, address, port);
			return;
		}
		if (pair_open(proxy, pair, &from, address, port) < 0)
			return;
	}
	pair->used_ms = time_monotonic_ms();
	if (tally_count(proxy, pair->tally, pair->terms->policy, (uint64_t)size, 0))
		send(pair->fd, relay->data, (size_t)size, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* ---- to the guest ---- */

static uint32_t checksum_add(uint32_t sum, const void *data, size_t size)
{
	const uint8_t *at = data;

	for (; size > 1; size -= 2, at += 2)
		sum += (uint32_t)(at[0] << 8 | at[1]);
	return size ? sum + (uint32_t)(at[0] << 8) : sum;
}

static uint16_t checksum(const struct iphdr *ip, const struct udphdr *udp, const void *data, size_t size)
{
	uint32_t sum = checksum_add(0, &ip->saddr, 8); /* both addresses */

	sum = checksum_add(sum + IPPROTO_UDP + (uint32_t)(sizeof(*udp) + size), udp, sizeof(*udp));
	sum = checksum_add(sum, data, size);
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return htons((uint16_t)(~sum & 0xffff ? ~sum & 0xffff : 0xffff));
}

static void to_guest(struct relay *relay, struct pair *pair)
{
	struct proxy *proxy = relay->proxy;
	struct {
		struct iphdr ip;
		struct udphdr udp;
		uint8_t data[MTU];
	} packet = { 0 };
	ssize_t got = recv(pair->fd, relay->data, DATAGRAM_MAX, MSG_DONTWAIT);

	/* The read has removed a pending error (no listener there). A datagram larger than a packet cannot be sent:
	 * fragments are not supported. */
	if (got < 0 || (size_t)got > MTU - sizeof(packet.ip) - sizeof(packet.udp))
		return;
	memcpy(packet.data, relay->data, (size_t)got);
	packet.ip = (struct iphdr){ .version = 4,
				    .ihl = 5,
				    .ttl = 64,
				    .protocol = IPPROTO_UDP,
				    .saddr = htonl(pair->address),
				    .daddr = pair->guest.sin_addr.s_addr };
	packet.udp.source = htons(pair->port);
	packet.udp.dest = pair->guest.sin_port;
	packet.udp.len = htons((uint16_t)(sizeof(packet.udp) + (size_t)got));
	packet.udp.check = checksum(&packet.ip, &packet.udp, packet.data, (size_t)got);
	pair->used_ms = time_monotonic_ms();
	if (tally_count(proxy, pair->tally, pair->terms->policy, 0, (uint64_t)got))
		sendto(proxy->raw, &packet, sizeof(packet.ip) + sizeof(packet.udp) + (size_t)got,
		       MSG_DONTWAIT | MSG_NOSIGNAL, (struct sockaddr *)&pair->guest, sizeof(pair->guest));
}

/* ---- the thread ---- */

static void expire(struct relay *relay)
{
	int64_t now = time_monotonic_ms();

	for (size_t i = 0; i < PAIRS_MAX; i++)
		if (relay->pairs[i].fd >= 0 && now - relay->pairs[i].used_ms > IDLE_MS)
			pair_close(relay->proxy, &relay->pairs[i]);
}

static void *run(void *argument)
{
	struct relay *relay = argument;
	struct pollfd watched[PAIRS_MAX + 1];

	for (;;) {
		watched[PAIRS_MAX] = (struct pollfd){ .fd = relay->proxy->udp, .events = POLLIN };
		bool any = false;
		for (size_t i = 0; i < PAIRS_MAX; i++) {
			watched[i] = (struct pollfd){ .fd = relay->pairs[i].fd, .events = POLLIN };
			any |= relay->pairs[i].fd >= 0;
		}
		if (poll(watched, ARRAY_SIZE(watched), any ? TICK_MS : -1) <= 0) {
			expire(relay);
			continue;
		}
		for (size_t i = 0; i < PAIRS_MAX; i++)
			if (watched[i].revents && relay->pairs[i].fd == watched[i].fd &&
			    pair_holds(relay->proxy, &relay->pairs[i]))
				to_guest(relay, &relay->pairs[i]);
		if (watched[PAIRS_MAX].revents)
			from_guest(relay);
	}
	return NULL;
}

int udp_start(struct proxy *proxy, struct husk_error *err)
{
	struct relay *relay = calloc(1, sizeof(*relay));

	if (!relay)
		return husk_fail_memory(err);
	relay->proxy = proxy;
	for (size_t i = 0; i < PAIRS_MAX; i++)
		relay->pairs[i].fd = -1;
	if (proxy_thread(run, relay) == 0)
		return 0;
	free(relay);
	return husk_fail_errno(err, "cannot start a thread");
}
