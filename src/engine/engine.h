/*
 * What an isolation engine is: an ops table. The supervisor drives one `struct engine_machine` through it and knows
 * nothing else of the engine. An engine is used from one supervisor process for one machine; calls are not concurrent.
 *
 * Life of a machine:   prepare -> boot | restore -> (pause/resume, checkpoint)* -> stop
 * `prepare` does everything that does not depend on which image will be restored, so that a pool can pay for it early.
 */
#ifndef HUSK_ENGINE_H
#define HUSK_ENGINE_H

#include "base/base.h"

struct cgroup;  /* jail/cgroup.h */
struct gateway; /* net/gateway.h */

/* Fixed when the machine is prepared. Strings live as long as the machine. */
struct engine_spec {
	const char *id;        /* the sandbox's id; unique on this host */
	const char *directory; /* private to this machine, made and removed by the caller; the engine's files go here */
	const char
		*runtime;   /* short-lived engine state (sockets, pid files) shared by all machines of this HUSK_HOME */
	const char *rootfs; /* the template's read-only root image */
	const char *agent;  /* path of the agent inside the image */
	const char *image;  /* the image that it will continue, if known; otherwise NULL. Not kept */
	bool disk_only;     /* it will boot with the disk of `image`, and not continue its memory */
	uint64_t disk_bytes; /* size of the writable layer; part of a checkpoint, so it must match on restore */
	uint32_t uid_base;   /* first of the 65,536 host uids of this machine; 0: the engine may not map */
	const struct gateway *gateway; /* the wire for its network interface; the port is copied. NULL: loopback only */
	struct cgroup *cgroup;         /* every process of the engine starts inside */
};

struct engine_machine; /* the engine's own */

/*
 * Shares: volumes that a machine has mounted as a directory of the host, not over the agent link. The kernel of the host
 * enforces the size. `directory` is the directory of a volume. It is private to the instance; the files are elsewhere.
 */
#define ENGINE_SHARES_MAX 16
struct engine_shares {
	/* Makes the files of a new volume. `directory` exists and is empty. UNAVAILABLE: not possible in this
	 * instance. */
	int (*make)(const char *home, const char *runtime, const char *directory, uint64_t bytes,
		    struct husk_error *err);
	/* Does this engine keep the files of the volume? */
	bool (*has)(const char *directory);
	/* A detached mount of the files, with the owners that guests see; returns a descriptor. */
	int (*open)(const char *directory, struct husk_error *err);
	/* The used bytes: now, which waits for the disk, or some seconds ago. */
	int (*used)(const char *directory, bool now, uint64_t *bytes, struct husk_error *err);
	/* Can volumes be mounted as shares in this machine? Valid after boot or restore. */
	bool (*ready)(struct engine_machine *machine);
	/* Was share `number` mounted in the machine of this image? Then it must be added before the restore. */
	bool (*in_image)(const char *image, unsigned number);
	/* Shows the volume to the machine. Its agent mounts it by this number (METHOD_MOUNT). */
	int (*add)(struct engine_machine *machine, unsigned number, const char *directory, bool read_only,
		   struct husk_error *err);
};

struct engine {
	const char *name;     /* "gvisor", "microvm": the value of --isolation */
	const char *boundary; /* one phrase for people: what separates guest and host */
	bool own_kernel; /* the guest has its own kernel, and the agent sets up its network and memory limit. Uses a tap */
	/* The maximum memory of a sandbox of this engine on this host; NULL: no limit except the host's memory. */
	uint64_t (*memory_max)(void);

	/* A short name, valid in a path, for what images depend on besides engine, root image and disk size. NULL:
	 * nothing else. */
	int (*variant)(const char *home, const char *runtime, char *out, size_t size, struct husk_error *err);
	/* For people: which programs separate guest and host, and how old they are. NULL: nothing to report. */
	void (*describe)(const char *home, const char *runtime, struct buf *out);

