/*
 * What a hostile VNC server says to the recorder: the handshake ends, by itself or with the connection.
 */
#include <sys/socket.h>

#include "client/rfb_client.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct rfb_hello hello;
	int pair[2];

	if (size > 16384 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
		return 0;
	cleanup_close int ours = pair[0], theirs = pair[1];
	if (write_full(theirs, data, size) < 0 || shutdown(theirs, SHUT_WR) < 0)
		return 0;
	if (rfb_client_open(ours, 10000, &hello, NULL) == 0 && hello.size > sizeof(hello.bytes))
		abort();
	return 0;
}
