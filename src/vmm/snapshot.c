/*
 * Takes a snapshot: writes changed memory to a new layer, seals the disk's layer, and writes the rest to the state file.
 * Then the running machine moves onto the new layers too, so that parent and copies share them. Called by serve.c while the
 * machine is paused. Until the state file is complete, nothing of the machine changes: a failure leaves it as it was, and
 * the engine deletes the files.
 */
#include "vmm/vm.h"

static int put_machine(struct vm *vm, struct buf *out, struct husk_error *err)
{
	struct machine_state machine = { .memory_bytes = vm->memory.size,
					 .disk_bytes = vm->disk.disk.bytes,
					 .vcpus = vm->vcpu_count,
					 .device_count = DEVICE_COUNT };
	int khz = vm_ioctl(vm->vcpus[0].fd, KVM_GET_TSC_KHZ, NULL);

	machine.tsc_khz = khz > 0 ? (uint32_t)khz : 0;
	cpuid_processor(machine.processor);
	memcpy(machine.serial, vm->serial.registers, sizeof(machine.serial));
	memory_read(&vm->memory, GENERATION_ADDRESS, machine.generation, sizeof(machine.generation));
	return state_put(out, SECTION_MACHINE, 0, &machine, sizeof(machine)) < 0 ? husk_fail_memory(err) : 0;
}

static int put_interrupts(struct vm *vm, struct buf *out, struct husk_error *err)
{
	struct kvm_clock_data clock = { 0 };

	for (uint32_t i = 0; i < 3; i++) {
		struct kvm_irqchip chip = { .chip_id = i };

		if (vm_ioctl(vm->fd, KVM_GET_IRQCHIP, &chip) < 0)
			return husk_fail_errno(err, "cannot read interrupt controller %u", i);
		if (state_put(out, SECTION_IRQCHIP, i, &chip, sizeof(chip)) < 0)
			return husk_fail_memory(err);
	}
	if (vm_ioctl(vm->fd, KVM_GET_CLOCK, &clock) < 0)
		return husk_fail_errno(err, "cannot read the clock");
	clock.flags = 0; /* the guest's time stands still while it is on disk; the agent sets the wall clock */
	return state_put(out, SECTION_CLOCK, 0, &clock, sizeof(clock)) < 0 ? husk_fail_memory(err) : 0;
}

static int put_all(struct vm *vm, struct buf *out, struct husk_error *err)
{
	if (put_machine(vm, out, err) < 0)
		return -1;
	for (uint32_t i = 0; i < vm->vcpu_count; i++)
		if (vcpu_save(&vm->vcpus[i], out, err) < 0)
			return -1;
	if (put_interrupts(vm, out, err) < 0)
		return -1;
	for (uint32_t i = 0; i < DEVICE_COUNT; i++)
		if (state_put(out, SECTION_DEVICE, i, &vm->devices[i]->state, sizeof(vm->devices[i]->state)) < 0)
			return husk_fail_memory(err);
	return 0;
}

/* Moves the machine to the new layers. The image is already complete; if this fails, the machine cannot continue, and
 * the error says that. */
static int adopt(struct vm *vm, struct memory_delta *delta, struct snapshot_files *files, size_t disk_needed,
		 bool disk_used, struct husk_error *err)
{
	if (memory_delta_adopt(&vm->memory, delta, steal_fd(&files->memory), err) < 0) {
		vm_end(vm, HUSK_INTERNAL, "cannot go on after a snapshot: %s", err->message);
		return -1;
	}
	if (disk_used)
		disk_next_layer(&vm->disk.disk, disk_needed, steal_fd(&files->disk));
	return 0;
}

int snapshot_take(struct vm *vm, struct snapshot_files *files, uint64_t done[static CONTROL_VALUES],
		  struct husk_error *err)
{
	cleanup(memory_delta_free) struct memory_delta delta = { 0 };
	cleanup_buf struct buf state = { 0 };
	size_t disk_needed = 0;

	if (vm->stage != VM_PAUSED)
		return husk_fail(err, HUSK_CONFLICT, "the machine is not paused");
	bool disk_used = vm->disk.disk.written;
	/* Memory last: KVM may still write to it while it saves the state of a vCPU. */
	if (put_all(vm, &state, err) < 0 || memory_delta_find(&vm->memory, &delta, err) < 0)
		return -1;
	if (state_put(&state, SECTION_RUNS, 0, delta.runs, delta.run_count * sizeof(*delta.runs)) < 0)
		return husk_fail_memory(err);
	if (memory_delta_write(&vm->memory, &delta, files->memory, err) < 0)
		return -1;
	if (disk_used && (disk_seal(&vm->disk.disk, &disk_needed, err) < 0 ||
			  disk_start_layer(&vm->disk.disk, files->disk, err) < 0))
		return -1;
	if (state_write(files->state, &state, err) < 0)
		return -1;
	done[SNAPSHOT_MEMORY_LAYERS] = delta.layer;
	done[SNAPSHOT_MEMORY_PAGES] = delta.pages;
	done[SNAPSHOT_DISK_LAYERS] = disk_used ? disk_needed : vm->disk.disk.layer_count - 1;
	done[SNAPSHOT_DISK_USED] = disk_used;
	return adopt(vm, &delta, files, disk_needed, disk_used, err);
}
