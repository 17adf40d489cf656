/*
 * Parses the documents of container images (oci.h): index, manifest and config of an OCI layout, and manifest.json of
 * `docker save`. The functions are pure: text in, structures out. The text is untrusted: its size, depth and counts are
 * bounded, a missing member is an error with its name, and a digest must be hexadecimal before it becomes part of a path.
 */
#include "store/oci.h"

#include "base/jansson.h"

#define DEPTH_MAX 24
#define LAYERS_MAX 512
#define IMAGES_MAX 4096
#define ENVIRONMENT_MAX (128u << 10)
#define COMMAND_MAX (64u << 10)
#define USER_MAX 256
#define PATH_MAX_LENGTH 4095
#define PLATFORM_OS "linux"
#define PLATFORM_ARCHITECTURE "amd64"
#define REFERENCE "org.opencontainers.image.ref.name"
#define CONTAINERD_NAME "io.containerd.image.name"

static json_t *parse(const char *text, const char *where, struct husk_error *err)
{
	json_error_t why;
	size_t size = strlen(text);
	json_t *root = str_json_deeper(text, size, DEPTH_MAX) ? NULL : json_loadb(text, size, 0, &why);

	if (!json_is_object(root) && !json_is_array(root)) {
		husk_fail(err, HUSK_INVALID, "%s is not JSON that an image has", where);
		return NULL;
	}
	return root;
}

static const char *text_of(json_t *object, const char *key)
{
	return json_string_value(json_object_get(object, key));
}

void oci_image_free(struct oci_image *image)
{
	for (size_t i = 0; i < image->layer_count; i++)
		free(image->layers[i].path);
	free(image->layers);
	strv_free(image->environment);
	strv_free(image->command);
	free(image->user);
	free(image->directory);
	free(image->settings);
	*image = (struct oci_image){ 0 };
}

/* ---- digests ---- */

/* "sha256:<64 hexadecimal digits>" */
static int read_digest(const char *text, const char *where, char out[static OCI_HEX_LENGTH + 1], struct husk_error *err)
{
	static const char prefix[] = "sha256:";

	if (!text || !str_starts(text, prefix))
		return husk_fail(err, HUSK_INVALID, "%s has the digest '%.80s'; Husk reads sha256 only", where,
				 text ? text : "");
	text += strlen(prefix);
	if (strlen(text) != OCI_HEX_LENGTH || text[strspn(text, "0123456789abcdef")])
		return husk_fail(err, HUSK_INVALID, "%s has a digest that is not one: '%.80s'", where, text);
	memcpy(out, text, OCI_HEX_LENGTH + 1);
	return 0;
}

static int read_descriptor(json_t *descriptor, const char *where, char out[static OCI_HEX_LENGTH + 1], uint64_t *size,
			   struct husk_error *err)
{
	json_t *length = json_object_get(descriptor, "size");

	if (!json_is_integer(length) || json_integer_value(length) < 0)
		return husk_fail(err, HUSK_INVALID, "%s names a blob without its size", where);
	*size = (uint64_t)json_integer_value(length);
	return read_digest(text_of(descriptor, "digest"), where, out, err);
}

/* ---- names ---- */

/* "registry.example.com:5000/": the part before the name itself; returns its length, or 0. */
static size_t registry_length(const char *name)
{
	size_t length = strcspn(name, "/");

	if (name[length] != '/')
		return 0;
	bool host = memchr(name, '.', length) || memchr(name, ':', length) || strncmp(name, "localhost", length) == 0;
	return host ? length + 1 : 0;
}

/* The name without the registry's default folder, and with the default tag. */
static char *plain_name(const char *name)
{
	const char *last = strrchr(name, '/');

	if (str_starts(name, "library/"))
		name += strlen("library/");
	return str_format("%s%s", name, strchr(last ? last : name, ':') ? "" : ":latest");
}

