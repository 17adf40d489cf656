/*
 * husk_diff_system: what differs between two states besides their files: Debian, pip and npm packages, processes,
 * listening ports. Packages are found by the files that differ (husk_diff), so the cost depends on the size of the
 * change:
 *
 *     /var/lib/dpkg/status differs                 both are read
 *     …/requests-2.31.0.dist-info came or went     the name says it
 *     …/node_modules/.package-lock.json differs    both are read
 *     …/node_modules/NAME/package.json differs     both are read, unless such a list is beside it
 *
 * Processes and ports are read from /proc of both. In a copy of a checkpoint or snapshot, /proc shows the processes of
 * that moment.
 */
#include "client/inventory.h"
#include "instance/instance.h"

#define TEXT_MAX (64u << 20)
#define SMALL_MAX (1u << 20)
#define JSON_MAX (4u << 20) /* a parsed document takes many times its size in memory, and the guest wrote it */
#define PROCESSES_MAX 2000u
#define PACKAGE_FILES_MAX 5000u

struct side {
	struct husk *husk;
	const char *sandbox;
	struct inventory inventory;
};

struct reading {
	struct buf text;
	size_t limit;
};

static int keep_bytes(void *data, const void *bytes, size_t size)
{
	struct reading *reading = data;

	if (reading->text.size + size > reading->limit)
		return -1;
	return buf_append(&reading->text, bytes, size);
}

/* Reads a file and parses it. One that is missing, or too large, has nothing to say. */
static int parse_file(struct side *side, const char *path, size_t limit,
		      int (*parse)(struct inventory *inventory, const char *text, size_t size), struct husk_error *err)
{
	struct reading reading = { .limit = limit };
	struct husk_error why = { 0 };
	int result = husk_file_read(side->husk, side->sandbox, path, 0, 0, keep_bytes, &reading, &why);

	if (result == 0 && reading.text.size)
		result = parse(&side->inventory, reading.text.data, reading.text.size) < 0 ? husk_fail_memory(err) : 0;
	else if (why.code == HUSK_GONE || why.code == HUSK_TIMEOUT)
		result = husk_fail(err, why.code, "%s", why.message);
	else
		result = 0;
	buf_free(&reading.text);
	return result;
}

/* ---- packages ---- */

static int parse_both(struct side *sides, const struct husk_change *change, size_t limit,
		      int (*parse)(struct inventory *inventory, const char *text, size_t size), struct husk_error *err)
{
	if (change->kind != HUSK_ADDED && parse_file(&sides[0], change->file.path, limit, parse, err) < 0)
		return -1;
	return change->kind == HUSK_REMOVED ? 0 : parse_file(&sides[1], change->file.path, limit, parse, err);
}

/* "/app/node_modules" of "/app/node_modules/@scope/name/package.json"; NULL: not the package.json of an installed package. */
static char *modules_of(const char *path)
{
	cleanup_free char *copy = strdup(path);
	char *found = NULL;

	if (!copy || !str_ends(path, "/package.json"))
		return NULL;
	for (char *at = strstr(copy, "/node_modules/"); at; at = strstr(at + 1, "/node_modules/"))
		found = at;
	if (!found)
		return NULL;
	char *name = found + strlen("/node_modules/"), *slash = strchr(name, '/');
	if (slash && *name == '@')
		slash = strchr(slash + 1, '/');
	if (!slash || !str_equal(slash, "/package.json"))
		return NULL;
	found[strlen("/node_modules")] = '\0';
	return strdup(copy);
}

/* Is the path below a node_modules that has a list of its own among the changes? */
static bool is_listed(char *const *lists, const char *path)
{
	for (; lists && *lists; lists++) {
		size_t size = strlen(*lists);
		if (strncmp(path, *lists, size) == 0 && path[size] == '/')
			return true;
	}
	return false;
}

static int add_pip(struct side *sides, const struct husk_change *change, struct husk_error *err)
{
	const char *slash = strrchr(change->file.path, '/');
	struct side *side = change->kind == HUSK_REMOVED ? &sides[0] : &sides[1];

	if (change->kind == HUSK_CHANGED || !slash)
		return 0;
	return inventory_pip(&side->inventory, slash + 1) < 0 ? husk_fail_memory(err) : 0;
}

