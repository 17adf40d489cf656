/*
 * `husk desktop`: shows and controls the screen of a sandbox. Every verb becomes one action of husk_desktop_act
 * (docs/desktop.md); `act` sends a request unchanged. Titles, texts and pictures come from the guest.
 *
 *     husk desktop box click 640 400 --screenshot after.png
 *     {"actions":[{"action":"left_click","coordinate":[640,400]}],"settle":true,"screenshot":{"format":"png"}}
 */
#include "cli/cmd_desktop_view.h"

#define REQUEST_MAX (6u << 20)

struct desktop_arguments {
	const char *button, *keys, *format, *screenshot, *region, *output;
	int64_t count, quality, max_width;
};

static const char *const buttons[] = { "left", "middle", "right", NULL };
static const char *const formats[] = { "png", "jpeg", "webp", "mp4", "webm", "json", NULL };

static const struct option_spec desktop_options[] = {
	OPTION('b', "button", OPTION_CHOICE, struct desktop_arguments, button, "NAME",
	       "of click: left, middle or right (left)", .choices = buttons),
	OPTION('n', "count", OPTION_INTEGER, struct desktop_arguments, count, "N",
	       "clicks (1; to 3 with the left button), notches of scroll (3), presses of key (1)", .min = 1,
	       .max = 100),
	OPTION('k', "keys", OPTION_STRING, struct desktop_arguments, keys, "KEYS",
	       "hold these during the click, scroll or drag"),
	OPTION('s', "screenshot", OPTION_STRING, struct desktop_arguments, screenshot, "FILE",
	       "afterwards, when the screen is still, write a picture of it ('-': to stdout)"),
	OPTION('f', "format", OPTION_CHOICE, struct desktop_arguments, format, "NAME",
	       "of the picture: png, jpeg or webp; of an export: mp4, webm or json (by the name of the file)",
	       .choices = formats),
	OPTION('o', "output", OPTION_STRING, struct desktop_arguments, output, "FILE", "of an export ('-': to stdout)"),
	OPTION(0, "quality", OPTION_INTEGER, struct desktop_arguments, quality, "N", "of jpeg and webp (75)", .min = 1,
	       .max = 100),
	OPTION('r', "region", OPTION_STRING, struct desktop_arguments, region, "X0,Y0,X1,Y1",
	       "only this part of the screen"),
	OPTION(0, "max-width", OPTION_INTEGER, struct desktop_arguments, max_width, "PIXELS", "scale the picture down",
	       .min = 1, .max = 8192),
	{ 0 },
};

/* What is being put together. */
struct order {
	const struct desktop_arguments *arguments;
	const char *verb;
	char **words; /* after the verb */
	int count;
	json_t *request;
	const char *picture; /* the file for it; NULL: none */
};

struct verb {
	const char *name, *usage;
	int min, max;
	json_t *(*action)(const struct order *order, struct husk_error *err); /* NULL with err: wrong */
};

/* ---- words ---- */

static int number(const char *word, int64_t min, int64_t max, int *out, struct husk_error *err)
{
	int64_t value;

	if (str_to_int64(word, min, max, &value) < 0)
		return husk_fail(err, HUSK_INVALID, "desktop: '%.32s' is not a number from %lld to %lld", word,
				 (long long)min, (long long)max);
	*out = (int)value;
	return 0;
}

static json_t *point(char **words, struct husk_error *err)
{
	int x = 0, y = 0;

	if (number(words[0], 0, 65535, &x, err) < 0 || number(words[1], 0, 65535, &y, err) < 0)
		return NULL;
	return json_pack("[i, i]", x, y);
}

/* An action with the keys that are held; `coordinate` may be NULL. */
static json_t *pointed(const struct order *order, const char *action, json_t *coordinate)
{
	return json_pack("{s:s, s:o*, s:s*}", "action", action, "coordinate", coordinate, "text",
			 order->arguments->keys);
}

/* "1.13:244" is the id of an element, anything else a name. */
static json_t *element(const char *word)
{
	size_t digits = strspn(word, "0123456789."), rest = strlen(word);

	if (digits && word[digits] == ':' && digits + 1 + strspn(word + digits + 1, "0123456789") == rest)
		return json_string(word);
	return json_pack("{s:s}", "name", word);
}

/* ---- verbs ---- */

