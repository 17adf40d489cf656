/*
 * `husk supervise`: the process that looks after one sandbox. libhusk starts it with the sandbox's lock on descriptor 3
 * and a pipe for the outcome on descriptor 4; it detaches, brings the machine up, says "ok" or why not, and then owns
 * the machine, its clients and its clock until the end. Its TTL is enforced here and nowhere else.
 *
 *   husk supervise --home HOME --id ID --image DIR      restore the image and run
 *   husk supervise --home HOME --id ID --pool           prepare a shell and wait to be claimed
 *   husk supervise --home HOME --id ID --pool --image DIR   … with the image restored already
 */
#include "sandbox/supervise.h"

#include <fcntl.h>
#include <getopt.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "sandbox/pool.h"
#include "sandbox/supervisor.h"

#define STATUS_FD 4
#define DRAIN_MS 1000                  /* how long the end waits for clients to take their last frames */
#define RELIEF_PAUSE_MS 200            /* after a kill for memory: it must have had time to tell */
#define ON_EXPIRY_KEY "husk.on-expiry" /* metadata: "hibernate" in place of the end */
#define EXPIRY_RETRY_SECONDS 60
#define CLAIM_CHECK_MS 10000 /* how often a pool entry looks whether it was claimed by somebody who died over it */

struct arguments {
	const char *home, *id, *image;
	bool pool;
};

static int parse_arguments(int argc, char **argv, struct arguments *out)
{
	static const struct option options[] = { { "home", required_argument, NULL, 'h' },
						 { "id", required_argument, NULL, 'i' },
						 { "image", required_argument, NULL, 'm' },
						 { "pool", no_argument, NULL, 'p' },
						 { 0 } };
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
		default:
			return -1;
		}
	}
	return out->home && out->id && (out->image || out->pool) ? 0 : -1;
}

/* Away from whoever started us: own session, no terminal, no inherited descriptor but the two we were given. */
static int detach(void)
{
	pid_t child = fork();

	if (child != 0)
		_exit(child < 0 ? 1 : 0);
	if (setsid() < 0 || chdir("/") < 0)
		return -1;
	umask(0077);
	if (prctl(PR_SET_NAME, "husk-supervise") < 0 || prctl(PR_SET_CHILD_SUBREAPER, 1) < 0)
		return -1;
	return close_range(STATUS_FD + 1, ~0u, 0);
}

/* stderr becomes the sandbox's log, which is kept after its end. */
static int open_log(struct supervisor *s, struct husk_error *err)
{
	cleanup_free char *directory = path_sandbox(&s->husk.paths, s->id);
	cleanup_free char *path = directory ? str_format("%s/log", directory) : NULL;

	if (!path)
		return husk_fail_memory(err);
	if (dir_make(directory, 0700, err) < 0)
		return -1;
	cleanup_close int log = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	cleanup_close int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	if (log < 0 || null < 0 || dup2(null, 0) < 0 || dup2(null, 1) < 0 || dup2(log, 2) < 0)
		return husk_fail_errno(err, "cannot open the log '%s'", path);
	return 0;
}

int supervisor_listen(struct supervisor *s, struct husk_error *err)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	cleanup_free char *path = path_socket(&s->husk.paths, s->id);
	cleanup_close int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (!path || strlen(path) >= sizeof(address.sun_path))
		return husk_fail(err, HUSK_INVALID, "the socket path of %s is too long; use a shorter HUSK_HOME",
				 s->id);
	memcpy(address.sun_path, path, strlen(path) + 1);
	unlink(path);
	if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0 || listen(fd, 128) < 0)
		return husk_fail_errno(err, "cannot listen on '%s'", path);
	/* A claimed machine moves to another name: the old socket is replaced in place, so the main loop's poll goes on. */
	if (s->listen_fd >= 0)
		return dup3(fd, s->listen_fd, O_CLOEXEC) < 0 ? husk_fail_errno(err, "cannot move the socket") : 0;
	s->listen_fd = steal_fd(&fd);
	return 0;
}

void supervisor_nudge(struct supervisor *s)
{
	uint64_t one = 1;

	write_full(s->wake_fd, &one, sizeof(one));
}

static int open_supervisor(struct supervisor *s, const struct arguments *arguments, struct husk_error *err)
{
	pthread_mutex_init(&s->lock, NULL);
	pthread_mutex_init(&s->activity_lock, NULL);
	s->listen_fd = -1;
	s->network = (struct network)NETWORK_INIT;
	s->state = CATALOG_CREATING;
	s->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	s->id = strdup(arguments->id);
	if (s->wake_fd < 0 || !s->id)
		return husk_fail_errno(err, "cannot set up the supervisor");
	fd_set_cloexec(SUPERVISOR_LOCK_FD, true);
	fd_set_cloexec(STATUS_FD, true);
	if (paths_open(arguments->home, &s->husk.paths, err) < 0)
		return -1;
	cleanup_free char *database = path_catalog(&s->husk.paths);
	if (!database)
		return husk_fail_memory(err);
	return catalog_open(database, &s->husk.catalog, err);
}

