/*
 * One template build of E2B's clients, by the builder of `husk build` (src/build). They send a list of steps, which becomes a stage:
 *
 *     {"type": "ENV", "args": ["A", "1"]}                              ENV A=1
 *     {"type": "RUN", "args": ["make", "root"], "force": true}         RUN --user=root --force make
 *     {"type": "COPY", "args": ["app", "/opt"], "filesHash": "3f"}     COPY 3f/app /opt
 *
 * The files of COPY are tars that the client uploaded; each is a folder of the build's context. In the sandbox after the last step the
 * start command is started. When it is ready, a snapshot is taken, from which sandboxes of the template continue. Runs on the build's own
 * thread (e2b_build.c). Values of variables are never logged.
 */
#include <poll.h>

#include "build/build.h"
#include "server/dialects/e2b/e2b_build.h"
#include "server/follow.h"
#include "store/template.h"

#define READY_SECONDS 300
#define START_SETTLE_SECONDS 20 /* for a start command without a ready command */
#define STEPS_MAX (DOCKERFILE_STEPS_MAX / 2 - 1)
#define HOME "/home/" E2B_USER
#define SANDBOX_VARIABLES "/run/husk/environment" /* those of the create; each ends with a NUL */
#define VARIABLES_MAX (256u << 10)

static const char *argument(json_t *step, size_t index)
{
	const char *text = json_string_value(json_array_get(json_object_get(step, "args"), index));

	return text ? text : "";
}

static const char *type_of(json_t *step)
{
	const char *type = json_string_value(json_object_get(step, "type"));

	return type ? type : "";
}

/* ---- the steps ---- */

/* `text` is what follows the keyword. NULL: no memory. The file has room for it. */
static struct dockerfile_step *add_step(struct dockerfile *file, enum dockerfile_kind kind, size_t number,
					const char *text)
{
	struct dockerfile_step *step = &file->steps[file->step_count++];

	*step = (struct dockerfile_step){ .kind = kind, .line = (unsigned)number, .column = 1, .from = -1 };
	step->text = strdup(text);
	step->source = str_format("%s %s", dockerfile_kind_name(kind), text);
	return step->text && step->source ? step : NULL;
}

static int add_pair(struct dockerfile_pair **list, size_t *count, const char *key, const char *value)
{
	struct dockerfile_pair *grown = reallocarray(*list, *count + 1, sizeof(*grown));

	if (!grown)
		return -1;
	*list = grown;
	struct dockerfile_pair *pair = &grown[(*count)++];
	*pair = (struct dockerfile_pair){ .key = strdup(key), .value = strdup(value) };
	return pair->key && pair->value ? 0 : -1;
}

static int add_flag(struct dockerfile_step *step, const char *key, const char *value)
{
	return *value ? add_pair(&step->flags, &step->flag_count, key, value) : 0;
}

static int take_run(struct dockerfile *out, json_t *given, size_t number, struct husk_error *err)
{
	struct dockerfile_step *step = add_step(out, STEP_RUN, number, argument(given, 0));

	return step && add_flag(step, "user", argument(given, 1)) == 0 ? 0 : husk_fail_memory(err);
}

/* The tar already holds what the client matched. For a pattern, the directory before its first wildcard counts: "a/b*"
 * is "a", "*.txt" is ".". Caller frees. */
static char *copy_source(const char *pattern)
{
	size_t wild = strcspn(pattern, "*?[{"), at = wild;

	if (!pattern[wild])
		return *pattern ? strdup(pattern) : strdup(".");
	while (at > 0 && pattern[at - 1] != '/')
		at--;
	return at > 1 ? strndup(pattern, at - 1) : strdup(".");
}

