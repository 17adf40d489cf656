/*
 * Egress policies: what is read, what is refused and with which words, what matches; and the file of secrets.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <openssl/x509v3.h>

#include "net/authority.h"
#include "net/policy.h"
#include "net/secrets.h"
#include "net/trust.h"
#include "scratch.h"

static struct policy *parse(const char *json)
{
	struct policy *policy = NULL;
	struct husk_error err = { 0 };

	if (policy_parse(json, &policy, &err) < 0)
		fail_msg("%s: %s", json, err.message);
	return policy;
}

static void assert_refused(const char *json, const char *says)
{
	struct policy *policy = NULL;
	struct husk_error err = { 0 };

	if (policy_parse(json, &policy, &err) == 0)
		fail_msg("%s was accepted", json);
	assert_int_equal(err.code, HUSK_INVALID);
	if (!strstr(err.message, says))
		fail_msg("%s: '%s' does not say '%s'", json, err.message, says);
}

static void reads_and_writes(void **state)
{
	static const struct {
		const char *in, *out;
	} cases[] = {
		{ NULL, "{\"mode\":\"off\"}" },
		{ "", "{\"mode\":\"off\"}" },
		{ "{\"allow\":[]}", "{\"mode\":\"off\"}" },
		{ "{\"mode\":\"open\"}", "{\"mode\":\"open\"}" },
		{ "{\"mode\":\"allow\",\"allow\":[]}", "{\"mode\":\"allow\"}" },
		{ "{\"allow\":[\"Example.COM.\",\"example.com\",\"*.a.io:8443\",\"b.io:*\"]}",
		  "{\"mode\":\"allow\",\"allow\":[\"example.com\",\"*.a.io:8443\",\"b.io:*\"]}" },
		{ "{\"allow\":[\"10.1.2.0/24:443\",\"1.2.3.4\",\"1.2.3.4/32\",\"0.0.0.0/0\",\"1.2.3.4:*\"]}",
		  "{\"mode\":\"allow\",\"allow\":[\"10.1.2.0/24:443\",\"1.2.3.4\",\"0.0.0.0/0\"]}" },
		{ "{\"allow\":[\"a.io\"],\"limits\":{\"bytes\":5,\"rate\":2048,\"connections\":7}}",
		  "{\"mode\":\"allow\",\"allow\":[\"a.io\"],\"limits\":{\"bytes\":5,\"rate\":2048,\"connections\":7}"
		  "}" },
		{ "{\"allow\":[\"*.a.io\"],\"secrets\":[{\"name\":\"T\",\"hosts\":[\"x.a.io\",\"*.b.a.io\"]}]}",
		  "{\"mode\":\"allow\",\"allow\":[\"*.a.io\"],\"secrets\":[{\"name\":\"T\",\"hosts\":[\"x.a.io\",\"*.b."
		  "a.io\"]}]}" },
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct policy *policy = parse(cases[i].in), *again;
		cleanup_free char *text = policy_text(policy);

		assert_string_equal(text, cases[i].out);
		again = parse(text);
		cleanup_free char *twice = policy_text(again);
		assert_string_equal(twice, text);
		policy_free(again);
		policy_free(policy);
	}
}

static void refuses_bad_rules(void **state)
{
	static const char *const cases[][2] = {
		{ "", "empty rule" },
		{ "*", "mode open" },
		{ "*.com", "too wide" },
		{ "a.*.com", "not at the front" },
		{ "*a.com", "not at the front" },
		{ "localhost", "no dot" },
		{ "https://a.io/", "write the name alone" },
		{ "a.io/path", "write the name alone" },
		{ "b\\u00fccher.io", "xn--" },
		{ "a..io", "not a host name" },
		{ "-a.io", "not a host name" },
		{ "a b.io", "not a host name" },
		{ "a.io:0", "bad port" },
		{ "a.io:65536", "bad port" },
		{ "a.io:x", "bad port" },
		{ "a.io:", "bad port" },
		{ "1.2.3", "not an ipv4 address" },
		{ "1.2.3.400", "not an ipv4 address" },
		{ "1.2.3.0x4", "neither a name nor" },
		{ "10.1.2.3/24", "write 10.1.2.0/24 or 10.1.2.3/32" },
		{ "10.0.0.0/33", "bad prefix" },
		{ "::1", "ipv6" },
		{ "[2001:db8::1]:443", "ipv6" },
		{ "2001:db8::/32", "ipv6" },
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		cleanup_free char *json = str_format("{\"allow\":[\"%s\"]}", cases[i][0]);

		assert_refused(json, cases[i][1]);
	}
	cleanup_buf struct buf label = { 0 };
	for (int i = 0; i < 64; i++)
		buf_append_string(&label, "a");
	cleanup_free char *json = str_format("{\"allow\":[\"%s.io\"]}", label.data);
	assert_refused(json, "1 to 63");
}

static void refuses_bad_policies(void **state)
{
	(void)state;
	assert_refused("[]", "not a JSON object");
	assert_refused("{", "not a JSON object");
	assert_refused("{\"mode\":\"closed\"}", "off, allow or open");
	assert_refused("{\"mode\":3}", "off, allow or open");
	assert_refused("{\"allowed\":[]}", "did you mean 'allow'");
	assert_refused("{\"allow\":\"a.io\"}", "must be a list");
	assert_refused("{\"allow\":[3]}", "rule 1 is not a string");
	assert_refused("{\"mode\":\"off\",\"allow\":[\"a.io\"]}", "mode off");
	assert_refused("{\"mode\":\"open\",\"allow\":[\"a.io\"]}", "'a.io' says nothing");
	assert_refused("{\"secrets\":[{\"name\":\"T\",\"hosts\":[\"a.io\"]}]}", "mode off");
	assert_refused("{\"allow\":[\"b.io\"],\"secrets\":[{\"name\":\"T\",\"hosts\":[\"a.io\"]}]}",
		       "add the rule 'a.io'");
	assert_refused("{\"allow\":[\"a.io\"],\"secrets\":[{\"name\":\"T\",\"hosts\":[\"*.a.io\"]}]}",
		       "no rule allows");
	assert_refused("{\"allow\":[\"a.io:80\"],\"secrets\":[{\"name\":\"T\",\"hosts\":[\"a.io\"]}]}",
		       "no rule allows");
	assert_refused("{\"allow\":[\"1.2.3.4\"],\"secrets\":[{\"name\":\"T\",\"hosts\":[\"1.2.3.4\"]}]}",
		       "a host's name");
	assert_refused("{\"allow\":[\"a.io\"],\"secrets\":[{\"name\":\"1T\",\"hosts\":[\"a.io\"]}]}",
		       "letters, digits");
	assert_refused("{\"allow\":[\"a.io\"],\"secrets\":[{\"name\":\"T\",\"hosts\":[]}]}", "has no host");
	assert_refused("{\"allow\":[\"a.io\"],\"hold\":[\"b.io\"]}", "no rule allows b.io");
	assert_refused("{\"allow\":[\"1.2.3.4\"],\"hold\":[\"1.2.3.4\"]}", "is an address");
	assert_refused("{\"mode\":\"open\",\"hold\":[\"a.io\"]}", "mode allow");
	assert_refused("{\"hold\":[\"a.io\"]}", "mode allow");
	assert_refused("{\"allow\":[\"a.io\"],\"secrets\":[{\"name\":\"T\",\"hosts\":[\"a.io\"]},"
		       "{\"name\":\"T\",\"hosts\":[\"a.io\"]}]}",
		       "given twice");
	assert_refused("{\"limits\":{\"rate\":5}}", "limits.rate is 5");
	assert_refused("{\"limits\":{\"bytes\":-1}}", "not below 0");
	assert_refused("{\"limits\":{\"connections\":5000}}", "1 to 4096");
	assert_refused("{\"limits\":{\"speed\":1}}", "no field 'speed'");
}

static char *policy_with(const char *trust)
{
	json_t *root = json_pack("{s:s, s:s}", "mode", "open", "trust", trust);
	char *text = json_dumps(root, JSON_COMPACT);

	json_decref(root);
	return text;
}

static void keeps_certificates(void **state)
{
	char *one = NULL, *two = NULL, *key = NULL;

	(void)state;
	assert_int_equal(authority_make(&one, &key, NULL), 0);
	free(steal_pointer(key));
	assert_int_equal(authority_make(&two, &key, NULL), 0);
	cleanup_free char *both = str_format("comment\n%s\r\n\r\n%s%s", one, two, one);
	cleanup_free char *json = policy_with(both);
	struct policy *policy = parse(json);
	cleanup_free char *canonical = str_format("%s%s", one, two);
	assert_string_equal(policy->trust, canonical);
	cleanup_free char *text = policy_text(policy);
	struct policy *again = parse(text);
	assert_string_equal(again->trust, canonical);
	policy_free(again);
	policy_free(policy);

	policy = parse("{\"trust\":\"\"}"); /* an explicit none is kept, and is no absence */
	cleanup_free char *none = policy_text(policy);
	assert_string_equal(none, "{\"mode\":\"off\",\"trust\":\"\"}");
	policy_free(policy);

	cleanup_free char *with_key = policy_with(key);
	assert_refused(with_key, "private key");
	assert_refused("{\"trust\":\"x\"}", "no certificate found");
	assert_refused("{\"trust\":7}", "must be a string");
	assert_refused("{\"trust\":\"-----BEGIN CERTIFICATE-----\\nQUJD\\n-----END CERTIFICATE-----\\n\"}",
		       "certificate 1 cannot be parsed");
	assert_refused("{\"trust\":\"-----BEGIN CERTIFICATE-----\\nQUJD\\n\"}", "certificate 1 is damaged");
	cleanup_free char *large = calloc(1, TRUST_MAX + 2);
	memset(large, 'x', TRUST_MAX + 1);
	cleanup_free char *too_large = policy_with(large);
	assert_refused(too_large, "at most 65536");
	free(one);
	free(two);
	free(key);
}

