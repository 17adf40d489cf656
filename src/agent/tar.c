/*
 * Numbers and checksums of tar headers; see tar.h. Used by the packer and the unpacker. The bytes are not trusted: no
 * function here may read past a field or overflow.
 */
#include "agent/tar.h"

static int number_read_binary(const uint8_t *field, size_t size, int64_t *out)
{
	uint64_t value = field[0] & 0x7f;

	if (field[0] & 0x40) /* negative */
		return -1;
	for (size_t i = 1; i < size; i++) {
		if (value >> 55)
			return -1;
		value = value << 8 | field[i];
	}
	*out = (int64_t)value;
	return 0;
}

int tar_number_read(const char *field, size_t size, int64_t *out)
{
	int64_t value = 0;
	size_t i = 0;

	if ((uint8_t)field[0] & 0x80)
		return number_read_binary((const uint8_t *)field, size, out);
	while (i < size && field[i] == ' ')
		i++;
	for (; i < size && field[i] >= '0' && field[i] <= '7'; i++)
		value = value * 8 + (field[i] - '0'); /* at most 12 digits: 36 bits */
	for (; i < size; i++) {
		if (field[i] != ' ' && field[i] != '\0')
			return -1;
	}
	*out = value;
	return 0;
}

void tar_number_write(char *field, size_t size, uint64_t value)
{
	if (value >> (3 * (size - 1)) == 0) {
		field[size - 1] = '\0';
		for (size_t i = size - 1; i-- > 0; value >>= 3)
			field[i] = (char)('0' + (value & 7));
		return;
	}
	for (size_t i = size; i-- > 0; value >>= 8)
		field[i] = (char)(uint8_t)value;
	field[0] = (char)0x80;
}

unsigned tar_checksum(const struct tar_header *header)
{
	const uint8_t *bytes = (const uint8_t *)header;
	size_t from = offsetof(struct tar_header, checksum), to = from + sizeof(header->checksum);
	unsigned sum = 0;

	for (size_t i = 0; i < TAR_BLOCK; i++)
		sum += i >= from && i < to ? ' ' : bytes[i];
	return sum;
}
