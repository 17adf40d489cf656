/*
 * Access to a Daytona sandbox without the API key: ports by a preview token, by a signed host name, or because the sandbox
 * is public; files by a signed address; sockets with the key in the query, which browsers require. All of these are derived
 * from the instance's own key and stored nowhere, except revoked ones.
 *
 * A signed host is "<port>-sb-<id><expires><signature>", in characters that a host name and an id may have. The signature
 * covers the port: another port needs another name.
 */
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "server/dialects/daytona/daytona.h"

#define PREVIEW_HEADER "X-Daytona-Preview-Token"
#define KEY_QUERY "DAYTONA_SANDBOX_AUTH_KEY"
#define EXPIRES_LETTERS 8    /* of base32: 40 bits of seconds */
#define SIGNATURE_LETTERS 24 /* 120 bits */
#define SIGNED_SECONDS 60
#define SIGNED_SECONDS_MAX (24 * 3600)
#define EXPIRED_MAX 100 /* revoked before they expired, of one sandbox */

/* ---- tokens ---- */

static int derive(struct request *request, const char *what, const char *id, int64_t number, char **out,
		  struct husk_error *err)
{
	cleanup_free char *text = str_format("daytona\n%s\n%s\n%lld", what, id, (long long)number);

	return text ? husk_sign(request_owner(request), text, out, err) : husk_fail_memory(err);
}

static const char letters[] = "abcdefghijklmnopqrstuvwxyz234567";

static void put_number(uint64_t value, char out[static EXPIRES_LETTERS])
{
	for (int i = EXPIRES_LETTERS - 1; i >= 0; i--, value >>= 5)
		out[i] = letters[value & 31];
}

static bool get_number(const char *text, int64_t *out)
{
	uint64_t value = 0;

	for (int i = 0; i < EXPIRES_LETTERS; i++) {
		const char *at = text[i] ? strchr(letters, text[i]) : NULL;
		if (!at)
			return false;
		value = value << 5 | (uint64_t)(at - letters);
	}
	*out = (int64_t)value;
	return true;
}

/* "sb-<id><expires><signature>"; caller frees. */
static int signed_token(struct request *request, const char *id, int64_t port, int64_t expires, char **out,
			struct husk_error *err)
{
	char number[EXPIRES_LETTERS + 1] = "", signature[SIGNATURE_LETTERS + 1] = "";
	cleanup_free char *what = str_format("signed %lld", (long long)port), *hex = NULL;

	if (!what)
		return husk_fail_memory(err);
	if (derive(request, what, id, expires, &hex, err) < 0)
		return -1;
	put_number((uint64_t)expires, number);
	for (size_t i = 0; i < SIGNATURE_LETTERS; i++) {
		unsigned byte = 0;
		sscanf(hex + 2 * i, "%2x", &byte);
		signature[i] = letters[byte & 31];
	}
	*out = str_format("%s%s%s", id, number, signature);
	return *out ? 0 : husk_fail_memory(err);
}

/* Is the name of the host a token for this port? Returns its sandbox; the caller frees it. */
static char *token_sandbox(struct request *request, const char *token, int64_t port)
{
	size_t size = strlen(token), tail = EXPIRES_LETTERS + SIGNATURE_LETTERS;
	cleanup_free char *id = size > tail + 3 ? strndup(token, size - tail) : NULL, *expected = NULL;
	int64_t expires = 0;

	if (!id || !get_number(token + size - tail, &expires) || expires * 1000 <= time_wall_ms() ||
	    signed_token(request, id, port, expires, &expected, NULL) < 0 || !daytona_same(expected, token))
		return NULL;
	return steal_pointer(id);
}

/* ---- ports ---- */

static bool was_taken_back(const struct daytona_box *box, const char *token)
{
	json_t *list = json_object_get(box->settings, "expired"), *each;
	size_t i;

	json_array_foreach(list, i, each) if (str_equal(json_string_value(each), token)) return true;
	return false;
}

static bool has_preview_token(struct request *request, const char *id)
{
	const char *given = request_header(request, PREVIEW_HEADER);
	cleanup_free char *expected = NULL;

	if (!given)
		given = request_query(request, KEY_QUERY);
	return given && derive(request, "preview", id, 0, &expected, NULL) == 0 && daytona_same(expected, given);
}

bool daytona_port_open(struct request *request, const char *sandbox, struct husk_error *err)
{
	cleanup_box struct daytona_box box = { 0 };
	struct husk_sandbox *found = NULL;
	int64_t port = 0;

	(void)err;
	/* Only where each sandbox has its own host. */
	if (request->match.route->path[0] == '/' || str_to_int64(request_path(request, "port"), 1, 65535, &port) < 0)
		return false;
	cleanup_free char *id = token_sandbox(request, sandbox, port);
	if (husk_inspect(request_owner(request), id ? id : sandbox, &found, NULL) < 0 ||
	    daytona_box_of(found, &box, NULL) < 0 || found->state != HUSK_RUNNING ||
	    !json_object_get(box.settings, "public"))
		return false;
	if (id ? was_taken_back(&box, sandbox)
	       : !daytona_bool(&box, "public") && !has_preview_token(request, found->id))
		return false;
	snprintf(request->host_sandbox, sizeof(request->host_sandbox), "%s", found->id);
	request->open = true;
	return true;
}

