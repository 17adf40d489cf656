/*
 * Metadata and environments as pairs and as JSON: what is accepted, that both shapes say the same, and that no
 * environment value comes out where only names may.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "instance/pairs.h"
#include "instance/view.h"

static struct husk_error err;

static void metadata_is(struct husk_pair pair, const char *complaint)
{
	int result = pairs_check_metadata(&pair, 1, &err);

	assert_int_equal(result, complaint ? -1 : 0);
	if (!complaint)
		return;
	assert_int_equal(err.code, HUSK_INVALID);
	if (!strstr(err.message, complaint))
		fail_msg("'%s' does not say '%s'", err.message, complaint);
}

static void checks_metadata(void **state)
{
	char key[130], value[32 * 1024 + 2];

	(void)state;
	memset(key, 'k', sizeof key);
	memset(value, 'v', sizeof value);
	metadata_is((struct husk_pair){ "owner", "me" }, NULL);
	metadata_is((struct husk_pair){ "two words/ü", "any\ntext\t…" }, NULL);
	metadata_is((struct husk_pair){ "empty", "" }, NULL);
	metadata_is((struct husk_pair){ "", "x" }, "empty key");
	metadata_is((struct husk_pair){ NULL, "x" }, "empty key");
	metadata_is((struct husk_pair){ "a", NULL }, "has no value");
	metadata_is((struct husk_pair){ "a\nb", "x" }, "not printable");
	metadata_is((struct husk_pair){ "a\x7f", "x" }, "not printable");
	metadata_is((struct husk_pair){ "\xff", "x" }, "not printable");
	metadata_is((struct husk_pair){ "a", "\xc3(" }, "not utf-8");
	key[129] = '\0';
	metadata_is((struct husk_pair){ key, "x" }, "129 bytes");
	key[128] = '\0';
	metadata_is((struct husk_pair){ key, "x" }, NULL);
	value[32 * 1024 + 1] = '\0';
	metadata_is((struct husk_pair){ "a", value }, "32769 bytes");
	value[32 * 1024] = '\0';
	metadata_is((struct husk_pair){ "a", value }, NULL);
	assert_int_equal(pairs_check_metadata(NULL, 0, &err), 0);
	assert_int_equal(pairs_check_metadata(NULL, 3, &err), -1);
}

static void checks_environment(void **state)
{
	static const char *const good[] = { "A", "_", "PATH", "a1_B2" };
	static const char *const bad[] = { "", "1A", "A-B", "A B", "A=B", "Ä", "A\n" };

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(good); i++)
		assert_int_equal(pairs_check_environment(&(struct husk_pair){ good[i], "v" }, 1, &err), 0);
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		assert_int_equal(pairs_check_environment(&(struct husk_pair){ bad[i], "v" }, 1, &err), -1);
		assert_int_equal(err.code, HUSK_INVALID);
	}
	assert_int_equal(pairs_check_environment(&(struct husk_pair){ "TOKEN", "secret\xff" }, 1, &err), -1);
	assert_non_null(strstr(err.message, "TOKEN"));
	assert_null(strstr(err.message, "secret"));
}

static void both_shapes_say_the_same(void **state)
{
	const struct husk_pair given[] = { { "z", "1" }, { "a", "\"quoted\"\n\\" }, { "z", "2" }, { "ü", "" } };
	cleanup_free char *json = pairs_to_json(given, ARRAY_SIZE(given), &err);
	struct husk_pair *back = NULL;
	size_t count = 0;

	(void)state;
	assert_non_null(json);
	assert_int_equal(json_to_pairs(json, &back, &count, &err), 0);
	assert_int_equal(count, 3);
	assert_string_equal(back[0].key, "z");
	assert_string_equal(back[0].value, "2");
	assert_string_equal(back[1].value, given[1].value);
	assert_string_equal(back[2].key, "ü");
	pairs_free(back, count);
	assert_int_equal(json_has_pairs(json, &(struct husk_pair){ "z", "2" }, 1, &err), 1);
	assert_int_equal(json_has_pairs(json, &(struct husk_pair){ "z", "1" }, 1, &err), 0);
	assert_int_equal(json_has_pairs(json, &(struct husk_pair){ "y", "1" }, 1, &err), 0);
	assert_int_equal(json_has_pairs(NULL, NULL, 0, &err), 1);
}

static void empty_is_an_empty_object(void **state)
{
	static const char *const empty[] = { NULL, "", "{}" };
	cleanup_free char *json = pairs_to_json(NULL, 0, &err);

	(void)state;
	assert_string_equal(json, "{}");
	for (size_t i = 0; i < ARRAY_SIZE(empty); i++) {
		struct husk_pair *pairs = NULL;
		size_t count = 1;

		assert_int_equal(json_to_pairs(empty[i], &pairs, &count, &err), 0);
		assert_int_equal(count, 0);
		assert_non_null(pairs);
		pairs_free(pairs, count);
	}
}

static void refuses_what_is_not_pairs(void **state)
{
	static const char *const bad[] = { "[]", "\"text\"", "{\"a\":1}", "{\"a\":", "null", "{\"a\":{\"b\":\"c\"}}" };
	struct husk_pair *pairs = NULL;
	size_t count = 0;

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		assert_int_equal(json_to_pairs(bad[i], &pairs, &count, &err), -1);
		assert_int_equal(err.code, HUSK_INTERNAL);
	}
	assert_null(pairs);
}

static void pairs_go_over_what_is_inherited(void **state)
{
	const struct husk_pair over[] = { { "B", "new" }, { "C", "3" } };
	cleanup_free char *json = json_with_pairs("{\"A\":\"1\",\"B\":\"old\"}", over, ARRAY_SIZE(over), &err);

	(void)state;
	assert_string_equal(json, "{\"A\":\"1\",\"B\":\"new\",\"C\":\"3\"}");
	assert_null(json_with_pairs("[]", over, ARRAY_SIZE(over), &err));
}

static void shows_names_not_values(void **state)
{
	struct catalog_sandbox row = { .id = "sb-1",
				       .name = "one",
				       .template_name = "base",
				       .isolation = "gvisor",
				       .state = CATALOG_PAUSED,
				       .expires_ms = 5,
				       .memory_bytes = 6,
				       .metadata = "{\"k\":\"v\"}",
				       .environment = "{\"TOKEN\":\"secret\",\"B\":\"2\"}" };
	struct husk_sandbox *view = sandbox_from_row(&row);

	(void)state;
	assert_non_null(view);
	assert_string_equal(view->id, "sb-1");
	assert_string_equal(husk_state_name(view->state), "paused");
	assert_null(view->parent);
	assert_non_null(view->boundary);
	assert_int_equal(view->expires_ms, 5);
	assert_int_equal(view->memory_bytes, 6);
	assert_int_equal(view->metadata_count, 1);
	assert_string_equal(view->metadata[0].value, "v");
	assert_int_equal(strv_length(view->environment_names), 2);
	assert_string_equal(view->environment_names[0], "TOKEN");
	husk_sandbox_free(view);
	row.persistent = true;
	row.environment = row.metadata = NULL;
	row.isolation = "unheard-of";
	view = sandbox_from_row(&row);
	assert_int_equal(view->expires_ms, 0);
	assert_non_null(view->environment_names);
	assert_null(view->environment_names[0]);
	husk_sandbox_free(view);
	row.metadata = "broken";
	assert_null(sandbox_from_row(&row));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(checks_metadata),           cmocka_unit_test(checks_environment),
		cmocka_unit_test(both_shapes_say_the_same),  cmocka_unit_test(empty_is_an_empty_object),
		cmocka_unit_test(refuses_what_is_not_pairs), cmocka_unit_test(pairs_go_over_what_is_inherited),
		cmocka_unit_test(shows_names_not_values),
	};

	return cmocka_run_group_tests_name("pairs", tests, NULL, NULL);
}
