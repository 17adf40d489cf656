/*
 * husk_workspace_sync, one round:
 *
 *     1. Which paths may have changed in the directory (`candidates`), and in the sandbox (scan.h).
 *     2. What the sandbox changed goes into the directory, as husk_workspace_apply does it (apply.h). Text that both changed is merged
 *        there. Paths with a conflict stay as they are. The base is what the sandbox had.
 *     3. What differs from the base in the directory now is the caller's: it goes into the sandbox (push.c).
 *
 * After a kill at any moment each file is old or new on each side, and the next round finds those that are equal on both sides, whatever
 * the base says.
 */
#include "workspace/sync.h"

#include <fcntl.h>
#include <stdarg.h>
#include <sys/file.h>

#include "client/listing.h"
#include "workspace/apply.h"
#include "workspace/push.h"

#define SCAN_PATHS_MAX 64 /* more paths than this: the guest's list of what was touched is cheaper */
#define SAVE_SHARE 20     /* saving takes at most this part of the time */
#define ROUNDS_MAX 5      /* of one sync, if files change while they are written */

void sync_note(const struct sync *sync, const char *format, ...)
{
	char text[512];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	if (sync->options->report)
		sync->options->report(sync->options->data, &(struct husk_sync_event){ .note = text });
}

/* ---- the directory's side ---- */

static int compare_names(const void *a, const void *b)
{
	return listing_compare(*(char *const *)a, *(char *const *)b);
}

static void sort_names(struct names *names)
{
	size_t kept = 0;

	if (names->count)
		qsort(names->items, names->count, sizeof(*names->items), compare_names);
	for (size_t i = 0; i < names->count; i++) {
		if (kept && str_equal(names->items[kept - 1], names->items[i]))
			free(names->items[i]);
		else
			names->items[kept++] = names->items[i];
	}
	names->count = kept;
}

static bool has_name(const struct names *sorted, const char *name)
{
	return sorted->count && bsearch(&name, sorted->items, sorted->count, sizeof(*sorted->items), compare_names);
}

static bool is_at_or_below(const char *path, const char *top)
{
	size_t size = strlen(top);

	return strncmp(path, top, size) == 0 && (path[size] == '\0' || path[size] == '/');
}

static bool is_recorded(const struct sync *sync, const char *path)
{
	const struct record_entry *entry = record_find(&sync->record, path);

	return entry && entry->version.type;
}

/* A path that changed: with what is below it, if a directory came or went there. */
static int expand(const struct sync *sync, const char *path, struct names *out, struct husk_error *err)
{
	const struct record_entry *base = record_find(&sync->record, path);
	cleanup_close int fd = host_open(sync->directory, path);
	struct stat status = { 0 };
	bool is_directory = fd >= 0 && fstat(fd, &status) == 0 && S_ISDIR(status.st_mode);

	if (is_directory && base && base->version.type == HUSK_DIRECTORY)
		return 0;
	for (size_t i = record_lower(&sync->record, path);
	     i < sync->record.count && is_at_or_below(sync->record.entries[i].path, path); i++)
		if (names_add(out, sync->record.entries[i].path, err) < 0)
			return -1;
	if (is_directory)
		return host_below(sync->directory, path, out, err);
	return names_add(out, path, err);
}

static int list_candidates(const struct sync *sync, const struct names *paths, struct names *out,
			   struct husk_error *err)
{
	bool is_git;

	for (size_t i = 0; paths && i < paths->count; i++)
		if (!name_refused(paths->items[i]) && expand(sync, paths->items[i], out, err) < 0)
			return -1;
	if (!paths && host_list(sync->record.directory, sync->record.all, out, &is_git, err) < 0)
		return -1;
	for (size_t i = 0; !paths && i < sync->record.count; i++)
		if (names_add(out, sync->record.entries[i].path, err) < 0)
			return -1;
	return 0;
}

