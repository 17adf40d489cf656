/*
 * Images of registries: pulls them (src/registry/) into the image store, builds templates from them, lists and removes
 * them. The template of an image is named after the image and its digest. A tag that moves therefore gets another
 * template, and sandboxes of the old one do not change.
 */
#include "instance/images.h"

#include <ctype.h>
#include <openssl/evp.h>
#include <sys/file.h>

#include "base/jansson.h"
#include "instance/snapshots.h"
#include "registry/credentials.h"
#include "registry/pull.h"
#include "registry/registry.h"
#include "store/image_store.h"
#include "store/template.h"

#define DIGEST_SHOWN 12

/* ---- names ---- */

bool husk_image_is_name(const char *word)
{
	return reference_is_image(word);
}

static int parse(const char *name, struct reference *out, struct husk_error *err)
{
	return reference_parse(name, getenv("HUSK_REGISTRY"), out, err);
}

bool husk_image_allowed(const char *name, const char *registries)
{
	cleanup(reference_free) struct reference reference = { 0 };

	if (!registries || parse(name, &reference, NULL) < 0)
		return false;
	return reference_listed(registries, "*") || reference_listed(registries, reference.host);
}

/* "python-3.12-<12 digits of the digest>" */
static char *template_name(const struct reference *reference, const char *manifest)
{
	const char *slash = strrchr(reference->repository, '/');
	char *name =
		str_format("%.*s-%.*s%s%.*s", 28, slash ? slash + 1 : reference->repository, 20,
			   reference->tag ? reference->tag : "", reference->tag ? "-" : "", DIGEST_SHOWN, manifest);

	for (char *at = name; at && *at; at++)
		if (!isalnum((unsigned char)*at) && !strchr("-_.", *at))
			*at = '-';
	return name;
}

static int open_store(struct husk *husk, struct image_store *out, struct husk_error *err)
{
	cleanup_free char *folder = path_images(&husk->paths);

	return folder ? image_store_open(folder, out, err) : husk_fail_memory(err);
}

/* The store and what is in it, none of which is swept while the caller has the lock. */
static int open_locked(struct husk *husk, struct image_store *store, int *lock, struct image_list *list,
		       struct husk_error *err)
{
	if (open_store(husk, store, err) < 0)
		return -1;
	*lock = image_store_lock(store->path, LOCK_SH, err);
	return *lock < 0 ? -1 : image_store_list(store, list, err);
}

/* The entry of a name; NOT_FOUND suggests one that is near. */
static int find(const struct image_list *list, const char *name, struct image_entry **out, struct husk_error *err)
{
	cleanup(reference_free) struct reference reference = { 0 };
	cleanup_free const char **near = calloc(list->count + 1, sizeof(*near));

	if (!near)
		return husk_fail_memory(err);
	if (parse(name, &reference, err) < 0)
		return -1;
	cleanup_free char *whole = reference_name(&reference);
	for (size_t i = 0; whole && i < list->count; i++) {
		near[i] = list->entries[i].name;
		*out = &list->entries[i];
		if (str_equal(list->entries[i].name, whole))
			return 0;
	}
	const char *meant = whole ? str_nearest(whole, near, list->count) : NULL;
	return husk_fail(err, HUSK_NOT_FOUND, "image '%s' is not here%s%s%s (husk image ls, husk pull)",
			 whole ? whole : name, meant ? "; did you mean '" : "", meant ? meant : "", meant ? "'?" : "");
}

char *image_template(struct husk *husk, const char *name)
{
	cleanup(image_store_close) struct image_store store = { 0 };
	cleanup(image_list_free) struct image_list list = { 0 };
	struct image_entry *entry = NULL;

	if (!reference_is_image(name) || open_store(husk, &store, NULL) < 0 ||
	    image_store_list(&store, &list, NULL) < 0 || find(&list, name, &entry, NULL) < 0)
		return NULL;
	return strdup(entry->template);
}

int images_sweep(struct husk *husk, uint64_t *bytes, struct husk_error *err)
{
	cleanup(image_store_close) struct image_store store = { 0 };

	return open_store(husk, &store, err) < 0 ? -1 : image_store_sweep(&store, bytes, err);
}

