/*
 * husk_workspace_bring: a directory of the caller goes into a sandbox as a tar stream, and each file is remembered as it was sent
 * (record.h). Nothing of the host is mounted: the guest gets a copy. A thread packs, and the call sends.
 */
#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "client/listing.h"
#include "workspace/host.h"
#include "workspace/record.h"
#include "workspace/redact.h"

#define CHUNK (256u << 10)
#define CONFIG_MAX (1u << 20) /* of git, which is read as a whole */
#define WORKSPACE_PATH "/workspace"

struct bring {
	const struct husk_workspace_options *options;
	struct record *record;
	struct names names;
	int directory; /* of the caller */
	int in, out;   /* the pipe: the call reads, the thread writes */
	atomic_bool failed;
	struct husk_error err; /* of the thread */
};

static void bring_free(struct bring *bring)
{
	names_free(&bring->names);
	fd_close(&bring->directory);
	fd_close(&bring->in);
	fd_close(&bring->out);
}

static void leave_out(const struct bring *bring, const char *name, const char *why)
{
	if (bring->options->left_out)
		bring->options->left_out(bring->options->data, name, why);
}

/* ---- packing ---- */

static void free_archive(struct archive **archive)
{
	archive_write_free(*archive);
}

static void free_entry(struct archive_entry **entry)
{
	archive_entry_free(*entry);
}

static int fail_archive(struct archive *archive, const char *name, struct husk_error *err)
{
	const char *text = archive_error_string(archive);

	return husk_fail(err, HUSK_INTERNAL, "cannot send '%s': %s", name, text ? text : "no reason given");
}

/* The header promised the size: a file that has shrunk meanwhile is filled up with zeros. The hash is of what is sent. */
static int send_content(struct archive *archive, int fd, uint64_t size, EVP_MD_CTX *hash, struct buf *keep,
			const char *name, struct husk_error *err)
{
	cleanup_free char *chunk = malloc(CHUNK);

	if (!chunk)
		return husk_fail_memory(err);
	for (uint64_t left = size; left > 0;) {
		size_t part = (size_t)MIN(left, CHUNK);
		ssize_t got = read_full(fd, chunk, part);
		if (got < 0)
			return husk_fail_errno(err, "cannot read '%s'", name);
		memset(chunk + got, 0, part - (size_t)got);
		if (EVP_DigestUpdate(hash, chunk, part) != 1 || (keep && buf_append(keep, chunk, part) < 0))
			return husk_fail_memory(err);
		if (archive_write_data(archive, chunk, part) < 0)
			return fail_archive(archive, name, err);
		left -= part;
	}
	return 0;
}

static int pack_file(struct bring *bring, struct archive *archive, int fd, struct record_entry *entry,
		     struct husk_error *err)
{
	/* Nothing in .git is ever merged as text. */
	bool keep = entry->version.size <= VERSION_TEXT_MAX && !name_refused(entry->path);
	cleanup_buf struct buf content = { 0 };
	unsigned char digest[EVP_MAX_MD_SIZE];
	EVP_MD_CTX *hash = EVP_MD_CTX_new();
	int result = hash && EVP_DigestInit_ex(hash, EVP_sha256(), NULL) == 1 ? 0 : husk_fail_memory(err);

	if (result == 0)
		result = send_content(archive, fd, entry->version.size, hash, keep ? &content : NULL, entry->path, err);
	if (result == 0 && EVP_DigestFinal_ex(hash, digest, NULL) != 1)
		result = husk_fail_memory(err);
	EVP_MD_CTX_free(hash);
	for (size_t i = 0; result == 0 && i < 32; i++)
		snprintf(entry->version.hash + 2 * i, 3, "%02x", digest[i]);
	if (result == 0 && keep)
		result = record_keep(bring->record, entry, (struct text){ content.data, content.size }, err);
	return result;
}

static int write_header(struct archive *archive, const struct stat *status, const struct version *version,
			const char *name, struct husk_error *err)
{
	cleanup(free_entry) struct archive_entry *entry = archive_entry_new();

	if (!entry)
		return husk_fail_memory(err);
	archive_entry_set_pathname(entry, name);
	archive_entry_set_mode(entry, (status->st_mode & S_IFMT) | version->mode);
	archive_entry_set_mtime(entry, status->st_mtim.tv_sec, 0);
	if (version->type == HUSK_FILE)
		archive_entry_set_size(entry, status->st_size);
	if (version->target)
		archive_entry_set_symlink(entry, version->target);
	return archive_write_header(archive, entry) < ARCHIVE_WARN ? fail_archive(archive, name, err) : 0;
}

