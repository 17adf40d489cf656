/*
 * GET …/pty: a terminal over a WebSocket. Binary messages are the terminal's bytes both ways; text messages are control:
 * {"resize":{"rows","columns"}} and {"signal":"INT"} from the client, {"start"}, {"exit"} and {"error"} from here. The
 * process belongs to its sandbox: closing the socket only detaches, and ?pid= comes back to it.
 *
 * One thread per terminal, waiting for both sides at once. A client that does not read stops the reading of the
 * terminal, a terminal that does not read stops the reading of the client; nothing piles up here.
 */
#include <signal.h>
#include <sys/epoll.h>

#include "server/process.h"
#include "server/websocket.h"

#define LOGIN_SHELL "command -v bash >/dev/null && exec bash -l; exec sh -l"
#define INPUT_MAX (256u << 10) /* typed, and not yet taken by the terminal */
#define CLOSE_NORMAL 1000      /* of RFC 6455 */
#define CLOSE_FAILED 1011
#define SILENT_MAX 4 /* times SSE_PING_MS without a word, not even a pong: the client is gone */

struct pty {
	struct husk_process *process;
	struct husk_attach_result attached;
	int64_t pid;
	uint16_t rows, columns; /* 0: leave it as it is */
	struct websocket *websocket;
	struct buf input;
	bool ended;        /* its exit was told */
	uint16_t farewell; /* to close with, once that has been sent; 0: not yet, or done */
	int epoll;
	uint32_t watched[2]; /* what is waited for: of the client, of the process */
};

static void pty_free(struct pty *pty)
{
	if (!pty)
		return;
	websocket_free(pty->websocket);
	husk_process_free(pty->process);
	buf_free(&pty->input);
	base_cleanup_close(&pty->epoll);
	free(pty);
}

static void pty_cleanup(struct pty **pty)
{
	pty_free(*pty);
}

/* ---- what the client says ---- */

static int on_resize(struct pty *pty, json_t *size, struct husk_error *err)
{
	struct fields fields;

	if (!json_is_object(size))
		return husk_fail_field(err, "resize",
				       "resize is no object; send {\"resize\":{\"rows\":24,\"columns\":80}}");
	fields_begin(&fields, size);
	int64_t rows = fields_int(&fields, "rows", 0, 1, UINT16_MAX);
	int64_t columns = fields_int(&fields, "columns", 0, 1, UINT16_MAX);
	if (fields_done(&fields, err) < 0)
		return -1;
	if (!rows || !columns)
		return husk_fail_field(err, "resize", "a terminal needs both rows and columns");
	return husk_process_resize(pty->process, (uint16_t)rows, (uint16_t)columns, err);
}

static int on_control(struct pty *pty, const char *text, size_t size, struct husk_error *err)
{
	cleanup_json json_t *document =
		str_json_deeper(text, size, 8) ? NULL : json_loadb(text, size, JSON_REJECT_DUPLICATES, NULL);
	struct fields fields;
	int number;

	if (!json_is_object(document))
		return husk_fail(err, HUSK_INVALID,
				 "a text message is no JSON object; send what is typed as binary messages");
	fields_begin(&fields, document);
	json_t *resize = fields_any(&fields, "resize");
	const json_t *signal = fields_any(&fields, "signal");
	if (fields_done(&fields, err) < 0 || (resize && on_resize(pty, resize, err) < 0))
		return -1;
	if (!signal)
		return 0;
	return process_signal_number(signal, &number, err) < 0 ? -1 : husk_process_signal(pty->process, number, err);
}

static int on_message(void *data, bool text, const char *bytes, size_t size)
{
	struct pty *pty = data;
	struct husk_error err = { 0 };

	if (pty->ended)
		return 0;
	if (!text && buf_append(&pty->input, bytes, size) < 0)
		husk_fail_memory(&err);
	else if (text)
		on_control(pty, bytes, size, &err);
	if (err.code != HUSK_OK && websocket_send_json(pty->websocket, error_document(&err)) < 0)
		return 1;
	return pty->input.size >= INPUT_MAX;
}

/* ---- what the terminal says ---- */

static void pty_exit(struct pty *pty, const struct husk_process_event *event)
{
	pty->ended = true;
	pty->farewell = CLOSE_NORMAL;
	websocket_send_json(pty->websocket, json_pack("{s:o}", "exit", process_exit_document(event)));
}

/* The sandbox went away, or something broke. */
static void pty_fail(struct pty *pty, const struct husk_error *why)
{
	pty->ended = true;
	pty->farewell = CLOSE_FAILED;
	websocket_send_json(pty->websocket, error_document(why));
}

/* Passes on what the terminal has said, as fast as the client takes it. */
static void pty_output(struct pty *pty)
{
	struct husk_error why = { 0 };
	struct husk_process_event event;

	while (!pty->ended && !websocket_sending(pty->websocket) && husk_process_pending(pty->process)) {
		if (husk_process_next(pty->process, &event, &why) < 0)
			pty_fail(pty, &why);
		else if (event.kind == HUSK_EXIT)
			pty_exit(pty, &event);
		else if (websocket_send(pty->websocket, false, event.data, event.size) < 0)
			return; /* the client has said goodbye */
		if (websocket_flush(pty->websocket) < 0)
			return;
	}
}