/* ---- the view of an image in husk.h ---- */

void husk_image_free(struct husk_image *image)
{
	if (!image)
		return;
	free(image->name);
	free(image->digest);
	free(image->template_name);
	for (size_t i = 0; i < image->layer_count; i++)
		free(image->layers[i].digest);
	free(image->layers);
	strv_free(image->command);
	strv_free(image->environment);
	free(image->user);
	free(image->cwd);
	free(image->config);
	free(image);
}

void husk_image_list_free(struct husk_image **list)
{
	for (size_t i = 0; list && list[i]; i++)
		husk_image_free(list[i]);
	free(list);
}

static int show_layers(const struct oci_image *from, struct husk_image *image, struct husk_error *err)
{
	image->layers = calloc(from->layer_count + 1, sizeof(*image->layers));
	if (!image->layers)
		return husk_fail_memory(err);
	for (; image->layer_count < from->layer_count; image->layer_count++) {
		struct husk_image_layer *layer = &image->layers[image->layer_count];
		layer->digest = str_format("sha256:%s", from->layers[image->layer_count].digest);
		layer->bytes = from->layers[image->layer_count].size;
		if (!layer->digest)
			return husk_fail_memory(err);
		image->bytes += layer->bytes;
	}
	return 0;
}

/* Counts the sandboxes and snapshots that were made from the image. */
static int count_users(struct husk *husk, struct husk_image *image, struct husk_error *err)
{
	struct catalog_sandbox **sandboxes = NULL;
	struct catalog_snapshot **snapshots = NULL;
	unsigned mask = ~(1u << CATALOG_ENDED | 1u << CATALOG_POOL | 1u << CATALOG_PREPARING);

	if (catalog_sandbox_list(husk->catalog, mask, &sandboxes, err) < 0)
		return -1;
	for (size_t i = 0; sandboxes[i]; i++)
		image->sandboxes += str_equal(sandboxes[i]->template_name, image->template_name);
	catalog_sandbox_list_free(sandboxes);
	if (catalog_snapshot_list(husk->catalog, true, &snapshots, err) < 0)
		return -1;
	for (size_t i = 0; snapshots[i]; i++)
		image->snapshots +=
			str_equal(snapshots[i]->template_name, image->template_name) && !snapshot_is_step(snapshots[i]);
	catalog_snapshot_list_free(snapshots);
	return 0;
}

static bool is_built(struct husk *husk, const char *template)
{
	struct catalog_template *row = NULL;
	bool built = catalog_template_get(husk->catalog, template, &row, NULL) == 0;

	catalog_template_free(row);
	return built;
}

static int fill(struct husk *husk, const struct image_store *store, const struct image_entry *entry,
		struct husk_image *image, struct husk_error *err)
{
	cleanup(oci_image_free) struct oci_image from = { 0 };

	if (oci_load(store->path, entry->name, entry->name, &from, err) < 0 || show_layers(&from, image, err) < 0)
		return -1;
	image->name = strdup(entry->name);
	image->template_name = strdup(entry->template);
	image->digest = str_format("sha256:%s", entry->manifest);
	image->command = steal_pointer(from.command);
	image->environment = steal_pointer(from.environment);
	image->user = steal_pointer(from.user);
	image->cwd = steal_pointer(from.directory);
	image->config = steal_pointer(from.settings);
	image->pulled_ms = entry->pulled_ms;
	if (!image->name || !image->template_name || !image->digest)
		return husk_fail_memory(err);
	image->built = is_built(husk, entry->template);
	return count_users(husk, image, err);
}

static struct husk_image *show(struct husk *husk, const struct image_store *store, const struct image_entry *entry,
			       struct husk_error *err)
{
	struct husk_image *image = calloc(1, sizeof(*image));

	if (!image) {
		husk_fail_memory(err);
		return NULL;
	}
	if (fill(husk, store, entry, image, err) == 0)
		return image;
	husk_image_free(image);
	return NULL;
}

/* ---- logins ---- */

