/*
 * What the requests that run something (exec.c, code.c) take alike: how long it may take, and whether its output is
 * wanted as events.
 */
#include "server/server.h"

#define SECONDS_MAX (365.0 * 86400)

bool request_wants_events(const struct request *request)
{
	const char *accept = request_header(request, "Accept");

	return accept && strstr(accept, "text/event-stream");
}

int64_t fields_timeout_ms(struct fields *fields)
{
	double seconds = fields_number(fields, "timeout_seconds", 0, 0, SECONDS_MAX);

	/* Not down to 0, which means none. */
	return (int64_t)(seconds * 1000 + 0.999999);
}
