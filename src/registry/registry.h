/*
 * One repository of one registry, over the OCI distribution protocol: finds its address, sends the login when asked,
 * follows redirects, and waits when told to. Several threads may use it at once.
 *
 * Credentials are sent to the registry and to the token server that it names, and to no other host: never to the target
 * of a redirect.
 */
#ifndef HUSK_REGISTRY_REGISTRY_H
#define HUSK_REGISTRY_REGISTRY_H

#include "registry/reference.h"
#include "registry/transport.h"

struct registry;

/* `stop` is called often; if it returns true, requests end with GONE. The reference must outlive the registry. */
int registry_open(const struct reference *reference, bool (*stop)(void *data), void *data, struct registry **out,
		  struct husk_error *err);
void registry_close(struct registry *registry);
static inline void registry_cleanup(struct registry **registry)
{
	registry_close(*registry);
}
#define cleanup_registry cleanup(registry_cleanup)

/* From now on, also asks for the right to push. */
void registry_for_push(struct registry *registry);

struct registry_request {
	const char *path; /* below the repository: "manifests/3.12" */
	const char *url;  /* instead of a path: what the registry named as the place of an upload */
	const char *accept;
	const char *method; /* as in transport.h, with its body */
	const void *body;
	size_t body_size;
	const char *type;
	uint64_t from; /* bytes of a blob that exist already */
	/* As in transport.h, with this data. */
	int (*sink)(void *data, const struct transport_reply *reply, const char *bytes, size_t size,
		    struct husk_error *err);
	void *data;
};
/* 0 with the status 200, 206 or 416 in reply; of a POST or PUT, 201, 202 or 204. NOT_FOUND, DENIED, or UNAVAILABLE;
 * after UNAVAILABLE the request may be
 * repeated. */
int registry_get(struct registry *registry, const struct registry_request *request, struct transport_reply *reply,
		 struct husk_error *err);
/* Does the repository have the blob (hexadecimal digest)? 1, 0, or -1. */
int registry_has(struct registry *registry, const char *digest, struct husk_error *err);
/* Sends a blob that the repository does not have. */
int registry_put_blob(struct registry *registry, const char *digest, const void *bytes, size_t size,
		      struct husk_error *err);
/* Sends a manifest, under the tag or digest of the registry's reference. */
int registry_put_manifest(struct registry *registry, const char *type, const char *text, struct husk_error *err);
/* A document of at most `most` bytes, with its type in reply->type; caller frees. */
char *registry_get_text(struct registry *registry, const char *path, const char *accept, size_t most,
			struct transport_reply *reply, struct husk_error *err);
struct credentials;
/* Does the registry accept this login? DENIED: no. */
int registry_login(const char *host, const struct credentials *credentials, struct husk_error *err);
/* Waits so long; if `stop` returns true meanwhile, -1 with GONE. */
int registry_wait(struct registry *registry, int64_t ms, struct husk_error *err);

#endif
