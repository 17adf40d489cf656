/*
 * Ports of a sandbox over HTTP: by host name (8000-sb-….localhost:7820), by path (/v1/sandboxes/{id}/ports/8000/…), and by
 * signed links that replace a token. This file decides which request goes to which port and whether it may; proxy.c carries
 * it. A port is private: it needs a token of the sandbox's tenant, or a signature for this very port.
 *
 * A signature is an HMAC over sandbox, port and time, in the query of a link. The first answer turns it into a cookie, so
 * that links within a page work. Neither ever reaches the guest.
 */
#include <ctype.h>
#include <openssl/crypto.h>

#include "server/proxy.h"

#define SIGNATURE_LENGTH 64
#define LINK_SECONDS 3600
#define LINK_SECONDS_MAX (30 * 24 * 3600)
#define SIGNATURE_QUERY "husk_signature"
#define EXPIRES_QUERY "husk_expires"

/* ---- hosts ---- */

static bool is_sandbox_id(const char *text)
{
	return str_starts(text, "sb-") && text[3] &&
	       text[3 + strspn(text + 3, "abcdefghijklmnopqrstuvwxyz234567")] == '\0';
}

/* Below .localhost every name belongs to us, and a sandbox may be given by its name. Elsewhere only the form of an id
 * is accepted, with or without its '-', because the server's own name may begin with a number. */
int ports_match(const char *host, uint16_t *port, char *sandbox, size_t size)
{
	size_t label = strcspn(host, ".:");
	size_t digits = strspn(host, "0123456789");
	const char *domain = host + label;
	char number[8] = "";
	int64_t value;

	if (*domain != '.' || !digits || digits >= sizeof(number) || host[digits] != '-' || label - digits - 1 >= size)
		return 0;
	memcpy(number, host, digits);
	if (str_to_int64(number, 1, 65535, &value) < 0)
		return 0;
	size_t length = label - digits - 1;
	for (size_t i = 0; i < length; i++)
		sandbox[i] = (char)tolower((unsigned char)host[digits + 1 + i]);
	sandbox[length] = '\0';
	bool local = strncasecmp(domain, ".localhost", 10) == 0 && (domain[10] == '\0' || domain[10] == ':');
	if (!length || (!local && !is_sandbox_id(sandbox) && !is_random_id(sandbox, "sb", 10)))
		return 0;
	*port = (uint16_t)value;
	return 1;
}

/* ---- signatures ---- */

static int sign(struct request *request, const char *id, uint16_t port, int64_t expires, char **out,
		struct husk_error *err)
{
	cleanup_free char *text = str_format("port\n%s\n%u\n%lld", id, port, (long long)expires);

	return text ? husk_sign(request_husk(request), text, out, err) : husk_fail_memory(err);
}

/* Is the signature valid, for this port, and not expired? */
static bool is_good(struct request *request, const char *id, uint16_t port, const char *expires, const char *signature)
{
	cleanup_free char *expected = NULL;
	int64_t until;

	if (str_to_int64(expires, 1, INT64_MAX / 1000, &until) < 0 || until * 1000 <= time_wall_ms() ||
	    strlen(signature) != SIGNATURE_LENGTH || !is_sandbox_id(id) ||
	    sign(request, id, port, until, &expected, NULL) < 0)
		return false;
	return CRYPTO_memcmp(expected, signature, SIGNATURE_LENGTH) == 0;
}

/* Our cookies: "husk_access=<expires>.<signature>". A request may have several, for several paths of one host. */
static bool has_cookie(struct request *request, const char *id, uint16_t port)
{
	const char *at = request_header(request, "Cookie");

	while (at && (at = strstr(at, ACCESS_COOKIE "="))) {
		at += strlen(ACCESS_COOKIE "=");
		size_t digits = strspn(at, "0123456789");
		cleanup_free char *expires = strndup(at, digits);
		cleanup_free char *signature = at[digits] == '.' ? strndup(at + digits + 1, SIGNATURE_LENGTH) : NULL;
		if (expires && signature && is_good(request, id, port, expires, signature))
			return true;
	}
	return false;
}

static bool has_signed_query(struct request *request, const char *id, uint16_t port)
{
	const char *signature = request_query(request, SIGNATURE_QUERY),
		   *expires = request_query(request, EXPIRES_QUERY);

	return signature && expires && is_good(request, id, port, expires, signature);
}

bool ports_signed(struct request *request, const char *sandbox, uint16_t port)
{
	return has_signed_query(request, sandbox, port) || has_cookie(request, sandbox, port);
}

