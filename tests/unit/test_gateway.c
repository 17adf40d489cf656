/*
 * The wire between a guest and its gateway, with raw frames in the place of a guest: what is refused at once, what is
 * dropped without a word, what reaches a transparent socket, and that the host sees none of it. Needs root.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <net/if.h>
#include <netinet/ip.h>
#include <netinet/ip_icmp.h>
#include <netinet/udp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/socket.h>

#include "net/gateway.h"
#include "net/leash.h"
#include "scratch.h"

#define HEADER_MAX 12

struct packet { /* what a guest sends; zero fields are the usual */
	uint16_t type;
	const char *from, *to;
	uint8_t protocol;
	uint16_t fragment;
	uint16_t port;
};

static struct gateway gateway = GATEWAY_NONE;
static size_t header; /* bytes before each frame of this kind of wire */

static void require_root(void)
{
	if (geteuid() != 0)
		skip();
}

static int open_kind(enum gateway_kind kind)
{
	struct address_pool pool;
	struct address_link link;
	struct husk_error err = { 0 };

	if (geteuid() != 0)
		return 0;
	header = kind == GATEWAY_TAP ? 12 : 10;
	assert_int_equal(address_parse("10.77.0.0/16", "range", &pool, &err), 0);
	assert_int_equal(address_link(&pool, 300, &link, &err), 0);
	if (gateway_make(&link, kind, &gateway, &err) < 0)
		fail_msg("%s", err.message);
	return 0;
}

static int open_gateway(void **state)
{
	(void)state;
	return open_kind(GATEWAY_SOCKET);
}

static int open_tap(void **state)
{
	(void)state;
	return open_kind(GATEWAY_TAP);
}

static int close_gateway(void **state)
{
	(void)state;
	gateway_close(&gateway);
	return 0;
}

static uint16_t checksum(const void *data, size_t size)
{
	const uint8_t *bytes = data;
	uint32_t sum = 0;

	for (size_t i = 0; i + 1 < size; i += 2)
		sum += (uint32_t)bytes[i] << 8 | bytes[i + 1];
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return htons((uint16_t)~sum);
}

static void put_frame(const struct packet *packet)
{
	char frame[HEADER_MAX + 64] = { 0 };
	struct ethhdr ether = { .h_proto = htons(packet->type ? packet->type : ETH_P_IP) };
	struct iphdr ip = { .version = 4, .ihl = 5, .ttl = 64, .tot_len = htons(sizeof(ip) + sizeof(struct udphdr)) };
	struct udphdr udp = { .source = htons(1234),
			      .dest = htons(packet->port ? packet->port : 99),
			      .len = htons(sizeof(udp)) };

	memcpy(ether.h_dest, gateway_mac, 6);
	memcpy(ether.h_source, gateway.guest_mac, 6);
	ip.protocol = packet->protocol ? packet->protocol : IPPROTO_UDP;
	ip.frag_off = htons(packet->fragment);
	inet_pton(AF_INET, packet->from ? packet->from : "10.77.4.178", &ip.saddr);
	inet_pton(AF_INET, packet->to ? packet->to : "203.0.113.9", &ip.daddr);
	ip.check = checksum(&ip, sizeof(ip));
	memcpy(frame + header, &ether, sizeof(ether));
	memcpy(frame + header + sizeof(ether), &ip, sizeof(ip));
	memcpy(frame + header + sizeof(ether) + sizeof(ip), &udp, sizeof(udp));
	assert_int_equal(write(gateway.port, frame, header + 64), header + 64);
}

/* The ICMP type of what comes back, or -1. */
static int answer(int patience_ms)
{
	struct pollfd wait = { .fd = gateway.port, .events = POLLIN };
	char frame[2048];

	while (poll(&wait, 1, patience_ms) > 0) {
		ssize_t size = read(gateway.port, frame, sizeof(frame));
		struct iphdr ip;

		if (size < (ssize_t)(header + sizeof(struct ethhdr) + sizeof(ip) + 8))
			continue;
		memcpy(&ip, frame + header + sizeof(struct ethhdr), sizeof(ip));
		if (ip.protocol == IPPROTO_ICMP)
			return frame[header + sizeof(struct ethhdr) + 4 * ip.ihl];
	}
	return -1;
}

