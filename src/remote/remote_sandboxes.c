/*
 * Sandboxes over the API: create, show, list, change, end. Each function is one request, except the list, which is read
 * in pages.
 */
#include "remote/remote_http.h"
#include "remote/remote_read.h"
#include "remote/remote_write.h"

#define PAGE 1000

/* An id or name that is not a valid segment of a path cannot exist. */
static int check_name(const char *sandbox, struct husk_error *err)
{
	if (sandbox && *sandbox && !str_equal(sandbox, ".") && !str_equal(sandbox, ".."))
		return 0;
	return husk_fail(err, HUSK_NOT_FOUND, "sandbox '%s' not found (husk ls)", sandbox ? sandbox : "");
}

static int take_sandbox(json_t *document, struct husk_sandbox **out, struct husk_error *err)
{
	*out = read_sandbox(document, err);
	json_decref(document);
	return *out ? 0 : -1;
}

static void *read_one(const json_t *item, struct husk_error *err)
{
	return read_sandbox(item, err);
}

static void drop_one(void *sandbox)
{
	husk_sandbox_free(sandbox);
}

/* ---- create and fork ---- */

int remote_create(struct remote *remote, const struct husk_create_options *options, struct husk_sandbox **out,
		  struct husk_error *err)
{
	struct exchange x = { .method = "POST",
			      .target = target_make("/v1/sandboxes"),
			      .body = write_create(options, false, err),
			      .idempotency_key = options->idempotency_key,
			      .no_build = true };
	json_t *document = NULL;

	if (!x.body) {
		free(x.target);
		return -1;
	}
	if (x.idempotency_key && strpbrk(x.idempotency_key, "\r\n")) {
		free(x.target);
		json_decref(x.body);
		return husk_fail_field(err, "idempotency_key", "an idempotency key has no line ends");
	}
	return exchange_run(remote, &x, &document, err) < 0 ? -1 : take_sandbox(document, out, err);
}

int remote_fork(struct remote *remote, const char *sandbox, size_t count, const struct husk_create_options *options,
		struct husk_sandbox ***out, struct husk_error *err)
{
	if (check_name(sandbox, err) < 0)
		return -1;
	struct exchange x = { .method = "POST", .target = target_make("/v1/sandboxes/%s/fork", sandbox) };
	cleanup_json json_t *document = NULL;

	x.body = write_create(options, true, err);
	if (!x.body || json_object_set_new(x.body, "count", json_integer((json_int_t)count)) < 0) {
		free(x.target);
		json_decref(x.body);
		return x.body ? husk_fail_memory(err) : -1;
	}
	if (exchange_run(remote, &x, &document, err) < 0)
		return -1;
	return read_list(document, "sandboxes", read_one, drop_one, (void ***)out, err);
}

/* ---- looking ---- */

int remote_inspect(struct remote *remote, const char *sandbox, struct husk_sandbox **out, struct husk_error *err)
{
	json_t *document = NULL;

	if (check_name(sandbox, err) < 0 ||
	    exchange_get(remote, target_make("/v1/sandboxes/%s", sandbox), &document, err) < 0)
		return -1;
	return take_sandbox(document, out, err);
}

static char *list_target(const struct husk_filter *filter, const char *after, size_t limit)
{
	char *target = target_add_int(target_make("/v1/sandboxes"), "limit", (int64_t)limit);

	target = target_add(target, "cursor", after);
	if (!filter)
		return target;
	target = target_add(target, "state", filter->state ? husk_state_name(filter->state) : NULL);
	target = target_add(target, "template", filter->template_name);
	target = target_add(target, "ended", filter->with_ended ? "true" : NULL);
	target = target_add(target, "builds", filter->with_builds ? "true" : NULL);
	for (size_t i = 0; i < filter->metadata_count; i++) {
		cleanup_free char *name = str_format("metadata.%s", filter->metadata[i].key);
		if (!name) {
			free(target);
			return NULL;
		}
		target = target_add(target, name, filter->metadata[i].value);
	}
	return target;
}

/* Appends a page to the list and frees the page's own array. */
static int join(struct husk_sandbox ***list, size_t *count, struct husk_sandbox **page, struct husk_error *err)
{
	size_t more = 0;

	while (page[more])
		more++;
	struct husk_sandbox **grown = realloc(*list, (*count + more + 1) * sizeof(**list));
	if (!grown) {
		husk_sandbox_list_free(page);
		return husk_fail_memory(err);
	}
	memcpy(grown + *count, page, (more + 1) * sizeof(*page));
	*list = grown;
	*count += more;
	free(page);
	return 0;
}

int remote_list(struct remote *remote, const struct husk_filter *filter, struct husk_sandbox ***out,
		struct husk_error *err)
{
	size_t limit = filter && filter->limit ? filter->limit : SIZE_MAX, count = 0;
	struct husk_sandbox **list = NULL;
	cleanup_free char *after = filter && filter->after ? strdup(filter->after) : NULL;
	int result = 0;

