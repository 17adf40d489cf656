/*
 * The start of a call (the fields that every OPEN has), and the table of methods (methods.def): their names, and who
 * answers each.
 */
#include "base/log.h"
#include "wire/wire.h"

int wire_put_open(struct buf *message, uint16_t method, const struct buf *arguments)
{
	if (wire_put_int(message, TAG_METHOD, method) < 0 ||
	    (arguments && arguments->size && buf_append(message, arguments->data, arguments->size) < 0))
		return -1;
	/* If the arguments leave no room, the id is left out: it is only for the log. */
	(void)wire_put_string(message, TAG_REQUEST, log_request_id());
	return 0;
}

static const struct {
	int64_t number;
	enum wire_method_kind kind;
	const char *name;
} methods[] = {
#define METHOD(name, number, kind, text, answer) { number, METHOD_##kind, text },
#include "wire/methods.def"
};

enum wire_method_kind wire_method_kind(int64_t method)
{
	for (size_t i = 0; i < ARRAY_SIZE(methods); i++)
		if (methods[i].number == method)
			return methods[i].kind;
	return METHOD_UNKNOWN;
}

const char *wire_method_name(int64_t method)
{
	for (size_t i = 0; i < ARRAY_SIZE(methods); i++)
		if (methods[i].number == method)
			return methods[i].name;
	return "?";
}
