/*
 * Cuts files into chunks (portable.h). First every file is cut: a chunk ends after a page whose hash has enough zero
 * bits, so the boundaries depend on the content near them and not on the offset. gVisor writes the pages of a machine
 * one after another, so one more page at the beginning moves all later pages. Then threads compress and hash the chunks,
 * and append each new one to the unnamed file.
 *
 *     pages.img   | a b c d e f g h ...          cut:  [a b c][d e f g h]...
 *     later       | a X b c d e f g h ...        cut:  [a X b c][d e f g h]...     one chunk is new
 */
#include <fcntl.h>
#include <pthread.h>
#include <search.h>
#include <sys/stat.h>
#include <zstd.h>

#include "store/portable.h"

#define LEVEL 1
#define THREADS 2
#define READ_PAGES 512u
#define AVERAGE_ROOT 256u /* pages: a root image never changes, so few, large chunks are better */
#define AVERAGE_IMAGE 64u
#define LONGEST 4u           /* times the average */
#define SHORTEST 4u          /* the average divided by this */
#define CHUNKS_WANTED 16384u /* a manifest with more of them is too large for some registries */

/* ---- boundaries ---- */

/* Not for security: a guest that makes every page a boundary, or none, gets the shortest or the longest chunks. */
static uint64_t page_hash(const unsigned char *page)
{
	uint64_t lanes[4] = { 0x9e3779b97f4a7c15u, 0xc2b2ae3d27d4eb4fu, 0x165667b19e3779f9u, 0x27d4eb2f165667c5u };

	for (size_t i = 0; i < PORTABLE_PAGE; i += sizeof(lanes)) {
		uint64_t words[4];
		memcpy(words, page + i, sizeof(words));
		for (size_t k = 0; k < 4; k++)
			lanes[k] = ((lanes[k] ^ words[k]) * 0x9fb21c651e98df25u) ^ (lanes[k] >> 29);
	}
	uint64_t sum = lanes[0];
	for (size_t k = 1; k < 4; k++)
		sum = (sum ^ lanes[k]) * 0x9fb21c651e98df25u;
	return sum ^ (sum >> 32);
}

size_t portable_cut(const unsigned char *pages, size_t count, size_t average)
{
	size_t most = MIN(count, average * LONGEST);

	for (size_t i = average / SHORTEST; i < most; i++)
		if (page_hash(pages + i * PORTABLE_PAGE) % average == 0)
			return i + 1;
	return most;
}

/* The same for files without pages, such as tars: after any byte, by a hash of the 64 bytes before it. */
static size_t cut_bytes(const unsigned char *bytes, size_t size, size_t average)
{
	size_t most = MIN(size, average * LONGEST);
	uint64_t hash = 0;

	for (size_t i = MIN(average / SHORTEST, most); i < most; i++) {
		hash = (hash << 1) + (bytes[i] + 1) * 0x9fb21c651e98df25u;
		if ((hash >> 32) % average == 0)
			return i + 1;
	}
	return most;
}

struct piece {
	size_t file; /* index in the sources */
	uint64_t offset;
	uint32_t size;
};

struct pieces {
	struct piece *list;
	size_t count, room;
};

static int add_piece(struct pieces *pieces, struct piece piece, struct husk_error *err)
{
	if (pieces->count == pieces->room) {
		size_t room = pieces->room ? 2 * pieces->room : 1024;
		struct piece *list = reallocarray(pieces->list, room, sizeof(*list));
		if (!list)
			return husk_fail_memory(err);
		pieces->list = list;
		pieces->room = room;
	}
	pieces->list[pieces->count++] = piece;
	return 0;
}

/* Cuts what is in the buffer: all of it at the end of the file, else as long as a whole chunk is certain. Returns the bytes that
 * are left at the end of the buffer, or -1. */
static ssize_t cut_buffer(const unsigned char *bytes, size_t size, bool last, bool paged, size_t average,
			  struct piece next, struct pieces *out, struct husk_error *err)
{
	size_t longest = average * LONGEST * PORTABLE_PAGE, used = 0;

	while (size - used >= longest || (last && used < size)) {
		size_t left = size - used, whole = left / PORTABLE_PAGE;
		size_t length = whole ? portable_cut(bytes + used, whole, average) * PORTABLE_PAGE : left;
		if (!paged)
			length = cut_bytes(bytes + used, left, average * PORTABLE_PAGE);
		else if (left - length < PORTABLE_PAGE) /* the rest of the last page */
			length = left;
		next.size = (uint32_t)length;
		if (add_piece(out, next, err) < 0)
			return -1;
		next.offset += length;
		used += length;
	}
	return (ssize_t)(size - used);
}

/* Asked before the first chunk is done, too. */
struct asking {
	int (*progress)(void *data, uint64_t done, uint64_t all);
	void *data;
	uint64_t all;
};

