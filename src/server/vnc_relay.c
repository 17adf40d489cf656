/*
 * The relay between a viewer and the VNC server in a guest; see vnc_relay.h. Bytes of the guest are passed on without
 * being parsed, as fast as the viewer reads. Bytes of the viewer pass the filter. Nothing accumulates: each side is read
 * only while the other accepts.
 */
#include "server/vnc_relay.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#define PIECE (64u << 10)
#define INPUT_MAX (256u << 10) /* not yet accepted by the guest; one message of the filter may exceed it */
#define LOOK_MS 250            /* between two looks at who is in control */
#define SILENT_MAX 4           /* times SSE_PING_MS without any message, not even a pong: the viewer is gone */
#define CLOSE_GONE 1001        /* of RFC 6455 */
#define CLOSE_REFUSED 1008

void viewer_free(struct viewer *viewer)
{
	if (!viewer)
		return;
	websocket_free(viewer->websocket);
	buf_free(&viewer->input);
	fd_close(&viewer->guest);
	fd_close(&viewer->epoll);
	free(viewer);
}

static void viewer_cleanup(struct viewer **viewer)
{
	viewer_free(*viewer);
}

/* ---- control ---- */

/* Looks at who is in control: four times a second while it is this viewer, and otherwise at each message, so that
 * nothing of the first input after a take-over is lost. If control was lost, keys and buttons are released. If the
 * state cannot be read, nobody is in control. */
static void viewer_look(struct viewer *viewer)
{
	int64_t now = time_monotonic_ms();
	struct husk_control *control = NULL;

	if (!viewer->holder[0] || (viewer->control && now - viewer->looked_ms < LOOK_MS))
		return;
	viewer->looked_ms = now;
	bool had = viewer->control;
	viewer->control = husk_control_get(request_husk(viewer->request), viewer->sandbox, &control, NULL) == 0 &&
			  str_equal(control->holder, viewer->holder);
	husk_control_free(control);
	if (had && !viewer->control && !rfb_filter_inside(&viewer->filter))
		rfb_filter_release(&viewer->filter, &viewer->input, NULL);
}

/* ---- from the viewer to the guest ---- */

static int on_message(void *data, bool text, const char *bytes, size_t size)
{
	struct viewer *viewer = data;
	struct husk_error err = { 0 };

	if (viewer->broken)
		return 0;
	viewer_look(viewer);
	if (text)
		husk_fail(&err, HUSK_INVALID, "a text message; VNC is binary");
	else
		rfb_filter_feed(&viewer->filter, bytes, size, viewer->control, &viewer->input, &err);
	if (err.code != HUSK_OK) {
		viewer->broken = true;
		snprintf(viewer->reason, sizeof(viewer->reason), "%.90s", err.message);
		websocket_close(viewer->websocket, CLOSE_REFUSED, viewer->reason);
	}
	return viewer->input.size >= INPUT_MAX;
}

/* False: the guest's side is over. */
static bool viewer_input(struct viewer *viewer)
{
	if (viewer->input.size == 0)
		return true;
	ssize_t count = send(viewer->guest, viewer->input.data, viewer->input.size, MSG_DONTWAIT | MSG_NOSIGNAL);
	if (count > 0)
		buf_consume(&viewer->input, (size_t)count);
	return count >= 0 || errno == EAGAIN || errno == EINTR;
}

/* ---- from the guest to the viewer ---- */

/* False: the guest's side is over. */
static bool viewer_output(struct viewer *viewer, char *piece)
{
	while (!websocket_sending(viewer->websocket)) {
		ssize_t count = recv(viewer->guest, piece, PIECE, MSG_DONTWAIT);
		if (count < 0 && (errno == EAGAIN || errno == EINTR))
			return true;
		if (count <= 0)
			return false;
		if (websocket_send(viewer->websocket, false, piece, (size_t)count) < 0 ||
		    websocket_flush(viewer->websocket) < 0)
			return true; /* the viewer has closed */
	}
	return true;
}

/* ---- both ---- */

static int watch(struct viewer *viewer, int index, int fd, uint32_t events)
{
	struct epoll_event event = { .events = events };

	if (viewer->watched[index] == events)
		return 0;
	viewer->watched[index] = events;
	return epoll_ctl(viewer->epoll, EPOLL_CTL_MOD, fd, &event);
}

/* 1: either side may be ready; 0: silence; -1: the end. */
static int viewer_wait(struct viewer *viewer, int fd, bool over)
{
	bool sending = websocket_sending(viewer->websocket);
	uint32_t client = (viewer->input.size < INPUT_MAX ? EPOLLIN : 0u) | (sending ? EPOLLOUT : 0u);
	uint32_t guest = over ? 0u : (sending ? 0u : EPOLLIN) | (viewer->input.size ? EPOLLOUT : 0u);

	if (watch(viewer, 0, fd, client) < 0 || watch(viewer, 1, viewer->guest, guest) < 0)
		return -1;
	return request_wait(viewer->request, viewer->epoll, viewer->control ? LOOK_MS : SSE_PING_MS);
}

/* True if the viewer seems to be gone. Called after a silence. */
static bool viewer_silent(struct viewer *viewer, int64_t *heard_ms)
{
	int64_t now = time_monotonic_ms();

	if (websocket_heard(viewer->websocket))
		*heard_ms = now;
	else if (now - *heard_ms > SSE_PING_MS)
		websocket_ping(viewer->websocket);
	return now - *heard_ms > SILENT_MAX * SSE_PING_MS;
}

static void viewer_relay(struct viewer *viewer, int fd, char *piece)
{
	int64_t heard_ms = time_monotonic_ms();
	bool over = false;

	for (;;) {
		if (viewer->input.size < INPUT_MAX)
			websocket_receive(viewer->websocket);
		if (viewer->control)
			viewer_look(viewer);
		if (!over && (!viewer_input(viewer) || !viewer_output(viewer, piece))) {
			over = true;
			websocket_close(viewer->websocket, CLOSE_GONE, "the desktop has ended");
		}
		if (websocket_flush(viewer->websocket) < 0 || websocket_over(viewer->websocket))
			break;
		int ready = viewer_wait(viewer, fd, over);
		if (ready < 0 || (ready == 0 && (over || viewer->broken || viewer_silent(viewer, &heard_ms))))
			break;
	}
}

void viewer_run(struct request *request, int fd, const void *first, size_t size, void *data)
{
	cleanup(viewer_cleanup) struct viewer *viewer = data;
	cleanup_free char *piece = malloc(PIECE);
	struct epoll_event none = { 0 };

	viewer->request = request;
	viewer->epoll = epoll_create1(EPOLL_CLOEXEC);
	viewer->websocket = websocket_open(fd, first, size, on_message, viewer);
	if (!piece || viewer->epoll < 0 || !viewer->websocket ||
	    epoll_ctl(viewer->epoll, EPOLL_CTL_ADD, fd, &none) < 0 ||
	    epoll_ctl(viewer->epoll, EPOLL_CTL_ADD, viewer->guest, &none) < 0) {
		log_line(LOG_ERROR, "no resources for a viewer: %s", strerror(errno));
		return;
	}
	viewer_relay(viewer, fd, piece);
}
