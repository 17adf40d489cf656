/*
 * `husk port box 8000`: a TCP port of a sandbox on this machine, without a server. It listens on 127.0.0.1, dials the
 * port inside for each connection (husk_dial, which wakes a hibernated sandbox) and relays the bytes both ways, with a
 * thread for each connection, until Ctrl-C or the end of the sandbox.
 *
 * Bytes from the sandbox are passed on unchanged, and only to the client that connected here.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/socket.h>

#include "base/thread.h"
#include "cli/cli.h"
#include "cli/interrupt.h"

#define PORTS_MAX 16
#define CONNECTIONS_MAX 256
#define CHUNK (64u * 1024u)
#define LOOK_MS 2000 /* between checks whether the sandbox still exists */

struct port_arguments {
	const char *bind;
};

static const struct option_spec port_options[] = {
	OPTION(0, "bind", OPTION_STRING, struct port_arguments, bind, "ADDRESS",
	       "the address of this machine to listen on (127.0.0.1); 0.0.0.0 accepts every host"),
	{ 0 },
};

struct forward {
	uint16_t local, remote;
	int listener;
};

/* Everything here, and what the thread of a connection needs. */
struct ports {
	struct husk *husk;
	bool json;
	char sandbox[64]; /* its id */
	struct in_addr address;
	struct forward list[PORTS_MAX];
	size_t count;
	_Atomic size_t connections;
};

struct connection {
	struct ports *ports;
	uint16_t remote;
	int fd;
};

/* ---- carrying bytes ---- */

/* One direction: bytes that were read from `from` and not yet written to `to`. */
struct way {
	int from, to;
	size_t begin, end;
	bool closed; /* no more bytes come, and `to` was shut down */
	char data[CHUNK];
};

/* One step of one direction. False: the connection failed. */
static bool way_step(struct way *way, short readable, short writable)
{
	if (way->begin == way->end && !way->closed && readable) {
		ssize_t size = read(way->from, way->data, sizeof(way->data));
		if (size < 0)
			return errno == EINTR || errno == EAGAIN;
		if (size == 0) {
			way->closed = true;
			shutdown(way->to, SHUT_WR);
			return true;
		}
		way->begin = 0;
		way->end = (size_t)size;
		return true;
	}
	if (way->begin < way->end && writable) {
		ssize_t size = send(way->to, way->data + way->begin, way->end - way->begin, MSG_NOSIGNAL);
		if (size < 0)
			return errno == EINTR || errno == EAGAIN;
		way->begin += (size_t)size;
	}
	return true;
}

static short way_read(const struct way *way)
{
	return way->begin == way->end && !way->closed ? POLLIN : 0;
}

static short way_write(const struct way *way)
{
	return way->begin < way->end ? POLLOUT : 0;
}

static void carry(int ours, int theirs)
{
	cleanup_free struct way *ways = calloc(2, sizeof(*ways));

	if (!ways || fcntl(ours, F_SETFL, O_NONBLOCK) < 0 || fcntl(theirs, F_SETFL, O_NONBLOCK) < 0)
		return;
	ways[0].from = ways[1].to = ours;
	ways[0].to = ways[1].from = theirs;
	while (!ways[0].closed || !ways[1].closed) {
		struct pollfd fds[2] = { { .fd = ours, .events = way_read(&ways[0]) | way_write(&ways[1]) },
					 { .fd = theirs, .events = way_read(&ways[1]) | way_write(&ways[0]) } };
		/* a descriptor without requested events would only repeat POLLHUP */
		for (size_t i = 0; i < 2; i++)
			if (!fds[i].events)
				fds[i].fd = -1;
		if (poll(fds, 2, -1) < 0 && errno != EINTR)
			return;
		short down = POLLERR | POLLHUP;
		if (!way_step(&ways[0], fds[0].revents & (POLLIN | down), fds[1].revents & (POLLOUT | down)) ||
		    !way_step(&ways[1], fds[1].revents & (POLLIN | down), fds[0].revents & (POLLOUT | down)))
			return;
	}
}

