/*
 * Dockerfiles (dockerfile.h). The parser works in this order. It joins lines to logical lines, and remembers line and
 * column of each byte. It splits off the keyword and the flags, and splits the rest as the keyword requires. A heredoc
 * takes the lines that follow. When all steps are known, the stages and the references to them are checked. The words of
 * variables are in dockerfile_words.c, stages in dockerfile_stages.c.
 */
#include "build/dockerfile.h"

#include <ctype.h>
#include <strings.h>

#include "base/jansson.h"

#define BLANK " \t\r\v\f"

struct spot {
	unsigned line, column;
};

struct parser {
	const char *name;     /* of the file, in errors */
	const char *at, *end; /* what is not read yet */
	unsigned line;        /* of `at` */
	struct buf text;      /* the current logical line */
	struct spot *spots;   /* of each byte of it */
	size_t spot_room;
	struct dockerfile *out;
	bool trigger; /* a step of ONBUILD */
	struct husk_error *err;
};

#define fail_at(parser, spot, ...) fail_spot(parser, spot, HUSK_INVALID, __VA_ARGS__)

static int fail_spot(struct parser *parser, struct spot spot, enum husk_code code, const char *format, ...)
	__attribute__((format(printf, 4, 5)));
static int fail_spot(struct parser *parser, struct spot spot, enum husk_code code, const char *format, ...)
{
	char message[400];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(message, sizeof(message), format, arguments);
	va_end(arguments);
	return husk_fail(parser->err, code, "%s:%u:%u: %s", parser->name, spot.line, spot.column, message);
}

static struct spot spot_of(const struct parser *parser, const char *at)
{
	size_t offset = (size_t)(at - parser->text.data);

	return parser->text.size == 0 ? (struct spot){ parser->line, 1 }
				      : parser->spots[MIN(offset, parser->text.size - 1)];
}

/* ---- logical lines ---- */

static int put_byte(struct parser *parser, char byte, unsigned column)
{
	if (parser->text.size >= parser->spot_room) {
		size_t room = parser->spot_room ? 2 * parser->spot_room : 1024;
		struct spot *grown = reallocarray(parser->spots, room, sizeof(*grown));
		if (!grown)
			return husk_fail_memory(parser->err);
		parser->spots = grown;
		parser->spot_room = room;
	}
	parser->spots[parser->text.size] = (struct spot){ parser->line, column };
	return buf_append(&parser->text, &byte, 1) < 0 ? husk_fail_memory(parser->err) : 0;
}

/* The next line of the file without its end; *size is its length. NULL: there is none. */
static const char *take_line(struct parser *parser, size_t *size)
{
	if (parser->at >= parser->end)
		return NULL;
	const char *line = parser->at, *stop = memchr(line, '\n', (size_t)(parser->end - line));

	*size = (size_t)((stop ? stop : parser->end) - line);
	parser->at = stop ? stop + 1 : parser->end;
	if (*size && line[*size - 1] == '\r')
		--*size;
	return line;
}

static bool is_empty(const char *line, size_t size)
{
	size_t skip = 0;

	while (skip < size && strchr(BLANK, line[skip]))
		skip++;
	return skip == size || line[skip] == '#';
}

/* 1: parser->text is the next logical line; 0: the end of the file. */
static int next_line(struct parser *parser)
{
	bool more = true;
	const char *line;
	size_t size;

	parser->text.size = 0;
	for (; more && (line = take_line(parser, &size)); parser->line++) {
		if (is_empty(line, size))
			continue; /* also between the lines of one step */
		size_t kept = size;
		while (kept && strchr(BLANK, line[kept - 1]))
			kept--;
		more = !parser->trigger && kept && line[kept - 1] == parser->out->escape;
		for (size_t i = 0; i < (more ? kept - 1 : size); i++)
			if (put_byte(parser, line[i], (unsigned)i + 1) < 0)
				return -1;
		more |= parser->text.size == 0;
	}
	while (parser->text.size && strchr(BLANK, parser->text.data[parser->text.size - 1]))
		parser->text.data[--parser->text.size] = '\0';
	return parser->text.size > 0;
}

