/*
 * The paths of an instance. Only this module knows them, so that tests and a second instance on a host never collide.
 *
 *   <home>/catalog.db, <home>/signing.key
 *   <home>/templates/<digest>-<build>/    a version: rootfs.img, baked/ (bake.h: the snapshot of it already running)
 *   <home>/cache/                         built root filesystems, by content
 *   <home>/images/                        container images that a build may name: OCI layouts, and tars
 *   <home>/images/pulled/                 those of registries (store/image_store.h)
 *   <home>/snapshots/<id>/                a checkpoint image
 *   <home>/sandboxes/<id>/                image/ (when hibernated), log, console (instance/console.h)
 *   <home>/sandboxes/<id>/points/<n>/     its checkpoints; during a rewind, image is a link to one
 *   <home>/volumes/<id>/                  data/, usage (volume/volume.h)
 *   <home>/workspaces/                    records of workspaces (workspace/record.h)
 *   <home>/machines/<slot>/               the engine's files of a live machine
 *   <home>/disks.btrfs, <home>/disks.lock cloned disks of gVisor machines (engine/gvisor/disks.c); on a btrfs: disks/
 *   <run>/<id>.sock, <run>/<id>.lock      a supervisor's socket, and the lock it holds while it lives
 *   <run>/runtime/                        the engines' short-lived state
 */
#ifndef HUSK_PATHS_H
#define HUSK_PATHS_H

#include "base/base.h"

struct paths {
	char *home;
	char *run;     /* /run/husk for the default home, else <home>/run */
	char *runtime; /* <run>/runtime */
	char *scope;   /* short name of this instance for cgroups: "default", or 8 hex digits of a hash of home */
};

/* Resolves $HUSK_HOME and makes the directories (0700). Refuses a home whose socket paths would not fit. */
int paths_open(const char *home, struct paths *out, struct husk_error *err);
void paths_close(struct paths *paths);
/* Each returns a string the caller frees (NULL: no memory). */
char *path_catalog(const struct paths *paths);
char *path_signing_key(const struct paths *paths);
char *path_template(const struct paths *paths, const char *digest);
char *path_rootfs(const struct paths *paths, const char *digest);
char *path_images(const struct paths *paths);
char *path_snapshot(const struct paths *paths, const char *id);
char *path_sandbox(const struct paths *paths, const char *id);
char *path_image(const struct paths *paths, const char *id); /* of a hibernated sandbox */
char *path_points(const struct paths *paths, const char *id);
char *path_point(const struct paths *paths, const char *id, int64_t number);
#define POINT_FROM_SANDBOX "points/%lld" /* the same, as a link in the sandbox's directory has it */
char *path_volume(const struct paths *paths, const char *id);
char *path_workspaces(const struct paths *paths);
char *path_machine(const struct paths *paths, uint32_t slot);
char *path_socket(const struct paths *paths, const char *id);
char *path_lock(const struct paths *paths, const char *id);

#endif
