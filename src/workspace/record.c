/*
 * Records of workspaces; see record.h. The file of a record is text with NUL after each field, because names may hold any other
 * byte. It is the caller's own and not hostile, but it may be cut short by a full disk: it is replaced as a whole, and a damaged
 * one is an error, never a guess.
 */
#include "workspace/record.h"

#include <fcntl.h>
#include <inttypes.h>
#include <openssl/evp.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "client/listing.h"

#define RECORD_MAGIC "husk-workspace 1"
#define RECORD_MAX (512u << 20)
#define LINEAGE_MAX 64 /* forks of forks that are followed */

static void entry_free(struct record_entry *entry)
{
	free(entry->path);
	version_free(&entry->version);
}

void record_free(struct record *record)
{
	for (size_t i = 0; i < record->count; i++)
		entry_free(&record->entries[i]);
	free(record->entries);
	free(record->sandbox);
	free(record->directory);
	free(record->path);
	free(record->pack);
	free(record->home);
	*record = (struct record){ 0 };
}

/* ---- entries ---- */

struct record_entry *record_add(struct record *record, const char *path, struct husk_error *err)
{
	if (record->count == record->room) {
		size_t room = record->room ? record->room * 2 : 256;
		struct record_entry *grown = reallocarray(record->entries, room, sizeof(*grown));
		if (!grown) {
			husk_fail_memory(err);
			return NULL;
		}
		record->entries = grown;
		record->room = room;
	}
	struct record_entry *entry = &record->entries[record->count];
	*entry = (struct record_entry){ .path = strdup(path), .offset = -1 };
	if (!entry->path) {
		husk_fail_memory(err);
		return NULL;
	}
	record->count++;
	return entry;
}

static int by_path(const void *a, const void *b)
{
	return listing_compare(((const struct record_entry *)a)->path, ((const struct record_entry *)b)->path);
}

void record_sort(struct record *record)
{
	if (record->count)
		qsort(record->entries, record->count, sizeof(*record->entries), by_path);
}

struct record_entry *record_find(const struct record *record, const char *path)
{
	const struct record_entry key = { .path = (char *)path };

	return record->count ? bsearch(&key, record->entries, record->count, sizeof(key), by_path) : NULL;
}

