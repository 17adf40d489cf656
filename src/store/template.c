/*
 * Template definitions: reads and checks them, and finds the files that Husk ships (definitions, guest files, the agent).
 * Called by the bake and by libhusk's template calls. This file only reads; rootfs.c builds, digest.c hashes.
 *
 * The host's user writes definitions. A mistake is reported with file, line and key, and no value can be taken for an
 * option of a tool that Husk runs. Scripts of a definition run in a cell (builder.c).
 */
#include "store/template.h"

#include <ctype.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>

#define DEFINITION_MAX (1u << 20)
#define NAME_MAX_LENGTH 64
#define DISK_MIN (64ull << 20)
#define DISK_MAX (1ull << 44)

/* ---- checks of values: NULL if the value is valid, otherwise what it should be ---- */

static bool all_of(const char *s, const char *extra)
{
	for (; *s; s++)
		if (!isalnum((unsigned char)*s) && !strchr(extra, *s))
			return false;
	return true;
}

bool template_name_valid(const char *name)
{
	return name && isalnum((unsigned char)name[0]) && strlen(name) <= NAME_MAX_LENGTH && all_of(name, "-_.");
}

static const char *check_package(const char *word)
{
	return isalnum((unsigned char)word[0]) && all_of(word, "+-.:=~") ? NULL : "the name of a Debian package";
}

static const char *check_exclude(const char *word)
{
	return word[0] == '/' && all_of(word, "/*?+-._@") ? NULL
							  : "an absolute path, in which * may stand for anything";
}

static const char *check_npm(const char *word)
{
	const char *version = strrchr(word, '@');
	bool name = word[0] == '@' || isalnum((unsigned char)word[0]);

	if (!name || !version || version == word || !isdigit((unsigned char)version[1]) || !all_of(word, "@/-_.+"))
		return "an npm package pinned to a version, as in left-pad@1.3.0";
	return NULL;
}

static const char *check_pip(const char *word)
{
	const char *version = strstr(word, "==");

	if (!isalnum((unsigned char)word[0]) || !version || !isdigit((unsigned char)version[2]) ||
	    !all_of(word, "-_.+=!"))
		return "a package of PyPI pinned to a version, as in requests==2.32.3";
	return NULL;
}

static const char *check_user(const char *value)
{
	char name[33], option[8] = "", rest[2];
	int words = sscanf(value, "%32s %7s %1s", name, option, rest);

	if (words < 1 || words > 2 || !islower((unsigned char)name[0]) || !all_of(name, "-_") ||
	    (words == 2 && !str_equal(option, "sudo")))
		return "a lower-case user name, then optionally 'sudo'";
	return NULL;
}

static const char *check_environment(const char *value)
{
	size_t length = strcspn(value, "=");

	if (length == 0 || value[length] != '=' || isdigit((unsigned char)value[0]))
		return "KEY=value";
	for (size_t i = 0; i < length; i++)
		if (!isalnum((unsigned char)value[i]) && value[i] != '_')
			return "KEY=value";
	return NULL;
}

static const char *check_script(const char *value)
{
	return value[0] == '/' || value[0] == '-' || strstr(value, "..") || strpbrk(value, " \t")
		       ? "a file of this directory"
		       : NULL;
}

/* ---- the parser ---- */

struct line {
	const char *file;
	size_t number;
	const char *key;
	char *value;
};

static int fail_line(const struct line *line, struct husk_error *err, const char *problem)
{
	return husk_fail(err, HUSK_INVALID, "%s:%zu: %s: %s", line->file, line->number, line->key, problem);
}

static int fail_value(const struct line *line, const char *value, const char *wanted, struct husk_error *err)
{
	return husk_fail(err, HUSK_INVALID, "%s:%zu: %s: '%s' is not %s", line->file, line->number, line->key, value,
			 wanted);
}

/* A key that may repeat: each value, or each word of it, is added to a list. */
struct list_key {
	const char *key;
	size_t offset; /* of the list in struct template_definition */
	bool words;
	const char *(*check)(const char *value);
};

