/*
 * Imports: a tar of a portable machine becomes a snapshot or a template. The author of the tar is not trusted, so the
 * order is:
 *
 *     describe   a cell finds the description, its key and its signature
 *     verify     here: is the key trusted, and is the signature right? Before that, nothing of the tar is parsed here.
 *                Afterwards: does the description make sense?
 *     compare    what the machine needs, with this host
 *     unpack     a cell checks each chunk, decompresses it and writes the files, into the directory of a workshop
 *     keep       the files become root's; the version of the template and the image appear by rename; the row gets ready
 *
 * A kill at any moment leaves only things that gc removes: a workshop, a version without a name, a snapshot that is not
 * ready.
 */
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/utsname.h>

#include "engine/engine.h"
#include "instance/bake.h"
#include "instance/egress_policy.h"
#include "instance/limits.h"
#include "instance/portable.h"
#include "instance/snapshots.h"
#include "instance/spawn.h"
#include "instance/versions.h"
#include "instance/view.h"
#include "instance/workshop.h"
#include "jail/cgroup.h"
#include "store/builder.h"
#include "store/sealed.h"

#define MEMORY_MAX (1ull << 30)
#define PROCESSES_MAX 64
#define PIECE (256u << 10)
#define BUILD_ID_LENGTH 8
#define VERSION_SIZE (TEMPLATE_DIGEST_LENGTH + 1 + BUILD_ID_LENGTH + 1)

struct import {
	struct husk *husk;
	const struct husk_import_options *options;
	int fd;                   /* the tar */
	int held;                 /* the version that a pull left out, so that it stays; -1: none */
	char *program;            /* husk, for the cell */
	struct workshop workshop; /* tree/ in its directory is where the cell writes */
	char *tree;
	char digest[OCI_HEX_LENGTH + 1]; /* of the description */
	struct portable portable;
};

static void import_close(struct import *import)
{
	portable_free(&import->portable);
	workshop_close(import->husk, &import->workshop);
	fd_close(&import->fd);
	fd_close(&import->held);
	free(import->program);
	free(import->tree);
}

/* ---- the tar ---- */

/* Everything that a source gives, in a file without a name. */
static int spool(struct husk *husk, husk_source source, void *data, struct husk_error *err)
{
	cleanup_close int fd = open(husk->paths.home, O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
	cleanup_free char *piece = malloc(PIECE);
	ssize_t size;

	if (!piece)
		return husk_fail_memory(err);
	if (fd < 0)
		return husk_fail_errno(err, "cannot make a file in '%s'", husk->paths.home);
	while ((size = source(data, piece, PIECE)) > 0)
		if (write_full(fd, piece, (size_t)size) < 0)
			return husk_fail_errno(err, "cannot keep the portable machine");
	if (size < 0)
		return husk_fail(err, HUSK_GONE, "the portable machine broke off");
	return steal_fd(&fd);
}

static ssize_t read_source(void *data, void *bytes, size_t size)
{
	return read_full(*(int *)data, bytes, size);
}

static int open_tar(struct husk *husk, const struct husk_import_options *options, bool as_template, int *held,
		    struct husk_error *err)
{
	struct stat found;

	if ((options->path != NULL) + (options->source != NULL) + (options->reference != NULL) != 1)
		return husk_fail(err, HUSK_INVALID, "give one of a file, a source and a name in a registry");
	if (options->reference)
		return portable_download(husk, options, as_template, held, err);
	if (options->source)
		return spool(husk, options->source, options->source_data, err);
	cleanup_close int fd = open(options->path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &found) < 0)
		return husk_fail_errno(err, "cannot read '%s'", options->path);
	return S_ISREG(found.st_mode) ? steal_fd(&fd) : spool(husk, read_source, &fd, err);
}

/* The cell would call it damaged. */
static int check_open(int fd, struct husk_error *err)
{
	char head[32];
	ssize_t size = pread(fd, head, sizeof(head), 0);

	if (size < 0 || !sealed_is(head, (size_t)size))
		return 0;
	return husk_fail_field(err, "passphrase", "it is encrypted; give the passphrase (--passphrase-file FILE)");
}

/* ---- what a description may say ---- */

/* A signature says who made a machine, and not that it makes sense. In an image two names mean something on this host
 * alone: a disk of the image, which a removal removes, and that the image was flushed. */
