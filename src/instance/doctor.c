/*
 * husk_doctor reports what works on this host, what does not work, and how to fix it. husk_leaks lists what was left
 * behind. husk_gc removes it.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <time.h>

#include "engine/engine.h"
#include "instance/bake.h"
#include "instance/images.h"
#include "instance/leaks.h"
#include "instance/moments.h"
#include "instance/recover.h"
#include "instance/snapshots.h"
#include "instance/spawn.h"
#include "instance/versions.h"
#include "jail/cgroup.h"
#include "net/gateway.h"
#include "store/template.h"
#include "wire/wire.h"

/* ---- lists of checks ---- */

struct checks {
	struct husk_check *list;
	size_t count;
	bool out_of_memory;
};

static void add_check(struct checks *checks, const char *name, int result, const char *format, ...)
	__attribute__((format(printf, 4, 5)));
static void add_check(struct checks *checks, const char *name, int result, const char *format, ...)
{
	struct husk_check *grown = realloc(checks->list, (checks->count + 1) * sizeof(*grown));
	char text[4400];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	if (!grown) {
		checks->out_of_memory = true;
		return;
	}
	checks->list = grown;
	struct husk_check *check = &grown[checks->count++];
	*check = (struct husk_check){ .name = strdup(name), .text = strdup(text) };
	check->result = result;
	checks->out_of_memory |= !check->name || !check->text;
}

static int give_checks(struct checks *checks, int result, struct husk_check **out, size_t *count,
		       struct husk_error *err)
{
	if (result == 0 && checks->out_of_memory)
		result = husk_fail_memory(err);
	if (result < 0) {
		husk_check_list_free(checks->list, checks->count);
		return -1;
	}
	*out = checks->list;
	*count = checks->count;
	return 0;
}

/* ---- doctor ---- */

static void check_host(struct checks *checks, struct husk *husk)
{
	struct utsname name;
	struct statvfs disk;

	if (uname(&name) == 0)
		add_check(checks, "kernel", HUSK_CHECK_OK, "%s %s on %s", name.sysname, name.release, name.machine);
	if (geteuid() == 0)
		add_check(checks, "user", HUSK_CHECK_OK, "root");
	else
		add_check(checks, "user", HUSK_CHECK_FAIL,
			  "uid %u; Husk makes cgroups and user namespaces: run it as root", geteuid());
	cleanup_free char *cgroups = cgroup_describe();
	bool limits = cgroups && strstr(cgroups, "memory") && strstr(cgroups, "cpu") && strstr(cgroups, "pids");
	add_check(checks, "cgroups", limits ? HUSK_CHECK_OK : HUSK_CHECK_FAIL, "%s%s", cgroups ? cgroups : "none found",
		  limits ? ""
			 : "; memory, cpu and pids are needed for limits to hold: mount them, or delegate them to us");
	if (statvfs(husk->paths.home, &disk) == 0) {
		uint64_t available = (uint64_t)disk.f_bavail * disk.f_frsize;
		add_check(checks, "state", available > (4ull << 30) ? HUSK_CHECK_OK : HUSK_CHECK_WARN,
			  "%s, %.1f GiB free%s", husk->paths.home, (double)available / (1u << 30),
			  available > (4ull << 30) ? ""
						   : "; templates and snapshots need room: husk gc, or a larger disk");
	}
}

/* Docker's marker file alone proves nothing: virtual machines are also booted from Docker images. */
static bool is_container(void)
{
	struct statfs root;
	bool layered = statfs("/", &root) == 0 && root.f_type == OVERLAYFS_SUPER_MAGIC;

	return access("/run/.containerenv", F_OK) == 0 || access("/run/systemd/container", F_OK) == 0 ||
	       (layered && access("/.dockerenv", F_OK) == 0);
}

/* Reports environments where the usual fix belongs on another machine, such as containers. For an ordinary host nothing
 * is reported. */
static void check_surroundings(struct checks *checks)
{
	cleanup_free char *spaces = file_read("/proc/sys/user/max_user_namespaces", 64, NULL, NULL);
	struct utsname name;

	if (uname(&name) == 0 && strcasestr(name.release, "microsoft"))
		add_check(
			checks, "host", HUSK_CHECK_WARN,
			"WSL2, a virtual machine of Windows; virtual machines in it need nestedVirtualization=true in "
			".wslconfig, huskd's units systemd=true in /etc/wsl.conf");
	if (is_container())
		add_check(checks, "host", HUSK_CHECK_WARN,
			  "a container; sandboxes in it need --privileged, and --device /dev/kvm for virtual machines");
	if (spaces && str_equal(spaces, "0\n"))
		add_check(checks, "host", HUSK_CHECK_FAIL,
			  "user namespaces are switched off; run: sysctl -w user.max_user_namespaces=15000");
}

