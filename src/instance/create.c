/*
 * Creates sandboxes: from a template's baked image, from a snapshot, by forking a running sandbox, or by waking a
 * hibernated one. All four continue from an image, in a machine from the pool if one is ready.
 */
#include <pthread.h>

#include "engine/engine.h"
#include "instance/bake.h"
#include "instance/create.h"
#include "instance/egress_policy.h"
#include "instance/images.h"
#include "instance/instance.h"
#include "instance/limits.h"
#include "instance/moments.h"
#include "instance/mounts.h"
#include "instance/pairs.h"
#include "instance/pool.h"
#include "instance/recover.h"
#include "instance/snapshots.h"
#include "instance/spawn.h"
#include "instance/view.h"
#include "wire/wire.h"

#define DEFAULT_TTL_SECONDS 3600
#define DEFAULT_MEMORY_BYTES (1ull << 30)
#define DEFAULT_CPU_MILLI 2000
#define DEFAULT_PIDS 512
#define TTL_MAX (365ll * 24 * 3600)
#define EARLIER_MS 60000 /* how long a repeated request waits for the first */

/* ---- checking the options ---- */

static int check_seconds(const char *what, const char *field, int64_t seconds, struct husk_error *err)
{
	if (seconds >= 0 && seconds <= TTL_MAX)
		return 0;
	return husk_fail_field(err, field, "%s must be between 1 second and 365 days, not %lld seconds", what,
			       (long long)seconds);
}

static int check_key(const char *key, struct husk_error *err)
{
	size_t length = strlen(key);

	for (size_t i = 0; i < length; i++)
		if (key[i] < 0x21 || key[i] > 0x7e)
			length = 0;
	if (length < 1 || length > 255)
		return husk_fail_field(
			err, "idempotency_key",
			"the idempotency key is not valid: use 1 to 255 printable characters without spaces");
	return 0;
}

static int fail_isolation(const char *isolation, struct husk_error *err)
{
	cleanup_buf struct buf names = { 0 };

	for (size_t i = 0; engines[i]; i++)
		if (buf_printf(&names, "%s%s", engines[i + 1] ? ", " : " or ", engines[i]->name) < 0)
			return husk_fail_memory(err);
	return husk_fail_field(err, "isolation", "isolation '%s' is not known; use auto%s", isolation, names.data);
}

static int check_options(const struct husk_create_options *o, struct husk_error *err)
{
	if (o->name && name_check("name", o->name, err) < 0)
		return -1;
	if (o->idempotency_key && check_key(o->idempotency_key, err) < 0)
		return -1;
	if (o->template_name && o->snapshot)
		return husk_fail_field(err, "snapshot", "give a template or a snapshot, not both");
	if (check_seconds("ttl", "ttl_seconds", o->ttl_seconds, err) < 0 ||
	    check_seconds("idle", "idle_seconds", o->idle_seconds, err) < 0 ||
	    limits_check_all(o->cpu_milli, o->memory_bytes, o->disk_bytes, o->pids, err) < 0)
		return -1;
	if (o->isolation && strcmp(o->isolation, "auto") != 0 && !engine_find(o->isolation))
		return fail_isolation(o->isolation, err);
	if (o->on_expiry && strcmp(o->on_expiry, "kill") != 0 && strcmp(o->on_expiry, "hibernate") != 0)
		return husk_fail_field(err, "on_expiry", "on_expiry '%.40s' is not known; use kill or hibernate",
				       o->on_expiry);
	if (o->checkpoints && strcmp(o->checkpoints, "off") != 0 && strcmp(o->checkpoints, "each-call") != 0)
		return husk_fail_field(err, "checkpoints", "checkpoints '%.40s' is not known; use off or each-call",
				       o->checkpoints);
	if (pairs_check_metadata(o->metadata, o->metadata_count, err) < 0)
		return -1;
	if (pairs_check_environment(o->environment, o->environment_count, err) < 0 ||
	    mounts_check(o->mounts, o->mount_count, err) < 0)
		return -1;
	cleanup_policy struct policy *policy = NULL;
	return o->egress ? egress_check(o->egress, &policy, err) : 0;
}

