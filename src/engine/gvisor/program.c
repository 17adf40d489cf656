/*
 * The installed runsc programs: their paths and versions, and which of them a machine uses. Husk's own (`make runsc`)
 * comes before the one in PATH. An image continues in the version that made it, if that version is installed. Called by
 * prepare, by the probe and by the check of an image. A start of runsc takes 20 ms, so the result is cached until the
 * file changes or the host reboots.
 */
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <time.h>

#include "engine/gvisor/gvisor.h"

#define FIX "run `make setup`, or apt-get install -t bookworm-backports runsc"
#define PROGRAMS_MAX 2 /* Husk's own, and the one in PATH */
#define OLD_DAYS 365   /* age from which a newer version is recommended */

static int search_path(char *out, size_t size)
{
	const char *path = getenv("PATH");

	for (path = path ? path : "/usr/local/bin:/usr/bin:/bin"; *path;) {
		size_t length = strcspn(path, ":");
		int needed = snprintf(out, size, "%.*s/runsc", (int)length, path);

		if (length > 0 && *path == '/' && needed > 0 && (size_t)needed < size && access(out, X_OK) == 0)
			return 0;
		path += length + (path[length] == ':');
	}
	return -1;
}

/* The possible paths of runsc, in order of preference. If HUSK_RUNSC is set, it is the only one. */
static size_t list_paths(char paths[static PROGRAMS_MAX][GVISOR_PATH_MAX])
{
	const char *named = getenv("HUSK_RUNSC");
	cleanup_free char *own = NULL;
	size_t count = 0;

	if (named && *named) {
		snprintf(paths[0], GVISOR_PATH_MAX, "%s", named);
		return 1;
	}
	own = place_find("runsc");
	if (own && strlen(own) < GVISOR_PATH_MAX && access(own, X_OK) == 0)
		snprintf(paths[count++], GVISOR_PATH_MAX, "%s", own);
	if (search_path(paths[count], GVISOR_PATH_MAX) == 0 && (count == 0 || !str_equal(paths[0], paths[count])))
		count++;
	return count;
}

static int program_key(struct gvisor_program *program, struct husk_error *err)
{
	cleanup_free char *boot = file_read("/proc/sys/kernel/random/boot_id", 128, NULL, err);
	struct stat found;

	if (!boot)
		return -1;
	if (stat(program->path, &found) < 0)
		return husk_fail(err, HUSK_UNAVAILABLE, "cannot look at runsc at '%s': %s; " FIX, program->path,
				 strerror(errno));
	snprintf(program->key, sizeof(program->key), "%.*s %llu %lld.%09ld %lld", (int)strcspn(boot, "\n"), boot,
		 (unsigned long long)found.st_ino, (long long)found.st_mtim.tv_sec, found.st_mtim.tv_nsec,
		 (long long)found.st_size);
	return 0;
}

/* "runsc version 0.0~20240729.0", "runsc version release-20240729.0": only the date can be compared. */
static long version_date(const char *version)
{
	for (const char *at = version; *at; at++) {
		size_t digits = strspn(at, "0123456789");

		if (digits == 8)
			return strtol(at, NULL, 10);
		if (digits > 0)
			at += digits - 1;
	}
	return 0;
}

static int program_ask(struct gvisor_program *program, struct husk_error *err)
{
	const char *const argv[] = { program->path, "--version", NULL };
	cleanup_buf struct buf output = { 0 };
	struct command command = { COMMAND_INIT, .argv = argv, .output = &output, .timeout_ms = 10000 };
	const char *version;

	if (command_run(&command, err) < 0)
		return husk_wrap(err, "runsc does not start");
	version = output.data ? strstr(output.data, "version ") : NULL;
	version = version ? version + strlen("version ") : "";
	snprintf(program->version, sizeof(program->version), "%.*s", (int)MIN(strcspn(version, " /\n"), (size_t)60),
		 version);
	return 0;
}

/* A cache: results for the programs that this process found, valid while the files do not change. */
static pthread_mutex_t known_lock = PTHREAD_MUTEX_INITIALIZER;
static struct gvisor_program known[PROGRAMS_MAX];

