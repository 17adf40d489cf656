/*
 * The state file of a snapshot; see state.h. Called by snapshot.c and restore.c. The reader must never use a size from
 * the file before it is checked against the bytes left.
 */
#include "vmm/state.h"

#include <sys/stat.h>

/* CRC-32C with the processor's instruction: every processor that can run a guest has it. */
__attribute__((target("sse4.2"))) static uint32_t checksum(const char *data, size_t size)
{
	uint64_t sum = UINT32_MAX, word;

	for (; size >= sizeof(word); data += sizeof(word), size -= sizeof(word)) {
		memcpy(&word, data, sizeof(word));
		sum = __builtin_ia32_crc32di(sum, word);
	}
	for (; size > 0; data++, size--)
		sum = __builtin_ia32_crc32qi((uint32_t)sum, (unsigned char)*data);
	return ~(uint32_t)sum;
}

static size_t padded(size_t size)
{
	return (size + 7) & ~(size_t)7;
}

int state_put(struct buf *out, enum state_section type, uint32_t index, const void *data, size_t size)
{
	const struct state_section_header header = { .type = type, .index = index, .size = size };
	static const char zero[8];

	if (buf_append(out, &header, sizeof(header)) < 0 || (size > 0 && buf_append(out, data, size) < 0))
		return -1;
	return padded(size) == size ? 0 : buf_append(out, zero, padded(size) - size);
}

int state_write(int fd, const struct buf *sections, struct husk_error *err)
{
	const struct state_header header = { .magic = STATE_MAGIC,
					     .version = STATE_VERSION,
					     .architecture = STATE_ARCHITECTURE,
					     .size = sections->size,
					     .checksum = checksum(sections->data, sections->size) };

	if (write_full(fd, &header, sizeof(header)) < 0 || write_full(fd, sections->data, sections->size) < 0)
		return husk_fail_errno(err, "cannot write the state of the machine");
	return 0;
}

static int check_header(const struct state_header *header, off_t file_size, struct husk_error *err)
{
	if (header->magic != STATE_MAGIC)
		return husk_fail(err, HUSK_INVALID, "the state file is not one of husk's");
	if (header->version != STATE_VERSION || header->architecture != STATE_ARCHITECTURE)
		return husk_fail(err, HUSK_CONFLICT,
				 "the state file is of version %u, this husk reads %u; make it again", header->version,
				 STATE_VERSION);
	if (header->size > STATE_SIZE_MAX || (off_t)(header->size + sizeof(*header)) != file_size)
		return husk_fail(err, HUSK_INVALID, "the state file is damaged: it has another size than it says");
	return 0;
}

int state_read(int fd, struct buf *sections, struct husk_error *err)
{
	struct state_header header;
	struct stat st;

	if (fstat(fd, &st) < 0 || lseek(fd, 0, SEEK_SET) < 0)
		return husk_fail_errno(err, "cannot look at the state file");
	if (read_full(fd, &header, sizeof(header)) != (ssize_t)sizeof(header))
		return husk_fail(err, HUSK_INVALID, "the state file is cut off");
	if (check_header(&header, st.st_size, err) < 0)
		return -1;
	if (buf_reserve(sections, header.size) < 0)
		return husk_fail_memory(err);
	if (read_full(fd, sections->data, header.size) != (ssize_t)header.size)
		return husk_fail_errno(err, "cannot read the state file");
	sections->size = header.size;
	if (checksum(sections->data, sections->size) != header.checksum || !state_valid(sections))
		return husk_fail(err, HUSK_INVALID, "the state file is damaged: its checksum is wrong");
	return 0;
}

/* Moves to the section at *at; false at the end, or if the rest is malformed. */
static bool next(const struct buf *sections, size_t *at, struct state_section_header *header, const char **data)
{
	size_t left = sections->size - *at;

	if (left < sizeof(*header))
		return false;
	memcpy(header, sections->data + *at, sizeof(*header));
	left -= sizeof(*header);
	if (header->size > left || padded(header->size) > left)
		return false;
	*data = sections->data + *at + sizeof(*header);
	*at += sizeof(*header) + padded(header->size);
	return true;
}

bool state_valid(const struct buf *sections)
{
	struct state_section_header header;
	const char *data;
	size_t at = 0;

	while (next(sections, &at, &header, &data))
		;
	return at == sections->size;
}

const void *state_find(const struct buf *sections, enum state_section type, uint32_t index, size_t *size)
{
	struct state_section_header header;
	const char *data;
	size_t at = 0;

	while (next(sections, &at, &header, &data)) {
		if (header.type == (uint32_t)type && header.index == index) {
			*size = header.size;
			return data;
		}
	}
	return NULL;
}

int state_get(const struct buf *sections, enum state_section type, uint32_t index, void *out, size_t size,
	      const char *what, struct husk_error *err)
{
	size_t found = 0;
	const void *data = state_find(sections, type, index, &found);

	if (!data || found != size)
		return husk_fail(err, HUSK_INVALID, "the state file has no %s (%u) that fits", what, index);
	memcpy(out, data, size);
	return 0;
}
