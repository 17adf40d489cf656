/*
 * The tools for going back and forth: checkpoint_sandbox saves the state of a sandbox, rewind_sandbox puts the same sandbox
 * back to it and lists what that could not undo, sandbox_history lists the saved states, promote_sandbox puts a fork into the place of its parent,
 * merge_sandbox merges the work of another one, diff_sandbox lists the files that differ. Each tool is a thin layer
 * over libhusk; mcp_session.c decides which sandboxes may be used.
 */
#include "mcp/tools.h"

#define CHANGES_MAX 500u /* shown to a model */
#define FILES_SHOWN 20u  /* for each checkpoint */

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

/* The files that changed before a checkpoint, one per line. */
static int say_files(struct buf *text, const struct husk_checkpoint *checkpoint)
{
	size_t shown = MIN(checkpoint->file_count, FILES_SHOWN);
	int bad = checkpoint->files_changed < 0 ? buf_printf(text, "\n  which files changed is not known") : 0;

	for (size_t i = 0; i < shown; i++)
		bad |= buf_printf(text, "\n  %s %s", husk_change_name(checkpoint->files[i].kind),
				  checkpoint->files[i].path);
	if (checkpoint->files_changed > (int64_t)shown)
		bad |= buf_printf(text, "\n  and %lld more", (long long)checkpoint->files_changed - (long long)shown);
	return bad;
}

int tool_sandbox_history(struct tool_call *call, struct husk_error *err)
{
	cleanup_checkpoints struct husk_checkpoint **list = NULL;
	cleanup_buf struct buf text = { 0 };
	size_t count = 0;
	bool files = tool_bool(call, "files");

	if (session_sandbox(call, NEED_EXISTING, 0, err) < 0 ||
	    (files ? husk_history_files : husk_history)(call->session->husk, call->sandbox, &list, err) < 0)
		return -1;
	while (list[count])
		count++;
	int bad = buf_printf(&text, "%zu checkpoint%s of sandbox %s, oldest first", count, count == 1 ? "" : "s",
			     call->sandbox);
	for (size_t i = 0; i < count; i++) {
		bad |= buf_printf(&text, "\n%lld%s%s%s%s%s", (long long)list[i]->number, list[i]->label ? " " : "",
				  list[i]->label ? list[i]->label : "", list[i]->ran ? ", before: " : "",
				  list[i]->ran ? list[i]->ran : "", list[i]->current ? " (the last one)" : "");
		if (files)
			bad |= say_files(&text, list[i]);
	}
	if (bad)
		return husk_fail_memory(err);
	if (tool_say(call, text.data, text.size, err) < 0)
		return -1;
	return tool_give(call, json_pack("{s:o}", "checkpoints", json_checkpoints(list)), err);
}

/* The text for the model: the checkpoint, and a line for each effect that was not undone. */
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

/* The parent changes too: it must be one that the session may use. */
static int check_parent(struct tool_call *call, struct husk_error *err)
{
	cleanup_sandbox struct husk_sandbox *fork = NULL;

	if (husk_inspect(call->session->husk, call->sandbox, &fork, err) < 0)
		return -1;
	return session_check(call, "sandbox", fork->parent, err);
}

int tool_promote_sandbox(struct tool_call *call, struct husk_error *err)
{
	cleanup_promoted struct husk_promoted *promoted = NULL;

	if (session_sandbox(call, NEED_EXISTING, 0, err) < 0 || check_parent(call, err) < 0 ||
	    husk_promote(call->session->husk, call->sandbox, tool_bool(call, "keep"), &promoted, err) < 0)
		return -1;
	size_t count = strv_length(promoted->ended);
	if (tool_sayf(call, err, "sandbox %s goes on as %s was; %zu fork%s ended", promoted->sandbox, call->sandbox,
		      count, count == 1 ? "" : "s") < 0)
		return -1;
	free(call->sandbox);
	call->sandbox = strdup(promoted->sandbox);
	return tool_give(call, json_promoted(promoted), err);
}

