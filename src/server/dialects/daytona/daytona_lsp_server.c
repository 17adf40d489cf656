/*
 * Talks to language servers (daytona_lsp.h): finds, starts and ends them, and carries JSON-RPC over the stdin and stdout
 * of their process. The guest controls their output: messages are bounded (daytona_frames.c), each exchange has a
 * deadline, and a message that was not requested is dropped. A language server that received half a message is killed,
 * because it would misread everything that follows. File contents and answers are never logged.
 */
#include <ctype.h>
#include <pthread.h>
#include <signal.h>

#include "server/api_process.h"
#include "server/dialects/daytona/daytona_lsp.h"

#define LABEL "daytona-lsp:"
#define ANSWER_MS 60000
#define GOODBYE_MS 5000
#define TURN_MS 120000
#define LOOK_MS 20          /* how often a waiting request looks whether it is its turn */
#define UNREAD_MAX 524288u  /* see husk_process_unread */
#define COMPLAINT_MAX 4096u /* of stderr, for errors */
#define DEPTH_MAX 64

#define FIND "[ ! -r /etc/profile.d/daytona.sh ] || . /etc/profile.d/daytona.sh; PATH=$HOME/.local/bin:$PATH; "
#define TYPESCRIPT                                                                                                     \
	"typescript-language-server",                                                                                  \
		FIND "command -v typescript-language-server >/dev/null || exit 127;"                                   \
		     " exec typescript-language-server --stdio",                                                       \
		"npm install -g typescript-language-server typescript"

static const struct lsp_language languages[] = {
	{ "python", "pylsp", FIND "command -v pylsp >/dev/null || exit 127; exec pylsp",
	  "pip install python-lsp-server" },
	{ "typescript", TYPESCRIPT },
	{ "javascript", TYPESCRIPT },
};

/* ---- turns ---- */

static pthread_mutex_t turns_lock = PTHREAD_MUTEX_INITIALIZER;
static struct lsp_turn *turns; /* those that were taken, under the lock */

static bool take_turn(struct lsp_turn *turn)
{
	bool free = true;

	pthread_mutex_lock(&turns_lock);
	for (const struct lsp_turn *each = turns; each && free; each = each->next)
		free = !str_equal(each->sandbox, turn->sandbox) || !str_equal(each->label, turn->label);
	if (free) {
		turn->next = turns;
		turn->taken = true;
		turns = turn;
	}
	pthread_mutex_unlock(&turns_lock);
	return free;
}

static void end_turn(struct lsp_turn *turn)
{
	if (!turn->taken)
		return;
	pthread_mutex_lock(&turns_lock);
	struct lsp_turn **at = &turns;
	while (*at != turn)
		at = &(*at)->next;
	*at = turn->next;
	pthread_mutex_unlock(&turns_lock);
	turn->taken = false;
}

static int await_turn(struct lsp *lsp, struct husk_error *err)
{
	int64_t deadline = time_monotonic_ms() + TURN_MS;
	struct request *request = lsp->request;

	lsp->turn = (struct lsp_turn){ .sandbox = lsp->box.sandbox->id, .label = lsp->label };
	while (!take_turn(&lsp->turn)) {
		if (request_wait(request, -1, LOOK_MS) < 0)
			return husk_fail(err, HUSK_GONE, "the client disconnected");
		if (time_monotonic_ms() > deadline)
			return daytona_fail(request, 408, "REQUEST_TIMEOUT",
					    "the language server is busy with other requests");
	}
	return 0;
}

/* ---- opening ---- */

void lsp_close(struct lsp *lsp)
{
	end_turn(&lsp->turn);
	husk_process_free(lsp->process);
	frames_free(&lsp->frames);
	buf_free(&lsp->outgoing);
	buf_free(&lsp->complaint);
	free(lsp->project);
	free(lsp->label);
	daytona_box_free(&lsp->box);
}

static int find_process(struct lsp *lsp, struct husk_error *err)
{
	struct husk_process_info *list = NULL;
	size_t count = 0;

	if (husk_process_list(request_husk(lsp->request), lsp->box.sandbox->id, &list, &count, err) < 0)
		return -1;
	for (size_t i = 0; i < count; i++)
		if (list[i].running && str_equal(list[i].label, lsp->label))
			lsp->pid = list[i].pid;
	husk_process_list_free(list, count);
	return 0;
}

