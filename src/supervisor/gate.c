/*
 * A gate for machines that start. A start is work of the CPU: if a hundred machines start at once, each takes a hundred times as
 * long, and the time limits of its steps pass on a host that is only busy. So each supervisor takes a place first: a lock on one
 * byte of a file that all supervisors of the instance share. The kernel frees the place when its holder closes the file or ends.
 * Called by supervise.c.
 *
 * The gate must never be the reason why a create fails: if there is no place for long, or no file, the machine starts without.
 */
#include "supervisor/gate.h"

#include <fcntl.h>

#define PLACES_PER_CPU 4
#define PLACES_MIN 8
#define LOOK_MS 20
#define WAIT_MS                                                                                                        \
	10000 /* a guest that never answers keeps its place until its start fails: others lose no more than this */

/* One of the first `count` places. The lock belongs to the open file, so forks and closed copies do not matter. */
static bool take_place(int fd, int count)
{
	for (int i = 0; i < count; i++) {
		struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = i, .l_len = 1 };

		if (fcntl(fd, F_OFD_SETLK, &lock) == 0)
			return true;
		if (errno != EAGAIN && errno != EACCES)
			return false;
	}
	return false;
}

int gate_enter(struct supervisor *s, bool ahead, int *place, struct husk_error *err)
{
	cleanup_free char *path = str_format("%s/starting", s->husk.paths.runtime);
	cleanup_close int fd = path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
	int places = MAX(PLACES_PER_CPU * (int)sysconf(_SC_NPROCESSORS_ONLN), PLACES_MIN);

	*place = -1;
	for (int64_t end = time_monotonic_ms() + WAIT_MS; fd >= 0 && time_monotonic_ms() < end;) {
		if (take_place(fd, ahead ? places / 2 : places)) {
			*place = steal_fd(&fd);
			return 0;
		}
		if (life_look(&s->life).ending)
			return husk_fail(err, HUSK_GONE, "sandbox %s has ended", life_id(&s->life));
		usleep(LOOK_MS * 1000);
	}
	log_line(LOG_WARN, "starting without a place among those that start: %s",
		 fd < 0 ? "cannot open the file of places" : "others take long");
	return 0;
}