/* The host of a registry's name; caller frees. */
static char *registry_host(const char *registry, struct husk_error *err)
{
	const char *set = getenv("HUSK_REGISTRY");
	const char *given = registry ? registry : set && *set ? set : REFERENCE_REGISTRY;
	cleanup_free char *host = strndup(given, strcspn(given, "/")), *name = host ? str_format("%s/x", host) : NULL;
	cleanup(reference_free) struct reference reference = { 0 };

	if (!name)
		husk_fail_memory(err);
	if (!name || reference_parse(name, NULL, &reference, err) < 0)
		return NULL;
	if (str_equal(reference.host, host))
		return steal_pointer(host);
	husk_fail_field(err, "registry", "'%.120s' is not the host of a registry: ghcr.io, localhost:5000", given);
	return NULL;
}

int husk_login(const char *registry, const char *user, const char *secret, struct husk_error *err)
{
	cleanup_free char *host = registry_host(registry, err);
	const struct credentials given = { .user = (char *)user, .secret = (char *)secret };

	if (!host)
		return -1;
	if (!user || !*user || strchr(user, ':') || !secret || !*secret)
		return husk_fail_field(err, "user", "a login needs a user without ':', and a password");
	return registry_login(host, &given, err) < 0 ? -1 : credentials_store(host, &given, err);
}

int husk_logout(const char *registry, struct husk_error *err)
{
	cleanup_free char *host = registry_host(registry, err);

	return host ? credentials_erase(host, err) : -1;
}

/* ---- pull and build ---- */

/* Mirrors of a registry (HUSK_REGISTRY_MIRRORS, "docker.io=mirror.example[/PREFIX],…") are asked before it. A mirror
 * that cannot be reached or does not have the image is skipped. 1: pulled. */
static int pull_mirrored(const struct reference *reference, const struct image_store *store,
			 const struct pull_hooks *hooks, struct image_entry *entry, struct husk_error *err)
{
	const char *at = getenv("HUSK_REGISTRY_MIRRORS");

	for (size_t size; at && *(at += strspn(at, ", ")); at += size) {
		size = strcspn(at, ", ");
		cleanup_free char *rule = strndup(at, size);
		char *equals = rule ? strchr(rule, '=') : NULL;
		if (!equals || !equals[1])
			return husk_fail(err, HUSK_INVALID, "HUSK_REGISTRY_MIRRORS needs HOST=MIRROR, not '%.80s'",
					 rule ? rule : "");
		*equals = '\0';
		if (!str_equal(rule, reference->host))
			continue;
		cleanup(reference_free) struct reference there = { 0 };
		cleanup_free char *name =
			str_format("%s/%s%c%s", equals + 1, reference->repository, reference->tag ? ':' : '@',
				   reference->tag ? reference->tag : reference->digest);
		struct husk_error why = { 0 };
		if (!name || reference_parse(name, NULL, &there, err) < 0)
			return name ? -1 : husk_fail_memory(err);
		if (pull_image(&there, store, hooks, entry, &why) == 0) {
			free(entry->name);
			entry->name = reference_name(reference);
			return entry->name ? 1 : husk_fail_memory(err);
		}
		if (why.code != HUSK_NOT_FOUND && why.code != HUSK_UNAVAILABLE && why.code != HUSK_DENIED)
			return husk_fail(err, why.code, "%s", why.message);
	}
	return 0;
}

struct relay {
	const struct husk_pull_options *options;
};

static int relay_progress(void *data, const struct pull_progress *progress)
{
	const struct relay *relay = data;
	const struct husk_pull_progress shown = { progress->layers, progress->layers_done, progress->bytes,
						  progress->bytes_done };

	return relay->options->progress(relay->options->data, &shown);
}

int husk_image_pull(struct husk *husk, const struct husk_pull_options *options, struct husk_image **out,
		    struct husk_error *err)
{
	if (husk->remote)
		return remote_refuse(husk->remote, "pulling an image", "do it on the server's host", err);
	cleanup(reference_free) struct reference reference = { 0 };
	cleanup(image_store_close) struct image_store store = { 0 };
	cleanup(image_entry_free) struct image_entry entry = { 0 };
	struct relay relay = { options };
	const struct pull_hooks hooks = { options->progress ? relay_progress : NULL, &relay };

