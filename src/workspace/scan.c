/*
 * What a sandbox did to its workspace; see scan.h. The guest's agent lists what was touched since the directory was brought in, with
 * inode and time. The rest of the record is as it was, and is not read: the cost follows what has changed.
 *
 *     a file with the record's inode and time      not changed
 *     a directory with the record's inode          its names are compared: some may have gone, others were moved here
 *     another directory                            moved here, with files that have their old times: listed as a whole
 */
#include "workspace/scan.h"

#include <fcntl.h>
#include <openssl/evp.h>

#include "client/call.h"
#include "client/files.h"
#include "client/listing.h"

#define LEFT_OUT_MAX 1000 /* that are listed */
#define AHEAD 16u         /* files that are asked for at a time */

static void item_free(struct work_item *item)
{
	free(item->path);
	version_free(&item->base);
	version_free(&item->theirs);
}

void work_free(struct work *work)
{
	for (size_t i = 0; i < work->count; i++)
		item_free(&work->items[i]);
	free(work->items);
	strv_free(work->left_out);
	strv_free(work->reasons);
	*work = (struct work){ 0 };
}

static int leave_out(struct work *work, const char *path, const char *why, struct husk_error *err)
{
	size_t count = strv_length(work->left_out);
	const char *git = strcasestr(path, ".git");
	cleanup_free char *shown =
		git && str_starts(why, "it is git's") ? strndup(path, (size_t)(git - path) + 4) : strdup(path);

	if (!shown)
		return husk_fail_memory(err);
	if (count >= LEFT_OUT_MAX || (count && str_equal(work->left_out[count - 1], shown)))
		return 0;
	return strv_add(&work->left_out, shown) < 0 || strv_add(&work->reasons, why) < 0 ? husk_fail_memory(err) : 0;
}

/* ---- which paths ---- */

static bool is_below(const char *path, const char *directory)
{
	size_t size = strlen(directory);

	return strncmp(path, directory, size) == 0 && path[size] == '/';
}

/* Takes the type and the attributes of what the guest has; NULL: nothing. */
static int add_item(struct work *work, const char *path, const struct record_entry *base, const struct listed *listed,
		    struct husk_error *err)
{
	if (work->count == work->room) {
		size_t room = work->room ? work->room * 2 : 64;
		struct work_item *grown = reallocarray(work->items, room, sizeof(*grown));
		if (!grown)
			return husk_fail_memory(err);
		work->items = grown;
		work->room = room;
	}
	struct work_item *item = &work->items[work->count];
	*item = (struct work_item){ .path = strdup(path), .number = work->count, .recorded = base };
	if (!item->path)
		return husk_fail_memory(err);
	work->count++;
	if (base && version_copy(&base->version, &item->base, err) < 0)
		return -1;
	if (!listed)
		return 0;
	const struct husk_file *file = &listed->change.file;
	item->inode = listed->inode;
	item->ctime_ns = listed->ctime_ns;
	item->theirs = (struct version){ .type = file->type, .mode = file->mode & VERSION_MODE, .size = file->size };
	if (file->type == HUSK_SYMLINK && !(item->theirs.target = strdup(file->target ? file->target : "")))
		return husk_fail_memory(err);
	return 0;
}

static int add_found(struct work *work, const struct record *record, const struct listed *listed, const char *path,
		     struct husk_error *err)
{
	const struct husk_file *file = &listed->change.file;
	const struct record_entry *base = record_find(record, path);
	const char *why = name_refused(path);

	if (base && base->inode && base->inode == listed->inode && base->ctime_ns == listed->ctime_ns)
		return 0;
	if (base && base->version.type == HUSK_DIRECTORY && file->type == HUSK_DIRECTORY)
		return 0;
	if (!why && file->type == HUSK_OTHER)
		why = "it is a socket, a pipe or a device";
	if (!why && file->type == HUSK_SYMLINK && !link_stays_inside(path, file->target ? file->target : ""))
		why = "it is a link that leads outside";
	return why ? leave_out(work, path, why, err) : add_item(work, path, base, listed, err);
}

