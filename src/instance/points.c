/*
 * The images of checkpoints. Puts one into the place of its sandbox's image. Removes one, those that a killed
 * supervisor left half-written, or all of them with their sandbox. If the sandbox's own image is a link to a
 * checkpoint, the checkpoint must not be removed while the sandbox lives: the sandbox wakes from it.
 */
#include "instance/points.h"

#include "engine/engine.h"

int64_t point_of_image(const char *image)
{
	char target[64];
	long long number = 0;

	if (!image_is_lent(image, target, sizeof(target)) || sscanf(target, POINT_FROM_SANDBOX, &number) != 1)
		return 0;
	return number;
}

int point_lend(struct husk *husk, const struct catalog_sandbox *row, int64_t number, struct husk_error *err)
{
	cleanup_free char *point = path_point(&husk->paths, row->id, number);
	cleanup_free char *target = str_format(POINT_FROM_SANDBOX, (long long)number);
	cleanup_free char *image = path_image(&husk->paths, row->id);
	cleanup_free char *rootfs = path_rootfs(&husk->paths, row->template_digest);

	if (!point || !target || !image || !rootfs)
		return husk_fail_memory(err);
	struct husk_error why = { 0 };
	/* Never CONFLICT, whatever the engine reports: the failure does not pass with time. */
	if (engine_image_check(row->isolation, point, rootfs, row->disk_bytes, &why) < 0)
		return husk_fail(err, HUSK_UNAVAILABLE, "checkpoint %lld of %s cannot be continued: %s",
				 (long long)number, row->id, why.message);
	if (image_lend(target, image, err) < 0)
		return -1;
	/* point_remove hides the row before it looks for the link, so one of the two sees the other. */
	struct catalog_point *still = NULL;
	int result = catalog_point_get(husk->catalog, row->id, strrchr(target, '/') + 1, &still, err);
	catalog_point_free(still);
	(result < 0 ? image_lend_undo : image_lend_settle)(image);
	return result;
}

void point_drop(struct husk *husk, const char *sandbox, int64_t number)
{
	cleanup_free char *directory = path_point(&husk->paths, sandbox, number);
	cleanup_free char *partial = directory ? str_format(IMAGE_PARTIAL, directory) : NULL;

	if (partial)
		engine_remove(partial, NULL);
	catalog_point_remove(husk->catalog, sandbox, number, NULL);
	if (directory)
		image_discard(directory, NULL);
}

int point_remove(struct husk *husk, const char *sandbox, int64_t number, struct husk_error *err)
{
	cleanup_free char *image = path_image(&husk->paths, sandbox);

	if (!image)
		return husk_fail_memory(err);
	if (catalog_point_show(husk->catalog, sandbox, number, false, err) < 0)
		return -1;
	if (point_of_image(image) != number) {
		point_drop(husk, sandbox, number);
		return 0;
	}
	catalog_point_show(husk->catalog, sandbox, number, true, NULL);
	return husk_fail(err, HUSK_CONFLICT,
			 "sandbox %s is at checkpoint %lld and not awake yet; wake it first (husk wake %s)", sandbox,
			 (long long)number, sandbox);
}

void points_recover(struct husk *husk, const char *sandbox)
{
	cleanup_free char *directory = path_points(&husk->paths, sandbox);
	struct catalog_point **list = NULL;

	if (catalog_point_list(husk->catalog, sandbox, true, &list, NULL) < 0)
		return;
	for (size_t i = 0; list[i]; i++)
		point_drop(husk, sandbox, list[i]->number);
	catalog_point_list_free(list);
	if (directory)
		image_sweep(directory);
}

int images_discard(struct husk *husk, const char *sandbox, struct husk_error *err)
{
	cleanup_free char *image = path_image(&husk->paths, sandbox);
	cleanup_free char *partial = image ? str_format(IMAGE_PARTIAL, image) : NULL;
	cleanup_free char *points = path_points(&husk->paths, sandbox);

	if (!partial || !points)
		return husk_fail_memory(err);
	int result = image_discard(image, err);
	if (engine_remove(partial, result == 0 ? err : NULL) < 0)
		result = -1;
	if (image_discard(points, result == 0 ? err : NULL) < 0)
		result = -1;
	return result;
}
