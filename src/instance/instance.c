/*
 * The handle on an instance (struct husk): opening and closing it, and the few facts that everything in libhusk shares.
 * What is done with a handle is in the files beside this one, and in client/.
 */
#include "instance/instance.h"

#include "engine/engine.h"
#include "instance/recover.h"

#define UID_FIRST 0x10000000u /* above ordinary and subuid ranges; 65,536 ids per slot */

/* ---- a server ---- */

int husk_open_host(const struct husk_host *host, struct husk **out, struct husk_error *err)
{
	struct husk *husk = calloc(1, sizeof(*husk));

	if (!husk)
		return husk_fail_memory(err);
	if (remote_open(host, &husk->remote, err) < 0) {
		free(husk);
		return -1;
	}
	*out = husk;
	return 0;
}

const char *husk_url(struct husk *husk)
{
	return husk->remote ? remote_url(husk->remote) : NULL;
}

/* ---- an instance of this host ---- */

/* The default place: the server, or NULL for the directory that paths_open chooses. */
static const char *default_place(void)
{
	const char *host = getenv("HUSK_HOST"), *home = getenv("HUSK_HOME");

	if (host && *host)
		return host;
	if ((home && *home) || geteuid() == 0)
		return NULL;
	return "unix:" REMOTE_SOCKET;
}

static int fail_unprivileged(struct husk_error *err)
{
	return husk_fail(err, HUSK_DENIED,
			 "an instance of one's own (HUSK_HOME) needs root, to make cgroups and namespaces; start it "
			 "with sudo, or "
			 "use the server's: unset HUSK_HOME");
}

int husk_open(const char *home, struct husk **out, struct husk_error *err)
{
	const char *place = home ? home : default_place();

	if (remote_is_url(place) || (!home && place))
		return husk_open_host(&(struct husk_host){ place, getenv("HUSK_TOKEN"), getenv("HUSK_CA") }, out, err);
	/* first: nothing is created that the next step could not use */
	if (geteuid() != 0)
		return fail_unprivileged(err);
	struct husk *husk = calloc(1, sizeof(*husk));
	if (!husk)
		return husk_fail_memory(err);
	if (paths_open(home, &husk->paths, err) < 0) {
		free(husk);
		return -1;
	}
	cleanup_free char *database = path_catalog(&husk->paths);
	if (!database || catalog_open(database, &husk->catalog, err) < 0) {
		husk_close(husk);
		return database ? -1 : husk_fail_memory(err);
	}
	husk_recover(husk, NULL);
	*out = husk;
	return 0;
}

void husk_close(struct husk *husk)
{
	if (!husk)
		return;
	if (husk->remote) {
		remote_close(husk->remote);
	} else {
		catalog_close(husk->catalog);
		if (!husk->is_view)
			paths_close(&husk->paths);
	}
	free(husk);
}

int husk_owner_only(struct husk *husk, const char *what, struct husk_error *err)
{
	if (!catalog_tenant(husk->catalog))
		return 0;
	return husk_fail(err, HUSK_DENIED, "%s is for the instance's owner; use a token made with --admin", what);
}

int name_check(const char *field, const char *name, struct husk_error *err)
{
	size_t length = strlen(name);

	if (length == 0 || length > 63 || strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-_.") != length ||
	    strchr("-_.", name[0]))
		return husk_fail_field(
			err, field,
			"%s '%.80s' is not valid: use 1 to 63 of a-z 0-9 - _ . and start with a letter or digit", field,
			name);
	if (str_starts(name, "sb-") || str_starts(name, "sn-"))
		return husk_fail_field(err, field,
				       "%s '%s' looks like an id; choose one without 'sb-' or 'sn-' in front", field,
				       name);
	return 0;
}

bool sandbox_has_image(struct husk *husk, const char *id)
{
	cleanup_free char *image = path_image(&husk->paths, id);

	return image && engine_image_whole(image);
}

uint32_t slot_uid_base(uint32_t slot)
{
	return UID_FIRST + slot * 65536u;
}
