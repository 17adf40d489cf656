/*
 * FILE_REMOVE: a file at once, a tree in a worker. It must never follow a symbolic link out of the tree.
 */
#include <sys/stat.h>

#include "agent/agent.h"

static int remove_run(struct job *job, struct husk_error *err)
{
	cleanup_free char *path = NULL;

	if (request_string(&job->request, TAG_PATH, &path, err) < 0)
		return -1;
	return dir_remove(path, err);
}

/* A single file is removed at once; only a tree needs a worker. */
int file_remove_open(struct agent *agent, uint32_t number, const struct request *request, struct husk_error *err)
{
	cleanup_free char *path = NULL;
	struct stat status;

	if (request_string(request, TAG_PATH, &path, err) < 0)
		return -1;
	if (strspn(path, "/.") == strlen(path))
		return husk_fail(err, HUSK_INVALID, "will not remove '%s'; throw the sandbox away instead", path);
	if (lstat(path, &status) < 0)
		return husk_fail_errno(err, "cannot remove '%s'", path);
	if (S_ISDIR(status.st_mode) && rmdir(path) < 0) {
		if (errno == ENOTEMPTY || errno == EEXIST)
			return worker_open(agent, number, request, false, remove_run, err);
		return husk_fail_errno(err, "cannot remove '%s'", path);
	}
	if (!S_ISDIR(status.st_mode) && unlink(path) < 0)
		return husk_fail_errno(err, "cannot remove '%s'", path);
	uplink_end(agent, number, NULL, NULL);
	return 0;
}