int lsp_open(struct request *request, const char *language, const char *project, struct lsp *lsp,
	     struct husk_error *err)
{
	*lsp = (struct lsp){ .request = request, .follow = { .request = request } };
	for (size_t i = 0; i < ARRAY_SIZE(languages); i++)
		if (str_equal(language, languages[i].name))
			lsp->language = &languages[i];
	if (!language || !*language)
		return husk_fail_field(err, "languageId", "languageId is required");
	if (!lsp->language)
		return husk_fail_field(err, "languageId",
				       "unsupported language: %.40s; python, typescript and javascript are supported",
				       language);
	if (!project || !*project)
		return husk_fail_field(err, "pathToProject", "pathToProject is required");
	if (daytona_enter(request, &lsp->box, err) < 0 || daytona_path(&lsp->box, project, &lsp->project, err) < 0)
		return -1;
	lsp->label = str_format(LABEL "%s:%s", lsp->language->name, lsp->project);
	if (!lsp->label)
		return husk_fail_memory(err);
	return await_turn(lsp, err) < 0 ? -1 : find_process(lsp, err);
}

static int not_running(struct lsp *lsp, struct husk_error *err)
{
	struct request *request = lsp->request;

	return daytona_fail(request, 400, "LSP_SERVER_NOT_INITIALIZED",
			    "no %s language server runs for %.400s; start it first", lsp->language->name, lsp->project);
}

int lsp_open_running(struct request *request, const char *language, const char *project, struct lsp *lsp,
		     struct husk_error *err)
{
	if (lsp_open(request, language, project, lsp, err) < 0)
		return -1;
	if (!lsp->pid)
		return not_running(lsp, err);
	if (process_attach(request, lsp->pid, &lsp->process, err) < 0)
		return err->code == HUSK_CONFLICT ? not_running(lsp, err) : -1;
	lsp->follow.process = lsp->process;
	lsp->follow.pid = lsp->pid;
	return 0;
}

/* ---- messages ---- */

/* Takes the message. */
static int put_message(struct lsp *lsp, json_t *message, struct husk_error *err)
{
	cleanup_json json_t *owned = message;
	cleanup_free char *text = message ? json_dumps(message, JSON_COMPACT) : NULL;

	buf_consume(&lsp->outgoing, lsp->outgoing.size);
	if (!text || buf_printf(&lsp->outgoing, "Content-Length: %zu\r\n\r\n%s", strlen(text), text) < 0)
		return husk_fail_memory(err);
	lsp->follow.input = lsp->outgoing.data;
	lsp->follow.input_size = lsp->outgoing.size;
	return 0;
}

/* The server asks something of the client that it was not promised. Without an answer it might wait for ever. */
static void refuse(struct lsp *lsp, json_t *id)
{
	bool plain = json_is_integer(id) || (json_is_string(id) && json_string_length(id) <= 64);

	if (plain && lsp->follow.input_size == 0)
		put_message(lsp,
			    json_pack("{s:s, s:O, s:{s:i, s:s}}", "jsonrpc", "2.0", "id", id, "error", "code", -32601,
				      "message", "not supported"),
			    NULL);
}

/* Takes what is the answer to `id`; the rest was not asked for. */
static void take_message(struct lsp *lsp, const char *body, size_t size, const char *id, json_t **answer)
{
	cleanup_json json_t *message =
		str_json_deeper(body, size, DEPTH_MAX) ? NULL : json_loadb(body, size, JSON_ALLOW_NUL, NULL);
	json_t *found = json_object_get(message, "id");

	if (json_object_get(message, "method")) {
		if (found)
			refuse(lsp, found);
	} else if (id && !*answer && str_equal(json_string_value(found), id)) {
		*answer = json_incref(message);
	}
}

static int take_output(struct lsp *lsp, const struct husk_process_event *event, const char *id, json_t **answer,
		       struct husk_error *err)
{
	struct request *request = lsp->request;
	const char *body;
	size_t size;
	int found;

	if (event->kind == HUSK_STDERR) {
		size_t room = COMPLAINT_MAX - MIN(lsp->complaint.size, COMPLAINT_MAX);
		return buf_append(&lsp->complaint, event->data, MIN(room, event->size)) < 0 ? husk_fail_memory(err) : 0;
	}
	if (frames_push(&lsp->frames, event->data, event->size) < 0)
		return husk_fail_memory(err);
	while ((found = frames_next(&lsp->frames, &body, &size)) > 0)
		take_message(lsp, body, size, id, answer);
	if (found < 0)
		return daytona_fail(request, 400, "BAD_REQUEST", "the language server's answer is larger than %u MiB",
				    FRAME_MAX >> 20);
	return 0;
}

