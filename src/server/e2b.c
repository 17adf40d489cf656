/*
 * The kit of E2B's API (e2b.h): its errors, its names for templates, what a sandbox was asked to be, and the routes of
 * what Husk does not have. Called by the other e2b_*.c and, for errors, by respond.c. Nothing here may answer with success
 * what was not done.
 */
#include "server/e2b.h"

#include <ctype.h>

#include "server/connect.h"
#include "server/core.h"

#define SETTINGS_KEY "husk.e2b"
#define EXPIRY_KEY "husk.on-expiry" /* the supervisor's */

/* ---- errors ---- */

bool e2b_speaks(const struct request *request)
{
	const struct route *route = request->match.route;

	return route && (route->flags & ROUTE_E2B);
}

/* Inside a sandbox: 502 says that it is gone, 507 that its disk is full. Outside, one that has ended does not exist. */
static unsigned shown_status(const struct request *request, unsigned status, const struct husk_error *failure)
{
	bool inside = request->match.route->flags & ROUTE_E2B_DATA;

	if (request->fault.status)
		return status;
	if (failure->code == HUSK_GONE)
		return inside ? 502 : 404;
	if (inside && failure->code == HUSK_LIMIT)
		return 507;
	return status;
}

json_t *e2b_error(struct request *request, unsigned *status, const struct husk_error *failure)
{
	const char *message = failure->message;

	*status = shown_status(request, *status, failure);
	if (request->match.route->flags & ROUTE_CONNECT)
		return connect_error(failure, *status);
	return json_pack("{s:i, s:o}", "code", (int)*status, "message", json_text(message, strlen(message)));
}

int e2b_unsupported(struct request *request, const char *what, struct husk_error *err)
{
	request->fault = (struct fault){ 501, "unimplemented" };
	return husk_fail(err, HUSK_UNAVAILABLE, "%s is not something Husk has (docs/compat.md lists what it has)",
			 what);
}

int e2b_fields_done(const struct fields *fields, struct husk_error *err)
{
	if (fields->error.code == HUSK_OK)
		return 0;
	if (err)
		*err = fields->error;
	return -1;
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
		return e2b_unsupported(request, text, err);
	}
	return 0;
}

/* ---- names ---- */

static const struct {
	const char *theirs, *ours;
} templates[] = {
	{ "code-interpreter-v1", "code-interpreter" },
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

/* "300 resume closed": the timeout, and words. A sandbox that E2B's API did not make has ports for tokens only. */
struct e2b_settings e2b_settings_of(const struct husk_sandbox *sandbox)
{
	struct e2b_settings settings = { .timeout = E2B_TIMEOUT_SECONDS, .closed = true };
	const char *text = metadata_of(sandbox, SETTINGS_KEY);

	settings.pause = str_equal(metadata_of(sandbox, EXPIRY_KEY), "hibernate");
	if (!text)
		return settings;
	cleanup_free char *number = strndup(text, strcspn(text, " "));
	if (number)
		str_to_int64(number, 1, E2B_TIMEOUT_MAX, &settings.timeout);
	settings.resume = strstr(text, " resume");
	settings.closed = strstr(text, " closed");
	settings.built = strstr(text, " built");
	return settings;
}

int e2b_settings_pairs(const struct e2b_settings *settings, struct husk_pair *pairs, char **text,
		       struct husk_error *err)
{
	*text = str_format("%lld%s%s%s", (long long)settings->timeout, settings->resume ? " resume" : "",
			   settings->closed ? " closed" : "", settings->built ? " built" : "");
	if (!*text)
		return husk_fail_memory(err);
	pairs[0] = (struct husk_pair){ SETTINGS_KEY, *text };
	pairs[1] = (struct husk_pair){ EXPIRY_KEY, settings->pause ? "hibernate" : "end" };
	return 0;
}
