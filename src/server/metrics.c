/*
 * Metrics for Prometheus: requests and their durations, counted when requests end; and current numbers, read from the
 * catalog for each scrape. Counters are per route, never per path, so that no client can add counters.
 */
#include "server/core.h"

#define ROUTES_COUNTED (ROUTES_MAX + 2) /* all routes, ports by host name, and requests without a route */
#define REASONS_MAX 16
#define DESTINATIONS_MAX 32 /* listed separately for each sandbox; the others as "rest" */
#define LABEL_MAX 256

static const unsigned statuses[] = { 0,   101, 200, 201, 204, 206, 400, 401, 403, 404, 405,
				     409, 410, 413, 416, 429, 431, 500, 502, 503, 504 };
static const double bounds[] = { 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60 };

/* Counters of the process; nothing else is kept between requests. */
static struct {
	_Atomic uint64_t status[ARRAY_SIZE(statuses)]; /* [0]: any other */
	_Atomic uint64_t bucket[ARRAY_SIZE(bounds)];
	_Atomic uint64_t count, us;
} counters[ROUTES_COUNTED];

/* How sandboxes ended, from the events read so far. */
static struct {
	pthread_mutex_t lock;
	int64_t last;
	char reason[REASONS_MAX][24];
	uint64_t count[REASONS_MAX];
	size_t used;
} ends = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* ---- counting ---- */

static size_t status_index(unsigned status)
{
	for (size_t i = 1; i < ARRAY_SIZE(statuses); i++)
		if (statuses[i] == status)
			return i;
	return 0;
}

void metrics_count(const struct request *request, int64_t us)
{
	size_t index = request->match.route ? request->match.index : ROUTES_COUNTED - 1;

	if (index >= ROUTES_COUNTED)
		return;
	atomic_fetch_add(&counters[index].status[status_index(request->answer.status)], 1);
	/* How long a stream stayed open says nothing about the server. */
	if (request->answer.kind > ANSWER_PLAIN)
		return;
	atomic_fetch_add(&counters[index].count, 1);
	atomic_fetch_add(&counters[index].us, (uint64_t)us);
	for (size_t i = 0; i < ARRAY_SIZE(bounds); i++)
		if ((double)us <= bounds[i] * 1e6)
			atomic_fetch_add(&counters[index].bucket[i], 1);
}

/* ---- showing ---- */

static const struct {
	const char *method, *path;
} beyond[] = { { "*", "<port>-<id>.localhost" }, { "-", "none" } };

static void route_label(size_t index, const char **method, const char **path)
{
	const struct route *route = routes_at(index);
	size_t which = index == routes_count() ? 0 : 1;

	*method = route ? route->method : beyond[which].method;
	*path = route ? route->path : beyond[which].path;
}

static int write_requests(struct buf *out)
{
	const char *method, *path;
	int failed = buf_append_string(out, "# HELP husk_http_requests_total Requests answered.\n"
					    "# TYPE husk_http_requests_total counter\n");

	for (size_t i = 0; i < ROUTES_COUNTED; i++) {
		route_label(i, &method, &path);
		for (size_t k = 0; k < ARRAY_SIZE(statuses); k++) {
			uint64_t value = atomic_load(&counters[i].status[k]);
			if (value)
				failed |=
					buf_printf(out,
						   "husk_http_requests_total{method=\"%s\",route=\"%s\",status=\"%u\"} "
						   "%llu\n",
						   method, path, statuses[k], (unsigned long long)value);
		}
	}
	return failed;
}

static int write_durations(struct buf *out)
{
	static const char name[] = "husk_http_request_duration_seconds";
	const char *method, *path;
	int failed =
		buf_printf(out, "# HELP %s Time to answer, streams not counted.\n# TYPE %s histogram\n", name, name);

	for (size_t i = 0; i < ROUTES_COUNTED; i++) {
		unsigned long long count = atomic_load(&counters[i].count);
		if (!count)
			continue;
		route_label(i, &method, &path);
		for (size_t k = 0; k < ARRAY_SIZE(bounds); k++)
			failed |=
				buf_printf(out, "%s_bucket{method=\"%s\",route=\"%s\",le=\"%g\"} %llu\n", name, method,
					   path, bounds[k], (unsigned long long)atomic_load(&counters[i].bucket[k]));
		failed |= buf_printf(out, "%s_bucket{method=\"%s\",route=\"%s\",le=\"+Inf\"} %llu\n", name, method,
				     path, count);
		failed |= buf_printf(out, "%s_sum{method=\"%s\",route=\"%s\"} %.6f\n", name, method, path,
				     (double)atomic_load(&counters[i].us) / 1e6);
		failed |= buf_printf(out, "%s_count{method=\"%s\",route=\"%s\"} %llu\n", name, method, path, count);
	}
	return failed;
}

