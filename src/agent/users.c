/*
 * Looks users up in the guest's own /etc/passwd and /etc/group. Called for process starts, file owners and listings.
 * Damaged files must never make a start fail: root always exists.
 */
#include <grp.h>
#include <pwd.h>

#include "agent/users.h"

static void user_fill(struct user *out, const struct passwd *entry)
{
	snprintf(out->name, sizeof(out->name), "%s", entry->pw_name);
	snprintf(out->home, sizeof(out->home), "%s", entry->pw_dir && entry->pw_dir[0] == '/' ? entry->pw_dir : "/");
	snprintf(out->shell, sizeof(out->shell), "%s",
		 entry->pw_shell && entry->pw_shell[0] == '/' ? entry->pw_shell : "/bin/sh");
	out->uid = entry->pw_uid;
	out->gid = entry->pw_gid;
	out->group_count = USER_GROUPS_MAX;
	/* If there are more groups than fit, the first ones count, as for login. */
	if (getgrouplist(entry->pw_name, entry->pw_gid, out->groups, &out->group_count) < 0)
		out->group_count = USER_GROUPS_MAX;
}

static int set_group(const char *name, struct user *out, struct husk_error *err)
{
	int64_t id;

	if (str_to_int64(name, 0, UINT32_MAX - 1, &id) < 0) {
		const struct group *entry = getgrnam(name);
		if (!entry)
			return husk_fail(err, HUSK_NOT_FOUND, "group '%s' does not exist in this sandbox", name);
		id = entry->gr_gid;
	}
	out->gid = (gid_t)id;
	out->groups[0] = out->gid;
	out->group_count = 1;
	return 0;
}

static int find_account(const char *who, struct user *out, struct husk_error *err)
{
	int64_t id;

	*out = (struct user){ .name = "root", .home = "/root", .shell = "/bin/sh", .group_count = 1 };
	if (!who || who[0] == '\0' || str_equal(who, "root") || str_equal(who, "0"))
		return 0;
	bool numeric = str_to_int64(who, 0, UINT32_MAX - 1, &id) == 0;
	errno = 0;
	const struct passwd *entry = numeric ? getpwuid((uid_t)id) : getpwnam(who);
	if (entry) {
		user_fill(out, entry);
		return 0;
	}
	if (!numeric)
		return husk_fail(err, HUSK_NOT_FOUND, "user '%s' does not exist in this sandbox", who);
	snprintf(out->name, sizeof(out->name), "%s", who);
	snprintf(out->home, sizeof(out->home), "/");
	out->uid = (uid_t)id;
	out->gid = (gid_t)id;
	out->groups[0] = out->gid;
	return 0;
}

int user_lookup(const char *who, struct user *out, struct husk_error *err)
{
	const char *colon = who ? strchr(who, ':') : NULL;
	cleanup_free char *name = colon ? strndup(who, (size_t)(colon - who)) : NULL;

	if (colon && !name)
		return husk_fail_memory(err);
	if (find_account(colon ? name : who, out, err) < 0)
		return -1;
	return colon && colon[1] ? set_group(colon + 1, out, err) : 0;
}

/* Listings look up the same few ids again and again; an id without a name is cached too. */
struct name_cache {
	struct {
		uint32_t id;
		bool used;
		char name[64];
	} slots[16];
};

static const char *cached_name(struct name_cache *cache, uint32_t id, const char *(*find)(uint32_t id))
{
	__typeof__(&cache->slots[0]) slot = &cache->slots[id % ARRAY_SIZE(cache->slots)];

	if (!slot->used || slot->id != id) {
		const char *name = find(id);
		slot->used = true;
		slot->id = id;
		snprintf(slot->name, sizeof(slot->name), "%s", name ? name : "");
	}
	return slot->name[0] ? slot->name : NULL;
}

static const char *find_user(uint32_t id)
{
	const struct passwd *entry = getpwuid(id);
	return entry ? entry->pw_name : NULL;
}

static const char *find_group(uint32_t id)
{
	const struct group *entry = getgrgid(id);
	return entry ? entry->gr_name : NULL;
}

const char *user_name(uid_t uid)
{
	static struct name_cache cache; /* lives as long as the worker that uses it */
	return cached_name(&cache, uid, find_user);
}

const char *group_name(gid_t gid)
{
	static struct name_cache cache;
	return cached_name(&cache, gid, find_group);
}
