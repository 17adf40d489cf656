/*
 * Which handler a request goes to: the tables of all families as one list, and the match of a path's segments against
 * a pattern's. Called by http.c. Must never look at the undecoded path to decide, nor at anything but whole segments.
 */
#include "server/core.h"

#define ROUTES_MAX 200

/* Filled once, before the first connection. */
static const struct route *all[ROUTES_MAX];
static size_t all_count;

int routes_setup(struct husk_error *err)
{
	static const struct route *const tables[] = {
		instance_routes,    sandbox_routes,     snapshot_routes,       template_routes,     event_routes,
		exec_routes,        pty_routes,         code_routes,           file_routes,         port_routes,
		mcp_routes,         e2b_sandbox_routes, e2b_snapshot_routes,   e2b_template_routes, e2b_build_routes,
		e2b_process_routes, e2b_file_routes,    e2b_filesystem_routes, e2b_code_routes,     egress_routes,
		volume_routes,      e2b_volume_routes,  e2b_secret_routes,     e2b_watcher_routes
	};

	all_count = 0;
	for (size_t i = 0; i < ARRAY_SIZE(tables); i++) {
		for (const struct route *route = tables[i]; route->method; route++) {
			if (all_count == ROUTES_MAX)
				return husk_fail(err, HUSK_INTERNAL, "more than %d routes", ROUTES_MAX);
			all[all_count++] = route;
		}
	}
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
			match->index = i;
			return 1;
		}
		path_known = true;
		allow_add(allow, size, all[i]->method);
	}
	match->count = 0;
	return path_known ? -1 : 0;
}
