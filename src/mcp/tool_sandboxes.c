/*
 * The tools for sandboxes: create, list, fork, snapshot, hibernate, kill, and a link to a port. Each is a thin layer over
 * libhusk; mcp_session.c decides which sandboxes may be used.
 */
#include "mcp/tools.h"

#define LIST_MAX 200

/* ---- create ---- */

/* A snapshot may contain its owner's secrets: for a caller who may not use it, it does not exist. */
static int check_snapshot(struct tool_call *call, const char *name, struct husk_error *err)
{
	cleanup_snapshots struct husk_snapshot **list = NULL;

	if (!name || call->session->everything)
		return 0;
	if (husk_snapshot_list(call->session->husk, &list, err) < 0)
		return -1;
	for (size_t i = 0; list[i]; i++)
		if ((str_equal(list[i]->id, name) || str_equal(list[i]->name, name)) &&
		    session_has_snapshot(call->session, list[i]))
			return 0;
	husk_fail_field(err, "snapshot", "there is no snapshot '%.64s' for you; list_sandboxes names those there are",
			name);
	err->code = HUSK_NOT_FOUND;
	return -1;
}

static void fill_options(struct tool_call *call, struct husk_create_options *options)
{
	const json_t *cpus = json_object_get(call->arguments, "cpus");
	int64_t memory_mb = tool_int(call, "memory_mb", 0);

	options->name = NULL; /* a name can belong to one sandbox only */
	options->ttl_seconds = tool_int(call, "ttl_seconds", options->ttl_seconds);
	if (tool_string(call, "template") || tool_string(call, "snapshot")) {
		options->template_name = tool_string(call, "template");
		options->snapshot = tool_string(call, "snapshot");
	}
	if (memory_mb)
		options->memory_bytes = (uint64_t)memory_mb << 20;
	if (cpus)
		options->cpu_milli = (uint32_t)(json_number_value(cpus) * 1000 + 0.5);
}

static int give_created(struct tool_call *call, const struct husk_sandbox *made, bool is_default,
			struct husk_error *err)
{
	call->sandbox = strdup(made->id);
	if (!call->sandbox)
		return husk_fail_memory(err);
	if (tool_sayf(call, err, "made sandbox %s from %s, behind %s%s; pass \"sandbox\": \"%s\" to use it", made->id,
		      made->template_name ? made->template_name : "a snapshot",
		      made->boundary ? made->boundary : made->isolation,
		      is_default ? "; it is this session's own from now on" : "", made->id) < 0)
		return -1;
	return tool_give(call,
			 json_pack("{s:o, s:s, s:o, s:o}", "template",
				   json_string(made->template_name ? made->template_name : ""), "state",
				   husk_state_name(made->state), "isolation", json_text0(made->isolation), "expires_at",
				   json_time(made->expires_ms)),
			 err);
}

int tool_create_sandbox(struct tool_call *call, struct husk_error *err)
{
	struct husk_create_options options = call->session->defaults;
	cleanup_free struct husk_pair *environment = NULL;
	cleanup_sandbox struct husk_sandbox *made = NULL, *own = NULL;
	bool keep = tool_bool(call, "keep");

	if (tool_string(call, "template") && tool_string(call, "snapshot"))
		return husk_fail_field(err, "snapshot", "give 'template' or 'snapshot', not both");
	if (check_snapshot(call, tool_string(call, "snapshot"), err) < 0 || session_default(call, &own, err) < 0)
		return -1;
	fill_options(call, &options);
	if (json_object_get(call->arguments, "env")) {
		if (tool_pairs(call, "env", &environment, &options.environment_count, err) < 0)
			return -1;
		options.environment = environment;
	}
	/* The first sandbox of a session becomes the default for calls that name none. */
	bool as_default = call->shared && call->session->id && !call->session->fixed && !keep &&
			  (!own || own->state == HUSK_ENDED);
	if (session_create(call, &options, keep, as_default, NULL, &made, err) < 0)
		return -1;
	return give_created(call, made, as_default, err);
}