	/* Does the engine work on this host? Really runs something. 0, or -1 with what is missing and the fix in
	 * err. */
	int (*probe)(const char *runtime, struct husk_error *err);
	/* Prepares a machine up to the point where it can boot or restore. */
	int (*prepare)(const struct engine_spec *spec, struct engine_machine **out, struct husk_error *err);
	/* Boots: runs the agent. `disk`: NULL for the first boot of a template, which begins with an empty disk; otherwise a
	 * checkpoint of a machine with the same rootfs and disk size, of which only the disk is used. */
	int (*boot)(struct engine_machine *machine, const char *disk, struct husk_error *err);
	/* Continues from a checkpoint made by the same engine from a machine with the same rootfs and disk size. */
	int (*restore)(struct engine_machine *machine, const char *image, struct husk_error *err);
	/* The two ends of the agent link; valid after boot or restore; the machine owns them. May be the same
	 * descriptor. */
	void (*link)(struct engine_machine *machine, int *to_agent, int *from_agent);
	/* A byte written to this descriptor makes a resting machine get ready at once. NULL: machines of this engine
	 * never rest. */
	int (*wake_fd)(struct engine_machine *machine);
	/* A descriptor that becomes readable when the machine has ended by itself; it never changes. */
	int (*end_fd)(struct engine_machine *machine);
	int (*pause)(struct engine_machine *machine, struct husk_error *err);
	int (*resume)(struct engine_machine *machine, struct husk_error *err);
	/* Does as much as possible of the next checkpoint while the guest runs, so that the pause is shorter. After a
	 * failure the machine continues. NULL: this engine has nothing to do in advance. */
	int (*ahead)(struct engine_machine *machine, struct husk_error *err);
	/* Writes memory, processes and disk into the directory `image` (exists, empty). The machine continues. After
	 * a failed or interrupted checkpoint the machine continues too, and there is no file that restore would
	 * accept. */
	int (*checkpoint)(struct engine_machine *machine, const char *image, struct husk_error *err);
	/* Do all files of the image exist, with the sizes in its marker? With `rootfs`, also: could a machine with this
	 * root image and disk size continue it on this host now? Checksums are compared where that is cheap. Starts
	 * nothing. */
	int (*check)(const char *image, const char *rootfs, uint64_t disk_bytes, struct husk_error *err);
	/* Called after the first restore of a baked image, when its agent has answered: records in the image which
	 * memory was used, so that later restores prepare it. NULL: this engine has nothing to record. */
	int (*learn)(struct engine_machine *machine, const char *image, struct husk_error *err);
	/* If the guest has more than `most` processes, kills all of them except the agent, from outside. For a guest
	 * that forks so fast that its agent gets no CPU time. Returns how many. */
	int (*kill_processes)(struct engine_machine *machine, uint64_t most, struct husk_error *err);
	/* How much of its disk the machine uses, and its size, if the guest cannot know. -1: the guest knows. NULL: the
	 * guest always knows. Fast; may be called at the same time as any other call. */
	int (*disk_use)(struct engine_machine *machine, uint64_t *used, uint64_t *limit);
	/* The machine ends by itself shortly after this time (wall clock, ms; 0: never), even if its supervisor hangs.
	 * Fast; may be called at the same time as any other call. NULL: not supported by this engine. */
	void (*expire)(struct engine_machine *machine, int64_t expires_ms);
	/* Kills the machine without waiting. Any thread may call this; a call in another thread then fails soon. */
	void (*kill)(struct engine_machine *machine);
	/* Kills the machine and waits until it is gone; idempotent. Any thread may call this; a call in another thread
	 * then fails. Frees nothing in `directory`, which the caller removes. */
	void (*stop)(struct engine_machine *machine);
	void (*free)(struct engine_machine *machine);
	/* NULL: volumes are mounted over the agent link only. */
	const struct engine_shares *shares;
	/* Removes what a machine with a killed supervisor may have left in `runtime`; the machine may belong to another
	 * engine. NULL: this engine leaves nothing there. */
	void (*sweep)(const char *runtime, const char *id);
	/* What an image has in other places, as a stream into a file: 1, or 0 if it has nothing there. And back: makes it for an
	 * image that came from another host. NULL: nothing is in other places. */
	int (*send)(const char *image, int fd, struct husk_error *err);
	int (*receive)(const char *image, int fd, struct husk_error *err);
	/* Removes what the machine or image in `directory`, or below it, has in other places. NULL: nothing is in other
	 * places. */
	void (*drop)(const char *directory);
	/* Removes everything in other places that belongs to nothing below these directories of the instance. NULL: as
	 * above. */
	void (*collect)(const char *home, const char *const *directories);
};

