/*
 * See redact.h. The text is the caller's own, and is not parsed as git does: whatever looks like the beginning of a URL with a
 * name in it loses the name, also in comments and names of sections.
 */
#include "workspace/redact.h"

#include <ctype.h>
#include <strings.h>

bool redact_applies(const char *path)
{
	const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
	cleanup_free char *slashed = str_format("/%s", path);

	/* Without memory: rather too often. */
	return (str_equal(base, "config") || str_equal(base, "config.worktree")) &&
	       (!slashed || strstr(slashed, "/.git/"));
}

/* Values of http.extraheader and of a credential's password. */
static bool is_secret_line(const char *line, size_t size)
{
	static const char *const keys[] = { "extraheader", "password", "proxyauthorization" };
	size_t at = 0;

	while (at < size && isspace((unsigned char)line[at]))
		at++;
	for (size_t i = 0; i < ARRAY_SIZE(keys); i++) {
		size_t length = strlen(keys[i]);
		if (size - at > length && strncasecmp(line + at, keys[i], length) == 0 &&
		    (isspace((unsigned char)line[at + length]) || line[at + length] == '='))
			return true;
	}
	return false;
}

/* The size of "name:password@" at the beginning of `text`, which follows "http://" or "https://"; 0: none. */
static size_t user_size(const char *text, size_t size)
{
	size_t last = 0;

	for (size_t i = 0; i < size && !isspace((unsigned char)text[i]) && !strchr("/?#\"", text[i]); i++)
		if (text[i] == '@')
			last = i + 1;
	return last;
}

static int copy_line(const char *line, size_t size, struct buf *out)
{
	static const char *const schemes[] = { "https://", "http://" };
	int changed = 0;

	for (size_t at = 0; at < size;) {
		size_t length = 1, cut = 0;
		for (size_t i = 0; i < ARRAY_SIZE(schemes); i++) {
			size_t scheme = strlen(schemes[i]);
			if (size - at >= scheme && strncasecmp(line + at, schemes[i], scheme) == 0) {
				length = scheme;
				cut = user_size(line + at + scheme, size - at - scheme);
			}
		}
		if (buf_append(out, line + at, length) < 0)
			return -1;
		changed |= cut > 0;
		at += length + cut;
	}
	return changed;
}

int redact_config(const char *text, size_t size, struct buf *out)
{
	bool changed = false;

	for (size_t at = 0; at < size;) {
		const char *end = memchr(text + at, '\n', size - at);
		size_t length = end ? (size_t)(end - text) - at + 1 : size - at;
		bool secret = is_secret_line(text + at, length);
		/* A line that ends with a backslash goes on in the next one. */
		while (secret && at + length < size && length > 1 && text[at + length - 2] == '\\') {
			end = memchr(text + at + length, '\n', size - at - length);
			length = end ? (size_t)(end - text) - at + 1 : size - at;
		}
		int result = secret ? 1 : copy_line(text + at, length, out);
		if (result < 0)
			return -1;
		changed |= result > 0;
		at += length;
	}
	return changed;
}