/* What became of an entry of the record that the lists do not have. */
enum fate {
	FATE_UNTOUCHED = 0,
	FATE_GONE, /* its directory no longer has the name */
	FATE_UNKNOWN, /* changed since it was brought in, and not any more: the sandbox was rewound. It must be looked at */
};

struct look {
	struct husk *husk;
	const struct record *record;
	struct listing listing; /* all that may have changed; listings of moved directories are added */
	uint8_t *fates;         /* one for each entry of the record */
	size_t skip;            /* of a path: the part before the relative one */
};

static void look_free(struct look *look)
{
	listing_free(&look->listing);
	free(look->fates);
}

static int add_unknown(const struct look *look, struct work *work, const struct record_entry *base,
		       struct husk_error *err)
{
	struct listed found = { 0 };
	struct husk_error missing = { 0 };
	cleanup_free char *path = str_format("%s/%s", look->record->path, base->path);

	if (!path)
		return husk_fail_memory(err);
	if (husk_file_stat(look->husk, look->record->sandbox, path, false, &found.change.file, &missing) < 0) {
		/* INVALID: a file is where its directory was. */
		if (missing.code == HUSK_NOT_FOUND || missing.code == HUSK_INVALID)
			return add_item(work, base->path, base, NULL, err);
		return husk_fail(err, missing.code, "%s", missing.message);
	}
	int result = add_found(work, look->record, &found, base->path, err);
	husk_file_free(&found.change.file);
	return result;
}

static int add_missing(const struct look *look, struct work *work, const struct record_entry *base,
		       struct husk_error *err)
{
	enum fate fate = look->fates[base - look->record->entries];
	const char *why = fate == FATE_UNTOUCHED ? NULL : name_refused(base->path);

	if (fate == FATE_UNTOUCHED)
		return 0;
	if (why)
		return leave_out(work, base->path, why, err);
	return fate == FATE_GONE ? add_item(work, base->path, base, NULL, err) : add_unknown(look, work, base, err);
}

static int compare_lists(const struct look *look, struct work *work, struct husk_error *err)
{
	const struct record *record = look->record;
	const struct listing *listing = &look->listing;
	size_t i = 0, j = 0;
	int result = 0;

	while (result == 0) {
		const struct record_entry *base = i < record->count ? &record->entries[i] : NULL;
		const struct listed *listed = j < listing->count ? &listing->entries[j] : NULL;
		const char *path = listed ? listed->change.file.path : NULL;
		if (!base && !listed)
			break;
		/* Twice in the list: touched, and in a directory that was listed as a whole. */
		if (listed && (listed->change.kind == HUSK_REMOVED || strlen(path) <= look->skip ||
			       (j > 0 && str_equal(path, listing->entries[j - 1].change.file.path)))) {
			j++;
			continue;
		}
		int order = !base ? 1 : !listed ? -1 : listing_compare(base->path, path + look->skip);
		i += order <= 0;
		j += order >= 0;
		result = order < 0 ? add_missing(look, work, base, err)
				   : add_found(work, record, listed, path + look->skip, err);
	}
	return result;
}

/* ---- directories that were touched ---- */

/* The entries of the record below a path, from *first on; `path` "": all. */
static size_t entries_below(const struct record *record, const char *path, size_t *first)
{
	const struct record_entry *at = *path ? record_find(record, path) : NULL;
	size_t end;

	*first = at ? (size_t)(at - record->entries) + 1 : 0;
	if (!at && *path)
		return 0;
	for (end = *first; end < record->count && (!*path || is_below(record->entries[end].path, path)); end++)
		;
	return end - *first;
}

