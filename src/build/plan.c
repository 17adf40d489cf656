/*
 * Makes the plan of a build (plan.h). Walks the steps of each needed stage in order and tracks what they change: the
 * variables, the config of the image, the key. It uses no sandbox.
 */
#include "build/settings.h"
#include "build/url.h"

#define PLATFORM "linux/amd64"

/* ---- keys ---- */

static int hash_text(struct maker *maker, const char *text)
{
	const char *kept = text ? text : "";

	return EVP_DigestUpdate(maker->hash, kept, strlen(kept) + 1) == 1 ? 0 : husk_fail_memory(maker->err);
}

static int hash_list(struct maker *maker, char *const *list)
{
	for (; list && *list; list++)
		if (hash_text(maker, *list) < 0)
			return -1;
	return hash_text(maker, "");
}

static int hash_begin(struct maker *maker, const char *before)
{
	if (EVP_DigestInit_ex(maker->hash, EVP_sha256(), NULL) != 1)
		return husk_fail_memory(maker->err);
	return hash_text(maker, "husk build 1") < 0 ? -1 : hash_text(maker, before);
}

static int hash_end(struct maker *maker, char out[static KEY_LENGTH + 1])
{
	unsigned char bytes[EVP_MAX_MD_SIZE];
	unsigned size = 0;

	if (EVP_DigestFinal_ex(maker->hash, bytes, &size) != 1)
		return husk_fail_memory(maker->err);
	for (unsigned i = 0; i < size && 2 * i < KEY_LENGTH; i++)
		snprintf(out + 2 * i, 3, "%02x", bytes[i]);
	return 0;
}

/* ---- steps that work ---- */

/* Everything that a process of this step has: ARGs first, then ENV, which wins. */
static int step_environment(struct maker *maker, char ***out)
{
	static const char *const proxies[] = { "HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy",
					       "NO_PROXY",   "no_proxy",   "ALL_PROXY",   "all_proxy" };
	const char *name;
	json_t *value;
	size_t i;
	int failed = 0;

	json_object_foreach(maker->arguments, name, value)
	{
		cleanup_free char *pair = str_format("%s=%s", name, json_string_value(value));
		failed |= maker_variable(maker->stage->config, name) ? 0 : pair ? strv_add(out, pair) : -1;
	}
	for (i = 0; i < ARRAY_SIZE(proxies); i++) {
		const char *given = maker_given(maker, proxies[i]);
		cleanup_free char *pair = given ? str_format("%s=%s", proxies[i], given) : NULL;
		failed |= pair ? strv_add(out, pair) : 0;
	}
	json_array_foreach(json_object_get(maker->stage->config, "Env"), i, value)
	{
		failed |= strv_add(out, json_string_value(value));
	}
	return failed ? husk_fail_memory(maker->err) : 0;
}

static int set_text(struct maker *maker, char **out, const char *text)
{
	free(*out);
	*out = strdup(text);
	return *out ? 0 : husk_fail_memory(maker->err);
}

/* User and directory as the config has them. */
static int step_place(struct maker *maker, struct plan_step *out)
{
	const char *given = dockerfile_flag(out->step, "user"), *home = maker->plan->file.home;
	const char *user = given ? given : json_string_value(json_object_get(maker->stage->config, "User"));
	const char *cwd = json_string_value(json_object_get(maker->stage->config, "WorkingDir"));

	if (set_text(maker, &out->user, user && *user ? user : "root") < 0)
		return -1;
	if (home && !cwd && out->step->kind == STEP_RUN)
		return 0;
	return set_text(maker, &out->cwd, cwd && *cwd ? cwd : home ? home : "/");
}

/* An absolute path without "." and ".."; relative ones begin at `cwd`. */
static char *join_path(const char *cwd, const char *path)
{
	cleanup_free char *whole = *path == '/' ? strdup(path) : str_format("%s/%s", cwd, path);
	cleanup_buf struct buf out = { 0 };

	for (const char *at = whole; at && *at;) {
		size_t size = strcspn(at, "/");
		if (size == 2 && strncmp(at, "..", 2) == 0)
			out.size = out.size ? (size_t)((char *)memrchr(out.data, '/', out.size) - out.data) : 0;
		else if (size && !(size == 1 && *at == '.') &&
			 (buf_append_string(&out, "/") < 0 || buf_append(&out, at, size) < 0))
			return NULL;
		at += size + (at[size] == '/');
	}
	if (!whole || (out.size == 0 && buf_append_string(&out, "/") < 0))
		return NULL;
	out.data[out.size] = '\0';
	return buf_steal(&out);
}

