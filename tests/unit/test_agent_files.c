/*
 * husk-agent's files: streamed reads and writes, ranges, atomic replace, entries and trees, tar both ways with tars
 * made to harm, and watches.
 */
#include "agent_world.h"

static struct call *path_call(struct world *world, enum wire_method method, const char *path)
{
	with_string(world, TAG_PATH, path);
	return call_run(world, method);
}

static struct call *write_file(struct world *world, const char *path, const char *data, size_t size)
{
	with_string(world, TAG_PATH, path);
	struct call *call = call_open(world, METHOD_FILE_WRITE);
	call_write(world, call, data, size);
	call_end_input(world, call);
	call_wait(world, call);
	return call;
}

static void make_file(const char *path, const char *text)
{
	assert_int_equal(file_write_atomic(path, text, strlen(text), 0644, NULL), 0);
}

static void assert_content(const char *path, const char *text)
{
	cleanup_free char *content = file_read(path, 1 << 20, NULL, NULL);

	assert_non_null(content);
	assert_string_equal(content, text);
}

/* ---- files ---- */

static void large_file_there_and_back(void **state)
{
	struct world *world = *state;
	size_t size = 5 * 1024 * 1024 + 17;
	char *data = malloc(size);
	struct stat status;

	assert_non_null(data);
	assert_int_equal(random_bytes(data, size), 0);
	struct call *written = write_file(world, path_in(world, "a/b/large"), data, size);
	assert_call(written);
	assert_int_equal(end_int(written, TAG_SIZE), size);
	assert_int_equal(stat(path_in(world, "a/b/large"), &status), 0);
	assert_int_equal(status.st_size, size);
	assert_int_equal(status.st_mode & 07777, 0644);

	struct call *back = path_call(world, METHOD_FILE_READ, path_in(world, "a/b/large"));
	assert_call(back);
	assert_true(back->eof);
	assert_int_equal(back->out.size, size);
	assert_memory_equal(back->out.data, data, size);
	assert_int_equal(end_int(back, TAG_SIZE), size);

	with_int(world, TAG_OFFSET, 1000000);
	with_int(world, TAG_LENGTH, 200000);
	back = path_call(world, METHOD_FILE_READ, path_in(world, "a/b/large"));
	assert_int_equal(back->out.size, 200000);
	assert_memory_equal(back->out.data, data + 1000000, 200000);
	with_int(world, TAG_OFFSET, (int64_t)size + 5);
	assert_int_equal(path_call(world, METHOD_FILE_READ, path_in(world, "a/b/large"))->out.size, 0);
	free(data);
}

static void bad_paths_are_refused(void **state)
{
	struct world *world = *state;

	assert_refused(path_call(world, METHOD_FILE_READ, "relative"), HUSK_INVALID, "not absolute");
	assert_int_equal(wire_put_bytes(&world->arguments, TAG_PATH, "/a\0b", 4), 0);
	assert_refused(call_run(world, METHOD_FILE_READ), HUSK_INVALID, "NUL");
	assert_refused(path_call(world, METHOD_FILE_READ, path_in(world, "none")), HUSK_NOT_FOUND, "none");
	assert_refused(path_call(world, METHOD_FILE_READ, world->directory), HUSK_INVALID, "directory");
	assert_refused(path_call(world, METHOD_FILE_REMOVE, "/"), HUSK_INVALID, "will not remove");
	assert_int_equal(mkfifo(path_in(world, "fifo"), 0644), 0);
	assert_refused(path_call(world, METHOD_FILE_READ, path_in(world, "fifo")), HUSK_INVALID, "regular");
	assert_refused(write_file(world, path_in(world, "fifo"), "x", 1), HUSK_INVALID, "regular");
	assert_refused(write_file(world, world->directory, "x", 1), HUSK_INVALID, "directory");

	const char *strange = path_in(world, "new\nline \xff\xfe");
	assert_call(write_file(world, strange, "strange", 7));
	assert_content(strange, "strange");
}

static size_t count_entries(const char *path)
{
	cleanup_dir DIR *directory = opendir(path);
	size_t count = 0;

	assert_non_null(directory);
	while (readdir(directory))
		count++;
	return count - 2;
}

