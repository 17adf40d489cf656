/*
 * Exports: the files of a snapshot or of a template's version, and its row, become a portable machine
 * (store/portable.h). Only what is listed here is exported: of the environment the names, of the policy the rules.
 * Secrets, tokens and certificates of the leash are never exported, because neither a snapshot's image nor its row has
 * them.
 */
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/utsname.h>

#include "base/jansson.h"
#include "engine/engine.h"
#include "engine/marker.h"
#include "instance/portable.h"
#include "instance/snapshots.h"
#include "instance/versions.h"

#define CPU_TEXT_MAX (4u << 20)

void portable_export_free(struct portable_export *export)
{
	portable_free(&export->portable);
	portable_pack_free(&export->pack);
	free(export->description);
	free(export->manifest);
	*export = (struct portable_export){ .pack = { .fd = -1 } };
}

/* ---- what it needs ---- */

/* Features that programs use or that change what is saved of a processor. Others (of the kernel, of virtualization, against
 * flaws) are no reason to refuse a host. */
static const char used_features[] = " 3dnowprefetch abm adx aes avx avx2 avx512_bf16 avx512_bitalg avx512_vbmi2 "
				    "avx512_vnni avx512_vpopcntdq avx512bw "
				    "avx512cd avx512dq avx512f avx512ifma avx512vbmi avx512vl bmi1 bmi2 clflushopt "
				    "clwb cx16 erms f16c fma fsgsbase fsrm "
				    "gfni lahf_lm movbe movdir64b movdiri pclmulqdq pku popcnt rdpid rdrand rdseed "
				    "rdtscp serialize sha_ni sse4_1 sse4_2 "
				    "sse4a ssse3 umip vaes vpclmulqdq xgetbv1 xsave xsavec xsaveopt xsaves ";

int portable_features(char ***out, struct husk_error *err)
{
	cleanup_free char *text = file_read("/proc/cpuinfo", CPU_TEXT_MAX, NULL, err);
	char *line = text ? strstr(text, "\nflags") : NULL, *rest = NULL;

	*out = calloc(1, sizeof(**out));
	if (!text || !*out)
		return text ? husk_fail_memory(err) : -1;
	if (!line) /* another architecture: nothing is compared */
		return 0;
	line = strchr(line, ':');
	if (line)
		line[strcspn(line, "\n")] = '\0';
	for (char *word = line ? strtok_r(line + 1, " ", &rest) : NULL; word; word = strtok_r(NULL, " ", &rest)) {
		cleanup_free char *whole = str_format(" %s ", word);
		if (!whole || (strstr(used_features, whole) && strv_add(out, word) < 0))
			return husk_fail_memory(err);
	}
	return 0;
}

static int describe_host(struct portable *out, struct husk_error *err)
{
	struct utsname host;

	if (uname(&host) < 0)
		return husk_fail_errno(err, "cannot look at this host");
	out->architecture = strdup(host.machine);
	return out->architecture ? portable_features(&out->features, err) : husk_fail_memory(err);
}

/* ---- which files ---- */

struct sources {
	struct portable_source list[PORTABLE_FILES_MAX];
	char *texts[2 * PORTABLE_FILES_MAX]; /* the names and paths in it */
	size_t count;
	int outside; /* -1: not open */
};

static void sources_free(struct sources *sources)
{
	for (size_t i = 0; i < ARRAY_SIZE(sources->texts); i++)
		free(sources->texts[i]);
	fd_close(&sources->outside);
}

/* Takes both texts. */
static int add_source(struct sources *sources, char *name, char *path, struct husk_error *err)
{
	size_t i = sources->count;

	if (i == PORTABLE_FILES_MAX || !name || !path) {
		free(name);
		free(path);
		return i == PORTABLE_FILES_MAX ? husk_fail(err, HUSK_LIMIT, "the machine has too many files")
					       : husk_fail_memory(err);
	}
	sources->texts[2 * i] = name;
	sources->texts[2 * i + 1] = path;
	sources->list[sources->count++] = (struct portable_source){ .name = name, .path = path, .fd = -1 };
	return 0;
}

