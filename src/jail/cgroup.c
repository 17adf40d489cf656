/*
 * Control groups: husk/<scope>/<id>, in cgroup v2, in the v1 hierarchies, or in both. The supervisor creates and reads a
 * sandbox's group, the engine's children enter the group between fork and exec, and the clean-up after a sandbox
 * destroys it.
 *
 * A controller that the host lacks is left out (cgroup_describe reports it). A controller that refuses a limit is an error.
 * This file must never signal a process outside the given group, nor the calling process.
 */
#include "jail/cgroup.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>

#include "jail/pressure.h"

#define MIB (1024ull * 1024ull)
/* Memory of gVisor's sentry and its stubs, before the guest uses any. */
#define ENGINE_MEMORY (32 * MIB)
#define TREES_MAX 8
#define CPU_PERIOD_US 100000ull
#define TASKS_MIN 64ull  /* well above the needs of an engine */
#define AT_WORK_SHARE 50 /* a guest that uses less than this part of a CPU counts as idle */

enum controller { CPU, CPUACCT, MEMORY, PIDS, CONTROLLERS };
static const char *const controller_names[CONTROLLERS] = { "cpu", "cpuacct", "memory", "pids" };

/* One mounted hierarchy, and which of the needed controllers it has. */
struct tree {
	char *mount;
	bool unified;
	bool has[CONTROLLERS];
};

struct forest {
	struct tree trees[TREES_MAX];
	size_t count;
};

struct cgroup {
	char *paths[TREES_MAX]; /* of the group in each tree */
	size_t count;
	const char *home[CONTROLLERS]; /* the path that has this controller; NULL: the host lacks it */
	bool v2[CONTROLLERS];
	const char *unified; /* the path in the v2 tree, with or without controllers; NULL: no such tree */
	struct pressure *pressure;
	uint64_t memory_soft; /* where pressure begins; 0: never */
	uint64_t tasks_soft;  /* likewise */
	uint64_t pids;        /* the guest's limit; 0: none */
	int64_t looked_us;    /* time of the last cgroup_crowd, and the CPU time until then */
	uint64_t looked_cpu_us;
};

/* ---- hierarchies of the host ---- */

static bool word_in(const char *list, const char *word, const char *separators)
{
	size_t length = strlen(word);

	for (const char *at = list; *at;) {
		size_t span = strcspn(at, separators);

		if (span == length && memcmp(at, word, length) == 0)
			return true;
		at += span;
		at += strspn(at, separators);
	}
	return false;
}

static void forest_free(struct forest *forest)
{
	for (size_t i = 0; i < forest->count; i++)
		free(forest->trees[i].mount);
	forest->count = 0;
}

static int tree_read_unified(struct tree *tree)
{
	cleanup_free char *path = str_format("%s/cgroup.controllers", tree->mount);
	cleanup_free char *list = path ? file_read(path, 4096, NULL, NULL) : NULL;

	tree->unified = true;
	for (size_t c = 0; list && c < CONTROLLERS; c++)
		tree->has[c] = word_in(list, controller_names[c], " \n");
	/* v2 always accounts CPU time, as part of every group. */
	tree->has[CPUACCT] = true;
	return path ? 0 : -1;
}

