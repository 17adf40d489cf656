/*
 * One request over libcurl (transport.h). Here, libcurl neither follows redirects nor authenticates: registry.c decides
 * on both, because it knows the credentials.
 */
#include "registry/transport.h"

#include <arpa/inet.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>

#include "net/policy.h"
#include "registry/curl.h"

#define CONNECT_SECONDS 30L
#define SILENT_SECONDS 60L /* with fewer than SILENT_BYTES a second */
#define SILENT_BYTES 16L
#define HEADERS_MAX (64u << 10)

struct exchange {
	const struct curl_library *curl;
	const struct transport_request *request;
	struct transport_reply *reply;
	struct husk_error *err;
	CURL *handle;
	size_t header_bytes;
	bool failed;  /* err says why */
	bool refused; /* a private address */
};

/* ---- addresses ---- */

static bool is_private_6(const struct in6_addr *address)
{
	uint32_t mapped;

	if (IN6_IS_ADDR_V4MAPPED(address)) {
		memcpy(&mapped, &address->s6_addr[12], sizeof(mapped));
		return policy_place(ntohl(mapped)) != PLACE_PUBLIC;
	}
	/* Global unicast is 2000::/3; the rest is loopback, link-local, unique local, multicast. */
	return address->s6_addr[0] >> 5 != 1;
}

static bool is_private(const struct sockaddr *address)
{
	if (address->sa_family == AF_INET)
		return policy_place(ntohl(((const struct sockaddr_in *)address)->sin_addr.s_addr)) != PLACE_PUBLIC;
	return address->sa_family != AF_INET6 || is_private_6(&((const struct sockaddr_in6 *)address)->sin6_addr);
}

static curl_socket_t on_socket(void *data, curlsocktype purpose, struct curl_sockaddr *address)
{
	struct exchange *exchange = data;

	(void)purpose;
	exchange->reply->was_private = is_private(&address->addr);
	exchange->refused = exchange->request->public_only && exchange->reply->was_private;
	if (exchange->refused)
		return CURL_SOCKET_BAD;
	return socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
}

/* ---- headers ---- */

static void keep(char *out, size_t size, const char *value)
{
	if (strlen(value) < size) /* a header that is too long counts as missing */
		snprintf(out, size, "%s", value);
}

static void take_header(struct transport_reply *reply, const char *name, char *value)
{
	int64_t number;

	if (strcasecmp(name, "content-type") == 0) {
		value[strcspn(value, "; \t")] = '\0';
		keep(reply->type, sizeof(reply->type), value);
	} else if (strcasecmp(name, "location") == 0) {
		keep(reply->location, sizeof(reply->location), value);
	} else if (strcasecmp(name, "docker-content-digest") == 0) {
		keep(reply->digest, sizeof(reply->digest), value);
	} else if (strcasecmp(name, "www-authenticate") == 0) {
		if (!reply->challenge[0] || strncasecmp(value, "bearer", 6) == 0)
			keep(reply->challenge, sizeof(reply->challenge), value);
	} else if (strcasecmp(name, "retry-after") == 0) {
		if (str_to_int64(value, 0, INT32_MAX, &number) == 0)
			reply->retry_after = number;
	} else if (strcasecmp(name, "content-range") == 0 && strncasecmp(value, "bytes ", 6) == 0) {
		value[6 + strcspn(value + 6, "-")] = '\0';
		if (str_to_int64(value + 6, 0, INT64_MAX, &number) == 0)
			reply->range_start = number;
	}
}

static void reply_begin(struct transport_reply *reply)
{
	bool was_private = reply->was_private;

	*reply = (struct transport_reply){ .retry_after = -1, .range_start = -1, .was_private = was_private };
}