/* ---- continuing from an image ---- */

/* A planned sandbox, and the image that it continues from. */
struct plan {
	struct catalog_sandbox row; /* the plan owns the strings */
	char *image;
	char *secrets;      /* the text of its secrets file; NULL: none */
	bool from_template; /* a warm pool entry can be used */
};

static void plan_free(struct plan *plan)
{
	free(plan->row.id);
	free(plan->row.name);
	free(plan->row.template_name);
	free(plan->row.template_digest);
	free(plan->row.parent);
	free(plan->row.origin);
	free(plan->row.isolation);
	free(plan->row.metadata);
	free(plan->row.environment);
	free(plan->row.idempotency_key);
	free(plan->row.request);
	free(plan->row.egress);
	free(plan->row.volumes);
	free(plan->image);
	str_wipe(plan->secrets);
}

/* Settings that a new sandbox inherits from its template, snapshot or parent; NULL: none. */
struct inherited {
	const char *environment, *metadata, *egress, *volumes;
	const char *secrets; /* of a parent */
};

static int check_variables(const struct policy *policy, const struct husk_create_options *o, struct husk_error *err)
{
	for (size_t i = 0; i < policy->secret_count; i++)
		for (size_t k = 0; k < o->environment_count; k++)
			if (!policy->secrets[i].header && str_equal(policy->secrets[i].name, o->environment[k].key))
				return husk_fail(err, HUSK_INVALID,
						 "'%s' is given as a secret and as an environment variable; "
						 "keep one",
						 policy->secrets[i].name);
	return 0;
}

/* The requested policy, or the inherited one, and the secrets that it needs. */
static int plan_egress(struct plan *plan, const struct husk_create_options *o, const struct inherited *inherited,
		       struct husk_error *err)
{
	cleanup_policy struct policy *policy = NULL, *asked = NULL;
	const struct husk_egress *given = o->egress;

	if (given && egress_check(given, &asked, err) < 0)
		return -1;
	if (given && !egress_is_addition(given)) {
		policy = steal_pointer(asked);
	} else {
		if (egress_inherit(inherited->egress, given, &policy, err) < 0)
			return -1;
		given = NULL;
	}
	if (asked && asked->trust) {
		free(policy->trust);
		policy->trust = steal_pointer(asked->trust);
	}
	if (egress_default_trust(policy, err) < 0 || check_variables(policy, o, err) < 0 ||
	    egress_secrets(policy, given, inherited->secrets, &plan->secrets, err) < 0)
		return -1;
	plan->row.egress = policy_text(policy);
	return plan->row.egress ? 0 : husk_fail_memory(err);
}

/* Merges the requested settings with the inherited ones. */
static int plan_fill(struct husk *husk, struct plan *plan, const struct husk_create_options *o,
		     const struct inherited *inherited, struct husk_error *err)
{
	struct catalog_sandbox *row = &plan->row;
	int64_t ttl = o->ttl_seconds ? o->ttl_seconds : DEFAULT_TTL_SECONDS;

	row->created_ms = time_wall_ms();
	row->persistent = o->persistent;
	if (o->persistent || o->ttl_seconds || !row->expires_ms)
		row->expires_ms = o->persistent ? 0 : row->created_ms + ttl * 1000;
	if (o->on_expiry)
		row->hibernates = str_equal(o->on_expiry, "hibernate");
	if (o->checkpoints)
		row->each_call = str_equal(o->checkpoints, "each-call");
	row->idle_seconds = o->idle_seconds;
	if (o->memory_bytes || !row->memory_bytes)
		row->memory_bytes = o->memory_bytes ? o->memory_bytes : DEFAULT_MEMORY_BYTES;
	if (o->cpu_milli || !row->cpu_milli)
		row->cpu_milli = o->cpu_milli ? o->cpu_milli : DEFAULT_CPU_MILLI;
	if (o->pids || !row->pids)
		row->pids = o->pids ? o->pids : DEFAULT_PIDS;
	row->name = o->name ? strdup(o->name) : NULL;
	row->metadata = json_with_pairs(inherited->metadata, o->metadata, o->metadata_count, err);
	row->environment = json_with_pairs(inherited->environment, o->environment, o->environment_count, err);
	if (!row->metadata || !row->environment || plan_egress(plan, o, inherited, err) < 0 ||
	    mounts_plan(husk, inherited->volumes, o->mounts, o->mount_count, &row->volumes, err) < 0)
		return -1;
	if ((o->name && !row->name) || !row->template_name || !row->template_digest || !row->isolation || !plan->image)
		return husk_fail_memory(err);
	return limits_check_engine(row, err);
}

