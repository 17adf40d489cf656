/*
 * METHOD_REPLACE: puts prepared files in place, all or none. The host filled a stage, a directory of the writable layer,
 * with new files and a plan; this file only renames, so the work is short. The agent finishes it even if the host
 * disconnects.
 *
 *     P path 7        the file or directory 7 of the stage goes to path
 *     L path target   path becomes a symbolic link
 *     R path          path goes, with what is below
 *     M path 755      path gets that mode
 *
 * A replaced file is first renamed into the stage (old-0, old-1 …), and renamed back if a later step fails. Each field
 * of the plan ends with NUL, because names may hold any other byte.
 */
#include <fcntl.h>
#include <sys/stat.h>

#include "agent/agent.h"

#define PLAN_MAX (64u << 20)

struct step {
	char kind;
	const char *path, *detail;
	bool placed, parked;
	bool late;       /* a directory of the template, which cannot be renamed: removed after the last step */
	mode_t old_mode; /* M */
};

struct plan {
	char *text;
	struct step *steps;
	size_t count;
	int stage;
};

static void plan_free(struct plan *plan)
{
	free(plan->text);
	free(plan->steps);
	fd_close(&plan->stage);
}

/* ---- reading it ---- */

static const char *next_field(const char **at, const char *end)
{
	const char *field = *at, *stop = field < end ? memchr(field, '\0', (size_t)(end - field)) : NULL;

	if (stop)
		*at = stop + 1;
	return stop ? field : NULL;
}

static int plan_read(struct plan *plan, const char *stage, struct husk_error *err)
{
	cleanup_free char *path = str_format("%s/plan", stage);
	size_t size = 0, room = 0;

	plan->text = path ? file_read(path, PLAN_MAX, &size, err) : NULL;
	if (!plan->text)
		return path ? -1 : husk_fail_memory(err);
	for (const char *at = plan->text, *end = at + size, *kind; (kind = next_field(&at, end));) {
		const char *to = next_field(&at, end), *detail = next_field(&at, end);
		if (!to || !detail || strlen(kind) != 1 || !strchr("PLRM", *kind) || to[0] != '/')
			return husk_fail(err, HUSK_INVALID, "the plan of the stage is malformed");
		if (plan->count == room) {
			room = room ? room * 2 : 64;
			struct step *grown = reallocarray(plan->steps, room, sizeof(*grown));
			if (!grown)
				return husk_fail_memory(err);
			plan->steps = grown;
		}
		plan->steps[plan->count++] = (struct step){ .kind = *kind, .path = to, .detail = detail };
	}
	return 0;
}

/* ---- one step ---- */

static void old_name(size_t number, char name[static 32])
{
	snprintf(name, 32, "old-%zu", number);
}

/* Out of the way, into the stage. 1: there was nothing. */
static int park(const struct plan *plan, size_t number, const struct stat *now)
{
	struct step *step = &plan->steps[number];
	char name[32];

	old_name(number, name);
	if (renameat(AT_FDCWD, step->path, plan->stage, name) == 0) {
		step->parked = true;
		return 0;
	}
	/* gVisor's answers for a directory of the template: with a disk in memory the first, with a cloned one the second. */
	if ((errno != EXDEV && errno != EOPNOTSUPP) || !S_ISDIR(now->st_mode))
		return -1;
	if (step->kind == 'R') {
		step->late = true;
		return 0;
	}
	return dir_remove(step->path, NULL); /* its place is needed now */
}

static void make_parents(const char *path)
{
	cleanup_free char *copy = strdup(path);

	for (char *slash = copy ? strchr(copy + 1, '/') : NULL; slash; slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		mkdir(copy, 0755);
		*slash = '/';
	}
}

static int place_once(const struct plan *plan, const struct step *step)
{
	return step->kind == 'P' ? renameat(plan->stage, step->detail, AT_FDCWD, step->path)
				 : symlink(step->detail, step->path);
}

static int place(const struct plan *plan, struct step *step, const struct stat *old)
{
	/* A file keeps its owner when its content changes. */
	if (step->kind == 'P' && old && S_ISREG(old->st_mode) &&
	    fchownat(plan->stage, step->detail, old->st_uid, old->st_gid, AT_SYMLINK_NOFOLLOW) < 0)
		return -1;
	if (place_once(plan, step) < 0) {
		if (errno != ENOENT)
			return -1;
		make_parents(step->path);
		if (place_once(plan, step) < 0)
			return -1;
	}
	step->placed = true;
	return 0;
}

static int run_step(const struct plan *plan, size_t number, struct husk_error *err)
{
	struct step *step = &plan->steps[number];
	struct stat now;
	bool is = lstat(step->path, &now) == 0;
	int result = 0;

	if (step->kind == 'M') {
		step->old_mode = is ? now.st_mode & 07777 : 0;
		step->placed = is && !S_ISLNK(now.st_mode);
		result = step->placed ? chmod(step->path, (mode_t)strtoul(step->detail, NULL, 8) & 07777) : 0;
	} else {
		if (is)
			result = park(plan, number, &now);
		if (result == 0 && step->kind != 'R')
			result = place(plan, step, is ? &now : NULL);
	}
	return result < 0 ? husk_fail_errno(err, "cannot replace '%s'", step->path) : 0;
}

/* ---- all of them ---- */

static void undo(const struct plan *plan, size_t count)
{
	for (size_t i = count; i-- > 0;) {
		const struct step *step = &plan->steps[i];
		char name[32];
		int bad = 0;

		old_name(i, name);
		if (step->kind == 'M' && step->placed)
			bad |= chmod(step->path, step->old_mode);
		if (step->kind == 'P' && step->placed)
			bad |= renameat(AT_FDCWD, step->path, plan->stage, step->detail);
		if (step->kind == 'L' && step->placed)
			bad |= unlink(step->path);
		if (step->parked)
			bad |= renameat(plan->stage, name, AT_FDCWD, step->path);
		if (bad)
			log_line(LOG_WARN, "cannot put '%s' back: %s", step->path, strerror(errno));
	}
}

int replace_answer(struct agent *agent, const struct request *request, struct buf *results, struct husk_error *err)
{
	cleanup(plan_free) struct plan plan = { .stage = -1 };
	cleanup_free char *stage = NULL;

	(void)agent;
	if (request_string(request, TAG_PATH, &stage, err) < 0 || plan_read(&plan, stage, err) < 0)
		return -1;
	plan.stage = open(stage, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (plan.stage < 0)
		return husk_fail_errno(err, "cannot open '%s'", stage);
	for (size_t i = 0; i < plan.count; i++)
		if (run_step(&plan, i, err) < 0) {
			undo(&plan, i + 1);
			return -1;
		}
	for (size_t i = 0; i < plan.count; i++)
		if (plan.steps[i].late)
			dir_remove(plan.steps[i].path, NULL);
	return wire_put_int(results, TAG_COUNT, (int64_t)plan.count) < 0 ? husk_fail_memory(err) : 0;
}
