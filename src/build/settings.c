/*
 * The settings that the steps of a Dockerfile make for the image and its variables (settings.h): ENV, ARG, LABEL, USER,
 * CMD and the like. The config is the object that an OCI image has under "config".
 */
#include "build/settings.h"
#include "build/build.h"

#include <ctype.h>

/* ---- errors and small parts ---- */

int maker_fail(const struct maker *maker, const struct dockerfile_step *step, const struct husk_error *why)
{
	return dockerfile_fail(&maker->plan->file, maker->options->dockerfile, step, why, maker->err);
}

const char *maker_variable(json_t *config, const char *name)
{
	size_t i, size = strlen(name);
	json_t *pair;

	json_array_foreach(json_object_get(config, "Env"), i, pair)
	{
		const char *text = json_string_value(pair);
		if (text && strncmp(text, name, size) == 0 && text[size] == '=')
			return text + size + 1;
	}
	return NULL;
}

int build_set_variable(json_t *config, const char *name, const char *value)
{
	json_t *list = json_object_get(config, "Env");
	size_t i, size = strlen(name);
	json_t *pair;

	if (!list) {
		list = json_array();
		if (json_object_set_new(config, "Env", list) < 0)
			return -1;
	}
	json_array_foreach(list, i, pair)
	{
		const char *text = json_string_value(pair);
		if (text && strncmp(text, name, size) == 0 && text[size] == '=')
			break;
	}
	json_t *made = json_sprintf("%s=%s", name, value);
	return i < json_array_size(list) ? json_array_set_new(list, i, made) : json_array_append_new(list, made);
}

/* The home of the user, as far as it is known without a look into the sandbox. */
static const char *user_home(const struct maker *maker)
{
	const char *home = maker->plan->file.home, *slash = home ? strrchr(home, '/') : NULL;
	const char *user = json_string_value(json_object_get(maker->stage->config, "User"));

	if (!home || !user)
		return NULL;
	return str_equal(user, "root") ? "/root" : str_equal(user, slash + 1) ? home : NULL;
}

const char *maker_lookup(void *data, const char *name)
{
	struct maker *maker = data;
	const char *value = maker->stage ? maker_variable(maker->stage->config, name) : NULL;

	if (!value && maker->arguments)
		value = json_string_value(json_object_get(maker->arguments, name));
	if (!value && !maker->stage)
		value = json_string_value(json_object_get(maker->globals, name));
	if (!value && maker->stage && str_equal(name, "HOME"))
		value = user_home(maker);
	return value;
}

int maker_expand(struct maker *maker, const struct dockerfile_step *step, const char *text, char **out)
{
	const struct dockerfile *file = &maker->plan->file;
	struct husk_error why = { 0 };

	if (dockerfile_expand(text, file->escape, file->home, maker_lookup, maker, out, &why) < 0)
		return maker_fail(maker, step, &why);
	return 0;
}

int maker_words(struct maker *maker, const struct dockerfile_step *step, char ***out)
{
	for (char *const *word = step->words; word && *word; word++) {
		cleanup_free char *expanded = NULL;
		if (step->json ? !(expanded = strdup(*word)) : maker_expand(maker, step, *word, &expanded) < 0)
			return step->json ? husk_fail_memory(maker->err) : -1;
		if (strv_add(out, expanded) < 0)
			return husk_fail_memory(maker->err);
	}
	return 0;
}

int maker_set(struct maker *maker, const char *key, json_t *value)
{
	return json_object_set_new(maker->stage->config, key, value) < 0 ? husk_fail_memory(maker->err) : 0;
}

/* The object under a key of the config, made if missing. */
static json_t *config_object(struct maker *maker, const char *key)
{
	json_t *object = json_object_get(maker->stage->config, key);

	if (json_is_object(object))
		return object;
	return maker_set(maker, key, json_object()) < 0 ? NULL : json_object_get(maker->stage->config, key);
}

static json_t *json_words(char *const *words)
{
	json_t *list = json_array();

	for (; list && words && *words; words++)
		json_array_append_new(list, json_string(*words));
	return list;
}

/* ---- ARG, ENV, LABEL ---- */

const char *maker_given(const struct maker *maker, const char *name)
{
	for (size_t i = 0; i < maker->options->argument_count; i++)
		if (str_equal(maker->options->arguments[i].key, name))
			return maker->options->arguments[i].value;
	return NULL;
}

