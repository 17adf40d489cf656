/*
 * Patterns of file names in Dockerfiles and .dockerignore (context.h). Matching uses text only. Its time is proportional
 * to the lengths of pattern and path, for every pattern: for each byte of the pattern, it keeps the set of path
 * positions that can follow.
 */
#include "build/context.h"

#define PATTERNS_MAX 10000
#define PATH_BYTES_MAX 8192u

bool pattern_is(const char *word)
{
	return strpbrk(word, "*?[") != NULL;
}

/* "[a-z]", "[^x]": does it hold this byte? Moves *at behind it; a bracket that does not end matches nothing. */
static bool class_holds(const char **at, char byte)
{
	const char *p = *at + 1;
	bool negated = *p == '^' || *p == '!', found = false;

	p += negated;
	for (bool first = true; *p && (first || *p != ']'); first = false) {
		p += *p == '\\' && p[1];
		unsigned char low = (unsigned char)*p++, high = low;
		if (*p == '-' && p[1] && p[1] != ']') {
			p += 1 + (p[1] == '\\' && p[2]);
			high = (unsigned char)*p++;
		}
		found |= low <= (unsigned char)byte && (unsigned char)byte <= high;
	}
	if (*p != ']') {
		*at = p;
		return false;
	}
	*at = p + 1;
	return found != negated && byte != '/';
}

/* `from` and `to` say which positions of the path are reached before and after one element of the pattern. */
static void step_star(const bool *from, bool *to, const char *path, size_t size, bool across)
{
	bool reached = false;

	for (size_t i = 0; i <= size; i++) {
		reached |= from[i];
		to[i] = reached;
		if (i < size && path[i] == '/' && !across)
			reached = false;
	}
}

static void step_byte(const char *element, const char **next, const bool *from, bool *to, const char *path, size_t size)
{
	to[0] = false;
	*next = element + 1;
	for (size_t i = 0; i < size; i++) {
		const char *at = element;
		bool fits;
		if (*element == '?') {
			fits = path[i] != '/';
		} else if (*element == '[') {
			fits = class_holds(&at, path[i]);
			*next = at;
		} else if (*element == '\\' && element[1]) {
			fits = path[i] == element[1];
			*next = element + 2;
		} else {
			fits = path[i] == *element;
		}
		to[i + 1] = from[i] && fits;
	}
}

bool pattern_match(const char *pattern, const char *path)
{
	size_t size = strlen(path);
	bool sets[2][PATH_BYTES_MAX + 1];
	int now = 0;

	if (size == 0 || size > PATH_BYTES_MAX)
		return size == 0 && *pattern == '\0';
	memset(sets[0], 0, size + 1);
	sets[0][0] = true;
	while (*pattern) {
		bool *from = sets[now], *to = sets[!now];
		if (str_starts(pattern, "**")) {
			pattern += strspn(pattern, "*");
			step_star(from, to, path, size, true);
			/* A double star with its slash can also be nothing at all. */
			if (*pattern == '/') {
				for (size_t i = size; i > 0; i--)
					to[i] = to[i - 1] && path[i - 1] == '/';
				to[0] = false;
				for (size_t i = 0; i <= size; i++)
					to[i] |= from[i];
				pattern++;
			}
		} else if (*pattern == '*') {
			step_star(from, to, path, size, false);
			pattern++;
		} else {
			step_byte(pattern, &pattern, from, to, path, size);
		}
		now = !now;
	}
	return sets[now][size];
}

/* Without "./", doubled slashes and slashes at the ends. */
static char *clean(const char *pattern, size_t size)
{
	cleanup_buf struct buf out = { 0 };

	for (size_t at = 0; at < size;) {
		size_t length = 0;
		while (at + length < size && pattern[at + length] != '/')
			length++;
		bool skip = length == 0 || (length == 1 && pattern[at] == '.');
		if (!skip &&
		    ((out.size && buf_append_string(&out, "/") < 0) || buf_append(&out, pattern + at, length) < 0))
			return NULL;
		at += length + 1;
	}
	return buf_steal(&out);
}

int ignore_parse(const char *text, char ***out, struct husk_error *err)
{
	size_t count = 0;

	while (*text) {
		size_t size = strcspn(text, "\n"), kept = size;
		const char *line = text + strspn(text, " \t");
		while (kept && strchr(" \t\r", text[kept - 1]))
			kept--;
		const char *end = text + kept;
		text += size + (text[size] == '\n');
		if (line >= end || *line == '#')
			continue;
		bool keep = *line == '!';
		cleanup_free char *pattern = clean(line + keep, (size_t)(end - line) - keep);
		cleanup_free char *whole = pattern ? str_format("%s%s", keep ? "!" : "", pattern) : NULL;
		if (!whole)
			return husk_fail_memory(err);
		if (++count > PATTERNS_MAX)
			return husk_fail(err, HUSK_INVALID, ".dockerignore has more than %d patterns", PATTERNS_MAX);
		if (*pattern && strv_add(out, whole) < 0)
			return husk_fail_memory(err);
	}
	return 0;
}

static bool matches_or_parent(const char *pattern, const char *path)
{
	char parent[PATH_BYTES_MAX + 1];
	size_t size = strlen(path);

	if (size > PATH_BYTES_MAX)
		return false;
	memcpy(parent, path, size + 1);
	for (;;) {
		if (pattern_match(pattern, parent))
			return true;
		char *slash = strrchr(parent, '/');
		if (!slash)
			return false;
		*slash = '\0';
	}
}

bool ignore_match(char *const *patterns, const char *path)
{
	bool ignored = false;

	for (; patterns && *patterns; patterns++) {
		bool keep = **patterns == '!';
		if (ignored == keep && matches_or_parent(*patterns + keep, path))
			ignored = !keep;
	}
	return ignored;
}
