/*
 * The parser of what programs inside a sandbox answer: what it takes, what it refuses, and bodies in chunks however they
 * are cut into pieces.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* Unit tests are linked with libhusk, which has nothing of the server; this file of it needs the kit alone. */
#include "base/http1.c"
#include "base/http_grammar.h"

static void takes_a_head(void **state)
{
	static const char text[] =
		"HTTP/1.1 404 Not Here\r\nContent-Length: 12\r\nX-A: \t two words \t\r\nX-B:\nx-a: b\r\n\r\nrest";
	struct http1_head head;

	(void)state;
	for (size_t size = 0; size < strlen(text) - 4; size++) /* every beginning of it wants more */
		assert_int_equal(http1_head_parse(text, size, &head, NULL), 0);
	assert_int_equal(http1_head_parse(text, strlen(text), &head, NULL), strlen(text) - 4);
	assert_int_equal(head.status, 404);
	assert_int_equal(head.count, 4);
	assert_true(head.length == 12 && !head.chunked);
	assert_string_equal(http1_head_find(&head, "x-A"), "two words");
	assert_string_equal(http1_head_find(&head, "X-B"), "");
	assert_null(http1_head_find(&head, "X-C"));
	http1_head_free(&head);
	assert_true(http1_head_parse("HTTP/1.0 200\n\n", 14, &head, NULL) == 14 && head.length == -1);
	http1_head_free(&head);
	static const char both[] = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: Chunked\r\n\r\n";
	assert_int_equal(http1_head_parse(both, strlen(both), &head, NULL), -1); /* two readers, two ends */
}

static void refuses_what_is_none(void **state)
{
	static const char *const bad[] = {
		"HTTP/2 200 OK\r\n\r\n",
		"HTTP/1.1 20 OK\r\n\r\n",
		"HTTP/1.1 2000 OK\r\n\r\n",
		"HTTP/1.1 099 OK\r\n\r\n",
		"HTTP/1.1 600 OK\r\n\r\n",
		"ICY 200 OK\r\n\r\n",
		"\r\n\r\n",
		"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
		"HTTP/1.1 200 OK\r\n: empty\r\n\r\n",
		"HTTP/1.1 200 OK\r\nA B: c\r\n\r\n",
		"HTTP/1.1 200 OK\r\nA : c\r\n\r\n",
		"HTTP/1.1 200 OK\r\nA: b\r\n folded\r\n\r\n",
		"HTTP/1.1 200 OK\r\nA: b\rSet-Cookie: c\r\n\r\n",
		"HTTP/1.1 200 OK\r\nA: \x01\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: +1\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 1, 1\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
	};
	struct http1_head head;
	struct husk_error err = { 0 };
	cleanup_buf struct buf large = { 0 };

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		if (http1_head_parse(bad[i], strlen(bad[i]), &head, &err) != -1)
			fail_msg("taken: %s", bad[i]);
		assert_int_equal(err.code, HUSK_PROTOCOL);
	}
	assert_int_equal(http1_head_parse("HTTP/1.1 200 OK\r\nA: \0\r\n\r\n", 25, &head, &err), -1);
	for (size_t i = 0; i <= HTTP1_HEADERS_MAX; i++)
		assert_int_equal(buf_append_string(&large, i ? "A: b\r\n" : "HTTP/1.1 200 OK\r\n"), 0);
	assert_int_equal(buf_append_string(&large, "\r\n"), 0);
	assert_true(http1_head_parse(large.data, large.size, &head, &err) > 0);
	http1_head_free(&head);
	large.size -= 2;
	assert_int_equal(buf_append_string(&large, "A: b\r\n\r\n"), 0);
	assert_int_equal(http1_head_parse(large.data, large.size, &head, &err), -1);
	while (large.size < HTTP1_HEAD_MAX)
		assert_int_equal(buf_append_string(&large, "x"), 0);
	memset(large.data, 'x', large.size);
	assert_int_equal(http1_head_parse(large.data, large.size, &head, &err), -1);
}

/* The result of the last piece; what came out is in `out`. */
static int decode(const char *text, size_t piece, struct buf *out)
{
	struct http1_chunks chunks = { 0 };
	size_t size = strlen(text);
	int result = 0;

	for (size_t at = 0; at < size && result == 0; at += piece) {
		size_t count = MIN(piece, size - at);
		cleanup_free char *bytes = strndup(text + at, count);
		result = http1_chunks_decode(&chunks, bytes, &count, NULL);
		if (result >= 0)
			assert_int_equal(buf_append(out, bytes, count), 0);
	}
	return result;
}

static void puts_chunks_together(void **state)
{
	static const char text[] =
		"5\r\nhello\r\n00A;ext=\"1\"\r\n, chunked \r\n5 \nworld\n0\r\nT: x\r\nU: y\r\n\r\nafter";
	static const char *const bad[] = { "\r\n",   "x\r\n",           "5x\r\n",
					   "-5\r\n", "5\r\nhelloo\r\n", "1000000000000000\r\n",
					   ";x\r\n" };

	(void)state;
	for (size_t piece = 1; piece < sizeof(text); piece++) {
		cleanup_buf struct buf out = { 0 };
		assert_int_equal(decode(text, piece, &out), 1);
		assert_string_equal(out.data, "hello, chunked world");
	}
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		cleanup_buf struct buf out = { 0 };
		if (decode(bad[i], 1, &out) != -1)
			fail_msg("taken: %s", bad[i]);
	}
	cleanup_buf struct buf endless = { 0 }, out = { 0 };
	assert_int_equal(buf_append_string(&endless, "5;"), 0);
	for (size_t i = 0; i < 70000; i++)
		assert_int_equal(buf_append_string(&endless, "x"), 0);
	assert_int_equal(decode(endless.data, 4096, &out), -1);
}

static void finds_words(void **state)
{
	(void)state;
	assert_true(http_list_has("keep-alive, Upgrade", strlen("keep-alive, Upgrade"), "upgrade"));
	assert_true(http_list_has(" , upgrade", strlen(" , upgrade"), "upgrade"));
	assert_false(http_list_has("upgrades", strlen("upgrades"), "upgrade"));
	assert_false(http_list_has("", strlen(""), "upgrade"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(takes_a_head),
		cmocka_unit_test(refuses_what_is_none),
		cmocka_unit_test(puts_chunks_together),
		cmocka_unit_test(finds_words),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
