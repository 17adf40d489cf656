/*
 * Reads configuration files; see toml_reader.h. One pass, a line at a time: a header sets the table, any other line is one
 * key and its value. Called by config.c.
 */
#include "config/toml_reader.h"

#include <ctype.h>

#define VALUE_MAX 4096u
#define NAME_MAX_SIZE 128u

struct reader {
	const char *start, *at; /* start of the line, and position in it */
	size_t line;
	char table[NAME_MAX_SIZE];
	char key[NAME_MAX_SIZE];
	char value[VALUE_MAX];
};

static int wrong(const struct reader *reader, struct husk_error *err, const char *what)
{
	return husk_fail(err, HUSK_INVALID, "%zu:%zu: %s", reader->line, (size_t)(reader->at - reader->start) + 1,
			 what);
}

static void skip_blanks(struct reader *reader)
{
	while (*reader->at == ' ' || *reader->at == '\t')
		reader->at++;
}

/* Only blanks or a comment may follow a header or a value. */
static int end_line(struct reader *reader, struct husk_error *err)
{
	skip_blanks(reader);
	if (*reader->at == '#')
		reader->at += strcspn(reader->at, "\n");
	if (*reader->at == '\r' && reader->at[1] == '\n')
		reader->at++;
	if (*reader->at && *reader->at != '\n')
		return wrong(reader, err, "there is something after the end; a string needs quotes on both sides");
	return 0;
}

/* A name of letters, digits, '_', '-' and, between its parts, '.'. */
static int read_name(struct reader *reader, char out[static NAME_MAX_SIZE], struct husk_error *err)
{
	size_t size = 0;

	skip_blanks(reader);
	for (; isalnum((unsigned char)*reader->at) || (*reader->at && strchr("_-.", *reader->at)); reader->at++)
		if (size < NAME_MAX_SIZE - 1)
			out[size++] = *reader->at;
	out[size] = '\0';
	skip_blanks(reader);
	return size ? 0 : wrong(reader, err, "a name is missing; names are letters, digits, '_' and '-'");
}

static int append(struct reader *reader, size_t *size, char byte, struct husk_error *err)
{
	if (*size >= VALUE_MAX - 1)
		return wrong(reader, err, "the value is too long");
	reader->value[(*size)++] = byte;
	return 0;
}

/* The character after a backslash. */
static int read_escape(struct reader *reader, size_t *size, struct husk_error *err)
{
	static const char from[] = "\"\\nt", to[] = "\"\\\n\t";
	const char *found = *reader->at ? strchr(from, *reader->at) : NULL;

	if (!found)
		return wrong(reader, err,
			     "after a backslash stands one of \" \\ n t; '…' takes every character as it is");
	reader->at++;
	return append(reader, size, to[found - from], err);
}

static int read_string(struct reader *reader, struct husk_error *err)
{
	char quote = *reader->at++;
	size_t size = 0;

	if (reader->at[0] == quote && reader->at[1] == quote)
		return wrong(reader, err, "strings of several lines are not supported");
	while (*reader->at != quote) {
		int failed;

		if ((unsigned char)*reader->at < ' ' && *reader->at != '\t')
			return wrong(reader, err, "the string has no end on this line");
		if (quote == '"' && *reader->at == '\\') {
			reader->at++;
			failed = read_escape(reader, &size, err);
		} else {
			failed = append(reader, &size, *reader->at++, err);
		}
		if (failed)
			return -1;
	}
	reader->at++;
	reader->value[size] = '\0';
	return 0;
}

/* true, false, or a whole number. */
static int read_word(struct reader *reader, struct husk_error *err)
{
	size_t size = strcspn(reader->at, " \t\r\n#");
	int64_t number;

	if (size >= sizeof(reader->value))
		return wrong(reader, err, "the value is too long");
	memcpy(reader->value, reader->at, size);
	reader->value[size] = '\0';
	if (!str_equal(reader->value, "true") && !str_equal(reader->value, "false") &&
	    str_to_int64(reader->value, INT64_MIN, INT64_MAX, &number) < 0)
		return wrong(reader, err, "the value is none; give a string in quotes, a whole number, true or false");
	reader->at += size;
	return 0;
}

static int read_header(struct reader *reader, struct husk_error *err)
{
	reader->at++;
	if (*reader->at == '[')
		return wrong(reader, err, "lists of tables are not supported");
	if (read_name(reader, reader->table, err) < 0)
		return -1;
	if (*reader->at != ']')
		return wrong(reader, err, "']' is missing");
	reader->at++;
	return end_line(reader, err);
}

static int read_entry(struct reader *reader, toml_entry_fn each, void *data, struct husk_error *err)
{
	char whole[2 * NAME_MAX_SIZE];
	struct toml_entry entry = { .key = whole, .value = reader->value, .line = reader->line };

	entry.column = (size_t)(reader->at - reader->start) + 1;
	if (read_name(reader, reader->key, err) < 0)
		return -1;
	if (*reader->at != '=')
		return wrong(reader, err, "'=' is missing");
	reader->at++;
	skip_blanks(reader);
	int failed = *reader->at == '"' || *reader->at == '\'' ? read_string(reader, err) : read_word(reader, err);
	if (failed || end_line(reader, err) < 0)
		return -1;
	snprintf(whole, sizeof(whole), "%s%s%s", reader->table, *reader->table ? "." : "", reader->key);
	return each(data, &entry, err);
}

int toml_read(const char *text, toml_entry_fn each, void *data, struct husk_error *err)
{
	struct reader reader = { .at = text };

	while (*reader.at) {
		reader.line++;
		reader.start = reader.at;
		skip_blanks(&reader);
		int failed = *reader.at == '['                            ? read_header(&reader, err)
			     : *reader.at && !strchr("#\r\n", *reader.at) ? read_entry(&reader, each, data, err)
									  : end_line(&reader, err);
		if (failed)
			return -1;
		reader.at += *reader.at == '\n';
	}
	return 0;
}
