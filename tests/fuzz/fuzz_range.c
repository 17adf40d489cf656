/*
 * Fuzz target: what huskd reads by hand out of a client's text. The first eight bytes are a file's size, the rest is a
 * Range header, which must never lead outside the file; then the same text as JSON, which the depth check must judge as
 * a parser would find it.
 */
#include <jansson.h>

/* The server is a program, not a library: its one function that is wanted comes along as source. */
#include "server/range.c"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_range(const char *header, uint64_t size)
{
	uint64_t offset = 0, length = 0;

	if (range_parse(header, size, &offset, &length) != RANGE_PART)
		return;
	if (length == 0 || offset >= size || length > size - offset)
		abort();
}

static size_t depth_of(const json_t *value)
{
	const char *key;
	json_t *inner;
	size_t deepest = 0, i;

	if (!json_is_object(value) && !json_is_array(value))
		return 0;
	json_object_foreach((json_t *)value, key, inner) deepest = MAX(deepest, depth_of(inner));
	json_array_foreach(value, i, inner) deepest = MAX(deepest, depth_of(inner));
	return deepest + 1;
}

static void check_depth(const char *text, size_t size)
{
	json_t *document = json_loadb(text, size, JSON_DECODE_ANY, NULL);
	size_t depth = document ? depth_of(document) : 0;

	if (document && (str_json_deeper(text, size, depth) || (depth && !str_json_deeper(text, size, depth - 1))))
		abort();
	json_decref(document);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint64_t file_size = 0;

	if (size < sizeof(file_size))
		return 0;
	memcpy(&file_size, data, sizeof(file_size));
	data += sizeof(file_size);
	size -= sizeof(file_size);
	cleanup_free char *text = malloc(size + 1);
	if (!text)
		return 0;
	memcpy(text, data, size);
	text[size] = '\0';
	check_range(text, file_size);
	check_depth(text, size);
	return 0;
}
