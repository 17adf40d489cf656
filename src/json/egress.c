/*
 * The JSON shapes of what a sandbox may reach and what it tried. Names come from the guest; values of secrets are not in
 * these structures, and so never in a document.
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
	return json_pack("{s:s, s:o, s:o, s:o, s:{s:I, s:I, s:I}}", "mode", egress->mode, "allow",
			 texts_json(egress->allow, egress->allow_count), "deny",
			 texts_json(egress->deny, egress->deny_count), "secrets", secrets, "limits", "bytes",
			 (json_int_t)egress->limit_bytes, "rate", (json_int_t)egress->limit_rate, "connections",
			 (json_int_t)egress->limit_connections);
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
