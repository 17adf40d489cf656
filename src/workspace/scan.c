/*
 * What a sandbox did to its workspace; see scan.h. The guest's agent lists the directory with inode and time of each file. What has
 * those of the record was not touched, and is not read: the cost is one list, and what has changed.
 */
#include "workspace/scan.h"

#include <fcntl.h>
#include <openssl/evp.h>

#include "client/listing.h"
#include "workspace/host.h"

#define LEFT_OUT_MAX 1000 /* that are listed */

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
	*item = (struct work_item){ .path = strdup(path), .number = work->count };
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
	item->theirs =
		(struct version){ .type = file->type, .mode = file->mode & VERSION_MODE, .size = file->size };
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

/* The record has it, the list has not. If the template has the directory, the guest's file may be the template's. */
static int add_missing(struct husk *husk, struct work *work, const struct record *record,
		       const struct record_entry *base, bool may_be_there, struct husk_error *err)
{
	const char *why = name_refused(base->path);
	struct listed found = { 0 };
	struct husk_error missing = { 0 };

	if (why)
		return leave_out(work, base->path, why, err);
	if (!may_be_there)
		return add_item(work, base->path, base, NULL, err);
	cleanup_free char *path = str_format("%s/%s", record->path, base->path);
	if (!path)
		return husk_fail_memory(err);
	if (husk_file_stat(husk, record->sandbox, path, false, &found.change.file, &missing) < 0) {
		/* INVALID: a file is where its directory was. */
		if (missing.code == HUSK_NOT_FOUND || missing.code == HUSK_INVALID)
			return add_item(work, base->path, base, NULL, err);
		return husk_fail(err, missing.code, "%s", missing.message);
	}
	int result = add_found(work, record, &found, base->path, err);
	husk_file_free(&found.change.file);
	return result;
}

static int compare_lists(struct husk *husk, const struct record *record, const struct listing *listing, bool in_template,
			 struct work *work, struct husk_error *err)
{
	size_t skip = strlen(record->path) + 1, i = 0, j = 0, known = 0;
	const char *gone = NULL; /* a directory that was removed: so was what is below */
	int result = 0;

	while (result == 0 && (i < record->count || j < listing->count)) {
		const struct record_entry *base = i < record->count ? &record->entries[i] : NULL;
		const struct listed *listed = j < listing->count ? &listing->entries[j] : NULL;
		const char *path = listed ? listed->change.file.path : NULL;
		if (listed && (listed->change.kind == HUSK_REMOVED || strlen(path) <= skip ||
			       strncmp(path, record->path, skip - 1) != 0 || path[skip - 1] != '/')) {
			j++;
			continue;
		}
		int order = !base ? 1 : !listed ? -1 : listing_compare(base->path, path + skip);
		i += order <= 0;
		j += order >= 0;
		known = work->count;
		if (order >= 0)
			result = add_found(work, record, listed, path + skip, err);
		else
			result = add_missing(husk, work, record, base, in_template && !(gone && is_below(base->path, gone)),
					     err);
		if (order < 0 && work->count > known && base->version.type == HUSK_DIRECTORY &&
		    !work->items[known].theirs.type && !(gone && is_below(base->path, gone)))
			gone = base->path;
	}
	return result;
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

static int fetch_file(struct husk *husk, const struct record *record, struct work_item *item, struct fetch *fetch,
		      struct husk_error *err)
{
	cleanup_free char *path = str_format("%s/%s", record->path, item->path);
	unsigned char digest[EVP_MAX_MD_SIZE];

	if (!path || EVP_DigestInit_ex(fetch->hash, EVP_sha256(), NULL) != 1)
		return husk_fail_memory(err);
	if (husk_file_read(husk, record->sandbox, path, 0, 0, fetch_bytes, fetch, err) < 0) {
		errno = fetch->number;
		if (fetch->number)
			return husk_fail_errno(err, "cannot store '%s'", item->path);
		if (fetch->too_large)
			return husk_fail(err, HUSK_LIMIT,
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

/* 1: it has gone meanwhile. */
static int fetch_item(struct husk *husk, const struct record *record, struct work *work, struct work_item *item,
		      int stage, uint64_t limit, struct husk_error *err)
{
	char name[24];
	struct husk_error why = { 0 };

	snprintf(name, sizeof(name), "%zu", item->number);
	cleanup_close int fd = openat(stage, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	struct fetch fetch = { .work = work, .limit = limit, .fd = fd, .hash = EVP_MD_CTX_new() };
	if (fd < 0 || !fetch.hash) {
		EVP_MD_CTX_free(fetch.hash);
		return fd < 0 ? husk_fail_errno(err, "cannot store '%s'", item->path) : husk_fail_memory(err);
	}
	int result = fetch_file(husk, record, item, &fetch, &why);
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

/* Fetches files, and drops what turns out to be as it was. */
static int fetch_all(struct husk *husk, struct record *record, struct work *work, int stage, uint64_t limit,
		     struct husk_error *err)
{
	size_t kept = 0;
	int result = 0;

	for (size_t i = 0; i < work->count; i++) {
		struct work_item item = work->items[i];
		int gone = 0;
		if (result == 0 && item.theirs.type == HUSK_FILE)
			gone = fetch_item(husk, record, work, &item, stage, limit, err);
		if (gone < 0)
			result = -1;
		bool same = result == 0 && gone == 0 && version_same(&item.base, &item.theirs);
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

/* ---- all of it ---- */

/* The directory itself: without it every file would look removed. */
static int check_root(struct husk *husk, const struct record *record, const struct listing *listing, bool *in_template,
		      struct husk_error *err)
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
	*in_template = true;
	for (size_t i = 0; i < listing->count; i++)
		if (str_equal(listing->entries[i].change.file.path, record->path))
			*in_template = listing->entries[i].change.kind != HUSK_ADDED;
	return 0;
}

int work_scan(struct husk *husk, struct record *record, int stage, uint64_t limit, struct work *out,
	      struct husk_error *err)
{
	cleanup_listing struct listing listing = { .husk = husk, .sandbox = record->sandbox };
	bool in_template = true;

	if (listing_load(&listing, record->path, true, err) < 0 ||
	    check_root(husk, record, &listing, &in_template, err) < 0 ||
	    compare_lists(husk, record, &listing, in_template, out, err) < 0)
		return -1;
	if (!record->all && leave_ignored(record, out, err) < 0)
		return -1;
	return fetch_all(husk, record, out, stage, limit, err);
}
