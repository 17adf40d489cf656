/*
 * Users of the guest, from its own /etc/passwd and /etc/group.
 */
#ifndef HUSK_AGENT_USERS_H
#define HUSK_AGENT_USERS_H

#include "base/base.h"

#define USER_GROUPS_MAX 64

struct user {
	char name[64];
	char home[256];
	char shell[256];
	uid_t uid;
	gid_t gid;
	gid_t groups[USER_GROUPS_MAX];
	int group_count;
};

/* Looks a user up by name or decimal uid, with a group or without ("name:group"); NULL or "": root. A uid without an
 * entry is allowed; a name without an entry
 * is not. */
int user_lookup(const char *who, struct user *out, struct husk_error *err);
/* Names of ids, cached between calls; NULL if the id has no name. */
const char *user_name(uid_t uid);
const char *group_name(gid_t gid);

#endif
