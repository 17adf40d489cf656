/*
 * Opens the catalog: the file, its settings and its schema. The rows are in catalog_sandbox.c, catalog_snapshot.c, catalog_point.c,
 * catalog_template.c, catalog_volume.c and catalog_event.c. Every process that uses an instance opens the catalog, each
 * `husk` command included, so opening must be cheap. A handle must never be used after fork(): SQLite's locks belong to the
 * process that took them.
 */
#include <sys/stat.h>

#include "store/catalog_kit.h"

#define BUSY_MS 20000 /* a hundred processes that all write at once, on a busy host */

/*
 * Each step raises the schema by one version; PRAGMA user_version counts the steps. Steps are only added, never
 * changed.
 *
 * There are no foreign keys: events outlive their sandboxes, ended sandboxes outlive their templates, and a template is
 * baked in a sandbox before it has a row. Unique indexes enforce what must be unique: one live sandbox per name and per
 * slot, one current version per template name.
 *
 * A step after SCHEMA_FLOOR only adds: tables, indexes, and columns that may be NULL or have a default. Then a program that
 * knows SCHEMA_FLOOR steps or more can use a catalog of a newer one: old supervisors go on, and an upgrade can be undone. A
 * step that cannot be like that raises SCHEMA_FLOOR to its own number. PRAGMA user_version has SCHEMA_FLOOR, because the
 * first releases refuse what is above the steps they know; PRAGMA application_id has how many steps were applied.
 */
