/*
 * Changes to a live Daytona sandbox: its intervals, its expiry, the visibility of its ports, its network and its secrets.
 * Idle time and expiry are Husk's own (husk_set_idle, husk_extend) and work without this server. The automatic deletion of
 * a stopped sandbox becomes an expiry when it hibernates; for a sandbox that hibernated by itself, a check every half
 * minute sets it.
 */
#include "server/dialects/daytona/daytona.h"

#define TEND_SECONDS 20

/* ---- changing one setting ---- */

typedef int (*change_fn)(struct request *request, struct daytona_box *box, struct husk_error *err);

static int changed(struct request *request, change_fn change, struct husk_error *err)
{
	cleanup_box struct daytona_box box = { 0 };

	daytona_lock();
	int result = daytona_find(request, &box, err);
	if (result == 0)
		result = change(request, &box, err);
	if (result == 0)
		result = daytona_set(&box, "updatedAt", json_integer(time_wall_ms()), err);
	if (result == 0)
		result = daytona_save(request, &box, NULL, err);
	daytona_unlock();
	return result < 0 ? -1 : daytona_respond(request, box.sandbox->id, err);
}

static int minutes(struct request *request, int64_t min, int64_t *out, struct husk_error *err)
{
	const char *text = request_path(request, "minutes");

	if (str_to_int64(text, min, DAYTONA_MINUTES_MAX, out) == 0)
		return 0;
	return husk_fail_field(err, "interval", "'%.20s' is not a number of minutes from %lld to %lld", text,
			       (long long)min, (long long)DAYTONA_MINUTES_MAX);
}

static int set_idle(struct request *request, struct daytona_box *box, const char *name, const char *other,
		    struct husk_error *err)
{
	int64_t value;

	if (minutes(request, 0, &value, err) < 0)
		return -1;
	if (value && daytona_int(box, other, 0))
		return husk_fail_field(err, name, "%s and %s are mutually exclusive; set %s to 0 first", name, other,
				       other);
	if (daytona_set(box, name, json_integer(value), err) < 0)
		return -1;
	return husk_set_idle(request_husk(request), box->sandbox->id, daytona_idle_seconds(box->settings), err);
}

static int set_stop(struct request *request, struct daytona_box *box, struct husk_error *err)
{
	return set_idle(request, box, "autoStopInterval", "autoPauseInterval", err);
}

static int set_pause(struct request *request, struct daytona_box *box, struct husk_error *err)
{
	return set_idle(request, box, "autoPauseInterval", "autoStopInterval", err);
}

static int set_archive(struct request *request, struct daytona_box *box, struct husk_error *err)
{
	int64_t value;

	return minutes(request, 0, &value, err) < 0 ? -1
						    : daytona_set(box, "autoArchiveInterval", json_integer(value), err);
}

/* For a hibernated sandbox the new interval begins now. */
static int set_delete(struct request *request, struct daytona_box *box, struct husk_error *err)
{
	int64_t value;

	if (minutes(request, -1, &value, err) < 0 ||
	    daytona_set(box, "autoDeleteInterval", json_integer(value), err) < 0)
		return -1;
	if (!str_equal(daytona_state(box), "stopped") && !str_equal(daytona_state(box), "archived"))
		return 0;
	bool never = value < 0 && !daytona_int(box, "destroyAt", 0);
	return husk_extend(request_husk(request), box->sandbox->id, MAX(1, value * 60), never, NULL, err);
}

static int set_ttl(struct request *request, struct daytona_box *box, struct husk_error *err)
{
	int64_t value;

	if (minutes(request, 0, &value, err) < 0)
		return -1;
	if (value == 0)
		json_object_del(box->settings, "destroyAt");
	else if (daytona_set(box, "destroyAt", json_integer(time_wall_ms() + value * 60000), err) < 0)
		return -1;
	bool asleep = box->sandbox->state == HUSK_HIBERNATED;
	return husk_extend(request_husk(request), box->sandbox->id, value ? value * 60 : DAYTONA_TTL_SECONDS,
			   asleep && value == 0, NULL, err);
}

static int set_public(struct request *request, struct daytona_box *box, struct husk_error *err)
{
	const char *word = request_path(request, "public");

	if (!str_equal(word, "true") && !str_equal(word, "false"))
		return husk_fail_field(err, "isPublic", "'%.20s' is not true or false", word);
	return daytona_set(box, "public", json_boolean(str_equal(word, "true")), err);
}

