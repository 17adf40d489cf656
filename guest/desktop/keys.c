/*
 * Names of keys: the symbols of X (Return, Page_Down, XF86AudioPlay) in any case, the names that models use for them (enter, cmd),
 * and single characters.
 */
#include "desktop.h"

#include <strings.h>

struct name {
	const char *name;
	xcb_keysym_t symbol;
};

/* Made from X11/keysymdef.h and XF86keysym.h. */
static const struct name symbols[] = {
#include "keysyms.inc"
};

static const struct name aliases[] = {
	{ "enter", 0xff0d },       { "esc", 0xff1b },         { "ctrl", 0xffe3 },       { "control", 0xffe3 },
	{ "shift", 0xffe1 },       { "alt", 0xffe9 },         { "option", 0xffe9 },     { "altgr", 0xfe03 },
	{ "super", 0xffeb },       { "win", 0xffeb },         { "windows", 0xffeb },    { "cmd", 0xffeb },
	{ "command", 0xffeb },     { "meta", 0xffeb },        { "pageup", 0xff55 },     { "pagedown", 0xff56 },
	{ "pgup", 0xff55 },        { "pgdn", 0xff56 },        { "pgdown", 0xff56 },     { "del", 0xffff },
	{ "ins", 0xff63 },         { "arrowup", 0xff52 },     { "arrowdown", 0xff54 },  { "arrowleft", 0xff51 },
	{ "arrowright", 0xff53 },  { "up_arrow", 0xff52 },    { "down_arrow", 0xff54 }, { "left_arrow", 0xff51 },
	{ "right_arrow", 0xff53 }, { "spacebar", 0x20 },      { "capslock", 0xffe5 },   { "numlock", 0xff7f },
	{ "scrolllock", 0xff14 },  { "printscreen", 0xff61 }, { "back_space", 0xff08 }, { "contextmenu", 0xff67 },
	{ "newline", 0xff0d },     { "dash", 0x2d },
};

uint32_t character_next(const char **text)
{
	const unsigned char *s = (const unsigned char *)*text;
	int more = s[0] >= 0xf0 ? 3 : s[0] >= 0xe0 ? 2 : s[0] >= 0xc0 ? 1 : 0;
	uint32_t character = more ? s[0] & (0x3fu >> more) : s[0];

	if (!s[0])
		return 0;
	for (int i = 1; i <= more; i++)
		character = character << 6 | (s[i] & 0x3fu);
	*text += more + 1;
	return character;
}

/* Latin-1 has symbols of its own numbers, everything else Unicode's with a bit. */
xcb_keysym_t key_of_character(uint32_t character)
{
	if (character == '\n' || character == '\r')
		return 0xff0d;
	if (character == '\t')
		return 0xff09;
	if ((character >= 0x20 && character <= 0x7e) || (character >= 0xa0 && character <= 0xff))
		return character;
	return character < 0x100 ? XCB_NO_SYMBOL : character | 0x01000000u;
}

static xcb_keysym_t find(const struct name *list, size_t count, const char *name,
			 int (*compare)(const char *, const char *))
{
	for (size_t i = 0; i < count; i++)
		if (compare(list[i].name, name) == 0)
			return list[i].symbol;
	return XCB_NO_SYMBOL;
}

static xcb_keysym_t symbol_of(const char *name)
{
	const char *rest = name;
	uint32_t character = character_next(&rest);

	if (character && !*rest)
		return key_of_character(character);
	xcb_keysym_t symbol = find(symbols, ARRAY_SIZE(symbols), name, strcmp);
	if (!symbol)
		symbol = find(aliases, ARRAY_SIZE(aliases), name, strcasecmp);
	return symbol ? symbol : find(symbols, ARRAY_SIZE(symbols), name, strcasecmp);
}

static const char *nearest(const char *name)
{
	const char *names[ARRAY_SIZE(symbols) + ARRAY_SIZE(aliases)];
	size_t count = 0;

	for (size_t i = 0; i < ARRAY_SIZE(aliases); i++)
		names[count++] = aliases[i].name;
	/* The keys of a keyboard, not the thousands of letters. */
	for (size_t i = 0; i < ARRAY_SIZE(symbols); i++)
		if (symbols[i].symbol >= 0xff00 && symbols[i].symbol <= 0xffff)
			names[count++] = symbols[i].name;
	return str_nearest(name, names, count);
}

static int chord_add(struct chord *out, const char *name, struct husk_error *err)
{
	xcb_keysym_t symbol = symbol_of(name);

	if (!symbol) {
		const char *near = strlen(name) <= 32 ? nearest(name) : NULL;
		return husk_fail_field(err, "text",
				       "key '%.32s' is not known%s%s%s (as in \"ctrl+s\", \"Return\", \"Page_Down\")",
				       name, near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
	}
	if (out->count == CHORD_MAX)
		return husk_fail_field(err, "text", "more than %d keys at once", CHORD_MAX);
	out->symbols[out->count++] = symbol;
	return 0;
}

int chord_parse(const char *text, struct chord *out, struct husk_error *err)
{
	cleanup_free char *copy = strdup(text);

	*out = (struct chord){ 0 };
	if (!copy)
		return husk_fail_memory(err);
	if (!*text)
		return husk_fail_field(err, "text", "no key is named (as in \"ctrl+s\", \"Return\")");
	for (char *part = copy; part;) {
		/* A plus that begins a part is the key of that name. */
		char *plus = strchr(*part == '+' ? part + 1 : part, '+');
		char *next = plus ? plus + 1 : NULL;
		if (plus)
			*plus = '\0';
		if (!*part)
			return husk_fail_field(err, "text", "'%.64s' ends with '+'", text);
		if (chord_add(out, part, err) < 0)
			return -1;
		part = next;
	}
	/* "ctrl+T" is Control and the key of that letter; Shift is said. */
	for (size_t i = 0; out->count > 1 && i < out->count; i++)
		if (out->symbols[i] >= 'A' && out->symbols[i] <= 'Z')
			out->symbols[i] += 'a' - 'A';
	return 0;
}