static int add_root(struct sources *sources, const char *directory, struct husk_error *err)
{
	return add_source(sources, strdup("root/rootfs.img"), str_format("%s/rootfs.img", directory), err) < 0
		       ? -1
		       : add_source(sources, strdup("root/recipe.json"), str_format("%s/recipe.json", directory), err);
}

/* What the image has in other places, in a file without a name. The image's own name for it means nothing elsewhere. */
static int add_outside(struct husk *husk, struct sources *sources, const char *isolation, const char *image,
		       struct husk_error *err)
{
	const struct engine *engine = engine_find(isolation);

	if (!engine || !engine->send)
		return 0;
	sources->outside = open(husk->paths.home, O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
	if (sources->outside < 0)
		return husk_fail_errno(err, "cannot make a file in '%s'", husk->paths.home);
	int sent = engine->send(image, sources->outside, err);
	if (sent > 0)
		sources->list[sources->count++] =
			(struct portable_source){ .name = PORTABLE_OUTSIDE, .fd = sources->outside };
	return MIN(sent, 0);
}

/* Every file of the image but those that mean something on this host only. */
static int add_image(struct sources *sources, const char *image, struct husk_error *err)
{
	struct dirent **list = NULL;
	int count = scandir(image, &list, NULL, alphasort), result = 0;

	if (count < 0)
		return husk_fail_errno(err, "cannot read the image '%s'", image);
	for (int i = 0; i < count; i++) {
		const char *name = list[i]->d_name;
		if (result == 0 && name[0] != '.' && !str_equal(name, ENGINE_IMAGE_DURABLE) &&
		    !str_equal(name, ENGINE_IMAGE_OUTSIDE))
			result = add_source(sources, str_format("image/%s", name), str_format("%s/%s", image, name),
					    err);
		free(list[i]);
	}
	free(list);
	return result;
}

/* ---- the whole ---- */

static int seal(struct husk *husk, const struct sources *sources, const struct husk_export_options *options,
		struct portable_export *out, struct husk_error *err)
{
	char digest[OCI_HEX_LENGTH + 1], key[PORTABLE_KEY_SIZE], signature[PORTABLE_SIGNATURE_SIZE];

	if (portable_pack(sources->list, sources->count, husk->paths.home, options ? options->progress : NULL,
			  options ? options->data : NULL, &out->portable, &out->pack, err) < 0)
		return -1;
	out->description = portable_text(&out->portable);
	if (!out->description)
		return husk_fail_memory(err);
	size_t size = strlen(out->description);
	if (portable_digest(out->description, size, digest, err) < 0 || portable_key(husk->paths.home, key, err) < 0 ||
	    portable_sign(husk->paths.home, digest, signature, err) < 0)
		return -1;
	out->manifest = portable_manifest(&out->portable, digest, size, key, signature);
	if (!out->manifest)
		return husk_fail_memory(err);
	return MAX(size, strlen(out->manifest)) > PORTABLE_DOCUMENT_MAX
		       ? husk_fail(err, HUSK_LIMIT, "the machine is too large to be exported")
		       : 0;
}

/* The names of a JSON object. */
static int names_of(const char *text, char ***out, struct husk_error *err)
{
	cleanup_json json_t *object = text ? json_loads(text, 0, NULL) : NULL;
	const char *key;
	json_t *value;

	json_object_foreach(object, key, value) if (strv_add(out, key) < 0) return husk_fail_memory(err);
	return 0;
}

static int describe_snapshot(const struct catalog_snapshot *row, const char *image, struct portable *out,
			     struct husk_error *err)
{
	cleanup_json json_t *marker = marker_load(image, err);

