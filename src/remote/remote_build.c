/*
 * A build from a Dockerfile on the server: the options and a tar of the context as one form, and the events of the build as they happen.
 * When the caller stops it, the connection is closed, and the server ends the build.
 */
#include <fcntl.h>
#include <sys/stat.h>

#include "remote/remote_http.h"
#include "remote/remote_read.h"
#include "remote/remote_write.h"

#define BOUNDARY_LENGTH 40

/* ---- what is sent ---- */

struct form {
	struct buf head; /* the options, and the head of the tar's part */
	size_t at;
	int fd;
	char tail[BOUNDARY_LENGTH + 16];
	size_t tail_at;
	const struct husk_dockerfile_options *options;
};

static void form_free(struct form *form)
{
	if (form->head.data)
		explicit_bzero(form->head.data, form->head.size); /* values of secrets */
	buf_free(&form->head);
}

static int stopped(void *data)
{
	const struct husk_dockerfile_options *options = data;

	return options->progress && options->progress(options->data, NULL);
}

static ssize_t read_form(void *data, void *bytes, size_t size)
{
	struct form *form = data;
	size_t count = MIN(size, form->head.size - form->at);

	if (stopped((void *)form->options))
		return -1;
	memcpy(bytes, form->head.data + form->at, count);
	form->at += count;
	if (count)
		return (ssize_t)count;
	ssize_t got = read_full(form->fd, bytes, size);
	if (got)
		return got;
	count = MIN(size, strlen(form->tail) - form->tail_at);
	memcpy(bytes, form->tail + form->tail_at, count);
	form->tail_at += count;
	return (ssize_t)count;
}

static json_t *write_options(const struct husk_dockerfile_options *options, const char *text, struct husk_error *err)
{
	struct writing w;

	write_begin(&w);
	write_text(&w, "name", options->name);
	write_text(&w, "dockerfile", text);
	write_text(&w, "dockerfile_name", options->dockerfile);
	write_text(&w, "target", options->target);
	write_pairs(&w, "args", options->arguments, options->argument_count);
	write_pairs(&w, "secrets", options->secrets, options->secret_count);
	if (write_policy(&w, options->egress, err) < 0)
		return NULL;
	write_text(&w, "isolation", options->isolation);
	write_size(&w, "memory", options->memory_bytes);
	write_size(&w, "disk", options->disk_bytes);
	if (options->cpu_milli)
		write_json(&w, "cpus", json_real(options->cpu_milli / 1000.0));
	if (options->timeout_ms)
		write_json(&w, "timeout_seconds", json_real((double)options->timeout_ms / 1000.0));
	write_text(&w, "warm", options->warm);
	write_bool(&w, "no_cache", options->no_cache);
	return write_done(&w, err);
}

static int make_form(const struct husk_dockerfile_options *options, const char *text, const char *boundary,
		     struct form *form, struct husk_error *err)
{
	static const char part[] = "Content-Disposition: form-data; name=";
	cleanup_json json_t *document = write_options(options, text, err);
	cleanup_wipe char *json = document ? json_dumps(document, JSON_COMPACT) : NULL;

	if (!document)
		return -1;
	snprintf(form->tail, sizeof(form->tail), "\r\n--%s--\r\n", boundary);
	if (!json ||
	    buf_printf(&form->head,
		       "--%s\r\n%s\"options\"\r\n\r\n%s\r\n--%s\r\n%s\"context\"; filename=\"context.tar\"\r\n\r\n",
		       boundary, part, json, boundary, part) < 0)
		return husk_fail_memory(err);
	return 0;
}

/* ---- what comes back ---- */

struct answer {
	const struct husk_dockerfile_options *options;
	json_t *built;
	struct husk_error failure;
	bool stopped;
};

static enum husk_build_kind kind_of(const char *name)
{
	static const char *const kinds[] = { "", "step", "cached", "output", "done", "note" };

	for (size_t i = 1; i < ARRAY_SIZE(kinds); i++)
		if (str_equal(kinds[i], name))
			return (enum husk_build_kind)i;
	return 0;
}

