/*
 * Names of images in registries, as Docker reads them:
 *
 *     python                        docker.io/library/python:latest
 *     me/tool:2                     docker.io/me/tool:2
 *     localhost:5000/python:3.12    a registry on this host
 *     quay.io/a/b@sha256:<hex>      this content and no other
 *
 * Pure: text in, structure out. A name may come from an untrusted Dockerfile or API client, and becomes part of a URL.
 * So a name outside the grammar is refused.
 */
#ifndef HUSK_REGISTRY_REFERENCE_H
#define HUSK_REGISTRY_REFERENCE_H

#include "base/base.h"

#define REFERENCE_REGISTRY "docker.io" /* for names without a host, unless HUSK_REGISTRY names another */

struct reference {
	char *host;       /* "docker.io", "localhost:5000", "[::1]:5000" */
	char *repository; /* "library/python" */
	char *tag;        /* NULL: it has a digest */
	char *digest;     /* "sha256:<64 hexadecimal digits>"; NULL: it has a tag */
};

/* `registry` is the registry of names without a host: HOST[:PORT][/PREFIX]; NULL: REFERENCE_REGISTRY. INVALID names the
 * wrong part. Free *out with reference_free. */
int reference_parse(const char *text, const char *registry, struct reference *out, struct husk_error *err);
void reference_free(struct reference *reference);
/* The whole name: "docker.io/library/python:3.12". Caller frees; NULL: no memory. */
char *reference_name(const struct reference *reference);
/* Is it the name of an image and never of a template? Such a name has a tag, a digest or a folder. */
bool reference_is_image(const char *text);
bool reference_is_tag(const char *text);
/* Is the host this machine: localhost, 127.0.0.0/8, ::1? */
bool reference_is_loopback(const char *host);
/* Does a list of hosts ("a.example:5000,b.example", separated by commas or blanks) contain this one? */
bool reference_listed(const char *list, const char *host);

#endif
