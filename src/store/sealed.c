/*
 * Encrypted streams (sealed.h), over OpenSSL. Keys and plain bytes are wiped after use.
 */
#include "store/sealed.h"

#include <endian.h>

#include <openssl/evp.h>

#define SALT_SIZE 16
#define TAG_SIZE 16
#define NONCE_SIZE 12
#define PIECE (64u << 10)
#define HEAD_SIZE (sizeof(SEALED_MAGIC) - 1 + SALT_SIZE)
/* scrypt: 64 MiB of memory, some tenths of a second for each guess. */
#define SCRYPT_N (UINT64_C(1) << 16)
#define SCRYPT_R 8
#define SCRYPT_P 1
#define SCRYPT_MEMORY (UINT64_C(96) << 20)

/* One direction of a stream. */
struct cipher {
	EVP_CIPHER_CTX *context;
	unsigned char key[SEALED_KEY_SIZE];
	unsigned char head[HEAD_SIZE]; /* belongs to what each tag covers */
	uint64_t number;               /* of the next piece */
};

static int make_key(const char *passphrase, const unsigned char *salt, unsigned char *out, struct husk_error *err)
{
	if (EVP_PBE_scrypt(passphrase, strlen(passphrase), salt, SALT_SIZE, SCRYPT_N, SCRYPT_R, SCRYPT_P, SCRYPT_MEMORY,
			   out, SEALED_KEY_SIZE) == 1)
		return 0;
	return husk_fail(err, HUSK_INTERNAL, "cannot make a key of the passphrase");
}

static void cipher_wipe(struct cipher *cipher)
{
	EVP_CIPHER_CTX_free(cipher->context);
	explicit_bzero(cipher->key, sizeof(cipher->key));
}

/* Encrypts or decrypts a piece in place; `tag` is written or checked. -1: the tag is wrong, or OpenSSL fails. */
static int piece_run(struct cipher *cipher, bool encrypt, bool last, unsigned char *bytes, size_t size,
		     unsigned char tag[static TAG_SIZE])
{
	unsigned char nonce[NONCE_SIZE] = { 0 };
	uint64_t number = htobe64(cipher->number++);
	int done = 0, more = 0;

	memcpy(nonce, &number, sizeof(number));
	nonce[NONCE_SIZE - 1] = last;
	if (EVP_CipherInit_ex(cipher->context, EVP_aes_256_gcm(), NULL, cipher->key, nonce, encrypt) != 1 ||
	    EVP_CipherUpdate(cipher->context, NULL, &done, cipher->head, sizeof(cipher->head)) != 1 ||
	    (size && EVP_CipherUpdate(cipher->context, bytes, &done, bytes, (int)size) != 1))
		return -1;
	if (!encrypt && EVP_CIPHER_CTX_ctrl(cipher->context, EVP_CTRL_GCM_SET_TAG, TAG_SIZE, tag) != 1)
		return -1;
	if (EVP_CipherFinal_ex(cipher->context, bytes + size, &more) != 1)
		return -1;
	return encrypt && EVP_CIPHER_CTX_ctrl(cipher->context, EVP_CTRL_GCM_GET_TAG, TAG_SIZE, tag) != 1 ? -1 : 0;
}

/* ---- encrypting ---- */

struct sealed {
	struct cipher cipher;
	husk_sink sink;
	void *data;
	size_t size;
	unsigned char piece[PIECE + TAG_SIZE];
};

void sealed_free(struct sealed *sealed)
{
	if (!sealed)
		return;
	cipher_wipe(&sealed->cipher);
	explicit_bzero(sealed->piece, sizeof(sealed->piece));
	free(sealed);
}

int sealed_begin(const char *passphrase, husk_sink sink, void *data, struct sealed **out, struct husk_error *err)
{
	static const size_t magic = sizeof(SEALED_MAGIC) - 1;

	if (strlen(passphrase) < SEALED_PASSPHRASE_MIN)
		return husk_fail_field(err, "passphrase", "the passphrase has fewer than %d characters",
				       SEALED_PASSPHRASE_MIN);
	struct sealed *sealed = calloc(1, sizeof(*sealed));
	if (!sealed)
		return husk_fail_memory(err);
	*sealed = (struct sealed){ .sink = sink, .data = data, .cipher = { .context = EVP_CIPHER_CTX_new() } };
	unsigned char *head = sealed->cipher.head;
	memcpy(head, SEALED_MAGIC, magic);
	int result = sealed->cipher.context ? random_bytes(head + magic, SALT_SIZE) : husk_fail_memory(err);
	if (result == 0)
		result = make_key(passphrase, head + magic, sealed->cipher.key, err);
	if (result == 0 && sink(data, head, HEAD_SIZE) != 0)
		result = husk_fail(err, HUSK_GONE, "the encrypted bytes were not taken");
	if (result < 0)
		sealed_free(sealed);
	else
		*out = sealed;
	return result;
}

static int put_piece(struct sealed *sealed, bool last)
{
	size_t size = sealed->size;

	sealed->size = 0;
	if (piece_run(&sealed->cipher, true, last, sealed->piece, size, sealed->piece + size) < 0)
		return -1;
	return sealed->sink(sealed->data, sealed->piece, size + TAG_SIZE);
}

