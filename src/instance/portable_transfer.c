/*
 * Portable machines in registries. A push first reads the current manifest of the name: the registry has its chunks, so
 * they need no request each. For every other chunk, the push asks whether the registry has it, and sends it if not. The
 * manifest is sent last, so that an interrupted push changes nothing. A pull checks signature and key before it
 * downloads the first chunk, downloads what an import needs, and passes a tar to the import, in the format of an export.
 */
#include <fcntl.h>
#include <pthread.h>

#include "base/jansson.h"
#include "instance/portable.h"
#include "registry/registry.h"

#define THREADS 4
#define ATTEMPTS 4

void husk_pushed_free(struct husk_pushed *pushed)
{
	if (!pushed)
		return;
	free(pushed->name);
	free(pushed->digest);
	free(pushed);
}

static int parse_name(const char *text, struct reference *out, struct husk_error *err)
{
	if (!husk_image_is_name(text))
		return husk_fail_field(err, "name",
				       "'%.120s' names no registry; give REGISTRY/NAME:TAG, as in "
				       "localhost:5000/machines/mine:1",
				       text);
	return reference_parse(text, getenv("HUSK_REGISTRY"), out, err);
}

/* ---- several chunks at once ---- */

struct transfer {
	struct registry *registry;
	struct portable_pack *pack; /* of a download: where chunks go, with its sizes and offsets */
	json_t *present;            /* digests that are not to be sent */
	husk_progress progress;
	void *data;
	pthread_mutex_t lock; /* of all below */
	size_t next, sent;
	uint64_t done, all, sent_bytes;
	struct husk_error err;
	int (*each)(struct transfer *transfer, const struct portable_kept *chunk, char *buffer, struct husk_error *err);
};

/* Asked while a registry lets us wait. */
static bool stop_asked(void *data)
{
	struct transfer *transfer = data;

	pthread_mutex_lock(&transfer->lock);
	bool asked = transfer->progress && transfer->progress(transfer->data, transfer->done, transfer->all);
	pthread_mutex_unlock(&transfer->lock);
	return asked;
}

/* Again after a connection that broke. */
static int persist(struct transfer *transfer, const struct portable_kept *chunk, char *buffer, struct husk_error *err)
{
	struct husk_error why = { 0 };

	for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
		why = (struct husk_error){ 0 };
		if (transfer->each(transfer, chunk, buffer, &why) == 0)
			return 0;
		if (why.code != HUSK_UNAVAILABLE || registry_wait(transfer->registry, 200 << attempt, &why) < 0)
			break;
	}
	return husk_fail(err, why.code, "%s", why.message);
}

static void *transfer_some(void *data)
{
	struct transfer *transfer = data;
	cleanup_free char *buffer = malloc(2 * (size_t)PORTABLE_CHUNK_MAX);
	struct husk_error why = { 0 };

	pthread_mutex_lock(&transfer->lock);
	if (!buffer)
		husk_fail_memory(&transfer->err);
	while (!transfer->err.code && transfer->next < transfer->pack->count) {
		const struct portable_kept *chunk = &transfer->pack->kept[transfer->next++];
		pthread_mutex_unlock(&transfer->lock);
		int result = persist(transfer, chunk, buffer, &why);
		pthread_mutex_lock(&transfer->lock);
		transfer->done += chunk->size;
		if (result < 0 && !transfer->err.code)
			transfer->err = why;
		else if (transfer->progress && transfer->progress(transfer->data, transfer->done, transfer->all))
			husk_fail(&transfer->err, HUSK_GONE, "interrupted");
	}
	pthread_mutex_unlock(&transfer->lock);
	return NULL;
}

static int transfer_all(struct transfer *transfer, struct husk_error *err)
{
	pthread_t threads[THREADS];
	size_t started = 0;

	for (size_t i = 0; i < transfer->pack->count; i++)
		transfer->all += transfer->pack->kept[i].size;
	while (started + 1 < THREADS && pthread_create(&threads[started], NULL, transfer_some, transfer) == 0)
		started++;
	transfer_some(transfer);
	for (size_t i = 0; i < started; i++)
		pthread_join(threads[i], NULL);
	return transfer->err.code ? husk_fail(err, transfer->err.code, "%s", transfer->err.message) : 0;
}

