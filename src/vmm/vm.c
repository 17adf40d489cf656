/*
 * The virtual machine as a whole: created, paused and resumed. Memory is created before the interrupt controllers, because
 * changing memory slots later waits for a grace period. Called by serve.c on the first thread, except for vm_end, which
 * vCPU threads call.
 */
#include "vmm/vm.h"

#include <signal.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>

#define NOTIFY_REGISTER 0x50
#define CREATE_RETRIES 8

int vm_ioctl(int fd, unsigned long request, void *argument)
{
	int result;

	do
		result = ioctl(fd, request, argument);
	while (result < 0 && errno == EINTR);
	return result;
}

int vm_confine(const struct vm *vm, enum rules_kind kind, struct husk_error *err)
{
	return vm->confined ? jail_filter_install(&rules_programs[kind], err) : 0;
}

/* ---- making ---- */

static void *disk_run(void *data)
{
	struct vm *vm = data;
	struct husk_error err = { 0 };

	if (vm_confine(vm, RULES_DISK, &err) == 0)
		while (loop_turn(&vm->disk_loop, &err) == 0)
			;
	vm_end(vm, err.code, "disk: %s", err.message);
	return NULL;
}

static int create_devices(struct vm *vm, struct husk_error *err)
{
	struct virtio_device *const all[DEVICE_COUNT] = {
		[DEVICE_ROOT] = &vm->root.device, [DEVICE_DISK] = &vm->disk.device,
		[DEVICE_NET] = &vm->net.device,   [DEVICE_VSOCK] = &vm->vsock.device,
		[DEVICE_RNG] = &vm->rng.device,   [DEVICE_BALLOON] = &vm->balloon.device,
	};

	for (uint32_t i = 0; i < DEVICE_COUNT; i++) {
		vm->devices[i] = all[i];
		all[i]->address = DEVICE_BASE + i * VIRTIO_WINDOW;
		all[i]->interrupt = DEVICE_INTERRUPT + i;
	}
	if (block_create(&vm->root, &vm->memory, &vm->disk_loop, err) < 0 ||
	    block_create(&vm->disk, &vm->memory, &vm->disk_loop, err) < 0 ||
	    net_create(&vm->net, &vm->memory, &vm->loop, err) < 0 ||
	    vsock_create(&vm->vsock, &vm->memory, &vm->loop, err) < 0 ||
	    rng_create(&vm->rng, &vm->memory, &vm->loop, err) < 0 ||
	    balloon_create(&vm->balloon, &vm->memory, &vm->loop, err) < 0)
		return -1;
	return serial_create(&vm->serial, err);
}

int vm_create(struct vm *vm, struct husk_error *err)
{
	vm->kvm = vm->fd = -1;
	vm->hold = true;
	pthread_mutex_init(&vm->lock, NULL);
	pthread_cond_init(&vm->changed, NULL);
	vm->end_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	vm->generation_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (vm->end_fd < 0 || vm->generation_fd < 0)
		return husk_fail_errno(err, "cannot make an event");
	if (loop_open(&vm->loop, err) < 0 || loop_open(&vm->disk_loop, err) < 0 || create_devices(vm, err) < 0)
		return -1;
	int failed = pthread_create(&vm->disk_thread, NULL, disk_run, vm);
	if (failed) {
		errno = failed;
		return husk_fail_errno(err, "cannot start the disk's thread");
	}
	return 0;
}

static int open_kvm(struct vm *vm, int kvm, struct husk_error *err)
{
	int version = vm_ioctl(kvm, KVM_GET_API_VERSION, NULL), xsave, run_size;

	if (version != KVM_API_VERSION)
		return husk_fail(err, HUSK_UNAVAILABLE, "/dev/kvm speaks version %d, not %d", version, KVM_API_VERSION);
	/* This call is known to fail with EINTR without a signal. */
	for (int i = 0; i < CREATE_RETRIES && vm->fd < 0; i++)
		vm->fd = ioctl(kvm, KVM_CREATE_VM, 0ul);
	run_size = vm_ioctl(kvm, KVM_GET_VCPU_MMAP_SIZE, NULL);
	if (vm->fd < 0 || run_size < (int)sizeof(struct kvm_run))
		return husk_fail_errno(err, "cannot create a virtual machine");
	xsave = vm_ioctl(vm->fd, KVM_CHECK_EXTENSION, (void *)KVM_CAP_XSAVE2);
	vm->run_size = (size_t)run_size;
	vm->xsave_size = MAX((size_t)MAX(xsave, 0), sizeof(struct kvm_xsave));
	vm->kvm = kvm;
	return 0;
}

