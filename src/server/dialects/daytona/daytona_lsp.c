/*
 * Daytona's routes below /lsp: start and stop of language servers, documents that are open, completions, symbols. The
 * guest controls the answers of a language server: of each completion and symbol, only fields that clients know are
 * passed on, and only with the right types, because the clients' classes fail on others.
 */
#include "server/dialects/daytona/daytona_lsp.h"

#include "server/dialects/daytona/daytona_files.h"
#include "server/guest_user.h"

#define TEXT_MAX (4u << 20) /* of a document */
#define POSITION_MAX INT32_MAX

/* ---- start and stop ---- */

static int open_body(struct request *request, struct fields *fields, bool running, struct lsp *lsp,
		     struct husk_error *err)
{
	const char *language = fields_string(fields, "languageId"), *project = fields_string(fields, "pathToProject");

	if (fields_done_open(fields, err) < 0)
		return -1;
	return running ? lsp_open_running(request, language, project, lsp, err)
		       : lsp_open(request, language, project, lsp, err);
}

static int start_or_stop(struct request *request, bool stop, struct husk_error *err)
{
	json_t *body = request_read_json(request, err);
	cleanup_lsp struct lsp lsp = { 0 };
	struct fields fields;

	if (!body)
		return -1;
	fields_begin(&fields, body);
	if (open_body(request, &fields, stop, &lsp, err) < 0)
		return -1;
	int done = stop ? lsp_stop(&lsp, err) : lsp_start(&lsp, err);
	return done < 0 ? -1 : respond_empty(request, 200, err);
}

static int handle_start(struct request *request, struct husk_error *err)
{
	return start_or_stop(request, false, err);
}

static int handle_stop(struct request *request, struct husk_error *err)
{
	return start_or_stop(request, true, err);
}

/* ---- documents ---- */

static bool exists(const struct lsp *lsp, const char *path)
{
	cleanup(husk_file_free) struct husk_file file = { 0 };

	return husk_file_stat(request_husk(lsp->request), lsp->box.sandbox->id, path, true, &file, NULL) == 0;
}

/* Clients put "file://" before a path as it is. A relative one begins at the project, as Daytona's documentation says, or at
 * the home, as in Daytona, if only that file exists. */
static int document_path(const struct lsp *lsp, const char *uri, char **path, struct husk_error *err)
{
	if (!uri || !*uri)
		return husk_fail_field(err, "uri", "uri is required");
	if (!str_starts(uri, "file://"))
		return husk_fail_field(err, "uri", "uri must begin with file://");
	const char *given = uri + strlen("file://");
	if (guest_path_join(lsp->project, given, path, err) < 0)
		return -1;
	cleanup_free char *other = NULL;
	if (given[0] == '/' || exists(lsp, *path) || daytona_path(&lsp->box, given, &other, NULL) < 0 ||
	    !exists(lsp, other))
		return 0;
	free(*path);
	*path = steal_pointer(other);
	return 0;
}

static int keep(void *data, const void *bytes, size_t size)
{
	return buf_append(data, bytes, size);
}

static int read_document(struct lsp *lsp, const char *path, struct buf *text, struct husk_error *err)
{
	struct request *request = lsp->request;

	if (daytona_may(request, &lsp->box, path, "r", err) < 0)
		return -1;
	if (husk_file_read(request_husk(request), lsp->box.sandbox->id, path, 0, TEXT_MAX + 1, keep, text, err) < 0)
		return daytona_file_error(request, path, err);
	if (text->size > TEXT_MAX)
		return daytona_fail(request, 400, "BAD_REQUEST",
				    "%.400s is larger than the %u MiB that a document may have", path, TEXT_MAX >> 20);
	return 0;
}

static int open_document(struct lsp *lsp, const char *path, const char *address, struct husk_error *err)
{
	cleanup_buf struct buf text = { 0 };

	if (read_document(lsp, path, &text, err) < 0)
		return -1;
	return lsp_tell(lsp, "textDocument/didOpen",
			json_pack("{s:{s:s, s:s, s:i, s:o}}", "textDocument", "uri", address, "languageId",
				  lsp->language->name, "version", 1, "text", json_text(text.data, text.size)),
			err);
}

