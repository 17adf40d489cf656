/*
 * The parser of Dockerfiles, its variables and mounts, and the patterns of .dockerignore: what is accepted, and where each error is
 * said to be. Building for real is tests/e2e's.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "build/context.h"
#include "build/dockerfile.h"
#include "build/url.h"

static void parse(const char *text, struct dockerfile *out)
{
	struct husk_error err = { 0 };

	if (dockerfile_parse("D", text, strlen(text), out, &err) < 0)
		fail_msg("refused: %s", err.message);
}

static void refused(const char *text, const char *begins)
{
	struct dockerfile file;
	struct husk_error err = { 0 };

	if (dockerfile_parse("D", text, strlen(text), &file, &err) == 0)
		fail_msg("accepted: %s", text);
	if (!str_starts(err.message, begins))
		fail_msg("'%s' does not begin with '%s'", err.message, begins);
	assert_int_equal(err.code, HUSK_INVALID);
}

static void test_stages(void **state)
{
	struct dockerfile file;

	(void)state;
	parse("ARG TAG=3\n# comment\nFROM golang:$TAG AS Build\nRUN make\n\nfrom build as test\nFROM scratch\nCOPY "
	      "--from=build /a /b\n"
	      "COPY --from=1 /a /b\nCOPY --from=alpine:3 /a /b\n",
	      &file);
	assert_int_equal(file.stage_count, 3);
	assert_string_equal(file.stages[0].name, "Build");
	assert_int_equal(file.stages[0].base, -1);
	assert_int_equal(file.stages[1].base, 0);
	assert_null(file.stages[2].name);
	assert_int_equal(file.stages[2].count, 4);
	assert_int_equal(file.steps[5].from, 0);
	assert_int_equal(file.steps[6].from, 1);
	assert_int_equal(file.steps[7].from, -1);
	assert_int_equal(file.steps[1].line, 3);
	dockerfile_free(&file);
}

static void test_lines(void **state)
{
	struct dockerfile file;

	(void)state;
	parse("FROM a\r\nRUN one && \\\r\n  # why\r\n\r\n  two\r\nENV A=1 \\\n    B=\"x y\" C=z\\ w\nENV old form "
	      "here\n",
	      &file);
	assert_string_equal(file.steps[1].text, "one &&   two");
	assert_int_equal(file.steps[2].line, 6);
	assert_int_equal(file.steps[2].pair_count, 3);
	assert_string_equal(file.steps[2].pairs[1].value, "\"x y\"");
	assert_string_equal(file.steps[2].pairs[2].value, "z\\ w");
	assert_string_equal(file.steps[3].pairs[0].key, "old");
	assert_string_equal(file.steps[3].pairs[0].value, "form here");
	dockerfile_free(&file);
	parse("# escape=`\nFROM a\nRUN one `\n two \\\nRUN three\n", &file);
	assert_int_equal(file.step_count, 3);
	assert_string_equal(file.steps[1].text, "one  two \\");
	dockerfile_free(&file);
}

static void test_forms(void **state)
{
	struct dockerfile file;

	(void)state;
	parse("FROM a\nRUN [\"a\", \"b c\"]\nRUN [ -f x ]\nCMD []\nCOPY [\"a b\", \"/c\"]\nHEALTHCHECK --interval=5s "
	      "CMD curl x\n"
	      "HEALTHCHECK NONE\nONBUILD RUN make\nSHELL [\"/bin/bash\", \"-c\"]\nEXPOSE 80 443/tcp\nVOLUME /a /b\n",
	      &file);
	assert_true(file.steps[1].json);
	assert_string_equal(file.steps[1].words[1], "b c");
	assert_false(file.steps[2].json);
	assert_true(file.steps[3].json);
	assert_string_equal(file.steps[4].words[0], "a b");
	assert_string_equal(file.steps[5].text, "curl x");
	assert_string_equal(dockerfile_flag(&file.steps[5], "interval"), "5s");
	assert_string_equal(file.steps[6].words[0], "NONE");
	assert_string_equal(file.steps[7].text, "RUN make");
	dockerfile_free(&file);
}

static void test_heredocs(void **state)
{
	struct dockerfile file;

	(void)state;
	parse("FROM a\nRUN <<EOF\necho \\\nFROM b\nEOF\nCOPY <<-\"X\" <<Y /d/\n\t$a\n\tX\n$b\nY\nRUN echo $((1<<3)) "
	      "<<<word '<<Q'\n",
	      &file);
	assert_int_equal(file.step_count, 4);
	assert_string_equal(file.steps[1].heredocs[0].text, "echo \\\nFROM b\n");
	assert_int_equal(file.steps[2].heredoc_count, 2);
	assert_string_equal(file.steps[2].heredocs[0].text, "$a\n");
	assert_false(file.steps[2].heredocs[0].expand);
	assert_true(file.steps[2].heredocs[1].expand);
	assert_int_equal(file.steps[3].heredoc_count, 0);
	assert_int_equal(file.steps[3].line, 11);
	dockerfile_free(&file);
}

static void test_refused(void **state)
{
	static const struct {
		const char *text, *says;
	} cases[] = {
		{ "", "D:1:1: no FROM" },
		{ "RUN x\n", "D:1:1: RUN before FROM" },
		{ "FROM a\nRUNN x\n", "D:2:1: unknown instruction 'RUNN'; did you mean RUN?" },
		{ "FROM a\n  RUN --mount=type=ssh x\n", "D:2:7: --mount: type=ssh is not supported" },
		{ "FROM a\nRUN --mount=type=cache x\n", "D:2:5: --mount: target=PATH is missing" },
		{ "FROM a\nRUN --security=insecure x\n", "D:2:5: --security of RUN is not supported" },
		{ "FROM a\nRUN --network=host x\n", "D:2:5: --network=host is not supported" },
		{ "FROM a AS b\nCOPY --from=b x y\n", "D:2:1: the stage 'b' refers to itself" },
		{ "FROM b\nFROM a AS b\n", "D:1:1: the stage 'b' comes later (line 2)" },
		{ "FROM a\nCOPY --from=1 x y\nFROM b\n", "D:2:1: the stage '1' comes later (line 3)" },
		{ "FROM a\nCOPY --from=7 x y\n", "D:2:1: there is no stage 7" },
		{ "FROM a AS b\nFROM c AS B\n", "D:2:1: there is a stage 'B' already" },
		{ "FROM a AS 1x\n", "D:1:1: '1x' cannot be the name" },
		{ "FROM a b\n", "D:1:1: FROM needs" },
		{ "FROM a\nENV A\n", "D:2:5: ENV needs KEY=value" },
		{ "FROM a\nENV A=1 2B=3\n", "D:2:9: '2B' is not the name" },
		{ "FROM a\nENV A=${B\n", "D:2:5: '${B' does not end" },
		{ "FROM a\nENV A=${B%x}\n", "D:2:5: '${B%x}' is not supported" },
		{ "FROM a\nENV A='x\n", "D:2:5: a quote does not end" },
		{ "FROM a\nCOPY x\n", "D:2:1: COPY needs at least" },
		{ "FROM a\nADD https://x/y.git /z\n", "D:2:1: ADD of a git repository" },
		{ "FROM a\nRUN <<EOF\nx\n", "D:2:5: the heredoc 'EOF' does not end" },
		{ "FROM a\nSHELL /bin/sh\n", "D:2:1: SHELL needs a JSON list" },
		{ "FROM a\nONBUILD ONBUILD RUN x\n", "D:2:9: ONBUILD:" },
		{ "FROM a\nONBUILD FROM b\n", "D:2:9: ONBUILD:" },
		{ "FROM a\nHEALTHCHECK x\n", "D:2:1: HEALTHCHECK needs" },
		{ "FROM a\nWORKDIR\n", "D:2:1: WORKDIR needs an argument" },
		{ "FROM a\nRUN x \\\n\n  --y\nBAD z\n", "D:5:1: unknown instruction 'BAD'" },
		{ "# escape=x\nFROM a\n", "D:1:1: the escape character" },
		{ "FROM a\nRUN \xff\n", "D is not text" },
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
		refused(cases[i].text, cases[i].says);
}

static const char *value(void *data, const char *name)
{
	(void)data;
	return str_equal(name, "A") ? "one" : str_equal(name, "EMPTY") ? "" : NULL;
}

static void expands(const char *text, bool plain, const char *wanted)
{
	cleanup_free char *out = NULL;
	struct husk_error err = { 0 };

	assert_int_equal(dockerfile_expand(text, '\\', plain, value, NULL, &out, &err), 0);
	assert_string_equal(out, wanted);
}

static void test_variables(void **state)
{
	(void)state;
	expands("$A-${A}x$B", false, "one-onex");
	expands("'$A' \"$A b\" \\$A \\\\", false, "$A one b $A \\");
	expands("${B:-d$A} ${A:-d} ${EMPTY:-e} ${EMPTY-e}|", false, "done one e |");
	expands("${A:+x} ${B:+x}| ${EMPTY:+x}| ${EMPTY+x}", false, "x | | x");
	expands("${B:-${A}}", false, "one");
	expands("'$A' \"q\" \\$A \\n", true, "'one' \"q\" $A \\n");
	expands("$ 5$ $1", false, "$ 5$ ");
	struct husk_error err = { 0 };
	cleanup_free char *out = NULL;
	assert_int_equal(dockerfile_expand("${B:?is needed}", '\\', false, value, NULL, &out, &err), -1);
	assert_non_null(strstr(err.message, "is needed"));
}

static void test_mounts(void **state)
{
	struct dockerfile_mount mount;

	(void)state;
	assert_int_equal(dockerfile_mount_parse("type=cache,id=npm,target=/root/.npm,sharing=locked", &mount, NULL), 0);
	assert_int_equal(mount.type, MOUNT_CACHE);
	assert_string_equal(mount.id, "npm");
	dockerfile_mount_free(&mount);
	assert_int_equal(dockerfile_mount_parse("type=secret,id=t,env=T,required,mode=0400", &mount, NULL), 0);
	assert_true(mount.required);
	assert_int_equal(mount.mode, 0400);
	dockerfile_mount_free(&mount);
	assert_int_equal(dockerfile_mount_parse("source=a,target=/b", &mount, NULL), 0);
	assert_int_equal(mount.type, MOUNT_BIND);
	dockerfile_mount_free(&mount);
	assert_int_equal(dockerfile_mount_parse("type=cache", &mount, NULL), -1);
	assert_int_equal(dockerfile_mount_parse("type=secret", &mount, NULL), -1);
	assert_int_equal(dockerfile_mount_parse("type=tmpfs,target=/x,odd=1", &mount, NULL), -1);
}

static void test_patterns(void **state)
{
	static const struct {
		const char *pattern, *path;
		bool fits;
	} cases[] = {
		{ "*.go", "a.go", true },      { "*.go", "d/a.go", false },  { "**/*.go", "d/e/a.go", true },
		{ "**/*.go", "a.go", true },   { "a/**", "a/b/c", true },    { "a/**/z", "a/z", true },
		{ "a/**/z", "a/b/c/z", true }, { "a?c", "abc", true },       { "a?c", "a/c", false },
		{ "[a-c]x", "bx", true },      { "[^a-c]x", "bx", false },   { "[a", "a", false },
		{ "\\*", "*", true },          { "\\*", "a", false },        { "**", "a/b", true },
		{ "a*b*c", "axxbyyc", true },  { "a*b*c", "axxbyy", false },
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
		if (pattern_match(cases[i].pattern, cases[i].path) != cases[i].fits)
			fail_msg("%s on %s", cases[i].pattern, cases[i].path);
}

