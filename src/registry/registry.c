/*
 * Requests to a registry (registry.h). The answer to a request decides the next step:
 *
 *     200, 206, 416        the caller's
 *     401                  the token is fetched (once), or the login is shown
 *     301 302 303 307 308  http or https alone, without credentials elsewhere, never from a public to a private address
 *     429, 5xx             again after Retry-After, a bounded number of times
 */
#include "registry/registry.h"

#include <pthread.h>
#include <time.h>

#include "registry/challenge.h"
#include "registry/credentials.h"

#define REDIRECTS_MAX 5
#define BUSY_MAX 5
#define BUSY_SECONDS_MAX 60
#define TOKEN_ANSWER_MAX (256u << 10)
#define HUB_ENDPOINT "https://registry-1.docker.io"

struct registry {
	const struct reference *reference;
	bool (*stop)(void *data);
	void *data;
	char *endpoint; /* "https://registry.example" */
	char *ca;       /* NULL: the host's */
	struct credentials credentials;
	bool pushes;
	pthread_mutex_t lock; /* of `authorization` */
	char *authorization;  /* header; NULL until the registry asks */
};

/* ---- opening ---- */

/* Plain HTTP for registries on this host, and for those that the user listed. */
static char *choose_endpoint(const char *host)
{
	bool plain = reference_is_loopback(host) || reference_listed(getenv("HUSK_INSECURE_REGISTRIES"), host);

	if (str_equal(host, REFERENCE_REGISTRY))
		return strdup(HUB_ENDPOINT);
	return str_format("%s://%s", plain ? "http" : "https", host);
}

int registry_open(const struct reference *reference, bool (*stop)(void *data), void *data, struct registry **out,
		  struct husk_error *err)
{
	cleanup_registry struct registry *registry = calloc(1, sizeof(*registry));
	cleanup_free char *ca = str_format("/etc/docker/certs.d/%s/ca.crt", reference->host);

	if (!registry || !ca)
		return husk_fail_memory(err);
	pthread_mutex_init(&registry->lock, NULL);
	registry->reference = reference;
	registry->stop = stop;
	registry->data = data;
	registry->endpoint = choose_endpoint(reference->host);
	if (!registry->endpoint)
		return husk_fail_memory(err);
	if (access(ca, R_OK) == 0)
		registry->ca = steal_pointer(ca);
	if (credentials_find(reference->host, &registry->credentials, err) < 0)
		return -1;
	*out = steal_pointer(registry);
	return 0;
}

void registry_close(struct registry *registry)
{
	if (!registry)
		return;
	credentials_free(&registry->credentials);
	free(registry->authorization);
	free(registry->endpoint);
	free(registry->ca);
	pthread_mutex_destroy(&registry->lock);
	free(registry);
}

int registry_wait(struct registry *registry, int64_t ms, struct husk_error *err)
{
	for (; ms > 0; ms -= 100) {
		const struct timespec step = { .tv_nsec = (long)MIN(ms, 100) * 1000000 };
		if (registry->stop && registry->stop(registry->data))
			return husk_fail(err, HUSK_GONE, "interrupted");
		nanosleep(&step, NULL);
	}
	return 0;
}

/* ---- tokens ---- */

struct document {
	struct buf text;
	size_t limit;
	const char *whose; /* for errors: "the registry", "the registry's token server" */
};

static int take_document(void *data, const struct transport_reply *reply, const char *bytes, size_t size,
			 struct husk_error *err)
{
	struct document *document = data;

	(void)reply;
	if (size > document->limit - document->text.size)
		return husk_fail(err, HUSK_PROTOCOL, "%s answers with more than %zu bytes", document->whose,
				 document->limit);
	return buf_append(&document->text, bytes, size) < 0 ? husk_fail_memory(err) : 0;
}

/* service=…&scope=…, and the identity token if there is one. */
static char *token_query(const struct registry *registry, const struct challenge *challenge, struct husk_error *err)
{
	const char *repository = registry->reference->repository; /* NULL: only the login is checked */
	cleanup_free char *wanted =
		repository ? str_format("repository:%s:pull%s", repository, registry->pushes ? ",push" : "")
			   : strdup("");
	cleanup_free char *service = transport_escape(challenge->service, err);
	cleanup_free char *scope = service && wanted ? transport_escape(wanted, err) : NULL;
	cleanup_free char *token = NULL;

	if (!scope)
		return NULL;
	if (!registry->credentials.is_token)
		return str_format("service=%s%s%s", service, repository ? "&scope=" : "", scope);
	token = transport_escape(registry->credentials.secret, err);
	return token ? str_format("grant_type=refresh_token&client_id=husk&service=%s%s%s&refresh_token=%s", service,
				  repository ? "&scope=" : "", scope, token)
		     : NULL;
}

