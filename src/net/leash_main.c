/*
 * `husk leash`: the process between a guest and the network. Its supervisor starts it with the control socket on
 * descriptor 0 and the gateway namespace on 1 (leash.h describes the messages). This file has its start and its main
 * loop: it receives policies from the supervisor and passes connections and lookups of the guest to threads.
 *
 *   husk leash --resolver ADDRESS --uid N --authorities FILE
 *
 * Before the first policy it reads nothing from the guest. It ends when its supervisor has ended.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <getopt.h>
#include <linux/rtnetlink.h>
#include <openssl/crypto.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>

#include "base/jansson.h"
#include "base/log.h"
#include "base/thread.h"
#include "net/leash_parcel.h"
#include "net/leash_web.h"
#include "net/netlink.h"

#define STACK_SIZE (256u << 10)
#define FLUSH_MS 1000
#define MESSAGE_MAX (1u << 20)
#define FULL_US 10000
#define ACCEPTS_MAX 64 /* per turn, so that messages of the supervisor are read in between */

struct arguments {
	struct in_addr resolver;
	uint32_t uid;
	const char *authorities;
};

static int parse_arguments(int argc, char **argv, struct arguments *out)
{
	static const struct option options[] = { { "resolver", required_argument, NULL, 'r' },
						 { "uid", required_argument, NULL, 'u' },
						 { "authorities", required_argument, NULL, 'a' },
						 { 0 } };
	int option;
	int64_t uid = 0;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		bool good = true;

		switch (option) {
		case 'r':
			good = inet_pton(AF_INET, optarg, &out->resolver) == 1;
			break;
		case 'u':
			good = str_to_int64(optarg, 1, UINT32_MAX - 1, &uid) == 0;
			break;
		case 'a':
			out->authorities = optarg;
			break;
		default:
			good = false;
		}
		if (!good)
			return -1;
	}
	out->uid = (uint32_t)uid;
	return uid && out->resolver.s_addr && out->authorities ? 0 : -1;
}

/* ---- threads ---- */

int proxy_thread(void *(*function)(void *argument), void *argument)
{
	pthread_attr_t attributes;
	pthread_t thread;
	int error = pthread_attr_init(&attributes);

	if (error)
		return -1;
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attributes, STACK_SIZE);
	error = pthread_create(&thread, &attributes, function, argument);
	pthread_attr_destroy(&attributes);
	errno = error;
	return error ? -1 : 0;
}

/* ---- addresses of the host ---- */

/* The kernel's type of route to an address: RTN_LOCAL is the host itself. -1: no answer. One question at a time on the
 * one socket. */
static int route_type(struct proxy *proxy, uint32_t address)
{
	struct rtmsg route = { .rtm_family = AF_INET, .rtm_dst_len = 32 };
	uint32_t wire = htonl(address);
	struct netlink_message request;
	_Alignas(struct nlmsghdr) char answer[2048];
	struct nlmsghdr *head = (struct nlmsghdr *)(void *)request.data;

	netlink_begin(&request, RTM_GETROUTE, 0, &route, sizeof(route));
	netlink_put(&request, RTA_DST, &wire, sizeof(wire));
	head->nlmsg_len = (uint32_t)request.size;
	pthread_mutex_lock(&proxy->route_lock);
	ssize_t got = send(proxy->route, request.data, request.size, 0) < 0
			      ? -1
			      : recv(proxy->route, answer, sizeof(answer), 0);
	pthread_mutex_unlock(&proxy->route_lock);
	head = (struct nlmsghdr *)(void *)answer;
	if (got < 0 || !NLMSG_OK(head, (size_t)got))
		return -1;
	if (head->nlmsg_type == RTM_NEWROUTE && head->nlmsg_len >= NLMSG_LENGTH(sizeof(struct rtmsg)))
		return ((struct rtmsg *)NLMSG_DATA(head))->rtm_type;
	return head->nlmsg_type == NLMSG_ERROR ? RTN_UNREACHABLE : -1;
}

