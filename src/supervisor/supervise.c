/*
 * `husk supervise`: the process that looks after one sandbox. libhusk starts it with the sandbox's lock on descriptor 3
 * and a pipe for the outcome on descriptor 4; it detaches, starts the machine, reports "ok" or the reason of a failure,
 * and then owns the machine, its clients and its clock until the end. The TTL is enforced here.
 *
 *   husk supervise --home HOME --id ID --image DIR      restore the image and run
 *   husk supervise --home HOME --id ID --image DIR --reboot   boot with the disk of the image
 *   husk supervise --home HOME --id ID --pool           prepare a shell and wait to be claimed
 *   husk supervise --home HOME --id ID --pool --image DIR   … with the image restored already
 */
#include "supervisor/supervise.h"

#include <fcntl.h>
#include <getopt.h>
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "base/thread.h"
#include "instance/console.h"
#include "instance/pool.h"
#include "instance/spawn.h"
#include "supervisor/ending.h"
#include "supervisor/gate.h"
#include "supervisor/machine.h"
#include "supervisor/session.h"
#include "supervisor/supervisor.h"

#define DRAIN_MS 1000 /* how long the end waits for clients to read their last frames */
#define EXPIRY_RETRY_SECONDS 60
#define EXPIRY_TRIES 5 /* to hibernate at the end of the TTL; then the sandbox ends */

struct arguments {
	const char *home, *id, *image;
	bool pool, reboot;
};

static int parse_arguments(int argc, char **argv, struct arguments *out)
{
	static const struct option options[] = {
		{ "home", required_argument, NULL, 'h' },  { "id", required_argument, NULL, 'i' },
		{ "image", required_argument, NULL, 'm' }, { "pool", no_argument, NULL, 'p' },
		{ "reboot", no_argument, NULL, 'r' },      { 0 }
	};
	int option;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (option) {
		case 'h':
			out->home = optarg;
			break;
		case 'i':
			out->id = optarg;
			break;
		case 'm':
			out->image = optarg;
			break;
		case 'p':
			out->pool = true;
			break;
		case 'r':
			out->reboot = true;
			break;
		default:
			return -1;
		}
	}
	return out->home && out->id && (out->image || out->pool) ? 0 : -1;
}

/* Detaches from the parent process: own session, no terminal, no inherited descriptor except the two that were
 * passed. */
static int detach(void)
{
	pid_t child = fork();

	if (child != 0)
		_exit(child < 0 ? 1 : 0);
	if (setsid() < 0 || chdir("/") < 0)
		return -1;
	umask(0077);
	int null = open("/dev/null", O_RDWR | O_CLOEXEC); /* the last line closes it */
	if (null < 0 || dup2(null, 0) < 0 || dup2(null, 1) < 0)
		return -1;
	if (prctl(PR_SET_NAME, SUPERVISOR_NAME) < 0)
		return -1;
	return close_range(SUPERVISOR_STATUS_FD + 1, ~0u, 0);
}

int supervisor_listen(struct supervisor *s, struct husk_error *err)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	cleanup_free char *path = path_socket(&s->husk.paths, life_id(&s->life));
	cleanup_close int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (!path || strlen(path) >= sizeof(address.sun_path))
		return husk_fail(err, HUSK_INVALID, "the socket path of %s is too long; use a shorter HUSK_HOME",
				 life_id(&s->life));
	memcpy(address.sun_path, path, strlen(path) + 1);
	unlink(path);
	if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0 || listen(fd, 128) < 0)
		return husk_fail_errno(err, "cannot listen on '%s'", path);
	/* A claimed machine moves to another name. The old socket is replaced in place, so the poll of the main loop
	 * continues. */
	if (s->listen_fd >= 0)
		return dup3(fd, s->listen_fd, O_CLOEXEC) < 0 ? husk_fail_errno(err, "cannot move the socket") : 0;
	s->listen_fd = steal_fd(&fd);
	return 0;
}

static int open_supervisor(struct supervisor *s, const struct arguments *arguments, struct husk_error *err)
{

	pthread_mutex_init(&s->parts, NULL);
	pthread_mutex_init(&s->looking, NULL);
	cond_open(&s->digging);
	s->listen_fd = -1;
	s->network = (struct network)NETWORK_INIT;
	effects_open(&s->effects);
	fd_set_cloexec(SUPERVISOR_LOCK_FD, true);
	fd_set_cloexec(SUPERVISOR_STATUS_FD, true);
	if (life_open(&s->life, arguments->id, arguments->pool ? CATALOG_PREPARING : CATALOG_CREATING, err) < 0 ||
	    paths_open(arguments->home, &s->husk.paths, err) < 0)
		return -1;
	cleanup_free char *database = path_catalog(&s->husk.paths);
	if (!database)
		return husk_fail_memory(err);
	return catalog_open(database, &s->husk.catalog, err);
}

/* ---- start-up, on its own thread: meanwhile the main loop keeps time and accepts calls ---- */

struct start {
	struct supervisor *supervisor;
	const struct arguments *arguments;
	pthread_t thread;
	bool failed; /* the reason is in `err`, and is reported when nothing is left of the machine */
	struct husk_error err;
};

