/*
 * The hash of everything that a template's image depends on. The hash names cached work, and tells a changed template from
 * an unchanged one. Called by the bake and by rootfs.c. The order of the input is fixed, and names, types and sizes are
 * hashed with the content, so equal digests mean equal input.
 */
#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <sys/utsname.h>

#include "store/image_store.h"
#include "store/rootfs.h"

/* Increased when the same input would give another result. */
#define STAGE1_FORMAT "1"
#define IMAGE_FORMAT "1"

struct digest {
	EVP_MD_CTX *context;
};

struct digest *digest_new(void)
{
	struct digest *digest = calloc(1, sizeof(*digest));

	if (!digest)
		return NULL;
	digest->context = EVP_MD_CTX_new();
	if (!digest->context || EVP_DigestInit_ex(digest->context, EVP_sha256(), NULL) != 1) {
		digest_free(digest);
		return NULL;
	}
	return digest;
}

void digest_free(struct digest *digest)
{
	if (!digest)
		return;
	EVP_MD_CTX_free(digest->context);
	free(digest);
}

static int digest_bytes(struct digest *digest, const void *data, size_t size)
{
	return EVP_DigestUpdate(digest->context, data, size) == 1 ? 0 : -1;
}

static int digest_framed(struct digest *digest, const char *text)
{
	uint64_t size = strlen(text);

	return digest_bytes(digest, &size, sizeof(size)) < 0 ? -1 : digest_bytes(digest, text, size);
}

int digest_text(struct digest *digest, const char *name, const char *value)
{
	return digest_framed(digest, name) < 0 ? -1 : digest_framed(digest, value);
}

int digest_finish(struct digest *digest, char out[static TEMPLATE_DIGEST_LENGTH + 1])
{
	unsigned char sum[EVP_MAX_MD_SIZE];
	unsigned size = 0;

	if (EVP_DigestFinal_ex(digest->context, sum, &size) != 1 || size * 2 < TEMPLATE_DIGEST_LENGTH)
		return -1;
	for (size_t i = 0; i < TEMPLATE_DIGEST_LENGTH / 2; i++)
		snprintf(out + 2 * i, 3, "%02x", sum[i]);
	return 0;
}

static int fail_hash(struct husk_error *err)
{
	return husk_fail(err, HUSK_INTERNAL, "cannot compute a sha256");
}

/* ---- files and trees ---- */

static int digest_content(struct digest *digest, int fd, const char *path, struct husk_error *err)
{
	static const size_t chunk = 1 << 20;
	cleanup_free char *data = malloc(chunk);
	uint64_t total = 0;
	ssize_t count;

	if (!data)
		return husk_fail_memory(err);
	while ((count = read_full(fd, data, chunk)) > 0) {
		total += (uint64_t)count;
		if (digest_bytes(digest, data, (size_t)count) < 0)
			return fail_hash(err);
	}
	if (count < 0)
		return husk_fail_errno(err, "cannot read '%s'", path);
	/* The size is hashed after the bytes, because a file may grow while it is read. */
	return digest_bytes(digest, &total, sizeof(total)) < 0 ? fail_hash(err) : 0;
}

int digest_file(struct digest *digest, const char *name, const char *path, struct husk_error *err)
{
	cleanup_close int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return husk_fail_errno(err, "cannot read '%s'", path);
	if (digest_framed(digest, name) < 0)
		return fail_hash(err);
	return digest_content(digest, fd, path, err);
}

static int digest_link(struct digest *digest, const char *path, struct husk_error *err)
{
	char target[4096];
	ssize_t size = readlink(path, target, sizeof(target) - 1);

	if (size < 0)
		return husk_fail_errno(err, "cannot read '%s'", path);
	target[size] = '\0';
	return digest_framed(digest, target) < 0 ? fail_hash(err) : 0;
}

static int digest_status(struct digest *digest, const char *name, const struct stat *status, bool owners)
{
	/* The umask decides the permission bits of a checkout, except the execute bit. */
	uint64_t mode = owners ? status->st_mode : (status->st_mode & (S_IFMT | S_IXUSR));
	uint64_t fields[] = { mode, owners ? status->st_uid : 0, owners ? status->st_gid : 0,
			      S_ISCHR(status->st_mode) || S_ISBLK(status->st_mode) ? status->st_rdev : 0 };

	return digest_framed(digest, name) < 0 ? -1 : digest_bytes(digest, fields, sizeof(fields));
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
	return strcmp((*a)->d_name, (*b)->d_name);
}

static int keep_entry(const struct dirent *entry)
{
	return !str_equal(entry->d_name, ".") && !str_equal(entry->d_name, "..");
}

static int digest_directory(struct digest *digest, const char *name, const char *path, bool owners,
			    struct husk_error *err)
{
	struct dirent **entries = NULL;
	int count = scandir(path, &entries, keep_entry, by_name);
	int result = 0;

