/*
 * The core of E2B's API (e2b.h): the dialect's hooks, its errors, its names for templates, and the settings of a sandbox.
 * Called by the other e2b_*.c files and, through e2b_dialect, by the server's core. A request that was not carried out must
 * never be answered with success.
 */
#include "server/dialects/e2b/e2b.h"

#include <ctype.h>
#include <time.h>

#include "server/core.h"
#include "server/dialects/e2b/connect.h"

#define SETTINGS_KEY "husk.e2b"
#define TEMPLATE_KEY "husk.e2b.template"
#define HOST_KEY "husk.e2b.host"

/* ---- errors ---- */

/* Inside a sandbox: 502 means that the sandbox is gone, 507 that its disk is full. Outside, an ended sandbox does not
 * exist. */
static unsigned shown_status(const struct request *request, unsigned status, const struct husk_error *failure)
{
	const struct route *route = request->match.route;
	bool inside = route && route->flags & E2B_DATA;

	if (request->fault.status)
		return status;
	if (failure->code == HUSK_GONE)
		return inside ? 502 : 404;
	if (inside && failure->code == HUSK_LIMIT)
		return 507;
	return status;
}

/* For a port: the document that E2B's proxy sends instead of the program's answer. */
static json_t *show_port_error(struct request *request, unsigned *status, const struct husk_error *failure)
{
	bool closed = failure->code == HUSK_PROTOCOL,
	     gone = failure->code == HUSK_GONE || failure->code == HUSK_NOT_FOUND;
	const char *message = closed ? "The sandbox is running but port is not open"
			      : gone ? "The sandbox was not found"
				     : failure->message;

	if (closed || gone)
		*status = 502;
	json_t *document = json_pack("{s:s, s:o, s:i}", "sandboxId", request->host_sandbox, "message",
				     json_text0(message), "code", (int)*status);
	if (document && closed)
		json_object_set_new(document, "port", json_integer(atoi(request->host_port)));
	return document;
}

static bool is_connect(const struct request *request)
{
	const struct route *route = request->match.route;
	const char *first = request->target.segment_count ? request->target.segments[0] : "";

	return route ? route->flags & E2B_CONNECT : str_starts(first, "process.") || str_starts(first, "filesystem.");
}

/* The error document, with the status of E2B's own server. */
static json_t *show_error(struct request *request, unsigned *status, const struct husk_error *failure)
{
	const char *message = failure->message;

	if (request->match.route && request->match.route->path[0] != '/')
		return show_port_error(request, status, failure);
	*status = shown_status(request, *status, failure);
	if (is_connect(request))
		return connect_error(failure, *status);
	return json_pack("{s:i, s:o}", "code", (int)*status, "message", json_text(message, strlen(message)));
}

/* For unknown paths: a request with headers that only E2B's clients send gets E2B's error. */
static bool speaks(const struct request *request)
{
	static const char *const headers[] = { "X-API-KEY", "E2b-Sandbox-Id", "X-Access-Token" };
	const struct target *target = &request->target;

	if (target->segment_count && str_equal(target->segments[0], "v1"))
		return false;
	for (size_t i = 0; i < ARRAY_SIZE(headers); i++)
		if (request_header(request, headers[i]))
			return true;
	return false;
}

/* E2B's clients expect two programs inside each sandbox: one for commands and files, and the code interpreter. */
static bool answers(const struct request *request, uint16_t port)
{
	return (port == E2B_ENVD_PORT || port == E2B_CODE_PORT) &&
	       (request_header(request, "X-Access-Token") || request_header(request, E2B_TRAFFIC_HEADER));
}

static bool says_nothing(const json_t *value)
{
	return json_is_null(value) || (json_is_object(value) && json_object_size(value) == 0) ||
	       (json_is_array(value) && json_array_size(value) == 0);
}

int e2b_refuse_rest(struct request *request, const struct fields *fields, const char *what, struct husk_error *err)
{
	const char *name;
	json_t *value;

	json_object_foreach(fields->object, name, value)
	{
		bool taken = says_nothing(value);
		char text[96];
		for (size_t i = 0; i < fields->count; i++)
			taken |= str_equal(fields->taken[i], name);
		if (taken)
			continue;
		snprintf(text, sizeof(text), "%s '%.40s'", what, name);
		return dialect_unsupported(request, text, err);
	}
	return 0;
}

