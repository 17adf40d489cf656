/*
 * Follows a process of a sandbox from a terminal or a pipe: prints its output, and passes our input and our signals on.
 * Used by run, exec and attach, which differ only in how they get the process.
 */
#ifndef HUSK_CLI_RELAY_H
#define HUSK_CLI_RELAY_H

#include "cli/cli.h"

/* The options run and exec share. */
struct process_arguments {
	bool interactive, tty;
	bool detach; /* no client follows it */
	bool image;  /* without a command, use the command of the container image */
	const char *shell, *cwd, *user;
	int64_t timeout_ms, keep_output;
};
extern const struct option_spec process_options[];

/* Captured output for --json, each stream bounded; the rest is counted. */
struct relay_capture {
	struct buf data;
	uint64_t lost;
};

struct relay_result {
	struct relay_capture output, error_output;
	int exit_code, signal;
	bool timed_out, out_of_memory;
	bool detached;   /* by the detach keys: the process continues */
	int interrupted; /* the signal after which waiting stopped; 0: the process ended by itself */
	int64_t duration_ms;
	struct buf last_errors; /* the newest KiB of stderr, to recognize a missing network */
};
void relay_result_free(struct relay_result *result);
#define cleanup_relay cleanup(relay_result_free)

struct relay_options {
	const char *sandbox;
	int64_t pid;
	bool input;      /* pass our stdin on */
	bool terminal;   /* the process has a terminal: ours is set to raw mode, if there is one */
	bool capture;    /* collect the output and do not print it */
	bool detachable; /* ctrl-p ctrl-q leaves it running */
};

/* Fills argv (or shell), environment, cwd, user, timeout and the size of our terminal. `argc` 0 is valid on a terminal:
 * then a login shell is started, and `arguments` change to -it. `sandbox`: the operand of exec, NULL for run. */
int relay_exec_options(const struct cli *cli, const char *sandbox, struct process_arguments *arguments, int argc,
		       char *const *argv, struct husk_exec_options *out, struct husk_error *err);
/* Returns when the process ends, the user detaches, or at a second interrupt. The process is freed on return. */
int relay_process(struct cli *cli, struct husk_process *process, const struct relay_options *options,
		  struct relay_result *result, struct husk_error *err);
/* Starts it and follows it to its end. */
int relay_exec(struct cli *cli, const char *sandbox, const struct process_arguments *arguments,
	       const struct husk_exec_options *exec, bool detachable, struct relay_result *result, int64_t *pid,
	       struct husk_error *err);
/* The JSON document of run, exec and attach. `create_ms` -1: no sandbox was made. NULL: out of memory. */
json_t *relay_json(const struct husk_sandbox *sandbox, int64_t pid, int64_t create_ms, int64_t total_ms,
		   const struct relay_result *result, json_t *denied);
/* The exit status, with a message on stderr if the status alone is not clear. */
int relay_status(const struct cli *cli, const struct relay_result *result);

#endif
