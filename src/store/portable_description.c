/*
 * The description and the manifest of a portable machine (portable.h), as JSON. An import reads them, and the text is
 * untrusted. So every value is checked: names are plain, digests are hexadecimal, the sizes of chunks add up to the size
 * of their file. An unknown field is ignored, so that a later Husk can add one.
 */
#include <openssl/evp.h>

#include "base/jansson.h"
#include "husk.h"
#include "store/portable.h"

#define CHUNKS_MAX (1u << 16)
#define FILE_BYTES_MAX (UINT64_C(256) << 30)
#define TEXT_MAX (64u << 10)
#define LIST_MAX 512
#define DEPTH_MAX 16
#define KEY_NOTE "dev.husk.key"
#define SIGNATURE_NOTE "dev.husk.signature"

static const char *const kinds[] = { [PORTABLE_SNAPSHOT] = "snapshot", [PORTABLE_TEMPLATE] = "template" };

/* ---- digests ---- */

int portable_digest(const void *bytes, size_t size, char out[static OCI_HEX_LENGTH + 1], struct husk_error *err)
{
	unsigned char sum[EVP_MAX_MD_SIZE];
	unsigned length = 0;

	if (EVP_Digest(bytes, size, sum, &length, EVP_sha256(), NULL) != 1 || length * 2 != OCI_HEX_LENGTH)
		return husk_fail(err, HUSK_INTERNAL, "cannot compute a sha256");
	for (unsigned i = 0; i < length; i++)
		snprintf(out + 2 * i, 3, "%02x", sum[i]);
	return 0;
}

bool portable_is_digest(const char *text)
{
	return text && strlen(text) == OCI_HEX_LENGTH && text[strspn(text, "0123456789abcdef")] == '\0';
}

/* ---- memory ---- */

void portable_free(struct portable *portable)
{
	for (size_t i = 0; i < portable->file_count; i++)
		free(portable->files[i].chunks);
	free(portable->files);
	free(portable->name);
	free(portable->husk);
	free(portable->isolation);
	free(portable->engine_version);
	free(portable->architecture);
	strv_free(portable->features);
	free(portable->template_name);
	free(portable->template_digest);
	free(portable->description);
	free(portable->metadata);
	free(portable->egress);
	strv_free(portable->environment);
	*portable = (struct portable){ 0 };
}

void portable_seal_free(struct portable_seal *seal)
{
	free(seal->key);
	free(seal->signature);
	*seal = (struct portable_seal){ 0 };
}

/* ---- writing ---- */

static json_t *list_of(char *const *list)
{
	json_t *array = json_array();

	for (size_t i = 0; list && list[i]; i++)
		json_array_append_new(array, json_string(list[i]));
	return array;
}

static json_t *file_of(const struct portable_file *file)
{
	json_t *chunks = json_array();

	for (size_t i = 0; i < file->count; i++)
		json_array_append_new(chunks,
				      json_pack("[s, I, I]", file->chunks[i].digest, (json_int_t)file->chunks[i].packed,
						(json_int_t)file->chunks[i].size));
	return json_pack("{s:s, s:I, s:o}", "name", file->name, "size", (json_int_t)file->size, "chunks", chunks);
}

char *portable_text(const struct portable *portable)
{
	json_t *files = json_array();

	for (size_t i = 0; i < portable->file_count; i++)
		json_array_append_new(files, file_of(&portable->files[i]));
	cleanup_json json_t *root = json_pack(
		"{s:i, s:s, s:s?, s:s, s:{s:s, s:s, s:s, s:o}, s:{s:s, s:s, s:s?}, s:I, s:I, s:I, s:i, s:i, s:s?, "
		"s:s?, s:o, s:o}",
		"format", PORTABLE_FORMAT, "kind", kinds[portable->kind], "name", portable->name, "husk", HUSK_VERSION,
		"needs", "isolation", portable->isolation, "version",
		portable->engine_version ? portable->engine_version : "", "architecture", portable->architecture,
		"features", list_of(portable->features), "template", "name", portable->template_name, "digest",
		portable->template_digest, "description", portable->description, "created_ms",
		(json_int_t)portable->created_ms, "memory_bytes", (json_int_t)portable->memory_bytes, "disk_bytes",
		(json_int_t)portable->disk_bytes, "cpu_milli", (int)portable->cpu_milli, "pids", (int)portable->pids,
		"metadata", portable->metadata, "egress", portable->egress, "environment",
		list_of(portable->environment), "files", files);

	return root ? json_dumps(root, JSON_COMPACT) : NULL;
}

