/*
 * Templates: builds the read-only root image (EROFS) from a definition, a rootfs tar or directory, or a container image.
 * src/instance/bake.c, which uses this header, bakes that image into a running snapshot.
 *
 * A definition is a directory: a `template` file of "key: value" lines (# comments; keys marked * may repeat), and
 * optionally `files/`, which is copied over the root, and scripts:
 *
 *     description: one line for people
 *     packages*:   Debian packages, separated by spaces
 *     exclude*:    paths, or patterns of them, that are not unpacked from packages
 *     npm*:        npm packages, each pinned as name@version, installed globally
 *     pip*:        packages of PyPI, each pinned as name==version; list their dependencies too
 *     user*:       name [sudo]            made with a home directory and bash
 *     env*:        KEY=value              given to every process
 *     disk:        size of the writable layer (512M, 8G)
 *     egress:      off, allow or open     the default policy of its sandboxes
 *     allow*:      rules for that, separated by spaces (example.com, *.example.com, 10.1.2.0/24:5432)
 *     script*:     a file of this directory, run as root inside the root at build
 *     start*:      a shell command left running in the snapshot
 *     ready*:      a shell command that succeeds when the started commands are ready
 *     warm*:       a shell command run to its end in the booted machine before the snapshot
 *     desktop:     true                   a screen, with all that runs for it in the snapshot
 *
 * `desktop: true` is the shipped part templates/parts/desktop: a directory like a definition, whose lines and files are taken as if
 * they were the definition's own. A file of the definition wins.
 *
 * The build has two stages. Stage 1 (Debian packages, users, files, npm, pip, scripts) is kept in the cache as a
 * tar, named by the content of the definition. Stage 2 adds Husk's own files (/.husk) and writes the image.
 */
#ifndef HUSK_TEMPLATE_H
#define HUSK_TEMPLATE_H

#include "base/base.h"

#define TEMPLATE_DIGEST_LENGTH 32 /* hexadecimal digits */

enum template_kind { TEMPLATE_DEFINITION = 1, TEMPLATE_TAR, TEMPLATE_DIRECTORY, TEMPLATE_IMAGE };

struct template_definition {
	enum template_kind kind;
	char *name;          /* last component of the directory, or the given name */
	char *source;        /* the definition's directory, the tar, the root directory, or the image's layout or tar */
	char *reference;     /* of several images in one layout; NULL: the only one */
	char *description;   /* never NULL */
	uint64_t disk_bytes; /* 0: the instance's default */
	char *egress;        /* mode; NULL: by the rules */
	/* NULL-terminated lists; NULL when empty. */
	char **packages, **exclude, **npm, **pip, **users, **environment, **scripts, **warm, **start, **ready, **allow;
	char **parts; /* the directories of shipped parts */
};

/* Reads <directory>/template. An error names file, line and key. */
int template_load(const char *directory, struct template_definition **out, struct husk_error *err);
/* Templates without a definition: nothing is started, warmed up or set. `name` is checked like a definition's. */
int template_from_tar(const char *path, const char *name, struct template_definition **out, struct husk_error *err);
int template_from_directory(const char *path, const char *name, struct template_definition **out,
			    struct husk_error *err);
/* A container image (oci.h): its variables, user and directory are set. Its command is stored for EXEC_IMAGE of the
 * wire protocol, and is not started. */
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

/* Hash of everything that the image depends on: the definition (or the tar, or the tree), the agent, the guest files,
 * the engine that bakes it and the version of the format. The same content gives the same digest on every machine of
 * one architecture and Debian release. */
int template_digest(const struct template_definition *definition, const char *isolation,
		    char out[static TEMPLATE_DIGEST_LENGTH + 1], struct husk_error *err);

/* ---- rootfs.c ---- */

/* One line at a time, without a newline. */
typedef void (*template_progress)(void *data, const char *line);

struct cgroup; /* jail/cgroup.h */

/* The jail for build steps that read untrusted data. */
struct template_jail {
	const char *program;   /* husk, which runs the steps */
	uint32_t uid_base;     /* the first of 65,536 host uids and gids that own nothing else */
	struct cgroup *cgroup; /* NULL: the caller's */
};

/* Writes the EROFS image to out_image (complete, or not at all). `cache_dir` is made if missing and keeps stage 1.
 * Unfinished files are kept there too and removed on failure; the next build removes the remains of a killed one. */
int template_build_rootfs(const struct template_definition *definition, const struct template_jail *jail,
			  const char *cache_dir, const char *out_image, template_progress progress, void *data,
			  struct husk_error *err);

/* ---- template.c ---- */

/* The directory of the cache: $HUSK_CACHE, otherwise <home>/cache. Caller frees; NULL: out of memory. */
char *template_cache_directory(const char *home);

/* The path of a file that Husk ships ("husk-agent", "guest/kernel.py", "templates/base"): in $HUSK_LIBDIR, otherwise
 * beside the running program or one level above it, otherwise where it was installed. Caller frees; NULL: not found (or
 * no memory); template_libfile_missing then gives the message. */
char *template_libfile(const char *name);
int template_libfile_missing(const char *name, struct husk_error *err);
/* The directory of a shipped definition by its name; NOT_FOUND suggests the nearest one. Caller frees. */
char *template_find(const char *name, struct husk_error *err);
/* Names of all shipped definitions, sorted; caller frees with strv_free. */
char **template_shipped(struct husk_error *err);

/* Paths inside every image. */
#define TEMPLATE_AGENT "/.husk/agent"
#define TEMPLATE_GUEST "/.husk/guest"             /* the files of guest/, and the programs built from it */
#define TEMPLATE_ENVIRONMENT "/.husk/environment" /* the definition's env lines, one KEY=value each */
#define TEMPLATE_PROCESS "/.husk/process" /* of a container image, NUL-terminated: user=…, cwd=…, arg=… (each word) */

#endif