int e2b_respond_page(struct request *request, json_t *page, const char *next, struct husk_error *err)
{
	if (next && respond_header(request, "x-next-token", next, err) < 0) {
		json_decref(page);
		return -1;
	}
	return respond_json(request, 200, page, err);
}

/* ---- names ---- */

static const struct {
	const char *theirs, *ours;
} templates[] = {
	{ "code-interpreter-v1", "code-interpreter" },
	{ "base", "e2b-base" },
};

const char *e2b_template(const char *name)
{
	for (size_t i = 0; i < ARRAY_SIZE(templates); i++)
		if (str_equal(name, templates[i].theirs))
			return templates[i].ours;
	return name;
}

const char *e2b_template_shown(const char *name)
{
	for (size_t i = 0; i < ARRAY_SIZE(templates); i++)
		if (str_equal(name, templates[i].ours))
			return templates[i].theirs;
	return name;
}

int e2b_snapshot_name(const char *name, char **out, struct husk_error *err)
{
	const char *slash = strrchr(name, '/');
	char *copy = strdup(slash ? slash + 1 : name);

	if (!copy)
		return husk_fail_memory(err);
	char *colon = strchr(copy, ':');
	if (colon && str_equal(colon, ":default"))
		*colon = '\0';
	else if (colon)
		*colon = '.';
	for (char *at = copy; *at; at++)
		*at = (char)tolower((unsigned char)*at);
	*out = copy;
	if (*copy && copy[strspn(copy, "abcdefghijklmnopqrstuvwxyz0123456789-_.")] == '\0')
		return 0;
	free(steal_pointer(*out));
	return husk_fail_field(err, "name", "'%.80s' cannot be a name; use letters, digits, - and _", name);
}

int e2b_template_name(const char *given, char **out, struct husk_error *err)
{
	cleanup_free char *plain = strndup(given, strcspn(given, ":"));

	return plain ? e2b_snapshot_name(plain, out, err) : husk_fail_memory(err);
}

void e2b_uuid(const unsigned char bytes[static 16], char out[static 37])
{
	for (size_t i = 0, at = 0; i < 16; i++) {
		unsigned value = i == 6 ? (bytes[i] & 0x0fu) | 0x40u : i == 8 ? (bytes[i] & 0x3fu) | 0x80u : bytes[i];
		if (i == 4 || i == 6 || i == 8 || i == 10)
			out[at++] = '-';
		at += (size_t)snprintf(out + at, 3, "%02x", value);
	}
}

/* ---- times ---- */

int e2b_time(const char *text, int64_t *out)
{
	struct tm parts = { 0 };
	const char *rest = strptime(text, "%Y-%m-%dT%H:%M:%S", &parts);
	int fraction = 0, hours = 0, minutes = 0;

	if (!rest)
		return -1;
	if (*rest == '.') {
		rest++;
		for (int i = 0, scale = 100; *rest >= '0' && *rest <= '9'; i++, rest++, scale /= 10)
			fraction += i < 3 ? (*rest - '0') * scale : 0;
	}
	if (*rest != '\0' && !str_equal(rest, "Z") &&
	    ((*rest != '+' && *rest != '-') || sscanf(rest + 1, "%2d:%2d", &hours, &minutes) != 2))
		return -1;
	int64_t offset = (hours * 60 + minutes) * INT64_C(60000);
	*out = (int64_t)timegm(&parts) * 1000 + fraction + (*rest == '-' ? offset : -offset);
	return 0;
}

/* ---- settings ---- */

bool e2b_hidden(const char *key)
{
	return str_starts(key, "husk.");
}

static const char *metadata_of(const struct husk_sandbox *sandbox, const char *key)
{
	for (size_t i = 0; i < sandbox->metadata_count; i++)
		if (str_equal(sandbox->metadata[i].key, key))
			return sandbox->metadata[i].value;
	return NULL;
}

/* "300 resume closed": the timeout, and words. Ports of a sandbox that was not made through E2B's API require a
 * token. */
