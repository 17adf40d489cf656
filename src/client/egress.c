/*
 * The egress calls of libhusk: what a sandbox may reach, and what it tried to reach. A running sandbox's supervisor is
 * asked. A hibernated sandbox is changed in the catalog, under its lock, without waking it. For an ended sandbox, the
 * record of its supervisor is read. The value of a secret must never be returned.
 */

#include "base/jansson.h"
#include "instance/contact.h"
#include "instance/egress_policy.h"
#include "instance/recover.h"
#include "wire/wire.h"

#define RECORD_MAX (4u << 20)

/* ---- the policy ---- */

int husk_egress_get(struct husk *husk, const char *sandbox, struct husk_egress **out, struct husk_error *err)
{
	if (husk->remote)
		return remote_egress_get(husk->remote, sandbox, out, err);
	cleanup_row struct catalog_sandbox *row = NULL;

	if (catalog_sandbox_get(husk->catalog, sandbox, &row, err) < 0)
		return -1;
	*out = egress_from_text(row->egress, err);
	return *out ? 0 : -1;
}

struct change {
	const char *policy, *secrets;
};

static int set_asleep(struct husk *husk, const struct catalog_sandbox *row, void *data, struct husk_error *err)
{
	const struct change *change = data;

	if (egress_secrets_save(husk, row->id, change->secrets, err) < 0)
		return -1;
	return catalog_sandbox_set_egress(husk->catalog, row->id, change->policy, err);
}

static int set_awake(struct husk *husk, const char *id, const char *policy, const char *secrets, struct husk_error *err)
{
	cleanup_buf struct buf arguments = { 0 };

	if (wire_put_string(&arguments, TAG_JSON, policy) < 0 || wire_put_string(&arguments, TAG_SECRETS, secrets) < 0)
		return husk_fail(err, HUSK_LIMIT,
				 "the rules and secrets are too many for one call; keep them under 200 KiB");
	int result = husk_call(husk, id, METHOD_SANDBOX_EGRESS, &arguments, NULL, err);
	explicit_bzero(arguments.data, arguments.size);
	/* The policy was checked here, so its supervisor is of an older version. */
	if (result < 0 && err && err->code == HUSK_INVALID && strstr(err->message, "has no field"))
		return husk_fail(err, HUSK_UNAVAILABLE,
				 "the supervisor of %s is of an older husk, which does not support this policy; type "
				 "husk hibernate %s: the next call starts a new one, then try again",
				 id, id);
	return result;
}

int husk_egress_set(struct husk *husk, const char *sandbox, const struct husk_egress *egress, struct husk_error *err)
{
	if (husk->remote)
		return remote_egress_set(husk->remote, sandbox, egress, err);
	cleanup_row struct catalog_sandbox *row = NULL;
	cleanup_policy struct policy *policy = NULL;
	cleanup_wipe char *old = NULL, *secrets = NULL;
	struct husk_error why = { 0 };

	if (egress_check(egress, &policy, err) < 0 || egress_default_trust(policy, err) < 0 ||
	    catalog_sandbox_get(husk->catalog, sandbox, &row, err) < 0)
		return -1;
	if (row->state == CATALOG_ENDED)
		return husk_fail(err, HUSK_GONE, "sandbox %s has ended (%s)", row->id, row->end_reason);
	old = egress_secrets_load(husk, row->id, &why);
	if (!old && why.code != HUSK_OK)
		return husk_fail(err, why.code, "%s", why.message);
	if (egress_secrets(policy, egress, old, &secrets, err) < 0)
		return -1;
	cleanup_free char *text = policy_text(policy);
	if (!text)
		return husk_fail_memory(err);
	if (row->state == CATALOG_HIBERNATED)
		return recover_asleep(husk, row->id, set_asleep, &(struct change){ text, secrets }, err);
	return set_awake(husk, row->id, text, secrets, err);
}

/* ---- what it did ---- */

static int view_awake(struct husk *husk, const char *id, size_t limit, json_t **out, struct husk_error *err)
{
	cleanup_buf struct buf arguments = { 0 }, results = { 0 };

	if (wire_put_int(&arguments, TAG_COUNT, (int64_t)limit) < 0)
		return husk_fail_memory(err);
	if (husk_call(husk, id, METHOD_SANDBOX_EGRESS_VIEW, &arguments, &results, err) < 0)
		return -1;
	cleanup_free char *text = wire_get_string(results.data, results.size, TAG_JSON);
	*out = text ? json_loads(text, 0, NULL) : NULL;
	return *out ? 0 : husk_fail(err, HUSK_PROTOCOL, "sandbox %s gave no view of its network", id);
}