static void matches_names(void **state)
{
	struct policy *policy = parse("{\"allow\":[\"a.io\",\"*.b.io\",\"c.io:8443\",\"d.io:*\",\"1.2.3.4\"]}");

	(void)state;
	assert_true(policy_allows_name(policy, "a.io", 80));
	assert_true(policy_allows_name(policy, "a.io", 443));
	assert_true(policy_allows_name(policy, "a.io", 0));
	assert_false(policy_allows_name(policy, "a.io", 8443));
	assert_false(policy_allows_name(policy, "x.a.io", 443));
	assert_false(policy_allows_name(policy, "xa.io", 443));
	assert_false(policy_allows_name(policy, "b.io", 443));
	assert_true(policy_allows_name(policy, "x.b.io", 443));
	assert_true(policy_allows_name(policy, "y.x.b.io", 443));
	assert_false(policy_allows_name(policy, "xb.io", 443));
	assert_false(policy_allows_name(policy, ".b.io", 443));
	assert_false(policy_allows_name(policy, "b.io.evil.io", 443));
	assert_false(policy_allows_name(policy, "c.io", 443));
	assert_true(policy_allows_name(policy, "c.io", 8443));
	assert_true(policy_allows_name(policy, "d.io", 1));
	assert_false(policy_allows_name(policy, "", 443));
	assert_false(policy_allows_name(policy, "1.2.3.4", 443));
	policy_free(policy);
	policy = parse("{\"mode\":\"open\"}");
	assert_true(policy_allows_name(policy, "any.io", 22));
	policy_free(policy);
	policy = parse("");
	assert_false(policy_allows_name(policy, "any.io", 443));
	policy_free(policy);
}

