/*
 * Template definitions and digests: what is accepted, how a wrong line is named, what changes a digest and what does not.
 * Unpacking: what a rootfs tar may not do. Nothing is installed here; building for real is tests/e2e's.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <sys/stat.h>

#include "store/rootfs.h"

static char *scratch;

static int setup(void **state)
{
	(void)state;
	char name[] = "/tmp/husk-test-XXXXXX";

	scratch = mkdtemp(name) ? strdup(name) : NULL;
	return scratch ? 0 : -1;
}

static int teardown(void **state)
{
	(void)state;
	int result = dir_remove(scratch, NULL);

	free(scratch);
	return result;
}

static char *at(const char *name)
{
	char *path = str_format("%s/%s", scratch, name);

	assert_non_null(path);
	return path;
}

static void write_file(const char *name, const char *text)
{
	cleanup_free char *path = at(name);

	assert_int_equal(file_write_atomic(path, text, strlen(text), 0644, NULL), 0);
}

static int load(const char *text, struct template_definition **out, struct husk_error *err)
{
	cleanup_free char *directory = at("sample");

	assert_int_equal(dir_make(directory, 0755, NULL), 0);
	write_file("sample/template", text);
	return template_load(directory, out, err);
}

static void good_definition(void **state)
{
	(void)state;
	cleanup_template struct template_definition *t = NULL;
	struct husk_error err;
	const char *text = "# a comment\n\n description:  one: line  \npackages: bash  git\npackages: libc6:amd64\n"
			   "npm: @scope/tool@1.2.3 other@4\nuser: agent sudo\nuser: guest\nenv: A=1=2\nenv: EMPTY=\n"
			   "disk: 2G\nstart: python3 -c 'x: y'\nwarm: true\nwarm: date\nready: test -e /x\r\n"
			   "ready: true\ndesktop: false\n";

	assert_int_equal(load(text, &t, &err), 0);
	assert_int_equal(t->kind, TEMPLATE_DEFINITION);
	assert_string_equal(t->name, "sample");
	assert_string_equal(t->description, "one: line");
	assert_int_equal(strv_length(t->packages), 3);
	assert_string_equal(t->packages[2], "libc6:amd64");
	assert_string_equal(t->npm[0], "@scope/tool@1.2.3");
	assert_string_equal(t->users[0], "agent sudo");
	assert_string_equal(t->environment[0], "A=1=2");
	assert_string_equal(t->environment[1], "EMPTY=");
	assert_true(t->disk_bytes == 2ull << 30);
	assert_string_equal(t->start[0], "python3 -c 'x: y'");
	assert_int_equal(strv_length(t->warm), 2);
	assert_int_equal(strv_length(t->ready), 2);
	assert_string_equal(t->ready[0], "test -e /x");
	assert_null(t->parts);
}

static void empty_definition(void **state)
{
	(void)state;
	cleanup_template struct template_definition *t = NULL;

	assert_int_equal(load("", &t, NULL), 0);
	assert_string_equal(t->description, "");
	assert_null(t->packages);
	assert_true(t->disk_bytes == 0);
}

static void bad_definitions(void **state)
{
	(void)state;
	static const struct {
		const char *text, *named; /* what the message has to hold */
	} cases[] = {
		{ "nonsense\n", ":1: 'nonsense'" },
		{ "\n# x\npakages: bash\n", ":3: unknown key 'pakages'; did you mean 'packages'?" },
		{ "packages:\n", ":1: packages: has no value" },
		{ "packages: bash -o\n", "'-o' is not the name of a Debian package" },
		{ "packages: a;b\n", "packages: 'a;b'" },
		{ "pip: requests\n", "pip: 'requests' is not a package of PyPI pinned" },
		{ "pip: requests>=2\n", "pip: 'requests>=2'" },
		{ "pip: -r==1\n", "pip: '-r==1'" },
		{ "npm: left-pad\n", "npm: 'left-pad' is not an npm package pinned" },
		{ "npm: @scope/tool\n", "npm: '@scope/tool'" },
		{ "npm: tool@latest\n", "npm: 'tool@latest'" },
		{ "exclude: usr/x\n", "exclude: 'usr/x'" },
		{ "user: Root\n", "user: 'Root'" },
		{ "user: agent admin\n", "user: 'agent admin'" },
		{ "user: a sudo b\n", "user: 'a sudo b'" },
		{ "env: 1A=2\n", "env: '1A=2' is not KEY=value" },
		{ "env: A\n", "env: 'A'" },
		{ "disk: 1K\n", "disk: '1K' is not a size" },
		{ "disk: much\n", "disk: 'much'" },
		{ "disk: 1G\ndisk: 2G\n", ":2: disk: given twice" },
		{ "desktop: yes\n", ":1: desktop: 'yes' is not true or false" },
		{ "description: a\ndescription: b\n", ":2: description: given twice" },
		{ "script: ../x\n", "script: '../x'" },
		{ "script: /x\n", "script: '/x'" },
		{ "script: missing.sh\n", "script: cannot read 'missing.sh'" },
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct template_definition *t = NULL;
		struct husk_error err;
		assert_int_equal(load(cases[i].text, &t, &err), -1);
		assert_null(t);
		if (!strstr(err.message, cases[i].named))
			fail_msg("'%s' gave: %s", cases[i].text, err.message);
		assert_non_null(strstr(err.message, "sample/template"));
	}
}

