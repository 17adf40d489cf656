/*
 * A sandbox as Daytona sees it: its settings (in the sandbox's metadata), its state in Daytona's terms, and its JSON
 * document. Every file of the dialect uses it. A sandbox that another API created is shown with defaults and the user root.
 * Settings are read from the catalog for each request, so a killed server loses none.
 */
#include <pthread.h>

#include "server/dialects/daytona/daytona.h"

#define SETTINGS_KEY "husk.daytona"
#define RESERVED "husk."
#define GIB (UINT64_C(1) << 30)

/* Two requests that change the same sandbox would overwrite each other's change. */
static pthread_mutex_t changing = PTHREAD_MUTEX_INITIALIZER;

void daytona_lock(void)
{
	pthread_mutex_lock(&changing);
}

void daytona_unlock(void)
{
	pthread_mutex_unlock(&changing);
}

/* ---- settings ---- */

void daytona_box_free(struct daytona_box *box)
{
	if (box->sandbox)
		husk_sandbox_free(box->sandbox);
	json_decref(box->settings);
	free(box->pairs);
	*box = (struct daytona_box){ 0 };
}

int64_t daytona_int(const struct daytona_box *box, const char *name, int64_t fallback)
{
	const json_t *value = json_object_get(box->settings, name);

	return json_is_integer(value) ? json_integer_value(value) : fallback;
}

bool daytona_bool(const struct daytona_box *box, const char *name)
{
	return json_is_true(json_object_get(box->settings, name));
}

const char *daytona_text(const struct daytona_box *box, const char *name)
{
	return json_string_value(json_object_get(box->settings, name));
}

int daytona_set(struct daytona_box *box, const char *name, json_t *value, struct husk_error *err)
{
	return json_object_set_new(box->settings, name, value) < 0 ? husk_fail_memory(err) : 0;
}

/* The snapshot in Daytona's terms; NULL: not known. */
static const char *snapshot_of(const struct daytona_box *box)
{
	const char *given = daytona_text(box, "snapshot");

	return given ? given : box->sandbox->template_name;
}

/* Variables that tell a program where it runs, then those that POST /env set; a removed one is set to the empty text. */
static int read_environment(struct daytona_box *box, struct husk_error *err)
{
	json_t *changes = json_object_get(box->settings, "changed"), *value;
	const struct husk_pair own[] = { { "DAYTONA_SANDBOX_ID", box->sandbox->id },
					 { "DAYTONA_SANDBOX_SNAPSHOT", snapshot_of(box) ? snapshot_of(box) : "" },
					 { "DAYTONA_SANDBOX_USER", box->user } };
	const char *name;

	box->pairs = calloc(json_object_size(changes) + ARRAY_SIZE(own), sizeof(*box->pairs));
	if (!box->pairs)
		return husk_fail_memory(err);
	for (size_t i = 0; i < ARRAY_SIZE(own); i++)
		if (!json_object_get(changes, own[i].key))
			box->pairs[box->pair_count++] = own[i];
	json_object_foreach(changes, name, value) box->pairs[box->pair_count++] =
		(struct husk_pair){ name, json_is_string(value) ? json_string_value(value) : "" };
	return 0;
}

int daytona_box_of(struct husk_sandbox *sandbox, struct daytona_box *box, struct husk_error *err)
{
	const char *text = NULL;

	*box = (struct daytona_box){ .sandbox = sandbox };
	for (size_t i = 0; i < sandbox->metadata_count; i++)
		if (str_equal(sandbox->metadata[i].key, SETTINGS_KEY))
			text = sandbox->metadata[i].value;
	if (text && !str_json_deeper(text, strlen(text), 16))
		box->settings = json_loads(text, 0, NULL);
	if (!json_is_object(box->settings)) {
		json_decref(box->settings);
		box->settings = json_pack("{s:s, s:s, s:i}", "user", "root", "home", "/root", "autoStopInterval",
					  (int)(sandbox->idle_seconds / 60));
	}
	if (!box->settings)
		return husk_fail_memory(err);
	box->user = daytona_text(box, "user") ? daytona_text(box, "user") : "root";
	box->home = daytona_text(box, "home") ? daytona_text(box, "home") : "/";
	return read_environment(box, err);
}

int daytona_find(struct request *request, struct daytona_box *box, struct husk_error *err)
{
	const char *id = request_path(request, "id");
	struct husk_sandbox *sandbox = NULL;

	if (husk_inspect(request_husk(request), id, &sandbox, err) < 0) {
		if (err->code == HUSK_INVALID || err->code == HUSK_NOT_FOUND)
			return husk_fail(err, HUSK_NOT_FOUND, "Sandbox with ID or name %.64s not found", id);
		return -1;
	}
	if (sandbox->state == HUSK_ENDED) {
		husk_fail(err, HUSK_NOT_FOUND, "Sandbox with ID or name %.64s not found: it has ended (%s)", id,
			  sandbox->end_reason ? sandbox->end_reason : "killed");
		husk_sandbox_free(sandbox);
		return -1;
	}
	return daytona_box_of(sandbox, box, err);
}