static int tell_document(struct request *request, bool opened, struct husk_error *err)
{
	json_t *body = request_read_json(request, err);
	cleanup_free char *path = NULL, *address = NULL;
	cleanup_lsp struct lsp lsp = { 0 };
	struct fields fields;

	if (!body)
		return -1;
	fields_begin(&fields, body);
	const char *uri = fields_string(&fields, "uri");
	if (open_body(request, &fields, true, &lsp, err) < 0 || document_path(&lsp, uri, &path, err) < 0)
		return -1;
	address = lsp_address(path);
	if (!address)
		return husk_fail_memory(err);
	int told = opened ? open_document(&lsp, path, address, err)
			  : lsp_tell(&lsp, "textDocument/didClose",
				     json_pack("{s:{s:s}}", "textDocument", "uri", address), err);
	return told < 0 ? -1 : respond_empty(request, 200, err);
}

static int handle_open(struct request *request, struct husk_error *err)
{
	return tell_document(request, true, err);
}

static int handle_close(struct request *request, struct husk_error *err)
{
	return tell_document(request, false, err);
}

/* ---- completions ---- */

static void copy_text(const json_t *from, json_t *to, const char *name)
{
	json_t *value = json_object_get(from, name);

	if (json_is_string(value))
		json_object_set(to, name, value);
}

/* Plain text, or {kind, value}: clients know the latter alone. */
static void copy_documentation(const json_t *from, json_t *to)
{
	json_t *value = json_object_get(from, "documentation");

	if (json_is_string(value))
		json_object_set_new(to, "documentation", json_pack("{s:s, s:O}", "kind", "plaintext", "value", value));
	else if (json_is_object(value))
		json_object_set(to, "documentation", value);
}

/* NULL: it has no label, so it is none. */
static json_t *completion_document(const json_t *item)
{
	static const char *const texts[] = { "label", "detail", "sortText", "filterText", "insertText" };
	json_t *kind = json_object_get(item, "kind");

	if (!json_is_string(json_object_get(item, "label")))
		return NULL;
	json_t *document = json_object();
	for (size_t i = 0; i < ARRAY_SIZE(texts); i++)
		copy_text(item, document, texts[i]);
	if (json_is_integer(kind))
		json_object_set(document, "kind", kind);
	copy_documentation(item, document);
	return document;
}

/* A list, {isIncomplete, items}, or nothing. */
static int respond_completions(struct request *request, json_t *result, struct husk_error *err)
{
	json_t *list = json_is_array(result) ? result : json_object_get(result, "items"), *item;
	cleanup_json json_t *items = json_array();
	size_t i;

	if (!items)
		return husk_fail_memory(err);
	json_array_foreach(list, i, item)
	{
		json_t *document = completion_document(item);
		if (document)
			json_array_append_new(items, document);
	}
	return respond_json(request, 200,
			    json_pack("{s:b, s:O}", "isIncomplete",
				      json_is_true(json_object_get(result, "isIncomplete")), "items", items),
			    err);
}

static int read_position(json_t *body, int64_t *line, int64_t *character, struct husk_error *err)
{
	json_t *position = json_object_get(body, "position");
	struct fields fields;

	if (!json_is_object(position))
		return husk_fail_field(err, "position", "position is required: {line, character}, counted from 0");
	fields_begin(&fields, position);
	*line = fields_int(&fields, "line", 0, 0, POSITION_MAX);
	*character = fields_int(&fields, "character", 0, 0, POSITION_MAX);
	return fields_done_open(&fields, err);
}

static int handle_completions(struct request *request, struct husk_error *err)
{
	json_t *body = request_read_json(request, err);
	cleanup_free char *path = NULL, *address = NULL;
	cleanup_json json_t *result = NULL;
	cleanup_lsp struct lsp lsp = { 0 };
	int64_t line = 0, character = 0;
	struct fields fields;

	if (!body)
		return -1;
	fields_begin(&fields, body);
	const char *uri = fields_string(&fields, "uri");
	json_t *context = fields_any(&fields, "context");
	if (read_position(body, &line, &character, err) < 0 || open_body(request, &fields, true, &lsp, err) < 0 ||
	    document_path(&lsp, uri, &path, err) < 0)
		return -1;
	address = lsp_address(path);
	json_t *params = json_pack("{s:{s:s}, s:{s:I, s:I}}", "textDocument", "uri", address ? address : "", "position",
				   "line", (json_int_t)line, "character", (json_int_t)character);
	if (json_is_object(context))
		json_object_set(params, "context", context);
	if (!address || !params) {
		json_decref(params);
		return husk_fail_memory(err);
	}
	if (lsp_ask(&lsp, "textDocument/completion", params, &result, err) < 0)
		return -1;
	return respond_completions(request, result, err);
}