/* The record of a sandbox without a supervisor; empty if it never had a leash. */
static int view_record(struct husk *husk, const char *id, json_t **out, struct husk_error *err)
{
	cleanup_free char *path = egress_record_path(husk, id);
	cleanup_free char *text = path ? file_read(path, RECORD_MAX, NULL, NULL) : NULL;

	if (!path)
		return husk_fail_memory(err);
	*out = text ? json_loads(text, 0, NULL) : json_object();
	return *out ? 0 : husk_fail(err, HUSK_INTERNAL, "the network record of %s cannot be read", id);
}

/* {"traffic":{…},"log":[…]} */
static int view(struct husk *husk, const char *sandbox, size_t limit, json_t **out, struct husk_error *err)
{
	cleanup_row struct catalog_sandbox *row = NULL;

	if (catalog_sandbox_get(husk->catalog, sandbox, &row, err) < 0)
		return -1;
	if (row->state == CATALOG_ENDED || row->state == CATALOG_HIBERNATED)
		return view_record(husk, row->id, out, err);
	return view_awake(husk, row->id, limit, out, err);
}

static char *text_of(json_t *object, const char *key)
{
	const char *text = json_string_value(json_object_get(object, key));

	return strdup(text ? text : "");
}

static uint64_t number_of(json_t *object, const char *key)
{
	return (uint64_t)json_integer_value(json_object_get(object, key));
}

void husk_egress_event_list_free(struct husk_egress_event *list, size_t count)
{
	for (size_t i = 0; list && i < count; i++) {
		free(list[i].verdict);
		free(list[i].kind);
		free(list[i].host);
		free(list[i].reason);
		free(list[i].rule);
	}
	free(list);
}

int husk_egress_log(struct husk *husk, const char *sandbox, size_t limit, struct husk_egress_event **out, size_t *count,
		    struct husk_error *err)
{
	if (husk->remote)
		return remote_egress_log(husk->remote, sandbox, limit, out, count, err);
	cleanup_json json_t *root = NULL;

	if (view(husk, sandbox, limit, &root, err) < 0)
		return -1;
	json_t *log = json_object_get(root, "log");
	size_t size = json_array_size(log), first = limit && size > limit ? size - limit : 0;
	struct husk_egress_event *list = calloc(size - first + 1, sizeof(*list));
	bool bad = false;

	if (!list)
		return husk_fail_memory(err);
	for (size_t i = first; i < size && !bad; i++) {
		json_t *entry = json_array_get(log, i);
		struct husk_egress_event *event = &list[i - first];

		*event = (struct husk_egress_event){ .at_ms = (int64_t)number_of(entry, "at_ms"),
						     .verdict = text_of(entry, "verdict"),
						     .kind = text_of(entry, "kind"),
						     .host = text_of(entry, "host"),
						     .port = (uint16_t)number_of(entry, "port"),
						     .reason = text_of(entry, "reason"),
						     .rule = text_of(entry, "rule"),
						     .count = number_of(entry, "count") };
		bad = !event->verdict || !event->kind || !event->host || !event->reason || !event->rule;
	}
	if (bad) {
		husk_egress_event_list_free(list, size - first);
		return husk_fail_memory(err);
	}
	*out = list;
	*count = size - first;
	return 0;
}

void husk_egress_traffic_list_free(struct husk_egress_traffic *list, size_t count)
{
	for (size_t i = 0; list && i < count; i++)
		free(list[i].host);
	free(list);
}

int husk_egress_traffic(struct husk *husk, const char *sandbox, struct husk_egress_traffic **out, size_t *count,
			struct husk_error *err)
{
	if (husk->remote)
		return remote_egress_traffic(husk->remote, sandbox, out, count, err);
	cleanup_json json_t *root = NULL;

	if (view(husk, sandbox, 1, &root, err) < 0)
		return -1;
	json_t *destinations = json_object_get(json_object_get(root, "traffic"), "destinations");
	size_t size = json_array_size(destinations);
	struct husk_egress_traffic *list = calloc(size + 1, sizeof(*list));
	bool bad = false;

	if (!list)
		return husk_fail_memory(err);
	for (size_t i = 0; i < size && !bad; i++) {
		json_t *entry = json_array_get(destinations, i);

		list[i] = (struct husk_egress_traffic){ .host = text_of(entry, "host"),
							.port = (uint16_t)number_of(entry, "port"),
							.sent = number_of(entry, "sent"),
							.received = number_of(entry, "received"),
							.connections = number_of(entry, "connections"),
							.denied = number_of(entry, "denied") };
		bad = !list[i].host;
	}
	if (bad) {
		husk_egress_traffic_list_free(list, size);
		return husk_fail_memory(err);
	}
	*out = list;
	*count = size;
	return 0;
}
