/*
 * How the leash opens its sockets and then gives up all other rights. It starts as root in the host's namespaces. After
 * jail_drop it has a uid of its own, no capability, an empty root, and a short list of system calls. A guest that takes
 * it over can open connections from the host, which is the leash's purpose, but can reach nothing else of the host.
 *
 * No privilege may be needed after jail_drop, and none can be regained.
 */
#include <fcntl.h>
#include <sched.h>
#include <seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include <grp.h>

#include "net/leash_proxy.h"
#include "net/netlink.h"

#define BACKLOG 512
#define FILES_MAX 32768
#define THREADS_MAX (POLICY_CONNECTIONS_MAX + 256)

/* ---- stage 1: sockets in the gateway namespace ---- */

static int open_socket(int kind, struct in_addr address, uint16_t port, bool transparent)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr = address, .sin_port = htons(port) };
	cleanup_close int fd = socket(AF_INET, kind | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	const int on = 1;

	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) < 0)
		return -1;
	if (transparent && setsockopt(fd, IPPROTO_IP, IP_TRANSPARENT, &on, sizeof(on)) < 0)
		return -1;
	if (transparent && kind == SOCK_DGRAM && setsockopt(fd, IPPROTO_IP, IP_RECVORIGDSTADDR, &on, sizeof(on)) < 0)
		return -1;
	if (bind(fd, (struct sockaddr *)&at, sizeof(at)) < 0 || (kind == SOCK_STREAM && listen(fd, BACKLOG) < 0))
		return -1;
	return steal_fd(&fd);
}

static int open_inside(struct proxy *proxy)
{
	const struct in_addr any = { INADDR_ANY };

	proxy->tcp = open_socket(SOCK_STREAM, any, LEASH_TCP_PORT, true);
	proxy->udp = open_socket(SOCK_DGRAM, any, LEASH_UDP_PORT, true);
	proxy->dns = open_socket(SOCK_DGRAM, proxy->resolver, 53, false);
	proxy->dns_tcp = open_socket(SOCK_STREAM, proxy->resolver, 53, false);
	/* Sends packets with any source address; only the guest can receive them. */
	proxy->raw = socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_RAW);
	return proxy->tcp < 0 || proxy->udp < 0 || proxy->dns < 0 || proxy->dns_tcp < 0 || proxy->raw < 0 ? -1 : 0;
}

int jail_open_sockets(struct proxy *proxy, int gateway_space, struct husk_error *err)
{
	cleanup_close int home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);

	if (home < 0 || setns(gateway_space, CLONE_NEWNET) < 0)
		return husk_fail_errno(err, "cannot enter the gateway namespace");
	if (open_inside(proxy) < 0)
		return husk_fail_errno(err, "cannot open the leash's sockets in the gateway namespace");
	if (setns(home, CLONE_NEWNET) < 0)
		return husk_fail_errno(err, "cannot return to the host's network namespace");
	proxy->route = netlink_open(err);
	return proxy->route < 0 ? -1 : 0;
}

/* ---- stage 2: an empty root ---- */