static int take_copy(struct dockerfile *out, json_t *given, size_t number, struct husk_error *err)
{
	const char *target = argument(given, 1), *hash = json_string_value(json_object_get(given, "filesHash"));
	cleanup_free char *text = str_format("%s %s", argument(given, 0), target);
	cleanup_free char *from = copy_source(argument(given, 0));
	cleanup_free char *path = from && hash ? str_format("%s/%s", hash, from) : NULL;
	struct dockerfile_step *step = text ? add_step(out, STEP_COPY, number, text) : NULL;

	if (!step || !path || strv_add(&step->words, path) < 0 || strv_add(&step->words, target) < 0 ||
	    add_flag(step, "chown", argument(given, 2)) < 0 || add_flag(step, "chmod", argument(given, 3)) < 0)
		return husk_fail_memory(err);
	step->json = true; /* words as they are */
	return 0;
}

/* Debian's /etc/profile sets PATH for each login shell, and every command of E2B's clients has one. */
static int keep_path(struct dockerfile *out, size_t number, struct husk_error *err)
{
	static const char *const words[] = {
		"/bin/bash", "-c",
		"new=$PATH; PATH=/usr/sbin:/usr/bin:/sbin:/bin; mkdir -p /etc/profile.d &&\n"
		"printf 'export PATH=%q\\n' \"$new\" >/etc/profile.d/zz-e2b.sh"
	};
	struct dockerfile_step *step = add_step(out, STEP_RUN, number, "");
	int failed = step ? add_flag(step, "user", "root") : -1;

	for (size_t i = 0; !failed && i < ARRAY_SIZE(words); i++)
		failed = strv_add(&step->words, words[i]);
	if (failed)
		return husk_fail_memory(err);
	step->json = true;
	step->source[0] = '\0'; /* nobody wrote it */
	return 0;
}

static int take_env(struct dockerfile *out, json_t *given, size_t number, struct husk_error *err)
{
	static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_";
	struct dockerfile_step *step = add_step(out, STEP_ENV, number, "");
	size_t count = json_array_size(json_object_get(given, "args")) / 2;
	bool path = false;

	if (!step)
		return husk_fail_memory(err);
	for (size_t i = 0; i < count; i++) {
		const char *name = argument(given, 2 * i);
		if (!*name || name[strspn(name, letters)])
			return husk_fail(err, HUSK_INVALID, "ENV: '%.60s' cannot be the name of a variable", name);
		if (add_pair(&step->pairs, &step->pair_count, name, argument(given, 2 * i + 1)) < 0)
			return husk_fail_memory(err);
		path |= str_equal(name, "PATH");
	}
	return path ? keep_path(out, number, err) : 0;
}

static int take_step(struct dockerfile *out, json_t *given, size_t number, struct husk_error *err)
{
	const char *type = type_of(given);
	size_t first = out->step_count;
	int result;

	if (str_equal(type, "RUN"))
		result = take_run(out, given, number, err);
	else if (str_equal(type, "COPY"))
		result = take_copy(out, given, number, err);
	else if (str_equal(type, "ENV"))
		result = take_env(out, given, number, err);
	else if (str_equal(type, "WORKDIR") || str_equal(type, "USER"))
		result = add_step(out, str_equal(type, "USER") ? STEP_USER : STEP_WORKDIR, number, argument(given, 0))
				 ? 0
				 : husk_fail_memory(err);
	else
		result = husk_fail(err, HUSK_INVALID, "a build step '%.40s' is not known", type);
	if (result == 0 && json_is_true(json_object_get(given, "force")) &&
	    add_flag(&out->steps[first], "force", "true") < 0)
		result = husk_fail_memory(err);
	return result;
}

static bool is_built(struct husk *husk, const char *name)
{
	struct husk_template **list = NULL;
	bool found = false;

	if (husk_template_list(husk, &list, NULL) < 0)
		return false;
	for (size_t i = 0; list[i]; i++)
		found |= str_equal(list[i]->name, name);
	husk_template_list_free(list);
	return found;
}

