/*
 * Identifies the caller: the peer of the unix socket by its uid from the kernel, everybody else by a token. Root and
 * the server's own user own the instance; any other peer that the socket's mode allows (the group of --group) is a
 * tenant by its user id, "uid-1000". Called by http.c for each request that is not public. The token itself is passed
 * to libhusk, which knows its hash, and nowhere else: never into a log, an error or an event.
 */
#include <sys/socket.h>

#include "server/core.h"

/* The uid of the peer from the kernel, as it was at the connect. */
static int peer_user(const struct request *request, uid_t *out, struct husk_error *err)
{
	struct ucred peer = { 0 };
	socklen_t size = sizeof(peer);

	if (getsockopt(request->socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0 || size != sizeof(peer))
		return husk_fail(err, HUSK_DENIED, "cannot tell who is at the other end of the unix socket");
	*out = peer.uid;
	return 0;
}

static bool owns_instance(const struct request *request, uid_t user)
{
	return user == 0 || user == request->server->uid;
}

/* The tenant of a user, with the quotas of the server's options. */
static int peer_token(const struct request *request, uid_t user, char name[static 24], struct husk_token *out,
		      struct husk_error *err)
{
	const struct server_options *options = request->server->options;

	/* Without a group the mode allows nobody else; this second check also holds if somebody changed the mode. */
	if (!request->server->shared)
		return husk_fail(err, HUSK_DENIED,
				 "user %u may not use this socket; it is for root and for the server's own user", user);
	snprintf(name, 24, "uid-%u", user);
	*out = (struct husk_token){ .tenant = name,
				    .max_sandboxes = options->user_sandboxes,
				    .max_memory_bytes = options->user_memory_bytes,
				    .max_snapshot_bytes = options->user_snapshot_bytes };
	return 0;
}

/* "Authorization" may be meant for a program inside a sandbox, so our own header comes first, then the dialect's. */
static const char *find_token(const struct request *request)
{
	const struct dialect *dialect = request->match.dialect;
	const char *own = request_header(request, "X-Husk-Token");
	const char *header = request_header(request, "Authorization");

	if (!own && dialect && dialect->token_header)
		own = request_header(request, dialect->token_header);
	if (own)
		return own;
	if (!header || strncasecmp(header, "Bearer ", 7) != 0)
		return NULL;
	header += 7;
	return header + strspn(header, " ");
}

/* After any failure here the caller has no rights. */
static int auth_as(struct request *request, const struct husk_token *token, struct husk_error *err)
{
	cleanup_free char *tenant = token->admin ? NULL : strdup(token->tenant);

	if (!token->admin && !tenant)
		return husk_fail_memory(err);
	if (husk_as(request->server->husk, token, &request->husk, err) < 0)
		return -1;
	request->tenant = steal_pointer(tenant);
	request->caller = token->admin ? CALLER_INSTANCE : CALLER_TENANT;
	return 0;
}

static int auth_peer(struct request *request, struct husk_error *err)
{
	struct husk_token token;
	char name[24];
	uid_t user;

	if (peer_user(request, &user, err) < 0)
		return -1;
	if (owns_instance(request, user)) {
		request->husk = request->server->husk;
		request->caller = CALLER_INSTANCE;
		return 0;
	}
	return peer_token(request, user, name, &token, err) < 0 ? -1 : auth_as(request, &token, err);
}

int auth_request(struct request *request, struct husk_error *err)
{
	const char *secret = find_token(request);
	struct husk_token *token = NULL;

	if (!secret && request->listener->local)
		return auth_peer(request, err);
	if (!secret || !*secret)
		return husk_fail(err, HUSK_DENIED,
				 "no token; send 'Authorization: Bearer TOKEN' (husk token create makes one)");
	if (husk_token_check(request->server->husk, secret, &token, err) < 0)
		return -1;
	int result = auth_as(request, token, err);
	husk_token_free(token);
	return result;
}

static int peer_view(struct request *request, struct husk **out, struct husk_error *err)
{
	struct husk_token token;
	char name[24];
	uid_t user;

	if (peer_user(request, &user, err) < 0)
		return -1;
	if (owns_instance(request, user))
		return 0;
	return peer_token(request, user, name, &token, err) < 0 ? -1 : husk_as(request->server->husk, &token, out, err);
}

int auth_view(struct request *request, struct husk **out, struct husk_error *err)
{
	const char *secret = find_token(request);
	struct husk_token *token = NULL;

	*out = NULL;
	if (!secret && request->listener->local)
		return peer_view(request, out, err);
	if (!secret)
		return 0;
	if (husk_token_check(request->server->husk, secret, &token, err) < 0)
		return -1;
	int result = husk_as(request->server->husk, token, out, err);
	husk_token_free(token);
	return result;
}