static void names(void **state)
{
	(void)state;
	cleanup_template struct template_definition *t = NULL;
	struct husk_error err;

	assert_true(template_name_valid("code-interpreter"));
	assert_true(template_name_valid("a.b_C9"));
	assert_false(template_name_valid(""));
	assert_false(template_name_valid("-a"));
	assert_false(template_name_valid(".."));
	assert_false(template_name_valid("a/b"));
	assert_false(template_name_valid("0123456789012345678901234567890123456789012345678901234567890123456789"));
	assert_int_equal(template_from_directory(scratch, "a/b", &t, &err), -1);
	assert_int_equal(err.code, HUSK_INVALID);
	assert_int_equal(template_from_directory("/nowhere/at/all", "a", &t, &err), -1);
	assert_int_equal(err.code, HUSK_NOT_FOUND);
	assert_int_equal(template_from_tar(scratch, "a", &t, &err), -1);
	assert_non_null(strstr(err.message, "is not a tar file"));
}

/* The digest of a definition with this text, with a place of its own for what Husk ships. */
static void digest_of(const char *text, char out[TEMPLATE_DIGEST_LENGTH + 1])
{
	cleanup_template struct template_definition *t = NULL;
	struct husk_error err;

	assert_int_equal(load(text, &t, &err), 0);
	if (template_digest(t, "gvisor", out, &err) < 0)
		fail_msg("%s", err.message);
	assert_int_equal(strlen(out), TEMPLATE_DIGEST_LENGTH);
}

static void stage1_of(const char *text, char out[TEMPLATE_DIGEST_LENGTH + 1])
{
	cleanup_template struct template_definition *t = NULL;

	assert_int_equal(load(text, &t, NULL), 0);
	assert_int_equal(digest_stage1(t, out, NULL), 0);
}

static void ship_files(void)
{
	cleanup_free char *lib = at("lib"), *guest = at("lib/guest"), *templates = at("lib/templates");

	assert_int_equal(dir_make(guest, 0755, NULL), 0);
	assert_int_equal(dir_make(templates, 0755, NULL), 0);
	write_file("lib/husk-agent", "agent one");
	write_file("lib/guest/kernel.py", "kernel one");
	write_file("lib/templates/customize.sh", "#!/bin/sh\n");
	assert_int_equal(setenv("HUSK_LIBDIR", lib, 1), 0);
}

