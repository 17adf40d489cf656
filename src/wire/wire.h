/*
 * The protocol between the host and the guest agent, and between a client (libhusk) and a supervisor. Compiled into
 * both sides. The supervisor relays a client's channels to the agent's link frame by frame.
 *
 * A link is any byte stream (the pipes on the agent's stdio, a unix socket). It carries frames:
 *
 *     u32 size      of the payload, at most WIRE_PAYLOAD_MAX     (all integers little-endian)
 *     u32 channel   0: the link itself; else the channel, named by the side that opened it (the host side only)
 *     u8  type      enum wire_type
 *     u8  stream    enum wire_stream, for DATA, CREDIT and EOF; else 0
 *     u16 zero
 *
 * A channel is one call. The host sends OPEN (method and arguments). Then, until END: DATA both ways on numbered
 * streams, MSG both ways for anything structured, EOF to half-close a stream. The agent ends it with exactly one END
 * (status, message, results); the host may send CANCEL to lose interest: the agent still answers with END. After END
 * the channel number may be used again.
 *
 * Flow control: DATA on (channel, stream) may only be sent against credit. Both sides start with WIRE_WINDOW bytes per
 * stream; the receiver gives back what it has consumed with CREDIT (u32 bytes). So a slow reader stalls its own stream
 * only, and what must be buffered for it is bounded. Sending past the credit is a protocol error that ends the link.
 *
 * Structured payloads (OPEN, MSG, END, HELLO) are fields: u16 tag, u16 zero, u32 size, bytes. Unknown tags are
 * skipped, so either side may be newer. Integers are 8 bytes. A tag may repeat (argv, env).
 */
#ifndef HUSK_WIRE_H
#define HUSK_WIRE_H

#include "base/base.h"

#define WIRE_VERSION 1
#define WIRE_HEADER_SIZE 12
#define WIRE_PAYLOAD_MAX (256u * 1024u) /* a whole OPEN fits; DATA frames stay under 192 KiB */
#define WIRE_WINDOW (2u * 1024u * 1024u)

enum wire_type {
	WIRE_HELLO = 1, /* channel 0, first frame of each side: TAG_VERSION */
	WIRE_OPEN,      /* TAG_METHOD and arguments */
	WIRE_DATA,
	WIRE_CREDIT,
	WIRE_EOF,
	WIRE_MSG,
	WIRE_END, /* TAG_STATUS (enum husk_code), TAG_MESSAGE when it failed, results */
	WIRE_CANCEL,
};

enum wire_stream {
	STREAM_IN = 0,  /* host to guest: stdin, file content, tar in, dialled port */
	STREAM_OUT = 1, /* guest to host: stdout, PTY output, file content, tar out, dialled port */
	STREAM_ERR = 2, /* guest to host: stderr */
	STREAM_COUNT
};

struct wire_header {
	uint32_t size;
	uint32_t channel;
	uint8_t type;
	uint8_t stream;
};

/* Decodes and checks: size within bounds, known type, stream in range. Never trusts a byte of it. */
int wire_header_decode(const uint8_t bytes[static WIRE_HEADER_SIZE], struct wire_header *out, struct husk_error *err);
void wire_header_encode(const struct wire_header *header, uint8_t bytes[static WIRE_HEADER_SIZE]);

/* ---- fields ---- */

/* Appends a field; -1 when out of memory or the message would pass WIRE_PAYLOAD_MAX. */
int wire_put_bytes(struct buf *message, uint16_t tag, const void *data, size_t size);
int wire_put_string(struct buf *message, uint16_t tag, const char *s); /* NULL: no field, success */
int wire_put_int(struct buf *message, uint16_t tag, int64_t value);

struct wire_field {
	uint16_t tag;
	const char *data; /* NOT NUL-terminated */
	size_t size;
};

