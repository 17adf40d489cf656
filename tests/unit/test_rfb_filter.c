/*
 * What a viewer of a desktop may send: input passes only with control, everything else passes as it came, and what is not RFB
 * ends the connection, however the bytes are cut into pieces.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* Unit tests are linked with libhusk, which has nothing of the server; this file of it needs the kit alone. */
#include "server/rfb_filter.c"

#define HELLO "RFB 003.008\n\x01\x00"
#define REQUEST "\x03\x01\x00\x00\x00\x00\x05\x00\x03\x20"
#define KEY_A_DOWN "\x04\x01\x00\x00\x00\x00\x00\x61"
#define KEY_A_UP "\x04\x00\x00\x00\x00\x00\x00\x61"
#define CLICK "\x05\x01\x00\x10\x00\x20"
#define BYTES(text) text, sizeof(text) - 1

static struct husk_error err;

static void feed(struct rfb_filter *filter, const char *bytes, size_t size, bool control, size_t piece, struct buf *out)
{
	for (size_t at = 0; at < size; at += piece)
		if (rfb_filter_feed(filter, bytes + at, MIN(piece, size - at), control, out, &err) < 0)
			fail_msg("refused: %s", err.message);
}

/* The bytes after a handshake, in pieces of one to ten bytes, with the same result each time. */
static void expect(const char *bytes, size_t size, bool control, const char *expected, size_t expected_size)
{
	for (size_t piece = 1; piece <= 10; piece++) {
		struct rfb_filter filter = { 0 };
		cleanup_buf struct buf out = { 0 };

		feed(&filter, BYTES(HELLO), control, piece, &out);
		assert_int_equal(out.size, 14);
		assert_memory_equal(out.data, "RFB 003.008\n\x01\x01", 14); /* shared, whatever the viewer wants */
		buf_consume(&out, out.size);
		feed(&filter, bytes, size, control, piece, &out);
		assert_int_equal(out.size, expected_size);
		if (expected_size)
			assert_memory_equal(out.data, expected, expected_size);
	}
}

static void refuse(const char *bytes, size_t size, const char *why)
{
	struct rfb_filter filter = { 0 };
	cleanup_buf struct buf out = { 0 };

	if (rfb_filter_feed(&filter, bytes, size, true, &out, &err) == 0)
		fail_msg("accepted; expected: %s", why);
	assert_non_null(strstr(err.message, why));
}

static void input_needs_control(void **state)
{
	static const char all[] = REQUEST KEY_A_DOWN CLICK "\x06\x00\x00\x00\x00\x00\x00\x03"
							   "abc"
							   "\xfa\x00\x01\x02" REQUEST;
	static const char size[] = "\xfb\x00\x05\x00\x03\x20\x01\x00"
				   "0123456789abcdef";
	static const char qemu[] = "\xff\x00\x00\x01\x00\x00\x00\x61\x00\x00\x00\x1e";
	static const char clipboard[] = "\x06\x00\x00\x00\xff\xff\xff\xfc"
					"wxyz";

	(void)state;
	expect(BYTES(all), true, BYTES(all));
	expect(BYTES(all), false, BYTES(REQUEST REQUEST));
	expect(BYTES(size), true, BYTES(size));
	expect(BYTES(size), false, BYTES(""));
	expect(BYTES(qemu), true, BYTES(qemu));
	expect(BYTES(qemu), false, BYTES(""));
	expect(BYTES(clipboard), true, BYTES(clipboard));
	expect(BYTES(clipboard), false, BYTES(""));
}

static void the_rest_always_passes(void **state)
{
	static const char all[] =
		"\x00\x00\x00\x00"
		"\x20\x18\x00\x01\x00\xff\x00\xff\x00\xff\x00\x08\x10\x00\x00\x00"
		"\x02\x00\x00\x02\x00\x00\x00\x07\xff\xff\xff\x21" REQUEST "\x96\x01\x00\x00\x00\x00\x05\x00\x03\x20"
		"\xf8\x00\x00\x00\x80\x00\x00\x00\x02hi";

	(void)state;
	expect(BYTES(all), false, BYTES(all));
	expect(BYTES(all), true, BYTES(all));
}

