/*
 * The place of a volume's files; see volume_home.h. Called by libhusk's volume calls and by supervisors. A place appears
 * by one rename, when it is complete. The row of the volume comes first: if a create was killed in between, the next user
 * of the volume makes the place.
 */
#include "instance/volume_home.h"

#include <fcntl.h>
#include <sys/file.h>

#define PARTIAL "%s.partial"

/* Makes a share in `partial`, with the lock held. UNAVAILABLE: not possible in this instance. */
static int make_share(struct husk *husk, const struct catalog_volume *row, const char *partial, const char *directory,
		      struct husk_error *err)
{
	if (engine_remove(partial, err) < 0 || dir_make(partial, 0700, err) < 0)
		return -1;
	if (engine_share_make(husk->paths.home, husk->paths.runtime, partial, row->limit_bytes, err) == 0 &&
	    rename(partial, directory) == 0)
		return 0;
	if (!err->code)
		husk_fail_errno(err, "cannot make '%s'", directory);
	engine_remove(partial, NULL);
	return -1;
}

static int make_place(struct husk *husk, const struct catalog_volume *row, const char *directory,
		      struct husk_error *err)
{
	cleanup_free char *partial = str_format(PARTIAL, directory);
	cleanup_free char *above = strndup(directory, (size_t)(strrchr(directory, '/') - directory));
	cleanup_close int lock = -1;
	struct husk_error why = { 0 };

	if (!partial || !above)
		return husk_fail_memory(err);
	if (dir_make(above, 0700, err) < 0)
		return -1;
	lock = open(above, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (lock < 0 || flock(lock, LOCK_EX) < 0)
		return husk_fail_errno(err, "cannot lock '%s'", above);
	if (access(directory, F_OK) == 0 || make_share(husk, row, partial, directory, &why) == 0)
		return 0;
	if (why.code != HUSK_UNAVAILABLE)
		return husk_fail(err, why.code, "%s", why.message);
	log_line(LOG_DEBUG, "volume %s is not a share: %s", row->id, why.message);
	return volume_make(directory, err);
}

int volume_home(struct husk *husk, const struct catalog_volume *row, char **out, const struct engine_shares **shares,
		struct husk_error *err)
{
	cleanup_free char *directory = path_volume(&husk->paths, row->id);

	if (!directory)
		return husk_fail_memory(err);
	if (access(directory, F_OK) < 0 && make_place(husk, row, directory, err) < 0)
		return -1;
	*shares = engine_shares_of(directory);
	if (!*shares && volume_make(directory, err) < 0)
		return -1;
	*out = steal_pointer(directory);
	return 0;
}

int volume_home_open(struct husk *husk, const struct catalog_volume *row, struct volume *out, struct husk_error *err)
{
	const struct engine_shares *shares = NULL;
	cleanup_free char *directory = NULL;

	if (volume_home(husk, row, &directory, &shares, err) < 0)
		return -1;
	if (!shares)
		return volume_open(directory, row->limit_bytes, out, err);
	int root = shares->open(directory, err);
	if (root < 0)
		return -1;
	volume_open_limited(root, row->limit_bytes, out);
	return 0;
}

int volume_home_used(struct husk *husk, const struct catalog_volume *row, bool now, uint64_t *bytes,
		     struct husk_error *err)
{
	const struct engine_shares *shares = NULL;
	cleanup_free char *directory = NULL;
	struct volume volume;

	if (volume_home(husk, row, &directory, &shares, err) < 0)
		return -1;
	if (shares)
		return shares->used(directory, now, bytes, err);
	if (volume_open(directory, row->limit_bytes, &volume, err) < 0)
		return -1;
	*bytes = volume_used(&volume);
	volume_close(&volume);
	return 0;
}
