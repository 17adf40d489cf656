/*
 * METHOD_CHANGES: what differs between the files of the machine and those of its template, as messages, from a worker.
 *
 *     template (lower)   writable layer (upper)   the guest sees     reported
 *     /etc/motd          /etc/motd                /etc/motd          changed, if mode, owner or content differ
 *     /usr/bin/less      a whiteout               -                  removed
 *     -                  /root/note               /root/note         added
 *     /usr/bin/ls        -                        /usr/bin/ls        - (never looked at)
 *
 * Only directories of the writable layer are walked, so the cost depends on how much was written, not on the size of
 * the machine. The writable layer only shows where to look; the root shows what exists there, because kernels mark
 * removals in different ways. No symbolic link is followed, and other mounts are not entered.
 *
 * A listing by time looks only at the names that were noted since an earlier one, in directories that it can trust
 * (follow.c).
 */
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>

#include "agent/entry.h"
#include "agent/follow.h"

#define DEPTH_MAX 512 /* three descriptors are open per level */
#define COMPARE_SIZE (64u * 1024u)

struct walk {
	struct job *job;
	char **only;      /* the wanted paths, without '/' at their end; "": everything */
	int64_t since_ns; /* changes before this time are not reported */
	bool touched;     /* what was touched since then is reported even if it is as in the template */
	dev_t device;     /* of the root */
	bool doubtful;    /* a file with several names was written: nothing is trusted */
	char left[COMPARE_SIZE], right[COMPARE_SIZE];
};

/* The same directory in each layer and in the root. */
struct place {
	int upper, lower, seen; /* lower -1: the template has no such directory */
	const char *path;       /* "" for the root */
	unsigned depth;
	const struct followed *known; /* NULL: not trusted */
	struct note *note;            /* NULL: it is not to be followed again */
	bool follows;                 /* directories in it may be followed */
	bool skips;                   /* only what is noted, and directories, are looked at */
	bool young;                   /* changed after the time that was asked for */
};

static const struct place nowhere = { .upper = -1, .lower = -1, .seen = -1 };

static void place_close(struct place *place)
{
	fd_close(&place->upper);
	fd_close(&place->lower);
	fd_close(&place->seen);
}

bool changes_is_identity(const char *path)
{
	static const char *const paths[] = {
		"/.husk",
		"/dev",
		"/run/husk",
		"/etc/hostname",
		"/etc/hosts",
		"/etc/machine-id",
		"/etc/resolv.conf",
		"/var/lib/dbus/machine-id",
		"/etc/ssl/certs/ca-certificates.crt",
		"/usr/local/share/ca-certificates/husk.crt",
	};

	for (size_t i = 0; i < ARRAY_SIZE(paths); i++)
		if (str_equal(path, paths[i]))
			return true;
	return str_starts(path, "/etc/ssl/certs/") && network_is_link(AT_FDCWD, path);
}

/* Is `path` the wanted one, or below it? */
static bool is_within(const char *path, const char *wanted)
{
	size_t size = strlen(wanted);

	return strncmp(path, wanted, size) == 0 && (path[size] == '/' || path[size] == '\0');
}

static bool is_wanted(const struct walk *walk, const char *path)
{
	for (char **only = walk->only; *only; only++)
		if (is_within(path, *only))
			return true;
	return false;
}

/* ---- one entry ---- */

static int64_t changed_ns(const struct stat *status)
{
	return (int64_t)status->st_ctim.tv_sec * 1000000000 + status->st_ctim.tv_nsec;
}

/* 1: the same bytes; 0: different; -1: one of the two cannot be read. */
static int same_content(struct walk *walk, const struct place *place, const char *name)
{
	int flags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
	cleanup_close int old = openat(place->lower, name, flags), new = openat(place->seen, name, flags);

	if (old < 0 || new < 0)
		return -1;
	for (;;) {
		ssize_t left = read_full(old, walk->left, sizeof(walk->left));
		ssize_t right = read_full(new, walk->right, sizeof(walk->right));
		if (left < 0 || right < 0)
			return -1;
		if (left != right || memcmp(walk->left, walk->right, (size_t)left) != 0)
			return 0;
		if (left == 0)
			return 1;
	}
}

