/*
 * Checkpoints of a sandbox over the API: take one, list them, remove one, rewind to one.
 */
#include "remote/remote_http.h"
#include "remote/remote_read.h"
#include "remote/remote_write.h"

static void *read_one(const json_t *item, struct husk_error *err)
{
	return read_checkpoint(item, err);
}

static void drop_one(void *checkpoint)
{
	husk_checkpoint_free(checkpoint);
}

int remote_checkpoint(struct remote *remote, const char *sandbox, const char *label, struct husk_checkpoint **out,
		      struct husk_error *err)
{
	cleanup_json json_t *document = NULL;
	struct writing w;

	write_begin(&w);
	write_text(&w, "label", label);
	struct exchange x = { .method = "POST", .body = write_done(&w, err) };
	if (!x.body)
		return -1;
	x.target = target_make("/v1/sandboxes/%s/checkpoints", sandbox);
	if (exchange_run(remote, &x, &document, err) < 0)
		return -1;
	if (!out)
		return 0;
	*out = read_checkpoint(document, err);
	return *out ? 0 : -1;
}

int remote_history(struct remote *remote, const char *sandbox, bool files, struct husk_checkpoint ***out,
		   struct husk_error *err)
{
	cleanup_json json_t *document = NULL;
	char *target = target_make("/v1/sandboxes/%s/checkpoints", sandbox);

	if (files)
		target = target_add(target, "files", "true");
	if (exchange_get(remote, target, &document, err) < 0)
		return -1;
	return read_list(document, "checkpoints", read_one, drop_one, (void ***)out, err);
}

int remote_checkpoint_remove(struct remote *remote, const char *sandbox, const char *point, struct husk_error *err)
{
	struct exchange x = { .method = "DELETE",
			      .target = target_make("/v1/sandboxes/%s/checkpoints/%s", sandbox, point) };

	return exchange_run(remote, &x, NULL, err);
}

/* A server of an older version sends neither. */
static int read_requests(const json_t *document, struct husk_rewound *out, struct husk_error *err)
{
	const json_t *list = json_object_get(document, "requests");

	out->requests = calloc(json_array_size(list) + 1, sizeof(*out->requests));
	if (!out->requests)
		return husk_fail_memory(err);
	for (size_t i = 0; i < json_array_size(list); i++) {
		struct reading r = { .from = json_array_get(list, i) };

		out->requests[out->request_count++] = (struct husk_request){ .method = read_needed(&r, "method"),
									     .url = read_needed(&r, "url"),
									     .count = read_count(&r, "count") };
		if (read_done(&r, "a request", err) < 0)
			return -1;
	}
	return 0;
}

static int read_visits(const json_t *document, struct husk_rewound *out, struct husk_error *err)
{
	const json_t *list = json_object_get(document, "visits");

	out->visits = calloc(json_array_size(list) + 1, sizeof(*out->visits));
	if (!out->visits)
		return husk_fail_memory(err);
	for (size_t i = 0; i < json_array_size(list); i++) {
		struct reading r = { .from = json_array_get(list, i) };

		out->visits[out->visit_count++] = (struct husk_visits){ .port = (uint16_t)read_count(&r, "port"),
									.count = read_count(&r, "connections") };
		if (read_done(&r, "a visit", err) < 0)
			return -1;
	}
	return 0;
}

static struct husk_rewound *read_rewound(const json_t *document, struct husk_error *err)
{
	struct reading r = { .from = document };
	struct husk_rewound *out = calloc(1, sizeof(*out));

	if (!out) {
		husk_fail_memory(err);
		return NULL;
	}
	out->dropped = read_count(&r, "dropped");
	out->volumes = read_texts(&r, "volumes");
	if (out->volumes && !out->volumes[0]) { /* husk.h: an empty list is NULL */
		strv_free(out->volumes);
		out->volumes = NULL;
	}
	out->number = (int64_t)read_count(&r, "checkpoint");
	out->label = read_text(&r, "label");
	out->requests_more = read_count(&r, "requests_more");
	if (read_done(&r, "a rewind", err) == 0 && read_traffic(document, &out->left, &out->left_count, err) == 0 &&
	    (!json_object_get(document, "effects") || read_effects(document, &out->effects, err) == 0) &&
	    read_requests(document, out, err) == 0 && read_visits(document, out, err) == 0)
		return out;
	husk_rewound_free(out);
	return NULL;
}

static struct husk_promoted *read_promoted(const json_t *document, struct husk_error *err)
{
	struct reading r = { .from = document };
	struct husk_promoted *out = calloc(1, sizeof(*out));

	if (!out) {
		husk_fail_memory(err);
		return NULL;
	}
	out->sandbox = read_needed(&r, "sandbox");
	out->checkpoint = (int64_t)read_count(&r, "checkpoint");
	out->ended = read_texts(&r, "ended");
	if (read_done(&r, "a promotion", err) == 0 &&
	    (!json_object_get(document, "effects") || read_effects(document, &out->effects, err) == 0))
		return out;
	husk_promoted_free(out);
	return NULL;
}

int remote_promote(struct remote *remote, const char *sandbox, bool keep, struct husk_promoted **out,
		   struct husk_error *err)
{
	cleanup_json json_t *document = NULL;
	struct writing w;

	write_begin(&w);
	write_bool(&w, "keep", keep);
	struct exchange x = { .method = "POST", .body = write_done(&w, err) };
	if (!x.body)
		return -1;
	x.target = target_make("/v1/sandboxes/%s/promote", sandbox);
	if (exchange_run(remote, &x, &document, err) < 0)
		return -1;
	if (!out)
		return 0;
	*out = read_promoted(document, err);
	return *out ? 0 : -1;
}

int remote_rewind(struct remote *remote, const char *sandbox, const char *point, bool drop_later,
		  struct husk_rewound **out, struct husk_error *err)
{
	cleanup_json json_t *document = NULL;
	struct writing w;

	write_begin(&w);
	write_text(&w, "checkpoint", point);
	write_bool(&w, "drop_later", drop_later);
	struct exchange x = { .method = "POST", .body = write_done(&w, err) };
	if (!x.body)
		return -1;
	x.target = target_make("/v1/sandboxes/%s/rewind", sandbox);
	if (exchange_run(remote, &x, &document, err) < 0)
		return -1;
	if (!out)
		return 0;
	*out = read_rewound(document, err);
	return *out ? 0 : -1;
}