static void digests(void **state)
{
	(void)state;
	char first[TEMPLATE_DIGEST_LENGTH + 1], again[TEMPLATE_DIGEST_LENGTH + 1], other[TEMPLATE_DIGEST_LENGTH + 1];
	char stage[TEMPLATE_DIGEST_LENGTH + 1], stage_again[TEMPLATE_DIGEST_LENGTH + 1];
	cleanup_free char *files = at("sample/files");

	ship_files();
	digest_of("packages: bash\n", first);
	digest_of("packages: bash\n", again);
	assert_string_equal(first, again);
	digest_of("packages: bash git\n", other);
	assert_string_not_equal(first, other);

	/* A new agent or guest file is a new image from the same packages. */
	stage1_of("packages: bash\n", stage);
	write_file("lib/husk-agent", "agent two");
	digest_of("packages: bash\n", other);
	assert_string_not_equal(first, other);
	stage1_of("packages: bash\n", stage_again);
	assert_string_equal(stage, stage_again);
	write_file("lib/husk-agent", "agent one");
	write_file("lib/guest/kernel.py", "kernel two");
	digest_of("packages: bash\n", other);
	assert_string_not_equal(first, other);
	write_file("lib/guest/kernel.py", "kernel one");
	write_file("lib/guest/source.c", "not shipped");
	digest_of("packages: bash\n", again);
	assert_string_equal(first, again);

	/* What is warmed changes the image's digest, not the packages; a file to copy changes both. */
	digest_of("packages: bash\nwarm: true\n", other);
	assert_string_not_equal(first, other);
	stage1_of("packages: bash\nwarm: true\n", stage_again);
	assert_string_equal(stage, stage_again);
	assert_int_equal(dir_make(files, 0755, NULL), 0);
	write_file("sample/files/motd", "hello");
	stage1_of("packages: bash\n", stage_again);
	assert_string_not_equal(stage, stage_again);
	assert_int_equal(unsetenv("HUSK_LIBDIR"), 0);
}

/* The lines and files of a part are the definition's own. */
static void parts(void **state)
{
	(void)state;
	char stage[TEMPLATE_DIGEST_LENGTH + 1], again[TEMPLATE_DIGEST_LENGTH + 1];
	cleanup_free char *files = at("lib/templates/parts/desktop/files");
	cleanup_template struct template_definition *t = NULL, *none = NULL;
	struct husk_error err;

	ship_files();
	assert_int_equal(dir_make(files, 0755, NULL), 0);
	write_file("lib/templates/parts/desktop/template", "packages: screen\nready: test -e /screen\n");
	write_file("lib/templates/parts/desktop/files/motd", "hello");
	assert_int_equal(load("packages: bash\ndesktop: true\npackages: git\nready: true\n", &t, &err), 0);
	assert_int_equal(strv_length(t->packages), 3);
	assert_string_equal(t->packages[1], "screen");
	assert_int_equal(strv_length(t->ready), 2);
	assert_int_equal(strv_length(t->parts), 1);
	assert_int_equal(load("desktop: true\n\ndesktop: true\n", &none, &err), -1);
	assert_non_null(strstr(err.message, ":3: desktop: given twice"));

	stage1_of("desktop: true\n", stage);
	write_file("lib/templates/parts/desktop/files/motd", "good day");
	stage1_of("desktop: true\n", again);
	assert_string_not_equal(stage, again);
	write_file("lib/templates/parts/desktop/template", "packages: screen\ndesktop: true\n");
	assert_int_equal(load("desktop: true\n", &none, &err), -1);
	assert_non_null(strstr(err.message, "given twice"));
	assert_int_equal(unsetenv("HUSK_LIBDIR"), 0);
}

static void trees(void **state)
{
	(void)state;
	char first[TEMPLATE_DIGEST_LENGTH + 1], second[TEMPLATE_DIGEST_LENGTH + 1];
	cleanup_template struct template_definition *t = NULL;
	cleanup_free char *root = at("root"), *file = at("root/file");

	ship_files();
	assert_int_equal(dir_make(root, 0755, NULL), 0);
	write_file("root/file", "content");
	assert_int_equal(template_from_directory(root, "tree", &t, NULL), 0);
	assert_int_equal(template_digest(t, "gvisor", first, NULL), 0);
	assert_int_equal(chmod(file, 0600), 0);
	assert_int_equal(template_digest(t, "gvisor", second, NULL), 0);
	assert_string_not_equal(first, second);
	assert_int_equal(chmod(file, 0644), 0);
	assert_int_equal(template_digest(t, "gvisor", second, NULL), 0);
	assert_string_equal(first, second);
	assert_int_equal(unsetenv("HUSK_LIBDIR"), 0);
}

/* ---- tars ---- */

