/*
 * Daytona's sessions: shells that stay, run one command after the other, and have input and logs (daytona_sessions.h has
 * the layout of their files). A command is a file that the shell reads with ".", so that directories, variables and
 * functions stay for the next one. The shell reports the end of a command on its own stdout, to which nothing else writes.
 * Commands and their input are never logged.
 */
#include "server/dialects/daytona/daytona_sessions.h"

#include <signal.h>

#include "server/api_process.h"
#include "server/follow.h"

#define FILE_BYTES (32u << 20) /* of a stream in an answer */
#define COMMANDS_MAX 10000u
#define START_MS 30000

/* $1: the directory. stdin has names of commands. */
static const char shell_script[] =
	"[ ! -r /etc/profile.d/daytona.sh ] || . /etc/profile.d/daytona.sh\n"
	"mkdir -p \"$1\" || exit 1\n"
	"s='__d=$1; set --; while IFS= read -r __c; do"
	" . \"$__d/$__c/command\" >>\"$__d/$__c/stdout\" 2>>\"$__d/$__c/stderr\" <>\"$__d/$__c/input\";"
	" __e=$?; echo $__e >\"$__d/$__c/code.new\"; mv \"$__d/$__c/code.new\" \"$__d/$__c/code\";"
	" echo \"$__c $__e\"; done'\n"
	"echo ready\n"
	"command -v bash >/dev/null && exec bash -c \"$s\" bash \"$1\"\n"
	"exec sh -c \"$s\" sh \"$1\"\n";

void daytona_session_free(struct daytona_session *session)
{
	daytona_box_free(&session->box);
	free(session->directory);
}

/* ---- which ---- */

static bool good_id(const char *id)
{
	if (!*id || strlen(id) > SESSION_MAX || str_equal(id, ".") || str_equal(id, ".."))
		return false;
	for (; *id; id++)
		if ((unsigned char)*id < 0x20 || *id == '/' || *id == 0x7f)
			return false;
	return true;
}

static int look(struct request *request, struct daytona_session *session, const char *id, struct husk_error *err)
{
	struct husk_process_info *list = NULL;
	size_t count = 0;

	if (husk_process_list(request_husk(request), session->box.sandbox->id, &list, &count, err) < 0)
		return -1;
	for (size_t i = 0; i < count; i++) {
		if (!list[i].label || !str_starts(list[i].label, SESSION_LABEL) ||
		    !str_equal(list[i].label + strlen(SESSION_LABEL), id) || (session->running && !list[i].running))
			continue;
		session->pid = list[i].pid;
		session->running = list[i].running;
	}
	husk_process_list_free(list, count);
	return 0;
}

/* Also fills it if there is none: then pid is 0. */
static int find_or_not(struct request *request, const char *id, struct daytona_session *session, struct husk_error *err)
{
	if (daytona_enter(request, &session->box, err) < 0)
		return -1;
	if (!good_id(id))
		return husk_fail_field(err, "sessionId", "a session's id has 1 to %d characters, none of them '/'",
				       SESSION_MAX);
	session->directory = str_format("%s/.daytona/sessions/%s", session->box.home, id);
	return session->directory ? look(request, session, id, err) : husk_fail_memory(err);
}

int daytona_session_find(struct request *request, struct daytona_session *session, struct husk_error *err)
{
	struct husk_file file = { 0 };
	const char *id = request_path(request, "session");

	if (find_or_not(request, id, session, err) < 0)
		return -1;
	/* A deleted session may still be in the list of processes, but its directory is gone. */
	bool there = session->pid && husk_file_stat(request_husk(request), session->box.sandbox->id, session->directory,
						    false, &file, NULL) == 0;
	if (there)
		husk_file_free(&file);
	return there ? 0 : husk_fail(err, HUSK_NOT_FOUND, "session not found: %.128s", id);
}

/* ---- files of a command ---- */

static int keep(void *data, const void *bytes, size_t size)
{
	struct buf *text = data;
	size_t room = text->size < FILE_BYTES ? FILE_BYTES - text->size : 0;

	return buf_append(text, bytes, MIN(size, room)) < 0 || size > room ? -1 : 0;
}

