/*
 * Follows a process for a client; see follow.h. One thread waits for output, input and the client's disconnect together, so
 * that a process that neither reads nor writes cannot block it. Output is the guest's: it is passed on as bytes and never
 * interpreted, except to find where a character ends.
 */
#include <inttypes.h>

#include "server/follow.h"

#define PIECE 65536u        /* of output in one event, at most */
#define HELD_MS 500         /* how long an incomplete character waits for its rest */
#define UNREAD_MAX 524288u  /* see husk_process_unread */
#define TURNS_PER_CHECK 64u /* a process that never stops writing must not keep the client from being checked */

/* ---- waiting ---- */

static int abandon(struct follow *follow, struct husk_error *err)
{
	follow->abandoned = true;
	return husk_fail(err, HUSK_GONE, "the client disconnected; process %" PRId64 " continues", follow->pid);
}

/* Feeds as much input as possible without waiting. A process that has ended or closed its stdin needs no more; its exit
 * follows. */
static void follow_feed(struct follow *follow)
{
	if (follow->input_size > 0) {
		ssize_t count = husk_process_write_some(follow->process, follow->input, follow->input_size, NULL);
		size_t taken = count < 0 ? follow->input_size : (size_t)count;
		follow->input += taken;
		follow->input_size -= taken;
	}
	if (follow->input_size == 0 && follow->close_input) {
		follow->close_input = false;
		husk_process_close_stdin(follow->process, NULL);
	}
}

int follow_next(struct follow *follow, int timeout_ms, struct husk_process_event *event, struct husk_error *err)
{
	for (;;) {
		bool look = ++follow->turns % TURNS_PER_CHECK == 0;
		if (look && request_wait(follow->request, -1, 0) < 0)
			return abandon(follow, err);
		/* Fed after the pending frames were received: credit that came with them is not announced again. */
		bool pending = husk_process_pending(follow->process);
		follow_feed(follow);
		if (pending)
			return husk_process_next(follow->process, event, err) < 0 ? -1 : 1;
		int ready = request_wait(follow->request, husk_process_fd(follow->process), timeout_ms);
		if (ready < 0)
			return abandon(follow, err);
		if (ready == 0)
			return 0;
	}
}

/* ---- feeding alone ---- */

/* Waits until the process may have read something; its output is ignored here. 1: it ended. */
static int wait_for_reader(struct follow *follow, struct husk_error *err)
{
	struct husk_process_event event;

	if (request_wait(follow->request, husk_process_fd(follow->process), -1) < 0)
		return abandon(follow, err);
	while (husk_process_pending(follow->process)) {
		if (husk_process_next(follow->process, &event, err) < 0)
			return -1;
		if (event.kind == HUSK_EXIT)
			return 1;
	}
	return 0;
}

int process_feed(struct follow *follow, const char *bytes, size_t size, struct husk_error *err)
{
	while (size > 0) {
		ssize_t count = husk_process_write_some(follow->process, bytes, size, NULL);
		if (count < 0) /* the call is over: the pending exit has the reason */
			count = 0;
		bytes += count;
		size -= (size_t)count;
		int ended = size > 0 ? wait_for_reader(follow, err) : 0;
		if (ended < 0)
			return -1;
		if (ended > 0)
			return husk_fail(err, HUSK_CONFLICT, "process %" PRId64 " ended before it had read its input",
					 follow->pid);
	}
	return 0;
}

int process_feed_end(struct follow *follow, bool close, struct husk_error *err)
{
	int ended = 0;

	if (close)
		husk_process_close_stdin(follow->process, NULL);
	/* A process that ends now may have read everything: the last bytes are not confirmed any more. */
	while (ended == 0 && husk_process_unread(follow->process) > UNREAD_MAX)
		ended = wait_for_reader(follow, err);
	if (ended == 0) /* the next request has a connection of its own, which must not overtake this one */
		ended = husk_process_detach(follow->process, err);
	return ended < 0 ? -1 : 0;
}

/* ---- as server-sent events ---- */

json_t *process_exit_document(const struct husk_process_event *event)
{
	return json_pack("{s:i, s:o, s:b, s:b, s:I}", "exit_code", event->exit_code, "signal",
			 event->signal ? json_integer(event->signal) : json_null(), "timed_out", event->timed_out,
			 "out_of_memory", event->out_of_memory, "duration_ms", (json_int_t)event->duration_ms);
}

json_t *process_end_document(const struct follow *follow, const struct husk_process_event *event, const char *errors,
			     size_t size)
{
	bool failed = event->exit_code != 0 && follow->started_ms;
	cleanup_json json_t *document = process_exit_document(event);
	json_t *denied = failed ? json_denied(request_husk(follow->request), request_path(follow->request, "id"),
					      follow->started_ms, errors, size)
				: json_array();

	return json_object_set_new(document, "denied", denied) < 0 ? NULL : steal_pointer(document);
}

