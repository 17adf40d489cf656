/*
 * The events of an instance: an append-only list that readers follow by sequence number. Supervisors write most events;
 * `husk events` and the server read them. An event must never hold a secret: no environment values, no command lines, no
 * output.
 */
#include "store/catalog_kit.h"

static const struct field event_fields[] = {
	FIELD(husk_event, FIELD_INT64, sequence), FIELD(husk_event, FIELD_INT64, at_ms),
	FIELD(husk_event, FIELD_TEXT, sandbox),   FIELD(husk_event, FIELD_TEXT, kind),
	FIELD(husk_event, FIELD_TEXT, detail),
};
static const struct table events = { "events", sizeof(struct husk_event), event_fields, ARRAY_SIZE(event_fields) };

int catalog_event(struct catalog *catalog, const char *sandbox, const char *kind, const char *detail,
		  struct husk_error *err)
{
	if (catalog_begin(catalog, CATALOG_WRITE, err))
		return -1;
	int result = catalog_run(
		catalog,
		"INSERT INTO events (at_ms, sandbox, kind, detail, tenant) VALUES (?1, ?2, ?3, ?4, "
		"coalesce((SELECT tenant FROM sandboxes WHERE id = ?2), ?5))", /* supervisors write for their tenant */
		ARGUMENTS(number(time_wall_ms()), text(sandbox), text(kind), text(detail ? detail : "{}"),
			  text(catalog->view.tenant)),
		err);

	if (catalog_finish(catalog, result, err) < 0)
		return -1;
	log_line(LOG_INFO, "event of %s: %s %s", sandbox ? sandbox : "the instance", kind, detail ? detail : "{}");
	return 0;
}

/* Converts a list of pointers to an array of structures, which is the public form. Takes ownership of the strings. */
static struct husk_event *flatten(void **list, size_t *count)
{
	size_t length = 0;

	while (list[length])
		length++;
	struct husk_event *array = calloc(length + 1, sizeof *array);

	for (size_t i = 0; array && i < length; i++) {
		array[i] = *(struct husk_event *)list[i];
		free(list[i]);
	}
	if (array) {
		free(list);
		*count = length;
	}
	return array;
}

int catalog_events(struct catalog *catalog, const char *sandbox, int64_t after, size_t limit, struct husk_event **out,
		   size_t *count, struct husk_error *err)
{
	/* The statement is composed, because the condition "?1 IS NULL OR sandbox = ?1" would not use the index. */
	const char *tenant = catalog->view.tenant;
	cleanup_free char *tail = str_format("WHERE sequence > ?3%s%s ORDER BY sequence LIMIT ?4",
					     sandbox ? " AND sandbox = ?1" : "", tenant ? " AND tenant = ?2" : "");
	int64_t most = limit && limit <= INT64_MAX ? (int64_t)limit : -1;
	const struct argument *arguments = ARGUMENTS(text(sandbox), text(tenant), number(after), number(most));
	void **list = NULL;

	if (!tail)
		return husk_fail_memory(err);
	if (catalog_begin(catalog, CATALOG_READ, err))
		return -1;
	if (catalog_finish(catalog, table_all(catalog, &events, tail, arguments, &list, err), err)) {
		table_free_list(&events, list);
		return -1;
	}
	*out = flatten(list, count);
	if (!*out) {
		table_free_list(&events, list);
		return husk_fail_memory(err);
	}
	return 0;
}

int catalog_events_trim(struct catalog *catalog, size_t keep, struct husk_error *err)
{
	if (catalog_begin(catalog, CATALOG_WRITE, err))
		return -1;
	int result = catalog_run(catalog,
				 "DELETE FROM events WHERE sequence <= "
				 "(SELECT sequence FROM events ORDER BY sequence DESC LIMIT 1 OFFSET ?1)",
				 ARGUMENTS(number(keep <= INT64_MAX ? (int64_t)keep : INT64_MAX)), err);

	return catalog_finish(catalog, result, err) < 0 ? -1 : 0;
}
