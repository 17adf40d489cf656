/*
 * Answers of a hostile desktop helper. What becomes an error must have a kind, a message that is fit for a terminal, and a field that
 * fits; what becomes an answer must be a JSON object.
 */
#include "client/desktop.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct husk_error err = { 0 };
	cleanup_free char *text = NULL;
	cleanup_json json_t *object = str_json_deeper((const char *)data, size, 256)
					      ? NULL
					      : json_loadb((const char *)data, size, JSON_ALLOW_NUL, NULL);

	if (!json_is_object(object))
		return 0;
	if (desktop_answer(object, &text, &err) < 0) {
		size_t left = strlen(err.message);
		if (!err.code || !left)
			abort();
		for (const char *at = err.message; left;) {
			size_t bytes = str_printable(at, left);
			if (!bytes)
				abort();
			at += bytes;
			left -= bytes;
		}
		return 0;
	}
	cleanup_json json_t *again = json_loads(text, 0, NULL);
	if (!json_is_object(again))
		abort();
	return 0;
}