static int take_mounts(struct maker *maker, struct plan_step *out)
{
	for (size_t i = 0; i < out->step->flag_count; i++) {
		cleanup_free char *value = NULL;
		if (!str_equal(out->step->flags[i].key, "mount"))
			continue;
		if (maker_expand(maker, out->step, out->step->flags[i].value, &value) < 0)
			return -1;
		struct dockerfile_mount *grown = reallocarray(out->mounts, out->mount_count + 1, sizeof(*grown));
		struct husk_error why = { 0 };
		if (!grown)
			return husk_fail_memory(maker->err);
		out->mounts = grown;
		struct dockerfile_mount *mount = &grown[out->mount_count];
		if (dockerfile_mount_parse(value, mount, &why) < 0)
			return maker_fail(maker, out->step, &why);
		out->mount_count++;
		out->secret |= mount->type == MOUNT_SECRET;
		if (!mount->target)
			continue;
		char *target = join_path(out->cwd, mount->target);
		free(mount->target);
		mount->target = target;
		if (!target)
			return husk_fail_memory(maker->err);
		if (str_equal(target, "/"))
			return fail_invalid(maker, out->step, "--mount: the target cannot be /");
	}
	return 0;
}

/* The files of bind mounts count for the key. What caches and secrets hold does not, as in Docker. */
static int hash_mounts(struct maker *maker, const struct plan_step *step)
{
	for (size_t i = 0; i < step->mount_count; i++) {
		const struct dockerfile_mount *mount = &step->mounts[i];
		if (mount->type != MOUNT_BIND)
			continue;
		if (mount->from) {
			int stage =
				dockerfile_find_stage(&maker->plan->file, mount->from, maker->plan->file.stage_count);
			if (hash_text(maker, maker->plan->stages[stage].key) < 0)
				return -1;
			continue;
		}
		struct context_sources sources = { 0 };
		char digest[65];
		struct husk_error why = { 0 };
		int result = context_find(&maker->plan->context, mount->source ? mount->source : ".", &sources, &why);
		if (result == 0 && sources.count != 1)
			result = husk_fail(&why, HUSK_INVALID, "--mount: the source must be one file or directory");
		if (result == 0)
			result = context_digest(&maker->plan->context, &sources.items[0], digest, &why);
		context_sources_free(&sources);
		if (result < 0)
			return maker_fail(maker, step->step, &why);
		if (hash_text(maker, digest) < 0)
			return -1;
	}
	return 0;
}

/* A heredoc that is the whole command is a script: for the shell, or for what its first line names. */
static int run_words(struct maker *maker, struct plan_step *out)
{
	const struct dockerfile_step *step = out->step;

	if (!step->heredoc_count)
		return maker_command(maker, step, &out->argv);
	cleanup_buf struct buf script = { 0 };
	size_t head = strcspn(step->text, " \t");
	bool whole = step->heredoc_count == 1 && str_starts(step->text, "<<") && !step->text[head];
	int failed = whole ? 0 : buf_append_string(&script, step->text) | buf_append_string(&script, "\n");
	for (size_t i = 0; i < step->heredoc_count; i++) {
		failed |= buf_append_string(&script, step->heredocs[i].text);
		failed |= whole ? 0 : buf_printf(&script, "%s\n", step->heredocs[i].name);
	}
	if (failed || !script.data)
		return failed ? husk_fail_memory(maker->err) : fail_invalid(maker, step, "RUN of an empty heredoc");
	if (!whole || !str_starts(script.data, "#!"))
		return maker_shell(maker, script.data, &out->argv);
	out->works = true; /* a script with an interpreter of its own is written to a file (run.c) */
	return strv_add(&out->texts, script.data) < 0 ? husk_fail_memory(maker->err) : 0;
}

