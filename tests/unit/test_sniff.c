/*
 * The parsers of the leash that read what a guest sends: ClientHello, HTTP heads and bodies, DNS. Each also byte by byte,
 * since that is how a hostile guest may send it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <openssl/ssl.h>

#include "net/dns.h"
#include "net/hello.h"
#include "net/leash_http.h"

/* ---- TLS ---- */

/* What a real client says first, for this name. */
static size_t real_hello(const char *name, uint8_t *out, size_t size)
{
	SSL_CTX *context = SSL_CTX_new(TLS_client_method());
	SSL *ssl = SSL_new(context);
	BIO *in = BIO_new(BIO_s_mem()), *written = BIO_new(BIO_s_mem());

	SSL_set_bio(ssl, in, written);
	if (name)
		SSL_set_tlsext_host_name(ssl, name);
	SSL_connect(ssl);
	int got = BIO_read(written, out, (int)size);
	SSL_free(ssl);
	SSL_CTX_free(context);
	assert_true(got > 0);
	return (size_t)got;
}

static void reads_real_hellos(void **state)
{
	uint8_t data[8192];
	struct hello hello;
	size_t size = real_hello("Api.Example.com", data, sizeof(data));

	(void)state;
	for (size_t part = 1; part < size; part++)
		assert_int_equal(hello_parse(data, part, &hello), HELLO_MORE);
	assert_int_equal(hello_parse(data, size, &hello), HELLO_OK);
	assert_string_equal(hello.name, "api.example.com");
	assert_false(hello.encrypted);
	size = real_hello(NULL, data, sizeof(data));
	assert_int_equal(hello_parse(data, size, &hello), HELLO_OK);
	assert_string_equal(hello.name, "");
}

static void joins_records(void **state)
{
	uint8_t data[8192], cut[16384];
	struct hello hello;
	size_t size = real_hello("a.io", data, sizeof(data)), out = 0;

	(void)state;
	for (size_t i = 5; i < size; i++) {
		const uint8_t record[] = { 22, 3, 1, 0, 1, data[i] };

		if (out + sizeof(record) > sizeof(cut))
			break;
		memcpy(cut + out, record, sizeof(record));
		out += sizeof(record);
	}
	assert_int_equal(hello_parse(cut, out, &hello), HELLO_OK);
	assert_string_equal(hello.name, "a.io");
}

static void refuses_odd_hellos(void **state)
{
	static const uint8_t not_hello[] = { 22, 3, 1, 0, 4, 2, 0, 0, 0 }, empty[] = { 22, 3, 1, 0, 0 },
			     old[] = { 22, 2, 0, 0, 4 }, other[] = { 23, 3, 1, 0, 1, 1 };
	uint8_t data[8192];
	struct hello hello;
	size_t size = real_hello("a.io", data, sizeof(data));

	(void)state;
	assert_int_equal(hello_parse(not_hello, sizeof(not_hello), &hello), HELLO_BAD);
	assert_int_equal(hello_parse(empty, sizeof(empty), &hello), HELLO_BAD);
	assert_int_equal(hello_parse(old, sizeof(old), &hello), HELLO_BAD);
	assert_int_equal(hello_parse(other, sizeof(other), &hello), HELLO_BAD);
	/* A name that is none. */
	char *name = memmem(data, size, "a.io", 4);
	assert_non_null(name);
	memcpy(name, "a\0io", 4);
	assert_int_equal(hello_parse(data, size, &hello), HELLO_BAD);
	memcpy(name, "a.i.", 4);
	assert_int_equal(hello_parse(data, size, &hello), HELLO_BAD);
}

/* ---- HTTP ---- */

static ssize_t parse_request(const char *text, struct http_request *out, const char **why)
{
	*why = NULL;
	return http_request_parse(text, strlen(text), out, why);
}