static int set_network(struct request *request, struct daytona_box *box, struct husk_error *err)
{
	struct fields fields;

	if (fields_begin(&fields, request_json(request, err)) < 0)
		return -1;
	if (daytona_network_take(&fields, box->settings, err) < 0 || fields_done_open(&fields, err) < 0)
		return -1;
	return daytona_network_apply(request, box, err);
}

static int set_secrets(struct request *request, struct daytona_box *box, struct husk_error *err)
{
	json_t *body = request_json(request, err);

	if (!body || daytona_secrets_take(json_object_get(body, "secrets"), box->settings, err) < 0)
		return -1;
	return daytona_network_apply(request, box, err);
}

#define HANDLER(name, change)                                                                                          \
	static int name(struct request *request, struct husk_error *err)                                               \
	{                                                                                                              \
		return changed(request, change, err);                                                                  \
	}
HANDLER(handle_stop, set_stop)
HANDLER(handle_pause, set_pause)
HANDLER(handle_archive, set_archive)
HANDLER(handle_delete, set_delete)
HANDLER(handle_ttl, set_ttl)
HANDLER(handle_public, set_public)
HANDLER(handle_network, set_network)
HANDLER(handle_secrets, set_secrets)

const struct route daytona_interval_routes[] = {
	{ "POST", "/daytona/sandbox/{id}/autostop/{minutes}", handle_stop, 0 },
	{ "POST", "/daytona/sandbox/{id}/autopause/{minutes}", handle_pause, 0 },
	{ "POST", "/daytona/sandbox/{id}/autoarchive/{minutes}", handle_archive, 0 },
	{ "POST", "/daytona/sandbox/{id}/autodelete/{minutes}", handle_delete, 0 },
	{ "POST", "/daytona/sandbox/{id}/ttl/{minutes}", handle_ttl, 0 },
	{ "POST", "/daytona/sandbox/{id}/public/{public}", handle_public, 0 },
	{ "POST", "/daytona/sandbox/{id}/network-settings", handle_network, 0 },
	{ "PUT", "/daytona/sandbox/{id}/secrets", handle_secrets, 0 },
	{ 0 },
};

/* ---- sandboxes that hibernated automatically ---- */

/* Records when it hibernated, and sets the resulting end in Husk, once. */
static void settle(struct husk *husk, struct daytona_box *box)
{
	int64_t destroy = daytona_int(box, "autoDeleteInterval", -1);
	cleanup_json json_t *labels = daytona_labels(box);
	cleanup_free struct husk_pair *pairs = NULL;
	cleanup_free char *text = NULL;
	size_t count = 0;

	if (destroy == 0 && str_equal(daytona_state(box), "stopped")) {
		husk_kill(husk, box->sandbox->id, NULL);
		return;
	}
	if (json_object_set_new(box->settings, "sleptAt", json_integer(time_wall_ms())) < 0 || !labels ||
	    !(pairs = daytona_metadata(labels, box->settings, &count, &text)))
		return;
	if (destroy > 0 && str_equal(daytona_state(box), "stopped"))
		husk_extend(husk, box->sandbox->id, destroy * 60, false, NULL, NULL);
	husk_set_metadata(husk, box->sandbox->id, pairs, count, NULL);
}

static void look(struct husk *husk)
{
	struct husk_filter filter = { .state = HUSK_HIBERNATED };
	struct husk_sandbox **list = NULL;

	daytona_lock();
	if (husk_list(husk, &filter, &list, NULL) == 0) {
		for (size_t i = 0; list[i]; i++) {
			struct daytona_box box = { 0 };
			if (daytona_box_of(list[i], &box, NULL) == 0 &&
			    json_object_get(box.settings, "autoDeleteInterval") && !daytona_int(&box, "sleptAt", 0))
				settle(husk, &box);
			box.sandbox = NULL; /* the list's */
			daytona_box_free(&box);
		}
		husk_sandbox_list_free(list);
	}
	daytona_unlock();
}

static void *tend(void *data)
{
	struct husk *husk = NULL; /* its own handle: the thread may still run while the server closes its handle */

	(void)data;
	for (;; sleep(TEND_SECONDS))
		if (husk || husk_open(NULL, &husk, NULL) == 0)
			look(husk);
	return NULL;
}

int daytona_tend_start(struct husk_error *err)
{
	if (thread_start(NULL, true, tend, NULL) < 0)
		return husk_fail(err, HUSK_INTERNAL, "cannot start a thread");
	return 0;
}
