/*
 * What the files of husk-agent share. The agent is one thread: a loop over epoll that only notes which descriptors are
 * ready, then lets every process and every channel do a bounded piece of work ("pump"), then flushes the link.
 *
 * Two rules keep it simple. Only the link stage and the pumps send frames, and neither runs while the machine is
 * frozen for a checkpoint, so nothing leaves then. And nothing is freed while ready descriptors are being noted, so no
 * pointer in an epoll event is ever stale.
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

/* A descriptor in the loop. Registered edge-triggered: the flags stay up until a read or write says EAGAIN. */
struct source {
	int fd; /* -1: none */
	bool readable, writable;
	bool drained; /* the other end is closed, and nothing is left to read */
};

int source_open(struct agent *agent, struct source *source, int fd, uint32_t events, struct husk_error *err);
void source_close(struct agent *agent, struct source *source);
/* read and write that keep the flags true: -1 with EAGAIN once drained or full. EINTR never shows. */
ssize_t source_read(struct source *source, void *data, size_t size);
ssize_t source_write(struct source *source, const void *data, size_t size);
/* Blocks until something is ready, a child ended or `timeout_ms` passed (-1: for ever), and raises the flags. */
void loop_wait(struct agent *agent, int timeout_ms);
/* Runs until the link ends. */
void loop_run(struct agent *agent);

/* ---- uplink.c: frames and channels ----------------------------------------------------------------------------- */

/* The arguments of a call: well-formed fields, and those that the method takes are as methods.def says (wire_check). */
struct request {
	const char *data;
	size_t size;
};

int64_t request_int(const struct request *request, uint16_t tag, int64_t fallback);
/* A text argument that the caller frees; NULL when it was not given. */
int request_string(const struct request *request, uint16_t tag, char **out, struct husk_error *err);
/* A text argument that may repeat, as a list that the caller frees; NULL when out of memory. */
char **request_strings(const struct request *request, uint16_t tag, struct husk_error *err);

struct channel_ops {
	/* Bytes on STREAM_IN. They count as consumed (and are credited) when channel_consumed says so. NULL: discarded.
	 * */
	void (*data)(struct agent *agent, struct channel *channel, const char *bytes, size_t size);
	void (*eof)(struct agent *agent, struct channel *channel);
	void (*message)(struct agent *agent, struct channel *channel, const struct request *request);
	/* The host lost interest: must end the channel now. */
	void (*cancel)(struct agent *agent, struct channel *channel);
	/* A bounded piece of work; true when anything moved, so that there may be more. May end the channel. */
	bool (*pump)(struct agent *agent, struct channel *channel);
	/* Lets go of what the method holds, the channel structure excepted. Also runs when the channel is dropped. */
	void (*release)(struct agent *agent, struct channel *channel);
};

/* First member of what each method with a life of its own allocates (with calloc). */
struct channel {
	struct channel *next;
	uint32_t number;
	const struct channel_ops *ops;
	uint32_t credit[STREAM_COUNT]; /* what we may still send */
	uint32_t window;               /* what the host may still send */
	uint32_t consumed;             /* taken in, not given back yet */
};

struct uplink {
	struct source in, out;
	char *input; /* the frame being received, and what came with it */
	size_t input_size;
	struct buf queue;    /* frames going out */
	size_t sent;         /* of queue */
	bool out_armed;      /* epoll watches for room */
	struct buf deferred; /* frames that arrived while frozen */
	bool ended;
	bool socket;        /* a connection of ours that can be made again, rather than pipes that were given */
	bool wants_carrier; /* a volume was mounted: the link is handed to its thread after this turn */
};

int uplink_open(struct agent *agent, int in, int out, struct husk_error *err);
/* The link has ended: makes a new connection where it is one of ours. False: this was the end. A machine that was
 * restored goes on here, at a frame boundary, as it would on pipes that were replaced under it. */
bool uplink_renew(struct agent *agent);
/* Reads once and acts on the whole frames that are there. Malformed bytes end the agent. */
void uplink_receive(struct agent *agent);
void uplink_replay_deferred(struct agent *agent);
void uplink_flush(struct agent *agent);
/* The link under the loop is another one now; what was received and not acted on stays with the caller. */
void uplink_replace(struct agent *agent, int in, int out);
/* Pumps ask before they send anything but an END. */
bool uplink_has_room(const struct agent *agent);
void uplink_send(struct agent *agent, uint32_t channel, enum wire_type type, uint8_t stream, const void *payload,
		 size_t size);
/* A DATA frame filled in place: room for `size` bytes, then commit what there is. Nothing may be sent in between. */
char *uplink_data_begin(struct agent *agent, size_t size);
void uplink_data_commit(struct agent *agent, struct channel *channel, uint8_t stream, size_t size);
void uplink_end(struct agent *agent, uint32_t number, const struct husk_error *e, const struct buf *results);

