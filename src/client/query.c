/*
 * Queries that the catalog answers without a supervisor: lists, events, metadata. Part of the public API (husk.h has the
 * contracts). Nothing here may wake a sandbox, or show an environment value or a pool entry.
 */
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>

#include "instance/instance.h"
#include "instance/pairs.h"
#include "instance/snapshots.h"
#include "instance/view.h"

#define EVENT_POLL_MS 25

/* ---- sandboxes ---- */

static void drop_sandbox(struct catalog_sandbox **row)
{
	catalog_sandbox_free(*row);
}
#define cleanup_sandbox cleanup(drop_sandbox)

static void drop_sandboxes(struct catalog_sandbox ***list)
{
	catalog_sandbox_list_free(*list);
}

static int filter_mask(const struct husk_filter *filter, unsigned *mask, struct husk_error *err)
{
	static const enum catalog_state states[] = {
		[HUSK_CREATING] = CATALOG_CREATING, [HUSK_RUNNING] = CATALOG_RUNNING,
		[HUSK_PAUSED] = CATALOG_PAUSED,     [HUSK_HIBERNATED] = CATALOG_HIBERNATED,
		[HUSK_ENDED] = CATALOG_ENDED,
	};
	unsigned live =
		1u << CATALOG_CREATING | 1u << CATALOG_RUNNING | 1u << CATALOG_PAUSED | 1u << CATALOG_HIBERNATED;

	if (filter && (size_t)filter->state >= ARRAY_SIZE(states))
		return husk_fail_field(err, "state", "%d is not a state of a sandbox", (int)filter->state);
	*mask = filter && filter->state ? 1u << states[filter->state] : live;
	if (filter && filter->with_ended)
		*mask |= 1u << CATALOG_ENDED;
	return 0;
}

static size_t count_rows(void *const *list)
{
	size_t count = 0;

	while (list[count])
		count++;
	return count;
}

int husk_list(struct husk *husk, const struct husk_filter *filter, struct husk_sandbox ***out, struct husk_error *err)
{
	if (husk->remote)
		return remote_list(husk->remote, filter, out, err);
	cleanup(drop_sandboxes) struct catalog_sandbox **rows = NULL;
	const struct husk_pair *wanted = filter ? filter->metadata : NULL;
	size_t wanted_count = filter ? filter->metadata_count : 0, count = 0;
	size_t limit = filter && filter->limit ? filter->limit : SIZE_MAX;
	struct catalog_query query = { 0 };

	if (filter_mask(filter, &query.mask, err) || pairs_check_metadata(wanted, wanted_count, err))
		return -1;
	query.without_builds = !filter || !(filter->with_builds || filter->with_ended);
	if (filter) {
		query.template_name = filter->template_name;
		query.after = filter->after;
		query.limit = wanted_count ? 0 : filter->limit; /* the catalog cannot filter by metadata */
	}
	if (catalog_sandbox_query(husk->catalog, &query, &rows, err))
		return -1;
	struct husk_sandbox **list = calloc(count_rows((void *const *)rows) + 1, sizeof *list);

	if (!list)
		return husk_fail_memory(err);
	for (size_t i = 0; rows[i] && count < limit; i++) {
		int match = json_has_pairs(rows[i]->metadata, wanted, wanted_count, err);

		if (match == 0)
			continue;
		list[count] = match > 0 ? sandbox_from_row(rows[i]) : NULL;
		if (!list[count++]) {
			husk_sandbox_list_free(list);
			return match < 0 ? husk_wrap(err, "metadata of sandbox %s", rows[i]->id)
					 : husk_fail_memory(err);
		}
	}
	*out = list;
	return 0;
}

int husk_set_metadata(struct husk *husk, const char *sandbox, const struct husk_pair *pairs, size_t count,
		      struct husk_error *err)
{
	if (husk->remote)
		return remote_set_metadata(husk->remote, sandbox, pairs, count, err);
	cleanup_sandbox struct catalog_sandbox *row = NULL;
	cleanup_free char *json = NULL;

	if (pairs_check_metadata(pairs, count, err) || catalog_sandbox_get(husk->catalog, sandbox, &row, err))
		return -1;
	json = pairs_to_json(pairs, count, err);
	if (!json || catalog_sandbox_set_metadata(husk->catalog, row->id, json, err))
		return -1;
	return catalog_event(husk->catalog, row->id, "metadata", NULL, err);
}

