/*
 * Layered disks; see disk.h. Called by block.c on the disk's thread, and by snapshot.c while that thread is paused. Only
 * the newest layer may be written to, because other machines read the others.
 */
#include "vmm/disk.h"

#include <fcntl.h>
#include <sys/stat.h>

#define HEADER_BYTES 4096ull

static uint64_t data_offset(const struct disk *disk)
{
	return (HEADER_BYTES + disk->cluster_count + CLUSTER_BYTES - 1) / CLUSTER_BYTES * CLUSTER_BYTES;
}

static off_t cluster_offset(const struct disk *disk, uint64_t cluster)
{
	return (off_t)(data_offset(disk) + cluster * CLUSTER_BYTES);
}

/* ---- opening ---- */

int disk_open_plain(struct disk *disk, int fd, struct husk_error *err)
{
	struct stat st;

	if (fstat(fd, &st) < 0)
		return husk_fail_errno(err, "cannot look at the root image");
	if (st.st_size < 512)
		return husk_fail(err, HUSK_INVALID, "the root image is empty");
	disk->plain = fd;
	disk->bytes = (uint64_t)st.st_size / 512 * 512;
	return 0;
}

static int set_size(struct disk *disk, uint64_t bytes, struct husk_error *err)
{
	if (disk->bytes)
		return disk->bytes == bytes ? 0 : husk_fail(err, HUSK_INVALID, "disk layers of different sizes");
	if (bytes == 0 || bytes > DISK_BYTES_MAX || bytes % 4096 != 0)
		return husk_fail(err, HUSK_INVALID, "a disk of %llu bytes; give a multiple of 4096, up to 16 TiB",
				 (unsigned long long)bytes);
	disk->cluster_count = (bytes + CLUSTER_BYTES - 1) / CLUSTER_BYTES;
	disk->owner = calloc(disk->cluster_count, 1);
	disk->states = calloc(disk->cluster_count, 1);
	if (!disk->owner || !disk->states)
		return husk_fail_memory(err);
	disk->bytes = bytes;
	return 0;
}

int disk_start_layer(const struct disk *disk, int fd, struct husk_error *err)
{
	const struct disk_header header = { .magic = DISK_LAYER_MAGIC,
					    .version = DISK_LAYER_VERSION,
					    .cluster_bytes = (uint32_t)CLUSTER_BYTES,
					    .disk_bytes = disk->bytes };

	if (ftruncate(fd, cluster_offset(disk, disk->cluster_count)) < 0 ||
	    pwrite(fd, &header, sizeof(header), 0) != (ssize_t)sizeof(header))
		return husk_fail_errno(err, "cannot start a disk layer");
	return 0;
}

static int read_header(const struct disk *disk, int fd, off_t size, struct husk_error *err)
{
	struct disk_header header;

	if (pread(fd, &header, sizeof(header), 0) != (ssize_t)sizeof(header))
		return husk_fail(err, HUSK_INVALID, "a disk layer is cut off");
	if (header.magic != DISK_LAYER_MAGIC || header.version != DISK_LAYER_VERSION ||
	    header.cluster_bytes != CLUSTER_BYTES || header.disk_bytes != disk->bytes)
		return husk_fail(err, HUSK_INVALID, "not a layer of this disk, or of another version of husk");
	if (size != cluster_offset(disk, disk->cluster_count))
		return husk_fail(err, HUSK_INVALID, "a disk layer is cut off: %lld bytes", (long long)size);
	if (pread(fd, disk->states, disk->cluster_count, HEADER_BYTES) != (ssize_t)disk->cluster_count)
		return husk_fail_errno(err, "cannot read a disk layer");
	return 0;
}

static int take_states(struct disk *disk, size_t layer, struct husk_error *err)
{
	for (uint64_t i = 0; i < disk->cluster_count; i++) {
		if (disk->states[i] > CLUSTER_ZERO)
			return husk_fail(err, HUSK_INVALID, "disk layer %zu is damaged", layer);
		if (disk->states[i] != CLUSTER_ABSENT)
			disk->owner[i] = disk->states[i] == CLUSTER_HERE ? (uint8_t)(layer + 1) : 0;
	}
	return 0;
}

int disk_add_layer(struct disk *disk, int fd, uint64_t bytes, struct husk_error *err)
{
	struct stat st;

	if (disk->layer_count >= ARRAY_SIZE(disk->layers))
		return husk_fail(err, HUSK_LIMIT, "more than %zu disk layers", ARRAY_SIZE(disk->layers));
	if (set_size(disk, bytes, err) < 0)
		return -1;
	if (fstat(fd, &st) < 0)
		return husk_fail_errno(err, "cannot look at a disk layer");
	memset(disk->states, CLUSTER_ABSENT, disk->cluster_count);
	if (st.st_size == 0) {
		if (disk_start_layer(disk, fd, err) < 0)
			return -1;
	} else if (read_header(disk, fd, st.st_size, err) < 0 || take_states(disk, disk->layer_count, err) < 0) {
		return -1;
	}
	disk->layers[disk->layer_count++] = fd;
	disk->written = st.st_size != 0;
	disk->changed = false;
	return 0;
}

