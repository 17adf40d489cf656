/*
 * Reads the server's documents; see remote_read.h. jansson has parsed them: strings are UTF-8 without NUL, depth and
 * size are bounded. This file checks their fields.
 */
#include "remote/remote_read.h"

#include <openssl/evp.h>
#include <time.h>

/* ---- fields ---- */

static const json_t *find(struct reading *reading, const char *key)
{
	const json_t *value = json_object_get(reading->from, key);

	return json_is_null(value) ? NULL : value;
}

static void complain(struct reading *reading, const char *key)
{
	if (!reading->wrong)
		reading->wrong = key;
}

char *read_text(struct reading *reading, const char *key)
{
	const json_t *value = find(reading, key);

	if (!value)
		return NULL;
	if (!json_is_string(value)) {
		complain(reading, key);
		return NULL;
	}
	char *copy = strdup(json_string_value(value));
	reading->no_memory |= !copy;
	return copy;
}

char *read_needed(struct reading *reading, const char *key)
{
	char *text = read_text(reading, key);

	if (!text)
		complain(reading, key);
	return text;
}

int64_t read_number(struct reading *reading, const char *key)
{
	const json_t *value = find(reading, key);

	if (value && !json_is_integer(value))
		complain(reading, key);
	return json_integer_value(value);
}

uint64_t read_count(struct reading *reading, const char *key)
{
	int64_t value = read_number(reading, key);

	if (value < 0)
		complain(reading, key);
	return value < 0 ? 0 : (uint64_t)value;
}

static bool read_bool(struct reading *reading, const char *key)
{
	return json_is_true(find(reading, key));
}

int64_t read_time(struct reading *reading, const char *key)
{
	const char *text = json_string_value(find(reading, key));

	if (!find(reading, key))
		return 0;
	int64_t wall_ms = text ? time_parse(text) : -1;
	if (wall_ms < 0)
		complain(reading, key);
	return MAX(wall_ms, 0);
}

char **read_texts(struct reading *reading, const char *key)
{
	const json_t *array = find(reading, key);
	size_t count = json_array_size(array);
	char **list = calloc(count + 1, sizeof(*list));

	if (array && !json_is_array(array))
		complain(reading, key);
	for (size_t i = 0; list && i < count; i++) {
		const char *text = json_string_value(json_array_get(array, i));
		if (!text)
			complain(reading, key);
		list[i] = strdup(text ? text : "");
		if (!list[i]) {
			strv_free(list);
			list = NULL;
		}
	}
	reading->no_memory |= !list;
	return list;
}

int read_done(const struct reading *reading, const char *what, struct husk_error *err)
{
	if (reading->no_memory)
		return husk_fail_memory(err);
	if (!json_is_object(reading->from))
		return husk_fail(err, HUSK_PROTOCOL, "the server did not describe %s; is it of another version?", what);
	if (reading->wrong)
		return husk_fail(err, HUSK_PROTOCOL,
				 "the server described %s without a good '%s'; is it of another version?", what,
				 reading->wrong);
	return 0;
}

static void *allocate(size_t size, struct husk_error *err)
{
	void *zeroed = calloc(1, size);

	if (!zeroed)
		husk_fail_memory(err);
	return zeroed;
}

static struct husk_pair *read_pairs(struct reading *reading, const char *key, size_t *count)
{
	json_t *object = (json_t *)find(reading, key), *value;
	struct husk_pair *pairs = calloc(json_object_size(object) + 1, sizeof(*pairs));
	const char *name;

	*count = 0;
	reading->no_memory |= !pairs;
	if (object && !json_is_object(object))
		complain(reading, key);
	if (!pairs)
		return NULL;
	json_object_foreach(object, name, value)
	{
		struct husk_pair *pair = &pairs[(*count)++];
		const char *text = json_string_value(value);
		if (!text)
			complain(reading, key);
		pair->key = strdup(name);
		pair->value = strdup(text ? text : "");
		reading->no_memory |= !pair->key || !pair->value;
	}
	return pairs;
}

/* ---- sandboxes ---- */

static struct husk_mount *read_mounts(struct reading *reading, size_t *count)
{
	const json_t *array = find(reading, "volumes");
	struct husk_mount *mounts = calloc(json_array_size(array) + 1, sizeof(*mounts));

