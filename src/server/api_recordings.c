/*
 * Recordings of desktops: start, list, stop, download, remove. A recording that was started here runs on a thread of
 * this server and ends with it; libhusk has the files and their details (src/client/desktop_record.c), so any other
 * server or program of the instance can see and stop the recording.
 */
#include "server/api_files.h"
#include "server/core.h"
#include "server/desktop_link.h"

#define RUNNING_MAX 64 /* of this server */
#define PIECE (64u << 10)

/* The recordings of this server, for its end. */
struct running {
	char sandbox[64], id[64];
	struct husk_recorder *recorder;
	struct running *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct running *all;
static size_t all_count;

static bool running_add(struct running *running)
{
	pthread_mutex_lock(&lock);
	bool room = all_count < RUNNING_MAX;
	if (room) {
		running->next = all;
		all = running;
		all_count++;
	}
	pthread_mutex_unlock(&lock);
	return room;
}

static void running_remove(struct running *running)
{
	pthread_mutex_lock(&lock);
	for (struct running **at = &all; *at; at = &(*at)->next) {
		if (*at != running)
			continue;
		*at = running->next;
		all_count--;
		break;
	}
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
	husk_recorder_free(running->recorder);
	free(running);
}

static void *record(void *data)
{
	struct running *running = data;
	struct husk_error err = { 0 };

	if (husk_recorder_run(running->recorder, &err) < 0)
		log_line(LOG_WARN, "recording %s of %s: %s", running->id, running->sandbox, err.message);
	running_remove(running);
	return NULL;
}

void recordings_end(struct husk *husk)
{
	struct running last;

	for (;;) {
		pthread_mutex_lock(&lock);
		bool left = all != NULL;
		if (left)
			last = *all;
		pthread_mutex_unlock(&lock);
		if (!left || husk_recording_stop(husk, last.sandbox, last.id, NULL, NULL) < 0)
			return;
		pthread_mutex_lock(&lock);
		while (all && str_equal(all->id, last.id))
			pthread_cond_wait(&changed, &lock);
		pthread_mutex_unlock(&lock);
	}
}

/* ---- documents ---- */

static json_t *recording_document(const struct husk_recording *recording)
{
	static const char *const states[] = { [HUSK_RECORDING_RUNNING] = "recording",
					      [HUSK_RECORDING_COMPLETE] = "complete",
					      [HUSK_RECORDING_CUT] = "cut" };

	return json_pack("{s:s, s:s, s:o, s:o, s:f, s:I, s:i, s:i}", "id", recording->id, "state",
			 states[recording->state], "reason", json_text0(recording->reason), "started_at",
			 json_time(recording->started_ms), "duration_seconds", (double)recording->duration_ms / 1000.0,
			 "bytes", (json_int_t)recording->bytes, "width", (int)recording->width, "height",
			 (int)recording->height);
}

static json_t *recordings_document(struct husk_recording *const *list)
{
	json_t *array = json_array();

	for (size_t i = 0; array && list[i]; i++) {
		if (json_array_append_new(array, recording_document(list[i])) < 0) {
			json_decref(array);
			array = NULL;
		}
	}
	return array ? json_pack("{s:o}", "recordings", array) : NULL;
}

static void list_cleanup(struct husk_recording ***list)
{
	husk_recording_list_free(*list);
}

static int respond_one(struct request *request, unsigned status, const char *id, struct husk_error *err)
{
	cleanup(list_cleanup) struct husk_recording **list = NULL;

	if (husk_recording_list(request_husk(request), request_path(request, "id"), &list, err) < 0)
		return -1;
	for (size_t i = 0; list[i]; i++)
		if (str_equal(list[i]->id, id))
			return respond_json(request, status, recording_document(list[i]), err);
	return husk_fail(err, HUSK_NOT_FOUND, "sandbox %s has no recording '%.40s'", request_path(request, "id"), id);
}

/* ---- routes ---- */

static int start(struct request *request, const char *sandbox, const struct husk_record_options *options, char id[64],
		 struct husk_error *err)
{
	struct running *running = calloc(1, sizeof(*running));

