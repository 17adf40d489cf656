/*
 * Parsers for what a state has besides its files; see inventory.h.
 */
#include "client/inventory.h"

#include <arpa/inet.h>

#include "base/jansson.h"

#define NAME_MAX_BYTES 200u /* of a name or version; longer ones are cut */

void inventory_free(struct inventory *inventory)
{
	for (size_t i = 0; i < inventory->count; i++) {
		free(inventory->items[i].name);
		free(inventory->items[i].version);
	}
	free(inventory->items);
}

int inventory_add(struct inventory *inventory, const char *kind, const char *name, const char *version)
{
	if (inventory->count == INVENTORY_MAX || !*name)
		return 0;
	if (inventory->count == inventory->room) {
		size_t room = inventory->room ? inventory->room * 2 : 64;
		struct item *grown = reallocarray(inventory->items, room, sizeof(*grown));
		if (!grown)
			return -1;
		inventory->items = grown;
		inventory->room = room;
	}
	struct item *item = &inventory->items[inventory->count];
	*item = (struct item){ .kind = kind,
			       .name = strndup(name, NAME_MAX_BYTES),
			       .version = version ? strndup(version, NAME_MAX_BYTES) : NULL };
	inventory->count++;
	return item->name && (!version || item->version) ? 0 : -1;
}

static int by_name(const void *a, const void *b)
{
	const struct item *left = a, *right = b;
	int order = strcmp(left->kind, right->kind);

	if (order == 0)
		order = strcmp(left->name, right->name);
	return order ? order : strcmp(left->version ? left->version : "", right->version ? right->version : "");
}

void inventory_sort(struct inventory *inventory)
{
	if (inventory->count)
		qsort(inventory->items, inventory->count, sizeof(*inventory->items), by_name);
}

/* ---- Debian ---- */

struct line {
	const char *text;
	size_t size;
};

static bool next_line(const char **at, const char *end, struct line *line)
{
	if (*at >= end)
		return false;
	const char *stop = memchr(*at, '\n', (size_t)(end - *at));
	*line = (struct line){ *at, (size_t)((stop ? stop : end) - *at) };
	*at = stop ? stop + 1 : end;
	return true;
}

/* The value of "Field: value", for a line that has this field; the caller frees it. */
static char *field_value(const struct line *line, const char *field)
{
	size_t size = strlen(field);

	if (line->size <= size || strncasecmp(line->text, field, size) != 0)
		return NULL;
	return strndup(line->text + size, line->size - size);
}

static void take(const struct line *line, const char *field, char **value)
{
	char *found = field_value(line, field);

	if (!found)
		return;
	free(*value);
	*value = found;
}

int inventory_deb(struct inventory *inventory, const char *text, size_t size)
{
	const char *at = text, *end = text + size;
	bool more = true;
	int result = 0;

	while (more && result == 0) {
		cleanup_free char *name = NULL, *version = NULL, *status = NULL;
		struct line line;
		while ((more = next_line(&at, end, &line)) && line.size > 0) {
			take(&line, "Package: ", &name);
			take(&line, "Version: ", &version);
			take(&line, "Status: ", &status);
		}
		if (name && status && str_ends(status, " installed"))
			result = inventory_add(inventory, "deb", name, version);
	}
	return result;
}

/* ---- pip and npm ---- */

int inventory_pip(struct inventory *inventory, const char *file)
{
	size_t size = strlen(file);

	if (size <= 10 || (!str_ends(file, ".dist-info") && !str_ends(file, ".egg-info")))
		return 0;
	cleanup_free char *name = strndup(file, size - (str_ends(file, ".dist-info") ? 10 : 9));
	char *dash = name ? strchr(name, '-') : NULL;
	if (!name)
		return -1;
	if (!dash)
		return 0;
	*dash = '\0';
	char *rest = strchr(dash + 1, '-'); /* in the name of an egg, the version of Python follows */
	if (rest)
		*rest = '\0';
	return inventory_add(inventory, "pip", name, dash + 1) < 0 ? -1 : 1;
}

int inventory_npm(struct inventory *inventory, const char *text, size_t size)
{
	cleanup_json json_t *document = json_loadb(text, size, 0, NULL);
	const char *name = json_string_value(json_object_get(document, "name"));

	return name ? inventory_add(inventory, "npm", name, json_string_value(json_object_get(document, "version")))
		    : 0;
}

int inventory_npm_lock(struct inventory *inventory, const char *text, size_t size)
{
	cleanup_json json_t *document = json_loadb(text, size, 0, NULL);
	json_t *value;
	const char *path;

	json_object_foreach(json_object_get(document, "packages"), path, value)
	{
		const char *name = strstr(path, "node_modules/"), *next;
		while (name && (next = strstr(name + 1, "node_modules/")))
			name = next;
		if (name && inventory_add(inventory, "npm", name + strlen("node_modules/"),
					  json_string_value(json_object_get(value, "version"))) < 0)
			return -1;
	}
	return 0;
}

/* ---- processes and ports ---- */

/* "0100007F:1F90" or its longer form of IPv6, in the byte order of the machine. */
static int add_port(struct inventory *inventory, const char *address, unsigned port)
{
	uint32_t words[4] = { 0 };
	char text[INET6_ADDRSTRLEN], name[INET6_ADDRSTRLEN + 16];
	size_t count = strlen(address) / 8;

	if ((count != 1 && count != 4) || strlen(address) % 8 || port == 0 || port > 65535)
		return 0;
	for (size_t i = 0; i < count; i++)
		if (sscanf(address + 8 * i, "%8x", &words[i]) != 1)
			return 0;
	if (!inet_ntop(count == 1 ? AF_INET : AF_INET6, words, text, sizeof(text)))
		return 0;
	snprintf(name, sizeof(name), count == 1 ? "%s:%u" : "[%s]:%u", text, port);
	return inventory_add(inventory, "port", name, NULL);
}

int inventory_ports(struct inventory *inventory, const char *text, size_t size)
{
	const char *at = text, *end = text + size;
	struct line line;

	while (next_line(&at, end, &line)) {
		char copy[256], address[40] = "";
		unsigned port = 0, state = 0;
		snprintf(copy, sizeof(copy), "%.*s", (int)MIN(line.size, sizeof(copy) - 1), line.text);
		if (sscanf(copy, " %*u: %39[0-9A-Fa-f]:%x %*[0-9A-Fa-f]:%*x %x", address, &port, &state) == 3 &&
		    state == 0x0a && add_port(inventory, address, port) < 0)
			return -1;
	}
	return 0;
}

int inventory_process(struct inventory *inventory, const char *text, size_t size)
{
	char name[NAME_MAX_BYTES + 1];
	size_t used = MIN(size, sizeof(name) - 1);

	memcpy(name, text, used);
	while (used > 0 && name[used - 1] == '\0')
		used--;
	for (size_t i = 0; i < used; i++)
		if (name[i] == '\0')
			name[i] = ' ';
	name[used] = '\0';
	return inventory_add(inventory, "process", name, NULL);
}
