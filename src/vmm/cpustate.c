/*
 * The whole state of a vCPU, saved and loaded in the order that KVM requires, because some registers change the meaning of
 * others. Called by snapshot.c and restore.c while the vCPU is parked. A register that cannot be read is an error; it is
 * never left out.
 */
#include "vmm/vm.h"

#include <sys/ioctl.h>

#define MSRS_MAX 512
#define MSR_TSC 0x10u
#define MSR_TSC_DEADLINE 0x6e0u

struct msr_list { /* struct kvm_msrs, with room */
	uint32_t count, zero;
	struct kvm_msr_entry entries[MSRS_MAX];
};
_Static_assert(offsetof(struct msr_list, entries) == sizeof(struct kvm_msrs), "as KVM lays it out");

struct msr_numbers { /* struct kvm_msr_list, with room */
	uint32_t count, indices[MSRS_MAX];
};

/* ---- saving ---- */

static int save_part(struct vcpu *vcpu, unsigned long request, void *data, size_t size, enum state_section type,
		     struct buf *out, struct husk_error *err)
{
	if (vm_ioctl(vcpu->fd, request, data) < 0)
		return husk_fail_errno(err, "cannot read the state of vCPU %u (section %d)", vcpu->index, type);
	return state_put(out, type, vcpu->index, data, size) < 0 ? husk_fail_memory(err) : 0;
}

/* The numbered registers that this KVM can save. KVM reads a list up to the first register without a value; that one is
 * left out, and the rest is read again. */
static int read_msrs(struct vcpu *vcpu, struct msr_list *out, struct husk_error *err)
{
	cleanup_free struct msr_list *part = calloc(1, sizeof(*part));
	struct msr_numbers known = { .count = MSRS_MAX };

	if (!part)
		return husk_fail_memory(err);
	if (vm_ioctl(vcpu->vm->kvm, KVM_GET_MSR_INDEX_LIST, &known) < 0)
		return husk_fail_errno(err, "cannot ask KVM which registers there are");
	out->count = 0;
	for (uint32_t done = 0; done < known.count; done++) {
		part->count = known.count - done;
		for (uint32_t i = 0; i < part->count; i++)
			part->entries[i] = (struct kvm_msr_entry){ .index = known.indices[done + i] };
		int got = vm_ioctl(vcpu->fd, KVM_GET_MSRS, part);
		if (got < 0)
			return husk_fail_errno(err, "cannot read the registers of vCPU %u", vcpu->index);
		memcpy(out->entries + out->count, part->entries, (size_t)got * sizeof(part->entries[0]));
		out->count += (uint32_t)got;
		done += (uint32_t)got;
	}
	return 0;
}

static int save_msrs(struct vcpu *vcpu, struct buf *out, struct husk_error *err)
{
	cleanup_free struct msr_list *msrs = calloc(1, sizeof(*msrs));

	if (!msrs)
		return husk_fail_memory(err);
	if (read_msrs(vcpu, msrs, err) < 0)
		return -1;
	return state_put(out, SECTION_MSRS, vcpu->index, msrs->entries, msrs->count * sizeof(msrs->entries[0])) < 0
		       ? husk_fail_memory(err)
		       : 0;
}

static int save_cpuid(struct vcpu *vcpu, struct buf *out, struct husk_error *err)
{
	cleanup_free struct cpuid_list *cpuid = calloc(1, sizeof(*cpuid));

	if (!cpuid)
		return husk_fail_memory(err);
	cpuid->count = CPUID_ENTRIES;
	if (vm_ioctl(vcpu->fd, KVM_GET_CPUID2, cpuid) < 0)
		return husk_fail_errno(err, "cannot read what vCPU %u can do", vcpu->index);
	return state_put(out, SECTION_CPUID, vcpu->index, cpuid->entries, cpuid->count * sizeof(cpuid->entries[0])) < 0
		       ? husk_fail_memory(err)
		       : 0;
}

