/*
 * The events of a `husk code` run; see code_result.h. Results come from the guest: their kinds are looked up in a table of
 * ours, file names are made here, and nothing of the guest's becomes part of a path.
 */
#include "cli/code_result.h"

#include <openssl/evp.h>

static const struct {
	const char *mime, *extension;
	bool base64;
} rich_kinds[] = {
	{ "image/png", "png", true },       { "image/jpeg", "jpg", true },     { "image/gif", "gif", true },
	{ "application/pdf", "pdf", true }, { "image/svg+xml", "svg", false }, { "text/html", "html", false },
	{ "text/markdown", "md", false },   { "text/latex", "tex", false },    { "application/json", "json", false },
};

int code_view_begin(struct code_view *view, struct husk_error *err)
{
	view->results = json_array();
	view->files = json_array();
	if (!view->results || !view->files)
		return husk_fail_memory(err);
	return view->output_dir ? dir_make(view->output_dir, 0777, err) : 0;
}

void code_view_free(struct code_view *view)
{
	buf_free(&view->output);
	buf_free(&view->error_output);
	json_decref(view->results);
	json_decref(view->files);
	json_decref(view->main_text);
	json_decref(view->error);
}

/* ---- rich results ---- */

static int decode_base64(const char *text, size_t size, struct buf *out, struct husk_error *err)
{
	EVP_ENCODE_CTX *context = EVP_ENCODE_CTX_new();
	int count = 0, rest = 0;

	if (!context || size > INT32_MAX || buf_reserve(out, size) < 0) {
		EVP_ENCODE_CTX_free(context);
		return husk_fail_memory(err);
	}
	EVP_DecodeInit(context);
	int bad = EVP_DecodeUpdate(context, (unsigned char *)out->data, &count, (const unsigned char *)text,
				   (int)size) < 0 ||
		  EVP_DecodeFinal(context, (unsigned char *)out->data + count, &rest) < 0;
	EVP_ENCODE_CTX_free(context);
	out->size = (size_t)count + (size_t)rest;
	return bad ? husk_fail(err, HUSK_PROTOCOL, "a result of the code is not the base64 it claims to be") : 0;
}

static int save(struct code_view *view, size_t kind, const char *text, size_t size, struct husk_error *err)
{
	cleanup_free char *path =
		str_format("%s/result-%zu.%s", view->output_dir, view->saved + 1, rich_kinds[kind].extension);
	cleanup_buf struct buf bytes = { 0 };

	if (!path)
		return husk_fail_memory(err);
	if (rich_kinds[kind].base64 && decode_base64(text, size, &bytes, err) < 0)
		return -1;
	if (file_write_atomic(path, rich_kinds[kind].base64 ? bytes.data : text,
			      rich_kinds[kind].base64 ? bytes.size : size, 0644, err) < 0)
		return -1;
	if (!view->json)
		output_note("saved %s", path);
	return json_array_append_new(view->files, json_text0(path)) < 0 ? husk_fail_memory(err) : 0;
}

/* Saves each rich representation, or prints a note on stderr that there is one. */
static int rich_result(struct code_view *view, json_t *bundle, struct husk_error *err)
{
	bool any = false;

	for (size_t kind = 0; kind < ARRAY_SIZE(rich_kinds); kind++) {
		json_t *value = json_object_get(bundle, rich_kinds[kind].mime);
		if (!value)
			continue;
		any = true;
		if (!view->output_dir) {
			if (!view->json && strncmp(rich_kinds[kind].mime, "image/", 6) == 0)
				output_note("the code made a %s; --output-dir DIR saves it", rich_kinds[kind].mime);
			continue;
		}
		cleanup_free char *dumped =
			json_is_string(value) ? NULL : json_dumps(value, JSON_INDENT(2) | JSON_ENCODE_ANY);
		const char *text = dumped ? dumped : json_string_value(value);
		size_t size = dumped ? strlen(dumped) : json_string_length(value);
		if (!text)
			return husk_fail_memory(err);
		if (save(view, kind, text, size, err) < 0)
			return -1;
	}
	view->saved += any;
	return 0;
}

static int on_result(struct code_view *view, const struct husk_code_event *event, struct husk_error *err)
{
	cleanup_json json_t *bundle = event->bundle ? json_loads(event->bundle, 0, NULL) : NULL;

	if (bundle && rich_result(view, bundle, err) < 0)
		return -1;
	if (event->main_result && event->text) {
		json_decref(view->main_text);
		view->main_text = json_text0(event->text);
	}
	if (!view->json) {
		if (event->text && (printf("%s\n", event->text) < 0 || fflush(stdout) != 0))
			return husk_fail_errno(err, "cannot write to standard output");
		return 0;
	}
	json_t *object = json_pack("{s:b, s:o, s:o}", "main", event->main_result, "text", json_text0(event->text),
				   "data", bundle ? json_incref(bundle) : json_object());
	return json_array_append_new(view->results, object) < 0 ? husk_fail_memory(err) : 0;
}

/* ---- output and errors ---- */

static int on_output(struct code_view *view, const struct husk_code_event *event, struct husk_error *err)
{
	bool error_output = event->kind == HUSK_CODE_STDERR;
	const char *text = event->text ? event->text : "";

	if (view->json)
		return buf_append_string(error_output ? &view->error_output : &view->output, text) < 0
			       ? husk_fail_memory(err)
			       : 0;
	FILE *out = error_output ? stderr : stdout;
	if (fputs(text, out) == EOF || fflush(out) != 0)
		return husk_fail_errno(err, "cannot write the output");
	return 0;
}

static int on_error(struct code_view *view, const struct husk_code_event *event, struct husk_error *err)
{
	json_decref(view->error);
	view->error = json_pack("{s:o, s:o, s:o}", "name", json_text0(event->name), "value", json_text0(event->value),
				"traceback", json_text0(event->text));
	if (!view->error)
		return husk_fail_memory(err);
	if (view->json)
		return 0;
	if (event->text && *event->text)
		fprintf(stderr, "%s%s", event->text, str_ends(event->text, "\n") ? "" : "\n");
	else
		fprintf(stderr, "%s: %s\n", event->name ? event->name : "error", event->value ? event->value : "");
	return 0;
}

void code_view_event(void *data, const struct husk_code_event *event)
{
	struct code_view *view = data;
	int status;

	if (view->failure.code != HUSK_OK)
		return;
	if (event->kind == HUSK_CODE_RESULT)
		status = on_result(view, event, &view->failure);
	else if (event->kind == HUSK_CODE_ERROR)
		status = on_error(view, event, &view->failure);
	else
		status = on_output(view, event, &view->failure);
	if (status < 0 && view->failure.code == HUSK_OK)
		view->failure.code = HUSK_INTERNAL;
}

int code_view_failed(const struct code_view *view, struct husk_error *err)
{
	if (view->failure.code == HUSK_OK)
		return 0;
	*err = view->failure;
	return -1;
}

int code_view_json(struct code_view *view, json_t *head, struct husk_error *err)
{
	cleanup_json json_t *object = head;

	if (!object || json_set_bytes(object, "stdout", view->output.data, view->output.size) < 0 ||
	    json_set_bytes(object, "stderr", view->error_output.data, view->error_output.size) < 0)
		return husk_fail_memory(err);
	cleanup_json json_t *rest = json_pack("{s:O?, s:O, s:O?, s:O}", "result", view->main_text, "results",
					      view->results, "error", view->error, "files", view->files);
	if (!rest || json_object_update(object, rest) < 0)
		return husk_fail_memory(err);
	return output_json(json_incref(object), err);
}