/* Each chunk once, in the order of the files. */
static json_t *layers_of(const struct portable *portable)
{
	json_t *layers = json_array();
	cleanup_json json_t *seen = json_object();

	for (size_t i = 0; i < portable->file_count; i++)
		for (size_t k = 0; k < portable->files[i].count; k++) {
			const struct portable_chunk *chunk = &portable->files[i].chunks[k];
			if (json_object_get(seen, chunk->digest))
				continue;
			json_object_set_new(seen, chunk->digest, json_true());
			json_array_append_new(layers, json_pack("{s:s, s:o, s:I}", "mediaType", PORTABLE_CHUNK_TYPE,
								"digest", json_sprintf("sha256:%s", chunk->digest),
								"size", (json_int_t)chunk->packed));
		}
	return layers;
}

char *portable_manifest(const struct portable *portable, const char *digest, size_t size, const char *key,
			const char *signature)
{
	cleanup_json json_t *root =
		json_pack("{s:i, s:s, s:s, s:{s:s, s:o, s:I}, s:o, s:{s:s, s:s}}", "schemaVersion", 2, "mediaType",
			  PORTABLE_MANIFEST_TYPE, "artifactType", PORTABLE_TYPE, "config", "mediaType",
			  PORTABLE_CONFIG_TYPE, "digest", json_sprintf("sha256:%s", digest), "size", (json_int_t)size,
			  "layers", layers_of(portable), "annotations", KEY_NOTE, key, SIGNATURE_NOTE, signature);

	return root ? json_dumps(root, JSON_COMPACT) : NULL;
}

/* ---- reading ---- */

static int bad(struct husk_error *err, const char *what)
{
	return husk_fail(err, HUSK_INVALID, "the portable machine is damaged: %s", what);
}

static json_t *load(const char *text, size_t size, struct husk_error *err)
{
	json_t *root = NULL;

	if (size <= PORTABLE_DOCUMENT_MAX && !str_json_deeper(text, size, DEPTH_MAX))
		root = json_loadb(text, size, JSON_REJECT_DUPLICATES, NULL);
	if (json_is_object(root))
		return root;
	json_decref(root);
	bad(err, "a document of it is not JSON");
	return NULL;
}

static bool is_plain(const char *text)
{
	for (; *text; text++)
		if ((unsigned char)*text < ' ' || *text == 0x7f)
			return false;
	return true;
}

/* A text without control characters; *out is NULL if it is missing. */
static int take_text(json_t *object, const char *key, bool required, char **out, struct husk_error *err)
{
	json_t *value = json_object_get(object, key);
	const char *text = json_string_value(value);
	cleanup_free char *why = str_format("'%s' is missing or not a text", key);

	if (!value || json_is_null(value))
		return required ? bad(err, why ? why : key) : 0;
	if (!text || json_string_length(value) > TEXT_MAX || strlen(text) != json_string_length(value) ||
	    !is_plain(text))
		return bad(err, why ? why : key);
	*out = strdup(text);
	return *out ? 0 : husk_fail_memory(err);
}

static int take_list(json_t *array, char ***out, struct husk_error *err)
{
	size_t i;
	json_t *value;

	if (json_array_size(array) > LIST_MAX)
		return bad(err, "a list of it is too long");
	*out = calloc(1, sizeof(**out));
	if (!*out)
		return husk_fail_memory(err);
	json_array_foreach(array, i, value)
	{
		const char *text = json_string_value(value);
		if (!text || strlen(text) > 256 || strlen(text) != json_string_length(value) || !is_plain(text))
			return bad(err, "a list of it has other things than words");
		if (strv_add(out, text) < 0)
			return husk_fail_memory(err);
	}
	return 0;
}

