/*
 * The process of a volume (`husk volume-server`): answers the FUSE requests of one guest on one volume, jailed. Its root is
 * the volume's directory and it sees nothing else; it has a uid of its own, no network, a short list of system calls, and
 * of root's rights only those over owners and modes of files (CHOWN, DAC_OVERRIDE, FOWNER), since a volume keeps the
 * owners that its guests give. A guest that takes it over has what it had: the files of that volume.
 *
 * It is started by the thread of the supervisor that relays for it, and ends when that thread ends (a signal of the
 * kernel) or when the other end of its socket closes. It is in no control group of the sandbox, so that one which hangs in
 * a disk cannot hold up the sandbox's end.
 *
 * On the socket (a stream) a message is a header and `size` bytes behind it:
 *
 *   to it:    REQUEST  a FUSE request, whole
 *             SAVE     nothing; after every request before it
 *   from it:  READY    nothing; once, when it can take requests
 *             ANSWER   a FUSE answer
 *             TABLE    a part of what SAVE asked for; one of no size is the end
 *             FAILED   text: why it ends
 */
#ifndef HUSK_VOLUME_PROCESS_H
#define HUSK_VOLUME_PROCESS_H

#include "jail/jail.h"
#include "volume/fuse.h"

#define VOLUME_UID_BASE 0x0fff4000u /* plus the slot: a uid that nothing else has */
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
	uint64_t limit;        /* bytes */
	bool read_only;
	uint32_t uid;
	const char *table; /* file with what a past life of the guest knows; NULL: nothing */
};

struct volume_process {
	int socket, pidfd; /* -1: none */
	pid_t pid;
};

/* Launches it; READY or FAILED comes over the socket, which does not block. */
int volume_process_start(const struct volume_spec *spec, struct volume_process *out, struct husk_error *err);
/* Closes the socket, gives it `grace_ms` to close the volume in order, then kills it. Never waits longer than that and a
 * moment, not even for one that cannot die yet: that one is left to init. */
void volume_process_end(struct volume_process *process, int grace_ms);

/* ---- the process itself ---- */

/* `husk volume-server`. */
int volume_server_main(int argc, char **argv);
/* Everything that it gives up, on the calling process, which must be the first of a pid namespace. `root` is a path of the
 * volume's directory. */
int volume_jail_enter(const char *root, bool read_only, uint64_t limit, uint32_t uid, struct husk_error *err);

#endif