int daytona_session_read_from(struct request *request, const struct daytona_session *session, const char *command,
			      const char *name, uint64_t offset, struct buf *out, struct husk_error *err)
{
	cleanup_free char *path = str_format("%s/%s/%s", session->directory, command, name);

	if (!path)
		return husk_fail_memory(err);
	return husk_file_read(request_husk(request), session->box.sandbox->id, path, offset, FILE_BYTES, keep, out,
			      err);
}

int daytona_session_read(struct request *request, const struct daytona_session *session, const char *command,
			 const char *name, struct buf *out, bool *there, struct husk_error *err)
{
	struct husk_error why = { 0 };
	int result = daytona_session_read_from(request, session, command, name, 0, out, &why);

	*there = result == 0;
	if (result < 0 && why.code != HUSK_NOT_FOUND)
		return husk_fail(err, why.code, "%s", why.message);
	return buf_append(out, "", 0) < 0 ? husk_fail_memory(err) : 0;
}

int daytona_session_command(struct request *request, const struct daytona_session *session, const char *command,
			    struct husk_error *err)
{
	cleanup_buf struct buf text = { 0 };
	bool there = false;

	if (good_id(command) && daytona_session_read(request, session, command, "command", &text, &there, err) < 0)
		return -1;
	return there ? 0 : husk_fail(err, HUSK_NOT_FOUND, "command not found: %.128s", command);
}

/* The original command: the part before the first newline is ours. */
static json_t *command_document(struct request *request, const struct daytona_session *session, const char *command,
				struct husk_error *err)
{
	cleanup_buf struct buf text = { 0 }, code = { 0 };
	bool there, over;

	if (daytona_session_read(request, session, command, "command", &text, &there, err) < 0 ||
	    daytona_session_read(request, session, command, "code", &code, &over, err) < 0)
		return NULL;
	size_t size = text.size && text.data[text.size - 1] == '\n' ? text.size - 1 : text.size;
	json_t *document = json_pack("{s:s, s:o}", "id", command, "command", json_text(text.data, size));
	if (document && over)
		json_object_set_new(document, "exitCode", json_integer(strtoll(code.data, NULL, 10)));
	return document;
}

/* ---- create, list, delete ---- */

static int start_shell(struct request *request, const struct daytona_session *session, const char *id,
		       struct husk_error *err)
{
	const char *argv[] = { "/bin/sh", "-c", shell_script, "sh", session->directory, NULL };
	cleanup_free char *label = str_format(SESSION_LABEL "%s", id);
	struct husk_exec_options options = { .argv = argv,
					     .user = session->box.user,
					     .cwd = session->box.home,
					     .environment = session->box.pairs,
					     .environment_count = session->box.pair_count,
					     .label = label,
					     .keep_stdin = true };
	cleanup_process struct husk_process *process = NULL;
	struct husk_process_event event = { 0 };
	struct follow follow = { .request = request };

	if (!label)
		return husk_fail_memory(err);
	if (husk_exec(request_husk(request), session->box.sandbox->id, &options, &process, &follow.pid, err) < 0)
		return daytona_exec_failed(request, options.cwd, err);
	follow.process = process;
	/* The shell prints "ready" when its directory exists. */
	int got = follow_next(&follow, START_MS, &event, err);
	if (got > 0 && event.kind == HUSK_STDOUT)
		return 0;
	return got < 0 ? -1 : husk_fail(err, HUSK_UNAVAILABLE, "the session's shell could not be started");
}

static int handle_create(struct request *request, struct husk_error *err)
{
	cleanup_session struct daytona_session session = { 0 };
	struct fields fields;

	if (fields_begin(&fields, request_read_json(request, err)) < 0)
		return -1;
	const char *id = fields_string(&fields, "sessionId");
	if (fields_done_open(&fields, err) < 0 || find_or_not(request, id ? id : "", &session, err) < 0)
		return -1;
	struct husk_file file = { 0 };
	if (session.running && husk_file_stat(request_husk(request), session.box.sandbox->id, session.directory, false,
					      &file, NULL) == 0) {
		husk_file_free(&file);
		return daytona_fail(request, 409, "CONFLICT", "session already exists");
	}
	if (start_shell(request, &session, id, err) < 0)
		return -1;
	return respond_empty(request, 201, err);
}

