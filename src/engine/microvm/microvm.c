/*
 * The microvm engine: a machine is one husk-vmm process with a virtual machine under KVM. Called by the supervisor
 * through the ops table at the end.
 *
 * This side opens every file and passes it to husk-vmm, which cannot open files by name. Memory and disk are layers
 * (layers.c). Before a checkpoint, while the guest runs, husk-vmm copies changed memory into the next layer; the guest
 * is paused only for the rest. Files are linked and the marker is written after the guest continues. This file must
 * never pass a layer for writing that is already part of an image.
 */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "engine/marker.h"
#include "engine/microvm/microvm.h"
#include "net/gateway.h"

#define CALL_TIMEOUT_MS 30000
/* A checkpoint writes all changed memory of the guest, on a disk that may be slow. */
#define IMAGE_TIMEOUT_MS (15 * 60 * 1000)
/* Limits of copying memory before a checkpoint: pages per request, pages that may be left for the pause, passes over
 * memory for a guest that keeps writing, and total time. */
#define AHEAD_STEP_PAGES 1024u
#define AHEAD_ENOUGH_PAGES 256u
#define AHEAD_SWEEPS_MAX 6
#define AHEAD_MAX_MS (5 * 60 * 1000)
#define AHEAD_BUSY_MS 2
#define AHEAD_BUSY_MAX_MS 2000
#define CONSOLE_MAX (1u << 20)
#define LINK_BUFFER (1 << 20)
/* A panic ends the machine at once, and the kernel does not probe for missing devices. */
#define COMMAND_LINE "console=ttyS0 quiet loglevel=3 reboot=t panic=-1 pci=off random.trust_cpu=on"

struct engine_machine {
	struct engine_spec spec;
	int rootfs; /* open: if the image has another shape, the machine is started again */
	struct marker_identity identity;
	struct microvm_shape shape;
	pthread_mutex_t lock; /* guards `killed`, and the exchange of the process */
	bool killed;
	struct microvm_process process;
	int end; /* epoll: readable when the process is over; stays the same if the process is exchanged */
	struct microvm_layers memory, disk;
	int open_memory; /* the newest memory layer, not part of any image yet; -1: none */
	int link;
	int tap; /* the guest's end of its wire, until the machine starts */
	uint8_t mac[6];
	bool started;
};

/* ---- calls ---- */

static int settle(struct engine_machine *machine, struct husk_error *err)
{
	return microvm_settle(&machine->process, CALL_TIMEOUT_MS, NULL, err);
}

static int call_plain(struct engine_machine *machine, enum control_type type, struct husk_error *err)
{
	return microvm_post(&machine->process, type, NULL, 0, NULL, NULL, 0, err) < 0 ? -1 : settle(machine, err);
}

/* Passes a descriptor with a value, and closes ours. `settle` returns whether it was accepted. */
static int give(struct engine_machine *machine, enum control_type type, uint64_t value, int fd, struct husk_error *err)
{
	int result = fd < 0 ? husk_fail_errno(err, "cannot open a file of machine %s", machine->spec.id)
			    : microvm_post(&machine->process, type, &value, 1, NULL, &fd, 1, err);

	fd_close(&fd);
	return result;
}

/* ---- prepare ---- */

/* The guest's console goes to the same file as the monitor's. */
static int give_console(struct engine_machine *machine, struct husk_error *err)
{
	cleanup_free char *path = str_format("%s/console.log", machine->spec.directory);

	if (!path)
		return husk_fail_memory(err);
	return give(machine, CONTROL_CONSOLE, CONSOLE_MAX, open(path, O_WRONLY | O_APPEND | O_CLOEXEC), err);
}

/* The guest's agent gets the other end when it connects. */
static int give_link(struct engine_machine *machine, struct husk_error *err)
{
	const int size = LINK_BUFFER;
	int ends[2];

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0)
		return husk_fail_errno(err, "cannot make the agent link");
	/* Larger buffers make file transfers faster; a failure is harmless. */
	for (int i = 0; i < 2; i++)
		setsockopt(ends[i], SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
	machine->link = ends[0];
	return give(machine, CONTROL_PORT, VMM_AGENT_PORT, ends[1], err);
}

