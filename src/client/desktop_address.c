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
	struct husk_error why = { 0 };

	if (!address)
		return husk_fail_memory(err);
	if (remote_open(&host, &remote, err) < 0)
		return -1;
	int result = remote_desktop_link(remote, sandbox, view_only, seconds, url, &why);
	remote_close(remote);
	if (result < 0 && access(address + strlen("unix:"), F_OK) < 0)
		return husk_fail(err, HUSK_UNAVAILABLE,
				 "no server runs for this instance, so there is nothing to link to; start one: huskd");
	return result < 0 ? husk_fail(err, why.code, "%s", why.message) : 0;
}

int husk_desktop_link(struct husk *husk, const char *sandbox, bool view_only, int64_t seconds, char **url,
		      struct husk_error *err)
{
	if (husk->remote)
		return remote_desktop_link(husk->remote, sandbox, view_only, seconds, url, err);
	return local_link(husk, sandbox, view_only, seconds, url, err);
}