static bool same_target(const struct place *place, const char *name)
{
	char old[PATH_MAX], new[PATH_MAX];
	ssize_t left = readlinkat(place->lower, name, old, sizeof(old));
	ssize_t right = readlinkat(place->seen, name, new, sizeof(new));

	return left >= 0 && left == right && memcmp(old, new, (size_t)left) == 0;
}

/* A directory's content does not matter here: its entries are reported by themselves. */
static bool is_same(struct walk *walk, const struct place *place, const char *name, const struct stat *old,
		    const struct stat *new)
{
	if (old->st_mode != new->st_mode || old->st_uid != new->st_uid || old->st_gid != new->st_gid)
		return false;
	if (S_ISREG(new->st_mode))
		return old->st_size == new->st_size &&same_content(walk, place, name) == 1;
	if (S_ISLNK(new->st_mode))
		return same_target(place, name);
	return S_ISDIR(new->st_mode) || old->st_rdev == new->st_rdev;
}

/* What the template has there. */
static int put_old(struct buf *message, const struct place *place, const char *name, const struct stat *old)
{
	char target[PATH_MAX];
	ssize_t size = S_ISLNK(old->st_mode) ? readlinkat(place->lower, name, target, sizeof(target)) : -1;

	return wire_put_int(message, TAG_OLD_TYPE, entry_type(old->st_mode)) |
	       wire_put_int(message, TAG_OLD_SIZE, old->st_size) |
	       wire_put_int(message, TAG_OLD_MODE, old->st_mode & 07777) |
	       wire_put_int(message, TAG_OLD_UID, old->st_uid) | wire_put_int(message, TAG_OLD_GID, old->st_gid) |
	       (size < 0 ? 0 : wire_put_bytes(message, TAG_OLD_TARGET, target, (size_t)size));
}

/* `old`: what the template has, of an entry that was changed; NULL: nothing to say of it. */
static int report(struct walk *walk, enum wire_change change, const char *path, const struct place *place,
		  const char *name, const struct stat *status, const struct stat *old, struct husk_error *err)
{
	cleanup_buf struct buf message = { 0 };
	int directory = change == CHANGE_REMOVED ? place->lower : place->seen;

	if (!is_wanted(walk, path))
		return 0;
	if (wire_put_int(&message, TAG_CHANGE, change) < 0)
		return husk_fail_memory(err);
	if (entry_put(&message, path, directory, name, status, err) < 0)
		return -1;
	if (change != CHANGE_REMOVED && (wire_put_int(&message, TAG_INODE, (int64_t)status->st_ino) < 0 ||
					 wire_put_int(&message, TAG_CTIME_NS, changed_ns(status)) < 0))
		return husk_fail_memory(err);
	if (old && put_old(&message, place, name, old) < 0)
		return husk_fail_memory(err);
	return job_message(walk->job, WIRE_MSG, &message, err);
}

/* ---- the tree ---- */

static int walk_directory(struct walk *walk, struct place *place, struct husk_error *err);