#define SCHEMA_FLOOR 9
static const char *const schema_steps[] = {
	"CREATE TABLE sandboxes ("
	"  id TEXT PRIMARY KEY, name TEXT, template_name TEXT, template_digest TEXT, parent TEXT, isolation TEXT,"
	"  end_reason TEXT, state TEXT NOT NULL, warm INTEGER NOT NULL, created_ms INTEGER NOT NULL,"
	"  expires_ms INTEGER NOT NULL, ended_ms INTEGER NOT NULL, idle_seconds INTEGER NOT NULL,"
	"  persistent INTEGER NOT NULL, memory_bytes INTEGER NOT NULL, disk_bytes INTEGER NOT NULL,"
	"  cpu_milli INTEGER NOT NULL, pids INTEGER NOT NULL, slot INTEGER NOT NULL, metadata TEXT, environment TEXT);"
	"CREATE UNIQUE INDEX sandboxes_live_name ON sandboxes (name) WHERE name IS NOT NULL AND state <> 'ended';"
	"CREATE UNIQUE INDEX sandboxes_slot ON sandboxes (slot) WHERE slot > 0;"
	"CREATE INDEX sandboxes_name ON sandboxes (name) WHERE name IS NOT NULL;"
	"CREATE INDEX sandboxes_state ON sandboxes (state, template_digest, disk_bytes, warm);"

	"CREATE TABLE snapshots ("
	"  id TEXT PRIMARY KEY, name TEXT UNIQUE, sandbox TEXT, template_name TEXT, template_digest TEXT, isolation "
	"TEXT,"
	"  created_ms INTEGER NOT NULL, bytes INTEGER NOT NULL, memory_bytes INTEGER NOT NULL, disk_bytes INTEGER NOT "
	"NULL,"
	"  cpu_milli INTEGER NOT NULL, pids INTEGER NOT NULL, ready INTEGER NOT NULL, environment TEXT, metadata TEXT);"

	"CREATE TABLE templates ("
	"  name TEXT NOT NULL, digest TEXT NOT NULL, description TEXT, isolation TEXT, created_ms INTEGER NOT NULL,"
	"  bytes INTEGER NOT NULL, disk_bytes INTEGER NOT NULL, current INTEGER NOT NULL, PRIMARY KEY (name, digest));"
	"CREATE UNIQUE INDEX templates_current ON templates (name) WHERE current;"

	/* AUTOINCREMENT: a number is never used twice, also after the newest events were removed. */
	"CREATE TABLE events ("
	"  sequence INTEGER PRIMARY KEY AUTOINCREMENT, at_ms INTEGER NOT NULL, sandbox TEXT, kind TEXT NOT NULL,"
	"  detail TEXT NOT NULL);"
	"CREATE INDEX events_sandbox ON events (sandbox, sequence);",

	/* Tenants. A name is unique per tenant. NULL is the instance itself. NULLs never conflict in an index, so the
	 * index uses '' for NULL. Names of snapshots and keys of templates were unique by table constraints, so these
	 * tables are made again. */
	"ALTER TABLE sandboxes ADD COLUMN tenant TEXT;"
	"ALTER TABLE sandboxes ADD COLUMN idempotency_key TEXT;"
	"ALTER TABLE sandboxes ADD COLUMN request TEXT;"
	"DROP INDEX sandboxes_live_name;"
	"CREATE UNIQUE INDEX sandboxes_live_name ON sandboxes (name, coalesce(tenant, ''))"
	"  WHERE name IS NOT NULL AND state <> 'ended';"
	"CREATE UNIQUE INDEX sandboxes_key ON sandboxes (idempotency_key, coalesce(tenant, ''))"
	"  WHERE idempotency_key IS NOT NULL;"
	"CREATE INDEX sandboxes_tenant ON sandboxes (tenant, state) WHERE tenant IS NOT NULL;"

	"ALTER TABLE snapshots RENAME TO old_snapshots;"
	"CREATE TABLE snapshots ("
	"  id TEXT PRIMARY KEY, name TEXT, sandbox TEXT, template_name TEXT, template_digest TEXT, isolation TEXT,"
	"  created_ms INTEGER NOT NULL, bytes INTEGER NOT NULL, memory_bytes INTEGER NOT NULL,"
	"  disk_bytes INTEGER NOT NULL, cpu_milli INTEGER NOT NULL, pids INTEGER NOT NULL, ready INTEGER NOT NULL,"
	"  environment TEXT, metadata TEXT, tenant TEXT);"
	"INSERT INTO snapshots SELECT id, name, sandbox, template_name, template_digest, isolation, created_ms, bytes,"
	"  memory_bytes, disk_bytes, cpu_milli, pids, ready, environment, metadata, NULL FROM old_snapshots;"
	"DROP TABLE old_snapshots;"
	"CREATE UNIQUE INDEX snapshots_name ON snapshots (name, coalesce(tenant, '')) WHERE name IS NOT NULL;"

	"ALTER TABLE templates RENAME TO old_templates;"
	"CREATE TABLE templates ("
	"  name TEXT NOT NULL, digest TEXT NOT NULL, description TEXT, isolation TEXT, created_ms INTEGER NOT NULL,"
	"  bytes INTEGER NOT NULL, disk_bytes INTEGER NOT NULL, current INTEGER NOT NULL, tenant TEXT);"
	"INSERT INTO templates SELECT name, digest, description, isolation, created_ms, bytes, disk_bytes, current, "
	"NULL"
	"  FROM old_templates;"
	"DROP TABLE old_templates;" /* drops templates_current too */
	"CREATE UNIQUE INDEX templates_version ON templates (name, digest, coalesce(tenant, ''));"
	"CREATE UNIQUE INDEX templates_current ON templates (name, coalesce(tenant, '')) WHERE current;"

	"ALTER TABLE events ADD COLUMN tenant TEXT;"
	"CREATE INDEX events_tenant ON events (tenant, sequence) WHERE tenant IS NOT NULL;"

	"CREATE TABLE tokens ("
	"  id TEXT PRIMARY KEY, name TEXT NOT NULL, tenant TEXT, hash TEXT NOT NULL UNIQUE, created_ms INTEGER NOT "
	"NULL,"
	"  expires_ms INTEGER NOT NULL, revoked INTEGER NOT NULL, max_sandboxes INTEGER NOT NULL,"
	"  max_memory_bytes INTEGER NOT NULL, max_snapshot_bytes INTEGER NOT NULL);"
	"CREATE UNIQUE INDEX tokens_name ON tokens (name) WHERE NOT revoked;",
	"ALTER TABLE sandboxes ADD COLUMN egress TEXT;"
	"ALTER TABLE snapshots ADD COLUMN egress TEXT;"
	"ALTER TABLE templates ADD COLUMN egress TEXT;",

	/* More names of a snapshot, in the same space as its own name; removed with the snapshot. */
	"CREATE TABLE snapshot_tags (name TEXT NOT NULL, tenant TEXT, snapshot TEXT NOT NULL);"
	"CREATE UNIQUE INDEX snapshot_tags_name ON snapshot_tags (name, coalesce(tenant, ''));"
	"CREATE INDEX snapshot_tags_snapshot ON snapshot_tags (snapshot);"
	"CREATE TRIGGER snapshots_removed AFTER DELETE ON snapshots BEGIN"
	"  DELETE FROM snapshot_tags WHERE snapshot = OLD.id; END;",

	"CREATE TABLE secrets ("
	"  id TEXT PRIMARY KEY, name TEXT NOT NULL, tenant TEXT, value TEXT NOT NULL, metadata TEXT NOT NULL,"
	"  version INTEGER NOT NULL, created_ms INTEGER NOT NULL, updated_ms INTEGER NOT NULL);"
	"CREATE UNIQUE INDEX secrets_name ON secrets (name, coalesce(tenant, ''));",

	"CREATE TABLE volumes ("
	"  id TEXT PRIMARY KEY, name TEXT NOT NULL, tenant TEXT, created_ms INTEGER NOT NULL,"
	"  limit_bytes INTEGER NOT NULL);"
	"CREATE UNIQUE INDEX volumes_name ON volumes (name, coalesce(tenant, ''));"
	"ALTER TABLE sandboxes ADD COLUMN volumes TEXT;"
	"ALTER TABLE snapshots ADD COLUMN volumes TEXT;",

	/* Was an entry of the metadata before. */
	"ALTER TABLE sandboxes ADD COLUMN hibernates INTEGER NOT NULL DEFAULT 0;"
	"UPDATE sandboxes SET hibernates = 1 WHERE json_extract(metadata, '$.\"husk.on-expiry\"') = 'hibernate';",

	/* A snapshot that other tenants may create sandboxes from. */
	"ALTER TABLE snapshots ADD COLUMN shared INTEGER NOT NULL DEFAULT 0;",

	/* Checkpoints of a sandbox, removed with it. `point` of a sandbox: its current checkpoint. */
	"CREATE TABLE points ("
	"  sandbox TEXT NOT NULL, number INTEGER NOT NULL, parent INTEGER NOT NULL, label TEXT,"
	"  created_ms INTEGER NOT NULL, bytes INTEGER NOT NULL, ready INTEGER NOT NULL, traffic TEXT,"
	"  PRIMARY KEY (sandbox, number));"
	"CREATE UNIQUE INDEX points_label ON points (sandbox, label) WHERE label IS NOT NULL;"
	"ALTER TABLE sandboxes ADD COLUMN point INTEGER NOT NULL DEFAULT 0;"
	"CREATE TRIGGER sandboxes_ended AFTER UPDATE OF state ON sandboxes WHEN NEW.state = 'ended' BEGIN"
	"  DELETE FROM points WHERE sandbox = NEW.id; END;"
	"CREATE TRIGGER sandboxes_removed AFTER DELETE ON sandboxes BEGIN"
	"  DELETE FROM points WHERE sandbox = OLD.id; END;",

	/* The state that a fork began with, kept for `husk diff` and `husk merge`. */
	"ALTER TABLE sandboxes ADD COLUMN origin TEXT;"
	"ALTER TABLE snapshots ADD COLUMN moment INTEGER NOT NULL DEFAULT 0;",

	/* Requests that wait to be sent. They outlive their sandbox's end, and go with its row. `effect` of a point and of a
	 * fork: the last one that its memory knows; `origin` of a point: the fork that it came from, whose effects follow. */
	"CREATE TABLE effects ("
	"  sandbox TEXT NOT NULL, number INTEGER NOT NULL, created_ms INTEGER NOT NULL, method TEXT NOT NULL,"
	"  scheme TEXT NOT NULL, host TEXT NOT NULL, port INTEGER NOT NULL, target TEXT NOT NULL,"
	"  bytes INTEGER NOT NULL, request BLOB, state TEXT NOT NULL, status INTEGER NOT NULL, detail TEXT,"
	"  done_ms INTEGER NOT NULL, PRIMARY KEY (sandbox, number));"
	"ALTER TABLE points ADD COLUMN effect INTEGER NOT NULL DEFAULT 0;"
	"ALTER TABLE points ADD COLUMN origin TEXT;"
	"ALTER TABLE points ADD COLUMN origin_effect INTEGER NOT NULL DEFAULT 0;"
	"ALTER TABLE sandboxes ADD COLUMN effect INTEGER NOT NULL DEFAULT 0;"
	"CREATE TRIGGER sandboxes_removed_effects AFTER DELETE ON sandboxes BEGIN"
	"  DELETE FROM effects WHERE sandbox = OLD.id; END;",

	/* Checkpoints before each call; `thinned`: the last one that made room for others. */
	"ALTER TABLE sandboxes ADD COLUMN each_call INTEGER NOT NULL DEFAULT 0;"
	"ALTER TABLE sandboxes ADD COLUMN thinned INTEGER NOT NULL DEFAULT 0;"
	"ALTER TABLE points ADD COLUMN automatic INTEGER NOT NULL DEFAULT 0;"
	"ALTER TABLE points ADD COLUMN ran TEXT;",

	/* Recordings of desktops: what each takes, or may take while it runs. They outlive their sandbox's end. */
	"CREATE TABLE recordings ("
	"  id TEXT PRIMARY KEY, sandbox TEXT NOT NULL, bytes INTEGER NOT NULL);"
	"CREATE INDEX recordings_sandbox ON recordings (sandbox);"
	"CREATE TRIGGER sandboxes_removed_recordings AFTER DELETE ON sandboxes BEGIN"
	"  DELETE FROM recordings WHERE sandbox = OLD.id; END;",

	/* The files that changed before a checkpoint, once they were asked for. */
	"ALTER TABLE points ADD COLUMN files TEXT;",
};

