/*
 * The JSON form of sandboxes, snapshots and templates, and JSON strings from untrusted bytes. Used by the command line, the
 * server and MCP. Bytes that are not UTF-8 must never get through.
 */
#include <openssl/evp.h>

#include "json/json.h"

/* Length of the valid UTF-8 sequence at `bytes`; 0 if there is none. */
static size_t utf8_sequence(const char *bytes, size_t size)
{
	for (size_t length = 1; length <= 4 && length <= size; length++)
		if (str_is_utf8(bytes, length))
			return length;
	return 0;
}

json_t *json_text(const char *bytes, size_t size)
{
	cleanup_buf struct buf repaired = { 0 };

	if (str_is_utf8(bytes, size))
		return json_stringn_nocheck(bytes, size);
	for (size_t at = 0; at < size;) {
		size_t length = utf8_sequence(bytes + at, size - at);
		int result = length ? buf_append(&repaired, bytes + at, length)
				    : buf_append_string(&repaired, "\xef\xbf\xbd");
		if (result < 0)
			return NULL;
		at += length ? length : 1;
	}
	return json_stringn_nocheck(repaired.data, repaired.size);
}

json_t *json_text0(const char *text)
{
	return text ? json_text(text, strlen(text)) : json_null();
}

json_t *json_texts(char *const *list)
{
	cleanup_json json_t *array = json_array();

	for (size_t i = 0; array && list && list[i]; i++)
		if (json_array_append_new(array, json_text0(list[i])) < 0)
			return NULL;
	return steal_pointer(array);
}

json_t *json_time(int64_t wall_ms)
{
	char text[25];

	if (wall_ms == 0)
		return json_null();
	time_format(wall_ms, text);
	return json_string(text);
}

static char *base64_encode(const char *bytes, size_t size)
{
	if (size > INT32_MAX / 2)
		return NULL;
	char *text = malloc((size + 2) / 3 * 4 + 1);
	if (text)
		EVP_EncodeBlock((unsigned char *)text, (const unsigned char *)bytes, (int)size);
	return text;
}

json_t *json_base64(const char *bytes, size_t size)
{
	cleanup_free char *text = base64_encode(bytes, size);

	return text ? json_string_nocheck(text) : NULL;
}

int base64_decode(const char *field, const char *text, size_t size, struct buf *out, struct husk_error *err)
{
	static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	size_t padding = 0;

	while (padding < 2 && padding < size && text[size - 1 - padding] == '=')
		padding++;
	if (!text || size % 4 != 0 || size > INT32_MAX || strspn(text, alphabet) < size - padding)
		return husk_fail_field(
			err, field, "'%s' is not base64; encode the bytes with padding and without line breaks", field);
	if (buf_reserve(out, size + 1) < 0)
		return husk_fail_memory(err);
	if (size > 0)
		EVP_DecodeBlock((unsigned char *)out->data + out->size, (const unsigned char *)text, (int)size);
	out->size += size / 4 * 3 - padding;
	out->data[out->size] = '\0';
	return 0;
}

int json_set_bytes(json_t *object, const char *key, const char *bytes, size_t size)
{
	const char *data = bytes ? bytes : "";

	if (json_object_set_new(object, key, json_text(data, size)) < 0)
		return -1;
	if (str_is_utf8(data, size))
		return 0;
	cleanup_free char *exact_key = str_format("%s_base64", key);
	cleanup_free char *exact = base64_encode(data, size);
	if (!exact_key || !exact)
		return -1;
	return json_object_set_new(object, exact_key, json_string(exact));
}

static json_t *json_pairs(const struct husk_pair *pairs, size_t count)
{
	cleanup_json json_t *object = json_object();

	for (size_t i = 0; object && i < count; i++)
		if (json_object_set_new_nocheck(object, pairs[i].key, json_text0(pairs[i].value)) < 0)
			return NULL;
	return steal_pointer(object);
}

