/*
 * The end of an instance: husk_erase removes its home and its run directory with all content. Called by `husk uninstall
 * --data`, after it has ended the sandboxes. Nothing that is in use is removed: if a server runs or a sandbox is awake,
 * the call fails before it removes anything.
 */
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "instance/instance.h"

/* Held until the end, so that no server starts meanwhile. */
static int lock_server(const struct husk *husk, struct husk_error *err)
{
	cleanup_free char *path = str_format("%s/huskd.sock.lock", husk->paths.run);
	cleanup_close int fd = path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600) : -1;

	if (!path)
		return husk_fail_memory(err);
	if (fd < 0)
		return husk_fail_errno(err, "cannot open '%s'", path);
	if (flock(fd, LOCK_EX | LOCK_NB) < 0)
		return husk_fail(
			err, HUSK_CONFLICT,
			"huskd serves this instance; stop it first: systemctl stop huskd.socket huskd.service");
	return steal_fd(&fd);
}

static int check_asleep(struct husk *husk, struct husk_error *err)
{
	struct catalog_sandbox **list = NULL;
	unsigned awake = 1u << CATALOG_CREATING | 1u << CATALOG_RUNNING | 1u << CATALOG_PAUSED;
	int result = 0;

	if (catalog_sandbox_list(husk->catalog, awake, &list, err) < 0)
		return -1;
	if (list[0])
		result = husk_fail(err, HUSK_CONFLICT, "sandbox %s is awake; end it first: husk rm %s", list[0]->id,
				   list[0]->id);
	catalog_sandbox_list_free(list);
	return result;
}

/* Does a process, such as systemd, listen there? Checked without a connection, because a connection would start a
 * server. */
static bool is_listened_to(const char *path)
{
	cleanup_free char *sockets = file_read("/proc/net/unix", 64u << 20, NULL, NULL);

	return !sockets || strstr(sockets, path);
}

/* Removes the content of the directory, then the directory. A socket in use stays, and the directory with it. */
static int empty(const char *path, struct husk_error *err)
{
	cleanup_dir DIR *dir = opendir(path);

	if (!dir)
		return errno == ENOENT ? 0 : husk_fail_errno(err, "cannot open '%s'", path);
	for (struct dirent *entry; (entry = readdir(dir));) {
		cleanup_free char *child = str_format("%s/%s", path, entry->d_name);

		if (!child)
			return husk_fail_memory(err);
		if (str_equal(entry->d_name, ".") || str_equal(entry->d_name, "..") ||
		    (str_equal(entry->d_name, "huskd.sock") && is_listened_to(child)))
			continue;
		if (dir_remove(child, err) < 0)
			return -1;
	}
	if (rmdir(path) < 0 && errno != EBUSY && errno != ENOTEMPTY && errno != ENOENT)
		return husk_fail_errno(err, "cannot remove '%s'", path);
	return 0;
}

int husk_erase(struct husk *husk, struct husk_error *err)
{
	if (husk_owner_only(husk, "removing the instance", err) < 0)
		return -1;
	cleanup_close int lock = lock_server(husk, err);
	if (lock < 0 || check_asleep(husk, err) < 0)
		return -1;
	return empty(husk->paths.run, err) < 0 || empty(husk->paths.home, err) < 0 ? -1 : 0;
}