static int watch(struct engine_machine *machine, struct husk_error *err)
{
	struct epoll_event event = { .events = EPOLLIN };

	if (epoll_ctl(machine->end, EPOLL_CTL_ADD, machine->process.pidfd, &event) < 0)
		return husk_fail_errno(err, "cannot watch husk-vmm");
	return 0;
}

static int start(struct engine_machine *machine, struct husk_error *err)
{
	if (microvm_process_start(&machine->spec, &machine->shape, &machine->process, err) < 0 ||
	    watch(machine, err) < 0 || give_console(machine, err) < 0 || give_link(machine, err) < 0 ||
	    give(machine, CONTROL_BASE, 0, fcntl(machine->rootfs, F_DUPFD_CLOEXEC, 0), err) < 0)
		return -1;
	return settle(machine, err);
}

static void microvm_stop(struct engine_machine *machine)
{
	microvm_process_stop(&machine->process);
}

static void microvm_kill(struct engine_machine *machine)
{
	pthread_mutex_lock(&machine->lock);
	machine->killed = true;
	if (machine->process.pidfd >= 0)
		syscall(SYS_pidfd_send_signal, machine->process.pidfd, SIGKILL, NULL, 0);
	pthread_mutex_unlock(&machine->lock);
}

static void microvm_free(struct engine_machine *machine)
{
	if (!machine)
		return;
	microvm_process_free(&machine->process);
	fd_close(&machine->end);
	fd_close(&machine->link);
	fd_close(&machine->tap);
	fd_close(&machine->rootfs);
	fd_close(&machine->open_memory);
	layers_free(&machine->memory);
	layers_free(&machine->disk);
	free(machine);
}

static int take_rootfs(struct engine_machine *machine, struct husk_error *err)
{
	machine->rootfs = open(machine->spec.rootfs, O_RDONLY | O_CLOEXEC);
	return machine->rootfs < 0 ? husk_fail_errno(err, "cannot open '%s'", machine->spec.rootfs) : 0;
}

/* The caller closes the gateway's port afterwards. */
static int take_tap(struct engine_machine *machine, const struct gateway *gateway, struct husk_error *err)
{
	if (!gateway)
		return 0;
	memcpy(machine->mac, gateway->guest_mac, sizeof(machine->mac));
	machine->tap = fcntl(gateway->port, F_DUPFD_CLOEXEC, 0);
	return machine->tap < 0 ? husk_fail_errno(err, "cannot keep the tap of machine %s", machine->spec.id) : 0;
}

static int microvm_prepare(const struct engine_spec *spec, struct engine_machine **out, struct husk_error *err)
{
	struct engine_machine *machine = calloc(1, sizeof(*machine));

	if (!machine)
		return husk_fail_memory(err);
	machine->spec = *spec;
	machine->process = (struct microvm_process)MICROVM_PROCESS_INIT;
	pthread_mutex_init(&machine->lock, NULL);
	machine->link = machine->tap = machine->rootfs = machine->open_memory = -1;
	machine->end = epoll_create1(EPOLL_CLOEXEC);
	layers_init(&machine->memory, spec->directory, "memory");
	layers_init(&machine->disk, spec->directory, "disk");
	if (machine->end < 0) {
		husk_fail_errno(err, "cannot watch machine %s", spec->id);
		microvm_free(machine);
		return -1;
	}
	if (marker_identify(engine_microvm.name, spec->rootfs, spec->disk_bytes, &machine->identity, err) < 0 ||
	    take_rootfs(machine, err) < 0 || take_tap(machine, spec->gateway, err) < 0 ||
	    microvm_shape_here(&machine->shape, err) < 0 || start(machine, err) < 0) {
		microvm_free(machine);
		return husk_wrap(err, "cannot prepare machine %s", spec->id);
	}
	*out = machine;
	return 0;
}

/* ---- boot and restore ---- */

static int check_fresh(struct engine_machine *machine, struct husk_error *err)
{
	if (machine->started)
		return husk_fail(err, HUSK_CONFLICT, "machine %s has been started already", machine->spec.id);
	machine->started = true; /* in any case: half a start is not repeated */
	return 0;
}