static json_t *json_mounts(const struct husk_mount *mounts, size_t count)
{
	cleanup_json json_t *array = json_array();

	for (size_t i = 0; array && i < count; i++)
		if (json_array_append_new(
			    array, json_pack("{s:o, s:o, s:b, s:o*}", "volume", json_text0(mounts[i].volume), "path",
					     json_text0(mounts[i].path), "read_only", mounts[i].read_only, "subpath",
					     mounts[i].subpath ? json_text0(mounts[i].subpath) : NULL)) < 0)
			return NULL;
	return steal_pointer(array);
}

json_t *json_sandbox(const struct husk_sandbox *sandbox)
{
	/* clang-format off */
	return json_pack("{s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:s, s:o, s:o, s:o,"
			 " s:o, s:I, s:b, s:s, s:s, s:I, s:I, s:f, s:I, s:o, s:o, s:o, s:o}",
			 "id", sandbox->id,
			 "name", json_text0(sandbox->name),
			 "tenant", json_text0(sandbox->tenant),
			 "template", json_text0(sandbox->template_name),
			 "parent", json_text0(sandbox->parent),
			 "origin", json_text0(sandbox->origin),
			 "isolation", json_text0(sandbox->isolation),
			 "boundary", json_text0(sandbox->boundary),
			 "state", husk_state_name(sandbox->state),
			 "end_reason", json_text0(sandbox->end_reason),
			 "created_at", json_time(sandbox->created_ms),
			 "expires_at", json_time(sandbox->expires_ms),
			 "ended_at", json_time(sandbox->ended_ms),
			 "idle_seconds", (json_int_t)sandbox->idle_seconds,
			 "persistent", sandbox->persistent,
			 "on_expiry", sandbox->on_expiry,
			 "checkpoints", sandbox->checkpoints,
			 "memory_bytes", (json_int_t)sandbox->memory_bytes,
			 "disk_bytes", (json_int_t)sandbox->disk_bytes,
			 "cpus", (double)sandbox->cpu_milli / 1000,
			 "pids", (json_int_t)sandbox->pids,
			 "metadata", json_pairs(sandbox->metadata, sandbox->metadata_count),
			 "environment", json_texts(sandbox->environment_names),
			 "egress", json_text0(sandbox->egress_mode),
			 "volumes", json_mounts(sandbox->mounts, sandbox->mount_count));
	/* clang-format on */
}

json_t *json_snapshot(const struct husk_snapshot *snapshot)
{
	/* clang-format off */
	return json_pack("{s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:I, s:I, s:f, s:b, s:o}",
			 "id", snapshot->id,
			 "name", json_text0(snapshot->name),
			 "tags", json_texts(snapshot->tags),
			 "tenant", json_text0(snapshot->tenant),
			 "sandbox", json_text0(snapshot->sandbox),
			 "template", json_text0(snapshot->template_name),
			 "isolation", json_text0(snapshot->isolation),
			 "created_at", json_time(snapshot->created_ms),
			 "bytes", (json_int_t)snapshot->bytes,
			 "memory_bytes", (json_int_t)snapshot->memory_bytes,
			 "disk_bytes", (json_int_t)snapshot->disk_bytes,
			 "cpus", (double)snapshot->cpu_milli / 1000,
			 "shared", snapshot->shared,
			 "metadata", json_pairs(snapshot->metadata, snapshot->metadata_count));
	/* clang-format on */
}

static const char *const file_types[] = {
	[HUSK_FILE] = "file", [HUSK_DIRECTORY] = "directory", [HUSK_SYMLINK] = "symlink", [HUSK_OTHER] = "other"
};

