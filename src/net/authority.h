/*
 * The certificate authority of one sandbox: created once, and trusted only inside that sandbox. The leash uses it to
 * terminate TLS for the hosts of secrets. Its key never enters the guest.
 */
#ifndef HUSK_AUTHORITY_H
#define HUSK_AUTHORITY_H

#include <openssl/ssl.h>

#include "base/base.h"

/* A new authority, as PEM; the caller frees both texts, and wipes the key. */
int authority_make(char **certificate, char **key, struct husk_error *err);

struct authority;
int authority_open(const char *certificate, const char *key, struct authority **out, struct husk_error *err);
void authority_free(struct authority *authority); /* NULL is fine */
/* A TLS server context for `name`, with a certificate signed now. The caller frees it (SSL_CTX_free). */
SSL_CTX *authority_mint(struct authority *authority, const char *name, struct husk_error *err);

/* Fails with "what: the reason of OpenSSL", and empties OpenSSL's error queue. Returns -1. */
int authority_fail(struct husk_error *err, const char *what);

#endif
