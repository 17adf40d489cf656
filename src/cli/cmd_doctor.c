/*
 * `husk doctor` reports what works on this host and what does not, with the fix. `husk doctor --leaks` finds what no live
 * sandbox owns, and `husk gc` removes it. `husk doctor --fix` repairs first (doctor_fix.c). doctor exits with 1 when a
 * check fails or a leak is found.
 */
#include "cli/doctor_fix.h"

#define LONG_TEXT 200 /* length of a check's text without -v, in bytes */

struct doctor_arguments {
	bool leaks, fix;
};

static const struct option_spec doctor_options[] = {
	OPTION(0, "leaks", OPTION_FLAG, struct doctor_arguments, leaks, NULL,
	       "look for processes, mounts, cgroups and files that no live sandbox owns"),
	OPTION(0, "fix", OPTION_FLAG, struct doctor_arguments, fix, NULL,
	       "first repair what it can: packages, kernel settings, group and units of the server, leaks"),
	{ 0 },
};

static const struct {
	const char *word;
	enum output_color color;
} results[] = {
	[HUSK_CHECK_OK] = { "ok", COLOR_GREEN },
	[HUSK_CHECK_WARN] = { "warn", COLOR_YELLOW },
	[HUSK_CHECK_FAIL] = { "fail", COLOR_RED },
};

/* A text is "what is wrong: details; more of them; what to do". A long text is printed without the details. */
static void print_text(const char *text, bool whole)
{
	const char *details = strstr(text, ": "), *next = NULL;

	for (const char *p = strstr(text, "; "); p; p = strstr(p + 2, "; "))
		next = p;
	if (whole || strlen(text) <= LONG_TEXT || !details || !next || next <= details) {
		output_safe(stdout, text, false);
		return;
	}
	cleanup_free char *first = strndup(text, (size_t)(details - text));
	output_safe(stdout, first ? first : "", false);
	output_safe(stdout, next, false);
	fputs(" (-v for details)", stdout);
}

static void checks_print(const struct husk_check *list, size_t count, bool whole)
{
	size_t width = 0;

	for (size_t i = 0; i < count; i++)
		width = MAX(width, strlen(list[i].name));
	for (size_t i = 0; i < count; i++) {
		output_colored(stdout, results[list[i].result].color, results[list[i].result].word);
		printf("%*s", (int)(6 - strlen(results[list[i].result].word)), "");
		output_safe(stdout, list[i].name, false);
		printf("%*s", (int)(width - strlen(list[i].name) + 2), "");
		print_text(list[i].text ? list[i].text : "", whole);
		putchar('\n');
	}
}

static int doctor_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	const struct doctor_arguments *arguments = data;
	struct husk_check *list = NULL;
	size_t count = 0, bad = 0;

	(void)argc, (void)argv;
	if (arguments->fix && doctor_fix(cli, err) < 0)
		return -1;
	struct progress *progress = progress_begin("looking");
	int status = arguments->leaks ? husk_leaks(cli->husk, &list, &count, err)
				      : husk_doctor(cli->husk, &list, &count, err);
	progress_end(&progress);
	if (status < 0)
		return -1;
	/* every leak counts; of the host's checks only failures count */
	for (size_t i = 0; i < count; i++)
		bad += arguments->leaks ? list[i].result != HUSK_CHECK_OK : list[i].result == HUSK_CHECK_FAIL;
	if (cli->json)
		status = output_json(json_checks(list, count), err);
	else
		checks_print(list, count, cli->verbose || arguments->leaks);
	if (!cli->json && arguments->leaks)
		puts(bad ? "husk gc clears what it can" : "no leaks");
	husk_check_list_free(list, count);
	if (status < 0)
		return -1;
	return bad ? EXIT_FAILED : 0;
}

struct gc_arguments {
	bool all;
};

static const struct option_spec gc_options[] = {
	OPTION('a', "all", OPTION_FLAG, struct gc_arguments, all, NULL,
	       "also the prepared sandboxes and the old events"),
	{ 0 },
};

static int gc_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	const struct gc_arguments *arguments = data;
	struct husk_gc_result result = { 0 };
	char size[32];

	(void)argc, (void)argv;
	struct progress *progress = progress_begin("clearing");
	int status = husk_gc(cli->husk, arguments->all, &result, err);
	progress_end(&progress);
	if (status < 0)
		return -1;
	if (cli->json)
		return output_json(json_pack("{s:I, s:I, s:I, s:I, s:I}", "sandboxes", (json_int_t)result.sandboxes,
					     "snapshots", (json_int_t)result.snapshots, "templates",
					     (json_int_t)result.templates, "pool", (json_int_t)result.pool, "bytes",
					     (json_int_t)result.bytes),
				   err);
	output_size(result.bytes, size, sizeof(size));
	printf("cleared %zu sandboxes, %zu snapshots, %zu template versions, %zu prepared sandboxes: %s\n",
	       result.sandboxes, result.snapshots, result.templates, result.pool, size);
	return 0;
}

const struct cli_command cli_doctor = {
	.name = "doctor",
	.operands = "",
	.summary = "Report what works on this host, what does not, and the fix",
	.groups = { { doctor_options, 0 } },
	.arguments_size = sizeof(struct doctor_arguments),
	.run = doctor_run,
};

const struct cli_command cli_gc = {
	.name = "gc",
	.operands = "",
	.summary = "Remove data that is no longer used",
	.groups = { { gc_options, 0 } },
	.arguments_size = sizeof(struct gc_arguments),
	.run = gc_run,
};

static int pool_drain_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	(void)data, (void)argc, (void)argv;
	struct progress *progress = progress_begin("ending prepared sandboxes");
	size_t ended = husk_pool_drain(cli->husk);

	progress_end(&progress);
	if (cli->json)
		return output_json(json_pack("{s:I}", "pool", (json_int_t)ended), err);
	printf("ended %zu prepared sandboxes\n", ended);
	return 0;
}

const struct cli_command cli_pool_drain = {
	.name = "pool drain",
	.operands = "",
	.summary = "End the prepared sandboxes of the pool",
	.details = "They end by themselves after five minutes without a create. The next create makes new ones.\n",
	.run = pool_drain_run,
};
