/*
 * Parses and builds DNS messages. Called by leash_dns.c and the fuzzer only. Answers to the guest are built from
 * addresses that were checked one by one. Only for other record types is a resolver's message passed on.
 */
#include "net/dns.h"

#include <endian.h>

#define HEADER_SIZE 12u
#define FLAG_ANSWER 0x8000u
#define FLAG_TRUNCATED 0x0200u
#define FLAG_RECURSE 0x0100u
#define FLAG_CAN_RECURSE 0x0080u
#define OPCODE_MASK 0x7800u
#define ALIASES_MAX 16
#define OPTION_ERROR 15 /* RFC 8914 */
#define ERROR_PROHIBITED 18
#define WHY_MAX 200u
#define CLASS_IN 1
#define TYPE_CNAME 5

static uint16_t get16(const uint8_t *at)
{
	return (uint16_t)(at[0] << 8 | at[1]);
}

static uint32_t get32(const uint8_t *at)
{
	return (uint32_t)get16(at) << 16 | get16(at + 2);
}

static uint8_t *put16(uint8_t *at, uint16_t value)
{
	at[0] = (uint8_t)(value >> 8);
	at[1] = (uint8_t)value;
	return at + 2;
}

static uint8_t *put32(uint8_t *at, uint32_t value)
{
	return put16(put16(at, (uint16_t)(value >> 16)), (uint16_t)value);
}

/* ---- names in messages ---- */

/* Reads the name at *offset, follows pointers (only backwards), and moves *offset past it. `name` is the name with
 * dots; "" if a label has characters that host names do not have. -1: malformed. */
static int read_name(const uint8_t *data, size_t size, size_t *offset, bool pointers, char *name)
{
	char text[256];
	size_t at = *offset, length = 0, lowest = at;
	bool jumped = false, odd = false;

	for (;;) {
		if (at >= size)
			return -1;
		uint8_t label = data[at];
		if (label == 0)
			break;
		if ((label & 0xc0) == 0xc0) {
			if (!pointers || at + 2 > size)
				return -1;
			size_t target = get16(data + at) & 0x3fffu;
			if (!jumped)
				*offset = at + 2;
			if (target >= lowest) /* each jump goes further back, so the loop ends */
				return -1;
			jumped = true;
			at = lowest = target;
			continue;
		}
		if (label & 0xc0 || at + 1 + label > size || length + label + 1 >= sizeof(text))
			return -1;
		for (size_t i = 0; i < label; i++)
			odd = odd || data[at + 1 + i] == '.' || data[at + 1 + i] == 0;
		memcpy(text + length, data + at + 1, label);
		length += label;
		text[length++] = '.';
		at += 1u + label;
	}
	if (!jumped)
		*offset = at + 1;
	if (odd || policy_name_normalise(text, length, name) < 0)
		name[0] = '\0';
	return 0;
}

static uint8_t *put_name(uint8_t *at, const char *name)
{
	while (*name) {
		size_t length = strcspn(name, ".");

		*at++ = (uint8_t)length;
		memcpy(at, name, length);
		at += length;
		name += length + (name[length] == '.');
	}
	*at++ = 0;
	return at;
}

/* One record after the question. */
struct record {
	char name[POLICY_NAME_MAX + 1];
	uint16_t type, class;
	uint32_t ttl;
	size_t data, size; /* position of its data */
};

static int read_record(const uint8_t *data, size_t size, size_t *offset, struct record *out)
{
	if (read_name(data, size, offset, true, out->name) < 0 || *offset + 10 > size)
		return -1;
	out->type = get16(data + *offset);
	out->class = get16(data + *offset + 2);
	out->ttl = get32(data + *offset + 4);
	out->size = get16(data + *offset + 8);
	out->data = *offset + 10;
	if (out->data + out->size > size)
		return -1;
	*offset = out->data + out->size;
	return 0;
}

/* ---- queries ---- */

/* Reads the OPT record, if there is one: it has the maximum size of an answer. */
static int read_additional(const uint8_t *data, size_t size, size_t offset, unsigned count, struct dns_query *out)
{
	struct record record;

	for (unsigned i = 0; i < count; i++) {
		if (read_record(data, size, &offset, &record) < 0)
			return -1;
		if (record.type != DNS_OPT)
			continue;
		if (out->edns)
			return -1;
		out->edns = true;
		out->udp_max = (uint16_t)MAX(DNS_UDP_PLAIN, MIN(record.class, DNS_UDP_MAX));
	}
	return offset == size ? 0 : -1;
}

int dns_query_parse(const void *bytes, size_t size, struct dns_query *out, int *rcode)
{
	const uint8_t *data = bytes;
	size_t offset = HEADER_SIZE;

	if (size < HEADER_SIZE || get16(data + 2) & FLAG_ANSWER)
		return -1;
	*out = (struct dns_query){ .id = get16(data), .flags = get16(data + 2), .udp_max = DNS_UDP_PLAIN };
	*rcode = DNS_FORMERR;
	if (out->flags & OPCODE_MASK) {
		*rcode = DNS_NOTIMP;
		return 0;
	}
	if (get16(data + 4) != 1 || get16(data + 6) != 0 || get16(data + 8) != 0 ||
	    read_name(data, size, &offset, false, out->name) < 0 || offset + 4 > size)
		return 0;
	out->type = get16(data + offset);
	out->class = get16(data + offset + 2);
	offset += 4;
	if (offset - HEADER_SIZE > sizeof(out->question))
		return 0;
	out->question_size = offset - HEADER_SIZE;
	memcpy(out->question, data + HEADER_SIZE, out->question_size);
	if (read_additional(data, size, offset, get16(data + 10), out) == 0)
		*rcode = out->class == CLASS_IN ? DNS_NOERROR : DNS_REFUSED;
	return 0;
}

