/*
 * Creates the link between a guest and its gateway namespace; see gateway.h. Called by the supervisor while it prepares
 * a machine. The work runs on its own thread, because a single thread can change its network namespace. The supervisor
 * itself must stay in the host's namespace, from which the leash connects. A gateway that cannot be set up completely
 * is removed.
 */
#include "net/gateway.h"

#include <fcntl.h>
#include <linux/if_ether.h>
#include <linux/if_link.h>
#include <linux/if_packet.h>
#include <linux/if_tun.h>
#include <linux/neighbour.h>
#include <linux/rtnetlink.h>
#include <linux/veth.h>
#include <net/if.h>
#include <pthread.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "net/netlink.h"
#include "net/rules.h"

#define GATEWAY_DEVICE "w0"
#define GUEST_DEVICE "g0"
#define LINK_UP 6 /* IF_OPER_UP of <linux/if.h>, which conflicts with <net/if.h> */
#define LINK_PATIENCE_MS 10000
#define TUN_DEVICE "/dev/net/tun"
#define TAP_HEADER 12           /* bytes before each frame: struct virtio_net_hdr_v1 */
#define SOCKET_BUFFER (4 << 20) /* for a burst while the engine's thread waits for a CPU */

const uint8_t gateway_mac[6] = { 0x02, 'h', 'u', 's', 'k', 1 };
const uint8_t gateway_guest_mac[6] = { 0x02, 'h', 'u', 's', 'k', 2 };

/* ---- namespaces ---- */

/* Moves the calling thread into a new network namespace. Returns its descriptor. */
static int enter_new_space(struct husk_error *err)
{
	if (unshare(CLONE_NEWNET) < 0)
		return husk_fail_errno(err, "cannot make a network namespace (are we root?)");
	int fd = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
	return fd < 0 ? husk_fail_errno(err, "cannot open a network namespace") : fd;
}

/* A new namespace inherits the host's settings: on a host with forwarding enabled, a gateway would forward too. */
static int set_options(struct husk_error *err)
{
	static const struct {
		const char *path, *value;
		bool optional; /* a kernel without IPv6 does not have this setting */
	} options[] = {
		{ "/proc/sys/net/ipv6/conf/all/disable_ipv6", "1", true },
		{ "/proc/sys/net/ipv6/conf/default/disable_ipv6", "1", true },
		{ "/proc/sys/net/ipv4/ip_forward", "0", false },
		{ "/proc/sys/net/ipv4/conf/all/rp_filter", "1", false },
		{ "/proc/sys/net/ipv4/conf/default/rp_filter", "1", false },
		{ "/proc/sys/net/ipv4/conf/all/route_localnet", "0", false },
		{ "/proc/sys/net/ipv4/conf/default/route_localnet", "0", false },
		{ "/proc/sys/net/ipv4/conf/all/send_redirects", "0", false },
		/* Each refusal is reported at once: a program that tries ten addresses must not hang on the seventh. */
		{ "/proc/sys/net/ipv4/icmp_ratelimit", "0", false },
	};

	for (size_t i = 0; i < ARRAY_SIZE(options); i++) {
		if (options[i].optional && access(options[i].path, F_OK) < 0)
			continue;
		if (file_poke(options[i].path, options[i].value, err) < 0)
			return -1;
	}
	return 0;
}

/* ---- links ---- */

static void put_device(struct netlink_message *message, const char *name, const uint8_t *mac)
{
	uint32_t mtu = GATEWAY_MTU;

	netlink_put(message, IFLA_IFNAME, name, strlen(name) + 1);
	netlink_put(message, IFLA_ADDRESS, mac, 6);
	netlink_put(message, IFLA_MTU, &mtu, sizeof(mtu));
}

