/*
 * Checkpoints of a sandbox for callers of libhusk: take, list, rewind. For a sandbox that is awake, the supervisor does
 * the work. A hibernated sandbox is handled here, under its lock. A rewind must report what it could not undo.
 * Afterwards the sandbox must be in its old state or at the checkpoint, never in between.
 */
#include "base/jansson.h"
#include "client/history_files.h"
#include "instance/contact.h"
#include "instance/egress_policy.h"
#include "instance/mounts.h"
#include "instance/points.h"
#include "instance/recover.h"
#include "instance/spawn.h"
#include "wire/wire.h"

#define RECORD_MAX (4u << 20)
#define SETTLE_MS 60000 /* how long a rewind waits for a sandbox that is being created, woken or hibernated */
#define LOOK_TURNS 100  /* of 5 ms: how often it checks whether the other process is gone */

static void drop_points(struct catalog_point ***list)
{
	catalog_point_list_free(*list);
}
#define cleanup_points cleanup(drop_points)

/* ---- results for callers ---- */

void husk_checkpoint_free(struct husk_checkpoint *checkpoint)
{
	if (!checkpoint)
		return;
	free(checkpoint->label);
	free(checkpoint->ran);
	for (size_t i = 0; i < checkpoint->file_count; i++)
		free(checkpoint->files[i].path);
	free(checkpoint->files);
	free(checkpoint);
}

void husk_checkpoint_list_free(struct husk_checkpoint **list)
{
	for (size_t i = 0; list && list[i]; i++)
		husk_checkpoint_free(list[i]);
	free(list);
}

void husk_rewound_free(struct husk_rewound *rewound)
{
	if (!rewound)
		return;
	free(rewound->label);
	husk_egress_traffic_list_free(rewound->left, rewound->left_count);
	strv_free(rewound->volumes);
	husk_effect_list_free(rewound->effects);
	for (size_t i = 0; i < rewound->request_count; i++) {
		free(rewound->requests[i].method);
		free(rewound->requests[i].url);
	}
	free(rewound->requests);
	free(rewound->visits);
	free(rewound);
}

static struct husk_checkpoint *checkpoint_from_row(const struct catalog_point *row, int64_t current)
{
	struct husk_checkpoint *out = calloc(1, sizeof(*out));

	if (!out)
		return NULL;
	*out = (struct husk_checkpoint){ .number = row->number,
					 .label = row->label ? strdup(row->label) : NULL,
					 .parent = row->parent,
					 .created_ms = row->created_ms,
					 .bytes = row->bytes,
					 .automatic = row->automatic,
					 .ran = row->ran ? strdup(row->ran) : NULL,
					 .current = row->number == current,
					 .files_changed = -1 };
	if ((row->label && !out->label) || (row->ran && !out->ran)) {
		husk_checkpoint_free(out);
		return NULL;
	}
	return out;
}

/* Bytes and requests up to a checkpoint. */
static void add_up(const struct catalog_point *row, uint64_t *sent, uint64_t *requests)
{
	cleanup_json json_t *root = row && row->traffic ? json_loads(row->traffic, 0, NULL) : NULL;
	const json_t *list = json_is_array(root) ? root : json_object_get(root, "destinations");

	for (size_t i = 0; i < json_array_size(list); i++)
		*sent += (uint64_t)json_integer_value(json_object_get(json_array_get(list, i), "sent"));
	*requests = (uint64_t)json_integer_value(json_object_get(root, "requests"));
}

/* What left between the checkpoint and its parent. */
static void compare_points(struct catalog_point *const *points, size_t index, struct husk_checkpoint *out)
{
	uint64_t sent = 0, requests = 0, before = 0, requests_before = 0;

	for (size_t i = 0; i < index; i++)
		if (points[i]->number == points[index]->parent)
			add_up(points[i], &before, &requests_before);
	add_up(points[index], &sent, &requests);
	out->sent = sent > before ? sent - before : 0;
	out->requests = requests > requests_before ? requests - requests_before : 0;
}