/* Without the pool: adds a row, starts a supervisor, and waits for it. */
static int start_new(struct husk *husk, struct plan *plan, struct husk_error *err)
{
	char id[32];

	if (random_id("sb-", 10, id) < 0)
		return husk_fail_errno(err, "cannot make an id");
	plan->row.id = strdup(id);
	plan->row.state = CATALOG_CREATING;
	cleanup_close int lock = supervisor_lock_new(husk, id, err);
	if (lock < 0 || !plan->row.id)
		return plan->row.id ? -1 : husk_fail_memory(err);
	if (catalog_sandbox_add(husk->catalog, &plan->row, err) < 0) {
		supervisor_unname(husk, id);
		return -1;
	}
	if (plan->secrets && egress_secrets_save(husk, id, plan->secrets, err) < 0)
		return -1;
	return supervisor_start(husk, id, lock, plan->image, SUPERVISE_RUN, err);
}

/* Fills plan->row.id. If a pool entry fails, the next one or a new machine is tried. */
static int plan_run(struct husk *husk, struct plan *plan, struct husk_error *err)
{
	/* A name that is already used, or a quota, must fail before a pool entry is spent. */
	if (plan->row.name) {
		struct catalog_sandbox *other = NULL;
		if (catalog_sandbox_get(husk->catalog, plan->row.name, &other, NULL) == 0) {
			bool live = other->state != CATALOG_ENDED;
			catalog_sandbox_free(other);
			if (live)
				return husk_fail(err, HUSK_CONFLICT, "name '%s' is taken by a live sandbox",
						 plan->row.name);
		}
	}
	if (catalog_quota(husk->catalog, 1, plan->row.memory_bytes, err) < 0)
		return -1;
	for (int warm = plan->from_template ? 1 : 0; warm >= 0 && pool_size() > 0; warm--) {
		int taken = pool_take(husk, &plan->row, -1, plan->image, warm, plan->secrets, &plan->row.id, err);
		if (taken > 0)
			return 0;
	}
	return start_new(husk, plan, err);
}

static int show(struct husk *husk, const char *id, struct husk_sandbox **out, struct husk_error *err)
{
	return out ? husk_inspect(husk, id, out, err) : 0;
}

/* ---- create ---- */

/* The template with that name, or the template of the pulled image with that name. */
static int find_template(struct husk *husk, const char *name, struct catalog_template **out, struct husk_error *err)
{
	cleanup_free char *of_image = image_template(husk, name);

	return catalog_template_get(husk->catalog, of_image ? of_image : name, out, err);
}

static int plan_from_template(struct husk *husk, const struct husk_create_options *o, struct plan *plan,
			      struct husk_error *err)
{
	struct catalog_template *version = NULL;

	if (find_template(husk, o->template_name ? o->template_name : "base", &version, err) < 0)
		return -1;
	if (o->isolation && strcmp(o->isolation, "auto") != 0 && strcmp(o->isolation, version->isolation) != 0) {
		husk_fail_field(err, "isolation", "template '%s' is baked for %s; build it with --isolation %s first",
				version->name, version->isolation, o->isolation);
		catalog_template_free(version);
		return -1;
	}
	plan->from_template = true;
	plan->row.disk_bytes = o->disk_bytes ? o->disk_bytes : version->disk_bytes;
	plan->row.template_name = strdup(version->name);
	plan->row.template_digest = strdup(version->digest);
	plan->row.isolation = strdup(version->isolation);
	plan->image = bake_image(husk, version, plan->row.disk_bytes, err);
	int result = plan->image ? plan_fill(husk, plan, o, &(struct inherited){ .egress = version->egress }, err) : -1;
	catalog_template_free(version);
	return result;
}