/* Walks the fields: *cursor starts at 0. 1: a field; 0: the end; -1: malformed. */
int wire_next(const char *message, size_t size, size_t *cursor, struct wire_field *out);
/* The first field with this tag: true when there. A malformed message reads as "not there": check it once on arrival. */
bool wire_find(const char *message, size_t size, uint16_t tag, struct wire_field *out);
int64_t wire_get_int(const char *message, size_t size, uint16_t tag, int64_t fallback);
/* A copy the caller frees, or NULL when absent, or when it holds a NUL byte (never valid in our strings). */
char *wire_get_string(const char *message, size_t size, uint16_t tag);
/* Every field of this tag, as a NULL-terminated list (empty list when none); NULL when out of memory or a NUL inside. */
char **wire_get_strings(const char *message, size_t size, uint16_t tag);
/* Is it a well-formed run of fields? */
bool wire_valid(const char *message, size_t size);

/* ---- frames over a blocking descriptor ---- */

/* One frame out, in one writev where the kernel allows. Callers serialise. */
int wire_send(int fd, uint32_t channel, enum wire_type type, uint8_t stream, const void *payload, size_t size,
	      struct husk_error *err);
/* One frame in; payload (at least WIRE_PAYLOAD_MAX bytes) is filled. 1: a frame; 0: clean end of stream; -1: error. */
int wire_receive(int fd, struct wire_header *header, char *payload, struct husk_error *err);
/* END with this status; `results` may be NULL. `e` NULL or code 0 means success. */
int wire_send_end(int fd, uint32_t channel, const struct husk_error *e, const struct buf *results,
		  struct husk_error *err);
/* Reads status and message of an END payload into err: 0 when it was a success, else -1. */
int wire_end_status(const char *payload, size_t size, struct husk_error *err);

/*
 * ---- methods ----
 *
 * Answered by the agent (and relayed by the supervisor). Arguments => results in END; streams and MSGs in between.
 * Paths are absolute, guest-side. "a?" is optional. Every path, argv and env string is bytes without NUL.
 */
enum wire_method {
	/* processes */
	METHOD_EXEC = 1, /* ARG* (argv) or SHELL (string for /bin/sh -c), ENV* (K=V), CWD?, USER? (name or uid; default
			    root), TIMEOUT_MS?, ROWS+COLUMNS? (PTY: output on STREAM_OUT only), TAG_NAME? (a label),
			    FLAGS? EXEC_STDIN: keep stdin open for STREAM_IN (else /dev/null), EXEC_DETACH: END as soon as
			    it has started. First MSG: PID. Then DATA with output. MSG in: SIGNAL n (to the group), or
			    ROWS+COLUMNS (resize). EOF on STREAM_IN closes stdin. END: PID, EXIT_CODE (128+n when
			    signalled, 127 not found, 126 not executable, 124 timed out), SIGNAL?, TIMED_OUT?, OOM?,
			    DURATION_MS. A CANCEL (or a lost link) detaches: the process lives on. */
	METHOD_ATTACH, /* PID, OFFSET_OUT?, OFFSET_ERR? (absolute byte offsets; default: the oldest byte still buffered),
			    FLAGS? EXEC_STDIN. First MSG: PID, OFFSET_OUT, OFFSET_ERR (where it really starts),
			    DROPPED_OUT, DROPPED_ERR (bytes lost before that). Then as EXEC. A finished process replays and ENDs. */
	METHOD_PROCESS_LIST, /* MSG per process, live and finished: PID, NAME?, ARG* (argv), CWD, USER, STARTED_MS (wall),
				  RUNNING, EXIT_CODE?, TIMED_OUT?, OOM?, OFFSET_OUT, OFFSET_ERR (ends of output so far), FLAGS */
	METHOD_PROCESS_SIGNAL, /* PID, SIGNAL: to its process group. NOT_FOUND when it is not one of ours, or over */
	METHOD_PROCESS_FORGET, /* PID: kills it if it runs, and drops its buffers */