static void check_engines(struct checks *checks, struct husk *husk)
{
	const struct engine *chosen = NULL;

	for (size_t i = 0; engines[i]; i++) {
		struct husk_error err = { 0 };
		if (engines[i]->probe(husk->paths.runtime, &err) == 0) {
			cleanup_buf struct buf more = { 0 };
			if (engines[i]->describe)
				engines[i]->describe(husk->paths.home, husk->paths.runtime, &more);
			add_check(checks, engines[i]->name, HUSK_CHECK_OK, "works: %s%s%s", engines[i]->boundary,
				  more.size ? "; " : "", more.size ? more.data : "");
			chosen = chosen ? chosen : engines[i];
		} else {
			add_check(checks, engines[i]->name, HUSK_CHECK_WARN, "%s", err.message);
		}
	}
	if (chosen)
		add_check(checks, "isolation", HUSK_CHECK_OK, "auto takes %s here", chosen->name);
	else
		add_check(checks, "isolation", HUSK_CHECK_FAIL, "no engine works here; see the reasons above");
}

static void check_programs(struct checks *checks)
{
	cleanup_free char *agent = template_libfile("husk-agent");

	if (agent)
		add_check(checks, "agent", HUSK_CHECK_OK, "%s", agent);
	else
		add_check(checks, "agent", HUSK_CHECK_FAIL,
			  "husk-agent is not installed beside husk; run make, or make install");
}

/* Makes the wire of a machine and removes it; also checks whether its addresses hide a network of the host from
 * guests. */
static void check_network(struct checks *checks, struct husk *husk)
{
	struct gateway gateway = GATEWAY_NONE;
	struct address_pool pool;
	struct address_link link;
	struct husk_error err = { 0 };
	char route[64], address[INET_ADDRSTRLEN];
	const struct engine *engine = engine_choose(husk->paths.runtime, NULL);
	enum gateway_kind kind = engine && engine->own_kernel ? GATEWAY_TAP : GATEWAY_SOCKET;

	if (address_choose(husk->paths.home, &pool, &err) < 0 || address_link(&pool, 1, &link, &err) < 0 ||
	    gateway_make(&link, kind, &gateway, &err) < 0) {
		add_check(checks, "network", HUSK_CHECK_FAIL, "%s", err.message);
		return;
	}
	gateway_close(&gateway);
	inet_ntop(AF_INET, &pool.network, address, sizeof(address));
	if (address_collides(&pool, route, &err) == 1)
		add_check(checks, "network", HUSK_CHECK_WARN,
			  "guests have addresses of %s/%d, which overlaps the host's route %s and hides it from them; "
			  "set HUSK_NET",
			  address, pool.prefix, route);
	else
		add_check(checks, "network", HUSK_CHECK_OK, "works: guests have addresses of %s/%d", address,
			  pool.prefix);
}

/* ---- what is kept ---- */

static bool version_is_there(struct husk *husk, const char *version)
{
	cleanup_free char *rootfs = path_rootfs(&husk->paths, version);

	return rootfs && access(rootfs, R_OK) == 0;
}

/* Checks each version that a name points at, with the image that creates continue from. */
static void check_templates(struct checks *checks, struct husk *husk)
{
	struct catalog_template **list = NULL;
	cleanup_buf struct buf names = { 0 };

	if (catalog_template_list(husk->catalog, false, &list, NULL) < 0)
		return;
	for (size_t i = 0; list[i]; i++) {
		const struct catalog_template *row = list[i];
		cleanup_free char *rootfs = path_rootfs(&husk->paths, row->digest);
		struct husk_error err = { 0 };
		cleanup_free char *baked = bake_path(husk, row->isolation, row->digest, row->disk_bytes, &err);

		if (rootfs && baked && access(rootfs, R_OK) == 0 && access(baked, F_OK) < 0)
			add_check(checks, "template", HUSK_CHECK_WARN,
				  "template '%s' is not baked for this version of its engine yet; the first create "
				  "does it",
				  row->name);
		else if (rootfs && baked &&
			 engine_image_check(row->isolation, baked, rootfs, row->disk_bytes, &err) == 0)
			checks->out_of_memory |= buf_printf(&names, "%s%s", names.size ? ", " : "", row->name) < 0;
		else
			add_check(checks, "template", HUSK_CHECK_FAIL,
				  "template '%s' cannot be used: %s; build it again: husk template build --force",
				  row->name, err.message);
	}
	if (names.size)
		add_check(checks, "templates", HUSK_CHECK_OK, "baked: %s", names.data);
	else if (!list[0])
		add_check(checks, "templates", HUSK_CHECK_WARN, "none baked yet; husk template build base");
	catalog_template_list_free(list);
}