static json_t *verb_click(const struct order *order, struct husk_error *err)
{
	static const char *const many[] = { "left_click", "double_click", "triple_click" };
	const char *button = order->arguments->button;
	int64_t count = order->arguments->count ? order->arguments->count : 1;
	json_t *at = order->count == 2 ? point(order->words, err) : NULL;

	if (order->count == 2 && !at)
		return NULL;
	bool left = !button || str_equal(button, "left");
	if (count > 3 || (!left && count > 1)) {
		json_decref(at);
		husk_fail(err, HUSK_INVALID,
			  "desktop click: --count is at most 3, and 1 with another button than the left");
		return NULL;
	}
	json_t *action = pointed(order,
				 left                         ? many[count - 1]
				 : str_equal(button, "right") ? "right_click"
							      : "middle_click",
				 at);
	if (order->count == 1)
		json_object_set_new(action, "element", element(order->words[0]));
	return action;
}

static json_t *verb_move(const struct order *order, struct husk_error *err)
{
	json_t *at = point(order->words, err);

	return at ? json_pack("{s:s, s:o}", "action", "mouse_move", "coordinate", at) : NULL;
}

static json_t *verb_drag(const struct order *order, struct husk_error *err)
{
	json_t *from = point(order->words, err), *to = from ? point(order->words + 2, err) : NULL;

	if (!to) {
		json_decref(from);
		return NULL;
	}
	return json_pack("{s:s, s:o, s:o, s:s*}", "action", "left_click_drag", "start_coordinate", from, "coordinate",
			 to, "text", order->arguments->keys);
}

static json_t *verb_scroll(const struct order *order, struct husk_error *err)
{
	json_t *at = NULL;

	if (order->count == 2) {
		husk_fail(err, HUSK_INVALID, "desktop scroll: give X and Y, or neither");
		return NULL;
	}
	if (order->count == 3 && !(at = point(order->words + 1, err)))
		return NULL;
	json_t *action = pointed(order, "scroll", at);
	json_object_set_new(action, "scroll_direction", json_string(order->words[0]));
	json_object_set_new(action, "scroll_amount",
			    json_integer(order->arguments->count ? order->arguments->count : 3));
	return action;
}

static json_t *verb_type(const struct order *order, struct husk_error *err)
{
	json_t *action = json_pack("{s:s, s:s}", "action", "type", "text", order->words[0]);

	if (!action)
		husk_fail(err, HUSK_INVALID, "desktop type: the text is not valid UTF-8");
	return action;
}

static json_t *verb_key(const struct order *order, struct husk_error *err)
{
	int64_t count = order->arguments->count ? order->arguments->count : 1;
	json_t *action =
		json_pack("{s:s, s:s, s:I}", "action", "key", "text", order->words[0], "repeat", (json_int_t)count);

	if (!action)
		husk_fail(err, HUSK_INVALID, "desktop key: the name is not valid UTF-8");
	return action;
}

static json_t *verb_wait(const struct order *order, struct husk_error *err)
{
	char *end = NULL;
	double seconds = order->count ? strtod(order->words[0], &end) : 1;

	if (order->count && (end == order->words[0] || *end || !(seconds >= 0 && seconds <= 100))) {
		husk_fail(err, HUSK_INVALID, "desktop wait: '%.32s' is not a number of seconds from 0 to 100",
			  order->words[0]);
		return NULL;
	}
	return json_pack("{s:s, s:f}", "action", "wait", "duration", seconds);
}

static json_t *verb_clipboard(const struct order *order, struct husk_error *err)
{
	json_t *action = order->count ? json_pack("{s:s, s:s}", "action", "set_clipboard", "text", order->words[0])
				      : json_pack("{s:s}", "action", "get_clipboard");

	if (!action)
		husk_fail(err, HUSK_INVALID, "desktop clipboard: the text is not valid UTF-8");
	return action;
}

static json_t *verb_windows(const struct order *order, struct husk_error *err)
{
	(void)order, (void)err;
	return json_pack("{s:s}", "action", "windows");
}

static json_t *verb_tree(const struct order *order, struct husk_error *err)
{
	int64_t most = order->arguments->count ? order->arguments->count : 500;
	json_t *action = json_pack("{s:s, s:s*, s:I}", "action", "tree", "window",
				   order->count ? order->words[0] : NULL, "max_elements", (json_int_t)most);

	if (!action)
		husk_fail(err, HUSK_INVALID, "desktop tree: the title is not valid UTF-8");
	return action;
}

static json_t *window_action(const struct order *order, const char *name, struct husk_error *err)
{
	int64_t window;

	if (str_to_int64(order->words[0], 1, UINT32_MAX, &window) < 0) {
		husk_fail(err, HUSK_INVALID,
			  "desktop %s: '%.32s' is not the id of a window (husk desktop SANDBOX windows)", order->verb,
			  order->words[0]);
		return NULL;
	}
	return json_pack("{s:s, s:I}", "action", name, "window", (json_int_t)window);
}

