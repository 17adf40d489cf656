/*
 * husk_snapshot_export and its relatives: a portable machine (instance/portable.h) to a sink or a registry. To export
 * the files of a snapshot, a sandbox continues the snapshot for a moment, and its agent packs the files: the disk of a
 * snapshot may be part of its memory, and then only the guest can read it.
 */
#include <fcntl.h>

#include "client/files.h"
#include "instance/portable.h"
#include "wire/wire.h"

#define FILES_TTL_SECONDS 1800
#define FILES_BYTES_MAX (UINT64_C(64) << 30)

/* ---- the files of a snapshot ---- */

struct files {
	int fd; /* a file without a name */
	uint64_t size;
};

static void files_close(struct files *files)
{
	fd_close(&files->fd);
}

static int take_files(void *data, const void *bytes, size_t size)
{
	struct files *files = data;

	files->size += size;
	return files->size > FILES_BYTES_MAX ? -1 : write_full(files->fd, bytes, size);
}

static int gather_files(struct husk *husk, const char *snapshot, struct files *out, struct husk_error *err)
{
	const struct husk_create_options options = { .snapshot = snapshot,
						     .ttl_seconds = FILES_TTL_SECONDS,
						     .egress = &(struct husk_egress){ .mode = "off" } };
	struct husk_sandbox *sandbox = NULL;

	out->fd = open(husk->paths.home, O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
	if (out->fd < 0)
		return husk_fail_errno(err, "cannot make a file in '%s'", husk->paths.home);
	if (husk_create(husk, &options, &sandbox, err) < 0)
		return husk_wrap(err, "cannot continue the snapshot to read its files");
	int result = tar_read_flags(husk, sandbox->id, "/", TAR_OF_IMAGE, take_files, out, err);
	husk_kill(husk, sandbox->id, NULL);
	husk_sandbox_free(sandbox);
	return result;
}

/* ---- export ---- */

static int make_snapshot(struct husk *husk, const char *snapshot, const struct husk_export_options *options,
			 struct portable_export *out, struct husk_error *err)
{
	cleanup(files_close) struct files files = { .fd = -1 };

	if (options && options->files && gather_files(husk, snapshot, &files, err) < 0)
		return -1;
	return portable_export_snapshot(husk, snapshot, files.fd, options, out, err);
}

static int write_out(const struct portable_export *export, const char *name, husk_sink sink, void *data,
		     struct husk_error *err)
{
	return portable_write(&export->pack, export->description, export->manifest, name, sink, data, err);
}

int husk_snapshot_export(struct husk *husk, const char *snapshot, const struct husk_export_options *options,
			 husk_sink sink, void *data, struct husk_error *err)
{
	if (options && options->passphrase)
		return portable_sealed_export(husk_snapshot_export, husk, snapshot, options, sink, data, err);
	if (husk->remote)
		return remote_export(husk->remote, "snapshots", snapshot, options, sink, data, err);
	cleanup(portable_export_free) struct portable_export export = { .pack = { .fd = -1 } };

	if (make_snapshot(husk, snapshot, options, &export, err) < 0)
		return -1;
	return write_out(&export, export.portable.name ? export.portable.name : "snapshot", sink, data, err);
}

int husk_template_export(struct husk *husk, const char *name, const struct husk_export_options *options, husk_sink sink,
			 void *data, struct husk_error *err)
{
	if (options && options->passphrase)
		return portable_sealed_export(husk_template_export, husk, name, options, sink, data, err);
	if (husk->remote)
		return remote_export(husk->remote, "templates", name, options, sink, data, err);
	cleanup(portable_export_free) struct portable_export export = { .pack = { .fd = -1 } };

	if (portable_export_template(husk, name, options, &export, err) < 0)
		return -1;
	return write_out(&export, name, sink, data, err);
}

/* ---- push ---- */

/* Nothing is packed before the name is known to be one, of a registry that answers. */
static int check_push(struct husk *husk, const char *reference, const struct husk_export_options *options,
		      struct husk_error *err)
{
	if (options && options->passphrase)
		return husk_fail_field(
			err, "passphrase",
			"a push is not encrypted: the registry could not share chunks; export into a file");
	if (husk_owner_only(husk, "pushing a machine", err) < 0)
		return -1;
	if (!husk_image_is_name(reference) || strchr(reference, '@'))
		return husk_fail_field(err, "name",
				       "'%.120s' is not the name of a machine in a registry; give REGISTRY/NAME:TAG",
				       reference);
	return portable_reach(reference, err);
}

/* While the machine is packed, nothing is sent yet; the caller can end it. */
static int pack_progress(void *data, uint64_t done, uint64_t all)
{
	const struct husk_export_options *options = data;

	(void)done;
	return options->progress(options->data, 0, all);
}

static struct husk_export_options packing(const struct husk_export_options *options)
{
	return (struct husk_export_options){ .files = options && options->files,
					     .progress = options && options->progress ? pack_progress : NULL,
					     .data = (void *)options };
}

static int push(const struct portable_export *export, const char *reference, const struct husk_export_options *options,
		struct husk_pushed **out, struct husk_error *err)
{
	return portable_upload(export, reference, options ? options->progress : NULL, options ? options->data : NULL,
			       out, err);
}

int husk_snapshot_push(struct husk *husk, const char *snapshot, const char *reference,
		       const struct husk_export_options *options, struct husk_pushed **out, struct husk_error *err)
{
	if (husk->remote)
		return remote_refuse(husk->remote, "pushing a snapshot", "export it, or push it on the server's host",
				     err);
	cleanup(portable_export_free) struct portable_export export = { .pack = { .fd = -1 } };
	const struct husk_export_options first = packing(options);

	if (check_push(husk, reference, options, err) < 0 || make_snapshot(husk, snapshot, &first, &export, err) < 0)
		return -1;
	return push(&export, reference, options, out, err);
}

int husk_template_push(struct husk *husk, const char *name, const char *reference,
		       const struct husk_export_options *options, struct husk_pushed **out, struct husk_error *err)
{
	if (husk->remote)
		return remote_refuse(husk->remote, "pushing a template", "export it, or push it on the server's host",
				     err);
	cleanup(portable_export_free) struct portable_export export = { .pack = { .fd = -1 } };

	const struct husk_export_options first = packing(options);

	if (check_push(husk, reference, options, err) < 0 ||
	    portable_export_template(husk, name, &first, &export, err) < 0)
		return -1;
	return push(&export, reference, options, out, err);
}
