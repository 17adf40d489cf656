/*
 * The pool of prepared machines; see pool.h. No process manages the pool. Each machine that becomes a sandbox starts its
 * replacement. Since that sandbox may end at once, each new entry also adds what the pool still lacks. An entry that is not
 * claimed in time ends by itself.
 */
#include "instance/pool.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "instance/bake.h"
#include "instance/contact.h"
#include "instance/egress_policy.h"
#include "instance/recover.h"
#include "instance/spawn.h"
#include "wire/wire.h"

#define DRAIN_DIAL_MS 1000
#define PREPARING_MS 10000 /* how long a drain waits for entries that are being prepared */
#define POOL_SIZE 2
#define ENTRIES_TRIED 64
#define POOL_IDLE_SECONDS 300
#define CLOSE_SECONDS 2
#define SHELLS_PER_WARM 2
#define REFILL_PAUSE_US 10000 /* the first call of the new sandbox is done then, and has a CPU for itself */
#define LOCK_MS 2000
#define LOCK_LOOK_US 5000
#define MEMINFO_MAX (64u << 10)
#define DRAINED "drained"
#define FORKS "forks"
#define LEASH "leash"
#define LEASH_SECONDS 600 /* how long the pool keeps leashes ready after a sandbox with a policy */

static int64_t number_from_environment(const char *name, int64_t max, int64_t fallback)
{
	const char *text = getenv(name);
	int64_t value;

	return text && str_to_int64(text, 0, max, &value) == 0 ? value : fallback;
}

int pool_size(void)
{
	return (int)number_from_environment("HUSK_POOL", 64, POOL_SIZE);
}

int64_t pool_idle_ms(void)
{
	return 1000 * number_from_environment("HUSK_POOL_IDLE", 86400, POOL_IDLE_SECONDS);
}

/* ---- notes: empty files of the instance whose time counts ---- */

static int note(struct husk *husk, const char *name)
{
	cleanup_free char *path = str_format("%s/%s", husk->paths.runtime, name);
	int fd = path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;

	if (fd >= 0)
		futimens(fd, NULL);
	return fd;
}

static int64_t modified_ms(const struct stat *st)
{
	return (int64_t)st->st_mtim.tv_sec * 1000 + st->st_mtim.tv_nsec / 1000000;
}

/* When the note was made; 0: never. */
static int64_t noted_ms(struct husk *husk, const char *name)
{
	cleanup_free char *path = str_format("%s/%s", husk->paths.runtime, name);
	struct stat st;

	return path && stat(path, &st) == 0 ? modified_ms(&st) : 0;
}

struct refill {
	struct husk *husk;
	bool (*over)(void *data);
	void *data;
	int64_t begun_ms;            /* nothing is added if the pool was drained since */
	struct catalog_sandbox like; /* only template, isolation, sizes, and whether it has a leash */
};

static bool is_useless(const struct refill *job)
{
	return job->over(job->data) || noted_ms(job->husk, DRAINED) >= job->begun_ms;
}

/* The note of a fork has the number of its children as its size. Its lock is held by forks and drains, or by one refill. */
static int open_forks(struct husk *husk)
{
	cleanup_free char *path = str_format("%s/" FORKS, husk->paths.runtime);

	return path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
}

/* For a limited time: a process that is stopped must not keep others waiting. `stop` (may be NULL) ends the wait. */
static void wait_for_lock(int fd, int how, const struct refill *stop)
{
	for (int64_t end = time_monotonic_ms() + LOCK_MS; flock(fd, how | LOCK_NB) < 0 && errno == EWOULDBLOCK;) {
		if ((stop && is_useless(stop)) || time_monotonic_ms() > end)
			break;
		usleep(LOCK_LOOK_US);
	}
}

/* ---- taking from the pool ---- */

/* If a claimed entry wakes another sandbox, that sandbox gets its slot. If the entry becomes a new sandbox, it gets the
 * fields of the wanted row. */