/* Unless a TTL is given, a fork ends when its parent does. If the parent has no end, the fork has the default TTL. */
static int inherit_life(struct husk *husk, const char *parent, struct plan *plan, struct husk_error *err)
{
	struct catalog_sandbox *row = NULL;

	if (catalog_sandbox_get(husk->catalog, parent, &row, err) < 0)
		return -1;
	plan->row.expires_ms = row->persistent ? 0 : row->expires_ms;
	plan->row.hibernates = row->hibernates;
	plan->row.each_call = row->each_call;
	catalog_sandbox_free(row);
	return 0;
}

/* The machine of a row of snapshots or of sandboxes, which have these fields in common. */
#define PLAN_MACHINE(plan, from)                                                                                       \
	do {                                                                                                           \
		(plan)->row.disk_bytes = (from)->disk_bytes;                                                           \
		(plan)->row.memory_bytes = (from)->memory_bytes;                                                       \
		(plan)->row.cpu_milli = (from)->cpu_milli;                                                             \
		(plan)->row.pids = (from)->pids;                                                                       \
		(plan)->row.template_name = strdup((from)->template_name);                                             \
		(plan)->row.template_digest = strdup((from)->template_digest);                                         \
		(plan)->row.isolation = strdup((from)->isolation);                                                     \
	} while (0)

/* `parent`: for a fork, which also gets the metadata and secrets of its parent. */
static int plan_from_snapshot(struct husk *husk, const char *snapshot, const char *parent, const char *secrets,
			      const struct husk_create_options *o, struct plan *plan, struct husk_error *err)
{
	struct catalog_snapshot *row = NULL;
	int result = -1;

	if (snapshot_find(husk, snapshot, &row, err) < 0)
		return -1;
	if (parent && inherit_life(husk, parent, plan, err) < 0) {
		/* said */
	} else if (!parent && !row->ready) {
		husk_fail(err, HUSK_CONFLICT, "snapshot %s is still being taken", row->id);
	} else if (o->disk_bytes && o->disk_bytes != row->disk_bytes) {
		husk_fail_field(err, "disk",
				"disk is part of a snapshot and cannot be changed; leave it out (it is %llu bytes)",
				(unsigned long long)row->disk_bytes);
	} else {
		PLAN_MACHINE(plan, row);
		plan->row.parent = strdup(parent ? parent : row->id);
		plan->row.origin = strdup(row->id);
		plan->image = path_snapshot(&husk->paths, row->id);
		result = plan_fill(husk, plan, o,
				   &(struct inherited){ .environment = row->environment,
							.metadata = parent ? row->metadata : NULL,
							.egress = row->egress,
							.volumes = row->volumes,
							.secrets = secrets },
				   err);
	}
	catalog_snapshot_free(row);
	return result;
}

static int load_secrets(struct husk *husk, const char *id, char **out, struct husk_error *err)
{
	struct husk_error why = { 0 };

	*out = egress_secrets_load(husk, id, &why);
	return *out || why.code == HUSK_OK ? 0 : husk_fail(err, why.code, "%s", why.message);
}

/* From a checkpoint of a sandbox, "SANDBOX@POINT": a fork of that moment, with the secrets of the sandbox. */
static int plan_from_point(struct husk *husk, const char *word, const struct husk_create_options *o, struct plan *plan,
			   struct husk_error *err)
{
	const char *at = strrchr(word, '@');
	cleanup_free char *sandbox = strndup(word, (size_t)(at - word));
	cleanup_row struct catalog_sandbox *row = NULL;
	cleanup_point struct catalog_point *point = NULL;
	cleanup_wipe char *secrets = NULL;