static bool is_file(const char *name)
{
	static const char *const known[] = { "root/rootfs.img", "root/recipe.json", "files/root.tar" };

	for (size_t i = 0; i < ARRAY_SIZE(known); i++)
		if (str_equal(name, known[i]))
			return true;
	return str_starts(name, "image/") && !str_equal(name, "image/" ENGINE_IMAGE_OUTSIDE) &&
	       !str_equal(name, "image/" ENGINE_IMAGE_DURABLE);
}

static int check_sense(const struct portable *portable, struct husk_error *err)
{
	cleanup_policy struct policy *policy = NULL;
	size_t roots = 0;

	for (size_t i = 0; i < portable->file_count; i++)
		roots += str_starts(portable->files[i].name, "root/");
	for (size_t i = 0; i < portable->file_count; i++)
		if (!is_file(portable->files[i].name))
			return husk_fail(err, HUSK_INVALID,
					 "the portable machine has the file '%s', which no machine has",
					 portable->files[i].name);
	if (roots != 2)
		return husk_fail(err, HUSK_INVALID, "the portable machine is damaged: it has no root image");
	if (!template_name_valid(portable->template_name))
		return husk_fail(err, HUSK_INVALID, "the portable machine is damaged: its template has no valid name");
	if (limits_check_all(portable->cpu_milli, portable->memory_bytes, portable->disk_bytes, portable->pids, err) <
	    0)
		return husk_wrap(err, "the portable machine is damaged");
	if (portable->egress && policy_parse(portable->egress, &policy, err) < 0)
		return husk_wrap(err, "the egress policy of the portable machine");
	return 0;
}

/* ---- describe and verify ---- */

static int open_tree(struct import *import, struct husk_error *err)
{
	const struct cgroup_limits limits = { .memory_bytes = MEMORY_MAX, .pids = PROCESSES_MAX };
	uint32_t owner = slot_uid_base(0);

	if (workshop_open(import->husk, &import->workshop, err) < 0 ||
	    cgroup_set_limits(import->workshop.cgroup, &limits, err) < 0)
		return -1;
	import->tree = str_format("%s/tree", import->workshop.directory);
	if (!import->tree)
		return husk_fail_memory(err);
	if (dir_make(import->tree, 0700, err) < 0)
		return -1;
	return chown(import->tree, owner, owner) < 0 ? husk_fail_errno(err, "cannot hand '%s' over", import->tree) : 0;
}

static struct template_jail jail_of(const struct import *import)
{
	return (struct template_jail){ .program = import->program,
				       .uid_base = slot_uid_base(0),
				       .cgroup = import->workshop.cgroup };
}

/* Takes the answer of the cell apart: key, signature, description. */
static int verify(struct import *import, struct buf *answer, struct husk_error *err)
{
	char *end = answer->data + answer->size;
	char *key = answer->data, *signature = key ? memchr(key, '\n', answer->size) : NULL;
	char *text = signature ? memchr(signature + 1, '\n', (size_t)(end - signature - 1)) : NULL;

	if (!text)
		return husk_fail(err, HUSK_INVALID, "the portable machine is damaged");
	*signature++ = *text++ = '\0';
	size_t size = (size_t)(end - text);
	if (portable_digest(text, size, import->digest, err) < 0 || portable_trusted(import->husk, key, err) < 0 ||
	    portable_verify(key, signature, import->digest, err) < 0)
		return -1;
	return portable_parse(text, size, &import->portable, err) < 0 ? -1 : check_sense(&import->portable, err);
}

/* The description of a tar that a trusted key signed. */
static int import_open(struct import *import, struct husk *husk, const struct husk_import_options *options,
		       bool as_template, struct husk_error *err)
{
	cleanup_buf struct buf answer = { 0 };

	*import = (struct import){ .husk = husk, .options = options, .fd = -1, .held = -1, .workshop = { .lock = -1 } };
	if (husk_owner_only(husk, "importing a machine", err) < 0)
		return -1;
	import->fd = open_tar(husk, options, as_template, &import->held, err);
	import->program = import->fd < 0 || check_open(import->fd, err) < 0 ? NULL : husk_program(err);
	if (!import->program || open_tree(import, err) < 0)
		return -1;
	const struct template_jail jail = jail_of(import);
	if (step_describe(&jail, import->fd, import->tree, &answer, err) < 0)
		return -1;
	return verify(import, &answer, err);
}

/* ---- compare ---- */

static bool listed(char *const *list, const char *word)
{
	for (; list && *list; list++)
		if (str_equal(*list, word))
			return true;
	return false;
}

