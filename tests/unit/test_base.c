/*
 * The kit's promises: parsers at their edges, buffers, files and trees, time, ids and log lines. Child processes
 * are in test_command.c.
 */
#include "base/base.h"

#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <setjmp.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "scratch.h"

static size_t entries(const char *path)
{
	cleanup_dir DIR *dir = opendir(path);
	size_t count = 0;

	assert_non_null(dir);
	while (readdir(dir))
		count++;
	return count - 2;
}

/* ---- errors ---- */

static void error_gathers_context(void **state)
{
	struct husk_error err = { 0 };

	(void)state;
	assert_int_equal(husk_fail(&err, HUSK_CONFLICT, "sandbox %s is busy", "a"), -1);
	assert_int_equal(husk_wrap(&err, "forking '%s'", "a"), -1);
	assert_string_equal(err.message, "forking 'a': sandbox a is busy");
	assert_int_equal(err.code, HUSK_CONFLICT);
	assert_int_equal(husk_fail(NULL, HUSK_INVALID, "nobody listens"), -1);
	assert_int_equal(husk_wrap(NULL, "nobody listens"), -1);
	assert_int_equal(husk_fail_memory(&err), -1);
	assert_int_equal(err.code, HUSK_LIMIT);
}

static void error_follows_errno(void **state)
{
	static const struct {
		int number;
		enum husk_code code;
	} cases[] = { { ENOENT, HUSK_NOT_FOUND },  { EEXIST, HUSK_CONFLICT }, { ENOSPC, HUSK_LIMIT },
		      { ETIMEDOUT, HUSK_TIMEOUT }, { ENOTDIR, HUSK_INVALID }, { ENOSYS, HUSK_UNAVAILABLE },
		      { EPIPE, HUSK_GONE },        { EIO, HUSK_INTERNAL } };
	struct husk_error err;

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		errno = cases[i].number;
		husk_fail_errno(&err, "cannot open %s", "/x");
		assert_int_equal(errno, cases[i].number);
		assert_int_equal(err.code, cases[i].code);
		assert_true(str_starts(err.message, "cannot open /x: "));
		assert_true(str_ends(err.message, strerror(cases[i].number)));
	}
}

static void error_message_is_cut_not_overrun(void **state)
{
	cleanup_free char *longest = malloc(4000);
	struct husk_error err;

	(void)state;
	assert_non_null(longest);
	memset(longest, 'x', 3999);
	longest[3999] = '\0';
	husk_fail(&err, HUSK_INVALID, "%s", longest);
	assert_int_equal(strlen(err.message), sizeof(err.message) - 1);
	husk_wrap(&err, "%s", longest);
	assert_int_equal(strlen(err.message), sizeof(err.message) - 1);
	errno = EIO;
	husk_fail_errno(&err, "%s", longest);
	assert_int_equal(strlen(err.message), sizeof(err.message) - 1);
}

/* ---- buffers ---- */

static void buf_grows_and_stays_terminated(void **state)
{
	cleanup_buf struct buf b = { 0 };

	(void)state;
	for (int i = 0; i < 1000; i++)
		assert_int_equal(buf_printf(&b, "%03d,", i), 0);
	assert_int_equal(b.size, 4000);
	assert_int_equal(b.data[b.size], '\0');
	assert_memory_equal(b.data + 3996, "999,", 5);
	buf_consume(&b, 3996);
	assert_string_equal(b.data, "999,");
	buf_consume(&b, 100);
	assert_int_equal(b.size, 0);
	assert_string_equal(b.data, "");
	assert_int_equal(buf_append(&b, "a\0b", 3), 0);
	assert_memory_equal(b.data, "a\0b", 4);
	assert_int_equal(buf_append(&b, NULL, 0), 0);
	assert_int_equal(buf_append_string(&b, "c"), 0);
	assert_int_equal(b.size, 4);
}

