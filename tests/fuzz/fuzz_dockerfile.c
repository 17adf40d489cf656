/*
 * Dockerfiles and ignore files from anybody: whatever is accepted has steps that belong to stages, and can be freed; patterns end in
 * time. URLs of ADD and of redirects: an accepted one is a name of a host, and one line of a request.
 */
#include "build/context.h"
#include "build/dockerfile.h"
#include "build/url.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *value(void *data, const char *name)
{
	return *name == 'A' ? data : NULL;
}

static void try_url(const char *text)
{
	struct url url = { 0 };

	if (url_parse(text, &url, NULL) < 0) {
		url_free(&url);
		return;
	}
	cleanup_free char *name = url_file_name(&url), *next = url_resolve(&url, text);
	if (!*url.host || url.host[strspn(url.host, "abcdefghijklmnopqrstuvwxyz0123456789-._")] || *url.target != '/' ||
	    strpbrk(url.target, " \r\n\t") || (name && strchr(name, '/')))
		abort();
	url_free(&url);
}

static void try_redirect(const char *text)
{
	struct url url = { 0 };

	if (url_parse("https://a.test:8443/b/c?d", &url, NULL) < 0)
		abort();
	cleanup_free char *next = url_resolve(&url, text);
	if (next)
		try_url(next);
	url_free(&url);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct dockerfile file;
	cleanup_strv char **patterns = NULL;
	cleanup_free char *text = strndup((const char *)data, size);
	char word[] = "w";

	if (!text || size > 65536)
		return 0;
	try_url(text);
	try_redirect(text);
	if (ignore_parse(text, &patterns, NULL) == 0)
		ignore_match(patterns, "src/main/file.c");
	if (dockerfile_parse("D", (const char *)data, size, &file, NULL) < 0)
		return 0;
	for (size_t i = 0; i < file.stage_count; i++)
		if (file.stages[i].first + file.stages[i].count > file.step_count || file.stages[i].base >= (int)i)
			abort();
	for (size_t i = 0; i < file.step_count; i++) {
		cleanup_free char *out = NULL;
		const struct dockerfile_step *step = &file.steps[i];
		if (!step->text || !step->source || step->from >= (int)file.stage_count)
			abort();
		dockerfile_expand(step->text, file.escape, i & 1, value, word, &out, NULL);
	}
	dockerfile_free(&file);
	return 0;
}
