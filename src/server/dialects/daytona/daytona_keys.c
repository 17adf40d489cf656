/*
 * Names of keys as Daytona's clients write them, converted to those of docs/desktop.md (names of X, in any case). What Daytona
 * refuses is refused here too, with the way out: a shifted sign, a letter of another script, more than one key in a chord.
 */
#include <ctype.h>

#include "server/dialects/daytona/daytona_computer.h"

#define PARTS_MAX 8

/* Only names that the desktop does not know by itself; "-" in a given name counts as "_". */
static const struct {
	const char *given, *name;
} names[] = {
	{ "lalt", "Alt_L" },
	{ "left_alt", "Alt_L" },
	{ "ralt", "Alt_R" },
	{ "right_alt", "Alt_R" },
	{ "lctrl", "Control_L" },
	{ "left_ctrl", "Control_L" },
	{ "left_control", "Control_L" },
	{ "rctrl", "Control_R" },
	{ "right_ctrl", "Control_R" },
	{ "right_control", "Control_R" },
	{ "lshift", "Shift_L" },
	{ "left_shift", "Shift_L" },
	{ "rshift", "Shift_R" },
	{ "right_shift", "Shift_R" },
	{ "lcmd", "Super_L" },
	{ "left_cmd", "Super_L" },
	{ "left_command", "Super_L" },
	{ "rcmd", "Super_R" },
	{ "right_cmd", "Super_R" },
	{ "right_command", "Super_R" },
	{ "num0", "KP_0" },
	{ "num1", "KP_1" },
	{ "num2", "KP_2" },
	{ "num3", "KP_3" },
	{ "num4", "KP_4" },
	{ "num5", "KP_5" },
	{ "num6", "KP_6" },
	{ "num7", "KP_7" },
	{ "num8", "KP_8" },
	{ "num9", "KP_9" },
	{ "num_asterisk", "KP_Multiply" },
	{ "num_decimal", "KP_Decimal" },
	{ "num_enter", "KP_Enter" },
	{ "num_equal", "KP_Equal" },
	{ "num_minus", "KP_Subtract" },
	{ "num_plus", "KP_Add" },
	{ "num_slash", "KP_Divide" },
};

static const struct {
	const char *given, *name;
} modifier_names[] = {
	{ "ctrl", "ctrl" },   { "control", "ctrl" }, { "alt", "alt" },       { "option", "alt" },
	{ "shift", "shift" }, { "cmd", "super" },    { "command", "super" }, { "meta", "super" },
	{ "super", "super" }, { "win", "super" },    { "windows", "super" },
};

/* Case does not count, and "-" is "_". */
static bool same_name(const char *given, const char *name)
{
	for (; *given && *name; given++, name++)
		if ((*given == '-' ? '_' : tolower((unsigned char)*given)) != *name)
			return false;
	return !*given && !*name;
}

static int single_key(const char *key, char **out, struct husk_error *err)
{
	unsigned char byte = (unsigned char)*key;

	if (isspace(byte))
		return husk_fail_field(
			err, "key", "unsupported key \"%s\"; use a named key such as \"space\", \"tab\" or \"enter\"",
			byte == ' ' ? " " : "");
	if (strchr("!\"#$%&()*+:<>?@^_{|}~", byte))
		return husk_fail_field(
			err, "key",
			"unsupported key \"%c\"; press the key that has it with \"shift\", or use type for text", byte);
	*out = str_format("%c", tolower(byte));
	return *out ? 0 : husk_fail_memory(err);
}

static int key_name(const char *key, char **out, struct husk_error *err)
{
	if (!key || !*key)
		return husk_fail_field(err, "key", "unsupported key \"\": empty key token");
	for (const char *at = key; *at; at++)
		if ((unsigned char)*at > 0x7e || iscntrl((unsigned char)*at))
			return husk_fail_field(err, "key", "unsupported key \"%.40s\"; use type for text input", key);
	if (!key[1])
		return single_key(key, out, err);
	if (strpbrk(key, " +"))
		return husk_fail_field(err, "key", "unsupported key \"%.40s\"; use hotkey for several keys", key);
	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		if (same_name(key, names[i].given)) {
			*out = strdup(names[i].name);
			return *out ? 0 : husk_fail_memory(err);
		}
	}
	*out = strdup(key);
	for (char *at = *out; at && *at; at++)
		*at = *at == '-' ? '_' : *at;
	return *out ? 0 : husk_fail_memory(err);
}

static const char *modifier_name(const char *given)
{
	for (size_t i = 0; given && i < ARRAY_SIZE(modifier_names); i++)
		if (same_name(given, modifier_names[i].given))
			return modifier_names[i].name;
	return NULL;
}

int daytona_modifiers(const char *const *modifiers, char **out, struct husk_error *err)
{
	cleanup_buf struct buf text = { 0 };
	const char *taken[PARTS_MAX];
	size_t count = 0;
	int failed = buf_append(&text, "", 0);

	for (; modifiers && *modifiers; modifiers++) {
		const char *name = modifier_name(*modifiers);
		if (!name)
			return husk_fail_field(
				err, "modifiers",
				"unsupported modifier \"%.40s\"; supported modifiers: ctrl, alt, shift, cmd",
				*modifiers);
		for (size_t i = 0; i < count; i++)
			if (str_equal(taken[i], name))
				return husk_fail_field(err, "modifiers", "duplicate modifier \"%.40s\"", *modifiers);
		taken[count++] = name; /* at most one of each name */
		failed |= buf_printf(&text, "%s%s", text.size ? "+" : "", name);
	}
	*out = failed ? NULL : buf_steal(&text);
	return *out ? 0 : husk_fail_memory(err);
}

int daytona_chord(const char *key, const char *const *modifiers, char **out, struct husk_error *err)
{
	cleanup_free char *held = NULL, *name = NULL;

	if (key_name(key, &name, err) < 0 || daytona_modifiers(modifiers, &held, err) < 0)
		return -1;
	*out = *held ? str_format("%s+%s", held, name) : strdup(name);
	return *out ? 0 : husk_fail_memory(err);
}

int daytona_hotkey(const char *keys, char **out, struct husk_error *err)
{
	cleanup_free char *copy = strdup(keys ? keys : "");
	const char *parts[PARTS_MAX + 1] = { 0 };
	size_t count = 0;

	if (!copy)
		return husk_fail_memory(err);
	for (char *part = copy, *next; part; part = next) {
		next = strchr(part, '+');
		if (next)
			*next++ = '\0';
		part += strspn(part, " \t");
		size_t size = strcspn(part, " \t");
		if (!size)
			return husk_fail_field(err, "keys", "invalid hotkey \"%.80s\": empty key token",
					       keys ? keys : "");
		if (part[size + strspn(part + size, " \t")])
			return husk_fail_field(err, "keys",
					       "invalid hotkey \"%.80s\": only a single chord is supported", keys);
		part[size] = '\0';
		if (count == PARTS_MAX)
			return husk_fail_field(err, "keys", "invalid hotkey \"%.80s\": more than %d keys", keys,
					       PARTS_MAX);
		parts[count++] = part;
	}
	const char *key = parts[count - 1];
	parts[count - 1] = NULL;
	return daytona_chord(key, parts, out, err);
}
