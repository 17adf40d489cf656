/*
 * The documents of requests; see remote_write.h. Values of secrets and environments pass through here and are not kept:
 * exchange_run frees the document, and remote_http.c overwrites its text.
 */
#include "remote/remote_write.h"

void write_begin(struct writing *writing)
{
	*writing = (struct writing){ .to = json_object() };
	writing->no_memory = !writing->to;
}

void write_json(struct writing *writing, const char *key, json_t *value)
{
	if (json_object_set_new(writing->to, key, value) < 0)
		writing->no_memory = true;
}

static json_t *text_of(struct writing *writing, const char *key, const char *value)
{
	if (!str_is_utf8(value, strlen(value)) && !writing->wrong)
		writing->wrong = key;
	return json_string(writing->wrong ? "" : value);
}

void write_text(struct writing *writing, const char *key, const char *value)
{
	if (value)
		write_json(writing, key, text_of(writing, key, value));
}

void write_number(struct writing *writing, const char *key, int64_t value)
{
	if (value)
		write_json(writing, key, json_integer(value));
}

void write_size(struct writing *writing, const char *key, uint64_t value)
{
	write_number(writing, key, value > INT64_MAX ? INT64_MAX : (int64_t)value);
}

void write_bool(struct writing *writing, const char *key, bool value)
{
	if (value)
		write_json(writing, key, json_true());
}

void write_pairs(struct writing *writing, const char *key, const struct husk_pair *pairs, size_t count)
{
	if (!count)
		return;
	write_json(writing, key, json_object());
	json_t *object = json_object_get(writing->to, key);
	for (size_t i = 0; i < count && object; i++) {
		const char *name = pairs[i].key ? pairs[i].key : "", *value = pairs[i].value ? pairs[i].value : "";
		if (!str_is_utf8(name, strlen(name)) && !writing->wrong)
			writing->wrong = key;
		if (!writing->wrong && json_object_set_new(object, name, text_of(writing, key, value)) < 0)
			writing->no_memory = true;
	}
}

json_t *write_done(struct writing *writing, struct husk_error *err)
{
	if (!writing->no_memory && !writing->wrong)
		return writing->to;
	json_decref(writing->to);
	if (writing->no_memory)
		husk_fail_memory(err);
	else
		husk_fail_field(err, writing->wrong, "'%s' is not UTF-8", writing->wrong);
	return NULL;
}

/* ---- the network ---- */

static json_t *texts(struct writing *writing, const char *key, const char *const *list, size_t count)
{
	json_t *array = json_array();

	for (size_t i = 0; i < count && array; i++)
		if (json_array_append_new(array, text_of(writing, key, list[i])) < 0)
			writing->no_memory = true;
	return array;
}

static json_t *secrets(struct writing *writing, const struct husk_egress *egress)
{
	json_t *array = json_array();

	for (size_t i = 0; i < egress->secret_count && array; i++) {
		const struct husk_secret *secret = &egress->secrets[i];
		struct writing each;
		write_begin(&each);
		write_text(&each, "name", secret->name);
		write_text(&each, "value", secret->value);
		write_text(&each, "header", secret->header);
		write_json(&each, "hosts", texts(&each, "hosts", secret->hosts, secret->host_count));
		writing->wrong = writing->wrong ? writing->wrong : each.wrong ? "secrets" : NULL;
		writing->no_memory |= each.no_memory;
		if (json_array_append_new(array, each.to) < 0)
			writing->no_memory = true;
	}
	return array;
}

json_t *write_egress(const struct husk_egress *egress, struct husk_error *err)
{
	struct writing w, limits;

	write_begin(&w);
	write_begin(&limits);
	write_text(&w, "mode", egress->mode);
	write_json(&w, "allow", texts(&w, "allow", egress->allow, egress->allow_count));
	write_json(&w, "deny", texts(&w, "deny", egress->deny, egress->deny_count));
	write_json(&w, "secrets", secrets(&w, egress));
	if (egress->hold_count) /* a server of an older version does not know it */
		write_json(&w, "hold", texts(&w, "hold", egress->hold, egress->hold_count));
	write_size(&limits, "bytes", egress->limit_bytes);
	write_size(&limits, "rate", egress->limit_rate);
	write_number(&limits, "connections", egress->limit_connections);
	w.no_memory |= limits.no_memory;
	write_json(&w, "limits", limits.to);
	write_text(&w, "trust", egress->trust);
	return write_done(&w, err);
}

/* ---- sandboxes ---- */

static json_t *mounts(struct writing *writing, const struct husk_create_options *options)
{
	json_t *array = json_array();

	for (size_t i = 0; i < options->mount_count && array; i++) {
		struct writing each;
		write_begin(&each);
		write_text(&each, "volume", options->mounts[i].volume);
		write_text(&each, "path", options->mounts[i].path);
		write_bool(&each, "read_only", options->mounts[i].read_only);
		if (options->mounts[i].subpath)
			write_text(&each, "subpath", options->mounts[i].subpath);
		writing->wrong = writing->wrong ? writing->wrong : each.wrong ? "volumes" : NULL;
		writing->no_memory |= each.no_memory;
		if (json_array_append_new(array, each.to) < 0)
			writing->no_memory = true;
	}
	return array;
}

static void write_source(struct writing *w, const struct husk_create_options *options)
{
	write_text(w, "template", options->template_name);
	write_text(w, "snapshot", options->snapshot);
	write_text(w, "isolation", options->isolation);
	write_size(w, "disk", options->disk_bytes);
	if (options->mount_count)
		write_json(w, "volumes", mounts(w, options));
}

int write_policy(struct writing *writing, const struct husk_egress *egress, struct husk_error *err)
{
	json_t *document = egress ? write_egress(egress, err) : NULL;

	if (egress && !document) {
		json_decref(writing->to);
		return -1;
	}
	if (document)
		write_json(writing, "egress", document);
	return 0;
}

json_t *write_create(const struct husk_create_options *options, bool fork, struct husk_error *err)
{
	static const struct husk_create_options none = { 0 };
	struct writing w;

	if (!options)
		options = &none;
	write_begin(&w);
	if (!fork)
		write_source(&w, options);
	write_text(&w, "name", options->name);
	if (!options->persistent)
		write_number(&w, "ttl_seconds", options->ttl_seconds);
	write_bool(&w, "persistent", options->persistent);
	write_text(&w, "on_expiry", options->on_expiry);
	write_text(&w, "checkpoints", options->checkpoints);
	write_number(&w, "idle_seconds", options->idle_seconds);
	write_size(&w, "memory", options->memory_bytes);
	if (options->cpu_milli)
		write_json(&w, "cpus", json_real((double)options->cpu_milli / 1000));
	write_number(&w, "pids", options->pids);
	write_pairs(&w, "metadata", options->metadata, options->metadata_count);
	write_pairs(&w, "env", options->environment, options->environment_count);
	return write_policy(&w, options->egress, err) < 0 ? NULL : write_done(&w, err);
}
