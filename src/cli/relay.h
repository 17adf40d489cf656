/*
 * Following a process of a sandbox from a terminal or a pipe: its output comes out here, our input and our signals go
 * in there. Used by run, exec and attach, which differ only in how they get hold of the process.
 */
#ifndef HUSK_CLI_RELAY_H
#define HUSK_CLI_RELAY_H

#include "cli/cli.h"

/* The options run and exec share. */
struct process_arguments {
	bool interactive, tty;
	bool detach; /* nobody follows it */
	bool image;  /* without a command, what a container image says will do */
	const char *shell, *cwd, *user;
	int64_t timeout_ms;
};
extern const struct option_spec process_options[];

/* Captured output of --json, each stream bounded; what did not fit is counted. */
struct relay_capture {
	struct buf data;
	uint64_t lost;
};

struct relay_result {
	struct relay_capture output, error_output;
	int exit_code, signal;
	bool timed_out, out_of_memory;
	bool detached;   /* by the detach keys: the process goes on */
	int interrupted; /* the signal that made us give up on it; 0: it ended by itself */
	int64_t duration_ms;
	struct buf last_errors; /* the newest KiB of stderr, to recognize a missing network by */
};
void relay_result_free(struct relay_result *result);
#define cleanup_relay cleanup(relay_result_free)

struct relay_options {
	const char *sandbox;
	int64_t pid;
	bool input;      /* pass our stdin on */
	bool terminal;   /* it runs on a terminal: ours goes to raw mode when we have one */
	bool capture;    /* collect the output instead of passing it on */
	bool detachable; /* ctrl-p ctrl-q leaves it running */
};

/* Fills argv (or shell), environment, cwd, user, timeout and the size of our terminal. `argc` 0 is fine on a terminal: a
 * login shell then, and `arguments` change to -it. `sandbox`: the operand of exec, NULL for run. */
int relay_exec_options(const struct cli *cli, const char *sandbox, struct process_arguments *arguments, int argc,
		       char *const *argv, struct husk_exec_options *out, struct husk_error *err);
/* Until the process ends, the user detaches, or a second interrupt. The process is freed on return. */
int relay_process(struct cli *cli, struct husk_process *process, const struct relay_options *options,
		  struct relay_result *result, struct husk_error *err);
/* Starts it and follows it to its end. */
int relay_exec(struct cli *cli, const char *sandbox, const struct process_arguments *arguments,
	       const struct husk_exec_options *exec, bool detachable, struct relay_result *result, int64_t *pid,
	       struct husk_error *err);
/* The document of run, exec and attach alike. `create_ms` -1: no sandbox was made for it. NULL: out of memory. */
json_t *relay_json(const struct husk_sandbox *sandbox, int64_t pid, int64_t create_ms, int64_t total_ms,
		   const struct relay_result *result, json_t *denied);
/* Its exit status, with a word on stderr for what the status alone does not say. */
int relay_status(const struct cli *cli, const struct relay_result *result);

#endif
