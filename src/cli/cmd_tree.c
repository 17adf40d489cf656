/*
 * `husk tree`: draws families of sandboxes and snapshots, each below its origin.
 */
#include "cli/cli.h"

struct tree_arguments {
	bool all;
};

static const struct option_spec tree_options[] = {
	OPTION('a', "all", OPTION_FLAG, struct tree_arguments, all, NULL,
	       "also ended sandboxes with no living descendants"),
	{ 0 },
};

static const char *text_of(const json_t *node, const char *key)
{
	const char *text = json_string_value(json_object_get(node, key));

	return text ? text : "";
}

/* "sb-…  name  ended (killed)  6 s": the existing ones of these, in this order. */
static int add_word(struct buf *line, const char *word)
{
	return *word ? buf_printf(line, "%s%s", line->size ? "  " : "", word) : 0;
}

static int add_state(struct buf *line, const json_t *node)
{
	const char *reason = text_of(node, "end_reason"), *state = text_of(node, "state");

	if (*reason)
		return buf_printf(line, "  %s (%s)", state, reason);
	return add_word(line, *state ? state : text_of(node, "kind"));
}

static void draw_one(const json_t *node, bool is_root)
{
	cleanup_buf struct buf line = { 0 };
	json_int_t bytes = json_integer_value(json_object_get(node, "bytes"));
	int64_t born = time_parse(text_of(node, "created_at"));
	char word[32];
	int bad = add_word(&line, text_of(node, "id"));

	bad |= add_word(&line, text_of(node, "name"));
	bad |= add_state(&line, node);
	if (born > 0) {
		output_age(time_wall_ms() - born, word, sizeof(word));
		bad |= add_word(&line, word);
	}
	if (bytes > 0) {
		output_size((uint64_t)bytes, word, sizeof(word));
		bad |= add_word(&line, word);
	}
	if (is_root && *text_of(node, "template"))
		bad |= buf_printf(&line, "  from %s", text_of(node, "template"));
	output_safe(stdout, bad ? text_of(node, "id") : line.data, false);
	puts(json_is_true(json_object_get(node, "asked")) ? "  *" : "");
}

static void draw(const json_t *node, struct buf *margin)
{
	const json_t *children = json_object_get(node, "children");
	size_t count = json_array_size(children), before = margin->size;

	draw_one(node, before == 0);
	for (size_t i = 0; i < count; i++) {
		bool last = i + 1 == count;

		printf("%.*s%s", (int)margin->size, margin->data ? margin->data : "", last ? "└─ " : "├─ ");
		if (buf_append_string(margin, last ? "   " : "│  ") == 0)
			draw(json_array_get(children, i), margin);
		margin->size = before;
	}
}

static int tree_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	const struct tree_arguments *arguments = data;
	cleanup_json json_t *families = NULL;
	cleanup_buf struct buf margin = { 0 };

	if (json_tree(cli->husk, argc > 0 ? argv[0] : NULL, arguments->all, &families, err) < 0)
		return -1;
	if (cli->json)
		return output_json(json_incref(families), err);
	for (size_t i = 0; i < json_array_size(families); i++)
		draw(json_array_get(families, i), &margin);
	return 0;
}

const struct cli_command cli_tree = {
	.name = "tree",
	.operands = "[SANDBOX|SNAPSHOT]",
	.summary = "Draw families: forks, snapshots, and the sandboxes created from them",
	.details = "With an operand, draws its whole family, including ended sandboxes. Without an operand, draws all "
		   "live sandboxes,\n"
		   "snapshots and their ancestors.\n",
	.groups = { { tree_options, 0 } },
	.arguments_size = sizeof(struct tree_arguments),
	.max = 1,
	.run = tree_run,
};