/* ---- list ---- */

static json_t *sandbox_json(const struct husk_sandbox *sandbox, const char *own)
{
	const char *session = session_mark(sandbox, MARK_DEFAULT);

	return json_pack("{s:s, s:o, s:s, s:o, s:o, s:o, s:b}", "sandbox", sandbox->id, "name",
			 json_text0(sandbox->name), "state", husk_state_name(sandbox->state), "template",
			 json_text0(sandbox->template_name), "created_at", json_time(sandbox->created_ms), "expires_at",
			 json_time(sandbox->expires_ms), "default", own && str_equal(session, own));
}

static int add_sandboxes(struct tool_call *call, json_t *out, struct husk_error *err)
{
	const struct husk_filter filter = { 0 };
	cleanup_sandboxes struct husk_sandbox **list = NULL;

	if (husk_list(call->session->husk, &filter, &list, err) < 0)
		return -1;
	for (size_t i = 0; list[i] && json_array_size(out) < LIST_MAX; i++)
		if (session_has(call->session, list[i]) &&
		    json_array_append_new(out, sandbox_json(list[i], call->session->id)) < 0)
			return husk_fail_memory(err);
	return 0;
}

static int add_templates(struct tool_call *call, json_t *out, struct husk_error *err)
{
	cleanup_templates struct husk_template **list = NULL;

	if (husk_template_list(call->session->husk, &list, err) < 0)
		return -1;
	for (size_t i = 0; list[i] && json_array_size(out) < LIST_MAX; i++)
		if (json_array_append_new(out, json_pack("{s:o, s:o}", "name", json_text0(list[i]->name), "description",
							 json_text0(list[i]->description))) < 0)
			return husk_fail_memory(err);
	return 0;
}

static int add_snapshots(struct tool_call *call, json_t *out, struct husk_error *err)
{
	cleanup_snapshots struct husk_snapshot **list = NULL;

	if (husk_snapshot_list(call->session->husk, &list, err) < 0)
		return -1;
	for (size_t i = 0; list[i] && json_array_size(out) < LIST_MAX; i++)
		if (session_has_snapshot(call->session, list[i]) &&
		    json_array_append_new(out, json_pack("{s:s, s:o, s:o, s:o}", "snapshot", list[i]->id, "name",
							 json_text0(list[i]->name), "of", json_text0(list[i]->sandbox),
							 "created_at", json_time(list[i]->created_ms))) < 0)
			return husk_fail_memory(err);
	return 0;
}

int tool_list_sandboxes(struct tool_call *call, struct husk_error *err)
{
	cleanup_json json_t *all = json_pack("{s:[], s:[], s:[]}", "sandboxes", "templates", "snapshots");

	if (!all)
		return husk_fail_memory(err);
	if (add_sandboxes(call, json_object_get(all, "sandboxes"), err) < 0 ||
	    add_templates(call, json_object_get(all, "templates"), err) < 0 ||
	    add_snapshots(call, json_object_get(all, "snapshots"), err) < 0)
		return -1;
	cleanup_free char *text = json_dumps(all, JSON_INDENT(1));
	if (!text)
		return husk_fail_memory(err);
	return tool_say(call, text, strlen(text), err) < 0 ? -1 : tool_give(call, json_incref(all), err);
}

/* ---- fork, snapshot, hibernate, kill ---- */