static int check_features(const struct portable *portable, struct husk_error *err)
{
	cleanup_strv char **have = NULL;
	cleanup_buf struct buf missing = { 0 };

	if (portable_features(&have, err) < 0)
		return -1;
	for (char **each = portable->features; each && *each; each++)
		if (!listed(have, *each) && missing.size < 200 && buf_printf(&missing, " %s", *each) < 0)
			return husk_fail_memory(err);
	if (!missing.size)
		return 0;
	return husk_fail(err, HUSK_UNAVAILABLE, "its processor has features that this host's has not:%s", missing.data);
}

static int check_engine(const struct import *import, struct husk_error *err)
{
	const struct portable *portable = &import->portable;
	const struct engine *engine = engine_find(portable->isolation);
	struct husk_error why = { 0 };
	struct utsname host;

	if (uname(&host) < 0 || !str_equal(host.machine, portable->architecture))
		return husk_fail(err, HUSK_UNAVAILABLE,
				 "it needs a processor of the architecture %.40s; this host's is %s",
				 portable->architecture, host.machine);
	if (!engine)
		return husk_fail(err, HUSK_UNAVAILABLE, "it needs the engine '%.40s', which this husk does not have",
				 portable->isolation);
	if (engine->probe(import->husk->paths.runtime, &why) < 0)
		return husk_fail(err, HUSK_UNAVAILABLE, "it needs the engine %s, which does not work here: %.300s",
				 engine->name, why.message);
	return 0;
}

static bool has_files(const struct portable *portable)
{
	for (size_t i = 0; i < portable->file_count; i++)
		if (str_equal(portable->files[i].name, "files/root.tar"))
			return true;
	return false;
}

/* This host cannot continue it; its files may be useful. */
static int fail_host(const struct import *import, const struct husk_error *why, struct husk_error *err)
{
	return husk_fail(err, HUSK_UNAVAILABLE, "this host cannot continue the snapshot: %s; %s", why->message,
			 has_files(&import->portable)
				 ? "--disk-only imports its files as a template"
				 : "exported with --files, its files could be taken as a template");
}

/* ---- unpack ---- */

/* What the cell wrote becomes root's. Nothing in the tree is taken that is not the expected regular file. */
static int own_file(const char *tree, const struct portable_file *file, struct husk_error *err)
{
	cleanup_free char *path = str_format("%s/%s", tree, file->name);
	cleanup_close int fd = path ? open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC) : -1;
	struct stat found;

	if (fd < 0 || fstat(fd, &found) < 0)
		return husk_fail_errno(err, "cannot open '%s' of the portable machine", file->name);
	if (!S_ISREG(found.st_mode) || found.st_nlink != 1 || (uint64_t)found.st_size != file->size)
		return husk_fail(err, HUSK_INVALID, "'%s' of the portable machine is not as described", file->name);
	return fchown(fd, 0, 0) < 0 || fchmod(fd, 0600) < 0
		       ? husk_fail_errno(err, "cannot own '%s' of the portable machine", file->name)
		       : 0;
}

/* A folder that the cell made, and not a link to one, with the described files and no others. */
static int own_folder(const struct import *import, const char *folder, struct husk_error *err)
{
	cleanup_free char *path = str_format("%s/%s", import->tree, folder);
	struct dirent **names = NULL;
	struct stat found;
	int count = 2; /* with . and .. */

	if (!path)
		return husk_fail_memory(err);
	if (lstat(path, &found) < 0 || !S_ISDIR(found.st_mode) || lchown(path, 0, 0) < 0)
		return husk_fail(err, HUSK_INVALID, "the portable machine has no folder '%s'", folder);
	for (size_t i = 0; i < import->portable.file_count; i++) {
		const struct portable_file *file = &import->portable.files[i];
		if (strncmp(file->name, folder, strlen(folder)) != 0)
			continue;
		if (own_file(import->tree, file, err) < 0)
			return -1;
		count++;
	}
	int have = scandir(path, &names, NULL, NULL);
	for (int i = 0; i < have; i++)
		free(names[i]);
	free(names);
	return have == count ? 0 : husk_fail(err, HUSK_INVALID, "the portable machine is not as described");
}

