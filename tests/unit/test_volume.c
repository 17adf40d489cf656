/*
 * The server of FUSE requests as a guest's kernel, or an attacker in its place, would talk to it: what is asked for is done
 * beneath the volume's directory and nowhere else, what makes no sense is refused, the limit holds, and a server that
 * takes over knows what the one before it knew.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <sys/file.h>
#include <sys/resource.h>

#include "volume/fuse.h"
#include "volume/nodes.h"

#include "scratch.h"

#define LIMIT (1u << 20)

static char answer[SERVE_ANSWER_MAX] __attribute__((aligned(8)));

static struct volume_server *open_small(bool read_only, size_t nodes)
{
	struct volume_server *server = NULL;
	struct volume volume;

	assert_int_equal(volume_make(at("volume"), NULL), 0);
	assert_int_equal(volume_open(at("volume"), LIMIT, &volume, NULL), 0);
	assert_int_equal(volume_server_open(&volume, read_only, nodes, &server, NULL), 0);
	return server;
}

static struct volume_server *open_server(bool read_only)
{
	return open_small(read_only, SERVE_NODES_MAX);
}

static int start(void **state)
{
	dir_remove(at("volume"), NULL);
	*state = open_server(false);
	return 0;
}

static int stop(void **state)
{
	volume_server_free(*state);
	return 0;
}

/* A request of a header, a structure and more bytes behind it; the error of the answer, 0 or below. */
static int ask(struct volume_server *server, uint32_t opcode, uint64_t node, const void *in, size_t in_size,
	       const void *more, size_t more_size)
{
	static char request[SERVE_REQUEST_MAX + 64];
	struct fuse_in_header head = {
		.len = (uint32_t)(sizeof(head) + in_size + more_size), .opcode = opcode, .unique = 7, .nodeid = node
	};
	struct fuse_out_header out;

	memcpy(request, &head, sizeof(head));
	if (in_size)
		memcpy(request + sizeof(head), in, in_size);
	if (more_size)
		memcpy(request + sizeof(head) + in_size, more, more_size);
	ssize_t size = volume_serve(server, request, head.len, answer);
	assert_true(size >= (ssize_t)sizeof(out));
	memcpy(&out, answer, sizeof(out));
	assert_int_equal(out.len, size);
	assert_int_equal(out.unique, 7);
	return out.error;
}

static const void *result(void)
{
	return answer + sizeof(struct fuse_out_header);
}

static int ask_name(struct volume_server *server, uint32_t opcode, uint64_t node, const char *name)
{
	return ask(server, opcode, node, NULL, 0, name, strlen(name) + 1);
}

/* A new file with this content: its node; *handle stays open. */
static uint64_t make_file(struct volume_server *server, uint64_t parent, const char *name, const char *text,
			  uint64_t *handle)
{
	const struct fuse_create_in in = { .flags = O_RDWR, .mode = S_IFREG | 06644 };
	struct fuse_entry_out entry;
	struct fuse_open_out opened;

	assert_int_equal(ask(server, FUSE_CREATE, parent, &in, sizeof(in), name, strlen(name) + 1), 0);
	memcpy(&entry, result(), sizeof(entry));
	memcpy(&opened, (const char *)result() + sizeof(entry), sizeof(opened));
	const struct fuse_write_in write = { .fh = opened.fh, .size = (uint32_t)strlen(text) };
	assert_int_equal(ask(server, FUSE_WRITE, entry.nodeid, &write, sizeof(write), text, strlen(text)), 0);
	*handle = opened.fh;
	return entry.nodeid;
}

static int read_back(struct volume_server *server, uint64_t node, uint64_t handle, const char *text)
{
	const struct fuse_read_in in = { .fh = handle, .size = 4096 };
	int error = ask(server, FUSE_READ, node, &in, sizeof(in), NULL, 0);

	if (error == 0)
		assert_memory_equal(result(), text, strlen(text));
	return error;
}