	if (!sandbox)
		return husk_fail_memory(err);
	if (catalog_sandbox_get(husk->catalog, sandbox, &row, err) < 0)
		return -1;
	if (row->state == CATALOG_ENDED)
		return husk_fail(err, HUSK_GONE, "sandbox %s has ended, and its checkpoints with it", row->id);
	if (catalog_point_get(husk->catalog, row->id, at + 1, &point, err) < 0 ||
	    load_secrets(husk, row->id, &secrets, err) < 0)
		return -1;
	if (o->disk_bytes && o->disk_bytes != row->disk_bytes)
		return husk_fail_field(err, "disk", "disk is part of a checkpoint and cannot be changed; leave it out");
	PLAN_MACHINE(plan, row);
	plan->row.parent = strdup(row->id);
	plan->row.origin = str_format("%s@%lld", row->id, (long long)point->number);
	plan->image = path_point(&husk->paths, row->id, point->number);
	return plan_fill(husk, plan, o,
			 &(struct inherited){ .environment = row->environment,
					      .egress = row->egress,
					      .volumes = row->volumes,
					      .secrets = secrets },
			 err);
}

/* `request` is the signature of the options if they came with an idempotency key; otherwise NULL. */
static int create_new(struct husk *husk, const struct husk_create_options *o, const char *request,
		      struct husk_sandbox **out, struct husk_error *err)
{
	struct plan plan = { 0 };

	int result = !o->snapshot               ? plan_from_template(husk, o, &plan, err)
		     : strchr(o->snapshot, '@') ? plan_from_point(husk, o->snapshot, o, &plan, err)
						: plan_from_snapshot(husk, o->snapshot, NULL, NULL, o, &plan, err);
	if (result == 0 && request) {
		plan.row.idempotency_key = strdup(o->idempotency_key);
		plan.row.request = strdup(request);
		if (!plan.row.idempotency_key || !plan.row.request)
			result = husk_fail_memory(err);
	}
	if (result == 0)
		result = plan_run(husk, &plan, err);
	if (result == 0)
		result = show(husk, plan.row.id, out, err);
	plan_free(&plan);
	return result;
}

/* ---- idempotent create ---- */

/* The policy as text, and the values of its secrets; "": no policy was given. */
static char *sign_egress(const struct husk_egress *egress, struct husk_error *err)
{
	cleanup_policy struct policy *policy = NULL;
	cleanup_buf struct buf text = { 0 };

	if (egress && egress_check(egress, &policy, err) < 0)
		return NULL;
	cleanup_free char *terms = policy ? policy_text(policy) : strdup("");
	int bad = terms ? buf_append_string(&text, terms) : -1;
	for (size_t i = 0; egress && i < egress->secret_count; i++)
		bad |= buf_printf(&text, "\n%s", egress->secrets[i].value ? egress->secrets[i].value : "");
	char *out = bad ? NULL : buf_steal(&text);
	if (!out)
		husk_fail_memory(err);
	return out;
}

/* Two requests are the same if this text is the same: it holds every option in a fixed order. The text is signed, not
 * only hashed, because it holds values of the environment, and the stored result outlives them. */
static char *sign_request(struct husk *husk, const struct husk_create_options *o, struct husk_error *err)
{
	cleanup_free char *metadata = pairs_to_json(o->metadata, o->metadata_count, err);
	cleanup_free char *environment = metadata ? pairs_to_json(o->environment, o->environment_count, err) : NULL;
	cleanup_free char *egress = environment ? sign_egress(o->egress, err) : NULL;
	cleanup_buf struct buf mounts = { 0 };
	char *signature = NULL;
	int bad = buf_append_string(&mounts, "");

	if (!egress)
		return NULL;
	for (size_t i = 0; i < o->mount_count; i++)
		bad |= buf_printf(&mounts, "\n%s\n%s\n%d\n%s", o->mounts[i].volume, o->mounts[i].path,
				  o->mounts[i].read_only, o->mounts[i].subpath ? o->mounts[i].subpath : "");
	cleanup_free char *text =
		bad ? NULL
		    : str_format("create\n%s\n%s\n%s\n%s\n%lld %d %s%s %lld %llu %llu %u %u\n%s\n%s\n%s%s",
				 o->template_name ? o->template_name : "", o->snapshot ? o->snapshot : "",
				 o->name ? o->name : "", o->isolation ? o->isolation : "", (long long)o->ttl_seconds,
				 o->persistent, o->on_expiry ? o->on_expiry : "", o->checkpoints ? o->checkpoints : "",
				 (long long)o->idle_seconds, (unsigned long long)o->memory_bytes,
				 (unsigned long long)o->disk_bytes, o->cpu_milli, o->pids, metadata, environment,
				 egress, mounts.data);
	if (!text)
		husk_fail_memory(err);
	else
		husk_sign(husk, text, &signature, err);
	return signature;
}