/* The cookie that replaces a valid query. `path` is where it is valid. */
static char *make_cookie(struct request *request, const char *path)
{
	const char *expires = request_query(request, EXPIRES_QUERY);
	int64_t until = 0;

	str_to_int64(expires, 1, INT64_MAX / 1000, &until);
	return str_format(ACCESS_COOKIE "=%s.%s; Path=%s; Max-Age=%lld; HttpOnly; SameSite=Lax%s", expires,
			  request_query(request, SIGNATURE_QUERY), path,
			  (long long)MAX(until - time_wall_ms() / 1000, 1), request_secure(request) ? "; Secure" : "");
}

/* ---- the proxy ---- */

/* The target without our two names in its query; everything else stays unchanged. */
static char *strip_target(const char *target)
{
	static const char *const ours[] = { SIGNATURE_QUERY "=", EXPIRES_QUERY "=" };
	size_t path = strcspn(target, "?");
	cleanup_buf struct buf out = { 0 };
	const char *separator = "?";
	int bad = buf_append(&out, target, path);

	for (const char *at = target + path; *at;) {
		at++; /* the question mark or the ampersand */
		size_t size = strcspn(at, "&");
		bool dropped = false;
		for (size_t i = 0; i < ARRAY_SIZE(ours); i++)
			dropped |= strncmp(at, ours[i], strlen(ours[i])) == 0;
		if (!dropped) {
			bad |= buf_append_string(&out, separator) | buf_append(&out, at, size);
			separator = "&";
		}
		at += size;
	}
	return bad ? NULL : buf_steal(&out);
}

/* libhusk returns NOT_FOUND both for an unknown sandbox and for a port without a listener; callers must be able to
 * distinguish them. */
static int dial(struct request *request, const char *sandbox, uint16_t port, struct husk_error *err)
{
	struct husk *husk = request_husk(request);
	struct husk_sandbox *found = NULL;
	int fd = husk_dial(husk, sandbox, port, err);

	if (fd >= 0 || err->code != HUSK_NOT_FOUND || husk_inspect(husk, sandbox, &found, NULL) < 0)
		return fd;
	husk_sandbox_free(found);
	return husk_fail(err, HUSK_PROTOCOL,
			 "nothing listens on port %u in sandbox %s; start a server there, on 127.0.0.1 or 0.0.0.0",
			 port, sandbox);
}

/* An Authorization that was not used for access belongs to the program. */
static bool is_own_authorization(struct request *request, bool is_signed)
{
	const char *header = request_header(request, "Authorization");

	return is_signed || request_open(request) || request_header(request, "X-Husk-Token") ||
	       (header && strncasecmp(header, "Bearer ", 7) != 0);
}

/* `prefix` NULL: the guest has its own host. */
static int forward(struct request *request, const char *sandbox, uint16_t port, const char *target, const char *prefix,
		   struct husk_error *err)
{
	cleanup_free char *what = str_format("port %u of sandbox %s", port, sandbox);
	cleanup_free char *stripped = strip_target(target);
	cleanup_free char *local_host = str_format("localhost:%u", port);
	const char *host = request_header(request, "Host");
	bool by_link = has_signed_query(request, sandbox, port);
	cleanup_free char *cookie = by_link ? make_cookie(request, prefix ? prefix : "/") : NULL;

	if (!what || !stripped || !local_host || (by_link && !cookie))
		return husk_fail_memory(err);
	int fd = dial(request, sandbox, port, err);
	if (fd >= 0 && request_port_tls(request))
		fd = port_tls(fd, err);
	if (fd < 0)
		return -1;
	struct proxy proxy = {
		.what = what,
		.target = stripped,
		.host = request_port_host(request) ? request_port_host(request)
			: prefix || !host          ? local_host
						   : host,
		.prefix = prefix,
		.cookie = cookie,
		.keep_authorization = is_own_authorization(request, ports_signed(request, sandbox, port)),
	};
	return proxy_run(request, fd, &proxy, err);
}

int ports_proxy(struct request *request, const char *sandbox, uint16_t port, const char *target, struct husk_error *err)
{
	if (target[0] != '/')
		return husk_fail(err, HUSK_INVALID, "the request's path must begin with '/'");
	return forward(request, sandbox, port, target, NULL, err);
}

/* ---- routes ---- */

static int route_port(struct request *request, uint16_t *port, struct husk_error *err)
{
	int64_t value;

	if (str_to_int64(request_path(request, "port"), 1, 65535, &value) < 0)
		return husk_fail_field(err, "port", "port '%.20s' is none; give a number from 1 to 65535",
				       request_path(request, "port"));
	*port = (uint16_t)value;
	return 0;
}

