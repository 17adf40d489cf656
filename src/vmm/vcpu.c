/*
 * A vCPU: its thread, and the handling of the guest's exits. The thread runs the guest until it must park. A read of a
 * port or address without a device returns ones, as on a real bus. A size or address of an exit must never be trusted
 * beyond what KVM guarantees.
 */
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#include "vmm/vm.h"

#define RESET_PORT 0x64
#define RESET_COMMAND 0xfe
#define MEMORY_RETRIES 50

enum { CR0_PROTECTED = 1, CR0_EXTENSION = 1 << 4 };
#define CR0_PAGING (1ull << 31)
#define CR4_PAE (1ull << 5)
#define EFER_LONG 0x500ull /* enabled and active */
#define PAGE_TABLES 0x9000ull

/* ---- making ---- */

int vcpu_create(struct vm *vm, struct vcpu *vcpu, uint32_t index, struct husk_error *err)
{
	vcpu->vm = vm;
	vcpu->index = index;
	vcpu->fd = vm_ioctl(vm->fd, KVM_CREATE_VCPU, (void *)(uintptr_t)index);
	if (vcpu->fd < 0)
		return husk_fail_errno(err, "cannot create vCPU %u", index);
	vcpu->run = mmap(NULL, vm->run_size, PROT_READ | PROT_WRITE, MAP_SHARED, vcpu->fd, 0);
	if (vcpu->run == MAP_FAILED) {
		vcpu->run = NULL;
		return husk_fail_errno(err, "cannot map vCPU %u", index);
	}
	return 0;
}

static void set_segment(struct kvm_segment *segment, uint16_t selector, uint8_t type, bool code)
{
	*segment = (struct kvm_segment){ .limit = UINT32_MAX,
					 .selector = selector,
					 .type = type,
					 .present = 1,
					 .s = 1,
					 .g = 1,
					 .l = code,
					 .db = !code };
}

/* The first 4 GiB mapped to themselves, in pages of 2 MiB. */
static int make_page_tables(struct vm *vm)
{
	const uint64_t top = PAGE_TABLES, middle = top + PAGE_BYTES, bottom = middle + PAGE_BYTES;
	uint64_t *tables = memory_at(&vm->memory, top, 6 * PAGE_BYTES);

	if (!tables)
		return -1;
	memset(tables, 0, 6 * PAGE_BYTES);
	tables[0] = middle | 3;
	for (uint64_t i = 0; i < 4; i++)
		tables[512 + i] = (bottom + i * PAGE_BYTES) | 3;
	for (uint64_t i = 0; i < 4 * 512; i++)
		tables[1024 + i] = i << 21 | 0x83;
	return 0;
}

int vcpu_set_boot(struct vcpu *vcpu, uint64_t entry, uint64_t parameters, struct husk_error *err)
{
	struct kvm_regs regs = { .rip = entry, .rsi = parameters, .rsp = 0x8ff0, .rflags = 2 };
	struct kvm_sregs sregs;

	if (make_page_tables(vcpu->vm) < 0)
		return husk_fail(err, HUSK_INTERNAL, "no memory for page tables");
	if (vm_ioctl(vcpu->fd, KVM_GET_SREGS, &sregs) < 0)
		return husk_fail_errno(err, "cannot read the registers of vCPU %u", vcpu->index);
	set_segment(&sregs.cs, 0x10, 11, true);
	set_segment(&sregs.ds, 0x18, 3, false);
	sregs.es = sregs.fs = sregs.gs = sregs.ss = sregs.ds;
	sregs.cr0 = CR0_PROTECTED | CR0_EXTENSION | CR0_PAGING;
	sregs.cr3 = PAGE_TABLES;
	sregs.cr4 = CR4_PAE;
	sregs.efer = EFER_LONG;
	if (vm_ioctl(vcpu->fd, KVM_SET_SREGS, &sregs) < 0 || vm_ioctl(vcpu->fd, KVM_SET_REGS, &regs) < 0)
		return husk_fail_errno(err, "cannot set the registers of vCPU %u", vcpu->index);
	return 0;
}

/* ---- exits ---- */

static void port_access(struct vm *vm, struct kvm_run *run)
{
	uint8_t *data = (uint8_t *)run + run->io.data_offset;
	bool in = run->io.direction == KVM_EXIT_IO_IN;

	for (uint32_t i = 0; i < run->io.count; i++, data += run->io.size) {
		uint16_t port = run->io.port;

		if (in)
			memset(data, 0xff, run->io.size);
		if (port >= SERIAL_PORT && port < SERIAL_PORT + SERIAL_PORTS) {
			if (in)
				data[0] = serial_read(&vm->serial, port);
			else
				serial_write(&vm->serial, port, data[0]);
		} else if (!in && port == RESET_PORT && data[0] == RESET_COMMAND) {
			vm_end(vm, 0, "the guest has switched itself off");
		}
	}
}

