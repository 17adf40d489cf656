/*
 * What the lifecycle files of libhusk share beyond internal.h.
 */
#ifndef HUSK_LIFECYCLE_H
#define HUSK_LIFECYCLE_H

#include "sandbox/internal.h"

#define DEFAULT_DISK_BYTES (8ull << 30)

/* Finds sandboxes (or the one given) whose supervisor is dead, takes away what they left, and says so in the events.
 * Returns how many. */
size_t husk_recover(struct husk *husk, const char *only);

/* A hibernated sandbox whose time is over is ended: the supervisor that would have done it is asleep too. */
void husk_expire(struct husk *husk, const struct catalog_sandbox *row);

/* Makes sure that the template version is baked for this disk size, and returns the image's directory (caller frees). */
char *bake_image(struct husk *husk, const struct catalog_template *version, uint64_t disk_bytes,
		 struct husk_error *err);

/* Removes template versions that no name, sandbox or snapshot needs; counts and bytes may be NULL. */
int template_collect(struct husk *husk, size_t *count, uint64_t *bytes, struct husk_error *err);

/* Names of sandboxes, snapshots, tokens and tenants are all of one kind; INVALID names the field. */
int name_check(const char *field, const char *name, struct husk_error *err);

/* Disk in use below a directory. */
uint64_t tree_bytes(const char *path);

/* The first of the 65,536 host uids of the machine in this slot; slot 0 is for bakes. */
uint32_t machine_uid_base(uint32_t slot);

#endif
