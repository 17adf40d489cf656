/*
 * Portable machines of this instance: export, import, push and pull. See portable_export.c, portable_import.c and
 * portable_transfer.c; the format is store/portable.h.
 */
#ifndef HUSK_INSTANCE_PORTABLE_H
#define HUSK_INSTANCE_PORTABLE_H

#include "instance/instance.h"
#include "store/portable.h"

/* A machine that is ready to be written or sent. */
struct portable_export {
	struct portable portable;
	struct portable_pack pack;
	char *description, *manifest; /* the two documents */
};
void portable_export_free(struct portable_export *export);

/* `files` is a tar of the snapshot's files; -1: it goes without them. */
int portable_export_snapshot(struct husk *husk, const char *snapshot, int files,
			     const struct husk_export_options *options, struct portable_export *out,
			     struct husk_error *err);
int portable_export_template(struct husk *husk, const char *name, const struct husk_export_options *options,
			     struct portable_export *out, struct husk_error *err);

/* The folders of a machine that an import needs, as words of one text ("root image"), without those that this host
 * already has. *held is the lock of the existing version, which keeps it until the import has ended; -1: none. */
const char *portable_folders(struct husk *husk, const struct portable *portable, bool as_template, int *held);
/* Downloads the machine options->reference, as far as an import needs it, as a tar into a file without a name. */
int portable_download(struct husk *husk, const struct husk_import_options *options, bool as_template, int *held,
		      struct husk_error *err);
/* Is there a registry at this name, and does it take the login? Asked before a machine is packed. */
int portable_reach(const char *reference, struct husk_error *err);
/* Sends a machine. */
int portable_upload(const struct portable_export *export, const char *reference, husk_progress progress, void *data,
		    struct husk_pushed **out, struct husk_error *err);

/* DENIED, with the command that trusts it, unless the key is trusted. */
int portable_trusted(struct husk *husk, const char *key, struct husk_error *err);
/* What of the processor programs may use: names as in /proc/cpuinfo, for strv_free. */
int portable_features(char ***out, struct husk_error *err);

/* ---- portable_seal.c ---- */

/* An import with a passphrase: *plain are the options without the passphrase. portable_opening_end returns `result`; if
 * the decryption failed, err has its error. */
struct portable_opening;
int portable_opening_begin(const struct husk_import_options *options, struct husk_import_options *plain,
			   struct portable_opening **out, struct husk_error *err);
int portable_opening_end(struct portable_opening *opening, int result, struct husk_error *err);

/* husk_snapshot_export or husk_template_export with a passphrase: calls it without one. */
typedef int (*portable_export_call)(struct husk *husk, const char *name, const struct husk_export_options *options,
				    husk_sink sink, void *data, struct husk_error *err);
int portable_sealed_export(portable_export_call export, struct husk *husk, const char *name,
			   const struct husk_export_options *options, husk_sink sink, void *data,
			   struct husk_error *err);

#endif
