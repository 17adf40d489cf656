/*
 * The log and the counters of a leash, for leash.c, which holds its lock around every call. Both are bounded. The file
 * that they are read back from is not trusted.
 */
#include "net/leash_record.h"

#include "base/jansson.h"

#define LEASH_COUNT_MAX (INT64_MAX / 2)

struct destination {
	char *host;
	uint16_t port;
	uint64_t sent, received, connections, denied;
};

struct leash_record {
	json_t *log;      /* array, oldest first */
	json_t *requests; /* array, oldest first: {"last","method","url","count"} */
	json_int_t total; /* requests so far */
	struct destination destinations[LEASH_DESTINATIONS_MAX + 1]; /* the last one is for all the others */
	size_t count;
};

/* ---- events and traffic ---- */

static json_int_t time_of(json_t *event)
{
	return json_integer_value(json_object_get(event, "at_ms"));
}

/* True if both report the same event: a later report adds its count to the first one. */
static bool same_line(json_t *one, json_t *other)
{
	static const char *const keys[] = { "at_ms", "port", "verdict", "kind", "host", "reason" };

	for (size_t i = 0; i < ARRAY_SIZE(keys); i++)
		if (!json_equal(json_object_get(one, keys[i]), json_object_get(other, keys[i])))
			return false;
	return true;
}

/* Sorted by time, even if reports arrive in another order. Equal events are one entry with the sum of the counts. */
void leash_record_event(struct leash_record *record, json_t *event, json_int_t count)
{
	static const char *const texts[] = { "verdict", "kind", "host", "reason", "rule" };
	size_t at = json_array_size(record->log);

	for (size_t i = 0; i < ARRAY_SIZE(texts); i++)
		if (!json_is_string(json_object_get(event, texts[i])))
			return;
	if (!json_is_integer(json_object_get(event, "at_ms")) || !json_is_integer(json_object_get(event, "port")))
		return;
	count = MIN(MAX(count, 1), LEASH_COUNT_MAX);
	while (at > 0 && time_of(json_array_get(record->log, at - 1)) > time_of(event))
		at--;
	for (size_t i = at; i > 0 && time_of(json_array_get(record->log, i - 1)) == time_of(event); i--) {
		json_t *line = json_array_get(record->log, i - 1), *told = json_object_get(line, "count");

		if (same_line(line, event)) {
			json_integer_set(told, MIN(json_integer_value(told) + count, LEASH_COUNT_MAX));
			return;
		}
	}
	if (json_object_set_new(event, "count", json_integer(count)) < 0 ||
	    json_array_insert(record->log, at, event) < 0)
		return;
	while (json_array_size(record->log) > LEASH_LOG_MAX)
		json_array_remove(record->log, 0);
}

/* ---- requests ---- */

static bool same_request(const json_t *one, const char *method, const char *url)
{
	return str_equal(json_string_value(json_object_get(one, "method")), method) &&
	       str_equal(json_string_value(json_object_get(one, "url")), url);
}

static void add_request(struct leash_record *record, const char *method, const char *url, json_int_t count)
{
	json_t *newest = json_array_get(record->requests, json_array_size(record->requests) - 1);

	record->total += count;
	if (newest && same_request(newest, method, url)) {
		json_int_t before = json_integer_value(json_object_get(newest, "count"));

		json_object_set_new(newest, "count", json_integer(before + count));
		json_object_set_new(newest, "last", json_integer(record->total));
		return;
	}
	json_array_append_new(record->requests, json_pack("{s:I,s:s,s:s,s:I}", "last", record->total, "method", method,
							  "url", url, "count", count));
	while (json_array_size(record->requests) > LEASH_REQUESTS_MAX)
		json_array_remove(record->requests, 0);
}

void leash_record_request(struct leash_record *record, const json_t *request, json_int_t missed)
{
	const char *method = json_string_value(json_object_get(request, "method"));
	const char *url = json_string_value(json_object_get(request, "url"));

	record->total += MIN(MAX(missed, 0), LEASH_COUNT_MAX / 1000);
	if (method && url && strlen(method) <= 32 && strlen(url) <= LEASH_URL_MAX)
		add_request(record, method, url, 1);
}

json_t *leash_record_requests_json(const struct leash_record *record)
{
	return json_pack("{s:I,s:o}", "total", record->total, "list", json_deep_copy(record->requests));
}

/* ---- destinations ---- */

static struct destination *find(struct leash_record *record, const char *host, uint16_t port)
{
	for (size_t i = 0; i < record->count; i++)
		if (record->destinations[i].port == port && strcmp(record->destinations[i].host, host) == 0)
			return &record->destinations[i];
	bool full = record->count >= LEASH_DESTINATIONS_MAX;
	struct destination *place = &record->destinations[full ? LEASH_DESTINATIONS_MAX : record->count];
	if (!place->host && !(place->host = strdup(full ? "other" : host)))
		return NULL;
	place->port = full ? 0 : port;
	record->count += !full;
	return place;
}

