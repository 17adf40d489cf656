/*
 * The instance over HTTP: health, the API's document, metrics, and what works on this host. The first two are public;
 * numbers about all tenants are for the owner of the instance.
 */
#include "server/core.h"
#include "server/openapi.h"

static int handle_health(struct request *request, struct husk_error *err)
{
	return respond_json(request, 200, json_pack("{s:s, s:s}", "status", "ok", "version", HUSK_VERSION), err);
}

static int handle_openapi(struct request *request, struct husk_error *err)
{
	return respond_text(request, 200, "application/json", openapi_text, (size_t)(openapi_end - openapi_text), err);
}

static int handle_metrics(struct request *request, struct husk_error *err)
{
	cleanup_buf struct buf text = { 0 };

	if (metrics_write(request->server, &text, err) < 0)
		return -1;
	return respond_text(request, 200, "text/plain; version=0.0.4; charset=utf-8", text.data, text.size, err);
}

static int handle_doctor(struct request *request, struct husk_error *err)
{
	struct husk_check *list = NULL;
	size_t count = 0;

	if (husk_doctor(request_husk(request), &list, &count, err) < 0)
		return -1;
	json_t *checks = json_checks(list, count);
	husk_check_list_free(list, count);
	return respond_json(request, 200, checks ? json_pack("{s:o}", "checks", checks) : NULL, err);
}

const struct route instance_routes[] = {
	{ "GET", "/healthz", handle_health, ROUTE_PUBLIC },
	{ "GET", "/openapi.json", handle_openapi, ROUTE_PUBLIC },
	{ "GET", "/metrics", handle_metrics, ROUTE_ADMIN },
	{ "GET", "/v1/doctor", handle_doctor, ROUTE_ADMIN },
	{ 0 },
};