static int fail_login(const struct registry *registry, const char *text, struct husk_error *err)
{
	const char *host = registry->reference->host;

	if (!registry->reference->repository)
		return husk_fail(err, HUSK_DENIED, "%s refuses this login%s%.120s", host, *text ? ": " : "", text);
	if (registry->credentials.secret)
		return husk_fail(err, HUSK_DENIED,
				 "%s refuses the login of docker's config.json; log in again (husk login %s)%s%.120s",
				 host, host, *text ? ": " : "", text);
	return husk_fail(err, HUSK_DENIED,
			 "%s has no public image '%s'; if the image is private, log in first (husk login %s)", host,
			 registry->reference->repository, host);
}

/* The header's value from the answer of a token server. */
static char *read_token(const struct registry *registry, const struct transport_reply *reply, const struct buf *text,
			struct husk_error *err)
{
	cleanup_free char *token = reply->status == 200 && text->data ? challenge_token(text->data) : NULL;
	char *header = token ? str_format("Bearer %s", token) : NULL;

	if (header)
		return header;
	if (reply->status == 200)
		husk_fail(err, HUSK_PROTOCOL, "the token server of %s gives no token", registry->reference->host);
	else if (reply->status == 429 || reply->status >= 500)
		husk_fail(err, HUSK_UNAVAILABLE, "the token server of %s answers %ld; try again later",
			  registry->reference->host, reply->status);
	else
		fail_login(registry, reply->text, err);
	return NULL;
}

static char *fetch_token(struct registry *registry, const struct challenge *challenge, bool was_private,
			 struct husk_error *err)
{
	const struct credentials *who = &registry->credentials;
	cleanup_free char *query = token_query(registry, challenge, err), *url = NULL, *basic = NULL;
	struct document answer = { .limit = TOKEN_ANSWER_MAX, .whose = "the registry's token server" };
	struct transport_reply reply;

	if (!query)
		return NULL;
	bool plain = str_starts(challenge->realm, "http://") && str_starts(registry->endpoint, "http://");
	if (!plain && !str_starts(challenge->realm, "https://")) {
		husk_fail(err, HUSK_DENIED, "%s sends logins to '%.120s', which is not https",
			  registry->reference->host, challenge->realm);
		return NULL;
	}
	url = who->is_token ? strdup(challenge->realm)
			    : str_format("%s%c%s", challenge->realm, strchr(challenge->realm, '?') ? '&' : '?', query);
	basic = who->secret && !who->is_token ? credentials_basic(who) : NULL;
	const struct transport_request request = {
		.url = url,
		.authorization = basic,
		.form = who->is_token ? query : NULL,
		.ca = transport_same_origin(challenge->realm, registry->endpoint) ? registry->ca : NULL,
		.public_only = !was_private,
		.sink = take_document,
		.data = &answer,
	};
	char *header = NULL;
	if (!url)
		husk_fail_memory(err);
	else if (transport_perform(&request, &reply, err) == 0)
		header = read_token(registry, &reply, &answer.text, err);
	buf_free(&answer.text);
	return header;
}

/* Chooses the authorization for a registry that requires one; `shown` is the last one, which was not enough. */
static int authorize(struct registry *registry, const struct transport_reply *reply, const char *shown,
		     struct husk_error *err)
{
	struct challenge challenge;
	char *header = NULL;

	challenge_parse(reply->challenge, &challenge);
	pthread_mutex_lock(&registry->lock);
	bool renewed = registry->authorization && !str_equal(registry->authorization, shown);
	if (renewed) /* by another thread meanwhile */
		;
	else if (challenge.scheme == CHALLENGE_BEARER)
		header = fetch_token(registry, &challenge, reply->was_private, err);
	else if (challenge.scheme == CHALLENGE_BASIC && registry->credentials.secret && !shown)
		header = credentials_basic(&registry->credentials);
	else
		fail_login(registry, "", err);
	if (header) {
		free(registry->authorization);
		registry->authorization = header;
	}
	pthread_mutex_unlock(&registry->lock);
	return renewed || header ? 0 : -1;
}

/* ---- requests ---- */

struct hop {
	char *url;
	char *shown; /* the authorization that was sent */
	bool ours;   /* to the registry itself, not to the target of a redirect */
	bool public_only;
};

static void hop_free(struct hop *hop)
{
	free(hop->url);
	free(hop->shown);
}

static char *current_authorization(struct registry *registry)
{
	pthread_mutex_lock(&registry->lock);
	char *copy = registry->authorization ? strdup(registry->authorization) : NULL;
	pthread_mutex_unlock(&registry->lock);
	return copy;
}

/* The data of the caller's sink, and the registry's own for `stop`. */
struct relay {
	struct registry *registry;
	const struct registry_request *request;
};

