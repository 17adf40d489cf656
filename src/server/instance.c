/*
 * The instance itself over HTTP: is it there, what does it do, how is it used, what works on this host. The first and
 * the third are public; figures about everyone are for the instance's owner.
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
	static const char *const results[] = {
		[HUSK_CHECK_OK] = "ok", [HUSK_CHECK_WARN] = "warn", [HUSK_CHECK_FAIL] = "fail"
	};
	cleanup_json json_t *array = json_array();
	struct husk_check *list = NULL;
	size_t count = 0;
	int result = array ? 0 : -1;

	if (husk_doctor(request_husk(request), &list, &count, err) < 0)
		return -1;
	for (size_t i = 0; i < count && result == 0; i++)
		result = json_array_append_new(array,
					       json_pack("{s:o, s:s, s:o}", "name", json_text0(list[i].name), "result",
							 results[list[i].result], "text", json_text0(list[i].text)));
	husk_check_list_free(list, count);
	return respond_json(request, 200, result == 0 ? json_pack("{s:O}", "checks", array) : NULL, err);
}

const struct route instance_routes[] = {
	{ "GET", "/healthz", handle_health, ROUTE_PUBLIC },
	{ "GET", "/openapi.json", handle_openapi, ROUTE_PUBLIC },
	{ "GET", "/metrics", handle_metrics, ROUTE_ADMIN },
	{ "GET", "/v1/doctor", handle_doctor, ROUTE_ADMIN },
	{ 0 },
};