/* NULL-terminated, strongest first. */
extern const struct engine *const engines[];
/* By name; NULL: no such engine. */
const struct engine *engine_find(const char *name);
/* The strongest engine whose probe passes on this host; NULL with every engine's reason in err. A passing result is
 * cached under `runtime` until the host reboots. */
const struct engine *engine_choose(const char *runtime, struct husk_error *err);
/* For engines: a cached result about this host, one line of text in the file `name` under `runtime`. It is valid while
 * `key` is the same (the key holds the id of the boot, and everything else that the result depends on). 0 with the text
 * to free, or -1: without the cache, the result is computed again. */
int engine_remembered(const char *runtime, const char *name, const char *key, char **out);
void engine_remember(const char *runtime, const char *name, const char *key, const char *text);
/* Calls `sweep` of every engine, for a machine whose processes are already gone. */
void engine_sweep(const char *runtime, const char *id);
/* The shares of the engine that keeps the files of this volume; NULL: none does, and they are in `directory`. */
const struct engine_shares *engine_shares_of(const char *directory);
/* Makes the files of a new volume, with the first engine that can. UNAVAILABLE: none can. */
int engine_share_make(const char *home, const char *runtime, const char *directory, uint64_t bytes,
		      struct husk_error *err);
/* Calls `collect` of every engine. */
void engine_collect(const char *home, const char *const *directories);

/* ---- directory.c: an image is a directory, which appears and disappears by rename ---- */

/* A new checkpoint is valid until the host reboots, because nothing has waited for the disk: a fork need not wait. This
 * function waits. Snapshots, hibernation and baked templates must call it before they report success. */
int engine_image_sync(const char *image, struct husk_error *err);
#define ENGINE_IMAGE_OUTSIDE "disk.name" /* names what the image has in other places of this host; for engines */
#define ENGINE_IMAGE_DURABLE "durable"   /* the file in an image that marks it as on disk; for engines */

#define IMAGE_PARTIAL "%s.partial" /* from an image's path: where it is written until it is complete */

/* Makes the finished image `partial` survive a power failure, then renames it to `image`, in the same directory, which
 * must not exist. From then on there is a complete image or none. */
int image_keep(const char *partial, const char *image, struct husk_error *err);
/* Makes `image` a link to the complete image `target` (a path relative to the directory of `image`), in one step, in
 * place of an existing image. `target` must outlive the link. Then call one of the two below: remove the old image, or
 * restore it. */
int image_lend(const char *target, const char *image, struct husk_error *err);
void image_lend_settle(const char *image);
void image_lend_undo(const char *image);
/* Is the image a link, and to which target? */
bool image_is_lent(const char *image, char *target, size_t size);
/* Removes the directory of a machine or an image, or one that holds some, with everything that engines have in other
 * places for it. If it is a link, removes only the link. */
int engine_remove(const char *directory, struct husk_error *err);
/* Removes a directory: first its name, in one step, then its files. A caller that is killed in between leaves a name
 * that is never used as an image and that image_sweep removes. No error if the directory does not exist. */
int image_discard(const char *image, struct husk_error *err);
/* The first half of image_discard: *gone is the new name of the directory (caller frees); NULL: it did not exist. */
int image_hide(const char *image, char **gone, struct husk_error *err);
/* Removes what killed callers of image_discard left in `directory`. Safe while another process runs image_discard. */
void image_sweep(const char *directory);
/* Is this name, in a directory of images, the rest of a discarded image? */
bool image_is_gone(const char *name);

/* Can the image be used: marked as complete and on disk, and every file in its marker exists with its size? */
bool engine_image_whole(const char *image);
/* Proves that a machine of this engine, root image and disk size can continue the image on this host: the marker is
 * well formed and matches, all files are complete, and the image is on disk. 0, or -1 with the reason. */
int engine_image_check(const char *engine_name, const char *image, const char *rootfs, uint64_t disk_bytes,
		       struct husk_error *err);

extern const struct engine engine_microvm, engine_gvisor;

#endif
