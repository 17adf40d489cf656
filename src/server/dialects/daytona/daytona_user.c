/*
 * The user of Daytona's sandboxes: commands and files belong to "daytona" with the home /home/daytona, unless a create
 * names another user. If the image has no such user, the create makes one. The result is kept in the settings.
 */
#include "server/dialects/daytona/daytona.h"
#include "server/guest_user.h"

/* Daytona's own image has a `python`. */
static const char make_python[] = "command -v python >/dev/null || ! command -v python3 >/dev/null ||"
				  " ln -s \"$(command -v python3)\" /usr/local/bin/python\n";

int daytona_make_user(struct husk *husk, const char *sandbox, const char *name, char **home, struct husk_error *err)
{
	return guest_user_make(husk, sandbox, name, make_python, home, err);
}

int daytona_path(const struct daytona_box *box, const char *path, char **out, struct husk_error *err)
{
	return guest_path_join(box->home, path, out, err);
}