static json_t *commands_document(struct request *request, const struct daytona_session *session, struct husk_error *err)
{
	cleanup_json json_t *array = json_array();
	struct husk_file *list = NULL;
	size_t count = 0;

	if (husk_file_list(request_husk(request), session->box.sandbox->id, session->directory, 1, &list, &count, err) <
	    0)
		return NULL;
	int failed = array ? 0 : -1;
	for (size_t i = 0; i < count && failed == 0; i++) {
		const char *slash = strrchr(list[i].path, '/');
		if (list[i].type == HUSK_DIRECTORY && slash)
			failed = json_array_append_new(array, command_document(request, session, slash + 1, err));
	}
	husk_file_list_free(list, count);
	return failed ? NULL : steal_pointer(array);
}

static json_t *session_document(struct request *request, const struct daytona_session *session, const char *id,
				struct husk_error *err)
{
	json_t *commands = commands_document(request, session, err);

	return commands ? json_pack("{s:o, s:o}", "sessionId", json_text0(id), "commands", commands) : NULL;
}

static int handle_get(struct request *request, struct husk_error *err)
{
	cleanup_session struct daytona_session session = { 0 };

	if (daytona_session_find(request, &session, err) < 0)
		return -1;
	return respond_json(request, 200, session_document(request, &session, request_path(request, "session"), err),
			    err);
}

static int handle_list(struct request *request, struct husk_error *err)
{
	cleanup_json json_t *array = json_array();
	cleanup_session struct daytona_session session = { 0 };
	cleanup_free char *directory = NULL;
	struct husk_file *list = NULL;
	size_t count = 0;

	if (daytona_enter(request, &session.box, err) < 0)
		return -1;
	directory = str_format("%s/.daytona/sessions", session.box.home);
	if (!directory || !array)
		return husk_fail_memory(err);
	if (husk_file_list(request_husk(request), session.box.sandbox->id, directory, 1, &list, &count, err) < 0 &&
	    err->code != HUSK_NOT_FOUND)
		return -1;
	for (size_t i = 0; i < count; i++) {
		session.directory = list[i].path;
		json_t *document = session_document(request, &session, strrchr(list[i].path, '/') + 1, err);
		if (document)
			json_array_append_new(array, document);
	}
	session.directory = NULL;
	husk_file_list_free(list, count);
	return respond_json(request, 200, json_incref(array), err);
}

/* Ends the shell with all that it started, and then removes its files. */
static int handle_delete(struct request *request, struct husk_error *err)
{
	cleanup_session struct daytona_session session = { 0 };
	cleanup_output struct daytona_output output = { 0 };

	if (daytona_session_find(request, &session, err) < 0)
		return -1;
	const char *argv[] = { "/bin/rm", "-rf", "--", session.directory, NULL };
	struct daytona_command command = { .argv = argv, .cwd = "/" };
	if (session.running)
		husk_process_kill(request_husk(request), session.box.sandbox->id, session.pid, SIGKILL, NULL);
	if (daytona_run(request, &session.box, &command, &output, err) < 0)
		return -1;
	return respond_empty(request, 204, err);
}

/* ---- commands ---- */

static int prepare(struct request *request, const struct daytona_session *session, const char *command,
		   const char *text, bool quiet, struct husk_error *err)
{
	static const char script[] =
		"d=$1; mkdir -p \"$d\" && mkfifo -m 600 \"$d/input\" && : >\"$d/stdout\" &&"
		" : >\"$d/stderr\" && { [ -z \"$2\" ] || : >\"$d/quiet\"; } && cat >\"$d/command\"";
	cleanup_free char *directory = str_format("%s/%s", session->directory, command);
	cleanup_free char *line = str_format("%s\n", text);
	const char *argv[] = { "/bin/sh", "-c", script, "sh", directory, quiet ? "yes" : "", NULL };
	struct daytona_command run = { .argv = argv, .cwd = "/", .input = line, .input_size = line ? strlen(line) : 0 };
	cleanup_output struct daytona_output output = { 0 };

	if (!directory || !line)
		return husk_fail_memory(err);
	if (daytona_run(request, &session->box, &run, &output, err) < 0)
		return -1;
	return output.exit_code
		       ? husk_fail(err, HUSK_LIMIT, "the command could not be kept: %s", daytona_complaint(&output))
		       : 0;
}

