/*
 * The access log of huskd: one line per request, at its end. A line has the pattern of the route and the sandbox, never the
 * target: queries hold signatures, and headers and bodies hold tokens and environment values.
 */
#include "server/core.h"

/* A client may send any text as its method. */
static const char *method_of(const struct request *request)
{
	size_t size = strlen(request->method);

	return size && strspn(request->method, "ABCDEFGHIJKLMNOPQRSTUVWXYZ-_") == size ? request->method : "-";
}

static const char *sandbox_of(const struct request *request)
{
	const struct route *route = request->match.route;

	if (!route || !(str_starts(route->path, "/v1/sandboxes/{id}") || (route->flags & ROUTE_SIGNED)))
		return NULL;
	const char *id = request_path(request, "id");
	return log_is_id(id) ? id : NULL;
}

void log_request(const struct request *request)
{
	char status[16], ms[32], bytes[24];

	snprintf(status, sizeof(status), "%u", request->answer.status);
	snprintf(ms, sizeof(ms), "%.1f", (double)(time_monotonic_us() - request->started_us) / 1000);
	snprintf(bytes, sizeof(bytes), "%llu", (unsigned long long)request->sent);
	const struct log_field fields[] = {
		{ "remote", request->remote, false },
		{ "method", method_of(request), false },
		{ "route", request->match.route ? request->match.route->path : "-", false },
		{ "sandbox", sandbox_of(request), false },
		{ "status", status, true },
		{ "ms", ms, true },
		{ "bytes", bytes, true },
		{ "tenant", request->tenant, false },
	};

	log_set_request(request->id); /* any thread may be the last holder */
	log_fields(LOG_INFO, "request", fields, ARRAY_SIZE(fields));
	log_set_request(NULL);
}