bool oci_same_name(const char *a, const char *b)
{
	size_t skip_a = registry_length(a), skip_b = registry_length(b);

	if (skip_a && skip_b && (skip_a != skip_b || strncmp(a, b, skip_a) != 0))
		return false;
	cleanup_free char *plain_a = plain_name(a + skip_a), *plain_b = plain_name(b + skip_b);
	return str_equal(plain_a, plain_b);
}

static int add_name(char ***names, const char *name, const char *reference, struct husk_error *err)
{
	return strv_add(names, name) < 0 || strv_add(names, reference) < 0 ? husk_fail_memory(err) : 0;
}

/* An image may have its full name, its tag alone, or no name. */
static int index_names(json_t *index, const char *stem, char ***names, struct husk_error *err)
{
	json_t *entry;
	size_t i;

	json_array_foreach(json_object_get(index, "manifests"), i, entry)
	{
		json_t *annotations = json_object_get(entry, "annotations");
		const char *reference = text_of(annotations, REFERENCE), *whole = text_of(annotations, CONTAINERD_NAME);
		cleanup_free char *joined = reference ? str_format("%s:%s", stem, reference) : strdup(stem);

		if (!joined)
			return husk_fail_memory(err);
		if ((whole && add_name(names, whole, whole, err) < 0) ||
		    (reference && add_name(names, reference, reference, err) < 0) ||
		    add_name(names, joined, reference ? reference : "", err) < 0)
			return -1;
	}
	return 0;
}

int oci_names(const char *index, const char *manifest, const char *stem, char ***names, struct husk_error *err)
{
	cleanup_json json_t *first = index ? parse(index, "index.json", err) : NULL;
	cleanup_json json_t *second = manifest ? parse(manifest, "manifest.json", err) : NULL;
	json_t *entry, *tag;
	size_t i, k;

	if ((index && !first) || (manifest && !second))
		return -1;
	json_array_foreach(second, i, entry)
	{
		json_array_foreach(json_object_get(entry, "RepoTags"), k, tag)
		{
			const char *name = json_string_value(tag);
			if (name && add_name(names, name, name, err) < 0)
				return -1;
		}
	}
	return first ? index_names(first, stem, names, err) : 0;
}

/* ---- an index ---- */

static bool is_called(json_t *entry, const char *reference)
{
	json_t *annotations = json_object_get(entry, "annotations");

	return str_equal(text_of(annotations, REFERENCE), reference) ||
	       str_equal(text_of(annotations, CONTAINERD_NAME), reference);
}

/* An entry without a platform may be for any platform; its config decides. */
static bool fits(json_t *entry)
{
	json_t *platform = json_object_get(entry, "platform");

	return !platform || (str_equal(text_of(platform, "os"), PLATFORM_OS) &&
			     str_equal(text_of(platform, "architecture"), PLATFORM_ARCHITECTURE));
}

static int fail_several(json_t *entries, const char *where, struct husk_error *err)
{
	cleanup_buf struct buf names = { 0 };
	json_t *entry;
	size_t i;

	json_array_foreach(entries, i, entry)
	{
		json_t *annotations = json_object_get(entry, "annotations");
		const char *name = text_of(annotations, CONTAINERD_NAME);
		name = name ? name : text_of(annotations, REFERENCE);
		if (name && names.size < 300)
			buf_printf(&names, "%s'%.80s'", names.size ? ", " : "", name);
	}
	return husk_fail(err, HUSK_INVALID, "%s holds several images (%s); say which with --ref", where,
			 names.data ? names.data : "without names");
}