static int ended(struct request *request, struct husk_error *err)
{
	return daytona_fail(request, 410, "SESSION_ENDED", "the session's shell has ended; make a new session");
}

/* Waits until the shell reports the end: "<command> <code>". */
static int await(struct request *request, struct follow *follow, const char *command, struct husk_error *err)
{
	cleanup_buf struct buf said = { 0 };
	struct husk_process_event event = { 0 };

	for (;;) {
		int got = follow_next(follow, SSE_PING_MS, &event, err);
		if (got < 0)
			return -1;
		if (got > 0 && event.kind == HUSK_EXIT)
			return ended(request, err);
		if (got == 0 || event.kind != HUSK_STDOUT)
			continue;
		if (buf_append(&said, event.data, event.size) < 0)
			return husk_fail_memory(err);
		const char *found = strstr(said.data, command);
		if (found && strchr(found, '\n'))
			return 0;
		if (said.size > 4096)
			buf_consume(&said, said.size - 2048);
	}
}

static int respond_result(struct request *request, const struct daytona_session *session, const char *command,
			  struct husk_error *err)
{
	cleanup_buf struct buf out = { 0 }, error = { 0 }, code = { 0 }, both = { 0 };
	bool there;

	if (daytona_session_read(request, session, command, "stdout", &out, &there, err) < 0 ||
	    daytona_session_read(request, session, command, "stderr", &error, &there, err) < 0 ||
	    daytona_session_read(request, session, command, "code", &code, &there, err) < 0)
		return -1;
	if (buf_append(&both, out.data, out.size) < 0 || buf_append(&both, error.data, error.size) < 0)
		return husk_fail_memory(err);
	return respond_json(request, 200,
			    json_pack("{s:s, s:o, s:o, s:o, s:I}", "cmdId", command, "output",
				      json_text(both.data, both.size), "stdout", json_text(out.data, out.size),
				      "stderr", json_text(error.data, error.size), "exitCode",
				      (json_int_t)strtoll(code.data, NULL, 10)),
			    err);
}

static int execute(struct request *request, const struct daytona_session *session, const char *command, bool wait,
		   struct husk_error *err)
{
	cleanup_process struct husk_process *process = NULL;
	struct follow follow = { .request = request, .pid = session->pid };
	char line[80];

	if (process_attach(request, session->pid, &process, err) < 0)
		return err->code == HUSK_CONFLICT ? ended(request, err) : -1;
	follow.process = process;
	snprintf(line, sizeof(line), "%s\n", command);
	if (process_feed(&follow, line, strlen(line), err) < 0)
		return err->code == HUSK_CONFLICT ? ended(request, err) : -1;
	return wait ? await(request, &follow, command, err) : process_feed_end(&follow, false, err);
}

static int handle_execute(struct request *request, struct husk_error *err)
{
	cleanup_session struct daytona_session session = { 0 };
	struct fields fields;
	char prefix[32], command[64];

	if (fields_begin(&fields, request_read_json(request, err)) < 0)
		return -1;
	const char *text = fields_string(&fields, "command");
	bool later = fields_bool(&fields, "runAsync", false);
	later |= fields_bool(&fields, "async", false);
	bool quiet = fields_bool(&fields, "suppressInputEcho", false);
	if (fields_done_open(&fields, err) < 0 || daytona_session_find(request, &session, err) < 0)
		return -1;
	if (!text || !*text)
		return husk_fail_field(err, "command", "command is required");
	if (!session.running)
		return ended(request, err);
	/* Sorted by their ids, as in a directory listing. */
	snprintf(prefix, sizeof(prefix), "c%012llx-", (unsigned long long)time_wall_ms());
	if (random_id(prefix, 8, command) < 0)
		return husk_fail_errno(err, "cannot make a command's id");
	if (prepare(request, &session, command, text, quiet, err) < 0 ||
	    execute(request, &session, command, !later, err) < 0)
		return -1;
	if (later)
		return respond_json(request, 202, json_pack("{s:s}", "cmdId", command), err);
	return respond_result(request, &session, command, err);
}

