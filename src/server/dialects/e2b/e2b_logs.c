/*
 * The log of a sandbox for E2B's clients (`e2b sandbox logs`): the lines that Husk's own processes wrote about it, with
 * time and level, in both versions of the route; also after the sandbox has ended. Lines of the guest's console are not
 * included, because they have no time.
 */
#include "server/dialects/e2b/e2b.h"

#define LINES_MAX 1000

struct log_line {
	const char *time, *level, *logger, *message;
};

/* Splits "TIME LEVEL LOGGER words: MESSAGE" in place. */
static bool parse(char *text, struct log_line *out)
{
	char *level = strchr(text, ' '), *logger = level ? strchr(level + 1, ' ') : NULL;
	char *rest = logger ? strchr(logger + 1, ' ') : NULL, *message = rest ? strstr(rest, ": ") : NULL;

	if (!message)
		return false;
	*level = *logger = *rest = '\0';
	*out = (struct log_line){ text, level + 1, logger + 1, message + 2 };
	return true;
}

static json_t *line_document(const struct log_line *line)
{
	cleanup_json json_t *inner = json_pack("{s:s, s:s, s:o}", "level", line->level, "logger", line->logger,
					       "message", json_text0(line->message));
	cleanup_free char *text = inner ? json_dumps(inner, JSON_COMPACT) : NULL;

	return text ? json_pack("{s:s, s:s}", "timestamp", line->time, "line", text) : NULL;
}

static json_t *entry_document(const struct log_line *line)
{
	return json_pack("{s:s, s:s, s:o, s:{s:s}}", "timestamp", line->time, "level", line->level, "message",
			 json_text0(line->message), "fields", "logger", line->logger);
}

/* The lines from `start` (milliseconds) on; at most `limit`, the first ones. */
static int collect(char *text, int64_t start, int64_t limit, json_t *lines, json_t *entries, struct husk_error *err)
{
	char *save = NULL;

	for (char *at = strtok_r(text, "\n", &save); at && (int64_t)json_array_size(entries) < limit;
	     at = strtok_r(NULL, "\n", &save)) {
		struct log_line line;
		int64_t time_ms;
		if (!parse(at, &line) || e2b_time(line.time, &time_ms) < 0 || time_ms < start)
			continue;
		if (json_array_append_new(lines, line_document(&line)) < 0 ||
		    json_array_append_new(entries, entry_document(&line)) < 0)
			return husk_fail_memory(err);
	}
	return 0;
}

static int read_lines(struct request *request, const char *from, json_t *lines, json_t *entries, struct husk_error *err)
{
	cleanup_free char *text = NULL;
	int64_t start, limit;

	if (request_query_int(request, from, 0, 0, INT64_MAX / 1000, &start, err) < 0 ||
	    request_query_int(request, "limit", LINES_MAX, 0, LINES_MAX, &limit, err) < 0 ||
	    husk_logs(request_husk(request), request_path(request, "id"), HUSK_LOG_SUPERVISOR, NULL, &text, err) < 0)
		return -1;
	return text ? collect(text, start, limit ? limit : LINES_MAX, lines, entries, err) : 0;
}

static int handle_logs(struct request *request, struct husk_error *err)
{
	cleanup_json json_t *lines = json_array(), *entries = json_array();

	if (read_lines(request, "start", lines, entries, err) < 0)
		return -1;
	return respond_json(request, 200, json_pack("{s:O, s:O}", "logs", lines, "logEntries", entries), err);
}

static int handle_entries(struct request *request, struct husk_error *err)
{
	cleanup_json json_t *lines = json_array(), *entries = json_array();

	if (read_lines(request, "cursor", lines, entries, err) < 0)
		return -1;
	return respond_json(request, 200, json_pack("{s:O}", "logs", entries), err);
}

const struct route e2b_log_routes[] = {
	{ "GET", "/sandboxes/{id}/logs", handle_logs, E2B_CONTROL },
	{ "GET", "/v2/sandboxes/{id}/logs", handle_entries, E2B_CONTROL },
	{ 0 },
};
