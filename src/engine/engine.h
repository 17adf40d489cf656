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
	uint64_t disk_bytes; /* size of the writable layer; part of a checkpoint, so it must match on restore */
	uint32_t uid_base;   /* first of 65,536 host uids of this machine's own; 0: the engine may not map */
	const struct gateway *gateway; /* the wire for its network interface; the port is copied. NULL: loopback only */
	struct cgroup *cgroup;         /* every process of the engine is born inside */
};

struct engine_machine; /* the engine's own */

struct engine {
	const char *name;     /* "gvisor", "microvm": what --isolation takes */
	const char *boundary; /* one phrase for people: what stands between guest and host */
	bool machine; /* its guest has a kernel of its own that the agent sets up: network, memory limit; takes a tap */
	/* The most memory a sandbox of this engine can have on this host; NULL: as much as the host has. */
	uint64_t (*memory_max)(void);

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
	/* A descriptor that becomes readable when the machine has ended by itself (pidfd of its main process). */
	int (*end_fd)(struct engine_machine *machine);
	int (*pause)(struct engine_machine *machine, struct husk_error *err);
	int (*resume)(struct engine_machine *machine, struct husk_error *err);
	/* Memory, processes and disk into directory `image` (exists, empty). The machine runs on. A failed or interrupted
	 * checkpoint leaves the machine running and no file that restore would accept. */
	int (*checkpoint)(struct engine_machine *machine, const char *image, struct husk_error *err);
	/* After the first restore of a baked image, once its agent has answered: notes in the image what of its memory that
	 * took, so that later restores have it ready. NULL: this engine has nothing to note. */
	int (*learn)(struct engine_machine *machine, const char *image, struct husk_error *err);
	/* Kills every process of the guest but the agent, from outside: for a guest so busy making processes that its agent
	 * gets no turn. Returns how many. */
	int (*kill_processes)(struct engine_machine *machine, struct husk_error *err);
	/* Ends it now; idempotent; frees nothing of `directory`, which the caller removes. */
	void (*stop)(struct engine_machine *machine);
	void (*free)(struct engine_machine *machine);
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
/* Removes what a machine whose supervisor was killed may have left in `runtime`. Its processes are gone already. */
void engine_sweep(const char *runtime, const char *id);

/* A fresh checkpoint is good for this boot of the host only: nobody has waited for the disk, so that a fork need not.
 * This waits for it; snapshots, hibernation and baked templates must call it before they say that they are done. */
int engine_image_sync(const char *image, struct husk_error *err);
#define ENGINE_IMAGE_DURABLE "durable" /* the file in an image that says so; for engines */

extern const struct engine engine_microvm, engine_gvisor;

#endif
