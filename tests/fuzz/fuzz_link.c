/*
 * The supervisor's side of the agent link, fed with whatever a hostile guest may write: the whole input is one byte stream
 * from the "agent". A call is under way, so that frames for an open channel get past the first check.
 */
#include <fcntl.h>

#include "link/link.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void ignore(void *data, const struct wire_header *header, const char *payload)
{
	/* Touch what a handler may touch, so that a bad length is seen by the sanitizer. */
	size_t *sum = data;

	for (uint32_t i = 0; i < header->size; i++)
		*sum += (unsigned char)payload[i];
	if (header->type == WIRE_END)
		wire_end_status(payload, header->size, NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	int to_agent[2], from_agent[2];
	struct link *link = NULL;
	uint32_t channel = 0;
	size_t sum = 0;

	if (size > 60000 || pipe2(to_agent, O_CLOEXEC) < 0 || pipe2(from_agent, O_CLOEXEC) < 0)
		return 0;
	if (link_start(to_agent[1], from_agent[0], true, &link, NULL) == 0) {
		link_open(link, "", 0, ignore, &sum, &channel, NULL);
		write_full(from_agent[1], data, size); /* fits in the pipe */
		close(from_agent[1]);
		for (int i = 0; i < 2000 && !link_is_down(link); i++)
			usleep(50);
		link_free(link);
	} else {
		close(from_agent[1]);
	}
	close(from_agent[0]);
	close(to_agent[0]);
	close(to_agent[1]);
	return 0;
}
