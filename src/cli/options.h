/*
 * A small declarative option parser: a command describes its options in constant tables, and the parser fills the
 * command's own structure. main.c is the only caller; the tables are beside the commands that use them.
 *
 * Tables can be shared (run, create and code have the same options for sandboxes): each table is parsed into its own
 * structure.
 */
#ifndef HUSK_CLI_OPTIONS_H
#define HUSK_CLI_OPTIONS_H

#include "base/base.h"
#include "husk.h"

/* For the ranges of sizes. */
#define MEBIBYTE (INT64_C(1) << 20)
#define TEBIBYTE (INT64_C(1) << 40)

enum option_kind {
	OPTION_FLAG = 1,     /* bool */
	OPTION_STRING,       /* const char * */
	OPTION_CHOICE,       /* const char *, one of `choices` */
	OPTION_INTEGER,      /* int64_t, within min..max */
	OPTION_SIZE,         /* uint64_t bytes, within min..max; a number without a unit is MiB */
	OPTION_SECONDS,      /* int64_t, within min..max */
	OPTION_MILLISECONDS, /* int64_t; given in seconds with decimals, or with a unit; within min..max */
	OPTION_CPUS,         /* uint32_t thousandths, within min..max thousandths */
	OPTION_PAIRS,        /* struct pair_list of K=V, may be repeated */
	OPTION_STRINGS,      /* struct string_list, may be repeated */
	OPTION_ENVIRONMENT,  /* as PAIRS; K alone uses the value of our own environment */
};

struct pair_list {
	struct husk_pair *items; /* each key and its value share one allocation, owned through the key */
	size_t count;
};

struct string_list {
	const char **items; /* the strings are argv's */
	size_t count;
};

struct option_spec {
	char letter;       /* 0: none */
	const char *name;  /* without the dashes; a table ends with name NULL */
	const char *exact; /* a whole word for this option, like "-it"; NULL: none */
	enum option_kind kind;
	size_t offset;     /* of the field it fills */
	const char *value; /* the name of the value in help */
	const char *help;
	int64_t min, max;
	const char *const *choices; /* NULL-terminated */
};

/* A line of a table; fields that only some options have (exact, min, max, choices) follow as `.min = 1`. */
#define OPTION(letter_, name_, kind_, type, field, value_, help_, ...)                                                 \
	{                                                                                                              \
		.letter = letter_, .name = name_, .kind = kind_, .offset = offsetof(type, field), .value = value_,     \
		.help = help_, __VA_ARGS__                                                                             \
	}

/* One table, and the structure that its offsets refer to. */
struct option_group {
	const struct option_spec *specs;
	void *target;
};

/* Parses argv[0..*argc) and leaves the operands at the front of argv, followed by NULL, with their number in *argc.
 * Options may come among the first `stop_after` operands; everything after those is not parsed (0: options may come
 * anywhere). "--" ends the options too. On the first failure err names the option. */
int options_parse(const struct option_group *groups, size_t group_count, size_t stop_after, int *argc, char **argv,
		  struct husk_error *err);
/* Frees what the parser allocated (lists). */
void options_free(const struct option_group *groups, size_t group_count);
/* The option lines of --help. */
void options_help(const struct option_group *groups, size_t group_count, FILE *out);

/* "2h", "90": for operands that are durations. `what` names the operand in the error. */
int options_seconds(const char *what, const char *text, int64_t min, int64_t max, int64_t *out, struct husk_error *err);

#endif