size_t record_lower(const struct record *record, const char *path)
{
	size_t low = 0, high = record->count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;
		if (listing_compare(record->entries[middle].path, path) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* ---- content ---- */

static int open_pack(const struct record *record, int flags, struct husk_error *err)
{
	cleanup_free char *path = str_format("%s/%s", record->home, record->pack);
	int fd = path ? open(path, flags | O_CLOEXEC, 0600) : -1;

	if (fd < 0)
		return husk_fail_errno(err, "cannot open '%s'", path ? path : "a record");
	return fd;
}

int record_keep(struct record *record, struct record_entry *entry, struct text content, struct husk_error *err)
{
	entry->offset = -1;
	if (!text_is_plain(content))
		return 0;
	cleanup_close int fd = open_pack(record, O_WRONLY | O_CREAT, err);
	if (fd < 0)
		return -1;
	/* Forks share a pack: one writer at a time. */
	off_t end = flock(fd, LOCK_EX) < 0 ? -1 : lseek(fd, 0, SEEK_END);
	if (end < 0 || write_full(fd, content.data, content.size) < 0)
		return husk_fail_errno(err, "cannot write '%s/%s'", record->home, record->pack);
	entry->offset = end;
	return 0;
}

int record_content(const struct record *record, const struct record_entry *entry, struct buf *out,
		   struct husk_error *err)
{
	size_t size = (size_t)entry->version.size;

	if (entry->offset < 0 || entry->version.type != HUSK_FILE || entry->version.size > VERSION_TEXT_MAX)
		return 0;
	cleanup_close int fd = open_pack(record, O_RDONLY, err);
	if (fd < 0)
		return -1;
	if (buf_reserve(out, size + 1) < 0)
		return husk_fail_memory(err);
	if (lseek(fd, entry->offset, SEEK_SET) < 0 || read_full(fd, out->data + out->size, size) != (ssize_t)size)
		return husk_fail(err, HUSK_INTERNAL, "the record '%s/%s' is damaged; bring the directory in again",
				 record->home, record->pack);
	out->size += size;
	out->data[out->size] = '\0';
	return 1;
}

/* ---- the file ---- */

static char *record_file(const struct record *record, const char *id)
{
	return str_format("%s/%s.workspace", record->home, id);
}

static int append_field(struct buf *out, const char *text)
{
	return buf_append(out, text ? text : "", (text ? strlen(text) : 0) + 1);
}

static int append_entry(struct buf *out, const struct record_entry *entry)
{
	const struct version *version = &entry->version;
	int bad = buf_printf(out, "%d %o %" PRIu64 " %" PRId64 " %" PRId64 " %" PRId64 " %s", version->type,
			     version->mode, version->size, entry->inode, entry->ctime_ns, entry->offset,
			     *version->hash ? version->hash : "-");

	bad |= buf_append(out, "", 1);
	bad |= append_field(out, entry->path);
	return bad | append_field(out, version->target);
}

int record_save(struct record *record, struct husk_error *err)
{
	cleanup_buf struct buf out = { 0 };
	cleanup_free char *file = record_file(record, record->sandbox);
	int bad = append_field(&out, RECORD_MAGIC);

	bad |= append_field(&out, record->directory);
	bad |= append_field(&out, record->path);
	bad |= append_field(&out, record->pack);
	bad |= buf_printf(&out, "%d %" PRId64 " %" PRId64, record->all, record->since_ns, record->root);
	bad |= buf_append(&out, "", 1);
	for (size_t i = 0; i < record->count && !bad; i++)
		bad = append_entry(&out, &record->entries[i]);
	if (bad || !file)
		return husk_fail_memory(err);
	return file_write_atomic(file, out.data, out.size, 0600, err);
}

/* The next field; NULL at the end. */
static const char *next_field(const char **at, const char *end)
{
	const char *field = *at, *stop = field < end ? memchr(field, '\0', (size_t)(end - field)) : NULL;

	if (!stop)
		return NULL;
	*at = stop + 1;
	return field;
}

/* A number and the space after it. sscanf takes several times as long, and a workspace has many entries. */
static int64_t next_number(const char **at, int base)
{
	char *end = NULL;
	int64_t number = strtoll(*at, &end, base);

	*at = end > *at && *end == ' ' ? end + 1 : "";
	return number;
}

static int read_entry(struct record *record, const char *numbers, const char *path, const char *target,
		      struct husk_error *err)
{
	struct record_entry *entry = record_add(record, path, err);
	int type = 0;

	if (!entry)
		return -1;
	struct version *version = &entry->version;
	type = (int)next_number(&numbers, 10);
	version->mode = (uint32_t)next_number(&numbers, 8);
	version->size = (uint64_t)next_number(&numbers, 10);
	entry->inode = next_number(&numbers, 10);
	entry->ctime_ns = next_number(&numbers, 10);
	entry->offset = next_number(&numbers, 10);
	if (!*numbers || strlen(numbers) >= sizeof(version->hash))
		return husk_fail(err, HUSK_INTERNAL, "an entry is malformed");
	snprintf(version->hash, sizeof(version->hash), "%s", numbers);
	version->type = (enum husk_file_type)type;
	if (str_equal(version->hash, "-"))
		version->hash[0] = '\0';
	if (*target && !(version->target = strdup(target)))
		return husk_fail_memory(err);
	return 0;
}

static int read_record(struct record *record, const char *at, const char *end, struct husk_error *err)
{
	const char *head[5] = { 0 }, *numbers;

	for (size_t i = 0; i < ARRAY_SIZE(head); i++)
		if (!(head[i] = next_field(&at, end)))
			return husk_fail(err, HUSK_INTERNAL, "it ends too early");
	if (!str_equal(head[0], RECORD_MAGIC))
		return husk_fail(err, HUSK_INTERNAL, "it is not a record of this version");
	record->directory = strdup(head[1]);
	record->path = strdup(head[2]);
	record->pack = strdup(head[3]);
	int all = 0;
	if (sscanf(head[4], "%d %" SCNd64 " %" SCNd64, &all, &record->since_ns, &record->root) != 3)
		return husk_fail(err, HUSK_INTERNAL, "its head is malformed");
	record->all = all;
	if (!record->directory || !record->path || !record->pack)
		return husk_fail_memory(err);
	while ((numbers = next_field(&at, end))) {
		const char *path = next_field(&at, end), *target = path ? next_field(&at, end) : NULL;
		if (!target)
			return husk_fail(err, HUSK_INTERNAL, "it ends too early");
		if (read_entry(record, numbers, path, target, err) < 0)
			return -1;
	}
	return 0;
}

/* ---- where it is ---- */

/* One directory for each server: ids of another server's sandboxes are not known to this one. */
static char *remote_home(const char *url)
{
	const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
	unsigned char digest[EVP_MAX_MD_SIZE];
	char name[17] = "";

	if (EVP_Digest(url, strlen(url), digest, NULL, EVP_sha256(), NULL) != 1)
		return NULL;
	for (size_t i = 0; i < 8; i++)
		snprintf(name + 2 * i, 3, "%02x", digest[i]);
	if (state && state[0] == '/')
		return str_format("%s/husk/workspaces/%s", state, name);
	return str_format("%s/.local/state/husk/workspaces/%s", home && home[0] == '/' ? home : "/root", name);
}

static int find_home(struct husk *husk, struct record *record, struct husk_error *err)
{
	record->home = husk->remote ? remote_home(husk_url(husk)) : path_workspaces(&husk->paths);
	if (!record->home)
		return husk_fail_memory(err);
	if (husk->is_view)
		return husk_fail(err, HUSK_UNAVAILABLE, "a workspace is a directory of the caller, not of the server");
	return dir_make(record->home, 0700, err);
}

static void free_sandbox(struct husk_sandbox **sandbox)
{
	husk_sandbox_free(*sandbox);
}

/* The sandbox that this one was made from, through a snapshot too; NULL: none. */
static char *parent_of(struct husk *husk, const struct husk_sandbox *sandbox)
{
	struct husk_snapshot **list = NULL;
	char *found = NULL;

	if (!sandbox->parent)
		return NULL;
	if (str_starts(sandbox->parent, "sb-"))
		return strdup(sandbox->parent);
	if (husk_snapshot_list(husk, &list, NULL) == 0)
		for (size_t i = 0; list[i] && !found; i++)
			if (str_equal(list[i]->id, sandbox->parent) && list[i]->sandbox)
				found = strdup(list[i]->sandbox);
	husk_snapshot_list_free(list);
	return found;
}

/* Calls `visit` with the id of the sandbox, then of the one that it came from, and so on, until it returns true. */
static int walk_lineage(struct husk *husk, const char *sandbox, bool (*visit)(void *data, const char *id), void *data,
			struct husk_error *err)
{
	cleanup_free char *word = strdup(sandbox);

	for (int depth = 0; word && depth < LINEAGE_MAX; depth++) {
		cleanup(free_sandbox) struct husk_sandbox *found = NULL;
		struct husk_error why = { 0 };
		if (husk_inspect(husk, word, &found, &why) < 0) {
			if (depth > 0) /* an ancestor that was cleared away */
				return visit(data, word);
			if (err)
				*err = why;
			return -1;
		}
		if (visit(data, found->id))
			return 1;
		free(word);
		word = parent_of(husk, found);
	}
	return 0;
}

struct search {
	struct record *record;
	char *first; /* the id of the sandbox itself */
	char *file;  /* the record that was found */
};

static bool has_record(void *data, const char *id)
{
	struct search *search = data;
	cleanup_free char *file = record_file(search->record, id);

	if (!search->first)
		search->first = strdup(id);
	if (!file || access(file, F_OK) < 0)
		return false;
	search->file = steal_pointer(file);
	return true;
}

int record_open(struct husk *husk, const char *sandbox, struct record *out, struct husk_error *err)
{
	cleanup_record struct record record = { 0 };
	struct search search = { .record = &record };
	size_t size = 0;

	if (find_home(husk, &record, err) < 0)
		return -1;
	int found = walk_lineage(husk, sandbox, has_record, &search, err);
	cleanup_free char *file = search.file;
	record.sandbox = search.first;
	if (found < 0)
		return -1;
	if (!file)
		return husk_fail(
			err, HUSK_NOT_FOUND,
			"sandbox %s has no workspace; it gets one when it is made (husk create --workspace DIR)",
			sandbox);
	cleanup_free char *content = file_read(file, RECORD_MAX, &size, err);
	if (!content)
		return -1;
	if (read_record(&record, content, content + size, err) < 0)
		return husk_wrap(err, "the record '%s' is damaged", file);
	*out = record;
	record = (struct record){ 0 };
	return 0;
}

/* ---- a new one ---- */

static bool add_id(void *data, const char *id)
{
	char ***used = data;

	strv_add(used, id);
	return false;
}

static bool is_used(char *const *used, const char *name)
{
	size_t size = strcspn(name, ".");

	for (; used && *used; used++)
		if (strlen(*used) == size && strncmp(*used, name, size) == 0)
			return true;
	return false;
}

/* Removes records that no live sandbox can use: its own, and those of the sandboxes that it came from, stay. */
static void clear_away(struct husk *husk, const struct record *record)
{
	static const struct husk_filter live = { 0 };
	struct husk_sandbox **list = NULL;
	cleanup_strv char **used = NULL;
	cleanup_dir DIR *dir = opendir(record->home);

	if (!dir || husk_list(husk, &live, &list, NULL) < 0)
		return;
	for (size_t i = 0; list[i]; i++)
		walk_lineage(husk, list[i]->id, add_id, &used, NULL);
	husk_sandbox_list_free(list);
	for (struct dirent *entry; (entry = readdir(dir));)
		if (entry->d_name[0] != '.' && !is_used(used, entry->d_name))
			unlinkat(dirfd(dir), entry->d_name, 0);
}

int record_begin(struct husk *husk, const char *id, struct record *out, struct husk_error *err)
{
	cleanup_record struct record record = { .sandbox = strdup(id), .pack = str_format("%s.pack", id) };

	if (!record.sandbox || !record.pack)
		return husk_fail_memory(err);
	if (find_home(husk, &record, err) < 0)
		return -1;
	clear_away(husk, &record);
	*out = record;
	record = (struct record){ 0 };
	return 0;
}