static void check_snapshots(struct checks *checks, struct husk *husk, size_t *good)
{
	struct catalog_snapshot **list = NULL;

	if (catalog_snapshot_list(husk->catalog, false, &list, NULL) < 0)
		return;
	for (size_t i = 0; list[i]; i++) {
		cleanup_free char *rootfs = path_rootfs(&husk->paths, list[i]->template_digest);
		cleanup_free char *image = path_snapshot(&husk->paths, list[i]->id);
		struct husk_error err = { 0 };

		if (rootfs && image &&
		    engine_image_check(list[i]->isolation, image, rootfs, list[i]->disk_bytes, &err) == 0)
			++*good;
		else
			add_check(checks, "snapshot", HUSK_CHECK_FAIL,
				  "snapshot %s cannot be restored: %s; take a new one, and remove it: husk snapshot rm "
				  "%s",
				  list[i]->id, err.message, list[i]->id);
	}
	catalog_snapshot_list_free(list);
}

static void check_asleep(struct checks *checks, struct husk *husk, const struct catalog_sandbox *row, size_t *good)
{
	cleanup_free char *rootfs = path_rootfs(&husk->paths, row->template_digest);
	cleanup_free char *directory = path_sandbox(&husk->paths, row->id);
	cleanup_free char *image = directory ? str_format("%s/image", directory) : NULL;
	struct husk_error err = { 0 };

	if (rootfs && image && engine_image_check(row->isolation, image, rootfs, row->disk_bytes, &err) == 0)
		++*good;
	else
		add_check(checks, "sandbox", HUSK_CHECK_FAIL,
			  "hibernated sandbox %s cannot be woken: %s; if that cannot be put right, end it: husk rm %s",
			  row->id, err.message, row->id);
}

static void check_points(struct checks *checks, struct husk *husk, const struct catalog_sandbox *row, size_t *good)
{
	cleanup_free char *rootfs = path_rootfs(&husk->paths, row->template_digest);
	struct catalog_point **list = NULL;

	if (!rootfs || catalog_point_list(husk->catalog, row->id, false, &list, NULL) < 0)
		return;
	for (size_t i = 0; list[i]; i++) {
		cleanup_free char *image = path_point(&husk->paths, row->id, list[i]->number);
		struct husk_error err = { 0 };

		if (image && engine_image_check(row->isolation, image, rootfs, row->disk_bytes, &err) == 0)
			++*good;
		else
			add_check(checks, "checkpoint", HUSK_CHECK_FAIL,
				  "sandbox %s cannot go back to checkpoint %lld: %s; remove it: husk history %s --rm "
				  "%lld",
				  row->id, (long long)list[i]->number, err.message, row->id,
				  (long long)list[i]->number);
	}
	catalog_point_list_free(list);
}

static void check_sandboxes(struct checks *checks, struct husk *husk, size_t *good)
{
	unsigned live = 1u << CATALOG_RUNNING | 1u << CATALOG_PAUSED | 1u << CATALOG_HIBERNATED;
	struct catalog_sandbox **list = NULL;

	if (catalog_sandbox_list(husk->catalog, live, &list, NULL) < 0)
		return;
	for (size_t i = 0; list[i]; i++) {
		check_points(checks, husk, list[i], good);
		if (list[i]->state == CATALOG_HIBERNATED)
			check_asleep(checks, husk, list[i], good);
		else if (!version_is_there(husk, list[i]->template_digest))
			add_check(checks, "sandbox", HUSK_CHECK_FAIL,
				  "the root image of sandbox %s is gone (template version %s): it cannot be forked, "
				  "saved or hibernated; copy out what is needed (husk cp) and end it: husk rm %s",
				  list[i]->id, list[i]->template_digest, list[i]->id);
	}
	catalog_sandbox_list_free(list);
}

/* Checks that every image that may be continued later is usable. */
static void check_images(struct checks *checks, struct husk *husk)
{
	size_t good = 0;

	check_snapshots(checks, husk, &good);
	check_sandboxes(checks, husk, &good);
	if (good)
		add_check(checks, "images", HUSK_CHECK_OK,
			  "%zu of snapshots, checkpoints and hibernated sandboxes are whole", good);
}

