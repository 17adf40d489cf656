/*
 * The gVisor engine: a machine is one runsc sandbox. Called by the supervisor through the ops table at the end.
 *
 * `prepare` starts runsc; everything later uses the sandbox's control socket. The agent link is a pair of pipes on the
 * stdio of the guest's pid 1, which gVisor binds again on restore. This file must never start the runsc program during
 * a restore, and must never keep a machine that it could not set up completely.
 */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "engine/gvisor/gvisor.h"
#include "net/gateway.h"

#define CALL_TIMEOUT_MS 30000
#define LAST_WORDS_MS 1000
/* A checkpoint writes all memory and disk of the guest, on a disk that may be slow. */
#define IMAGE_TIMEOUT_MS (15 * 60 * 1000)
#define PIPE_SIZE (1 << 20)

struct engine_machine {
	struct engine_spec spec;
	struct gvisor_identity identity;
	struct gvisor_process process;
	char *root, *socket, *disk;
	char *places;                           /* where shares are added (shares.c); NULL: none */
	struct share shares[ENGINE_SHARES_MAX]; /* by number */
	bool cloned; /* the writable layer is mounted at `disk`, and an image holds a clone of it (disk.c) */
	int disks;   /* the place of cloned disks; -1: not cloned */
	int to_agent, from_agent;
	int port;          /* the guest's end of its wire, until the guest's kernel has it */
	json_t *addresses; /* of its interface; NULL before it is started */
	json_t *dying;     /* pids of the guest's processes that were killed, as keys */
	long date;         /* of its runsc */
	bool started;
};

/* ---- paths of runsc ---- */

static char *root_path(const char *runtime)
{
	return str_format("%s/runsc", runtime);
}

static void sweep_one(char *path)
{
	if (path)
		unlink(path);
	free(path);
}

static void gvisor_sweep(const char *runtime, const char *id)
{
	if (!*id || strchr(id, '/'))
		return;
	sweep_one(str_format("%s/runsc/%s_sandbox:%s.state", runtime, id, id));
	sweep_one(str_format("%s/runsc/%s_sandbox:%s.lock", runtime, id, id));
	sweep_one(str_format("%s/runsc/runsc-%s.sock", runtime, id));
}

/* ---- prepare ---- */

static int make_files(struct engine_machine *machine, const char *bundle, struct husk_error *err)
{
	cleanup_free char *rootfs = str_format("%s/rootfs", bundle);
	cleanup_free char *empty = str_format("%s/empty", bundle);
	const char *disk = machine->disk;
	const struct gvisor_mounts mounts = { .disk = disk,
					      .cloned = machine->cloned,
					      .empty = machine->date >= GVISOR_VERSION_NEW ? empty : NULL,
					      .shares = machine->places };

	if (!rootfs || !empty)
		return husk_fail_memory(err);
	if (dir_make(machine->root, 0700, err) < 0 || dir_make(rootfs, 0700, err) < 0 || dir_make(empty, 0755, err) < 0)
		return -1;
	if (dir_make(disk, 0700, err) < 0 ||
	    (machine->cloned && disk_make(machine->disks, machine->spec.directory, err) < 0))
		return -1;
	if (machine->places && dir_make(machine->places, 0755, err) < 0)
		return -1;
	return gvisor_spec_write(&machine->spec, bundle, &mounts, err);
}

/* runsc's own message about a failed create: the end of its output, on one line. */
static int wrap_console(const char *path, struct husk_error *err)
{
	cleanup_free char *text = file_read(path, 2u << 20, NULL, NULL);
	size_t size = text ? strlen(text) : 0, length;

	while (size > 0 && (unsigned char)text[size - 1] <= ' ')
		text[--size] = '\0';
	if (size == 0 || !err)
		return -1;
	for (size_t i = 0; i < size; i++)
		if ((unsigned char)text[i] < ' ')
			text[i] = ' ';
	length = strlen(err->message);
	snprintf(err->message + length, sizeof(err->message) - length, ": %s", text + (size > 600 ? size - 600 : 0));
	return -1;
}

