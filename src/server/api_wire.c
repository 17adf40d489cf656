/*
 * GET …/wire: libhusk's connection to the guest, for a caller on another host. The connection is upgraded, and then
 * carries frames of the wire protocol between the client and the sandbox's supervisor. This file does not read them.
 * The supervisor knows that the client is not trusted (husk_tunnel): the client can only call methods of the agent.
 */
#include "base/http_grammar.h"
#include "server/proxy.h"

#define PROTOCOL "husk-wire/1"

static int handle_wire(struct request *request, struct husk_error *err)
{
	const char *upgrade = request_header(request, "Upgrade");
	const char *connection = request_header(request, "Connection");

	if (request_query_known(request, (const char *const[]){ NULL }, err) < 0)
		return -1;
	if (!upgrade || !connection || !http_list_has(connection, strlen(connection), "upgrade"))
		return husk_fail_field(err, "Upgrade",
				       "this is for libhusk; other programs use …/exec, …/pty and …/files");
	if (!str_equal(upgrade, PROTOCOL))
		return husk_fail_field(err, "Upgrade",
				       "the client speaks '%.40s', and this server " PROTOCOL
				       "; install the same version on both",
				       upgrade);
	int fd = husk_tunnel(request_husk(request), request_path(request, "id"), err);
	if (fd < 0)
		return -1;
	if (respond_header(request, "Upgrade", PROTOCOL, err) < 0) {
		fd_close(&fd);
		return -1;
	}
	return proxy_tunnel(request, fd, err);
}

const struct route wire_routes[] = {
	{ "GET", "/v1/sandboxes/{id}/wire", handle_wire, ROUTE_SOCKET },
	{ 0 },
};