	*count = 0;
	for (size_t i = 0; mounts && i < json_array_size(array); i++) {
		struct reading each = { .from = json_array_get(array, i) };
		mounts[i] = (struct husk_mount){ .volume = read_needed(&each, "volume"),
						 .path = read_needed(&each, "path"),
						 .read_only = read_bool(&each, "read_only"),
						 .subpath = read_text(&each, "subpath") };
		(*count)++;
		if (each.wrong)
			complain(reading, "volumes");
		reading->no_memory |= each.no_memory;
	}
	reading->no_memory |= !mounts;
	return mounts;
}

static enum husk_state read_state(struct reading *reading)
{
	const char *name = json_string_value(find(reading, "state"));

	for (enum husk_state state = HUSK_CREATING; state <= HUSK_ENDED; state++)
		if (str_equal(name, husk_state_name(state)))
			return state;
	complain(reading, "state");
	return HUSK_ENDED;
}

static uint32_t read_milli(struct reading *reading, const char *key)
{
	double value = json_number_value(find(reading, key));

	if (!(value >= 0 && value < 1e6)) {
		complain(reading, key);
		return 0;
	}
	return (uint32_t)(value * 1000 + 0.5);
}

struct husk_sandbox *read_sandbox(const json_t *document, struct husk_error *err)
{
	struct reading r = { .from = document };
	struct husk_sandbox *out = allocate(sizeof(*out), err);

	if (!out)
		return NULL;
	*out = (struct husk_sandbox){
		.id = read_needed(&r, "id"),
		.name = read_text(&r, "name"),
		.tenant = read_text(&r, "tenant"),
		.template_name = read_text(&r, "template"),
		.parent = read_text(&r, "parent"),
		.origin = read_text(&r, "origin"),
		.isolation = read_text(&r, "isolation"),
		.boundary = read_text(&r, "boundary"),
		.state = read_state(&r),
		.end_reason = read_text(&r, "end_reason"),
		.created_ms = read_time(&r, "created_at"),
		.expires_ms = read_time(&r, "expires_at"),
		.ended_ms = read_time(&r, "ended_at"),
		.idle_seconds = read_number(&r, "idle_seconds"),
		.persistent = read_bool(&r, "persistent"),
		.on_expiry = str_equal(json_string_value(find(&r, "on_expiry")), "hibernate") ? "hibernate" : "kill",
		.checkpoints = str_equal(json_string_value(find(&r, "checkpoints")), "each-call") ? "each-call" : "off",
		.memory_bytes = read_count(&r, "memory_bytes"),
		.disk_bytes = read_count(&r, "disk_bytes"),
		.cpu_milli = read_milli(&r, "cpus"),
		.pids = (uint32_t)read_count(&r, "pids"),
		.environment_names = read_texts(&r, "environment"),
		.egress_mode = read_needed(&r, "egress"),
	};
	out->metadata = read_pairs(&r, "metadata", &out->metadata_count);
	out->mounts = read_mounts(&r, &out->mount_count);
	if (read_done(&r, "a sandbox", err) == 0)
		return out;
	husk_sandbox_free(out);
	return NULL;
}

/* ---- snapshots, templates, volumes, tokens ---- */

struct husk_snapshot *read_snapshot(const json_t *document, struct husk_error *err)
{
	struct reading r = { .from = document };
	struct husk_snapshot *out = allocate(sizeof(*out), err);

	if (!out)
		return NULL;
	*out = (struct husk_snapshot){
		.id = read_needed(&r, "id"),
		.name = read_text(&r, "name"),
		.tags = read_texts(&r, "tags"),
		.tenant = read_text(&r, "tenant"),
		.sandbox = read_text(&r, "sandbox"),
		.template_name = read_text(&r, "template"),
		.isolation = read_text(&r, "isolation"),
		.created_ms = read_time(&r, "created_at"),
		.bytes = read_count(&r, "bytes"),
		.memory_bytes = read_count(&r, "memory_bytes"),
		.disk_bytes = read_count(&r, "disk_bytes"),
		.cpu_milli = read_milli(&r, "cpus"),
		.shared = read_bool(&r, "shared"),
	};
	if (out->tags && !out->tags[0]) { /* husk.h: an empty list is NULL */
		strv_free(out->tags);
		out->tags = NULL;
	}
	out->metadata = read_pairs(&r, "metadata", &out->metadata_count);
	if (read_done(&r, "a snapshot", err) == 0)
		return out;
	husk_snapshot_free(out);
	return NULL;
}

enum husk_change_kind read_change_kind(const json_t *document)
{
	const char *word = json_string_value(json_object_get(document, "change"));

	for (enum husk_change_kind kind = HUSK_ADDED; kind <= HUSK_CHANGED; kind++)
		if (str_equal(word, husk_change_name(kind)))
			return kind;
	return 0;
}