static int add_packages(struct side *sides, struct husk_change *const *changes, struct husk_error *err)
{
	static const char lock[] = "/node_modules/.package-lock.json";
	cleanup_strv char **lists = NULL;
	size_t files = 0;
	int result = 0;

	for (size_t i = 0; changes[i] && result == 0; i++) {
		const char *path = changes[i]->file.path;
		if (str_equal(path, "/var/lib/dpkg/status"))
			result = parse_both(sides, changes[i], TEXT_MAX, inventory_deb, err);
		else if (str_ends(path, lock) && files < PACKAGE_FILES_MAX) {
			files++;
			cleanup_free char *modules = strndup(path, strlen(path) - strlen("/.package-lock.json"));
			if (!modules || strv_add(&lists, modules) < 0)
				return husk_fail_memory(err);
			result = parse_both(sides, changes[i], JSON_MAX, inventory_npm_lock, err);
		} else {
			result = add_pip(sides, changes[i], err);
		}
	}
	for (size_t i = 0; changes[i] && result == 0 && files < PACKAGE_FILES_MAX; i++) {
		cleanup_free char *modules = modules_of(changes[i]->file.path);
		if (!modules || is_listed(lists, changes[i]->file.path))
			continue;
		files++;
		result = parse_both(sides, changes[i], SMALL_MAX, inventory_npm, err);
	}
	return result;
}

/* ---- processes and ports ---- */

static bool is_number(const char *text)
{
	return *text && text[strspn(text, "0123456789")] == '\0';
}

static int add_running(struct side *side, struct husk_error *err)
{
	struct husk_file *list = NULL;
	size_t count = 0;
	int result = husk_file_list(side->husk, side->sandbox, "/proc", 1, &list, &count, err);

	for (size_t i = 0; result == 0 && i < MIN(count, PROCESSES_MAX); i++) {
		const char *slash = strrchr(list[i].path, '/'), *name = slash ? slash + 1 : list[i].path;
		cleanup_free char *path = str_format("/proc/%s/cmdline", name);
		if (!path)
			result = husk_fail_memory(err);
		else if (is_number(name) && !str_equal(name, "1")) /* the agent */
			result = parse_file(side, path, SMALL_MAX, inventory_process, err);
	}
	husk_file_list_free(list, count);
	if (result == 0)
		result = parse_file(side, "/proc/net/tcp", TEXT_MAX, inventory_ports, err);
	return result == 0 ? parse_file(side, "/proc/net/tcp6", TEXT_MAX, inventory_ports, err) : -1;
}

/* ---- both sides ---- */

void husk_difference_list_free(struct husk_difference *list, size_t count)
{
	for (size_t i = 0; list && i < count; i++) {
		free(list[i].name);
		free(list[i].before);
		free(list[i].after);
	}
	free(list);
}

static int compare_items(const struct item *a, const struct item *b)
{
	int order = strcmp(a->kind, b->kind);

	return order ? order : strcmp(a->name, b->name);
}

/* The end of the items that have the kind and name of the one at `from`. */
static size_t end_of(const struct inventory *inventory, size_t from)
{
	size_t end = from;

	while (end < inventory->count && compare_items(&inventory->items[from], &inventory->items[end]) == 0)
		end++;
	return end;
}

static int add_difference(struct husk_difference *out, const struct item *old, const struct item *new)
{
	const struct item *any = new ? new : old;

	if (!any)
		return -1;
	*out = (struct husk_difference){ .kind = any->kind,
					 .change = !old   ? HUSK_ADDED
						   : !new ? HUSK_REMOVED
							  : HUSK_CHANGED,
					 .name = strdup(any->name),
					 .before = old && old->version ? strdup(old->version) : NULL,
					 .after = new &&new->version ? strdup(new->version) : NULL };
	return out->name ? 0 : -1;
}