	if (husk_owner_only(husk, "pulling an image", err) < 0 || parse(options->name, &reference, err) < 0 ||
	    open_store(husk, &store, err) < 0)
		return -1;
	cleanup_close int lock = image_store_lock(store.path, LOCK_SH, err);
	int mirrored = lock < 0 ? -1 : pull_mirrored(&reference, &store, &hooks, &entry, err);
	if (mirrored < 0 || (!mirrored && pull_image(&reference, &store, &hooks, &entry, err) < 0))
		return -1;
	entry.template = template_name(&reference, entry.manifest);
	if (!entry.template)
		return husk_fail_memory(err);
	if (image_store_put(&store, &entry, err) < 0)
		return -1;
	if (!out)
		return 0;
	*out = show(husk, &store, &entry, err);
	return *out ? 0 : -1;
}

/* With the image: its template is made anew after an upgrade, and by a build that begins with it. */
static int keep_warm(const struct image_store *store, struct image_entry *entry, const char *warm,
		     struct husk_error *err)
{
	if (!warm || str_equal(entry->warm, warm))
		return 0;
	char *copy = strdup(warm);
	if (!copy)
		return husk_fail_memory(err);
	free(entry->warm);
	entry->warm = copy;
	return image_store_put(store, entry, err);
}

int husk_image_build(struct husk *husk, const char *name, const struct husk_build_options *options,
		     struct husk_template **out, bool *fresh, struct husk_error *err)
{
	if (husk->remote)
		return remote_refuse(husk->remote, "building an image", "do it on the server's host", err);
	cleanup(image_store_close) struct image_store store = { 0 };
	cleanup(image_list_free) struct image_list list = { 0 };
	cleanup_close int lock = -1;
	struct image_entry *entry = NULL;

	if (open_locked(husk, &store, &lock, &list, err) < 0 || find(&list, name, &entry, err) < 0)
		return -1;
	struct husk_build_options all = options ? *options : (struct husk_build_options){ 0 };
	all.warm = all.warm ? all.warm : entry->warm;
	all.name = entry->template;
	all.image = store.path;
	all.reference = entry->name;
	if (husk_template_build(husk, &all, out, fresh, err) < 0)
		return -1;
	return keep_warm(&store, entry, all.warm, err);
}

/* ---- images that are made here ---- */

int image_check_name(const char *name, struct husk_error *err)
{
	cleanup(reference_free) struct reference reference = { 0 };

	if (parse(name, &reference, err) < 0)
		return -1;
	if (strchr(name, '@'))
		return husk_fail_field(err, "name", "'%.120s' names a digest; an image that is made here gets a tag",
				       name);
	if (reference_is_image(name))
		return 0;
	if (!template_name_valid(name))
		return husk_fail_field(err, "name", "'%.80s' cannot be the name of a template", name);
	cleanup_free char *bundled = template_find(name, NULL);
	return bundled || str_equal(name, IMAGE_SCRATCH)
		       ? husk_fail_field(err, "name", "'%.80s' is a bundled template; choose another name", name)
		       : 0;
}

/* Writes a document as a blob; `hex` is its digest. */
static int write_blob(const struct image_store *store, json_t *document, char hex[static OCI_HEX_LENGTH + 1],
		      uint64_t *size, struct husk_error *err)
{
	cleanup_free char *text = document ? json_dumps(document, JSON_COMPACT) : NULL;
	unsigned char bytes[EVP_MAX_MD_SIZE];
	unsigned length = 0;

	if (!text || EVP_Digest(text, strlen(text), bytes, &length, EVP_sha256(), NULL) != 1)
		return husk_fail_memory(err);
	for (unsigned i = 0; i < length && 2 * i < OCI_HEX_LENGTH; i++)
		snprintf(hex + 2 * i, 3, "%02x", bytes[i]);
	*size = strlen(text);
	return image_store_write(store, hex, text, strlen(text), err);
}

