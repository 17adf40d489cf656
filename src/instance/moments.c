/*
 * Keeps and removes moments (moments.h). Keeping one costs no time, because its image is on disk already; it costs
 * space. So all moments together may use only a part of the free space, and the oldest are removed first. If a diff or
 * merge needs a removed moment, it fails with the reason. A fork never fails because of this.
 */
#include "instance/moments.h"

#include <sys/statvfs.h>

#include "instance/snapshots.h"

#define MOMENT_MAX (UINT64_C(2) << 30) /* where a disk is part of the image, a kept image has to be written out */
#define MOMENTS_MAX (UINT64_C(16) << 30)
#define FREE_PART 4 /* moments take at most this part of the free space */

static uint64_t moments_limit(const struct husk *husk)
{
	struct statvfs disk;

	if (statvfs(husk->paths.home, &disk) < 0)
		return 0;
	return MIN(MOMENTS_MAX, (uint64_t)disk.f_bavail * disk.f_frsize / FREE_PART);
}

void moment_keep(struct husk *husk, const char *snapshot)
{
	cleanup_free char *directory = path_snapshot(&husk->paths, snapshot);
	uint64_t bytes = directory ? dir_bytes(directory) : UINT64_MAX;
	struct husk_error err = { 0 };

	if (bytes <= MIN(moments_limit(husk), MOMENT_MAX) &&
	    catalog_moment_keep(husk->catalog, snapshot, bytes, &err) == 0)
		return;
	log_line(LOG_INFO, "the state of the fork (%llu MiB) is not kept: %s", (unsigned long long)bytes >> 20,
		 err.code ? err.message : "it is too large, or the disk has too little space");
	snapshot_drop(husk, snapshot);
}

/* Drops the rows of the list, in its order, after the first `limit` bytes. */
static size_t drop_beyond(struct husk *husk, struct catalog_snapshot *const *list, uint64_t limit, uint64_t *bytes)
{
	uint64_t kept = 0;
	size_t dropped = 0;

	for (size_t i = 0; list[i]; i++) {
		kept += list[i]->bytes;
		if (limit && kept <= limit)
			continue;
		kept -= list[i]->bytes;
		if (bytes)
			*bytes += list[i]->bytes;
		snapshot_drop(husk, list[i]->id);
		dropped++;
	}
	return dropped;
}

size_t moments_prune(struct husk *husk, uint64_t *bytes)
{
	size_t dropped = 0;

	for (int idle = 1; idle >= 0; idle--) {
		struct catalog_snapshot **list = NULL;
		if (catalog_moment_list(husk->catalog, idle, &list, NULL) < 0)
			return dropped;
		if (list[0])
			dropped += drop_beyond(husk, list, idle ? 0 : MAX(moments_limit(husk), UINT64_C(1)), bytes);
		catalog_snapshot_list_free(list);
	}
	return dropped;
}
