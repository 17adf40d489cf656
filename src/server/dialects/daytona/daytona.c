/*
 * The core of Daytona's API (daytona.h): the dialect's table, its error document, and the answer for what Husk does not
 * support. Called by the other daytona_*.c files and by the server's core. A request that was not carried out must never be
 * answered with success.
 */
#include "server/dialects/daytona/daytona.h"

#include <openssl/crypto.h>

/* ---- errors ---- */

static const struct {
	unsigned status;
	const char *name; /* the name in NestJS, which Daytona's control plane uses */
	const char *code; /* as the toolbox calls it */
} kinds[] = {
	{ 400, "Bad Request", "BAD_REQUEST" },
	{ 401, "Unauthorized", "UNAUTHORIZED" },
	{ 403, "Forbidden", "FORBIDDEN" },
	{ 404, "Not Found", "NOT_FOUND" },
	{ 408, "Request Timeout", "REQUEST_TIMEOUT" },
	{ 409, "Conflict", "CONFLICT" },
	{ 410, "Gone", "GONE" },
	{ 429, "Too Many Requests", NULL },
	{ 501, "Not Implemented", NULL },
	{ 503, "Service Unavailable", NULL },
};

static bool in_toolbox(const struct request *request)
{
	return request->match.route && str_starts(request->match.route->path, DAYTONA_TOOLBOX);
}

static unsigned shown_status(const struct request *request, unsigned status, const struct husk_error *failure)
{
	if (request->fault.status)
		return status;
	if (failure->code == HUSK_GONE)
		return 404;
	if (failure->code == HUSK_LIMIT && in_toolbox(request))
		return 507;
	return status;
}

static bool is_code(const char *name)
{
	return name && *name && name[strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789")] == '\0';
}

/* Only the path: a query may hold a key. */
static json_t *path_of(const struct request *request)
{
	const char *target = request_target(request);

	return json_text(target, strcspn(target, "?"));
}

static json_t *error_of(struct request *request, unsigned *status, const struct husk_error *failure)
{
	const char *name = "Internal Server Error", *code = "INTERNAL_SERVER_ERROR";

	*status = shown_status(request, *status, failure);
	for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
		if (kinds[i].status == *status) {
			name = kinds[i].name;
			code = kinds[i].code;
		}
	}
	json_t *document = json_pack("{s:i, s:o, s:s, s:o, s:o, s:s}", "statusCode", (int)*status, "message",
				     json_text0(failure->message), "error", name, "path", path_of(request), "timestamp",
				     json_time(time_wall_ms()), "method", request_method(request));
	if (!document || !in_toolbox(request))
		return document;
	if (is_code(request->fault.name))
		code = request->fault.name;
	if (code)
		json_object_set_new(document, "code", json_string(code));
	json_object_set_new(document, "source", json_string("DAYTONA_DAEMON"));
	return document;
}

bool daytona_same(const char *a, const char *b)
{
	return a && b && strlen(a) == strlen(b) && CRYPTO_memcmp(a, b, strlen(a)) == 0;
}

/* ---- not supported ---- */

static int handle_config(struct request *request, struct husk_error *err)
{
	cleanup_free char *address = daytona_address(request);
	cleanup_free char *domain = ports_domain(request, NULL);

	if (!address)
		return husk_fail_memory(err);
	/* clang-format off */
	return respond_json(request, 200, json_pack(
		"{s:s, s:{s:s, s:s, s:s, s:s}, s:b, s:{}, s:o, s:o, s:s, s:s, s:i, s:b, s:s, s:n}",
		"version", HUSK_VERSION,
		"oidc", "issuer", "", "clientId", "", "audience", "", "provider", "",
		"linkedAccountsEnabled", false,
		"announcements",
		"proxyTemplateUrl", json_sprintf("%s://{{PORT}}-{{sandboxId}}.%s", request_secure(request) ? "https" : "http",
						 domain ? domain : "localhost"),
		"proxyToolboxUrl", json_sprintf("%s/toolbox", address),
		"defaultSnapshot", "default",
		"dashboardUrl", address,
		"maxAutoArchiveInterval", 43200,
		"maintananceMode", false,
		"environment", "husk",
		"analyticsApiUrl"), err);
	/* clang-format on */
}

static int handle_storage(struct request *request, struct husk_error *err)
{
	return dialect_unsupported(request, DAYTONA_LOCAL_FILES, err);
}

static int handle_ssh(struct request *request, struct husk_error *err)
{
	return dialect_unsupported(request, "SSH access", err);
}

static int handle_warm_pool(struct request *request, struct husk_error *err)
{
	return dialect_unsupported(request, "a warm pool of one's own (Husk keeps machines ready by itself)", err);
}

static int handle_telemetry(struct request *request, struct husk_error *err)
{
	return dialect_unsupported(request, "recorded telemetry (system/metrics tells how it is now)", err);
}

static int handle_unknown(struct request *request, struct husk_error *err)
{
	return husk_fail(err, HUSK_NOT_FOUND, "Cannot %s %.200s", request_method(request),
			 request_path(request, "rest"));
}

const struct route daytona_other_routes[] = {
	{ "GET", "/daytona/config", handle_config, ROUTE_PUBLIC },
	{ "GET", "/daytona/object-storage/push-access", handle_storage, 0 },
	{ "GET", "/daytona/sandbox/ssh-access/validate", handle_ssh, 0 },
	{ "POST", "/daytona/sandbox/{id}/ssh-access", handle_ssh, 0 },
	{ "DELETE", "/daytona/sandbox/{id}/ssh-access", handle_ssh, 0 },
	{ "*", "/daytona/warm-pools", handle_warm_pool, 0 },
	{ "*", "/daytona/warm-pools/{pool}", handle_warm_pool, 0 },
	{ "GET", "/daytona/sandbox/{id}/telemetry/{rest*}", handle_telemetry, 0 },
	{ "*", "/daytona/{rest*}", handle_unknown, 0 },
	{ 0 },
};

/* ---- the dialect ---- */

static const struct route *const tables[] = { daytona_sandbox_routes,
					      daytona_lifecycle_routes,
					      daytona_interval_routes,
					      daytona_event_routes,
					      daytona_process_routes,
					      daytona_session_routes,
					      daytona_pty_routes,
					      daytona_interpreter_routes,
					      daytona_file_routes,
					      daytona_transfer_routes,
					      daytona_search_routes,
					      daytona_git_routes,
					      daytona_git_view_routes,
					      daytona_lsp_routes,
					      daytona_system_routes,
					      daytona_port_routes,
					      daytona_snapshot_routes,
					      daytona_volume_routes,
					      daytona_secret_routes,
					      daytona_computer_routes,
					      daytona_desktop_routes,
					      daytona_recording_routes,
					      daytona_other_routes, /* the last one: it matches everything else */
					      NULL };

static const char *const private_headers[] = { "X-Daytona-Preview-Token", NULL };

const struct dialect daytona_dialect = {
	.name = "daytona",
	.tables = tables,
	.private_headers = private_headers,
	.reads_refused = true,
	.authorise = daytona_authorise,
	.port_open = daytona_port_open,
	.error = error_of,
	.start = daytona_tend_start,
	.stop = daytona_builds_end,
};
