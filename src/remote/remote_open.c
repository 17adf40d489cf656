/*
 * Parses the address of a server: "unix:/run/husk/huskd.sock", "http://127.0.0.1:7820", "https://husk.example". Opening
 * a handle connects to nothing; each request makes a connection of its own, as each local call does. The token is kept
 * as long as the handle, is sent to this server only, and is never shown.
 */
#include "base/thread.h"
#include "remote/remote_http.h"

#define TOKEN_MAX 1024u
#define DRAIN_MS 3000 /* for the last bytes of a tunnel that was just closed */

bool remote_is_url(const char *text)
{
	return text && (str_starts(text, "unix:") || strstr(text, "://"));
}

static int fail_url(const char *url, struct husk_error *err)
{
	return husk_fail_field(
		err, "host",
		"'%.200s' is not an address of a server; use unix:/path/to/huskd.sock, http://HOST:PORT or "
		"https://HOST",
		url);
}

/* "host", "host:port", "[v6]:port", followed by nothing except a slash. */
static int split_authority(struct remote *remote, const char *text, const char *port, struct husk_error *err)
{
	size_t size = strcspn(text, "/?#");
	bool v6 = text[0] == '[';
	const char *end = v6 ? memchr(text, ']', size) : memchr(text, ':', size);
	const char *start = text + v6;
	int64_t number;

	if (!end)
		end = v6 ? start : text + size;
	const char *after = v6 && *end == ']' ? end + 1 : end;
	if (end == start || (text[size] && !str_equal(text + size, "/")) || memchr(text, '@', size))
		return fail_url(remote->url, err);
	cleanup_free char *given =
		after < text + size ? strndup(after + 1, (size_t)(text + size - after - 1)) : strdup(port);
	if (given && ((after < text + size && *after != ':') || str_to_int64(given, 1, 65535, &number) < 0))
		return fail_url(remote->url, err);
	remote->host = strndup(start, (size_t)(end - start));
	remote->port = steal_pointer(given);
	return remote->host && remote->port ? 0 : husk_fail_memory(err);
}

static int parse_url(struct remote *remote, const char *ca_file, struct husk_error *err)
{
	const char *url = remote->url;

	if (str_starts(url, "unix:")) {
		const char *path = url + strlen("unix:");
		if (str_starts(path, "//"))
			path += 2;
		if (path[0] != '/')
			return fail_url(url, err);
		remote->path = strdup(path);
		return remote->path ? 0 : husk_fail_memory(err);
	}
	if (str_starts(url, "http://"))
		return split_authority(remote, url + strlen("http://"), "80", err);
	if (!str_starts(url, "https://"))
		return fail_url(url, err);
	if (split_authority(remote, url + strlen("https://"), "443", err) < 0)
		return -1;
	return tls_setup(remote, ca_file, err);
}

static int take_token(struct remote *remote, const char *token, struct husk_error *err)
{
	if (!token || !*token)
		return 0;
	for (const char *c = token; *c; c++)
		if (*c <= 0x20 || *c >= 0x7f || c - token > (ptrdiff_t)TOKEN_MAX)
			return husk_fail_field(err, "token",
					       "the token is not one that husk token create made; check HUSK_TOKEN");
	remote->token = strdup(token);
	return remote->token ? 0 : husk_fail_memory(err);
}

int remote_open(const struct husk_host *host, struct remote **out, struct husk_error *err)
{
	struct remote *remote = calloc(1, sizeof(*remote));

	if (!remote)
		return husk_fail_memory(err);
	pthread_mutex_init(&remote->lock, NULL);
	cond_open(&remote->changed);
	remote->url = strdup(host->url);
	if (!remote->url || parse_url(remote, host->ca_file, err) < 0 || take_token(remote, host->token, err) < 0) {
		if (!remote->url)
			husk_fail_memory(err);
		remote_close(remote);
		return -1;
	}
	*out = remote;
	return 0;
}

void remote_close(struct remote *remote)
{
	int64_t deadline = time_monotonic_ms() + DRAIN_MS;

	if (!remote)
		return;
	pthread_mutex_lock(&remote->lock);
	while (remote->threads && cond_wait_until(&remote->changed, &remote->lock, deadline) != ETIMEDOUT)
		;
	bool quiet = remote->threads == 0;
	pthread_mutex_unlock(&remote->lock);
	if (!quiet) /* a socket of husk_dial is still open: its thread continues, so its data is not freed */
		return;
	SSL_CTX_free(remote->tls);
	pthread_mutex_destroy(&remote->lock);
	pthread_cond_destroy(&remote->changed);
	free(remote->url);
	free(remote->path);
	free(remote->host);
	free(remote->port);
	str_wipe(remote->token);
	free(remote);
}

const char *remote_url(const struct remote *remote)
{
	return remote->url;
}

int remote_refuse(const struct remote *remote, const char *what, const char *instead, struct husk_error *err)
{
	return husk_fail(err, HUSK_UNAVAILABLE, "%s cannot be done over %s; %s", what, remote->url, instead);
}