/* New names that git ignores stay at home. It refuses to judge what is below a link, and that is not looked at either. */
static int ask_git(const struct sync *sync, const struct names *names, struct names *ignored, struct husk_error *err)
{
	cleanup_names struct names unknown = { 0 };

	if (sync->record.all)
		return 0;
	for (size_t i = 0; i < names->count; i++) {
		const char *base;
		cleanup_close int parent = host_parent(sync->directory, names->items[i], &base);
		if (parent >= 0 && !is_recorded(sync, names->items[i]) && !name_refused(names->items[i]) &&
		    names_add(&unknown, names->items[i], err) < 0)
			return -1;
	}
	if (host_ignored(sync->record.directory, &unknown, ignored, err) < 0)
		return -1;
	sort_names(ignored);
	return 0;
}

/* The names of the directory's side that may have changed, sorted. */
static int find_candidates(const struct sync *sync, const struct names *paths, struct names *out,
			   struct husk_error *err)
{
	cleanup_names struct names ignored = { 0 };
	size_t kept = 0;

	if (list_candidates(sync, paths, out, err) < 0)
		return -1;
	sort_names(out);
	/* All of them: git has listed what it does not ignore. */
	if (paths && ask_git(sync, out, &ignored, err) < 0)
		return -1;
	for (size_t i = 0; i < out->count; i++) {
		if (name_refused(out->items[i]) || has_name(&ignored, out->items[i]))
			free(out->items[i]);
		else
			out->items[kept++] = out->items[i];
	}
	out->count = kept;
	return 0;
}

/* ---- from the sandbox ---- */

static void report_change(const struct sync *sync, const struct husk_merge_entry *entry)
{
	if (sync->options->report)
		sync->options->report(
			sync->options->data,
			&(struct husk_sync_event){ .path = entry->path, .kind = entry->kind, .merged = entry->merged });
}

static void report_conflict(const struct sync *sync, const struct husk_merge_entry *entry)
{
	if (sync->options->report)
		sync->options->report(sync->options->data, &(struct husk_sync_event){ .path = entry->path,
										      .kind = entry->kind,
										      .conflict = entry->conflict });
}

static void forget_conflict(struct sync *sync, const char *path)
{
	for (size_t i = 0; i < sync->conflicts.count; i++) {
		if (!str_equal(sync->conflicts.items[i], path))
			continue;
		free(sync->conflicts.items[i]);
		sync->conflicts.items[i] = sync->conflicts.items[--sync->conflicts.count];
		sort_names(&sync->conflicts);
		return;
	}
}

/* Reports what was written, and conflicts that are new. `again`: paths that go into the sandbox now; `merged`: those of them that were
 * reported here. */
static int report_round(struct sync *sync, const struct apply *apply, struct names *again, struct names *merged,
			struct husk_error *err)
{
	bool ours = str_equal(sync->options->conflicts, "ours");
	cleanup_names struct names open = { 0 };

	for (size_t i = 0; i < apply->merged->count; i++) {
		const struct husk_merge_entry *entry = &apply->merged->entries[i];
		bool is_open = entry->conflict && !entry->resolved;
		if (is_open && names_add(&open, entry->path, err) < 0)
			return -1;
		if (is_open && !has_name(&sync->conflicts, entry->path))
			report_conflict(sync, entry);
		if (is_open)
			continue;
		bool kept = entry->conflict && ours;
		if (!kept)
			report_change(sync, entry);
		if ((entry->merged || entry->conflict) && names_add(kept ? again : merged, entry->path, err) < 0)
			return -1;
	}
	sort_names(&open);
	for (size_t i = 0; i < apply->work.count; i++)
		if (!has_name(&open, apply->work.items[i].path))
			forget_conflict(sync, apply->work.items[i].path);
	for (size_t i = 0; i < open.count; i++)
		if (!has_name(&sync->conflicts, open.items[i])) {
			if (names_add(&sync->conflicts, open.items[i], err) < 0)
				return -1;
			sort_names(&sync->conflicts);
		}
	return 0;
}

static int scan(struct sync *sync, struct apply *apply, const struct names *paths, const struct names *candidates,
		struct husk_error *err)
{
	uint64_t limit = sync->options->limit_bytes ? sync->options->limit_bytes : APPLY_LIMIT;
	cleanup_names struct names all = { 0 };