static int read_port(struct request *request, int64_t *port, struct husk_error *err)
{
	if (str_to_int64(request_path(request, "port"), 1, 65535, port) == 0)
		return 0;
	return husk_fail_field(err, "port", "port '%.20s' is none; give a number from 1 to 65535",
			       request_path(request, "port"));
}

static char *host_url(struct request *request, int64_t port, const char *name, struct husk_error *err)
{
	cleanup_free char *domain = ports_domain(request, err);

	return domain ? str_format("%s://%lld-%s.%s", request_secure(request) ? "https" : "http", (long long)port, name,
				   domain)
		      : NULL;
}

static int handle_preview(struct request *request, struct husk_error *err)
{
	cleanup_box struct daytona_box box = { 0 };
	cleanup_free char *token = NULL;
	int64_t port;

	if (read_port(request, &port, err) < 0 || daytona_find(request, &box, err) < 0 ||
	    derive(request, "preview", box.sandbox->id, 0, &token, err) < 0)
		return -1;
	cleanup_free char *url = host_url(request, port, box.sandbox->id, err);
	if (!url)
		return -1;
	return respond_json(request, 200,
			    json_pack("{s:s, s:s, s:s}", "sandboxId", box.sandbox->id, "url", url, "token", token),
			    err);
}

static int handle_signed(struct request *request, struct husk_error *err)
{
	cleanup_box struct daytona_box box = { 0 };
	cleanup_free char *token = NULL;
	int64_t port, seconds;

	if (read_port(request, &port, err) < 0 ||
	    request_query_int(request, "expiresInSeconds", SIGNED_SECONDS, 1, SIGNED_SECONDS_MAX, &seconds, err) < 0 ||
	    daytona_find(request, &box, err) < 0 ||
	    signed_token(request, box.sandbox->id, port, time_wall_ms() / 1000 + seconds, &token, err) < 0)
		return -1;
	cleanup_free char *url = host_url(request, port, token, err);
	if (!url)
		return -1;
	return respond_json(request, 200,
			    json_pack("{s:s, s:I, s:s, s:s}", "sandboxId", box.sandbox->id, "port", (json_int_t)port,
				      "token", token, "url", url),
			    err);
}

/* Expired ones need not be stored. */
static json_t *still_good(const json_t *list)
{
	json_t *kept = json_array();

	for (size_t i = 0; kept && i < json_array_size(list); i++) {
		const char *token = json_string_value(json_array_get(list, i));
		size_t size = token ? strlen(token) : 0, tail = EXPIRES_LETTERS + SIGNATURE_LETTERS;
		int64_t expires = 0;
		if (size > tail && get_number(token + size - tail, &expires) && expires * 1000 > time_wall_ms())
			json_array_append_new(kept, json_string(token));
	}
	return kept;
}

static int take_back(struct request *request, const char *token, struct husk_error *err)
{
	cleanup_box struct daytona_box box = { 0 };
	int64_t port;

	if (read_port(request, &port, err) < 0 || daytona_find(request, &box, err) < 0)
		return -1;
	cleanup_free char *id = token_sandbox(request, token, port);
	if (!str_equal(id, box.sandbox->id))
		return husk_fail(err, HUSK_NOT_FOUND, "the token is not a good one of port %lld of this sandbox",
				 (long long)port);
	json_t *list = still_good(json_object_get(box.settings, "expired"));
	if (json_array_size(list) >= EXPIRED_MAX) {
		json_decref(list);
		return husk_fail(err, HUSK_LIMIT, "%d signed addresses were expired already; wait for their end",
				 EXPIRED_MAX);
	}
	json_array_append_new(list, json_string(token));
	if (daytona_set(&box, "expired", list, err) < 0)
		return -1;
	return daytona_save(request, &box, NULL, err);
}

static int handle_expire(struct request *request, struct husk_error *err)
{
	daytona_lock();
	int result = take_back(request, request_path(request, "token"), err);
	daytona_unlock();
	return result < 0 ? -1 : respond_empty(request, 200, err);
}

/* ---- signed addresses of files ---- */

/* The key that clients sign with; each rotation changes it. */
static int signing_key(struct request *request, const struct daytona_box *box, char **out, struct husk_error *err)
{
	return derive(request, "files", box->sandbox->id, daytona_int(box, "rotations", 0), out, err);
}

