/*
 * Runs commands as root for members of the group sudo (handoff.h). For engines whose kernel gives a set-user-id program
 * no rights (gVisor), where the real sudo cannot work. Started by the agent template before its snapshot is taken; the
 * client is handoff.c under the name sudo. The caller is identified by the kernel, never by the request.
 *
 * Each command has one process, which reads the request, starts the command, passes signals on and reports its end. So
 * the code is simple, and a slow or hostile client blocks nobody else. There is no authentication, as for sudo with
 * NOPASSWD: the security boundary is the machine, not this program.
 */
#include "handoff.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <pwd.h>
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

#define USAGE "usage: sudo [-u user] [-E] [-i | -s] command [argument]..."
#define SAFE_PATH "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

struct order {
	struct handoff_request request;
	int descriptors[3];
	char *strings;
	char **argv, **environment;
	const char *directory;
	struct ucred peer;
	struct passwd caller;
};

/* The supported options of sudo in this call. */
struct plan {
	const char *user;
	bool login, shell, keep_environment, nothing;
	char **command;
};

static _Noreturn void refuse(const char *what, const char *detail)
{
	dprintf(2, "sudo: %s%s%s\n", what, detail ? ": " : "", detail ? detail : "");
	_exit(1);
}

/* ---- reading a request ---- */

static bool read_exactly(int fd, void *data, size_t size)
{
	char *at = data;

	while (size > 0) {
		ssize_t count = recv(fd, at, size, 0);
		if (count < 0 && errno == EINTR)
			continue;
		if (count <= 0)
			return false;
		at += count;
		size -= (size_t)count;
	}
	return true;
}

/* Takes the descriptors and the sender's credentials from a message; returns true if both were attached. */
static bool take_attached(struct msghdr *message, struct order *order)
{
	bool descriptors = false, credentials = false;

	for (struct cmsghdr *each = CMSG_FIRSTHDR(message); each; each = CMSG_NXTHDR(message, each)) {
		if (each->cmsg_level != SOL_SOCKET)
			continue;
		if (each->cmsg_type == SCM_RIGHTS && each->cmsg_len == CMSG_LEN(sizeof(order->descriptors))) {
			memcpy(order->descriptors, CMSG_DATA(each), sizeof(order->descriptors));
			descriptors = true;
		} else if (each->cmsg_type == SCM_CREDENTIALS && each->cmsg_len == CMSG_LEN(sizeof(order->peer))) {
			memcpy(&order->peer, CMSG_DATA(each), sizeof(order->peer));
			credentials = true;
		}
	}
	return descriptors && credentials;
}

static bool read_header(int fd, struct order *order)
{
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(sizeof(order->descriptors)) + CMSG_SPACE(sizeof(order->peer))];
	} control = { 0 };
	struct iovec part = { &order->request, sizeof(order->request) };
	struct msghdr message = {
		.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.space, .msg_controllen = sizeof(control.space)
	};
	ssize_t count = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);

	return count > 0 && take_attached(&message, order) &&
	       read_exactly(fd, (char *)&order->request + count, sizeof(order->request) - (size_t)count) &&
	       order->request.magic == HANDOFF_MAGIC && order->request.size <= HANDOFF_SIZE_MAX;
}

/* `count` strings from *at on, which must end before `end`. */
static char **take_strings(char **at, const char *end, uint32_t count)
{
	char **list = count <= HANDOFF_SIZE_MAX ? calloc((size_t)count + 1, sizeof(*list)) : NULL;

	for (uint32_t i = 0; list && i < count; i++) {
		if (*at >= end)
			return NULL;
		list[i] = *at;
		*at += strlen(*at) + 1;
	}
	return list;
}

static bool read_order(int fd, struct order *order)
{
	char *at, *end;

	if (!read_header(fd, order))
		return false;
	order->strings = calloc(1, (size_t)order->request.size + 1);
	if (!order->strings || !read_exactly(fd, order->strings, order->request.size))
		return false;
	at = order->strings;
	end = order->strings + order->request.size;
	order->argv = take_strings(&at, end, order->request.argc);
	order->environment = take_strings(&at, end, order->request.envc);
	order->directory = at;
	return order->argv && order->environment && order->argv[0] && at < end;
}

/* ---- permission ---- */

static bool allowed(struct order *order)
{
	struct group *group;
	struct passwd *user = getpwuid(order->peer.uid);

	if (!user)
		return false;
	order->caller =
		(struct passwd){ .pw_name = strdup(user->pw_name), .pw_uid = user->pw_uid, .pw_gid = user->pw_gid };
	group = getgrnam("sudo");
	if (!group || !order->caller.pw_name)
		return false;
	if (order->peer.uid == 0 || user->pw_gid == group->gr_gid)
		return true;
	for (char **member = group->gr_mem; *member; member++)
		if (strcmp(*member, order->caller.pw_name) == 0)
			return true;
	return false;
}

/* ---- options ---- */

