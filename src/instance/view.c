/*
 * Converts catalog rows to the public structures of husk.h, and frees those. Every libhusk call that returns a sandbox,
 * snapshot or template uses this file. Values of the environment must never be copied, only names.
 */
#include "instance/view.h"

#include "engine/engine.h"
#include "instance/mounts.h"
#include "instance/pairs.h"
#include "net/policy.h"

/* Copies s, which may be NULL; `bad` is set if a copy failed. */
static char *copy(const char *s, bool *bad)
{
	char *out = s ? strdup(s) : NULL;

	*bad |= s && !out;
	return out;
}

/* ---- sandboxes ---- */

const char *husk_state_name(enum husk_state state)
{
	switch (state) {
	case HUSK_CREATING:
		return "creating";
	case HUSK_RUNNING:
		return "running";
	case HUSK_PAUSED:
		return "paused";
	case HUSK_HIBERNATED:
		return "hibernated";
	case HUSK_ENDED:
		return "ended";
	}
	return "unknown";
}

static enum husk_state public_state(enum catalog_state state)
{
	switch (state) {
	case CATALOG_PREPARING: /* has no owner yet: lists leave it out */
	case CATALOG_POOL:
	case CATALOG_CREATING:
		return HUSK_CREATING;
	case CATALOG_RUNNING:
		return HUSK_RUNNING;
	case CATALOG_PAUSED:
		return HUSK_PAUSED;
	case CATALOG_HIBERNATED:
		return HUSK_HIBERNATED;
	case CATALOG_ENDED:
		return HUSK_ENDED;
	}
	return HUSK_ENDED;
}

static int copy_environment_names(const char *environment, char ***out)
{
	struct husk_pair *pairs = NULL;
	size_t count = 0;

	if (json_to_pairs(environment, &pairs, &count, NULL))
		return -1;
	char **names = calloc(count + 1, sizeof *names);

	for (size_t i = 0; names && i < count; i++) {
		names[i] = (char *)pairs[i].key;
		pairs[i].key = NULL;
	}
	pairs_free(pairs, count);
	*out = names;
	return names ? 0 : -1;
}

/* The mode of the stored policy; a row from before policies existed is off. */
static char *egress_mode(const char *text)
{
	struct policy *policy = NULL;
	char *mode =
		policy_parse(text, &policy, NULL) == 0 ? strdup(policy_mode_name(policy->mode)) : strdup("unknown");

	policy_free(policy);
	return mode;
}

struct husk_sandbox *sandbox_from_row(const struct catalog_sandbox *row)
{
	const struct engine *engine = row->isolation ? engine_find(row->isolation) : NULL;
	struct husk_sandbox *out = calloc(1, sizeof *out);
	bool bad = false;

	if (!out)
		return NULL;
	*out = (struct husk_sandbox){
		.id = copy(row->id, &bad),
		.name = copy(row->name, &bad),
		.tenant = copy(row->tenant, &bad),
		.template_name = copy(row->template_name, &bad),
		.parent = copy(row->parent, &bad),
		.origin = copy(row->origin, &bad),
		.isolation = copy(row->isolation, &bad),
		.boundary = copy(engine ? engine->boundary : "unknown to this build", &bad),
		.state = public_state(row->state),
		.end_reason = copy(row->end_reason, &bad),
		.created_ms = row->created_ms,
		.expires_ms = row->persistent ? 0 : row->expires_ms,
		.ended_ms = row->ended_ms,
		.idle_seconds = row->idle_seconds,
		.persistent = row->persistent,
		.on_expiry = row->hibernates ? "hibernate" : "kill",
		.checkpoints = row->each_call ? "each-call" : "off",
		.memory_bytes = row->memory_bytes,
		.disk_bytes = row->disk_bytes,
		.cpu_milli = row->cpu_milli,
		.pids = row->pids,
	};
	out->egress_mode = egress_mode(row->egress);
	if (bad || !out->egress_mode || json_to_pairs(row->metadata, &out->metadata, &out->metadata_count, NULL) ||
	    copy_environment_names(row->environment, &out->environment_names) ||
	    mounts_view(row->volumes, &out->mounts, &out->mount_count)) {
		husk_sandbox_free(out);
		return NULL;
	}
	return out;
}