#define ADDRESS(a, b, c, d) ((uint32_t)(a) << 24 | (b) << 16 | (c) << 8 | (d))

static bool allows(const struct policy *policy, uint32_t address, uint16_t port)
{
	return policy_allows_address(policy, address, port, policy_place(address));
}

static void matches_addresses(void **state)
{
	struct policy *policy = parse("{\"allow\":[\"10.1.2.0/24:443\",\"1.2.3.4\",\"169.254.169.254:80\",\"a.io\"]}");

	(void)state;
	assert_true(allows(policy, ADDRESS(10, 1, 2, 9), 443));
	assert_false(allows(policy, ADDRESS(10, 1, 2, 9), 80));
	assert_false(allows(policy, ADDRESS(10, 1, 3, 9), 443));
	assert_true(allows(policy, ADDRESS(1, 2, 3, 4), 22));
	assert_false(allows(policy, ADDRESS(1, 2, 3, 5), 22));
	assert_true(allows(policy, ADDRESS(169, 254, 169, 254), 80));
	assert_false(policy_allows_address(policy, ADDRESS(10, 1, 2, 9), 443, PLACE_HOST));
	assert_true(policy_allows_address(policy, ADDRESS(1, 2, 3, 4), 443, PLACE_HOST));
	policy_free(policy);
}

