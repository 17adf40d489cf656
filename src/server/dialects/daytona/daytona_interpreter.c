/*
 * Daytona's code interpreter, on Husk's code contexts: a WebSocket that takes one piece of code and streams its output, and
 * routes for contexts, which keep their variables. The default context is used when none is named. When a client
 * disconnects, its code is interrupted, because a context runs one request at a time.
 */
#include <poll.h>
#include <signal.h>

#include "server/dialects/daytona/daytona.h"
#include "server/websocket.h"

#define CLOSE_NORMAL 1000
#define CLOSE_FAILED 1011
#define CLOSE_INVALID 1008
#define CLOSE_TIMED_OUT 4008
#define FIRST_MS 30000 /* for the code to come */
#define FAREWELL_MS 5000
#define TIMEOUT_MAX (INT64_C(7) * 86400)
#define DEFAULT_CONTEXT "default"

struct run {
	struct request *request;
	struct daytona_box box;
	struct websocket *websocket;
	int fd;
	json_t *message; /* the client's */
	bool broken;     /* it has gone */
};

static void run_free(struct run *run)
{
	if (!run)
		return;
	websocket_free(run->websocket);
	daytona_box_free(&run->box);
	json_decref(run->message);
	free(run);
}

static void run_cleanup(struct run **run)
{
	run_free(*run);
}

/* ---- the socket ---- */

static int on_message(void *data, bool text, const char *bytes, size_t size)
{
	struct run *run = data;

	(void)text;
	if (!run->message && !str_json_deeper(bytes, size, 8))
		run->message = json_loadb(bytes, size, JSON_REJECT_DUPLICATES, NULL);
	return 0;
}

/* Moves bytes until `deadline`, or until one of the two descriptors is ready. */
static int turn(struct run *run, int other, int64_t deadline)
{
	for (;;) {
		if (websocket_receive(run->websocket) < 0 || websocket_flush(run->websocket) < 0 ||
		    websocket_over(run->websocket))
			return -1;
		int64_t left = deadline < 0 ? 15000 : deadline - time_monotonic_ms();
		if (left <= 0)
			return 0;
		struct pollfd wait[] = {
			{ .fd = run->fd,
			  .events = (short)(POLLIN | (websocket_sending(run->websocket) ? POLLOUT : 0)) },
			{ .fd = other, .events = POLLIN },
			{ .fd = request_over_fd(run->request), .events = POLLIN },
		};
		if (poll(wait, ARRAY_SIZE(wait), (int)MIN(left, 15000)) < 0 && errno != EINTR)
			return -1;
		if (wait[2].revents)
			return -1;
		if (wait[1].revents || (other < 0 && wait[0].revents))
			return 1;
	}
}

static int wait_for_code(void *data, int fd, int timeout_ms)
{
	struct run *run = data;

	if (run->broken)
		return -1;
	int ready = turn(run, fd, timeout_ms < 0 ? -1 : time_monotonic_ms() + timeout_ms);
	run->broken = ready < 0;
	return ready;
}

static void say(struct run *run, json_t *document)
{
	if (websocket_send_json(run->websocket, document) < 0 || websocket_flush(run->websocket) < 0)
		run->broken = true;
}

static void on_event(void *data, const struct husk_code_event *event)
{
	struct run *run = data;

	switch (event->kind) {
	case HUSK_CODE_STDOUT:
	case HUSK_CODE_STDERR:
		say(run, json_pack("{s:s, s:o}", "type", event->kind == HUSK_CODE_STDOUT ? "stdout" : "stderr", "text",
				   json_text0(event->text ? event->text : "")));
		break;
	case HUSK_CODE_ERROR:
		if (str_equal(event->name, "SystemExit")) /* an end like any other in Daytona's interpreter */
			break;
		say(run, json_pack("{s:s, s:o, s:o, s:o}", "type", "error", "name", json_text0(event->name), "value",
				   json_text0(event->value), "traceback", json_text0(event->text)));
		break;
	case HUSK_CODE_RESULT: /* Daytona's interpreter shows what code prints, not its values */
		break;
	}
}

static void ignore(void *data, const struct husk_code_event *event)
{
	(void)data, (void)event;
}

/* ---- a run ---- */

/* Is there a context of that name? Also returns its process, if requested. */
static bool has_context(struct request *request, const char *sandbox, const char *name, int64_t *pid)
{
	struct husk_code_context *list = NULL;
	size_t count = 0;
	bool found = false;

	if (husk_code_contexts(request_husk(request), sandbox, &list, &count, NULL) < 0)
		return false;
	for (size_t i = 0; i < count && !found; i++) {
		found = str_equal(list[i].name, name) && str_equal(list[i].language, "python");
		if (found && pid)
			*pid = list[i].pid;
	}
	husk_code_context_list_free(list, count);
	return found;
}

