/*
 * The first bytes of a TLS connection from a hostile guest. A name that is read must be one that the policy can match, and
 * what is read from all of the bytes must not change with how they were cut off before.
 */
#include "net/hello.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct hello hello, part;
	char name[POLICY_NAME_MAX + 1];
	enum hello_result result = hello_parse(data, size, &hello);

	if (result == HELLO_OK && *hello.name &&
	    (policy_name_normalise(hello.name, strlen(hello.name), name) < 0 || strcmp(name, hello.name) != 0))
		abort();
	/* Once whole it stays what it was, whatever follows; before that it may only be unfinished or refused. */
	if (size > 1 && hello_parse(data, size / 2, &part) == HELLO_OK &&
	    (result != HELLO_OK || strcmp(part.name, hello.name) != 0 || part.encrypted != hello.encrypted))
		abort();
	return 0;
}
