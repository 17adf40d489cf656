/*
 * Baking: a template's root image is booted once, warmed, and saved while it runs; every create continues from that. One
 * baked image per disk size, since the size of the writable layer is part of it: the template's own at build time, others
 * the first time they are asked for.
 */
#include <fcntl.h>
#include <jansson.h>
#include <pthread.h>
#include <sys/file.h>

#include "engine/engine.h"
#include "jail/cgroup.h"
#include "sandbox/egress.h"
#include "sandbox/lifecycle.h"
#include "sandbox/link.h"
#include "sandbox/pool.h"
#include "sandbox/view.h"
#include "store/oci.h"
#include "store/template.h"

#define HELLO_TIMEOUT_MS 180000 /* a first boot; on an emulated CPU with others on it, a slow one */
#define WARM_TIMEOUT_MS 300000
#define READY_TIMEOUT_MS 60000

/* What has to happen in a booted machine before it is saved; kept beside the image for later disk sizes. */
struct recipe {
	char **start, **warm;
	char *ready;
};

static void recipe_free(struct recipe *recipe)
{
	strv_free(recipe->start);
	strv_free(recipe->warm);
	free(recipe->ready);
}

static json_t *list_to_json(char *const *list)
{
	json_t *array = json_array();

	for (size_t i = 0; list && list[i]; i++)
		json_array_append_new(array, json_string(list[i]));
	return array;
}

static int recipe_save(const struct template_definition *d, const char *directory, struct husk_error *err)
{
	cleanup_free char *path = str_format("%s/recipe.json", directory);
	json_t *root = json_pack("{s:o, s:o, s:s?}", "start", list_to_json(d->start), "warm", list_to_json(d->warm),
				 "ready", d->ready);
	cleanup_free char *text = root ? json_dumps(root, JSON_INDENT(1)) : NULL;

	json_decref(root);
	if (!path || !text)
		return husk_fail_memory(err);
	return file_write_atomic(path, text, strlen(text), 0600, err);
}

static char **list_from_json(json_t *array)
{
	char **list = calloc(1, sizeof(char *));
	size_t i;
	json_t *value;

	json_array_foreach(array, i, value) if (list && json_is_string(value) &&
						strv_add(&list, json_string_value(value)) < 0) return NULL;
	return list;
}

static int recipe_load(const char *directory, struct recipe *out, struct husk_error *err)
{
	cleanup_free char *path = str_format("%s/recipe.json", directory);
	cleanup_free char *text = path ? file_read(path, 1u << 20, NULL, err) : NULL;
	json_t *root = text ? json_loads(text, 0, NULL) : NULL;

	if (!root)
		return text ? husk_fail(err, HUSK_INTERNAL, "'%s' is damaged; build the template again", path) : -1;
	const char *ready = json_string_value(json_object_get(root, "ready"));
	out->start = list_from_json(json_object_get(root, "start"));
	out->warm = list_from_json(json_object_get(root, "warm"));
	out->ready = ready ? strdup(ready) : NULL;
	json_decref(root);
	return out->start && out->warm && (!ready || out->ready) ? 0 : husk_fail_memory(err);
}

/* ---- commands in the booted machine ---- */

struct run {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool done;
	struct buf output, end; /* the first of what it printed */
};

static void watch_run(void *data, const struct wire_header *header, const char *payload)
{
	struct run *run = data;

	pthread_mutex_lock(&run->lock);
	if (header->type == WIRE_DATA && run->output.size < 4096)
		buf_append(&run->output, payload, MIN(header->size, 4096u));
	if (header->type == WIRE_END) {
		buf_append(&run->end, payload, header->size);
		run->done = true;
		pthread_cond_signal(&run->changed);
	}
	pthread_mutex_unlock(&run->lock);
}

/* What the bake ran is no business of the sandboxes made from it: it leaves their process lists. */
static void forget_in_guest(struct link *link, int64_t pid)
{
	cleanup_buf struct buf arguments = { 0 };

	if (pid > 0 && wire_put_int(&arguments, TAG_PID, pid) == 0)
		link_call(link, METHOD_PROCESS_FORGET, &arguments, NULL, HELLO_TIMEOUT_MS, NULL);
}

