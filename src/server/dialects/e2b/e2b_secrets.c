/*
 * E2B's stored secrets: stored once, and named in network rules as ${e2b.secrets.name}. They are libhusk's
 * (husk_secret_store). A value goes there and nowhere else, never into an answer.
 */
#include <ctype.h>

#include "server/dialects/e2b/e2b.h"

#define PAGE_MAX 100

static json_t *secret_document(const struct husk_stored_secret *secret)
{
	return json_pack("{s:s, s:o, s:o, s:I, s:o, s:o}", "secretID", secret->id, "name", json_text0(secret->name),
			 "metadata", json_loads(secret->metadata, 0, NULL), "currentVersion",
			 (json_int_t)secret->version, "createdAt", json_time(secret->created_ms), "updatedAt",
			 json_time(secret->updated_ms));
}

/* Names are kept in lower case. */
static char *lower(const char *name)
{
	char *copy = strdup(name);

	for (char *at = copy; at && *at; at++)
		*at = (char)tolower((unsigned char)*at);
	return copy;
}

static int read_body(struct request *request, const char **name, const char **value, struct husk_pair **metadata,
		     size_t *count, struct husk_error *err)
{
	struct fields fields;

	if (fields_begin(&fields, request_json(request, err)) < 0)
		return -1;
	if (name)
		*name = fields_string(&fields, "name");
	*value = fields_string(&fields, "value");
	*metadata = fields_pairs(&fields, "metadata", count);
	if (fields_done_open(&fields, err) < 0)
		return -1;
	if (!*value || (name && !*name))
		return husk_fail_field(err, *value ? "name" : "value", "%s is missing", *value ? "name" : "value");
	return 0;
}

static int handle_create(struct request *request, struct husk_error *err)
{
	cleanup_stored_secret struct husk_stored_secret *secret = NULL;
	cleanup_free struct husk_pair *metadata = NULL;
	const char *name = NULL, *value = NULL;
	size_t count = 0;

	if (read_body(request, &name, &value, &metadata, &count, err) < 0 ||
	    husk_secret_store(request_husk(request), name, value, metadata, count, &secret, err) < 0)
		return -1;
	return respond_json(request, 201, secret_document(secret), err);
}

static int handle_update(struct request *request, struct husk_error *err)
{
	cleanup_stored_secret struct husk_stored_secret *secret = NULL;
	cleanup_free struct husk_pair *metadata = NULL;
	cleanup_free char *name = lower(request_path(request, "secret"));
	const char *value = NULL;
	size_t count = 0;

	if (!name)
		return husk_fail_memory(err);
	if (read_body(request, NULL, &value, &metadata, &count, err) < 0 ||
	    husk_secret_change(request_husk(request), name, value, metadata, count, &secret, err) < 0)
		return -1;
	return respond_json(request, 200, secret_document(secret), err);
}

static int handle_get(struct request *request, struct husk_error *err)
{
	cleanup_stored_secret struct husk_stored_secret *secret = NULL;
	cleanup_free char *name = lower(request_path(request, "secret"));

	if (!name)
		return husk_fail_memory(err);
	if (husk_secret_get(request_husk(request), name, &secret, err) < 0)
		return -1;
	return respond_json(request, 200, secret_document(secret), err);
}

static int handle_delete(struct request *request, struct husk_error *err)
{
	cleanup_free char *name = lower(request_path(request, "secret"));

	if (!name)
		return husk_fail_memory(err);
	if (husk_secret_remove(request_husk(request), name, err) < 0)
		return -1;
	return respond_empty(request, 204, err);
}

/* nextToken is the last id of the previous page: the list is sorted by id. */
static int handle_list(struct request *request, struct husk_error *err)
{
	cleanup_stored_secrets struct husk_stored_secret **list = NULL;
	cleanup_json json_t *array = json_array();
	const char *token = request_query(request, "nextToken"), *last = NULL;
	int64_t limit;

	if (request_query_int(request, "limit", PAGE_MAX, 1, PAGE_MAX, &limit, err) < 0 ||
	    husk_secret_list(request_husk(request), &list, err) < 0)
		return -1;
	for (size_t i = 0; list[i]; i++) {
		if (token && strcmp(list[i]->id, token) <= 0)
			continue;
		if (json_array_size(array) == (size_t)limit)
			return e2b_respond_page(request, steal_pointer(array), last, err);
		last = list[i]->id;
		if (json_array_append_new(array, secret_document(list[i])) < 0)
			return husk_fail_memory(err);
	}
	return e2b_respond_page(request, steal_pointer(array), NULL, err);
}

const struct route e2b_secret_routes[] = {
	{ "GET", "/secrets", handle_list, E2B_CONTROL },
	{ "POST", "/secrets", handle_create, E2B_CONTROL },
	{ "GET", "/secrets/{secret}", handle_get, E2B_CONTROL },
	{ "POST", "/secrets/{secret}", handle_update, E2B_CONTROL },
	{ "DELETE", "/secrets/{secret}", handle_delete, E2B_CONTROL },
	{ 0 },
};
