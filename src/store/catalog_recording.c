/*
 * The space of recordings, in the catalog. A recorder reserves its limit when it begins, and gives back what it did not
 * use when it ends. So quotas hold without counting during the recording. The reservation of a killed recorder is
 * corrected by the next process that finds it dead (client/desktop_files.c).
 */
#include "store/catalog_kit.h"

static int insert(struct catalog *catalog, const char *id, const char *sandbox, uint64_t bytes, uint64_t all_max,
		  struct husk_error *err)
{
	int64_t used = 0;

	if (quota_check_snapshots(catalog, bytes, err) < 0 ||
	    catalog_number(catalog, "SELECT coalesce(sum(bytes), 0) FROM recordings", NULL, &used, err) < 0)
		return -1;
	if ((uint64_t)used + bytes > all_max)
		return husk_fail(
			err, HUSK_LIMIT,
			"recordings of this instance take %lld of %llu bytes (HUSK_RECORDINGS), and this needs "
			"%llu more; remove some, or give a smaller max_bytes",
			(long long)used, (unsigned long long)all_max, (unsigned long long)bytes);
	return catalog_run(catalog, "INSERT INTO recordings (id, sandbox, bytes) VALUES (?1, ?2, ?3)",
			   ARGUMENTS(text(id), text(sandbox), number((int64_t)bytes)), err);
}

int catalog_recording_add(struct catalog *catalog, const char *id, const char *sandbox, uint64_t bytes,
			  uint64_t all_max, struct husk_error *err)
{
	if (catalog_begin(catalog, CATALOG_WRITE, err))
		return -1;
	int result = insert(catalog, id, sandbox, bytes, all_max, err);
	return catalog_finish(catalog, result, err) < 0 ? -1 : 0;
}

int catalog_recording_end(struct catalog *catalog, const char *id, uint64_t bytes, struct husk_error *err)
{
	if (catalog_begin(catalog, CATALOG_WRITE, err))
		return -1;
	int result = catalog_run(catalog, "UPDATE recordings SET bytes = ?2 WHERE id = ?1",
				 ARGUMENTS(text(id), number((int64_t)bytes)), err);
	return catalog_finish(catalog, result, err) < 0 ? -1 : 0;
}

int catalog_recording_remove(struct catalog *catalog, const char *id, struct husk_error *err)
{
	if (catalog_begin(catalog, CATALOG_WRITE, err))
		return -1;
	int result = catalog_run(catalog, "DELETE FROM recordings WHERE id = ?1", ARGUMENTS(text(id)), err);
	return catalog_finish(catalog, result, err) < 0 ? -1 : 0;
}