	/* files */
	METHOD_FILE_READ = 20, /* PATH, OFFSET?, LENGTH? => DATA on STREAM_OUT, EOF, END: SIZE (of the whole file) */
	METHOD_FILE_WRITE, /* PATH, MODE?, USER?, FLAGS? FILE_APPEND, ATTRIBUTE*. DATA on STREAM_IN, EOF. Written beside and renamed
				  over the target: nothing changes if the link breaks before EOF. Parents are made. END: SIZE */
	METHOD_FILE_STAT,   /* PATH, FLAGS? FILE_FOLLOW => END: the fields of an entry (below) */
	METHOD_FILE_LIST,   /* PATH, DEPTH? (default 1) => MSG per entry */
	METHOD_FILE_MKDIR,  /* PATH, MODE?, USER?: with parents; fine when a directory is there */
	METHOD_FILE_MOVE,   /* PATH, TARGET */
	METHOD_FILE_REMOVE, /* PATH: a file, or a tree */
	METHOD_FILE_CHMOD,  /* PATH, MODE */
	METHOD_TAR_READ,    /* PATH => tar on STREAM_OUT (entries relative to PATH's parent), EOF, END */
	METHOD_TAR_WRITE,   /* PATH (a directory, made when missing), USER?. Tar on STREAM_IN, EOF, END: COUNT. Refuses
				  absolute names, "..", devices, and links that lead outside */
	METHOD_WATCH,       /* PATH, FLAGS? WATCH_RECURSIVE => first an empty MSG when armed; then MSG per event: EVENT
				  (enum wire_event), PATH; until CANCEL */

	/* the rest of the machine */
	METHOD_DIAL =
		40,   /* PORT: guest-local TCP. First an empty MSG when connected; DATA both ways, EOF both ways, END */
	METHOD_STATS, /* => END: CPU_US, MEMORY, MEMORY_TOTAL, DISK, DISK_TOTAL, COUNT (processes) */

	/* the supervisor only; a client's OPEN with these is refused */
	METHOD_IDENTITY =
		60,    /* HOSTNAME, MACHINE_ID (32 hex), ENTROPY (bytes), TIME_MS (wall), PIDS (limit), MEMORY (limit),
				 ENV* (K=V, given to every process from now on), INTERFACE?, NAMESERVER? (address for resolv.conf),
				 CERTIFICATE? (PEM, for the trust store) with NAME (its subject hash): makes this machine its own; channels of the past life are dropped (their processes go on,
				 detached); only then are frozen processes let go. END when all of it holds: VERSION */
	METHOD_FREEZE, /* before a checkpoint: stops every process of the guest but the agent, parents first; END when
				 done. After END the agent sends nothing until THAW or IDENTITY */
	METHOD_THAW,   /* the checkpoint is over and this is still the same machine: children first */
	METHOD_OOM,    /* memory is short: kill the largest process (by RSS) and mark it OOM. END: PID?, NAME? */
	METHOD_NETWORK, /* INTERFACE?, NAMESERVER?, CERTIFICATE? with NAME, ENV*: the network part of IDENTITY, for a policy changed later */
	METHOD_OOM_WATCH, /* => MSG for each process that the guest's own kernel killed for memory: PID, NAME; until CANCEL */
	METHOD_VOLUME, /* PATH, FLAGS? VOLUME_READ_ONLY: mounts a FUSE filesystem there, or takes up the one a past life
				 has there. First an empty MSG when it stands. Then DATA on STREAM_OUT is a FUSE request a frame,
				 on STREAM_IN an answer a frame, until the host cancels, which leaves the mount dead. MSG in with
				 FLAGS VOLUME_HOLD: no request is taken from the guest's kernel any more; MSG out once all that
				 were are answered. MSG in without it: goes on. Open before IDENTITY */