/* Variables of one run: set before it, restored after it. */
static char *environment_code(json_t *variables, bool set)
{
	cleanup_free char *text = json_dumps(variables, JSON_COMPACT);
	cleanup_json json_t *holder = text ? json_string(text) : NULL;
	cleanup_free char *literal = holder ? json_dumps(holder, JSON_ENCODE_ANY) : NULL;

	if (!literal)
		return NULL;
	return set ? str_format("import os as __o, json as __j; __v = __j.loads(%s);"
				" __s = {k: __o.environ.get(k) for k in __v}; __o.environ.update(__v)",
				literal)
		   : strdup("for __k, __x in __s.items(): __o.environ.pop(__k, None) if __x is None else"
			    " __o.environ.__setitem__(__k, __x)");
}

static int run_quietly(struct request *request, const struct daytona_box *box, const char *context, const char *cwd,
		       char *code, struct husk_error *err)
{
	cleanup_free char *owned = code;
	struct husk_code_options options = { .language = "python", .context = context, .code = code, .cwd = cwd };

	if (!code)
		return husk_fail_memory(err);
	return husk_code_run(request_husk(request), box->sandbox->id, &options, ignore, NULL, NULL, err);
}

/* Returns the status to close with. */
static uint16_t execute(struct run *run, struct husk_error *err)
{
	struct fields fields;
	bool timed_out = false;
	int64_t pid = 0;

	fields_begin(&fields, run->message);
	const char *code = fields_string(&fields, "code"), *context = fields_string(&fields, "contextId");
	int64_t seconds = fields_int(&fields, "timeout", 600, 0, TIMEOUT_MAX);
	size_t count = 0;
	cleanup_free struct husk_pair *pairs = fields_pairs(&fields, "envs", &count);
	json_t *variables = count ? json_object_get(run->message, "envs") : NULL;
	if (fields_done_open(&fields, err) < 0)
		return CLOSE_INVALID;
	if (!code || (context && *context && !has_context(run->request, run->box.sandbox->id, context, NULL))) {
		husk_fail(err, HUSK_NOT_FOUND, code ? "there is no such context" : "code is required");
		return CLOSE_INVALID;
	}
	context = context && *context ? context : DEFAULT_CONTEXT;
	if (variables &&
	    run_quietly(run->request, &run->box, context, run->box.home, environment_code(variables, true), err) < 0)
		return CLOSE_FAILED;
	struct husk_code_options options = { .language = "python",
					     .context = context,
					     .code = code,
					     .cwd = run->box.home,
					     .timeout_ms = seconds * 1000,
					     .wait = wait_for_code,
					     .wait_data = run };
	int result = husk_code_run(request_husk(run->request), run->box.sandbox->id, &options, on_event, run,
				   &timed_out, err);
	if (run->broken && has_context(run->request, run->box.sandbox->id, context, &pid))
		husk_process_kill(request_husk(run->request), run->box.sandbox->id, pid, SIGINT, NULL);
	if (result == 0 && variables && !run->broken && !timed_out)
		run_quietly(run->request, &run->box, context, run->box.home, environment_code(variables, false), NULL);
	return timed_out ? CLOSE_TIMED_OUT : result < 0 ? CLOSE_FAILED : CLOSE_NORMAL;
}

/* Sends all output before the close. */
static void farewell(struct run *run, uint16_t status, const char *reason)
{
	int64_t deadline = time_monotonic_ms() + FAREWELL_MS;

	while (websocket_sending(run->websocket) && time_monotonic_ms() < deadline)
		if (turn(run, -1, MIN(deadline, time_monotonic_ms() + 100)) < 0)
			return;
	websocket_close(run->websocket, status, reason);
	while (!websocket_over(run->websocket) && time_monotonic_ms() < deadline)
		if (turn(run, -1, MIN(deadline, time_monotonic_ms() + 100)) < 0)
			return;
}