static int plan_run(struct maker *maker, struct plan_step *out)
{
	if (step_place(maker, out) < 0 || step_environment(maker, &out->environment) < 0 ||
	    take_mounts(maker, out) < 0 || run_words(maker, out) < 0)
		return -1;
	return hash_list(maker, out->argv) < 0 || hash_list(maker, out->environment) < 0 ||
			       hash_text(maker, out->user) < 0 || hash_text(maker, out->cwd) < 0 ||
			       hash_list(maker, out->texts) < 0
		       ? -1
		       : hash_mounts(maker, out);
}

static int take_mode(struct maker *maker, struct plan_step *out)
{
	const char *given = dockerfile_flag(out->step, "chmod");
	cleanup_free char *value = NULL;
	char *end;

	out->mode = -1;
	if (!given)
		return 0;
	if (maker_expand(maker, out->step, given, &value) < 0)
		return -1;
	long mode = strtol(value, &end, 8);
	if (!*value || *end || mode < 0 || mode > 07777)
		return fail_invalid(maker, out->step, "--chmod=%.40s is not an octal mode such as 755", value);
	out->mode = mode;
	return 0;
}

/* A URL with a checksum is known without a download; any other is downloaded now, because its content is in the key. */
static int take_download(struct maker *maker, struct plan_step *out, const char *url)
{
	const char *given = dockerfile_flag(out->step, "checksum"), *target = out->words[strv_length(out->words) - 1];
	const struct husk_egress *egress = maker->options->egress;
	struct plan_download *grown = reallocarray(out->downloads, out->download_count + 1, sizeof(*grown));
	cleanup_free char *checksum = NULL;
	cleanup(url_free) struct url parsed = { 0 };
	struct husk_error why = { 0 };

	if (!grown)
		return husk_fail_memory(maker->err);
	out->downloads = grown;
	struct plan_download *download = &grown[out->download_count++];
	*download = (struct plan_download){ .url = strdup(url), .fd = -1 };
	if (!download->url)
		return husk_fail_memory(maker->err);
	if (url_parse(url, &parsed, &why) < 0)
		return maker_fail(maker, out->step, &why);
	download->name = url_file_name(&parsed);
	if (!egress || str_equal(egress->mode, "off") || (!egress->mode && !egress->allow_count))
		return fail_invalid(maker, out->step, "ADD of a URL needs the network: husk build --allow HOST");
	if (!download->name && str_ends(target, "/"))
		return fail_invalid(maker, out->step, "'%.120s' has no name for the file; give a target without /",
				    url);
	if (given && maker_expand(maker, out->step, given, &checksum) < 0)
		return -1;
	int result = given ? dockerfile_checksum(checksum, download->digest, &why)
			   : maker->fetch(maker->data, download, &why);
	return result < 0 ? maker_fail(maker, out->step, &why) : hash_text(maker, download->digest);
}

/* Everything that COPY takes from the context, and ADD from elsewhere, in the key. */
static int hash_sources(struct maker *maker, struct plan_step *out)
{
	size_t count = strv_length(out->words) - 1, found = out->step->heredoc_count;

	if (dockerfile_flag(out->step, "checksum") && dockerfile_source(out->words[0]) != SOURCE_URL)
		return fail_invalid(maker, out->step, "--checksum goes with one source, which is a URL");

	for (size_t i = 0; i < count; i++) {
		struct context_sources sources = { 0 };
		struct husk_error why = { 0 };
		char digest[65];
		if (str_starts(out->words[i], "<<"))
			continue;
		if (dockerfile_check_source(out->step->kind, out->words[i], &why) < 0)
			return maker_fail(maker, out->step, &why);
		if (dockerfile_source(out->words[i]) == SOURCE_URL) {
			if (take_download(maker, out, out->words[i]) < 0)
				return -1;
			found++;
			continue;
		}
		int result = context_find(&maker->plan->context, out->words[i], &sources, &why);
		for (size_t k = 0; result == 0 && k < sources.count; k++) {
			result = context_digest(&maker->plan->context, &sources.items[k], digest, &why);
			if (result == 0 &&
			    (hash_text(maker, sources.items[k].path) < 0 || hash_text(maker, digest) < 0))
				result = husk_fail_memory(&why);
		}
		found += sources.count;
		context_sources_free(&sources);
		if (result < 0)
			return maker_fail(maker, out->step, &why);
	}
	/* Of several sources, a wildcard may match nothing: COPY package.json yarn.lock* ./ */
	return found ? 0 : fail_invalid(maker, out->step, "no file of the context matches '%.120s'", out->words[0]);
}