/* Large pipes make file transfers faster; the kernel only uses what is filled. A failure is harmless. */
static int link_pipe(int *reading, int *writing, struct husk_error *err)
{
	int ends[2];

	if (pipe2(ends, O_CLOEXEC) < 0)
		return husk_fail_errno(err, "cannot make the agent link");
	fcntl(ends[0], F_SETPIPE_SZ, PIPE_SIZE);
	*reading = ends[0];
	*writing = ends[1];
	return 0;
}

static int start_process(struct engine_machine *machine, const struct gvisor_program *program, const char *bundle,
			 struct husk_error *err)
{
	const char *directory = machine->spec.directory;
	cleanup_free char *log = str_format("--log=%s/runsc.log", directory);
	cleanup_free char *panic = str_format("--panic-log=%s/panic.log", directory);
	cleanup_free char *root = str_format("--root=%s", machine->root);
	cleanup_free char *console = str_format("%s/console.log", directory);
	cleanup_free char *pid_file = str_format("%s/sandbox.pid", directory);
	cleanup_close int input = -1, output = -1, console_fd = -1, disk = -1;
	const char *argv[24] = { program->path,
				 root,
				 log,
				 panic,
				 machine->spec.gateway ? "--network=sandbox" : "--network=none",
				 "--ignore-cgroups",
				 "--overlay2=none",
				 "--platform=systrap",
				 "--host-uds=none" };
	const char *const action[] = { "create", "--bundle", bundle, "--pid-file", pid_file, machine->spec.id, NULL };
	size_t count = 9;
	struct gvisor_init init = { .argv = argv,
				    .pid_file = pid_file,
				    .cgroup = machine->spec.cgroup,
				    .disk_path = machine->disk,
				    .shares_path = machine->places };

