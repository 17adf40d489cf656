/*
 * Reports to the supervisor: each verdict at once, bytes once a second. The two limits that count bytes are enforced here,
 * where the counting is. A guest can cause any number of verdicts, so equal verdicts are reported once with a count, and
 * there is a limit per second; dropped ones are still counted. A flow must never wait for the supervisor here.
 */
#include <jansson.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <time.h>

#include "net/leash_proxy.h"

#define ALIKE_MS 10000 /* equal verdicts are reported once in this interval */
#define ALIKE_MAX 128  /* how many are remembered */
#define EVENTS_A_SECOND 40
#define REQUESTS_A_SECOND 200
#define SEND_WAIT_MS 2000
#define CHUNK_MIN 512u
#define BURST_US 100000 /* how far ahead of its rate a sandbox may get */

struct tally {
	char host[POLICY_NAME_MAX + 1];
	uint16_t port;
	bool used;
	int holders; /* flows that count here */
	/* Since the last report. */
	atomic_uint_fast64_t sent, received, connections, denied;
};

/* The part of a tally that one report contains. */
struct taken {
	uint64_t sent, received, connections, denied;
	bool told;
};

struct alike {
	uint64_t hash; /* 0: free */
	int64_t told_ms;
	uint64_t held; /* not reported yet */
	char *event;   /* JSON without the count, to report the held ones */
};

struct reporter {
	pthread_mutex_t lock;
	struct tally tallies[LEASH_DESTINATIONS_MAX];
	struct tally other;
	struct taken taken[LEASH_DESTINATIONS_MAX + 1]; /* by the report that is being written */
	struct alike alike[ALIKE_MAX];
	int64_t second_ms;
	unsigned in_second;
	int64_t requests_ms; /* of the second in which `requests` were told */
	unsigned requests;
	uint64_t missed;           /* requests that were not told */
	atomic_uint_fast64_t used; /* bytes, over the sandbox's life */
	int64_t paid_us;           /* until when the rate allows the bytes carried so far */
	bool told_exhausted;
	int alarm; /* eventfd: wakes the main loop, which sleeps if there is nothing to report */
	bool asleep;
};

int report_open(struct proxy *proxy, struct husk_error *err)
{
	proxy->reporter = calloc(1, sizeof(*proxy->reporter));
	if (!proxy->reporter)
		return husk_fail_memory(err);
	pthread_mutex_init(&proxy->reporter->lock, NULL);
	proxy->reporter->alarm = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (proxy->reporter->alarm < 0)
		return husk_fail_errno(err, "cannot make an eventfd");
	proxy->reporter->other.used = true;
	snprintf(proxy->reporter->other.host, sizeof(proxy->reporter->other.host), "other");
	return 0;
}

/* ---- sending ---- */

/* One packet; waits at most `wait_ms` for room. */
static int send_text(struct proxy *proxy, const char *text, int wait_ms)
{
	struct pollfd room = { .fd = proxy->control, .events = POLLOUT };

	for (;;) {
		if (send(proxy->control, text, strlen(text), MSG_DONTWAIT | MSG_NOSIGNAL) >= 0)
			return 0;
		if (errno == EINTR)
			continue;
		if (errno != EAGAIN || wait_ms == 0 || poll(&room, 1, wait_ms) <= 0)
			return -1;
		wait_ms = 0;
	}
}

int report_send(struct proxy *proxy, const char *format, ...)
{
	cleanup_free char *text = NULL;
	va_list arguments;

	va_start(arguments, format);
	int size = vasprintf(&text, format, arguments);
	va_end(arguments);
	if (size < 0) {
		text = NULL; /* vasprintf leaves it undefined */
		return -1;
	}
	return send_text(proxy, text, SEND_WAIT_MS);
}

static int send_event(struct proxy *proxy, const char *event, uint64_t count)
{
	cleanup_free char *text = str_format("{\"event\":%s,\"count\":%llu}", event, (unsigned long long)count);

	return text ? send_text(proxy, text, 0) : -1;
}

/* Marks that there is something to report; lock held. */
static void stir(struct reporter *r)
{
	const uint64_t one = 1;

	if (r->asleep && write(r->alarm, &one, sizeof(one)) == (ssize_t)sizeof(one))
		r->asleep = false;
}