static int take_texts(struct maker *maker, struct plan_step *out)
{
	for (size_t i = 0; i < out->step->heredoc_count; i++) {
		const struct dockerfile_heredoc *heredoc = &out->step->heredocs[i];
		cleanup_free char *text = NULL;
		struct husk_error why = { 0 };
		if (!heredoc->expand)
			text = strdup(heredoc->text);
		else if (dockerfile_expand(heredoc->text, maker->plan->file.escape, true, maker_lookup, maker, &text,
					   &why) < 0)
			return maker_fail(maker, out->step, &why);
		if (!text || strv_add(&out->texts, text) < 0)
			return husk_fail_memory(maker->err);
	}
	return 0;
}

void plan_base_free(struct plan_base *base)
{
	free(base->template);
	free(base->snapshot);
	free(base->digest);
	json_decref(base->config);
}

/* COPY --from of an image: the image's content counts, by its digest. */
static int take_image(struct maker *maker, struct plan_step *out, const char *word)
{
	struct plan_base base = { 0 };
	struct husk_error why = { 0 };

	int result = maker->resolve(maker->data, word, &base, &why);
	if (result == 0 && base.snapshot)
		result = husk_fail(&why, HUSK_INVALID, "--from=%.80s is a snapshot, which is not supported", word);
	if (result < 0)
		maker_fail(maker, out->step, &why);
	else if ((result = hash_text(maker, base.digest)) == 0)
		out->image = steal_pointer(base.template);
	plan_base_free(&base);
	return result;
}

static int plan_copy(struct maker *maker, struct plan_step *out)
{
	const char *owner = dockerfile_flag(out->step, "chown"), *from = dockerfile_flag(out->step, "from");
	char mode[24];

	if (step_place(maker, out) < 0 || maker_words(maker, out->step, &out->words) < 0 || take_mode(maker, out) < 0 ||
	    take_texts(maker, out) < 0 || (owner && maker_expand(maker, out->step, owner, &out->owner) < 0))
		return -1;
	if (maker->plan->file.home && !owner && set_text(maker, &out->owner, out->user) < 0)
		return -1;
	size_t count = strv_length(out->words);
	char *target = out->words[count - 1];
	if (count > 2 && !str_ends(target, "/"))
		return fail_invalid(maker, out->step,
				    "several sources need a target that is a directory and ends with /");
	snprintf(mode, sizeof(mode), "%lld", (long long)out->mode);
	if (hash_list(maker, out->words) < 0 || hash_list(maker, out->texts) < 0 || hash_text(maker, out->owner) < 0 ||
	    hash_text(maker, mode) < 0 || hash_text(maker, out->cwd) < 0)
		return -1;
	if (out->step->from >= 0)
		return hash_text(maker, maker->plan->stages[out->step->from].key);
	return from ? take_image(maker, out, from) : hash_sources(maker, out);
}

static int plan_workdir(struct maker *maker, struct plan_step *out)
{
	cleanup_free char *given = NULL, *path = NULL;

	if (step_place(maker, out) < 0 || maker_expand(maker, out->step, out->step->text, &given) < 0)
		return -1;
	path = join_path(out->cwd, given);
	if (!path || strv_add(&out->words, path) < 0)
		return husk_fail_memory(maker->err);
	if (hash_text(maker, path) < 0 || hash_text(maker, out->user) < 0)
		return -1;
	return maker_set(maker, "WorkingDir", json_string(path));
}

