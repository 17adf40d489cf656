/*
 * What the files of the gVisor engine share. engine.c knows gvisor_sweep; nobody else includes this.
 */
#ifndef HUSK_GVISOR_H
#define HUSK_GVISOR_H

#include <jansson.h>

#include "engine/engine.h"
#include "engine/marker.h"

/* ---- gvisor.c ---- */

void gvisor_sweep(const char *runtime, const char *id);

/* ---- program.c: the installed runsc ---- */

#define GVISOR_VERSION_MIN 20240729
struct gvisor_program {
	char path[512];
	char version[64];
	char key[256]; /* changes with the file and with each boot of the host */
};
/* Finds it and asks for its version (remembered under `runtime`); refuses one that is too old. */
int gvisor_program_find(const char *runtime, struct gvisor_program *out, struct husk_error *err);

/* ---- probe.c ---- */

int gvisor_probe(const char *runtime, struct husk_error *err);

/* ---- spec.c ---- */

/* Writes bundle/config.json for a machine whose writable layer is backed by a file in `disk`. */
int gvisor_spec_write(const struct engine_spec *spec, const char *bundle, const char *disk, struct husk_error *err);

/* ---- network.c ---- */

/* What the guest's interface is to have: the machine's own address first, then those that the guest had in the machines
 * its image comes from. gVisor ends a restored guest with a socket bound to an address that is gone. */
json_t *gvisor_addresses(const struct gateway *gateway, json_t *past);
/* The argument of Network.CreateLinksAndRoutes; without a gateway there is loopback only. */
json_t *gvisor_links(const struct gateway *gateway, json_t *addresses);

/* ---- init.c: the host-side pid 1 of a machine's processes ---- */

struct gvisor_init {
	const char *const *argv; /* `runsc … create …`; full path in argv[0] */
	const char *pid_file;    /* where that leaves the pid of the sandbox process */
	int input, output;       /* the agent's stdin and stdout */
	int console;             /* file that takes what it prints on stderr, up to a bound */
	struct cgroup *cgroup;   /* NULL: stay where we are */
};
struct gvisor_process {
	pid_t pid;
	int pidfd;    /* readable once the machine is over */
	int lifeline; /* the machine ends when the last copy of this is closed */
};
/* Starts it, and with it the machine; returns once `create` has succeeded. */
int gvisor_init_start(const struct gvisor_init *init, struct gvisor_process *out, struct husk_error *err);
/* Work is coming: lets a quiet machine get ready for it. */
void gvisor_init_wake(struct gvisor_process *process);
/* Ends everything of it and waits until it is gone. */
void gvisor_init_stop(struct gvisor_process *process);

/* ---- root.c ---- */

/* The mounts of a machine's host side, in its new namespace; async-signal-safe. */
int gvisor_own_mounts(void);

/* ---- quiet.c: an idle machine that costs nothing ---- */

#define QUIET_PERIOD_MS 500
#define QUIET_SLEEP_MS 2000 /* … and for one that sleeps */
#define QUIET_HOLD_MS 3000  /* how long it is left alone after quiet_wake */
enum quiet_level { QUIET_BUSY, QUIET_LIGHT, QUIET_DEEP, QUIET_ASLEEP };
struct quiet { /* zero it, then set `sandbox`; the rest is quiet.c's */
	pid_t sandbox, monitor;
	uint64_t sum, last; /* CPU time of the guest, ns */
	unsigned still, found, threads;
	int64_t up, idle; /* of the host, in hundredths of a second, when last looked */
	bool crowded;
	enum quiet_level level;
};
void quiet_look(struct quiet *quiet); /* every period: makes it as quiet as its guest is */
int quiet_period(const struct quiet *quiet);
void quiet_wake(struct quiet *quiet); /* there will be work: exact timers at once */

/* ---- control.c: calls to the sandbox process over its control socket ---- */

int control_connect(const char *path, struct husk_error *err);
/* One call. Takes over `arg`. `out` (may be NULL) gets its result, for json_decref. UNAVAILABLE: no such method; GONE: it has ended. After a failure the connection is of no
 * further use: half a request or a late answer on it would be taken for part of the next call. */
int control_call(int fd, const char *method, json_t *arg, const int *fds, size_t count, int timeout_ms, json_t **out,
		 struct husk_error *err);

/* ---- image.c: a checkpoint as a directory ---- */

enum gvisor_file { IMAGE_STATE, IMAGE_META, IMAGE_PAGES, IMAGE_FILES }; /* in the order runsc wants their descriptors */
/* What an image must have in common with the machine that restores it. */
struct gvisor_identity {
	struct marker_identity common;
	char version[64]; /* of runsc */
};
int image_identify(const struct engine_spec *spec, const char *version, struct gvisor_identity *out,
		   struct husk_error *err);
/* Opens the files to write, under names that restore ignores; only image_finish makes an image of them. */
int image_begin(const char *image, int fds[static IMAGE_FILES], struct husk_error *err);
int image_finish(const char *image, const int fds[static IMAGE_FILES], const struct gvisor_identity *identity,
		 json_t *addresses, struct husk_error *err);
void image_abandon(const char *image, int fds[static IMAGE_FILES]); /* closes them too */
void image_close(int fds[static IMAGE_FILES]);
/* Is the filesystem of an image file full? runsc does not always say so. */
bool image_out_of_space(int fd);
/* Opens an image for restore after checking all of it that can be checked cheaply. `addresses` get those the guest had,
 * for json_decref. */
int image_open(const char *image, const struct gvisor_identity *identity, int fds[static IMAGE_FILES],
	       json_t **addresses, struct husk_error *err);

#endif