/* A ustar of one entry. */
static void write_tar(const char *name, char type, const char *link)
{
	char block[512] = { 0 };
	unsigned sum = 0;
	cleanup_buf struct buf tar = { 0 };
	cleanup_free char *path = at("hostile.tar");

	snprintf(block, 100, "%s", name);
	memcpy(block + 100, "0000644", 8);
	memcpy(block + 108, "0000000", 8);
	memcpy(block + 116, "0000000", 8);
	memcpy(block + 124, "00000000000", 12);
	memcpy(block + 136, "00000000000", 12);
	memset(block + 148, ' ', 8);
	block[156] = type;
	snprintf(block + 157, 100, "%s", link);
	memcpy(block + 257, "ustar", 6);
	memcpy(block + 263, "00", 2);
	memcpy(block + 329, "0000001", 8);
	memcpy(block + 337, "0000001", 8);
	for (size_t i = 0; i < sizeof(block); i++)
		sum += (unsigned char)block[i];
	snprintf(block + 148, 8, "%06o", sum);
	assert_int_equal(buf_append(&tar, block, sizeof(block)), 0);
	memset(block, 0, sizeof(block));
	assert_int_equal(buf_append(&tar, block, sizeof(block)), 0);
	assert_int_equal(buf_append(&tar, block, sizeof(block)), 0);
	assert_int_equal(file_write_atomic(path, tar.data, tar.size, 0644, NULL), 0);
}

static int unpack_some(uint64_t limit, struct husk_error *err)
{
	cleanup_free char *tar = at("hostile.tar"), *directory = at("unpacked");

	cleanup_close int fd = open(tar, O_RDONLY | O_CLOEXEC);
	assert_int_equal(dir_make(directory, 0755, NULL), 0);
	return unpack_tar(fd, tar, "tar", limit, directory, err);
}

static int unpack(struct husk_error *err)
{
	return unpack_some(0, err);
}

static void hostile_tars(void **state)
{
	(void)state;
	struct husk_error err;
	cleanup_free char *escaped = at("escaped"), *link = at("unpacked/link"), *file = at("unpacked/file");

	write_tar("../escaped", '0', "");
	assert_int_equal(unpack(&err), -1);
	assert_non_null(strstr(err.message, "leads outside"));
	write_tar("a/../../escaped", '0', "");
	assert_int_equal(unpack(&err), -1);
	write_tar("/etc/escaped", '0', "");
	assert_int_equal(unpack(&err), -1);
	write_tar("hard", '1', "../../etc/passwd");
	assert_int_equal(unpack(&err), -1);
	assert_non_null(strstr(err.message, "link to outside"));
	write_tar("etc/null", '3', "");
	assert_int_equal(unpack(&err), -1);
	assert_non_null(strstr(err.message, "device"));
	write_tar("dev/null", '3', "");
	assert_int_equal(unpack(&err), -1); /* left out, so nothing is left */
	write_tar("./file", '0', "");
	assert_int_equal(unpack(&err), 0);
	assert_int_equal(access(file, F_OK), 0);
	/* A file without content counts too: a million of them is a few kilobytes, compressed. */
	assert_int_equal(unpack_some(511, &err), -1);
	assert_int_equal(err.code, HUSK_LIMIT);
	assert_int_equal(unpack_some(512, &err), 0);
	/* A link is fine as a link; writing through it is not. */
	write_tar("link", '2', scratch);
	assert_int_equal(unpack(&err), 0);
	write_tar("link/escaped", '0', "");
	(void)unpack(&err);
	assert_int_equal(access(escaped, F_OK), -1);
	assert_int_equal(unlink(link) == 0 || errno == EISDIR || errno == ENOENT, 1);
	write_file("hostile.tar", "this is not a tar");
	assert_int_equal(unpack(&err), -1);
	assert_non_null(strstr(err.message, "is not a tar"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(good_definition, setup, teardown),
		cmocka_unit_test_setup_teardown(empty_definition, setup, teardown),
		cmocka_unit_test_setup_teardown(bad_definitions, setup, teardown),
		cmocka_unit_test_setup_teardown(names, setup, teardown),
		cmocka_unit_test_setup_teardown(digests, setup, teardown),
		cmocka_unit_test_setup_teardown(parts, setup, teardown),
		cmocka_unit_test_setup_teardown(trees, setup, teardown),
		cmocka_unit_test_setup_teardown(hostile_tars, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