static int relay_sink(void *data, const struct transport_reply *reply, const char *bytes, size_t size,
		      struct husk_error *err)
{
	const struct relay *relay = data;

	if (!relay->request->sink)
		return 0;
	return relay->request->sink(relay->request->data, reply, bytes, size, err);
}

static bool relay_stop(void *data)
{
	const struct relay *relay = data;

	return relay->registry->stop && relay->registry->stop(relay->registry->data);
}

static int perform(struct registry *registry, const struct registry_request *request, struct hop *hop,
		   struct transport_reply *reply, struct husk_error *err)
{
	struct relay relay = { registry, request };

	hop->ours = transport_same_origin(hop->url, registry->endpoint);
	free(hop->shown);
	hop->shown = hop->ours ? current_authorization(registry) : NULL;
	const struct transport_request one = {
		.url = hop->url,
		.accept = request->accept,
		.authorization = hop->shown,
		.method = request->method,
		.body = request->body,
		.body_size = request->body_size,
		.type = request->type,
		.ca = hop->ours ? registry->ca : NULL,
		.from = request->from,
		.public_only = hop->public_only,
		.sink = relay_sink,
		.stop = relay_stop,
		.data = &relay,
	};
	return transport_perform(&one, reply, err);
}

static int redirect(const struct registry *registry, struct hop *hop, const struct transport_reply *reply,
		    struct husk_error *err)
{
	char *next = transport_resolve(hop->url, reply->location, err);

	if (!next)
		return -1;
	if (str_starts(registry->endpoint, "https://") && !str_starts(next, "https://")) {
		husk_fail(err, HUSK_DENIED, "%s redirects from https to http", registry->reference->host);
		free(next);
		return -1;
	}
	hop->public_only = hop->public_only || !reply->was_private;
	free(hop->url);
	hop->url = next;
	return 0;
}

static int wait_busy(struct registry *registry, const struct transport_reply *reply, int attempt,
		     struct husk_error *err)
{
	int64_t seconds = reply->retry_after >= 0 ? reply->retry_after : INT64_C(1) << attempt;
	const char *host = registry->reference->host;

	if (attempt == BUSY_MAX || seconds > BUSY_SECONDS_MAX)
		return husk_fail(err, HUSK_UNAVAILABLE, "%s answers %ld%s; try again later%s", host, reply->status,
				 reply->status == 429 ? ": too many requests" : "",
				 reply->retry_after > BUSY_SECONDS_MAX ? " (it asks for more than a minute)" : "");
	return registry_wait(registry, MAX(seconds * 1000, 200), err);
}

static int fail_status(const struct registry *registry, const struct transport_reply *reply, struct husk_error *err)
{
	cleanup_free char *name = registry->reference->repository ? reference_name(registry->reference) : NULL;

	if (reply->status == 404 && name)
		return husk_fail(err, HUSK_NOT_FOUND, "image '%s' is not in that registry; check its name and tag",
				 name);
	if (reply->status == 403)
		return fail_login(registry, reply->text, err);
	return husk_fail(err, HUSK_PROTOCOL, "%s answers %ld (%.200s)", registry->reference->host, reply->status,
			 reply->text);
}

int registry_get(struct registry *registry, const struct registry_request *request, struct transport_reply *reply,
		 struct husk_error *err)
{
	const char *repository = registry->reference->repository;
	cleanup(hop_free) struct hop hop = { .url = request->url ? strdup(request->url)
								 : str_format("%s/v2/%s%s%s", registry->endpoint,
									      repository ? repository : "",
									      repository ? "/" : "", request->path) };
	bool sends = request->method && !str_equal(request->method, "HEAD");
	int redirects = 0, busy = 0, logins = 0;

	while (hop.url) {
		if (perform(registry, request, &hop, reply, err) < 0)
			return -1;
		long status = reply->status;
		if (status == 200 || status == 206 || status == 416 ||
		    (sends && (status == 201 || status == 202 || status == 204)))
			return 0;
		bool moved = (status == 301 || status == 302 || status == 303 || status == 307 || status == 308) &&
			     reply->location[0];
		int result;
		/* The target of a redirect can neither ask for a login nor get one. */
		if (status == 401 && hop.ours && logins < 2)
			logins++, result = authorize(registry, reply, hop.shown, err);
		else if (status == 401)
			result = fail_login(registry, reply->text, err);
		else if (moved && redirects++ < REDIRECTS_MAX)
			result = redirect(registry, &hop, reply, err);
		else if (status == 429 || status >= 500)
			result = wait_busy(registry, reply, busy++, err);
		else
			result = moved ? husk_fail(err, HUSK_PROTOCOL, "%s redirects in circles",
						   registry->reference->host)
				       : fail_status(registry, reply, err);
		if (result < 0)
			return -1;
	}
	return husk_fail_memory(err);
}

