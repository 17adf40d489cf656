/*
 * Checkpoints of a supervised sandbox, kept in its directory, and the rewind to one. Called by session.c for a client.
 *
 * A rewind is a hibernation with another image. The image of the checkpoint replaces the image of the sandbox by one
 * rename (a link, engine.h: image_lend). Then the machine ends as in a hibernation, and the caller wakes the sandbox.
 * If the supervisor is killed before that rename, nothing has happened. If it is killed afterwards, the sandbox is
 * hibernated at the checkpoint and wakes there. The guest takes no part: it may be broken or paused.
 */
#include "supervisor/rewind.h"

#include <jansson.h>

#include "instance/instance.h"
#include "instance/points.h"
#include "supervisor/machine.h"

/* ---- taking one ---- */

/* The row exists. Writes the image, complete and on disk, and then marks the row as ready. */
static int write_image(struct supervisor *s, const struct catalog_point *point, int64_t *pause_ms,
		       struct husk_error *err)
{
	cleanup_free char *directory = path_points(&s->husk.paths, point->sandbox);
	cleanup_free char *image = path_point(&s->husk.paths, point->sandbox, point->number);

	if (!directory || !image)
		return husk_fail_memory(err);
	/* This number may have an old image whose removal was interrupted. */
	if (dir_make(directory, 0700, err) < 0 || image_discard(image, err) < 0)
		return -1;
	if (machine_save(s, image, pause_ms, err) < 0 || engine_image_sync(image, err) < 0)
		return -1;
	return catalog_point_finish(s->husk.catalog, point->sandbox, point->number, dir_bytes(image), s->effect_mark,
				    err);
}

static void tell_point(struct supervisor *s, const struct catalog_point *point)
{
	json_t *detail = json_pack("{s:I, s:s*}", "checkpoint", (json_int_t)point->number, "label", point->label);
	cleanup_free char *text = detail ? json_dumps(detail, JSON_COMPACT) : NULL;

	json_decref(detail);
	catalog_event(s->husk.catalog, point->sandbox, "checkpoint", text, NULL);
}

/* `ran`: the call that it is taken for; NULL: it was asked for. */
static int keep_point(struct supervisor *s, const char *label, const char *ran, int64_t *number, int64_t *pause_ms,
		      struct husk_error *err)
{
	cleanup_free char *traffic = network_traffic(s);
	struct catalog_point point = { .sandbox = (char *)life_id(&s->life),
				       .label = (char *)label,
				       .created_ms = time_wall_ms(),
				       .automatic = ran != NULL,
				       .ran = (char *)ran,
				       .traffic = traffic };

	points_recover(&s->husk, point.sandbox); /* left by an interrupted removal */
	if (catalog_point_add(s->husk.catalog, &point, err) < 0)
		return -1;
	if (write_image(s, &point, pause_ms, err) < 0) {
		point_drop(&s->husk, point.sandbox, point.number);
		return -1;
	}
	if (!ran) /* otherwise the events would be a list of calls */
		tell_point(s, &point);
	*number = point.number;
	return 0;
}

int machine_point(struct supervisor *s, const char *label, int64_t *number, int64_t *pause_ms, struct husk_error *err)
{
	if (life_begin(&s->life, LIFE_CHECKPOINT, err) < 0)
		return -1;
	int result = keep_point(s, label, NULL, number, pause_ms, err);
	life_finish(&s->life, result == 0);
	return result < 0 ? machine_ended_meanwhile(s, err) : 0;
}

/* ---- before each call ---- */

#define AUTOMATIC_MAX 32                        /* checkpoints that are kept; named ones do not count */
#define AUTOMATIC_BYTES_MAX (UINT64_C(4) << 30) /* of them together */
#define RAN_MAX 200

/* Removes the oldest ones, never the newest. They yield to the quota of the tenant, which does not stop a call. */
static void thin_points(struct supervisor *s)
{
	struct catalog_point **list = NULL;
	const char *id = life_id(&s->life);
	size_t count = 0, size = 0;
	uint64_t bytes = 0, excess = 0;

	catalog_quota_excess(s->husk.catalog, id, &excess, NULL);
	if (catalog_point_list(s->husk.catalog, id, false, &list, NULL) < 0)
		return;
	for (; list[size]; size++)
		if (list[size]->automatic) {
			count++;
			bytes += list[size]->bytes;
		}
	for (size_t i = 0; i + 1 < size && (count > AUTOMATIC_MAX || bytes > AUTOMATIC_BYTES_MAX || excess); i++) {
		if (!list[i]->automatic || catalog_point_thin(s->husk.catalog, id, list[i]->number, NULL) < 0 ||
		    point_remove(&s->husk, id, list[i]->number, NULL) < 0)
			continue;
		count--;
		bytes -= list[i]->bytes;
		excess -= MIN(excess, list[i]->bytes);
	}
	catalog_point_list_free(list);
}

