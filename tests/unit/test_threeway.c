/*
 * The table of threeway.h, the merge of text, and the names and links that may be written on the caller's side,
 * and the credentials that stay there.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "workspace/host.h"
#include "workspace/redact.h"
#include "workspace/threeway.h"

static const struct version none = { 0 };

static struct version file(const char *hash, uint32_t mode)
{
	struct version version = { .type = HUSK_FILE, .mode = mode };

	snprintf(version.hash, sizeof(version.hash), "%s", hash);
	return version;
}

static enum verdict decide(struct version base, struct version ours, struct version theirs)
{
	return threeway_decide(&base, &ours, &theirs).verdict;
}

static void test_verdicts(void **state)
{
	struct version a = file("a", 0644), b = file("b", 0644), c = file("c", 0644);
	struct version link = { .type = HUSK_SYMLINK, .target = (char *)"x" };
	struct version other = { .type = HUSK_SYMLINK, .target = (char *)"y" };
	struct version directory = { .type = HUSK_DIRECTORY, .mode = 0755 };

	(void)state;
	assert_int_equal(decide(a, a, b), VERDICT_TAKE);
	assert_int_equal(decide(a, a, none), VERDICT_TAKE);
	assert_int_equal(decide(none, none, a), VERDICT_TAKE);
	assert_int_equal(decide(a, b, b), VERDICT_SAME);
	assert_int_equal(decide(a, none, none), VERDICT_SAME);
	assert_int_equal(decide(a, b, a), VERDICT_SAME);
	assert_int_equal(decide(a, b, c), VERDICT_MERGE);
	assert_int_equal(decide(none, b, c), VERDICT_MERGE);
	assert_int_equal(decide(a, b, none), VERDICT_CONFLICT);
	assert_int_equal(decide(a, none, b), VERDICT_CONFLICT);
	assert_int_equal(decide(a, link, b), VERDICT_CONFLICT);
	assert_int_equal(decide(link, other, link), VERDICT_SAME);
	assert_int_equal(decide(link, link, other), VERDICT_TAKE);
	assert_int_equal(decide(none, directory, directory), VERDICT_SAME);
	assert_int_equal(decide(none, directory, a), VERDICT_CONFLICT);
}

static void test_modes(void **state)
{
	struct version base = file("a", 0644), ours = file("b", 0644), theirs = file("a", 0755);
	struct decision decision = threeway_decide(&base, &ours, &theirs);

	(void)state;
	assert_int_equal(decision.verdict, VERDICT_MODE);
	assert_int_equal(decision.mode, 0755);
	ours = file("a", 0600);
	theirs = file("b", 0644);
	decision = threeway_decide(&base, &ours, &theirs);
	assert_int_equal(decision.verdict, VERDICT_TAKE);
	assert_int_equal(decision.mode, 0600);
	theirs = file("b", 0755);
	assert_int_equal(threeway_decide(&base, &ours, &theirs).verdict, VERDICT_CONFLICT);
}

static struct text text(const char *data)
{
	return (struct text){ data, strlen(data) };
}

static void test_text(void **state)
{
	cleanup_buf struct buf clean = { 0 }, marked = { 0 };
	struct husk_error err = { 0 };

	(void)state;
	assert_int_equal(text_merge(text("1\n2\n3\n4\n5\n"), text("one\n2\n3\n4\n5\n"), text("1\n2\n3\n4\nfive"),
				    "here", "there", &clean, &err),
			 0);
	cleanup_free char *merged = buf_steal(&clean);
	assert_string_equal(merged, "one\n2\n3\n4\nfive");
	assert_int_equal(text_merge(text("1\n"), text("a\n"), text("b\n"), "here", "-x", &marked, &err), 1);
	assert_non_null(strstr(marked.data, "<<<<<<< here\na\n"));
	assert_non_null(strstr(marked.data, ">>>>>>> -x"));
	assert_true(text_is_plain(text("abc")));
	assert_false(text_is_plain((struct text){ "a\0b", 3 }));
}

static void test_names(void **state)
{
	static const char *const good[] = { "a", "a/b", ".gitignore", "..a", "a/...", "new\nline", "x.git", "\xff" };
	static const char *const bad[] = {
		"",     "/a",     "a//b",   "a/",           "..",          "a/../b",       "./a",
		".git", ".GIT/x", "a/.git", "a/.Git/hooks", ".husk-apply", ".husk-apply/1"
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(good); i++)
		assert_null(name_refused(good[i]));
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
		assert_non_null(name_refused(bad[i]));
}

static void test_links(void **state)
{
	(void)state;
	assert_true(link_stays_inside("a", "b"));
	assert_true(link_stays_inside("d/a", "../b"));
	assert_true(link_stays_inside("d/a", "./../nowhere"));
	assert_false(link_stays_inside("a", "../b"));
	assert_false(link_stays_inside("a", "/etc"));
	assert_false(link_stays_inside("d/a", "x/../../b"));
	assert_false(link_stays_inside("a", ".git/hooks"));
	assert_false(link_stays_inside("a", ""));
}

static void check_redacted(const char *text, const char *wanted)
{
	struct buf out = { 0 };

	assert_int_equal(redact_config(text, strlen(text), &out), strcmp(text, wanted) != 0);
	assert_string_equal(out.data ? out.data : "", wanted);
	buf_free(&out);
}

static void test_credentials(void **state)
{
	(void)state;
	check_redacted("", "");
	check_redacted("[remote \"o\"]\n\turl = https://ada:pw@h/r.git\n", "[remote \"o\"]\n\turl = https://h/r.git\n");
	check_redacted("url = HTTP://token@h:8080/a@b\nx = 1", "url = HTTP://h:8080/a@b\nx = 1");
	check_redacted("[url \"https://a:p@q@h/\"]\ninsteadOf = x:", "[url \"https://h/\"]\ninsteadOf = x:");
	check_redacted("url = ssh://git@h/r\nurl = git@h:r\n", "url = ssh://git@h/r\nurl = git@h:r\n");
	check_redacted("a = 1\n  ExtraHeader=Authorization: Basic x\nb = 2\n", "a = 1\nb = 2\n");
	check_redacted("extraheader = a \\\n  secret \\\n more\nb\n", "b\n");
	check_redacted("extraheaders = 1\nextraheader", "extraheaders = 1\nextraheader");
	assert_true(redact_applies(".git/config"));
	assert_true(redact_applies("sub/.git/modules/m/config"));
	assert_true(redact_applies(".git/worktrees/w/config.worktree"));
	assert_false(redact_applies("config"));
	assert_false(redact_applies(".git/description"));
	assert_false(redact_applies("x.git/config"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_verdicts), cmocka_unit_test(test_modes), cmocka_unit_test(test_text),
		cmocka_unit_test(test_names),    cmocka_unit_test(test_links), cmocka_unit_test(test_credentials),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
