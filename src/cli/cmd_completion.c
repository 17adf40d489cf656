/*
 * `husk completion bash|zsh|fish` prints a shell's completion script. These scripts call `husk completion words WORD…`:
 * which words are possible in place of the last WORD? The answer comes from the commands' own tables of options and
 * operands, so scripts and program always agree.
 *
 *     $ husk completion words template b
 *     build	Build a template: …
 *     $ husk completion words create -t ba
 *     base
 *
 * One line per word, optionally with a tab and its meaning. Lines that begin with ':' ask the script for more:
 * ":files", ":directories", and ":nospace" for words that continue.
 */
#include <sys/stat.h>

#include "cli/cli.h"

extern char **environ;

/* The word at the cursor, and the instance for live names, which is opened when first needed. */
struct completing {
	const char *word; /* may be empty */
	struct husk *husk;
	bool refused; /* the instance cannot be opened: no live names */
};

static void offer(const struct completing *completing, const char *word, const char *meaning)
{
	if (!word || !str_starts(word, completing->word))
		return;
	output_safe(stdout, word, false);
	if (meaning) {
		putchar('\t');
		output_safe(stdout, meaning, false);
	}
	putchar('\n');
}

/* ---- live names ---- */

static struct husk *instance(struct completing *completing)
{
	if (!completing->husk && !completing->refused)
		completing->refused = husk_open(NULL, &completing->husk, NULL) < 0;
	return completing->husk;
}

static void offer_sandboxes(struct completing *completing, const char *behind)
{
	cleanup_sandboxes struct husk_sandbox **list = NULL;
	const struct husk_filter live = { 0 };
	struct husk *husk = instance(completing);

	if (!husk || husk_list(husk, &live, &list, NULL) < 0)
		return;
	for (size_t i = 0; list[i]; i++) {
		cleanup_free char *id = str_format("%s%s", list[i]->id, behind);
		cleanup_free char *name = list[i]->name ? str_format("%s%s", list[i]->name, behind) : NULL;
		offer(completing, id, husk_state_name(list[i]->state));
		offer(completing, name, husk_state_name(list[i]->state));
	}
}

static void offer_snapshots(struct completing *completing)
{
	struct husk_snapshot **list = NULL;
	struct husk *husk = instance(completing);

	if (!husk || husk_snapshot_list(husk, &list, NULL) < 0)
		return;
	for (size_t i = 0; list[i]; i++) {
		offer(completing, list[i]->id, NULL);
		offer(completing, list[i]->name, NULL);
	}
	husk_snapshot_list_free(list);
}

static void offer_volumes(struct completing *completing, const char *behind)
{
	struct husk_volume **list = NULL;
	struct husk *husk = instance(completing);

	if (!husk || husk_volume_list(husk, &list, NULL) < 0)
		return;
	for (size_t i = 0; list[i]; i++) {
		cleanup_free char *id = str_format("%s%s", list[i]->id, behind);
		cleanup_free char *name = list[i]->name ? str_format("%s%s", list[i]->name, behind) : NULL;
		offer(completing, id, NULL);
		offer(completing, name, NULL);
	}
	husk_volume_list_free(list);
}

static void offer_images(struct completing *completing)
{
	cleanup_images struct husk_image **list = NULL;
	struct husk *husk = instance(completing);

	if (!husk || husk_url(husk) || husk_image_list(husk, &list, NULL) < 0)
		return;
	for (size_t i = 0; list[i]; i++)
		offer(completing, list[i]->name, NULL);
}

static void offer_templates(struct completing *completing)
{
	cleanup_strv char **names = NULL;
	struct husk_template **list = NULL;
	struct husk *husk = instance(completing);

	offer_images(completing);
	if (template_definitions(&names, NULL) == 0)
		for (char **name = names; name && *name; name++)
			offer(completing, *name, NULL);
	if (!husk || husk_template_list(husk, &list, NULL) < 0)
		return;
	for (size_t i = 0; list[i]; i++) {
		bool bundled = false;
		for (char **name = names; name && *name && !bundled; name++)
			bundled = str_equal(*name, list[i]->name);
		if (!bundled)
			offer(completing, list[i]->name, list[i]->description);
	}
	husk_template_list_free(list);
}