static int hand_over(struct husk *husk, const struct catalog_sandbox *wanted, struct catalog_sandbox *entry,
		     const char *secrets, struct husk_error *err)
{
	if (wanted->id)
		return catalog_pool_adopt(husk->catalog, wanted->id, entry->id, err);
	if (secrets && egress_secrets_save(husk, entry->id, secrets, err) < 0)
		return -1;
	struct catalog_sandbox row = *wanted;
	row.id = entry->id;
	row.slot = entry->slot;
	row.state = CATALOG_CREATING;
	row.created_ms = time_wall_ms();
	return catalog_sandbox_update(husk->catalog, &row, err);
}

/* False if the supervisor behind `fd` runs another program file than a new one would: the entry is from before an
 * upgrade. */
static bool runs_this_program(int fd)
{
	cleanup_free char *program = husk_program(NULL);
	struct stat theirs, ours;
	struct ucred peer;
	socklen_t size = sizeof(peer);
	char path[32];

	if (!program || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0)
		return true;
	snprintf(path, sizeof(path), "/proc/%d/exe", (int)peer.pid);
	return stat(path, &theirs) < 0 || stat(program, &ours) < 0 ||
	       (theirs.st_dev == ours.st_dev && theirs.st_ino == ours.st_ino);
}

/* Claims an entry and dials its supervisor. 1: *fd is the connection; 0: none; -1: the claimed entry (*out) failed. Entries
 * from before an upgrade are ended: a sandbox that is created or woken has the supervisor of this program. */
static int claim_entry(struct husk *husk, const struct catalog_sandbox *wanted, bool warm, struct catalog_sandbox **out,
		       int *fd, struct husk_error *err)
{
	for (int i = 0; i < ENTRIES_TRIED; i++) {
		int found =
			catalog_pool_claim(husk->catalog, wanted->template_digest, wanted->disk_bytes, warm, out, err);
		if (found <= 0)
			return found;
		*fd = supervisor_dial(husk, (*out)->id, SUPERVISOR_DIAL_MS, err);
		if (*fd < 0 || runs_this_program(*fd))
			return *fd < 0 ? -1 : 1;
		supervisor_call(*fd, METHOD_SANDBOX_KILL, NULL, NULL, supervisor_patience(METHOD_SANDBOX_KILL), NULL);
		fd_close(fd);
		husk_recover(husk, (*out)->id);
		catalog_sandbox_free(steal_pointer(*out));
	}
	return 0;
}

int pool_take(struct husk *husk, const struct catalog_sandbox *wanted, int lock_fd, const char *image, bool warm,
	      const char *secrets, char **out, struct husk_error *err)
{
	struct catalog_sandbox *entry = NULL;
	cleanup_buf struct buf arguments = { 0 };

	cleanup_close int fd = -1;
	int found = claim_entry(husk, wanted, warm, &entry, &fd, err);
	if (!entry)
		return found;
	int result = found < 0 ? -1 : hand_over(husk, wanted, entry, secrets, err);
	if (result == 0) {
		int bad = wire_put_string(&arguments, TAG_NAME, wanted->id ? wanted->id : entry->id);
		bad |= wire_put_string(&arguments, TAG_PATH, image);
		bad |= wire_put_int(&arguments, TAG_FLAGS, wanted->id ? lock_fd : -1);
		result = bad ? husk_fail_memory(err)
			     : supervisor_call(fd, METHOD_SANDBOX_CLAIM, &arguments, NULL,
					       supervisor_patience(METHOD_SANDBOX_CLAIM), err);
	}
	if (result == 0 && !(*out = strdup(wanted->id ? wanted->id : entry->id)))
		result = husk_fail_memory(err);
	if (result < 0) /* its supervisor has cleaned up, unless it was killed */
		husk_recover(husk, entry->id);
	catalog_sandbox_free(entry);
	return result < 0 ? -1 : 1;
}

/* ---- emptying the pool ---- */