int sealed_sink(void *data, const void *bytes, size_t size)
{
	struct sealed *sealed = data;

	for (const char *at = bytes; size > 0;) {
		size_t count = MIN(size, PIECE - sealed->size);
		/* A full piece waits, because it may be followed by nothing but the last one. */
		if (!count && put_piece(sealed, false) != 0)
			return -1;
		memcpy(sealed->piece + sealed->size, at, count);
		sealed->size += count;
		at += count;
		size -= count;
	}
	return 0;
}

int sealed_end(struct sealed *sealed, struct husk_error *err)
{
	/* The last piece is always shorter than the others, so that its end is the end of the stream. */
	if ((sealed->size == PIECE && put_piece(sealed, false) != 0) || put_piece(sealed, true) != 0)
		return husk_fail(err, HUSK_GONE, "the encrypted bytes were not taken");
	return 0;
}

/* ---- decrypting ---- */

struct unsealed {
	struct cipher cipher;
	husk_source source;
	void *data;
	size_t at, size; /* of the piece: given out, and all */
	bool last;
	struct husk_error why;
	unsigned char piece[PIECE + TAG_SIZE];
};

void unsealed_free(struct unsealed *unsealed)
{
	if (!unsealed)
		return;
	cipher_wipe(&unsealed->cipher);
	explicit_bzero(unsealed->piece, sizeof(unsealed->piece));
	free(unsealed);
}

const struct husk_error *unsealed_why(const struct unsealed *unsealed)
{
	return &unsealed->why;
}

bool sealed_is(const void *bytes, size_t size)
{
	return size >= sizeof(SEALED_MAGIC) - 1 && memcmp(bytes, SEALED_MAGIC, sizeof(SEALED_MAGIC) - 1) == 0;
}

/* As many bytes as there are, up to `size`. */
static ssize_t read_all(struct unsealed *unsealed, unsigned char *bytes, size_t size)
{
	size_t have = 0;

	while (have < size) {
		ssize_t got = unsealed->source(unsealed->data, bytes + have, size - have);
		if (got < 0)
			return husk_fail(&unsealed->why, HUSK_GONE, "the encrypted bytes broke off");
		if (got == 0)
			break;
		have += (size_t)got;
	}
	return (ssize_t)have;
}

static struct unsealed *open_head(husk_source source, void *data, struct husk_error *err)
{
	struct unsealed *unsealed = calloc(1, sizeof(*unsealed));

	if (!unsealed) {
		husk_fail_memory(err);
		return NULL;
	}
	*unsealed = (struct unsealed){ .source = source, .data = data, .cipher = { .context = EVP_CIPHER_CTX_new() } };
	ssize_t size = read_all(unsealed, unsealed->cipher.head, HEAD_SIZE);
	if (unsealed->cipher.context && size == (ssize_t)HEAD_SIZE && sealed_is(unsealed->cipher.head, HEAD_SIZE))
		return unsealed;
	if (!unsealed->cipher.context)
		husk_fail_memory(err);
	else
		husk_fail_field(err, "passphrase", "it is not encrypted with a passphrase; leave the passphrase out");
	unsealed_free(unsealed);
	return NULL;
}

int unsealed_begin_key(const unsigned char key[static SEALED_KEY_SIZE], husk_source source, void *data,
		       struct unsealed **out, struct husk_error *err)
{
	struct unsealed *unsealed = open_head(source, data, err);

	if (!unsealed)
		return -1;
	memcpy(unsealed->cipher.key, key, SEALED_KEY_SIZE);
	*out = unsealed;
	return 0;
}

int unsealed_begin(const char *passphrase, husk_source source, void *data, struct unsealed **out,
		   struct husk_error *err)
{
	struct unsealed *unsealed = open_head(source, data, err);

	if (!unsealed)
		return -1;
	if (make_key(passphrase, unsealed->cipher.head + sizeof(SEALED_MAGIC) - 1, unsealed->cipher.key, err) < 0) {
		unsealed_free(unsealed);
		return -1;
	}
	*out = unsealed;
	return 0;
}

static int next_piece(struct unsealed *unsealed)
{
	bool first = unsealed->cipher.number == 0;
	ssize_t size = read_all(unsealed, unsealed->piece, sizeof(unsealed->piece));

	if (size < 0)
		return -1;
	unsealed->last = (size_t)size < sizeof(unsealed->piece);
	unsealed->at = 0;
	unsealed->size = (size_t)MAX(size - TAG_SIZE, 0);
	if (size >= TAG_SIZE && piece_run(&unsealed->cipher, false, unsealed->last, unsealed->piece, unsealed->size,
					  unsealed->piece + unsealed->size) == 0)
		return 0;
	explicit_bzero(unsealed->piece, sizeof(unsealed->piece)); /* decrypted, and not genuine */
	unsealed->size = 0;
	unsealed->last = true;
	return husk_fail(&unsealed->why, HUSK_DENIED, "%s",
			 first ? "the passphrase is wrong, or the encrypted bytes were changed"
			       : "the encrypted bytes were changed or cut off");
}

ssize_t unsealed_source(void *data, void *bytes, size_t size)
{
	struct unsealed *unsealed = data;

	if (unsealed->why.code)
		return -1;
	while (unsealed->at == unsealed->size) {
		if (unsealed->last)
			return 0;
		if (next_piece(unsealed) < 0)
			return -1;
	}
	size_t count = MIN(size, unsealed->size - unsealed->at);
	memcpy(bytes, unsealed->piece + unsealed->at, count);
	unsealed->at += count;
	return (ssize_t)count;
}
