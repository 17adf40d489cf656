/*
 * `husk volume-server`: the process of one volume; see process.h. It takes its descriptors, gives up all other rights,
 * and answers requests until the socket closes. It has one thread. The kernel ends the process together with its
 * supervisor, even during a wait.
 */
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include "volume/process.h"

enum { SOCKET_FD = 3, FILES_FD, TABLE_FD };
#define INPUT_MAX (1u << 20)
#define TABLE_PART (64u * 1024u)

struct arguments {
	const char *data;    /* the volume's directory; NULL: FILES_FD is a mount of it, and otherwise the count */
	const char *subpath; /* "": all of it */
	bool read_only, table;
	uint64_t limit;
	uint32_t uid;
};

struct process {
	struct volume_server *server;
	struct buf input;
	char answer[SERVE_ANSWER_MAX] __attribute__((aligned(8)));
};

static int parse_arguments(int argc, char **argv, struct arguments *out)
{
	int64_t limit, uid;

	if (argc != 7 || str_to_int64(argv[3], 0, INT64_MAX, &limit) < 0 ||
	    str_to_int64(argv[4], 1, UINT32_MAX - 1, &uid) < 0)
		return -1;
	*out = (struct arguments){ .data = str_equal(argv[1], VOLUME_MOUNTED) ? NULL : argv[1],
				   .read_only = str_equal(argv[2], "ro"),
				   .table = str_equal(argv[5], "table"),
				   .subpath = argv[6],
				   .limit = (uint64_t)limit,
				   .uid = (uint32_t)uid };
	return 0;
}

/* ---- the socket ---- */

static int tell(enum volume_kind kind, const void *bytes, size_t size)
{
	struct volume_message head = { kind, (uint32_t)size };
	struct iovec parts[2] = { { &head, sizeof(head) }, { (void *)bytes, size } };
	struct msghdr message = { .msg_iov = parts, .msg_iovlen = 2 };

	while (parts[0].iov_len + parts[1].iov_len > 0) {
		ssize_t sent = sendmsg(SOCKET_FD, &message, MSG_NOSIGNAL);
		if (sent < 0 && errno != EINTR)
			return -1;
		for (size_t i = 0; i < 2 && sent > 0; i++) {
			size_t part = MIN((size_t)sent, parts[i].iov_len);
			parts[i].iov_base = (char *)parts[i].iov_base + part;
			parts[i].iov_len -= part;
			sent -= (ssize_t)part;
		}
	}
	return 0;
}

static int tell_table(struct volume_server *server)
{
	cleanup_buf struct buf table = { 0 };

	if (volume_server_save(server, &table) < 0 || table.size > VOLUME_TABLE_MAX)
		return -1;
	for (size_t at = 0; at < table.size; at += TABLE_PART)
		if (tell(VOLUME_TABLE, table.data + at, MIN(TABLE_PART, table.size - at)) < 0)
			return -1;
	return tell(VOLUME_TABLE, NULL, 0);
}

static int take_message(struct process *process, const struct volume_message *head, const char *bytes,
			struct husk_error *err)
{
	if (head->kind == VOLUME_SAVE)
		return tell_table(process->server) < 0 ? husk_fail(err, HUSK_INTERNAL, "cannot save its table") : 0;
	if (head->kind != VOLUME_REQUEST)
		return husk_fail(err, HUSK_PROTOCOL, "a message of kind %u", head->kind);
	ssize_t size = volume_serve(process->server, bytes, head->size, process->answer);
	if (size < 0)
		return husk_fail(err, HUSK_PROTOCOL, "the guest sent what is no request");
	if (size > 0 && tell(VOLUME_ANSWER, process->answer, (size_t)size) < 0)
		return husk_fail_errno(err, "cannot answer");
	return 0;
}