void husk_sandbox_free(struct husk_sandbox *sandbox)
{
	if (!sandbox)
		return;
	free(sandbox->id);
	free(sandbox->name);
	free(sandbox->tenant);
	free(sandbox->template_name);
	free(sandbox->parent);
	free(sandbox->origin);
	free(sandbox->isolation);
	free(sandbox->boundary);
	free(sandbox->end_reason);
	pairs_free(sandbox->metadata, sandbox->metadata_count);
	strv_free(sandbox->environment_names);
	free(sandbox->egress_mode);
	mounts_view_free(sandbox->mounts, sandbox->mount_count);
	free(sandbox);
}

void husk_sandbox_list_free(struct husk_sandbox **list)
{
	for (size_t i = 0; list && list[i]; i++)
		husk_sandbox_free(list[i]);
	free(list);
}

/* ---- snapshots ---- */

struct husk_snapshot *snapshot_from_row(const struct catalog_snapshot *row)
{
	struct husk_snapshot *out = calloc(1, sizeof *out);
	bool bad = false;

	if (!out)
		return NULL;
	*out = (struct husk_snapshot){
		.id = copy(row->id, &bad),
		.name = copy(row->name, &bad),
		.tenant = copy(row->tenant, &bad),
		.sandbox = copy(row->sandbox, &bad),
		.template_name = copy(row->template_name, &bad),
		.isolation = copy(row->isolation, &bad),
		.created_ms = row->created_ms,
		.bytes = row->bytes,
		.memory_bytes = row->memory_bytes,
		.disk_bytes = row->disk_bytes,
		.cpu_milli = row->cpu_milli,
		.shared = row->shared,
	};
	if (bad || json_to_pairs(row->metadata, &out->metadata, &out->metadata_count, NULL)) {
		husk_snapshot_free(out);
		return NULL;
	}
	return out;
}

void husk_snapshot_free(struct husk_snapshot *snapshot)
{
	if (!snapshot)
		return;
	pairs_free(snapshot->metadata, snapshot->metadata_count);
	free(snapshot->id);
	free(snapshot->name);
	strv_free(snapshot->tags);
	free(snapshot->tenant);
	free(snapshot->sandbox);
	free(snapshot->template_name);
	free(snapshot->isolation);
	free(snapshot);
}

void husk_snapshot_list_free(struct husk_snapshot **list)
{
	for (size_t i = 0; list && list[i]; i++)
		husk_snapshot_free(list[i]);
	free(list);
}

/* ---- templates ---- */

struct husk_template *template_from_row(const struct catalog_template *row)
{
	struct husk_template *out = calloc(1, sizeof *out);
	bool bad = false;

	if (!out)
		return NULL;
	*out = (struct husk_template){
		.name = copy(row->name, &bad),
		.digest = copy(row->digest, &bad),
		.description = copy(row->description, &bad),
		.tenant = copy(row->tenant, &bad),
		.created_ms = row->created_ms,
		.bytes = row->bytes,
		.disk_bytes = row->disk_bytes,
		.isolation = copy(row->isolation, &bad),
	};
	if (bad) {
		husk_template_free(out);
		return NULL;
	}
	return out;
}

void husk_template_free(struct husk_template *value)
{
	if (!value)
		return;
	free(value->name);
	free(value->digest);
	free(value->description);
	free(value->tenant);
	free(value->isolation);
	free(value);
}

void husk_template_list_free(struct husk_template **list)
{
	for (size_t i = 0; list && list[i]; i++)
		husk_template_free(list[i]);
	free(list);
}

/* ---- the instance ---- */

void husk_event_list_free(struct husk_event *list, size_t count)
{
	for (size_t i = 0; list && i < count; i++) {
		free(list[i].sandbox);
		free(list[i].kind);
		free(list[i].detail);
	}
	free(list);
}

void husk_check_list_free(struct husk_check *list, size_t count)
{
	for (size_t i = 0; list && i < count; i++) {
		free(list[i].name);
		free(list[i].text);
	}
	free(list);
}
