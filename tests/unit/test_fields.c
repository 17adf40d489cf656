/*
 * The server's strict reading of what a client sends: the fields of a JSON body, the target of a request, and which
 * route it goes to. The sources are taken in whole, since the server's objects are no part of libhusk.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "server/fields.c"
#include "server/route.c"
#include "server/target.c"

/* ---- fields ---- */

static struct husk_error failure;

static json_t *parse(const char *text)
{
	json_t *document = json_loads(text, 0, NULL);

	assert_non_null(document);
	return document;
}

static void test_types(void **state)
{
	cleanup_json json_t *document =
		parse("{\"s\":\"x\",\"i\":7,\"f\":60.0,\"n\":0.5,\"b\":true,\"m\":\"512M\",\"r\":1024,\"z\":null}");
	struct fields fields;

	(void)state;
	fields_begin(&fields, document);
	assert_string_equal(fields_string(&fields, "s"), "x");
	assert_int_equal(fields_int(&fields, "i", 0, 1, 10), 7);
	assert_int_equal(fields_int(&fields, "f", 0, 1, 100), 60);
	assert_true(fields_number(&fields, "n", 0, 0, 1) == 0.5);
	assert_true(fields_bool(&fields, "b", false));
	assert_int_equal(fields_size(&fields, "m"), 512u << 20);
	assert_int_equal(fields_size(&fields, "r"), 1024);
	assert_null(fields_string(&fields, "z"));
	assert_null(fields_string(&fields, "absent"));
	assert_int_equal(fields_int(&fields, "missing", 42, 0, 100), 42);
	assert_int_equal(fields_done(&fields, &failure), 0);
}

/* Each is wrong in one field, which the error must name. */
static void test_wrong(void **state)
{
	static const struct {
		const char *body, *field;
	} cases[] = {
		{ "{\"i\":\"7\"}", "i" },
		{ "{\"i\":1.5}", "i" },
		{ "{\"i\":0}", "i" },
		{ "{\"i\":11}", "i" },
		{ "{\"i\":true}", "i" },
		{ "{\"s\":1}", "s" },
		{ "{\"b\":\"yes\"}", "b" },
		{ "{\"b\":1}", "b" },
		{ "{\"m\":\"12Q\"}", "m" },
		{ "{\"m\":-5}", "m" },
		{ "{\"m\":0}", "m" },
		{ "{\"m\":1e300}", "m" },
		{ "{\"p\":[]}", "p" },
		{ "{\"p\":{\"a\":1}}", "p" },
		{ "{\"l\":\"ls\"}", "l" },
		{ "{\"l\":[\"a\",2]}", "l" },
		{ "{\"n\":\"0.5\"}", "n" },
		{ "{\"n\":2}", "n" },
		{ "{\"unknown\":1}", "unknown" },
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		cleanup_json json_t *document = parse(cases[i].body);
		struct fields fields;
		size_t count;

		fields_begin(&fields, document);
		fields_int(&fields, "i", 0, 1, 10);
		fields_string(&fields, "s");
		fields_bool(&fields, "b", false);
		fields_size(&fields, "m");
		fields_number(&fields, "n", 0, 0, 1);
		free(fields_pairs(&fields, "p", &count));
		free(fields_strings(&fields, "l"));
		failure = (struct husk_error){ 0 };
		assert_int_equal(fields_done(&fields, &failure), -1);
		assert_int_equal(failure.code, HUSK_INVALID);
		assert_string_equal(failure.field, cases[i].field);
		assert_non_null(strstr(failure.message, cases[i].field));
	}
}

static void test_suggests(void **state)
{
	cleanup_json json_t *document = parse("{\"tlt_seconds\":5}");
	struct fields fields;

	(void)state;
	fields_begin(&fields, document);
	fields_int(&fields, "ttl_seconds", 0, 1, 10);
	assert_int_equal(fields_done(&fields, &failure), -1);
	assert_string_equal(failure.message, "unknown field 'tlt_seconds'; did you mean 'ttl_seconds'?");
	assert_string_equal(failure.field, "tlt_seconds");
}

static void test_lists(void **state)
{
	cleanup_json json_t *document =
		parse("{\"env\":{\"A\":\"1\",\"B\":\"\"},\"argv\":[\"ls\",\"-l\"],\"none\":{}}");
	struct fields fields;
	size_t count = 9;

	(void)state;
	fields_begin(&fields, document);
	cleanup_free struct husk_pair *pairs = fields_pairs(&fields, "env", &count);
	assert_int_equal(count, 2);
	assert_string_equal(pairs[0].key, "A");
	assert_string_equal(pairs[0].value, "1");
	cleanup_free const char **argv = fields_strings(&fields, "argv");
	assert_string_equal(argv[1], "-l");
	assert_null(argv[2]);
	/* an empty object is not the same as none: it may mean "remove all" */
	cleanup_free struct husk_pair *none = fields_pairs(&fields, "none", &count);
	assert_non_null(none);
	assert_int_equal(count, 0);
	assert_int_equal(fields_done(&fields, &failure), 0);
}

/* ---- targets ---- */

static int take_apart(struct target *target, const char *raw)
{
	*target = (struct target){ .raw = strdup(raw) };
	failure = (struct husk_error){ 0 };
	return target_parse(target, &failure);
}

static void test_target(void **state)
{
	struct target target;

	(void)state;
	assert_int_equal(take_apart(&target, "/v1/a%2Fb/c%20d?x=1%262&y=a+b&z&=e&x=2"), 0);
	assert_int_equal(target.segment_count, 3);
	assert_string_equal(target.segments[1], "a/b");
	assert_string_equal(target.segments[2], "c d");
	assert_int_equal(target.query_count, 5);
	assert_string_equal(target.query[0].value, "1&2");
	assert_string_equal(target.query[1].value, "a b");
	assert_string_equal(target.query[2].name, "z");
	assert_string_equal(target.query[2].value, "");
	target_free(&target);
}