/* Passes the disk, layer by layer, and a new layer on top to write to. */
static int give_disk(struct engine_machine *machine, struct husk_error *err)
{
	for (size_t i = 0; i < machine->disk.count; i++)
		if (give(machine, CONTROL_DISK, machine->spec.disk_bytes,
			 open(machine->disk.paths[i], O_RDONLY | O_CLOEXEC), err) < 0)
			return -1;
	int newest = layers_add(&machine->disk, err);
	return newest < 0 ? -1 : give(machine, CONTROL_DISK, machine->spec.disk_bytes, newest, err);
}

static int make_disk(struct engine_machine *machine, struct husk_error *err)
{
	int fd = layers_add(&machine->disk, err);

	if (fd < 0)
		return -1;
	fd_close(&fd);
	/* The name is in use; the new file is completed first. */
	unlink(machine->disk.paths[0]);
	return microvm_disk_make(machine->spec.directory, machine->disk.paths[0], machine->spec.disk_bytes, err);
}

/* Rules and leash are already active at the other end. The wire ends with its monitor, so our descriptor is closed. */
static int give_tap(struct engine_machine *machine, struct husk_error *err)
{
	uint64_t mac = 0;

	if (machine->tap < 0)
		return 0;
	memcpy(&mac, machine->mac, sizeof(machine->mac));
	return give(machine, CONTROL_TAP, mac, steal_fd(&machine->tap), err);
}

static int microvm_boot(struct engine_machine *machine, const char *disk, struct husk_error *err)
{
	cleanup_close int kernel = -1, initramfs = -1;

	if (disk) /* what the guest's kernel had not written yet is in the memory alone */
		return husk_fail(err, HUSK_UNAVAILABLE, "a microvm does not start from its disk alone; wake it");
	if (check_fresh(machine, err) < 0 || make_disk(machine, err) < 0 || give_disk(machine, err) < 0 ||
	    give_tap(machine, err) < 0)
		return -1;
	kernel = microvm_kernel_open(err);
	initramfs = kernel < 0 ? -1 : microvm_initramfs_make(err);
	if (initramfs < 0)
		return -1;
	const int fds[] = { kernel, initramfs };
	if (microvm_post(&machine->process, CONTROL_BOOT, NULL, 0, COMMAND_LINE, fds, ARRAY_SIZE(fds), err) < 0)
		return -1;
	return settle(machine, err);
}

/* The image may have another shape than new machines on this host: then this machine gets the shape of the image. */
static int take_shape(struct engine_machine *machine, json_t *marker, struct husk_error *err)
{
	const struct microvm_shape wanted = {
		.vcpus = (uint32_t)json_integer_value(json_object_get(marker, "vcpus")),
		.memory_bytes = (uint64_t)json_integer_value(json_object_get(marker, "memory_bytes")),
	};

	if (wanted.vcpus == machine->shape.vcpus && wanted.memory_bytes == machine->shape.memory_bytes)
		return 0;
	/* The end of this process is not the end of the machine. */
	epoll_ctl(machine->end, EPOLL_CTL_DEL, machine->process.pidfd, NULL);
	pthread_mutex_lock(&machine->lock);
	microvm_process_free(&machine->process);
	pthread_mutex_unlock(&machine->lock);
	fd_close(&machine->link);
	machine->shape = wanted;
	int result = start(machine, err);
	pthread_mutex_lock(&machine->lock);
	bool killed = machine->killed;
	pthread_mutex_unlock(&machine->lock);
	if (killed) /* between the two */
		result = husk_fail(err, HUSK_GONE, "machine %s has been stopped", machine->spec.id);
	return result;
}

static int give_memory(struct engine_machine *machine, struct husk_error *err)
{
	for (size_t i = 0; i < machine->memory.count; i++)
		if (give(machine, CONTROL_MEMORY, 0, open(machine->memory.paths[i], O_RDONLY | O_CLOEXEC), err) < 0)
			return -1;
	return 0;
}

