/*
 * DNS from both sides: the input as a guest's question, answered and truncated; and as a resolver's answer to ours. What we
 * write must be readable by ourselves.
 */
#include "net/dns.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void as_question(const uint8_t *data, size_t size)
{
	static uint8_t out[DNS_MESSAGE_MAX];
	const uint32_t addresses[] = { 0x01020304, 0x05060708 };
	struct dns_query query;
	struct dns_answer answer;
	int rcode;

	if (dns_query_parse(data, size, &query, &rcode) < 0)
		return;
	size_t written = dns_build_answer(out, &query, rcode, addresses, rcode ? 0 : 2, 30, "not allowed");
	if (rcode == DNS_NOERROR && *query.name && query.type == DNS_A) {
		if (dns_answer_parse(out, written, query.id, query.name, query.type, &answer) < 0 || answer.count != 2)
			abort();
	}
	dns_readdress(out, written, &query);
	dns_truncate(out, written, &query);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct dns_answer answer;

	as_question(data, size);
	/* The id and the question of an input that begins as an answer to this would. */
	if (size > 2)
		dns_answer_parse(data, size, (uint16_t)(data[0] << 8 | data[1]), "a.io", DNS_A, &answer);
	return 0;
}
