/*
 * Finds the handler of a request: the tables of all families as one list, and the match of a path's segments against a
 * pattern. Called by http.c. The decision must never use the undecoded path, nor anything but whole segments.
 */
#include "server/core.h"

/* Filled once, before the first connection. */
static const struct route *all[ROUTES_MAX];
static const struct dialect *spoken[ROUTES_MAX]; /* the dialect of all[i]; NULL: the native API */
static size_t all_count;

static int add_tables(const struct route *const *tables, const struct dialect *dialect, struct husk_error *err)
{
	for (; *tables; tables++) {
		for (const struct route *route = *tables; route->method; route++) {
			if (all_count == ROUTES_MAX)
				return husk_fail(err, HUSK_INTERNAL, "more than %d routes", ROUTES_MAX);
			spoken[all_count] = dialect;
			all[all_count++] = route;
		}
	}
	return 0;
}

int routes_setup(struct husk_error *err)
{
	static const struct route *const native[] = { instance_routes,
						      sandbox_routes,
						      snapshot_routes,
						      point_routes,
						      effect_routes,
						      template_routes,
						      event_routes,
						      exec_routes,
						      pty_routes,
						      code_routes,
						      desktop_routes,
						      file_routes,
						      port_routes,
						      mcp_routes,
						      egress_routes,
						      volume_routes,
						      wire_routes,
						      owner_routes,
						      desktop_view_routes,
						      recording_routes,
						      browser_routes,
						      portable_routes,
						      NULL };

	all_count = 0;
	if (add_tables(native, NULL, err) < 0)
		return -1;
	for (size_t i = 0; dialects[i]; i++)
		if (add_tables(dialects[i]->tables, dialects[i], err) < 0)
			return -1;
	return 0;
}

size_t routes_count(void)
{
	return all_count;
}

const struct route *routes_at(size_t index)
{
	return index < all_count ? all[index] : NULL;
}

const struct dialect *routes_dialect(size_t index)
{
	return index < all_count ? spoken[index] : NULL;
}

static bool add_parameter(struct route_match *match, const char *name, size_t size, const char *value)
{
	if (match->count == PARAMETERS_MAX)
		return false;
	match->names[match->count] = name;
	match->name_size[match->count] = size;
	match->values[match->count++] = value;
	return true;
}

/* One segment of the pattern, [part, part + size), against one of the path. */
static bool match_segment(const char *part, size_t size, const char *segment, struct route_match *match)
{
	if (size > 2 && part[0] == '{')
		return *segment && add_parameter(match, part + 1, size - 2, segment);
	return strlen(segment) == size && memcmp(segment, part, size) == 0;
}

static bool match_path(const struct target *target, const char *pattern, struct route_match *match)
{
	size_t at = 0;

	match->count = 0;
	for (const char *part = pattern + 1;; at++) {
		const char *slash = strchr(part, '/');
		size_t size = slash ? (size_t)(slash - part) : strlen(part);

		if (at >= target->segment_count)
			return false;
		/* What follows is not ours to decode: it is handed on as it came. */
		if (size > 3 && part[0] == '{' && part[size - 2] == '*')
			return add_parameter(match, part + 1, size - 3, target->raw + target->segment_offset[at]);
		if (!match_segment(part, size, target->segments[at], match))
			return false;
		if (!slash)
			return at + 1 == target->segment_count;
		part = slash + 1;
	}
}

static bool method_fits(const char *wanted, const char *method)
{
	return str_equal(wanted, "*") || str_equal(wanted, method) ||
	       (str_equal(method, "HEAD") && str_equal(wanted, "GET"));
}

static void allow_add(char *allow, size_t size, const char *method)
{
	size_t used = strlen(allow);

	if (!strstr(allow, method))
		snprintf(allow + used, size - used, "%s%s", used ? ", " : "", method);
	if (str_equal(method, "GET"))
		allow_add(allow, size, "HEAD");
}

int route_find(const struct target *target, const char *method, struct route_match *match, char *allow, size_t size)
{
	bool path_known = false;

	allow[0] = '\0';
	for (size_t i = 0; i < all_count; i++) {
		if (!match_path(target, all[i]->path, match))
			continue;
		if (method_fits(all[i]->method, method)) {
			match->route = all[i];
			match->dialect = spoken[i];
			match->index = i;
			return 1;
		}
		path_known = true;
		allow_add(allow, size, all[i]->method);
	}
	match->count = 0;
	return path_known ? -1 : 0;
}
