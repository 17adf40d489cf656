/*
 * The client of handoff.h, installed under the names of the commands that it hands over:
 *
 *   python3, python   to the warm interpreter (zygote.py), which has imported the large modules and only forks
 *   sudo              to sudo-server.c, on engines where a set-user-id program gains no rights
 *
 * If the server is not available, or would not run the call exactly as the real program, the real program is executed
 * instead: being fast must never change the result.
 */
#include "handoff.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

struct service {
	const char *socket;
	const char *program; /* the real program */
	bool (*suits)(int argc, char **argv);
};

extern char **environ;
static int server = -1; /* where the signal handler writes */

/* ---- which calls are handed over ---- */

static bool starts(const char *s, const char *prefix)
{
	return strncmp(s, prefix, strlen(prefix)) == 0;
}

/* False if a variable is set that python, or a numeric library that the warm interpreter has loaded, reads only at
 * start. */
static bool python_environment_plain(void)
{
	static const char *const special[] = { "PYTHON", "OPENBLAS_", "OMP_", "MKL_", "LD_", "MALLOC_" };

	for (char **pair = environ; *pair; pair++) {
		if (starts(*pair, "PYTHONUNBUFFERED=") || starts(*pair, "PYTHONDONTWRITEBYTECODE="))
			continue;
		for (size_t i = 0; i < sizeof(special) / sizeof(special[0]); i++)
			if (starts(*pair, special[i]))
				return false;
	}
	return true;
}

static bool locale_plain(void)
{
	static const char *const names[] = { "LC_ALL", "LC_CTYPE", "LANG" };

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		const char *value = getenv(names[i]);
		if (!value || !*value)
			continue;
		/* The first one that is set decides; all these values mean UTF-8 to python. */
		return strcmp(value, "C") == 0 || strcmp(value, "POSIX") == 0 || strstr(value, "UTF-8") ||
		       strstr(value, "utf8");
	}
	return true;
}

/* True for a script, -c, -m or a program on stdin, with no option except -u before it. */
static bool python_suits(int argc, char **argv)
{
	int i = 1;

	while (i < argc && strcmp(argv[i], "-u") == 0)
		i++;
	if (isatty(0) || !python_environment_plain() || !locale_plain())
		return false;
	if (i == argc || strcmp(argv[i], "-") == 0)
		return true;
	if (strcmp(argv[i], "-c") == 0 || strcmp(argv[i], "-m") == 0)
		return i + 1 < argc;
	return argv[i][0] != '-';
}

/* Root needs no server, and the real program prints its own help. */
static bool sudo_suits(int argc, char **argv)
{
	return geteuid() != 0 && argc > 1 && strcmp(argv[1], "--help") != 0;
}

static const struct service python = { HANDOFF_PYTHON, "/usr/bin/python3", python_suits };
static const struct service sudo = { HANDOFF_SUDO, "/usr/bin/sudo", sudo_suits };

/* ---- the request ---- */

static int server_connect(const char *path)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
	if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
		close(fd);
		return -1;
	}
	return fd;
}

static size_t strings_size(char **list, uint32_t *count)
{
	size_t size = 0;

	for (*count = 0; list[*count]; ++*count)
		size += strlen(list[*count]) + 1;
	return size;
}

static char *strings_put(char *at, char **list)
{
	for (; *list; list++)
		at = stpcpy(at, *list) + 1;
	return at;
}

static void describe_process(struct handoff_request *request)
{
	request->umask = umask(0);
	umask((mode_t)request->umask);
	for (int number = 1; number < 32; number++) {
		struct sigaction action;
		if (sigaction(number, NULL, &action) == 0 && action.sa_handler == SIG_IGN)
			request->ignored |= 1ull << (number - 1);
	}
	for (int number = 0; number < HANDOFF_LIMITS; number++) {
		struct rlimit limit = { RLIM_INFINITY, RLIM_INFINITY };
		getrlimit(number, &limit);
		request->limits[number][0] = limit.rlim_cur;
		request->limits[number][1] = limit.rlim_max;
	}
}

/* Makes the whole message; NULL if that is not possible. */
static struct handoff_request *request_new(char **argv)
{
	char directory[4096];
	uint32_t argc, envc;
	size_t size = strings_size(argv, &argc) + strings_size(environ, &envc);
	struct handoff_request *request;
	char *at;

