/*
 * One template build of E2B's builder, in a sandbox: runs its steps as commands and copies, starts the start command, waits
 * until it is ready, and takes the snapshot from which sandboxes of that name continue. Runs on the build's own thread
 * (e2b_build.c). Values of variables are never logged.
 */
#include <poll.h>

#include "server/api_templates.h"
#include "server/dialects/e2b/e2b_build.h"
#include "server/follow.h"
#include "store/template.h"

#define READY_SECONDS 300
#define START_SETTLE_SECONDS 20 /* for a start command without a ready command */

/* ---- running in the sandbox ---- */

struct place { /* the result of USER, WORKDIR and ENV steps */
	char *user, *cwd;
	struct husk_pair *environment;
	size_t environment_count;
};

/* Output goes to the log line by line. */
static void say_output(struct build *build, struct buf *held, const char *bytes, size_t size, bool last)
{
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

/* Runs a command to its end: its exit code, or -1. `quiet`: nothing is logged. */
static int run_command(struct build *build, const struct place *place, const char *user, const char *command,
		       bool quiet, struct husk_error *err)
{
	const char *argv[] = { "/bin/bash", "-l", "-c", command, NULL };
	struct husk_exec_options options = { .argv = argv,
					     .user = user,
					     .cwd = place->cwd,
					     .environment = place->environment,
					     .environment_count = place->environment_count,
					     .timeout_ms = BUILD_SECONDS * 1000 };
	cleanup_process struct husk_process *process = NULL;
	cleanup_buf struct buf held = { 0 };
	struct husk_process_event event = { 0 };

	if (husk_exec(build->husk, build->sandbox, &options, &process, NULL, err) < 0)
		return -1;
	for (;;) {
		struct pollfd wait = { .fd = husk_process_fd(process), .events = POLLIN };
		if (e2b_build_stopped())
			return husk_fail(err, HUSK_GONE, "the server is stopping");
		if (!husk_process_pending(process)) {
			poll(&wait, 1, 200);
			continue;
		}
		if (husk_process_next(process, &event, err) < 0)
			return -1;
		if (!quiet)
			say_output(build, &held, event.data, event.kind == HUSK_EXIT ? 0 : event.size,
				   event.kind == HUSK_EXIT);
		if (event.kind == HUSK_EXIT)
			return event.exit_code;
	}
}

static int require_zero(int code, const char *what, struct husk_error *err)
{
	if (code < 0)
		return -1;
	return code ? husk_fail(err, HUSK_INVALID, "%.300s: exit status %d", what, code) : 0;
}

/* ---- the steps ---- */

static const char *argument(json_t *step, size_t index)
{
	const char *text = json_string_value(json_array_get(json_object_get(step, "args"), index));

	return text ? text : "";
}

static int set_text(char **out, const char *value, struct husk_error *err)
{
	char *copy = strdup(value);

	if (!copy)
		return husk_fail_memory(err);
	free(*out);
	*out = copy;
	return 0;
}

/* In E2B's words, which programs look for. */
static int check_user(struct build *build, const char *user, const char *command, struct husk_error *err)
{
	const struct place place = { .cwd = (char *)"/" };
	struct husk_error why = { 0 };

	if (run_command(build, &place, user, "true", true, &why) >= 0)
		return 0;
	if (why.code == HUSK_NOT_FOUND)
		return husk_fail(err, HUSK_INVALID,
				 "failed to run command '%.200s': command failed: unauthenticated: invalid username: "
				 "'%.80s'",
				 command, user);
	return husk_fail(err, why.code, "%s", why.message);
}

static int step_run(struct build *build, struct place *place, json_t *step, struct husk_error *err)
{
	const char *command = argument(step, 0), *user = argument(step, 1);

	e2b_build_say(build, "info", command, strlen(command));
	if (*user && check_user(build, user, command, err) < 0)
		return -1;
	return require_zero(run_command(build, place, *user ? user : place->user, command, false, err),
			    "failed to run the command", err);
}

static int step_user(struct build *build, struct place *place, json_t *step, struct husk_error *err)
{
	const char *user = argument(step, 0);

	return check_user(build, user, "true", err) < 0 ? -1 : set_text(&place->user, user, err);
}

static int step_workdir(struct build *build, struct place *place, json_t *step, struct husk_error *err)
{
	const char *given = argument(step, 0);
	cleanup_free char *path =
		given[0] == '/' ? strdup(given) : str_format("%s/%s", place->cwd ? place->cwd : "/home/user", given);

	if (!path)
		return husk_fail_memory(err);
	if (husk_file_mkdir(build->husk, build->sandbox, path, 0755, place->user, err) < 0)
		return -1;
	return set_text(&place->cwd, path, err);
}

static int step_env(struct place *place, json_t *step, struct husk_error *err)
{
	size_t count = json_array_size(json_object_get(step, "args")) / 2;
	struct husk_pair *grown =
		reallocarray(place->environment, place->environment_count + count + 1, sizeof(*grown));

	if (!grown)
		return husk_fail_memory(err);
	place->environment = grown;
	for (size_t i = 0; i < count; i++)
		grown[place->environment_count++] =
			(struct husk_pair){ argument(step, 2 * i), argument(step, 2 * i + 1) };
	return 0;
}

/* Debian's /etc/profile sets PATH for each login shell, and every command of E2B's clients has one. */
static int step_path(struct build *build, json_t *step, struct husk_error *err)
{
	static const char script[] =
		"mkdir -p /etc/profile.d && printf 'export PATH=%q\\n' \"$HUSK_PATH\" >/etc/profile.d/zz-e2b.sh";
	struct place place = { .cwd = (char *)"/" };
	struct husk_pair pair = { "HUSK_PATH", NULL };

	for (size_t i = 0; i + 1 < json_array_size(json_object_get(step, "args")); i += 2)
		if (str_equal(argument(step, i), "PATH"))
			pair.value = argument(step, i + 1);
	if (!pair.value)
		return 0;
	place.environment = &pair;
	place.environment_count = 1;
	return require_zero(run_command(build, &place, "root", script, false, err), "failed to set PATH", err);
}

struct reader {
	int fd;
	off_t at;
};

static ssize_t read_upload(void *data, void *bytes, size_t size)
{
	struct reader *reader = data;
	ssize_t count = pread(reader->fd, bytes, size, reader->at);

	if (count > 0)
		reader->at += count;
	return count;
}

/* The content of a directory goes into the target directory. A file goes to the target, or into it if it is or looks
 * like a directory. New directories belong to the user. */
static const char copy_script[] =
	"set -e; rm -rf /tmp/.husk-copy; mkdir -p /tmp/.husk-copy; cd /tmp/.husk-copy\n"
	"tar -xf /tmp/.husk-copy.tar; rm -f /tmp/.husk-copy.tar\n"
	"case $HUSK_USER in *:*) owner=$HUSK_USER;; *) owner=$HUSK_USER:;; esac\n"
	"make() { [ -d \"$1\" ] || { make \"$(dirname \"$1\")\"; mkdir \"$1\"; chown \"$owner\" \"$1\"; }; }\n"
	"[ -e \"$HUSK_FROM\" ] || [ -L \"$HUSK_FROM\" ] || { echo \"no files match $HUSK_FROM\" >&2; exit 1; }\n"
	"chown -hR \"$owner\" .; [ -z \"$HUSK_MODE\" ] || chmod -R \"$HUSK_MODE\" \"$HUSK_FROM\"\n"
	"if [ -d \"$HUSK_FROM\" ] && [ ! -L \"$HUSK_FROM\" ]; then\n"
	"  make \"$HUSK_TO\"; cp -a \"$HUSK_FROM\"/. \"$HUSK_TO\"/\n"
	"else\n"
	"  case $HUSK_TO in */) make \"$HUSK_TO\";; *) make \"$(dirname \"$HUSK_TO\")\";; esac\n"
	"  cp -a \"$HUSK_FROM\" \"$HUSK_TO\"\n"
	"fi\n"
	"cd /; rm -rf /tmp/.husk-copy\n";

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

static int step_copy(struct build *build, struct place *place, json_t *step, struct husk_error *err)
{
	const char *hash = json_string_value(json_object_get(step, "filesHash"));
	const char *target = argument(step, 1), *user = argument(step, 2);
	struct reader reader = { .fd = e2b_build_upload(build, hash ? hash : "", err) };
	cleanup_free char *to =
		target[0] == '/' ? strdup(target) : str_format("%s/%s", place->cwd ? place->cwd : "/home/user", target);
	cleanup_free char *from = copy_source(argument(step, 0));
	struct husk_pair pairs[] = { { "HUSK_FROM", from },
				     { "HUSK_TO", to },
				     { "HUSK_USER", *user ? user : place->user },
				     { "HUSK_MODE", argument(step, 3) } };
	struct place copy = { .cwd = (char *)"/", .environment = pairs, .environment_count = ARRAY_SIZE(pairs) };

	if (reader.fd < 0)
		return -1;
	if (!to || !from)
		return husk_fail_memory(err);
	e2b_build_say(build, "info", to, strlen(to));
	if (husk_file_write(build->husk, build->sandbox, "/tmp/.husk-copy.tar", 0600, NULL, read_upload, &reader, err) <
	    0)
		return -1;
	return require_zero(run_command(build, &copy, NULL, copy_script, false, err), "failed to copy files", err);
}

static int run_step(struct build *build, struct place *place, json_t *step, struct husk_error *err)
{
	const char *type = json_string_value(json_object_get(step, "type"));

	if (str_equal(type, "RUN"))
		return step_run(build, place, step, err);
	if (str_equal(type, "COPY"))
		return step_copy(build, place, step, err);
	if (str_equal(type, "ENV"))
		return step_env(place, step, err) < 0 ? -1 : step_path(build, step, err);
	if (str_equal(type, "WORKDIR"))
		return step_workdir(build, place, step, err);
	if (str_equal(type, "USER"))
		return step_user(build, place, step, err);
	return husk_fail(err, HUSK_INVALID, "a build step '%.40s' is not known", type ? type : "");
}

/* ---- the build ---- */

/* All ENV steps: the sandbox gets them, and so do all sandboxes from its snapshot. `bare`: it gets none. */
static int make_sandbox(struct build *build, const char *from, bool bare, struct husk_error *err)
{
	cleanup_sandbox struct husk_sandbox *sandbox = NULL;
	const struct husk_egress open = { .mode = "open" };
	struct place all = { 0 };
	size_t index;
	json_t *step;
	int result = 0;

	json_array_foreach(json_object_get(build->definition, "steps"), index, step)
	{
		if (!bare && str_equal(json_string_value(json_object_get(step, "type")), "ENV"))
			result |= step_env(&all, step, err);
	}
	const struct husk_pair mark = { E2B_BUILD_KEY, build->id };
	struct husk_create_options options = { .template_name = e2b_template(from),
					       .metadata = &mark,
					       .metadata_count = 1,
					       .ttl_seconds = BUILD_SECONDS,
					       .cpu_milli = (uint32_t)(build->cpus * 1000),
					       .memory_bytes = (uint64_t)build->memory_mb << 20,
					       .environment = all.environment,
					       .environment_count = all.environment_count,
					       .egress = &open };
	if (!result)
		result = husk_create(build->husk, &options, &sandbox, err);
	cleanup_free char *name = NULL;
	if (result < 0 && err->code == HUSK_NOT_FOUND && e2b_snapshot_name(from, &name, err) == 0) {
		options.template_name = NULL;
		options.snapshot = name;
		result = husk_create(build->husk, &options, &sandbox, err);
		if (result < 0 && err->code == HUSK_NOT_FOUND)
			husk_fail(err, HUSK_NOT_FOUND, "template '%.80s' not found", from);
	}
	free(all.environment);
	if (result || !sandbox)
		return -1;
	build->sandbox = strdup(sandbox->id);
	if (!build->sandbox)
		return husk_fail_memory(err);
	return bare ? 0 : e2b_make_user(build->husk, build->sandbox, err);
}

/* Variables of the base are known to its sandboxes only. */
static int replace_variables(struct build *build, const char *from, struct husk_error *err)
{
	json_t *steps = json_object_get(build->definition, "steps");

	if (!e2b_variables_used(steps))
		return 0;
	int result = make_sandbox(build, from, true, err);
	if (result == 0)
		result = e2b_variables_replace(build, steps, err);
	if (build->sandbox)
		husk_kill(build->husk, build->sandbox, NULL);
	free(build->sandbox);
	build->sandbox = NULL;
	return result;
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

/* A start command that has failed is an error, whatever the ready command says. */
static int check_started(struct build *build, int64_t pid, struct husk_error *err)
{
	struct husk_process_info *list = NULL;
	size_t count = 0;
	int code = 0;

	if (!pid)
		return 0;
	if (husk_process_list(build->husk, build->sandbox, &list, &count, err) < 0)
		return -1;
	for (size_t i = 0; i < count; i++)
		if (list[i].pid == pid && !list[i].running)
			code = list[i].exit_code;
	husk_process_list_free(list, count);
	return require_zero(code, "the start command failed", err);
}

static int start_and_wait(struct build *build, struct place *place, struct husk_error *err)
{
	const char *start = json_string_value(json_object_get(build->definition, "startCmd"));
	const char *ready = json_string_value(json_object_get(build->definition, "readyCmd"));
	const char *argv[] = { "/bin/bash", "-l", "-c", start, NULL };
	struct husk_exec_options options = { .argv = argv, .user = place->user, .cwd = place->cwd, .detach = true };
	int64_t deadline = time_monotonic_ms() + READY_SECONDS * 1000, pid = 0;
	cleanup_free char *asked = ready && *ready ? str_format("%s%s", ready_tools, ready) : NULL;

	if (ready && *ready && !asked)
		return husk_fail_memory(err);
	snprintf(build->step, sizeof(build->step), "finalize");
	if (start && *start && husk_exec(build->husk, build->sandbox, &options, NULL, &pid, err) < 0)
		return -1;
	if ((!ready || !*ready) && (!start || !*start))
		return 0;
	for (int64_t settled = time_monotonic_ms() + START_SETTLE_SECONDS * 1000;;) {
		int code = asked ? run_command(build, place, place->user, asked, true, err)
				 : time_monotonic_ms() < settled;
		if (code < 0 || check_started(build, pid, err) < 0)
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
	return husk_file_write(build->husk, build->sandbox, E2B_DEFAULTS, 0644, NULL, bytes_give, &bytes, err);
}

/* One snapshot under all its names. When it exists, it takes these names from earlier builds. */
static int take_snapshot(struct build *build, struct husk_error *err)
{
	struct husk_snapshot *snapshot = NULL;
	int result = husk_snapshot_create(build->husk, build->sandbox, NULL, &snapshot, err);

	for (size_t i = 0; result == 0 && build->tags[i]; i++)
		result = husk_snapshot_tag(build->husk, snapshot->id, build->tags[i], err);
	if (result < 0 && snapshot)
		husk_snapshot_remove(build->husk, snapshot->id, NULL);
	if (snapshot)
		husk_snapshot_free(snapshot);
	return result;
}

static void say_progress(void *data, const char *line)
{
	e2b_build_say(data, "info", line, strlen(line));
}

static int pull_stops(void *data, const struct husk_pull_progress *progress)
{
	(void)data, (void)progress;
	return e2b_build_stopped();
}

/* Pulls an image from a registry; afterwards the definition's image is its place in the local store. */
static int pull_image(struct build *build, const char *name, struct husk_error *err)
{
	const struct husk_pull_options options = { .name = name, .progress = pull_stops };
	cleanup_image struct husk_image *image = NULL;
	cleanup_free char *path = NULL, *reference = NULL;
	char line[400];

	int size = snprintf(line, sizeof(line), "pulling %.300s", name);
	e2b_build_say(build, "info", line, (size_t)size);
	if (husk_image_pull(build->owner, &options, &image, err) < 0 ||
	    husk_image_find(build->owner, image->name, &path, &reference, err) < 0)
		return -1;
	size = snprintf(line, sizeof(line), "pulled %.300s: %zu layers", image->name, image->layer_count);
	e2b_build_say(build, "info", line, (size_t)size);
	return json_object_set_new(build->definition, E2B_IMAGE, json_pack("[s, s]", path, reference)) < 0
		       ? husk_fail(err, HUSK_INVALID, "the path of the image is not UTF-8")
		       : 0;
}

/* The template of a container image, made by the first build from it. */
static int import_image(struct build *build, struct husk_error *err)
{
	const char *pull = json_string_value(json_object_get(build->definition, E2B_PULL));

	if (pull && pull_image(build, pull, err) < 0)
		return -1;
	json_t *image = json_object_get(build->definition, E2B_IMAGE);
	struct husk_build_options options = { .name = json_string_value(
						      json_object_get(build->definition, "fromTemplate")),
					      .image = json_string_value(json_array_get(image, 0)),
					      .reference = json_string_value(json_array_get(image, 1)),
					      .progress = say_progress,
					      .data = build };

	return image ? template_import(build->owner, &options, err) : 0;
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

/* A bundled template that nobody has used yet is built first: by the build, since that takes minutes and the client's request
 * for the build waits for one. That there is no template of the name is told when the sandbox is made. */
static int build_bundled(struct build *build, const char *name, struct husk_error *err)
{
	cleanup_free char *bundled = template_find(name, NULL);
	char line[200];

	if (!bundled)
		return 0;
	int size = snprintf(line, sizeof(line), "from the template %.80s%s", name,
			    is_built(build->owner, name) ? "" : "; its first use builds it, in minutes");
	e2b_build_say(build, "info", line, (size_t)size);
	return template_ensure_for(build->husk, build->owner, name, err) < 0 ? -1 : 0;
}

/* A build continues with the user and the directory of its template. */
static int inherit(struct build *build, struct place *place, struct husk_error *err)
{
	cleanup_free char *user = e2b_default(build->husk, build->sandbox, "user");

	place->cwd = e2b_default(build->husk, build->sandbox, "cwd");
	return set_text(&place->user, user ? user : E2B_USER, err);
}

static int run_all(struct build *build, struct place *place, struct husk_error *err)
{
	const char *from = json_string_value(json_object_get(build->definition, "fromTemplate"));
	size_t index;
	json_t *step;

	snprintf(build->step, sizeof(build->step), "base");
	if (import_image(build, err) < 0 || build_bundled(build, e2b_template(from), err) < 0 ||
	    replace_variables(build, from, err) < 0 || make_sandbox(build, from, false, err) < 0 ||
	    inherit(build, place, err) < 0)
		return -1;
	json_array_foreach(json_object_get(build->definition, "steps"), index, step)
	{
		snprintf(build->step, sizeof(build->step), "%zu", index + 1);
		if (run_step(build, place, step, err) < 0)
			return -1;
	}
	if (start_and_wait(build, place, err) < 0 || leave_defaults(build, place, err) < 0)
		return -1;
	return take_snapshot(build, err);
}

int e2b_build_run(struct build *build, struct husk_error *err)
{
	struct place place = { 0 };
	int result = run_all(build, &place, err);

	free(place.user);
	free(place.cwd);
	free(place.environment);
	return result;
}