/* Passes what an earlier restore needed first. If it is missing or damaged, pages are loaded when they are touched. */
static void give_prefetch(struct engine_machine *machine, const char *image)
{
	cleanup_free char *path = str_format("%s/prefetch", image);
	int list = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;

	if (list >= 0)
		(void)!give(machine, CONTROL_PREFETCH, 0, list, NULL);
}

static int check_files(const char *image, json_t *marker, struct husk_error *err)
{
	cleanup_free char *state = str_format("%s/state", image);
	json_t *size = json_object_get(marker, "state");
	struct stat found;

	if (!state)
		return husk_fail_memory(err);
	if (stat(state, &found) < 0)
		return husk_fail_errno(err, "the image in '%s' is damaged: state", image);
	if (found.st_size == 0 || (size && json_integer_value(size) != (json_int_t)found.st_size))
		return husk_fail(err, HUSK_INVALID,
				 "the image in '%s' is damaged: state has another size than when it was made", image);
	if (layers_check(image, "memory", json_object_get(marker, "memory"), err) < 0)
		return -1;
	return layers_check(image, "disk", json_object_get(marker, "disk"), err);
}

static int microvm_check(const char *image, const char *rootfs, uint64_t disk_bytes, struct husk_error *err)
{
	struct marker_identity identity;
	json_t *marker = NULL;

	if (!rootfs)
		marker = marker_load(image, err);
	else if (marker_identify(engine_microvm.name, rootfs, disk_bytes, &identity, err) == 0)
		marker = marker_read(image, &identity, err);
	int result = marker ? check_files(image, marker, err) : -1;
	json_decref(marker);
	return result;
}

static int take_image(struct engine_machine *machine, const char *image, json_t *marker, struct husk_error *err)
{
	cleanup_free char *state = str_format("%s/state", image);
	json_t *memory = json_object_get(marker, "memory"), *disk = json_object_get(marker, "disk");

	if (!state)
		return husk_fail_memory(err);
	if (check_files(image, marker, err) < 0 || take_shape(machine, marker, err) < 0 ||
	    layers_import(&machine->memory, image, json_array_size(memory), err) < 0 ||
	    layers_import(&machine->disk, image, json_array_size(disk), err) < 0 || give_memory(machine, err) < 0 ||
	    give_disk(machine, err) < 0)
		return -1;
	give_prefetch(machine, image);
	/* The tap last: the restored driver is told that its link has changed. */
	if (give(machine, CONTROL_RESTORE, 0, open(state, O_RDONLY | O_CLOEXEC), err) < 0 || settle(machine, err) < 0 ||
	    give_tap(machine, err) < 0)
		return -1;
	return call_plain(machine, CONTROL_RESUME, err);
}

static int microvm_restore(struct engine_machine *machine, const char *image, struct husk_error *err)
{
	json_t *marker = NULL;
	int result = check_fresh(machine, err);

	if (result == 0 && !(marker = marker_read(image, &machine->identity, err)))
		result = -1;
	if (result == 0)
		result = take_image(machine, image, marker, err);
	json_decref(marker);
	return result < 0 ? husk_wrap(err, "cannot restore '%s'", image) : 0;
}

/* ---- while it runs ---- */

static void microvm_link(struct engine_machine *machine, int *to_agent, int *from_agent)
{
	*to_agent = *from_agent = machine->link;
}

static int microvm_end_fd(struct engine_machine *machine)
{
	return machine->end;
}

static int microvm_pause(struct engine_machine *machine, struct husk_error *err)
{
	return call_plain(machine, CONTROL_PAUSE, err);
}

static int microvm_resume(struct engine_machine *machine, struct husk_error *err)
{
	return call_plain(machine, CONTROL_RESUME, err);
}

/* The guest's own kernel enforces the process limit, and processes of the guest are not processes of the host. */
static int microvm_kill_processes(struct engine_machine *machine, uint64_t most, struct husk_error *err)
{
	(void)machine, (void)most, (void)err;
	return 0;
}

/* ---- before a checkpoint ---- */

static int ahead_step(struct engine_machine *machine, int layer, uint64_t done[static CONTROL_VALUES],
		      struct husk_error *err)
{
	const uint64_t most = AHEAD_STEP_PAGES;

