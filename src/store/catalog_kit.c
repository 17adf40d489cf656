/*
 * The functions of catalog_kit.h: the only file that prepares, binds and steps SQLite statements. It knows rows by their
 * tables of fields, not by their meaning. Called by the other catalog files. It must always be called inside a transaction,
 * and never leaves one open when it fails.
 */
#include "store/catalog_kit.h"

static void finalize_statement(sqlite3_stmt **statement)
{
	sqlite3_finalize(*statement);
}
#define cleanup_statement cleanup(finalize_statement)

int catalog_fail(struct catalog *catalog, struct husk_error *err)
{
	const char *why = sqlite3_errmsg(catalog->db), *file = sqlite3_db_filename(catalog->db, "main");

	file = file ? file : "";
	switch (sqlite3_errcode(catalog->db) & 0xff) {
	case SQLITE_NOMEM:
		return husk_fail_memory(err);
	case SQLITE_BUSY:
		return husk_fail(err, HUSK_TIMEOUT, "the catalog is busy: another husk process holds it; try again");
	case SQLITE_FULL:
		return husk_fail(err, HUSK_LIMIT, "the catalog cannot grow: %s; free some disk space (husk gc)", why);
	case SQLITE_ERROR: /* all statements fit the schema, so a table is missing or exists too early */
		if (strstr(why, "no such ") || strstr(why, "already exists"))
			return husk_fail(err, HUSK_UNAVAILABLE, "the catalog %s is damaged: %s" DAMAGED_WAY_OUT, file,
					 why);
		return husk_fail(err, HUSK_INTERNAL, "catalog: %s", why);
	case SQLITE_CORRUPT:
	case SQLITE_NOTADB:
		return husk_fail(err, HUSK_UNAVAILABLE, "the catalog %s is damaged: %s" DAMAGED_WAY_OUT, file, why);
	default:
		return husk_fail(err, HUSK_INTERNAL, "catalog: %s", why);
	}
}

/* ---- transactions ---- */

int catalog_begin(struct catalog *catalog, enum catalog_mode mode, struct husk_error *err)
{
	int failed = pthread_mutex_lock(catalog->lock);

	if (failed) {
		errno = failed;
		return husk_fail_errno(err, "lock the catalog");
	}
	const char *sql = mode == CATALOG_WRITE ? "BEGIN IMMEDIATE" : "BEGIN";

	if (sqlite3_exec(catalog->db, sql, NULL, NULL, NULL) == SQLITE_OK)
		return 0;
	catalog_fail(catalog, err);
	pthread_mutex_unlock(catalog->lock);
	return -1;
}

int catalog_finish(struct catalog *catalog, int result, struct husk_error *err)
{
	if (result >= 0 && sqlite3_exec(catalog->db, "COMMIT", NULL, NULL, NULL) != SQLITE_OK)
		result = catalog_fail(catalog, err);
	/* Some errors (a full disk) have already rolled back; a second rollback would fail. */
	if (!sqlite3_get_autocommit(catalog->db))
		sqlite3_exec(catalog->db, "ROLLBACK", NULL, NULL, NULL);
	pthread_mutex_unlock(catalog->lock);
	return result;
}

/* ---- statements ---- */

static int bind(sqlite3_stmt *statement, int index, const struct argument *a)
{
	if (a->kind == ARGUMENT_NUMBER)
		return sqlite3_bind_int64(statement, index, a->number);
	if (a->kind == ARGUMENT_BYTES)
		return sqlite3_bind_blob64(statement, index, a->text, (sqlite3_uint64)a->number, SQLITE_STATIC);
	return sqlite3_bind_text(statement, index, a->text, -1, SQLITE_STATIC);
}

static int prepare(struct catalog *catalog, const char *sql, const struct argument *arguments, sqlite3_stmt **out,
		   struct husk_error *err)
{
	cleanup_statement sqlite3_stmt *statement = NULL;

	if (sqlite3_prepare_v2(catalog->db, sql, -1, &statement, NULL) != SQLITE_OK)
		return catalog_fail(catalog, err);
	for (int i = 0; arguments && arguments[i].kind != ARGUMENT_END; i++)
		if (bind(statement, i + 1, &arguments[i]) != SQLITE_OK)
			return catalog_fail(catalog, err);
	*out = steal_pointer(statement);
	return 0;
}

/* 1: a row is available; 0: no more rows. */
static int step(struct catalog *catalog, sqlite3_stmt *statement, struct husk_error *err)
{
	switch (sqlite3_step(statement)) {
	case SQLITE_ROW:
		return 1;
	case SQLITE_DONE:
		return 0;
	default:
		return catalog_fail(catalog, err);
	}
}