/* NULL, or why the entry stays at home. */
static const char *judge(const char *name, const struct stat *status, const char *target)
{
	if (S_ISLNK(status->st_mode))
		return target && link_stays_inside(name, target) ? NULL : "it is a link that leads outside";
	if (S_ISREG(status->st_mode) || S_ISDIR(status->st_mode))
		return NULL;
	return "it is a socket, a pipe or a device";
}

/* git's configuration without credentials takes the place of the file. */
static int redact_file(const struct bring *bring, const char *name, int *fd, struct stat *status,
		       struct husk_error *err)
{
	cleanup_buf struct buf text = { 0 }, out = { 0 };

	if (!redact_applies(name))
		return 0;
	if (status->st_size > (off_t)CONFIG_MAX)
		return husk_fail(err, HUSK_LIMIT, "'%s' is larger than %u bytes", name, CONFIG_MAX);
	if (buf_reserve(&text, (size_t)status->st_size + 1) < 0)
		return husk_fail_memory(err);
	ssize_t size = pread(*fd, text.data, (size_t)status->st_size, 0);
	if (size < 0)
		return husk_fail_errno(err, "cannot read '%s'", name);
	int changed = redact_config(text.data, (size_t)size, &out);
	if (changed <= 0)
		return changed < 0 ? husk_fail_memory(err) : 0;
	cleanup_close int copy = memfd_create("husk-config", MFD_CLOEXEC);
	if (copy < 0 || write_full(copy, out.data, out.size) < 0 || lseek(copy, 0, SEEK_SET) < 0)
		return husk_fail_errno(err, "cannot copy '%s'", name);
	fd_close(fd);
	*fd = steal_fd(&copy);
	status->st_size = (off_t)out.size;
	leave_out(bring, name, "the credentials in it stay here; the rest of it went in");
	return 0;
}