/* A sandbox that can have checkpoints. */
static int get_live(struct husk *husk, const char *sandbox, struct catalog_sandbox **out, struct husk_error *err)
{
	if (catalog_sandbox_get(husk->catalog, sandbox, out, err) < 0)
		return -1;
	if ((*out)->state == CATALOG_ENDED)
		return husk_fail(err, HUSK_GONE, "sandbox %s has ended (%s), and its checkpoints with it", (*out)->id,
				 (*out)->end_reason);
	return 0;
}

/* By number or label; NULL: the current checkpoint. */
static int get_point(struct husk *husk, const struct catalog_sandbox *row, const char *word, struct catalog_point **out,
		     struct husk_error *err)
{
	char current[24];

	snprintf(current, sizeof(current), "%.0lld", (long long)row->point); /* of 0: nothing */
	return catalog_point_get(husk->catalog, row->id, word ? word : current, out, err);
}

/* ---- taking, listing, removing ---- */

static int check_label(const char *label, struct husk_error *err)
{
	size_t digits = strspn(label, "0123456789");

	if (name_check("label", label, err) < 0)
		return -1;
	return label[digits]
		       ? 0
		       : husk_fail_field(err, "label",
					 "label '%s' is a number, which checkpoints have already; use a letter too",
					 label);
}

/* The supervisor does not know quotas: a checkpoint above the quota is removed again. */
static int check_quota(struct husk *husk, const char *id, int64_t number, struct husk_error *err)
{
	if (catalog_quota_snapshots(husk->catalog, err) == 0)
		return 0;
	point_remove(husk, id, number, NULL);
	return -1;
}

int husk_checkpoint(struct husk *husk, const char *sandbox, const char *label, struct husk_checkpoint **out,
		    struct husk_error *err)
{
	if (husk->remote)
		return remote_checkpoint(husk->remote, sandbox, label, out, err);
	cleanup_buf struct buf arguments = { 0 }, results = { 0 };
	cleanup_row struct catalog_sandbox *row = NULL;
	cleanup_point struct catalog_point *point = NULL;
	char number[24];

	if ((label && check_label(label, err) < 0) || catalog_quota_snapshots(husk->catalog, err) < 0 ||
	    get_live(husk, sandbox, &row, err) < 0)
		return -1;
	if (label && wire_put_string(&arguments, TAG_NAME, label) < 0)
		return husk_fail_memory(err);
	if (husk_call(husk, row->id, METHOD_SANDBOX_POINT, &arguments, &results, err) < 0)
		return -1;
	int64_t taken = wire_get_int(results.data, results.size, TAG_POINT, 0);
	if (check_quota(husk, row->id, taken, err) < 0)
		return -1;
	if (!out)
		return 0;
	snprintf(number, sizeof(number), "%lld", (long long)taken);
	if (catalog_point_get(husk->catalog, row->id, number, &point, err) < 0)
		return -1;
	*out = checkpoint_from_row(point, taken);
	return *out ? 0 : husk_fail_memory(err);
}

static int make_history(struct husk *husk, const char *sandbox, bool files, struct husk_checkpoint ***out,
			struct husk_error *err)
{
	if (husk->remote)
		return remote_history(husk->remote, sandbox, files, out, err);
	cleanup_row struct catalog_sandbox *row = NULL;
	cleanup_points struct catalog_point **points = NULL;
	size_t count = 0;

	if (catalog_sandbox_get(husk->catalog, sandbox, &row, err) < 0 ||
	    catalog_point_list(husk->catalog, row->id, false, &points, err) < 0 ||
	    (files && history_compare(husk, row, points, err) < 0))
		return -1;
	while (points[count])
		count++;
	struct husk_checkpoint **list = calloc(count + 1, sizeof(*list));
	if (!list)
		return husk_fail_memory(err);
	for (size_t i = 0; i < count; i++) {
		list[i] = checkpoint_from_row(points[i], row->point);
		if (!list[i] || (files && history_read(points[i], list[i]) < 0)) {
			husk_checkpoint_list_free(list);
			return husk_fail_memory(err);
		}
		compare_points(points, i, list[i]);
	}
	*out = list;
	return 0;
}