static void *connection_main(void *data)
{
	cleanup_free struct connection *connection = data;
	cleanup_close int ours = connection->fd;
	struct ports *ports = connection->ports;
	struct husk_error err = { 0 };
	cleanup_close int theirs = husk_dial(ports->husk, ports->sandbox, connection->remote, &err);

	if (theirs < 0)
		output_note("port %u: %s", connection->remote, err.message);
	else
		carry(ours, theirs);
	atomic_fetch_sub(&ports->connections, 1);
	return NULL;
}

/* Takes the descriptor. */
static void connection_start(struct ports *ports, uint16_t remote, int fd)
{
	cleanup_close int taken = fd;
	struct connection *connection = calloc(1, sizeof(*connection));

	if (!connection || atomic_load(&ports->connections) >= CONNECTIONS_MAX) {
		free(connection);
		return; /* the close informs the client */
	}
	*connection = (struct connection){ .ports = ports, .remote = remote, .fd = fd };
	atomic_fetch_add(&ports->connections, 1);
	if (thread_quiet(NULL, 0, connection_main, connection) == 0) {
		steal_fd(&taken);
	} else {
		atomic_fetch_sub(&ports->connections, 1);
		free(connection);
	}
}

/* ---- listening ---- */

/* "8000", or "8080:8000": the port here, then the port inside. */
static int read_forward(const char *text, struct forward *out, struct husk_error *err)
{
	const char *colon = strchr(text, ':');
	cleanup_free char *first = strndup(text, colon ? (size_t)(colon - text) : strlen(text));
	int64_t local, remote;

	if (!first)
		return husk_fail_memory(err);
	if (str_to_int64(first, colon ? 0 : 1, UINT16_MAX, &local) < 0 ||
	    str_to_int64(colon ? colon + 1 : first, 1, UINT16_MAX, &remote) < 0)
		return husk_fail(err, HUSK_INVALID,
				 "'%s' is not a port; give PORT (1 to 65535) or LOCAL:PORT (LOCAL 0: any free one)",
				 text);
	*out = (struct forward){ .local = (uint16_t)local, .remote = (uint16_t)remote, .listener = -1 };
	return 0;
}

static int listen_on(const struct ports *ports, struct forward *forward, struct husk_error *err)
{
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_addr = ports->address,
				       .sin_port = htons(forward->local) };
	socklen_t size = sizeof(address);
	char host[INET_ADDRSTRLEN];
	int yes = 1;

	inet_ntop(AF_INET, &ports->address, host, sizeof(host));
	forward->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (forward->listener < 0)
		return husk_fail_errno(err, "cannot make a socket");
	setsockopt(forward->listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
	if (bind(forward->listener, (struct sockaddr *)&address, size) < 0 || listen(forward->listener, 64) < 0) {
		if (errno != EADDRINUSE)
			return husk_fail_errno(err, "cannot listen on %s:%u", host, forward->local);
		return husk_fail(err, HUSK_CONFLICT, "%s:%u is in use; type husk port %s 0:%u for a free port", host,
				 forward->local, ports->sandbox, forward->remote);
	}
	if (getsockname(forward->listener, (struct sockaddr *)&address, &size) < 0)
		return husk_fail_errno(err, "cannot read the port of a socket");
	forward->local = ntohs(address.sin_port);
	return 0;
}

static int ports_print(const struct ports *ports, struct husk_error *err)
{
	cleanup_json json_t *array = json_array();
	char host[INET_ADDRSTRLEN];

	inet_ntop(AF_INET, &ports->address, host, sizeof(host));
	for (size_t i = 0; i < ports->count; i++) {
		if (!ports->json)
			printf("%s:%u\n", host, ports->list[i].local);
		else if (json_array_append_new(array, json_pack("{s:i, s:s, s:i}", "port", ports->list[i].remote,
								"address", host, "local_port", ports->list[i].local)) <
			 0)
			return husk_fail_memory(err);
	}
	if (ports->json && output_json(json_pack("{s:s, s:O}", "id", ports->sandbox, "ports", array), err) < 0)
		return -1;
	if (!ports->json && isatty(STDERR_FILENO))
		output_note("forwarding to %s until Ctrl-C", ports->sandbox);
	return fflush(stdout) == 0 ? 0 : husk_fail_errno(err, "cannot write to standard output");
}

