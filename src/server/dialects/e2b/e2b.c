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
#define HTTPS_WORD " https="

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
		return e2b_port_error(request, status, failure);
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

bool e2b_is_shown_id(const char *text)
{
	return is_random_id(text, "sb", 10);
}

void e2b_id(const char *given, char out[static E2B_ID_SIZE])
{
	bool shown = e2b_is_shown_id(given);

	snprintf(out, E2B_ID_SIZE, "%s%s", shown ? "sb-" : "", shown ? given + 2 : given);
}

const char *e2b_shown_id(const char *id, char out[static E2B_ID_SIZE])
{
	snprintf(out, E2B_ID_SIZE, "%s%s", str_starts(id, "sb-") ? "sb" : "", str_starts(id, "sb-") ? id + 3 : id);
	return out;
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

/* "300 resume closed https=8443,9443": the timeout, and words; https is the last one. Ports of a sandbox that was not made through E2B's API require a
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
	settings.https = strstr(text, HTTPS_WORD);
	settings.https = settings.https ? settings.https + strlen(HTTPS_WORD) : NULL;
	return settings;
}

const char *e2b_template_of(const struct husk_sandbox *sandbox)
{
	const char *given = metadata_of(sandbox, TEMPLATE_KEY);

	return given ? given : e2b_template_shown(sandbox->template_name);
}

#define OWN_COUNT 3

/* What tells a program where it runs; `id` holds one of the values. */
static void own_variables(const struct husk_sandbox *sandbox, char id[static E2B_ID_SIZE],
			  struct husk_pair out[static OWN_COUNT])
{
	const char *template = e2b_template_of(sandbox);

	out[0] = (struct husk_pair){ "E2B_SANDBOX", "true" };
	out[1] = (struct husk_pair){ "E2B_SANDBOX_ID", e2b_shown_id(sandbox->id, id) };
	out[2] = (struct husk_pair){ "E2B_TEMPLATE_ID", template ? template : "" };
}

int e2b_environment(struct request *request, const struct husk_pair *given, size_t count, struct e2b_environment *out,
		    struct husk_error *err)
{
	struct husk_pair own[OWN_COUNT];

	if (husk_inspect(request_husk(request), request_path(request, "id"), &out->sandbox, err) < 0)
		return -1;
	own_variables(out->sandbox, out->id, own);
	out->pairs = calloc(count + OWN_COUNT, sizeof(*out->pairs));
	if (!out->pairs)
		return husk_fail_memory(err);
	for (size_t i = 0; i < OWN_COUNT; i++) {
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

void e2b_identify(struct husk *husk, const struct husk_sandbox *sandbox)
{
	struct husk_pair own[OWN_COUNT];
	char id[E2B_ID_SIZE], path[64];
	struct husk_error why = { 0 };

	own_variables(sandbox, id, own);
	for (size_t i = 0; i < OWN_COUNT; i++) {
		struct bytes value = { own[i].value, strlen(own[i].value) };
		snprintf(path, sizeof(path), "/run/e2b/.%s", own[i].key);
		if (husk_file_write(husk, sandbox->id, path, 0444, NULL, bytes_give, &value, &why) < 0) {
			log_line(LOG_WARN, "sandbox %s has no %s: %s", sandbox->id, path, why.message);
			return;
		}
	}
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
	*text = str_format("%lld%s%s%s%s%s%s", (long long)settings->timeout, settings->resume ? " resume" : "",
			   settings->closed ? " closed" : "", settings->built ? " built" : "",
			   settings->cold ? " cold" : "", settings->https ? HTTPS_WORD : "",
			   settings->https ? settings->https : "");
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
