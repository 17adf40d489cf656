/*
 * Daytona's screen recordings: MP4 files in the home of the sandbox's user, made by ffmpeg in the sandbox, as Daytona
 * does. Their names hold all details: <id>_<start in ms>_<label>.mp4; a recording runs while its ffmpeg does, a process
 * of the agent with the label daytona-recording:<id>. So nothing is lost with the server, and forks and hibernation
 * include recordings. The files are fragmented MP4: if ffmpeg was killed, the written part can be played. Husk's own
 * recordings (docs/desktop-view.md), which the guest cannot edit, are separate.
 */
#include <signal.h>

#include "server/api_process.h"
#include "server/dialects/daytona/daytona_computer.h"
#include "server/dialects/daytona/daytona_files.h"

#define LABEL "daytona-recording:"
#define FOLDER ".daytona/recordings"
#define LABEL_MAX 60
#define LOOK_MS 50
#define STOP_MS 15000 /* ffmpeg writes its last fragment */
#define BEGIN_MS 20000

/* $1: the file. Frames that are late are dropped, so that a busy sandbox is not made busier. */
static const char record_script[] =
	"command -v ffmpeg >/dev/null || { echo ffmpeg is missing >&2; exit 127; }; mkdir -p \"${1%/*}\" || exit 1;"
	" exec ffmpeg -nostdin -loglevel error -f x11grab -framerate 10 -draw_mouse 1 -i :0 -vf "
	"'pad=ceil(iw/2)*2:ceil(ih/2)*2' -c:v libx264 -preset ultrafast -threads 1 -pix_fmt yuv420p -g 20"
	" -movflags +frag_keyframe+empty_moov+default_base_moof -f mp4 \"$1\"";

struct recording {
	char id[24];
	char *path;
	int64_t started_ms, ended_ms;
	uint64_t size;
	int64_t pid; /* 0: it has ended */
};

static void recording_free(struct recording *recording)
{
	free(recording->path);
	recording->path = NULL;
}
#define cleanup_recording cleanup(recording_free)

/* ---- finding them ---- */

/* "rec-….ID_1234567890123_label.mp4": false if the name is not one of ours. */
static bool read_name(const char *path, struct recording *out)
{
	const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
	size_t id = strcspn(name, "_"), size = strlen(name);
	char *end = NULL;

	if (!str_starts(name, "rec-") || id >= sizeof(out->id) || name[id] != '_' || size < 5 ||
	    !str_equal(name + size - 4, ".mp4"))
		return false;
	out->started_ms = strtoll(name + id + 1, &end, 10);
	if (end == name + id + 1 || (*end != '_' && *end != '.') || out->started_ms < 0)
		return false;
	snprintf(out->id, sizeof(out->id), "%.*s", (int)id, name);
	return true;
}

static int64_t running_pid(const struct husk_process_info *list, size_t count, const char *id)
{
	for (size_t i = 0; i < count; i++)
		if (list[i].running && list[i].label && str_starts(list[i].label, LABEL) &&
		    str_equal(list[i].label + strlen(LABEL), id))
			return list[i].pid;
	return 0;
}

typedef int (*each_recording)(void *data, const struct recording *recording, struct husk_error *err);

static int visit(struct request *request, const struct daytona_box *box, const char *folder, each_recording each,
		 void *data, struct husk_error *err)
{
	struct husk_process_info *processes = NULL;
	struct husk_file *files = NULL;
	size_t process_count = 0, count = 0;
	struct husk_error why = { 0 };

	if (husk_file_list(request_husk(request), box->sandbox->id, folder, 1, &files, &count, &why) < 0)
		return why.code == HUSK_NOT_FOUND ? 0 : husk_fail(err, why.code, "%s", why.message);
	int result = husk_process_list(request_husk(request), box->sandbox->id, &processes, &process_count, err);
	for (size_t i = 0; result == 0 && i < count; i++) {
		struct recording found = { .path = files[i].path,
					   .ended_ms = files[i].mtime_ms,
					   .size = files[i].size };
		if (files[i].type != HUSK_FILE || !read_name(files[i].path, &found))
			continue;
		found.pid = running_pid(processes, process_count, found.id);
		result = each(data, &found, err);
	}
	husk_file_list_free(files, count);
	husk_process_list_free(processes, process_count);
	return result;
}

struct search {
	const char *id;
	struct recording *out;
};

static int take_match(void *data, const struct recording *recording, struct husk_error *err)
{
	struct search *search = data;

	if (search->out->path || !str_equal(recording->id, search->id))
		return 0;
	*search->out = *recording;
	search->out->path = strdup(recording->path);
	return search->out->path ? 0 : husk_fail_memory(err);
}

