/*
 * Shared by the files of the microvm engine and used by engine.c.
 */
#ifndef HUSK_MICROVM_H
#define HUSK_MICROVM_H

#include <jansson.h>
#include <stdatomic.h>

#include "engine/engine.h"
#include "vmm/control.h"

/* ---- probe.c ---- */

/* Can /dev/kvm run a stock Linux kernel at full speed? Runs a tiny guest for some milliseconds. 0, or -1 with
 * everything that failed, why, and the fix. The result is cached under `runtime` for this boot and this device, unless
 * it could change in a moment. */
int microvm_probe(const char *runtime, struct husk_error *err);

/* ---- process.c: the husk-vmm of a machine ---- */

struct microvm_shape {
	uint32_t vcpus;
	uint64_t memory_bytes;
};
/* The shape of new machines on this host. Images keep it, so it depends on the host alone. */
int microvm_shape_here(struct microvm_shape *out, struct husk_error *err);

struct microvm_process {
	int pidfd; /* -1: none */
	int control;
	unsigned owed; /* replies that are still expected */
	atomic_bool stopped;
};
#define MICROVM_PROCESS_INIT                                                                                           \
	{                                                                                                              \
		.pidfd = -1, .control = -1                                                                             \
	}
/* Starts the process in its jail, and requests an empty virtual machine; microvm_settle returns whether there is
 * one. */
int microvm_process_start(const struct engine_spec *spec, const struct microvm_shape *shape,
			  struct microvm_process *out, struct husk_error *err);
/* Sends a request without waiting for its reply: passing ten files should not take ten round trips. If the
 * communication fails, here and below, the process is killed. */
int microvm_post(struct microvm_process *process, enum control_type type, const uint64_t *values, size_t value_count,
		 const char *text, const int *fds, size_t fd_count, struct husk_error *err);
/* Waits for all expected replies. The first failure is the result; `done` (may be NULL) gets the values of the last
 * reply. */
int microvm_settle(struct microvm_process *process, int timeout_ms, uint64_t done[CONTROL_VALUES],
		   struct husk_error *err);
/* Ends the process and waits until it is gone. Any thread may call this while another waits for a reply. So it closes
 * nothing; microvm_process_free does that when no other thread uses the process. */
void microvm_process_stop(struct microvm_process *process);
void microvm_process_free(struct microvm_process *process); /* back to the state before the start */

/* ---- guest.c: the first boot ---- */

/* The guest kernel. */
int microvm_kernel_open(struct husk_error *err);
/* The agent and the kernel modules, as a file without a name. */
int microvm_initramfs_make(struct husk_error *err);
/* Makes an empty filesystem of this size as a disk layer in the new file `path`; `directory` is for temporary files. */
int microvm_disk_make(const char *directory, const char *path, uint64_t bytes, struct husk_error *err);

/* ---- layers.c: the layer files of a machine ---- */

/* Layers of memory or disk, oldest first. Each is a file in the machine's own directory: a hard link of the same file
 * in images and in other machines. A layer is never written when it is not the newest. */
struct microvm_layers {
	const char *directory, *kind; /* "memory", "disk" */
	char *paths[VMM_LAYERS_MAX + 2];
	size_t count;
	unsigned next; /* for the name of the next one */
};
void layers_init(struct microvm_layers *layers, const char *directory, const char *kind);
void layers_free(struct microvm_layers *layers);
/* Adds a new, empty layer as the newest; returns its descriptor. */
int layers_add(struct microvm_layers *layers, struct husk_error *err);
/* Removes the newest layer with its file. */
void layers_drop_newest(struct microvm_layers *layers);
/* Removes all layers except the first `keep` and the last `tail`. */
void layers_squash(struct microvm_layers *layers, size_t keep, size_t tail);
/* Links the first `count` layers as "<kind>.<n>" into an image. */
int layers_export(const struct microvm_layers *layers, size_t count, const char *image, struct husk_error *err);
/* Links the `count` layers of an image into this machine. */
int layers_import(struct microvm_layers *layers, const char *image, size_t count, struct husk_error *err);
/* The sizes of the layers, for the marker: a truncated layer is found before it is mapped. */
json_t *layers_describe(const char *image, const char *kind, size_t count, struct husk_error *err);
int layers_check(const char *image, const char *kind, json_t *sizes, struct husk_error *err);

#endif