/* ---- snapshots and templates ---- */

static void drop_snapshots(struct catalog_snapshot ***list)
{
	catalog_snapshot_list_free(*list);
}

int husk_snapshot_list(struct husk *husk, struct husk_snapshot ***out, struct husk_error *err)
{
	if (husk->remote)
		return remote_snapshot_list(husk->remote, out, err);
	cleanup(drop_snapshots) struct catalog_snapshot **rows = NULL;

	if (catalog_snapshot_list(husk->catalog, false, &rows, err))
		return -1;
	struct husk_snapshot **list = calloc(count_rows((void *const *)rows) + 1, sizeof *list);

	for (size_t i = 0, shown = 0; list && rows[i]; i++) {
		if (snapshot_is_step(rows[i]))
			continue;
		struct husk_snapshot *made = list[shown++] = snapshot_from_row(rows[i]);
		if (!made || catalog_snapshot_tags(husk->catalog, rows[i]->id, &made->tags, err) < 0) {
			husk_snapshot_list_free(list);
			list = NULL;
		}
	}
	*out = list;
	return list ? 0 : husk_fail_memory(err);
}

static void drop_templates(struct catalog_template ***list)
{
	catalog_template_list_free(*list);
}

static size_t count_old(struct catalog_template *const *all, const struct catalog_template *row)
{
	const char *tenant = row->tenant ? row->tenant : "";
	size_t count = 0;

	for (size_t i = 0; all[i]; i++)
		count += !all[i]->current && str_equal(all[i]->name, row->name) &&
			 strcmp(all[i]->tenant ? all[i]->tenant : "", tenant) == 0;
	return count;
}

int husk_template_list(struct husk *husk, struct husk_template ***out, struct husk_error *err)
{
	if (husk->remote)
		return remote_template_list(husk->remote, out, err);
	cleanup(drop_templates) struct catalog_template **rows = NULL, **all = NULL;

	if (catalog_template_list(husk->catalog, false, &rows, err) ||
	    catalog_template_list(husk->catalog, true, &all, err))
		return -1;
	struct husk_template **list = calloc(count_rows((void *const *)rows) + 1, sizeof *list);

	for (size_t i = 0; list && rows[i]; i++) {
		list[i] = template_from_row(rows[i]);
		if (list[i]) {
			list[i]->old_versions = count_old(all, rows[i]);
		} else {
			husk_template_list_free(list);
			list = NULL;
		}
	}
	*out = list;
	return list ? 0 : husk_fail_memory(err);
}

/* ---- events ---- */

/* The id whose events are requested. A sandbox whose creation failed has no row any more, but its events give the
 * reason. */
static int event_subject(struct husk *husk, const char *sandbox, char **id, struct husk_error *err)
{
	cleanup_sandbox struct catalog_sandbox *row = NULL;
	struct husk_event *events = NULL;
	size_t count = 0;

	if (catalog_sandbox_get(husk->catalog, sandbox, &row, err) == 0) {
		*id = strdup(row->id);
		return *id ? 0 : husk_fail_memory(err);
	}
	/* `err` is already set, and stays so if there are no events either. */
	if (!sandbox || catalog_events(husk->catalog, sandbox, 0, 1, &events, &count, NULL))
		return -1;
	husk_event_list_free(events, count);
	if (!count)
		return -1;
	*id = strdup(sandbox);
	return *id ? 0 : husk_fail_memory(err);
}

int husk_events(struct husk *husk, const char *sandbox, int64_t after, size_t limit, int wait_ms,
		struct husk_event **out, size_t *count, struct husk_error *err)
{
	if (husk->remote)
		return remote_events(husk->remote, sandbox, after, limit, wait_ms, out, count, err);
	int64_t deadline = time_monotonic_ms() + MAX(wait_ms, 0);
	cleanup_free char *id = NULL;

	if (sandbox && event_subject(husk, sandbox, &id, err))
		return -1;
	for (;;) {
		if (catalog_events(husk->catalog, id, after, limit, out, count, err))
			return -1;
		int64_t left = deadline - time_monotonic_ms();

		if (*count || left <= 0)
			return 0;
		husk_event_list_free(*out, *count);
		/* Asking again costs microseconds, and needs no help from the writer, which may be any process. */
		poll(NULL, 0, (int)MIN(left, EVENT_POLL_MS));
	}
}