static int save_xsave(struct vcpu *vcpu, struct buf *out, struct husk_error *err)
{
	bool large = vcpu->vm->xsave_size > sizeof(struct kvm_xsave);
	cleanup_free void *xsave = calloc(1, vcpu->vm->xsave_size);

	if (!xsave)
		return husk_fail_memory(err);
	return save_part(vcpu, large ? KVM_GET_XSAVE2 : KVM_GET_XSAVE, xsave, vcpu->vm->xsave_size, SECTION_XSAVE, out,
			 err);
}

int vcpu_save(struct vcpu *vcpu, struct buf *out, struct husk_error *err)
{
	struct kvm_mp_state mp_state = { 0 };
	struct kvm_regs regs = { 0 };
	struct kvm_sregs sregs = { 0 };
	struct kvm_xcrs xcrs = { 0 };
	struct kvm_debugregs debugregs = { 0 };
	struct kvm_lapic_state lapic = { 0 };
	struct kvm_vcpu_events events = { 0 };

	/* Reading the first part makes KVM finish pending work; the last part must be read after all others. */
	if (save_part(vcpu, KVM_GET_MP_STATE, &mp_state, sizeof(mp_state), SECTION_MP_STATE, out, err) < 0 ||
	    save_cpuid(vcpu, out, err) < 0 ||
	    save_part(vcpu, KVM_GET_REGS, &regs, sizeof(regs), SECTION_REGS, out, err) < 0 ||
	    save_part(vcpu, KVM_GET_SREGS, &sregs, sizeof(sregs), SECTION_SREGS, out, err) < 0 ||
	    save_xsave(vcpu, out, err) < 0 ||
	    save_part(vcpu, KVM_GET_XCRS, &xcrs, sizeof(xcrs), SECTION_XCRS, out, err) < 0 ||
	    save_part(vcpu, KVM_GET_DEBUGREGS, &debugregs, sizeof(debugregs), SECTION_DEBUGREGS, out, err) < 0 ||
	    save_part(vcpu, KVM_GET_LAPIC, &lapic, sizeof(lapic), SECTION_LAPIC, out, err) < 0 ||
	    save_msrs(vcpu, out, err) < 0)
		return -1;
	return save_part(vcpu, KVM_GET_VCPU_EVENTS, &events, sizeof(events), SECTION_EVENTS, out, err);
}

/* ---- loading ---- */

static int load_part(struct vcpu *vcpu, unsigned long request, void *data, size_t size, enum state_section type,
		     const struct buf *sections, const char *what, struct husk_error *err)
{
	if (state_get(sections, type, vcpu->index, data, size, what, err) < 0)
		return -1;
	if (vm_ioctl(vcpu->fd, request, data) < 0)
		return husk_fail_errno(err, "cannot set the %s of vCPU %u", what, vcpu->index);
	return 0;
}

static int load_cpuid(struct vcpu *vcpu, const struct buf *sections, struct husk_error *err)
{
	cleanup_free struct cpuid_list *cpuid = calloc(1, sizeof(*cpuid));
	size_t size = 0;
	const void *data = state_find(sections, SECTION_CPUID, vcpu->index, &size);

	if (!cpuid)
		return husk_fail_memory(err);
	if (!data || size % sizeof(cpuid->entries[0]) != 0 || size > sizeof(cpuid->entries))
		return husk_fail(err, HUSK_INVALID, "the state file has no processor description for vCPU %u",
				 vcpu->index);
	cpuid->count = (uint32_t)(size / sizeof(cpuid->entries[0]));
	memcpy(cpuid->entries, data, size);
	if (vm_ioctl(vcpu->fd, KVM_SET_CPUID2, cpuid) < 0)
		return husk_fail_errno(err, "cannot tell vCPU %u what it can do", vcpu->index);
	return 0;
}

static int set_msrs(struct vcpu *vcpu, struct msr_list *msrs, struct husk_error *err)
{
	int done = msrs->count ? vm_ioctl(vcpu->fd, KVM_SET_MSRS, msrs) : 0;

	if (done < 0)
		return husk_fail_errno(err, "cannot set the registers of vCPU %u", vcpu->index);
	if ((uint32_t)done != msrs->count)
		return husk_fail(err, HUSK_CONFLICT, "register 0x%x of vCPU %u cannot be set here",
				 msrs->entries[done].index, vcpu->index);
	return 0;
}

