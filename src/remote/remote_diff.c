/*
 * Changes in a sandbox, and merges, over the API. The server compares, because it knows which build of a template a sandbox was
 * made from.
 */
#include "remote/remote_http.h"
#include "remote/remote_read.h"
#include "remote/remote_write.h"

static void *read_change(const json_t *item, struct husk_error *err)
{
	struct husk_change *change = calloc(1, sizeof(*change));

	if (!change) {
		husk_fail_memory(err);
		return NULL;
	}
	change->kind = read_change_kind(item);
	if (!change->kind)
		husk_fail(err, HUSK_PROTOCOL, "the server described a change of an unknown kind");
	if (change->kind && read_before(item, &change->before, err) == 0) {
		if (read_file(item, &change->file, err) == 0)
			return change;
		husk_file_free(&change->before);
	}
	free(change);
	return NULL;
}

static void drop_change(void *item)
{
	struct husk_change *change = item;

	husk_file_free(&change->file);
	husk_file_free(&change->before);
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

static const char *kind_name(const char *word)
{
	static const char *const kinds[] = { "deb", "pip", "npm", "process", "port" };

	for (size_t i = 0; word && i < ARRAY_SIZE(kinds); i++)
		if (str_equal(word, kinds[i]))
			return kinds[i];
	return "other";
}

static char *copy_member(const json_t *item, const char *name, bool *bad)
{
	const char *text = json_string_value(json_object_get(item, name));
	char *copy = text ? strdup(text) : NULL;

	*bad |= text && !copy;
	return copy;
}

int remote_diff_system(struct remote *remote, const char *sandbox, const char *base, unsigned what,
		       struct husk_difference **out, size_t *count, struct husk_error *err)
{
	cleanup_json json_t *document = NULL;
	char *target = target_make("/v1/sandboxes/%s/diff/system", sandbox);
	bool bad = false;

	if (base)
		target = target_add(target, "against", base);
	target = target_add(target, "packages", what & HUSK_DIFF_PACKAGES ? "true" : "false");
	target = target_add(target, "processes", what & HUSK_DIFF_PROCESSES ? "true" : "false");
	if (exchange_get(remote, target, &document, err) < 0)
		return -1;
	const json_t *list = json_object_get(document, "differences");
	*count = json_array_size(list);
	*out = calloc(*count + 1, sizeof(**out));
	for (size_t i = 0; *out && i < *count; i++) {
		const json_t *item = json_array_get(list, i);
		(*out)[i] =
			(struct husk_difference){ .kind = kind_name(json_string_value(json_object_get(item, "kind"))),
						  .change = read_change_kind(item),
						  .name = copy_member(item, "name", &bad),
						  .before = copy_member(item, "before", &bad),
						  .after = copy_member(item, "after", &bad) };
		bad |= !(*out)[i].name;
	}
	if (*out && !bad)
		return 0;
	husk_difference_list_free(*out, *count);
	return *out ? husk_fail(err, HUSK_PROTOCOL, "the server described a difference without its name")
		    : husk_fail_memory(err);
}

/* ---- merges ---- */

static int read_entry(const json_t *item, struct husk_merge_entry *out, struct husk_error *err)
{
	struct reading r = { .from = item };

	out->kind = read_change_kind(item);
	out->path = read_needed(&r, "path");
	out->conflict = read_text(&r, "conflict");
	out->merged = json_is_true(json_object_get(item, "merged"));
	out->resolved = json_is_true(json_object_get(item, "resolved"));
	if (!out->kind)
		return husk_fail(err, HUSK_PROTOCOL, "the server described a change of an unknown kind");
	return read_done(&r, "a change", err);
}

static int read_merged(const json_t *document, struct husk_merged *out, struct husk_error *err)
{
	struct reading r = { .from = document };
	const json_t *changes = read_array(document, "changes", err);

	if (!changes)
		return -1;
	out->target = read_needed(&r, "target");
	out->conflicts = (size_t)read_count(&r, "conflicts");
	out->written = json_is_true(json_object_get(document, "written"));
	if (read_done(&r, "a merge", err) < 0)
		return -1;
	out->entries = calloc(json_array_size(changes) + 1, sizeof(*out->entries));
	if (!out->entries)
		return husk_fail_memory(err);
	for (; out->count < json_array_size(changes); out->count++)
		if (read_entry(json_array_get(changes, out->count), &out->entries[out->count], err) < 0) {
			out->count++; /* what was read of it is freed too */
			return -1;
		}
	return 0;
}

int remote_merge(struct remote *remote, const char *from, const char *into, const char *base, const char *path,
		 const struct husk_merge_options *options, struct husk_merged **out, struct husk_error *err)
{
	cleanup_json json_t *document = NULL;
	struct writing w;

	write_begin(&w);
	write_text(&w, "from", from);
	write_text(&w, "base", base);
	write_text(&w, "path", path);
	write_text(&w, "conflicts", options->conflicts);
	write_bool(&w, "dry_run", options->dry_run);
	write_size(&w, "limit_bytes", options->limit_bytes);
	struct exchange x = { .method = "POST", .body = write_done(&w, err) };
	if (!x.body)
		return -1;
	x.target = target_make("/v1/sandboxes/%s/merge", into);
	if (exchange_run(remote, &x, &document, err) < 0)
		return -1;
	struct husk_merged *merged = calloc(1, sizeof(*merged));
	if (!merged)
		return husk_fail_memory(err);
	if (read_merged(document, merged, err) < 0) {
		husk_merged_free(merged);
		return -1;
	}
	if (out)
		*out = merged;
	else
		husk_merged_free(merged);
	return 0;
}
