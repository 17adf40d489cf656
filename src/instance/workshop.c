/*
 * The place where a template is built and baked: a cgroup, a directory for the engine, and a lock that shows that a build
 * is running. Called by versions.c and bake.c. gc removes what a killed build left.
 */
#include "instance/workshop.h"

#include "engine/engine.h"
#include "instance/spawn.h"
#include "jail/cgroup.h"

#define PREFIX "bake-"

static int name_files(struct husk *husk, struct workshop *workshop, struct husk_error *err)
{
	workshop->directory = str_format("%s/machines/%s", husk->paths.home, workshop->name);
	workshop->lock_path = path_lock(&husk->paths, workshop->name);
	return workshop->directory && workshop->lock_path ? 0 : husk_fail_memory(err);
}

int workshop_open(struct husk *husk, struct workshop *out, struct husk_error *err)
{
	*out = (struct workshop){ .lock = -1 };
	if (random_id(PREFIX, 8, out->name) < 0)
		return husk_fail_errno(err, "cannot make an id");
	if (name_files(husk, out, err) < 0)
		return -1;
	out->lock = supervisor_lock_new(husk, out->name, err);
	if (out->lock < 0 || dir_make(out->directory, 0711, err) < 0)
		return -1;
	return cgroup_create(husk->paths.scope, out->name, &out->cgroup, err);
}

void workshop_close(struct husk *husk, struct workshop *workshop)
{
	if (workshop->cgroup)
		cgroup_free(workshop->cgroup);
	if (workshop->lock >= 0) {
		cgroup_destroy(husk->paths.scope, workshop->name, NULL);
		engine_sweep(husk->paths.runtime, workshop->name);
		engine_remove(workshop->directory, NULL);
		unlink(workshop->lock_path);
	}
	fd_close(&workshop->lock);
	free(workshop->directory);
	free(workshop->lock_path);
	*workshop = (struct workshop){ .lock = -1 };
}

void workshop_sweep(struct husk *husk)
{
	cleanup_dir DIR *dir = opendir(husk->paths.run);
	struct dirent *entry;

	while (dir && (entry = readdir(dir))) {
		struct workshop dead = { .lock = -1 };
		size_t size = strcspn(entry->d_name, ".");

		if (!str_starts(entry->d_name, PREFIX) || !str_equal(entry->d_name + size, ".lock") ||
		    size >= sizeof(dead.name))
			continue;
		memcpy(dead.name, entry->d_name, size);
		if (name_files(husk, &dead, NULL) == 0)
			dead.lock = supervisor_lock(husk, dead.name, NULL); /* -1: it is at work */
		workshop_close(husk, &dead);
	}
}
