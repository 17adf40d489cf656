/*
 * What a guest says about its packages, processes and ports, as src/client/inventory.c reads it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "client/inventory.h"

static void assert_items(struct inventory *inventory, const char *wanted)
{
	cleanup_buf struct buf text = { 0 };

	inventory_sort(inventory);
	for (size_t i = 0; i < inventory->count; i++) {
		const struct item *item = &inventory->items[i];
		buf_printf(&text, "%s %s %s;", item->kind, item->name, item->version ? item->version : "-");
	}
	assert_string_equal(text.data ? text.data : "", wanted);
}

static void debian(void **state)
{
	static const char status[] =
		"Package: b\nStatus: install ok installed\nDescription: x\n Package: no\nVersion: 2:1.0-1\n\n"
		"Package: gone\nStatus: deinstall ok config-files\nVersion: 1\n\n\n"
		"Package: a\nVersion: 3\nStatus: install ok installed";
	cleanup_inventory struct inventory inventory = { 0 };

	(void)state;
	assert_int_equal(inventory_deb(&inventory, status, strlen(status)), 0);
	assert_items(&inventory, "deb a 3;deb b 2:1.0-1;");
}

static void pip(void **state)
{
	cleanup_inventory struct inventory inventory = { 0 };

	(void)state;
	assert_int_equal(inventory_pip(&inventory, "requests-2.31.0.dist-info"), 1);
	assert_int_equal(inventory_pip(&inventory, "old-1.0-py3.11.egg-info"), 1);
	assert_int_equal(inventory_pip(&inventory, "noversion.dist-info"), 0);
	assert_int_equal(inventory_pip(&inventory, ".dist-info"), 0);
	assert_int_equal(inventory_pip(&inventory, "requests"), 0);
	assert_items(&inventory, "pip old 1.0;pip requests 2.31.0;");
}

static void npm(void **state)
{
	static const char package[] = "{\"name\": \"@scope/tool\", \"version\": \"1.2.3\"}", broken[] = "{\"name\": ";
	static const char lock[] =
		"{\"packages\": {\"\": {}, \"node_modules/a\": {\"version\": \"1.0.0\"},"
		"\"node_modules/a/node_modules/@s/b\": {\"version\": \"2.0.0\"}, \"node_modules/c\": 3}}";
	cleanup_inventory struct inventory inventory = { 0 };

	(void)state;
	assert_int_equal(inventory_npm(&inventory, package, strlen(package)), 0);
	assert_int_equal(inventory_npm(&inventory, broken, strlen(broken)), 0);
	assert_int_equal(inventory_npm_lock(&inventory, lock, strlen(lock)), 0);
	assert_items(&inventory, "npm @s/b 2.0.0;npm @scope/tool 1.2.3;npm a 1.0.0;npm c -;");
}

static void running(void **state)
{
	static const char tcp[] =
		"  sl  local_address rem_address   st tx_queue\n"
		"   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000\n"
		"   1: 0100007F:1F91 0100007F:0016 01 00000000:00000000\n"
		"   2: 00000000000000000000000000000000:0050 00000000000000000000000000000000:0000 0A\n"
		"   3: zz:0016 0:0 0A\n   4: 010000:0016 0:0 0A\n";
	cleanup_inventory struct inventory inventory = { 0 };

	(void)state;
	assert_int_equal(inventory_ports(&inventory, tcp, strlen(tcp)), 0);
	assert_int_equal(inventory_process(&inventory, "sleep\0 9\0", 9), 0);
	assert_int_equal(inventory_process(&inventory, "\0\0", 2), 0);
	assert_items(&inventory, "port 127.0.0.1:8080 -;port [::]:80 -;process sleep  9 -;");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(debian),
		cmocka_unit_test(pip),
		cmocka_unit_test(npm),
		cmocka_unit_test(running),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
