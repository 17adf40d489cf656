/*
 * Users of the guest, as its own /etc/passwd and /etc/group say.
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

/* By name or decimal uid; NULL or "": root. A uid without an entry is allowed, a name is not. */
int user_lookup(const char *who, struct user *out, struct husk_error *err);
/* Names of ids, remembered between calls; NULL when there is none. */
const char *user_name(uid_t uid);
const char *group_name(gid_t gid);

#endif