static void pty_input(struct pty *pty)
{
	if (pty->input.size == 0 || pty->ended)
		return;
	ssize_t count = husk_process_write_some(pty->process, pty->input.data, pty->input.size, NULL);
	buf_consume(&pty->input, count < 0 ? pty->input.size : (size_t)count);
}

/* wslay puts a close before whatever else is queued: it has to wait until the last message is out. */
static void pty_farewell(struct pty *pty)
{
	if (!pty->farewell || websocket_sending(pty->websocket))
		return;
	websocket_close(pty->websocket, pty->farewell,
			pty->farewell == CLOSE_NORMAL ? "the process ended" : "the sandbox ended");
	pty->farewell = 0;
}

/* ---- both ---- */

static int watch(struct pty *pty, int index, int fd, uint32_t events)
{
	struct epoll_event event = { .events = events };

	if (pty->watched[index] == events)
		return 0;
	pty->watched[index] = events;
	return epoll_ctl(pty->epoll, EPOLL_CTL_MOD, fd, &event);
}

/* Waits for whatever can move now. 1: something may; 0: a long silence; -1: it is over. */
static int pty_wait(struct pty *pty, struct request *request, int fd)
{
	bool sending = websocket_sending(pty->websocket);
	uint32_t client = (pty->input.size < INPUT_MAX ? EPOLLIN : 0u) | (sending ? EPOLLOUT : 0u);
	uint32_t process = pty->ended || sending ? 0u : EPOLLIN;

	if (watch(pty, 0, fd, client) < 0 || watch(pty, 1, husk_process_fd(pty->process), process) < 0)
		return -1;
	return request_wait(request, pty->epoll, SSE_PING_MS);
}

static void pty_relay(struct pty *pty, struct request *request, int fd)
{
	int silent = 0;

	for (;;) {
		pty_input(pty);
		if (pty->input.size < INPUT_MAX)
			websocket_receive(pty->websocket);
		pty_output(pty);
		pty_farewell(pty);
		if (websocket_flush(pty->websocket) < 0 || websocket_over(pty->websocket))
			break;
		pty_input(pty);
		int ready = pty_wait(pty, request, fd);
		if (ready < 0)
			break;
		if (ready > 0)
			continue;
		silent = websocket_heard(pty->websocket) ? 0 : silent + 1;
		if (silent > SILENT_MAX || pty->ended)
			break;
		websocket_ping(pty->websocket);
	}
	/* What was typed just before the connection went is still the terminal's. */
	websocket_receive(pty->websocket);
	pty_input(pty);
}

static void pty_run(struct request *request, int fd, const void *first, size_t size, void *data)
{
	cleanup(pty_cleanup) struct pty *pty = data;
	struct epoll_event none = { 0 };

	pty->epoll = epoll_create1(EPOLL_CLOEXEC);
	pty->websocket = websocket_open(fd, first, size, on_message, pty);
	if (pty->epoll < 0 || !pty->websocket || epoll_ctl(pty->epoll, EPOLL_CTL_ADD, fd, &none) < 0 ||
	    epoll_ctl(pty->epoll, EPOLL_CTL_ADD, husk_process_fd(pty->process), &none) < 0) {
		log_line(LOG_ERROR, "request %s: no resources for a terminal: %s", request_id(request),
			 strerror(errno));
		return;
	}
	if (pty->rows)
		husk_process_resize(pty->process, pty->rows, pty->columns, NULL);
	if (websocket_send_json(pty->websocket, json_pack("{s:{s:I, s:I, s:I}}", "start", "pid", (json_int_t)pty->pid,
							  "offset", (json_int_t)pty->attached.offset_stdout, "dropped",
							  (json_int_t)pty->attached.dropped_stdout)) == 0)
		pty_relay(pty, request, fd);
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
		return husk_fail_field(err, "offset", "offset says where to go on with a terminal; it needs pid");
	return husk_exec(request_husk(request), request_path(request, "id"), &options, &pty->process, &pty->pid, err);
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
	pty->rows = (uint16_t)(columns ? rows : 0);
	pty->columns = (uint16_t)columns;
	return husk_attach(request_husk(request), request_path(request, "id"), pty->pid, &options, &pty->process,
			   &pty->attached, err);
}

static int handle_pty(struct request *request, struct husk_error *err)
{
	static const char *const known[] = { "cmd", "rows", "columns", "cwd", "user", "pid", "offset", NULL };
	cleanup(pty_cleanup) struct pty *pty = calloc(1, sizeof(*pty));
	int64_t rows, columns;

	if (!pty)
		return husk_fail_memory(err);
	pty->epoll = -1;
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
	if (fresh) /* nobody was told of it */
		husk_process_kill(request_husk(request), request_path(request, "id"), pid, SIGKILL, NULL);
	return -1;
}

const struct route pty_routes[] = {
	{ "GET", "/v1/sandboxes/{id}/pty", handle_pty, ROUTE_SOCKET },
	{ 0 },
};