static int choose(const char *text, const char *where, const char *reference, bool first,
		  char digest[static OCI_HEX_LENGTH + 1], uint64_t *size, struct husk_error *err)
{
	cleanup_json json_t *root = parse(text, where, err);
	json_t *entries = json_object_get(root, "manifests"), *entry, *found = NULL;
	size_t i, called = 0;

	if (!root)
		return -1;
	if (!json_is_array(entries) || json_array_size(entries) > IMAGES_MAX)
		return husk_fail(err, HUSK_INVALID, "%s has no list of manifests", where);
	json_array_foreach(entries, i, entry)
	{
		if (reference && !is_called(entry, reference))
			continue;
		called++;
		/* The same image under two names counts once. */
		if (!fits(entry) || (found && first) ||
		    (found && str_equal(text_of(entry, "digest"), text_of(found, "digest"))))
			continue;
		if (found)
			return fail_several(entries, where, err);
		found = entry;
	}
	if (found)
		return read_descriptor(found, where, digest, size, err);
	if (reference && !called)
		return husk_fail(err, HUSK_NOT_FOUND, "%s has no image called '%.120s'", where, reference);
	return husk_fail(err, HUSK_INVALID, "%s has no image for %s/%s", where, PLATFORM_OS, PLATFORM_ARCHITECTURE);
}

int oci_choose(const char *text, const char *where, const char *reference, char digest[static OCI_HEX_LENGTH + 1],
	       uint64_t *size, struct husk_error *err)
{
	return choose(text, where, reference, false, digest, size, err);
}

int oci_choose_first(const char *text, const char *where, char digest[static OCI_HEX_LENGTH + 1], uint64_t *size,
		     struct husk_error *err)
{
	return choose(text, where, NULL, true, digest, size, err);
}

/* ---- a manifest ---- */

static int take_layer(json_t *layer, const char *where, struct oci_layer *out, struct husk_error *err)
{
	const char *type = text_of(layer, "mediaType");

	if (read_descriptor(layer, where, out->digest, &out->size, err) < 0)
		return -1;
	if (type && (!strstr(type, "tar") || strstr(type, "encrypted")))
		return husk_fail(err, HUSK_INVALID, "%s has a layer of the kind '%.80s', which is not a tar", where,
				 type);
	out->path = str_format("blobs/sha256/%s", out->digest);
	return out->path ? 0 : husk_fail_memory(err);
}

static int make_layers(json_t *list, const char *where, struct oci_image *out, struct husk_error *err)
{
	if (!json_is_array(list) || json_array_size(list) == 0 || json_array_size(list) > LAYERS_MAX)
		return husk_fail(err, HUSK_INVALID, "%s must list 1 to %d layers", where, LAYERS_MAX);
	out->layers = calloc(json_array_size(list), sizeof(*out->layers));
	if (!out->layers)
		return husk_fail_memory(err);
	out->layer_count = json_array_size(list);
	return 0;
}

int oci_manifest(const char *text, const char *where, struct oci_image *out, char config[static OCI_HEX_LENGTH + 1],
		 uint64_t *size, struct husk_error *err)
{
	cleanup_json json_t *root = parse(text, where, err);
	json_t *layers = json_object_get(root, "layers"), *layer;
	const char *type = text_of(json_object_get(root, "config"), "mediaType");
	size_t i;

	if (!root)
		return -1;
	if (json_object_get(root, "manifests") && !layers)
		return 1;
	if (json_object_get(root, "manifests"))
		return husk_fail(err, HUSK_INVALID, "%s is both an index and a manifest", where);
	if (type && !strstr(type, "image.config") && !strstr(type, "container.image"))
		return husk_fail(err, HUSK_INVALID, "%s is of '%.80s', not of a container image", where, type);
	if (make_layers(layers, where, out, err) < 0)
		return -1;
	json_array_foreach(layers, i, layer)
	{
		if (take_layer(layer, where, &out->layers[i], err) < 0)
			return -1;
	}
	return read_descriptor(json_object_get(root, "config"), where, config, size, err);
}

/* ---- output of docker save ---- */

static bool is_tagged(json_t *entry, const char *reference)
{
	json_t *tag;
	size_t i;

	json_array_foreach(json_object_get(entry, "RepoTags"), i, tag)
	{
		if (str_equal(json_string_value(tag), reference))
			return true;
	}
	return false;
}

