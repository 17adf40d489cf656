/*
 * husk_commit: the files of a sandbox as a container image. The guest's agent packs its root as a tar, which becomes the
 * one layer of an image in the store. The bytes of the guest are hashed and compressed here, but not parsed: the layer
 * is unpacked later in a jail, like that of any image.
 */
#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <zstd.h>

#include "base/jansson.h"
#include "client/call.h"
#include "client/files.h"
#include "instance/images.h"
#include "store/image_store.h"
#include "store/template.h"

#define LEVEL 1
#define TAR_BYTES_MAX (UINT64_C(64) << 30)
#define SETTINGS_MAX (1u << 20)

struct packer {
	int fd;
	ZSTD_CCtx *zstd;
	EVP_MD_CTX *inner, *outer; /* of the tar, and of the blob */
	uint64_t taken, size;
	char out[256u << 10];
	struct husk_error why;
};

static void packer_free(struct packer **packer)
{
	if (!*packer)
		return;
	fd_close(&(*packer)->fd);
	ZSTD_freeCCtx((*packer)->zstd);
	EVP_MD_CTX_free((*packer)->inner);
	EVP_MD_CTX_free((*packer)->outer);
	free(*packer);
}

static int packer_new(int fd, struct packer **out, struct husk_error *err)
{
	struct packer *packer = *out = calloc(1, sizeof(*packer));

	if (!packer)
		return husk_fail_memory(err);
	packer->fd = fd;
	packer->zstd = ZSTD_createCCtx();
	packer->inner = EVP_MD_CTX_new();
	packer->outer = EVP_MD_CTX_new();
	if (!packer->zstd || !packer->inner || !packer->outer ||
	    ZSTD_isError(ZSTD_CCtx_setParameter(packer->zstd, ZSTD_c_compressionLevel, LEVEL)) ||
	    EVP_DigestInit_ex(packer->inner, EVP_sha256(), NULL) != 1 ||
	    EVP_DigestInit_ex(packer->outer, EVP_sha256(), NULL) != 1)
		return husk_fail_memory(err);
	return 0;
}

static int compress(struct packer *packer, const void *bytes, size_t size, ZSTD_EndDirective end)
{
	ZSTD_inBuffer in = { bytes, size, 0 };
	size_t left;

	do {
		ZSTD_outBuffer out = { packer->out, sizeof(packer->out), 0 };
		left = ZSTD_compressStream2(packer->zstd, &out, &in, end);
		if (ZSTD_isError(left) || EVP_DigestUpdate(packer->outer, packer->out, out.pos) != 1)
			return husk_fail(&packer->why, HUSK_INTERNAL, "cannot compress the files");
		if (write_full(packer->fd, packer->out, out.pos) < 0)
			return husk_fail_errno(&packer->why, "cannot write the layer");
		packer->size += out.pos;
	} while (in.pos < in.size || (end == ZSTD_e_end && left > 0));
	return 0;
}

static int take(void *data, const void *bytes, size_t size)
{
	struct packer *packer = data;

	packer->taken += size;
	if (packer->taken > TAR_BYTES_MAX)
		return husk_fail(&packer->why, HUSK_LIMIT, "the files of the sandbox have more than 64 GiB");
	if (EVP_DigestUpdate(packer->inner, bytes, size) != 1)
		return husk_fail_memory(&packer->why);
	return compress(packer, bytes, size, ZSTD_e_continue);
}

static int hex_of(EVP_MD_CTX *context, char out[static OCI_HEX_LENGTH + 1], struct husk_error *err)
{
	unsigned char bytes[EVP_MAX_MD_SIZE];
	unsigned size = 0;

	if (EVP_DigestFinal_ex(context, bytes, &size) != 1)
		return husk_fail_memory(err);
	for (unsigned i = 0; i < size && 2 * i < OCI_HEX_LENGTH; i++)
		snprintf(out + 2 * i, 3, "%02x", bytes[i]);
	return 0;
}

static int read_root(struct husk *husk, const char *sandbox, struct packer *packer, struct husk_error *err)
{
	int result = tar_read_flags(husk, sandbox, "/", TAR_OF_IMAGE, take, packer, err);

	if (packer->why.code)
		return husk_fail(err, packer->why.code, "%s", packer->why.message);
	if (result == 0 && compress(packer, NULL, 0, ZSTD_e_end) < 0)
		return husk_fail(err, packer->why.code, "%s", packer->why.message);
	return result;
}

