/*
 * The order of a pull (pull.h): manifest (through an index, where there is one), config, then the layers on a few threads.
 * Documents are parsed by store/oci.c. blob.c fetches one blob.
 */
#include "registry/pull.h"

#include <inttypes.h>
#include <pthread.h>
#include <sys/statvfs.h>

#include "base/jansson.h"
#include "registry/blob.h"
#include "registry/registry.h"

#define DOCUMENT_MAX (4u << 20)
#define NESTING_MAX 3
#define WORKERS 4
#define TAGS_MAX 2000
#define BREAKS_MAX 3
#define LAYER_MAX (UINT64_C(1) << 40)
#define PROGRESS_MS 100
#define OCI_INDEX "application/vnd.oci.image.index.v1+json"
#define OCI_MANIFEST "application/vnd.oci.image.manifest.v1+json"
#define DOCKER_LIST "application/vnd.docker.distribution.manifest.list.v2+json"
#define DOCKER_MANIFEST "application/vnd.docker.distribution.manifest.v2+json"

struct pull {
	const struct reference *reference;
	const struct image_store *store;
	const struct pull_hooks *hooks;
	char *name; /* for errors */
	struct registry *registry;
	struct oci_image image;
	pthread_mutex_t lock; /* of what follows */
	struct pull_progress progress;
	int64_t told_ms;
	size_t next; /* layer to fetch */
	bool stopped, failed;
	struct husk_error why;
};

static void pull_close(struct pull *pull)
{
	registry_close(pull->registry);
	oci_image_free(&pull->image);
	free(pull->name);
	pthread_mutex_destroy(&pull->lock);
}

/* ---- progress ---- */

/* Calls the progress hook now and then; with the lock held. */
static void tell(struct pull *pull, bool now)
{
	int64_t at = time_monotonic_ms();

	if (!pull->hooks || !pull->hooks->progress || (!now && at - pull->told_ms < PROGRESS_MS))
		return;
	pull->told_ms = at;
	pull->stopped |= pull->hooks->progress(pull->hooks->data, &pull->progress) != 0;
}

static bool pull_stops(void *data)
{
	struct pull *pull = data;

	pthread_mutex_lock(&pull->lock);
	tell(pull, false);
	bool stops = pull->stopped || pull->failed;
	pthread_mutex_unlock(&pull->lock);
	return stops;
}

static void pull_count(void *data, int64_t bytes)
{
	struct pull *pull = data;

	pthread_mutex_lock(&pull->lock);
	pull->progress.bytes_done += (uint64_t)bytes; /* less than 0: begun again */
	tell(pull, false);
	pthread_mutex_unlock(&pull->lock);
}

/* ---- documents ---- */

int pull_kind(const char *type)
{
	if (str_equal(type, OCI_MANIFEST) || str_equal(type, DOCKER_MANIFEST))
		return 1;
	return str_equal(type, OCI_INDEX) || str_equal(type, DOCKER_LIST) ? 2 : 0;
}

int pull_tags(const char *text, char ***tags)
{
	size_t size = strlen(text), i;
	cleanup_json json_t *root = str_json_deeper(text, size, 8) ? NULL : json_loadb(text, size, 0, NULL);
	json_t *list = json_object_get(root, "tags"), *tag;

	json_array_foreach(list, i, tag)
	{
		const char *name = json_string_value(tag);
		if (i == TAGS_MAX)
			break;
		if (name && reference_is_tag(name) && strv_add(tags, name) < 0)
			return -1;
	}
	return 0;
}

static int take_document(void *data, const struct transport_reply *reply, const char *bytes, size_t size,
			 struct husk_error *err)
{
	struct buf *text = data;

	(void)reply;
	if (size > DOCUMENT_MAX - text->size)
		return husk_fail(err, HUSK_PROTOCOL, "the registry sends a manifest of more than %u bytes",
				 DOCUMENT_MAX);
	return buf_append(text, bytes, size) < 0 ? husk_fail_memory(err) : 0;
}

static int check_digest(const struct pull *pull, const struct buf *text, const char *wanted,
			char found[static OCI_HEX_LENGTH + 1], struct husk_error *err)
{
	if (blob_digest(text->data, text->size, found, err) < 0)
		return -1;
	if (!wanted || str_equal(found, wanted))
		return 0;
	return husk_fail(err, HUSK_PROTOCOL,
			 "%s: digest mismatch: the registry sends a manifest with the sha256 %.12s…, not %.12s…",
			 pull->name, found, wanted);
}

/* The tag of this repository that is nearest to the given one, for "did you mean". Failures here are not reported. */
static char *nearest_tag(struct pull *pull)
{
	cleanup_free struct transport_reply *reply = calloc(1, sizeof(*reply));
	cleanup_buf struct buf text = { 0 };
	cleanup_strv char **tags = NULL;
	const struct registry_request request = { .path = "tags/list", .sink = take_document, .data = &text };

	if (!reply || !pull->reference->tag || registry_get(pull->registry, &request, reply, NULL) < 0 ||
	    pull_tags(text.data ? text.data : "", &tags) < 0 || !tags)
		return NULL;
	const char *near = str_nearest(pull->reference->tag, (const char *const *)tags, strv_length(tags));
	return near ? strdup(near) : NULL;
}