/* "<digest>.json", or "blobs/sha256/<digest>": the config's name is its digest. */
static int config_digest(const char *path, const char *where, char out[static OCI_HEX_LENGTH + 1],
			 struct husk_error *err)
{
	const char *slash = path ? strrchr(path, '/') : NULL, *name = slash ? slash + 1 : path;
	size_t length = name ? strspn(name, "0123456789abcdef") : 0;

	if (length != OCI_HEX_LENGTH || (name[length] && !str_equal(name + length, ".json")))
		return husk_fail(err, HUSK_INVALID, "%s names the config '%.120s', which is not its digest", where,
				 path ? path : "");
	memcpy(out, name, OCI_HEX_LENGTH);
	out[OCI_HEX_LENGTH] = '\0';
	return 0;
}

static int docker_image(json_t *entry, const char *where, struct oci_image *out, char **config,
			char digest[static OCI_HEX_LENGTH + 1], struct husk_error *err)
{
	json_t *layers = json_object_get(entry, "Layers");
	const char *path = text_of(entry, "Config");

	if (config_digest(path, where, digest, err) < 0 || make_layers(layers, where, out, err) < 0)
		return -1;
	for (size_t i = 0; i < out->layer_count; i++) {
		const char *layer = json_string_value(json_array_get(layers, i));
		if (!layer || !*layer)
			return husk_fail(err, HUSK_INVALID, "%s has a layer (number %zu) without a path", where, i + 1);
		out->layers[i].path = strdup(layer);
		if (!out->layers[i].path)
			return husk_fail_memory(err);
	}
	*config = strdup(path);
	return *config ? 0 : husk_fail_memory(err);
}

int oci_docker(const char *text, const char *where, const char *reference, struct oci_image *out, char **config,
	       char digest[static OCI_HEX_LENGTH + 1], struct husk_error *err)
{
	cleanup_json json_t *root = parse(text, where, err);
	json_t *entry, *found = NULL;
	size_t i;

	if (!root)
		return -1;
	json_array_foreach(root, i, entry)
	{
		if (reference && !is_tagged(entry, reference))
			continue;
		if (found)
			return husk_fail(err, HUSK_INVALID, "%s holds several images; say which with --ref", where);
		found = entry;
	}
	if (found)
		return docker_image(found, where, out, config, digest, err);
	return reference ? husk_fail(err, HUSK_NOT_FOUND, "%s has no image called '%.120s'", where, reference)
			 : husk_fail(err, HUSK_INVALID, "%s lists no image", where);
}

/* ---- a config ---- */

/* Each variable becomes a line of the file that the agent reads. */
static int take_variables(json_t *list, const char *where, struct oci_image *out, struct husk_error *err)
{
	size_t i, total = 0;
	json_t *item;

	json_array_foreach(list, i, item)
	{
		const char *pair = json_string_value(item);
		size_t length = pair ? strcspn(pair, "=") : 0;

		if (!pair || length == 0 || pair[length] != '=' || pair[0] == '#' || strpbrk(pair, "\n\r") ||
		    strlen(pair) != json_string_length(item))
			return husk_fail(err, HUSK_INVALID,
					 "%s has a variable (number %zu) that is not one line of "
					 "KEY=value",
					 where, i + 1);
		total += strlen(pair) + 1;
		if (total > ENVIRONMENT_MAX)
			return husk_fail(err, HUSK_INVALID, "%s has more than %u bytes of variables", where,
					 ENVIRONMENT_MAX);
		if (strv_add(&out->environment, pair) < 0)
			return husk_fail_memory(err);
	}
	return 0;
}