/* The veth pair: one end here, one in `guest_space`. */
static int add_pair(int netlink, int guest_space, struct husk_error *err)
{
	struct ifinfomsg plain = { .ifi_family = AF_UNSPEC };
	struct netlink_message message;

	netlink_begin(&message, RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, &plain, sizeof(plain));
	put_device(&message, GATEWAY_DEVICE, gateway_mac);
	size_t info = netlink_nest(&message, IFLA_LINKINFO, NULL, 0);
	netlink_put(&message, IFLA_INFO_KIND, "veth", strlen("veth"));
	size_t data = netlink_nest(&message, IFLA_INFO_DATA, NULL, 0);
	size_t peer = netlink_nest(&message, VETH_INFO_PEER, &plain, sizeof(plain));
	put_device(&message, GUEST_DEVICE, gateway_guest_mac);
	netlink_put(&message, IFLA_NET_NS_FD, &guest_space, sizeof(guest_space));
	netlink_nest_end(&message, peer);
	netlink_nest_end(&message, data);
	netlink_nest_end(&message, info);
	return netlink_talk(netlink, &message, "cannot make a veth pair", err);
}

/* The other kind of link: one interface here, whose far end is a descriptor. The interface is removed with the last
 * copy of the descriptor. */
static int add_tap(int netlink, struct husk_error *err)
{
	cleanup_close int fd = open(TUN_DEVICE, O_RDWR | O_CLOEXEC);
	struct ifreq request = { .ifr_name = GATEWAY_DEVICE, .ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR };
	struct ifinfomsg head = { .ifi_family = AF_UNSPEC };
	struct netlink_message message;
	int size = TAP_HEADER;

	if (fd < 0)
		return husk_fail_errno(err, "cannot open " TUN_DEVICE " (modprobe tun)");
	if (ioctl(fd, TUNSETIFF, &request) < 0 || ioctl(fd, TUNSETVNETHDRSZ, &size) < 0)
		return husk_fail_errno(err, "cannot make a tap");
	head.ifi_index = (int)if_nametoindex(GATEWAY_DEVICE);
	netlink_begin(&message, RTM_NEWLINK, 0, &head, sizeof(head));
	put_device(&message, GATEWAY_DEVICE, gateway_mac);
	return netlink_talk(netlink, &message, "cannot set a tap up", err) < 0 ? -1 : steal_fd(&fd);
}

static int set_up(int netlink, const char *device, struct husk_error *err)
{
	struct ifinfomsg up = { .ifi_index = (int)if_nametoindex(device), .ifi_flags = IFF_UP, .ifi_change = IFF_UP };
	struct netlink_message message;

	if (up.ifi_index == 0)
		return husk_fail_errno(err, "cannot find the interface %s", device);
	netlink_begin(&message, RTM_NEWLINK, 0, &up, sizeof(up));
	return netlink_talk(netlink, &message, "cannot bring an interface up", err);
}

static void look_at_state(void *data, const struct nlmsghdr *answer)
{
	const struct ifinfomsg *head = NLMSG_DATA(answer);
	int left = (int)IFLA_PAYLOAD(answer);
	uint8_t *state = data;

	if (answer->nlmsg_type != RTM_NEWLINK || answer->nlmsg_len < NLMSG_LENGTH(sizeof(*head)))
		return;
	for (const struct rtattr *part = IFLA_RTA(head); RTA_OK(part, left); part = RTA_NEXT(part, left))
		if (part->rta_type == IFLA_OPERSTATE && RTA_PAYLOAD(part) == sizeof(*state))
			memcpy(state, RTA_DATA(part), sizeof(*state));
}

/*
 * The end of a pair that comes up first sends nothing until a kernel worker has noticed the other end. On a busy host
 * that takes so long that a guest's first answers would be lost. Asking for the state speeds it up on kernels from 6.8
 * on.
 */
static int wait_for_link(int netlink, const char *device, struct husk_error *err)
{
	struct ifinfomsg head = { .ifi_family = AF_UNSPEC };
	struct netlink_message message;
	uint8_t state = 0;

	for (int i = 0; state != LINK_UP && i < LINK_PATIENCE_MS; i++) {
		if (i > 0)
			usleep(1000);
		netlink_begin(&message, RTM_GETLINK, 0, &head, sizeof(head));
		netlink_put(&message, IFLA_IFNAME, device, strlen(device) + 1);
		if (netlink_ask(netlink, &message, "cannot look at an interface", look_at_state, &state, err) < 0)
			return -1;
	}
	return state == LINK_UP ? 0 : husk_fail(err, HUSK_TIMEOUT, "the wire to the guest does not come up");
}