/* ---- sending ---- */

void registry_for_push(struct registry *registry)
{
	registry->pushes = true;
}

int registry_has(struct registry *registry, const char *digest, struct husk_error *err)
{
	cleanup_free char *path = str_format("blobs/sha256:%s", digest);
	cleanup_free struct transport_reply *reply = calloc(1, sizeof(*reply));
	const struct registry_request request = { .path = path, .method = "HEAD" };
	struct husk_error why = { 0 };

	if (!path || !reply)
		return husk_fail_memory(err);
	if (registry_get(registry, &request, reply, &why) == 0)
		return 1;
	return why.code == HUSK_NOT_FOUND ? 0 : husk_fail(err, why.code, "%s", why.message);
}

/* Where the registry wants the bytes: its answer to a POST, with the digest added. */
static char *upload_place(struct registry *registry, const char *digest, struct husk_error *err)
{
	cleanup_free struct transport_reply *reply = calloc(1, sizeof(*reply));
	cleanup_free char *base =
		str_format("%s/v2/%s/blobs/uploads/", registry->endpoint, registry->reference->repository);
	const struct registry_request request = { .url = base, .method = "POST" };

	if (!reply || !base) {
		husk_fail_memory(err);
		return NULL;
	}
	if (registry_get(registry, &request, reply, err) < 0)
		return NULL;
	if (!reply->location[0]) {
		husk_fail(err, HUSK_PROTOCOL, "%s names no place for an upload", registry->reference->host);
		return NULL;
	}
	cleanup_free char *place = transport_resolve(base, reply->location, err);
	if (!place)
		return NULL;
	if (str_starts(registry->endpoint, "https://") && !str_starts(place, "https://")) {
		husk_fail(err, HUSK_DENIED, "%s wants an upload over http", registry->reference->host);
		return NULL;
	}
	char *whole = str_format("%s%cdigest=sha256:%s", place, strchr(place, '?') ? '&' : '?', digest);
	if (!whole)
		husk_fail_memory(err);
	return whole;
}

int registry_put_blob(struct registry *registry, const char *digest, const void *bytes, size_t size,
		      struct husk_error *err)
{
	cleanup_free char *place = upload_place(registry, digest, err);
	cleanup_free struct transport_reply *reply = calloc(1, sizeof(*reply));
	const struct registry_request request = {
		.url = place, .method = "PUT", .body = bytes, .body_size = size, .type = "application/octet-stream"
	};

	if (!place || !reply)
		return place ? husk_fail_memory(err) : -1;
	return registry_get(registry, &request, reply, err);
}

int registry_put_manifest(struct registry *registry, const char *type, const char *text, struct husk_error *err)
{
	const struct reference *reference = registry->reference;
	cleanup_free char *path = str_format("manifests/%s", reference->tag ? reference->tag : reference->digest);
	cleanup_free struct transport_reply *reply = calloc(1, sizeof(*reply));
	const struct registry_request request = {
		.path = path, .method = "PUT", .body = text, .body_size = strlen(text), .type = type
	};

	if (!path || !reply)
		return husk_fail_memory(err);
	return registry_get(registry, &request, reply, err);
}

char *registry_get_text(struct registry *registry, const char *path, const char *accept, size_t most,
			struct transport_reply *reply, struct husk_error *err)
{
	struct document document = { .limit = most, .whose = "the registry" };
	const struct registry_request request = {
		.path = path, .accept = accept, .sink = take_document, .data = &document
	};

	if (registry_get(registry, &request, reply, err) < 0) {
		buf_free(&document.text);
		return NULL;
	}
	char *text = buf_steal(&document.text);
	if (!text)
		husk_fail_memory(err);
	return text;
}

static int drop_bytes(void *data, const struct transport_reply *reply, const char *bytes, size_t size,
		      struct husk_error *err)
{
	(void)data, (void)reply, (void)bytes, (void)size, (void)err;
	return 0;
}

int registry_login(const char *host, const struct credentials *credentials, struct husk_error *err)
{
	const struct reference nowhere = { .host = (char *)host };
	const struct registry_request request = { .path = "", .sink = drop_bytes };
	cleanup_registry struct registry *registry = NULL;
	struct transport_reply reply;

	if (registry_open(&nowhere, NULL, NULL, &registry, err) < 0)
		return -1;
	credentials_free(&registry->credentials);
	registry->credentials.user = strdup(credentials->user);
	registry->credentials.secret = strdup(credentials->secret);
	registry->credentials.is_token = credentials->is_token;
	if (!registry->credentials.user || !registry->credentials.secret)
		return husk_fail_memory(err);
	return registry_get(registry, &request, &reply, err);
}