static void refuses_at_once(void **state)
{
	(void)state;
	require_root();
	for (int i = 0; i < 20; i++) {
		put_frame(&(struct packet){ 0 });
		assert_int_equal(answer(1000), ICMP_DEST_UNREACH);
	}
	put_frame(&(struct packet){ .to = "10.77.0.1", .port = 53 });
	assert_int_equal(answer(1000), ICMP_DEST_UNREACH);
	put_frame(&(struct packet){ .to = "127.0.0.1" });
	assert_int_equal(answer(1000), ICMP_DEST_UNREACH);
}

static void drops_what_is_not_plain(void **state)
{
	static const struct packet packets[] = {
		{ .protocol = IPPROTO_ICMP }, { .protocol = IPPROTO_GRE }, { .protocol = IPPROTO_SCTP },
		{ .from = "10.77.0.1" },      { .from = "10.77.4.177" },   { .from = "10.77.4.179" },
		{ .from = "10.78.0.2" },      { .from = "192.0.2.1" },     { .from = "127.0.0.1" },
		{ .fragment = IP_MF },        { .fragment = 1 },           { .type = ETH_P_IPV6 },
		{ .type = ETH_P_ARP },        { .type = ETH_P_8021Q },     { .type = 0x88cc },
	};

	(void)state;
	require_root();
	for (size_t i = 0; i < ARRAY_SIZE(packets); i++)
		put_frame(&packets[i]);
	assert_int_equal(answer(200), -1);
	put_frame(&(struct packet){ 0 }); /* and the wire is alive */
	assert_int_equal(answer(1000), ICMP_DEST_UNREACH);
}

/* A socket like the leash's, opened inside; -1 with errno. */
static void *open_inside(void *data)
{
	struct sockaddr_in any = { .sin_family = AF_INET, .sin_port = htons(LEASH_UDP_PORT) };
	int one = 1, *out = data;

	if (setns(gateway.space, CLONE_NEWNET) < 0)
		return NULL;
	*out = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (*out < 0 || setsockopt(*out, SOL_IP, IP_TRANSPARENT, &one, sizeof(one)) < 0 ||
	    bind(*out, (struct sockaddr *)&any, sizeof(any)) < 0)
		return NULL;
	return out;
}

static void brings_all_to_the_leash(void **state)
{
	cleanup_close int fd = -1;
	pthread_t thread;
	void *opened = NULL;
	struct sockaddr_in from;
	socklen_t size = sizeof(from);
	char byte;

	(void)state;
	require_root();
	assert_int_equal(pthread_create(&thread, NULL, open_inside, &fd), 0);
	pthread_join(thread, &opened);
	assert_non_null(opened);
	struct pollfd wait = { .fd = fd, .events = POLLIN };
	put_frame(&(struct packet){ .to = "198.51.100.7", .port = 4242 });
	assert_int_equal(poll(&wait, 1, 1000), 1);
	assert_int_equal(recvfrom(fd, &byte, 1, 0, (struct sockaddr *)&from, &size), 0);
	assert_string_equal(inet_ntoa(from.sin_addr), "10.77.4.178");
	/* From an address of its past; and the refusal of what has no listener goes back there, down the same wire. */
	put_frame(&(struct packet){ .from = "10.77.0.6", .to = "198.51.100.7", .port = 4242 });
	assert_int_equal(poll(&wait, 1, 1000), 1);
	assert_int_equal(recvfrom(fd, &byte, 1, 0, (struct sockaddr *)&from, &size), 0);
	assert_string_equal(inet_ntoa(from.sin_addr), "10.77.0.6");
	put_frame(&(struct packet){ .from = "10.77.0.6", .to = "10.77.0.1", .port = 53 });
	assert_int_equal(answer(1000), ICMP_DEST_UNREACH);
	/* Spoofed, and from loopback to loopback: still not. */
	put_frame(&(struct packet){ .from = "192.0.2.1" });
	put_frame(&(struct packet){ .from = "127.0.0.1", .to = "127.0.0.1", .port = LEASH_UDP_PORT });
	assert_int_equal(poll(&wait, 1, 100), 0);
}

