/*
 * Portable machines over HTTP: exports are downloads, imports uploads of a tar. Callers can export what they can see.
 * Only the owner can import, because an import adds a root image. Outside a cell, libhusk reads no part of an upload
 * before its signature is verified.
 */
#include "server/api_files.h"
#include "server/server.h"

#define TAR_TYPE "application/x-tar"

static int handle_export_snapshot(struct request *request, struct husk_error *err)
{
	static const char *const known[] = { "files", NULL };
	struct files_download download = { .request = request, .status = 200, .type = TAR_TYPE, .length = -1 };
	struct husk_export_options options = { 0 };

	if (request_query_known(request, known, err) < 0 ||
	    request_query_bool(request, "files", false, &options.files, err) < 0)
		return -1;
	int result = husk_snapshot_export(request_husk(request), request_path(request, "id"), &options, files_sink,
					  &download, err);
	return files_download_end(&download, result, err);
}

static int handle_export_template(struct request *request, struct husk_error *err)
{
	static const char *const known[] = { NULL };
	struct files_download download = { .request = request, .status = 200, .type = TAR_TYPE, .length = -1 };

	if (request_query_known(request, known, err) < 0)
		return -1;
	int result = husk_template_export(request_husk(request), request_path(request, "name"), NULL, files_sink,
					  &download, err);
	return files_download_end(&download, result, err);
}

static int import_options(struct request *request, struct husk_import_options *out, struct husk_error *err)
{
	static const char *const known[] = { "name", NULL };

	*out = (struct husk_import_options){ .name = request_query(request, "name"),
					     .source = files_source,
					     .source_data = request };
	return request_query_known(request, known, err);
}

static int handle_import_snapshot(struct request *request, struct husk_error *err)
{
	cleanup_snapshot struct husk_snapshot *snapshot = NULL;
	struct husk_import_options options;

	if (import_options(request, &options, err) < 0 ||
	    husk_snapshot_import(request_husk(request), &options, &snapshot, err) < 0)
		return -1;
	return respond_json(request, 201, json_snapshot(snapshot), err);
}

static int handle_import_template(struct request *request, struct husk_error *err)
{
	cleanup_husk_template struct husk_template *template = NULL;
	struct husk_import_options options;

	if (import_options(request, &options, err) < 0 ||
	    husk_template_import(request_husk(request), &options, &template, err) < 0)
		return -1;
	return respond_json(request, 201, json_template(template), err);
}

const struct route portable_routes[] = {
	{ "GET", "/v1/snapshots/{id}/export", handle_export_snapshot, ROUTE_STREAM },
	{ "POST", "/v1/snapshots/import", handle_import_snapshot, ROUTE_STREAM | ROUTE_ADMIN },
	{ "GET", "/v1/templates/{name}/export", handle_export_template, ROUTE_STREAM },
	{ "POST", "/v1/templates/import", handle_import_template, ROUTE_STREAM | ROUTE_ADMIN },
	{ 0 },
};