static int plan_any(struct maker *maker, struct plan_step *out)
{
	const struct dockerfile_step *step = out->step;

	out->works = step->kind == STEP_RUN || step->kind == STEP_COPY || step->kind == STEP_ADD ||
		     step->kind == STEP_WORKDIR;
	switch (step->kind) {
	case STEP_ARG:
		return maker_argument(maker, step, maker->arguments);
	case STEP_RUN:
		return plan_run(maker, out);
	case STEP_COPY:
	case STEP_ADD:
		return plan_copy(maker, out);
	case STEP_WORKDIR:
		return plan_workdir(maker, out);
	default:
		return maker_setting(maker, step);
	}
}

static int plan_step(struct maker *maker, const struct dockerfile_step *step)
{
	struct plan_stage *stage = maker->stage;
	struct plan_step *out = &stage->steps[stage->count++];

	*out = (struct plan_step){ .step = step, .mode = -1 };
	if (hash_begin(maker, stage->key) < 0 || hash_text(maker, dockerfile_kind_name(step->kind)) < 0 ||
	    plan_any(maker, out) < 0)
		return -1;
	stage->secret |= out->secret;
	out->force = stage->force |= maker->options->no_cache || dockerfile_flag(step, "force");
	if (out->works && hash_end(maker, stage->key) < 0)
		return -1;
	maker->plan->work += out->works;
	memcpy(out->key, stage->key, sizeof(out->key));
	return 0;
}

/* ---- stages ---- */

/* The size of a disk is fixed when its sandbox is made, so results of another size are of no use. */
static int hash_base(struct maker *maker, const struct plan_base *base)
{
	char disk[32];

	snprintf(disk, sizeof(disk), "%llu", (unsigned long long)maker->options->disk_bytes);
	if (hash_begin(maker, "base") < 0 || hash_text(maker, base->digest) < 0 ||
	    (maker->plan->file.home && hash_text(maker, maker->plan->file.home) < 0))
		return -1;
	return maker->options->disk_bytes ? hash_text(maker, disk) : 0;
}

static int begin_from_image(struct maker *maker, const struct dockerfile_step *from)
{
	struct plan_base base = { 0 };
	struct husk_error why = { 0 };
	cleanup_free char *word = NULL;

	/* FROM knows the ARGs before the first FROM only. */
	struct plan_stage *stage = maker->stage;
	maker->stage = NULL;
	int result = maker_expand(maker, from, from->words[0], &word);
	maker->stage = stage;
	if (result < 0)
		return -1;
	if (!*word)
		return fail_invalid(maker, from, "FROM names no image: '%.80s' is empty", from->words[0]);
	if (maker->resolve(maker->data, word, &base, &why) < 0) {
		plan_base_free(&base);
		return maker_fail(maker, from, &why);
	}
	stage->template = steal_pointer(base.template);
	stage->snapshot = steal_pointer(base.snapshot);
	stage->config = json_is_object(base.config) ? steal_pointer(base.config) : json_object();
	stage->inherited = json_deep_copy(json_object_get(stage->config, "Env"));
	result = hash_base(maker, &base) < 0 ? -1 : hash_end(maker, stage->key);
	plan_base_free(&base);
	return result;
}

static int begin_stage(struct maker *maker, size_t index)
{
	const struct dockerfile_stage *from = &maker->plan->file.stages[index];
	const struct dockerfile_step *step = &maker->plan->file.steps[from->first];
	const char *platform = dockerfile_flag(step, "platform");
	struct plan_stage *stage = maker->stage;

	if (platform && !strchr(platform, '$') && !str_equal(platform, PLATFORM) &&
	    !str_equal(platform, "linux/x86_64"))
		return fail_invalid(maker, step, "--platform=%.40s is not supported; this host runs %s", platform,
				    PLATFORM);
	stage->base = from->base;
	if (from->base < 0)
		return begin_from_image(maker, step);
	const struct plan_stage *base = &maker->plan->stages[from->base];
	stage->config = json_deep_copy(base->config);
	stage->inherited = json_incref(base->inherited);
	stage->secret = base->secret;
	stage->force = base->force;
	memcpy(stage->key, base->key, sizeof(stage->key));
	return stage->config ? 0 : husk_fail_memory(maker->err);
}