/* The word of FROM: an image, a template or a snapshot. Caller frees. A bundled template that nobody has used yet is built first, by the
 * build, since that takes minutes and the client's request for the build waits for one. */
static int find_base(struct build *build, char **out, struct husk_error *err)
{
	const char *image = json_string_value(json_object_get(build->definition, "fromImage"));
	const char *from = json_string_value(json_object_get(build->definition, "fromTemplate"));
	char line[200];

	if (image || e2b_template_exists(build->husk, e2b_template(from ? from : ""))) {
		*out = strdup(image ? image : e2b_template(from));
		if (!*out)
			return husk_fail_memory(err);
		int size =
			snprintf(line, sizeof(line), "from the %s %.80s%s", image ? "image" : "template", *out,
				 image || is_built(build->owner, *out) ? "" : "; its first use builds it, in minutes");
		e2b_build_say(build, "info", line, (size_t)size);
		return 0;
	}
	if (from && e2b_snapshot_name(from, out, err) == 0 && e2b_snapshot_exists(build->husk, *out))
		return 0;
	return husk_fail(err, HUSK_NOT_FOUND, "template '%.80s' not found", from ? from : "");
}

static int make_steps(void *data, struct dockerfile *out, struct husk_error *err)
{
	static const char *const shell[] = { "/bin/bash", "-l", "-c" };
	struct build *build = data;
	json_t *steps = json_object_get(build->definition, "steps"), *given;
	cleanup_free char *base = NULL;
	size_t count = json_array_size(steps), i;

	if (count > STEPS_MAX)
		return husk_fail(err, HUSK_LIMIT, "the template has more than %d steps", STEPS_MAX);
	if (find_base(build, &base, err) < 0)
		return -1;
	*out = (struct dockerfile){ .escape = '\\', .home = HOME };
	out->steps = calloc(2 * count + 2, sizeof(*out->steps));
	out->stages = calloc(1, sizeof(*out->stages));
	if (!out->steps || !out->stages)
		return husk_fail_memory(err);
	struct dockerfile_step *step = add_step(out, STEP_FROM, 0, base);
	int failed = step ? strv_add(&step->words, base) : -1;
	step = failed ? NULL : add_step(out, STEP_SHELL, 0, "");
	for (i = 0; step && !failed && i < ARRAY_SIZE(shell); i++)
		failed = strv_add(&step->words, shell[i]);
	if (!step || failed)
		return husk_fail_memory(err);
	json_array_foreach(steps, i, given)
	{
		snprintf(build->step, sizeof(build->step), "%zu", i + 1);
		if (take_step(out, given, i + 1, err) < 0)
			return -1;
	}
	snprintf(build->step, sizeof(build->step), "base");
	out->stage_count = 1;
	out->stages[0] = (struct dockerfile_stage){ .count = out->step_count, .base = -1 };
	return 0;
}

/* ---- the other callbacks of the builder ---- */

static char *alias(void *data, const char *word)
{
	return json_object_get(((struct build *)data)->definition, "fromImage") ? NULL : strdup(word);
}

/* Output goes to the log line by line. */
static void say_output(struct build *build, const char *bytes, size_t size, bool last)
{
	struct buf *held = &build->held;

	if (buf_append(held, bytes, size) < 0)
		return;
	for (char *end; held->size && (end = memchr(held->data, '\n', held->size));) {
		e2b_build_say(build, "info", held->data, (size_t)(end - held->data));
		buf_consume(held, (size_t)(end - held->data) + 1);
	}
	if (held->size && (last || held->size > BUILD_LINE_BYTES)) {
		e2b_build_say(build, "info", held->data, held->size);
		buf_consume(held, held->size);
	}
}

