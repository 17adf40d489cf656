/*
 * A connection to the agent of a sandbox: GET …/wire with Upgrade. When the server answers 101, it has done HELLO with
 * the supervisor. From then on the connection carries the frames of wire/wire.h, and src/client/call.c uses it.
 */
#include "remote/remote_http.h"
#include "wire/wire.h"

#define STRINGIFY_(x) #x
#define STRINGIFY(x) STRINGIFY_(x)
#define PROTOCOL "husk-wire/" STRINGIFY(WIRE_VERSION)

/* Reads byte by byte at the end of the head: the bytes after it belong to the next owner of the descriptor. */
static int read_answer(struct remote *remote, int fd, struct buf *in, struct http1_head *head, struct husk_error *err)
{
	for (;;) {
		char byte;
		ssize_t used = in->size > 1 && in->data[in->size - 1] == '\n'
				       ? http1_head_parse(in->data, in->size, head, err)
				       : 0;
		if (used < 0)
			return husk_wrap(err, "%s", remote_url(remote));
		if (used > 0) {
			in->size = 0;
			if (head->status >= 200 || head->status == 101)
				return 0;
			http1_head_free(head);
		}
		if (read_full(fd, &byte, 1) != 1)
			return http_lost(remote, err);
		if (buf_append(in, &byte, 1) < 0)
			return husk_fail_memory(err);
	}
}

int remote_tunnel(struct remote *remote, const char *sandbox, struct husk_error *err)
{
	cleanup_free char *target = target_make("/v1/sandboxes/%s/wire", sandbox);
	cleanup_buf struct buf request = { 0 }, in = { 0 };
	struct http1_head head = { 0 };

	if (!sandbox || !*sandbox)
		return husk_fail(err, HUSK_NOT_FOUND, "sandbox '' not found (husk ls)");
	if (!target || http_put_head(remote, &request, "GET", target) < 0 ||
	    buf_append_string(&request, "Connection: Upgrade\r\nUpgrade: " PROTOCOL "\r\n\r\n") < 0)
		return husk_fail_memory(err);
	cleanup_close int fd = remote_connect(remote, err);
	int result = fd < 0 ? -1 : http_send(remote, fd, request.data, request.size, err);
	if (remote->token)
		explicit_bzero(request.data, request.size);
	if (result < 0 || read_answer(remote, fd, &in, &head, err) < 0)
		return -1;
	if (head.status != 101)
		result = http_fail(remote, fd, &in, &head, err);
	http1_head_free(&head);
	return result < 0 ? -1 : steal_fd(&fd);
}
