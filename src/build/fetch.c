/*
 * ADD of a URL: downloads a file into an unnamed file of the host. The connection is made by a sandbox of the build
 * (guest/connect.c), so that its egress policy decides, by the same leash as for RUN, what can be reached: names,
 * private addresses and the host's own, after every redirect too. HTTP and TLS run here, over that connection. So no
 * program of an image is needed, and the sandbox cannot change what arrives over TLS. This process itself never connects
 * to the network.
 */
#include <time.h>

#include <openssl/evp.h>

#include "build/download.h"
#include "build/work.h"
#include "store/template.h"

#define FILE_BYTES_MAX (UINT64_C(4) << 30)
#define REDIRECTS_MAX 5
#define TRIES_MAX 3
#define WAIT_MS 1000
#define CONNECT TEMPLATE_GUEST "/connect"
#define SOCKET "/tmp/connect"

struct fetch {
	struct build *build;
	const char *sandbox;
	int fd;
	uint64_t size;
	int64_t deadline_ms;
	int64_t modified;
	EVP_MD_CTX *sum;
};

/* ---- the connection ---- */

/* Waits for "ready". If the program ends instead, its complaint is the error. */
static int wait_ready(struct husk_process *process, const char *host, struct husk_error *err)
{
	struct husk_process_event event = { 0 };
	cleanup_buf struct buf said = { 0 };

	while (event.kind != HUSK_EXIT) {
		if (husk_process_next(process, &event, err) < 0)
			return -1;
		if (event.kind == HUSK_STDOUT)
			return 0;
		if (event.kind == HUSK_STDERR && said.size < 200 && buf_append(&said, event.data, event.size) < 0)
			return husk_fail_memory(err);
	}
	size_t size = said.size ? strcspn(said.data, "\n") : 0;
	return husk_fail(err, HUSK_DENIED, "'%.120s' cannot be reached (%.*s); --allow %.120s lets the build reach it",
			 host, (int)MIN(size, (size_t)200), said.size ? said.data : "", host);
}

static int dial(struct fetch *fetch, const struct url *url, struct husk_error *err)
{
	char number[8];
	static const char program[] = CONNECT;
	const char *argv[] = { program, url->host, number, SOCKET, NULL };
	const struct husk_exec_options options = { .argv = argv, .user = "root", .cwd = "/", .timeout_ms = 3600000 };
	struct husk_process *process = NULL;

	snprintf(number, sizeof(number), "%u", url->port);
	if (husk_exec(fetch->build->husk, fetch->sandbox, &options, &process, NULL, err) < 0)
		return -1;
	int fd = wait_ready(process, url->host, err);
	if (fd == 0)
		fd = husk_dial_unix(fetch->build->husk, fetch->sandbox, SOCKET, err);
	husk_process_free(process); /* it goes on until the connection ends */
	return fd;
}

/* ---- one request ---- */

static int stop(void *data, struct husk_error *err)
{
	const struct fetch *fetch = data;

	if (time_monotonic_ms() > fetch->deadline_ms)
		return husk_fail(err, HUSK_TIMEOUT, "the download did not end in time (--timeout)");
	return build_stopped(fetch->build, err) ? -1 : 0;
}

static int take(void *data, const char *bytes, size_t size, struct husk_error *err)
{
	struct fetch *fetch = data;

	fetch->size += size;
	if (fetch->size > FILE_BYTES_MAX)
		return husk_fail(err, HUSK_LIMIT, "the file is larger than %llu bytes",
				 (unsigned long long)FILE_BYTES_MAX);
	if (write_full(fetch->fd, bytes, size) < 0)
		return husk_fail_errno(err, "cannot keep the file");
	return EVP_DigestUpdate(fetch->sum, bytes, size) == 1 ? 0 : husk_fail_memory(err);
}

static int begin(struct fetch *fetch, struct husk_error *err)
{
	fetch->size = 0;
	if (ftruncate(fetch->fd, 0) < 0 || lseek(fetch->fd, 0, SEEK_SET) < 0)
		return husk_fail_errno(err, "cannot keep the file");
	return EVP_DigestInit_ex(fetch->sum, EVP_sha256(), NULL) == 1 ? 0 : husk_fail_memory(err);
}

/* "Sun, 06 Nov 1994 08:49:37 GMT"; 0: none, or another form. */
static int64_t parse_date(const char *text)
{
	struct tm parts = { 0 };
	const char *end = text ? strptime(text, "%a, %d %b %Y %H:%M:%S GMT", &parts) : NULL;
	time_t at = end && !*end ? timegm(&parts) : 0;

	return MAX(at, 0);
}

