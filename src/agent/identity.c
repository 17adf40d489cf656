/*
 * METHOD_IDENTITY: gives a restored machine its own identity (name, machine-id, entropy, clock, network, limits,
 * environment) and drops the channels of the machine it was copied from. No process of the guest may continue before all of
 * that holds.
 */
#include <fcntl.h>
#include <sys/ioctl.h>
#include <time.h>

#include "agent/agent.h"
#include "agent/environment.h"
#include "base/log.h"

/* From <linux/random.h>, which musl does not provide. */
#define RNDADDENTROPY _IOW('R', 0x03, int[2])
#define RNDRESEEDCRNG _IO('R', 0x07)

#define HOSTS_MAX (1024u * 1024u)
#define HOSTS_ADDRESS "127.0.1.1"
#define CLOCK_CLOSE_MS 50
#define LIMITS_FILE "/run/husk/limits" /* beside the environment's, in a directory that exists */

/* Written in place: no other process runs now, and a rename for each file would make the start of a sandbox slower. */
static int put_file(const char *path, const char *data, size_t size, mode_t mode, struct husk_error *err)
{
	cleanup_close int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);

	if (fd < 0 || write_full(fd, data, size) < 0)
		return husk_fail_errno(err, "cannot write '%s'", path);
	return 0;
}

static int set_machine_id(const char *id, struct husk_error *err)
{
	char line[34];

	snprintf(line, sizeof(line), "%s\n", id);
	if (put_file("/etc/machine-id", line, 33, 0444, err) < 0)
		return -1;
	/* Usually a link to /etc/machine-id. If it is a file of its own, it must not keep the old id. */
	if (access("/var/lib/dbus", F_OK) == 0) {
		unlink("/var/lib/dbus/machine-id");
		if (symlink("/etc/machine-id", "/var/lib/dbus/machine-id") < 0)
			return husk_fail_errno(err, "cannot renew '/var/lib/dbus/machine-id'");
	}
	return 0;
}

/* Writes /etc/hosts with the sandbox's line in the place of the old one, or at the end. */
static int set_hosts(const char *name, struct husk_error *err)
{
	cleanup_buf struct buf hosts = { 0 };
	cleanup_free char *before = NULL;

	if (access("/etc/hosts", F_OK) == 0) {
		before = file_read("/etc/hosts", HOSTS_MAX, NULL, err);
		if (!before)
			return -1;
	} else if (buf_append_string(&hosts, "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n") < 0) {
		return husk_fail_memory(err);
	}
	char *rest = before;
	for (char *line = before ? strsep(&rest, "\n") : NULL; line; line = strsep(&rest, "\n")) {
		if (line[0] != '\0' && !str_starts(line, HOSTS_ADDRESS) && buf_printf(&hosts, "%s\n", line) < 0)
			return husk_fail_memory(err);
	}
	if (buf_printf(&hosts, HOSTS_ADDRESS "\t%s\n", name) < 0)
		return husk_fail_memory(err);
	return put_file("/etc/hosts", hosts.data, hosts.size, 0644, err);
}

