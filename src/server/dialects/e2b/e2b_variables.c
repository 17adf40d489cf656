/*
 * Variables in the ENV and WORKDIR steps of a template build: "/opt/bin:$PATH" has the PATH of the base, or of an ENV step before it, as in a
 * Dockerfile. Everything is replaced before the first step runs, because a sandbox gets its variables when it is created.
 */
#include "build/dockerfile.h"
#include "server/dialects/e2b/e2b_build.h"

static bool is_type(json_t *step, const char *type)
{
	return str_equal(json_string_value(json_object_get(step, "type")), type);
}

bool e2b_variables_used(json_t *steps)
{
	json_t *step, *word;
	size_t i, k;

	json_array_foreach(steps, i, step)
	{
		json_t *words = is_type(step, "ENV") || is_type(step, "WORKDIR") ? json_object_get(step, "args") : NULL;
		json_array_foreach(words, k, word)
		{
			if (json_is_string(word) && strchr(json_string_value(word), '$'))
				return true;
		}
	}
	return false;
}

/* What a process of the sandbox has, as an object. */
static json_t *read_environment(struct build *build, struct husk_error *err)
{
	const char *argv[] = { "/bin/cat", "/proc/self/environ", NULL };
	const struct husk_exec_options options = { .argv = argv, .user = "root", .timeout_ms = 30000 };
	cleanup_json json_t *out = json_object();
	struct husk_result result = { 0 };

	if (!out || husk_run(build->husk, build->sandbox, &options, &result, err) < 0)
		return NULL;
	for (size_t at = 0; at < result.output_size; at += strlen(result.output + at) + 1) {
		const char *pair = result.output + at, *equals = strchr(pair, '=');
		cleanup_free char *name = equals ? strndup(pair, (size_t)(equals - pair)) : NULL;
		if (name)
			json_object_set_new(out, name, json_string(equals + 1)); /* one that is not UTF-8 is left out */
	}
	husk_result_free(&result);
	return steal_pointer(out);
}

static const char *look_up(void *data, const char *name)
{
	return json_string_value(json_object_get(data, name));
}

/* Replaces one argument of a step. */
static int expand(json_t *arguments, size_t index, json_t *known, struct husk_error *err)
{
	const char *text = json_string_value(json_array_get(arguments, index));
	cleanup_free char *value = NULL;

	if (!text || !strchr(text, '$'))
		return 0;
	if (dockerfile_expand(text, '\\', true, look_up, known, &value, err) < 0)
		return -1;
	return json_array_set_new(arguments, index, json_string(value)) < 0 ? husk_fail_memory(err) : 0;
}

/* All values of one step know what was set before it. */
static int expand_environment(json_t *arguments, json_t *known, struct husk_error *err)
{
	for (size_t i = 1; i < json_array_size(arguments); i += 2)
		if (expand(arguments, i, known, err) < 0)
			return -1;
	for (size_t i = 1; i < json_array_size(arguments); i += 2) {
		const char *name = json_string_value(json_array_get(arguments, i - 1));
		if (name && json_object_set(known, name, json_array_get(arguments, i)) < 0)
			return husk_fail_memory(err);
	}
	return 0;
}

int e2b_variables_replace(struct build *build, json_t *steps, struct husk_error *err)
{
	cleanup_json json_t *known = read_environment(build, err);
	json_t *step;
	size_t i;

	if (!known)
		return -1;
	json_array_foreach(steps, i, step)
	{
		json_t *arguments = json_object_get(step, "args");
		snprintf(build->step, sizeof(build->step), "%zu", i + 1);
		if (is_type(step, "ENV") && expand_environment(arguments, known, err) < 0)
			return -1;
		if (is_type(step, "WORKDIR") && expand(arguments, 0, known, err) < 0)
			return -1;
	}
	return 0;
}
