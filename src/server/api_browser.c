/*
 * The browser of a desktop for programs: Chromium's DevTools protocol through huskd, with a token or a signed link.
 * Chromium listens on a random port of the guest's loopback address, which is in a file of its profile. It answers only
 * requests for localhost without an Origin. So the proxy requests localhost, drops Origin, and replaces the addresses in
 * Chromium's descriptions of itself by ours. A page in the guest's browser has an Origin and cannot do the same.
 *
 * While a person is in control of the desktop, new connections are refused, and messages on open connections wait.
 */
#include <poll.h>
#include <sys/socket.h>

#include "base/http1.h"
#include "server/api_files.h"
#include "server/desktop_link.h"
#include "server/proxy.h"

#define START_MS 60000 /* for a browser to come up, on a busy host */
#define STEP_MS 250    /* between two looks whether it has */
#define LOOK_MS 10000  /* for the guest to say where it is, and for an answer of it */
#define ANSWER_MAX (4u << 20)
#define URL_MAX 2048u

/* Where the browser listens. */
struct browser {
	uint16_t port;
	char path[96]; /* "/devtools/browser/<uuid>" */
};

/* ---- where it is ---- */

static void result_cleanup(struct husk_result *result)
{
	husk_result_free(result);
}

/* The two lines of DevToolsActivePort. They come from the guest, and go into requests to the guest: only their form
 * matters. */
static int parse_place(const char *text, struct browser *out)
{
	static const char prefix[] = "/devtools/browser/";
	size_t digits = strspn(text, "0123456789");
	const char *path = text + digits + 1;
	char number[8] = "";
	int64_t port;

	if (!digits || digits >= sizeof(number) || text[digits] != '\n' || !str_starts(path, prefix))
		return -1;
	size_t size = strcspn(path, "\r\n");
	memcpy(number, text, digits);
	if (str_to_int64(number, 1, 65535, &port) < 0 || size >= sizeof(out->path) ||
	    strspn(path + strlen(prefix), "0123456789abcdefABCDEF-") != size - strlen(prefix))
		return -1;
	out->port = (uint16_t)port;
	snprintf(out->path, sizeof(out->path), "%.*s", (int)size, path);
	return 0;
}

/* 1: found; 0: there is none; -1. */
static int browser_find(struct request *request, const char *id, struct browser *out, struct husk_error *err)
{
	static const char script[] =
		"head -c 200 \"${HOME:-/root}/.config/husk-browser/DevToolsActivePort\" 2>/dev/null; "
		"[ -x /usr/local/bin/husk-browser ] && [ -x /usr/bin/chromium ] || exit 3";
	struct husk_exec_options options = { .shell = script, .timeout_ms = LOOK_MS };
	cleanup(result_cleanup) struct husk_result result = { 0 };

	if (husk_run(request_husk(request), id, &options, &result, err) < 0)
		return -1;
	if (result.exit_code == 3)
		return husk_fail(err, HUSK_CONFLICT,
				 "sandbox %s has no browser; create one from the template 'desktop', or add chromium "
				 "to the packages of its template",
				 id);
	return result.output && parse_place(result.output, out) == 0;
}

/* ---- one question to it ---- */

static int ask_fail(struct husk_error *err)
{
	return husk_fail(err, HUSK_PROTOCOL, "the browser did not answer as a browser does");
}

/* Reads until `wanted` bytes are there; 0: any more. -1: it ended, or the time is over. */
static int ask_more(int fd, struct buf *in, int64_t until)
{
	struct pollfd wait = { .fd = fd, .events = POLLIN };
	int64_t left = until - time_monotonic_ms();

	if (left <= 0 || in->size > ANSWER_MAX || poll(&wait, 1, (int)left) <= 0 || buf_reserve(in, 32u << 10) < 0)
		return -1;
	ssize_t count = recv(fd, in->data + in->size, 32u << 10, MSG_DONTWAIT);
	if (count <= 0)
		return -1;
	in->size += (size_t)count;
	return 0;
}

