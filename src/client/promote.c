/*
 * husk_promote: a fork takes the place of its parent. Example: `work` was forked into A and B, and B is the better one.
 *
 *     1. B is saved as a checkpoint of its own.
 *     2. The checkpoint is moved to `work`: one rename between two rows. Killed here, B still runs and `work` is as it was.
 *     3. B ends. From here on its state is checkpoint N of `work`, and is never lost.
 *     4. `work` is rewound to N, which is either done or not (supervisor/rewind.c).
 *        With it, what B holds becomes what `work` holds (store/catalog_effect.c).
 *     5. A ends, unless it is to be kept.
 *     6. What `work` holds is sent.
 *
 * So the state of B is never lost, and B and `work` never both continue with it.
 */
#include "engine/engine.h"
#include "instance/contact.h"
#include "instance/points.h"

void husk_promoted_free(struct husk_promoted *promoted)
{
	if (!promoted)
		return;
	free(promoted->sandbox);
	strv_free(promoted->ended);
	husk_effect_list_free(promoted->effects);
	free(promoted);
}

static void drop_promoted(struct husk_promoted **promoted)
{
	husk_promoted_free(*promoted);
}
#define cleanup_promoted cleanup(drop_promoted)

/* ---- who is whose ---- */

/* The sandbox that the child was forked from, if it still lives. */
static int find_parent(struct husk *husk, const struct catalog_sandbox *child, struct catalog_sandbox **out,
		       struct husk_error *err)
{
	struct husk_error why = { 0 };

	if (child->state == CATALOG_ENDED)
		return husk_fail(err, HUSK_GONE, "sandbox %s has ended (%s)", child->id, child->end_reason);
	if (!child->parent || !str_starts(child->parent, "sb-"))
		return husk_fail_field(err, "sandbox",
				       "sandbox %s is not a fork; only a fork has a place to take (husk fork)",
				       child->id);
	if (catalog_sandbox_get(husk->catalog, child->parent, out, &why) < 0 || (*out)->state == CATALOG_ENDED)
		return husk_fail(err, HUSK_GONE, "sandbox %s, which %s was forked from, has ended", child->parent,
				 child->id);
	return 0;
}

/* The parent's machine must be able to continue the child's image. */
static int check_pair(const struct catalog_sandbox *child, const struct catalog_sandbox *parent, struct husk_error *err)
{
	const char *what = NULL;

	if (child->disk_bytes != parent->disk_bytes)
		what = "disk sizes";
	else if (!str_equal(child->volumes ? child->volumes : "", parent->volumes ? parent->volumes : ""))
		what = "volumes";
	else if (!str_equal(child->isolation, parent->isolation) ||
		 !str_equal(child->template_digest, parent->template_digest))
		what = "engines or templates";
	if (!what)
		return 0;
	return husk_fail_field(err, "sandbox",
			       "sandbox %s and its parent %s have different %s; it cannot take the parent's place",
			       child->id, parent->id, what);
}

/* ---- the checkpoint moves ---- */

static int rename_point(struct husk *husk, const char *from, int64_t number, const char *to, int64_t new_number,
			struct husk_error *err)
{
	cleanup_free char *source = path_point(&husk->paths, from, number);
	cleanup_free char *directory = path_points(&husk->paths, to);
	cleanup_free char *target = path_point(&husk->paths, to, new_number);

	if (!source || !directory || !target)
		return husk_fail_memory(err);
	/* A number may have had another image, whose removal was cut short. */
	if (dir_make(directory, 0700, err) < 0 || image_discard(target, err) < 0)
		return -1;
	return image_keep(source, target, err);
}

/* The parent's row is not ready until the image is there: a parent that takes a checkpoint meanwhile may drop it, and then
 * this fails with the child as it was. */
static int move_point(struct husk *husk, const struct catalog_sandbox *child, const struct husk_checkpoint *taken,
		      const char *parent, struct catalog_point **out, struct husk_error *err)
{
	struct catalog_point row = { .sandbox = (char *)parent,
				     .label = child->id,
				     .created_ms = taken->created_ms,
				     .bytes = taken->bytes,
				     .effect = child->effect,
				     .origin = child->id };
	cleanup_point struct catalog_point *own = NULL;
	char word[24];

	snprintf(word, sizeof(word), "%lld", (long long)taken->number);
	if (catalog_point_get(husk->catalog, child->id, word, &own, err) < 0)
		return -1;
	row.origin_effect = own->effect;
	if (catalog_point_add(husk->catalog, &row, err) < 0)
		return -1;
	snprintf(word, sizeof(word), "%lld", (long long)row.number);
	if (rename_point(husk, child->id, taken->number, parent, row.number, err) == 0 &&
	    catalog_point_show(husk->catalog, parent, row.number, true, err) == 0 &&
	    catalog_point_get(husk->catalog, parent, word, out, err) == 0) {
		catalog_point_remove(husk->catalog, child->id, taken->number, NULL);
		return 0;
	}
	point_drop(husk, parent, row.number);
	return -1;
}