static int wait_in_pool(struct supervisor *s, struct husk_error *err)
{
	life_set_expiry(&s->life, time_wall_ms() + pool_idle_ms(), false);
	return catalog_sandbox_move(s->husk.catalog, life_id(&s->life), 1u << CATALOG_PREPARING, CATALOG_POOL, err);
}

/* From nothing to a running machine, or to one that waits in the pool. */
static int bring_up(struct supervisor *s, const struct arguments *arguments, struct husk_error *err)
{
	struct catalog_sandbox *row = NULL;
	cleanup_close int place = -1;

	if (gate_enter(s, arguments->pool, &place, err) < 0 ||
	    catalog_sandbox_get(s->husk.catalog, life_id(&s->life), &row, err) < 0)
		return -1;
	int result = machine_prepare(s, row, arguments->image, arguments->reboot, err);
	if (result == 0 && arguments->image)
		result = arguments->reboot ? machine_boot(s, arguments->image, err)
					   : machine_restore(s, row, arguments->image, err);
	if (result == 0)
		result = arguments->pool ? wait_in_pool(s, err) : machine_become(s, row, err);
	if (result == 0)
		machine_replace(s, row);
	catalog_sandbox_free(row);
	return result;
}

static void *start_up(void *argument)
{
	struct start *start = argument;
	struct supervisor *s = start->supervisor;
	enum life_step step = start->arguments->pool ? LIFE_POOL : LIFE_START;

	log_set_request(getenv("HUSK_LOG_REQUEST"));
	int result = life_begin(&s->life, step, &start->err);
	if (result == 0) {
		result = bring_up(s, start->arguments, &start->err);
		start->failed = result < 0;
		if (result < 0)
			life_end(&s->life, NULL);
		life_finish(&s->life, result == 0);
	}
	if (result == 0) {
		dprintf(SUPERVISOR_STATUS_FD, "ok");
		close(SUPERVISOR_STATUS_FD);
		malloc_trim(0); /* what only the start needed */
	} else {
		start->failed = true;
		log_line(LOG_ERROR, "%s", start->err.message);
	}
	return NULL;
}

/* ---- things that become due; on threads, because each may have to wait ---- */

static void *sleep_when_idle(void *argument)
{
	struct husk_error err = { 0 };

	if (machine_hibernate(argument, &err) < 0 && err.code != HUSK_GONE)
		log_line(LOG_ERROR, "idle, but could not hibernate: %s", err.message);
	return NULL;
}

/* A hibernated sandbox has no TTL. If it cannot be hibernated now (a full disk), the thread tries again, but not for
 * ever, because the guest can cause the failure. There is one such thread at a time: the TTL passes again only after
 * another one was set. */
static void *sleep_on_expiry(void *argument)
{
	struct supervisor *s = argument;
	struct husk_error err = { 0 };
	int64_t expires;

	/* First, because a hibernated sandbox with a passed TTL is removed. */
	if (catalog_sandbox_set_expiry(s->husk.catalog, life_id(&s->life), 0, false, &err) == 0 &&
	    machine_hibernate(s, &err) == 0)
		return NULL;
	log_line(LOG_ERROR, "its time is over, but it could not hibernate: %s", err.message);
	if (++s->expiry_tries < EXPIRY_TRIES)
		machine_extend(s, EXPIRY_RETRY_SECONDS, false, &expires, NULL);
	else
		life_end(&s->life, "ttl");
	return NULL;
}

/* A pool entry whose time is over leaves the pool, unless it was claimed first. */
static void *leave_pool(void *argument)
{
	struct supervisor *s = argument;

	if (catalog_sandbox_move(s->husk.catalog, life_id(&s->life), 1u << CATALOG_POOL, CATALOG_PREPARING, NULL) == 0)
		life_end(&s->life, NULL);
	return NULL;
}

/* The row says claimed, but no claim has arrived, neither now nor at the last check: the process that claimed the entry
 * is gone. There is one such thread at a time, because the checks are seconds apart. */
static void *look_for_claim(void *argument)
{
	struct supervisor *s = argument;
	struct catalog_sandbox *row = NULL;

	/* The catalog does not return a row in the pool by its id. If it returns the row, the entry was claimed. */
	bool claimed = catalog_sandbox_get(s->husk.catalog, life_id(&s->life), &row, NULL) == 0;
	catalog_sandbox_free(row);
	if (claimed && s->claimed_before && life_look(&s->life).state == CATALOG_POOL)
		life_end(&s->life, NULL);
	s->claimed_before = claimed;
	return NULL;
}

static void run_apart(struct supervisor *s, void *(*work)(void *))
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, work, s) == 0)
		pthread_detach(thread);
	else
		log_line(LOG_ERROR, "cannot start a thread");
}

