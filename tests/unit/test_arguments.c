/*
 * The check of a call's arguments against methods.def: what a method needs, how often, in which range and form; and that the
 * error names the field.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "wire/wire.h"

static struct husk_error err;

static void refused(const struct buf *message, int64_t method, const char *text)
{
	err = (struct husk_error){ 0 };
	assert_int_equal(wire_check(method, WIRE_OPEN, message->data, message->size, &err), -1);
	assert_int_equal(err.code, HUSK_INVALID);
	if (!strstr(err.message, text))
		fail_msg("'%s' is not in '%s'", text, err.message);
}

static void accepted(const struct buf *message, int64_t method)
{
	if (wire_check(method, WIRE_OPEN, message->data, message->size, &err) < 0)
		fail_msg("refused: %s", err.message);
}

static void a_required_field_is_missing(void **state)
{
	cleanup_buf struct buf message = { 0 };

	(void)state;
	refused(&message, METHOD_WATCH, "watch: path is missing");
	assert_int_equal(wire_put_int(&message, TAG_PID, 7), 0);
	refused(&message, METHOD_PROCESS_SIGNAL, "process signal: signal is missing");
	assert_int_equal(wire_put_int(&message, TAG_SIGNAL, 9), 0);
	accepted(&message, METHOD_PROCESS_SIGNAL);
}

static void a_number_has_a_range_and_a_type(void **state)
{
	static const struct {
		int64_t method;
		uint16_t tag;
		int64_t value;
		const char *text;
	} cases[] = {
		{ METHOD_DIAL, TAG_PORT, 0, "port 0 is not within 1 to 65535" },
		{ METHOD_DIAL, TAG_PORT, 65536, "port 65536 is not within" },
		{ METHOD_SANDBOX_IDLE, TAG_IDLE_SECONDS, -1, "idle_seconds -1 is not within" },
		{ METHOD_SANDBOX_EXTEND, TAG_TTL_SECONDS, INT64_MAX, "ttl_seconds 9223372036854775807 is not" },
		{ METHOD_EXEC, TAG_TIMEOUT_MS, -5, "timeout_ms -5 is not within bounds; give 0 or more" },
		{ METHOD_SANDBOX_EGRESS_VIEW, TAG_COUNT, -1, "count -1" },
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		cleanup_buf struct buf message = { 0 };
		assert_int_equal(wire_put_int(&message, cases[i].tag, cases[i].value), 0);
		refused(&message, cases[i].method, cases[i].text);
	}
	cleanup_buf struct buf text = { 0 }, mode = { 0 };
	assert_int_equal(wire_put_string(&text, TAG_PORT, "80"), 0);
	refused(&text, METHOD_DIAL, "dial: port is not a number");
	assert_int_equal(wire_put_string(&mode, TAG_PATH, "/x"), 0);
	assert_int_equal(wire_put_int(&mode, TAG_MODE, 010000), 0);
	refused(&mode, METHOD_FILE_CHMOD, "mode 10000 is not within 0 to 7777 (octal)");
}

static void text_has_a_form(void **state)
{
	static const struct {
		int64_t method;
		uint16_t tag;
		const char *value;
		size_t size;
		const char *text;
	} cases[] = {
		{ METHOD_FILE_READ, TAG_PATH, "x", 1, "path 'x' is not absolute; begin it with /" },
		{ METHOD_FILE_READ, TAG_PATH, "", 0, "path has 0 bytes; give 1 or more" },
		{ METHOD_FILE_READ, TAG_PATH, "/a\0b", 4, "path holds a NUL byte" },
		{ METHOD_EXEC, TAG_CWD, "home", 4, "cwd 'home' is not absolute" },
		{ METHOD_EXEC, TAG_ENV, "=x", 2, "env '=x' does not read KEY=VALUE" },
		{ METHOD_EXEC, TAG_ENV, "NAME", 4, "does not read KEY=VALUE" },
		{ METHOD_EXEC, TAG_ARG, "a\0b", 3, "arg holds a NUL byte" },
		{ METHOD_IDENTITY, TAG_MACHINE_ID, "0123", 4, "machine_id has 4 bytes; give 32 or more" },
		{ METHOD_IDENTITY, TAG_NAME, "0123456G", 8, "name '0123456G' is not of lower-case hex digits" },
		{ METHOD_NETWORK, TAG_INTERFACE, "0123456789012345678901", 22,
		  "interface has 22 bytes; give at most 21" },
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		cleanup_buf struct buf message = { 0 };
		assert_int_equal(wire_put_bytes(&message, cases[i].tag, cases[i].value, cases[i].size), 0);
		refused(&message, cases[i].method, cases[i].text);
	}
}

static void a_field_repeats_only_where_it_may(void **state)
{
	cleanup_buf struct buf message = { 0 };

	(void)state;
	for (int i = 0; i < 3; i++)
		assert_int_equal(wire_put_string(&message, TAG_ARG, "true"), 0);
	accepted(&message, METHOD_EXEC);
	assert_int_equal(wire_put_string(&message, TAG_USER, "root"), 0);
	assert_int_equal(wire_put_string(&message, TAG_USER, "user"), 0);
	refused(&message, METHOD_EXEC, "exec: user is given twice");
}

static void what_is_not_known_is_left_alone(void **state)
{
	cleanup_buf struct buf message = { 0 };

	(void)state;
	assert_int_equal(wire_put_int(&message, TAG_PORT, 80), 0);
	assert_int_equal(wire_put_bytes(&message, 60000, "\0\0", 2), 0);
	assert_int_equal(wire_put_string(&message, TAG_CWD, "relative"), 0); /* not an argument of DIAL */
	accepted(&message, METHOD_DIAL);
	accepted(&message, 12345);
}

static void a_message_has_rules_of_its_own(void **state)
{
	cleanup_buf struct buf message = { 0 };

	(void)state;
	assert_int_equal(wire_put_int(&message, TAG_SIGNAL, 65), 0);
	accepted(&message, METHOD_EXEC);
	assert_int_equal(wire_check(METHOD_EXEC, WIRE_MSG, message.data, message.size, &err), -1);
	assert_non_null(strstr(err.message, "signal 65 is not within 1 to 64"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_required_field_is_missing),
		cmocka_unit_test(a_number_has_a_range_and_a_type),
		cmocka_unit_test(text_has_a_form),
		cmocka_unit_test(a_field_repeats_only_where_it_may),
		cmocka_unit_test(what_is_not_known_is_left_alone),
		cmocka_unit_test(a_message_has_rules_of_its_own),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