static void serve(struct request *request, int fd, const void *first, size_t size, void *data)
{
	cleanup(run_cleanup) struct run *run = data;
	int64_t deadline = time_monotonic_ms() + FIRST_MS;
	struct husk_error err = { 0 };
	char reason[120] = "";

	run->request = request;
	run->fd = fd;
	run->websocket = websocket_open(fd, first, size, on_message, run);
	if (!run->websocket)
		return;
	websocket_receive(run->websocket);
	while (!run->message && time_monotonic_ms() < deadline)
		if (turn(run, -1, MIN(deadline, time_monotonic_ms() + 1000)) < 0)
			return;
	uint16_t status = json_is_object(run->message) ? execute(run, &err) : CLOSE_INVALID;
	if (run->broken)
		return;
	if (status == CLOSE_NORMAL)
		say(run, json_pack("{s:s, s:s}", "type", "control", "text", "completed"));
	else
		snprintf(reason, sizeof(reason), "%.100s",
			 status == CLOSE_TIMED_OUT ? "execution timed out"
			 : err.code                ? err.message
						   : "no code was sent");
	farewell(run, status, reason);
}

static int handle_execute(struct request *request, struct husk_error *err)
{
	cleanup(run_cleanup) struct run *run = calloc(1, sizeof(*run));

	if (!run)
		return husk_fail_memory(err);
	if (daytona_enter(request, &run->box, err) < 0 || websocket_accept(request, err) < 0 ||
	    respond_upgrade(request, serve, run, err) < 0)
		return -1;
	steal_pointer(run);
	return 0;
}

/* ---- contexts ---- */

static json_t *context_document(const char *name, const char *cwd, const struct daytona_box *box)
{
	return json_pack("{s:s, s:o, s:s, s:o, s:b}", "id", name, "cwd", json_text0(cwd ? cwd : box->home), "language",
			 "python", "createdAt", json_time(box->sandbox->created_ms), "active", true);
}

static int handle_contexts(struct request *request, struct husk_error *err)
{
	struct husk_code_context *list = NULL;
	cleanup_json json_t *array = json_array();
	cleanup_box struct daytona_box box = { 0 };
	size_t count = 0;

	if (daytona_enter(request, &box, err) < 0 ||
	    husk_code_contexts(request_husk(request), box.sandbox->id, &list, &count, err) < 0)
		return -1;
	/* The default context is shared and is not listed. */
	for (size_t i = 0; array && i < count; i++)
		if (str_equal(list[i].language, "python") && !str_equal(list[i].name, DEFAULT_CONTEXT))
			json_array_append_new(array, context_document(list[i].name, list[i].cwd, &box));
	husk_code_context_list_free(list, count);
	return respond_json(request, 200, json_pack("{s:O}", "contexts", array), err);
}

static int handle_create(struct request *request, struct husk_error *err)
{
	cleanup_box struct daytona_box box = { 0 };
	cleanup_free char *cwd = NULL;
	struct fields fields;
	char name[32];

	if (fields_begin(&fields, request_json(request, err)) < 0)
		return -1;
	const char *given = fields_string(&fields, "cwd"), *language = fields_string(&fields, "language");
	if (fields_done_open(&fields, err) < 0 || daytona_enter(request, &box, err) < 0 ||
	    daytona_path(&box, given ? given : "", &cwd, err) < 0)
		return -1;
	if (language && *language && !str_equal(language, "python"))
		return husk_fail_field(err, "language", "unsupported language: %.40s; only python is", language);
	if (random_id("ctx-", 16, name) < 0)
		return husk_fail_errno(err, "cannot make a context's name");
	if (run_quietly(request, &box, name, cwd, strdup(""), err) < 0)
		return -1;
	return respond_json(request, 200, context_document(name, cwd, &box), err);
}

static int handle_remove(struct request *request, struct husk_error *err)
{
	const char *name = request_path(request, "context");
	cleanup_box struct daytona_box box = { 0 };

	if (daytona_enter(request, &box, err) < 0)
		return -1;
	if (str_equal(name, DEFAULT_CONTEXT))
		return daytona_fail(request, 400, "BAD_REQUEST", "the default context cannot be deleted");
	if (!has_context(request, box.sandbox->id, name, NULL))
		return husk_fail(err, HUSK_NOT_FOUND, "context not found: %.80s", name);
	if (husk_code_remove(request_husk(request), box.sandbox->id, name, err) < 0)
		return -1;
	return respond_json(request, 200, json_pack("{s:s}", "message", "context deleted"), err);
}

const struct route daytona_interpreter_routes[] = {
	{ "GET", DAYTONA_TOOLBOX "/process/interpreter/execute", handle_execute, ROUTE_SOCKET | ROUTE_AUTHORISE },
	{ "GET", DAYTONA_TOOLBOX "/process/interpreter/context", handle_contexts, 0 },
	{ "POST", DAYTONA_TOOLBOX "/process/interpreter/context", handle_create, 0 },
	{ "DELETE", DAYTONA_TOOLBOX "/process/interpreter/context/{context}", handle_remove, 0 },
	{ 0 },
};
