/*
 * `husk token create|ls|rm`: who may use this instance over HTTP, as which tenant, and with which quotas. A token's secret
 * is shown once, when the token is created, and is not stored.
 */
#include "cli/cli.h"

struct token_arguments {
	const char *tenant;
	bool admin, e2b, daytona;
	int64_t ttl_seconds, max_sandboxes;
	uint64_t max_memory_bytes, max_snapshot_bytes;
};

#define QUOTA_MAX ((int64_t)1 << 50)

static const struct option_spec token_options[] = {
	OPTION(0, "tenant", OPTION_STRING, struct token_arguments, tenant, "NAME",
	       "the tenant whose objects it gives access to (defaults to the name of the token)"),
	OPTION(0, "admin", OPTION_FLAG, struct token_arguments, admin, NULL, "give access to the whole instance"),
	OPTION(0, "e2b", OPTION_FLAG, struct token_arguments, e2b, NULL,
	       "a secret in the format of E2B's keys (E2B_API_KEY; docs/compat.md)"),
	OPTION(0, "daytona", OPTION_FLAG, struct token_arguments, daytona, NULL,
	       "print the two variables that Daytona's clients read (DAYTONA_API_URL, DAYTONA_API_KEY; "
	       "docs/compat.md)"),
	OPTION(0, "ttl", OPTION_SECONDS, struct token_arguments, ttl_seconds, "TIME", "how long it is valid (no limit)",
	       .min = 1, .max = 10ll * 365 * 24 * 3600),
	OPTION(0, "max-sandboxes", OPTION_INTEGER, struct token_arguments, max_sandboxes, "N",
	       "maximum number of live sandboxes, including hibernated ones", .min = 1, .max = 1000000),
	OPTION(0, "max-memory", OPTION_SIZE, struct token_arguments, max_memory_bytes, "SIZE",
	       "maximum memory of all running sandboxes", .min = 64ll << 20, .max = QUOTA_MAX),
	OPTION(0, "max-snapshots", OPTION_SIZE, struct token_arguments, max_snapshot_bytes, "SIZE",
	       "maximum bytes of snapshots", .min = 1 << 20, .max = QUOTA_MAX),
	{ 0 },
};

/* ---- create ---- */

static int token_create_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	const struct token_arguments *arguments = data;
	struct husk_token_options options = {
		.name = argv[0],
		.tenant = arguments->tenant,
		.admin = arguments->admin,
		.e2b = arguments->e2b,
		.ttl_seconds = arguments->ttl_seconds,
		.max_sandboxes = (uint32_t)arguments->max_sandboxes,
		.max_memory_bytes = arguments->max_memory_bytes,
		.max_snapshot_bytes = arguments->max_snapshot_bytes,
	};
	cleanup_token struct husk_token *token = NULL;
	cleanup_wipe char *secret = NULL;

	(void)argc;
	if (husk_token_create(cli->husk, &options, &secret, &token, err) < 0)
		return -1;
	if (cli->json) {
		json_t *document = json_token(token);
		if (document)
			json_object_set_new(document, "token", json_string(secret));
		return output_json(document, err);
	}
	if (arguments->daytona) {
		printf("DAYTONA_API_URL=http://127.0.0.1:7820/daytona\nDAYTONA_API_KEY=%s\n", secret);
		output_note(
			"keep it now: it is not shown again (put your server's address there; husk token rm %s revokes "
			"it)",
			token->name);
	} else {
		puts(secret);
		output_note("keep it now: it is not shown again (%s=… for clients; husk token rm %s revokes it)",
			    arguments->e2b ? "E2B_API_KEY" : "HUSK_TOKEN", token->name);
	}
	return 0;
}

/* ---- ls, rm ---- */

static const char *token_status(const struct husk_token *token)
{
	if (token->revoked)
		return "revoked";
	return token->expires_ms && token->expires_ms <= time_wall_ms() ? "expired" : "good";
}

static void cell_quota(struct table *table, uint64_t limit)
{
	if (limit)
		table_size(table, limit);
	else
		table_cell(table, NULL);
}

static int tokens_table(struct husk_token *const *list, struct husk_error *err)
{
	static const char *const heading[] = { "ID",  "NAME",      "TENANT", "STATUS",
					       "AGE", "SANDBOXES", "MEMORY", "SNAPSHOTS" };
	cleanup_table struct table table;

	table_begin(&table, heading, ARRAY_SIZE(heading));
	for (size_t i = 0; list[i]; i++) {
		table_cell(&table, list[i]->id);
		table_cell(&table, list[i]->name);
		table_cell(&table, list[i]->admin ? "(admin)" : list[i]->tenant);
		table_cell(&table, token_status(list[i]));
		table_age(&table, list[i]->created_ms);
		if (list[i]->max_sandboxes)
			table_cellf(&table, "%u", list[i]->max_sandboxes);
		else
			table_cell(&table, NULL);
		cell_quota(&table, list[i]->max_memory_bytes);
		cell_quota(&table, list[i]->max_snapshot_bytes);
	}
	return table_print(&table, err);
}

static int token_ls_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	cleanup_tokens struct husk_token **list = NULL;

	(void)data, (void)argc, (void)argv;
	if (husk_token_list(cli->husk, &list, err) < 0)
		return -1;
	return cli->json ? output_json(json_tokens(list), err) : tokens_table(list, err);
}

static int token_rm_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	cleanup_json json_t *revoked = json_array();

	(void)data, (void)argc;
	for (; *argv; argv++) {
		if (husk_token_revoke(cli->husk, *argv, err) < 0)
			return -1;
		if (!cli->json)
			puts(*argv);
		if (json_array_append_new(revoked,
					  json_pack("{s:o, s:b}", "token", json_text0(*argv), "revoked", true)) < 0)
			return husk_fail_memory(err);
	}
	return cli->json ? output_json(json_incref(revoked), err) : 0;
}

const struct cli_command cli_token_create = {
	.name = "token create",
	.operands = "NAME",
	.summary = "Create a token for the server, and show its secret once",
	.details = "A token gives access to one tenant, which sees only its own objects. The quotas apply when this "
		   "token is used.\n",
	.groups = { { token_options, 0 } },
	.arguments_size = sizeof(struct token_arguments),
	.min = 1,
	.max = 1,
	.run = token_create_run,
};

const struct cli_command cli_token_ls = {
	.name = "token ls",
	.operands = "",
	.summary = "List tokens, including revoked ones",
	.run = token_ls_run,
};

const struct cli_command cli_token_rm = {
	.name = "token rm",
	.operands = "TOKEN…",
	.summary = "Revoke tokens at once, by id or name",
	.min = 1,
	.max = -1,
	.run = token_rm_run,
};