static void keeps_special_ranges_shut(void **state)
{
	static const uint32_t special[] = {
		ADDRESS(0, 0, 0, 1),         ADDRESS(10, 0, 0, 1),        ADDRESS(100, 64, 0, 1),
		ADDRESS(127, 0, 0, 1),       ADDRESS(169, 254, 0, 1),     ADDRESS(172, 16, 0, 1),
		ADDRESS(172, 31, 255, 1),    ADDRESS(192, 168, 1, 1),     ADDRESS(224, 0, 0, 1),
		ADDRESS(240, 0, 0, 1),       ADDRESS(255, 255, 255, 255), ADDRESS(168, 63, 129, 16),
		ADDRESS(100, 100, 100, 200), ADDRESS(192, 0, 0, 192),     ADDRESS(198, 18, 0, 1),
	};
	static const uint32_t public[] = { ADDRESS(1, 1, 1, 1),  ADDRESS(172, 32, 0, 1),  ADDRESS(100, 128, 0, 1),
					   ADDRESS(11, 0, 0, 1), ADDRESS(203, 0, 113, 1), ADDRESS(223, 255, 255, 1) };
	struct policy *open = parse("{\"mode\":\"open\"}"), *all = parse("{\"allow\":[\"0.0.0.0/0\",\"128.0.0.0/1\"]}");
	struct policy *listed = parse("{\"mode\":\"open\",\"allow\":[\"10.0.0.0/8\",\"127.0.0.1\"]}");

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(special); i++) {
		assert_false(allows(open, special[i], 443));
		assert_false(allows(all, special[i], 443));
	}
	for (size_t i = 0; i < ARRAY_SIZE(public); i++) {
		assert_true(allows(open, public[i], 443));
		assert_true(allows(all, public[i], 443));
		assert_false(policy_allows_address(open, public[i], 443, PLACE_HOST));
		assert_false(policy_lists_address(open, public[i], 443, PLACE_PUBLIC));
	}
	assert_true(allows(listed, ADDRESS(10, 9, 8, 7), 1));
	assert_true(allows(listed, ADDRESS(127, 0, 0, 1), 1));
	assert_false(allows(listed, ADDRESS(127, 0, 0, 2), 1));
	policy_free(open);
	policy_free(all);
	policy_free(listed);
}

static void finds_held_hosts(void **state)
{
	struct policy *policy = parse("{\"allow\":[\"*.a.io\",\"b.io:8080\"],\"hold\":[\"*.a.io\",\"b.io:8080\"]}");

	(void)state;
	assert_true(policy_holds(policy, "x.a.io", 443));
	assert_true(policy_holds(policy, "x.a.io", 80));
	assert_false(policy_holds(policy, "x.a.io", 8080));
	assert_false(policy_holds(policy, "a.io", 443));
	assert_true(policy_holds(policy, "b.io", 8080));
	assert_false(policy_holds(policy, "b.io", 80));
	assert_true(policy_opens_tls(policy));
	cleanup_free char *text = policy_text(policy);
	assert_non_null(strstr(text, "\"hold\":[\"*.a.io\",\"b.io:8080\"]"));
	policy_free(policy);
}

