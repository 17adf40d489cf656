/*
 * `husk events`: events of the instance or of one sandbox. With --follow it continues until Ctrl-C, which also closes
 * the JSON array properly.
 */
#include <inttypes.h>

#include "cli/cli.h"
#include "cli/interrupt.h"

#define EVENTS_PAGE 500
/* How long one call waits: also the maximum delay of Ctrl-C. */
#define EVENTS_WAIT_MS 250

struct events_arguments {
	bool follow;
	int64_t since_seconds, after;
};

static const struct option_spec events_options[] = {
	OPTION('f', "follow", OPTION_FLAG, struct events_arguments, follow, NULL, "print new events until Ctrl-C"),
	OPTION(0, "since", OPTION_SECONDS, struct events_arguments, since_seconds, "TIME",
	       "only events of the last TIME (90s, 15m, 2h, 1d)", .min = 1, .max = INT64_C(3650) * 86400),
	OPTION(0, "after", OPTION_INTEGER, struct events_arguments, after, "N", "only events after sequence number N",
	       .max = INT64_MAX),
	{ 0 },
};

struct events_view {
	bool json;
	int64_t oldest_ms; /* earlier events are not shown */
	size_t shown;
};

static int event_json(const struct husk_event *event, size_t shown, struct husk_error *err)
{
	json_t *detail = event->detail ? json_loads(event->detail, JSON_DECODE_ANY, NULL) : NULL;
	cleanup_json json_t *object =
		json_pack("{s:I, s:o, s:o, s:o, s:o}", "sequence", (json_int_t)event->sequence, "at",
			  json_time(event->at_ms), "sandbox", json_text0(event->sandbox), "kind",
			  json_text0(event->kind), "detail", detail ? detail : json_text0(event->detail));

	if (!object)
		return husk_fail_memory(err);
	/* an element per line: a follower can read lines, and the whole is still one document */
	fputs(shown ? ",\n" : "\n", stdout);
	if (json_dumpf(object, stdout, JSON_COMPACT) < 0)
		return husk_fail_errno(err, "cannot write to standard output");
	return 0;
}

static void event_line(const struct husk_event *event)
{
	char at[25];

	time_format(event->at_ms, at);
	printf("%s  ", at);
	output_safe(stdout, event->sandbox ? event->sandbox : "-", false);
	fputs("  ", stdout);
	output_safe(stdout, event->kind, false);
	if (event->detail && !str_equal(event->detail, "{}")) {
		fputs("  ", stdout);
		output_safe(stdout, event->detail, false);
	}
	putchar('\n');
}

static int events_show(struct events_view *view, const struct husk_event *list, size_t count, struct husk_error *err)
{
	for (size_t i = 0; i < count; i++) {
		if (list[i].at_ms < view->oldest_ms)
			continue;
		if (!view->json)
			event_line(&list[i]);
		else if (event_json(&list[i], view->shown, err) < 0)
			return -1;
		view->shown++;
	}
	if (fflush(stdout) != 0)
		return husk_fail_errno(err, "cannot write to standard output");
	return 0;
}

/* Page after page; with --follow, beyond the last one until a signal. */
static int events_loop(struct cli *cli, const char *sandbox, const struct events_arguments *arguments,
		       struct events_view *view, struct husk_error *err)
{
	int64_t after = arguments->after;

	for (;;) {
		struct husk_event *list = NULL;
		size_t count = 0;
		int wait = arguments->follow ? EVENTS_WAIT_MS : 0;
		if (husk_events(cli->husk, sandbox, after, EVENTS_PAGE, wait, &list, &count, err) < 0)
			return arguments->follow && interrupt_seen() ? 0
								     : -1; /* the interrupt ends a call to a server */
		int status = events_show(view, list, count, err);
		if (count)
			after = list[count - 1].sequence;
		husk_event_list_free(list, count);
		if (status < 0)
			return -1;
		if (arguments->follow ? interrupt_seen() : count < EVENTS_PAGE)
			return 0;
	}
}

static int events_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	const struct events_arguments *arguments = data;
	struct events_view view = { .json = cli->json };

	if (arguments->since_seconds)
		view.oldest_ms = time_wall_ms() - arguments->since_seconds * 1000;
	if (arguments->follow && interrupt_hold(err) < 0)
		return -1;
	if (cli->json)
		putchar('[');
	int status = events_loop(cli, argc ? argv[0] : NULL, arguments, &view, err);
	if (cli->json)
		puts(view.shown ? "\n]" : "]");
	return status;
}

const struct cli_command cli_events = {
	.name = "events",
	.operands = "[SANDBOX]",
	.summary = "Show events, oldest first",
	.groups = { { events_options, 0 } },
	.arguments_size = sizeof(struct events_arguments),
	.max = 1,
	.run = events_run,
};