static uint64_t number(json_t *item, const char *key)
{
	json_int_t value = json_integer_value(json_object_get(item, key));

	return value > 0 ? (uint64_t)value : 0;
}

void leash_record_traffic(struct leash_record *record, json_t *list)
{
	size_t index;
	json_t *item;

	json_array_foreach(list, index, item)
	{
		const char *host = json_string_value(json_object_get(item, "host"));
		struct destination *to = host ? find(record, host, (uint16_t)number(item, "port")) : NULL;

		if (!to)
			continue;
		to->sent += number(item, "sent");
		to->received += number(item, "received");
		to->connections += number(item, "connections");
		to->denied += number(item, "denied");
	}
}

/* ---- reading the record ---- */

static size_t used(const struct leash_record *record)
{
	return record->count + (record->destinations[LEASH_DESTINATIONS_MAX].host ? 1 : 0);
}

static const struct destination *at(const struct leash_record *record, size_t index)
{
	return &record->destinations[index < record->count ? index : LEASH_DESTINATIONS_MAX];
}

void leash_record_totals(const struct leash_record *record, struct leash_totals *out)
{
	for (size_t i = 0; i < used(record); i++) {
		out->sent += at(record, i)->sent;
		out->received += at(record, i)->received;
		out->connections += at(record, i)->connections;
		out->denied += at(record, i)->denied;
	}
}

uint64_t leash_record_bytes(const struct leash_record *record)
{
	struct leash_totals totals = { 0 };

	leash_record_totals(record, &totals);
	return totals.sent + totals.received;
}

static json_t *destinations_json(const struct leash_record *record)
{
	json_t *list = json_array();

	for (size_t i = 0; list && i < used(record); i++) {
		const struct destination *d = at(record, i);

		json_array_append_new(list,
				      json_pack("{s:s,s:i,s:I,s:I,s:I,s:I}", "host", d->host, "port", d->port, "sent",
						(json_int_t)d->sent, "received", (json_int_t)d->received, "connections",
						(json_int_t)d->connections, "denied", (json_int_t)d->denied));
	}
	return list;
}

json_t *leash_record_traffic_json(const struct leash_record *record)
{
	struct leash_totals totals = { 0 };

	leash_record_totals(record, &totals);
	return json_pack("{s:I,s:I,s:I,s:I,s:o}", "sent", (json_int_t)totals.sent, "received",
			 (json_int_t)totals.received, "connections", (json_int_t)totals.connections, "denied",
			 (json_int_t)totals.denied, "destinations", destinations_json(record));
}

char *leash_record_log(const struct leash_record *record, size_t limit)
{
	size_t size = json_array_size(record->log);
	cleanup_json json_t *list = json_array();

	for (size_t i = limit && limit < size ? size - limit : 0; list && i < size; i++)
		json_array_append(list, json_array_get(record->log, i));
	return list ? json_dumps(list, JSON_COMPACT) : NULL;
}

char *leash_record_text(const struct leash_record *record)
{
	cleanup_json json_t *root = json_pack("{s:O,s:o,s:o}", "log", record->log, "traffic", destinations_json(record),
					      "requests", leash_record_requests_json(record));

	return root ? json_dumps(root, JSON_COMPACT) : NULL;
}

/* ---- its life ---- */

static void load(struct leash_record *record, const char *saved)
{
	cleanup_json json_t *root = json_loads(saved, 0, NULL);
	json_t *log = json_object_get(root, "log"), *event;
	size_t index;

	json_array_foreach(log, index, event)
		leash_record_event(record, event, json_integer_value(json_object_get(event, "count")));
	leash_record_traffic(record, json_object_get(root, "traffic"));
	json_t *requests = json_object_get(root, "requests"), *one;
	json_array_foreach(json_object_get(requests, "list"), index, one)
	{
		json_int_t count = json_integer_value(json_object_get(one, "count"));

		record->total = json_integer_value(json_object_get(one, "last")) - MAX(count, 1);
		if (json_is_string(json_object_get(one, "method")) && json_is_string(json_object_get(one, "url")))
			add_request(record, json_string_value(json_object_get(one, "method")),
				    json_string_value(json_object_get(one, "url")), MAX(count, 1));
	}
	record->total = MAX(record->total, json_integer_value(json_object_get(requests, "total")));
}

struct leash_record *leash_record_new(const char *saved)
{
	struct leash_record *record = calloc(1, sizeof(*record));

	if (!record || !(record->log = json_array()) || !(record->requests = json_array())) {
		leash_record_free(record);
		return NULL;
	}
	if (saved)
		load(record, saved);
	return record;
}

void leash_record_free(struct leash_record *record)
{
	if (!record)
		return;
	json_decref(record->log);
	json_decref(record->requests);
	for (size_t i = 0; i <= LEASH_DESTINATIONS_MAX; i++)
		free(record->destinations[i].host);
	free(record);
}
