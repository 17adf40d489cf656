/*
 * Makes a user inside a sandbox if the image has none: a line in /etc/passwd, a group, a home, and sudo if the image
 * supports it. Example: guest_user_make("daytona") appends "daytona:x:1000:1000::/home/daytona:/bin/bash". Called by
 * the dialects, whose clients expect the user of their service. The guest's own list of users decides only where a path
 * leads inside the guest.
 */
#include "server/guest_user.h"

#include "base/base.h"

#define MAKE_MS 30000
#define HOME_MAX 256u

/* $1 is the name. The line in /etc/passwd is written last, so a user in it is complete. sudo uses a server that runs as
 * root, because set-user-id programs have no rights under gVisor. Small images have few programs, so the shell itself
 * reads the home. */
static const char make_user[] =
	"u=$1\n"
	"if ! grep -q \"^$u:\" /etc/passwd; then\n"
	"  n=1000; while grep -q \"^[^:]*:[^:]*:$n:\" /etc/passwd /etc/group; do n=$((n+1)); done\n"
	"  echo \"$u:x:$n:\" >>/etc/group || exit 1\n"
	"  [ ! -f /etc/shadow ] || echo \"$u:*:19000:0:99999:7:::\" >>/etc/shadow\n"
	"  mkdir -p \"/home/$u\" || exit 1\n"
	"  [ ! -d /etc/skel ] || cp -R /etc/skel/. \"/home/$u/\"\n"
	"  chown -R $n:$n \"/home/$u\"\n"
	"  if [ -x /.husk/guest/sudo-server ] && [ -x /.husk/guest/handoff ]; then\n"
	"    grep -q '^sudo:' /etc/group || echo 'sudo:x:27:' >>/etc/group\n"
	"    sed -i -e \"/^sudo:.*:\\$/s/\\$/$u/;t\" -e \"/^sudo:/s/\\$/,$u/\" /etc/group\n"
	"    [ -e /usr/local/bin/sudo ] || ln -s /.husk/guest/handoff /usr/local/bin/sudo\n"
	"    [ -S /run/husk/sudo.sock ] || setsid /.husk/guest/sudo-server </dev/null >/dev/null 2>&1 &\n"
	"  fi\n"
	"  echo \"$u:x:$n:$n::/home/$u:/bin/bash\" >>/etc/passwd\n"
	"fi\n"
	"while IFS=: read -r name x x x x home x; do [ \"$name\" != \"$u\" ] || break; done </etc/passwd\n"
	"echo \"$home\"\n";

int guest_user_make(struct husk *husk, const char *sandbox, const char *name, const char *first, char **home,
		    struct husk_error *err)
{
	cleanup_free char *script = str_format("%s%s", first ? first : "", make_user);
	const char *argv[] = { "/bin/sh", "-c", script, "sh", name, NULL };
	struct husk_exec_options options = { .argv = argv, .timeout_ms = MAKE_MS };
	struct husk_result result = { 0 };

	if (!script)
		return husk_fail_memory(err);
	if (!*name || strlen(name) > 32 ||
	    name[strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")])
		return husk_fail_field(err, "user", "'%.40s' cannot be a user's name", name);
	if (husk_run(husk, sandbox, &options, &result, err) < 0)
		return -1;
	size_t size = strcspn(result.output, "\n");
	bool made = result.exit_code == 0 && size > 0 && result.output[0] == '/' && size < HOME_MAX;
	char *found = made ? strndup(result.output, size) : NULL;
	husk_result_free(&result);
	if (!made)
		return husk_fail(err, HUSK_UNAVAILABLE,
				 "the sandbox has no user '%s', and it could not be made; ask for user root", name);
	if (!found)
		return husk_fail_memory(err);
	if (home)
		*home = found;
	else
		free(found);
	return 0;
}

/* ---- paths ---- */

void guest_path_clean(char *path)
{
	char *out = path, *save = NULL;
	cleanup_free char *copy = strdup(path);

	for (char *part = copy ? strtok_r(copy, "/", &save) : NULL; part; part = strtok_r(NULL, "/", &save)) {
		if (str_equal(part, "."))
			continue;
		if (str_equal(part, "..")) {
			while (out > path && *--out != '/')
				;
			continue;
		}
		*out++ = '/';
		memcpy(out, part, strlen(part));
		out += strlen(part);
	}
	if (out == path)
		*out++ = '/';
	*out = '\0';
}

int guest_path_join(const char *home, const char *path, char **out, struct husk_error *err)
{
	bool tilde = path[0] == '~' && (path[1] == '/' || path[1] == '\0');
	char *joined = path[0] == '/' ? strdup(path) : str_format("%s/%s", home, tilde ? path + 1 : path);

	if (!joined)
		return husk_fail_memory(err);
	guest_path_clean(joined);
	*out = joined;
	return 0;
}
