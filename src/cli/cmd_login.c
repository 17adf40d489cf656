/*
 * `husk login` and `husk logout`: the user's logins for registries, kept where docker keeps them. The password is read from a
 * terminal without echo, or from stdin with --password-stdin; it is never an argument, which every process could see.
 */
#include <termios.h>

#include "cli/cli.h"

#define PASSWORD_MAX 65536

struct login_arguments {
	const char *user;
	bool from_stdin;
};

static const struct option_spec login_options[] = {
	OPTION('u', "username", OPTION_STRING, struct login_arguments, user, "USER",
	       "the user (asked for on a terminal)"),
	OPTION(0, "password-stdin", OPTION_FLAG, struct login_arguments, from_stdin, NULL,
	       "read the password from stdin"),
	{ 0 },
};

/* A line of stdin without its end; caller wipes and frees. */
static char *read_line(struct husk_error *err)
{
	cleanup_wipe char *line = calloc(1, PASSWORD_MAX + 1);
	size_t size = 0;

	if (!line) {
		husk_fail_memory(err);
		return NULL;
	}
	/* Byte by byte: what follows the line is not ours. */
	while (size < PASSWORD_MAX && read(STDIN_FILENO, line + size, 1) == 1 && line[size] != '\n')
		size++;
	line[size] = '\0';
	if (size && line[size - 1] == '\r')
		line[size - 1] = '\0';
	if (!*line) {
		husk_fail(err, HUSK_INVALID, "nothing was given on stdin");
		return NULL;
	}
	return steal_pointer(line);
}

/* Asks on the terminal; `hidden`: what is typed is not shown. */
static char *ask(const char *what, bool hidden, struct husk_error *err)
{
	struct termios before, quiet;
	bool changed = hidden && tcgetattr(STDIN_FILENO, &before) == 0;

	fprintf(stderr, "%s: ", what);
	if (changed) {
		quiet = before;
		quiet.c_lflag &= ~(tcflag_t)ECHO;
		changed = tcsetattr(STDIN_FILENO, TCSAFLUSH, &quiet) == 0;
	}
	char *line = read_line(err);
	if (changed) {
		tcsetattr(STDIN_FILENO, TCSAFLUSH, &before);
		fputc('\n', stderr);
	}
	return line;
}

static int login_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	const struct login_arguments *arguments = data;
	const char *registry = argc ? argv[0] : NULL;
	bool terminal = isatty(STDIN_FILENO);

	if (!terminal && !arguments->from_stdin)
		return husk_fail(err, HUSK_INVALID, "stdin is not a terminal; use -u USER --password-stdin");
	if (!arguments->user && (!terminal || arguments->from_stdin))
		return husk_fail(err, HUSK_INVALID, "--password-stdin needs -u USER");
	cleanup_free char *user = arguments->user ? strdup(arguments->user) : ask("Username", false, err);
	cleanup_wipe char *password = !user                   ? NULL
				      : arguments->from_stdin ? read_line(err)
							      : ask("Password", true, err);
	if (!user || !password || husk_login(registry, user, password, err) < 0)
		return -1;
	if (cli->json)
		return output_json(json_pack("{s:o, s:o}", "registry", json_text0(registry ? registry : "docker.io"),
					     "user", json_text0(user)),
				   err);
	output_note("logged in to %s as %s", registry ? registry : "the default registry", user);
	return 0;
}

static int logout_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	const char *registry = argc ? argv[0] : NULL;

	(void)data;
	if (husk_logout(registry, err) < 0)
		return -1;
	if (cli->json)
		return output_json(json_pack("{s:o, s:b}", "registry", json_text0(registry ? registry : "docker.io"),
					     "removed", true),
				   err);
	output_note("logged out of %s", registry ? registry : "the default registry");
	return 0;
}

const struct cli_command cli_login = {
	.name = "login",
	.operands = "[REGISTRY]",
	.summary = "Log in to a registry; the login is stored where docker stores it",
	.details = "REGISTRY is HOST[:PORT] and defaults to docker.io, or HUSK_REGISTRY. The login is checked with the "
		   "registry and\n"
		   "stored in ~/.docker/config.json (DOCKER_CONFIG), which only you can read, or in the credential "
		   "helper that the\n"
		   "file names.\n",
	.groups = { { login_options, 0 } },
	.arguments_size = sizeof(struct login_arguments),
	.max = 1,
	.offline = true,
	.run = login_run,
};

const struct cli_command cli_logout = {
	.name = "logout",
	.operands = "[REGISTRY]",
	.summary = "Remove the login for a registry",
	.max = 1,
	.offline = true,
	.run = logout_run,
};
