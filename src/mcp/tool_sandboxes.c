/*
 * The tools for sandboxes: create, list, fork, explore, snapshot, hibernate, kill, and a link to a port. Each is a thin layer over
 * libhusk; mcp_session.c decides which sandboxes may be used.
 */
#include "mcp/tools.h"

#define LIST_MAX 200
#define EXPLORE_MAX 16 /* branches of one call of a model */

/* ---- create ---- */

/* A snapshot may contain its owner's secrets: for a caller who may not use it, it does not exist. */
static int check_snapshot(struct tool_call *call, const char *name, struct husk_error *err)
{
	cleanup_snapshots struct husk_snapshot **list = NULL;

	if (!name || call->session->everything)
		return 0;
	if (strchr(name, '@')) /* a checkpoint of a sandbox */
		return session_check_state(call, "snapshot", name, err);
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
	if (tool_string(call, "checkpoints"))
		options->checkpoints = tool_string(call, "checkpoints");
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

/* The options of a copy: it belongs to the session, as its parent does. `seconds` must outlive them. */
static struct husk_create_options copy_options(struct tool_call *call, const char *seconds, struct husk_pair marks[4])
{
	marks[0] = (struct husk_pair){ MARK_SESSION, call->session->id ? call->session->id : MARK_NONE };
	marks[1] = (struct husk_pair){ MARK_TTL, seconds };
	marks[2] = (struct husk_pair){ MARK_DEFAULT, MARK_NONE };
	marks[3] = (struct husk_pair){ MARK_PARENT, call->sandbox };
	return (struct husk_create_options){ .ttl_seconds = call->session->defaults.ttl_seconds,
					     .metadata = marks,
					     .metadata_count = 4 };
}

int tool_fork_sandbox(struct tool_call *call, struct husk_error *err)
{
	cleanup_free char *seconds = str_format("%lld", (long long)call->session->defaults.ttl_seconds);
	struct husk_pair marks[4];
	cleanup_sandboxes struct husk_sandbox **made = NULL;
	cleanup_json json_t *forks = json_array();

	if (!seconds || !forks)
		return husk_fail_memory(err);
	if (session_sandbox(call, NEED_EXISTING, 0, err) < 0)
		return -1;
	const struct husk_create_options options = copy_options(call, seconds, marks);
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

/* ---- explore ---- */

static int say_branches(struct tool_call *call, const struct husk_branch *list, size_t count, bool promoted,
			struct husk_error *err)
{
	cleanup_buf struct buf text = { 0 };
	int bad = !list[0].scored ? buf_printf(&text, "no plan has a score; sandbox %s is as it was", call->sandbox)
		  : promoted      ? buf_printf(&text, "sandbox %s goes on as the best branch", call->sandbox)
			     : buf_printf(&text, "the branches that were kept go on beside sandbox %s", call->sandbox);

	for (size_t i = 0; i < count; i++) {
		bad |= list[i].scored
			       ? buf_printf(&text, "\n%g", list[i].score)
			       : buf_printf(&text, "\nno score (%s)", list[i].error ? list[i].error : "not tried");
		bad |= list[i].kept && !promoted ? buf_printf(&text, " in sandbox %s", list[i].sandbox) : 0;
		bad |= buf_printf(&text, ": %s", list[i].plan);
	}
	return bad ? husk_fail_memory(err) : tool_sayf(call, err, "%s", text.data);
}

int tool_explore_sandbox(struct tool_call *call, struct husk_error *err)
{
	const json_t *plans = json_object_get(call->arguments, "plans");
	size_t count = json_array_size(plans), keep = (size_t)tool_int(call, "keep", 1);
	const char *commands[EXPLORE_MAX];
	cleanup_free char *seconds = str_format("%lld", (long long)call->session->defaults.ttl_seconds);
	struct husk_pair marks[4];
	struct husk_branch *branches = NULL;

	if (!seconds)
		return husk_fail_memory(err);
	if (count < 1 || count > EXPLORE_MAX)
		return husk_fail_field(err, "plans", "give 1 to %d plans", EXPLORE_MAX);
	for (size_t i = 0; i < count; i++)
		commands[i] = json_string_value(json_array_get(plans, i));
	if (session_sandbox(call, NEED_EXISTING, 0, err) < 0)
		return -1;
	const struct husk_create_options forks = copy_options(call, seconds, marks);
	const struct husk_explore_options options = { .score = tool_string(call, "score"),
						      .keep = keep,
						      .budget_ms = tool_int(call, "budget_seconds", 300) * 1000,
						      .no_promote = json_is_false(
							      json_object_get(call->arguments, "promote")),
						      .options = &forks };
	if (husk_explore(call->session->husk, call->sandbox, commands, count, &options, &branches, err) < 0)
		return -1;
	json_t *list = json_branches(branches, count);
	int result = say_branches(call, branches, count, keep == 1 && !options.no_promote, err);
	husk_branch_list_free(branches, count);
	if (result < 0)
		json_decref(list);
	return result < 0 ? -1 : tool_give(call, json_pack("{s:o}", "branches", list), err);
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