static int execute(struct catalog *catalog, const char *sql, struct husk_error *err)
{
	return sqlite3_exec(catalog->db, sql, NULL, NULL, NULL) == SQLITE_OK ? 0 : catalog_fail(catalog, err);
}

/* Waits for another process's transaction, which takes well under a millisecond. SQLite's own handler soon sleeps 100
 * ms at a time. On a busy host, processes that sleep so long are overtaken again and again. */
static int wait_while_busy(void *data, int waited_before)
{
	struct catalog *catalog = data;
	int64_t now = time_monotonic_ms();

	if (!waited_before)
		catalog->busy_until_ms = now + BUSY_MS;
	usleep(waited_before < 10 ? 200 : 1000);
	return now < catalog->busy_until_ms;
}

/* SQLite does not always wait for a lock when it changes the journal mode, so this function waits: two processes may
 * make the first call of an instance at once. */
static int switch_to_wal(struct catalog *catalog, struct husk_error *err)
{
	int64_t deadline = time_monotonic_ms() + BUSY_MS;

	while (sqlite3_exec(catalog->db, "PRAGMA journal_mode = WAL", NULL, NULL, NULL) != SQLITE_OK) {
		if ((sqlite3_errcode(catalog->db) & 0xff) != SQLITE_BUSY || time_monotonic_ms() > deadline)
			return catalog_fail(catalog, err);
		usleep(2000);
	}
	return 0;
}