static size_t character_length(char first)
{
	unsigned char byte = (unsigned char)first;

	return byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;
}

/* How many bytes at the end begin a character that is not complete: 0 to 3. */
static size_t unfinished(const char *bytes, size_t size)
{
	for (size_t back = 1; back <= 3 && back <= size; back++) {
		char byte = bytes[size - back];
		if ((byte & 0xc0) != 0x80)
			return character_length(byte) > back ? back : 0;
	}
	return 0;
}

static int send_output(struct follow *follow, int index, const char *bytes, size_t size, struct husk_error *err)
{
	bool text = str_is_utf8(bytes, size);
	char id[64];
	json_t *document = json_pack("{s:o, s:I}", text ? "text" : "base64",
				     text ? json_text(bytes, size) : json_base64(bytes, size), "offset",
				     (json_int_t)follow->offset[index]);

	follow->offset[index] += (int64_t)size;
	snprintf(id, sizeof(id), "%" PRId64 "-%" PRId64, follow->offset[0], follow->offset[1]);
	if (sse_send(follow->request, index == 0 ? "stdout" : "stderr", id, document, err) == 0)
		return 0;
	follow->abandoned = true;
	return -1;
}

/* Sends the held bytes of an incomplete character, unchanged. */
static int send_held(struct follow *follow, struct husk_error *err)
{
	for (int index = 0; index < 2; index++) {
		size_t size = follow->held[index].size;
		follow->held[index].size = 0;
		if (size && send_output(follow, index, follow->held[index].bytes, size, err) < 0)
			return -1;
	}
	return 0;
}

/* Sends one piece of output. If a read cut a character in two, the parts are joined, so that text stays text. */
static int send_piece(struct follow *follow, int index, const char *bytes, size_t size, struct husk_error *err)
{
	char *held = follow->held[index].bytes;
	size_t *held_size = &follow->held[index].size;

	for (; *held_size > 0 && size > 0; bytes++, size--) {
		held[(*held_size)++] = *bytes;
		if (*held_size < character_length(held[0]))
			continue;
		size_t whole = *held_size;
		*held_size = 0;
		if (send_output(follow, index, held, whole, err) < 0)
			return -1;
	}
	size_t rest = unfinished(bytes, size);
	if (size == 0)
		return 0;
	memcpy(held, bytes + size - rest, rest);
	*held_size = rest;
	return size == rest ? 0 : send_output(follow, index, bytes, size - rest, err);
}

static int send_event(struct follow *follow, const struct husk_process_event *event, struct husk_error *err)
{
	int index = event->kind == HUSK_STDERR;

	if (event->kind == HUSK_EXIT) {
		if (send_held(follow, err) == 0 &&
		    sse_send(follow->request, "exit", NULL,
			     process_end_document(follow, event, follow->last_errors, follow->last_errors_size),
			     err) == 0)
			return 0;
		follow->abandoned = true;
		return -1;
	}
	if (index == 1) {
		follow->last_errors_size = MIN(event->size, sizeof(follow->last_errors));
		memcpy(follow->last_errors, event->data + event->size - follow->last_errors_size,
		       follow->last_errors_size);
	}
	for (size_t at = 0; at < event->size; at += PIECE)
		if (send_piece(follow, index, event->data + at, MIN(PIECE, event->size - at), err) < 0)
			return -1;
	return 0;
}

static int send_quiet(struct follow *follow, bool held, struct husk_error *err)
{
	if (held)
		return send_held(follow, err);
	if (sse_ping(follow->request, err) == 0)
		return 0;
	follow->abandoned = true;
	return -1;
}

int follow_stream(struct follow *follow, json_t *start, struct husk_error *err)
{
	cleanup_json json_t *owned = start;
	struct husk_process_event event = { 0 };

	if (sse_begin(follow->request, err) < 0 ||
	    sse_send(follow->request, "start", NULL, json_incref(owned), err) < 0) {
		follow->abandoned = true;
		return -1;
	}
	while (event.kind != HUSK_EXIT) {
		bool held = follow->held[0].size || follow->held[1].size;
		struct husk_error why = { 0 };
		int got = follow_next(follow, held ? HELD_MS : SSE_PING_MS, &event, &why);
		if (got < 0 && !follow->abandoned)
			return sse_error(follow->request, &why, err);
		if (got < 0) {
			*err = why;
			return -1;
		}
		if ((got > 0 ? send_event(follow, &event, err) : send_quiet(follow, held, err)) < 0)
			return -1;
	}
	return 0;
}
