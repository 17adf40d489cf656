/*
 * Sets up the one network interface of a virtual machine with the addresses that the host gives. The addresses belong to
 * the sandbox, so they change when an image continues as another sandbox. Called by IDENTITY and NETWORK.
 */
#include <arpa/inet.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <net/route.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>

#include "agent/agent.h"

#define DEVICE "eth0"
#define CARRIER_MS 2000
#define PAUSE_NS 1000000
#define NO_IPV6 "/proc/sys/net/ipv6/conf/" DEVICE "/disable_ipv6"

static struct sockaddr address_of(const uint8_t bytes[static 4])
{
	struct sockaddr_in in = { .sin_family = AF_INET };
	struct sockaddr out;

	memcpy(&in.sin_addr, bytes, 4);
	memcpy(&out, &in, sizeof(out));
	return out;
}

static struct ifreq named(void)
{
	return (struct ifreq){ .ifr_name = DEVICE };
}

static int set_mac(int fd, const uint8_t mac[static 6], struct husk_error *err)
{
	struct ifreq request = named();

	request.ifr_hwaddr.sa_family = ARPHRD_ETHER;
	memcpy(request.ifr_hwaddr.sa_data, mac, 6);
	return ioctl(fd, SIOCSIFHWADDR, &request) < 0 ? husk_fail_errno(err, "cannot set the address of " DEVICE) : 0;
}

static int set_flags(int fd, bool up, struct husk_error *err)
{
	struct ifreq request = named();

	request.ifr_flags = up ? IFF_UP : 0;
	return ioctl(fd, SIOCSIFFLAGS, &request) < 0 ? husk_fail_errno(err, "cannot bring " DEVICE " up") : 0;
}

static int set_address(int fd, const struct wire_interface *wanted, struct husk_error *err)
{
	uint32_t bits = htonl(UINT32_MAX << (32 - wanted->prefix));
	struct ifreq request = named();
	uint8_t mask[4];

	memcpy(mask, &bits, sizeof(mask));
	request.ifr_addr = address_of(wanted->address);
	if (ioctl(fd, SIOCSIFADDR, &request) < 0)
		return husk_fail_errno(err, "cannot give " DEVICE " its address");
	request.ifr_netmask = address_of(mask);
	return ioctl(fd, SIOCSIFNETMASK, &request) < 0 ? husk_fail_errno(err, "cannot set the netmask of " DEVICE) : 0;
}

/* ARP is not supported on this link, so the gateway's address is set as a permanent neighbour. */
static int set_gateway(int fd, const struct wire_interface *wanted, struct husk_error *err)
{
	static const uint8_t any[4];
	struct arpreq neighbour = { .arp_pa = address_of(wanted->gateway),
				    .arp_flags = ATF_PERM | ATF_COM,
				    .arp_dev = DEVICE };
	struct rtentry route = { .rt_dst = address_of(any),
				 .rt_genmask = address_of(any),
				 .rt_gateway = address_of(wanted->gateway),
				 .rt_flags = RTF_UP | RTF_GATEWAY };

	neighbour.arp_ha.sa_family = ARPHRD_ETHER;
	memcpy(neighbour.arp_ha.sa_data, wanted->gateway_mac, 6);
	if (ioctl(fd, SIOCSARP, &neighbour) < 0)
		return husk_fail_errno(err, "cannot tell " DEVICE " of its gateway");
	if (ioctl(fd, SIOCADDRT, &route) < 0 && errno != EEXIST)
		return husk_fail_errno(err, "cannot route through " DEVICE);
	return 0;
}

/* The kernel reports the carrier a moment after the device gets its link. Packets sent before are lost and repeated
 * after a second. Without this wait, only the first connection is slower. */
static void await_carrier(int fd)
{
	const struct timespec pause = { .tv_nsec = PAUSE_NS };

	for (int64_t end = time_monotonic_ms() + CARRIER_MS; time_monotonic_ms() < end; nanosleep(&pause, NULL)) {
		struct ifreq request = named();

		if (ioctl(fd, SIOCGIFFLAGS, &request) < 0 || request.ifr_flags & IFF_RUNNING)
			return;
	}
}

static bool is_set(int fd, const struct wire_interface *wanted)
{
	struct sockaddr address = address_of(wanted->address);
	struct ifreq have = named(), mac = named();

	return ioctl(fd, SIOCGIFADDR, &have) == 0 && memcmp(&have.ifr_addr, &address, 8) == 0 &&
	       ioctl(fd, SIOCGIFHWADDR, &mac) == 0 && memcmp(mac.ifr_hwaddr.sa_data, wanted->mac, 6) == 0;
}

/* The guest's root user may rename or remove the interface. Then the guest has no network; the agent must go on. */
static bool is_there(int fd)
{
	struct ifreq request = named();

	return ioctl(fd, SIOCGIFFLAGS, &request) == 0;
}

static int set_all(int fd, const struct wire_interface *wanted, struct husk_error *err)
{
	/* The link does not carry IPv6, so programs should not try it first. A kernel without IPv6 has no such file. */
	file_poke(NO_IPV6, "1", NULL);
	/* Down first: this removes the old addresses, routes and neighbours. */
	if (set_flags(fd, false, err) < 0 || set_mac(fd, wanted->mac, err) < 0 || set_address(fd, wanted, err) < 0 ||
	    set_flags(fd, true, err) < 0)
		return -1;
	return set_gateway(fd, wanted, err);
}

int interface_apply(const struct request *request, bool fresh, struct husk_error *err)
{
	cleanup_close int fd = -1;
	struct wire_interface wanted;
	struct wire_field field;

	if (!wire_find(request->data, request->size, TAG_INTERFACE, &field))
		return 0;
	memcpy(&wanted, field.data, sizeof(wanted));
	if (wanted.prefix < 1 || wanted.prefix > 31)
		return husk_fail(err, HUSK_INVALID, "a network of /%d", wanted.prefix);
	fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return husk_fail_errno(err, "cannot set " DEVICE " up");
	bool moved = !is_set(fd, &wanted);
	if (fresh && connections_cut(moved, err) < 0)
		return -1;
	if (!is_there(fd)) {
		log_line(LOG_WARN, "there is no " DEVICE " any more: the network is left as the guest made it");
		return 0;
	}
	if (moved && set_all(fd, &wanted, err) < 0)
		return -1;
	await_carrier(fd);
	return 0;
}
