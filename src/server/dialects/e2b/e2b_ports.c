/*
 * The errors of a port: what E2B's proxy answers in place of a program in the sandbox. A program gets a document. A browser gets a
 * page, because a person reads it: 3000-sbabc….localhost in a browser, with nothing on port 3000, shows "Closed Port Error".
 * Called by e2b.c. The page has fixed words, an id and a number: never text that a guest wrote.
 */
#include "server/core.h"
#include "server/dialects/e2b/e2b.h"

static const char page[] = "<html lang=\"en\"><head><meta charset=\"utf-8\"><title>%s</title>"
			   "<style>body{font-family:sans-serif;max-width:40em;margin:15vh auto;padding:0 "
			   "1em;line-height:1.5}</style></head>"
			   "<body><h1>%s</h1><p>%s</p></body></html>";

/* As E2B decides it. */
static bool is_browser(const struct request *request)
{
	static const char *const names[] = { "mozilla", "chrome", "safari", "firefox", "edge", "opera", "msie" };
	const char *agent = request_header(request, "User-Agent");

	for (size_t i = 0; agent && i < ARRAY_SIZE(names); i++)
		if (strcasestr(agent, names[i]))
			return true;
	return false;
}

struct port_error {
	const char *message;
	const char *title, *text; /* of the page; `text` has places for the id and the port */
	bool with_port;
};

static struct port_error describe(unsigned *status, const struct husk_error *failure)
{
	switch (failure->code) {
	case HUSK_PROTOCOL:
		*status = 502;
		return (struct port_error){ "The sandbox is running but port is not open", "Closed Port Error",
					    "The sandbox %s is running, but there is no service running on port %s. "
					    "Start a server on that port, or check its number.",
					    true };
	case HUSK_GONE:
	case HUSK_NOT_FOUND:
		*status = 502;
		return (struct port_error){ "The sandbox was not found", "Sandbox Not Found",
					    "The sandbox %s was not found. It has ended, or its id is wrong.", false };
	case HUSK_CONFLICT:
		return (struct port_error){ failure->message, "Sandbox Paused",
					    "The sandbox %s is paused. Connect to it to resume it.", false };
	case HUSK_DENIED:
		return (struct port_error){
			failure->message, "Access Denied",
			"The ports of the sandbox %s require its traffic token, in the header " E2B_TRAFFIC_HEADER ".",
			false
		};
	default:
		return (struct port_error){ failure->message, "Sandbox Error",
					    "The request to the sandbox %s failed. Try again later.", false };
	}
}

json_t *e2b_port_error(struct request *request, unsigned *status, const struct husk_error *failure)
{
	struct port_error error = describe(status, failure);
	char id[E2B_ID_SIZE];

	e2b_shown_id(request->host_sandbox, id);
	if (is_browser(request)) {
		cleanup_free char *text = str_format(error.text, id, request->host_port);
		cleanup_free char *html = text ? str_format(page, error.title, error.title, text) : NULL;
		if (html)
			respond_text(request, *status, "text/html; charset=utf-8", html, strlen(html), NULL);
		return NULL;
	}
	json_t *document = json_pack("{s:s, s:o, s:i}", "sandboxId", id, "message", json_text0(error.message), "code",
				     (int)*status);
	if (document && error.with_port)
		json_object_set_new(document, "port", json_integer(atoi(request->host_port)));
	return document;
}
