/*
 * Decides which sandbox a call uses. All state between calls is metadata of the sandboxes in the catalog. So a program
 * that is killed and started again finds its sandboxes; if it never starts again, their TTL ends them. Called by the
 * tools, and by the transports at the end of a session. A sandbox that the caller may not use must never be returned,
 * and one that was not created over MCP must never be ended.
 */
#include "mcp/tools.h"

/* ---- marks ---- */

const char *session_mark(const struct husk_sandbox *sandbox, const char *key)
{
	for (size_t i = 0; i < sandbox->metadata_count; i++)
		if (str_equal(sandbox->metadata[i].key, key))
			return sandbox->metadata[i].value;
	return NULL;
}

/* Made over MCP, and not a fork of such a sandbox that was made elsewhere. */
static bool is_ours(const struct husk_sandbox *sandbox)
{
	bool forked = sandbox->parent && str_starts(sandbox->parent, "sb-");

	return session_mark(sandbox, MARK_SESSION) &&
	       (!forked || str_equal(session_mark(sandbox, MARK_PARENT), sandbox->parent));
}

bool session_has(const struct mcp_session *session, const struct husk_sandbox *sandbox)
{
	return session->everything || is_ours(sandbox) || str_equal(session->fixed, sandbox->id);
}

bool session_has_snapshot(const struct mcp_session *session, const struct husk_snapshot *snapshot)
{
	cleanup_sandbox struct husk_sandbox *from = NULL;

	if (session->everything)
		return true;
	return snapshot->sandbox && husk_inspect(session->husk, snapshot->sandbox, &from, NULL) == 0 &&
	       session_has(session, from);
}

/* ---- time ---- */

static int64_t own_ttl(const struct husk_sandbox *sandbox)
{
	const char *text = session_mark(sandbox, MARK_TTL);
	int64_t ttl = 0;

	return text && str_to_int64(text, 1, INT64_C(365) * 86400, &ttl) == 0 ? ttl : 0;
}

/* A sandbox made over MCP lives for its TTL after the last use, and at least through the call. Other sandboxes keep the
 * TTL that they were created with. */
static int renew(struct husk *husk, const struct husk_sandbox *sandbox, int64_t ms, struct husk_error *err)
{
	int64_t ttl = is_ours(sandbox) ? own_ttl(sandbox) : 0, wanted = MAX(ttl, ms / 1000 + 60);

	if (!ttl || sandbox->persistent || sandbox->expires_ms - time_wall_ms() >= wanted * 1000 - ttl * 250)
		return 0;
	return husk_extend(husk, sandbox->id, wanted, false, NULL, err);
}

/* ---- which one ---- */

static int fail_ended(const struct husk_sandbox *sandbox, struct husk_error *err)
{
	return husk_fail(err, HUSK_GONE,
			 "sandbox %s has ended (%s), with everything in it; leave 'sandbox' out to get a new one",
			 sandbox->id, sandbox->end_reason ? sandbox->end_reason : "removed");
}

/* A live sandbox that the session may use; `field` is the argument that names it. */
static int find_named(struct tool_call *call, const char *field, const char *name, struct husk_sandbox **out,
		      struct husk_error *err)
{
	struct husk_error why = { 0 };

	bool found = husk_inspect(call->session->husk, name, out, &why) == 0;
	if (!found && why.code != HUSK_NOT_FOUND) {
		*err = why;
		return -1;
	}
	if (!found || !session_has(call->session, *out)) {
		husk_fail_field(err, field, "there is no sandbox '%.64s' for you; list_sandboxes names those there are",
				name);
		err->code = HUSK_NOT_FOUND;
		return -1;
	}
	return (*out)->state == HUSK_ENDED ? fail_ended(*out, err) : 0;
}

static int use_named(struct tool_call *call, const char *name, int64_t ms, struct husk_error *err)
{
	cleanup_sandbox struct husk_sandbox *sandbox = NULL;

	if (find_named(call, "sandbox", name, &sandbox, err) < 0)
		return -1;
	call->sandbox = strdup(sandbox->id);
	return call->sandbox ? renew(call->session->husk, sandbox, ms, err) : husk_fail_memory(err);
}

int session_check(struct tool_call *call, const char *field, const char *name, struct husk_error *err)
{
	cleanup_sandbox struct husk_sandbox *sandbox = NULL;

	return name ? find_named(call, field, name, &sandbox, err) : 0;
}

