/*
 * Sockets that systemd opened and passes on (huskd.socket), so that a client may connect before huskd is up and while
 * it is restarted. The protocol is sd_listen_fds(3): LISTEN_PID, LISTEN_FDS, descriptors from 3 on.
 */
#ifndef HUSK_SERVER_ACTIVATION_H
#define HUSK_SERVER_ACTIVATION_H

#include <sys/un.h>

#include "base/base.h"

struct activation {
	int local, tcp;                                         /* listening sockets; -1: none was passed on */
	char path[sizeof(((struct sockaddr_un *)0)->sun_path)]; /* of `local` */
};

/* Takes what was passed to this process, if anything, and removes the variables, so that no child takes it again. Call
 * it before any thread starts. A socket that huskd cannot serve is a failure. */
int activation_take(struct activation *out, struct husk_error *err);

#endif