int read_changed_files(const json_t *document, struct husk_checkpoint *out)
{
	const json_t *total = json_object_get(document, "files_changed"), *list = json_object_get(document, "files");
	size_t count = json_array_size(list);

	out->files_changed = json_is_integer(total) ? json_integer_value(total) : -1;
	out->files = calloc(count + 1, sizeof(*out->files));
	if (!out->files)
		return -1;
	for (size_t i = 0; i < count; i++) {
		const json_t *each = json_array_get(list, i);
		const char *path = json_string_value(json_object_get(each, "path"));
		struct husk_changed_file *file = &out->files[out->file_count];

		*file = (struct husk_changed_file){ .kind = read_change_kind(each),
						    .path = path ? strdup(path) : NULL };
		if (!path || !file->kind)
			free(file->path);
		else if (!file->path)
			return -1;
		else
			out->file_count++;
	}
	return 0;
}

struct husk_checkpoint *read_checkpoint(const json_t *document, struct husk_error *err)
{
	struct reading r = { .from = document };
	struct husk_checkpoint *out = allocate(sizeof(*out), err);

	if (!out)
		return NULL;
	*out = (struct husk_checkpoint){
		.number = (int64_t)read_count(&r, "number"),
		.label = read_text(&r, "label"),
		.parent = (int64_t)read_count(&r, "parent"),
		.created_ms = read_time(&r, "created_at"),
		.bytes = read_count(&r, "bytes"),
		.current = read_bool(&r, "current"),
		.automatic = json_is_true(json_object_get(document, "automatic")),
		.ran = read_text(&r, "ran"),
		.sent = read_count(&r, "sent"),
		.requests = read_count(&r, "requests"),
	};
	if (read_done(&r, "a checkpoint", err) == 0 && read_changed_files(document, out) == 0)
		return out;
	husk_checkpoint_free(out);
	return NULL;
}

struct husk_template *read_template(const json_t *document, struct husk_error *err)
{
	struct reading r = { .from = document };
	struct husk_template *out = allocate(sizeof(*out), err);

	if (!out)
		return NULL;
	*out = (struct husk_template){
		.name = read_needed(&r, "name"),
		.description = read_text(&r, "description"),
		.digest = read_text(&r, "digest"),
		.tenant = read_text(&r, "tenant"),
		.created_ms = read_time(&r, "created_at"),
		.bytes = read_count(&r, "bytes"),
		.disk_bytes = read_count(&r, "disk_bytes"),
		.isolation = read_text(&r, "isolation"),
		.old_versions = (size_t)read_count(&r, "old_versions"),
	};
	if (read_done(&r, "a template", err) == 0)
		return out;
	husk_template_free(out);
	return NULL;
}

/* What the image says, from the parts that its document has of it. NULL: no memory. */
static char *image_config(const json_t *document)
{
	static const char *const names[][2] = { { "labels", "Labels" },
						{ "healthcheck", "Healthcheck" },
						{ "stop_signal", "StopSignal" } };
	cleanup_json json_t *config = json_object(), *ports = json_object();
	const json_t *port;
	size_t i;

	json_array_foreach(json_object_get(document, "ports"), i, port)
	{
		if (json_is_string(port))
			json_object_set_new(ports, json_string_value(port), json_object());
	}
	if (json_object_size(ports))
		json_object_set(config, "ExposedPorts", ports);
	for (i = 0; i < ARRAY_SIZE(names); i++) {
		json_t *value = json_object_get(document, names[i][0]);
		if (value && !json_is_null(value))
			json_object_set(config, names[i][1], value);
	}
	return config ? json_dumps(config, JSON_COMPACT) : NULL;
}

struct husk_image *read_image(const json_t *document, struct husk_error *err)
{
	struct reading r = { .from = document };
	struct husk_image *out = allocate(sizeof(*out), err);

	if (!out)
		return NULL;
	*out = (struct husk_image){
		.name = read_needed(&r, "name"),
		.digest = read_needed(&r, "digest"),
		.template_name = read_text(&r, "template"),
		.built = json_is_true(json_object_get(document, "built")),
		.pulled_ms = read_time(&r, "pulled_at"),
		.bytes = read_count(&r, "bytes"),
		.command = read_texts(&r, "command"),
		.environment = read_texts(&r, "env"),
		.user = read_text(&r, "user"),
		.cwd = read_text(&r, "cwd"),
		.config = image_config(document),
		.sandboxes = (size_t)read_count(&r, "sandboxes"),
		.snapshots = (size_t)read_count(&r, "snapshots"),
	};
	r.no_memory |= !out->config;
	if (read_done(&r, "an image", err) == 0)
		return out;
	husk_image_free(out);
	return NULL;
}

