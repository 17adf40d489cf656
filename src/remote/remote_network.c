/*
 * The network of a sandbox over the API: its policy, its denied connections, and its traffic.
 */
#include "remote/remote_http.h"
#include "remote/remote_read.h"
#include "remote/remote_write.h"

static int get_policy(struct remote *remote, const char *sandbox, json_t **out, struct husk_error *err)
{
	if (!sandbox || !*sandbox)
		return husk_fail(err, HUSK_NOT_FOUND, "sandbox '' not found (husk ls)");
	return exchange_get(remote, target_make("/v1/sandboxes/%s/egress", sandbox), out, err);
}

int remote_egress_get(struct remote *remote, const char *sandbox, struct husk_egress **out, struct husk_error *err)
{
	cleanup_json json_t *document = NULL;

	if (get_policy(remote, sandbox, &document, err) < 0)
		return -1;
	*out = read_egress(document, err);
	return *out ? 0 : -1;
}

int remote_egress_set(struct remote *remote, const char *sandbox, const struct husk_egress *egress,
		      struct husk_error *err)
{
	struct exchange x = { .method = "PUT", .body = write_egress(egress, err) };

	if (!x.body)
		return -1;
	x.target = target_make("/v1/sandboxes/%s/egress", sandbox);
	return exchange_run(remote, &x, NULL, err);
}

int remote_egress_log(struct remote *remote, const char *sandbox, size_t limit, struct husk_egress_event **out,
		      size_t *count, struct husk_error *err)
{
	cleanup_json json_t *document = NULL;
	char *target = target_make("/v1/sandboxes/%s/egress/log", sandbox);

	if (limit)
		target = target_add_int(target, "limit", (int64_t)MIN(limit, 1000));
	if (exchange_get(remote, target, &document, err) < 0)
		return -1;
	const json_t *array = read_array(document, "events", err);
	size_t size = json_array_size(array);
	struct husk_egress_event *list = array ? calloc(size + 1, sizeof(*list)) : NULL;
	if (!list)
		return array ? husk_fail_memory(err) : -1;
	for (size_t i = 0; i < size; i++) {
		struct reading r = { .from = json_array_get(array, i) };
		list[i] = (struct husk_egress_event){
			.at_ms = read_time(&r, "at"),
			.verdict = read_needed(&r, "verdict"),
			.kind = read_needed(&r, "kind"),
			.host = read_needed(&r, "host"),
			.port = (uint16_t)read_count(&r, "port"),
			.reason = read_needed(&r, "reason"),
			.rule = read_needed(&r, "rule"),
			.count = read_count(&r, "count"),
		};
		if (read_done(&r, "what a sandbox tried to reach", err) < 0) {
			husk_egress_event_list_free(list, i + 1);
			return -1;
		}
	}
	*out = list;
	*count = size;
	return 0;
}

int remote_egress_traffic(struct remote *remote, const char *sandbox, struct husk_egress_traffic **out, size_t *count,
			  struct husk_error *err)
{
	cleanup_json json_t *document = NULL;

	if (get_policy(remote, sandbox, &document, err) < 0)
		return -1;
	return read_traffic(document, out, count, err);
}