static void memory_access(struct vm *vm, struct kvm_run *run)
{
	uint64_t offset = 0;
	struct virtio_device *device = vm_device_at(vm, run->mmio.phys_addr, &offset);
	size_t size = MIN(run->mmio.len, sizeof(run->mmio.data));

	/* An access may not cross into the next device's registers. */
	if (device && size > VIRTIO_WINDOW - offset)
		device = NULL;
	if (run->mmio.is_write && device)
		virtio_write(device, offset, run->mmio.data, size);
	else if (!run->mmio.is_write && device)
		virtio_read(device, offset, run->mmio.data, size);
	else if (!run->mmio.is_write)
		memset(run->mmio.data, 0xff, size);
}

/* Returns false if the machine has ended. */
static bool handle_exit(struct vcpu *vcpu)
{
	struct kvm_run *run = vcpu->run;
	struct vm *vm = vcpu->vm;

	switch (run->exit_reason) {
	case KVM_EXIT_IO:
		port_access(vm, run);
		return true;
	case KVM_EXIT_MMIO:
		memory_access(vm, run);
		return true;
	case KVM_EXIT_INTR:
	case KVM_EXIT_IRQ_WINDOW_OPEN:
		return true;
	case KVM_EXIT_HLT:
	case KVM_EXIT_SHUTDOWN:
		vm_end(vm, 0, "the guest has switched itself off");
		return false;
	case KVM_EXIT_SYSTEM_EVENT:
		vm_end(vm, 0, "the guest has switched itself off (event %u)", run->system_event.type);
		return false;
	case KVM_EXIT_FAIL_ENTRY:
		vm_end(vm, HUSK_INTERNAL, "vCPU %u cannot be entered: hardware reason 0x%llx", vcpu->index,
		       (unsigned long long)run->fail_entry.hardware_entry_failure_reason);
		return false;
	case KVM_EXIT_INTERNAL_ERROR:
		vm_end(vm, HUSK_INTERNAL, "vCPU %u: KVM cannot run this guest code (internal error %u)", vcpu->index,
		       run->internal.suberror);
		return false;
	default:
		vm_end(vm, HUSK_INTERNAL, "vCPU %u: unknown exit %u", vcpu->index, run->exit_reason);
		return false;
	}
}

/* ---- the thread ---- */

/* Waits while the machine is held. */
static void park(struct vcpu *vcpu)
{
	struct vm *vm = vcpu->vm;

	pthread_mutex_lock(&vm->lock);
	vm->parked++;
	pthread_cond_broadcast(&vm->changed);
	while (vm->hold)
		pthread_cond_wait(&vm->changed, &vm->lock);
	vm->parked--;
	pthread_mutex_unlock(&vm->lock);
}

static bool must_park(struct vm *vm)
{
	pthread_mutex_lock(&vm->lock);
	bool hold = vm->hold;
	pthread_mutex_unlock(&vm->lock);
	return hold;
}

/*
 * The operation of an exit is complete only when the guest is entered again. So a vCPU never parks right after an exit:
 * a kick makes the next entry return at once, and only then is the state complete.
 */
static void run_guest(struct vcpu *vcpu)
{
	int starved = 0;

	for (;;) {
		int result = ioctl(vcpu->fd, KVM_RUN, 0ul);

		if (result == 0 && !handle_exit(vcpu))
			return;
		if (result == 0)
			continue;
		if (errno == EINTR || errno == EAGAIN) {
			if (must_park(vcpu->vm))
				park(vcpu);
		} else if (errno != ENOMEM || ++starved > MEMORY_RETRIES) {
			vm_end(vcpu->vm, HUSK_INTERNAL, "vCPU %u cannot run: %s", vcpu->index, strerror(errno));
			return;
		}
	}
}

static void *vcpu_run(void *data)
{
	struct vcpu *vcpu = data;
	struct husk_error err = { 0 };

	if (vm_confine(vcpu->vm, RULES_VCPU, &err) < 0)
		vm_end(vcpu->vm, err.code, "%s", err.message);
	park(vcpu);
	run_guest(vcpu);
	/* Counts as parked from now on, so that nobody waits for it. */
	pthread_mutex_lock(&vcpu->vm->lock);
	vcpu->vm->parked++;
	pthread_cond_broadcast(&vcpu->vm->changed);
	pthread_mutex_unlock(&vcpu->vm->lock);
	return NULL;
}

static void on_kick(int number)
{
	(void)number; /* the signal only has to interrupt the guest */
}

int vcpu_start(struct vcpu *vcpu, struct husk_error *err)
{
	const struct sigaction kick = { .sa_handler = on_kick };
	int failed;

	if (sigaction(SIGUSR1, &kick, NULL) < 0)
		return husk_fail_errno(err, "cannot take the signal that stops vCPUs");
	failed = pthread_create(&vcpu->thread, NULL, vcpu_run, vcpu);
	if (failed) {
		errno = failed;
		return husk_fail_errno(err, "cannot start the thread of vCPU %u", vcpu->index);
	}
	vcpu->started = true;
	return 0;
}

void vcpu_kick(struct vcpu *vcpu)
{
	__atomic_store_n(&vcpu->run->immediate_exit, 1, __ATOMIC_SEQ_CST);
	pthread_kill(vcpu->thread, SIGUSR1);
}
