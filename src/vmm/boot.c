/*
 * Boots Linux by the kernel's own boot protocol: a bzImage at its 64-bit entry, an initramfs, a command line and a map
 * of memory. The kernel unpacks itself. Called once, by serve.c. The files belong to the host, but their numbers are
 * checked nevertheless.
 */
#include <asm/bootparam.h>
#include <sys/stat.h>

#include "vmm/vm.h"

#define HEADER_MAGIC 0x53726448u /* "HdrS" */
#define PROTOCOL_MIN 0x020cu
#define PARAMETERS 0x7000ull
#define COMMAND_LINE 0x20000ull
#define LOW_END 0x9fc00ull
#define ENTRY_64 0x200u
#define KERNEL_MAX (256ull << 20)
#define LOADER_OTHER 0xff

static int read_at(const struct memory *memory, int fd, uint64_t offset, uint64_t address, uint64_t size,
		   const char *what, struct husk_error *err)
{
	uint8_t *to = memory_at(memory, address, size);

	if (!to)
		return husk_fail(err, HUSK_INVALID, "the %s does not fit into guest memory", what);
	while (size > 0) {
		ssize_t got = pread(fd, to, size, (off_t)offset);

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return husk_fail_errno(err, "cannot read the %s", what);
		to += got;
		offset += (uint64_t)got;
		size -= (uint64_t)got;
	}
	return 0;
}

static int file_size(int fd, const char *what, uint64_t *out, struct husk_error *err)
{
	struct stat st;

	if (fstat(fd, &st) < 0)
		return husk_fail_errno(err, "cannot look at the %s", what);
	if (st.st_size <= 0 || (uint64_t)st.st_size > KERNEL_MAX)
		return husk_fail(err, HUSK_INVALID, "a %s of %lld bytes", what, (long long)st.st_size);
	*out = (uint64_t)st.st_size;
	return 0;
}

/* ---- the kernel ---- */

static int check_header(const struct setup_header *header, struct husk_error *err)
{
	if (header->boot_flag != 0xaa55 || header->header != HEADER_MAGIC)
		return husk_fail(err, HUSK_INVALID, "the kernel is not a bzImage");
	if (header->version < PROTOCOL_MIN || !(header->xloadflags & XLF_KERNEL_64))
		return husk_fail(err, HUSK_INVALID, "the kernel has no 64-bit entry (boot protocol 0x%x)",
				 header->version);
	return 0;
}

static int load_kernel(struct vm *vm, int fd, struct boot_params *parameters, uint64_t *entry, struct husk_error *err)
{
	struct setup_header *header = &parameters->hdr;
	uint64_t size, setup, end;
	ssize_t got = pread(fd, header, sizeof(*header), offsetof(struct boot_params, hdr));

	if (got != (ssize_t)sizeof(*header) || file_size(fd, "kernel", &size, err) < 0)
		return got < 0 ? husk_fail_errno(err, "cannot read the kernel")
			       : husk_fail(err, HUSK_INVALID, "the kernel is not a bzImage");
	if (check_header(header, err) < 0)
		return -1;
	setup = ((header->setup_sects ? header->setup_sects : 4u) + 1u) * 512u;
	/* The kernel unpacks itself in place: all the memory that it needs there must exist. */
	if (setup >= size || __builtin_add_overflow(header->pref_address, header->init_size, &end) ||
	    !memory_at(&vm->memory, header->pref_address, MAX(header->init_size, size - setup)))
		return husk_fail(err, HUSK_INVALID, "the kernel needs more memory than the machine has");
	*entry = header->pref_address + ENTRY_64;
	return read_at(&vm->memory, fd, setup, header->pref_address, size - setup, "kernel", err);
}

/* As high as the kernel can reach, away from all other data. */
static int load_initramfs(struct vm *vm, int fd, struct boot_params *parameters, struct husk_error *err)
{
	struct setup_header *header = &parameters->hdr;
	uint64_t size, top = MIN(vm->memory.low, (uint64_t)header->initrd_addr_max + 1), address;

	if (file_size(fd, "initramfs", &size, err) < 0)
		return -1;
	if (size + header->pref_address + header->init_size > top)
		return husk_fail(err, HUSK_INVALID, "kernel and initramfs need more memory than the machine has");
	address = (top - size) & ~(PAGE_BYTES - 1);
	header->ramdisk_image = (uint32_t)address;
	header->ramdisk_size = (uint32_t)size;
	return read_at(&vm->memory, fd, 0, address, size, "initramfs", err);
}

/* ---- boot parameters ---- */

static void add_range(struct boot_params *parameters, uint64_t address, uint64_t size, uint32_t type)
{
	parameters->e820_table[parameters->e820_entries++] =
		(struct boot_e820_entry){ .addr = address, .size = size, .type = type };
}

static void describe_memory(const struct memory *memory, struct boot_params *parameters)
{
	const uint32_t ram = 1, reserved = 2;

	add_range(parameters, 0, LOW_END, ram);
	add_range(parameters, LOW_END, 0x100000 - LOW_END, reserved);
	add_range(parameters, 0x100000, memory->low - 0x100000, ram);
	if (memory->size > memory->low)
		add_range(parameters, MEMORY_HIGH, memory->size - memory->low, ram);
}

/* Husk's kernels do not set up the old interrupt controllers, which KVM connects beside the new ones. Until the kernel
 * has masked them at its processor, an interrupt raised by a restore would arrive as an exception. */
static int silence_old_controllers(struct vm *vm, struct husk_error *err)
{
	for (uint32_t i = KVM_IRQCHIP_PIC_MASTER; i <= KVM_IRQCHIP_PIC_SLAVE; i++) {
		struct kvm_irqchip chip = { .chip_id = i };

		if (vm_ioctl(vm->fd, KVM_GET_IRQCHIP, &chip) < 0)
			return husk_fail_errno(err, "cannot read interrupt controller %u", i);
		chip.chip.pic.imr = 0xff;
		if (vm_ioctl(vm->fd, KVM_SET_IRQCHIP, &chip) < 0)
			return husk_fail_errno(err, "cannot set interrupt controller %u", i);
	}
	return 0;
}

int boot_linux(struct vm *vm, int kernel, int initramfs, const char *command_line, struct husk_error *err)
{
	struct boot_params parameters = { 0 };
	uint64_t entry = 0, acpi = 0;

	if (load_kernel(vm, kernel, &parameters, &entry, err) < 0 ||
	    load_initramfs(vm, initramfs, &parameters, err) < 0)
		return -1;
	if (strlen(command_line) >= parameters.hdr.cmdline_size)
		return husk_fail(err, HUSK_INVALID, "the kernel takes command lines of %u bytes at most",
				 parameters.hdr.cmdline_size);
	if (acpi_write(vm, &acpi, err) < 0 || vm_new_generation(vm, false, err) < 0)
		return -1;
	parameters.hdr.type_of_loader = LOADER_OTHER;
	parameters.hdr.cmd_line_ptr = (uint32_t)COMMAND_LINE;
	parameters.acpi_rsdp_addr = acpi;
	describe_memory(&vm->memory, &parameters);
	if (memory_write(&vm->memory, COMMAND_LINE, command_line, strlen(command_line) + 1) < 0 ||
	    memory_write(&vm->memory, PARAMETERS, &parameters, sizeof(parameters)) < 0)
		return husk_fail(err, HUSK_INTERNAL, "no memory for the boot parameters");
	if (silence_old_controllers(vm, err) < 0 || cpuid_set(vm, err) < 0)
		return -1;
	return vcpu_set_boot(&vm->vcpus[0], entry, PARAMETERS, err);
}