static int follow(void *data, const struct husk_build_event *event)
{
	struct build *build = data;

	if (event && event->kind == HUSK_BUILD_OUTPUT) {
		say_output(build, event->text, event->size, false);
	} else if (event) {
		say_output(build, "", 0, true);
		if (event->line)
			snprintf(build->step, sizeof(build->step), "%u", event->line);
		cleanup_free char *line = str_format("%s%.*s", event->kind == HUSK_BUILD_CACHED ? "CACHED " : "",
						     (int)MIN(event->size, (size_t)BUILD_LINE_BYTES), event->text);
		if (event->size && line)
			e2b_build_say(build, "info", line, strlen(line));
	}
	return e2b_build_stopped();
}

static void note_failure(void *data, const struct husk_build_failure *failure)
{
	((struct build *)data)->exit_code = failure->exit_code;
}

static int gather(void *data, const void *bytes, size_t size)
{
	struct buf *out = data;

	return out->size + size > VARIABLES_MAX || buf_append(out, bytes, size) < 0;
}

/* A build continues with the variables, the user and the directory of its template. What an image says about user and directory does not
 * count for E2B's clients. */
static int inherit(void *data, const char *sandbox, json_t *config, struct husk_error *err)
{
	struct build *build = data;
	cleanup_free char *user = sandbox ? e2b_default(build->husk, sandbox, "user") : NULL;
	cleanup_free char *cwd = sandbox ? e2b_default(build->husk, sandbox, "cwd") : NULL;
	cleanup_buf struct buf text = { 0 };

	if (sandbox)
		husk_file_read(build->husk, sandbox, SANDBOX_VARIABLES, 0, 0, gather, &text, NULL);
	json_object_del(config, "WorkingDir");
	if (json_object_set_new(config, "User", json_string(user ? user : E2B_USER)) < 0 ||
	    (cwd && json_object_set_new(config, "WorkingDir", json_string(cwd)) < 0))
		return husk_fail_memory(err);
	for (size_t at = 0; at < text.size; at += strlen(text.data + at) + 1) {
		char *equals = strchr(text.data + at, '=');
		cleanup_free char *name = equals ? strndup(text.data + at, (size_t)(equals - text.data) - at) : NULL;
		if (name)
			build_set_variable(config, name, equals + 1); /* one that is not UTF-8 is left out */
	}
	return 0;
}

static int begin(void *data, const char *sandbox, struct husk_error *err)
{
	return e2b_make_user(((struct build *)data)->husk, sandbox, err);
}

/* ---- after the last step ---- */

struct place { /* the result of the steps */
	char *sandbox;
	const char *user, *cwd;
};

/* Runs a command to its end: its exit code, or -1. */
static int run_command(struct build *build, const struct place *place, const char *command, struct husk_error *err)
{
	const char *argv[] = { "/bin/bash", "-l", "-c", command, NULL };
	struct husk_exec_options options = {
		.argv = argv, .user = place->user, .cwd = place->cwd, .timeout_ms = BUILD_SECONDS * 1000
	};
	cleanup_process struct husk_process *process = NULL;
	struct husk_process_event event = { 0 };

	if (husk_exec(build->husk, place->sandbox, &options, &process, NULL, err) < 0)
		return -1;
	while (event.kind != HUSK_EXIT) {
		struct pollfd wait = { .fd = husk_process_fd(process), .events = POLLIN };
		if (e2b_build_stopped())
			return husk_fail(err, HUSK_GONE, "the server is stopping");
		if (!husk_process_pending(process))
			poll(&wait, 1, 200);
		else if (husk_process_next(process, &event, err) < 0)
			return -1;
	}
	return event.exit_code;
}

/* In E2B's words, which programs look for. */
static int fail_user(const char *user, const char *command, struct husk_error *err)
{
	return husk_fail(err, HUSK_INVALID,
			 "failed to run command '%.200s': command failed: unauthenticated: invalid username: '%.80s'",
			 command, user);
}

