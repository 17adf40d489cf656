/*
 * The tables that describe the machine to the guest's kernel: hardware-reduced ACPI with the processors, the interrupt
 * controller, the virtio devices, the serial port and the VMGenID. Called once before boot. The few functions below
 * build AML, the byte code of the device descriptions; each appends its bytes to a buffer.
 */
#include "vmm/vm.h"

#define OEM "HUSK  "
#define FADT_SIZE 276u
#define FADT_REDUCED (1u << 20)
#define INTERRUPT_EDGE 0x03 /* consumer, edge, active high, exclusive */

struct table_header {
	char signature[4];
	uint32_t size;
	uint8_t revision, checksum;
	char oem[6], oem_table[8];
	uint32_t oem_revision;
	char creator[4];
	uint32_t creator_revision;
} __attribute__((packed));

struct root_pointer {
	char signature[8];
	uint8_t checksum;
	char oem[6];
	uint8_t revision;
	uint32_t unused;
	uint32_t size;
	uint64_t table;
	uint8_t extended_checksum, zero[3];
} __attribute__((packed));

/* ---- AML ---- */

/* A failed append leaves the buffer short; acpi_write checks once at the end. */
struct aml {
	struct buf bytes;
	bool failed;
};

static void aml_bytes(struct aml *aml, const void *data, size_t size)
{
	aml->failed |= buf_append(&aml->bytes, data, size) < 0;
}

static void aml_byte(struct aml *aml, uint8_t byte)
{
	aml_bytes(aml, &byte, 1);
}

static void aml_integer(struct aml *aml, uint32_t value)
{
	aml_byte(aml, 0x0c); /* DWordPrefix */
	aml_bytes(aml, &value, sizeof(value));
}

static void aml_string(struct aml *aml, const char *text)
{
	aml_byte(aml, 0x0d);
	aml_bytes(aml, text, strlen(text) + 1);
}

/* A length that counts itself; always in the three-byte form, so that it can be filled in afterwards. */
static size_t aml_open(struct aml *aml)
{
	size_t at = aml->bytes.size;

	aml_bytes(aml, "\0\0\0", 3);
	return at;
}

static void aml_close(struct aml *aml, size_t at)
{
	size_t size = aml->bytes.size - at;

	if (aml->failed)
		return;
	aml->bytes.data[at] = (char)(0x80 | (size & 0x0f));
	aml->bytes.data[at + 1] = (char)(size >> 4);
	aml->bytes.data[at + 2] = (char)(size >> 12);
}

static size_t aml_scope(struct aml *aml, const char *name)
{
	aml_byte(aml, 0x10);
	size_t at = aml_open(aml);
	aml_bytes(aml, name, strlen(name));
	return at;
}

static size_t aml_device(struct aml *aml, const char name[static 4])
{
	aml_bytes(aml, "\x5b\x82", 2);
	size_t at = aml_open(aml);
	aml_bytes(aml, name, 4);
	return at;
}

static void aml_name(struct aml *aml, const char name[static 4])
{
	aml_byte(aml, 0x08);
	aml_bytes(aml, name, 4);
}

static void aml_name_string(struct aml *aml, const char name[static 4], const char *text)
{
	aml_name(aml, name);
	aml_string(aml, text);
}

static void aml_name_integer(struct aml *aml, const char name[static 4], uint32_t value)
{
	aml_name(aml, name);
	aml_integer(aml, value);
}

/* "PNP0501" in the packed form that some drivers compare with. */
static void aml_name_eisa(struct aml *aml, const char name[static 4], const char id[static 7])
{
	uint32_t value = 0;

	for (int i = 0; i < 3; i++)
		value = value << 5 | (uint32_t)(id[i] - '@');
	for (int i = 3; i < 7; i++)
		value = value << 4 | (uint32_t)(id[i] <= '9' ? id[i] - '0' : id[i] - 'A' + 10);
	aml_name(aml, name);
	aml_byte(aml, 0x0c);
	const uint8_t swapped[] = { (uint8_t)(value >> 24), (uint8_t)(value >> 16), (uint8_t)(value >> 8),
				    (uint8_t)value };
	aml_bytes(aml, swapped, sizeof(swapped));
}

