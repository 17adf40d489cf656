/*
 * The smaller calls about a workspace: where it is, what the sandbox changed, and a file as it was brought in. They write
 * nothing.
 */
#include <fcntl.h>

#include "workspace/scan.h"

#define DIFF_BYTES_MAX (UINT64_C(1) << 30)

int husk_workspace_where(struct husk *husk, const char *sandbox, char **directory, char **path, struct husk_error *err)
{
	cleanup_record struct record record = { 0 };

	if (record_open(husk, sandbox, &record, err) < 0)
		return -1;
	*directory = steal_pointer(record.directory);
	*path = steal_pointer(record.path);
	return 0;
}

int husk_workspace_base_read(struct husk *husk, const char *sandbox, const char *path, husk_sink sink, void *data,
			     struct husk_error *err)
{
	cleanup_record struct record record = { 0 };
	cleanup_buf struct buf content = { 0 };

	if (record_open(husk, sandbox, &record, err) < 0)
		return -1;
	const struct record_entry *entry = record_find(&record, path);
	if (!entry || entry->version.type != HUSK_FILE)
		return husk_fail(err, HUSK_NOT_FOUND, "'%s' was not brought in as a file", path);
	int found = record_content(&record, entry, &content, err);
	if (found < 0)
		return -1;
	if (found == 0)
		return husk_fail(err, HUSK_LIMIT, "'%s' is not text, or larger than %u bytes", path, VERSION_TEXT_MAX);
	if (content.size && sink(data, content.data, content.size) != 0)
		return husk_fail(err, HUSK_INTERNAL, "the receiver stopped the transfer");
	return 0;
}

static void drop_stage(char **path)
{
	if (*path)
		dir_remove(*path, NULL);
	free(*path);
}

static int fill_change(const struct work_item *item, struct husk_change *change, struct husk_error *err)
{
	const struct version *version = item->theirs.type ? &item->theirs : &item->base;

	change->kind = !item->theirs.type ? HUSK_REMOVED : item->base.type ? HUSK_CHANGED : HUSK_ADDED;
	change->file = (struct husk_file){
		.path = strdup(item->path), .type = version->type, .size = version->size, .mode = version->mode
	};
	if (change->kind == HUSK_CHANGED)
		change->before = (struct husk_file){ .type = item->base.type,
						     .size = item->base.size,
						     .mode = item->base.mode,
						     .target = item->base.target ? strdup(item->base.target) : NULL };
	if (version->target)
		change->file.target = strdup(version->target);
	return change->file.path && (!version->target || change->file.target) ? 0 : husk_fail_memory(err);
}

static int make_list(const struct work *work, struct husk_change ***out, struct husk_error *err)
{
	struct husk_change **list = calloc(work->count + 1, sizeof(*list));

	if (!list)
		return husk_fail_memory(err);
	for (size_t i = 0; i < work->count; i++) {
		list[i] = calloc(1, sizeof(**list));
		if (!list[i] || fill_change(&work->items[i], list[i], err) < 0) {
			husk_change_list_free(list);
			return husk_fail_memory(err);
		}
	}
	*out = list;
	return 0;
}

int husk_workspace_diff(struct husk *husk, const char *sandbox, struct husk_change ***out, struct husk_error *err)
{
	cleanup_record struct record record = { 0 };
	cleanup_work struct work work = { 0 };
	cleanup(drop_stage) char *path = strdup("/tmp/husk-diff.XXXXXX");

	if (!path)
		return husk_fail_memory(err);
	if (!mkdtemp(path)) {
		free(steal_pointer(path));
		return husk_fail_errno(err, "cannot make a directory in /tmp");
	}
	cleanup_close int stage = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (stage < 0)
		return husk_fail_errno(err, "cannot open '%s'", path);
	if (record_open(husk, sandbox, &record, err) < 0 ||
	    work_scan(husk, &record, stage, DIFF_BYTES_MAX, &work, err) < 0)
		return -1;
	return make_list(&work, out, err);
}
