/*
 * run_code: runs code in an interpreter that keeps its state. Results keep their type: text as text, pictures as
 * images, other data by MIME type. Cancelling interrupts the code, and restarts the interpreter if the code does not
 * stop. If a client only disconnects, the code continues.
 */
#include <signal.h>

#include "mcp/tools.h"

#define TIMEOUT_MS 120000
#define CANCEL_MS 3000
#define IMAGES_MAX 8
#define IMAGE_BYTES_MAX (6u << 20)   /* in base64, per image */
#define BUNDLE_BYTES_MAX (64u << 10) /* of all parts of a result that are not images */
#define RESULTS_MAX 64

struct run {
	struct tool_call *call;
	struct clip output[2];
	struct tool_progress progress;
	int64_t started_ms;                      /* wall clock, to find connections blocked since then */
	json_t *results, *text, *error, *images; /* images: [{type, data}] */
	size_t left_out;                         /* results that were too many or too large */
	bool broken;                             /* out of memory */
};

static void run_free(struct run *run)
{
	clip_free(&run->output[0]);
	clip_free(&run->output[1]);
	json_decref(run->results);
	json_decref(run->text);
	json_decref(run->error);
	json_decref(run->images);
}

/* ---- events of the code ---- */

static bool is_picture(const char *type)
{
	return str_equal(type, "image/png") || str_equal(type, "image/jpeg") || str_equal(type, "image/gif") ||
	       str_equal(type, "image/webp");
}

/* Moves one representation to its list; returns true if it was kept. */
static bool sort_out(struct run *run, json_t *kept, const char *type, json_t *value)
{
	size_t size = json_string_length(value);

	if (is_picture(type) && json_is_string(value)) {
		if (json_array_size(run->images) >= IMAGES_MAX || size > IMAGE_BYTES_MAX)
			return false;
		run->broken |=
			json_array_append_new(run->images, json_pack("{s:s, s:O}", "type", type, "data", value)) < 0 ||
			json_object_set_new(kept, type, json_string("(in the content)")) < 0;
		return true;
	}
	cleanup_free char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
	if (!text || strlen(text) > BUNDLE_BYTES_MAX)
		return false;
	run->broken |= json_object_set(kept, type, value) < 0;
	return true;
}

static void on_result(struct run *run, const struct husk_code_event *event)
{
	cleanup_json json_t *bundle = event->bundle ? json_loads(event->bundle, 0, NULL) : NULL;
	cleanup_json json_t *kept = json_object();
	const char *type;
	json_t *value;

	json_object_foreach(bundle, type, value) run->left_out += !sort_out(run, kept, type, value);
	if (event->main_result) {
		size_t size = event->text ? strlen(event->text) : 0;
		json_decref(run->text);
		run->text = json_text(event->text ? event->text : "", MIN(size, BUNDLE_BYTES_MAX));
		run->left_out += size > BUNDLE_BYTES_MAX;
	}
	if (json_array_size(run->results) < RESULTS_MAX)
		run->broken |= !kept || json_array_append(run->results, kept) < 0;
	else
		run->left_out++;
}

static void on_event(void *data, const struct husk_code_event *event)
{
	struct run *run = data;
	const char *text = event->text ? event->text : "";

	if (event->kind == HUSK_CODE_RESULT) {
		on_result(run, event);
	} else if (event->kind == HUSK_CODE_ERROR) {
		json_decref(run->error);
		run->error = json_pack("{s:o, s:o, s:o}", "name", json_text0(event->name), "value",
				       json_text0(event->value), "traceback", json_text0(event->text));
		run->broken |= !run->error;
	} else {
		tool_progress_output(&run->progress, text, strlen(text));
		run->broken |= clip_add(&run->output[event->kind == HUSK_CODE_STDERR], text, strlen(text), NULL) < 0;
	}
}

/* How libhusk waits for the code: as the call waits, with progress reports. */
static int wait_for_code(void *data, int fd, int timeout_ms)
{
	struct run *run = data;
	struct mcp_call *waiter = run->call->call;
	int64_t deadline = time_monotonic_ms() + timeout_ms;

	for (;;) {
		int64_t left = timeout_ms < 0 ? PROGRESS_MS : MAX(0, deadline - time_monotonic_ms());
		int ready = waiter->wait(waiter->data, fd, (int)MIN(left, PROGRESS_MS));
		tool_progress_tick(run->call, &run->progress);
		if (ready != 0)
			return ready;
		if (timeout_ms >= 0 && time_monotonic_ms() >= deadline)
			return 0;
	}
}

/* ---- cancelling ---- */

static void ignore_event(void *data, const struct husk_code_event *event)
{
	(void)data, (void)event;
}

/* Interrupts the context. If the code does not stop, libhusk ends it, as after any timeout: a second request is made
 * that the busy context cannot answer in time. */