/* The layer as a blob of the store. */
static int make_layer(struct husk *husk, const char *sandbox, const struct image_store *store, struct image_made *made,
		      char hex[static OCI_HEX_LENGTH + 1], char tar_hex[static OCI_HEX_LENGTH + 1],
		      struct husk_error *err)
{
	char id[40];
	cleanup(packer_free) struct packer *packer = NULL;

	if (random_id("commit-", 16, id) < 0)
		return husk_fail_errno(err, "no random numbers");
	cleanup_free char *partial = image_store_partial(store, id);
	int fd = partial ? open(partial, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0400) : -1;
	if (fd < 0)
		return husk_fail_errno(err, "cannot make a file in '%s'", store->path);
	int result = packer_new(fd, &packer, err);
	if (result == 0)
		result = read_root(husk, sandbox, packer, err);
	if (result == 0 && (hex_of(packer->outer, hex, err) < 0 || hex_of(packer->inner, tar_hex, err) < 0))
		result = -1;
	cleanup_free char *blob = result == 0 ? image_store_blob(store, hex) : NULL;
	if (result == 0 && (!blob || fsync(packer->fd) < 0 || rename(partial, blob) < 0))
		result = husk_fail_errno(err, "cannot keep the layer");
	if (result < 0) {
		unlink(partial);
		return -1;
	}
	*made = (struct image_made){ .layer = hex, .layer_tar = tar_hex, .layer_size = packer->size };
	return 0;
}

/* ---- what the image says ---- */

static int gather(void *data, const void *bytes, size_t size)
{
	struct buf *out = data;

	return out->size + size > SETTINGS_MAX || buf_append(out, bytes, size) < 0;
}

/* The lines KEY=value of the template come before those of the config, which win. */
static int add_environment(json_t *config, const char *text)
{
	json_t *list = json_object_get(config, "Env");
	cleanup_json json_t *all = json_array();
	size_t i;
	json_t *own;

	while (text && *text) {
		size_t size = strcspn(text, "\n"), name = strcspn(text, "=");
		bool known = name >= size;
		json_array_foreach(list, i, own)
		{
			const char *pair = json_string_value(own);
			known |= pair && strncmp(pair, text, name + 1) == 0;
		}
		if (!known)
			json_array_append_new(all, json_stringn(text, size));
		text += size + (text[size] == '\n');
	}
	json_array_extend(all, list);
	return json_array_size(all) ? json_object_set(config, "Env", all) : 0;
}

/* Every sandbox has the variables of its template in a file; those of an image are there too. */
static char *complete_config(struct husk *husk, const char *sandbox, const char *given, struct husk_error *err)
{
	cleanup_json json_t *config = given ? json_loads(given, 0, NULL) : json_object();
	cleanup_buf struct buf text = { 0 };

	if (!json_is_object(config)) {
		husk_fail_field(err, "config", "the config of the image is not a JSON object");
		return NULL;
	}
	/* A guest without the file, or with a strange one, has no variables. */
	husk_file_read(husk, sandbox, TEMPLATE_ENVIRONMENT, 0, 0, gather, &text, NULL);
	if (add_environment(config, text.data) < 0) {
		husk_fail_memory(err);
		return NULL;
	}
	char *out = json_dumps(config, JSON_COMPACT);
	if (!out)
		husk_fail_memory(err);
	return out;
}

/* The config of the image that the sandbox was made from; NULL: it was made from another kind of template. */
static char *config_of_sandbox(struct husk *husk, const char *sandbox)
{
	struct husk_sandbox *row = NULL;
	struct husk_image **list = NULL;
	char *config = NULL;

	if (husk_inspect(husk, sandbox, &row, NULL) < 0)
		return NULL;
	if (husk_image_list(husk, &list, NULL) == 0)
		for (size_t i = 0; list[i] && !config; i++)
			if (str_equal(list[i]->template_name, row->template_name) && list[i]->config)
				config = strdup(list[i]->config);
	husk_image_list_free(list);
	husk_sandbox_free(row);
	return config;
}

int husk_commit(struct husk *husk, const char *sandbox, const struct husk_commit_options *options,
		struct husk_image **out, struct husk_error *err)
{
	if (husk->remote)
		return remote_refuse(husk->remote, "making an image of a sandbox", "do it on the server's host", err);
	cleanup(image_store_close) struct image_store store = { 0 };
	cleanup_free char *folder = options->directory ? strdup(options->directory) : path_images(&husk->paths);
	char hex[OCI_HEX_LENGTH + 1], tar_hex[OCI_HEX_LENGTH + 1];
	struct image_made made = { 0 };
	struct husk_image *image = NULL;