static size_t on_header(char *bytes, size_t one, size_t size, void *data)
{
	struct exchange *exchange = data;
	cleanup_free char *line = strndup(bytes, size * one);

	exchange->header_bytes += size * one;
	if (!line || exchange->header_bytes > HEADERS_MAX)
		return 0;
	for (size_t length = strlen(line); length && strchr("\r\n \t", line[length - 1]); length--)
		line[length - 1] = '\0';
	if (strncasecmp(line, "HTTP/", 5) == 0) {
		reply_begin(exchange->reply); /* also after "100 Continue" and a proxy's own answer */
		return size * one;
	}
	char *colon = strchr(line, ':');
	if (colon) {
		*colon++ = '\0';
		take_header(exchange->reply, line, colon + strspn(colon, " \t"));
	}
	return size * one;
}

/* ---- bodies ---- */

static void keep_text(struct transport_reply *reply, const char *bytes, size_t size)
{
	size_t used = strlen(reply->text);

	for (size_t i = 0; i < size && used + 1 < sizeof(reply->text); i++)
		reply->text[used++] = bytes[i] >= ' ' && bytes[i] <= '~' ? bytes[i] : ' ';
	reply->text[used] = '\0';
}

static size_t on_body(char *bytes, size_t one, size_t size, void *data)
{
	struct exchange *exchange = data;
	const struct transport_request *request = exchange->request;

	exchange->curl->easy_getinfo(exchange->handle, CURLINFO_RESPONSE_CODE, &exchange->reply->status);
	if (exchange->reply->status != 200 && exchange->reply->status != 206) {
		if (strlen(exchange->reply->text) + 1 >= sizeof(exchange->reply->text))
			return 0; /* enough of it was seen */
		keep_text(exchange->reply, bytes, size * one);
		return size * one;
	}
	if (request->sink(request->data, exchange->reply, bytes, size * one, exchange->err) == 0)
		return size * one;
	exchange->failed = true;
	return 0;
}

static int on_progress(void *data, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
	struct exchange *exchange = data;

	(void)a, (void)b, (void)c, (void)d;
	return exchange->request->stop && exchange->request->stop(exchange->request->data);
}

/* ---- the request ---- */

static struct curl_slist *add_header(const struct curl_library *curl, struct curl_slist *list, const char *name,
				     const char *value)
{
	cleanup_free char *line = value ? str_format("%s: %s", name, value) : NULL;
	struct curl_slist *longer = line ? curl->slist_append(list, line) : NULL;

	return longer ? longer : list;
}

/* The bytes stay the caller's. */
static void set_body(const struct exchange *exchange)
{
	const struct transport_request *request = exchange->request;
	CURLcode (*set)(CURL *, CURLoption, ...) = exchange->curl->easy_setopt;

	set(exchange->handle, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)request->body_size);
	set(exchange->handle, CURLOPT_POSTFIELDS, request->body ? request->body : "");
	set(exchange->handle, CURLOPT_CUSTOMREQUEST, request->method);
}

static void set_up(struct exchange *exchange, struct curl_slist *headers)
{
	const struct transport_request *request = exchange->request;
	CURLcode (*set)(CURL *, CURLoption, ...) = exchange->curl->easy_setopt;
	CURL *handle = exchange->handle;
	char range[32];

	snprintf(range, sizeof(range), "%" PRIu64 "-", request->from);

	set(handle, CURLOPT_URL, request->url);
	set(handle, CURLOPT_PROTOCOLS_STR, "http,https");
	set(handle, CURLOPT_FOLLOWLOCATION, 0L);
	set(handle, CURLOPT_NOSIGNAL, 1L);
	set(handle, CURLOPT_NETRC, (long)CURL_NETRC_IGNORED);
	set(handle, CURLOPT_USERAGENT, "husk");
	set(handle, CURLOPT_HTTPHEADER, headers);
	set(handle, CURLOPT_CONNECTTIMEOUT, CONNECT_SECONDS);
	set(handle, CURLOPT_LOW_SPEED_LIMIT, SILENT_BYTES);
	set(handle, CURLOPT_LOW_SPEED_TIME, SILENT_SECONDS);
	set(handle, CURLOPT_OPENSOCKETFUNCTION, on_socket);
	set(handle, CURLOPT_OPENSOCKETDATA, exchange);
	set(handle, CURLOPT_HEADERFUNCTION, on_header);
	set(handle, CURLOPT_HEADERDATA, exchange);
	set(handle, CURLOPT_WRITEFUNCTION, on_body);
	set(handle, CURLOPT_WRITEDATA, exchange);
	set(handle, CURLOPT_NOPROGRESS, 0L);
	set(handle, CURLOPT_XFERINFOFUNCTION, on_progress);
	set(handle, CURLOPT_XFERINFODATA, exchange);
	set(handle, CURLOPT_BUFFERSIZE, 256L << 10);
	/* A kept connection was not checked against this request's rule. */
	set(handle, CURLOPT_FRESH_CONNECT, request->public_only ? 1L : 0L);
	if (request->form)
		set(handle, CURLOPT_COPYPOSTFIELDS, request->form);
	else if (str_equal(request->method, "HEAD"))
		set(handle, CURLOPT_NOBODY, 1L);
	else if (request->method)
		set_body(exchange);
	if (request->ca)
		set(handle, CURLOPT_CAINFO, request->ca);
	if (request->from)
		set(handle, CURLOPT_RANGE, range);
}