	if (microvm_post(&machine->process, CONTROL_AHEAD, &most, 1, NULL, &layer, layer >= 0, err) < 0)
		return -1;
	return microvm_settle(&machine->process, IMAGE_TIMEOUT_MS, done, err);
}

/* One pass over memory; returns how many pages had changed. False if it takes too long: then the checkpoint does the
 * rest. */
static int ahead_sweep(struct engine_machine *machine, int64_t deadline, uint64_t *pages, struct husk_error *err)
{
	uint64_t done[CONTROL_VALUES] = { 0 };
	int64_t busy_ms = 0;

	*pages = 0;
	while (!done[AHEAD_SWEPT] && time_monotonic_ms() < deadline && busy_ms < AHEAD_BUSY_MAX_MS) {
		if (ahead_step(machine, -1, done, err) < 0)
			return -1;
		*pages += done[AHEAD_PAGES];
		busy_ms = done[AHEAD_BUSY] ? busy_ms + AHEAD_BUSY_MS : 0;
		if (done[AHEAD_BUSY])
			usleep(AHEAD_BUSY_MS * 1000);
	}
	return !!done[AHEAD_SWEPT];
}

/* The layer belongs to the machine in any case: a later checkpoint continues it. */
static int open_layer(struct engine_machine *machine, struct husk_error *err)
{
	uint64_t done[CONTROL_VALUES];

	if (machine->open_memory >= 0)
		return 0;
	machine->open_memory = layers_add(&machine->memory, err);
	return machine->open_memory < 0 ? -1 : ahead_step(machine, machine->open_memory, done, err);
}

static int microvm_ahead(struct engine_machine *machine, struct husk_error *err)
{
	int64_t deadline = time_monotonic_ms() + AHEAD_MAX_MS;
	uint64_t pages, before = UINT64_MAX;

	if (open_layer(machine, err) < 0)
		return husk_wrap(err, "cannot save memory of machine %s ahead", machine->spec.id);
	for (int i = 0; i < AHEAD_SWEEPS_MAX; i++) {
		int swept = ahead_sweep(machine, deadline, &pages, err);

		if (swept < 0)
			return husk_wrap(err, "cannot save memory of machine %s ahead", machine->spec.id);
		/* If the guest writes as fast as the passes copy, another pass does not help. */
		if (!swept || pages <= AHEAD_ENOUGH_PAGES || pages > before / 4 * 3)
			break;
		before = pages;
	}
	return 0;
}

/* ---- checkpoint ---- */

/* After the snapshot: this machine continues on the new layers, and some old layers are not needed any more. */
static void go_on(struct engine_machine *machine, const uint64_t done[static CONTROL_VALUES])
{
	if (done[SNAPSHOT_MEMORY_PAGES] == 0)
		layers_drop_newest(&machine->memory);
	layers_squash(&machine->memory, done[SNAPSHOT_MEMORY_LAYERS], done[SNAPSHOT_MEMORY_PAGES] != 0);
	if (!done[SNAPSHOT_DISK_USED])
		layers_drop_newest(&machine->disk);
	layers_squash(&machine->disk, done[SNAPSHOT_DISK_LAYERS], done[SNAPSHOT_DISK_USED] ? 2 : 1);
}

/* Saves while the guest is paused. Afterwards the new layers are the newest of both lists, or nothing has changed. */
static int save(struct engine_machine *machine, int state, uint64_t done[static CONTROL_VALUES], struct husk_error *err)
{
	bool ahead = machine->open_memory >= 0;
	cleanup_close int memory = ahead ? -1 : layers_add(&machine->memory, err), disk = -1;
	int result = -1;

	if (!ahead && memory < 0)
		return -1;
	disk = layers_add(&machine->disk, err);
	if (disk >= 0 && microvm_pause(machine, err) == 0) {
		const int fds[] = { state, ahead ? machine->open_memory : memory, disk };

		result = microvm_post(&machine->process, CONTROL_SNAPSHOT, NULL, 0, NULL, fds, ARRAY_SIZE(fds), err);
		if (result == 0)
			result = microvm_settle(&machine->process, IMAGE_TIMEOUT_MS, done, err);
		if (microvm_resume(machine, result == 0 ? err : NULL) < 0)
			result = -1;
	}
	if (result < 0) {
		if (!ahead) /* an open layer is in use */
			layers_drop_newest(&machine->memory);
		if (disk >= 0)
			layers_drop_newest(&machine->disk);
		return -1;
	}
	fd_close(&machine->open_memory);
	go_on(machine, done);
	return 0;
}

