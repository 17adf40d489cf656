/*
 * Certificates that the programs of a sandbox trust in addition to those of its template, for example the authority of
 * a company that opens TLS on its way out. They are part of the egress policy (policy.h), as PEM.
 */
#ifndef HUSK_TRUST_H
#define HUSK_TRUST_H

#include <openssl/x509.h>

#include "base/base.h"

#define TRUST_MAX (64u << 10)
#define TRUST_HASH 9 /* bytes of a subject hash, with the final NUL */

/* Checks PEM text with one or more certificates. *out is the canonical form, without comments and duplicates; caller
 * frees. "" is allowed and means no certificates. INVALID says what is wrong and what to do; `field` names the text. */
int trust_read(const char *pem, const char *field, char **out, struct husk_error *err);

/* The same for the file at `path`; `field` names the option or setting with the path. Not for "". */
int trust_read_file(const char *path, const char *field, char **out, struct husk_error *err);

/* Calls `each` for every certificate of canonical text. Ends early with the first result below 0, and returns it. */
int trust_each(const char *pem, int (*each)(void *data, X509 *certificate), void *data, struct husk_error *err);

/* OpenSSL's name of a certificate in a directory: eight hex digits of the subject. */
void trust_hash(X509 *certificate, char out[static TRUST_HASH]);

#endif