static uint64_t look_up(struct volume_server *server, uint64_t parent, const char *name)
{
	return ask_name(server, FUSE_LOOKUP, parent, name) == 0 ? ((const struct fuse_entry_out *)result())->nodeid : 0;
}

static void files_come_to_lie_beneath_the_directory(void **state)
{
	struct volume_server *server = *state;
	const struct fuse_mkdir_in mode = { .mode = 0750 };
	struct stat status;
	uint64_t handle;

	assert_int_equal(ask(server, FUSE_MKDIR, NODE_ROOT, &mode, sizeof(mode), "d", 2), 0);
	uint64_t directory = ((const struct fuse_entry_out *)result())->nodeid;
	uint64_t file = make_file(server, directory, "f", "hello", &handle);
	cleanup_free char *text = file_read(at("volume/data/d/f"), 100, NULL, NULL);
	assert_string_equal(text, "hello");
	assert_int_equal(read_back(server, file, handle, "hello"), 0);
	/* Set-uid and set-gid bits went nowhere. */
	assert_int_equal(stat(at("volume/data/d/f"), &status), 0);
	assert_int_equal(status.st_mode & 07777, 0644);
	assert_int_equal(ask_name(server, FUSE_RMDIR, NODE_ROOT, "d"), -ENOTEMPTY);
	assert_int_equal(ask_name(server, FUSE_UNLINK, directory, "f"), 0);
	assert_int_equal(ask_name(server, FUSE_RMDIR, NODE_ROOT, "d"), 0);
	assert_int_equal(look_up(server, NODE_ROOT, "d"), 0);
	/* Without a name, and still open. */
	assert_int_equal(read_back(server, file, handle, "hello"), 0);
}

static void no_name_leads_out(void **state)
{
	static const char *const names[] = { "..", ".", "/etc", "a/b", "../x", "/" };
	const struct fuse_mkdir_in mode = { .mode = 0755 };
	const struct fuse_mknod_in device = { .mode = S_IFCHR | 0666, .rdev = 0x103 },
				   pipe = { .mode = S_IFIFO | 0666 };
	struct volume_server *server = *state;

	put(at("secret"), "not yours");
	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		assert_int_equal(ask_name(server, FUSE_LOOKUP, NODE_ROOT, names[i]), -EINVAL);
		assert_int_equal(ask_name(server, FUSE_UNLINK, NODE_ROOT, names[i]), -EINVAL);
		assert_int_equal(
			ask(server, FUSE_MKDIR, NODE_ROOT, &mode, sizeof(mode), names[i], strlen(names[i]) + 1),
			-EINVAL);
	}
	/* A link is text: neither it nor a path through it is followed. */
	assert_int_equal(symlink("../../..", at("volume/data/up")), 0);
	assert_int_equal(symlink(at("secret"), at("volume/data/out")), 0);
	uint64_t up = look_up(server, NODE_ROOT, "up"), out = look_up(server, NODE_ROOT, "out");
	assert_true(up && out);
	const struct fuse_open_in open = { .flags = O_RDWR };
	const struct fuse_setattr_in change = { .valid = FATTR_SIZE | FATTR_MODE, .mode = 0777 };
	assert_true(ask(server, FUSE_OPEN, out, &open, sizeof(open), NULL, 0) < 0);
	assert_true(ask(server, FUSE_SETATTR, out, &change, sizeof(change), NULL, 0) < 0);
	assert_true(ask_name(server, FUSE_LOOKUP, up, "etc") < 0);
	assert_true(ask(server, FUSE_MKDIR, up, &mode, sizeof(mode), "made", 5) < 0);
	/* Replaced by a link since it was looked up. */
	uint64_t handle, file = make_file(server, NODE_ROOT, "f", "x", &handle);
	assert_int_equal(unlink(at("volume/data/f")), 0);
	assert_int_equal(symlink(at("secret"), at("volume/data/f")), 0);
	assert_true(ask(server, FUSE_OPEN, file, &open, sizeof(open), NULL, 0) < 0);
	cleanup_free char *text = file_read(at("secret"), 100, NULL, NULL);
	assert_string_equal(text, "not yours");
	assert_int_equal(ask(server, FUSE_MKNOD, NODE_ROOT, &device, sizeof(device), "n", 2), -EPERM);
	assert_int_equal(ask(server, FUSE_MKNOD, NODE_ROOT, &pipe, sizeof(pipe), "p", 2), -EPERM);
}

