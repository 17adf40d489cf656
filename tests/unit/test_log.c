/*
 * The log: its one form, what a hostile text can do to it (nothing), levels, the ids a line carries, and the bound of a
 * log file.
 */
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <jansson.h>

#include "base/log.h"
#include "scratch.h"

static int saved_stderr = -1;
static char got[8192];

static void begin(void)
{
	cleanup_close int fd = open(at("captured"), O_RDWR | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);

	saved_stderr = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 10);
	assert_true(fd >= 0 && saved_stderr >= 0 && dup2(fd, STDERR_FILENO) >= 0);
}

/* What was logged since, without the time of each line. */
static const char *end(void)
{
	size_t size = 0;

	assert_true(dup2(saved_stderr, STDERR_FILENO) >= 0);
	fd_close(&saved_stderr);
	cleanup_free char *text = file_read(at("captured"), 1u << 20, &size, NULL);
	assert_non_null(text);
	assert_true(size < sizeof(got));
	memcpy(got, text, size + 1);
	return got;
}

/* The lines after their time, which is checked for its form. */
static void expect(const char *expected)
{
	cleanup_buf struct buf lines = { 0 };

	for (const char *line = end(), *next; *line; line = next) {
		next = strchr(line, '\n') + 1;
		assert_true(next - line > 25);
		assert_memory_equal(line + 10, "T", 1);
		assert_memory_equal(line + 23, "Z ", 2);
		assert_int_equal(buf_append(&lines, line + 25, (size_t)(next - line - 25)), 0);
	}
	assert_string_equal(lines.data ? lines.data : "", expected);
}

static int plain(void **state)
{
	(void)state;
	unsetenv("HUSK_LOG");
	unsetenv("HUSK_LOG_SANDBOX");
	unsetenv("HUSK_LOG_REQUEST");
	log_set_json(false);
	return log_setup("test", LOG_INFO, NULL);
}

static void a_line_says_when_who_and_for_whom(void **state)
{
	(void)state;
	begin();
	log_line(LOG_WARN, "one");
	log_set_sandbox("sb-1");
	log_line(LOG_ERROR, "two %d", 2);
	log_set_request("rq.3_x-Y");
	log_line(LOG_INFO, "three");
	log_set_request("not an id");
	log_set_sandbox("nor\nthis");
	log_line(LOG_INFO, "four");
	expect("warn test: one\n"
	       "error test sandbox=sb-1: two 2\n"
	       "info test sandbox=sb-1 request=rq.3_x-Y: three\n"
	       "info test: four\n");
}

static void nobody_forges_a_line_or_reaches_a_terminal(void **state)
{
	(void)state;
	begin();
	log_line(LOG_WARN, "guest said %s", "\033[2J\r\n2026-11-16T00:00:00.000Z error supervisor: gone\tx\x7f");
	log_line(LOG_WARN, "%s",
		 "caf\xc3\xa9 \xc2\x9b"
		 "31m \xff\xc3");
	expect("warn test: guest said \\x1b[2J\\x0d\\n2026-11-16T00:00:00.000Z error supervisor: gone\\tx\\x7f\n"
	       "warn test: caf\xc3\xa9 \\xc2\\x9b31m \\xff\\xc3\n");
}

static void lines_are_bounded(void **state)
{
	static char text[10000];

	(void)state;
	for (int json = 0; json < 2; json++) {
		memset(text, json ? '\n' : 'x', sizeof(text) - 1);
		log_set_json(json);
		begin();
		log_line(LOG_ERROR, "%s", text);
		const char *line = end();
		assert_true(strlen(line) <= LOG_LINE_MAX);
		assert_ptr_equal(strchr(line, '\n'), line + strlen(line) - 1);
		assert_true(str_ends(line, json ? "...\"}\n" : "...\n"));
	}
}

static void levels_are_as_configured(void **state)
{
	struct husk_error err = { 0 };

	(void)state;
	begin();
	log_line(LOG_DEBUG, "not asked for");
	setenv("HUSK_LOG", "debug", 1);
	assert_int_equal(log_setup("test", LOG_ERROR, &err), 0);
	log_line(LOG_DEBUG, "asked for");
	setenv("HUSK_LOG", "", 1);
	assert_int_equal(log_setup("test", LOG_ERROR, &err), 0);
	log_line(LOG_WARN, "less");
	setenv("HUSK_LOG", "loud", 1);
	log_begin("test", LOG_WARN);
	log_line(LOG_INFO, "still less");
	assert_int_equal(log_setup("test", LOG_WARN, &err), -1);
	assert_int_equal(err.code, HUSK_INVALID);
	expect("debug test: asked for\n"
	       "warn test: HUSK_LOG 'loud' is not a log level; give error, warn, info or debug\n");
}

