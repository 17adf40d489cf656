/*
 * Parses names of images (reference.h). The grammar is Docker's: host, folders in lower case, tag or digest.
 */
#include "registry/reference.h"

#include <arpa/inet.h>
#include <ctype.h>

#define NAME_MAX_LENGTH 255
#define TAG_MAX_LENGTH 128
#define HEX_LENGTH 64
#define LOWER "abcdefghijklmnopqrstuvwxyz0123456789"

void reference_free(struct reference *reference)
{
	free(reference->host);
	free(reference->repository);
	free(reference->tag);
	free(reference->digest);
	*reference = (struct reference){ 0 };
}

/* ---- hosts ---- */

static bool port_valid(const char *text)
{
	int64_t port;

	return strlen(text) <= 5 && str_to_int64(text, 1, 65535, &port) == 0 && isdigit((unsigned char)text[0]);
}

/* "[::1]" or "[::1]:5000" */
static bool bracket_valid(const char *host)
{
	const char *end = strchr(host, ']');
	cleanup_free char *inside = end ? strndup(host + 1, (size_t)(end - host - 1)) : NULL;
	struct in6_addr address;

	if (!inside || inet_pton(AF_INET6, inside, &address) != 1)
		return false;
	return !end[1] || (end[1] == ':' && port_valid(end + 2));
}

static bool host_valid(const char *host)
{
	const char *colon = strchr(host, ':');
	size_t length = colon ? (size_t)(colon - host) : strlen(host);

	if (host[0] == '[')
		return bracket_valid(host);
	if (length == 0 || length > 253 || (colon && !port_valid(colon + 1)))
		return false;
	for (size_t i = 0, label = 0; i <= length; i++) {
		if (i == length || host[i] == '.') {
			if (label == 0 || host[i - 1] == '-')
				return false;
			label = 0;
		} else if (!isalnum((unsigned char)host[i]) && (host[i] != '-' || label == 0)) {
			return false;
		} else {
			label++;
		}
	}
	return true;
}

/* Docker's rule: the text before the first '/' is a host if it could not be a folder. */
static bool looks_like_host(const char *text, size_t length)
{
	return memchr(text, '.', length) || memchr(text, ':', length) || text[0] == '[' ||
	       (length == strlen("localhost") && strncmp(text, "localhost", length) == 0);
}

bool reference_is_loopback(const char *host)
{
	cleanup_free char *name = strndup(host, host[0] == '[' ? strcspn(host, "]") + 1 : strcspn(host, ":"));
	struct in_addr address;

	if (!name)
		return false;
	if (strcasecmp(name, "localhost") == 0 || str_ends(name, ".localhost") || str_equal(name, "[::1]"))
		return true;
	return inet_pton(AF_INET, name, &address) == 1 && ntohl(address.s_addr) >> 24 == 127;
}

bool reference_listed(const char *list, const char *host)
{
	static const char between[] = ", \t\n";

	while (list && *(list += strspn(list, between))) {
		size_t length = strcspn(list, between);
		if (length == strlen(host) && strncasecmp(list, host, length) == 0)
			return true;
		list += length;
	}
	return false;
}

/* ---- folders, tags, digests ---- */

/* One folder: lower case and digits, with '.', one or two '_' or any number of '-' in between. */
static bool folder_valid(const char *text, size_t length)
{
	size_t at = 0;

	while (at < length) {
		size_t word = MIN(strspn(text + at, LOWER), length - at);
		if (word == 0)
			return false;
		at += word;
		if (at == length)
			return true;
		size_t dashes = MIN(strspn(text + at, "-"), length - at);
		size_t lines = MIN(strspn(text + at, "_"), length - at);
		if (dashes)
			at += dashes;
		else if (lines == 1 || lines == 2)
			at += lines;
		else if (text[at] == '.')
			at++;
		else
			return false;
	}
	return false;
}

static bool repository_valid(const char *text)
{
	if (strlen(text) > NAME_MAX_LENGTH)
		return false;
	for (;; text++) {
		size_t length = strcspn(text, "/");
		if (!folder_valid(text, length))
			return false;
		text += length;
		if (!*text)
			return true;
	}
}

bool reference_is_tag(const char *text)
{
	size_t length = strlen(text);

	if (length == 0 || length > TAG_MAX_LENGTH || strchr(".-", text[0]))
		return false;
	for (; *text; text++)
		if (!isalnum((unsigned char)*text) && !strchr("_.-", *text))
			return false;
	return true;
}