void disk_close(struct disk *disk)
{
	fd_close(&disk->plain);
	for (size_t i = 0; i < disk->layer_count; i++)
		fd_close(&disk->layers[i]);
	free(disk->owner);
	free(disk->states);
	*disk = (struct disk)DISK_INIT;
}

/* ---- moving bytes ---- */

/* preadv and pwritev of the full size, because they may stop early. The vector is consumed. */
static int move_all(int fd, bool write, struct iovec *vector, int count, off_t offset)
{
	while (count > 0) {
		ssize_t moved = write ? pwritev(fd, vector, count, offset) : preadv(fd, vector, count, offset);

		if (moved < 0 && errno == EINTR)
			continue;
		if (moved < 0)
			return -1;
		if (moved == 0) {
			errno = EIO;
			return -1;
		}
		offset += moved;
		while (count > 0 && (size_t)moved >= vector->iov_len) {
			moved -= (ssize_t)vector->iov_len;
			vector++;
			count--;
		}
		if (count > 0) {
			vector->iov_base = (char *)vector->iov_base + moved;
			vector->iov_len -= (size_t)moved;
		}
	}
	return 0;
}

/* Takes the first `size` bytes off the vector into `out`; returns how many pieces those are. */
static int take_front(struct iovec **vector, int *count, size_t size, struct iovec *out)
{
	int used = 0;

	while (size > 0 && *count > 0) {
		size_t part = MIN(size, (*vector)->iov_len);

		out[used++] = (struct iovec){ .iov_base = (*vector)->iov_base, .iov_len = part };
		(*vector)->iov_base = (char *)(*vector)->iov_base + part;
		(*vector)->iov_len -= part;
		size -= part;
		if ((*vector)->iov_len == 0) {
			(*vector)++;
			(*count)--;
		}
	}
	return used;
}

static void zero_vector(const struct iovec *vector, int count)
{
	for (int i = 0; i < count; i++)
		memset(vector[i].iov_base, 0, vector[i].iov_len);
}

/* How many bytes from `offset` on have the same owner: one call to the host for all of them. */
static size_t same_owner(const struct disk *disk, uint64_t offset, size_t size)
{
	uint64_t first = offset / CLUSTER_BYTES, cluster = first, end = offset + size;

	while ((cluster + 1) * CLUSTER_BYTES < end && disk->owner[cluster + 1] == disk->owner[first])
		cluster++;
	return (size_t)(MIN((cluster + 1) * CLUSTER_BYTES, end) - offset);
}

int disk_read(struct disk *disk, uint64_t offset, struct iovec *vector, int count, size_t size)
{
	cleanup_free struct iovec *part = NULL;

	if (disk->plain >= 0)
		return move_all(disk->plain, false, vector, count, (off_t)offset);
	part = calloc((size_t)count, sizeof(*part));
	if (!part)
		return -1;
	while (size > 0) {
		size_t run = same_owner(disk, offset, size);
		uint8_t owner = disk->owner[offset / CLUSTER_BYTES];
		int pieces = take_front(&vector, &count, run, part);

		if (owner == 0)
			zero_vector(part, pieces);
		else if (move_all(disk->layers[owner - 1], false, part, pieces, (off_t)(data_offset(disk) + offset)) <
			 0)
			return -1;
		offset += run;
		size -= run;
	}
	return 0;
}

/* Brings a cluster into the newest layer, with its content unless all of it will be overwritten. */
static int own_cluster(struct disk *disk, uint64_t cluster, bool whole)
{
	size_t newest = disk->layer_count - 1;
	uint8_t owner = disk->owner[cluster];

	if (owner == newest + 1)
		return 0;
	if (!whole && owner != 0) {
		cleanup_free char *copy = malloc(CLUSTER_BYTES);
		struct iovec all = { .iov_base = copy, .iov_len = CLUSTER_BYTES };

		if (!copy || move_all(disk->layers[owner - 1], false, &all, 1, cluster_offset(disk, cluster)) < 0)
			return -1;
		all = (struct iovec){ .iov_base = copy, .iov_len = CLUSTER_BYTES };
		if (move_all(disk->layers[newest], true, &all, 1, cluster_offset(disk, cluster)) < 0)
			return -1;
	}
	/* A cluster without an owner reads as zeroes, and so does the hole in the file, unless it was discarded after
	 * use. */
	if (!whole && owner == 0 && disk->states[cluster] == CLUSTER_ZERO &&
	    fallocate(disk->layers[newest], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, cluster_offset(disk, cluster),
		      (off_t)CLUSTER_BYTES) < 0)
		return -1;
	disk->owner[cluster] = (uint8_t)(newest + 1);
	disk->states[cluster] = CLUSTER_HERE;
	disk->changed = disk->written = true;
	return 0;
}