static void finds_secrets_of_a_host(void **state)
{
	struct policy *policy = parse("{\"mode\":\"open\",\"secrets\":[{\"name\":\"A\",\"hosts\":[\"a.io\"]},"
				      "{\"name\":\"B\",\"hosts\":[\"b.io\",\"a.io\"]},"
				      "{\"name\":\"C\",\"hosts\":[\"*.c.io:8443\"]}]}");

	(void)state;
	assert_int_equal(policy_secret_for(policy, "a.io", 443, 0), 0);
	assert_int_equal(policy_secret_for(policy, "a.io", 443, 1), 1);
	assert_int_equal(policy_secret_for(policy, "a.io", 443, 2), -1);
	assert_int_equal(policy_secret_for(policy, "a.io", 8443, 0), -1);
	assert_int_equal(policy_secret_for(policy, "x.c.io", 8443, 0), 2);
	assert_int_equal(policy_secret_for(policy, "x.a.io", 443, 0), -1);
	policy_free(policy);
}

/* ---- the file of secrets ---- */

static void keeps_secrets(void **state)
{
	struct policy *policy = parse("{\"allow\":[\"a.io\"],\"secrets\":[{\"name\":\"A\",\"hosts\":[\"a.io\"]},"
				      "{\"name\":\"B\",\"hosts\":[\"a.io\"]}]}");
	const struct husk_pair values[] = { { "A", "first" }, { "B", "second" } }, fresh = { "A", "third" };
	struct husk_error err = { 0 };
	struct stat found;

	(void)state;
	char *text = secrets_make(policy, values, 2, NULL, &err);
	assert_non_null(text);
	assert_int_equal(secrets_save(at("secrets"), text, &err), 0);
	assert_int_equal(stat(at("secrets"), &found), 0);
	assert_int_equal(found.st_mode & 0777, 0600);
	char *loaded = secrets_load(at("secrets"), &err);
	assert_string_equal(loaded, text);
	char *changed = secrets_make(policy, &fresh, 1, loaded, &err);
	assert_non_null(strstr(changed, "third"));
	assert_non_null(strstr(changed, "second"));
	assert_null(strstr(changed, "first"));
	cleanup_free char *before = secrets_certificate(text, &err), *after = secrets_certificate(changed, &err);
	assert_true(str_starts(before, "-----BEGIN CERTIFICATE-----"));
	assert_string_equal(before, after);
	cleanup_free char *placeholder = secrets_placeholder("A");
	assert_string_equal(placeholder, "husk-secret-A-hidden");
	assert_null(secrets_load(at("none"), &err));
	assert_int_equal(err.code, HUSK_OK);
	str_wipe(text);
	str_wipe(loaded);
	str_wipe(changed);
	policy_free(policy);
}

static void refuses_bad_secrets(void **state)
{
	struct policy *policy = parse("{\"allow\":[\"a.io\"],\"secrets\":[{\"name\":\"A\",\"hosts\":[\"a.io\"]}]}");
	struct policy *none = parse("{\"allow\":[\"a.io\"]}");
	const struct husk_pair odd = { "A", "line\r\nX-Evil: hunter2" }, empty = { "A", "" },
			       other = { "Z", "hunter2" };
	struct husk_error err = { 0 };

	(void)state;
	assert_null(secrets_make(policy, NULL, 0, NULL, &err));
	assert_non_null(strstr(err.message, "'A' has no value"));
	assert_null(secrets_make(policy, &odd, 1, NULL, &err));
	assert_non_null(strstr(err.message, "control character"));
	assert_null(strstr(err.message, "hunter2"));
	assert_null(secrets_make(policy, &empty, 1, NULL, &err));
	assert_int_equal(err.code, HUSK_INVALID);
	assert_null(secrets_make(policy, &other, 1, NULL, &err));
	assert_non_null(strstr(err.message, "no host"));
	assert_null(secrets_make(policy, NULL, 0, "{\"values\":\"hunter2\"}", &err));
	assert_null(strstr(err.message, "hunter2"));
	assert_null(secrets_make(none, NULL, 0, NULL, &err));
	assert_int_equal(err.code, HUSK_OK);
	policy_free(policy);
	policy_free(none);
}