static int add_address(int netlink, int index, struct in_addr address, uint8_t prefix, struct husk_error *err)
{
	struct ifaddrmsg head = { .ifa_family = AF_INET, .ifa_prefixlen = prefix, .ifa_index = (uint32_t)index };
	struct netlink_message message;

	netlink_begin(&message, RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, &head, sizeof(head));
	netlink_put(&message, IFA_LOCAL, &address, sizeof(address));
	netlink_put(&message, IFA_ADDRESS, &address, sizeof(address));
	return netlink_talk(netlink, &message, "cannot give the gateway its address", err);
}

/* Both ends have fixed neighbour entries: no ARP crosses the link. */
static int add_neighbour(int netlink, int index, const struct gateway *gateway, struct husk_error *err)
{
	struct ndmsg head = { .ndm_family = AF_INET, .ndm_ifindex = index, .ndm_state = NUD_PERMANENT };
	struct netlink_message message;

	netlink_begin(&message, RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE, &head, sizeof(head));
	netlink_put(&message, NDA_DST, &gateway->link.guest, sizeof(gateway->link.guest));
	netlink_put(&message, NDA_LLADDR, gateway->guest_mac, sizeof(gateway->guest_mac));
	return netlink_talk(netlink, &message, "cannot tell the gateway of its guest", err);
}

/* Also for a guest that still uses the address of the machine it was copied from. */
static int add_way_back(int netlink, int index, const struct address_link *link, struct husk_error *err)
{
	struct rtmsg head = { .rtm_family = AF_INET,
			      .rtm_table = RT_TABLE_MAIN,
			      .rtm_protocol = RTPROT_STATIC,
			      .rtm_scope = RT_SCOPE_UNIVERSE,
			      .rtm_type = RTN_UNICAST,
			      .rtm_dst_len = (uint8_t)link->pool.prefix };
	struct netlink_message message;

	netlink_begin(&message, RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL, &head, sizeof(head));
	netlink_put(&message, RTA_DST, &link->pool.network, sizeof(link->pool.network));
	netlink_put(&message, RTA_GATEWAY, &link->guest, sizeof(link->guest));
	netlink_put(&message, RTA_OIF, &index, sizeof(index));
	return netlink_talk(netlink, &message, "cannot route to the guest", err);
}

/* Delivers every destination of a guest here, to the leash. In the main table, where the pool of guests comes first. */
static int add_catch_all(int netlink, int loopback, struct husk_error *err)
{
	struct rtmsg head = { .rtm_family = AF_INET,
			      .rtm_table = RT_TABLE_MAIN,
			      .rtm_protocol = RTPROT_STATIC,
			      .rtm_scope = RT_SCOPE_HOST,
			      .rtm_type = RTN_LOCAL };
	struct netlink_message message;

	netlink_begin(&message, RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL, &head, sizeof(head));
	netlink_put(&message, RTA_OIF, &loopback, sizeof(loopback));
	return netlink_talk(netlink, &message, "cannot route the gateway", err);
}

/* The link exists; now its gateway end is set up. */
static int fill_gateway(int netlink, const struct gateway *gateway, struct husk_error *err)
{
	int device = (int)if_nametoindex(GATEWAY_DEVICE), loopback = (int)if_nametoindex("lo");

	if (device == 0 || loopback == 0)
		return husk_fail_errno(err, "cannot find the interfaces of a gateway");
	/* Rules first, so that no packet can ever arrive without them. */
	if (rules_load(GATEWAY_DEVICE, &gateway->link, err) < 0 || set_up(netlink, "lo", err) < 0 ||
	    set_up(netlink, GATEWAY_DEVICE, err) < 0 ||
	    add_address(netlink, device, gateway->link.gateway, ADDRESS_PREFIX, err) < 0 ||
	    add_address(netlink, loopback, gateway->link.resolver, 32, err) < 0 ||
	    add_neighbour(netlink, device, gateway, err) < 0 || add_way_back(netlink, device, &gateway->link, err) < 0)
		return -1;
	return add_catch_all(netlink, loopback, err);
}

