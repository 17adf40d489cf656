/*
 * The images of a sandbox's checkpoints: <sandbox>/points/<number>/. The supervisor adds them (supervisor/rewind.c);
 * they are removed with the sandbox.
 */
#ifndef HUSK_POINTS_H
#define HUSK_POINTS_H

#include "instance/instance.h"

/* The number of the checkpoint that the image of a sandbox is a link to; 0: the image is not a link. */
int64_t point_of_image(const char *image);
/* Proves that a machine of this sandbox can continue the checkpoint, and then makes the sandbox's image a link to it,
 * in one step. An existing image is replaced. The caller must hold the sandbox's lock. */
int point_lend(struct husk *husk, const struct catalog_sandbox *row, int64_t number, struct husk_error *err);
/* Removes a ready checkpoint. CONFLICT: the sandbox's image is a link to it. */
int point_remove(struct husk *husk, const char *sandbox, int64_t number, struct husk_error *err);
/* Removes the row and the image, complete or not. */
void point_drop(struct husk *husk, const char *sandbox, int64_t number);
/* Drops checkpoints that are not ready. Called by the supervisor, or with its lock after the supervisor's death. */
void points_recover(struct husk *husk, const char *sandbox);
/* The sandbox has ended: removes its image, if any, and its checkpoints. */
int images_discard(struct husk *husk, const char *sandbox, struct husk_error *err);

#endif