static int open_directory(int parent, const char *name)
{
	return openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

static const struct followed *find_known(const struct walk *walk, const struct place *above, const char *name,
					 const char *path)
{
	return above->known && !walk->doubtful ? follow_find(walk->job->follow, above->known, name, path) : NULL;
}

/* Is every file that the caller wants to know of noted? */
static bool may_skip(const struct walk *walk, const struct followed *known)
{
	return known && known->whole && known->since_ns <= walk->since_ns;
}

/* Enters a directory of the writable layer. If it has vanished meanwhile, it is skipped. */
static int descend(struct walk *walk, const struct place *from, const char *name, const char *path, bool in_template,
		   bool young, struct husk_error *err)
{
	struct place place = nowhere;
	struct stat status;
	int result = 0;

	if (from->depth == DEPTH_MAX)
		return husk_fail(err, HUSK_LIMIT, "'%.200s…' is more than %d directories deep", path, DEPTH_MAX);
	place.path = path;
	place.depth = from->depth + 1;
	place.young = young;
	place.follows = from->follows;
	place.known = find_known(walk, from, name, path);
	place.upper = open_directory(from->upper, name);
	if (place.upper < 0)
		return 0;
	place.seen = open_directory(from->seen, name);
	if (in_template)
		place.lower = open_directory(from->lower, name);
	if (place.seen >= 0 && fstat(place.seen, &status) == 0 && status.st_dev == walk->device)
		result = walk_directory(walk, &place, err);
	place_close(&place);
	return result;
}

static void note_entry(struct walk *walk, const struct place *place, const char *name, const struct stat *upper,
		       bool young)
{
	bool linked = !S_ISDIR(upper->st_mode) && upper->st_nlink > 1;
	const struct noted *noted = place->skips && linked ? follow_noted(place->known, name) : NULL;

	if (noted && noted->turn > place->known->turn)
		walk->doubtful = true;
	if (!place->note)
		return;
	if (S_ISDIR(upper->st_mode))
		place->note->leaf = false;
	else if (young || linked)
		note_name(place->note, name);
}

/* A name of the writable layer. */
static int walk_entry(struct walk *walk, const struct place *place, const char *name, const char *path,
		      struct husk_error *err)
{
	struct stat upper, old, new;
	int result = 0;

	const struct followed *known = place->skips ? find_known(walk, place, name, path) : NULL;
	bool clean = known && !known->young && known->count == 0 && may_skip(walk, known);
	if (clean) /* it is as it was; other directories in it may have been written to */
		return known->leaf ? 0 : descend(walk, place, name, path, place->lower >= 0, false, err);
	if (fstatat(place->upper, name, &upper, AT_SYMLINK_NOFOLLOW) < 0)
		return 0;
	bool young = changed_ns(&upper) > walk->since_ns;
	note_entry(walk, place, name, &upper, young);
	if (!young && !S_ISDIR(upper.st_mode)) /* most files: one look is all they cost */
		return 0;
	bool was = place->lower >= 0 && fstatat(place->lower, name, &old, AT_SYMLINK_NOFOLLOW) == 0;
	bool is = fstatat(place->seen, name, &new, AT_SYMLINK_NOFOLLOW) == 0;
	if (!is)
		return was && young ? report(walk, CHANGE_REMOVED, path, place, name, &old, NULL, err) : 0;
	if (S_ISDIR(new.st_mode) && new.st_dev != walk->device) /* another filesystem is mounted there */
		return 0;
	if (young && (walk->touched || !(was && is_same(walk, place, name, &old, &new))))
		result = report(walk, was ? CHANGE_CHANGED : CHANGE_ADDED, path, place, name, &new, was ? &old : NULL,
				err);
	if (result < 0 || !S_ISDIR(new.st_mode))
		return result;
	return descend(walk, place, name, path, was && S_ISDIR(old.st_mode), young, err);
}

/* A name of the template that the writable layer does not have. It was removed if its directory was made anew. */
static int walk_missing(struct walk *walk, const struct place *place, const char *name, const char *path,
			struct husk_error *err)
{
	struct stat old, now;

	if (fstatat(place->seen, name, &now, AT_SYMLINK_NOFOLLOW) == 0 || errno != ENOENT ||
	    fstatat(place->lower, name, &old, AT_SYMLINK_NOFOLLOW) < 0)
		return 0;
	return report(walk, CHANGE_REMOVED, path, place, name, &old, NULL, err);
}

typedef int (*walk_name)(struct walk *walk, const struct place *place, const char *name, const char *path,
			 struct husk_error *err);

static int walk_names(struct walk *walk, const struct place *place, char *const *names, char *const *except,
		      walk_name visit, struct husk_error *err)
{
	int result = 0;

	for (; *names && result == 0; names++) {
		while (except && *except && strcmp(*except, *names) < 0) /* both are sorted */
			except++;
		if (except && str_equal(*except, *names))
			continue;
		cleanup_free char *path = str_format("%s/%s", place->path, *names);
		if (!path)
			return husk_fail_memory(err);
		if (!changes_is_identity(path))
			result = visit(walk, place, *names, path, err);
	}
	return result;
}

static bool is_noted_or_directory(const void *data, const struct dirent *entry)
{
	return entry->d_type == DT_DIR || entry->d_type == DT_UNKNOWN || follow_noted(data, entry->d_name);
}

/* Of a directory without others in it: one that is new is noted. */
static char **noted_names(const struct followed *known, struct husk_error *err)
{
	cleanup_strv char **names = calloc(known->count + 1, sizeof(*names));

	for (size_t i = 0; names && i < known->count; i++)
		if (!(names[i] = strdup(known->names[i].name))) {
			husk_fail_memory(err);
			return NULL;
		}
	if (!names)
		husk_fail_memory(err);
	return steal_pointer(names);
}

/* Of a directory on the way to what is wanted: the next part of each wanted path. */
static int walk_on(struct walk *walk, const struct place *place, struct husk_error *err)
{
	size_t skip = strlen(place->path) + 1;
	int result = 0;

	for (char **only = walk->only; *only && result == 0; only++) {
		struct stat upper;
		if (!is_within(*only, place->path))
			continue;
		cleanup_free char *path = strndup(*only, skip + strcspn(*only + skip, "/"));
		if (!path)
			return husk_fail_memory(err);
		size_t size = strlen(path);
		bool again = only > walk->only && strncmp(only[-1], path, size) == 0 && strchr("/", only[-1][size]);
		if (again || changes_is_identity(path)) /* they are sorted */
			continue;
		if (fstatat(place->upper, path + skip, &upper, AT_SYMLINK_NOFOLLOW) == 0)
			result = walk_entry(walk, place, path + skip, path, err);
		else if (place->lower >= 0)
			result = walk_missing(walk, place, path + skip, path, err);
	}
	return result;
}

struct names {
	char **list;
	size_t count;
};

static int compare_names(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static bool is_missing(const void *data, const struct dirent *entry)
{
	const struct names *names = data;
	const char *name = entry->d_name;

	return !names->count || !bsearch(&name, names->list, names->count, sizeof(name), compare_names);
}

static int walk_layers(struct walk *walk, const struct place *place, struct husk_error *err)
{
	if (!is_wanted(walk, place->path))
		return walk_on(walk, place, err);
	list_filter wanted = place->skips ? is_noted_or_directory : NULL;
	cleanup_strv char **written = place->skips && place->known->leaf
					      ? noted_names(place->known, err)
					      : list_names(place->upper, place->path, wanted, place->known, err);
	cleanup_strv char **seen = NULL, **old = NULL;
	struct names names;

	if (!written || walk_names(walk, place, written, NULL, walk_entry, err) < 0)
		return -1;
	if (place->lower < 0 || place->skips)
		return 0;
	/* One list instead of a look at every name of the template. */
	seen = list_names(place->seen, place->path, NULL, NULL, err);
	names = (struct names){ seen, seen ? strv_length(seen) : 0 };
	old = seen ? list_names(place->lower, place->path, is_missing, &names, err) : NULL;
	return old ? walk_names(walk, place, old, written, walk_missing, err) : -1;
}

/* A directory that is not known, or not known well enough, is followed from now on, before it is read. */
static int walk_directory(struct walk *walk, struct place *place, struct husk_error *err)
{
	cleanup(note_free) struct note note = { 0 };
	bool whole = is_wanted(walk, place->path);

	place->skips = may_skip(walk, place->known);
	if (walk->job->follow && place->follows && !place->skips && (whole || !place->known)) {
		note_begin(walk->job, place->path, &note);
		place->note = &note;
		place->follows = note.number >= 0;
	}
	int result = walk_layers(walk, place, err);
	bool noted = result == 0 && place->note;
	place->note = NULL;
	if (noted) {
		note.leaf &= place->lower < 0;
		note.young = place->young;
		note_end(walk->job, &note, place->path, whole, walk->since_ns);
	}
	return result;
}

/* ---- the call ---- */

static int walk_root(struct walk *walk, int root, struct husk_error *err)
{
	struct job *job = walk->job;
	struct stat upper, seen;
	/* Opened again, because copies of a descriptor share the read position of the directory. */
	struct place place = { .upper = open_directory(job->layers.upper, "."),
			       .lower = open_directory(job->layers.lower, "."),
			       .seen = open_directory(root, "."),
			       .path = "",
			       .known = job->follow && !walk->doubtful ? follow_find(job->follow, NULL, "", "") : NULL,
			       .follows = true };
	int result = 0;

	if (place.upper < 0 || place.lower < 0 || place.seen < 0 || fstat(place.upper, &upper) < 0 ||
	    fstat(place.seen, &seen) < 0)
		result = husk_fail_errno(err, "cannot open the layers of the root");
	else if (walk->touched && changed_ns(&upper) > walk->since_ns)
		result = report(walk, CHANGE_CHANGED, "/", &place, ".", &seen, NULL, err);
	if (result == 0) {
		walk->device = seen.st_dev;
		result = walk_directory(walk, &place, err);
	}
	place_close(&place);
	return result;
}

static int changes_run(struct job *job, struct husk_error *err)
{
	static struct walk walk; /* the worker's own process */
	cleanup_strv char **only = request_strings(&job->request, TAG_PATH, err);
	cleanup_close int root = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	bool all = request_int(&job->request, TAG_FLAGS, 0) & CHANGES_ALL;
	int64_t since_ns = request_int(&job->request, TAG_CTIME_NS, -1);

	if (!only)
		return -1;
	if (root < 0)
		return husk_fail_errno(err, "cannot open the root");
	if (!*only && strv_add(&only, "") < 0)
		return husk_fail_memory(err);
	for (char **each = only; *each; each++)
		for (size_t size = strlen(*each); size > 0 && (*each)[size - 1] == '/'; size--)
			(*each)[size - 1] = '\0';
	walk = (struct walk){ .job = job,
			      .only = only,
			      .since_ns = since_ns >= 0 ? since_ns
					  : all         ? INT64_MIN
							: job->layers.born_ns,
			      .touched = since_ns >= 0 };
	qsort(only, strv_length(only), sizeof(*only), compare_names);
	if (job->follow)
		follow_sort(job->follow);
	int result = walk_root(&walk, root, err);
	if (result == 0 && walk.doubtful) /* entries that are sent twice do no harm */
		result = walk_root(&walk, root, err);
	if (result == 0 && since_ns >= 0 &&
	    (wire_put_int(&job->results, TAG_CTIME_NS, since_ns) < 0 ||
	     wire_put_int(&job->results, TAG_FLAGS, CHANGES_PATHS) < 0))
		return husk_fail_memory(err);
	return result;
}

int changes_open(struct agent *agent, uint32_t number, const struct request *request, struct husk_error *err)
{
	if (agent->layers.upper < 0)
		return husk_fail(err, HUSK_UNAVAILABLE, "this machine does not know what its template had");
	bool follow = request_int(request, TAG_CTIME_NS, -1) >= 0 && follow_begin(agent);
	int result = worker_open(agent, number, request, follow, changes_run, err);
	if (result < 0 && follow)
		follow_end(agent);
	return result;
}

int layers_open_template(const struct layers *layers, const char *path, int flags)
{
	cleanup_free char *copy = strdup(path);
	char *rest = NULL;

	if (layers->lower < 0) {
		errno = EOPNOTSUPP;
		return -1;
	}
	cleanup_close int at = copy ? fcntl(layers->lower, F_DUPFD_CLOEXEC, 3) : -1;
	for (char *name = at < 0 ? NULL : strtok_r(copy, "/", &rest); name;) {
		char *next = strtok_r(NULL, "/", &rest);
		int below = str_equal(name, "..")
				    ? -1
				    : openat(at, name, O_NOFOLLOW | (next ? O_DIRECTORY | O_CLOEXEC : flags));
		if (below < 0)
			return -1;
		fd_close(&at);
		at = below;
		name = next;
	}
	return steal_fd(&at);
}
