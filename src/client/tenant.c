/*
 * Tenants: tokens that give access to an instance, handles that see what one tenant sees, and the key that signs links.
 * Part of the public API (husk.h has the contracts). Called by the server for every request, and by `husk token`. A token's
 * secret must never be logged, stored or shown; the catalog gets its SHA-256.
 */
#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "instance/instance.h"

#define SECRET_PREFIX "husk_"
#define SECRET_LENGTH 40
#define E2B_PREFIX "e2b_"
#define E2B_BYTES 20
#define SIGNING_KEY_SIZE 32
#define HASH_SIZE 32
#define TTL_MAX (10ll * 365 * 24 * 3600)

static void to_hex(const unsigned char *bytes, char out[static 2 * HASH_SIZE + 1])
{
	for (size_t i = 0; i < HASH_SIZE; i++)
		snprintf(out + 2 * i, 3, "%02x", bytes[i]);
}

static int hash_secret(const char *secret, char out[static 2 * HASH_SIZE + 1], struct husk_error *err)
{
	unsigned char sum[EVP_MAX_MD_SIZE];
	unsigned size = 0;

	if (EVP_Digest(secret, strlen(secret), sum, &size, EVP_sha256(), NULL) != 1 || size != HASH_SIZE)
		return husk_fail(err, HUSK_INTERNAL, "cannot compute a sha256");
	to_hex(sum, out);
	return 0;
}

/* ---- views ---- */

int husk_as(struct husk *husk, const struct husk_token *token, struct husk **out, struct husk_error *err)
{
	if (husk->remote)
		return remote_refuse(husk->remote, "taking on another tenant's view",
				     "open the server with a token of that tenant", err);
	struct catalog_view view = {
		.instance = token->admin,
		.tenant = token->tenant,
		.max_sandboxes = token->max_sandboxes,
		.max_memory_bytes = token->max_memory_bytes,
		.max_snapshot_bytes = token->max_snapshot_bytes,
	};

	if (husk_owner_only(husk, "another tenant's view", err) < 0)
		return -1;
	struct husk *made = calloc(1, sizeof(*made));
	if (!made)
		return husk_fail_memory(err);
	made->paths = husk->paths;
	made->is_view = true;
	if (catalog_as(husk->catalog, &view, &made->catalog, err) < 0) {
		free(made);
		return -1;
	}
	*out = made;
	return 0;
}

/* ---- tokens ---- */

static int check_token(const struct husk_token_options *o, struct husk_error *err)
{
	if (!o->name)
		return husk_fail_field(err, "name",
				       "a token requires a name, which tells people what the token is for");
	if (name_check("name", o->name, err) < 0)
		return -1;
	if (o->admin && o->tenant && *o->tenant)
		return husk_fail_field(err, "tenant",
				       "a token with admin is for the whole instance; leave the tenant out");
	if (o->admin && (o->max_sandboxes || o->max_memory_bytes || o->max_snapshot_bytes))
		return husk_fail_field(err, "admin", "quotas are for tenants; leave them out, or admin");
	if (!o->admin && o->tenant && name_check("tenant", o->tenant, err) < 0)
		return -1;
	if (o->ttl_seconds < 0 || o->ttl_seconds > TTL_MAX)
		return husk_fail_field(err, "ttl_seconds",
				       "ttl must be between 1 second and 10 years, not %lld seconds",
				       (long long)o->ttl_seconds);
	return 0;
}

/* A copy that the caller wipes; `secret` is wiped here. */
static char *move_secret(char *secret, struct husk_error *err)
{
	char *out = strdup(secret);

	OPENSSL_cleanse(secret, strlen(secret));
	if (!out)
		husk_fail_memory(err);
	return out;
}