/* The scheme and host, for errors: a path may carry a signature. */
static void origin_of(const char *url, char *out, size_t size)
{
	const char *host = strstr(url, "://");

	snprintf(out, size, "%.*s", (int)MIN(host ? (size_t)(host + 3 - url) + strcspn(host + 3, "/?#") : 0, size - 1),
		 url);
}

static int explain(const struct exchange *exchange, CURLcode code, const char *detail)
{
	char origin[300];

	origin_of(exchange->request->url, origin, sizeof(origin));
	if (exchange->failed)
		return -1;
	if (exchange->refused)
		return husk_fail(exchange->err, HUSK_DENIED,
				 "a registry redirects to %s, which is an address of a private network", origin);
	switch (code) {
	case CURLE_ABORTED_BY_CALLBACK:
		return husk_fail(exchange->err, HUSK_GONE, "interrupted");
	case CURLE_PEER_FAILED_VERIFICATION:
	case CURLE_SSL_CACERT_BADFILE:
	case CURLE_SSL_CONNECT_ERROR:
		return husk_fail(exchange->err, HUSK_DENIED,
				 "%s: TLS failed (%s); a registry of your own needs its certificate in "
				 "/etc/docker/certs.d/HOST/ca.crt, or its host in HUSK_INSECURE_REGISTRIES",
				 origin, detail);
	case CURLE_OUT_OF_MEMORY:
		return husk_fail_memory(exchange->err);
	default:
		return husk_fail(exchange->err, HUSK_UNAVAILABLE, "%s: %s", origin, detail);
	}
}

/* ---- the connections of a thread ---- */

static pthread_key_t kept;
static pthread_once_t kept_once = PTHREAD_ONCE_INIT;

static void forget_handle(void *handle)
{
	const struct curl_library *curl = curl_load(NULL);

	if (curl)
		curl->easy_cleanup(handle);
}

static void make_key(void)
{
	pthread_key_create(&kept, forget_handle);
}

/* The handle of this thread, with its open connections and no other state. */
static CURL *take_handle(const struct curl_library *curl)
{
	pthread_once(&kept_once, make_key);
	CURL *handle = pthread_getspecific(kept);

	if (handle) {
		curl->easy_reset(handle);
		return handle;
	}
	handle = curl->easy_init();
	if (handle && pthread_setspecific(kept, handle) != 0) {
		curl->easy_cleanup(handle);
		return NULL;
	}
	return handle;
}

/* Was the peer's address private? A kept connection is not seen by on_socket. */
static void note_peer(struct exchange *exchange)
{
	const char *text = NULL;
	struct sockaddr_in four = { .sin_family = AF_INET };
	struct sockaddr_in6 six = { .sin6_family = AF_INET6 };

	exchange->curl->easy_getinfo(exchange->handle, CURLINFO_PRIMARY_IP, &text);
	if (!text || !*text)
		return;
	if (inet_pton(AF_INET, text, &four.sin_addr) == 1)
		exchange->reply->was_private = is_private((const struct sockaddr *)&four);
	else if (inet_pton(AF_INET6, text, &six.sin6_addr) == 1)
		exchange->reply->was_private = is_private((const struct sockaddr *)&six);
}