static const struct list_key list_keys[] = {
	{ "packages", offsetof(struct template_definition, packages), true, check_package },
	{ "exclude", offsetof(struct template_definition, exclude), true, check_exclude },
	{ "npm", offsetof(struct template_definition, npm), true, check_npm },
	{ "pip", offsetof(struct template_definition, pip), true, check_pip },
	{ "user", offsetof(struct template_definition, users), false, check_user },
	{ "env", offsetof(struct template_definition, environment), false, check_environment },
	{ "script", offsetof(struct template_definition, scripts), false, check_script },
	{ "warm", offsetof(struct template_definition, warm), false, NULL },
	{ "start", offsetof(struct template_definition, start), false, NULL },
	{ "ready", offsetof(struct template_definition, ready), false, NULL },
	{ "allow", offsetof(struct template_definition, allow), true, NULL },
};

static int add_value(const struct line *line, const struct list_key *key, char ***list, const char *value,
		     struct husk_error *err)
{
	const char *wanted = key->check ? key->check(value) : NULL;

	if (wanted)
		return fail_value(line, value, wanted, err);
	return strv_add(list, value) < 0 ? husk_fail_memory(err) : 0;
}

static int parse_list(const struct line *line, const struct list_key *key, struct template_definition *definition,
		      struct husk_error *err)
{
	char ***list = (char ***)((char *)definition + key->offset);
	char *rest = NULL;

	if (!key->words)
		return add_value(line, key, list, line->value, err);
	for (char *word = strtok_r(line->value, " \t", &rest); word; word = strtok_r(NULL, " \t", &rest))
		if (add_value(line, key, list, word, err) < 0)
			return -1;
	return 0;
}

static int parse_text(const struct line *line, char **field, struct husk_error *err)
{
	if (*field)
		return fail_line(line, err, "given twice; it may stand once");
	*field = strdup(line->value);
	return *field ? 0 : husk_fail_memory(err);
}

static int parse_disk(const struct line *line, uint64_t *field, struct husk_error *err)
{
	if (*field)
		return fail_line(line, err, "given twice; it may stand once");
	if (str_to_size(line->value, 1, field) < 0 || *field < DISK_MIN || *field > DISK_MAX)
		return fail_value(line, line->value, "a size from 64M to 16384G, as in 8G", err);
	return 0;
}

static int load_lines(const char *directory, struct template_definition *definition, struct husk_error *err);

/* The lines of the shipped part with the name of the key, in the place of this line. */
static int parse_part(const struct line *line, struct template_definition *definition, struct husk_error *err)
{
	cleanup_free char *name = str_format("templates/parts/%s", line->key);
	cleanup_free char *part = name ? template_libfile(name) : NULL;

	if (str_equal(line->value, "false"))
		return 0;
	if (!str_equal(line->value, "true"))
		return fail_value(line, line->value, "true or false", err);
	if (!part)
		return template_libfile_missing(name ? name : "templates/parts", err);
	for (char **each = definition->parts; each && *each; each++)
		if (str_equal(*each, part))
			return fail_line(line, err, "given twice; it may stand once");
	return strv_add(&definition->parts, part) < 0 ? husk_fail_memory(err) : load_lines(part, definition, err);
}

