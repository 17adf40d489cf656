/*
 * The jailed process of a volume: it answers, it ends with whoever started it and when it is told to, hanging or not, and
 * from inside its jail nothing is reached but the files of the volume. Needs root; skips without.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>

#include "volume/nodes.h"
#include "volume/process.h"

#include "scratch.h"

#define LIMIT (1u << 20)
#define OWN_UID (VOLUME_UID_BASE + 0x3fffu)
#define WAIT_MS 20000

static char message[VOLUME_MESSAGE_MAX];

static void need_root(void)
{
	if (geteuid() != 0) {
		print_message("skipped: not root\n");
		skip();
	}
}

static int fresh(void **state)
{
	(void)state;
	dir_remove(at("volume"), NULL);
	return volume_make(at("volume"), NULL);
}

/* ---- talking to it ---- */

static struct volume_process launch(bool read_only, const char *table)
{
	static char directory[256];
	const struct volume_spec spec = { .program = "/proc/self/exe",
					  .directory = directory,
					  .root = -1,
					  .limit = LIMIT,
					  .read_only = read_only,
					  .uid = OWN_UID,
					  .table = table };
	struct volume_process process;
	struct husk_error err = { 0 };

	snprintf(directory, sizeof(directory), "%s", at("volume"));
	if (volume_process_start(&spec, &process, &err) < 0)
		fail_msg("%s", err.message);
	return process;
}

/* The next message; 0: the process has closed its end. */
static uint32_t hear(struct volume_process *process, size_t *size)
{
	struct volume_message head;
	size_t got = 0, whole = sizeof(head);
	char *into = (char *)&head;

	while (got < whole) {
		struct pollfd wait = { .fd = process->socket, .events = POLLIN };
		assert_int_equal(poll(&wait, 1, WAIT_MS), 1);
		ssize_t count = recv(process->socket, into + got, whole - got, 0);
		if (count <= 0)
			return 0;
		got += (size_t)count;
		if (into == (char *)&head && got == whole) {
			assert_true(head.size <= sizeof(message));
			into = message;
			got = 0;
			whole = head.size;
		}
	}
	*size = head.size;
	return head.kind;
}

static struct volume_process start_ready(bool read_only, const char *table)
{
	struct volume_process process = launch(read_only, table);
	size_t size;

	if (hear(&process, &size) != VOLUME_READY)
		fail_msg("not ready: %.*s", (int)size, message);
	return process;
}

static void say(struct volume_process *process, uint32_t kind, uint32_t claimed, const void *bytes, size_t size)
{
	struct volume_message head = { kind, claimed };

	assert_int_equal(send(process->socket, &head, sizeof(head), MSG_NOSIGNAL), sizeof(head));
	if (size)
		assert_int_equal(send(process->socket, bytes, size, MSG_NOSIGNAL), size);
}

/* A FUSE request; the error of its answer, whose body is in `message` behind a header. */
static int ask(struct volume_process *process, uint32_t opcode, uint64_t node, const void *in, size_t in_size,
	       const char *name)
{
	size_t name_size = name ? strlen(name) + 1 : 0, size;
	struct fuse_in_header head = { .len = (uint32_t)(sizeof(head) + in_size + name_size),
				       .opcode = opcode,
				       .unique = 3,
				       .nodeid = node,
				       .uid = 1234,
				       .gid = 5678 };
	struct fuse_out_header out;
	char request[4096];

	memcpy(request, &head, sizeof(head));
	if (in_size)
		memcpy(request + sizeof(head), in, in_size);
	if (name_size)
		memcpy(request + sizeof(head) + in_size, name, name_size);
	say(process, VOLUME_REQUEST, head.len, request, head.len);
	assert_int_equal(hear(process, &size), VOLUME_ANSWER);
	memcpy(&out, message, sizeof(out));
	assert_int_equal(out.len, size);
	return out.error;
}

static uint64_t entry(void)
{
	return ((const struct fuse_entry_out *)(message + sizeof(struct fuse_out_header)))->nodeid;
}

/* It has ended, within a generous time. */
static void assert_ended(struct volume_process *process)
{
	struct pollfd over = { .fd = process->pidfd, .events = POLLIN };

	assert_int_equal(poll(&over, 1, WAIT_MS), 1);
	volume_process_end(process, 1000);
}

/* ---- what it does ---- */

