/*
 * Downloads one blob (blob.h) into partial/<hex>, under a lock on that file, and renames it into place when size and
 * digest are right. If the connection fails, the file stays, and the next attempt or the next pull asks for the rest. A
 * wrong digest or a full disk removes the file.
 */
#include "registry/blob.h"

#include <fcntl.h>
#include <inttypes.h>
#include <openssl/evp.h>
#include <sys/file.h>
#include <sys/stat.h>

#define STUCK_MAX 5      /* attempts in a row without progress */
#define ATTEMPTS_MAX 100 /* in all */
#define PIECE (1u << 20)

struct fetch {
	const struct blob *blob;
	char *partial;
	int fd;
	EVP_MD_CTX *sum;
	uint64_t have;
	bool resumed; /* some bytes are from an earlier pull */
	bool fresh;   /* no byte of the current answer has arrived yet */
};

static void fetch_close(struct fetch *fetch)
{
	free(fetch->partial);
	fd_close(&fetch->fd);
	EVP_MD_CTX_free(fetch->sum);
}

static void count(const struct fetch *fetch, int64_t bytes)
{
	if (fetch->blob->count)
		fetch->blob->count(fetch->blob->data, bytes);
}

/* ---- digests ---- */

static int sum_text(EVP_MD_CTX *sum, char out[static OCI_HEX_LENGTH + 1], struct husk_error *err)
{
	unsigned char bytes[EVP_MAX_MD_SIZE];
	unsigned size = 0;

	if (EVP_DigestFinal_ex(sum, bytes, &size) != 1 || size * 2 != OCI_HEX_LENGTH)
		return husk_fail(err, HUSK_INTERNAL, "cannot compute a sha256");
	for (unsigned i = 0; i < size; i++)
		snprintf(out + 2 * i, 3, "%02x", bytes[i]);
	return 0;
}

int blob_digest(const char *bytes, size_t size, char out[static OCI_HEX_LENGTH + 1], struct husk_error *err)
{
	EVP_MD_CTX *sum = EVP_MD_CTX_new();
	int result = -1;

	if (sum && EVP_DigestInit_ex(sum, EVP_sha256(), NULL) == 1 && EVP_DigestUpdate(sum, bytes, size) == 1)
		result = sum_text(sum, out, err);
	else
		husk_fail_memory(err);
	EVP_MD_CTX_free(sum);
	return result;
}

/* ---- the file ---- */

static int begin_again(struct fetch *fetch, struct husk_error *err)
{
	count(fetch, -(int64_t)fetch->have);
	fetch->have = 0;
	fetch->resumed = false;
	if (ftruncate(fetch->fd, 0) < 0 || lseek(fetch->fd, 0, SEEK_SET) < 0)
		return husk_fail_errno(err, "cannot write '%s'", fetch->partial);
	return EVP_DigestInit_ex(fetch->sum, EVP_sha256(), NULL) == 1 ? 0 : husk_fail_memory(err);
}

/* Adds the existing content of the file to the hash. */
static int read_rest(struct fetch *fetch, struct husk_error *err)
{
	cleanup_free char *piece = malloc(PIECE);
	ssize_t size;

	if (!piece)
		return husk_fail_memory(err);
	while ((size = read_full(fetch->fd, piece, PIECE)) > 0) {
		EVP_DigestUpdate(fetch->sum, piece, (size_t)size);
		fetch->have += (uint64_t)size;
	}
	if (size < 0)
		return husk_fail_errno(err, "cannot read '%s'", fetch->partial);
	count(fetch, (int64_t)fetch->have);
	fetch->resumed = fetch->have > 0;
	return fetch->have > fetch->blob->size ? begin_again(fetch, err) : 0;
}

/* Has the locked file still that name? The last holder of the lock may have renamed or removed it. */
static bool still_named(const struct fetch *fetch)
{
	struct stat held, named;

	return fstat(fetch->fd, &held) == 0 && lstat(fetch->partial, &named) == 0 && held.st_ino == named.st_ino &&
	       held.st_dev == named.st_dev;
}

