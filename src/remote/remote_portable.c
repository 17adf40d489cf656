/*
 * Portable machines over the API: an export is a download, an import an upload of the tar. Pushes and pulls happen on
 * the server's host, because logins and trusted keys belong to the instance.
 */
#include <fcntl.h>

#include "remote/remote_http.h"
#include "remote/remote_read.h"

#define TAR_TYPE "application/x-tar"

int remote_export(struct remote *remote, const char *family, const char *name,
		  const struct husk_export_options *options, husk_sink sink, void *data, struct husk_error *err)
{
	struct exchange x = { .method = "GET", .sink = sink, .sink_data = data };

	x.target = target_make("/v1/%s/%s/export", family, name);
	if (options && options->files)
		x.target = target_add(x.target, "files", "true");
	return exchange_run(remote, &x, NULL, err);
}

static ssize_t read_tar(void *data, void *bytes, size_t size)
{
	return read_full(*(int *)data, bytes, size);
}

static int import(struct remote *remote, const char *family, const struct husk_import_options *options, json_t **out,
		  struct husk_error *err)
{
	cleanup_close int fd = -1;
	struct exchange x = {
		.method = "POST", .type = TAR_TYPE, .source = options->source, .source_data = options->source_data
	};

	if (options->reference)
		return remote_refuse(remote, "pulling a machine", "do it on the server's host, or import a file", err);
	if (options->path) {
		fd = open(options->path, O_RDONLY | O_CLOEXEC);
		if (fd < 0)
			return husk_fail_errno(err, "cannot read '%s'", options->path);
		x.source = read_tar;
		x.source_data = &fd;
	}
	if (!x.source)
		return husk_fail(err, HUSK_INVALID, "give one of a file, a source and a name in a registry");
	x.target = target_add(target_make("/v1/%s/import", family), "name", options->name);
	return exchange_run(remote, &x, out, err);
}

int remote_snapshot_import(struct remote *remote, const struct husk_import_options *options, struct husk_snapshot **out,
			   struct husk_error *err)
{
	cleanup_json json_t *document = NULL;

	if (import(remote, "snapshots", options, &document, err) < 0)
		return -1;
	if (!out)
		return 0;
	*out = read_snapshot(document, err);
	return *out ? 0 : -1;
}

int remote_template_import(struct remote *remote, const struct husk_import_options *options, struct husk_template **out,
			   struct husk_error *err)
{
	cleanup_json json_t *document = NULL;

	if (import(remote, "templates", options, &document, err) < 0)
		return -1;
	if (!out)
		return 0;
	*out = read_template(document, err);
	return *out ? 0 : -1;
}
