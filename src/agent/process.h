/*
 * The processes that the host has started: their output rings, their input, their end. Channels of EXEC and ATTACH
 * (attach.c) are attachments to a process. A process continues without attachments.
 */
#ifndef HUSK_AGENT_PROCESS_H
#define HUSK_AGENT_PROCESS_H

#include "agent/agent.h"
#include "agent/ring.h"

/* A channel of EXEC or ATTACH: reads output from its own offsets, and may send input. */
struct attachment {
	struct channel channel;
	struct attachment *next; /* of the same process */
	struct process *process;
	uint64_t offset[2]; /* next byte to send of each output */
	uint64_t dropped[2];
	bool from_attach; /* the first message reports the offsets */
	bool announced;
	bool feeds;       /* may send input */
	struct buf input; /* not yet written to the process */
	bool input_ended;
};

struct process_output {
	struct source source;
	struct ring ring;
	bool ended; /* all of it is in the ring */
};

struct process {
	struct process *next;
	pid_t pid; /* also its session and process group */
	char *name, *cwd, *user;
	char **argv;
	int64_t flags; /* enum wire_exec_flags */
	uint16_t rows, columns;
	bool terminal;
	int64_t started_ms; /* wall clock */
	int64_t started_us, duration_ms;
	int64_t deadline_ms;   /* of its timeout; 0: none */
	int64_t linger_ms;     /* set when the process ends: how long to wait for other holders of its output */
	bool running, settled; /* settled: ended, and its output is complete */
	bool looked;           /* after linger_ms its streams were read once more, even without an event */
	bool timed_out, oom, forgotten;
	int64_t oom_ms; /* until when an end by SIGKILL counts as killed for memory */
	int exit_code, signal;
	int unstarted;                   /* 126 or 127: the program could not be executed; 0: it was */
	struct process_output output[2]; /* stdout or terminal, stderr */
	struct source input;
	struct buf leftover; /* input of attachments that have ended */
	bool input_ended;    /* takes effect once leftover is written */
	struct attachment *attachments;
};

void process_free(struct agent *agent, struct process *process); /* must not be in the table */
/* Does not find forgotten processes. */
struct process *process_find(struct agent *agent, int64_t pid);
/* The process that a request names with TAG_PID; NULL with NOT_FOUND. */
struct process *process_named(struct agent *agent, const struct request *request, struct husk_error *err);
/* The arguments were checked against methods.def. */
int process_signal(struct process *process, int64_t signal, struct husk_error *err);
int process_resize(struct process *process, int64_t rows, int64_t columns, struct husk_error *err);
/* Appends the PID and how the process ended, as in END and in the list. */
int process_put_end(const struct process *process, struct buf *message);
/* Takes over the pending input of an attachment that ends. */
void process_adopt_input(struct process *process, const struct attachment *at);

void process_reap(struct agent *agent);
bool process_pump_all(struct agent *agent);
/* Closes the streams that process_pump_all has read to their end. */
void process_close_ended(struct agent *agent);
/* The earliest deadline of a process; 0: none. */
int64_t process_next_deadline(const struct agent *agent);
bool process_any_running(const struct agent *agent);
void process_run_timers(struct agent *agent);
void process_shift_timers(struct agent *agent, int64_t by_ms);
/* Forgets the oldest finished processes when there are more than are kept. */
void process_trim(struct agent *agent);
/* Marks the started process that a killed process belonged to, or calls process_expect_oom if there is none. `session` and
 * `group` are from /proc. */
void process_mark_oom(struct agent *agent, pid_t pid, pid_t group, pid_t session);
/* For a killed process that is gone from /proc: marks the next process that ends by SIGKILL. */
void process_expect_oom(struct agent *agent);
/* Sends SIGKILL to every process group: for an agent that is not PID 1 and is about to end. */
void process_kill_all(struct agent *agent);

#endif
