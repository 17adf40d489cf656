/*
 * Words of a Dockerfile (dockerfile.h): variables and quotes, and the options of --mount. Nothing here knows steps or files.
 */
#include <ctype.h>

#include "build/dockerfile.h"

#define EXPANDED_MAX (1u << 20) /* of one word: variables that contain variables must not fill memory */
#define NESTING_MAX 16

struct expansion {
	char escape;
	bool plain;
	dockerfile_lookup value;
	void *data;
	struct buf out;
	struct husk_error *err;
};

static int put(struct expansion *expansion, const char *text, size_t size)
{
	if (expansion->out.size + size > EXPANDED_MAX)
		return husk_fail(expansion->err, HUSK_INVALID, "a word has more than %u bytes", EXPANDED_MAX);
	return buf_append(&expansion->out, text, size) < 0 ? husk_fail_memory(expansion->err) : 0;
}

static size_t name_size(const char *at)
{
	size_t size = 0;

	while (isalnum((unsigned char)at[size]) || at[size] == '_')
		size++;
	return isdigit((unsigned char)*at) ? 1 : size;
}

static int expand(struct expansion *expansion, const char *text, const char *end, int depth);

/* The end of ${…}: braces inside count. NULL: it does not end. */
static const char *brace_end(const char *at, const char *end, char escape)
{
	for (int depth = 0; at < end; at++) {
		if (*at == escape && at + 1 < end)
			at++;
		else if (*at == '{')
			depth++;
		else if (*at == '}' && depth-- == 0)
			return at;
	}
	return NULL;
}

/* ${NAME}, ${NAME:-word} …; *at is behind "${" and moves behind "}". */
static int expand_brace(struct expansion *expansion, const char **at, const char *end, int depth)
{
	const char *stop = brace_end(*at, end, expansion->escape), *start = *at;
	size_t size = name_size(start);

	if (!stop)
		return husk_fail(expansion->err, HUSK_INVALID, "'${%.40s' does not end with '}'", start);
	if (!size || start + size > stop)
		return husk_fail(expansion->err, HUSK_INVALID, "'${%.*s}' names no variable",
				 (int)MIN(stop - start, 40), start);
	cleanup_free char *name = strndup(start, size);
	const char *value = name && expansion->value ? expansion->value(expansion->data, name) : NULL;
	const char *rest = start + size;
	bool colon = *rest == ':';
	*at = stop + 1;
	if (!name)
		return husk_fail_memory(expansion->err);
	if (rest == stop)
		return value ? put(expansion, value, strlen(value)) : 0;
	rest += colon;
	bool given = value && (!colon || *value);
	if (rest == stop || (*rest != '-' && *rest != '+' && *rest != '?'))
		return husk_fail(expansion->err, HUSK_INVALID,
				 "'${%.*s}' is not supported; ${NAME:-word} and ${NAME:+word} are",
				 (int)MIN(stop - start, 40), start);
	if (*rest == '?') {
		if (given || !expansion->value)
			return given ? put(expansion, value, strlen(value)) : 0;
		return husk_fail(expansion->err, HUSK_INVALID, "%s: %.*s", name, (int)MIN(stop - rest - 1, 200),
				 rest + 1);
	}
	if (*rest == '-' && given)
		return put(expansion, value, strlen(value));
	if (*rest == '+' && !given && expansion->value)
		return 0;
	return expand(expansion, rest + 1, stop, depth + 1);
}

static int expand_variable(struct expansion *expansion, const char **at, const char *end, int depth)
{
	const char *start = *at + 1;

	if (start < end && *start == '{') {
		*at = start + 1;
		return expand_brace(expansion, at, end, depth);
	}
	size_t size = start < end ? MIN(name_size(start), (size_t)(end - start)) : 0;
	if (!size) {
		++*at;
		return put(expansion, "$", 1);
	}
	cleanup_free char *name = strndup(start, size);
	const char *value = name && expansion->value ? expansion->value(expansion->data, name) : NULL;
	*at = start + size;
	return !name ? husk_fail_memory(expansion->err) : value ? put(expansion, value, strlen(value)) : 0;
}

