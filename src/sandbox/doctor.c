/*
 * What works on this host and what does not (husk_doctor), what was left behind (husk_leaks), and tidying up (husk_gc).
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <time.h>

#include "engine/engine.h"
#include "jail/cgroup.h"
#include "net/gateway.h"
#include "sandbox/leaks.h"
#include "sandbox/lifecycle.h"
#include "sandbox/pool.h"
#include "store/template.h"
#include "wire/wire.h"

#define PREPARING_MS 10000 /* how long an emptying of the pool waits for entries under way */

#define UNNAMED_SECONDS 3600 /* no build takes so long */

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

static void check_engines(struct checks *checks, struct husk *husk)
{
	const struct engine *chosen = NULL;

	for (size_t i = 0; engines[i]; i++) {
		struct husk_error err = { 0 };
		if (engines[i]->probe(husk->paths.runtime, &err) == 0) {
			add_check(checks, engines[i]->name, HUSK_CHECK_OK, "works: %s", engines[i]->boundary);
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

/* The wire of a machine, made and taken away again; and whether its addresses hide a network of the host from guests. */
static void check_network(struct checks *checks, struct husk *husk)
{
	struct gateway gateway = GATEWAY_NONE;
	struct address_pool pool;
	struct address_link link;
	struct husk_error err = { 0 };
	char route[64], address[INET_ADDRSTRLEN];
	const struct engine *engine = engine_choose(husk->paths.runtime, NULL);
	enum gateway_kind kind = engine && engine->machine ? GATEWAY_TAP : GATEWAY_SOCKET;

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

static void check_templates(struct checks *checks, struct husk *husk)
{
	struct catalog_template **list = NULL;
	cleanup_buf struct buf names = { 0 };

	if (catalog_template_list(husk->catalog, false, &list, NULL) < 0)
		return;
	for (size_t i = 0; list[i]; i++)
		checks->out_of_memory |= buf_printf(&names, "%s%s", i ? ", " : "", list[i]->name) < 0;
	catalog_template_list_free(list);
	if (names.size)
		add_check(checks, "templates", HUSK_CHECK_OK, "baked: %s", names.data);
	else
		add_check(checks, "templates", HUSK_CHECK_WARN, "none baked yet; husk template build base");
}

int husk_doctor(struct husk *husk, struct husk_check **out, size_t *count, struct husk_error *err)
{
	struct checks checks = { 0 };

	if (husk_owner_only(husk, "doctor", err) < 0)
		return -1;
	check_host(&checks, husk);
	check_programs(&checks);
	check_engines(&checks, husk);
	check_network(&checks, husk);
	check_templates(&checks, husk);
	return give_checks(&checks, 0, out, count, err);
}

/* ---- leaks ---- */

static void note_leak(void *data, const char *kind, const char *text)
{
	add_check(data, kind, HUSK_CHECK_FAIL, "%s", text);
}

int husk_leaks(struct husk *husk, struct husk_check **out, size_t *count, struct husk_error *err)
{
	struct checks checks = { 0 };

	if (husk_owner_only(husk, "the search for leaks", err) < 0)
		return -1;
	return give_checks(&checks, leaks_search(husk, note_leak, &checks, err), out, count, err);
}

/* ---- gc ---- */

uint64_t tree_bytes(const char *path)
{
	cleanup_dir DIR *dir = opendir(path);
	uint64_t total = 0;
	struct dirent *entry;
	struct stat st;

	while (dir && (entry = readdir(dir))) {
		if (str_equal(entry->d_name, ".") || str_equal(entry->d_name, "..") ||
		    fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
			continue;
		cleanup_free char *child = S_ISDIR(st.st_mode) ? str_format("%s/%s", path, entry->d_name) : NULL;
		total += child ? tree_bytes(child) : (uint64_t)st.st_blocks * 512;
	}
	return total;
}

/* Removes a tree and counts what that freed. */
static int reclaim(const char *path, uint64_t *bytes, struct husk_error *err)
{
	if (bytes)
		*bytes += tree_bytes(path);
	return dir_remove(path, err);
}

int template_collect(struct husk *husk, size_t *count, uint64_t *bytes, struct husk_error *err)
{
	struct catalog_template **unused = NULL;
	int result = 0;

	if (catalog_template_unused(husk->catalog, &unused, err) < 0)
		return -1;
	for (size_t i = 0; unused[i] && result == 0; i++) {
		cleanup_free char *directory = path_template(&husk->paths, unused[i]->digest);
		result = directory ? reclaim(directory, bytes, err) : husk_fail_memory(err);
		if (result == 0)
			result = catalog_template_forget(husk->catalog, unused[i]->digest, err);
		if (result == 0 && count)
			++*count;
	}
	catalog_template_list_free(unused);
	return result;
}

/* What a build that was killed left: a directory that no row of the catalog names. A build under way is younger. */
static int collect_unnamed(struct husk *husk, struct husk_gc_result *out, struct husk_error *err)
{
	cleanup_free char *directory = str_format("%s/templates", husk->paths.home);
	cleanup_dir DIR *dir = directory ? opendir(directory) : NULL;
	struct catalog_template **list = NULL;
	struct dirent *entry;
	struct stat st;

	if (!dir)
		return 0;
	if (catalog_template_list(husk->catalog, true, &list, err) < 0)
		return -1;
	while ((entry = readdir(dir))) {
		bool named = entry->d_name[0] == '.';
		for (size_t i = 0; list[i] && !named; i++)
			named = str_equal(list[i]->digest, entry->d_name);
		cleanup_free char *path = named ? NULL : str_format("%s/%s", directory, entry->d_name);
		if (path && stat(path, &st) == 0 && st.st_mtime < time(NULL) - UNNAMED_SECONDS)
			reclaim(path, &out->bytes, NULL);
	}
	catalog_template_list_free(list);
	return 0;
}

/* What the removal of a volume that was killed left: the row goes first, and comes first. */
static int collect_volumes(struct husk *husk, struct husk_gc_result *out, struct husk_error *err)
{
	cleanup_free char *directory = str_format("%s/volumes", husk->paths.home);
	cleanup_dir DIR *dir = directory ? opendir(directory) : NULL;

	for (struct dirent *entry; dir && (entry = readdir(dir));) {
		struct catalog_volume *row = NULL;
		struct husk_error why = { 0 };
		if (entry->d_name[0] == '.')
			continue;
		int found = catalog_volume_get(husk->catalog, entry->d_name, &row, &why);
		catalog_volume_free(row);
		cleanup_free char *path =
			found < 0 && why.code == HUSK_NOT_FOUND ? str_format("%s/%s", directory, entry->d_name) : NULL;
		if (path && reclaim(path, &out->bytes, err) < 0)
			return -1;
	}
	return 0;
}

/* What a snapshot or a fork that was cut short left: a row that never became ready, and the files under it. */
static int collect_unready(struct husk *husk, struct husk_gc_result *out, struct husk_error *err)
{
	struct catalog_snapshot **list = NULL;
	int64_t old = time_wall_ms() - 10 * 60 * 1000; /* younger ones may be under way */

	if (catalog_snapshot_list(husk->catalog, true, &list, err) < 0)
		return -1;
	for (size_t i = 0; list[i]; i++) {
		cleanup_free char *directory = path_snapshot(&husk->paths, list[i]->id);
		if (list[i]->created_ms > old || !directory || reclaim(directory, &out->bytes, NULL) < 0)
			continue;
		catalog_snapshot_remove(husk->catalog, list[i]->id, NULL);
		out->snapshots++;
	}
	catalog_snapshot_list_free(list);
	return 0;
}

static bool is_live(struct husk *husk, const char *id)
{
	struct catalog_sandbox **list = NULL;
	bool live = false;

	if (catalog_sandbox_list(husk->catalog, ~(1u << CATALOG_ENDED), &list, NULL) < 0)
		return true; /* not known: leave it alone */
	for (size_t i = 0; list[i] && !live; i++)
		live = str_equal(list[i]->id, id);
	catalog_sandbox_list_free(list);
	return live;
}

/* A lock without a sandbox: who took it was killed before there was one. While it is held, one may still come. */
static void collect_locks(struct husk *husk)
{
	cleanup_dir DIR *dir = opendir(husk->paths.run);
	struct dirent *entry;

	while (dir && (entry = readdir(dir))) {
		size_t size = strcspn(entry->d_name, ".");
		bool ours = str_starts(entry->d_name, "sb-") && str_equal(entry->d_name + size, ".lock");
		cleanup_free char *id = ours ? strndup(entry->d_name, size) : NULL;
		cleanup_close int lock = id ? supervisor_lock(husk, id, NULL) : -1;
		cleanup_free char *path = lock >= 0 ? path_lock(&husk->paths, id) : NULL;
		if (path && !is_live(husk, id))
			unlink(path);
	}
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

/* One sweep of the pool; 1 when an entry is still on its way into it. */
static int sweep_pool(struct husk *husk, struct husk_gc_result *out, struct husk_error *err)
{
	struct catalog_sandbox **list = NULL;
	int preparing = 0;

	if (catalog_sandbox_list(husk->catalog, 1u << CATALOG_POOL | 1u << CATALOG_PREPARING, &list, err) < 0)
		return -1;
	for (size_t i = 0; list[i]; i++) {
		preparing |= list[i]->state == CATALOG_PREPARING;
		cleanup_close int fd = list[i]->state == CATALOG_POOL ? supervisor_dial(husk, list[i]->id, NULL) : -1;
		if (fd >= 0 && supervisor_call(fd, METHOD_SANDBOX_KILL, NULL, NULL, NULL) == 0)
			out->pool++;
	}
	catalog_sandbox_list_free(list);
	return preparing;
}

/* An entry that is being prepared cannot be told to go yet, and would turn up after we said that the pool is empty. */
static int empty_pool(struct husk *husk, struct husk_gc_result *out, struct husk_error *err)
{
	for (int64_t end = time_monotonic_ms() + PREPARING_MS;; usleep(20000)) {
		int left = sweep_pool(husk, out, err);
		if (left <= 0 || time_monotonic_ms() > end)
			return MIN(left, 0);
		husk_recover(husk, NULL); /* it may be one whose supervisor was killed */
	}
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

int husk_gc(struct husk *husk, bool all, struct husk_gc_result *out, struct husk_error *err)
{
	struct husk_gc_result ignored;

	out = out ? out : &ignored;
	*out = (struct husk_gc_result){ 0 };
	if (husk_owner_only(husk, "gc", err) < 0)
		return -1;
	out->sandboxes = husk_recover(husk, NULL);
	collect_locks(husk);
	if (collect_expired(husk, out, err) < 0 || collect_unready(husk, out, err) < 0)
		return -1;
	if (all && (empty_pool(husk, out, err) < 0 || collect_logs(husk, out, err) < 0))
		return -1;
	if (collect_unnamed(husk, out, err) < 0 || collect_volumes(husk, out, err) < 0)
		return -1;
	return template_collect(husk, &out->templates, &out->bytes, err);
}
