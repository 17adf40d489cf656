/*
 * Access to what runs inside a sandbox (E2B's data plane): with the sandbox's own tokens, or with an address signed by one.
 * A token is a signature over the sandbox's id, so nothing is stored, and a restarted server accepts it. http.c calls it
 * before any handler. A caller who passes may use this one sandbox: handlers take its id from here only.
 */
#include <openssl/crypto.h>
#include <openssl/evp.h>

#include "server/core.h"
#include "server/dialects/e2b/e2b.h"

#define END_SHOWN_MS 5000 /* at most, from the end of a machine until its row says so */
/* Clients look for these words. They make the first the failure that they document for a sandbox that does not run; after the
 * second they ask for its health, and then know that it ended during the call. */
#define NOT_FOUND "was not found"
#define ENDED_MEANWHILE "was killed or reached its end of life"

#define DIGEST_SIZE 32
#define SIGNATURE_PREFIX "v1_"
#define SIGNATURE_LENGTH 46 /* the prefix, and 43 characters of base64 without padding */

int e2b_token(struct request *request, const char *what, const char *id, char **out, struct husk_error *err)
{
	cleanup_free char *text = str_format("e2b-%s\n%s", what, id);

	return text ? husk_sign(request_owner(request), text, out, err) : husk_fail_memory(err);
}

static bool token_is(struct request *request, const char *what, const char *id, const char *given)
{
	cleanup_free char *expected = NULL;

	return given && e2b_token(request, what, id, &expected, NULL) == 0 && strlen(given) == strlen(expected) &&
	       CRYPTO_memcmp(expected, given, strlen(expected)) == 0;
}

/* ---- signed addresses ---- */

/* v1_ and the base64 of sha256("path:read|write:user:token[:expiry]") */
static bool signature_is(struct request *request, const char *id, const char *given)
{
	const char *path = request_query(request, "path"), *user = request_query(request, "username");
	const char *expires = request_query(request, "signature_expiration");
	cleanup_free char *token = NULL;
	unsigned char digest[EVP_MAX_MD_SIZE];
	char expected[SIGNATURE_LENGTH + 8] = SIGNATURE_PREFIX;

	if (e2b_token(request, "access", id, &token, NULL) < 0)
		return false;
	cleanup_free char *text = str_format("%s:%s:%s:%s%s%s", path ? path : "",
					     str_equal(request_method(request), "GET") ? "read" : "write",
					     user ? user : "", token, expires ? ":" : "", expires ? expires : "");
	if (!text || EVP_Digest(text, strlen(text), digest, NULL, EVP_sha256(), NULL) != 1)
		return false;
	EVP_EncodeBlock((unsigned char *)expected + strlen(SIGNATURE_PREFIX), digest, DIGEST_SIZE);
	return CRYPTO_memcmp(expected, given, SIGNATURE_LENGTH) == 0;
}

/* If all sandboxes share one address, a signed address does not name its sandbox: then it belongs to the sandbox whose
 * token signed it. */
static char *find_signer(struct request *request, const char *signature, struct husk_error *err)
{
	struct husk_filter filter = { 0 };
	struct husk_sandbox **list = NULL;
	char *found = NULL;

	if (husk_list(request_owner(request), &filter, &list, err) < 0)
		return NULL;
	for (size_t i = 0; list[i] && !found; i++)
		if (signature_is(request, list[i]->id, signature))
			found = strdup(list[i]->id);
	husk_sandbox_list_free(list);
	if (!found)
		husk_fail(err, HUSK_DENIED, "invalid signature");
	return found;
}

static char *check_signature(struct request *request, const char *id, struct husk_error *err)
{
	const char *signature = request_query(request, "signature");
	const char *expires = request_query(request, "signature_expiration");
	int64_t until = 0;

	if (strlen(signature) != SIGNATURE_LENGTH)
		return husk_fail(err, HUSK_DENIED, "invalid signature"), NULL;
	/* The signature first: a forged one gets no answer about its expiry. */
	cleanup_free char *signer = !id                                    ? find_signer(request, signature, err)
				    : signature_is(request, id, signature) ? strdup(id)
									   : NULL;
	if (!signer)
		return husk_fail(err, HUSK_DENIED, "invalid signature"), NULL;
	if (expires &&
	    (str_to_int64(expires, INT64_MIN / 1000, INT64_MAX / 1000, &until) < 0 || until * 1000 <= time_wall_ms()))
		return husk_fail(err, HUSK_DENIED, "signature is already expired"), NULL;
	return steal_pointer(signer);
}

