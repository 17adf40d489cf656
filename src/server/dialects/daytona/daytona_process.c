/*
 * Daytona's one-time commands and code. POST process/execute passes the command to a shell as its input, and returns both
 * output streams as one. POST process/code-run passes code to an interpreter. On a timeout the whole process group is
 * killed, and the status is 408.
 */
#include "server/dialects/daytona/daytona.h"

/* The Dockerfile's ENV (daytona_build.c), then the best available shell. */
#define PROFILE "[ ! -r /etc/profile.d/daytona.sh ] || . /etc/profile.d/daytona.sh; "
#define SHELL PROFILE "exec 2>&1; ! command -v bash >/dev/null || exec bash; exec sh"
#define DRAWS "/.husk/guest/code_run.py" /* for Python code that may draw: its figures are on stderr, one line each */
#define CHART_DEPTH 8
#define TIMEOUT_MAX (INT64_C(7) * 86400)
/* TypeScript's own compiler, for one file: types are taken away and not checked, as the other ways do. */
#define TRANSPILE                                                                                                      \
	"const fs = require(\"fs\"), ts = require(\"typescript\"), [from, to] = process.argv.slice(1);"                \
	" const compilerOptions = { module: \"commonjs\", target: \"es2020\", esModuleInterop: true };"                \
	" fs.writeFileSync(to, ts.transpileModule(fs.readFileSync(from, \"utf8\"), { compilerOptions }).outputText)"

static int timed_out(struct request *request, struct husk_error *err)
{
	return daytona_fail(request, 408, "PROCESS_EXECUTION_TIMEOUT", "command execution timeout");
}

/* A text result: bytes that are not UTF-8 are replaced. */
static json_t *result_document(const struct daytona_output *output)
{
	return json_pack("{s:i, s:o}", "exitCode", output->exit_code, "result",
			 json_text(output->out.data, output->out.size));
}

/* ---- execute ---- */

static int handle_execute(struct request *request, struct husk_error *err)
{
	static const char *const shell[] = { "/bin/sh", "-c", SHELL, NULL };
	cleanup_output struct daytona_output output = { 0 };
	cleanup_box struct daytona_box box = { 0 };
	cleanup_free struct husk_pair *pairs = NULL;
	cleanup_free char *cwd = NULL, *script = NULL;
	struct daytona_command command = { .argv = shell };
	struct fields fields;

	if (fields_begin(&fields, request_read_json(request, err)) < 0)
		return -1;
	const char *text = fields_string(&fields, "command"), *directory = fields_string(&fields, "cwd");
	pairs = fields_pairs(&fields, "envs", &command.environment_count);
	command.timeout_ms = 1000 * fields_int(&fields, "timeout", 0, 0, TIMEOUT_MAX);
	if (fields_done_open(&fields, err) < 0 || daytona_enter(request, &box, err) < 0)
		return -1;
	if (!text || !*text)
		return husk_fail_field(err, "command", "command is required");
	if (daytona_path(&box, directory ? directory : "", &cwd, err) < 0)
		return -1;
	script = str_format("%s\n", text);
	if (!script)
		return husk_fail_memory(err);
	command.cwd = cwd;
	command.environment = pairs;
	command.input = script;
	command.input_size = strlen(script);
	if (daytona_run(request, &box, &command, &output, err) < 0)
		return -1;
	if (output.timed_out)
		return timed_out(request, err);
	return respond_json(request, 200, result_document(&output), err);
}

/* ---- code-run ---- */

