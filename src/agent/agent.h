/*
 * Declarations that the files of husk-agent share. The agent has one thread: a loop over epoll. Each turn first notes
 * which descriptors are ready, then lets every process and every channel do a bounded piece of work ("pump"), then
 * flushes the link.
 *
 * Two rules keep the agent simple. Only the link stage and the pumps send frames, and neither runs while the machine is
 * frozen for a checkpoint, so no frame leaves a frozen machine. Nothing is freed while ready descriptors are being
 * noted, so no pointer in an epoll event is ever stale.
 */
#ifndef HUSK_AGENT_H
#define HUSK_AGENT_H

#include "agent/limits.h"
#include "base/base.h"
#include "wire/wire.h"

struct agent;
struct channel;
struct process;
struct user;

#define CHUNK_SIZE (192u * 1024u) /* bytes moved per stream and turn of the loop: fairness between channels */

/* ---- loop.c: descriptors and time ------------------------------------------------------------------------------ */

/* A descriptor in the loop. It is registered edge-triggered: a flag stays set until a read or write fails with
 * EAGAIN. */
struct source {
	int fd; /* -1: none */
	bool readable, writable;
	bool drained; /* the other end is closed, and nothing is left to read */
};

int source_open(struct agent *agent, struct source *source, int fd, uint32_t events, struct husk_error *err);
void source_close(struct agent *agent, struct source *source);
/* read and write that keep the flags true. They return -1 with EAGAIN when there is no data or no room, and never
 * EINTR. */
ssize_t source_read(struct source *source, void *data, size_t size);
ssize_t source_write(struct source *source, const void *data, size_t size);
/* Blocks until a descriptor is ready, a child has ended or `timeout_ms` has passed (-1: no limit), and sets the
 * flags. */
void loop_wait(struct agent *agent, int timeout_ms);
/* Runs until the link ends. */
void loop_run(struct agent *agent);

/* ---- uplink.c: frames and channels ----------------------------------------------------------------------------- */

/* The arguments of a call. The fields are well-formed, and those that the method takes were checked against methods.def
 * (wire_check). */
struct request {
	const char *data;
	size_t size;
};

int64_t request_int(const struct request *request, uint16_t tag, int64_t fallback);
/* A text argument, which the caller frees; NULL if it was not given. */
int request_string(const struct request *request, uint16_t tag, char **out, struct husk_error *err);
/* A text argument that may repeat, as a list that the caller frees; NULL when out of memory. */
char **request_strings(const struct request *request, uint16_t tag, struct husk_error *err);

struct channel_ops {
	/* Bytes on STREAM_IN. They are credited only when the method calls channel_consumed. NULL: discarded. */
	void (*data)(struct agent *agent, struct channel *channel, const char *bytes, size_t size);
	void (*eof)(struct agent *agent, struct channel *channel);
	void (*message)(struct agent *agent, struct channel *channel, const struct request *request);
	/* The host cancelled the call: must end the channel now. */
	void (*cancel)(struct agent *agent, struct channel *channel);
	/* A bounded piece of work. Returns true if any bytes moved, so that there may be more. May end the channel. */
	bool (*pump)(struct agent *agent, struct channel *channel);
	/* Frees what the method holds, except the channel structure. Also runs when the channel is dropped. */
	void (*release)(struct agent *agent, struct channel *channel);
};

/* First member of the structure that a method with a channel allocates (with calloc). */
struct channel {
	struct channel *next;
	uint32_t number;
	const struct channel_ops *ops;
	uint32_t credit[STREAM_COUNT]; /* bytes that the agent may still send */
	uint32_t window;               /* bytes that the host may still send */
	uint32_t consumed;             /* received, not credited to the host yet */
};

struct uplink {
	struct source in, out;
	char *input; /* the frame being received, and bytes that arrived with it */
	size_t input_size;
	struct buf queue;    /* frames going out */
	size_t sent;         /* of queue */
	bool out_armed;      /* epoll waits for room */
	struct buf deferred; /* frames that arrived while frozen */
	bool ended;
	bool socket;        /* a connection that the agent can make again, not inherited pipes */
	bool wants_carrier; /* a volume was mounted: the link is handed to its thread after this turn */
};

int uplink_open(struct agent *agent, int in, int out, struct husk_error *err);
/* Called when the link has ended. Makes a new connection if the link is a socket; returns false if it cannot. A
 * restored machine continues here, at a frame boundary, as it would on pipes that were replaced. */
