/*
 * A stream of bytes, encrypted with a passphrase: for portable machines in files.
 *
 *     "husk sealed 1\n"   14 bytes
 *     salt                16 bytes
 *     pieces              each 64 KiB of the stream, encrypted, and a tag of 16 bytes; the last one is shorter, or empty
 *
 * The key is scrypt of passphrase and salt, so each stream has a key of its own. A piece is encrypted with AES-256-GCM;
 * its nonce is its number and whether it is the last one. So if a piece was changed, moved, left out or added, or if the
 * stream is truncated, this is found before a byte of that piece is returned.
 */
#ifndef HUSK_SEALED_H
#define HUSK_SEALED_H

#include "base/base.h"
#include "husk.h"

#define SEALED_MAGIC "husk sealed 1\n"
#define SEALED_PASSPHRASE_MIN 8
#define SEALED_KEY_SIZE 32

/* ---- sealed.c ---- */

struct sealed;
/* What is written to sealed_sink, a husk_sink, goes to `sink` encrypted. INVALID: the passphrase is too short. */
int sealed_begin(const char *passphrase, husk_sink sink, void *data, struct sealed **out, struct husk_error *err);
int sealed_sink(void *sealed, const void *bytes, size_t size);
int sealed_end(struct sealed *sealed, struct husk_error *err); /* the last piece */
void sealed_free(struct sealed *sealed);                       /* NULL is allowed */

/* Does a stream begin like this? */
bool sealed_is(const void *bytes, size_t size);

struct unsealed;
/* unsealed_source is a husk_source that returns the bytes of `source`, decrypted. After -1, unsealed_why has the
 * reason: DENIED, the passphrase is wrong or the stream was changed; INVALID, it is not such a stream. */
int unsealed_begin(const char *passphrase, husk_source source, void *data, struct unsealed **out,
		   struct husk_error *err);
/* The same with the key itself, for tests. */
int unsealed_begin_key(const unsigned char key[static SEALED_KEY_SIZE], husk_source source, void *data,
		       struct unsealed **out, struct husk_error *err);
ssize_t unsealed_source(void *unsealed, void *bytes, size_t size);
const struct husk_error *unsealed_why(const struct unsealed *unsealed);
void unsealed_free(struct unsealed *unsealed); /* NULL is allowed */

#endif