static void on_clock(struct supervisor *s)
{
	enum catalog_state state = life_look(&s->life).state;

	switch (life_due(&s->life)) {
	case LIFE_EXPIRED:
		if (state == CATALOG_POOL) {
			life_set_expiry(&s->life, time_wall_ms() + pool_idle_ms(), false);
			run_apart(s, leave_pool);
		} else if (s->sleeps_on_expiry && state == CATALOG_RUNNING) {
			life_set_expiry(&s->life, 0, true);
			run_apart(s, sleep_on_expiry);
		} else {
			life_end(&s->life, "ttl");
		}
		break;
	case LIFE_IDLE:
		run_apart(s, sleep_when_idle);
		break;
	case LIFE_NOTHING_DUE:
		if (state == CATALOG_POOL)
			run_apart(s, look_for_claim);
		break;
	}
}

/* ---- the main loop: it waits only for its descriptors ---- */

/* The machine ended by itself: was it memory? */
static const char *why_it_ended(struct supervisor *s)
{
	return machine_use(s).oom_kills ? "oom" : "crashed";
}

/* A signal, or the end of the machine. A sandbox that was still waking is hibernated as before, with its image. */
static void end_unasked(struct supervisor *s, const char *reason)
{
	enum catalog_state state = life_look(&s->life).state;

	life_end(&s->life, state == CATALOG_RUNNING || state == CATALOG_PAUSED ? reason : NULL);
}

static void accept_client(struct supervisor *s)
{
	int fd = accept4(s->listen_fd, NULL, NULL, SOCK_CLOEXEC);

	if (fd >= 0)
		session_start(s, fd);
	else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM)
		usleep(10000); /* the connection stays in the queue: do not spin */
}

static void run(struct supervisor *s, int signals)
{
	enum { LISTEN, WAKE, SIGNAL, CLOCK, END, COUNT };
	bool buried = false;
	uint64_t ignored;

	while (!life_look(&s->life).over) {
		bool ending = life_look(&s->life).ending;
		if (ending && !buried) {
			ending_start(s);
			buried = true;
		}
		struct pollfd wait[COUNT] = {
			[LISTEN] = { s->listen_fd, POLLIN, 0 },
			[WAKE] = { s->life.wake_fd, POLLIN, 0 },
			[SIGNAL] = { ending ? -1 : signals, POLLIN, 0 },
			[CLOCK] = { ending ? -1 : s->life.clock_fd, POLLIN, 0 },
			[END] = { ending ? -1 : life_end_fd(&s->life), POLLIN, 0 },
		};
		if (poll(wait, COUNT, -1) < 0 && errno != EINTR)
			break;
		if (wait[WAKE].revents)
			(void)!read(s->life.wake_fd, &ignored, sizeof(ignored));
		if (wait[CLOCK].revents) /* first: a machine whose time was over may have ended by itself */
			on_clock(s);
		if (wait[SIGNAL].revents)
			end_unasked(s, "killed");
		if (wait[END].revents & POLLIN)
			end_unasked(s, why_it_ended(s));
		if (wait[LISTEN].revents & POLLIN)
			accept_client(s);
	}
}

/* The last answers are queued for clients: waits until they are sent. */
static void drain(struct supervisor *s)
{
	for (int64_t end = time_monotonic_ms() + DRAIN_MS; time_monotonic_ms() < end; usleep(1000))
		if (life_look(&s->life).sessions == 0)
			return;
}

static int catch_signals(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	signal(SIGPIPE, SIG_IGN);
	if (pthread_sigmask(SIG_BLOCK, &set, NULL) != 0)
		return -1;
	return signalfd(-1, &set, SFD_CLOEXEC);
}

int supervise_main(int argc, char **argv)
{
	static struct supervisor supervisor; /* threads use it until the process ends */
	struct supervisor *s = &supervisor;
	struct arguments arguments = { 0 };
	struct husk_error err = { 0 };

	if (parse_arguments(argc, argv, &arguments) < 0) {
		fprintf(stderr, "husk: supervise is started by husk itself\n");
		return 2;
	}
	mallopt(M_ARENA_MAX, 1); /* a host has hundreds of supervisors, each idle most of the time */
	log_begin("supervisor", LOG_INFO);
	if (detach() < 0)
		return 1;
	int signals = catch_signals();
	int result = signals < 0 ? husk_fail_errno(&err, "cannot catch signals") : open_supervisor(s, &arguments, &err);
	if (result == 0)
		result = sandbox_log_open(&s->husk.paths, arguments.id, &err) < 0 || supervisor_listen(s, &err) < 0 ? -1
														    : 0;
	static struct start start;
	start = (struct start){ .supervisor = s, .arguments = &arguments };
	if (result == 0 && pthread_create(&start.thread, NULL, start_up, &start) != 0)
		result = husk_fail(&err, HUSK_INTERNAL, "cannot start a thread");
	bool started = result == 0;
	log_set_request(NULL); /* the main loop serves no single request */
	if (!started) {
		log_line(LOG_ERROR, "%s", err.message);
		start.failed = true;
		start.err = err;
		if (s->husk.catalog)
			life_end(&s->life, NULL);
	}
	if (s->husk.catalog)
		run(s, signals);
	if (started)
		pthread_join(start.thread, NULL);
	if (start.failed)
		dprintf(SUPERVISOR_STATUS_FD, "%d %s", (int)start.err.code, start.err.message);
	drain(s);
	pool_close();
	return start.failed ? 1 : 0;
}