/* ---- verdicts ---- */

static uint64_t hash_verdict(const struct verdict *verdict)
{
	const char *const parts[] = { verdict->verdict, verdict->kind, verdict->host, verdict->reason };
	uint64_t hash = 14695981039346656037ull ^ verdict->port;

	for (size_t i = 0; i < ARRAY_SIZE(parts); i++)
		for (const char *c = parts[i]; *c; c++)
			hash = (hash ^ (unsigned char)*c) * 1099511628211ull;
	return hash ? hash : 1;
}

static char *verdict_json(const struct verdict *verdict)
{
	json_t *event = json_pack("{s:I,s:s,s:s,s:s,s:i,s:s,s:s}", "at_ms", (json_int_t)time_wall_ms(), "verdict",
				  verdict->verdict, "kind", verdict->kind, "host", verdict->host, "port", verdict->port,
				  "reason", verdict->reason, "rule", verdict->rule);
	char *text = event ? json_dumps(event, JSON_COMPACT) : NULL;

	json_decref(event);
	return text;
}

/* The slot of equal verdicts; the one reported longest ago is replaced. Lock held. */
static struct alike *find_alike(struct reporter *r, uint64_t hash)
{
	struct alike *oldest = &r->alike[0];

	for (size_t i = 0; i < ALIKE_MAX; i++) {
		if (r->alike[i].hash == hash)
			return &r->alike[i];
		if (r->alike[i].told_ms < oldest->told_ms)
			oldest = &r->alike[i];
	}
	free(oldest->event);
	*oldest = (struct alike){ .hash = hash };
	return oldest;
}

static bool may_tell(struct reporter *r, int64_t now)
{
	if (now - r->second_ms >= 1000) {
		r->second_ms = now;
		r->in_second = 0;
	}
	return r->in_second < EVENTS_A_SECOND && ++r->in_second;
}

static struct tally *find_tally(struct reporter *r, const char *host, uint16_t port)
{
	struct tally *free_one = NULL;

	for (size_t i = 0; i < ARRAY_SIZE(r->tallies); i++) {
		struct tally *tally = &r->tallies[i];

		if (tally->used && tally->port == port && strcmp(tally->host, host) == 0)
			return tally;
		if (!tally->used && !free_one)
			free_one = tally;
	}
	if (!free_one)
		return &r->other;
	snprintf(free_one->host, sizeof(free_one->host), "%s", host);
	free_one->port = port;
	free_one->used = true;
	return free_one;
}

void report_event(struct proxy *proxy, const struct verdict *verdict)
{
	struct reporter *r = proxy->reporter;
	int64_t now = time_monotonic_ms();

	pthread_mutex_lock(&r->lock);
	stir(r);
	if (str_equal(verdict->verdict, "denied"))
		atomic_fetch_add(&find_tally(r, verdict->host, verdict->port)->denied, 1);
	struct alike *alike = find_alike(r, hash_verdict(verdict));
	alike->held++;
	if (!alike->told_ms || now - alike->told_ms >= ALIKE_MS) {
		free(alike->event);
		alike->event = verdict_json(verdict);
		if (alike->event && may_tell(r, now) && send_event(proxy, alike->event, alike->held) == 0) {
			alike->told_ms = now;
			alike->held = 0;
		}
	}
	pthread_mutex_unlock(&r->lock);
}

/* ---- requests ---- */

static char *request_text(const struct request_report *q)
{
	char url[LEASH_URL_MAX + 1], port[8] = "";

	if (q->port != (str_equal(q->scheme, "https") ? 443 : 80))
		snprintf(port, sizeof(port), ":%u", q->port);
	snprintf(url, sizeof(url), "%s://%s%s%.*s", q->scheme, q->host, port, (int)MIN(q->target_size, LEASH_URL_MAX),
		 q->target);
	for (char *c = url; *c; c++)
		if (*c & 0x80) /* not part of a URL, and perhaps not UTF-8 */
			*c = '?';
	json_t *request = json_pack("{s:s%,s:s}", "method", q->method, MIN(q->method_size, 32), "url", url);
	char *text = request ? json_dumps(request, JSON_COMPACT) : NULL;

	json_decref(request);
	return text;
}