static void parse_letter(char letter, struct plan *plan)
{
	switch (letter) {
	case 'E':
		plan->keep_environment = true;
		return;
	case 'i':
		plan->login = true;
		return;
	case 's':
		plan->shell = true;
		return;
	case 'v': /* there is no password to refresh or forget */
	case 'k':
	case 'K':
	case 'l':
		plan->nothing = true;
		return;
	case 'n':
	case 'H':
	case 'S':
	case 'b':
	case 'P':
		return;
	default:
		refuse("option not supported in a sandbox", (char[]){ '-', letter, '\0' });
	}
}

static bool is_user_option(const char *word)
{
	return strcmp(word, "-u") == 0 || strcmp(word, "--user") == 0;
}

static struct plan parse(char **argv)
{
	struct plan plan = { .user = "root" };
	char **word = argv + 1;

	for (; *word && (*word)[0] == '-' && (*word)[1]; word++) {
		if (strcmp(*word, "--") == 0) {
			word++;
			break;
		}
		if (is_user_option(*word) && word[1])
			plan.user = *++word;
		else if (strncmp(*word, "--user=", 7) == 0)
			plan.user = *word + 7;
		else if (strcmp(*word, "--preserve-env") == 0 || strncmp(*word, "--preserve-env=", 15) == 0)
			plan.keep_environment = true;
		else if ((*word)[1] == '-')
			refuse("option not supported in a sandbox", *word);
		else
			for (const char *letter = *word + 1; *letter; letter++)
				parse_letter(*letter, &plan);
	}
	plan.command = word;
	return plan;
}

/* ---- running the command, as sudo does ---- */

static void set(const char *name, const char *value)
{
	if (setenv(name, value, 1) < 0)
		refuse("cannot set the environment", strerror(errno));
}

static const char *find(char **environment, const char *name)
{
	size_t length = strlen(name);

	for (; *environment; environment++)
		if (strncmp(*environment, name, length) == 0 && (*environment)[length] == '=')
			return *environment + length + 1;
	return NULL;
}