int catalog_run(struct catalog *catalog, const char *sql, const struct argument *arguments, struct husk_error *err)
{
	cleanup_statement sqlite3_stmt *statement = NULL;

	if (prepare(catalog, sql, arguments, &statement, err) || step(catalog, statement, err) < 0)
		return -1;
	return sqlite3_changes(catalog->db);
}

int catalog_number(struct catalog *catalog, const char *sql, const struct argument *arguments, int64_t *out,
		   struct husk_error *err)
{
	cleanup_statement sqlite3_stmt *statement = NULL;

	if (prepare(catalog, sql, arguments, &statement, err))
		return -1;
	int found = step(catalog, statement, err);

	if (found == 1)
		*out = sqlite3_column_int64(statement, 0);
	return found;
}

int catalog_strings(struct catalog *catalog, const char *sql, const struct argument *arguments, char ***out,
		    struct husk_error *err)
{
	cleanup_statement sqlite3_stmt *statement = NULL;
	cleanup_strv char **list = calloc(1, sizeof *list);
	int found;

	if (!list)
		return husk_fail_memory(err);
	if (prepare(catalog, sql, arguments, &statement, err))
		return -1;
	while ((found = step(catalog, statement, err)) == 1) {
		const char *value = (const char *)sqlite3_column_text(statement, 0);

		if (!value || strv_add(&list, value))
			return husk_fail_memory(err);
	}
	if (found == 0)
		*out = steal_pointer(list);
	return found;
}

int catalog_bytes(struct catalog *catalog, const char *sql, const struct argument *arguments, struct buf *out,
		  struct husk_error *err)
{
	cleanup_statement sqlite3_stmt *statement = NULL;

	if (prepare(catalog, sql, arguments, &statement, err))
		return -1;
	int found = step(catalog, statement, err);
	if (found != 1)
		return found;
	const void *data = sqlite3_column_blob(statement, 0);
	return buf_append(out, data ? data : "", (size_t)sqlite3_column_bytes(statement, 0)) < 0 ? husk_fail_memory(err)
												 : 1;
}

int catalog_not_found(struct catalog *catalog, const char *kind, const char *word, const char *sql, const char *hint,
		      struct husk_error *err)
{
	cleanup_strv char **names = NULL;

	if (catalog_strings(catalog, sql, ARGUMENTS(text(catalog->view.tenant)), &names, err))
		return -1;
	const char *near = str_nearest(word, (const char *const *)names, strv_length(names));

	if (near)
		return husk_fail(err, HUSK_NOT_FOUND, "%s '%.128s' not found; did you mean '%s'? (%s)", kind, word,
				 near, hint);
	return husk_fail(err, HUSK_NOT_FOUND, "%s '%.128s' not found (%s)", kind, word, hint);
}

/* ---- tables ---- */

static const char *const state_names[] = {
	[CATALOG_PREPARING] = "preparing", [CATALOG_POOL] = "pool",     [CATALOG_CREATING] = "creating",
	[CATALOG_RUNNING] = "running",     [CATALOG_PAUSED] = "paused", [CATALOG_HIBERNATED] = "hibernated",
	[CATALOG_ENDED] = "ended",
};

const char *catalog_state_name(enum catalog_state state)
{
	return (size_t)state < ARRAY_SIZE(state_names) ? state_names[state] : NULL;
}

static enum catalog_state state_from_name(const char *name)
{
	for (size_t i = CATALOG_PREPARING; i < ARRAY_SIZE(state_names); i++)
		if (str_equal(name, state_names[i]))
			return (enum catalog_state)i;
	return 0;
}

static int append_columns(struct buf *sql, const struct table *table)
{
	for (size_t i = 0; i < table->field_count; i++)
		if (buf_printf(sql, "%s%s", i ? ", " : "", table->fields[i].column))
			return -1;
	return 0;
}

static struct argument field_argument(const struct field *field, const void *row)
{
	const void *member = (const char *)row + field->offset;

	switch (field->kind) {
	case FIELD_TEXT:
		return text(*(char *const *)member);
	case FIELD_INT64:
		return number(*(const int64_t *)member);
	case FIELD_UINT64: /* SQLite's integers are signed; the bits are stored unchanged */
		return number((int64_t) * (const uint64_t *)member);
	case FIELD_UINT32:
		return number(*(const uint32_t *)member);
	case FIELD_BOOL:
		return number(*(const bool *)member);
	case FIELD_STATE:
		return text(catalog_state_name(*(const enum catalog_state *)member));
	}
	return text(NULL);
}

