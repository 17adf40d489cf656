/*
 * The state file of a snapshot: everything of a machine except its memory and its disk.
 *
 *     header     magic, version, architecture, size and checksum of the rest
 *     sections   { u32 type, u32 index, u64 size } and that many bytes, each padded to 8
 *
 * Before husk-vmm reads the file, its engine has checked that this host made it. The reader still trusts no number in
 * it, because files can be damaged or truncated.
 */
#ifndef HUSK_VMM_STATE_H
#define HUSK_VMM_STATE_H

#include "base/base.h"

#define STATE_MAGIC 0x31564d4b53554848ull /* "HHUSKMV1" */
#define STATE_VERSION 1u
#define STATE_ARCHITECTURE 0x8664u
#define STATE_SIZE_MAX (64u << 20)

enum state_section {
	SECTION_MACHINE = 1, /* struct machine_state */
	SECTION_CLOCK,       /* struct kvm_clock_data */
	SECTION_IRQCHIP,     /* struct kvm_irqchip; index: which */
	SECTION_DEVICE,      /* struct virtio_state; index: which */
	SECTION_RUNS,        /* struct memory_run each */
	/* of a vCPU; index: which */
	SECTION_CPUID,
	SECTION_MP_STATE,
	SECTION_REGS,
	SECTION_SREGS,
	SECTION_XSAVE,
	SECTION_XCRS,
	SECTION_DEBUGREGS,
	SECTION_LAPIC,
	SECTION_MSRS,
	SECTION_EVENTS,
	/* in a file of its own */
	SECTION_TOUCHED, /* struct memory_touched each */
};

struct state_header {
	uint64_t magic;
	uint32_t version, architecture;
	uint64_t size; /* of the sections */
	uint32_t checksum, zero;
};

struct state_section_header {
	uint32_t type, index;
	uint64_t size;
};

struct machine_state {
	uint64_t memory_bytes, disk_bytes;
	uint32_t vcpus, device_count;
	uint32_t processor[8]; /* vendor and model of the host: another one is refused */
	uint32_t tsc_khz;
	uint8_t serial[8];
	uint8_t generation[16]; /* of the machine: its last VMGenID */
};

/* ---- writing ---- */

int state_put(struct buf *out, enum state_section type, uint32_t index, const void *data, size_t size);
int state_write(int fd, const struct buf *sections, struct husk_error *err);

/* ---- reading ---- */

/* The sections of a file, checked without knowledge of their content. */
int state_read(int fd, struct buf *sections, struct husk_error *err);
/* True if the bytes are well-formed sections. */
bool state_valid(const struct buf *sections);
/* A section's bytes; NULL if it is missing. */
const void *state_find(const struct buf *sections, enum state_section type, uint32_t index, size_t *size);
/* Copies a section of known size to `out`. Fails with an error that names `what` if it is missing or has another
 * size. */
int state_get(const struct buf *sections, enum state_section type, uint32_t index, void *out, size_t size,
	      const char *what, struct husk_error *err);

#endif
