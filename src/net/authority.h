/*
 * The certificate authority of one sandbox: made once, trusted only inside that sandbox, used by its leash to stand in
 * for the hosts that secrets belong to. Its key never enters the guest.
 */
#ifndef HUSK_AUTHORITY_H
#define HUSK_AUTHORITY_H

#include <openssl/ssl.h>

#include "base/base.h"

/* A new one, as PEM; the caller frees both, and wipes the key. */
int authority_make(char **certificate, char **key, struct husk_error *err);

struct authority;
int authority_open(const char *certificate, const char *key, struct authority **out, struct husk_error *err);
void authority_free(struct authority *authority); /* NULL is fine */
/* What a TLS server called `name` needs, its certificate signed just now. The caller frees it (SSL_CTX_free). */
SSL_CTX *authority_mint(struct authority *authority, const char *name, struct husk_error *err);

/* "what: the reason OpenSSL gives", and its queue emptied. Returns -1. */
int authority_fail(struct husk_error *err, const char *what);

#endif
