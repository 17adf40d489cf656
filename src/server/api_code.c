/*
 * POST …/code: runs code in a context that keeps its state, and answers with the whole result or with a stream; also
 * the routes for contexts. If a client disconnects, the code continues, as a process does. Output comes from the guest:
 * it is bounded, converted to valid UTF-8, and never interpreted.
 */
#include "server/server.h"

#define OUTPUT_MAX (16u << 20)  /* of each stream in a collected answer; the rest is counted */
#define RESULTS_MAX (64u << 20) /* bytes of results, likewise */

/* One run, as its answer grows. */
struct run {
	struct request *request;
	struct husk_pair *environment;
	int64_t started_ms;   /* wall clock */
	bool stream, begun;   /* begun: the head of the stream was sent */
	struct buf output[2]; /* [0] is stdout */
	uint64_t lost[2];
	json_t *results, *text, *error;
	size_t result_bytes, results_lost;
	bool broken; /* the client is gone, or memory ran out: `failure` says which */
	struct husk_error failure;
};

static void run_cleanup(struct run *run)
{
	free(run->environment);
	buf_free(&run->output[0]);
	buf_free(&run->output[1]);
	json_decref(run->results);
	json_decref(run->text);
	json_decref(run->error);
}

/* A stream begins with its first event: a failure before that is an answer with its own status. */
static int run_begin(struct run *run, struct husk_error *err)
{
	if (!run->stream || run->begun)
		return 0;
	run->begun = true;
	return sse_begin(run->request, err);
}

/* ---- events of the code ---- */

static int on_output(struct run *run, const struct husk_code_event *event, struct husk_error *err)
{
	int index = event->kind == HUSK_CODE_STDERR;
	const char *text = event->text ? event->text : "";
	size_t size = strlen(text);

	if (run->stream)
		return sse_send(run->request, index ? "stderr" : "stdout", NULL,
				json_pack("{s:o}", "text", json_text(text, size)), err);
	size_t kept = MIN(size, OUTPUT_MAX - run->output[index].size);
	run->lost[index] += size - kept;
	return kept && buf_append(&run->output[index], text, kept) < 0 ? husk_fail_memory(err) : 0;
}

static int on_result(struct run *run, const struct husk_code_event *event, struct husk_error *err)
{
	json_t *data = event->bundle ? json_loads(event->bundle, 0, NULL) : NULL;
	cleanup_json json_t *document = json_pack("{s:b, s:o, s:o}", "main", event->main_result, "text",
						  json_text0(event->text), "data", data ? data : json_object());

	if (!document)
		return husk_fail_memory(err);
	if (run->stream)
		return sse_send(run->request, "result", NULL, steal_pointer(document), err);
	if (event->main_result) {
		json_decref(run->text);
		run->text = json_incref(json_object_get(document, "text"));
	}
	size_t size = (event->text ? strlen(event->text) : 0) + (event->bundle ? strlen(event->bundle) : 0);
	if (run->result_bytes + size > RESULTS_MAX) {
		run->results_lost++;
		return 0;
	}
	run->result_bytes += size;
	return json_array_append_new(run->results, steal_pointer(document)) < 0 ? husk_fail_memory(err) : 0;
}

static int on_error(struct run *run, const struct husk_code_event *event, struct husk_error *err)
{
	json_t *document = json_pack("{s:o, s:o, s:o}", "name", json_text0(event->name), "value",
				     json_text0(event->value), "traceback", json_text0(event->text));

	json_decref(run->error);
	run->error = document;
	if (!document)
		return husk_fail_memory(err);
	return run->stream ? sse_send(run->request, "error", NULL, json_incref(document), err) : 0;
}

static void on_event(void *data, const struct husk_code_event *event)
{
	struct run *run = data;
	int result;

	if (run->broken)
		return;
	run->broken = run_begin(run, &run->failure) < 0;
	if (run->broken)
		return;
	if (event->kind == HUSK_CODE_RESULT)
		result = on_result(run, event, &run->failure);
	else if (event->kind == HUSK_CODE_ERROR)
		result = on_error(run, event, &run->failure);
	else
		result = on_output(run, event, &run->failure);
	run->broken = result < 0;
}

/* How libhusk waits for the code: as the request waits, with keep-alive comments on a stream. */
static int wait_for_code(void *data, int fd, int timeout_ms)
{
	struct run *run = data;
	int64_t deadline = time_monotonic_ms() + timeout_ms;

	if (!run->broken)
		run->broken = run_begin(run, &run->failure) < 0;
	while (!run->broken) {
		int64_t left = timeout_ms < 0 ? SSE_PING_MS : MAX(0, deadline - time_monotonic_ms());
		int ready = request_wait(run->request, fd, (int)MIN(left, SSE_PING_MS));
		if (ready != 0)
			return ready;
		if (timeout_ms >= 0 && time_monotonic_ms() >= deadline)
			return 0;
		run->broken = run->stream && sse_ping(run->request, &run->failure) < 0;
	}
	return -1;
}

/* ---- running it ---- */

/* What the network policy denied, if the code failed. */
static json_t *run_denied(struct run *run, bool timed_out)
{
	const char *traceback = json_string_value(json_object_get(run->error, "traceback"));

	if (!run->error && !timed_out)
		return json_array();
	return json_denied(request_husk(run->request), request_path(run->request, "id"), run->started_ms, traceback,
			   traceback ? strlen(traceback) : 0);
}

