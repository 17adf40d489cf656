/*
 * The steps of a build that read what a stranger wrote, each in a process and a cell of its own (jail/cell.h). rootfs.c asks
 * for them here; builder_main is what `husk builder` does.
 */
#ifndef HUSK_BUILDER_H
#define HUSK_BUILDER_H

#include "store/oci.h"
#include "store/template.h"

/* Each waits for its step. What a step makes belongs to the cell's uids: jail->uid_base is root's. */

/* A tar (compressed or not), from where `fd` stands, into an existing directory. `name` is what errors call it, `field` the
 * option it came by. */
int step_unpack(const struct template_jail *jail, int fd, const char *name, const char *field, const char *directory,
		struct husk_error *err);
/* One layer of a container image over those below it in `directory`, after a look at its digest. */
int step_layer(const struct template_jail *jail, int fd, const char *name, const struct oci_layer *layer,
	       const char *directory, struct husk_error *err);
/* The tree as an EROFS image, written to the existing file `image`. */
int step_image(const struct template_jail *jail, const char *directory, const char *image, struct husk_error *err);

/* Starts a program that puts a system together from packages, in `directory`, which it knows as BUILDER_WORK; `script` is its
 * BUILDER_SCRIPT. It has the network, and of the host what its tools are made of. What it says goes to `output`. */
int step_packages(const struct template_jail *jail, const char *directory, const char *script, char *const *arguments,
		  char *const *environment, int output, pid_t *pid, struct husk_error *err);
#define BUILDER_WORK "/work"
#define BUILDER_SCRIPT "/customize.sh"

/* husk builder … STEP: started by the above, with a tar as standard input. */
int builder_main(int argc, char **argv);

#endif