struct husk_volume *read_volume(const json_t *document, struct husk_error *err)
{
	struct reading r = { .from = document };
	struct husk_volume *out = allocate(sizeof(*out), err);

	if (!out)
		return NULL;
	*out = (struct husk_volume){
		.id = read_needed(&r, "id"),
		.name = read_needed(&r, "name"),
		.tenant = read_text(&r, "tenant"),
		.created_ms = read_time(&r, "created_at"),
		.limit_bytes = read_count(&r, "limit_bytes"),
		.used_bytes = read_count(&r, "used_bytes"),
		.sandboxes = read_texts(&r, "sandboxes"),
	};
	if (read_done(&r, "a volume", err) == 0)
		return out;
	husk_volume_free(out);
	return NULL;
}

struct husk_token *read_token(const json_t *document, struct husk_error *err)
{
	struct reading r = { .from = document };
	struct husk_token *out = allocate(sizeof(*out), err);

	if (!out)
		return NULL;
	*out = (struct husk_token){
		.id = read_needed(&r, "id"),
		.name = read_needed(&r, "name"),
		.tenant = read_text(&r, "tenant"),
		.admin = read_bool(&r, "admin"),
		.created_ms = read_time(&r, "created_at"),
		.expires_ms = read_time(&r, "expires_at"),
		.revoked = read_bool(&r, "revoked"),
		.max_sandboxes = (uint32_t)read_count(&r, "max_sandboxes"),
		.max_memory_bytes = read_count(&r, "max_memory_bytes"),
		.max_snapshot_bytes = read_count(&r, "max_snapshot_bytes"),
	};
	if (read_done(&r, "a token", err) == 0)
		return out;
	husk_token_free(out);
	return NULL;
}

/* ---- the network ---- */

static const char *const *read_hosts(struct reading *reading, const char *key, size_t *count)
{
	char **list = read_texts(reading, key);

	*count = list ? strv_length(list) : 0;
	return (const char *const *)list;
}

static struct husk_secret *read_secrets(struct reading *reading, size_t *count)
{
	const json_t *array = find(reading, "secrets");
	struct husk_secret *list = calloc(json_array_size(array) + 1, sizeof(*list));

	*count = 0;
	for (size_t i = 0; list && i < json_array_size(array); i++) {
		struct reading each = { .from = json_array_get(array, i) };
		list[i].name = read_needed(&each, "name");
		list[i].header = read_text(&each, "header");
		list[i].hosts = read_hosts(&each, "hosts", &list[i].host_count);
		(*count)++;
		if (each.wrong)
			complain(reading, "secrets");
		reading->no_memory |= each.no_memory;
	}
	reading->no_memory |= !list;
	return list;
}

struct husk_egress *read_egress(const json_t *document, struct husk_error *err)
{
	struct reading r = { .from = document }, limits = { .from = json_object_get(document, "limits") };
	struct husk_egress *out = allocate(sizeof(*out), err);

	if (!out)
		return NULL;
	*out = (struct husk_egress){
		.mode = read_needed(&r, "mode"),
		.trust = read_text(&r, "trust"),
		.limit_bytes = read_count(&limits, "bytes"),
		.limit_rate = read_count(&limits, "rate"),
		.limit_connections = (uint32_t)read_count(&limits, "connections"),
	};
	out->allow = read_hosts(&r, "allow", &out->allow_count);
	out->deny = read_hosts(&r, "deny", &out->deny_count);
	out->hold = json_object_get(document, "hold") ? read_hosts(&r, "hold", &out->hold_count) : NULL;
	out->secrets = read_secrets(&r, &out->secret_count);
	if (limits.wrong)
		complain(&r, "limits");
	if (read_done(&r, "a network policy", err) == 0)
		return out;
	husk_egress_free(out);
	return NULL;
}

/* ---- files ---- */

/* A path that is not UTF-8 is sent in base64 as well. */
static char *read_path(struct reading *reading)
{
	const char *exact = json_string_value(find(reading, "path_base64"));
	size_t size = exact ? strlen(exact) : 0;

	if (!exact)
		return read_needed(reading, "path");
	unsigned char *bytes = size && size % 4 == 0 && size < 65536 ? calloc(1, size / 4 * 3 + 1) : NULL;
	if (bytes && EVP_DecodeBlock(bytes, (const unsigned char *)exact, (int)size) >= 0)
		return (char *)bytes;
	free(bytes);
	complain(reading, "path_base64");
	return NULL;
}