static int take_number(json_t *object, const char *key, uint64_t most, uint64_t *out, struct husk_error *err)
{
	json_t *value = json_object_get(object, key);
	json_int_t number = json_integer_value(value);
	cleanup_free char *why = str_format("'%s' is not a number in its range", key);

	if (!json_is_integer(value) || number < 0 || (uint64_t)number > most)
		return bad(err, why ? why : key);
	*out = (uint64_t)number;
	return 0;
}

static bool name_valid(const char *name)
{
	static const char *const folders[] = { "root/", "image/", "files/" };
	const char *plain = NULL;

	for (size_t i = 0; i < ARRAY_SIZE(folders) && !plain; i++)
		plain = str_starts(name, folders[i]) ? name + strlen(folders[i]) : NULL;
	return plain && *plain && *plain != '.' && strlen(name) < PORTABLE_NAME_SIZE &&
	       plain[strspn(plain, "abcdefghijklmnopqrstuvwxyz0123456789._-")] == '\0';
}

static int take_chunk(json_t *entry, struct portable_chunk *out, struct husk_error *err)
{
	const char *digest = json_string_value(json_array_get(entry, 0));
	json_int_t packed = json_integer_value(json_array_get(entry, 1));
	json_int_t size = json_integer_value(json_array_get(entry, 2));

	if (!portable_is_digest(digest) || packed < 1 || packed > 2 * (json_int_t)PORTABLE_CHUNK_MAX || size < 1 ||
	    size > (json_int_t)PORTABLE_CHUNK_MAX)
		return bad(err, "a chunk has no digest or no size");
	memcpy(out->digest, digest, sizeof(out->digest));
	out->packed = (uint32_t)packed;
	out->size = (uint32_t)size;
	return 0;
}

static int take_file(json_t *entry, struct portable_file *out, size_t *chunks, struct husk_error *err)
{
	const char *name = json_string_value(json_object_get(entry, "name"));
	json_t *list = json_object_get(entry, "chunks");
	uint64_t sum = 0;

	if (!name || !name_valid(name))
		return bad(err, "the name of a file is not valid");
	snprintf(out->name, sizeof(out->name), "%s", name);
	if (take_number(entry, "size", FILE_BYTES_MAX, &out->size, err) < 0)
		return -1;
	if (!json_is_array(list) || json_array_size(list) > CHUNKS_MAX - *chunks)
		return bad(err, "it has too many chunks");
	out->count = json_array_size(list);
	*chunks += out->count;
	out->chunks = calloc(out->count + 1, sizeof(*out->chunks));
	if (!out->chunks)
		return husk_fail_memory(err);
	for (size_t i = 0; i < out->count; i++) {
		if (take_chunk(json_array_get(list, i), &out->chunks[i], err) < 0)
			return -1;
		sum += out->chunks[i].size;
	}
	return sum == out->size ? 0 : bad(err, "the chunks of a file do not add up to its size");
}

static int take_files(json_t *list, struct portable *out, struct husk_error *err)
{
	size_t chunks = 0;

	if (!json_is_array(list) || json_array_size(list) > PORTABLE_FILES_MAX)
		return bad(err, "it has no files, or too many");
	out->files = calloc(json_array_size(list) + 1, sizeof(*out->files));
	if (!out->files)
		return husk_fail_memory(err);
	for (size_t i = 0; i < json_array_size(list); i++) {
		out->file_count++;
		if (take_file(json_array_get(list, i), &out->files[i], &chunks, err) < 0)
			return -1;
		for (size_t k = 0; k < i; k++)
			if (str_equal(out->files[k].name, out->files[i].name))
				return bad(err, "two files have one name");
	}
	return 0;
}