/* 1: the sandbox of an earlier request with this key exists. 0: there was no earlier request, or it failed. */
static int find_earlier(struct husk *husk, const char *key, const char *request, struct husk_sandbox **out,
			struct husk_error *err)
{
	for (int64_t end = time_monotonic_ms() + EARLIER_MS, turn = 0;; turn++) {
		struct catalog_sandbox *row = NULL;
		int found = catalog_sandbox_by_key(husk->catalog, key, &row, err);
		if (found <= 0)
			return found;
		cleanup_free char *id = strdup(row->id);
		bool same = str_equal(row->request, request), making = row->state == CATALOG_CREATING;
		catalog_sandbox_free(row);
		if (!same)
			return husk_fail(err, HUSK_CONFLICT,
					 "idempotency key '%s' was used for another request; use a new key", key);
		if (!id)
			return husk_fail_memory(err);
		if (!making)
			return show(husk, id, out, err) < 0 ? -1 : 1;
		if (time_monotonic_ms() > end)
			return husk_fail(err, HUSK_TIMEOUT, "sandbox %s is still being created", id);
		if (turn % 100 == 99) /* the process that creates it may have been killed */
			husk_recover(husk, id);
		usleep(5000);
	}
}

static int create_once(struct husk *husk, const struct husk_create_options *o, struct husk_sandbox **out,
		       struct husk_error *err)
{
	cleanup_free char *request = sign_request(husk, o, err);
	struct husk_error why = { 0 };

	if (!request)
		return -1;
	/* CONFLICT may mean that another request with the key was faster. If that request fails, this one continues. */
	for (int attempt = 0; attempt < 3; attempt++) {
		int found = find_earlier(husk, o->idempotency_key, request, out, err);
		if (found != 0)
			return found < 0 ? -1 : 0;
		if (create_new(husk, o, request, out, &why) == 0)
			return 0;
		if (why.code != HUSK_CONFLICT)
			break;
	}
	if (err)
		*err = why;
	return -1;
}

int husk_create(struct husk *husk, const struct husk_create_options *options, struct husk_sandbox **out,
		struct husk_error *err)
{
	if (husk->remote)
		return remote_create(husk->remote, options, out, err);
	static const struct husk_create_options defaults;
	const struct husk_create_options *o = options ? options : &defaults;

	if (check_options(o, err) < 0)
		return -1;
	return o->idempotency_key ? create_once(husk, o, out, err) : create_new(husk, o, NULL, out, err);
}

/* ---- fork ---- */

struct child {
	struct husk *husk;
	const struct catalog_sandbox *parent;
	struct plan plan;
	pthread_t thread;
	bool started;
	int result;
	struct husk_error err;
};

static void *run_child(void *argument)
{
	struct child *child = argument;

	child->result = plan_run(child->husk, &child->plan, &child->err);
	return NULL;
}

static void *prepare_child(void *argument)
{
	struct child *child = argument;

	pool_add(child->husk, child->parent, false);
	return NULL;
}

static void start_children(struct child *children, size_t count, void *(*work)(void *))
{
	for (size_t i = 0; i < count; i++)
		children[i].started = pthread_create(&children[i].thread, NULL, work, &children[i]) == 0;
}