/* "# escape=`" at the top. Other directives (syntax, check) change nothing here. */
static int read_directives(struct parser *parser)
{
	const char *line, *start = parser->at;
	size_t size;

	while ((line = take_line(parser, &size))) {
		cleanup_free char *text = strndup(line, size);
		char key[32], value[8];
		if (!text)
			return husk_fail_memory(parser->err);
		if (sscanf(text, " # %31[A-Za-z] = %7s", key, value) != 2)
			break;
		if (strcasecmp(key, "escape") != 0)
			continue;
		if (!str_equal(value, "\\") && !str_equal(value, "`"))
			return fail_at(parser, ((struct spot){ 1, 1 }), "the escape character is \\ or `, not '%s'",
				       value);
		parser->out->escape = value[0];
	}
	parser->at = start; /* directives are comments for the rest */
	return 0;
}

/* ---- steps ---- */

static void pairs_free(struct dockerfile_pair *pairs, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		free(pairs[i].key);
		free(pairs[i].value);
	}
	free(pairs);
}

static void step_free(struct dockerfile_step *step)
{
	free(step->source);
	free(step->text);
	strv_free(step->words);
	pairs_free(step->pairs, step->pair_count);
	pairs_free(step->flags, step->flag_count);
	for (size_t i = 0; i < step->heredoc_count; i++) {
		free(step->heredocs[i].name);
		free(step->heredocs[i].text);
	}
	free(step->heredocs);
}

void dockerfile_free(struct dockerfile *file)
{
	for (size_t i = 0; i < file->step_count; i++)
		step_free(&file->steps[i]);
	for (size_t i = 0; i < file->stage_count; i++)
		free(file->stages[i].name);
	free(file->steps);
	free(file->stages);
	*file = (struct dockerfile){ 0 };
}

static int add_pair(struct parser *parser, struct dockerfile_pair **list, size_t *count, char *key, char *value,
		    bool has_value)
{
	struct dockerfile_pair *grown = reallocarray(*list, *count + 1, sizeof(*grown));

	if (grown)
		*list = grown;
	if (!grown || !key || (has_value && !value)) {
		free(key);
		free(value);
		return husk_fail_memory(parser->err);
	}
	grown[(*count)++] = (struct dockerfile_pair){ .key = key, .value = value };
	return 0;
}

/* The end of a word: quotes and escapes keep blanks in it. NULL: a quote does not end. */
static const char *word_end(const char *at, char escape)
{
	char quote = '\0';

	for (; *at && (quote || !strchr(BLANK, *at)); at++) {
		if (*at == escape && quote != '\'' && at[1])
			at++;
		else if (quote && *at == quote)
			quote = '\0';
		else if (!quote && (*at == '"' || *at == '\''))
			quote = *at;
	}
	return quote ? NULL : at;
}

static const char *skip_blank(const char *at)
{
	return at + strspn(at, BLANK);
}

/* The flags in front of the rest: --name or --name=value. *at moves behind them. */
static int take_flags(struct parser *parser, struct dockerfile_step *step, const char **at)
{
	while (str_starts(*at, "--") && (*at)[2] && !strchr(BLANK, (*at)[2])) {
		const char *end = word_end(*at, parser->out->escape);
		if (!end)
			return fail_at(parser, spot_of(parser, *at), "a quote in this flag does not end");
		const char *equals = memchr(*at, '=', (size_t)(end - *at));
		const char *stop = equals ? equals : end;
		char *name = strndup(*at + 2, (size_t)(stop - *at - 2));
		char *value = equals ? strndup(equals + 1, (size_t)(end - equals - 1)) : NULL;
		if (add_pair(parser, &step->flags, &step->flag_count, name, value, equals) < 0)
			return -1;
		step->flags[step->flag_count - 1].line = spot_of(parser, *at).line;
		step->flags[step->flag_count - 1].column = spot_of(parser, *at).column;
		if (step->flag_count > 64)
			return fail_at(parser, spot_of(parser, *at), "more than 64 flags");
		*at = skip_blank(end);
	}
	return 0;
}

static bool is_name(const char *text, size_t size)
{
	for (size_t i = 0; i < size; i++)
		if (!isalnum((unsigned char)text[i]) && !strchr("_.-", text[i]))
			return false;
	return size > 0;
}

static bool is_variable(const char *text, size_t size)
{
	for (size_t i = 0; i < size; i++)
		if (!isalnum((unsigned char)text[i]) && text[i] != '_')
			return false;
	return size > 0 && !isdigit((unsigned char)text[0]);
}