static void directories_do_not_move_into_themselves(void **state)
{
	const struct fuse_mkdir_in mode = { .mode = 0755 };
	struct volume_server *server = *state;

	assert_int_equal(ask(server, FUSE_MKDIR, NODE_ROOT, &mode, sizeof(mode), "a", 2), 0);
	uint64_t a = ((const struct fuse_entry_out *)result())->nodeid;
	assert_int_equal(ask(server, FUSE_MKDIR, a, &mode, sizeof(mode), "b", 2), 0);
	uint64_t b = ((const struct fuse_entry_out *)result())->nodeid;
	const struct fuse_rename_in into = { .newdir = b };
	assert_int_equal(ask(server, FUSE_RENAME, NODE_ROOT, &into, sizeof(into), "a\0x", 4), -EINVAL);
	/* A child goes along with its directory. */
	const struct fuse_rename_in here = { .newdir = NODE_ROOT };
	assert_int_equal(ask(server, FUSE_RENAME, NODE_ROOT, &here, sizeof(here), "a\0z", 4), 0);
	assert_true(exists(at("volume/data/z/b")));
	assert_int_equal(ask(server, FUSE_MKDIR, b, &mode, sizeof(mode), "c", 2), 0);
	assert_true(exists(at("volume/data/z/b/c")));
}

static void the_limit_holds_and_what_is_removed_comes_back(void **state)
{
	static char block[65536];
	struct volume_server *server = *state;
	struct fuse_write_in in = { .size = sizeof(block) };
	uint64_t node = make_file(server, NODE_ROOT, "big", "x", &in.fh);
	int error = 0, written = 0;

	for (; (error = ask(server, FUSE_WRITE, node, &in, sizeof(in), block, sizeof(block))) == 0; written++)
		in.offset += sizeof(block);
	assert_int_equal(error, -ENOSPC);
	assert_true(written > 10 && written < 16);
	/* A hole counts as if it were full. */
	const struct fuse_setattr_in grow = { .valid = FATTR_SIZE, .size = LIMIT };
	assert_int_equal(ask(server, FUSE_SETATTR, node, &grow, sizeof(grow), NULL, 0), -ENOSPC);
	/* Its bytes are in use until it is closed, name or not. */
	assert_int_equal(ask_name(server, FUSE_UNLINK, NODE_ROOT, "big"), 0);
	assert_int_equal(ask(server, FUSE_WRITE, node, &in, sizeof(in), block, sizeof(block)), -ENOSPC);
	const struct fuse_release_in release = { .fh = in.fh };
	assert_int_equal(ask(server, FUSE_FLUSH, node, &(struct fuse_flush_in){ .fh = release.fh },
			     sizeof(struct fuse_flush_in), NULL, 0),
			 0);
	assert_int_equal(ask(server, FUSE_RELEASE, node, &release, sizeof(release), NULL, 0), 0);
	assert_int_equal(ask(server, FUSE_STATFS, NODE_ROOT, NULL, 0, NULL, 0), 0);
	const struct fuse_statfs_out *left = result();
	assert_int_equal(left->st.bfree, LIMIT / 4096);
}

