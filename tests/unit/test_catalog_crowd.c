/*
 * The catalog in a crowd: many processes and threads at once, none of which may be given what another has, and some of
 * which are killed in the middle.
 */
#include <pthread.h>
#include <signal.h>
#include <sqlite3.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "catalog_world.h"

#define WORKERS 6

/* Runs `work` in processes of their own, each with its own handle; every one must exit 0. */
static void in_processes(struct world *w, int (*work)(struct catalog *catalog, int worker, void *data), void *data)
{
	pid_t pids[WORKERS];

	for (int i = 0; i < WORKERS; i++) {
		pids[i] = fork();
		assert_true(pids[i] >= 0);
		if (pids[i] == 0) {
			struct catalog *catalog = NULL;
			struct husk_error err = { 0 };
			int failed = catalog_open(w->path, &catalog, &err) || work(catalog, i, data);

			catalog_close(catalog);
			_exit(failed ? 1 : 0);
		}
	}
	for (int i = 0; i < WORKERS; i++) {
		int status = 0;

		assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
		assert_int_equal(status, 0);
	}
}

#define POOL_ENTRIES 120

/* data: a counter per entry, shared by all processes. */
static int claim_all(struct catalog *catalog, int worker, void *data)
{
	uint32_t *claims = data;
	struct husk_error err = { 0 };
	int got;

	(void)worker;
	do {
		struct catalog_sandbox *row = NULL;

		got = catalog_pool_claim(catalog, "d1", 1ull << 33, false, &row, &err);
		if (got == 1)
			__atomic_add_fetch(&claims[row->slot], 1, __ATOMIC_SEQ_CST);
		catalog_sandbox_free(row);
	} while (got == 1);
	return got;
}

static void claims_nothing_twice(void **state)
{
	struct world *w = *state;
	size_t size = (POOL_ENTRIES + 1) * sizeof(uint32_t);
	uint32_t *claims = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	assert_true(claims != MAP_FAILED);
	for (int i = 0; i < POOL_ENTRIES; i++) {
		char id[16];

		snprintf(id, sizeof id, "sb-%d", i);
		add(w, id, NULL, CATALOG_POOL);
	}
	in_processes(w, claim_all, claims);
	for (int i = 1; i <= POOL_ENTRIES; i++)
		assert_int_equal(claims[i], 1);
	munmap(claims, size);
}

static int add_some(struct catalog *catalog, int worker, void *data)
{
	struct husk_error err = { 0 };

	(void)data;
	for (int i = 0; i < 20; i++) {
		char id[32];
		struct catalog_sandbox row = sandbox(id, NULL, CATALOG_RUNNING);

		snprintf(id, sizeof id, "sb-%d-%d", worker, i);
		if (catalog_sandbox_add(catalog, &row, &err) || catalog_event(catalog, id, "created", NULL, &err))
			return -1;
	}
	return 0;
}

static void gives_no_slot_twice(void **state)
{
	struct world *w = *state;
	struct catalog_sandbox **list = NULL;
	bool seen[WORKERS * 20 + 1] = { false };
	size_t count = 0;

	in_processes(w, add_some, NULL);
	assert_int_equal(catalog_sandbox_list(w->catalog, 1u << CATALOG_RUNNING, &list, &w->err), 0);
	for (; list[count]; count++) {
		assert_true(list[count]->slot >= 1 && list[count]->slot <= WORKERS * 20);
		assert_false(seen[list[count]->slot]);
		seen[list[count]->slot] = true;
	}
	assert_int_equal(count, WORKERS * 20);
	catalog_sandbox_list_free(list);
}

static int take_one_name(struct catalog *catalog, int worker, void *data)
{
	uint32_t *winners = data;
	struct husk_error err = { 0 };
	char id[16];
	struct catalog_sandbox row = sandbox(id, "wanted", CATALOG_RUNNING);

	snprintf(id, sizeof id, "sb-%d", worker);
	if (catalog_sandbox_add(catalog, &row, &err) == 0)
		__atomic_add_fetch(winners, 1, __ATOMIC_SEQ_CST);
	else if (err.code != HUSK_CONFLICT)
		return -1;
	return 0;
}

