/*
 * Reads the fields of a JSON body, strictly: a wrong type, a number out of range or an unknown name is an error with the
 * field's name, and nothing is done. Used by every handler with a body. Values that may be secrets, such as those of pairs,
 * never appear in an error.
 */
#include <math.h>

#include "server/server.h"

#define SECONDS_MAX (365.0 * 86400)

int fields_begin(struct fields *fields, json_t *object)
{
	fields->object = object;
	fields->count = 0;
	fields->error = (struct husk_error){ 0 };
	return object ? 0 : -1;
}

/* Only the first error is reported. */
#define fields_fail(fields, name, ...)                                                                                 \
	do {                                                                                                           \
		if ((fields)->error.code == HUSK_OK)                                                                   \
			husk_fail_field(&(fields)->error, name, __VA_ARGS__);                                          \
	} while (0)

static json_t *take(struct fields *fields, const char *name)
{
	json_t *value = json_object_get(fields->object, name);

	if (fields->count < ARRAY_SIZE(fields->taken))
		fields->taken[fields->count++] = name;
	else
		husk_fail(&fields->error, HUSK_INTERNAL, "more than %zu fields", ARRAY_SIZE(fields->taken));
	return json_is_null(value) ? NULL : value;
}

json_t *fields_any(struct fields *fields, const char *name)
{
	return take(fields, name);
}

const char *fields_string(struct fields *fields, const char *name)
{
	json_t *value = take(fields, name);

	if (value && !json_is_string(value))
		fields_fail(fields, name, "'%s' must be a string", name);
	return value ? json_string_value(value) : NULL;
}

int64_t fields_int(struct fields *fields, const char *name, int64_t fallback, int64_t min, int64_t max)
{
	json_t *value = take(fields, name);
	double real = json_is_real(value) ? json_real_value(value) : 0;
	int64_t number = json_is_integer(value) ? json_integer_value(value) : fallback;

	if (!value)
		return fallback;
	/* 60.0 is a whole number too: some languages have no other numbers. */
	if (json_is_real(value) && real == floor(real) && fabs(real) < 9e15)
		number = (int64_t)real;
	else if (!json_is_integer(value)) {
		fields_fail(fields, name, "'%s' must be a whole number", name);
		return fallback;
	}
	if (number >= min && number <= max)
		return number;
	if (max == INT64_MAX)
		fields_fail(fields, name, "'%s' is %lld; it must be at least %lld", name, (long long)number,
			    (long long)min);
	else
		fields_fail(fields, name, "'%s' is %lld; it must be from %lld to %lld", name, (long long)number,
			    (long long)min, (long long)max);
	return fallback;
}

double fields_number(struct fields *fields, const char *name, double fallback, double min, double max)
{
	json_t *value = take(fields, name);

	if (!value)
		return fallback;
	if (!json_is_number(value)) {
		fields_fail(fields, name, "'%s' must be a number", name);
		return fallback;
	}
	double number = json_number_value(value);
	if (number >= min && number <= max)
		return number;
	fields_fail(fields, name, "'%s' is %g; it must be from %g to %g", name, number, min, max);
	return fallback;
}

bool fields_bool(struct fields *fields, const char *name, bool fallback)
{
	json_t *value = take(fields, name);

	if (!value)
		return fallback;
	if (!json_is_boolean(value))
		fields_fail(fields, name, "'%s' must be true or false", name);
	return json_is_true(value);
}

uint64_t fields_size(struct fields *fields, const char *name)
{
	json_t *value = take(fields, name);
	double real = json_is_real(value) ? json_real_value(value) : -1;
	uint64_t size = 0;

	if (!value)
		return 0;
	if (json_is_integer(value) && json_integer_value(value) > 0)
		return (uint64_t)json_integer_value(value);
	if (real >= 1 && real == floor(real) && real < 9e15)
		return (uint64_t)real;
	if (json_is_string(value) && str_to_size(json_string_value(value), 1, &size) == 0 && size > 0)
		return size;
	fields_fail(fields, name, "'%s' must be a size; give bytes, or a string like \"512M\" or \"2G\"", name);
	return 0;
}

struct husk_pair *fields_pairs(struct fields *fields, const char *name, size_t *count)
{
	json_t *value = take(fields, name), *item;
	const char *key;
	size_t at = 0;

	*count = 0;
	if (!value)
		return NULL;
	if (!json_is_object(value)) {
		fields_fail(fields, name, "'%s' must be an object of strings", name);
		return NULL;
	}
	struct husk_pair *pairs = calloc(json_object_size(value) + 1, sizeof(*pairs));
	if (!pairs) {
		husk_fail_memory(&fields->error);
		return NULL;
	}
	json_object_foreach(value, key, item)
	{
		if (!json_is_string(item))
			fields_fail(fields, name, "'%s.%s' must be a string", name, key);
		pairs[at++] = (struct husk_pair){ key, json_is_string(item) ? json_string_value(item) : "" };
	}
	*count = at;
	return pairs;
}

const char **fields_strings(struct fields *fields, const char *name)
{
	json_t *value = take(fields, name), *item;
	size_t at;

	if (!value)
		return NULL;
	if (!json_is_array(value)) {
		fields_fail(fields, name, "'%s' must be an array of strings", name);
		return NULL;
	}
	const char **list = calloc(json_array_size(value) + 1, sizeof(*list));
	if (!list) {
		husk_fail_memory(&fields->error);
		return NULL;
	}
	json_array_foreach(value, at, item)
	{
		if (!json_is_string(item))
			fields_fail(fields, name, "'%s[%zu]' must be a string", name, at);
		list[at] = json_is_string(item) ? json_string_value(item) : "";
	}
	return list;
}

static bool was_taken(const struct fields *fields, const char *name)
{
	for (size_t i = 0; i < fields->count; i++)
		if (str_equal(fields->taken[i], name))
			return true;
	return false;
}

int fields_done_open(const struct fields *fields, struct husk_error *err)
{
	if (fields->error.code == HUSK_OK)
		return 0;
	if (err)
		*err = fields->error;
	return -1;
}

int fields_done(struct fields *fields, struct husk_error *err)
{
	const char *name;
	json_t *value;

	json_object_foreach(fields->object, name, value)
	{
		if (was_taken(fields, name))
			continue;
		const char *near = str_nearest(name, fields->taken, fields->count);
		if (near)
			return husk_fail_field(err, name, "unknown field '%s'; did you mean '%s'?", name, near);
		return husk_fail_field(err, name, "unknown field '%s'", name);
	}
	return fields_done_open(fields, err);
}

int64_t fields_timeout_ms(struct fields *fields)
{
	double seconds = fields_number(fields, "timeout_seconds", 0, 0, SECONDS_MAX);

	/* Rounded up, because 0 means none. */
	return (int64_t)(seconds * 1000 + 0.999999);
}