static void reads_requests(void **state)
{
	static const char text[] =
		"POST /x?y HTTP/1.1\r\nHost: A.io:8080\r\nX-One:  two \r\nContent-Length: 5\r\n\r\nhello";
	struct http_request request;
	const char *why;

	(void)state;
	for (size_t size = 0; size < sizeof(text) - 6; size++)
		assert_int_equal(http_request_parse(text, size, &request, &why), 0);
	assert_int_equal(parse_request(text, &request, &why), (ssize_t)sizeof(text) - 6);
	assert_string_equal(request.host, "a.io");
	assert_int_equal(request.port, 8080);
	assert_int_equal(request.framing, BODY_LENGTH);
	assert_int_equal(request.length, 5);
	assert_int_equal(request.field_count, 3);
	assert_true(http_is(request.fields[1].value, "TWO"));
	assert_true(parse_request("GET http://a.io/ HTTP/1.0\r\nHost: a.io\r\n\r\n", &request, &why) > 0);
	assert_true(parse_request("OPTIONS * HTTP/1.1\r\nhost: a.io\r\n\r\n", &request, &why) > 0);
	assert_true(parse_request("GET / HTTP/1.1\r\nHost: a.io\r\nUpgrade: websocket\r\n\r\n", &request, &why) > 0);
	assert_true(request.upgrade);
	assert_false(request.close);
	assert_true(parse_request("GET / HTTP/1.1\r\nHost: a.io\r\nConnection: x, Close\r\n\r\n", &request, &why) > 0);
	assert_true(request.close);
	assert_true(parse_request("HEAD / HTTP/1.0\r\nHost: A.IO.:80\r\n\r\n", &request, &why) > 0);
	assert_true(request.close && http_is(request.method, "head"));
	assert_string_equal(request.host, "a.io");
}

static void refuses_ambiguous_requests(void **state)
{
	static const char *const cases[] = {
		"GET / HTTP/1.1\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a.io\r\nHost: b.io\r\n\r\n",
		"GET / HTTP/1.1\nHost: a.io\n\n",
		"GET / HTTP/1.1\r\nHost: a.io\n\r\n",
		"GET / HTTP/1.1\r\nHost: a.io\r\n X: b\r\n\r\n",
		"GET / HTTP/1.1\r\nHost : a.io\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a.io\rX: b\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a_b..io\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a.io@b.io\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a.io, b.io\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a.io:\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: \r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a.io\r\n: x\r\n\r\n",
		"GET http://b.io/ HTTP/1.1\r\nHost: a.io\r\n\r\n",
		"GET http://a.io@b.io/ HTTP/1.1\r\nHost: a.io\r\n\r\n",
		"GET https://a.io/ HTTP/1.1\r\nHost: a.io\r\n\r\n",
		"GET a.io HTTP/1.1\r\nHost: a.io\r\n\r\n",
		"GET / x HTTP/1.1\r\nHost: a.io\r\n\r\n",
		"GET  HTTP/1.1\r\nHost: a.io\r\n\r\n",
		"GET / HTTP/2.0\r\nHost: a.io\r\n\r\n",
		"GET / HTTP/1.15\r\nHost: a.io\r\n\r\n",
		"GET /\r\nHost: a.io\r\n\r\n",
		"CONNECT a.io:443 HTTP/1.1\r\nHost: a.io\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a.io\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a.io\r\nContent-Length: 1, 1\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a.io\r\nContent-Length: +1\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a.io\r\nContent-Length: 0x1\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a.io\r\nContent-Length: 99999999999999999999\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a.io\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a.io\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a.io\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a.io\r\nTransfer-Encoding: xchunked\r\n\r\n",
		"POST / HTTP/1.0\r\nHost: a.io\r\nTransfer-Encoding: chunked\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a.io\r\nContent_Length: 1\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a.io\r\nTransfer_Encoding: chunked\r\n\r\n",
		"G(T / HTTP/1.1\r\nHost: a.io\r\n\r\n",
		" / HTTP/1.1\r\nHost: a.io\r\n\r\n",
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
	};
	struct http_request request;
	const char *why;

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		if (parse_request(cases[i], &request, &why) >= 0)
			fail_msg("accepted: %s", cases[i]);
		assert_non_null(why);
	}
}