bool uplink_renew(struct agent *agent);
/* Reads once and acts on every complete frame. Malformed bytes end the agent. */
void uplink_receive(struct agent *agent);
void uplink_replay_deferred(struct agent *agent);
void uplink_flush(struct agent *agent);
/* Gives the loop another link. Bytes that were received but not acted on stay with the caller. */
void uplink_replace(struct agent *agent, int in, int out);
/* Pumps must check this before they send anything but an END. */
bool uplink_has_room(const struct agent *agent);
void uplink_send(struct agent *agent, uint32_t channel, enum wire_type type, uint8_t stream, const void *payload,
		 size_t size);
/* A DATA frame that is filled in place: first room for `size` bytes, then the commit of the bytes that were written. No
 * other frame may be sent in between. */
char *uplink_data_begin(struct agent *agent, size_t size);
void uplink_data_commit(struct agent *agent, struct channel *channel, uint8_t stream, size_t size);
void uplink_end(struct agent *agent, uint32_t number, const struct husk_error *e, const struct buf *results);

void channel_add(struct agent *agent, struct channel *channel, uint32_t number, const struct channel_ops *ops);
/* How much DATA may be sent on this stream now: 0 without credit, or without room on the link. */
size_t channel_allowance(const struct agent *agent, const struct channel *channel, uint8_t stream);
void channel_consumed(struct channel *channel, size_t size);
void channel_message(struct agent *agent, const struct channel *channel, const struct buf *message);
/* Sends END, then frees the channel. `e` NULL: success. */
void channel_end(struct agent *agent, struct channel *channel, const struct husk_error *e, const struct buf *results);
/* Frees the channel without END: END was sent, or the channel belongs to the machine's state before a restore. */
void channel_free(struct agent *agent, struct channel *channel);
void channel_end_cancelled(struct agent *agent, struct channel *channel);
void channel_drop_all(struct agent *agent);
bool channel_pump_all(struct agent *agent);

/* ---- methods.c: which function answers which method ------------------------------------------------------------ */

struct method {
	enum wire_method number;
	/* Answers at once. END follows with `results`, or with err if this returns -1. The alternative is `open`: */
	int (*answer)(struct agent *agent, const struct request *request, struct buf *results, struct husk_error *err);
	/* Opens a channel of its own. If it returns -1, END follows with err. */
	int (*open)(struct agent *agent, uint32_t number, const struct request *request, struct husk_error *err);
};
const struct method *method_find(int64_t number);

/* ---- the methods: exec.c, attach.c, process.c, files.c, list.c, remove.c, tar_pack.c, tar_unpack.c, watch.c, dial.c,
 * guest.c, notices.c, identity.c, network.c, interface.c, connections.c, freeze.c, replace.c ---- */

int exec_open(struct agent *agent, uint32_t number, const struct request *request, struct husk_error *err);
int attach_open(struct agent *agent, uint32_t number, const struct request *request, struct husk_error *err);
int process_list_open(struct agent *agent, uint32_t number, const struct request *request, struct husk_error *err);
int process_signal_answer(struct agent *, const struct request *, struct buf *results, struct husk_error *);
int process_forget_answer(struct agent *, const struct request *, struct buf *results, struct husk_error *);
int file_read_open(struct agent *agent, uint32_t number, const struct request *request, struct husk_error *err);
/* The name of a file that is being written begins with this, followed by this many random characters. */
#define FILE_TEMPORARY ".husk-write-"
#define FILE_TEMPORARY_RANDOM 12
int file_write_open(struct agent *agent, uint32_t number, const struct request *request, struct husk_error *err);
int file_stat_answer(struct agent *, const struct request *, struct buf *results, struct husk_error *);
int file_mkdir_answer(struct agent *, const struct request *, struct buf *results, struct husk_error *);
int file_move_answer(struct agent *, const struct request *, struct buf *results, struct husk_error *);
int file_chmod_answer(struct agent *, const struct request *, struct buf *results, struct husk_error *);
int replace_answer(struct agent *, const struct request *, struct buf *results, struct husk_error *);
struct dirent;
typedef bool (*list_filter)(const void *data, const struct dirent *entry);
/* The names in a directory, sorted; the caller frees the list. `wanted` NULL: all. NULL with err on failure. */
char **list_names(int fd, const char *path, list_filter wanted, const void *data, struct husk_error *err);
int file_list_open(struct agent *agent, uint32_t number, const struct request *request, struct husk_error *err);
int file_remove_open(struct agent *agent, uint32_t number, const struct request *request, struct husk_error *err);
int tar_read_open(struct agent *agent, uint32_t number, const struct request *request, struct husk_error *err);
int tar_write_open(struct agent *agent, uint32_t number, const struct request *request, struct husk_error *err);
int watch_open(struct agent *agent, uint32_t number, const struct request *request, struct husk_error *err);
int dial_open(struct agent *agent, uint32_t number, const struct request *request, struct husk_error *err);
int stats_answer(struct agent *, const struct request *, struct buf *results, struct husk_error *);
int oom_answer(struct agent *, const struct request *, struct buf *results, struct husk_error *);
int limits_watch_open(struct agent *agent, uint32_t number, const struct request *request, struct husk_error *err);
int identity_answer(struct agent *, const struct request *, struct buf *results, struct husk_error *);
int limits_answer(struct agent *, const struct request *, struct buf *results, struct husk_error *);
int network_answer(struct agent *, const struct request *, struct buf *results, struct husk_error *);
/* Writes the name server and the certificates of a request into the machine's files. Without an argument, its file stays
 * unchanged. */
