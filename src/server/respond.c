/*
 * Answers: a handler stores its answer in the request, and the connection's thread hands it to libmicrohttpd, which only
 * that thread may do. Called by every handler and by http.c. A request is answered once; a second answer is a bug and is
 * reported.
 */
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include "server/core.h"

/* libmicrohttpd's buffer for an answer of known length. A chunked answer uses the connection's own memory. */
#define SIZED_BLOCK ((size_t)64 * 1024)
#define CHUNKED_BLOCK ((size_t)16)

/* ---- from the handler ---- */

int respond_header(struct request *request, const char *name, const char *value, struct husk_error *err)
{
	struct answer *answer = &request->answer;
	struct text_pair pair = { strdup(name), strdup(value) };
	struct text_pair *grown =
		pair.name && pair.value ? realloc(answer->headers, (answer->header_count + 1) * sizeof(*grown)) : NULL;

	if (!grown) {
		free(pair.name);
		free(pair.value);
		return husk_fail_memory(err);
	}
	answer->headers = grown;
	answer->headers[answer->header_count++] = pair;
	return 0;
}

/* Takes `body`. */
static int give(struct request *request, unsigned status, const char *type, char *body, size_t size,
		struct husk_error *err)
{
	struct answer *answer = &request->answer;
	cleanup_free char *taken = body;

	if (answer->kind != ANSWER_NONE)
		return husk_fail(err, HUSK_INTERNAL, "the request was answered already");
	if (type && respond_header(request, "Content-Type", type, err) < 0)
		return -1;
	answer->kind = ANSWER_PLAIN;
	answer->status = status;
	answer->body = steal_pointer(taken);
	answer->size = size;
	return 0;
}

int respond_json(struct request *request, unsigned status, json_t *document, struct husk_error *err)
{
	cleanup_json json_t *taken = document;
	char *text = document ? json_dumps(document, JSON_COMPACT) : NULL;

	if (!text)
		return husk_fail_memory(err);
	return give(request, status, "application/json", text, strlen(text), err);
}

int respond_text(struct request *request, unsigned status, const char *type, const char *text, size_t size,
		 struct husk_error *err)
{
	char *copy = malloc(size + 1);

	if (!copy)
		return husk_fail_memory(err);
	memcpy(copy, text, size);
	return give(request, status, type, copy, size, err);
}

int respond_empty(struct request *request, unsigned status, struct husk_error *err)
{
	return give(request, status, NULL, NULL, 0, err);
}

int respond_streaming(struct request *request, int (*handle)(struct request *request, struct husk_error *err))
{
	request->handle = handle;
	return 0;
}

int respond_upgrade(struct request *request,
		    void (*run)(struct request *request, int fd, const void *first, size_t size, void *data),
		    void *data, struct husk_error *err)
{
	struct answer *answer = &request->answer;
	struct server *server = request->server;

	if (answer->kind != ANSWER_NONE)
		return husk_fail(err, HUSK_INTERNAL, "the request was answered already");
	answer->status = MHD_HTTP_SWITCHING_PROTOCOLS;
	answer->run = run;
	answer->run_data = data;
	pthread_mutex_lock(&server->lock);
	server->stream_count++;
	answer->kind = ANSWER_UPGRADE;
	pthread_mutex_unlock(&server->lock);
	return 0;
}

static void drop_headers(struct answer *answer)
{
	for (size_t i = 0; i < answer->header_count; i++) {
		free(answer->headers[i].name);
		free(answer->headers[i].value);
	}
	answer->header_count = 0;
}

void respond_error(struct request *request, const struct fault *fault, const struct husk_error *failure)
{
	if (request->answer.kind != ANSWER_NONE)
		return;
	drop_headers(&request->answer);
	if (fault && fault->status == 401)
		respond_header(request, "WWW-Authenticate", "Bearer", NULL);
	unsigned status = fault && fault->status ? fault->status : error_status(failure);
	const struct dialect *dialect = request->match.dialect;
	json_t *document = dialect && dialect->error ? dialect->error(request, &status, failure)
						     : error_json(fault && fault->status ? fault->name : NULL, failure);
	if (request->answer.kind != ANSWER_NONE)
		return;
	if (respond_json(request, status, document, NULL) < 0) {
		request->answer.kind = ANSWER_PLAIN; /* no memory even for the error */
		request->answer.status = 500;
	}
}

void answer_free(struct answer *answer)
{
	drop_headers(answer);
	free(answer->headers);
	free(answer->body);
}

/* ---- to libmicrohttpd, on the connection's thread ---- */

