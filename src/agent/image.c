/*
 * The defaults of processes in a sandbox that was made from a container image: USER, WORKDIR, ENTRYPOINT and CMD, as
 * the build wrote them to /.husk/process. Read once at boot; a call can override each of them.
 */
#include "agent/image.h"

#define PROCESS_FILE "/.husk/process"
#define PROCESS_FILE_MAX (256u * 1024u)

static int take(struct image_process *image, const char *line, struct husk_error *err)
{
	int result = 0;

	if (str_starts(line, "user="))
		result = (image->user = strdup(line + strlen("user="))) ? 0 : -1;
	else if (str_starts(line, "cwd="))
		result = (image->cwd = strdup(line + strlen("cwd="))) ? 0 : -1;
	else if (str_starts(line, "arg="))
		result = strv_add(&image->argv, line + strlen("arg="));
	return result < 0 ? husk_fail_memory(err) : 0;
}

int image_load(struct agent *agent, struct husk_error *err)
{
	size_t size = 0;

	if (access(PROCESS_FILE, F_OK) < 0)
		return 0;
	cleanup_free char *text = file_read(PROCESS_FILE, PROCESS_FILE_MAX, &size, err);
	if (!text)
		return -1;
	for (const char *at = text; at < text + size; at += strlen(at) + 1)
		if (take(&agent->image, at, err) < 0)
			return -1;
	return 0;
}

int image_user(const struct agent *agent, const char *who, struct user *out, struct husk_error *err)
{
	return user_lookup((who && *who) || !agent->image.user ? who : agent->image.user, out, err);
}
