/*
 * The held requests of a supervised sandbox (store/catalog_effect.c). The leash passes each held request to the
 * supervisor, and gets an answer when the request is in the catalog. A client can ask to send one. Before the leash gets
 * it, the catalog says `sending`; after its report, `sent`. So a kill in between leaves `sending`, which the next life
 * of the sandbox turns into `uncertain`: an effect is never sent twice.
 *
 * Messages of the leash contain data of the guest: every field is checked, and sizes are bounded (leash_parcel.h).
 */
#include "supervisor/holding.h"

#include <ctype.h>

#include "base/http_grammar.h"
#include "base/jansson.h"
#include "base/log.h"
#include "base/thread.h"
#include "net/leash_parcel.h"
#include "supervisor/machine.h"
#include "supervisor/supervisor.h"

#define SEND_MS 300000 /* more than the leash takes */
#define LOOK_MS 100    /* how often a wait looks whether the sandbox ends */

void effects_open(struct effects *effects)
{
	pthread_mutex_init(&effects->lock, NULL);
	cond_open(&effects->changed);
}

/* ---- holding ---- */

static const char *text_of(const json_t *head, const char *key)
{
	const char *text = json_string_value(json_object_get(head, key));

	return text ? text : "";
}

static bool is_method(const char *method)
{
	for (const char *c = method; *c; c++)
		if (!http_is_token((unsigned char)*c))
			return false;
	return *method && strlen(method) < 24;
}

static bool is_target(const char *target)
{
	for (const char *c = target; *c; c++)
		if ((unsigned char)*c <= ' ' || *c == 0x7f)
			return false;
	return target[0] == '/' && strlen(target) <= PARCEL_TARGET_MAX;
}

/* NULL: good. */
static const char *check(const json_t *head, struct catalog_effect *row)
{
	char name[POLICY_NAME_MAX + 1];

	row->method = (char *)text_of(head, "method");
	row->scheme = (char *)text_of(head, "scheme");
	row->host = (char *)text_of(head, "host");
	row->target = (char *)text_of(head, "target");
	row->port = json_integer_value(json_object_get(head, "port"));
	if (!is_method(row->method))
		return "its method is not a word";
	if (!str_equal(row->scheme, "http") && !str_equal(row->scheme, "https"))
		return "its scheme is not known";
	if (policy_name_normalise(row->host, strlen(row->host), name) < 0 || row->port < 1 || row->port > 65535)
		return "its host is not a name";
	return is_target(row->target) ? NULL : "its path cannot be read";
}

static size_t body_size(const char *request, size_t size)
{
	const char *end =
		size >= 2 && memcmp(request, "\r\n", 2) == 0 ? request - 2 : memmem(request, size, "\r\n\r\n", 4);

	return end ? size - (size_t)(end + 4 - request) : 0;
}

static void refuse(struct leash_held *out, const char *status, const char *reason)
{
	snprintf(out->status, sizeof(out->status), "%s", status);
	snprintf(out->reason, sizeof(out->reason), "%s", reason);
}

void effects_hold(void *data, const json_t *head, const char *request, size_t size, struct leash_held *out)
{
	struct supervisor *s = data;
	struct catalog_effect row = { .sandbox = (char *)life_id(&s->life),
				      .created_ms = time_wall_ms(),
				      .bytes = body_size(request, size) };
	struct husk_error err = { 0 };
	const char *why = check(head, &row);

	*out = (struct leash_held){ 0 };
	if (why)
		refuse(out, "400 Bad Request", why);
	else if (catalog_effect_add(s->husk.catalog, &row, request, size, &err) == 0)
		out->effect = row.number;
	else if (err.code == HUSK_LIMIT)
		refuse(out, "507 Insufficient Storage", err.message);
	else
		refuse(out, "503 Service Unavailable", "the request could not be written down; try again");
	if (!why && !out->effect)
		log_line(LOG_WARN, "a request could not be held: %s", err.message);
}

/* ---- sending ---- */

void effects_sent(void *data, const struct leash_sent *sent)
{
	struct effects *effects = &((struct supervisor *)data)->effects;

	pthread_mutex_lock(&effects->lock);
	/* Key 0: the leash has died, and what it was sending may have left. */
	if (effects->key && !effects->done && (sent->key == effects->key || sent->key == 0)) {
		effects->outcome = *sent;
		effects->done = true;
		pthread_cond_broadcast(&effects->changed);
	}
	pthread_mutex_unlock(&effects->lock);
}