/* A template that is no snapshot too: the word would mean the snapshot, which may be another session's. */
static bool only_template(struct husk *husk, const char *word)
{
	struct husk_template **templates = NULL;
	struct husk_snapshot **snapshots = NULL;
	bool found = false;

	if (husk_template_list(husk, &templates, NULL) == 0)
		for (size_t i = 0; templates[i]; i++)
			found |= str_equal(templates[i]->name, word);
	if (found && husk_snapshot_list(husk, &snapshots, NULL) == 0)
		for (size_t i = 0; snapshots[i]; i++) {
			found &= !str_equal(snapshots[i]->name, word);
			for (char **tag = snapshots[i]->tags; tag && *tag; tag++)
				found &= !str_equal(*tag, word);
		}
	bool known = snapshots != NULL;
	husk_snapshot_list_free(snapshots);
	husk_template_list_free(templates);
	return found && known;
}

int session_check_state(struct tool_call *call, const char *field, const char *word, struct husk_error *err)
{
	const char *at = word ? strchr(word, '@') : NULL;
	cleanup_free char *sandbox = at ? strndup(word, (size_t)(at - word)) : NULL;

	if (at)
		return sandbox ? session_check(call, field, sandbox, err) : husk_fail_memory(err);
	if (!word || session_check(call, field, word, err) == 0)
		return 0;
	return err->code == HUSK_NOT_FOUND && only_template(call->session->husk, word) ? 0 : -1;
}

int session_default(struct tool_call *call, struct husk_sandbox **out, struct husk_error *err)
{
	const struct husk_pair mark = { MARK_DEFAULT, call->session->id };
	const struct husk_filter filter = { .with_ended = true, .metadata = &mark, .metadata_count = 1 };
	cleanup_sandboxes struct husk_sandbox **list = NULL;
	const struct husk_sandbox *found = NULL;

	*out = NULL;
	if (!call->shared || !call->session->id)
		return 0;
	if (husk_list(call->session->husk, &filter, &list, err) < 0)
		return -1;
	/* Newest first: the live one, otherwise the last one. */
	for (size_t i = 0; list[i]; i++)
		if (is_ours(list[i]) && (!found || (found->state == HUSK_ENDED && list[i]->state != HUSK_ENDED)))
			found = list[i];
	return found ? husk_inspect(call->session->husk, found->id, out, err) : 0;
}

static int make_default(struct tool_call *call, const struct husk_sandbox *before, int64_t ms, struct husk_error *err)
{
	struct husk_create_options options = call->session->defaults;
	cleanup_sandbox struct husk_sandbox *made = NULL;
	bool shared = call->shared && call->session->id;
	/* Two concurrent calls must not create two sandboxes: with the same key, both get the same one. */
	cleanup_free char *key =
		shared ? str_format("mcp:%s:%s", call->session->id, before ? before->id : "first") : NULL;

	if (shared && !key)
		return husk_fail_memory(err);
	if (session_create(call, &options, false, shared, key, &made, err) < 0)
		return -1;
	call->sandbox = strdup(made->id);
	if (before)
		call->note = str_format("the earlier sandbox %s of this session has ended (%s) with everything in it; "
					"this is a new one",
					before->id, before->end_reason ? before->end_reason : "removed");
	else if (!shared)
		call->note = str_format("a new sandbox was made; pass \"sandbox\": \"%s\" to go on in it", made->id);
	if (!call->sandbox || ((before || !shared) && !call->note))
		return husk_fail_memory(err);
	return renew(call->session->husk, made, ms, err);
}

int session_sandbox(struct tool_call *call, enum need need, int64_t ms, struct husk_error *err)
{
	const char *named = tool_string(call, "sandbox");
	cleanup_sandbox struct husk_sandbox *own = NULL;

	if (named || call->session->fixed)
		return use_named(call, named ? named : call->session->fixed, ms, err);
	if (session_default(call, &own, err) < 0)
		return -1;
	if (own && own->state != HUSK_ENDED) {
		call->sandbox = strdup(own->id);
		return call->sandbox ? renew(call->session->husk, own, ms, err) : husk_fail_memory(err);
	}
	if (need == NEED_ANY)
		return make_default(call, own, ms, err);
	if (own)
		return fail_ended(own, err);
	return husk_fail_field(err, "sandbox",
			       "'sandbox' is missing, and %s; run_command, write_file and create_sandbox make one",
			       call->shared ? "this session has none yet" : "there is no other way to tell which one");
}

/* ---- making one ---- */