static int program_version(const char *runtime, size_t place, struct gvisor_program *program, struct husk_error *err)
{
	cleanup_free char *version = NULL;
	char name[32];

	snprintf(name, sizeof(name), "runsc-version-%zu", place);
	if (runtime && engine_remembered(runtime, name, program->key, &version) == 0) {
		snprintf(program->version, sizeof(program->version), "%s", version);
		return 0;
	}
	if (program_ask(program, err) < 0)
		return -1;
	if (runtime)
		engine_remember(runtime, name, program->key, program->version);
	return 0;
}

/* Finds out everything about the program at `path`, which is the `place`th. */
static int program_look(const char *runtime, const char *path, size_t place, struct gvisor_program *out,
			struct husk_error *err)
{
	*out = (struct gvisor_program){ 0 };
	snprintf(out->path, sizeof(out->path), "%s", path);
	if (program_key(out, err) < 0)
		return -1;
	if (str_equal(out->key, known[place].key) && str_equal(out->path, known[place].path)) {
		*out = known[place];
		return 0;
	}
	if (program_version(runtime, place, out, err) < 0)
		return -1;
	out->date = version_date(out->version);
	if (out->date < GVISOR_VERSION_MIN)
		return husk_fail(err, HUSK_UNAVAILABLE, "%s is version '%s', older than %d; " FIX, out->path,
				 out->version, GVISOR_VERSION_MIN);
	known[place] = *out;
	return 0;
}

/* The first program with the wanted version; if none is wanted, the first that works. */
static int choose(const char *runtime, const char *wanted, struct gvisor_program *out, struct husk_error *err)
{
	char paths[PROGRAMS_MAX][GVISOR_PATH_MAX];
	size_t count = list_paths(paths);
	struct husk_error first = { 0 }, why = { 0 };
	cleanup_buf struct buf others = { 0 };

	for (size_t i = 0; i < count; i++) {
		if (program_look(runtime, paths[i], i, out, first.code ? &why : &first) < 0)
			continue;
		if (!wanted || str_equal(out->version, wanted))
			return 0;
		buf_printf(&others, "%s%s", others.size ? ", " : "", out->version);
	}
	if (others.size)
		return husk_fail(err, HUSK_CONFLICT,
				 "runsc %s is not installed, only %s; set HUSK_RUNSC to that version", wanted,
				 others.data);
	if (first.code)
		return husk_fail(err, first.code, "%s", first.message);
	return husk_fail(err, HUSK_UNAVAILABLE, "runsc (package runsc, %d or newer) is not installed; " FIX,
			 GVISOR_VERSION_MIN);
}

int gvisor_program_find(const char *runtime, const char *wanted, struct gvisor_program *out, struct husk_error *err)
{
	pthread_mutex_lock(&known_lock);
	int result = choose(runtime, wanted, out, err);
	pthread_mutex_unlock(&known_lock);
	return result;
}

int gvisor_variant(const char *home, const char *runtime, char *out, size_t size, struct husk_error *err)
{
	struct gvisor_program program;

	if (disks_check_wish(err) < 0 || gvisor_program_find(runtime, NULL, &program, err) < 0)
		return -1;
	snprintf(out, size, "%s%s", program.version, disks_ready(home, runtime, &program) ? "-shares" : "");
	return 0;
}

static long days_since(long date)
{
	struct tm day = { .tm_year = (int)(date / 10000) - 1900,
			  .tm_mon = (int)(date / 100 % 100) - 1,
			  .tm_mday = (int)(date % 100) };

	return (long)((time(NULL) - timegm(&day)) / 86400);
}

void gvisor_describe(const char *home, const char *runtime, struct buf *out)
{
	struct gvisor_program program;

	if (gvisor_program_find(runtime, NULL, &program, NULL) < 0)
		return;
	long days = MAX(days_since(program.date), 0);
	buf_printf(out, "runsc %s, %ld days old (%s)", program.version, days, program.path);
	if (days > OLD_DAYS)
		buf_printf(out, "; `make runsc` builds a current one");
	buf_printf(out, "; disks are ");
	disks_describe(home, runtime, &program, out);
}