/* Feeds the body in pieces of `piece`; how many bytes were taken, -1: malformed. */
static ssize_t feed(const char *text, size_t piece, bool *done)
{
	struct http_body body;
	struct http_request request = { .framing = BODY_CHUNKED };
	size_t taken = 0, size = strlen(text);

	http_body_start(&body, &request);
	while (taken < size && !http_body_done(&body)) {
		ssize_t got = http_body_feed(&body, text + taken, MIN(piece, size - taken));

		if (got < 0)
			return -1;
		taken += (size_t)got;
	}
	*done = http_body_done(&body);
	return (ssize_t)taken;
}

static void follows_bodies(void **state)
{
	static const char good[] = "5\r\nhello\r\n1a\r\nabcdefghijklmnopqrstuvwxyz\r\n0\r\n\r\n";
	static const char *const bad[] = { "x\r\n",
					   "5 \r\nhello\r\n",
					   "5\nhello\n",
					   "5\r\nhelloX",
					   "\r\n",
					   "-1\r\n",
					   "1\r\naa\r\n",
					   "fffffffffffffffff\r\n",
					   "5\r\nhello\r\r\n",
					   "5;x=y\r\nhello\r\n",
					   "0\r\nTrailer: x\r\n\r\n",
					   "0\r\nGET / HTTP/1.1\r\n" };
	cleanup_free char *followed = str_format("%sGET / HTTP/1.1\r\n", good);
	bool done;

	(void)state;
	for (size_t piece = 1; piece < sizeof(good); piece++) {
		assert_int_equal(feed(followed, piece, &done), (ssize_t)sizeof(good) - 1);
		assert_true(done);
	}
	assert_int_equal(feed("5\r\nhel", 100, &done), 6);
	assert_false(done);
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
		assert_int_equal(feed(bad[i], 1, &done), -1);
}

/* Is this body of a request refused, sent in pieces of `piece`? */
static bool refused(const char *text, size_t piece)
{
	struct http_request request = { .framing = BODY_LENGTH, .length = strlen(text) };
	struct http_body body;

	http_body_start(&body, &request);
	for (size_t at = 0; at < request.length; at += piece)
		if (http_body_feed(&body, text + at, MIN(piece, request.length - at)) < 0)
			return true;
	assert_true(http_body_done(&body));
	return false;
}

static void finds_requests_in_bodies(void **state)
{
	static const char *const requests[] = { "GET / HTTP/1.1\r\nHost: b.io\r\n\r\n",
						"\r\n\r\n  GET / HTTP/1.1\r\n",
						"POST /x http/1.0\n\n",
						"get\t/\tHTTP/1.1\r\n",
						"PRI * HTTP/2.0\r\n\r\n",
						"GET /a b c HTTP/1.1 \r\n",
						"X-Y_Z http://b.io/ HTTP/1.1\r",
						"GET http://b.io/ HTTP/1.1",
						"GET http://b.io/\r\n",
						"GET /\n",
						"GET /" };
	static const char *const others[] = { "{\"a\": \"GET / HTTP/1.1\"}",
					      "a=b&c=d",
					      "--boundary\r\nGET / HTTP/1.1\r\n",
					      "hello world\nGET / HTTP/1.1\n",
					      "about HTTP/1.1\n",
					      "<?xml x HTTP/1.1",
					      "GET lost\n",
					      "1.2.3.4 - - \"GET / HTTP/1.1\" 200\n",
					      "\xff\xfe GET / HTTP/1.1\n",
					      " \r\n" };

	(void)state;
	for (size_t piece = 1; piece < 40; piece += 3) {
		for (size_t i = 0; i < ARRAY_SIZE(requests); i++)
			if (!refused(requests[i], piece))
				fail_msg("accepted: %s", requests[i]);
		for (size_t i = 0; i < ARRAY_SIZE(others); i++)
			if (refused(others[i], piece))
				fail_msg("refused: %s", others[i]);
	}
	bool done;
	assert_int_equal(feed("2\r\nGE\r\n3\r\nT /\r\nb\r\n HTTP/1.1\r\n\r\n", 1, &done), -1);
}