int session_create(struct tool_call *call, struct husk_create_options *options, bool keep, bool as_default,
		   const char *key, struct husk_sandbox **made, struct husk_error *err)
{
	const struct mcp_session *session = call->session;
	const char *own = session->id ? session->id : MARK_NONE;
	char ttl[24];
	cleanup_free struct husk_pair *metadata = calloc(options->metadata_count + 3, sizeof(*metadata));

	if (!metadata)
		return husk_fail_memory(err);
	size_t count = options->metadata_count;
	if (count)
		memcpy(metadata, options->metadata, count * sizeof(*metadata));
	options->ttl_seconds = options->ttl_seconds ? options->ttl_seconds : MCP_TTL_SECONDS;
	snprintf(ttl, sizeof(ttl), "%lld", (long long)options->ttl_seconds);
	metadata[count++] = (struct husk_pair){ MARK_SESSION, keep ? MARK_KEPT : own };
	metadata[count++] = (struct husk_pair){ MARK_TTL, ttl };
	if (as_default)
		metadata[count++] = (struct husk_pair){ MARK_DEFAULT, session->id };
	options->metadata = metadata;
	options->metadata_count = count;
	options->idempotency_key = key;
	int result = session->create(session->data, options, made, err);
	options->metadata = NULL;
	options->metadata_count = 0;
	return result;
}

static int take_seconds(const char *name, int64_t *out, struct husk_error *err)
{
	const char *text = getenv(name);

	if (!text || *out)
		return 0;
	if (str_to_seconds(text, out) < 0 || *out < 1)
		return husk_fail_field(err, name, "%s is not a time; give 90, 15m or 2h", name);
	return 0;
}

int mcp_session_defaults(struct husk_create_options *options, struct husk_error *err)
{
	const char *memory = getenv("HUSK_MCP_MEMORY"), *cpus = getenv("HUSK_MCP_CPUS");
	char *end = NULL;

	if (!options->snapshot && !options->template_name) {
		options->snapshot = getenv("HUSK_MCP_SNAPSHOT");
		options->template_name = options->snapshot ? NULL : getenv("HUSK_MCP_TEMPLATE");
	}
	if (take_seconds("HUSK_MCP_TTL", &options->ttl_seconds, err) < 0 ||
	    take_seconds("HUSK_MCP_IDLE", &options->idle_seconds, err) < 0)
		return -1;
	if (memory && !options->memory_bytes && str_to_size(memory, 1 << 20, &options->memory_bytes) < 0)
		return husk_fail_field(err, "HUSK_MCP_MEMORY", "HUSK_MCP_MEMORY is not a size; give 512M or 2G");
	if (cpus && !options->cpu_milli) {
		double number = strtod(cpus, &end);
		if (*end || !(number >= 0.05 && number <= 1024))
			return husk_fail_field(err, "HUSK_MCP_CPUS", "HUSK_MCP_CPUS is not a number from 0.05 to 1024");
		options->cpu_milli = (uint32_t)(number * 1000 + 0.5);
	}
	if (!options->ttl_seconds)
		options->ttl_seconds = MCP_TTL_SECONDS;
	if (!options->idle_seconds)
		options->idle_seconds = MIN(MCP_IDLE_SECONDS, options->ttl_seconds);
	return 0;
}

/* ---- all of a session ---- */

static int list_own(struct mcp_session *session, struct husk_sandbox ***out, struct husk_error *err)
{
	const struct husk_pair mark = { MARK_SESSION, session->id };
	const struct husk_filter filter = { .metadata = &mark, .metadata_count = 1 };

	return husk_list(session->husk, &filter, out, err);
}

int mcp_session_end(struct mcp_session *session, struct husk_error *err)
{
	cleanup_sandboxes struct husk_sandbox **list = NULL;
	int count = 0;
	bool failed = false;

	if (!session->id)
		return 0;
	if (list_own(session, &list, err) < 0)
		return -1;
	for (size_t i = 0; list[i]; i++) {
		struct husk_error why = { 0 };
		if (!is_ours(list[i]))
			continue;
		if (husk_kill(session->husk, list[i]->id, &why) == 0 || why.code == HUSK_GONE ||
		    why.code == HUSK_NOT_FOUND) {
			count++;
			continue;
		}
		if (!failed && err)
			*err = why;
		failed = true;
	}
	return failed ? -1 : count;
}

void mcp_session_renew(struct mcp_session *session)
{
	cleanup_sandboxes struct husk_sandbox **list = NULL;

	if (!session->id || list_own(session, &list, NULL) < 0)
		return;
	for (size_t i = 0; list[i]; i++)
		if (is_ours(list[i]))
			renew(session->husk, list[i], 0, NULL);
}