static char *folder_of(const struct daytona_box *box)
{
	return str_format("%s/" FOLDER, str_equal(box->home, "/") ? "" : box->home);
}

static int find(struct request *request, const struct daytona_box *box, const char *id, struct recording *out,
		struct husk_error *err)
{
	cleanup_free char *folder = folder_of(box);
	struct search search = { id, out };

	recording_free(out);
	if (!folder)
		return husk_fail_memory(err);
	if (visit(request, box, folder, take_match, &search, err) < 0)
		return -1;
	return out->path ? 0 : daytona_fail(request, 404, "NOT_FOUND", "recording not found: %.40s", id);
}

/* ---- documents ---- */

static json_t *recording_document(const struct recording *recording)
{
	bool running = recording->pid > 0;
	int64_t end = running ? time_wall_ms() : MAX(recording->ended_ms, recording->started_ms);
	const char *slash = strrchr(recording->path, '/');

	return json_pack("{s:s, s:o, s:o, s:o, s:o*, s:s, s:f, s:I}", "id", recording->id, "fileName",
			 json_text0(slash ? slash + 1 : recording->path), "filePath", json_text0(recording->path),
			 "startTime", json_time(recording->started_ms), "endTime", running ? NULL : json_time(end),
			 "status", running ? "recording" : "completed", "durationSeconds",
			 (double)(end - recording->started_ms) / 1000.0, "sizeBytes", (json_int_t)recording->size);
}

static int add_document(void *data, const struct recording *recording, struct husk_error *err)
{
	return json_array_append_new(data, recording_document(recording)) < 0 ? husk_fail_memory(err) : 0;
}

static int handle_list(struct request *request, struct husk_error *err)
{
	cleanup_json json_t *list = json_array();
	cleanup_box struct daytona_box box = { 0 };

	if (daytona_enter(request, &box, err) < 0)
		return -1;
	cleanup_free char *folder = folder_of(&box);
	if (!folder || !list)
		return husk_fail_memory(err);
	if (visit(request, &box, folder, add_document, list, err) < 0)
		return -1;
	return respond_json(request, 200, json_pack("{s:O}", "recordings", list), err);
}

static int handle_get(struct request *request, struct husk_error *err)
{
	cleanup_recording struct recording recording = { 0 };
	cleanup_box struct daytona_box box = { 0 };

	if (daytona_enter(request, &box, err) < 0 ||
	    find(request, &box, request_path(request, "recording"), &recording, err) < 0)
		return -1;
	return respond_json(request, 200, recording_document(&recording), err);
}

/* ---- start ---- */

