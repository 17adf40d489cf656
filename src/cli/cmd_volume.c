/*
 * `husk volume create|ls|inspect|rm`: directories that outlive sandboxes, which `--volume` mounts into new ones. `husk
 * volume files|read|write`: their files, from outside.
 */
#include <fcntl.h>

#include "cli/cli.h"
#include "cli/interrupt.h"

struct volume_arguments {
	uint64_t size;
};

static const struct option_spec volume_options[] = {
	OPTION(0, "size", OPTION_SIZE, struct volume_arguments, size, "SIZE", "its maximum size (10G)", .min = MEBIBYTE,
	       .max = 16 * TEBIBYTE),
	{ 0 },
};

static int volume_create_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	const struct volume_arguments *arguments = data;
	cleanup_volume struct husk_volume *volume = NULL;

	(void)argc;
	if (husk_volume_create(cli->husk, argv[0], arguments->size, &volume, err) < 0)
		return -1;
	if (cli->json)
		return output_json(json_volume(volume), err);
	puts(volume->id);
	return 0;
}

static int volume_table(struct husk_volume *const *list, struct husk_error *err)
{
	static const char *const heading[] = { "ID", "NAME", "AGE", "USED", "SIZE", "SANDBOXES" };
	cleanup_table struct table table;

	table_begin(&table, heading, ARRAY_SIZE(heading));
	for (size_t i = 0; list[i]; i++) {
		char users[24];
		snprintf(users, sizeof(users), "%zu", strv_length(list[i]->sandboxes));
		table_cell(&table, list[i]->id);
		table_cell(&table, list[i]->name);
		table_age(&table, list[i]->created_ms);
		table_size(&table, list[i]->used_bytes);
		table_size(&table, list[i]->limit_bytes);
		table_cell(&table, users);
	}
	return table_print(&table, err);
}

static int volume_ls_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	cleanup_volumes struct husk_volume **list = NULL;

	(void)data, (void)argc, (void)argv;
	if (husk_volume_list(cli->husk, &list, err) < 0)
		return -1;
	return cli->json ? output_json(json_volumes(list), err) : volume_table(list, err);
}

static int volume_inspect_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	cleanup_volume struct husk_volume *volume = NULL;

	(void)data, (void)argc;
	if (husk_volume_inspect(cli->husk, argv[0], &volume, err) < 0)
		return -1;
	return output_json(json_volume(volume), err);
}

static int volume_rm_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	cleanup_json json_t *removed = json_array();

	(void)data, (void)argc;
	for (; *argv; argv++) {
		cleanup_volume struct husk_volume *volume = NULL;
		if (husk_volume_inspect(cli->husk, *argv, &volume, err) < 0 ||
		    husk_volume_remove(cli->husk, volume->id, err) < 0)
			return -1;
		if (!cli->json)
			puts(volume->id);
		if (json_array_append_new(removed, json_pack("{s:s, s:b}", "id", volume->id, "removed", true)) < 0)
			return husk_fail_memory(err);
	}
	return cli->json ? output_json(json_incref(removed), err) : 0;
}

/* ---- what is in them ---- */

static int volume_files_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	static const char *const heading[] = { "MODE", "TYPE", "SIZE", "PATH" };
	static const char *const types[] = { "?", "file", "directory", "symlink", "other" };
	cleanup_json json_t *array = json_array();
	cleanup_table struct table table;
	struct husk_file *files = NULL;
	size_t count = 0;

	(void)data;
	table_begin(&table, heading, ARRAY_SIZE(heading));
	if (husk_volume_file_list(cli->husk, argv[0], argc > 1 ? argv[1] : "/", 1, &files, &count, err) < 0)
		return -1;
	for (size_t i = 0; i < count; i++) {
		char mode[16];
		snprintf(mode, sizeof(mode), "%04o", files[i].mode);
		table_cell(&table, mode);
		table_cell(&table, types[files[i].type]);
		table_size(&table, files[i].size);
		table_cell(&table, files[i].path);
		json_array_append_new(array, json_file(&files[i]));
	}
	husk_file_list_free(files, count);
	return cli->json ? output_json(json_incref(array), err) : table_print(&table, err);
}

static int to_stdout(void *data, const void *bytes, size_t size)
{
	(void)data;
	return interrupt_seen() || write_full(STDOUT_FILENO, bytes, size) < 0;
}

static int volume_read_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	(void)data, (void)argc;
	return husk_volume_file_read(cli->husk, argv[0], argv[1], 0, 0, to_stdout, NULL, err);
}

static ssize_t from_descriptor(void *data, void *bytes, size_t size)
{
	ssize_t count;

	do
		count = read(*(int *)data, bytes, size);
	while (count < 0 && errno == EINTR && !interrupt_seen());
	return count;
}

static int volume_write_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	cleanup_close int opened = argc > 2 ? open(argv[2], O_RDONLY | O_CLOEXEC) : -1;
	int fd = argc > 2 ? opened : STDIN_FILENO;

	(void)data;
	if (fd < 0)
		return husk_fail_errno(err, "cannot open '%s'", argv[2]);
	return husk_volume_file_write(cli->husk, argv[0], argv[1], NULL, from_descriptor, &fd, err);
}

const struct cli_command cli_volume_create = {
	.name = "volume create",
	.operands = "NAME",
	.summary = "Create a directory that outlives sandboxes",
	.details = "Mount it in a sandbox with --volume NAME:/path (husk run, husk create). Several sandboxes can use "
		   "it at the same time.\n",
	.groups = { { volume_options, 0 } },
	.arguments_size = sizeof(struct volume_arguments),
	.min = 1,
	.max = 1,
	.run = volume_create_run,
};

const struct cli_command cli_volume_ls = {
	.name = "volume ls",
	.operands = "",
	.summary = "List volumes",
	.run = volume_ls_run,
};

const struct cli_command cli_volume_inspect = {
	.name = "volume inspect",
	.operands = "VOLUME",
	.summary = "Show all details of a volume, as JSON",
	.min = 1,
	.max = 1,
	.run = volume_inspect_run,
};

const struct cli_command cli_volume_rm = {
	.name = "volume rm",
	.operands = "VOLUME…",
	.summary = "Remove volumes and their files; a volume that a sandbox uses stays",
	.min = 1,
	.max = -1,
	.run = volume_rm_run,
};

const struct cli_command cli_volume_files = {
	.name = "volume files",
	.operands = "VOLUME [PATH]",
	.summary = "List a directory of a volume",
	.min = 1,
	.max = 2,
	.run = volume_files_run,
};

const struct cli_command cli_volume_read = {
	.name = "volume read",
	.operands = "VOLUME PATH",
	.summary = "Write a file of a volume to stdout",
	.min = 2,
	.max = 2,
	.run = volume_read_run,
};

const struct cli_command cli_volume_write = {
	.name = "volume write",
	.operands = "VOLUME PATH [FILE]",
	.summary = "Write a file, or stdin, into a volume",
	.min = 2,
	.max = 3,
	.run = volume_write_run,
};
