/*
 * The packet rules of a gateway namespace. They are the same for every policy and never change during a machine's life.
 * They bring TCP and UDP of the guest to the leash's sockets, and refuse packets without a socket, which are all
 * packets if no leash runs. The leash decides about destinations. Packets other than plain IPv4 from a guest address
 * are dropped here, before the kernel's IP stack reads them.
 *
 * Guest addresses are all those of the instance: a copied machine still has sockets with the address of the original.
 * The exact address does not matter on a link with one guest, because answers take the same link.
 */
#include "net/rules.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <nftables/libnftables.h>
#include <pthread.h>

#include "net/leash.h"

/*
 * ingress: no ARP, IPv6, VLANs, fragments (later parts have no ports), other protocols, or foreign source addresses.
 * to_leash: tproxy keeps the guest's destination; it does not match if no socket of the leash listens.
 */
static const char *const template =
	"table netdev husk {\n"
	" chain ingress {\n"
	"  type filter hook ingress device \"%1$s\" priority -500; policy drop;\n"
	"  ip saddr & 0.0.0.3 != 0.0.0.2 drop\n"
	"  ether type ip ip saddr %2$s ip frag-off & 0x3fff == 0 meta l4proto { tcp, udp } accept\n"
	" }\n"
	"}\n"
	"table inet husk {\n"
	" chain to_leash {\n"
	"  type filter hook prerouting priority mangle; policy drop;\n"
	"  iifname \"lo\" accept\n"
	"  ip daddr %3$s meta l4proto { tcp, udp } th dport 53 accept\n"
	"  meta l4proto tcp tproxy ip to :%4$d accept\n"
	"  meta l4proto udp tproxy ip to :%5$d accept\n"
	"  reject with icmp net-unreachable\n"
	" }\n"
	" chain forward { type filter hook forward priority filter; policy drop; }\n"
	" chain output {\n"
	"  type filter hook output priority filter; policy drop;\n"
	"  oifname \"lo\" accept\n"
	"  oifname \"%1$s\" ip daddr %2$s accept\n"
	" }\n"
	"}\n";

/*
 * Loaded on first use: only supervisors need it, and linking it would add a millisecond to every start of a husk
 * command. Set once, under the lock.
 */
static struct library {
	void *handle;
	struct nft_ctx *(*context_new)(uint32_t flags);
	void (*context_free)(struct nft_ctx *context);
	int (*buffer_error)(struct nft_ctx *context);
	const char *(*get_error)(struct nft_ctx *context);
	int (*run)(struct nft_ctx *context, const char *commands);
} library;
static pthread_mutex_t library_lock = PTHREAD_MUTEX_INITIALIZER;

static int library_load(struct husk_error *err)
{
	static const char *const names[] = { "nft_ctx_new", "nft_ctx_free", "nft_ctx_buffer_error",
					     "nft_ctx_get_error_buffer", "nft_run_cmd_from_buffer" };
	void *found[ARRAY_SIZE(names)] = { NULL };
	void *handle = dlopen("libnftables.so.1", RTLD_NOW | RTLD_LOCAL);

	for (size_t i = 0; handle && i < ARRAY_SIZE(names); i++) {
		found[i] = dlsym(handle, names[i]);
		if (!found[i]) {
			dlclose(handle);
			handle = NULL;
		}
	}
	if (!handle)
		return husk_fail(err, HUSK_UNAVAILABLE, "libnftables is missing (%s); install the package libnftables1",
				 dlerror());
	memcpy(&library.context_new, &found[0], sizeof(void *));
	memcpy(&library.context_free, &found[1], sizeof(void *));
	memcpy(&library.buffer_error, &found[2], sizeof(void *));
	memcpy(&library.get_error, &found[3], sizeof(void *));
	memcpy(&library.run, &found[4], sizeof(void *));
	library.handle = handle;
	return 0;
}

/* Checks that rules can be loaded on this host. */
static int rules_available(struct husk_error *err)
{
	pthread_mutex_lock(&library_lock);
	int result = library.handle ? 0 : library_load(err);
	pthread_mutex_unlock(&library_lock);
	return result;
}

static int run_commands(const char *commands, struct husk_error *err)
{
	struct nft_ctx *context = library.context_new(NFT_CTX_DEFAULT);
	int result = -1;

	if (!context)
		return husk_fail_memory(err);
	if (library.buffer_error(context) == 0)
		result = library.run(context, commands);
	if (result != 0) {
		const char *reason = library.get_error(context);

		result = husk_fail(err, HUSK_UNAVAILABLE,
				   "the kernel refused the packet rules (nf_tables with tproxy and reject is "
				   "needed): %.200s",
				   reason && *reason ? reason : "no reason given");
	}
	library.context_free(context);
	return result;
}

int rules_load(const char *device, const struct address_link *link, struct husk_error *err)
{
	char network[INET_ADDRSTRLEN], resolver[INET_ADDRSTRLEN];

	inet_ntop(AF_INET, &link->pool.network, network, sizeof(network));
	inet_ntop(AF_INET, &link->resolver, resolver, sizeof(resolver));
	cleanup_free char *guests = str_format("%s/%d", network, link->pool.prefix);
	cleanup_free char *commands =
		guests ? str_format(template, device, guests, resolver, LEASH_TCP_PORT, LEASH_UDP_PORT) : NULL;
	if (!commands)
		return husk_fail_memory(err);
	return rules_available(err) < 0 ? -1 : run_commands(commands, err);
}