/* The answer's body is a JSON document of a known length. */
static json_t *ask_read(int fd, struct husk_error *err)
{
	cleanup_buf struct buf in = { 0 };
	struct http1_head head = { 0 };
	int64_t until = time_monotonic_ms() + LOOK_MS;
	ssize_t used = 0;
	json_t *document = NULL;

	while (used == 0 && ask_more(fd, &in, until) == 0)
		used = http1_head_parse(in.data, in.size, &head, NULL);
	bool good = used > 0 && head.status == 200 && head.length > 0 && head.length <= (int64_t)ANSWER_MAX;
	if (used > 0)
		buf_consume(&in, (size_t)used);
	while (good && in.size < (size_t)head.length)
		good = ask_more(fd, &in, until) == 0;
	if (good && !str_json_deeper(in.data, (size_t)head.length, 16))
		document = json_loadb(in.data, (size_t)head.length, 0, NULL);
	http1_head_free(&head);
	if (!document)
		ask_fail(err);
	return document;
}

static json_t *ask(struct request *request, const char *id, const struct browser *browser, const char *path,
		   struct husk_error *err)
{
	cleanup_close int fd = husk_dial(request_husk(request), id, browser->port, err);
	char text[256];

	if (fd < 0)
		return NULL;
	int size = snprintf(text, sizeof(text), "GET %s HTTP/1.1\r\nHost: localhost:%u\r\nConnection: close\r\n\r\n",
			    path, browser->port);
	if (send(fd, text, (size_t)size, MSG_NOSIGNAL) != size) {
		ask_fail(err);
		return NULL;
	}
	return ask_read(fd, err);
}

/* ---- starting it ---- */

static int browser_start(struct request *request, const char *id, const char *url, struct husk_error *err)
{
	const char *argv[] = { "/usr/local/bin/husk-browser", url, NULL };
	struct husk_exec_options options = { .argv = argv, .label = "browser", .detach = true };

	return husk_exec(request_husk(request), id, &options, NULL, NULL, err);
}

/* The version of the browser that runs now; NULL with OK in `err`: none does. */
static json_t *browser_look(struct request *request, const char *id, struct browser *out, struct husk_error *err)
{
	int found = browser_find(request, id, out, err);

	/* A file without a listener is what a browser that crashed left behind. */
	return found > 0 ? ask(request, id, out, "/json/version", NULL) : NULL;
}

static json_t *browser_need(struct request *request, const char *id, const char *url, struct husk_error *err)
{
	int64_t until = time_monotonic_ms() + START_MS;
	struct husk_error why = { 0 };
	struct browser browser;
	json_t *version = browser_look(request, id, &browser, &why);

	if ((!version || url) && why.code == HUSK_OK && browser_start(request, id, url, &why) < 0)
		why.code = why.code ? why.code : HUSK_INTERNAL;
	while (!version && why.code == HUSK_OK && time_monotonic_ms() < until) {
		if (request_wait(request, -1, STEP_MS) < 0)
			husk_fail(&why, HUSK_GONE, "the client has gone");
		else
			version = browser_look(request, id, &browser, &why);
	}
	if (version && why.code == HUSK_OK)
		return version;
	json_decref(version);
	if (why.code != HUSK_OK)
		husk_fail(err, why.code, "%s", why.message);
	else
		husk_fail(err, HUSK_TIMEOUT, "the browser of sandbox %s did not start in %d seconds; husk ps %s", id,
			  START_MS / 1000, id);
	return NULL;
}

/* An address, and no option of the program. */
static int check_url(const char *url, struct husk_error *err)
{
	bool bad = !url ? false
			: strlen(url) > URL_MAX || (!str_starts(url, "http://") && !str_starts(url, "https://") &&
						    !str_starts(url, "file:///") && !str_equal(url, "about:blank"));

	for (const char *at = url; at && *at; at++)
		bad |= (unsigned char)*at <= 0x20 || *at == 0x7f;
	return bad ? husk_fail_field(err, "url",
				     "give an address that begins with http://, https:// or file:///, of at most "
				     "%u bytes",
				     URL_MAX)
		   : 0;
}

