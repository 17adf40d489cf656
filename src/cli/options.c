/*
 * The option parser behind every command. It turns words into typed values with range checks, and every refusal names
 * the option, what was given and what is allowed. It must never guess: an unknown option is an error with a suggestion,
 * and a value is only read from our own environment when the caller named the variable.
 */
#include "cli/options.h"

#include <inttypes.h>

#include "cli/alias.h"
#include "cli/output.h"

/* ---- values ---- */

/* "1.5" to 1500; *end is what follows. Up to three decimals: finer is noise for CPUs and for milliseconds. */
static int parse_thousandths(const char *text, int64_t *out, const char **end)
{
	int64_t value = 0;
	int decimals = -1; /* -1: no point seen yet */
	const char *p = text;

	for (; (*p >= '0' && *p <= '9') || (*p == '.' && decimals < 0); p++) {
		if (*p == '.') {
			decimals = 0;
			continue;
		}
		if (decimals >= 3)
			return -1;
		if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, *p - '0', &value))
			return -1;
		if (decimals >= 0)
			decimals++;
	}
	if (p == text || p[-1] == '.')
		return -1;
	for (decimals = MAX(decimals, 0); decimals < 3; decimals++)
		if (__builtin_mul_overflow(value, 10, &value))
			return -1;
	*out = value;
	*end = p;
	return 0;
}

static int parse_milliseconds(const char *text, int64_t *out)
{
	static const struct {
		const char *suffix;
		int64_t multiply, divide;
	} units[] = { { "", 1, 1 },   { "s", 1, 1 },    { "ms", 1, 1000 },
		      { "m", 60, 1 }, { "h", 3600, 1 }, { "d", 86400, 1 } };
	const char *end;
	int64_t value;

	if (parse_thousandths(text, &value, &end) < 0)
		return -1;
	for (size_t i = 0; i < ARRAY_SIZE(units); i++) {
		if (!str_equal(end, units[i].suffix))
			continue;
		if (__builtin_mul_overflow(value, units[i].multiply, out))
			return -1;
		*out /= units[i].divide;
		return 0;
	}
	return -1;
}

static int parse_cpus(const char *text, int64_t *out)
{
	const char *end;

	return parse_thousandths(text, out, &end) == 0 && *end == '\0' ? 0 : -1;
}

static int parse_size(const char *text, int64_t *out)
{
	uint64_t value;

	if (str_to_size(text, MEBIBYTE, &value) < 0 || value > INT64_MAX)
		return -1;
	*out = (int64_t)value;
	return 0;
}

static int parse_integer(const char *text, int64_t *out)
{
	return str_to_int64(text, INT64_MIN, INT64_MAX, out);
}

/* How each numeric kind is parsed, and its name in messages. */
struct number_kind {
	int (*parse)(const char *text, int64_t *out);
	const char *noun; /* in "'x' is not …" */
	void (*show)(int64_t value, char *out, size_t size);
};

static void show_integer(int64_t value, char *out, size_t size)
{
	snprintf(out, size, "%" PRId64, value);
}

static void show_size(int64_t value, char *out, size_t size)
{
	output_size((uint64_t)value, out, size);
}

static void show_seconds(int64_t value, char *out, size_t size)
{
	output_duration(value * 1000, out, size);
}

static void show_thousandths(int64_t value, char *out, size_t size)
{
	snprintf(out, size, "%g", (double)value / 1000);
}

static const struct number_kind number_kinds[] = {
	[OPTION_INTEGER] = { parse_integer, "a whole number", show_integer },
	[OPTION_SIZE] = { parse_size, "a size (512M, 2G; a bare number is MiB)", show_size },
	[OPTION_SECONDS] = { str_to_seconds, "a duration (90, 90s, 15m, 2h, 1d)", show_seconds },
	[OPTION_MILLISECONDS] = { parse_milliseconds, "a duration (1.5, 500ms, 30s, 5m)", output_duration },
	[OPTION_CPUS] = { parse_cpus, "a number of CPUs (0.5, 2)", show_thousandths },
};

static int parse_number(const char *what, enum option_kind kind, const char *text, int64_t min, int64_t max,
			int64_t *out, struct husk_error *err)
{
	const struct number_kind *number = &number_kinds[kind];
	char low[32], high[32];

	if (number->parse(text, out) < 0)
		return husk_fail(err, HUSK_INVALID, "%s: '%s' is not %s", what, text, number->noun);
	if (*out >= min && *out <= max)
		return 0;
	number->show(min, low, sizeof(low));
	number->show(max, high, sizeof(high));
	return husk_fail(err, HUSK_INVALID, "%s: '%s' is out of range; it goes from %s to %s", what, text, low, high);
}

int options_seconds(const char *what, const char *text, int64_t min, int64_t max, int64_t *out, struct husk_error *err)
{
	return parse_number(what, OPTION_SECONDS, text, min, max, out, err);
}

