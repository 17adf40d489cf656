/*
 * request_human: for an agent that cannot continue, for example at a login or a CAPTCHA. Asks for a person, returns a
 * link to the live view, and waits until the person has given control back. Cancelling the call ends the wait; the
 * request stays.
 */
#include "mcp/tools.h"

#define STEP_MS 500
#define WAIT_SECONDS 300
#define LINK_SECONDS 3600

static const char *state_name(enum husk_human state)
{
	static const char *const names[] = { "waiting", "waiting", "taken", "done" };

	return (size_t)state < ARRAY_SIZE(names) ? names[state] : "waiting";
}

/* 0: done, or the time is over; -1: `err`. */
static int await_person(struct tool_call *call, int64_t seconds, struct husk_control **control, struct husk_error *err)
{
	int64_t until = time_monotonic_ms() + seconds * 1000;
	struct tool_progress progress;

	tool_progress_begin(&progress);
	while ((*control)->request != HUSK_HUMAN_DONE && time_monotonic_ms() < until) {
		struct husk_control *now = NULL;
		if (call->call->wait(call->call->data, -1, STEP_MS) < 0)
			return husk_fail(err, HUSK_GONE, "the call was cancelled; the request for a person stays");
		tool_progress_tick(call, &progress);
		if (husk_control_get(call->session->husk, call->sandbox, &now, err) < 0)
			return -1;
		husk_control_free(*control);
		*control = now;
	}
	return 0;
}

static int say(struct tool_call *call, enum husk_human state, const char *link, struct husk_error *err)
{
	if (state == HUSK_HUMAN_DONE)
		return tool_sayf(call, err,
				 "A person took over and has given the desktop back. Look at it before you go on.");
	return tool_sayf(call, err, "%s%s%s",
			 state == HUSK_HUMAN_TAKEN
				 ? "A person is in control. Your actions fail until control is given back"
				 : "No person has come yet. Tell the user why one is needed",
			 link ? "; the desktop is at " : "; `husk desktop SANDBOX view control` prints a link to it",
			 link ? link : "");
}

int tool_request_human(struct tool_call *call, struct husk_error *err)
{
	int64_t seconds = tool_int(call, "wait_seconds", WAIT_SECONDS);
	cleanup_free char *link = NULL;
	cleanup_control struct husk_control *control = NULL;
	struct husk_error why = { 0 };

	if (session_sandbox(call, NEED_EXISTING, seconds * 1000, err) < 0 ||
	    husk_control_request(call->session->husk, call->sandbox, tool_string(call, "reason"), &control, err) < 0)
		return -1;
	/* Without a server there is no page. The request is seen by who asks for it (husk desktop SANDBOX control, events). */
	if (husk_desktop_link(call->session->husk, call->sandbox, false, LINK_SECONDS, &link, &why) < 0)
		log_line(LOG_DEBUG, "no link to the desktop of %s: %s", call->sandbox, why.message);
	if (await_person(call, seconds, &control, err) < 0 || say(call, control->request, link, err) < 0)
		return -1;
	return tool_give(call, json_pack("{s:s, s:s*}", "state", state_name(control->request), "url", link), err);
}