/* The user of a last USER step has not run anything yet. */
static int check_user(struct build *build, const struct place *place, struct husk_error *err)
{
	struct husk_error why = { 0 };
	const struct place top = { .sandbox = place->sandbox, .user = place->user, .cwd = "/" };

	if (run_command(build, &top, "true", &why) >= 0)
		return 0;
	return why.code == HUSK_NOT_FOUND ? fail_user(place->user, "true", err)
					  : husk_fail(err, why.code, "%s", why.message);
}

/* "KEY=value" as pairs, whose strings are in *storage. */
static struct husk_pair *split(char *const *environment, char ***storage)
{
	struct husk_pair *pairs = calloc(strv_length((char **)environment) + 1, sizeof(*pairs));

	for (size_t i = 0; pairs && environment[i]; i++) {
		if (strv_add(storage, environment[i]) < 0) {
			free(pairs);
			return NULL;
		}
		char *value = (*storage)[i];
		char *key = strsep(&value, "=");
		pairs[i] = (struct husk_pair){ key, value ? value : "" };
	}
	return pairs;
}

/* A sandbox has the variables of its create. So the result continues as one that has those of the steps. */
static int give_environment(struct build *build, const struct build_result *result, struct place *place,
			    struct husk_error *err)
{
	static const struct husk_egress open = { .mode = "open" };
	const struct husk_pair marks[] = { { E2B_BUILD_KEY, build->id }, { HUSK_STEP_KEY, "1" } };
	cleanup_snapshot struct husk_snapshot *snapshot = NULL;
	cleanup_sandbox struct husk_sandbox *sandbox = NULL;
	cleanup_strv char **storage = NULL;
	cleanup_free struct husk_pair *pairs = split(result->environment, &storage);

	if (!pairs)
		return husk_fail_memory(err);
	if (husk_set_metadata(build->husk, result->sandbox, marks, ARRAY_SIZE(marks), err) < 0 ||
	    husk_snapshot_create(build->husk, result->sandbox, NULL, &snapshot, err) < 0)
		return -1;
	husk_kill(build->husk, result->sandbox, NULL); /* before the next, for the tenant's quota */
	const struct husk_create_options options = { .snapshot = snapshot->id,
						     .metadata = marks,
						     .metadata_count = 1,
						     .ttl_seconds = BUILD_SECONDS,
						     .environment = pairs,
						     .environment_count = strv_length(storage),
						     .egress = &open };
	int made = husk_create(build->husk, &options, &sandbox, err);
	husk_snapshot_remove(build->husk, snapshot->id, NULL);
	if (made < 0)
		return -1;
	place->sandbox = strdup(sandbox->id);
	return place->sandbox ? 0 : husk_fail_memory(err);
}

/* waitForPort uses `ss`, which small images lack; /proc has the same information. */
static const char ready_tools[] =
	"command -v ss >/dev/null || ss() {\n"
	"  local want= local_address state port\n"
	"  for port; do case $port in :*) want=${port#:};; esac; done\n"
	"  cat /proc/net/tcp /proc/net/tcp6 /proc/net/udp /proc/net/udp6 2>/dev/null |\n"
	"  while read -r _ local_address _ state _; do\n"
	"    case $state in 0A|07) ;; *) continue;; esac\n"
	"    port=$((16#${local_address##*:}))\n"
	"    [ -n \"$want\" ] && [ \"$port\" != \"$want\" ] || echo \"tcp LISTEN 0 0 *:$port *:*\"\n"
	"  done\n"
	"}\n";

static int check_exit(int code, const char *what, struct husk_error *err)
{
	if (code < 0)
		return -1;
	return code ? husk_fail(err, HUSK_INVALID, "%.300s: exit status %d", what, code) : 0;
}

/* A start command that has failed is an error, whatever the ready command says. */
static int check_started(struct build *build, const struct place *place, int64_t pid, struct husk_error *err)
{
	struct husk_process_info *list = NULL;
	size_t count = 0;
	int code = 0;

	if (!pid)
		return 0;
	if (husk_process_list(build->husk, place->sandbox, &list, &count, err) < 0)
		return -1;
	for (size_t i = 0; i < count; i++)
		if (list[i].pid == pid && !list[i].running)
			code = list[i].exit_code;
	husk_process_list_free(list, count);
	return check_exit(code, "the start command failed", err);
}

