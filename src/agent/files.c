/*
 * METHOD_FILE_READ and METHOD_FILE_WRITE, which stream, and the small file methods, which answer at once. A write goes into
 * a temporary file that is renamed over the target at the end of the stream. A failure before that must leave the target
 * unchanged and no temporary file. A write in place (FILE_IN_PLACE) truncates and fills the target itself, so links, mode
 * and owner stay.
 */
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include "agent/agent.h"
#include "agent/entry.h"
#include "agent/users.h"

/* ---- read ---- */

struct file_read {
	struct channel channel;
	int fd;
	char *path;
	uint64_t left; /* bytes still wanted */
	int64_t size;
};

static void file_read_release(struct agent *agent, struct channel *channel)
{
	struct file_read *call = (struct file_read *)channel;

	(void)agent;
	fd_close(&call->fd);
	free(call->path);
}

static void file_read_done(struct agent *agent, struct file_read *call)
{
	cleanup_buf struct buf results = { 0 };

	uplink_send(agent, call->channel.number, WIRE_EOF, STREAM_OUT, NULL, 0);
	if (wire_put_int(&results, TAG_SIZE, call->size) < 0)
		agent_die("out of memory for an answer");
	channel_end(agent, &call->channel, NULL, &results);
}

static bool file_read_pump(struct agent *agent, struct channel *channel)
{
	struct file_read *call = (struct file_read *)channel;
	struct husk_error err;

	if (call->left == 0) {
		file_read_done(agent, call);
		return true;
	}
	size_t size = (size_t)MIN(call->left, channel_allowance(agent, channel, STREAM_OUT));
	if (size == 0)
		return false;
	ssize_t count = read(call->fd, uplink_data_begin(agent, size), size);
	if (count < 0) {
		husk_fail_errno(&err, "cannot read '%s'", call->path);
		channel_end(agent, channel, &err, NULL);
	} else if (count == 0) {
		file_read_done(agent, call);
	} else {
		uplink_data_commit(agent, channel, STREAM_OUT, (size_t)count);
		call->left -= (uint64_t)count;
	}
	return true;
}

static const struct channel_ops file_read_ops = {
	.cancel = channel_end_cancelled,
	.pump = file_read_pump,
	.release = file_read_release,
};

int file_read_open(struct agent *agent, uint32_t number, const struct request *request, struct husk_error *err)
{
	int64_t offset = request_int(request, TAG_OFFSET, 0), length = request_int(request, TAG_LENGTH, 0);
	cleanup_free char *path = NULL;
	struct stat status;

	if (request_string(request, TAG_PATH, &path, err) < 0)
		return -1;
	/* O_NONBLOCK: opening a FIFO without a writer must not block the agent; FIFOs are refused below. */
	int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
	bool of_template = request_int(request, TAG_FLAGS, 0) & FILE_OF_TEMPLATE;
	cleanup_close int fd = of_template ? layers_open_template(&agent->layers, path, flags) : open(path, flags);
	if (fd < 0 || fstat(fd, &status) < 0)
		return husk_fail_errno(err, "cannot read '%s'", path);
	if (S_ISDIR(status.st_mode))
		return husk_fail(err, HUSK_INVALID, "cannot read '%s': it is a directory", path);
	if (!S_ISREG(status.st_mode))
		return husk_fail(err, HUSK_INVALID, "cannot read '%s': it is not a regular file", path);
	if (offset > 0 && lseek(fd, offset, SEEK_SET) < 0)
		return husk_fail_errno(err, "cannot read '%s' from byte %lld", path, (long long)offset);

	struct file_read *call = calloc(1, sizeof(*call));
	if (!call)
		return husk_fail_memory(err);
	call->fd = steal_fd(&fd);
	call->path = steal_pointer(path);
	call->left = length > 0 ? (uint64_t)length : UINT64_MAX;
	call->size = status.st_size;
	channel_add(agent, &call->channel, number, &file_read_ops);
	return 0;
}

/* ---- write ---- */

struct file_write {
	struct channel channel;
	int fd;
	char *path;
	char *temporary; /* NULL: writes in place, or is done */
	uint64_t mark;   /* of a write in place (writes.c); 0: none */
	bool fresh;      /* in place, into a file that did not exist */
	int64_t size;
};

static void file_write_release(struct agent *agent, struct channel *channel)
{
	struct file_write *call = (struct file_write *)channel;

	writes_end(agent, call->mark);
	fd_close(&call->fd);
	if (call->temporary && unlink(call->temporary) < 0)
		log_line(LOG_WARN, "cannot remove '%s': %s", call->temporary, strerror(errno));
	free(call->temporary);
	free(call->path);
}

