/*
 * The network options of a sandbox on the command line, and their conversion for libhusk.
 */
#ifndef HUSK_CLI_EGRESS_H
#define HUSK_CLI_EGRESS_H

#include "cli/options.h"

struct egress_arguments {
	const char *mode;
	struct string_list allow, secrets, hold;
	uint64_t bytes, rate;
	int64_t connections;
	const char *trust;
};
extern const struct option_spec egress_options[];

/* The values of the options; strings are borrowed from them. */
struct egress_given {
	struct husk_egress egress;
	bool any; /* something was said */
	size_t count;
	struct husk_secret *secrets;
	char **storage;
	char *trust;
};
int egress_read(const struct egress_arguments *arguments, struct egress_given *out, struct husk_error *err);
void egress_given_free(struct egress_given *given); /* also after a failure */

#endif