/* Checks that a word can be expanded when its variables are known. */
static int check_word(struct parser *parser, const char *text, struct spot spot)
{
	struct husk_error why = { 0 };
	cleanup_free char *expanded = NULL;

	if (dockerfile_expand(text, parser->out->escape, false, NULL, NULL, &expanded, &why) < 0)
		return fail_at(parser, spot, "%s", why.message);
	return 0;
}

/* ---- what follows the keyword ---- */

/* ["a", "b"]: 1 if it is a list of words, 0 if it is not meant as one. */
static int take_json(struct parser *parser, struct dockerfile_step *step, const char *at)
{
	json_error_t why;
	size_t i;
	json_t *word;

	if (*at != '[' || str_json_deeper(at, strlen(at), 2))
		return 0;
	cleanup_json json_t *list = json_loads(at, 0, &why);
	if (!json_is_array(list))
		return 0;
	json_array_foreach(list, i, word)
	{
		const char *text = json_string_value(word);
		if (!text || strlen(text) != json_string_length(word) || i >= DOCKERFILE_WORDS_MAX)
			return fail_at(parser, spot_of(parser, at), "word %zu of the list is not a string", i + 1);
		if (strv_add(&step->words, text) < 0)
			return husk_fail_memory(parser->err);
	}
	step->json = true;
	return 1;
}

static int take_words(struct parser *parser, struct dockerfile_step *step, const char *at)
{
	for (size_t count = 0; *at; count++) {
		const char *end = word_end(at, parser->out->escape);
		if (!end)
			return fail_at(parser, spot_of(parser, at), "a quote does not end");
		if (count >= DOCKERFILE_WORDS_MAX)
			return fail_at(parser, spot_of(parser, at), "more than %d words", DOCKERFILE_WORDS_MAX);
		cleanup_free char *word = strndup(at, (size_t)(end - at));
		if (!word || strv_add(&step->words, word) < 0)
			return husk_fail_memory(parser->err);
		if (check_word(parser, word, spot_of(parser, at)) < 0)
			return -1;
		at = skip_blank(end);
	}
	return 0;
}

/* ENV KEY=value …, or the old form ENV KEY value. ARG KEY[=default] …. */
static int take_pairs(struct parser *parser, struct dockerfile_step *step, const char *at)
{
	bool argument = step->kind == STEP_ARG;

	while (*at) {
		const char *end = word_end(at, parser->out->escape);
		struct spot spot = spot_of(parser, at);
		if (!end)
			return fail_at(parser, spot, "a quote does not end");
		const char *equals = memchr(at, '=', (size_t)(end - at));
		bool old = !equals && !argument && step->pair_count == 0 && *skip_blank(end);
		if ((!equals && !argument && !old) || at == equals)
			return fail_at(parser, spot, "%s needs KEY=value, not '%.*s'", dockerfile_kind_name(step->kind),
				       (int)MIN(end - at, 60), at);
		const char *stop = equals ? equals : end, *from = equals ? equals + 1 : skip_blank(end);
		if (old)
			end = from + strlen(from);
		if (step->kind != STEP_LABEL && !is_variable(at, (size_t)(stop - at)))
			return fail_at(parser, spot, "'%.*s' is not the name of a variable", (int)MIN(stop - at, 60),
				       at);
		char *key = strndup(at, (size_t)(stop - at));
		char *value = equals || old ? strndup(from, (size_t)(end - from)) : NULL;
		if (add_pair(parser, &step->pairs, &step->pair_count, key, value, equals || old) < 0 ||
		    (value && check_word(parser, value, spot) < 0))
			return -1;
		if (step->pair_count > DOCKERFILE_WORDS_MAX)
			return fail_at(parser, spot, "more than %d pairs", DOCKERFILE_WORDS_MAX);
		at = skip_blank(end);
	}
	return step->pair_count ? 0
				: fail_at(parser, ((struct spot){ step->line, step->column }), "%s needs an argument",
					  dockerfile_kind_name(step->kind));
}

/* ---- heredocs ---- */

/* The lines until one that is `name` alone. `tabs`: tabs at the beginning of lines do not count. */
static int take_heredoc(struct parser *parser, struct dockerfile_step *step, char *name, bool tabs, bool expand,
			struct spot spot)
{
	struct dockerfile_heredoc *grown = reallocarray(step->heredocs, step->heredoc_count + 1, sizeof(*grown));
	cleanup_buf struct buf body = { 0 };
	const char *line;
	size_t size;
	int failed = grown ? 0 : -1;

