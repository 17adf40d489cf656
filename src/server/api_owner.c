/*
 * Calls for the owner of the instance: tokens, cleaning up, leaks. A token's secret is in the answer to its create, and
 * nowhere else.
 */
#include "server/server.h"

#define TTL_MAX (INT64_C(3650) * 86400)

/* ---- tokens ---- */

static int handle_token_create(struct request *request, struct husk_error *err)
{
	cleanup_token struct husk_token *token = NULL;
	cleanup_wipe char *secret = NULL;
	struct fields fields;

	if (fields_begin(&fields, request_json(request, err)) < 0)
		return -1;
	struct husk_token_options options = {
		.name = fields_string(&fields, "name"),
		.tenant = fields_string(&fields, "tenant"),
		.admin = fields_bool(&fields, "admin", false),
		.e2b = fields_bool(&fields, "e2b", false),
		.ttl_seconds = fields_int(&fields, "ttl_seconds", 0, 1, TTL_MAX),
		.max_sandboxes = (uint32_t)fields_int(&fields, "max_sandboxes", 0, 1, UINT32_MAX),
		.max_memory_bytes = fields_size(&fields, "max_memory"),
		.max_snapshot_bytes = fields_size(&fields, "max_snapshots"),
	};
	if (fields_done(&fields, err) < 0 ||
	    husk_token_create(request_husk(request), &options, &secret, &token, err) < 0)
		return -1;
	json_t *document = json_token(token);
	if (document)
		json_object_set_new(document, "token", json_string(secret));
	return respond_json(request, 201, document, err);
}

static int handle_token_list(struct request *request, struct husk_error *err)
{
	cleanup_tokens struct husk_token **list = NULL;

	if (husk_token_list(request_husk(request), &list, err) < 0)
		return -1;
	return respond_json(request, 200, json_pack("{s:o}", "tokens", json_tokens(list)), err);
}

static int handle_token_revoke(struct request *request, struct husk_error *err)
{
	if (husk_token_revoke(request_husk(request), request_path(request, "id"), err) < 0)
		return -1;
	return respond_empty(request, 204, err);
}

/* ---- clearing up ---- */

static int handle_leaks(struct request *request, struct husk_error *err)
{
	struct husk_check *list = NULL;
	size_t count = 0;

	if (husk_leaks(request_husk(request), &list, &count, err) < 0)
		return -1;
	json_t *checks = json_checks(list, count);
	husk_check_list_free(list, count);
	return respond_json(request, 200, checks ? json_pack("{s:o}", "checks", checks) : NULL, err);
}

static int handle_gc(struct request *request, struct husk_error *err)
{
	struct husk_gc_result result = { 0 };
	struct fields fields;

	if (fields_begin(&fields, request_json(request, err)) < 0)
		return -1;
	bool all = fields_bool(&fields, "all", false);
	if (fields_done(&fields, err) < 0 || husk_gc(request_husk(request), all, &result, err) < 0)
		return -1;
	return respond_json(request, 200,
			    json_pack("{s:I, s:I, s:I, s:I, s:I}", "sandboxes", (json_int_t)result.sandboxes,
				      "snapshots", (json_int_t)result.snapshots, "templates",
				      (json_int_t)result.templates, "pool", (json_int_t)result.pool, "bytes",
				      (json_int_t)result.bytes),
			    err);
}

static int handle_drain(struct request *request, struct husk_error *err)
{
	size_t count = husk_pool_drain(request_husk(request));

	return respond_json(request, 200, json_pack("{s:I}", "drained", (json_int_t)count), err);
}

const struct route owner_routes[] = {
	{ "POST", "/v1/tokens", handle_token_create, ROUTE_ADMIN },
	{ "GET", "/v1/tokens", handle_token_list, ROUTE_ADMIN },
	{ "DELETE", "/v1/tokens/{id}", handle_token_revoke, ROUTE_ADMIN },
	{ "GET", "/v1/leaks", handle_leaks, ROUTE_ADMIN },
	{ "POST", "/v1/gc", handle_gc, ROUTE_ADMIN },
	{ "POST", "/v1/pool/drain", handle_drain, ROUTE_ADMIN },
	{ 0 },
};
