/*
 * `husk config show`: every setting of this machine, its value, and the source of the value.
 */
#include "cli/cli.h"
#include "config/config.h"

static json_t *setting_json(const struct config_setting *setting)
{
	return json_pack("{s:s, s:s?, s:s, s:s, s:s, s:s}", "key", setting->key, "value", setting->value, "source",
			 setting->source ? setting->source : "default", "default", setting->fallback, "environment",
			 setting->environment, "meaning", setting->meaning);
}

static int run_config_show(struct cli *cli, void *arguments, int argc, char **argv, struct husk_error *err)
{
	struct config_setting *list = NULL;

	(void)arguments, (void)argc, (void)argv;
	if (config_list(&list, err) < 0)
		return -1;
	json_t *all = json_array();
	if (!cli->json)
		printf("%-23s %-36s %s\n", "SETTING", "VALUE", "FROM");
	for (const struct config_setting *setting = list; setting->key; setting++) {
		if (cli->json)
			json_array_append_new(all, setting_json(setting));
		else
			printf("%-23s %-36s %s\n", setting->key, setting->value ? setting->value : setting->fallback,
			       setting->source ? setting->source : "default");
	}
	config_free(list);
	if (cli->json)
		return output_json(all, err);
	json_decref(all);
	return 0;
}

const struct cli_command cli_config_show = {
	.name = "config show",
	.operands = "",
	.summary = "Show the settings of this machine, and the source of each",
	.details = "Settings are read from /etc/husk/husk.toml (or the file that HUSK_CONFIG names), then from the "
		   "files of\n"
		   "conf.d beside it, in the order of their names. The environment overrides them, options override "
		   "both.\n"
		   "--json also prints the meaning of each setting.\n",
	.offline = true,
	.run = run_config_show,
};
