/*
 * The processes behind Daytona's computer use: start, stop, restart, status and logs. The display and XFCE run in the
 * snapshot of the template `desktop` (guest/desktop-session); x11vnc on port 5901 and noVNC on port 6080, which
 * Daytona's users open by a preview link, run from the first start. The processes have Daytona's names. Scripts in the
 * guest find their names there and whether they run. The guest controls the output of these scripts, so it is only
 * shown.
 */
#include "server/dialects/daytona/daytona_computer.h"

#define SCRIPT_MS 90000
#define LOG_BYTES "1048576" /* of the end of a log */

/* Daytona's name, that of the process, the log of its output and that of its errors; below /run/husk/desktop. */
#define TABLE                                                                                                          \
	"table='xvfb:Xtigervnc:server.log:server.log xfce4:xfce4-session:session.log:session.log"                      \
	" x11vnc:x11vnc:x11vnc.log:x11vnc.err novnc:websockify:novnc.log:novnc.err'; run=/run/husk/desktop;"           \
	" command -v Xtigervnc >/dev/null || exit 127; mkdir -p $run; "
#define PIDS "pids() { for p in $table; do n=${p#*:}; echo \"${p%%:*} $(pgrep -o -x \"${n%%:*}\")\"; done; }; "
#define LAUNCH                                                                                                         \
	"launch() { l=$1; shift; setsid \"$@\" >>$run/$l.log 2>>$run/$l.err </dev/null & }; "                          \
	"up() { pgrep -x desktop-session >/dev/null || launch desktop-session /.husk/guest/desktop-session;"           \
	" until xdpyinfo -display :0 >/dev/null 2>&1 && pgrep -x xfce4-session >/dev/null; do"                         \
	" i=$((i+1)); [ $i -lt 300 ] || exit 1; sleep 0.1; done;"                                                      \
	" pgrep -x x11vnc >/dev/null || launch x11vnc x11vnc -display :0 -forever -shared -localhost -nopw -noxrecord" \
	" -rfbport 5901;"                                                                                              \
	" pgrep -x websockify >/dev/null || launch novnc websockify --web=/usr/share/novnc 6080 localhost:5901;"       \
	" until pgrep -x x11vnc >/dev/null && pgrep -x websockify >/dev/null && bash -c ': </dev/tcp/localhost/6080'"  \
	" 2>/dev/null; do i=$((i+1)); [ $i -lt 600 ] || exit 1; sleep 0.1; done; }; "

static const char status_script[] = TABLE PIDS "pids";
static const char start_script[] = TABLE PIDS LAUNCH "i=0; up; pids";
static const char stop_script[] = TABLE PIDS
	"pkill -KILL -x desktop-session; pkill -x websockify; pkill -x x11vnc; pkill -x xfce4-session; pkill -x "
	"Xtigervnc;"
	" for i in $(seq 100); do pgrep -x 'Xtigervnc|xfce4-session|x11vnc|websockify' >/dev/null || break;"
	" [ $i -lt 50 ] || pkill -KILL -x 'Xtigervnc|xfce4-session|x11vnc|websockify'; sleep 0.1; done; pids";
static const char restart_script[] = TABLE LAUNCH
	"for p in $table; do [ \"${p%%:*}\" != \"$1\" ] || { n=${p#*:}; n=${n%%:*}; old=$(pgrep -o -x \"$n\"); pkill "
	"-x \"$n\";"
	" for i in $(seq 50); do [ \"$(pgrep -o -x \"$n\")\" = \"$old\" ] && [ -n \"$old\" ] || break; sleep 0.1; done;"
	" i=0; up; }; done";
/* $2: 3 for the output, 4 for the errors */
static const char log_script[] =
	TABLE "for p in $table; do [ \"${p%%:*}\" != \"$1\" ] || { f=$run/$(echo \"$p\" | cut -d: -f\"$2\");"
	      " [ ! -f \"$f\" ] || tail -c " LOG_BYTES " \"$f\"; }; done";

static const struct {
	const char *name;
	int priority;
} processes[] = { { "xvfb", 100 }, { "xfce4", 200 }, { "x11vnc", 300 }, { "novnc", 400 } };

