/*
 * The agent's first answer, for bench/lab.py: of a machine of ours, or of one that another monitor runs. Run inside the lab.
 *
 *     lab ours IMAGE ROOTFS DISK_BYTES DIRECTORY    starts husk-vmm, restores, asks; prints the milliseconds from the start
 *     lab bake                                      a guest of another monitor boots: says "listening", waits for its
 *                                                   greeting, freezes it, says "frozen", waits to be killed
 *     lab answer                                    one that is restored: says "listening", waits for its call, asks,
 *                                                   prints the clock (CLOCK_MONOTONIC, milliseconds)
 */
#include <linux/vm_sockets.h>
#include <sys/socket.h>
#include <time.h>

#include "engine/engine.h"
#include "link/link.h"

#define PORT 1024
#define TIMEOUT_MS 300000
#define UID_BASE 0x7e000000u

static double now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

/* What every restored machine is asked first. */
static int ask(int to_agent, int from_agent, struct husk_error *err)
{
	cleanup_buf struct buf arguments = { 0 };
	struct link *link = NULL;
	uint8_t entropy[64];

	if (random_bytes(entropy, sizeof(entropy)) < 0 ||
	    wire_put_bytes(&arguments, TAG_ENTROPY, entropy, sizeof(entropy)) < 0 ||
	    wire_put_int(&arguments, TAG_TIME_MS, time_wall_ms()) < 0)
		return husk_fail_memory(err);
	if (link_start(to_agent, from_agent, false, &link, err) < 0)
		return -1;
	int result = link_call(link, METHOD_IDENTITY, &arguments, NULL, TIMEOUT_MS, err);
	link_free(link);
	return result;
}

static int ours(char **argv, struct husk_error *err)
{
	struct engine_spec spec = { .id = "bench",
				    .directory = argv[5],
				    .runtime = argv[5],
				    .rootfs = argv[3],
				    .agent = "/.husk/agent",
				    .disk_bytes = strtoull(argv[4], NULL, 10),
				    .uid_base = UID_BASE };
	struct engine_machine *machine = NULL;
	int to_agent, from_agent;
	double begin = now_ms();

	if (engine_microvm.prepare(&spec, &machine, err) < 0)
		return -1;
	int result = engine_microvm.restore(machine, argv[2], err);
	if (result == 0) {
		engine_microvm.link(machine, &to_agent, &from_agent);
		result = ask(to_agent, from_agent, err);
	}
	if (result == 0)
		printf("%.3f\n", now_ms() - begin);
	engine_microvm.stop(machine);
	engine_microvm.free(machine);
	return result;
}

/* ---- the other monitor's ---- */

static int hear_call(struct husk_error *err)
{
	const struct sockaddr_vm here = { .svm_family = AF_VSOCK, .svm_port = PORT, .svm_cid = VMADDR_CID_ANY };
	int listener = socket(AF_VSOCK, SOCK_STREAM | SOCK_CLOEXEC, 0), fd;

	if (listener < 0 || bind(listener, (const struct sockaddr *)&here, sizeof(here)) < 0 || listen(listener, 4) < 0)
		return husk_fail_errno(err, "cannot listen for the guest");
	printf("listening\n");
	fflush(stdout);
	fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	return fd < 0 ? husk_fail_errno(err, "no call of the guest") : fd;
}

static int bake(struct husk_error *err)
{
	struct link *link = NULL;
	int fd = hear_call(err);

	if (fd < 0 || link_start(fd, fd, true, &link, err) < 0 || link_wait_hello(link, TIMEOUT_MS, err) < 0 ||
	    link_call(link, METHOD_FREEZE, NULL, NULL, TIMEOUT_MS, err) < 0)
		return -1;
	printf("frozen\n");
	fflush(stdout);
	for (;;)
		pause();
}

static int answer(struct husk_error *err)
{
	int fd = hear_call(err);

	if (fd < 0 || ask(fd, fd, err) < 0)
		return -1;
	printf("%.3f\n", now_ms());
	return 0;
}

int main(int argc, char **argv)
{
	struct husk_error err = { 0 };
	int result = -1;

	if (argc == 6 && strcmp(argv[1], "ours") == 0)
		result = ours(argv, &err);
	else if (argc == 2 && strcmp(argv[1], "bake") == 0)
		result = bake(&err);
	else if (argc == 2 && strcmp(argv[1], "answer") == 0)
		result = answer(&err);
	else
		husk_fail(&err, HUSK_INVALID, "usage: see the top of bench/lab.c");
	if (result < 0)
		fprintf(stderr, "lab: %s\n", err.message);
	return result < 0;
}