static void offer_tokens(struct completing *completing)
{
	struct husk_token **list = NULL;
	struct husk *husk = instance(completing);

	if (!husk || husk_token_list(husk, &list, NULL) < 0)
		return;
	for (size_t i = 0; list[i]; i++)
		offer(completing, list[i]->id, list[i]->name);
	husk_token_list_free(list);
}

/* ---- commands ---- */

/* The words of commands at this place: the first words, each once, or those of a family. */
static void offer_commands(const struct completing *completing, const char *family)
{
	size_t size = family ? strlen(family) : 0;
	char last[64] = "";

	for (size_t i = 0; cli_commands[i]; i++) {
		const char *name = cli_commands[i]->name, *space = strchr(name, ' ');
		if (family) {
			if (strncmp(name, family, size) == 0 && name[size] == ' ')
				offer(completing, name + size + 1, cli_commands[i]->summary);
			continue;
		}
		char first[sizeof(last)];
		snprintf(first, sizeof(first), "%.*s", (int)(space ? space - name : (ptrdiff_t)strlen(name)), name);
		if (!str_equal(first, last))
			offer(completing, first, space ? NULL : cli_commands[i]->summary);
		memcpy(last, first, sizeof(last));
	}
}

/* ---- operands and values ---- */

static void offer_engines(struct completing *completing)
{
	offer(completing, "auto", "the strongest that works here");
	offer(completing, "microvm", NULL);
	offer(completing, "gvisor", NULL);
}

static void offer_copies(struct completing *completing)
{
	offer_sandboxes(completing, ":");
	puts(":nospace\n:files");
}

static void offer_mounts(struct completing *completing)
{
	offer_volumes(completing, ":/");
	puts(":nospace");
}

static void offer_variables(struct completing *completing)
{
	for (char **variable = environ; *variable; variable++) {
		cleanup_free char *name = strndup(*variable, strcspn(*variable, "="));
		offer(completing, name, NULL);
	}
}

static void offer_boxes(struct completing *completing)
{
	offer_sandboxes(completing, "");
}

static void offer_vessels(struct completing *completing)
{
	offer_volumes(completing, "");
}

static void offer_first_words(struct completing *completing)
{
	offer_commands(completing, NULL);
}

static void offer_files(struct completing *completing)
{
	(void)completing;
	puts(":files");
}

static void offer_directories(struct completing *completing)
{
	(void)completing;
	puts(":directories");
}

/* The kinds of names in usage lines and in the options' tables. A name that is not in this table has no words. */
static const struct {
	const char *name;
	void (*offer)(struct completing *completing);
} kinds[] = {
	{ "SANDBOX", offer_boxes },   { "SNAPSHOT", offer_snapshots }, { "VOLUME", offer_vessels },
	{ "IMAGE", offer_images },    { "TEMPLATE", offer_templates }, { "TOKEN", offer_tokens },
	{ "ENGINE", offer_engines },  { "FILE", offer_files },         { "DIR", offer_directories },
	{ "SOURCE", offer_copies },   { "DESTINATION", offer_copies }, { "NAME:/PATH[:ro]", offer_mounts },
	{ "K=V|K", offer_variables },
};

static void offer_kind(struct completing *completing, const char *name)
{
	for (size_t i = 0; i < ARRAY_SIZE(kinds); i++)
		if (str_equal(kinds[i].name, name))
			kinds[i].offer(completing);
}

/* "claude|codex" are words to type; "TEMPLATE|DIR" are names of kinds. */
static void offer_alternatives(struct completing *completing, const char *text)
{
	cleanup_free char *copy = strdup(text);
	char *rest = copy;

	for (char *part = copy ? strsep(&rest, "|") : NULL; part; part = strsep(&rest, "|")) {
		if (*part >= 'a' && *part <= 'z')
			offer(completing, part, NULL);
		else
			offer_kind(completing, part);
	}
}

/* The operand with that number in "SANDBOX [[--] COMMAND [ARG…]]"; the last one repeats if it ends with "…". */
static void offer_operand(struct completing *completing, const struct cli_command *command, size_t number)
{
	cleanup_free char *copy = strdup(command->operands);
	char *rest = copy, *part = NULL;
	char name[128];
	bool more = true, repeats = false;

	for (size_t i = 0; copy && more && (i <= number); i++) {
		char *next = strsep(&rest, " ");
		more = next && !strstr(next, "--");
		part = more ? next : repeats ? part : NULL;
		repeats = part && strstr(part, "…");
	}
	if (!part)
		return;
	size_t start = strspn(part, "[");
	snprintf(name, sizeof(name), "%.*s", (int)strcspn(part + start, "]"), part + start);
	char *ellipsis = strstr(name, "…");
	if (ellipsis)
		*ellipsis = '\0';
	offer_alternatives(completing, name);
}

