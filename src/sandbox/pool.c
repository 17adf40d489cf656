/*
 * Starting supervisors, and the pool of prepared machines; see pool.h. The pool has no keeper of its own: every machine
 * that turns into a sandbox starts its replacement, and one nobody claims goes away by itself.
 */
#include "sandbox/pool.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "sandbox/egress.h"
#include "sandbox/supervisor.h"
#include "store/template.h"

#define START_TIMEOUT_MS 60000
#define POOL_SIZE 2
#define POOL_IDLE_SECONDS 300
#define LEASH_SECONDS 600 /* how long after a sandbox with a policy the pool keeps leashes ready */

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

bool sandbox_has_image(struct husk *husk, const char *id)
{
	cleanup_free char *directory = path_sandbox(&husk->paths, id);
	cleanup_free char *image = directory ? str_format("%s/image", directory) : NULL;

	return image && access(image, F_OK) == 0;
}

int supervisor_lock(struct husk *husk, const char *id, struct husk_error *err)
{
	cleanup_free char *path = path_lock(&husk->paths, id);

	if (!path)
		return husk_fail_memory(err);
	for (;;) {
		cleanup_close int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
		struct stat held, named;
		if (fd < 0)
			return husk_fail_errno(err, "cannot open '%s'", path);
		if (flock(fd, LOCK_EX | LOCK_NB) < 0)
			return husk_fail(err, HUSK_CONFLICT, "sandbox %s is held by another process", id);
		/* Its last holder may have removed the name between our open and our lock. */
		if (fstat(fd, &held) == 0 && stat(path, &named) == 0 && held.st_ino == named.st_ino)
			return steal_fd(&fd);
	}
}

/* The husk binary: ourselves when we are it, else what an embedding program was told or what is installed. */
char *husk_program(struct husk_error *err)
{
	char self[4096];
	ssize_t size = readlink("/proc/self/exe", self, sizeof(self) - 1);
	const char *named = getenv("HUSK_BIN");

	if (named && *named)
		return strdup(named);
	if (size > 0) {
		self[size] = 0;
		const char *base = strrchr(self, '/');
		if (base && str_equal(base, "/husk"))
			return strdup(self);
	}
	char *found = template_libfile("husk");
	if (!found)
		husk_fail(err, HUSK_UNAVAILABLE, "cannot find the husk program; set HUSK_BIN to its path");
	return found;
}

/* Only what a supervisor needs of our environment: never the caller's secrets. */
static char **clean_environment(void)
{
	static const char *const kept[] = { "PATH",          "HUSK_POOL",    "HUSK_POOL_IDLE", "HUSK_BIN",
					    "HUSK_LIBDIR",   "HUSK_CACHE",   "HUSK_NET",       "HUSK_DNS",
					    "SSL_CERT_FILE", "ASAN_OPTIONS", "UBSAN_OPTIONS" };
	cleanup_strv char **list = calloc(1, sizeof(char *));

	for (size_t i = 0; list && i < ARRAY_SIZE(kept); i++) {
		const char *value = getenv(kept[i]);
		cleanup_free char *pair = value ? str_format("%s=%s", kept[i], value) : NULL;
		if (value && (!pair || strv_add(&list, pair) < 0))
			return NULL;
	}
	return steal_pointer(list);
}

/* Reads the outcome: "ok", or "<code> <message>". */
static int read_outcome(int fd, struct husk_error *err)
{
	char text[sizeof(err->message) + 16];
	size_t size = 0;
	int64_t deadline = time_monotonic_ms() + START_TIMEOUT_MS;

	for (;;) {
		struct pollfd wait = { fd, POLLIN, 0 };
		int64_t left = deadline - time_monotonic_ms();
		if (left <= 0)
			return husk_fail(err, HUSK_TIMEOUT, "the sandbox did not come up within %d s",
					 START_TIMEOUT_MS / 1000);
		if (poll(&wait, 1, (int)left) < 0 && errno != EINTR)
			return husk_fail_errno(err, "cannot wait for the supervisor");
		if (!wait.revents)
			continue;
		ssize_t n = read(fd, text + size, sizeof(text) - 1 - size);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			break;
		size += (size_t)n;
	}
	text[size] = 0;
	if (str_equal(text, "ok"))
		return 0;
	char *message = text;
	long code = strtol(text, &message, 10);
	if (size == 0 || code <= HUSK_OK || code > HUSK_INTERNAL)
		return husk_fail(err, HUSK_INTERNAL, "the supervisor died while it was starting");
	return husk_fail(err, (enum husk_code)code, "%s", *message == ' ' ? message + 1 : message);
}