static int set_hostname(const char *name, struct husk_error *err)
{
	cleanup_free char *line = str_format("%s\n", name);

	if (!line)
		return husk_fail_memory(err);
	if (strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-.") != strlen(name))
		return husk_fail(err, HUSK_INVALID, "host name '%.80s' is not of letters, digits, - and .", name);
	if (sethostname(name, strlen(name)) < 0)
		return husk_fail_errno(err, "cannot set the host name");
	if (put_file("/etc/hostname", line, strlen(line), 0644, err) < 0)
		return -1;
	return set_hosts(name, err);
}

/* Mixes the seed into the pool, and credits it if the kernel supports that. gVisor takes its randomness from the host
 * and does not support these requests. */
static int mix_entropy(const struct wire_field *seed, struct husk_error *err)
{
	struct {
		int bits, bytes;
		char data[256];
	} pool = { 0 };
	cleanup_close int fd = open("/dev/urandom", O_RDWR | O_CLOEXEC);

	if (fd < 0 || write_full(fd, seed->data, seed->size) < 0)
		return husk_fail_errno(err, "cannot add entropy");
	pool.bytes = (int)MIN(seed->size, sizeof(pool.data));
	pool.bits = 8 * pool.bytes;
	memcpy(pool.data, seed->data, (size_t)pool.bytes);
	if (ioctl(fd, RNDADDENTROPY, &pool) < 0 && errno != ENOTTY && errno != EPERM && errno != EINVAL)
		return husk_fail_errno(err, "cannot add entropy");
	if (ioctl(fd, RNDRESEEDCRNG) < 0 && errno != ENOTTY && errno != EPERM && errno != EINVAL && errno != ENODATA)
		return husk_fail_errno(err, "cannot renew the random generator");
	return 0;
}

/* `wall_ms` is when the request was sent, so on a slow host it lies in the past. This sets a clock that stood still in
 * the image. Only the host knows how long the request took, so the host checks the result. */
static int set_clock(int64_t wall_ms, struct husk_error *err)
{
	int64_t off = time_wall_ms() - wall_ms;
	const struct timespec now = { .tv_sec = wall_ms / 1000, .tv_nsec = wall_ms % 1000 * 1000000 };

	if (off <= CLOCK_CLOSE_MS && off >= -CLOCK_CLOSE_MS)
		return 0;
	/* If the clock is the host's own, setting it is not permitted and not needed. */
	if (clock_settime(CLOCK_REALTIME, &now) < 0 && errno != EPERM)
		return husk_fail_errno(err, "cannot set the clock");
	return 0;
}

static int set_process_limit(const struct agent *agent, int64_t limit, struct husk_error *err)
{
	char text[32];
	int size = snprintf(text, sizeof(text), "%lld\n", (long long)limit);

	if (agent->group_max < 0) /* not PID 1: there is no group to limit */
		return 0;
	if (pwrite(agent->group_max, text, (size_t)size, 0) != size)
		return husk_fail_errno(err, "cannot limit the number of processes");
	return 0;
}

static int set_memory_limit(const struct agent *agent, int64_t limit, struct husk_error *err)
{
	char text[32];
	int size = snprintf(text, sizeof(text), "%lld\n", (long long)limit);

	if (agent->group_memory < 0 || limit <= 0)
		return 0;
	/* A copy may get less memory than its parent used: the kernel reclaims the excess, or kills. */
	if (pwrite(agent->group_memory, text, (size_t)size, 0) != size && errno != EBUSY)
		return husk_fail_errno(err, "cannot limit memory");
	return 0;
}

/* Sets the machine's own identity. If the agent is not PID 1 (in tests), the machine is the host, and nothing is
 * set. */
static int set_machine(const struct request *request, struct husk_error *err)
{
	cleanup_free char *hostname = NULL, *machine_id = NULL;
	int64_t wall_ms = request_int(request, TAG_TIME_MS, 0);
	struct wire_field seed;

	if (getpid() != 1)
		return 0;
	if (request_string(request, TAG_HOSTNAME, &hostname, err) < 0 ||
	    request_string(request, TAG_MACHINE_ID, &machine_id, err) < 0)
		return -1;
	if (wall_ms && set_clock(wall_ms, err) < 0)
		return -1;
	if (wire_find(request->data, request->size, TAG_ENTROPY, &seed) && mix_entropy(&seed, err) < 0)
		return -1;
	log_set_sandbox(hostname);
	if (hostname && set_hostname(hostname, err) < 0)
		return -1;
	if (network_apply(request, true, err) < 0)
		return -1;
	return machine_id ? set_machine_id(machine_id, err) : 0;
}

/* Programs find the other limits where they always look (limits.c). With a disk that is a directory of the host, gVisor's statfs
 * reports the host's filesystem, so the size of the disk is in a file. */
static void publish_disk(int64_t bytes)
{
	cleanup_free char *text = str_format("disk_bytes=%lld\n", (long long)bytes);
	struct husk_error why = { 0 };

	if (getpid() == 1 && bytes > 0 && text && put_file(LIMITS_FILE, text, strlen(text), 0644, &why) < 0)
		log_line(LOG_WARN, "%s", why.message);
}

int identity_answer(struct agent *agent, const struct request *request, struct buf *results, struct husk_error *err)
{
	cleanup_strv char **environment = request_strings(request, TAG_ENV, err);
	int64_t limit = request_int(request, TAG_PIDS, 0);

	if (!environment || set_machine(request, err) < 0 || (limit && set_process_limit(agent, limit, err) < 0) ||
	    set_memory_limit(agent, request_int(request, TAG_MEMORY, 0), err) < 0)
		return -1;
	agent->memory_limit = request_int(request, TAG_MEMORY, agent->memory_limit);
	agent->disk_full = false;
	environment_adopt(agent, steal_pointer(environment));
	publish_disk(request_int(request, TAG_DISK_TOTAL, 0));
	limits_show(&agent->limits, agent->memory_limit, request_int(request, TAG_CPU_MILLI, 0));

	if (agent->layers.born_ns == 0)
		agent->layers.born_ns = time_wall_ms() * 1000000;
	channel_drop_all(agent);
	buf_free(&agent->link.deferred); /* including frames from before the restore */
	agent->still = request_int(request, TAG_FLAGS, 0) & IDENTITY_STILL;
	freeze_end(agent);
	int bad = wire_put_int(results, TAG_VERSION, WIRE_VERSION) | wire_put_int(results, TAG_TIME_MS, time_wall_ms());
	return bad ? husk_fail_memory(err) : 0;
}

int limits_answer(struct agent *agent, const struct request *request, struct buf *results, struct husk_error *err)
{
	int64_t memory = request_int(request, TAG_MEMORY, 0);

	(void)results;
	if (set_memory_limit(agent, memory, err) < 0)
		return -1;
	agent->memory_limit = memory;
	limits_show(&agent->limits, memory, request_int(request, TAG_CPU_MILLI, 0));
	return 0;
}