/* Addresses of the browser: with a signature if it came by one, or if `expires` is given. */
static char *address(struct request *request, const char *id, bool socket, const char *path, int64_t expires,
		     struct husk_error *err)
{
	cleanup_free char *server = link_server(request, socket, err), *query = NULL;

	if (!server || (expires && link_query(request, id, LINK_BROWSER, expires, &query, err) < 0))
		return NULL;
	char *out =
		str_format("%s/v1/sandboxes/%s/browser%s%s%s", server, id, path, query ? "?" : "", query ? query : "");
	if (!out)
		husk_fail_memory(err);
	return out;
}

static int handle_start(struct request *request, struct husk_error *err)
{
	cleanup_free char *id = NULL, *socket = NULL, *plain = NULL;
	struct fields fields;

	if (fields_begin(&fields, request_json(request, err)) < 0)
		return -1;
	const char *url = fields_string(&fields, "url");
	int64_t seconds = fields_int(&fields, "expires_seconds", LINK_SECONDS, 1, LINK_SECONDS_MAX);
	if (fields_done(&fields, err) < 0 || check_url(url, err) < 0 || link_sandbox(request, &id, err) < 0 ||
	    husk_control_check(request_husk(request), id, err) < 0)
		return -1;
	cleanup_json json_t *version = browser_need(request, id, url, err);
	int64_t expires = time_wall_ms() / 1000 + seconds;
	if (!version || !(socket = address(request, id, true, "/cdp", expires, err)) ||
	    !(plain = address(request, id, false, "", 0, err)))
		return -1;
	return respond_json(request, 200,
			    json_pack("{s:s, s:s, s:o, s:O?}", "cdp_url", socket, "url", plain, "expires_at",
				      json_time(expires * 1000), "browser", json_object_get(version, "Browser")),
			    err);
}

/* ---- what clients of the protocol ask for ---- */

static bool is_held(struct request *request)
{
	struct husk_error why = { 0 };

	return husk_control_check(request_husk(request), request_path(request, "id"), &why) < 0 &&
	       why.code == HUSK_CONFLICT;
}

static int browser_there(struct request *request, char **id, struct browser *out, struct husk_error *err)
{
	if (link_sandbox(request, id, err) < 0 || husk_control_check(request_husk(request), *id, err) < 0)
		return -1;
	int found = browser_find(request, *id, out, err);
	if (found == 0)
		husk_fail(err, HUSK_CONFLICT, "no browser runs in sandbox %s; POST /v1/sandboxes/%s/browser starts it",
			  *id, *id);
	return found > 0 ? 0 : -1;
}

static int connect_target(struct request *request, const char *target, struct husk_error *err)
{
	cleanup_free char *id = NULL, *what = NULL, *host = NULL;
	struct browser browser;

	if (browser_there(request, &id, &browser, err) < 0)
		return -1;
	what = str_format("the browser of sandbox %s", id);
	host = str_format("localhost:%u", browser.port);
	if (!what || !host)
		return husk_fail_memory(err);
	int fd = husk_dial(request_husk(request), id, browser.port, err);
	if (fd < 0)
		return husk_fail(err, HUSK_CONFLICT, "the browser of sandbox %s has ended; POST …/browser starts it",
				 id);
	struct proxy proxy = { .what = what,
			       .target = target ? target : browser.path,
			       .host = host,
			       .drop_origin = true,
			       .held = is_held };
	return proxy_run(request, fd, &proxy, err);
}

static int handle_cdp(struct request *request, struct husk_error *err)
{
	return connect_target(request, NULL, err);
}