int network_apply(const struct request *request, bool fresh, struct husk_error *err);
/* True if `name` is a link that network_apply made, to the file of certificates. */
bool network_is_link(int directory, const char *name);
/* Sets up the network interface of a request, if that is the agent's task. `fresh`: the machine became another sandbox,
 * so no connection of the previous one is kept. */
int interface_apply(const struct request *request, bool fresh, struct husk_error *err);
/* Ends connections to other machines that the previous sandbox opened. UDP sockets too if the machine's own address has
 * changed (`moved`): a socket bound to the old address would keep using it. */
int connections_cut(bool moved, struct husk_error *err);
int freeze_answer(struct agent *, const struct request *, struct buf *results, struct husk_error *);
int thaw_answer(struct agent *, const struct request *, struct buf *results, struct husk_error *);

/* ---- writes.c: files that the agent itself writes in place, which watches report once ------------------------- */

#define WRITES_MAX 64
struct stat;

struct own_write {
	uint64_t number; /* 0: never used */
	uint64_t ended;  /* on the clock of `struct writes`; 0: still going on */
	uint64_t device, inode;
	bool created; /* the write made the file */
};
struct writes {
	uint64_t clock; /* of beginnings and ends */
	struct own_write list[WRITES_MAX];
};

/* Returns the number of the write. 0: too many writes are in progress, and watches report each piece of this one. */
uint64_t writes_begin(struct agent *agent, const struct stat *status, bool created);
void writes_end(struct agent *agent, uint64_t number); /* 0 is allowed */
/* The agent's own write that may have caused a change of this path, or NULL. `seen`: the watch has read all changes up
 * to this value of the clock. */
const struct own_write *writes_find(const struct agent *agent, const char *path, uint64_t seen);

/* ---- changes.c: differences from the template ------------------------------------------------------------------ */

/* Is this a file of the machine's identity? Every sandbox has its own, and rewrites them when it wakes. */
bool changes_is_identity(const char *path);

/* The two layers that the root is made of. */
struct layers {
	int upper, lower; /* directories; -1: this root has no layers */
	int64_t born_ns;  /* when the machine first became a sandbox, wall clock; 0: not yet */
};
#define LAYERS_NONE                                                                                                    \
	{                                                                                                              \
		.upper = -1, .lower = -1                                                                               \
	}

int changes_open(struct agent *agent, uint32_t number, const struct request *request, struct husk_error *err);
/* Opens a file of the template, even if the guest has changed or removed it. No symbolic link is followed. -1 with
 * errno. */
int layers_open_template(const struct layers *layers, const char *path, int flags);

/* ---- follow.c: directories whose changes are noted, for listings by time ---------------------------------------- */

struct followed;
struct follow {
	struct source source; /* inotify; -1: nothing is followed */
	struct followed **list;
	size_t count, names; /* `names`: of all */
	uint32_t turn;       /* counts readings of the events */
	bool walks;          /* a worker lists, and may follow more */
	int64_t next_ms;     /* not before this time are events read without need */
};

/* ---- worker.c: long file work in a forked child ---------------------------------------------------------------- */

/* What runs in the child. The child sends wire frames to the agent, and the agent relays them within the credit. */
struct job {
	struct request request;
	uint32_t channel;
	struct layers layers;
	int in;                /* bytes that the host sends on STREAM_IN */
	int out;               /* frames */
	struct follow *follow; /* the worker's copy; NULL: nothing is trusted, and nothing may be followed */
	size_t followed;       /* new ones */
	struct buf pending;    /* frames of job_message */
	struct buf results;
};
typedef int (*job_function)(struct job *job, struct husk_error *err);
int job_data(struct job *job, const void *data, size_t size, struct husk_error *err);
/* Messages, many in one write. Nothing but the END may follow them. `type`: MSG, or HELLO for the agent itself. */
int job_message(struct job *job, enum wire_type type, const struct buf *message, struct husk_error *err);