static void mints_certificates(void **state)
{
	struct authority *authority = NULL;
	struct husk_error err = { 0 };
	char *certificate = NULL, *key = NULL;

	(void)state;
	assert_int_equal(authority_make(&certificate, &key, &err), 0);
	assert_int_equal(authority_open(certificate, key, &authority, &err), 0);
	SSL_CTX *context = authority_mint(authority, "api.a.io", &err);
	assert_non_null(context);
	assert_int_equal(X509_check_host(SSL_CTX_get0_certificate(context), "api.a.io", 0, 0, NULL), 1);
	assert_int_equal(X509_check_host(SSL_CTX_get0_certificate(context), "b.a.io", 0, 0, NULL), 0);
	SSL_CTX_free(context);
	authority_free(authority);
	assert_int_equal(authority_open(certificate, certificate, &authority, &err), -1);
	free(certificate);
	str_wipe(key);
}

static void sets_headers_of_the_closest_host(void **state)
{
	struct policy *policy = parse("{\"mode\":\"open\",\"secrets\":["
				      "{\"name\":\"A\",\"hosts\":[\"*.a.io\"],\"header\":\"X-Key\"},"
				      "{\"name\":\"B\",\"hosts\":[\"*.b.a.io\"],\"header\":\"X-Key\"},"
				      "{\"name\":\"C\",\"hosts\":[\"c.b.a.io\"],\"header\":\"X-Other\"},"
				      "{\"name\":\"D\",\"hosts\":[\"c.b.a.io\"]}]}");

	(void)state;
	assert_int_equal(policy_header_for(policy, "x.a.io", 443, 0), 0);
	assert_int_equal(policy_header_for(policy, "x.a.io", 443, 1), -1);
	assert_int_equal(policy_header_for(policy, "x.b.a.io", 443, 0), 1);
	assert_int_equal(policy_header_for(policy, "c.b.a.io", 443, 0), 2);
	assert_int_equal(policy_header_for(policy, "c.b.a.io", 443, 3), -1);
	assert_int_equal(policy_header_for(policy, "a.io", 443, 0), -1);
	assert_int_equal(policy_header_for(policy, "x.a.io", 8443, 0), -1);
	policy_free(policy);
	assert_refused("{\"mode\":\"open\",\"secrets\":[{\"name\":\"A\",\"hosts\":[\"a.io\"],\"header\":\"Host\"}]}",
		       "Host");
	assert_refused("{\"mode\":\"open\",\"secrets\":[{\"name\":\"A\",\"hosts\":[\"a.io\"],\"header\":\"a:b\"}]}",
		       "a:b");
}

static void denies_ranges(void **state)
{
	struct policy *policy =
		parse("{\"mode\":\"open\",\"allow\":[\"8.8.8.8\"],\"deny\":[\"8.8.8.0/24\",\"1.1.1.1:53\"]}");

	(void)state;
	assert_false(policy_allows_address(policy, 0x08080807, 443, PLACE_PUBLIC));
	assert_true(policy_allows_address(policy, 0x08080808, 443, PLACE_PUBLIC));
	assert_true(policy_allows_address(policy, 0x08080907, 443, PLACE_PUBLIC));
	assert_false(policy_allows_address(policy, 0x01010101, 53, PLACE_PUBLIC));
	assert_true(policy_allows_address(policy, 0x01010101, 443, PLACE_PUBLIC));
	policy_free(policy);
	assert_refused("{\"mode\":\"allow\",\"deny\":[\"8.8.8.8\"]}", "mode open");
	assert_refused("{\"mode\":\"open\",\"deny\":[\"a.io\"]}", "a.io");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reads_and_writes),
		cmocka_unit_test(refuses_bad_rules),
		cmocka_unit_test(refuses_bad_policies),
		cmocka_unit_test(keeps_certificates),
		cmocka_unit_test(matches_names),
		cmocka_unit_test(matches_addresses),
		cmocka_unit_test(keeps_special_ranges_shut),
		cmocka_unit_test(finds_held_hosts),
		cmocka_unit_test(finds_secrets_of_a_host),
		cmocka_unit_test(keeps_secrets),
		cmocka_unit_test(refuses_bad_secrets),
		cmocka_unit_test(mints_certificates),
		cmocka_unit_test(sets_headers_of_the_closest_host),
		cmocka_unit_test(denies_ranges),
	};

	return cmocka_run_group_tests_name("policy", tests, make_scratch, remove_scratch);
}
