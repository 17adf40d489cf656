/*
 * The stages of a Dockerfile (dockerfile.h): which steps they have, and which stages they refer to. Errors name the step.
 */
#include "build/dockerfile.h"

#include <strings.h>

struct linker {
	const struct dockerfile *file;
	const char *name; /* of the file, in errors */
	struct husk_error *err;
};

static int fail_at(const struct linker *linker, const struct dockerfile_step *step, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
static int fail_at(const struct linker *linker, const struct dockerfile_step *step, const char *format, ...)
{
	char message[400];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(message, sizeof(message), format, arguments);
	va_end(arguments);
	return husk_fail(linker->err, HUSK_INVALID, "%s:%u:%u: %s", linker->name, step->line, step->column, message);
}

int dockerfile_fail(const struct dockerfile *file, const char *name, const struct dockerfile_step *step,
		    const struct husk_error *why, struct husk_error *err)
{
	if (!file->home)
		return husk_fail(err, why->code, "%s:%u:%u: %s", name ? name : "Dockerfile", step->line, step->column,
				 why->message);
	husk_fail(err, why->code, "%s", why->message);
	if (err)
		snprintf(err->field, sizeof(err->field), "%u", step->line);
	return -1;
}

static bool is_number(const char *word)
{
	return *word && !word[strspn(word, "0123456789")];
}

int dockerfile_find_stage(const struct dockerfile *file, const char *word, size_t before)
{
	int64_t number;

	for (size_t i = 0; i < MIN(before, file->stage_count); i++)
		if (file->stages[i].name && strcasecmp(file->stages[i].name, word) == 0)
			return (int)i;
	if (str_to_int64(word, 0, (int64_t)MIN(before, file->stage_count) - 1, &number) == 0)
		return (int)number;
	return -1;
}

/* A stage may use earlier ones only, so there can be no cycle. */
static int check_reference(const struct linker *linker, const struct dockerfile_step *step, const char *word,
			   size_t stage, int *found)
{
	*found = dockerfile_find_stage(linker->file, word, stage);
	if (*found >= 0 || strchr(word, '$'))
		return *found >= 0 ? 0
				   : fail_at(linker, step,
					     "--from cannot have a variable; use FROM $… AS NAME and --from=NAME");
	int later = dockerfile_find_stage(linker->file, word, linker->file->stage_count);
	if (later < 0 && is_number(word))
		return fail_at(linker, step, "there is no stage %.40s", word);
	if (later < 0)
		return 0;
	if ((size_t)later == stage)
		return fail_at(linker, step, "the stage '%.60s' refers to itself", word);
	return fail_at(linker, step, "the stage '%.60s' comes later (line %u): a stage can use earlier ones only", word,
		       linker->file->steps[linker->file->stages[later].first].line);
}

static int check_mount_sources(const struct linker *linker, const struct dockerfile_step *step, size_t stage)
{
	for (size_t i = 0; i < step->flag_count; i++) {
		struct dockerfile_mount mount = { 0 };
		int found, result = 0;
		if (!str_equal(step->flags[i].key, "mount") ||
		    dockerfile_mount_parse(step->flags[i].value, &mount, NULL) < 0)
			continue;
		if (mount.from)
			result = check_reference(linker, step, mount.from, stage, &found);
		if (result == 0 && mount.from && found < 0)
			result = fail_at(linker, step,
					 "--mount: from=%.60s is not an earlier stage; add FROM %.60s AS NAME",
					 mount.from, mount.from);
		dockerfile_mount_free(&mount);
		if (result < 0)
			return -1;
	}
	return 0;
}

int dockerfile_link(struct dockerfile *file, const char *name, struct husk_error *err)
{
	const struct linker *linker = &(struct linker){ file, name, err };

	if (!file->stage_count)
		return fail_at(linker, &(struct dockerfile_step){ .line = 1, .column = 1 },
			       "no FROM: a Dockerfile needs at least one stage");
	for (size_t i = 0; i < file->stage_count; i++) {
		struct dockerfile_stage *stage = &file->stages[i];
		size_t end = i + 1 < file->stage_count ? file->stages[i + 1].first : file->step_count;
		int unused;
		stage->count = end - stage->first;
		/* The last steps before the next FROM may be ARGs of that one; they do no harm here. */
		const struct dockerfile_step *from = &file->steps[stage->first];
		if (stage->base < 0 && !strchr(from->words[0], '$') && !is_number(from->words[0]) &&
		    check_reference(linker, from, from->words[0], i, &unused) < 0)
			return -1;
		for (size_t k = stage->first; k < end; k++) {
			struct dockerfile_step *step = &file->steps[k];
			const char *word = step->kind == STEP_COPY ? dockerfile_flag(step, "from") : NULL;
			if (word && check_reference(linker, step, word, i, &step->from) < 0)
				return -1;
			if (step->kind == STEP_RUN && check_mount_sources(linker, step, i) < 0)
				return -1;
		}
	}
	return 0;
}