/* As part of a file's name. */
static bool label_fits(const char *label)
{
	return strlen(label) <= LABEL_MAX &&
	       !label[strspn(label, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-. ")] &&
	       label[0] != '.';
}

/* Waits for its first bytes, so that a recording that cannot begin is an error and not an empty file. */
static int await_begin(struct request *request, const struct daytona_box *box, const char *id, int64_t pid,
		       struct recording *out, struct husk_error *err)
{
	int64_t deadline = time_monotonic_ms() + BEGIN_MS;
	struct husk_process_info info = { .running = true };
	struct husk_error why = { 0 };

	while (info.running && time_monotonic_ms() < deadline) {
		if (find(request, box, id, out, &why) == 0 && out->size > 0 && out->pid)
			return 0;
		request->fault = (struct fault){ 0 };
		if (request_wait(request, -1, LOOK_MS) < 0)
			return husk_fail(err, HUSK_GONE, "the client disconnected");
		if (process_find(request, pid, &info, err) < 0)
			return -1;
	}
	husk_process_kill(request_husk(request), box->sandbox->id, pid, SIGKILL, NULL);
	if (!info.running && info.exit_code == 127)
		return daytona_fail(
			request, 400, "BAD_REQUEST",
			"FFmpeg must be installed and available in PATH to use screen recording; the snapshot "
			"'desktop' has it");
	return daytona_fail(request, 400, "BAD_REQUEST", "ffmpeg records nothing of the display :0 (exit code %d)",
			    info.exit_code);
}

static int record(struct request *request, const struct daytona_box *box, const char *id, const char *path,
		  int64_t *pid, struct husk_error *err)
{
	const char *argv[] = { "/bin/sh", "-c", record_script, "sh", path, NULL };
	cleanup_free char *label = str_format(LABEL "%s", id);
	struct husk_exec_options options = {
		.argv = argv, .user = box->user, .cwd = box->home, .label = label, .detach = true
	};

	if (!label)
		return husk_fail_memory(err);
	return husk_exec(request_husk(request), box->sandbox->id, &options, NULL, pid, err);
}

static int handle_start(struct request *request, struct husk_error *err)
{
	cleanup_recording struct recording recording = { 0 };
	cleanup_box struct daytona_box box = { 0 };
	struct fields fields;
	char id[24];
	int64_t pid = 0;

	if (fields_begin(&fields, request_read_json(request, err)) < 0)
		return -1;
	const char *label = fields_string(&fields, "label");
	if (fields_done_open(&fields, err) < 0 || daytona_computer_enter(request, &box, err) < 0)
		return -1;
	if (label && !label_fits(label))
		return daytona_fail(request, 400, "BAD_REQUEST",
				    "invalid label: at most %d letters, digits, spaces, '-' and '.'", LABEL_MAX);
	if (random_id("rec-", 12, id) < 0)
		return husk_fail_errno(err, "no random bytes for a recording's id");
	cleanup_free char *folder = folder_of(&box);
	cleanup_free char *path = str_format("%s/%s_%lld%s%s.mp4", folder, id, (long long)time_wall_ms(),
					     label && *label ? "_" : "", label ? label : "");
	if (!folder || !path)
		return husk_fail_memory(err);
	if (record(request, &box, id, path, &pid, err) < 0 || await_begin(request, &box, id, pid, &recording, err) < 0)
		return -1;
	return respond_json(request, 201, recording_document(&recording), err);
}

/* ---- stop, remove, download ---- */

/* ffmpeg completes the file at SIGINT; one that does not end is killed. */
static int end(struct request *request, const struct daytona_box *box, struct recording *recording,
	       struct husk_error *err)
{
	int64_t deadline = time_monotonic_ms() + STOP_MS;
	int signal = SIGINT;

	while (recording->pid) {
		if (signal &&
		    husk_process_kill(request_husk(request), box->sandbox->id, recording->pid, signal, err) < 0 &&
		    err->code != HUSK_NOT_FOUND)
			return -1;
		signal = 0;
		if (time_monotonic_ms() > deadline) {
			signal = SIGKILL;
			deadline += STOP_MS;
		}
		if (request_wait(request, -1, LOOK_MS) < 0)
			return husk_fail(err, HUSK_GONE, "the client disconnected");
		char id[sizeof(recording->id)];
		memcpy(id, recording->id, sizeof(id));
		if (find(request, box, id, recording, err) < 0)
			return -1;
	}
	return 0;
}

static int handle_stop(struct request *request, struct husk_error *err)
{
	cleanup_recording struct recording recording = { 0 };
	cleanup_box struct daytona_box box = { 0 };
	struct fields fields;

	if (fields_begin(&fields, request_read_json(request, err)) < 0)
		return -1;
	const char *id = fields_string(&fields, "id");
	if (fields_done_open(&fields, err) < 0 || daytona_enter(request, &box, err) < 0)
		return -1;
	if (!id || !*id)
		return husk_fail_field(err, "id", "id is required");
	if (find(request, &box, id, &recording, err) < 0 || end(request, &box, &recording, err) < 0)
		return -1;
	return respond_json(request, 200, recording_document(&recording), err);
}

static int handle_remove(struct request *request, struct husk_error *err)
{
	cleanup_recording struct recording recording = { 0 };
	cleanup_box struct daytona_box box = { 0 };

	if (daytona_enter(request, &box, err) < 0 ||
	    find(request, &box, request_path(request, "recording"), &recording, err) < 0)
		return -1;
	if (recording.pid)
		return daytona_fail(request, 400, "BAD_REQUEST", "recording %s is still in progress; stop it first",
				    recording.id);
	if (husk_file_remove(request_husk(request), box.sandbox->id, recording.path, err) < 0)
		return daytona_file_error(request, recording.path, err);
	return respond_empty(request, 204, err);
}

static int handle_download(struct request *request, struct husk_error *err)
{
	cleanup_recording struct recording recording = { 0 };
	cleanup_box struct daytona_box box = { 0 };

	if (daytona_enter(request, &box, err) < 0 ||
	    find(request, &box, request_path(request, "recording"), &recording, err) < 0 ||
	    daytona_may(request, &box, recording.path, "r", err) < 0)
		return -1;
	return files_send(request, recording.path, err) < 0 ? daytona_file_error(request, recording.path, err) : 0;
}

#define RECORDINGS DAYTONA_TOOLBOX "/computeruse/recordings"

const struct route daytona_recording_routes[] = {
	{ "GET", RECORDINGS, handle_list, 0 },
	{ "POST", RECORDINGS "/start", handle_start, ROUTE_STREAM },
	{ "POST", RECORDINGS "/stop", handle_stop, ROUTE_STREAM },
	{ "GET", RECORDINGS "/{recording}", handle_get, 0 },
	{ "DELETE", RECORDINGS "/{recording}", handle_remove, 0 },
	{ "GET", RECORDINGS "/{recording}/download", handle_download, ROUTE_STREAM },
	{ 0 },
};