static void buf_refuses_sizes_that_wrap(void **state)
{
	cleanup_buf struct buf b = { 0 };

	(void)state;
	assert_int_equal(buf_append_string(&b, "kept"), 0);
	assert_int_equal(buf_reserve(&b, SIZE_MAX), -1);
	assert_int_equal(buf_reserve(&b, SIZE_MAX - 4), -1);
	assert_string_equal(b.data, "kept");
}

static void buf_steal_of_nothing_is_a_string(void **state)
{
	struct buf b = { 0 };
	cleanup_free char *text = buf_steal(&b);

	(void)state;
	assert_non_null(text);
	assert_string_equal(text, "");
	assert_null(b.data);
	buf_consume(&b, 1);
	buf_free(&b);
}

/* ---- strings ---- */

static void numbers_are_whole_strings_in_range(void **state)
{
	static const char *const wrong[] = { "",
					     "-",
					     " 1",
					     "1 ",
					     "+1",
					     "1.0",
					     "0x1",
					     "1e3",
					     "--1",
					     "12a",
					     "\n1",
					     "9223372036854775808",
					     "-9223372036854775809",
					     "99999999999999999999999" };
	int64_t value = 77;

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(wrong); i++)
		assert_int_equal(str_to_int64(wrong[i], INT64_MIN, INT64_MAX, &value), -1);
	assert_int_equal(str_to_int64(NULL, 0, 1, &value), -1);
	assert_int_equal(value, 77);
	assert_int_equal(str_to_int64("9223372036854775807", INT64_MIN, INT64_MAX, &value), 0);
	assert_true(value == INT64_MAX);
	assert_int_equal(str_to_int64("-9223372036854775808", INT64_MIN, INT64_MAX, &value), 0);
	assert_true(value == INT64_MIN);
	assert_int_equal(str_to_int64("-0", 0, 0, &value), 0);
	assert_int_equal(str_to_int64("007", 0, 7, &value), 0);
	assert_int_equal(value, 7);
	assert_int_equal(str_to_int64("8", 0, 7, &value), -1);
	assert_int_equal(str_to_int64("-1", 0, 7, &value), -1);
}

static void sizes_take_one_unit(void **state)
{
	static const char *const wrong[] = { "",    "M",         "-1M",
					     "1MM", "1 M",       "1.5G",
					     "1X",  "16777216T", "18446744073709551616" };
	static const struct {
		const char *text;
		uint64_t bytes;
	} right[] = { { "0", 0 },           { "64K", 65536 },     { "512m", 512ull << 20 },
		      { "2G", 2ull << 30 }, { "1T", 1ull << 40 }, { "7b", 7 } };
	uint64_t value = 77;

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(wrong); i++)
		assert_int_equal(str_to_size(wrong[i], 1, &value), -1);
	assert_int_equal(str_to_size(NULL, 1, &value), -1);
	assert_int_equal(str_to_size("18446744073709551615", 2, &value), -1);
	assert_true(value == 77);
	for (size_t i = 0; i < ARRAY_SIZE(right); i++) {
		assert_int_equal(str_to_size(right[i].text, 1, &value), 0);
		assert_true(value == right[i].bytes);
	}
	assert_int_equal(str_to_size("512", 1 << 20, &value), 0);
	assert_true(value == 512ull << 20);
}

static void durations_take_one_unit(void **state)
{
	static const char *const wrong[] = { "", "s", "-5s", "1w", "1h30m", "1.5h", "5 m", "106751991167301d" };
	int64_t value = 77;

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(wrong); i++)
		assert_int_equal(str_to_seconds(wrong[i], &value), -1);
	assert_int_equal(value, 77);
	assert_int_equal(str_to_seconds("90", &value), 0);
	assert_int_equal(value, 90);
	assert_int_equal(str_to_seconds("15m", &value), 0);
	assert_int_equal(value, 900);
	assert_int_equal(str_to_seconds("2H", &value), 0);
	assert_int_equal(value, 7200);
	assert_int_equal(str_to_seconds("1d", &value), 0);
	assert_int_equal(value, 86400);
	assert_int_equal(str_to_seconds("9223372036854775808", &value), -1);
}