static void file_write_data(struct agent *agent, struct channel *channel, const char *bytes, size_t size)
{
	struct file_write *call = (struct file_write *)channel;
	struct husk_error err;

	if (write_full(call->fd, bytes, size) < 0) {
		husk_fail_errno(&err, "cannot write '%s'", call->path);
		channel_end(agent, channel, &err, NULL);
		return;
	}
	call->size += (int64_t)size;
	channel_consumed(channel, size);
}

static void file_write_eof(struct agent *agent, struct channel *channel)
{
	struct file_write *call = (struct file_write *)channel;
	cleanup_buf struct buf results = { 0 };
	struct husk_error err;

	if (call->temporary) {
		if (rename(call->temporary, call->path) < 0) {
			husk_fail_errno(&err, "cannot put '%s' in place", call->path);
			channel_end(agent, channel, &err, NULL);
			return;
		}
		free(call->temporary);
		call->temporary = NULL;
	}
	/* Watches report nothing about a write in place until it ends: this is the change that they report. */
	if (call->mark && (call->size > 0 || !call->fresh) && ftruncate(call->fd, call->size) < 0)
		log_line(LOG_WARN, "cannot set the size of '%s': %s", call->path, strerror(errno));
	if (wire_put_int(&results, TAG_SIZE, call->size) < 0)
		agent_die("out of memory for an answer");
	channel_end(agent, channel, NULL, &results);
}

static bool file_write_pump(struct agent *agent, struct channel *channel)
{
	(void)agent;
	(void)channel;
	return false; /* all work is done when data arrives */
}

static const struct channel_ops file_write_ops = {
	.data = file_write_data,
	.eof = file_write_eof,
	.cancel = channel_end_cancelled,
	.pump = file_write_pump,
	.release = file_write_release,
};

