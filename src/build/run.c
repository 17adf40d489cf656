/*
 * RUN of a Dockerfile: a program in the sandbox of its stage, with the files of --mount while it runs. The program is
 * untrusted: it has only the network that the caller of the build allows, a time limit, and nothing of the host.
 *
 * A mount is a swap: the content of the target is moved aside, the mounted files take its place, and afterwards the
 * content moves back. So no mounted file is in the image. A cache comes from a tar on the host and goes back into it; a
 * secret is written to a file, or is a variable.
 */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>

#include <openssl/evp.h>

#include "build/work.h"

#define CACHE_BYTES_MAX (UINT64_C(4) << 30) /* of one cache */
#define ASIDE ".husk-aside"
#define SCRIPT "/tmp/.husk-run"
#define POLL_MS 200

/* ---- small parts ---- */

static int write_text(struct build *build, const char *sandbox, const char *path, uint32_t mode, const char *user,
		      const char *value, struct husk_error *err)
{
	struct bytes text = { value, strlen(value) };

	return husk_file_write(build->husk, sandbox, path, mode, user, bytes_give, &text, err);
}

int run_quietly(struct build *build, const char *sandbox, const char *const *argv, struct husk_error *err)
{
	const struct husk_exec_options options = { .argv = argv, .user = "root", .cwd = "/", .timeout_ms = 600000 };
	struct husk_result result = { 0 };

	if (husk_run(build->husk, sandbox, &options, &result, err) < 0)
		return -1;
	int code = result.exit_code;
	if (code)
		husk_fail(err, HUSK_INVALID, "%s: %.300s", argv[0], result.error_output ? result.error_output : "");
	husk_result_free(&result);
	return code;
}

/* ---- mounts ---- */

static const char *secret_value(const struct build *build, const char *id)
{
	for (size_t i = 0; i < build->options->secret_count; i++)
		if (str_equal(build->options->secrets[i].key, id))
			return build->options->secrets[i].value;
	return NULL;
}

static const char *secret_id(const struct dockerfile_mount *mount)
{
	const char *slash = mount->target ? strrchr(mount->target, '/') : NULL;

	return mount->id ? mount->id : slash ? slash + 1 : "";
}

/* The file of a cache, named after its id or target; caller frees. NULL also for a client: it would see what others left there. */
static char *cache_file(const struct build *build, const struct dockerfile_mount *mount)
{
	const char *name = mount->id ? mount->id : mount->target;
	unsigned char bytes[EVP_MAX_MD_SIZE];
	char hex[33];
	unsigned size = 0;

	if (build->client || EVP_Digest(name, strlen(name), bytes, &size, EVP_sha256(), NULL) != 1)
		return NULL;
	for (unsigned i = 0; i < 16; i++)
		snprintf(hex + 2 * i, 3, "%02x", bytes[i]);
	return str_format("%s/mount-%s.tar", build->cache, hex);
}

static int fill_cache(struct build *build, const char *sandbox, const struct plan_step *step,
		      const struct dockerfile_mount *mount, struct husk_error *err)
{
	cleanup_free char *path = cache_file(build, mount);
	cleanup_close int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;

	if (husk_file_mkdir(build->husk, sandbox, mount->target, mount->mode ? mount->mode : 0755, step->user, err) < 0)
		return -1;
	return fd < 0 ? 0 : tree_in(build, sandbox, mount->target, step->user, fd, err);
}

/* What the program left in its cache. A cache that cannot be kept is no failure of the build. */
static void keep_cache(struct build *build, const char *sandbox, const struct dockerfile_mount *mount)
{
	cleanup_free char *path = cache_file(build, mount);
	cleanup_free char *partial = path ? str_format("%s.%s", path, build->id) : NULL;
	cleanup_close int fd = partial ? open(partial, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600) : -1;
	struct husk_error why = { 0 };

	if (fd < 0)
		return;
	if (tree_out(build, sandbox, mount->target, fd, CACHE_BYTES_MAX, &why) == 0 && rename(partial, path) == 0)
		return;
	unlink(partial);
	cleanup_free char *line = str_format("the cache of %s is not kept: %s", mount->target, why.message);
	if (line)
		build_tell(build, HUSK_BUILD_NOTE, line, strlen(line), false, 0);
}

static int fill_bind(struct build *build, const char *sandbox, const struct plan_step *step,
		     const struct dockerfile_mount *mount, struct husk_error *err)
{
	const char *from = NULL;

	if (mount->from) {
		int stage = dockerfile_find_stage(&build->plan.file, mount->from, build->plan.file.stage_count);
		if (build_stage(build, (size_t)stage, &from, err) < 0)
			return -1;
	}
	return copy_to(build, sandbox, from,
		       mount->source ? mount->source
		       : from        ? "/"
				     : ".",
		       mount->target, step->user, err);
}