static void nearest_suggests_only_what_is_near(void **state)
{
	static const char *const names[] = { "base", "code-interpreter", "agent", "browser", NULL };
	cleanup_free char *longest = malloc(500);

	(void)state;
	assert_string_equal(str_nearest("agnet", names, 4), "agent");
	assert_string_equal(str_nearest("bas", names, 4), "base");
	assert_string_equal(str_nearest("code-interpeter", names, 4), "code-interpreter");
	assert_string_equal(str_nearest("agent", names, 5), "agent");
	assert_null(str_nearest("x", names, 4));
	assert_null(str_nearest("", names, 4));
	assert_null(str_nearest(NULL, names, 4));
	assert_null(str_nearest("postgres", names, 4));
	assert_null(str_nearest("agent", names, 0));
	assert_non_null(longest);
	memset(longest, 'a', 499);
	longest[499] = '\0';
	assert_null(str_nearest(longest, names, 4));
	assert_null(str_nearest("aaaa", (const char *const[]){ longest }, 1));
}

static void utf8_is_strict(void **state)
{
	static const struct {
		const char *bytes;
		size_t size;
		bool valid;
	} cases[] = { { "", 0, true },
		      { "plain\0nul", 9, true },
		      { "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", 9, true },
		      { "\xf4\x8f\xbf\xbf", 4, true },
		      { "\xf4\x90\x80\x80", 4, false }, /* past the last code point */
		      { "\xc0\xaf", 2, false },         /* overlong '/' */
		      { "\xe0\x80\xaf", 3, false },
		      { "\xf0\x80\x80\xaf", 4, false },
		      { "\xed\xa0\x80", 3, false }, /* a surrogate */
		      { "\xe2\x82", 2, false },     /* cut short */
		      { "\xe2\x82\x41", 3, false },
		      { "\x80", 1, false },
		      { "\xff\xfe", 2, false } };

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
		assert_int_equal(str_is_utf8(cases[i].bytes, cases[i].size), cases[i].valid);
}

static void prefixes_suffixes_and_formats(void **state)
{
	cleanup_free char *text = str_format("%s-%d", "a", 7);

	(void)state;
	assert_string_equal(text, "a-7");
	assert_true(str_starts("husk.sock", "husk") && str_starts("x", "") && !str_starts("hu", "husk"));
	assert_true(str_ends("husk.sock", ".sock") && str_ends("x", "") && !str_ends("ock", ".sock"));
	assert_true(str_equal("a", "a") && !str_equal("a", "b") && !str_equal(NULL, NULL));
}

static void lists_grow_from_nothing(void **state)
{
	cleanup_strv char **list = NULL;

	(void)state;
	assert_int_equal(strv_length(list), 0);
	for (int i = 0; i < 100; i++) {
		char text[16];

		snprintf(text, sizeof(text), "%d", i);
		assert_int_equal(strv_add(&list, text), 0);
	}
	assert_int_equal(strv_length(list), 100);
	assert_string_equal(list[42], "42");
	assert_null(list[100]);
	strv_sort(list);
	assert_string_equal(list[1], "1");
	assert_string_equal(list[2], "10");
	assert_string_equal(list[99], "99");
	strv_sort(NULL);
	strv_free(NULL);
}

/* ---- files ---- */

static void read_and_write_loop_over_short_counts(void **state)
{
	static char sent[300000], got[300001];
	int ends[2], status;
	pid_t child;

	(void)state;
	assert_int_equal(random_bytes(sent, sizeof(sent)), 0);
	assert_int_equal(pipe(ends), 0);
	/* Non-blocking, and larger than a pipe: both sides must wait for each other. */
	assert_int_equal(fd_set_nonblocking(ends[0], true), 0);
	assert_int_equal(fd_set_nonblocking(ends[1], true), 0);
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		close(ends[0]);
		_exit(write_full(ends[1], sent, sizeof(sent)) == 0 ? 0 : 1);
	}
	close(ends[1]);
	assert_int_equal(read_full(ends[0], got, sizeof(got)), sizeof(sent));
	close(ends[0]);
	assert_memory_equal(sent, got, sizeof(sent));
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	assert_int_equal(read_full(-1, got, 1), -1);
	assert_int_equal(write_full(-1, got, 1), -1);
}