static int say_merged(struct tool_call *call, const struct husk_merged *merged, struct husk_error *err)
{
	cleanup_buf struct buf text = { 0 };
	int bad = buf_printf(&text, "%zu change%s, %zu conflict%s; %s", merged->count, merged->count == 1 ? "" : "s",
			     merged->conflicts, merged->conflicts == 1 ? "" : "s",
			     merged->written ? "written" : "nothing was written");

	for (size_t i = 0; i < MIN(merged->count, CHANGES_MAX); i++) {
		const struct husk_merge_entry *entry = &merged->entries[i];
		bad |= buf_printf(&text, "\n%s %s%s%s%s", entry->merged ? "merged" : husk_change_name(entry->kind),
				  entry->path, entry->conflict ? " (conflict: " : "",
				  entry->conflict ? entry->conflict : "", entry->conflict ? ")" : "");
	}
	return bad ? husk_fail_memory(err) : tool_sayf(call, err, "%s", text.data);
}

int tool_merge_sandbox(struct tool_call *call, struct husk_error *err)
{
	cleanup_merged struct husk_merged *merged = NULL;
	const char *from = tool_string(call, "from"), *base = tool_string(call, "base");
	const struct husk_merge_options options = { .conflicts = tool_string(call, "conflicts"),
						    .dry_run = tool_bool(call, "dry_run") };

	if (session_sandbox(call, NEED_EXISTING, 0, err) < 0 || session_check(call, "from", from, err) < 0 ||
	    session_check_state(call, "base", base, err) < 0 ||
	    husk_merge(call->session->husk, from, call->sandbox, base, tool_string(call, "path"), &options, &merged,
		       err) < 0 ||
	    say_merged(call, merged, err) < 0)
		return -1;
	cleanup_json json_t *document = json_merged(merged);
	json_t *changes = json_object_get(document, "changes");
	for (size_t i = merged->count; changes && i > CHANGES_MAX; i--)
		json_array_remove(changes, i - 1);
	if (!changes)
		return husk_fail_memory(err);
	return tool_give(call,
			 json_pack("{s:b, s:I, s:O, s:I}", "written", merged->written, "conflicts",
				   (json_int_t)merged->conflicts, "changes", changes, "count",
				   (json_int_t)merged->count),
			 err);
}

static int say_changes(struct tool_call *call, struct husk_change *const *list, size_t count, struct husk_error *err)
{
	cleanup_buf struct buf text = { 0 };
	int bad = buf_printf(&text, "%zu file%s differ%s", count, count == 1 ? "" : "s", count == 1 ? "s" : "");

	for (size_t i = 0; i < MIN(count, CHANGES_MAX); i++)
		bad |= buf_printf(&text, "\n%s %s%s", husk_change_name(list[i]->kind), list[i]->file.path,
				  list[i]->file.type == HUSK_DIRECTORY ? "/" : "");
	if (count > CHANGES_MAX)
		bad |= buf_printf(&text, "\n… and %zu more; give \"path\" to see a part", count - CHANGES_MAX);
	return bad ? husk_fail_memory(err) : tool_sayf(call, err, "%s", text.data);
}

int tool_diff_sandbox(struct tool_call *call, struct husk_error *err)
{
	cleanup_changes struct husk_change **list = NULL;
	const char *against = tool_string(call, "against");
	size_t count = 0;

	if (session_sandbox(call, NEED_EXISTING, 0, err) < 0 ||
	    session_check_state(call, "against", against, err) < 0 ||
	    husk_diff(call->session->husk, call->sandbox, against, tool_string(call, "path"), &list, err) < 0)
		return -1;
	while (list[count])
		count++;
	if (say_changes(call, list, count, err) < 0)
		return -1;
	cleanup_json json_t *changes = json_changes(list);
	for (size_t i = count; changes && i > CHANGES_MAX; i--)
		json_array_remove(changes, i - 1);
	return changes ? tool_give(call, json_pack("{s:O, s:I}", "changes", changes, "count", (json_int_t)count), err)
		       : husk_fail_memory(err);
}