static json_t *verb_focus(const struct order *order, struct husk_error *err)
{
	return window_action(order, "focus_window", err);
}

static json_t *verb_close(const struct order *order, struct husk_error *err)
{
	return window_action(order, "close_window", err);
}

static json_t *verb_size(const struct order *order, struct husk_error *err)
{
	int width, height, end = 0;

	if (!order->count)
		return json_pack("{s:s}", "action", "cursor_position");
	if (sscanf(order->words[0], "%dx%d%n", &width, &height, &end) != 2 || order->words[0][end]) {
		husk_fail(err, HUSK_INVALID, "desktop size: '%.32s' is not a size, as in 1280x800", order->words[0]);
		return NULL;
	}
	return json_pack("{s:s, s:i, s:i}", "action", "resize", "width", width, "height", height);
}

static json_t *verb_open(const struct order *order, struct husk_error *err)
{
	json_t *action =
		json_pack("{s:s, s:s}", "action", "open", "url", order->count ? order->words[0] : "about:blank");

	if (!action)
		husk_fail(err, HUSK_INVALID, "desktop open: the address is not valid UTF-8");
	return action;
}

static const struct verb verbs[] = {
	{ "screenshot", "[FILE]", 0, 1, NULL },
	{ "click", "[X Y|ELEMENT]", 0, 2, verb_click },
	{ "move", "X Y", 2, 2, verb_move },
	{ "drag", "X0 Y0 X1 Y1", 4, 4, verb_drag },
	{ "scroll", "up|down|left|right [X Y]", 1, 3, verb_scroll },
	{ "type", "TEXT", 1, 1, verb_type },
	{ "key", "KEYS", 1, 1, verb_key },
	{ "wait", "[SECONDS]", 0, 1, verb_wait },
	{ "clipboard", "[TEXT]", 0, 1, verb_clipboard },
	{ "tree", "[WINDOW]", 0, 1, verb_tree },
	{ "windows", "", 0, 0, verb_windows },
	{ "focus", "WINDOW", 1, 1, verb_focus },
	{ "close", "WINDOW", 1, 1, verb_close },
	{ "size", "[WxH]", 0, 1, verb_size },
	{ "open", "[URL]", 0, 1, verb_open },
	{ "act", "JSON|-", 1, 1, NULL },
};

