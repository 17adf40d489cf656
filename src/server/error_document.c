/*
 * Errors as clients see them: one table gives each kind of failure its name and HTTP status, and one function builds the
 * document. Every error answer comes from here.
 */
#include "server/core.h"

static const struct {
	const char *name;
	unsigned status;
} kinds[] = {
	[HUSK_OK] = { "internal", 500 },         [HUSK_INVALID] = { "invalid", 400 },
	[HUSK_NOT_FOUND] = { "not_found", 404 }, [HUSK_CONFLICT] = { "conflict", 409 },
	[HUSK_LIMIT] = { "limit", 429 },         [HUSK_DENIED] = { "forbidden", 403 },
	[HUSK_TIMEOUT] = { "timeout", 504 },     [HUSK_UNAVAILABLE] = { "unavailable", 503 },
	[HUSK_GONE] = { "gone", 410 },           [HUSK_PROTOCOL] = { "protocol", 502 },
	[HUSK_INTERNAL] = { "internal", 500 },
};

static size_t kind_of(const struct husk_error *err)
{
	return (size_t)err->code < ARRAY_SIZE(kinds) ? (size_t)err->code : HUSK_INTERNAL;
}

unsigned error_status(const struct husk_error *err)
{
	return kinds[kind_of(err)].status;
}

json_t *error_json(const char *name, const struct husk_error *err)
{
	const char *hint = strstr(err->message, "; ");
	size_t size = hint ? (size_t)(hint - err->message) : strlen(err->message);

	return json_pack("{s:{s:s, s:o, s:o, s:o}}", "error", "code", name ? name : kinds[kind_of(err)].name, "message",
			 json_text(err->message, size), "field", json_text0(err->field[0] ? err->field : NULL), "hint",
			 json_text0(hint ? hint + 2 : NULL));
}

json_t *error_document(const struct husk_error *err)
{
	return error_json(NULL, err);
}
