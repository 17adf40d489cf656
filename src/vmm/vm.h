/*
 * A virtual machine: one per process, made and controlled by the first thread.
 *
 * Threads: the first serves control and all devices except the disks; one serves the disks; one runs each vCPU. A pause
 * stops the vCPUs outside the guest, then takes the lock of every device. From then on only the first thread accesses
 * the machine.
 */
#ifndef HUSK_VMM_VM_H
#define HUSK_VMM_VM_H

#include <linux/kvm.h>
#include <pthread.h>

#include "vmm/balloon.h"
#include "vmm/block.h"
#include "vmm/control.h"
#include "vmm/net.h"
#include "vmm/rng.h"
#include "vmm/rules.h"
#include "vmm/serial.h"
#include "vmm/state.h"
#include "vmm/vsock.h"

/* The guest's addresses other than memory. */
#define DEVICE_BASE 0xd0000000ull /* virtio devices, one window each */
#define IOAPIC_BASE 0xfec00000ull
#define APIC_BASE 0xfee00000ull
#define IDENTITY_MAP 0xfeffc000ull /* four pages that KVM needs on some processors */
#define ACPI_BASE 0xe0000ull
#define ACPI_SIZE 0x10000ull
#define GENERATION_ADDRESS 0xef000ull /* the VMGenID's 16 bytes, inside the ACPI area */

#define SERIAL_INTERRUPT 4u
#define DEVICE_INTERRUPT 5u      /* the first device's; the others follow */
#define GENERATION_INTERRUPT 15u /* the VMGenID has changed */

enum { DEVICE_ROOT, DEVICE_DISK, DEVICE_NET, DEVICE_VSOCK, DEVICE_RNG, DEVICE_BALLOON, DEVICE_COUNT };

struct vcpu {
	struct vm *vm;
	uint32_t index;
	int fd;
	struct kvm_run *run;
	pthread_t thread;
	bool started;
};

enum vm_stage { VM_EMPTY, VM_SHAPED, VM_RUNNING, VM_PAUSED };

struct vm {
	enum vm_stage stage;
	bool confined; /* its threads install their filters; tests use a machine without */
	int kvm, fd;
	size_t run_size;   /* of a vCPU's shared page */
	size_t xsave_size; /* of its extended registers */
	struct memory memory;
	struct buf prefetch; /* struct memory_touched each: pages that a restore loads in advance */
	struct vcpu vcpus[VMM_VCPUS_MAX];
	uint32_t vcpu_count;

	struct loop loop, disk_loop;
	pthread_t disk_thread;
	struct serial serial;
	struct block root, disk;
	struct net net;
	struct vsock vsock;
	struct rng rng;
	struct balloon balloon;
	struct virtio_device *devices[DEVICE_COUNT];
	int generation_fd; /* written to: the VMGenID has changed */

	/* How vCPUs are stopped. */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool hold;       /* vCPUs must park */
	uint32_t parked; /* how many are parked */

	int end_fd;            /* a vCPU signals here that the machine has ended … */
	struct husk_error end; /* … and why; code 0: the guest switched itself off. Under `lock` */
};

/* ---- vm.c ---- */

/* Devices and loops, before there is a virtual machine; starts the disk thread. */
int vm_create(struct vm *vm, struct husk_error *err);
/* The virtual machine: memory, interrupt controllers, vCPUs (parked), devices wired up. Takes the descriptor over. */
int vm_shape(struct vm *vm, int kvm, uint32_t vcpus, uint64_t memory_bytes, struct husk_error *err);
/* Stops vCPUs and devices, in any state of the machine. */
void vm_hold(struct vm *vm);
/* The same for a moment, on a running machine: returns false if a disk request is in progress, which may take long. */
bool vm_try_hold(struct vm *vm);
/* Continues a held machine. After a long hold, its clocks must be informed first: vm_resume. */
void vm_release(struct vm *vm);
int vm_pause(struct vm *vm, struct husk_error *err);
int vm_resume(struct vm *vm, struct husk_error *err);
/* The machine has ended: called from a vCPU's thread. */
void vm_end(struct vm *vm, enum husk_code code, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* The device whose registers are at this address, or NULL. */
struct virtio_device *vm_device_at(struct vm *vm, uint64_t address, uint64_t *offset);
/* Sets a new VMGenID and informs the guest (unless it has not booted yet). */
int vm_new_generation(struct vm *vm, bool tell, struct husk_error *err);
/* Installs the filter of this kind on the calling thread, for good. */
int vm_confine(const struct vm *vm, enum rules_kind kind, struct husk_error *err);
/* ioctl that is repeated after EINTR. */
int vm_ioctl(int fd, unsigned long request, void *argument);

/* ---- vcpu.c ---- */

/* vCPU `index`; its features are set by the boot, or by the restore. */
int vcpu_create(struct vm *vm, struct vcpu *vcpu, uint32_t index, struct husk_error *err);
int vcpu_start(struct vcpu *vcpu, struct husk_error *err); /* starts its thread, which parks at once */
void vcpu_kick(struct vcpu *vcpu);                         /* makes it leave the guest and check `hold` */
/* Ready to boot: in long mode at `entry` with the boot parameters at `parameters`. */
int vcpu_set_boot(struct vcpu *vcpu, uint64_t entry, uint64_t parameters, struct husk_error *err);

/* ---- cpuid.c ---- */

#define CPUID_ENTRIES 256
struct cpuid_list { /* struct kvm_cpuid2, with room */
	uint32_t count, zero;
	struct kvm_cpuid_entry2 entries[CPUID_ENTRIES];
};
_Static_assert(offsetof(struct cpuid_list, entries) == sizeof(struct kvm_cpuid2), "as KVM lays it out");
/* Sets the features of every vCPU: those of this host's processor, as a machine of its own. Slow. */
int cpuid_set(struct vm *vm, struct husk_error *err);
/* Vendor, family and model of the host's processor: a snapshot can only be restored on the same ones. */
void cpuid_processor(uint32_t out[static 8]);

/* ---- cpustate.c ---- */

int vcpu_save(struct vcpu *vcpu, struct buf *out, struct husk_error *err);
int vcpu_load(struct vcpu *vcpu, const struct buf *sections, struct husk_error *err);

/* ---- boot.c, acpi.c ---- */

/* Loads kernel and initramfs and sets the first vCPU up to start it. */
int boot_linux(struct vm *vm, int kernel, int initramfs, const char *command_line, struct husk_error *err);
/* Writes the tables; *root is the address for the kernel. */
int acpi_write(struct vm *vm, uint64_t *root, struct husk_error *err);

/* ---- ahead.c ---- */

#define AHEAD_WINDOWS 64u /* parts of memory searched for one piece at most: 512 MiB */
/* Moves up to about `most` changed pages into the open layer; `done` as enum ahead_done. */
int ahead_step(struct vm *vm, uint64_t most, uint64_t done[static CONTROL_VALUES], struct husk_error *err);

/* ---- snapshot.c, restore.c ---- */

struct snapshot_files {
	int state, memory, disk; /* new and empty; on success, takes ownership of memory and disk */
};
int snapshot_take(struct vm *vm, struct snapshot_files *files, uint64_t done[static CONTROL_VALUES],
		  struct husk_error *err);
/* Continues from a state file; memory and disk layers were added before. The machine stays paused. */
int restore_machine(struct vm *vm, int state, struct husk_error *err);

#endif
