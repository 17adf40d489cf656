/*
 * A TLS connection as a plain descriptor: one end of a socket pair, which its owner reads, writes, polls and closes; a
 * thread at the other end does TLS. For connections to a server (remote_tls.c), and for those that huskd accepts
 * (server/tls_listener.c).
 */
#ifndef HUSK_TLS_STREAM_H
#define HUSK_TLS_STREAM_H

#include <openssl/ssl.h>

#include "base/base.h"

/* Takes over the connection, after its handshake, and its socket, also if this fails. After the plain descriptor is
 * closed, the bytes written to it are still sent. `over` is called once, on the thread, after the last use of both. */
int tls_stream(SSL *tls, int socket, void (*over)(void *data), void *data, struct husk_error *err);

#endif
