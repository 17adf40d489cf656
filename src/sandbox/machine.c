/*
 * What a supervisor can do to its machine: prepare, restore, give it an identity, checkpoint, hibernate, end it. Called
 * from the main loop and from client sessions; the supervisor's lock makes each a single step. Order matters for a host
 * that may kill us between any two lines: on disk first, then the catalog, then the answer.
 */
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <sys/file.h>

#include "sandbox/egress.h"
#include "sandbox/lifecycle.h"
#include "sandbox/pool.h"
#include "sandbox/supervisor.h"
#include "sandbox/volumes.h"

#define UID_FIRST 0x10000000u /* clear of ordinary and subuid ranges; 65,536 ids per slot above it */
#define AGENT_TIMEOUT_MS 30000
#define KILL_BURST 50 /* events of processes killed for memory; then one in a while */
#define KILL_PAUSE_MS 10000
#define KERNEL_MEMORY (128ull << 20) /* of a guest with a kernel of its own, beside what its workload may use */

uint32_t machine_uid_base(uint32_t slot)
{
	return UID_FIRST + slot * 65536u;
}

static struct cgroup_limits limits_of(const struct supervisor *s, const struct catalog_sandbox *row)
{
	uint64_t beside = s->engine->machine && row->memory_bytes ? KERNEL_MEMORY : 0;

	return (struct cgroup_limits){ row->memory_bytes + beside, row->cpu_milli, row->pids };
}

int machine_prepare(struct supervisor *s, const struct catalog_sandbox *row, struct husk_error *err)
{
	cleanup_free char *rootfs = path_rootfs(&s->husk.paths, row->template_digest);

	s->engine = engine_find(row->isolation);
	if (!s->engine)
		return husk_fail(err, HUSK_UNAVAILABLE, "no engine '%s' in this build", row->isolation);
	struct cgroup_limits limits = limits_of(s, row);
	s->slot = row->slot;
	s->machine_name = str_format("%s-%u", s->husk.paths.scope, row->slot);
	s->machine_directory = path_machine(&s->husk.paths, row->slot);
	if (!rootfs || !s->machine_name || !s->machine_directory)
		return husk_fail_memory(err);
	if (dir_remove(s->machine_directory, err) < 0 || dir_make(s->machine_directory, 0711, err) < 0)
		return -1;
	if (cgroup_create(s->husk.paths.scope, s->machine_name, &s->cgroup, err) < 0)
		return -1;
	if (cgroup_set_limits(s->cgroup, &limits, err) < 0)
		return -1;
	if (network_prepare(s, row, err) < 0)
		return -1;
	struct engine_spec spec = {
		.id = s->machine_name,
		.directory = s->machine_directory,
		.runtime = s->husk.paths.runtime,
		.rootfs = rootfs,
		.agent = "/.husk/agent",
		.disk_bytes = row->disk_bytes,
		.uid_base = machine_uid_base(row->slot),
		.gateway = &s->network.gateway,
		.cgroup = s->cgroup,
	};
	int result = s->engine->prepare(&spec, &s->machine, err);
	gateway_release_port(&s->network.gateway);
	return result;
}

int machine_restore(struct supervisor *s, const char *image, struct husk_error *err)
{
	int to_agent, from_agent;

	if (s->engine->restore(s->machine, image, err) < 0)
		return -1;
	if (!(s->image = strdup(image)))
		return husk_fail_memory(err);
	s->engine->link(s->machine, &to_agent, &from_agent);
	if (link_start(to_agent, from_agent, false, &s->link, err) < 0)
		return -1;
	if (s->engine->wake_fd)
		link_wake_with(s->link, s->engine->wake_fd(s->machine));
	return 0;
}