static void set_fates(struct look *look, const char *path, bool itself, enum fate fate)
{
	size_t first, count = entries_below(look->record, path, &first);
	const struct record_entry *at = itself ? record_find(look->record, path) : NULL;

	memset(look->fates + first, fate, count);
	if (at)
		look->fates[at - look->record->entries] = fate;
}

/* A path whose content was moved here, with its old times: all of it is listed, and what the record has there else is gone. */
static int take_whole(struct look *look, const char *relative, struct husk_error *err)
{
	cleanup_free char *path = str_format("%s%s%s", look->record->path, *relative ? "/" : "", relative);
	struct listing more = { .husk = look->husk, .sandbox = look->record->sandbox };

	if (!path)
		return husk_fail_memory(err);
	set_fates(look, relative, true, FATE_GONE);
	if (listing_load(&more, path, true, err) < 0) {
		listing_free(&more);
		return -1;
	}
	size_t room = look->listing.count + more.count;
	struct listed *grown = reallocarray(look->listing.entries, room + 1, sizeof(*grown));
	if (!grown) {
		listing_free(&more);
		return husk_fail_memory(err);
	}
	if (more.count)
		memcpy(grown + look->listing.count, more.entries, more.count * sizeof(*grown));
	look->listing.entries = grown;
	look->listing.count = look->listing.room = room;
	free(more.entries);
	return 0;
}

static int compare_listed(const void *a, const void *b)
{
	return listing_compare(((const struct listed *)a)->change.file.path,
			       ((const struct listed *)b)->change.file.path);
}

static int compare_files(const void *a, const void *b)
{
	return strcmp(((const struct husk_file *)a)->path, ((const struct husk_file *)b)->path);
}

static bool has_name(const struct husk_file *sorted, size_t count, const char *path)
{
	const struct husk_file key = { .path = (char *)path };

	return count && bsearch(&key, sorted, count, sizeof(key), compare_files);
}

/* A name came or went in this directory. `count`: of the touched entries, which are sorted. */
static int look_into(struct look *look, const char *relative, size_t count, struct husk_error *err)
{
	const struct record *record = look->record;
	cleanup_free char *path = str_format("%s%s%s", record->path, *relative ? "/" : "", relative);
	struct husk_file *names = NULL;
	struct husk_error why = { 0 };
	size_t found = 0, first, below = entries_below(record, relative, &first),
	       depth = *relative ? strlen(relative) + 1 : 0;
	int result = 0;

	if (!path)
		return husk_fail_memory(err);
	if (husk_file_list(look->husk, record->sandbox, path, 1, &names, &found, &why) < 0) {
		if (why.code == HUSK_NOT_FOUND || why.code == HUSK_INVALID) /* it has gone, or is a file now */
			return 0;
		return husk_fail(err, why.code, "%s", why.message);
	}
	if (found)
		qsort(names, found, sizeof(*names), compare_files);
	for (size_t i = first; i < first + below; i++) {
		const char *entry = record->entries[i].path;
		cleanup_free char *full = strchr(entry + depth, '/') ? NULL : str_format("%s/%s", record->path, entry);
		if (full && !has_name(names, found, full))
			set_fates(look, entry, true, FATE_GONE);
	}
	for (size_t i = 0; i < found && result == 0; i++) {
		const struct listed key = { .change.file.path = names[i].path };
		const char *name = strlen(names[i].path) > look->skip ? names[i].path + look->skip : NULL;
		const struct record_entry *known = name ? record_find(record, name) : NULL;
		if (name && !(known && known->version.type) &&
		    !(count && bsearch(&key, look->listing.entries, count, sizeof(key), compare_listed)))
			result = take_whole(look, name, err);
	}
	husk_file_list_free(names, found);
	return result;
}