/* From nothing to a machine that runs, or waits in the pool. */
static int bring_up(struct supervisor *s, const struct arguments *arguments, struct husk_error *err)
{
	struct catalog_sandbox *row = NULL;
	int result = -1;

	if (open_log(s, err) < 0 || catalog_sandbox_get(s->husk.catalog, s->id, &row, err) < 0)
		return -1;
	if (machine_prepare(s, row, err) < 0)
		goto out;
	if (arguments->image && machine_restore(s, arguments->image, err) < 0)
		goto out;
	if (supervisor_listen(s, err) < 0)
		goto out;
	if (arguments->pool) {
		s->expires_ms = time_wall_ms() + pool_idle_ms();
		s->state = CATALOG_POOL;
		result = catalog_sandbox_move(s->husk.catalog, s->id, 1u << CATALOG_PREPARING, CATALOG_POOL, err);
		goto out;
	}
	result = machine_become(s, row, err);
	if (result == 0)
		pool_refill(s, row);
out:
	catalog_sandbox_free(row);
	return result;
}

/* Milliseconds until the next thing that happens by the clock; -1: nothing does. */
static int next_timeout(struct supervisor *s)
{
	int64_t wait = INT64_MAX;

	pthread_mutex_lock(&s->lock);
	if (s->expires_ms)
		wait = s->expires_ms - time_wall_ms();
	if (s->state == CATALOG_POOL)
		wait = MIN(wait, CLAIM_CHECK_MS);
	if (s->idle_seconds && !s->persistent && s->state == CATALOG_RUNNING) {
		pthread_mutex_lock(&s->activity_lock);
		if (s->sessions == 0)
			wait = MIN(wait, s->idle_since_ms + s->idle_seconds * 1000 - time_monotonic_ms());
		pthread_mutex_unlock(&s->activity_lock);
	}
	pthread_mutex_unlock(&s->lock);
	if (wait == INT64_MAX)
		return -1;
	return (int)MAX(0, MIN(wait, 3600 * 1000)); /* the wall clock may be set: look again within the hour */
}

static bool expired(struct supervisor *s)
{
	pthread_mutex_lock(&s->lock);
	bool yes = s->expires_ms && time_wall_ms() >= s->expires_ms;
	pthread_mutex_unlock(&s->lock);
	return yes;
}

/* The row says claimed, but the claim has not reached us, now nor at the last look: whoever made it is gone. */
static bool claim_was_lost(struct supervisor *s)
{
	static int64_t looked_ms;
	static bool claimed_before;
	struct catalog_sandbox *row = NULL;

	if (s->state != CATALOG_POOL || time_monotonic_ms() - looked_ms < CLAIM_CHECK_MS)
		return false;
	looked_ms = time_monotonic_ms();
	/* A row in the pool is not found by its id: one that is has been claimed. */
	bool claimed = catalog_sandbox_get(s->husk.catalog, s->id, &row, NULL) == 0;
	catalog_sandbox_free(row);
	bool lost = claimed && claimed_before;
	claimed_before = claimed;
	return lost;
}

static void hibernate_if_idle(struct supervisor *s)
{
	struct husk_error err = { 0 };

	pthread_mutex_lock(&s->activity_lock);
	bool idle = s->idle_seconds && !s->persistent && s->sessions == 0 && s->state == CATALOG_RUNNING &&
		    time_monotonic_ms() >= s->idle_since_ms + s->idle_seconds * 1000;
	if (idle)
		s->idle_since_ms = time_monotonic_ms(); /* a failure is tried again after another idle time */
	pthread_mutex_unlock(&s->activity_lock);
	if (idle && machine_hibernate(s, &err) < 0)
		log_line(LOG_ERROR, "idle, but could not hibernate: %s", err.message);
}

static bool wants_sleep(struct supervisor *s)
{
	struct catalog_sandbox *row = NULL;

	if (s->state != CATALOG_RUNNING || catalog_sandbox_get(s->husk.catalog, s->id, &row, NULL) < 0)
		return false;
	json_t *metadata = row->metadata ? json_loads(row->metadata, 0, NULL) : NULL;
	bool yes = str_equal(json_string_value(json_object_get(metadata, ON_EXPIRY_KEY)), "hibernate");
	json_decref(metadata);
	catalog_sandbox_free(row);
	return yes;
}

/* Its time is over, and its metadata asks for sleep instead of an end: asleep it has no end. What cannot be put to sleep
 * now (a full disk) is tried again; nothing is lost by it. True: this was its case. */
