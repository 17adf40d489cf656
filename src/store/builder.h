/*
 * The steps of a build that read untrusted data, each in its own process and cell (jail/cell.h). rootfs.c starts them
 * here; builder_main is the entry of `husk builder`.
 */
#ifndef HUSK_BUILDER_H
#define HUSK_BUILDER_H

#include "store/oci.h"
#include "store/template.h"

/* Each function waits for its step. Files that a step makes belong to the cell's uids: jail->uid_base is root. */

/* Unpacks a tar (compressed or not), from the position of `fd`, into an existing directory. `name` is its name in
 * errors, `field` the option that gave it. `limit` as for unpack_tar. */
int step_unpack(const struct template_jail *jail, int fd, const char *name, const char *field, uint64_t limit,
		const char *directory, struct husk_error *err);
/* Unpacks one layer of a container image over those below it in `directory`, after a check of its digest. */
int step_layer(const struct template_jail *jail, int fd, const char *name, const struct oci_layer *layer,
	       const char *directory, struct husk_error *err);
/* Writes the tree as an EROFS image to the existing file `image`. */
int step_image(const struct template_jail *jail, const char *directory, const char *image, struct husk_error *err);

/* Reads a portable machine (portable.h) from `fd`, a regular file. `answer` gets three parts: a line with the key, a line with the
 * signature, and the description. None of them was verified yet. `directory` is any directory of the cell's. */
int step_describe(const struct template_jail *jail, int fd, const char *directory, struct buf *answer,
		  struct husk_error *err);
/* Writes the files of its description `digest` in these folders ("root image") into `directory`. */
int step_chunks(const struct template_jail *jail, int fd, const char *digest, const char *folders,
		const char *directory, struct husk_error *err);

/* Starts a program that installs a system from packages, in `directory`, which it sees as BUILDER_WORK; it sees
 * `script` as BUILDER_SCRIPT. It has the network and, of the host, only the files of its tools. Its output goes to
 * `output`. */
int step_packages(const struct template_jail *jail, const char *directory, const char *script, char *const *arguments,
		  char *const *environment, int output, pid_t *pid, struct husk_error *err);
#define BUILDER_WORK "/work"
#define BUILDER_SCRIPT "/customize.sh"

/* Starts a step of a video; film.h describes both. The pictures of the recording that `input` is, a regular file, go to `output`,
 * and from there into the second step, whose `format` is "mp4" or "webm". A line to `errors` says what is wrong. The caller reaps
 * the pid. Without ffmpeg on the host step_video is UNAVAILABLE. */
int step_film(const struct template_jail *jail, int input, int output, int errors, pid_t *pid, struct husk_error *err);
int step_video(const struct template_jail *jail, const char *format, int input, int output, int errors, pid_t *pid,
	       struct husk_error *err);

/* husk builder … STEP: started by the functions above, with a tar as standard input. */
int builder_main(int argc, char **argv);

#endif
