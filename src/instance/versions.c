/*
 * Template versions: builds them, points a template's name at one, and removes those that are no longer used. A version is
 * a directory
 *
 *     templates/<digest of the content>-<build>/      rootfs.img, recipe.json, baked/<disk bytes>/
 *
 * A version appears by rename once it is complete on disk, and its files never change. Sandboxes, snapshots, hibernated
 * images and the pool name the version that they use. So a new build of the template changes nothing for them. A version
 * that no name, sandbox or snapshot uses is removed, again by rename.
 */
#include "instance/versions.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "engine/engine.h"
#include "instance/bake.h"
#include "instance/egress_policy.h"
#include "instance/instance.h"
#include "instance/spawn.h"
#include "instance/view.h"
#include "instance/workshop.h"
#include "jail/cgroup.h"
#include "store/image_store.h"
#include "store/oci.h"
#include "store/template.h"

#define DEFAULT_DISK_BYTES (8ull << 30)
#define BUILD_LENGTH 8
#define BUILD_MEMORY (4ull << 30)
#define BUILD_PROCESSES 1024
#define VERSION_SIZE (TEMPLATE_DIGEST_LENGTH + 1 + BUILD_LENGTH + 1)

/* ---- what keeps a version ---- */

int version_lock(const char *directory, int mode)
{
	cleanup_close int fd = open(directory, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	struct stat held, named;

	if (fd < 0 || flock(fd, mode) < 0 || fstat(fd, &held) < 0)
		return -1;
	/* The version may have been collected during the wait. */
	if (stat(directory, &named) < 0 || named.st_ino != held.st_ino || named.st_dev != held.st_dev)
		return -1;
	return steal_fd(&fd);
}

static int hide(void *data, struct husk_error *err)
{
	char **names = data;

	return image_hide(names[0], &names[1], err);
}

/* 1: the version is removed; 0: it is in use. */
static int collect(struct husk *husk, const char *version, uint64_t *bytes, struct husk_error *err)
{
	cleanup_free char *directory = path_template(&husk->paths, version);
	char *names[] = { directory, NULL };

	if (!directory)
		return husk_fail_memory(err);
	cleanup_close int lock = version_lock(directory, LOCK_EX | LOCK_NB);
	if (lock < 0 && access(directory, F_OK) == 0)
		return 0;
	int result = catalog_template_forget(husk->catalog, version, hide, names, err);
	cleanup_free char *gone = names[1];
	if (gone && result > 0) {
		if (bytes)
			*bytes += dir_bytes(gone);
		result = engine_remove(gone, err) < 0 ? -1 : 1;
	} else if (gone) {
		/* The catalog refused the change: restore the version. */
		(void)!rename(gone, directory);
	}
	return result;
}

int template_collect(struct husk *husk, size_t *count, uint64_t *bytes, struct husk_error *err)
{
	struct catalog_template **unused = NULL;
	int result = 0;

	if (catalog_template_unused(husk->catalog, &unused, err) < 0)
		return -1;
	for (size_t i = 0; unused[i] && result >= 0; i++) {
		result = collect(husk, unused[i]->digest, bytes, err);
		if (result > 0 && count)
			++*count;
	}
	catalog_template_list_free(unused);
	return MIN(result, 0);
}

static bool is_named(struct husk *husk, const char *version)
{
	struct catalog_template **list = NULL;
	bool named = false;

	if (catalog_template_list(husk->catalog, true, &list, NULL) < 0)
		return true; /* unknown: leave it alone */
	for (size_t i = 0; list[i] && !named; i++)
		named = str_equal(list[i]->digest, version);
	catalog_template_list_free(list);
	return named;
}

int version_sweep(struct husk *husk, uint64_t *bytes, struct husk_error *err)
{
	cleanup_free char *directory = str_format("%s/templates", husk->paths.home);
	cleanup_dir DIR *dir = directory ? opendir(directory) : NULL;
	struct dirent *entry;

	while (dir && (entry = readdir(dir))) {
		if (entry->d_name[0] == '.' || is_named(husk, entry->d_name))
			continue;
		cleanup_free char *path = str_format("%s/%s", directory, entry->d_name);
		if (!path)
			return husk_fail_memory(err);
		/* A build holds its lock until its row exists. So check again with the lock. */
		cleanup_close int lock = version_lock(path, LOCK_EX | LOCK_NB);
		if (lock < 0 || is_named(husk, entry->d_name))
			continue;
		if (bytes)
			*bytes += dir_bytes(path);
		if ((image_is_gone(entry->d_name) ? engine_remove(path, err) : image_discard(path, err)) < 0)
			return -1;
	}
	return dir ? 0 : husk_fail_errno(err, "cannot read the templates");
}

/* ---- building a version ---- */

/* Of a root filesystem or an image. */
static int load_source(const struct husk_build_options *o, struct template_definition **out, struct husk_error *err)
{
	if (o->image ? template_from_image(o->image, o->reference, o->name, out, err) < 0
	    : o->tar ? template_from_tar(o->tar, o->name, out, err) < 0
		     : template_from_directory(o->directory, o->name, out, err) < 0)
		return -1;
	return o->warm && strv_add(&(*out)->warm, o->warm) < 0 ? husk_fail_memory(err) : 0;
}

static int load_definition(const struct husk_build_options *o, struct template_definition **out, struct husk_error *err)
{
	int given = (o->definition != NULL) + (o->tar != NULL) + (o->directory != NULL) + (o->image != NULL);

	if (given != 1)
		return husk_fail(err, HUSK_INVALID, "give one of a definition, a tar, a directory or an image");
	if (!o->definition)
		return load_source(o, out, err);
	if (template_load(o->definition, out, err) < 0)
		return -1;
	if (o->name && !template_name_valid(o->name))
		return husk_fail_field(err, "name", "template name '%.80s' is not valid", o->name);
	if (o->name) {
		char *name = strdup(o->name);
		if (!name)
			return husk_fail_memory(err);
		free((*out)->name);
		(*out)->name = name;
	}
	return 0;
}

static void tell(const struct husk_build_options *o, const char *line)
{
	if (o->progress)
		o->progress(o->data, line);
}

/* Makes a directory and a lock for a new version. If a sweep removes the directory in between, tries another one. */
static int begin_version(const char *directory, int *lock, struct husk_error *err)
{
	cleanup_free char *baked = str_format("%s/baked", directory);

	for (int tries = 0; baked && tries < 5; tries++) {
		if (dir_make(directory, 0700, err) < 0)
			return -1;
		*lock = version_lock(directory, LOCK_EX);
		if (*lock >= 0)
			return dir_make(baked, 0700, err);
	}
	return baked ? husk_fail_errno(err, "cannot lock '%s'", directory) : husk_fail_memory(err);
}

static int sync_path(const char *path, struct husk_error *err)
{
	cleanup_close int fd = open(path, O_RDONLY | O_CLOEXEC);

	return fd < 0 || fsync(fd) < 0 ? husk_fail_errno(err, "cannot flush '%s'", path) : 0;
}

/* From here on the directory is a version and survives a power failure. */
static int finish_version(const char *partial, const char *directory, struct husk_error *err)
{
	static const char *const parts[] = { "rootfs.img", "recipe.json", "baked", "." };
	cleanup_free char *parent = str_format("%s/..", directory);

	for (size_t i = 0; i < ARRAY_SIZE(parts); i++) {
		cleanup_free char *path = str_format("%s/%s", partial, parts[i]);
		if (!path || sync_path(path, err) < 0)
			return path ? -1 : husk_fail_memory(err);
	}
	if (renameat2(AT_FDCWD, partial, AT_FDCWD, directory, RENAME_NOREPLACE) < 0)
		return husk_fail_errno(err, "cannot keep the template '%s'", directory);
	return parent ? sync_path(parent, err) : husk_fail_memory(err);
}

/* The uids of bakes, which no sandbox has. */
static int build_rootfs(struct husk *husk, const struct husk_build_options *o,
			const struct template_definition *definition, const char *cache, const char *rootfs,
			struct husk_error *err)
{
	const struct cgroup_limits limits = { .memory_bytes = BUILD_MEMORY, .pids = BUILD_PROCESSES };
	cleanup_free char *program = husk_program(err);
	struct workshop workshop;

	if (!program)
		return -1;
	int result = workshop_open(husk, &workshop, err);
	if (result == 0)
		result = cgroup_set_limits(workshop.cgroup, &limits, err);
	if (result == 0) {
		const struct template_jail jail = { .program = program,
						    .uid_base = slot_uid_base(0),
						    .cgroup = workshop.cgroup };
		result = template_build_rootfs(definition, &jail, cache, rootfs, o->progress, o->data, err);
	}
	workshop_close(husk, &workshop);
	return result;
}

static int fill_version(struct husk *husk, const struct husk_build_options *o,
			const struct template_definition *definition, const struct catalog_template *version,
			const char *directory, struct husk_error *err)
{
	cleanup_free char *rootfs = str_format("%s/rootfs.img", directory);
	cleanup_free char *cache = template_cache_directory(husk->paths.home);

	if (!rootfs || !cache)
		return husk_fail_memory(err);
	if (build_rootfs(husk, o, definition, cache, rootfs, err) < 0 || bake_recipe(definition, directory, err) < 0)
		return -1;
	tell(o, "baking: booting it once, warming it, and taking the snapshot every create continues from");
	return bake_directory(husk, version->isolation, directory, version->disk_bytes, err);
}

/* Makes the version with the name version->digest. The lock keeps it until it has a row. */
static int make_version(struct husk *husk, const struct husk_build_options *o,
			const struct template_definition *definition, const struct catalog_template *version, int *lock,
			struct husk_error *err)
{
	cleanup_free char *directory = path_template(&husk->paths, version->digest);
	cleanup_free char *partial = str_format("%s.partial", directory ? directory : "");

	if (!directory || !partial)
		return husk_fail_memory(err);
	if (begin_version(partial, lock, err) < 0)
		return -1;
	if (fill_version(husk, o, definition, version, partial, err) == 0 &&
	    finish_version(partial, directory, err) == 0)
		return 0;
	image_discard(partial, NULL);
	return -1;
}

/* ---- existing versions ---- */

static bool is_of(const struct catalog_template *version, const char *content, const char *isolation)
{
	size_t length = strlen(content);

	return strncmp(version->digest, content, length) == 0 &&
	       (version->digest[length] == '-' || !version->digest[length]) && str_equal(version->isolation, isolation);
}

/* Returns its lock if everything that a bake needs is in it; otherwise -1. */
int version_take(struct husk *husk, const char *version)
{
	static const char *const parts[] = { "rootfs.img", "recipe.json", "baked" };
	cleanup_free char *directory = path_template(&husk->paths, version);
	cleanup_close int lock = directory ? version_lock(directory, LOCK_SH) : -1;

	for (size_t i = 0; lock >= 0 && i < ARRAY_SIZE(parts); i++)
		if (faccessat(lock, parts[i], F_OK, 0) < 0)
			return -1;
	return steal_fd(&lock);
}

/* Looks for an existing version with this content: 1 with its lock and version->digest set, or 0. */
static int find_version(struct husk *husk, const char *content, struct catalog_template *version,
			char id[static VERSION_SIZE], int *lock, struct husk_error *err)
{
	struct catalog_template **list = NULL;

	if (catalog_template_list(husk->catalog, true, &list, err) < 0)
		return -1;
	for (size_t i = 0; list[i] && *lock < 0; i++) {
		if (!is_of(list[i], content, version->isolation))
			continue;
		*lock = version_take(husk, list[i]->digest);
		snprintf(id, VERSION_SIZE, "%s", list[i]->digest);
	}
	catalog_template_list_free(list);
	return *lock >= 0;
}

/* Does the name already point at this version, with the same rules? */
static bool is_current(struct husk *husk, const struct catalog_template *version)
{
	struct catalog_template *row = NULL;

	if (catalog_template_get(husk->catalog, version->name, &row, NULL) < 0)
		return false;
	bool same = str_equal(row->digest, version->digest) && str_equal(row->isolation, version->isolation) &&
		    strcmp(row->egress ? row->egress : "", version->egress ? version->egress : "") == 0;
	catalog_template_free(row);
	return same;
}

/* ---- a whole build ---- */

/* The default policy for sandboxes of this template, checked; NULL with err->code 0 if the definition has none. */
static char *definition_egress(const struct template_definition *definition, struct husk_error *err)
{
	struct husk_egress egress = { .mode = definition->egress,
				      .allow = (const char *const *)definition->allow,
				      .allow_count = definition->allow ? strv_length(definition->allow) : 0 };
	cleanup_policy struct policy *policy = NULL;

	if (!definition->egress && !definition->allow)
		return NULL;
	if (egress_check(&egress, &policy, err) < 0) {
		husk_wrap(err, "template '%s'", definition->name);
		return NULL;
	}
	char *text = policy_text(policy);
	if (!text)
		husk_fail_memory(err);
	return text;
}

/* Finds or makes the version, baked for its own disk size. *fresh: something was made. */
static int provide_version(struct husk *husk, const struct husk_build_options *o,
			   const struct template_definition *definition, const char *content,
			   struct catalog_template *version, char id[static VERSION_SIZE], int *lock, bool *fresh,
			   struct husk_error *err)
{
	char prefix[TEMPLATE_DIGEST_LENGTH + 2];
	int found = o->force ? 0 : find_version(husk, content, version, id, lock, err);

	version->digest = id;
	*fresh = found == 0;
	if (found < 0)
		return -1;
	if (found) {
		cleanup_free char *directory = path_template(&husk->paths, id);
		cleanup_free char *baked = bake_path(husk, version->isolation, id, version->disk_bytes, NULL);
		*fresh = !baked || !engine_image_whole(baked);
		if (*fresh)
			tell(o, "baking it again: the image of an earlier build is damaged or missing");
		return !*fresh     ? 0
		       : directory ? bake_directory(husk, version->isolation, directory, version->disk_bytes, err)
				   : husk_fail_memory(err);
	}
	snprintf(prefix, sizeof(prefix), "%s-", content);
	if (random_id(prefix, BUILD_LENGTH, id) < 0)
		return husk_fail_errno(err, "cannot make an id");
	return make_version(husk, o, definition, version, lock, err);
}

/* Points the name at the version, and removes what only the last version needed. */
static int publish(struct husk *husk, struct catalog_template *version, struct husk_error *err)
{
	cleanup_free char *directory = path_template(&husk->paths, version->digest);
	cleanup_free char *detail =
		str_format("{\"template\":\"%s\",\"digest\":\"%s\"}", version->name, version->digest);
	struct husk_error why = { 0 };

	if (!directory || !detail)
		return husk_fail_memory(err);
	version->bytes = dir_bytes(directory);
	if (catalog_template_add(husk->catalog, version, err) < 0)
		return -1;
	catalog_event(husk->catalog, NULL, "template", detail, NULL);
	if (version_sweep(husk, NULL, &why) < 0 || template_collect(husk, NULL, NULL, &why) < 0)
		log_line(LOG_WARN, "cannot clear old versions of templates: %s", why.message);
	return 0;
}

/* ---- versions that were built elsewhere ---- */

static int move_parts(const char *from, const char *partial, struct husk_error *err)
{
	static const char *const parts[] = { "rootfs.img", "recipe.json" };

	for (size_t i = 0; i < ARRAY_SIZE(parts); i++) {
		cleanup_free char *old = str_format("%s/%s", from, parts[i]);
		cleanup_free char *new = str_format("%s/%s", partial, parts[i]);
		if (!old || !new)
			return husk_fail_memory(err);
		if (rename(old, new) < 0)
			return husk_fail_errno(err, "the portable machine has no %s", parts[i]);
	}
	return 0;
}

int version_adopt(struct husk *husk, const struct catalog_template *row, const char *from, struct husk_error *err)
{
	cleanup_free char *directory = path_template(&husk->paths, row->digest);
	cleanup_free char *partial = directory ? str_format("%s.partial", directory) : NULL;
	cleanup_close int lock = version_take(husk, row->digest);

	if (lock >= 0)
		return steal_fd(&lock);
	if (!partial)
		return husk_fail_memory(err);
	if (begin_version(partial, &lock, err) < 0)
		return -1;
	/* Another import of the same version may have ended during the wait for the lock. */
	cleanup_close int other = version_take(husk, row->digest);
	if (other >= 0) {
		image_discard(partial, NULL);
		return steal_fd(&other);
	}
	if (move_parts(from, partial, err) == 0 && finish_version(partial, directory, err) == 0)
		return steal_fd(&lock);
	image_discard(partial, NULL);
	return -1;
}

int version_publish(struct husk *husk, struct catalog_template *row, struct husk_error *err)
{
	cleanup_free char *directory = path_template(&husk->paths, row->digest);

	if (!directory)
		return husk_fail_memory(err);
	if (bake_directory(husk, row->isolation, directory, row->disk_bytes, err) < 0)
		return -1;
	return publish(husk, row, err);
}

/* ---- a build, from its options ---- */

static const struct engine *choose_engine(struct husk *husk, const char *isolation, struct husk_error *err)
{
	if (!isolation || strcmp(isolation, "auto") == 0)
		return engine_choose(husk->paths.runtime, err);
	const struct engine *engine = engine_find(isolation);
	if (!engine)
		husk_fail_field(err, "isolation", "isolation '%s' is not known", isolation);
	return engine;
}

/* Keeps the layers of pulled images while they are read. */
static int hold_images(const struct husk_build_options *o, int *held, struct husk_error *err)
{
	if (!o->image || !image_store_is(o->image))
		return 0;
	*held = image_store_lock(o->image, LOCK_SH, err);
	return *held < 0 ? -1 : 0;
}

int husk_template_build(struct husk *husk, const struct husk_build_options *options, struct husk_template **out,
			bool *fresh, struct husk_error *err)
{
	if (options->warm && !options->tar && !options->directory && !options->image)
		return husk_fail_field(err, "warm",
				       "a definition names its own command: write the line `warm: COMMAND` into it");
	if (husk->remote)
		return remote_template_build(husk->remote, options, out, fresh, err);
	cleanup_template struct template_definition *definition = NULL;
	char content[TEMPLATE_DIGEST_LENGTH + 1], id[VERSION_SIZE] = "";
	cleanup_close int lock = -1, images = -1;
	bool made = false;

	if (load_definition(options, &definition, err) < 0 || hold_images(options, &images, err) < 0)
		return -1;
	struct husk_error why = { 0 };
	cleanup_free char *egress = definition_egress(definition, &why);
	if (!egress && why.code != HUSK_OK)
		return husk_fail(err, why.code, "%s", why.message);
	const struct engine *engine = choose_engine(husk, options->isolation, err);
	if (!engine || template_digest(definition, engine->name, content, err) < 0)
		return -1;
	struct catalog_template version = {
		.name = definition->name,
		.description = definition->description,
		.isolation = (char *)engine->name,
		.created_ms = time_wall_ms(),
		.disk_bytes = definition->disk_bytes ? definition->disk_bytes : DEFAULT_DISK_BYTES,
		.current = true,
		.egress = egress,
	};
	if (provide_version(husk, options, definition, content, &version, id, &lock, &made, err) < 0)
		return husk_wrap(err, "cannot build template '%s'", definition->name);
	if (!is_current(husk, &version)) {
		made = true;
		if (publish(husk, &version, err) < 0)
			return -1;
	}
	if (fresh)
		*fresh = made;
	struct catalog_template *current = NULL;
	if (!out)
		return 0;
	if (catalog_template_get(husk->catalog, definition->name, &current, err) < 0)
		return -1;
	*out = template_from_row(current);
	catalog_template_free(current);
	return *out ? 0 : husk_fail_memory(err);
}

int husk_image_find(struct husk *husk, const char *name, char **path, char **reference, struct husk_error *err)
{
	if (husk->remote)
		return remote_refuse(husk->remote, "looking for container images", "do it on the server's host", err);
	cleanup_free char *folder = path_images(&husk->paths);

	*path = *reference = NULL;
	if (!folder)
		return husk_fail_memory(err);
	int found = oci_find(folder, name, path, reference, err);
	return found ? (found < 0 ? -1 : 0) : husk_fail(err, HUSK_NOT_FOUND, "no image '%.120s' in %s", name, folder);
}

int husk_template_remove(struct husk *husk, const char *name, struct husk_error *err)
{
	if (husk->remote)
		return remote_template_remove(husk->remote, name, err);
	if (catalog_template_remove(husk->catalog, name, err) < 0)
		return -1;
	return template_collect(husk, NULL, NULL, err);
}
