/*
 * Serving from start to stop: the two listening sockets, libmicrohttpd's threads behind them, and the shutdown. Called by
 * main.c. The server keeps nothing that must be saved, so it may exit at any time; the shutdown is graceful only for
 * clients in the middle of a stream.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <grp.h>
#include <netdb.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "server/core.h"

#define BACKLOG 1024
#define DEFAULT_GROUP "husk"
#define LAST_WORDS_MS 2000 /* for handlers to inform their clients after the graceful time */
#define DRAIN_STEP_MS 50

/* ---- sockets ---- */

/* "host:port", "[v6]:port" */
static int split_address(const char *address, char *host, size_t host_size, char *port, size_t port_size,
			 struct husk_error *err)
{
	const char *colon = strrchr(address, ':');
	const char *start = address, *end = colon;
	int64_t number;

	if (colon && address[0] == '[' && colon > address + 1 && colon[-1] == ']') {
		start++;
		end--;
	}
	if (!colon || start == end || (size_t)(end - start) >= host_size || strlen(colon + 1) >= port_size ||
	    str_to_int64(colon + 1, 0, 65535, &number) < 0)
		return husk_fail(err, HUSK_INVALID,
				 "cannot listen on '%s'; give ADDRESS:PORT, like 127.0.0.1:7820 or [::1]:7820",
				 address);
	memcpy(host, start, (size_t)(end - start));
	host[end - start] = '\0';
	snprintf(port, port_size, "%s", colon + 1);
	return 0;
}

static bool is_loopback(const struct sockaddr *address)
{
	if (address->sa_family == AF_INET)
		return ntohl(((const struct sockaddr_in *)address)->sin_addr.s_addr) >> 24 == 127;
	return address->sa_family == AF_INET6 &&
	       IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)address)->sin6_addr);
}

static bool has_token(struct husk *husk)
{
	struct husk_token **list = NULL;
	bool found = false;

	if (husk_token_list(husk, &list, NULL) < 0)
		return false;
	for (size_t i = 0; list[i]; i++)
		found = found || (!list[i]->revoked && (!list[i]->expires_ms || list[i]->expires_ms > time_wall_ms()));
	husk_token_list_free(list);
	return found;
}

/* A dead peer must not keep its connection for ever. */
static void set_socket_options(int fd)
{
	int on = 1;

	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	fd_set_keepalive(fd, 60, 15, 4);
}

static int listen_tcp(struct server *server, struct husk_error *err)
{
	const struct addrinfo hints = { .ai_flags = AI_PASSIVE | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM };
	const char *address = server->options->address;
	struct addrinfo *found = NULL;
	char host[256], port[8];

	if (split_address(address, host, sizeof(host), port, sizeof(port), err) < 0)
		return -1;
	int failed = getaddrinfo(host, port, &hints, &found);
	if (failed)
		return husk_fail(err, HUSK_INVALID, "cannot listen on '%s': %s", address, gai_strerror(failed));
	cleanup_close int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd >= 0)
		set_socket_options(fd);
	int bound = fd >= 0 ? bind(fd, found->ai_addr, found->ai_addrlen) : -1;
	freeaddrinfo(found);
	if (bound < 0 || listen(fd, BACKLOG) < 0)
		return husk_fail_errno(err, "cannot listen on %s", address);
	return steal_fd(&fd);
}

/* On addresses other than loopback, a listener requires a token and should have TLS. */
static int check_reach(struct server *server, int fd, struct husk_error *err)
{
	struct sockaddr_storage address = { 0 };
	socklen_t size = sizeof(address);

	if (getsockname(fd, (struct sockaddr *)&address, &size) < 0)
		return husk_fail_errno(err, "cannot tell where a socket listens");
	if (is_loopback((struct sockaddr *)&address))
		return 0;
	if (!has_token(server->husk))
		return husk_fail(err, HUSK_DENIED,
				 "refusing to listen on %s, beyond this machine, without any token; make one with "
				 "'husk token create NAME'",
				 server->options->tcp_fd >= 0 ? "the socket from systemd" : server->options->address);
	if (!server->options->certificate)
		log_line(LOG_WARN,
			 "listening beyond this machine without TLS: tokens travel in the clear (--cert, --key)");
	return 0;
}

/* The lock beside the socket shows whether its server lives: the socket of a killed server is replaced. */
static int lock_socket(const char *path, struct husk_error *err)
{
	cleanup_free char *name = str_format("%s.lock", path);
	cleanup_close int fd = name ? open(name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600) : -1;

	if (!name)
		return husk_fail_memory(err);
	if (fd < 0)
		return husk_fail_errno(err, "cannot open '%s'", name);
	if (flock(fd, LOCK_EX | LOCK_NB) < 0)
		return husk_fail(err, HUSK_CONFLICT, "another huskd serves this instance on '%s'", path);
	return steal_fd(&fd);
}