/* A line of mountinfo: "… <mount point> … - <type> <source> <super options>"; -1: out of memory. */
static int forest_add_line(struct forest *forest, char *line)
{
	char *tail = strstr(line, " - ");
	char mount[1024], type[32], options[256];
	struct tree tree = { 0 };
	bool used = false;

	if (!tail || forest->count == TREES_MAX)
		return 0;
	if (sscanf(line, "%*s %*s %*s %*s %1023s", mount) != 1 || sscanf(tail, " - %31s %*s %255s", type, options) != 2)
		return 0;
	if (!str_equal(type, "cgroup") && !str_equal(type, "cgroup2"))
		return 0;
	tree.mount = strdup(mount);
	if (!tree.mount)
		return -1;
	if (str_equal(type, "cgroup2")) {
		if (tree_read_unified(&tree) < 0) {
			free(tree.mount);
			return -1;
		}
		used = true;
	} else {
		for (size_t c = 0; c < CONTROLLERS; c++)
			used |= tree.has[c] = word_in(options, controller_names[c], ",");
	}
	/* The same hierarchy is often mounted twice: the first mount is used. */
	for (size_t i = 0; i < forest->count; i++)
		if (forest->trees[i].unified == tree.unified &&
		    memcmp(forest->trees[i].has, tree.has, sizeof(tree.has)) == 0)
			used = false;
	if (used)
		forest->trees[forest->count++] = tree;
	else
		free(tree.mount);
	return 0;
}

static int forest_find(struct forest *forest, struct husk_error *err)
{
	cleanup_free char *text = file_read("/proc/self/mountinfo", 4 * MIB, NULL, err);
	char *rest = NULL;

	if (!text)
		return -1;
	for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
		if (forest_add_line(forest, line) < 0) {
			forest_free(forest);
			return husk_fail_memory(err);
		}
	}
	if (forest->count == 0)
		return husk_fail(err, HUSK_UNAVAILABLE,
				 "no control groups on this host; mount them: mount -t cgroup2 none /sys/fs/cgroup");
	return 0;
}

/* The v1 tree of a controller if there is one, else the v2 tree: a controller is in only one of them. */
static const struct tree *forest_home(const struct forest *forest, enum controller controller)
{
	const struct tree *found = NULL;

	for (size_t i = 0; i < forest->count; i++) {
		const struct tree *tree = &forest->trees[i];

		if (tree->has[controller] && (!found || found->unified))
			found = tree;
	}
	return found;
}

char *cgroup_describe(void)
{
	cleanup(forest_free) struct forest forest = { 0 };
	cleanup_buf struct buf text = { 0 }, missing = { 0 };
	bool v1 = false, v2 = false;

	if (forest_find(&forest, NULL) < 0)
		return strdup("none: no limit of memory, cpu or processes holds on this host");
	for (enum controller c = 0; c < CONTROLLERS; c++) {
		const struct tree *home = forest_home(&forest, c);
		bool failed;

		if (c == CPUACCT)
			continue;
		failed = buf_printf(home ? &text : &missing, " %s", controller_names[c]) < 0;
		v1 |= home && !home->unified;
		v2 |= home && home->unified;
		if (failed)
			return NULL;
	}
	return str_format("%s:%s%s%s",
			  v1 && v2 ? "v1 and v2"
			  : v1     ? "v1"
				   : "v2",
			  text.size ? text.data : " no controllers", missing.size ? "; missing:" : "",
			  missing.size ? missing.data : "");
}

/* ---- making a group ---- */

static bool name_valid(const char *name)
{
	return name && *name && *name != '.' && strlen(name) < 128 && !strpbrk(name, "/\n");
}

static int names_check(const char *scope, const char *id, struct husk_error *err)
{
	if (!name_valid(scope) || (id && !name_valid(id)))
		return husk_fail(err, HUSK_INVALID, "'%s/%s' cannot name a control group", scope ? scope : "",
				 id ? id : "");
	return 0;
}

static int value_write(const char *directory, const char *file, const char *value, struct husk_error *err)
{
	cleanup_free char *path = str_format("%s/%s", directory, file);

	if (!path)
		return husk_fail_memory(err);
	return file_poke(path, value, err);
}

static char *value_read(const char *directory, const char *file, struct husk_error *err)
{
	cleanup_free char *path = str_format("%s/%s", directory, file);

	if (!path) {
		husk_fail_memory(err);
		return NULL;
	}
	return file_read(path, MIB, NULL, err);
}

static bool value_exists(const char *directory, const char *file)
{
	cleanup_free char *path = str_format("%s/%s", directory, file);

	return path && access(path, F_OK) == 0;
}