static int take_limits(json_t *root, struct portable *out, struct husk_error *err)
{
	uint64_t cpu = 0, pids = 0, created = 0;

	if (take_number(root, "created_ms", INT64_MAX / 2, &created, err) < 0 ||
	    take_number(root, "memory_bytes", UINT64_C(1) << 40, &out->memory_bytes, err) < 0 ||
	    take_number(root, "disk_bytes", UINT64_C(16) << 40, &out->disk_bytes, err) < 0 ||
	    take_number(root, "cpu_milli", 1024 * 1000, &cpu, err) < 0 ||
	    take_number(root, "pids", 1u << 20, &pids, err) < 0)
		return -1;
	out->created_ms = (int64_t)created;
	out->cpu_milli = (uint32_t)cpu;
	out->pids = (uint32_t)pids;
	return 0;
}

static int take_kind(json_t *root, struct portable *out, struct husk_error *err)
{
	const char *kind = json_string_value(json_object_get(root, "kind"));
	json_int_t format = json_integer_value(json_object_get(root, "format"));

	if (take_text(root, "husk", true, &out->husk, err) < 0)
		return -1;
	if (format != PORTABLE_FORMAT)
		return husk_fail(err, HUSK_UNAVAILABLE,
				 "the portable machine has the format %lld of husk %.40s; this is husk " HUSK_VERSION
				 ", which knows format %d: update husk",
				 (long long)format, out->husk, PORTABLE_FORMAT);
	out->kind = str_equal(kind, kinds[PORTABLE_TEMPLATE]) ? PORTABLE_TEMPLATE : PORTABLE_SNAPSHOT;
	return str_equal(kind, kinds[out->kind]) ? 0 : bad(err, "it is neither a snapshot nor a template");
}

int portable_parse(const char *text, size_t size, struct portable *out, struct husk_error *err)
{
	cleanup_json json_t *root = load(text, size, err);
	json_t *needs = json_object_get(root, "needs"), *template = json_object_get(root, "template");

	if (!root || take_kind(root, out, err) < 0)
		return -1;
	if (take_text(root, "name", false, &out->name, err) < 0 ||
	    take_text(needs, "isolation", true, &out->isolation, err) < 0 ||
	    take_text(needs, "version", true, &out->engine_version, err) < 0 ||
	    take_text(needs, "architecture", true, &out->architecture, err) < 0 ||
	    take_list(json_object_get(needs, "features"), &out->features, err) < 0 ||
	    take_text(template, "name", true, &out->template_name, err) < 0 ||
	    take_text(template, "digest", true, &out->template_digest, err) < 0 ||
	    take_text(template, "description", false, &out->description, err) < 0 ||
	    take_text(root, "metadata", false, &out->metadata, err) < 0 ||
	    take_text(root, "egress", false, &out->egress, err) < 0 ||
	    take_list(json_object_get(root, "environment"), &out->environment, err) < 0)
		return -1;
	if (take_limits(root, out, err) < 0)
		return -1;
	return take_files(json_object_get(root, "files"), out, err);
}

int portable_parse_manifest(const char *text, size_t size, struct portable_seal *out, struct husk_error *err)
{
	cleanup_json json_t *root = load(text, size, err);
	json_t *config = json_object_get(root, "config"), *notes = json_object_get(root, "annotations");
	const char *digest = json_string_value(json_object_get(config, "digest"));
	const char *type = json_string_value(json_object_get(config, "mediaType"));

	if (!root)
		return -1;
	if (!str_equal(type, PORTABLE_CONFIG_TYPE))
		return husk_fail(
			err, HUSK_INVALID,
			"it is not a portable machine, but something of the type '%.80s'; container images are "
			"taken by husk pull and husk template build --image",
			type ? type : "unknown");
	if (!digest || !str_starts(digest, "sha256:") || !portable_is_digest(digest + 7))
		return bad(err, "its manifest names no description");
	snprintf(out->config, sizeof(out->config), "%s", digest + 7);
	if (take_number(config, "size", PORTABLE_DOCUMENT_MAX, &out->config_size, err) < 0)
		return -1;
	if (!json_object_get(notes, KEY_NOTE) || !json_object_get(notes, SIGNATURE_NOTE))
		return husk_fail(err, HUSK_DENIED, "the portable machine is not signed; export it with husk");
	return take_text(notes, KEY_NOTE, true, &out->key, err) < 0
		       ? -1
		       : take_text(notes, SIGNATURE_NOTE, true, &out->signature, err);
}