/* Before and after the files are unpacked. An import whose caller has gone is not kept. */
static int tell(const struct import *import, const char *folders, bool unpacked, struct husk_error *err)
{
	const struct husk_import_options *options = import->options;
	uint64_t all = 0;

	for (size_t i = 0; i < import->portable.file_count; i++) {
		const struct portable_file *file = &import->portable.files[i];
		cleanup_free char *folder = strndup(file->name, strcspn(file->name, "/"));
		all += folder && strstr(folders, folder) ? file->size : 0;
	}
	return options->progress && options->progress(options->data, unpacked ? all : 0, all)
		       ? husk_fail(err, HUSK_GONE, "interrupted")
		       : 0;
}

/* The files of these folders ("root image"), each as <tree>/<folder>/<name>. */
static int unpack(const struct import *import, const char *folders, struct husk_error *err)
{
	const struct template_jail jail = jail_of(import);

	if (tell(import, folders, false, err) < 0 ||
	    step_chunks(&jail, import->fd, import->digest, folders, import->tree, err) < 0)
		return -1;
	/* From here on no process of the cell is left, and its directory is closed to its uids. */
	if (chown(import->tree, 0, 0) < 0)
		return husk_fail_errno(err, "cannot own '%s'", import->tree);
	cleanup_free char *words = strdup(folders);
	char *rest = NULL;
	if (!words)
		return husk_fail_memory(err);
	for (char *folder = strtok_r(words, " ", &rest); folder; folder = strtok_r(NULL, " ", &rest))
		if (own_folder(import, folder, err) < 0)
			return -1;
	return tell(import, folders, true, err);
}

/* ---- the version of its template ---- */

static bool is_version(const char *digest)
{
	return digest && strlen(digest) == VERSION_SIZE - 1 &&
	       strspn(digest, "0123456789abcdef") == TEMPLATE_DIGEST_LENGTH && digest[TEMPLATE_DIGEST_LENGTH] == '-' &&
	       strspn(digest + TEMPLATE_DIGEST_LENGTH + 1, "abcdefghijklmnopqrstuvwxyz234567") == BUILD_ID_LENGTH;
}

/* The name of the version here: by the content of the root image, which was checked, and not by what the machine says about a
 * definition. Otherwise a snapshot could take the place of a template that is built later. The same root image gets
 * the same name again. */
static int version_name(const struct portable *portable, char out[static VERSION_SIZE], struct husk_error *err)
{
	static const char letters[] = "abcdefghijklmnopqrstuvwxyz234567";
	cleanup_buf struct buf content = { 0 };
	char digest[OCI_HEX_LENGTH + 1];

	for (size_t i = 0; i < portable->file_count; i++)
		for (size_t k = 0; str_starts(portable->files[i].name, "root/") && k < portable->files[i].count; k++)
			if (buf_printf(&content, "%s %s\n", portable->files[i].name,
				       portable->files[i].chunks[k].digest) < 0)
				return husk_fail_memory(err);
	if (!content.size)
		return husk_fail(err, HUSK_INVALID, "the portable machine has no root image");
	if (portable_digest(content.data, content.size, digest, err) < 0)
		return -1;
	snprintf(out, VERSION_SIZE, "%.*s-", TEMPLATE_DIGEST_LENGTH, digest);
	for (size_t i = 0; i < BUILD_ID_LENGTH; i++) {
		unsigned value = 0;
		sscanf(digest + TEMPLATE_DIGEST_LENGTH + 2 * i, "%2x", &value);
		out[TEMPLATE_DIGEST_LENGTH + 1 + i] = letters[value % 32];
	}
	out[VERSION_SIZE - 1] = '\0';
	return 0;
}

static struct catalog_template version_row(const struct portable *portable, char *digest, const char *name)
{
	return (struct catalog_template){
		.name = (char *)name,
		.description = portable->description,
		.isolation = portable->isolation,
		.digest = digest,
		.created_ms = time_wall_ms(),
		.disk_bytes = portable->disk_bytes ? portable->disk_bytes : 8ull << 30,
		.egress = portable->egress,
	};
}

const char *portable_folders(struct husk *husk, const struct portable *portable, bool as_template, int *held)
{
	char name[VERSION_SIZE];
	bool template = portable->kind == PORTABLE_TEMPLATE;

	if (as_template && !template)
		return "files";
	if (!template && version_name(portable, name, NULL) < 0)
		return "root image";
	const char *digest = template ? portable->template_digest : name;
	*held = is_version(digest) ? version_take(husk, digest) : -1;
	return template ? (*held < 0 ? "root" : "") : *held < 0 ? "root image" : "image";
}

/* ---- a snapshot ---- */