/* Runs a shell command to its end (or, detached, until it has started). Its output goes to a file in the guest, so that
 * no amount of it needs our attention; the tail of it comes back when it fails. "@label command" labels the process. */
static int run_in_guest(struct link *link, const char *command, bool detached, int timeout_ms, struct husk_error *err)
{
	struct run run = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };
	cleanup_buf struct buf open = { 0 };
	cleanup_free char *label = NULL, *shell = NULL;
	uint32_t channel = 0;
	int bad = 0, result;

	if (command[0] == '@' && strchr(command, ' ')) {
		label = strndup(command + 1, strcspn(command + 1, " "));
		command = strchr(command, ' ') + 1;
	}
	shell = detached ? str_format("exec %s", command)
			 : str_format("(%s\n) >/tmp/.husk-bake 2>&1; c=$?; [ $c = 0 ] || tail -c 2000 /tmp/.husk-bake; "
				      "rm -f /tmp/.husk-bake; exit $c",
				      command);
	bad |= wire_put_int(&open, TAG_METHOD, METHOD_EXEC);
	bad |= shell ? wire_put_string(&open, TAG_SHELL, shell) : -1;
	bad |= wire_put_string(&open, TAG_NAME, label);
	bad |= wire_put_int(&open, TAG_FLAGS, detached ? EXEC_STDIN | EXEC_DETACH : 0);
	if (!detached)
		bad |= wire_put_int(&open, TAG_TIMEOUT_MS, timeout_ms);
	if (bad)
		return husk_fail_memory(err);
	if (link_open(link, open.data, open.size, watch_run, &run, &channel, err) < 0)
		return -1;
	pthread_mutex_lock(&run.lock);
	while (!run.done) /* the agent's own timeout ends it; a dead machine does too */
		pthread_cond_wait(&run.changed, &run.lock);
	pthread_mutex_unlock(&run.lock);
	result = wire_end_status(run.end.data, run.end.size, err);
	int64_t code = wire_get_int(run.end.data, run.end.size, TAG_EXIT_CODE, 0);
	if (!detached)
		forget_in_guest(link, wire_get_int(run.end.data, run.end.size, TAG_PID, 0));
	if (result == 0 && code != 0)
		result = husk_fail(err, HUSK_INTERNAL, "'%.200s' failed with exit code %lld: %.*s", command,
				   (long long)code, (int)MIN(run.output.size, 600u),
				   run.output.data ? run.output.data : "");
	buf_free(&run.output);
	buf_free(&run.end);
	return result;
}

static int follow_recipe(struct link *link, const struct recipe *recipe, struct husk_error *err)
{
	for (size_t i = 0; recipe->start && recipe->start[i]; i++)
		if (run_in_guest(link, recipe->start[i], true, 0, err) < 0)
			return -1;
	for (size_t i = 0; recipe->warm && recipe->warm[i]; i++)
		if (run_in_guest(link, recipe->warm[i], false, WARM_TIMEOUT_MS, err) < 0)
			return -1;
	if (!recipe->ready)
		return 0;
	for (int64_t end = time_monotonic_ms() + READY_TIMEOUT_MS;;) {
		int result = run_in_guest(link, recipe->ready, false, READY_TIMEOUT_MS, err);
		if (result == 0 || time_monotonic_ms() > end)
			return result;
		usleep(100000);
	}
}

/* ---- one bake ---- */

/* Boot, warm, freeze, save into `image` (made here). */
static int bake_machine(const struct engine *engine, struct engine_spec *spec, const struct recipe *recipe,
			const char *image, struct husk_error *err)
{
	struct engine_machine *machine = NULL;
	struct link *link = NULL;
	int to_agent, from_agent;

	int result = engine->prepare(spec, &machine, err);
	if (result == 0)
		result = engine->boot(machine, err);
	if (result == 0) {
		engine->link(machine, &to_agent, &from_agent);
		result = link_start(to_agent, from_agent, true, &link, err);
	}
	if (result == 0)
		result = link_wait_hello(link, HELLO_TIMEOUT_MS, err);
	if (result == 0)
		result = follow_recipe(link, recipe, err);
	if (result == 0)
		result = link_call(link, METHOD_FREEZE, NULL, NULL, HELLO_TIMEOUT_MS, err);
	if (result == 0)
		result = dir_make(image, 0700, err);
	if (result == 0)
		result = engine->checkpoint(machine, image, err);
	if (result == 0)
		result = engine_image_sync(image, err);
	if (machine)
		engine->stop(machine);
	link_free(link);
	if (machine)
		engine->free(machine);
	return result;
}

