/*
 * Process defaults of the container image that the root was made from.
 */
#ifndef HUSK_AGENT_IMAGE_H
#define HUSK_AGENT_IMAGE_H

#include "agent/agent.h"
#include "agent/users.h"

/* Reads /.husk/process into agent->image. A root that was not made from a container image has no such file, and nothing
 * is set. */
int image_load(struct agent *agent, struct husk_error *err);
/* The user that a call names. Without a name, the image's USER, which may have a group ("name:group"). */
int image_user(const struct agent *agent, const char *who, struct user *out, struct husk_error *err);

#endif