static void unfinished_write_changes_nothing(void **state)
{
	struct world *world = *state;
	const char *path = path_in(world, "target");

	make_file(path, "before");
	with_string(world, TAG_PATH, path);
	struct call *call = call_open(world, METHOD_FILE_WRITE);
	call_write(world, call, "after", 5);
	call_cancel(world, call);
	assert_content(path, "before");
	assert_int_equal(count_entries(world->directory), 1);
}

static void write_keeps_what_it_replaces(void **state)
{
	struct world *world = *state;
	struct stat status;

	make_file(path_in(world, "real"), "old");
	assert_int_equal(chmod(path_in(world, "real"), 0750), 0);
	assert_int_equal(symlink("real", path_in(world, "link")), 0);
	assert_call(write_file(world, path_in(world, "link"), "new", 3));
	assert_content(path_in(world, "real"), "new");
	assert_int_equal(lstat(path_in(world, "link"), &status), 0);
	assert_true(S_ISLNK(status.st_mode));
	assert_int_equal(stat(path_in(world, "real"), &status), 0);
	assert_int_equal(status.st_mode & 07777, 0750);

	with_int(world, TAG_FLAGS, FILE_APPEND);
	assert_call(write_file(world, path_in(world, "real"), "+more", 5));
	assert_content(path_in(world, "real"), "new+more");
	with_int(world, TAG_MODE, 0600);
	assert_call(write_file(world, path_in(world, "real"), "", 0));
	assert_int_equal(stat(path_in(world, "real"), &status), 0);
	assert_int_equal(status.st_mode & 07777, 0600);
	assert_int_equal(status.st_size, 0);
}

/* One field of a plan after the other, each with its NUL. */
static void make_plan(struct world *world, const char *const *fields, size_t count)
{
	FILE *file = fopen(path_in(world, "stage/plan"), "w");

	assert_non_null(file);
	for (size_t i = 0; i < count; i++)
		assert_int_equal(fwrite(fields[i], strlen(fields[i]) + 1, 1, file), 1);
	assert_int_equal(fclose(file), 0);
}

static void replaces_all_or_nothing(void **state)
{
	struct world *world = *state;
	cleanup_free char *a = strdup(path_in(world, "a")), *b = strdup(path_in(world, "b"));
	cleanup_free char *link = strdup(path_in(world, "l")), *deep = strdup(path_in(world, "new/dir/f"));
	cleanup_free char *below = strdup(path_in(world, "a/below"));
	struct stat status;
	char target[16] = "";

	assert_int_equal(mkdir(path_in(world, "stage"), 0700), 0);
	make_file(a, "old");
	make_file(b, "b");
	make_file(path_in(world, "stage/0"), "new");
	make_file(path_in(world, "stage/1"), "deep");
	/* The last step cannot be done: its parent is a file. */
	make_plan(world, (const char *const[]){ "P", a, "0", "R", b, "", "L", link, "/nowhere", "P", below, "1" }, 12);
	assert_refused(path_call(world, METHOD_REPLACE, path_in(world, "stage")), HUSK_INVALID, "below");
	assert_content(a, "old");
	assert_content(b, "b");
	assert_int_equal(lstat(link, &status), -1);

	make_plan(
		world,
		(const char *const[]){ "P", a, "0", "R", b, "", "L", link, "/nowhere", "P", deep, "1", "M", a, "751" },
		15);
	assert_call(path_call(world, METHOD_REPLACE, path_in(world, "stage")));
	assert_content(a, "new");
	assert_content(deep, "deep");
	assert_int_equal(lstat(b, &status), -1);
	assert_int_equal(readlink(link, target, sizeof(target) - 1), 8);
	assert_int_equal(stat(a, &status), 0);
	assert_int_equal(status.st_mode & 07777, 0751);

	make_plan(world, (const char *const[]){ "X", a, "0" }, 3);
	assert_refused(path_call(world, METHOD_REPLACE, path_in(world, "stage")), HUSK_INVALID, "malformed");
	make_plan(world, (const char *const[]){ "P", "relative", "0" }, 3);
	assert_refused(path_call(world, METHOD_REPLACE, path_in(world, "stage")), HUSK_INVALID, "malformed");
}

