/*
 * Carries out the engine's requests; control.h has the contract. Called by main. Each request is checked first: its
 * descriptors, and whether the machine's state allows it. Every request gets a reply. The engine is trusted, but it may die
 * at any moment; then this process ends at once.
 */
#include "vmm/serve.h"

#include <poll.h>
#include <sys/epoll.h>

struct handler {
	size_t fds_min, fds_max;
	unsigned stages; /* in which stages it is allowed: bits of enum vm_stage */
	int (*handle)(struct vm *vm, const struct control_request *request, int *fds, size_t count,
		      struct control_reply *reply, struct husk_error *err);
};

#define BEFORE (1u << VM_SHAPED)
#define DURING (1u << VM_RUNNING | 1u << VM_PAUSED)

/* ---- requests before the guest runs ---- */

static int do_shape(struct vm *vm, const struct control_request *request, int *fds, size_t count,
		    struct control_reply *reply, struct husk_error *err)
{
	(void)count;
	(void)reply;
	if (request->value[0] > VMM_VCPUS_MAX)
		return husk_fail(err, HUSK_INVALID, "too many vCPUs; give 1 to %d", VMM_VCPUS_MAX);
	return vm_shape(vm, steal_fd(&fds[0]), (uint32_t)request->value[0], request->value[1], err);
}

static int do_console(struct vm *vm, const struct control_request *request, int *fds, size_t count,
		      struct control_reply *reply, struct husk_error *err)
{
	(void)count;
	(void)reply;
	(void)err;
	pthread_mutex_lock(&vm->serial.lock);
	fd_close(&vm->serial.log);
	vm->serial.log = steal_fd(&fds[0]);
	vm->serial.room = request->value[0];
	pthread_mutex_unlock(&vm->serial.lock);
	return 0;
}

static int do_base(struct vm *vm, const struct control_request *request, int *fds, size_t count,
		   struct control_reply *reply, struct husk_error *err)
{
	(void)request;
	(void)count;
	(void)reply;
	if (vm->root.disk.bytes)
		return husk_fail(err, HUSK_CONFLICT, "the machine has a root image already");
	if (disk_open_plain(&vm->root.disk, fds[0], err) < 0)
		return -1;
	fds[0] = -1;
	block_describe(&vm->root);
	return 0;
}

static int do_disk(struct vm *vm, const struct control_request *request, int *fds, size_t count,
		   struct control_reply *reply, struct husk_error *err)
{
	(void)count;
	(void)reply;
	if (disk_add_layer(&vm->disk.disk, fds[0], request->value[0], err) < 0)
		return -1;
	fds[0] = -1;
	block_describe(&vm->disk);
	return 0;
}

static int do_memory(struct vm *vm, const struct control_request *request, int *fds, size_t count,
		     struct control_reply *reply, struct husk_error *err)
{
	(void)request;
	(void)count;
	(void)reply;
	if (memory_add_layer(&vm->memory, fds[0], err) < 0)
		return -1;
	fds[0] = -1;
	return 0;
}

static int do_prefetch(struct vm *vm, const struct control_request *request, int *fds, size_t count,
		       struct control_reply *reply, struct husk_error *err)
{
	cleanup_buf struct buf sections = { 0 };
	size_t size = 0;
	const void *runs = NULL;

	(void)request;
	(void)count;
	(void)reply;
	(void)err;
	if (state_read(fds[0], &sections, NULL) == 0)
		runs = state_find(&sections, SECTION_TOUCHED, 0, &size);
	buf_consume(&vm->prefetch, vm->prefetch.size);
	if (runs)
		(void)!buf_append(&vm->prefetch, runs, size);
	return 0;
}

static int check_complete(const struct vm *vm, struct husk_error *err)
{
	if (!vm->root.disk.bytes || !vm->disk.disk.bytes)
		return husk_fail(err, HUSK_CONFLICT, "the machine needs a root image and a disk first");
	return 0;
}