static void a_killed_one_is_counted_again(void **state)
{
	struct volume_server *server = *state;
	struct volume volume;
	uint64_t handle;

	const struct fuse_mkdir_in mode = { .mode = 0755 };
	assert_int_equal(ask(server, FUSE_MKDIR, NODE_ROOT, &mode, sizeof(mode), "d", 2), 0);
	uint64_t directory = ((const struct fuse_entry_out *)result())->nodeid;
	make_file(server, directory, "f", "hello", &handle);
	uint64_t one = 0x7fffffffffffffff; /* what a process that was killed may have left */
	cleanup_close int usage = open(at("volume/usage"), O_RDWR | O_CLOEXEC);
	volume_server_free(server);
	*state = NULL;
	assert_int_equal(pwrite(usage, (char[12]){ 0 }, 4, 8), 4);
	assert_int_equal(pwrite(usage, &one, 8, 0), 8);
	assert_int_equal(volume_open(at("volume"), LIMIT, &volume, NULL), 0);
	assert_int_equal(volume_used(&volume), 3 * 4096); /* the directory, the file, its bytes */
	volume_close(&volume);
	*state = open_server(false);
}

static void what_is_mounted_read_only_does_not_change(void **state)
{
	const struct fuse_mkdir_in mode = { .mode = 0755 };
	struct volume_server *server = *state;
	uint64_t handle;

	make_file(server, NODE_ROOT, "f", "hello", &handle);
	struct volume_server *reader = open_server(true);
	uint64_t file = look_up(reader, NODE_ROOT, "f");
	struct fuse_open_in open = { .flags = O_RDWR };
	assert_int_equal(ask(reader, FUSE_OPEN, file, &open, sizeof(open), NULL, 0), -EROFS);
	open.flags = O_RDONLY;
	assert_int_equal(ask(reader, FUSE_OPEN, file, &open, sizeof(open), NULL, 0), 0);
	uint64_t opened = ((const struct fuse_open_out *)result())->fh;
	assert_int_equal(read_back(reader, file, opened, "hello"), 0);
	const struct fuse_write_in write = { .fh = opened, .size = 1 };
	assert_int_equal(ask(reader, FUSE_WRITE, file, &write, sizeof(write), "x", 1), -EROFS);
	assert_int_equal(ask(reader, FUSE_MKDIR, NODE_ROOT, &mode, sizeof(mode), "d", 2), -EROFS);
	assert_int_equal(ask_name(reader, FUSE_UNLINK, NODE_ROOT, "f"), -EROFS);
	volume_server_free(reader);
}

static void another_server_takes_over(void **state)
{
	const struct fuse_mkdir_in mode = { .mode = 0755 };
	struct volume_server *server = *state;
	cleanup_buf struct buf saved = { 0 };
	uint64_t handle, gone_handle;

	assert_int_equal(ask(server, FUSE_MKDIR, NODE_ROOT, &mode, sizeof(mode), "d", 2), 0);
	uint64_t directory = ((const struct fuse_entry_out *)result())->nodeid;
	uint64_t file = make_file(server, directory, "f", "hello", &handle);
	uint64_t gone = make_file(server, directory, "gone", "soon", &gone_handle);
	assert_int_equal(volume_server_save(server, &saved), 0);
	volume_server_free(server);
	*state = server = open_server(false);
	assert_int_equal(unlink(at("volume/data/d/gone")), 0);
	assert_int_equal(volume_server_load(server, saved.data, saved.size), 0);
	assert_int_equal(read_back(server, file, handle, "hello"), 0);
	assert_int_equal(read_back(server, gone, gone_handle, ""), -ESTALE);
	/* Numbers go on where they were, and a handle belongs to its file. */
	uint64_t other;
	assert_true(make_file(server, NODE_ROOT, "new", "x", &other) > gone);
	assert_int_equal(read_back(server, directory, handle, ""), -EBADF);
	/* Bytes that are no table. */
	for (size_t size = 0; size < saved.size; size++) {
		struct volume_server *third = open_server(false);
		volume_server_load(third, saved.data, size);
		volume_server_free(third);
	}
}