static int open_partial(struct fetch *fetch, struct husk_error *err)
{
	for (;;) {
		fetch->fd = open(fetch->partial, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
		if (fetch->fd < 0)
			return husk_fail_errno(err, "cannot write '%s'", fetch->partial);
		while (flock(fetch->fd, LOCK_EX | LOCK_NB) < 0) {
			if (errno != EWOULDBLOCK && errno != EINTR)
				return husk_fail_errno(err, "cannot lock '%s'", fetch->partial);
			if (registry_wait(fetch->blob->registry, 200, err) < 0)
				return -1;
		}
		if (still_named(fetch))
			return 0;
		fd_close(&fetch->fd);
	}
}

/* ---- bytes ---- */

static int take(void *data, const struct transport_reply *reply, const char *bytes, size_t size, struct husk_error *err)
{
	struct fetch *fetch = data;

	if (fetch->fresh) {
		fetch->fresh = false;
		if (reply->status == 200 && fetch->have && begin_again(fetch, err) < 0)
			return -1;
		if (reply->status == 206 && reply->range_start != (int64_t)fetch->have)
			return husk_fail(err, HUSK_PROTOCOL, "%s: the registry sends another part than was asked for",
					 fetch->blob->name);
	}
	if (size > fetch->blob->size - fetch->have)
		return husk_fail(err, HUSK_PROTOCOL, "%s: the registry sends more than the %" PRIu64 " bytes of %.12s…",
				 fetch->blob->name, fetch->blob->size, fetch->blob->digest);
	if (write_full(fetch->fd, bytes, size) < 0) {
		bool full = errno == ENOSPC || errno == EDQUOT;
		husk_fail_errno(err, "cannot write '%s'", fetch->partial);
		if (full)
			unlink(fetch->partial);
		return -1;
	}
	EVP_DigestUpdate(fetch->sum, bytes, size);
	fetch->have += size;
	count(fetch, (int64_t)size);
	return 0;
}

/* One request for the missing bytes. 0: the file may be complete now. */
static int attempt(struct fetch *fetch, struct husk_error *err)
{
	cleanup_free char *path = str_format("blobs/sha256:%s", fetch->blob->digest);
	cleanup_free struct transport_reply *reply = calloc(1, sizeof(*reply));
	const struct registry_request request = { .path = path, .from = fetch->have, .sink = take, .data = fetch };

	if (!path || !reply)
		return husk_fail_memory(err);
	fetch->fresh = true;
	if (registry_get(fetch->blob->registry, &request, reply, err) < 0)
		return -1;
	return reply->status == 416 ? begin_again(fetch, err) : 0;
}

/* Repeats until all bytes have arrived. */
static int fill(struct fetch *fetch, struct husk_error *err)
{
	struct husk_error why = { 0 };

	for (int stuck = 0, tries = 0; fetch->have < fetch->blob->size; tries++) {
		uint64_t before = fetch->have;
		int result = attempt(fetch, &why);
		if (result < 0 && why.code != HUSK_UNAVAILABLE)
			return husk_fail(err, why.code, "%s", why.message);
		stuck = fetch->have > before ? 0 : stuck + 1;
		if (fetch->have == fetch->blob->size)
			break;
		if (result == 0)
			husk_fail(&why, HUSK_UNAVAILABLE, "the registry ends early");
		if (stuck == STUCK_MAX || tries == ATTEMPTS_MAX)
			return husk_fail(err, HUSK_UNAVAILABLE,
					 "%s: layer %.12s… broke off after %" PRIu64 " of %" PRIu64
					 " bytes; the next pull continues it: %s",
					 fetch->blob->name, fetch->blob->digest, fetch->have, fetch->blob->size,
					 why.message);
		if (registry_wait(fetch->blob->registry, 100 << stuck, err) < 0)
			return -1;
	}
	return 0;
}

/* ---- the whole ---- */

/* 1: the digest is right; 0: it is wrong. */
static int check(struct fetch *fetch, char found[static OCI_HEX_LENGTH + 1], struct husk_error *err)
{
	if (sum_text(fetch->sum, found, err) < 0)
		return -1;
	return str_equal(found, fetch->blob->digest);
}

static int finish(struct fetch *fetch, struct husk_error *err)
{
	cleanup_free char *target = image_store_blob(fetch->blob->store, fetch->blob->digest);

	if (!target)
		return husk_fail_memory(err);
	if (fchmod(fetch->fd, 0400) < 0 || fsync(fetch->fd) < 0 || rename(fetch->partial, target) < 0)
		return husk_fail_errno(err, "cannot keep '%s'", target);
	return 0;
}

static int fetch_whole(struct fetch *fetch, struct husk_error *err)
{
	char found[OCI_HEX_LENGTH + 1];

	for (;;) {
		bool resumed = fetch->resumed;
		if (fill(fetch, err) < 0)
			return -1;
		int right = check(fetch, found, err);
		if (right != 0)
			return right < 0 ? -1 : finish(fetch, err);
		/* The bytes of an earlier pull may be wrong: download everything again. */
		if (begin_again(fetch, err) < 0)
			return -1;
		if (!resumed)
			break;
	}
	unlink(fetch->partial);
	return husk_fail(err, HUSK_PROTOCOL,
			 "%s: digest mismatch: the registry sends bytes with the sha256 %.12s… as %.12s…; nothing of "
			 "them is kept",
			 fetch->blob->name, found, fetch->blob->digest);
}

int blob_fetch(const struct blob *blob, struct husk_error *err)
{
	cleanup(fetch_close) struct fetch fetch = { .blob = blob, .fd = -1, .sum = EVP_MD_CTX_new() };

	fetch.partial = image_store_partial(blob->store, blob->digest);
	if (!fetch.partial || !fetch.sum || EVP_DigestInit_ex(fetch.sum, EVP_sha256(), NULL) != 1)
		return husk_fail_memory(err);
	if (image_store_has(blob->store, blob->digest, blob->size))
		return 0;
	if (open_partial(&fetch, err) < 0)
		return -1;
	if (image_store_has(blob->store, blob->digest, blob->size)) { /* downloaded by another process meanwhile */
		unlink(fetch.partial);
		count(&fetch, (int64_t)blob->size);
		return 0;
	}
	return read_rest(&fetch, err) < 0 ? -1 : fetch_whole(&fetch, err);
}
