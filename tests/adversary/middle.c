/*
 * The man in the middle of the hostile agent; see adversary.h. It wraps uplink_open (ld --wrap), so the agent's own files
 * are the real ones: they get one end of a socket pair for a link, and two threads here carry frames between its
 * other end and the host. What a rule breaks is in rules.c.
 */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>

#include "adversary.h"
#include "agent/agent.h"

#define BREAK "/.husk/break"
#define BREAK_AT_BOOT "/.husk/guest/break"

static struct {
	int host_in, host_out, loop;
	pthread_mutex_t out_lock;
	const struct rule *rule; /* NULL: an honest agent */
	int64_t method;          /* 0: at once */
	bool fired;
	uint32_t volume;
	uint32_t victim;
	uint64_t credit;
} middle = { .out_lock = PTHREAD_MUTEX_INITIALIZER };

int __real_uplink_open(struct agent *agent, int in, int out, struct husk_error *err);
int __wrap_uplink_open(struct agent *agent, int in, int out, struct husk_error *err);

/* ---- bytes ---- */

static void wait_for(int fd, short events)
{
	poll(&(struct pollfd){ fd, events, 0 }, 1, -1);
}

static void write_all(int fd, const char *bytes, size_t size)
{
	while (size > 0) {
		ssize_t count = write(fd, bytes, size);
		if (count > 0) {
			bytes += count;
			size -= (size_t)count;
		} else if (errno == EAGAIN) {
			wait_for(fd, POLLOUT);
		} else if (errno != EINTR) {
			pause(); /* the host is gone; the reader ends the agent */
		}
	}
}

static void pause_reading(void)
{
	const struct rule *rule = middle.rule;

	if (!rule || !rule->read_pause_ms || (middle.method && !middle.fired))
		return;
	if (rule->read_pause_ms < 0)
		for (;;)
			pause();
	poll(NULL, 0, rule->read_pause_ms);
}

/* False at the end of the stream. */
static bool read_all(int fd, char *bytes, size_t size)
{
	while (size > 0) {
		size_t part = size;
		wait_for(fd, POLLIN);
		if (fd == middle.host_in) {
			pause_reading();
			part = middle.rule && middle.rule->read_pause_ms ? 1 : size;
		}
		ssize_t count = read(fd, bytes, part);
		if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR))
			return false;
		bytes += MAX(count, 0);
		size -= (size_t)MAX(count, 0);
	}
	return true;
}

static bool read_frame(int fd, struct wire_header *header, char *payload)
{
	uint8_t bytes[WIRE_HEADER_SIZE];
	struct husk_error err = { 0 };

	if (!read_all(fd, (char *)bytes, sizeof(bytes)))
		return false;
	if (wire_header_decode(bytes, header, &err) < 0)
		agent_die("middle: %s", err.message);
	return read_all(fd, payload, header->size);
}

static void write_frame(int fd, const struct wire_header *header, const void *payload)
{
	cleanup_buf struct buf frame = { 0 };
	uint8_t bytes[WIRE_HEADER_SIZE];

	wire_header_encode(header, bytes);
	if (buf_append(&frame, bytes, sizeof(bytes)) < 0 || buf_append(&frame, payload, header->size) < 0)
		agent_die("middle: out of memory");
	write_all(fd, frame.data, frame.size);
}

void tell_bytes(const void *bytes, size_t size)
{
	pthread_mutex_lock(&middle.out_lock);
	write_all(middle.host_out, bytes, size);
	pthread_mutex_unlock(&middle.out_lock);
}

void tell(uint32_t channel, unsigned type, unsigned stream, const void *payload, size_t size)
{
	pthread_mutex_lock(&middle.out_lock);
	write_frame(middle.host_out, &(struct wire_header){ (uint32_t)size, channel, (uint8_t)type, (uint8_t)stream },
		    payload ? payload : "");
	pthread_mutex_unlock(&middle.out_lock);
}

/* ---- for the rules ---- */

uint32_t volume_channel(void)
{
	return middle.volume;
}

uint64_t credit_given(void)
{
	return __atomic_load_n(&middle.credit, __ATOMIC_RELAXED);
}

void hang_up(void)
{
	close(middle.host_out); /* the thread that reads from the agent must not find another file under the number */
	middle.host_out = open("/dev/null", O_WRONLY | O_CLOEXEC);
}

void pass_on(const struct victim *victim)
{
	if (victim->header)
		write_frame(middle.loop, victim->header, victim->payload);
}

/* ---- arming ---- */

static void *act_alone(void *argument)
{
	struct victim *victim = argument;

	middle.rule->act(victim);
	for (;;)
		pause();
	return NULL;
}

static void act_aside(const struct victim *victim)
{
	static struct victim kept;
	pthread_t thread;

	kept = (struct victim){ .channel = victim->channel, .method = victim->method };
	if (pthread_create(&thread, NULL, act_alone, &kept) != 0)
		agent_die("middle: no thread");
}

