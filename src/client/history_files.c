/*
 * See history_files.h. The parent of a checkpoint is usually the one before it. So two copies are open at a time, and
 * each is started once:
 *
 *     checkpoint 1    template, 1     (or the state that the sandbox began with)
 *     checkpoint 2    1, 2
 *     checkpoint 3    2, 3            the copy of 1 has ended
 *
 * The sandbox itself is not used: a hibernated sandbox stays hibernated.
 */
#include "client/history_files.h"

#include "base/jansson.h"
#include "client/diff.h"
#include "remote/remote_read.h"

#define NAMES_BYTES_MAX (64u << 10) /* of the names that are kept for a checkpoint; the guest chose them */
#define ORIGIN 0                    /* in the place of a number: the state that the sandbox began with */

struct copies {
	struct husk *husk;
	const struct catalog_sandbox *row;
	struct husk_moment moments[2];
	int64_t numbers[2];
};

static void copies_end(struct copies *copies)
{
	for (size_t i = 0; i < ARRAY_SIZE(copies->moments); i++)
		husk_moment_close(copies->husk, &copies->moments[i]);
}

/* The machine of a checkpoint. `other`: the number of the one that must stay open. 1: it is gone. */
static int get_copy(struct copies *copies, int64_t number, int64_t other, const char **out, struct husk_error *err)
{
	struct husk_error why = { 0 };
	size_t place = 0;

	for (size_t i = 0; i < ARRAY_SIZE(copies->moments); i++) {
		bool used = copies->moments[i].sandbox != NULL;
		if (used && copies->numbers[i] == number) {
			*out = copies->moments[i].sandbox;
			return 0;
		}
		if (!used || copies->numbers[i] != other)
			place = i;
	}
	cleanup_free char *word = number == ORIGIN ? strdup(copies->row->origin)
						   : str_format("%s@%lld", copies->row->id, (long long)number);
	if (!word)
		return husk_fail_memory(err);
	husk_moment_close(copies->husk, &copies->moments[place]);
	if (husk_moment_open(copies->husk, word, &copies->moments[place], &why) < 0)
		return why.code == HUSK_NOT_FOUND || why.code == HUSK_GONE
			       ? 1
			       : husk_fail(err, why.code, "%s", why.message);
	copies->numbers[place] = number;
	*out = copies->moments[place].sandbox;
	return 0;
}

/* JSON has no other bytes than those of UTF-8: in another name they become '?'. */
static json_t *readable(const char *path)
{
	cleanup_free char *copy = strdup(path);

	if (copy && !str_is_utf8(copy, strlen(copy)))
		for (char *at = copy; *at; at++)
			*at = (signed char)*at < 0 ? '?' : *at;
	return copy ? json_string(copy) : NULL;
}

static json_t *describe(struct husk_change *const *list, int64_t parent)
{
	json_t *files = json_array();
	size_t count = 0, bytes = 0;

	for (; list[count]; count++) {
		const char *path = list[count]->file.path;
		bytes += strlen(path);
		if (count >= HUSK_HISTORY_FILES || bytes > NAMES_BYTES_MAX)
			continue;
		json_array_append_new(files, json_pack("{s:o, s:s}", "path", readable(path), "change",
						       husk_change_name(list[count]->kind)));
	}
	return json_pack("{s:I, s:I, s:o}", "parent", (json_int_t)parent, "files_changed", (json_int_t)count, "files",
			 files);
}

static void drop_changes(struct husk_change ***list)
{
	husk_change_list_free(*list);
}

static int compare_point(struct copies *copies, struct catalog_point *point, struct husk_error *err)
{
	cleanup(drop_changes) struct husk_change **list = NULL;
	const char *new = NULL, *old = NULL;
	int gone = 0;

	if (point->parent || copies->row->parent)
		gone = point->parent || copies->row->origin ? get_copy(copies, point->parent, point->number, &old, err)
							    : 1;
	if (gone == 0)
		gone = get_copy(copies, point->number, old ? point->parent : -1, &new, err);
	if (gone)
		return gone < 0 ? -1 : 0;
	if (diff_machines(copies->husk, new, old, NULL, &list, err) < 0)
		return husk_wrap(err, "checkpoint %lld", (long long)point->number);
	cleanup_json json_t *document = describe(list, point->parent);
	free(point->files);
	point->files = document ? json_dumps(document, JSON_COMPACT) : NULL;
	return point->files
		       ? catalog_point_compared(copies->husk->catalog, point->sandbox, point->number, point->files, err)
		       : husk_fail_memory(err);
}

/* What is kept, if it is about the parent that the checkpoint has now; the one before it may have been removed. */
static json_t *kept(const struct catalog_point *point)
{
	cleanup_json json_t *document = point->files ? json_loads(point->files, 0, NULL) : NULL;
	const json_t *parent = json_object_get(document, "parent");

	return json_is_integer(parent) && json_integer_value(parent) == point->parent ? steal_pointer(document) : NULL;
}

int history_compare(struct husk *husk, const struct catalog_sandbox *row, struct catalog_point *const *points,
		    struct husk_error *err)
{
	cleanup(copies_end) struct copies copies = { .husk = husk, .row = row };

	for (size_t i = 0; points[i]; i++) {
		cleanup_json json_t *document = kept(points[i]);
		if (!document && compare_point(&copies, points[i], err) < 0)
			return -1;
	}
	return 0;
}

int history_read(const struct catalog_point *point, struct husk_checkpoint *out)
{
	cleanup_json json_t *document = kept(point);

	return document ? read_changed_files(document, out) : 0;
}
