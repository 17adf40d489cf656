/*
 * The screen of a sandbox: shows and controls it. husk-desktop (guest/desktop/) does the work inside the guest, as a
 * process of the agent with the label "desktop:0". In templates with a desktop it runs in the snapshot; elsewhere it is
 * started.
 *
 * Example: {"actions":[{"action":"left_click","coordinate":[9999,0]}]} goes in as one line with an id, and comes back as
 * {"id":…,"type":"end","results":[],"error":{"index":0,"action":"left_click","field":"coordinate","message":"… is off the screen …"}},
 * which becomes INVALID, "actions[0].coordinate", "action 0 (left_click): … is off the screen …".
 *
 * The guest controls the answer. lines.h bounds its length, and this file its time; an error is shortened to printable
 * text.
 */
#include "client/desktop.h"
#include "client/lines.h"

#define LABEL "desktop:0"
#define HELPER "/.husk/guest/husk-desktop"
#define REQUEST_MAX_BYTES (6u << 20)
#define START_LIMIT_MS 30000
/* The helper waits for at most 100 s in one request, opens the browser in 55 s and a lost display in 20 s. */
#define ANSWER_LIMIT_MS 300000
#define DEPTH_MAX 16

static bool is_helper(const void *data, const char *label)
{
	(void)data;
	return str_equal(label, LABEL);
}

static int helper_ended(struct lines *lines, const struct husk_process_event *event, struct husk_error *err)
{
	lines_forget(lines, lines->pid, NULL);
	if (event->exit_code == 127 || event->exit_code == 126)
		return husk_fail(err, HUSK_UNAVAILABLE,
				 "template is older than husk-desktop; build it again (husk template build)");
	if (event->signal)
		return husk_fail(err, HUSK_GONE,
				 "the desktop helper was killed by signal %d; the next call starts it afresh",
				 event->signal);
	return husk_fail(err, HUSK_GONE, "the desktop helper ended with exit code %d; the next call starts it afresh",
			 event->exit_code);
}

/* ---- errors of the helper ---- */

static enum husk_code code_of(const char *name)
{
	static const struct {
		const char *name;
		enum husk_code code;
	} codes[] = {
		{ "invalid", HUSK_INVALID }, { "conflict", HUSK_CONFLICT },       { "limit", HUSK_LIMIT },
		{ "timeout", HUSK_TIMEOUT }, { "unavailable", HUSK_UNAVAILABLE }, { "gone", HUSK_GONE },
	};

	for (size_t i = 0; i < ARRAY_SIZE(codes); i++)
		if (str_equal(codes[i].name, name))
			return codes[i].code;
	return HUSK_INTERNAL;
}

/* At most size - 1 bytes of the text, without what must not reach a terminal. */
static void copy_printable(const char *text, char *out, size_t size)
{
	size_t used = 0, left = strlen(text);

	while (left && used + 5 < size) {
		size_t bytes = str_printable(text, left);
		if (bytes)
			memcpy(out + used, text, bytes);
		else
			out[used] = '?';
		used += MAX(bytes, 1u);
		text += MAX(bytes, 1u);
		left -= MAX(bytes, 1u);
	}
	out[used] = '\0';
}

static int refused(const json_t *error, struct husk_error *err)
{
	char message[600], action[40], field[32];
	json_int_t index = json_integer_value(json_object_get(error, "index"));
	enum husk_code code = code_of(lines_text(error, "code"));

	copy_printable(lines_text(error, "message"), message, sizeof(message));
	if (!*message)
		snprintf(message, sizeof(message), "the desktop helper gives no reason");
	copy_printable(lines_text(error, "action"), action, sizeof(action));
	copy_printable(lines_text(error, "field"), field, sizeof(field));
	if (!json_is_integer(json_object_get(error, "index")) || index < 0 || index > 100000) {
		if (code == HUSK_UNAVAILABLE)
			return husk_fail(err, code, "sandbox has no desktop (%s); use -t desktop", message);
		return code == HUSK_INVALID ? husk_fail_field(err, field, "%s", message)
					    : husk_fail(err, code, "%s", message);
	}
	if (code != HUSK_INVALID)
		return husk_fail(err, code, "action %d (%s): %s", (int)index, action, message);
	cleanup_free char *where =
		str_format(*field && !str_equal(field, "action") ? "actions[%d].%s" : "actions[%d]", (int)index, field);
	return husk_fail_field(err, where ? where : "actions", "action %d (%s): %s", (int)index, action, message);
}

