/*
 * LIMITS_WATCH: informs the supervisor that the guest has reached a limit which only the guest can observe. These are processes
 * that the guest's own kernel killed for memory (memory.c), and a full disk. The event loop calls notice_disk.
 */
#include <sys/statvfs.h>

#include "agent/agent.h"

#define KILLS_MAX 16 /* not reported yet; further kills of the same moment are merged */

struct limits_watch {
	struct channel channel;
	struct {
		pid_t pid;
		char name[32];
	} kills[KILLS_MAX];
	size_t count;
	int64_t disk, disk_total; /* of a full disk that is not reported yet; 0: none */
};

static void send_kill(struct agent *agent, struct limits_watch *watch, size_t index)
{
	cleanup_buf struct buf message = { 0 };

	if (wire_put_int(&message, TAG_PID, watch->kills[index].pid) < 0 ||
	    wire_put_string(&message, TAG_NAME, watch->kills[index].name) < 0)
		agent_die("out of memory for a message");
	channel_message(agent, &watch->channel, &message);
}

static void send_disk(struct agent *agent, struct limits_watch *watch)
{
	cleanup_buf struct buf message = { 0 };

	if (wire_put_int(&message, TAG_DISK, watch->disk) < 0 ||
	    wire_put_int(&message, TAG_DISK_TOTAL, watch->disk_total) < 0)
		agent_die("out of memory for a message");
	channel_message(agent, &watch->channel, &message);
	watch->disk_total = 0;
}

static bool limits_watch_pump(struct agent *agent, struct channel *channel)
{
	struct limits_watch *watch = (struct limits_watch *)channel;
	bool full = watch->disk_total && uplink_has_room(agent);
	size_t told = 0;

	if (full)
		send_disk(agent, watch);
	for (; told < watch->count && uplink_has_room(agent); told++)
		send_kill(agent, watch, told);
	watch->count -= told;
	memmove(watch->kills, watch->kills + told, watch->count * sizeof(watch->kills[0]));
	return full || told > 0;
}

static void limits_watch_release(struct agent *agent, struct channel *channel)
{
	(void)agent;
	(void)channel;
}

static const struct channel_ops limits_watch_ops = {
	.cancel = channel_end_cancelled,
	.pump = limits_watch_pump,
	.release = limits_watch_release,
};

int limits_watch_open(struct agent *agent, uint32_t number, const struct request *request, struct husk_error *err)
{
	struct limits_watch *watch = calloc(1, sizeof(*watch));

	(void)request;
	if (!watch)
		return husk_fail_memory(err);
	channel_add(agent, &watch->channel, number, &limits_watch_ops);
	return 0;
}

/* The next watch after `channel`; NULL for the first. */
static struct limits_watch *next_watch(const struct agent *agent, const struct limits_watch *after)
{
	struct channel *channel = after ? after->channel.next : agent->channels;

	while (channel && channel->ops != &limits_watch_ops)
		channel = channel->next;
	return (struct limits_watch *)channel;
}

void notice_kill(struct agent *agent, pid_t pid, const char *name)
{
	for (struct limits_watch *watch = NULL; (watch = next_watch(agent, watch));) {
		if (watch->count == KILLS_MAX)
			continue;
		watch->kills[watch->count].pid = pid;
		snprintf(watch->kills[watch->count].name, sizeof(watch->kills[0].name), "%s", name);
		watch->count++;
	}
}

void notice_disk(struct agent *agent)
{
	struct statvfs found;

	if (!next_watch(agent, NULL) || statvfs("/", &found) < 0)
		return;
	int64_t total = (int64_t)(found.f_blocks * found.f_frsize), left = (int64_t)(found.f_bavail * found.f_frsize);
	bool full = left < WIRE_DISK_SPARE(total);
	for (struct limits_watch *watch = NULL; full && !agent->disk_full && (watch = next_watch(agent, watch));) {
		watch->disk = (int64_t)((found.f_blocks - found.f_bfree) * found.f_frsize);
		watch->disk_total = total;
	}
	if (full || left >= 2 * WIRE_DISK_SPARE(total))
		agent->disk_full = full;
}
