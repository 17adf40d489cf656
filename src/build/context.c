/*
 * Reads the context of a build (context.h): finds sources, hashes them, writes them as a tar. Every path is opened with
 * openat2 below the context, so that no link leads outside.
 */
#include "build/context.h"

#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#define DEPTH_MAX 200
#define FILES_MAX 1000000u
#define SOURCES_MAX 100000u
#define IGNORE_MAX (1u << 20)
#define PIECE (256u << 10)

/* ---- opening ---- */

/* A path of the context; links are followed inside of it, except the last component with O_NOFOLLOW. "": the context. */
static int open_below(const struct context *context, const char *path, int flags)
{
	struct open_how how = { .flags = (uint64_t)(flags | O_CLOEXEC),
				.resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS };

	return (int)syscall(SYS_openat2, context->root, *path ? path : ".", &how, sizeof(how));
}

int context_open_file(const struct context *context, const char *path)
{
	return open_below(context, path, O_RDONLY | O_NONBLOCK);
}

static int read_ignored(struct context *out, const char *dockerfile, struct husk_error *err)
{
	cleanup_free char *beside = dockerfile ? str_format("%s.dockerignore", dockerfile) : NULL;
	cleanup_free char *own = str_format("%s/.dockerignore", out->path);
	const char *chosen = beside && access(beside, R_OK) == 0 ? beside : own;
	struct husk_error why = { 0 };

	if (!own)
		return husk_fail_memory(err);
	cleanup_free char *text = file_read(chosen, IGNORE_MAX, NULL, &why);
	if (!text)
		return why.code == HUSK_NOT_FOUND ? 0 : husk_fail(err, why.code, "%s", why.message);
	return ignore_parse(text, &out->ignored, err);
}

int context_begin(const char *path, const char *dockerfile, struct context *out, struct husk_error *err)
{
	*out = (struct context){ .root = -1 };
	if (!path)
		return 0;
	out->path = strdup(path);
	out->root = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (out->root < 0)
		husk_fail_errno(err, "the context '%s' cannot be read", path);
	if (out->root >= 0 && out->path && read_ignored(out, dockerfile, err) == 0)
		return 0;
	context_end(out);
	return -1;
}

void context_end(struct context *context)
{
	fd_close(&context->root);
	free(context->path);
	strv_free(context->ignored);
	*context = (struct context){ .root = -1 };
}

/* ---- sources ---- */

void context_sources_free(struct context_sources *sources)
{
	for (size_t i = 0; i < sources->count; i++)
		free(sources->items[i].path);
	free(sources->items);
	*sources = (struct context_sources){ 0 };
}

static int add_source(struct context_sources *out, const char *path, bool directory, struct husk_error *err)
{
	struct context_source *grown = reallocarray(out->items, out->count + 1, sizeof(*grown));
	char *copy = strdup(path);

	if (grown)
		out->items = grown;
	if (!grown || !copy || out->count >= SOURCES_MAX) {
		free(copy);
		return out->count >= SOURCES_MAX
			       ? husk_fail(err, HUSK_LIMIT, "a pattern matches more than %u files", SOURCES_MAX)
			       : husk_fail_memory(err);
	}
	grown[out->count++] = (struct context_source){ copy, directory };
	return 0;
}

/* Removes "./", "..", and slashes at the ends; a ".." at the top stays at the top. */
static char *clean(const char *word)
{
	cleanup_buf struct buf out = { 0 };

	while (*word) {
		size_t size = strcspn(word, "/");
		if (size == 2 && strncmp(word, "..", 2) == 0) {
			const char *slash = out.size ? memrchr(out.data, '/', out.size) : NULL;
			out.size = slash ? (size_t)(slash - out.data) : 0;
		} else if (size && !(size == 1 && *word == '.')) {
			if ((out.size && buf_append_string(&out, "/") < 0) || buf_append(&out, word, size) < 0)
				return NULL;
		}
		word += size + (word[size] == '/');
	}
	if (out.data)
		out.data[out.size] = '\0';
	return buf_steal(&out);
}

/* The names in a directory, sorted; the caller frees them. */
static int list_names(int fd, char ***out, struct husk_error *err)
{
	int copy = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	cleanup_dir DIR *dir = copy < 0 ? NULL : fdopendir(copy);

	if (!dir) {
		fd_close(&copy);
		return husk_fail_errno(err, "cannot read a directory of the context");
	}
	for (struct dirent *entry; (entry = readdir(dir));) {
		if (str_equal(entry->d_name, ".") || str_equal(entry->d_name, ".."))
			continue;
		if (strv_add(out, entry->d_name) < 0)
			return husk_fail_memory(err);
	}
	strv_sort(*out);
	return 0;
}