/* Config and manifest of an image with one layer. */
static int write_documents(const struct image_store *store, const struct image_made *made, struct image_entry *entry,
			   struct husk_error *err)
{
	char hex[OCI_HEX_LENGTH + 1], when[25];
	uint64_t size = 0;

	time_format(entry->pulled_ms, when);
	cleanup_json json_t *settings = json_loads(made->config ? made->config : "{}", 0, NULL);
	if (!json_is_object(settings))
		return husk_fail_field(err, "config", "the config of the image is not a JSON object");
	cleanup_json json_t *config =
		json_pack("{s:s, s:s, s:s, s:O, s:{s:s, s:[o]}, s:[{s:s, s:s}]}", "architecture", "amd64", "os",
			  "linux", "created", when, "config", settings, "rootfs", "type", "layers", "diff_ids",
			  json_sprintf("sha256:%s", made->layer_tar), "history", "created", when, "created_by", "husk");
	if (write_blob(store, config, hex, &size, err) < 0)
		return -1;
	cleanup_json json_t *manifest =
		json_pack("{s:i, s:s, s:{s:s, s:o, s:I}, s:[{s:s, s:o, s:I}]}", "schemaVersion", 2, "mediaType",
			  "application/vnd.oci.image.manifest.v1+json", "config", "mediaType",
			  "application/vnd.oci.image.config.v1+json", "digest", json_sprintf("sha256:%s", hex), "size",
			  (json_int_t)size, "layers", "mediaType", "application/vnd.oci.image.layer.v1.tar+zstd",
			  "digest", json_sprintf("sha256:%s", made->layer), "size", (json_int_t)made->layer_size);
	return write_blob(store, manifest, entry->manifest, &entry->size, err);
}

/* Puts the entry under the name, and returns the image. The template of a plain name has that name. */
static int put_named(struct husk *husk, const struct image_store *store, const char *name, struct image_entry *entry,
		     struct husk_image **out, struct husk_error *err)
{
	cleanup(reference_free) struct reference reference = { 0 };

	if (parse(name, &reference, err) < 0)
		return -1;
	entry->name = reference_name(&reference);
	entry->template = reference_is_image(name) ? template_name(&reference, entry->manifest) : strdup(name);
	if (!entry->name || !entry->template)
		return husk_fail_memory(err);
	if (image_store_put(store, entry, err) < 0)
		return -1;
	*out = show(husk, store, entry, err);
	return *out ? 0 : -1;
}

int image_add(struct husk *husk, const struct image_store *store, const char *name, const struct image_made *made,
	      struct husk_image **out, struct husk_error *err)
{
	cleanup(image_entry_free) struct image_entry entry = { .pulled_ms = time_wall_ms() };

	entry.key = made->key ? strdup(made->key) : NULL;
	if (made->key && !entry.key)
		return husk_fail_memory(err);
	if (write_documents(store, made, &entry, err) < 0)
		return -1;
	return put_named(husk, store, name, &entry, out, err);
}

int image_find_key(struct husk *husk, const char *name, const char *key, struct husk_image **out,
		   struct husk_error *err)
{
	cleanup(image_store_close) struct image_store store = { 0 };
	cleanup(image_list_free) struct image_list list = { 0 };
	cleanup_close int lock = -1;

	if (open_locked(husk, &store, &lock, &list, err) < 0)
		return -1;
	for (size_t i = 0; i < list.count; i++) {
		if (!str_equal(list.entries[i].key, key))
			continue;
		cleanup(image_entry_free) struct image_entry entry = { .size = list.entries[i].size,
								       .pulled_ms = list.entries[i].pulled_ms,
								       .key = strdup(key) };
		memcpy(entry.manifest, list.entries[i].manifest, sizeof(entry.manifest));
		return put_named(husk, &store, name, &entry, out, err) < 0 ? -1 : 1;
	}
	return 0;
}

/* ---- list, remove ---- */

