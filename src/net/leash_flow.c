/*
 * One TCP connection of the guest: finds the destination, reads which host the first bytes name, asks the policy, and
 * passes an allowed connection to its carrier. Each connection has its own thread, from flow_start to its end.
 *
 * The first bytes are only peeked at, so the carrier still finds them all. Nothing is sent before the verdict.
 */
#include <arpa/inet.h>
#include <poll.h>

#include "net/hello.h"
#include "net/leash_http.h"
#include "net/leash_proxy.h"

#define SNIFF_HOPEFUL_MS 30000 /* to wait for the first bytes if the connection may be allowed */
#define SNIFF_HOPELESS_MS 1000 /* … if it can only be refused: long enough to refuse it in its own protocol */
#define DRAIN_MAX (256u << 10)

static const char *const kind_names[] = { [FLOW_TCP] = "tcp", [FLOW_TLS] = "tls", [FLOW_HTTP] = "http" };

/* ---- reporting ---- */

void flow_denied(struct flow *flow, const char *host, const char *reason, const char *rule)
{
	report_event(flow->proxy,
		     &(struct verdict){ "denied", kind_names[flow->kind], host && *host ? host : flow->address_text,
					flow->port, reason, rule });
}

void flow_failed(struct flow *flow, const char *reason)
{
	report_event(flow->proxy,
		     &(struct verdict){ "failed", kind_names[flow->kind], *flow->host ? flow->host : flow->address_text,
					flow->port, reason, "" });
	flow->reset = true;
}

bool flow_wait(int fd, short events, int timeout_ms)
{
	struct pollfd wait = { .fd = fd, .events = events };
	int64_t end = time_monotonic_ms() + timeout_ms;
	int ready;

	do
		ready = poll(&wait, 1, (int)MAX(0, end - time_monotonic_ms()));
	while (ready < 0 && errno == EINTR);
	return ready > 0;
}

void flow_linger(struct flow *flow)
{
	int64_t end = time_monotonic_ms() + LINGER_MS;
	size_t drained = 0;
	char rest[4096];

	if (shutdown(flow->guest, SHUT_WR) < 0)
		return;
	/* Closing with unread bytes would send a reset, which may overtake the refusal. */
	while (drained < DRAIN_MAX && flow_wait(flow->guest, POLLIN, (int)MAX(0, end - time_monotonic_ms()))) {
		ssize_t got = recv(flow->guest, rest, sizeof(rest), MSG_DONTWAIT);

		if (got <= 0)
			return;
		drained += (size_t)got;
	}
}

/* ---- the verdict ---- */

/* The rule that would allow this name or address and port. */
static void suggest(const struct flow *flow, const char *name, char *rule)
{
	if (*name && (flow->port == 80 || flow->port == 443))
		snprintf(rule, FLOW_TEXT, "%s", name);
	else
		snprintf(rule, FLOW_TEXT, "%s:%u", *name ? name : flow->address_text, flow->port);
}

static bool refuse_address(const struct flow *flow, const char *name, char *reason, char *rule)
{
	const char *what = flow->place == PLACE_HOST      ? "an address of the host"
			   : flow->place == PLACE_PRIVATE ? "a private or reserved address"
							  : NULL;

	suggest(flow, "", rule);
	if (what && *name)
		snprintf(reason, FLOW_TEXT, "%s stands for %s, %s", name, flow->address_text, what);
	else if (what)
		snprintf(reason, FLOW_TEXT, "%s is %s and not allowed by itself", flow->address_text, what);
	else
		snprintf(reason, FLOW_TEXT, "%s port %u is not allowed", flow->address_text, flow->port);
	return false;
}

bool flow_allows(struct flow *flow, const struct terms *terms, const char *name, char *reason, char *rule)
{
	const struct policy *policy = terms->policy;

	*reason = *rule = '\0';
	/* The address of a held host is reached by the host's name only, so that its requests are read. */
	if (policy_allows_address(policy, flow->address, flow->port, flow->place) &&
	    !book_has_hold(&flow->proxy->book, policy, flow->address, flow->port))
		return true;
	if (policy->mode != POLICY_ALLOW || !*name)
		return refuse_address(flow, "", reason, rule);
	if (!policy_allows_name(policy, name, flow->port)) {
		suggest(flow, name, rule);
		if (policy_allows_name(policy, name, 0))
			snprintf(reason, FLOW_TEXT, "%s is allowed, but not on port %u", name, flow->port);
		else
			snprintf(reason, FLOW_TEXT, "%s is not allowed", name);
		return false;
	}
	if (!book_has(&flow->proxy->book, name, flow->address)) {
		suggest(flow, "", rule);
		snprintf(reason, FLOW_TEXT, "%s is not an address that the resolver gave for %s", flow->address_text,
			 name);
		return false;
	}
	return flow->place == PLACE_PUBLIC || policy_lists_address(policy, flow->address, flow->port, flow->place) ||
	       refuse_address(flow, name, reason, rule);
}