/* One group of equal names: versions that both have cancel out, the rest is paired. */
static int join_group(const struct inventory *old, size_t *i, size_t i_end, const struct inventory *new, size_t *j,
		      size_t j_end, struct husk_difference *list, size_t *count)
{
	int bad = 0;

	while (!bad && (*i < i_end || *j < j_end)) {
		const struct item *a = *i < i_end ? &old->items[*i] : NULL, *b = *j < j_end ? &new->items[*j] : NULL;
		bool same = a && b && str_equal(a->version ? a->version : "", b->version ? b->version : "");
		if (!same)
			bad = add_difference(&list[(*count)++], a, b);
		*i += a != NULL;
		*j += b != NULL;
	}
	return bad;
}

static int join(struct inventory *old, struct inventory *new, struct husk_difference **out, size_t *count,
		struct husk_error *err)
{
	struct husk_difference *list = calloc(old->count + new->count + 1, sizeof(*list));
	size_t i = 0, j = 0;
	int bad = list ? 0 : -1;

	*count = 0;
	inventory_sort(old);
	inventory_sort(new);
	while (!bad && (i < old->count || j < new->count)) {
		int order = i == old->count ? 1 : j == new->count ? -1 : compare_items(&old->items[i], &new->items[j]);
		bad = join_group(old, &i, order <= 0 ? end_of(old, i) : i, new, &j, order >= 0 ? end_of(new, j) : j,
				 list, count);
	}
	if (bad) {
		husk_difference_list_free(list, *count);
		return husk_fail_memory(err);
	}
	*out = list;
	return 0;
}

static int compare_sides(struct side *sides, unsigned what, struct husk_difference **out, size_t *count,
			 struct husk_error *err)
{
	struct husk_change **changes = NULL;
	int result = 0;

	if (what & HUSK_DIFF_PACKAGES)
		result = husk_diff(sides[1].husk, sides[1].sandbox, sides[0].sandbox, NULL, &changes, err);
	if (result == 0 && changes)
		result = add_packages(sides, changes, err);
	husk_change_list_free(changes);
	if (result == 0 && what & HUSK_DIFF_PROCESSES)
		result = add_running(&sides[0], err) < 0 ? -1 : add_running(&sides[1], err);
	return result == 0 ? join(&sides[0].inventory, &sides[1].inventory, out, count, err) : -1;
}

static void drop_sandbox(struct husk_sandbox **sandbox)
{
	husk_sandbox_free(*sandbox);
}

/* The state that a sandbox began with, or the one named. */
static int open_base(struct husk *husk, const struct husk_sandbox *row, bool is_copy, const char *base,
		     struct husk_moment *out, struct husk_error *err)
{
	struct husk_error why = { 0 };

	if (base || is_copy || !row->parent)
		return husk_moment_open(husk, base ? base : row->template_name, out, err);
	if (row->origin && husk_moment_open(husk, row->origin, out, &why) == 0)
		return 0;
	if (row->origin && why.code != HUSK_NOT_FOUND && why.code != HUSK_GONE)
		return husk_fail(err, why.code, "%s", why.message);
	return husk_fail(err, HUSK_GONE,
			 "the state that sandbox %s started from is no longer stored; name what to compare with",
			 row->id);
}

int husk_diff_system(struct husk *husk, const char *sandbox, const char *base, unsigned what,
		     struct husk_difference **out, size_t *count, struct husk_error *err)
{
	if (husk->remote)
		return remote_diff_system(husk->remote, sandbox, base, what, out, count, err);
	struct husk_moment new = { 0 }, old = { 0 };
	cleanup(drop_sandbox) struct husk_sandbox *row = NULL;
	int result = husk_moment_open(husk, sandbox, &new, err);

	if (result == 0)
		result = husk_inspect(husk, new.sandbox, &row, err);
	if (result == 0)
		result = open_base(husk, row, new.is_copy, base, &old, err);
	struct side sides[2] = { { .husk = husk, .sandbox = old.sandbox }, { .husk = husk, .sandbox = new.sandbox } };
	if (result == 0)
		result = compare_sides(sides, what, out, count, err);
	inventory_free(&sides[0].inventory);
	inventory_free(&sides[1].inventory);
	husk_moment_close(husk, &new);
	husk_moment_close(husk, &old);
	return result;
}
