/*
 * Text for people: sizes, ages, aligned tables, colours, messages. Used by every command. A guest's bytes never reach a
 * terminal with control characters in them.
 */
#include "cli/output.h"

#include <inttypes.h>

void output_size(uint64_t bytes, char *out, size_t size)
{
	static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB" };
	double value = (double)bytes;
	size_t unit = 0;

	for (; value >= 1024 && unit + 1 < ARRAY_SIZE(units); unit++)
		value /= 1024;
	bool whole = value >= 100 || value == (double)(uint64_t)value;
	snprintf(out, size, whole ? "%.0f %s" : "%.1f %s", value, units[unit]);
}

void output_duration(int64_t milliseconds, char *out, size_t size)
{
	static const struct {
		int64_t milliseconds;
		const char *unit;
	} units[] = { { 86400000, "d" }, { 3600000, "h" }, { 60000, "m" }, { 1000, "s" } };

	for (size_t i = 0; i < ARRAY_SIZE(units); i++) {
		/* a unit is used from two of it on: "90 s" says more than "1 m" */
		if (milliseconds >= 2 * units[i].milliseconds || milliseconds == units[i].milliseconds) {
			snprintf(out, size, "%" PRId64 " %s", milliseconds / units[i].milliseconds, units[i].unit);
			return;
		}
	}
	snprintf(out, size, "%" PRId64 " ms", milliseconds);
}

void output_age(int64_t milliseconds, char *out, size_t size)
{
	if (milliseconds < 1000)
		snprintf(out, size, "0 s");
	else
		output_duration(milliseconds < 2000 ? 1000 : milliseconds, out, size);
}

/* ---- text ---- */

void output_safe(FILE *out, const char *text, bool lines)
{
	for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
		bool control = *p < 0x20 || *p == 0x7f;
		/* C1 controls are c2 80 … c2 9f in UTF-8; some terminals obey them */
		if (*p == 0xc2 && p[1] >= 0x80 && p[1] <= 0x9f) {
			fputc('?', out);
			p++;
			continue;
		}
		if (control && !(lines && (*p == '\n' || *p == '\t')))
			fputc('?', out);
		else
			fputc(*p, out);
	}
}

void output_error(const char *message)
{
	fflush(stdout); /* keeps the order of output and messages, also if both go into one file */
	fputs("husk: ", stderr);
	output_safe(stderr, message, true);
	fputc('\n', stderr);
}

void output_note(const char *format, ...)
{
	char text[1024];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	output_error(text);
}

void output_colored(FILE *out, enum output_color color, const char *word)
{
	const char *no_color = getenv("NO_COLOR");
	bool on = isatty(fileno(out)) && !(no_color && *no_color);

	if (on)
		fprintf(out, "\033[%dm", (int)color);
	output_safe(out, word, false);
	if (on)
		fputs("\033[0m", out);
}

/* ---- tables ---- */

void table_begin(struct table *table, const char *const *heading, size_t columns)
{
	*table = (struct table){ .columns = columns };
	for (size_t i = 0; i < columns; i++)
		table_cell(table, heading[i]);
}

static void table_take(struct table *table, char *text)
{
	if (!text || table->failed)
		goto fail;
	if (table->count == table->capacity) {
		size_t capacity = table->capacity ? table->capacity * 2 : 64;
		char **cells = reallocarray(table->cells, capacity, sizeof(*cells));
		if (!cells)
			goto fail;
		table->cells = cells;
		table->capacity = capacity;
	}
	table->cells[table->count++] = text;
	return;
fail:
	free(text);
	table->failed = true;
}

void table_cell(struct table *table, const char *text)
{
	table_take(table, strdup(text && *text ? text : "-"));
}

void table_cellf(struct table *table, const char *format, ...)
{
	char *text = NULL;
	va_list arguments;

	va_start(arguments, format);
	if (vasprintf(&text, format, arguments) < 0)
		text = NULL;
	va_end(arguments);
	table_take(table, text);
}

void table_size(struct table *table, uint64_t bytes)
{
	char text[32];

	output_size(bytes, text, sizeof(text));
	table_cell(table, text);
}

void table_age(struct table *table, int64_t since_ms)
{
	char text[32];

	output_age(time_wall_ms() - since_ms, text, sizeof(text));
	table_cell(table, text);
}

/* Characters, not bytes: UTF-8 continuation bytes have no width. */
static size_t text_width(const char *text)
{
	size_t width = 0;

	for (; *text; text++)
		width += ((unsigned char)*text & 0xc0) != 0x80;
	return width;
}

static size_t table_width(const struct table *table, size_t column)
{
	size_t width = 0;

	for (size_t i = column; i < table->count; i += table->columns)
		width = MAX(width, text_width(table->cells[i]));
	return width;
}

int table_print(struct table *table, struct husk_error *err)
{
	cleanup_free size_t *widths = calloc(table->columns, sizeof(*widths));

	if (table->failed || !widths)
		return husk_fail_memory(err);
	for (size_t column = 0; column < table->columns; column++)
		widths[column] = table_width(table, column);
	for (size_t i = 0; i < table->count; i++) {
		size_t column = i % table->columns;
		bool last = column + 1 == table->columns;
		if (i < table->columns)
			output_colored(stdout, COLOR_BOLD, table->cells[i]);
		else
			output_safe(stdout, table->cells[i], false);
		/* the last column ends the line: no trailing blanks */
		if (last)
			putchar('\n');
		else
			printf("%*s", (int)(widths[column] - text_width(table->cells[i]) + 2), "");
	}
	return 0;
}

void table_free(struct table *table)
{
	for (size_t i = 0; i < table->count; i++)
		free(table->cells[i]);
	free(table->cells);
	*table = (struct table){ 0 };
}

int output_json(json_t *document, struct husk_error *err)
{
	cleanup_json json_t *held = document;

	if (!held)
		return husk_fail_memory(err);
	if (json_dumpf(held, stdout, JSON_INDENT(2) | JSON_PRESERVE_ORDER) < 0 || putchar('\n') == EOF)
		return husk_fail_errno(err, "cannot write to standard output");
	return 0;
}