/* Tells the entries to end; true: some are left, because they are still being prepared or could not be reached. */
static bool sweep_pool(struct husk *husk, size_t *ended)
{
	struct catalog_sandbox **list = NULL;
	bool left = false;

	if (catalog_sandbox_list(husk->catalog, 1u << CATALOG_POOL | 1u << CATALOG_PREPARING, &list, NULL) < 0)
		return false;
	for (size_t i = 0; list[i]; i++) {
		struct husk_error err = { 0 };
		cleanup_close int fd = supervisor_dial(husk, list[i]->id, DRAIN_DIAL_MS, &err);
		int result = fd < 0 ? -1
				    : supervisor_call(fd, METHOD_SANDBOX_KILL, NULL, NULL,
						      supervisor_patience(METHOD_SANDBOX_KILL), &err);
		if (result < 0 && err.code == HUSK_TIMEOUT)
			result = supervisor_force(husk, list[i]->id, NULL, &err);
		*ended += result == 0;
		left |= result < 0 || list[i]->state == CATALOG_PREPARING;
	}
	catalog_sandbox_list_free(list);
	return left;
}

/* No refill from before this moment adds an entry. */
static bool drain_once(struct husk *husk, size_t *ended)
{
	cleanup_close int noted = note(husk, DRAINED);

	return sweep_pool(husk, ended);
}

/* An entry that is being prepared cannot be ended yet, and would appear after the pool was reported as empty. */
size_t husk_pool_drain(struct husk *husk)
{
	size_t ended = 0;

	if (husk->remote)
		return remote_pool_drain(husk->remote, &ended, NULL) < 0 ? 0 : ended;
	if (husk_owner_only(husk, "the pool", NULL) < 0)
		return 0;
	cleanup_close int noted = note(husk, DRAINED);
	cleanup_close int forks = open_forks(husk);
	wait_for_lock(forks, LOCK_SH, NULL); /* a refill that is adding an entry */
	for (int64_t end = time_monotonic_ms() + PREPARING_MS; drain_once(husk, &ended); usleep(20000)) {
		if (time_monotonic_ms() > end)
			break;
		husk_recover(husk, NULL); /* the supervisor of an entry may have been killed */
	}
	return ended;
}

/* ---- filling the pool ---- */

/* Held between an entry's lock file and its row. A process that ends in between would leave a file without an owner. */
static pthread_mutex_t registering = PTHREAD_MUTEX_INITIALIZER;

void pool_close(void)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += CLOSE_SECONDS;
	(void)!pthread_mutex_timedlock(&registering, &until); /* and never given back */
}

bool pool_add(struct husk *husk, const struct catalog_sandbox *like, bool warm)
{
	struct husk_error err = { 0 };
	char id[32];
	struct catalog_sandbox row = *like;

	if (random_id("sb-", 10, id) < 0)
		return false;
	row.id = id;
	row.name = row.parent = row.end_reason = row.metadata = row.environment =
		NULL; /* egress decides whether to keep a leash ready */
	row.volumes = NULL;
	row.idempotency_key = row.request = NULL; /* they belong to the sandbox that the entry is modelled on */
	row.state = CATALOG_PREPARING;
	row.warm = warm;
	row.persistent = row.hibernates = row.each_call = false;
	row.expires_ms = row.ended_ms = row.idle_seconds = 0;
	row.created_ms = time_wall_ms();
	cleanup_free char *baked = bake_path(husk, row.isolation, row.template_digest, row.disk_bytes, &err);
	if (!baked)
		return false;
	pthread_mutex_lock(&registering);
	cleanup_close int lock = supervisor_lock_new(husk, id, &err);
	bool added = lock >= 0 && catalog_sandbox_add(husk->catalog, &row, &err) == 0;
	if (lock >= 0 && !added)
		supervisor_unname(husk, id);
	pthread_mutex_unlock(&registering);
	if (added && supervisor_start(husk, id, lock, warm ? baked : NULL, SUPERVISE_POOL, &err) == 0)
		return true;
	log_line(LOG_WARN, "cannot fill the pool: %s", err.message);
	return false;
}