	if (!marker)
		return -1;
	out->kind = PORTABLE_SNAPSHOT;
	out->name = row->name ? strdup(row->name) : NULL;
	out->isolation = strdup(row->isolation);
	out->engine_version = strdup(marker_text(marker, "version"));
	out->template_name = strdup(row->template_name);
	out->template_digest = strdup(row->template_digest);
	out->egress = row->egress ? strdup(row->egress) : NULL;
	out->created_ms = row->created_ms;
	out->memory_bytes = row->memory_bytes;
	out->disk_bytes = row->disk_bytes;
	out->cpu_milli = row->cpu_milli;
	out->pids = row->pids;
	if (!out->isolation || !out->engine_version || !out->template_name || !out->template_digest)
		return husk_fail_memory(err);
	return names_of(row->environment, &out->environment, err) < 0 ? -1 : describe_host(out, err);
}

static int check_snapshot(const struct catalog_snapshot *row, struct husk_error *err)
{
	if (!row->ready)
		return husk_fail(err, HUSK_CONFLICT, "snapshot %s is still being taken", row->id);
	if (row->volumes && !str_equal(row->volumes, "[]"))
		return husk_fail(err, HUSK_CONFLICT,
				 "snapshot %s has volumes, which do not travel; take one of a sandbox without volumes",
				 row->id);
	return 0;
}

int portable_export_snapshot(struct husk *husk, const char *snapshot, int files,
			     const struct husk_export_options *options, struct portable_export *out,
			     struct husk_error *err)
{
	struct catalog_snapshot *row = NULL;
	cleanup(sources_free) struct sources sources = { .outside = -1 };

	if (catalog_snapshot_get(husk->catalog, snapshot, &row, err) < 0)
		return -1;
	cleanup_free char *image = path_snapshot(&husk->paths, row->id);
	cleanup_free char *root = path_template(&husk->paths, row->template_digest);
	cleanup_close int lock = root ? version_lock(root, LOCK_SH) : -1;
	int result = image && root ? check_snapshot(row, err) : husk_fail_memory(err);
	if (result == 0 && lock < 0)
		result = husk_fail(err, HUSK_NOT_FOUND, "the root image of snapshot %s is missing", row->id);
	if (result == 0 &&
	    (describe_snapshot(row, image, &out->portable, err) < 0 || add_root(&sources, root, err) < 0 ||
	     add_outside(husk, &sources, row->isolation, image, err) < 0 || add_image(&sources, image, err) < 0))
		result = -1;
	if (result == 0 && files >= 0 && sources.count < PORTABLE_FILES_MAX)
		sources.list[sources.count++] = (struct portable_source){ .name = "files/root.tar", .fd = files };
	catalog_snapshot_free(row);
	return result < 0 ? -1 : seal(husk, &sources, options, out, err);
}

int portable_export_template(struct husk *husk, const char *name, const struct husk_export_options *options,
			     struct portable_export *out, struct husk_error *err)
{
	struct catalog_template *row = NULL;
	struct portable *portable = &out->portable;
	cleanup(sources_free) struct sources sources = { .outside = -1 };

	if (catalog_template_get(husk->catalog, name, &row, err) < 0)
		return -1;
	cleanup_free char *root = path_template(&husk->paths, row->digest);
	cleanup_close int lock = root ? version_lock(root, LOCK_SH) : -1;
	*portable = (struct portable){
		.kind = PORTABLE_TEMPLATE,
		.name = strdup(row->name),
		.isolation = strdup(row->isolation),
		.template_name = strdup(row->name),
		.template_digest = strdup(row->digest),
		.description = row->description ? strdup(row->description) : NULL,
		.egress = row->egress ? strdup(row->egress) : NULL,
		.created_ms = row->created_ms,
		.disk_bytes = row->disk_bytes,
	};
	catalog_template_free(row);
	if (!root || !portable->name || !portable->isolation || !portable->template_name || !portable->template_digest)
		return husk_fail_memory(err);
	if (lock < 0)
		return husk_fail(err, HUSK_NOT_FOUND, "the root image of template '%s' is missing; build it again",
				 name);
	if (describe_host(portable, err) < 0 || add_root(&sources, root, err) < 0)
		return -1;
	return seal(husk, &sources, options, out, err);
}
