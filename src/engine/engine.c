/*
 * The list of engines, and shared code: choosing an engine, and caching a probe's result. Called by the supervisor and
 * `husk doctor`. An engine that was not proven to work on this host must never be chosen.
 */
#include "engine/engine.h"

const struct engine *const engines[] = { &engine_microvm, &engine_gvisor, NULL };

const struct engine *engine_find(const char *name)
{
	for (size_t i = 0; engines[i]; i++)
		if (str_equal(engines[i]->name, name))
			return engines[i];
	return NULL;
}

const struct engine *engine_choose(const char *runtime, struct husk_error *err)
{
	cleanup_buf struct buf reasons = { 0 };

	for (size_t i = 0; engines[i]; i++) {
		struct husk_error why = { 0 };

		if (engines[i]->probe(runtime, &why) == 0)
			return engines[i];
		buf_printf(&reasons, "%s%s: %s", i ? "; " : "", engines[i]->name, why.message);
	}
	husk_fail(err, HUSK_UNAVAILABLE, "no isolation engine works here: %s", reasons.data ? reasons.data : "");
	return NULL;
}

void engine_sweep(const char *runtime, const char *id)
{
	for (size_t i = 0; engines[i]; i++)
		if (engines[i]->sweep)
			engines[i]->sweep(runtime, id);
}

void engine_collect(const char *home, const char *const *directories)
{
	for (size_t i = 0; engines[i]; i++)
		if (engines[i]->collect)
			engines[i]->collect(home, directories);
}

const struct engine_shares *engine_shares_of(const char *directory)
{
	for (size_t i = 0; engines[i]; i++)
		if (engines[i]->shares && engines[i]->shares->has(directory))
			return engines[i]->shares;
	return NULL;
}

int engine_share_make(const char *home, const char *runtime, const char *directory, uint64_t bytes,
		      struct husk_error *err)
{
	struct husk_error why = { .code = HUSK_UNAVAILABLE, .message = "no engine supports it" };

	for (size_t i = 0; engines[i]; i++) {
		if (!engines[i]->shares)
			continue;
		if (engines[i]->shares->make(home, runtime, directory, bytes, &why) == 0)
			return 0;
		if (why.code != HUSK_UNAVAILABLE)
			break;
	}
	return husk_fail(err, why.code, "%s", why.message);
}

/* ---- cached results ---- */

/* Stored as two lines: the key, the text. */
int engine_remembered(const char *runtime, const char *name, const char *key, char **out)
{
	cleanup_free char *path = str_format("%s/%s", runtime, name);
	cleanup_free char *text = path ? file_read(path, 4096, NULL, NULL) : NULL;
	size_t length = strlen(key);

	if (!text || strncmp(text, key, length) != 0 || text[length] != '\n')
		return -1;
	*out = strndup(text + length + 1, strcspn(text + length + 1, "\n"));
	return *out ? 0 : -1;
}

void engine_remember(const char *runtime, const char *name, const char *key, const char *text)
{
	cleanup_free char *path = str_format("%s/%s", runtime, name);
	cleanup_free char *content = str_format("%s\n%s\n", key, text);

	if (path && content)
		file_write_atomic(path, content, strlen(content), 0600, NULL);
}