int supervisor_start(struct husk *husk, const char *id, int lock_fd, const char *image, bool pool,
		     struct husk_error *err)
{
	cleanup_free char *binary = husk_program(err);
	cleanup_strv char **environment = clean_environment();
	cleanup_close int read_end = -1;
	cleanup_close int write_end = -1;
	const char *argv[12] = { "husk", "supervise", "--home", husk->paths.home, "--id", id };
	posix_spawn_file_actions_t actions;
	int pipe_fds[2], n = 6, status;
	pid_t pid;

	if (!binary || !environment)
		return binary ? husk_fail_memory(err) : -1;
	if (pool)
		argv[n++] = "--pool";
	if (image) {
		argv[n++] = "--image";
		argv[n++] = image;
	}
	if (pipe2(pipe_fds, O_CLOEXEC) < 0)
		return husk_fail_errno(err, "cannot make a pipe");
	read_end = pipe_fds[0];
	write_end = fcntl(pipe_fds[1], F_DUPFD_CLOEXEC, 10); /* clear of 3 and 4, which the child gets */
	close(pipe_fds[1]);
	cleanup_close int lock_copy = fcntl(lock_fd, F_DUPFD_CLOEXEC, 10);
	if (write_end < 0 || lock_copy < 0)
		return husk_fail_errno(err, "cannot duplicate a descriptor");

	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, lock_copy, SUPERVISOR_LOCK_FD);
	posix_spawn_file_actions_adddup2(&actions, write_end, 4);
	int failed = posix_spawn(&pid, binary, &actions, NULL, (char *const *)argv, environment);
	posix_spawn_file_actions_destroy(&actions);
	if (failed) {
		errno = failed;
		return husk_fail_errno(err, "cannot start '%s'", binary);
	}
	base_cleanup_close(&write_end);
	write_end = -1;
	/* What we started forks the real one and exits at once. */
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	return read_outcome(read_end, err);
}

/* ---- taking from the pool ---- */

/* A claimed entry that wakes another sandbox gives it its slot; one that becomes a new one gets the wanted row's fields. */
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

int pool_take(struct husk *husk, const struct catalog_sandbox *wanted, int lock_fd, const char *image, bool warm,
	      const char *secrets, char **out, struct husk_error *err)
{
	struct catalog_sandbox *entry = NULL;
	cleanup_buf struct buf arguments = { 0 };

	int found = catalog_pool_claim(husk->catalog, wanted->template_digest, wanted->disk_bytes, warm, &entry, err);
	if (found <= 0)
		return found;
	cleanup_close int fd = supervisor_dial(husk, entry->id, err);
	int result = fd < 0 ? -1 : hand_over(husk, wanted, entry, secrets, err);
	if (result == 0) {
		int bad = wire_put_string(&arguments, TAG_NAME, wanted->id ? wanted->id : entry->id);
		bad |= wire_put_string(&arguments, TAG_PATH, image);
		bad |= wire_put_int(&arguments, TAG_FLAGS, wanted->id ? lock_fd : -1);
		result = bad ? husk_fail_memory(err) : supervisor_call(fd, METHOD_SANDBOX_CLAIM, &arguments, NULL, err);
	}
	if (result == 0)
		*out = strdup(wanted->id ? wanted->id : entry->id);
	catalog_sandbox_free(entry);
	return result < 0 ? -1 : *out ? 1 : husk_fail_memory(err);
}