static bool digest_valid(const char *text)
{
	static const char prefix[] = "sha256:";

	if (!str_starts(text, prefix))
		return false;
	text += strlen(prefix);
	return strlen(text) == HEX_LENGTH && strspn(text, "0123456789abcdef") == HEX_LENGTH;
}

/* ---- the whole ---- */

/* Removes "@digest" and ":tag" from the end of `rest`. */
static int split_end(const char *text, char *rest, struct reference *out, struct husk_error *err)
{
	char *at = strchr(rest, '@');
	if (at)
		*at++ = '\0';
	char *slash = strrchr(rest, '/'), *colon = strchr(slash ? slash : rest, ':');

	if (at && !digest_valid(at))
		return husk_fail(err, HUSK_INVALID, "image '%.200s': '%.80s' is not sha256: and 64 hexadecimal digits",
				 text, at);
	if (colon)
		*colon++ = '\0';
	if (colon && !reference_is_tag(colon))
		return husk_fail(
			err, HUSK_INVALID,
			"image '%.200s': '%.130s' is not a tag (letters, digits, '_', '.' and '-', at most %d)", text,
			colon, TAG_MAX_LENGTH);
	out->digest = at ? strdup(at) : NULL;
	out->tag = at ? NULL : strdup(colon ? colon : "latest");
	return (at && !out->digest) || (!at && !out->tag) ? husk_fail_memory(err) : 0;
}

/* Chooses the host and the prefix of the name ("library/", or the prefix of HUSK_REGISTRY). */
static int choose_host(const char *rest, const char *registry, char **host, char **before, const char **name,
		       struct husk_error *err)
{
	size_t length = strcspn(rest, "/");
	bool given = rest[length] == '/' && looks_like_host(rest, length);

	if (given) {
		*host = strndup(rest, length);
		*name = rest + length + 1;
		*before = strdup("");
	} else {
		registry = registry && *registry ? registry : REFERENCE_REGISTRY;
		length = strcspn(registry, "/");
		/* Otherwise a whole name could be confused with a folder of the default registry. */
		if (!length || !looks_like_host(registry, length))
			return husk_fail(err, HUSK_INVALID,
					 "HUSK_REGISTRY '%.80s' is not HOST[:PORT][/PREFIX] with a dot or a port",
					 registry);
		*host = strndup(registry, length);
		*name = rest;
		*before = registry[length] && registry[length + 1] ? str_format("%s/", registry + length + 1)
								   : strdup("");
	}
	if (!*host || !*before)
		return husk_fail_memory(err);
	if (!str_equal(*host, "index.docker.io") && !str_equal(*host, "registry-1.docker.io"))
		return 0;
	free(*host);
	*host = strdup(REFERENCE_REGISTRY);
	return *host ? 0 : husk_fail_memory(err);
}

static int fill(const char *text, const char *registry, struct reference *out, struct husk_error *err)
{
	cleanup_free char *rest = strdup(text), *before = NULL;
	const char *name = NULL;

	if (!rest)
		return husk_fail_memory(err);
	/* The colon of the host must not be read as the colon of a tag, so the host is removed last. */
	if (split_end(text, rest, out, err) < 0 || choose_host(rest, registry, &out->host, &before, &name, err) < 0)
		return -1;
	bool bare = str_equal(out->host, REFERENCE_REGISTRY) && !*before && !strchr(name, '/');
	out->repository = str_format("%s%s%s", before, bare ? "library/" : "", name);
	if (!out->repository)
		return husk_fail_memory(err);
	if (!host_valid(out->host))
		return husk_fail(err, HUSK_INVALID, "image '%.200s': '%.80s' is not a registry's HOST[:PORT]", text,
				 out->host);
	if (!repository_valid(out->repository))
		return husk_fail(err, HUSK_INVALID,
				 "image '%.200s': '%.80s' is not a name (lower case, digits, '.', '_', '-' and '/')",
				 text, name);
	return 0;
}

int reference_parse(const char *text, const char *registry, struct reference *out, struct husk_error *err)
{
	*out = (struct reference){ 0 };
	if (!*text || strlen(text) > 2 * NAME_MAX_LENGTH + TAG_MAX_LENGTH)
		return husk_fail(err, HUSK_INVALID, "an image is named [HOST[:PORT]/]NAME[:TAG|@DIGEST]");
	if (fill(text, registry, out, err) == 0)
		return 0;
	reference_free(out);
	return -1;
}

char *reference_name(const struct reference *reference)
{
	return str_format("%s/%s%s%s", reference->host, reference->repository, reference->digest ? "@" : ":",
			  reference->digest ? reference->digest : reference->tag);
}

bool reference_is_image(const char *text)
{
	return text && strpbrk(text, "/:@") != NULL;
}
