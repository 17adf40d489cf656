/*
 * Shared by the files of the gVisor engine. No other file includes this.
 */
#ifndef HUSK_GVISOR_H
#define HUSK_GVISOR_H

#include <jansson.h>
#include <stdatomic.h>

#include "engine/engine.h"
#include "engine/marker.h"

/* ---- program.c: the installed runsc ---- */

#define GVISOR_VERSION_MIN 20240729
#define GVISOR_VERSION_NEW 20260905 /* built by `make runsc`: uses another call for its interfaces */
#define GVISOR_PATH_MAX 512
struct gvisor_program {
	char path[GVISOR_PATH_MAX];
	char version[64];
	long date;     /* the date of the version, as a number: 20240729 */
	char key[256]; /* changes with the file and with each boot of the host */
};
/* Finds a runsc: of version `wanted`, or, with NULL, the one for new machines. Checks versions (cached under
 * `runtime`); refuses one that is too old. CONFLICT: only other versions are installed. */
int gvisor_program_find(const char *runtime, const char *wanted, struct gvisor_program *out, struct husk_error *err);
/* The engine's `variant` and `describe` (engine.h). */
int gvisor_variant(const char *home, const char *runtime, char *out, size_t size, struct husk_error *err);
void gvisor_describe(const char *home, const char *runtime, struct buf *out);

/* ---- probe.c ---- */

int gvisor_probe(const char *runtime, struct husk_error *err);

/* ---- spec.c ---- */

/* The directories of the host that a machine has mounted. */
struct gvisor_mounts {
	const char *disk; /* the writable layer (`cloned`), or where the file behind it is */
	bool cloned;
	const char *empty;  /* an empty directory, for a runsc that needs one; otherwise NULL */
	const char *shares; /* in its place: the directory of shares.c; NULL: none */
};
/* Writes bundle/config.json. */
int gvisor_spec_write(const struct engine_spec *spec, const char *bundle, const struct gvisor_mounts *mounts,
		      struct husk_error *err);

/* ---- disks.c: the place of an instance's cloned disks; described there ---- */

#define DISKS_QUOTAS_MAX 128
/* Is the value of HUSK_DISK valid? */
int disks_check_wish(struct husk_error *err);
/* Does this runsc support cloned disks, and does the user want them? */
bool disks_wanted(const struct gvisor_program *program);
/* Do new machines of the instance have cloned disks? Makes the place for them if it is missing and possible. */
bool disks_ready(const char *home, const char *runtime, const struct gvisor_program *program);
/* Are cloned disks possible? UNAVAILABLE with what is missing; makes nothing. */
int disks_possible(const char *home, struct husk_error *err);
/* Do machines with files in `path`, below an instance's home, have cloned disks? */
bool disks_belong(const char *path, const struct gvisor_program *program);
/* For people: how disks are kept in this instance. */
void disks_describe(const char *home, const char *runtime, const struct gvisor_program *program, struct buf *out);
/* A descriptor of the top directory, for the instance that contains `path`. While it is open, the disks stay
 * mounted. */
int disks_open(const char *path, struct husk_error *err);
/* A detached mount of one subvolume at the top. */
int disks_mount(const char *path, int disks, const char *name, struct husk_error *err);
/* The directory in which the kernel shows the quotas of the btrfs of `fd`; -1: none yet. */
int disks_quotas(int fd, char *out, size_t size);
/* Gives free blocks back to the host. */
void disks_trim(int disks);

/* ---- disk.c: the writable layer as a directory of the host, cloned by the filesystem ---- */

/* Makes the empty directory that the guest will have mounted. `machine` is the machine's directory. */
int disk_make(int disks, const char *machine, struct husk_error *err);
/* A detached mount of the disk of a machine or a volume, for a machine with these host uids; returns a descriptor. 0: for
 * a process of Husk, with the owners that guests see. */