/* ---- push ---- */

/* The digests in the manifest that the name has now; an empty object if there is none. */
static json_t *present_chunks(struct registry *registry, const struct reference *reference, struct husk_error *err)
{
	cleanup_free char *path = str_format("manifests/%s", reference->tag ? reference->tag : reference->digest);
	cleanup_free struct transport_reply *reply = calloc(1, sizeof(*reply));
	struct husk_error why = { 0 };
	json_t *present = json_object(), *layer;
	size_t i;

	if (!path || !reply || !present) {
		husk_fail_memory(err);
		json_decref(present);
		return NULL;
	}
	cleanup_free char *text =
		registry_get_text(registry, path, PORTABLE_MANIFEST_TYPE, PORTABLE_DOCUMENT_MAX, reply, &why);
	if (!text && why.code != HUSK_NOT_FOUND && why.code != HUSK_PROTOCOL) {
		husk_fail(err, why.code, "%s", why.message);
		json_decref(present);
		return NULL;
	}
	cleanup_json json_t *root = text && !str_json_deeper(text, strlen(text), 16) ? json_loads(text, 0, NULL) : NULL;
	json_array_foreach(json_object_get(root, "layers"), i, layer)
	{
		const char *digest = json_string_value(json_object_get(layer, "digest"));
		if (digest && str_starts(digest, "sha256:"))
			json_object_set_new(present, digest + 7, json_true());
	}
	return present;
}

static int send_chunk(struct transfer *transfer, const struct portable_kept *chunk, char *buffer,
		      struct husk_error *err)
{
	if (json_object_get(transfer->present, chunk->digest))
		return 0;
	int known = registry_has(transfer->registry, chunk->digest, err);
	if (known)
		return known < 0 ? -1 : 0;
	if (pread(transfer->pack->fd, buffer, chunk->size, (off_t)chunk->offset) != (ssize_t)chunk->size)
		return husk_fail_errno(err, "cannot read a chunk of the machine");
	if (registry_put_blob(transfer->registry, chunk->digest, buffer, chunk->size, err) < 0)
		return -1;
	pthread_mutex_lock(&transfer->lock);
	transfer->sent++;
	transfer->sent_bytes += chunk->size;
	pthread_mutex_unlock(&transfer->lock);
	return 0;
}

static int send_description(struct registry *registry, const char *text, struct husk_error *err)
{
	char digest[OCI_HEX_LENGTH + 1];

	if (portable_digest(text, strlen(text), digest, err) < 0)
		return -1;
	int known = registry_has(registry, digest, err);
	return known ? MIN(known, 0) : registry_put_blob(registry, digest, text, strlen(text), err);
}

static struct husk_pushed *result_of(const struct reference *reference, const char *manifest,
				     const struct transfer *transfer, struct husk_error *err)
{
	struct husk_pushed *pushed = calloc(1, sizeof(*pushed));
	char digest[OCI_HEX_LENGTH + 1];

	if (!pushed || portable_digest(manifest, strlen(manifest), digest, err) < 0) {
		free(pushed);
		husk_fail_memory(err);
		return NULL;
	}
	*pushed = (struct husk_pushed){ .name = reference_name(reference),
					.digest = str_format("sha256:%s", digest),
					.bytes = transfer->all,
					.sent_bytes = transfer->sent_bytes,
					.chunks = transfer->pack->count,
					.sent_chunks = transfer->sent };
	if (pushed->name && pushed->digest)
		return pushed;
	husk_pushed_free(pushed);
	husk_fail_memory(err);
	return NULL;
}

int portable_reach(const char *name, struct husk_error *err)
{
	cleanup(reference_free) struct reference reference = { 0 };
	cleanup_registry struct registry *registry = NULL;

	if (parse_name(name, &reference, err) < 0 || registry_open(&reference, NULL, NULL, &registry, err) < 0)
		return -1;
	registry_for_push(registry);
	cleanup_json json_t *present = present_chunks(registry, &reference, err);
	return present ? 0 : -1;
}

int portable_upload(const struct portable_export *export, const char *name, husk_progress progress, void *data,
		    struct husk_pushed **out, struct husk_error *err)
{
	cleanup(reference_free) struct reference reference = { 0 };
	cleanup_registry struct registry *registry = NULL;
	struct portable_pack pack = export->pack;