	if (!running)
		return husk_fail_memory(err);
	if (husk_recorder_open(request_husk(request), sandbox, options, &running->recorder, err) < 0) {
		free(running);
		return -1;
	}
	snprintf(running->sandbox, sizeof(running->sandbox), "%s", sandbox);
	snprintf(running->id, sizeof(running->id), "%s", husk_recorder_id(running->recorder));
	snprintf(id, 64, "%s", running->id);
	bool room = running_add(running);
	if (room && thread_start(NULL, true, record, running) == 0)
		return 0;
	if (room)
		running_remove(running);
	else {
		husk_recorder_free(running->recorder);
		free(running);
	}
	husk_recording_remove(request_owner(request), sandbox, id, NULL);
	return husk_fail(err, HUSK_LIMIT, "this server records %d desktops already; stop one first", RUNNING_MAX);
}

static int handle_start(struct request *request, struct husk_error *err)
{
	cleanup_free char *sandbox = NULL;
	struct fields fields;
	char id[64];

	if (fields_begin(&fields, request_json(request, err)) < 0)
		return -1;
	struct husk_record_options options = {
		.max_seconds = fields_int(&fields, "max_seconds", 0, 1, 86400),
		.max_bytes = fields_size(&fields, "max_bytes"),
	};
	if (fields_done(&fields, err) < 0 || link_sandbox(request, &sandbox, err) < 0 ||
	    start(request, sandbox, &options, id, err) < 0)
		return -1;
	return respond_one(request, 201, id, err);
}

static int handle_list(struct request *request, struct husk_error *err)
{
	cleanup(list_cleanup) struct husk_recording **list = NULL;

	if (husk_recording_list(request_husk(request), request_path(request, "id"), &list, err) < 0)
		return -1;
	return respond_json(request, 200, recordings_document(list), err);
}

static int handle_get(struct request *request, struct husk_error *err)
{
	return respond_one(request, 200, request_path(request, "recording"), err);
}

static int handle_stop(struct request *request, struct husk_error *err)
{
	const char *id = request_path(request, "recording");

	if (husk_recording_stop(request_husk(request), request_path(request, "id"), id, NULL, err) < 0)
		return -1;
	return respond_one(request, 200, id, err);
}

static int handle_remove(struct request *request, struct husk_error *err)
{
	if (husk_recording_remove(request_husk(request), request_path(request, "id"),
				  request_path(request, "recording"), err) < 0)
		return -1;
	return respond_empty(request, 204, err);
}

/* What was there at the beginning of the answer: a recording that runs grows on. */
static int send_part(struct request *request, enum husk_recording_part part, const char *type, struct husk_error *err)
{
	uint64_t left = 0;
	cleanup_free char *piece = malloc(PIECE);
	cleanup_close int fd = husk_recording_read(request_husk(request), request_path(request, "id"),
						   request_path(request, "recording"), part, &left, err);

	if (fd < 0)
		return -1;
	if (!piece)
		return husk_fail_memory(err);
	if (respond_header(request, "X-Content-Type-Options", "nosniff", err) < 0 ||
	    respond_header(request, "Content-Disposition", "attachment", err) < 0 ||
	    stream_begin(request, 200, type, (int64_t)left, err) < 0)
		return -1;
	while (left > 0) {
		ssize_t count = read_full(fd, piece, MIN(left, PIECE));
		if (count <= 0)
			return husk_fail(err, HUSK_INTERNAL, "a recording became shorter while it was read");
		if (stream_write(request, piece, (size_t)count, err) < 0)
			return -1;
		left -= (uint64_t)count;
	}
	return 0;
}

static int handle_screen(struct request *request, struct husk_error *err)
{
	return send_part(request, HUSK_RECORDING_SCREEN, "application/octet-stream", err);
}

static int handle_actions(struct request *request, struct husk_error *err)
{
	return send_part(request, HUSK_RECORDING_ACTIONS, "application/x-ndjson", err);
}

static int handle_export(struct request *request, struct husk_error *err)
{
	static const struct {
		const char *format, *type;
	} types[] = { { "mp4", "video/mp4" }, { "webm", "video/webm" }, { "json", "application/json" } };
	static const char *const known[] = { "format", NULL };
	struct files_download download = { .request = request, .status = 200, .length = -1 };
	const char *format = request_query(request, "format");

	if (request_query_known(request, known, err) < 0)
		return -1;
	for (size_t i = 0; i < ARRAY_SIZE(types); i++)
		if (str_equal(format, types[i].format))
			download.type = types[i].type;
	if (!download.type)
		return husk_fail_field(err, "format", "format is not mp4, webm or json");
	if (respond_header(request, "X-Content-Type-Options", "nosniff", err) < 0 ||
	    respond_header(request, "Content-Disposition", "attachment", err) < 0)
		return -1;
	int result = husk_recording_export(request_husk(request), request_path(request, "id"),
					   request_path(request, "recording"), format, files_sink, &download, err);
	return files_download_end(&download, result, err);
}

const struct route recording_routes[] = {
	{ "POST", "/v1/sandboxes/{id}/desktop/recordings", handle_start, 0 },
	{ "GET", "/v1/sandboxes/{id}/desktop/recordings", handle_list, 0 },
	{ "GET", "/v1/sandboxes/{id}/desktop/recordings/{recording}", handle_get, 0 },
	{ "DELETE", "/v1/sandboxes/{id}/desktop/recordings/{recording}", handle_remove, 0 },
	{ "POST", "/v1/sandboxes/{id}/desktop/recordings/{recording}/stop", handle_stop, 0 },
	{ "GET", "/v1/sandboxes/{id}/desktop/recordings/{recording}/export", handle_export, ROUTE_STREAM },
	{ "GET", "/v1/sandboxes/{id}/desktop/recordings/{recording}/screen", handle_screen, ROUTE_STREAM | ROUTE_VIEW },
	{ "GET", "/v1/sandboxes/{id}/desktop/recordings/{recording}/actions", handle_actions,
	  ROUTE_STREAM | ROUTE_VIEW },
	{ 0 },
};
