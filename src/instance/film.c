/*
 * A video of a recording: two programs, each in its own cell (jail/cell.h), because their input comes from a guest.
 *
 *     recording ──> husk-film ──pictures──> ffmpeg ──video──> the sink
 *
 * Both belong to a workshop. Its cgroup limits their memory, and ends them when this call ends for any reason.
 */
#include "instance/film.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "instance/spawn.h"
#include "instance/workshop.h"
#include "jail/cgroup.h"
#include "store/builder.h"

#define MEMORY_MAX (UINT64_C(3) << 30)
#define PROCESSES_MAX 128
#define PIECE (64u << 10)
#define MESSAGE_MAX 300

/* One of the two programs. */
struct part {
	pid_t pid;
	int errors; /* a file in memory; the cell bounds its size */
};

struct film {
	struct workshop workshop;
	struct part film, video;
	int pictures[2], result[2];
};

static void film_close(struct husk *husk, struct film *film)
{
	struct part *const parts[] = { &film->film, &film->video };

	for (size_t i = 0; i < 2; i++) {
		fd_close(&film->pictures[i]);
		fd_close(&film->result[i]);
	}
	workshop_close(husk, &film->workshop); /* ends both */
	for (size_t i = 0; i < ARRAY_SIZE(parts); i++) {
		while (parts[i]->pid > 0 && waitpid(parts[i]->pid, NULL, 0) < 0 && errno == EINTR)
			;
		fd_close(&parts[i]->errors);
	}
}

/* A turn, as a descriptor; its end is the end of the turn, also of a process that is killed. */
static int take_turn(struct husk *husk, struct husk_error *err)
{
	cleanup_free char *path = str_format("%s/films", husk->paths.run);
	cleanup_close int fd = path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600) : -1;

	if (!path)
		return husk_fail_memory(err);
	if (fd < 0)
		return husk_fail_errno(err, "cannot open '%s'", path);
	for (int i = 0; i < FILMS_MAX; i++) {
		struct flock turn = { .l_type = F_WRLCK, .l_start = i, .l_len = 1 };
		if (fcntl(fd, F_OFD_SETLK, &turn) == 0)
			return steal_fd(&fd);
	}
	return husk_fail(err, HUSK_LIMIT, "%d videos are being made already; try again when one is ready", FILMS_MAX);
}

static int start(struct husk *husk, int screen, const char *format, struct film *film, struct husk_error *err)
{
	const struct cgroup_limits limits = { .memory_bytes = MEMORY_MAX, .pids = PROCESSES_MAX };
	cleanup_free char *program = husk_program(err);

	if (!program || workshop_open(husk, &film->workshop, err) < 0 ||
	    cgroup_set_limits(film->workshop.cgroup, &limits, err) < 0)
		return -1;
	const struct template_jail jail = { .program = program,
					    .uid_base = slot_uid_base(0),
					    .cgroup = film->workshop.cgroup };
	film->film.errors = memfd_create("husk-film", MFD_CLOEXEC);
	film->video.errors = memfd_create("husk-video", MFD_CLOEXEC);
	if (film->film.errors < 0 || film->video.errors < 0 || pipe2(film->pictures, O_CLOEXEC) < 0 ||
	    pipe2(film->result, O_CLOEXEC) < 0)
		return husk_fail_errno(err, "cannot connect the programs that make a video");
	if (step_video(&jail, format, film->pictures[0], film->result[1], film->video.errors, &film->video.pid, err) <
		    0 ||
	    step_film(&jail, screen, film->pictures[1], film->film.errors, &film->film.pid, err) < 0)
		return -1;
	fd_close(&film->pictures[0]);
	fd_close(&film->pictures[1]);
	fd_close(&film->result[1]);
	return 0;
}

/* True if it ended well. If not, `why` gets its last words, which are not trusted, unless it has some already. */
static bool ended_well(struct part *part, char why[static MESSAGE_MAX])
{
	int status = 0;

	while (waitpid(part->pid, &status, 0) < 0 && errno == EINTR)
		;
	part->pid = 0;
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
		return true;
	ssize_t size = why[0] ? 0 : pread(part->errors, why, MESSAGE_MAX - 1, 0);
	if (size > 0)
		why[size] = '\0';
	why[strcspn(why, "\n")] = '\0';
	for (char *at = why; *at; at++)
		if ((unsigned char)*at < ' ' || (unsigned char)*at > '~')
			*at = '?';
	return false;
}

static int pass_on(struct film *film, husk_sink sink, void *data, struct husk_error *err)
{
	cleanup_free char *piece = malloc(PIECE);
	char why[MESSAGE_MAX] = "";
	ssize_t count;

	if (!piece)
		return husk_fail_memory(err);
	while ((count = read(film->result[0], piece, PIECE)) != 0) {
		if (count < 0 && errno != EINTR)
			return husk_fail_errno(err, "cannot read the video");
		if (count > 0 && sink(data, piece, (size_t)count) != 0)
			return husk_fail(err, HUSK_INTERNAL, "the receiver stopped the transfer");
	}
	bool good = ended_well(&film->film, why);
	good &= ended_well(&film->video, why);
	return good ? 0 : husk_fail(err, HUSK_INTERNAL, "no video was made: %s", why[0] ? why : "a program was killed");
}

int film_make(struct husk *husk, int screen, const char *format, husk_sink sink, void *data, struct husk_error *err)
{
	struct film film = { .workshop = { .lock = -1 },
			     .film = { .errors = -1 },
			     .video = { .errors = -1 },
			     .pictures = { -1, -1 },
			     .result = { -1, -1 } };
	cleanup_close int turn = take_turn(husk, err);

	if (turn < 0)
		return -1;
	int result = start(husk, screen, format, &film, err);
	if (result == 0)
		result = pass_on(&film, sink, data, err);
	film_close(husk, &film);
	return result;
}