	if (!getcwd(directory, sizeof(directory)) || directory[0] != '/')
		return NULL;
	size += strlen(directory) + 1;
	request = size <= HANDOFF_SIZE_MAX ? calloc(1, sizeof(*request) + size) : NULL;
	if (!request)
		return NULL;
	request->magic = HANDOFF_MAGIC;
	request->size = (uint32_t)size;
	request->argc = argc;
	request->envc = envc;
	describe_process(request);
	at = strings_put((char *)(request + 1), argv);
	at = strings_put(at, environ);
	memcpy(at, directory, strlen(directory) + 1);
	return request;
}

static bool send_all(int fd, const char *data, size_t size)
{
	while (size > 0) {
		ssize_t count = send(fd, data, size, MSG_NOSIGNAL);
		if (count < 0 && errno == EINTR)
			continue;
		if (count <= 0)
			return false;
		data += count;
		size -= (size_t)count;
	}
	return true;
}

static void attach(struct cmsghdr *header, int type, const void *data, size_t size)
{
	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = type;
	header->cmsg_len = (socklen_t)CMSG_LEN(size);
	memcpy(CMSG_DATA(header), data, size);
}

/* The three descriptors and the credentials are attached to its first bytes. */
static bool request_send(int fd, const struct handoff_request *request)
{
	const int descriptors[3] = { 0, 1, 2 };
	const struct ucred self = { getpid(), getuid(), getgid() };
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(sizeof(descriptors)) + CMSG_SPACE(sizeof(self))];
	} control = { 0 };
	struct iovec part = { (void *)request, sizeof(*request) };
	struct msghdr message = {
		.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.space, .msg_controllen = sizeof(control.space)
	};
	ssize_t count;

	attach(CMSG_FIRSTHDR(&message), SCM_RIGHTS, descriptors, sizeof(descriptors));
	attach((struct cmsghdr *)(control.space + CMSG_SPACE(sizeof(descriptors))), SCM_CREDENTIALS, &self,
	       sizeof(self));
	do
		count = sendmsg(fd, &message, MSG_NOSIGNAL);
	while (count < 0 && errno == EINTR);
	if (count <= 0)
		return false;
	return send_all(fd, (const char *)request + count, sizeof(*request) + request->size - (size_t)count);
}

/* ---- while the command runs ---- */

static void pass_on(int number)
{
	int saved = errno;
	char byte = (char)number;

	(void)!send(server, &byte, 1, MSG_NOSIGNAL);
	errno = saved;
}

static void pass_signals_on(uint64_t ignored)
{
	static const int passed[] = { SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGALRM, SIGWINCH };
	struct sigaction action = { .sa_handler = pass_on, .sa_flags = SA_RESTART };

	sigfillset(&action.sa_mask);
	for (size_t i = 0; i < sizeof(passed) / sizeof(passed[0]); i++)
		if (!(ignored >> (passed[i] - 1) & 1))
			sigaction(passed[i], &action, NULL);
}

/* Ends with the status or signal of the command. */
static _Noreturn void end_like(int status)
{
	if (WIFSIGNALED(status)) {
		signal(WTERMSIG(status), SIG_DFL);
		raise(WTERMSIG(status));
		_exit(128 + WTERMSIG(status));
	}
	_exit(WEXITSTATUS(status));
}

static _Noreturn void follow(void)
{
	char bytes[sizeof(int32_t)];
	size_t have = 0;
	int32_t status;

	while (have < sizeof(bytes)) {
		ssize_t count = recv(server, bytes + have, sizeof(bytes) - have, 0);
		if (count < 0 && errno == EINTR)
			continue;
		if (count <= 0)
			end_like(SIGKILL); /* the server was killed, and with it the command */
		have += (size_t)count;
	}
	memcpy(&status, bytes, sizeof(status));
	end_like(status);
}

int main(int argc, char **argv)
{
	const char *slash = strrchr(argv[0], '/'), *name = slash ? slash + 1 : argv[0];
	const struct service *service = strcmp(name, "sudo") == 0 ? &sudo : &python;
	bool open = fcntl(0, F_GETFD) >= 0 && fcntl(1, F_GETFD) >= 0 && fcntl(2, F_GETFD) >= 0;

	if (open && service->suits(argc, argv)) {
		struct handoff_request *request = request_new(argv);
		server = request ? server_connect(service->socket) : -1;
		if (server >= 0) {
			pass_signals_on(request->ignored);
			if (request_send(server, request))
				follow();
			fprintf(stderr, "%s: the server behind %s went away\n", name, service->socket);
			return 125;
		}
	}
	execv(service->program, argv);
	fprintf(stderr, "%s: cannot run %s: %s\n", name, service->program, strerror(errno));
	return errno == ENOENT ? 127 : 126;
}
