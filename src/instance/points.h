/*
 * The images of a sandbox's checkpoints: <sandbox>/points/<number>/. Its supervisor adds them (supervisor/rewind.c); they
 * go with the sandbox.
 */
#ifndef HUSK_POINTS_H
#define HUSK_POINTS_H

#include "instance/instance.h"

/* The number of the checkpoint that the image of a sandbox is a link to; 0: it is none. */
int64_t point_of_image(const char *image);
/* Proves that a machine of this sandbox can continue the checkpoint, and then has the sandbox's image be a link to it: in
 * one step, in place of the image it may have. By whoever has the sandbox's lock. */
int point_lend(struct husk *husk, const struct catalog_sandbox *row, int64_t number, struct husk_error *err);
/* Removes one that is ready. CONFLICT: the sandbox's image is a link to it. */
int point_remove(struct husk *husk, const char *sandbox, int64_t number, struct husk_error *err);
/* Removes the row and the image, whole or not. */
void point_drop(struct husk *husk, const char *sandbox, int64_t number);
/* Drops those that are not ready. By its supervisor, or with its lock after the supervisor's death. */
void points_recover(struct husk *husk, const char *sandbox);
/* The sandbox has ended: its image, if it has one, and its checkpoints. */
int images_discard(struct husk *husk, const char *sandbox, struct husk_error *err);

#endif
