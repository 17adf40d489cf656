/*
 * See push.h. A path goes through three looks:
 *
 *     before    the scan of this round: the sandbox has the base
 *     commit    the agent renames what it finds there into the stage ("old-7"), and the new file into its place
 *     after     old-7 is compared with the base: if a program wrote in between, its file goes back
 *
 * A directory is removed only if nothing else is in it: files that git ignores are the sandbox's own.
 */
#include "workspace/push.h"

#include <openssl/evp.h>

#include "client/listing.h"
#include "workspace/apply.h"
#include "workspace/commit.h"

#define NONE SIZE_MAX

struct item {
	const char *path;
	struct version base, ours;
	struct buf content;        /* of text that is kept as the next base */
	size_t removed_at, put_at; /* steps of the commit; NONE: there is none */
	bool only_mode, skip;
	bool kept;  /* `content` is the whole file */
	bool fresh; /* the record has no entry for the path */
};

struct push {
	struct sync *sync;
	struct item *items;
	size_t count;
	struct commit commit;
	uint64_t bytes, limit;
};

static void push_free(struct push *push)
{
	commit_end(&push->commit);
	for (size_t i = 0; i < push->count; i++) {
		version_free(&push->items[i].base);
		version_free(&push->items[i].ours);
		buf_free(&push->items[i].content);
	}
	free(push->items);
}

static char *guest_path(const struct push *push, const char *path)
{
	return str_format("%s/%s", push->sync->record.path, path);
}

/* ---- which ---- */

