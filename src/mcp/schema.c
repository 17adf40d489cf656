/*
 * Checks values against a schema; see schema.h. tools.c calls it with the arguments of each call; so does the fuzzer. The
 * parser bounds the depth of values. Values never appear in an error, because they may be secrets.
 */
#include <math.h>

#include "mcp/schema.h"

/* The position in the arguments, for the error: "env.PATH", "actions[2].text"; "" at the top. */
struct place {
	const struct place *parent;
	const char *name;
};

static int check(const json_t *schema, const json_t *value, const struct place *place, struct husk_error *err);

static void place_name(const struct place *place, char *out, size_t size)
{
	out[0] = '\0';
	if (!place->parent)
		return;
	place_name(place->parent, out, size);
	size_t used = strlen(out);
	snprintf(out + used, size - used, "%s%.60s", used && place->name[0] != '[' ? "." : "", place->name);
}

#define fail_at(err, place, ...) fail_at_place(err, place, __VA_ARGS__)
__attribute__((format(printf, 3, 4))) static int fail_at_place(struct husk_error *err, const struct place *place,
							       const char *format, ...)
{
	char name[256], text[256];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	place_name(place, name, sizeof(name));
	if (!name[0])
		return husk_fail(err, HUSK_INVALID, "the arguments %s", text);
	return husk_fail_field(err, name, "'%s' %s", name, text);
}

static bool has_type(const json_t *value, const char *type)
{
	if (str_equal(type, "string"))
		return json_is_string(value);
	if (str_equal(type, "object"))
		return json_is_object(value);
	if (str_equal(type, "boolean"))
		return json_is_boolean(value);
	if (str_equal(type, "number"))
		return json_is_number(value);
	/* 60.0 is a whole number too: some languages have no other numbers */
	if (str_equal(type, "integer"))
		return json_is_integer(value) ||
		       (json_is_real(value) && json_real_value(value) == floor(json_real_value(value)));
	return str_equal(type, "array") && json_is_array(value);
}

static int check_number(const json_t *schema, const json_t *value, const struct place *place, struct husk_error *err)
{
	const json_t *minimum = json_object_get(schema, "minimum"), *maximum = json_object_get(schema, "maximum");
	double number = json_number_value(value);

	if (minimum && !(number >= json_number_value(minimum)))
		return fail_at(err, place, "must be at least %g", json_number_value(minimum));
	if (maximum && !(number <= json_number_value(maximum)))
		return fail_at(err, place, "must be at most %.15g", json_number_value(maximum));
	return 0;
}

static int check_string(const json_t *schema, const json_t *value, const struct place *place, struct husk_error *err)
{
	const json_t *minimum = json_object_get(schema, "minLength"), *maximum = json_object_get(schema, "maxLength");
	const json_t *choices = json_object_get(schema, "enum"), *choice;
	json_int_t size = (json_int_t)json_string_length(value);
	size_t i;

	if (minimum && size < json_integer_value(minimum))
		return fail_at(err, place, "must not be empty");
	if (maximum && size > json_integer_value(maximum))
		return fail_at(err, place, "must have at most %lld bytes", (long long)json_integer_value(maximum));
	if (!choices)
		return 0;
	json_array_foreach(choices, i,
			   choice) if (str_equal(json_string_value(choice), json_string_value(value))) return 0;
	cleanup_free char *list = json_dumps(choices, 0);
	return fail_at(err, place, "must be one of %s", list ? list : "those the tool names");
}

static int fail_unknown_argument(const json_t *properties, const char *name, struct husk_error *err)
{
	const char *known[64], *key;
	size_t count = 0;
	json_t *schema;

	json_object_foreach((json_t *)properties, key, schema) if (count < ARRAY_SIZE(known)) known[count++] = key;
	const char *near = str_nearest(name, known, count);
	if (near)
		return husk_fail_field(err, name, "unknown argument '%.60s'; did you mean '%s'?", name, near);
	return husk_fail_field(err, name, "unknown argument '%.60s'", name);
}

static int check_members(const json_t *schema, const json_t *value, const struct place *place, struct husk_error *err)
{
	const json_t *properties = json_object_get(schema, "properties");
	const json_t *others = json_object_get(schema, "additionalProperties");
	const char *name;
	json_t *member;

	json_object_foreach((json_t *)value, name, member)
	{
		const json_t *known = json_object_get(properties, name);
		const struct place inside = { place, name };

		if (!known && json_is_false(others))
			return fail_unknown_argument(properties, name, err);
		known = known ? known : json_is_object(others) ? others : NULL;
		if (known && check(known, member, &inside, err) < 0)
			return -1;
	}
	return 0;
}

static int check_required(const json_t *schema, const json_t *value, const struct place *place, struct husk_error *err)
{
	const json_t *required = json_object_get(schema, "required"), *name;
	size_t i;

	json_array_foreach(required, i, name)
	{
		const struct place inside = { place, json_string_value(name) };
		if (!json_object_get(value, json_string_value(name)))
			return fail_at(err, &inside, "is missing");
	}
	return 0;
}

static int check_items(const json_t *schema, const json_t *value, const struct place *place, struct husk_error *err)
{
	const json_t *items = json_object_get(schema, "items"), *item;
	const json_t *minimum = json_object_get(schema, "minItems"), *maximum = json_object_get(schema, "maxItems");
	json_int_t size = (json_int_t)json_array_size(value);
	char name[32];
	size_t i;

	if (minimum && size < json_integer_value(minimum))
		return fail_at(err, place, "must not be empty; leave it out");
	if (maximum && size > json_integer_value(maximum))
		return fail_at(err, place, "must have at most %lld items", (long long)json_integer_value(maximum));
	json_array_foreach(value, i, item)
	{
		const struct place inside = { place, name };

		snprintf(name, sizeof(name), "[%zu]", i);
		if (items && check(items, item, &inside, err) < 0)
			return -1;
	}
	return 0;
}

static int check(const json_t *schema, const json_t *value, const struct place *place, struct husk_error *err)
{
	const char *type = json_string_value(json_object_get(schema, "type"));

	if (!type) /* of more than one kind: its user checks it */
		return 0;
	if (!has_type(value, type))
		return fail_at(err, place, "must be %s %s", strchr("aeiou", type[0]) ? "an" : "a", type);
	if (json_is_number(value))
		return check_number(schema, value, place, err);
	if (json_is_string(value))
		return check_string(schema, value, place, err);
	if (json_is_array(value))
		return check_items(schema, value, place, err);
	if (!json_is_object(value))
		return 0;
	if (check_required(schema, value, place, err) < 0)
		return -1;
	return check_members(schema, value, place, err);
}

int schema_check(const json_t *schema, const json_t *value, struct husk_error *err)
{
	const struct place top = { 0 };

	return check(schema, value, &top, err);
}