	do {
		cleanup_json json_t *document = NULL;
		struct husk_sandbox **page = NULL;
		size_t before = count;
		result = exchange_get(remote, list_target(filter, after, MIN(limit - count, PAGE)), &document, err);
		if (result == 0)
			result = read_list(document, "sandboxes", read_one, drop_one, (void ***)&page, err);
		if (result == 0)
			result = join(&list, &count, page, err);
		const char *next = json_string_value(json_object_get(document, "next_cursor"));
		free(after);
		/* Stops if a page adds nothing: otherwise a faulty server could keep this loop running for ever. */
		after = next && result == 0 && count > before && count < limit ? strdup(next) : NULL;
	} while (result == 0 && after);
	if (result < 0)
		husk_sandbox_list_free(list);
	else
		*out = list;
	return result;
}

int remote_stats(struct remote *remote, const char *sandbox, struct husk_stats *out, struct husk_error *err)
{
	cleanup_json json_t *document = NULL;

	if (check_name(sandbox, err) < 0 ||
	    exchange_get(remote, target_make("/v1/sandboxes/%s/stats", sandbox), &document, err) < 0)
		return -1;
	struct reading r = { .from = document };
	*out = (struct husk_stats){
		.cpu_us = read_count(&r, "cpu_us"),
		.memory_bytes = read_count(&r, "memory_bytes"),
		.memory_limit = read_count(&r, "memory_limit"),
		.disk_bytes = read_count(&r, "disk_bytes"),
		.disk_limit = read_count(&r, "disk_limit"),
		.processes = read_count(&r, "processes"),
		.network_sent = read_count(&r, "network_sent"),
		.network_received = read_count(&r, "network_received"),
		.network_connections = read_count(&r, "network_connections"),
		.network_denied = read_count(&r, "network_denied"),
	};
	return read_done(&r, "what a sandbox uses", err);
}

/* ---- changing ---- */

int remote_kill(struct remote *remote, const char *sandbox, struct husk_error *err)
{
	if (check_name(sandbox, err) < 0)
		return -1;
	struct exchange x = { .method = "DELETE", .target = target_make("/v1/sandboxes/%s", sandbox) };
	return exchange_run(remote, &x, NULL, err);
}

int remote_act(struct remote *remote, const char *sandbox, const char *action, struct husk_error *err)
{
	if (check_name(sandbox, err) < 0)
		return -1;
	struct exchange x = { .method = "POST", .target = target_make("/v1/sandboxes/%s/%s", sandbox, action) };
	return exchange_run(remote, &x, NULL, err);
}

int remote_extend(struct remote *remote, const char *sandbox, int64_t ttl_seconds, bool persistent, int64_t *expires_ms,
		  struct husk_error *err)
{
	cleanup_json json_t *document = NULL;

	if (check_name(sandbox, err) < 0)
		return -1;
	struct exchange x = { .method = "POST", .target = target_make("/v1/sandboxes/%s/ttl", sandbox) };
	x.body = persistent ? json_pack("{s:b}", "persistent", 1)
			    : json_pack("{s:I}", "ttl_seconds", (json_int_t)ttl_seconds);
	if (exchange_run(remote, &x, &document, err) < 0)
		return -1;
	struct reading r = { .from = document };
	int64_t expires = read_time(&r, "expires_at");
	if (expires_ms)
		*expires_ms = expires;
	return read_done(&r, "when a sandbox ends", err);
}

int remote_set_idle(struct remote *remote, const char *sandbox, int64_t idle_seconds, struct husk_error *err)
{
	if (check_name(sandbox, err) < 0)
		return -1;
	struct exchange x = { .method = "PATCH", .target = target_make("/v1/sandboxes/%s", sandbox) };
	x.body = json_pack("{s:I}", "idle_seconds", (json_int_t)idle_seconds);
	return exchange_run(remote, &x, NULL, err);
}

int remote_resize(struct remote *remote, const char *sandbox, uint32_t cpu_milli, uint64_t memory_bytes,
		  struct husk_error *err)
{
	if (check_name(sandbox, err) < 0)
		return -1;
	struct exchange x = { .method = "PATCH", .target = target_make("/v1/sandboxes/%s", sandbox) };
	x.body = json_pack("{s:o*, s:o*}", "cpus", cpu_milli ? json_real(cpu_milli / 1000.0) : NULL, "memory",
			   memory_bytes ? json_integer((json_int_t)memory_bytes) : NULL);
	return exchange_run(remote, &x, NULL, err);
}

int remote_set_metadata(struct remote *remote, const char *sandbox, const struct husk_pair *pairs, size_t count,
			struct husk_error *err)
{
	struct writing w;

	if (check_name(sandbox, err) < 0)
		return -1;
	write_begin(&w);
	for (size_t i = 0; i < count; i++)
		write_text(&w, pairs[i].key, pairs[i].value ? pairs[i].value : "");
	struct exchange x = { .method = "PUT", .target = target_make("/v1/sandboxes/%s/metadata", sandbox) };
	x.body = write_done(&w, err);
	if (!x.body) {
		free(x.target);
		return -1;
	}
	return exchange_run(remote, &x, NULL, err);
}
