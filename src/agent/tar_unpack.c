/*
 * TAR_WRITE: unpacks a tar stream into a directory of the guest, in a worker. The tar is not trusted. Nothing is ever
 * created outside the directory: names are checked as text, every parent is walked without following links, and links
 * are only made if they point inside. A refused entry leaves nothing behind; entries before it stay.
 */
#include <fcntl.h>
#include <sys/stat.h>

#include "agent/agent.h"
#include "agent/tar.h"
#include "agent/users.h"

#define TAR_TEXT_MAX (64u * 1024u) /* of a pax header or a long name */

struct unpack {
	int in;
	int root;
	const char *root_path;
	bool give;      /* to `owner`; otherwise root */
	bool any_links; /* TAR_ANY_LINKS */
	struct user owner;
	int64_t count;
};

/* One entry, built from its header and the extension headers before it. */
struct member {
	char *name, *link;
	bool long_name, long_link, pax_size, pax_mtime;
	char type;
	int64_t size, mtime, mode;
};

static void member_free(struct member *member)
{
	free(member->name);
	free(member->link);
	*member = (struct member){ 0 };
}

/* ---- reading ---- */

static int unpack_read(const struct unpack *unpack, void *data, size_t size, struct husk_error *err)
{
	ssize_t count = read_full(unpack->in, data, size);

	if (count < 0)
		return husk_fail_errno(err, "cannot read the tar");
	if ((size_t)count < size)
		return husk_fail(err, HUSK_INVALID, "the tar ends in the middle of an entry");
	return 0;
}

static int unpack_skip(const struct unpack *unpack, uint64_t size, struct husk_error *err)
{
	char waste[16 * 1024];

	while (size > 0) {
		size_t part = (size_t)MIN(size, sizeof(waste));
		if (unpack_read(unpack, waste, part, err) < 0)
			return -1;
		size -= part;
	}
	return 0;
}

/* The content of a pax or long-name header, as a string. */
static char *unpack_text(const struct unpack *unpack, int64_t size, struct husk_error *err)
{
	if (size < 1 || size > TAR_TEXT_MAX) {
		husk_fail(err, HUSK_INVALID, "the tar has a header of %lld bytes; the limit is %u", (long long)size,
			  TAR_TEXT_MAX);
		return NULL;
	}
	cleanup_free char *text = malloc((size_t)size + 1);
	if (!text) {
		husk_fail_memory(err);
		return NULL;
	}
	if (unpack_read(unpack, text, (size_t)size, err) < 0 || unpack_skip(unpack, tar_padding(size), err) < 0)
		return NULL;
	text[size] = '\0';
	return steal_pointer(text);
}

static int replace_string(char **target, const char *value, size_t size, struct husk_error *err)
{
	char *copy = strndup(value, size);

	if (!copy)
		return husk_fail_memory(err);
	free(*target);
	*target = copy;
	return 0;
}

/* One "key=value" of a pax header. Times have fractions, which are cut. */
static int pax_record(struct member *member, const char *key, const char *value, size_t size, struct husk_error *err)
{
	if (memchr(value, '\0', size))
		return husk_fail(err, HUSK_INVALID, "the tar has a NUL byte in a pax header");
	if (str_equal(key, "path")) {
		member->long_name = true;
		return replace_string(&member->name, value, size, err);
	}
	if (str_equal(key, "linkpath")) {
		member->long_link = true;
		return replace_string(&member->link, value, size, err);
	}
	bool is_size = str_equal(key, "size"), is_mtime = str_equal(key, "mtime");
	if (str_starts(key, "GNU.sparse."))
		return husk_fail(err, HUSK_INVALID, "the tar holds a sparse file; pack it without --sparse");
	if (!is_size && !is_mtime)
		return 0;
	cleanup_free char *digits = strndup(value, is_mtime ? strcspn(value, ".\n") : size);
	if (!digits)
		return husk_fail_memory(err);
	int64_t number;
	if (str_to_int64(digits, is_mtime ? INT64_MIN : 0, INT64_MAX, &number) < 0)
		return husk_fail(err, HUSK_INVALID, "the tar has a pax header with %s '%.40s'", key, digits);
	*(is_size ? &member->size : &member->mtime) = number;
	*(is_size ? &member->pax_size : &member->pax_mtime) = true;
	return 0;
}