/* "ls -l /root" */
static int put_words(const char *payload, size_t size, struct buf *out)
{
	struct wire_field field;
	size_t at = 0;
	int bad = 0;

	while (!bad && out->size <= RAN_MAX && wire_next(payload, size, &at, &field) == 1)
		if (field.tag == TAG_ARG)
			bad = (out->size ? buf_append_string(out, " ") : 0) |
			      buf_append(out, field.data, MIN(field.size, RAN_MAX + 1));
	return bad;
}

/* The call in words, for the history: its command, or whose input it is. */
static int describe_call(int64_t method, const char *payload, size_t size, struct buf *out)
{
	cleanup_free char *shell = wire_get_string(payload, size, TAG_SHELL);
	cleanup_free char *label = wire_get_string(payload, size, TAG_NAME);
	int bad = 0;

	if (method == METHOD_ATTACH)
		bad = buf_printf(out, "input for process %lld", (long long)wire_get_int(payload, size, TAG_PID, 0));
	else if (label && str_starts(label, "code:"))
		bad = buf_append_string(out, label);
	else if (shell)
		bad = buf_append_string(out, shell);
	else
		bad = put_words(payload, size, out);
	for (size_t i = 0; !bad && i < out->size; i++)
		if ((unsigned char)out->data[i] < ' ' || out->data[i] == 0x7f)
			out->data[i] = ' ';
	while (!bad && (out->size > RAN_MAX || !str_is_utf8(out->data, out->size)) && out->size > 0)
		out->data[--out->size] = '\0';
	return bad | buf_append_string(out, "");
}

/* A call is a program that is started, or one that gets input from here on: a code context, a desktop. */
static bool is_call(int64_t method, const char *payload, size_t size)
{
	return method == METHOD_EXEC ||
	       (method == METHOD_ATTACH && wire_get_int(payload, size, TAG_FLAGS, 0) & EXEC_STDIN);
}

int machine_point_before(struct supervisor *s, int64_t method, const char *payload, size_t size, struct husk_error *err)
{
	cleanup_buf struct buf ran = { 0 };
	int64_t number, pause_ms;

	if (!s->each_call || !is_call(method, payload, size) || life_look(&s->life).state != CATALOG_RUNNING)
		return 0;
	if (describe_call(method, payload, size, &ran) != 0)
		return husk_fail_memory(err);
	if (life_begin(&s->life, LIFE_CHECKPOINT, err) < 0)
		return -1;
	int result = keep_point(s, NULL, ran.data, &number, &pause_ms, err);
	if (result == 0)
		thin_points(s);
	life_finish(&s->life, result == 0);
	return result < 0 ? husk_wrap(err, "the checkpoint before the call could not be taken") : 0;
}

/* ---- going back ---- */

/* Proves that the checkpoint can be woken, and puts it into the place of the sandbox's image. */
static int lend_image(struct supervisor *s, int64_t number, struct husk_error *err)
{
	struct catalog_sandbox *row = NULL;

	if (catalog_sandbox_get(s->husk.catalog, life_id(&s->life), &row, err) < 0)
		return -1;
	int result = point_lend(&s->husk, row, number, err);
	catalog_sandbox_free(row);
	return result;
}

/* Ends the machine. Open calls get the reason. */
static void let_go(struct supervisor *s, int64_t number)
{
	char reason[128];

	snprintf(reason, sizeof(reason), "sandbox %s was rewound to checkpoint %lld, and this call ended with its past",
		 life_id(&s->life), (long long)number);
	link_close_because(s->link, reason);
	machine_fall_asleep(s, NULL);
}

int machine_rewind(struct supervisor *s, int64_t number, struct husk_error *err)
{
	if (life_begin(&s->life, LIFE_REWIND, err) < 0)
		return -1;
	cleanup_free char *image = path_image(&s->husk.paths, life_id(&s->life));
	int result = image ? lend_image(s, number, err) : husk_fail_memory(err);
	if (result == 0 && !life_commit(&s->life)) {
		image_discard(image, NULL);
		result = -1;
	}
	if (result == 0)
		let_go(s, number);
	life_finish(&s->life, result == 0);
	return result < 0 ? machine_ended_meanwhile(s, err) : 0;
}