static void what_is_no_request_is_told(void **state)
{
	struct volume_server *server = *state;
	struct fuse_in_header head = { .len = sizeof(head), .opcode = FUSE_GETATTR, .nodeid = NODE_ROOT };

	assert_int_equal(volume_serve(server, (const char *)&head, sizeof(head) - 1, answer), -1);
	assert_int_equal(ask(server, FUSE_GETATTR, NODE_ROOT, NULL, 0, NULL, 0), -EINVAL);
	head.len = sizeof(head) + 1;
	assert_int_equal(volume_serve(server, (const char *)&head, sizeof(head), answer), -1);
	assert_int_equal(ask(server, 4242, NODE_ROOT, NULL, 0, NULL, 0), -ENOSYS);
	assert_int_equal(ask_name(server, FUSE_LOOKUP, 99, "x"), -ESTALE);
	assert_int_equal(ask(server, FUSE_LOOKUP, NODE_ROOT, NULL, 0, "no end", 6), -EINVAL);
	/* A write of more than it brings. */
	uint64_t handle, file = make_file(server, NODE_ROOT, "f", "x", &handle);
	const struct fuse_write_in write = { .fh = handle, .size = 4096 };
	assert_int_equal(ask(server, FUSE_WRITE, file, &write, sizeof(write), "x", 1), -EINVAL);
}

static void forget(struct volume_server *server, uint64_t node, uint64_t lookups)
{
	const struct fuse_forget_in in = { .nlookup = lookups };
	struct fuse_in_header head = { .opcode = FUSE_FORGET, .nodeid = node };
	char request[sizeof(head) + sizeof(in)];

	head.len = sizeof(request);
	memcpy(request, &head, sizeof(head));
	memcpy(request + sizeof(head), &in, sizeof(in));
	assert_int_equal(volume_serve(server, request, sizeof(request), answer), 0);
}

static uint64_t make_node(struct volume_server *server, uint64_t parent, const char *name, int *error)
{
	const struct fuse_mknod_in in = { .mode = S_IFREG | 0644 };

	*error = ask(server, FUSE_MKNOD, parent, &in, sizeof(in), name, strlen(name) + 1);
	return *error ? 0 : ((const struct fuse_entry_out *)result())->nodeid;
}

static uint64_t make_directory(struct volume_server *server, uint64_t parent, const char *name)
{
	const struct fuse_mkdir_in mode = { .mode = 0755 };

	assert_int_equal(ask(server, FUSE_MKDIR, parent, &mode, sizeof(mode), name, strlen(name) + 1), 0);
	return ((const struct fuse_entry_out *)result())->nodeid;
}

/* The request uses a directory that only its child still holds, and the child is what a full table gives up. */
static void a_full_table_keeps_what_a_request_uses(void **state)
{
	struct volume_server *server = *state;
	char name[16];
	int error;

	volume_server_free(server);
	*state = server = open_small(false, 8);
	uint64_t directory = make_directory(server, NODE_ROOT, "a");
	make_node(server, directory, "c", &error);
	for (int i = 0; i < 5; i++) {
		snprintf(name, sizeof(name), "n%d", i);
		make_directory(server, NODE_ROOT, name);
	}
	for (int i = 0; i < 40; i++) {
		forget(server, directory, UINT64_MAX);
		snprintf(name, sizeof(name), "d%d", i);
		make_node(server, directory, name, &error);
		if (error) /* it went, with its last child, before the request */
			assert_int_equal(error, -ESTALE);
		directory = look_up(server, NODE_ROOT, "a");
		assert_true(directory);
		make_node(server, directory, name, &error);
		assert_true(error == 0 || error == -EEXIST);
	}
	assert_true(exists(at("volume/data/a/d39")));
}

