/*
 * The settings of a machine: /etc/husk/husk.toml, then /etc/husk/conf.d/ in order of name. Each setting sets an
 * environment variable. A variable that is already set wins over the files; options of a command win over both. See
 * config.c.
 */
#ifndef HUSK_CONFIG_H
#define HUSK_CONFIG_H

#include "base/base.h"

struct config_setting {
	const char *key;         /* "server.listen" */
	const char *environment; /* "HUSK_LISTEN" */
	const char *fallback;    /* the default, in words */
	const char *meaning;
	char *value;  /* NULL: not set */
	char *source; /* "environment", "/etc/husk/husk.toml:3"; NULL: default */
};

/*
 * Reads the files and sets the environment variable of every setting that has none yet. Called once at the start of a
 * program, before there are threads. Does so for root only: other users use the settings of their server. INVALID with
 * the file, line and column; then nothing is set.
 */
int config_apply(struct husk_error *err);
/* Reads the files again. *out lists the settings in force, ended by an entry without a key. Sets nothing. config_free
 * frees. */
int config_list(struct config_setting **out, struct husk_error *err);
void config_free(struct config_setting *list);
/* The value of a setting in a list; NULL: not set. */
const char *config_value(const struct config_setting *list, const char *key);
/* True if the variable was set from a file. */
bool config_gave(const char *environment);

#endif