/* ---- the sandbox ---- */

static bool is_code(const struct request *request)
{
	const char *path = request->match.route->path;

	return str_starts(path, "/execute") || str_starts(path, "/contexts");
}

/* The id of the sandbox if the request may use it; caller frees. */
static char *admit(struct request *request, struct husk_error *err)
{
	const char *named = request_header(request, "E2b-Sandbox-Id");
	const char *access = request_header(request, "X-Access-Token");
	char id[E2B_ID_SIZE];

	e2b_id(named ? named : *request->host_port ? request->host_sandbox : "", id);
	if (!access && request_query(request, "signature"))
		return check_signature(request, *id ? id : NULL, err);
	if (!*id)
		return husk_fail(err, HUSK_DENIED, "no sandbox is named; send E2b-Sandbox-Id and X-Access-Token"), NULL;
	if (token_is(request, "access", id, access))
		return strdup(id);
	/* In E2B, code runs on a port of the sandbox: its clients send only the token for ports. */
	if (is_code(request) && token_is(request, "traffic", id, request_header(request, E2B_TRAFFIC_HEADER)))
		return strdup(id);
	return husk_fail(err, HUSK_DENIED, "the access token is not one of sandbox %.40s", id), NULL;
}

static void drop_view(struct husk **view)
{
	if (*view)
		husk_close(*view);
}

/* Traffic has no token, and the quotas belong to the tenant's tokens: the most generous valid one is used. A tenant
 * without a valid token can wake nothing. */
static int tenant_view(struct husk *owner, const char *tenant, struct husk **out, struct husk_error *err)
{
	struct husk_token **list = NULL, *best = NULL;

	if (husk_token_list(owner, &list, err) < 0)
		return -1;
	for (size_t i = 0; list[i]; i++) {
		struct husk_token *each = list[i];
		if (each->revoked || !str_equal(each->tenant, tenant) ||
		    (each->expires_ms && each->expires_ms <= time_wall_ms()))
			continue;
		if (!best || (best->max_memory_bytes &&
			      (!each->max_memory_bytes || each->max_memory_bytes > best->max_memory_bytes)))
			best = each;
	}
	int result = best ? husk_as(owner, best, out, err)
			  : husk_fail(err, HUSK_DENIED, "tenant '%s' has no valid token", tenant);
	husk_token_list_free(list);
	return result;
}

static int fail_ended(struct request *request, const char *what, const char *id, const struct husk_sandbox *sandbox,
		      struct husk_error *err)
{
	request->fault = (struct fault){ 502, "gone" };
	return husk_fail(err, HUSK_GONE, "the sandbox %s: %.40s has ended%s%s", what, id,
			 sandbox && sandbox->end_reason ? ", reason: " : "",
			 sandbox && sandbox->end_reason ? sandbox->end_reason : "");
}

static int fail_paused(const char *id, struct husk_error *err)
{
	return husk_fail(err, HUSK_GONE, "the sandbox " NOT_FOUND ": %.40s is paused; connect to it to resume it", id);
}

/* Traffic wakes a sandbox that was made for it. Any other hibernated sandbox does not exist for its clients. */
static int rouse(struct request *request, const struct husk_sandbox *sandbox, struct husk_error *err)
{
	struct e2b_settings settings = e2b_settings_of(sandbox);
	struct husk *husk = request_owner(request);

	if (!settings.resume)
		return fail_paused(sandbox->id, err);
	cleanup(drop_view) struct husk *view = NULL;
	if (sandbox->tenant) {
		if (tenant_view(husk, sandbox->tenant, &view, err) < 0)
			return -1;
		husk = view;
	}
	/* A hibernated sandbox has no end; when it wakes, it gets one again. */
	if (sandbox->expires_ms == 0 && husk_extend(husk, sandbox->id, settings.timeout, false, NULL, err) < 0)
		return -1;
	if (husk_wake(husk, sandbox->id, err) == 0)
		return 0;
	if (err && err->code == HUSK_LIMIT)
		request->fault = (struct fault){ 429, "limit" };
	return -1;
}

static int require_running(struct request *request, const char *id, struct husk_error *err)
{
	cleanup_sandbox struct husk_sandbox *sandbox = NULL;

	if (husk_inspect(request_owner(request), id, &sandbox, err) < 0 || sandbox->state == HUSK_ENDED)
		return fail_ended(request, NOT_FOUND, id, sandbox, err);
	return sandbox->state == HUSK_HIBERNATED ? rouse(request, sandbox, err) : 0;
}

