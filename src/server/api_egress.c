/*
 * Egress over HTTP: the `egress` of a create or fork, the policy of an existing sandbox, and the log of what it tried to
 * reach. Values of secrets go to libhusk and are never shown, kept or logged here.
 */
#include "server/api_egress.h"

#define LOG_MAX 1000

void egress_free(struct egress_request *egress)
{
	for (size_t i = 0; i < egress->count; i++)
		free((void *)egress->secrets[i].hosts);
	free(egress->secrets);
	free((void *)egress->allow);
	free((void *)egress->deny);
	free((void *)egress->hold);
}

static size_t length_of(const char *const *list)
{
	size_t count = 0;

	while (list && list[count])
		count++;
	return count;
}

static int parse_secret(json_t *object, struct husk_secret *out, struct husk_error *err)
{
	struct fields fields;

	if (!json_is_object(object))
		return husk_fail_field(err, "egress.secrets",
				       "a secret is not an object; use {\"name\":…, \"value\":…, \"hosts\":[…]}");
	fields_begin(&fields, object);
	out->name = fields_string(&fields, "name");
	out->value = fields_string(&fields, "value");
	out->header = fields_string(&fields, "header");
	const char **hosts = fields_strings(&fields, "hosts");
	out->hosts = hosts;
	out->host_count = length_of(hosts);
	if (fields_done(&fields, err) < 0)
		return -1;
	return out->name ? 0 : husk_fail_field(err, "egress.secrets", "a secret has no name");
}

static int parse_secrets(json_t *array, struct egress_request *out, struct husk_error *err)
{
	size_t size = json_array_size(array);

	if (array && !json_is_array(array))
		return husk_fail_field(err, "egress.secrets", "secrets is not an array");
	out->secrets = calloc(size + 1, sizeof(*out->secrets));
	if (!out->secrets)
		return husk_fail_memory(err);
	for (; out->count < size; out->count++)
		if (parse_secret(json_array_get(array, out->count), &out->secrets[out->count], err) < 0) {
			out->count++; /* its content is freed with the rest */
			return -1;
		}
	return 0;
}

static int parse_limits(json_t *object, struct husk_egress *out, struct husk_error *err)
{
	struct fields fields;

	if (!object)
		return 0;
	if (!json_is_object(object))
		return husk_fail_field(err, "egress.limits", "limits is not an object");
	fields_begin(&fields, object);
	out->limit_bytes = fields_size(&fields, "bytes");
	out->limit_rate = fields_size(&fields, "rate");
	out->limit_connections = (uint32_t)fields_int(&fields, "connections", 0, 0, 4096);
	return fields_done(&fields, err);
}

int egress_parse(json_t *document, struct egress_request *out, struct husk_error *err)
{
	struct fields fields;

	*out = (struct egress_request){ 0 };
	if (json_is_string(document)) {
		out->egress.mode = json_string_value(document);
		return 0;
	}
	if (!json_is_object(document))
		return husk_fail_field(err, "egress", "egress is neither a mode (\"off\", \"open\") nor an object");
	fields_begin(&fields, document);
	out->egress.mode = fields_string(&fields, "mode");
	out->egress.allow = out->allow = fields_strings(&fields, "allow");
	out->egress.allow_count = length_of(out->allow);
	out->egress.deny = out->deny = fields_strings(&fields, "deny");
	out->egress.deny_count = length_of(out->deny);
	out->egress.hold = out->hold = fields_strings(&fields, "hold");
	out->egress.hold_count = length_of(out->hold);
	out->egress.trust = fields_string(&fields, "trust");
	json_t *secrets = fields_any(&fields, "secrets"), *limits = fields_any(&fields, "limits");
	if (fields_done(&fields, err) < 0 || parse_secrets(secrets, out, err) < 0 ||
	    parse_limits(limits, &out->egress, err) < 0)
		return -1;
	out->egress.secrets = out->secrets;
	out->egress.secret_count = out->count;
	return 0;
}

/* ---- the policy of an existing sandbox ---- */

static int respond_policy(struct request *request, struct husk_error *err)
{
	const char *id = request_path(request, "id");
	struct husk_egress *egress = NULL;
	struct husk_egress_traffic *traffic = NULL;
	size_t count = 0;
	int result = husk_egress_get(request_husk(request), id, &egress, err);

	if (result == 0)
		result = husk_egress_traffic(request_husk(request), id, &traffic, &count, err);
	if (result == 0) {
		json_t *document = json_egress(egress);
		if (document)
			json_object_set_new(document, "traffic", json_egress_traffic(traffic, count));
		result = respond_json(request, 200, document, err);
	}
	husk_egress_free(egress);
	husk_egress_traffic_list_free(traffic, count);
	return result;
}

static int handle_get(struct request *request, struct husk_error *err)
{
	return respond_policy(request, err);
}

static int handle_put(struct request *request, struct husk_error *err)
{
	cleanup_egress struct egress_request egress = { 0 };
	json_t *body = request_json(request, err);

	if (!body || egress_parse(body, &egress, err) < 0 ||
	    husk_egress_set(request_husk(request), request_path(request, "id"), &egress.egress, err) < 0)
		return -1;
	return respond_policy(request, err);
}

static int handle_log(struct request *request, struct husk_error *err)
{
	static const char *const known[] = { "limit", NULL };
	cleanup_json json_t *array = json_array();
	struct husk_egress_event *list = NULL;
	size_t count = 0;
	int64_t limit;

	if (request_query_known(request, known, err) < 0 ||
	    request_query_int(request, "limit", 0, 1, LOG_MAX, &limit, err) < 0 ||
	    husk_egress_log(request_husk(request), request_path(request, "id"), (size_t)limit, &list, &count, err) < 0)
		return -1;
	int bad = array ? 0 : -1;
	for (size_t i = 0; i < count && !bad; i++)
		bad = json_array_append_new(array, json_egress_event(&list[i]));
	husk_egress_event_list_free(list, count);
	return respond_json(request, 200, bad ? NULL : json_pack("{s:O}", "events", array), err);
}

const struct route egress_routes[] = {
	{ "GET", "/v1/sandboxes/{id}/egress", handle_get, 0 },
	{ "PUT", "/v1/sandboxes/{id}/egress", handle_put, 0 },
	{ "GET", "/v1/sandboxes/{id}/egress/log", handle_log, 0 },
	{ 0 },
};