/* A chain that goes from its end up, and directories moved, replaced and removed in a table that is always full. */
static void a_full_table_survives_whatever_is_moved(void **state)
{
	struct volume_server *server = *state;
	uint64_t chain[6] = { NODE_ROOT };

	volume_server_free(server);
	*state = server = open_small(false, 4);
	for (int round = 0; round < 50; round++) {
		for (size_t i = 1; i < ARRAY_SIZE(chain); i++) {
			const struct fuse_mkdir_in mode = { .mode = 0755 };
			const struct fuse_rename_in into = { .newdir = chain[(size_t)round % i] };
			int error = ask(server, FUSE_MKDIR, chain[i - 1], &mode, sizeof(mode), "x", 2);

			chain[i] = error ? look_up(server, chain[i - 1], "x")
					 : ((const struct fuse_entry_out *)result())->nodeid;
			ask(server, FUSE_RENAME, chain[i - 1], &into, sizeof(into), "x\0y", 4);
			forget(server, chain[i - 1], UINT64_MAX);
			ask_name(server, FUSE_RMDIR, chain[(size_t)round % i], "y");
		}
	}
}

static void handles_and_nodes_have_an_end(void **state)
{
	const struct rlimit files = { .rlim_cur = 4096, .rlim_max = 4096 };

	struct volume_server *server = *state;
	const struct fuse_open_in in = { .flags = O_RDONLY };
	uint64_t handle, file = make_file(server, NODE_ROOT, "f", "x", &handle);
	int error, opened = 1;

	assert_int_equal(setrlimit(RLIMIT_NOFILE, &files), 0);
	while ((error = ask(server, FUSE_OPEN, file, &in, sizeof(in), NULL, 0)) == 0)
		assert_true(opened++ < 5000);
	assert_int_equal(error, -ENFILE);
	/* Forgetting what was never looked up, or more often than it was. */
	forget(server, file, UINT64_MAX);
	assert_int_equal(read_back(server, file, handle, "x"), 0);
}

/* A process of a volume that a guest has taken over may keep a lock: nobody else waits for ever. */
static void a_lock_that_stays_is_not_waited_for(void **state)
{
	uint64_t handle, file = make_file(*state, NODE_ROOT, "f", "x", &handle);
	cleanup_close int held = open(at("volume/data/f"), O_RDWR | O_CLOEXEC);
	struct volume volume;

	(void)file;
	volume_server_free(*state);
	*state = NULL;
	assert_int_equal(flock(held, LOCK_EX), 0);
	assert_int_equal(volume_open(at("volume"), LIMIT, &volume, NULL), 0);
	alarm(60);
	assert_int_equal(volume_file(&volume, "f", false, 0), -1);
	assert_int_equal(errno, EBUSY);
	alarm(0);
	volume_close(&volume);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(files_come_to_lie_beneath_the_directory, start, stop),
		cmocka_unit_test_setup_teardown(no_name_leads_out, start, stop),
		cmocka_unit_test_setup_teardown(directories_do_not_move_into_themselves, start, stop),
		cmocka_unit_test_setup_teardown(the_limit_holds_and_what_is_removed_comes_back, start, stop),
		cmocka_unit_test_setup_teardown(a_killed_one_is_counted_again, start, stop),
		cmocka_unit_test_setup_teardown(what_is_mounted_read_only_does_not_change, start, stop),
		cmocka_unit_test_setup_teardown(another_server_takes_over, start, stop),
		cmocka_unit_test_setup_teardown(a_full_table_keeps_what_a_request_uses, start, stop),
		cmocka_unit_test_setup_teardown(a_full_table_survives_whatever_is_moved, start, stop),
		cmocka_unit_test_setup_teardown(what_is_no_request_is_told, start, stop),
		cmocka_unit_test_setup_teardown(a_lock_that_stays_is_not_waited_for, start, stop),
		cmocka_unit_test_setup_teardown(handles_and_nodes_have_an_end, start, stop),
	};

	return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
