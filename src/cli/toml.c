/*
 * Edits one table of a TOML file; see toml.h. It is one pass over the text: a scanner that knows strings, comments and
 * brackets finds the lines that do not continue a value, because only such a line can be a header or a key. Called by `mcp
 * install` and `mcp uninstall`.
 */
#include "cli/toml.h"

enum toml_state { PLAIN, COMMENT, BASIC, LITERAL, BASIC_LINES, LITERAL_LINES };

struct toml {
	enum toml_state state;
	int depth; /* of brackets in a value */
};

static bool three(const char *p, char quote)
{
	return p[0] == quote && p[1] == quote && p[2] == quote;
}

/* Inside a string: how many bytes to pass over. */
static size_t string_step(struct toml *toml, const char *p)
{
	bool basic = toml->state == BASIC || toml->state == BASIC_LINES;
	bool lines = toml->state == BASIC_LINES || toml->state == LITERAL_LINES;
	char quote = basic ? '"' : '\'';

	if (basic && *p == '\\' && p[1])
		return 2;
	if (lines ? three(p, quote) : *p == quote) {
		toml->state = PLAIN;
		return lines ? 3 : 1;
	}
	return 1;
}

static size_t plain_step(struct toml *toml, const char *p)
{
	if (*p == '"' || *p == '\'') {
		bool lines = three(p, *p);
		toml->state = *p == '"' ? (lines ? BASIC_LINES : BASIC) : (lines ? LITERAL_LINES : LITERAL);
		return lines ? 3 : 1;
	}
	if (*p == '#')
		toml->state = COMMENT;
	toml->depth += *p == '[' || *p == '{';
	toml->depth -= *p == ']' || *p == '}';
	return 1;
}

/* Passes over one line, its end included. NULL: a string on one line has no end. */
static const char *line_step(struct toml *toml, const char *p)
{
	while (*p && *p != '\n') {
		if (toml->state == PLAIN)
			p += plain_step(toml, p);
		else if (toml->state == COMMENT)
			p++;
		else
			p += string_step(toml, p);
	}
	if (toml->state == COMMENT)
		toml->state = PLAIN;
	if (toml->state == BASIC || toml->state == LITERAL)
		return NULL;
	return *p ? p + 1 : p;
}

/* A dotted name up to one of `ends`, without blanks and quotes. */
static int read_name(const char *p, const char *ends, struct buf *out, struct husk_error *err)
{
	for (; *p && *p != '\n' && !strchr(ends, *p); p++)
		if (!strchr(" \t\r\"'", *p) && buf_append(out, p, 1) < 0)
			return husk_fail_memory(err);
	return buf_append(out, "", 1) < 0 ? husk_fail_memory(err) : 0;
}

/* "a.b" and "a.b.c" are in "a.b". */
static bool is_in(const char *name, const char *table)
{
	size_t size = strlen(table);

	return strncmp(name, table, size) == 0 && (name[size] == '\0' || name[size] == '.');
}

/* A key of another table that holds ours as its value, or leads to it: `mcp_servers = {…}`, `mcp_servers.husk.args`. */
static int check_key(const char *line, const char *inside, const char *table, struct husk_error *err)
{
	cleanup_buf struct buf key = { 0 }, name = { 0 };

	if (read_name(line, "=", &key, err) < 0)
		return -1;
	if (buf_printf(&name, "%s%s%s", inside, *inside ? "." : "", key.data) < 0)
		return husk_fail_memory(err);
	if (is_in(name.data, table) || is_in(table, name.data))
		return husk_fail(err, HUSK_INVALID, "'%s' is not written as a table [%s]", name.data, table);
	return 0;
}

int toml_without(const char *text, const char *table, struct buf *out, bool *found, struct husk_error *err)
{
	struct toml toml = { 0 };
	cleanup_buf struct buf inside = { 0 };
	bool ours = false;

	*found = false;
	if (buf_append(&inside, "", 1) < 0)
		return husk_fail_memory(err);
	for (const char *line = text, *next; *line; line = next) {
		const char *p = line + strspn(line, " \t\r");
		bool begins = toml.state == PLAIN && toml.depth == 0;
		if (begins && *p == '[') {
			inside.size = 0;
			if (read_name(p + strspn(p, "["), "]", &inside, err) < 0)
				return -1;
			ours = is_in(inside.data, table);
			*found |= ours;
		} else if (begins && !ours && *p && *p != '\n' && *p != '#' &&
			   check_key(p, inside.data, table, err) < 0) {
			return -1;
		}
		next = line_step(&toml, line);
		if (!next || toml.depth < 0)
			return husk_fail(err, HUSK_INVALID, "it is not TOML");
		if (!ours && buf_append(out, line, (size_t)(next - line)) < 0)
			return husk_fail_memory(err);
	}
	if (toml.state != PLAIN || toml.depth != 0)
		return husk_fail(err, HUSK_INVALID, "it is not TOML");
	return buf_append(out, "", 0) < 0 ? husk_fail_memory(err) : 0;
}
