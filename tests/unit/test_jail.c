/*
 * The jail, looked at from both sides: what /proc says of a process after each stage, and what it can still do from
 * inside. Needs root; skips without.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>

#include "jail/cgroup.h"
#include "jail/jail.h"

#define OWN_UID 0x7e000001u
#define OWN_GID 0x7e000002u

static struct jail jail = {
	.uid = OWN_UID, .gid = OWN_GID, .netns = -1, .files = 64, .threads = 20, .file_bytes = 1u << 20
};

static void need_root(void)
{
	if (geteuid() != 0) {
		print_message("skipped: not root\n");
		skip();
	}
}

/* ---- a process that goes through some stages and then stands still ---- */

struct prisoner {
	pid_t pid;
	int pidfd, said, hold;
};

struct sentence {
	int (*stages)(struct husk_error *err);
	int says, held, hold;
};

static void serve(void *data)
{
	struct sentence *sentence = data;
	struct husk_error err = { 0 };
	char byte;

	close(sentence->hold); /* so that its end is the parent's alone */
	if (sentence->stages(&err) < 0)
		(void)!write(sentence->says, err.message, strlen(err.message));
	else
		(void)!write(sentence->says, "in", 2);
	(void)!read(sentence->held, &byte, 1);
	_exit(0);
}

/* "in", or why not. */
static struct prisoner take(int (*stages)(struct husk_error *err), unsigned long flags, char *said, size_t size)
{
	struct prisoner prisoner;
	struct sentence sentence = { .stages = stages };
	int says[2], holds[2];
	ssize_t got;

	assert_int_equal(pipe2(says, O_CLOEXEC), 0);
	assert_int_equal(pipe2(holds, O_CLOEXEC), 0);
	sentence.says = says[1];
	sentence.held = holds[0];
	sentence.hold = holds[1];
	prisoner.pid = jail_clone(flags, serve, &sentence, &prisoner.pidfd);
	assert_true(prisoner.pid > 0);
	close(says[1]);
	close(holds[0]);
	prisoner.said = says[0];
	prisoner.hold = holds[1];
	got = read(prisoner.said, said, size - 1);
	said[got < 0 ? 0 : got] = '\0';
	return prisoner;
}

static struct prisoner take_in(int (*stages)(struct husk_error *err))
{
	char said[1024];
	struct prisoner prisoner = take(stages, CLONE_NEWPID, said, sizeof(said));

	assert_string_equal(said, "in");
	return prisoner;
}

static void let_go(struct prisoner *prisoner)
{
	int status;

	close(prisoner->hold);
	assert_int_equal(waitpid(prisoner->pid, &status, 0), prisoner->pid);
	assert_int_equal(status, 0);
	close(prisoner->pidfd);
	close(prisoner->said);
}

static char *of(const struct prisoner *prisoner, const char *file)
{
	cleanup_free char *path = str_format("/proc/%d/%s", prisoner->pid, file);
	struct husk_error err = { 0 };
	char *text = file_read(path, 1u << 20, NULL, &err);

	if (!text)
		fail_msg("%s", err.message);
	return text;
}

static void assert_line(const char *text, const char *line)
{
	cleanup_free char *framed = str_format("\n%s\n", line);

	if (!strstr(text, framed))
		fail_msg("no line '%s' in: %s", line, text);
}

static bool shares(const struct prisoner *prisoner, const char *kind)
{
	cleanup_free char *theirs = str_format("/proc/%d/ns/%s", prisoner->pid, kind);
	cleanup_free char *ours = str_format("/proc/self/ns/%s", kind);
	struct stat a, b;

	assert_int_equal(stat(theirs, &a), 0);
	assert_int_equal(stat(ours, &b), 0);
	return a.st_ino == b.st_ino;
}

/* ---- the stages ---- */

static int stage_limit(struct husk_error *err)
{
	return jail_limit(&jail, err);
}

static void test_limits(void **state)
{
	static const char *const lines[] = {
		"Max core file size        0                    0                    bytes",
		"Max open files            64                   64                   files",
		"Max processes             20                   20                   processes",
		"Max file size             1048576              1048576              bytes",
		"Max locked memory         0                    0                    bytes"
	};
	struct prisoner prisoner;
	cleanup_free char *limits = NULL;

	(void)state;
	need_root();
	prisoner = take_in(stage_limit);
	limits = of(&prisoner, "limits");
	for (size_t i = 0; i < ARRAY_SIZE(lines); i++)
		if (!strstr(limits, lines[i]))
			fail_msg("no '%s' in: %s", lines[i], limits);
	let_go(&prisoner);
}