static int has_ended(struct lsp *lsp, int code, struct husk_error *err)
{
	struct request *request = lsp->request;
	const char *said = lsp->complaint.size ? lsp->complaint.data : "";
	size_t line = strcspn(said, "\n");

	lsp->pid = 0;
	lsp->follow.input_size = 0;
	if (code == 127)
		return daytona_fail(request, 400, "BAD_REQUEST",
				    "%s is not in this sandbox; create one from the snapshot code-interpreter, or run "
				    "'%s' in it",
				    lsp->language->program, lsp->language->package);
	return daytona_fail(request, 400, "LSP_SERVER_NOT_INITIALIZED",
			    "the language server %s ended with exit code %d%s%.*s; start it again",
			    lsp->language->program, code, line ? ": " : "", (int)MIN(line, 200), said);
}

/* Until all is written and, with an `id`, its answer has come. */
static int converse(struct lsp *lsp, const char *id, int64_t limit_ms, json_t **answer, struct husk_error *err)
{
	int64_t deadline = time_monotonic_ms() + limit_ms;
	struct request *request = lsp->request;
	struct husk_process_event event = { 0 };

	for (;;) {
		int got = follow_next(&lsp->follow, id ? 500 : LOOK_MS, &event, err);
		if (got < 0)
			return -1;
		if (got > 0 && event.kind == HUSK_EXIT)
			return has_ended(lsp, event.exit_code, err);
		if (got > 0 && take_output(lsp, &event, id, answer, err) < 0)
			return -1;
		if (lsp->follow.input_size == 0 &&
		    (id ? *answer != NULL : husk_process_unread(lsp->process) <= UNREAD_MAX))
			return 0;
		if (time_monotonic_ms() > deadline)
			return daytona_fail(request, 408, "REQUEST_TIMEOUT",
					    "the language server did not answer within %lld seconds",
					    (long long)limit_ms / 1000);
	}
}

static int send_message(struct lsp *lsp, json_t *message, const char *id, int64_t limit_ms, json_t **answer,
			struct husk_error *err)
{
	if (put_message(lsp, message, err) < 0)
		return -1;
	if (converse(lsp, id, limit_ms, answer, err) == 0)
		return 0;
	if (lsp->follow.input_size > 0) /* it has half a message */
		husk_process_kill(request_husk(lsp->request), lsp->box.sandbox->id, lsp->follow.pid, SIGKILL, NULL);
	return -1;
}

static int ask(struct lsp *lsp, const char *method, json_t *params, int64_t limit_ms, json_t **result,
	       struct husk_error *err)
{
	cleanup_json json_t *answer = NULL;
	struct request *request = lsp->request;
	char id[32];

	if (random_id("husk-", 16, id) < 0) {
		json_decref(params);
		return husk_fail_errno(err, "cannot make a request's id");
	}
	if (send_message(
		    lsp,
		    json_pack("{s:s, s:s, s:s, s:o*}", "jsonrpc", "2.0", "id", id, "method", method, "params", params),
		    id, limit_ms, &answer, err) < 0)
		return -1;
	json_t *refusal = json_object_get(answer, "error");
	if (json_is_object(refusal)) {
		const char *why = json_string_value(json_object_get(refusal, "message"));
		return daytona_fail(request, 400, "BAD_REQUEST", "%s refused %s: %.300s", lsp->language->program,
				    method, why ? why : "no reason was given");
	}
	json_t *found = json_object_get(answer, "result");
	*result = found ? json_incref(found) : json_null();
	return 0;
}

int lsp_ask(struct lsp *lsp, const char *method, json_t *params, json_t **result, struct husk_error *err)
{
	return ask(lsp, method, params, ANSWER_MS, result, err);
}

int lsp_tell(struct lsp *lsp, const char *method, json_t *params, struct husk_error *err)
{
	return send_message(lsp, json_pack("{s:s, s:s, s:o*}", "jsonrpc", "2.0", "method", method, "params", params),
			    NULL, ANSWER_MS, NULL, err);
}