static int empty_root(struct husk_error *err)
{
	/* Mounted over a directory that every host has; it is no longer visible afterwards anyway. */
	if (unshare(CLONE_NEWNS) < 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
	    mount("none", "/proc", "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, "size=4k,mode=555") < 0 ||
	    chdir("/proc") < 0 || syscall(SYS_pivot_root, ".", ".") < 0 || umount2(".", MNT_DETACH) < 0 ||
	    chdir("/") < 0)
		return husk_fail_errno(err, "cannot give the leash an empty root");
	return 0;
}

/* ---- stage 3: a uid of its own ---- */

/* Lowers a limit to `value`. Never raises it: that requires a capability that not every root has. */
static int limit(int resource, rlim_t value)
{
	struct rlimit both;

	if (getrlimit(resource, &both) < 0)
		return -1;
	both.rlim_max = MIN(both.rlim_max, value);
	both.rlim_cur = both.rlim_max;
	return setrlimit(resource, &both);
}

static int drop_ids(uint32_t uid, struct husk_error *err)
{
	signal(SIGXFSZ, SIG_IGN); /* reaching the limit loses a log line, and nothing else */
	if (limit(RLIMIT_NOFILE, FILES_MAX) < 0 || limit(RLIMIT_NPROC, THREADS_MAX) < 0 || limit(RLIMIT_CORE, 0) < 0 ||
	    limit(RLIMIT_FSIZE, 0) < 0)
		return husk_fail_errno(err, "cannot set the leash's limits");
	if (setgroups(0, NULL) < 0 || setresgid(uid, uid, uid) < 0 || setresuid(uid, uid, uid) < 0 ||
	    prctl(PR_SET_DUMPABLE, 0) < 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		return husk_fail_errno(err, "cannot give up the leash's privileges");
	return 0;
}

/* ---- stage 4: system calls ---- */

static const int allowed_calls[] = {
	/* bytes */
	SCMP_SYS(read),
	SCMP_SYS(write),
	SCMP_SYS(readv),
	SCMP_SYS(writev),
	SCMP_SYS(pread64),
	SCMP_SYS(close),
	SCMP_SYS(splice),
	SCMP_SYS(pipe2),
	SCMP_SYS(fcntl),
	SCMP_SYS(fstat),
	SCMP_SYS(newfstatat),
	SCMP_SYS(lseek),
	/* sockets; socket() itself is below */
	SCMP_SYS(accept4),
	SCMP_SYS(connect),
	SCMP_SYS(sendto),
	SCMP_SYS(recvfrom),
	SCMP_SYS(sendmsg),
	SCMP_SYS(recvmsg),
	SCMP_SYS(shutdown),
	SCMP_SYS(getsockname),
	SCMP_SYS(getpeername),
	SCMP_SYS(getsockopt),
	SCMP_SYS(setsockopt),
	SCMP_SYS(poll),
	SCMP_SYS(ppoll),
	/* memory */
	SCMP_SYS(brk),
	SCMP_SYS(mmap),
	SCMP_SYS(munmap),
	SCMP_SYS(mremap),
	SCMP_SYS(mprotect),
	SCMP_SYS(madvise),
	/* threads, time, the rest of the C library */
	SCMP_SYS(futex),
	SCMP_SYS(set_robust_list),
	SCMP_SYS(rseq),
	SCMP_SYS(exit),
	SCMP_SYS(exit_group),
	SCMP_SYS(rt_sigprocmask),
	SCMP_SYS(rt_sigaction),
	SCMP_SYS(rt_sigreturn),
	SCMP_SYS(sigaltstack),
	SCMP_SYS(restart_syscall),
	SCMP_SYS(sched_yield),
	SCMP_SYS(sched_getaffinity),
	SCMP_SYS(gettid),
	SCMP_SYS(getpid),
	SCMP_SYS(tgkill),
	SCMP_SYS(clock_gettime),
	SCMP_SYS(clock_nanosleep),
	SCMP_SYS(nanosleep),
	SCMP_SYS(gettimeofday),
	SCMP_SYS(getrandom),
	SCMP_SYS(prlimit64),
	SCMP_SYS(membarrier),
};

static int add_special(scmp_filter_ctx filter)
{
	static const int families[] = { AF_INET, AF_INET6 }, kinds[] = { SOCK_STREAM, SOCK_DGRAM };
	const scmp_datum_t kind_bits = ~(scmp_datum_t)(SOCK_CLOEXEC | SOCK_NONBLOCK);
	int bad = 0;

	for (size_t i = 0; i < ARRAY_SIZE(families) * ARRAY_SIZE(kinds); i++)
		bad |= seccomp_rule_add(
			filter, SCMP_ACT_ALLOW, SCMP_SYS(socket), 2,
			SCMP_A0(SCMP_CMP_EQ, (scmp_datum_t)families[i / ARRAY_SIZE(kinds)]),
			SCMP_A1(SCMP_CMP_MASKED_EQ, kind_bits, (scmp_datum_t)kinds[i % ARRAY_SIZE(kinds)]));
	/* A thread, never a process. A filter cannot see the flags of clone3, so it fails as not implemented. */
	bad |= seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(clone), 1,
				SCMP_A0(SCMP_CMP_MASKED_EQ, CLONE_THREAD, CLONE_THREAD));
	bad |= seccomp_rule_add(filter, SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(clone3), 0);
	return bad;
}

static int filter_calls(struct husk_error *err)
{
	scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ERRNO(EPERM));
	int bad = filter ? 0 : -ENOMEM;

	for (size_t i = 0; !bad && i < ARRAY_SIZE(allowed_calls); i++)
		bad = seccomp_rule_add(filter, SCMP_ACT_ALLOW, allowed_calls[i], 0);
	if (!bad)
		bad = add_special(filter);
	if (!bad)
		bad = seccomp_load(filter);
	if (filter)
		seccomp_release(filter);
	errno = -bad;
	return bad ? husk_fail_errno(err, "cannot filter the leash's system calls") : 0;
}

int jail_drop(uint32_t uid, struct husk_error *err)
{
	if (empty_root(err) < 0 || drop_ids(uid, err) < 0)
		return -1;
	return filter_calls(err);
}