int maker_argument(struct maker *maker, const struct dockerfile_step *step, json_t *into)
{
	for (size_t i = 0; i < step->pair_count; i++) {
		const struct dockerfile_pair *pair = &step->pairs[i];
		const char *value = maker_given(maker, pair->key);
		cleanup_free char *expanded = NULL;
		if (!value && pair->value) {
			if (maker_expand(maker, step, pair->value, &expanded) < 0)
				return -1;
			value = expanded;
		}
		if (!value)
			value = json_string_value(json_object_get(maker->globals, pair->key));
		if (value && json_object_set_new(into, pair->key, json_string(value)) < 0)
			return fail_invalid(maker, step, "the value of %.60s is not text in UTF-8", pair->key);
	}
	return 0;
}

static int take_environment(struct maker *maker, const struct dockerfile_step *step)
{
	/* All values are replaced before the first is set, as in Docker: ENV a=1 b=$a has the old a. */
	cleanup_strv char **values = NULL;

	for (size_t i = 0; i < step->pair_count; i++) {
		cleanup_free char *value = NULL;
		if (maker_expand(maker, step, step->pairs[i].value, &value) < 0)
			return -1;
		if (strpbrk(value, "\n\r") && !maker->plan->file.home) /* an image has lines */
			return fail_invalid(maker, step, "the value of %.60s has more than one line",
					    step->pairs[i].key);
		if (strv_add(&values, value) < 0)
			return husk_fail_memory(maker->err);
	}
	for (size_t i = 0; i < step->pair_count; i++)
		if (build_set_variable(maker->stage->config, step->pairs[i].key, values[i]) < 0)
			return husk_fail(maker->err, HUSK_INVALID, "the variable %.60s cannot be set",
					 step->pairs[i].key);
	return 0;
}

static int take_labels(struct maker *maker, const struct dockerfile_step *step)
{
	json_t *labels = config_object(maker, "Labels");

	for (size_t i = 0; labels && i < step->pair_count; i++) {
		cleanup_free char *key = NULL, *value = NULL;
		if (maker_expand(maker, step, step->pairs[i].key, &key) < 0 ||
		    maker_expand(maker, step, step->pairs[i].value, &value) < 0)
			return -1;
		if (json_object_set_new(labels, key, json_string(value)) < 0)
			return husk_fail_memory(maker->err);
	}
	return labels ? 0 : -1;
}

/* ---- settings of the image ---- */

int maker_shell(struct maker *maker, const char *command, char ***out)
{
	json_t *shell = json_object_get(maker->stage->config, "Shell"), *word;
	size_t i;

	if (json_array_size(shell) == 0 && (strv_add(out, "/bin/sh") < 0 || strv_add(out, "-c") < 0))
		return husk_fail_memory(maker->err);
	json_array_foreach(shell, i, word)
	{
		if (strv_add(out, json_string_value(word)) < 0)
			return husk_fail_memory(maker->err);
	}
	return strv_add(out, command) < 0 ? husk_fail_memory(maker->err) : 0;
}

int maker_command(struct maker *maker, const struct dockerfile_step *step, char ***out)
{
	if (!step->json)
		return maker_shell(maker, step->text, out);
	for (char *const *word = step->words; word && *word; word++)
		if (strv_add(out, *word) < 0)
			return husk_fail_memory(maker->err);
	return 0;
}

static int take_command(struct maker *maker, const struct dockerfile_step *step)
{
	cleanup_strv char **words = NULL;

	if (maker_command(maker, step, &words) < 0)
		return -1;
	if (step->kind == STEP_CMD)
		maker->has_command = true;
	else if (!maker->has_command) /* the CMD of the base was for its own ENTRYPOINT */
		json_object_del(maker->stage->config, "Cmd");
	return maker_set(maker, step->kind == STEP_CMD ? "Cmd" : "Entrypoint", json_words(words));
}

static int take_ports(struct maker *maker, const struct dockerfile_step *step, const char *key)
{
	json_t *ports = config_object(maker, key);
	cleanup_strv char **words = NULL;

	if (!ports || maker_words(maker, step, &words) < 0)
		return -1;
	for (size_t i = 0; words && words[i]; i++) {
		bool port = step->kind == STEP_EXPOSE;
		if (port && (!isdigit((unsigned char)words[i][0]) ||
			     strspn(words[i], "0123456789-/tcpuds") != strlen(words[i])))
			return fail_invalid(maker, step, "'%.40s' is not a port: 8080, 8080/udp, 8000-8010", words[i]);
		cleanup_free char *whole = str_format("%s%s", words[i], port && !strchr(words[i], '/') ? "/tcp" : "");
		if (!whole || json_object_set_new(ports, whole, json_object()) < 0)
			return husk_fail_memory(maker->err);
	}
	return 0;
}