/* "page/<id>" and the like: a connection to one tab, or the browser, as /json/list names it. */
static int handle_target(struct request *request, struct husk_error *err)
{
	const char *rest = request_path(request, "rest");
	size_t size = strcspn(rest, "?");
	cleanup_free char *target = NULL;

	if (size > 200 || strspn(rest, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_/") != size)
		return husk_fail(err, HUSK_NOT_FOUND,
				 "the browser has no such target; GET …/browser/json/list lists them");
	target = str_format("/devtools/%.*s", (int)size, rest);
	return target ? connect_target(request, target, err) : husk_fail_memory(err);
}

/* "ws://localhost:41234/devtools/page/F00" becomes an address of ours. */
static int rewrite(struct request *request, const char *id, json_t *item, struct husk_error *err)
{
	const char *given = json_string_value(json_object_get(item, "webSocketDebuggerUrl"));
	const char *found = given ? strstr(given, "/devtools/") : NULL;
	cleanup_free char *path = found && strlen(found) <= 200 ? strdup(found) : NULL; /* the item's own goes now */
	int64_t expires = 0;

	json_object_del(item, "devtoolsFrontendUrl");
	json_object_del(item, "webSocketDebuggerUrl");
	if (!path)
		return 0;
	if (link_kind(request) == LINK_BROWSER) /* it is checked already */
		str_to_int64(request_query(request, "husk_expires"), 1, INT64_MAX / 1000, &expires);
	cleanup_free char *url = address(request, id, true, path, expires, err);
	if (!url)
		return -1;
	return json_object_set_new(item, "webSocketDebuggerUrl", json_string(url)) < 0 ? husk_fail_memory(err) : 0;
}

static int rewrite_all(struct request *request, const char *id, json_t *document, struct husk_error *err)
{
	size_t index;
	json_t *item;

	if (json_is_object(document))
		return rewrite(request, id, document, err);
	json_array_foreach(document, index,
			   item) if (!json_is_object(item) || rewrite(request, id, item, err) < 0) return ask_fail(err);
	return 0;
}

static int handle_json(struct request *request, struct husk_error *err)
{
	const char *rest = request_path(request, "rest");
	size_t size = strcspn(rest, "?");
	cleanup_free char *id = NULL;
	struct browser browser;

	while (size && rest[size - 1] == '/') /* Playwright asks for version/ */
		size--;
	bool version = size == 7 && memcmp(rest, "version", 7) == 0;
	if (!version && !(size == 4 && memcmp(rest, "list", 4) == 0) && size != 0)
		return husk_fail(err, HUSK_NOT_FOUND, "ask for json/version or json/list");
	if (browser_there(request, &id, &browser, err) < 0)
		return -1;
	cleanup_json json_t *document = ask(request, id, &browser, version ? "/json/version" : "/json/list", err);
	if (!document || rewrite_all(request, id, document, err) < 0)
		return -1;
	return respond_json(request, 200, steal_pointer(document), err);
}

/* ---- its profile ---- */

static int handle_profile_save(struct request *request, struct husk_error *err)
{
	struct files_download download = {
		.request = request, .status = 200, .type = "application/x-tar", .length = -1
	};
	int result = husk_profile_save(request_husk(request), request_path(request, "id"), files_sink, &download, err);

	return files_download_end(&download, result, err);
}

static int handle_profile_load(struct request *request, struct husk_error *err)
{
	if (husk_profile_load(request_husk(request), request_path(request, "id"), files_source, request, err) < 0)
		return -1;
	return respond_empty(request, 204, err);
}

const struct route browser_routes[] = {
	{ "GET", "/v1/sandboxes/{id}/browser/profile", handle_profile_save, ROUTE_STREAM },
	{ "PUT", "/v1/sandboxes/{id}/browser/profile", handle_profile_load, ROUTE_STREAM },
	{ "POST", "/v1/sandboxes/{id}/browser", handle_start, 0 },
	{ "GET", "/v1/sandboxes/{id}/browser/cdp", handle_cdp, ROUTE_STREAM | ROUTE_BROWSER },
	{ "GET", "/v1/sandboxes/{id}/browser/devtools/{rest*}", handle_target, ROUTE_STREAM | ROUTE_BROWSER },
	{ "GET", "/v1/sandboxes/{id}/browser/json/{rest*}", handle_json, ROUTE_BROWSER },
	{ 0 },
};
