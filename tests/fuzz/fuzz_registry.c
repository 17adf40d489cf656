/*
 * Fuzzes what registries and strangers say to a pull: names of images, WWW-Authenticate, docker's config.json, what a
 * credential helper prints, and indexes and manifests as pull.c reads them. Whatever comes, a name that is accepted reads
 * the same when it is written out and read again, nothing that becomes part of a URL leaves its alphabet, and a challenge is
 * either whole or none.
 */
#include "registry/challenge.h"
#include "registry/credentials.h"
#include "registry/pull.h"
#include "registry/reference.h"

static void require(bool condition)
{
	if (!condition)
		abort();
}

static void feed_reference(const char *text, const char *registry)
{
	struct reference first = { 0 }, second = { 0 };

	if (reference_parse(text, registry, &first, NULL) < 0)
		return;
	cleanup_free char *name = reference_name(&first);
	require(name != NULL);
	require(first.repository[strspn(first.repository, "abcdefghijklmnopqrstuvwxyz0123456789._-/")] == '\0');
	require(!strstr(first.repository, "..") && !strstr(first.repository, "//"));
	require(!strpbrk(first.host, "/@?# \t\r\n") && (first.tag != NULL) != (first.digest != NULL));
	require(!first.tag || !strpbrk(first.tag, "/@?#: \t\r\n"));
	require(reference_parse(name, "elsewhere.example", &second, NULL) == 0);
	cleanup_free char *again = reference_name(&second);
	require(str_equal(name, again) && reference_is_image(name));
	(void)reference_is_loopback(first.host);
	require(reference_listed(first.host, first.host));
	reference_free(&first);
	reference_free(&second);
}

static void feed_challenge(const char *text)
{
	struct challenge challenge;

	challenge_parse(text, &challenge);
	for (const char *at = challenge.realm; *at; at++)
		require(*at > ' ' && *at <= '~');
	require(challenge.scheme == CHALLENGE_BEARER ? challenge.realm[0] != '\0' : true);
	cleanup_free char *token = challenge_token(text);
	require(!token || (*token && !strpbrk(token, " \t\r\n")));
	require(challenge.scheme != CHALLENGE_NONE || (!challenge.realm[0] && !challenge.scope[0]));
}

static void feed_credentials(const char *text)
{
	struct credentials found = { 0 };
	cleanup_free char *helper = NULL, *server = NULL;

	if (credentials_read(text, "localhost:5000", &found, &helper, &server, NULL) == 0) {
		require((found.user != NULL) == (found.secret != NULL) && (helper != NULL) == (server != NULL));
		require(!helper || !strpbrk(helper, "/ \n"));
	}
	credentials_free(&found);
	if (credentials_helped(text, &found, NULL) == 0 && found.user) {
		cleanup_free char *header = credentials_basic(&found);
		require(header && !strpbrk(header, "\r\n"));
	}
	credentials_free(&found);
}

static void feed_documents(const char *text)
{
	struct oci_image image = { 0 };
	char digest[OCI_HEX_LENGTH + 1] = "";
	uint64_t size = 0;
	cleanup_strv char **tags = NULL;

	(void)pull_kind(text);
	if (pull_tags(text, &tags) == 0)
		for (char **tag = tags; tag && *tag; tag++)
			require(reference_is_tag(*tag));
	if (oci_choose_first(text, "image", digest, &size, NULL) == 0)
		require(strspn(digest, "0123456789abcdef") == OCI_HEX_LENGTH);
	if (oci_manifest(text, "image", &image, digest, &size, NULL) == 0)
		for (size_t i = 0; i < image.layer_count; i++)
			require(strspn(image.layers[i].digest, "0123456789abcdef") == OCI_HEX_LENGTH);
	if (oci_config(text, "image", false, &image, NULL) == 0)
		require(!image.directory || image.directory[0] == '/');
	oci_image_free(&image);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	cleanup_free char *text = strndup((const char *)data, size);

	if (!text)
		return 0;
	feed_reference(text, NULL);
	feed_reference(text, "localhost:5000/mirror");
	feed_reference("tool", text);
	feed_challenge(text);
	feed_credentials(text);
	feed_documents(text);
	return 0;
}