void channel_add(struct agent *agent, struct channel *channel, uint32_t number, const struct channel_ops *ops);
/* How much DATA may go out on this stream now: 0 when there is no credit, or no room on the link. */
size_t channel_allowance(const struct agent *agent, const struct channel *channel, uint8_t stream);
void channel_consumed(struct channel *channel, size_t size);
void channel_message(struct agent *agent, const struct channel *channel, const struct buf *message);
/* END, then frees it. `e` NULL: success. */
void channel_end(struct agent *agent, struct channel *channel, const struct husk_error *e, const struct buf *results);
/* Without END: it has been sent, or the channel is of a past life. */
void channel_free(struct agent *agent, struct channel *channel);
void channel_end_cancelled(struct agent *agent, struct channel *channel);
void channel_drop_all(struct agent *agent);
bool channel_pump_all(struct agent *agent);

/* ---- methods.c: which function answers which method ------------------------------------------------------------ */

struct method {
	enum wire_method number;
	/* Answers at once: END follows with `results`, or with err when it returns -1. Or: */
	int (*answer)(struct agent *agent, const struct request *request, struct buf *results, struct husk_error *err);
	/* Opens a channel of its own; on -1 END follows with err. */
	int (*open)(struct agent *agent, uint32_t number, const struct request *request, struct husk_error *err);
};
const struct method *method_find(int64_t number);

/* ---- the methods: exec.c, attach.c, process.c, files.c, list.c, remove.c, tar_pack.c, tar_unpack.c, watch.c, dial.c,
 * guest.c, memory.c, identity.c, network.c, interface.c, connections.c, freeze.c ---- */

int exec_open(struct agent *agent, uint32_t number, const struct request *request, struct husk_error *err);
int attach_open(struct agent *agent, uint32_t number, const struct request *request, struct husk_error *err);
int process_list_open(struct agent *agent, uint32_t number, const struct request *request, struct husk_error *err);
int process_signal_answer(struct agent *, const struct request *, struct buf *results, struct husk_error *);
int process_forget_answer(struct agent *, const struct request *, struct buf *results, struct husk_error *);
int file_read_open(struct agent *agent, uint32_t number, const struct request *request, struct husk_error *err);
/* How the name of a file begins that is being written, and how many random characters follow. */
#define FILE_TEMPORARY ".husk-write-"
#define FILE_TEMPORARY_RANDOM 12
int file_write_open(struct agent *agent, uint32_t number, const struct request *request, struct husk_error *err);
int file_stat_answer(struct agent *, const struct request *, struct buf *results, struct husk_error *);
int file_mkdir_answer(struct agent *, const struct request *, struct buf *results, struct husk_error *);
int file_move_answer(struct agent *, const struct request *, struct buf *results, struct husk_error *);
int file_chmod_answer(struct agent *, const struct request *, struct buf *results, struct husk_error *);
/* The names in a directory, sorted; the caller frees the list. NULL: err says why. */
char **list_names(int fd, const char *path, struct husk_error *err);
int file_list_open(struct agent *agent, uint32_t number, const struct request *request, struct husk_error *err);
int file_remove_open(struct agent *agent, uint32_t number, const struct request *request, struct husk_error *err);
int tar_read_open(struct agent *agent, uint32_t number, const struct request *request, struct husk_error *err);
int tar_write_open(struct agent *agent, uint32_t number, const struct request *request, struct husk_error *err);
int watch_open(struct agent *agent, uint32_t number, const struct request *request, struct husk_error *err);
int dial_open(struct agent *agent, uint32_t number, const struct request *request, struct husk_error *err);
int stats_answer(struct agent *, const struct request *, struct buf *results, struct husk_error *);
int oom_answer(struct agent *, const struct request *, struct buf *results, struct husk_error *);
int oom_watch_open(struct agent *agent, uint32_t number, const struct request *request, struct husk_error *err);
int identity_answer(struct agent *, const struct request *, struct buf *results, struct husk_error *);
int network_answer(struct agent *, const struct request *, struct buf *results, struct husk_error *);
/* The name server and the certificate of a request into the machine's files; those it does not name stay as they are. */
int network_apply(const struct request *request, bool fresh, struct husk_error *err);
/* The network interface of a request, where it is the agent's to set up. `fresh`: in a life of its own, to which no
 * connection of the one before belongs. */
int interface_apply(const struct request *request, bool fresh, struct husk_error *err);
/* Ends connections to other machines, of a life before this one; UDP too when this machine's own address is another
 * now (`moved`): a socket that keeps it can go on otherwise. */
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
};
struct writes {
	uint64_t clock; /* of beginnings and ends */
	struct own_write list[WRITES_MAX];
};

/* The number of the write; 0 when too many are going on, and watches report each piece of this one. */
uint64_t writes_begin(struct agent *agent, const struct stat *status);
void writes_end(struct agent *agent, uint64_t number); /* 0 is fine */
/* The write that a change of this path may come from, for a watch that has read all changes up to `seen` on the clock;
 * NULL: none. */