bool flow_check(struct flow *flow, const struct terms *terms, const char *name, char *reason, char *rule)
{
	/* The guest may know the address from before this process started, or cache it too long. */
	if (*name && terms->policy->mode == POLICY_ALLOW && policy_allows_name(terms->policy, name, flow->port) &&
	    !book_has(&flow->proxy->book, name, flow->address))
		dns_learn(flow->proxy, terms, name);
	return flow_allows(flow, terms, name, reason, rule);
}

bool flow_permit(struct flow *flow, const char *host)
{
	struct proxy *proxy = flow->proxy;
	char reason[FLOW_TEXT], rule[FLOW_TEXT], label[POLICY_NAME_MAX + 1];

	pthread_mutex_lock(&proxy->lock);
	snprintf(flow->host, sizeof(flow->host), "%s", host);
	flow->permitted = flow_allows(flow, proxy->terms, host, reason, rule);
	pthread_mutex_unlock(&proxy->lock);
	if (!flow->permitted) {
		flow_denied(flow, host, reason, rule);
		flow->reset = true;
		return false;
	}
	if (!*host && book_name(&proxy->book, flow->address, label))
		host = label;
	if (!*host)
		host = flow->address_text;
	tally_put(proxy, flow->tally);
	flow->tally = tally_get(proxy, host, flow->port);
	report_event(proxy, &(struct verdict){ "allowed", kind_names[flow->kind], host, flow->port, "", "" });
	return true;
}

void flow_again(struct flow *flow)
{
	report_event(flow->proxy,
		     &(struct verdict){ "allowed", kind_names[flow->kind], flow->host, flow->port, "", "" });
}

void flow_revoke(struct flow *flow)
{
	pthread_mutex_lock(&flow->proxy->lock);
	flow->permitted = false;
	pthread_mutex_unlock(&flow->proxy->lock);
}

/* ---- the other end ---- */

static void tune(int fd)
{
	fd_set_keepalive(fd, 120, 30, 4);
}

/* Connects `fd`; 0 or the reason as errno. */
static int connect_within(int fd, const struct sockaddr_in *to, int timeout_ms)
{
	socklen_t size = sizeof(int);
	int error = 0;

	if (connect(fd, (const struct sockaddr *)to, sizeof(*to)) < 0 && errno != EINPROGRESS)
		return errno;
	if (!flow_wait(fd, POLLOUT, timeout_ms))
		return ETIMEDOUT;
	return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) < 0 ? errno : error;
}

int flow_connect(struct flow *flow)
{
	struct sockaddr_in to = { .sin_family = AF_INET,
				  .sin_port = htons(flow->port),
				  .sin_addr = { htonl(flow->address) } };
	cleanup_close int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	int error = fd < 0 ? errno : connect_within(fd, &to, CONNECT_TIMEOUT_MS);
	char reason[FLOW_TEXT];

	if (error) {
		snprintf(reason, sizeof(reason), "cannot connect to %s port %u: %s", flow->address_text, flow->port,
			 strerrordesc_np(error));
		flow_failed(flow, reason);
		return -1;
	}
	tune(fd);
	pthread_mutex_lock(&flow->proxy->lock);
	flow->remote = steal_fd(&fd);
	pthread_mutex_unlock(&flow->proxy->lock);
	return 0;
}

