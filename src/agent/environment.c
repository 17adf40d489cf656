/*
 * Builds the environment of a process from four layers: defaults, template, sandbox, call. Called at boot and for every
 * start of a process. The agent's own environment comes from the engine, and none of its variables may reach a process.
 */
#include "agent/environment.h"

#include <sys/stat.h>

#define ENVIRONMENT_FILE_MAX (256u * 1024u)
#define ENVIRONMENT_PUBLISHED "/run/husk/environment"

static size_t key_length(const char *pair)
{
	return strcspn(pair, "=");
}

static int environment_set(char ***list, const char *pair)
{
	size_t length = key_length(pair), count = *list ? strv_length(*list) : 0;

	for (size_t i = 0; i < count; i++) {
		char **at = *list + i;
		if (strncmp(*at, pair, length + 1) != 0)
			continue;
		char *copy = strdup(pair);
		if (!copy)
			return -1;
		free(*at);
		*at = copy;
		return 0;
	}
	return strv_add(list, pair);
}

static int environment_set_value(char ***list, const char *key, const char *value)
{
	cleanup_free char *pair = str_format("%s=%s", key, value);
	return pair ? environment_set(list, pair) : -1;
}

static int environment_merge(char ***list, char *const *pairs)
{
	for (; pairs && *pairs; pairs++) {
		if (environment_set(list, *pairs) < 0)
			return -1;
	}
	return 0;
}

char **environment_build(const struct agent *agent, const struct user *user, char *const *call, bool terminal,
			 struct husk_error *err)
{
	cleanup_strv char **list = NULL;

	if (environment_set(&list, "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin") < 0 ||
	    environment_set_value(&list, "HOME", user->home) < 0 ||
	    environment_set_value(&list, "USER", user->name) < 0 ||
	    environment_set_value(&list, "LOGNAME", user->name) < 0 ||
	    environment_set_value(&list, "SHELL", user->shell) < 0 || environment_set(&list, "LANG=C.UTF-8") < 0 ||
	    (terminal && environment_set(&list, "TERM=xterm-256color") < 0) ||
	    environment_merge(&list, agent->image_environment) < 0 ||
	    environment_merge(&list, agent->identity_environment) < 0 || environment_merge(&list, call) < 0) {
		husk_fail_memory(err);
		return NULL;
	}
	return steal_pointer(list);
}

const char *environment_get(char *const *list, const char *key)
{
	size_t length = strlen(key);

	for (; list && *list; list++) {
		if (strncmp(*list, key, length) == 0 && (*list)[length] == '=')
			return *list + length + 1;
	}
	return NULL;
}

char **environment_load(const char *path, struct husk_error *err)
{
	cleanup_strv char **list = calloc(1, sizeof(*list));
	struct husk_error why;

	if (!list) {
		husk_fail_memory(err);
		return NULL;
	}
	if (access(path, F_OK) < 0)
		return steal_pointer(list);
	cleanup_free char *text = file_read(path, ENVIRONMENT_FILE_MAX, NULL, &why);
	if (!text) {
		husk_fail(err, why.code, "%s", why.message);
		return NULL;
	}
	char *rest = text;
	for (char *line = strsep(&rest, "\n"); line; line = strsep(&rest, "\n")) {
		size_t length = key_length(line);
		if (line[0] == '#' || length == 0 || line[length] != '=')
			continue;
		if (environment_set(&list, line) < 0) {
			husk_fail_memory(err);
			return NULL;
		}
	}
	return steal_pointer(list);
}

/* NUL-terminated, because a value may contain newlines. Without the file, a kernel keeps the environment it was started
 * with. */
static void environment_publish(char *const *pairs)
{
	cleanup_buf struct buf text = { 0 };
	struct husk_error why = { 0 };

	for (; pairs && *pairs; pairs++)
		if (buf_append(&text, *pairs, strlen(*pairs) + 1) < 0)
			return;
	if ((mkdir("/run/husk", 0755) < 0 && errno != EEXIST) ||
	    file_write_atomic(ENVIRONMENT_PUBLISHED, text.data ? text.data : "", text.size, 0600, &why) < 0)
		log_line(LOG_WARN, "'%s' is not written: %s", ENVIRONMENT_PUBLISHED,
			 why.code ? why.message : strerror(errno));
}

void environment_adopt(struct agent *agent, char **pairs)
{
	strv_free(agent->identity_environment);
	agent->identity_environment = pairs;
	if (getpid() == 1)
		environment_publish(pairs);
}