/* ---- start and stop ---- */

char *lsp_address(const char *path)
{
	struct buf text = { 0 };
	int failed = buf_append_string(&text, "file://");

	for (; *path; path++) {
		unsigned char byte = (unsigned char)*path;
		bool plain = isalnum(byte) || strchr("/-._~", byte);
		failed |= plain ? buf_append(&text, path, 1) : buf_printf(&text, "%%%02X", byte);
	}
	if (!failed)
		return buf_steal(&text);
	buf_free(&text);
	return NULL;
}

static int spawn(struct lsp *lsp, struct husk_error *err)
{
	const char *argv[] = { "/bin/sh", "-c", lsp->language->script, NULL };
	size_t count = 0;
	cleanup_free struct husk_pair *pairs = daytona_environment(&lsp->box, NULL, 0, &count);
	struct husk_exec_options options = { .argv = argv,
					     .user = lsp->box.user,
					     .cwd = lsp->project,
					     .environment = pairs,
					     .environment_count = count,
					     .label = lsp->label,
					     .keep_stdin = true };

	if (!pairs)
		return husk_fail_memory(err);
	if (husk_exec(request_husk(lsp->request), lsp->box.sandbox->id, &options, &lsp->process, &lsp->pid, err) < 0)
		return daytona_exec_failed(lsp->request, lsp->project, err);
	lsp->follow.process = lsp->process;
	lsp->follow.pid = lsp->pid;
	return 0;
}

/* What it is told of the client: enough for what the routes ask, and nothing that would have it ask back. A project's own
 * TypeScript is used before the one beside the server; types are not downloaded. */
static int shake_hands(struct lsp *lsp, struct husk_error *err)
{
	cleanup_free char *root = lsp_address(lsp->project);
	cleanup_json json_t *result = NULL;

	if (!root)
		return husk_fail_memory(err);
	/* clang-format off */
	json_t *params = json_pack(
		"{s:n, s:{s:s, s:s}, s:s, s:{s:b}, s:{s:{s:{s:{s:b, s:[s, s]}, s:b}, s:{s:b}}, s:{s:{s:b}}}}",
		"processId",
		"clientInfo", "name", "husk", "version", HUSK_VERSION,
		"rootUri", root,
		"initializationOptions", "disableAutomaticTypingAcquisition", true,
		"capabilities",
			"textDocument",
				"completion",
					"completionItem", "snippetSupport", false,
						"documentationFormat", "markdown", "plaintext",
					"contextSupport", true,
				"documentSymbol", "hierarchicalDocumentSymbolSupport", false,
			"workspace", "symbol", "dynamicRegistration", false);
	/* clang-format on */
	if (lsp_ask(lsp, "initialize", params, &result, err) < 0)
		return -1;
	return lsp_tell(lsp, "initialized", json_object(), err);
}

int lsp_start(struct lsp *lsp, struct husk_error *err)
{
	if (lsp->pid)
		return 0;
	if (spawn(lsp, err) < 0)
		return -1;
	if (shake_hands(lsp, err) == 0)
		return 0;
	if (lsp->pid)
		husk_process_kill(request_husk(lsp->request), lsp->box.sandbox->id, lsp->pid, SIGKILL, NULL);
	return -1;
}

/* A polite end first, in which it ends its own children; what does not end is killed. */
int lsp_stop(struct lsp *lsp, struct husk_error *err)
{
	struct husk_error ignored = { 0 };
	cleanup_json json_t *result = NULL;
	int64_t pid = lsp->pid;

	if (ask(lsp, "shutdown", NULL, GOODBYE_MS, &result, &ignored) == 0)
		lsp_tell(lsp, "exit", NULL, &ignored);
	lsp->request->fault = (struct fault){ 0 };
	struct husk_process_event event = { 0 };
	int64_t deadline = time_monotonic_ms() + GOODBYE_MS;
	while (lsp->pid && event.kind != HUSK_EXIT && time_monotonic_ms() < deadline)
		if (follow_next(&lsp->follow, LOOK_MS, &event, &ignored) < 0)
			break;
	if (lsp->pid && event.kind != HUSK_EXIT &&
	    husk_process_kill(request_husk(lsp->request), lsp->box.sandbox->id, pid, SIGKILL, err) < 0)
		return err->code == HUSK_NOT_FOUND ? 0 : -1;
	return 0;
}