static int handle_path(struct request *request, struct husk_error *err)
{
	const char *sandbox = request_path(request, "id"), *rest = request_path(request, "rest");
	const char *query = strchr(request_target(request), '?');
	uint16_t port;

	if (route_port(request, &port, err) < 0)
		return -1;
	if (sandbox[strspn(sandbox, "abcdefghijklmnopqrstuvwxyz0123456789-_.")]) /* it goes into headers */
		return husk_fail(err, HUSK_NOT_FOUND, "sandbox '%.64s' not found (husk ls)", sandbox);
	cleanup_free char *prefix = str_format("/v1/sandboxes/%s/ports/%u", sandbox, port);
	cleanup_free char *target = str_format("/%s", *rest ? rest : query ? query : "");
	if (!prefix || !target)
		return husk_fail_memory(err);
	return forward(request, sandbox, port, target, prefix, err);
}

/* The name by which the caller knows this server; for an address it can only be localhost. */
char *ports_domain(struct request *request, struct husk_error *err)
{
	const char *host = request_header(request, "Host");
	uint16_t server_port = request_server_port(request);
	size_t size = host ? strcspn(host, ":") : 0;
	char *out;

	if (!server_port) {
		husk_fail(err, HUSK_UNAVAILABLE,
			  "the server listens on no TCP port, so there is nothing to link to; start it with --listen");
		return NULL;
	}
	bool named =
		host && !str_equal(request_remote(request), "unix") && isalpha((unsigned char)host[0]) &&
		strspn(host, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-.") == size &&
		(!host[size] || (host[size + 1] && host[size + 1 + strspn(host + size + 1, "0123456789")] == '\0'));
	if (named)
		out = strdup(host);
	else
		out = str_format("localhost:%u", server_port);
	if (!out)
		husk_fail_memory(err);
	return out;
}

int ports_link(struct request *request, const char *id, uint16_t port, int64_t seconds, char **url, int64_t *expires_ms,
	       struct husk_error *err)
{
	int64_t expires = time_wall_ms() / 1000 + seconds;
	cleanup_free char *domain = ports_domain(request, err);
	cleanup_free char *signature = NULL;

	if (!domain || sign(request, id, port, expires, &signature, err) < 0)
		return -1;
	*expires_ms = expires * 1000;
	*url = str_format("%s://%u-%s.%s/?" SIGNATURE_QUERY "=%s&" EXPIRES_QUERY "=%lld",
			  request_secure(request) ? "https" : "http", port, id, domain, signature, (long long)expires);
	return *url ? 0 : husk_fail_memory(err);
}

static int respond_link(struct request *request, const char *id, uint16_t port, int64_t seconds, struct husk_error *err)
{
	cleanup_free char *url = NULL;
	int64_t expires_ms = 0;

	if (ports_link(request, id, port, seconds, &url, &expires_ms, err) < 0)
		return -1;
	return respond_json(request, 200, json_pack("{s:s, s:o}", "url", url, "expires_at", json_time(expires_ms)),
			    err);
}

static int handle_link(struct request *request, struct husk_error *err)
{
	struct husk_sandbox *sandbox = NULL;
	struct fields fields;
	uint16_t port;

	if (fields_begin(&fields, request_json(request, err)) < 0)
		return -1;
	int64_t seconds = fields_int(&fields, "expires_seconds", LINK_SECONDS, 1, LINK_SECONDS_MAX);
	if (fields_done(&fields, err) < 0 || route_port(request, &port, err) < 0 ||
	    husk_inspect(request_husk(request), request_path(request, "id"), &sandbox, err) < 0)
		return -1;
	int result = sandbox->state == HUSK_ENDED
			     ? husk_fail(err, HUSK_GONE, "sandbox %s has ended (%s)", sandbox->id, sandbox->end_reason)
			     : respond_link(request, sandbox->id, port, seconds, err);
	husk_sandbox_free(sandbox);
	return result;
}

const struct route port_routes[] = {
	{ "POST", "/v1/sandboxes/{id}/ports/{port}/url", handle_link, 0 },
	{ "*", "/v1/sandboxes/{id}/ports/{port}", handle_path, ROUTE_STREAM | ROUTE_SIGNED },
	{ "*", "/v1/sandboxes/{id}/ports/{port}/{rest*}", handle_path, ROUTE_STREAM | ROUTE_SIGNED },
	{ 0 },
};
