/*
 * What `husk doctor --fix` repairs: missing packages, disabled user namespaces, the group of the server's users, its
 * systemd socket, and remains of dead sandboxes. Each repair checks first, so that a host without problems is not
 * changed. If a repair fails, the others are still tried. Called by cmd_doctor.c, which runs the checks afterwards.
 */
#include "cli/doctor_fix.h"

#include <grp.h>

#define APT_MS (15 * 60 * 1000)
#define COMMAND_MS 60000
#define NAMESPACES "/proc/sys/user/max_user_namespaces"
#define NAMESPACES_FILE "/etc/sysctl.d/60-husk.conf"
#define GROUP "husk"

/* 1: repaired, 0: nothing to repair. `what` describes the repair. */
typedef int (*repair_fn)(struct cli *cli, struct buf *what, struct husk_error *err);

static int run(const char *const *argv, int timeout_ms, struct husk_error *err)
{
	return command_run(
		&(struct command){
			.argv = argv, .stdin_fd = -1, .stdout_fd = -1, .stderr_fd = -1, .timeout_ms = timeout_ms },
		err);
}

/* ---- packages ---- */

static bool is_in_path(const char *program)
{
	static const char *const places[] = { "/usr/local/sbin", "/usr/local/bin", "/usr/sbin",
					      "/usr/bin",        "/sbin",          "/bin" };

	for (size_t i = 0; i < ARRAY_SIZE(places); i++) {
		cleanup_free char *path = str_format("%s/%s", places[i], program);
		if (path && access(path, X_OK) == 0)
			return true;
	}
	return false;
}

static int fix_packages(struct cli *cli, struct buf *what, struct husk_error *err)
{
	static const struct {
		const char *program, *package;
	} needed[] = { { "mkfs.erofs", "erofs-utils" },
		       { "mmdebstrap", "mmdebstrap" },
		       { "mkfs.btrfs", "btrfs-progs" },
		       { "mkfs.ext4", "e2fsprogs" },
		       { "runsc", "runsc" },
		       { "ip", "iproute2" },
		       { "zstd", "zstd" } };
	const char *argv[ARRAY_SIZE(needed) + 5] = { "apt-get", "install", "-y", "--no-install-recommends" };
	size_t count = 4;

	(void)cli;
	for (size_t i = 0; i < ARRAY_SIZE(needed); i++) {
		cleanup_free char *own = place_find(needed[i].program); /* runsc, by `make runsc` */
		if (own || is_in_path(needed[i].program))
			continue;
		buf_printf(what, "%s%s", count > 4 ? ", " : "installed ", needed[i].package);
		argv[count++] = needed[i].package;
	}
	if (count == 4)
		return 0;
	if (!is_in_path("apt-get"))
		return husk_fail(err, HUSK_UNAVAILABLE, "this host has no apt-get; install the programs by hand: %s",
				 what->data ? what->data + strlen("installed ") : "");
	return run(argv, APT_MS, err) < 0 ? husk_wrap(err, "apt-get install failed (is the package list fresh?)") : 1;
}

/* ---- the kernel ---- */

static int fix_namespaces(struct cli *cli, struct buf *what, struct husk_error *err)
{
	static const char *const argv[] = { "sysctl", "-q", "-w", "user.max_user_namespaces=15000", NULL };
	static const char setting[] = "# Husk's sandboxes have user namespaces.\nuser.max_user_namespaces = 15000\n";
	cleanup_free char *now = file_read(NAMESPACES, 64, NULL, NULL);

	(void)cli;
	if (!now || !str_equal(now, "0\n"))
		return 0;
	if (run(argv, COMMAND_MS, err) < 0)
		return -1;
	buf_printf(what, "switched user namespaces on, for later boots by " NAMESPACES_FILE);
	return file_write_atomic(NAMESPACES_FILE, setting, sizeof(setting) - 1, 0644, err) < 0 ? -1 : 1;
}

/* ---- the server ---- */

static int fix_group(struct cli *cli, struct buf *what, struct husk_error *err)
{
	static const char *const argv[] = { "groupadd", "--system", GROUP, NULL };

	(void)cli;
	if (getgrnam(GROUP))
		return 0;
	buf_printf(what, "made the group " GROUP "; `usermod -aG " GROUP " NAME` lets a user make sandboxes");
	return run(argv, COMMAND_MS, err) < 0 ? -1 : 1;
}

/* Only if systemd runs and Husk's units are installed. */
static int fix_units(struct cli *cli, struct buf *what, struct husk_error *err)
{
	static const char *const places[] = { "/etc/systemd/system", "/usr/local/lib/systemd/system",
					      "/usr/lib/systemd/system", "/lib/systemd/system" };
	static const char *const asked[] = { "systemctl", "--quiet", "is-enabled", "huskd.socket", NULL };
	static const char *const enable[] = { "systemctl", "enable", "--now", "huskd.socket", NULL };
	bool installed = false;

	(void)cli;
	for (size_t i = 0; i < ARRAY_SIZE(places); i++) {
		cleanup_free char *path = str_format("%s/huskd.socket", places[i]);
		installed |= path && access(path, F_OK) == 0;
	}
	if (!installed || access("/run/systemd/system", F_OK) < 0 || run(asked, COMMAND_MS, NULL) == 0)
		return 0;
	buf_printf(what, "enabled huskd.socket: the server starts when somebody connects");
	return run(enable, COMMAND_MS, err) < 0 ? -1 : 1;
}

/* ---- what was left ---- */

static int fix_leaks(struct cli *cli, struct buf *what, struct husk_error *err)
{
	struct husk_check *list = NULL;
	struct husk_gc_result result = { 0 };
	size_t count = 0, leaks = 0;

	if (husk_leaks(cli->husk, &list, &count, err) < 0)
		return -1;
	for (size_t i = 0; i < count; i++)
		leaks += list[i].result != HUSK_CHECK_OK;
	husk_check_list_free(list, count);
	if (leaks == 0)
		return 0;
	buf_printf(what, "removed what ended sandboxes had left (%zu)", leaks);
	return husk_gc(cli->husk, false, &result, err) < 0 ? -1 : 1;
}

int doctor_fix(struct cli *cli, struct husk_error *err)
{
	static const repair_fn repairs[] = { fix_packages, fix_namespaces, fix_group, fix_units, fix_leaks };
	size_t done = 0, failed = 0;

	if (husk_url(cli->husk))
		return husk_fail(err, HUSK_UNAVAILABLE, "--fix repairs the host it runs on; run it on the server's");
	if (geteuid() != 0)
		return husk_fail(err, HUSK_DENIED, "--fix changes this host: run it as root");
	for (size_t i = 0; i < ARRAY_SIZE(repairs); i++) {
		cleanup_buf struct buf what = { 0 };
		struct husk_error why = { 0 };
		int result = repairs[i](cli, &what, &why);

		if (result > 0)
			output_note("fixed: %s", what.data ? what.data : "");
		else if (result < 0)
			output_note("not fixed: %s", why.message);
		done += result > 0;
		failed += result < 0;
	}
	if (!done && !failed)
		output_note("there is nothing that --fix could repair");
	return 0;
}
