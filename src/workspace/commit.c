/*
 * Commits into a sandbox; see commit.h. The stage is below /.husk, which no diff shows, and in the writable layer, so that a rename
 * leads from it to any path. It has one fixed name, and the lock makes sure that one process at a time uses it.
 */
#include "workspace/commit.h"

#include <fcntl.h>
#include <sys/file.h>

#include "instance/contact.h"
#include "wire/wire.h"

#define STAGE "/.husk/merge"
#define LOCK_TRIES 100 /* of 50 ms */

/* The lock is on the sandbox's directory on the host: it ends with this process. */
static int take_lock(struct husk *husk, const char *sandbox, struct husk_error *err)
{
	cleanup_row struct catalog_sandbox *row = NULL;

	if (catalog_sandbox_get(husk->catalog, sandbox, &row, err) < 0)
		return -1;
	cleanup_free char *path = path_sandbox(&husk->paths, row->id);
	if (!path)
		return husk_fail_memory(err);
	if (dir_make(path, 0700, err) < 0)
		return -1;
	cleanup_close int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return husk_fail_errno(err, "cannot open '%s'", path);
	for (int i = 0; i < LOCK_TRIES; i++, usleep(50000))
		if (flock(fd, LOCK_EX | LOCK_NB) == 0)
			return steal_fd(&fd);
	return husk_fail(err, HUSK_CONFLICT, "another merge into sandbox %s is running; try again", row->id);
}

static int clear_stage(const struct commit *commit, struct husk_error *err)
{
	struct husk_error why = { 0 };

	if (husk_file_remove(commit->husk, commit->sandbox, commit->stage, &why) == 0 || why.code == HUSK_NOT_FOUND)
		return 0;
	return husk_fail(err, why.code, "%s", why.message);
}

static int make_stage(struct commit *commit, struct husk_error *err)
{
	if (clear_stage(commit, err) < 0 ||
	    husk_file_mkdir(commit->husk, commit->sandbox, commit->stage, 0700, NULL, err) < 0)
		return -1;
	commit->begun = true;
	return 0;
}

int commit_begin(struct commit *commit, struct husk *husk, const char *sandbox, struct husk_error *err)
{
	*commit = (struct commit){
		.husk = husk, .sandbox = sandbox, .stage = STAGE, .lock = take_lock(husk, sandbox, err)
	};
	return commit->lock < 0 ? -1 : make_stage(commit, err);
}

int commit_begin_own(struct commit *commit, struct husk *husk, const char *sandbox, const char *stage,
		     struct husk_error *err)
{
	*commit = (struct commit){ .husk = husk, .sandbox = sandbox, .stage = stage, .lock = -1 };
	return make_stage(commit, err);
}

static int add_step(struct commit *commit, const char *kind, const char *path, const char *detail,
		    struct husk_error *err)
{
	int bad = buf_append(&commit->plan, kind, strlen(kind) + 1);

	bad |= buf_append(&commit->plan, path, strlen(path) + 1);
	bad |= buf_append(&commit->plan, detail, strlen(detail) + 1);
	commit->steps += !bad;
	return bad ? husk_fail_memory(err) : 0;
}

int commit_send(struct commit *commit, husk_source source, void *data, uint32_t mode, const char *user,
		struct husk_error *err)
{
	char staged[128];

	snprintf(staged, sizeof(staged), "%s/%zu", commit->stage, ++commit->staged);
	return husk_file_write(commit->husk, commit->sandbox, staged, mode, user, source, data, err);
}

int commit_put(struct commit *commit, const char *path, struct husk_error *err)
{
	char name[32];

	snprintf(name, sizeof(name), "%zu", commit->staged);
	return add_step(commit, "P", path, name, err);
}

int commit_file(struct commit *commit, const char *path, const struct buf *content, uint32_t mode, const char *user,
		struct husk_error *err)
{
	struct bytes bytes = { content->data, content->size };

	return commit_send(commit, bytes_give, &bytes, mode, user, err) < 0 ? -1 : commit_put(commit, path, err);
}

int commit_directory(struct commit *commit, const char *path, uint32_t mode, const char *user, struct husk_error *err)
{
	char staged[128];

	snprintf(staged, sizeof(staged), "%s/%zu", commit->stage, ++commit->staged);
	if (husk_file_mkdir(commit->husk, commit->sandbox, staged, mode, user, err) < 0)
		return -1;
	return commit_put(commit, path, err);
}

int commit_link(struct commit *commit, const char *path, const char *target, struct husk_error *err)
{
	return add_step(commit, "L", path, target, err);
}

int commit_remove(struct commit *commit, const char *path, struct husk_error *err)
{
	return add_step(commit, "R", path, "", err);
}

int commit_mode(struct commit *commit, const char *path, uint32_t mode, struct husk_error *err)
{
	char octal[16];

	snprintf(octal, sizeof(octal), "%o", mode & 07777);
	return add_step(commit, "M", path, octal, err);
}

int commit_finish(struct commit *commit, struct husk_error *err)
{
	struct bytes bytes = { commit->plan.data, commit->plan.size };
	cleanup_buf struct buf arguments = { 0 };
	struct husk_error why = { 0 };

	char plan[128];

	if (commit->plan.size == 0)
		return 0;
	snprintf(plan, sizeof(plan), "%s/plan", commit->stage);
	if (husk_file_write(commit->husk, commit->sandbox, plan, 0600, NULL, bytes_give, &bytes, err) < 0)
		return -1;
	if (wire_put_string(&arguments, TAG_PATH, commit->stage) < 0)
		return husk_fail_memory(err);
	if (husk_call(commit->husk, commit->sandbox, METHOD_REPLACE, &arguments, NULL, &why) == 0)
		return 0;
	/* Without an answer, the agent may still be at work: it needs the stage. The next commit clears it. */
	bool known = why.code != HUSK_TIMEOUT && why.code != HUSK_GONE;
	commit->begun = known;
	return husk_fail(err, why.code,
			 known ? "sandbox %s is as it was: %s"
			       : "it is not known whether sandbox %s has the changes: %s",
			 commit->sandbox, why.message);
}

void commit_end(struct commit *commit)
{
	if (commit->begun)
		clear_stage(commit, NULL);
	fd_close(&commit->lock);
	buf_free(&commit->plan);
}
