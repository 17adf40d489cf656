/*
 * Baking: boots a template's root image once, warms it up, and saves the running machine. Every create continues from that
 * image. An image belongs to one disk size and one engine variant (the version of runsc). The template's own size is baked
 * at build time, other sizes on first use. An image counts only when it is complete and on disk.
 */
#include "instance/bake.h"

#include <fcntl.h>
#include <jansson.h>
#include <sys/file.h>

#include "base/thread.h"
#include "engine/engine.h"
#include "instance/instance.h"
#include "instance/versions.h"
#include "instance/workshop.h"
#include "link/link.h"
#include "store/template.h"

#define HELLO_TIMEOUT_MS 180000 /* for a first boot, which is slow on a busy, emulated CPU */
#define WARM_TIMEOUT_MS 300000
#define READY_TIMEOUT_MS 60000
#define ANSWER_MS 20000 /* for the agent to answer, in addition to the time of a command */

/* What has to run in a booted machine before it is saved; kept beside the image for later disk sizes. */
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

/* One command that succeeds if all do. */
static int join_commands(char *const *list, struct buf *out)
{
	for (size_t i = 0; list && list[i]; i++)
		if (buf_printf(out, "%s{ %s\n}", i ? " && " : "", list[i]) < 0)
			return -1;
	return 0;
}