static void stop_code(struct tool_call *call, const struct husk_code_options *options)
{
	struct husk *husk = call->session->husk;
	const struct husk_code_options probe = { .language = options->language,
						 .context = options->context,
						 .code = str_equal(options->language, "bash") ? "true" : "0",
						 .timeout_ms = CANCEL_MS };
	struct husk_code_context *list = NULL;
	size_t count = 0;
	bool timed_out;

	if (husk_code_contexts(husk, call->sandbox, &list, &count, NULL) < 0)
		return;
	for (size_t i = 0; i < count; i++) {
		if (!str_equal(list[i].name, options->context) || !str_equal(list[i].language, options->language))
			continue;
		husk_process_kill(husk, call->sandbox, list[i].pid, SIGINT, NULL);
		husk_code_run(husk, call->sandbox, &probe, ignore_event, NULL, &timed_out, NULL);
	}
	husk_code_context_list_free(list, count);
}

/* ---- the result ---- */

static int append(struct buf *text, const char *before, const char *bytes, size_t size)
{
	if (!size)
		return 0;
	return (text->size && text->data[text->size - 1] != '\n' ? buf_append_string(text, "\n") : 0) |
	       buf_append_string(text, before) | buf_append(text, bytes, size);
}

static int say_run(struct run *run, const struct buf *out, const struct buf *error, bool timed_out, int64_t ms,
		   json_t **blocked, struct husk_error *err)
{
	static const char late[] = "[it ran out of time and was interrupted; give a longer timeout_seconds]\n";
	cleanup_buf struct buf text = { 0 };
	const json_t *traceback = json_object_get(run->error, "traceback");
	int bad = append(&text, "", out->data, out->size) | append(&text, "[stderr]\n", error->data, error->size);

	bad |= append(&text, "[result]\n", json_string_value(run->text), json_string_length(run->text));
	bad |= append(&text, "[error]\n", json_string_value(traceback), json_string_length(traceback));
	if (timed_out)
		bad |= append(&text, "", late, strlen(late));
	if (run->error && text.size && text.data[text.size - 1] != '\n')
		bad |= buf_append_string(&text, "\n");
	*blocked = run->error ? denied_add(run->call, run->started_ms, json_string_value(traceback),
					   json_string_length(traceback), &text)
			      : json_array();
	bad |= !*blocked;
	if (run->left_out)
		bad |= buf_printf(&text, "\n[%zu results were too many or too large to show]", run->left_out);
	cleanup_free char *end = str_format("[%lld ms, sandbox %s]", (long long)ms, run->call->sandbox);
	bad |= !end || append(&text, "", end, strlen(end));
	return bad ? husk_fail_memory(err) : tool_say(run->call, text.data, text.size, err);
}

static int give_result(struct run *run, bool timed_out, int64_t ms, struct husk_error *err)
{
	cleanup_buf struct buf out = { 0 }, error = { 0 };
	cleanup_json json_t *blocked = NULL;
	uint64_t left_out;
	json_t *image;
	size_t i;

	if (run->broken)
		return husk_fail_memory(err);
	if (clip_text(&run->output[0], &out, &left_out, err) < 0 ||
	    clip_text(&run->output[1], &error, &left_out, err) < 0 ||
	    say_run(run, &out, &error, timed_out, ms, &blocked, err) < 0)
		return -1;
	json_array_foreach(run->images, i,
			   image) if (tool_show_image(run->call, json_string_value(json_object_get(image, "type")),
						      json_incref(json_object_get(image, "data")), err) < 0) return -1;
	run->call->is_error = timed_out || run->error;
	return tool_give(run->call,
			 json_pack("{s:o, s:o, s:O?, s:O, s:O?, s:b, s:I, s:O}", "stdout",
				   json_text(out.data ? out.data : "", out.size), "stderr",
				   json_text(error.data ? error.data : "", error.size), "result", run->text, "results",
				   run->results, "error", run->error, "timed_out", timed_out, "duration_ms",
				   (json_int_t)ms, "blocked", blocked),
			 err);
}

int tool_run_code(struct tool_call *call, struct husk_error *err)
{
	const char *language = tool_string(call, "language"), *context = tool_string(call, "context");
	cleanup(run_free) struct run run = { .call = call, .results = json_array(), .images = json_array() };
	const struct husk_code_options options = {
		.language = language ? language : "python",
		.context = context ? context : "default",
		.code = tool_string(call, "code"),
		.cwd = tool_string(call, "cwd"),
		.timeout_ms = tool_timeout_ms(call, TIMEOUT_MS),
		.wait = wait_for_code,
		.wait_data = &run,
	};
	bool timed_out = false;

	if (!run.results || !run.images)
		return husk_fail_memory(err);
	if (session_sandbox(call, NEED_ANY, options.timeout_ms, err) < 0)
		return -1;
	tool_progress_begin(&run.progress);
	run.started_ms = time_wall_ms();
	int result = husk_code_run(call->session->husk, call->sandbox, &options, on_event, &run, &timed_out, err);
	if (result < 0 && atomic_load(&call->call->cancelled))
		stop_code(call, &options);
	if (result < 0)
		return -1;
	return give_result(&run, timed_out, time_monotonic_ms() - run.progress.started_ms, err);
}