static void drop_checkpoint(struct husk_checkpoint **checkpoint)
{
	husk_checkpoint_free(*checkpoint);
}

static int hand_over(struct husk *husk, const struct catalog_sandbox *child, const char *parent,
		     struct catalog_point **out, struct husk_error *err)
{
	cleanup(drop_checkpoint) struct husk_checkpoint *taken = NULL;

	if (husk_checkpoint(husk, child->id, NULL, &taken, err) < 0)
		return -1;
	if (move_point(husk, child, taken, parent, out, err) == 0)
		return 0;
	point_drop(husk, child->id, taken->number);
	return husk_wrap(err, "sandbox %s runs on", child->id);
}

/* ---- the rest of the family ---- */

static void free_list(struct husk_sandbox ***list)
{
	husk_sandbox_list_free(*list);
}

/* Ends the other forks of the parent that live. */
static int end_siblings(struct husk *husk, const char *parent, char ***ended, struct husk_error *err)
{
	static const struct husk_filter live = { 0 };
	cleanup(free_list) struct husk_sandbox **list = NULL;

	if (husk_list(husk, &live, &list, err) < 0)
		return -1;
	for (size_t i = 0; list[i]; i++) {
		struct husk_error why = { 0 };
		if (!str_equal(list[i]->parent, parent))
			continue;
		if (husk_kill(husk, list[i]->id, &why) < 0 && why.code != HUSK_GONE && why.code != HUSK_NOT_FOUND)
			return husk_fail(err, why.code, "sandbox %s is promoted, but %s could not be ended: %s", parent,
					 list[i]->id, why.message);
		if (strv_add(ended, list[i]->id) < 0)
			return husk_fail_memory(err);
	}
	return 0;
}

/* ---- all of it ---- */

static int take_place(struct husk *husk, const struct catalog_sandbox *child, const struct catalog_sandbox *parent,
		      struct husk_promoted *out, struct husk_error *err)
{
	cleanup_point struct catalog_point *point = NULL;
	char word[24];

	if (hand_over(husk, child, parent->id, &point, err) < 0)
		return -1;
	out->checkpoint = point->number;
	snprintf(word, sizeof(word), "%lld", (long long)point->number);
	if (husk_kill(husk, child->id, err) < 0 || husk_rewind(husk, parent->id, word, false, NULL, err) < 0)
		return husk_wrap(err, "the state of %s is checkpoint %s of %s (husk rewind %s %s)", child->id, word,
				 parent->id, parent->id, word);
	out->sandbox = strdup(parent->id);
	return out->sandbox && strv_add(&out->ended, child->id) == 0 ? 0 : husk_fail_memory(err);
}

int husk_promote(struct husk *husk, const char *sandbox, bool keep, struct husk_promoted **out, struct husk_error *err)
{
	if (husk->remote)
		return remote_promote(husk->remote, sandbox, keep, out, err);
	cleanup_row struct catalog_sandbox *child = NULL, *parent = NULL;
	cleanup_promoted struct husk_promoted *promoted = calloc(1, sizeof(*promoted));

	if (!promoted)
		return husk_fail_memory(err);
	if (catalog_sandbox_get(husk->catalog, sandbox, &child, err) < 0 ||
	    find_parent(husk, child, &parent, err) < 0 || check_pair(child, parent, err) < 0 ||
	    take_place(husk, child, parent, promoted, err) < 0)
		return -1;
	if (!keep && end_siblings(husk, parent->id, &promoted->ended, err) < 0)
		return -1;
	struct husk_error why = { 0 };
	if (husk_effects_send(husk, parent->id, NULL, 0, &promoted->effects, &why) < 0)
		return husk_fail(err, why.code,
				 "sandbox %s is promoted, but what it holds could not be sent: %s (husk "
				 "effects %s send)",
				 parent->id, why.message, parent->id);
	if (out)
		*out = steal_pointer(promoted);
	return 0;
}