/* One answer. 1: it is a redirect, and *next is its URL, which the caller frees. */
static int ask(struct fetch *fetch, const struct url *url, char **next, struct husk_error *err)
{
	struct http1_head head = { 0 };
	char said[200];
	cleanup_close int fd = begin(fetch, err) < 0 ? -1 : dial(fetch, url, err);
	const struct download download = { .url = url, .fd = fd, .sink = take, .stop = stop, .data = fetch };

	if (fd < 0 || download_run(&download, &head, said, sizeof(said), err) < 0)
		return -1;
	unsigned status = head.status;
	const char *location = http1_head_find(&head, "Location");
	bool redirect = location && (status == 301 || status == 302 || status == 303 || status == 307 || status == 308);
	if (redirect)
		*next = url_resolve(url, location);
	fetch->modified = parse_date(http1_head_find(&head, "Last-Modified"));
	http1_head_free(&head);
	if (redirect)
		return *next ? 1 : husk_fail_memory(err);
	if (status == 200)
		return 0;
	return husk_fail(err, status == 429 || status >= 500 ? HUSK_UNAVAILABLE : HUSK_INVALID,
			 "the server answers %u%s%s", status, *said ? ": " : "", said);
}

/* Follows redirects, each over a new connection of the sandbox. */
static int follow(struct fetch *fetch, const char *text, struct husk_error *err)
{
	cleanup(url_free) struct url url = { 0 };
	int result = url_parse(text, &url, err) < 0 ? -1 : 1;

	for (int hops = 0; result == 1; hops++) {
		cleanup_free char *next = NULL;
		struct url target = { 0 };
		result = ask(fetch, &url, &next, err);
		if (result != 1)
			break;
		if (hops == REDIRECTS_MAX)
			return husk_fail(err, HUSK_INVALID, "more than %d redirects", REDIRECTS_MAX);
		if (url_parse(next, &target, err) < 0)
			return husk_wrap(err, "the server redirects");
		bool worse = url.tls && !target.tls;
		url_free(&url);
		url = target;
		if (worse)
			return husk_fail(err, HUSK_DENIED, "the server redirects from https to http");
	}
	return result;
}

/* A failure that may pass is tried again. */
static int follow_again(struct fetch *fetch, const char *url, struct husk_error *err)
{
	struct husk_error why = { 0 };

	for (int tries = 1; follow(fetch, url, &why) < 0; tries++) {
		if (why.code != HUSK_UNAVAILABLE || tries == TRIES_MAX)
			return husk_fail(err, why.code, "%s%s",
					 why.code == HUSK_GONE ? "" : "cannot download: ", why.message);
		for (int64_t end = time_monotonic_ms() + WAIT_MS * tries; time_monotonic_ms() < end; usleep(100000))
			if (build_stopped(fetch->build, err))
				return -1;
	}
	return 0;
}

/* ---- the whole ---- */

static int fetch_through(struct fetch *fetch, struct plan_download *out, struct husk_error *err)
{
	unsigned char bytes[EVP_MAX_MD_SIZE];
	unsigned size = 0;

	if (!fetch->sum)
		return husk_fail_memory(err);
	if (follow_again(fetch, out->url, err) < 0)
		return -1;
	if (EVP_DigestFinal_ex(fetch->sum, bytes, &size) != 1)
		return husk_fail_memory(err);
	for (unsigned i = 0; i < size; i++)
		snprintf(out->digest + 2 * i, 3, "%02x", bytes[i]);
	out->modified = fetch->modified;
	return 0;
}

int step_fetch(void *data, struct plan_download *out, struct husk_error *err)
{
	struct build *build = data;
	cleanup_close int fd = build_scratch(build, err);
	cleanup_free char *sandbox = NULL;
	int64_t limit = build->options->timeout_ms ? build->options->timeout_ms : 3600000;
	struct plan_base empty = { 0 };

	if (fd < 0 || build_stopped(build, err))
		return -1;
	build_note(build, "downloading %.300s", out->url);
	int result = base_resolve(build, "scratch", &empty, err);
	if (result == 0)
		result = build_sandbox(build, empty.template, NULL, &sandbox, err);
	plan_base_free(&empty);
	if (result < 0)
		return -1;
	struct fetch fetch = { .build = build,
			       .sandbox = sandbox,
			       .fd = fd,
			       .deadline_ms = time_monotonic_ms() + limit,
			       .sum = EVP_MD_CTX_new() };
	result = fetch_through(&fetch, out, err);
	EVP_MD_CTX_free(fetch.sum);
	husk_kill(build->husk, sandbox, NULL);
	if (result == 0)
		out->fd = steal_fd(&fd);
	return result;
}