	/* answered by the supervisor itself */
	METHOD_SANDBOX_INFO = 100, /* => END: JSON (the live view: state, expiry, limits, use) */
	METHOD_SANDBOX_CLAIM,      /* JSON (what a sandbox is created with): turns a pooled sandbox into a live one */
	METHOD_SANDBOX_KILL,       /* REASON? => END once nothing of it is left */
	METHOD_SANDBOX_EXTEND,     /* TTL_SECONDS from now (0 with PERSISTENT) => END: EXPIRES_MS */
	METHOD_SANDBOX_CHECKPOINT, /* PATH (image directory on the host, made by the caller) => END: DURATION_MS (of the pause) */
	METHOD_SANDBOX_HIBERNATE, /* => END once it is on disk; then the supervisor ends */
	METHOD_SANDBOX_PAUSE,
	METHOD_SANDBOX_RESUME,
	METHOD_SANDBOX_EGRESS,      /* JSON (a policy), SECRETS? (the text of its secrets file): holds from END on */
	METHOD_SANDBOX_EGRESS_VIEW, /* COUNT? (newest events) => END: JSON {"traffic":{…},"log":[…]} */
};

enum wire_exec_flags { EXEC_STDIN = 1, EXEC_DETACH = 2 };
enum wire_file_flags { FILE_FOLLOW = 1, FILE_APPEND = 2 };
enum wire_volume_flags { VOLUME_READ_ONLY = 1, VOLUME_HOLD = 2 };
enum wire_watch_flags { WATCH_RECURSIVE = 1 };
enum wire_event { EVENT_CREATE = 1, EVENT_WRITE, EVENT_REMOVE, EVENT_RENAME, EVENT_CHMOD, EVENT_OVERFLOW };
enum wire_file_type { ENTRY_FILE = 1, ENTRY_DIRECTORY, ENTRY_SYMLINK, ENTRY_OTHER };

/* The guest's end of its wire, where the agent sets it up: bytes, in the order of the network. */
struct wire_interface {
	uint8_t address[4], gateway[4], prefix;
	uint8_t mac[6], gateway_mac[6]; /* known to both ends from the start: there is no ARP on the wire */
};

enum wire_tag {
	TAG_VERSION = 1,
	TAG_METHOD,
	TAG_STATUS,
	TAG_MESSAGE,
	TAG_FLAGS,
	TAG_NAME,

	TAG_ARG = 20,
	TAG_SHELL,
	TAG_ENV,
	TAG_CWD,
	TAG_USER,
	TAG_TIMEOUT_MS,
	TAG_ROWS,
	TAG_COLUMNS,
	TAG_PID,
	TAG_SIGNAL,
	TAG_EXIT_CODE,
	TAG_TIMED_OUT,
	TAG_OOM,
	TAG_DURATION_MS,
	TAG_STARTED_MS,
	TAG_RUNNING,
	TAG_OFFSET_OUT,
	TAG_OFFSET_ERR,
	TAG_DROPPED_OUT,
	TAG_DROPPED_ERR,

	/* an entry: PATH, FILE_TYPE, SIZE, MODE, UID, GID, USER?, GROUP?, MTIME_MS, TARGET? (of a symlink),
	 * ATTRIBUTE* ("key=value", what "user.e2b.key" of a file holds) */
	TAG_PATH = 60,
	TAG_TARGET,
	TAG_OFFSET,
	TAG_LENGTH,
	TAG_SIZE,
	TAG_MODE,
	TAG_DEPTH,
	TAG_FILE_TYPE,
	TAG_UID,
	TAG_GID,
	TAG_GROUP,
	TAG_MTIME_MS,
	TAG_EVENT,
	TAG_COUNT,
	TAG_ATTRIBUTE,

	TAG_PORT = 90,
	TAG_CPU_US,
	TAG_MEMORY,
	TAG_MEMORY_TOTAL,
	TAG_DISK,
	TAG_DISK_TOTAL,

	TAG_HOSTNAME = 110,
	TAG_MACHINE_ID,
	TAG_ENTROPY,
	TAG_TIME_MS,
	TAG_PIDS,
	TAG_NAMESERVER,
	TAG_CERTIFICATE,
	TAG_INTERFACE, /* struct wire_interface */

	TAG_JSON = 130,
	TAG_REASON,
	TAG_TTL_SECONDS,
	TAG_PERSISTENT,
	TAG_EXPIRES_MS,
	TAG_SECRETS,
};

#endif