/* A JSON string by itself. */
static int respond_key(struct request *request, const char *key, struct husk_error *err)
{
	cleanup_free char *text = str_format("\"%s\"", key);

	return text ? respond_text(request, 200, "application/json", text, strlen(text), err) : husk_fail_memory(err);
}

static int handle_key(struct request *request, struct husk_error *err)
{
	cleanup_box struct daytona_box box = { 0 };
	cleanup_free char *key = NULL;

	if (daytona_find(request, &box, err) < 0 || signing_key(request, &box, &key, err) < 0)
		return -1;
	return respond_key(request, key, err);
}

static int rotate(struct request *request, struct daytona_box *box, struct husk_error *err)
{
	if (daytona_find(request, box, err) < 0 ||
	    daytona_set(box, "rotations", json_integer(daytona_int(box, "rotations", 0) + 1), err) < 0)
		return -1;
	return daytona_save(request, box, NULL, err);
}

static int handle_rotate(struct request *request, struct husk_error *err)
{
	cleanup_box struct daytona_box box = { 0 };
	cleanup_free char *key = NULL;

	daytona_lock();
	int result = rotate(request, &box, err);
	daytona_unlock();
	if (result < 0 || signing_key(request, &box, &key, err) < 0)
		return -1;
	return respond_key(request, key, err);
}

/* "v1_" and base64url(HMAC-SHA256(key, "v1:files:METHOD:path:expires")) without padding. */
static bool signature_is(const char *key, const char *text, const char *given)
{
	unsigned char digest[EVP_MAX_MD_SIZE];
	char encoded[4 + 2 * EVP_MAX_MD_SIZE] = "v1_";
	unsigned size = 0;

	if (!HMAC(EVP_sha256(), key, (int)strlen(key), (const unsigned char *)text, strlen(text), digest, &size))
		return false;
	EVP_EncodeBlock((unsigned char *)encoded + 3, digest, (int)size);
	for (char *at = encoded; *at; at++)
		*at = *at == '+' ? '-' : *at == '/' ? '_' : *at == '=' ? '\0' : *at;
	return daytona_same(encoded, given);
}

static int check_signature(struct request *request, struct husk_error *err)
{
	const char *signature = request_query(request, "signature"), *path = request_query(request, "path");
	const char *expires = request_query(request, "expires");
	cleanup_box struct daytona_box box = { 0 };
	cleanup_free char *key = NULL;
	int64_t until = -1;

	request->fault = (struct fault){ 401, "UNAUTHORIZED" };
	if (!signature || !path || !expires || str_to_int64(expires, 0, INT64_MAX / 1000, &until) < 0)
		return husk_fail(err, HUSK_DENIED, "a signed address has path, expires and signature");
	if (until && until * 1000 <= time_wall_ms())
		return husk_fail(err, HUSK_DENIED, "the signed address has expired; make a new one");
	if (daytona_find(request, &box, err) < 0 || signing_key(request, &box, &key, err) < 0)
		return -1;
	cleanup_free char *text = str_format("v1:files:%s:%s:%s", request_method(request), path, expires);
	if (!text || !signature_is(key, text, signature))
		return husk_fail(err, HUSK_DENIED, "the signature is not one of this path, method and time");
	request->fault = (struct fault){ 0 };
	return 0;
}

int daytona_authorise(struct request *request, struct husk_error *err)
{
	const char *key = request_query(request, KEY_QUERY);
	bool bare = !request_header(request, "Authorization") && !request_header(request, "X-Husk-Token");
	cleanup_box struct daytona_box box = { 0 };
	cleanup_free char *expected = NULL;

	/* The handle of the whole instance, until the tenant is known; used for the sandbox in the path only. */
	request->husk = request->server->husk;
	if (bare && request_query(request, "signature"))
		return check_signature(request, err);
	if (bare && key && daytona_find(request, &box, err) == 0 &&
	    derive(request, "preview", box.sandbox->id, 0, &expected, err) == 0 && daytona_same(expected, key))
		return 0;
	request->husk = NULL;
	if (auth_request(request, err) == 0)
		return 0;
	request->fault = (struct fault){ 401, "UNAUTHORIZED" };
	return -1;
}

const struct route daytona_port_routes[] = {
	{ "GET", "/daytona/sandbox/{id}/ports/{port}/preview-url", handle_preview, 0 },
	{ "GET", "/daytona/sandbox/{id}/ports/{port}/signed-preview-url", handle_signed, 0 },
	{ "POST", "/daytona/sandbox/{id}/ports/{port}/signed-preview-url/{token}/expire", handle_expire, 0 },
	{ "GET", "/daytona/sandbox/{id}/signing-key", handle_key, 0 },
	{ "POST", "/daytona/sandbox/{id}/signing-key/rotate", handle_rotate, 0 },
	{ 0 },
};