int table_insert(struct catalog *catalog, const struct table *table, const void *row, struct husk_error *err)
{
	cleanup_buf struct buf sql = { 0 };
	cleanup_free struct argument *arguments = calloc(table->field_count + 1, sizeof *arguments);

	if (!arguments || buf_printf(&sql, "INSERT INTO %s (", table->name) || append_columns(&sql, table) ||
	    buf_append_string(&sql, ") VALUES ("))
		return husk_fail_memory(err);
	for (size_t i = 0; i < table->field_count; i++) {
		arguments[i] = field_argument(&table->fields[i], row);
		if (buf_append_string(&sql, i ? ", ?" : "?"))
			return husk_fail_memory(err);
	}
	if (buf_append_string(&sql, ")"))
		return husk_fail_memory(err);
	return catalog_run(catalog, sql.data, arguments, err) < 0 ? -1 : 0;
}

static int read_field(sqlite3_stmt *statement, int column, const struct field *field, void *row)
{
	void *member = (char *)row + field->offset;

	switch (field->kind) {
	case FIELD_TEXT: {
		/* Out of memory looks the same as NULL, except for the type, which is valid until the value is read. */
		bool none = sqlite3_column_type(statement, column) == SQLITE_NULL;
		const char *value = none ? NULL : (const char *)sqlite3_column_text(statement, column);

		if (!value)
			return none ? 0 : -1;
		*(char **)member = strdup(value);
		return *(char **)member ? 0 : -1;
	}
	case FIELD_INT64:
		*(int64_t *)member = sqlite3_column_int64(statement, column);
		return 0;
	case FIELD_UINT64:
		*(uint64_t *)member = (uint64_t)sqlite3_column_int64(statement, column);
		return 0;
	case FIELD_UINT32:
		*(uint32_t *)member = (uint32_t)sqlite3_column_int64(statement, column);
		return 0;
	case FIELD_BOOL:
		*(bool *)member = sqlite3_column_int64(statement, column) != 0;
		return 0;
	case FIELD_STATE:
		*(enum catalog_state *)member = state_from_name((const char *)sqlite3_column_text(statement, column));
		return 0;
	}
	return -1;
}

/* NULL when out of memory. */
static void *read_row(sqlite3_stmt *statement, const struct table *table)
{
	void *row = calloc(1, table->row_size);

	if (!row)
		return NULL;
	for (size_t i = 0; i < table->field_count; i++) {
		if (read_field(statement, (int)i, &table->fields[i], row)) {
			table_free_row(table, row);
			return NULL;
		}
	}
	return row;
}

static int prepare_select(struct catalog *catalog, const struct table *table, const char *tail,
			  const struct argument *arguments, sqlite3_stmt **out, struct husk_error *err)
{
	cleanup_buf struct buf sql = { 0 };

	if (buf_append_string(&sql, "SELECT ") || append_columns(&sql, table) ||
	    buf_printf(&sql, " FROM %s %s", table->name, tail))
		return husk_fail_memory(err);
	return prepare(catalog, sql.data, arguments, out, err);
}

int table_one(struct catalog *catalog, const struct table *table, const char *tail, const struct argument *arguments,
	      void **out, struct husk_error *err)
{
	cleanup_statement sqlite3_stmt *statement = NULL;

	if (prepare_select(catalog, table, tail, arguments, &statement, err))
		return -1;
	int found = step(catalog, statement, err);

	if (found == 1 && !(*out = read_row(statement, table)))
		return husk_fail_memory(err);
	return found;
}

int table_all(struct catalog *catalog, const struct table *table, const char *tail, const struct argument *arguments,
	      void ***out, struct husk_error *err)
{
	cleanup_statement sqlite3_stmt *statement = NULL;
	cleanup_buf struct buf rows = { 0 }; /* of pointers */
	void *row = NULL;
	int found;

	if (prepare_select(catalog, table, tail, arguments, &statement, err))
		return -1;
	while ((found = step(catalog, statement, err)) == 1) {
		row = read_row(statement, table);
		if (!row || buf_append(&rows, &row, sizeof row)) {
			table_free_row(table, row);
			found = husk_fail_memory(err);
			break;
		}
	}
	row = NULL;
	if (found == 0 && buf_append(&rows, &row, sizeof row))
		found = husk_fail_memory(err);
	if (found == 0) {
		*out = (void **)buf_steal(&rows);
		return 0;
	}
	for (size_t i = 0; i < rows.size / sizeof row; i++)
		table_free_row(table, ((void **)rows.data)[i]);
	return -1;
}

void table_free_row(const struct table *table, void *row)
{
	if (!row)
		return;
	for (size_t i = 0; i < table->field_count; i++)
		if (table->fields[i].kind == FIELD_TEXT)
			free(*(char **)((char *)row + table->fields[i].offset));
	free(row);
}

void table_free_list(const struct table *table, void **list)
{
	for (size_t i = 0; list && list[i]; i++)
		table_free_row(table, list[i]);
	free(list);
}