void e2b_explain_end(struct request *request, struct husk_error *err)
{
	const char *id = request_path(request, "id");

	for (int64_t end = time_monotonic_ms() + END_SHOWN_MS;; usleep(50000)) {
		cleanup_sandbox struct husk_sandbox *sandbox = NULL;
		if (husk_inspect(request_owner(request), id, &sandbox, NULL) < 0 || sandbox->state == HUSK_ENDED) {
			fail_ended(request, ENDED_MEANWHILE, id, sandbox, err);
			return;
		}
		if (sandbox->state == HUSK_HIBERNATED) {
			fail_paused(id, err);
			return;
		}
		if (time_monotonic_ms() >= end)
			return;
	}
}

int e2b_authorise(struct request *request, struct husk_error *err)
{
	struct route_match *match = &request->match;
	cleanup_free char *id = admit(request, err);

	if (!id) {
		if (err->code == HUSK_DENIED)
			request->fault = (struct fault){ 401, "unauthorized" };
		return err->code ? -1 : husk_fail_memory(err);
	}
	if (match->count == PARAMETERS_MAX)
		return husk_fail(err, HUSK_INTERNAL, "the route has too many parameters");
	/* The handle of the whole instance, because the tenant is not known here. It is used for this id only. */
	request->husk = request->server->husk;
	snprintf(request->host_sandbox, sizeof(request->host_sandbox), "%s", id);
	match->names[match->count] = "id";
	match->name_size[match->count] = 2;
	match->values[match->count++] = request->host_sandbox;
	return require_running(request, request->host_sandbox, err);
}

static bool refuse_port(struct request *request, unsigned status, enum husk_code code, const char *message,
			struct husk_error *err)
{
	request->fault = (struct fault){ status, "refused" };
	husk_fail(err, code, "%s", message);
	return false;
}

/* "localhost:${PORT}" */
static char *fill_host(const char *host, const char *port)
{
	const char *mark = strstr(host, "${PORT}");

	return mark ? str_format("%.*s%s%s", (int)(mark - host), host, port, mark + strlen("${PORT}")) : strdup(host);
}

static bool is_https(const struct e2b_settings *settings, const char *port)
{
	for (const char *at = settings->https; at && *at; at += strcspn(at, ","), at += *at == ',')
		if (atoi(at) == atoi(port))
			return true;
	return false;
}

bool e2b_port_open(struct request *request, const char *id, struct husk_error *err)
{
	cleanup_sandbox struct husk_sandbox *sandbox = NULL;
	const char *token = request_header(request, E2B_TRAFFIC_HEADER);

	/* Only where each sandbox has its own host, as in E2B. */
	bool shown = e2b_is_shown_id(id);
	if (request->match.route->path[0] == '/' || (!shown && !str_starts(id, "sb-")))
		return false;
	if (husk_inspect(request_owner(request), id, &sandbox, NULL) < 0) {
		request->match.dialect = shown ? &e2b_dialect : request->match.dialect;
		return shown && refuse_port(request, 502, HUSK_NOT_FOUND, "the sandbox was not found", err);
	}
	struct e2b_settings settings = e2b_settings_of(sandbox);
	if (!settings.ours)
		return false;
	request->match.dialect = &e2b_dialect;
	if (sandbox->state == HUSK_ENDED)
		return refuse_port(request, 502, HUSK_GONE, "the sandbox has ended", err);
	if (settings.closed && !token)
		return refuse_port(request, 403, HUSK_DENIED,
				   "Sandbox is secured with traffic access token. Token header "
				   "'e2b-traffic-access-token' is missing",
				   err);
	if (settings.closed && !token_is(request, "traffic", sandbox->id, token))
		return refuse_port(request, 403, HUSK_DENIED,
				   "Sandbox is secured with traffic access token. Provided token in header "
				   "'e2b-traffic-access-token' is invalid",
				   err);
	if (sandbox->state == HUSK_HIBERNATED && !settings.resume)
		return refuse_port(request, 409, HUSK_CONFLICT, "The sandbox is paused", err);
	if (sandbox->state == HUSK_HIBERNATED && rouse(request, sandbox, err) < 0)
		return refuse_port(request, request->fault.status ? request->fault.status : 503, HUSK_UNAVAILABLE,
				   "The sandbox is paused and could not be resumed", err);
	request->port_tls = is_https(&settings, request->host_port);
	if (settings.host && !(request->port_host = fill_host(settings.host, request->host_port)))
		return false;
	request->open = true;
	return true;
}