static int start_and_wait(struct build *build, const struct place *place, struct husk_error *err)
{
	const char *start = json_string_value(json_object_get(build->definition, "startCmd"));
	const char *ready = json_string_value(json_object_get(build->definition, "readyCmd"));
	const char *argv[] = { "/bin/bash", "-l", "-c", start, NULL };
	struct husk_exec_options options = { .argv = argv, .user = place->user, .cwd = place->cwd, .detach = true };
	int64_t deadline = time_monotonic_ms() + READY_SECONDS * 1000, pid = 0;
	cleanup_free char *asked = ready && *ready ? str_format("%s%s", ready_tools, ready) : NULL;

	if (ready && *ready && !asked)
		return husk_fail_memory(err);
	if (start && *start && husk_exec(build->husk, place->sandbox, &options, NULL, &pid, err) < 0)
		return -1;
	if ((!ready || !*ready) && (!start || !*start))
		return 0;
	for (int64_t settled = time_monotonic_ms() + START_SETTLE_SECONDS * 1000;;) {
		int code = asked ? run_command(build, place, asked, err) : time_monotonic_ms() < settled;
		if (code < 0 || check_started(build, place, pid, err) < 0)
			return -1;
		if (code == 0)
			return 0;
		if (e2b_build_stopped() || time_monotonic_ms() > deadline)
			return husk_fail(err, HUSK_TIMEOUT, "the ready command did not succeed within %d seconds",
					 READY_SECONDS);
		usleep(300000);
	}
}

/* The default user and directory for commands of its sandboxes. */
static int leave_defaults(struct build *build, const struct place *place, struct husk_error *err)
{
	cleanup_json json_t *document = json_pack("{s:s, s:s?}", "user", place->user, "cwd", place->cwd);
	cleanup_free char *text = document ? json_dumps(document, JSON_COMPACT) : NULL;
	struct bytes bytes = { text, text ? strlen(text) : 0 };

	if (!text)
		return husk_fail_memory(err);
	return husk_file_write(build->husk, place->sandbox, E2B_DEFAULTS, 0644, NULL, bytes_give, &bytes, err);
}

/* One snapshot under all its names. When it exists, it takes these names from earlier builds. */
static int take_snapshot(struct build *build, const struct place *place, struct husk_error *err)
{
	struct husk_snapshot *snapshot = NULL;
	int result = husk_snapshot_create(build->husk, place->sandbox, NULL, &snapshot, err);

	for (size_t i = 0; result == 0 && build->tags[i]; i++)
		result = husk_snapshot_tag(build->husk, snapshot->id, build->tags[i], err);
	if (result < 0 && snapshot)
		husk_snapshot_remove(build->husk, snapshot->id, NULL);
	if (snapshot)
		husk_snapshot_free(snapshot);
	return result;
}

static int finish(void *data, const struct build_result *result, struct husk_error *err)
{
	struct build *build = data;
	struct place place = { .user = result->user, .cwd = result->cwd };
	const struct husk_pair mark = { E2B_BUILD_KEY, build->id };
	bool again = result->environment && *result->environment;
	int made;

	snprintf(build->step, sizeof(build->step), "finalize");
	if (again)
		made = give_environment(build, result, &place, err);
	else
		made = husk_set_metadata(build->husk, result->sandbox, &mark, 1, err) == 0 &&
				       (place.sandbox = strdup(result->sandbox))
			       ? 0
			       : -1;
	int status = made < 0 || check_user(build, &place, err) < 0 || start_and_wait(build, &place, err) < 0 ||
				     leave_defaults(build, &place, err) < 0
			     ? -1
			     : take_snapshot(build, &place, err);
	if (again && place.sandbox)
		husk_kill(build->husk, place.sandbox, NULL);
	free(place.sandbox);
	return status;
}