static void refill_free(struct refill *job)
{
	free(job->like.template_name);
	free(job->like.template_digest);
	free(job->like.isolation);
	free(job);
}

/* Less than an eighth of the host's memory is available: then the pool shrinks by use, since entries are not replaced. */
static bool is_memory_short(void)
{
	cleanup_free char *text = file_read("/proc/meminfo", MEMINFO_MAX, NULL, NULL);
	const char *total = text ? strstr(text, "MemTotal:") : NULL;
	const char *available = text ? strstr(text, "MemAvailable:") : NULL;

	return total && available &&
	       strtoull(available + strlen("MemAvailable:"), NULL, 10) <
		       strtoull(total + strlen("MemTotal:"), NULL, 10) / 8;
}

int pool_note_fork(struct husk *husk, size_t count)
{
	int fd = note(husk, FORKS);

	if (fd >= 0) {
		(void)!ftruncate(fd, (off_t)count);
		flock(fd, LOCK_SH | LOCK_NB);
	}
	return fd;
}

/* A machine that forked into several is likely to do so again soon. */
static int shells_wanted(int forks)
{
	struct stat st;
	int most = pool_size() * SHELLS_PER_WARM;

	if (fstat(forks, &st) < 0 || time_wall_ms() - modified_ms(&st) > pool_idle_ms())
		return MIN(most, 1);
	return MIN(most, (int)MAX(st.st_size, 1));
}

static void *refill(void *argument)
{
	struct refill *job = argument;
	cleanup_close int forks = open_forks(job->husk);

	/* A refill takes CPU time from new sandboxes and from forks. */
	usleep(REFILL_PAUSE_US);
	wait_for_lock(forks, LOCK_EX, job);
	/* The first failure ends the loop: a drain may be running, and must be able to finish. */
	bool failed = is_memory_short();
	for (int warm = 1; warm >= 0; warm--) {
		int target = warm ? pool_size() : shells_wanted(forks);
		for (int added = 0; added < target && !failed && !is_useless(job); added++) {
			int count = catalog_pool_count(job->husk->catalog, job->like.template_digest,
						       job->like.disk_bytes, warm, NULL);
			if (count < 0 || count >= target)
				break;
			failed = !pool_add(job->husk, &job->like, warm);
		}
	}
	refill_free(job);
	return NULL;
}

/* Did this instance recently create sandboxes with a policy? */
static bool leash_in_use(struct husk *husk, bool leashed)
{
	cleanup_close int noted = leashed ? note(husk, LEASH) : -1;

	return leashed || time_wall_ms() - noted_ms(husk, LEASH) < 1000 * LEASH_SECONDS;
}

void pool_refill(struct husk *husk, const struct catalog_sandbox *like, bool leashed, bool (*over)(void *data),
		 void *data)
{
	pthread_t thread;
	struct refill *job = calloc(1, sizeof(*job));

	if (!job || pool_size() == 0) {
		free(job);
		return;
	}
	job->husk = husk;
	job->over = over;
	job->data = data;
	bool entry = like->state == CATALOG_PREPARING;
	job->begun_ms = entry ? like->created_ms : time_wall_ms();
	job->like = (struct catalog_sandbox){
		.template_name = strdup(like->template_name),
		.template_digest = strdup(like->template_digest),
		.isolation = strdup(like->isolation),
		.memory_bytes = like->memory_bytes,
		.disk_bytes = like->disk_bytes,
		.cpu_milli = like->cpu_milli,
		.pids = like->pids,
		.egress = leash_in_use(husk, leashed && !entry) ? "{\"mode\":\"allow\"}" : NULL,
	};
	if (!job->like.template_name || !job->like.template_digest || !job->like.isolation ||
	    pthread_create(&thread, NULL, refill, job) != 0) {
		refill_free(job);
		return;
	}
	pthread_detach(thread);
}