	if (!log || !panic || !root || !console || !pid_file)
		return husk_fail_memory(err);
	if (program->date >= GVISOR_VERSION_NEW) {
		/* Keeps no namespace mounted for the next machine, and does not compare paths, which differ between
		 * machines. The marker of an image lists what must be the same. */
		argv[count++] = "--gofer-network-namespace=new";
		argv[count++] = "--restore-spec-validation=ignore";
		argv[count++] = "--file-access-mounts=exclusive"; /* nobody else writes there, except to shares */
		argv[count++] =
			"--in-sandbox-cgroup=v2"; /* with version 1, gVisor checks one group of seven at a fork */
	}
	memcpy(argv + count, action, sizeof(action));
	console_fd = open(console, O_RDWR | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
	if (console_fd < 0)
		return husk_fail_errno(err, "cannot write %s", console);
	if (machine->cloned && (disk = disk_mount(machine->disks, directory, machine->spec.uid_base, false, err)) < 0)
		return -1;
	if (link_pipe(&input, &machine->to_agent, err) < 0 || link_pipe(&machine->from_agent, &output, err) < 0)
		return -1;
	init.input = input;
	init.output = output;
	init.console = console_fd;
	init.disk = disk;
	if (gvisor_init_start(&init, &machine->process, err) < 0)
		return wrap_console(console, err);
	return 0;
}

/* ---- calls ---- */

/* One connection per call: a sandbox process whose guest has ended does not exit while a connection is open. */
static int machine_call(struct engine_machine *machine, const char *method, json_t *arg, const int *fds, size_t count,
			int timeout_ms, json_t **out, struct husk_error *err)
{
	cleanup_close int control = -1;

	if (machine->process.stopped)
		husk_fail(err, HUSK_GONE, "machine %s has been stopped", machine->spec.id);
	else
		control = control_connect(machine->socket, err);
	if (control < 0) {
		json_decref(arg);
		return -1;
	}
	gvisor_init_wake(&machine->process);
	if (control_call(control, method, arg, fds, count, timeout_ms, out, err) < 0)
		return husk_wrap(err, "%s", strrchr(method, '.') + 1);
	return 0;
}

static void gvisor_stop(struct engine_machine *machine)
{
	gvisor_init_stop(&machine->process);
	gvisor_sweep(machine->spec.runtime, machine->spec.id);
}

static void gvisor_free(struct engine_machine *machine)
{
	if (!machine)
		return;
	gvisor_stop(machine);
	gvisor_init_free(&machine->process);
	fd_close(&machine->to_agent);
	fd_close(&machine->from_agent);
	fd_close(&machine->port);
	fd_close(&machine->disks);
	json_decref(machine->addresses);
	json_decref(machine->dying);
	free(machine->root);
	free(machine->socket);
	free(machine->disk);
	free(machine->places);
	for (size_t i = 0; i < ENGINE_SHARES_MAX; i++)
		free(machine->shares[i].directory);
	free(machine);
}

/* Only the runsc version that saved an image can continue it. */
static int choose_program(const struct engine_spec *spec, struct gvisor_program *out, struct husk_error *err)
{
	char version[sizeof(out->version)];

	if (!spec->image || spec->disk_only || image_version(spec->image, version, sizeof(version)) < 0)
		return gvisor_program_find(spec->runtime, NULL, out, err);
	if (gvisor_program_find(spec->runtime, version, out, err) < 0)
		return husk_wrap(err, "the image in '%s' was made by runsc %s and cannot be continued%s", spec->image,
				 version, image_way_out(spec->image));
	return 0;
}

/* Where the writable layer of the machine is: in the engine's memory, or a directory of the host. */
static int choose_disk(struct engine_machine *machine, const struct gvisor_program *program, struct husk_error *err)
{
	const struct engine_spec *spec = &machine->spec;
	bool possible = spec->uid_base && disks_belong(spec->directory, program);

	machine->cloned = spec->image ? spec->uid_base && disk_in_image(spec->image) : possible;
	machine->identity.cloned = machine->cloned;
	if (spec->disk_only && !machine->cloned)
		return husk_fail(err, HUSK_CONFLICT,
				 "its disk is a part of its memory (see `husk doctor`), and only the runsc that made "
				 "it can read it");
	if (spec->disk_only && !possible)
		return husk_fail(err, HUSK_CONFLICT,
				 "its disk is beside its memory, which runsc %s cannot use; "
				 "a current one can (make runsc)",
				 program->version);
	return 0;
}

static int prepare_all(struct engine_machine *machine, struct husk_error *err)
{
	const struct engine_spec *spec = &machine->spec;
	cleanup_free char *bundle = str_format("%s/bundle", spec->directory);
	struct gvisor_program program;

	machine->root = root_path(spec->runtime);
	machine->socket = str_format("%s/runsc/runsc-%s.sock", spec->runtime, spec->id);
	machine->disk = str_format("%s/disk", spec->directory);
	if (!bundle || !machine->disk || !machine->root || !machine->socket)
		return husk_fail_memory(err);
	if (strlen(machine->socket) >= sizeof(((struct sockaddr_un *)0)->sun_path))
		return husk_fail(err, HUSK_INVALID, "'%s' is too long for a socket; choose a shorter HUSK_HOME",
				 machine->socket);
	if (choose_program(spec, &program, err) < 0 ||
	    image_identify(spec, program.version, &machine->identity, err) < 0)
		return -1;
	machine->date = program.date;
	if (choose_disk(machine, &program, err) < 0)
		return -1;
	if (machine->cloned && !(machine->places = str_format("%s/shares", spec->directory)))
		return husk_fail_memory(err);
	if (machine->cloned && (machine->disks = disks_open(spec->directory, err)) < 0)
		return -1;
	if (make_files(machine, bundle, err) < 0)
		return -1;
	/* Remains of a machine with this id, whose supervisor was killed, would make runsc fail. */
	gvisor_sweep(spec->runtime, spec->id);
	if (start_process(machine, &program, bundle, err) < 0)
		return -1;
	machine->port = spec->gateway ? fcntl(spec->gateway->port, F_DUPFD_CLOEXEC, 3) : -1;
	return spec->gateway && machine->port < 0 ? husk_fail_errno(err, "cannot keep the wire") : 0;
}

static int gvisor_prepare(const struct engine_spec *spec, struct engine_machine **out, struct husk_error *err)
{
	struct engine_machine *machine = calloc(1, sizeof(*machine));

	if (!machine)
		return husk_fail_memory(err);
	machine->spec = *spec;
	machine->process = (struct gvisor_process){ .pidfd = -1, .lifeline = -1 };
	machine->to_agent = machine->from_agent = machine->port = machine->disks = -1;
	if (prepare_all(machine, err) < 0) {
		gvisor_free(machine);
		return husk_wrap(err, "cannot prepare machine %s", spec->id);
	}
	*out = machine;
	return 0;
}

/* ---- the rest of its life ---- */

static int check_fresh(struct engine_machine *machine, struct husk_error *err)
{
	if (machine->started)
		return husk_fail(err, HUSK_CONFLICT, "machine %s has been started already", machine->spec.id);
	return 0;
}

/* Possible only once, so it waits until the image, and with it the addresses, is known. */
static int make_links(struct engine_machine *machine, json_t *past, struct husk_error *err)
{
	const struct gateway *gateway = machine->spec.gateway;

	machine->addresses = gvisor_addresses(gateway, past);
	if (!machine->addresses)
		return husk_fail_memory(err);
	/* Later versions store the links for the start or the restore, and make no interface before. */
	const char *method = machine->date >= GVISOR_VERSION_NEW ? "containerManager.SetNetworkArgs"
								 : "Network.CreateLinksAndRoutes";
	int result = machine_call(machine, method, gvisor_links(gateway, machine->addresses), &machine->port,
				  gateway ? 1 : 0, CALL_TIMEOUT_MS, NULL, err);
	fd_close(&machine->port);
	return result;
}

static int begin_disk(struct engine_machine *machine, const char *disk, struct husk_error *err)
{
	const struct engine_spec *spec = &machine->spec;

	if (!machine->cloned)
		return 0;
	return disk ? disk_restore(machine->disks, disk, spec->directory, spec->disk_bytes, err)
		    : disk_begin(machine->disks, spec->directory, spec->disk_bytes, err);
}

static int gvisor_boot(struct engine_machine *machine, const char *disk, struct husk_error *err)
{
	cleanup_free char *console = str_format("%s/console.log", machine->spec.directory);

	if (!console)
		return husk_fail_memory(err);
	machine->identity.shares = machine->places;
	if (check_fresh(machine, err) < 0 || make_links(machine, NULL, err) < 0 || begin_disk(machine, disk, err) < 0)
		return -1;
	if (machine_call(machine, "containerManager.StartRoot", json_string(machine->spec.id), NULL, 0, CALL_TIMEOUT_MS,
			 NULL, err) < 0) {
		/* Its last output comes through the init, which ends after it. */
		struct pollfd ended = { .fd = machine->process.pidfd, .events = POLLIN };
		poll(&ended, 1, LAST_WORDS_MS);
		return wrap_console(console, err);
	}
	machine->started = true;
	return 0;
}

/* runsc could continue the guest before all pages are read ("Background"). Not used: the image of a sandbox that wakes is
 * removed when the sandbox runs, and if the rest of it cannot be read (an I/O error, a smaller memory limit), both are lost. */
static int gvisor_restore(struct engine_machine *machine, const char *image, struct husk_error *err)
{
	struct share_names *names = NULL;
	json_t *past = NULL;
	int fds[IMAGE_FILES], result;

	if (check_fresh(machine, err) < 0 || image_open(image, &machine->identity, fds, &past, err) < 0)
		return -1;
	machine->identity.shares = machine->places && image_has_shares(image);
	result = make_links(machine, past, err);
	json_decref(past);
	if (result == 0 && machine->cloned)
		result = disk_restore(machine->disks, image, machine->spec.directory, machine->spec.disk_bytes, err);
	if (result == 0)
		result = shares_recall(machine->shares, image, &names, err);
	if (result == 0)
		result = machine_call(machine, "containerManager.Restore",
				      json_pack("{s:b, s:b}", "HavePagesFile", 1, "HaveDeviceFile", 0), fds,
				      IMAGE_FILES, IMAGE_TIMEOUT_MS, NULL, err);
	shares_forget(names);
	image_close(fds);
	/* After a failed restore the guest's kernel cannot try again. */
	machine->started = true;
	return result < 0 ? husk_wrap(err, "cannot restore '%s'", image) : 0;
}

static void gvisor_link(struct engine_machine *machine, int *to_agent, int *from_agent)
{
	*to_agent = machine->to_agent;
	*from_agent = machine->from_agent;
}

static int gvisor_wake_fd(struct engine_machine *machine)
{
	return machine->process.lifeline;
}

static int gvisor_end_fd(struct engine_machine *machine)
{
	return machine->process.pidfd;
}

static int gvisor_pause(struct engine_machine *machine, struct husk_error *err)
{
	return machine_call(machine, "containerManager.Pause", json_null(), NULL, 0, CALL_TIMEOUT_MS, NULL, err);
}

static int gvisor_resume(struct engine_machine *machine, struct husk_error *err)
{
	return machine_call(machine, "containerManager.Resume", json_null(), NULL, 0, CALL_TIMEOUT_MS, NULL, err);
}

struct pid_key {
	char text[24];
};

static struct pid_key pid_key(const json_t *pid)
{
	struct pid_key key;