static void file_read_is_bounded(void **state)
{
	struct husk_error err;
	size_t size = 0;
	char *text;

	(void)state;
	put(at("file"), "0123456789");
	text = file_read(at("file"), 10, &size, &err);
	assert_string_equal(text, "0123456789");
	assert_int_equal(size, 10);
	free(text);
	assert_null(file_read(at("file"), 9, NULL, &err));
	assert_int_equal(err.code, HUSK_LIMIT);
	assert_null(file_read(at("nothing"), 9, NULL, &err));
	assert_int_equal(err.code, HUSK_NOT_FOUND);
	assert_null(file_read(scratch, 9, NULL, &err));
	/* A kernel file, which says it is empty. */
	text = file_read("/proc/self/status", 1 << 20, &size, &err);
	assert_non_null(text);
	assert_true(size > 100);
	free(text);
	put(at("empty"), "");
	text = file_read(at("empty"), 0, &size, &err);
	assert_string_equal(text, "");
	free(text);
}

static void atomic_write_replaces_or_changes_nothing(void **state)
{
	struct husk_error err;
	struct stat found;
	size_t before;
	char *text;

	(void)state;
	assert_int_equal(file_write_atomic(at("target"), "old", 3, 0600, &err), 0);
	assert_int_equal(file_write_atomic(at("target"), "newer", 5, 0640, &err), 0);
	assert_int_equal(stat(at("target"), &found), 0);
	assert_int_equal(found.st_mode & 07777, 0640);
	/* A link is replaced, never written through. */
	put(at("pointed-at"), "untouched");
	assert_int_equal(symlink(at("pointed-at"), at("link")), 0);
	put(at("link"), "own");
	assert_int_equal(lstat(at("link"), &found), 0);
	assert_true(S_ISREG(found.st_mode));
	text = file_read(at("pointed-at"), 100, NULL, &err);
	assert_string_equal(text, "untouched");
	free(text);
	/* A directory cannot be replaced by a file: an error, and no temporary file left. */
	assert_int_equal(mkdir(at("directory"), 0755), 0);
	before = entries(scratch);
	assert_int_equal(file_write_atomic(at("directory"), "x", 1, 0644, &err), -1);
	assert_int_equal(entries(scratch), before);
	assert_int_equal(file_write_atomic(at("nowhere/file"), "x", 1, 0644, &err), -1);
	assert_int_equal(err.code, HUSK_NOT_FOUND);
}

static void poke_needs_an_existing_file(void **state)
{
	struct husk_error err;
	char *text;

	(void)state;
	assert_int_equal(file_poke(at("absent"), "1", &err), -1);
	assert_int_equal(err.code, HUSK_NOT_FOUND);
	assert_false(exists(at("absent")));
	put(at("poked"), "abc");
	assert_int_equal(file_poke(at("poked"), "1", &err), 0);
	text = file_read(at("poked"), 10, NULL, &err);
	assert_string_equal(text, "1bc");
	free(text);
}

