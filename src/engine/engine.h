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
	const char *image;  /* what it will continue, where that is known already; else NULL. Not kept */
	uint64_t disk_bytes; /* size of the writable layer; part of a checkpoint, so it must match on restore */
	uint32_t uid_base;   /* first of 65,536 host uids of this machine's own; 0: the engine may not map */
	const struct gateway *gateway; /* the wire for its network interface; the port is copied. NULL: loopback only */
	struct cgroup *cgroup;         /* every process of the engine is born inside */
};

struct engine_machine; /* the engine's own */

struct engine {
	const char *name;     /* "gvisor", "microvm": what --isolation takes */
	const char *boundary; /* one phrase for people: what stands between guest and host */
	bool own_kernel;      /* of the guest, which the agent sets up: network, memory limit. Takes a tap */
	/* The most memory a sandbox of this engine can have on this host; NULL: as much as the host has. */
	uint64_t (*memory_max)(void);

	/* Images depend on more than engine, root image and disk size: a short name of what, which may be part of a path.
	 * NULL: they do not. */
	int (*variant)(const char *home, const char *runtime, char *out, size_t size, struct husk_error *err);
	/* For people: which programs stand between guest and host, and how old they are. NULL: nothing to say. */
	void (*describe)(const char *home, const char *runtime, struct buf *out);

	/* Does it work on this host? Really runs something. 0, or -1 with what is missing and the fix in err. */
	int (*probe)(const char *runtime, struct husk_error *err);
	/* Makes a machine up to the point where it could boot or restore. */
	int (*prepare)(const struct engine_spec *spec, struct engine_machine **out, struct husk_error *err);
	/* First boot of a template: runs the agent. */
	int (*boot)(struct engine_machine *machine, struct husk_error *err);
	/* Continues from a checkpoint made by the same engine from a machine with the same rootfs and disk size. */
	int (*restore)(struct engine_machine *machine, const char *image, struct husk_error *err);
	/* The two ends of the agent link; valid after boot or restore, owned by the machine. May be the same descriptor. */
	void (*link)(struct engine_machine *machine, int *to_agent, int *from_agent);
	/* A byte written to this descriptor lets a machine that rests get ready for work at once. NULL: none rests. */
	int (*wake_fd)(struct engine_machine *machine);
	/* A descriptor that becomes readable when the machine has ended by itself; the same for all of its life. */
	int (*end_fd)(struct engine_machine *machine);
	int (*pause)(struct engine_machine *machine, struct husk_error *err);
	int (*resume)(struct engine_machine *machine, struct husk_error *err);
	/* Does of the next checkpoint what can be done while the guest works, so that the guest stands still the shorter. A
	 * failure leaves the machine running. NULL: this engine has nothing to do ahead. */
	int (*ahead)(struct engine_machine *machine, struct husk_error *err);
	/* Memory, processes and disk into directory `image` (exists, empty). The machine runs on. A failed or interrupted
	 * checkpoint leaves the machine running and no file that restore would accept. */
	int (*checkpoint)(struct engine_machine *machine, const char *image, struct husk_error *err);
	/* Are all files of the image there, with the sizes its marker gives? With `rootfs`, also: could a machine of this root
	 * image and disk size continue it on this host, now? Sums are compared where that is cheap. Starts nothing. */
	int (*check)(const char *image, const char *rootfs, uint64_t disk_bytes, struct husk_error *err);
	/* After the first restore of a baked image, once its agent has answered: notes in the image what of its memory that
	 * took, so that later restores have it ready. NULL: this engine has nothing to note. */
	int (*learn)(struct engine_machine *machine, const char *image, struct husk_error *err);
	/* When the guest has more than `most` processes, kills every one but the agent, from outside: for a guest so busy
	 * making processes that its agent gets no turn. Returns how many. */
	int (*kill_processes)(struct engine_machine *machine, uint64_t most, struct husk_error *err);
	/* How much of its disk the machine has filled, and may fill, where its guest cannot know. -1: the guest knows. NULL:
	 * always. Quick, and may be called beside any other call. */
	int (*disk_use)(struct engine_machine *machine, uint64_t *used, uint64_t *limit);
	/* The machine ends by itself a little after this time (wall clock, ms; 0: never), should its supervisor stand still by
	 * then. Quick, and may be called beside any other call. NULL: this engine cannot. */
	void (*expire)(struct engine_machine *machine, int64_t expires_ms);
	/* Kills it without waiting for anything: from any thread, whatever call another one is in, which then fails soon. */
	void (*kill)(struct engine_machine *machine);
	/* Kills it and waits until it is gone; idempotent; from any thread, whatever call another one is in, which then fails; frees nothing of
	 * `directory`, which the caller removes. */
	void (*stop)(struct engine_machine *machine);
	void (*free)(struct engine_machine *machine);
	/* Removes what a machine whose supervisor was killed may have left in `runtime`; it may be another engine's. NULL:
	 * this engine leaves nothing there. */
	void (*sweep)(const char *runtime, const char *id);
	/* Removes what the machine or image in `directory`, or in one below it, has elsewhere. NULL: nothing is elsewhere. */
	void (*drop)(const char *directory);
	/* Removes what is elsewhere and belongs to nothing below these directories of the instance any more. NULL: as above. */
	void (*collect)(const char *home, const char *const *directories);
};