static int pack_entry(struct bring *bring, struct archive *archive, const char *name, struct husk_error *err)
{
	const char *base;
	struct stat status;
	char target[4096] = "";
	cleanup_close int parent = host_parent(bring->directory, name, &base);
	cleanup_close int fd = -1;

	if (parent < 0 || fstatat(parent, base, &status, AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT ? 0 : husk_fail_errno(err, "cannot look at '%s'", name);
	if (S_ISLNK(status.st_mode) && readlinkat(parent, base, target, sizeof(target) - 1) < 0)
		return husk_fail_errno(err, "cannot read link '%s'", name);
	const char *why = judge(name, &status, *target ? target : NULL);
	if (why) {
		leave_out(bring, name, why);
		return 0;
	}
	if (S_ISREG(status.st_mode)) {
		fd = openat(parent, base, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
		if (fd < 0 || fstat(fd, &status) < 0)
			return husk_fail_errno(err, "cannot open '%s'", name);
		if (redact_file(bring, name, &fd, &status, err) < 0)
			return -1;
	}
	struct record_entry *entry = record_add(bring->record, name, err);
	if (!entry)
		return -1;
	entry->version = (struct version){ .type = fd >= 0   ? HUSK_FILE
						   : *target ? HUSK_SYMLINK
							     : HUSK_DIRECTORY,
					   .mode = status.st_mode & VERSION_MODE,
					   .size = (uint64_t)status.st_size,
					   .target = *target ? strdup(target) : NULL };
	if (write_header(archive, &status, &entry->version, name, err) < 0)
		return -1;
	return fd < 0 ? 0 : pack_file(bring, archive, fd, entry, err);
}

static int pack_all(struct bring *bring, struct husk_error *err)
{
	cleanup(free_archive) struct archive *archive = archive_write_new();

	if (!archive)
		return husk_fail_memory(err);
	/* GNU's format keeps names as bytes. */
	archive_write_set_format_gnutar(archive);
	archive_write_set_bytes_per_block(archive, CHUNK);
	archive_write_set_bytes_in_last_block(archive, 1);
	if (archive_write_open_fd(archive, bring->out) != ARCHIVE_OK)
		return fail_archive(archive, bring->record->directory, err);
	for (size_t i = 0; i < bring->names.count; i++)
		if (pack_entry(bring, archive, bring->names.items[i], err) < 0)
			return -1;
	return archive_write_close(archive) == ARCHIVE_OK ? 0 : fail_archive(archive, bring->record->directory, err);
}

static void *pack_main(void *data)
{
	struct bring *bring = data;

	/* Before the other end sees that the pipe is closed. */
	atomic_store(&bring->failed, pack_all(bring, &bring->err) < 0);
	fd_close(&bring->out);
	return NULL;
}

/* ---- sending ---- */

static ssize_t source_pipe(void *data, void *bytes, size_t size)
{
	struct bring *bring = data;
	ssize_t count;

	do
		count = read(bring->in, bytes, size);
	while (count < 0 && errno == EINTR);
	return count == 0 && atomic_load(&bring->failed) ? -1 : count;
}

static int send_tar(struct husk *husk, struct bring *bring, struct husk_error *err)
{
	pthread_t thread;
	int ends[2];

	if (pipe2(ends, O_CLOEXEC) < 0)
		return husk_fail_errno(err, "cannot make a pipe");
	bring->in = ends[0];
	bring->out = ends[1];
	errno = pthread_create(&thread, NULL, pack_main, bring);
	if (errno)
		return husk_fail_errno(err, "cannot start a thread");
	int result = husk_tar_write(husk, bring->record->sandbox, bring->record->path, bring->options->user,
				    source_pipe, bring, err);
	fd_close(&bring->in); /* a thread that still packs fails */
	pthread_join(thread, NULL);
	if (bring->failed && bring->err.code && result < 0 && err)
		*err = bring->err;
	return result;
}

/* Remembers which copy in the guest is the one that was sent. */
static int note_copies(struct husk *husk, struct record *record, struct husk_error *err)
{
	cleanup_listing struct listing listing = { .husk = husk, .sandbox = record->sandbox };
	size_t skip = strlen(record->path) + 1, noted = 0;

	if (listing_load(&listing, record->path, true, err) < 0)
		return -1;
	for (size_t i = 0; i < listing.count; i++) {
		const struct listed *listed = &listing.entries[i];
		const char *path = listed->change.file.path;
		struct record_entry *entry = strlen(path) > skip ? record_find(record, path + skip) : NULL;
		record->since_ns = MAX(record->since_ns, listed->ctime_ns);
		if (str_equal(path, record->path))
			record->root = listed->inode;
		if (!entry)
			continue;
		entry->inode = listed->inode;
		entry->ctime_ns = listed->ctime_ns;
		noted++;
	}
	if (noted == 0 && record->count > 0)
		return husk_fail_field(
			err, "path",
			"'%s' of the sandbox is a volume or has the same files already; choose another path",
			record->path);
	return 0;
}

/* Now, and not at the first apply, an agent is found that cannot list by time. */
static int check_agent(struct husk *husk, const struct record *record, struct husk_error *err)
{
	cleanup_listing struct listing listing = { .husk = husk, .sandbox = record->sandbox };

	return listing_load_since(&listing, record->path, record->since_ns, err);
}

/* ---- the call ---- */

static int fill_record(struct record *record, const struct husk_workspace_options *options, struct husk_error *err)
{
	const char *path = options->path ? options->path : WORKSPACE_PATH;
	size_t size = strlen(path);

	while (size > 1 && path[size - 1] == '/')
		size--;
	if (path[0] != '/' || size < 2 || size >= 4096)
		return husk_fail_field(err, "path", "'%s' is not an absolute path of a directory below /", path);
	record->directory = realpath(options->directory, NULL);
	if (!record->directory)
		return husk_fail_errno(err, "cannot open directory '%s'", options->directory);
	record->path = strndup(path, size);
	record->all = options->all;
	return record->path ? 0 : husk_fail_memory(err);
}

int husk_workspace_bring(struct husk *husk, const char *sandbox, const struct husk_workspace_options *options,
			 struct husk_error *err)
{
	cleanup_record struct record record = { 0 };
	cleanup(bring_free) struct bring bring = {
		.options = options, .record = &record, .directory = -1, .in = -1, .out = -1
	};
	struct husk_sandbox *found = NULL;
	bool is_git = false;

	if (!options->directory || !*options->directory)
		return husk_fail_field(err, "directory", "a workspace needs a directory");
	if (husk_inspect(husk, sandbox, &found, err) < 0)
		return -1;
	int result = record_begin(husk, found->id, &record, err);
	husk_sandbox_free(found);
	if (result < 0 || fill_record(&record, options, err) < 0)
		return -1;
	bring.directory = open(record.directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (bring.directory < 0)
		return husk_fail_errno(err, "cannot open directory '%s'", record.directory);
	if (host_list(record.directory, record.all, &bring.names, &is_git, err) < 0 || send_tar(husk, &bring, err) < 0)
		return -1;
	record.all = !is_git;
	record_sort(&record);
	if (note_copies(husk, &record, err) < 0 || check_agent(husk, &record, err) < 0)
		return -1;
	return record_save(&record, err);
}
