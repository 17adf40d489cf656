/*
 * Names of keys as Daytona's clients write them: what they become on Husk's desktop, and what is refused.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* Unit tests are linked with libhusk, which has nothing of the server; this file of it needs the kit alone. */
#include "server/dialects/daytona/daytona_keys.c"

static void hotkeys(void **state)
{
	static const struct {
		const char *given, *becomes; /* NULL: refused */
	} cases[] = {
		{ "ctrl+c", "ctrl+c" },
		{ " Ctrl + Shift + T ", "ctrl+shift+t" },
		{ "cmd+num_plus", "super+KP_Add" },
		{ "shift", "shift" },
		{ "alt+Page-Up", "alt+Page_Up" },
		{ "ctrl+left-alt", "ctrl+Alt_L" },
		{ "", NULL },
		{ NULL, NULL },
		{ "ctrl+", NULL },
		{ "+", NULL },
		{ "ctrl++", NULL },
		{ "ctrl+c v", NULL },
		{ "a+b", NULL },
		{ "ctrl+control+c", NULL },
		{ "ctrl+!", NULL },
		{ "ctrl+ü", NULL },
		{ "ctrl+\x01", NULL },
		{ "ctrl+ctrl+ctrl+ctrl+ctrl+ctrl+ctrl+ctrl+ctrl", NULL },
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		cleanup_free char *out = NULL;
		struct husk_error err = { 0 };
		int result = daytona_hotkey(cases[i].given, &out, &err);
		assert_int_equal(result, cases[i].becomes ? 0 : -1);
		if (cases[i].becomes)
			assert_string_equal(out, cases[i].becomes);
		else
			assert_int_equal(err.code, HUSK_INVALID);
	}
}

static void chords(void **state)
{
	static const char *const none[] = { NULL }, *const two[] = { "Option", "win", NULL },
				 *const bad[] = { "f1", NULL };
	cleanup_free char *plain = NULL, *held = NULL, *empty = NULL, *wrong = NULL;

	(void)state;
	assert_int_equal(daytona_chord("A", none, &plain, NULL), 0);
	assert_string_equal(plain, "a");
	assert_int_equal(daytona_chord("Return", two, &held, NULL), 0);
	assert_string_equal(held, "alt+super+Return");
	assert_int_equal(daytona_modifiers(NULL, &empty, NULL), 0);
	assert_string_equal(empty, "");
	assert_int_equal(daytona_chord("a", bad, &wrong, NULL), -1);
	assert_int_equal(daytona_chord(" ", NULL, &wrong, NULL), -1);
	assert_int_equal(daytona_chord("two words", NULL, &wrong, NULL), -1);
	assert_int_equal(daytona_chord("", NULL, &wrong, NULL), -1);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(hotkeys), cmocka_unit_test(chords) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