/* One by one: if one controller cannot be delegated, the others still can. */
static void tree_delegate(const struct tree *tree, const char *directory)
{
	static const char *const wanted[] = { "+cpu", "+memory", "+pids" };

	for (size_t i = 0; tree->unified && i < ARRAY_SIZE(wanted); i++)
		value_write(directory, "cgroup.subtree_control", wanted[i], NULL);
}

static int tree_make_once(const struct tree *tree, const char *scope, const char *id, struct husk_error *err)
{
	cleanup_free char *husk = str_format("%s/husk", tree->mount);
	cleanup_free char *middle = str_format("%s/husk/%s", tree->mount, scope);
	cleanup_free char *path = str_format("%s/husk/%s/%s", tree->mount, scope, id);

	if (!husk || !middle || !path)
		return husk_fail_memory(err);
	tree_delegate(tree, tree->mount);
	if (mkdir(husk, 0755) < 0 && errno != EEXIST)
		return husk_fail_errno(err, "cannot make control group %s", husk);
	tree_delegate(tree, husk);
	if (mkdir(middle, 0755) < 0 && errno != EEXIST)
		return husk_fail_errno(err, "cannot make control group %s", middle);
	tree_delegate(tree, middle);
	if (mkdir(path, 0755) < 0 && errno != EEXIST)
		return husk_fail_errno(err, "cannot make control group %s", path);
	return 0;
}

/* The last sandbox of a scope removes the parents when it ends, possibly at this moment: then they are made again. */
static int tree_make(const struct tree *tree, const char *scope, const char *id, struct husk_error *err)
{
	for (int attempt = 0;; attempt++) {
		if (tree_make_once(tree, scope, id, err) == 0)
			return 0;
		if (errno != ENOENT || attempt == 20)
			return -1;
	}
}

static int group_add_tree(struct cgroup *group, const struct forest *forest, const struct tree *tree, const char *scope,
			  const char *id)
{
	char *path = str_format("%s/husk/%s/%s", tree->mount, scope, id);

	if (!path)
		return -1;
	group->paths[group->count++] = path;
	if (tree->unified)
		group->unified = path;
	for (enum controller c = 0; c < CONTROLLERS; c++) {
		if (forest_home(forest, c) != tree)
			continue;
		group->home[c] = path;
		group->v2[c] = tree->unified;
	}
	return 0;
}

int cgroup_create(const char *scope, const char *id, struct cgroup **out, struct husk_error *err)
{
	cleanup(forest_free) struct forest forest = { 0 };
	struct cgroup *group;

	if (names_check(scope, id, err) < 0 || forest_find(&forest, err) < 0)
		return -1;
	group = calloc(1, sizeof(*group));
	if (!group)
		return husk_fail_memory(err);
	for (size_t i = 0; i < forest.count; i++) {
		int failed = tree_make(&forest.trees[i], scope, id, err);

		if (failed == 0 && group_add_tree(group, &forest, &forest.trees[i], scope, id) < 0)
			failed = husk_fail_memory(err);
		if (failed) {
			cgroup_free(group);
			cgroup_destroy(scope, id, NULL);
			return -1;
		}
	}
	*out = group;
	return 0;
}

void cgroup_free(struct cgroup *group)
{
	if (!group)
		return;
	pressure_free(group->pressure);
	for (size_t i = 0; i < group->count; i++)
		free(group->paths[i]);
	free(group);
}

int cgroup_enter(struct cgroup *group)
{
	/* Only open, write and close, and no allocation: in this copy of the process another thread may have held the
	 * allocator's lock. The paths are short, so a fixed buffer is enough. */
	for (size_t i = 0; i < group->count; i++) {
		char path[2048];
		size_t length = strlen(group->paths[i]);
		static const char file[] = "/cgroup.procs";
		ssize_t put;
		int fd;

		if (length + sizeof(file) > sizeof(path))
			return -1;
		memcpy(path, group->paths[i], length);
		memcpy(path + length, file, sizeof(file));
		fd = open(path, O_WRONLY | O_CLOEXEC);
		if (fd < 0)
			return -1;
		put = write(fd, "0", 1);
		fd_close(&fd);
		if (put != 1)
			return -1;
	}
	return 0;
}