static uint8_t *put_opt(uint8_t *at, uint16_t data_size)
{
	*at++ = 0; /* the root */
	at = put16(at, DNS_OPT);
	at = put16(at, 1232); /* fits into one packet everywhere */
	at = put32(at, 0);
	return put16(at, data_size);
}

size_t dns_build_query(uint8_t *out, uint16_t id, const char *name, uint16_t type)
{
	uint8_t *at = out;

	if (!*name || strlen(name) > POLICY_NAME_MAX)
		return 0;
	at = put16(at, id);
	at = put16(at, FLAG_RECURSE);
	at = put16(at, 1);
	at = put32(at, 0);
	at = put16(at, 1);
	at = put_name(at, name);
	at = put16(at, type);
	at = put16(at, CLASS_IN);
	at = put_opt(at, 0);
	return (size_t)(at - out);
}

/* ---- answers from a resolver ---- */

/* One pass over the answers: follows an alias of `name`, or takes its addresses. 1: `name` has changed. */
static int follow(const uint8_t *data, size_t size, size_t offset, unsigned count, char *name, struct dns_answer *out)
{
	struct record record;

	for (unsigned i = 0; i < count; i++) {
		if (read_record(data, size, &offset, &record) < 0)
			return -1;
		if (record.class != CLASS_IN || strcmp(record.name, name) != 0)
			continue;
		if (record.type == TYPE_CNAME) {
			size_t target = record.data;

			if (read_name(data, size, &target, true, name) < 0 || target != record.data + record.size)
				return -1;
			out->ttl = MIN(out->ttl, record.ttl);
			return 1;
		}
		if (record.type == DNS_A && record.size == 4 && out->count < DNS_ADDRESSES_MAX) {
			out->addresses[out->count++] = get32(data + record.data);
			out->ttl = MIN(out->ttl, record.ttl);
		}
	}
	return 0;
}

int dns_answer_parse(const void *bytes, size_t size, uint16_t id, const char *name, uint16_t type,
		     struct dns_answer *out)
{
	const uint8_t *data = bytes;
	char asked[POLICY_NAME_MAX + 1];
	size_t offset = HEADER_SIZE;

	if (size < HEADER_SIZE || get16(data) != id || !(get16(data + 2) & FLAG_ANSWER) || get16(data + 4) != 1)
		return -1;
	if (read_name(data, size, &offset, false, asked) < 0 || offset + 4 > size || strcmp(asked, name) != 0 ||
	    get16(data + offset) != type || get16(data + offset + 2) != CLASS_IN)
		return -1;
	*out = (struct dns_answer){ .rcode = data[3] & 0xf,
				    .truncated = get16(data + 2) & FLAG_TRUNCATED,
				    .ttl = UINT32_MAX };
	if (type != DNS_A || out->truncated)
		return 0;
	for (int aliases = 0; aliases < ALIASES_MAX; aliases++) {
		int result = follow(data, size, offset + 4, get16(data + 6), asked, out);

		if (result <= 0)
			return result;
	}
	return -1; /* a chain that long is a loop */
}

/* ---- answers to the guest ---- */

size_t dns_build_answer(uint8_t *out, const struct dns_query *query, int rcode, const uint32_t *addresses, size_t count,
			uint32_t ttl, const char *why)
{
	size_t why_size = why && query->edns ? MIN(strlen(why), WHY_MAX) : 0;
	uint8_t *at = out;

	at = put16(at, query->id);
	at = put16(at, (uint16_t)(FLAG_ANSWER | FLAG_CAN_RECURSE | (query->flags & (OPCODE_MASK | FLAG_RECURSE)) |
				  (unsigned)rcode));
	at = put16(at, query->question_size ? 1 : 0);
	at = put16(at, (uint16_t)count);
	at = put16(at, 0);
	at = put16(at, query->edns);
	memcpy(at, query->question, query->question_size);
	at += query->question_size;
	for (size_t i = 0; i < count; i++) {
		at = put16(at, 0xc000 | HEADER_SIZE); /* the name of the question */
		at = put16(at, DNS_A);
		at = put16(at, CLASS_IN);
		at = put32(at, ttl);
		at = put16(at, 4);
		at = put32(at, addresses[i]);
	}
	if (query->edns)
		at = put_opt(at, why_size ? (uint16_t)(why_size + 6) : 0);
	if (why_size) {
		at = put16(at, OPTION_ERROR);
		at = put16(at, (uint16_t)(why_size + 2));
		at = put16(at, ERROR_PROHIBITED);
		at = mempcpy(at, why, why_size);
	}
	return (size_t)(at - out);
}

void dns_readdress(uint8_t *answer, size_t size, const struct dns_query *query)
{
	put16(answer, query->id);
	/* The same name without pointers, so it is as long as the guest's. */
	if (size >= HEADER_SIZE + query->question_size)
		memcpy(answer + HEADER_SIZE, query->question, query->question_size);
}

size_t dns_truncate(uint8_t *answer, size_t size, const struct dns_query *query)
{
	if (size <= query->udp_max)
		return size;
	answer[2] |= FLAG_TRUNCATED >> 8;
	put16(answer + 6, 0);
	put32(answer + 8, 0);
	return HEADER_SIZE + query->question_size;
}