/* Up to the first answer of a machine that is restored from it, as later ones will be. */
static int answer_once(const struct engine *engine, struct engine_machine *machine, const char *image,
		       struct link **link, struct husk_error *err)
{
	cleanup_buf struct buf arguments = { 0 };
	uint8_t entropy[64];
	int to_agent, from_agent;

	if (random_bytes(entropy, sizeof(entropy)) < 0)
		return husk_fail_errno(err, "cannot read random bytes");
	if (wire_put_bytes(&arguments, TAG_ENTROPY, entropy, sizeof(entropy)) < 0 ||
	    wire_put_int(&arguments, TAG_TIME_MS, time_wall_ms()) < 0)
		return husk_fail_memory(err);
	if (engine->restore(machine, image, err) < 0)
		return -1;
	engine->link(machine, &to_agent, &from_agent);
	if (link_start(to_agent, from_agent, false, link, err) < 0)
		return -1;
	return link_call(*link, METHOD_IDENTITY, &arguments, NULL, HELLO_TIMEOUT_MS, err);
}

/* Restores the fresh image once, so that the engine can note what that takes. Should it fail, restores are slower. */
static void learn(const struct engine *engine, const struct engine_spec *baked, const char *image)
{
	cleanup_free char *directory = str_format("%s/again", baked->directory);
	struct engine_machine *machine = NULL;
	struct engine_spec spec = *baked;
	struct husk_error err = { 0 };
	struct link *link = NULL;

	if (!engine->learn || !directory)
		return;
	spec.directory = directory;
	int result = dir_make(directory, 0711, &err);
	if (result == 0)
		result = engine->prepare(&spec, &machine, &err);
	if (result == 0)
		result = answer_once(engine, machine, image, &link, &err);
	if (result == 0)
		result = engine->learn(machine, image, &err);
	if (result < 0)
		log_line(LOG_WARN, "bake: not noted what a restore needs first: %s", err.message);
	if (machine)
		engine->stop(machine);
	link_free(link);
	if (machine)
		engine->free(machine);
}

/* The machine of a bake has no row: its lock file, named like its cgroup, is what tells a live bake from a dead one. */
static int bake(struct husk *husk, const char *isolation, const char *rootfs, uint64_t disk_bytes,
		const struct recipe *recipe, const char *image, struct husk_error *err)
{
	char name[64];

	if (random_id("bake-", 8, name) < 0)
		return husk_fail_errno(err, "cannot make an id");
	const struct engine *engine = engine_find(isolation);
	cleanup_free char *directory = str_format("%s/machines/%s", husk->paths.home, name);
	cleanup_free char *lock_path = path_lock(&husk->paths, name);
	cleanup_free char *partial = str_format("%s.partial", image);
	cleanup_close int lock = supervisor_lock(husk, name, err);
	struct cgroup *cgroup = NULL;

	if (lock < 0)
		return -1;
	if (!engine || !directory || !lock_path || !partial)
		return husk_fail(err, HUSK_UNAVAILABLE, "no engine '%s'", isolation);
	int result = dir_make(directory, 0711, err);
	if (result == 0)
		result = cgroup_create(husk->paths.scope, name, &cgroup, err);
	if (result == 0) {
		struct engine_spec spec = {
			.id = name,
			.directory = directory,
			.runtime = husk->paths.runtime,
			.rootfs = rootfs,
			.agent = TEMPLATE_AGENT,
			.disk_bytes = disk_bytes,
			.uid_base = machine_uid_base(0),
			.cgroup = cgroup,
		};
		dir_remove(partial, NULL);
		result = bake_machine(engine, &spec, recipe, partial, err);
		if (result == 0)
			learn(engine, &spec, partial);
	}
	if (result == 0 && rename(partial, image) < 0)
		result = husk_fail_errno(err, "cannot keep the baked image '%s'", image);
	if (result < 0)
		dir_remove(partial, NULL);
	if (cgroup)
		cgroup_free(cgroup);
	cgroup_destroy(husk->paths.scope, name, NULL);
	engine_sweep(husk->paths.runtime, name);
	dir_remove(directory, NULL);
	unlink(lock_path);
	return result;
}

