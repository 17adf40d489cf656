/*
 * The parsers of husk-desktop (guest/desktop) and of its answers: names of keys, fields of actions, errors that come from a guest.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "client/desktop.h"

#include "../../guest/desktop/fields.c"
#include "../../guest/desktop/keys.c"
#include "../../guest/desktop/tree.c"

/* ---- keys ---- */

static void chords(void **state)
{
	static const struct {
		const char *text;
		size_t count;
		xcb_keysym_t symbols[3];
	} cases[] = {
		{ "a", 1, { 'a' } },
		{ "A", 1, { 'A' } },
		{ "é", 1, { 0xe9 } },
		{ "日", 1, { 0x01000000 | 0x65e5 } },
		{ "+", 1, { '+' } },
		{ "ctrl++", 2, { 0xffe3, '+' } },
		{ "ctrl+s", 2, { 0xffe3, 's' } },
		{ "CTRL+SHIFT+T", 3, { 0xffe3, 0xffe1, 't' } },
		{ "Return", 1, { 0xff0d } },
		{ "enter", 1, { 0xff0d } },
		{ "page_down", 1, { 0xff56 } },
		{ "PageDown", 1, { 0xff56 } },
		{ "cmd+F4", 2, { 0xffeb, 0xffc1 } },
		{ "XF86AudioPlay", 1, { 0x1008ff14 } },
		{ "Agrave", 1, { 0xc0 } },
		{ "agrave", 1, { 0xe0 } },
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct chord chord;
		struct husk_error err = { 0 };
		assert_int_equal(chord_parse(cases[i].text, &chord, &err), 0);
		assert_int_equal(chord.count, cases[i].count);
		for (size_t n = 0; n < chord.count; n++)
			assert_int_equal(chord.symbols[n], cases[i].symbols[n]);
	}
}

static void chords_that_are_none(void **state)
{
	static const char *const cases[] = { "", "retrun", "ctrl+", "ctrl+nokey", "a+b+c+d+e+f+g+h+i", "\x07" };

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct chord chord;
		struct husk_error err = { 0 };
		assert_int_equal(chord_parse(cases[i], &chord, &err), -1);
		assert_string_equal(err.field, "text");
	}
}

/* ---- fields ---- */

static const struct point screen = { 1280, 800 }, thousand = { 1000, 1000 };

static int point_of(const char *text, struct point space, struct point *out)
{
	cleanup_json json_t *pair = json_loads(text, JSON_DECODE_ANY, NULL);

	return field_point(pair, "coordinate", space, screen, out, NULL);
}

static void points(void **state)
{
	struct point at;

	(void)state;
	assert_int_equal(point_of("[0, 0]", screen, &at), 0);
	assert_int_equal(point_of("[1279, 799]", screen, &at), 0);
	assert_true(at.x == 1279 && at.y == 799);
	assert_int_equal(point_of("[999.9, 500]", thousand, &at), 0);
	assert_true(at.x == 1279 && at.y == 400);
	assert_int_equal(point_of("[1280, 0]", screen, &at), -1);
	assert_int_equal(point_of("[-1, 0]", screen, &at), -1);
	assert_int_equal(point_of("[1000, 0]", thousand, &at), -1);
	assert_int_equal(point_of("[1e300, 0]", screen, &at), -1);
	assert_int_equal(point_of("[1]", screen, &at), -1);
	assert_int_equal(point_of("[\"1\", 2]", screen, &at), -1);
	assert_int_equal(point_of("7", screen, &at), -1);
}

static int region_of(const char *text, struct region *out)
{
	cleanup_json json_t *object = json_loads(text, 0, NULL);

	return field_region(object, screen, screen, out, NULL);
}

static void regions(void **state)
{
	struct region region = { 1, 2, 3, 4 };

	(void)state;
	assert_int_equal(region_of("{}", &region), 0);
	assert_int_equal(region.y1, 4);
	assert_int_equal(region_of("{\"region\": [0, 0, 1280, 800]}", &region), 0);
	assert_int_equal(region.x1, 1280);
	assert_int_equal(region_of("{\"region\": [0, 0, 1281, 800]}", &region), -1);
	assert_int_equal(region_of("{\"region\": [5, 5, 5, 9]}", &region), -1);
	assert_int_equal(region_of("{\"region\": [9, 5, 5, 9]}", &region), -1);
	assert_int_equal(region_of("{\"region\": [1, 2, 3]}", &region), -1);
}

