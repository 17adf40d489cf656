/*
 * One repository of one registry, over the OCI distribution protocol: finds out where it is, shows who we are when it asks,
 * follows redirects, and waits when it is told to. Several threads may ask at once.
 *
 * Credentials go to the registry, and to the server of tokens that it names, and to nobody else: what a redirect leads to
 * gets none.
 */
#ifndef HUSK_REGISTRY_REGISTRY_H
#define HUSK_REGISTRY_REGISTRY_H

#include "registry/reference.h"
#include "registry/transport.h"

struct registry;

/* `stop` is asked often; true ends requests with GONE. The reference must outlive the registry. */
int registry_open(const struct reference *reference, bool (*stop)(void *data), void *data, struct registry **out,
		  struct husk_error *err);
void registry_close(struct registry *registry);
static inline void registry_cleanup(struct registry **registry)
{
	registry_close(*registry);
}
#define cleanup_registry cleanup(registry_cleanup)

struct registry_request {
	const char *path; /* below the repository: "manifests/3.12" */
	const char *accept;
	uint64_t from; /* bytes of a blob that are there already */
	/* Of transport.h, with this data. */
	int (*sink)(void *data, const struct transport_reply *reply, const char *bytes, size_t size,
		    struct husk_error *err);
	void *data;
};
/* 0 with the status 200, 206 or 416 in reply. NOT_FOUND, DENIED, and UNAVAILABLE, after which it may be tried again. */
int registry_get(struct registry *registry, const struct registry_request *request, struct transport_reply *reply,
		 struct husk_error *err);
/* Waits, but no longer than `stop` allows. -1 with GONE. */
int registry_wait(struct registry *registry, int64_t ms, struct husk_error *err);

#endif