static void test_target_refused(void **state)
{
	static const char *const bad[] = {
		"/v1/%",    "/v1/%4", "/v1/%zz", "/v1/a%00b", "/v1/../x", "/v1/%2e%2e/x", "/v1/.%2E/x",
		"/v1/x/..", "/.",     "v1",      "*",         "/x?a=%0",  "/x?a=%00",     "/x?%zz=1",
	};
	struct target target;

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		assert_int_equal(take_apart(&target, bad[i]), -1);
		assert_int_equal(failure.code, HUSK_INVALID);
		target_free(&target);
	}
	/* many pieces are refused, not written past the end */
	char many[TARGET_MAX];
	memset(many, '/', 1000);
	many[1000] = '\0';
	assert_int_equal(take_apart(&target, many), -1);
	target_free(&target);
	strcpy(many, "/x?");
	for (size_t i = 0; i < 500; i++)
		strcat(many, "a=b&");
	assert_int_equal(take_apart(&target, many), -1);
	target_free(&target);
}

/* ---- routes ---- */

static int nothing(struct request *request, struct husk_error *err)
{
	(void)request, (void)err;
	return 0;
}

const struct route instance_routes[] = { { "GET", "/healthz", nothing, 0 }, { 0 } };
const struct route sandbox_routes[] = { { "GET", "/v1/sandboxes/{id}", nothing, 0 },
					{ "DELETE", "/v1/sandboxes/{id}", nothing, 0 },
					{ 0 } };
const struct route port_routes[] = { { "POST", "/v1/sandboxes/{id}/ports/{port}/url", nothing, 0 },
				     { "*", "/v1/sandboxes/{id}/ports/{port}/{rest*}", nothing, 0 },
				     { 0 } };
/* The other families have nothing to add here. */
#define NO_ROUTES(name) const struct route name[] = { { 0 } }
NO_ROUTES(snapshot_routes);
NO_ROUTES(point_routes);
NO_ROUTES(template_routes);
NO_ROUTES(event_routes);
NO_ROUTES(exec_routes);
NO_ROUTES(pty_routes);
NO_ROUTES(code_routes);
NO_ROUTES(desktop_routes);
NO_ROUTES(file_routes);
NO_ROUTES(egress_routes);
NO_ROUTES(volume_routes);
NO_ROUTES(mcp_routes);
NO_ROUTES(wire_routes);
NO_ROUTES(owner_routes);
NO_ROUTES(desktop_view_routes);
NO_ROUTES(recording_routes);
NO_ROUTES(effect_routes);
NO_ROUTES(portable_routes);
NO_ROUTES(browser_routes);

static const struct route spoken_routes[] = { { "POST", "/sandboxes", nothing, 0 }, { 0 } };
static const struct route *const spoken_tables[] = { spoken_routes, NULL };
static const struct dialect other = { .name = "other", .tables = spoken_tables };
const struct dialect *const dialects[] = { &other, NULL };

static int find(const char *method, const char *raw, struct target *target, struct route_match *match, char allow[64])
{
	*match = (struct route_match){ 0 };
	assert_int_equal(take_apart(target, raw), 0);
	return route_find(target, method, match, allow, 64);
}

static void test_routes(void **state)
{
	struct route_match match;
	struct target target;
	char allow[64];

	(void)state;
	assert_int_equal(routes_setup(&failure), 0);
	assert_int_equal(find("HEAD", "/healthz", &target, &match, allow), 1);
	target_free(&target);
	assert_int_equal(find("GET", "/v1/sandboxes/a%2Fb?x=1", &target, &match, allow), 1);
	assert_string_equal(match.values[0], "a/b");
	target_free(&target);
	assert_int_equal(find("PUT", "/v1/sandboxes/x", &target, &match, allow), -1);
	assert_string_equal(allow, "GET, HEAD, DELETE");
	target_free(&target);
	assert_int_equal(find("POST", "/sandboxes", &target, &match, allow), 1);
	assert_ptr_equal(match.dialect, &other);
	target_free(&target);
	static const char *const none[] = { "/",
					    "/healthz/",
					    "//healthz",
					    "/v1/sandboxes/",
					    "/v1/sandboxes/x/",
					    "/V1/sandboxes/x",
					    "/v1%2Fsandboxes/x" };
	for (size_t i = 0; i < ARRAY_SIZE(none); i++) {
		assert_int_equal(find("GET", none[i], &target, &match, allow), 0);
		target_free(&target);
	}
}

static void test_rest(void **state)
{
	struct route_match match;
	struct target target;
	char allow[64];

	(void)state;
	assert_int_equal(routes_setup(&failure), 0);
	assert_int_equal(find("POST", "/v1/sandboxes/x/ports/80/url", &target, &match, allow), 1);
	assert_int_equal(match.count, 2);
	target_free(&target);
	assert_int_equal(find("PROPFIND", "/v1/sandboxes/x/ports/80/a%2Fb//c?q=1", &target, &match, allow), 1);
	assert_int_equal(match.count, 3);
	assert_string_equal(match.values[2], "a%2Fb//c?q=1");
	target_free(&target);
	assert_int_equal(find("GET", "/v1/sandboxes/x/ports/80/", &target, &match, allow), 1);
	assert_string_equal(match.values[2], "");
	target_free(&target);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_types),  cmocka_unit_test(test_wrong),  cmocka_unit_test(test_suggests),
		cmocka_unit_test(test_lists),  cmocka_unit_test(test_target), cmocka_unit_test(test_target_refused),
		cmocka_unit_test(test_routes), cmocka_unit_test(test_rest),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