int desktop_answer(json_t *object, char **text, struct husk_error *err)
{
	const json_t *error = json_object_get(object, "error");

	if (error)
		return refused(error, err);
	if (!json_is_array(json_object_get(object, "results")))
		return husk_fail(err, HUSK_PROTOCOL, "the desktop helper gave an answer without results");
	json_object_del(object, "id");
	json_object_del(object, "type");
	*text = json_dumps(object, JSON_COMPACT);
	return *text ? 0 : husk_fail_memory(err);
}

/* ---- the call ---- */

static json_t *request_of(const char *text, const char *id, struct husk_error *err)
{
	size_t size = text ? strlen(text) : 0;
	json_error_t where;

	if (size > REQUEST_MAX_BYTES) {
		husk_fail_field(err, "request", "the request has more than %u MiB", REQUEST_MAX_BYTES >> 20);
		return NULL;
	}
	json_t *request = !size                                    ? json_object()
			  : str_json_deeper(text, size, DEPTH_MAX) ? NULL
								   : json_loads(text, JSON_REJECT_DUPLICATES, &where);
	if (!json_is_object(request) || json_object_set_new(request, "id", json_string(id)) < 0) {
		json_decref(request);
		husk_fail_field(err, "request", "the request is not a JSON object, as in {\"actions\": []}");
		return NULL;
	}
	return request;
}

/* ---- people and recordings ---- */

static bool is_input(const json_t *action)
{
	static const char *const harmless[] = { "screenshot", "zoom", "cursor_position", "wait", "get_clipboard",
						"windows",    "tree" };
	const char *name = lines_text(action, "action");

	for (size_t i = 0; i < ARRAY_SIZE(harmless); i++)
		if (str_equal(name, harmless[i]))
			return false;
	return true;
}

/* While a person is in control, an agent may look, but not act. What it does is part of recordings. */
static int admit(struct husk *husk, const char *sandbox, const json_t *actions, struct husk_error *err)
{
	size_t index;
	json_t *action;
	bool acts = false;

	json_array_foreach(actions, index, action) acts |= is_input(action);
	if (acts && husk_control_check(husk, sandbox, err) < 0)
		return -1;
	json_array_foreach(actions, index, action)
	{
		cleanup_free char *text = json_dumps(action, JSON_COMPACT);
		struct husk_error why = { 0 };
		if (text && husk_recording_note(husk, sandbox, text, &why) < 0)
			log_line(LOG_WARN, "an action of %s is missing in a recording: %s", sandbox, why.message);
	}
	return 0;
}

/* Reads until the answer to our own request. */
static int follow(struct lines *lines, const char *id, json_t **out, struct husk_error *err)
{
	int64_t deadline = time_monotonic_ms() + ANSWER_LIMIT_MS;

	for (;;) {
		cleanup_json json_t *object = NULL;
		int got = lines_read(lines, deadline, &object, err);
		if (got < 0)
			return -1;
		if (got == 0) {
			lines_forget(lines, lines->pid, NULL);
			return husk_fail(err, HUSK_TIMEOUT,
					 "the desktop helper did not answer within %d seconds and was ended",
					 ANSWER_LIMIT_MS / 1000);
		}
		if (str_equal(lines_text(object, "id"), id) && str_equal(lines_text(object, "type"), "end")) {
			*out = steal_pointer(object);
			return 0;
		}
	}
}

int husk_desktop_act(struct husk *husk, const char *sandbox, const struct husk_desktop_options *options, char **answer,
		     struct husk_error *err)
{
	cleanup(lines_close) struct lines lines = {
		.husk = husk,
		.sandbox = sandbox,
		.what = "desktop",
		.name = "0",
		.wait = options->wait,
		.wait_data = options->wait_data,
		.ended = helper_ended,
	};
	const struct husk_exec_options exec = {
		.argv = (const char *const[]){ HELPER, NULL },
		.user = "root",
		.label = LABEL,
		.keep_stdin = true,
	};
	char id[32];

	if (random_id("act-", 20, id) < 0)
		return husk_fail_errno(err, "no random bytes for a request id");
	cleanup_json json_t *request = request_of(options->request, id, err), *object = NULL;
	if (!request || admit(husk, sandbox, json_object_get(request, "actions"), err) < 0 ||
	    lines_open(&lines, is_helper, NULL, &exec, START_LIMIT_MS, err) < 0 ||
	    lines_send(&lines, request, err) < 0 || follow(&lines, id, &object, err) < 0)
		return -1;
	return desktop_answer(object, answer, err);
}