static void is_no_business_of_the_host(void **state)
{
	(void)state;
	require_root();
	assert_int_equal(if_nametoindex("w0"), 0);
	assert_int_equal(if_nametoindex("g0"), 0);
}

static void reads_ranges(void **state)
{
	static const char *const wrong[] = {
		"",          "10.0.0.0", "10.0.0.0/30", "10.0.0.0/7",  "10.0.0.1/24", "10.0.0.0/x",
		"10.0.0/24", "::1/64",   "0.0.0.0/8",   "127.0.0.0/8", "224.0.0.0/8", "example.com"
	};
	struct address_pool pool;
	struct address_link link;
	struct husk_error err;

	(void)state;
	assert_int_equal(address_parse("10.9.8.0/24", "range", &pool, &err), 0);
	assert_int_equal(address_link(&pool, 1, &link, &err), 0);
	assert_string_equal(inet_ntoa(link.resolver), "10.9.8.1");
	assert_string_equal(inet_ntoa(link.gateway), "10.9.8.5");
	assert_string_equal(inet_ntoa(link.guest), "10.9.8.6");
	assert_int_equal(address_link(&pool, 63, &link, &err), 0);
	assert_string_equal(inet_ntoa(link.guest), "10.9.8.254");
	assert_int_equal(address_link(&pool, 0, &link, &err), -1);
	assert_int_equal(address_link(&pool, 64, &link, &err), -1);
	assert_int_equal(err.code, HUSK_LIMIT);
	assert_non_null(strstr(err.message, "63"));
	assert_int_equal(address_parse("10.0.0.0/8", "range", &pool, &err), 0);
	assert_int_equal(address_link(&pool, 16383, &link, &err), 0);
	assert_string_equal(inet_ntoa(link.guest), "10.0.255.254");
	assert_int_equal(address_link(&pool, 16384, &link, &err), -1);
	for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
		assert_int_equal(address_parse(wrong[i], "HUSK_NET", &pool, &err), -1);
		assert_int_equal(err.code, HUSK_INVALID);
		assert_non_null(strstr(err.message, "HUSK_NET"));
	}
}

static void sees_routes_in_the_way(void **state)
{
	/* The one route every host has, anywhere in the range. */
	struct address_pool pool = { .network = { htonl(0x7e000000) }, .prefix = 7 };
	struct husk_error err = { 0 };
	char route[64];

	(void)state;
	assert_int_equal(address_collides(&pool, route, &err), 1);
	assert_true(str_starts(route, "127.0.0."));
}

static void remembers_the_range(void **state)
{
	struct address_pool first, second;
	struct husk_error err = { 0 };

	(void)state;
	assert_int_equal(setenv("HUSK_NET", "10.254.0.0/16", 1), 0);
	assert_int_equal(address_choose(scratch, &first, &err), 0);
	assert_int_equal(unsetenv("HUSK_NET"), 0);
	assert_int_equal(address_choose(scratch, &second, &err), 0);
	assert_int_equal(first.network.s_addr, second.network.s_addr);
	assert_int_equal(setenv("HUSK_NET", "nonsense", 1), 0);
	assert_int_equal(address_choose(scratch, &second, &err), -1);
	assert_int_equal(err.code, HUSK_INVALID);
	unsetenv("HUSK_NET");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(refuses_at_once, open_gateway, close_gateway),
		cmocka_unit_test_setup_teardown(drops_what_is_not_plain, open_gateway, close_gateway),
		cmocka_unit_test_setup_teardown(brings_all_to_the_leash, open_gateway, close_gateway),
		cmocka_unit_test_setup_teardown(is_no_business_of_the_host, open_gateway, close_gateway),
		cmocka_unit_test_setup_teardown(refuses_at_once, open_tap, close_gateway),
		cmocka_unit_test_setup_teardown(drops_what_is_not_plain, open_tap, close_gateway),
		cmocka_unit_test_setup_teardown(brings_all_to_the_leash, open_tap, close_gateway),
		cmocka_unit_test_setup_teardown(is_no_business_of_the_host, open_tap, close_gateway),
		cmocka_unit_test(reads_ranges),
		cmocka_unit_test(sees_routes_in_the_way),
		cmocka_unit_test(remembers_the_range),
	};

	cmocka_set_message_output(CM_OUTPUT_TAP);
	return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