int husk_history(struct husk *husk, const char *sandbox, struct husk_checkpoint ***out, struct husk_error *err)
{
	return make_history(husk, sandbox, false, out, err);
}

int husk_history_files(struct husk *husk, const char *sandbox, struct husk_checkpoint ***out, struct husk_error *err)
{
	return make_history(husk, sandbox, true, out, err);
}

int husk_checkpoint_remove(struct husk *husk, const char *sandbox, const char *point, struct husk_error *err)
{
	if (husk->remote)
		return remote_checkpoint_remove(husk->remote, sandbox, point, err);
	cleanup_row struct catalog_sandbox *row = NULL;
	cleanup_point struct catalog_point *found = NULL;

	if (get_live(husk, sandbox, &row, err) < 0 || get_point(husk, row, point, &found, err) < 0)
		return -1;
	return point_remove(husk, row->id, found->number, err);
}

/* ---- going back ---- */

static int rewind_asleep(struct husk *husk, const struct catalog_sandbox *row, void *number, struct husk_error *err)
{
	return point_lend(husk, row, *(int64_t *)number, err);
}

static int rewind_awake(struct husk *husk, const char *id, int64_t number, struct husk_error *err)
{
	cleanup_buf struct buf arguments = { 0 };
	cleanup_close int fd = supervisor_dial(husk, id, SUPERVISOR_DIAL_MS, err);

	if (fd < 0)
		return -1;
	if (wire_put_int(&arguments, TAG_POINT, number) < 0)
		return husk_fail_memory(err);
	return supervisor_call(fd, METHOD_SANDBOX_REWIND, &arguments, NULL, supervisor_patience(METHOD_SANDBOX_REWIND),
			       err);
}

/* One try. -1 with *again: the sandbox was being created, woken or hibernated, or its supervisor was killed; try
 * again. */
static int rewind_once(struct husk *husk, const char *id, int64_t number, unsigned turn, bool *again,
		       struct husk_error *err)
{
	cleanup_row struct catalog_sandbox *row = NULL;
	struct husk_error why = { 0 };
	int result = -1;

	*again = false;
	if (get_live(husk, id, &row, err) < 0)
		return -1;
	if (row->state == CATALOG_HIBERNATED)
		result = recover_asleep(husk, id, rewind_asleep, &number, &why);
	else if (row->state != CATALOG_CREATING)
		result = rewind_awake(husk, id, number, &why);
	else
		husk_fail(&why, HUSK_CONFLICT, "sandbox %s is being created or woken", id);
	*again = result < 0 && (why.code == HUSK_CONFLICT || why.code == HUSK_GONE);
	if (*again && (why.code == HUSK_GONE || turn % LOOK_TURNS == LOOK_TURNS - 1))
		husk_recover(husk, id);
	if (result < 0 && err)
		*err = why;
	return result;
}

/* When this returns, the sandbox is hibernated at the checkpoint, unless another process has already woken it there. */
static int go_back(struct husk *husk, const char *id, int64_t number, struct husk_error *err)
{
	int64_t deadline = time_monotonic_ms() + SETTLE_MS;
	bool again = true;
	int result = -1;

	for (unsigned turn = 0; again; turn++) {
		result = rewind_once(husk, id, number, turn, &again, err);
		again &= time_monotonic_ms() < deadline;
		if (again)
			usleep(5000);
	}
	return result;
}

/* ---- what cannot be undone ---- */

/* A part of the record of the sandbox's last leash, or NULL. */
static json_t *recorded(struct husk *husk, const char *id, const char *part)
{
	cleanup_free char *path = egress_record_path(husk, id);
	cleanup_free char *text = path ? file_read(path, RECORD_MAX, NULL, NULL) : NULL;
	cleanup_json json_t *root = text ? json_loads(text, 0, NULL) : NULL;

	return json_incref(json_object_get(root, part));
}

