/*
 * Elements of the screen, from the accessibility bus (AT-SPI): D-Bus and its libraries cannot be part of a static
 * program, so guest/desktop-tree runs once per request and prints one JSON object. Programs of the sandbox answer it, so
 * the length and the time of its answer are bounded, and its numbers are checked.
 *
 * Example: {"element": {"role": "push button", "name": "Send"}} is the question find, whose answer has one element at 334,154 of
 * 48x22; the pointer goes to 358,165.
 */
#include "desktop.h"
#include "fields.h"

#define HELPER "/.husk/guest/desktop-tree"
#define INTERPRETER "/usr/bin/python3"
#define ANSWER_MAX (4u << 20)
#define ANSWER_MS 20000
#define DEPTH_MAX 8
#define ELEMENTS_MAX 5000

/* ---- asking ---- */

static json_t *parse(const struct buf *text, struct husk_error *err)
{
	json_t *answer = !text->size || str_json_deeper(text->data, text->size, DEPTH_MAX)
				 ? NULL
				 : json_loadb(text->data, text->size, 0, NULL);

	if (!json_is_object(answer)) {
		json_decref(answer);
		husk_fail(err, HUSK_UNAVAILABLE, "template cannot describe elements; use -t desktop");
		return NULL;
	}
	return answer;
}

/* Takes ownership of the question. */
static json_t *ask(const char *kind, json_t *question, struct husk_error *err)
{
	cleanup_free char *text = question ? json_dumps(question, JSON_COMPACT) : NULL;
	cleanup_buf struct buf said = { 0 };

	json_decref(question);
	if (!text) {
		husk_fail_memory(err);
		return NULL;
	}
	if (access(HELPER, X_OK) < 0 || access(INTERPRETER, X_OK) < 0) {
		husk_fail(err, HUSK_UNAVAILABLE, "template cannot describe elements; use -t desktop");
		return NULL;
	}
	struct command command = {
		COMMAND_INIT,
		.argv = (const char *const[]){ HELPER, kind, text, NULL },
		.output = &said,
		.timeout_ms = ANSWER_MS,
	};
	if (command_run(&command, err) < 0)
		return NULL;
	if (said.size > ANSWER_MAX) {
		husk_fail(err, HUSK_LIMIT, "the elements have more than %u MiB; give 'max_elements'", ANSWER_MAX >> 20);
		return NULL;
	}
	return parse(&said, err);
}

/* ---- the tree ---- */

json_t *tree_read(const json_t *action, struct husk_error *err)
{
	const char *window = "";
	int most = 500;
	bool all = false;

	if (field_text(action, "window", false, &window, err) < 0 ||
	    field_integer(action, "max_elements", 1, ELEMENTS_MAX, &most, NULL, err) < 0 ||
	    field_boolean(action, "all", &all, err) < 0)
		return NULL;
	json_t *answer =
		ask("tree", json_pack("{s:s, s:i, s:b}", "window", window, "max_elements", most, "all", all), err);
	const char *why = json_string_value(json_object_get(answer, "error"));
	if (answer && (why || !json_is_array(json_object_get(answer, "elements")))) {
		husk_fail(err, HUSK_UNAVAILABLE, "%.300s", why ? why : "the elements cannot be read");
		json_decref(answer);
		return NULL;
	}
	return answer;
}

/* ---- one element ---- */

static json_t *question_of(const json_t *element, struct husk_error *err)
{
	const char *role = "", *name = "";

	if (json_is_string(element))
		return json_pack("{s:O}", "element", element);
	if (!json_is_object(element) || fields_known(element, "role name", err) < 0 ||
	    field_text(element, "role", false, &role, err) < 0 || field_text(element, "name", false, &name, err) < 0 ||
	    (!*role && !*name)) {
		husk_fail_field(err, "element",
				"'element' is not an id, as in \"1.13:244\", or {\"role\": …, \"name\": …}; the action "
				"'tree' lists them");
		return NULL;
	}
	return json_pack("{s:s, s:s}", "role", role, "name", name);
}

/* The ids of some elements, for a message. */
static void name_all(const json_t *elements, char *out, size_t size)
{
	const json_t *each;
	size_t i, used = 0;

	out[0] = '\0';
	json_array_foreach(elements, i, each)
	{
		const char *id = json_string_value(json_object_get(each, "id"));
		if (i < 5 && id && used < size)
			used += (size_t)snprintf(out + used, size - used, "%s%.32s", i ? ", " : "", id);
	}
}

static int only_one(const json_t *answer, const json_t **out, struct husk_error *err)
{
	const json_t *elements = json_object_get(answer, "elements");
	const char *why = json_string_value(json_object_get(answer, "error"));
	char ids[200];

	if (why || json_array_size(elements) == 0)
		return husk_fail_field(err, "element", "%.300s; the action 'tree' lists what is there",
				       why ? why : "no such element is on the screen");
	if (json_array_size(elements) > 1) {
		name_all(elements, ids, sizeof(ids));
		return husk_fail_field(err, "element", "%zu elements are like that (%s); give the id of one",
				       json_array_size(elements), ids);
	}
	*out = json_array_get(elements, 0);
	return 0;
}

static int number(const json_t *element, const char *name, int *out)
{
	const json_t *value = json_object_get(element, name);
	json_int_t wide = json_integer_value(value);

	if (!json_is_integer(value) || wide < -SIDE_MAX || wide > SIDE_MAX)
		return -1;
	*out = (int)wide;
	return 0;
}

/* The middle of its visible part. */
static int middle(const json_t *element, struct point screen, struct point *out)
{
	int x, y, width, height;

	if (number(element, "x", &x) < 0 || number(element, "y", &y) < 0 || number(element, "width", &width) < 0 ||
	    number(element, "height", &height) < 0)
		return -1;
	int left = MAX(0, x), right = MIN(screen.x, x + width), top = MAX(0, y), bottom = MIN(screen.y, y + height);
	if (left >= right || top >= bottom)
		return -1;
	*out = (struct point){ (left + right) / 2, (top + bottom) / 2 };
	return 0;
}

int tree_point(const json_t *element, struct point screen, struct point *out, struct husk_error *err)
{
	const json_t *found = NULL;
	json_t *question = question_of(element, err);
	cleanup_json json_t *answer = question ? ask("find", question, err) : NULL;

	if (!answer || only_one(answer, &found, err) < 0)
		return -1;
	if (middle(found, screen, out) < 0)
		return husk_fail_field(err, "element", "the element is outside of the screen; scroll to it first");
	return 0;
}
