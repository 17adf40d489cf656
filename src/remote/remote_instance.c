/*
 * The instance behind the API: events, logs, and the owner's calls (checks, clean-up, tokens).
 */
#include "remote/remote_http.h"
#include "remote/remote_read.h"
#include "remote/remote_write.h"

#define EVENTS_PAGE 1000
#define WAIT_MAX_MS 30000

/* ---- events ---- */

static int read_event(const json_t *item, struct husk_event *out, struct husk_error *err)
{
	struct reading r = { .from = item };
	const json_t *detail = json_object_get(item, "detail");

	*out = (struct husk_event){
		.sequence = read_number(&r, "sequence"),
		.at_ms = read_time(&r, "at"),
		.sandbox = read_text(&r, "sandbox"),
		.kind = read_needed(&r, "kind"),
		.detail = json_is_object(detail) ? json_dumps(detail, JSON_COMPACT) : NULL,
	};
	r.no_memory |= json_is_object(detail) && !out->detail;
	return read_done(&r, "an event", err);
}

/* Appends one page to the list; *more: the page was full. */
static int add_events(const json_t *document, struct husk_event **list, size_t *count, struct husk_error *err)
{
	const json_t *array = read_array(document, "events", err);
	size_t size = json_array_size(array);
	struct husk_event *grown = array ? realloc(*list, (*count + size + 1) * sizeof(*grown)) : NULL;

	if (!grown)
		return array ? husk_fail_memory(err) : -1;
	*list = grown;
	for (size_t i = 0; i < size; i++)
		if (read_event(json_array_get(array, i), &grown[(*count)++], err) < 0)
			return -1;
	return 0;
}

int remote_events(struct remote *remote, const char *sandbox, int64_t after, size_t limit, int wait_ms,
		  struct husk_event **out, size_t *count, struct husk_error *err)
{
	struct husk_event *list = NULL;
	size_t size = 0, page, before;
	int result;

	do {
		cleanup_json json_t *document = NULL;
		char *target = sandbox ? target_make("/v1/sandboxes/%s/events", sandbox) : target_make("/v1/events");
		page = MIN(limit ? limit - size : EVENTS_PAGE, EVENTS_PAGE);
		before = size;
		target = target_add_int(target_add_int(target, "after", after), "limit", (int64_t)page);
		if (wait_ms > 0 && size == 0)
			target = target_add_int(target, "wait_ms", MIN(wait_ms, WAIT_MAX_MS));
		result = exchange_get(remote, target, &document, err);
		if (result == 0)
			result = add_events(document, &list, &size, err);
		if (result == 0 && size > before)
			after = list[size - 1].sequence;
	} while (result == 0 && size - before == page && size > before && (!limit || size < limit));
	if (result < 0) {
		husk_event_list_free(list, size);
		return -1;
	}
	*out = list;
	*count = size;
	return 0;
}

/* ---- logs ---- */

struct text {
	struct buf bytes;
};

static int gather(void *data, const void *bytes, size_t size)
{
	struct text *text = data;

	return text->bytes.size + size > ANSWER_MAX || buf_append(&text->bytes, bytes, size) < 0;
}

/* "inode:offset", as the server sent it. */
static int take_position(const char *text, struct husk_log_position *position)
{
	unsigned long long file, offset;
	char end;

	if (!text || sscanf(text, "%llu:%llu%c", &file, &offset, &end) != 2)
		return -1;
	*position = (struct husk_log_position){ file, offset };
	return 0;
}

int remote_logs(struct remote *remote, const char *sandbox, enum husk_log_source source,
		struct husk_log_position *position, char **out, struct husk_error *err)
{
	struct text text = { 0 };
	char at[48];
	char *target = target_add(target_make("/v1/sandboxes/%s/logs", sandbox), "source",
				  source == HUSK_LOG_CONSOLE ? "console" : "log");

	if (position) {
		snprintf(at, sizeof(at), "%llu:%llu", (unsigned long long)position->file,
			 (unsigned long long)position->offset);
		target = target_add(target, "position", at);
	}
	struct exchange x = { .method = "GET",
			      .target = target,
			      .sink = gather,
			      .sink_data = &text,
			      .wanted_header = "X-Husk-Position" };
	int result = exchange_run(remote, &x, NULL, err);
	if (result == 0 && position && take_position(x.header, position) < 0)
		result = husk_fail(err, HUSK_PROTOCOL, "the server did not send the position in its log");
	if (result == 0 && !(*out = buf_steal(&text.bytes)))
		result = husk_fail_memory(err);
	free(x.header);
	buf_free(&text.bytes);
	return result;
}

/* ---- checks ---- */