static int parse_choice(const char *what, const struct option_spec *spec, const char *text, struct husk_error *err)
{
	cleanup_buf struct buf words = { 0 };
	size_t count = 0;

	for (; spec->choices[count]; count++) {
		if (str_equal(spec->choices[count], text))
			return 0;
		if (buf_printf(&words, "%s%s", count ? ", " : "", spec->choices[count]) < 0)
			return husk_fail_memory(err);
	}
	return husk_fail(err, HUSK_INVALID, "%s: '%s' is not one of %s", what, text, words.data);
}

/* Splits "K=V" and adds it to the list; with `from_environment`, K alone takes our own value of K. */
static int options_pair(const char *what, const char *text, bool from_environment, struct pair_list *list,
			struct husk_error *err)
{
	const char *equals = strchr(text, '=');
	const char *value = equals ? equals + 1 : NULL;
	size_t key_size = equals ? (size_t)(equals - text) : strlen(text);

	if (key_size == 0 || (!equals && !from_environment))
		return husk_fail(err, HUSK_INVALID, "%s: '%s' is not KEY=VALUE", what, text);
	if (!equals)
		value = getenv(text);
	if (!value)
		return husk_fail(err, HUSK_INVALID,
				 "%s: '%s' is not set here, so it cannot be passed on; give %s=VALUE", what, text,
				 text);

	struct husk_pair *items = reallocarray(list->items, list->count + 1, sizeof(*items));
	if (!items)
		return husk_fail_memory(err);
	list->items = items;
	char *copy = str_format("%.*s=%s", (int)key_size, text, value);
	if (!copy)
		return husk_fail_memory(err);
	copy[key_size] = '\0';
	list->items[list->count++] = (struct husk_pair){ .key = copy, .value = copy + key_size + 1 };
	return 0;
}

static int add_string(const char *text, struct string_list *list, struct husk_error *err)
{
	const char **items = reallocarray(list->items, list->count + 1, sizeof(*items));

	if (!items)
		return husk_fail_memory(err);
	list->items = items;
	list->items[list->count++] = text;
	return 0;
}

/* ---- one option ---- */

/* `text` NULL: no value was given, which is only valid for a flag. */
static int option_set(const struct option_spec *spec, void *target, const char *what, const char *text,
		      struct husk_error *err)
{
	void *field = (char *)target + spec->offset;
	int64_t number;

	if (spec->kind == OPTION_FLAG) {
		*(bool *)field = true;
		return 0;
	}
	if (!text)
		return husk_fail(err, HUSK_INVALID, "%s needs a value", what);
	switch (spec->kind) {
	case OPTION_CHOICE:
		if (parse_choice(what, spec, text, err) < 0)
			return -1;
		*(const char **)field = text;
		return 0;
	case OPTION_STRING:
		*(const char **)field = text;
		return 0;
	case OPTION_STRINGS:
		return add_string(text, field, err);
	case OPTION_PAIRS:
	case OPTION_ENVIRONMENT:
		return options_pair(what, text, spec->kind == OPTION_ENVIRONMENT, field, err);
	default:
		break;
	}
	if (parse_number(what, spec->kind, text, spec->min, spec->max, &number, err) < 0)
		return -1;
	if (spec->kind == OPTION_CPUS)
		*(uint32_t *)field = (uint32_t)number;
	else if (spec->kind == OPTION_SIZE)
		*(uint64_t *)field = (uint64_t)number;
	else
		*(int64_t *)field = number;
	return 0;
}

/* ---- finding them ---- */

struct parser {
	const struct option_group *groups;
	size_t group_count;
	int argc, at;
	char **argv;
	struct husk_error *err;
};

typedef bool (*spec_match)(const struct option_spec *spec, const char *word, size_t size);

static bool match_long(const struct option_spec *spec, const char *word, size_t size)
{
	return strlen(spec->name) == size && strncmp(spec->name, word, size) == 0;
}

static bool match_letter(const struct option_spec *spec, const char *word, size_t size)
{
	(void)size;
	return spec->letter && spec->letter == word[0];
}

static bool match_exact(const struct option_spec *spec, const char *word, size_t size)
{
	(void)size;
	return str_equal(spec->exact, word);
}

static const struct option_spec *parser_find(const struct parser *parser, spec_match match, const char *word,
					     size_t size, void **target)
{
	for (size_t i = 0; i < parser->group_count; i++) {
		for (const struct option_spec *spec = parser->groups[i].specs; spec && spec->name; spec++) {
			if (match(spec, word, size)) {
				*target = parser->groups[i].target;
				return spec;
			}
		}
	}
	return NULL;
}