static int expand(struct expansion *expansion, const char *text, const char *end, int depth)
{
	char quote = '\0';

	if (depth > NESTING_MAX)
		return husk_fail(expansion->err, HUSK_INVALID, "variables are nested deeper than %d", NESTING_MAX);
	for (const char *at = text; at < end;) {
		if (*at == expansion->escape && quote != '\'' && at + 1 < end) {
			/* In double quotes an escape counts before a dollar sign, a quote and itself. */
			bool counts = expansion->plain ? at[1] == '$'
						       : quote != '"' || at[1] == '$' || at[1] == '"' ||
								 at[1] == expansion->escape;
			if (put(expansion, counts ? at + 1 : at, counts ? 1 : 2) < 0)
				return -1;
			at += 2;
		} else if (*at == '$' && quote != '\'') {
			if (expand_variable(expansion, &at, end, depth) < 0)
				return -1;
		} else if (!expansion->plain && (quote ? *at == quote : *at == '"' || *at == '\'')) {
			quote = quote ? '\0' : *at;
			at++;
		} else if (put(expansion, at++, 1) < 0) {
			return -1;
		}
	}
	return 0;
}

int dockerfile_expand(const char *text, char escape, bool plain, dockerfile_lookup value, void *data, char **out,
		      struct husk_error *err)
{
	struct expansion expansion = { .escape = escape, .plain = plain, .value = value, .data = data, .err = err };
	int result = expand(&expansion, text, text + strlen(text), 0);

	if (result == 0) {
		*out = buf_steal(&expansion.out);
		if (!*out)
			result = husk_fail_memory(err);
	}
	buf_free(&expansion.out);
	return result;
}

/* ---- --mount ---- */

void dockerfile_mount_free(struct dockerfile_mount *mount)
{
	free(mount->id);
	free(mount->target);
	free(mount->source);
	free(mount->from);
	free(mount->variable);
	*mount = (struct dockerfile_mount){ 0 };
}

static int set_type(struct dockerfile_mount *out, const char *value, struct husk_error *err)
{
	static const char *const types[] = { "bind", "cache", "secret", "tmpfs" };

	for (size_t i = 0; i < ARRAY_SIZE(types); i++)
		if (str_equal(types[i], value)) {
			out->type = (__typeof__(out->type))i;
			return 0;
		}
	return husk_fail(err, HUSK_INVALID, "type=%.40s is not supported; cache, secret, bind and tmpfs are", value);
}

static int set_text(char **out, const char *key, const char *value, struct husk_error *err)
{
	if (!*value)
		return husk_fail(err, HUSK_INVALID, "%s needs a value", key);
	free(*out);
	*out = strdup(value);
	return *out ? 0 : husk_fail_memory(err);
}

static int set_mode(struct dockerfile_mount *out, const char *value, struct husk_error *err)
{
	char *end;
	unsigned long mode = strtoul(value, &end, 8);

	if (!*value || *end || mode > 07777)
		return husk_fail(err, HUSK_INVALID, "mode=%.20s is not an octal mode", value);
	out->mode = (uint32_t)mode;
	return 0;
}

static int set_option(struct dockerfile_mount *out, const char *key, const char *value, struct husk_error *err)
{
	if (str_equal(key, "type"))
		return set_type(out, value, err);
	if (str_equal(key, "id"))
		return set_text(&out->id, key, value, err);
	if (str_equal(key, "target") || str_equal(key, "dst") || str_equal(key, "destination"))
		return set_text(&out->target, key, value, err);
	if (str_equal(key, "source") || str_equal(key, "src"))
		return set_text(&out->source, key, value, err);
	if (str_equal(key, "from"))
		return set_text(&out->from, key, value, err);
	if (str_equal(key, "env"))
		return set_text(&out->variable, key, value, err);
	if (str_equal(key, "mode"))
		return set_mode(out, value, err);
	if (str_equal(key, "required")) {
		out->required = !str_equal(value, "false");
		return 0;
	}
	/* One build runs at a time in a sandbox of its own, and what is mounted can always be written to. */
	static const char *const without_effect[] = { "sharing",   "ro",  "readonly", "rw",
						      "readwrite", "uid", "gid",      "size" };
	for (size_t i = 0; i < ARRAY_SIZE(without_effect); i++)
		if (str_equal(key, without_effect[i]))
			return 0;
	return husk_fail(err, HUSK_INVALID, "%.40s is not supported", key);
}