void flow_disconnect(struct flow *flow)
{
	const struct linger now = { .l_onoff = 1 };

	if (flow->remote < 0)
		return;
	setsockopt(flow->remote, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
	pthread_mutex_lock(&flow->proxy->lock);
	fd_close(&flow->remote);
	pthread_mutex_unlock(&flow->proxy->lock);
}

static void carry(struct flow *flow, const char *host)
{
	if (flow_connect(flow) == 0 && flow_permit(flow, host))
		relay_run(flow);
}

/* ---- the first bytes ---- */

enum sniff { SNIFF_TLS, SNIFF_HTTP, SNIFF_OTHER };

/* Peeks until the bytes show their protocol. The socket's low-water mark makes the wait end at one byte more. */
static enum sniff sniff(struct flow *flow, int timeout_ms, struct hello *hello, enum hello_result *result)
{
	cleanup_free char *data = malloc(HELLO_MAX);
	int64_t end = time_monotonic_ms() + timeout_ms;
	size_t have = 0;
	enum sniff kind = SNIFF_OTHER;

	*result = HELLO_MORE;
	while (data && have < HELLO_MAX) {
		int want = (int)have + 1;

		setsockopt(flow->guest, SOL_SOCKET, SO_RCVLOWAT, &want, sizeof(want));
		if (!flow_wait(flow->guest, POLLIN, (int)MAX(0, end - time_monotonic_ms())))
			break;
		ssize_t got = recv(flow->guest, data, HELLO_MAX, MSG_PEEK | MSG_DONTWAIT);
		if (got <= (ssize_t)have) /* end of the stream, or an error: no more bytes will arrive */
			break;
		have = (size_t)got;
		if (data[0] == 22) {
			kind = SNIFF_TLS;
			*result = hello_parse(data, have, hello);
			if (*result != HELLO_MORE)
				break;
			continue;
		}
		int looks = http_looks(data, have);
		if (looks > 0)
			kind = SNIFF_HTTP;
		if (looks != 0)
			break;
	}
	setsockopt(flow->guest, SOL_SOCKET, SO_RCVLOWAT, &(int){ 1 }, sizeof(int));
	return kind;
}

void flow_refuse_tls(struct flow *flow)
{
	static const uint8_t alert[] = { 21, 3, 3, 0, 2, 2, 49 }; /* fatal: access denied */

	if (send(flow->guest, alert, sizeof(alert), MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof(alert))
		flow_linger(flow);
}

static void deny_tls(struct flow *flow, const char *name, const char *reason, const char *rule)
{
	flow_denied(flow, name, reason, rule);
	flow_refuse_tls(flow);
}

/* True if TLS to this host ends here: its requests get secrets, or are held. */
static bool opens(const struct policy *policy, const char *name, uint16_t port)
{
	return policy_secret_for(policy, name, port, 0) >= 0 || policy_holds(policy, name, port);
}

/* `direct`: the address is allowed, with any content. */
static void decide_tls(struct flow *flow, struct terms *terms, bool direct, const struct hello *hello,
		       enum hello_result result)
{
	char reason[FLOW_TEXT], rule[FLOW_TEXT];

	flow->kind = FLOW_TLS;
	if (!direct && result != HELLO_OK) {
		suggest(flow, "", rule);
		deny_tls(flow, "", "its TLS hello cannot be read", rule);
	} else if (!direct && !*hello->name) {
		suggest(flow, "", rule);
		deny_tls(flow, "", "its TLS hello names no host", rule);
	} else if (!flow_check(flow, terms, hello->name, reason, rule)) {
		deny_tls(flow, hello->name, reason, rule);
	} else if (!direct && hello->encrypted) {
		suggest(flow, "", rule);
		deny_tls(flow, hello->name,
			 "its TLS hello is encrypted and may name another host; turn encrypted client hello off", rule);
	} else if (*hello->name && opens(terms->policy, hello->name, flow->port) &&
		   book_has(&flow->proxy->book, hello->name, flow->address)) {
		web_run_tls(flow, terms, hello->name);
	} else {
		carry(flow, direct ? "" : hello->name);
	}
}

static void deny_raw(struct flow *flow)
{
	char reason[FLOW_TEXT], rule[FLOW_TEXT];

	suggest(flow, "", rule);
	if (flow->place == PLACE_PUBLIC)
		snprintf(reason, sizeof(reason),
			 "%s port %u is not allowed: names are reached over TLS and HTTP only, anything else by its "
			 "address",
			 flow->address_text, flow->port);
	else
		refuse_address(flow, "", reason, rule);
	flow_denied(flow, "", reason, rule);
	flow->reset = true;
}

/* True if an address rule allows the connection, and it does not lead to a held host. The guest may know the address of a
 * held host without having asked, so the leash asks. */
static bool is_direct(struct flow *flow, struct terms *terms)
{
	const struct policy *policy = terms->policy;

	if (!policy_allows_address(policy, flow->address, flow->port, flow->place))
		return false;
	for (size_t i = 0; i < policy->hold_count; i++)
		if (!policy->holds[i].below)
			dns_learn(flow->proxy, terms, policy->holds[i].name);
	return !book_has_hold(&flow->proxy->book, policy, flow->address, flow->port);
}

static void decide(struct flow *flow, struct terms *terms)
{
	const struct policy *policy = terms->policy;
	bool direct = is_direct(flow, terms);
	char name[POLICY_NAME_MAX + 1];
	struct hello hello = { 0 };
	enum hello_result result;

	if (report_exhausted(flow->proxy, policy)) {
		flow->reset = true;
		return;
	}
	if (direct && !book_has_secret(&flow->proxy->book, policy, flow->address, flow->port)) {
		carry(flow, "");
		return;
	}
	bool hopeful = direct || (book_name(&flow->proxy->book, flow->address, name) &&
				  policy_allows_name(policy, name, flow->port));
	switch (sniff(flow, hopeful ? SNIFF_HOPEFUL_MS : SNIFF_HOPELESS_MS, &hello, &result)) {
	case SNIFF_TLS:
		decide_tls(flow, terms, direct, &hello, result);
		break;
	case SNIFF_HTTP:
		flow->kind = FLOW_HTTP;
		if (direct)
			carry(flow, "");
		else
			web_run(flow);
		break;
	case SNIFF_OTHER:
		if (direct)
			carry(flow, "");
		else
			deny_raw(flow);
		break;
	}
}

/* ---- its life ---- */

static void flow_link(struct flow *flow)
{
	struct proxy *proxy = flow->proxy;

	pthread_mutex_lock(&proxy->lock);
	flow->next = proxy->flows;
	if (flow->next)
		flow->next->previous = flow;
	proxy->flows = flow;
	proxy->flow_count++;
	pthread_mutex_unlock(&proxy->lock);
}

static void flow_end(struct flow *flow)
{
	struct proxy *proxy = flow->proxy;
	struct linger now = { .l_onoff = 1 };

	pthread_mutex_lock(&proxy->lock);
	if (flow->next)
		flow->next->previous = flow->previous;
	if (flow->previous)
		flow->previous->next = flow->next;
	else
		proxy->flows = flow->next;
	proxy->flow_count--;
	pthread_mutex_unlock(&proxy->lock);
	tally_put(proxy, flow->tally);
	if (flow->reset) {
		setsockopt(flow->guest, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
		if (flow->remote >= 0)
			setsockopt(flow->remote, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
	}
	fd_close(&flow->guest);
	fd_close(&flow->remote);
	free(flow);
}

static void *flow_run(void *argument)
{
	struct flow *flow = argument;
	struct terms *terms = proxy_terms(flow->proxy);

	flow->place = proxy_place(flow->proxy, flow->address);
	decide(flow, terms);
	terms_drop(terms);
	flow_end(flow);
	return NULL;
}

/* tproxy keeps the guest's destination as the local address of the socket. */
static int read_addresses(struct flow *flow)
{
	struct sockaddr_in here = { 0 };
	socklen_t size = sizeof(here);
	struct in_addr address;

	if (getsockname(flow->guest, (struct sockaddr *)&here, &size) < 0 || here.sin_family != AF_INET)
		return -1;
	address = here.sin_addr;
	flow->address = ntohl(address.s_addr);
	flow->port = ntohs(here.sin_port);
	inet_ntop(AF_INET, &address, flow->address_text, sizeof(flow->address_text));
	return 0;
}

/* Only the main thread adds flows, so the count can only go down meanwhile. */
static bool has_room(struct proxy *proxy, uint32_t most)
{
	pthread_mutex_lock(&proxy->lock);
	bool room = proxy->flow_count < most;
	pthread_mutex_unlock(&proxy->lock);
	return room;
}

void flow_start(struct proxy *proxy, int guest)
{
	struct flow *flow = calloc(1, sizeof(*flow));
	struct terms *terms = proxy_terms(proxy);
	char reason[FLOW_TEXT];

	if (!flow || !terms) {
		fd_close(&guest);
		free(flow);
		terms_drop(terms);
		return;
	}
	*flow = (struct flow){ .proxy = proxy, .guest = guest, .remote = -1, .reset = true };
	bool known = read_addresses(flow) == 0;
	bool room = has_room(proxy, terms->policy->connections);
	if (known && !room) {
		snprintf(reason, sizeof(reason), "the limit of %u connections at one time is reached",
			 terms->policy->connections);
		flow_denied(flow, "", reason, "");
	}
	terms_drop(terms);
	flow_link(flow);
	if (known && room) {
		flow->reset = false;
		tune(guest);
		if (proxy_thread(flow_run, flow) == 0)
			return;
		flow->reset = true;
	}
	flow_end(flow);
}