static void join_children(struct child *children, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (children[i].started)
			pthread_join(children[i].thread, NULL);
}

/* Saves the parent, and meanwhile prepares the machines that the pool lacks. Returns the lock of the snapshot. */
static int save_parent(struct husk *husk, struct child *children, size_t count, const char *sandbox,
		       char snapshot[static 32], char **parent, int64_t *effect, struct husk_error *err)
{
	struct catalog_sandbox *row = NULL;

	if (catalog_sandbox_get(husk->catalog, sandbox, &row, err) < 0)
		return -1;
	int ready = pool_size() > 0
			    ? catalog_pool_count(husk->catalog, row->template_digest, row->disk_bytes, false, NULL)
			    : (int)count;
	size_t lacking = count - MIN(count, (size_t)MAX(ready, 0));
	for (size_t i = 0; i < count; i++) {
		children[i].husk = husk;
		children[i].parent = row;
	}
	start_children(children, lacking, prepare_child);
	int lock = snapshot_take(husk, row->id, NULL, snapshot, parent, effect, err);
	join_children(children, lacking);
	catalog_sandbox_free(row);
	return lock;
}

static void kill_children(struct husk *husk, struct child *children, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (children[i].result == 0)
			husk_kill(husk, children[i].plan.row.id, NULL);
}

/* Starts all children at once. On failure, err has the first error and no child stays. */
static int run_children(struct husk *husk, struct child *children, size_t count, struct husk_error *err)
{
	int result = 0;

	start_children(children, count, run_child);
	join_children(children, count);
	for (size_t i = 0; i < count; i++) {
		if (!children[i].started)
			run_child(&children[i]);
		if (children[i].result < 0 && result == 0) {
			result = -1;
			if (err)
				*err = children[i].err;
		}
	}
	if (result < 0)
		kill_children(husk, children, count);
	return result;
}

/* Collects the results. If a child has ended meanwhile, the call fails and no child stays. */
static int collect(struct husk *husk, struct child *children, size_t count, struct husk_sandbox ***out,
		   struct husk_error *err)
{
	struct husk_sandbox **list = calloc(count + 1, sizeof(*list));

	if (!list)
		return husk_fail_memory(err);
	for (size_t i = 0; i < count; i++) {
		if (husk_inspect(husk, children[i].plan.row.id, &list[i], err) < 0) {
			husk_sandbox_list_free(list);
			return -1;
		}
	}
	*out = list;
	return 0;
}

/* Checked first, so that the parent is not paused without need. */
static int fork_quota(struct husk *husk, const char *sandbox, size_t count, const struct husk_create_options *o,
		      struct husk_error *err)
{
	struct catalog_sandbox *row = NULL;

	if (catalog_sandbox_get(husk->catalog, sandbox, &row, err) < 0)
		return -1;
	uint64_t memory = o->memory_bytes ? o->memory_bytes : row->memory_bytes;
	catalog_sandbox_free(row);
	return catalog_quota(husk->catalog, count, memory * count,
			     err); /* bounded: count by 256, memory by MEMORY_MAX */
}

int husk_fork(struct husk *husk, const char *sandbox, size_t count, const struct husk_create_options *options,
	      struct husk_sandbox ***out, struct husk_error *err)
{
	if (husk->remote)
		return remote_fork(husk->remote, sandbox, count, options, out, err);
	static const struct husk_create_options defaults;
	const struct husk_create_options *o = options ? options : &defaults;
	cleanup_free char *parent = NULL;
	char snapshot[32];