/* ---- limits ---- */

/* Writes a limit if the kernel has that file; a kernel without swap accounting, for example, does not have it. */
static int limit_write(const char *directory, const char *file, struct husk_error *err, const char *format, ...)
	__attribute__((format(printf, 4, 5)));
static int limit_write(const char *directory, const char *file, struct husk_error *err, const char *format, ...)
{
	char value[64];
	va_list arguments;

	if (!value_exists(directory, file))
		return 0;
	va_start(arguments, format);
	vsnprintf(value, sizeof(value), format, arguments);
	va_end(arguments);
	return value_write(directory, file, value, err);
}

static int limit_cpu(const struct cgroup *group, uint32_t milli, struct husk_error *err)
{
	const char *home = group->home[CPU];
	uint64_t quota = milli * CPU_PERIOD_US / 1000, weight = MIN(MAX(milli / 10ull, 1ull), 10000ull);

	if (!home)
		return 0;
	/* The kernel refuses a quota below one millisecond. */
	quota = MAX(quota, 1000ull);
	if (group->v2[CPU]) {
		if (milli == 0)
			return limit_write(home, "cpu.max", err, "max %llu", CPU_PERIOD_US);
		if (limit_write(home, "cpu.weight", err, "%llu", (unsigned long long)weight) < 0)
			return -1;
		return limit_write(home, "cpu.max", err, "%llu %llu", (unsigned long long)quota, CPU_PERIOD_US);
	}
	if (milli == 0)
		return limit_write(home, "cpu.cfs_quota_us", err, "-1");
	if (limit_write(home, "cpu.shares", err, "%llu", MAX(milli * 1024ull / 1000, 2ull)) < 0 ||
	    limit_write(home, "cpu.cfs_period_us", err, "%llu", CPU_PERIOD_US) < 0)
		return -1;
	return limit_write(home, "cpu.cfs_quota_us", err, "%llu", (unsigned long long)quota);
}

static int limit_memory(const struct cgroup *group, uint64_t hard, struct husk_error *err)
{
	const char *home = group->home[MEMORY];

	if (!home)
		return 0;
	if (group->v2[MEMORY]) {
		/* The sandbox ends as a whole: without its kernel, its other processes are useless. */
		if (limit_write(home, "memory.oom.group", err, "1") < 0 ||
		    limit_write(home, "memory.swap.max", err, "0") < 0)
			return -1;
		if (hard == 0)
			return limit_write(home, "memory.max", err, "max");
		return limit_write(home, "memory.max", err, "%llu", (unsigned long long)hard);
	}
	/* The limit of memory may never exceed that of memory and swap, not even between two writes: the latter is
	 * lifted first. */
	if (limit_write(home, "memory.memsw.limit_in_bytes", err, "-1") < 0)
		return -1;
	if (hard == 0)
		return limit_write(home, "memory.limit_in_bytes", err, "-1");
	if (limit_write(home, "memory.limit_in_bytes", err, "%llu", (unsigned long long)hard) < 0)
		return -1;
	return limit_write(home, "memory.memsw.limit_in_bytes", err, "%llu", (unsigned long long)hard);
}

static int limit_pids(const struct cgroup *group, uint32_t pids, struct husk_error *err)
{
	if (!group->home[PIDS])
		return 0;
	if (pids == 0)
		return limit_write(group->home[PIDS], "pids.max", err, "max");
	/* An engine that cannot start a thread dies, so this limit is far above the number of tasks at which pressure
	 * is signalled. */
	return limit_write(group->home[PIDS], "pids.max", err, "%llu", pids * 32ull + 4096);
}