/* The arguments of METHOD_IDENTITY: everything that must differ between two machines of one image. */
static int identity_arguments(const struct catalog_sandbox *row, struct buf *out, struct husk_error *err)
{
	uint8_t entropy[64], machine[16];
	char machine_id[33];
	int bad = 0;

	if (random_bytes(entropy, sizeof(entropy)) < 0 || random_bytes(machine, sizeof(machine)) < 0)
		return husk_fail_errno(err, "cannot read random bytes");
	for (size_t i = 0; i < sizeof(machine); i++)
		snprintf(machine_id + 2 * i, 3, "%02x", machine[i]);
	bad |= wire_put_string(out, TAG_HOSTNAME, row->id);
	bad |= wire_put_string(out, TAG_MACHINE_ID, machine_id);
	bad |= wire_put_bytes(out, TAG_ENTROPY, entropy, sizeof(entropy));
	bad |= wire_put_int(out, TAG_TIME_MS, time_wall_ms());
	bad |= wire_put_int(out, TAG_PIDS, row->pids);
	bad |= wire_put_int(out, TAG_MEMORY, (int64_t)row->memory_bytes);

	return bad ? husk_fail_memory(err) : 0;
}

static void remove_image(struct supervisor *s)
{
	cleanup_free char *directory = path_sandbox(&s->husk.paths, s->id);
	cleanup_free char *image = directory ? str_format("%s/image", directory) : NULL;

	if (image)
		dir_remove(image, NULL);
}

/* On the link's own thread, which must not wait for the catalog: the main loop writes it down. */
static void on_kill(void *data, const struct wire_header *header, const char *payload)
{
	struct supervisor *s = data;

	if (header->type != WIRE_MSG)
		return;
	cleanup_free char *name = wire_get_string(payload, header->size, TAG_NAME);
	pthread_mutex_lock(&s->activity_lock);
	if (s->kill_count < ARRAY_SIZE(s->kills)) {
		struct supervisor_kill *kill = &s->kills[s->kill_count++];
		kill->pid = wire_get_int(payload, header->size, TAG_PID, 0);
		snprintf(kill->name, sizeof(kill->name), "%s", name ? name : "");
	}
	pthread_mutex_unlock(&s->activity_lock);
	supervisor_nudge(s);
}

/* A guest whose own kernel holds its memory limit tells what that killed. */
static int watch_kills(struct supervisor *s, struct husk_error *err)
{
	cleanup_buf struct buf message = { 0 };
	uint32_t channel;

	if (!s->engine->machine)
		return 0;
	if (wire_put_int(&message, TAG_METHOD, METHOD_OOM_WATCH) < 0)
		return husk_fail_memory(err);
	return link_open(s->link, message.data, message.size, on_kill, s, &channel, err);
}

int machine_become(struct supervisor *s, const struct catalog_sandbox *row, struct husk_error *err)
{
	cleanup_buf struct buf arguments = { 0 };
	bool waking = sandbox_has_image(&s->husk, s->id);
	struct cgroup_limits limits = limits_of(s, row);

	if (cgroup_set_limits(s->cgroup, &limits, err) < 0 || network_begin(s, row, err) < 0)
		return -1;
	if (identity_arguments(row, &arguments, err) < 0 || network_arguments(s, row->environment, &arguments, err) < 0)
		return -1;
	if (network_hold(s, err) < 0) /* before the first packet of the guest */
		return -1;
	if (volumes_begin(s, row->volumes, err) < 0) /* and before its first look at its files */
		return -1;
	if (link_call(s->link, METHOD_IDENTITY, &arguments, NULL, AGENT_TIMEOUT_MS, err) < 0)
		return husk_wrap(err, "cannot make the restored machine its own");
	if (watch_kills(s, err) < 0)
		return -1;
	s->expires_ms = row->persistent ? 0 : row->expires_ms;
	s->idle_seconds = row->idle_seconds;
	s->persistent = row->persistent;
	s->memory_limit = row->memory_bytes;
	s->idle_since_ms = time_monotonic_ms();

	if (catalog_sandbox_move(s->husk.catalog, s->id, 1u << CATALOG_CREATING, CATALOG_RUNNING, err) < 0)
		return -1;
	s->state = CATALOG_RUNNING;
	network_settle(s);
	if (waking) /* only now: killed any earlier, the sandbox is still hibernated */
		remove_image(s);
	json_t *detail = json_pack("{s:s, s:s?, s:s}", "template", row->template_name, "parent", row->parent,
				   "isolation", row->isolation);
	cleanup_free char *text = detail ? json_dumps(detail, JSON_COMPACT) : NULL;
	json_decref(detail);
	return catalog_event(s->husk.catalog, s->id, waking ? "woken" : "created", text, err);
}