/* The files below `folder` that the rest of a pattern matches, component by component. */
static int find_pattern(const struct context *context, const char *folder, const char *pattern,
			struct context_sources *out, struct husk_error *err)
{
	size_t size = strcspn(pattern, "/");
	cleanup_free char *part = strndup(pattern, size);
	const char *rest = pattern[size] ? pattern + size + 1 : NULL;
	cleanup_close int fd = open_below(context, folder, O_RDONLY | O_DIRECTORY);
	cleanup_strv char **names = NULL;

	if (!part)
		return husk_fail_memory(err);
	if (fd < 0)
		return 0; /* not a directory */
	if (list_names(fd, &names, err) < 0)
		return -1;
	for (size_t i = 0; names && names[i]; i++) {
		cleanup_free char *path = str_format("%s%s%s", folder, *folder ? "/" : "", names[i]);
		struct stat status;
		if (!path)
			return husk_fail_memory(err);
		if (!pattern_match(part, names[i]) || (!rest && ignore_match(context->ignored, path)))
			continue;
		if (rest ? find_pattern(context, path, rest, out, err) < 0
			 : fstatat(fd, names[i], &status, AT_SYMLINK_NOFOLLOW) == 0 &&
				    add_source(out, path, S_ISDIR(status.st_mode), err) < 0)
			return -1;
	}
	return 0;
}

int context_find(const struct context *context, const char *word, struct context_sources *out, struct husk_error *err)
{
	cleanup_free char *path = clean(word);
	struct stat status;

	if (!path)
		return husk_fail_memory(err);
	if (context->root < 0)
		return husk_fail(err, HUSK_INVALID, "'%.120s' cannot be copied: this build has no context", word);
	if (pattern_is(path))
		return find_pattern(context, "", path, out, err);
	cleanup_close int fd = open_below(context, path, O_PATH | (context->links ? O_NOFOLLOW : 0));
	if (fd < 0 || fstat(fd, &status) < 0)
		return husk_fail(err, HUSK_INVALID, "'%.120s' is not in the context", word);
	if (*path && ignore_match(context->ignored, path)) {
		/* A folder that is left out may hold files that "!" patterns keep. */
		bool kept = false;
		for (char *const *at = context->ignored; S_ISDIR(status.st_mode) && *at; at++)
			kept |= **at == '!';
		if (!kept)
			return husk_fail(err, HUSK_INVALID, "'%.120s' is left out by .dockerignore", word);
	}
	return add_source(out, path, S_ISDIR(status.st_mode), err);
}

/* ---- walking ---- */

struct walk {
	const struct context *context;
	const struct context_target *target;
	EVP_MD_CTX *hash;        /* or */
	struct archive *archive; /* is written */
	size_t count;
	char piece[PIECE];
	struct husk_error *err;
};

static int hash_text(struct walk *walk, const char *text)
{
	return EVP_DigestUpdate(walk->hash, text, strlen(text) + 1) == 1 ? 0 : husk_fail_memory(walk->err);
}

static int pass_content(struct walk *walk, int fd, const char *name, int64_t size)
{
	while (size > 0) {
		ssize_t count = read_full(fd, walk->piece, (size_t)MIN(size, (int64_t)sizeof(walk->piece)));
		if (count <= 0)
			return count < 0 ? husk_fail_errno(walk->err, "cannot read '%s'", name)
					 : husk_fail(walk->err, HUSK_CONFLICT, "'%s' became shorter while it was read",
						     name);
		if (walk->hash && EVP_DigestUpdate(walk->hash, walk->piece, (size_t)count) != 1)
			return husk_fail_memory(walk->err);
		if (walk->archive && archive_write_data(walk->archive, walk->piece, (size_t)count) < 0)
			return husk_fail(walk->err, HUSK_INTERNAL, "cannot copy '%s': %s", name,
					 archive_error_string(walk->archive));
		size -= count;
	}
	return 0;
}