	if (grown) {
		step->heredocs = grown;
		grown[step->heredoc_count++] = (struct dockerfile_heredoc){ .name = name, .expand = expand };
	} else {
		free(name);
	}
	for (; !failed && (line = take_line(parser, &size)); failed |= buf_append_string(&body, "\n")) {
		parser->line++;
		while (tabs && size && *line == '\t') {
			line++;
			size--;
		}
		if (size == strlen(name) && memcmp(line, name, size) == 0) {
			grown[step->heredoc_count - 1].text = buf_steal(&body);
			return grown[step->heredoc_count - 1].text ? 0 : husk_fail_memory(parser->err);
		}
		failed |= buf_append(&body, line, size);
	}
	return failed ? husk_fail_memory(parser->err)
		      : fail_at(parser, spot, "the heredoc '%.40s' does not end: a line that is %.40s alone is missing",
				name, name);
}

/* Every <<NAME, <<-NAME, <<"NAME" of the step that stands outside of quotes. */
static int take_heredocs(struct parser *parser, struct dockerfile_step *step, const char *at)
{
	/* The text moves when later lines are read, and none are: take_heredoc reads the file itself. */
	for (char quote = '\0'; *at; at++) {
		if (*at == parser->out->escape && at[1] && quote != '\'') {
			at++;
			continue;
		}
		if (quote || *at == '"' || *at == '\'') {
			quote = quote == *at ? '\0' : quote ? quote : *at;
			continue;
		}
		if (!str_starts(at, "<<"))
			continue;
		if (at[2] == '<') { /* a here-string of the shell */
			at += 2;
			continue;
		}
		struct spot spot = spot_of(parser, at);
		bool tabs = at[2] == '-';
		const char *name = at + 2 + tabs, mark = *name == '"' || *name == '\'' ? *name : '\0';
		name += mark != '\0';
		size_t size = strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-");
		if (!size || isdigit((unsigned char)*name) || (mark && name[size] != mark))
			continue; /* "1<<3" and the like */
		if (step->heredoc_count >= 64)
			return fail_at(parser, spot, "more than 64 heredocs");
		char *copy = strndup(name, size);
		if (!copy)
			return husk_fail_memory(parser->err);
		if (take_heredoc(parser, step, copy, tabs, !mark, spot) < 0)
			return -1;
		at = name + size - 1 + (mark != '\0');
	}
	return 0;
}

/* ---- each keyword ---- */

enum shape { SHAPE_TEXT, SHAPE_COMMAND, SHAPE_LIST, SHAPE_WORDS, SHAPE_FILES, SHAPE_PAIRS, SHAPE_STEP, SHAPE_HEALTH };

static const struct keyword {
	const char *name;
	enum dockerfile_kind kind;
	enum shape shape;
	const char *flags; /* that it may have, each with a space behind it */
} keywords[] = {
	{ "FROM", STEP_FROM, SHAPE_WORDS, "platform " },
	{ "ARG", STEP_ARG, SHAPE_PAIRS, "" },
	{ "ENV", STEP_ENV, SHAPE_PAIRS, "" },
	{ "LABEL", STEP_LABEL, SHAPE_PAIRS, "" },
	{ "RUN", STEP_RUN, SHAPE_COMMAND, "mount network " },
	{ "COPY", STEP_COPY, SHAPE_FILES, "from chown chmod link " },
	{ "ADD", STEP_ADD, SHAPE_FILES, "chown chmod link checksum " },
	{ "WORKDIR", STEP_WORKDIR, SHAPE_TEXT, "" },
	{ "USER", STEP_USER, SHAPE_TEXT, "" },
	{ "SHELL", STEP_SHELL, SHAPE_LIST, "" },
	{ "EXPOSE", STEP_EXPOSE, SHAPE_WORDS, "" },
	{ "ENTRYPOINT", STEP_ENTRYPOINT, SHAPE_COMMAND, "" },
	{ "CMD", STEP_CMD, SHAPE_COMMAND, "" },
	{ "HEALTHCHECK", STEP_HEALTHCHECK, SHAPE_HEALTH, "interval timeout start-period start-interval retries " },
	{ "STOPSIGNAL", STEP_STOPSIGNAL, SHAPE_TEXT, "" },
	{ "ONBUILD", STEP_ONBUILD, SHAPE_STEP, "" },
	{ "VOLUME", STEP_VOLUME, SHAPE_WORDS, "" },
	{ "MAINTAINER", STEP_MAINTAINER, SHAPE_TEXT, "" },
};