int cgroup_set_limits(struct cgroup *group, const struct cgroup_limits *limits, struct husk_error *err)
{
	uint64_t soft = 0, hard = 0;

	if (limits->memory_bytes) {
		/* What several processes can allocate while the largest is being killed, on a slow host. */
		uint64_t reserve = MAX(512 * MIB, limits->memory_bytes / 4);

		if (__builtin_add_overflow(limits->memory_bytes, reserve, &hard) || hard > INT64_MAX)
			return husk_fail(err, HUSK_INVALID, "a memory limit of %llu bytes is out of range",
					 (unsigned long long)limits->memory_bytes);
		soft = limits->memory_bytes + ENGINE_MEMORY;
	}
	if (limit_cpu(group, limits->cpu_milli, err) < 0 || limit_memory(group, hard, err) < 0 ||
	    limit_pids(group, limits->pids, err) < 0)
		return -1;
	if (group->home[MEMORY] && !group->pressure) {
		group->pressure = pressure_new(group->home[MEMORY], group->v2[MEMORY], group->home[PIDS], err);
		if (!group->pressure)
			return -1;
	}
	/* A process of the guest costs the host two tasks and the threads that run it; a zombie costs none. So a guest
	 * close to its limit has more tasks than this. */
	group->memory_soft = soft;
	group->pids = limits->pids;
	group->tasks_soft = limits->pids ? MAX(limits->pids * 3ull / 2, TASKS_MIN) : 0;
	if (group->pressure)
		pressure_set_limit(group->pressure, group->memory_soft, group->tasks_soft);
	return 0;
}

bool cgroup_memory_over(struct cgroup *group)
{
	struct cgroup_use use;

	return group->memory_soft && cgroup_read(group, &use, NULL) == 0 && use.memory_bytes >= group->memory_soft;
}

uint64_t cgroup_crowd(struct cgroup *group)
{
	int64_t now = time_monotonic_us();
	struct cgroup_use use;

	if (!group->tasks_soft || cgroup_read(group, &use, NULL) < 0 || use.tasks < group->tasks_soft)
		return 0;
	bool at_work = (use.cpu_us - group->looked_cpu_us) * AT_WORK_SHARE >= (uint64_t)(now - group->looked_us);
	group->looked_us = now;
	group->looked_cpu_us = use.cpu_us;
	/* The guest's kernel may count a few too late. */
	return at_work ? group->pids + group->pids / 16 + 16 : 0;
}

int cgroup_pressure_fd(struct cgroup *group)
{
	return group->pressure ? pressure_fd(group->pressure) : -1;
}

void cgroup_pressure_clear(struct cgroup *group)
{
	if (group->pressure)
		pressure_clear(group->pressure);
}

/* ---- reading ---- */

/* The number after `key` in a file of "key value" lines; 0 if the file or the key is missing. */
static uint64_t keyed_value(const char *directory, const char *file, const char *key)
{
	cleanup_free char *text = directory ? value_read(directory, file, NULL) : NULL;

	return text ? pressure_keyed(text, key) : 0;
}

int cgroup_read(struct cgroup *group, struct cgroup_use *out, struct husk_error *err)
{
	*out = (struct cgroup_use){ 0 };
	if (group->home[MEMORY]) {
		cleanup_free char *stat = value_read(group->home[MEMORY], "memory.stat", err);

		if (!stat)
			return -1;
		out->memory_bytes = pressure_in_use(stat, group->v2[MEMORY]);
		out->oom_kills = keyed_value(group->home[MEMORY],
					     group->v2[MEMORY] ? "memory.events" : "memory.oom_control", "oom_kill");
	}
	if (group->home[PIDS]) {
		cleanup_free char *current = value_read(group->home[PIDS], "pids.current", NULL);

		out->tasks = current ? strtoull(current, NULL, 10) : 0;
	}
	if (group->home[CPUACCT] && !group->v2[CPUACCT]) {
		cleanup_free char *usage = value_read(group->home[CPUACCT], "cpuacct.usage", err);

		if (!usage)
			return -1;
		out->cpu_us = strtoull(usage, NULL, 10) / 1000;
	} else {
		out->cpu_us = keyed_value(group->unified, "cpu.stat", "usage_usec");
	}
	return 0;
}

