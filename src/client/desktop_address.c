/*
 * husk_desktop_link: a link to the live view of a desktop. Only a server can serve it, so a handle on an instance of this host
 * asks the server of the instance, on its unix socket.
 */
#include "instance/instance.h"

static int local_link(struct husk *husk, const char *sandbox, bool view_only, int64_t seconds, char **url,
		      struct husk_error *err)
{
	cleanup_free char *address = str_format("unix:%s/huskd.sock", husk->paths.run);
	struct husk_host host = { .url = address };
	struct remote *remote = NULL;

	if (!address)
		return husk_fail_memory(err);
	if (remote_open(&host, &remote, err) < 0)
		return -1;
	int result = remote_desktop_link(remote, sandbox, view_only, seconds, url, err);
	remote_close(remote);
	return result;
}

int husk_desktop_link(struct husk *husk, const char *sandbox, bool view_only, int64_t seconds, char **url,
		      struct husk_error *err)
{
	if (husk->remote)
		return remote_desktop_link(husk->remote, sandbox, view_only, seconds, url, err);
	return local_link(husk, sandbox, view_only, seconds, url, err);
}
