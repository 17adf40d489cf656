/*
 * husk-vmm's side of the control socket: requests of the engine, carried out one at a time on the first thread.
 */
#ifndef HUSK_VMM_SERVE_H
#define HUSK_VMM_SERVE_H

#include "vmm/vm.h"

/* Runs the machine until the engine is gone, says stop, or the guest ends; returns the process's exit status. */
int serve(struct vm *vm, int control);
/* One request; its descriptors are taken over. Exposed for tests. */
void serve_request(struct vm *vm, const struct control_request *request, int *fds, size_t count,
		   struct control_reply *reply);

#endif