void report_request(struct proxy *proxy, const struct request_report *request)
{
	struct reporter *r = proxy->reporter;
	cleanup_free char *what = request_text(request);
	int64_t now = time_monotonic_ms();

	pthread_mutex_lock(&r->lock);
	if (now - r->requests_ms >= 1000) {
		r->requests_ms = now;
		r->requests = 0;
	}
	cleanup_free char *text =
		what && r->requests < REQUESTS_A_SECOND
			? str_format("{\"request\":%s,\"missed\":%llu}", what, (unsigned long long)r->missed)
			: NULL;
	if (text && send_text(proxy, text, 0) == 0) {
		r->requests++;
		r->missed = 0;
	} else {
		r->missed++;
	}
	pthread_mutex_unlock(&r->lock);
}

/* ---- counting ---- */

struct tally *tally_get(struct proxy *proxy, const char *host, uint16_t port)
{
	struct reporter *r = proxy->reporter;

	pthread_mutex_lock(&r->lock);
	struct tally *tally = find_tally(r, host, port);
	tally->holders++;
	stir(r);
	atomic_fetch_add(&tally->connections, 1);
	pthread_mutex_unlock(&r->lock);
	return tally;
}

void tally_put(struct proxy *proxy, struct tally *tally)
{
	if (!tally)
		return;
	pthread_mutex_lock(&proxy->reporter->lock);
	tally->holders--;
	pthread_mutex_unlock(&proxy->reporter->lock);
}

/* Sleeps until the bytes fit the rate. */
static void pace(struct reporter *r, uint64_t rate, uint64_t bytes)
{
	int64_t now = time_monotonic_us(), wait;

	pthread_mutex_lock(&r->lock);
	r->paid_us = MAX(r->paid_us, now - BURST_US) + (int64_t)(bytes * 1000000 / rate);
	wait = r->paid_us - now;
	pthread_mutex_unlock(&r->lock);
	if (wait <= 0)
		return;
	struct timespec time = { .tv_sec = wait / 1000000, .tv_nsec = wait % 1000000 * 1000 };
	nanosleep(&time, NULL);
}

bool tally_count(struct proxy *proxy, struct tally *tally, const struct policy *policy, uint64_t sent,
		 uint64_t received)
{
	struct reporter *r = proxy->reporter;

	atomic_fetch_add_explicit(&tally->sent, sent, memory_order_relaxed);
	atomic_fetch_add_explicit(&tally->received, received, memory_order_relaxed);
	atomic_fetch_add_explicit(&r->used, sent + received, memory_order_relaxed);
	if (policy->rate)
		pace(r, policy->rate, sent + received);
	return !report_exhausted(proxy, policy);
}

size_t tally_chunk(const struct policy *policy, size_t most)
{
	return policy->rate ? (size_t)MIN((uint64_t)most, MAX(policy->rate / 8, CHUNK_MIN)) : most;
}

bool report_exhausted(struct proxy *proxy, const struct policy *policy)
{
	struct reporter *r = proxy->reporter;
	char reason[96];

	if (!policy->bytes || atomic_load_explicit(&r->used, memory_order_relaxed) < policy->bytes)
		return false;
	pthread_mutex_lock(&r->lock);
	bool first = !r->told_exhausted;
	r->told_exhausted = true;
	pthread_mutex_unlock(&r->lock);
	if (first) {
		snprintf(reason, sizeof(reason), "the limit of %llu bytes is reached",
			 (unsigned long long)policy->bytes);
		report_event(proxy, &(struct verdict){ "denied", "tcp", "*", 0, reason, "" });
	}
	return true;
}

void report_used(struct proxy *proxy, uint64_t used)
{
	uint_fast64_t own = atomic_load(&proxy->reporter->used);

	/* The supervisor's count may be older than this process's own. */
	while (own < used && !atomic_compare_exchange_weak(&proxy->reporter->used, &own, used))
		;
	pthread_mutex_lock(&proxy->reporter->lock);
	proxy->reporter->told_exhausted = false;
	pthread_mutex_unlock(&proxy->reporter->lock);
}

