/*
 * The host and the instance: `husk doctor` says what works here and what does not, with the fix; `husk doctor --leaks`
 * looks for what no live sandbox owns; `husk gc` clears it. Doctor exits with 1 when something fails or leaks.
 */
#include "cli/cli.h"

struct doctor_arguments {
	bool leaks;
};

static const struct option_spec doctor_options[] = {
	OPTION(0, "leaks", OPTION_FLAG, struct doctor_arguments, leaks, NULL,
	       "look for processes, mounts, cgroups and files that no live sandbox owns"),
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

static json_t *checks_json(const struct husk_check *list, size_t count)
{
	cleanup_json json_t *array = json_array();

	for (size_t i = 0; array && i < count; i++)
		if (json_array_append_new(array, json_pack("{s:o, s:s, s:o}", "name", json_text0(list[i].name),
							   "result", results[list[i].result].word, "text",
							   json_text0(list[i].text))) < 0)
			return NULL;
	return steal_pointer(array);
}

static void checks_print(const struct husk_check *list, size_t count)
{
	size_t width = 0;

	for (size_t i = 0; i < count; i++)
		width = MAX(width, strlen(list[i].name));
	for (size_t i = 0; i < count; i++) {
		output_colored(stdout, results[list[i].result].color, results[list[i].result].word);
		printf("%*s", (int)(6 - strlen(results[list[i].result].word)), "");
		output_safe(stdout, list[i].name, false);
		printf("%*s", (int)(width - strlen(list[i].name) + 2), "");
		output_safe(stdout, list[i].text ? list[i].text : "", false);
		putchar('\n');
	}
}

static int doctor_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	const struct doctor_arguments *arguments = data;
	struct husk_check *list = NULL;
	size_t count = 0, bad = 0;

	(void)argc, (void)argv;
	struct progress *progress = progress_begin("looking");
	int status = arguments->leaks ? husk_leaks(cli->husk, &list, &count, err)
				      : husk_doctor(cli->husk, &list, &count, err);
	progress_end(&progress);
	if (status < 0)
		return -1;
	/* a leak is a leak, however small; of the host's checks only failures count */
	for (size_t i = 0; i < count; i++)
		bad += arguments->leaks ? list[i].result != HUSK_CHECK_OK : list[i].result == HUSK_CHECK_FAIL;
	if (cli->json)
		status = output_json(checks_json(list, count), err);
	else
		checks_print(list, count);
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
	.summary = "Say what works on this host, what does not, and the fix",
	.groups = { { doctor_options, 0 } },
	.arguments_size = sizeof(struct doctor_arguments),
	.run = doctor_run,
};

const struct cli_command cli_gc = {
	.name = "gc",
	.operands = "",
	.summary = "Clear what is no longer used",
	.groups = { { gc_options, 0 } },
	.arguments_size = sizeof(struct gc_arguments),
	.run = gc_run,
};