int disk_mount(int disks, const char *directory, uint32_t uid_base, bool read_only, struct husk_error *err);
/* Makes the disk of a volume, which every user of a guest may use. */
int disk_make_volume(int disks, const char *directory, uint64_t bytes, struct husk_error *err);
/* Its used bytes: now, or as of the last commit. */
int disk_volume_used(int disks, const char *directory, bool now, uint64_t *bytes, struct husk_error *err);
/* Fills it before the guest starts: empty, or with the content of an image. Its size is limited to `bytes`. */
int disk_begin(int disks, const char *machine, uint64_t bytes, struct husk_error *err);
int disk_restore(int disks, const char *image, const char *machine, uint64_t bytes, struct husk_error *err);
/* Saves it into an image while the guest is paused. On return the image is on disk. */
int disk_save(int disks, const char *machine, const char *image, struct husk_error *err);
/* Does this directory, of an image or a volume, name a disk? */
bool disk_in_image(const char *image);
/* Its used bytes, as of the last commit of the filesystem: at most half a minute ago. */
int disk_used(int disks, const char *machine, uint64_t *bytes);
/* Does the disk that the image names exist? Opens the disks. */
int disk_check(const char *image, struct husk_error *err);
/* The engine's `send`, `receive`, `drop` and `collect` (engine.h). */
int disk_send(const char *image, int fd, struct husk_error *err);
int disk_receive(const char *image, int fd, struct husk_error *err);
void disk_drop(const char *directory);
void disk_collect(const char *home, const char *const *directories);

/* ---- network.c ---- */

/* The addresses of the guest's interface: the machine's own first, then those that the guest had in the machines of its
 * image. gVisor ends a restored guest that has a socket bound to a missing address. */
json_t *gvisor_addresses(const struct gateway *gateway, json_t *past);
/* The argument of the call that gives a machine its interfaces; without a gateway there is loopback only. */
json_t *gvisor_links(const struct gateway *gateway, json_t *addresses);

/* ---- init.c: the host-side pid 1 of a machine's processes ---- */

struct gvisor_init {
	const char *const *argv; /* `runsc … create …`; full path in argv[0] */
	const char *pid_file;    /* where runsc writes the pid of the sandbox process */
	int input, output;       /* the agent's stdin and stdout */
	int console;             /* file for its stderr, up to a limit */
	int disk;                /* a mount for disk_path; -1: none */
	const char *disk_path;
	const char *shares_path; /* where mounts can be added later (shares.c); NULL: none */
	struct cgroup *cgroup;   /* NULL: stay where we are */
};
struct gvisor_process {
	int pidfd;    /* readable when the machine is over; -1: never started */
	pid_t pid;    /* of the init, valid while pidfd is open */
	int lifeline; /* the machine ends when the last copy of this is closed */
	_Atomic int64_t
		*expires; /* shared with the init: when the machine ends by itself, on the boot clock in ms; 0: never */
	atomic_bool stopped;
};
/* Starts the init, and with it the machine; returns when `create` has succeeded. `out` must hold no process. Also after
 * a failure, stop and free it. */
int gvisor_init_start(const struct gvisor_init *init, struct gvisor_process *out, struct husk_error *err);
/* Work is coming: lets a quiet machine get ready. */
void gvisor_init_wake(struct gvisor_process *process);
/* The machine ends by itself shortly after this time (wall clock, ms; 0: never), even if this process dies. */
void gvisor_init_expire(struct gvisor_process *process, int64_t expires_ms);
/* Kills all of its processes without waiting. */
void gvisor_init_kill(struct gvisor_process *process);
/* The same, and waits until they are gone. Any thread may call this while others use the machine. So it closes nothing;
 * gvisor_init_free does that when no other thread uses the machine. */
void gvisor_init_stop(struct gvisor_process *process);
void gvisor_init_free(struct gvisor_process *process);

/* ---- root.c ---- */

/* The mounts of a machine's host side, in its new namespace; async-signal-safe. */
int gvisor_own_mounts(void);

/* ---- shares.c: volumes as directories of the host ---- */

#define SHARES_MOUNT "/.husk/root" /* in the guest, when it starts */
struct share {                     /* of a machine */
	char *directory;           /* of the volume; NULL: none */
	bool read_only;
};
int shares_make(const char *home, const char *runtime, const char *directory, uint64_t bytes, struct husk_error *err);
int shares_open(const char *directory, struct husk_error *err);
int shares_used(const char *directory, bool now, uint64_t *bytes, struct husk_error *err);
bool shares_in_image(const char *image, unsigned number);
/* The place where mounts can be added later, in the machine's own mount namespace; async-signal-safe. */
int shares_place(const char *path);
/* Adds a mount there, at any time. */
int shares_add(const struct gvisor_process *process, const char *place, unsigned number, const struct share *share,
	       uint32_t uid_base, struct husk_error *err);
