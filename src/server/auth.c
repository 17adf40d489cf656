/*
 * Who asks: the unix socket's peer by the kernel's word, everybody else by a token. Called by http.c for each request
 * that is not public. The token itself goes to libhusk, which knows its hash, and nowhere else: never into a log, an
 * error or an event.
 */
#include <sys/socket.h>

#include "server/core.h"

static int auth_peer(struct request *request, struct husk_error *err)
{
	struct ucred peer = { 0 };
	socklen_t size = sizeof(peer);

	if (getsockopt(request->socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0)
		return husk_fail(err, HUSK_DENIED, "cannot tell who is at the other end of the unix socket");
	if (peer.uid != 0 && peer.uid != request->server->uid)
		return husk_fail(err, HUSK_DENIED,
				 "user %u may not use this socket; it is for root and for the server's own user",
				 peer.uid);
	request->husk = request->server->husk;
	request->owner = true;
	return 0;
}

/* "Authorization" may be meant for a program inside a sandbox, so a header of our own comes first; E2B's clients have
 * one of theirs. */
static const char *find_token(const struct request *request)
{
	const char *own = request_header(request, "X-Husk-Token");
	const char *header = request_header(request, "Authorization");

	if (!own && (request->match.route->flags & ROUTE_E2B))
		own = request_header(request, "X-API-KEY");
	if (own)
		return own;
	if (!header || strncasecmp(header, "Bearer ", 7) != 0)
		return NULL;
	header += 7;
	return header + strspn(header, " ");
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
	int result = husk_as(request->server->husk, token, &request->husk, err);
	request->owner = !token->tenant;
	if (result == 0 && token->tenant)
		request->tenant = strdup(token->tenant);
	husk_token_free(token);
	return result;
}

int auth_view(struct request *request, struct husk **out, struct husk_error *err)
{
	const char *secret = find_token(request);
	struct husk_token *token = NULL;

	*out = NULL;
	if (!secret)
		return 0;
	if (husk_token_check(request->server->husk, secret, &token, err) < 0)
		return -1;
	int result = husk_as(request->server->husk, token, out, err);
	husk_token_free(token);
	return result;
}
