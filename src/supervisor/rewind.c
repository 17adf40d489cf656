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
	return catalog_point_finish(s->husk.catalog, point->sandbox, point->number, dir_bytes(image), err);
}

static void tell_point(struct supervisor *s, const struct catalog_point *point)
{
	json_t *detail = json_pack("{s:I, s:s*}", "checkpoint", (json_int_t)point->number, "label", point->label);
	cleanup_free char *text = detail ? json_dumps(detail, JSON_COMPACT) : NULL;

	json_decref(detail);
	catalog_event(s->husk.catalog, point->sandbox, "checkpoint", text, NULL);
}

static int keep_point(struct supervisor *s, const char *label, int64_t *number, int64_t *pause_ms,
		      struct husk_error *err)
{
	cleanup_free char *traffic = network_traffic(s);
	struct catalog_point point = { .sandbox = (char *)life_id(&s->life),
				       .label = (char *)label,
				       .created_ms = time_wall_ms(),
				       .traffic = traffic };

	points_recover(&s->husk, point.sandbox); /* left by an interrupted removal */
	if (catalog_point_add(s->husk.catalog, &point, err) < 0)
		return -1;
	if (write_image(s, &point, pause_ms, err) < 0) {
		point_drop(&s->husk, point.sandbox, point.number);
		return -1;
	}
	tell_point(s, &point);
	*number = point.number;
	return 0;
}

int machine_point(struct supervisor *s, const char *label, int64_t *number, int64_t *pause_ms, struct husk_error *err)
{
	if (life_begin(&s->life, LIFE_CHECKPOINT, err) < 0)
		return -1;
	int result = keep_point(s, label, number, pause_ms, err);
	life_finish(&s->life, result == 0);
	return result < 0 ? machine_ended_meanwhile(s, err) : 0;
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