/* Writes which names the guest has open into the image; the guest is paused. `machine` is the machine's directory. */
int shares_save(const struct gvisor_process *process, const char *machine,
		const struct share shares[static ENGINE_SHARES_MAX], const char *image, struct husk_error *err);
/* Rewrites gVisor's message about a file that cannot be saved; other errors stay. */
void shares_explain(struct husk_error *err);
/* Around a restore: gVisor cannot continue an open file whose name is gone. Makes such names, empty; then removes
 * them. */
struct share_names;
int shares_recall(const struct share shares[static ENGINE_SHARES_MAX], const char *image, struct share_names **out,
		  struct husk_error *err);
void shares_forget(struct share_names *names);

/* ---- quiet.c: an idle machine that costs nothing ---- */

#define QUIET_PERIOD_MS 500
#define QUIET_SLEEP_MS 2000 /* … and for a sleeping one */
#define QUIET_HOLD_MS 3000  /* how long it stays exact after quiet_wake */
enum quiet_level { QUIET_BUSY, QUIET_LIGHT, QUIET_DEEP, QUIET_ASLEEP };
struct quiet { /* zero it, then set `sandbox`; quiet.c uses the rest */
	pid_t sandbox, monitor;
	uint64_t sum, last; /* CPU time of the guest, ns */
	unsigned still, found, threads;
	int64_t up, idle; /* of the host, in hundredths of a second, at the last check */
	bool crowded;
	enum quiet_level level;
};
void quiet_look(struct quiet *quiet); /* every period: adapts the timers to the guest's activity */
int quiet_period(const struct quiet *quiet);
void quiet_wake(struct quiet *quiet); /* work is coming: exact timers at once */

/* ---- control.c: calls to the sandbox process over its control socket ---- */

int control_connect(const char *path, struct husk_error *err);
/* One call. Takes ownership of `arg`. `out` (may be NULL) gets the result, for json_decref. UNAVAILABLE: no such
 * method; GONE: the sandbox process has ended. After a failure the connection cannot be used again: half a request or a
 * late answer would become part of the next call. */
int control_call(int fd, const char *method, json_t *arg, const int *fds, size_t count, int timeout_ms, json_t **out,
		 struct husk_error *err);

/* ---- image.c: a checkpoint as a directory ---- */

enum gvisor_file { IMAGE_STATE, IMAGE_META, IMAGE_PAGES, IMAGE_FILES }; /* in the order of runsc's descriptors */
/* What must be the same in an image and in the machine that restores it. */
struct gvisor_identity {
	struct marker_identity common;
	char version[64]; /* of runsc */
	bool cloned;      /* the disk is a directory in the image, not part of its files */
	bool shares;      /* the guest was started with a place for shares */
};
int image_identify(const struct engine_spec *spec, const char *version, struct gvisor_identity *out,
		   struct husk_error *err);
/* For messages: what is possible when the memory of an image cannot be continued; "" if nothing is. */
const char *image_way_out(const char *image);
/* Opens the files to write, under names that restore ignores; only image_finish makes them an image. */
int image_begin(const char *image, int fds[static IMAGE_FILES], struct husk_error *err);
int image_finish(const char *image, const int fds[static IMAGE_FILES], const struct gvisor_identity *identity,
		 json_t *addresses, struct husk_error *err);
void image_abandon(const char *image, int fds[static IMAGE_FILES]); /* closes them too */
void image_close(int fds[static IMAGE_FILES]);
/* Is the filesystem of an image file full? runsc does not always report it. */
bool image_out_of_space(int fd);
/* Opens an image for restore after all cheap checks. `addresses` gets the addresses of the guest, for json_decref. */
int image_open(const char *image, const struct gvisor_identity *identity, int fds[static IMAGE_FILES],
	       json_t **addresses, struct husk_error *err);
/* Can the guest in the image mount shares? */
bool image_has_shares(const char *image);
/* The version of runsc that made the image; -1: unknown. */
int image_version(const char *image, char *out, size_t size);
/* The engine's `check` (engine.h). */
int image_check(const char *image, const char *rootfs, uint64_t disk_bytes, struct husk_error *err);

#endif