	if (parse_name(name, &reference, err) < 0)
		return -1;
	if (!reference.tag)
		return husk_fail_field(err, "name", "'%.120s' names a digest; a machine is pushed under a tag", name);
	struct transfer transfer = {
		.pack = &pack, .progress = progress, .data = data, .lock = PTHREAD_MUTEX_INITIALIZER, .each = send_chunk
	};
	if (registry_open(&reference, stop_asked, &transfer, &registry, err) < 0)
		return -1;
	registry_for_push(registry);
	cleanup_json json_t *present = present_chunks(registry, &reference, err);
	if (!present)
		return -1;
	transfer.registry = registry;
	transfer.present = present;
	if (transfer_all(&transfer, err) < 0 || send_description(registry, export->description, err) < 0 ||
	    registry_put_manifest(registry, PORTABLE_MANIFEST_TYPE, export->manifest, err) < 0)
		return -1;
	if (!out)
		return 0;
	*out = result_of(&reference, export->manifest, &transfer, err);
	return *out ? 0 : -1;
}

/* ---- pull ---- */

struct arriving {
	char *bytes;
	size_t have, size;
};

static int take_bytes(void *data, const struct transport_reply *reply, const char *bytes, size_t size,
		      struct husk_error *err)
{
	struct arriving *arriving = data;

	(void)reply;
	if (size > arriving->size - arriving->have)
		return husk_fail(err, HUSK_PROTOCOL, "the registry sends more than the %zu bytes of a chunk",
				 arriving->size);
	memcpy(arriving->bytes + arriving->have, bytes, size);
	arriving->have += size;
	return 0;
}

static int fetch_chunk(struct transfer *transfer, const struct portable_kept *chunk, char *buffer,
		       struct husk_error *err)
{
	struct arriving arriving = { .bytes = buffer, .size = chunk->size };
	cleanup_free char *path = str_format("blobs/sha256:%s", chunk->digest);
	cleanup_free struct transport_reply *reply = calloc(1, sizeof(*reply));
	const struct registry_request request = { .path = path, .sink = take_bytes, .data = &arriving };
	char digest[OCI_HEX_LENGTH + 1];

	if (!path || !reply)
		return husk_fail_memory(err);
	if (registry_get(transfer->registry, &request, reply, err) < 0)
		return -1;
	if (arriving.have < arriving.size)
		return husk_fail(err, HUSK_UNAVAILABLE, "the registry ends a chunk early");
	if (portable_digest(buffer, chunk->size, digest, err) < 0)
		return -1;
	if (!str_equal(digest, chunk->digest))
		return husk_fail(
			err, HUSK_PROTOCOL,
			"digest mismatch: the registry sends bytes with the sha256 %.12s… as %.12s…; nothing of "
			"them is kept",
			digest, chunk->digest);
	if (pwrite(transfer->pack->fd, buffer, chunk->size, (off_t)chunk->offset) != (ssize_t)chunk->size)
		return husk_fail_errno(err, "cannot keep a chunk of the machine");
	return 0;
}

/* The chunks of these folders, each once, with places for them. */
static int list_chunks(const struct portable *portable, const char *folders, struct portable_pack *out,
		       struct husk_error *err)
{
	cleanup_json json_t *seen = json_object();
	size_t room = 1;
	uint64_t offset = 0;

	for (size_t i = 0; i < portable->file_count; i++)
		room += portable->files[i].count;
	out->kept = calloc(room, sizeof(*out->kept));
	if (!out->kept || !seen)
		return husk_fail_memory(err);
	for (size_t i = 0; i < portable->file_count; i++) {
		const struct portable_file *file = &portable->files[i];
		cleanup_free char *folder = strndup(file->name, strcspn(file->name, "/"));
		for (size_t k = 0; folder && strstr(folders, folder) && k < file->count; k++) {
			if (json_object_get(seen, file->chunks[k].digest))
				continue;
			json_object_set_new(seen, file->chunks[k].digest, json_true());
			struct portable_kept *kept = &out->kept[out->count++];
			*kept = (struct portable_kept){ .offset = offset, .size = file->chunks[k].packed };
			memcpy(kept->digest, file->chunks[k].digest, sizeof(kept->digest));
			offset += kept->size;
		}
	}
	return 0;
}