/* A buffer of resource descriptors: memory range and ports as given (size 0: none), and an interrupt. */
static void aml_resources(struct aml *aml, uint32_t address, uint32_t size, uint16_t port, uint32_t interrupt)
{
	struct aml list = { 0 };

	if (size) {
		const uint32_t range[] = { address, size };
		aml_bytes(&list, "\x86\x09\x00\x01", 4); /* Memory32Fixed, writable */
		aml_bytes(&list, range, sizeof(range));
	}
	if (port) {
		const uint16_t range[] = { port, port };
		aml_bytes(&list, "\x47\x01", 2); /* IO, 16 bit */
		aml_bytes(&list, range, sizeof(range));
		aml_bytes(&list, "\x01\x08", 2);
	}
	aml_bytes(&list, "\x89\x06\x00", 3); /* extended interrupt */
	aml_byte(&list, INTERRUPT_EDGE);
	aml_byte(&list, 1);
	aml_bytes(&list, &interrupt, sizeof(interrupt));
	aml_bytes(&list, "\x79\x00", 2); /* end, without a checksum */

	aml_name(aml, "_CRS");
	aml_byte(aml, 0x11);
	size_t at = aml_open(aml);
	aml_byte(aml, 0x0a);
	aml_byte(aml, (uint8_t)list.bytes.size);
	aml_bytes(aml, list.bytes.data, list.bytes.size);
	aml_close(aml, at);
	aml->failed |= list.failed;
	buf_free(&list.bytes);
}

/* ---- the devices ---- */

static void put_virtio(struct aml *aml, const struct vm *vm)
{
	for (uint32_t i = 0; i < DEVICE_COUNT; i++) {
		char name[5];

		snprintf(name, sizeof(name), "VR%02X", i);
		size_t at = aml_device(aml, name);
		aml_name_string(aml, "_HID", "LNRO0005");
		aml_name_integer(aml, "_UID", i);
		aml_name_integer(aml, "_CCA", 1);
		aml_resources(aml, (uint32_t)vm->devices[i]->address, (uint32_t)VIRTIO_WINDOW, 0,
			      vm->devices[i]->interrupt);
		aml_close(aml, at);
	}
}

static void put_serial(struct aml *aml)
{
	size_t at = aml_device(aml, "COM1");

	aml_name_eisa(aml, "_HID", "PNP0501");
	aml_name_integer(aml, "_UID", 0);
	aml_resources(aml, 0, 0, SERIAL_PORT, SERIAL_INTERRUPT);
	aml_close(aml, at);
}

/* The address of the id, and an event device whose interrupt reports a change of the id. */
static void put_generation(struct aml *aml)
{
	size_t device = aml_device(aml, "VGEN"), package, method;

	aml_name_string(aml, "_HID", "VMGENCTR");
	aml_name_string(aml, "_CID", "VM_Gen_Counter");
	aml_name_string(aml, "_DDN", "VM_Gen_Counter");
	aml_name(aml, "ADDR");
	aml_byte(aml, 0x12);
	package = aml_open(aml);
	aml_byte(aml, 2);
	aml_integer(aml, (uint32_t)GENERATION_ADDRESS);
	aml_integer(aml, 0);
	aml_close(aml, package);
	aml_close(aml, device);

	device = aml_device(aml, "GEDV");
	aml_name_string(aml, "_HID", "ACPI0013");
	aml_name_integer(aml, "_UID", 0);
	aml_resources(aml, 0, 0, 0, GENERATION_INTERRUPT);
	aml_byte(aml, 0x14); /* Method (_EVT, 1) { Notify (VGEN, 0x80) } */
	method = aml_open(aml);
	aml_bytes(aml, "_EVT\x01", 5);
	aml_byte(aml, 0x86);
	aml_bytes(aml, "\x5c\x2e_SB_VGEN", 10);
	aml_bytes(aml, "\x0a\x80", 2);
	aml_close(aml, method);
	aml_close(aml, device);
}

/* ---- tables ---- */

static uint8_t sum(const void *data, size_t size)
{
	const uint8_t *bytes = data;
	uint8_t total = 0;

	for (size_t i = 0; i < size; i++)
		total = (uint8_t)(total + bytes[i]);
	return (uint8_t)-total;
}