int daytona_enter(struct request *request, struct daytona_box *box, struct husk_error *err)
{
	if (daytona_find(request, box, err) < 0)
		return -1;
	if (box->sandbox->state == HUSK_RUNNING)
		return 0;
	return daytona_fail(request, 400, "BAD_REQUEST", "the sandbox %s is %s, not started; start it first",
			    box->sandbox->id, daytona_state(box));
}

struct husk_pair *daytona_metadata(json_t *labels, json_t *settings, size_t *count, char **text)
{
	struct husk_pair *pairs = calloc(json_object_size(labels) + 1, sizeof(*pairs));
	const char *name;
	json_t *value;
	size_t at = 0;

	*text = json_dumps(settings, JSON_COMPACT);
	if (!pairs || !*text) {
		free(pairs);
		return NULL;
	}
	json_object_foreach(labels, name, value) pairs[at++] = (struct husk_pair){ name, json_string_value(value) };
	pairs[at++] = (struct husk_pair){ SETTINGS_KEY, *text };
	*count = at;
	return pairs;
}

/* Metadata that is neither a label nor ours belongs to another API and stays. */
static int keep_others(const struct daytona_box *box, json_t *labels)
{
	int failed = 0;

	for (size_t i = 0; i < box->sandbox->metadata_count; i++) {
		const struct husk_pair *pair = &box->sandbox->metadata[i];
		if (str_starts(pair->key, RESERVED) && !str_equal(pair->key, SETTINGS_KEY))
			failed |= json_object_set_new(labels, pair->key, json_string(pair->value));
	}
	return failed;
}

int daytona_save(struct request *request, struct daytona_box *box, json_t *labels, struct husk_error *err)
{
	cleanup_json json_t *kept = labels ? json_copy(labels) : daytona_labels(box);
	cleanup_free struct husk_pair *pairs = NULL;
	cleanup_free char *text = NULL;
	size_t count = 0;

	if (!kept || keep_others(box, kept) < 0 || !(pairs = daytona_metadata(kept, box->settings, &count, &text)))
		return husk_fail_memory(err);
	return husk_set_metadata(request_husk(request), box->sandbox->id, pairs, count, err);
}

json_t *daytona_labels(const struct daytona_box *box)
{
	json_t *labels = json_object();

	for (size_t i = 0; labels && i < box->sandbox->metadata_count; i++)
		if (!str_starts(box->sandbox->metadata[i].key, RESERVED))
			json_object_set_new(labels, box->sandbox->metadata[i].key,
					    json_text0(box->sandbox->metadata[i].value));
	return labels;
}

int64_t daytona_idle_seconds(const json_t *settings)
{
	int64_t stop = json_integer_value(json_object_get(settings, "autoStopInterval"));
	int64_t pause = json_integer_value(json_object_get(settings, "autoPauseInterval"));

	return 60 * (stop && pause ? MIN(stop, pause) : MAX(stop, pause));
}

/* ---- the document ---- */

/* Daytona's state of a hibernated sandbox: the requested one, or the one of the interval that ended. After a long time
 * it is archived. */
static const char *asleep_as(const struct daytona_box *box)
{
	const char *word = daytona_text(box, "asleep");
	int64_t pause = daytona_int(box, "autoPauseInterval", 0), stop = daytona_int(box, "autoStopInterval", 0);
	int64_t archive = daytona_int(box, "autoArchiveInterval", 0), since = daytona_int(box, "sleptAt", 0);

	if (!word)
		word = pause && (!stop || pause <= stop) ? "paused" : "stopped";
	bool old = archive > 0 && since > 0 && time_wall_ms() - since >= archive * 60000;
	return old && str_equal(word, "stopped") ? "archived" : word;
}

const char *daytona_state(const struct daytona_box *box)
{
	switch (box->sandbox->state) {
	case HUSK_CREATING:
		return "creating";
	case HUSK_RUNNING:
		return "started";
	case HUSK_PAUSED:
		return "paused";
	case HUSK_HIBERNATED:
		return asleep_as(box);
	case HUSK_ENDED:
		break;
	}
	return "destroyed";
}

