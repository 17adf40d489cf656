/*
 * The protocol between the host and the guest agent, and between a client (libhusk) and a supervisor. Compiled into
 * both sides. The supervisor relays a client's channels to the agent's link frame by frame.
 *
 * A link is any byte stream (the pipes on the agent's stdio, a unix socket). It carries frames:
 *
 *     u32 size      of the payload, at most WIRE_PAYLOAD_MAX     (all integers little-endian)
 *     u32 channel   0: the link itself; else the channel, numbered by the side that opened it (the host side only)
 *     u8  type      enum wire_type
 *     u8  stream    enum wire_stream, for DATA, CREDIT and EOF; else 0
 *     u16 zero
 *
 * A channel is one call. The host sends OPEN (method and arguments). Until END, both sides may send DATA on numbered
 * streams, MSG for structured data, and EOF to half-close a stream. The agent ends the channel with exactly one END
 * (status, message, results). The host may send CANCEL if it no longer needs the call; the agent still answers with
 * END. After END the channel number may be used again.
 *
 * Flow control: DATA on (channel, stream) requires credit. Both sides start with WIRE_WINDOW bytes per stream; the
 * receiver returns consumed bytes with CREDIT (u32 bytes). So a slow reader blocks only its own stream, and the buffer
 * for it is bounded. Sending more than the credit is a protocol error that ends the link.
 *
 * Structured payloads (OPEN, MSG, END, HELLO) are fields: u16 tag, u16 zero, u32 size, bytes. Unknown tags are skipped,
 * so either side may be newer. Integers are 8 bytes. A tag may repeat (argv, env).
 */
#ifndef HUSK_WIRE_H
#define HUSK_WIRE_H

#include "base/base.h"

#define WIRE_VERSION 1
/* How an agent of any version answers a method that it does not have; the number follows. */
#define WIRE_UNKNOWN_METHOD "the agent does not know method "
#define WIRE_HEADER_SIZE 12
/* A disk with less free space than this is full: what is left is too little for most writes. */
#define WIRE_DISK_SPARE(total) MAX((total) / 128, 1 << 20)

#define WIRE_PAYLOAD_MAX (256u * 1024u) /* a whole OPEN fits; DATA frames stay under 192 KiB */
#define WIRE_WINDOW (2u * 1024u * 1024u)