struct documents {
	char *manifest, *description;
	struct portable_seal seal;
	struct portable portable;
};

static void documents_free(struct documents *documents)
{
	free(documents->manifest);
	free(documents->description);
	portable_seal_free(&documents->seal);
	portable_free(&documents->portable);
}

/* The manifest of the name, and the description, which a trusted key signed. */
static int fetch_documents(struct husk *husk, struct registry *registry, const struct reference *reference,
			   struct documents *out, struct husk_error *err)
{
	cleanup_free char *path = str_format("manifests/%s", reference->tag ? reference->tag : reference->digest);
	cleanup_free struct transport_reply *reply = calloc(1, sizeof(*reply));
	char digest[OCI_HEX_LENGTH + 1];

	if (!path || !reply)
		return husk_fail_memory(err);
	out->manifest = registry_get_text(registry, path, PORTABLE_MANIFEST_TYPE, PORTABLE_DOCUMENT_MAX, reply, err);
	if (!out->manifest || portable_digest(out->manifest, strlen(out->manifest), digest, err) < 0)
		return -1;
	if (reference->digest && !str_equal(reference->digest + strlen("sha256:"), digest))
		return husk_fail(err, HUSK_PROTOCOL, "digest mismatch: the registry sends another manifest");
	if (portable_parse_manifest(out->manifest, strlen(out->manifest), &out->seal, err) < 0 ||
	    portable_trusted(husk, out->seal.key, err) < 0 ||
	    portable_verify(out->seal.key, out->seal.signature, out->seal.config, err) < 0)
		return -1;
	cleanup_free char *blob = str_format("blobs/sha256:%s", out->seal.config);
	if (!blob)
		return husk_fail_memory(err);
	out->description = registry_get_text(registry, blob, NULL, PORTABLE_DOCUMENT_MAX, reply, err);
	if (!out->description || portable_digest(out->description, strlen(out->description), digest, err) < 0)
		return -1;
	if (!str_equal(digest, out->seal.config))
		return husk_fail(err, HUSK_PROTOCOL, "digest mismatch: the registry sends another description");
	return portable_parse(out->description, strlen(out->description), &out->portable, err);
}

static int write_tar(void *data, const void *bytes, size_t size)
{
	return write_full(*(int *)data, bytes, size);
}

static int temporary(struct husk *husk, struct husk_error *err)
{
	int fd = open(husk->paths.home, O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);

	return fd < 0 ? husk_fail_errno(err, "cannot make a file in '%s'", husk->paths.home) : fd;
}

int portable_download(struct husk *husk, const struct husk_import_options *options, bool as_template, int *held,
		      struct husk_error *err)
{
	cleanup(reference_free) struct reference reference = { 0 };
	cleanup(documents_free) struct documents documents = { 0 };
	cleanup(portable_pack_free) struct portable_pack pack = { .fd = -1 };
	cleanup_registry struct registry *registry = NULL;
	cleanup_close int tar = -1;
	struct transfer transfer = { .pack = &pack,
				     .progress = options->progress,
				     .data = options->data,
				     .lock = PTHREAD_MUTEX_INITIALIZER,
				     .each = fetch_chunk };

	if (parse_name(options->reference, &reference, err) < 0 ||
	    registry_open(&reference, stop_asked, &transfer, &registry, err) < 0 ||
	    fetch_documents(husk, registry, &reference, &documents, err) < 0)
		return -1;
	pack.fd = temporary(husk, err);
	tar = pack.fd < 0 ? -1 : temporary(husk, err);
	if (tar < 0 || list_chunks(&documents.portable, portable_folders(husk, &documents.portable, as_template, held),
				   &pack, err) < 0)
		return -1;
	transfer.registry = registry;
	if (transfer_all(&transfer, err) < 0)
		return -1;
	struct husk_error why = { 0 };
	if (portable_write(&pack, documents.description, documents.manifest, "machine", write_tar, &tar, &why) < 0)
		return why.code == HUSK_GONE ? husk_fail_errno(err, "cannot keep the portable machine")
					     : husk_fail(err, why.code, "%s", why.message);
	return steal_fd(&tar);
}
