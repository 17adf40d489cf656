/*
 * The parts of the Model Context Protocol that need no sandbox: messages, the check of arguments against the schemas of
 * tools.json (which must use nothing the check does not know), and output that is shortened. The sources are taken in
 * whole, since they are no part of libhusk.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "mcp/message.c"
#include "mcp/schema.c"
#include "mcp/tool_output.c"
#include "json/json.c"

static json_t *parse(const char *text)
{
	json_t *document = json_loads(text, JSON_DECODE_ANY, NULL);

	assert_non_null(document);
	return document;
}

/* ---- messages ---- */

static void test_kinds(void **state)
{
	static const struct {
		const char *text;
		int kind; /* 0: none */
	} cases[] = {
		{ "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}", MCP_REQUEST },
		{ "{\"jsonrpc\":\"2.0\",\"id\":\"a\",\"method\":\"ping\",\"params\":{}}", MCP_REQUEST },
		{ "{\"jsonrpc\":\"2.0\",\"method\":\"ping\"}", MCP_NOTIFICATION },
		{ "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}", MCP_RESPONSE },
		{ "{\"jsonrpc\":\"2.0\",\"id\":1,\"error\":{}}", MCP_RESPONSE },
		{ "{\"jsonrpc\":\"2.0\",\"id\":1}", 0 },
		{ "{\"jsonrpc\":\"2.0\",\"id\":1.5,\"method\":\"ping\"}", 0 },
		{ "{\"jsonrpc\":\"2.0\",\"id\":null,\"method\":\"ping\"}", 0 },
		{ "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\",\"params\":3}", 0 },
		{ "{\"jsonrpc\":2.0,\"id\":1,\"method\":\"ping\"}", 0 },
		{ "\"ping\"", 0 },
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		cleanup_json json_t *document = parse(cases[i].text);
		struct mcp_message message;
		int result = mcp_message_read(document, &message, NULL);
		assert_int_equal(result < 0 ? 0 : (int)message.kind, cases[i].kind);
	}
}

static void test_meta(void **state)
{
	cleanup_json json_t *document = parse("{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"tools/"
					      "list\",\"params\":{\"_meta\":{\"progressToken\":\"t\","
					      "\"io.modelcontextprotocol/protocolVersion\":\"2026-07-28\"}}}");
	struct mcp_message message;

	(void)state;
	assert_int_equal(mcp_message_read(document, &message, NULL), 0);
	assert_string_equal(message.version, MCP_MODERN);
	assert_string_equal(json_string_value(message.token), "t");
	assert_true(mcp_version_is_legacy(MCP_LEGACY) && mcp_version_is_legacy(MCP_UNNEGOTIATED));
	assert_false(mcp_version_is_legacy(MCP_MODERN) || mcp_version_is_legacy(NULL));
}

/* ---- schemas ---- */

static const char *const known[] = { "type",    "properties",  "required",  "additionalProperties",
				     "enum",    "minLength",   "maxLength", "minimum",
				     "maximum", "description", "items",     "minItems",
				     "maxItems" };

static void check_keywords(const json_t *schema)
{
	const char *name;
	json_t *value;

	const json_t *type = json_object_get(schema, "type");
	assert_true(!type || json_is_string(type));
	json_object_foreach((json_t *)schema, name, value)
	{
		bool is_known = false;
		for (size_t i = 0; i < ARRAY_SIZE(known); i++)
			is_known |= str_equal(name, known[i]);
		if (!is_known)
			fail_msg("the check does not know '%s'", name);
	}
	json_object_foreach(json_object_get(schema, "properties"), name, value) check_keywords(value);
	if (json_is_object(json_object_get(schema, "additionalProperties")))
		check_keywords(json_object_get(schema, "additionalProperties"));
	if (json_object_get(schema, "items"))
		check_keywords(json_object_get(schema, "items"));
}

static void test_definitions(void **state)
{
	cleanup_json json_t *tools = json_load_file("src/mcp/tools.json", JSON_REJECT_DUPLICATES, NULL);
	json_t *tool;
	size_t i;

	(void)state;
	assert_true(json_array_size(tools) > 0);
	json_array_foreach(tools, i, tool) check_keywords(json_object_get(tool, "inputSchema"));
}