static int fail_missing(struct pull *pull, const struct husk_error *why, struct husk_error *err)
{
	cleanup_free char *near = why->code == HUSK_NOT_FOUND ? nearest_tag(pull) : NULL;

	if (!near)
		return husk_fail(err, why->code, "%s", why->message);
	return husk_fail(err, HUSK_NOT_FOUND, "image '%s' is not in that registry; did you mean '%s/%s:%s'?",
			 pull->name, pull->reference->host, pull->reference->repository, near);
}

/* A manifest or index by tag or digest: its kind (pull_kind), text and digest. */
static int fetch_document(struct pull *pull, const char *what, const char *wanted, struct buf *text,
			  char digest[static OCI_HEX_LENGTH + 1], struct husk_error *err)
{
	cleanup_free char *path = str_format("manifests/%s", what);
	const struct registry_request request = {
		.path = path,
		.accept = OCI_INDEX ", " OCI_MANIFEST ", " DOCKER_LIST ", " DOCKER_MANIFEST,
		.sink = take_document,
		.data = text,
	};
	cleanup_free struct transport_reply *reply = calloc(1, sizeof(*reply));
	struct husk_error why = { 0 };
	int result = -1;

	if (!path || !reply)
		return husk_fail_memory(err);
	for (int breaks = 0; result < 0 && breaks < BREAKS_MAX; breaks++) {
		if (breaks && registry_wait(pull->registry, 300 << breaks, &why) < 0)
			break;
		text->size = 0;
		result = registry_get(pull->registry, &request, reply, &why);
		if (result < 0 && why.code != HUSK_UNAVAILABLE)
			break;
	}
	if (result < 0)
		return fail_missing(pull, &why, err);
	if (!text->data || memchr(text->data, '\0', text->size))
		return husk_fail(err, HUSK_PROTOCOL, "%s: the registry sends no manifest", pull->name);
	int kind = pull_kind(reply->type);
	if (!kind)
		return husk_fail(err, HUSK_INVALID,
				 "%s is of the media type '%.120s', which is not a container image that Husk reads",
				 pull->name, reply->type);
	if (!wanted && str_starts(reply->digest, "sha256:"))
		wanted = reply->digest + strlen("sha256:");
	return check_digest(pull, text, wanted, digest, err) < 0 ? -1 : kind;
}

/* Follows indexes to the manifest for this host; `text` then holds the manifest. */
static int find_manifest(struct pull *pull, struct buf *text, char digest[static OCI_HEX_LENGTH + 1],
			 char config[static OCI_HEX_LENGTH + 1], uint64_t *config_size, struct husk_error *err)
{
	const char *given = pull->reference->digest;
	char next[sizeof("sha256:") + OCI_HEX_LENGTH], wanted[OCI_HEX_LENGTH + 1];
	uint64_t size = 0;
	int kind = fetch_document(pull, given ? given : pull->reference->tag, given ? strchr(given, ':') + 1 : NULL,
				  text, digest, err);

	for (int depth = 0; kind == 2; depth++) {
		if (depth == NESTING_MAX)
			return husk_fail(err, HUSK_INVALID, "%s has more than %d indexes inside each other", pull->name,
					 NESTING_MAX);
		if (oci_choose_first(text->data, pull->name, wanted, &size, err) < 0)
			return -1;
		snprintf(next, sizeof(next), "sha256:%s", wanted);
		kind = fetch_document(pull, next, wanted, text, digest, err);
		if (kind > 0 && text->size != size)
			return husk_fail(err, HUSK_PROTOCOL, "%s: its index lies about the size of a manifest",
					 pull->name);
	}
	if (kind < 0)
		return -1;
	int index = oci_manifest(text->data, pull->name, &pull->image, config, config_size, err);
	return index > 0 ? husk_fail(err, HUSK_PROTOCOL, "%s: the registry sends an index as a manifest", pull->name)
			 : index;
}

/* ---- config and layers ---- */

static int fetch_blob(struct pull *pull, const char *digest, uint64_t size, bool counted, struct husk_error *err)
{
	const struct blob blob = {
		.registry = pull->registry,
		.store = pull->store,
		.name = pull->name,
		.digest = digest,
		.size = size,
		.count = counted ? pull_count : NULL,
		.stop = pull_stops,
		.data = pull,
	};

	return blob_fetch(&blob, err);
}

/* Downloads the config first, so that a wrong platform is found before anything large is downloaded. */
static int fetch_config(struct pull *pull, const char *digest, uint64_t size, struct husk_error *err)
{
	cleanup_free char *path = image_store_blob(pull->store, digest);

	if (size > DOCUMENT_MAX)
		return husk_fail(err, HUSK_INVALID, "%s has a config of %" PRIu64 " bytes", pull->name, size);
	if (!path)
		return husk_fail_memory(err);
	if (fetch_blob(pull, digest, size, false, err) < 0)
		return -1;
	cleanup_free char *text = file_read(path, DOCUMENT_MAX, NULL, err);
	return text ? oci_config(text, pull->name, false, &pull->image, err) : -1;
}