static json_t *run_document(struct run *run, bool timed_out, int64_t duration_ms)
{
	cleanup_json json_t *document =
		json_pack("{s:O, s:O?, s:O?, s:b, s:I, s:I, s:I, s:I, s:o}", "results", run->results, "text", run->text,
			  "error", run->error, "timed_out", timed_out, "duration_ms", (json_int_t)duration_ms,
			  "stdout_lost", (json_int_t)run->lost[0], "stderr_lost", (json_int_t)run->lost[1],
			  "results_lost", (json_int_t)run->results_lost, "denied", run_denied(run, timed_out));

	if (!document || json_set_bytes(document, "stdout", run->output[0].data, run->output[0].size) < 0 ||
	    json_set_bytes(document, "stderr", run->output[1].data, run->output[1].size) < 0)
		return NULL;
	return steal_pointer(document);
}

static int run_code(struct run *run, struct husk_code_options *options, struct husk_error *err)
{
	struct request *request = run->request;
	struct husk_error why = { 0 };
	bool timed_out = false;

	options->wait = wait_for_code;
	options->wait_data = run;
	run->results = json_array();
	if (!run->results)
		return husk_fail_memory(err);
	int64_t started = time_monotonic_ms();
	run->started_ms = time_wall_ms();
	int result = husk_code_run(request_husk(request), request_path(request, "id"), options, on_event, run,
				   &timed_out, &why);
	int64_t duration_ms = time_monotonic_ms() - started;
	if (run->broken)
		why = run->failure;
	bool failed = result < 0 || run->broken;
	if (failed && run->begun)
		return sse_error(request, &why, err);
	if (failed) {
		*err = why;
		return -1;
	}
	if (!run->stream)
		return respond_json(request, 200, run_document(run, timed_out, duration_ms), err);
	if (run_begin(run, err) < 0)
		return -1;
	return sse_send(request, "done", NULL,
			json_pack("{s:b, s:I, s:o}", "timed_out", timed_out, "duration_ms", (json_int_t)duration_ms,
				  "denied", run_denied(run, timed_out)),
			err);
}

static int read_code(struct run *run, struct husk_code_options *options, struct husk_error *err)
{
	static const char *const known[] = { NULL };
	struct request *request = run->request;
	struct fields fields;

	if (request_query_known(request, known, err) < 0 || fields_begin(&fields, request_json(request, err)) < 0)
		return -1;
	options->code = fields_string(&fields, "code");
	options->language = fields_string(&fields, "language");
	options->context = fields_string(&fields, "context");
	options->cwd = fields_string(&fields, "cwd");
	run->environment = fields_pairs(&fields, "env", &options->environment_count);
	options->environment = run->environment;
	options->timeout_ms = fields_timeout_ms(&fields);
	run->stream = fields_bool(&fields, "stream", request_wants_events(request));
	if (fields_done(&fields, err) < 0)
		return -1;
	if (!options->code)
		return husk_fail_field(err, "code", "code is missing; give the source text to run");
	return 0;
}

static int handle_stream(struct request *request, struct husk_error *err)
{
	cleanup(run_cleanup) struct run run = { .request = request };
	struct husk_code_options options = { 0 };

	return read_code(&run, &options, err) < 0 ? -1 : run_code(&run, &options, err);
}

static int handle_code(struct request *request, struct husk_error *err)
{
	cleanup(run_cleanup) struct run run = { .request = request };
	struct husk_code_options options = { 0 };

	if (read_code(&run, &options, err) < 0)
		return -1;
	return run.stream ? respond_streaming(request, handle_stream) : run_code(&run, &options, err);
}

/* ---- contexts ---- */

static int handle_contexts(struct request *request, struct husk_error *err)
{
	static const char *const known[] = { NULL };
	struct husk_code_context *list = NULL;
	size_t count = 0;

	if (request_query_known(request, known, err) < 0 ||
	    husk_code_contexts(request_husk(request), request_path(request, "id"), &list, &count, err) < 0)
		return -1;
	json_t *array = json_code_contexts(list, count);
	husk_code_context_list_free(list, count);
	return respond_json(request, 200, array ? json_pack("{s:o}", "contexts", array) : NULL, err);
}

static int handle_restart(struct request *request, struct husk_error *err)
{
	if (husk_code_restart(request_husk(request), request_path(request, "id"), request_path(request, "name"), err) <
	    0)
		return -1;
	return respond_empty(request, 204, err);
}

static int handle_remove(struct request *request, struct husk_error *err)
{
	if (husk_code_remove(request_husk(request), request_path(request, "id"), request_path(request, "name"), err) <
	    0)
		return -1;
	return respond_empty(request, 204, err);
}

const struct route code_routes[] = {
	{ "POST", "/v1/sandboxes/{id}/code", handle_code, 0 },
	{ "GET", "/v1/sandboxes/{id}/contexts", handle_contexts, 0 },
	{ "POST", "/v1/sandboxes/{id}/contexts/{name}/restart", handle_restart, 0 },
	{ "DELETE", "/v1/sandboxes/{id}/contexts/{name}", handle_remove, 0 },
	{ 0 },
};