enum wire_type {
	WIRE_HELLO = 1, /* channel 0, first frame of each side: TAG_VERSION, FLAGS? (from a client to a supervisor) */
	WIRE_OPEN,      /* TAG_METHOD, arguments, TAG_REQUEST? */
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

/* ---- frame.c: the header ---- */

/* Decodes an untrusted header and checks it: size within bounds, known type, stream in range. */
int wire_header_decode(const uint8_t bytes[static WIRE_HEADER_SIZE], struct wire_header *out, struct husk_error *err);
void wire_header_encode(const struct wire_header *header, uint8_t bytes[static WIRE_HEADER_SIZE]);

/* ---- field.c, open.c: fields ---- */

/* Appends a field; -1 without memory, or if the message would exceed WIRE_PAYLOAD_MAX. */
int wire_put_bytes(struct buf *message, uint16_t tag, const void *data, size_t size);
int wire_put_string(struct buf *message, uint16_t tag, const char *s); /* NULL: no field, success */
int wire_put_int(struct buf *message, uint16_t tag, int64_t value);

struct wire_field {
	uint16_t tag;
	const char *data; /* NOT NUL-terminated */
	size_t size;
};

/* Iterates over the fields: *cursor starts at 0. 1: a field; 0: the end; -1: malformed. */
int wire_next(const char *message, size_t size, size_t *cursor, struct wire_field *out);
/* Finds the first field with this tag; false if there is none. A malformed message reads as "none": check it once on
 * arrival. */
bool wire_find(const char *message, size_t size, uint16_t tag, struct wire_field *out);
/* The value of an integer field; -1 if the field is not an integer. */
int wire_field_int(const struct wire_field *field, int64_t *out);
int64_t wire_get_int(const char *message, size_t size, uint16_t tag, int64_t fallback);
/* A copy, which the caller frees. NULL if the field is missing, or contains a NUL byte (never valid in these
 * strings). */
char *wire_get_string(const char *message, size_t size, uint16_t tag);
/* Every field with this tag as a NULL-terminated list, which may be empty; NULL without memory, or if a field contains
 * a NUL byte. */
char **wire_get_strings(const char *message, size_t size, uint16_t tag);
/* Makes the payload of an OPEN: the method, its arguments (may be NULL), and the id of the request that this thread
 * works for. */
int wire_put_open(struct buf *message, uint16_t method, const struct buf *arguments);
/* True if the message consists of well-formed fields. */
bool wire_valid(const char *message, size_t size);

/* ---- frame.c: frames over a blocking descriptor ---- */

/* Sends one frame, in one writev if the kernel takes it. Callers must serialise. */
int wire_send(int fd, uint32_t channel, enum wire_type type, uint8_t stream, const void *payload, size_t size,
	      struct husk_error *err);
/* Receives one frame; `payload` has room for WIRE_PAYLOAD_MAX bytes. 1: a frame; 0: clean end of stream; -1: error. */
int wire_receive(int fd, struct wire_header *header, char *payload, struct husk_error *err);
/* The same, but fails with TIMEOUT at the deadline (time_monotonic_ms; -1: none). */
int wire_receive_until(int fd, struct wire_header *header, char *payload, int64_t deadline_ms, struct husk_error *err);
/* Sends END with this status; `results` may be NULL. `e` NULL or code 0 means success. */
int wire_send_end(int fd, uint32_t channel, const struct husk_error *e, const struct buf *results,
		  struct husk_error *err);
/* Reads status and message of an END payload into err. Returns 0 on success, otherwise -1. */
int wire_end_status(const char *payload, size_t size, struct husk_error *err);

/* ---- methods: methods.def lists their arguments and answers; docs/wire.md is generated from it ---- */

enum wire_method {
#define METHOD(name, number, kind, text, answer) METHOD_##name = number,
#include "wire/methods.def"
};

enum wire_method_kind {
	METHOD_UNKNOWN,
	METHOD_AGENT,      /* answered by the agent, for any client */
	METHOD_PRIVATE,    /* answered by the agent, for the supervisor only */
	METHOD_SUPERVISOR, /* answered by the supervisor */
};

/* ---- arguments.c ---- */

/* Checks the fields of an OPEN, or of a later MSG from the host, against methods.def. Fails with INVALID and the tag's
 * name. The message must be well-formed (wire_valid). Call it on receipt, before any work for the call. */
int wire_check(int64_t method, enum wire_type frame, const char *message, size_t size, struct husk_error *err);

/* ---- open.c ---- */

enum wire_method_kind wire_method_kind(int64_t method);
/* For the log: "exec", "hibernate"; "?" for an unknown number. */
const char *wire_method_name(int64_t method);

/* HELLO_GUEST: the client wants to use the guest. HELLO_LATER: the sandbox is about to hibernate and the client should
 * connect again later; the supervisor then closes the connection. HELLO_LIMITED: the client is not trusted. It may call
 * the agent's methods for any client, and no method of the supervisor; the supervisor confirms the flag. */
enum wire_hello_flags { HELLO_GUEST = 1, HELLO_LATER = 2, HELLO_LIMITED = 4 };
/* EXEC_IMAGE: runs the container image's command. If the image has none, the argv or shell string of the call is
 * run. */
enum wire_exec_flags { EXEC_STDIN = 1, EXEC_DETACH = 2, EXEC_IMAGE = 4 };
#define EXEC_KEEP_MAX (INT64_C(1) << 40)
enum wire_file_flags { FILE_FOLLOW = 1, FILE_APPEND = 2, FILE_IN_PLACE = 4, FILE_OF_TEMPLATE = 8 };
enum wire_change { CHANGE_ADDED = 1, CHANGE_REMOVED, CHANGE_CHANGED };
enum wire_changes_flags { CHANGES_ALL = 1 };
enum wire_changes_results { CHANGES_PATHS = 1 };
enum wire_identity_flags { IDENTITY_STILL = 1 };
enum wire_tar_flags { TAR_OF_IMAGE = 1, TAR_ANY_LINKS = 2 };
enum wire_volume_flags { VOLUME_READ_ONLY = 1, VOLUME_HOLD = 2 };
enum wire_watch_flags { WATCH_RECURSIVE = 1 };
enum wire_event {
	EVENT_CREATE = 1,
	EVENT_WRITE,
	EVENT_REMOVE,
	EVENT_RENAME,
	EVENT_CHMOD,
	EVENT_OVERFLOW,
	EVENT_SETTLED
};
enum wire_file_type { ENTRY_FILE = 1, ENTRY_DIRECTORY, ENTRY_SYMLINK, ENTRY_OTHER };

/* The guest's network interface, if the agent sets it up: bytes in network order. */
struct wire_interface {
	uint8_t address[4], gateway[4], prefix;
	uint8_t mac[6], gateway_mac[6]; /* fixed on both ends, because the link does not carry ARP */
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

	/* an entry: PATH, FILE_TYPE, SIZE, MODE, UID, GID, USER?, GROUP?, MTIME_MS, TARGET? (of a symlink), ATTRIBUTE*
	 * ("key=value", from a file's extended attribute "user.e2b.key") */
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
	TAG_CHANGE, /* enum wire_change */
	TAG_INODE,
	TAG_CTIME_NS,
	TAG_VOLUME,   /* the number of a volume of the sandbox */
	TAG_OLD_TYPE, /* of the template's file, in METHOD_CHANGES */
	TAG_OLD_SIZE,
	TAG_OLD_MODE,
	TAG_OLD_UID,
	TAG_OLD_GID,
	TAG_OLD_TARGET,

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
	TAG_CPU_MILLI,
	TAG_HASH,
	TAG_KEEP, /* a number of bytes */

	TAG_JSON = 130,
	TAG_REASON,
	TAG_TTL_SECONDS,
	TAG_PERSISTENT,
	TAG_EXPIRES_MS,
	TAG_SECRETS,
	TAG_REQUEST, /* the id of the request behind a call, for the log (base/log.h) */
	TAG_IDLE_SECONDS,
	TAG_POINT,  /* the number of a checkpoint */
	TAG_EFFECT, /* the number of a held request */
};

#endif
