/*
 * Channels attached to a process; see attach.c.
 */
#ifndef HUSK_AGENT_ATTACH_H
#define HUSK_AGENT_ATTACH_H

#include "agent/process.h"

/* Makes the channel `number` an attachment to the process. `feeds`: data from the host is the process's input. NULL
 * with err. */
struct attachment *attachment_new(struct agent *agent, uint32_t number, struct process *process, bool feeds,
				  struct husk_error *err);

#endif
