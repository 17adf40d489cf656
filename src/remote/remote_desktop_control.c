/*
 * Control of the desktop of a sandbox, and links to its live view, over the API.
 */
#include "remote/remote_http.h"
#include "remote/remote_read.h"
#include "remote/remote_write.h"

static enum husk_human read_human(struct reading *r, const json_t *request)
{
	static const char *const names[] = { "none", "waiting", "taken", "done" };
	const char *state = json_string_value(json_object_get(request, "state"));

	if (!json_is_object(request))
		return HUSK_HUMAN_NONE;
	for (size_t i = 0; i < ARRAY_SIZE(names); i++)
		if (str_equal(state, names[i]))
			return (enum husk_human)i;
	r->wrong = "request.state";
	return HUSK_HUMAN_NONE;
}

static int read_control(const json_t *document, struct husk_control **out, struct husk_error *err)
{
	const json_t *request = json_object_get(document, "request");
	struct reading r = { .from = document }, asked = { .from = request };
	struct husk_control *control = calloc(1, sizeof(*control));

	if (!control)
		return husk_fail_memory(err);
	control->name = read_text(&r, "name");
	control->holder = read_text(&r, "holder");
	control->since_ms = read_time(&r, "since");
	control->expires_ms = read_time(&r, "expires_at");
	control->request = read_human(&r, request);
	if (json_is_object(request)) {
		control->reason = read_text(&asked, "reason");
		control->requested_ms = read_time(&asked, "at");
	}
	if (read_done(&r, "the control of a desktop", err) == 0 &&
	    read_done(&asked, "a request for a person", err) == 0) {
		*out = control;
		return 0;
	}
	husk_control_free(control);
	return -1;
}

int remote_control_get(struct remote *remote, const char *sandbox, struct husk_control **out, struct husk_error *err)
{
	cleanup_json json_t *document = NULL;

	if (exchange_get(remote, target_make("/v1/sandboxes/%s/desktop/control", sandbox), &document, err) < 0)
		return -1;
	return read_control(document, out, err);
}

int remote_control_take(struct remote *remote, const char *sandbox, const struct husk_control_options *options,
			struct husk_control **out, struct husk_error *err)
{
	cleanup_json json_t *document = NULL;
	struct writing w;

	write_begin(&w);
	write_text(&w, "name", options->name);
	write_text(&w, "holder", options->holder);
	write_number(&w, "ttl_seconds", options->ttl_seconds);
	struct exchange x = { .method = "PUT", .body = write_done(&w, err) };
	if (!x.body)
		return -1;
	x.target = target_make("/v1/sandboxes/%s/desktop/control", sandbox);
	if (exchange_run(remote, &x, &document, err) < 0)
		return -1;
	return out ? read_control(document, out, err) : 0;
}

int remote_control_release(struct remote *remote, const char *sandbox, const char *holder, struct husk_error *err)
{
	struct exchange x = { .method = "DELETE", .target = target_make("/v1/sandboxes/%s/desktop/control", sandbox) };

	x.target = target_add(x.target, "holder", holder);
	return exchange_run(remote, &x, NULL, err);
}

int remote_control_request(struct remote *remote, const char *sandbox, const char *reason, struct husk_control **out,
			   struct husk_error *err)
{
	cleanup_json json_t *document = NULL;
	struct writing w;

	write_begin(&w);
	write_text(&w, "reason", reason);
	struct exchange x = { .method = "POST", .body = write_done(&w, err) };
	if (!x.body)
		return -1;
	x.target = target_make("/v1/sandboxes/%s/desktop/control/request", sandbox);
	if (exchange_run(remote, &x, &document, err) < 0)
		return -1;
	return out ? read_control(document, out, err) : 0;
}

int remote_desktop_link(struct remote *remote, const char *sandbox, bool view_only, int64_t seconds, char **url,
			struct husk_error *err)
{
	cleanup_json json_t *document = NULL;
	struct writing w;

	write_begin(&w);
	write_json(&w, "view_only", json_boolean(view_only));
	write_number(&w, "expires_seconds", seconds);
	struct exchange x = { .method = "POST", .body = write_done(&w, err) };
	if (!x.body)
		return -1;
	x.target = target_make("/v1/sandboxes/%s/desktop/url", sandbox);
	if (exchange_run(remote, &x, &document, err) < 0)
		return -1;
	struct reading r = { .from = document };
	*url = read_needed(&r, "url");
	if (read_done(&r, "a link", err) == 0)
		return 0;
	free(steal_pointer(*url));
	return -1;
}