const char *dockerfile_kind_name(enum dockerfile_kind kind)
{
	for (size_t i = 0; i < ARRAY_SIZE(keywords); i++)
		if (keywords[i].kind == kind)
			return keywords[i].name;
	return "?";
}

const char *dockerfile_flag(const struct dockerfile_step *step, const char *name)
{
	for (size_t i = 0; i < step->flag_count; i++)
		if (str_equal(step->flags[i].key, name))
			return step->flags[i].value ? step->flags[i].value : "";
	return NULL;
}

static int check_mounts(struct parser *parser, const char *value, struct spot spot)
{
	struct dockerfile_mount mount = { 0 };
	struct husk_error why = { 0 };
	int result = dockerfile_mount_parse(value, &mount, &why);

	if (result < 0)
		fail_at(parser, spot, "--mount: %s", why.message);
	dockerfile_mount_free(&mount);
	return result;
}

static int check_flags(struct parser *parser, const struct keyword *keyword, const struct dockerfile_step *step)
{
	for (size_t i = 0; i < step->flag_count; i++) {
		const struct dockerfile_pair *flag = &step->flags[i];
		struct spot spot = { flag->line, flag->column };
		cleanup_free char *with_space = str_format("%s ", flag->key);
		const char *found = with_space ? strstr(keyword->flags, with_space) : NULL;
		if (!found || (found != keyword->flags && found[-1] != ' '))
			return fail_at(parser, spot, "--%.40s of %s is not supported", flag->key, keyword->name);
		bool alone = str_equal(flag->key, "link");
		if (!alone && (!flag->value || !*flag->value))
			return fail_at(parser, spot, "--%s needs a value: --%s=…", flag->key, flag->key);
		if (flag->value && check_word(parser, flag->value, spot) < 0)
			return -1;
		if (str_equal(flag->key, "mount") && check_mounts(parser, flag->value, spot) < 0)
			return -1;
		if (str_equal(flag->key, "network") && !str_equal(flag->value, "default") &&
		    !str_equal(flag->value, "none"))
			return fail_at(parser, spot,
				       "--network=%.40s is not supported; the network of a build is set with "
				       "husk build --allow",
				       flag->value);
	}
	return 0;
}

static int check_files(struct parser *parser, const struct dockerfile_step *step, struct spot spot)
{
	size_t words = step->words ? strv_length(step->words) : 0;
	struct husk_error why = { 0 };
	char digest[65];

	/* A heredoc is a source, and one of the words. */
	if (words < 2)
		return fail_at(parser, spot, "%s needs at least one source and a target",
			       dockerfile_kind_name(step->kind));
	for (size_t i = 0; i + 1 < words; i++)
		/* A word with variables is checked again when they are replaced. */
		if (!strchr(step->words[i], '$') && dockerfile_check_source(step->kind, step->words[i], &why) < 0)
			return fail_at(parser, spot, "%s", why.message);
	const char *checksum = dockerfile_flag(step, "checksum");
	if (checksum && words != 2)
		return fail_at(parser, spot, "--checksum goes with one source, which is a URL");
	if (checksum && !strchr(checksum, '$') && dockerfile_checksum(checksum, digest, &why) < 0)
		return fail_at(parser, spot, "%s", why.message);
	return 0;
}

static int parse_rest(struct parser *parser, const struct keyword *keyword, struct dockerfile_step *step,
		      const char *at, struct spot spot);

/* ONBUILD keeps its step as text; here it is only checked. */
static int check_trigger(struct parser *parser, const char *at, struct spot spot)
{
	struct dockerfile trigger = { 0 };
	struct husk_error why = { 0 };

	if (parser->trigger)
		return fail_at(parser, spot, "ONBUILD in ONBUILD is not possible");
	int result = dockerfile_parse_trigger(parser->name, at, &trigger, &why);
	const char *colon = result < 0 ? strstr(why.message, ": ") : NULL;
	dockerfile_free(&trigger);
	return result < 0 ? fail_at(parser, spot_of(parser, at), "ONBUILD: %s", colon ? colon + 2 : why.message) : 0;
}

