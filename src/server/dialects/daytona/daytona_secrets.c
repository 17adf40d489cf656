/*
 * Daytona's secrets, which are Husk's stored secrets: a value comes in and is never returned. Sandboxes name them
 * (daytona_network.c) and see a placeholder; the leash inserts the value on the way to the secret's hosts only. Description
 * and hosts are metadata of the secret.
 */

#include "server/dialects/daytona/daytona.h"

#define PAGE_MAX 200

static json_t *split(const char *list)
{
	json_t *array = json_array();
	cleanup_free char *copy = strdup(list ? list : "");
	char *save = NULL;

	for (char *each = copy ? strtok_r(copy, ",", &save) : NULL; array && each; each = strtok_r(NULL, ",", &save))
		json_array_append_new(array, json_text0(each));
	return array;
}

static json_t *secret_document(const struct husk_stored_secret *secret)
{
	cleanup_json json_t *metadata = json_loads(secret->metadata, 0, NULL);
	const char *description = json_string_value(json_object_get(metadata, "description"));
	const char *given = json_string_value(json_object_get(metadata, "name"));

	return json_pack("{s:s, s:s, s:o, s:o, s:o, s:o, s:o}", "id", secret->id, "name", given ? given : secret->name,
			 "description", json_text0(description), "placeholder", json_sprintf("husk-%s", secret->id),
			 "hosts", split(json_string_value(json_object_get(metadata, "hosts"))), "createdAt",
			 json_time(secret->created_ms), "updatedAt", json_time(secret->updated_ms));
}

/* The fields of a body, over the existing values. */
struct body {
	const char *name, *value, *description;
	char *hosts;
	bool has_description, has_hosts;
};

static int read_body(struct request *request, struct body *out, struct husk_error *err)
{
	cleanup_buf struct buf joined = { 0 };
	struct fields fields;

	if (fields_begin(&fields, request_json(request, err)) < 0)
		return -1;
	out->name = fields_string(&fields, "name");
	out->value = fields_string(&fields, "value");
	out->description = fields_string(&fields, "description");
	cleanup_free const char **hosts = fields_strings(&fields, "hosts");
	out->has_description = out->description != NULL;
	out->has_hosts = hosts != NULL;
	if (fields_done_open(&fields, err) < 0)
		return -1;
	for (size_t i = 0; hosts && hosts[i]; i++) {
		if (strchr(hosts[i], ',') || !*hosts[i])
			return husk_fail_field(err, "hosts", "'%.80s' is not a host", hosts[i]);
		if (buf_printf(&joined, "%s%s", i ? "," : "", hosts[i]) < 0)
			return husk_fail_memory(err);
	}
	out->hosts = hosts ? buf_steal(&joined) : NULL;
	return hosts && !out->hosts ? husk_fail_memory(err) : 0;
}

static size_t fill_pairs(struct husk_pair pairs[static 3], const char *name, const char *description, const char *hosts)
{
	size_t count = 0;

	pairs[count++] = (struct husk_pair){ "name", name };
	if (description)
		pairs[count++] = (struct husk_pair){ "description", description };
	if (hosts)
		pairs[count++] = (struct husk_pair){ "hosts", hosts };
	return count;
}

static int handle_create(struct request *request, struct husk_error *err)
{
	cleanup_stored_secret struct husk_stored_secret *secret = NULL;
	struct husk_pair pairs[3];
	struct body body = { 0 };

	if (read_body(request, &body, err) < 0)
		return -1;
	cleanup_free char *hosts = body.hosts;
	if (!body.name || !*body.name || !body.value)
		return husk_fail_field(err, body.value ? "name" : "value", "name and value are required");
	size_t count = fill_pairs(pairs, body.name, body.description, hosts);
	if (husk_secret_store(request_husk(request), body.name, body.value, pairs, count, &secret, err) < 0)
		return -1;
	return respond_json(request, 201, secret_document(secret), err);
}