/* How many steps a program has to know, and how many were applied. */
static int read_version(struct catalog *catalog, int64_t *floor, int64_t *version, struct husk_error *err)
{
	if (catalog_number(catalog, "PRAGMA user_version", NULL, floor, err) < 0 ||
	    catalog_number(catalog, "PRAGMA application_id", NULL, version, err) < 0)
		return -1;
	if (*floor < SCHEMA_FLOOR || *version < *floor) /* of a program that counted in user_version alone */
		*version = *floor;
	return 0;
}

static int apply_steps(struct catalog *catalog, struct husk_error *err)
{
	int64_t floor = 0, version = 0;
	char set_version[96];

	/* Checked again under the write lock: another process may have been first. */
	if (read_version(catalog, &floor, &version, err) < 0)
		return -1;
	for (; version < (int64_t)ARRAY_SIZE(schema_steps); version++)
		if (execute(catalog, schema_steps[version], err))
			return -1;
	snprintf(set_version, sizeof set_version, "PRAGMA user_version = %d; PRAGMA application_id = %lld",
		 SCHEMA_FLOOR, (long long)version);
	return execute(catalog, set_version, err);
}

static int copy_database(sqlite3 *from, sqlite3 *to)
{
	sqlite3_backup *backup = sqlite3_backup_init(to, "main", from, "main");
	int64_t deadline = time_monotonic_ms() + BUSY_MS;
	int result;

	if (!backup)
		return -1;
	while ((result = sqlite3_backup_step(backup, -1)) == SQLITE_BUSY || result == SQLITE_LOCKED) {
		if (time_monotonic_ms() > deadline)
			break;
		usleep(2000);
	}
	sqlite3_backup_finish(backup);
	return result == SQLITE_DONE ? 0 : -1;
}