char *daytona_address(struct request *request)
{
	const char *host = request_header(request, "Host");
	bool good = host && *host &&
		    !host[strspn(host, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-.:[]")];

	if (good && !str_equal(request_remote(request), "unix"))
		return str_format("%s://%s" DAYTONA_PREFIX, request_secure(request) ? "https" : "http", host);
	return str_format("%s://127.0.0.1:%u" DAYTONA_PREFIX, request_secure(request) ? "https" : "http",
			  request_server_port(request));
}

/* Husk tells the names of volumes; Daytona's clients know them by their ids. */
static json_t *mounts_document(struct request *request, const struct daytona_box *box)
{
	json_t *array = json_array();

	for (size_t i = 0; array && i < box->sandbox->mount_count; i++) {
		const struct husk_mount *mount = &box->sandbox->mounts[i];
		cleanup_volume struct husk_volume *volume = NULL;
		bool known = husk_volume_inspect(request_husk(request), mount->volume, &volume, NULL) == 0;
		json_array_append_new(array,
				      json_pack("{s:s, s:s, s:s*}", "volumeId", known ? volume->id : mount->volume,
						"mountPath", mount->path, "subpath", mount->subpath));
	}
	return array;
}

/* Fields that only the whole document has. */
static int add_whole(struct request *request, json_t *document, const struct daytona_box *box)
{
	json_t *environment = json_object_get(box->settings, "env");
	int failed = json_object_set(document, "env", environment);

	if (!environment)
		failed = json_object_set_new(document, "env", json_object());
	return failed | json_object_set_new(document, "kvm", json_false()) |
	       json_object_set_new(document, "volumes", mounts_document(request, box));
}

static json_t *optional(const struct daytona_box *box, const char *name)
{
	return json_text0(daytona_text(box, name));
}

static int add_intervals(json_t *document, const struct daytona_box *box)
{
	static const struct {
		const char *name;
		int fallback;
	} intervals[] = { { "autoStopInterval", 0 },
			  { "autoPauseInterval", 0 },
			  { "autoArchiveInterval", 10080 },
			  { "autoDeleteInterval", -1 } };
	int failed = 0;

	for (size_t i = 0; i < ARRAY_SIZE(intervals); i++)
		failed |= json_object_set_new(document, intervals[i].name,
					      json_integer(daytona_int(box, intervals[i].name, intervals[i].fallback)));
	int64_t end = daytona_int(box, "destroyAt", 0);
	return failed | json_object_set_new(document, "autoDestroyAt", json_time(end));
}

static const char *desired(const char *state)
{
	return str_equal(state, "creating") ? "started" : state;
}

json_t *daytona_document(struct request *request, const struct daytona_box *box, bool listed)
{
	const struct husk_sandbox *sandbox = box->sandbox;
	cleanup_free char *address = daytona_address(request);
	const char *state = daytona_state(box), *target = daytona_text(box, "target");
	int64_t updated = daytona_int(box, "updatedAt", sandbox->created_ms);

	/* clang-format off */
	cleanup_json json_t *document = json_pack(
		"{s:s, s:s, s:s, s:o, s:s, s:o, s:b, s:b, s:o, s:o, s:s, s:I, s:i, s:I, s:I, s:s, s:s, s:n, s:b, s:o, s:o, s:o,"
		" s:s, s:s, s:o}",
		"id", sandbox->id,
		"organizationId", sandbox->tenant ? sandbox->tenant : "husk",
		"name", sandbox->name ? sandbox->name : sandbox->id,
		"snapshot", json_text0(snapshot_of(box)),
		"user", box->user,
		"labels", daytona_labels(box),
		"public", daytona_bool(box, "public"),
		"networkBlockAll", str_equal(sandbox->egress_mode, "off"),
		"networkAllowList", optional(box, "networkAllowList"),
		"domainAllowList", optional(box, "domainAllowList"),
		"target", target ? target : "local",
		"cpu", (json_int_t)MAX(1u, (sandbox->cpu_milli + 999) / 1000),
		"gpu", 0,
		"memory", (json_int_t)MAX(1u, (sandbox->memory_bytes + GIB - 1) / GIB),
		"disk", (json_int_t)MAX(1u, (sandbox->disk_bytes + GIB - 1) / GIB),
		"state", state,
		"desiredState", desired(state),
		"errorReason",
		"recoverable", false,
		"createdAt", json_time(sandbox->created_ms),
		"updatedAt", json_time(updated),
		"lastActivityAt", json_time(MAX(updated, daytona_int(box, "activityAt", 0))),
		"sandboxClass", str_equal(sandbox->isolation, "gvisor") ? "container" : "linux-vm",
		"daemonVersion", DAYTONA_DAEMON_VERSION,
		"toolboxProxyUrl", address ? json_sprintf("%s/toolbox", address) : NULL);
	/* clang-format on */
	if (!document || add_intervals(document, box) < 0 || (!listed && add_whole(request, document, box) < 0))
		return NULL;
	return steal_pointer(document);
}

int daytona_respond(struct request *request, const char *id, struct husk_error *err)
{
	cleanup_box struct daytona_box box = { 0 };
	struct husk_sandbox *sandbox = NULL;

	if (husk_inspect(request_husk(request), id, &sandbox, err) < 0 || daytona_box_of(sandbox, &box, err) < 0)
		return -1;
	return respond_json(request, 200, daytona_document(request, &box, false), err);
}
