/*
 * The logs of a session's command: as a document, as marked text for clients before 2026, and as a WebSocket that sends
 * existing output and then new output until the command ends. Both streams are files in the guest, and a watch on their
 * directory reports changes. When a client does not read, the files are not read, so nothing accumulates here.
 */
#include <poll.h>

#include "server/dialects/daytona/daytona_sessions.h"
#include "server/websocket.h"

#define LOOK_MS 1000 /* at the latest: a watch may be lost */
#define PING_MS 15000
#define SILENT_MAX 4 /* times PING_MS without any message, not even a pong: the client is gone */
#define PIECE 262144u
#define CLOSE_NORMAL 1000
#define PLAIN_BEFORE 167 /* clients 0.x before this expect text with marks */

static const struct {
	const char *name, *mark;
} streams[] = { { "stdout", "\001\001\001" }, { "stderr", "\002\002\002" } };

struct logs {
	struct request *request;
	struct daytona_session session;
	char command[SESSION_MAX + 1];
	struct husk_watcher *watcher;
	struct websocket *websocket;
	uint64_t offset[ARRAY_SIZE(streams)];
	bool over; /* everything is queued: close when it is sent */
	bool closed;
	unsigned turns;
};

static void logs_free(struct logs *logs)
{
	if (!logs)
		return;
	websocket_free(logs->websocket);
	if (logs->watcher)
		husk_watch_free(logs->watcher);
	daytona_session_free(&logs->session);
	free(logs);
}

static void logs_cleanup(struct logs **logs)
{
	logs_free(*logs);
}

/* ---- following ---- */

static int on_message(void *data, bool text, const char *bytes, size_t size)
{
	(void)data, (void)text, (void)bytes, (void)size; /* clients say nothing here */
	return 0;
}

/* Sends what was added to one stream. -1: the sandbox or the session is gone. */
static int send_new(struct logs *logs, size_t index)
{
	cleanup_buf struct buf text = { 0 };

	if (daytona_session_read_from(logs->request, &logs->session, logs->command, streams[index].name,
				      logs->offset[index], &text, NULL) < 0)
		return -1;
	logs->offset[index] += text.size;
	for (size_t at = 0; at < text.size; at += PIECE) {
		cleanup_buf struct buf piece = { 0 };
		if (buf_append(&piece, streams[index].mark, 3) < 0 ||
		    buf_append(&piece, text.data + at, MIN(PIECE, text.size - at)) < 0 ||
		    websocket_send(logs->websocket, false, piece.data, piece.size) < 0)
			return -1;
	}
	return 0;
}

/* The shell may have ended in the middle of the command. */
static bool shell_ended(struct logs *logs)
{
	struct husk_process_info *list = NULL;
	size_t count = 0;
	bool runs = false;

	if (husk_process_list(request_husk(logs->request), logs->session.box.sandbox->id, &list, &count, NULL) < 0)
		return true;
	for (size_t i = 0; i < count; i++)
		runs |= list[i].pid == logs->session.pid && list[i].running;
	husk_process_list_free(list, count);
	return !runs;
}

static void look(struct logs *logs)
{
	cleanup_buf struct buf code = { 0 };
	bool ended = false;

	if (logs->over || websocket_sending(logs->websocket))
		return;
	/* First checks the end, then reads the output: nothing is written after the exit code. */
	if (daytona_session_read(logs->request, &logs->session, logs->command, "code", &code, &ended, NULL) < 0)
		ended = true;
	if (!ended && ++logs->turns % 4 == 0)
		ended = shell_ended(logs);
	for (size_t i = 0; i < ARRAY_SIZE(streams); i++)
		if (send_new(logs, i) < 0)
			ended = true;
	logs->over = ended;
}

static void drain(struct husk_watcher *watcher)
{
	struct husk_watch_event event;

	while (husk_watch_pending(watcher))
		if (husk_watch_next(watcher, &event, NULL) < 0)
			return;
}