/* Records have the form "<length> <key>=<value>\n"; the length counts the whole record. */
static int pax_parse(struct member *member, char *text, size_t size, struct husk_error *err)
{
	for (size_t at = 0; at < size;) {
		size_t length = 0, digits = 0;
		while (digits < 6 && at + digits < size && text[at + digits] >= '0' && text[at + digits] <= '9')
			length = length * 10 + (size_t)(text[at + digits++] - '0');
		if (digits == 0 || length < digits + 3 || length > size - at || text[at + digits] != ' ' ||
		    text[at + length - 1] != '\n')
			return husk_fail(err, HUSK_INVALID, "the tar has a malformed pax header");
		char *key = text + at + digits + 1, *end = text + at + length - 1;
		char *equals = memchr(key, '=', (size_t)(end - key));
		if (!equals)
			return husk_fail(err, HUSK_INVALID, "the tar has a malformed pax header");
		*equals = '\0';
		if (pax_record(member, key, equals + 1, (size_t)(end - equals - 1), err) < 0)
			return -1;
		at += length;
	}
	return 0;
}

static bool header_is_zero(const struct tar_header *header)
{
	static const struct tar_header zero;
	return memcmp(header, &zero, sizeof(zero)) == 0;
}

static int header_check(const struct tar_header *header, struct husk_error *err)
{
	int64_t checksum;

	if (tar_number_read(header->checksum, sizeof(header->checksum), &checksum) < 0 ||
	    checksum != tar_checksum(header))
		return husk_fail(err, HUSK_INVALID, "this is not a tar, or it is damaged: wrong header checksum");
	return 0;
}

/* Takes from the header the fields that no extension header has set. */
static int member_fill(struct member *member, const struct tar_header *header, int64_t size, struct husk_error *err)
{
	int64_t mtime = 0;

	member->type = header->type ? header->type : TAR_FILE;
	if (!member->pax_size)
		member->size = size;
	if (tar_number_read(header->mode, sizeof(header->mode), &member->mode) < 0)
		return husk_fail(err, HUSK_INVALID, "the tar has a header with a malformed mode");
	if (!member->pax_mtime) {
		/* A time before 1970 is valid, but 0 is used instead. */
		member->mtime = tar_number_read(header->mtime, sizeof(header->mtime), &mtime) == 0 ? mtime : 0;
	}
	if (!member->long_link && replace_string(&member->link, header->link, sizeof(header->link), err) < 0)
		return -1;
	if (member->long_name)
		return 0;
	bool prefixed = memcmp(header->magic, "ustar\0", 6) == 0 && header->prefix[0];
	free(member->name);
	member->name = str_format("%.*s%s%.*s", prefixed ? (int)sizeof(header->prefix) : 0, header->prefix,
				  prefixed ? "/" : "", (int)sizeof(header->name), header->name);
	return member->name ? 0 : husk_fail_memory(err);
}

/* Reads a header that only describes the next entry. Returns 1 if it was one. */
static int unpack_extension(const struct unpack *unpack, struct member *member, char type, int64_t size,
			    struct husk_error *err)
{
	if (type != TAR_PAX && type != TAR_PAX_GLOBAL && type != TAR_LONG_NAME && type != TAR_LONG_LINK)
		return 0;
	cleanup_free char *text = unpack_text(unpack, size, err);
	if (!text)
		return -1;
	if (type == TAR_PAX && pax_parse(member, text, (size_t)size, err) < 0)
		return -1;
	if (type == TAR_LONG_NAME) {
		member->long_name = true;
		if (replace_string(&member->name, text, (size_t)size, err) < 0)
			return -1;
	}
	if (type == TAR_LONG_LINK) {
		member->long_link = true;
		if (replace_string(&member->link, text, (size_t)size, err) < 0)
			return -1;
	}
	return 1; /* global headers contain nothing that is used here */
}

/* The next entry. 1: there is one; 0: end of the tar; -1: malformed. */
static int unpack_next(const struct unpack *unpack, struct member *member, struct husk_error *err)
{
	struct tar_header header;
	int64_t size;

	member_free(member);
	for (;;) {
		ssize_t count = read_full(unpack->in, &header, sizeof(header));
		if (count < 0)
			return husk_fail_errno(err, "cannot read the tar");
		if (count == 0 && !member->name && !member->link)
			return 0; /* some writers omit the closing blocks */
		if ((size_t)count < sizeof(header))
			return husk_fail(err, HUSK_INVALID, "the tar ends in the middle of an entry");
		if (header_is_zero(&header))
			return 0;
		if (header_check(&header, err) < 0)
			return -1;
		if (tar_number_read(header.size, sizeof(header.size), &size) < 0)
			return husk_fail(err, HUSK_INVALID, "the tar has an entry with a malformed size");
		int extension = unpack_extension(unpack, member, header.type, size, err);
		if (extension < 0)
			return -1;
		if (!extension)
			return member_fill(member, &header, size, err) < 0 ? -1 : 1;
	}
}