static void gives_a_name_once(void **state)
{
	struct world *w = *state;
	uint32_t *winners = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	assert_true(winners != MAP_FAILED);
	in_processes(w, take_one_name, winners);
	assert_int_equal(*winners, 1);
	munmap(winners, 4096);
}

static int look_around(struct catalog *catalog, int worker, void *data)
{
	struct husk_error err = { 0 };

	(void)worker, (void)data;
	return catalog_pool_count(catalog, "d1", 1, false, &err);
}

/* Everyone finds no schema and wants to make it. */
static void is_made_once(void **state)
{
	struct world *w = *state;

	for (int round = 0; round < 5; round++) {
		snprintf(w->path, sizeof w->path, "%s/first-%d.db", w->directory, round);
		in_processes(w, look_around, NULL);
	}
}

static void *add_events(void *data)
{
	struct world *w = data;
	struct husk_error err = { 0 };

	for (int i = 0; i < 50; i++)
		if (catalog_event(w->catalog, "sb-1", "tick", NULL, &err))
			return w;
	return NULL;
}

static void serves_threads_on_one_handle(void **state)
{
	struct world *w = *state;
	pthread_t threads[4];
	struct husk_event *events = NULL;
	size_t count = 0;

	for (size_t i = 0; i < ARRAY_SIZE(threads); i++)
		assert_int_equal(pthread_create(&threads[i], NULL, add_events, w), 0);
	for (size_t i = 0; i < ARRAY_SIZE(threads); i++) {
		void *failed = NULL;

		assert_int_equal(pthread_join(threads[i], &failed), 0);
		assert_null(failed);
	}
	assert_int_equal(catalog_events(w->catalog, "sb-1", 0, 0, &events, &count, &w->err), 0);
	assert_int_equal(count, 200);
	husk_event_list_free(events, count);
}

/* A writer is killed at some moment, again and again; what it had finished is there, and the file is whole. */
static void survives_kill(void **state)
{
	struct world *w = *state;
	uint32_t *done = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct husk_event *events = NULL;
	size_t count = 0;
	sqlite3 *db;

	assert_true(done != MAP_FAILED);
	for (int round = 0; round < 12; round++) {
		pid_t pid = fork();

		assert_true(pid >= 0);
		if (pid == 0) {
			struct catalog *catalog = NULL;

			if (catalog_open(w->path, &catalog, NULL))
				_exit(1);
			while (catalog_event(catalog, "sb-1", "tick", "{\"text\":\"some bytes to fill pages with\"}",
					     NULL) == 0)
				__atomic_add_fetch(done, 1, __ATOMIC_SEQ_CST);
			_exit(1);
		}
		usleep(3000 + (useconds_t)round * 2500);
		assert_int_equal(kill(pid, SIGKILL), 0);
		assert_int_equal(waitpid(pid, NULL, 0), pid);
	}
	assert_int_equal(catalog_events(w->catalog, NULL, 0, 0, &events, &count, &w->err), 0);
	/* At most the one that was committed but not yet counted when the kill came, per round. */
	assert_in_range(count, *done, *done + 12);
	husk_event_list_free(events, count);
	assert_int_equal(sqlite3_open(w->path, &db), SQLITE_OK);
	sqlite3_stmt *check = NULL;

	assert_int_equal(sqlite3_prepare_v2(db, "PRAGMA integrity_check", -1, &check, NULL), SQLITE_OK);
	assert_int_equal(sqlite3_step(check), SQLITE_ROW);
	assert_string_equal((const char *)sqlite3_column_text(check, 0), "ok");
	sqlite3_finalize(check);
	sqlite3_close(db);
	munmap(done, 4096);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(claims_nothing_twice), TEST(gives_no_slot_twice),          TEST(gives_a_name_once),
		TEST(is_made_once),         TEST(serves_threads_on_one_handle), TEST(survives_kill),
	};

	return cmocka_run_group_tests_name("catalog in a crowd", tests, NULL, NULL);
}
