/*
 * Forms with files, however the bytes are cut into pieces: the parts come out as they went in, and what is no form is told.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* Unit tests are linked with libhusk, which has nothing of the server; this file of it needs the kit alone. */
#include "server/multipart.c"

struct text {
	const char *bytes;
	size_t size, piece;
};

static ssize_t next_piece(void *data, void *bytes, size_t size)
{
	struct text *text = data;
	size_t count = MIN(MIN(text->size, text->piece), size);

	memcpy(bytes, text->bytes, count);
	text->bytes += count;
	text->size -= count;
	return (ssize_t)count;
}

static const char form[] =
	"preamble\r\n--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"/tmp/a %22b%22.txt\"\r\n"
	"Content-Type: text/plain\r\n\r\none\r\n--Bnot\r\n-two\r\n--B--\r\n";

static void expect_part(struct multipart *multipart, const char *name, const char *filename, const char *body)
{
	cleanup_free char *found = NULL, *file = NULL;
	cleanup_buf struct buf text = { 0 };
	char piece[5];
	ssize_t count;

	assert_int_equal(multipart_next(multipart, &found, &file, NULL), 1);
	assert_string_equal(found, name);
	if (filename)
		assert_string_equal(file, filename);
	else
		assert_null(file);
	while ((count = multipart_read(multipart, piece, sizeof(piece))) > 0)
		assert_int_equal(buf_append(&text, piece, (size_t)count), 0);
	assert_int_equal(count, 0);
	assert_string_equal(text.data ? text.data : "", body);
}

static void a_boundary_with_something_behind_it_is_told(void **state)
{
	(void)state;
	for (size_t piece = 1; piece <= sizeof(form); piece++) {
		struct text text = { form, sizeof(form) - 1, piece };
		cleanup(multipart_close) struct multipart multipart = { 0 };
		cleanup_free char *name = NULL, *file = NULL;
		assert_int_equal(multipart_open(&multipart, "multipart/form-data; boundary=B", next_piece, &text, NULL),
				 0);
		/* "--Bnot" is a delimiter with something behind it: what is no line of its own is no form. */
		struct husk_error err = { 0 };
		assert_int_equal(multipart_next(&multipart, &name, &file, &err), 1);
		assert_string_equal(file, "/tmp/a \"b\".txt");
		cleanup_free char *second = NULL, *other = NULL;
		assert_int_equal(multipart_next(&multipart, &second, &other, &err), -1);
		assert_int_equal(err.code, HUSK_INVALID);
	}
}

static void a_whole_form(void **state)
{
	static const char good[] =
		"--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"x\"\r\n\r\none\r\n--\r\n-two\r\n"
		"--B\r\ncontent-disposition: form-data; name=file; filename=\"empty\"\r\n\r\n\r\n--B\r\n"
		"Content-Disposition: form-data; name=\"note\"\r\n\r\n\r\n\r\n--B--\r\ntrailer";

	(void)state;
	for (size_t piece = 1; piece <= sizeof(good); piece++) {
		struct text text = { good, sizeof(good) - 1, piece };
		cleanup(multipart_close) struct multipart multipart = { 0 };
		cleanup_free char *name = NULL, *file = NULL;
		assert_int_equal(
			multipart_open(&multipart, "Multipart/Form-Data; x=y; boundary=\"B\"", next_piece, &text, NULL),
			0);
		expect_part(&multipart, "file", "x", "one\r\n--\r\n-two");
		expect_part(&multipart, "file", "empty", "");
		expect_part(&multipart, "note", NULL, "\r\n");
		assert_int_equal(multipart_next(&multipart, &name, &file, NULL), 0);
	}
}

static void what_breaks_off_is_told(void **state)
{
	static const char *const bad[] = {
		"", "--", "--B", "--B\r\nContent-", "--B\r\n\r\nbytes without end", "no boundary at all"
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		struct text text = { bad[i], strlen(bad[i]), 3 };
		cleanup(multipart_close) struct multipart multipart = { 0 };
		int next;
		assert_int_equal(multipart_open(&multipart, "multipart/form-data; boundary=B", next_piece, &text, NULL),
				 0);
		do {
			cleanup_free char *name = NULL, *file = NULL;
			next = multipart_next(&multipart, &name, &file, NULL);
		} while (next > 0);
		assert_int_equal(next, -1);
	}
}

static void what_is_no_form_is_refused(void **state)
{
	static const char *const types[] = { "text/plain", "multipart/form-data",
					     "multipart/form-data; boundary=", "multipart/mixed; boundary=B" };
	struct text text = { "", 0, 1 };

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(types); i++) {
		cleanup(multipart_close) struct multipart multipart = { 0 };
		assert_int_equal(multipart_open(&multipart, types[i], next_piece, &text, NULL), -1);
	}
	struct multipart none = { 0 };
	assert_int_equal(multipart_open(&none, NULL, next_piece, &text, NULL), -1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_boundary_with_something_behind_it_is_told),
		cmocka_unit_test(a_whole_form),
		cmocka_unit_test(what_breaks_off_is_told),
		cmocka_unit_test(what_is_no_form_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