static void small_methods(void **state)
{
	struct world *world = *state;
	struct stat status;

	with_int(world, TAG_MODE, 0711);
	assert_call(path_call(world, METHOD_FILE_MKDIR, path_in(world, "x/y/z")));
	assert_int_equal(stat(path_in(world, "x/y/z"), &status), 0);
	assert_int_equal(status.st_mode & 07777, 0711);
	assert_call(path_call(world, METHOD_FILE_MKDIR, path_in(world, "x/y/z")));
	make_file(path_in(world, "x/file"), "f");
	assert_refused(path_call(world, METHOD_FILE_MKDIR, path_in(world, "x/file")), HUSK_CONFLICT, "x/file");

	with_string(world, TAG_TARGET, path_in(world, "x/moved"));
	assert_call(path_call(world, METHOD_FILE_MOVE, path_in(world, "x/file")));
	assert_content(path_in(world, "x/moved"), "f");
	with_int(world, TAG_MODE, 04711);
	assert_call(path_call(world, METHOD_FILE_CHMOD, path_in(world, "x/moved")));
	assert_int_equal(stat(path_in(world, "x/moved"), &status), 0);
	assert_int_equal(status.st_mode & 07777, 04711);
	with_int(world, TAG_MODE, 070000);
	assert_refused(path_call(world, METHOD_FILE_CHMOD, path_in(world, "x/moved")), HUSK_INVALID, "octal");

	assert_call(path_call(world, METHOD_FILE_REMOVE, path_in(world, "x/moved")));
	make_file(path_in(world, "x/y/deep"), "d");
	assert_call(path_call(world, METHOD_FILE_REMOVE, path_in(world, "x")));
	assert_int_equal(count_entries(world->directory), 0);
	assert_refused(path_call(world, METHOD_FILE_REMOVE, path_in(world, "x")), HUSK_NOT_FOUND, "x");
}

static void stat_and_list(void **state)
{
	struct world *world = *state;

	assert_int_equal(dir_make(path_in(world, "d/sub"), 0755, NULL), 0);
	make_file(path_in(world, "d/b"), "12345");
	make_file(path_in(world, "d/sub/inner"), "");
	assert_int_equal(symlink("b", path_in(world, "d/a")), 0);

	struct call *call = path_call(world, METHOD_FILE_STAT, path_in(world, "d/a"));
	assert_int_equal(end_int(call, TAG_FILE_TYPE), ENTRY_SYMLINK);
	with_int(world, TAG_FLAGS, FILE_FOLLOW);
	call = path_call(world, METHOD_FILE_STAT, path_in(world, "d/a"));
	assert_int_equal(end_int(call, TAG_FILE_TYPE), ENTRY_FILE);
	assert_int_equal(end_int(call, TAG_SIZE), 5);
	assert_int_equal(end_int(call, TAG_UID), geteuid());

	call = path_call(world, METHOD_FILE_LIST, path_in(world, "d"));
	assert_call(call);
	assert_int_equal(call->message_count, 3);
	assert_string_equal(message_string(call, 0, TAG_PATH), path_in(world, "d/a"));
	assert_string_equal(message_string(call, 0, TAG_TARGET), "b");
	assert_int_equal(message_int(call, 1, TAG_SIZE), 5);
	assert_int_equal(message_int(call, 2, TAG_FILE_TYPE), ENTRY_DIRECTORY);
	with_int(world, TAG_DEPTH, 5);
	call = path_call(world, METHOD_FILE_LIST, path_in(world, "d"));
	assert_int_equal(call->message_count, 4);
	assert_string_equal(message_string(call, 3, TAG_PATH), path_in(world, "d/sub/inner"));
	assert_refused(path_call(world, METHOD_FILE_LIST, path_in(world, "d/b")), HUSK_INVALID, "d/b");
}

/* ---- tar ---- */

static struct call *unpack(struct world *world, const char *target, const char *data, size_t size)
{
	with_string(world, TAG_PATH, target);
	struct call *call = call_open(world, METHOD_TAR_WRITE);
	call_write(world, call, data, size);
	call_end_input(world, call);
	call_wait(world, call);
	return call;
}

