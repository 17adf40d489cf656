/*
 * husk_build: from a Dockerfile to an image. First it makes the plan (plan.c), which finds every error that can be found
 * in advance. Then it runs the target's stage: a sandbox continues from the newest kept result, and the later steps run
 * in it. Other stages run when a step copies from them. The result is an image of the files of the last sandbox
 * (husk_commit) and its template.
 *
 *     key of step 3 kept?  no
 *     key of step 2 kept?  yes -> sandbox from its snapshot; steps 3 and 4 run; a snapshot after each
 *
 * The result of a step that saw a secret is not kept, and neither are results of later steps of its stage: a snapshot
 * has the memory of the sandbox, which may still contain the secret. The image has files only.
 *
 * The sandboxes of a build end with it. If this process is killed, they end at their TTL, and nothing incomplete has a
 * name.
 */
#include <fcntl.h>
#include <sys/stat.h>

#include "build/work.h"
#include "instance/images.h"
#include "instance/instance.h"
#include "store/template.h"

#define SANDBOX_SECONDS 900 /* more than a step takes without its program */
#define BUILD_MEMORY (UINT64_C(2) << 30)
#define KEPT_BYTES (UINT64_C(10) << 30) /* of results of steps, unless HUSK_BUILD_CACHE says otherwise */
#define NAME_LENGTH 40

/* ---- telling ---- */

int build_tell(struct build *build, enum husk_build_kind kind, const char *text, size_t size, bool error_output,
	       int64_t duration_ms)
{
	const struct plan_step *step = build->step;
	const struct husk_build_event event = { .kind = kind,
						.step = step ? build->number : 0,
						.steps = step ? build->steps : 0,
						.stage = step ? build->stage : NULL,
						.line = step ? step->step->line : 0,
						.text = text,
						.size = size,
						.error_output = error_output,
						.duration_ms = duration_ms };

	return build->options->progress ? build->options->progress(build->options->data, &event) : 0;
}

void build_note(struct build *build, const char *format, const char *word)
{
	char line[400];
	const struct plan_step *step = build->step;
	int size = snprintf(line, sizeof(line), format, word);

	build->step = NULL;
	build_tell(build, HUSK_BUILD_NOTE, line, (size_t)MIN(size, (int)sizeof(line) - 1), false, 0);
	build->step = step;
}

bool build_stopped(struct build *build, struct husk_error *err)
{
	if (!build->options->progress || !build->options->progress(build->options->data, NULL))
		return false;
	husk_fail(err, HUSK_GONE, "interrupted; nothing was built");
	return true;
}

static int fail_at(const struct build *build, const struct plan_step *step, const struct husk_error *why,
		   struct husk_error *err)
{
	struct husk_error named = { 0 };

	if (why->code == HUSK_GONE)
		return husk_fail(err, why->code, "%s", why->message);
	husk_fail(&named, why->code, "%s: %s", dockerfile_kind_name(step->step->kind), why->message);
	return dockerfile_fail(&build->plan.file, build->options->dockerfile, step->step, &named, err);
}