static int handle_update(struct request *request, struct husk_error *err)
{
	cleanup_stored_secret struct husk_stored_secret *before = NULL, *secret = NULL;
	const char *id = request_path(request, "secret");
	struct husk *husk = request_husk(request);
	cleanup_wipe char *kept = NULL;
	struct husk_pair pairs[3];
	struct body body = { 0 };

	if (read_body(request, &body, err) < 0)
		return -1;
	cleanup_free char *hosts = body.hosts;
	if (husk_secret_get(husk, id, &before, err) < 0 || (!body.value && husk_secret_value(husk, id, &kept, err) < 0))
		return -1;
	cleanup_json json_t *metadata = json_loads(before->metadata, 0, NULL);
	const char *name = json_string_value(json_object_get(metadata, "name"));
	size_t count = fill_pairs(pairs, name ? name : before->name,
				  body.has_description ? body.description
						       : json_string_value(json_object_get(metadata, "description")),
				  body.has_hosts ? hosts : json_string_value(json_object_get(metadata, "hosts")));
	if (husk_secret_change(husk, id, body.value ? body.value : kept, pairs, count, &secret, err) < 0)
		return -1;
	return respond_json(request, 200, secret_document(secret), err);
}

static int handle_get(struct request *request, struct husk_error *err)
{
	cleanup_stored_secret struct husk_stored_secret *secret = NULL;

	if (husk_secret_get(request_husk(request), request_path(request, "secret"), &secret, err) < 0)
		return -1;
	return respond_json(request, 200, secret_document(secret), err);
}

static int handle_delete(struct request *request, struct husk_error *err)
{
	if (husk_secret_remove(request_husk(request), request_path(request, "secret"), err) < 0)
		return -1;
	return respond_empty(request, 204, err);
}

static json_t *all_secrets(struct request *request, struct husk_error *err)
{
	struct husk_stored_secret **list = NULL;
	const char *name = request_query(request, "name");
	json_t *array = json_array();

	if (husk_secret_list(request_husk(request), &list, err) < 0) {
		json_decref(array);
		return NULL;
	}
	for (size_t i = 0; array && list[i]; i++)
		if (!name || !*name || strstr(list[i]->name, name))
			json_array_append_new(array, secret_document(list[i]));
	husk_stored_secret_list_free(list);
	if (!array)
		husk_fail_memory(err);
	return array;
}

static int handle_all(struct request *request, struct husk_error *err)
{
	json_t *array = all_secrets(request, err);

	return array ? respond_json(request, 200, array, err) : -1;
}

/* A cursor is the id of the last one in the previous page. */
static int handle_list(struct request *request, struct husk_error *err)
{
	const char *cursor = request_query(request, "cursor");
	cleanup_json json_t *items = json_array();
	int64_t limit;
	size_t from = 0, i;
	json_t *each;

	if (request_query_int(request, "limit", PAGE_MAX, 1, PAGE_MAX, &limit, err) < 0)
		return -1;
	cleanup_json json_t *all = all_secrets(request, err);
	if (!all || !items)
		return all ? husk_fail_memory(err) : -1;
	json_array_foreach(all, i, each) if (str_equal(cursor, json_string_value(json_object_get(each, "id")))) from =
		i + 1;
	for (i = from; i < json_array_size(all) && i < from + (size_t)limit; i++)
		json_array_append(items, json_array_get(all, i));
	bool more = from + (size_t)limit < json_array_size(all);
	json_t *last = json_array_get(items, json_array_size(items) - 1);
	return respond_json(request, 200,
			    json_pack("{s:O, s:I, s:O?}", "items", items, "total", (json_int_t)json_array_size(all),
				      "nextCursor", more ? json_object_get(last, "id") : NULL),
			    err);
}

const struct route daytona_secret_routes[] = {
	{ "GET", "/daytona/secret", handle_all, 0 },
	{ "POST", "/daytona/secret", handle_create, 0 },
	{ "GET", "/daytona/secret/paginated", handle_list, 0 },
	{ "GET", "/daytona/secret/{secret}", handle_get, 0 },
	{ "PATCH", "/daytona/secret/{secret}", handle_update, 0 },
	{ "DELETE", "/daytona/secret/{secret}", handle_delete, 0 },
	{ 0 },
};