/* Tries the steps on a copy in memory. A catalog that they do not suit stays as it is, for the program that wrote it. */
static int try_steps(struct catalog *catalog, const char *path, int64_t version, struct husk_error *err)
{
	struct catalog copy = { 0 };
	struct husk_error why = { 0 };
	int64_t wrong = 0;

	if (sqlite3_open(":memory:", &copy.db) != SQLITE_OK || copy_database(catalog->db, copy.db) < 0)
		husk_fail(&why, HUSK_UNAVAILABLE, "it cannot be copied");
	else if (apply_steps(&copy, &why) == 0 &&
		 catalog_number(&copy, "SELECT count(*) FROM pragma_integrity_check WHERE integrity_check <> 'ok'",
				NULL, &wrong, &why) == 0 &&
		 wrong)
		husk_fail(&why, HUSK_UNAVAILABLE, "the copy has %lld faults", (long long)wrong);
	sqlite3_close(copy.db);
	if (why.code == HUSK_OK)
		return 0;
	return husk_fail(err, HUSK_UNAVAILABLE,
			 "the catalog %s cannot be upgraded from schema %lld to %zu: %s; nothing was changed, and the "
			 "previous husk can still use it",
			 path, (long long)version, ARRAY_SIZE(schema_steps), why.message);
}

static int upgrade_schema(struct catalog *catalog, const char *path, int64_t version, struct husk_error *err)
{
	if (version > 0 && try_steps(catalog, path, version, err) < 0)
		return -1;
	if (switch_to_wal(catalog, err) || catalog_begin(catalog, CATALOG_WRITE, err))
		return -1;
	return catalog_finish(catalog, apply_steps(catalog, err), err);
}