static int stage_network(struct husk_error *err)
{
	return jail_leave_network(&jail, err);
}

static void test_network(void **state)
{
	struct prisoner first, second;
	cleanup_free char *path = NULL, *devices = NULL;
	size_t lines = 0;

	(void)state;
	need_root();
	first = take_in(stage_network);
	assert_false(shares(&first, "net"));
	devices = of(&first, "net/dev");
	for (const char *at = devices; *at; at++)
		lines += *at == '\n';
	assert_int_equal(lines, 3); /* two of headings, and the loopback */
	assert_non_null(strstr(devices, "lo:"));

	path = str_format("/proc/%d/ns/net", first.pid);
	jail.netns = open(path, O_RDONLY | O_CLOEXEC);
	assert_true(jail.netns >= 0);
	second = take_in(stage_network);
	close(steal_fd(&jail.netns));
	cleanup_free char *theirs = str_format("/proc/%d/ns/net", second.pid);
	struct stat a, b;
	assert_int_equal(stat(path, &a), 0);
	assert_int_equal(stat(theirs, &b), 0);
	assert_int_equal(a.st_ino, b.st_ino);
	let_go(&second); /* the younger first: it has a copy of what holds the other */
	let_go(&first);
}

static int stage_host(struct husk_error *err)
{
	return jail_leave_host(err);
}

static void test_host(void **state)
{
	static const char *const kinds[] = { "ipc", "uts", "cgroup", "pid" };
	struct prisoner prisoner;
	char said[1024];

	(void)state;
	need_root();
	prisoner = take_in(stage_host);
	for (size_t i = 0; i < ARRAY_SIZE(kinds); i++)
		assert_false(shares(&prisoner, kinds[i]));
	let_go(&prisoner);
	/* Started in any other way, it would see the host's processes. */
	prisoner = take(stage_host, 0, said, sizeof(said));
	assert_non_null(strstr(said, "not the first process of a pid namespace"));
	let_go(&prisoner);
}

/* What no path leads to, seen from inside. */
static int stage_files(struct husk_error *err)
{
	static const char *const gone[] = { "/proc", "/dev/null", "/etc/passwd", "/../etc", "/tmp" };
	size_t entries = 0;
	DIR *root;

	if (jail_leave_files(&jail, err) < 0)
		return -1;
	for (size_t i = 0; i < ARRAY_SIZE(gone); i++)
		if (access(gone[i], F_OK) == 0)
			return husk_fail(err, HUSK_INTERNAL, "%s is still there", gone[i]);
	root = opendir("/");
	while (root && readdir(root))
		entries++;
	if (!root || entries != 2)
		return husk_fail(err, HUSK_INTERNAL, "the root has %zu entries", entries);
	closedir(root);
	if (mkdir("/new", 0755) == 0 || errno != EROFS)
		return husk_fail_errno(err, "the root can be written");
	if (mknod("/kvm", S_IFCHR | 0600, makedev(10, 232)) == 0)
		return husk_fail(err, HUSK_INTERNAL, "a device can be made");
	return 0;
}

static void test_files(void **state)
{
	cleanup_free char *before = file_read("/proc/self/mountinfo", 1u << 20, NULL, NULL), *after = NULL,
			  *inside = NULL;
	struct prisoner prisoner;

	(void)state;
	need_root();
	prisoner = take_in(stage_files);
	assert_false(shares(&prisoner, "mnt"));
	inside = of(&prisoner, "mountinfo");
	assert_ptr_equal(strchr(inside, '\n'), inside + strlen(inside) - 1); /* one mount */
	assert_non_null(strstr(inside, " / / ro,nosuid,nodev,noexec"));
	assert_non_null(strstr(inside, " - tmpfs husk-jail ro,"));
	/* and nothing of it on the host */
	after = file_read("/proc/self/mountinfo", 1u << 20, NULL, NULL);
	assert_string_equal(before, after);
	let_go(&prisoner);
}

static int stage_privileges(struct husk_error *err)
{
	return jail_drop_privileges(&jail, err);
}

