/*
 * What a supervisor can do with its machine: prepare, restore, give it an identity, checkpoint, hibernate, pause. Each
 * is a step of the sandbox's life (life.h) and runs on the thread of the session that asked for it. A supervisor may be
 * killed between any two lines, so the order is always: disk first, then the catalog, then the answer.
 */
#include "supervisor/machine.h"

#include <fcntl.h>
#include <jansson.h>
#include <sys/file.h>

#include "instance/console.h"
#include "instance/egress_policy.h"
#include "instance/instance.h"
#include "instance/pairs.h"
#include "instance/points.h"
#include "instance/pool.h"
#include "instance/spawn.h"
#include "supervisor/ending.h"
#include "supervisor/relief.h"
#include "supervisor/supervise.h"
#include "supervisor/supervisor.h"
#include "supervisor/volumes.h"

#define AGENT_TIMEOUT_MS 30000
#define UNFROZEN_TIMEOUT_MS 5000
#define BOOT_TIMEOUT_MS 60000
#define KERNEL_MEMORY (128ull << 20) /* for a guest with its own kernel, in addition to the memory of its workload */
#define CLOCK_WRONG_MS 2000
#define WOKEN_TTL_MS (3600 * 1000) /* for a sandbox that was hibernated at the end of its TTL */

static struct cgroup_limits limits_of(const struct supervisor *s, const struct catalog_sandbox *row)
{
	uint64_t beside = s->engine->own_kernel && row->memory_bytes ? KERNEL_MEMORY : 0;

	return (struct cgroup_limits){ row->memory_bytes + beside, row->cpu_milli, row->pids };
}

static int make_cgroup(struct supervisor *s, struct husk_error *err)
{
	struct cgroup *cgroup = NULL;

	if (cgroup_create(s->husk.paths.scope, s->machine_name, &cgroup, err) < 0)
		return -1;
	pthread_mutex_lock(&s->parts);
	s->cgroup = cgroup;
	pthread_mutex_unlock(&s->parts);
	return 0;
}

int machine_prepare(struct supervisor *s, const struct catalog_sandbox *row, const char *image, bool reboot,
		    struct husk_error *err)
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
	if (engine_remove(s->machine_directory, err) < 0 || dir_make(s->machine_directory, 0711, err) < 0)
		return -1;
	if (make_cgroup(s, err) < 0)
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
		.image = image,
		.disk_only = reboot,
		.disk_bytes = row->disk_bytes,
		.uid_base = slot_uid_base(row->slot),
		.gateway = &s->network.gateway,
		.cgroup = s->cgroup,
	};
	struct engine_machine *machine = NULL;
	int result = s->engine->prepare(&spec, &machine, err);
	gateway_release_port(&s->network.gateway);
	if (result < 0)
		return -1;
	pthread_mutex_lock(&s->parts);
	s->machine = machine;
	pthread_mutex_unlock(&s->parts);
	life_arm(&s->life, s->engine, machine);
	return relief_start(s, err);
}