static int fail_key(const struct line *line, struct husk_error *err)
{
	const char *names[ARRAY_SIZE(list_keys) + 4] = { "description", "disk", "egress", "desktop" };
	const char *near;

	for (size_t i = 0; i < ARRAY_SIZE(list_keys); i++)
		names[i + 4] = list_keys[i].key;
	near = str_nearest(line->key, names, ARRAY_SIZE(names));
	return husk_fail(err, HUSK_INVALID, "%s:%zu: unknown key '%s'%s%s%s", line->file, line->number, line->key,
			 near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
}

static int parse_pair(const struct line *line, struct template_definition *definition, struct husk_error *err)
{
	if (!line->value[0])
		return fail_line(line, err, "has no value");
	if (str_equal(line->key, "description"))
		return parse_text(line, &definition->description, err);
	if (str_equal(line->key, "egress"))
		return parse_text(line, &definition->egress, err);
	if (str_equal(line->key, "disk"))
		return parse_disk(line, &definition->disk_bytes, err);
	if (str_equal(line->key, "desktop"))
		return parse_part(line, definition, err);
	for (size_t i = 0; i < ARRAY_SIZE(list_keys); i++)
		if (str_equal(line->key, list_keys[i].key))
			return parse_list(line, &list_keys[i], definition, err);
	return fail_key(line, err);
}

static char *trim(char *s)
{
	size_t length;

	s += strspn(s, " \t\r");
	length = strlen(s);
	while (length > 0 && strchr(" \t\r", s[length - 1]))
		s[--length] = '\0';
	return s;
}

static int parse_line(const char *file, size_t number, char *text, struct template_definition *definition,
		      struct husk_error *err)
{
	struct line line = { .file = file, .number = number };
	char *colon;

	text = trim(text);
	if (!text[0] || text[0] == '#')
		return 0;
	colon = strchr(text, ':');
	if (!colon)
		return husk_fail(err, HUSK_INVALID, "%s:%zu: '%s' is not a 'key: value' line", file, number, text);
	*colon = '\0';
	line.key = trim(text);
	line.value = trim(colon + 1);
	return parse_pair(&line, definition, err);
}

static int parse_definition(const char *file, char *text, struct template_definition *definition,
			    struct husk_error *err)
{
	size_t number = 1;

	for (char *next; text; text = next, number++) {
		next = strchr(text, '\n');
		if (next)
			*next++ = '\0';
		if (parse_line(file, number, text, definition, err) < 0)
			return -1;
	}
	return 0;
}

static int load_lines(const char *directory, struct template_definition *definition, struct husk_error *err)
{
	cleanup_free char *file = str_format("%s/template", directory);
	cleanup_free char *text = file ? file_read(file, DEFINITION_MAX, NULL, err) : NULL;

	if (!file)
		return husk_fail_memory(err);
	return text ? parse_definition(file, text, definition, err) : -1;
}

/* ---- loading ---- */

void template_free(struct template_definition *definition)
{
	if (!definition)
		return;
	free(definition->name);
	free(definition->source);
	free(definition->reference);
	free(definition->description);
	strv_free(definition->parts);
	free(definition->egress);
	for (size_t i = 0; i < ARRAY_SIZE(list_keys); i++)
		strv_free(*(char ***)((char *)definition + list_keys[i].offset));
	free(definition);
}

/* A definition of this kind with its name checked and its source made absolute. */
static int definition_new(enum template_kind kind, const char *source, const char *name,
			  struct template_definition **out, struct husk_error *err)
{
	cleanup_template struct template_definition *definition = calloc(1, sizeof(*definition));
	const char *last;

	if (!definition)
		return husk_fail_memory(err);
	definition->kind = kind;
	definition->source = realpath(source, NULL);
	if (!definition->source)
		return husk_fail_errno(err, "cannot read '%s'", source);
	last = strrchr(definition->source, '/');
	definition->name = strdup(name ? name : last + 1);
	if (!definition->name)
		return husk_fail_memory(err);
	if (!template_name_valid(definition->name))
		return husk_fail(err, HUSK_INVALID,
				 "template name '%s': use letters, digits, '-', '_' and '.', at most %d, starting with "
				 "a letter or digit",
				 definition->name, NAME_MAX_LENGTH);
	*out = steal_pointer(definition);
	return 0;
}

static int check_source(const struct template_definition *definition, mode_t type, const char *what,
			struct husk_error *err)
{
	struct stat status;

	if (stat(definition->source, &status) < 0)
		return husk_fail_errno(err, "cannot read '%s'", definition->source);
	if (type && (status.st_mode & S_IFMT) != type)
		return husk_fail(err, HUSK_INVALID, "'%s' is not a %s", definition->source, what);
	return 0;
}

/* The scripts of a definition must exist: checked before the long installation of packages. */
static int check_scripts(const struct template_definition *definition, struct husk_error *err)
{
	for (char **script = definition->scripts; script && *script; script++) {
		cleanup_free char *path = str_format("%s/%s", definition->source, *script);
		if (!path)
			return husk_fail_memory(err);
		if (access(path, R_OK) < 0)
			return husk_fail_errno(err, "%s/template: script: cannot read '%s'", definition->source,
					       *script);
	}
	return 0;
}

int template_load(const char *directory, struct template_definition **out, struct husk_error *err)
{
	cleanup_template struct template_definition *definition = NULL;

	if (definition_new(TEMPLATE_DEFINITION, directory, NULL, &definition, err) < 0 ||
	    check_source(definition, S_IFDIR, "directory with a file named 'template'", err) < 0)
		return -1;
	if (load_lines(directory, definition, err) < 0 || check_scripts(definition, err) < 0)
		return -1;
	if (!definition->description && !(definition->description = strdup("")))
		return husk_fail_memory(err);
	*out = steal_pointer(definition);
	return 0;
}

static int load_plain(enum template_kind kind, const char *path, const char *name, mode_t type, const char *what,
		      struct template_definition **out, struct husk_error *err)
{
	cleanup_template struct template_definition *definition = NULL;

	if (definition_new(kind, path, name, &definition, err) < 0 || check_source(definition, type, what, err) < 0)
		return -1;
	/* Without its directory: a description travels with the template. */
	definition->description = str_format("from %s", strrchr(definition->source, '/') + 1);
	if (!definition->description)
		return husk_fail_memory(err);
	*out = steal_pointer(definition);
	return 0;
}

int template_from_tar(const char *path, const char *name, struct template_definition **out, struct husk_error *err)
{
	return load_plain(TEMPLATE_TAR, path, name, S_IFREG, "tar file", out, err);
}

int template_from_directory(const char *path, const char *name, struct template_definition **out,
			    struct husk_error *err)
{
	return load_plain(TEMPLATE_DIRECTORY, path, name, S_IFDIR, "directory", out, err);
}

int template_from_image(const char *path, const char *reference, const char *name, struct template_definition **out,
			struct husk_error *err)
{
	cleanup_template struct template_definition *definition = NULL;

	if (load_plain(TEMPLATE_IMAGE, path, name, 0, NULL, &definition, err) < 0)
		return -1;
	if (reference && *reference && !(definition->reference = strdup(reference)))
		return husk_fail_memory(err);
	*out = steal_pointer(definition);
	return 0;
}

/* ---- files that Husk ships ---- */

char **template_places(void)
{
	return place_list();
}

char *template_libfile(const char *name)
{
	return place_find(name);
}

int template_libfile_missing(const char *name, struct husk_error *err)
{
	return place_missing(name, err);
}

char **template_shipped(struct husk_error *err)
{
	cleanup_free char *top = template_libfile("templates");
	cleanup_dir DIR *dir = top ? opendir(top) : NULL;
	cleanup_strv char **names = calloc(1, sizeof(*names));
	struct dirent *entry;

	if (!dir || !names) {
		template_libfile_missing("templates", err);
		return NULL;
	}
	while ((entry = readdir(dir))) {
		cleanup_free char *file = str_format("%s/%s/template", top, entry->d_name);
		if (!file || (template_name_valid(entry->d_name) && access(file, F_OK) == 0 &&
			      strv_add(&names, entry->d_name) < 0)) {
			husk_fail_memory(err);
			return NULL;
		}
	}
	strv_sort(names);
	return steal_pointer(names);
}

char *template_find(const char *name, struct husk_error *err)
{
	cleanup_strv char **names = template_shipped(err);
	cleanup_free char *part = NULL;
	const char *near;
	char *found;

	if (!names)
		return NULL;
	for (char **each = names; *each; each++) {
		if (!str_equal(*each, name))
			continue;
		part = str_format("templates/%s", name);
		found = part ? template_libfile(part) : NULL;
		if (!found)
			husk_fail_memory(err);
		return found;
	}
	near = str_nearest(name, (const char *const *)names, strv_length(names));
	husk_fail(err, HUSK_NOT_FOUND, "template '%s' not found%s%s%s (husk template ls)", name,
		  near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
	return NULL;
}

char *template_cache_directory(const char *home)
{
	const char *given = getenv("HUSK_CACHE");

	return given && given[0] ? strdup(given) : str_format("%s/cache", home);
}