static void run_line(const struct world *world, const char *line)
{
	cleanup_free char *whole = str_format("cd '%s' && %s", world->directory, line);
	const char *argv[] = { "sh", "-c", whole, NULL };
	struct husk_error err;

	if (command_run(&(struct command){ COMMAND_INIT, .argv = argv, .timeout_ms = 60000 }, &err) < 0)
		fail_msg("%s: %s", line, err.message);
}

static void tar_round_trip(void **state)
{
	struct world *world = *state;

	run_line(world,
		 "mkdir -p tree/empty tree/deep && head -c 1500000 /dev/urandom > tree/big && chmod 640 tree/big "
		 "&& ln -s big tree/link && ln -s ../empty tree/deep/up && ln tree/big tree/deep/hard && "
		 "touch -d @1000000000 tree/deep/old && mkfifo tree/pipe && "
		 "n=$(printf '%0120d' 7) && mkdir tree/$n && echo long > tree/$n/$n && ln -s $n/$n tree/longlink");
	struct call *packed = path_call(world, METHOD_TAR_READ, path_in(world, "tree"));
	assert_call(packed);
	assert_true(packed->eof);
	struct call *unpacked = unpack(world, path_in(world, "copy/here"), packed->out.data, packed->out.size);
	assert_call(unpacked);
	assert_int_equal(end_int(unpacked, TAG_COUNT), 12);
	run_line(world,
		 "rm tree/pipe && test -p copy/here/tree/pipe && rm copy/here/tree/pipe && diff -r tree copy/here/tree "
		 "&& test $(stat -c %Y copy/here/tree/deep/old) = 1000000000 && "
		 "test $(stat -c %a copy/here/tree/big) = 640 && test copy/here/tree/big -ef copy/here/tree/deep/hard "
		 "&& "
		 "test $(readlink copy/here/tree/deep/up) = ../empty");

	/* Ours is read by the tar of this machine, and its formats by ours. */
	assert_int_equal(file_write_atomic(path_in(world, "ours.tar"), packed->out.data, packed->out.size, 0644, NULL),
			 0);
	run_line(world,
		 "mkdir by-tar && tar -C by-tar -xf ours.tar && rm by-tar/tree/pipe && diff -r tree by-tar/tree");
	for (size_t i = 0; i < 3; i++) {
		static const char *const formats[] = { "ustar", "pax", "gnu" };
		cleanup_free char *line = str_format("tar --format=%s %s -cf theirs.tar tree && rm -rf out", formats[i],
						     i == 0 ? "--exclude='*000*' --exclude=longlink" : "");
		cleanup_free char *data = NULL;
		size_t size;
		run_line(world, line);
		data = file_read(path_in(world, "theirs.tar"), 64 << 20, &size, NULL);
		assert_non_null(data);
		assert_call(unpack(world, path_in(world, "out"), data, size));
		run_line(world, i == 0 ? "cmp tree/big out/tree/big" : "diff -r tree out/tree");
	}
}

/* A tar made by python, which makes any; `entries` is a list of calls of add(name, type, link, content). */
static struct call *unpack_made(struct world *world, const char *entries)
{
	static const char maker[] = "import tarfile, io\n"
				    "t = tarfile.open('made.tar', 'w', format=tarfile.PAX_FORMAT)\n"
				    "def add(name, type=tarfile.REGTYPE, link='', content=b'evil'):\n"
				    "    i = tarfile.TarInfo(name); i.type = type; i.linkname = link\n"
				    "    i.size = len(content) if type == tarfile.REGTYPE else 0\n"
				    "    t.addfile(i, io.BytesIO(content))\n"
				    "SYM, LNK, CHR, BLK, DIR = b'2', b'1', b'3', b'4', b'5'\n";
	cleanup_free char *script = str_format("%s%s\nt.close()\n", maker, entries);
	cleanup_free char *data = NULL;
	size_t size;

	make_file(path_in(world, "make.py"), script);
	run_line(world, "rm -rf in && mkdir in && python3 make.py");
	data = file_read(path_in(world, "made.tar"), 1 << 20, &size, NULL);
	assert_non_null(data);
	return unpack(world, path_in(world, "in"), data, size);
}

