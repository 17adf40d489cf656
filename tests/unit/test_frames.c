/*
 * Messages of language servers, however the bytes are cut into pieces: they come out as they went in, also after a start in
 * the middle of one, and a length that is too large is refused.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* Unit tests are linked with libhusk, which has nothing of the server; this file of it needs the kit alone. */
#include "server/dialects/daytona/daytona_frames.c"

/* All that comes out, each in brackets; "!" for one that is too large. */
static char *cut(const char *text, size_t piece)
{
	struct frames frames = { 0 };
	struct buf out = { 0 };
	size_t left = strlen(text), size;
	const char *body;

	while (left > 0) {
		size_t now = MIN(left, piece);
		int found;
		assert_int_equal(frames_push(&frames, text, now), 0);
		while ((found = frames_next(&frames, &body, &size)) != 0) {
			if (found < 0)
				buf_append_string(&out, "!");
			else
				buf_printf(&out, "[%.*s]", (int)size, body);
		}
		text += now;
		left -= now;
	}
	frames_free(&frames);
	return buf_steal(&out);
}

static void expect(const char *text, const char *wanted)
{
	for (size_t piece = 1; piece <= strlen(text); piece++) {
		cleanup_free char *found = cut(text, piece);
		assert_string_equal(found, wanted);
	}
}

static void messages_come_out(void **state)
{
	(void)state;
	expect("Content-Length: 2\r\n\r\n{}Content-Length: 7\r\n\r\n{\"a\":1}", "[{}][{\"a\":1}]");
	expect("Content-Length: 2\r\nContent-Type: application/vscode-jsonrpc; charset=utf-8\r\n\r\n{}", "[{}]");
	expect("Content-Length: 0\r\n\r\nContent-Length: 1\r\n\r\n1", "[][1]");
	expect("Content-Length: 9\r\n\r\n{\"a\":1}", "");
}

static void a_start_in_the_middle_finds_the_next(void **state)
{
	(void)state;
	expect("gth: 2\r\n\r\n{}Content-Length: 2\r\n\r\n[]", "[[]]");
	expect("\"Content-Length: 90\\r\\n\\r\\nx\"}Content-Length: 2\r\n\r\n[]", "[[]]");
	expect("\"Content-Length: x\"}Content-Length: 2\r\n\r\n[]", "[[]]");
	expect("a warning on stdout\nContent-Length: 2\r\n\r\n[]", "[[]]");
}

static void lengths_are_bounded(void **state)
{
	(void)state;
	expect("Content-Length: 4194305\r\n\r\nContent-Length: 2\r\n\r\n{}", "![{}]");
	expect("Content-Length: 99999999999999999999999999999999\r\n\r\n{}", "!");
	expect("Content-Length: -1\r\n\r\n{}Content-Length: 2\r\n\r\n{}", "[{}]");
}

static void a_head_without_an_end_is_none(void **state)
{
	cleanup_buf struct buf text = { 0 };

	(void)state;
	assert_int_equal(buf_append_string(&text, "Content-Length: 2\r\nX: "), 0);
	for (int i = 0; i < 300; i++)
		assert_int_equal(buf_append_string(&text, "x"), 0);
	assert_int_equal(buf_append_string(&text, "\r\n\r\nContent-Length: 2\r\n\r\n{}"), 0);
	expect(text.data, "[{}]");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(messages_come_out),
		cmocka_unit_test(a_start_in_the_middle_finds_the_next),
		cmocka_unit_test(lengths_are_bounded),
		cmocka_unit_test(a_head_without_an_end_is_none),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