	if (count < 1 || count > 256)
		return husk_fail_field(err, "count", "count must be between 1 and 256, not %zu", count);
	if (o->name && count > 1)
		return husk_fail_field(err, "name", "name goes with a single child; leave it out or fork one");
	if (check_options(o, err) < 0 || fork_quota(husk, sandbox, count, o, err) < 0)
		return -1;
	struct child *children = calloc(count, sizeof(*children));
	if (!children)
		return husk_fail_memory(err);
	int64_t effect = 0;
	cleanup_close int noted = pool_note_fork(husk, count);
	int lock = save_parent(husk, children, count, sandbox, snapshot, &parent, &effect, err);
	cleanup_wipe char *secrets = NULL;
	int result = lock < 0 ? -1 : load_secrets(husk, parent, &secrets, err);
	for (size_t i = 0; i < count && result == 0; i++) {
		children[i].plan.row.effect = effect;
		result = plan_from_snapshot(husk, snapshot, parent, secrets, o, &children[i].plan, err);
	}
	if (result == 0)
		result = run_children(husk, children, count, err);
	if (result == 0 && out && (result = collect(husk, children, count, out, err)) < 0)
		kill_children(husk, children, count);
	if (lock >= 0) {
		(result == 0 ? moment_keep : snapshot_drop)(husk, snapshot);
		snapshot_settle(husk, snapshot, &lock);
	}
	if (result == 0) {
		cleanup_free char *detail = str_format("{\"children\":%zu}", count);
		catalog_event(husk->catalog, parent, "forked", detail, NULL);
	}
	for (size_t i = 0; i < count; i++)
		plan_free(&children[i].plan);
	free(children);
	return result;
}

/* ---- wake ---- */

enum wake { WAKE_POOLED, WAKE, WAKE_REBOOT };

/* With the lock of the sandbox. Moves its row to CREATING. After a failure, husk_recover handles the row. */
static int wake_locked(struct husk *husk, const struct catalog_sandbox *row, int lock, enum wake how,
		       struct husk_error *err)
{
	cleanup_free char *image = path_image(&husk->paths, row->id);
	cleanup_free char *id = NULL;

	if (!image)
		return husk_fail_memory(err);
	if (catalog_sandbox_move(husk->catalog, row->id, 1u << CATALOG_HIBERNATED, CATALOG_CREATING, err) < 0)
		return -1;
	int taken = how == WAKE_POOLED ? pool_take(husk, row, lock, image, false, NULL, &id, err) : 0;
	if (taken != 0)
		return taken < 0 ? -1 : 0;
	return supervisor_start(husk, row->id, lock, image, how == WAKE_REBOOT ? SUPERVISE_REBOOT : SUPERVISE_RUN, err);
}

/* 1: nothing to do, or another process is waking the sandbox. */
static int wake_once(struct husk *husk, const char *sandbox, enum wake how, struct husk_error *err)
{
	struct catalog_sandbox *row = NULL;
	int result = 1;

	if (catalog_sandbox_get(husk->catalog, sandbox, &row, err) < 0)
		return -1;
	cleanup_free char *id = strdup(row->id);
	if (row->state == CATALOG_HIBERNATED && row->expires_ms && row->expires_ms <= time_wall_ms()) {
		husk_expire(husk, row);
		result = husk_fail(err, HUSK_GONE, "sandbox %s has ended (ttl)", row->id);
	} else if (row->state == CATALOG_HIBERNATED) {
		cleanup_close int lock = supervisor_lock(husk, row->id, NULL);
		if (lock >= 0)
			result = wake_locked(husk, row, lock, how, err);
	}
	catalog_sandbox_free(row);
	if (result < 0 && id) /* hibernated again, with the rest of the failed try removed */
		husk_recover(husk, id);
	return result;
}

int husk_wake(struct husk *husk, const char *sandbox, struct husk_error *err)
{
	if (husk->remote)
		return remote_act(husk->remote, sandbox, "wake", err);
	/* If a pool entry fails, the sandbox does not fail: it gets a new machine. */
	int result = pool_size() > 0 ? wake_once(husk, sandbox, WAKE_POOLED, NULL) : -1;

	if (result < 0)
		result = wake_once(husk, sandbox, WAKE, err);
	return MIN(result, 0);
}

int sandbox_reboot(struct husk *husk, const char *sandbox, struct husk_error *err)
{
	int result = wake_once(husk, sandbox, WAKE_REBOOT, err);

	return result > 0 ? husk_fail(err, HUSK_CONFLICT, "sandbox %s is being woken by another process", sandbox)
			  : result;
}
