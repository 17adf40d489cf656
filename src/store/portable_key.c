/*
 * The key of an instance (portable.h): an ed25519 pair in <home>/portable.key, made at the first export. The private half
 * never leaves the file. A signature covers a fixed word and the digest of a description, so that it means nothing
 * elsewhere.
 */
#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <sys/stat.h>

#include "store/portable.h"

#define PREFIX "ed25519:"
#define PUBLIC_SIZE 32
#define SIGNATURE_BYTES 64
#define PEM_MAX 4096

static void pkey_free(EVP_PKEY **key)
{
	EVP_PKEY_free(*key);
}

static void file_release(BIO **bio)
{
	BIO_free(*bio);
}

/* ---- the pair ---- */

static EVP_PKEY *read_pair(const char *path, struct husk_error *err)
{
	cleanup_wipe char *text = file_read(path, PEM_MAX, NULL, err);
	cleanup(file_release) BIO *bio = text ? BIO_new_mem_buf(text, -1) : NULL;
	EVP_PKEY *key = bio ? PEM_read_bio_PrivateKey(bio, NULL, NULL, NULL) : NULL;

	if (text && (!key || EVP_PKEY_id(key) != EVP_PKEY_ED25519)) {
		EVP_PKEY_free(key);
		husk_fail(err, HUSK_INVALID, "'%s' is not an ed25519 key; move it away, and a new one is made", path);
		return NULL;
	}
	return key;
}

/* A file without a name, then a link that never replaces: two processes end with the same pair, and a kill leaves nothing. */
static int make_pair(const char *home, const char *path, struct husk_error *err)
{
	cleanup(pkey_free) EVP_PKEY *key = EVP_PKEY_Q_keygen(NULL, NULL, "ED25519");
	cleanup(file_release) BIO *bio = BIO_new(BIO_s_secmem());
	cleanup_close int fd = open(home, O_WRONLY | O_TMPFILE | O_CLOEXEC, 0600);
	char *text = NULL, self[64];

	if (!key || !bio || PEM_write_bio_PrivateKey(bio, key, NULL, NULL, 0, NULL, NULL) != 1)
		return husk_fail(err, HUSK_INTERNAL, "cannot make a key");
	long size = BIO_get_mem_data(bio, &text);
	snprintf(self, sizeof(self), "/proc/self/fd/%d", fd);
	if (fd < 0 || write_full(fd, text, (size_t)size) < 0 || fsync(fd) < 0 ||
	    (linkat(AT_FDCWD, self, AT_FDCWD, path, AT_SYMLINK_FOLLOW) < 0 && errno != EEXIST))
		return husk_fail_errno(err, "cannot keep the key '%s'", path);
	return 0;
}

static EVP_PKEY *open_pair(const char *home, struct husk_error *err)
{
	cleanup_free char *path = str_format("%s/portable.key", home);

	if (!path) {
		husk_fail_memory(err);
		return NULL;
	}
	if (access(path, F_OK) < 0 && make_pair(home, path, err) < 0)
		return NULL;
	return read_pair(path, err);
}

/* ---- texts ---- */

int portable_key(const char *home, char out[static PORTABLE_KEY_SIZE], struct husk_error *err)
{
	cleanup(pkey_free) EVP_PKEY *key = open_pair(home, err);
	unsigned char bytes[PUBLIC_SIZE], text[48];
	size_t size = sizeof(bytes);

	if (!key)
		return -1;
	if (EVP_PKEY_get_raw_public_key(key, bytes, &size) != 1 || size != PUBLIC_SIZE)
		return husk_fail(err, HUSK_INTERNAL, "cannot read the key");
	EVP_EncodeBlock(text, bytes, PUBLIC_SIZE);
	snprintf(out, PORTABLE_KEY_SIZE, PREFIX "%s", (const char *)text);
	return 0;
}

/* Exactly `size` bytes of base64. */
static int decode(const char *text, unsigned char *out, size_t size)
{
	unsigned char bytes[128];
	size_t length = strlen(text);

	if (length != (size + 2) / 3 * 4 || length > sizeof(bytes))
		return -1;
	int got = EVP_DecodeBlock(bytes, (const unsigned char *)text, (int)length);
	if (got < (int)size || got > (int)size + 2)
		return -1;
	memcpy(out, bytes, size);
	return 0;
}

bool portable_is_key(const char *text)
{
	unsigned char bytes[PUBLIC_SIZE];

	return text && str_starts(text, PREFIX) && decode(text + strlen(PREFIX), bytes, PUBLIC_SIZE) == 0;
}

/* ---- signatures ---- */

static void message_of(const char *digest, char out[static 128])
{
	snprintf(out, 128, "husk portable machine 1\nsha256:%s\n", digest);
}

int portable_sign(const char *home, const char *digest, char out[static PORTABLE_SIGNATURE_SIZE],
		  struct husk_error *err)
{
	cleanup(pkey_free) EVP_PKEY *key = open_pair(home, err);
	unsigned char bytes[SIGNATURE_BYTES];
	size_t size = sizeof(bytes);
	char message[128];

	if (!key)
		return -1;
	message_of(digest, message);
	EVP_MD_CTX *context = EVP_MD_CTX_new();
	bool done = context && EVP_DigestSignInit(context, NULL, NULL, NULL, key) == 1 &&
		    EVP_DigestSign(context, bytes, &size, (const unsigned char *)message, strlen(message)) == 1;
	EVP_MD_CTX_free(context);
	if (!done)
		return husk_fail(err, HUSK_INTERNAL, "cannot sign");
	EVP_EncodeBlock((unsigned char *)out, bytes, SIGNATURE_BYTES);
	return 0;
}

int portable_verify(const char *key, const char *signature, const char *digest, struct husk_error *err)
{
	unsigned char public[PUBLIC_SIZE], bytes[SIGNATURE_BYTES];
	char message[128];

	if (!portable_is_key(key) || decode(key + strlen(PREFIX), public, PUBLIC_SIZE) < 0 ||
	    decode(signature, bytes, SIGNATURE_BYTES) < 0)
		return husk_fail(err, HUSK_DENIED, "the signature of the portable machine makes no sense");
	message_of(digest, message);
	cleanup(pkey_free) EVP_PKEY *pair = EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, NULL, public, PUBLIC_SIZE);
	EVP_MD_CTX *context = EVP_MD_CTX_new();
	bool right =
		pair && context && EVP_DigestVerifyInit(context, NULL, NULL, NULL, pair) == 1 &&
		EVP_DigestVerify(context, bytes, sizeof(bytes), (const unsigned char *)message, strlen(message)) == 1;
	EVP_MD_CTX_free(context);
	return right ? 0
		     : husk_fail(err, HUSK_DENIED, "the portable machine was changed: its signature is not that of %s",
				 key);
}