/* Names that the sandbox had removed, and that a rewind brought back with their old times: their directories are listed. */
static int look_for_returned(struct look *look, size_t count, struct husk_error *err)
{
	cleanup_free char *last = NULL;

	for (size_t i = 0; i < look->record->count; i++) {
		const struct record_entry *entry = &look->record->entries[i];
		const char *slash = strrchr(entry->path, '/');
		if (entry->version.type)
			continue;
		cleanup_free char *parent = strndup(entry->path, slash ? (size_t)(slash - entry->path) : 0);
		if (!parent)
			return husk_fail_memory(err);
		if (str_equal(parent, last))
			continue;
		if (look_into(look, parent, count, err) < 0)
			return -1;
		free(last);
		last = steal_pointer(parent);
	}
	return 0;
}

/* Every touched directory: another one than the record's is listed as a whole, and in the same one names are compared. */
static int look_at_directories(struct look *look, struct husk_error *err)
{
	size_t count = look->listing.count;

	for (size_t i = 0; i < count; i++) {
		const struct husk_file *file = &look->listing.entries[i].change.file;
		const char *relative = strlen(file->path) > look->skip ? file->path + look->skip : "";
		const struct record_entry *base = *relative ? record_find(look->record, relative) : NULL;
		int64_t inode = *relative ? (base ? base->inode : 0) : look->record->root;
		if (look->listing.entries[i].change.kind == HUSK_REMOVED)
			continue;
		if (file->type != HUSK_DIRECTORY) {
			if (base && base->version.type == HUSK_DIRECTORY)
				set_fates(look, relative, false, FATE_GONE);
			continue;
		}
		if (base && base->version.type != HUSK_DIRECTORY)
			base = NULL;
		int result = inode == look->listing.entries[i].inode ? look_into(look, relative, count, err)
								     : take_whole(look, relative, err);
		if (result < 0)
			return -1;
	}
	if (look_for_returned(look, count, err) < 0)
		return -1;
	if (look->listing.count)
		qsort(look->listing.entries, look->listing.count, sizeof(*look->listing.entries), compare_listed);
	return 0;
}

static int look_at(struct look *look, struct husk_error *err)
{
	const struct record *record = look->record;

	look->skip = strlen(record->path) + 1;
	look->listing.husk = look->husk;
	look->listing.sandbox = record->sandbox;
	look->fates = calloc(record->count + 1, 1);
	if (!look->fates)
		return husk_fail_memory(err);
	for (size_t i = 0; i < record->count; i++)
		if (record->entries[i].inode == 0 || record->entries[i].ctime_ns > record->since_ns)
			look->fates[i] = FATE_UNKNOWN;
	if (listing_load_since(&look->listing, record->path, record->since_ns, err) < 0)
		return -1;
	return look_at_directories(look, err);
}

/* ---- what git ignores ---- */

/* The new paths as git is asked about them. `top`: without those in a new directory, which is asked about first, because it may
 * hold very many. */
static int new_names(const struct work *work, int directory, bool top, struct names *out, struct husk_error *err)
{
	const char *above = NULL, *base;

	for (size_t i = 0; i < work->count; i++) {
		const struct work_item *item = &work->items[i];
		bool is_directory = item->theirs.type == HUSK_DIRECTORY;
		if (item->base.type || (top && above && is_below(item->path, above)))
			continue;
		/* git refuses to judge what is below a link. */
		cleanup_close int parent = host_parent(directory, item->path, &base);
		if (parent < 0 && (errno == ELOOP || errno == ENOTDIR))
			continue;
		cleanup_free char *name = str_format("%s%s", item->path, is_directory ? "/" : "");
		if (!name)
			return husk_fail_memory(err);
		if (names_add(out, name, err) < 0)
			return -1;
		if (is_directory)
			above = item->path;
	}
	return 0;
}

