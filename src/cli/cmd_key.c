/*
 * `husk key show|ls|trust|rm`: the key that signs the exports of this instance, and the keys whose exports it accepts.
 */
#include "cli/cli.h"

static int key_show_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	cleanup_free char *key = NULL;

	(void)data, (void)argc, (void)argv;
	if (husk_key_show(cli->husk, &key, err) < 0)
		return -1;
	if (cli->json)
		return output_json(json_pack("{s:s}", "key", key), err);
	puts(key);
	return 0;
}

static void free_keys(struct husk_key ***list)
{
	husk_key_list_free(*list);
}

static int key_ls_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	static const char *const heading[] = { "NAME", "KEY" };
	cleanup(free_keys) struct husk_key **list = NULL;
	cleanup_table struct table table;
	cleanup_json json_t *all = json_array();

	(void)data, (void)argc, (void)argv;
	table_begin(&table, heading, ARRAY_SIZE(heading));
	if (husk_key_list(cli->husk, &list, err) < 0)
		return -1;
	for (size_t i = 0; list[i]; i++) {
		table_cell(&table, list[i]->name);
		table_cell(&table, list[i]->key);
		json_array_append_new(all, json_pack("{s:s, s:s}", "name", list[i]->name, "key", list[i]->key));
	}
	return cli->json ? output_json(json_incref(all), err) : table_print(&table, err);
}

static int key_trust_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	(void)data;
	return husk_key_trust(cli->husk, argv[0], argc > 1 ? argv[1] : NULL, err);
}

static int key_rm_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	(void)data, (void)argc;
	return remove_each(cli, argv, husk_key_remove, err);
}

const struct cli_command cli_key_show = {
	.name = "key show",
	.operands = "",
	.summary = "Show the public key that signs the exports of this instance",
	.run = key_show_run,
};

const struct cli_command cli_key_ls = {
	.name = "key ls",
	.operands = "",
	.summary = "List the trusted keys",
	.run = key_ls_run,
};

const struct cli_command cli_key_trust = {
	.name = "key trust",
	.operands = "KEY [NAME]",
	.summary = "Accept machines that are signed by this key",
	.details = "KEY is the output of `husk key show` on the host that exported the machine. Get it in a way that "
		   "you trust: the owner\n"
		   "of a trusted key can give this host machines to run.\n",
	.min = 1,
	.max = 2,
	.run = key_trust_run,
};

const struct cli_command cli_key_rm = {
	.name = "key rm",
	.operands = "NAME…",
	.summary = "Remove keys from the list of trusted keys",
	.min = 1,
	.max = -1,
	.run = key_rm_run,
};
