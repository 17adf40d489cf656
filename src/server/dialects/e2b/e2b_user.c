/*
 * Users and paths of E2B's clients: commands and files belong to "user" with the home /home/user, unless a request names
 * another user, and relative paths begin at that home. If the image has no such user, it is made on first use, with sudo
 * where the image supports that. The guest's /etc/passwd is the guest's claim: it decides only where inside the guest a
 * path leads.
 */
#include <pthread.h>

#include "server/core.h"
#include "server/dialects/e2b/e2b.h"
#include "server/guest_user.h"

#define PASSWD_MAX (1u << 20)
#define REBOOT_MS 30000

/* One at a time: two requests that append to the same files would make two users. */
static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;

static int keep(void *data, const void *bytes, size_t size)
{
	struct buf *text = data;

	return text->size + size > PASSWD_MAX || buf_append(text, bytes, size) < 0 ? -1 : 0;
}

/* ---- who ---- */

char *e2b_default(struct husk *husk, const char *sandbox, const char *what)
{
	cleanup_buf struct buf text = { 0 };

	if (husk_file_read(husk, sandbox, E2B_DEFAULTS, 0, 0, keep, &text, NULL) < 0 ||
	    str_json_deeper(text.data, text.size, 2))
		return NULL;
	cleanup_json json_t *document = json_loadb(text.data, text.size, 0, NULL);
	const char *value = json_string_value(json_object_get(document, what));
	return value && *value ? strdup(value) : NULL;
}

/* NULL: none, as for most. */
static char *built_default(struct request *request, const char *what)
{
	cleanup_sandbox struct husk_sandbox *sandbox = NULL;
	const char *id = request_path(request, "id");

	if (husk_inspect(request_husk(request), id, &sandbox, NULL) < 0 || !e2b_settings_of(sandbox).built)
		return NULL;
	return e2b_default(request_husk(request), id, what);
}

int e2b_directory(struct request *request, char **out, struct husk_error *err)
{
	cleanup_free char *given = built_default(request, "cwd");

	*out = NULL;
	return given ? e2b_path(request, E2B_USER, given, out, err) : 0;
}

/* The name in "Basic base64(name:password)". */
static int basic_name(const char *encoded, char name[static 33], struct husk_error *err)
{
	cleanup_buf struct buf decoded = { 0 };

	if (base64_decode("Authorization", encoded, strlen(encoded), &decoded, NULL) < 0)
		return husk_fail(err, HUSK_INVALID, "the Authorization header is not Basic with a user's name");
	size_t length = strcspn(decoded.data, ":");
	if (length > 32)
		return husk_fail(err, HUSK_INVALID, "the user's name has more than 32 characters");
	memcpy(name, decoded.data, length);
	name[length] = '\0';
	return 0;
}

int e2b_user(struct request *request, char name[static 33], struct husk_error *err)
{
	const char *header = request_header(request, "Authorization");
	const char *query = request_query(request, "username");

	name[0] = '\0';
	if (header && strncasecmp(header, "Basic ", 6) == 0 && basic_name(header + 6, name, err) < 0)
		return -1;
	if (query && strlen(query) <= 32)
		snprintf(name, 33, "%s", query);
	if (!name[0]) {
		cleanup_free char *built = built_default(request, "user");
		snprintf(name, 33, "%s", built && strlen(built) <= 32 ? built : E2B_USER);
	}
	if (name[strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")])
		return husk_fail(err, HUSK_INVALID, "'%s' cannot be a user's name", name);
	return 0;
}

/* ---- /etc/passwd ---- */

/* The home of `user`, as the guest reports it: 1, 0: no such user, -1. */
static int look_up(struct request *request, const char *user, char **home, struct husk_error *err)
{
	cleanup_buf struct buf text = { 0 };
	size_t length = strlen(user);
	char *save = NULL;

	if (husk_file_read(request_husk(request), request_path(request, "id"), "/etc/passwd", 0, 0, keep, &text, err) <
		    0 &&
	    err->code != HUSK_NOT_FOUND)
		return -1;
	for (char *line = strtok_r(text.data ? text.data : (char[]){ "" }, "\n", &save); line;
	     line = strtok_r(NULL, "\n", &save)) {
		if (strncmp(line, user, length) != 0 || line[length] != ':')
			continue;
		for (int field = 0; line && field < 5; field++)
			line = (line = strchr(line, ':')) ? line + 1 : NULL;
		if (!line || line[0] != '/')
			continue;
		*home = strndup(line, strcspn(line, ":"));
		return *home ? 1 : husk_fail_memory(err);
	}
	return 0;
}

int e2b_make_user(struct husk *husk, const char *sandbox, struct husk_error *err)
{
	return guest_user_make(husk, sandbox, E2B_USER, NULL, NULL, err);
}

/* Kills everything except the agent and this shell. Files in memory are removed, the boot gets an id of its own, and sudo gets
 * its server back. An image without od or mount keeps the id. */
static const char reboot[] =
	"sync; kill -9 -1; rm -rf /dev/shm/* /run/husk/sudo.sock\n"
	"at=/proc/sys/kernel/random/boot_id new=/run/husk/boot_id\n"
	"set -- $(od -An -N16 -tx2 /dev/urandom) && [ $# = 8 ] && mkdir -p /run/husk &&\n"
	"  echo \"$1$2-$3-$4-$5-$6$7$8\" >$new && { [ \"$(cat $new)\" = \"$(cat $at)\" ] || mount --bind $new $at; }\n"
	"[ ! -e /usr/local/bin/sudo ] || [ ! -x /.husk/guest/sudo-server ] ||\n"
	"  setsid /.husk/guest/sudo-server </dev/null >/dev/null 2>&1 &\n";

int e2b_reboot(struct husk *husk, const char *sandbox, struct husk_error *err)
{
	struct husk_exec_options options = { .shell = reboot, .timeout_ms = REBOOT_MS };
	struct husk_result result = { 0 };

	if (husk_run(husk, sandbox, &options, &result, err) < 0)
		return -1;
	husk_result_free(&result);
	return 0;
}

int e2b_home(struct request *request, const char *user, char **home, struct husk_error *err)
{
	int found = look_up(request, user, home, err);

	if (found == 0 && str_equal(user, E2B_USER)) {
		pthread_mutex_lock(&making);
		found = look_up(request, user, home, err);
		if (found == 0)
			found = e2b_make_user(request_husk(request), request_path(request, "id"), err) < 0
					? -1
					: look_up(request, user, home, err);
		pthread_mutex_unlock(&making);
	}
	if (found > 0)
		return 0;
	if (found < 0)
		return -1;
	request->fault = (struct fault){ 401, "unauthorized" };
	return husk_fail(err, HUSK_DENIED, "invalid username: '%s' is no user of this sandbox", user);
}

/* ---- paths ---- */

int e2b_path(struct request *request, const char *user, const char *path, char **out, struct husk_error *err)
{
	cleanup_free char *home = NULL;

	if (path[0] != '/' && e2b_home(request, user, &home, err) < 0)
		return -1;
	return guest_path_join(home ? home : "/", path, out, err);
}