/* Handles every complete message received; the rest stays in the buffer. */
static int take_messages(struct process *process, struct husk_error *err)
{
	struct buf *input = &process->input;
	struct volume_message head;
	size_t done = 0;
	int result = 0;

	while (result == 0 && input->size - done >= sizeof(head)) {
		memcpy(&head, input->data + done, sizeof(head));
		if (head.size > VOLUME_MESSAGE_MAX)
			return husk_fail(err, HUSK_PROTOCOL, "a message of %u bytes", head.size);
		if (input->size - done < sizeof(head) + head.size)
			break;
		result = take_message(process, &head, input->data + done + sizeof(head), err);
		done += sizeof(head) + head.size;
	}
	buf_consume(input, done);
	return result;
}

/* Runs until the supervisor closes its end. */
static int run(struct process *process, struct husk_error *err)
{
	struct buf *input = &process->input;

	for (;;) {
		ssize_t got = read(SOCKET_FD, input->data + input->size, INPUT_MAX - input->size);
		if (got == 0 || (got < 0 && (errno == ECONNRESET || errno == EPIPE)))
			return 0;
		if (got < 0 && errno != EINTR)
			return husk_fail_errno(err, "cannot read requests");
		input->size += (size_t)MAX(got, 0);
		if (take_messages(process, err) < 0)
			return -1;
	}
}

/* ---- the start ---- */

static int load_table(struct volume_server *server, struct husk_error *err)
{
	struct stat status;

	if (fstat(TABLE_FD, &status) < 0 || status.st_size < 0 || (uint64_t)status.st_size > VOLUME_TABLE_MAX)
		return husk_fail(err, HUSK_INTERNAL, "the table of names in the image is damaged");
	size_t size = (size_t)status.st_size;
	cleanup_free char *bytes = malloc(size + 1);
	if (!bytes)
		return husk_fail_memory(err);
	if (read_full(TABLE_FD, bytes, size) != (ssize_t)size || volume_server_load(server, bytes, size) < 0)
		return husk_fail(err, HUSK_INTERNAL, "the table of names in the image is damaged");
	return 0;
}

static int open_server(struct process *process, const struct arguments *arguments, struct husk_error *err)
{
	struct volume volume;
	int root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);

	if (root < 0)
		return husk_fail_errno(err, "cannot open the volume");
	if (!arguments->data)
		volume_open_limited(root, arguments->limit, &volume);
	else if (volume_adopt(root, FILES_FD, arguments->limit, &volume, err) < 0)
		return -1;
	if ((*arguments->subpath && volume_descend(&volume, arguments->subpath, !arguments->read_only, err) < 0) ||
	    volume_server_open(&volume, arguments->read_only, SERVE_NODES_MAX, &process->server, err) < 0) {
		volume_close(&volume);
		return -1;
	}
	if (buf_reserve(&process->input, INPUT_MAX) < 0)
		return husk_fail_memory(err);
	return arguments->table ? load_table(process->server, err) : 0;
}

/* Reports READY before the bytes are counted, which may take long: then only the guest waits for its first answer. */
static int serve_volume(struct process *process, const struct arguments *arguments, struct husk_error *err)
{
	if (volume_jail_enter(arguments->data, FILES_FD, arguments->read_only, arguments->limit, arguments->uid, err) <
		    0 ||
	    open_server(process, arguments, err) < 0)
		return -1;
	if (tell(VOLUME_READY, NULL, 0) < 0)
		return husk_fail_errno(err, "cannot tell that it is ready");
	return volume_server_join(process->server, err) < 0 ? -1 : run(process, err);
}

int volume_server_main(int argc, char **argv)
{
	static struct process process;
	struct arguments arguments;
	struct husk_error err = { 0 };

	if (parse_arguments(argc, argv, &arguments) < 0 || prctl(PR_SET_NAME, "husk-volume") < 0) {
		log_line(LOG_ERROR, "volume-server: started by hand? it is started by the supervisor of a sandbox");
		return 2;
	}
	int result = serve_volume(&process, &arguments, &err);
	if (result < 0)
		tell(VOLUME_FAILED, err.message, strlen(err.message));
	volume_server_free(process.server);
	buf_free(&process.input);
	_exit(result < 0 ? 1 : 0);
}
