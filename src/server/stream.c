/*
 * Streaming: the two flows between a handler's thread and its connection's thread; built on them, the pieces of an
 * answer and server-sent events. A flow is a ring of bounded size: the faster side waits, so a slow client costs its
 * handler's time and no memory. Every wait also ends when the client disconnects or the server's deadline passes.
 */
#include "server/core.h"

#define FLOW_FIRST 1024 /* most streams send little at a time */

/* ---- the ring; its request's lock is held ---- */

static bool flow_grow(struct flow *flow)
{
	size_t capacity = flow->capacity ? flow->capacity * 2 : FLOW_FIRST;
	char *data = malloc(capacity);

	if (!data)
		return false;
	size_t first = MIN(flow->size, flow->capacity - flow->start);
	if (flow->size) {
		memcpy(data, flow->data + flow->start, first);
		memcpy(data + first, flow->data, flow->size - first);
	}
	free(flow->data);
	flow->data = data;
	flow->capacity = capacity;
	flow->start = 0;
	return true;
}

/* Adds what fits; 0: the ring is full. */
static size_t flow_put(struct flow *flow, const char *bytes, size_t size)
{
	while (flow->capacity - flow->size < size && flow->capacity < FLOW_BYTES && flow_grow(flow))
		;
	size_t taken = MIN(size, flow->capacity - flow->size);
	size_t at = flow->capacity ? (flow->start + flow->size) % flow->capacity : 0;
	size_t first = MIN(taken, flow->capacity - at);

	if (taken) {
		memcpy(flow->data + at, bytes, first);
		memcpy(flow->data, bytes + first, taken - first);
	}
	flow->size += taken;
	return taken;
}

static size_t flow_take(struct flow *flow, char *bytes, size_t size)
{
	size_t taken = MIN(size, flow->size);
	size_t first = MIN(taken, flow->capacity - flow->start);

	if (taken) {
		memcpy(bytes, flow->data + flow->start, first);
		memcpy(bytes + first, flow->data, taken - first);
		flow->start = (flow->start + taken) % flow->capacity;
	}
	flow->size -= taken;
	return taken;
}

void flow_free(struct flow *flow)
{
	free(flow->data);
}

static bool is_over(const struct request *request)
{
	return request->gone || atomic_load(&request->server->over);
}

/* ---- the connection's side ---- */

bool flow_upload(struct request *request, const char *bytes, size_t size)
{
	bool waited = false;

	pthread_mutex_lock(&request->lock);
	while (size && !request->in.closed && !is_over(request)) {
		size_t taken = flow_put(&request->in, bytes, size);

		bytes += taken;
		size -= taken;
		if (taken) {
			pthread_cond_broadcast(&request->changed);
			continue;
		}
		if (!waited)
			http_patience(request, true);
		waited = true;
		pthread_cond_wait(&request->changed, &request->lock);
	}
	pthread_mutex_unlock(&request->lock);
	if (waited)
		http_patience(request, false);
	return size == 0;
}

void flow_upload_end(struct request *request)
{
	pthread_mutex_lock(&request->lock);
	request->in.ended = true;
	pthread_cond_broadcast(&request->changed);
	pthread_mutex_unlock(&request->lock);
}

ssize_t flow_download(void *data, uint64_t position, char *bytes, size_t size)
{
	struct request *request = data;
	struct flow *out = &request->out;
	bool waited = false;

	(void)position;
	pthread_mutex_lock(&request->lock);
	while (out->size == 0 && !out->ended && !request->failed && !is_over(request)) {
		if (!waited)
			http_patience(request, true);
		waited = true;
		pthread_cond_wait(&request->changed, &request->lock);
	}
	size_t taken = flow_take(out, bytes, size);
	bool whole = out->ended && !request->failed;
	if (taken)
		pthread_cond_broadcast(&request->changed);
	pthread_mutex_unlock(&request->lock);
	if (waited)
		http_patience(request, false);
	if (taken) {
		atomic_fetch_add(&request->sent, taken);
		return (ssize_t)taken;
	}
	return whole ? MHD_CONTENT_READER_END_OF_STREAM : MHD_CONTENT_READER_END_WITH_ERROR;
}