static const json_t *find_destination(const json_t *list, const json_t *wanted)
{
	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *one = json_array_get(list, i);
		if (json_equal(json_object_get(one, "host"), json_object_get(wanted, "host")) &&
		    json_equal(json_object_get(one, "port"), json_object_get(wanted, "port")))
			return one;
	}
	return NULL;
}

static uint64_t more(const json_t *now, const json_t *then, const char *key)
{
	json_int_t difference =
		json_integer_value(json_object_get(now, key)) - json_integer_value(json_object_get(then, key));

	return difference > 0 ? (uint64_t)difference : 0;
}

/* Each destination with the increase of its counters. */
static int compare_traffic(const json_t *then, const json_t *now, struct husk_rewound *out)
{
	out->left = calloc(json_array_size(now) + 1, sizeof(*out->left));
	if (!out->left)
		return -1;
	for (size_t i = 0; i < json_array_size(now); i++) {
		const json_t *one = json_array_get(now, i), *before = find_destination(then, one);
		const char *host = json_string_value(json_object_get(one, "host"));
		struct husk_egress_traffic difference = {
			.port = (uint16_t)json_integer_value(json_object_get(one, "port")),
			.sent = more(one, before, "sent"),
			.received = more(one, before, "received"),
			.connections = more(one, before, "connections"),
			.denied = more(one, before, "denied"),
		};
		if (!host || (!difference.connections && !difference.sent))
			continue;
		if (!(difference.host = strdup(host)))
			return -1;
		out->left[out->left_count++] = difference;
	}
	return 0;
}

/* The requests after the one with the number `mark`. */
static int add_requests(struct husk *husk, const char *id, json_int_t mark, struct husk_rewound *out)
{
	cleanup_json json_t *record = recorded(husk, id, "requests");
	json_t *list = json_object_get(record, "list"), *one;
	json_int_t total = json_integer_value(json_object_get(record, "total")), known = 0;
	size_t index;

	out->requests = calloc(json_array_size(list) + 1, sizeof(*out->requests));
	if (!out->requests)
		return -1;
	json_array_foreach(list, index, one)
	{
		json_int_t last = json_integer_value(json_object_get(one, "last"));
		json_int_t count = MIN(json_integer_value(json_object_get(one, "count")), last - mark);
		const char *method = json_string_value(json_object_get(one, "method"));
		const char *url = json_string_value(json_object_get(one, "url"));
		struct husk_request *request = &out->requests[out->request_count];

		if (count <= 0 || !method || !url)
			continue;
		known += count;
		*request = (struct husk_request){ strdup(method), strdup(url), (uint64_t)count };
		out->request_count++;
		if (!request->method || !request->url)
			return -1;
	}
	out->requests_more = total - mark > known ? (uint64_t)(total - mark - known) : 0;
	return 0;
}

static int add_visits(struct husk *husk, const char *id, const json_t *then, struct husk_rewound *out)
{
	cleanup_free char *path = egress_visits_path(husk, id);
	cleanup_free char *text = path ? file_read(path, RECORD_MAX, NULL, NULL) : NULL;
	cleanup_json json_t *now = text ? json_loads(text, 0, NULL) : NULL;
	const char *port;
	json_t *value;

	out->visits = calloc(json_object_size(now) + 1, sizeof(*out->visits));
	if (!out->visits)
		return -1;
	json_object_foreach(now, port, value)
	{
		json_int_t count = json_integer_value(value) - json_integer_value(json_object_get(then, port));

		if (count > 0)
			out->visits[out->visit_count++] =
				(struct husk_visits){ (uint16_t)strtoul(port, NULL, 10), (uint64_t)count };
	}
	return 0;
}

static int add_volumes(const char *volumes, struct husk_rewound *out, struct husk_error *err)
{
	struct mount_row *rows = NULL;
	size_t count = 0;
	int result = volumes ? mounts_parse(volumes, &rows, &count, err) : 0;

	for (size_t i = 0; result == 0 && i < count; i++)
		if (!rows[i].read_only && strv_add(&out->volumes, rows[i].name) < 0)
			result = husk_fail_memory(err);
	mounts_free(rows, count);
	return result;
}