/* What the image had in other places of its host gets places here. */
static int keep_outside(const struct import *import, const char *partial, struct husk_error *err)
{
	const struct engine *engine = engine_find(import->portable.isolation);
	cleanup_free char *path = str_format("%s/%s", partial, strchr(PORTABLE_OUTSIDE, '/') + 1);
	cleanup_close int fd = path ? open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC) : -1;
	struct paths *paths = &import->husk->paths;
	char variant[256];

	if (fd < 0)
		return path && errno == ENOENT ? 0 : husk_fail_errno(err, "cannot read '%s'", PORTABLE_OUTSIDE);
	unlink(path);
	if (!engine->receive)
		return husk_fail(err, HUSK_INVALID, "the engine %s has no use for a part of it", engine->name);
	/* Also makes the place of disks, if this host can have one. */
	if (engine->variant)
		engine->variant(paths->home, paths->runtime, variant, sizeof(variant), NULL);
	return engine->receive(partial, fd, err);
}

/* The image at its place, complete and on disk. */
static int keep_image(struct import *import, const char *id, const char *version, struct husk_error *err)
{
	struct husk *husk = import->husk;
	cleanup_free char *from = str_format("%s/image", import->tree), *image = path_snapshot(&husk->paths, id);
	cleanup_free char *partial = image ? str_format(IMAGE_PARTIAL, image) : NULL;
	cleanup_free char *rootfs = path_rootfs(&husk->paths, version);
	struct husk_error why = { 0 };

	if (!from || !partial || !rootfs)
		return husk_fail_memory(err);
	if (rename(from, partial) < 0)
		return husk_fail_errno(err, "the portable machine has no image");
	if (keep_outside(import, partial, &why) < 0)
		return fail_host(import, &why, err);
	if (image_keep(partial, image, err) < 0)
		return -1;
	if (engine_image_check(import->portable.isolation, image, rootfs, import->portable.disk_bytes, &why) < 0)
		return fail_host(import, &why, err);
	return catalog_snapshot_finish(husk->catalog, id, dir_bytes(image), err);
}

/* With the row of the snapshot, which names the version and so keeps it. */
static int keep_all(struct import *import, const char *id, char *version, struct husk_error *err)
{
	struct husk *husk = import->husk;
	cleanup_free char *root = str_format("%s/root", import->tree);
	cleanup_close int held = version_take(husk, version);
	struct catalog_template row = version_row(&import->portable, version, import->portable.template_name);

	if (!root)
		return husk_fail_memory(err);
	if (unpack(import, held < 0 ? "root image" : "image", err) < 0)
		return -1;
	cleanup_close int lock = version_adopt(husk, &row, root, err);
	if (lock < 0)
		return -1;
	cleanup_free char *directory = path_template(&husk->paths, version);
	row.bytes = directory ? dir_bytes(directory) : 0;
	if (catalog_template_keep(husk->catalog, &row, err) < 0)
		return -1;
	return keep_image(import, id, version, err);
}

static int add_snapshot(struct import *import, const char *id, char *version, struct husk_error *err)
{
	const struct portable *portable = &import->portable;
	const char *name = import->options->name ? import->options->name : portable->name;
	const struct catalog_snapshot row = {
		.id = (char *)id,
		.name = (char *)name,
		.sandbox = "",
		.template_name = portable->template_name,
		.template_digest = version,
		.isolation = portable->isolation,
		.created_ms = time_wall_ms(),
		.memory_bytes = portable->memory_bytes,
		.disk_bytes = portable->disk_bytes,
		.cpu_milli = portable->cpu_milli,
		.pids = portable->pids,
		.environment = "{}",
		.metadata = "{}",
		.egress = portable->egress,
	};

	if (name && name_check("name", name, err) < 0)
		return -1;
	if (catalog_snapshot_add(import->husk->catalog, &row, err) < 0)
		return -1;
	int result = keep_all(import, id, version, err);
	if (result < 0) {
		snapshot_drop(import->husk, id);
		template_collect(import->husk, NULL, NULL, NULL);
	}
	return result;
}