/* What the base's author left for those who build on it. */
static int run_triggers(struct maker *maker, const struct dockerfile_step *from, json_t *list)
{
	struct plan_stage *stage = maker->stage;
	json_t *trigger;
	size_t i;

	json_array_foreach(list, i, trigger)
	{
		struct husk_error why = { 0 };
		const char *text = json_string_value(trigger);
		if (dockerfile_parse_trigger("ONBUILD", text ? text : "", &stage->triggers[i], &why) < 0)
			return maker_fail(maker, from, &why);
		stage->trigger_count++;
		if (plan_step(maker, stage->triggers[i].steps) < 0)
			return -1;
	}
	return 0;
}

static int plan_stage(struct maker *maker, size_t index)
{
	struct plan *plan = maker->plan;
	const struct dockerfile_stage *from = &plan->file.stages[index];
	struct plan_stage *stage = maker->stage = &plan->stages[index];
	cleanup_json json_t *triggers = NULL;

	maker->has_command = false;
	json_object_clear(maker->arguments);
	if (begin_stage(maker, index) < 0)
		return -1;
	if (from->base < 0)
		triggers = json_incref(json_object_get(stage->config, "OnBuild"));
	json_object_del(stage->config, "OnBuild");
	size_t more = MIN(json_array_size(triggers), (size_t)DOCKERFILE_STEPS_MAX);
	stage->steps = calloc(from->count + more + 1, sizeof(*stage->steps));
	stage->triggers = calloc(more + 1, sizeof(*stage->triggers));
	if (!stage->steps || !stage->triggers)
		return husk_fail_memory(maker->err);
	if (json_array_size(triggers) == more && run_triggers(maker, &plan->file.steps[from->first], triggers) < 0)
		return -1;
	for (size_t i = 1; i < from->count; i++)
		if (plan_step(maker, &plan->file.steps[from->first + i]) < 0)
			return -1;
	return 0;
}

/* Marks a stage and the stages that it uses. They are all earlier ones. */
static void need(struct plan *plan, size_t index)
{
	const struct dockerfile_stage *stage = &plan->file.stages[index];

	if (plan->stages[index].needed)
		return;
	plan->stages[index].needed = true;
	if (stage->base >= 0)
		need(plan, (size_t)stage->base);
	for (size_t i = stage->first; i < stage->first + stage->count; i++) {
		const struct dockerfile_step *step = &plan->file.steps[i];
		if (step->from >= 0)
			need(plan, (size_t)step->from);
		for (size_t k = 0; step->kind == STEP_RUN && k < step->flag_count; k++) {
			struct dockerfile_mount mount = { 0 };
			if (!str_equal(step->flags[k].key, "mount") ||
			    dockerfile_mount_parse(step->flags[k].value, &mount, NULL) < 0)
				continue;
			int used = mount.from ? dockerfile_find_stage(&plan->file, mount.from, index) : -1;
			dockerfile_mount_free(&mount);
			if (used >= 0)
				need(plan, (size_t)used);
		}
	}
}