static enum husk_file_type type_of(const char *type)
{
	static const char *const types[] = {
		[HUSK_FILE] = "file", [HUSK_DIRECTORY] = "directory", [HUSK_SYMLINK] = "symlink", [HUSK_OTHER] = "other"
	};

	for (size_t i = HUSK_FILE; i < ARRAY_SIZE(types); i++)
		if (str_equal(type, types[i]))
			return (enum husk_file_type)i;
	return HUSK_OTHER;
}

int read_file(const json_t *document, struct husk_file *out, struct husk_error *err)
{
	struct reading r = { .from = document };
	const char *mode = json_string_value(find(&r, "mode")), *type = json_string_value(find(&r, "type"));

	*out = (struct husk_file){
		.path = read_path(&r),
		.type = type_of(type),
		.size = read_count(&r, "size"),
		.mode = mode ? (uint32_t)strtoul(mode, NULL, 8) & 07777 : 0,
		.uid = (uint32_t)read_count(&r, "uid"),
		.gid = (uint32_t)read_count(&r, "gid"),
		.user = read_text(&r, "user"),
		.group = read_text(&r, "group"),
		.target = read_text(&r, "target"),
		.mtime_ms = read_time(&r, "modified_at"),
		.atime_ms = read_time(&r, "accessed_at"),
		.ctime_ms = read_time(&r, "changed_at"),
	};
	if (read_done(&r, "a file", err) == 0)
		return 0;
	husk_file_free(out);
	return -1;
}

int read_before(const json_t *document, struct husk_file *out, struct husk_error *err)
{
	struct reading r = { .from = document };
	const char *mode = json_string_value(find(&r, "old_mode")), *type = json_string_value(find(&r, "old_type"));

	*out = (struct husk_file){ 0 };
	if (!type) /* not known, or a server from before */
		return 0;
	*out = (struct husk_file){
		.type = type_of(type),
		.size = read_count(&r, "old_size"),
		.mode = mode ? (uint32_t)strtoul(mode, NULL, 8) & 07777 : 0,
		.uid = (uint32_t)read_count(&r, "old_uid"),
		.gid = (uint32_t)read_count(&r, "old_gid"),
		.target = read_text(&r, "old_target"),
	};
	if (read_done(&r, "a change", err) == 0)
		return 0;
	husk_file_free(out);
	return -1;
}

/* ---- lists ---- */

const json_t *read_array(const json_t *document, const char *key, struct husk_error *err)
{
	const json_t *array = json_object_get(document, key);

	if (json_is_array(array))
		return array;
	husk_fail(err, HUSK_PROTOCOL, "the server answered without '%s'; is it of another version?", key);
	return NULL;
}

int read_list(const json_t *document, const char *key, void *(*read)(const json_t *item, struct husk_error *err),
	      void (*drop)(void *item), void ***out, struct husk_error *err)
{
	const json_t *array = read_array(document, key, err);
	size_t count = json_array_size(array);
	void **list = array ? calloc(count + 1, sizeof(*list)) : NULL;

	if (!list)
		return array ? husk_fail_memory(err) : -1;
	for (size_t i = 0; i < count; i++) {
		list[i] = read(json_array_get(array, i), err);
		if (list[i])
			continue;
		while (i > 0)
			drop(list[--i]);
		free(list);
		return -1;
	}
	*out = list;
	return 0;
}

int read_traffic(const json_t *document, struct husk_egress_traffic **out, size_t *count, struct husk_error *err)
{
	const json_t *array = read_array(document, "traffic", err);
	size_t size = json_array_size(array);
	struct husk_egress_traffic *list = array ? calloc(size + 1, sizeof(*list)) : NULL;
	if (!list)
		return array ? husk_fail_memory(err) : -1;
	for (size_t i = 0; i < size; i++) {
		struct reading r = { .from = json_array_get(array, i) };
		list[i] = (struct husk_egress_traffic){
			.host = read_needed(&r, "host"),
			.port = (uint16_t)read_count(&r, "port"),
			.sent = read_count(&r, "sent"),
			.received = read_count(&r, "received"),
			.connections = read_count(&r, "connections"),
			.denied = read_count(&r, "denied"),
		};
		if (read_done(&r, "what a sandbox sent", err) < 0) {
			husk_egress_traffic_list_free(list, i + 1);
			return -1;
		}
	}
	*out = list;
	*count = size;
	return 0;
}
