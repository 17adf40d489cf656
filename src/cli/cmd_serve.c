/*
 * `husk serve`: starts huskd, the HTTP server. huskd is a separate program, so that husk and the supervisors do not
 * load it. huskd is searched beside this program, and checks its options itself.
 */
#include <limits.h>

#include "cli/cli.h"

struct serve_arguments {
	const char *listen, *socket, *group, *certificate, *key, *log, *log_level;
	const char *user_sandboxes, *user_memory, *user_snapshots;
	int64_t stop_seconds;
};

static const char *const log_choices[] = { "text", "json", NULL };
static const char *const level_choices[] = { "error", "warn", "info", "debug", NULL };

static const struct option_spec serve_options[] = {
	OPTION(0, "listen", OPTION_STRING, struct serve_arguments, listen, "ADDR:PORT",
	       "the TCP address; none: no TCP (127.0.0.1:7820)"),
	OPTION(0, "socket", OPTION_STRING, struct serve_arguments, socket, "PATH",
	       "unix socket for this machine (huskd.sock in the run directory)"),
	OPTION(0, "group", OPTION_STRING, struct serve_arguments, group, "NAME",
	       "the group whose users may use the socket, each as a tenant; none: only root (husk, if that group "
	       "exists)"),
	OPTION(0, "user-sandboxes", OPTION_STRING, struct serve_arguments, user_sandboxes, "N",
	       "maximum number of sandboxes of each user (no limit)"),
	OPTION(0, "user-memory", OPTION_STRING, struct serve_arguments, user_memory, "SIZE",
	       "maximum memory of all running sandboxes of a user (no limit)"),
	OPTION(0, "user-snapshots", OPTION_STRING, struct serve_arguments, user_snapshots, "SIZE",
	       "maximum disk use of the snapshots of a user (no limit)"),
	OPTION(0, "cert", OPTION_STRING, struct serve_arguments, certificate, "FILE",
	       "TLS certificate, PEM; with --key"),
	OPTION(0, "key", OPTION_STRING, struct serve_arguments, key, "FILE", "its private key, PEM"),
	OPTION(0, "log", OPTION_CHOICE, struct serve_arguments, log, "FORMAT",
	       "the log on stderr as text or json (text)", .choices = log_choices),
	OPTION(0, "log-level", OPTION_CHOICE, struct serve_arguments, log_level, "LEVEL",
	       "how much is logged, also by its sandboxes: error, warn, info, debug (info)", .choices = level_choices),
	OPTION(0, "stop-seconds", OPTION_SECONDS, struct serve_arguments, stop_seconds, "TIME",
	       "how long streams may continue after a signal to stop (30)", .min = 1, .max = 86400),
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
	const char *words[24] = { "huskd" };
	size_t count = 1;
	const struct {
		const char *option, *value;
	} given[] = {
		{ "--listen", arguments->listen },
		{ "--socket", arguments->socket },
		{ "--group", arguments->group },
		{ "--user-sandboxes", arguments->user_sandboxes },
		{ "--user-memory", arguments->user_memory },
		{ "--user-snapshots", arguments->user_snapshots },
		{ "--cert", arguments->certificate },
		{ "--key", arguments->key },
		{ "--log", arguments->log },
		{ "--log-level", arguments->log_level },
		{ "--stop-seconds", arguments->stop_seconds ? seconds : NULL },
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
	/* The cast drops const, because execv has an old interface; exec changes nothing. */
	execv(program, (char *const *)words);
	return husk_fail_errno(err, "cannot run '%s'", program);
}

const struct cli_command cli_serve = {
	.name = "serve",
	.operands = "",
	.summary = "Serve Husk over HTTP, for the SDKs and other programs",
	.details = "Runs until SIGTERM or Ctrl-C. Over TCP every caller requires a token (husk token create). On the "
		   "unix socket\n"
		   "root owns the instance, and each user of the group 'husk' is a tenant without a token.\n",
	.groups = { { serve_options, 0 } },
	.arguments_size = sizeof(struct serve_arguments),
	.offline = true,
	.run = serve_run,
};
