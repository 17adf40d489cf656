/*
 * The directory of the caller; see host.h. git decides what it ignores: its rules (nested files, negations, the user's own file)
 * are not repeated here. git is asked without the programs that a repository can name (core.fsmonitor), and with the caller's
 * own protection against repositories of others (safe.directory).
 */
#include "workspace/host.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <openssl/evp.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#define GIT_MS 60000
#define DEPTH_MAX 256
#define NAMES_MAX 2000000u

extern char **environ;

/* ---- lists ---- */

void names_free(struct names *names)
{
	for (size_t i = 0; i < names->count; i++)
		free(names->items[i]);
	free(names->items);
	*names = (struct names){ 0 };
}

int names_add(struct names *names, const char *name, struct husk_error *err)
{
	if (names->count == NAMES_MAX)
		return husk_fail(err, HUSK_LIMIT, "there are more than %u files", NAMES_MAX);
	if (names->count == names->room) {
		size_t room = names->room ? names->room * 2 : 256;
		char **grown = reallocarray(names->items, room, sizeof(*grown));
		if (!grown)
			return husk_fail_memory(err);
		names->items = grown;
		names->room = room;
	}
	names->items[names->count] = strdup(name);
	if (!names->items[names->count])
		return husk_fail_memory(err);
	names->count++;
	return 0;
}

/* ---- one path ---- */

int host_parent(int directory, const char *path, const char **base)
{
	const char *slash = strrchr(path, '/');
	cleanup_free char *parent = slash ? strndup(path, (size_t)(slash - path)) : strdup(".");
	struct open_how how = { .flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC,
				.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS };

	if (!parent)
		return -1;
	*base = slash ? slash + 1 : path;
	return (int)syscall(SYS_openat2, directory, parent, &how, sizeof(how));
}