	for (size_t i = 0; paths && i < paths->count; i++)
		if (names_add(&all, paths->items[i], err) < 0)
			return -1;
	for (size_t i = 0; paths && i < candidates->count; i++)
		if (names_add(&all, candidates->items[i], err) < 0)
			return -1;
	sort_names(&all);
	if (!paths || all.count > SCAN_PATHS_MAX)
		return work_scan(sync->husk, &apply->record, apply->stage, limit, &apply->work, err);
	return work_scan_paths(sync->husk, &apply->record, &all, apply->stage, limit, &apply->work, err);
}

/* The record is in `apply` meanwhile, and comes back if it may be used. */
static int take_changes(struct sync *sync, const struct names *paths, struct names *candidates, struct names *merged,
			struct husk_error *err)
{
	const struct husk_merge_options options = { .conflicts = sync->options->conflicts };
	cleanup(apply_free) struct apply apply = { .options = &options,
						   .leave = true,
						   .record = sync->record,
						   .merged = calloc(1, sizeof(*apply.merged)),
						   .directory = fcntl(sync->directory, F_DUPFD_CLOEXEC, 3),
						   .stage = -1 };

	sync->record = (struct record){ 0 };
	if (!apply.merged || apply.directory < 0)
		return husk_fail_errno(err, "cannot begin a round");
	if (apply_stage(&apply, err) < 0 || scan(sync, &apply, paths, candidates, err) < 0 ||
	    apply_work(&apply, err) < 0)
		return -1;
	sync->unsaved |= apply.work.count > 0;
	sync->record = apply.record;
	apply.record = (struct record){ 0 };
	return report_round(sync, &apply, candidates, merged, err);
}

/* ---- the mark ---- */

int sync_mark(struct sync *sync, struct husk_error *err)
{
	cleanup_free char *path = str_format("%s.mark", sync->stage);

	snprintf(sync->mark, sizeof(sync->mark), "%lld %llu", (long long)time_wall_ms(),
		 (unsigned long long)++sync->pushes);
	struct bytes mark = { sync->mark, strlen(sync->mark) };
	return path ? husk_file_write(sync->husk, sync->record.sandbox, path, 0600, NULL, bytes_give, &mark, err)
		    : husk_fail_memory(err);
}

static int take_text(void *data, const void *bytes, size_t size)
{
	struct buf *buf = data;

	return buf->size + size > sizeof(((struct sync *)NULL)->mark) ? -1 : buf_append(buf, bytes, size);
}

int sync_check_mark(struct sync *sync, struct husk_error *err)
{
	cleanup_free char *path = str_format("%s.mark", sync->stage);
	cleanup_buf struct buf found = { 0 };
	struct husk_error why = { 0 };

	if (!path)
		return husk_fail_memory(err);
	int result = husk_file_read(sync->husk, sync->record.sandbox, path, 0, 0, take_text, &found, &why);
	if (result == 0 && found.size == strlen(sync->mark) && memcmp(found.data, sync->mark, found.size) == 0)
		return 0;
	if (result < 0 && why.code != HUSK_NOT_FOUND && why.code != HUSK_INTERNAL)
		return husk_fail(err, why.code, "%s", why.message);
	return husk_fail(err, HUSK_CONFLICT,
			 "sandbox %s was rewound, and the sync has ended: your directory is as it was. husk diff "
			 "--workspace %s shows "
			 "what the next husk sync or husk apply would take back there",
			 sync->record.sandbox, sync->record.sandbox);
}

/* ---- a round ---- */

int sync_save(struct sync *sync, bool now, struct husk_error *err)
{
	int64_t begin = time_monotonic_ms();

	if (!sync->unsaved || (!now && begin - sync->saved_ms < SAVE_SHARE * sync->save_took_ms))
		return 0;
	if (record_save(&sync->record, err) < 0)
		return -1;
	sync->unsaved = false;
	sync->saved_ms = time_monotonic_ms();
	sync->save_took_ms = sync->saved_ms - begin;
	return 0;
}