static int parse_health(struct parser *parser, struct dockerfile_step *step, const char *at, struct spot spot)
{
	if (strcasecmp(at, "NONE") == 0)
		return strv_add(&step->words, "NONE") < 0 ? husk_fail_memory(parser->err) : 0;
	if (strncasecmp(at, "CMD", 3) != 0 || !at[3] || !strchr(BLANK, at[3]))
		return fail_at(parser, spot, "HEALTHCHECK needs NONE, or CMD and a command");
	at = skip_blank(at + 3);
	free(step->text);
	step->text = strdup(at);
	return step->text ? take_json(parser, step, at) < 0 ? -1 : 0 : husk_fail_memory(parser->err);
}

static int parse_from(struct parser *parser, struct dockerfile_step *step, struct spot spot)
{
	char **words = step->words;
	size_t count = words ? strv_length(words) : 0;
	struct dockerfile *file = parser->out;

	if (parser->trigger)
		return fail_at(parser, spot, "FROM in ONBUILD is not possible");
	if (count != 1 && (count != 3 || strcasecmp(words[1], "AS") != 0))
		return fail_at(parser, spot, "FROM needs IMAGE, or IMAGE AS NAME");
	if (count == 3 && (!is_name(words[2], strlen(words[2])) || !isalpha((unsigned char)words[2][0])))
		return fail_at(parser, spot, "'%.60s' cannot be the name of a stage", words[2]);
	if (count == 3 && dockerfile_find_stage(file, words[2], file->stage_count) >= 0)
		return fail_at(parser, spot, "there is a stage '%.60s' already", words[2]);
	struct dockerfile_stage *grown = reallocarray(file->stages, file->stage_count + 1, sizeof(*grown));
	char *name = count == 3 ? strdup(words[2]) : NULL;
	if (grown)
		file->stages = grown;
	if (!grown || (count == 3 && !name)) {
		free(name);
		return husk_fail_memory(parser->err);
	}
	int base = dockerfile_find_stage(file, words[0], file->stage_count);
	if (base >= 0 && isdigit((unsigned char)words[0][0]))
		base = -1; /* a number is an image here */
	grown[file->stage_count++] =
		(struct dockerfile_stage){ .name = name, .first = file->step_count - 1, .base = base };
	return 0;
}

static int parse_rest(struct parser *parser, const struct keyword *keyword, struct dockerfile_step *step,
		      const char *at, struct spot spot)
{
	if (!*at && keyword->shape != SHAPE_PAIRS)
		return fail_at(parser, spot, "%s needs an argument", keyword->name);
	switch (keyword->shape) {
	case SHAPE_TEXT:
		return check_word(parser, at, spot_of(parser, at));
	case SHAPE_COMMAND:
		if (step->kind == STEP_RUN && take_heredocs(parser, step, at) < 0)
			return -1;
		if (take_json(parser, step, at) < 0)
			return -1;
		return step->json && !step->words && step->kind == STEP_RUN
			       ? fail_at(parser, spot, "RUN of an empty list")
			       : 0;
	case SHAPE_LIST:
		if (take_json(parser, step, at) < 0)
			return -1;
		return step->words
			       ? 0
			       : fail_at(parser, spot, "%s needs a JSON list: [\"/bin/sh\", \"-c\"]", keyword->name);
	case SHAPE_FILES:
		if (take_heredocs(parser, step, at) < 0)
			return -1;
		if (take_json(parser, step, at) < 0 || (!step->json && take_words(parser, step, at) < 0))
			return -1;
		return check_files(parser, step, spot);
	case SHAPE_WORDS:
		if (step->kind == STEP_VOLUME && take_json(parser, step, at) < 0)
			return -1;
		if (!step->json && take_words(parser, step, at) < 0)
			return -1;
		return step->kind == STEP_FROM ? parse_from(parser, step, spot) : 0;
	case SHAPE_PAIRS:
		return take_pairs(parser, step, at);
	case SHAPE_STEP:
		return check_trigger(parser, at, spot);
	case SHAPE_HEALTH:
		return parse_health(parser, step, at, spot);
	}
	return 0;
}

static const struct keyword *find_keyword(const char *word, size_t size)
{
	for (size_t i = 0; i < ARRAY_SIZE(keywords); i++)
		if (strlen(keywords[i].name) == size && strncasecmp(keywords[i].name, word, size) == 0)
			return &keywords[i];
	return NULL;
}

