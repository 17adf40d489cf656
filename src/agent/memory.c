/*
 * Memory limits in a guest with its own kernel. That kernel kills processes over the limit and records each kill in its
 * log. This file reads the log, marks the process that the killed one belonged to, and informs the supervisor (notices.c).
 * The event loop calls it before children are reaped, so that every END carries the mark. Log lines written by the guest's
 * processes must never count.
 */
#include <fcntl.h>
#include <sys/epoll.h>

#include "agent/agent.h"
#include "agent/guest.h"
#include "agent/process.h"

#define LOG_DEVICE "/dev/kmsg"
#define DROP_CACHES "/proc/sys/vm/drop_caches"
#define RECORD_MAX 8192     /* the kernel's limit for one record */
#define RECORDS_PER_TURN 64 /* bounded, because a guest may fill its log quickly */
#define KERNEL_PRIORITIES 8 /* higher priorities belong to other facilities: no process can write as the kernel */

struct kill {
	pid_t pid;
	char name[32];
};

int memory_open(struct agent *agent, struct husk_error *err)
{
	cleanup_close int fd = open(LOG_DEVICE, O_RDONLY | O_CLOEXEC);

	/* Earlier records are from the boot. */
	if (fd < 0 || lseek(fd, 0, SEEK_END) < 0)
		return husk_fail_errno(err, "cannot read the kernel's log");
	if (source_open(agent, &agent->kernel_log, fd, EPOLLIN | EPOLLET, err) < 0)
		return -1;
	steal_fd(&fd);
	return 0;
}

void memory_give_back(void)
{
	cleanup_close int fd = open(DROP_CACHES, O_WRONLY | O_CLOEXEC);

	if (fd < 0 || write(fd, "1", 1) != 1)
		log_line(LOG_WARN, "cannot give caches back: %s", strerror(errno));
}

/* ---- the kernel's log ---- */

/* "<priority>,<number>,…;Memory cgroup out of memory: Killed process 123 (name) total-vm:…" */
static bool is_kill(const char *record, struct kill *out)
{
	static const char words[] = "emory: Killed process ";
	const char *text = strchr(record, ';'), *name, *end;
	char *rest;

	if (!text || strtoul(record, NULL, 10) >= KERNEL_PRIORITIES || !(text = strstr(text, words)))
		return false;
	out->pid = (pid_t)strtol(text + strlen(words), &rest, 10);
	name = *rest == ' ' && rest[1] == '(' ? rest + 2 : NULL;
	end = name ? strstr(name, ") total-vm:") : NULL;
	if (out->pid <= 1 || !end)
		return false;
	snprintf(out->name, sizeof(out->name), "%.*s", (int)(end - name), name);
	return true;
}

static void take_kill(struct agent *agent, const struct kill *kill)
{
	struct guest_process victim;

	if (guest_find(kill->pid, &victim))
		process_mark_oom(agent, victim.pid, victim.group, victim.session);
	else
		process_expect_oom(agent); /* its parent reaped it before this look, and ends next */
	notice_kill(agent, kill->pid, kill->name);
}

bool memory_read(struct agent *agent)
{
	char record[RECORD_MAX + 1];
	struct kill kill;

	if (agent->kernel_log.fd < 0)
		return false;
	for (int i = 0; i < RECORDS_PER_TURN; i++) {
		ssize_t size = source_read(&agent->kernel_log, record, RECORD_MAX);

		if (size < 0 && errno != EPIPE) /* EPIPE: some records were overwritten before they were read */
			return false;
		record[MAX(size, 0)] = '\0';
		if (size > 0 && is_kill(record, &kill))
			take_kill(agent, &kill);
	}
	return true;
}