/* `follow`: follow_begin was called. Unless this fails, follow_end will be. */
int worker_open(struct agent *agent, uint32_t number, const struct request *request, bool follow, job_function run,
		struct husk_error *err);
/* Called when a child has ended. Returns true if the child was a worker. */
bool worker_exited(struct agent *agent, pid_t pid);

/* ---- carrier.c: volumes, whose requests must be answered while the loop waits for one itself -------------------- */

int volume_open(struct agent *agent, uint32_t number, const struct request *request, struct husk_error *err);
/* Makes the directory for a volume, with the directories above. */
int make_mount_point(char *path, struct husk_error *err);
/* Passes the link to the carrier once a volume needs it. Called when no frame is being acted on. */
void carrier_take_link(struct agent *agent);

/* ---- mount.c: volumes that the engine shows --------------------------------------------------------------------- */

#define SHARES "/.husk/volumes" /* directories of the engine, by number; boot.c puts them there */
int mount_answer(struct agent *, const struct request *, struct buf *results, struct husk_error *);

/* ---- boot.c ---------------------------------------------------------------------------------------------------- */

/* PID 1 in a template image: makes the writable root and moves into it. */
int boot_root(struct agent *agent, struct husk_error *err);
/* Makes the control group of the workload, so that a process limit applies to the workload and never to the agent. In a
 * virtual machine (`machine`) the group limits memory too. */
int boot_process_group(struct agent *agent, bool machine, struct husk_error *err);

/* ---- kernel.c --------------------------------------------------------------------------------------------------- */

/* True if a kernel started the agent from an initramfs; false if an engine started it in a root that is ready. */
bool kernel_is_ours(void);
/* Loads modules and mounts devices, the root image and the disk: up to the state in which an engine starts the
 * agent. */
int kernel_boot(struct husk_error *err);
/* A connected link to the host. */
int kernel_connect(struct husk_error *err);

/* ---- memory.c --------------------------------------------------------------------------------------------------- */

/* Begins to follow the kernel's log, in a virtual machine. */
int memory_open(struct agent *agent, struct husk_error *err);
/* Reads the log's records about killed processes; true if there may be more. */
bool memory_read(struct agent *agent);
/* The host is short of memory: drops caches that can be read again. */
void memory_give_back(void);

/* ---- notices.c: limits that the guest has reached, for LIMITS_WATCH ------------------------------------------------ */

void notice_kill(struct agent *agent, pid_t pid, const char *name);
/* Reports a disk that has become full, once until it has room again. */
void notice_disk(struct agent *agent);

/* ---- network.c: the certificates that TLS of the guest trusts ----------------------------------------------------- */

#define NETWORK_BUNDLE "/etc/ssl/certs/ca-certificates.crt"
#define NETWORK_OWN_FILE "/usr/local/share/ca-certificates/husk.crt" /* of the gateway */

/* ---- freeze.c -------------------------------------------------------------------------------------------------- */

/* Continues the processes that the freeze stopped, children first, and acts on the frames that waited. */
void freeze_end(struct agent *agent);

/* ---- main.c: the agent itself ------------------------------------------------------------------------------------------ */

/* Defaults of a process, which its call can override (image.h); NULL: not set. */
struct image_process {
	char *user, *cwd;
	char **argv;
};

struct agent {
	int epoll;
	struct uplink link;
	struct channel *channels;
	struct process *processes; /* oldest first */
	char chunk[CHUNK_SIZE];    /* shared scratch buffer for moving bytes */

	int group_tasks;          /* workload group: writing "0" moves the writer in; -1: none */
	int group_max;            /* its limit */
	int group_memory;         /* its memory limit; -1: the engine limits memory */
	struct source kernel_log; /* -1: not followed */
	int64_t oom_expected_ms;  /* until when the next process that ends by SIGKILL counts as killed for memory */

	struct image_process image;  /* of the container image that the root is from */
	char **image_environment;    /* K=V of the template */
	char **identity_environment; /* K=V of this sandbox */
	int64_t memory_limit;        /* 0: unknown */
	bool disk_full;              /* and reported */
	struct limits limits;        /* as the guest sees them */

	struct carrier *carrier; /* NULL: no volume was ever mounted */
	struct writes writes;
	struct layers layers;
	struct follow follow;
	const char *stage; /* files are written here, then renamed into place; ends with '/'; NULL: beside the target */

	bool frozen;
	bool still; /* this machine only shows its files: processes that a freeze stopped never continue */
	int64_t frozen_at_ms;
	pid_t *stopped; /* stopped by the freeze, parents first */
	size_t stopped_count;
};

/* Returns true if a child has ended since the last call. */
bool agent_take_child_ended(void);
/* Prints the reason on the console and ends the agent, and with it the machine. */
void agent_die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

#endif