static int fail_unknown(struct parser *parser, const char *word, size_t size, struct spot spot)
{
	const char *names[ARRAY_SIZE(keywords)];
	char given[41];

	snprintf(given, sizeof(given), "%.*s", (int)MIN(size, 40u), word);
	for (char *at = given; *at; at++)
		*at = (char)toupper((unsigned char)*at);
	for (size_t i = 0; i < ARRAY_SIZE(keywords); i++)
		names[i] = keywords[i].name;
	const char *near = str_nearest(given, names, ARRAY_SIZE(names));
	return fail_at(parser, spot, "unknown instruction '%s'%s%s%s", given, near ? "; did you mean " : "",
		       near ? near : "", near ? "?" : "");
}

/* One step, from the logical line in parser->text. */
static int parse_step(struct parser *parser)
{
	struct dockerfile *file = parser->out;
	const char *at = skip_blank(parser->text.data);
	size_t size = strcspn(at, BLANK);
	struct spot spot = spot_of(parser, at);
	const struct keyword *keyword = find_keyword(at, size);

	if (!keyword)
		return fail_unknown(parser, at, size, spot);
	if (file->step_count >= DOCKERFILE_STEPS_MAX)
		return fail_at(parser, spot, "more than %d steps", DOCKERFILE_STEPS_MAX);
	struct dockerfile_step *grown = reallocarray(file->steps, file->step_count + 1, sizeof(*grown));
	if (!grown)
		return husk_fail_memory(parser->err);
	file->steps = grown;
	struct dockerfile_step *step = &grown[file->step_count++];
	*step = (struct dockerfile_step){
		.kind = keyword->kind, .line = spot.line, .column = spot.column, .from = -1, .source = strdup(at)
	};
	at = skip_blank(at + size);
	if (take_flags(parser, step, &at) < 0)
		return -1;
	step->text = strdup(at);
	if (!step->text || !step->source)
		return husk_fail_memory(parser->err);
	if (!parser->trigger && !file->stage_count && step->kind != STEP_FROM && step->kind != STEP_ARG)
		return fail_at(parser, spot, "%s before FROM; only ARG may come before it", keyword->name);
	if (check_flags(parser, keyword, step) < 0)
		return -1;
	return parse_rest(parser, keyword, step, at, spot);
}

/* ---- all of it ---- */

static int parse_all(struct parser *parser)
{
	int more;

	while ((more = next_line(parser)) > 0)
		if (parse_step(parser) < 0)
			return -1;
	return more;
}

static int parse(struct parser *parser)
{
	const char *nul = memchr(parser->at, '\0', (size_t)(parser->end - parser->at));

	if ((size_t)(parser->end - parser->at) > DOCKERFILE_MAX)
		return husk_fail(parser->err, HUSK_INVALID, "%s is larger than %u bytes", parser->name, DOCKERFILE_MAX);
	if (nul || !str_is_utf8(parser->at, (size_t)(parser->end - parser->at)))
		return husk_fail(parser->err, HUSK_INVALID, "%s is not text in UTF-8", parser->name);
	if (str_starts(parser->at, "\xef\xbb\xbf")) /* a byte order mark */
		parser->at += 3;
	if (!parser->trigger && read_directives(parser) < 0)
		return -1;
	parser->line = 1;
	return parse_all(parser) < 0 ? -1
	       : parser->trigger     ? 0
				     : dockerfile_link(parser->out, parser->name, parser->err);
}

static int run_parser(struct parser *parser)
{
	int result;

	*parser->out = (struct dockerfile){ .escape = '\\' };
	result = parse(parser);
	if (result < 0)
		dockerfile_free(parser->out);
	buf_free(&parser->text);
	free(parser->spots);
	return result;
}

int dockerfile_parse(const char *name, const char *text, size_t size, struct dockerfile *out, struct husk_error *err)
{
	cleanup_free char *copy = strndup(text, size); /* the parser relies on a NUL at the end */
	struct parser parser = { .name = name, .out = out, .err = err };

	if (!copy)
		return husk_fail_memory(err);
	if (strlen(copy) != size)
		return husk_fail(err, HUSK_INVALID, "%s is not text in UTF-8", name);
	parser.at = copy;
	parser.end = copy + size;
	return run_parser(&parser);
}

int dockerfile_parse_trigger(const char *name, const char *text, struct dockerfile *out, struct husk_error *err)
{
	struct parser parser = {
		.name = name, .at = text, .end = text + strlen(text), .out = out, .trigger = true, .err = err
	};

	if (run_parser(&parser) < 0)
		return -1;
	if (out->step_count == 1)
		return 0;
	dockerfile_free(out);
	return husk_fail(err, HUSK_INVALID, "%s: a trigger of ONBUILD is not one step", name);
}
