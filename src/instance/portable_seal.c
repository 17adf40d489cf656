/*
 * Portable machines that are encrypted with a passphrase (store/sealed.h). Exports are encrypted and imports decrypted
 * on the side of the caller: neither a server nor a cell sees the passphrase.
 */
#include <fcntl.h>

#include "instance/portable.h"
#include "store/sealed.h"

struct portable_opening {
	struct unsealed *unsealed;
	int fd; /* of the file; -1: a source */
};

static ssize_t read_file(void *data, void *bytes, size_t size)
{
	return read_full(*(int *)data, bytes, size);
}

static void opening_free(struct portable_opening *opening)
{
	unsealed_free(opening->unsealed);
	fd_close(&opening->fd);
	free(opening);
}

int portable_opening_begin(const struct husk_import_options *options, struct husk_import_options *plain,
			   struct portable_opening **out, struct husk_error *err)
{
	if (options->reference || !options->path == !options->source)
		return husk_fail_field(err, "passphrase",
				       "a passphrase goes with a file or a source, not with a registry");
	struct portable_opening *opening = calloc(1, sizeof(*opening));
	if (!opening)
		return husk_fail_memory(err);
	*opening = (struct portable_opening){ .fd = -1 };
	int result = 0;
	if (options->path && (opening->fd = open(options->path, O_RDONLY | O_CLOEXEC)) < 0)
		result = husk_fail_errno(err, "cannot read '%s'", options->path);
	if (result == 0)
		result = unsealed_begin(options->passphrase, options->path ? read_file : options->source,
					options->path ? &opening->fd : options->source_data, &opening->unsealed, err);
	if (result < 0) {
		opening_free(opening);
		return -1;
	}
	*plain = *options;
	plain->path = plain->passphrase = NULL;
	plain->source = unsealed_source;
	plain->source_data = opening->unsealed;
	*out = opening;
	return 0;
}

int portable_opening_end(struct portable_opening *opening, int result, struct husk_error *err)
{
	const struct husk_error *why = unsealed_why(opening->unsealed);

	if (result < 0 && why->code)
		husk_fail(err, why->code, "%s", why->message);
	opening_free(opening);
	return result;
}

int portable_sealed_export(portable_export_call export, struct husk *husk, const char *name,
			   const struct husk_export_options *options, husk_sink sink, void *data,
			   struct husk_error *err)
{
	struct husk_export_options plain = *options;
	struct sealed *sealed = NULL;

	plain.passphrase = NULL;
	if (sealed_begin(options->passphrase, sink, data, &sealed, err) < 0)
		return -1;
	int result = export(husk, name, &plain, sealed_sink, sealed, err);
	if (result == 0)
		result = sealed_end(sealed, err);
	sealed_free(sealed);
	return result;
}
