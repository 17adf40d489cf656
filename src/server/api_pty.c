/*
 * GET …/pty: a terminal over a WebSocket. Binary messages are the terminal's bytes in both directions. Text messages are
 * control: {"resize":{"rows","columns"}} and {"signal":"INT"} from the client; {"start"}, {"exit"} and {"error"} from the
 * server. The process belongs to its sandbox: closing the socket only detaches, and ?pid= attaches again. web_terminal.c
 * does the rest.
 */
#include <signal.h>

#include "server/web_terminal.h"

#define LOGIN_SHELL "command -v bash >/dev/null && exec bash -l; exec sh -l"

struct pty {
	struct terminal *terminal;
	struct husk_attach_result attached;
	int64_t pid;
};

static void pty_free(struct pty *pty)
{
	if (!pty)
		return;
	terminal_free(pty->terminal);
	free(pty);
}

static void pty_cleanup(struct pty **pty)
{
	pty_free(*pty);
}

/* ---- messages of the client ---- */

static int on_resize(struct terminal *terminal, json_t *size, struct husk_error *err)
{
	struct fields fields;

	if (!json_is_object(size))
		return husk_fail_field(err, "resize",
				       "resize is not an object; send {\"resize\":{\"rows\":24,\"columns\":80}}");
	fields_begin(&fields, size);
	int64_t rows = fields_int(&fields, "rows", 0, 1, UINT16_MAX);
	int64_t columns = fields_int(&fields, "columns", 0, 1, UINT16_MAX);
	if (fields_done(&fields, err) < 0)
		return -1;
	if (!rows || !columns)
		return husk_fail_field(err, "resize", "a terminal needs both rows and columns");
	return husk_process_resize(terminal->process, (uint16_t)rows, (uint16_t)columns, err);
}

static int on_text(struct terminal *terminal, const char *text, size_t size, struct husk_error *err)
{
	cleanup_json json_t *document =
		str_json_deeper(text, size, 8) ? NULL : json_loadb(text, size, JSON_REJECT_DUPLICATES, NULL);
	struct fields fields;
	int number;

	if (!json_is_object(document))
		return husk_fail(err, HUSK_INVALID,
				 "a text message is not a JSON object; send typed text as binary messages");
	fields_begin(&fields, document);
	json_t *resize = fields_any(&fields, "resize");
	const json_t *signal = fields_any(&fields, "signal");
	if (fields_done(&fields, err) < 0 || (resize && on_resize(terminal, resize, err) < 0))
		return -1;
	if (!signal)
		return 0;
	return process_signal_number(signal, &number, err) < 0 ? -1
							       : husk_process_signal(terminal->process, number, err);
}

/* ---- messages to the client ---- */

static json_t *exit_document(struct terminal *terminal, const struct husk_process_event *event)
{
	snprintf(terminal->reason, sizeof(terminal->reason), "the process ended");
	return json_pack("{s:o}", "exit", process_exit_document(event));
}

static const struct terminal_words words = {
	.exit = exit_document, .failure = error_document, .gone = "the sandbox ended", .text = on_text
};

static void pty_run(struct request *request, int fd, const void *first, size_t size, void *data)
{
	cleanup(pty_cleanup) struct pty *pty = data;

	terminal_serve(pty->terminal, request, fd, first, size,
		       json_pack("{s:{s:I, s:I, s:I}}", "start", "pid", (json_int_t)pty->pid, "offset",
				 (json_int_t)pty->attached.offset_stdout, "dropped",
				 (json_int_t)pty->attached.dropped_stdout));
}

/* ---- the request ---- */

static int pty_start(struct request *request, struct pty *pty, int64_t rows, int64_t columns, struct husk_error *err)
{
	const char *command = request_query(request, "cmd");
	struct husk_exec_options options = {
		.shell = command && *command ? command : LOGIN_SHELL,
		.cwd = request_query(request, "cwd"),
		.user = request_query(request, "user"),
		.keep_stdin = true,
		.rows = (uint16_t)(rows ? rows : 24),
		.columns = (uint16_t)(columns ? columns : 80),
	};

	if (request_query(request, "offset"))
		return husk_fail_field(err, "offset",
				       "offset requires pid: it is where the output of an existing terminal continues");
	return husk_exec(request_husk(request), request_path(request, "id"), &options, &pty->terminal->process,
			 &pty->pid, err);
}

static int pty_attach(struct request *request, struct pty *pty, int64_t rows, int64_t columns, struct husk_error *err)
{
	static const char *const only_new[] = { "cmd", "cwd", "user" };
	struct husk_attach_options options = { .offset_stderr = -1, .keep_stdin = true };
	struct husk_process_info info = { 0 };

	for (size_t i = 0; i < ARRAY_SIZE(only_new); i++)
		if (request_query(request, only_new[i]))
			return husk_fail_field(err, only_new[i],
					       "%s is for a new terminal; leave it out, or leave pid out", only_new[i]);
	if (request_query_int(request, "offset", -1, -1, INT64_MAX, &options.offset_stdout, err) < 0 ||
	    process_find(request, pty->pid, &info, err) < 0)
		return -1;
	if (!info.terminal)
		return husk_fail(err, HUSK_CONFLICT,
				 "process %lld has no terminal; GET …/processes/%lld/output follows it",
				 (long long)pty->pid, (long long)pty->pid);
	pty->terminal->rows = (uint16_t)(columns ? rows : 0);
	pty->terminal->columns = (uint16_t)columns;
	return husk_attach(request_husk(request), request_path(request, "id"), pty->pid, &options,
			   &pty->terminal->process, &pty->attached, err);
}

static int handle_pty(struct request *request, struct husk_error *err)
{
	static const char *const known[] = { "cmd", "rows", "columns", "cwd", "user", "pid", "offset", NULL };
	cleanup(pty_cleanup) struct pty *pty = calloc(1, sizeof(*pty));
	int64_t rows, columns;

	if (!pty || !(pty->terminal = terminal_new(&words)))
		return husk_fail_memory(err);
	if (request_query_known(request, known, err) < 0 ||
	    request_query_int(request, "rows", 0, 1, UINT16_MAX, &rows, err) < 0 ||
	    request_query_int(request, "columns", 0, 1, UINT16_MAX, &columns, err) < 0 ||
	    request_query_int(request, "pid", 0, 1, INT32_MAX, &pty->pid, err) < 0)
		return -1;
	if (!rows != !columns)
		return husk_fail_field(err, rows ? "columns" : "rows",
				       "a terminal needs both rows and columns; give both, or neither");
	bool fresh = pty->pid == 0;
	if (websocket_accept(request, err) < 0 ||
	    (fresh ? pty_start : pty_attach)(request, pty, rows, columns, err) < 0)
		return -1;
	int64_t pid = pty->pid;
	if (respond_upgrade(request, pty_run, pty, err) == 0) {
		steal_pointer(pty);
		return 0;
	}
	if (fresh) /* no client knows it */
		husk_process_kill(request_husk(request), request_path(request, "id"), pid, SIGKILL, NULL);
	return -1;
}

const struct route pty_routes[] = {
	{ "GET", "/v1/sandboxes/{id}/pty", handle_pty, ROUTE_SOCKET },
	{ 0 },
};
