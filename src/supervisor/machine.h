/*
 * What a supervisor can do to its machine; see machine.c.
 */
#ifndef HUSK_MACHINE_H
#define HUSK_MACHINE_H

#include "supervisor/supervisor.h"

/* Prepares cgroup and engine, up to the point where an image can be restored. `image`: that image, if it is known. With
 * the turn. */
int machine_prepare(struct supervisor *s, const struct catalog_sandbox *row, const char *image, bool reboot,
		    struct husk_error *err);
/* Continues from `image` and connects the link; the guest's processes stay frozen until machine_become. With the turn. */
int machine_restore(struct supervisor *s, const struct catalog_sandbox *row, const char *image, struct husk_error *err);
/* The same with the disk of `image` alone: the guest begins anew. */
int machine_boot(struct supervisor *s, const char *image, struct husk_error *err);
/* Gives the machine its identity, limits and environment from its row, starts its processes, and sets the row to
 * running. With the turn. */
int machine_become(struct supervisor *s, const struct catalog_sandbox *row, struct husk_error *err);
/* The machine has become a sandbox or an entry of the pool: adds what the pool lacks. */
void machine_replace(struct supervisor *s, const struct catalog_sandbox *row);
/* A pooled machine becomes the sandbox `id`: its own id, or that of a hibernated sandbox, whose lock is `lock_fd`. */
int machine_claim(struct supervisor *s, const char *id, int lock_fd, const char *image, struct husk_error *err);
/* Freeze, save, thaw. *pause_ms: how long the guest was frozen. */
int machine_checkpoint(struct supervisor *s, const char *image, int64_t *pause_ms, int64_t *effect,
		       struct husk_error *err);
int machine_hibernate(struct supervisor *s, struct husk_error *err);
/* Shared with the checkpoints of the sandbox (rewind.c). With the turn: saves the machine into `image`, which does not
 * exist yet; */
int machine_save(struct supervisor *s, const char *image, int64_t *pause_ms, struct husk_error *err);
/* after life_commit, with a complete image: ends the machine and leaves the sandbox hibernated. `event` may be NULL; */
void machine_fall_asleep(struct supervisor *s, const char *event);
/* returns -1. If the call failed because the sandbox ends, err says that the sandbox ended. */
int machine_ended_meanwhile(struct supervisor *s, struct husk_error *err);
int machine_pause(struct supervisor *s, bool pause, struct husk_error *err);
/* Never waits for a turn: the TTL can also be changed during a checkpoint. */
int machine_extend(struct supervisor *s, int64_t ttl_seconds, bool persistent, int64_t *expires_ms,
		   struct husk_error *err);
/* Sets another idle time, counted from now; 0: never. */
int machine_set_idle(struct supervisor *s, int64_t idle_seconds, struct husk_error *err);
/* Other limits, at once. If the guest cannot be told, the old ones stay. */
int machine_resize(struct supervisor *s, uint64_t memory_bytes, uint32_t cpu_milli, struct husk_error *err);
/* By the wall clock; 0: never. Does not change the catalog. */
void machine_set_expiry(struct supervisor *s, int64_t expires_ms, bool persistent);
/* Sets another egress policy (JSON, and the text of its secrets file or NULL). In force when the call returns. */
int machine_egress(struct supervisor *s, const char *policy, const char *secrets, struct husk_error *err);
/* Returns the fields of the live view as JSON. */
char *machine_describe(struct supervisor *s);
/* The use and the size of the disk, if the guest cannot know them (engine.h); otherwise -1. */
int machine_disk(struct supervisor *s, uint64_t *used, uint64_t *limit);
struct cgroup_use machine_use(struct supervisor *s);

#endif