	if (!options->directory && (husk_owner_only(husk, "making an image of a sandbox", err) < 0 ||
				    image_check_name(options->name, err) < 0))
		return -1;
	if (!folder || image_store_open(folder, &store, err) < 0)
		return folder ? -1 : husk_fail_memory(err);
	cleanup_free char *known = options->config ? NULL : config_of_sandbox(husk, sandbox);
	cleanup_free char *config = complete_config(husk, sandbox, options->config ? options->config : known, err);
	if (!config)
		return -1;
	cleanup_close int lock = image_store_lock(store.path, LOCK_SH, err);
	if (lock < 0 || make_layer(husk, sandbox, &store, &made, hex, tar_hex, err) < 0)
		return -1;
	made.config = config;
	made.key = options->key;
	if (image_add(husk, &store, options->name, &made, out ? out : &image, err) < 0)
		return -1;
	husk_image_free(image);
	return 0;
}

/* ---- export ---- */

static int copy_blob(const struct image_store *store, const char *hex, const char *folder, struct husk_error *err)
{
	cleanup_free char *from = image_store_blob(store, hex), *to = str_format("%s/blobs/sha256/%s", folder, hex);

	if (!from || !to)
		return husk_fail_memory(err);
	const char *argv[] = { "cp", "--reflink=auto", "--", from, to, NULL };
	const struct command command = { .argv = argv, COMMAND_INIT };
	return command_run(&command, err);
}

static int write_index(const struct husk_image *image, uint64_t size, const char *folder, struct husk_error *err)
{
	static const char version[] = "{\"imageLayoutVersion\":\"1.0.0\"}\n";
	cleanup_free char *mark = str_format("%s/oci-layout", folder), *path = str_format("%s/index.json", folder);
	const char *colon = strrchr(image->name, ':');
	cleanup_json json_t *index =
		json_pack("{s:i, s:[{s:s, s:s, s:I, s:{s:s, s:s}}]}", "schemaVersion", 2, "manifests", "mediaType",
			  "application/vnd.oci.image.manifest.v1+json", "digest", image->digest, "size",
			  (json_int_t)size, "annotations", "io.containerd.image.name", image->name,
			  "org.opencontainers.image.ref.name", colon && !strchr(colon, '/') ? colon + 1 : "latest");
	cleanup_free char *text = index ? json_dumps(index, JSON_INDENT(1)) : NULL;

	if (!mark || !path || !text)
		return husk_fail_memory(err);
	return file_write_atomic(mark, version, strlen(version), 0644, err) < 0
		       ? -1
		       : file_write_atomic(path, text, strlen(text), 0644, err);
}

static int export_to(const struct image_store *store, const struct husk_image *image, const char *folder,
		     struct husk_error *err)
{
	cleanup(oci_image_free) struct oci_image found = { 0 };
	const char *hex = strchr(image->digest, ':') + 1;
	cleanup_free char *manifest = image_store_blob(store, hex), *blobs = str_format("%s/blobs/sha256", folder);
	struct stat status;

	if (!manifest || !blobs)
		return husk_fail_memory(err);
	if (oci_load(store->path, image->name, image->name, &found, err) < 0 || dir_make(blobs, 0755, err) < 0)
		return -1;
	if (stat(manifest, &status) < 0)
		return husk_fail_errno(err, "cannot read '%s'", manifest);
	for (size_t i = 0; i < found.layer_count; i++)
		if (copy_blob(store, found.layers[i].digest, folder, err) < 0)
			return -1;
	if (copy_blob(store, found.config, folder, err) < 0 || copy_blob(store, hex, folder, err) < 0)
		return -1;
	return write_index(image, (uint64_t)status.st_size, folder, err);
}

int husk_image_export(struct husk *husk, const char *name, const char *directory, struct husk_error *err)
{
	if (husk->remote)
		return remote_refuse(husk->remote, "exporting an image", "do it on the server's host", err);
	cleanup(image_store_close) struct image_store store = { 0 };
	cleanup_free char *folder = path_images(&husk->paths);
	struct husk_image *image = NULL;

	if (!folder || image_store_open(folder, &store, err) < 0)
		return folder ? -1 : husk_fail_memory(err);
	if (mkdir(directory, 0755) < 0 && (errno != EEXIST || rmdir(directory) < 0 || mkdir(directory, 0755) < 0))
		return husk_fail_errno(err, "'%s' must be a new directory, or an empty one", directory);
	cleanup_close int lock = image_store_lock(store.path, LOCK_SH, err);
	int result = lock < 0 ? -1 : husk_image_inspect(husk, name, &image, err);
	if (result == 0)
		result = export_to(&store, image, directory, err);
	husk_image_free(image);
	if (result < 0)
		dir_remove(directory, NULL);
	return result;
}
