/*
 * The cell of a build's step, from the inside: what somebody who takes the step over could reach. Needs root.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>

#include "jail/cell.h"
#include "scratch.h"
#include "store/rootfs.h"

#define UID_BASE 0x7e000000u

static int run_files(int (*inside)(void *), void *data, const struct cell_file *files, bool executes)
{
	const struct cell cell = { .uid_base = UID_BASE,
				   .files = files,
				   .memory_bytes = 1ull << 30,
				   .file_bytes = 1u << 20,
				   .cpu_seconds = 2,
				   .executes = executes };
	struct husk_error err = { 0 };
	int status = cell_run(&cell, inside, data, &err);

	if (status < 0)
		print_message("%s\n", err.message);
	return status;
}

/* With one directory, "/tree", which is the scratch directory's "tree". */
static int run(int (*inside)(void *), void *data)
{
	cleanup_free char *tree = strdup(at("tree"));
	const struct cell_file files[] = { { tree, "/tree", CELL_WRITE }, { 0 } };

	assert_int_equal(dir_make(tree, 0755, NULL), 0);
	assert_int_equal(chown(tree, UID_BASE, UID_BASE), 0);
	return run_files(inside, data, files, false);
}

/* What `inside` returns is the number of the line that was not as it should be; 0 when all were. */
#define MUST(condition)                                                                                                \
	do {                                                                                                           \
		if (!(condition)) {                                                                                    \
			dprintf(2, "line %d: %s\n", __LINE__, #condition);                                             \
			return 1;                                                                                      \
		}                                                                                                      \
	} while (0)

static int no_network(void *data)
{
	struct sockaddr_in here = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };

	(void)data, (void)here;
	MUST(socket(AF_INET, SOCK_STREAM, 0) < 0);
	MUST(socket(AF_INET6, SOCK_DGRAM, 0) < 0);
	MUST(socket(AF_UNIX, SOCK_STREAM, 0) < 0);
	MUST(socket(AF_NETLINK, SOCK_RAW, 0) < 0);
	MUST(socket(AF_PACKET, SOCK_RAW, 0) < 0);
	return 0;
}

static int no_files_of_the_host(void *data)
{
	static const char *const names[] = { "/etc/passwd", "/proc",     "/proc/self/status",
					     "/sys",        "/dev/null", "/root",
					     "/usr",        "/tmp",      "/var",
					     "/run",        "/bin/sh" };
	struct dirent *entry;
	int seen = 0;

	(void)data;
	for (size_t i = 0; i < ARRAY_SIZE(names); i++)
		MUST(access(names[i], F_OK) < 0);
	cleanup_dir DIR *dir = opendir("/tree/../../..");
	while (dir && (entry = readdir(dir)))
		seen += entry->d_name[0] != '.';
	MUST(dir && seen == 1);
	MUST(open("/new", O_WRONLY | O_CREAT, 0600) < 0);
	MUST(mkdir("/new", 0700) < 0);
	MUST(chroot("/tree") < 0);
	MUST(mount("none", "/tree", "tmpfs", 0, NULL) < 0);
	MUST(mount("proc", "/tree", "proc", 0, NULL) < 0);
	MUST(umount2("/tree", MNT_DETACH) < 0);
	MUST(unshare(CLONE_NEWUSER) < 0 && unshare(CLONE_NEWNS) < 0);
	MUST(mknod("/tree/disk", S_IFBLK | 0600, makedev(8, 0)) < 0);
	MUST(mknod("/tree/null", S_IFCHR | 0600, makedev(1, 3)) < 0);
	return 0;
}

static int no_process_of_the_host(void *data)
{
	pid_t outside = *(pid_t *)data;

	MUST(getpid() == 1);
	MUST(kill(outside, 0) < 0 && kill(-1, 0) < 0);
	MUST(ptrace(PTRACE_ATTACH, outside, NULL, NULL) < 0);
	MUST(syscall(SYS_process_vm_readv, outside, NULL, 0, NULL, 0, 0) < 0);
	MUST(fork() < 0);
	MUST(fcntl(3, F_GETFD) < 0 && fcntl(9, F_GETFD) < 0); /* nothing but the standard ones is open */
	return 0;
}

