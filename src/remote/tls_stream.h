/*
 * A TLS connection as a plain descriptor: one end of a socket pair, which its owner reads, writes, polls and closes; a
 * thread at the other end does TLS. For connections to a server (remote_tls.c), for those that huskd accepts
 * (server/tls_listener.c), and for ports of a sandbox whose programs speak TLS (server/port_tls.c).
 */
#ifndef HUSK_TLS_STREAM_H
#define HUSK_TLS_STREAM_H

#include <openssl/ssl.h>

#include "base/base.h"

/* The whole handshake within the time limit, whatever the pace of the peer; the socket is non-blocking, and SSL_set_accept_state
 * or SSL_set_connect_state was called. */
bool tls_shake_hands(SSL *tls, int socket, int64_t limit_ms);
/* Takes over the connection, after its handshake, and its socket, also if this fails. After the plain descriptor is
 * closed, the bytes written to it are still sent. `over` is called once, on the thread, after the last use of both. */
int tls_stream(SSL *tls, int socket, void (*over)(void *data), void *data, struct husk_error *err);

#endif
