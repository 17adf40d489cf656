/*
 * Puts changes in place; see replace.h. Each step is one rename:
 *
 *     put, new         stage/7 -> dir/file            undone by renaming it back
 *     put, replaced    stage/7 <-> dir/file           exchanged, so that the old one is in the stage; undone by exchanging again
 *     remove           dir/file -> stage/old-3        undone by renaming it back
 *
 * After a step the old file is compared with the one that the decision was about: an editor may have saved it in between.
 */
#include "workspace/replace.h"

#include <fcntl.h>
#include <linux/fs.h>

#include "workspace/host.h"

static int fail_step(const struct op *op, const char *doing, struct husk_error *err)
{
	return husk_fail_errno(err, "cannot %s '%s'", doing, op->path);
}

/* Is the file in the stage the one that was looked at? */
static int check_old(int stage, const struct op *op, struct husk_error *err)
{
	struct stat now;

	if (fstatat(stage, op->parked, &now, AT_SYMLINK_NOFOLLOW) < 0)
		return fail_step(op, "look at", err);
	if (now.st_ino == op->before.st_ino && now.st_size == op->before.st_size &&
	    now.st_mtim.tv_sec == op->before.st_mtim.tv_sec && now.st_mtim.tv_nsec == op->before.st_mtim.tv_nsec)
		return 0;
	return husk_fail(err, HUSK_CONFLICT, "'%s' was changed meanwhile; nothing was written, try again", op->path);
}

/* ---- forward ---- */

/* On a file system that cannot exchange: a second name for the old file, then one rename over it. */
static int replace_linked(int stage, struct op *op, size_t number, int parent, const char *base)
{
	char parked[STAGE_NAME_SIZE];

	snprintf(parked, sizeof(parked), "old-%zu", number);
	if (linkat(parent, base, stage, parked, 0) < 0)
		return -1;
	if (renameat(stage, op->name, parent, base) < 0) {
		unlinkat(stage, parked, 0);
		return -1;
	}
	memcpy(op->parked, parked, sizeof(parked));
	return 0;
}

static int step_put(int stage, struct op *op, size_t number, int parent, const char *base, struct husk_error *err)
{
	if (!op->existed) {
		if (renameat2(stage, op->name, parent, base, RENAME_NOREPLACE) == 0) {
			op->done = true;
			return 0;
		}
		if (errno == EEXIST)
			return husk_fail(err, HUSK_CONFLICT, "'%s' was made meanwhile; nothing was written, try again",
					 op->path);
		return fail_step(op, "write", err);
	}
	if (renameat2(stage, op->name, parent, base, RENAME_EXCHANGE) == 0)
		memcpy(op->parked, op->name, sizeof(op->parked));
	else if (errno != EINVAL || replace_linked(stage, op, number, parent, base) < 0)
		return fail_step(op, "replace", err);
	op->done = true;
	return check_old(stage, op, err);
}

static int step_remove(int stage, struct op *op, size_t number, int parent, const char *base, struct husk_error *err)
{
	snprintf(op->parked, sizeof(op->parked), "old-%zu", number);
	if (renameat2(parent, base, stage, op->parked, RENAME_NOREPLACE) < 0)
		return fail_step(op, "remove", err);
	op->done = true;
	return check_old(stage, op, err);
}

static int step_rmdir(struct op *op, int parent, const char *base, struct husk_error *err)
{
	if (unlinkat(parent, base, AT_REMOVEDIR) == 0) {
		op->done = true;
		return 0;
	}
	if (op->optional && (errno == ENOTEMPTY || errno == EEXIST))
		return 0;
	return fail_step(op, "remove directory", err);
}