int build_scratch(const struct build *build, struct husk_error *err)
{
	int fd = open(build->cache, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

	return fd < 0 ? husk_fail_errno(err, "cannot make a file in '%s'", build->cache) : fd;
}

/* ---- sandboxes ---- */

static int64_t step_seconds(const struct build *build)
{
	return SANDBOX_SECONDS + (build->options->timeout_ms ? build->options->timeout_ms / 1000 : 3600);
}

int build_sandbox(struct build *build, const char *template, const char *snapshot, char **out, struct husk_error *err)
{
	static const struct husk_egress off = { .mode = "off" };
	const struct husk_dockerfile_options *o = build->options;
	const struct husk_pair marks[] = { { "husk.build", build->id }, { HUSK_STEP_KEY, "1" } };
	const struct husk_create_options options = { .template_name = template,
						     .snapshot = snapshot,
						     .isolation = o->isolation,
						     .metadata = marks,
						     .metadata_count = ARRAY_SIZE(marks),
						     .ttl_seconds = step_seconds(build),
						     .memory_bytes = o->memory_bytes ? o->memory_bytes : BUILD_MEMORY,
						     .disk_bytes = snapshot ? 0 : o->disk_bytes,
						     .cpu_milli = o->cpu_milli,
						     .pids = 4096,
						     .egress = o->egress ? o->egress : &off };
	struct husk_sandbox *sandbox = NULL;

	if (husk_create(build->husk, &options, &sandbox, err) < 0)
		return -1;
	*out = strdup(sandbox->id);
	husk_sandbox_free(sandbox);
	return *out ? 0 : husk_fail_memory(err);
}

/* A stage that begins with another: a copy of that one's sandbox. */
static int copy_sandbox(struct build *build, const char *sandbox, char **out, struct husk_error *err)
{
	const struct husk_pair marks[] = { { "husk.build", build->id }, { HUSK_STEP_KEY, "1" } };
	const struct husk_create_options options = { .metadata = marks,
						     .metadata_count = ARRAY_SIZE(marks),
						     .ttl_seconds = step_seconds(build) };
	struct husk_sandbox **list = NULL;

	if (husk_fork(build->husk, sandbox, 1, &options, &list, err) < 0)
		return -1;
	*out = strdup(list[0]->id);
	husk_sandbox_list_free(list);
	return *out ? 0 : husk_fail_memory(err);
}

int build_image(struct build *build, const char *template, const char **sandbox, struct husk_error *err)
{
	cleanup_free char *made = NULL;

	for (size_t i = 0; build->images && build->images[i]; i += 2)
		if (str_equal(build->images[i], template)) {
			*sandbox = build->images[i + 1];
			return 0;
		}
	if (build_sandbox(build, template, NULL, &made, err) < 0)
		return -1;
	if (strv_add(&build->images, template) < 0 || strv_add(&build->images, made) < 0) {
		husk_kill(build->husk, made, NULL);
		return husk_fail_memory(err);
	}
	*sandbox = build->images[strv_length(build->images) - 1];
	return 0;
}

/* No sandbox of the build may end while a step takes its time. */
static void stay_alive(struct build *build)
{
	for (size_t i = 0; i < build->plan.file.stage_count; i++)
		if (build->sandboxes[i])
			husk_extend(build->husk, build->sandboxes[i], step_seconds(build), false, NULL, NULL);
	for (size_t i = 0; build->images && build->images[i]; i += 2)
		husk_extend(build->husk, build->images[i + 1], step_seconds(build), false, NULL, NULL);
}

static void end_sandboxes(struct build *build)
{
	for (size_t i = 0; build->sandboxes && i < build->plan.file.stage_count; i++) {
		if (build->sandboxes[i])
			husk_kill(build->husk, build->sandboxes[i], NULL);
		free(build->sandboxes[i]);
	}
	for (size_t i = 0; build->images && build->images[i]; i += 2)
		husk_kill(build->husk, build->images[i + 1], NULL);
	free(build->sandboxes);
	strv_free(build->images);
}

/* ---- steps ---- */

static void kept_name(const struct plan_step *step, char out[static NAME_LENGTH])
{
	snprintf(out, NAME_LENGTH, "step-%.32s", step->key);
}

/* Does a step leave something that is worth keeping? */
static bool is_kept(const struct plan_step *step)
{
	return step->works && step->step->kind != STEP_WORKDIR;
}

static int do_step(struct build *build, const char *sandbox, const struct plan_step *step, struct husk_error *err)
{
	switch (step->step->kind) {
	case STEP_RUN:
		return step_run(build, sandbox, step, err);
	case STEP_WORKDIR:
		return husk_file_mkdir(build->husk, sandbox, step->words[0], 0755, step->user, err);
	default:
		return step_copy(build, sandbox, step, err);
	}
}

/* Another build may have kept the same result meanwhile: then the name is taken, and nothing is lost. */
static void keep(struct build *build, const char *sandbox, const struct plan_step *step)
{
	char name[NAME_LENGTH];
	struct husk_error why = { 0 };

	kept_name(step, name);
	if (step->force)
		husk_snapshot_remove(build->husk, name, NULL);
	if (husk_snapshot_create(build->husk, sandbox, name, NULL, &why) < 0 && why.code != HUSK_CONFLICT)
		build_note(build, "the result of this step is not kept: %.300s", why.message);
}

static int carry_out(struct build *build, const char *sandbox, const struct plan_step *step, bool secret,
		     struct husk_error *err)
{
	int64_t started = time_monotonic_ms();
	struct husk_error why = { 0 };

	build_tell(build, HUSK_BUILD_STEP, step->step->source, strlen(step->step->source), false, 0);
	if (build_stopped(build, err))
		return -1;
	stay_alive(build);
	if (do_step(build, sandbox, step, &why) < 0)
		return fail_at(build, step, &why, err);
	build->ran++;
	if (is_kept(step) && !secret)
		keep(build, sandbox, step);
	build_tell(build, HUSK_BUILD_DONE, "", 0, false, time_monotonic_ms() - started);
	return 0;
}

/* ---- stages ---- */

/* The first step that has to run; *out: a sandbox in the state before it, NULL if nothing is kept. */
static size_t find_kept(struct build *build, const struct plan_stage *stage, char **out)
{
	for (size_t i = stage->count; i-- > 0;) {
		char name[NAME_LENGTH];
		struct husk_error why = { 0 };
		if (!is_kept(&stage->steps[i]) || stage->steps[i].force)
			continue;
		kept_name(&stage->steps[i], name);
		if (build_sandbox(build, NULL, name, out, &why) == 0)
			return i + 1;
		/* Of another engine, or damaged: it is no longer useful. */
		if (why.code != HUSK_NOT_FOUND && why.code != HUSK_LIMIT)
			husk_snapshot_remove(build->husk, name, NULL);
	}
	return 0;
}

static int begin(struct build *build, const struct plan_stage *stage, size_t index, size_t *first,
		 struct husk_error *err)
{
	const struct build_client *client = build->client;
	const char *base = NULL;

	*first = find_kept(build, stage, &build->sandboxes[index]);
	if (*first)
		return 0;
	if (stage->template || stage->snapshot) {
		char **made = &build->sandboxes[index];
		if (build_sandbox(build, stage->template, stage->snapshot, made, err) < 0)
			return -1;
		return client && client->begin ? client->begin(client->data, *made, err) : 0;
	}
	if (build_stage(build, (size_t)stage->base, &base, err) < 0)
		return -1;
	return copy_sandbox(build, base, &build->sandboxes[index], err);
}

static int run_steps(struct build *build, const struct plan_stage *stage, const char *sandbox, size_t first,
		     struct husk_error *err)
{
	bool secret = stage->base >= 0 && build->plan.stages[stage->base].secret;

	build->number = 0;
	for (size_t i = 0; i < stage->count; i++) {
		const struct plan_step *step = &stage->steps[i];
		secret |= step->secret;
		if (!step->works)
			continue;
		build->step = step;
		build->number++;
		if (i < first) {
			build->cached++;
			build_tell(build, HUSK_BUILD_CACHED, step->step->source, strlen(step->step->source), false, 0);
		} else if (carry_out(build, sandbox, step, secret, err) < 0) {
			return -1;
		}
	}
	return 0;
}

int build_stage(struct build *build, size_t index, const char **sandbox, struct husk_error *err)
{
	const struct plan_stage *stage = &build->plan.stages[index];
	const struct build outer = *build; /* a step of another stage may be under way */
	char number[24];
	size_t first = 0;

	if (!build->sandboxes[index]) {
		snprintf(number, sizeof(number), "%zu", index);
		build->stage = build->plan.file.stages[index].name ? build->plan.file.stages[index].name : number;
		build->steps = 0;
		for (size_t i = 0; i < stage->count; i++)
			build->steps += stage->steps[i].works;
		int result = begin(build, stage, index, &first, err);
		if (result == 0)
			result = run_steps(build, stage, build->sandboxes[index], first, err);
		build->stage = outer.stage;
		build->step = outer.step;
		build->number = outer.number;
		build->steps = outer.steps;
		if (result < 0)
			return -1;
	}
	*sandbox = build->sandboxes[index];
	return 0;
}

/* ---- the whole ---- */

/* The config of the image is part of what it is, so the key of the image has it too. */
static int make_key(const struct plan_stage *stage, char **key, char **config, struct husk_error *err)
{
	*config = json_dumps(stage->config, JSON_COMPACT | JSON_SORT_KEYS);
	*key = *config ? str_format("%s %s", stage->key, *config) : NULL;
	return *key ? 0 : husk_fail_memory(err);
}

static int finish(struct build *build, const char *key, const char *config, struct husk_image **out,
		  struct husk_error *err)
{
	const struct husk_commit_options commit = { .name = build->options->name, .config = config, .key = key };
	const char *sandbox = NULL;

	if (build_stage(build, build->plan.target, &sandbox, err) < 0)
		return -1;
	build->step = NULL;
	if (build_stopped(build, err))
		return -1;
	stay_alive(build);
	build_note(build, "making the image %.200s", build->options->name);
	return husk_commit(build->husk, sandbox, &commit, out, err);
}

/* Results of steps beyond the limit go, the oldest first. */
static void prune(struct build *build)
{
	const char *set = getenv("HUSK_BUILD_CACHE");
	uint64_t limit = KEPT_BYTES, bytes;
	size_t count;

	if (set && *set && str_to_size(set, 1u << 20, &limit) < 0)
		build_note(build, "HUSK_BUILD_CACHE is not a size: %.60s", set);
	husk_build_prune(build->owner, limit, &count, &bytes, NULL);
}

static int carry_out_plan(struct build *build, struct husk_image **out, bool *fresh, struct husk_error *err)
{
	struct husk_build_options options = base_options(build);
	cleanup_free char *key = NULL, *config = NULL;
	bool made = false;

	if (make_key(&build->plan.stages[build->plan.target], &key, &config, err) < 0)
		return -1;
	int found = build->options->no_cache ? 0 : image_find_key(build->husk, build->options->name, key, out, err);
	if (found < 0 || (!found && finish(build, key, config, out, err) < 0))
		return -1;
	options.warm = build->options->warm;
	if (husk_image_build(build->husk, (*out)->name, &options, NULL, &made, err) < 0)
		return -1;
	(*out)->built = true;
	*fresh = !found || made;
	prune(build);
	return 0;
}

/* ---- for a client ---- */

/* Variables that the steps set or changed. */
static int changed_environment(const struct plan_stage *stage, char ***out, struct husk_error *err)
{
	json_t *pair, *old;
	size_t i, k;

	json_array_foreach(json_object_get(stage->config, "Env"), i, pair)
	{
		bool inherited = false;
		json_array_foreach(stage->inherited, k, old) inherited |= json_equal(pair, old);
		if (!inherited && strv_add(out, json_string_value(pair)) < 0)
			return husk_fail_memory(err);
	}
	return 0;
}

static int hand_over(struct build *build, struct husk_error *err)
{
	const struct plan_stage *stage = &build->plan.stages[build->plan.target];
	const struct husk_pair mark = { "husk.build", build->id }; /* a result is no step, and is listed */
	cleanup_strv char **environment = NULL;
	struct build_result result = { .user = json_string_value(json_object_get(stage->config, "User")),
				       .cwd = json_string_value(json_object_get(stage->config, "WorkingDir")) };

	cleanup_free char *config = json_dumps(stage->config, JSON_COMPACT);
	result.config = config;
	if (!config)
		return husk_fail_memory(err);
	if (build_stage(build, build->plan.target, &result.sandbox, err) < 0)
		return -1;
	build->step = NULL;
	if (build_stopped(build, err) || changed_environment(stage, &environment, err) < 0 ||
	    husk_set_metadata(build->husk, result.sandbox, &mark, 1, err) < 0)
		return -1;
	result.environment = environment;
	stay_alive(build);
	if (build->client->finish(build->client->data, &result, err) < 0)
		return -1;
	prune(build);
	return 0;
}

/* ---- the beginning and the end ---- */

static int make_plan(struct build *build, struct husk_error *err)
{
	const struct build_client *client = build->client;
	struct dockerfile file = { 0 };
	cleanup_free char *text = NULL;
	bool listed = client && client->steps;

	if ((listed ? client->steps(client->data, &file, err) : plan_read(build->options, &text, &file, err)) == 0)
		return plan_make(build->options, &file, base_resolve, step_fetch, build, &build->plan, err);
	dockerfile_free(&file);
	return -1;
}

static int prepare(struct build *build, struct husk_error *err)
{
	cleanup_free char *top = template_cache_directory(build->husk->paths.home);

	build->cache = top ? str_format("%s/build", top) : NULL;
	if (!build->cache)
		return husk_fail_memory(err);
	if (random_id("bd-", 10, build->id) < 0)
		return husk_fail_errno(err, "cannot make an id");
	if (dir_make(build->cache, 0700, err) < 0 || make_plan(build, err) < 0)
		return -1;
	build->sandboxes = calloc(build->plan.file.stage_count, sizeof(*build->sandboxes));
	return build->sandboxes ? 0 : husk_fail_memory(err);
}

static void build_end(struct build *build)
{
	end_sandboxes(build);
	plan_free(&build->plan);
	free(build->cache);
}

int build_for_client(const struct build_client *client, const struct husk_dockerfile_options *options,
		     struct husk_error *err)
{
	struct build build = { .husk = client->husk,
			       .owner = client->owner,
			       .client = client,
			       .options = options,
			       .plan = { .context = { .root = -1 } } };
	int result = prepare(&build, err);

	if (result == 0)
		result = hand_over(&build, err);
	build_end(&build);
	return result;
}

int husk_build(struct husk *husk, const struct husk_dockerfile_options *options, struct husk_image **out, bool *fresh,
	       struct husk_error *err)
{
	if (husk->remote)
		return build_on_server(husk->remote, options, out, fresh, err);
	struct build build = { .husk = husk, .owner = husk, .options = options, .plan = { .context = { .root = -1 } } };
	struct husk_image *image = NULL;
	bool made = false;

	if (husk_owner_only(husk, "building from a Dockerfile", err) < 0)
		return -1;
	if (!options->name)
		return husk_fail_field(err, "name", "the image needs a name: -t NAME");
	if (image_check_name(options->name, err) < 0)
		return -1;
	int result = prepare(&build, err);
	if (result == 0)
		result = carry_out_plan(&build, &image, &made, err);
	build_end(&build);
	if (fresh)
		*fresh = made;
	if (result == 0 && out)
		*out = steal_pointer(image);
	husk_image_free(image);
	return result;
}