enum policy_place proxy_place(struct proxy *proxy, uint32_t address)
{
	enum policy_place place = policy_place(address);

	if (place == PLACE_HOST)
		return place;
	switch (route_type(proxy, address)) {
	case RTN_LOCAL:
	case -1:
		return PLACE_HOST; /* unknown counts as forbidden */
	case RTN_BROADCAST:
	case RTN_ANYCAST:
	case RTN_MULTICAST:
		return PLACE_PRIVATE;
	default:
		return place;
	}
}

/* ---- the supervisor ---- */

static void answer_failure(struct proxy *proxy, uint64_t serial, const char *why)
{
	json_t *root = json_pack("{s:s,s:I}", "failed", why, "serial", (json_int_t)serial);
	cleanup_free char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;

	json_decref(root);
	if (text)
		report_send(proxy, "%s", text);
}

static void take_policy(struct proxy *proxy, const char *text)
{
	struct husk_error err = { 0 };
	uint64_t serial = 0, used = 0;
	struct terms *terms = terms_read(text, &serial, &used, &err);
	bool first = !proxy->terms; /* only this thread changes it */

	if (!terms || (first && udp_start(proxy, &err) < 0)) {
		terms_drop(terms);
		answer_failure(proxy, serial, err.message);
		return;
	}
	report_used(proxy, used);
	proxy_apply(proxy, terms);
	report_send(proxy, "{\"applied\":%llu}", (unsigned long long)serial);
}

/* An answer that cannot be sent is not a reason to end: if the supervisor is gone, the socket shows it. */
static void take_message(struct proxy *proxy, const char *text)
{
	cleanup_json json_t *root = json_loads(text, 0, NULL);
	json_t *flush = json_object_get(root, "flush"), *send = json_object_get(root, "send");
	json_int_t number = json_integer_value(flush);

	if (json_object_get(root, "policy")) {
		take_policy(proxy, text);
	} else if (json_object_get(root, "held")) {
		hold_answered(proxy, root);
	} else if (send) {
		parcel_begin(&proxy->parcel, send);
	} else if (flush) {
		report_flush(proxy, true);
		report_send(proxy, "{\"flushed\":%lld}", (long long)number);
	}
}

/* A part of a request that is to be sent. */
static void take_part(struct proxy *proxy, const char *packet, size_t size)
{
	if (!parcel_part(&proxy->parcel, packet, size))
		return;
	effect_start(proxy, &proxy->parcel);
	parcel_drop(&proxy->parcel);
}

/* Receives one packet. -1: the supervisor is gone. */
static int receive(struct proxy *proxy)
{
	ssize_t size = recv(proxy->control, NULL, 0, MSG_PEEK | MSG_TRUNC | MSG_DONTWAIT);

	if (size < 0 && (errno == EAGAIN || errno == EINTR))
		return 0;
	if (size <= 0 || size > (ssize_t)MESSAGE_MAX)
		return -1;
	char *text = calloc(1, (size_t)size + 1);
	if (!text)
		return -1;
	bool whole = recv(proxy->control, text, (size_t)size, MSG_DONTWAIT) == size;

	if (whole && text[0] == '\0')
		take_part(proxy, text, (size_t)size);
	else if (whole)
		take_message(proxy, text);
	OPENSSL_cleanse(text, (size_t)size); /* may contain secrets */
	free(text);
	return whole ? 0 : -1;
}

/* ---- the guest ---- */

