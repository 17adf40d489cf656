/*
 * husk-vmm's side of the control socket: requests of the engine, carried out one at a time on the first thread.
 */
#ifndef HUSK_VMM_SERVE_H
#define HUSK_VMM_SERVE_H

#include "vmm/vm.h"

/* Runs the machine until the engine is gone or sends STOP, or the guest ends. Returns the process's exit status. */
int serve(struct vm *vm, int control);
/* Handles one request and takes ownership of its descriptors. Exposed for tests. */
void serve_request(struct vm *vm, const struct control_request *request, int *fds, size_t count,
		   struct control_reply *reply);

#endif