static void descriptor_flags(void **state)
{
	cleanup_close int fd = open("/dev/null", O_RDWR);

	(void)state;
	assert_int_equal(fd_set_cloexec(fd, true), 0);
	assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	assert_int_equal(fd_set_cloexec(fd, false), 0);
	assert_false(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	assert_int_equal(fd_set_nonblocking(fd, true), 0);
	assert_true(fcntl(fd, F_GETFL) & O_NONBLOCK);
	assert_int_equal(fd_set_nonblocking(fd, false), 0);
	assert_false(fcntl(fd, F_GETFL) & O_NONBLOCK);
	assert_int_equal(fd_set_cloexec(-1, true), -1);
	assert_int_equal(fd_set_nonblocking(-1, true), -1);
}

/* ---- directories ---- */

static void dir_make_with_parents(void **state)
{
	struct husk_error err;
	struct stat found;

	(void)state;
	assert_int_equal(dir_make(at("a/b/c"), 0700, &err), 0);
	assert_int_equal(dir_make(at("a/b/c"), 0700, &err), 0);
	assert_int_equal(dir_make(at("a/b/d/"), 0700, &err), 0);
	assert_int_equal(stat(at("a/b/c"), &found), 0);
	assert_int_equal(found.st_mode & 0777, 0700);
	put(at("a/file"), "");
	assert_int_equal(dir_make(at("a/file"), 0700, &err), -1);
	assert_int_equal(err.code, HUSK_INVALID);
	assert_int_equal(dir_make(at("a/file/x/y"), 0700, &err), -1);
	assert_int_equal(dir_make("", 0700, &err), -1);
	assert_int_equal(symlink(at("a"), at("to-a")), 0);
	assert_int_equal(dir_make(at("to-a/e"), 0700, &err), 0);
}

static void dir_remove_never_follows_links(void **state)
{
	struct husk_error err;

	(void)state;
	assert_int_equal(dir_make(at("outside/deep"), 0755, &err), 0);
	put(at("outside/deep/precious"), "1");
	assert_int_equal(dir_make(at("tree/x/y"), 0755, &err), 0);
	put(at("tree/x/y/file"), "");
	assert_int_equal(mkfifo(at("tree/x/fifo"), 0600), 0);
	assert_int_equal(symlink(at("outside"), at("tree/x/directory-link")), 0);
	assert_int_equal(symlink(at("outside/deep/precious"), at("tree/file-link")), 0);
	assert_int_equal(symlink("nowhere", at("tree/dangling")), 0);
	assert_int_equal(dir_remove(at("tree"), &err), 0);
	assert_false(exists(at("tree")));
	assert_true(exists(at("outside/deep/precious")));
	/* The path itself a link: the link goes, what it names stays. */
	assert_int_equal(symlink(at("outside"), at("top-link")), 0);
	assert_int_equal(dir_remove(at("top-link"), &err), 0);
	assert_false(exists(at("top-link")));
	assert_true(exists(at("outside/deep/precious")));
	assert_int_equal(dir_remove(at("never-was"), &err), 0);
	assert_int_equal(dir_remove(at("outside/deep/precious"), &err), 0);
	assert_false(exists(at("outside/deep/precious")));
}

static void dir_remove_takes_very_deep_trees(void **state)
{
	cleanup_close int fd = open(scratch, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct husk_error err;

	(void)state;
	assert_true(fd >= 0);
	/* Far past both PATH_MAX and the usual limit of descriptors. */
	for (int i = 0; i < 3000; i++) {
		const char *name = i == 0 ? "well" : "deeper";
		int next;

		assert_int_equal(mkdirat(fd, name, 0755), 0);
		next = openat(fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		assert_true(next >= 0);
		close(fd);
		fd = next;
	}
	assert_int_equal(dir_remove(at("well"), &err), 0);
	assert_false(exists(at("well")));
}

static void dir_remove_takes_very_wide_trees(void **state)
{
	struct husk_error err;
	char name[64];

	(void)state;
	assert_int_equal(dir_make(at("wide"), 0755, &err), 0);
	for (int i = 0; i < 5000; i++) {
		int fd;

		snprintf(name, sizeof(name), "wide/%d", i);
		fd = open(at(name), O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
		assert_true(fd >= 0);
		close(fd);
	}
	assert_int_equal(dir_remove(at("wide"), &err), 0);
	assert_false(exists(at("wide")));
}

static void dir_remove_stops_at_a_mount(void **state)
{
	struct husk_error err;
	int status;
	pid_t child;

	(void)state;
	assert_int_equal(dir_make(at("host"), 0755, &err), 0);
	put(at("host/precious"), "1");
	assert_int_equal(dir_make(at("tree/mounted"), 0755, &err), 0);
	/* In a mount namespace of its own: nothing of it is left, whatever goes wrong. */
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
		    mount(at("host"), at("tree/mounted"), NULL, MS_BIND, NULL) < 0)
			_exit(77);
		/* A bind mount of the same filesystem: its device number would give nothing away. */
		_exit(dir_remove(at("tree"), &err) < 0 && err.code == HUSK_CONFLICT ? 0 : 1);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
		skip();
	assert_int_equal(status, 0);
	assert_true(exists(at("host/precious")));
	assert_int_equal(dir_remove(at("tree"), &err), 0);
}

/* ---- time and random ---- */

static void time_is_formatted_as_rfc3339(void **state)
{
	static const struct {
		int64_t at;
		const char *text;
	} cases[] = { { 0, "1970-01-01T00:00:00.000Z" },
		      { 1709210096789, "2024-02-29T12:34:56.789Z" },
		      { -1, "1969-12-31T23:59:59.999Z" },
		      { INT64_MAX, "9999-12-31T23:59:59.999Z" },
		      { INT64_MIN, "0000-01-01T00:00:00.000Z" } };
	char text[25];

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		time_format(cases[i].at, text);
		assert_string_equal(text, cases[i].text);
	}
	assert_true(time_wall_ms() > 1709210096789);
	assert_true(time_monotonic_us() / 1000 <= time_monotonic_ms());
}

static void random_ids_differ_and_stay_in_their_alphabet(void **state)
{
	char first[32], second[32];

	(void)state;
	assert_int_equal(random_id("sb-", 16, first), 0);
	assert_int_equal(random_id("sb-", 16, second), 0);
	assert_int_equal(strlen(first), 19);
	assert_true(str_starts(first, "sb-"));
	assert_int_equal(strspn(first + 3, "abcdefghijklmnopqrstuvwxyz234567"), 16);
	assert_string_not_equal(first, second);
	assert_int_equal(random_id("", 0, first), 0);
	assert_string_equal(first, "");
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(error_gathers_context),
		cmocka_unit_test(error_follows_errno),
		cmocka_unit_test(error_message_is_cut_not_overrun),
		cmocka_unit_test(buf_grows_and_stays_terminated),
		cmocka_unit_test(buf_refuses_sizes_that_wrap),
		cmocka_unit_test(buf_steal_of_nothing_is_a_string),
		cmocka_unit_test(numbers_are_whole_strings_in_range),
		cmocka_unit_test(sizes_take_one_unit),
		cmocka_unit_test(durations_take_one_unit),
		cmocka_unit_test(nearest_suggests_only_what_is_near),
		cmocka_unit_test(utf8_is_strict),
		cmocka_unit_test(prefixes_suffixes_and_formats),
		cmocka_unit_test(lists_grow_from_nothing),
		cmocka_unit_test(read_and_write_loop_over_short_counts),
		cmocka_unit_test(file_read_is_bounded),
		cmocka_unit_test(atomic_write_replaces_or_changes_nothing),
		cmocka_unit_test(poke_needs_an_existing_file),
		cmocka_unit_test(descriptor_flags),
		cmocka_unit_test(dir_make_with_parents),
		cmocka_unit_test(dir_remove_never_follows_links),
		cmocka_unit_test(dir_remove_takes_very_deep_trees),
		cmocka_unit_test(dir_remove_takes_very_wide_trees),
		cmocka_unit_test(dir_remove_stops_at_a_mount),
		cmocka_unit_test(time_is_formatted_as_rfc3339),
		cmocka_unit_test(random_ids_differ_and_stay_in_their_alphabet),
	};

	return cmocka_run_group_tests_name("base", tests, make_scratch, remove_scratch);
}
