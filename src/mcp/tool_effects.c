/*
 * held_effects: the requests of a sandbox that wait to be sent. A thin layer over libhusk; mcp_session.c decides which
 * sandboxes may be used.
 */
#include <inttypes.h>

#include "mcp/tools.h"

#define NUMBERS_MAX 256

static int say_effects(struct tool_call *call, struct husk_effect *const *list, struct husk_error *err)
{
	cleanup_buf struct buf text = { 0 };
	size_t count = 0;

	while (list[count])
		count++;
	int bad = buf_printf(&text, "%zu effect%s of sandbox %s", count, count == 1 ? "" : "s", call->sandbox);
	for (size_t i = 0; i < count; i++) {
		bad |= buf_printf(&text, "\n%" PRId64 " %s: %s %s", list[i]->number, list[i]->state, list[i]->method,
				  list[i]->url);
		if (list[i]->status)
			bad |= buf_printf(&text, ", answered %d", list[i]->status);
		else if (list[i]->detail)
			bad |= buf_printf(&text, " (%s)", list[i]->detail);
	}
	return bad ? husk_fail_memory(err) : tool_say(call, text.data, text.size, err);
}

static size_t read_numbers(struct tool_call *call, int64_t out[static NUMBERS_MAX])
{
	const json_t *list = json_object_get(call->arguments, "effects");
	size_t count = MIN(json_array_size(list), NUMBERS_MAX); /* the schema has checked it */

	for (size_t i = 0; i < count; i++)
		out[i] = json_integer_value(json_array_get(list, i));
	return count;
}

int tool_held_effects(struct tool_call *call, struct husk_error *err)
{
	cleanup_effects struct husk_effect **list = NULL;
	struct husk *husk = call->session->husk;
	const char *action = tool_string(call, "action");
	int64_t named[NUMBERS_MAX];
	size_t count = read_numbers(call, named);
	const int64_t *numbers = count ? named : NULL; /* the schema refuses an empty list */

	if (session_sandbox(call, NEED_EXISTING, 0, err) < 0)
		return -1;
	int result = str_equal(action, "send")   ? husk_effects_send(husk, call->sandbox, numbers, count, &list, err)
		     : str_equal(action, "drop") ? husk_effects_drop(husk, call->sandbox, numbers, count, &list, err)
						 : husk_effects(husk, call->sandbox, &list, err);
	if (result < 0 || say_effects(call, list, err) < 0)
		return -1;
	return tool_give(call, json_pack("{s:o}", "effects", json_effects(list)), err);
}
