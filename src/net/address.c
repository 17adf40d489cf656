/*
 * Chooses the addresses of the links to guests; see address.h. Called by supervisors before a machine is prepared, and
 * by `husk doctor`. The range of an instance never changes: a sandbox that hibernates must find its resolver when it
 * wakes.
 */
#include "net/address.h"

#include <arpa/inet.h>
#include <linux/rtnetlink.h>
#include <sys/socket.h>

#include "net/netlink.h"

#define MEMORY_FILE "network"

#define POOL_PREFIX_MAX 28 /* three sandboxes */

static const char *const defaults[] = { "10.201.0.0/16", "172.29.0.0/16", "100.127.0.0/16", "198.19.0.0/16" };

int address_parse(const char *text, const char *field, struct address_pool *out, struct husk_error *err)
{
	const char *slash = strchr(text, '/');
	cleanup_free char *address = strndup(text, slash ? (size_t)(slash - text) : strlen(text));
	struct in_addr network;
	int64_t prefix = 0;

	if (!address)
		return husk_fail_memory(err);
	if (inet_pton(AF_INET, address, &network) != 1 || !slash ||
	    str_to_int64(slash + 1, 8, POOL_PREFIX_MAX, &prefix) < 0)
		return husk_fail(err, HUSK_INVALID, "%s '%.40s' is not an IPv4 range of /8 to /%d, as 10.201.0.0/16",
				 field, text, POOL_PREFIX_MAX);
	uint32_t first = ntohl(network.s_addr);
	if (first & (UINT32_MAX >> prefix))
		return husk_fail(err, HUSK_INVALID, "%s '%.40s' has bits set behind its /%lld; clear them", field, text,
				 (long long)prefix);
	if (first >> 24 == 0 || first >> 24 == 127 || first >> 28 >= 14)
		return husk_fail(err, HUSK_INVALID, "%s '%.40s' is not a range hosts can have; use a private one",
				 field, text);
	*out = (struct address_pool){ network, (int)MAX(prefix, ADDRESS_POOL_PREFIX) };
	return 0;
}

static uint32_t pool_size(const struct address_pool *pool)
{
	return 1u << (32 - pool->prefix);
}

int address_link(const struct address_pool *pool, uint32_t slot, struct address_link *out, struct husk_error *err)
{
	uint32_t first = ntohl(pool->network.s_addr), size = 1u << (32 - ADDRESS_PREFIX),
		 most = pool_size(pool) / size - 1;

	if (slot < 1 || slot > most)
		return husk_fail(
			err, HUSK_LIMIT,
			"every address of the range %s/%d is taken (%u sandboxes); end some (husk rm), or set HUSK_NET "
			"to a wider range",
			inet_ntoa(pool->network), pool->prefix, most);
	uint32_t own = first + slot * size;
	*out = (struct address_link){ .network = { htonl(own) },
				      .gateway = { htonl(own + 1) },
				      .guest = { htonl(own + 2) },
				      .resolver = { htonl(first + 1) },
				      .pool = *pool };
	return 0;
}

/* ---- the host's routes ---- */

struct search {
	uint32_t first, last; /* of the pool */
	char *text;           /* text of a route that overlaps; "" if none so far */
};

static void look_at_route(void *data, const struct nlmsghdr *answer)
{
	const struct rtmsg *route = NLMSG_DATA(answer);
	struct search *search = data;
	size_t left =
		answer->nlmsg_len > NLMSG_LENGTH(sizeof(*route)) ? answer->nlmsg_len - NLMSG_LENGTH(sizeof(*route)) : 0;

	if (answer->nlmsg_type != RTM_NEWROUTE || answer->nlmsg_len < NLMSG_LENGTH(sizeof(*route)) || search->text[0] ||
	    route->rtm_family != AF_INET || route->rtm_dst_len == 0 || route->rtm_dst_len > 32)
		return;
	for (const struct rtattr *part = RTM_RTA(route); RTA_OK(part, left); part = RTA_NEXT(part, left)) {
		struct in_addr target;

		if (part->rta_type != RTA_DST || RTA_PAYLOAD(part) != sizeof(target))
			continue;
		memcpy(&target, RTA_DATA(part), sizeof(target));
		uint32_t span = route->rtm_dst_len == 32 ? 0 : UINT32_MAX >> route->rtm_dst_len,
			 first = ntohl(target.s_addr);
		if (first <= search->last && first + span >= search->first)
			snprintf(search->text, 64, "%s/%u", inet_ntoa(target), route->rtm_dst_len);
	}
}

int address_collides(const struct address_pool *pool, char text[static 64], struct husk_error *err)
{
	uint32_t first = ntohl(pool->network.s_addr);
	struct search search = { first, first + pool_size(pool) - 1, text };
	struct rtmsg family = { .rtm_family = AF_INET };
	struct netlink_message request;
	cleanup_close int fd = netlink_open(err);

	text[0] = '\0';
	if (fd < 0)
		return -1;
	netlink_begin(&request, RTM_GETROUTE, 0, &family, sizeof(family));
	if (netlink_dump(fd, &request, "cannot read the host's routes", look_at_route, &search, err) < 0)
		return -1;
	return text[0] != '\0';
}

/* ---- choosing ---- */

static int remember(const char *path, const char *range, struct husk_error *err)
{
	return file_write_atomic(path, range, strlen(range), 0600, err);
}

/* The range that the caller has given: used unchanged, or refused. */
static int take_given(const char *range, const char *path, const char *known, struct address_pool *out,
		      struct husk_error *err)
{
	char route[64];

	if (address_parse(range, "HUSK_NET", out, err) < 0)
		return -1;
	if (str_equal(range, known))
		return 0;
	int taken = address_collides(out, route, err);
	if (taken)
		return taken < 0 ? -1
				 : husk_fail(err, HUSK_CONFLICT,
					     "HUSK_NET '%s' overlaps the host's route %s; choose "
					     "another range",
					     range, route);
	return remember(path, range, err);
}

int address_choose(const char *home, struct address_pool *out, struct husk_error *err)
{
	cleanup_free char *path = str_format("%s/" MEMORY_FILE, home);
	cleanup_free char *known = path ? file_read(path, 64, NULL, NULL) : NULL;
	const char *given = getenv("HUSK_NET");
	char route[64] = "";

	if (!path)
		return husk_fail_memory(err);
	if (given && *given)
		return take_given(given, path, known, out, err);
	if (known && address_parse(known, "the remembered range", out, NULL) == 0)
		return 0;
	for (size_t i = 0; i < ARRAY_SIZE(defaults); i++) {
		if (address_parse(defaults[i], "range", out, err) < 0)
			return -1;
		int taken = address_collides(out, route, err);
		if (taken < 0)
			return -1;
		if (!taken)
			return remember(path, defaults[i], err);
	}
	return husk_fail(
		err, HUSK_CONFLICT,
		"every default range for sandboxes overlaps a route of the host (%s); set HUSK_NET to a free one, "
		"as HUSK_NET=10.77.0.0/16",
		route);
}
