/*
 * The hooks that concern all dialects at once (dialect.h). Called by the server's core. A dialect's own routes, errors and
 * tokens are found through the route that a request matched.
 */
#include "server/core.h"

#define SAMPLE_US 100000

int dialects_start(struct husk_error *err)
{
	for (size_t i = 0; dialects[i]; i++)
		if (dialects[i]->start && dialects[i]->start(err) < 0)
			return -1;
	return 0;
}

bool dialects_stop(void)
{
	bool quiet = true;

	for (size_t i = 0; dialects[i]; i++)
		if (dialects[i]->stop)
			quiet = dialects[i]->stop() && quiet;
	return quiet;
}

const struct dialect *dialects_speaking(const struct request *request)
{
	for (size_t i = 0; dialects[i]; i++)
		if (dialects[i]->speaks && dialects[i]->speaks(request))
			return dialects[i];
	return NULL;
}

bool dialects_port_open(struct request *request, const char *sandbox, struct husk_error *err)
{
	for (size_t i = 0; dialects[i]; i++)
		if (dialects[i]->port_open && dialects[i]->port_open(request, sandbox, err))
			return true;
	return false;
}

const struct dialect *dialects_answering(const struct request *request, uint16_t port)
{
	for (size_t i = 0; dialects[i]; i++)
		if (dialects[i]->answers && dialects[i]->answers(request, port))
			return dialects[i];
	return NULL;
}

bool dialects_private(const char *header)
{
	for (size_t i = 0; dialects[i]; i++)
		for (const char *const *name = dialects[i]->private_headers; name && *name; name++)
			if (strcasecmp(header, *name) == 0)
				return true;
	return false;
}

int dialect_unsupported(struct request *request, const char *what, struct husk_error *err)
{
	request->fault = (struct fault){ 501, "unimplemented" };
	return husk_fail(err, HUSK_UNAVAILABLE, "%s is not something Husk has (docs/compat.md lists what it has)",
			 what);
}

int dialect_usage(struct husk *husk, const char *sandbox, struct husk_stats *out, double *cpu_percent,
		  struct husk_error *err)
{
	int64_t started = time_monotonic_us();
	struct husk_stats before;

	if (husk_stats(husk, sandbox, &before, err) < 0)
		return -1;
	usleep(SAMPLE_US);
	if (husk_stats(husk, sandbox, out, err) < 0)
		return -1;
	*cpu_percent = 100.0 * (double)(out->cpu_us - MIN(before.cpu_us, out->cpu_us)) /
		       (double)(time_monotonic_us() - started);
	return 0;
}