int remote_checks(struct remote *remote, const char *which, struct husk_check **out, size_t *count,
		  struct husk_error *err)
{
	cleanup_json json_t *document = NULL;

	if (exchange_get(remote, target_make("/v1/%s", which), &document, err) < 0)
		return -1;
	const json_t *array = read_array(document, "checks", err);
	size_t size = json_array_size(array);
	struct husk_check *list = array ? calloc(size + 1, sizeof(*list)) : NULL;
	if (!list)
		return array ? husk_fail_memory(err) : -1;
	for (size_t i = 0; i < size; i++) {
		struct reading r = { .from = json_array_get(array, i) };
		const char *result = json_string_value(json_object_get(r.from, "result"));
		list[i] = (struct husk_check){ .name = read_needed(&r, "name"), .text = read_needed(&r, "text") };
		list[i].result = str_equal(result, "ok")     ? HUSK_CHECK_OK
				 : str_equal(result, "warn") ? HUSK_CHECK_WARN
							     : HUSK_CHECK_FAIL;
		if (read_done(&r, "a check", err) < 0) {
			husk_check_list_free(list, i + 1);
			return -1;
		}
	}
	*out = list;
	*count = size;
	return 0;
}

int remote_gc(struct remote *remote, bool all, struct husk_gc_result *out, struct husk_error *err)
{
	cleanup_json json_t *document = NULL;
	struct exchange x = { .method = "POST",
			      .target = target_make("/v1/gc"),
			      .body = json_pack("{s:b}", "all", all) };

	if (exchange_run(remote, &x, &document, err) < 0)
		return -1;
	struct reading r = { .from = document };
	*out = (struct husk_gc_result){
		.sandboxes = read_count(&r, "sandboxes"),
		.snapshots = read_count(&r, "snapshots"),
		.templates = read_count(&r, "templates"),
		.pool = read_count(&r, "pool"),
		.bytes = read_count(&r, "bytes"),
	};
	return read_done(&r, "what was cleared", err);
}

int remote_pool_drain(struct remote *remote, size_t *count, struct husk_error *err)
{
	cleanup_json json_t *document = NULL;
	struct exchange x = { .method = "POST", .target = target_make("/v1/pool/drain") };

	if (exchange_run(remote, &x, &document, err) < 0)
		return -1;
	struct reading r = { .from = document };
	*count = (size_t)read_count(&r, "drained");
	return read_done(&r, "what was drained", err);
}

/* ---- tokens ---- */

static void *read_one_token(const json_t *item, struct husk_error *err)
{
	return read_token(item, err);
}

static void drop_token(void *token)
{
	husk_token_free(token);
}

int remote_token_create(struct remote *remote, const struct husk_token_options *options, char **secret,
			struct husk_token **out, struct husk_error *err)
{
	cleanup_json json_t *document = NULL;
	struct writing w;

	write_begin(&w);
	write_text(&w, "name", options->name);
	write_text(&w, "tenant", options->tenant && *options->tenant ? options->tenant : NULL);
	write_bool(&w, "admin", options->admin);
	write_bool(&w, "e2b", options->e2b);
	write_number(&w, "ttl_seconds", options->ttl_seconds);
	write_number(&w, "max_sandboxes", options->max_sandboxes);
	write_size(&w, "max_memory", options->max_memory_bytes);
	write_size(&w, "max_snapshots", options->max_snapshot_bytes);
	struct exchange x = { .method = "POST", .body = write_done(&w, err) };
	if (!x.body)
		return -1;
	x.target = target_make("/v1/tokens");
	if (exchange_run(remote, &x, &document, err) < 0)
		return -1;
	struct reading r = { .from = document };
	char *given = read_needed(&r, "token");
	struct husk_token *token = read_done(&r, "a token", err) == 0 ? read_token(document, err) : NULL;
	if (!token) {
		free(given);
		return -1;
	}
	*secret = given;
	if (out)
		*out = token;
	else
		husk_token_free(token);
	return 0;
}

int remote_token_list(struct remote *remote, struct husk_token ***out, struct husk_error *err)
{
	cleanup_json json_t *document = NULL;

	if (exchange_get(remote, target_make("/v1/tokens"), &document, err) < 0)
		return -1;
	return read_list(document, "tokens", read_one_token, drop_token, (void ***)out, err);
}

int remote_token_revoke(struct remote *remote, const char *id_or_name, struct husk_error *err)
{
	if (!id_or_name || !*id_or_name)
		return husk_fail_field(err, "name", "no token given: pass an id or a name (husk token ls)");
	struct exchange x = { .method = "DELETE", .target = target_make("/v1/tokens/%s", id_or_name) };
	return exchange_run(remote, &x, NULL, err);
}
