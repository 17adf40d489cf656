/*
 * Held effects over the API: list, show, send, drop.
 */
#include "remote/remote_http.h"
#include "remote/remote_read.h"
#include "remote/remote_write.h"

static void drop_one(void *effect)
{
	husk_effect_free(effect);
}

static void *read_one(const json_t *item, struct husk_error *err)
{
	struct reading r = { .from = item };
	struct husk_effect *out = calloc(1, sizeof(*out));

	if (!out) {
		husk_fail_memory(err);
		return NULL;
	}
	out->number = (int64_t)read_count(&r, "number");
	out->method = read_needed(&r, "method");
	out->url = read_needed(&r, "url");
	out->state = read_needed(&r, "state");
	out->detail = read_text(&r, "detail");
	out->status = (int)json_integer_value(json_object_get(item, "status"));
	out->bytes = read_count(&r, "bytes");
	out->created_ms = read_time(&r, "at");
	if (read_done(&r, "an effect", err) == 0)
		return out;
	drop_one(out);
	return NULL;
}

int read_effects(const json_t *document, struct husk_effect ***out, struct husk_error *err)
{
	return read_list(document, "effects", read_one, drop_one, (void ***)out, err);
}

int remote_effects(struct remote *remote, const char *sandbox, struct husk_effect ***out, struct husk_error *err)
{
	cleanup_json json_t *document = NULL;

	if (exchange_get(remote, target_make("/v1/sandboxes/%s/effects", sandbox), &document, err) < 0)
		return -1;
	return read_effects(document, out, err);
}

int remote_effect_request(struct remote *remote, const char *sandbox, int64_t number, char **out, size_t *size,
			  struct husk_error *err)
{
	cleanup_json json_t *document = NULL;
	char word[24];

	snprintf(word, sizeof(word), "%lld", (long long)number);
	if (exchange_get(remote, target_make("/v1/sandboxes/%s/effects/%s", sandbox, word), &document, err) < 0)
		return -1;
	struct reading r = { .from = document };
	*out = read_needed(&r, "request");
	*size = *out ? strlen(*out) : 0;
	return read_done(&r, "an effect", err);
}

int remote_effects_act(struct remote *remote, const char *sandbox, const char *action, const int64_t *numbers,
		       size_t count, struct husk_effect ***out, struct husk_error *err)
{
	cleanup_json json_t *document = NULL;
	struct writing w;

	write_begin(&w);
	if (numbers) {
		json_t *list = json_array();

		for (size_t i = 0; i < count; i++)
			json_array_append_new(list, json_integer(numbers[i]));
		write_json(&w, "effects", list);
	}
	struct exchange x = { .method = "POST", .body = write_done(&w, err) };
	if (!x.body)
		return -1;
	x.target = target_make("/v1/sandboxes/%s/effects/%s", sandbox, action);
	if (exchange_run(remote, &x, &document, err) < 0)
		return -1;
	return out ? read_effects(document, out, err) : 0;
}