json_t *json_file(const struct husk_file *file)
{
	const char *slash = strrchr(file->path, '/');
	char mode[16];

	snprintf(mode, sizeof(mode), "%04o", file->mode);
	/* clang-format off */
	cleanup_json json_t *document = json_pack(
		"{s:o, s:s, s:I, s:s, s:I, s:I, s:o, s:o, s:o, s:o}",
		"name", json_text0(slash && slash[1] ? slash + 1 : file->path),
		"type", file_types[file->type],
		"size", (json_int_t)file->size,
		"mode", mode,
		"uid", (json_int_t)file->uid,
		"gid", (json_int_t)file->gid,
		"user", json_text0(file->user),
		"group", json_text0(file->group),
		"target", json_text0(file->target),
		"modified_at", json_time(file->mtime_ms));
	/* clang-format on */
	if (!document || json_set_bytes(document, "path", file->path, strlen(file->path)) < 0)
		return NULL;
	return steal_pointer(document);
}

/* What a changed file was before; null where there is nothing to say. */
static int add_before(json_t *document, const struct husk_file *before)
{
	bool known = before->type != 0;
	char mode[16];

	snprintf(mode, sizeof(mode), "%04o", before->mode);
	return json_object_set_new(document, "old_type", known ? json_string(file_types[before->type]) : json_null()) |
	       json_object_set_new(document, "old_size", known ? json_integer((json_int_t)before->size) : json_null()) |
	       json_object_set_new(document, "old_mode", known ? json_string(mode) : json_null()) |
	       json_object_set_new(document, "old_uid", known ? json_integer(before->uid) : json_null()) |
	       json_object_set_new(document, "old_gid", known ? json_integer(before->gid) : json_null()) |
	       json_object_set_new(document, "old_target", json_text0(before->target));
}

json_t *json_changes(struct husk_change *const *list)
{
	cleanup_json json_t *array = json_array();

	for (size_t i = 0; list[i]; i++) {
		json_t *one = json_file(&list[i]->file);
		if (!one || json_object_set_new(one, "change", json_string(husk_change_name(list[i]->kind))) < 0 ||
		    add_before(one, &list[i]->before) < 0 || json_array_append_new(array, one) < 0)
			return NULL;
	}
	return steal_pointer(array);
}

json_t *json_differences(const struct husk_difference *list, size_t count)
{
	cleanup_json json_t *array = json_array();

	for (size_t i = 0; i < count; i++)
		if (json_array_append_new(array,
					  json_pack("{s:s, s:s, s:o, s:o, s:o}", "kind", list[i].kind, "change",
						    husk_change_name(list[i].change), "name", json_text0(list[i].name),
						    "before", json_text0(list[i].before), "after",
						    json_text0(list[i].after))) < 0)
			return NULL;
	return steal_pointer(array);
}

json_t *json_branches(const struct husk_branch *list, size_t count)
{
	cleanup_json json_t *array = json_array();

	for (size_t i = 0; i < count; i++)
		if (json_array_append_new(array,
					  json_pack("{s:o, s:o, s:o, s:b, s:o}", "plan", json_text0(list[i].plan),
						    "sandbox", json_text0(list[i].sandbox), "score",
						    list[i].scored ? json_real(list[i].score) : json_null(), "kept",
						    list[i].kept, "error", json_text0(list[i].error))) < 0)
			return NULL;
	return steal_pointer(array);
}

json_t *json_volume(const struct husk_volume *volume)
{
	return json_pack("{s:s, s:o, s:o, s:o, s:I, s:I, s:o}", "id", volume->id, "name", json_text0(volume->name),
			 "tenant", json_text0(volume->tenant), "created_at", json_time(volume->created_ms),
			 "limit_bytes", (json_int_t)volume->limit_bytes, "used_bytes", (json_int_t)volume->used_bytes,
			 "sandboxes", json_texts(volume->sandboxes));
}

json_t *json_template(const struct husk_template *template)
{
	/* clang-format off */
	return json_pack("{s:o, s:o, s:b, s:o, s:o, s:o, s:I, s:I, s:o, s:I}",
			 "name", json_text0(template->name),
			 "tenant", json_text0(template->tenant),
			 "built", true,
			 "digest", json_text0(template->digest),
			 "description", json_text0(template->description),
			 "isolation", json_text0(template->isolation),
			 "bytes", (json_int_t)template->bytes,
			 "disk_bytes", (json_int_t)template->disk_bytes,
			 "created_at", json_time(template->created_ms),
			 "old_versions", (json_int_t)template->old_versions);
	/* clang-format on */
}