static int write_sandboxes(struct server *server, struct buf *out, struct husk_error *err)
{
	const struct husk_filter live = { .with_builds = true };
	struct husk_sandbox **list = NULL;
	uint64_t counts[HUSK_ENDED + 1] = { 0 };
	int failed;

	if (husk_list(server->husk, &live, &list, err) < 0)
		return -1;
	for (size_t i = 0; list[i]; i++)
		counts[list[i]->state]++;
	husk_sandbox_list_free(list);
	failed =
		buf_append_string(out, "# HELP husk_sandboxes Live sandboxes by state.\n# TYPE husk_sandboxes gauge\n");
	for (enum husk_state state = HUSK_CREATING; state < HUSK_ENDED; state++)
		failed |= buf_printf(out, "husk_sandboxes{state=\"%s\"} %llu\n", husk_state_name(state),
				     (unsigned long long)counts[state]);
	return failed ? husk_fail_memory(err) : 0;
}

/* ---- the network ---- */

enum { SENT, RECEIVED, CONNECTIONS, DENIED, NETWORK_COUNTERS };
static const struct {
	const char *name, *help;
} network_counters[NETWORK_COUNTERS] = {
	[SENT] = { "husk_network_sent_bytes_total", "Bytes sandboxes sent, by destination." },
	[RECEIVED] = { "husk_network_received_bytes_total", "Bytes sandboxes received, by destination." },
	[CONNECTIONS] = { "husk_network_connections_total", "Connections of sandboxes that were let through." },
	[DENIED] = { "husk_network_denied_total", "Connections and lookups of sandboxes that were refused." },
};

/* Names come from guests: characters that are not plain become "?". */
static void clean_label(const char *text, char out[static LABEL_MAX])
{
	size_t at = 0;

	for (; *text && at + 1 < LABEL_MAX; text++)
		out[at++] = *text > ' ' && *text < 0x7f && *text != '"' && *text != '\\' ? *text : '?';
	out[at] = '\0';
}

static int put_destination(const char *sandbox, const struct husk_egress_traffic *traffic,
			   struct buf out[static NETWORK_COUNTERS])
{
	const uint64_t values[] = { traffic->sent, traffic->received, traffic->connections, traffic->denied };
	char host[LABEL_MAX];
	int failed = 0;

	clean_label(traffic->host, host);
	for (size_t i = 0; i < NETWORK_COUNTERS; i++)
		if (values[i])
			failed |= buf_printf(&out[i], "%s{sandbox=\"%s\",host=\"%s\",port=\"%u\"} %llu\n",
					     network_counters[i].name, sandbox, host, traffic->port,
					     (unsigned long long)values[i]);
	return failed;
}

/* A sandbox that ends meanwhile is left out. */
static int put_sandbox(struct server *server, const char *id, struct buf out[static NETWORK_COUNTERS])
{
	struct husk_egress_traffic *list = NULL, rest = { .host = (char *)"rest" };
	size_t count = 0;
	int failed = 0;

	if (husk_egress_traffic(server->husk, id, &list, &count, NULL) < 0)
		return 0;
	for (size_t i = 0; i < count; i++) {
		if (i < DESTINATIONS_MAX) {
			failed |= put_destination(id, &list[i], out);
			continue;
		}
		rest.sent += list[i].sent;
		rest.received += list[i].received;
		rest.connections += list[i].connections;
		rest.denied += list[i].denied;
	}
	failed |= put_destination(id, &rest, out);
	husk_egress_traffic_list_free(list, count);
	return failed;
}