struct e2b_settings e2b_settings_of(const struct husk_sandbox *sandbox)
{
	struct e2b_settings settings = { .timeout = E2B_TIMEOUT_SECONDS, .closed = true };
	const char *text = metadata_of(sandbox, SETTINGS_KEY);

	settings.pause = str_equal(sandbox->on_expiry, "hibernate");
	settings.template = metadata_of(sandbox, TEMPLATE_KEY);
	settings.host = metadata_of(sandbox, HOST_KEY);
	settings.ours = text;
	if (!text)
		return settings;
	cleanup_free char *number = strndup(text, strcspn(text, " "));
	if (number)
		str_to_int64(number, 1, E2B_TIMEOUT_MAX, &settings.timeout);
	settings.resume = strstr(text, " resume");
	settings.closed = strstr(text, " closed");
	settings.built = strstr(text, " built");
	settings.cold = strstr(text, " cold");
	return settings;
}

const char *e2b_template_of(const struct husk_sandbox *sandbox)
{
	const char *given = metadata_of(sandbox, TEMPLATE_KEY);

	return given ? given : e2b_template_shown(sandbox->template_name);
}

int e2b_environment(struct request *request, const struct husk_pair *given, size_t count, struct e2b_environment *out,
		    struct husk_error *err)
{
	if (husk_inspect(request_husk(request), request_path(request, "id"), &out->sandbox, err) < 0)
		return -1;
	const char *template = e2b_template_of(out->sandbox);
	const struct husk_pair own[] = { { "E2B_SANDBOX", "true" },
					 { "E2B_SANDBOX_ID", out->sandbox->id },
					 { "E2B_TEMPLATE_ID", template ? template : "" } };
	out->pairs = calloc(count + ARRAY_SIZE(own), sizeof(*out->pairs));
	if (!out->pairs)
		return husk_fail_memory(err);
	for (size_t i = 0; i < ARRAY_SIZE(own); i++) {
		bool again = false;
		for (size_t k = 0; k < count; k++)
			again |= str_equal(given[k].key, own[i].key);
		if (!again)
			out->pairs[out->count++] = own[i];
	}
	for (size_t k = 0; k < count; k++)
		out->pairs[out->count++] = given[k];
	return 0;
}

void e2b_environment_free(struct e2b_environment *environment)
{
	if (environment->sandbox)
		husk_sandbox_free(environment->sandbox);
	free(environment->pairs);
}

int e2b_settings_pairs(const struct e2b_settings *settings, struct husk_pair *pairs, size_t *count, char **text,
		       struct husk_error *err)
{
	*count = 0;
	*text = str_format("%lld%s%s%s%s", (long long)settings->timeout, settings->resume ? " resume" : "",
			   settings->closed ? " closed" : "", settings->built ? " built" : "",
			   settings->cold ? " cold" : "");
	if (!*text)
		return husk_fail_memory(err);
	pairs[(*count)++] = (struct husk_pair){ SETTINGS_KEY, *text };
	if (settings->template)
		pairs[(*count)++] = (struct husk_pair){ TEMPLATE_KEY, settings->template };
	if (settings->host)
		pairs[(*count)++] = (struct husk_pair){ HOST_KEY, settings->host };
	return 0;
}

/* ---- the dialect ---- */

static bool stop(void)
{
	bool quiet = e2b_builds_end();

	e2b_watchers_end();
	return quiet;
}

static const struct route *const tables[] = { e2b_sandbox_routes,
					      e2b_log_routes,
					      e2b_snapshot_routes,
					      e2b_template_routes,
					      e2b_build_routes,
					      e2b_process_routes,
					      e2b_file_routes,
					      e2b_code_routes,
					      e2b_filesystem_routes,
					      e2b_volume_routes,
					      e2b_secret_routes,
					      e2b_watcher_routes,
					      NULL };
static const char *const private_headers[] = { E2B_TRAFFIC_HEADER, NULL };

const struct dialect e2b_dialect = {
	.name = "e2b",
	.tables = tables,
	.token_header = "X-API-KEY",
	.private_headers = private_headers,
	.reads_refused = true, /* its clients read a cut connection as no answer at all */
	.authorise = e2b_authorise,
	.speaks = speaks,
	.port_open = e2b_port_open,
	.answers = answers,
	.error = show_error,
	.stop = stop,
};