/* ---- options ---- */

static const struct option_spec *group_at(const struct cli_command *command, size_t i)
{
	return i < ARRAY_SIZE(command->groups)    ? command->groups[i].specs
	       : i == ARRAY_SIZE(command->groups) ? common_options
						  : NULL;
}

#define GROUPS(command) (ARRAY_SIZE((command)->groups) + 1)

/* "-t", "--template" */
static const struct option_spec *option_find(const struct cli_command *command, const char *word)
{
	for (size_t i = 0; i < GROUPS(command); i++) {
		for (const struct option_spec *spec = group_at(command, i); spec && spec->name; spec++) {
			if (str_starts(word, "--") && str_equal(word + 2, spec->name))
				return spec;
			if (word[0] == '-' && spec->letter && word[1] == spec->letter && word[2] == '\0')
				return spec;
		}
	}
	return NULL;
}

static void offer_options(const struct completing *completing, const struct cli_command *command)
{
	for (size_t i = 0; i < GROUPS(command); i++) {
		for (const struct option_spec *spec = group_at(command, i); spec && spec->name; spec++) {
			cleanup_free char *name = str_format("--%s", spec->name);
			const char letter[] = { '-', spec->letter, '\0' };
			if (!spec->help) /* another spelling */
				continue;
			offer(completing, spec->exact ? spec->exact : name, spec->help);
			if (spec->letter)
				offer(completing, letter, spec->help);
		}
	}
}

static void offer_value(struct completing *completing, const struct option_spec *spec)
{
	for (const char *const *choice = spec->choices; choice && *choice; choice++)
		offer(completing, *choice, NULL);
	if (!spec->choices && spec->value)
		offer_kind(completing, spec->value);
}

/* ---- one question ---- */

/* The words after the command's name; the last one is to be completed. */
static void complete_arguments(struct completing *completing, const struct cli_command *command, int argc, char **argv)
{
	const struct option_spec *waiting = NULL; /* an option whose value comes next */
	size_t operands = 0;
	bool over = false;

	for (int i = 0; i < argc - 1; i++) {
		if (waiting) {
			/* bash splits --template=base into three words */
			if (str_equal(argv[i], "=") && i + 1 < argc)
				continue;
			waiting = NULL;
		} else if (!over && str_equal(argv[i], "--")) {
			over = true;
		} else if (!over && argv[i][0] == '-') {
			const struct option_spec *spec = option_find(command, argv[i]);
			waiting = spec && spec->kind != OPTION_FLAG ? spec : NULL;
		} else {
			operands++;
			over = over || (command->stop_after && operands >= command->stop_after);
		}
	}
	if (waiting && str_equal(completing->word, "="))
		completing->word = "";
	if (waiting)
		offer_value(completing, waiting);
	else if (!over && completing->word[0] == '-')
		offer_options(completing, command);
	else if (command == &cli_help && operands == 0)
		offer_first_words(completing);
	else
		offer_operand(completing, command, operands);
}

static void complete(struct completing *completing, int argc, char **argv)
{
	const struct cli_command *command = NULL;
	int words = 0;

	while (argc > 1 && argv[0][0] == '-') { /* options of every command may come before it */
		argc--;
		argv++;
	}
	completing->word = argv[argc - 1];
	if (argc == 1 || (argc == 2 && str_equal(argv[0], "help"))) {
		offer_commands(completing, NULL);
		return;
	}
	if (argc == 2)
		offer_commands(completing, argv[0]);
	if (help_find(argc - 1, argv, &command, &words, NULL) == 0)
		complete_arguments(completing, command, argc - words, argv + words);
}

/* ---- the scripts ---- */