static bool has_name(const struct names *sorted, const char *name)
{
	for (size_t low = 0, high = sorted->count; low < high;) {
		size_t middle = low + (high - low) / 2;
		int order = listing_compare(sorted->items[middle], name);
		if (order == 0)
			return true;
		if (order < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return false;
}

static bool may_go(const struct item *item)
{
	const struct version *ours = &item->ours, *base = &item->base;

	if (ours->type == HUSK_OTHER || version_same(base, ours))
		return false;
	if (ours->type == HUSK_DIRECTORY && base->type == HUSK_DIRECTORY)
		return false;
	return ours->type != HUSK_SYMLINK || link_stays_inside(item->path, ours->target ? ours->target : "");
}

static int collect(struct push *push, const struct names *names, struct husk_error *err)
{
	struct sync *sync = push->sync;

	push->items = calloc(names->count + 1, sizeof(*push->items));
	if (!push->items)
		return husk_fail_memory(err);
	for (size_t i = 0; i < names->count; i++) {
		struct item *item = &push->items[push->count];
		const struct record_entry *entry = record_find(&sync->record, names->items[i]);
		bool in_the_way = false;
		*item = (struct item){ .path = names->items[i], .removed_at = NONE, .put_at = NONE };
		if (has_name(&sync->conflicts, item->path))
			continue;
		push->count++; /* from here on push_free frees it */
		if ((entry && version_copy(&entry->version, &item->base, err) < 0) ||
		    host_version(sync->directory, item->path, &item->ours, NULL, &in_the_way, err) < 0)
			return -1;
		if (may_go(item))
			continue;
		version_free(&item->base);
		version_free(&item->ours);
		push->count--;
	}
	return 0;
}

static struct item *find_item(const struct push *push, const char *path)
{
	size_t low = 0, high = push->count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;
		int order = listing_compare(push->items[middle].path, path);
		if (order == 0)
			return &push->items[middle];
		if (order < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return NULL;
}

/* Does the guest's directory hold anything that does not go with it? */
static int has_more(const struct push *push, const struct item *item, struct husk_error *err)
{
	cleanup_free char *path = guest_path(push, item->path);
	size_t skip = strlen(push->sync->record.path) + 1, count = 0;
	struct husk_file *list = NULL;
	struct husk_error why = { 0 };
	int more = 0;

	if (!path)
		return husk_fail_memory(err);
	if (husk_file_list(push->sync->husk, push->sync->record.sandbox, path, 1, &list, &count, &why) < 0)
		return why.code == HUSK_NOT_FOUND || why.code == HUSK_INVALID
			       ? 0
			       : husk_fail(err, why.code, "%s", why.message);
	for (size_t i = 0; i < count && !more; i++) {
		const struct item *child = strlen(list[i].path) > skip ? find_item(push, list[i].path + skip) : NULL;
		more = !child || child->ours.type || child->skip;
	}
	husk_file_list_free(list, count);
	return more;
}

/* The last path first: a directory that stays keeps those above it. */
static int keep_directories(struct push *push, struct husk_error *err)
{
	for (size_t i = push->count; i-- > 0;) {
		struct item *item = &push->items[i];
		if (item->base.type != HUSK_DIRECTORY)
			continue;
		int more = has_more(push, item, err);
		if (more < 0)
			return -1;
		item->skip = more;
		if (more && item->ours.type)
			sync_note(push->sync, "'%s' is a file here and a directory with other files in the sandbox",
				  item->path);
	}
	return 0;
}

/* ---- sending ---- */

struct sending {
	struct push *push;
	struct item *item;
	EVP_MD_CTX *hash;
	int fd;
	bool too_large;
};

static ssize_t give_bytes(void *data, void *bytes, size_t size)
{
	struct sending *sending = data;
	struct item *item = sending->item;
	ssize_t got = read_full(sending->fd, bytes, size);

	if (got <= 0)
		return got;
	sending->push->bytes += (uint64_t)got;
	sending->too_large = sending->push->bytes > sending->push->limit;
	if (sending->too_large || EVP_DigestUpdate(sending->hash, bytes, (size_t)got) != 1)
		return -1;
	item->kept = item->kept && item->content.size + (size_t)got <= VERSION_TEXT_MAX;
	return item->kept && buf_append(&item->content, bytes, (size_t)got) < 0 ? -1 : got;
}

/* 1: what was sent is another version than the one that was decided about; an editor saves it just now. */
static int send_file(struct push *push, struct item *item, struct husk_error *err)
{
	struct sending sending = { .push = push, .item = item, .fd = host_open(push->sync->directory, item->path) };
	unsigned char digest[EVP_MAX_MD_SIZE] = { 0 };
	char text[VERSION_HASH] = "";

	if (sending.fd < 0)
		return 1;
	item->kept = true;
	sending.hash = EVP_MD_CTX_new();
	bool good = sending.hash && EVP_DigestInit_ex(sending.hash, EVP_sha256(), NULL) == 1;
	int result = good ? commit_send(&push->commit, give_bytes, &sending, item->ours.mode ? item->ours.mode : 0600,
					item->base.type == HUSK_FILE ? NULL : push->sync->user, err)
			  : husk_fail_memory(err);
	if (result == 0 && EVP_DigestFinal_ex(sending.hash, digest, NULL) != 1)
		result = husk_fail_memory(err);
	EVP_MD_CTX_free(sending.hash);
	close(sending.fd);
	if (result < 0 && sending.too_large)
		return husk_fail(
			err, HUSK_LIMIT,
			"the changes of the directory are more than %llu MiB; none was sent (--limit SIZE allows more)",
			(unsigned long long)(push->limit >> 20));
	if (result < 0)
		return -1;
	for (size_t i = 0; i < 32; i++)
		snprintf(text + 2 * i, 3, "%02x", digest[i]);
	return !str_equal(text, item->ours.hash);
}

static int put_item(struct push *push, struct item *item, const char *path, struct husk_error *err)
{
	size_t step = push->commit.steps;
	int result = 0;

	if (item->only_mode)
		return commit_mode(&push->commit, path, item->ours.mode, err);
	if (item->ours.type == HUSK_FILE)
		result = send_file(push, item, err);
	if (result > 0) {
		item->skip = true;
		return 0;
	}
	if (result == 0 && item->ours.type == HUSK_FILE)
		result = commit_put(&push->commit, path, err);
	else if (result == 0 && item->ours.type == HUSK_DIRECTORY)
		result = commit_directory(&push->commit, path, item->ours.mode | 0700, push->sync->user, err);
	else if (result == 0)
		result = commit_link(&push->commit, path, item->ours.target, err);
	item->put_at = step;
	return result;
}

static bool goes_first(const struct item *item)
{
	return item->base.type && (!item->ours.type || item->base.type == HUSK_DIRECTORY);
}

/* First what goes, the last path first; then what comes, parents first. */
static int plan_all(struct push *push, struct husk_error *err)
{
	for (int pass = 0; pass < 2; pass++)
		for (size_t i = 0; i < push->count; i++) {
			struct item *item = &push->items[pass ? i : push->count - 1 - i];
			cleanup_free char *path = guest_path(push, item->path);
			if (!path)
				return husk_fail_memory(err);
			if (item->skip || (pass ? !item->ours.type : !goes_first(item)))
				continue;
			if (!pass)
				item->removed_at = push->commit.steps;
			item->only_mode = item->base.type == HUSK_FILE && item->ours.type == HUSK_FILE &&
					  str_equal(item->base.hash, item->ours.hash);
			if ((pass ? put_item(push, item, path, err) : commit_remove(&push->commit, path, err)) < 0)
				return -1;
		}
	return 0;
}

/* ---- what was replaced ---- */

struct hashing {
	EVP_MD_CTX *hash;
	uint64_t rest; /* a guest could send without an end */
	bool too_long;
};

static int hash_bytes(void *data, const void *bytes, size_t size)
{
	struct hashing *hashing = data;

	hashing->too_long = size > hashing->rest;
	hashing->rest -= MIN(size, hashing->rest);
	return !hashing->too_long && EVP_DigestUpdate(hashing->hash, bytes, size) == 1 ? 0 : -1;
}

/* 1: the file of the guest has this content. */
static int has_content(const struct push *push, const char *path, const struct version *wanted, struct husk_error *err)
{
	unsigned char digest[EVP_MAX_MD_SIZE] = { 0 };
	char text[VERSION_HASH] = "";
	struct hashing hashing = { .hash = EVP_MD_CTX_new(), .rest = wanted->size };
	int result =
		hashing.hash && EVP_DigestInit_ex(hashing.hash, EVP_sha256(), NULL) == 1 ? 0 : husk_fail_memory(err);

	if (result == 0)
		result = husk_file_read(push->sync->husk, push->sync->record.sandbox, path, 0, 0, hash_bytes, &hashing,
					err);
	if (result == 0 && EVP_DigestFinal_ex(hashing.hash, digest, NULL) != 1)
		result = husk_fail_memory(err);
	EVP_MD_CTX_free(hashing.hash);
	if (result < 0)
		return hashing.too_long ? 0 : -1;
	for (size_t i = 0; i < 32; i++)
		snprintf(text + 2 * i, 3, "%02x", digest[i]);
	return str_equal(text, wanted->hash);
}

/* 1: what step N took away is this version. */
static int is_version(const struct push *push, const struct husk_file *old, const struct version *wanted,
		      struct husk_error *err)
{
	struct husk_file *list = NULL;
	size_t count = 0;

	if (old->type != wanted->type)
		return 0;
	if (old->type == HUSK_FILE)
		return old->size == wanted->size ? has_content(push, old->path, wanted, err) : 0;
	if (old->type == HUSK_SYMLINK)
		return str_equal(old->target, wanted->target);
	if (husk_file_list(push->sync->husk, push->sync->record.sandbox, old->path, 1, &list, &count, err) < 0)
		return -1;
	husk_file_list_free(list, count);
	return count == 0;
}

static const struct husk_file *find_old(const struct husk_file *list, size_t count, size_t step)
{
	char name[40];

	snprintf(name, sizeof(name), "/old-%zu", step);
	for (size_t i = 0; i < count; i++)
		if (str_ends(list[i].path, name))
			return &list[i];
	return NULL;
}

/* Compares what a step took away with what was expected there, and puts it back if it is something else. 1: it is. */
static int check_step(struct push *push, const struct item *item, size_t step, const struct version *wanted,
		      const struct husk_file *list, size_t count, struct husk_error *err)
{
	const struct husk_file *old = step == NONE ? NULL : find_old(list, count, step);
	cleanup_free char *path = guest_path(push, item->path);
	struct husk_error why = { 0 };

	if (!path)
		return husk_fail_memory(err);
	int same = old ? is_version(push, old, wanted, err) : 1;
	if (same != 0)
		return same < 0 ? -1 : 0;
	if (husk_file_move(push->sync->husk, push->sync->record.sandbox, old->path, path, &why) < 0) {
		push->commit.begun = false; /* the stage stays */
		sync_note(push->sync, "the sandbox changed '%s' meanwhile; its version is in %s", item->path,
			  old->path);
	}
	return 1;
}

static int check_all(struct push *push, struct husk_error *err)
{
	static const struct version nothing = { 0 };
	struct husk_file *list = NULL;
	size_t count = 0;
	int result =
		husk_file_list(push->sync->husk, push->sync->record.sandbox, push->commit.stage, 1, &list, &count, err);

	for (size_t i = 0; i < push->count && result == 0; i++) {
		struct item *item = &push->items[i];
		bool removed = item->removed_at != NONE;
		if (item->skip)
			continue;
		int put = check_step(push, item, item->put_at, removed ? &nothing : &item->base, list, count, err);
		int gone = put < 0 ? -1 : check_step(push, item, item->removed_at, &item->base, list, count, err);
		item->skip = put > 0 || gone > 0;
		result = MIN(put, gone) < 0 ? -1 : 0;
	}
	husk_file_list_free(list, count);
	return result;
}

/* ---- the base ---- */

static int renew(struct push *push, struct item *item, struct husk_error *err)
{
	struct record *record = &push->sync->record;
	struct record_entry *entry =
		item->fresh ? record_add(record, item->path, err) : record_find(record, item->path);

	if (!entry || version_copy(&item->ours, &entry->version, err) < 0)
		return -1;
	/* The copy in the guest is looked at again by the next scan, which knows its content then. */
	entry->inode = entry->ctime_ns = 0;
	if (item->only_mode)
		return 0;
	entry->offset = -1;
	if (item->ours.type != HUSK_FILE || !item->kept)
		return 0;
	return record_keep(record, entry,
			   (struct text){ item->content.data ? item->content.data : "", item->content.size }, err);
}

static void report(const struct sync *sync, const struct item *item)
{
	struct husk_sync_event event = { .path = item->path,
					 .to_sandbox = true,
					 .kind = !item->ours.type  ? HUSK_REMOVED
						 : item->base.type ? HUSK_CHANGED
								   : HUSK_ADDED };

	if (sync->options->report)
		sync->options->report(sync->options->data, &event);
}

static int renew_all(struct push *push, const struct names *quiet, struct husk_error *err)
{
	struct sync *sync = push->sync;
	size_t known = sync->record.count;

	for (size_t i = 0; i < push->count; i++) {
		struct item *item = &push->items[i];
		item->fresh = !record_find(&sync->record, item->path);
		if (!item->skip && !has_name(quiet, item->path))
			report(sync, item);
	}
	/* First the entries that there are, which are found in sorted order; then new ones. */
	for (int fresh = 0; fresh < 2; fresh++)
		for (size_t i = 0; i < push->count; i++) {
			struct item *item = &push->items[i];
			if (!item->skip && item->fresh == (fresh != 0) && renew(push, item, err) < 0)
				return -1;
		}
	if (sync->record.count > known)
		record_sort(&sync->record);
	sync->unsaved = true;
	return 0;
}

int push(struct sync *sync, const struct names *names, const struct names *quiet, struct husk_error *err)
{
	cleanup(push_free) struct push push = { .sync = sync,
						.commit.lock = -1,
						.limit = sync->options->limit_bytes ? sync->options->limit_bytes
										    : APPLY_LIMIT };

	if (collect(&push, names, err) < 0)
		return -1;
	if (push.count == 0)
		return 0;
	if (keep_directories(&push, err) < 0 ||
	    commit_begin_own(&push.commit, sync->husk, sync->record.sandbox, sync->stage, err) < 0 ||
	    plan_all(&push, err) < 0 || commit_finish(&push.commit, err) < 0 || check_all(&push, err) < 0)
		return -1;
	if (renew_all(&push, quiet, err) < 0)
		return -1;
	return sync->options->watch ? sync_mark(sync, err) : 0;
}