static bool hibernate_on_expiry(struct supervisor *s)
{
	struct husk_error err = { 0 };
	int64_t expires;

	if (!expired(s) || !wants_sleep(s))
		return false;
	if (machine_extend(s, 0, true, &expires, &err) == 0 && machine_hibernate(s, &err) == 0)
		return true;
	log_line(LOG_ERROR, "its time is over, but it could not hibernate: %s", err.message);
	machine_extend(s, EXPIRY_RETRY_SECONDS, false, &expires, NULL);
	return true;
}

static struct cgroup_use use_now(struct supervisor *s)
{
	struct cgroup_use use = { 0 };

	pthread_mutex_lock(&s->lock);
	if (s->cgroup && cgroup_read(s->cgroup, &use, NULL) < 0)
		use = (struct cgroup_use){ 0 };
	pthread_mutex_unlock(&s->lock);
	return use;
}

/* The machine is gone without our doing: was it memory? */
static const char *why_it_ended(struct supervisor *s)
{
	return use_now(s).oom_kills ? "oom" : "crashed";
}

/* When memory ran short last, and what was in use once a process had been killed for it. */
struct relief {
	int64_t at_ms;
	uint64_t used;
};

/* Memory is short. The dead need a moment to give theirs back, but take no more of it: where it still grows, others do. */
static void relieve(struct supervisor *s, struct relief *last)
{
	if (time_monotonic_ms() - last->at_ms < RELIEF_PAUSE_MS && use_now(s).memory_bytes <= last->used)
		return;
	machine_relieve(s);
	*last = (struct relief){ time_monotonic_ms(), use_now(s).memory_bytes };
}

static void run(struct supervisor *s, int signals)
{
	enum { LISTEN, WAKE, SIGNAL, END, PRESSURE, COUNT };
	struct relief relieved = { 0 };
	/* Asked for once: a session may take the machine down at any moment, and then poll says so on the closed ones. */
	int end_fd = s->engine->end_fd(s->machine), pressure_fd = cgroup_pressure_fd(s->cgroup);

	while (!s->over) {
		struct pollfd wait[COUNT] = {
			[LISTEN] = { s->listen_fd, POLLIN, 0 },  [WAKE] = { s->wake_fd, POLLIN, 0 },
			[SIGNAL] = { signals, POLLIN, 0 },       [END] = { end_fd, POLLIN, 0 },
			[PRESSURE] = { pressure_fd, POLLIN, 0 },
		};
		if (poll(wait, COUNT, next_timeout(s)) < 0 && errno != EINTR)
			break;
		if (wait[WAKE].revents) {
			uint64_t count;
			if (read(s->wake_fd, &count, sizeof(count)) < 0 && errno != EAGAIN)
				break;
			machine_tell_kills(s);
		}
		if (s->over)
			break;
		const char *reason = wait[END].revents                 ? why_it_ended(s)
				     : wait[SIGNAL].revents            ? "killed"
				     : expired(s) || claim_was_lost(s) ? "ttl"
								       : NULL;
		if (reason && s->state == CATALOG_POOL)
			machine_abort(s);
		else if (reason && !(str_equal(reason, "ttl") && hibernate_on_expiry(s)))
			machine_end(s, reason);
		else
			hibernate_if_idle(s);
		if (s->over)
			break;
		if (wait[PRESSURE].revents) {
			cgroup_pressure_clear(s->cgroup);
			relieve(s, &relieved);
		}
		if (wait[LISTEN].revents & POLLIN) {
			int fd = accept4(s->listen_fd, NULL, NULL, SOCK_CLOEXEC);
			if (fd >= 0)
				session_start(s, fd);
		}
	}
}

/* The last answers are on their way to clients: let them out. */
static void drain(struct supervisor *s)
{
	for (int64_t end = time_monotonic_ms() + DRAIN_MS; time_monotonic_ms() < end; usleep(1000)) {
		pthread_mutex_lock(&s->activity_lock);
		bool empty = s->sessions == 0;
		pthread_mutex_unlock(&s->activity_lock);
		if (empty)
			return;
	}
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
	static struct supervisor supervisor; /* threads use it to the very end of the process */
	struct supervisor *s = &supervisor;
	struct arguments arguments = { 0 };
	struct husk_error err = { 0 };

	if (parse_arguments(argc, argv, &arguments) < 0) {
		fprintf(stderr, "husk: supervise is started by husk itself\n");
		return 2;
	}
	if (detach() < 0)
		return 1;
	int signals = catch_signals();
	int result = signals < 0 ? husk_fail_errno(&err, "cannot catch signals") : open_supervisor(s, &arguments, &err);
	if (result == 0)
		result = bring_up(s, &arguments, &err);
	if (result < 0) {
		log_line(LOG_ERROR, "%s", err.message);
		if (s->husk.catalog)
			machine_abort(s);
		dprintf(STATUS_FD, "%d %s", (int)err.code, err.message);
		return 1;
	}
	dprintf(STATUS_FD, "ok");
	close(STATUS_FD);
	run(s, signals);
	drain(s);
	return 0;
}