/* What was at a target before its mount. */
struct before {
	bool moved; /* something, which is aside now */
	char *made; /* nothing: the first folder on the way to it that has to be made, or the target */
};

static bool exists(struct build *build, const char *sandbox, const char *path)
{
	struct husk_file file = { 0 };
	bool found = husk_file_stat(build->husk, sandbox, path, false, &file, NULL) == 0;

	husk_file_free(&file);
	return found;
}

static int move_aside(struct build *build, const char *sandbox, const struct dockerfile_mount *mount,
		      struct before *before, struct husk_error *err)
{
	cleanup_free char *aside = str_format("%s" ASIDE, mount->target);

	before->made = strdup(mount->target);
	if (!aside || !before->made)
		return husk_fail_memory(err);
	before->moved = exists(build, sandbox, mount->target);
	if (before->moved)
		return husk_file_move(build->husk, sandbox, mount->target, aside, err);
	for (char *slash; (slash = strrchr(before->made, '/')) && slash > before->made;) {
		*slash = '\0';
		if (exists(build, sandbox, before->made)) {
			*slash = '/';
			break;
		}
	}
	return 0;
}

/* One mount before the program starts. Secrets that are variables are added to *pairs by the caller. */
static int mount_begin(struct build *build, const char *sandbox, const struct plan_step *step,
		       struct dockerfile_mount *mount, struct before *before, struct husk_error *err)
{
	if (mount->type == MOUNT_SECRET) {
		const char *value = secret_value(build, secret_id(mount));
		if (!value)
			return mount->required ? husk_fail(err, HUSK_INVALID,
							   "the secret '%.60s' is required: --secret id=%.60s,src=FILE",
							   secret_id(mount), secret_id(mount))
					       : 0;
		if (mount->variable && !mount->target)
			return 0;
		if (!mount->target && !(mount->target = str_format("/run/secrets/%s", mount->id)))
			return husk_fail_memory(err);
		return move_aside(build, sandbox, mount, before, err) < 0
			       ? -1
			       : write_text(build, sandbox, mount->target, mount->mode ? mount->mode : 0400, step->user,
					    value, err);
	}
	if (move_aside(build, sandbox, mount, before, err) < 0)
		return -1;
	if (mount->type == MOUNT_CACHE)
		return fill_cache(build, sandbox, step, mount, err);
	if (mount->type == MOUNT_TMPFS)
		return husk_file_mkdir(build->husk, sandbox, mount->target, 01777, NULL, err);
	return fill_bind(build, sandbox, step, mount, err);
}

static int mount_end(struct build *build, const char *sandbox, const struct dockerfile_mount *mount,
		     const struct before *before, bool keep, struct husk_error *err)
{
	struct husk_error why = { 0 };

	if (!before->made)
		return 0;
	cleanup_free char *aside = str_format("%s" ASIDE, mount->target);
	if (!aside)
		return husk_fail_memory(err);
	if (keep && mount->type == MOUNT_CACHE)
		keep_cache(build, sandbox, mount);
	if (husk_file_remove(build->husk, sandbox, before->made, &why) < 0 && why.code != HUSK_NOT_FOUND)
		return husk_fail(err, why.code, "%s", why.message);
	return before->moved ? husk_file_move(build->husk, sandbox, aside, mount->target, err) : 0;
}

/* ---- the program ---- */

/* "KEY=value" to pairs that borrow the keys' copies in *storage. Names that no environment can have are left out. */
static int make_pairs(const struct build *build, const struct plan_step *step, char ***storage,
		      struct husk_pair **pairs, size_t *count, struct husk_error *err)
{
	size_t total = (step->environment ? strv_length(step->environment) : 0) + step->mount_count;
	struct husk_pair *list = *pairs = calloc(total + 1, sizeof(*list));