static int write_network(struct server *server, struct buf *out, struct husk_error *err)
{
	const struct husk_filter live = { .with_builds = true };
	struct husk_sandbox **list = NULL;
	struct buf families[NETWORK_COUNTERS] = { 0 };
	int failed = 0;

	if (husk_list(server->husk, &live, &list, err) < 0)
		return -1;
	for (size_t i = 0; list[i]; i++)
		if (list[i]->state == HUSK_RUNNING && !str_equal(list[i]->egress_mode, "off"))
			failed |= put_sandbox(server, list[i]->id, families);
	husk_sandbox_list_free(list);
	for (size_t i = 0; i < NETWORK_COUNTERS; i++) {
		failed |= buf_printf(out, "# HELP %s %s\n# TYPE %s counter\n", network_counters[i].name,
				     network_counters[i].help, network_counters[i].name);
		failed |= buf_append(out, families[i].data, families[i].size);
		buf_free(&families[i]);
	}
	return failed ? husk_fail_memory(err) : 0;
}

/* ---- ends ---- */

static void count_end(const struct husk_event *event)
{
	cleanup_json json_t *detail = event->detail ? json_loads(event->detail, 0, NULL) : NULL;
	const char *reason = json_string_value(json_object_get(detail, "reason"));
	size_t i = 0;

	reason = reason ? reason : "unknown";
	while (i < ends.used && !str_equal(ends.reason[i], reason))
		i++;
	if (i == REASONS_MAX)
		return;
	if (i == ends.used)
		snprintf(ends.reason[ends.used++], sizeof(ends.reason[0]), "%s", reason);
	ends.count[i]++;
}

/* Continues after the last event that was read. The first call reads all events. */
static int read_ends(struct server *server, struct husk_error *err)
{
	for (;;) {
		struct husk_event *list = NULL;
		size_t count = 0;

		if (husk_events(server->husk, NULL, ends.last, 1000, 0, &list, &count, err) < 0)
			return -1;
		for (size_t i = 0; i < count; i++) {
			ends.last = list[i].sequence;
			if (str_equal(list[i].kind, "ended"))
				count_end(&list[i]);
		}
		husk_event_list_free(list, count);
		if (count < 1000)
			return 0;
	}
}

static int write_ends(struct server *server, struct buf *out, struct husk_error *err)
{
	pthread_mutex_lock(&ends.lock);
	int result = read_ends(server, err);
	int failed = buf_append_string(out, "# HELP husk_sandboxes_ended_total Sandboxes that ended, by reason.\n"
					    "# TYPE husk_sandboxes_ended_total counter\n");
	for (size_t i = 0; i < ends.used; i++)
		failed |= buf_printf(out, "husk_sandboxes_ended_total{reason=\"%s\"} %llu\n", ends.reason[i],
				     (unsigned long long)ends.count[i]);
	pthread_mutex_unlock(&ends.lock);
	if (result < 0)
		return -1;
	return failed ? husk_fail_memory(err) : 0;
}

static int write_process(struct server *server, struct buf *out)
{
	cleanup_free char *text = file_read("/proc/self/statm", 256, NULL, NULL);
	const char *second = text ? strchr(text, ' ') : NULL;
	unsigned long long pages = second ? strtoull(second, NULL, 10) : 0;

	pthread_mutex_lock(&server->lock);
	size_t requests = server->request_count, streams = server->stream_count;
	pthread_mutex_unlock(&server->lock);
	return buf_printf(out,
			  "# HELP husk_http_requests_open Requests under way.\n# TYPE husk_http_requests_open gauge\n"
			  "husk_http_requests_open %zu\n"
			  "# HELP husk_http_streams_open Streams and upgraded connections.\n"
			  "# TYPE husk_http_streams_open gauge\nhusk_http_streams_open %zu\n"
			  "# HELP process_resident_memory_bytes Memory of huskd.\n"
			  "# TYPE process_resident_memory_bytes gauge\nprocess_resident_memory_bytes %llu\n"
			  "# HELP husk_info What is running.\n# TYPE husk_info gauge\nhusk_info{version=\"%s\"} 1\n",
			  requests, streams, pages * (unsigned long long)sysconf(_SC_PAGESIZE), HUSK_VERSION);
}

int metrics_write(struct server *server, struct buf *out, struct husk_error *err)
{
	if (write_sandboxes(server, out, err) < 0 || write_ends(server, out, err) < 0 ||
	    write_network(server, out, err) < 0)
		return -1;
	if (write_requests(out) || write_durations(out) || write_process(server, out))
		return husk_fail_memory(err);
	return 0;
}