/* "1m30s", "500ms" as nanoseconds; -1: it is not one. */
static int64_t nanoseconds(const char *text)
{
	static const struct {
		const char *name;
		double size;
	} units[] = { { "ns", 1 }, { "us", 1e3 }, { "ms", 1e6 }, { "s", 1e9 }, { "m", 60e9 }, { "h", 3600e9 } };
	double total = 0;

	while (*text) {
		char *end;
		double number = strtod(text, &end);
		size_t i = 0, size = strspn(end, "nusmh");
		while (i < ARRAY_SIZE(units) &&
		       (strlen(units[i].name) != size || strncmp(units[i].name, end, size) != 0))
			i++;
		if (end == text || i == ARRAY_SIZE(units) || !(number >= 0) || number > 1e9)
			return -1;
		total += number * units[i].size;
		text = end + size;
	}
	return total < 9e18 ? (int64_t)total : -1;
}

static int take_health(struct maker *maker, const struct dockerfile_step *step)
{
	static const struct {
		const char *flag, *key;
	} times[] = { { "interval", "Interval" },
		      { "timeout", "Timeout" },
		      { "start-period", "StartPeriod" },
		      { "start-interval", "StartInterval" } };
	cleanup_json json_t *health = json_object();
	bool none = !step->json && step->words;
	const char *retries = dockerfile_flag(step, "retries");
	int64_t number;

	json_t *test = none         ? json_pack("[s]", "NONE")
		       : step->json ? json_words(step->words)
				    : json_pack("[ss]", "CMD-SHELL", step->text);
	if (step->json)
		json_array_insert_new(test, 0, json_string("CMD"));
	if (json_object_set_new(health, "Test", test) < 0)
		return husk_fail_memory(maker->err);
	for (size_t i = 0; i < ARRAY_SIZE(times); i++) {
		const char *value = dockerfile_flag(step, times[i].flag);
		int64_t span = value ? nanoseconds(value) : 0;
		if (span < 0)
			return fail_invalid(maker, step, "--%s=%.40s is not a time: 30s, 1m30s", times[i].flag, value);
		if (value && json_object_set_new(health, times[i].key, json_integer(span)) < 0)
			return husk_fail_memory(maker->err);
	}
	if (retries && str_to_int64(retries, 0, 1000, &number) < 0)
		return fail_invalid(maker, step, "--retries=%.40s is not a number", retries);
	if (retries && json_object_set_new(health, "Retries", json_integer(number)) < 0)
		return husk_fail_memory(maker->err);
	return maker_set(maker, "Healthcheck", json_incref(health));
}

static int set_expanded(struct maker *maker, const struct dockerfile_step *step, const char *key)
{
	cleanup_free char *value = NULL;

	return maker_expand(maker, step, step->text, &value) < 0 ? -1 : maker_set(maker, key, json_string(value));
}

static int plan_trigger(struct maker *maker, const struct dockerfile_step *step)
{
	json_t *list = json_object_get(maker->stage->config, "OnBuild");

	if (!json_is_array(list)) {
		list = json_array();
		if (maker_set(maker, "OnBuild", list) < 0)
			return -1;
	}
	return json_array_append_new(list, json_string(step->text)) < 0 ? husk_fail_memory(maker->err) : 0;
}

int maker_setting(struct maker *maker, const struct dockerfile_step *step)
{
	switch (step->kind) {
	case STEP_ENV:
		return take_environment(maker, step);
	case STEP_LABEL:
		return take_labels(maker, step);
	case STEP_USER:
		return set_expanded(maker, step, "User");
	case STEP_STOPSIGNAL:
		return set_expanded(maker, step, "StopSignal");
	case STEP_SHELL:
		return maker_set(maker, "Shell", json_words(step->words));
	case STEP_EXPOSE:
		return take_ports(maker, step, "ExposedPorts");
	case STEP_VOLUME:
		return take_ports(maker, step, "Volumes");
	case STEP_ENTRYPOINT:
	case STEP_CMD:
		return take_command(maker, step);
	case STEP_HEALTHCHECK:
		return take_health(maker, step);
	case STEP_ONBUILD:
		return plan_trigger(maker, step);
	default:
		return 0;
	}
}
