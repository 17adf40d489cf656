/*
 * Held effects of a sandbox over HTTP: list, show, send and drop them. A thin layer over libhusk.
 */
#include "server/server.h"

#define NUMBERS_MAX 256

static int handle_list(struct request *request, struct husk_error *err)
{
	cleanup_effects struct husk_effect **list = NULL;

	if (husk_effects(request_husk(request), request_path(request, "id"), &list, err) < 0)
		return -1;
	return respond_json(request, 200, json_pack("{s:o}", "effects", json_effects(list)), err);
}

static int handle_show(struct request *request, struct husk_error *err)
{
	cleanup_free char *text = NULL;
	size_t size = 0;
	int64_t number;

	if (str_to_int64(request_path(request, "number"), 1, INT64_MAX, &number) < 0)
		return husk_fail(err, HUSK_NOT_FOUND, "'%.40s' is not the number of an effect",
				 request_path(request, "number"));
	if (husk_effect_request(request_husk(request), request_path(request, "id"), number, &text, &size, err) < 0)
		return -1;
	return respond_json(request, 200,
			    json_pack("{s:I, s:o}", "number", (json_int_t)number, "request", json_text(text, size)),
			    err);
}

static int read_numbers(json_t *list, int64_t *out, size_t *count, struct husk_error *err)
{
	if (list && (!json_is_array(list) || json_array_size(list) > NUMBERS_MAX))
		return husk_fail_field(err, "effects", "effects must be a list of at most %d numbers", NUMBERS_MAX);
	for (*count = 0; *count < json_array_size(list); (*count)++) {
		json_t *item = json_array_get(list, *count);

		if (!json_is_integer(item) || json_integer_value(item) < 1)
			return husk_fail_field(err, "effects", "effects must be a list of numbers of effects");
		out[*count] = json_integer_value(item);
	}
	return 0;
}

typedef int (*effects_call)(struct husk *husk, const char *sandbox, const int64_t *numbers, size_t count,
			    struct husk_effect ***out, struct husk_error *err);

static int act(struct request *request, effects_call call, struct husk_error *err)
{
	cleanup_effects struct husk_effect **list = NULL;
	int64_t numbers[NUMBERS_MAX];
	struct fields fields;
	size_t count = 0;

	if (fields_begin(&fields, request_json(request, err)) < 0)
		return -1;
	json_t *given = fields_any(&fields, "effects");
	if (fields_done(&fields, err) < 0 || read_numbers(given, numbers, &count, err) < 0 ||
	    call(request_husk(request), request_path(request, "id"), given ? numbers : NULL, count, &list, err) < 0)
		return -1;
	return respond_json(request, 200, json_pack("{s:o}", "effects", json_effects(list)), err);
}

static int handle_send(struct request *request, struct husk_error *err)
{
	return act(request, husk_effects_send, err);
}

static int handle_drop(struct request *request, struct husk_error *err)
{
	return act(request, husk_effects_drop, err);
}

const struct route effect_routes[] = {
	{ "GET", "/v1/sandboxes/{id}/effects", handle_list, 0 },
	{ "GET", "/v1/sandboxes/{id}/effects/{number}", handle_show, 0 },
	{ "POST", "/v1/sandboxes/{id}/effects/send", handle_send, 0 },
	{ "POST", "/v1/sandboxes/{id}/effects/drop", handle_drop, 0 },
	{ 0 },
};