static int do_boot(struct vm *vm, const struct control_request *request, int *fds, size_t count,
		   struct control_reply *reply, struct husk_error *err)
{
	(void)count;
	(void)reply;
	if (check_complete(vm, err) < 0)
		return -1;
	vm_hold(vm);
	if (boot_linux(vm, fds[0], fds[1], request->text, err) < 0)
		return -1;
	return vm_resume(vm, err);
}

static int do_restore(struct vm *vm, const struct control_request *request, int *fds, size_t count,
		      struct control_reply *reply, struct husk_error *err)
{
	(void)request;
	(void)count;
	(void)reply;
	return check_complete(vm, err) < 0 ? -1 : restore_machine(vm, fds[0], err);
}

/* ---- requests while the guest runs ---- */

static int do_tap(struct vm *vm, const struct control_request *request, int *fds, size_t count,
		  struct control_reply *reply, struct husk_error *err)
{
	(void)reply;
	if (net_attach(&vm->net, count ? fds[0] : -1, request->value[0], err) < 0)
		return -1;
	fds[0] = -1;
	return 0;
}

static int do_port(struct vm *vm, const struct control_request *request, int *fds, size_t count,
		   struct control_reply *reply, struct husk_error *err)
{
	(void)count;
	(void)reply;
	if (vsock_offer(&vm->vsock, (uint32_t)request->value[0], fds[0], err) < 0)
		return -1;
	fds[0] = -1;
	return 0;
}

static int do_pause(struct vm *vm, const struct control_request *request, int *fds, size_t count,
		    struct control_reply *reply, struct husk_error *err)
{
	(void)request;
	(void)fds;
	(void)count;
	(void)reply;
	return vm_pause(vm, err);
}

static int do_resume(struct vm *vm, const struct control_request *request, int *fds, size_t count,
		     struct control_reply *reply, struct husk_error *err)
{
	(void)request;
	(void)fds;
	(void)count;
	(void)reply;
	return vm_resume(vm, err);
}

static int do_snapshot(struct vm *vm, const struct control_request *request, int *fds, size_t count,
		       struct control_reply *reply, struct husk_error *err)
{
	struct snapshot_files files = { .state = fds[0], .memory = fds[1], .disk = fds[2] };

	(void)request;
	(void)count;
	int result = snapshot_take(vm, &files, reply->value, err);
	fds[1] = files.memory;
	fds[2] = files.disk;
	return result;
}

static int do_ahead(struct vm *vm, const struct control_request *request, int *fds, size_t count,
		    struct control_reply *reply, struct husk_error *err)
{
	if (count > 0 && memory_ahead_open(&vm->memory, fds[0], err) < 0)
		return -1;
	fds[0] = -1;
	return ahead_step(vm, request->value[0], reply->value, err);
}

static int do_balloon(struct vm *vm, const struct control_request *request, int *fds, size_t count,
		      struct control_reply *reply, struct husk_error *err)
{
	(void)fds;
	(void)count;
	(void)reply;
	if (request->value[0] > vm->memory.size / PAGE_BYTES)
		return husk_fail(err, HUSK_INVALID, "the guest has only %llu pages",
				 (unsigned long long)(vm->memory.size / PAGE_BYTES));
	balloon_target(&vm->balloon, (uint32_t)request->value[0]);
	return 0;
}

static int do_limit(struct vm *vm, const struct control_request *request, int *fds, size_t count,
		    struct control_reply *reply, struct husk_error *err)
{
	struct limit *const limits[LIMIT_COUNT] = {
		[LIMIT_BLOCK_BYTES] = &vm->disk.bytes,
		[LIMIT_BLOCK_OPERATIONS] = &vm->disk.operations,
		[LIMIT_NET_SEND_BYTES] = &vm->net.send_bytes,
		[LIMIT_NET_SEND_PACKETS] = &vm->net.send_packets,
		[LIMIT_NET_RECEIVE_BYTES] = &vm->net.receive_bytes,
		[LIMIT_NET_RECEIVE_PACKETS] = &vm->net.receive_packets,
	};