/* Makes the missing parents of a path, owned by `owner`. */
static int make_parents(const char *path, const struct user *owner, struct husk_error *err)
{
	cleanup_free char *copy = strdup(path);

	if (!copy)
		return husk_fail_memory(err);
	for (char *slash = strchr(copy + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		if (mkdir(copy, 0755) == 0) {
			if (owner->uid && chown(copy, owner->uid, owner->gid) < 0)
				return husk_fail_errno(err, "cannot give '%s' to '%s'", copy, owner->name);
		} else if (errno != EEXIST) {
			return husk_fail_errno(err, "cannot make directory '%s'", copy);
		}
		*slash = '/';
	}
	return 0;
}

struct file_target {
	struct stat before;
	bool exists;
	bool append, in_place;
	bool has_mode, has_user;
	mode_t mode;
	struct user user;
};

/* Mode and owner default to those of the existing file, or to 0644 and root. A write in place keeps the owner. */
static int file_target_apply(int fd, const char *path, const struct file_target *target, struct husk_error *err)
{
	uid_t uid = target->user.uid;
	gid_t gid = target->user.gid;
	mode_t mode = target->mode;
	struct stat now;

	if (target->exists && (target->in_place || !target->has_user)) {
		uid = target->before.st_uid;
		gid = target->before.st_gid;
	}
	if (target->exists && !target->has_mode)
		mode = target->before.st_mode & 07777;
	if (fstat(fd, &now) < 0)
		return husk_fail_errno(err, "cannot look at '%s'", path);
	/* Owner first: a change of owner clears the set-uid bits. */
	bool given = uid != now.st_uid || gid != now.st_gid;
	if (given && fchown(fd, uid, gid) < 0)
		return husk_fail_errno(err, "cannot give '%s' its owner", path);
	if ((given || mode != (now.st_mode & 07777)) && fchmod(fd, mode) < 0)
		return husk_fail_errno(err, "cannot set the mode of '%s'", path);
	return 0;
}

static int request_owner(const struct request *request, bool *given, struct user *out, struct husk_error *err)
{
	cleanup_free char *who = NULL;

	if (request_string(request, TAG_USER, &who, err) < 0)
		return -1;
	*given = who && who[0];
	return user_lookup(who, out, err);
}

static int file_write_examine(const struct request *request, char **path, struct file_target *target,
			      struct husk_error *err)
{
	struct wire_field field;

	if (request_string(request, TAG_PATH, path, err) < 0 ||
	    request_owner(request, &target->has_user, &target->user, err) < 0)
		return -1;
	target->mode = (mode_t)request_int(request, TAG_MODE, 0644);
	target->append = request_int(request, TAG_FLAGS, 0) & FILE_APPEND;
	target->in_place = request_int(request, TAG_FLAGS, 0) & FILE_IN_PLACE;
	target->has_mode = wire_find(request->data, request->size, TAG_MODE, &field);
	if (str_ends(*path, "/"))
		return husk_fail(err, HUSK_INVALID, "cannot write '%s': it names a directory", *path);
	if (make_parents(*path, &target->user, err) < 0)
		return -1;
	/* Resolves a link to its target: a rename must not replace the link. */
	char *real = realpath(*path, NULL);
	if (real) {
		free(*path);
		*path = real;
	}
	target->exists = lstat(*path, &target->before) == 0;
	if (target->exists && S_ISDIR(target->before.st_mode))
		return husk_fail(err, HUSK_INVALID, "cannot write '%s': it is a directory", *path);
	if (target->exists && S_ISLNK(target->before.st_mode))
		target->exists = false; /* a dangling link: replaced, or its target is created */
	else if (target->exists && !S_ISREG(target->before.st_mode))
		return husk_fail(err, HUSK_INVALID, "cannot write '%s': it is not a regular file", *path);
	return 0;
}

/* Removes the attributes of an earlier write. */
static void drop_attributes(int fd)
{
	char names[ATTRIBUTES_MAX];
	ssize_t size = flistxattr(fd, names, sizeof(names));

	for (ssize_t at = 0; at < size; at += (ssize_t)strlen(names + at) + 1)
		if (str_starts(names + at, ATTRIBUTE_PREFIX) && fremovexattr(fd, names + at) < 0)
			log_line(LOG_DEBUG, "cannot remove the attribute %s: %s", names + at, strerror(errno));
}

/* Sets "key=value" attributes. A file that is written anew keeps no others. */
static int set_attributes(int fd, const char *path, const struct request *request, struct husk_error *err)
{
	struct wire_field field;
	size_t cursor = 0, total = 0;

	while (wire_next(request->data, request->size, &cursor, &field) > 0) {
		if (field.tag != TAG_ATTRIBUTE)
			continue;
		const char *equals = memchr(field.data, '=', field.size);
		size_t key = equals ? (size_t)(equals - field.data) : field.size;
		cleanup_free char *name = str_format(ATTRIBUTE_PREFIX "%.*s", (int)key, field.data);
		if (!name)
			return husk_fail_memory(err);
		total += strlen(ATTRIBUTE_PREFIX) + field.size;
		if (key >= field.size || key == 0 || total > ATTRIBUTES_MAX)
			return husk_fail(err, HUSK_INVALID,
					 "the attributes of '%s' are not at most %d bytes of key=value", path,
					 ATTRIBUTES_MAX);
		if (fsetxattr(fd, name, field.data + key + 1, field.size - key - 1, 0) < 0)
			return husk_fail_errno(err, "cannot set an attribute of '%s'", path);
	}
	return 0;
}

/* Makes the temporary file. If the agent's own directory is on the target's filesystem, the file is made there, so that
 * nobody who watches the target's directory sees it. Otherwise it is made beside the target. */
static int open_temporary(struct agent *agent, struct file_write *call, struct husk_error *err)
{
	int parent_size = (int)(strrchr(call->path, '/') - call->path);
	cleanup_free char *parent = str_format("%.*s/", parent_size, call->path);
	struct stat there, here;
	char suffix[32];

	if (!parent)
		return husk_fail_memory(err);
	if (random_id(FILE_TEMPORARY, FILE_TEMPORARY_RANDOM, suffix) < 0)
		return husk_fail_errno(err, "no random numbers");
	const char *place = agent->stage && stat(agent->stage, &here) == 0 && stat(parent, &there) == 0 &&
					    here.st_dev == there.st_dev
				    ? agent->stage
				    : parent;
	call->temporary = str_format("%s%s", place, suffix);
	if (!call->temporary)
		return husk_fail_memory(err);
	call->fd = open(call->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (call->fd >= 0)
		return 0;
	husk_fail_errno(err, "cannot write '%s'", call->path);
	free(steal_pointer(call->temporary));
	return -1;
}

/* If the target is read-only or busy, the open fails before anything is changed. O_TRUNC happens after the mark is set,
 * so that watches do not report it. */
static int open_in_place(struct agent *agent, struct file_write *call, const struct file_target *target,
			 struct husk_error *err)
{
	int flags = O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | (target->append ? O_APPEND : 0);
	struct stat status;

	call->fd = open(call->path, flags, target->has_mode ? target->mode : 0644);
	if (call->fd < 0 || fstat(call->fd, &status) < 0)
		return husk_fail_errno(err, "cannot write '%s'", call->path);
	if (!S_ISREG(status.st_mode))
		return husk_fail(err, HUSK_INVALID, "cannot write '%s': it is not a regular file", call->path);
	if (target->append)
		return 0;
	call->fresh = !target->exists;
	call->mark = writes_begin(agent, &status, call->fresh);
	if (status.st_size > 0 && ftruncate(call->fd, 0) < 0)
		return husk_fail_errno(err, "cannot empty '%s'", call->path);
	drop_attributes(call->fd);
	return 0;
}

static int file_write_create(struct agent *agent, struct file_write *call, const struct file_target *target,
			     struct husk_error *err)
{
	bool itself = target->append || target->in_place;

	if ((itself ? open_in_place(agent, call, target, err) : open_temporary(agent, call, err)) < 0)
		return -1;
	if (target->append && target->exists && !target->has_mode && !target->has_user)
		return 0;
	return file_target_apply(call->fd, call->path, target, err);
}

int file_write_open(struct agent *agent, uint32_t number, const struct request *request, struct husk_error *err)
{
	cleanup_free char *path = NULL;
	struct file_target target = { 0 };

	if (file_write_examine(request, &path, &target, err) < 0)
		return -1;
	struct file_write *call = calloc(1, sizeof(*call));
	if (!call)
		return husk_fail_memory(err);
	call->fd = -1;
	call->path = steal_pointer(path);
	if (file_write_create(agent, call, &target, err) < 0 ||
	    set_attributes(call->fd, call->path, request, err) < 0) {
		file_write_release(agent, &call->channel);
		free(call);
		return -1;
	}
	channel_add(agent, &call->channel, number, &file_write_ops);
	return 0;
}

/* ---- at once ---- */

int file_stat_answer(struct agent *agent, const struct request *request, struct buf *results, struct husk_error *err)
{
	bool follow = request_int(request, TAG_FLAGS, 0) & FILE_FOLLOW;
	cleanup_free char *path = NULL;
	struct stat status;

	(void)agent;
	if (request_string(request, TAG_PATH, &path, err) < 0)
		return -1;
	if (fstatat(AT_FDCWD, path, &status, follow ? 0 : AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT ? husk_fail(err, HUSK_NOT_FOUND, "no such file: '%s'", path)
				       : husk_fail_errno(err, "cannot read the attributes of '%s'", path);
	return entry_put(results, path, AT_FDCWD, path, &status, err);
}

int file_mkdir_answer(struct agent *agent, const struct request *request, struct buf *results, struct husk_error *err)
{
	cleanup_free char *path = NULL;
	struct user owner;
	struct stat status;
	mode_t mode = (mode_t)request_int(request, TAG_MODE, 0755);
	bool given;

	(void)agent;
	(void)results;
	if (request_string(request, TAG_PATH, &path, err) < 0 || request_owner(request, &given, &owner, err) < 0 ||
	    make_parents(path, &owner, err) < 0)
		return -1;
	if (mkdir(path, mode) < 0) {
		int why = errno;
		if (stat(path, &status) == 0 && S_ISDIR(status.st_mode))
			return 0;
		errno = why;
		return husk_fail_errno(err, "cannot make directory '%s'", path);
	}
	if (owner.uid && chown(path, owner.uid, owner.gid) < 0)
		return husk_fail_errno(err, "cannot give '%s' to '%s'", path, owner.name);
	if (chmod(path, mode) < 0) /* the umask has reduced mkdir's mode */
		return husk_fail_errno(err, "cannot set the mode of '%s'", path);
	return 0;
}

int file_move_answer(struct agent *agent, const struct request *request, struct buf *results, struct husk_error *err)
{
	cleanup_free char *path = NULL, *target = NULL;

	(void)agent;
	(void)results;
	if (request_string(request, TAG_PATH, &path, err) < 0 || request_string(request, TAG_TARGET, &target, err) < 0)
		return -1;
	if (rename(path, target) == 0)
		return 0;
	if (errno == EXDEV)
		return husk_fail(err, HUSK_INVALID,
				 "cannot move '%s' to '%s': they are on different filesystems; copy it", path, target);
	return husk_fail_errno(err, "cannot move '%s' to '%s'", path, target);
}

int file_chmod_answer(struct agent *agent, const struct request *request, struct buf *results, struct husk_error *err)
{
	cleanup_free char *path = NULL;

	(void)agent;
	(void)results;
	if (request_string(request, TAG_PATH, &path, err) < 0)
		return -1;
	if (chmod(path, (mode_t)request_int(request, TAG_MODE, 0)) < 0)
		return husk_fail_errno(err, "cannot change the mode of '%s'", path);
	return 0;
}