/* The group whose users may connect; 0: none. */
static int find_group(const char *wanted, gid_t *out, struct husk_error *err)
{
	const struct group *group = getgrnam(wanted ? wanted : DEFAULT_GROUP);
	int64_t number = 0;

	*out = 0;
	if (str_equal(wanted, "none") || (!group && !wanted))
		return 0;
	if (!group && str_to_int64(wanted, 1, UINT32_MAX - 1, &number) < 0)
		return husk_fail(err, HUSK_INVALID, "--group '%s': no such group; run: groupadd --system %s", wanted,
				 wanted);
	*out = group ? group->gr_gid : (gid_t)number;
	return 0;
}

/* Opens the socket to the group. If it is in the instance's own run directory, which is closed to everybody else, the
 * directory is opened too: the group can then name its files, which keep their own modes. */
static int share_socket(const char *path, gid_t group, struct husk_error *err)
{
	cleanup_free char *directory = strdup(path);
	struct stat status;

	if (!directory)
		return husk_fail_memory(err);
	char *slash = strrchr(directory, '/');
	if (slash && slash > directory)
		*slash = '\0';
	if (chown(path, (uid_t)-1, group) < 0 || chmod(path, 0660) < 0)
		return husk_fail_errno(err, "cannot give '%s' to group %u", path, group);
	if (!slash || stat(directory, &status) < 0 || status.st_uid != geteuid() || (status.st_mode & 07777) != 0700)
		return 0;
	if (chown(directory, (uid_t)-1, group) < 0 || chmod(directory, 0710) < 0)
		return husk_fail_errno(err, "cannot let group %u into '%s'", group, directory);
	return 0;
}

static int listen_unix(const char *path, struct husk_error *err)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	cleanup_close int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (strlen(path) >= sizeof(address.sun_path))
		return husk_fail(err, HUSK_INVALID, "the socket's path '%s' is longer than %zu bytes", path,
				 sizeof(address.sun_path) - 1);
	memcpy(address.sun_path, path, strlen(path) + 1);
	if (unlink(path) < 0 && errno != ENOENT)
		return husk_fail_errno(err, "cannot replace '%s'", path);
	mode_t before = umask(0177); /* no other thread runs yet */
	int bound = fd >= 0 ? bind(fd, (struct sockaddr *)&address, sizeof(address)) : -1;
	umask(before);
	if (bound < 0 || listen(fd, BACKLOG) < 0)
		return husk_fail_errno(err, "cannot listen on '%s'", path);
	return steal_fd(&fd);
}

/* ---- starting ---- */