	(void)fds;
	(void)count;
	(void)reply;
	if (request->value[0] >= LIMIT_COUNT)
		return husk_fail(err, HUSK_INVALID, "no limit %llu", (unsigned long long)request->value[0]);
	struct virtio_device *device = request->value[0] <= LIMIT_BLOCK_OPERATIONS ? &vm->disk.device : &vm->net.device;
	pthread_mutex_lock(&device->lock);
	limit_set(limits[request->value[0]], request->value[1], request->value[2]);
	pthread_mutex_unlock(&device->lock);
	return 0;
}

static int do_stats(struct vm *vm, const struct control_request *request, int *fds, size_t count,
		    struct control_reply *reply, struct husk_error *err)
{
	(void)request;
	(void)fds;
	(void)count;
	reply->value[1] = vm->balloon.returned;
	reply->value[2] = vm->root.moved + vm->disk.moved;
	reply->value[3] = vm->net.moved;
	return memory_private_bytes(&vm->memory, &reply->value[0], err);
}

static int do_touched(struct vm *vm, const struct control_request *request, int *fds, size_t count,
		      struct control_reply *reply, struct husk_error *err)
{
	cleanup_free struct memory_touched *runs = NULL;
	cleanup_buf struct buf sections = { 0 };
	size_t found = 0;

	(void)request;
	(void)count;
	(void)reply;
	if (memory_touched_find(&vm->memory, &runs, &found, err) < 0)
		return -1;
	if (state_put(&sections, SECTION_TOUCHED, 0, runs, found * sizeof(*runs)) < 0)
		return husk_fail_memory(err);
	return state_write(fds[0], &sections, err);
}

/* ---- dispatch ---- */

static const struct handler handlers[] = {
	[CONTROL_SHAPE] = { 1, 1, 1u << VM_EMPTY, do_shape }, [CONTROL_CONSOLE] = { 1, 1, BEFORE | DURING, do_console },
	[CONTROL_BASE] = { 1, 1, BEFORE, do_base },           [CONTROL_DISK] = { 1, 1, BEFORE, do_disk },
	[CONTROL_TAP] = { 0, 1, BEFORE | DURING, do_tap },    [CONTROL_PORT] = { 1, 1, BEFORE | DURING, do_port },
	[CONTROL_MEMORY] = { 1, 1, BEFORE, do_memory },       [CONTROL_BOOT] = { 2, 2, BEFORE, do_boot },
	[CONTROL_RESTORE] = { 1, 1, BEFORE, do_restore },     [CONTROL_PAUSE] = { 0, 0, DURING, do_pause },
	[CONTROL_RESUME] = { 0, 0, DURING, do_resume },       [CONTROL_SNAPSHOT] = { 3, 3, DURING, do_snapshot },
	[CONTROL_BALLOON] = { 0, 0, DURING, do_balloon },     [CONTROL_LIMIT] = { 0, 0, BEFORE | DURING, do_limit },
	[CONTROL_STATS] = { 0, 0, DURING, do_stats },         [CONTROL_TOUCHED] = { 1, 1, DURING, do_touched },
	[CONTROL_PREFETCH] = { 1, 1, BEFORE, do_prefetch },   [CONTROL_AHEAD] = { 0, 1, DURING, do_ahead },
};

