/*
 * The bases of a build: finds what a word of FROM or of COPY --from names: an image, a template, a saved image or, for a
 * client, a snapshot. An image that is not on this host is pulled, and a bundled template is built on its first use.
 */
#include <ctype.h>

#include "build/work.h"
#include "instance/images.h"
#include "instance/instance.h"
#include "store/template.h"

#define DEFAULT_PATH "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#define SETTINGS_MAX (256u << 10)

static void say_progress(void *data, const char *line)
{
	build_note(data, "%.300s", line);
}

struct husk_build_options base_options(struct build *build)
{
	return (struct husk_build_options){ .isolation = build->options->isolation,
					    .progress = say_progress,
					    .data = build };
}

/* Takes name and digest of a template; frees it. */
static int take_template(struct husk_template *template, struct plan_base *out, struct husk_error *err)
{
	out->template = strdup(template->name);
	out->digest = strdup(template->digest);
	husk_template_free(template);
	return out->template && out->digest ? 0 : husk_fail_memory(err);
}

/* A base without a search path would leave `ENV PATH=/mine:$PATH` without the usual one. `sandbox`: one of the base; NULL: none. */
static int complete(struct build *build, struct plan_base *out, char *const *environment, const char *sandbox,
		    struct husk_error *err)
{
	const struct build_client *client = build->client;
	json_t *list, *pair;
	bool path = false;
	size_t i;

	if (!out->config && !(out->config = json_object()))
		return husk_fail_memory(err);
	list = json_object_get(out->config, "Env");
	if (!json_is_array(list)) {
		list = json_array();
		if (json_object_set_new(out->config, "Env", list) < 0)
			return husk_fail_memory(err);
	}
	for (; environment && *environment; environment++)
		json_array_append_new(list, json_string(*environment));
	json_array_foreach(list, i, pair)
	{
		path |= str_starts(json_string_value(pair) ? json_string_value(pair) : "", "PATH=");
	}
	if (!path && json_array_append_new(list, json_string("PATH=" DEFAULT_PATH)) < 0)
		return husk_fail_memory(err);
	return client && client->base ? client->base(client->data, sandbox, out->config, err) : 0;
}

static int gather(void *data, const void *bytes, size_t size)
{
	struct buf *out = data;

	return out->size + size > SETTINGS_MAX || buf_append(out, bytes, size) < 0;
}

static int read_pairs(const struct buf *text, char ***out, struct husk_error *err)
{
	for (const char *at = text->data; at && *at;) {
		size_t size = strcspn(at, "\n");
		cleanup_free char *pair = strndup(at, size);
		if (!pair || (str_is_utf8(pair, size) && strchr(pair, '=') && strv_add(out, pair) < 0))
			return husk_fail_memory(err);
		at += size + (at[size] == '\n');
	}
	return 0;
}

/* The variables of a base whose image is not known are in a file of each of its sandboxes. */
static int ask(struct build *build, struct plan_base *out, struct husk_error *err)
{
	cleanup_free char *sandbox = NULL;
	cleanup_buf struct buf text = { 0 };
	cleanup_strv char **environment = NULL;

	if (build_sandbox(build, out->template, out->snapshot, &sandbox, err) < 0)
		return -1;
	/* A guest without the file, or with a strange one, has no variables. */
	husk_file_read(build->husk, sandbox, TEMPLATE_ENVIRONMENT, 0, 0, gather, &text, NULL);
	int result = read_pairs(&text, &environment, err);
	if (result == 0)
		result = complete(build, out, environment, sandbox, err);
	husk_kill(build->husk, sandbox, NULL);
	return result;
}

/* A bundled template: built on its first use, and again when its definition or Husk has changed. */
static int find_bundled(struct build *build, const char *word, const char *definition, struct plan_base *out,
			struct husk_error *err)
{
	cleanup_template struct template_definition *loaded = NULL;
	struct husk_build_options options = base_options(build);
	struct husk_template *template = NULL;

	options.name = word;
	options.definition = definition;
	if (template_load(definition, &loaded, err) < 0 ||
	    husk_template_build(build->owner, &options, &template, NULL, err) < 0 ||
	    take_template(template, out, err) < 0)
		return -1;
	return complete(build, out, loaded->environment, NULL, err) < 0 ? -1 : 1;
}

/* 1: there is a template of this name, or a definition to build one from. */
static int find_template(struct build *build, const char *word, struct plan_base *out, struct husk_error *err)
{
	struct husk_template **list = NULL, *found = NULL;
	cleanup_free char *definition = template_find(word, NULL);

	if (definition)
		return find_bundled(build, word, definition, out, err);

	if (husk_template_list(build->husk, &list, err) < 0)
		return -1;
	for (size_t i = 0; list[i] && !found; i++)
		if (str_equal(list[i]->name, word)) {
			found = list[i];
			for (size_t k = i; list[k]; k++)
				list[k] = list[k + 1];
		}
	husk_template_list_free(list);
	if (!found)
		return 0;
	return take_template(found, out, err) < 0 || ask(build, out, err) < 0 ? -1 : 1;
}

static bool has(char *const *list, const char *word)
{
	while (list && *list && !str_equal(*list, word))
		list++;
	return list && *list;
}