struct upgrade {
	struct request *request;
	struct MHD_UpgradeResponseHandle *handle;
	int fd;
	char *first;
	size_t size;
};

static void *upgrade_main(void *data)
{
	struct upgrade *upgrade = data;
	struct request *request = upgrade->request;
	int on = 1;

	log_set_request(request->id);
	fd_set_nonblocking(upgrade->fd, false);
	setsockopt(upgrade->fd, IPPROTO_TCP, TCP_NODELAY, &on,
		   sizeof(on)); /* fails on a unix socket, which does not need it */
	request->answer.run(request, upgrade->fd, upgrade->first, upgrade->size, request->answer.run_data);
	MHD_upgrade_action(upgrade->handle, MHD_UPGRADE_ACTION_CLOSE);
	free(upgrade->first);
	free(upgrade);
	request_unref(request);
	return NULL;
}

int thread_start(pthread_t *out, bool detached, void *(*run)(void *data), void *data)
{
	pthread_attr_t attributes;
	pthread_t thread;

	if (pthread_attr_init(&attributes) != 0)
		return -1;
	int failed = pthread_attr_setstacksize(&attributes, THREAD_STACK);
	if (!failed && detached)
		failed = pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	if (!failed)
		failed = pthread_create(out ? out : &thread, &attributes, run, data);
	pthread_attr_destroy(&attributes);
	return failed ? -1 : 0;
}

static void upgraded(void *data, struct MHD_Connection *connection, void *context, const char *extra, size_t extra_size,
		     MHD_socket fd, struct MHD_UpgradeResponseHandle *handle)
{
	struct request *request = data;
	struct upgrade *upgrade = calloc(1, sizeof(*upgrade));
	char *first = malloc(extra_size + 1);

	(void)connection, (void)context;
	if (upgrade && first) {
		memcpy(first, extra ? extra : "", extra_size);
		*upgrade = (struct upgrade){ request, handle, fd, first, extra_size };
		request_ref(request);
		if (thread_start(NULL, true, upgrade_main, upgrade) == 0) {
			request->upgraded = true;
			return;
		}
		request_unref(request);
	}
	free(upgrade);
	free(first);
	MHD_upgrade_action(handle, MHD_UPGRADE_ACTION_CLOSE);
}

/* `run` owns its data and must run to free it: on a closed connection. */
void upgrade_abandon(struct request *request)
{
	int pair[2];

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0) {
		log_line(LOG_ERROR, "cannot end an upgraded connection properly: %s", strerror(errno));
		return;
	}
	fd_close(&pair[1]);
	request->answer.run(request, pair[0], "", 0, request->answer.run_data);
	fd_close(&pair[0]);
}

static void let_go(void *request)
{
	request_unref(request);
}

static struct MHD_Response *make_response(struct request *request)
{
	struct answer *answer = &request->answer;
	struct MHD_Response *response = NULL;

	switch (answer->kind) {
	case ANSWER_STREAM:
		request_ref(request);
		response = answer->length < 0 ? MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, CHUNKED_BLOCK,
										  flow_download, request, let_go)
					      : MHD_create_response_from_callback((uint64_t)answer->length, SIZED_BLOCK,
										  flow_download, request, let_go);
		if (!response)
			request_unref(request);
		return response;
	case ANSWER_UPGRADE:
		return MHD_create_response_for_upgrade(upgraded, request);
	case ANSWER_PLAIN:
	case ANSWER_NONE:
		break;
	}
	atomic_fetch_add(&request->sent, answer->size);
	if (!answer->body)
		return MHD_create_response_from_buffer(0, (void *)"", MHD_RESPMEM_PERSISTENT);
	response = MHD_create_response_from_buffer(answer->size, answer->body, MHD_RESPMEM_MUST_FREE);
	if (response)
		answer->body = NULL;
	return response;
}

enum MHD_Result respond_queue(struct request *request)
{
	struct answer *answer = &request->answer;
	struct MHD_Response *response = make_response(request);
	enum MHD_Result result = response ? MHD_YES : MHD_NO;

	for (size_t i = 0; response && i < answer->header_count; i++)
		MHD_add_response_header(response, answer->headers[i].name, answer->headers[i].value);
	if (response)
		MHD_add_response_header(response, "X-Request-Id", request->id);
	if (response)
		MHD_add_response_header(response, "X-Husk-Version", HUSK_VERSION);
	if (response && answer->kind != ANSWER_UPGRADE && atomic_load(&request->server->stopping))
		MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
	request->queued = true;
	if (result == MHD_YES)
		result = MHD_queue_response(request->connection, answer->status, response);
	if (response)
		MHD_destroy_response(response);
	return result;
}