static int carry_out(struct vm *vm, const struct control_request *request, int *fds, size_t count,
		     struct control_reply *reply, struct husk_error *err)
{
	if (request->version != CONTROL_VERSION)
		return husk_fail(err, HUSK_PROTOCOL, "husk-vmm speaks version %d, the engine %u: of different builds",
				 CONTROL_VERSION, request->version);
	if (request->type >= ARRAY_SIZE(handlers) || !handlers[request->type].handle)
		return husk_fail(err, HUSK_PROTOCOL, "unknown request %u", request->type);
	const struct handler *handler = &handlers[request->type];
	if (count < handler->fds_min || count > handler->fds_max)
		return husk_fail(err, HUSK_PROTOCOL, "request %u with %zu descriptors", request->type, count);
	if (!(handler->stages & 1u << vm->stage))
		return husk_fail(err, HUSK_CONFLICT, "request %u does not fit the machine's stage %d", request->type,
				 vm->stage);
	if (memchr(request->text, '\0', sizeof(request->text)) == NULL)
		return husk_fail(err, HUSK_PROTOCOL, "a text without an end");
	return handler->handle(vm, request, fds, count, reply, err);
}

void serve_request(struct vm *vm, const struct control_request *request, int *fds, size_t count,
		   struct control_reply *reply)
{
	struct husk_error err = { 0 };

	for (size_t i = count; i < CONTROL_FDS_MAX; i++)
		fds[i] = -1;
	if (carry_out(vm, request, fds, count, reply, &err) < 0) {
		reply->code = err.code ? err.code : HUSK_INTERNAL;
		snprintf(reply->message, sizeof(reply->message), "%s", err.message);
	}
	for (size_t i = 0; i < CONTROL_FDS_MAX; i++)
		fd_close(&fds[i]);
}

/* ---- the loop ---- */

struct server {
	struct vm *vm;
	struct watch control, end;
	bool over;
	int status;
};

static void control_ready(struct watch *watch, uint32_t events)
{
	struct server *server = watch->data;
	struct control_request request;
	struct control_reply reply = { 0 };
	struct husk_error err = { 0 };
	int fds[CONTROL_FDS_MAX];
	size_t count;

	(void)events;
	int got = control_receive(watch->fd, &request, sizeof(request), fds, &count, &err);
	if (got <= 0 || request.type == CONTROL_STOP) {
		server->over = true;
		server->status = got < 0;
		if (got < 0)
			log_line(LOG_ERROR, "%s", err.message);
	} else {
		serve_request(server->vm, &request, fds, count, &reply);
	}
	if (got > 0 && control_send(watch->fd, &reply, sizeof(reply), NULL, 0, &err) < 0)
		server->over = true;
}

static void end_ready(struct watch *watch, uint32_t events)
{
	struct server *server = watch->data;

	(void)events;
	pthread_mutex_lock(&server->vm->lock);
	log_line(server->vm->end.code ? LOG_ERROR : LOG_INFO, "%s", server->vm->end.message);
	server->status = server->vm->end.code != 0;
	pthread_mutex_unlock(&server->vm->lock);
	server->over = true;
}

/* While the machine is paused, events of its devices wait: only the control socket is read. */
static int wait_paused(struct server *server, struct husk_error *err)
{
	struct pollfd watched[] = { { .fd = server->control.fd, .events = POLLIN },
				    { .fd = server->end.fd, .events = POLLIN } };

	if (poll(watched, ARRAY_SIZE(watched), -1) < 0)
		return errno == EINTR ? 0 : husk_fail_errno(err, "cannot wait for the engine");
	if (watched[0].revents)
		control_ready(&server->control, EPOLLIN);
	if (!server->over && watched[1].revents)
		end_ready(&server->end, EPOLLIN);
	return 0;
}

int serve(struct vm *vm, int control)
{
	struct server server = { .vm = vm };
	struct husk_error err = { 0 };

	if (loop_watch(&vm->loop, &server.control, control, EPOLLIN, control_ready, &server, &err) < 0 ||
	    loop_watch(&vm->loop, &server.end, vm->end_fd, EPOLLIN, end_ready, &server, &err) < 0)
		server.over = true;
	while (!server.over) {
		int result = vm->stage == VM_PAUSED ? wait_paused(&server, &err) : loop_turn(&vm->loop, &err);

		if (result < 0)
			break;
	}
	if (err.message[0]) {
		log_line(LOG_ERROR, "%s", err.message);
		return 1;
	}
	return server.status;
}