static json_t *keys_of(json_t *object)
{
	json_t *list = json_array(), *value;
	const char *key;

	json_object_foreach(object, key, value)
	{
		json_array_append_new(list, json_string(key));
	}
	return list;
}

json_t *json_image(const struct husk_image *image)
{
	cleanup_json json_t *layers = json_array();

	for (size_t i = 0; i < image->layer_count; i++)
		if (json_array_append_new(layers, json_pack("{s:s, s:I}", "digest", image->layers[i].digest, "bytes",
							    (json_int_t)image->layers[i].bytes)) < 0)
			return NULL;
	cleanup_json json_t *config = image->config ? json_loads(image->config, 0, NULL) : NULL;
	/* clang-format off */
	return json_pack("{s:o, s:s, s:o, s:b, s:o, s:I, s:O, s:o, s:o, s:o, s:o, s:o, s:O*, s:O*, s:O*, s:I, s:I}",
			 "name", json_text0(image->name),
			 "digest", image->digest,
			 "template", json_text0(image->template_name),
			 "built", image->built,
			 "pulled_at", json_time(image->pulled_ms),
			 "bytes", (json_int_t)image->bytes,
			 "layers", layers,
			 "command", json_texts(image->command),
			 "env", json_texts(image->environment),
			 "user", json_text0(image->user),
			 "cwd", json_text0(image->cwd),
			 "ports", keys_of(json_object_get(config, "ExposedPorts")),
			 "labels", json_object_get(config, "Labels"),
			 "healthcheck", json_object_get(config, "Healthcheck"),
			 "stop_signal", json_object_get(config, "StopSignal"),
			 "sandboxes", (json_int_t)image->sandboxes,
			 "snapshots", (json_int_t)image->snapshots);
	/* clang-format on */
}

static json_t *quota(uint64_t limit)
{
	return limit ? json_integer((json_int_t)limit) : json_null();
}

json_t *json_token(const struct husk_token *token)
{
	/* clang-format off */
	return json_pack("{s:s, s:o, s:o, s:b, s:o, s:o, s:b, s:o, s:o, s:o}",
			 "id", token->id,
			 "name", json_text0(token->name),
			 "tenant", json_text0(token->tenant),
			 "admin", token->admin,
			 "created_at", json_time(token->created_ms),
			 "expires_at", json_time(token->expires_ms),
			 "revoked", token->revoked,
			 "max_sandboxes", quota(token->max_sandboxes),
			 "max_memory_bytes", quota(token->max_memory_bytes),
			 "max_snapshot_bytes", quota(token->max_snapshot_bytes));
	/* clang-format on */
}

json_t *json_checks(const struct husk_check *list, size_t count)
{
	static const char *const results[] = {
		[HUSK_CHECK_OK] = "ok", [HUSK_CHECK_WARN] = "warn", [HUSK_CHECK_FAIL] = "fail"
	};
	cleanup_json json_t *array = json_array();

	for (size_t i = 0; array && i < count; i++)
		if (json_array_append_new(array,
					  json_pack("{s:o, s:s, s:o}", "name", json_text0(list[i].name), "result",
						    results[list[i].result], "text", json_text0(list[i].text))) < 0)
			return NULL;
	return steal_pointer(array);
}