int bake_recipe(const struct template_definition *d, const char *directory, struct husk_error *err)
{
	cleanup_free char *path = str_format("%s/recipe.json", directory);
	cleanup_buf struct buf ready = { 0 };
	int joined = join_commands(d->ready, &ready);
	json_t *root = json_pack("{s:o, s:o, s:s?}", "start", list_to_json(d->start), "warm", list_to_json(d->warm),
				 "ready", ready.data);
	cleanup_free char *text = root ? json_dumps(root, JSON_INDENT(1)) : NULL;

	json_decref(root);
	if (!path || !text || joined < 0)
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
	struct buf output, end; /* the beginning of its output */
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

/* Processes of the bake are removed from the process lists of the sandboxes that are made from it. */
static void forget_in_guest(struct link *link, int64_t pid)
{
	cleanup_buf struct buf arguments = { 0 };

	if (pid > 0 && wire_put_int(&arguments, TAG_PID, pid) == 0)
		link_call(link, METHOD_PROCESS_FORGET, &arguments, NULL, HELLO_TIMEOUT_MS, NULL);
}

/* A command of a recipe: "@label command" labels the process, and "@label:/directory command" starts it in that
 * directory. */
struct task {
	const char *text;
	char *label, *directory;
};

static void task_free(struct task *task)
{
	free(task->label);
	free(task->directory);
}

static int task_parse(const char *text, struct task *out, struct husk_error *err)
{
	*out = (struct task){ .text = text };
	if (text[0] != '@' || !strchr(text, ' '))
		return 0;
	out->label = strndup(text + 1, strcspn(text + 1, " "));
	out->text = strchr(text, ' ') + 1;
	char *place = out->label ? strstr(out->label, ":/") : NULL;
	if (place) {
		out->directory = strdup(place + 1);
		*place = '\0';
	}
	return out->label && (!place || out->directory) ? 0 : husk_fail_memory(err);
}

/* The output goes to a file in the guest, so any amount of output is possible; if the command fails, the end of the output
 * is returned. An image may have a shell and no other program. */
static int put_task(const struct task *task, bool detached, int timeout_ms, struct buf *out)
{
	cleanup_free char *shell =
		detached ? str_format("exec %s", task->text)
			 : str_format("f=/tmp/.husk-bake; (%s\n) >$f 2>&1; c=$?; [ $c = 0 ] || tail -c 2000 $f 2>&- || "
				      "while IFS= read -r l; do echo \"$l\"; done <$f; rm -f $f 2>&-; exit $c",
				      task->text);
	int bad = shell ? wire_put_int(out, TAG_METHOD, METHOD_EXEC) : -1;

	bad |= shell ? wire_put_string(out, TAG_SHELL, shell) : -1;
	bad |= wire_put_string(out, TAG_NAME, task->label);
	bad |= wire_put_string(out, TAG_CWD, task->directory);
	bad |= wire_put_int(out, TAG_FLAGS, detached ? EXEC_STDIN | EXEC_DETACH : 0);
	if (!detached)
		bad |= wire_put_int(out, TAG_TIMEOUT_MS, timeout_ms);
	return bad;
}

/* Waits for the end of the command. The agent's own timeout comes first; but the image may have replaced the agent. */
static int await_run(struct link *link, uint32_t channel, struct run *run, int timeout_ms, struct husk_error *err)
{
	int64_t end = time_monotonic_ms() + timeout_ms + ANSWER_MS;
	int waited = 0;

	pthread_mutex_lock(&run->lock);
	while (!run->done && waited == 0)
		waited = cond_wait_until(&run->changed, &run->lock, end);
	pthread_mutex_unlock(&run->lock);
	link_abandon(link, channel, run); /* after this, `run` belongs to this thread alone */
	return run->done ? 0
			 : husk_fail(err, HUSK_TIMEOUT, "the guest agent did not answer within %d s",
				     (timeout_ms + ANSWER_MS) / 1000);
}

static int run_task(struct link *link, const struct task *task, bool detached, int timeout_ms, struct run *run,
		    struct husk_error *err)
{
	cleanup_buf struct buf open = { 0 };
	uint32_t channel = 0;

	if (put_task(task, detached, timeout_ms, &open) != 0)
		return husk_fail_memory(err);
	if (link_open(link, open.data, open.size, watch_run, run, &channel, err) < 0 ||
	    await_run(link, channel, run, timeout_ms, err) < 0)
		return -1;
	int result = wire_end_status(run->end.data, run->end.size, err);
	int64_t code = wire_get_int(run->end.data, run->end.size, TAG_EXIT_CODE, 0);
	if (!detached)
		forget_in_guest(link, wire_get_int(run->end.data, run->end.size, TAG_PID, 0));
	if (result < 0 || code == 0)
		return result;
	return husk_fail(err, HUSK_INTERNAL, "'%.200s' failed with exit code %lld: %.*s", task->text, (long long)code,
			 (int)MIN(run->output.size, 600u), run->output.data ? run->output.data : "");
}

/* Runs a shell command to its end, or, detached, until it has started. */
static int run_in_guest(struct link *link, const char *text, bool detached, int timeout_ms, struct husk_error *err)
{
	struct run run = { .lock = PTHREAD_MUTEX_INITIALIZER };
	cleanup(task_free) struct task task = { 0 };

	if (task_parse(text, &task, err) < 0)
		return -1;
	cond_open(&run.changed);
	int result = run_task(link, &task, detached, timeout_ms, &run, err);
	pthread_cond_destroy(&run.changed);
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

/* Boots, warms up, freezes, saves into `image` (created here). */
static int bake_machine(const struct engine *engine, struct engine_spec *spec, const struct recipe *recipe,
			const char *image, struct husk_error *err)
{
	struct engine_machine *machine = NULL;
	struct link *link = NULL;
	int to_agent, from_agent;

	int result = engine->prepare(spec, &machine, err);
	if (result == 0)
		result = engine->boot(machine, NULL, err);
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
	if (machine)
		engine->stop(machine);
	link_free(link);
	if (machine)
		engine->free(machine);
	return result;
}

/* Restores a machine from the image and waits for its first answer, as later restores do. */
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

/* Restores the new image once, so that the engine can record which pages a restore reads. If this fails, restores are
 * slower. */
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

static int bake(struct husk *husk, const struct engine *engine, const char *rootfs, uint64_t disk_bytes,
		const struct recipe *recipe, const char *image, struct husk_error *err)
{
	cleanup_free char *partial = str_format("%s.partial", image);
	struct workshop workshop;

	if (!partial)
		return husk_fail_memory(err);
	int result = workshop_open(husk, &workshop, err);
	if (result == 0) {
		struct engine_spec spec = {
			.id = workshop.name,
			.directory = workshop.directory,
			.runtime = husk->paths.runtime,
			.rootfs = rootfs,
			.agent = TEMPLATE_AGENT,
			.disk_bytes = disk_bytes,
			.uid_base = slot_uid_base(0),
			.cgroup = workshop.cgroup,
		};
		engine_remove(partial, NULL);
		result = bake_machine(engine, &spec, recipe, partial, err);
		if (result == 0)
			learn(engine, &spec, partial);
	}
	if (result == 0)
		result = image_keep(partial, image, err);
	if (result < 0)
		engine_remove(partial, NULL);
	workshop_close(husk, &workshop);
	return result;
}

/* The path, in a version's directory, of the image that the engine of this host can continue. */
static char *image_path(struct husk *husk, const char *isolation, const char *directory, uint64_t disk_bytes,
			struct husk_error *err)
{
	const struct engine *engine = engine_find(isolation);
	char variant[64] = "";

	if (!engine) {
		husk_fail(err, HUSK_UNAVAILABLE, "no engine '%s' in this build", isolation);
		return NULL;
	}
	if (engine->variant &&
	    engine->variant(husk->paths.home, husk->paths.runtime, variant, sizeof(variant), err) < 0)
		return NULL;
	char *path = str_format("%s/baked/%llu%s%s", directory, (unsigned long long)disk_bytes, *variant ? "-" : "",
				variant);
	if (!path)
		husk_fail_memory(err);
	return path;
}

char *bake_path(struct husk *husk, const char *isolation, const char *digest, uint64_t disk_bytes,
		struct husk_error *err)
{
	cleanup_free char *directory = path_template(&husk->paths, digest);

	if (directory)
		return image_path(husk, isolation, directory, disk_bytes, err);
	husk_fail_memory(err);
	return NULL;
}

/* Removes an image from before names included the variant: no engine continues it any more. */
static void discard_unnamed(const char *directory, const char *image, uint64_t disk_bytes)
{
	cleanup_free char *unnamed = str_format("%s/baked/%llu", directory, (unsigned long long)disk_bytes);

	if (unnamed && !str_equal(unnamed, image))
		image_discard(unnamed, NULL);
}

int bake_directory(struct husk *husk, const char *isolation, const char *directory, uint64_t disk_bytes,
		   struct husk_error *err)
{
	cleanup_free char *image = image_path(husk, isolation, directory, disk_bytes, err);
	cleanup_free char *rootfs = str_format("%s/rootfs.img", directory);
	cleanup_free char *lock_path = str_format("%s/bake.lock", directory);
	const struct engine *engine = engine_find(isolation);
	struct recipe recipe = { 0 };

	if (!image)
		return -1;
	if (!rootfs || !lock_path)
		return husk_fail_memory(err);
	/* One process bakes, the others wait for it. */
	cleanup_close int lock = open(lock_path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (lock < 0 || flock(lock, LOCK_EX) < 0)
		return husk_fail_errno(err, "cannot lock '%s'", lock_path);
	if (engine_image_whole(image))
		return 0;
	discard_unnamed(directory, image, disk_bytes);
	/* Removes the rest of an image that was complete once. */
	int result = image_discard(image, err);
	if (result == 0)
		result = recipe_load(directory, &recipe, err);
	if (result == 0)
		result = bake(husk, engine, rootfs, disk_bytes, &recipe, image, err);
	recipe_free(&recipe);
	return result;
}

char *bake_image(struct husk *husk, const struct catalog_template *version, uint64_t disk_bytes, struct husk_error *err)
{
	cleanup_free char *image = bake_path(husk, version->isolation, version->digest, disk_bytes, err);
	cleanup_free char *directory = path_template(&husk->paths, version->digest);

	if (!image || !directory)
		return NULL;
	if (engine_image_whole(image))
		return steal_pointer(image);
	/* Shared: the version is not collected while it is baked, and other processes may use it. */
	cleanup_close int lock = version_lock(directory, LOCK_SH);
	if (lock < 0) {
		husk_fail(err, HUSK_NOT_FOUND, "the files of template '%s' are missing; husk template build %s --force",
			  version->name, version->name);
		return NULL;
	}
	return bake_directory(husk, version->isolation, directory, disk_bytes, err) == 0 ? steal_pointer(image) : NULL;
}