static void it_answers_and_keeps_what_it_is_told(void **state)
{
	const struct fuse_mkdir_in mode = { .mode = 0750 };
	const struct fuse_mknod_in file = { .mode = S_IFREG | 0640 };
	struct fuse_setattr_in change = { .valid = FATTR_MODE | FATTR_MTIME, .mode = 0600, .mtime = 86400 };
	struct stat status;

	(void)state;
	need_root();
	assert_int_equal(mkdir(at("volume/data/counted"), 0700), 0); /* nobody has counted this yet */
	struct volume_process process = start_ready(false, NULL);
	assert_int_equal(ask(&process, FUSE_MKDIR, NODE_ROOT, &mode, sizeof(mode), "d"), 0);
	uint64_t directory = entry();
	assert_int_equal(ask(&process, FUSE_MKNOD, directory, &file, sizeof(file), "f"), 0);
	uint64_t node = entry();
	assert_int_equal(ask(&process, FUSE_SETATTR, node, &change, sizeof(change), NULL), 0);
	const struct fuse_link_in link = { .oldnodeid = node };
	assert_int_equal(ask(&process, FUSE_LINK, NODE_ROOT, &link, sizeof(link), "hard"), 0);
	assert_int_equal(stat(at("volume/data/hard"), &status), 0);
	assert_int_equal(status.st_uid, 1234);
	assert_int_equal(status.st_gid, 5678);
	assert_int_equal(status.st_mode & 07777, 0600);
	assert_int_equal(status.st_mtim.tv_sec, 86400);
	assert_int_equal(status.st_nlink, 2);
	/* Somebody else's, closed to everybody: the owner of the volume may. */
	change = (struct fuse_setattr_in){ .valid = FATTR_MODE | FATTR_UID, .uid = 77, .mode = 0 };
	assert_int_equal(ask(&process, FUSE_SETATTR, node, &change, sizeof(change), NULL), 0);
	const struct fuse_open_in open = { .flags = O_RDWR };
	assert_int_equal(ask(&process, FUSE_OPEN, node, &open, sizeof(open), NULL), 0);
	assert_int_equal(ask(&process, FUSE_STATFS, NODE_ROOT, NULL, 0, NULL), 0);
	const struct fuse_statfs_out *left = (const void *)(message + sizeof(struct fuse_out_header));
	assert_int_equal(left->st.bfree, LIMIT / 4096 - 4);
	volume_process_end(&process, WAIT_MS);
}

static void a_table_goes_from_one_to_the_next(void **state)
{
	const struct fuse_mkdir_in mode = { .mode = 0755 };
	cleanup_buf struct buf table = { 0 };
	uint32_t kind;
	size_t size;

	(void)state;
	need_root();
	struct volume_process process = start_ready(false, NULL);
	assert_int_equal(ask(&process, FUSE_MKDIR, NODE_ROOT, &mode, sizeof(mode), "d"), 0);
	uint64_t directory = entry();
	say(&process, VOLUME_SAVE, 0, NULL, 0);
	while ((kind = hear(&process, &size)) == VOLUME_TABLE && size > 0)
		assert_int_equal(buf_append(&table, message, size), 0);
	assert_int_equal(kind, VOLUME_TABLE);
	volume_process_end(&process, WAIT_MS);
	assert_int_equal(file_write_atomic(at("table"), table.data, table.size, 0600, NULL), 0);
	char path[256];
	snprintf(path, sizeof(path), "%s", at("table"));
	process = start_ready(false, path);
	assert_int_equal(ask(&process, FUSE_MKDIR, directory, &mode, sizeof(mode), "e"), 0);
	assert_true(exists(at("volume/data/d/e")));
	volume_process_end(&process, WAIT_MS);
	/* A table that is none. */
	put(path, "no table of names");
	process = launch(false, path);
	assert_int_equal(hear(&process, &size), VOLUME_FAILED);
	assert_ended(&process);
}

static void what_breaks_the_rules_ends_it_alone(void **state)
{
	static const char junk[64] = "junk";
	static const struct {
		uint32_t kind, claimed;
		size_t size;
	} cases[] = {
		{ VOLUME_REQUEST, 1, 1 },
		{ VOLUME_REQUEST, 64, 64 },
		{ VOLUME_REQUEST, UINT32_MAX, 64 },
		{ VOLUME_REQUEST, 0, 0 },
		{ 99, 8, 8 },
		{ VOLUME_ANSWER, 16, 16 },
		{ VOLUME_READY, 0, 0 },
		{ 0, 0, 0 },
	};
	size_t size;

	(void)state;
	need_root();
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct volume_process process = start_ready(false, NULL);
		say(&process, cases[i].kind, cases[i].claimed, junk, cases[i].size);
		assert_int_equal(hear(&process, &size), VOLUME_FAILED);
		assert_ended(&process);
	}
}

