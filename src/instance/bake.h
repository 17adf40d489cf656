/*
 * Baking: booting a template's root image once and saving it while it runs; see bake.c.
 */
#ifndef HUSK_BAKE_H
#define HUSK_BAKE_H

#include "instance/instance.h"
#include "store/template.h"

/* Writes the settings of a version's bakes into its directory. */
int bake_recipe(const struct template_definition *definition, const char *directory, struct husk_error *err);
/* Bakes the root image in `directory` for this disk size, if that was not done yet: <directory>/baked/<disk
 * bytes>[-<variant of the engine>]. */
int bake_directory(struct husk *husk, const char *isolation, const char *directory, uint64_t disk_bytes,
		   struct husk_error *err);
/* The path of the image that sandboxes of this template version and disk size continue, baked or not (caller frees). */
char *bake_path(struct husk *husk, const char *isolation, const char *digest, uint64_t disk_bytes,
		struct husk_error *err);
/* Bakes the template version for this disk size if necessary, and returns the directory of the image (caller frees). */
char *bake_image(struct husk *husk, const struct catalog_template *version, uint64_t disk_bytes,
		 struct husk_error *err);

#endif
