/*
 * Finds leaks: lists everything that an instance can leave on a host (processes, cgroups, engine state, sockets, locks,
 * directories, mounts) and compares the list with the existing sandboxes, snapshots and templates. Anything without an
 * owner is a leak. This file only reports; husk_gc and husk_recover remove.
 */
#include "instance/leaks.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>

#include "engine/engine.h"
#include "instance/spawn.h"
#include "jail/cgroup.h"

#define REMOVAL_SECONDS 60 /* without progress: no process works on it */

struct search {
	struct husk *husk;
	char **ids;      /* of sandboxes that have not ended */
	char **machines; /* names of machines that may be alive: by slot, and running bakes */
	char **snapshots, **digests;
	leak_found found;
	void *data;
};

static bool listed(char *const *list, const char *word)
{
	for (size_t i = 0; list && list[i]; i++)
		if (strcmp(list[i], word) == 0)
			return true;
	return false;
}

static void report(struct search *search, const char *kind, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
static void report(struct search *search, const char *kind, const char *format, ...)
{
	char text[4400];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	search->found(search->data, kind, text);
}

/* A lock file that nobody holds. */
static bool unheld(const char *path)
{
	cleanup_close int fd = open(path, O_RDONLY | O_CLOEXEC);

	return fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0;
}

/* ---- what should exist ---- */

static int know_rows(struct search *search, struct catalog_sandbox **rows)
{
	int bad = 0;

	for (size_t i = 0; rows[i]; i++) {
		cleanup_free char *machine = str_format("%s-%u", search->husk->paths.scope, rows[i]->slot);
		bad |= strv_add(&search->ids, rows[i]->id);
		if (rows[i]->state != CATALOG_HIBERNATED)
			bad |= machine ? strv_add(&search->machines, machine) : -1;
	}
	catalog_sandbox_list_free(rows);
	return bad;
}

/* Sandboxes that have not ended, and ended ones whose supervisor is still cleaning up. */
static int know_sandboxes(struct search *search, struct husk_error *err)
{
	struct catalog_sandbox **live = NULL, **remains = NULL;

	if (catalog_sandbox_list(search->husk->catalog, ~(1u << CATALOG_ENDED), &live, err) < 0)
		return -1;
	int bad = know_rows(search, live);
	if (catalog_sandbox_remains(search->husk->catalog, &remains, err) < 0)
		return -1;
	bad |= know_rows(search, remains);
	return bad ? husk_fail_memory(err) : 0;
}

static int know_stored(struct search *search, struct husk_error *err)
{
	struct catalog_snapshot **snapshots = NULL;
	struct catalog_template **templates = NULL;
	int bad = 0;

	for (int unready = 0; unready < 2; unready++) {
		if (catalog_snapshot_list(search->husk->catalog, unready, &snapshots, err) < 0)
			return -1;
		for (size_t i = 0; snapshots[i]; i++)
			bad |= strv_add(&search->snapshots, snapshots[i]->id);
		catalog_snapshot_list_free(snapshots);
	}
	if (catalog_moment_list(search->husk->catalog, false, &snapshots, err) < 0)
		return -1;
	for (size_t i = 0; snapshots[i]; i++)
		bad |= strv_add(&search->snapshots, snapshots[i]->id);
	catalog_snapshot_list_free(snapshots);
	if (catalog_template_list(search->husk->catalog, true, &templates, err) < 0)
		return -1;
	for (size_t i = 0; templates[i]; i++)
		bad |= strv_add(&search->digests, templates[i]->digest);
	catalog_template_list_free(templates);
	return bad ? husk_fail_memory(err) : 0;
}

/* ---- what there is ---- */

/* Calls back for every name in a directory, if the directory exists. */
static void each_name(struct search *search, const char *directory,
		      void (*check)(struct search *, const char *, const char *))
{
	cleanup_dir DIR *dir = opendir(directory);
	struct dirent *entry;

	while (dir && (entry = readdir(dir)))
		if (entry->d_name[0] != '.')
			check(search, directory, entry->d_name);
}

/* <id>.sock, <id>.lock; a running bake is known by the lock that it holds. */
static void check_run(struct search *search, const char *directory, const char *name)
{
	cleanup_free char *path = str_format("%s/%s", directory, name);
	cleanup_free char *id = strndup(name, strcspn(name, "."));

	if (!path || !id || !(str_ends(name, ".sock") || str_ends(name, ".lock")) || listed(search->ids, id))
		return;
	if (str_equal(id, "huskd")) /* the server's own */
		return;
	if (str_ends(name, ".lock") && !unheld(path)) {
		if (str_starts(id, "bake-"))
			strv_add(&search->machines, id);
		return; /* a process works under it now */
	}
	report(search, str_ends(name, ".sock") ? "socket" : "lock", "%s belongs to no sandbox", path);
}

static void check_machine(struct search *search, const char *directory, const char *name)
{
	cleanup_free char *machine =
		str_starts(name, "bake-") ? strdup(name) : str_format("%s-%s", search->husk->paths.scope, name);

	if (machine && !listed(search->machines, machine))
		report(search, "directory", "%s/%s belongs to no machine", directory, name);
}

static void check_engine_state(struct search *search, const char *directory, const char *name)
{
	for (size_t i = 0; search->machines && search->machines[i]; i++) {
		const char *at = strstr(name, search->machines[i]);
		char after = at ? at[strlen(search->machines[i])] : 0;
		if (at && !(after >= '0' && after <= '9'))
			return;
	}
	report(search, "engine state", "%s/%s belongs to no machine", directory, name);
}

static void check_sandbox(struct search *search, const char *directory, const char *name)
{
	static const char *const kept[] = { "image", "points" };

	for (size_t i = 0; i < ARRAY_SIZE(kept); i++) {
		cleanup_free char *image = str_format("%s/%s/%s", directory, name, kept[i]);
		struct stat found;

		if (image && lstat(image, &found) == 0 && !listed(search->ids, name))
			report(search, "directory", "%s belongs to no sandbox", image);
	}
}

/* The rest of a removal is a leak when no process works on it any more. */
static bool is_being_removed(const char *directory, const char *name)
{
	cleanup_free char *path = str_format("%s/%s", directory, name);
	struct stat st;

	return image_is_gone(name) && (!path || stat(path, &st) < 0 || time(NULL) - st.st_ctime < REMOVAL_SECONDS);
}

static void check_snapshot(struct search *search, const char *directory, const char *name)
{
	cleanup_free char *id = strndup(name, strcspn(name, ".")); /* it may be partial yet */

	if (id && !is_being_removed(directory, name) && !listed(search->snapshots, id))
		report(search, "directory", "%s/%s belongs to no snapshot", directory, name);
}

static void check_template(struct search *search, const char *directory, const char *name)
{
	cleanup_free char *path = str_format("%s/%s", directory, name);

	/* A running build holds its lock. */
	if (path && !listed(search->digests, name) && !is_being_removed(directory, name) && unheld(path))
		report(search, "directory", "%s/%s belongs to no template", directory, name);
}

static void check_cgroups(struct search *search)
{
	cleanup_strv char **groups = cgroup_list(search->husk->paths.scope);

	for (size_t i = 0; groups && groups[i]; i++)
		if (!listed(search->machines, groups[i]))
			report(search, "cgroup", "%s belongs to no machine", groups[i]);
}

/* The value after `flag` in a NUL-separated command line, "--flag value" or "--flag=value". */
static const char *flag_value(const char *line, size_t size, const char *flag)
{
	size_t length = strlen(flag);

	for (const char *word = line; word < line + size; word += strlen(word) + 1) {
		if (strncmp(word, flag, length) != 0)
			continue;
		if (word[length] == '=')
			return word + length + 1;
		if (word[length] == 0 && word + length + 1 < line + size)
			return word + length + 1;
	}
	return NULL;
}

/* Is it in the cgroup of a machine that may be alive? */
static bool in_live_machine(struct search *search, const char *pid)
{
	cleanup_free char *path = str_format("/proc/%s/cgroup", pid);
	cleanup_free char *text = path ? file_read(path, 65536, NULL, NULL) : NULL;
	cleanup_free char *below = str_format("/husk/%s/", search->husk->paths.scope);
	const char *at = text && below ? strstr(text, below) : NULL;
	cleanup_free char *machine = at ? strndup(at + strlen(below), strcspn(at + strlen(below), "/\n")) : NULL;

	return machine && listed(search->machines, machine);
}

/* A supervisor holds the lock of its sandbox on SUPERVISOR_LOCK_FD. Its command line is not enough: a pooled supervisor
 * may serve another id than it was started with. */
static bool is_live_supervisor(struct search *search, const char *pid)
{
	cleanup_free char *path = str_format("/proc/%s/fd/%d", pid, SUPERVISOR_LOCK_FD);
	char target[4096];
	ssize_t size = path ? readlink(path, target, sizeof(target) - 1) : -1;

	if (size <= 0)
		return false;
	target[size] = 0;
	char *name = strrchr(target, '/');
	char *dot = name ? strstr(name, ".lock") : NULL;
	if (!dot)
		return false;
	*dot = 0;
	return listed(search->ids, name + 1);
}

/* Supervisors, the inits of machines and engine processes of this instance are known by their command lines. */
static bool is_stray(struct search *search, const char *pid)
{
	cleanup_free char *path = str_format("/proc/%s/cmdline", pid);
	size_t size = 0;
	cleanup_free char *line = path ? file_read(path, 65536, &size, NULL) : NULL;

	if (!line || size == 0)
		return false;
	const char *home = flag_value(line, size, "--home"), *root = flag_value(line, size, "--root");
	bool ours = (str_equal(home, search->husk->paths.home) && flag_value(line, size, "--id")) ||
		    (root && str_starts(root, search->husk->paths.runtime));
	return ours && !in_live_machine(search, pid) && !is_live_supervisor(search, pid);
}

static void check_process(struct search *search, const char *directory, const char *name)
{
	if (name[0] < '0' || name[0] > '9')
		return;
	/* A process that has just finished is about to exit: give it a moment. */
	for (int i = 0; is_stray(search, name); i++, usleep(20000)) {
		if (i == 100) {
			report(search, "process", "%s/%s belongs to no live sandbox", directory, name);
			return;
		}
	}
}

static void check_mounts(struct search *search)
{
	cleanup_free char *text = file_read("/proc/self/mountinfo", 4u << 20, NULL, NULL);
	char *rest = text;

	for (char *line; text && (line = strsep(&rest, "\n"));)
		if (strstr(line, search->husk->paths.runtime))
			report(search, "mount", "%.400s", line);
}

int leaks_search(struct husk *husk, leak_found found, void *data, struct husk_error *err)
{
	struct search search = { .husk = husk, .found = found, .data = data };
	cleanup_free char *machines = str_format("%s/machines", husk->paths.home);
	cleanup_free char *sandboxes = str_format("%s/sandboxes", husk->paths.home);
	cleanup_free char *snapshots = str_format("%s/snapshots", husk->paths.home);
	cleanup_free char *templates = str_format("%s/templates", husk->paths.home);
	cleanup_free char *engine = str_format("%s/runsc", husk->paths.runtime);

	if (!machines || !sandboxes || !snapshots || !templates || !engine)
		return husk_fail_memory(err);
	int result = know_sandboxes(&search, err);
	if (result == 0)
		result = know_stored(&search, err);
	if (result == 0) {
		each_name(&search, husk->paths.run, check_run); /* first: it finds running bakes */
		each_name(&search, machines, check_machine);
		each_name(&search, engine, check_engine_state);
		each_name(&search, sandboxes, check_sandbox);
		each_name(&search, snapshots, check_snapshot);
		each_name(&search, templates, check_template);
		each_name(&search, "/proc", check_process);
		check_cgroups(&search);
		check_mounts(&search);
	}
	strv_free(search.ids);
	strv_free(search.machines);
	strv_free(search.snapshots);
	strv_free(search.digests);
	return result;
}
