/*
 * Fuzzes the documents of container images: the input is taken for an index, for docker's manifest.json, for a manifest and
 * for a config in turn. Whatever it says, digests that come out are hexadecimal, layers have a path, and variables are
 * one line each; and no name is the same as another by accident.
 */
#include "store/oci.h"

static void require(bool condition)
{
	if (!condition)
		abort();
}

static void check_digest(const char *digest)
{
	require(strlen(digest) == OCI_HEX_LENGTH && digest[strspn(digest, "0123456789abcdef")] == '\0');
}

static void check_image(struct oci_image *image, bool digests)
{
	for (size_t i = 0; i < image->layer_count; i++) {
		require(image->layers[i].path && *image->layers[i].path);
		if (digests)
			check_digest(image->layers[i].digest);
	}
	for (char **each = image->environment; each && *each; each++)
		require(strchr(*each, '=') && !strchr(*each, '\n'));
}

static void feed_docker(const char *text)
{
	struct oci_image image = { 0 };
	char digest[OCI_HEX_LENGTH + 1] = "";
	cleanup_free char *config = NULL;

	if (oci_docker(text, "saved", NULL, &image, &config, digest, NULL) == 0) {
		check_digest(digest);
		check_image(&image, false);
		if (oci_config(text, "config", true, &image, NULL) == 0)
			check_image(&image, true);
	}
	oci_image_free(&image);
}

static void feed_layout(const char *text)
{
	struct oci_image image = { 0 };
	char digest[OCI_HEX_LENGTH + 1] = "";
	uint64_t size = 0;

	if (oci_choose(text, "index", NULL, digest, &size, NULL) == 0)
		check_digest(digest);
	if (oci_manifest(text, "manifest", &image, digest, &size, NULL) == 0) {
		check_digest(digest);
		check_image(&image, true);
	}
	oci_image_free(&image);
	if (oci_config(text, "config", false, &image, NULL) == 0)
		check_image(&image, false);
	oci_image_free(&image);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	cleanup_free char *text = strndup((const char *)data, size);
	cleanup_strv char **names = NULL;

	if (!text)
		return 0;
	feed_docker(text);
	feed_layout(text);
	if (oci_names(text, text, "stem", &names, NULL) == 0)
		for (size_t i = 0; names && names[i]; i += 2) {
			require(names[i + 1]);
			require(oci_same_name(names[i], names[i]));
		}
	return 0;
}