/* ---- the guest's end ---- */

static int open_port(struct husk_error *err)
{
	struct sockaddr_ll here = { .sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL) };
	cleanup_close int netlink = netlink_open(err);
	cleanup_close int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);
	int one = 1, size = SOCKET_BUFFER;

	if (netlink < 0 || set_up(netlink, GUEST_DEVICE, err) < 0)
		return -1;
	here.sll_ifindex = (int)if_nametoindex(GUEST_DEVICE);
	if (fd < 0 || here.sll_ifindex == 0 || setsockopt(fd, SOL_PACKET, PACKET_VNET_HDR, &one, sizeof(one)) < 0 ||
	    setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof(size)) < 0 ||
	    setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof(size)) < 0 ||
	    bind(fd, (struct sockaddr *)&here, sizeof(here)) < 0)
		return husk_fail_errno(err, "cannot open the guest's end of the wire");
	return steal_fd(&fd);
}

/* First the guest's side, then the gateway with the pair between them, then back for the guest's socket. */
static int make_pair(struct gateway *out, struct husk_error *err)
{
	cleanup_close int guest_space = enter_new_space(err), netlink = -1;

	if (guest_space < 0 || set_options(err) < 0)
		return -1;
	out->space = enter_new_space(err);
	if (out->space < 0 || set_options(err) < 0)
		return -1;
	netlink = netlink_open(err);
	if (netlink < 0 || add_pair(netlink, guest_space, err) < 0 || fill_gateway(netlink, out, err) < 0)
		return -1;
	if (setns(guest_space, CLONE_NEWNET) < 0)
		return husk_fail_errno(err, "cannot enter the guest's network namespace");
	out->port = open_port(err);
	return out->port < 0 ? -1 : wait_for_link(netlink, GATEWAY_DEVICE, err);
}

/* A virtual machine has no namespace on the host: the link ends in its monitor. */
static int make_tap(struct gateway *out, struct husk_error *err)
{
	cleanup_close int netlink = -1;

	out->space = enter_new_space(err);
	if (out->space < 0 || set_options(err) < 0)
		return -1;
	netlink = netlink_open(err);
	if (netlink < 0)
		return -1;
	out->port = add_tap(netlink, err);
	return out->port < 0 ? -1 : fill_gateway(netlink, out, err);
}

struct job {
	struct gateway gateway;
	enum gateway_kind kind;
	struct husk_error err;
	int result;
};

static void *make(void *argument)
{
	struct job *job = argument;

	job->result =
		job->kind == GATEWAY_TAP ? make_tap(&job->gateway, &job->err) : make_pair(&job->gateway, &job->err);
	return NULL;
}

/* A virtual machine that continues as another sandbox gets a new address, so its interface has its own MAC. */
static void choose_mac(struct gateway *gateway, enum gateway_kind kind)
{
	memcpy(gateway->guest_mac, gateway_guest_mac, sizeof(gateway->guest_mac));
	if (kind == GATEWAY_TAP)
		memcpy(gateway->guest_mac + 2, &gateway->link.guest, sizeof(gateway->link.guest));
}

int gateway_make(const struct address_link *link, enum gateway_kind kind, struct gateway *out, struct husk_error *err)
{
	struct job job = { .gateway = GATEWAY_NONE, .kind = kind };
	pthread_t thread;

	job.gateway.link = *link;
	choose_mac(&job.gateway, kind);
	int failed = pthread_create(&thread, NULL, make, &job);
	if (failed) {
		errno = failed;
		return husk_fail_errno(err, "cannot start a thread");
	}
	pthread_join(thread, NULL);
	if (job.result < 0) {
		gateway_close(&job.gateway);
		if (err)
			*err = job.err;
		return husk_wrap(err, "cannot set up the network of a machine");
	}
	*out = job.gateway;
	return 0;
}

void gateway_release_port(struct gateway *gateway)
{
	fd_close(&gateway->port);
}

void gateway_close(struct gateway *gateway)
{
	gateway_release_port(gateway);
	fd_close(&gateway->space);
}
