/*
 * Shared code of the catalog's files: transactions, statements with typed arguments, and tables that are described
 * once, so that reading, inserting and freeing a row need no code per column. Only src/store/catalog*.c includes it;
 * nothing else may depend on SQLite.
 */
#ifndef HUSK_CATALOG_KIT_H
#define HUSK_CATALOG_KIT_H

#include <pthread.h>
#include <sqlite3.h>

#include "store/catalog.h"

/* The end of a message about a catalog that cannot be used. */
#define DAMAGED_WAY_OUT "; put back a copy of it, or move it away, with its -wal and -shm, to start anew"

struct catalog {
	sqlite3 *db;
	pthread_mutex_t *lock; /* held from catalog_begin to catalog_finish; a handle and its views share it */
	pthread_mutex_t own_lock;
	int64_t busy_until_ms; /* when to stop waiting for the current lock; monotonic */
	char *values;          /* the directory of catalog_values.c; a view borrows it */
	bool is_view;
	struct catalog_view view; /* all zero: the whole instance */
};

/* ---- transactions ---- */

/* CATALOG_WRITE takes the write lock at once. A transaction that reads first and writes later would fail if another
 * process wrote in between. */
enum catalog_mode { CATALOG_READ, CATALOG_WRITE };

/* One transaction, and this handle, for the calling thread only. Must be followed by catalog_finish unless it
 * failed. */
int catalog_begin(struct catalog *catalog, enum catalog_mode mode, struct husk_error *err);
/* Commits if `result` is not negative, otherwise rolls back. Returns `result`, or -1 if the commit failed. */
int catalog_finish(struct catalog *catalog, int result, struct husk_error *err);

/* ---- statements: only between catalog_begin and catalog_finish ---- */

struct argument {
	enum { ARGUMENT_END, ARGUMENT_TEXT, ARGUMENT_NUMBER, ARGUMENT_BYTES } kind;
	const char *text; /* NULL: SQL NULL; must outlive the statement */
	int64_t number;   /* ARGUMENT_BYTES: the size of the text */
};
static inline struct argument text(const char *value)
{
	return (struct argument){ .kind = ARGUMENT_TEXT, .text = value };
}
static inline struct argument number(int64_t value)
{
	return (struct argument){ .kind = ARGUMENT_NUMBER, .number = value };
}
static inline struct argument bytes(const char *value, size_t size)
{
	return (struct argument){ .kind = ARGUMENT_BYTES, .text = value, .number = (int64_t)size };
}
/* For ?1, ?2, … of a statement: ARGUMENTS(text(id), number(now)); NULL if the statement has none. */
#define ARGUMENTS(...) ((const struct argument[]){ __VA_ARGS__, { .kind = ARGUMENT_END } })

/* Runs a statement that returns no rows. Returns how many rows it changed. */
int catalog_run(struct catalog *catalog, const char *sql, const struct argument *arguments, struct husk_error *err);
/* The first column of the first row as a number: 1 with *out, or 0: no row. */
int catalog_number(struct catalog *catalog, const char *sql, const struct argument *arguments, int64_t *out,
		   struct husk_error *err);
/* The first column of every row, as a list for strv_free. */
int catalog_strings(struct catalog *catalog, const char *sql, const struct argument *arguments, char ***out,
		    struct husk_error *err);
/* Appends the bytes of the first column of the first row: 1, or 0: no row. */
int catalog_bytes(struct catalog *catalog, const char *sql, const struct argument *arguments, struct buf *out,
		  struct husk_error *err);
/* Fails with NOT_FOUND: "<kind> '<word>' not found; did you mean '<the nearest of what sql selects>'? (<hint>)". ?1 is
 * the tenant: only its objects may be named. */
int catalog_not_found(struct catalog *catalog, const char *kind, const char *word, const char *sql, const char *hint,
		      struct husk_error *err);
/* Fills err from SQLite's last error, and returns -1. */
int catalog_fail(struct catalog *catalog, struct husk_error *err);

/* ---- tables ---- */

enum field_kind { FIELD_TEXT, FIELD_INT64, FIELD_UINT64, FIELD_UINT32, FIELD_BOOL, FIELD_STATE };

struct field {
	const char *column;
	enum field_kind kind;
	size_t offset; /* of the member in the row's structure */
};
/* A member of `struct type`, stored in a column of the same name. */
#define FIELD(type, kind, member)                                                                                      \
	{                                                                                                              \
#member, kind, offsetof(struct type, member)                                                           \
	}

struct table {
	const char *name;
	size_t row_size;
	const struct field *fields;
	size_t field_count;
};

int table_insert(struct catalog *catalog, const struct table *table, const void *row, struct husk_error *err);
/* "SELECT <all fields> FROM <table> <tail>". table_one: 1 with *out, or 0 when there is no row. */
int table_one(struct catalog *catalog, const struct table *table, const char *tail, const struct argument *arguments,
	      void **out, struct husk_error *err);
/* A NULL-terminated list. */
int table_all(struct catalog *catalog, const struct table *table, const char *tail, const struct argument *arguments,
	      void ***out, struct husk_error *err);
void table_free_row(const struct table *table, void *row);
void table_free_list(const struct table *table, void **list);

const char *catalog_state_name(enum catalog_state state);

/* ---- tenants (catalog_tenant.c), inside a transaction ---- */

/* LIMIT if `count` more live sandboxes, or `memory_bytes` more for running ones, exceed the view's quotas. The row `id`
 * (NULL: none) counts as one of the new ones. */
int quota_check(struct catalog *catalog, const char *id, size_t count, uint64_t memory_bytes, struct husk_error *err);
int quota_check_snapshots(struct catalog *catalog, uint64_t bytes, struct husk_error *err);

/* ---- effects (catalog_effect.c), inside a transaction ---- */

/* The sandbox continues from this checkpoint. */
int effects_reach(struct catalog *catalog, const char *sandbox, int64_t point, struct husk_error *err);

/* ---- values of environments (catalog_values.c) ---- */

/* Stores the values; *names is the text for the row. The caller frees it, also on failure. */
int values_put(struct catalog *catalog, const char *id, const char *environment, char **names, struct husk_error *err);
/* Puts the values back into the row's text. */
int values_get(struct catalog *catalog, const char *id, char **environment, struct husk_error *err);
void values_drop(struct catalog *catalog, const char *id);

#endif