int disk_write(struct disk *disk, uint64_t offset, struct iovec *vector, int count, size_t size)
{
	uint64_t end = offset + size;

	for (uint64_t cluster = offset / CLUSTER_BYTES; cluster * CLUSTER_BYTES < end; cluster++) {
		bool whole = offset <= cluster * CLUSTER_BYTES && end >= (cluster + 1) * CLUSTER_BYTES;

		if (own_cluster(disk, cluster, whole) < 0)
			return -1;
	}
	return move_all(disk->layers[disk->layer_count - 1], true, vector, count, (off_t)(data_offset(disk) + offset));
}

static int zero_part(struct disk *disk, uint64_t offset, uint64_t size)
{
	uint64_t cluster = offset / CLUSTER_BYTES;

	if (disk->owner[cluster] == 0)
		return 0;
	if (own_cluster(disk, cluster, false) < 0)
		return -1;
	return fallocate(disk->layers[disk->layer_count - 1], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
			 (off_t)(data_offset(disk) + offset), (off_t)size);
}

int disk_discard(struct disk *disk, uint64_t offset, uint64_t size)
{
	int newest = disk->layers[disk->layer_count - 1];
	uint64_t end = offset + size;

	while (offset < end) {
		uint64_t cluster = offset / CLUSTER_BYTES, next = MIN((cluster + 1) * CLUSTER_BYTES, end);

		if (next - offset < CLUSTER_BYTES) {
			if (zero_part(disk, offset, next - offset) < 0)
				return -1;
		} else if (disk->owner[cluster] != 0) {
			if (disk->states[cluster] == CLUSTER_HERE &&
			    fallocate(newest, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, cluster_offset(disk, cluster),
				      (off_t)CLUSTER_BYTES) < 0)
				return -1;
			disk->owner[cluster] = 0;
			disk->states[cluster] = CLUSTER_ZERO;
			disk->changed = disk->written = true;
		}
		offset = next;
	}
	return 0;
}

static int write_states(struct disk *disk)
{
	struct iovec all = { .iov_base = disk->states, .iov_len = disk->cluster_count };

	if (!disk->changed)
		return 0;
	if (move_all(disk->layers[disk->layer_count - 1], true, &all, 1, HEADER_BYTES) < 0)
		return -1;
	disk->changed = false;
	return 0;
}

int disk_flush(struct disk *disk)
{
	if (disk->plain >= 0)
		return 0;
	return write_states(disk) < 0 ? -1 : fdatasync(disk->layers[disk->layer_count - 1]);
}

/* ---- layers ---- */

/* Copies all clusters of the layers between the oldest and the newest into the newest. */
static int take_in_middle(struct disk *disk)
{
	for (uint64_t i = 0; i < disk->cluster_count; i++)
		if (disk->owner[i] > 1 && disk->owner[i] < disk->layer_count && own_cluster(disk, i, false) < 0)
			return -1;
	/* One of these layers may have zeroes over content of the oldest. */
	for (uint64_t i = 0; i < disk->cluster_count; i++) {
		if (disk->owner[i] == 0 && disk->states[i] == CLUSTER_ABSENT) {
			disk->states[i] = CLUSTER_ZERO;
			disk->changed = disk->written = true;
		}
	}
	return 0;
}

int disk_seal(struct disk *disk, size_t *needed, struct husk_error *err)
{
	bool full = disk->layer_count >= VMM_LAYERS_MAX;

	*needed = full ? 1 : disk->layer_count - 1;
	if ((full && take_in_middle(disk) < 0) || write_states(disk) < 0)
		return husk_fail_errno(err, "cannot complete the disk layer");
	return 0;
}

void disk_next_layer(struct disk *disk, size_t needed, int fd)
{
	size_t newest = disk->layer_count - 1;

	for (size_t i = needed; i < newest; i++)
		fd_close(&disk->layers[i]);
	for (uint64_t i = 0; needed < newest && i < disk->cluster_count; i++)
		if (disk->owner[i] > needed)
			disk->owner[i] = (uint8_t)(needed + 1); /* all of them are in the sealed one now */
	disk->layers[needed] = disk->layers[newest];
	disk->layers[needed + 1] = fd;
	disk->layer_count = needed + 2;
	memset(disk->states, CLUSTER_ABSENT, disk->cluster_count);
	disk->changed = disk->written = false;
}
