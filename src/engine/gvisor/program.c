/*
 * The runsc that is installed here: where it is, which version, whether that is new enough. Called by prepare and by the
 * probe. A start of runsc takes 20 ms, which is why the answer is remembered until the file changes or the host reboots.
 */
#include <fcntl.h>
#include <sys/stat.h>

#include "engine/gvisor/gvisor.h"

#define FIX "run `make setup`, or apt-get install -t bookworm-backports runsc"

static int program_search(char *out, size_t size)
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

static int program_key(struct gvisor_program *program, struct husk_error *err)
{
	cleanup_free char *boot = file_read("/proc/sys/kernel/random/boot_id", 128, NULL, err);
	struct stat found;

	if (!boot)
		return -1;
	if (stat(program->path, &found) < 0)
		return husk_fail_errno(err, "cannot look at %s", program->path);
	snprintf(program->key, sizeof(program->key), "%.*s %llu %lld.%09ld %lld", (int)strcspn(boot, "\n"), boot,
		 (unsigned long long)found.st_ino, (long long)found.st_mtim.tv_sec, found.st_mtim.tv_nsec,
		 (long long)found.st_size);
	return 0;
}

/* "runsc version 0.0~20240729.0", "runsc version release-20240729.0": the date is what can be compared. */
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
	snprintf(program->version, sizeof(program->version), "%.*s", (int)MIN(strcspn(version, " \n"), (size_t)60),
		 version);
	if (version_date(program->version) < GVISOR_VERSION_MIN)
		return husk_fail(err, HUSK_UNAVAILABLE, "%s is version '%s', older than %d; " FIX, program->path,
				 program->version, GVISOR_VERSION_MIN);
	return 0;
}

int gvisor_program_find(const char *runtime, struct gvisor_program *out, struct husk_error *err)
{
	cleanup_free char *version = NULL;

	*out = (struct gvisor_program){ 0 };
	if (program_search(out->path, sizeof(out->path)) < 0)
		return husk_fail(err, HUSK_UNAVAILABLE, "runsc (package runsc, %d or newer) is not installed; " FIX,
				 GVISOR_VERSION_MIN);
	if (program_key(out, err) < 0)
		return -1;
	if (engine_remembered(runtime, "runsc-version", out->key, &version) == 0) {
		snprintf(out->version, sizeof(out->version), "%s", version);
		return 0;
	}
	if (program_ask(out, err) < 0)
		return -1;
	engine_remember(runtime, "runsc-version", out->key, out->version);
	return 0;
}