static void test_arguments(void **state)
{
	cleanup_json json_t *schema = parse(
		"{\"type\":\"object\",\"properties\":{\"s\":{\"type\":\"string\",\"minLength\":1,\"maxLength\":3},"
		"\"c\":{\"type\":\"string\",\"enum\":[\"a\",\"b\"]},\"i\":{\"type\":\"integer\",\"minimum\":1,"
		"\"maximum\":9},"
		"\"e\":{\"type\":\"object\",\"additionalProperties\":{\"type\":\"string\"}},"
		"\"l\":{\"type\":\"array\",\"minItems\":1,\"maxItems\":2,\"items\":{\"type\":\"object\",\"required\":["
		"\"a\"]}}},"
		"\"required\":[\"s\"],\"additionalProperties\":false}");
	static const struct {
		const char *text, *field; /* NULL: it is right */
	} cases[] = {
		{ "{\"s\":\"x\"}", NULL },
		{ "{\"s\":\"xyz\",\"c\":\"b\",\"i\":9,\"e\":{\"A\":\"\"}}", NULL },
		{ "{\"s\":\"x\",\"i\":3.0}", NULL },
		{ "{}", "s" },
		{ "{\"s\":\"\"}", "s" },
		{ "{\"s\":\"wxyz\"}", "s" },
		{ "{\"s\":1}", "s" },
		{ "{\"s\":\"x\",\"c\":\"d\"}", "c" },
		{ "{\"s\":\"x\",\"i\":0}", "i" },
		{ "{\"s\":\"x\",\"i\":10}", "i" },
		{ "{\"s\":\"x\",\"i\":1e300}", "i" },
		{ "{\"s\":\"x\",\"i\":1.5}", "i" },
		{ "{\"s\":\"x\",\"e\":{\"A\":1}}", "e.A" },
		{ "{\"s\":\"x\",\"l\":[{\"a\":1},{\"a\":2}]}", NULL },
		{ "{\"s\":\"x\",\"l\":[{\"a\":1},2]}", "l[1]" },
		{ "{\"s\":\"x\",\"l\":[{}]}", "l[0].a" },
		{ "{\"s\":\"x\",\"l\":[]}", "l" },
		{ "{\"s\":\"x\",\"l\":[{\"a\":1},{\"a\":2},{\"a\":3}]}", "l" },
		{ "{\"s\":\"x\",\"other\":1}", "other" },
		{ "[]", "" },
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		cleanup_json json_t *value = parse(cases[i].text);
		struct husk_error err = { 0 };
		int result = schema_check(schema, value, &err);
		assert_int_equal(result, cases[i].field ? -1 : 0);
		if (cases[i].field)
			assert_string_equal(err.field, cases[i].field);
	}
}

/* ---- output ---- */

static void test_short(void **state)
{
	struct clip clip = { 0 };
	cleanup_buf struct buf text = { 0 };
	uint64_t left_out = 1;

	(void)state;
	for (size_t i = 0; i < CLIP_HEAD + CLIP_TAIL; i++)
		assert_int_equal(clip_add(&clip, i % 2 ? "b" : "a", 1, NULL), 0);
	assert_int_equal(clip_text(&clip, &text, &left_out, NULL), 0);
	assert_int_equal(left_out, 0);
	assert_int_equal(text.size, CLIP_HEAD + CLIP_TAIL);
	clip_free(&clip);
}

static void test_long(void **state)
{
	struct clip clip = { 0 };
	cleanup_buf struct buf text = { 0 };
	uint64_t left_out = 0, total = 0;

	(void)state;
	assert_int_equal(clip_add(&clip, "x", 1, NULL), 0); /* so that characters of two bytes are cut */
	for (total = 1; total < 1000001; total += 2)
		assert_int_equal(clip_add(&clip, "\xc3\xa4", 2, NULL), 0);
	assert_int_equal(clip_text(&clip, &text, &left_out, NULL), 0);
	assert_true(str_is_utf8(text.data, text.size));
	assert_non_null(strstr(text.data, "left out"));
	assert_true(left_out > total - CLIP_HEAD - CLIP_TAIL - 8 && left_out < total);
	clip_free(&clip);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_kinds),     cmocka_unit_test(test_meta),  cmocka_unit_test(test_definitions),
		cmocka_unit_test(test_arguments), cmocka_unit_test(test_short), cmocka_unit_test(test_long),
	};

	cmocka_set_message_output(CM_OUTPUT_TAP);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