static int write_image(struct engine_machine *machine, const char *image, struct husk_error *err)
{
	/* All layers of memory, and all layers of the disk except the one that is being written. */
	size_t memory = machine->memory.count, disk = machine->disk.count - 1;
	cleanup_free char *state = str_format("%s/state", image);
	json_t *memory_sizes, *disk_sizes;
	struct stat found;

	if (!state || stat(state, &found) < 0)
		return husk_fail_errno(err, "cannot look at the state in '%s'", image);
	if (layers_export(&machine->memory, memory, image, err) < 0 ||
	    layers_export(&machine->disk, disk, image, err) < 0)
		return -1;
	memory_sizes = layers_describe(image, "memory", memory, err);
	disk_sizes = memory_sizes ? layers_describe(image, "disk", disk, err) : NULL;
	if (!disk_sizes) {
		json_decref(memory_sizes);
		return -1;
	}
	return marker_write(image, &machine->identity,
			    json_pack("{s:I, s:I, s:I, s:o, s:o}", "state", (json_int_t)found.st_size, "vcpus",
				      (json_int_t)machine->shape.vcpus, "memory_bytes",
				      (json_int_t)machine->shape.memory_bytes, "memory", memory_sizes, "disk",
				      disk_sizes),
			    err);
}

static int microvm_checkpoint(struct engine_machine *machine, const char *image, struct husk_error *err)
{
	cleanup_free char *path = str_format("%s/state", image);
	cleanup_close int state = -1;
	uint64_t done[CONTROL_VALUES] = { 0 };

	if (!path)
		return husk_fail_memory(err);
	if (marker_exists(image))
		return husk_fail(err, HUSK_CONFLICT, "'%s' holds an image already", image);
	state = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (state < 0)
		return husk_fail_errno(err, "cannot write an image into '%s'", image);
	/* Without a marker the directory is never used as an image; the caller removes it. */
	if (save(machine, state, done, err) < 0 || write_image(machine, image, err) < 0) {
		unlink(path);
		return husk_wrap(err, "cannot checkpoint machine %s into '%s'", machine->spec.id, image);
	}
	return 0;
}

static int microvm_learn(struct engine_machine *machine, const char *image, struct husk_error *err)
{
	cleanup_free char *path = str_format("%s/prefetch", image);

	if (!path)
		return husk_fail_memory(err);
	if (give(machine, CONTROL_TOUCHED, 0, open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600), err) < 0 ||
	    settle(machine, err) < 0) {
		unlink(path);
		return -1;
	}
	return 0;
}

static int probe(const char *runtime, struct husk_error *err)
{
	cleanup_free char *program = place_find("husk-vmm"), *kernel = place_find("kernel/vmlinuz");

	if (!program || !kernel)
		return place_missing(program ? "kernel/vmlinuz" : "husk-vmm", err);
	return microvm_probe(runtime, err);
}

static uint64_t microvm_memory_max(void)
{
	struct microvm_shape shape;

	return microvm_shape_here(&shape, NULL) < 0 ? 0 : shape.memory_bytes;
}

const struct engine engine_microvm = {
	.name = "microvm",
	.own_kernel = true,
	.boundary = "a virtual machine under KVM with a kernel of its own, its monitor jailed",
	.memory_max = microvm_memory_max,
	.probe = probe,
	.prepare = microvm_prepare,
	.boot = microvm_boot,
	.restore = microvm_restore,
	.link = microvm_link,
	.end_fd = microvm_end_fd,
	.pause = microvm_pause,
	.resume = microvm_resume,
	.ahead = microvm_ahead,
	.checkpoint = microvm_checkpoint,
	.check = microvm_check,
	.learn = microvm_learn,
	.kill_processes = microvm_kill_processes,
	.kill = microvm_kill,
	.stop = microvm_stop,
	.free = microvm_free,
};
