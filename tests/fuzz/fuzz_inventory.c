/*
 * Fuzz target: the parsers of what a guest says about its packages, processes and ports (src/client/inventory.c). The first byte
 * chooses the parser; the rest is the file. Every item must have a name, within its bounds.
 */
#include "client/inventory.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int parse_pip(struct inventory *inventory, const char *text, size_t size)
{
	cleanup_free char *name = strndup(text, size);

	return name ? inventory_pip(inventory, name) : 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static int (*const parsers[])(struct inventory *, const char *, size_t) = {
		inventory_deb, parse_pip, inventory_npm, inventory_npm_lock, inventory_ports, inventory_process,
	};
	cleanup_inventory struct inventory inventory = { 0 };

	if (size < 1)
		return 0;
	parsers[data[0] % ARRAY_SIZE(parsers)](&inventory, (const char *)data + 1, size - 1);
	inventory_sort(&inventory);
	for (size_t i = 0; i < inventory.count; i++)
		if (!inventory.items[i].name[0] || strlen(inventory.items[i].name) > 200)
			abort();
	return 0;
}
