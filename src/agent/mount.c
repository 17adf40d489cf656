/*
 * METHOD_MOUNT: a volume that the engine shows to the guest as a directory. boot.c carried these directories into the new
 * root; here one is bound to the path that the sandbox wants. Called before the processes of the guest continue. The
 * kernel below enforces "read-only": a guest that mounts it again in another way gains nothing.
 */
#include <sys/mount.h>

#include "agent/agent.h"
#include "base/log.h"

int mount_answer(struct agent *agent, const struct request *request, struct buf *results, struct husk_error *err)
{
	bool read_only = request_int(request, TAG_FLAGS, 0) & VOLUME_READ_ONLY;
	cleanup_free char *path = NULL;
	char source[64];

	(void)agent;
	(void)results;
	snprintf(source, sizeof(source), SHARES "/%d", (int)request_int(request, TAG_VOLUME, 0));
	if (request_string(request, TAG_PATH, &path, err) < 0 || make_mount_point(path, err) < 0)
		return -1;
	if (mount(source, path, NULL, MS_BIND, NULL) < 0)
		return husk_fail_errno(err, "cannot mount the volume at '%s'", path);
	if (read_only && mount(NULL, path, NULL, MS_BIND | MS_REMOUNT | MS_RDONLY, NULL) < 0)
		log_line(LOG_DEBUG, "the mount at '%s' is not marked read-only: %s", path, strerror(errno));
	return 0;
}
