/*
 * Sockets that systemd opens and passes to huskd (huskd.socket), so that a client can connect before huskd is ready and
 * while it restarts. The protocol is sd_listen_fds(3): LISTEN_PID, LISTEN_FDS, descriptors from 3 on.
 */
#ifndef HUSK_SERVER_ACTIVATION_H
#define HUSK_SERVER_ACTIVATION_H

#include <sys/un.h>

#include "base/base.h"

struct activation {
	int local, tcp;                                         /* listening sockets; -1: none was passed */
	char path[sizeof(((struct sockaddr_un *)0)->sun_path)]; /* of `local` */
};

/* Takes the sockets that were passed to this process, if any, and removes the variables, so that no child uses them.
 * Call it before any thread starts. A socket that huskd cannot serve is a failure. */
int activation_take(struct activation *out, struct husk_error *err);

#endif