/* ---- judging ---- */

/* A name must be relative and without "..". An empty name, or ".", is the directory itself. */
static int check_name(const char *what, const char *entry, const char *name, struct husk_error *err)
{
	if (name[0] == '/')
		return husk_fail(err, HUSK_INVALID, "refused tar entry '%s': its %s '%s' is absolute", entry, what,
				 name);
	for (const char *at = name; *at;) {
		size_t length = strcspn(at, "/");
		if (length == 2 && memcmp(at, "..", 2) == 0)
			return husk_fail(err, HUSK_INVALID, "refused tar entry '%s': its %s '%s' holds '..'", entry,
					 what, name);
		at += length + strspn(at + length, "/");
	}
	return 0;
}

static int name_depth(const char *name)
{
	int depth = 0;

	for (const char *at = name + strspn(name, "/"); *at;) {
		size_t length = strcspn(at, "/");
		depth += !(length == 1 && at[0] == '.');
		at += length + strspn(at + length, "/");
	}
	return depth;
}

/*
 * A symbolic link may use only leading "..", and not climb above the root. Its parent is a real directory at a known
 * depth, so leading ".." are exact. A ".." after a name could climb out of the place that the name links to.
 */
static bool symlink_stays_inside(const struct unpack *unpack, const struct member *member)
{
	const char *target = member->link;
	int depth = name_depth(member->name) - 1;
	bool descended = false;

	if (target[0] == '/') {
		size_t size = strlen(unpack->root_path);
		bool under = size == 1 ||
			     (str_starts(target, unpack->root_path) && (target[size] == '/' || target[size] == '\0'));
		if (!under)
			return false;
		target += size == 1 ? 0 : size;
		depth = 0;
		descended = true; /* no further ".." is allowed */
	}
	for (const char *at = target + strspn(target, "/"); *at;) {
		size_t length = strcspn(at, "/");
		if (length == 2 && memcmp(at, "..", 2) == 0) {
			if (descended || --depth < 0)
				return false;
		} else if (!(length == 1 && at[0] == '.')) {
			descended = true;
		}
		at += length + strspn(at + length, "/");
	}
	return true;
}

static int check_hard_link(const struct unpack *unpack, const struct member *member, struct husk_error *err);

static int member_check(const struct unpack *unpack, struct member *member, struct husk_error *err)
{
	if (check_name("name", member->name, member->name, err) < 0)
		return -1;
	if (member->type == TAR_FILE && str_ends(member->name, "/"))
		member->type = TAR_DIRECTORY; /* the oldest writers mark a directory this way */
	if (member->type == TAR_CONTIGUOUS)
		member->type = TAR_FILE;
	if (member->type != TAR_DIRECTORY && name_depth(member->name) == 0)
		return husk_fail(err, HUSK_INVALID, "refused tar entry '%s': it has no name", member->name);
	switch (member->type) {
	case TAR_FILE:
	case TAR_DIRECTORY:
	case TAR_FIFO:
		return 0;
	case TAR_HARD_LINK:
		if (check_name("link target", member->name, member->link, err) < 0)
			return -1;
		return check_hard_link(unpack, member, err);
	case TAR_SYMLINK:
		if (unpack->any_links || symlink_stays_inside(unpack, member))
			return 0;
		return husk_fail(err, HUSK_INVALID, "refused tar entry '%s': it links to '%s', outside of '%s'",
				 member->name, member->link, unpack->root_path);
	case TAR_CHARACTER:
	case TAR_DEVICE:
		return husk_fail(err, HUSK_INVALID, "refused tar entry '%s': it is a device", member->name);
	default:
		return husk_fail(err, HUSK_INVALID, "refused tar entry '%s': entries of type '%c' are not supported",
				 member->name, member->type);
	}
}

/* ---- making ---- */

static int give(const struct unpack *unpack, int directory, const char *base, const char *name, struct husk_error *err)
{
	if (unpack->give && fchownat(directory, base, unpack->owner.uid, unpack->owner.gid, AT_SYMLINK_NOFOLLOW) < 0)
		return husk_fail_errno(err, "cannot give '%s' to '%s'", name, unpack->owner.name);
	return 0;
}

/* Opens the directory that contains `name`, and points *base at the last component. `make`: creates missing
 * directories. No component may be a link, because its target may be outside the root. */