static const struct verb *verb_find(const char *name, struct husk_error *err)
{
	const char *names[ARRAY_SIZE(verbs)];

	for (size_t i = 0; i < ARRAY_SIZE(verbs); i++) {
		if (str_equal(verbs[i].name, name))
			return &verbs[i];
		names[i] = verbs[i].name;
	}
	const char *near = str_nearest(name, names, ARRAY_SIZE(names));
	husk_fail(err, HUSK_INVALID, "desktop: '%.32s' is not known%s%s%s (husk desktop --help)", name,
		  near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
	return NULL;
}

/* ---- the request ---- */

static const char *format_of(const struct order *order)
{
	if (order->arguments->format)
		return order->arguments->format;
	if (str_ends(order->picture, ".jpg") || str_ends(order->picture, ".jpeg"))
		return "jpeg";
	return str_ends(order->picture, ".webp") ? "webp" : "png";
}

static int add_picture(struct order *order, struct husk_error *err)
{
	const struct desktop_arguments *arguments = order->arguments;
	json_t *picture = json_pack("{s:s}", "format", format_of(order));
	int at[4], end = 0;

	if (str_equal(order->picture, "-") && isatty(STDOUT_FILENO)) {
		json_decref(picture);
		return husk_fail(err, HUSK_INVALID,
				 "desktop: a picture is not for a terminal; name a file, as in screenshot screen.png");
	}
	if (arguments->quality)
		json_object_set_new(picture, "quality", json_integer(arguments->quality));
	if (arguments->max_width)
		json_object_set_new(picture, "max_width", json_integer(arguments->max_width));
	if (arguments->region) {
		if (sscanf(arguments->region, "%d,%d,%d,%d%n", &at[0], &at[1], &at[2], &at[3], &end) != 4 ||
		    arguments->region[end]) {
			json_decref(picture);
			return husk_fail(err, HUSK_INVALID, "desktop: region '%.64s' is not X0,Y0,X1,Y1",
					 arguments->region);
		}
		json_object_set_new(picture, "region", json_pack("[i, i, i, i]", at[0], at[1], at[2], at[3]));
	}
	return json_object_set_new(order->request, "screenshot", picture) < 0 ? husk_fail_memory(err) : 0;
}

static json_t *given_request(const char *word, struct husk_error *err)
{
	cleanup_free char *text = NULL;
	size_t size;

	if (str_equal(word, "-") && !(text = file_read("/dev/stdin", REQUEST_MAX, &size, err)))
		return NULL;
	json_t *request = json_loads(text ? text : word, JSON_REJECT_DUPLICATES, NULL);
	if (json_is_array(request))
		return json_pack("{s:o}", "actions", request);
	if (json_is_object(request))
		return request;
	json_decref(request);
	husk_fail(err, HUSK_INVALID,
		  "desktop act: not JSON, as in '[{\"action\": \"left_click\", \"coordinate\": [640, 400]}]'");
	return NULL;
}

static int make_request(struct order *order, const struct verb *verb, struct husk_error *err)
{
	order->picture = order->arguments->screenshot;
	if (str_equal(verb->name, "act")) {
		order->request = given_request(order->words[0], err);
	} else if (!verb->action) {
		order->picture = order->count ? order->words[0] : "-";
		order->request = json_object();
	} else {
		json_t *action = verb->action(order, err);
		order->request = action ? json_pack("{s:[o]}", "actions", action) : NULL;
		if (order->request && order->picture)
			json_object_set_new(order->request, "settle", json_true());
	}
	if (!order->request)
		return err->code ? -1 : husk_fail_memory(err);
	return order->picture ? add_picture(order, err) : 0;
}

/* ---- the answer ---- */

static int write_picture(const struct order *order, const json_t *answer, struct husk_error *err)
{
	const json_t *data = json_object_get(json_object_get(answer, "screenshot"), "data");
	cleanup_buf struct buf bytes = { 0 };

	if (!json_is_string(data) ||
	    base64_decode("screenshot", json_string_value(data), json_string_length(data), &bytes, err) < 0 ||
	    !bytes.size)
		return husk_fail(err, HUSK_PROTOCOL, "the sandbox sent no picture");
	if (!str_equal(order->picture, "-"))
		return file_write_atomic(order->picture, bytes.data, bytes.size, 0644, err);
	return write_full(STDOUT_FILENO, bytes.data, bytes.size) < 0 ? husk_fail_errno(err, "cannot write the picture")
								     : 0;
}

static int print_windows(const json_t *list, struct husk_error *err)
{
	static const char *const heading[] = { "WINDOW", "PROGRAM", "X", "Y", "WIDTH", "HEIGHT", "STATE", "TITLE" };
	static const char *const numbers[] = { "x", "y", "width", "height" };
	cleanup_table struct table table = { 0 };
	json_t *window;
	size_t i;

	table_begin(&table, heading, ARRAY_SIZE(heading));
	json_array_foreach(list, i, window)
	{
		table_cellf(&table, "%lld", (long long)json_integer_value(json_object_get(window, "id")));
		table_cell(&table, json_string_value(json_object_get(window, "program")));
		for (size_t n = 0; n < ARRAY_SIZE(numbers); n++)
			table_cellf(&table, "%lld", (long long)json_integer_value(json_object_get(window, numbers[n])));
		table_cell(&table, json_is_true(json_object_get(window, "active"))      ? "active"
				   : json_is_true(json_object_get(window, "minimized")) ? "minimized"
											: NULL);
		table_cell(&table, json_string_value(json_object_get(window, "title")));
	}
	return table_print(&table, err);
}

/* One line for each element, below the one that holds it. */
static void print_elements(const json_t *list)
{
	static const char *const numbers[] = { "x", "y", "width", "height" };
	json_t *each, *state;
	size_t i, n;
	long long box[4];

	json_array_foreach(list, i, each)
	{
		json_int_t depth = json_integer_value(json_object_get(each, "depth"));
		for (n = 0; n < ARRAY_SIZE(numbers); n++)
			box[n] = json_integer_value(json_object_get(each, numbers[n]));
		printf("%*s", (int)MIN(MAX(depth, 0), 60) * 2, "");
		output_safe(stdout, json_string_value(json_object_get(each, "id")), false);
		putchar(' ');
		output_safe(stdout, json_string_value(json_object_get(each, "role")), false);
		printf(" \"");
		output_safe(stdout, json_string_value(json_object_get(each, "name")), false);
		printf("\" %lldx%lld+%lld+%lld", box[2], box[3], box[0], box[1]);
		json_array_foreach(json_object_get(each, "states"), n, state)
		{
			putchar(' ');
			output_safe(stdout, json_string_value(state), false);
		}
		putchar('\n');
	}
}

static int print_answer(const struct order *order, const json_t *answer, struct husk_error *err)
{
	const json_t *first = json_array_get(json_object_get(answer, "results"), 0);
	const char *text = json_string_value(json_object_get(first, "text"));

	if (str_equal(order->verb, "windows"))
		return print_windows(json_object_get(first, "windows"), err);
	if (str_equal(order->verb, "tree"))
		print_elements(json_object_get(first, "elements"));
	if (str_equal(order->verb, "size") && !order->count)
		printf("%lldx%lld\n", (long long)json_integer_value(json_object_get(answer, "width")),
		       (long long)json_integer_value(json_object_get(answer, "height")));
	if (text) {
		output_safe(stdout, text, true);
		if (*text && text[strlen(text) - 1] != '\n')
			putchar('\n');
	}
	return 0;
}

static int finish(struct cli *cli, const struct order *order, char *text, struct husk_error *err)
{
	cleanup_json json_t *answer = json_loads(text, 0, NULL);

	if (!answer)
		return husk_fail_memory(err);
	if (order->picture) {
		if (write_picture(order, answer, err) < 0)
			return -1;
		json_object_del(json_object_get(answer, "screenshot"), "data");
	}
	if (order->picture && str_equal(order->picture, "-"))
		return 0;
	if (cli->json || str_equal(order->verb, "act"))
		return output_json(steal_pointer(answer), err);
	return print_answer(order, answer, err);
}

static int desktop_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	const struct desktop_arguments *arguments = data;

	if (desktop_view_has(argv[1]))
		return desktop_view_run(cli,
					&(struct desktop_view){ argv[0], argv[1], argv + 2, argc - 2, arguments->format,
								arguments->output },
					err);
	struct order order = { .arguments = data, .verb = argv[1], .words = argv + 2, .count = argc - 2 };
	const struct verb *verb = verb_find(argv[1], err);
	cleanup_free char *answer = NULL, *text = NULL;

	if (!verb)
		return -1;
	if (order.count < verb->min || order.count > verb->max)
		return husk_fail(err, HUSK_INVALID, "usage: husk desktop SANDBOX %s %s", verb->name, verb->usage);
	int made = make_request(&order, verb, err);
	if (made == 0)
		text = json_dumps(order.request, JSON_COMPACT);
	json_decref(order.request);
	if (made < 0)
		return -1;
	if (!text)
		return husk_fail_memory(err);
	struct husk_desktop_options options = { .request = text };
	if (husk_desktop_act(cli->husk, argv[0], &options, &answer, err) < 0)
		return -1;
	return finish(cli, &order, answer, err);
}