	for (size_t i = 0; step->environment && step->environment[i]; i++)
		if (strv_add(storage, step->environment[i]) < 0)
			return husk_fail_memory(err);
	if (!list)
		return husk_fail_memory(err);
	for (size_t i = 0; *storage && (*storage)[i]; i++) {
		char *equals = strchr((*storage)[i], '=');
		if (!equals)
			continue;
		*equals = '\0';
		const char *name = (*storage)[i];
		if (*name && !(*name >= '0' && *name <= '9') &&
		    !name[strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_")])
			list[(*count)++] = (struct husk_pair){ name, equals + 1 };
	}
	for (size_t i = 0; i < step->mount_count; i++) {
		const struct dockerfile_mount *mount = &step->mounts[i];
		const char *value = mount->variable ? secret_value(build, secret_id(mount)) : NULL;
		if (value)
			list[(*count)++] = (struct husk_pair){ mount->variable, value };
	}
	return 0;
}

/* Follows the program to its end: its exit status, or -1. */
static int follow(struct build *build, struct husk_process *process, struct husk_process_event *event,
		  struct husk_error *err)
{
	for (;;) {
		struct pollfd wait = { .fd = husk_process_fd(process), .events = POLLIN };
		if (build_stopped(build, err)) {
			husk_process_signal(process, SIGKILL, NULL);
			return -1;
		}
		if (!husk_process_pending(process)) {
			poll(&wait, 1, POLL_MS);
			continue;
		}
		if (husk_process_next(process, event, err) < 0)
			return -1;
		if (event->kind == HUSK_EXIT)
			return event->exit_code;
		build_tell(build, HUSK_BUILD_OUTPUT, event->data, event->size, event->kind == HUSK_STDERR, 0);
	}
}

static int start_and_follow(struct build *build, const char *sandbox, const struct plan_step *step,
			    const struct husk_pair *pairs, size_t count, struct husk_error *err)
{
	const char *script[] = { SCRIPT, NULL };
	int64_t timeout = build->options->timeout_ms ? build->options->timeout_ms : 3600000;
	const struct husk_exec_options options = { .argv = step->argv ? (const char *const *)step->argv : script,
						   .environment = pairs,
						   .environment_count = count,
						   .user = step->user,
						   .cwd = step->cwd,
						   .timeout_ms = timeout };
	struct husk_process_event event = { 0 };
	struct husk_process *process = NULL;

	if (!step->argv && write_text(build, sandbox, SCRIPT, 0755, NULL, step->texts[0], err) < 0)
		return -1;
	if (husk_exec(build->husk, sandbox, &options, &process, NULL, err) < 0)
		return -1;
	int code = follow(build, process, &event, err);
	husk_process_free(process);
	if (!step->argv)
		husk_file_remove(build->husk, sandbox, SCRIPT, NULL);
	if (code > 0 && event.timed_out)
		husk_fail(err, HUSK_TIMEOUT, "the command did not end within %lld s (--timeout)",
			  (long long)(timeout / 1000));
	else if (code > 0 && event.out_of_memory)
		husk_fail(err, HUSK_LIMIT, "the command ran out of memory (--memory)");
	else if (code > 0)
		husk_fail(err, HUSK_CONFLICT, "the command ended with status %d", code);
	return code;
}

static void report_failure(struct build *build, const char *sandbox, const struct plan_step *step,
			   const struct husk_pair *pairs, size_t count, int code)
{
	const struct husk_build_failure failure = { .sandbox = sandbox,
						    .user = step->user,
						    .cwd = step->cwd,
						    .environment = pairs,
						    .environment_count = count,
						    .line = step->step->line,
						    .exit_code = code };

	if (build->options->failed)
		build->options->failed(build->options->data, &failure);
}

/* A program's children do not outlive it, as in Docker. Every process but the agent and the one that does this ends. */
static void end_leftovers(struct build *build, const char *sandbox)
{
	const char *argv[] = { "/bin/sh", "-c", "kill -9 -1", NULL };

	run_quietly(build, sandbox, argv, NULL);
}

/* --network=none: without the network that the build allows. */
static int set_network(struct build *build, const char *sandbox, const struct plan_step *step, bool on,
		       struct husk_error *err)
{
	static const struct husk_egress off = { .mode = "off" };

	if (!build->options->egress || !str_equal(dockerfile_flag(step->step, "network"), "none"))
		return 0;
	return husk_egress_set(build->husk, sandbox, on ? build->options->egress : &off, err);
}

int step_run(struct build *build, const char *sandbox, const struct plan_step *step, struct husk_error *err)
{
	cleanup_strv char **storage = NULL;
	cleanup_free struct husk_pair *pairs = NULL;
	cleanup_free struct before *before = calloc(step->mount_count + 1, sizeof(*before));
	struct husk_error later = { 0 };
	size_t count = 0, mounted = 0;
	int code = 0;

	if (!before || make_pairs(build, step, &storage, &pairs, &count, err) < 0)
		return before ? -1 : husk_fail_memory(err);
	if (set_network(build, sandbox, step, false, err) < 0)
		return -1;
	for (; code == 0 && mounted < step->mount_count; mounted++)
		code = mount_begin(build, sandbox, step, &step->mounts[mounted], &before[mounted], err);
	if (code == 0)
		code = start_and_follow(build, sandbox, step, pairs, count, err);
	if (code > 0)
		report_failure(build, sandbox, step, pairs, count, code);
	if (code == 0 && (!build->client || build->client->files)) /* a snapshot has processes, its base's too */
		end_leftovers(build, sandbox);
	for (size_t i = mounted; i-- > 0;) {
		if (mount_end(build, sandbox, &step->mounts[i], &before[i], code == 0, &later) < 0 && code == 0)
			code = husk_fail(err, later.code, "%s", later.message);
		free(before[i].made);
	}
	if (code == 0 && set_network(build, sandbox, step, true, err) < 0)
		code = -1;
	return code ? -1 : 0;
}
