/*
 * Commands of other tools; see alias.h. Called by main.c before a command is looked up, and by the option parser before
 * it rejects an option. `husk stop box` runs `husk hibernate box`; `husk run --network host` fails, and the error names
 * the option to use.
 *
 * A word is replaced only if it has a single meaning here and a wrong guess loses nothing. `stop` hibernates, because a
 * stopped container keeps its files; a note says which command ran.
 */
#include "cli/alias.h"

#include "cli/output.h"

enum alias_form {
	ALIAS_ALWAYS,
	ALIAS_BARE, /* only without an operand: `ps`, but not `ps box` */
};

static const struct {
	const char *word;       /* the first word, or the first two */
	const char *command[3]; /* our command, with options; none: only `advice` */
	enum alias_form form;
	const char *advice; /* a note for the replacement, or what to type */
} aliases[] = {
	{ "list", .command = { "ls" } },
	{ "ps", .command = { "ls" }, .form = ALIAS_BARE },
	{ "kill", .command = { "rm" } },
	{ "remove", .command = { "rm" } },
	{ "delete", .command = { "rm" } },
	{ "stop", .command = { "hibernate" }, .advice = "stop is hibernate here; husk rm removes a sandbox" },
	{ "start", .command = { "wake" } },
	{ "unpause", .command = { "resume" } },
	{ "shell", .command = { "run", "-it" }, .form = ALIAS_BARE },
	{ "shell", .command = { "exec", "-it" } },
	{ "ssh", .command = { "exec", "-it" } },
	{ "images", .command = { "image", "ls" } },
	{ "rmi", .command = { "image", "rm" } },
	{ "templates", .command = { "template", "ls" } },
	{ "snapshots", .command = { "snapshot", "ls" } },
	{ "volumes", .command = { "volume", "ls" } },
	{ "template list", .command = { "template", "ls" } },
	{ "image list", .command = { "image", "ls" } },
	{ "image pull", .command = { "pull" } },
	{ "snapshot list", .command = { "snapshot", "ls" } },
	{ "volume list", .command = { "volume", "ls" } },
	{ "token list", .command = { "token", "ls" } },
	{ "info", .command = { "doctor" } },
	{ "restart", .command = { "reboot" } },
	{ "push", .advice = "write the image with husk image export IMAGE DIR, then skopeo copy oci:DIR docker://…" },
	{ "top", .advice = "type husk ps SANDBOX for processes, husk stats for usage" },
};

static const struct {
	const char *option, *advice;
} option_advice[] = {
	{ "-p", "husk port SANDBOX PORT forwards a port of a sandbox to this machine" },
	{ "--publish", "husk port SANDBOX PORT forwards a port of a sandbox to this machine" },
	{ "-d", "husk run -d and husk exec -d start a command in the background" },
	{ "--detach", "husk run -d and husk exec -d start a command in the background" },
	{ "--rm", "husk run always removes its sandbox; husk create makes one that stays until --ttl or husk rm" },
	{ "--network", "--allow HOST opens a host, --egress open every public address" },
	{ "--net", "--allow HOST opens a host, --egress open every public address" },
	{ "--mount", "--volume NAME:/PATH gives it a volume, husk cp copies files" },
	{ "--workdir", "-w DIR (--cwd) says where a command runs" },
	{ "--image", "-t TEMPLATE chooses what a sandbox is made from" },
	{ "--restart", "--persistent keeps a sandbox; it does not start a command again" },
	{ "--privileged",
	  "there is no such mode: the sandbox has its own kernel, and its root user may do everything in it" },
};

const char *alias_option(const char *option)
{
	for (size_t i = 0; i < ARRAY_SIZE(option_advice); i++)
		if (str_equal(option_advice[i].option, option))
			return option_advice[i].advice;
	return NULL;
}

/* Only options follow the alias, and none of them asks for help. */
static bool is_bare(int argc, char *const *argv)
{
	for (int i = 0; i < argc; i++)
		if (argv[i][0] != '-' || str_equal(argv[i], "--") || str_equal(argv[i], "-h") ||
		    str_equal(argv[i], "--help"))
			return false;
	return true;
}

/* How many words of argv match; 0: no match. */
static int words_of(const char *word, int argc, char *const *argv)
{
	const char *space = strchr(word, ' ');
	size_t size = space ? (size_t)(space - word) : strlen(word);

	if (strlen(argv[0]) != size || strncmp(argv[0], word, size) != 0)
		return 0;
	if (!space)
		return 1;
	return argc > 1 && str_equal(space + 1, argv[1]) ? 2 : 0;
}

static int replace(const char *const *command, int words, int *argc, char ***argv, struct husk_error *err)
{
	int ours = 0;

	while (ours < 3 && command[ours])
		ours++;
	int count = *argc - words + ours;
	/* kept until the program ends, like argv itself */
	char **list = calloc((size_t)count + 1, sizeof(*list));
	if (!list)
		return husk_fail_memory(err);
	for (int i = 0; i < ours; i++)
		list[i] = (char *)command[i];
	memcpy(list + ours, *argv + words, (size_t)(count - ours) * sizeof(*list));
	*argc = count;
	*argv = list;
	return 0;
}

int alias_command(int *argc, char ***argv, struct husk_error *err)
{
	for (size_t i = 0; i < ARRAY_SIZE(aliases); i++) {
		int words = words_of(aliases[i].word, *argc, *argv);
		if (!words || (aliases[i].form == ALIAS_BARE && !is_bare(*argc - words, *argv + words)))
			continue;
		if (!aliases[i].command[0])
			return husk_fail(err, HUSK_INVALID, "there is no '%s' here; %s", aliases[i].word,
					 aliases[i].advice);
		if (aliases[i].advice)
			output_note("%s", aliases[i].advice);
		return replace(aliases[i].command, words, argc, argv, err);
	}
	return 0;
}
