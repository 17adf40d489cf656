/*
 * The handle on an instance, which every file of libhusk works with, and what all of them know about an instance. Not for
 * the CLI or the server: they use husk.h only.
 */
#ifndef HUSK_INSTANCE_H
#define HUSK_INSTANCE_H

#include "base/base.h"
#include "husk.h"
#include "remote/remote.h"
#include "store/catalog.h"
#include "store/paths.h"

/* Either an instance of this host, or a server (then only `remote` is set, and each public call is passed to
 * remote/). */
struct husk {
	struct remote *remote;
	struct paths paths;
	struct catalog *catalog; /* its calls are serialised inside; it separates tenants */
	bool is_view;            /* made by husk_as: the paths belong to the original handle */
};

/* DENIED if the handle belongs to a tenant: `what` is only for the owner of the instance. */
int husk_owner_only(struct husk *husk, const char *what, struct husk_error *err);
/* Names of sandboxes, snapshots, tokens and tenants follow one rule; INVALID names the field. */
int name_check(const char *field, const char *name, struct husk_error *err);
/* Has this sandbox a complete image on disk (hibernated, or waking)? */
bool sandbox_has_image(struct husk *husk, const char *id);
/* The first of the 65,536 host uids of the machine in this slot; slot 0 is for bakes. */
uint32_t slot_uid_base(uint32_t slot);

#endif