int daytona_desktop_script(struct request *request, const struct daytona_box *box, const char *script,
			   const char *first, const char *second, struct daytona_output *output, struct husk_error *err)
{
	const char *argv[] = { "/bin/sh", "-c", script, "sh", first ? first : "", second ? second : "", NULL };
	struct daytona_command command = { .argv = argv, .user = "root", .cwd = "/", .timeout_ms = SCRIPT_MS };

	if (daytona_run(request, box, &command, output, err) < 0)
		return -1;
	if (output->exit_code == 127)
		return daytona_fail(
			request, 503, NULL,
			"Computer-use functionality is not available: the sandbox has no desktop; create it "
			"from the snapshot 'desktop'");
	return 0;
}

/* ---- status ---- */

/* The pid in the line of this process ("xvfb 12"); 0: it does not run. */
static int64_t pid_of(const struct daytona_output *output, const char *name)
{
	size_t size = strlen(name);

	for (const char *line = output->out.data; line && *line; line = strchr(line, '\n'), line += line != NULL) {
		if (strncmp(line, name, size) == 0 && line[size] == ' ')
			return MAX(0, strtoll(line + size + 1, NULL, 10));
	}
	return 0;
}

static json_t *status_document(const struct daytona_output *output)
{
	json_t *document = json_object();

	for (size_t i = 0; document && i < ARRAY_SIZE(processes); i++) {
		int64_t pid = pid_of(output, processes[i].name);
		json_object_set_new(document, processes[i].name,
				    json_pack("{s:b, s:i, s:b, s:o*}", "running", pid > 0, "priority",
					      processes[i].priority, "autoRestart", true, "pid",
					      pid ? json_integer(pid) : NULL));
	}
	return document;
}

static int handle_status(struct request *request, struct husk_error *err)
{
	cleanup_output struct daytona_output output = { 0 };
	cleanup_box struct daytona_box box = { 0 };
	size_t running = 0;

	if (daytona_enter(request, &box, err) < 0 ||
	    daytona_desktop_script(request, &box, status_script, NULL, NULL, &output, err) < 0)
		return -1;
	for (size_t i = 0; i < ARRAY_SIZE(processes); i++)
		running += pid_of(&output, processes[i].name) > 0;
	return respond_json(request, 200,
			    json_pack("{s:s}", "status",
				      running == ARRAY_SIZE(processes) ? "active"
				      : running                        ? "partial"
								       : "inactive"),
			    err);
}

/* ---- start and stop ---- */

static int remember(struct request *request, const char *state, struct husk_error *err)
{
	cleanup_box struct daytona_box box = { 0 };

	daytona_lock();
	int result = daytona_find(request, &box, err);
	if (result == 0)
		result = daytona_set(&box, "computerUse", json_string(state), err);
	if (result == 0)
		result = daytona_save(request, &box, NULL, err);
	daytona_unlock();
	return result;
}

/* After a new display the first request of Husk's helper fails once and reports it (docs/desktop.md). It must not be the
 * client's. */
static void greet(struct request *request)
{
	cleanup_json json_t *answer = NULL;

	desktop_act(request, json_pack("{s:[]}", "actions"), &answer, NULL);
}

static int handle_start(struct request *request, struct husk_error *err)
{
	cleanup_output struct daytona_output output = { 0 };
	cleanup_box struct daytona_box box = { 0 };

	if (daytona_enter(request, &box, err) < 0 ||
	    daytona_desktop_script(request, &box, start_script, NULL, NULL, &output, err) < 0)
		return -1;
	if (output.exit_code != 0)
		return daytona_fail(request, 503, NULL,
				    "Failed to start computer use: not every process runs after a minute");
	greet(request);
	if (remember(request, "started", err) < 0)
		return -1;
	return respond_json(request, 200,
			    json_pack("{s:s, s:o}", "message", "Computer use processes started successfully", "status",
				      status_document(&output)),
			    err);
}