/* Fails if the sandbox has ended. A hibernated one is fine: the next connection wakes it. */
static int look_at(const struct ports *ports, struct husk_error *err)
{
	cleanup_sandbox struct husk_sandbox *sandbox = NULL;

	if (husk_inspect(ports->husk, ports->sandbox, &sandbox, err) < 0)
		return -1;
	return sandbox->state == HUSK_ENDED ? husk_fail(err, HUSK_GONE, "sandbox %s has ended", sandbox->id) : 0;
}

static int ports_loop(struct ports *ports, struct husk_error *err)
{
	struct pollfd fds[PORTS_MAX + 1] = { { .fd = interrupt_fd(), .events = POLLIN } };

	for (size_t i = 0; i < ports->count; i++)
		fds[i + 1] = (struct pollfd){ .fd = ports->list[i].listener, .events = POLLIN };
	for (;;) {
		int ready = poll(fds, (nfds_t)ports->count + 1, LOOK_MS);
		if (ready < 0 && errno != EINTR)
			return husk_fail_errno(err, "cannot wait for connections");
		for (int signal = ready > 0 ? interrupt_take() : 0; signal; signal = interrupt_take())
			if (signal != SIGWINCH)
				return 0;
		if (ready == 0 && look_at(ports, err) < 0)
			return -1;
		for (size_t i = 0; ready > 0 && i < ports->count; i++) {
			int fd = fds[i + 1].revents ? accept4(fds[i + 1].fd, NULL, NULL, SOCK_CLOEXEC) : -1;
			if (fd >= 0)
				connection_start(ports, ports->list[i].remote, fd);
		}
	}
}

static int port_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	const struct port_arguments *arguments = data;
	/* static: threads of connections use it until the program ends */
	static struct ports ports;
	cleanup_sandbox struct husk_sandbox *sandbox = NULL;

	ports = (struct ports){ .husk = cli->husk, .json = cli->json };
	if (argc - 1 > PORTS_MAX)
		return husk_fail(err, HUSK_INVALID, "at most %d ports at a time", PORTS_MAX);
	if (inet_pton(AF_INET, arguments->bind ? arguments->bind : "127.0.0.1", &ports.address) != 1)
		return husk_fail(err, HUSK_INVALID, "--bind: '%s' is not an IPv4 address", arguments->bind);
	for (int i = 1; i < argc; i++)
		if (read_forward(argv[i], &ports.list[ports.count++], err) < 0)
			return -1;
	if (husk_inspect(cli->husk, argv[0], &sandbox, err) < 0)
		return -1;
	snprintf(ports.sandbox, sizeof(ports.sandbox), "%s", sandbox->id);
	if (look_at(&ports, err) < 0)
		return -1;
	for (size_t i = 0; i < ports.count; i++)
		if (listen_on(&ports, &ports.list[i], err) < 0)
			return -1;
	if (interrupt_forward(true, err) < 0 || ports_print(&ports, err) < 0)
		return -1;
	int result = ports_loop(&ports, err);
	/* threads may still use libhusk's handle in a call: it is never closed */
	cli->husk = NULL;
	return result;
}

const struct cli_command cli_port = {
	.name = "port",
	.operands = "SANDBOX PORT|LOCAL:PORT…",
	.summary = "Reach ports of a sandbox from this machine",
	.details = "Prints the address of each port and forwards connections until Ctrl-C or the end of the sandbox.\n"
		   "8000 listens on the same port here, 8080:8000 on 8080, 0:8000 on a free one. Programs inside may\n"
		   "listen on 127.0.0.1 only. Neither a server nor --allow is required: --allow is for connections "
		   "from inside.\n",
	.groups = { { port_options, 0 } },
	.arguments_size = sizeof(struct port_arguments),
	.min = 2,
	.max = -1,
	.run = port_run,
};