static size_t number_of(const json_t *document, const char *key)
{
	json_int_t value = json_integer_value(json_object_get(document, key));

	return value > 0 && value < INT32_MAX ? (size_t)value : 0;
}

static void pass_on(struct answer *answer, const char *name, const json_t *document)
{
	const json_t *text = json_object_get(document, "text");
	const char *stage = json_string_value(json_object_get(document, "stage"));
	const struct husk_build_event event = {
		.kind = kind_of(name),
		.step = number_of(document, "step"),
		.steps = number_of(document, "steps"),
		.stage = stage                     ? stage
			 : str_equal(name, "note") ? NULL
						   : "",
		.line = (unsigned)number_of(document, "line"),
		.text = json_is_string(text) ? json_string_value(text) : "",
		.size = json_string_length(text),
		.error_output = str_equal(json_string_value(json_object_get(document, "stream")), "stderr"),
		.duration_ms = (int64_t)number_of(document, "duration_ms"),
	};

	if (event.kind && answer->options->progress && answer->options->progress(answer->options->data, &event))
		answer->stopped = true;
}

static void take_event(void *data, const char *name, json_t *document)
{
	struct answer *answer = data;
	const json_t *error = json_object_get(document, "error");
	const char *message = json_string_value(json_object_get(error, "message"));
	const char *hint = json_string_value(json_object_get(error, "hint"));

	if (str_equal(name, "built") && !answer->built)
		answer->built = json_incref(document);
	else if (str_equal(name, "error"))
		husk_fail(&answer->failure, http_code(error, 500), "%s%s%s", message ? message : "the build failed",
			  hint ? "; " : "", hint ? hint : "");
	else
		pass_on(answer, name, document);
}

static int stop_answer(void *data)
{
	struct answer *answer = data;

	return answer->stopped || stopped((void *)answer->options);
}

static int take_result(const struct answer *answer, struct husk_image **out, bool *fresh, struct husk_error *err)
{
	struct husk_image *image = read_image(json_object_get(answer->built, "image"), err);

	if (!image)
		return -1;
	if (fresh)
		*fresh = json_is_true(json_object_get(answer->built, "fresh"));
	if (out)
		*out = image;
	else
		husk_image_free(image);
	return 0;
}

static int run(struct remote *remote, struct form *form, const char *boundary, struct answer *answer,
	       struct husk_error *err)
{
	cleanup_free char *type = str_format("multipart/form-data; boundary=%s", boundary);
	cleanup(events_free) struct events events = { .take = take_event, .data = answer };
	struct exchange x = { .method = "POST",
			      .target = target_make("/v1/templates/build"),
			      .source = read_form,
			      .source_data = form,
			      .type = type,
			      .sink = events_sink,
			      .sink_data = &events,
			      .stop = stop_answer,
			      .stop_data = answer };

	if (!type) {
		free(x.target);
		return husk_fail_memory(err);
	}
	int result = exchange_run(remote, &x, NULL, err);
	if (stop_answer(answer))
		return husk_fail(err, HUSK_GONE, "interrupted; nothing was built");
	if (result == 0 && answer->failure.code)
		return husk_fail(err, answer->failure.code, "%s", answer->failure.message);
	return result == 0 && !answer->built ? http_lost(remote, err) : result;
}

int remote_build(struct remote *remote, const struct husk_dockerfile_options *options, const char *text, int context,
		 struct husk_image **out, bool *fresh, struct husk_error *err)
{
	cleanup(form_free) struct form form = { .fd = context, .options = options };
	struct answer answer = { .options = options };
	char boundary[BOUNDARY_LENGTH];

	if (random_id("husk-", 24, boundary) < 0)
		return husk_fail_errno(err, "no random numbers");
	if (lseek(context, 0, SEEK_SET) < 0)
		return husk_fail_errno(err, "cannot read the context");
	if (make_form(options, text, boundary, &form, err) < 0)
		return -1;
	int result = run(remote, &form, boundary, &answer, err);
	if (result == 0)
		result = take_result(&answer, out, fresh, err);
	json_decref(answer.built);
	return result;
}
