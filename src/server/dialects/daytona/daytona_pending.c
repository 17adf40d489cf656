/*
 * Creates from an image that has to be built first. Daytona's clients do not wait for the answer to such a create: they get a sandbox
 * with the state "pending_build", follow the log of its build, and ask for the sandbox until it is started.
 *
 *     POST /sandbox {buildInfo}      "pending_build", with the id pb-…
 *     GET /sandbox/pb-…              "building_snapshot", or "build_failed" with the reason
 *     GET …/pb-…/build-logs-url      where the log of the build is
 *     GET /sandbox/pb-…              "started", with the id of the sandbox
 *
 * Clients go on to use the first id, so it becomes the name of the sandbox; if the create has a name, the name is the first id. The
 * sandbox is made by the first question after the end of the build: a client that went away leaves none behind. The list lives in
 * this process, as builds do (daytona_builds.c). daytona_sandboxes.c calls it.
 */
#include "server/core.h"
#include "server/dialects/daytona/daytona.h"

#define KEPT_MAX 64 /* of one tenant */

struct entry {
	struct entry *next;
	char id[64];
	char *tenant; /* NULL: the instance itself */
	json_t *document, *body;
	char *build;
	bool claimed;
	char reason[1024];
};

/* Newest first; everything under the lock. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct entry *entries;

static void entry_free(struct entry *entry)
{
	json_decref(entry->document);
	json_decref(entry->body);
	free(entry->tenant);
	free(entry->build);
	free(entry);
}

void daytona_pending_free(struct daytona_pending *pending)
{
	json_decref(pending->document);
	json_decref(pending->body);
	free(pending->build);
}

static bool is_owners(const struct entry *entry, const struct request *request)
{
	if (entry->tenant)
		return request->caller == CALLER_TENANT && str_equal(entry->tenant, request->tenant);
	return request->caller == CALLER_INSTANCE;
}

static struct entry **place_of(const struct request *request, const char *id)
{
	for (struct entry **at = &entries; *at; at = &(*at)->next)
		if (str_equal((*at)->id, id) && is_owners(*at, request))
			return at;
	return NULL;
}

static void forget(struct entry **at)
{
	struct entry *entry = *at;

	*at = entry->next;
	entry_free(entry);
}

/* The oldest of too many is forgotten. */
static void make_room(const struct request *request)
{
	struct entry **last = NULL;
	size_t count = 0;

	for (struct entry **at = &entries; *at; at = &(*at)->next)
		if (is_owners(*at, request)) {
			last = at;
			count++;
		}
	if (count < KEPT_MAX)
		return;
	forget(last);
}

static int name_entry(struct entry *entry, json_t *document)
{
	const char *name = json_string_value(json_object_get(document, "name"));

	if (name && *name)
		snprintf(entry->id, sizeof(entry->id), "%s", name);
	else if (random_id("pb-", 16, entry->id) < 0)
		return -1;
	return json_object_set_new(document, "id", json_string(entry->id)) |
	       json_object_set_new(document, "name", json_string(entry->id)) |
	       json_object_set_new(entry->body, "name", json_string(entry->id));
}

int daytona_pending_add(struct request *request, json_t *document, const json_t *body, const char *build,
			struct husk_error *err)
{
	struct entry *entry = calloc(1, sizeof(*entry));
	bool tenant = request->caller == CALLER_TENANT;

	if (!entry)
		return husk_fail_memory(err);
	entry->tenant = tenant ? strdup(request->tenant) : NULL;
	entry->body = json_deep_copy(body);
	entry->build = strdup(build);
	if ((tenant && !entry->tenant) || !entry->body || !entry->build || name_entry(entry, document) < 0 ||
	    !(entry->document = json_deep_copy(document))) {
		entry_free(entry);
		return husk_fail_memory(err);
	}
	pthread_mutex_lock(&lock);
	bool taken = place_of(request, entry->id);
	if (!taken) {
		make_room(request);
		entry->next = entries;
		entries = entry;
	}
	pthread_mutex_unlock(&lock);
	if (!taken)
		return 0;
	husk_fail(err, HUSK_CONFLICT, "Sandbox with name %.64s already exists", entry->id);
	entry_free(entry);
	return -1;
}

bool daytona_is_pending(struct request *request, const char *id)
{
	pthread_mutex_lock(&lock);
	bool found = place_of(request, id);
	pthread_mutex_unlock(&lock);
	return found;
}

int daytona_pending_find(struct request *request, const char *id, bool claim, struct daytona_pending *out,
			 struct husk_error *err)
{
	*out = (struct daytona_pending){ 0 };
	pthread_mutex_lock(&lock);
	struct entry **at = place_of(request, id), *entry = at ? *at : NULL;
	bool complete = true;
	if (entry) {
		bool given = claim && !entry->claimed;
		out->document = json_deep_copy(entry->document);
		out->build = strdup(entry->build);
		out->body = given ? json_deep_copy(entry->body) : NULL;
		snprintf(out->reason, sizeof(out->reason), "%s", entry->reason);
		complete = out->document && out->build && (out->body || !given);
		entry->claimed |= given && complete;
	}
	pthread_mutex_unlock(&lock);
	if (!entry)
		return husk_fail(err, HUSK_NOT_FOUND, "Sandbox with ID or name %.64s not found", id);
	if (complete)
		return 0;
	daytona_pending_free(out);
	*out = (struct daytona_pending){ 0 };
	return husk_fail_memory(err);
}

bool daytona_pending_end(struct request *request, const char *id, const char *reason)
{
	pthread_mutex_lock(&lock);
	struct entry **at = place_of(request, id);
	bool found = at;
	if (at && reason)
		snprintf((*at)->reason, sizeof((*at)->reason), "%s", reason);
	else if (at)
		forget(at);
	pthread_mutex_unlock(&lock);
	return found;
}

void daytona_pending_remove(struct request *request, const char *id)
{
	cleanup_free char *build = NULL;
	bool shared = false;

	pthread_mutex_lock(&lock);
	struct entry **at = place_of(request, id), *entry = at ? *at : NULL;
	if (entry) {
		build = steal_pointer(entry->build);
		forget(at);
	}
	for (struct entry *each = entries; each; each = each->next)
		shared |= str_equal(each->build, build);
	pthread_mutex_unlock(&lock);
	if (build && !shared)
		daytona_build_remove(request, build);
}