/* How many bytes of this body are known to be harmless, when it was sent byte by byte so far? */
static size_t decided(const char *text, uint64_t length)
{
	struct http_request request = { .framing = BODY_LENGTH, .length = length };
	struct http_body body;
	size_t size = 0;

	http_body_start(&body, &request);
	for (size_t at = 0; text[at]; at++) {
		assert_int_equal(http_body_feed(&body, text + at, 1), 1);
		if (!http_body_undecided(&body))
			size = at + 1;
	}
	return size;
}

static void keeps_back_what_may_be_a_request(void **state)
{
	cleanup_free char *endless = calloc(1, HTTP_HEAD_MAX + 16);

	(void)state;
	assert_int_equal(decided("GET / HTTP/1.1", 100), 0);
	assert_int_equal(decided("\r\n  GET / HTTP/1.1", 100), 4);
	assert_int_equal(decided("hello", 100), 0);
	assert_int_equal(decided("hello", 5), 5);
	assert_int_equal(decided("hello\n", 100), 6);
	assert_int_equal(decided("{", 100), 1);
	assert_int_equal(decided("GET lost\nGET / HTTP/1.1", 100), 23);
	assert_non_null(endless);
	memset(endless, 'x', HTTP_HEAD_MAX + 8);
	assert_int_equal(decided(endless, 1 << 20), HTTP_HEAD_MAX + 8);
}

static ssize_t parse_response(const char *text, bool bodiless, struct http_response *out)
{
	return http_response_parse(text, strlen(text), bodiless, out);
}

static void reads_http_answers(void **state)
{
	static const struct {
		const char *text;
		enum http_framing framing;
		bool close;
	} cases[] = {
		{ "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n", BODY_LENGTH, false },
		{ "HTTP/1.1 200 OK\nContent-Length: 7\n\n", BODY_LENGTH, false },
		{ "HTTP/1.1 200 OK\r\nContent-Length: 7\r\nConnection: x, close\r\n\r\n", BODY_LENGTH, true },
		{ "HTTP/1.0 200 OK\r\nContent-Length: 7\r\n\r\n", BODY_LENGTH, true },
		{ "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", BODY_CHUNKED, false },
		{ "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", BODY_OPEN, true },
		{ "HTTP/1.1 200 OK\r\nContent-Length: 7\r\nContent-Length: 8\r\n\r\n", BODY_OPEN, true },
		{ "HTTP/1.1 200 OK\r\nContent-Length: 7\r\nTransfer-Encoding: chunked\r\n\r\n", BODY_OPEN, true },
		{ "HTTP/1.1 200 OK\r\n\r\n", BODY_OPEN, true },
		{ "HTTP/1.1 204 No\r\n\r\n", BODY_NONE, false },
		{ "HTTP/1.1 304 Same\r\nContent-Length: 7\r\n\r\n", BODY_NONE, false },
	};
	static const char chunked[] = "5;x=y\r\nhello\r\n0\r\nTrailer: x\r\n\r\n";
	struct http_response response;
	struct http_body body;

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		size_t size = strlen(cases[i].text);

		for (size_t part = 0; part < size; part++)
			assert_int_equal(http_response_parse(cases[i].text, part, false, &response), 0);
		assert_int_equal(parse_response(cases[i].text, false, &response), size);
		assert_int_equal(response.framing, cases[i].framing);
		assert_int_equal(response.close, cases[i].close);
	}
	assert_true(parse_response(cases[0].text, true, &response) > 0);
	assert_int_equal(response.framing, BODY_NONE);
	assert_int_equal(http_response_parse("HTTP/1.1 101 Yes\r\nA: b\r\n\r\nrest", 30, false, &response), 26);
	assert_int_equal(response.status, 101);
	assert_int_equal(parse_response("SSH-2.0-server\r\n\r\n", false, &response), -1);
	response = (struct http_response){ .framing = BODY_CHUNKED };
	http_body_start_answer(&body, &response);
	for (size_t i = 0; i < sizeof(chunked) - 1; i++)
		assert_int_equal(http_body_feed(&body, chunked + i, 1), 1);
	assert_true(http_body_done(&body));
}