static int check_mount(const struct dockerfile_mount *mount, struct husk_error *err)
{
	bool secret = mount->type == MOUNT_SECRET;

	if (secret && !mount->id && !mount->target)
		return husk_fail(err, HUSK_INVALID, "a secret needs id=NAME");
	if (!secret && !mount->target)
		return husk_fail(err, HUSK_INVALID, "target=PATH is missing");
	if (!secret && mount->variable)
		return husk_fail(err, HUSK_INVALID, "env=NAME is for secrets");
	if (mount->type == MOUNT_CACHE && (mount->from || mount->source))
		return husk_fail(err, HUSK_INVALID, "a cache with from= or source= is not supported");
	return 0;
}

int dockerfile_mount_parse(const char *text, struct dockerfile_mount *out, struct husk_error *err)
{
	*out = (struct dockerfile_mount){ 0 };
	for (const char *at = text; *at;) {
		size_t size = strcspn(at, ",");
		cleanup_free char *option = strndup(at, size);
		char *equals = option ? strchr(option, '=') : NULL;
		if (!option) {
			dockerfile_mount_free(out);
			return husk_fail_memory(err);
		}
		if (equals)
			*equals++ = '\0';
		if (set_option(out, option, equals ? equals : "", err) < 0) {
			dockerfile_mount_free(out);
			return -1;
		}
		at += size + (at[size] == ',');
	}
	if (check_mount(out, err) == 0)
		return 0;
	dockerfile_mount_free(out);
	return -1;
}

/* ---- sources of COPY and ADD ---- */

enum dockerfile_source dockerfile_source(const char *word)
{
	size_t size = strcspn(word, "?#");

	if (str_starts(word, "git@") || str_starts(word, "git://") || str_starts(word, "ssh://"))
		return SOURCE_GIT;
	if (!str_starts(word, "http://") && !str_starts(word, "https://"))
		return strstr(word, "://") ? SOURCE_OTHER : SOURCE_FILE;
	return size > 4 && strncmp(word + size - 4, ".git", 4) == 0 ? SOURCE_GIT : SOURCE_URL;
}

int dockerfile_check_source(enum dockerfile_kind kind, const char *word, struct husk_error *err)
{
	enum dockerfile_source source = dockerfile_source(word);

	if (source == SOURCE_FILE || (source == SOURCE_URL && kind == STEP_ADD))
		return 0;
	if (source == SOURCE_GIT)
		return husk_fail(err, HUSK_INVALID,
				 "%s of a git repository is not supported: use RUN git clone, and husk build --allow "
				 "HOST",
				 dockerfile_kind_name(kind));
	if (source == SOURCE_URL)
		return husk_fail(err, HUSK_INVALID, "COPY of a URL is not possible; ADD downloads it");
	return husk_fail(err, HUSK_INVALID, "'%.80s' is not a URL of http or https", word);
}

int dockerfile_checksum(const char *value, char out[static 65], struct husk_error *err)
{
	static const char prefix[] = "sha256:";
	const char *hex = value + strlen(prefix);

	if (!str_starts(value, prefix) || strlen(hex) != 64 || strspn(hex, "0123456789abcdefABCDEF") != 64)
		return husk_fail(err, HUSK_INVALID, "--checksum=%.80s is not sha256: and 64 hexadecimal digits", value);
	for (size_t i = 0; i <= 64; i++)
		out[i] = (char)tolower((unsigned char)hex[i]);
	return 0;
}