int husk_doctor(struct husk *husk, struct husk_check **out, size_t *count, struct husk_error *err)
{
	if (husk->remote)
		return remote_checks(husk->remote, "doctor", out, count, err);
	struct checks checks = { 0 };

	if (husk_owner_only(husk, "doctor", err) < 0)
		return -1;
	check_host(&checks, husk);
	check_surroundings(&checks);
	check_programs(&checks);
	check_engines(&checks, husk);
	check_network(&checks, husk);
	check_templates(&checks, husk);
	check_images(&checks, husk);
	return give_checks(&checks, 0, out, count, err);
}

/* ---- leaks ---- */

static void note_leak(void *data, const char *kind, const char *text)
{
	add_check(data, kind, HUSK_CHECK_FAIL, "%s", text);
}

int husk_leaks(struct husk *husk, struct husk_check **out, size_t *count, struct husk_error *err)
{
	if (husk->remote)
		return remote_checks(husk->remote, "leaks", out, count, err);
	struct checks checks = { 0 };

	if (husk_owner_only(husk, "the search for leaks", err) < 0)
		return -1;
	return give_checks(&checks, leaks_search(husk, note_leak, &checks, err), out, count, err);
}

/* ---- gc ---- */

/* Removes a directory and counts the freed bytes. */
static int reclaim(const char *path, uint64_t *bytes, struct husk_error *err)
{
	*bytes += dir_bytes(path);
	return image_discard(path, err);
}

/* Removes what interrupted removals left beside and under the directories of one kind. */
static void sweep_removals(struct husk *husk, const char *kind, const char *below)
{
	cleanup_free char *directory = str_format("%s/%s", husk->paths.home, kind);
	cleanup_dir DIR *dir = directory ? opendir(directory) : NULL;
	struct dirent *entry;

	if (directory)
		image_sweep(directory);
	while (dir && below && (entry = readdir(dir))) {
		cleanup_free char *path =
			entry->d_name[0] == '.' ? NULL : str_format("%s/%s%s", directory, entry->d_name, below);
		if (path)
			image_sweep(path);
	}
}

static bool snapshot_has_row(struct husk *husk, const char *name)
{
	cleanup_free char *id = strndup(name, strcspn(name, ".")); /* it may be partial yet */
	struct catalog_snapshot *row = NULL;
	struct husk_error why = { 0 };
	int found = id ? catalog_snapshot_get(husk->catalog, id, &row, &why) : 0;

	catalog_snapshot_free(row);
	return found == 0 || why.code != HUSK_NOT_FOUND;
}

static bool volume_has_row(struct husk *husk, const char *name)
{
	cleanup_free char *id = strndup(name, strcspn(name, ".")); /* it may be partial yet */
	struct catalog_volume *row = NULL;
	struct husk_error why = { 0 };
	int found = id ? catalog_volume_get(husk->catalog, id, &row, &why) : 0;

	catalog_volume_free(row);
	return found == 0 || why.code != HUSK_NOT_FOUND;
}

/* What a removal that was killed left in this folder: the row goes first, and comes first. */
static int collect_rowless(struct husk *husk, const char *folder, bool (*has_row)(struct husk *husk, const char *name),
			   struct husk_gc_result *out, struct husk_error *err)
{
	cleanup_free char *directory = str_format("%s/%s", husk->paths.home, folder);
	cleanup_dir DIR *dir = directory ? opendir(directory) : NULL;

	for (struct dirent *entry; dir && (entry = readdir(dir));) {
		bool stays = entry->d_name[0] == '.' || has_row(husk, entry->d_name);
		cleanup_free char *path = stays ? NULL : str_format("%s/%s", directory, entry->d_name);
		if (path && reclaim(path, &out->bytes, err) < 0)
			return -1;
	}
	return 0;
}

static bool is_live(struct husk *husk, const char *id)
{
	struct catalog_sandbox **list = NULL;
	bool live = false;

	if (catalog_sandbox_list(husk->catalog, ~(1u << CATALOG_ENDED), &list, NULL) < 0)
		return true; /* unknown: leave it alone */
	for (size_t i = 0; list[i] && !live; i++)
		live = str_equal(list[i]->id, id);
	catalog_sandbox_list_free(list);
	return live;
}