/* A directory that is there already is as good. */
static int step_mkdir(int directory, struct op *op, int parent, const char *base, struct husk_error *err)
{
	struct stat owner;

	if (mkdirat(parent, base, 0700) < 0)
		return errno == EEXIST ? 0 : fail_step(op, "make directory", err);
	op->done = true;
	if (fchmodat(parent, base, op->mode, 0) < 0 || fstat(directory, &owner) < 0 ||
	    (geteuid() == 0 && fchownat(parent, base, owner.st_uid, owner.st_gid, AT_SYMLINK_NOFOLLOW) < 0))
		return fail_step(op, "make directory", err);
	return 0;
}

static int set_mode(int parent, const char *base, mode_t mode)
{
	cleanup_close int fd = openat(parent, base, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);

	return fd < 0 ? -1 : fchmod(fd, mode);
}

static int step(int directory, int stage, struct op *op, size_t number, struct husk_error *err)
{
	const char *base;
	cleanup_close int parent = host_parent(directory, op->path, &base);

	if (parent < 0)
		return fail_step(op, "enter the directory of", err);
	switch (op->kind) {
	case OP_REMOVE:
		return step_remove(stage, op, number, parent, base, err);
	case OP_RMDIR:
		return step_rmdir(op, parent, base, err);
	case OP_MKDIR:
		return step_mkdir(directory, op, parent, base, err);
	case OP_PUT:
		return step_put(stage, op, number, parent, base, err);
	default:
		op->done = set_mode(parent, base, op->mode) == 0;
		return op->done ? 0 : fail_step(op, "set the mode of", err);
	}
}

/* ---- back ---- */

static int restore_directory(const struct op *op, int parent, const char *base)
{
	if (mkdirat(parent, base, 0700) < 0 || fchmodat(parent, base, op->before.st_mode & 07777, 0) < 0)
		return -1;
	return geteuid() == 0 ? fchownat(parent, base, op->before.st_uid, op->before.st_gid, AT_SYMLINK_NOFOLLOW) : 0;
}

static int restore_file(int stage, const struct op *op, int parent, const char *base)
{
	/* Exchanged: both names are there. Linked: the old one goes over the new one. */
	if (str_equal(op->parked, op->name))
		return renameat2(stage, op->parked, parent, base, RENAME_EXCHANGE);
	return renameat(stage, op->parked, parent, base);
}

static void undo(int directory, int stage, const struct op *op)
{
	const char *base;
	cleanup_close int parent = host_parent(directory, op->path, &base);
	int result = -1;

	if (parent >= 0 && op->kind == OP_PUT)
		result = op->existed ? restore_file(stage, op, parent, base) : renameat(parent, base, stage, op->name);
	else if (parent >= 0 && op->kind == OP_REMOVE)
		result = renameat2(stage, op->parked, parent, base, RENAME_NOREPLACE);
	else if (parent >= 0 && op->kind == OP_RMDIR)
		result = restore_directory(op, parent, base);
	else if (parent >= 0 && op->kind == OP_MKDIR)
		result = unlinkat(parent, base, AT_REMOVEDIR);
	else if (parent >= 0)
		result = set_mode(parent, base, op->before.st_mode & 07777);
	if (result < 0)
		log_line(LOG_ERROR, "cannot undo the change of '%s': %s", op->path, strerror(errno));
}

/* ---- all of them ---- */

int replace_all(int directory, int stage, struct op *ops, size_t count, struct husk_error *err)
{
	size_t done = 0;
	int result = 0;
	cleanup_free size_t *order = calloc(count + 1, sizeof(*order));

	if (!order)
		return husk_fail_memory(err);
	for (int kind = OP_REMOVE; kind <= OP_MODE && result == 0; kind++)
		for (size_t i = 0; i < count && result == 0; i++) {
			/* What goes: the last path first, because parents are sorted before what is in them. */
			size_t number = kind <= OP_RMDIR ? count - 1 - i : i;
			if (ops[number].kind != (enum op_kind)kind)
				continue;
			order[done++] = number;
			result = step(directory, stage, &ops[number], number, err);
		}
	while (result < 0 && done-- > 0)
		if (ops[order[done]].done)
			undo(directory, stage, &ops[order[done]]);
	return result;
}