/* "husk_" and 40 characters of [0-9A-Za-z]: 238 bits. */
static char *make_secret(struct husk_error *err)
{
	static const char digits[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
	char secret[sizeof(SECRET_PREFIX) + SECRET_LENGTH] = SECRET_PREFIX;
	size_t at = strlen(SECRET_PREFIX);
	unsigned char bytes[64];

	while (at < sizeof(secret) - 1) {
		if (random_bytes(bytes, sizeof(bytes)) < 0) {
			husk_fail_errno(err, "cannot get random bytes");
			return NULL;
		}
		for (size_t i = 0; i < sizeof(bytes) && at < sizeof(secret) - 1; i++)
			if (bytes[i] < 256 / 62 * 62) /* otherwise the first digits would be more frequent */
				secret[at++] = digits[bytes[i] % 62];
	}
	OPENSSL_cleanse(bytes, sizeof(bytes));
	return move_secret(secret, err);
}

/* "e2b_" and 40 hexadecimal digits, the only format that E2B's clients accept: 160 bits. */
static char *make_e2b_secret(struct husk_error *err)
{
	char secret[sizeof(E2B_PREFIX) + 2 * E2B_BYTES] = E2B_PREFIX;
	unsigned char bytes[E2B_BYTES];

	if (random_bytes(bytes, sizeof(bytes)) < 0) {
		husk_fail_errno(err, "cannot get random bytes");
		return NULL;
	}
	for (size_t i = 0; i < sizeof(bytes); i++)
		snprintf(secret + strlen(E2B_PREFIX) + 2 * i, 3, "%02x", bytes[i]);
	OPENSSL_cleanse(bytes, sizeof(bytes));
	return move_secret(secret, err);
}

int husk_token_create(struct husk *husk, const struct husk_token_options *options, char **secret,
		      struct husk_token **out, struct husk_error *err)
{
	if (husk->remote)
		return remote_token_create(husk->remote, options, secret, out, err);
	char id[32], hash[2 * HASH_SIZE + 1];
	struct husk_token *kept = NULL;
	int64_t now = time_wall_ms();

	if (husk_owner_only(husk, "making tokens", err) < 0 || check_token(options, err) < 0)
		return -1;
	cleanup_wipe char *made = options->e2b ? make_e2b_secret(err) : make_secret(err);
	if (!made || hash_secret(made, hash, err) < 0)
		return -1;
	if (random_id("tk-", 10, id) < 0)
		return husk_fail_errno(err, "cannot make an id");
	const char *tenant = options->tenant ? options->tenant : options->name;
	struct husk_token token = {
		.id = id,
		.name = (char *)options->name,
		.tenant = options->admin ? NULL : (char *)tenant,
		.created_ms = now,
		.expires_ms = options->ttl_seconds ? now + options->ttl_seconds * 1000 : 0,
		.max_sandboxes = options->max_sandboxes,
		.max_memory_bytes = options->max_memory_bytes,
		.max_snapshot_bytes = options->max_snapshot_bytes,
	};
	if (catalog_token_add(husk->catalog, &token, hash, err) < 0 ||
	    (out && catalog_token_find(husk->catalog, hash, &kept, err) < 0))
		return -1;
	if (out)
		*out = kept;
	*secret = steal_pointer(made);
	return 0;
}

int husk_token_list(struct husk *husk, struct husk_token ***out, struct husk_error *err)
{
	if (husk->remote)
		return remote_token_list(husk->remote, out, err);
	if (husk_owner_only(husk, "the list of tokens", err) < 0)
		return -1;
	return catalog_token_list(husk->catalog, out, err);
}

int husk_token_revoke(struct husk *husk, const char *id_or_name, struct husk_error *err)
{
	if (husk->remote)
		return remote_token_revoke(husk->remote, id_or_name, err);
	if (husk_owner_only(husk, "revoking tokens", err) < 0)
		return -1;
	if (!id_or_name || !*id_or_name)
		return husk_fail_field(err, "name", "no token given: pass an id or a name (husk token ls)");
	return catalog_token_revoke(husk->catalog, id_or_name, err);
}

int husk_token_check(struct husk *husk, const char *secret, struct husk_token **out, struct husk_error *err)
{
	if (husk->remote)
		return remote_refuse(husk->remote, "checking tokens", "the server checks each request", err);
	char hash[2 * HASH_SIZE + 1];
	struct husk_token *token = NULL;

	/* Looked up by its hash, so an attacker can only measure the time of a comparison of hashes. */
	if (hash_secret(secret ? secret : "", hash, err) < 0)
		return -1;
	int found = catalog_token_find(husk->catalog, hash, &token, err);
	if (found < 0)
		return -1;
	if (!found)
		return husk_fail(err, HUSK_DENIED, "this token is not known here; make one with: husk token create");
	int result = 0;
	if (token->revoked)
		result = husk_fail(err, HUSK_DENIED, "token '%s' was revoked; make a new one with: husk token create",
				   token->name);
	else if (token->expires_ms && token->expires_ms <= time_wall_ms())
		result = husk_fail(err, HUSK_DENIED, "token '%s' has expired; make a new one with: husk token create",
				   token->name);
	if (result == 0)
		*out = token;
	else
		husk_token_free(token);
	return result;
}

/* ---- signing ---- */

/* Writes the key under another name and links it into place. The link fails if another process was first, so all
 * readers get the same key. */
static int make_key(const char *path, struct husk_error *err)
{
	char suffix[16];
	unsigned char key[SIGNING_KEY_SIZE];

	if (random_id("", 8, suffix) < 0 || random_bytes(key, sizeof(key)) < 0)
		return husk_fail_errno(err, "cannot get random bytes");
	cleanup_free char *partial = str_format("%s.%s", path, suffix);
	if (!partial)
		return husk_fail_memory(err);
	cleanup_close int fd = open(partial, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	int result = 0;
	if (fd < 0 || write_full(fd, key, sizeof(key)) < 0 || fsync(fd) < 0 ||
	    (link(partial, path) < 0 && errno != EEXIST))
		result = husk_fail_errno(err, "cannot keep the signing key '%s'", path);
	unlink(partial);
	OPENSSL_cleanse(key, sizeof(key));
	return result;
}

static char *load_key(struct husk *husk, struct husk_error *err)
{
	cleanup_free char *path = path_signing_key(&husk->paths);
	size_t size = 0;

	if (!path) {
		husk_fail_memory(err);
		return NULL;
	}
	if (access(path, F_OK) < 0 && make_key(path, err) < 0)
		return NULL;
	char *key = file_read(path, 4096, &size, err);
	if (key && size != SIGNING_KEY_SIZE) {
		free(key);
		husk_fail(err, HUSK_UNAVAILABLE, "the signing key '%s' is damaged; remove it to have a new one made",
			  path);
		return NULL;
	}
	return key;
}

int husk_sign(struct husk *husk, const char *text, char **out, struct husk_error *err)
{
	if (husk->remote)
		return remote_refuse(husk->remote, "signing with the instance's key",
				     "ask the server for a link: POST …/ports/{port}/url", err);
	char *key = load_key(husk, err);
	unsigned char sum[EVP_MAX_MD_SIZE];
	unsigned size = 0;

	if (!key)
		return -1;
	bool done = HMAC(EVP_sha256(), key, SIGNING_KEY_SIZE, (const unsigned char *)text, strlen(text), sum, &size) &&
		    size == HASH_SIZE;
	OPENSSL_cleanse(key, SIGNING_KEY_SIZE);
	free(key);
	if (!done)
		return husk_fail(err, HUSK_INTERNAL, "cannot compute an hmac");
	char *hex = malloc(2 * HASH_SIZE + 1);
	if (!hex)
		return husk_fail_memory(err);
	to_hex(sum, hex);
	*out = hex;
	return 0;
}
