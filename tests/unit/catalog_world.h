/*
 * What the tests of the catalog share: a catalog in a directory of its own, and rows to put into it.
 */
#ifndef HUSK_TEST_CATALOG_WORLD_H
#define HUSK_TEST_CATALOG_WORLD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "store/catalog.h"

struct world {
	char directory[32];
	char path[64];
	struct catalog *catalog;
	struct husk_error err;
};

static inline int set_up(void **state)
{
	struct world *w = calloc(1, sizeof *w);

	assert_non_null(w);
	strcpy(w->directory, "/tmp/husk-catalog-XXXXXX");
	assert_non_null(mkdtemp(w->directory));
	snprintf(w->path, sizeof w->path, "%s/catalog.db", w->directory);
	assert_int_equal(catalog_open(w->path, &w->catalog, &w->err), 0);
	*state = w;
	return 0;
}

static inline int tear_down(void **state)
{
	struct world *w = *state;

	catalog_close(w->catalog);
	assert_int_equal(dir_remove(w->directory, &w->err), 0);
	free(w);
	return 0;
}

/* The fields a test does not care about are filled with something that is not zero, so that a lost one shows. */
static inline struct catalog_sandbox sandbox(char *id, char *name, enum catalog_state state)
{
	return (struct catalog_sandbox){
		.id = id,
		.name = name,
		.template_name = "base",
		.template_digest = "d1",
		.isolation = "gvisor",
		.state = state,
		.created_ms = 1000,
		.expires_ms = 2000,
		.idle_seconds = 30,
		.memory_bytes = 1u << 30,
		.disk_bytes = 1ull << 33,
		.cpu_milli = 2000,
		.pids = 512,
		.metadata = "{\"a\":\"b\"}",
		.environment = "{\"TOKEN\":\"x\"}",
	};
}

static inline uint32_t add(struct world *w, char *id, char *name, enum catalog_state state)
{
	struct catalog_sandbox row = sandbox(id, name, state);

	if (catalog_sandbox_add(w->catalog, &row, &w->err))
		fail_msg("%s", w->err.message);
	return row.slot;
}

static inline struct catalog_sandbox *get(struct world *w, const char *name)
{
	struct catalog_sandbox *row = NULL;

	if (catalog_sandbox_get(w->catalog, name, &row, &w->err))
		fail_msg("%s", w->err.message);
	return row;
}

static inline void refused(struct world *w, int result, enum husk_code code, const char *part)
{
	assert_int_equal(result, -1);
	assert_int_equal(w->err.code, code);
	if (!strstr(w->err.message, part))
		fail_msg("'%s' does not say '%s'", w->err.message, part);
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

#endif