/* Both lists are in one order. A name with '/' at its end takes what is below along. */
static void drop_ignored(struct work *work, const struct names *ignored)
{
	const char *above = NULL;
	size_t kept = 0, next = 0;

	for (size_t i = 0; i < work->count; i++) {
		struct work_item item = work->items[i];
		const char *name = next < ignored->count ? ignored->items[next] : NULL;
		size_t size = name ? strlen(name) : 0;
		bool slash = size && name[size - 1] == '/';
		bool hit = name && strlen(item.path) == size - slash && strncmp(name, item.path, size - slash) == 0;
		next += hit;
		if (hit && slash)
			above = name;
		if (!item.base.type && (hit || (above && strncmp(item.path, above, strlen(above)) == 0))) {
			item_free(&item);
			work->ignored++;
			continue;
		}
		work->items[kept++] = item;
	}
	work->count = kept;
}

static int leave_ignored(const struct record *record, struct work *work, struct husk_error *err)
{
	cleanup_close int directory = open(record->directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (directory < 0)
		return husk_fail_errno(err, "cannot open directory '%s'", record->directory);
	for (int pass = 0; pass < 2; pass++) {
		cleanup_names struct names names = { 0 }, ignored = { 0 };
		if (new_names(work, directory, pass == 0, &names, err) < 0 ||
		    host_ignored(record->directory, &names, &ignored, err) < 0)
			return -1;
		drop_ignored(work, &ignored);
	}
	return 0;
}

/* ---- contents ---- */

struct fetch {
	struct work *work;
	uint64_t limit, size;
	int fd, number; /* errno of a failed write */
	EVP_MD_CTX *hash;
	bool too_large;
};

static int fetch_bytes(void *data, const void *bytes, size_t size)
{
	struct fetch *fetch = data;

	fetch->size += size;
	fetch->work->bytes += size;
	fetch->too_large = fetch->work->bytes > fetch->limit;
	if (fetch->too_large || EVP_DigestUpdate(fetch->hash, bytes, size) != 1)
		return -1;
	if (write_full(fetch->fd, bytes, size) == 0)
		return 0;
	fetch->number = errno;
	return -1;
}

/* Ends the call. */
static int fetch_file(struct call *call, struct work_item *item, struct fetch *fetch, struct husk_error *err)
{
	unsigned char digest[EVP_MAX_MD_SIZE];

	if (EVP_DigestInit_ex(fetch->hash, EVP_sha256(), NULL) != 1) {
		call_free(call);
		return husk_fail_memory(err);
	}
	if (file_read_end(call, fetch_bytes, fetch, err) < 0) {
		errno = fetch->number;
		if (fetch->number)
			return husk_fail_errno(err, "cannot store '%s'", item->path);
		if (fetch->too_large)
			return husk_fail(
				err, HUSK_LIMIT,
				"the changes are more than %llu MiB; nothing was written (--limit SIZE allows more)",
				(unsigned long long)(fetch->limit >> 20));
		return -1;
	}
	if (EVP_DigestFinal_ex(fetch->hash, digest, NULL) != 1)
		return husk_fail_memory(err);
	for (size_t i = 0; i < 32; i++)
		snprintf(item->theirs.hash + 2 * i, 3, "%02x", digest[i]);
	item->theirs.size = fetch->size;
	return 0;
}

/* Ends the call. 1: the file has gone meanwhile. */
static int fetch_item(struct call *call, struct work *work, struct work_item *item, int stage, uint64_t limit,
		      struct husk_error *err)
{
	char name[24];
	struct husk_error why = { 0 };

	snprintf(name, sizeof(name), "%zu", item->number);
	cleanup_close int fd = openat(stage, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	struct fetch fetch = { .work = work, .limit = limit, .fd = fd, .hash = EVP_MD_CTX_new() };
	if (fd < 0 || !fetch.hash) {
		call_free(call);
		EVP_MD_CTX_free(fetch.hash);
		return fd < 0 ? husk_fail_errno(err, "cannot store '%s'", item->path) : husk_fail_memory(err);
	}
	int result = fetch_file(call, item, &fetch, &why);
	EVP_MD_CTX_free(fetch.hash);
	if (result < 0 && why.code == HUSK_NOT_FOUND)
		return 1;
	if (result < 0) {
		if (err)
			*err = why;
		return -1;
	}
	return 0;
}

/* Reads that are under way. One after the other, each would wait for the guest. */
struct ahead {
	struct call *calls[AHEAD]; /* of item i: at i % AHEAD */
	size_t next;               /* the first item that is not asked for yet */
};

static void ahead_close(struct ahead *ahead)
{
	for (size_t i = 0; i < AHEAD; i++)
		call_free(ahead->calls[i]);
}

/* Asks for the file of item `at` and for the files after it. */
static int ask_ahead(struct husk *husk, const struct record *record, const struct work *work, size_t at,
		     struct ahead *ahead, struct husk_error *err)
{
	for (; ahead->next < MIN(work->count, at + AHEAD); ahead->next++) {
		const struct work_item *item = &work->items[ahead->next];
		cleanup_free char *path = str_format("%s/%s", record->path, item->path);

		if (!path)
			return husk_fail_memory(err);
		if (item->theirs.type == HUSK_FILE &&
		    file_read_begin(husk, record->sandbox, path, &ahead->calls[ahead->next % AHEAD], err) < 0)
			return -1;
	}
	return 0;
}

/* Fetches files, and drops what turns out to be as it was. */
static int fetch_all(struct husk *husk, struct record *record, struct work *work, int stage, uint64_t limit,
		     struct husk_error *err)
{
	cleanup(ahead_close) struct ahead ahead = { 0 };
	size_t kept = 0;
	int result = 0;

	for (size_t i = 0; i < work->count; i++) {
		int gone = result;
		if (result == 0 && ask_ahead(husk, record, work, i, &ahead, err) < 0)
			gone = -1;
		struct work_item item = work->items[i];
		if (gone == 0 && item.theirs.type == HUSK_FILE)
			gone = fetch_item(steal_pointer(ahead.calls[i % AHEAD]), work, &item, stage, limit, err);
		if (gone < 0)
			result = -1;
		bool same = gone == 0 && version_same(&item.base, &item.theirs);
		struct record_entry *entry = same ? record_find(record, item.path) : NULL;
		if (entry) {
			entry->inode = item.inode;
			entry->ctime_ns = item.ctime_ns;
		}
		if (gone > 0 || same)
			item_free(&item);
		else
			work->items[kept++] = item;
	}
	work->count = kept;
	return result;
}

int stage_text(int stage, size_t number, struct buf *out, struct husk_error *err)
{
	char name[24];

	snprintf(name, sizeof(name), "%zu", number);
	cleanup_close int fd = openat(stage, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0 || buf_reserve(out, VERSION_TEXT_MAX + 2) < 0)
		return husk_fail_errno(err, "cannot read a staged file");
	ssize_t size = read_full(fd, out->data, VERSION_TEXT_MAX + 1);
	if (size < 0)
		return husk_fail_errno(err, "cannot read a staged file");
	out->size = (size_t)size;
	out->data[out->size] = '\0';
	return text_is_plain((struct text){ out->data, out->size });
}

/* The directory itself: without it every file would look removed. */
static int check_root(struct husk *husk, const struct record *record, struct husk_error *err)
{
	struct husk_file root = { 0 };
	struct husk_error why = { 0 };

	int found = husk_file_stat(husk, record->sandbox, record->path, false, &root, &why);
	enum husk_file_type type = root.type;
	husk_file_free(&root);
	if (found < 0 && why.code != HUSK_NOT_FOUND)
		return husk_fail(err, why.code, "%s", why.message);
	if (found < 0 || type != HUSK_DIRECTORY)
		return husk_fail(err, HUSK_GONE, "sandbox %s has no directory '%s' any more", record->sandbox,
				 record->path);
	return 0;
}

/* ---- some paths ---- */

/* A directory that both have is not looked into: what changes in it has paths of its own. 1: nothing to do. */
static int is_known_directory(const struct look *look, const char *path, struct husk_error *err)
{
	const struct record_entry *base = record_find(look->record, path);
	cleanup_free char *full = str_format("%s/%s", look->record->path, path);
	struct husk_file file = { 0 };
	struct husk_error why = { 0 };

	if (!full)
		return husk_fail_memory(err);
	if (!base || base->version.type != HUSK_DIRECTORY)
		return 0;
	int found = husk_file_stat(look->husk, look->record->sandbox, full, false, &file, &why);
	bool same = found == 0 && file.type == HUSK_DIRECTORY;
	husk_file_free(&file);
	if (found < 0 && why.code != HUSK_NOT_FOUND && why.code != HUSK_INVALID)
		return husk_fail(err, why.code, "%s", why.message);
	return same;
}

/* One path and what is below: the guest's list beside the record's entries. An entry that is not in the list is looked at by itself,
 * because a file that is as in the template is not listed. */
static int scan_path(struct look *look, const char *path, struct work *work, struct husk_error *err)
{
	const struct record *record = look->record;
	cleanup_free char *full = str_format("%s/%s", record->path, path);
	cleanup_listing struct listing listing = { .husk = look->husk, .sandbox = record->sandbox };
	size_t i = record_lower(record, path), j = 0;
	int result = is_known_directory(look, path, err);

	if (result != 0)
		return MIN(result, 0);
	if (!full)
		return husk_fail_memory(err);
	if (listing_load(&listing, full, true, err) < 0)
		return -1;
	while (result == 0) {
		const struct record_entry *base = i < record->count ? &record->entries[i] : NULL;
		const struct listed *listed = j < listing.count ? &listing.entries[j] : NULL;
		if (base && !str_equal(base->path, path) && !is_below(base->path, path))
			base = NULL;
		const char *found = listed ? listed->change.file.path : NULL;
		/* The list is the guest's: it may have other paths than those that were asked for. */
		if (listed &&
		    (listed->change.kind == HUSK_REMOVED || (!str_equal(found, full) && !is_below(found, full)))) {
			j++;
			continue;
		}
		if (!base && !listed)
			break;
		const char *name = listed ? found + look->skip : NULL;
		int order = !base ? 1 : !listed ? -1 : listing_compare(base->path, name);
		i += order <= 0;
		j += order >= 0;
		if (order >= 0)
			result = add_found(work, record, listed, name, err);
		else if (!name_refused(base->path))
			result = add_unknown(look, work, base, err);
	}
	return result;
}

int work_scan_paths(struct husk *husk, struct record *record, const struct names *paths, int stage, uint64_t limit,
		    struct work *out, struct husk_error *err)
{
	struct look look = { .husk = husk, .record = record, .skip = strlen(record->path) + 1 };
	const char *above = NULL;

	if (check_root(husk, record, err) < 0)
		return -1;
	for (size_t i = 0; i < paths->count; i++) {
		const char *path = paths->items[i];
		if (name_refused(path) || (above && (str_equal(path, above) || is_below(path, above))))
			continue;
		size_t before = out->count;
		if (scan_path(&look, path, out, err) < 0)
			return -1;
		if (out->count > before) /* what is below was listed too */
			above = path;
	}
	if (!record->all && leave_ignored(record, out, err) < 0)
		return -1;
	return fetch_all(husk, record, out, stage, limit, err);
}

/* ---- all of it ---- */

int work_scan(struct husk *husk, struct record *record, int stage, uint64_t limit, struct work *out,
	      struct husk_error *err)
{
	cleanup(look_free) struct look look = { .husk = husk, .record = record };

	if (check_root(husk, record, err) < 0 || look_at(&look, err) < 0 || compare_lists(&look, out, err) < 0)
		return -1;
	if (!record->all && leave_ignored(record, out, err) < 0)
		return -1;
	return fetch_all(husk, record, out, stage, limit, err);
}
