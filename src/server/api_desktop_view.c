/*
 * What people see of a desktop: the page with the live view, the WebSocket below it, signed links to both, and who is in
 * control. A link allows its user to view, or also to take control; a token allows both. The page consists of our own
 * files (assets.h), and its policy lets it load nothing else.
 */
#include "server/assets.h"
#include "server/desktop_link.h"
#include "server/vnc_relay.h"

#define VNC_SOCKET "/run/husk/desktop/vnc.sock"
#define WAIT_MAX_SECONDS 600
#define WAIT_STEP_MS 500

/* ---- the page ---- */

static const struct asset *find_asset(const char *name, size_t size)
{
	for (const struct asset *asset = assets; asset->name; asset++)
		if (strlen(asset->name) == size && memcmp(asset->name, name, size) == 0)
			return asset;
	return NULL;
}

static int respond_asset(struct request *request, const struct asset *asset, struct husk_error *err)
{
	static const char *const headers[][2] = {
		{ "Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' "
					     "data: blob:; connect-src 'self'; "
					     "base-uri 'none'; form-action 'none'; frame-ancestors 'self'" },
		{ "X-Content-Type-Options", "nosniff" },
		{ "Referrer-Policy", "no-referrer" }, /* the address of the page is a key */
		{ "Cross-Origin-Opener-Policy", "same-origin" },
		{ "Cache-Control", "no-cache" },
	};

	for (size_t i = 0; i < ARRAY_SIZE(headers); i++)
		if (respond_header(request, headers[i][0], headers[i][1], err) < 0)
			return -1;
	return respond_text(request, 200, asset->type, asset->start, (size_t)(asset->end - asset->start), err);
}

static int handle_asset(struct request *request, struct husk_error *err)
{
	const char *name = request_path(request, "name");
	const struct asset *asset = find_asset(name, strcspn(name, "?"));

	if (!asset)
		return husk_fail(err, HUSK_NOT_FOUND, "there is no such file");
	return respond_asset(request, asset, err);
}

static int handle_page(struct request *request, struct husk_error *err)
{
	const struct asset *page = find_asset("desktop.html", strlen("desktop.html"));

	if (!page || !find_asset("novnc/core/rfb.js", strlen("novnc/core/rfb.js")))
		return husk_fail(err, HUSK_UNAVAILABLE,
				 "this huskd was built without noVNC; build it where apt can fetch the package novnc");
	return respond_asset(request, page, err);
}

/* ---- links ---- */

static int handle_link(struct request *request, struct husk_error *err)
{
	cleanup_free char *id = NULL, *query = NULL, *server = NULL;
	struct fields fields;

	if (fields_begin(&fields, request_json(request, err)) < 0)
		return -1;
	bool view_only = fields_bool(&fields, "view_only", true);
	int64_t seconds = fields_int(&fields, "expires_seconds", LINK_SECONDS, 1, LINK_SECONDS_MAX);
	const char *recording = fields_string(&fields, "recording");
	if (fields_done(&fields, err) < 0 || link_sandbox(request, &id, err) < 0)
		return -1;
	if (recording && recording[strspn(recording, "abcdefghijklmnopqrstuvwxyz0123456789-")])
		return husk_fail_field(err, "recording", "'%.64s' is not the id of a recording", recording);
	int64_t expires = time_wall_ms() / 1000 + seconds;
	if (link_query(request, id, view_only ? LINK_VIEW : LINK_CONTROL, expires, &query, err) < 0 ||
	    !(server = link_server(request, false, err)))
		return -1;
	cleanup_free char *url = str_format("%s/v1/sandboxes/%s/desktop/view?%s%s%s", server, id, query,
					    recording ? "&recording=" : "", recording ? recording : "");
	if (!url)
		return husk_fail_memory(err);
	return respond_json(request, 200,
			    json_pack("{s:s, s:b, s:o}", "url", url, "view_only", view_only, "expires_at",
				      json_time(expires * 1000)),
			    err);
}

/* ---- the live view ---- */

