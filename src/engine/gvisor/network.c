/*
 * The network settings of a sandbox process, sent over runsc's control socket before its guest starts: the loopback,
 * and the one interface on the wire to the gateway. Called once per machine by gvisor.c. The sandbox process accepts no
 * interface later (its own seccomp filter ends it). So every machine gets one, with any policy, and the gateway decides
 * what passes.
 */
#include <arpa/inet.h>

#include "engine/gvisor/gvisor.h"
#include "net/gateway.h"

#define DEVICE "eth0"
/* The kernel splits such segments into frames itself: one pass through the guest's stack for many frames. */
#define SEGMENT_MAX 65536

static json_t *loopback(void)
{
	return json_pack("{s:s, s:[{s:s, s:i}, {s:s, s:i}], s:[{s:{s:s, s:s}, s:s}, {s:{s:s, s:s}, s:s}], s:b}", "Name",
			 "lo", "Addresses", "Address", "127.0.0.1", "PrefixLen", 8, "Address", "::1", "PrefixLen", 128,
			 "Routes", "Destination", "IP", "127.0.0.0", "Mask", "/wAAAA==", "Gateway", "", "Destination",
			 "IP", "::1", "Mask", "/////////////////////w==", "Gateway", "", "GVisorGRO", 0);
}

/* Go reads bytes as base64; six of them need no padding. */
static json_t *hardware_address(const uint8_t mac[static 6])
{
	static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	char text[9] = { 0 };

	for (size_t i = 0; i < 2; i++) {
		uint32_t three = (uint32_t)mac[3 * i] << 16 | (uint32_t)mac[3 * i + 1] << 8 | mac[3 * i + 2];

		for (size_t j = 0; j < 4; j++)
			text[4 * i + j] = digits[three >> (18 - 6 * j) & 63];
	}
	return json_string(text);
}

static json_t *address(struct in_addr value)
{
	char text[INET_ADDRSTRLEN];

	return json_string(inet_ntop(AF_INET, &value, text, sizeof(text)));
}

json_t *gvisor_addresses(const struct gateway *gateway, json_t *past)
{
	json_t *all = json_array(), *one;
	const char *own;
	size_t i;

	if (!gateway)
		return all;
	if (json_array_append_new(all, address(gateway->link.guest)) < 0) {
		json_decref(all);
		return NULL;
	}
	own = json_string_value(json_array_get(all, 0));
	json_array_foreach(past, i, one)
	{
		if (json_is_string(one) && !str_equal(json_string_value(one), own))
			json_array_append(all, one);
	}
	return all;
}

/* The first address is the machine's own, and the source address from now on. */
static json_t *interface_addresses(json_t *addresses)
{
	json_t *out = json_array(), *one;
	size_t i;

	json_array_foreach(addresses, i, one) json_array_append_new(
		out, json_pack("{s:O, s:i}", "Address", one, "PrefixLen", i ? 32 : ADDRESS_PREFIX));
	return out;
}

static json_t *interface(const struct address_link *link, json_t *addresses)
{
	return json_pack("{s:s, s:i, s:o, s:[{s:{s:o, s:s}, s:s}], s:i, s:b, s:b, s:b, s:b, s:o, s:i, "
			 "s:[{s:o, s:o}], s:i, s:i}",
			 "Name", DEVICE, "MTU", GATEWAY_MTU, "Addresses", interface_addresses(addresses), "Routes",
			 "Destination", "IP", address(link->network), "Mask", "/////A==", "Gateway", "", "GSOMaxSize",
			 SEGMENT_MAX, "GVisorGSOEnabled", 0, "GVisorGRO", 0, "TXChecksumOffload", 0,
			 "RXChecksumOffload", 1, "LinkAddress", hardware_address(gateway_guest_mac), "QDisc", 0,
			 "Neighbors", "IP", address(link->gateway), "HardwareAddr", hardware_address(gateway_mac),
			 "NumChannels", 1, "ProcessorsPerChannel", 0);
}

static json_t *no_route(void)
{
	return json_pack("{s:{s:{s:s, s:n}, s:s}, s:s}", "Route", "Destination", "IP", "", "Mask", "Gateway", "",
			 "Name", "");
}

static json_t *default_route(const struct address_link *link)
{
	return json_pack("{s:{s:{s:s, s:s}, s:o}, s:s}", "Route", "Destination", "IP", "0.0.0.0", "Mask",
			 "AAAAAA==", "Gateway", address(link->gateway), "Name", DEVICE);
}

json_t *gvisor_links(const struct gateway *gateway, json_t *addresses)
{
	/* DisconnectOk: a checkpoint cuts connections that leave the machine. Without it, they would make the
	 * checkpoint fail. */
	return json_pack("{s:[o], s:o, s:n, s:o, s:o, s:b, s:b, s:b, s:b}", "LoopbackLinks", loopback(), "FDBasedLinks",
			 gateway ? json_pack("[o]", interface(&gateway->link, addresses)) : json_null(), "XDPLinks",
			 "Defaultv4Gateway", gateway ? default_route(&gateway->link) : no_route(), "Defaultv6Gateway",
			 no_route(), "PCAP", 0, "LogPackets", 0, "NATBlob", 0, "DisconnectOk", 1);
}
