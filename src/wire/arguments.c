/*
 * Checks the fields of every call against methods.def: required fields are present, a field repeats only if it may,
 * numbers and lengths are in range, text has no NUL byte, paths are absolute. The side that answers a method calls
 * wire_check on receipt (agent/uplink.c, supervisor/session.c) and can then rely on the fields. Examples:
 *
 *     WATCH without fields      "watch: path is missing"
 *     DIAL with PORT 70000      "port 70000 is not within 1 to 65535"
 *
 * A field that the method does not have is ignored, because the caller may be newer. Nothing here allocates.
 */
#include <ctype.h>

#include "wire/wire.h"

enum need { NEED_ONE, NEED_OPTIONAL, NEED_MANY };
enum type { TYPE_NUMBER, TYPE_MODE, TYPE_TEXT, TYPE_PATH, TYPE_VARIABLE, TYPE_HEX, TYPE_BYTES };

struct rule {
	int64_t method;
	enum wire_type frame; /* OPEN: an argument; MSG: a field of a later message */
	enum wire_tag tag;
	enum need need;
	enum type type;
	int64_t lowest, highest; /* bounds of a number, or of the length of other types */
	const char *name;
};

static const struct rule rules[] = {
#define ARGUMENT(method, tag, need, type, lowest, highest, meaning)                                                    \
	{ METHOD_##method, WIRE_OPEN, TAG_##tag, NEED_##need, TYPE_##type, lowest, highest, #tag },
#define MESSAGE(method, tag, need, type, lowest, highest, meaning)                                                     \
	{ METHOD_##method, WIRE_MSG, TAG_##tag, NEED_##need, TYPE_##type, lowest, highest, #tag },
#include "wire/methods.def"
};

_Static_assert(sizeof(struct wire_interface) == 21, "methods.def has the size of INTERFACE");

/* A tag as errors name it: "timeout_ms" for TIMEOUT_MS. */
struct label {
	char text[32];
};

static struct label label_of(const struct rule *rule)
{
	struct label label = { 0 };

	for (size_t i = 0; i + 1 < sizeof(label.text) && rule->name[i]; i++)
		label.text[i] = (char)tolower((unsigned char)rule->name[i]);
	return label;
}

static int fail_range(const struct rule *rule, int64_t value, struct husk_error *err)
{
	const struct label label = label_of(rule);

	if (rule->type == TYPE_MODE)
		return husk_fail(err, HUSK_INVALID, "%s %llo is not within %llo to %llo (octal)", label.text,
				 (unsigned long long)value, (unsigned long long)rule->lowest,
				 (unsigned long long)rule->highest);
	if (rule->highest >= INT64_MAX / 2)
		return husk_fail(err, HUSK_INVALID, "%s %lld is not within bounds; give %lld or more", label.text,
				 (long long)value, (long long)rule->lowest);
	return husk_fail(err, HUSK_INVALID, "%s %lld is not within %lld to %lld", label.text, (long long)value,
			 (long long)rule->lowest, (long long)rule->highest);
}

static int check_number(const struct rule *rule, const struct wire_field *field, struct husk_error *err)
{
	int64_t value;

	if (wire_field_int(field, &value) < 0)
		return husk_fail(err, HUSK_INVALID, "%s: %s is not a number", wire_method_name(rule->method),
				 label_of(rule).text);
	return value < rule->lowest || value > rule->highest ? fail_range(rule, value, err) : 0;
}

static bool is_hex(const struct wire_field *field)
{
	for (size_t i = 0; i < field->size; i++)
		if (!isdigit((unsigned char)field->data[i]) && (field->data[i] < 'a' || field->data[i] > 'f'))
			return false;
	return true;
}

static bool is_variable(const struct wire_field *field)
{
	const char *equals = memchr(field->data, '=', field->size);

	return equals && equals != field->data;
}

/* Checks the form of a text, beyond its length. */
static int check_form(const struct rule *rule, const struct wire_field *field, struct husk_error *err)
{
	const struct label label = label_of(rule);
	int shown = (int)MIN(field->size, 200u);

	if (rule->type == TYPE_BYTES)
		return 0;
	if (field->size && memchr(field->data, 0, field->size))
		return husk_fail(err, HUSK_INVALID, "%s holds a NUL byte", label.text);
	if (rule->type == TYPE_PATH && field->data[0] != '/')
		return husk_fail(err, HUSK_INVALID, "%s '%.*s' is not absolute; begin it with /", label.text, shown,
				 field->data);
	if (rule->type == TYPE_VARIABLE && !is_variable(field))
		return husk_fail(err, HUSK_INVALID, "%s '%.*s' does not read KEY=VALUE", label.text, shown,
				 field->data);
	if (rule->type == TYPE_HEX && !is_hex(field))
		return husk_fail(err, HUSK_INVALID, "%s '%.*s' is not of lower-case hex digits", label.text, shown,
				 field->data);
	return 0;
}

static int check_value(const struct rule *rule, const struct wire_field *field, struct husk_error *err)
{
	if (rule->type == TYPE_NUMBER || rule->type == TYPE_MODE)
		return check_number(rule, field, err);
	if ((int64_t)field->size < rule->lowest)
		return husk_fail(err, HUSK_INVALID, "%s has %zu bytes; give %lld or more", label_of(rule).text,
				 field->size, (long long)rule->lowest);
	if ((int64_t)field->size > rule->highest)
		return husk_fail(err, HUSK_INVALID, "%s has %zu bytes; give at most %lld", label_of(rule).text,
				 field->size, (long long)rule->highest);
	return check_form(rule, field, err);
}

static int check_rule(const struct rule *rule, const char *message, size_t size, struct husk_error *err)
{
	const char *method = wire_method_name(rule->method);
	struct wire_field field;
	size_t cursor = 0, count = 0;

	while (wire_next(message, size, &cursor, &field) > 0) {
		if (field.tag != rule->tag)
			continue;
		if (count++ && rule->need != NEED_MANY)
			return husk_fail(err, HUSK_INVALID, "%s: %s is given twice", method, label_of(rule).text);
		if (check_value(rule, &field, err) < 0)
			return -1;
	}
	if (!count && rule->need == NEED_ONE)
		return husk_fail(err, HUSK_INVALID, "%s: %s is missing", method, label_of(rule).text);
	return 0;
}

int wire_check(int64_t method, enum wire_type frame, const char *message, size_t size, struct husk_error *err)
{
	for (size_t i = 0; i < ARRAY_SIZE(rules); i++)
		if (rules[i].method == method && rules[i].frame == frame &&
		    check_rule(&rules[i], message, size, err) < 0)
			return -1;
	return 0;
}
