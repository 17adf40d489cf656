/*
 * E2B's network options as Husk's egress policy, in this one place. E2B's sandboxes reach the internet unless they are told
 * not to, and so do those its clients make here; private and local addresses stay closed unless a rule names them. What the
 * policy cannot say (single ranges denied, rewritten requests, proxies) is refused by name.
 */
#include "server/core.h"
#include "server/e2b.h"

#define ALL_IPV4 "0.0.0.0/0"
#define ALL_IPV6 "::/0"

void e2b_network_free(struct e2b_network *network)
{
	free(network->allow);
}

/* True when everything is denied; a single range is more than the policy can say. */
static int read_denied(struct request *request, const char **denied, bool *all, struct husk_error *err)
{
	for (size_t i = 0; denied && denied[i]; i++) {
		if (str_equal(denied[i], ALL_IPV4) || str_equal(denied[i], ALL_IPV6))
			*all = true;
		else
			return e2b_unsupported(request, "a range in denyOut other than all traffic (0.0.0.0/0)", err);
	}
	return 0;
}

int e2b_network_read(struct request *request, json_t *document, bool internet, struct e2b_network *out,
		     struct husk_error *err)
{
	cleanup_json json_t *none = json_is_object(document) ? NULL : json_object();
	struct fields fields;

	*out = (struct e2b_network){ 0 };
	fields_begin(&fields, none ? none : document);
	out->allow = fields_strings(&fields, "allowOut");
	cleanup_free const char **denied = fields_strings(&fields, "denyOut");
	out->closed = !fields_bool(&fields, "allowPublicTraffic", true);
	bool all = !fields_bool(&fields, "allow_internet_access", internet);
	if (e2b_fields_done(&fields, err) < 0 || e2b_refuse_rest(request, &fields, "the network option", err) < 0 ||
	    read_denied(request, denied, &all, err) < 0)
		return -1;
	while (out->allow && out->allow[out->egress.allow_count])
		out->egress.allow_count++;
	out->egress.allow = out->allow;
	out->egress.mode = !all ? "open" : out->egress.allow_count ? "allow" : "off";
	return 0;
}

json_t *e2b_network_document(struct request *request, const char *id, bool closed)
{
	struct husk_egress *egress = NULL;
	json_t *document = json_pack("{s:b}", "allowPublicTraffic", !closed);

	if (!document || husk_egress_get(request_husk(request), id, &egress, NULL) < 0)
		return document;
	json_t *allowed = json_array();
	for (size_t i = 0; i < egress->allow_count; i++)
		json_array_append_new(allowed, json_text0(egress->allow[i]));
	json_object_set_new(document, "allowOut", allowed);
	json_object_set_new(document, "denyOut",
			    str_equal(egress->mode, "open") ? json_array() : json_pack("[s]", ALL_IPV4));
	husk_egress_free(egress);
	return document;
}

/* PUT: replaces the policy; what is left out is as for a new sandbox. */
int e2b_network_update(struct request *request, struct husk_error *err)
{
	cleanup(e2b_network_free) struct e2b_network network = { 0 };
	json_t *body = request_json(request, err);

	if (!body || e2b_network_read(request, body, true, &network, err) < 0)
		return -1;
	if (network.closed)
		return e2b_unsupported(request, "a change of allowPublicTraffic", err);
	if (husk_egress_set(request_husk(request), request_path(request, "id"), &network.egress, err) < 0)
		return -1;
	return respond_empty(request, 204, err);
}