/* 1: there is a snapshot of this name or id. */
static int find_snapshot(struct build *build, const char *word, struct plan_base *out, struct husk_error *err)
{
	struct husk_snapshot **list = NULL;

	if (husk_snapshot_list(build->husk, &list, err) < 0)
		return -1;
	for (size_t i = 0; list[i] && !out->snapshot; i++)
		if (str_equal(list[i]->name, word) || str_equal(list[i]->id, word) || has(list[i]->tags, word)) {
			out->snapshot = strdup(list[i]->id);
			out->digest = strdup(list[i]->id);
		}
	husk_snapshot_list_free(list);
	if (!out->snapshot)
		return 0;
	return !out->digest ? husk_fail_memory(err) : ask(build, out, err) < 0 ? -1 : 1;
}

static int make_scratch(struct build *build, struct plan_base *out, struct husk_error *err)
{
	cleanup_free char *empty = str_format("%s/empty-%s", build->cache, build->id);
	struct husk_build_options options = base_options(build);
	struct husk_template *template = NULL;

	if (!empty)
		return husk_fail_memory(err);
	cleanup_free char *folder = str_format("%s/tmp", empty); /* a root needs something in it */
	if (!folder || dir_make(folder, 0755, err) < 0)
		return folder ? -1 : husk_fail_memory(err);
	options.name = IMAGE_SCRATCH;
	options.directory = empty;
	int result = husk_template_build(build->owner, &options, &template, NULL, err);
	dir_remove(empty, NULL);
	return result < 0 || take_template(template, out, err) < 0 ? -1 : complete(build, out, NULL, NULL, err);
}

static int pull_stops(void *data, const struct husk_pull_progress *progress)
{
	(void)progress;
	return build_stopped(data, NULL);
}

static int pull(struct build *build, const char *word, struct husk_image **image, struct husk_error *err)
{
	const struct husk_pull_options options = { .name = word, .progress = pull_stops, .data = build };

	if (build->options->registries && !husk_image_allowed(word, build->options->registries))
		return husk_fail(
			err, HUSK_DENIED,
			"the image '%.120s' is not on this host, and its registry is not allowed: use the name "
			"of a template, or let the owner run husk pull or list the registry in "
			"HUSK_PULL_REGISTRIES",
			word);
	build_note(build, "pulling %.200s", word);
	if (husk_image_pull(build->owner, &options, image, err) < 0)
		return -1;
	build_note(build, "pulled %.200s", (*image)->name);
	return 0;
}

/* 1: an image that somebody saved into the folder of images; it becomes a template. */
static int find_saved(struct build *build, const char *word, struct plan_base *out, struct husk_error *err)
{
	struct husk_build_options options = base_options(build);
	cleanup_free char *path = NULL, *reference = NULL, *name = str_format("image-%s", word);
	struct husk_template *template = NULL;
	struct husk_error why = { 0 };

	if (!name)
		return husk_fail_memory(err);
	if (husk_image_find(build->owner, word, &path, &reference, &why) < 0)
		return why.code == HUSK_NOT_FOUND ? 0 : husk_fail(err, why.code, "%s", why.message);
	for (char *at = name; *at; at++)
		*at = isalnum((unsigned char)*at) || strchr("-_.", *at) ? *at : '-';
	options.name = name;
	options.image = path;
	options.reference = reference;
	if (husk_template_build(build->owner, &options, &template, NULL, err) < 0)
		return -1;
	return take_template(template, out, err) < 0 || ask(build, out, err) < 0 ? -1 : 1;
}

static int find_image(struct build *build, const char *word, struct plan_base *out, struct husk_error *err)
{
	struct husk_build_options options = base_options(build);
	struct husk_image *image = NULL;
	struct husk_template *template = NULL;
	struct husk_error why = { 0 };
	int result = husk_image_inspect(build->owner, word, &image, &why), saved = 0;

	if (result < 0 && why.code != HUSK_NOT_FOUND)
		return husk_fail(err, why.code, "%s", why.message);
	if (result < 0 && (saved = find_saved(build, word, out, err)) != 0)
		return MIN(saved, 0);
	if (result < 0 && pull(build, word, &image, err) < 0)
		return -1;
	result = husk_image_build(build->owner, image->name, &options, &template, NULL, err);
	if (result == 0)
		out->config = image->config ? json_loads(image->config, 0, NULL) : NULL;
	husk_image_free(image);
	return result < 0 || take_template(template, out, err) < 0 ? -1 : complete(build, out, NULL, NULL, err);
}

static bool has_image(struct build *build, const char *word)
{
	struct husk_image *image = NULL;
	bool found = husk_image_inspect(build->owner, word, &image, NULL) == 0;

	husk_image_free(image);
	return found;
}

/* What was built or pulled here under this name comes first: its config is known. */
int base_resolve(void *data, const char *word, struct plan_base *out, struct husk_error *err)
{
	struct build *build = data;
	const struct build_client *client = build->client;
	int found = 0;

	if (build_stopped(build, err))
		return -1;
	if (str_equal(word, IMAGE_SCRATCH))
		return make_scratch(build, out, err);
	bool image = has_image(build, word);
	cleanup_free char *name = image                      ? NULL
				  : client && client->alias  ? client->alias(client->data, word)
				  : husk_image_is_name(word) ? NULL
							     : strdup(word);
	if (name)
		found = find_template(build, name, out, err);
	if (name && !found && client)
		found = find_snapshot(build, name, out, err);
	return found ? MIN(found, 0) : find_image(build, word, out, err);
}