static int handle_stop(struct request *request, struct husk_error *err)
{
	cleanup_output struct daytona_output output = { 0 };
	cleanup_box struct daytona_box box = { 0 };

	if (daytona_enter(request, &box, err) < 0 || remember(request, "stopped", err) < 0 ||
	    daytona_desktop_script(request, &box, stop_script, NULL, NULL, &output, err) < 0)
		return -1;
	return respond_json(request, 200,
			    json_pack("{s:s, s:o}", "message", "Computer use processes stopped successfully", "status",
				      status_document(&output)),
			    err);
}

/* ---- one process ---- */

/* The process of the route; 400 if there is none of this name. */
static const char *process_of(struct request *request, struct husk_error *err)
{
	const char *given = request_path(request, "process");

	for (size_t i = 0; i < ARRAY_SIZE(processes); i++)
		if (str_equal(processes[i].name, given))
			return given;
	daytona_fail(request, 400, "BAD_REQUEST", "process %.40s not found; xvfb, xfce4, x11vnc and novnc are", given);
	return NULL;
}

static int handle_process(struct request *request, struct husk_error *err)
{
	const char *name = process_of(request, err);
	cleanup_output struct daytona_output output = { 0 };
	cleanup_box struct daytona_box box = { 0 };

	if (!name || daytona_enter(request, &box, err) < 0 ||
	    daytona_desktop_script(request, &box, status_script, NULL, NULL, &output, err) < 0)
		return -1;
	return respond_json(request, 200,
			    json_pack("{s:s, s:b}", "processName", name, "running", pid_of(&output, name) > 0), err);
}

static int handle_restart(struct request *request, struct husk_error *err)
{
	const char *name = process_of(request, err);
	cleanup_output struct daytona_output output = { 0 };
	cleanup_box struct daytona_box box = { 0 };

	if (!name || daytona_computer_enter(request, &box, err) < 0 ||
	    daytona_desktop_script(request, &box, restart_script, name, NULL, &output, err) < 0)
		return -1;
	if (output.exit_code != 0)
		return daytona_fail(request, 503, NULL, "process %s does not run after a minute", name);
	greet(request);
	return respond_json(request, 200,
			    json_pack("{s:o, s:s}", "message", json_sprintf("Process %s restarted successfully", name),
				      "processName", name),
			    err);
}

static int respond_log(struct request *request, const char *column, const char *field, struct husk_error *err)
{
	const char *name = process_of(request, err);
	cleanup_output struct daytona_output output = { 0 };
	cleanup_box struct daytona_box box = { 0 };

	if (!name || daytona_enter(request, &box, err) < 0 ||
	    daytona_desktop_script(request, &box, log_script, name, column, &output, err) < 0)
		return -1;
	return respond_json(
		request, 200,
		json_pack("{s:s, s:o}", "processName", name, field, json_text(output.out.data, output.out.size)), err);
}

static int handle_logs(struct request *request, struct husk_error *err)
{
	return respond_log(request, "3", "logs", err);
}

static int handle_errors(struct request *request, struct husk_error *err)
{
	return respond_log(request, "4", "errors", err);
}

static int handle_accessibility(struct request *request, struct husk_error *err)
{
	return dialect_unsupported(request, "the accessibility tree of computer use", err);
}

#define COMPUTER DAYTONA_TOOLBOX "/computeruse"

const struct route daytona_desktop_routes[] = {
	{ "POST", COMPUTER "/start", handle_start, ROUTE_STREAM },
	{ "POST", COMPUTER "/stop", handle_stop, ROUTE_STREAM },
	{ "GET", COMPUTER "/status", handle_status, ROUTE_STREAM },
	{ "GET", COMPUTER "/process-status", handle_status, ROUTE_STREAM },
	{ "GET", COMPUTER "/process/{process}/status", handle_process, ROUTE_STREAM },
	{ "POST", COMPUTER "/process/{process}/restart", handle_restart, ROUTE_STREAM },
	{ "GET", COMPUTER "/process/{process}/logs", handle_logs, ROUTE_STREAM },
	{ "GET", COMPUTER "/process/{process}/errors", handle_errors, ROUTE_STREAM },
	{ "*", COMPUTER "/a11y/{rest*}", handle_accessibility, 0 },
	{ 0 },
};