static void accept_all(struct proxy *proxy, int listening, void (*serve)(struct proxy *proxy, int fd))
{
	for (int i = 0; i < ACCEPTS_MAX; i++) {
		int fd = accept4(listening, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

		if (fd < 0) {
			/* Usually none is left. Without descriptors, another try at once would fail too. */
			if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
				usleep(FULL_US);
			return;
		}
		serve(proxy, fd);
	}
}

static int run(struct proxy *proxy)
{
	enum { CONTROL, ALARM, TCP, DNS, DNS_TCP, COUNT };
	int64_t flushed_ms = time_monotonic_ms();

	for (;;) {
		int rests = report_rest(proxy);
		struct pollfd watched[COUNT] = { [CONTROL] = { proxy->control, POLLIN, 0 },
						 [ALARM] = { rests, POLLIN, 0 },
						 [TCP] = { proxy->tcp, POLLIN, 0 },
						 [DNS] = { proxy->dns, POLLIN, 0 },
						 [DNS_TCP] = { proxy->dns_tcp, POLLIN, 0 } };

		if (poll(watched, proxy->terms ? COUNT : TCP, rests < 0 ? FLUSH_MS : -1) < 0 && errno != EINTR)
			return -1;
		if (watched[CONTROL].revents && receive(proxy) < 0)
			return 0;
		if (watched[TCP].revents)
			accept_all(proxy, proxy->tcp, flow_start);
		if (watched[DNS].revents)
			dns_serve_datagram(proxy);
		if (watched[DNS_TCP].revents)
			accept_all(proxy, proxy->dns_tcp, dns_serve_connection);
		if (time_monotonic_ms() - flushed_ms >= FLUSH_MS) {
			report_flush(proxy, false);
			flushed_ms = time_monotonic_ms();
		}
	}
}

/* ---- the start ---- */

/* Moves the control socket away from 0, so that no code takes it for standard input. */
static int take_descriptors(struct proxy *proxy, int *gateway_space)
{
	cleanup_close int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	proxy->control = fcntl(0, F_DUPFD_CLOEXEC, 3);
	*gateway_space = fcntl(1, F_DUPFD_CLOEXEC, 3);
	return null < 0 || proxy->control < 0 || *gateway_space < 0 || dup2(null, 0) < 0 || dup2(null, 1) < 0 ? -1 : 0;
}

static int set_up(struct proxy *proxy, const struct arguments *arguments, struct husk_error *err)
{
	cleanup_close int gateway_space = -1;

	pthread_mutex_init(&proxy->lock, NULL);
	pthread_mutex_init(&proxy->book.lock, NULL);
	pthread_mutex_init(&proxy->route_lock, NULL);
	pthread_mutex_init(&proxy->tls_lock, NULL);
	pthread_mutex_init(&proxy->holds.lock, NULL);
	pthread_mutex_init(&proxy->holds.sending, NULL);
	cond_open(&proxy->holds.changed);
	proxy->resolver = arguments->resolver;
	signal(SIGPIPE, SIG_IGN);
	if (prctl(PR_SET_NAME, "husk-leash") < 0 || take_descriptors(proxy, &gateway_space) < 0)
		return husk_fail_errno(err, "cannot take over the leash's descriptors");
	/* Without these certificates only secrets fail, and the use of a secret reports it. */
	proxy->authorities = open(arguments->authorities, O_RDONLY | O_CLOEXEC);
	if (jail_open_sockets(proxy, gateway_space, err) < 0 || report_open(proxy, err) < 0)
		return -1;
	return jail_drop(arguments->uid, err);
}

int leash_main(int argc, char **argv)
{
	struct arguments arguments = { 0 };
	struct proxy *proxy = calloc(1, sizeof(*proxy));
	struct husk_error err = { 0 };

	log_begin("leash", LOG_INFO);
	if (!proxy || parse_arguments(argc, argv, &arguments) < 0) {
		log_line(LOG_ERROR, "started by hand? it is started by the supervisor of a sandbox");
		free(proxy);
		return 2;
	}
	if (set_up(proxy, &arguments, &err) < 0) {
		log_line(LOG_ERROR, "%s", err.message);
		if (proxy->control > 0)
			answer_failure(proxy, 0, err.message);
		return 1;
	}
	if (report_send(proxy, "{\"ready\":true}") < 0)
		return 1;
	/* Threads may still run and use this memory, so the process ends without cleaning up. */
	_exit(run(proxy) < 0 ? 1 : 0);
}