int husk_image_list(struct husk *husk, struct husk_image ***out, struct husk_error *err)
{
	if (husk->remote)
		return remote_refuse(husk->remote, "listing images", "do it on the server's host", err);
	cleanup(image_store_close) struct image_store store = { 0 };
	cleanup(image_list_free) struct image_list list = { 0 };
	cleanup_close int lock = -1;

	if (open_locked(husk, &store, &lock, &list, err) < 0)
		return -1;
	struct husk_image **shown = calloc(list.count + 1, sizeof(*shown));
	if (!shown)
		return husk_fail_memory(err);
	for (size_t i = 0; i < list.count; i++) {
		shown[i] = show(husk, &store, &list.entries[i], err);
		if (!shown[i]) {
			husk_image_list_free(shown);
			return -1;
		}
	}
	*out = shown;
	return 0;
}

int husk_image_inspect(struct husk *husk, const char *name, struct husk_image **out, struct husk_error *err)
{
	if (husk->remote)
		return remote_refuse(husk->remote, "looking at images", "do it on the server's host", err);
	cleanup(image_store_close) struct image_store store = { 0 };
	cleanup(image_list_free) struct image_list list = { 0 };
	cleanup_close int lock = -1;
	struct image_entry *entry = NULL;

	if (open_locked(husk, &store, &lock, &list, err) < 0 || find(&list, name, &entry, err) < 0)
		return -1;
	*out = show(husk, &store, entry, err);
	return *out ? 0 : -1;
}

/* Removes the name, and the template if no other name uses it. Incomplete images can also be removed, by name. */
static int forget(struct husk *husk, const struct image_store *store, const struct image_list *list,
		  const struct image_entry *entry, struct husk_error *err)
{
	struct husk_image users = { .name = entry->name, .template_name = entry->template };
	bool shared = false;

	for (size_t i = 0; i < list->count; i++)
		shared |= &list->entries[i] != entry && str_equal(list->entries[i].template, entry->template);
	if (!shared && count_users(husk, &users, err) < 0)
		return -1;
	if (users.sandboxes || users.snapshots)
		return husk_fail(err, HUSK_CONFLICT,
				 "image '%s' is in use: %zu sandboxes and %zu snapshots were made from it; remove them "
				 "first (husk ls, husk snapshot ls)",
				 entry->name, users.sandboxes, users.snapshots);
	if (image_store_drop(store, entry->name, err) < 0)
		return -1;
	if (!shared && is_built(husk, entry->template))
		return husk_template_remove(husk, entry->template, err);
	return 0;
}

int husk_image_remove(struct husk *husk, const char *name, struct husk_error *err)
{
	if (husk->remote)
		return remote_refuse(husk->remote, "removing images", "do it on the server's host", err);
	cleanup(image_store_close) struct image_store store = { 0 };
	cleanup(image_list_free) struct image_list list = { 0 };
	struct image_entry *entry = NULL;

	if (husk_owner_only(husk, "removing an image", err) < 0 || open_store(husk, &store, err) < 0 ||
	    image_store_list(&store, &list, err) < 0 || find(&list, name, &entry, err) < 0 ||
	    forget(husk, &store, &list, entry, err) < 0)
		return -1;
	return image_store_sweep(&store, NULL, err);
}

int husk_image_prune(struct husk *husk, size_t *count, uint64_t *bytes, struct husk_error *err)
{
	if (husk->remote)
		return remote_refuse(husk->remote, "removing images", "do it on the server's host", err);
	cleanup(image_store_close) struct image_store store = { 0 };
	cleanup(image_list_free) struct image_list list = { 0 };
	struct husk_error why = { 0 };

	*count = 0;
	*bytes = 0;
	if (husk_owner_only(husk, "removing images", err) < 0 || open_store(husk, &store, err) < 0 ||
	    image_store_list(&store, &list, err) < 0)
		return -1;
	for (size_t i = 0; i < list.count; i++) {
		int result = forget(husk, &store, &list, &list.entries[i], &why);
		if (result < 0 && why.code != HUSK_CONFLICT)
			return husk_fail(err, why.code, "%s", why.message);
		if (result < 0)
			continue;
		++*count;
		image_entry_free(&list.entries[i]); /* its name does not keep a template any more */
	}
	return image_store_sweep(&store, bytes, err);
}
