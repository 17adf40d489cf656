/*
 * Reads the certificates of an egress policy; see trust.h. Called by policy.c on each policy, by the supervisor for the
 * guest's trust store, and by the leash for its own connections. The text comes from a caller of the API. A private key
 * must never get through: everything in a policy is shown and stored in the open.
 *
 *     # company proxy                        -----BEGIN CERTIFICATE-----
 *     -----BEGIN CERTIFICATE-----    →       MIIB…
 *     MIIB…                                  -----END CERTIFICATE-----
 *     -----END CERTIFICATE-----
 *
 * Expired certificates are accepted: a stored policy must remain readable, and programs check the dates themselves.
 */
#include "net/trust.h"

#include <openssl/err.h>
#include <openssl/pem.h>

static int fail_block(struct husk_error *err, const char *field, const char *name)
{
	if (strstr(name, "PRIVATE KEY"))
		return husk_fail(err, HUSK_INVALID, "%s: the text contains a private key; give the certificate alone",
				 field);
	return husk_fail(err, HUSK_INVALID, "%s: the text contains '%.60s'; give certificates only", field, name);
}

/* Adds the certificate to `out`, unless it is there already. */
static int add(struct buf *out, X509 *certificate, struct husk_error *err)
{
	BIO *bio = BIO_new(BIO_s_mem());
	char *bytes = NULL;
	long size = bio && PEM_write_bio_X509(bio, certificate) ? BIO_get_mem_data(bio, &bytes) : 0;
	cleanup_free char *text = size > 0 ? strndup(bytes, (size_t)size) : NULL;
	int bad = text ? 0 : -1;

	BIO_free(bio);
	if (text && !(out->size && strstr(out->data, text)))
		bad = buf_append_string(out, text);
	return bad ? husk_fail_memory(err) : 0;
}

/* The certificate of the next block. 0: no more blocks. */
static int next(BIO *bio, const char *field, size_t number, X509 **out, struct husk_error *err)
{
	char *name = NULL, *header = NULL;
	unsigned char *data = NULL;
	long size = 0;
	int result = 1;

	if (PEM_read_bio(bio, &name, &header, &data, &size) != 1) {
		bool end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;

		ERR_clear_error();
		return end ? 0
			   : husk_fail(err, HUSK_INVALID, "%s: certificate %zu is damaged; export it again as PEM",
				       field, number);
	}
	const unsigned char *cursor = data;
	if (!str_equal(name, PEM_STRING_X509) && !str_equal(name, PEM_STRING_X509_OLD)) {
		result = fail_block(err, field, name);
	} else if (!(*out = d2i_X509(NULL, &cursor, size))) {
		ERR_clear_error();
		result = husk_fail(err, HUSK_INVALID, "%s: certificate %zu cannot be parsed; export it again as PEM",
				   field, number);
	}
	OPENSSL_free(name);
	OPENSSL_free(header);
	OPENSSL_free(data);
	return result;
}

static int read_all(BIO *bio, const char *field, struct buf *out, struct husk_error *err)
{
	for (size_t number = 1;; number++) {
		X509 *certificate = NULL;
		int result = next(bio, field, number, &certificate, err);

		if (result > 0)
			result = add(out, certificate, err) < 0 ? -1 : 1;
		X509_free(certificate);
		if (result < 0)
			return -1;
		if (result == 0)
			return number > 1 ? 0
					  : husk_fail(err, HUSK_INVALID,
						      "%s: no certificate found; PEM begins with "
						      "-----BEGIN CERTIFICATE----- (a DER file becomes PEM with: "
						      "openssl x509 -inform DER -in FILE)",
						      field);
	}
}

int trust_read(const char *pem, const char *field, char **out, struct husk_error *err)
{
	cleanup_buf struct buf text = { 0 };
	size_t size = strlen(pem);

	if (size > TRUST_MAX)
		return husk_fail(err, HUSK_INVALID, "%s: %zu bytes; give at most %u, only the certificates to add",
				 field, size, TRUST_MAX);
	if (size) {
		BIO *bio = BIO_new_mem_buf(pem, (int)size);
		int result = bio ? read_all(bio, field, &text, err) : husk_fail_memory(err);

		BIO_free(bio);
		if (result < 0)
			return -1;
	}
	*out = size ? buf_steal(&text) : strdup("");
	return *out ? 0 : husk_fail_memory(err);
}

int trust_read_file(const char *path, const char *field, char **out, struct husk_error *err)
{
	cleanup_free char *where = str_format("%s '%s'", field, path);
	struct husk_error why = { 0 };
	cleanup_free char *text = where ? file_read(path, TRUST_MAX, NULL, &why) : NULL;

	if (!where)
		return husk_fail_memory(err);
	if (!text)
		return husk_fail(err, why.code, "%s: %s", field, why.message);
	if (!*text)
		return husk_fail(err, HUSK_INVALID, "%s: the file is empty; give a PEM file with certificates", where);
	return trust_read(text, where, out, err);
}

int trust_each(const char *pem, int (*each)(void *data, X509 *certificate), void *data, struct husk_error *err)
{
	BIO *bio = BIO_new_mem_buf(pem, -1);
	X509 *certificate;
	int result = bio ? 0 : husk_fail_memory(err);

	while (result >= 0 && bio && (certificate = PEM_read_bio_X509(bio, NULL, NULL, NULL))) {
		result = each(data, certificate);
		X509_free(certificate);
	}
	ERR_clear_error(); /* PEM reports the end of the text as an error */
	BIO_free(bio);
	return result;
}

void trust_hash(X509 *certificate, char out[static TRUST_HASH])
{
	snprintf(out, TRUST_HASH, "%08lx", X509_subject_name_hash(certificate) & 0xfffffffful);
}
