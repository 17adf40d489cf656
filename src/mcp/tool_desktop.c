/*
 * computer: acts on the screen of a sandbox, and shows it. browser_open: opens an address in its browser, and shows it.
 * Both use husk_desktop_act, and return pictures as image content: one of the final screen, and one for every action
 * `screenshot` and `zoom`.
 */
#include "mcp/tools.h"

#define WAIT_MS 120000 /* that the sandbox must live for */

static int wait_for_desktop(void *data, int fd, int timeout_ms)
{
	struct mcp_call *waiter = data;

	return waiter->wait(waiter->data, fd, timeout_ms);
}

static int show(struct tool_call *call, json_t *picture, struct husk_error *err)
{
	json_t *data = json_object_get(picture, "data");
	const char *type = json_string_value(json_object_get(picture, "type"));

	if (!json_is_string(data) || !type || strncmp(type, "image/", 6) != 0)
		return 0;
	if (tool_show_image(call, type, json_incref(data), err) < 0)
		return -1;
	json_object_set_new(picture, "data", json_string("(in the content)"));
	return 0;
}

/* Results without pictures, as text for models that read no structured content. */
static int say_results(struct tool_call *call, const json_t *answer, struct husk_error *err)
{
	const json_t *results = json_object_get(answer, "results"), *settled = json_object_get(answer, "settled");
	cleanup_free char *text = json_dumps(results, JSON_COMPACT);

	if (!text)
		return husk_fail_memory(err);
	return tool_sayf(call, err, "%s\n[screen %lldx%lld%s, sandbox %s]", text,
			 (long long)json_integer_value(json_object_get(answer, "width")),
			 (long long)json_integer_value(json_object_get(answer, "height")),
			 json_is_false(settled) ? ", still changing" : "", call->sandbox);
}

static int give(struct tool_call *call, json_t *answer, struct husk_error *err)
{
	json_t *result, *results = json_object_get(answer, "results");
	size_t i;

	json_array_foreach(results, i,
			   result) if (show(call, json_object_get(result, "screenshot"), err) < 0) return -1;
	if (show(call, json_object_get(answer, "screenshot"), err) < 0 || say_results(call, answer, err) < 0)
		return -1;
	json_object_del(answer, "screenshot");
	return tool_give(call, json_incref(answer), err);
}

/* Takes ownership of the request. */
static int act(struct tool_call *call, json_t *request, struct husk_error *err)
{
	cleanup_free char *text = request ? json_dumps(request, JSON_COMPACT) : NULL, *given = NULL;
	struct husk_desktop_options options = { .request = text, .wait = wait_for_desktop, .wait_data = call->call };

	json_decref(request);
	if (!text)
		return husk_fail_memory(err);
	if (session_sandbox(call, NEED_EXISTING, WAIT_MS, err) < 0)
		return -1;
	if (husk_desktop_act(call->session->husk, call->sandbox, &options, &given, err) < 0) {
		if (err->code == HUSK_UNAVAILABLE)
			return husk_fail(err, HUSK_UNAVAILABLE,
					 "sandbox %s has no desktop; create_sandbox with template \"desktop\" and "
					 "memory_mb 2048 "
					 "makes one that has, and its id goes into 'sandbox'",
					 call->sandbox);
		return -1;
	}
	cleanup_json json_t *answer = json_loads(given, 0, NULL);
	return answer ? give(call, answer, err) : husk_fail_memory(err);
}

int tool_computer(struct tool_call *call, struct husk_error *err)
{
	const json_t *wanted = json_object_get(call->arguments, "screenshot");
	const char *format = tool_string(call, "format");
	json_t *actions = json_object_get(call->arguments, "actions");
	json_t *picture = json_is_false(wanted) ? json_false() : json_pack("{s:s}", "format", format ? format : "png");

	return act(call,
		   json_pack("{s:O?, s:O*, s:b, s:o}", "actions", actions, "space",
			     json_object_get(call->arguments, "space"), "settle", true, "screenshot", picture),
		   err);
}

int tool_browser_open(struct tool_call *call, struct husk_error *err)
{
	const char *url = tool_string(call, "url");

	return act(call,
		   json_pack("{s:[{s:s, s:s}], s:b, s:{s:s}}", "actions", "action", "open", "url", url ? url : "",
			     "settle", true, "screenshot", "format", "png"),
		   err);
}
