/*
 * The paths of an instance (the map is in paths.h). Called once by husk_open and by each supervisor, afterwards only to
 * build paths. Nothing may be written outside the home and run directories. A directory that other users can write to is
 * refused, because it holds sockets and environments.
 */
#include "store/paths.h"

#include <sys/stat.h>
#include <sys/un.h>

#define DEFAULT_HOME "/var/lib/husk"
#define DEFAULT_RUN "/run/husk"

/* The longest name of a socket in <run>/runtime: an engine's prefix, a sandbox's id and ".sock". */
#define SOCKET_NAME_MAX 36

static int make_private(const char *path, struct husk_error *err)
{
	struct stat st;

	if (dir_make(path, 0700, err))
		return -1;
	if (lstat(path, &st))
		return husk_fail_errno(err, "look at %s", path);
	if (!S_ISDIR(st.st_mode))
		return husk_fail(err, HUSK_INVALID,
				 "%s is not a directory; move it away, or set HUSK_HOME to another place", path);
	if (st.st_uid != geteuid())
		return husk_fail(err, HUSK_INVALID,
				 "%s belongs to uid %u, and husk runs as uid %u; set HUSK_HOME to a place of your own",
				 path, st.st_uid, geteuid());
	if (st.st_mode & (S_IWGRP | S_IWOTH))
		return husk_fail(err, HUSK_INVALID, "%s can be written to by others; run: chmod go-w %s", path, path);
	return 0;
}

/* `home` is as given, or resolved. The default home has its sockets in another directory, where they always fit. */
static int check_length(const char *home, struct husk_error *err)
{
	size_t room = sizeof((struct sockaddr_un *)0)->sun_path - 1; /* for the NUL */
	size_t longest = room - strlen("/run/runtime/") - SOCKET_NAME_MAX;

	if (strlen(home) <= longest)
		return 0;
	return husk_fail(
		err, HUSK_INVALID,
		"home directory %s is too long a path for the sockets in it (%zu bytes, at most %zu); set HUSK_HOME "
		"to a shorter one",
		home, strlen(home), longest);
}

/* The requested home, made if missing: absolute and without symbolic links, so that an instance has one name. */
static int resolve_home(const char *home, char **out, struct husk_error *err)
{
	if (!home)
		home = getenv("HUSK_HOME");
	if (!home || !*home)
		home = DEFAULT_HOME;
	if (access(home, F_OK)) { /* nothing is made that would be refused afterwards */
		if (check_length(home, err))
			return -1;
		if (dir_make(home, 0700, err))
			return husk_wrap(err, "home directory %s", home);
	}
	cleanup_free char *resolved = realpath(home, NULL);

	if (!resolved)
		return husk_fail_errno(err, "home directory %s", home);
	if (check_length(resolved, err))
		return -1;
	*out = steal_pointer(resolved);
	return 0;
}

/* FNV-1a: short, stable, and good enough to distinguish the few instances of a host. */
static uint32_t hash(const char *s)
{
	uint32_t value = 2166136261u;

	for (; *s; s++)
		value = (value ^ (uint8_t)*s) * 16777619u;
	return value;
}

static int name_directories(struct paths *paths, struct husk_error *err)
{
	bool is_default = strcmp(paths->home, DEFAULT_HOME) == 0;

	paths->run = is_default ? strdup(DEFAULT_RUN) : str_format("%s/run", paths->home);
	paths->scope = is_default ? strdup("default") : str_format("%08x", hash(paths->home));
	paths->runtime = paths->run ? str_format("%s/runtime", paths->run) : NULL;
	return paths->runtime && paths->scope ? 0 : husk_fail_memory(err);
}

static int make_directories(const struct paths *paths, struct husk_error *err)
{
	static const char *const in_home[] = { "templates", "cache",   "images",  "snapshots",
					       "sandboxes", "volumes", "machines" };

	if (make_private(paths->home, err) || make_private(paths->run, err) || make_private(paths->runtime, err))
		return -1;
	for (size_t i = 0; i < ARRAY_SIZE(in_home); i++) {
		cleanup_free char *path = str_format("%s/%s", paths->home, in_home[i]);

		if (!path)
			return husk_fail_memory(err);
		if (make_private(path, err))
			return -1;
	}
	return 0;
}

int paths_open(const char *home, struct paths *out, struct husk_error *err)
{
	struct paths paths = { 0 };

	if (resolve_home(home, &paths.home, err) || name_directories(&paths, err) || make_directories(&paths, err)) {
		paths_close(&paths);
		return -1;
	}
	*out = paths;
	return 0;
}

void paths_close(struct paths *paths)
{
	free(paths->home);
	free(paths->run);
	free(paths->runtime);
	free(paths->scope);
	*paths = (struct paths){ 0 };
}

char *path_catalog(const struct paths *paths)
{
	return str_format("%s/catalog.db", paths->home);
}

char *path_signing_key(const struct paths *paths)
{
	return str_format("%s/signing.key", paths->home);
}

char *path_template(const struct paths *paths, const char *digest)
{
	return str_format("%s/templates/%s", paths->home, digest);
}

char *path_rootfs(const struct paths *paths, const char *digest)
{
	return str_format("%s/templates/%s/rootfs.img", paths->home, digest);
}

char *path_images(const struct paths *paths)
{
	return str_format("%s/images", paths->home);
}

char *path_snapshot(const struct paths *paths, const char *id)
{
	return str_format("%s/snapshots/%s", paths->home, id);
}

char *path_sandbox(const struct paths *paths, const char *id)
{
	return str_format("%s/sandboxes/%s", paths->home, id);
}

char *path_image(const struct paths *paths, const char *id)
{
	return str_format("%s/sandboxes/%s/image", paths->home, id);
}

char *path_points(const struct paths *paths, const char *id)
{
	return str_format("%s/sandboxes/%s/points", paths->home, id);
}

char *path_point(const struct paths *paths, const char *id, int64_t number)
{
	return str_format("%s/sandboxes/%s/" POINT_FROM_SANDBOX, paths->home, id, (long long)number);
}

char *path_volume(const struct paths *paths, const char *id)
{
	return str_format("%s/volumes/%s", paths->home, id);
}

char *path_workspaces(const struct paths *paths)
{
	return str_format("%s/workspaces", paths->home);
}

char *path_machine(const struct paths *paths, uint32_t slot)
{
	return str_format("%s/machines/%u", paths->home, slot);
}

char *path_socket(const struct paths *paths, const char *id)
{
	return str_format("%s/%s.sock", paths->run, id);
}

char *path_lock(const struct paths *paths, const char *id)
{
	return str_format("%s/%s.lock", paths->run, id);
}