/* From now on this process answers for another sandbox: its lock, its socket, its log. */
static int take_name(struct supervisor *s, const char *id, int lock_fd, struct husk_error *err)
{
	cleanup_free char *old_socket = path_socket(&s->husk.paths, s->id);
	cleanup_free char *old_lock = path_lock(&s->husk.paths, s->id);
	char *copy = strdup(id);

	if (!copy || !old_socket || !old_lock) {
		free(copy);
		return husk_fail_memory(err);
	}
	unlink(old_socket);
	unlink(old_lock);
	if (dup3(lock_fd, SUPERVISOR_LOCK_FD, O_CLOEXEC) < 0) {
		free(copy);
		return husk_fail_errno(err, "cannot take over the lock of %s", id);
	}
	close(lock_fd);
	free(s->id);
	s->id = copy;
	return supervisor_listen(s, err);
}

int machine_claim(struct supervisor *s, const char *id, int lock_fd, const char *image, struct husk_error *err)
{
	struct catalog_sandbox *row = NULL;
	int result = -1;

	pthread_mutex_lock(&s->lock);
	if (s->state != CATALOG_POOL) {
		result = husk_fail(err, HUSK_CONFLICT, "sandbox %s is not in the pool", s->id);
		goto out;
	}
	if (strcmp(id, s->id) != 0 && take_name(s, id, lock_fd, err) < 0)
		goto out;
	if (catalog_sandbox_get(s->husk.catalog, id, &row, err) < 0)
		goto out;
	if (!s->link && machine_restore(s, image, err) < 0)
		goto out;
	result = machine_become(s, row, err);
out:
	pthread_mutex_unlock(&s->lock);
	if (result < 0 && s->state == CATALOG_POOL)
		machine_abort(s);
	else if (result == 0)
		pool_refill(s, row);
	supervisor_nudge(s);
	catalog_sandbox_free(row);
	return result;
}

/* Saves the machine into `image` with every process of the guest standing still; they stay frozen. The link is held, so
 * that no byte of it is under way when memory is copied, and what was asked of a volume is answered. */
static int save_frozen(struct supervisor *s, const char *image, struct husk_error *err)
{
	if (link_call(s->link, METHOD_FREEZE, NULL, NULL, AGENT_TIMEOUT_MS, err) < 0)
		return husk_wrap(err, "cannot freeze the guest");
	if (volumes_hold(s, err) < 0 || s->engine->checkpoint(s->machine, image, err) < 0)
		return -1;
	return volumes_save(s, image, err);
}

/* The guest goes on as the same machine. */
static int thaw(struct supervisor *s, struct husk_error *err)
{
	volumes_go_on(s);
	return link_call(s->link, METHOD_THAW, NULL, NULL, AGENT_TIMEOUT_MS, err);
}

static int require_running(struct supervisor *s, struct husk_error *err)
{
	if (s->over)
		return husk_fail(err, HUSK_GONE, "sandbox %s has ended", s->id);
	if (s->state == CATALOG_PAUSED)
		return husk_fail(err, HUSK_CONFLICT, "sandbox %s is paused; resume it first (husk resume %s)", s->id,
				 s->id);
	if (s->state != CATALOG_RUNNING)
		return husk_fail(err, HUSK_CONFLICT, "sandbox %s is not running", s->id);
	return 0;
}

int machine_checkpoint(struct supervisor *s, const char *image, int64_t *pause_ms, struct husk_error *err)
{
	pthread_mutex_lock(&s->lock);
	int result = require_running(s, err);
	if (result == 0) {
		int64_t start = time_monotonic_ms();
		link_hold(s->link);
		result = save_frozen(s, image, err);
		if (thaw(s, result == 0 ? err : NULL) < 0)
			result = -1;
		link_release(s->link);
		*pause_ms = time_monotonic_ms() - start;
	}
	pthread_mutex_unlock(&s->lock);
	return result;
}