int machine_restore(struct supervisor *s, const struct catalog_sandbox *row, const char *image, struct husk_error *err)
{
	int to_agent, from_agent;

	if (volumes_show(s, image, row->volumes, err) < 0 || s->engine->restore(s->machine, image, err) < 0)
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

int machine_boot(struct supervisor *s, const char *image, struct husk_error *err)
{
	int to_agent, from_agent;

	if (s->engine->boot(s->machine, image, err) < 0)
		return -1;
	s->rebooted = true;
	s->engine->link(s->machine, &to_agent, &from_agent);
	if (link_start(to_agent, from_agent, true, &s->link, err) < 0)
		return -1;
	if (s->engine->wake_fd)
		link_wake_with(s->link, s->engine->wake_fd(s->machine));
	return link_wait_hello(s->link, BOOT_TIMEOUT_MS, err);
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
	bad |= wire_put_int(out, TAG_PIDS, row->pids);
	bad |= wire_put_int(out, TAG_MEMORY, (int64_t)row->memory_bytes);
	bad |= wire_put_int(out, TAG_CPU_MILLI, row->cpu_milli);
	bad |= wire_put_int(out, TAG_DISK_TOTAL, (int64_t)row->disk_bytes);
	if (json_has_pairs(row->metadata, &(struct husk_pair){ HUSK_MOMENT_KEY, "1" }, 1, NULL) == 1)
		bad |= wire_put_int(out, TAG_FLAGS, IDENTITY_STILL);
	return bad ? husk_fail_memory(err) : 0;
}

/* Sends METHOD_IDENTITY. The guest's clock must have been right at some moment between request and answer, however long
 * both took. */
static int give_identity(struct supervisor *s, struct buf *arguments, struct husk_error *err)
{
	cleanup_buf struct buf results = { 0 };
	int64_t sent = time_wall_ms();

	if (wire_put_int(arguments, TAG_TIME_MS, sent) < 0)
		return husk_fail_memory(err);
	if (link_call(s->link, METHOD_IDENTITY, arguments, &results, AGENT_TIMEOUT_MS, err) < 0)
		return -1;
	int64_t clock = wire_get_int(results.data, results.size, TAG_TIME_MS, 0), answered = time_wall_ms();
	if (clock == 0) /* the agent of an older image does not report its clock */
		return 0;
	if (clock < MIN(sent, answered) - CLOCK_WRONG_MS || clock > MAX(sent, answered) + CLOCK_WRONG_MS)
		return husk_fail(err, HUSK_INTERNAL, "the guest's clock says %lld ms; it is %lld ms", (long long)clock,
				 (long long)answered);
	return 0;
}

/* `point`: the checkpoint that the machine continues; 0: none. */
static int tell_birth(struct supervisor *s, const struct catalog_sandbox *row, bool waking, int64_t point,
		      struct husk_error *err)
{
	json_t *detail = json_pack("{s:s, s:s?, s:s}", "template", row->template_name, "parent", row->parent,
				   "isolation", row->isolation);
	if (detail && point)
		json_object_set_new(detail, "checkpoint", json_integer(point));
	cleanup_free char *text = detail ? json_dumps(detail, JSON_COMPACT) : NULL;

	json_decref(detail);
	const char *kind = s->rebooted ? "rebooted" : point ? "rewound" : waking ? "woken" : "created";
	return catalog_event(s->husk.catalog, row->id, kind, text, err);
}

int machine_become(struct supervisor *s, const struct catalog_sandbox *row, struct husk_error *err)
{
	cleanup_buf struct buf arguments = { 0 };
	cleanup_free char *image = path_image(&s->husk.paths, row->id);
	bool waking = image && engine_image_whole(image);
	int64_t point = image ? point_of_image(image) : 0;
	struct cgroup_limits limits = limits_of(s, row);

	if (!image)
		return husk_fail_memory(err);
	if (cgroup_set_limits(s->cgroup, &limits, err) < 0 || network_begin(s, row, err) < 0)
		return -1;
	if (identity_arguments(row, &arguments, err) < 0 || network_arguments(s, row->environment, &arguments, err) < 0)
		return -1;
	if (network_hold(s, err) < 0) /* before the first packet of the guest */
		return -1;
	if (volumes_begin(s, row->volumes, err) < 0) /* before the guest uses its files */
		return -1;
	if (give_identity(s, &arguments, err) < 0)
		return husk_wrap(err, "cannot make the restored machine its own");
	if (relief_watch(s, err) < 0)
		return -1;
	life_set_idle(&s->life, row->idle_seconds);
	int64_t expires = row->expires_ms;
	if (!row->persistent && !expires) { /* the TTL passed while the sandbox was hibernated */
		expires = time_wall_ms() + WOKEN_TTL_MS;
		if (catalog_sandbox_set_expiry(s->husk.catalog, row->id, expires, false, err) < 0)
			return -1;
	}
	s->memory_limit = row->memory_bytes;
	s->disk_limit = row->disk_bytes;
	s->sleeps_on_expiry = row->hibernates;
	s->each_call = row->each_call;
	machine_set_expiry(s, row->persistent ? 0 : expires, row->persistent);

	if (waking && catalog_effects_settle(s->husk.catalog, row->id, err) < 0)
		return -1;
	if (point && catalog_point_reach(s->husk.catalog, row->id, point, err) < 0)
		return -1;
	/* Before the row says that the sandbox runs, because readers of the row call at once. */
	if (!life_commit(&s->life))
		return husk_fail(err, HUSK_GONE, "sandbox %s has ended", row->id);
	if (catalog_sandbox_move(s->husk.catalog, row->id, 1u << CATALOG_CREATING, CATALOG_RUNNING, err) < 0)
		return -1;
	if (tell_birth(s, row, waking, point, err) < 0)
		return -1;
	/* Only now. If the supervisor is killed earlier, the sandbox is still hibernated. From here on the sandbox
	 * runs, and a kill ends it. */
	return waking ? image_discard(image, err) : 0;
}

/* From now on this process serves another sandbox: its lock, its socket, its log. */
static int take_name(struct supervisor *s, const char *id, int lock_fd, struct husk_error *err)
{
	cleanup_free char *old_id = strdup(life_id(&s->life));

	if (!old_id)
		return husk_fail_memory(err);
	supervisor_unname(&s->husk, old_id);
	if (dup3(lock_fd, SUPERVISOR_LOCK_FD, O_CLOEXEC) < 0)
		return husk_fail_errno(err, "cannot take over the lock of %s", id);
	if (life_rename(&s->life, id) < 0)
		return husk_fail_memory(err);
	if (sandbox_log_move(&s->husk.paths, old_id, id, err) < 0)
		return -1;
	return supervisor_listen(s, err);
}

static int become_claimed(struct supervisor *s, const char *id, int lock_fd, const char *image, struct husk_error *err)
{
	struct catalog_sandbox *row = NULL;

	if (strcmp(id, life_id(&s->life)) != 0 && take_name(s, id, lock_fd, err) < 0)
		return -1;
	if (catalog_sandbox_get(s->husk.catalog, id, &row, err) < 0)
		return -1;
	int result = s->link ? 0 : machine_restore(s, row, image, err);
	if (result == 0)
		result = machine_become(s, row, err);
	if (result == 0)
		machine_replace(s, row);
	catalog_sandbox_free(row);
	return result;
}

static bool is_over(void *data)
{
	struct supervisor *s = data;

	return life_look(&s->life).over;
}

void machine_replace(struct supervisor *s, const struct catalog_sandbox *row)
{
	pool_refill(&s->husk, row, s->network.leash != NULL, is_over, s);
}

int machine_claim(struct supervisor *s, const char *id, int lock_fd, const char *image, struct husk_error *err)
{
	if (life_begin(&s->life, LIFE_CLAIM, err) < 0)
		return -1;
	int result = become_claimed(s, id, lock_fd, image, err);
	if (result < 0)
		life_end(&s->life, NULL);
	life_finish(&s->life, result == 0);
	if (result < 0)
		life_wait_over(&s->life,
			       ENDING_ANSWER_MS); /* so that nothing is left when the caller tries the next entry */
	return result;
}

/* Saves the machine into `image` while all processes of the guest are frozen; they stay frozen. The link is held, so
 * that no byte of it is in transit while memory is copied, and all requests to volumes are answered before. */
static int save_frozen(struct supervisor *s, const char *image, struct husk_error *err)
{
	if (link_call(s->link, METHOD_FREEZE, NULL, NULL, AGENT_TIMEOUT_MS, err) < 0)
		return husk_wrap(err, "cannot freeze the guest");
	/* Frozen, so the guest knows of no later one. */
	if (catalog_effect_last(s->husk.catalog, life_id(&s->life), &s->effect_mark, err) < 0)
		return -1;
	if (volumes_hold(s, err) < 0 || s->engine->checkpoint(s->machine, image, err) < 0)
		return -1;
	return volumes_save(s, image, err);
}

/* The guest continues as the same machine. If the guest could not be frozen, the request is still sent, but the wait is
 * short. */
static int thaw(struct supervisor *s, struct husk_error *err)
{
	volumes_go_on(s);
	return link_call(s->link, METHOD_THAW, NULL, NULL, err ? AGENT_TIMEOUT_MS : UNFROZEN_TIMEOUT_MS, err);
}

int machine_ended_meanwhile(struct supervisor *s, struct husk_error *err)
{
	struct life_view now = life_look(&s->life);

	return now.ending ? husk_fail(err, HUSK_GONE, "sandbox %s has ended", now.id) : -1;
}

/* Saves the machine while it continues to run: first under another name, so that an image with the final name is always
 * complete. */
static int save_beside(struct supervisor *s, const char *partial, const char *image, struct husk_error *err)
{
	if (dir_make(partial, 0700, err) < 0)
		return -1;
	link_hold(s->link);
	int result = save_frozen(s, partial, err);
	if (thaw(s, result == 0 ? err : NULL) < 0)
		result = -1;
	link_release(s->link);
	if (result == 0 && rename(partial, image) < 0)
		result = husk_fail_errno(err, "cannot keep the image '%s'", image);
	if (result < 0)
		engine_remove(partial, NULL);
	return result;
}

int machine_save(struct supervisor *s, const char *image, int64_t *pause_ms, struct husk_error *err)
{
	cleanup_free char *partial = str_format(IMAGE_PARTIAL, image);

	if (!partial)
		return husk_fail_memory(err);
	if (s->engine->ahead && s->engine->ahead(s->machine, err) < 0)
		return -1;
	int64_t start = time_monotonic_ms();
	int result = save_beside(s, partial, image, err);
	*pause_ms = time_monotonic_ms() - start;
	return result;
}

int machine_checkpoint(struct supervisor *s, const char *image, int64_t *pause_ms, int64_t *effect,
		       struct husk_error *err)
{
	if (life_begin(&s->life, LIFE_CHECKPOINT, err) < 0)
		return -1;
	int result = machine_save(s, image, pause_ms, err);
	*effect = s->effect_mark;
	life_finish(&s->life, result == 0);
	return result < 0 ? machine_ended_meanwhile(s, err) : 0;
}

/* Saves the machine under another name and proves that the image can be woken, before the image gets its final name. */
static int save_for_sleep(struct supervisor *s, const char *partial, const char *image, struct husk_error *err)
{
	struct catalog_sandbox *row = NULL;

	if (engine_remove(partial, err) < 0 || dir_make(partial, 0700, err) < 0 || save_frozen(s, partial, err) < 0)
		return -1;
	if (catalog_sandbox_get(s->husk.catalog, life_id(&s->life), &row, err) < 0)
		return -1;
	cleanup_free char *rootfs = path_rootfs(&s->husk.paths, row->template_digest);
	int result = rootfs ? engine_image_sync(partial, err) : husk_fail_memory(err);
	if (result == 0)
		result = engine_image_check(row->isolation, partial, rootfs, row->disk_bytes, err);
	catalog_sandbox_free(row);
	return result < 0 ? -1 : image_keep(partial, image, err);
}

/* The image is complete and no end came first. From here on, even a kill of this process leaves a hibernated
 * sandbox. */
void machine_fall_asleep(struct supervisor *s, const char *event)
{
	unsigned awake = 1u << CATALOG_RUNNING | 1u << CATALOG_PAUSED;
	struct husk_error err = { 0 };
	const char *id = life_id(&s->life);

	machine_dismantle(s);
	if (catalog_sandbox_move(s->husk.catalog, id, awake, CATALOG_HIBERNATED, &err) < 0 ||
	    (event && catalog_event(s->husk.catalog, id, event, NULL, &err) < 0))
		log_line(LOG_ERROR, "%s", err.message);
	supervisor_unname(&s->husk, id);
	life_set_over(&s->life);
}

int machine_hibernate(struct supervisor *s, struct husk_error *err)
{
	if (life_begin(&s->life, LIFE_HIBERNATE, err) < 0)
		return -1;
	cleanup_free char *image = path_image(&s->husk.paths, life_id(&s->life));
	cleanup_free char *partial = image ? str_format(IMAGE_PARTIAL, image) : NULL;
	link_hold(s->link);
	int result = partial ? save_for_sleep(s, partial, image, err) : husk_fail_memory(err);
	if (result == 0 && !life_commit(&s->life)) {
		image_discard(image, NULL);
		result = -1;
	}
	if (result < 0)
		thaw(s, NULL);
	link_release(s->link);
	if (result == 0)
		machine_fall_asleep(s, "hibernated");
	else if (partial)
		engine_remove(partial, NULL);
	life_finish(&s->life, result == 0);
	return result < 0 ? machine_ended_meanwhile(s, err) : 0;
}

static int set_paused(struct supervisor *s, bool pause, struct husk_error *err)
{
	enum catalog_state from = pause ? CATALOG_RUNNING : CATALOG_PAUSED,
			   to = pause ? CATALOG_PAUSED : CATALOG_RUNNING;
	const char *id = life_id(&s->life);

	if ((pause ? s->engine->pause : s->engine->resume)(s->machine, err) < 0 || !life_commit(&s->life) ||
	    catalog_sandbox_move(s->husk.catalog, id, 1u << from, to, err) < 0)
		return -1;
	return catalog_event(s->husk.catalog, id, pause ? "paused" : "resumed", NULL, err);
}

int machine_pause(struct supervisor *s, bool pause, struct husk_error *err)
{
	if (life_begin(&s->life, pause ? LIFE_PAUSE : LIFE_RESUME, err) < 0)
		return -1;
	int result = set_paused(s, pause, err);
	if (result == 0 && !pause)
		result = network_tell(s, err);
	life_finish(&s->life, result == 0);
	return result < 0 ? machine_ended_meanwhile(s, err) : 0;
}

void machine_set_expiry(struct supervisor *s, int64_t expires_ms, bool persistent)
{
	life_set_expiry(&s->life, expires_ms, persistent);
	pthread_mutex_lock(&s->parts);
	if (s->machine && s->engine->expire)
		s->engine->expire(s->machine, s->sleeps_on_expiry ? 0 : expires_ms);
	pthread_mutex_unlock(&s->parts);
}

int machine_extend(struct supervisor *s, int64_t ttl_seconds, bool persistent, int64_t *expires_ms,
		   struct husk_error *err)
{
	int64_t expires = persistent ? 0 : time_wall_ms() + ttl_seconds * 1000;
	struct life_view now = life_look(&s->life);
	char detail[64];

	if (now.ending || now.over)
		return husk_fail(err, HUSK_GONE, "sandbox %s has ended", now.id);
	if (catalog_sandbox_set_expiry(s->husk.catalog, now.id, expires, persistent, err) < 0)
		return -1;
	machine_set_expiry(s, expires, persistent);
	*expires_ms = expires;
	snprintf(detail, sizeof(detail), "{\"expires_ms\":%lld}", (long long)expires);
	catalog_event(s->husk.catalog, now.id, "extended", detail, NULL);
	return 0;
}

int machine_set_idle(struct supervisor *s, int64_t idle_seconds, struct husk_error *err)
{
	struct life_view now = life_look(&s->life);

	if (now.ending || now.over)
		return husk_fail(err, HUSK_GONE, "sandbox %s has ended", now.id);
	if (catalog_sandbox_set_idle(s->husk.catalog, now.id, idle_seconds, err) < 0)
		return -1;
	life_set_idle(&s->life, idle_seconds);
	return 0;
}

/* The guest shows its limits to programs (/proc/meminfo, the number of processors). */
static int tell_limits(struct supervisor *s, const struct catalog_sandbox *row, struct husk_error *err)
{
	cleanup_buf struct buf arguments = { 0 };
	int bad = wire_put_int(&arguments, TAG_MEMORY, (int64_t)row->memory_bytes);

	bad |= wire_put_int(&arguments, TAG_CPU_MILLI, row->cpu_milli);
	if (bad)
		return husk_fail_memory(err);
	if (link_call(s->link, METHOD_LIMITS, &arguments, NULL, AGENT_TIMEOUT_MS, err) == 0)
		return 0;
	return husk_wrap(err, "sandbox %s cannot be resized while it runs; hibernate it first (husk hibernate %s)",
			 row->id, row->id);
}

/* The host's limits first. They are what holds, and if the guest cannot be told they go back. 0: stays, as it is when this
 * call has its turn. */
static int resize(struct supervisor *s, struct catalog_sandbox *row, uint64_t memory_bytes, uint32_t cpu_milli,
		  struct husk_error *err)
{
	struct cgroup_limits before = limits_of(s, row);

	row->memory_bytes = memory_bytes ? memory_bytes : row->memory_bytes;
	row->cpu_milli = cpu_milli ? cpu_milli : row->cpu_milli;
	struct cgroup_limits after = limits_of(s, row);
	if (cgroup_set_limits(s->cgroup, &after, err) < 0 || tell_limits(s, row, err) < 0 ||
	    catalog_sandbox_resize(s->husk.catalog, row->id, row->cpu_milli, row->memory_bytes, false, err) < 0) {
		cgroup_set_limits(s->cgroup, &before, NULL);
		return -1;
	}
	s->memory_limit = row->memory_bytes;
	return 0;
}

int machine_resize(struct supervisor *s, uint64_t memory_bytes, uint32_t cpu_milli, struct husk_error *err)
{
	struct catalog_sandbox *row = NULL;

	if (life_begin(&s->life, LIFE_RESIZE, err) < 0)
		return -1;
	int result = catalog_sandbox_get(s->husk.catalog, life_id(&s->life), &row, err);
	if (result == 0)
		result = resize(s, row, memory_bytes, cpu_milli, err);
	life_finish(&s->life, result == 0);
	catalog_sandbox_free(row);
	return result < 0 ? machine_ended_meanwhile(s, err) : 0;
}

int machine_egress(struct supervisor *s, const char *policy, const char *secrets, struct husk_error *err)
{
	if (life_begin(&s->life, LIFE_EGRESS, err) < 0)
		return -1;
	int result = network_set(s, policy, secrets, err);
	/* A paused guest cannot receive the change; it gets the change when it continues. */
	if (result == 0 && life_look(&s->life).state == CATALOG_RUNNING)
		result = network_tell(s, err);
	life_finish(&s->life, result == 0);
	return result < 0 ? machine_ended_meanwhile(s, err) : 0;
}

/* The disk may be slow, so only `looking` is held: the end needs it last. */
int machine_disk(struct supervisor *s, uint64_t *used, uint64_t *limit)
{
	pthread_mutex_lock(&s->looking);
	pthread_mutex_lock(&s->parts);
	struct engine_machine *machine = s->machine;
	pthread_mutex_unlock(&s->parts);
	int known = machine && s->engine->disk_use ? s->engine->disk_use(machine, used, limit) : -1;
	pthread_mutex_unlock(&s->looking);
	return known;
}

static void describe_disk(struct supervisor *s, json_t *root)
{
	uint64_t used, limit;

	if (!root || machine_disk(s, &used, &limit) < 0)
		return;
	json_object_set_new(root, "disk", json_integer((json_int_t)used));
	json_object_set_new(root, "disk_limit", json_integer((json_int_t)limit));
}

char *machine_describe(struct supervisor *s)
{
	struct life_view now = life_look(&s->life);
	struct cgroup_use use = machine_use(s);
	struct leash_totals traffic;

	network_totals(s, &traffic);
	json_t *root =
		json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:{s:I, s:I, s:I, s:I, s:I, s:i}}", "id", now.id,
			  "expires_ms", (json_int_t)now.expires_ms, "memory", (json_int_t)use.memory_bytes,
			  "memory_limit", (json_int_t)s->memory_limit, "cpu_us", (json_int_t)use.cpu_us, "channels",
			  (json_int_t)(s->link ? link_channels(s->link) : 0), "sessions", (json_int_t)now.sessions,
			  "network", "sent", (json_int_t)traffic.sent, "received", (json_int_t)traffic.received,
			  "connections", (json_int_t)traffic.connections, "denied", (json_int_t)traffic.denied,
			  "restarts", (json_int_t)traffic.restarts, "pid", (int)traffic.pid);
	describe_disk(s, root);
	char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;
	json_decref(root);
	return text;
}

struct cgroup_use machine_use(struct supervisor *s)
{
	struct cgroup_use use = { 0 };

	pthread_mutex_lock(&s->parts);
	if (s->cgroup && cgroup_read(s->cgroup, &use, NULL) < 0)
		use = (struct cgroup_use){ 0 };
	pthread_mutex_unlock(&s->parts);
	return use;
}
