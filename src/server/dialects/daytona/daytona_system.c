/*
 * Daytona's toolbox routes about the sandbox itself: directories, version, usage, listening ports; and the change of the
 * environment for processes that start later. Ports are read from the guest's /proc: they are the guest's claim, shown and
 * not used otherwise.
 */
#include "server/dialects/daytona/daytona.h"

#define TABLE_MAX (1u << 20)

static int respond_directory(struct request *request, struct husk_error *err)
{
	cleanup_box struct daytona_box box = { 0 };

	if (daytona_enter(request, &box, err) < 0)
		return -1;
	return respond_json(request, 200, json_pack("{s:o}", "dir", json_text0(box.home)), err);
}

static int handle_version(struct request *request, struct husk_error *err)
{
	return respond_json(request, 200, json_pack("{s:s}", "version", DAYTONA_DAEMON_VERSION), err);
}

/* The current values, over a tenth of a second. */
static int handle_metrics(struct request *request, struct husk_error *err)
{
	cleanup_box struct daytona_box box = { 0 };
	struct husk_stats now;
	double used;

	if (daytona_enter(request, &box, err) < 0)
		return -1;
	int64_t at = time_wall_ms();
	if (dialect_usage(request_husk(request), box.sandbox->id, &now, &used, err) < 0)
		return -1;
	/* clang-format off */
	return respond_json(request, 200, json_pack(
		"{s:o, s:I, s:I, s:f, s:I, s:I, s:I, s:I, s:I, s:I}",
		"timestamp", json_time(at),
		"timestampUnix", (json_int_t)(at / 1000),
		"cpuCount", (json_int_t)MAX(1u, (box.sandbox->cpu_milli + 999) / 1000),
		"cpuUsedPct", used,
		"memUsed", (json_int_t)now.memory_bytes,
		"memTotal", (json_int_t)now.memory_limit,
		"memCache", (json_int_t)0,
		"diskUsed", (json_int_t)now.disk_bytes,
		"diskTotal", (json_int_t)now.disk_limit,
		"diskFree", (json_int_t)(now.disk_limit - MIN(now.disk_bytes, now.disk_limit))), err);
	/* clang-format on */
}

/* ---- ports ---- */

static int keep(void *data, const void *bytes, size_t size)
{
	struct buf *text = data;

	return text->size + size > TABLE_MAX || buf_append(text, bytes, size) < 0 ? -1 : 0;
}

/* Lines "  0: 0100007F:1F40 00000000:0000 0A …": state 0A listens. */
static void read_table(const char *text, bool *listens)
{
	while (text && *text) {
		unsigned port = 0, state = 0;
		if (sscanf(text, " %*d: %*[0-9A-Fa-f]:%x %*[0-9A-Fa-f]:%*x %x", &port, &state) == 2 && state == 0x0a &&
		    port <= 65535)
			listens[port] = true;
		text = strchr(text, '\n');
		text = text ? text + 1 : NULL;
	}
}

/* Caller frees; by port. */
static bool *listening(struct request *request, const struct daytona_box *box, struct husk_error *err)
{
	static const char *const tables[] = { "/proc/net/tcp", "/proc/net/tcp6" };
	bool *listens = calloc(65536, sizeof(*listens));

	for (size_t i = 0; listens && i < ARRAY_SIZE(tables); i++) {
		cleanup_buf struct buf text = { 0 };
		if (husk_file_read(request_husk(request), box->sandbox->id, tables[i], 0, 0, keep, &text, NULL) == 0)
			read_table(text.data, listens);
	}
	if (!listens)
		husk_fail_memory(err);
	return listens;
}

static int handle_ports(struct request *request, struct husk_error *err)
{
	cleanup_box struct daytona_box box = { 0 };
	cleanup_json json_t *array = json_array();

	if (daytona_enter(request, &box, err) < 0)
		return -1;
	cleanup_free bool *listens = listening(request, &box, err);
	if (!listens || !array)
		return -1;
	for (int port = 3000; port < 10000; port++) /* the ports that Daytona forwards */
		if (listens[port])
			json_array_append_new(array, json_integer(port));
	return respond_json(request, 200, json_pack("{s:O}", "ports", array), err);
}

static int handle_port(struct request *request, struct husk_error *err)
{
	cleanup_box struct daytona_box box = { 0 };
	int64_t port;

	if (str_to_int64(request_path(request, "port"), 3000, 9999, &port) < 0)
		return husk_fail_field(err, "port", "port must be between 3000 and 9999");
	if (daytona_enter(request, &box, err) < 0)
		return -1;
	cleanup_free bool *listens = listening(request, &box, err);
	if (!listens)
		return -1;
	return respond_json(request, 200, json_pack("{s:b}", "isInUse", listens[port]), err);
}

/* ---- the environment ---- */

static int change_environment(struct request *request, json_t *body, struct husk_error *err)
{
	json_t *set = json_object_get(body, "set"), *unset = json_object_get(body, "unset"), *value;
	cleanup_box struct daytona_box box = { 0 };
	const char *name;
	size_t i;

	if (daytona_enter(request, &box, err) < 0)
		return -1;
	json_t *kept = json_object_get(box.settings, "changed");
	cleanup_json json_t *changes = kept ? json_deep_copy(kept) : json_object();
	json_object_foreach(set, name, value)
	{
		if (!json_is_string(value) || !*name || strchr(name, '='))
			return husk_fail_field(err, "set", "'set.%.80s' must be a string", name);
		json_object_set(changes, name, value);
	}
	json_array_foreach(unset, i, value)
	{
		if (!json_is_string(value))
			return husk_fail_field(err, "unset", "'unset[%zu]' must be a string", i);
		json_object_set_new(changes, json_string_value(value), json_string(""));
	}
	if (daytona_set(&box, "changed", json_incref(changes), err) < 0)
		return -1;
	return daytona_save(request, &box, NULL, err);
}

static int handle_environment(struct request *request, struct husk_error *err)
{
	json_t *body = request_json(request, err);

	if (!body)
		return -1;
	if (json_object_get(body, "set") && !json_is_object(json_object_get(body, "set")))
		return husk_fail_field(err, "set", "'set' must be an object of strings");
	daytona_lock();
	int result = change_environment(request, body, err);
	daytona_unlock();
	return result < 0 ? -1 : respond_json(request, 200, json_pack("{s:s}", "message", "environment updated"), err);
}

const struct route daytona_system_routes[] = {
	{ "GET", DAYTONA_TOOLBOX "/user-home-dir", respond_directory, 0 },
	{ "GET", DAYTONA_TOOLBOX "/work-dir", respond_directory, 0 },
	{ "GET", DAYTONA_TOOLBOX "/project-dir", respond_directory, 0 },
	{ "GET", DAYTONA_TOOLBOX "/version", handle_version, 0 },
	{ "GET", DAYTONA_TOOLBOX "/system/metrics", handle_metrics, 0 },
	{ "GET", DAYTONA_TOOLBOX "/port", handle_ports, 0 },
	{ "GET", DAYTONA_TOOLBOX "/port/{port}/in-use", handle_port, 0 },
	{ "POST", DAYTONA_TOOLBOX "/env", handle_environment, 0 },
	{ 0 },
};