/* The address it listens on, with the port that the kernel chose if none was given. */
static void name_address(int fd, char *out, size_t out_size)
{
	struct sockaddr_storage address = { 0 };
	socklen_t size = sizeof(address);
	char host[NI_MAXHOST], port[NI_MAXSERV];

	if (getsockname(fd, (struct sockaddr *)&address, &size) == 0 &&
	    getnameinfo((struct sockaddr *)&address, size, host, sizeof(host), port, sizeof(port),
			NI_NUMERICHOST | NI_NUMERICSERV) == 0)
		snprintf(out, out_size, address.ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
}

static uint16_t port_of(int fd)
{
	struct sockaddr_storage address = { 0 };
	socklen_t size = sizeof(address);

	if (getsockname(fd, (struct sockaddr *)&address, &size) < 0)
		return 0;
	uint16_t port; /* at the same place for both families */
	memcpy(&port, (char *)&address + offsetof(struct sockaddr_in, sin_port), sizeof(port));
	return ntohs(port);
}

static int start_tcp(struct server *server, struct husk_error *err)
{
	const struct server_options *options = server->options;
	bool tls = options->certificate;

	if (!options->address && options->tcp_fd < 0)
		return 0;
	if (tls && tls_load(options->certificate, options->key, err) < 0)
		return -1;
	cleanup_close int fd = options->tcp_fd >= 0 ? options->tcp_fd : listen_tcp(server, err);
	if (fd < 0 || check_reach(server, fd, err) < 0 || peers_watch(err) < 0 ||
	    http_start(&server->tcp, tls ? -1 : fd, err) < 0)
		return -1;
	server->port = port_of(fd);
	name_address(fd, server->address, sizeof(server->address));
	if (tls && tls_listen(server->tcp.daemon, fd, err) < 0)
		return -1;
	steal_fd(&fd);
	return 0;
}

static int start_unix(struct server *server, struct husk_error *err)
{
	const struct server_options *options = server->options;
	bool own = options->local_fd < 0;
	gid_t group = 0;

	if (find_group(options->group, &group, err) < 0)
		return -1;
	cleanup_close int fd = own ? listen_unix(options->socket_path, err) : options->local_fd;
	server->shared = group != 0;
	if (fd < 0 || (group && own && share_socket(options->socket_path, group, err) < 0) ||
	    http_start(&server->local, fd, err) < 0)
		return -1;
	steal_fd(&fd);
	return 0;
}

/* Each stream has a socket, and some also a connection to a supervisor. */
static void raise_limits(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
}

static void announce(const struct server *server)
{
	printf("huskd %s listens on %s", HUSK_VERSION, server->options->socket_path);
	if (server->port)
		printf(" and %s://%s", server->options->certificate ? "https" : "http", server->address);
	printf("\n");
	if (server->port && !has_token(server->husk))
		printf("no token yet: 'husk token create NAME' makes one for use over TCP\n");
	fflush(stdout);
}

/* ---- stopping ---- */

static size_t requests_left(struct server *server)
{
	pthread_mutex_lock(&server->lock);
	size_t count = server->request_count;
	pthread_mutex_unlock(&server->lock);
	return count;
}

/* Wakes all threads that wait for a flow; threads in poll see the descriptor. */
static void end_patience(struct server *server)
{
	uint64_t one = 1;

	atomic_store(&server->over, true);
	if (write(server->over_fd, &one, sizeof(one)) != (ssize_t)sizeof(one))
		log_line(LOG_ERROR, "cannot tell streams to end: %s", strerror(errno));
	pthread_mutex_lock(&server->lock);
	for (struct request *request = server->requests; request; request = request->next) {
		pthread_mutex_lock(&request->lock);
		pthread_cond_broadcast(&request->changed);
		pthread_mutex_unlock(&request->lock);
	}
	pthread_mutex_unlock(&server->lock);
}

/* Waits until no request is running; false if the time is over or another signal arrived. */
static bool drain(struct server *server, const sigset_t *signals, int64_t ms)
{
	const struct timespec step = { .tv_nsec = DRAIN_STEP_MS * 1000000L };
	int64_t deadline = time_monotonic_ms() + ms;

	while (requests_left(server)) {
		if (time_monotonic_ms() >= deadline || sigtimedwait(signals, NULL, &step) > 0)
			return false;
	}
	return true;
}

static void stop(struct server *server, const sigset_t *signals)
{
	size_t left = requests_left(server);
	MHD_socket tcp = MHD_INVALID_SOCKET;

	atomic_store(&server->stopping, true);
	tls_stop();
	if (server->tcp.daemon)
		tcp = MHD_quiesce_daemon(server->tcp.daemon);
	MHD_socket local = MHD_quiesce_daemon(server->local.daemon);
	/* systemd's socket continues to listen: clients that connect now are served after the restart */
	if (server->options->local_fd < 0)
		unlink(server->options->socket_path);
	events_wake();
	if (left)
		log_line(LOG_INFO, "stopping; %zu requests may continue for %d s", left, server->options->stop_seconds);
	bool quiet = drain(server, signals, (int64_t)server->options->stop_seconds * 1000);
	if (!quiet) {
		end_patience(server);
		quiet = drain(server, signals, LAST_WORDS_MS);
	}
	recordings_end(server->husk);
	quiet = dialects_stop() && quiet;
	husk_pool_drain(server->husk);
	/* The server does not wait for a handler deep in a call: it ends with the process. */
	if (!quiet) {
		log_line(LOG_WARN, "stopped with %zu requests cut off", requests_left(server));
		_exit(0);
	}
	if (server->tcp.daemon)
		MHD_stop_daemon(server->tcp.daemon);
	MHD_stop_daemon(server->local.daemon);
	events_end();
	if (tcp != MHD_INVALID_SOCKET)
		fd_close(&tcp);
	if (local != MHD_INVALID_SOCKET)
		fd_close(&local);
	log_line(LOG_INFO, "stopped");
}

/* SIGHUP: wrong settings change nothing. */
static void reload(struct server_options *options)
{
	struct server_options fresh;
	struct husk_error err = { 0 };

	if (!options->reload || options->reload(&fresh, &err) < 0) {
		log_line(LOG_ERROR, "nothing is changed: %s",
			 options->reload ? err.message : "there is nothing to reload");
		return;
	}
	options->user_sandboxes = fresh.user_sandboxes;
	options->user_memory_bytes = fresh.user_memory_bytes;
	options->user_snapshot_bytes = fresh.user_snapshot_bytes;
	log_line(LOG_INFO, "settings read again: the log and the quotas of users; others need a restart");
}

int server_run(struct husk *husk, struct server_options *options, struct husk_error *err)
{
	/* Threads of libmicrohttpd use it to the very end. */
	static struct server server;
	sigset_t signals;
	int number = 0;

	server.husk = husk;
	server.options = options;
	server.uid = geteuid();
	server.tcp.server = server.local.server = &server;
	server.local.local = true;
	pthread_mutex_init(&server.lock, NULL);
	signal(SIGPIPE, SIG_IGN);
	sigemptyset(&signals);
	sigaddset(&signals, SIGTERM);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGHUP);
	pthread_sigmask(SIG_BLOCK, &signals, NULL); /* every thread inherits the mask: only this thread receives them */
	raise_limits();
	cleanup_close int over = eventfd(0, EFD_CLOEXEC);
	server.over_fd = over;
	if (over < 0)
		return husk_fail_errno(err, "cannot make an eventfd");
	cleanup_close int lock = lock_socket(options->socket_path, err);
	if (lock < 0 || routes_setup(err) < 0 || dialects_start(err) < 0 || start_tcp(&server, err) < 0 ||
	    start_unix(&server, err) < 0 || tend_start(err) < 0)
		return -1;
	announce(&server);
	while (sigwait(&signals, &number) != 0 || number == SIGHUP)
		if (number == SIGHUP)
			reload(options);
	stop(&server, &signals);
	return 0;
}