static void test_privileges(void **state)
{
	struct prisoner prisoner;
	cleanup_free char *status = NULL;

	(void)state;
	need_root();
	prisoner = take_in(stage_privileges);
	status = of(&prisoner, "status");
	assert_line(status, "CapBnd:\t0000000000000000");
	assert_line(status, "CapAmb:\t0000000000000000");
	let_go(&prisoner);
}

static int stage_identity(struct husk_error *err)
{
	return jail_become(&jail, err);
}

static int stage_root(struct husk_error *err)
{
	struct jail wrong = jail;

	wrong.gid = 0;
	return jail_become(&wrong, err);
}

static void test_identity(void **state)
{
	struct prisoner prisoner;
	cleanup_free char *status = NULL;
	char said[1024];

	(void)state;
	need_root();
	prisoner = take_in(stage_identity);
	status = of(&prisoner, "status");
	assert_line(status, "Uid:\t2113929217\t2113929217\t2113929217\t2113929217");
	assert_line(status, "Gid:\t2113929218\t2113929218\t2113929218\t2113929218");
	assert_line(status, "Groups:\t ");
	assert_line(status, "CapInh:\t0000000000000000");
	assert_line(status, "CapPrm:\t0000000000000000");
	assert_line(status, "CapEff:\t0000000000000000");
	assert_line(status, "NoNewPrivs:\t1");
	let_go(&prisoner);
	prisoner = take(stage_root, CLONE_NEWPID, said, sizeof(said));
	assert_non_null(strstr(said, "root is not a prisoner"));
	let_go(&prisoner);
}

/* Everything, and then what must not work. */
static int stage_all(struct husk_error *err)
{
	struct sockaddr_in anywhere = { .sin_family = AF_INET,
					.sin_port = htons(80),
					.sin_addr = { htonl(0x7f000001) } };
	int fd;

	if (jail_enter(&jail, err) < 0)
		return -1;
	fd = socket(AF_INET, SOCK_STREAM, 0);
	if (fd < 0 || connect(fd, (struct sockaddr *)&anywhere, sizeof(anywhere)) == 0 || errno != ENETUNREACH)
		return husk_fail_errno(err, "connecting: expected an unreachable network");
	if (setuid(0) == 0 || setgid(0) == 0)
		return husk_fail(err, HUSK_INTERNAL, "root again");
	if (kill(2, 0) == 0 || kill(-1, SIGKILL) == 0)
		return husk_fail(err, HUSK_INTERNAL, "somebody is there to be killed");
	if (unshare(CLONE_NEWNS) == 0 || unshare(CLONE_NEWNET) == 0)
		return husk_fail(err, HUSK_INTERNAL, "new namespaces can be had");
	return 0;
}

static void test_all(void **state)
{
	struct prisoner prisoner;
	cleanup_free char *status = NULL;
	static const char *const kinds[] = { "ipc", "uts", "cgroup", "pid", "net", "mnt" };

	(void)state;
	need_root();
	prisoner = take_in(stage_all);
	for (size_t i = 0; i < ARRAY_SIZE(kinds); i++)
		assert_false(shares(&prisoner, kinds[i]));
	status = of(&prisoner, "status");
	assert_line(status, "CapBnd:\t0000000000000000");
	assert_line(status, "CapEff:\t0000000000000000");
	assert_line(status, "NoNewPrivs:\t1");
	let_go(&prisoner);
}

static int stage_check_only(struct husk_error *err)
{
	return jail_check(&jail, err);
}

static int stage_no_files(struct husk_error *err)
{
	if (jail_drop_privileges(&jail, err) < 0 || jail_become(&jail, err) < 0)
		return -1;
	return jail_check(&jail, err);
}

/* The last stage notices when another did not hold. */
static void test_proof(void **state)
{
	struct prisoner prisoner;
	char said[1024];

	(void)state;
	need_root();
	prisoner = take(stage_check_only, CLONE_NEWPID, said, sizeof(said));
	assert_non_null(strstr(said, "the jail does not hold: uid 0"));
	let_go(&prisoner);
	prisoner = take(stage_no_files, CLONE_NEWPID, said, sizeof(said));
	assert_non_null(strstr(said, "files of the host are in reach"));
	let_go(&prisoner);
}

/* ---- starting a program ---- */

