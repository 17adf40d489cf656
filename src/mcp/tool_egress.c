/*
 * egress_log, and the note about blocked connections in the result of a failed program. A model that knows what was
 * blocked, and which rule would allow it, can ask for that rule instead of trying again. Only the operator changes a
 * policy; this file does not.
 */
#include <inttypes.h>

#include "mcp/tools.h"

#define DENIED_MAX 5u

static const char *or_nothing(const char *text)
{
	return text ? text : "";
}

json_t *denied_add(struct tool_call *call, int64_t since_ms, const char *errors, size_t size, struct buf *text)
{
	cleanup_json json_t *events = json_denied(call->session->husk, call->sandbox, since_ms, errors, size);
	cleanup_json json_t *lines = json_array();
	int bad = 0;

	for (size_t i = 0; i < MIN(json_array_size(events), DENIED_MAX); i++) {
		json_t *line = json_object_get(json_array_get(events, i), "text");
		bad |= json_array_append(lines, line) | buf_printf(text, "[%s]\n", json_string_value(line));
	}
	return events && !bad ? steal_pointer(lines) : NULL;
}

static int say_event(struct buf *text, const struct husk_egress_event *event)
{
	char at[25];

	time_format(event->at_ms, at);
	int bad = buf_printf(text, "%s %s %s %s:%u", at, or_nothing(event->verdict), or_nothing(event->kind),
			     or_nothing(event->host), event->port);
	if (event->count > 1)
		bad |= buf_printf(text, " (%" PRIu64 " times)", event->count);
	if (event->reason && *event->reason)
		bad |= buf_printf(text, ": %s", event->reason);
	if (event->rule && *event->rule)
		bad |= buf_printf(text, "; the user can allow it with the rule '%s'", event->rule);
	return bad | buf_append_string(text, "\n");
}

static int give_log(struct tool_call *call, const char *mode, const struct husk_egress_event *list, size_t count,
		    struct husk_error *err)
{
	cleanup_buf struct buf text = { 0 };
	cleanup_json json_t *entries = json_array();
	int bad = !entries || buf_printf(&text, "[sandbox %s, network mode %s]\n", call->sandbox, mode) < 0;

	for (size_t i = 0; i < count && !bad; i++)
		bad = say_event(&text, &list[i]) | json_array_append_new(entries, json_egress_event(&list[i]));
	if (!count)
		bad |= buf_append_string(&text, "nothing was tried\n");
	if (bad)
		return husk_fail_memory(err);
	if (tool_say(call, text.data, text.size, err) < 0)
		return -1;
	return tool_give(call, json_pack("{s:s, s:O}", "mode", mode, "entries", entries), err);
}

int tool_egress_log(struct tool_call *call, struct husk_error *err)
{
	struct mcp_session *session = call->session;
	struct husk_egress_event *list = NULL;
	struct husk_egress *policy = NULL;
	size_t count = 0, limit = (size_t)tool_int(call, "limit", 100);

	if (session_sandbox(call, NEED_EXISTING, 0, err) < 0 ||
	    husk_egress_get(session->husk, call->sandbox, &policy, err) < 0)
		return -1;
	int result = husk_egress_log(session->husk, call->sandbox, limit, &list, &count, err);
	if (result == 0)
		result = give_log(call, policy->mode ? policy->mode : "off", list, count, err);
	husk_egress_event_list_free(list, count);
	husk_egress_free(policy);
	return result;
}