static void knows_http_when_it_sees_it(void **state)
{
	(void)state;
	assert_int_equal(http_looks("GET /", 5), 1);
	assert_int_equal(http_looks("GE", 2), 0);
	assert_int_equal(http_looks("get /", 5), -1);
	assert_int_equal(http_looks("\x16\x03", 2), -1);
	assert_int_equal(http_looks(" GET", 4), -1);
	assert_int_equal(http_looks("SSH-2.0-x", 9), -1);
	assert_int_equal(http_looks("ABCDEFGHIJKLMNOPQRSTUVWXYZ /", 28), -1);
}

/* ---- DNS ---- */

static size_t make_query(uint8_t *out, const char *name, uint16_t type)
{
	return dns_build_query(out, 7, name, type);
}

static void reads_queries(void **state)
{
	uint8_t data[DNS_UDP_PLAIN];
	struct dns_query query;
	int rcode;
	size_t size = make_query(data, "www.a.io", DNS_A);

	(void)state;
	assert_int_equal(dns_query_parse(data, size, &query, &rcode), 0);
	assert_int_equal(rcode, DNS_NOERROR);
	assert_string_equal(query.name, "www.a.io");
	assert_int_equal(query.type, DNS_A);
	assert_int_equal(query.udp_max, 1232);
	assert_true(query.edns);
	for (size_t part = 12; part < size; part++) {
		assert_int_equal(dns_query_parse(data, part, &query, &rcode), 0);
		assert_int_equal(rcode, DNS_FORMERR);
	}
	assert_int_equal(dns_query_parse(data, 11, &query, &rcode), -1);
	data[2] |= 0x80; /* an answer is no question */
	assert_int_equal(dns_query_parse(data, size, &query, &rcode), -1);
	data[2] = 0x28; /* an update */
	assert_int_equal(dns_query_parse(data, size, &query, &rcode), 0);
	assert_int_equal(rcode, DNS_NOTIMP);
	data[2] = 1;
	data[13] = '.'; /* a dot inside a label is no host name */
	assert_int_equal(dns_query_parse(data, size, &query, &rcode), 0);
	assert_string_equal(query.name, "");
	data[12] = 0xc0; /* a pointer has no place there */
	assert_int_equal(dns_query_parse(data, size, &query, &rcode), 0);
	assert_int_equal(rcode, DNS_FORMERR);
}

/* Appends a record whose name is at `pointer`. */
static size_t put_record(uint8_t *at, unsigned pointer, unsigned type, uint32_t ttl, const void *data, size_t size)
{
	const uint8_t head[] = { (uint8_t)(0xc0 | pointer >> 8),
				 (uint8_t)pointer,
				 0,
				 (uint8_t)type,
				 0,
				 1,
				 (uint8_t)(ttl >> 24),
				 (uint8_t)(ttl >> 16),
				 (uint8_t)(ttl >> 8),
				 (uint8_t)ttl,
				 0,
				 (uint8_t)size };

	memcpy(at, head, sizeof(head));
	memcpy(at + sizeof(head), data, size);
	return sizeof(head) + size;
}