static int open_parent(const struct unpack *unpack, char *name, bool make, char **base, struct husk_error *err)
{
	cleanup_close int at = fcntl(unpack->root, F_DUPFD_CLOEXEC, 0);
	char *part = name;

	if (at < 0)
		return husk_fail_errno(err, "cannot open '%s'", unpack->root_path);
	for (char *slash; (slash = strchr(part, '/'));) {
		*slash = '\0';
		if (part[0] == '\0' || str_equal(part, ".")) {
			part = slash + 1;
			continue;
		}
		int next = openat(at, part, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		if (next < 0 && errno == ENOENT && make && mkdirat(at, part, 0755) == 0) {
			if (give(unpack, at, part, part, err) < 0)
				return -1;
			next = openat(at, part, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		}
		if (next < 0 && (errno == ENOTDIR || errno == ELOOP))
			return husk_fail(err, HUSK_INVALID, "its parent '%s' is a link or a file, not a directory",
					 part);
		if (next < 0)
			return husk_fail_errno(err, "cannot enter '%s'", part);
		fd_close(&at);
		at = next;
		part = slash + 1;
	}
	*base = part;
	return steal_fd(&at);
}

static int clear_way(int directory, const char *base, const char *name, struct husk_error *err)
{
	if (unlinkat(directory, base, 0) == 0 || errno == ENOENT)
		return 0;
	if (errno == EISDIR || errno == EPERM)
		return husk_fail(err, HUSK_CONFLICT, "'%s' is a directory here already", name);
	return husk_fail_errno(err, "cannot replace '%s'", name);
}

static int fill_file(const struct unpack *unpack, const struct member *member, int fd, int directory, const char *base,
		     struct husk_error *err)
{
	char data[64 * 1024];

	for (int64_t left = member->size; left > 0;) {
		size_t part = (size_t)MIN(left, (int64_t)sizeof(data));
		if (unpack_read(unpack, data, part, err) < 0)
			return -1;
		if (write_full(fd, data, part) < 0)
			return husk_fail_errno(err, "cannot write '%s'", member->name);
		left -= (int64_t)part;
	}
	const struct timespec times[2] = { { .tv_sec = member->mtime }, { .tv_sec = member->mtime } };
	if (give(unpack, directory, base, member->name, err) < 0)
		return -1;
	/* The owner is not the archive's, so a set-uid bit would have another meaning: only plain mode bits are
	 * kept. */
	if (fchmod(fd, (mode_t)member->mode & 01777) < 0 || futimens(fd, times) < 0)
		return husk_fail_errno(err, "cannot finish '%s'", member->name);
	return unpack_skip(unpack, tar_padding(member->size), err);
}

static int make_file(const struct unpack *unpack, const struct member *member, int directory, const char *base,
		     struct husk_error *err)
{
	if (clear_way(directory, base, member->name, err) < 0)
		return -1;
	cleanup_close int fd = openat(directory, base, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		return husk_fail_errno(err, "cannot create '%s'", member->name);
	if (fill_file(unpack, member, fd, directory, base, err) == 0)
		return 0;
	/* A partial file is removed. The first error is the one to report. */
	if (unlinkat(directory, base, 0) < 0)
		log_line(LOG_WARN, "cannot remove the unfinished '%s': %s", member->name, strerror(errno));
	return -1;
}

static int make_directory(const struct unpack *unpack, const struct member *member, int directory, const char *base,
			  struct husk_error *err)
{
	struct stat status;
	bool there = fstatat(directory, base, &status, AT_SYMLINK_NOFOLLOW) == 0;

	if (there && S_ISDIR(status.st_mode))
		return 0; /* unchanged: the guest's own mode and times */
	if (there && clear_way(directory, base, member->name, err) < 0)
		return -1;
	if (mkdirat(directory, base, 0700) < 0 || fchmodat(directory, base, (mode_t)member->mode & 01777, 0) < 0)
		return husk_fail_errno(err, "cannot make directory '%s'", member->name);
	return give(unpack, directory, base, member->name, err);
}

/* Opens the target of a hard link before anything is created. Returns the directory, and *base within it. */
static int open_link_target(const struct unpack *unpack, const struct member *member, char *target, char **base,
			    struct husk_error *err)
{
	struct stat status;
	cleanup_close int from = open_parent(unpack, target, false, base, err);

	if (from < 0 || fstatat(from, *base, &status, AT_SYMLINK_NOFOLLOW) < 0 || S_ISDIR(status.st_mode))
		return husk_fail(err, HUSK_INVALID,
				 "refused tar entry '%s': it links to '%s', which is no file in '%s'", member->name,
				 member->link, unpack->root_path);
	/* A link to itself must not remove its own target. */
	if (str_equal(member->link, member->name))
		return husk_fail(err, HUSK_INVALID, "refused tar entry '%s': it links to itself", member->name);
	return steal_fd(&from);
}

static int check_hard_link(const struct unpack *unpack, const struct member *member, struct husk_error *err)
{
	cleanup_free char *target = strdup(member->link);
	char *base;

	if (!target)
		return husk_fail_memory(err);
	cleanup_close int from = open_link_target(unpack, member, target, &base, err);
	return from < 0 ? -1 : 0;
}

static int make_hard_link(const struct unpack *unpack, const struct member *member, int directory, const char *base,
			  struct husk_error *err)
{
	cleanup_free char *target = strdup(member->link);
	char *target_base;

	if (!target)
		return husk_fail_memory(err);
	cleanup_close int from = open_link_target(unpack, member, target, &target_base, err);
	if (from < 0 || clear_way(directory, base, member->name, err) < 0)
		return -1;
	if (linkat(from, target_base, directory, base, 0) < 0)
		return husk_fail_errno(err, "cannot link '%s' to '%s'", member->name, member->link);
	return 0;
}

static int make_member(const struct unpack *unpack, const struct member *member, int directory, const char *base,
		       struct husk_error *err)
{
	if (member->type == TAR_FILE)
		return make_file(unpack, member, directory, base, err);
	if (member->type == TAR_DIRECTORY)
		return make_directory(unpack, member, directory, base, err);
	if (member->type == TAR_HARD_LINK)
		return make_hard_link(unpack, member, directory, base, err);
	if (clear_way(directory, base, member->name, err) < 0)
		return -1;
	int failed = member->type == TAR_SYMLINK ? symlinkat(member->link, directory, base)
						 : mkfifoat(directory, base, (mode_t)member->mode & 0777);
	if (failed < 0)
		return husk_fail_errno(err, "cannot create '%s'", member->name);
	return give(unpack, directory, base, member->name, err);
}

static int unpack_member(struct unpack *unpack, struct member *member, struct husk_error *err)
{
	cleanup_free char *path = NULL;
	char *base;

	if (member_check(unpack, member, err) < 0)
		return -1;
	unpack->count++;
	if (name_depth(member->name) == 0) /* the root itself, which exists */
		return 0;
	path = strdup(member->name);
	if (!path)
		return husk_fail_memory(err);
	for (size_t size = strlen(path); size > 0 && path[size - 1] == '/'; size--)
		path[size - 1] = '\0';
	cleanup_close int directory = open_parent(unpack, path, true, &base, err);
	if (directory < 0)
		return husk_wrap(err, "refused tar entry '%s'", member->name);
	if (make_member(unpack, member, directory, base, err) < 0)
		return -1;
	/* Only files have content; the content of other entries is skipped. */
	if (member->type == TAR_FILE || member->size == 0)
		return 0;
	return unpack_skip(unpack, (uint64_t)member->size + tar_padding(member->size), err);
}

static int unpack_all(struct unpack *unpack, struct husk_error *err)
{
	cleanup(member_free) struct member member = { 0 };
	char waste[16 * 1024];
	int more;

	while ((more = unpack_next(unpack, &member, err)) > 0) {
		if (unpack_member(unpack, &member, err) < 0)
			return -1;
	}
	/* Archives are padded to their record size. The padding is read, so that the sender can finish. */
	while (more == 0 && read_full(unpack->in, waste, sizeof(waste)) > 0)
		;
	return more;
}

static int unpack_run(struct job *job, struct husk_error *err)
{
	cleanup_free char *path = NULL, *real = NULL, *who = NULL;
	struct unpack unpack = { .in = job->in };

	if (request_string(&job->request, TAG_PATH, &path, err) < 0 ||
	    request_string(&job->request, TAG_USER, &who, err) < 0 || user_lookup(who, &unpack.owner, err) < 0)
		return -1;
	unpack.give = unpack.owner.uid != 0;
	unpack.any_links = request_int(&job->request, TAG_FLAGS, 0) & TAR_ANY_LINKS;
	struct stat before;
	bool fresh = stat(path, &before) < 0;
	if (dir_make(path, 0755, err) < 0)
		return -1;
	real = realpath(path, NULL);
	cleanup_close int root = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (!real || root < 0)
		return husk_fail_errno(err, "cannot unpack into '%s'", path);
	if (fresh && give(&unpack, AT_FDCWD, path, path, err) < 0)
		return -1;
	unpack.root = root;
	unpack.root_path = real;
	umask(0);
	if (unpack_all(&unpack, err) < 0)
		return -1;
	return wire_put_int(&job->results, TAG_COUNT, unpack.count) < 0 ? husk_fail_memory(err) : 0;
}

int tar_write_open(struct agent *agent, uint32_t number, const struct request *request, struct husk_error *err)
{
	return worker_open(agent, number, request, false, unpack_run, err);
}