/* One entry under its name for the guest. `fd`: of a file, with its content. */
static int pass_entry(struct walk *walk, const char *name, const struct stat *status, const char *link, int fd)
{
	int64_t mode = walk->target && walk->target->mode >= 0 && !S_ISLNK(status->st_mode) ? walk->target->mode
											    : status->st_mode & 07777;
	int64_t size = S_ISREG(status->st_mode) ? status->st_size : 0;

	if (++walk->count > FILES_MAX)
		return husk_fail(walk->err, HUSK_LIMIT, "a source has more than %u files", FILES_MAX);
	if (walk->hash) {
		char line[96];
		snprintf(line, sizeof(line), "%o %lld %lld", (unsigned)(status->st_mode & S_IFMT), (long long)mode,
			 (long long)size);
		if (hash_text(walk, name) < 0 || hash_text(walk, line) < 0 || hash_text(walk, link ? link : "") < 0)
			return -1;
		return pass_content(walk, fd, name, size);
	}
	struct archive_entry *entry = archive_entry_new();
	if (!entry)
		return husk_fail_memory(walk->err);
	archive_entry_set_pathname(entry, name);
	archive_entry_set_mode(entry, (mode_t)((status->st_mode & S_IFMT) | (mode_t)mode));
	archive_entry_set_size(entry, size);
	archive_entry_set_mtime(entry, status->st_mtim.tv_sec, 0);
	if (link)
		archive_entry_set_symlink(entry, link);
	int result = archive_write_header(walk->archive, entry);
	archive_entry_free(entry);
	if (result < ARCHIVE_WARN)
		return husk_fail(walk->err, HUSK_INTERNAL, "cannot copy '%s': %s", name,
				 archive_error_string(walk->archive));
	return pass_content(walk, fd, name, size);
}

static int pass_any(struct walk *walk, const char *path, const char *name, int depth);

static int pass_directory(struct walk *walk, const char *path, const char *name, int fd, int depth)
{
	cleanup_strv char **names = NULL;

	if (depth > DEPTH_MAX)
		return husk_fail(walk->err, HUSK_LIMIT, "'%s' is more than %d folders deep", path, DEPTH_MAX);
	if (list_names(fd, &names, walk->err) < 0)
		return -1;
	for (size_t i = 0; names && names[i]; i++) {
		cleanup_free char *inside = str_format("%s%s%s", path, *path ? "/" : "", names[i]);
		cleanup_free char *called = str_format("%s%s%s", name, *name ? "/" : "", names[i]);
		if (!inside || !called)
			return husk_fail_memory(walk->err);
		if (pass_any(walk, inside, called, depth + 1) < 0)
			return -1;
	}
	return 0;
}

static int pass_link(struct walk *walk, const char *path, const char *name, const struct stat *status, int fd)
{
	char target[PATH_MAX];
	ssize_t size = readlinkat(fd, "", target, sizeof(target) - 1);

	if (size < 0)
		return husk_fail_errno(walk->err, "cannot read the link '%s'", path);
	target[size] = '\0';
	return pass_entry(walk, name, status, target, -1);
}

/* What is at `path`, under `name`; depth 0 is the source itself, which may be reached through a link. */
static int pass_any(struct walk *walk, const char *path, const char *name, int depth)
{
	bool ignored = *path && ignore_match(walk->context->ignored, path);
	cleanup_close int fd =
		open_below(walk->context, path, O_PATH | (depth || walk->context->links ? O_NOFOLLOW : 0));
	struct stat status;

	if (fd < 0 || fstat(fd, &status) < 0)
		return husk_fail_errno(walk->err, "cannot read '%s'", path);
	if (ignored && !S_ISDIR(status.st_mode))
		return 0;
	if (S_ISLNK(status.st_mode))
		return pass_link(walk, path, name, &status, fd);
	if (!S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode))
		return husk_fail(walk->err, HUSK_INVALID, "'%s' is a socket, pipe or device, which cannot be copied",
				 path);
	cleanup_close int opened =
		open_below(walk->context, path, O_RDONLY | O_NONBLOCK | (S_ISDIR(status.st_mode) ? O_DIRECTORY : 0));
	if (opened < 0 || fstat(opened, &status) < 0)
		return husk_fail_errno(walk->err, "cannot read '%s'", path);
	if (!S_ISDIR(status.st_mode))
		return pass_entry(walk, name, &status, NULL, opened);
	if (*name && !ignored && pass_entry(walk, name, &status, NULL, -1) < 0)
		return -1;
	return pass_directory(walk, path, name, opened, depth);
}