/* Is the layer a copy of an earlier one? */
static bool is_repeated(const struct oci_image *image, size_t layer)
{
	for (size_t i = 0; i < layer; i++)
		if (str_equal(image->layers[i].digest, image->layers[layer].digest))
			return true;
	return false;
}

static int check_space(struct pull *pull, struct husk_error *err)
{
	struct statvfs disk;

	for (size_t i = 0; i < pull->image.layer_count; i++) {
		const struct oci_layer *layer = &pull->image.layers[i];
		if (layer->size > LAYER_MAX)
			return husk_fail(err, HUSK_INVALID, "%s has a layer of %" PRIu64 " bytes", pull->name,
					 layer->size);
		if (!is_repeated(&pull->image, i) && !image_store_has(pull->store, layer->digest, layer->size))
			pull->progress.bytes += layer->size;
	}
	if (statvfs(pull->store->path, &disk) < 0)
		return husk_fail_errno(err, "cannot look at '%s'", pull->store->path);
	uint64_t room = (uint64_t)disk.f_bavail * disk.f_frsize;
	if (pull->progress.bytes > room)
		return husk_fail(err, HUSK_LIMIT,
				 "no space for %s: %" PRIu64 " MB are to be fetched, and %s has %" PRIu64
				 " MB left; husk image prune and husk gc make room",
				 pull->name, (pull->progress.bytes >> 20) + 1, pull->store->path, room >> 20);
	return 0;
}

static void worker_fails(struct pull *pull, const struct husk_error *why)
{
	pthread_mutex_lock(&pull->lock);
	if (!pull->failed)
		pull->why = *why;
	pull->failed = true;
	pthread_mutex_unlock(&pull->lock);
}

static void *worker_main(void *data)
{
	struct pull *pull = data;
	struct husk_error why = { 0 };

	for (;;) {
		pthread_mutex_lock(&pull->lock);
		size_t next = pull->failed || pull->stopped ? pull->image.layer_count : pull->next++;
		pthread_mutex_unlock(&pull->lock);
		if (next >= pull->image.layer_count)
			return NULL;
		const struct oci_layer *layer = &pull->image.layers[next];
		if (!is_repeated(&pull->image, next) && fetch_blob(pull, layer->digest, layer->size, true, &why) < 0) {
			worker_fails(pull, &why);
			return NULL;
		}
		pthread_mutex_lock(&pull->lock);
		pull->progress.layers_done++;
		tell(pull, true);
		pthread_mutex_unlock(&pull->lock);
	}
}

static int fetch_layers(struct pull *pull, struct husk_error *err)
{
	pthread_t threads[WORKERS];
	size_t started = 0, wanted = MIN(pull->image.layer_count, (size_t)WORKERS);

	pull->progress.layers = pull->image.layer_count;
	while (started < wanted && pthread_create(&threads[started], NULL, worker_main, pull) == 0)
		started++;
	if (started == 0)
		worker_main(pull);
	for (size_t i = 0; i < started; i++)
		pthread_join(threads[i], NULL);
	if (pull->stopped)
		return husk_fail(err, HUSK_GONE, "interrupted; what was fetched of %s is kept for the next pull",
				 pull->name);
	return pull->failed ? husk_fail(err, pull->why.code, "%s", pull->why.message) : 0;
}

static int run(struct pull *pull, struct image_entry *out, struct husk_error *err)
{
	cleanup_buf struct buf manifest = { 0 };
	char config[OCI_HEX_LENGTH + 1];
	uint64_t size = 0;

	if (registry_open(pull->reference, pull_stops, pull, &pull->registry, err) < 0 ||
	    find_manifest(pull, &manifest, out->manifest, config, &size, err) < 0 ||
	    fetch_config(pull, config, size, err) < 0 || check_space(pull, err) < 0 || fetch_layers(pull, err) < 0)
		return -1;
	out->size = manifest.size;
	out->pulled_ms = time_wall_ms();
	out->name = strdup(pull->name);
	if (!out->name)
		return husk_fail_memory(err);
	return image_store_write(pull->store, out->manifest, manifest.data, manifest.size, err);
}

int pull_image(const struct reference *reference, const struct image_store *store, const struct pull_hooks *hooks,
	       struct image_entry *out, struct husk_error *err)
{
	cleanup(pull_close) struct pull pull = {
		.reference = reference,
		.store = store,
		.hooks = hooks,
		.name = reference_name(reference),
		.lock = PTHREAD_MUTEX_INITIALIZER,
	};

	*out = (struct image_entry){ 0 };
	if (!pull.name)
		return husk_fail_memory(err);
	int result = run(&pull, out, err);
	if (result < 0)
		image_entry_free(out);
	return result;
}
