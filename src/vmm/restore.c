/*
 * Continues a snapshot: maps memory from the layers, then loads interrupt controllers and clock, then vCPUs, then
 * devices. Then it applies what is new after a restore: a new generation id, closed connections, and a notification of
 * every queue, because notifications in flight are not part of a snapshot. Called by serve.c on a machine that has its
 * shape and has not run. After a failure the process cannot be used again.
 */
#include "vmm/vm.h"

static int check_machine(const struct vm *vm, const struct machine_state *machine, struct husk_error *err)
{
	uint32_t processor[8];

	cpuid_processor(processor);
	if (machine->memory_bytes != vm->memory.size || machine->vcpus != vm->vcpu_count ||
	    machine->device_count != DEVICE_COUNT)
		return husk_fail(
			err, HUSK_CONFLICT,
			"the snapshot is of a machine with %u vCPUs and %llu MiB, this one has %u and %llu MiB",
			machine->vcpus, (unsigned long long)machine->memory_bytes >> 20, vm->vcpu_count,
			(unsigned long long)vm->memory.size >> 20);
	if (machine->disk_bytes != vm->disk.disk.bytes)
		return husk_fail(err, HUSK_CONFLICT, "the snapshot has a disk of %llu bytes, this machine one of %llu",
				 (unsigned long long)machine->disk_bytes, (unsigned long long)vm->disk.disk.bytes);
	if (memcmp(machine->processor, processor, sizeof(processor)) != 0)
		return husk_fail(
			err, HUSK_CONFLICT,
			"the snapshot was taken on another kind of processor; it can only go on where it was taken");
	return 0;
}

static int load_memory(struct vm *vm, const struct buf *sections, struct husk_error *err)
{
	size_t size = 0;
	const void *data = state_find(sections, SECTION_RUNS, 0, &size);
	struct memory_run *runs;

	if (!data || size % sizeof(*runs) != 0)
		return husk_fail(err, HUSK_INVALID, "the state file does not say where memory is");
	runs = malloc(size ? size : 1);
	if (!runs)
		return husk_fail_memory(err);
	memcpy(runs, data, size);
	return memory_map_runs(&vm->memory, runs, size / sizeof(*runs), err);
}

static int load_interrupts(struct vm *vm, const struct buf *sections, struct husk_error *err)
{
	struct kvm_clock_data clock;

	if (state_get(sections, SECTION_CLOCK, 0, &clock, sizeof(clock), "clock", err) < 0)
		return -1;
	clock.flags = 0;
	if (vm_ioctl(vm->fd, KVM_SET_CLOCK, &clock) < 0)
		return husk_fail_errno(err, "cannot set the clock");
	for (uint32_t i = 0; i < 3; i++) {
		struct kvm_irqchip chip;

		if (state_get(sections, SECTION_IRQCHIP, i, &chip, sizeof(chip), "interrupt controller", err) < 0)
			return -1;
		chip.chip_id = i;
		if (vm_ioctl(vm->fd, KVM_SET_IRQCHIP, &chip) < 0)
			return husk_fail_errno(err, "cannot set interrupt controller %u", i);
	}
	return 0;
}

/* A link that was up may be down after a restore: the device's configuration is decided here, not in the snapshot. */
static int load_device(struct virtio_device *device, const struct buf *sections, uint32_t index, struct husk_error *err)
{
	struct virtio_state state;
	uint8_t config[VIRTIO_CONFIG_MAX];

	if (state_get(sections, SECTION_DEVICE, index, &state, sizeof(state), "device", err) < 0)
		return -1;
	memcpy(config, index == DEVICE_BALLOON ? state.config : device->state.config, sizeof(config));
	if (virtio_load(device, &state, err) < 0)
		return -1;
	memcpy(device->state.config, config, sizeof(config));
	return 0;
}

static int load_devices(struct vm *vm, const struct buf *sections, struct husk_error *err)
{
	for (uint32_t i = 0; i < DEVICE_COUNT; i++)
		if (load_device(vm->devices[i], sections, i, err) < 0)
			return -1;
	for (uint32_t i = 0; i < DEVICE_COUNT; i++) {
		if (vm->devices[i]->ops->restored)
			vm->devices[i]->ops->restored(vm->devices[i]);
		virtio_kick(vm->devices[i]);
	}
	return 0;
}

static int load_clock_rate(struct vm *vm, const struct machine_state *machine, struct husk_error *err)
{
	for (uint32_t i = 0; i < vm->vcpu_count && machine->tsc_khz; i++) {
		int khz = vm_ioctl(vm->vcpus[i].fd, KVM_GET_TSC_KHZ, NULL);

		if (khz != (int)machine->tsc_khz &&
		    vm_ioctl(vm->vcpus[i].fd, KVM_SET_TSC_KHZ, (void *)(uintptr_t)machine->tsc_khz) < 0)
			return husk_fail_errno(err, "the snapshot's clock runs at %u kHz, which this host cannot do",
					       machine->tsc_khz);
	}
	return 0;
}

int restore_machine(struct vm *vm, int state_fd, struct husk_error *err)
{
	cleanup_buf struct buf sections = { 0 };
	struct machine_state machine;

	if (vm->stage != VM_SHAPED)
		return husk_fail(err, HUSK_CONFLICT, "the machine has been started already");
	if (state_read(state_fd, &sections, err) < 0 ||
	    state_get(&sections, SECTION_MACHINE, 0, &machine, sizeof(machine), "machine", err) < 0 ||
	    check_machine(vm, &machine, err) < 0)
		return -1;
	vm_hold(vm);
	if (load_memory(vm, &sections, err) < 0)
		return -1;
	memory_prefetch(&vm->memory, (const struct memory_touched *)vm->prefetch.data,
			vm->prefetch.size / sizeof(struct memory_touched));
	if (load_clock_rate(vm, &machine, err) < 0 || load_interrupts(vm, &sections, err) < 0)
		return -1;
	for (uint32_t i = 0; i < vm->vcpu_count; i++)
		if (vcpu_load(&vm->vcpus[i], &sections, err) < 0)
			return -1;
	memcpy(vm->serial.registers, machine.serial, sizeof(machine.serial));
	if (load_devices(vm, &sections, err) < 0)
		return -1;
	return vm_new_generation(vm, true, err);
}
