/*
 * Output of the commands: aligned tables, one JSON document, readable sizes and times, colours on a terminal only.
 *
 * Names, arguments and messages may come from a guest, which is hostile. Control characters are removed from everything
 * that is printed here, so that a sandbox cannot control the user's terminal.
 */
#ifndef HUSK_CLI_OUTPUT_H
#define HUSK_CLI_OUTPUT_H

#include "base/base.h"
#include "husk.h"
#include "json/json.h"

/* ---- people's units ---- */

/* "512 MiB", "1.5 GiB". */
void output_size(uint64_t bytes, char *out, size_t size);
/* "340 ms", "12 s", "3 m", "2 h", "5 d". */
void output_duration(int64_t milliseconds, char *out, size_t size);
/* The same in whole seconds, for ages and remaining times: never negative. */
void output_age(int64_t milliseconds, char *out, size_t size);

/* ---- text ---- */

/* Writes to `out`, with control characters (except newline and tab if `lines`) shown as '?'. */
void output_safe(FILE *out, const char *text, bool lines);
/* "husk: <message>" on stderr, safe. */
void output_error(const char *message);
/* "husk: …" on stderr, safe, for information that is not a failure. */
void output_note(const char *format, ...) __attribute__((format(printf, 1, 2)));
enum output_color { COLOR_GREEN = 32, COLOR_YELLOW = 33, COLOR_RED = 31, COLOR_BOLD = 1 };
/* The word, coloured if `out` is a terminal and NO_COLOR is not set. */
void output_colored(FILE *out, enum output_color color, const char *word);

/* ---- tables ---- */

/* Zero-initialise; the first row of cells is the heading. If memory runs out, print reports it. */
struct table {
	size_t columns;
	char **cells;
	size_t count, capacity;
	bool failed;
};
/* The first row is the heading. */
void table_begin(struct table *table, const char *const *heading, size_t columns);
void table_cell(struct table *table, const char *text); /* NULL: "-" */
void table_cellf(struct table *table, const char *format, ...) __attribute__((format(printf, 2, 3)));
void table_size(struct table *table, uint64_t bytes);
void table_age(struct table *table, int64_t since_ms);
int table_print(struct table *table, struct husk_error *err);
void table_free(struct table *table);
#define cleanup_table cleanup(table_free)

/* ---- JSON ---- */

/* Prints the one document and drops it; NULL means that memory ran out while it was made. */
int output_json(json_t *document, struct husk_error *err);

/* ---- progress (progress.c) ---- */

/* A line on stderr that shows progress, after half a second, on a terminal only. */
struct progress;
struct progress *progress_begin(const char *format, ...) __attribute__((format(printf, 1, 2)));
void progress_bytes(struct progress *progress, size_t more); /* NULL is fine */
/* Another text in the same line; progress may be NULL. */
void progress_text(struct progress *progress, const char *text);
void progress_end(struct progress **progress);
#define cleanup_progress cleanup(progress_end)

#endif
