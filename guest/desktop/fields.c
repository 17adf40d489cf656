/*
 * Fields of actions (fields.h). No display is needed here: tests/unit/test_desktop.c tries it.
 */
#include "fields.h"

#define WORDS_MAX 16

int fields_known(const json_t *object, const char *words, struct husk_error *err)
{
	char copy[256], *state = NULL;
	const char *known[WORDS_MAX], *key;
	size_t count = 0;
	json_t *value;

	snprintf(copy, sizeof(copy), "%s", words);
	for (char *word = strtok_r(copy, " ", &state); word && count < WORDS_MAX; word = strtok_r(NULL, " ", &state))
		known[count++] = word;
	json_object_foreach((json_t *)(uintptr_t)object, key, value)
	{
		bool found = false;
		for (size_t i = 0; i < count; i++)
			found |= str_equal(known[i], key);
		if (found)
			continue;
		const char *near = strlen(key) < 64 ? str_nearest(key, known, count) : NULL;
		return husk_fail_field(err, "action", "field '%.64s' is not known here%s%s%s (%s)", key,
				       near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "",
				       *words ? words : "it has none");
	}
	return 0;
}

static const json_t *get(const json_t *object, const char *name)
{
	const json_t *value = json_object_get(object, name);

	return json_is_null(value) ? NULL : value;
}

int field_text(const json_t *object, const char *name, bool required, const char **out, struct husk_error *err)
{
	const json_t *value = get(object, name);

	if (!value)
		return required ? husk_fail_field(err, name, "'%s' is missing", name) : 0;
	if (!json_is_string(value))
		return husk_fail_field(err, name, "'%s' is not a string", name);
	if (strlen(json_string_value(value)) != json_string_length(value))
		return husk_fail_field(err, name, "'%s' contains a NUL", name);
	*out = json_string_value(value);
	return 0;
}

int field_integer(const json_t *object, const char *name, int min, int max, int *out, bool *given,
		  struct husk_error *err)
{
	const json_t *value = get(object, name);

	if (given)
		*given = value != NULL;
	if (!value)
		return 0;
	double number = json_number_value(value);
	if (!json_is_number(value) || !(number >= min && number <= max))
		return husk_fail_field(err, name, "'%s' is not a number from %d to %d", name, min, max);
	*out = (int)(number < 0 ? number - 0.5 : number + 0.5);
	return 0;
}

int field_seconds(const json_t *object, const char *name, bool required, double *out, struct husk_error *err)
{
	const json_t *value = get(object, name);

	if (!value)
		return required ? husk_fail_field(err, name, "'%s' is missing; it is in seconds", name) : 0;
	double number = json_number_value(value);
	if (!json_is_number(value) || !(number >= 0 && number <= DURATION_MAX))
		return husk_fail_field(err, name, "'%s' is not a number of seconds from 0 to %d", name, DURATION_MAX);
	*out = number;
	return 0;
}

int field_boolean(const json_t *object, const char *name, bool *out, struct husk_error *err)
{
	const json_t *value = get(object, name);

	if (!value)
		return 0;
	if (!json_is_boolean(value))
		return husk_fail_field(err, name, "'%s' is neither true nor false", name);
	*out = json_is_true(value);
	return 0;
}

int field_point(const json_t *pair, const char *name, struct point space, struct point screen, struct point *out,
		struct husk_error *err)
{
	const json_t *first = json_array_get(pair, 0), *second = json_array_get(pair, 1);

	if (json_array_size(pair) != 2 || !json_is_number(first) || !json_is_number(second))
		return husk_fail_field(err, name, "'%s' is not two numbers, as in [640, 400]", name);
	double x = json_number_value(first), y = json_number_value(second);
	if (!(x >= 0 && y >= 0 && x < space.x && y < space.y)) {
		bool own = space.x == screen.x && space.y == screen.y;
		return husk_fail_field(err, name, "'%s' [%.6g, %.6g] is off the %s, which is %dx%d", name, x, y,
				       own ? "screen" : "space", space.x, space.y);
	}
	out->x = (int)(x * screen.x / space.x);
	out->y = (int)(y * screen.y / space.y);
	return 0;
}

int field_region(const json_t *object, struct point space, struct point screen, struct region *out,
		 struct husk_error *err)
{
	const json_t *value = get(object, "region");
	double at[4];

	if (!value)
		return 0;
	if (json_array_size(value) != 4)
		return husk_fail_field(err, "region", "'region' is not four numbers, as in [x0, y0, x1, y1]");
	for (size_t i = 0; i < 4; i++) {
		if (!json_is_number(json_array_get(value, i)))
			return husk_fail_field(err, "region", "'region' is not four numbers, as in [x0, y0, x1, y1]");
		at[i] = json_number_value(json_array_get(value, i));
	}
	if (!(at[0] >= 0 && at[1] >= 0 && at[2] <= space.x && at[3] <= space.y))
		return husk_fail_field(err, "region", "'region' [%.6g, %.6g, %.6g, %.6g] is not within %dx%d", at[0],
				       at[1], at[2], at[3], space.x, space.y);
	*out = (struct region){ (int)(at[0] * screen.x / space.x), (int)(at[1] * screen.y / space.y),
				(int)(at[2] * screen.x / space.x), (int)(at[3] * screen.y / space.y) };
	if (out->x1 <= out->x0 || out->y1 <= out->y0)
		return husk_fail_field(err, "region", "'region' [%.6g, %.6g, %.6g, %.6g] has no size", at[0], at[1],
				       at[2], at[3]);
	return 0;
}