/* A supervisor that was killed after its row had gone leaves its directory. While it lives, it holds the lock. */
static bool sandbox_has_row(struct husk *husk, const char *name)
{
	cleanup_free char *path = path_lock(&husk->paths, name);
	struct catalog_sandbox *row = NULL;
	struct husk_error why = { 0 };
	int found = catalog_sandbox_get(husk->catalog, name, &row, &why);

	catalog_sandbox_free(row);
	if (!path || !str_starts(name, "sb-") || found == 0 || why.code != HUSK_NOT_FOUND || is_live(husk, name))
		return true;
	cleanup_close int lock = supervisor_lock(husk, name, NULL);
	if (lock >= 0)
		unlink(path);
	return lock < 0;
}

static int collect_expired(struct husk *husk, struct husk_gc_result *out, struct husk_error *err)
{
	struct catalog_sandbox **list = NULL;

	if (catalog_sandbox_list(husk->catalog, 1u << CATALOG_HIBERNATED, &list, err) < 0)
		return -1;
	for (size_t i = 0; list[i]; i++) {
		if (list[i]->persistent || !list[i]->expires_ms || list[i]->expires_ms > time_wall_ms())
			continue;
		husk_expire(husk, list[i]);
		out->sandboxes++;
	}
	catalog_sandbox_list_free(list);
	return 0;
}

/* Logs of sandboxes that ended. */
static int collect_logs(struct husk *husk, struct husk_gc_result *out, struct husk_error *err)
{
	struct catalog_sandbox **list = NULL;

	if (catalog_sandbox_list(husk->catalog, 1u << CATALOG_ENDED, &list, err) < 0)
		return -1;
	for (size_t i = 0; list[i]; i++) {
		cleanup_free char *directory = path_sandbox(&husk->paths, list[i]->id);
		if (directory && reclaim(directory, &out->bytes, NULL) == 0)
			catalog_sandbox_forget(husk->catalog, list[i]->id, NULL);
	}
	catalog_sandbox_list_free(list);
	return catalog_events_trim(husk->catalog, 0, err);
}

int husk_tend(struct husk *husk, size_t *changed, struct husk_error *err)
{
	if (husk->remote)
		return remote_refuse(husk->remote, "tending an instance", "the server does it by itself", err);
	struct husk_gc_result result = { 0 };

	if (husk_owner_only(husk, "tending the instance", err) < 0)
		return -1;
	result.sandboxes = husk_recover(husk, NULL);
	int outcome = collect_expired(husk, &result, err);
	*changed = result.sandboxes;
	return outcome;
}

static const char *const with_images[] = { "machines", "snapshots", "sandboxes", "templates", "volumes", NULL };

int husk_gc(struct husk *husk, bool all, struct husk_gc_result *out, struct husk_error *err)
{
	if (husk->remote)
		return remote_gc(husk->remote, all, out, err);
	struct husk_gc_result ignored;
	struct husk_error why = { 0 };

	out = out ? out : &ignored;
	*out = (struct husk_gc_result){ 0 };
	if (husk_owner_only(husk, "gc", err) < 0)
		return -1;
	out->snapshots = snapshots_recover(husk, &out->bytes) + moments_prune(husk, &out->bytes);
	out->sandboxes = husk_recover(husk, NULL);
	/* A lock without a sandbox: who took it was killed before there was one. While it is held, one may still come. */
	supervisor_locks_sweep(husk, "sb-", is_live);
	if (catalog_values_sweep(husk->catalog, err) < 0 || collect_expired(husk, out, err) < 0)
		return -1;
	if (all) {
		size_t steps = 0;
		uint64_t bytes = 0;
		if (husk_build_prune(husk, 0, &steps, &bytes, err) < 0)
			return -1;
		out->snapshots += steps;
		out->bytes += bytes;
		out->pool = husk_pool_drain(husk);
		if (collect_logs(husk, out, err) < 0)
			return -1;
	}
	sweep_removals(husk, "snapshots", NULL);
	sweep_removals(husk, "sandboxes", "");
	sweep_removals(husk, "sandboxes", "/points");
	sweep_removals(husk, "templates", "/baked");
	if (collect_rowless(husk, "snapshots", snapshot_has_row, out, err) < 0 ||
	    collect_rowless(husk, "sandboxes", sandbox_has_row, out, err) < 0 ||
	    collect_rowless(husk, "volumes", volume_has_row, out, err) < 0 ||
	    version_sweep(husk, &out->bytes, err) < 0 || template_collect(husk, &out->templates, &out->bytes, err) < 0)
		return -1;
	if (images_sweep(husk, &out->bytes, &why) < 0)
		log_line(LOG_WARN, "cannot clear images: %s", why.message);
	engine_collect(husk->paths.home, with_images);
	return 0;
}