static void follow(struct logs *logs, int fd)
{
	int64_t pinged = time_monotonic_ms();
	int silent = 0;

	while (websocket_receive(logs->websocket) == 0) {
		look(logs);
		if (logs->over && !logs->closed && !websocket_sending(logs->websocket)) {
			websocket_close(logs->websocket, CLOSE_NORMAL, "");
			logs->closed = true;
		}
		if (websocket_flush(logs->websocket) < 0 || websocket_over(logs->websocket))
			break;
		bool sending = websocket_sending(logs->websocket);
		struct pollfd wait[] = {
			{ .fd = fd, .events = (short)(POLLIN | (sending ? POLLOUT : 0)) },
			{ .fd = logs->watcher && !sending ? husk_watch_fd(logs->watcher) : -1, .events = POLLIN },
			{ .fd = request_over_fd(logs->request), .events = POLLIN },
		};
		poll(wait, ARRAY_SIZE(wait), LOOK_MS);
		if (wait[2].revents)
			break;
		if (wait[1].revents)
			drain(logs->watcher);
		if (time_monotonic_ms() - pinged < PING_MS)
			continue;
		pinged = time_monotonic_ms();
		silent = websocket_heard(logs->websocket) ? 0 : silent + 1;
		if (silent > SILENT_MAX)
			break;
		websocket_ping(logs->websocket);
	}
}

static void run(struct request *request, int fd, const void *first, size_t size, void *data)
{
	cleanup(logs_cleanup) struct logs *logs = data;

	logs->request = request;
	logs->websocket = websocket_open(fd, first, size, on_message, logs);
	if (logs->websocket)
		follow(logs, fd);
}

static int respond_socket(struct request *request, struct daytona_session *session, const char *command,
			  struct husk_error *err)
{
	cleanup(logs_cleanup) struct logs *logs = calloc(1, sizeof(*logs));
	cleanup_free char *directory = str_format("%s/%s", session->directory, command);

	if (!logs || !directory)
		return husk_fail_memory(err);
	logs->session = *session;
	*session = (struct daytona_session){ 0 };
	snprintf(logs->command, sizeof(logs->command), "%s", command);
	husk_watch_open(request_husk(request), logs->session.box.sandbox->id, directory, false, &logs->watcher, NULL);
	if (websocket_accept(request, err) < 0 || respond_upgrade(request, run, logs, err) < 0)
		return -1;
	steal_pointer(logs);
	return 0;
}

/* ---- at once ---- */

static bool wants_marks(const struct request *request)
{
	const char *version = request_header(request, "X-Daytona-SDK-Version");
	unsigned major, minor;

	return version && sscanf(version, "%u.%u", &major, &minor) == 2 && major == 0 && minor < PLAIN_BEFORE;
}

static int respond_all(struct request *request, const struct daytona_session *session, const char *command,
		       struct husk_error *err)
{
	cleanup_buf struct buf out = { 0 }, error = { 0 }, both = { 0 };
	bool there, marks = wants_marks(request);

	if (daytona_session_read(request, session, command, "stdout", &out, &there, err) < 0 ||
	    daytona_session_read(request, session, command, "stderr", &error, &there, err) < 0)
		return -1;
	int failed = out.size && marks ? buf_append(&both, streams[0].mark, 3) : 0;
	failed |= buf_append(&both, out.data, out.size);
	failed |= error.size && marks ? buf_append(&both, streams[1].mark, 3) : 0;
	failed |= buf_append(&both, error.data, error.size);
	if (failed)
		return husk_fail_memory(err);
	if (marks)
		return respond_text(request, 200, "text/plain; charset=utf-8", both.data, both.size, err);
	return respond_json(request, 200,
			    json_pack("{s:o, s:o, s:o}", "output", json_text(both.data, both.size), "stdout",
				      json_text(out.data, out.size), "stderr", json_text(error.data, error.size)),
			    err);
}

int daytona_session_logs(struct request *request, struct husk_error *err)
{
	const char *command = request_path(request, "command");
	cleanup_session struct daytona_session session = { 0 };

	if (daytona_session_find(request, &session, err) < 0 ||
	    daytona_session_command(request, &session, command, err) < 0)
		return -1;
	if (request_header(request, "Upgrade"))
		return respond_socket(request, &session, command, err);
	return respond_all(request, &session, command, err);
}
