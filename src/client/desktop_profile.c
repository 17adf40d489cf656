/*
 * The profile of a desktop's browser as a tar; see husk.h. The tar comes from a guest and goes into a guest: the host
 * does not parse it.
 */
#include "base/jansson.h"
#include "instance/instance.h"

#define PROFILE "/root/.config/husk-browser" /* guest/husk-browser */
#define FRESH PROFILE ".new"
#define SCRIPT_MS 60000
enum { NO_BROWSER = 3, NO_PROFILE = 4 };

/* Waits for the end of the browser. Its lock names its process; a number that another program has by now
 * is left alone, and so is one that has ended and whose parent has not noticed. */
#define END_BROWSER                                                                                                    \
	"[ -x /usr/local/bin/husk-browser ] && [ -x /usr/bin/chromium ] || exit 3\n"                                   \
	"holder=$(readlink '" PROFILE "/SingletonLock'); pid=${holder##*-}; tries=0\n"                                 \
	"running() { [ -n \"$pid\" ] && [ \"$(cat /proc/$pid/comm 2>/dev/null)\" = chromium ] &&"                      \
	" ! grep -q '^State:.*Z' /proc/$pid/status; }\n"                                                               \
	"while running; do\n"                                                                                          \
	"  tries=$((tries + 1)); [ $tries -lt 200 ] || kill -9 \"$pid\"; sleep 0.1\n"                                  \
	"done\n"                                                                                                       \
	"rm -f '" PROFILE "'/Singleton* '" PROFILE "/DevToolsActivePort'\n"

/* Caches: the browser can fetch them again. */
static const char before_save[] = END_BROWSER "cd '" PROFILE "' 2>/dev/null && [ -d Default ] || exit 4\n"
					      "rm -rf Default/Cache 'Default/Code Cache' Default/GPUCache "
					      "Default/Dawn*Cache GPUPersistentCache *ShaderCache *_crx_cache"
					      " BrowserMetrics* 'Crash Reports'\n";
static const char before_load[] = END_BROWSER "rm -rf '" FRESH "' && mkdir -p -m 700 '" FRESH "'\n";
/* A tar of a directory begins with its name. */
static const char after_load[] =
	"cd '" FRESH "' && [ -d husk-browser/Default ] || { rm -rf '" FRESH "'; exit 4; }\n"
	"rm -rf '" PROFILE "' husk-browser/Singleton* && mv husk-browser '" PROFILE "' && rm -rf '" FRESH "'\n";
static const char no_load[] = "rm -rf '" FRESH "'\n";

static void result_cleanup(struct husk_result *result)
{
	husk_result_free(result);
}

/* The script's exit status, if it is 0 or NO_PROFILE. */
static int run(struct husk *husk, const char *sandbox, const char *script, struct husk_error *err)
{
	const struct husk_exec_options options = {
		.shell = script, .user = "root", .cwd = "/", .timeout_ms = SCRIPT_MS
	};
	cleanup(result_cleanup) struct husk_result result = { 0 };

	if (husk_run(husk, sandbox, &options, &result, err) < 0)
		return -1;
	if (result.exit_code == 0 || result.exit_code == NO_PROFILE)
		return result.exit_code;
	return result.exit_code == NO_BROWSER
		       ? husk_fail(err, HUSK_CONFLICT,
				   "sandbox %s has no browser; create one from the template 'desktop', or add "
				   "chromium to the packages of its template",
				   sandbox)
		       : husk_fail(err, HUSK_UNAVAILABLE, "the browser of sandbox %s cannot be ended (exit code %d)",
				   sandbox, result.exit_code);
}

/* As a person does, by closing its windows: it writes its cookies only then, and not if it gets a signal. */
static int close_browser(struct husk *husk, const char *sandbox, struct husk_error *err)
{
	const struct husk_desktop_options look = { .request = "{\"actions\":[{\"action\":\"windows\"}]}" };
	cleanup_free char *answer = NULL, *text = NULL;
	json_t *window;
	size_t i;

	if (husk_desktop_act(husk, sandbox, &look, &answer, err) < 0)
		return -1;
	cleanup_json json_t *document = json_loads(answer, 0, NULL), *list = json_array();
	json_array_foreach(json_object_get(json_array_get(json_object_get(document, "results"), 0), "windows"), i,
			   window)
	{
		if (str_equal(json_string_value(json_object_get(window, "program")), "Chromium"))
			json_array_append_new(list, json_pack("{s:s, s:O}", "action", "close_window", "window",
							      json_object_get(window, "id")));
	}
	if (json_array_size(list) == 0)
		return 0;
	cleanup_json json_t *request = json_pack("{s:O}", "actions", list);
	text = request ? json_dumps(request, JSON_COMPACT) : NULL;
	if (!text)
		return husk_fail_memory(err);
	const struct husk_desktop_options close = { .request = text };
	cleanup_free char *ignored = NULL;
	return husk_desktop_act(husk, sandbox, &close, &ignored, err);
}

int husk_profile_save(struct husk *husk, const char *sandbox, husk_sink sink, void *data, struct husk_error *err)
{
	if (husk_control_check(husk, sandbox, err) < 0 || close_browser(husk, sandbox, err) < 0)
		return -1;
	int status = run(husk, sandbox, before_save, err);
	if (status == NO_PROFILE)
		return husk_fail(err, HUSK_NOT_FOUND, "the browser of sandbox %s has no profile yet; start it first",
				 sandbox);
	return status < 0 ? -1 : husk_tar_read(husk, sandbox, PROFILE, sink, data, err);
}

int husk_profile_load(struct husk *husk, const char *sandbox, husk_source source, void *data, struct husk_error *err)
{
	if (husk_control_check(husk, sandbox, err) < 0 || close_browser(husk, sandbox, err) < 0 ||
	    run(husk, sandbox, before_load, err) < 0)
		return -1;
	if (husk_tar_write(husk, sandbox, FRESH, NULL, source, data, err) < 0) {
		run(husk, sandbox, no_load, NULL);
		return -1;
	}
	int status = run(husk, sandbox, after_load, err);
	return status == NO_PROFILE ? husk_fail_field(err, "profile", "this is not a saved profile of the browser")
				    : status;
}
