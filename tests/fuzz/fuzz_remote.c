/*
 * What a server answers, as a fuzzer would: the first byte chooses the call, the rest is all that comes back. Each call must
 * end with a result that the free functions of husk.h can free, or with an error.
 */
#include <sys/mman.h>
#include <sys/socket.h>

#include "remote/remote_http.h"

static const uint8_t *answer;
static size_t answer_size;

/* In the place of the library's: a connection on which the answer is there already. */
int remote_connect(struct remote *remote, struct husk_error *err)
{
	int pair[2];

	(void)remote;
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
		return husk_fail_errno(err, "socketpair");
	(void)!send(pair[1], answer, answer_size, MSG_DONTWAIT | MSG_NOSIGNAL);
	shutdown(pair[1], SHUT_WR);
	answer_size = 0; /* of a second request in one call: nothing */
	/* The request goes to the end that is closed here: it is thrown away by the kernel, which is no failure of a send. */
	static int kept = -1;
	fd_close(&kept);
	kept = pair[1];
	return pair[0];
}

static int swallow(void *data, const void *bytes, size_t size)
{
	(void)data, (void)bytes, (void)size;
	return 0;
}

static void call_sandboxes(struct remote *remote, unsigned which)
{
	struct husk_sandbox *one = NULL, **list = NULL;
	struct husk_stats stats;
	int fd;

	switch (which) {
	case 0:
		if (remote_inspect(remote, "a", &one, NULL) == 0)
			husk_sandbox_free(one);
		break;
	case 1:
		if (remote_list(remote, NULL, &list, NULL) == 0)
			husk_sandbox_list_free(list);
		break;
	case 2:
		remote_stats(remote, "a", &stats, NULL);
		break;
	default:
		fd = remote_tunnel(remote, "a", NULL);
		fd_close(&fd);
	}
}

static void call_network(struct remote *remote, unsigned which)
{
	struct husk_egress *egress = NULL;
	struct husk_egress_event *events = NULL;
	struct husk_egress_traffic *traffic = NULL;
	size_t count = 0;

	if (which == 0 && remote_egress_get(remote, "a", &egress, NULL) == 0)
		husk_egress_free(egress);
	if (which == 1 && remote_egress_log(remote, "a", 0, &events, &count, NULL) == 0)
		husk_egress_event_list_free(events, count);
	if (which == 2 && remote_egress_traffic(remote, "a", &traffic, &count, NULL) == 0)
		husk_egress_traffic_list_free(traffic, count);
}

static void call_build(struct remote *remote)
{
	const struct husk_dockerfile_options options = { .name = "a" };
	struct husk_image *image = NULL;
	cleanup_close int empty = memfd_create("context", MFD_CLOEXEC);
	bool fresh;

	if (remote_build(remote, &options, "FROM scratch", empty, &image, &fresh, NULL) == 0)
		husk_image_free(image);
}

static void call_images(struct remote *remote, unsigned which)
{
	const struct husk_build_options options = { .name = "a" };
	struct husk_snapshot **snapshots = NULL;
	struct husk_template **templates = NULL, *built = NULL;
	bool fresh;

	if (which == 0 && remote_snapshot_list(remote, &snapshots, NULL) == 0)
		husk_snapshot_list_free(snapshots);
	if (which == 1 && remote_template_list(remote, &templates, NULL) == 0)
		husk_template_list_free(templates);
	if (which == 2 && remote_template_build(remote, &options, &built, &fresh, NULL) == 0)
		husk_template_free(built);
	if (which == 3)
		call_build(remote);
}

static void call_volumes(struct remote *remote, unsigned which)
{
	struct husk_volume **list = NULL;
	struct husk_file *files = NULL;
	size_t count = 0;

	if (which == 0 && remote_volume_list(remote, &list, NULL) == 0)
		husk_volume_list_free(list);
	if (which == 1 && remote_volume_file_list(remote, "a", "/", 1, &files, &count, NULL) == 0)
		husk_file_list_free(files, count);
	if (which == 2)
		remote_volume_file_read(remote, "a", "/", 0, 0, swallow, NULL, NULL);
}

static void call_instance(struct remote *remote, unsigned which)
{
	struct husk_log_position position = { 0 };
	struct husk_event *events = NULL;
	struct husk_check *checks = NULL;
	struct husk_token **tokens = NULL;
	char *text = NULL;
	size_t count = 0;

	if (which == 0 && remote_events(remote, NULL, 0, 0, 0, &events, &count, NULL) == 0)
		husk_event_list_free(events, count);
	if (which == 1 && remote_logs(remote, "a", HUSK_LOG_CONSOLE, &position, &text, NULL) == 0)
		free(text);
	if (which == 2 && remote_checks(remote, "doctor", &checks, &count, NULL) == 0)
		husk_check_list_free(checks, count);
	if (which == 3 && remote_token_list(remote, &tokens, NULL) == 0)
		husk_token_list_free(tokens);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static void (*const calls[])(struct remote *, unsigned) = { call_sandboxes, call_network, call_images,
								    call_volumes, call_instance };
	struct remote remote = { .url = "unix:/x", .path = "/x" };

	if (!size)
		return 0;
	answer = data + 1;
	answer_size = size - 1;
	calls[data[0] / 4 % ARRAY_SIZE(calls)](&remote, data[0] % 4);
	return 0;
}