int transport_perform(const struct transport_request *request, struct transport_reply *reply, struct husk_error *err)
{
	const struct curl_library *curl = curl_load(err);
	struct exchange exchange = { .curl = curl, .request = request, .reply = reply, .err = err };
	char detail[CURL_ERROR_SIZE] = "the connection failed";

	if (!curl)
		return -1;
	exchange.handle = take_handle(curl);
	if (!exchange.handle)
		return husk_fail_memory(err);
	reply->was_private = false;
	reply_begin(reply);
	struct curl_slist *headers = add_header(curl, NULL, "Accept", request->accept);
	headers = add_header(curl, headers, "Authorization", request->authorization);
	headers = add_header(curl, headers, "Content-Type", request->type);
	set_up(&exchange, headers);
	curl->easy_setopt(exchange.handle, CURLOPT_ERRORBUFFER, detail);
	CURLcode code = curl->easy_perform(exchange.handle);
	curl->easy_getinfo(exchange.handle, CURLINFO_RESPONSE_CODE, &reply->status);
	note_peer(&exchange);
	bool enough = code == CURLE_WRITE_ERROR && !exchange.failed && reply->text[0];
	int result = code == CURLE_OK || enough ? 0 : explain(&exchange, code, detail);
	curl->easy_reset(exchange.handle); /* nothing in it points at what is freed now */
	curl->slist_free_all(headers);
	return result;
}

/* ---- URLs ---- */

char *transport_escape(const char *text, struct husk_error *err)
{
	const struct curl_library *curl = curl_load(err);
	char *escaped = curl ? curl->easy_escape(NULL, text, 0) : NULL;
	char *copy = escaped ? strdup(escaped) : NULL;

	if (escaped)
		curl->release(escaped);
	if (curl && !copy)
		husk_fail_memory(err);
	return copy;
}

char *transport_resolve(const char *url, const char *location, struct husk_error *err)
{
	const struct curl_library *curl = curl_load(err);
	CURLU *parsed = curl ? curl->url() : NULL;
	char *whole = NULL, *copy = NULL;

	if (!curl)
		return NULL;
	if (parsed && curl->url_set(parsed, CURLUPART_URL, url, 0) == CURLUE_OK &&
	    curl->url_set(parsed, CURLUPART_URL, location, 0) == CURLUE_OK)
		curl->url_get(parsed, CURLUPART_URL, &whole, 0);
	if (whole && (str_starts(whole, "https://") || str_starts(whole, "http://")))
		copy = strdup(whole);
	else
		husk_fail(err, HUSK_INVALID, "the registry redirects to '%.80s', which is not http or https", location);
	curl->release(whole);
	curl->url_cleanup(parsed);
	return copy;
}

/* scheme://host:port in one form: lower case, with the default port added. */
static char *origin_text(const struct curl_library *curl, const char *url)
{
	CURLU *parsed = curl->url();
	char *scheme = NULL, *host = NULL, *port = NULL, *out = NULL;

	if (parsed && curl->url_set(parsed, CURLUPART_URL, url, 0) == CURLUE_OK &&
	    curl->url_get(parsed, CURLUPART_SCHEME, &scheme, 0) == CURLUE_OK &&
	    curl->url_get(parsed, CURLUPART_HOST, &host, 0) == CURLUE_OK &&
	    curl->url_get(parsed, CURLUPART_PORT, &port, CURLU_DEFAULT_PORT) == CURLUE_OK)
		out = str_format("%s://%s:%s", scheme, host, port);
	curl->release(scheme);
	curl->release(host);
	curl->release(port);
	curl->url_cleanup(parsed);
	return out;
}

bool transport_same_origin(const char *a, const char *b)
{
	const struct curl_library *curl = curl_load(NULL);
	cleanup_free char *first = curl ? origin_text(curl, a) : NULL;
	cleanup_free char *second = curl ? origin_text(curl, b) : NULL;

	return first && second && strcasecmp(first, second) == 0;
}
