/*
 * Handing a command over to a server inside the guest: what goes over its unix socket. The client (handoff.c) stands where
 * the command is looked for; the server (zygote.py, sudo-server.c) runs it with the client's descriptors, environment,
 * directory and limits, and the client ends as it ended.
 *
 *   client to server   struct handoff_request with descriptors 0, 1 and 2 and its credentials attached; then `size` bytes
 *                      of NUL-terminated strings: argv, environment, working directory. After that one byte for each
 *                      signal to pass on.
 *   server to client   int32: the wait status of the command. Then the end.
 *
 * Who the client is, the server takes from the credentials (SCM_CREDENTIALS): the kernel checks them as they are sent.
 * SO_PEERCRED will not do: in gVisor it names the server itself.
 *
 * The end of the client's side, however it came, ends the command. All integers are in the machine's own order.
 */
#ifndef HUSK_HANDOFF_H
#define HUSK_HANDOFF_H

#include <stdint.h>

#define HANDOFF_MAGIC 0x48534b31u
#define HANDOFF_SIZE_MAX (4u << 20)
#define HANDOFF_LIMITS 16 /* resource limits, by their number */

struct handoff_request {
	uint32_t magic;
	uint32_t size;
	uint32_t argc;
	uint32_t envc;
	uint32_t umask;
	uint32_t reserved;
	uint64_t ignored;                   /* signals the client was started with ignored: bit n-1 for signal n */
	uint64_t limits[HANDOFF_LIMITS][2]; /* soft, hard */
};

#define HANDOFF_PYTHON "/run/husk/python.sock"
#define HANDOFF_SUDO "/run/husk/sudo.sock"

#endif