json_t *json_process_list(const struct husk_process_info *list, size_t count)
{
	cleanup_json json_t *array = json_array();

	for (size_t i = 0; array && i < count; i++) {
		const struct husk_process_info *process = &list[i];
		/* clang-format off */
		json_t *object = json_pack("{s:I, s:o, s:o, s:o, s:o, s:o, s:b, s:o, s:b, s:b, s:b, s:I, s:I}",
			"pid", (json_int_t)process->pid,
			"label", json_text0(process->label),
			"argv", json_texts(process->argv),
			"cwd", json_text0(process->cwd),
			"user", json_text0(process->user),
			"started_at", json_time(process->started_ms),
			"running", process->running,
			"exit_code", process->running ? json_null() : json_integer(process->exit_code),
			"timed_out", process->timed_out,
			"out_of_memory", process->out_of_memory,
			"terminal", process->terminal,
			"stdout_bytes", (json_int_t)process->stdout_bytes,
			"stderr_bytes", (json_int_t)process->stderr_bytes);
		/* clang-format on */
		if (json_array_append_new(array, object) < 0)
			return NULL;
	}
	return steal_pointer(array);
}

json_t *json_code_contexts(const struct husk_code_context *list, size_t count)
{
	cleanup_json json_t *array = json_array();

	for (size_t i = 0; array && i < count; i++)
		if (json_array_append_new(array, json_pack("{s:o, s:o, s:o, s:I}", "name", json_text0(list[i].name),
							   "language", json_text0(list[i].language), "cwd",
							   json_text0(list[i].cwd), "pid", (json_int_t)list[i].pid)) <
		    0)
			return NULL;
	return steal_pointer(array);
}

json_t *json_stats(const struct husk_stats *stats)
{
	/* clang-format off */
	return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}",
			 "cpu_us", (json_int_t)stats->cpu_us,
			 "memory_bytes", (json_int_t)stats->memory_bytes,
			 "memory_limit", (json_int_t)stats->memory_limit,
			 "disk_bytes", (json_int_t)stats->disk_bytes,
			 "disk_limit", (json_int_t)stats->disk_limit,
			 "processes", (json_int_t)stats->processes,
			 "network_sent", (json_int_t)stats->network_sent,
			 "network_received", (json_int_t)stats->network_received,
			 "network_connections", (json_int_t)stats->network_connections,
			 "network_denied", (json_int_t)stats->network_denied);
	/* clang-format on */
}

/* ---- lists ---- */

/* A NULL-terminated list as an array: `item` makes the document of one element. A macro, because the element types
 * differ. */
#define array_of(list, item)                                                                                           \
	({                                                                                                             \
		json_t *array_ = json_array();                                                                         \
		for (size_t i_ = 0; array_ && (list)[i_]; i_++)                                                        \
			if (json_array_append_new(array_, item((list)[i_])) < 0) {                                     \
				json_decref(array_);                                                                   \
				array_ = NULL;                                                                         \
			}                                                                                              \
		array_;                                                                                                \
	})

json_t *json_sandbox_list(struct husk_sandbox *const *list)
{
	return array_of(list, json_sandbox);
}

json_t *json_snapshots(struct husk_snapshot *const *list)
{
	return array_of(list, json_snapshot);
}

json_t *json_volumes(struct husk_volume *const *list)
{
	return array_of(list, json_volume);
}

json_t *json_templates(struct husk_template *const *list)
{
	return array_of(list, json_template);
}

json_t *json_build_event(const struct husk_build_event *event)
{
	static const char *const kinds[] = { "", "step", "cached", "output", "done", "note" };
	json_t *document =
		json_pack("{s:s, s:o}", "event", kinds[event->kind], "text", json_text(event->text, event->size));

	if (event->stage)
		json_object_update_new(document, json_pack("{s:o, s:I, s:I, s:I}", "stage", json_text0(event->stage),
							   "step", (json_int_t)event->step, "steps",
							   (json_int_t)event->steps, "line", (json_int_t)event->line));
	if (event->kind == HUSK_BUILD_OUTPUT)
		json_object_set_new(document, "stream", json_string(event->error_output ? "stderr" : "stdout"));
	if (event->kind == HUSK_BUILD_DONE)
		json_object_set_new(document, "duration_ms", json_integer(event->duration_ms));
	return document;
}

json_t *json_images(struct husk_image *const *list)
{
	return array_of(list, json_image);
}

json_t *json_tokens(struct husk_token *const *list)
{
	return array_of(list, json_token);
}
