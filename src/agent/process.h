/*
 * The processes the host has started: their output rings, their input, their end. Channels of EXEC and ATTACH
 * (attach.c) are attachments to one of these; a process needs none to live.
 */
#ifndef HUSK_AGENT_PROCESS_H
#define HUSK_AGENT_PROCESS_H

#include "agent/agent.h"
#include "agent/ring.h"

/* A channel of EXEC or ATTACH: reads output from its own offsets, may feed input. */
struct attachment {
	struct channel channel;
	struct attachment *next; /* of the same process */
	struct process *process;
	uint64_t offset[2]; /* next byte to send of each output */
	uint64_t dropped[2];
	bool from_attach; /* its first message tells offsets */
	bool announced;
	bool feeds;       /* may send input */
	struct buf input; /* not yet taken by the process */
	bool input_ended;
};

struct process_output {
	struct source source;
	struct ring ring;
	bool ended; /* all of it is in the ring */
};

struct process {
	struct process *next;
	pid_t pid; /* of its session and process group too */
	char *name, *cwd, *user;
	char **argv;
	int64_t flags; /* enum wire_exec_flags */
	uint16_t rows, columns;
	bool terminal;
	int64_t started_ms; /* wall clock */
	int64_t started_us, duration_ms;
	int64_t deadline_ms;   /* of its timeout; 0: none */
	int64_t linger_ms;     /* set at its end: how long other holders of its output are waited for */
	bool running, settled; /* settled: over, and its output complete */
	bool looked; /* after linger_ms its streams were read once more, whatever the loop had heard of them */
	bool timed_out, oom, forgotten;
	int64_t oom_ms; /* until when an end by SIGKILL is one for memory */
	int exit_code, signal;
	int unstarted;                   /* 126 or 127: the program could not be executed; 0: it was */
	struct process_output output[2]; /* stdout or terminal, stderr */
	struct source input;
	struct buf leftover; /* input of attachments that have gone */
	bool input_ended;    /* once leftover is taken */
	struct attachment *attachments;
};

void process_free(struct agent *agent, struct process *process); /* it must not be in the table */
/* Not the forgotten ones. */
struct process *process_find(struct agent *agent, int64_t pid);
/* The one that a request names with TAG_PID; NULL with NOT_FOUND. */
struct process *process_named(struct agent *agent, const struct request *request, struct husk_error *err);
/* The arguments are as methods.def says of them. */
int process_signal(struct process *process, int64_t signal, struct husk_error *err);
int process_resize(struct process *process, int64_t rows, int64_t columns, struct husk_error *err);
/* PID and how it ended, as END and the list tell it. */
int process_put_end(const struct process *process, struct buf *message);
/* Takes input over from an attachment that goes. */
void process_adopt_input(struct process *process, const struct attachment *at);

void process_reap(struct agent *agent);
bool process_pump_all(struct agent *agent);
/* Closes what process_pump_all has read to its end. */
void process_close_ended(struct agent *agent);
/* The earliest moment a timer wants to run; 0: none. */
int64_t process_next_deadline(const struct agent *agent);
bool process_any_running(const struct agent *agent);
void process_run_timers(struct agent *agent);
void process_shift_timers(struct agent *agent, int64_t by_ms);
/* Forgets finished processes past what is kept. */
void process_trim(struct agent *agent);
/* Marks the process a killed one belonged to; `session` and `group` as /proc says. If it belonged to none: process_expect_oom. */
void process_mark_oom(struct agent *agent, pid_t pid, pid_t group, pid_t session);
/* The same for one that could not be found any more: the next that ends as killed. */
void process_expect_oom(struct agent *agent);
/* SIGKILL to every process group: for an agent that is not PID 1 and is about to end. */
void process_kill_all(struct agent *agent);

#endif