static int run_round(struct sync *sync, const struct names *paths, struct husk_error *err)
{
	cleanup_names struct names candidates = { 0 }, merged = { 0 };

	if (find_candidates(sync, paths, &candidates, err) < 0 ||
	    take_changes(sync, paths, &candidates, &merged, err) < 0)
		return -1;
	for (size_t i = 0; i < merged.count; i++)
		if (names_add(&candidates, merged.items[i], err) < 0)
			return -1;
	sort_names(&candidates);
	sort_names(&merged);
	return push(sync, &candidates, &merged, err) < 0 ? -1 : sync_save(sync, false, err);
}

/* After a failure the record in memory may have a base that was not reached: the one on disk counts. */
int sync_round(struct sync *sync, const struct names *paths, struct husk_error *err)
{
	cleanup_free char *id = strdup(sync->record.sandbox);

	if (!id)
		return husk_fail_memory(err);
	if (run_round(sync, paths, err) == 0)
		return 0;
	record_free(&sync->record);
	sync->unsaved = false;
	if (record_open(sync->husk, id, &sync->record, NULL) < 0)
		husk_wrap(err, "the sync cannot go on");
	return -1;
}

/* ---- the call ---- */

static void sync_end(struct sync *sync)
{
	record_free(&sync->record);
	names_free(&sync->conflicts);
	fd_close(&sync->directory);
	free(sync->user);
	free(sync->stage);
}

static uint64_t add_hash(uint64_t hash, const char *text)
{
	for (; *text; text++)
		hash = (hash ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
	return hash * 31;
}

static int sync_begin(struct sync *sync, const char *sandbox, struct husk_error *err)
{
	struct husk_file root = { 0 };
	char host[256] = "";

	if (record_open(sync->husk, sandbox, &sync->record, err) < 0)
		return -1;
	const char *path = sync->record.directory;
	sync->directory = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (sync->directory < 0)
		return husk_fail_errno(err, "cannot open directory '%s'", path);
	if (flock(sync->directory, LOCK_EX | LOCK_NB) < 0)
		return husk_fail(err, HUSK_CONFLICT, "another husk writes to '%s' now, such as husk sync --watch",
				 path);
	if (husk_file_stat(sync->husk, sync->record.sandbox, sync->record.path, true, &root, err) < 0)
		return -1;
	sync->user = steal_pointer(root.user);
	husk_file_free(&root);
	gethostname(host, sizeof(host) - 1);
	uint64_t hash = add_hash(add_hash(add_hash(UINT64_C(0xcbf29ce484222325), host), sync->record.home), path);
	sync->stage = str_format("/.husk/sync-%016llx", (unsigned long long)hash);
	return sync->stage ? 0 : husk_fail_memory(err);
}

int husk_workspace_sync(struct husk *husk, const char *sandbox, const struct husk_sync_options *options,
			size_t *conflicts, struct husk_error *err)
{
	static const struct husk_sync_options defaults = { .stop_fd = -1 };
	cleanup(sync_end) struct sync sync = { .husk = husk,
					       .options = options ? options : &defaults,
					       .directory = -1 };
	const struct husk_merge_options how = { .conflicts = sync.options->conflicts };
	int result = apply_check(&how, err) < 0 || sync_begin(&sync, sandbox, err) < 0 ? -1 : 0;

	if (result == 0 && sync.options->watch)
		result = sync_watch(&sync, err);
	for (int round = 1; result == 0 && !sync.options->watch; round++) {
		struct husk_error why = { 0 };
		result = sync_round(&sync, NULL, &why);
		if (result == 0 || why.code != HUSK_CONFLICT || round == ROUNDS_MAX) {
			if (result < 0 && err)
				*err = why;
			break;
		}
		result = 0;
	}
	if (sync.record.sandbox && sync_save(&sync, true, result == 0 ? err : NULL) < 0)
		result = -1;
	if (conflicts)
		*conflicts = sync.conflicts.count;
	return result;
}
