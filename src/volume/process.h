/*
 * The process of a volume (`husk volume-server`): answers the FUSE requests of one guest on one volume, jailed. Its
 * root is the volume's directory; it sees no other files. It has a uid of its own, no network and a short list of
 * system calls. It keeps only the capabilities over owners and modes of files (CHOWN, DAC_OVERRIDE, FOWNER), because a
 * volume keeps the owners that its guests set. A guest that takes this process over gains nothing: it could use the
 * files of that volume before.
 *
 * The thread of the supervisor that relays requests starts the process. The process ends when that thread ends (by a
 * signal of the kernel) or when the other end of its socket closes. It is in no control group of the sandbox, so that a
 * process that waits for a disk cannot delay the sandbox's end.
 *
 * On the socket (a stream) a message is a header followed by `size` bytes:
 *
 *   to it:    REQUEST  a complete FUSE request
 *             SAVE     empty; handled after every request before it
 *   from it:  READY    empty; once, when it can take requests
 *             ANSWER   a FUSE answer
 *             TABLE    a part of the answer to SAVE; an empty one is the end
 *             FAILED   text: why it ends
 */
#ifndef HUSK_VOLUME_PROCESS_H
#define HUSK_VOLUME_PROCESS_H

#include "jail/jail.h"
#include "volume/fuse.h"

#define VOLUME_UID_BASE 0x0fff4000u /* plus the slot: a uid that is used for nothing else */
#define VOLUME_MOUNTED "-"          /* in its arguments, in place of a path: the files are a descriptor */
#define VOLUME_MESSAGE_MAX SERVE_REQUEST_MAX
#define VOLUME_TABLE_MAX (64u * 1024u * 1024u)

enum volume_kind {
	VOLUME_REQUEST = 1,
	VOLUME_SAVE,
	VOLUME_READY,
	VOLUME_ANSWER,
	VOLUME_TABLE,
	VOLUME_FAILED,
};

struct volume_message {
	uint32_t kind, size;
};

/* ---- the supervisor's side ---- */

struct volume_spec {
	const char *program;   /* the husk binary */
	const char *directory; /* of the volume */
	int root;              /* a detached mount of its files, which the kernel limits; -1: they are in `directory` */
	uint64_t limit;        /* bytes */
	bool read_only;
	uint32_t uid;
	const char *subpath; /* the directory of the volume that is served; NULL: all of it */
	const char *table;   /* file with the saved state of the guest; NULL: none */
};

struct volume_process {
	int socket, pidfd; /* -1: none */
	pid_t pid;
};

/* Starts the process. READY or FAILED arrives on the socket, which is non-blocking. */
int volume_process_start(const struct volume_spec *spec, struct volume_process *out, struct husk_error *err);
/* Closes the socket, gives the process `grace_ms` to close the volume cleanly, then kills it. Waits only a moment
 * longer, even if the process cannot die yet: init reaps it then. */
void volume_process_end(struct volume_process *process, int grace_ms);

/* ---- the process itself ---- */

/* `husk volume-server`. */
int volume_server_main(int argc, char **argv);
/* Gives up all rights of the calling process, which must be the first of a pid namespace. `root` is the path of the
 * volume's directory, or NULL: then `root_fd` is a detached mount of it, and is closed. */
int volume_jail_enter(const char *root, int root_fd, bool read_only, uint64_t limit, uint32_t uid,
		      struct husk_error *err);

#endif