/* ---- the build ---- */

/* The uploads that its steps name: each is a folder of the context. *out: NULL if there are none. */
static int open_context(struct build *build, struct build_upload **out, struct husk_error *err)
{
	cleanup_json json_t *known = json_object();
	json_t *step;
	size_t i;

	json_array_foreach(json_object_get(build->definition, "steps"), i, step)
	{
		const char *given = json_string_value(json_object_get(step, "filesHash")), *hash = given ? given : "";
		if (!str_equal(type_of(step), "COPY") || json_object_get(known, hash))
			continue;
		snprintf(build->step, sizeof(build->step), "%zu", i + 1);
		int fd = e2b_build_upload(build, hash, err);
		if (fd < 0 || (!*out && build_upload_open(build->owner, out, err) < 0) ||
		    build_upload_add(*out, hash, fd, err) < 0)
			return -1;
		json_object_set_new(known, hash, json_true());
	}
	snprintf(build->step, sizeof(build->step), "base");
	return 0;
}

/* The user that a step has, if a step names one. */
static const char *user_at(json_t *steps, size_t number)
{
	json_t *step = json_array_get(steps, number - 1);

	if (str_equal(type_of(step), "RUN") && *argument(step, 1))
		return argument(step, 1);
	for (size_t i = number; i-- > 0;)
		if (str_equal(type_of(json_array_get(steps, i)), "USER"))
			return argument(json_array_get(steps, i), 0);
	return NULL;
}

static int tell_failure(struct build *build, const struct husk_error *why, struct husk_error *err)
{
	json_t *steps = json_object_get(build->definition, "steps");
	int64_t number = 0;

	if (str_to_int64(why->field, 1, STEPS_MAX, &number) == 0)
		snprintf(build->step, sizeof(build->step), "%lld", (long long)number);
	if (number && why->code == HUSK_CONFLICT && build->exit_code)
		return check_exit(build->exit_code, "failed to run the command", err);
	json_t *step = number ? json_array_get(steps, (size_t)number - 1) : NULL;
	if (str_equal(type_of(step), "COPY") && strstr(why->message, "is not in the context"))
		return husk_fail(err, HUSK_INVALID, "no files match '%.200s'", argument(step, 0));
	const char *user = number && why->code == HUSK_NOT_FOUND ? user_at(steps, (size_t)number) : NULL;
	if (user && strstr(why->message, "user '"))
		return fail_user(user, str_equal(type_of(step), "RUN") ? argument(step, 0) : "true", err);
	return husk_fail(err, why->code, "%s", why->message);
}

int e2b_build_run(struct build *build, struct husk_error *err)
{
	static const struct husk_egress open = { .mode = "open" };
	const char *registries = getenv("HUSK_PULL_REGISTRIES");
	struct build_upload *context = NULL;
	struct husk_error why = { 0 };
	const struct build_client client = { .husk = build->husk,
					     .owner = build->owner,
					     .alias = alias,
					     .steps = make_steps,
					     .base = inherit,
					     .begin = begin,
					     .finish = finish,
					     .data = build };
	struct husk_dockerfile_options options = { .text = "",
						   .egress = &open,
						   .registries = registries ? registries : "",
						   .memory_bytes = (uint64_t)build->memory_mb << 20,
						   .cpu_milli = (uint32_t)(build->cpus * 1000),
						   .no_cache =
							   json_is_true(json_object_get(build->definition, "force")),
						   .progress = follow,
						   .failed = note_failure,
						   .data = build };
	int result = open_context(build, &context, &why);

	options.context = context ? build_upload_path(context) : NULL;
	if (result == 0)
		result = build_for_client(&client, &options, &why);
	build_upload_close(context);
	return result < 0 ? tell_failure(build, &why, err) : 0;
}
