/*
 * The tar format: the 512-byte header and its numbers. Reading supports ustar, pax and GNU long names. Writing makes
 * GNU headers, because they store file names as raw bytes.
 */
#ifndef HUSK_AGENT_TAR_H
#define HUSK_AGENT_TAR_H

#include "base/base.h"

#define TAR_BLOCK 512u

enum tar_type {
	TAR_FILE = '0',
	TAR_HARD_LINK = '1',
	TAR_SYMLINK = '2',
	TAR_CHARACTER = '3',
	TAR_DEVICE = '4',
	TAR_DIRECTORY = '5',
	TAR_FIFO = '6',
	TAR_CONTIGUOUS = '7',
	TAR_PAX = 'x',
	TAR_PAX_GLOBAL = 'g',
	TAR_LONG_NAME = 'L',
	TAR_LONG_LINK = 'K',
};

struct tar_header { /* as in the archive */
	char name[100];
	char mode[8];
	char uid[8];
	char gid[8];
	char size[12];
	char mtime[12];
	char checksum[8];
	char type;
	char link[100];
	char magic[8]; /* includes the version */
	char user[32];
	char group[32];
	char device_major[8];
	char device_minor[8];
	char prefix[155];
	char padding[12];
};
_Static_assert(sizeof(struct tar_header) == TAR_BLOCK, "a tar header is one block");

/* Octal, or base 256 when the top bit is set. -1 when it is neither, negative, or past INT64_MAX. */
int tar_number_read(const char *field, size_t size, int64_t *out);
/* Octal when it fits, else base 256. The value is not negative. */
void tar_number_write(char *field, size_t size, uint64_t value);
unsigned tar_checksum(const struct tar_header *header);
/* Bytes of padding that follow a content of this size. */
static inline size_t tar_padding(int64_t size)
{
	return (size_t)(-(uint64_t)size & (TAR_BLOCK - 1));
}

#endif
