/*
 * Recordings of a desktop, over the API. The recorder runs on the server: if this client disconnects, it continues until
 * its limit.
 */
#include "remote/remote_http.h"
#include "remote/remote_read.h"
#include "remote/remote_write.h"

#define POLL_MS 500

static enum husk_recording_state read_state(struct reading *r)
{
	static const char *const names[] = { [HUSK_RECORDING_RUNNING] = "recording",
					     [HUSK_RECORDING_COMPLETE] = "complete",
					     [HUSK_RECORDING_CUT] = "cut" };
	const char *state = json_string_value(json_object_get(r->from, "state"));

	for (size_t i = 0; i < ARRAY_SIZE(names); i++)
		if (str_equal(state, names[i]))
			return (enum husk_recording_state)i;
	r->wrong = "state";
	return HUSK_RECORDING_CUT;
}

static struct husk_recording *read_recording(const json_t *document, struct husk_error *err)
{
	struct reading r = { .from = document };
	struct husk_recording *out = calloc(1, sizeof(*out));
	double seconds = json_number_value(json_object_get(document, "duration_seconds"));

	if (!out) {
		husk_fail_memory(err);
		return NULL;
	}
	out->id = read_needed(&r, "id");
	out->state = read_state(&r);
	out->reason = read_text(&r, "reason");
	out->started_ms = read_time(&r, "started_at");
	out->bytes = read_count(&r, "bytes");
	out->width = (uint32_t)MIN(read_count(&r, "width"), 65535u);
	out->height = (uint32_t)MIN(read_count(&r, "height"), 65535u);
	if (seconds > 0 && seconds < 1e9)
		out->duration_ms = (int64_t)(seconds * 1000);
	if (read_done(&r, "a recording", err) == 0)
		return out;
	husk_recording_free(out);
	return NULL;
}

static void *read_one(const json_t *document, struct husk_error *err)
{
	return read_recording(document, err);
}

static void drop_one(void *recording)
{
	husk_recording_free(recording);
}

int remote_recording_list(struct remote *remote, const char *sandbox, struct husk_recording ***out,
			  struct husk_error *err)
{
	cleanup_json json_t *document = NULL;

	if (exchange_get(remote, target_make("/v1/sandboxes/%s/desktop/recordings", sandbox), &document, err) < 0)
		return -1;
	return read_list(document, "recordings", read_one, drop_one, (void ***)out, err);
}

int remote_recording_begin(struct remote *remote, const char *sandbox, const struct husk_record_options *options,
			   char **id, struct husk_error *err)
{
	cleanup_json json_t *document = NULL;
	struct writing w;

	write_begin(&w);
	if (options && options->max_seconds)
		write_number(&w, "max_seconds", options->max_seconds);
	if (options && options->max_bytes)
		write_size(&w, "max_bytes", options->max_bytes);
	struct exchange x = { .method = "POST", .body = write_done(&w, err) };
	if (!x.body)
		return -1;
	x.target = target_make("/v1/sandboxes/%s/desktop/recordings", sandbox);
	if (exchange_run(remote, &x, &document, err) < 0)
		return -1;
	struct husk_recording *made = read_recording(document, err);
	if (!made)
		return -1;
	*id = steal_pointer(made->id);
	husk_recording_free(made);
	return 0;
}

int remote_recording_wait(struct remote *remote, const char *sandbox, const char *id, struct husk_error *err)
{
	for (;;) {
		cleanup_json json_t *document = NULL;
		if (exchange_get(remote, target_make("/v1/sandboxes/%s/desktop/recordings/%s", sandbox, id), &document,
				 err) < 0)
			return -1;
		struct husk_recording *now = read_recording(document, err);
		if (!now)
			return -1;
		bool ended = now->state != HUSK_RECORDING_RUNNING;
		husk_recording_free(now);
		if (ended)
			return 0;
		usleep(POLL_MS * 1000);
	}
}

int remote_recording_stop(struct remote *remote, const char *sandbox, const char *id, struct husk_recording **out,
			  struct husk_error *err)
{
	cleanup_json json_t *document = NULL;
	struct exchange x = { .method = "POST",
			      .target = target_make("/v1/sandboxes/%s/desktop/recordings/%s/stop", sandbox, id) };

	if (exchange_run(remote, &x, &document, err) < 0)
		return -1;
	struct husk_recording *ended = read_recording(document, err);
	if (!ended)
		return -1;
	if (out)
		*out = ended;
	else
		husk_recording_free(ended);
	return 0;
}

int remote_recording_remove(struct remote *remote, const char *sandbox, const char *id, struct husk_error *err)
{
	struct exchange x = { .method = "DELETE",
			      .target = target_make("/v1/sandboxes/%s/desktop/recordings/%s", sandbox, id) };

	return exchange_run(remote, &x, NULL, err);
}

int remote_recording_export(struct remote *remote, const char *sandbox, const char *id, const char *format,
			    husk_sink sink, void *data, struct husk_error *err)
{
	struct exchange x = { .method = "GET", .sink = sink, .sink_data = data };

	x.target = target_make("/v1/sandboxes/%s/desktop/recordings/%s/export", sandbox, id);
	x.target = target_add(x.target, "format", format);
	return exchange_run(remote, &x, NULL, err);
}
