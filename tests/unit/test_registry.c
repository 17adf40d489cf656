/*
 * What a pull reads before it trusts anybody: names of images, challenges of registries, docker's config.json.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "registry/challenge.h"
#include "registry/credentials.h"
#include "registry/reference.h"
#include "registry/transport.h"

#define HEX "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static struct husk_error err;

static void name_is(const char *text, const char *registry, const char *wanted)
{
	cleanup(reference_free) struct reference reference = { 0 };

	assert_int_equal(reference_parse(text, registry, &reference, &err), 0);
	cleanup_free char *name = reference_name(&reference);
	assert_string_equal(name, wanted);
}

static void refused(const char *text, const char *registry, const char *complaint)
{
	struct reference reference;

	assert_int_equal(reference_parse(text, registry, &reference, &err), -1);
	assert_int_equal(err.code, HUSK_INVALID);
	if (!strstr(err.message, complaint))
		fail_msg("'%s' does not say '%s'", err.message, complaint);
}

static void reads_names_as_docker_does(void **state)
{
	(void)state;
	name_is("python", NULL, "docker.io/library/python:latest");
	name_is("python:3.12", "", "docker.io/library/python:3.12");
	name_is("me/tool:2", NULL, "docker.io/me/tool:2");
	name_is("index.docker.io/me/tool", NULL, "docker.io/me/tool:latest");
	name_is("localhost/tool", NULL, "localhost/tool:latest");
	name_is("localhost:5000/a/b_c__d--e.f:T_1", NULL, "localhost:5000/a/b_c__d--e.f:T_1");
	name_is("[::1]:5000/tool", NULL, "[::1]:5000/tool:latest");
	name_is("quay.io/a/b:tag@sha256:" HEX, NULL, "quay.io/a/b@sha256:" HEX);
	name_is("python:3.12", "localhost:5000", "localhost:5000/python:3.12");
	name_is("python:3.12", "mirror.example/hub/library", "mirror.example/hub/library/python:3.12");
}

static void refuses_other_names(void **state)
{
	(void)state;
	refused("", NULL, "NAME");
	refused("UPPER", NULL, "lower case");
	refused("a//b", NULL, "lower case");
	refused("a/../b", NULL, "lower case");
	refused("a_", NULL, "lower case");
	refused("a___b", NULL, "lower case");
	refused("a:.x", NULL, "not a tag");
	refused("a@sha256:12", NULL, "64 hexadecimal");
	refused("a@md5:" HEX, NULL, "64 hexadecimal");
	refused("a?b.example/c", NULL, "HOST");
	refused("-a.example/c", NULL, "HOST");
	refused("a.example:99999/c", NULL, "HOST");
	refused("[::g]/c", NULL, "HOST");
	refused("python", "plain", "HUSK_REGISTRY");
	refused("python", "a b.example", "HOST");
}

static void knows_hosts(void **state)
{
	(void)state;
	assert_true(reference_is_loopback("localhost:5000") && reference_is_loopback("127.9.9.9") &&
		    reference_is_loopback("[::1]:1") && reference_is_loopback("a.localhost"));
	assert_false(reference_is_loopback("localhost.example") || reference_is_loopback("128.0.0.1") ||
		     reference_is_loopback("[::2]"));
	assert_true(reference_listed("a.example, b.example:5", "B.example:5"));
	assert_false(reference_listed("a.example,b.example:5", "b.example") || reference_listed(NULL, "a"));
	assert_true(reference_is_image("a:b") && reference_is_image("a/b") && !reference_is_image("base"));
}

static void reads_challenges(void **state)
{
	struct challenge challenge;

	(void)state;
	challenge_parse("Bearer realm=\"https://a.example/t\", service=\"the registry\",scope=x", &challenge);
	assert_int_equal(challenge.scheme, CHALLENGE_BEARER);
	assert_string_equal(challenge.realm, "https://a.example/t");
	assert_string_equal(challenge.service, "the registry");
	challenge_parse("basic realm=\"x\"", &challenge);
	assert_int_equal(challenge.scheme, CHALLENGE_BASIC);
	static const char *const none[] = { "",
					    "Negotiate",
					    "Bearer",
					    "Bearer realm=\"a b\"",
					    "Bearer realm",
					    "Bearer realm=\"open",
					    "Bearer realm=\"a\" b",
					    "Bearer realm=\"\x01\"" };
	for (size_t i = 0; i < ARRAY_SIZE(none); i++) {
		challenge_parse(none[i], &challenge);
		assert_int_equal(challenge.scheme, CHALLENGE_NONE);
	}
}

static void reads_tokens(void **state)
{
	static const char *const none[] = {
		"", "[]", "{}", "{\"token\": 1}", "{\"token\": \"a b\"}", "{\"token\": \"a\\n\"}"
	};
	cleanup_free char *first = challenge_token("{\"token\": \"a.b\", \"access_token\": \"c\"}");
	cleanup_free char *second = challenge_token("{\"token\": \"\", \"access_token\": \"c\"}");

	(void)state;
	assert_string_equal(first, "a.b");
	assert_string_equal(second, "c");
	for (size_t i = 0; i < ARRAY_SIZE(none); i++)
		assert_null(challenge_token(none[i]));
}

static void reads_logins(void **state)
{
	static const char text[] = "{\"auths\": {\"https://index.docker.io/v1/\": {\"auth\": \"bWU6czpjcmV0\"},"
				   "\"https://a.example/\": {\"identitytoken\": \"t\"}},"
				   "\"credHelpers\": {\"b.example\": \"ecr-login\"}, \"credsStore\": \"pass\"}";
	cleanup(credentials_free) struct credentials found = { 0 };
	cleanup_free char *helper = NULL, *server = NULL, *basic = NULL;

	(void)state;
	assert_int_equal(credentials_read(text, "docker.io", &found, &helper, &server, &err), 0);
	assert_string_equal(found.user, "me");
	assert_string_equal(found.secret, "s:cret");
	basic = credentials_basic(&found);
	assert_string_equal(basic, "Basic bWU6czpjcmV0");
	credentials_free(&found);
	assert_int_equal(credentials_read(text, "a.example", &found, &helper, &server, &err), 0);
	assert_true(found.is_token && !helper);
	credentials_free(&found);
	assert_int_equal(credentials_read(text, "b.example", &found, &helper, &server, &err), 0);
	assert_string_equal(helper, "ecr-login");
	assert_true(!found.secret && str_equal(server, "b.example"));
	free(steal_pointer(helper));
	free(steal_pointer(server));
	assert_int_equal(credentials_read(text, "c.example", &found, &helper, &server, &err), 0);
	assert_string_equal(helper, "pass");
	assert_int_equal(credentials_read("[]", "c.example", &found, &helper, &server, &err), -1);
}

static void follows_within_bounds(void **state)
{
	static const struct {
		const char *location, *wanted;
	} cases[] = {
		{ "/b?c", "https://a.example/b?c" },
		{ "http://b.example:81/x", "http://b.example:81/x" },
		{ "file:///etc/passwd", NULL },
		{ "ftp://a.example/", NULL },
		{ "http://[", NULL },
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		cleanup_free char *found = transport_resolve("https://a.example/v2/x", cases[i].location, &err);
		assert_int_equal(found != NULL, cases[i].wanted != NULL);
		if (found)
			assert_string_equal(found, cases[i].wanted);
	}
	assert_true(transport_same_origin("https://a.example/x", "https://A.example:443"));
	assert_false(transport_same_origin("https://a.example", "http://a.example"));
	assert_false(transport_same_origin("https://a.example", "https://a.example:444"));
	assert_false(transport_same_origin("https://a.example", "https://a.example.evil"));
	assert_false(transport_same_origin("https://a.example", "https://a.example@evil"));
}

/* Where a public registry may not lead to: nothing is connected. */
static void private_addresses_are_refused(void **state)
{
	static const char *const urls[] = { "http://127.0.0.1:1/",          "http://10.1.2.3/",
					    "http://169.254.169.254/",      "http://[::1]:1/",
					    "http://[::ffff:127.0.0.1]:1/", "http://localhost:1/" };
	struct transport_reply reply;

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(urls); i++) {
		const struct transport_request request = { .url = urls[i], .public_only = true };
		assert_int_equal(transport_perform(&request, &reply, &err), -1);
		assert_int_equal(err.code, HUSK_DENIED);
		assert_non_null(strstr(err.message, "private network"));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reads_names_as_docker_does),
		cmocka_unit_test(refuses_other_names),
		cmocka_unit_test(knows_hosts),
		cmocka_unit_test(reads_challenges),
		cmocka_unit_test(reads_logins),
		cmocka_unit_test(reads_tokens),
		cmocka_unit_test(follows_within_bounds),
		cmocka_unit_test(private_addresses_are_refused),
	};

	return cmocka_run_group_tests_name("registry", tests, NULL, NULL);
}
