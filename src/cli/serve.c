/*
 * `husk serve`: hands over to huskd, the HTTP server, which is a program of its own so that this one and the
 * supervisors do not load it. huskd is looked for beside this program; its options are checked by it alone.
 */
#include <limits.h>

#include "cli/cli.h"

struct serve_arguments {
	const char *listen, *socket, *certificate, *key, *log;
	int64_t stop_seconds;
};

static const char *const log_choices[] = { "text", "json", NULL };

static const struct option_spec serve_options[] = {
	OPTION(0, "listen", OPTION_STRING, struct serve_arguments, listen, "ADDR:PORT",
	       "where to listen for TCP; none: nowhere (127.0.0.1:7820)"),
	OPTION(0, "socket", OPTION_STRING, struct serve_arguments, socket, "PATH",
	       "unix socket for this machine's root (huskd.sock in the run directory)"),
	OPTION(0, "cert", OPTION_STRING, struct serve_arguments, certificate, "FILE",
	       "TLS certificate, PEM; with --key"),
	OPTION(0, "key", OPTION_STRING, struct serve_arguments, key, "FILE", "its private key, PEM"),
	OPTION(0, "log", OPTION_CHOICE, struct serve_arguments, log, "FORMAT",
	       "requests on stderr as text or json (text)", .choices = log_choices),
	OPTION(0, "stop-seconds", OPTION_SECONDS, struct serve_arguments, stop_seconds, "TIME",
	       "how long streams may go on once told to stop (30)", .min = 1, .max = 86400),
	{ 0 },
};

/* The program beside this one. */
static int find_huskd(char out[static PATH_MAX], struct husk_error *err)
{
	ssize_t size = readlink("/proc/self/exe", out, PATH_MAX - 1);

	if (size < 0)
		return husk_fail_errno(err, "cannot tell where husk is");
	out[size] = '\0';
	char *slash = strrchr(out, '/');
	size_t left = slash ? (size_t)(out + PATH_MAX - slash - 1) : 0;
	if (left < sizeof("huskd"))
		return husk_fail(err, HUSK_INTERNAL, "cannot tell where husk is");
	memcpy(slash + 1, "huskd", sizeof("huskd"));
	if (access(out, X_OK) < 0)
		return husk_fail(err, HUSK_UNAVAILABLE, "the server is not at '%s'; is Husk installed whole?", out);
	return 0;
}

static int serve_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	const struct serve_arguments *arguments = data;
	char program[PATH_MAX], seconds[24];
	const char *words[16] = { "huskd" };
	size_t count = 1;
	const struct {
		const char *option, *value;
	} given[] = {
		{ "--listen", arguments->listen },    { "--socket", arguments->socket },
		{ "--cert", arguments->certificate }, { "--key", arguments->key },
		{ "--log", arguments->log },          { "--stop-seconds", arguments->stop_seconds ? seconds : NULL },
	};

	(void)cli, (void)argc, (void)argv;
	snprintf(seconds, sizeof(seconds), "%lld", (long long)arguments->stop_seconds);
	for (size_t i = 0; i < ARRAY_SIZE(given); i++) {
		if (!given[i].value)
			continue;
		words[count++] = given[i].option;
		words[count++] = given[i].value;
	}
	if (find_huskd(program, err) < 0)
		return -1;
	/* The cast drops const from an interface older than const; exec changes neither. */
	execv(program, (char *const *)words);
	return husk_fail_errno(err, "cannot run '%s'", program);
}

const struct cli_command cli_serve = {
	.name = "serve",
	.operands = "",
	.summary = "Serve Husk over HTTP, for the SDKs and other programs",
	.details = "Runs until SIGTERM or Ctrl-C. Over TCP every caller needs a token (husk token create); the unix "
		   "socket is\n"
		   "for root and for the user that runs this.\n",
	.groups = { { serve_options, 0 } },
	.arguments_size = sizeof(struct serve_arguments),
	.offline = true,
	.run = serve_run,
};