static int ask(const struct asking *asking, uint64_t done, struct husk_error *err)
{
	return asking->progress && asking->progress(asking->data, done, asking->all)
		       ? husk_fail(err, HUSK_GONE, "interrupted")
		       : 0;
}

static int cut_file(int fd, size_t file, bool paged, size_t average, const struct asking *asking, struct pieces *out,
		    struct husk_error *err)
{
	size_t room = (average * LONGEST + READ_PAGES) * PORTABLE_PAGE, have = 0;
	cleanup_free unsigned char *buffer = malloc(room);
	uint64_t offset = 0; /* of the buffer */

	if (!buffer)
		return husk_fail_memory(err);
	for (bool last = false; !last;) {
		if (ask(asking, 0, err) < 0)
			return -1;
		ssize_t got = read_full(fd, buffer + have, room - have);
		if (got < 0)
			return husk_fail_errno(err, "cannot read a file of the machine");
		last = (size_t)got < room - have;
		have += (size_t)got;
		ssize_t left =
			cut_buffer(buffer, have, last, paged, average, (struct piece){ file, offset, 0 }, out, err);
		if (left < 0)
			return -1;
		offset += have - (size_t)left;
		memmove(buffer, buffer + have - (size_t)left, (size_t)left);
		have = (size_t)left;
	}
	return 0;
}

/* ---- compressing ---- */

struct work {
	const struct pieces *pieces;
	const int *fds;
	struct portable_chunk *chunks; /* one for each piece */
	struct portable_pack *pack;
	struct asking asking;
	pthread_mutex_t lock; /* of all below, and of the pack */
	size_t next;
	uint64_t done;
	void *seen; /* tree of kept digests */
	struct husk_error err;
};

static int compare_kept(const void *a, const void *b)
{
	return strcmp(a, b); /* digests are the first fields */
}

/* With the lock. The chunk's place in the nameless file, unless the same bytes are there already. */
static int keep(struct work *work, const struct portable_chunk *chunk, const void *bytes)
{
	struct portable_pack *pack = work->pack;
	struct portable_kept *kept = &pack->kept[pack->count];

	memcpy(kept->digest, chunk->digest, sizeof(kept->digest));
	kept->size = chunk->packed;
	kept->offset = pack->count ? kept[-1].offset + kept[-1].size : 0;
	void **found = tsearch(kept, &work->seen, compare_kept);
	if (!found)
		return husk_fail_memory(&work->err);
	if (*found != kept)
		return 0;
	if (lseek(pack->fd, (off_t)kept->offset, SEEK_SET) < 0 || write_full(pack->fd, bytes, kept->size) < 0)
		return husk_fail_errno(&work->err, "cannot keep a chunk of the machine");
	pack->count++;
	return 0;
}

static int finish_piece(struct work *work, size_t index, const void *bytes)
{
	work->done += work->chunks[index].size;
	return keep(work, &work->chunks[index], bytes) < 0 ? -1 : ask(&work->asking, work->done, &work->err);
}

static int compress_piece(const struct work *work, ZSTD_CCtx *zstd, size_t index, char *raw, char *packed, size_t room,
			  struct husk_error *err)
{
	const struct piece *piece = &work->pieces->list[index];
	struct portable_chunk *chunk = &work->chunks[index];

	if (pread(work->fds[piece->file], raw, piece->size, (off_t)piece->offset) != (ssize_t)piece->size)
		return husk_fail_errno(err, "cannot read a file of the machine");
	size_t size = ZSTD_compressCCtx(zstd, packed, room, raw, piece->size, LEVEL);
	if (ZSTD_isError(size))
		return husk_fail(err, HUSK_INTERNAL, "cannot compress a chunk: %s", ZSTD_getErrorName(size));
	chunk->size = piece->size;
	chunk->packed = (uint32_t)size;
	return portable_digest(packed, size, chunk->digest, err);
}

/* Takes pieces until none is left or a thread has failed. */
static void *compress_all(void *data)
{
	struct work *work = data;
	size_t room = ZSTD_compressBound(PORTABLE_CHUNK_MAX);
	cleanup_free char *raw = malloc(PORTABLE_CHUNK_MAX), *packed = malloc(room);
	ZSTD_CCtx *zstd = ZSTD_createCCtx();
	struct husk_error why = { 0 };

	if (!raw || !packed || !zstd)
		husk_fail_memory(&why);
	pthread_mutex_lock(&work->lock);
	while (!why.code && !work->err.code && work->next < work->pieces->count) {
		size_t index = work->next++;
		pthread_mutex_unlock(&work->lock);
		int result = compress_piece(work, zstd, index, raw, packed, room, &why);
		pthread_mutex_lock(&work->lock);
		if (result == 0)
			finish_piece(work, index, packed);
	}
	if (why.code && !work->err.code)
		work->err = why;
	pthread_mutex_unlock(&work->lock);
	ZSTD_freeCCtx(zstd);
	return NULL;
}

