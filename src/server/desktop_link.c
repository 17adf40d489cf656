/*
 * Signed links to desktops and browsers; see desktop_link.h. A signature is compared in constant time and is never logged:
 * the access log has paths without queries.
 */
#include "server/desktop_link.h"

#include <openssl/crypto.h>

#define SIGNATURE_LENGTH 64

static const char *const kind_names[] = {
	[LINK_NONE] = "",
	[LINK_VIEW] = "view",
	[LINK_CONTROL] = "control",
	[LINK_BROWSER] = "browser",
};

static int sign(struct request *request, const char *id, enum link_kind kind, int64_t expires, char **out,
		struct husk_error *err)
{
	cleanup_free char *text = str_format("desktop\n%s\n%s\n%lld", id, kind_names[kind], (long long)expires);

	return text ? husk_sign(request_owner(request), text, out, err) : husk_fail_memory(err);
}

enum link_kind link_kind(struct request *request)
{
	const char *access = request_query(request, "husk_access"), *expires = request_query(request, "husk_expires");
	const char *signature = request_query(request, "husk_signature");
	cleanup_free char *expected = NULL;
	enum link_kind kind = LINK_VIEW;
	int64_t until;

	if (!access || !expires || !signature)
		return LINK_NONE;
	while (kind <= LINK_BROWSER && !str_equal(access, kind_names[kind]))
		kind++;
	if (kind > LINK_BROWSER || strlen(signature) != SIGNATURE_LENGTH ||
	    str_to_int64(expires, 1, INT64_MAX / 1000, &until) < 0 || until * 1000 <= time_wall_ms() ||
	    sign(request, request_path(request, "id"), kind, until, &expected, NULL) < 0)
		return LINK_NONE;
	return CRYPTO_memcmp(expected, signature, SIGNATURE_LENGTH) == 0 ? kind : LINK_NONE;
}

bool link_signed(struct request *request, enum link_kind kind)
{
	enum link_kind found = link_kind(request);

	return found != LINK_NONE && (found == kind || (kind == LINK_VIEW && found == LINK_CONTROL));
}

int link_query(struct request *request, const char *id, enum link_kind kind, int64_t expires_seconds, char **out,
	       struct husk_error *err)
{
	cleanup_free char *signature = NULL;

	if (sign(request, id, kind, expires_seconds, &signature, err) < 0)
		return -1;
	*out = str_format("husk_access=%s&husk_expires=%lld&husk_signature=%s", kind_names[kind],
			  (long long)expires_seconds, signature);
	return *out ? 0 : husk_fail_memory(err);
}

char *link_server(struct request *request, bool socket, struct husk_error *err)
{
	cleanup_free char *domain = ports_domain(request, err);
	const char *scheme = socket ? "ws" : "http";

	if (!domain)
		return NULL;
	char *out = str_format("%s%s://%s", scheme, request_secure(request) ? "s" : "", domain);
	if (!out)
		husk_fail_memory(err);
	return out;
}

int link_sandbox(struct request *request, char **id, struct husk_error *err)
{
	struct husk_sandbox *sandbox = NULL;

	if (husk_inspect(request_husk(request), request_path(request, "id"), &sandbox, err) < 0)
		return -1;
	int result = 0;
	if (sandbox->state == HUSK_ENDED)
		result = husk_fail(err, HUSK_GONE, "sandbox %s has ended (%s)", sandbox->id, sandbox->end_reason);
	else if (!(*id = strdup(sandbox->id)))
		result = husk_fail_memory(err);
	husk_sandbox_free(sandbox);
	return result;
}
