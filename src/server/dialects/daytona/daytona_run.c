/*
 * Runs programs in a sandbox for requests of Daytona's toolbox, to their end, and collects their output. Called by the
 * files for commands, files and git. When a client disconnects, the wait ends but the program continues. Command lines,
 * input and environments are never logged.
 */
#include "server/api_process.h"
#include "server/dialects/daytona/daytona.h"
#include "server/follow.h"

#define OUTPUT_MAX (32u << 20)

void daytona_output_free(struct daytona_output *output)
{
	buf_free(&output->out);
	buf_free(&output->err);
}

static int keep(struct buf *to, const struct husk_process_event *event, struct husk_error *err)
{
	size_t room = to->size < OUTPUT_MAX ? OUTPUT_MAX - to->size : 0;

	return buf_append(to, event->data, MIN(event->size, room)) < 0 ? husk_fail_memory(err) : 0;
}

static int collect(struct follow *follow, struct daytona_output *output, struct husk_error *err)
{
	struct husk_process_event event = { 0 };

	for (;;) {
		int got = follow_next(follow, SSE_PING_MS, &event, err);
		if (got < 0)
			return -1;
		if (got > 0 && event.kind == HUSK_EXIT)
			break;
		if (got > 0 && keep(event.kind == HUSK_STDERR ? &output->err : &output->out, &event, err) < 0)
			return -1;
	}
	output->exit_code = event.exit_code;
	output->timed_out = event.timed_out;
	/* An empty answer is text too. */
	return buf_append(&output->out, "", 0) < 0 || buf_append(&output->err, "", 0) < 0 ? husk_fail_memory(err) : 0;
}

int daytona_exec_failed(struct request *request, const char *cwd, struct husk_error *err)
{
	if (err->code != HUSK_NOT_FOUND && err->code != HUSK_INVALID)
		return -1;
	request->fault = (struct fault){ 400, "BAD_REQUEST" };
	if (err->code == HUSK_NOT_FOUND && cwd)
		return husk_fail(err, HUSK_INVALID, "cannot start a process: the directory '%.400s' does not exist",
				 cwd);
	return -1;
}

struct husk_pair *daytona_environment(const struct daytona_box *box, const struct husk_pair *more, size_t more_count,
				      size_t *count)
{
	struct husk_pair *pairs = calloc(box->pair_count + more_count + 1, sizeof(*pairs));
	size_t at = 0;

	for (size_t i = 0; pairs && i < box->pair_count; i++) {
		bool again = false;
		for (size_t n = 0; n < more_count; n++)
			again |= str_equal(more[n].key, box->pairs[i].key);
		if (!again)
			pairs[at++] = box->pairs[i];
	}
	for (size_t i = 0; pairs && i < more_count; i++)
		pairs[at++] = more[i];
	*count = at;
	return pairs;
}

int daytona_run(struct request *request, const struct daytona_box *box, const struct daytona_command *command,
		struct daytona_output *output, struct husk_error *err)
{
	cleanup_process struct husk_process *process = NULL;
	size_t count = 0;
	cleanup_free struct husk_pair *pairs =
		daytona_environment(box, command->environment, command->environment_count, &count);
	struct husk_exec_options options = { .argv = command->argv,
					     .user = command->user ? command->user : box->user,
					     .cwd = command->cwd ? command->cwd : box->home,
					     .environment = pairs,
					     .environment_count = count,
					     .timeout_ms = command->timeout_ms,
					     .label = command->label,
					     .keep_stdin = command->input != NULL };
	struct follow follow = { .request = request,
				 .input = command->input,
				 .input_size = command->input_size,
				 .close_input = command->input != NULL };

	if (!pairs)
		return husk_fail_memory(err);
	if (husk_exec(request_husk(request), box->sandbox->id, &options, &process, &follow.pid, err) < 0)
		return daytona_exec_failed(request, options.cwd, err);
	follow.process = process;
	return collect(&follow, output, err);
}

const char *daytona_complaint(struct daytona_output *output)
{
	char *text = output->err.size ? output->err.data : output->out.data;

	if (!text || !*text)
		return "it failed";
	text[strcspn(text, "\n")] = '\0';
	return text;
}