/* NULL-terminated, strongest first. */
extern const struct engine *const engines[];
/* By name; NULL when there is none. */
const struct engine *engine_find(const char *name);
/* The strongest engine whose probe passes here; NULL with every engine's reason in err. The answer of a passing probe is
 * remembered under `runtime` for this boot of the host. */
const struct engine *engine_choose(const char *runtime, struct husk_error *err);
/* For engines: what was found out about this host, kept as a line of text in the file `name` under `runtime`, good as long
 * as `key` is the same (it holds the boot's id, and whatever else the answer depends on). 0 with the text to free, or -1:
 * a missing or unreadable memory is only slow, never wrong. */
int engine_remembered(const char *runtime, const char *name, const char *key, char **out);
void engine_remember(const char *runtime, const char *name, const char *key, const char *text);
/* `sweep` of every engine, for a machine whose processes are gone already. */
void engine_sweep(const char *runtime, const char *id);
/* `collect` of every engine. */
void engine_collect(const char *home, const char *const *directories);

/* ---- directory.c: an image is a directory, which appears and disappears by rename ---- */

/* A fresh checkpoint is good for this boot of the host only: nobody has waited for the disk, so that a fork need not.
 * This waits for it; snapshots, hibernation and baked templates must call it before they say that they are done. */
int engine_image_sync(const char *image, struct husk_error *err);
#define ENGINE_IMAGE_DURABLE "durable" /* the file in an image that says so; for engines */

#define IMAGE_PARTIAL "%s.partial" /* of an image's path: where it is written, until it is whole */

/* Makes the finished image `partial` outlast a power cut, then gives it the name `image`, in the same directory, where
 * nothing may be yet. From then on it is whole, or there is none. */
int image_keep(const char *partial, const char *image, struct husk_error *err);
/* Puts a link to the whole image `target`, a path from the directory of `image`, at `image`: in one step, in place of the
 * image that may be there. `target` must outlive it. Then one of the two: what was in its place goes, or has it again. */
int image_lend(const char *target, const char *image, struct husk_error *err);
void image_lend_settle(const char *image);
void image_lend_undo(const char *image);
/* Is the image a link, and where to? */
bool image_is_lent(const char *image, char *target, size_t size);
/* Removes the directory of a machine or an image, or one that holds some, with what engines have elsewhere for it. Of
 * a link, the link alone. */
int engine_remove(const char *directory, struct husk_error *err);
/* Takes a directory away: first its name, in one step, then its files. Whoever is killed in between leaves a name that
 * nobody takes for an image and that image_sweep removes. Fine when it is not there. */
int image_discard(const char *image, struct husk_error *err);
/* The first half of it: *gone is what the directory is called now (caller frees), NULL when it was not there. */
int image_hide(const char *image, char **gone, struct husk_error *err);
/* Removes what killed callers of image_discard left in `directory`. Fine beside one that is at work. */
void image_sweep(const char *directory);
/* Is this name in a directory of images the rest of one that is being discarded? */
bool image_is_gone(const char *name);

/* Whether the image is one that may be counted on: marked as complete and as on disk, and every file that its marker lists
 * there with its size. */
bool engine_image_whole(const char *image);
/* Proves that the image can be continued on this host by a machine of this engine, root image and disk size: the marker
 * is well formed and agrees, all files are complete, and it is on disk. 0, or -1 with the reason. */
int engine_image_check(const char *engine_name, const char *image, const char *rootfs, uint64_t disk_bytes,
		       struct husk_error *err);

extern const struct engine engine_microvm, engine_gvisor;

#endif