static int account(struct husk *husk, const struct catalog_sandbox *row, const struct catalog_point *point,
		   struct husk_rewound *out, struct husk_error *err)
{
	cleanup_json json_t *then = point->traffic ? json_loads(point->traffic, 0, NULL) : NULL;
	cleanup_json json_t *now = recorded(husk, row->id, "traffic");
	/* A checkpoint of an older version has the destinations alone. */
	const json_t *destinations = json_is_array(then) ? then : json_object_get(then, "destinations");
	json_int_t mark = json_integer_value(json_object_get(then, "requests"));

	out->number = point->number;
	out->label = point->label ? strdup(point->label) : NULL;
	if ((point->label && !out->label) ||
	    compare_traffic(destinations, json_object_get(now, "destinations"), out) < 0 ||
	    add_requests(husk, row->id, mark, out) < 0 ||
	    add_visits(husk, row->id, json_object_get(then, "visits"), out) < 0)
		return husk_fail_memory(err);
	return add_volumes(row->volumes, out, err);
}

/* Effects that were held after the checkpoint went when the sandbox woke there. */
static int add_dropped(struct husk *husk, const char *id, int64_t after, int64_t since_ms, struct husk_rewound *out,
		       struct husk_error *err)
{
	struct husk_effect **list = NULL;
	size_t kept = 0;

	if (husk_effects(husk, id, &list, err) < 0)
		return -1;
	for (size_t i = 0; list[i]; i++) {
		struct husk_effect *one = list[i];
		bool dropped = one->number > after && str_equal(one->state, "dropped") && one->done_ms >= since_ms;

		list[i] = NULL;
		if (dropped)
			list[kept++] = one;
		else
			husk_effect_free(one);
	}
	out->effects = list;
	return 0;
}

/* ---- all of it ---- */

/* Drops the checkpoints of `list` after the given one; not those that were taken meanwhile. */
static size_t drop_later_points(struct husk *husk, const char *id, struct catalog_point *const *list, int64_t number)
{
	size_t dropped = 0;

	for (size_t i = 0; list[i]; i++)
		if (list[i]->number > number && point_remove(husk, id, list[i]->number, NULL) == 0)
			dropped++;
	return dropped;
}

static int rewind_to(struct husk *husk, const struct catalog_sandbox *row, const struct catalog_point *point,
		     bool drop_later, struct husk_rewound *out, struct husk_error *err)
{
	cleanup_points struct catalog_point **points = NULL;
	int64_t since_ms = time_wall_ms();

	if (catalog_point_list(husk->catalog, row->id, false, &points, err) < 0 ||
	    go_back(husk, row->id, point->number, err) < 0 || account(husk, row, point, out, err) < 0)
		return -1;
	if (husk_wake(husk, row->id, err) < 0)
		return husk_wrap(err, "the sandbox is at checkpoint %lld and hibernated, but cannot be woken",
				 (long long)point->number);
	if (add_dropped(husk, row->id, point->effect, since_ms, out, err) < 0)
		return -1;
	if (drop_later)
		out->dropped = drop_later_points(husk, row->id, points, point->number);
	return 0;
}

int husk_rewind(struct husk *husk, const char *sandbox, const char *point, bool drop_later, struct husk_rewound **out,
		struct husk_error *err)
{
	if (husk->remote)
		return remote_rewind(husk->remote, sandbox, point, drop_later, out, err);
	cleanup_row struct catalog_sandbox *row = NULL;
	cleanup_point struct catalog_point *found = NULL;

	if (get_live(husk, sandbox, &row, err) < 0 || get_point(husk, row, point, &found, err) < 0)
		return -1;
	struct husk_rewound *rewound = calloc(1, sizeof(*rewound));
	if (!rewound)
		return husk_fail_memory(err);
	int result = rewind_to(husk, row, found, drop_later, rewound, err);
	if (result == 0 && out)
		*out = steal_pointer(rewound);
	husk_rewound_free(rewound);
	return result;
}