	snprintf(key.text, sizeof(key.text), "%lld", (long long)json_integer_value(pid));
	return key;
}

/* The processes of `list` that were not killed yet, except pid 1. A killed process stays in the list until it has freed
 * its memory and was reaped, which takes seconds in a busy guest. If it were counted again, other processes would be
 * killed for it. */
static json_t *living(struct engine_machine *machine, json_t *list)
{
	json_t *alive = json_array(), *dying = json_object(), *process;
	size_t i;

	json_array_foreach(list, i, process)
	{
		json_t *pid = json_object_get(process, "pid");
		struct pid_key key = pid_key(pid);

		if (json_object_get(machine->dying, key.text))
			json_object_set_new(dying, key.text, json_true());
		else if (json_integer_value(pid) > 1)
			json_array_append(alive, pid);
	}
	json_decref(machine->dying);
	machine->dying = dying;
	return alive;
}

static json_t *list_living(struct engine_machine *machine, struct husk_error *err)
{
	json_t *list = NULL;

	if (machine_call(machine, "containerManager.Processes", json_string(machine->spec.id), NULL, 0, CALL_TIMEOUT_MS,
			 &list, err) < 0)
		return NULL;
	json_t *alive = living(machine, list);
	json_decref(list);
	return alive;
}

/* Kills all processes except pid 1 while the guest is paused: no process can fork meanwhile, so none escapes. */
static int kill_paused(struct engine_machine *machine, struct husk_error *err)
{
	json_t *list = list_living(machine, err), *pid;
	size_t i;
	int killed = 0;

	if (!list)
		return -1;
	json_array_foreach(list, i, pid)
	{
		/* A zombie cannot be signalled: not a failure. */
		if (machine_call(machine, "containerManager.Signal",
				 json_pack("{s:s, s:i, s:O, s:i}", "CID", machine->spec.id, "Signo", SIGKILL, "PID",
					   pid, "Mode", 0),
				 NULL, 0, CALL_TIMEOUT_MS, NULL, NULL) < 0)
			continue;
		json_object_set_new(machine->dying, pid_key(pid).text, json_true());
		killed++;
	}
	json_decref(list);
	return killed;
}

static int gvisor_kill_processes(struct engine_machine *machine, uint64_t most, struct husk_error *err)
{
	json_t *list = list_living(machine, err);

	if (!list)
		return -1;
	bool flood = json_array_size(list) > most;
	json_decref(list);
	if (!flood)
		return 0;
	if (gvisor_pause(machine, err) < 0)
		return -1;
	int killed = kill_paused(machine, err);
	return gvisor_resume(machine, err) < 0 ? -1 : killed;
}

/*
 * With Resume set, runsc continues the guest whether the save worked or not (tested with a full disk under each of the
 * files, also in the middle). So only files have to be removed after a failure.
 */
static int save_memory(struct engine_machine *machine, const int fds[static IMAGE_FILES], struct husk_error *err)
{
	json_t *options =
		json_pack("{s:n, s:{s:s}, s:{s:b}, s:b, s:b}", "key", "metadata", "compression", "none",
			  "MemoryFileSaveOpts", "ExcludeCommittedZeroPages", 0, "have_pages_file", 1, "Resume", 1);

	return machine_call(machine, "containerManager.Checkpoint", options, fds, IMAGE_FILES, IMAGE_TIMEOUT_MS, NULL,
			    err);
}

/* Saves memory and disk of one moment: the guest is paused from before the first to after the second. */
static int save_both(struct engine_machine *machine, const char *image, const int fds[static IMAGE_FILES],
		     struct husk_error *err)
{
	if (gvisor_pause(machine, err) < 0)
		return -1;
	int result = save_memory(machine, fds, err);
	if (result == 0)
		result = shares_save(&machine->process, machine->spec.directory, machine->shares, image, err);
	if (result == 0)
		result = disk_save(machine->disks, machine->spec.directory, image, err);
	return gvisor_resume(machine, result < 0 ? NULL : err) < 0 ? -1 : result;
}

static int gvisor_checkpoint(struct engine_machine *machine, const char *image, struct husk_error *err)
{
	int fds[IMAGE_FILES], result;

	if (image_begin(image, fds, err) < 0)
		return -1;
	result = machine->cloned ? save_both(machine, image, fds, err) : save_memory(machine, fds, err);
	if (result == 0)
		result = image_finish(image, fds, &machine->identity, machine->addresses, err);
	if (result < 0) {
		shares_explain(err);
		if (image_out_of_space(fds[IMAGE_PAGES]))
			husk_fail(err, HUSK_LIMIT, "no space left on the disk of the image");
		image_abandon(image, fds);
		return husk_wrap(err, "cannot checkpoint machine %s into '%s'", machine->spec.id, image);
	}
	image_close(fds);
	return 0;
}

static int gvisor_disk_use(struct engine_machine *machine, uint64_t *used, uint64_t *limit)
{
	*limit = machine->spec.disk_bytes;
	return machine->cloned ? disk_used(machine->disks, machine->spec.directory, used) : -1;
}

static bool gvisor_shares_ready(struct engine_machine *machine)
{
	return machine->identity.shares;
}

static int gvisor_share_add(struct engine_machine *machine, unsigned number, const char *directory, bool read_only,
			    struct husk_error *err)
{
	if (!machine->places || number >= ENGINE_SHARES_MAX || machine->shares[number].directory)
		return husk_fail(err, HUSK_INTERNAL, "machine %s has no place for volume %u", machine->spec.id, number);
	struct share share = { strdup(directory), read_only };
	if (!share.directory)
		return husk_fail_memory(err);
	if (shares_add(&machine->process, machine->places, number, &share, machine->spec.uid_base, err) < 0) {
		free(share.directory);
		return -1;
	}
	machine->shares[number] = share;
	return 0;
}

static const struct engine_shares shares = {
	.make = shares_make,
	.has = disk_in_image,
	.open = shares_open,
	.used = shares_used,
	.ready = gvisor_shares_ready,
	.in_image = shares_in_image,
	.add = gvisor_share_add,
};

static void gvisor_kill(struct engine_machine *machine)
{
	gvisor_init_kill(&machine->process);
}

static void gvisor_expire(struct engine_machine *machine, int64_t expires_ms)
{
	gvisor_init_expire(&machine->process, expires_ms);
}

const struct engine engine_gvisor = {
	.name = "gvisor",
	.variant = gvisor_variant,
	.describe = gvisor_describe,
	.boundary = "gVisor: a kernel of its own in user space, behind seccomp and a user namespace",
	.probe = gvisor_probe,
	.prepare = gvisor_prepare,
	.boot = gvisor_boot,
	.restore = gvisor_restore,
	.link = gvisor_link,
	.wake_fd = gvisor_wake_fd,
	.end_fd = gvisor_end_fd,
	.pause = gvisor_pause,
	.resume = gvisor_resume,
	.checkpoint = gvisor_checkpoint,
	.check = image_check,
	.kill_processes = gvisor_kill_processes,
	.disk_use = gvisor_disk_use,
	.shares = &shares,
	.expire = gvisor_expire,
	.kill = gvisor_kill,
	.stop = gvisor_stop,
	.free = gvisor_free,
	.sweep = gvisor_sweep,
	.send = disk_send,
	.receive = disk_receive,
	.drop = disk_drop,
	.collect = disk_collect,
};