static void hostile_tars_are_refused(void **state)
{
	static const struct {
		const char *entries, *words;
	} cases[] = {
		{ "add('/tmp/husk-evil')", "'/tmp/husk-evil' is absolute" },
		{ "add('../evil')", "'../evil' holds '..'" },
		{ "add('a/../../evil')", "holds '..'" },
		{ "add('evil', CHR)", "'evil': it is a device" },
		{ "add('evil', BLK)", "it is a device" },
		{ "add('evil', SYM, '/etc/passwd')", "links to '/etc/passwd', outside" },
		{ "add('evil', SYM, '..')", "outside" },
		{ "add('d/evil', SYM, '../../x')", "outside" },
		{ "add('evil', SYM, 'd/../..')", "outside" },
		{ "add('evil', LNK, '/etc/passwd')", "absolute" },
		{ "add('evil', LNK, '../outside')", "holds '..'" },
		{ "add('evil', LNK, 'missing/file')", "no file in" },
		{ "add('d', SYM, '.')\nadd('d/evil')", "not a directory" },
	};
	struct world *world = *state;

	make_file(path_in(world, "outside"), "untouched");
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct call *call = unpack_made(world, cases[i].entries);
		assert_refused(call, HUSK_INVALID, cases[i].words);
		run_line(world, "test -z \"$(find in -name 'evil*')\" && test ! -e evil && test \"$(cat outside)\" = "
				"untouched");
	}
	/* What came before the refused entry is there. */
	assert_refused(unpack_made(world, "add('good')\nadd('../evil')"), HUSK_INVALID, "..");
	assert_content(path_in(world, "in/good"), "evil");
}

static void links_of_the_guest_are_not_followed(void **state)
{
	struct world *world = *state;

	run_line(world,
		 "mkdir -p in away && ln -s ../away in/d && echo safe > away/f && ln -s ../away/f in/f && "
		 "mkdir src && mkdir src/d && echo evil > src/d/x && echo evil > src/f && tar -C src -cf t.tar f");
	size_t size;
	cleanup_free char *file = file_read(path_in(world, "t.tar"), 1 << 20, &size, NULL);
	assert_call(unpack(world, path_in(world, "in"), file, size)); /* replaces the link, not what it points to */
	assert_content(path_in(world, "away/f"), "safe\n");
	assert_content(path_in(world, "in/f"), "evil\n");
	run_line(world, "tar -C src -cf t.tar d/x");
	cleanup_free char *below = file_read(path_in(world, "t.tar"), 1 << 20, &size, NULL);
	assert_refused(unpack(world, path_in(world, "in"), below, size), HUSK_INVALID, "refused tar entry 'd/x'");
	run_line(world, "test ! -e away/x");
}

static void damaged_tars(void **state)
{
	static char noise[4096];
	struct world *world = *state;
	size_t size;

	memset(noise, 'x', sizeof(noise));
	assert_refused(unpack(world, path_in(world, "in"), noise, sizeof(noise)), HUSK_INVALID, "not a tar");
	run_line(world, "head -c 100000 /dev/zero > f && tar -cf t.tar f");
	cleanup_free char *data = file_read(path_in(world, "t.tar"), 1 << 20, &size, NULL);
	assert_refused(unpack(world, path_in(world, "in"), data, 50000), HUSK_INVALID, "in the middle");
	run_line(world, "test ! -e in/f"); /* half a file is not left */
	assert_call(unpack(world, path_in(world, "in"), "", 0));
	assert_refused(path_call(world, METHOD_TAR_READ, path_in(world, "none")), HUSK_NOT_FOUND, "none");
}

/* ---- watch ---- */

static bool was_told(const struct call *call, enum wire_event event, const char *path)
{
	for (size_t i = 1; i < call->message_count; i++)
		if (message_int(call, i, TAG_EVENT) == event && str_equal(message_string(call, i, TAG_PATH), path))
			return true;
	return false;
}

static void expect_event(struct world *world, struct call *call, enum wire_event event, const char *name)
{
	const char *path = path_in(world, name);

	while (!was_told(call, event, path))
		if (!world_take(world, 5000))
			fail_msg("no event %d of %s", event, path);
}