static int pass_source(struct walk *walk, const struct context_source *source)
{
	const char *slash = strrchr(source->path, '/'), *own = slash ? slash + 1 : source->path;
	const char *given = walk->target ? walk->target->name : NULL;

	return pass_any(walk, source->path, source->directory ? "" : given ? given : own, 0);
}

int context_digest(const struct context *context, const struct context_source *source, char out[static 65],
		   struct husk_error *err)
{
	cleanup_free struct walk *walk = calloc(1, sizeof(*walk));
	unsigned char bytes[EVP_MAX_MD_SIZE];
	unsigned size = 0;

	if (!walk)
		return husk_fail_memory(err);
	*walk = (struct walk){ .context = context, .hash = EVP_MD_CTX_new(), .err = err };
	int result = walk->hash && EVP_DigestInit_ex(walk->hash, EVP_sha256(), NULL) == 1 ? pass_source(walk, source)
											  : husk_fail_memory(err);
	if (result == 0 && EVP_DigestFinal_ex(walk->hash, bytes, &size) != 1)
		result = husk_fail_memory(err);
	EVP_MD_CTX_free(walk->hash);
	for (unsigned i = 0; result == 0 && i < size; i++)
		snprintf(out + 2 * i, 3, "%02x", bytes[i]);
	return result;
}

/* ---- tars ---- */

struct archive *context_tar_begin(int fd, struct husk_error *err)
{
	struct archive *archive = archive_write_new();

	if (archive && archive_write_set_format_gnutar(archive) == ARCHIVE_OK &&
	    archive_write_set_bytes_in_last_block(archive, 1) == ARCHIVE_OK &&
	    archive_write_open_fd(archive, fd) == ARCHIVE_OK)
		return archive;
	archive_write_free(archive);
	husk_fail_memory(err);
	return NULL;
}

int context_tar_add(const struct context *context, const struct context_source *source,
		    const struct context_target *target, struct archive *archive, struct husk_error *err)
{
	cleanup_free struct walk *walk = calloc(1, sizeof(*walk));

	if (!walk)
		return husk_fail_memory(err);
	*walk = (struct walk){ .context = context, .target = target, .archive = archive, .err = err };
	return pass_source(walk, source);
}

int context_tar_send(const struct context *context, const struct context_source *source, struct archive *archive,
		     struct husk_error *err)
{
	cleanup_free struct walk *walk = calloc(1, sizeof(*walk));

	if (!walk)
		return husk_fail_memory(err);
	*walk = (struct walk){ .context = context, .archive = archive, .err = err };
	return pass_any(walk, source->path, source->path, 0);
}

int context_tar_text(const char *name, const char *text, int64_t mode, struct archive *archive, struct husk_error *err)
{
	struct archive_entry *entry = archive_entry_new();
	size_t size = strlen(text);

	if (!entry)
		return husk_fail_memory(err);
	archive_entry_set_pathname(entry, name);
	archive_entry_set_mode(entry, (mode_t)(S_IFREG | (mode >= 0 ? mode : 0644)));
	archive_entry_set_size(entry, (int64_t)size);
	int result =
		archive_write_header(archive, entry) < ARCHIVE_WARN || archive_write_data(archive, text, size) < 0
			? husk_fail(err, HUSK_INTERNAL, "cannot copy '%s': %s", name, archive_error_string(archive))
			: 0;
	archive_entry_free(entry);
	return result;
}

int context_tar_file(const struct context_file *file, int fd, struct archive *archive, struct husk_error *err)
{
	cleanup_free struct walk *walk = calloc(1, sizeof(*walk));
	struct stat status = { 0 };

	if (!walk)
		return husk_fail_memory(err);
	if (fstat(fd, &status) < 0 || lseek(fd, 0, SEEK_SET) < 0)
		return husk_fail_errno(err, "cannot read '%s'", file->name);
	status.st_mode = (mode_t)(S_IFREG | file->mode);
	status.st_mtim.tv_sec = file->modified;
	*walk = (struct walk){ .archive = archive, .err = err };
	return pass_entry(walk, file->name, &status, NULL, fd);
}

int context_tar_end(struct archive *archive, struct husk_error *err)
{
	int result = archive_write_close(archive) == ARCHIVE_OK
			     ? 0
			     : husk_fail(err, HUSK_INTERNAL, "cannot write a tar: %s", archive_error_string(archive));

	archive_write_free(archive);
	return result;
}
