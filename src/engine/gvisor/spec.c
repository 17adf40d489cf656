/*
 * The OCI configuration of a machine, as runsc reads it. Called once per machine by gvisor.c.
 *
 * The root is the template's EROFS image, which the guest's kernel itself reads. Only one directory of the host is
 * mounted. Usually it holds the file behind the writable layer: the annotations turn that bind mount into a tmpfs
 * inside the guest's kernel, with a fixed size. On a host that can clone disks, it is the writable layer itself
 * (disk.c), and there is a second one: empty, until volumes are mounted in it (shares.c). Nothing else of the host may
 * ever be mounted here.
 */
#include "engine/gvisor/gvisor.h"

#define UIDS 65536
#define DISK_MOUNT "/.husk/disk"
#define EMPTY_MOUNT SHARES_MOUNT /* where the agent mounts its new root */

/*
 * Root in a throwaway machine may do everything that root does. The guest's kernel grants these capabilities, inside
 * the guest only. No process of the host has them.
 */
static const char *const capabilities[] = {
	"CAP_CHOWN",
	"CAP_DAC_OVERRIDE",
	"CAP_DAC_READ_SEARCH",
	"CAP_FOWNER",
	"CAP_FSETID",
	"CAP_KILL",
	"CAP_SETGID",
	"CAP_SETUID",
	"CAP_SETPCAP",
	"CAP_LINUX_IMMUTABLE",
	"CAP_NET_BIND_SERVICE",
	"CAP_NET_BROADCAST",
	"CAP_NET_ADMIN",
	"CAP_NET_RAW",
	"CAP_IPC_LOCK",
	"CAP_IPC_OWNER",
	"CAP_SYS_CHROOT",
	"CAP_SYS_PTRACE",
	"CAP_SYS_PACCT",
	"CAP_SYS_ADMIN",
	"CAP_SYS_BOOT",
	"CAP_SYS_NICE",
	"CAP_SYS_RESOURCE",
	"CAP_SYS_TIME",
	"CAP_SYS_TTY_CONFIG",
	"CAP_MKNOD",
	"CAP_LEASE",
	"CAP_AUDIT_WRITE",
	"CAP_AUDIT_CONTROL",
	"CAP_SETFCAP",
};

static json_t *capability_list(void)
{
	json_t *list = json_array();

	for (size_t i = 0; list && i < ARRAY_SIZE(capabilities); i++) {
		if (json_array_append_new(list, json_string(capabilities[i])) < 0) {
			json_decref(list);
			return NULL;
		}
	}
	return list;
}

static json_t *process_section(const struct engine_spec *spec)
{
	/* oomScoreAdj: if the whole host runs out of memory, sandboxes are killed before the host's own services. */
	return json_pack("{s:b, s:{s:i, s:i}, s:[s], s:[s, s], s:s, s:i, s:{s:o, s:o, s:o}, s:[{s:s, s:i, s:i}]}",
			 "terminal", 0, "user", "uid", 0, "gid", 0, "args", spec->agent, "env",
			 "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "cwd", "/",
			 "oomScoreAdj", 500, "capabilities", "bounding", capability_list(), "effective",
			 capability_list(), "permitted", capability_list(), "rlimits", "type", "RLIMIT_NOFILE", "hard",
			 1048576, "soft", 65536);
}

/*
 * From GVISOR_VERSION_NEW on, runsc makes the file behind the writable layer only if it has a file server process, and
 * starts that process only if it serves a mount. So an empty, read-only directory is mounted, and the guest's root is
 * mounted over it.
 */
static json_t *empty_mount(const char *empty)
{
	return json_pack("{s:s, s:s, s:s, s:[s]}", "destination", EMPTY_MOUNT, "type", "bind", "source", empty,
			 "options", "ro");
}

/* `size`: of the tmpfs that the annotations make of it; NULL: the directory itself is mounted. */
static json_t *disk_mount_entry(const char *disk, const char *size)
{
	return json_pack("{s:s, s:s, s:s, s:[s, s*]}", "destination", DISK_MOUNT, "type", "bind", "source", disk,
			 "options", "rw", size);
}

/* Writable for the guest's kernel: each mount that is added has its own setting. */
static json_t *shares_mount(const char *shares)
{
	return json_pack("{s:s, s:s, s:s, s:[s]}", "destination", SHARES_MOUNT, "type", "bind", "source", shares,
			 "options", "rw");
}