static void viewer_cleanup(struct viewer **viewer)
{
	viewer_free(*viewer);
}

/* libhusk returns NOT_FOUND both for an unknown sandbox and for a sandbox without a desktop. */
static int dial(struct request *request, const char *id, struct husk_error *err)
{
	struct husk_error why = { 0 };
	int fd = husk_dial_unix(request_husk(request), id, VNC_SOCKET, &why);

	if (fd < 0 && why.code == HUSK_NOT_FOUND)
		return husk_fail(err, HUSK_CONFLICT,
				 "sandbox %s has no desktop; create one from the template 'desktop'", id);
	if (fd < 0 && why.code == HUSK_INVALID)
		return husk_fail(err, HUSK_CONFLICT, "sandbox %s is from before desktops; create a new one", id);
	return fd < 0 ? husk_fail(err, why.code, "%s", why.message) : fd;
}

static int handle_vnc(struct request *request, struct husk_error *err)
{
	static const char *const known[] = { "view_only", "holder", LINK_QUERIES, NULL };
	cleanup(viewer_cleanup) struct viewer *viewer = calloc(1, sizeof(*viewer));
	cleanup_free char *id = NULL;
	const char *holder = request_query(request, "holder");
	bool view_only;

	if (!viewer)
		return husk_fail_memory(err);
	viewer->guest = viewer->epoll = -1;
	if (request_query_known(request, known, err) < 0 ||
	    request_query_bool(request, "view_only", link_kind(request) == LINK_VIEW || !holder, &view_only, err) < 0)
		return -1;
	if (!view_only && link_kind(request) == LINK_VIEW)
		return husk_fail(err, HUSK_DENIED, "this link is for viewing only");
	if (!view_only && (!holder || !*holder || strlen(holder) > HOLDER_MAX))
		return husk_fail_field(err, "holder",
				       "input needs the holder that PUT …/desktop/control was given, of 1 to %d bytes",
				       HOLDER_MAX);
	if (websocket_accept(request, err) < 0 || link_sandbox(request, &id, err) < 0 ||
	    (viewer->guest = dial(request, id, err)) < 0)
		return -1;
	snprintf(viewer->sandbox, sizeof(viewer->sandbox), "%s", id);
	snprintf(viewer->holder, sizeof(viewer->holder), "%s", view_only ? "" : holder);
	if (respond_upgrade(request, viewer_run, viewer, err) < 0)
		return -1;
	steal_pointer(viewer);
	return 0;
}

/* ---- control ---- */

static json_t *request_document(const struct husk_control *control)
{
	static const char *const names[] = { [HUSK_HUMAN_NONE] = "none",
					     [HUSK_HUMAN_WAITING] = "waiting",
					     [HUSK_HUMAN_TAKEN] = "taken",
					     [HUSK_HUMAN_DONE] = "done" };

	if (control->request == HUSK_HUMAN_NONE)
		return json_null();
	return json_pack("{s:s, s:o, s:o}", "state", names[control->request], "reason", json_text0(control->reason),
			 "at", json_time(control->requested_ms));
}

/* `own`: the caller has taken control by this request and may know its own key. */
static int respond_control(struct request *request, const struct husk_control *control, bool own,
			   struct husk_error *err)
{
	return respond_json(request, 200,
			    json_pack("{s:b, s:o, s:o, s:o, s:o, s:o}", "held", control->name != NULL, "name",
				      json_text0(control->name), "holder", json_text0(own ? control->holder : NULL),
				      "since", json_time(control->since_ms), "expires_at",
				      json_time(control->expires_ms), "request", request_document(control)),
			    err);
}

static int handle_control(struct request *request, struct husk_error *err)
{
	static const char *const known[] = { LINK_QUERIES, NULL };
	cleanup_control struct husk_control *control = NULL;

	if (request_query_known(request, known, err) < 0 ||
	    husk_control_get(request_husk(request), request_path(request, "id"), &control, err) < 0)
		return -1;
	return respond_control(request, control, false, err);
}