static int add_slot(struct vm *vm, uint32_t slot, uint64_t address, uint64_t offset, uint64_t size,
		    struct husk_error *err)
{
	struct kvm_userspace_memory_region region = { .slot = slot,
						      .guest_phys_addr = address,
						      .memory_size = size,
						      .userspace_addr = (uintptr_t)vm->memory.host + offset };

	if (size > 0 && vm_ioctl(vm->fd, KVM_SET_USER_MEMORY_REGION, &region) < 0)
		return husk_fail_errno(err, "cannot give the machine %llu MiB of memory",
				       (unsigned long long)size >> 20);
	return 0;
}

static int add_memory(struct vm *vm, uint64_t bytes, struct husk_error *err)
{
	if (memory_create(&vm->memory, bytes, err) < 0 || add_slot(vm, 0, 0, 0, vm->memory.low, err) < 0)
		return -1;
	return add_slot(vm, 1, MEMORY_HIGH, vm->memory.low, bytes - vm->memory.low, err);
}

static int wire_interrupt(struct vm *vm, int fd, uint32_t number, struct husk_error *err)
{
	struct kvm_irqfd irqfd = { .fd = (uint32_t)fd, .gsi = number };

	if (vm_ioctl(vm->fd, KVM_IRQFD, &irqfd) < 0)
		return husk_fail_errno(err, "cannot wire interrupt %u", number);
	return 0;
}

/* A notification wakes the device's loop without leaving the kernel. */
static int wire_device(struct vm *vm, struct virtio_device *device, struct husk_error *err)
{
	if (wire_interrupt(vm, device->interrupt_fd, device->interrupt, err) < 0)
		return -1;
	for (size_t i = 0; i < device->ops->queue_count; i++) {
		struct kvm_ioeventfd event = { .datamatch = i,
					       .addr = device->address + NOTIFY_REGISTER,
					       .len = 4,
					       .fd = device->notify_fds[i],
					       .flags = KVM_IOEVENTFD_FLAG_DATAMATCH };

		if (vm_ioctl(vm->fd, KVM_IOEVENTFD, &event) < 0)
			return husk_fail_errno(err, "cannot wire queue %zu of %s", i, device->ops->name);
	}
	return 0;
}

static int add_interrupts(struct vm *vm, struct husk_error *err)
{
	uint64_t identity = IDENTITY_MAP;

	if (vm_ioctl(vm->fd, KVM_SET_IDENTITY_MAP_ADDR, &identity) < 0 ||
	    vm_ioctl(vm->fd, KVM_SET_TSS_ADDR, (void *)(IDENTITY_MAP + PAGE_BYTES)) < 0)
		return husk_fail_errno(err, "cannot place what KVM needs for itself");
	if (vm_ioctl(vm->fd, KVM_CREATE_IRQCHIP, NULL) < 0)
		return husk_fail_errno(err, "cannot create the interrupt controllers");
	if (wire_interrupt(vm, vm->serial.interrupt_fd, SERIAL_INTERRUPT, err) < 0 ||
	    wire_interrupt(vm, vm->generation_fd, GENERATION_INTERRUPT, err) < 0)
		return -1;
	for (size_t i = 0; i < DEVICE_COUNT; i++)
		if (wire_device(vm, vm->devices[i], err) < 0)
			return -1;
	return 0;
}

static int add_vcpus(struct vm *vm, uint32_t count, struct husk_error *err)
{
	for (uint32_t i = 0; i < count; i++)
		if (vcpu_create(vm, &vm->vcpus[i], i, err) < 0)
			return -1;
	vm->vcpu_count = count;
	for (uint32_t i = 0; i < count; i++)
		if (vcpu_start(&vm->vcpus[i], err) < 0)
			return -1;
	return 0;
}

int vm_shape(struct vm *vm, int kvm, uint32_t vcpus, uint64_t memory_bytes, struct husk_error *err)
{
	if (vcpus < 1 || vcpus > VMM_VCPUS_MAX)
		return husk_fail(err, HUSK_INVALID, "%u vCPUs; give 1 to %d", vcpus, VMM_VCPUS_MAX);
	if (open_kvm(vm, kvm, err) < 0 || add_memory(vm, memory_bytes, err) < 0 || add_interrupts(vm, err) < 0 ||
	    add_vcpus(vm, vcpus, err) < 0)
		return -1;
	vm->stage = VM_SHAPED;
	return 0;
}

/* ---- pausing ---- */

static void park_vcpus(struct vm *vm)
{
	pthread_mutex_lock(&vm->lock);
	vm->hold = true;
	for (uint32_t i = 0; i < vm->vcpu_count; i++)
		vcpu_kick(&vm->vcpus[i]);
	while (vm->parked < vm->vcpu_count)
		pthread_cond_wait(&vm->changed, &vm->lock);
	pthread_mutex_unlock(&vm->lock);
}

