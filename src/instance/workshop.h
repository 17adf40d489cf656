/*
 * Where a template is built and baked; see workshop.c.
 */
#ifndef HUSK_WORKSHOP_H
#define HUSK_WORKSHOP_H

#include "instance/instance.h"

struct cgroup; /* jail/cgroup.h */

/* What a running bake or build has on the host. A workshop has no row in the catalog. Its lock, named like its cgroup
 * and its directory, shows whether it is at work or was killed. */
struct workshop {
	char name[32];
	char *directory, *lock_path;
	int lock;
	struct cgroup *cgroup;
};
int workshop_open(struct husk *husk, struct workshop *out, struct husk_error *err);
void workshop_close(struct husk *husk,
		    struct workshop *workshop); /* ends every process in it; also after a failed open */
/* Removes the remains of killed bakes and builds. */
void workshop_sweep(struct husk *husk);

#endif
