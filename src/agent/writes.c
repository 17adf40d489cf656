/*
 * Remembers which files the agent is writing in place, or has just written. watch.c asks: the kernel reports every piece of
 * an upload, and the watch should report the upload once. The list is bounded. A write that finds the list full is reported
 * piece by piece.
 */
#include <sys/stat.h>

#include "agent/agent.h"

/* The slot that has been free for the longest time: an ended write is needed until every watch has read past it. */
static struct own_write *find_room(struct writes *writes)
{
	struct own_write *oldest = NULL;

	for (size_t i = 0; i < WRITES_MAX; i++) {
		struct own_write *each = &writes->list[i];
		if (each->number && !each->ended)
			continue;
		if (!oldest || each->ended < oldest->ended)
			oldest = each;
	}
	return oldest;
}

uint64_t writes_begin(struct agent *agent, const struct stat *status, bool created)
{
	struct own_write *write = find_room(&agent->writes);

	if (!write)
		return 0;
	*write = (struct own_write){
		.number = ++agent->writes.clock, .device = status->st_dev, .inode = status->st_ino, .created = created
	};
	return write->number;
}

void writes_end(struct agent *agent, uint64_t number)
{
	for (size_t i = 0; number && i < WRITES_MAX; i++)
		if (agent->writes.list[i].number == number)
			agent->writes.list[i].ended = ++agent->writes.clock;
}

const struct own_write *writes_find(const struct agent *agent, const char *path, uint64_t seen)
{
	const struct own_write *found = NULL;
	struct stat status = { 0 };
	bool looked = false;

	for (size_t i = 0; i < WRITES_MAX; i++) {
		const struct own_write *each = &agent->writes.list[i];
		if (!each->number || (each->ended && each->ended <= seen))
			continue;
		if (!looked && stat(path, &status) < 0)
			return NULL;
		looked = true;
		/* If a file was written several times, the last write counts. */
		if (each->device == status.st_dev && each->inode == status.st_ino &&
		    (!found || each->number > found->number))
			found = each;
	}
	return found;
}