static int no_power(void *data)
{
	(void)data;
	MUST(getuid() == 0); /* of the cell */
	MUST(sethostname("x", 1) < 0);
	MUST(syscall(SYS_bpf, 0, NULL, 0) < 0);
	MUST(syscall(SYS_keyctl, 0, 0, 0, 0, 0) < 0);
	MUST(syscall(SYS_perf_event_open, NULL, 0, -1, -1, 0) < 0);
	MUST(syscall(SYS_userfaultfd, 0) < 0);
	MUST(syscall(SYS_io_uring_setup, 1, NULL) < 0);
	MUST(setuid(1000) < 0);
	char *const argv[] = { "sh", NULL };
	MUST(execve("/bin/sh", argv, NULL) < 0);
	return 0;
}

static void what_is_inside_reaches_nothing(void **state)
{
	pid_t self = getpid();
	cleanup_close int spare = open("/", O_RDONLY | O_DIRECTORY); /* without O_CLOEXEC, and still not inside */

	(void)state;
	assert_true(spare >= 0);
	assert_int_equal(run(no_network, NULL), 0);
	assert_int_equal(run(no_files_of_the_host, NULL), 0);
	assert_int_equal(run(no_process_of_the_host, &self), 0);
	assert_int_equal(run(no_power, NULL), 0);
}

static int own_files(void *data)
{
	(void)data;
	cleanup_close int fd = open("/tree/file", O_WRONLY | O_CREAT | O_EXCL, 0600);
	MUST(fd >= 0);
	MUST(fchown(fd, 1234, 65535) == 0);
	MUST(fchmod(fd, 04755) == 0);
	MUST(fchown(fd, 70000, 0) < 0); /* no such id */
	MUST(mkfifo("/tree/fifo", 0600) == 0);
	return 0;
}

static void owners_are_its_own(void **state)
{
	struct stat st;

	(void)state;
	assert_int_equal(run(own_files, NULL), 0);
	assert_int_equal(stat(at("tree/file"), &st), 0);
	assert_int_equal(st.st_uid, UID_BASE + 1234);
	assert_int_equal(st.st_gid, UID_BASE + 65535);
	assert_int_equal(st.st_mode & 07777, 04755);
}

/* A file of the host that is brought in can be read as anybody could read it, and not be written. */
static int brought_files(void *data)
{
	(void)data;
	MUST(open("/open", O_RDONLY) >= 0);
	MUST(open("/secret", O_RDONLY) < 0); /* root's on the host */
	MUST(open("/open", O_WRONLY) < 0);
	MUST(chmod("/open", 0777) < 0);
	MUST(unlink("/open") < 0);
	return 0;
}

static void files_of_the_host_stay_the_hosts(void **state)
{
	cleanup_free char *open_file = strdup(at("open")), *secret = strdup(at("secret"));
	const struct cell_file files[] = { { open_file, "/open", CELL_READ }, { secret, "/secret", CELL_READ }, { 0 } };

	(void)state;
	put(open_file, "for all");
	put(secret, "for root");
	assert_int_equal(chmod(secret, 0600), 0);
	assert_int_equal(run_files(brought_files, NULL, files, false), 0);
}

#if !defined(__SANITIZE_ADDRESS__) /* which reserves more than any limit, so that there is none */
static int eat_memory(void *data)
{
	(void)data;
	for (size_t total = 0; total < 2ull << 30; total += 64u << 20) {
		char *piece = malloc(64u << 20);
		if (!piece)
			return 0;
		memset(piece, 1, 4096);
	}
	return 1;
}
#endif

static int fill_disk(void *data)
{
	(void)data;
	cleanup_close int fd = open("/tree/big", O_WRONLY | O_CREAT, 0600);
	signal(SIGXFSZ, SIG_IGN);
	MUST(ftruncate(fd, 2u << 20) < 0 && errno == EFBIG);
	return 0;
}

static int spin(void *data)
{
	(void)data;
	for (volatile unsigned i = 0;; i++)
		;
	return 0;
}

static void limits_hold(void **state)
{
	(void)state;
#if !defined(__SANITIZE_ADDRESS__)
	assert_int_equal(run(eat_memory, NULL), 0);
#endif
	assert_int_equal(run(fill_disk, NULL), 0);
	assert_int_equal(run(spin, NULL), -1); /* two seconds of a processor, then it is ended */
}

/* ---- the unpacker's bounds ---- */