static int take_digests(json_t *root, const char *where, struct oci_image *out, struct husk_error *err)
{
	json_t *list = json_object_get(json_object_get(root, "rootfs"), "diff_ids");

	if (json_array_size(list) != out->layer_count)
		return husk_fail(err, HUSK_INVALID, "%s speaks of %zu layers, and the image has %zu", where,
				 json_array_size(list), out->layer_count);
	for (size_t i = 0; i < out->layer_count; i++) {
		out->layers[i].unpacked = true;
		if (read_digest(json_string_value(json_array_get(list, i)), where, out->layers[i].digest, err) < 0)
			return -1;
	}
	return 0;
}

/* The words of ENTRYPOINT, then of CMD. */
static int take_words(json_t *list, const char *what, const char *where, size_t *total, struct oci_image *out,
		      struct husk_error *err)
{
	json_t *item;
	size_t i;

	if (list && !json_is_array(list) && !json_is_null(list))
		return husk_fail(err, HUSK_INVALID, "%s has a %s that is not a list of words", where, what);
	json_array_foreach(list, i, item)
	{
		const char *word = json_string_value(item);
		*total += json_string_length(item) + 1;
		if (!word || strlen(word) != json_string_length(item) || *total > COMMAND_MAX)
			return husk_fail(err, HUSK_INVALID, "%s has a %s with a word (number %zu) that is not one",
					 where, what, i + 1);
		if (strv_add(&out->command, word) < 0)
			return husk_fail_memory(err);
	}
	return 0;
}

/* A line of text that may be missing or empty; *out stays NULL then. */
static int take_line(json_t *value, const char *what, const char *where, size_t limit, char **out,
		     struct husk_error *err)
{
	const char *text = json_string_value(value);

	if (!text || !*text)
		return 0;
	if (strlen(text) != json_string_length(value) || strlen(text) > limit || strpbrk(text, "\n\r"))
		return husk_fail(err, HUSK_INVALID, "%s has a %s that is not one line of text", where, what);
	*out = strdup(text);
	return *out ? 0 : husk_fail_memory(err);
}

/* The defaults for the processes of the image. */
static int take_process(json_t *config, const char *where, struct oci_image *out, struct husk_error *err)
{
	size_t total = 0;

	if (take_words(json_object_get(config, "Entrypoint"), "Entrypoint", where, &total, out, err) < 0 ||
	    take_words(json_object_get(config, "Cmd"), "Cmd", where, &total, out, err) < 0 ||
	    take_line(json_object_get(config, "User"), "User", where, USER_MAX, &out->user, err) < 0 ||
	    take_line(json_object_get(config, "WorkingDir"), "WorkingDir", where, PATH_MAX_LENGTH, &out->directory,
		      err) < 0)
		return -1;
	if (out->directory && out->directory[0] != '/')
		return husk_fail(err, HUSK_INVALID, "%s has the WorkingDir '%.80s', which is not absolute", where,
				 out->directory);
	return 0;
}

int oci_config(const char *text, const char *where, bool digests, struct oci_image *out, struct husk_error *err)
{
	cleanup_json json_t *root = parse(text, where, err);
	const char *os = text_of(root, "os"), *architecture = text_of(root, "architecture");

	if (!root)
		return -1;
	if ((os && !str_equal(os, PLATFORM_OS)) || (architecture && !str_equal(architecture, PLATFORM_ARCHITECTURE)))
		return husk_fail(err, HUSK_INVALID, "%s is of an image for %.40s/%.40s; this host runs %s/%s", where,
				 os ? os : "?", architecture ? architecture : "?", PLATFORM_OS, PLATFORM_ARCHITECTURE);
	if (digests && take_digests(root, where, out, err) < 0)
		return -1;
	json_t *config = json_object_get(root, "config");
	if (json_is_object(config) && !(out->settings = json_dumps(config, JSON_COMPACT)))
		return husk_fail_memory(err);
	if (take_process(config, where, out, err) < 0)
		return -1;
	return take_variables(json_object_get(config, "Env"), where, out, err);
}
