/*
 * `husk desktop SANDBOX view|record|recordings|control|profile`: a link to the live view, recordings of the screen, and who is in control.
 * Names of people come from other callers: they are printed safely.
 *
 *     husk desktop box view control          a link that permits to take control
 *     husk desktop box record 60             records for a minute, or until Ctrl-C
 *     husk desktop box recordings export rec-… -o film.mp4
 */
#include "cli/cmd_desktop_view.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>

#include "base/thread.h"
#include "cli/interrupt.h"
#include "cli/save.h"

#define WAKE_MS 200

/* ---- view ---- */

static int run_view(struct cli *cli, const char *sandbox, char **words, int count, struct husk_error *err)
{
	cleanup_free char *url = NULL;

	if (count > 1 || (count == 1 && !str_equal(words[0], "control")))
		return husk_fail(err, HUSK_INVALID, "usage: husk desktop SANDBOX view [control]");
	if (husk_desktop_link(cli->husk, sandbox, count == 0, 0, &url, err) < 0)
		return -1;
	if (cli->json)
		return output_json(json_pack("{s:s, s:b}", "url", url, "view_only", count == 0), err);
	printf("%s\n", url);
	return 0;
}

/* ---- record ---- */

struct work {
	struct husk_recorder *recorder;
	struct husk_error err;
	int result;
	_Atomic bool done;
};

static void *work_main(void *data)
{
	struct work *work = data;

	work->result = husk_recorder_run(work->recorder, &work->err);
	work->done = true;
	return NULL;
}

/* Waits for the recorder; the first signal stops it. */
static int work_wait(struct cli *cli, const char *sandbox, struct work *work, struct husk_error *err)
{
	bool stopped = false;

	while (!work->done) {
		struct pollfd wait = { .fd = interrupt_fd(), .events = POLLIN };
		poll(&wait, 1, WAKE_MS);
		int signal = interrupt_take();
		if (!signal || signal == SIGWINCH || stopped)
			continue;
		stopped = true;
		if (husk_recording_stop(cli->husk, sandbox, husk_recorder_id(work->recorder), NULL, err) < 0 &&
		    !work->done)
			return -1;
	}
	return 0;
}

static json_t *recording_document(const struct husk_recording *recording)
{
	static const char *const states[] = { "recording", "complete", "cut" };

	return json_pack("{s:s, s:s, s:o, s:o, s:f, s:I}", "id", recording->id, "state", states[recording->state],
			 "reason", json_text0(recording->reason), "started_at", json_time(recording->started_ms),
			 "duration_seconds", (double)recording->duration_ms / 1000.0, "bytes",
			 (json_int_t)recording->bytes);
}

static void list_cleanup(struct husk_recording ***list)
{
	husk_recording_list_free(*list);
}

/* `id` NULL: all of them. */
static int print_recordings(struct cli *cli, const char *sandbox, const char *id, struct husk_error *err)
{
	cleanup(list_cleanup) struct husk_recording **list = NULL;
	cleanup_json json_t *array = json_array();

	if (husk_recording_list(cli->husk, sandbox, &list, err) < 0)
		return -1;
	for (size_t i = 0; list[i]; i++) {
		if (id && !str_equal(list[i]->id, id))
			continue;
		cleanup_json json_t *document = recording_document(list[i]);
		if (cli->json && id)
			return output_json(steal_pointer(document), err);
		if (!document || json_array_append(array, document) < 0)
			return husk_fail_memory(err);
		if (!cli->json)
			printf("%s  %s  %.1f s  %llu bytes\n", list[i]->id,
			       json_string_value(json_object_get(document, "state")),
			       (double)list[i]->duration_ms / 1000.0, (unsigned long long)list[i]->bytes);
	}
	return cli->json ? output_json(json_pack("{s:O}", "recordings", array), err) : 0;
}

static int run_record(struct cli *cli, const char *sandbox, char **words, int count, struct husk_error *err)
{
	struct husk_record_options options = { 0 };
	struct work work = { 0 };
	pthread_t thread;

	if (count > 1 || (count == 1 && str_to_int64(words[0], 1, 86400, &options.max_seconds) < 0))
		return husk_fail(err, HUSK_INVALID, "usage: husk desktop SANDBOX record [SECONDS], of 1 to 86400");
	if (interrupt_forward(true, err) < 0 ||
	    husk_recorder_open(cli->husk, sandbox, &options, &work.recorder, err) < 0)
		return -1;
	if (!cli->json)
		output_note("recording %s until Ctrl-C", husk_recorder_id(work.recorder));
	int result = thread_quiet(&thread, 0, work_main, &work) == 0
			     ? 0
			     : husk_fail(err, HUSK_UNAVAILABLE, "no thread left for the recording");
	if (result == 0) {
		result = work_wait(cli, sandbox, &work, err);
		pthread_join(thread, NULL);
	}
	cleanup_free char *id = strdup(husk_recorder_id(work.recorder));
	husk_recorder_free(work.recorder);
	if (result < 0)
		return -1;
	if (work.result < 0)
		return husk_fail(err, work.err.code, "%s", work.err.message);
	return id ? print_recordings(cli, sandbox, id, err) : husk_fail_memory(err);
}