static int parser_unknown(const struct parser *parser, const char *word, const char *name)
{
	const char *names[64];
	size_t count = 0;

	for (size_t i = 0; i < parser->group_count; i++)
		for (const struct option_spec *spec = parser->groups[i].specs; spec && spec->name; spec++)
			if (count < ARRAY_SIZE(names))
				names[count++] = spec->name;
	const char *advice = alias_option(word), *near = name ? str_nearest(name, names, count) : NULL;
	if (advice)
		return husk_fail(parser->err, HUSK_INVALID, "there is no %s here; %s", word, advice);
	if (near)
		return husk_fail(parser->err, HUSK_INVALID, "unknown option '%s'; did you mean '--%s'?", word, near);
	return husk_fail(parser->err, HUSK_INVALID, "unknown option '%s'", word);
}

/* NULL: there is none. */
static const char *parser_next_word(struct parser *parser)
{
	return parser->at + 1 < parser->argc ? parser->argv[++parser->at] : NULL;
}

/* --name, --name=value, --name value */
static int parser_long(struct parser *parser, const char *word)
{
	const char *name = word + 2, *equals = strchr(name, '='), *value = equals ? equals + 1 : NULL;
	size_t size = equals ? (size_t)(equals - name) : strlen(name);
	cleanup_free char *what = str_format("--%.*s", (int)size, name);
	void *target = NULL;

	if (!what)
		return husk_fail_memory(parser->err);
	const struct option_spec *spec = parser_find(parser, match_long, name, size, &target);
	if (!spec)
		return parser_unknown(parser, what, what + 2);
	if (spec->kind == OPTION_FLAG && value)
		return husk_fail(parser->err, HUSK_INVALID, "%s takes no value", what);
	if (spec->kind != OPTION_FLAG && !value)
		value = parser_next_word(parser);
	return option_set(spec, target, what, value, parser->err);
}

/* -x, -xyz of flags, -xVALUE, -x VALUE */
static int parser_letters(struct parser *parser, const char *word)
{
	void *target = NULL;

	for (const char *p = word + 1; *p; p++) {
		char what[3] = { '-', *p, '\0' };
		const struct option_spec *spec = parser_find(parser, match_letter, p, 1, &target);
		const char *value = p[1] ? p + 1 : NULL;

		if (!spec)
			return parser_unknown(parser, what, NULL);
		if (spec->kind == OPTION_FLAG) {
			if (option_set(spec, target, what, NULL, parser->err) < 0)
				return -1;
			continue;
		}
		return option_set(spec, target, what, value ? value : parser_next_word(parser), parser->err);
	}
	return 0;
}

static int parser_option(struct parser *parser, const char *word)
{
	void *target = NULL;
	const struct option_spec *spec = parser_find(parser, match_exact, word, 0, &target);

	if (spec)
		return option_set(spec, target, word, NULL, parser->err);
	return word[1] == '-' ? parser_long(parser, word) : parser_letters(parser, word);
}

int options_parse(const struct option_group *groups, size_t group_count, size_t stop_after, int *argc, char **argv,
		  struct husk_error *err)
{
	struct parser parser = { groups, group_count, *argc, 0, argv, err };
	int operands = 0;
	bool options_over = false;

	for (; parser.at < parser.argc; parser.at++) {
		char *word = argv[parser.at];
		if (!options_over && str_equal(word, "--")) {
			options_over = true;
			continue;
		}
		if (options_over || word[0] != '-' || word[1] == '\0') {
			argv[operands++] = word;
			options_over = options_over || (stop_after && (size_t)operands >= stop_after);
			continue;
		}
		if (parser_option(&parser, word) < 0)
			return -1;
	}
	argv[operands] = NULL; /* the rest is a separate command line */
	*argc = operands;
	return 0;
}

void options_free(const struct option_group *groups, size_t group_count)
{
	for (size_t i = 0; i < group_count; i++) {
		for (const struct option_spec *spec = groups[i].specs; spec && spec->name; spec++) {
			if (spec->kind == OPTION_STRINGS) {
				struct string_list *strings = (void *)((char *)groups[i].target + spec->offset);
				free(strings->items);
				*strings = (struct string_list){ 0 };
			}
			if (spec->kind != OPTION_PAIRS && spec->kind != OPTION_ENVIRONMENT)
				continue;
			struct pair_list *list = (void *)((char *)groups[i].target + spec->offset);
			for (size_t k = 0; k < list->count; k++)
				free((char *)list->items[k].key);
			free(list->items);
			*list = (struct pair_list){ 0 };
		}
	}
}

void options_help(const struct option_group *groups, size_t group_count, FILE *out)
{
	for (size_t i = 0; i < group_count; i++) {
		for (const struct option_spec *spec = groups[i].specs; spec && spec->name; spec++) {
			char left[64], letter[6] = "    ";
			if (!spec->help) /* another spelling of an option that has its own line */
				continue;
			if (spec->letter)
				snprintf(letter, sizeof(letter), "-%c, ", spec->letter);
			if (spec->exact)
				snprintf(left, sizeof(left), "%s", spec->exact);
			else
				snprintf(left, sizeof(left), "%s--%s%s%s", letter, spec->name, spec->value ? " " : "",
					 spec->value ? spec->value : "");
			fprintf(out, "  %-28s %s\n", left, spec->help);
		}
	}
}