/* Stops the machine and removes what the engine and the host kept for it. */
static void dismantle(struct supervisor *s)
{
	if (s->machine) {
		s->engine->stop(s->machine);
		link_close(
			s->link); /* before its descriptors go; sessions may still hold the link, so it is never freed */
		volumes_end(s);
		s->engine->free(s->machine);
		s->machine = NULL;
	}
	network_end(s);
	if (s->cgroup) {
		cgroup_free(s->cgroup);
		s->cgroup = NULL;
		struct husk_error err = { 0 };
		if (cgroup_destroy(s->husk.paths.scope, s->machine_name, &err) < 0)
			log_line(LOG_WARN, "%s", err.message);
	}
	if (s->machine_directory)
		dir_remove(s->machine_directory, NULL);
}

/* The last words of the guest's console, kept in the log after the machine's own files are gone. */
static void keep_console(struct supervisor *s)
{
	cleanup_free char *path = s->machine_directory ? str_format("%s/console.log", s->machine_directory) : NULL;
	size_t size = 0;
	cleanup_free char *text = path ? file_read(path, 1u << 20, &size, NULL) : NULL;

	if (text && size)
		log_line(LOG_INFO, "console:\n%s", size > 16384 ? text + size - 16384 : text);
}

/* New callers learn from the catalog; whoever holds the lock file's name next is not us. */
static void give_up_name(struct supervisor *s)
{
	cleanup_free char *socket_path = path_socket(&s->husk.paths, s->id);
	cleanup_free char *lock_path = path_lock(&s->husk.paths, s->id);

	if (socket_path)
		unlink(socket_path);
	if (lock_path)
		unlink(lock_path);
}

int machine_hibernate(struct supervisor *s, struct husk_error *err)
{
	cleanup_free char *directory = path_sandbox(&s->husk.paths, s->id);
	cleanup_free char *image = str_format("%s/image", directory ? directory : "");
	cleanup_free char *partial = str_format("%s/image.partial", directory ? directory : "");
	int result = -1;

	if (!directory || !image || !partial)
		return husk_fail_memory(err);
	pthread_mutex_lock(&s->lock);
	if (require_running(s, err) < 0)
		goto out;
	if (dir_remove(partial, err) < 0 || dir_make(partial, 0700, err) < 0)
		goto out;
	link_hold(s->link);
	result = save_frozen(s, partial, err);
	if (result == 0)
		result = engine_image_sync(partial, err);
	if (result == 0 && rename(partial, image) < 0)
		result = husk_fail_errno(err, "cannot keep the image of %s", s->id);
	if (result < 0)
		thaw(s, NULL);
	link_release(s->link);
	if (result < 0) {
		dir_remove(partial, NULL);
		goto out;
	}
	/* The image is whole: from here on even a kill of this process leaves a hibernated sandbox. */
	dismantle(s);
	catalog_sandbox_move(s->husk.catalog, s->id, 1u << CATALOG_RUNNING, CATALOG_HIBERNATED, err);
	catalog_event(s->husk.catalog, s->id, "hibernated", NULL, err);
	give_up_name(s);
	s->state = CATALOG_HIBERNATED;
	s->over = true;
out:
	pthread_mutex_unlock(&s->lock);
	supervisor_nudge(s);
	return result;
}

int machine_pause(struct supervisor *s, bool pause, struct husk_error *err)
{
	enum catalog_state from = pause ? CATALOG_RUNNING : CATALOG_PAUSED,
			   to = pause ? CATALOG_PAUSED : CATALOG_RUNNING;
	int result = 0;

	pthread_mutex_lock(&s->lock);
	if (s->over || s->state != from)
		result = husk_fail(err, HUSK_CONFLICT, "sandbox %s is not %s", s->id, pause ? "running" : "paused");
	if (result == 0)
		result = pause ? s->engine->pause(s->machine, err) : s->engine->resume(s->machine, err);
	if (result == 0)
		result = catalog_sandbox_move(s->husk.catalog, s->id, 1u << from, to, err);
	if (result == 0) {
		s->state = to;
		result = catalog_event(s->husk.catalog, s->id, pause ? "paused" : "resumed", NULL, err);
	}
	if (result == 0 && !pause)
		result = network_tell(s, err);
	pthread_mutex_unlock(&s->lock);
	return result;
}