/* ---- the end ---- */

/* Kills the processes inside. Returns the number of processes seen, or -1 if the group does not exist. */
static int path_kill(const char *path)
{
	cleanup_free char *text = value_read(path, "cgroup.procs", NULL);
	char *rest = NULL;
	int seen = 0;

	if (!text)
		return -1;
	if (*text && value_exists(path, "cgroup.kill") && value_write(path, "cgroup.kill", "1", NULL) == 0)
		return 1;
	for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
		int64_t pid;

		/* 0 is shown for a process outside the caller's pid namespace. */
		if (str_to_int64(line, 2, INT32_MAX, &pid) < 0 || pid == getpid())
			continue;
		kill((pid_t)pid, SIGKILL);
		seen++;
	}
	return seen;
}

static int path_destroy(const char *path, int64_t deadline, struct husk_error *err)
{
	for (useconds_t wait = 500;; wait = MIN(wait * 2, 20000u)) {
		int inside = path_kill(path);

		if (inside < 0)
			return 0;
		if (inside == 0 && (rmdir(path) == 0 || errno == ENOENT))
			return 0;
		if (time_monotonic_ms() > deadline)
			return husk_fail(err, HUSK_TIMEOUT, "control group %s does not empty; see %s/cgroup.procs",
					 path, path);
		usleep(wait);
	}
}

int cgroup_destroy(const char *scope, const char *id, struct husk_error *err)
{
	cleanup(forest_free) struct forest forest = { 0 };
	int64_t deadline = time_monotonic_ms() + 10000;
	int failed = 0;

	if (names_check(scope, id, err) < 0 || forest_find(&forest, err) < 0)
		return -1;
	for (size_t i = 0; i < forest.count; i++) {
		cleanup_free char *husk = str_format("%s/husk", forest.trees[i].mount);
		cleanup_free char *middle = str_format("%s/husk/%s", forest.trees[i].mount, scope);
		cleanup_free char *path = str_format("%s/husk/%s/%s", forest.trees[i].mount, scope, id);

		if (!husk || !middle || !path)
			return husk_fail_memory(err);
		if (path_destroy(path, deadline, err) < 0) {
			failed = -1;
			continue;
		}
		/* The kernel removes only empty groups. */
		if (rmdir(middle) == 0)
			rmdir(husk);
	}
	return failed;
}

static int list_tree(char ***list, const char *path)
{
	cleanup_dir DIR *dir = opendir(path);
	struct dirent *entry;

	while (dir && (entry = readdir(dir))) {
		bool known = false;

		if (entry->d_type != DT_DIR || entry->d_name[0] == '.')
			continue;
		for (char **at = *list; at && *at; at++)
			known |= str_equal(*at, entry->d_name);
		if (!known && strv_add(list, entry->d_name) < 0)
			return -1;
	}
	return 0;
}

char **cgroup_list(const char *scope)
{
	cleanup(forest_free) struct forest forest = { 0 };
	cleanup_strv char **list = NULL;

	if (names_check(scope, NULL, NULL) < 0 || forest_find(&forest, NULL) < 0)
		return calloc(1, sizeof(char *));
	for (size_t i = 0; i < forest.count; i++) {
		cleanup_free char *path = str_format("%s/husk/%s", forest.trees[i].mount, scope);

		if (!path || list_tree(&list, path) < 0)
			return NULL;
	}
	return list ? steal_pointer(list) : calloc(1, sizeof(char *));
}