static int refuse_view(struct request *request, struct husk_error *err)
{
	return link_kind(request) == LINK_VIEW ? husk_fail(err, HUSK_DENIED, "this link is for viewing only") : 0;
}

static int handle_take(struct request *request, struct husk_error *err)
{
	cleanup_control struct husk_control *control = NULL;
	struct fields fields;

	if (refuse_view(request, err) < 0 || fields_begin(&fields, request_json(request, err)) < 0)
		return -1;
	struct husk_control_options options = {
		.name = fields_string(&fields, "name"),
		.holder = fields_string(&fields, "holder"),
		.ttl_seconds = fields_int(&fields, "ttl_seconds", 0, 1, 3600),
	};
	if (fields_done(&fields, err) < 0 ||
	    husk_control_take(request_husk(request), request_path(request, "id"), &options, &control, err) < 0)
		return -1;
	return respond_control(request, control, true, err);
}

/* A link gives back only its own holder's control; a token also anybody's. */
static int handle_give_back(struct request *request, struct husk_error *err)
{
	static const char *const known[] = { "holder", LINK_QUERIES, NULL };
	const char *holder = request_query(request, "holder");

	if (request_query_known(request, known, err) < 0 || refuse_view(request, err) < 0)
		return -1;
	if (!holder && link_kind(request) != LINK_NONE)
		return husk_fail_field(err, "holder", "a link gives back the control of its holder only; name it");
	if (husk_control_release(request_husk(request), request_path(request, "id"), holder, err) < 0)
		return -1;
	return respond_empty(request, 204, err);
}

/* ---- an agent asks for a person ---- */

/* Waits until a person has taken control and given it back, or the time is over. */
static int await_person(struct request *request, int64_t seconds, struct husk_control **control, struct husk_error *err)
{
	int64_t until = time_monotonic_ms() + seconds * 1000;

	while ((*control)->request != HUSK_HUMAN_DONE && time_monotonic_ms() < until) {
		if (request_wait(request, -1, WAIT_STEP_MS) < 0)
			return husk_fail(err, HUSK_GONE, "the client has gone");
		struct husk_control *now = NULL;
		if (husk_control_get(request_husk(request), request_path(request, "id"), &now, err) < 0)
			return -1;
		husk_control_free(*control);
		*control = now;
	}
	return 0;
}

static int handle_request(struct request *request, struct husk_error *err)
{
	cleanup_control struct husk_control *control = NULL;
	struct fields fields;

	if (fields_begin(&fields, request_json(request, err)) < 0)
		return -1;
	const char *reason = fields_string(&fields, "reason");
	int64_t wait = fields_int(&fields, "wait_seconds", 0, 0, WAIT_MAX_SECONDS);
	if (fields_done(&fields, err) < 0 ||
	    husk_control_request(request_husk(request), request_path(request, "id"), reason, &control, err) < 0 ||
	    await_person(request, wait, &control, err) < 0)
		return -1;
	return respond_control(request, control, false, err);
}

const struct route desktop_view_routes[] = {
	{ "GET", "/v1/assets/{name*}", handle_asset, ROUTE_PUBLIC },
	{ "GET", "/v1/sandboxes/{id}/desktop/view", handle_page, ROUTE_VIEW },
	{ "GET", "/v1/sandboxes/{id}/desktop/vnc", handle_vnc, ROUTE_SOCKET | ROUTE_VIEW },
	{ "POST", "/v1/sandboxes/{id}/desktop/url", handle_link, 0 },
	{ "GET", "/v1/sandboxes/{id}/desktop/control", handle_control, ROUTE_VIEW },
	{ "PUT", "/v1/sandboxes/{id}/desktop/control", handle_take, ROUTE_VIEW },
	{ "DELETE", "/v1/sandboxes/{id}/desktop/control", handle_give_back, ROUTE_VIEW },
	{ "POST", "/v1/sandboxes/{id}/desktop/control/request", handle_request, 0 },
	{ 0 },
};