int machine_extend(struct supervisor *s, int64_t ttl_seconds, bool persistent, int64_t *expires_ms,
		   struct husk_error *err)
{
	int64_t expires = persistent ? 0 : time_wall_ms() + ttl_seconds * 1000;

	pthread_mutex_lock(&s->lock);
	int result = s->over ? husk_fail(err, HUSK_GONE, "sandbox %s has ended", s->id)
			     : catalog_sandbox_set_expiry(s->husk.catalog, s->id, expires, persistent, err);
	if (result == 0) {
		s->expires_ms = expires;
		s->persistent = persistent;
		*expires_ms = expires;
		char detail[64];
		snprintf(detail, sizeof(detail), "{\"expires_ms\":%lld}", (long long)expires);
		catalog_event(s->husk.catalog, s->id, "extended", detail, NULL);
	}
	pthread_mutex_unlock(&s->lock);
	if (result == 0)
		supervisor_nudge(s);
	return result;
}

int machine_egress(struct supervisor *s, const char *policy, const char *secrets, struct husk_error *err)
{
	pthread_mutex_lock(&s->lock);
	int result = s->over ? husk_fail(err, HUSK_GONE, "sandbox %s has ended", s->id) : 0;
	if (result == 0 && s->state != CATALOG_RUNNING && s->state != CATALOG_PAUSED)
		result = husk_fail(err, HUSK_CONFLICT, "sandbox %s is not running", s->id);
	if (result == 0)
		result = network_set(s, policy, secrets, err);
	/* A paused guest cannot listen: it is told when it goes on. */
	if (result == 0 && s->state == CATALOG_RUNNING)
		result = network_tell(s, err);
	pthread_mutex_unlock(&s->lock);
	return result;
}

char *machine_egress_view(struct supervisor *s, size_t limit)
{
	pthread_mutex_lock(&s->lock);
	char *text = network_view(s, limit);
	pthread_mutex_unlock(&s->lock);
	return text;
}

void machine_end(struct supervisor *s, const char *reason)
{
	struct husk_error err = { 0 };
	cleanup_free char *detail = str_format("{\"reason\":\"%s\"}", reason);

	pthread_mutex_lock(&s->lock);
	if (!s->over) {
		keep_console(s);
		dismantle(s);
		remove_image(s);
		egress_secrets_drop(&s->husk, s->id);
		if (catalog_sandbox_end(s->husk.catalog, s->id, reason, &err) < 0 ||
		    catalog_event(s->husk.catalog, s->id, "ended", detail, &err) < 0)
			log_line(LOG_ERROR, "%s", err.message);
		give_up_name(s);
		s->state = CATALOG_ENDED;
		s->over = true;
	}
	pthread_mutex_unlock(&s->lock);
	supervisor_nudge(s);
}

void machine_abort(struct supervisor *s)
{
	cleanup_free char *directory = path_sandbox(&s->husk.paths, s->id);

	pthread_mutex_lock(&s->lock);
	if (!s->over) {
		dismantle(s);
		if (sandbox_has_image(&s->husk, s->id)) {
			catalog_sandbox_move(s->husk.catalog, s->id, 1u << CATALOG_CREATING, CATALOG_HIBERNATED, NULL);
		} else {
			catalog_sandbox_forget(s->husk.catalog, s->id, NULL);
			if (directory)
				dir_remove(directory, NULL);
		}
		give_up_name(s);
		s->over = true;
	}
	pthread_mutex_unlock(&s->lock);
	supervisor_nudge(s);
}