void flow_finish(struct request *request, bool failed)
{
	pthread_mutex_lock(&request->lock);
	bool streamed = request->answer.kind == ANSWER_STREAM;
	bool short_of_it = streamed && request->answer.length >= 0 &&
			   request->written != (uint64_t)request->answer.length && !str_equal(request->method, "HEAD");
	request->failed = streamed && (failed || short_of_it);
	request->in.closed = true;
	request->out.ended = true;
	request->handled = true;
	pthread_cond_broadcast(&request->changed);
	pthread_mutex_unlock(&request->lock);
}

/* ---- the handler's side: the body ---- */

ssize_t request_read(struct request *request, void *bytes, size_t size)
{
	struct flow *in = &request->in;
	ssize_t result = -1;

	pthread_mutex_lock(&request->lock);
	request->wants_body = true;
	pthread_cond_broadcast(&request->changed);
	while (in->size == 0 && !in->ended && !in->closed && !is_over(request))
		pthread_cond_wait(&request->changed, &request->lock);
	if (in->size)
		result = (ssize_t)flow_take(in, bytes, size);
	else if (in->ended || in->closed)
		result = 0;
	pthread_cond_broadcast(&request->changed);
	pthread_mutex_unlock(&request->lock);
	return result;
}

json_t *request_read_json(struct request *request, struct husk_error *err)
{
	char piece[4096];

	for (;;) {
		ssize_t size = request_read(request, piece, sizeof(piece));

		if (size < 0)
			return husk_fail(err, HUSK_GONE, "the client has gone"), NULL;
		if (size == 0)
			return request_json(request, err);
		if (body_add(request, piece, (size_t)size, err) < 0)
			return NULL;
	}
}

/* ---- the handler's side: the answer in pieces ---- */

int stream_begin(struct request *request, unsigned status, const char *type, int64_t length, struct husk_error *err)
{
	if (request->answer.kind != ANSWER_NONE)
		return husk_fail(err, HUSK_INTERNAL, "the answer was begun already");
	if (type && respond_header(request, "Content-Type", type, err) < 0)
		return -1;
	struct server *server = request->server;
	pthread_mutex_lock(&server->lock);
	server->stream_count++;
	request->answer.kind = ANSWER_STREAM;
	pthread_mutex_unlock(&server->lock);
	pthread_mutex_lock(&request->lock);
	request->answer.status = status;
	request->answer.length = length;
	request->in.closed = true;
	request->answered = true;
	pthread_cond_broadcast(&request->changed);
	pthread_mutex_unlock(&request->lock);
	return 0;
}

int stream_write(struct request *request, const void *bytes, size_t size, struct husk_error *err)
{
	const char *from = bytes;

	pthread_mutex_lock(&request->lock);
	while (size && !is_over(request)) {
		size_t taken = flow_put(&request->out, from, size);

		from += taken;
		size -= taken;
		request->written += taken;
		if (taken)
			pthread_cond_broadcast(&request->changed);
		else
			pthread_cond_wait(&request->changed, &request->lock);
	}
	bool gone = size && request->gone;
	pthread_mutex_unlock(&request->lock);
	if (size == 0)
		return 0;
	return husk_fail(err, HUSK_GONE, gone ? "the client has gone" : "the server is stopping");
}

/* ---- server-sent events ---- */

int sse_begin(struct request *request, struct husk_error *err)
{
	if (respond_header(request, "Cache-Control", "no-store", err) < 0 ||
	    respond_header(request, "X-Accel-Buffering", "no", err) < 0)
		return -1;
	return stream_begin(request, 200, "text/event-stream", -1, err);
}

int sse_send(struct request *request, const char *event, const char *id, json_t *document, struct husk_error *err)
{
	cleanup_json json_t *taken = document;
	cleanup_free char *text = document ? json_dumps(document, JSON_COMPACT) : NULL;
	cleanup_buf struct buf out = { 0 };

	/* json_dumps escapes every line end, so that the data is always one line. */
	if (!text || (id && buf_printf(&out, "id: %s\n", id) < 0) || buf_printf(&out, "event: %s\ndata: ", event) < 0 ||
	    buf_append_string(&out, text) < 0 || buf_append_string(&out, "\n\n") < 0)
		return husk_fail_memory(err);
	return stream_write(request, out.data, out.size, err);
}

int sse_ping(struct request *request, struct husk_error *err)
{
	return stream_write(request, ":\n\n", 3, err);
}

int sse_error(struct request *request, const struct husk_error *failure, struct husk_error *err)
{
	return sse_send(request, "error", NULL, error_document(failure), err);
}