/* a.io is an alias of b.io, which has an address; c.io's address is none of its business. */
static size_t make_answer(uint8_t *data)
{
	size_t size = make_query(data, "a.io", DNS_A) - 11; /* without its OPT */

	data[2] = 0x81;
	data[3] = 0x80;
	data[7] = 3;
	data[11] = 0;
	size_t alias = size + 12;
	size += put_record(data + size, 12, 5, 300,
			   "\x01"
			   "b\x02io",
			   6);
	size += put_record(data + size, (unsigned)alias, DNS_A, 60, "\x01\x02\x03\x04", 4);
	size += put_record(data + size, 14, DNS_A, 9, "\x05\x06\x07\x08", 4); /* of "io" */
	return size;
}

static void reads_answers(void **state)
{
	uint8_t data[1024];
	struct dns_answer answer;
	size_t size = make_answer(data);

	(void)state;
	assert_int_equal(dns_answer_parse(data, size, 7, "a.io", DNS_A, &answer), 0);
	assert_int_equal(answer.count, 1);
	assert_int_equal(answer.addresses[0], 0x01020304);
	assert_int_equal(answer.ttl, 60);
	assert_int_equal(dns_answer_parse(data, size, 8, "a.io", DNS_A, &answer), -1);
	assert_int_equal(dns_answer_parse(data, size, 7, "b.io", DNS_A, &answer), -1);
	assert_int_equal(dns_answer_parse(data, size, 7, "a.io", DNS_AAAA, &answer), -1);
	for (size_t part = 0; part < size - 16; part++)
		assert_int_equal(dns_answer_parse(data, part, 7, "a.io", DNS_A, &answer), -1);
	/* An alias of itself. */
	memcpy(data + 22 + 12,
	       "\x01"
	       "a\x02io",
	       6);
	assert_int_equal(dns_answer_parse(data, size, 7, "a.io", DNS_A, &answer), -1);
	/* A pointer to itself. */
	data[22] = 0xc0;
	data[23] = 22;
	assert_int_equal(dns_answer_parse(data, size, 7, "a.io", DNS_A, &answer), -1);
}

static void writes_answers(void **state)
{
	static uint8_t out[DNS_MESSAGE_MAX];
	uint8_t data[DNS_UDP_PLAIN];
	const uint32_t addresses[] = { 0x01020304, 0x05060708 };
	struct dns_query query;
	struct dns_answer answer;
	int rcode;

	(void)state;
	dns_query_parse(data, make_query(data, "a.io", DNS_A), &query, &rcode);
	size_t size = dns_build_answer(out, &query, DNS_NOERROR, addresses, 2, 30, NULL);
	assert_int_equal(dns_answer_parse(out, size, 7, "a.io", DNS_A, &answer), 0);
	assert_int_equal(answer.count, 2);
	assert_int_equal(answer.addresses[1], 0x05060708);
	assert_int_equal(answer.ttl, 30);
	size = dns_build_answer(out, &query, DNS_REFUSED, NULL, 0, 0, "a.io is not allowed");
	assert_int_equal(dns_answer_parse(out, size, 7, "a.io", DNS_A, &answer), 0);
	assert_int_equal(answer.rcode, DNS_REFUSED);
	assert_non_null(memmem(out, size, "a.io is not allowed", 19));
	query.udp_max = 20;
	size = dns_truncate(out, size, &query);
	assert_int_equal(dns_answer_parse(out, size, 7, "a.io", DNS_A, &answer), 0);
	assert_true(answer.truncated);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reads_real_hellos),
		cmocka_unit_test(joins_records),
		cmocka_unit_test(refuses_odd_hellos),
		cmocka_unit_test(reads_requests),
		cmocka_unit_test(refuses_ambiguous_requests),
		cmocka_unit_test(follows_bodies),
		cmocka_unit_test(finds_requests_in_bodies),
		cmocka_unit_test(keeps_back_what_may_be_a_request),
		cmocka_unit_test(reads_http_answers),
		cmocka_unit_test(knows_http_when_it_sees_it),
		cmocka_unit_test(reads_queries),
		cmocka_unit_test(reads_answers),
		cmocka_unit_test(writes_answers),
	};

	return cmocka_run_group_tests_name("sniff", tests, NULL, NULL);
}