static void let_vcpus_go(struct vm *vm)
{
	pthread_mutex_lock(&vm->lock);
	vm->hold = false;
	for (uint32_t i = 0; i < vm->vcpu_count; i++)
		__atomic_store_n(&vm->vcpus[i].run->immediate_exit, 0, __ATOMIC_SEQ_CST);
	pthread_cond_broadcast(&vm->changed);
	pthread_mutex_unlock(&vm->lock);
}

void vm_hold(struct vm *vm)
{
	park_vcpus(vm);
	/* Waits here for a disk request in progress. */
	for (size_t i = 0; i < DEVICE_COUNT; i++)
		pthread_mutex_lock(&vm->devices[i]->lock);
	vm->stage = VM_PAUSED;
}

/* Takes the locks of the devices of the disk thread: both, or none. */
static bool try_disks(struct vm *vm)
{
	if (pthread_mutex_trylock(&vm->root.device.lock) != 0)
		return false;
	if (pthread_mutex_trylock(&vm->disk.device.lock) == 0)
		return true;
	pthread_mutex_unlock(&vm->root.device.lock);
	return false;
}

bool vm_try_hold(struct vm *vm)
{
	/* Tried before the guest is stopped, to avoid a useless stop, and again afterwards: a vCPU's thread takes the
	 * locks too. */
	if (!try_disks(vm))
		return false;
	pthread_mutex_unlock(&vm->disk.device.lock);
	pthread_mutex_unlock(&vm->root.device.lock);
	park_vcpus(vm);
	if (!try_disks(vm)) {
		let_vcpus_go(vm);
		return false;
	}
	for (size_t i = 0; i < DEVICE_COUNT; i++)
		if (i != DEVICE_ROOT && i != DEVICE_DISK)
			pthread_mutex_lock(&vm->devices[i]->lock);
	vm->stage = VM_PAUSED;
	return true;
}

void vm_release(struct vm *vm)
{
	for (size_t i = 0; i < DEVICE_COUNT; i++)
		pthread_mutex_unlock(&vm->devices[i]->lock);
	let_vcpus_go(vm);
	vm->stage = VM_RUNNING;
}

int vm_pause(struct vm *vm, struct husk_error *err)
{
	if (vm->stage != VM_RUNNING)
		return husk_fail(err, HUSK_CONFLICT, "the machine is not running");
	vm_hold(vm);
	return 0;
}

int vm_resume(struct vm *vm, struct husk_error *err)
{
	if (vm->stage != VM_PAUSED)
		return husk_fail(err, HUSK_CONFLICT, "the machine is not paused");
	/* Informs each clock that time was lost, so that the guest does not take the gap for a hang. A clock that the
	 * guest does not use is skipped. */
	for (uint32_t i = 0; i < vm->vcpu_count; i++)
		if (vm_ioctl(vm->vcpus[i].fd, KVM_KVMCLOCK_CTRL, NULL) < 0 && errno != EINVAL)
			return husk_fail_errno(err, "cannot tell the clock of vCPU %u", i);
	vm_release(vm);
	return 0;
}

/* ---- the rest ---- */

void vm_end(struct vm *vm, enum husk_code code, const char *format, ...)
{
	uint64_t one = 1;
	va_list arguments;

	pthread_mutex_lock(&vm->lock);
	if (vm->end.message[0] == '\0') {
		vm->end.code = code;
		va_start(arguments, format);
		vsnprintf(vm->end.message, sizeof(vm->end.message), format, arguments);
		va_end(arguments);
	}
	pthread_mutex_unlock(&vm->lock);
	(void)!write(vm->end_fd, &one, sizeof(one));
}

struct virtio_device *vm_device_at(struct vm *vm, uint64_t address, uint64_t *offset)
{
	if (address < DEVICE_BASE || address >= DEVICE_BASE + DEVICE_COUNT * VIRTIO_WINDOW)
		return NULL;
	*offset = (address - DEVICE_BASE) % VIRTIO_WINDOW;
	return vm->devices[(address - DEVICE_BASE) / VIRTIO_WINDOW];
}

int vm_new_generation(struct vm *vm, bool tell, struct husk_error *err)
{
	uint8_t id[16];
	uint64_t one = 1;

	if (random_bytes(id, sizeof(id)) < 0)
		return husk_fail_errno(err, "cannot make a new generation id");
	if (memory_write(&vm->memory, GENERATION_ADDRESS, id, sizeof(id)) < 0)
		return husk_fail(err, HUSK_INTERNAL, "no memory for the generation id");
	if (tell)
		(void)!write(vm->generation_fd, &one, sizeof(one));
	return 0;
}
