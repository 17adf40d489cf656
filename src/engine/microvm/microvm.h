/*
 * What the files of the microvm engine share, and what engine.c knows of it.
 */
#ifndef HUSK_MICROVM_H
#define HUSK_MICROVM_H

#include <jansson.h>
#include <stdatomic.h>

#include "engine/engine.h"
#include "vmm/control.h"

/* ---- probe.c ---- */

/* Can /dev/kvm run a stock Linux kernel at speed? Runs a tiny guest, in some milliseconds where it can. 0, or -1 with
 * everything that failed, why, and the way out. The answer is remembered under `runtime` for this boot and this device,
 * unless it could be another one a moment later. */
int microvm_probe(const char *runtime, struct husk_error *err);

/* ---- process.c: the husk-vmm of a machine ---- */

struct microvm_shape {
	uint32_t vcpus;
	uint64_t memory_bytes;
};
/* What machines are made with on this host: its image keeps it, so it follows from the host alone. */
int microvm_shape_here(struct microvm_shape *out, struct husk_error *err);

struct microvm_process {
	int pidfd; /* -1: none */
	int control;
	unsigned owed; /* replies to what was posted */
	atomic_bool stopped;
};
#define MICROVM_PROCESS_INIT                                                                                           \
	{                                                                                                              \
		.pidfd = -1, .control = -1                                                                             \
	}
/* Starts it jailed, and asks for a virtual machine with nothing in it; whether there is one tells microvm_settle. */
int microvm_process_start(const struct engine_spec *spec, const struct microvm_shape *shape,
			  struct microvm_process *out, struct husk_error *err);
/* A request, without waiting for its reply: handing over ten files should not take ten turns. After a failure to talk,
 * here and below, the process is killed. */
int microvm_post(struct microvm_process *process, enum control_type type, const uint64_t *values, size_t value_count,
		 const char *text, const int *fds, size_t fd_count, struct husk_error *err);
/* Waits for the replies to all that was posted. The first failure is the result; the values of the last go to `done` (may be
 * NULL). */
int microvm_settle(struct microvm_process *process, int timeout_ms, uint64_t done[CONTROL_VALUES],
		   struct husk_error *err);
/* Ends it and waits until it is gone. Any thread may call this, while another waits for a reply: so it closes nothing,
 * which microvm_process_free does when there are no others. */
void microvm_process_stop(struct microvm_process *process);
void microvm_process_free(struct microvm_process *process); /* as it was before it was started */

/* ---- guest.c: what a first boot needs ---- */

/* The guest kernel. */
int microvm_kernel_open(struct husk_error *err);
/* The agent and the kernel's modules, as a file without a name. */
int microvm_initramfs_make(struct husk_error *err);
/* An empty filesystem of this size as a disk layer in the new file `path`; `directory` is for what lies between. */
int microvm_disk_make(const char *directory, const char *path, uint64_t bytes, struct husk_error *err);

/* ---- layers.c: the files under a machine ---- */

/* Layers of memory or disk, oldest first. Each is a file of the machine's own directory, which is a hard link of the same
 * file in images and in other machines; none is ever written to once it is not the newest. */
struct microvm_layers {
	const char *directory, *kind; /* "memory", "disk" */
	char *paths[VMM_LAYERS_MAX + 2];
	size_t count;
	unsigned next; /* for the name of the next one */
};
void layers_init(struct microvm_layers *layers, const char *directory, const char *kind);
void layers_free(struct microvm_layers *layers);
/* A new, empty layer as the newest: its descriptor. */
int layers_add(struct microvm_layers *layers, struct husk_error *err);
/* The newest is taken away again, with its file. */
void layers_drop_newest(struct microvm_layers *layers);
/* All but the first `keep` and the last `tail` are not needed any more. */
void layers_squash(struct microvm_layers *layers, size_t keep, size_t tail);
/* The first `count` as "<kind>.<n>" in an image. */
int layers_export(const struct microvm_layers *layers, size_t count, const char *image, struct husk_error *err);
/* The `count` layers of an image become this machine's. */
int layers_import(struct microvm_layers *layers, const char *image, size_t count, struct husk_error *err);
/* Their sizes, for the marker: what was cut off is found before it is mapped. */
json_t *layers_describe(const char *image, const char *kind, size_t count, struct husk_error *err);
int layers_check(const char *image, const char *kind, json_t *sizes, struct husk_error *err);

#endif