char *bake_image(struct husk *husk, const struct catalog_template *version, uint64_t disk_bytes, struct husk_error *err)
{
	cleanup_free char *image = path_baked(&husk->paths, version->digest, disk_bytes);
	cleanup_free char *rootfs = path_rootfs(&husk->paths, version->digest);
	cleanup_free char *directory = path_template(&husk->paths, version->digest);
	cleanup_free char *lock_path = directory ? str_format("%s/bake.lock", directory) : NULL;
	struct recipe recipe = { 0 };

	if (!image || !rootfs || !lock_path) {
		husk_fail_memory(err);
		return NULL;
	}
	if (access(image, F_OK) == 0)
		return steal_pointer(image);
	/* One bakes, the others wait for it. */
	cleanup_close int lock = open(lock_path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (lock < 0 || flock(lock, LOCK_EX) < 0) {
		husk_fail_errno(err, "cannot lock '%s'", lock_path);
		return NULL;
	}
	int result = access(image, F_OK) == 0 ? 0 : recipe_load(directory, &recipe, err);
	if (result == 0 && access(image, F_OK) != 0)
		result = bake(husk, version->isolation, rootfs, disk_bytes, &recipe, image, err);
	recipe_free(&recipe);
	return result == 0 ? steal_pointer(image) : NULL;
}

/* ---- building a template ---- */

static int load_definition(const struct husk_build_options *o, struct template_definition **out, struct husk_error *err)
{
	int given = (o->definition != NULL) + (o->tar != NULL) + (o->directory != NULL) + (o->image != NULL);

	if (given != 1)
		return husk_fail(err, HUSK_INVALID, "give one of a definition, a tar, a directory or an image");
	if (o->image)
		return template_from_image(o->image, o->reference, o->name, out, err);
	if (o->tar)
		return template_from_tar(o->tar, o->name, out, err);
	if (o->directory)
		return template_from_directory(o->directory, o->name, out, err);
	if (template_load(o->definition, out, err) < 0)
		return -1;
	if (o->name && !template_name_valid(o->name))
		return husk_fail_field(err, "name", "template name '%.80s' is not valid", o->name);
	if (o->name) {
		char *name = strdup(o->name);
		if (!name)
			return husk_fail_memory(err);
		free((*out)->name);
		(*out)->name = name;
	}
	return 0;
}

static void tell(const struct husk_build_options *o, const char *line)
{
	if (o->progress)
		o->progress(o->data, line);
}

/* The files of a version: root image, recipe, baked image. Made beside and renamed, so that a version is whole or not. */
static int build_files(struct husk *husk, const struct husk_build_options *o,
		       const struct template_definition *definition, const struct catalog_template *version,
		       struct husk_error *err)
{
	cleanup_free char *final = path_template(&husk->paths, version->digest);
	cleanup_free char *partial = str_format("%s.partial", final ? final : "");
	cleanup_free char *rootfs = str_format("%s/rootfs.img", partial ? partial : "");
	cleanup_free char *baked = str_format("%s/baked", partial ? partial : "");
	cleanup_free char *cache = template_cache_directory(husk->paths.home);

	if (!final || !partial || !rootfs || !baked || !cache)
		return husk_fail_memory(err);
	bool made = access(final, F_OK) != 0;
	if (made || o->force) {
		if (dir_remove(partial, err) < 0 || dir_make(baked, 0700, err) < 0)
			return -1;
		int result = template_build_rootfs(definition, cache, rootfs, o->progress, o->data, err);
		if (result == 0)
			result = recipe_save(definition, partial, err);
		if (result == 0 && o->force)
			result = dir_remove(final, err);
		if (result == 0 && rename(partial, final) < 0)
			result = husk_fail_errno(err, "cannot keep the template '%s'", final);
		if (result < 0) {
			dir_remove(partial, NULL);
			return -1;
		}
	}
	tell(o, "baking: booting it once, warming it, and taking the snapshot every create continues from");
	cleanup_free char *image = bake_image(husk, version, version->disk_bytes, err);
	if (!image && made) /* no row of the catalog will ever name it */
		dir_remove(final, NULL);
	return image ? 0 : -1;
}

/* What sandboxes of this template may reach unless told otherwise, checked; NULL with err->code 0 when it says nothing. */
static char *definition_egress(const struct template_definition *definition, struct husk_error *err)
{
	struct husk_egress egress = { .mode = definition->egress,
				      .allow = (const char *const *)definition->allow,
				      .allow_count = definition->allow ? strv_length(definition->allow) : 0 };
	cleanup_policy struct policy *policy = NULL;

	if (!definition->egress && !definition->allow)
		return NULL;
	if (egress_check(&egress, &policy, err) < 0) {
		husk_wrap(err, "template '%s'", definition->name);
		return NULL;
	}
	char *text = policy_text(policy);
	if (!text)
		husk_fail_memory(err);
	return text;
}

int husk_template_build(struct husk *husk, const struct husk_build_options *options, struct husk_template **out,
			bool *fresh, struct husk_error *err)
{
	cleanup_template struct template_definition *definition = NULL;
	char digest[TEMPLATE_DIGEST_LENGTH + 1];
	struct catalog_template *current = NULL;

	if (load_definition(options, &definition, err) < 0)
		return -1;
	struct husk_error why = { 0 };
	cleanup_free char *egress = definition_egress(definition, &why);
	if (!egress && why.code != HUSK_OK)
		return husk_fail(err, why.code, "%s", why.message);
	const struct engine *engine = options->isolation && strcmp(options->isolation, "auto") != 0
					      ? engine_find(options->isolation)
					      : engine_choose(husk->paths.runtime, err);
	if (!engine)
		return options->isolation
			       ? husk_fail_field(err, "isolation", "isolation '%s' is not known", options->isolation)
			       : -1;
	if (template_digest(definition, engine->name, digest, err) < 0)
		return -1;

	struct catalog_template version = {
		.name = definition->name,
		.digest = digest,
		.description = definition->description,
		.isolation = (char *)engine->name,
		.created_ms = time_wall_ms(),
		.disk_bytes = definition->disk_bytes ? definition->disk_bytes : DEFAULT_DISK_BYTES,
		.current = true,
		.egress = egress,
	};
	cleanup_free char *directory = path_template(&husk->paths, digest);
	cleanup_free char *baked = path_baked(&husk->paths, digest, version.disk_bytes);
	if (!directory || !baked)
		return husk_fail_memory(err);
	bool known = catalog_template_get(husk->catalog, definition->name, &current, NULL) == 0 &&
		     str_equal(current->digest, digest) && str_equal(current->isolation, engine->name) &&
		     access(baked, F_OK) == 0 &&
		     strcmp(current->egress ? current->egress : "", egress ? egress : "") == 0;
	catalog_template_free(current);
	current = NULL;
	if (fresh)
		*fresh = !known || options->force;
	if (!known || options->force) {
		if (build_files(husk, options, definition, &version, err) < 0)
			return husk_wrap(err, "cannot build template '%s'", definition->name);
		version.bytes = tree_bytes(directory);
		if (catalog_template_add(husk->catalog, &version, err) < 0)
			return -1;
		cleanup_free char *detail = str_format("{\"template\":\"%s\",\"digest\":\"%s\"}", version.name, digest);
		catalog_event(husk->catalog, NULL, "template", detail, NULL);
	}
	if (!out)
		return 0;
	if (catalog_template_get(husk->catalog, definition->name, &current, err) < 0)
		return -1;
	*out = template_from_row(current);
	catalog_template_free(current);
	return *out ? 0 : husk_fail_memory(err);
}

int husk_image_find(struct husk *husk, const char *name, char **path, char **reference, struct husk_error *err)
{
	cleanup_free char *folder = path_images(&husk->paths);

	*path = *reference = NULL;
	if (!folder)
		return husk_fail_memory(err);
	int found = oci_find(folder, name, path, reference, err);
	return found ? (found < 0 ? -1 : 0) : husk_fail(err, HUSK_NOT_FOUND, "no image '%.120s' in %s", name, folder);
}

int husk_template_remove(struct husk *husk, const char *name, struct husk_error *err)
{
	if (catalog_template_remove(husk->catalog, name, err) < 0)
		return -1;
	return template_collect(husk, NULL, NULL, err);
}