static json_t *mounts_section(const struct gvisor_mounts *all, const char *size)
{
	json_t *mounts = json_pack("[{s:s, s:s, s:s}, {s:s, s:s, s:s}, o]", "destination", "/proc", "type", "proc",
				   "source", "proc", "destination", "/sys", "type", "sysfs", "source", "sysfs",
				   disk_mount_entry(all->disk, size));
	bool more = all->shares || all->empty;

	if (mounts && more &&
	    json_array_append_new(mounts, all->shares ? shares_mount(all->shares) : empty_mount(all->empty)) < 0) {
		json_decref(mounts);
		return NULL;
	}
	return mounts;
}

static json_t *annotations_section(const struct engine_spec *spec, const struct gvisor_mounts *mounts, const char *size)
{
	cleanup_free char *options = str_format("%s,mode=755", size ? size : "");
	const char *disk = mounts->disk;

	if (!options)
		return NULL;
	/* Shared: other machines write there too, so the guest's kernel keeps no copy of names, sizes and bytes. */
	if (mounts->shares)
		return json_pack("{s:s, s:s, s:s, s:s, s:s}", "dev.gvisor.spec.rootfs.source", spec->rootfs,
				 "dev.gvisor.spec.rootfs.type", "erofs", "dev.gvisor.spec.mount.shares.source",
				 mounts->shares, "dev.gvisor.spec.mount.shares.type", "bind",
				 "dev.gvisor.spec.mount.shares.share", "shared");
	if (!size)
		return json_pack("{s:s, s:s}", "dev.gvisor.spec.rootfs.source", spec->rootfs,
				 "dev.gvisor.spec.rootfs.type", "erofs");
	return json_pack("{s:s, s:s, s:s, s:s, s:s, s:s}", "dev.gvisor.spec.rootfs.source", spec->rootfs,
			 "dev.gvisor.spec.rootfs.type", "erofs", "dev.gvisor.spec.mount.disk.source", disk,
			 "dev.gvisor.spec.mount.disk.type", "tmpfs", "dev.gvisor.spec.mount.disk.share", "container",
			 "dev.gvisor.spec.mount.disk.options", options);
}

static json_t *linux_section(const struct engine_spec *spec)
{
	static const char *const kinds[] = { "pid", "ipc", "uts", "mount", "network" };
	json_t *section = json_pack("{s:[]}", "namespaces"), *list = json_object_get(section, "namespaces");
	int failed = section ? 0 : -1;

	for (size_t i = 0; i < ARRAY_SIZE(kinds); i++)
		failed |= json_array_append_new(list, json_pack("{s:s}", "type", kinds[i]));
	if (spec->uid_base) {
		failed |= json_array_append_new(list, json_pack("{s:s}", "type", "user"));
		for (int i = 0; i < 2; i++)
			failed |= json_object_set_new(section, i ? "gidMappings" : "uidMappings",
						      json_pack("[{s:i, s:I, s:i}]", "containerID", 0, "hostID",
								(json_int_t)spec->uid_base, "size", UIDS));
	}
	if (!failed)
		return section;
	json_decref(section);
	return NULL;
}

int gvisor_spec_write(const struct engine_spec *spec, const char *bundle, const struct gvisor_mounts *mounts,
		      struct husk_error *err)
{
	cleanup_free char *path = str_format("%s/config.json", bundle);
	cleanup_free char *limit = str_format("size=%llu", (unsigned long long)spec->disk_bytes);
	const char *size = mounts->cloned ? NULL : limit;
	cleanup_free char *text = NULL;
	json_t *root;

	if (!path || !limit)
		return husk_fail_memory(err);
	root = json_pack("{s:s, s:s, s:{s:s, s:b}, s:o, s:o, s:o, s:o}", "ociVersion", "1.0.0", "hostname", "husk",
			 "root", "path", "rootfs", "readonly", 1, "process", process_section(spec), "mounts",
			 mounts_section(mounts, size), "annotations", annotations_section(spec, mounts, size), "linux",
			 linux_section(spec));
	text = root ? json_dumps(root, JSON_INDENT(1)) : NULL;
	json_decref(root);
	/* A name that is not UTF-8 cannot be written as JSON. */
	if (!text)
		return husk_fail(err, HUSK_INVALID, "cannot describe the machine '%s' to runsc: are its paths UTF-8?",
				 spec->id);
	return file_write_atomic(path, text, strlen(text), 0600, err);
}