int tool_fork_sandbox(struct tool_call *call, struct husk_error *err)
{
	int64_t ttl = call->session->defaults.ttl_seconds;
	cleanup_free char *seconds = str_format("%lld", (long long)ttl);
	struct husk_pair marks[] = { { MARK_SESSION, call->session->id ? call->session->id : MARK_NONE },
				     { MARK_TTL, seconds },
				     { MARK_DEFAULT, MARK_NONE },
				     { MARK_PARENT, NULL } };
	const struct husk_create_options options = { .ttl_seconds = ttl,
						     .metadata = marks,
						     .metadata_count = ARRAY_SIZE(marks) };
	cleanup_sandboxes struct husk_sandbox **made = NULL;
	cleanup_json json_t *forks = json_array();

	if (!seconds || !forks)
		return husk_fail_memory(err);
	if (session_sandbox(call, NEED_EXISTING, 0, err) < 0)
		return -1;
	marks[3].value = call->sandbox;
	if (husk_fork(call->session->husk, call->sandbox, (size_t)tool_int(call, "count", 1), &options, &made, err) < 0)
		return -1;
	for (size_t i = 0; made[i]; i++)
		if (json_array_append_new(forks, json_string(made[i]->id)) < 0)
			return husk_fail_memory(err);
	cleanup_free char *list = json_dumps(forks, 0);
	if (!list)
		return husk_fail_memory(err);
	if (tool_sayf(call, err, "copies of %s: %s; pass one as \"sandbox\" to use it", call->sandbox, list) < 0)
		return -1;
	return tool_give(call, json_pack("{s:O}", "forks", forks), err);
}

int tool_snapshot_sandbox(struct tool_call *call, struct husk_error *err)
{
	cleanup_snapshot struct husk_snapshot *snapshot = NULL;

	if (session_sandbox(call, NEED_EXISTING, 0, err) < 0 ||
	    husk_snapshot_create(call->session->husk, call->sandbox, tool_string(call, "name"), &snapshot, err) < 0)
		return -1;
	if (tool_sayf(call, err,
		      "saved sandbox %s as snapshot %s; create_sandbox with \"snapshot\": \"%s\" goes on from it",
		      call->sandbox, snapshot->id, snapshot->name ? snapshot->name : snapshot->id) < 0)
		return -1;
	return tool_give(call,
			 json_pack("{s:s, s:o, s:I}", "snapshot", snapshot->id, "name", json_text0(snapshot->name),
				   "bytes", (json_int_t)snapshot->bytes),
			 err);
}

static int give_state(struct tool_call *call, enum husk_state state, struct husk_error *err)
{
	if (tool_sayf(call, err, "sandbox %s is %s", call->sandbox, husk_state_name(state)) < 0)
		return -1;
	return tool_give(call, json_pack("{s:s}", "state", husk_state_name(state)), err);
}

int tool_hibernate_sandbox(struct tool_call *call, struct husk_error *err)
{
	if (session_sandbox(call, NEED_EXISTING, 0, err) < 0 ||
	    husk_hibernate(call->session->husk, call->sandbox, err) < 0)
		return -1;
	return give_state(call, HUSK_HIBERNATED, err);
}

int tool_kill_sandbox(struct tool_call *call, struct husk_error *err)
{
	if (session_sandbox(call, NEED_EXISTING, 0, err) < 0)
		return -1;
	if (str_equal(call->session->fixed, call->sandbox))
		return husk_fail(err, HUSK_DENIED,
				 "sandbox %s was given to this session by the operator; only they remove it",
				 call->sandbox);
	if (husk_kill(call->session->husk, call->sandbox, err) < 0)
		return -1;
	return give_state(call, HUSK_ENDED, err);
}

/* ---- ports ---- */

int tool_expose_port(struct tool_call *call, struct husk_error *err)
{
	struct mcp_session *session = call->session;
	cleanup_free char *url = NULL;
	int64_t expires_ms = 0;

	if (!session->link)
		return husk_fail(
			err, HUSK_UNAVAILABLE,
			"there is no server to link to over stdio; ask the user to run 'husk serve' and to connect "
			"to its /mcp, or use the port from inside the sandbox (curl http://127.0.0.1:%lld)",
			(long long)tool_int(call, "port", 0));
	if (session_sandbox(call, NEED_EXISTING, 0, err) < 0 ||
	    session->link(session->data, call->sandbox, (uint16_t)tool_int(call, "port", 0),
			  tool_int(call, "expires_seconds", 3600), &url, &expires_ms, err) < 0 ||
	    tool_sayf(call, err, "%s", url) < 0)
		return -1;
	return tool_give(call, json_pack("{s:s, s:o}", "url", url, "expires_at", json_time(expires_ms)), err);
}