/* What an attacker with the host's help could have put there. */
static void nothing_in_the_directory_leads_out(void **state)
{
	static const char *const links[] = { "/etc/shadow", "../../../../../etc/shadow", "/proc/self/root/etc/shadow" };
	const struct fuse_open_in open = { .flags = O_RDWR };
	char name[8];

	(void)state;
	need_root();
	assert_int_equal(mknod(at("volume/data/null"), S_IFCHR | 0666, makedev(1, 3)), 0);
	assert_int_equal(mkfifo(at("volume/data/pipe"), 0666), 0);
	for (size_t i = 0; i < ARRAY_SIZE(links); i++) {
		snprintf(name, sizeof(name), "l%zu", i);
		cleanup_free char *path = str_format("volume/data/%s", name);
		assert_int_equal(symlink(links[i], at(path)), 0);
	}
	struct volume_process process = start_ready(false, NULL);
	assert_int_equal(ask(&process, FUSE_LOOKUP, NODE_ROOT, NULL, 0, "null"), -ENOENT);
	assert_int_equal(ask(&process, FUSE_LOOKUP, NODE_ROOT, NULL, 0, "pipe"), -ENOENT);
	assert_int_equal(ask(&process, FUSE_LOOKUP, NODE_ROOT, NULL, 0, ".."), -EINVAL);
	assert_int_equal(ask(&process, FUSE_LOOKUP, NODE_ROOT, NULL, 0, "../usage"), -EINVAL);
	for (size_t i = 0; i < ARRAY_SIZE(links); i++) {
		snprintf(name, sizeof(name), "l%zu", i);
		assert_int_equal(ask(&process, FUSE_LOOKUP, NODE_ROOT, NULL, 0, name), 0);
		uint64_t link = entry();
		assert_true(ask(&process, FUSE_OPEN, link, &open, sizeof(open), NULL) < 0);
		assert_true(ask(&process, FUSE_LOOKUP, link, NULL, 0, "x") < 0);
	}
	volume_process_end(&process, WAIT_MS);
}

static void ending_does_not_wait_for_one_that_hangs(void **state)
{
	struct volume_process process;

	(void)state;
	need_root();
	process = start_ready(false, NULL);
	pid_t pid = process.pid;
	assert_int_equal(kill(pid, SIGSTOP), 0);
	int64_t start = time_monotonic_ms();
	volume_process_end(&process, 200);
	assert_true(time_monotonic_ms() - start < 5000);
	assert_int_equal(kill(pid, 0), -1);
	/* Killed, it left a count that nobody can trust; the next one makes it anew. */
	process = start_ready(false, NULL);
	assert_int_equal(ask(&process, FUSE_STATFS, NODE_ROOT, NULL, 0, NULL), 0);
	volume_process_end(&process, WAIT_MS);
}

static void *start_and_go(void *data)
{
	*(struct volume_process *)data = start_ready(false, NULL);
	return NULL;
}

