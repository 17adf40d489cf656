/*
 * Changes in a sandbox, over the API. The server compares, because it knows which build of a template a sandbox was
 * made from.
 */
#include "remote/remote_http.h"
#include "remote/remote_read.h"

static enum husk_change_kind kind_of(const json_t *document)
{
	const char *word = json_string_value(json_object_get(document, "change"));

	for (enum husk_change_kind kind = HUSK_ADDED; kind <= HUSK_CHANGED; kind++)
		if (str_equal(word, husk_change_name(kind)))
			return kind;
	return 0;
}

static void *read_change(const json_t *item, struct husk_error *err)
{
	struct husk_change *change = calloc(1, sizeof(*change));

	if (!change) {
		husk_fail_memory(err);
		return NULL;
	}
	change->kind = kind_of(item);
	if (!change->kind)
		husk_fail(err, HUSK_PROTOCOL, "the server described a change of an unknown kind");
	if (change->kind && read_file(item, &change->file, err) == 0)
		return change;
	free(change);
	return NULL;
}

static void drop_change(void *item)
{
	struct husk_change *change = item;

	husk_file_free(&change->file);
	free(change);
}

int remote_diff(struct remote *remote, const char *sandbox, const char *base, const char *path,
		struct husk_change ***out, struct husk_error *err)
{
	cleanup_json json_t *document = NULL;
	char *target = target_make("/v1/sandboxes/%s/diff", sandbox);

	if (base)
		target = target_add(target, "against", base);
	if (path)
		target = target_add(target, "path", path);
	if (exchange_get(remote, target, &document, err) < 0)
		return -1;
	return read_list(document, "changes", read_change, drop_change, (void ***)out, err);
}
