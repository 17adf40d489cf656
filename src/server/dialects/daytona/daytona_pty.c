/*
 * Daytona's terminals: a shell on a terminal, created by POST or with its socket, which it outlives. It is a process of
 * the sandbox with the label "daytona-pty:<id>". The label also holds its first size, and the settings hold later
 * sizes, so the server keeps nothing. web_terminal.c serves the socket; the first and last messages are Daytona's.
 */
#include <inttypes.h>
#include <openssl/evp.h>
#include <signal.h>

#include "server/dialects/daytona/daytona.h"
#include "server/web_terminal.h"

#define LABEL "daytona-pty:"
#define ID_MAX 64
#define LOGIN_SHELL "! command -v bash >/dev/null || exec bash -l; exec sh -l"
#define EXIT_PROTOCOL "X-Daytona-Pty-Exit-Control"
#define ENV_PROTOCOL "X-Daytona-Pty-Envs~"
#define PROTOCOLS_MAX 65536u

struct pty {
	char id[ID_MAX + 1];
	int64_t pid, started_ms;
	int64_t rows, columns;
	char *cwd;
	bool running;
};

static void pty_cleanup(struct pty *pty)
{
	free(pty->cwd);
}

/* ---- which ---- */

static bool good_id(const char *id)
{
	size_t size = strlen(id);

	return size > 0 && size <= ID_MAX &&
	       !id[strspn(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")];
}

/* "daytona-pty:<id>:<rows>:<columns>"; a later size is in the settings. */
static bool read_label(const struct husk_process_info *info, struct pty *pty)
{
	if (!info->label || !str_starts(info->label, LABEL))
		return false;
	const char *id = info->label + strlen(LABEL), *colon = strchr(id, ':');
	if (!colon || colon - id > ID_MAX || sscanf(colon, ":%" SCNd64 ":%" SCNd64, &pty->rows, &pty->columns) != 2)
		return false;
	snprintf(pty->id, sizeof(pty->id), "%.*s", (int)(colon - id), id);
	pty->pid = info->pid;
	pty->started_ms = info->started_ms;
	pty->running = info->running;
	return true;
}

/* A resize is stored in the settings under the id, because the label cannot change. */
static void read_size(const struct daytona_box *box, struct pty *pty)
{
	json_t *size = json_object_get(json_object_get(box->settings, "sizes"), pty->id);

	if (json_integer_value(json_array_get(size, 0)) != pty->pid)
		return;
	pty->rows = json_integer_value(json_array_get(size, 1));
	pty->columns = json_integer_value(json_array_get(size, 2));
}

static json_t *pty_document(const struct pty *pty)
{
	return json_pack("{s:s, s:o, s:{}, s:I, s:I, s:o, s:b, s:b}", "id", pty->id, "cwd", json_text0(pty->cwd),
			 "envs", "cols", (json_int_t)pty->columns, "rows", (json_int_t)pty->rows, "createdAt",
			 json_time(MAX(1, pty->started_ms)), "active", pty->running, "lazyStart", false);
}

/* Finds the newest running terminal with that id: 1; 0: none. With `array`, adds all running ones to it instead. */
static int look(struct request *request, const struct daytona_box *box, const char *id, struct pty *out, json_t *array,
		struct husk_error *err)
{
	struct husk_process_info *list = NULL;
	size_t count = 0;
	int found = 0;

	if (husk_process_list(request_husk(request), box->sandbox->id, &list, &count, err) < 0)
		return -1;
	for (size_t i = 0; i < count; i++) {
		struct pty pty = { 0 };
		if (!list[i].running || !read_label(&list[i], &pty) || (id && !str_equal(pty.id, id)))
			continue;
		read_size(box, &pty);
		pty.cwd = list[i].cwd;
		if (array)
			json_array_append_new(array, pty_document(&pty));
		if (out) {
			free(out->cwd);
			*out = pty;
			out->cwd = strdup(list[i].cwd ? list[i].cwd : box->home);
		}
		found = 1;
	}
	husk_process_list_free(list, count);
	return found;
}

static int find(struct request *request, struct daytona_box *box, struct pty *out, struct husk_error *err)
{
	const char *id = request_path(request, "pty");

	if (daytona_enter(request, box, err) < 0)
		return -1;
	int found = look(request, box, id, out, NULL, err);
	if (found == 0)
		return husk_fail(err, HUSK_NOT_FOUND, "PTY session not found: %.64s", id);
	return found < 0 ? -1 : 0;
}

/* ---- making one ---- */

struct wanted {
	const char *id, *cwd;
	int64_t rows, columns;
	const struct husk_pair *pairs;
	size_t pair_count;
};

static int start(struct request *request, const struct daytona_box *box, const struct wanted *wanted,
		 struct husk_process **process, int64_t *pid, struct husk_error *err)
{
	static const char *const argv[] = { "/bin/sh", "-c", LOGIN_SHELL, NULL };
	cleanup_free char *cwd = NULL, *label = NULL;
	size_t count = 0;

	if (!wanted->id || !good_id(wanted->id))
		return husk_fail_field(err, "id", "a PTY's id has 1 to %d letters, digits, '-', '_' or '.'", ID_MAX);
	int there = look(request, box, wanted->id, NULL, NULL, err);
	if (there > 0)
		return daytona_fail(request, 409, "CONFLICT", "PTY session with ID '%s' already exists", wanted->id);
	if (there < 0 || daytona_path(box, wanted->cwd ? wanted->cwd : "", &cwd, err) < 0)
		return -1;
	label = str_format(LABEL "%s:%lld:%lld", wanted->id, (long long)wanted->rows, (long long)wanted->columns);
	cleanup_free struct husk_pair *pairs = daytona_environment(box, wanted->pairs, wanted->pair_count, &count);
	if (!label || !pairs)
		return husk_fail_memory(err);
	struct husk_exec_options options = { .argv = argv,
					     .user = box->user,
					     .cwd = cwd,
					     .environment = pairs,
					     .environment_count = count,
					     .label = label,
					     .keep_stdin = true,
					     .rows = (uint16_t)wanted->rows,
					     .columns = (uint16_t)wanted->columns };
	if (husk_exec(request_husk(request), box->sandbox->id, &options, process, pid, err) < 0)
		return daytona_exec_failed(request, cwd, err);
	return 0;
}

static int handle_create(struct request *request, struct husk_error *err)
{
	cleanup_process struct husk_process *process = NULL;
	cleanup_free struct husk_pair *pairs = NULL;
	cleanup_box struct daytona_box box = { 0 };
	struct wanted wanted = { 0 };
	struct fields fields;
	int64_t pid;

	if (fields_begin(&fields, request_json(request, err)) < 0)
		return -1;
	wanted.id = fields_string(&fields, "id");
	wanted.cwd = fields_string(&fields, "cwd");
	wanted.rows = fields_int(&fields, "rows", 24, 1, 1000);
	wanted.columns = fields_int(&fields, "cols", 80, 1, 1000);
	pairs = fields_pairs(&fields, "envs", &wanted.pair_count);
	wanted.pairs = pairs;
	if (fields_done_open(&fields, err) < 0 || daytona_enter(request, &box, err) < 0 ||
	    start(request, &box, &wanted, &process, &pid, err) < 0)
		return -1;
	return respond_json(request, 201, json_pack("{s:s}", "sessionId", wanted.id), err);
}

/* ---- the socket ---- */

static json_t *exit_document(struct terminal *terminal, const struct husk_process_event *event)
{
	json_t *document =
		json_pack("{s:s, s:s, s:i}", "type", "control", "status", "exited", "exitCode", event->exit_code);

	snprintf(terminal->reason, sizeof(terminal->reason), "{\"exitCode\":%d}", event->exit_code);
	if (document && event->signal)
		json_object_set_new(document, "exitReason", json_sprintf("killed by signal %d", event->signal));
	return document;
}

static json_t *failure_document(const struct husk_error *why)
{
	return json_pack("{s:s, s:s, s:o}", "type", "control", "status", "error", "error", json_text0(why->message));
}

/* No message: such a client would show it as output. */
static json_t *exit_reason(struct terminal *terminal, const struct husk_process_event *event)
{
	json_decref(exit_document(terminal, event));
	return NULL;
}

#define GONE "{\"error\":\"the sandbox ended\"}"
static const struct terminal_words words = { .exit = exit_document, .failure = failure_document, .gone = GONE };
static const struct terminal_words old_words = { .exit = exit_reason, .failure = failure_document, .gone = GONE };

/* A client that offers the protocol wants the message; one from before takes the code from the reason of the close. */
static const struct terminal_words *words_for(struct request *request)
{
	const char *offered = request_header(request, "Sec-WebSocket-Protocol");

	return offered && strstr(offered, EXIT_PROTOCOL) ? &words : &old_words;
}

static void run(struct request *request, int fd, const void *first, size_t size, void *data)
{
	cleanup_terminal struct terminal *terminal = data;

	terminal_serve(terminal, request, fd, first, size,
		       json_pack("{s:s, s:s}", "type", "control", "status", "connected"));
}

/* Echoes the offered protocol that is ours, because clients fail otherwise; another offered one carries variables. */
static int accept_socket(struct request *request, json_t **variables, struct husk_error *err)
{
	const char *offered = request_header(request, "Sec-WebSocket-Protocol");
	cleanup_free char *copy = strndup(offered ? offered : "", PROTOCOLS_MAX);
	char *save = NULL;
	const char *echo = NULL;

	if (websocket_accept(request, err) < 0)
		return -1;
	for (char *each = copy ? strtok_r(copy, ", ", &save) : NULL; each; each = strtok_r(NULL, ", ", &save)) {
		if (!echo || str_equal(each, EXIT_PROTOCOL))
			echo = str_starts(each, ENV_PROTOCOL) && echo ? echo : each;
		if (!variables || !str_starts(each, ENV_PROTOCOL))
			continue;
		char *text = each + strlen(ENV_PROTOCOL);
		size_t size = strlen(text);
		cleanup_free char *padded = str_format("%s%s", text, &"===="[4 - (4 - size % 4) % 4]);
		cleanup_free char *decoded = calloc(1, size + 8);
		for (char *at = padded; at && *at; at++)
			*at = *at == '-' ? '+' : *at == '_' ? '/' : *at;
		if (!padded || !decoded)
			return husk_fail_memory(err);
		if (EVP_DecodeBlock((unsigned char *)decoded, (const unsigned char *)padded, (int)strlen(padded)) < 0 ||
		    str_json_deeper(decoded, strlen(decoded), 4) || !(*variables = json_loads(decoded, 0, NULL)) ||
		    !json_is_object(*variables))
			return husk_fail_field(err, "envs",
					       "the variables of the terminal are not base64url of a JSON object");
	}
	return echo ? respond_header(request, "Sec-WebSocket-Protocol", echo, err) : 0;
}

static int handle_connect(struct request *request, struct husk_error *err)
{
	struct husk_attach_options options = { .offset_stdout = -1, .offset_stderr = -1, .keep_stdin = true };
	cleanup_terminal struct terminal *terminal = terminal_new(words_for(request));
	cleanup(pty_cleanup) struct pty pty = { 0 };
	cleanup_box struct daytona_box box = { 0 };

	if (!terminal)
		return husk_fail_memory(err);
	if (find(request, &box, &pty, err) < 0 || accept_socket(request, NULL, err) < 0 ||
	    husk_attach(request_husk(request), box.sandbox->id, pty.pid, &options, &terminal->process, NULL, err) < 0 ||
	    respond_upgrade(request, run, terminal, err) < 0)
		return -1;
	steal_pointer(terminal);
	return 0;
}

static int handle_create_connect(struct request *request, struct husk_error *err)
{
	cleanup_terminal struct terminal *terminal = terminal_new(words_for(request));
	cleanup_json json_t *variables = NULL;
	cleanup_box struct daytona_box box = { 0 };
	struct wanted wanted = { .id = request_query(request, "id"), .cwd = request_query(request, "cwd") };
	struct fields fields;
	int64_t pid = 0;

	if (!terminal)
		return husk_fail_memory(err);
	if (request_query_int(request, "rows", 24, 1, 1000, &wanted.rows, err) < 0 ||
	    request_query_int(request, "cols", 80, 1, 1000, &wanted.columns, err) < 0 ||
	    daytona_enter(request, &box, err) < 0 || accept_socket(request, &variables, err) < 0)
		return -1;
	cleanup_json json_t *holder = json_pack("{s:O?}", "envs", variables);
	fields_begin(&fields, holder);
	cleanup_free struct husk_pair *pairs = fields_pairs(&fields, "envs", &wanted.pair_count);
	wanted.pairs = pairs;
	if (fields_done_open(&fields, err) < 0 || start(request, &box, &wanted, &terminal->process, &pid, err) < 0)
		return -1;
	if (respond_upgrade(request, run, terminal, err) < 0) {
		husk_process_kill(request_husk(request), box.sandbox->id, pid, SIGKILL,
				  NULL); /* nobody was told of it */
		return -1;
	}
	steal_pointer(terminal);
	return 0;
}

/* ---- the rest ---- */

static int handle_list(struct request *request, struct husk_error *err)
{
	cleanup_json json_t *array = json_array();
	cleanup_box struct daytona_box box = { 0 };

	if (daytona_enter(request, &box, err) < 0 || look(request, &box, NULL, NULL, array, err) < 0)
		return -1;
	return respond_json(request, 200, json_pack("{s:O}", "sessions", array), err);
}

static int handle_get(struct request *request, struct husk_error *err)
{
	cleanup(pty_cleanup) struct pty pty = { 0 };
	cleanup_box struct daytona_box box = { 0 };

	if (find(request, &box, &pty, err) < 0)
		return -1;
	return respond_json(request, 200, pty_document(&pty), err);
}

static int handle_delete(struct request *request, struct husk_error *err)
{
	cleanup(pty_cleanup) struct pty pty = { 0 };
	cleanup_box struct daytona_box box = { 0 };

	if (find(request, &box, &pty, err) < 0 ||
	    husk_process_kill(request_husk(request), box.sandbox->id, pty.pid, SIGKILL, err) < 0)
		return -1;
	return respond_json(request, 200, json_pack("{s:s}", "message", "PTY session deleted"), err);
}

static int keep_size(struct request *request, const struct pty *pty, struct husk_error *err)
{
	cleanup_box struct daytona_box box = { 0 };

	if (daytona_enter(request, &box, err) < 0)
		return -1;
	json_t *kept = json_object_get(box.settings, "sizes");
	cleanup_json json_t *sizes = kept ? json_copy(kept) : json_object();
	json_t *size = json_pack("[I, I, I]", (json_int_t)pty->pid, (json_int_t)pty->rows, (json_int_t)pty->columns);
	if (!sizes || json_object_set_new(sizes, pty->id, size) < 0)
		return husk_fail_memory(err);
	if (daytona_set(&box, "sizes", json_incref(sizes), err) < 0)
		return -1;
	return daytona_save(request, &box, NULL, err);
}

static int handle_resize(struct request *request, struct husk_error *err)
{
	cleanup_process struct husk_process *process = NULL;
	cleanup(pty_cleanup) struct pty pty = { 0 };
	cleanup_box struct daytona_box box = { 0 };
	struct fields fields;

	if (fields_begin(&fields, request_json(request, err)) < 0)
		return -1;
	int64_t rows = fields_int(&fields, "rows", 0, 1, 1000), columns = fields_int(&fields, "cols", 0, 1, 1000);
	if (fields_done_open(&fields, err) < 0)
		return -1;
	if (!rows || !columns)
		return husk_fail_field(err, "rows", "a terminal needs both rows and cols");
	if (find(request, &box, &pty, err) < 0 || process_attach(request, pty.pid, &process, err) < 0 ||
	    husk_process_resize(process, (uint16_t)rows, (uint16_t)columns, err) < 0 ||
	    husk_process_detach(process, err) < 0)
		return -1;
	pty.rows = rows;
	pty.columns = columns;
	daytona_lock();
	int result = keep_size(request, &pty, err);
	daytona_unlock();
	return result < 0 ? -1 : respond_json(request, 200, pty_document(&pty), err);
}

const struct route daytona_pty_routes[] = {
	{ "GET", DAYTONA_TOOLBOX "/process/pty", handle_list, 0 },
	{ "POST", DAYTONA_TOOLBOX "/process/pty", handle_create, 0 },
	{ "GET", DAYTONA_TOOLBOX "/process/pty/create-connect", handle_create_connect, ROUTE_SOCKET | ROUTE_AUTHORISE },
	{ "GET", DAYTONA_TOOLBOX "/process/pty/{pty}", handle_get, 0 },
	{ "DELETE", DAYTONA_TOOLBOX "/process/pty/{pty}", handle_delete, 0 },
	{ "POST", DAYTONA_TOOLBOX "/process/pty/{pty}/resize", handle_resize, 0 },
	{ "GET", DAYTONA_TOOLBOX "/process/pty/{pty}/connect", handle_connect, ROUTE_SOCKET | ROUTE_AUTHORISE },
	{ 0 },
};