static void keep_nothing(void *node)
{
	(void)node; /* the pack owns it */
}

static int run_threads(struct work *work, struct husk_error *err)
{
	pthread_t threads[THREADS];
	size_t started = 0;

	pthread_mutex_init(&work->lock, NULL);
	while (started + 1 < THREADS && pthread_create(&threads[started], NULL, compress_all, work) == 0)
		started++;
	compress_all(work); /* this thread works too */
	for (size_t i = 0; i < started; i++)
		pthread_join(threads[i], NULL);
	pthread_mutex_destroy(&work->lock);
	tdestroy(work->seen, keep_nothing);
	return work->err.code ? husk_fail(err, work->err.code, "%s", work->err.message) : 0;
}

/* ---- the whole ---- */

void portable_pack_free(struct portable_pack *pack)
{
	fd_close(&pack->fd);
	free(pack->kept);
	*pack = (struct portable_pack){ .fd = -1 };
}

/* Puts the chunks of all pieces under their files. */
static int hand_out(const struct pieces *pieces, const struct portable_chunk *chunks,
		    const struct portable_source *sources, size_t count, struct portable *portable,
		    struct husk_error *err)
{
	portable->files = calloc(count + 1, sizeof(*portable->files));
	if (!portable->files)
		return husk_fail_memory(err);
	portable->file_count = count;
	for (size_t i = 0, at = 0; i < count; i++) {
		struct portable_file *file = &portable->files[i];
		size_t first = at;
		snprintf(file->name, sizeof(file->name), "%s", sources[i].name);
		for (; at < pieces->count && pieces->list[at].file == i; at++)
			file->size += chunks[at].size;
		file->count = at - first;
		file->chunks = calloc(file->count + 1, sizeof(*file->chunks));
		if (!file->chunks)
			return husk_fail_memory(err);
		memcpy(file->chunks, chunks + first, file->count * sizeof(*chunks));
	}
	return 0;
}

static int cut_all(const struct portable_source *sources, size_t count, int *fds, struct pieces *pieces,
		   struct asking *asking, struct husk_error *err)
{
	size_t scale = 1;

	for (size_t i = 0; i < count; i++) {
		struct stat found;
		fds[i] = sources[i].path ? open(sources[i].path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC)
					 : fcntl(sources[i].fd, F_DUPFD_CLOEXEC, 3);
		if (fds[i] < 0 || fstat(fds[i], &found) < 0 || lseek(fds[i], 0, SEEK_SET) < 0)
			return husk_fail_errno(err, "cannot read '%s'", sources[i].name);
		if (!S_ISREG(found.st_mode))
			return husk_fail(err, HUSK_UNAVAILABLE, "'%s' is not a regular file and does not travel",
					 sources[i].name);
		asking->all += (uint64_t)found.st_size;
	}
	while (asking->all / (AVERAGE_IMAGE * scale * PORTABLE_PAGE) > CHUNKS_WANTED && scale < 8)
		scale *= 2;
	for (size_t i = 0; i < count; i++) {
		size_t average = str_starts(sources[i].name, "root/") ? AVERAGE_ROOT : AVERAGE_IMAGE * scale;
		if (cut_file(fds[i], i, str_ends(sources[i].name, ".img"), average, asking, pieces, err) < 0)
			return -1;
	}
	return 0;
}

int portable_pack(const struct portable_source *sources, size_t count, const char *directory,
		  int (*progress)(void *data, uint64_t done, uint64_t all), void *data, struct portable *portable,
		  struct portable_pack *out, struct husk_error *err)
{
	int fds[PORTABLE_FILES_MAX];
	struct pieces pieces = { 0 };
	struct portable_chunk *chunks = NULL;
	struct asking asking = { progress, data, 0 };

	*out = (struct portable_pack){ .fd = open(directory, O_RDWR | O_TMPFILE | O_CLOEXEC, 0600) };
	if (out->fd < 0)
		return husk_fail_errno(err, "cannot make a file in '%s'", directory);
	if (count > PORTABLE_FILES_MAX)
		return husk_fail(err, HUSK_LIMIT, "the machine has more than %d files", PORTABLE_FILES_MAX);
	for (size_t i = 0; i < count; i++)
		fds[i] = -1;
	int result = cut_all(sources, count, fds, &pieces, &asking, err);
	if (result == 0) {
		chunks = calloc(pieces.count + 1, sizeof(*chunks));
		out->kept = calloc(pieces.count + 1, sizeof(*out->kept));
		struct work work = { .pieces = &pieces, .fds = fds, .chunks = chunks, .pack = out, .asking = asking };
		result = chunks && out->kept ? run_threads(&work, err) : husk_fail_memory(err);
	}
	if (result == 0)
		result = hand_out(&pieces, chunks, sources, count, portable, err);
	for (size_t i = 0; i < count; i++)
		fd_close(&fds[i]);
	free(chunks);
	free(pieces.list);
	return result;
}
