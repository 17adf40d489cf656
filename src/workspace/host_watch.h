/*
 * Which paths of the caller's directory change, by inotify: one watch for each directory that git does not ignore. .git, the stage and
 * what is behind links are not watched.
 */
#ifndef HUSK_WORKSPACE_HOST_WATCH_H
#define HUSK_WORKSPACE_HOST_WATCH_H

#include "workspace/host.h"

struct host_watch {
	char *name;    /* of the directory */
	int directory; /* the caller's */
	bool all;      /* what git ignores too */
	int fd;        /* readable when there is something */
	char **paths;  /* by inotify's number; NULL: none */
	size_t room;
};
/* LIMIT: the system allows too few watches. */
int host_watch_open(struct host_watch *watch, const char *name, int directory, bool all, struct husk_error *err);
void host_watch_close(struct host_watch *watch);
/* Adds what has changed to `dirty`. *everything: something was missed, or other files are ignored now. Never waits. */
int host_watch_read(struct host_watch *watch, struct names *dirty, bool *everything, struct husk_error *err);

#endif
