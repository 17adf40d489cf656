/*
 * Requests of a hostile guest on a volume, one after the other: [u8 opcode, u8 node, u16 size, bytes]… with a header of
 * ours around each, to a server whose table of nodes is soon full. Whatever they are, each gets an answer of its size or
 * none, nothing appears outside of the volume, and the table survives being saved and loaded.
 */
#include <linux/fuse.h>
#include <sys/stat.h>

#include "volume/fuse.h"

#define NODES 8

static char place[] = "/tmp/husk-fuzz.XXXXXX";

static void clean(void)
{
	dir_remove(place, NULL);
}

static struct volume_server *fresh(void)
{
	static char directory[64];
	struct volume_server *server = NULL;
	struct volume volume;

	if (!directory[0]) {
		if (!mkdtemp(place) || atexit(clean) != 0)
			abort();
		snprintf(directory, sizeof(directory), "%s/v", place);
	}
	if (dir_remove(directory, NULL) < 0 || volume_make(directory, NULL) < 0 ||
	    volume_open(directory, 1u << 20, &volume, NULL) < 0 ||
	    volume_server_open(&volume, false, NODES, &server, NULL) < 0)
		abort();
	return server;
}

static void check_outside(void)
{
	cleanup_dir DIR *dir = opendir(place);
	int count = 0;

	while (dir && readdir(dir))
		count++;
	if (count != 3) /* ., .., v */
		abort();
}

static void send_one(struct volume_server *server, uint8_t opcode, uint8_t node, const uint8_t *bytes, size_t size)
{
	static char request[sizeof(struct fuse_in_header) + 65536],
		answer[SERVE_ANSWER_MAX] __attribute__((aligned(8)));
	struct fuse_in_header head = {
		.len = (uint32_t)(sizeof(head) + size), .opcode = opcode, .nodeid = node, .unique = 9
	};
	struct fuse_out_header out;

	memcpy(request, &head, sizeof(head));
	memcpy(request + sizeof(head), bytes, size);
	ssize_t got = volume_serve(server, request, head.len, answer);
	if (got == 0)
		return;
	memcpy(&out, answer, sizeof(out));
	if (got < (ssize_t)sizeof(out) || (size_t)got > SERVE_ANSWER_MAX || out.len != (uint32_t)got ||
	    out.unique != 9 || out.error > 0 || (out.error && out.len != sizeof(out)))
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct volume_server *server = fresh();
	cleanup_buf struct buf saved = { 0 };

	while (size >= 4) {
		size_t length = MIN((size_t)data[2] | (size_t)data[3] << 8, size - 4);
		send_one(server, data[0], data[1], data + 4, length);
		data += 4 + length;
		size -= 4 + length;
	}
	check_outside();
	if (volume_server_save(server, &saved) < 0)
		abort();
	volume_server_free(server);
	server = fresh();
	if (volume_server_load(server, saved.data, saved.size) < 0)
		abort();
	volume_server_free(server);
	return 0;
}