static void unknown_fields(void **state)
{
	cleanup_json json_t *object = json_pack("{s:s, s:i}", "action", "left_click", "coordinates", 1);
	struct husk_error err = { 0 };

	(void)state;
	assert_int_equal(fields_known(object, "action coordinate text", &err), -1);
	assert_non_null(strstr(err.message, "did you mean 'coordinate'?"));
}

/* ---- answers ---- */

static int answer_of(const char *text, struct husk_error *err)
{
	cleanup_json json_t *object = json_loads(text, 0, NULL);
	cleanup_free char *answer = NULL;

	return desktop_answer(object, &answer, err);
}

static void answers(void **state)
{
	struct husk_error err = { 0 };

	(void)state;
	assert_int_equal(answer_of("{\"results\": []}", &err), 0);
	assert_int_equal(answer_of("{}", &err), -1);
	assert_int_equal(err.code, HUSK_PROTOCOL);
	assert_int_equal(
		answer_of("{\"error\": {\"index\": 2, \"action\": \"key\", \"field\": \"text\", \"code\": \"invalid\", "
			  "\"message\": \"\\u001b[31mred\"}}",
			  &err),
		-1);
	assert_int_equal(err.code, HUSK_INVALID);
	assert_string_equal(err.field, "actions[2].text");
	assert_string_equal(err.message, "action 2 (key): ?[31mred");
	assert_int_equal(
		answer_of("{\"error\": {\"index\": -1, \"code\": \"unavailable\", \"message\": \"none\"}}", &err), -1);
	assert_non_null(strstr(err.message, "use -t desktop"));
	assert_int_equal(answer_of("{\"error\": 7}", &err), -1);
	assert_true(err.message[0]);
	assert_int_equal(err.code, HUSK_INTERNAL);
}

/* Programs of the sandbox say where their elements are. */
static void places_of_elements(void **state)
{
	static const struct {
		const char *element;
		int x, y; /* -1: none */
	} cases[] = {
		{ "{\"x\":334,\"y\":154,\"width\":48,\"height\":22}", 358, 165 },
		{ "{\"x\":-100,\"y\":790,\"width\":200,\"height\":50}", 50, 795 },
		{ "{\"x\":1280,\"y\":0,\"width\":10,\"height\":10}", -1, -1 },
		{ "{\"x\":-2147483648,\"y\":0,\"width\":1,\"height\":1}", -1, -1 },
		{ "{\"x\":1e300,\"y\":0,\"width\":1,\"height\":1}", -1, -1 },
		{ "{\"x\":5,\"y\":5,\"width\":-3,\"height\":1}", -1, -1 },
		{ "{\"x\":5}", -1, -1 },
		{ "{}", -1, -1 },
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		cleanup_json json_t *element = json_loads(cases[i].element, 0, NULL);
		struct point at = { -1, -1 };
		assert_int_equal(middle(element, screen, &at), cases[i].x < 0 ? -1 : 0);
		assert_int_equal(at.x, cases[i].x);
		assert_int_equal(at.y, cases[i].y);
	}
}

static void answers_about_elements(void **state)
{
	struct husk_error err = { 0 };
	const json_t *found = NULL;
	cleanup_json json_t *two = json_loads("{\"elements\":[{\"id\":\"1.2:3\"},{\"id\":\"1.2:4\"}]}", 0, NULL);
	cleanup_json json_t *odd = json_loads("{\"elements\":7,\"error\":[]}", 0, NULL);
	cleanup_json json_t *wrong = json_loads("{\"nam\":\"x\"}", 0, NULL);
	struct buf none = { 0 };

	(void)state;
	assert_int_equal(only_one(two, &found, &err), -1);
	assert_non_null(strstr(err.message, "1.2:3, 1.2:4"));
	assert_int_equal(only_one(odd, &found, &err), -1);
	assert_null(question_of(wrong, &err));
	assert_string_equal(err.field, "element");
	assert_null(parse(&none, &err));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(chords),
		cmocka_unit_test(chords_that_are_none),
		cmocka_unit_test(points),
		cmocka_unit_test(regions),
		cmocka_unit_test(unknown_fields),
		cmocka_unit_test(answers),
		cmocka_unit_test(places_of_elements),
		cmocka_unit_test(answers_about_elements),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