static const char bash_script[] =
	"# bash completion for husk, printed by `husk completion bash`. The words come from husk itself.\n"
	"_husk()\n"
	"{\n"
	"	local program=${COMP_WORDS[0]/#\\~/$HOME} word=${COMP_WORDS[COMP_CWORD]} line words=()\n"
	"	COMPREPLY=()\n"
	"	while IFS= read -r line; do\n"
	"		case $line in\n"
	"		:files) compopt -o filenames; mapfile -t -O \"${#words[@]}\" words < <(compgen -f -- "
	"\"$word\") ;;\n"
	"		:directories) compopt -o filenames; mapfile -t -O \"${#words[@]}\" words < <(compgen -d -- "
	"\"$word\") ;;\n"
	"		:nospace) compopt -o nospace ;;\n"
	"		*) words+=(\"${line%%$'\\t'*}\") ;;\n"
	"		esac\n"
	"	done < <(\"$program\" completion words -- \"${COMP_WORDS[@]:1:COMP_CWORD}\" 2>/dev/null)\n"
	"	COMPREPLY=(\"${words[@]}\")\n"
	"} 2>/dev/null\n"
	"complete -F _husk husk\n";

static const char zsh_script[] =
	"#compdef husk\n"
	"# zsh completion for husk, printed by `husk completion zsh`. The words come from husk itself.\n"
	"_husk()\n"
	"{\n"
	"	local line files= space=() tab=$'\\t' names=() shown=()\n"
	"	for line in ${(f)\"$(${words[1]} completion words -- \"${(@)words[2,CURRENT]}\" 2>/dev/null)\"}; do\n"
	"		case $line in\n"
	"		:files) files=_files ;;\n"
	"		:directories) files='_files -/' ;;\n"
	"		:nospace) space=(-S '') ;;\n"
	"		*) names+=(\"${line%%$tab*}\"); shown+=(\"${line/$tab/ -- }\") ;;\n"
	"		esac\n"
	"	done\n"
	"	(( ${#names} )) && compadd $space -l -d shown -a names\n"
	"	[[ -n $files ]] && ${=files}\n"
	"	return 0\n"
	"}\n"
	"[[ $funcstack[1] == _husk ]] && _husk \"$@\" || compdef _husk husk\n";

static const char fish_script[] =
	"# fish completion for husk, printed by `husk completion fish`. The words come from husk itself.\n"
	"function __husk_words\n"
	"	set -l words (commandline -opc)\n"
	"	set -l word (commandline -ct)\n"
	"	for line in ($words[1] completion words -- $words[2..-1] \"$word\" 2>/dev/null)\n"
	"		switch $line\n"
	"			case :files\n"
	"				__fish_complete_path \"$word\"\n"
	"			case :directories\n"
	"				__fish_complete_directories \"$word\"\n"
	"			case :nospace\n"
	"			case '*'\n"
	"				echo $line\n"
	"		end\n"
	"	end\n"
	"end\n"
	"complete -c husk -f -a '(__husk_words)'\n";

static const struct {
	const char *shell, *script;
} scripts[] = { { "bash", bash_script }, { "zsh", zsh_script }, { "fish", fish_script } };

static int completion_run(struct cli *cli, void *arguments, int argc, char **argv, struct husk_error *err)
{
	struct completing completing = { 0 };

	(void)cli, (void)arguments;
	for (size_t i = 0; i < ARRAY_SIZE(scripts); i++) {
		if (!str_equal(argv[0], scripts[i].shell))
			continue;
		if (argc > 1)
			return husk_fail(err, HUSK_INVALID, "completion %s: unexpected '%s'", argv[0], argv[1]);
		fputs(scripts[i].script, stdout);
		return 0;
	}
	if (!str_equal(argv[0], "words"))
		return husk_fail(err, HUSK_INVALID, "completion for '%s' is not supported; give bash, zsh or fish",
				 argv[0]);
	int first = argc > 1 && str_equal(argv[1], "--") ? 2 : 1;
	if (first == argc)
		return husk_fail(err, HUSK_INVALID, "completion words needs the words of a command line");
	complete(&completing, argc - first, argv + first);
	if (completing.husk)
		husk_close(completing.husk);
	return 0;
}

const struct cli_command cli_completion = {
	.name = "completion",
	.operands = "bash|zsh|fish",
	.summary = "Print the completion script of a shell",
	.details = "Packages and `make install` put it in its place. By hand:\n"
		   "  bash   source <(husk completion bash)\n"
		   "  zsh    source <(husk completion zsh)\n"
		   "  fish   husk completion fish | source\n",
	.min = 1,
	.max = -1,
	.stop_after = 1,
	.offline = true,
	.run = completion_run,
};