int host_open(int directory, const char *path)
{
	const char *base;
	cleanup_close int parent = host_parent(directory, path, &base);

	return parent < 0 ? -1 : openat(parent, base, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
}

static int hash_file(int fd, char out[static VERSION_HASH], struct husk_error *err)
{
	cleanup_free char *chunk = malloc(128u << 10);
	unsigned char digest[EVP_MAX_MD_SIZE];
	EVP_MD_CTX *context = EVP_MD_CTX_new();
	ssize_t size = 0;
	bool good = chunk && context && EVP_DigestInit_ex(context, EVP_sha256(), NULL) == 1;

	while (good && (size = read_full(fd, chunk, 128u << 10)) > 0)
		good = EVP_DigestUpdate(context, chunk, (size_t)size) == 1;
	good = good && size == 0 && EVP_DigestFinal_ex(context, digest, NULL) == 1;
	EVP_MD_CTX_free(context);
	if (size < 0)
		return husk_fail_errno(err, "cannot read it");
	if (!good)
		return husk_fail_memory(err);
	for (size_t i = 0; i < 32; i++)
		snprintf(out + 2 * i, 3, "%02x", digest[i]);
	return 0;
}

static int file_version(int parent, const char *base, struct version *out, struct husk_error *err)
{
	cleanup_close int fd = openat(parent, base, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);

	if (fd < 0)
		return husk_fail_errno(err, "cannot open it");
	return hash_file(fd, out->hash, err);
}

static int link_version(int parent, const char *base, struct version *out, struct husk_error *err)
{
	char target[4096];
	ssize_t size = readlinkat(parent, base, target, sizeof(target) - 1);

	if (size < 0)
		return husk_fail_errno(err, "cannot read the link");
	out->target = strndup(target, (size_t)size);
	return out->target ? 0 : husk_fail_memory(err);
}

static enum husk_file_type type_of(mode_t mode)
{
	if (S_ISREG(mode))
		return HUSK_FILE;
	if (S_ISDIR(mode))
		return HUSK_DIRECTORY;
	return S_ISLNK(mode) ? HUSK_SYMLINK : HUSK_OTHER;
}

int host_version(int directory, const char *path, struct version *out, struct stat *status, bool *in_the_way,
		 struct husk_error *err)
{
	const char *base;
	struct stat found = { 0 };
	cleanup_close int parent = host_parent(directory, path, &base);
	int result = 0;

	version_free(out);
	if (parent < 0 && (errno == ENOTDIR || errno == ELOOP)) {
		if (in_the_way)
			*in_the_way = true;
		return 0;
	}
	if (parent < 0 || fstatat(parent, base, &found, AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT ? 0 : husk_fail_errno(err, "cannot look at '%s'", path);
	*out = (struct version){ .type = type_of(found.st_mode),
				 .mode = found.st_mode & VERSION_MODE,
				 .size = (uint64_t)found.st_size };
	if (out->type == HUSK_FILE)
		result = file_version(parent, base, out, err);
	else if (out->type == HUSK_SYMLINK)
		result = link_version(parent, base, out, err);
	if (status)
		*status = found;
	return result < 0 ? husk_wrap(err, "'%s'", path) : 0;
}

/* ---- names ---- */

static bool is_part(const char *at, size_t size, const char *word)
{
	return strlen(word) == size && strncasecmp(at, word, size) == 0;
}

const char *name_refused(const char *path)
{
	if (path[0] == '\0' || path[0] == '/' || strlen(path) >= 4096)
		return "its name is not one of a file in the directory";
	if (is_part(path, strcspn(path, "/"), STAGE_NAME))
		return "Husk uses this name itself";
	for (const char *at = path; *at;) {
		size_t size = strcspn(at, "/");
		if (size == 0 || is_part(at, size, ".") || is_part(at, size, ".."))
			return "its name is not one of a file in the directory";
		/* Also as it is found on file systems that ignore case. */
		if (is_part(at, size, ".git"))
			return "it is git's own: git runs what is configured there";
		at += size + (at[size] == '/');
		if (at[-1] == '/' && *at == '\0')
			return "its name is not one of a file in the directory";
	}
	return NULL;
}

bool link_stays_inside(const char *path, const char *target)
{
	int depth = 0;
	bool descended = false;

	for (const char *at = path; (at = strchr(at, '/')); at++)
		depth++;
	if (target[0] == '/' || target[0] == '\0')
		return false;
	for (const char *at = target; *at;) {
		size_t size = strcspn(at, "/");
		if (is_part(at, size, "..")) {
			/* After a name, ".." could climb out of what the name links to. */
			if (descended || --depth < 0)
				return false;
		} else if (size > 0 && !is_part(at, size, ".")) {
			if (is_part(at, size, ".git"))
				return false;
			descended = true;
		}
		at += size + strspn(at + size, "/");
	}
	return true;
}

/* ---- git ---- */

/* The caller's environment without what points git at another repository. */
static const char *const *git_environment(void)
{
	size_t count = 0, kept = 0;

	while (environ[count])
		count++;
	const char **list = calloc(count + 1, sizeof(*list));
	for (size_t i = 0; list && i < count; i++)
		if (!str_starts(environ[i], "GIT_"))
			list[kept++] = environ[i];
	return list;
}

/* The script gets the directory as $1; git's exit status 1 ("none") is fine where it says so. */
static int run_git(const char *directory, const char *script, int in, struct buf *out, struct husk_error *err)
{
	cleanup_free const char *const *environment = git_environment();
	const char *const argv[] = { "sh", "-c", script, "husk-git", directory, NULL };
	struct command command = { COMMAND_INIT,           .argv = argv,  .environment = environment,
				   .directory = directory, .output = out, .timeout_ms = GIT_MS };

	if (!environment)
		return husk_fail_memory(err);
	command.stdin_fd = in;
	return command_run(&command, err);
}

#define GIT "git -c core.fsmonitor=false -c core.untrackedCache=false "

static bool has_git(const char *directory)
{
	cleanup_buf struct buf out = { 0 };

	return run_git(directory, GIT "rev-parse --is-inside-work-tree", -1, &out, NULL) == 0 && out.size >= 4 &&
	       memcmp(out.data, "true", 4) == 0;
}

static int split_names(const struct buf *text, struct names *out, struct husk_error *err)
{
	for (size_t at = 0; at < text->size;) {
		size_t size = strnlen(text->data + at, text->size - at);
		if (size && names_add(out, text->data + at, err) < 0)
			return -1;
		at += size + 1;
	}
	return 0;
}

int host_ignored(const char *directory, const struct names *names, struct names *out, struct husk_error *err)
{
	cleanup_buf struct buf text = { 0 }, answer = { 0 };
	cleanup_close int file = memfd_create("husk-names", MFD_CLOEXEC);

	if (!names->count || !has_git(directory))
		return 0;
	for (size_t i = 0; i < names->count; i++)
		if (buf_append(&text, names->items[i], strlen(names->items[i]) + 1) < 0)
			return husk_fail_memory(err);
	if (file < 0 || write_full(file, text.data, text.size) < 0 || lseek(file, 0, SEEK_SET) < 0)
		return husk_fail_errno(err, "cannot hand names to git");
	if (run_git(directory, GIT "check-ignore -z --stdin; [ $? -le 1 ]", file, &answer, err) < 0)
		return -1;
	return split_names(&answer, out, err);
}

/* ---- the list ---- */

static int add_tree(int directory, const char *path, int depth, struct names *out, struct husk_error *err);

/* Adds the name, and what is below if it is a directory. A name that vanished, or leads over a link, is left out. */
static int add_name(int directory, const char *path, bool below, int depth, struct names *out, struct husk_error *err)
{
	const char *base;
	struct stat status;
	cleanup_close int parent = host_parent(directory, path, &base);

	if (parent < 0 || fstatat(parent, base, &status, AT_SYMLINK_NOFOLLOW) < 0)
		return 0;
	if (names_add(out, path, err) < 0)
		return -1;
	if (!S_ISDIR(status.st_mode) || !below)
		return 0;
	return add_tree(directory, path, depth + 1, out, err);
}

static int add_tree(int directory, const char *path, int depth, struct names *out, struct husk_error *err)
{
	struct open_how how = { .flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC,
				.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV };
	int fd = (int)syscall(SYS_openat2, directory, *path ? path : ".", &how, sizeof(how));
	cleanup_dir DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	int result = 0;

	if (!dir && fd >= 0)
		close(fd);
	if (!dir && errno == EXDEV) /* another file system is mounted there */
		return 0;
	if (!dir)
		return husk_fail_errno(err, "cannot read '%s'", *path ? path : "the directory");
	if (depth > DEPTH_MAX)
		return husk_fail(err, HUSK_LIMIT, "'%.200s…' is more than %d directories deep", path, DEPTH_MAX);
	for (struct dirent *entry; result == 0 && (entry = readdir(dir));) {
		if (str_equal(entry->d_name, ".") || str_equal(entry->d_name, "..") ||
		    (!*path && str_equal(entry->d_name, STAGE_NAME)))
			continue;
		cleanup_free char *name = str_format("%s%s%s", path, *path ? "/" : "", entry->d_name);
		result = name ? add_name(directory, name, true, depth, out, err) : husk_fail_memory(err);
	}
	return result;
}

/* Adds the directories above a name that are not in the list yet: the names come sorted, so a look at the last one is enough. */
static int add_parents(int directory, const char *path, const char *last, struct names *out, struct husk_error *err)
{
	for (const char *slash = strchr(path, '/'); slash; slash = strchr(slash + 1, '/')) {
		size_t size = (size_t)(slash - path) + 1;
		if (last && strncmp(path, last, size) == 0)
			continue;
		cleanup_free char *parent = strndup(path, size - 1);
		if (!parent)
			return husk_fail_memory(err);
		if (add_name(directory, parent, false, 0, out, err) < 0)
			return -1;
	}
	return 0;
}

static int compare_names(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static int list_git(int directory, const char *name, struct names *out, struct husk_error *err)
{
	cleanup_buf struct buf text = { 0 };
	cleanup_names struct names names = { 0 };
	const char *last = NULL;

	if (run_git(name, GIT "ls-files -co --exclude-standard -z --deduplicate", -1, &text, err) < 0)
		return husk_wrap(err, "git cannot list '%s' (--workspace-all takes everything, without git)", name);
	if (split_names(&text, &names, err) < 0)
		return -1;
	if (names.count)
		qsort(names.items, names.count, sizeof(*names.items), compare_names);
	for (size_t i = 0; i < names.count; i++) {
		char *each = names.items[i], *end = each + strlen(each) - 1;
		if (str_starts(each, STAGE_NAME "/")) /* of an apply that was killed */
			continue;
		if (*end == '/') /* another repository, which is not one of this one's modules */
			*end = '\0';
		if (add_parents(directory, each, last, out, err) < 0 ||
		    add_name(directory, each, true, 0, out, err) < 0)
			return -1;
		last = each;
	}
	return add_name(directory, ".git", true, 0, out, err);
}

int host_below(int directory, const char *path, struct names *out, struct husk_error *err)
{
	return add_name(directory, path, true, 0, out, err);
}

int host_list(const char *directory, bool all, struct names *out, bool *is_git, struct husk_error *err)
{
	cleanup_close int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0)
		return husk_fail_errno(err, "cannot open directory '%s'", directory);
	*is_git = !all && has_git(directory);
	if (*is_git)
		return list_git(fd, directory, out, err);
	return add_tree(fd, "", 0, out, err);
}