static void children_get_the_context(void **state)
{
	(void)state;
	cleanup_strv char **none = log_environment();
	assert_int_equal(strv_length(none), 0);
	setenv("HUSK_LOG", "info", 1);
	log_set_sandbox("sb-1");
	log_set_request("rq1");
	cleanup_strv char **all = log_environment();
	assert_int_equal(strv_length(all), 3);
	for (size_t i = 0; all[i]; i++)
		assert_int_equal(putenv(all[i]), 0);
	log_set_sandbox(NULL);
	log_set_request(NULL);
	assert_null(log_request_id());
	begin();
	log_begin("child", LOG_ERROR);
	log_line(LOG_INFO, "born");
	expect("info child sandbox=sb-1 request=rq1: born\n");
	plain(NULL); /* takes them out of the environment before they are freed */
}

static void *other_thread(void *data)
{
	(void)data;
	log_line(LOG_INFO, "mine is none");
	return NULL;
}

static void a_request_is_a_threads_own(void **state)
{
	pthread_t thread;

	(void)state;
	begin();
	log_set_request("rq1");
	assert_int_equal(pthread_create(&thread, NULL, other_thread, NULL), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
	log_line(LOG_INFO, "mine");
	expect("info test: mine is none\ninfo test request=rq1: mine\n");
}

static void fields_are_words_or_json(void **state)
{
	static const struct log_field fields[] = { { "path", "/a b\"=\n", false },
						   { "status", "200", true },
						   { "tenant", NULL, false } };

	(void)state;
	begin();
	log_fields(LOG_INFO, "request", fields, ARRAY_SIZE(fields));
	expect("info test: request path=\"/a b\\\"=\\n\" status=200\n");
	log_set_json(true);
	log_set_sandbox("sb-1");
	log_set_request("rq1");
	begin();
	log_fields(LOG_INFO, "say \"\\\xff\033", fields, ARRAY_SIZE(fields));
	json_t *line = json_loads(end(), 0, NULL);
	assert_non_null(line);
	assert_string_equal(json_string_value(json_object_get(line, "message")), "say \"\\\xef\xbf\xbd\033");
	assert_string_equal(json_string_value(json_object_get(line, "path")), "/a b\"=\n");
	assert_int_equal(json_integer_value(json_object_get(line, "status")), 200);
	assert_true(json_is_null(json_object_get(line, "tenant")));
	assert_string_equal(json_string_value(json_object_get(line, "level")), "info");
	assert_string_equal(json_string_value(json_object_get(line, "process")), "test");
	assert_string_equal(json_string_value(json_object_get(line, "sandbox")), "sb-1");
	assert_string_equal(json_string_value(json_object_get(line, "request")), "rq1");
	json_decref(line);
}

static off_t size_of(const char *path)
{
	struct stat status;

	return lstat(path, &status) < 0 ? -1 : status.st_size;
}

/* A guest that has its supervisor log without end fills no disk, and the newest lines are there. */
static void a_log_file_is_bounded(void **state)
{
	static char text[1000];
	cleanup_close int saved = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 10);

	(void)state;
	memset(text, 'x', sizeof(text) - 1);
	int opened = log_to_file(at("log"), NULL);
	for (int i = 0; i < 10000; i++)
		log_line(LOG_WARN, "%s", text);
	log_line(LOG_WARN, "last");
	assert_true(dup2(saved, STDERR_FILENO) >= 0);
	assert_int_equal(opened, 0);
	off_t now = size_of(at("log")), before = size_of(at("log.old"));
	assert_true(now > 0 && now <= (off_t)LOG_FILE_MAX);
	assert_true(before > (off_t)LOG_FILE_MAX - LOG_LINE_MAX && before <= (off_t)LOG_FILE_MAX);
	cleanup_free char *kept = file_read(at("log"), LOG_FILE_MAX, NULL, NULL);
	assert_true(kept && str_ends(kept, "warn test: last\n"));
}

#define TEST(function) cmocka_unit_test_setup(function, plain)

int main(void)
{
	static const struct CMUnitTest tests[] = {
		TEST(a_line_says_when_who_and_for_whom),
		TEST(nobody_forges_a_line_or_reaches_a_terminal),
		TEST(lines_are_bounded),
		TEST(levels_are_as_configured),
		TEST(children_get_the_context),
		TEST(a_request_is_a_threads_own),
		TEST(fields_are_words_or_json),
		TEST(a_log_file_is_bounded), /* the last: from here on stderr is taken for a log file */
	};

	return cmocka_run_group_tests_name("log", tests, make_scratch, remove_scratch);
}