static void watch_recursive(void **state)
{
	struct world *world = *state;

	run_line(world, "mkdir -p w/one/two");
	with_int(world, TAG_FLAGS, WATCH_RECURSIVE);
	with_string(world, TAG_PATH, path_in(world, "w"));
	struct call *call = call_open(world, METHOD_WATCH);
	call_wait_message(world, call, 1);
	assert_int_equal(call->messages[0].fields.size, 0);

	run_line(world, "echo x > w/one/two/file");
	expect_event(world, call, EVENT_CREATE, "w/one/two/file");
	expect_event(world, call, EVENT_WRITE, "w/one/two/file");
	run_line(world, "chmod 600 w/one/two/file && mv w/one/two/file w/renamed && rm w/renamed");
	expect_event(world, call, EVENT_CHMOD, "w/one/two/file");
	expect_event(world, call, EVENT_RENAME, "w/one/two/file");
	expect_event(world, call, EVENT_CREATE, "w/renamed");
	expect_event(world, call, EVENT_REMOVE, "w/renamed");
	/* New directories are watched too, also what was in them before we could look. */
	run_line(world, "mkdir -p w/new/inner && echo x > w/new/inner/at-once");
	expect_event(world, call, EVENT_CREATE, "w/new/inner/at-once");
	run_line(world, "echo x > w/new/inner/later");
	expect_event(world, call, EVENT_CREATE, "w/new/inner/later");
	call_cancel(world, call);
	assert_call(call);
}

static void watch_of_one_directory(void **state)
{
	struct world *world = *state;

	run_line(world, "mkdir -p w/sub");
	with_string(world, TAG_PATH, path_in(world, "w"));
	struct call *call = call_open(world, METHOD_WATCH);
	call_wait_message(world, call, 1);
	run_line(world, "echo x > w/sub/unseen && echo x > w/seen");
	expect_event(world, call, EVENT_CREATE, "w/seen");
	assert_false(was_told(call, EVENT_CREATE, path_in(world, "w/sub/unseen")));
	assert_refused(path_call(world, METHOD_WATCH, path_in(world, "none")), HUSK_NOT_FOUND, "none");
}

static void write_in_place(void **state)
{
	struct world *world = *state;
	struct stat status;
	const char *path = path_in(world, "real");

	make_file(path, "a long old content");
	run_line(world,
		 "chmod 4751 real && chown 12:34 real && ln real other && ln -s real link && ln -s new dangling");
	with_int(world, TAG_FLAGS, FILE_IN_PLACE);
	with_string(world, TAG_USER, "nobody");
	assert_call(write_file(world, path_in(world, "link"), "new", 3));
	assert_content(path_in(world, "other"), "new");
	assert_int_equal(stat(path, &status), 0);
	assert_int_equal(status.st_mode & 0777, 0751);
	assert_int_equal(status.st_uid, 12);
	assert_int_equal(status.st_gid, 34);
	assert_int_equal(status.st_nlink, 2);

	with_int(world, TAG_FLAGS, FILE_IN_PLACE);
	assert_call(write_file(world, path_in(world, "dangling"), "x", 1));
	assert_content(path_in(world, "new"), "x");
	assert_int_equal(stat(path_in(world, "new"), &status), 0);
	assert_int_equal(status.st_mode & 07777, 0644);
	assert_int_equal(mkfifo(path_in(world, "fifo"), 0644), 0);
	with_int(world, TAG_FLAGS, FILE_IN_PLACE);
	assert_refused(write_file(world, path_in(world, "fifo"), "x", 1), HUSK_INVALID, "regular");
	with_int(world, TAG_FLAGS, FILE_IN_PLACE);
	assert_refused(write_file(world, world->directory, "x", 1), HUSK_INVALID, "directory");
}

static size_t count_events(const struct call *call, enum wire_event event, const char *path)
{
	size_t count = 0;

	for (size_t i = 1; i < call->message_count; i++)
		count += (event == 0 || message_int(call, i, TAG_EVENT) == event) &&
			 str_equal(message_string(call, i, TAG_PATH), path);
	return count;
}