/* ---- once a second, and when asked ---- */

/* Adds the counts of the tally. They are subtracted only after the report was sent. */
static bool add_tally(json_t *list, struct tally *tally, struct taken *taken)
{
	*taken = (struct taken){ atomic_load(&tally->sent), atomic_load(&tally->received),
				 atomic_load(&tally->connections), atomic_load(&tally->denied), false };
	if (!tally->used || !(taken->sent || taken->received || taken->connections || taken->denied))
		return false;
	return json_array_append_new(
		       list, json_pack("{s:s,s:i,s:I,s:I,s:I,s:I}", "host", tally->host, "port", tally->port, "sent",
				       (json_int_t)taken->sent, "received", (json_int_t)taken->received, "connections",
				       (json_int_t)taken->connections, "denied", (json_int_t)taken->denied)) == 0;
}

static void settle(struct tally *tally, const struct taken *taken)
{
	atomic_fetch_sub(&tally->sent, taken->sent);
	atomic_fetch_sub(&tally->received, taken->received);
	atomic_fetch_sub(&tally->connections, taken->connections);
	atomic_fetch_sub(&tally->denied, taken->denied);
}

static void flush_tallies(struct proxy *proxy)
{
	struct reporter *r = proxy->reporter;
	struct taken *taken = r->taken;
	json_t *list = json_array();

	pthread_mutex_lock(&r->lock);
	for (size_t i = 0; list && i <= LEASH_DESTINATIONS_MAX; i++) {
		struct tally *tally = i < LEASH_DESTINATIONS_MAX ? &r->tallies[i] : &r->other;

		taken[i].told = add_tally(list, tally, &taken[i]);
		if (!taken[i].told && i < LEASH_DESTINATIONS_MAX && tally->holders == 0 && !taken[i].denied)
			tally->used = false;
	}
	json_t *root = json_array_size(list) ? json_pack("{s:O}", "traffic", list) : NULL;
	cleanup_free char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;
	if (text && send_text(proxy, text, 0) == 0)
		for (size_t i = 0; i <= LEASH_DESTINATIONS_MAX; i++)
			if (taken[i].told)
				settle(i < LEASH_DESTINATIONS_MAX ? &r->tallies[i] : &r->other, &taken[i]);
	pthread_mutex_unlock(&r->lock);
	json_decref(root);
	json_decref(list);
}

/* True if counts may still change or were not reported, or events are held back. Lock held. */
static bool has_more(struct reporter *r)
{
	for (size_t i = 0; i <= LEASH_DESTINATIONS_MAX; i++) {
		const struct tally *tally = i < LEASH_DESTINATIONS_MAX ? &r->tallies[i] : &r->other;

		if (tally->holders || atomic_load(&tally->sent) || atomic_load(&tally->received) ||
		    atomic_load(&tally->connections) || atomic_load(&tally->denied))
			return true;
	}
	for (size_t i = 0; i < ALIKE_MAX; i++)
		if (r->alike[i].held)
			return true;
	return false;
}

int report_rest(struct proxy *proxy)
{
	struct reporter *r = proxy->reporter;
	uint64_t ignored;

	(void)!read(r->alarm, &ignored, sizeof(ignored));
	pthread_mutex_lock(&r->lock);
	r->asleep = !has_more(r);
	bool rests = r->asleep;
	pthread_mutex_unlock(&r->lock);
	return rests ? r->alarm : -1;
}

void report_flush(struct proxy *proxy, bool all)
{
	struct reporter *r = proxy->reporter;
	int64_t now = time_monotonic_ms();

	pthread_mutex_lock(&r->lock);
	for (size_t i = 0; i < ALIKE_MAX; i++) {
		struct alike *alike = &r->alike[i];

		if (!alike->held || !alike->event || (!all && now - alike->told_ms < ALIKE_MS) ||
		    (!all && !may_tell(r, now)))
			continue;
		if (send_event(proxy, alike->event, alike->held) < 0)
			break;
		alike->told_ms = now;
		alike->held = 0;
	}
	pthread_mutex_unlock(&r->lock);
	flush_tallies(proxy);
}