static int import_snapshot(struct import *import, struct husk_snapshot **out, struct husk_error *err)
{
	char id[32], version[VERSION_SIZE];
	struct catalog_snapshot *row = NULL;
	struct husk_error why = { 0 };
	struct husk *husk = import->husk;

	if (import->portable.kind != PORTABLE_SNAPSHOT)
		return husk_fail(err, HUSK_INVALID, "it is a template, not a snapshot (husk template import)");
	if (check_engine(import, &why) < 0 || check_features(&import->portable, &why) < 0)
		return fail_host(import, &why, err);
	if (version_name(&import->portable, version, err) < 0)
		return -1;
	if (random_id("sn-", 10, id) < 0)
		return husk_fail_errno(err, "cannot make an id");
	int lock = supervisor_lock_new(husk, id, err);
	if (lock < 0)
		return -1;
	int result = add_snapshot(import, id, version, err);
	snapshot_settle(husk, id, &lock);
	if (result < 0 || !out)
		return result;
	if (catalog_snapshot_get(husk->catalog, id, &row, err) < 0)
		return -1;
	*out = snapshot_from_row(row);
	catalog_snapshot_free(row);
	return *out ? 0 : husk_fail_memory(err);
}

int husk_snapshot_import(struct husk *husk, const struct husk_import_options *options, struct husk_snapshot **out,
			 struct husk_error *err)
{
	if (options->passphrase) {
		struct portable_opening *opening = NULL;
		struct husk_import_options plain;
		if (portable_opening_begin(options, &plain, &opening, err) < 0)
			return -1;
		return portable_opening_end(opening, husk_snapshot_import(husk, &plain, out, err), err);
	}
	if (husk->remote)
		return remote_snapshot_import(husk->remote, options, out, err);
	cleanup(import_close) struct import import;

	return import_open(&import, husk, options, false, err) < 0 ? -1 : import_snapshot(&import, out, err);
}

/* ---- a template ---- */

/* The files of a snapshot as a template of their own. */
static int import_files(struct import *import, const char *name, struct husk_template **out, struct husk_error *err)
{
	cleanup_free char *tar = str_format("%s/files/root.tar", import->tree);
	const struct husk_build_options options = { .name = name, .tar = tar };

	if (!tar)
		return husk_fail_memory(err);
	if (!has_files(&import->portable))
		return husk_fail(
			err, HUSK_INVALID,
			"the snapshot was exported without its files; export it with --files to take them as a "
			"template");
	if (unpack(import, "files", err) < 0)
		return -1;
	return husk_template_build(import->husk, &options, out, NULL, err);
}

static int import_version(struct import *import, const char *name, struct husk_template **out, struct husk_error *err)
{
	struct husk *husk = import->husk;
	cleanup_free char *root = str_format("%s/root", import->tree);
	struct catalog_template row = version_row(&import->portable, import->portable.template_digest, name);
	struct catalog_template *current = NULL;

	if (!root)
		return husk_fail_memory(err);
	if (!is_version(row.digest))
		return husk_fail(err, HUSK_INVALID,
				 "the portable machine is damaged: its template has no valid version");
	if (check_engine(import, err) < 0)
		return husk_wrap(err, "this host cannot use the template");
	cleanup_close int held = version_take(husk, row.digest);
	if (held < 0 && unpack(import, "root", err) < 0)
		return -1;
	cleanup_close int lock = version_adopt(husk, &row, root, err);
	if (lock < 0)
		return -1;
	if (version_publish(husk, &row, err) < 0) {
		/* It must not be found by the next import of this version. */
		fd_close(&held);
		fd_close(&lock);
		version_sweep(husk, NULL, NULL);
		return -1;
	}
	if (!out)
		return 0;
	if (catalog_template_get(husk->catalog, name, &current, err) < 0)
		return -1;
	*out = template_from_row(current);
	catalog_template_free(current);
	return *out ? 0 : husk_fail_memory(err);
}

int husk_template_import(struct husk *husk, const struct husk_import_options *options, struct husk_template **out,
			 struct husk_error *err)
{
	if (options->passphrase) {
		struct portable_opening *opening = NULL;
		struct husk_import_options plain;
		if (portable_opening_begin(options, &plain, &opening, err) < 0)
			return -1;
		return portable_opening_end(opening, husk_template_import(husk, &plain, out, err), err);
	}
	if (husk->remote)
		return remote_template_import(husk->remote, options, out, err);
	cleanup(import_close) struct import import;

	if (import_open(&import, husk, options, true, err) < 0)
		return -1;
	const char *name = options->name ? options->name : import.portable.name;
	if (!name)
		return husk_fail_field(err, "name", "the machine has no name; give one (--name)");
	if (!template_name_valid(name))
		return husk_fail_field(err, "name", "'%.80s' cannot be the name of a template", name);
	return import.portable.kind == PORTABLE_TEMPLATE ? import_version(&import, name, out, err)
							 : import_files(&import, name, out, err);
}