static int set_up(struct catalog *catalog, const char *path, struct husk_error *err)
{
	int64_t floor = 0, version = 0;

	sqlite3_busy_handler(catalog->db, wait_while_busy, catalog);
	/* By default, the last process that closes the database copies the log into it and waits for the disk. With
	 * short commands, every process is the last one. So this is off, and the log is kept short, so that reading it
	 * costs little. */
	sqlite3_db_config(catalog->db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
	sqlite3_wal_autocheckpoint(catalog->db, 256);
	/* Deleted data is overwritten, because it may hold secrets. */
	if (execute(catalog, "PRAGMA synchronous = NORMAL; PRAGMA secure_delete = ON", err) ||
	    read_version(catalog, &floor, &version, err) < 0)
		return -1;
	if (floor < 0)
		return husk_fail(err, HUSK_UNAVAILABLE, "the catalog %s is damaged: its schema is %lld" DAMAGED_WAY_OUT,
				 path, (long long)floor);
	if (floor > (int64_t)ARRAY_SIZE(schema_steps))
		return husk_fail(
			err, HUSK_UNAVAILABLE,
			"%s was written by a newer husk (schema %lld, this one knows %zu); upgrade husk, or use "
			"another HUSK_HOME",
			path, (long long)version, ARRAY_SIZE(schema_steps));
	return version < (int64_t)ARRAY_SIZE(schema_steps) ? upgrade_schema(catalog, path, version, err) : 0;
}

/* Is this directory, beside the catalog, not empty? */
static bool has_entries(const char *directory, const char *name)
{
	cleanup_free char *path = str_format("%s/%s", directory, name);
	cleanup_dir DIR *dir = path ? opendir(path) : NULL;
	struct dirent *entry;

	while (dir && (entry = readdir(dir)))
		if (entry->d_name[0] != '.')
			return true;
	return false;
}

/* A catalog of zero bytes is either a new one, which another process is about to fill, or one that was emptied. If it
 * was emptied, all that it listed would look like remains and be removed. */
static int check_emptied(const char *path, const char *directory, struct husk_error *err)
{
	static const char *const kept[] = { "sandboxes", "snapshots", "templates", "volumes" };
	struct stat status;
	bool used = false;

	for (size_t i = 0; i < ARRAY_SIZE(kept); i++)
		used |= has_entries(directory, kept[i]);
	for (int64_t end = time_monotonic_ms() + BUSY_MS; used; usleep(2000)) {
		if (stat(path, &status) < 0)
			return husk_fail_errno(err, "cannot read the catalog %s", path);
		if (status.st_size > 0)
			return 0;
		if (time_monotonic_ms() > end)
			return husk_fail(err, HUSK_UNAVAILABLE,
					 "the catalog %s is empty, but this instance has data" DAMAGED_WAY_OUT, path);
	}
	return 0;
}

/* Makes the file if it does not exist, and refuses an emptied one. */
static int find_file(const char *path, const char *directory, struct husk_error *err)
{
	struct stat status;

	/* The file holds secrets, so only root may read it; -wal and -shm get the same mode. The file is made without
	 * opening it: closing any descriptor of a database drops the locks of this process on it. */
	if (mknod(path, S_IFREG | 0600, 0) == 0)
		return 0;
	if (errno != EEXIST)
		return husk_fail_errno(err, "make the catalog %s", path);
	if (stat(path, &status) < 0)
		return husk_fail_errno(err, "cannot read the catalog %s", path);
	return status.st_size == 0 ? check_emptied(path, directory, err) : 0;
}

static void close_catalog(struct catalog **catalog)
{
	catalog_close(*catalog);
}

int catalog_open(const char *path, struct catalog **out, struct husk_error *err)
{
	cleanup(close_catalog) struct catalog *catalog = calloc(1, sizeof *catalog);
	const char *name = strrchr(path, '/');
	cleanup_free char *directory = name ? strndup(path, (size_t)(name - path)) : strdup(".");

	if (!catalog || !directory)
		return husk_fail_memory(err);
	pthread_mutex_init(&catalog->own_lock, NULL); /* cannot fail with default attributes */
	catalog->lock = &catalog->own_lock;
	catalog->values = str_format("%s/environments", directory);
	if (!catalog->values)
		return husk_fail_memory(err);
	if (find_file(path, directory, err) < 0)
		return -1;
	if (sqlite3_open_v2(path, &catalog->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL) != SQLITE_OK) {
		if (!catalog->db)
			return husk_fail_memory(err);
		catalog_fail(catalog, err);
		return husk_wrap(err, "open %s", path);
	}
	if (set_up(catalog, path, err))
		return -1;
	*out = steal_pointer(catalog);
	return 0;
}

void catalog_close(struct catalog *catalog)
{
	if (!catalog)
		return;
	if (catalog->is_view) {
		free((char *)catalog->view.tenant);
	} else {
		sqlite3_close(catalog->db);
		free(catalog->values);
		pthread_mutex_destroy(&catalog->own_lock);
	}
	free(catalog);
}
