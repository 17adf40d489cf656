/*
 * The JSON form of egress policies, events and traffic. Names come from the guest. These structures contain no secret
 * values, so a document contains none either.
 */
#include "json/json.h"

static json_t *texts_json(const char *const *list, size_t count)
{
	json_t *array = json_array();

	for (size_t i = 0; array && i < count; i++)
		json_array_append_new(array, json_text0(list[i]));
	return array;
}

json_t *json_egress(const struct husk_egress *egress)
{
	json_t *secrets = json_array();

	for (size_t i = 0; secrets && i < egress->secret_count; i++)
		json_array_append_new(
			secrets, json_pack("{s:o, s:o, s:s*}", "name", json_text0(egress->secrets[i].name), "hosts",
					   texts_json(egress->secrets[i].hosts, egress->secrets[i].host_count),
					   "header", egress->secrets[i].header));
	return json_pack("{s:s, s:o, s:o, s:o, s:o, s:{s:I, s:I, s:I}, s:s*}", "mode", egress->mode, "allow",
			 texts_json(egress->allow, egress->allow_count), "deny",
			 texts_json(egress->deny, egress->deny_count), "secrets", secrets, "hold",
			 texts_json(egress->hold, egress->hold_count), "limits", "bytes",
			 (json_int_t)egress->limit_bytes, "rate", (json_int_t)egress->limit_rate, "connections",
			 (json_int_t)egress->limit_connections, "trust", egress->trust);
}

json_t *json_egress_traffic(const struct husk_egress_traffic *list, size_t count)
{
	json_t *array = json_array();

	for (size_t i = 0; array && i < count; i++)
		json_array_append_new(array,
				      json_pack("{s:o, s:i, s:I, s:I, s:I, s:I}", "host", json_text0(list[i].host),
						"port", list[i].port, "sent", (json_int_t)list[i].sent, "received",
						(json_int_t)list[i].received, "connections",
						(json_int_t)list[i].connections, "denied", (json_int_t)list[i].denied));
	return array;
}

json_t *json_egress_event(const struct husk_egress_event *event)
{
	return json_pack("{s:o, s:s, s:s, s:o, s:i, s:o, s:o, s:I}", "at", json_time(event->at_ms), "verdict",
			 event->verdict, "kind", event->kind, "host", json_text0(event->host), "port", event->port,
			 "reason", json_text0(event->reason), "rule", json_text0(event->rule), "count",
			 (json_int_t)event->count);
}

/* ---- connections denied to a failed program ---- */

#define LOOK_BACK 100u
#define DENIED_MAX 20u
/* The leash reports equal verdicts once in this interval: a command that tries again at once is denied without a new
 * event. */
#define ALIKE_MS 10000

/* Messages that programs write to stderr without a network: no connection is tried then, so nothing is logged. */
static const char *const no_network[] = {
	"Could not resolve host",      "Temporary failure in name resolution",
	"Temporary failure resolving", "Network is unreachable",
	"getaddrinfo EAI_AGAIN",       "getaddrinfo ENOTFOUND",
	"Name or service not known",   "unable to resolve host address",
};

static bool told_before(const struct husk_egress_event *list, size_t index, int64_t since_ms)
{
	for (size_t i = 0; i < index; i++)
		if (list[i].at_ms >= since_ms && str_equal(list[i].verdict, "denied") &&
		    str_equal(list[i].reason, list[index].reason) && str_equal(list[i].rule, list[index].rule))
			return true;
	return false;
}

static bool looks_offline(const char *errors, size_t size)
{
	for (size_t i = 0; errors && i < ARRAY_SIZE(no_network); i++)
		if (memmem(errors, size, no_network[i], strlen(no_network[i])))
			return true;
	return false;
}

/* Takes ownership of the event and adds the readable line. */
static int add_denied(json_t *array, json_t *event, const char *text)
{
	if (!event || json_object_set_new(event, "text", json_text0(text)) < 0) {
		json_decref(event);
		return -1;
	}
	return json_array_append_new(array, event);
}

static int add_logged(json_t *array, const struct husk_egress_event *event)
{
	const char *reason = event->reason ? event->reason : "", *rule = event->rule ? event->rule : "";
	cleanup_free char *text = str_format("blocked: %s%s%s", reason, *rule ? "; it requires --allow " : "", rule);

	return text ? add_denied(array, json_egress_event(event), text) : -1;
}

static int add_denials(json_t *array, const struct husk_egress_event *list, size_t count, int64_t since_ms)
{
	for (size_t i = 0; i < count && json_array_size(array) < DENIED_MAX; i++)
		if (list[i].at_ms >= since_ms && str_equal(list[i].verdict, "denied") &&
		    !told_before(list, i, since_ms) && add_logged(array, &list[i]) < 0)
			return -1;
	return 0;
}

/* A sandbox without a network has no log: the program's stderr is the only source. */
static int add_offline(json_t *array, struct husk *husk, const char *sandbox)
{
	struct husk_sandbox *seen = NULL;

	if (husk_inspect(husk, sandbox, &seen, NULL) < 0)
		return 0;
	bool off = str_equal(seen->egress_mode, "off");
	husk_sandbox_free(seen);
	const struct husk_egress_event event = { .at_ms = time_wall_ms(),
						 .verdict = "denied",
						 .kind = "network",
						 .host = "",
						 .reason = "this sandbox has no network",
						 .rule = "",
						 .count = 1 };
	return off ? add_denied(array, json_egress_event(&event),
				"blocked: this sandbox has no network; it requires --allow HOST, or --egress open")
		   : 0;
}

json_t *json_denied(struct husk *husk, const char *sandbox, int64_t since_ms, const char *errors, size_t size)
{
	cleanup_json json_t *array = json_array();
	struct husk_egress_event *list = NULL;
	size_t count = 0;
	int bad = array ? 0 : -1;

	/* The log is only an aid for the reader: if the sandbox is gone, it is left out. */
	if (husk_egress_log(husk, sandbox, LOOK_BACK, &list, &count, NULL) < 0)
		return bad ? NULL : steal_pointer(array);
	bad = bad || add_denials(array, list, count, since_ms);
	if (!bad && !json_array_size(array))
		bad = add_denials(array, list, count, since_ms - ALIKE_MS);
	husk_egress_event_list_free(list, count);
	if (!bad && !json_array_size(array) && looks_offline(errors, size))
		bad = add_offline(array, husk, sandbox);
	return bad ? NULL : steal_pointer(array);
}