/* A tar with one empty file whose name is as long as one likes: a pax header before it. */
static void write_long_tar(const char *path, const char *name, unsigned uid)
{
	cleanup_buf struct buf tar = { 0 };
	size_t size = strlen(name);
	char digits[16];
	char zeroes[1024] = "";

	/* "<length> path=<name>\n", where the length counts its own digits. */
	size_t record = size + strlen(" path=\n") + 1;
	while ((size_t)snprintf(digits, sizeof(digits), "%zu", record) + size + strlen(" path=\n") != record)
		record++;
	cleanup_free char *pax = str_format("%zu path=%s\n", record, name);
	for (int part = 0; part < 2; part++) {
		char block[512] = "";
		unsigned sum = 0;
		snprintf(block, 100, "%s", part ? "short" : "PaxHeader");
		snprintf(block + 100, 8, "%07o", 0644);
		snprintf(block + 108, 8, "%07o", part ? uid : 0);
		snprintf(block + 116, 8, "%07o", 0);
		snprintf(block + 124, 12, "%011zo", part ? (size_t)0 : record);
		snprintf(block + 136, 12, "%011o", 0);
		memset(block + 148, ' ', 8);
		block[156] = part ? '0' : 'x';
		memcpy(block + 257, "ustar\00000", 8);
		for (size_t i = 0; i < sizeof(block); i++)
			sum += (unsigned char)block[i];
		snprintf(block + 148, 8, "%06o", sum);
		assert_int_equal(buf_append(&tar, block, sizeof(block)), 0);
		if (!part) {
			assert_int_equal(buf_append(&tar, pax, record), 0);
			assert_int_equal(buf_append(&tar, zeroes, (512 - record % 512) % 512), 0);
		}
	}
	assert_int_equal(buf_append(&tar, zeroes, sizeof(zeroes)), 0);
	assert_int_equal(file_write_atomic(path, tar.data, tar.size, 0644, NULL), 0);
}

static int unpack_long(const char *name, unsigned uid, struct husk_error *err)
{
	cleanup_free char *tar = strdup(at("long.tar")), *directory = strdup(at("long"));

	write_long_tar(tar, name, uid);
	dir_remove(directory, NULL);
	assert_int_equal(dir_make(directory, 0755, NULL), 0);
	cleanup_close int fd = open(tar, O_RDONLY | O_CLOEXEC);
	return unpack_tar(fd, tar, "tar", 0, directory, err);
}

static void expect_refused(const char *name, const char *words)
{
	struct husk_error err = { 0 };

	assert_int_equal(unpack_long(name, 0, &err), -1);
	if (!strstr(err.message, words) || strcmp(err.field, "tar") != 0)
		fail_msg("field '%s': '%s' does not say '%s'", err.field, err.message, words);
	assert_int_equal(err.code, HUSK_INVALID);
}

static char *repeat(const char *part, size_t count)
{
	cleanup_buf struct buf name = { 0 };

	for (size_t i = 0; i < count; i++)
		assert_int_equal(buf_append_string(&name, part), 0);
	return buf_steal(&name);
}

static void names_that_nobody_can_have_are_refused(void **state)
{
	cleanup_free char *long_path = repeat("eight-kb/", 910), *part = repeat("x", 256), *deep = repeat("d/", 600);
	cleanup_free char *fits = repeat("0123456789/", 300), *short_deep = repeat("d/", 400);
	struct husk_error err = { 0 };

	(void)state;
	expect_refused(long_path, "'eight-kb/eight-kb");
	expect_refused(long_path, "more than 4032 bytes");
	expect_refused(part, "more than 255 bytes");
	expect_refused(deep, "512 directories deep");
	assert_int_equal(unpack_long("file", 0100000 * 2, &err), -1);
	assert_non_null(strstr(err.message, "0 to 65535"));
	if (unpack_long(fits, 0, &err) < 0 || unpack_long(short_deep, 0, &err) < 0)
		fail_msg("%s", err.message);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_inside_reaches_nothing),         cmocka_unit_test(owners_are_its_own),
		cmocka_unit_test(files_of_the_host_stay_the_hosts),       cmocka_unit_test(limits_hold),
		cmocka_unit_test(names_that_nobody_can_have_are_refused),
	};

	if (geteuid() != 0) {
		print_message("needs root\n");
		return 77;
	}
	return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