/* ---- recordings ---- */

struct outgoing {
	struct cli *cli;
	const char *sandbox, *id, *format;
};

static int export_from(void *data, husk_sink sink, void *sink_data, struct husk_error *err)
{
	const struct outgoing *outgoing = data;

	return husk_recording_export(outgoing->cli->husk, outgoing->sandbox, outgoing->id, outgoing->format, sink,
				     sink_data, err);
}

static int run_export(struct cli *cli, const struct desktop_view *view, struct husk_error *err)
{
	const char *dot = view->output ? strrchr(view->output, '.') : NULL;
	struct outgoing outgoing = { cli, view->sandbox, view->words[1], view->format };
	char size[32];
	uint64_t bytes = 0;

	if (!view->output)
		return husk_fail(err, HUSK_INVALID,
				 "desktop recordings export: give a file, as in -o film.mp4 (or .webm, .json)");
	if (!outgoing.format)
		outgoing.format = dot ? dot + 1 : "";
	if (save_file(view->output, export_from, &outgoing, &bytes, err) < 0)
		return -1;
	output_size(bytes, size, sizeof(size));
	output_note("exported %s: %s", outgoing.id, size);
	return 0;
}

static int run_recordings(struct cli *cli, const struct desktop_view *view, struct husk_error *err)
{
	if (view->count == 0)
		return print_recordings(cli, view->sandbox, NULL, err);
	if (view->count == 2 && str_equal(view->words[0], "export"))
		return run_export(cli, view, err);
	if (view->count == 2 && str_equal(view->words[0], "rm"))
		return husk_recording_remove(cli->husk, view->sandbox, view->words[1], err);
	return husk_fail(err, HUSK_INVALID,
			 "usage: husk desktop SANDBOX recordings [export ID -o FILE [--format mp4|webm|json] | rm ID]");
}

/* ---- the browser's profile ---- */

static int profile_from(void *data, husk_sink sink, void *sink_data, struct husk_error *err)
{
	const struct outgoing *outgoing = data;

	return husk_profile_save(outgoing->cli->husk, outgoing->sandbox, sink, sink_data, err);
}

static ssize_t read_file(void *data, void *bytes, size_t size)
{
	return read_full(*(int *)data, bytes, size);
}

static int run_profile(struct cli *cli, const struct desktop_view *view, struct husk_error *err)
{
	struct outgoing outgoing = { .cli = cli, .sandbox = view->sandbox };
	uint64_t bytes = 0;

	if (view->count == 2 && str_equal(view->words[0], "save"))
		return save_file(view->words[1], profile_from, &outgoing, &bytes, err);
	if (view->count != 2 || !str_equal(view->words[0], "load"))
		return husk_fail(err, HUSK_INVALID, "usage: husk desktop SANDBOX profile save|load FILE|-");
	const char *path = str_equal(view->words[1], "-") ? "/dev/stdin" : view->words[1];
	cleanup_close int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return husk_fail_errno(err, "cannot read '%s'", view->words[1]);
	return husk_profile_load(cli->husk, view->sandbox, read_file, &fd, err);
}

/* ---- control ---- */

static int run_control(struct cli *cli, const char *sandbox, char **words, int count, struct husk_error *err)
{
	struct husk_control *control = NULL;

	if (count > 1 || (count == 1 && !str_equal(words[0], "release")))
		return husk_fail(err, HUSK_INVALID, "usage: husk desktop SANDBOX control [release]");
	if (count == 1 && husk_control_release(cli->husk, sandbox, NULL, err) < 0)
		return -1;
	if (husk_control_get(cli->husk, sandbox, &control, err) < 0)
		return -1;
	int result = 0;
	if (cli->json) {
		result = output_json(json_pack("{s:b, s:o, s:o}", "held", control->name != NULL, "name",
					       json_text0(control->name), "expires_at", json_time(control->expires_ms)),
				     err);
	} else {
		output_safe(stdout, control->name ? control->name : "nobody", false);
		printf(" is in control\n");
	}
	husk_control_free(control);
	return result;
}

/* ---- */

bool desktop_view_has(const char *verb)
{
	static const char *const verbs[] = { "view", "record", "recordings", "control", "profile" };

	for (size_t i = 0; i < ARRAY_SIZE(verbs); i++)
		if (str_equal(verb, verbs[i]))
			return true;
	return false;
}

int desktop_view_run(struct cli *cli, const struct desktop_view *view, struct husk_error *err)
{
	if (str_equal(view->verb, "view"))
		return run_view(cli, view->sandbox, view->words, view->count, err);
	if (str_equal(view->verb, "record"))
		return run_record(cli, view->sandbox, view->words, view->count, err);
	if (str_equal(view->verb, "control"))
		return run_control(cli, view->sandbox, view->words, view->count, err);
	if (str_equal(view->verb, "profile"))
		return run_profile(cli, view, err);
	return run_recordings(cli, view, err);
}