static int handle_command(struct request *request, struct husk_error *err)
{
	const char *command = request_path(request, "command");
	cleanup_session struct daytona_session session = { 0 };

	if (daytona_session_find(request, &session, err) < 0 ||
	    daytona_session_command(request, &session, command, err) < 0)
		return -1;
	return respond_json(request, 200, command_document(request, &session, command, err), err);
}

/* The shell keeps the pipe open while the command runs, so this cannot block for a reader. */
static int handle_input(struct request *request, struct husk_error *err)
{
	static const char script[] = "cd \"$1\" || exit 1; [ ! -e code ] || exit 9; d=$(cat; echo x); d=${d%x};"
				     " [ -e quiet ] || printf '%s' \"$d\" >>stdout; printf '%s' \"$d\" 1<>input";
	const char *command = request_path(request, "command");
	cleanup_session struct daytona_session session = { 0 };
	cleanup_output struct daytona_output output = { 0 };
	struct fields fields;

	if (fields_begin(&fields, request_read_json(request, err)) < 0)
		return -1;
	const char *data = fields_string(&fields, "data");
	if (fields_done_open(&fields, err) < 0 || daytona_session_find(request, &session, err) < 0 ||
	    daytona_session_command(request, &session, command, err) < 0)
		return -1;
	cleanup_free char *line = str_format("%s%s", data ? data : "", data && str_ends(data, "\n") ? "" : "\n");
	cleanup_free char *directory = str_format("%s/%s", session.directory, command);
	const char *argv[] = { "/bin/sh", "-c", script, "sh", directory, NULL };
	struct daytona_command run = {
		.argv = argv, .cwd = "/", .input = line, .input_size = line ? strlen(line) : 0, .timeout_ms = 30000
	};
	if (!line || !directory)
		return husk_fail_memory(err);
	if (daytona_run(request, &session.box, &run, &output, err) < 0)
		return -1;
	if (output.exit_code == 9 || !session.running)
		return daytona_fail(request, 410, "COMMAND_ALREADY_COMPLETED", "the command has completed already");
	if (output.exit_code)
		return daytona_fail(request, 400, "BAD_REQUEST", "the input could not be given: %s",
				    daytona_complaint(&output));
	return respond_empty(request, 204, err);
}

/* ---- the entrypoint, which has no log in Husk ---- */

static int handle_entrypoint(struct request *request, struct husk_error *err)
{
	(void)request;
	return husk_fail(err, HUSK_NOT_FOUND, "this sandbox has no entrypoint session");
}

const struct route daytona_session_routes[] = {
	{ "POST", DAYTONA_TOOLBOX "/process/session", handle_create, ROUTE_STREAM },
	{ "GET", DAYTONA_TOOLBOX "/process/session", handle_list, 0 },
	{ "GET", DAYTONA_TOOLBOX "/process/session/entrypoint", handle_entrypoint, 0 },
	{ "GET", DAYTONA_TOOLBOX "/process/session/entrypoint/logs", handle_entrypoint, 0 },
	{ "GET", DAYTONA_TOOLBOX "/process/session/{session}", handle_get, 0 },
	{ "DELETE", DAYTONA_TOOLBOX "/process/session/{session}", handle_delete, 0 },
	{ "POST", DAYTONA_TOOLBOX "/process/session/{session}/exec", handle_execute, ROUTE_STREAM },
	{ "GET", DAYTONA_TOOLBOX "/process/session/{session}/command/{command}", handle_command, 0 },
	{ "GET", DAYTONA_TOOLBOX "/process/session/{session}/command/{command}/logs", daytona_session_logs,
	  ROUTE_SOCKET | ROUTE_AUTHORISE },
	{ "POST", DAYTONA_TOOLBOX "/process/session/{session}/command/{command}/input", handle_input, ROUTE_STREAM },
	{ 0 },
};