const struct cli_command cli_desktop = {
	.name = "desktop",
	.operands = "SANDBOX ACTION [ARGUMENT]...",
	.summary = "Show and control the screen of a sandbox",
	.details =
		"actions:\n"
		"  screenshot [FILE]               a picture of the screen (PNG, or by the ending of FILE)\n"
		"  click [X Y|ELEMENT]             where the pointer is, there, or on an element by its id or name\n"
		"                                  (--button, --count, --keys)\n"
		"  move X Y, drag X0 Y0 X1 Y1      the pointer\n"
		"  scroll up|down|left|right [X Y] the wheel (--count notches)\n"
		"  type TEXT, key KEYS             text in any script; \"Return\", \"ctrl+s\", \"alt+F4\"\n"
		"  wait [SECONDS]                  wait; defaults to one second\n"
		"  clipboard [TEXT]                show it, or set it\n"
		"  windows, focus ID, close ID     the windows of the screen\n"
		"  tree [WINDOW]                   the elements on the screen: id, role, name, size and place, states\n"
		"  size [WxH]                      show the size, or change it\n"
		"  open [URL]                      in the browser of the sandbox\n"
		"  view [control]                  a link to the live view; with control, its user can take control\n"
		"  control [release]               show who is in control; give control back\n"
		"  record [SECONDS], recordings    record the screen until Ctrl-C; list recordings\n"
		"  recordings export ID -o FILE    as a video (.mp4, .webm; --format), or its actions (.json)\n"
		"  recordings rm ID                remove one\n"
		"  profile save|load FILE|-        the cookies, logins and settings of its browser\n"
		"  act JSON|-                      a list of actions, or a whole request (docs/desktop.md)\n"
		"\n"
		"The sandbox needs a desktop: husk create -t desktop --memory 2G\n",
	.groups = { { desktop_options, 0 } },
	.arguments_size = sizeof(struct desktop_arguments),
	.min = 2,
	.max = 6,
	.run = desktop_run,
};