/* Keeps only the caller's variables for the display of text and for the network, unless all were requested. */
static void make_environment(const struct order *order, const struct plan *plan, const struct passwd *target)
{
	static const char *const kept[] = { "TERM",       "LANG",        "LC_ALL",      "COLORTERM",
					    "DISPLAY",    "http_proxy",  "https_proxy", "no_proxy",
					    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY",    "DEBIAN_FRONTEND" };
	char number[16];

	clearenv();
	for (char **pair = order->environment; plan->keep_environment && *pair; pair++)
		if (strchr(*pair, '='))
			putenv(*pair);
	for (size_t i = 0; i < sizeof(kept) / sizeof(kept[0]); i++)
		if (find(order->environment, kept[i]))
			set(kept[i], find(order->environment, kept[i]));
	set("PATH", SAFE_PATH);
	set("HOME", target->pw_dir);
	set("SHELL", target->pw_shell);
	set("USER", target->pw_name);
	set("LOGNAME", target->pw_name);
	set("SUDO_USER", order->caller.pw_name);
	snprintf(number, sizeof(number), "%u", order->caller.pw_uid);
	set("SUDO_UID", number);
	snprintf(number, sizeof(number), "%u", order->caller.pw_gid);
	set("SUDO_GID", number);
}

static void become(const struct order *order, const struct passwd *target, bool login)
{
	for (int i = 0; i < HANDOFF_LIMITS; i++) {
		struct rlimit limit = { order->request.limits[i][0], order->request.limits[i][1] };
		setrlimit(i, &limit); /* those that this kernel supports */
	}
	for (int number = 1; number < 32; number++)
		signal(number, order->request.ignored >> (number - 1) & 1 ? SIG_IGN : SIG_DFL);
	umask((mode_t)order->request.umask | 022);
	if (initgroups(target->pw_name, target->pw_gid) < 0 ||
	    setresgid(target->pw_gid, target->pw_gid, target->pw_gid) < 0 ||
	    setresuid(target->pw_uid, target->pw_uid, target->pw_uid) < 0)
		refuse("cannot become", target->pw_name);
	if (chdir(login ? target->pw_dir : order->directory) < 0 && chdir("/") < 0)
		refuse("cannot enter a directory", strerror(errno));
}

/* Joins the words to one command for a shell, and quotes each word. */
static char *quote_words(char **words)
{
	size_t size = 1;
	char *text, *at;

	for (char **word = words; *word; word++)
		size += 4 * strlen(*word) + 3;
	text = at = calloc(1, size);
	for (; text && *words; words++) {
		*at++ = '\'';
		for (const char *c = *words; *c; c++)
			at = *c == '\'' ? stpcpy(at, "'\\''") : (*at = *c, at + 1);
		at = stpcpy(at, words[1] ? "' " : "'");
	}
	return text;
}

static _Noreturn void run_shell(const struct passwd *target, const struct plan *plan)
{
	const char *base = strrchr(target->pw_shell, '/');
	char name[64];

	snprintf(name, sizeof(name), "%s%s", plan->login ? "-" : "", base ? base + 1 : target->pw_shell);
	if (plan->command[0])
		execl(target->pw_shell, name, "-c", quote_words(plan->command), (char *)NULL);
	else
		execl(target->pw_shell, name, (char *)NULL);
	refuse(target->pw_shell, strerror(errno));
}

static _Noreturn void run(struct order *order)
{
	struct plan plan;
	struct passwd *target;

	setsid();
	for (int i = 0; i < 3; i++)
		if (dup2(order->descriptors[i], i) < 0)
			_exit(125);
	plan = parse(order->argv);
	if (plan.nothing && !plan.command[0])
		_exit(0);
	if (!plan.command[0] && !plan.login && !plan.shell)
		refuse(USAGE, NULL);
	target = plan.user[0] == '#' ? getpwuid((uid_t)strtoul(plan.user + 1, NULL, 10)) : getpwnam(plan.user);
	if (!target)
		refuse("unknown user", plan.user);
	make_environment(order, &plan, target);
	become(order, target, plan.login);
	/* NAME=value words before the command set its environment. */
	for (; plan.command[0] && strchr(plan.command[0], '=') && !plan.login && !plan.shell; plan.command++)
		putenv(plan.command[0]);
	if (plan.login || plan.shell)
		run_shell(target, &plan);
	if (!plan.command[0])
		refuse(USAGE, NULL);
	execvp(plan.command[0], plan.command);
	dprintf(2, "sudo: %s: %s\n", plan.command[0], errno == ENOENT ? "command not found" : strerror(errno));
	_exit(errno == ENOENT ? 127 : 126);
}

/* ---- following the command ---- */

static int ended; /* the write end of a pipe: it makes the other end readable when the child ends */

static void on_child(int number)
{
	/* clang-tidy treats errno as a function that a handler may not call; POSIX allows errno there. */
	int saved = errno; /* NOLINT(bugprone-signal-handler) */

	(void)number;
	(void)!write(ended, "", 1);
	errno = saved; /* NOLINT(bugprone-signal-handler) */
}

/* Passes signals from the client to the command's group, until one of the two ends. */
static int follow(int client, int woken, pid_t pid)
{
	struct pollfd wait[] = { { .fd = client, .events = POLLIN }, { .fd = woken, .events = POLLIN } };
	int status;

	for (;;) {
		unsigned char numbers[64];
		if (poll(wait, 2, -1) < 0 && errno != EINTR)
			return SIGKILL;
		if (waitpid(pid, &status, WNOHANG) == pid)
			return status;
		if (!wait[0].revents)
			continue;
		ssize_t count = recv(client, numbers, sizeof(numbers), MSG_DONTWAIT);
		if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR)) {
			kill(-pid, SIGKILL);
			kill(pid, SIGKILL);
			wait[0].fd = -1; /* the client has gone; only the end of the command is waited for */
		}
		for (ssize_t i = 0; i < count; i++)
			if (numbers[i] > 0 && numbers[i] < 32)
				kill(-pid, numbers[i]);
	}
}

static _Noreturn void serve(int client)
{
	struct order order = { 0 };
	int32_t status = 1 << 8;
	int ends[2], on = 1;
	pid_t pid;

	if (setsockopt(client, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) < 0)
		_exit(1);
	if (!read_order(client, &order) || pipe2(ends, O_CLOEXEC | O_NONBLOCK) < 0)
		_exit(1);
	if (!allowed(&order)) {
		dprintf(order.descriptors[2], "sudo: %s is not in the group sudo\n",
			order.caller.pw_name ? order.caller.pw_name : "this user");
		(void)!send(client, &status, sizeof(status), MSG_NOSIGNAL);
		_exit(1);
	}
	ended = ends[1];
	signal(SIGCHLD, on_child);
	pid = fork();
	if (pid == 0)
		run(&order);
	for (int i = 0; i < 3; i++)
		close(order.descriptors[i]);
	if (pid > 0)
		status = follow(client, ends[0], pid);
	(void)!send(client, &status, sizeof(status), MSG_NOSIGNAL);
	_exit(0);
}

int main(void)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX, .sun_path = HANDOFF_SUDO };
	int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	mkdir("/run/husk", 0755);
	unlink(HANDOFF_SUDO);
	if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof(address)) < 0 ||
	    chmod(HANDOFF_SUDO, 0666) < 0 || listen(listener, 64) < 0) {
		perror("sudo-server: cannot listen on " HANDOFF_SUDO);
		return 1;
	}
	signal(SIGCHLD, SIG_IGN); /* processes of commands are not waited for */
	for (;;) {
		int client = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
		if (client < 0) {
			usleep(10000); /* out of descriptors or memory: temporary */
			continue;
		}
		if (fork() == 0) {
			close(listener);
			serve(client);
		}
		close(client);
	}
}