static void await_outcome(struct supervisor *s, struct leash_sent *out)
{
	struct effects *effects = &s->effects;
	int64_t end = time_monotonic_ms() + SEND_MS;

	*out = (struct leash_sent){ .maybe = true, .reason = "cut off while it was being sent" };
	pthread_mutex_lock(&effects->lock);
	while (!effects->done && time_monotonic_ms() < end && !life_look(&s->life).ending)
		cond_wait_until(&effects->changed, &effects->lock, time_monotonic_ms() + LOOK_MS);
	if (effects->done)
		*out = effects->outcome;
	pthread_mutex_unlock(&effects->lock);
}

static json_t *describe(const struct catalog_effect *row)
{
	return json_pack("{s:s,s:s,s:s,s:i,s:s}", "method", row->method, "scheme", row->scheme, "host", row->host,
			 "port", (int)row->port, "target", row->target);
}

static int deliver(struct supervisor *s, const struct catalog_effect *row, const struct buf *request,
		   struct leash_sent *out, struct husk_error *err)
{
	struct effects *effects = &s->effects;
	static uint64_t last; /* under the turn */
	cleanup_json json_t *head = describe(row);

	if (!head)
		return husk_fail_memory(err);
	if (!s->network.leash)
		return husk_fail(err, HUSK_UNAVAILABLE,
				 "sandbox %s has no network; allow the host first (husk egress %s "
				 "--allow %s)",
				 row->sandbox, row->sandbox, row->host);
	pthread_mutex_lock(&effects->lock);
	effects->key = ++last;
	effects->done = false;
	pthread_mutex_unlock(&effects->lock);
	int result = leash_deliver(s->network.leash, last, head, request->data, request->size, err);
	if (result == 0)
		await_outcome(s, out);
	pthread_mutex_lock(&effects->lock);
	effects->key = 0;
	pthread_mutex_unlock(&effects->lock);
	return result;
}

/* Writes down what became of it. */
static int record(struct supervisor *s, const struct catalog_effect *row, const struct leash_sent *sent,
		  struct husk_error *err)
{
	const char *to = sent->status ? "sent" : sent->maybe ? "uncertain" : "held";

	if (catalog_effect_move(s->husk.catalog, row->sandbox, row->number, "sending", to, sent->status,
				sent->status ? NULL : sent->reason, err) < 0)
		return -1;
	if (sent->status)
		return 0;
	if (sent->maybe)
		return husk_fail(err, HUSK_INTERNAL, "effect %lld of %s may have been sent: %s; it is not sent again",
				 (long long)row->number, row->sandbox, sent->reason);
	return husk_fail(err, HUSK_UNAVAILABLE, "effect %lld of %s was not sent and stays held: %s",
			 (long long)row->number, row->sandbox, sent->reason);
}

static int refuse_state(const struct catalog_effect *row, struct husk_error *err)
{
	if (str_equal(row->state, "uncertain") || str_equal(row->state, "sending"))
		return husk_fail(
			err, HUSK_CONFLICT,
			"effect %lld of %s may have been sent already, and is not sent again; ask %s whether it "
			"was",
			(long long)row->number, row->sandbox, row->host);
	return husk_fail(err, HUSK_CONFLICT, "effect %lld of %s is not held: it was %s", (long long)row->number,
			 row->sandbox, row->state);
}

static int send_effect(struct supervisor *s, int64_t number, struct husk_error *err)
{
	struct catalog_effect *row = NULL;
	cleanup_buf struct buf request = { 0 };
	struct leash_sent sent = { 0 };
	const char *id = life_id(&s->life);

	if (catalog_effect_get(s->husk.catalog, id, number, &row, &request, err) < 0)
		return -1;
	int result = str_equal(row->state, "held")
			     ? catalog_effect_move(s->husk.catalog, id, number, "held", "sending", 0, NULL, err)
			     : 0;
	if (result == 0)
		result = refuse_state(row, err);
	if (result > 0) {
		result = deliver(s, row, &request, &sent, err);
		if (result < 0)
			catalog_effect_move(s->husk.catalog, id, number, "sending", "held", 0,
					    err ? err->message : NULL, NULL);
		else
			result = record(s, row, &sent, err);
	}
	catalog_effect_free(row);
	return result;
}

int machine_send_effect(struct supervisor *s, int64_t number, struct husk_error *err)
{
	if (life_begin(&s->life, LIFE_EFFECT, err) < 0)
		return -1;
	int result = send_effect(s, number, err);
	life_finish(&s->life, result == 0);
	return result;
}