static void other_protocols_end(void **state)
{
	(void)state;
	refuse(BYTES("GET / HTTP/1.1\r\n"), "RFB 3.7 or 3.8");
	refuse(BYTES("RFB 003.003\n"), "RFB 3.7 or 3.8");
	refuse(BYTES("RFB 003.008\n\x02"), "security type 2");
	refuse(BYTES(HELLO "\x07"), "unknown type 7");
	refuse(BYTES(HELLO "\xfc"), "unknown type 252");
	refuse(BYTES(HELLO "\x02\x00\xff\xff"), "the limit is 1024");
	refuse(BYTES(HELLO "\x06\x00\x00\x00\x7f\xff\xff\xff"), "the limit is 1048576");
	refuse(BYTES(HELLO "\x06\x00\x00\x00\x80\x00\x00\x00"), "the limit is 1048576");
	refuse(BYTES(HELLO "\xf8\x00\x00\x00\x00\x00\x00\x00\x41"), "the limit is 64");
	refuse(BYTES(HELLO "\xff\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"), "QEMU's VNC message 1");
}

static void lost_control_releases(void **state)
{
	static const char released[] = KEY_A_UP "\xff\x00\x00\x00\x00\x00\x00\x62\x00\x00\x00\x30"
						"\x05\x00\x00\x10\x00\x20";
	struct rfb_filter filter = { 0 };
	cleanup_buf struct buf out = { 0 };

	(void)state;
	feed(&filter,
	     BYTES(HELLO KEY_A_DOWN "\xff\x00\x00\x01\x00\x00\x00\x62\x00\x00\x00\x30"
				    "\x04\x01\x00\x00\x00\x00\x00\x63\x04\x00\x00\x00\x00\x00\x00\x63" CLICK),
	     true, 7, &out);
	assert_false(rfb_filter_inside(&filter));
	buf_consume(&out, out.size);
	assert_int_equal(rfb_filter_release(&filter, &out, &err), 0);
	assert_int_equal(out.size, sizeof(released) - 1);
	assert_memory_equal(out.data, released, sizeof(released) - 1);
	buf_consume(&out, out.size);
	assert_int_equal(rfb_filter_release(&filter, &out, &err), 0);
	assert_int_equal(out.size, 0);
}

/* Nothing may come between the halves of a message, and the second half passes although control is lost. */
static void a_message_is_passed_whole(void **state)
{
	struct rfb_filter filter = { 0 };
	cleanup_buf struct buf out = { 0 };

	(void)state;
	feed(&filter,
	     BYTES(HELLO "\x06\x00\x00\x00\x00\x00\x00\x03"
			 "a"),
	     true, 100, &out);
	assert_true(rfb_filter_inside(&filter));
	buf_consume(&out, out.size);
	feed(&filter, BYTES("bc" KEY_A_DOWN), false, 100, &out);
	assert_false(rfb_filter_inside(&filter));
	assert_int_equal(out.size, 2);
	assert_memory_equal(out.data, "bc", 2);
}

static void many_keys_are_bounded(void **state)
{
	struct rfb_filter filter = { 0 };
	cleanup_buf struct buf out = { 0 };
	char key[] = KEY_A_DOWN;

	(void)state;
	feed(&filter, BYTES(HELLO), true, 100, &out);
	for (int i = 0; i < 200; i++) {
		key[7] = (char)i;
		feed(&filter, key, 8, true, 100, &out);
	}
	buf_consume(&out, out.size);
	assert_int_equal(rfb_filter_release(&filter, &out, &err), 0);
	assert_int_equal(out.size, RFB_KEYS_MAX * 8);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(input_needs_control),       cmocka_unit_test(the_rest_always_passes),
		cmocka_unit_test(other_protocols_end),       cmocka_unit_test(lost_control_releases),
		cmocka_unit_test(a_message_is_passed_whole), cmocka_unit_test(many_keys_are_bounded),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