/* More processes than its limit explains: a guest that forks without end leaves its agent no turn to stop it. */
static void end_flood(struct supervisor *s)
{
	struct husk_error err = { 0 };

	pthread_mutex_lock(&s->lock);
	int killed = s->over || s->state != CATALOG_RUNNING ? 0 : s->engine->kill_processes(s->machine, &err);
	if (s->cgroup)
		cgroup_tasks_forgive(s->cgroup);
	pthread_mutex_unlock(&s->lock);
	if (killed < 0)
		log_line(LOG_WARN, "cannot stop a flood of processes: %s", err.message);
	if (killed <= 0)
		return;
	cleanup_free char *detail = str_format("{\"killed\":%d}", killed);
	catalog_event(s->husk.catalog, s->id, "pids", detail, NULL);
}

static void oom_event(struct supervisor *s, int64_t pid, const char *name)
{
	json_t *detail = json_pack("{s:I, s:s?, s:I}", "pid", (json_int_t)pid, "process", name, "memory_limit",
				   (json_int_t)s->memory_limit);
	cleanup_free char *text = detail ? json_dumps(detail, JSON_COMPACT) : NULL;

	json_decref(detail);
	catalog_event(s->husk.catalog, s->id, "oom", text ? text : "{}", NULL);
}

void machine_relieve(struct supervisor *s)
{
	cleanup_buf struct buf results = { 0 };
	struct husk_error err = { 0 };

	pthread_mutex_lock(&s->lock);
	bool flood = s->cgroup && cgroup_tasks_over(s->cgroup);
	pthread_mutex_unlock(&s->lock);
	if (flood) {
		end_flood(s);
		return;
	}
	if (!s->link || link_call(s->link, METHOD_OOM, NULL, &results, 5000, &err) < 0) {
		log_line(LOG_WARN, "memory is short and the agent did not help: %s", err.message);
		return;
	}
	int64_t pid = wire_get_int(results.data, results.size, TAG_PID, 0);
	if (pid <= 0)
		return;
	cleanup_free char *name = wire_get_string(results.data, results.size, TAG_NAME);
	oom_event(s, pid, name);
}

void machine_tell_kills(struct supervisor *s)
{
	struct supervisor_kill kills[ARRAY_SIZE(s->kills)];

	pthread_mutex_lock(&s->activity_lock);
	size_t count = s->kill_count;
	memcpy(kills, s->kills, count * sizeof(kills[0]));
	s->kill_count = 0;
	pthread_mutex_unlock(&s->activity_lock);
	/* It is the guest's word: one that makes up a million of them fills no disk. */
	int64_t gained = (time_monotonic_ms() - s->kills_told_ms) / KILL_PAUSE_MS;
	if (gained > 0) {
		s->kill_budget = (size_t)MIN((int64_t)s->kill_budget + gained, KILL_BURST);
		s->kills_told_ms = time_monotonic_ms();
	}
	for (size_t i = 0; i < count && s->kill_budget > 0; i++, s->kill_budget--)
		oom_event(s, kills[i].pid, kills[i].name);
}

char *machine_describe(struct supervisor *s)
{
	struct cgroup_use use = { 0 };
	struct leash_totals traffic;

	pthread_mutex_lock(&s->lock);
	if (s->cgroup)
		cgroup_read(s->cgroup, &use, NULL);
	network_totals(s, &traffic);
	json_t *root =
		json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:{s:I, s:I, s:I, s:I, s:I, s:i}}", "id", s->id,
			  "expires_ms", (json_int_t)s->expires_ms, "memory", (json_int_t)use.memory_bytes,
			  "memory_limit", (json_int_t)s->memory_limit, "cpu_us", (json_int_t)use.cpu_us, "channels",
			  (json_int_t)(s->link ? link_channels(s->link) : 0), "sessions", (json_int_t)s->sessions,
			  "network", "sent", (json_int_t)traffic.sent, "received", (json_int_t)traffic.received,
			  "connections", (json_int_t)traffic.connections, "denied", (json_int_t)traffic.denied,
			  "restarts", (json_int_t)traffic.restarts, "pid", (int)traffic.pid);
	pthread_mutex_unlock(&s->lock);
	char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;
	json_decref(root);
	return text;
}
