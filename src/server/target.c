/*
 * Parses the target of a request: path segments and query, each decoded separately. Called for every request before
 * anything else reads it. An encoded slash must never divide a path, a NUL must never end a string early, and ".." must
 * never get through: such a target is refused.
 */
#include "base/http_grammar.h"
#include "server/core.h"

/* Decodes [from, from + size) to *to, NUL-terminates, and moves *to behind it. */
static int decode(const char *from, size_t size, bool form, char **to, struct husk_error *err)
{
	char *out = *to;

	for (size_t i = 0; i < size; i++) {
		int byte = (unsigned char)from[i];

		if (from[i] == '+' && form) {
			byte = ' ';
		} else if (from[i] == '%') {
			int high = size - i > 2 ? http_hex_digit(from[i + 1]) : -1;
			int low = size - i > 2 ? http_hex_digit(from[i + 2]) : -1;
			if (high < 0 || low < 0)
				return husk_fail(err, HUSK_INVALID, "bad percent-encoding in the request's target");
			byte = high * 16 + low;
			i += 2;
		}
		if (byte == 0)
			return husk_fail(err, HUSK_INVALID, "a NUL byte in the request's target");
		*out++ = (char)byte;
	}
	*out++ = '\0';
	*to = out;
	return 0;
}

static int add_segment(struct target *target, const char *from, size_t size, char **to, struct husk_error *err)
{
	char *segment = *to;

	if (target->segment_count == SEGMENTS_MAX)
		return husk_fail(err, HUSK_INVALID, "the request's path has more than %d parts", SEGMENTS_MAX);
	if (decode(from, size, false, to, err) < 0)
		return -1;
	if (str_equal(segment, "..") || str_equal(segment, "."))
		return husk_fail(err, HUSK_INVALID, "'%s' in the request's path; give the path without it", segment);
	target->segment_offset[target->segment_count] = (size_t)(from - target->raw);
	target->segments[target->segment_count++] = segment;
	return 0;
}

static int parse_path(struct target *target, const char *path, size_t size, char **to, struct husk_error *err)
{
	if (size == 0 || path[0] != '/')
		return husk_fail(err, HUSK_INVALID, "the request's path must begin with '/'");
	for (size_t at = 1; at <= size;) {
		const char *slash = memchr(path + at, '/', size - at);
		size_t end = slash ? (size_t)(slash - path) : size;

		if (add_segment(target, path + at, end - at, to, err) < 0)
			return -1;
		at = end + 1;
	}
	return 0;
}

static int add_pair(struct target *target, const char *from, size_t size, char **to, struct husk_error *err)
{
	const char *equals = memchr(from, '=', size);
	size_t name_size = equals ? (size_t)(equals - from) : size;
	struct text_pair pair = { .name = *to };

	if (size == 0)
		return 0;
	if (target->query_count == QUERY_MAX)
		return husk_fail(err, HUSK_INVALID, "the query has more than %d names", QUERY_MAX);
	if (decode(from, name_size, true, to, err) < 0)
		return -1;
	pair.value = *to;
	if (decode(equals ? equals + 1 : "", equals ? size - name_size - 1 : 0, true, to, err) < 0)
		return -1;
	target->query[target->query_count++] = pair;
	return 0;
}

int target_parse(struct target *target, struct husk_error *err)
{
	const char *mark = strchr(target->raw, '?');
	size_t path_size = mark ? (size_t)(mark - target->raw) : strlen(target->raw);

	if (strlen(target->raw) > TARGET_MAX)
		return husk_fail(err, HUSK_INVALID, "the request's target is longer than %d bytes", TARGET_MAX);
	/* Decoding never makes text longer; each piece needs one more byte for its end. */
	target->decoded = malloc(strlen(target->raw) + SEGMENTS_MAX + 2 * QUERY_MAX + 2);
	if (!target->decoded)
		return husk_fail_memory(err);
	char *to = target->decoded;
	if (parse_path(target, target->raw, path_size, &to, err) < 0)
		return -1;
	for (const char *at = mark ? mark + 1 : NULL; at;) {
		const char *end = strchr(at, '&');

		if (add_pair(target, at, end ? (size_t)(end - at) : strlen(at), &to, err) < 0)
			return -1;
		at = end ? end + 1 : NULL;
	}
	return 0;
}

void target_free(struct target *target)
{
	free(target->raw);
	free(target->decoded);
}