static void test_ignored(void **state)
{
	cleanup_strv char **patterns = NULL;

	(void)state;
	assert_int_equal(
		ignore_parse("# comment\n\nnode_modules/\n*.log\n!keep.log\n/build\n./tmp//x\r\n", &patterns, NULL), 0);
	assert_int_equal(strv_length(patterns), 5);
	assert_true(ignore_match(patterns, "node_modules/a/b"));
	assert_false(ignore_match(patterns, "src/node_modules"));
	assert_true(ignore_match(patterns, "a.log"));
	assert_false(ignore_match(patterns, "keep.log"));
	assert_true(ignore_match(patterns, "build"));
	assert_true(ignore_match(patterns, "tmp/x"));
	assert_false(ignore_match(NULL, "a"));
}

static void test_urls(void **state)
{
	static const char *const bad[] = { "ftp://a/b",  "https://",         "https://u:p@a/b", "https://u@a",
					   "http://a b", "http://[::1]/x",   "http://a:0/",     "http://a:99999/",
					   "http://-o/", "http://a/\nHost:", "file:///etc",     "http://a:x/" };
	static const struct {
		const char *url, *host, *target, *name;
		uint16_t port;
	} good[] = {
		{ "https://Example.com", "example.com", "/", NULL, 443 },
		{ "http://a:8080/b/c.tar?x=1#frag", "a", "/b/c.tar?x=1", "c.tar", 8080 },
		{ "HTTPS://a/b%20c", "a", "/b%20c", "b c", 443 },
		{ "http://a?x", "a", "/?x", NULL, 80 },
		{ "http://a/b/%2e%2e", "a", "/b/%2e%2e", NULL, 80 },
		{ "http://a/x%2fy", "a", "/x%2fy", NULL, 80 },
		{ "http://a/x%00y", "a", "/x%00y", NULL, 80 },
		{ "http://a/100%", "a", "/100%", "100%", 80 },
	};
	static const char *const next[][2] = { { "x", "https://a:444/b/x" },
					       { "/x?y", "https://a:444/x?y" },
					       { "//other/x", "https://other/x" },
					       { "http://o/x", "http://o/x" },
					       { "?u=http://o", "https://a:444/b/?u=http://o" } };
	struct url url;

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		if (url_parse(bad[i], &url, NULL) == 0)
			fail_msg("%s", bad[i]);
		url_free(&url);
	}
	for (size_t i = 0; i < ARRAY_SIZE(good); i++) {
		assert_int_equal(url_parse(good[i].url, &url, NULL), 0);
		cleanup_free char *name = url_file_name(&url);
		assert_string_equal(url.host, good[i].host);
		assert_string_equal(url.target, good[i].target);
		assert_int_equal(url.port, good[i].port);
		assert_string_equal(name ? name : "-", good[i].name ? good[i].name : "-");
		url_free(&url);
	}
	assert_int_equal(url_parse("https://a:444/b/c?d/e", &url, NULL), 0);
	for (size_t i = 0; i < ARRAY_SIZE(next); i++) {
		cleanup_free char *got = url_resolve(&url, next[i][0]);
		assert_string_equal(got, next[i][1]);
	}
	url_free(&url);
	assert_int_equal(dockerfile_source("https://a/b.git?x"), SOURCE_GIT);
	assert_int_equal(dockerfile_source("https://a/b.git.tar"), SOURCE_URL);
	assert_int_equal(dockerfile_source("a/b"), SOURCE_FILE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_stages),   cmocka_unit_test(test_lines),    cmocka_unit_test(test_forms),
		cmocka_unit_test(test_heredocs), cmocka_unit_test(test_refused),  cmocka_unit_test(test_variables),
		cmocka_unit_test(test_mounts),   cmocka_unit_test(test_patterns), cmocka_unit_test(test_ignored),
		cmocka_unit_test(test_urls),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
