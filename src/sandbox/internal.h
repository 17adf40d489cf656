/*
 * What the files of libhusk share. Not for the CLI or the server: they know husk.h only.
 */
#ifndef HUSK_INTERNAL_H
#define HUSK_INTERNAL_H

#include "base/base.h"
#include "husk.h"
#include "store/catalog.h"
#include "store/paths.h"

struct husk {
	struct paths paths;
	struct catalog *catalog; /* its calls are serialised inside; it is what keeps tenants apart */
	bool is_view;            /* made by husk_as: the paths are those of the handle it was made from */
};

/* DENIED when the handle is a tenant's: `what` is for the instance's owner. */
int husk_owner_only(struct husk *husk, const char *what, struct husk_error *err);

/* A fresh connection to the supervisor of a sandbox, with HELLO exchanged, ready for wire_send(OPEN). A hibernated
 * sandbox is woken first. Returns the descriptor. NOT_FOUND: unknown; GONE: it has ended, and why. */
int husk_connect(struct husk *husk, const char *sandbox, struct husk_error *err);

/* Arguments in, results out, no streams: opens a connection, makes the call, closes it. `results` may be NULL. */
int husk_call(struct husk *husk, const char *sandbox, uint16_t method, const struct buf *arguments, struct buf *results,
	      struct husk_error *err);

#endif