	if (count < 0)
		return husk_fail_errno(err, "cannot read '%s'", path);
	for (int i = 0; i < count; i++) {
		cleanup_free char *child = str_format("%s/%s", path, entries[i]->d_name);
		cleanup_free char *inner = str_format("%s/%s", name, entries[i]->d_name);
		if (result == 0)
			result =
				child && inner ? digest_tree(digest, inner, child, owners, err) : husk_fail_memory(err);
		free(entries[i]);
	}
	free(entries);
	return result;
}

int digest_tree(struct digest *digest, const char *name, const char *path, bool owners, struct husk_error *err)
{
	struct stat status;

	if (lstat(path, &status) < 0)
		return husk_fail_errno(err, "cannot read '%s'", path);
	if (digest_status(digest, name, &status, owners) < 0)
		return fail_hash(err);
	if (S_ISDIR(status.st_mode))
		return digest_directory(digest, name, path, owners, err);
	if (S_ISLNK(status.st_mode))
		return digest_link(digest, path, err);
	if (S_ISREG(status.st_mode))
		return digest_file(digest, "", path, err);
	return 0;
}

/* ---- guest files ---- */

static int keep_guest(const struct dirent *entry)
{
	const char *name = entry->d_name;

	/* Sources, also those in folders, and leftovers of a build tree are not guest files. */
	return name[0] != '.' && entry->d_type != DT_DIR && !str_ends(name, ".c") && !str_ends(name, ".h") &&
	       !str_ends(name, ".o") && !str_ends(name, ".d") && !str_equal(name, "__pycache__");
}

struct guest_list {
	char **names, **paths;
};

static int guest_add(struct guest_list *list, const char *folder, struct husk_error *err)
{
	struct dirent **entries = NULL;
	int count = scandir(folder, &entries, keep_guest, by_name);
	bool failed = false;

	for (int i = 0; i < count; i++) {
		cleanup_free char *path = str_format("%s/%s", folder, entries[i]->d_name);
		bool known = false;
		for (char **name = list->names; name && *name; name++)
			known |= str_equal(*name, entries[i]->d_name);
		if (!path ||
		    (!known && (strv_add(&list->names, entries[i]->d_name) < 0 || strv_add(&list->paths, path) < 0)))
			failed = true;
		free(entries[i]);
	}
	free(entries);
	return failed ? husk_fail_memory(err) : 0;
}

int guest_files(int (*visit)(void *data, const char *name, const char *path, struct husk_error *err), void *data,
		struct husk_error *err)
{
	cleanup_strv char **places = template_places();
	cleanup_strv char **names = NULL, **paths = NULL;
	struct guest_list list = { NULL, NULL };
	bool complete = false;
	int result = 0;

	/* A build tree has programs in build/guest and other files in guest; an installation has all of them in one
	 * directory. Files in later places belong to another version. */
	for (char **place = places; place && *place && !complete && result == 0; place++) {
		cleanup_free char *folder = str_format("%s/guest", *place);
		cleanup_free char *kernel = str_format("%s/guest/kernel.py", *place);
		result = folder && kernel ? guest_add(&list, folder, err) : husk_fail_memory(err);
		complete = kernel && access(kernel, R_OK) == 0;
	}
	names = list.names;
	paths = list.paths;
	if (result < 0)
		return -1;
	if (!complete)
		return template_libfile_missing("guest/kernel.py", err);
	for (size_t i = 0; names && names[i]; i++)
		if (visit(data, names[i], paths[i], err) < 0)
			return -1;
	return 0;
}

static int visit_guest(void *data, const char *name, const char *path, struct husk_error *err)
{
	return digest_tree(data, name, path, false, err);
}

int digest_guest(struct digest *digest, struct husk_error *err)
{
	cleanup_free char *agent = template_libfile("husk-agent");

	if (!agent)
		return template_libfile_missing("husk-agent", err);
	if (digest_file(digest, "agent", agent, err) < 0)
		return -1;
	return guest_files(visit_guest, digest, err);
}

/* ---- templates ---- */

char *host_codename(struct husk_error *err)
{
	cleanup_free char *text = file_read("/etc/os-release", 1 << 16, NULL, err);
	char *line = text ? strstr(text, "\nVERSION_CODENAME=") : NULL;
	bool debian = text && (strstr(text, "\nID=debian\n") || str_starts(text, "ID=debian\n"));
	char *name;

	if (!debian || !line) {
		husk_fail(err, HUSK_UNAVAILABLE,
			  "template definitions are built on Debian, and /etc/os-release names another system; build "
			  "from "
			  "a rootfs tar or directory instead");
		return NULL;
	}
	name = line + strlen("\nVERSION_CODENAME=");
	name[strcspn(name, "\r\n")] = '\0';
	name = strdup(name);
	if (!name)
		husk_fail_memory(err);
	return name;
}

static int digest_list(struct digest *digest, const char *name, char **list, struct husk_error *err)
{
	for (; list && *list; list++)
		if (digest_text(digest, name, *list) < 0)
			return fail_hash(err);
	return 0;
}

/* The shipped parts of a definition, or a folder of each. */
static int digest_parts(struct digest *digest, const struct template_definition *definition, const char *folder,
			struct husk_error *err)
{
	for (char **part = definition->parts; part && *part; part++) {
		cleanup_free char *path = str_format("%s%s", *part, folder);
		if (!path)
			return husk_fail_memory(err);
		if (digest_tree(digest, "part", path, false, err) < 0)
			return -1;
	}
	return 0;
}