/* The socket stays open: it is the kernel that ends it. */
static void it_does_not_outlive_the_thread_that_started_it(void **state)
{
	struct volume_process process;
	pthread_t thread;

	(void)state;
	need_root();
	assert_int_equal(pthread_create(&thread, NULL, start_and_go, &process), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_ended(&process);
}

/* ---- from inside ---- */

static void try_fork(void)
{
	syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
}

static void try_thread(void)
{
	pthread_t thread;

	pthread_create(&thread, NULL, start_and_go, NULL);
}

static void try_exec(void)
{
	execl("/proc/self/exe", "x", NULL);
}

static void try_socket(void)
{
	(void)!socket(AF_UNIX, SOCK_STREAM, 0);
}

static void try_mount(void)
{
	mount("none", "/", "tmpfs", 0, NULL);
}

static void try_handle(void)
{
	syscall(SYS_open_by_handle_at, AT_FDCWD, NULL, O_RDONLY);
}

static void try_uid(void)
{
	(void)!setuid(0);
}

static void try_trace(void)
{
	ptrace(PTRACE_TRACEME, 0, NULL, NULL);
}

static void try_signal(void)
{
	kill(-1, SIGKILL);
}

static void try_device(void)
{
	mknod("/device", S_IFCHR | 0666, makedev(1, 1));
}

static void try_live_on(void)
{
	syscall(SYS_prctl, 1 /* PR_SET_PDEATHSIG */, 0, 0, 0, 0);
}

static void try_chroot(void)
{
	(void)!chroot("/");
}

static void try_program_memory(void)
{
	mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

/* The errno of an attempt to open, 0: it worked. */
static int opening(const char *path, int flags)
{
	int fd = open(path, flags | O_CLOEXEC, 0600);

	return fd < 0 ? errno : 0;
}

struct attempt {
	void (*make)(void); /* NULL: `path` is opened */
	const char *path;
	int flags;
	bool read_only;
	int expected; /* errno */
};

static void attempt(void *data)
{
	const struct attempt *attempt = data;
	struct husk_error err = { 0 };

	if (volume_jail_enter(at("volume/data"), -1, attempt->read_only, LIMIT, OWN_UID, &err) < 0) {
		log_line(LOG_ERROR, "%s", err.message);
		_exit(101);
	}
	if (!attempt->make)
		_exit(opening(attempt->path, attempt->flags));
	attempt->make();
	_exit(100);
}

static int outcome(struct attempt *what)
{
	int status = 0, pidfd = -1;
	pid_t pid = jail_clone(CLONE_NEWPID, attempt, what, &pidfd);

	assert_true(pid > 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	fd_close(&pidfd);
	return status;
}

static void no_call_is_left_that_could_do_harm(void **state)
{
	static void (*const calls[])(void) = { try_fork,    try_thread, try_exec,          try_socket, try_mount,
					       try_handle,  try_uid,    try_trace,         try_signal, try_device,
					       try_live_on, try_chroot, try_program_memory };

	(void)state;
	need_root();
	for (size_t i = 0; i < ARRAY_SIZE(calls); i++) {
		int status = outcome(&(struct attempt){ .make = calls[i] });
		if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGSYS)
			fail_msg("call %zu was let through: status 0x%x", i, (unsigned)status);
	}
}

static void no_path_is_left_that_leads_out(void **state)
{
	struct attempt attempts[] = {
		{ .path = "/etc/passwd", .expected = ENOENT },
		{ .path = "/../../../etc/passwd", .expected = ENOENT },
		{ .path = "/proc/self/root", .expected = ENOENT },
		{ .path = "/dev/null", .expected = ENOENT },
		{ .path = "/usage", .expected = ENOENT },
		{ .path = "/../usage", .expected = ENOENT },
		{ .path = "/shadow", .expected = ENOENT },                /* a link to /etc/shadow */
		{ .path = "/disk", .flags = O_RDWR, .expected = EACCES }, /* a device */
		{ .path = "/closed", .flags = O_RDWR, .expected = 0 },    /* a file of the volume, whosever it is */
		{ .path = "/new", .flags = O_RDWR | O_CREAT, .expected = 0 },
		{ .path = "/closed", .flags = O_RDWR, .read_only = true, .expected = EROFS },
		{ .path = "/newer", .flags = O_RDWR | O_CREAT, .read_only = true, .expected = EROFS },
	};

	(void)state;
	need_root();
	assert_int_equal(symlink("/etc/shadow", at("volume/data/shadow")), 0);
	assert_int_equal(mknod(at("volume/data/disk"), S_IFCHR | 0666, makedev(1, 1)), 0);
	put(at("volume/data/closed"), "x");
	assert_int_equal(chown(at("volume/data/closed"), 4321, 4321), 0);
	assert_int_equal(chmod(at("volume/data/closed"), 0), 0);
	for (size_t i = 0; i < ARRAY_SIZE(attempts); i++) {
		int status = outcome(&attempts[i]);
		if (!WIFEXITED(status) || WEXITSTATUS(status) != attempts[i].expected)
			fail_msg("%s: status 0x%x, errno %d was expected", attempts[i].path, (unsigned)status,
				 attempts[i].expected);
	}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(it_answers_and_keeps_what_it_is_told, fresh),
		cmocka_unit_test_setup(a_table_goes_from_one_to_the_next, fresh),
		cmocka_unit_test_setup(what_breaks_the_rules_ends_it_alone, fresh),
		cmocka_unit_test_setup(nothing_in_the_directory_leads_out, fresh),
		cmocka_unit_test_setup(ending_does_not_wait_for_one_that_hangs, fresh),
		cmocka_unit_test_setup(it_does_not_outlive_the_thread_that_started_it, fresh),
		cmocka_unit_test_setup(no_call_is_left_that_could_do_harm, fresh),
		cmocka_unit_test_setup(no_path_is_left_that_leads_out, fresh),
	};

	if (argc > 1 && str_equal(argv[1], "volume-server"))
		return volume_server_main(argc - 1, argv + 1);
	return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