static int choose_target(struct maker *maker)
{
	struct plan *plan = maker->plan;
	const char *wanted = maker->options->target;
	int found = wanted ? dockerfile_find_stage(&plan->file, wanted, plan->file.stage_count)
			   : (int)plan->file.stage_count - 1;

	if (found < 0) {
		cleanup_free const char **names = calloc(plan->file.stage_count, sizeof(*names));
		size_t count = 0;
		for (size_t i = 0; names && i < plan->file.stage_count; i++)
			if (plan->file.stages[i].name)
				names[count++] = plan->file.stages[i].name;
		const char *near = names ? str_nearest(wanted, names, count) : NULL;
		return husk_fail_field(maker->err, "target", "there is no stage '%.80s'%s%s%s", wanted,
				       near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
	}
	plan->target = (size_t)found;
	need(plan, plan->target);
	return 0;
}

static int take_globals(struct maker *maker)
{
	const struct dockerfile *file = &maker->plan->file;

	maker->globals =
		json_pack("{s:s, s:s, s:s, s:s, s:s, s:s}", "TARGETPLATFORM", PLATFORM, "TARGETOS", "linux",
			  "TARGETARCH", "amd64", "BUILDPLATFORM", PLATFORM, "BUILDOS", "linux", "BUILDARCH", "amd64");
	maker->arguments = json_object();
	if (!maker->globals || !maker->arguments)
		return husk_fail_memory(maker->err);
	for (size_t i = 0; i < file->stages[0].first; i++)
		if (maker_argument(maker, &file->steps[i], maker->globals) < 0)
			return -1;
	return 0;
}

static int make(struct maker *maker)
{
	struct plan *plan = maker->plan;

	plan->stages = calloc(plan->file.stage_count, sizeof(*plan->stages));
	if (!plan->stages || !maker->hash)
		return husk_fail_memory(maker->err);
	if (choose_target(maker) < 0 || take_globals(maker) < 0)
		return -1;
	for (size_t i = 0; i < plan->file.stage_count; i++)
		if (plan->stages[i].needed && plan_stage(maker, i) < 0)
			return -1;
	return 0;
}

int plan_read(const struct husk_dockerfile_options *options, char **out_text, struct dockerfile *out,
	      struct husk_error *err)
{
	const char *name = options->dockerfile ? options->dockerfile : "Dockerfile";
	cleanup_free char *beside = options->context ? str_format("%s/Dockerfile", options->context) : NULL;
	const char *path = options->dockerfile ? options->dockerfile : beside;
	size_t size = options->text ? strlen(options->text) : 0;
	cleanup_free char *text = options->text ? strdup(options->text)
				  : path        ? file_read(path, DOCKERFILE_MAX, &size, err)
						: NULL;

	if (!text)
		return options->text || !path ? husk_fail(err, HUSK_INVALID, "no Dockerfile is given") : -1;
	if (dockerfile_parse(name, text, size, out, err) < 0)
		return -1;
	*out_text = steal_pointer(text);
	return 0;
}

int plan_make(const struct husk_dockerfile_options *options, struct dockerfile *file, plan_resolve resolve,
	      plan_fetch fetch, void *data, struct plan *out, struct husk_error *err)
{
	struct maker maker = { .options = options,
			       .resolve = resolve,
			       .fetch = fetch,
			       .data = data,
			       .plan = out,
			       .err = err,
			       .hash = EVP_MD_CTX_new() };

	*out = (struct plan){ .file = *file };
	*file = (struct dockerfile){ 0 };
	int result = context_begin(options->context, options->text ? NULL : options->dockerfile, &out->context, err);
	out->context.links = out->file.home;
	if (result == 0)
		result = make(&maker);
	EVP_MD_CTX_free(maker.hash);
	json_decref(maker.globals);
	json_decref(maker.arguments);
	if (result < 0)
		plan_free(out);
	return result;
}

static void step_free(struct plan_step *step)
{
	strv_free(step->environment);
	strv_free(step->argv);
	strv_free(step->words);
	strv_free(step->texts);
	free(step->user);
	free(step->cwd);
	free(step->owner);
	free(step->image);
	for (size_t i = 0; i < step->download_count; i++) {
		free(step->downloads[i].url);
		free(step->downloads[i].name);
		fd_close(&step->downloads[i].fd);
	}
	free(step->downloads);
	for (size_t i = 0; i < step->mount_count; i++)
		dockerfile_mount_free(&step->mounts[i]);
	free(step->mounts);
}

void plan_free(struct plan *plan)
{
	for (size_t i = 0; plan->stages && i < plan->file.stage_count; i++) {
		struct plan_stage *stage = &plan->stages[i];
		for (size_t k = 0; k < stage->count; k++)
			step_free(&stage->steps[k]);
		for (size_t k = 0; k < stage->trigger_count; k++)
			dockerfile_free(&stage->triggers[k]);
		free(stage->steps);
		free(stage->triggers);
		free(stage->template);
		free(stage->snapshot);
		json_decref(stage->config);
		json_decref(stage->inherited);
	}
	free(plan->stages);
	dockerfile_free(&plan->file);
	context_end(&plan->context);
	*plan = (struct plan){ .context = { .root = -1 } };
}