/* ---- filling the pool ---- */

void pool_add(struct husk *husk, const struct catalog_sandbox *like, bool warm)
{
	struct husk_error err = { 0 };
	char id[32];
	struct catalog_sandbox row = *like;

	if (random_id("sb-", 10, id) < 0)
		return;
	row.id = id;
	row.name = row.parent = row.end_reason = row.metadata = row.environment =
		NULL; /* egress tells whether to keep a leash ready */
	row.volumes = NULL;
	row.idempotency_key = row.request = NULL; /* they stand for the sandbox it is like, and for no second one */
	row.state = CATALOG_PREPARING;
	row.warm = warm;
	row.persistent = false;
	row.expires_ms = row.ended_ms = row.idle_seconds = 0;
	row.created_ms = time_wall_ms();
	cleanup_free char *baked = path_baked(&husk->paths, row.template_digest, row.disk_bytes);
	cleanup_free char *lock_path = path_lock(&husk->paths, id);
	if (!baked || !lock_path)
		return;
	cleanup_close int lock = supervisor_lock(husk, id, &err);
	bool added = lock >= 0 && catalog_sandbox_add(husk->catalog, &row, &err) == 0;
	if (lock >= 0 && !added)
		unlink(lock_path); /* without a row nobody would find it */
	if (!added || supervisor_start(husk, id, lock, warm ? baked : NULL, true, &err) < 0)
		log_line(LOG_WARN, "cannot fill the pool: %s", err.message);
}

struct refill {
	struct supervisor *supervisor;
	struct catalog_sandbox like; /* only template, isolation, sizes, and whether it is on a leash */
};

static void *refill(void *argument)
{
	struct refill *job = argument;
	struct catalog *catalog = job->supervisor->husk.catalog;

	for (int warm = 1; warm >= 0; warm--) {
		int target = warm ? pool_size() : MIN(pool_size(), 1);
		while (!job->supervisor->over) {
			int count = catalog_pool_count(catalog, job->like.template_digest, job->like.disk_bytes, warm,
						       NULL);
			if (count < 0 || count >= target)
				break;
			pool_add(&job->supervisor->husk, &job->like, warm);
		}
	}
	free(job->like.template_name);
	free(job->like.template_digest);
	free(job->like.isolation);
	free(job);
	return NULL;
}

/* Does this instance make sandboxes with a policy these days? Told by the age of a file that each of them touches. */
static bool leash_in_use(struct supervisor *s)
{
	cleanup_free char *path = str_format("%s/leash", s->husk.paths.runtime);
	struct stat st;

	if (!path)
		return false;
	if (s->network.leash) {
		cleanup_close int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
		if (fd >= 0)
			futimens(fd, NULL);
		return true;
	}
	return stat(path, &st) == 0 && time_wall_ms() / 1000 - st.st_mtime < LEASH_SECONDS;
}

void pool_refill(struct supervisor *s, const struct catalog_sandbox *like)
{
	pthread_t thread;
	struct refill *job = calloc(1, sizeof(*job));

	if (!job || pool_size() == 0) {
		free(job);
		return;
	}
	job->supervisor = s;
	job->like = (struct catalog_sandbox){
		.template_name = strdup(like->template_name),
		.template_digest = strdup(like->template_digest),
		.isolation = strdup(like->isolation),
		.memory_bytes = like->memory_bytes,
		.disk_bytes = like->disk_bytes,
		.cpu_milli = like->cpu_milli,
		.pids = like->pids,
		.egress = leash_in_use(s) ? "{\"mode\":\"allow\"}" : NULL,
	};
	if (!job->like.template_name || !job->like.template_digest || !job->like.isolation ||
	    pthread_create(&thread, NULL, refill, job) != 0) {
		free(job->like.template_name);
		free(job->like.template_digest);
		free(job->like.isolation);
		free(job);
		return;
	}
	pthread_detach(thread);
}
