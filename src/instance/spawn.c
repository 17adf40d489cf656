/*
 * Starts supervisors: takes the lock that each holds for life, chooses the program, limits what the program inherits (two
 * descriptors and a few environment variables, never the caller's secrets), and waits for "ok". Called by create, wake and
 * the pool.
 */
#include "instance/spawn.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/log.h"
#include "store/template.h"

#define START_TIMEOUT_MS (5 * 60 * 1000) /* every step of a start has a shorter limit */
#define SWEEP_TRIES 1000
#define SWEEP_WAIT_US 5000

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
		/* The last holder may have removed the name between our open and our lock. */
		if (fstat(fd, &held) == 0 && stat(path, &named) == 0 && held.st_ino == named.st_ino)
			return steal_fd(&fd);
	}
}

void supervisor_unname(struct husk *husk, const char *id)
{
	cleanup_free char *socket_path = path_socket(&husk->paths, id);
	cleanup_free char *lock_path = path_lock(&husk->paths, id);

	if (socket_path)
		unlink(socket_path);
	if (lock_path) /* last: until then nobody else uses the name */
		unlink(lock_path);
}

int supervisor_lock_new(struct husk *husk, const char *id, struct husk_error *err)
{
	for (int tries = 0;; tries++) {
		struct husk_error why = { 0 };
		int lock = supervisor_lock(husk, id, &why);
		if (lock >= 0)
			return lock;
		if (why.code != HUSK_CONFLICT || tries == SWEEP_TRIES)
			return husk_fail(err, why.code, "%s", why.message);
		usleep(SWEEP_WAIT_US);
	}
}

void supervisor_locks_sweep(struct husk *husk, const char *prefix, bool (*is_live)(struct husk *husk, const char *id))
{
	cleanup_dir DIR *dir = opendir(husk->paths.run);
	struct dirent *entry;

	while (dir && (entry = readdir(dir))) {
		size_t size = strcspn(entry->d_name, ".");
		const char *kind = entry->d_name + size;
		bool ours = str_starts(entry->d_name, prefix) && (str_equal(kind, ".lock") || str_equal(kind, ".sock"));
		cleanup_free char *id = ours ? strndup(entry->d_name, size) : NULL;
		cleanup_close int lock = id ? supervisor_lock(husk, id, NULL) : -1;
		if (lock >= 0 && !(is_live && is_live(husk, id)))
			supervisor_unname(husk, id);
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

/* Only the variables that a supervisor needs: never the caller's secrets. */
static char **clean_environment(void)
{
	static const char *const kept[] = { "PATH",       "HUSK_POOL", "HUSK_POOL_IDLE", "HUSK_BIN",      "HUSK_LIBDIR",
					    "HUSK_CACHE", "HUSK_NET",  "HUSK_DNS",       "SSL_CERT_FILE", "HUSK_STRICT",
					    "HUSK_RUNSC", "HUSK_DISK", "ASAN_OPTIONS",   "UBSAN_OPTIONS" };
	cleanup_strv char **list = log_environment();

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

int supervisor_start(struct husk *husk, const char *id, int lock_fd, const char *image, enum supervisor_task task,
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
	if (task == SUPERVISE_POOL)
		argv[n++] = "--pool";
	if (task == SUPERVISE_REBOOT)
		argv[n++] = "--reboot";
	if (image) {
		argv[n++] = "--image";
		argv[n++] = image;
	}
	if (pipe2(pipe_fds, O_CLOEXEC) < 0)
		return husk_fail_errno(err, "cannot make a pipe");
	read_end = pipe_fds[0];
	write_end = fcntl(pipe_fds[1], F_DUPFD_CLOEXEC, 10); /* above 3 and 4, which the child gets */
	fd_close(&pipe_fds[1]);
	cleanup_close int lock_copy = fcntl(lock_fd, F_DUPFD_CLOEXEC, 10);
	if (write_end < 0 || lock_copy < 0)
		return husk_fail_errno(err, "cannot duplicate a descriptor");

	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, lock_copy, SUPERVISOR_LOCK_FD);
	posix_spawn_file_actions_adddup2(&actions, write_end, SUPERVISOR_STATUS_FD);
	int failed = posix_spawn(&pid, binary, &actions, NULL, (char *const *)argv, environment);
	posix_spawn_file_actions_destroy(&actions);
	if (failed) {
		errno = failed;
		return husk_fail_errno(err, "cannot start '%s'", binary);
	}
	fd_close(&write_end);
	/* The started process forks the real supervisor and exits at once. */
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	return read_outcome(read_end, err);
}
