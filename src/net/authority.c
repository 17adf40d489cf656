/*
 * Certificates of the sandbox's own authority, and of the hosts for which the leash terminates TLS. secrets.c creates
 * an authority; the leash opens it and issues certificates. Keys are P-256: generated in under a millisecond, and
 * supported by every client.
 */
#include "net/authority.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>

#define DAY 86400l
#define AUTHORITY_DAYS 3650l
#define LEAF_DAYS 365l

struct authority {
	X509 *certificate;
	EVP_PKEY *key;
	EVP_PKEY *leaf_key; /* one key for all host certificates of this process */
};

int authority_fail(struct husk_error *err, const char *what)
{
	char reason[256] = "out of memory";
	unsigned long code = ERR_get_error();

	if (code)
		ERR_error_string_n(code, reason, sizeof(reason));
	ERR_clear_error();
	return husk_fail(err, HUSK_INTERNAL, "%s: %s", what, reason);
}

static int add_extension(X509 *certificate, X509 *issuer, int kind, const char *value)
{
	X509V3_CTX context;

	X509V3_set_ctx_nodb(&context);
	X509V3_set_ctx(&context, issuer, certificate, NULL, NULL, 0);
	X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, &context, kind, value);
	int added = extension && X509_add_ext(certificate, extension, -1);

	X509_EXTENSION_free(extension);
	return added ? 0 : -1;
}

/* The unsigned part that both kinds of certificate have in common. */
static X509 *draft(EVP_PKEY *key, const char *name, X509 *issuer, long days)
{
	X509 *certificate = X509_new();
	unsigned char serial[16];

	if (!certificate)
		return NULL;
	BIGNUM *number = RAND_bytes(serial, sizeof(serial)) == 1 ? BN_bin2bn(serial, sizeof(serial), NULL) : NULL;
	X509_NAME *subject = X509_get_subject_name(certificate);
	bool good = number && BN_to_ASN1_INTEGER(number, X509_get_serialNumber(certificate)) &&
		    X509_set_version(certificate, X509_VERSION_3) &&
		    X509_gmtime_adj(X509_getm_notBefore(certificate), -DAY) &&
		    X509_gmtime_adj(X509_getm_notAfter(certificate), days * DAY) && X509_set_pubkey(certificate, key) &&
		    X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, (const unsigned char *)name, -1, -1, 0) &&
		    X509_set_issuer_name(certificate, issuer ? X509_get_subject_name(issuer) : subject);

	BN_free(number);
	if (good)
		return certificate;
	X509_free(certificate);
	return NULL;
}

static X509 *draft_authority(EVP_PKEY *key)
{
	X509 *certificate = draft(key, "Husk sandbox authority", NULL, AUTHORITY_DAYS);

	if (certificate && add_extension(certificate, certificate, NID_basic_constraints, "critical,CA:TRUE") == 0 &&
	    add_extension(certificate, certificate, NID_key_usage, "critical,keyCertSign,cRLSign") == 0 &&
	    add_extension(certificate, certificate, NID_subject_key_identifier, "hash") == 0 &&
	    X509_sign(certificate, key, EVP_sha256()))
		return certificate;
	X509_free(certificate);
	return NULL;
}

/* The text written to `bio`; the caller frees it. */
static char *bio_text(BIO *bio)
{
	char *data;
	long size = BIO_get_mem_data(bio, &data);

	return size > 0 ? strndup(data, (size_t)size) : NULL;
}

int authority_make(char **certificate, char **key, struct husk_error *err)
{
	EVP_PKEY *pair = EVP_EC_gen("P-256");
	X509 *own = pair ? draft_authority(pair) : NULL;
	BIO *public = BIO_new(BIO_s_mem()), *private = BIO_new(BIO_s_secmem());
	int result = -1;

	*certificate = *key = NULL;
	if (own && public && private && PEM_write_bio_X509(public, own) &&
	    PEM_write_bio_PrivateKey(private, pair, NULL, NULL, 0, NULL, NULL)) {
		*certificate = bio_text(public);
		*key = bio_text(private);
		result = *certificate && *key ? 0 : -1;
	}
	if (result < 0) {
		free(steal_pointer(*certificate));
		free(steal_pointer(*key));
		authority_fail(err, "cannot make the sandbox's certificate authority");
	}
	BIO_free(public);
	BIO_free(private);
	X509_free(own);
	EVP_PKEY_free(pair);
	return result;
}

int authority_open(const char *certificate, const char *key, struct authority **out, struct husk_error *err)
{
	struct authority *authority = calloc(1, sizeof(*authority));
	BIO *public = BIO_new_mem_buf(certificate, -1), *private = BIO_new_mem_buf(key, -1);

	if (authority && public && private) {
		authority->certificate = PEM_read_bio_X509(public, NULL, NULL, NULL);
		authority->key = PEM_read_bio_PrivateKey(private, NULL, NULL, NULL);
		authority->leaf_key = EVP_EC_gen("P-256");
	}
	BIO_free(public);
	BIO_free(private);
	if (authority && authority->certificate && authority->key && authority->leaf_key &&
	    X509_check_private_key(authority->certificate, authority->key) == 1) {
		*out = authority;
		return 0;
	}
	authority_free(authority);
	return authority_fail(err, "cannot read the sandbox's certificate authority");
}

void authority_free(struct authority *authority)
{
	if (!authority)
		return;
	X509_free(authority->certificate);
	EVP_PKEY_free(authority->key);
	EVP_PKEY_free(authority->leaf_key);
	free(authority);
}

static X509 *draft_leaf(struct authority *authority, const char *name)
{
	/* A common name has at most 64 characters; clients check only the alternative name. */
	cleanup_free char *common = strndup(name, 64), *alternative = str_format("DNS:%s", name);
	X509 *leaf =
		common && alternative ? draft(authority->leaf_key, common, authority->certificate, LEAF_DAYS) : NULL;

	if (leaf && add_extension(leaf, authority->certificate, NID_basic_constraints, "critical,CA:FALSE") == 0 &&
	    add_extension(leaf, authority->certificate, NID_key_usage, "critical,digitalSignature") == 0 &&
	    add_extension(leaf, authority->certificate, NID_ext_key_usage, "serverAuth") == 0 &&
	    add_extension(leaf, authority->certificate, NID_subject_alt_name, alternative) == 0 &&
	    add_extension(leaf, authority->certificate, NID_authority_key_identifier, "keyid") == 0 &&
	    X509_sign(leaf, authority->key, EVP_sha256()))
		return leaf;
	X509_free(leaf);
	return NULL;
}

SSL_CTX *authority_mint(struct authority *authority, const char *name, struct husk_error *err)
{
	X509 *leaf = draft_leaf(authority, name);
	SSL_CTX *context = leaf ? SSL_CTX_new(TLS_server_method()) : NULL;
	bool good = context && SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION) &&
		    SSL_CTX_use_certificate(context, leaf) == 1 &&
		    SSL_CTX_use_PrivateKey(context, authority->leaf_key) == 1;

	X509_free(leaf);
	if (good)
		return context;
	SSL_CTX_free(context);
	authority_fail(err, "cannot make a certificate");
	husk_wrap(err, "%s", name);
	return NULL;
}