/* Sets only registers that differ from a new vCPU: some can be read but not written. The timer comes last. */
static int load_msrs(struct vcpu *vcpu, const struct buf *sections, struct husk_error *err)
{
	cleanup_free struct msr_list *fresh = calloc(1, sizeof(*fresh)), *set = calloc(1, sizeof(*set));
	size_t size = 0;
	const struct kvm_msr_entry *saved = state_find(sections, SECTION_MSRS, vcpu->index, &size), *deadline = NULL;

	if (!fresh || !set)
		return husk_fail_memory(err);
	if (!saved || size % sizeof(*saved) != 0 || size > sizeof(set->entries) - sizeof(*saved))
		return husk_fail(err, HUSK_INVALID, "the state file has no registers for vCPU %u", vcpu->index);
	if (read_msrs(vcpu, fresh, err) < 0)
		return -1;
	for (size_t i = 0, at = 0; i < size / sizeof(*saved); i++) {
		while (at < fresh->count && fresh->entries[at].index != saved[i].index)
			at++;
		if (saved[i].index == MSR_TSC_DEADLINE)
			deadline = &saved[i];
		else if (at == fresh->count || fresh->entries[at].data != saved[i].data || saved[i].index == MSR_TSC)
			set->entries[set->count++] = saved[i];
		if (at == fresh->count)
			at = 0; /* the lists are in one order, except across versions of KVM */
	}
	if (deadline)
		set->entries[set->count++] = *deadline;
	return set_msrs(vcpu, set, err);
}

static int load_xsave(struct vcpu *vcpu, const struct buf *sections, struct husk_error *err)
{
	cleanup_free void *xsave = calloc(1, vcpu->vm->xsave_size);

	if (!xsave)
		return husk_fail_memory(err);
	return load_part(vcpu, KVM_SET_XSAVE, xsave, vcpu->vm->xsave_size, SECTION_XSAVE, sections,
			 "extended registers", err);
}

int vcpu_load(struct vcpu *vcpu, const struct buf *sections, struct husk_error *err)
{
	struct kvm_mp_state mp_state;
	struct kvm_regs regs;
	struct kvm_sregs sregs;
	struct kvm_xcrs xcrs;
	struct kvm_debugregs debugregs;
	struct kvm_lapic_state lapic;
	struct kvm_vcpu_events events;

	if (load_cpuid(vcpu, sections, err) < 0 ||
	    load_part(vcpu, KVM_SET_MP_STATE, &mp_state, sizeof(mp_state), SECTION_MP_STATE, sections, "run state",
		      err) < 0 ||
	    load_part(vcpu, KVM_SET_REGS, &regs, sizeof(regs), SECTION_REGS, sections, "registers", err) < 0 ||
	    load_part(vcpu, KVM_SET_SREGS, &sregs, sizeof(sregs), SECTION_SREGS, sections, "special registers", err) <
		    0 ||
	    load_xsave(vcpu, sections, err) < 0 ||
	    load_part(vcpu, KVM_SET_XCRS, &xcrs, sizeof(xcrs), SECTION_XCRS, sections, "extended control", err) < 0 ||
	    load_part(vcpu, KVM_SET_DEBUGREGS, &debugregs, sizeof(debugregs), SECTION_DEBUGREGS, sections,
		      "debug registers", err) < 0 ||
	    load_part(vcpu, KVM_SET_LAPIC, &lapic, sizeof(lapic), SECTION_LAPIC, sections, "interrupt controller",
		      err) < 0 ||
	    load_msrs(vcpu, sections, err) < 0 ||
	    load_part(vcpu, KVM_SET_VCPU_EVENTS, &events, sizeof(events), SECTION_EVENTS, sections, "events", err) < 0)
		return -1;
	return 0;
}
