/*
 * The features that a vCPU reports: those that KVM supports, with the vCPU's own number and the number of its siblings.
 * Called when a vCPU is created; a restored vCPU keeps its features. A feature that KVM does not support must never be
 * reported.
 */
#include <cpuid.h>

#include "vmm/vm.h"

#define FEATURE_TSC_DEADLINE (1u << 24) /* leaf 1, ecx */
#define FEATURE_HYPERVISOR (1u << 31)
#define FEATURE_MONITOR (1u << 3)
#define TIMER_ALWAYS_RUNS (1u << 2) /* leaf 6, eax */
#define FEATURE_THREADS (1u << 28)  /* leaf 1, edx */

static uint32_t bits_for(uint32_t count)
{
	uint32_t bits = 0;

	while ((1u << bits) < count)
		bits++;
	return bits;
}

/* Leaves 0xb and 0x1f: one thread a core, all cores in one package. */
static void set_topology(struct kvm_cpuid_entry2 *entry, uint32_t index, uint32_t count)
{
	entry->edx = index;
	if (entry->index == 0) {
		entry->eax = 0;
		entry->ebx = 1;
		entry->ecx = 1u << 8;
	} else if (entry->index == 1) {
		entry->eax = bits_for(count);
		entry->ebx = count;
		entry->ecx = 2u << 8 | 1;
	} else {
		entry->eax = entry->ebx = 0;
		entry->ecx = entry->index;
	}
}

static void adjust(struct kvm_cpuid_entry2 *entry, uint32_t index, uint32_t count)
{
	switch (entry->function) {
	case 1:
		entry->ebx = (entry->ebx & 0xffff) | count << 16 | index << 24;
		entry->ecx = (entry->ecx | FEATURE_HYPERVISOR) & ~FEATURE_MONITOR;
		entry->edx = count > 1 ? entry->edx | FEATURE_THREADS : entry->edx & ~FEATURE_THREADS;
		break;
	case 4:
		entry->eax &= ~0xffffc000u;
		if ((entry->eax & 0x1f) != 0) /* caches below the last level are a core's own */
			entry->eax |= ((entry->eax >> 5 & 7) >= 3 ? count - 1 : 0) << 14 | (count - 1) << 26;
		break;
	case 6: /* power and heat belong to the host; but a timer that never stops lets an idle guest sleep */
		entry->eax = TIMER_ALWAYS_RUNS;
		entry->ebx = entry->ecx = entry->edx = 0;
		break;
	case 10: /* performance counters belong to the host, too */
		entry->eax = entry->ebx = entry->ecx = entry->edx = 0;
		break;
	case 0xb:
	case 0x1f:
		set_topology(entry, index, count);
		break;
	case 0x80000008:
		entry->ecx = (entry->ecx & ~0xf0ffu) | (count - 1) | bits_for(count) << 12;
		break;
	case 0x8000001e:
		entry->eax = index;
		entry->ebx = index;
		entry->ecx = 0;
		break;
	default:
		break;
	}
}

static int supported(int kvm, struct cpuid_list *out, struct husk_error *err)
{
	out->count = CPUID_ENTRIES;
	if (vm_ioctl(kvm, KVM_GET_SUPPORTED_CPUID, out) < 0)
		return husk_fail_errno(err, "cannot ask KVM what a vCPU can do");
	if (vm_ioctl(kvm, KVM_CHECK_EXTENSION, (void *)KVM_CAP_TSC_DEADLINE_TIMER) > 0)
		for (uint32_t i = 0; i < out->count; i++)
			if (out->entries[i].function == 1)
				out->entries[i].ecx |= FEATURE_TSC_DEADLINE;
	return 0;
}

int cpuid_set(struct vm *vm, struct husk_error *err)
{
	cleanup_free struct cpuid_list *list = calloc(1, sizeof(*list));

	if (!list)
		return husk_fail_memory(err);
	if (supported(vm->kvm, list, err) < 0)
		return -1;
	for (uint32_t index = 0; index < vm->vcpu_count; index++) {
		for (uint32_t i = 0; i < list->count; i++) /* of what the vCPU before sees, too */
			adjust(&list->entries[i], index, vm->vcpu_count);
		if (vm_ioctl(vm->vcpus[index].fd, KVM_SET_CPUID2, list) < 0)
			return husk_fail_errno(err, "cannot tell vCPU %u what it can do", index);
	}
	return 0;
}

void cpuid_processor(uint32_t out[static 8])
{
	memset(out, 0, 8 * sizeof(*out));
	__cpuid(0, out[0], out[1], out[2], out[3]);
	__cpuid(1, out[4], out[5], out[6], out[7]);
	/* In leaf 1 only the model and the features count, not the processor that this ran on. */
	out[5] = 0;
	out[6] &= ~(1u << 27); /* the operating system decides whether extended state is on */
}