/* The fields of a definition that decide the result of stage 1; commands that start or warm up later do not. */
static int digest_recipe(struct digest *digest, const struct template_definition *definition, struct husk_error *err)
{
	cleanup_free char *files = str_format("%s/files", definition->source);

	if (!files)
		return husk_fail_memory(err);
	if (digest_list(digest, "package", definition->packages, err) < 0 ||
	    digest_list(digest, "exclude", definition->exclude, err) < 0 ||
	    digest_list(digest, "npm", definition->npm, err) < 0 ||
	    digest_list(digest, "pip", definition->pip, err) < 0 ||
	    digest_list(digest, "user", definition->users, err) < 0)
		return -1;
	for (char **script = definition->scripts; script && *script; script++) {
		cleanup_free char *path = str_format("%s/%s", definition->source, *script);
		if (!path)
			return husk_fail_memory(err);
		if (digest_file(digest, "script", path, err) < 0)
			return -1;
	}
	if (digest_parts(digest, definition, "/files", err) < 0)
		return -1;
	return access(files, F_OK) == 0 ? digest_tree(digest, "files", files, false, err) : 0;
}

int digest_stage1(const struct template_definition *definition, char out[static TEMPLATE_DIGEST_LENGTH + 1],
		  struct husk_error *err)
{
	cleanup_free char *codename = host_codename(err);
	cleanup_free char *hook = template_libfile("templates/customize.sh");
	cleanup_digest struct digest *digest = digest_new();
	struct utsname host;

	if (!codename)
		return -1;
	if (!hook)
		return template_libfile_missing("templates/customize.sh", err);
	if (!digest)
		return husk_fail_memory(err);
	if (uname(&host) < 0)
		return husk_fail_errno(err, "cannot tell the architecture of this host");
	if (digest_text(digest, "stage 1", STAGE1_FORMAT) < 0 || digest_text(digest, codename, host.machine) < 0)
		return fail_hash(err);
	if (digest_file(digest, "hook", hook, err) < 0 || digest_recipe(digest, definition, err) < 0)
		return -1;
	return digest_finish(digest, out) < 0 ? fail_hash(err) : 0;
}

/* For a pulled image: its config and layers identify all of its content. */
static int digest_pulled(const struct template_definition *definition, struct digest *digest, struct husk_error *err)
{
	cleanup(oci_image_free) struct oci_image image = { 0 };

	if (oci_load(definition->source, definition->source, definition->reference, &image, err) < 0)
		return -1;
	if (digest_text(digest, "config", image.config) < 0)
		return fail_hash(err);
	for (size_t i = 0; i < image.layer_count; i++)
		if (digest_text(digest, "layer", image.layers[i].digest) < 0)
			return fail_hash(err);
	return 0;
}

/* Hashes the layout as it is. Files that do not belong to the image also change the hash, which only costs another
 * build. */
static int digest_image(const struct template_definition *definition, struct digest *digest, struct husk_error *err)
{
	const char *reference = definition->reference ? definition->reference : "";

	if (image_store_is(definition->source))
		return digest_pulled(definition, digest, err);
	if (digest_text(digest, "reference", reference) < 0)
		return fail_hash(err);
	return digest_tree(digest, "image", definition->source, false, err);
}

static int digest_source(const struct template_definition *definition, struct digest *digest, struct husk_error *err)
{
	char stage1[TEMPLATE_DIGEST_LENGTH + 1];

	if (definition->kind == TEMPLATE_TAR)
		return digest_file(digest, "tar", definition->source, err);
	if (definition->kind == TEMPLATE_DIRECTORY)
		return digest_tree(digest, "directory", definition->source, true, err);
	if (definition->kind == TEMPLATE_IMAGE)
		return digest_image(definition, digest, err);
	if (digest_stage1(definition, stage1, err) < 0)
		return -1;
	if (digest_text(digest, "stage 1", stage1) < 0)
		return fail_hash(err);
	if (digest_parts(digest, definition, "", err) < 0)
		return -1;
	return digest_tree(digest, "definition", definition->source, false, err);
}

int template_digest(const struct template_definition *definition, const char *isolation,
		    char out[static TEMPLATE_DIGEST_LENGTH + 1], struct husk_error *err)
{
	cleanup_digest struct digest *digest = digest_new();

	if (!digest)
		return husk_fail_memory(err);
	if (digest_text(digest, "image", IMAGE_FORMAT) < 0 || digest_text(digest, "isolation", isolation) < 0)
		return fail_hash(err);
	if (digest_source(definition, digest, err) < 0 || digest_guest(digest, err) < 0)
		return -1;
	/* The file of a definition, which has these too, was hashed above. */
	if (definition->kind != TEMPLATE_DEFINITION && digest_list(digest, "warm", definition->warm, err) < 0)
		return -1;
	return digest_finish(digest, out) < 0 ? fail_hash(err) : 0;
}
