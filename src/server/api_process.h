/*
 * Running processes of a sandbox: finding one, attaching to it, and its routes; see api_process.c.
 */
#ifndef HUSK_SERVER_API_PROCESS_H
#define HUSK_SERVER_API_PROCESS_H

#include "server/server.h"

/* Converts 15, "TERM" or "SIGTERM" to the number; INVALID otherwise. */
int process_signal_number(const json_t *value, int *out, struct husk_error *err);

/* The current state of the process; its strings are not filled. NOT_FOUND: no such process. */
int process_find(struct request *request, int64_t pid, struct husk_process_info *out, struct husk_error *err);

/* To feed or resize a running process: attached at the current end of its output. CONFLICT: it has ended. */
int process_attach(struct request *request, int64_t pid, struct husk_process **out, struct husk_error *err);

/* api_process.c's routes, in api_exec.c's table */
int processes_list(struct request *request, struct husk_error *err);
int processes_output(struct request *request, struct husk_error *err);
int processes_signal(struct request *request, struct husk_error *err);
int processes_stdin(struct request *request, struct husk_error *err);

#endif