/* An upload in many pieces is one write, and a new file also gets its owner and mode once; a program's writes later are reported
 * as ever. */
static void watch_of_a_write_in_place(void **state)
{
	struct world *world = *state;
	size_t size = 3 << 20;
	cleanup_free char *data = calloc(1, size);

	assert_non_null(data);
	run_line(world, "mkdir w && echo old > w/old");
	with_int(world, TAG_FLAGS, FILE_IN_PLACE); /* before the watch: not its concern */
	assert_call(write_file(world, path_in(world, "w/old"), data, 3));
	with_string(world, TAG_PATH, path_in(world, "w"));
	struct call *watch = call_open(world, METHOD_WATCH);
	call_wait_message(world, watch, 1);
	static const char *const names[] = { "w/old", "w/new", "w/old" };
	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		with_int(world, TAG_FLAGS, FILE_IN_PLACE);
		with_string(world, TAG_USER, "nobody");
		assert_call(write_file(world, path_in(world, names[i]), data, i == 2 ? 3 : size));
	}
	run_line(world, "echo x > w/end");
	expect_event(world, watch, EVENT_WRITE, "w/end");
	assert_int_equal(count_events(watch, EVENT_WRITE, path_in(world, "w/old")), 2);
	assert_int_equal(count_events(watch, 0, path_in(world, "w/old")), 2);
	assert_int_equal(count_events(watch, EVENT_CREATE, path_in(world, "w/new")), 1);
	assert_int_equal(count_events(watch, EVENT_WRITE, path_in(world, "w/new")), 1);
	assert_int_equal(count_events(watch, EVENT_CHMOD, path_in(world, "w/new")), 1);
	assert_int_equal(count_events(watch, 0, path_in(world, "w/new")), 3);

	run_line(world, "echo more >> w/old && chmod 600 w/old");
	expect_event(world, watch, EVENT_CHMOD, "w/old");
	assert_int_equal(count_events(watch, EVENT_WRITE, path_in(world, "w/old")), 3);
	with_int(world, TAG_FLAGS, FILE_IN_PLACE);
	assert_call(write_file(world, path_in(world, "w/empty"), "", 0));
	expect_event(world, watch, EVENT_CREATE, "w/empty");
	call_cancel(world, watch);
}

static void watch_that_is_asked(void **state)
{
	struct world *world = *state;

	run_line(world, "mkdir w");
	with_int(world, TAG_FLAGS, WATCH_RECURSIVE);
	with_string(world, TAG_PATH, path_in(world, "w"));
	struct call *watch = call_open(world, METHOD_WATCH);
	call_wait_message(world, watch, 1);
	for (int i = 0; i < 3; i++) {
		size_t before = watch->message_count;
		run_line(world, "for i in $(seq 40); do echo x > w/$i; done; rm w/*");
		world_send(world, watch->number, WIRE_MSG, 0, NULL, 0);
		while (watch->message_count == before ||
		       message_int(watch, watch->message_count - 1, TAG_EVENT) != EVENT_SETTLED)
			if (!world_take(world, 5000))
				fail_msg("the watch did not answer");
		size_t removed = 0;
		for (size_t at = before; at < watch->message_count; at++)
			removed += message_int(watch, at, TAG_EVENT) == EVENT_REMOVE;
		assert_int_equal(removed, 40);
	}
	call_cancel(world, watch);
	assert_call(watch);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		agent_test(large_file_there_and_back),
		agent_test(bad_paths_are_refused),
		agent_test(unfinished_write_changes_nothing),
		agent_test(write_keeps_what_it_replaces),
		agent_test(write_in_place),
		agent_test(replaces_all_or_nothing),
		agent_test(small_methods),
		agent_test(stat_and_list),
		agent_test(tar_round_trip),
		agent_test(hostile_tars_are_refused),
		agent_test(links_of_the_guest_are_not_followed),
		agent_test(damaged_tars),
		agent_test(watch_recursive),
		agent_test(watch_of_one_directory),
		agent_test(watch_of_a_write_in_place),
		agent_test(watch_that_is_asked),
	};

	cmocka_set_message_output(CM_OUTPUT_TAP);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