static int arm(const char *name, int64_t method)
{
	const struct rule *rule = rule_find(name);

	if (!rule)
		return 1;
	middle.method = method;
	middle.fired = false;
	middle.rule = rule;
	return 0;
}

static void start_armed(void)
{
	if (middle.rule && !middle.method && middle.rule->act)
		act_aside(&(struct victim){ .channel = 0 });
}

/* `husk exec BOX -- /.husk/break RULE [METHOD]`, answered as if a process had run. */
static bool is_break(uint32_t channel, const char *payload, size_t size)
{
	cleanup_strv char **words = wire_get_strings(payload, size, TAG_ARG);
	cleanup_buf struct buf started = { 0 }, end = { 0 };

	if (wire_get_int(payload, size, TAG_METHOD, 0) != METHOD_EXEC || !words || !str_equal(words[0], BREAK) ||
	    !words[1])
		return false;
	int code = arm(words[1], words[2] ? strtoll(words[2], NULL, 10) : 0);
	wire_put_int(&started, TAG_PID, 2);
	wire_put_int(&end, TAG_STATUS, HUSK_OK);
	wire_put_int(&end, TAG_PID, 2);
	wire_put_int(&end, TAG_EXIT_CODE, code);
	tell(channel, WIRE_MSG, 0, started.data, started.size);
	tell(channel, WIRE_END, 0, end.data, end.size);
	if (code == 0)
		start_armed();
	return true;
}

/* ---- the two directions ---- */

static enum verdict judge_open(const struct wire_header *header, const char *payload)
{
	int64_t method = wire_get_int(payload, header->size, TAG_METHOD, 0);
	struct victim victim = { header->channel, method, header, payload };

	if (method == METHOD_VOLUME)
		middle.volume = header->channel;
	if (is_break(header->channel, payload, header->size))
		return SWALLOW;
	if (!middle.rule || !middle.method || middle.method != method)
		return PASS;
	middle.fired = true;
	middle.victim = header->channel;
	middle.credit = WIRE_WINDOW;
	if (!middle.rule->act)
		return PASS;
	if (!middle.rule->aside)
		return middle.rule->act(&victim);
	act_aside(&victim);
	return SWALLOW;
}

static void *carry_from_host(void *argument)
{
	char *payload = argument;
	struct wire_header header;

	while (read_frame(middle.host_in, &header, payload)) {
		if (header.type == WIRE_OPEN && judge_open(&header, payload) == SWALLOW)
			continue;
		if (header.type == WIRE_CREDIT && header.channel == middle.victim && header.stream == STREAM_OUT) {
			uint32_t more;
			memcpy(&more, payload, sizeof(more));
			__atomic_add_fetch(&middle.credit, more, __ATOMIC_RELAXED);
		}
		write_frame(middle.loop, &header, payload);
	}
	shutdown(middle.loop, SHUT_RDWR);
	return NULL;
}

static void *carry_from_agent(void *argument)
{
	char *payload = argument;
	struct wire_header header;

	while (read_frame(middle.loop, &header, payload)) {
		const struct rule *rule = middle.rule;
		if (rule && rule->filter && (!middle.method || middle.fired) &&
		    rule->filter(&header, payload) == SWALLOW)
			continue;
		tell(header.channel, header.type, header.stream, payload, header.size);
	}
	return NULL;
}

/* ---- the start ---- */

static void arm_at_boot(void)
{
	cleanup_free char *text = file_read(BREAK_AT_BOOT, 256, NULL, NULL);

	if (!text)
		return;
	text[strcspn(text, "\n")] = '\0';
	char *space = strchr(text, ' ');
	if (space)
		*space++ = '\0';
	if (arm(text, space ? strtoll(space, NULL, 10) : 0) != 0)
		agent_die("middle: no rule '%s'", text);
}

static int start_thread(void *(*run)(void *))
{
	char *payload = malloc(WIRE_PAYLOAD_MAX);
	sigset_t all, before;
	pthread_t thread;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int failed = payload ? pthread_create(&thread, NULL, run, payload) : ENOMEM;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return failed;
}

int __wrap_uplink_open(struct agent *agent, int in, int out, struct husk_error *err)
{
	int pair[2];

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
		return husk_fail_errno(err, "middle");
	int loop_in = fcntl(pair[0], F_DUPFD_CLOEXEC, 64), loop_out = fcntl(pair[0], F_DUPFD_CLOEXEC, 64);
	middle.loop = fcntl(pair[1], F_DUPFD_CLOEXEC, 64);
	close(pair[0]);
	close(pair[1]);
	middle.host_in = in;
	middle.host_out = out;
	arm_at_boot();
	if (start_thread(carry_from_host) != 0 || start_thread(carry_from_agent) != 0)
		return husk_fail(err, HUSK_INTERNAL, "middle: no thread");
	start_armed();
	return __real_uplink_open(agent, loop_in, loop_out, err);
}