/* This very program, started again: says on descriptor 4 what it was given, and ends when descriptor 3 does. */
static int inside_main(void)
{
	cleanup_buf struct buf text = { 0 };
	cleanup_dir DIR *dir = opendir("/proc/self/fd");
	struct dirent *entry;
	char byte;

	buf_printf(&text, "pid %d; environment %s; descriptors", getpid(), environ[0] ? environ[0] : "none");
	while (dir && (entry = readdir(dir)))
		if (entry->d_name[0] != '.' && atoi(entry->d_name) != dirfd(dir))
			buf_printf(&text, " %s", entry->d_name);
	buf_printf(&text, "; umask %03o; session %d\n", umask(0), getsid(0) == getpid());
	(void)!write(1, "log\n", 4);
	(void)!write(4, text.data, text.size);
	(void)!read(3, &byte, 1);
	return 7;
}

static void test_start(void **state)
{
	static const char *const argv[] = { "test_jail", "inside", NULL };
	struct jail_start start = { .program = "/proc/self/exe", .argv = argv, .fd_count = 2 };
	struct husk_error err = { 0 };
	struct cgroup *group = NULL;
	cleanup_free char *groups = NULL;
	int life[2], says[2], logs[2], status, fds[2], leaked, pidfd = -1;
	char text[512] = "";
	pid_t pid;

	(void)state;
	need_root();
	assert_int_equal(pipe2(life, O_CLOEXEC), 0);
	assert_int_equal(pipe2(says, O_CLOEXEC), 0);
	assert_int_equal(pipe2(logs, O_CLOEXEC), 0);
	assert_int_equal(cgroup_create("test-jail", "start", &group, &err), 0);
	leaked = dup2(2, 200); /* without close-on-exec, as a careless library would */
	assert_int_equal(setenv("SECRET", "do not tell", 1), 0);
	unsetenv("HUSK_STRICT"); /* the one thing that is handed on */
	fds[0] = life[0];
	fds[1] = says[1];
	start.fds = fds;
	start.log = logs[1];
	start.cgroup = group;
	if (jail_start(&start, &pid, &pidfd, &err) < 0)
		fail_msg("%s", err.message);
	assert_true(read(says[0], text, sizeof(text) - 1) > 0);
	assert_string_equal(text, "pid 1; environment none; descriptors 0 1 2 3 4; umask 077; session 1\n");
	assert_int_equal(read(logs[0], text, sizeof(text) - 1), 4);
	groups = of(&(struct prisoner){ .pid = pid }, "cgroup");
	assert_non_null(strstr(groups, "husk/test-jail/start"));
	close(life[1]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(WEXITSTATUS(status), 7);
	cgroup_free(group);
	assert_int_equal(cgroup_destroy("test-jail", "start", &err), 0);
	close(leaked);
	close(pidfd);
	for (int i = 0; i < 2; i++) {
		close(says[i]);
		close(logs[i]);
	}
	close(life[0]);
}

static void test_start_fails(void **state)
{
	static const char *const argv[] = { "nothing", NULL };
	struct jail_start start = { .program = "/nonexistent/husk-vmm", .argv = argv, .log = -1 };
	struct husk_error err = { 0 };
	int pidfd = -1, bad = 9999;
	pid_t pid = -1;

	(void)state;
	need_root();
	assert_int_equal(jail_start(&start, &pid, &pidfd, &err), -1);
	assert_string_equal(err.message, "'/nonexistent/husk-vmm' cannot be executed: No such file or directory");
	assert_int_equal(pidfd, -1);
	start.fds = &bad;
	start.fd_count = 1;
	assert_int_equal(jail_start(&start, &pid, &pidfd, &err), -1);
	assert_non_null(strstr(err.message, "cannot take its descriptors"));
	start.fd_count = JAIL_FDS_MAX + 1;
	assert_int_equal(jail_start(&start, &pid, &pidfd, &err), -1);
	assert_non_null(strstr(err.message, "descriptors for a jail"));
	/* no child is left unreaped */
	assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
	assert_int_equal(errno, ECHILD);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_limits),      cmocka_unit_test(test_network),    cmocka_unit_test(test_host),
		cmocka_unit_test(test_files),       cmocka_unit_test(test_privileges), cmocka_unit_test(test_identity),
		cmocka_unit_test(test_all),         cmocka_unit_test(test_proof),      cmocka_unit_test(test_start),
		cmocka_unit_test(test_start_fails),
	};

	if (argc == 2 && str_equal(argv[1], "inside"))
		return inside_main();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