/* $1 is the code, followed by its arguments. */
static const struct {
	const char *name, *script;
} languages[] = {
	{ "python", PROFILE "c=$1; shift;"
			    " command -v python3 >/dev/null || { echo 'python3 is not in this sandbox; use a snapshot "
			    "that has it'; exit 127; };"
			    " case $c in *matplotlib*|*pylab*) [ ! -r " DRAWS " ] || exec python3 -u " DRAWS
			    " \"$c\" \"$@\";; esac;"
			    " exec python3 -u -c \"$c\" \"$@\" 2>&1" },
	{ "javascript", PROFILE "exec 2>&1; c=$1; shift; command -v node >/dev/null && exec node -e \"$c\" -- \"$@\";"
				" echo 'node is not in this sandbox; use a snapshot that has it'; exit 127" },
	{ "typescript", PROFILE
	  "exec 2>&1; c=$1; shift; f=$(mktemp -d)/main.ts; printf '%s' \"$c\" >\"$f\";"
	  " for t in tsx ts-node; do ! command -v $t >/dev/null || exec $t \"$f\" \"$@\"; done;"
	  " ! command -v deno >/dev/null || exec deno run -A \"$f\" \"$@\";"
	  " node --experimental-strip-types -e 0 >/dev/null 2>&1 &&"
	  " exec node --no-warnings --experimental-strip-types \"$f\" \"$@\";"
	  " ! command -v esbuild >/dev/null || { esbuild --platform=node --log-level=error \"$f\" --outfile=\"$f.cjs\""
	  " && exec node \"$f.cjs\" \"$@\"; exit 1; };"
	  " ! node -e 'require(\"typescript\")' 2>/dev/null || { node -e '" TRANSPILE "' \"$f\" \"$f.cjs\""
	  " && exec node \"$f.cjs\" \"$@\"; exit 1; };"
	  " echo 'nothing that runs TypeScript (tsx, ts-node, esbuild, typescript) is in this sandbox; use a snapshot "
	  "that has it';"
	  " exit 127" },
};

static const char *script_of(const char *language)
{
	for (size_t i = 0; i < ARRAY_SIZE(languages); i++)
		if (str_equal(language, languages[i].name))
			return languages[i].script;
	return NULL;
}

/* sh -c SCRIPT sh CODE argument…; the caller frees the array. */
static const char **argv_of(const char *script, const char *code, const char **arguments)
{
	size_t count = 0;

	while (arguments && arguments[count])
		count++;
	const char **argv = calloc(count + 6, sizeof(*argv));
	if (!argv)
		return NULL;
	argv[0] = "/bin/sh";
	argv[1] = "-c";
	argv[2] = script;
	argv[3] = "sh";
	argv[4] = code;
	for (size_t i = 0; i < count; i++)
		argv[5 + i] = arguments[i];
	return argv;
}

/* What the guest claims to have drawn. A line that is no object is left out. */
static json_t *charts_document(struct daytona_output *output)
{
	json_t *charts = json_array();
	char *save = NULL;

	for (char *line = strtok_r(output->err.data, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		json_t *chart = str_json_deeper(line, strlen(line), CHART_DEPTH) ? NULL : json_loads(line, 0, NULL);
		if (json_is_object(chart) && json_is_string(json_object_get(chart, "type")))
			json_array_append(charts, chart);
		json_decref(chart);
	}
	return json_pack("{s:o}", "charts", charts);
}

static int handle_code(struct request *request, struct husk_error *err)
{
	cleanup_output struct daytona_output output = { 0 };
	cleanup_box struct daytona_box box = { 0 };
	cleanup_free struct husk_pair *pairs = NULL;
	cleanup_free const char **arguments = NULL, **argv = NULL;
	struct daytona_command command = { 0 };
	struct fields fields;

	if (fields_begin(&fields, request_read_json(request, err)) < 0)
		return -1;
	const char *code = fields_string(&fields, "code"), *language = fields_string(&fields, "language");
	arguments = fields_strings(&fields, "argv");
	pairs = fields_pairs(&fields, "envs", &command.environment_count);
	command.timeout_ms = 1000 * fields_int(&fields, "timeout", 0, 0, TIMEOUT_MAX);
	if (fields_done_open(&fields, err) < 0 || daytona_enter(request, &box, err) < 0)
		return -1;
	const char *script = script_of(language && *language ? language : "python");
	if (!code)
		return husk_fail_field(err, "code", "code is required");
	if (!script)
		return husk_fail_field(err, "language",
				       "unsupported language: %.40s; python, javascript and typescript are", language);
	argv = argv_of(script, code, arguments);
	if (!argv)
		return husk_fail_memory(err);
	command.argv = argv;
	command.environment = pairs;
	if (daytona_run(request, &box, &command, &output, err) < 0)
		return -1;
	if (output.timed_out)
		return timed_out(request, err);
	json_t *document = result_document(&output);
	if (document)
		json_object_set_new(document, "artifacts", charts_document(&output));
	return respond_json(request, 200, document, err);
}

const struct route daytona_process_routes[] = {
	{ "POST", DAYTONA_TOOLBOX "/process/execute", handle_execute, ROUTE_STREAM },
	{ "POST", DAYTONA_TOOLBOX "/process/code-run", handle_code, ROUTE_STREAM },
	{ 0 },
};
