/*
 * Baking: booting a template's root image once and saving it while it runs; see bake.c.
 */
#ifndef HUSK_BAKE_H
#define HUSK_BAKE_H

#include "instance/instance.h"
#include "store/template.h"

/* Keeps in a version's directory what its bakes go by. */
int bake_recipe(const struct template_definition *definition, const char *directory, struct husk_error *err);
/* Bakes the root image in `directory` for this disk size, unless that is done:
 * <directory>/baked/<disk bytes>[-<variant of the engine>]. */
int bake_directory(struct husk *husk, const char *isolation, const char *directory, uint64_t disk_bytes,
		   struct husk_error *err);
/* Where the image of a template version is that sandboxes of this disk size continue, baked or not (caller frees). */
char *bake_path(struct husk *husk, const char *isolation, const char *digest, uint64_t disk_bytes,
		struct husk_error *err);
/* Makes sure that the template version is baked for this disk size, and returns the image's directory (caller frees). */
char *bake_image(struct husk *husk, const struct catalog_template *version, uint64_t disk_bytes,
		 struct husk_error *err);

#endif