/* Writes header and body at *address, and moves *address past them. Returns the table's address. */
static uint64_t put_table(const struct vm *vm, uint64_t *address, const char *signature, uint8_t revision,
			  const void *body, size_t size)
{
	struct table_header header = { .size = (uint32_t)(sizeof(header) + size),
				       .revision = revision,
				       .oem = OEM,
				       .oem_table = "HUSKVM  ",
				       .oem_revision = 1,
				       .creator = "HUSK",
				       .creator_revision = 1 };
	uint64_t at = *address;

	memcpy(header.signature, signature, sizeof(header.signature));
	header.checksum = (uint8_t)(sum(&header, sizeof(header)) + sum(body, size));
	if (at + header.size > GENERATION_ADDRESS || memory_write(&vm->memory, at, &header, sizeof(header)) < 0 ||
	    memory_write(&vm->memory, at + sizeof(header), body, size) < 0)
		return 0;
	*address = (at + header.size + 63) & ~63ull;
	return at;
}

static uint64_t put_dsdt(struct vm *vm, uint64_t *address)
{
	struct aml aml = { 0 };
	uint64_t at = 0;
	size_t scope = aml_scope(&aml, "\\_SB_");

	put_virtio(&aml, vm);
	put_serial(&aml);
	put_generation(&aml);
	aml_close(&aml, scope);
	if (!aml.failed)
		at = put_table(vm, address, "DSDT", 2, aml.bytes.data, aml.bytes.size);
	buf_free(&aml.bytes);
	return at;
}

static uint64_t put_fadt(struct vm *vm, uint64_t *address, uint64_t dsdt)
{
	uint8_t body[FADT_SIZE - sizeof(struct table_header)] = { 0 };
	const uint32_t flags = FADT_REDUCED;
	const size_t base = sizeof(struct table_header);

	memcpy(body + 112 - base, &flags, sizeof(flags));
	body[131 - base] = 5; /* minor version of 6.5 */
	memcpy(body + 140 - base, &dsdt, sizeof(dsdt));
	memcpy(body + 268 - base, "HUSKVM\0", 8);
	return put_table(vm, address, "FACP", 6, body, sizeof(body));
}

static uint64_t put_madt(struct vm *vm, uint64_t *address)
{
	cleanup_buf struct buf body = { 0 };
	const uint32_t start[] = { (uint32_t)APIC_BASE, 0 };
	const struct {
		uint8_t type, size, id, zero;
		uint32_t address, first;
	} __attribute__((packed)) ioapic = { 1, 12, 0, 0, (uint32_t)IOAPIC_BASE, 0 };
	bool failed = buf_append(&body, start, sizeof(start)) < 0;

	for (uint32_t i = 0; i < vm->vcpu_count; i++) {
		const uint8_t processor[] = { 0, 8, (uint8_t)i, (uint8_t)i, 1, 0, 0, 0 };
		failed |= buf_append(&body, processor, sizeof(processor)) < 0;
	}
	failed |= buf_append(&body, &ioapic, sizeof(ioapic)) < 0;
	return failed ? 0 : put_table(vm, address, "APIC", 5, body.data, body.size);
}

int acpi_write(struct vm *vm, uint64_t *root, struct husk_error *err)
{
	struct root_pointer pointer = { .signature = "RSD PTR ", .oem = OEM, .revision = 2, .size = sizeof(pointer) };
	uint64_t address = ACPI_BASE + 64, dsdt = put_dsdt(vm, &address);
	const uint64_t tables[] = { dsdt ? put_fadt(vm, &address, dsdt) : 0, put_madt(vm, &address) };

	if (tables[0] && tables[1])
		pointer.table = put_table(vm, &address, "XSDT", 1, tables, sizeof(tables));
	if (!pointer.table)
		return husk_fail(err, HUSK_INTERNAL, "no room for the ACPI tables");
	pointer.checksum = sum(&pointer, 20);
	pointer.extended_checksum = sum(&pointer, sizeof(pointer));
	if (memory_write(&vm->memory, ACPI_BASE, &pointer, sizeof(pointer)) < 0)
		return husk_fail(err, HUSK_INTERNAL, "no room for the ACPI tables");
	*root = ACPI_BASE;
	return 0;
}