const struct own_write *writes_find(const struct agent *agent, const char *path, uint64_t seen);

/* ---- changes.c: what differs from the template ------------------------------------------------------------------ */

/* The two layers that the root is made of. */
struct layers {
	int upper, lower; /* directories; -1: this root is not made of layers */
	int64_t born_ns;  /* when the machine first became a sandbox, wall clock; 0: not yet */
};
#define LAYERS_NONE                                                                                                    \
	{                                                                                                              \
		.upper = -1, .lower = -1                                                                               \
	}

int changes_open(struct agent *agent, uint32_t number, const struct request *request, struct husk_error *err);
/* A file of the template, whatever has become of it; no symbolic link is followed. -1 with errno. */
int layers_open_template(const struct layers *layers, const char *path, int flags);

/* ---- worker.c: long file work in a forked child ---------------------------------------------------------------- */

/* What runs in the child. It talks wire frames to the agent, which relays them against credit. */
struct job {
	struct request request;
	uint32_t channel;
	struct layers layers;
	int in;  /* what the host sends on STREAM_IN */
	int out; /* frames */
	struct buf results;
};
typedef int (*job_function)(struct job *job, struct husk_error *err);
int job_data(struct job *job, const void *data, size_t size, struct husk_error *err);

int worker_open(struct agent *agent, uint32_t number, const struct request *request, job_function run,
		struct husk_error *err);
/* A child ended: true when it was a worker. */
bool worker_exited(struct agent *agent, pid_t pid);

/* ---- carrier.c: volumes, whose requests must be answered while the loop waits for one itself -------------------- */

int volume_open(struct agent *agent, uint32_t number, const struct request *request, struct husk_error *err);
/* The link becomes the carrier's, once a volume wants it. Called where no frame is being acted on. */
void carrier_take_link(struct agent *agent);

/* ---- boot.c ---------------------------------------------------------------------------------------------------- */

/* PID 1 in a template image: makes the writable root and moves into it. */
int boot_root(struct agent *agent, struct husk_error *err);
/* The group that holds the workload, so that a process limit binds it and never the agent. In a virtual machine
 * (`machine`) it limits memory too. */
int boot_process_group(struct agent *agent, bool machine, struct husk_error *err);

/* ---- kernel.c --------------------------------------------------------------------------------------------------- */

/* Was the agent started by a kernel, from an initramfs, rather than by an engine in a root that is ready? */
bool kernel_is_ours(void);
/* Modules, devices, the root image and the disk: up to where an engine would have started the agent. */
int kernel_boot(struct husk_error *err);
/* A connected link to the host. */
int kernel_connect(struct husk_error *err);

/* ---- memory.c --------------------------------------------------------------------------------------------------- */

/* Begins to follow the kernel's log, in a virtual machine. */
int memory_open(struct agent *agent, struct husk_error *err);
/* Takes what the log says of killed processes; true when there may be more. */
bool memory_read(struct agent *agent);
/* The host is short of memory: lets go of what can be read again. */
void memory_give_back(void);

/* ---- freeze.c -------------------------------------------------------------------------------------------------- */

/* Lets go what the freeze stopped, children first, and takes the frames that waited. */
void freeze_end(struct agent *agent);

/* ---- main.c: the agent itself ------------------------------------------------------------------------------------------ */

/* What a process is unless its call says otherwise (image.h); NULL: nothing is said. */
struct image_process {
	char *user, *cwd;
	char **argv;
};

struct agent {
	int epoll;
	struct uplink link;
	struct channel *channels;
	struct process *processes; /* oldest first */
	char chunk[CHUNK_SIZE];    /* scratch of whoever is moving bytes */

	int group_tasks;          /* workload group: writing "0" moves the writer in; -1: none */
	int group_max;            /* its limit */
	int group_memory;         /* its limit of memory; -1: the engine's business */
	struct source kernel_log; /* -1: there is none of ours */
	int64_t oom_expected_ms;  /* a process whose child was killed for memory ends about now */

	struct image_process image;  /* of the container image that the root is from */
	char **image_environment;    /* K=V of the template */
	char **identity_environment; /* K=V of this sandbox */
	int64_t memory_limit;        /* 0: unknown */
	struct limits limits;        /* as the guest sees them */

	struct carrier *carrier; /* NULL: no volume was ever mounted */
	struct writes writes;
	struct layers layers;
	const char *stage; /* where files are written before they are renamed into place, with '/'; NULL: beside them */

	bool frozen;
	int64_t frozen_at_ms;
	pid_t *stopped; /* by the freeze, parents first */
	size_t stopped_count;
};

/* Whether a child has ended since this was last asked. */
bool agent_take_child_ended(void);
/* Says why on the console and ends the agent, and with it the machine. */
void agent_die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

#endif
