/*
 * The files that a build may copy: a directory of the host (the context), without the files that its .dockerignore
 * names. Its author is not trusted: no link leads outside, and only files, directories and links are read.
 */
#ifndef HUSK_BUILD_CONTEXT_H
#define HUSK_BUILD_CONTEXT_H

#include "base/base.h"

/* ---- ignore.c ---- */

/* Matches a path against a pattern of Go's filepath.Match ('*', '?', "[a-z]", '\\'), in which "**" matches any number of
 * folders. */
bool pattern_match(const char *pattern, const char *path);
bool pattern_is(const char *word); /* has it a wildcard? */
/* The lines of a .dockerignore as patterns, cleaned; "!" stays in front. */
int ignore_parse(const char *text, char ***out, struct husk_error *err);
/* Is the path ("a/b", relative to the context) left out? The last pattern that matches it or a folder above it decides. */
bool ignore_match(char *const *patterns, const char *path);

/* ---- context.c ---- */

struct context {
	int root; /* -1: there is none */
	char *path;
	char **ignored; /* NULL: none */
	bool links;     /* a source that is a link is copied as a link */
};
/* Opens the directory and reads its ignore file: `<dockerfile>.dockerignore` if it exists, otherwise .dockerignore. `path` NULL:
 * a build without files. */
int context_begin(const char *path, const char *dockerfile, struct context *out, struct husk_error *err);
void context_end(struct context *context);

/* One source of COPY after its wildcards: a path in the context, without '/' at either end; "": the context itself. */
struct context_source {
	char *path;
	bool directory;
};
struct context_sources {
	struct context_source *items;
	size_t count;
};
void context_sources_free(struct context_sources *sources);
/* Adds what a word of COPY means: nothing, if it has wildcards and no file matches. INVALID: there is no such file. */
int context_find(const struct context *context, const char *word, struct context_sources *out, struct husk_error *err);

/* Opens a file of the context for reading; -1 with errno. */
int context_open_file(const struct context *context, const char *path);

/* How the files arrive. */
struct context_target {
	const char *name; /* for a source that is a file, when it gets another name; NULL: its own */
	int64_t mode;     /* of every file and directory; -1: as they are */
};
/* A hash of names, modes and contents of a source; *count counts the files. */
int context_digest(const struct context *context, const struct context_source *source, char out[static 65],
		   struct husk_error *err);
/* Writes the source as entries of a tar at `fd`: a file as one entry, a directory as its content. Several can follow each other;
 * context_tar_end completes the tar. */
struct archive;
struct archive *context_tar_begin(int fd, struct husk_error *err);
int context_tar_add(const struct context *context, const struct context_source *source,
		    const struct context_target *target, struct archive *archive, struct husk_error *err);
/* The same with the paths of the context, for another host. */
int context_tar_send(const struct context *context, const struct context_source *source, struct archive *archive,
		     struct husk_error *err);
/* A file of the Dockerfile itself. */
int context_tar_text(const char *name, const char *text, int64_t mode, struct archive *archive, struct husk_error *err);
/* A file that is no part of the context. */
struct context_file {
	const char *name;
	int64_t mode, modified;
};
int context_tar_file(const struct context_file *file, int fd, struct archive *archive, struct husk_error *err);
int context_tar_end(struct archive *archive, struct husk_error *err); /* frees it, also after a failure */

#endif
