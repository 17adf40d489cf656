/*
 * The tools for going back: checkpoint_sandbox keeps a point of a sandbox, rewind_sandbox puts the same sandbox back to one
 * and says what that could not undo. Each is a thin layer over libhusk; mcp_session.c decides which sandboxes may be used.
 */
#include "mcp/tools.h"

int tool_checkpoint_sandbox(struct tool_call *call, struct husk_error *err)
{
	cleanup_checkpoint struct husk_checkpoint *checkpoint = NULL;

	if (session_sandbox(call, NEED_EXISTING, 0, err) < 0 ||
	    husk_checkpoint(call->session->husk, call->sandbox, tool_string(call, "label"), &checkpoint, err) < 0)
		return -1;
	if (tool_sayf(call, err,
		      "checkpoint %lld of sandbox %s; rewind_sandbox with \"checkpoint\": \"%lld\" goes back to it",
		      (long long)checkpoint->number, call->sandbox, (long long)checkpoint->number) < 0)
		return -1;
	return tool_give(call,
			 json_pack("{s:I, s:o, s:I}", "checkpoint", (json_int_t)checkpoint->number, "label",
				   json_text0(checkpoint->label), "bytes", (json_int_t)checkpoint->bytes),
			 err);
}

/* The text for the model: where it is, and line by line what stays done. */
static int say_rewound(struct tool_call *call, const struct husk_rewound *rewound, json_t *document,
		       struct husk_error *err)
{
	cleanup_buf struct buf text = { 0 };
	json_t *lines = json_object_get(document, "not_undone");
	int bad = buf_printf(&text, "sandbox %s is back at checkpoint %lld: memory, processes and disk", call->sandbox,
			     (long long)rewound->number);

	for (size_t i = 0; i < json_array_size(lines); i++)
		bad |= buf_printf(&text, "\nnot undone: %s", json_string_value(json_array_get(lines, i)));
	return bad ? husk_fail_memory(err) : tool_sayf(call, err, "%s", text.data);
}

int tool_rewind_sandbox(struct tool_call *call, struct husk_error *err)
{
	cleanup_rewound struct husk_rewound *rewound = NULL;

	if (session_sandbox(call, NEED_EXISTING, 0, err) < 0 ||
	    husk_rewind(call->session->husk, call->sandbox, tool_string(call, "checkpoint"),
			tool_bool(call, "drop_later"), &rewound, err) < 0)
		return -1;
	cleanup_json json_t *document = json_rewound(rewound);
	if (!document)
		return husk_fail_memory(err);
	return say_rewound(call, rewound, document, err) < 0 ? -1 : tool_give(call, json_incref(document), err);
}
