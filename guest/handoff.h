/*
 * The protocol to hand a command over to a server inside the guest, on a unix socket. The client (handoff.c) is
 * installed in place of the command. The server (zygote.py, sudo-server.c) runs the command with the client's
 * descriptors, environment, directory and limits, and the client ends with its status.
 *
 *   client to server   struct handoff_request with descriptors 0, 1 and 2 and its credentials attached; then `size` bytes
 *                      of NUL-terminated strings: argv, environment, working directory. After that one byte for each
 *                      signal to pass on.
 *   server to client   int32: the wait status of the command. Then the end.
 *
 * The server identifies the client by its credentials (SCM_CREDENTIALS), which the kernel checks when they are sent.
 * SO_PEERCRED cannot be used: in gVisor it names the server itself.
 *
 * When the client's side ends, for any reason, the command is ended. All integers are in host byte order.
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
	uint64_t ignored;                   /* signals ignored at the start of the client: bit n-1 for signal n */
	uint64_t limits[HANDOFF_LIMITS][2]; /* soft, hard */
};

#define HANDOFF_PYTHON "/run/husk/python.sock"
#define HANDOFF_SUDO "/run/husk/sudo.sock"

#endif