/* ---- symbols ---- */

static bool is_position(const json_t *position)
{
	return json_is_integer(json_object_get(position, "line")) &&
	       json_is_integer(json_object_get(position, "character"));
}

/* NULL: it is none that a client could read. */
static json_t *symbol_document(const json_t *symbol)
{
	json_t *name = json_object_get(symbol, "name"), *kind = json_object_get(symbol, "kind");
	json_t *location = json_object_get(symbol, "location"), *uri = json_object_get(location, "uri");
	json_t *range = json_object_get(location, "range");

	if (!json_is_string(name) || !json_is_integer(kind) || !json_is_string(uri) ||
	    !is_position(json_object_get(range, "start")) || !is_position(json_object_get(range, "end")))
		return NULL;
	return json_pack("{s:O, s:O, s:{s:O, s:{s:O, s:O}}}", "name", name, "kind", kind, "location", "uri", uri,
			 "range", "start", json_object_get(range, "start"), "end", json_object_get(range, "end"));
}

static int respond_symbols(struct request *request, json_t *result, struct husk_error *err)
{
	cleanup_json json_t *array = json_array();
	json_t *symbol;
	size_t i;

	if (!array)
		return husk_fail_memory(err);
	json_array_foreach(result, i, symbol)
	{
		json_t *document = symbol_document(symbol);
		if (document)
			json_array_append_new(array, document);
	}
	return respond_json(request, 200, json_incref(array), err);
}

static int open_query(struct request *request, struct lsp *lsp, struct husk_error *err)
{
	return lsp_open_running(request, request_query(request, "languageId"), request_query(request, "pathToProject"),
				lsp, err);
}

static int handle_symbols(struct request *request, struct husk_error *err)
{
	cleanup_free char *path = NULL, *address = NULL;
	cleanup_json json_t *result = NULL;
	cleanup_lsp struct lsp lsp = { 0 };

	if (open_query(request, &lsp, err) < 0 || document_path(&lsp, request_query(request, "uri"), &path, err) < 0)
		return -1;
	address = lsp_address(path);
	if (!address)
		return husk_fail_memory(err);
	if (lsp_ask(&lsp, "textDocument/documentSymbol", json_pack("{s:{s:s}}", "textDocument", "uri", address),
		    &result, err) < 0)
		return -1;
	return respond_symbols(request, result, err);
}

static int handle_search(struct request *request, struct husk_error *err)
{
	const char *query = request_query(request, "query");
	cleanup_json json_t *result = NULL;
	cleanup_lsp struct lsp lsp = { 0 };

	if (!query || !*query)
		return husk_fail_field(err, "query", "query is required");
	if (open_query(request, &lsp, err) < 0 ||
	    lsp_ask(&lsp, "workspace/symbol", json_pack("{s:o}", "query", json_text0(query)), &result, err) < 0)
		return -1;
	return respond_symbols(request, result, err);
}

const struct route daytona_lsp_routes[] = {
	{ "POST", DAYTONA_TOOLBOX "/lsp/start", handle_start, ROUTE_STREAM },
	{ "POST", DAYTONA_TOOLBOX "/lsp/stop", handle_stop, ROUTE_STREAM },
	{ "POST", DAYTONA_TOOLBOX "/lsp/did-open", handle_open, ROUTE_STREAM },
	{ "POST", DAYTONA_TOOLBOX "/lsp/did-close", handle_close, ROUTE_STREAM },
	{ "POST", DAYTONA_TOOLBOX "/lsp/completions", handle_completions, ROUTE_STREAM },
	{ "GET", DAYTONA_TOOLBOX "/lsp/document-symbols", handle_symbols, ROUTE_STREAM },
	{ "GET", DAYTONA_TOOLBOX "/lsp/workspacesymbols", handle_search, ROUTE_STREAM },
	{ 0 },
};
