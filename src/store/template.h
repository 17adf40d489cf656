/*
 * Templates: from what a template is described by (a definition, a rootfs tar or directory, a container image) to its read-only
 * root image (EROFS). Baking that image into a running snapshot is src/instance/bake.c, which uses this header.
 *
 * A definition is a directory: a `template` file of "key: value" lines (# comments; keys marked * may repeat), and
 * optionally `files/`, copied over the root, and scripts it names:
 *
 *     description: one line for people
 *     packages*:   Debian packages, separated by spaces
 *     exclude*:    paths, or patterns of them, that are not unpacked from packages
 *     npm*:        npm packages, each pinned as name@version, installed globally
 *     pip*:        packages of PyPI, each pinned as name==version; what they depend on is to be listed too
 *     user*:       name [sudo]            made with a home directory and bash
 *     env*:        KEY=value              given to every process
 *     disk:        size of the writable layer (512M, 8G)
 *     egress:      off, allow or open     what its sandboxes may reach unless told otherwise
 *     allow*:      rules for that, separated by spaces (example.com, *.example.com, 10.1.2.0/24:5432)
 *     script*:     a file of this directory, run as root inside the root at build
 *     start*:      a shell command left running in the snapshot
 *     ready:       a shell command that succeeds once what was started can be used
 *     warm*:       a shell command run to its end in the booted machine before the snapshot
 *
 * The build has two stages. Stage 1 (Debian packages, users, files, npm, pip, scripts) is kept in the cache as a tar, by the
 * content of the definition alone; stage 2 adds what Husk brings (/.husk) and writes the image.
 */
#ifndef HUSK_TEMPLATE_H
#define HUSK_TEMPLATE_H

#include "base/base.h"

#define TEMPLATE_DIGEST_LENGTH 32 /* hexadecimal digits */

enum template_kind { TEMPLATE_DEFINITION = 1, TEMPLATE_TAR, TEMPLATE_DIRECTORY, TEMPLATE_IMAGE };

struct template_definition {
	enum template_kind kind;
	char *name;          /* last component of the directory, or as given */
	char *source;        /* the definition's directory, the tar, the root directory, or the image's layout or tar */
	char *reference;     /* of several images in one layout; NULL: the only one */
	char *description;   /* never NULL */
	uint64_t disk_bytes; /* 0: the instance's default */
	char *ready;         /* NULL: no check */
	char *egress;        /* mode; NULL: by the rules */
	/* NULL-terminated lists; NULL when empty. */
	char **packages, **exclude, **npm, **pip, **users, **environment, **scripts, **warm, **start, **allow;
};

/* Reads <directory>/template. A wrong line is named by file, line and key. */
int template_load(const char *directory, struct template_definition **out, struct husk_error *err);
/* Templates without a definition: nothing is started, warmed or set. `name` is checked like a definition's. */
int template_from_tar(const char *path, const char *name, struct template_definition **out, struct husk_error *err);
int template_from_directory(const char *path, const char *name, struct template_definition **out,
			    struct husk_error *err);
/* A container image (oci.h): its variables, user and directory are set; what it would start is kept for whoever asks
 * (wire EXEC_IMAGE), and not started. */
int template_from_image(const char *path, const char *reference, const char *name, struct template_definition **out,
			struct husk_error *err);
void template_free(struct template_definition *definition);
static inline void template_cleanup(struct template_definition **definition)
{
	template_free(*definition);
}
#define cleanup_template cleanup(template_cleanup)

/* Letters, digits, '-', '_' and '.', at most 64, starting with a letter or digit. */
bool template_name_valid(const char *name);

/* ---- digest.c ---- */

/* Content hash of everything that ends up in the image: the definition (or the tar, or the tree), the agent, the guest
 * files, the engine that bakes it and the format's version. The same content gives the same digest on every machine of one architecture and
 * Debian release. */
int template_digest(const struct template_definition *definition, const char *isolation,
		    char out[static TEMPLATE_DIGEST_LENGTH + 1], struct husk_error *err);

/* ---- rootfs.c ---- */

/* One line at a time, without a newline. */
typedef void (*template_progress)(void *data, const char *line);

struct cgroup; /* jail/cgroup.h */

/* Where the steps of a build that read a stranger's bytes are locked up. */
struct template_jail {
	const char *program;   /* husk, which the steps are run by */
	uint32_t uid_base;     /* the first of 65,536 host uids and gids that own nothing else */
	struct cgroup *cgroup; /* NULL: the caller's */
};

/* Writes the EROFS image to out_image (whole, or not at all). `cache_dir` is made when missing and keeps stage 1; work
 * in progress is kept in it too and removed on failure; what a killed build left there is removed by the next one. */
int template_build_rootfs(const struct template_definition *definition, const struct template_jail *jail,
			  const char *cache_dir, const char *out_image, template_progress progress, void *data,
			  struct husk_error *err);

/* ---- template.c ---- */

/* Where the cache is: $HUSK_CACHE, else <home>/cache. Caller frees; NULL when out of memory. */
char *template_cache_directory(const char *home);

/* The path of a file Husk ships ("husk-agent", "guest/kernel.py", "templates/base"): in $HUSK_LIBDIR, else beside the
 * running program or one level above it, else where it was installed. Caller frees; NULL when it is nowhere (or no
 * memory): then the message to give is template_libfile_missing's. */
char *template_libfile(const char *name);
int template_libfile_missing(const char *name, struct husk_error *err);
/* The directory of a shipped definition by its name; NOT_FOUND names the shipped one nearest to it. Caller frees. */
char *template_find(const char *name, struct husk_error *err);
/* Names of all shipped definitions, sorted; caller frees with strv_free. */
char **template_shipped(struct husk_error *err);

/* Paths inside every image. */
#define TEMPLATE_AGENT "/.husk/agent"
#define TEMPLATE_GUEST "/.husk/guest"             /* the files of guest/, and the programs built from it */
#define TEMPLATE_ENVIRONMENT "/.husk/environment" /* the definition's env lines, one KEY=value each */
#define TEMPLATE_PROCESS "/.husk/process" /* of a container image, NUL-terminated: user=…, cwd=…, arg=… (each word) */

#endif
