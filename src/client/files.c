/*
 * Files of a sandbox: streamed in and out, listed, moved, removed. Every function is one call to the agent. Paths belong to
 * the guest and are resolved there. The caller's arguments are checked first, so that a mistake is reported without a round
 * trip. Nothing here touches the host's filesystem.
 */
#include "client/files.h"
#include "client/call.h"
#include "instance/contact.h"

#define CHUNK (192u * 1024u)
/* A listing is held in memory as a whole, so a hostile guest must not make it endless. */
#define LIST_MAX 1000000u
#define LIST_BYTES_MAX (256u * 1024u * 1024u)
/* How long an abandoned call may clean up in the guest before the connection is closed. */
#define GIVE_UP_MS 5000

static int check_mode(uint32_t mode, struct husk_error *err)
{
	if (mode > 07777)
		return husk_fail_field(err, "mode", "mode 0%o is not one; the bits are 0 to 07777", mode);
	return 0;
}

/* ---- streams ---- */

/* Lets the agent undo its work, so that nothing half-made is left when the caller gets the error. */
static void give_up(struct call *call)
{
	if (call_cancel(call, NULL) == 0)
		call_finish(call, time_monotonic_ms() + GIVE_UP_MS, NULL, NULL);
}

/* Passes everything on STREAM_OUT to the sink, then reads END. */
static int drain(struct call *call, husk_sink sink, void *data, struct husk_error *err)
{
	struct call_event event;

	for (;;) {
		if (call_next(call, &event, err) < 0)
			return -1;
		if (event.type == WIRE_END)
			return wire_end_status(event.data, event.size, err);
		if (event.type != WIRE_DATA || event.stream != STREAM_OUT)
			continue;
		if (sink(data, event.data, event.size) != 0) {
			give_up(call);
			return husk_fail(err, HUSK_INTERNAL, "the receiver stopped the transfer");
		}
	}
}

/* Sends everything of the source to STREAM_IN, then reads END. The agent may end the call early (a full disk, a bad
 * tar, padding after the end of a tar). Then END counts, not the failed write. */
static int feed(struct call *call, husk_source source, void *data, struct husk_error *err)
{
	cleanup_free char *chunk = malloc(CHUNK);
	ssize_t n;

	if (!chunk)
		return husk_fail_memory(err);
	while ((n = source(data, chunk, CHUNK)) > 0) {
		if ((size_t)n > CHUNK)
			return husk_fail(err, HUSK_INVALID, "the source gave more bytes than it was asked for");
		if (call_write(call, chunk, (size_t)n, NULL) < 0)
			break;
	}
	if (n < 0) {
		give_up(call);
		return husk_fail(err, HUSK_INTERNAL, "the sender stopped the transfer");
	}
	if (n == 0)
		call_write_eof(call, NULL);
	return call_finish(call, -1, NULL, err);
}

static int begin_read(struct husk *husk, const char *sandbox, const char *path, uint64_t offset, uint64_t length,
		      int64_t flags, struct call **out, struct husk_error *err)
{
	cleanup_buf struct buf message = { 0 };
	int bad = 0;

	if (check_path("path", path, err) < 0)
		return -1;
	if (offset > INT64_MAX || length > INT64_MAX)
		return husk_fail(err, HUSK_INVALID, "offset or length is past the largest possible file");
	bad |= wire_put_string(&message, TAG_PATH, path);
	if (flags)
		bad |= wire_put_int(&message, TAG_FLAGS, flags);
	if (offset)
		bad |= wire_put_int(&message, TAG_OFFSET, (int64_t)offset);
	if (length)
		bad |= wire_put_int(&message, TAG_LENGTH, (int64_t)length);
	if (check_arguments(bad, err) < 0)
		return -1;
	return call_start(husk, sandbox, METHOD_FILE_READ, &message, out, err);
}

int file_read_begin(struct husk *husk, const char *sandbox, const char *path, struct call **out, struct husk_error *err)
{
	return begin_read(husk, sandbox, path, 0, 0, 0, out, err);
}

int file_read_end(struct call *call, husk_sink sink, void *data, struct husk_error *err)
{
	int result = drain(call, sink, data, err);

	call_free(call);
	return result;
}

int husk_file_read(struct husk *husk, const char *sandbox, const char *path, uint64_t offset, uint64_t length,
		   husk_sink sink, void *data, struct husk_error *err)
{
	struct call *call = NULL;

	return begin_read(husk, sandbox, path, offset, length, 0, &call, err) < 0
		       ? -1
		       : file_read_end(call, sink, data, err);
}

int husk_template_file_read(struct husk *husk, const char *sandbox, const char *path, husk_sink sink, void *data,
			    struct husk_error *err)
{
	struct call *call = NULL;

	return begin_read(husk, sandbox, path, 0, 0, FILE_OF_TEMPLATE, &call, err) < 0
		       ? -1
		       : file_read_end(call, sink, data, err);
}

int husk_file_write(struct husk *husk, const char *sandbox, const char *path, uint32_t mode, const char *user,
		    husk_source source, void *data, struct husk_error *err)
{
	struct husk_write_options options = { .mode = mode, .user = user };

	return husk_file_write_with(husk, sandbox, path, &options, source, data, err);
}

int husk_file_write_with(struct husk *husk, const char *sandbox, const char *path,
			 const struct husk_write_options *options, husk_source source, void *data,
			 struct husk_error *err)
{
	cleanup_buf struct buf message = { 0 };
	cleanup_call struct call *call = NULL;
	int bad = 0;

	if (check_path("path", path, err) < 0 || check_mode(options->mode, err) < 0)
		return -1;
	bad |= wire_put_string(&message, TAG_PATH, path);
	if (options->mode)
		bad |= wire_put_int(&message, TAG_MODE, options->mode);
	if (options->in_place)
		bad |= wire_put_int(&message, TAG_FLAGS, FILE_IN_PLACE);
	bad |= wire_put_string(&message, TAG_USER, options->user);
	for (char *const *each = options->attributes; each && *each; each++)
		bad |= wire_put_string(&message, TAG_ATTRIBUTE, *each);
	if (check_arguments(bad, err) < 0)
		return -1;
	if (call_start(husk, sandbox, METHOD_FILE_WRITE, &message, &call, err) < 0)
		return -1;
	return feed(call, source, data, err);
}

int husk_tar_read(struct husk *husk, const char *sandbox, const char *path, husk_sink sink, void *data,
		  struct husk_error *err)
{
	return tar_read_flags(husk, sandbox, path, 0, sink, data, err);
}

int tar_read_flags(struct husk *husk, const char *sandbox, const char *path, int64_t flags, husk_sink sink, void *data,
		   struct husk_error *err)
{
	cleanup_buf struct buf message = { 0 };
	cleanup_call struct call *call = NULL;
	int bad = 0;

	if (check_path("path", path, err) < 0)
		return -1;
	bad |= wire_put_string(&message, TAG_PATH, path);
	if (flags)
		bad |= wire_put_int(&message, TAG_FLAGS, flags);
	if (check_arguments(bad, err) < 0)
		return -1;
	if (call_start(husk, sandbox, METHOD_TAR_READ, &message, &call, err) < 0)
		return -1;
	return drain(call, sink, data, err);
}

int husk_tar_write(struct husk *husk, const char *sandbox, const char *path, const char *user, husk_source source,
		   void *data, struct husk_error *err)
{
	return tar_write_flags(husk, sandbox, path, user, 0, source, data, err);
}

int tar_write_flags(struct husk *husk, const char *sandbox, const char *path, const char *user, int64_t flags,
		    husk_source source, void *data, struct husk_error *err)
{
	cleanup_buf struct buf message = { 0 };
	cleanup_call struct call *call = NULL;
	int bad = 0;

	if (check_path("path", path, err) < 0)
		return -1;
	bad |= wire_put_string(&message, TAG_PATH, path);
	bad |= wire_put_string(&message, TAG_USER, user);
	if (flags)
		bad |= wire_put_int(&message, TAG_FLAGS, flags);
	if (check_arguments(bad, err) < 0)
		return -1;
	if (call_start(husk, sandbox, METHOD_TAR_WRITE, &message, &call, err) < 0)
		return -1;
	return feed(call, source, data, err);
}

/* ---- entries ---- */

void husk_file_free(struct husk_file *file)
{
	free(file->path);
	free(file->user);
	free(file->group);
	free(file->target);
	strv_free(file->attributes);
	*file = (struct husk_file){ 0 };
}

void husk_file_list_free(struct husk_file *list, size_t count)
{
	for (size_t i = 0; list && i < count; i++)
		husk_file_free(&list[i]);
	free(list);
}

enum husk_file_type file_type_of(int64_t type)
{
	switch (type) {
	case ENTRY_FILE:
		return HUSK_FILE;
	case ENTRY_DIRECTORY:
		return HUSK_DIRECTORY;
	case ENTRY_SYMLINK:
		return HUSK_SYMLINK;
	default:
		return HUSK_OTHER;
	}
}

static int read_attributes(const char *fields, size_t size, struct husk_file *file, struct husk_error *err)
{
	struct wire_field field;
	size_t cursor = 0;

	while (wire_next(fields, size, &cursor, &field) > 0) {
		cleanup_free char *pair = field.tag == TAG_ATTRIBUTE ? strndup(field.data, field.size) : NULL;
		if (field.tag != TAG_ATTRIBUTE)
			continue;
		if (!pair || strv_add(&file->attributes, pair) < 0)
			return husk_fail_memory(err);
	}
	return 0;
}

int file_from_fields(const char *fields, size_t size, struct husk_file *file, struct husk_error *err)
{
	*file = (struct husk_file){
		.path = wire_get_string(fields, size, TAG_PATH),
		.type = file_type_of(wire_get_int(fields, size, TAG_FILE_TYPE, 0)),
		.size = (uint64_t)MAX(0, wire_get_int(fields, size, TAG_SIZE, 0)),
		.mode = (uint32_t)wire_get_int(fields, size, TAG_MODE, 0) & 07777,
		.uid = (uint32_t)wire_get_int(fields, size, TAG_UID, 0),
		.gid = (uint32_t)wire_get_int(fields, size, TAG_GID, 0),
		.user = wire_get_string(fields, size, TAG_USER),
		.group = wire_get_string(fields, size, TAG_GROUP),
		.target = wire_get_string(fields, size, TAG_TARGET),
		.mtime_ms = wire_get_int(fields, size, TAG_MTIME_MS, 0),
	};
	if (file->path && read_attributes(fields, size, file, err) == 0)
		return 0;
	bool named = file->path;
	husk_file_free(file);
	if (named)
		return -1;
	return husk_fail(err, HUSK_PROTOCOL, "the agent described a file without its path");
}

int husk_file_stat(struct husk *husk, const char *sandbox, const char *path, bool follow, struct husk_file *out,
		   struct husk_error *err)
{
	cleanup_buf struct buf message = { 0 }, results = { 0 };
	int bad = 0;

	if (check_path("path", path, err) < 0)
		return -1;
	bad |= wire_put_string(&message, TAG_PATH, path);
	bad |= wire_put_int(&message, TAG_FLAGS, follow ? FILE_FOLLOW : 0);
	if (check_arguments(bad, err) < 0)
		return -1;
	if (husk_call(husk, sandbox, METHOD_FILE_STAT, &message, &results, err) < 0)
		return -1;
	return file_from_fields(results.data, results.size, out, err);
}

struct listing {
	struct husk_file *files;
	size_t count, room, bytes;
};

static int listing_add(struct listing *listing, const struct call_event *event, struct husk_error *err)
{
	listing->bytes += event->size;
	if (listing->count == LIST_MAX || listing->bytes > LIST_BYTES_MAX)
		return husk_fail(err, HUSK_LIMIT, "the listing has more than %u entries or %u MiB; list less at a time",
				 LIST_MAX, LIST_BYTES_MAX >> 20);
	if (listing->count == listing->room) {
		size_t room = listing->room ? listing->room * 2 : 64;
		struct husk_file *grown = reallocarray(listing->files, room, sizeof(*grown));
		if (!grown)
			return husk_fail_memory(err);
		listing->files = grown;
		listing->room = room;
	}
	if (file_from_fields(event->data, event->size, &listing->files[listing->count], err) < 0)
		return -1;
	listing->count++;
	return 0;
}

int husk_file_list(struct husk *husk, const char *sandbox, const char *path, uint32_t depth, struct husk_file **out,
		   size_t *count, struct husk_error *err)
{
	cleanup_buf struct buf message = { 0 };
	cleanup_call struct call *call = NULL;
	struct listing listing = { 0 };
	struct call_event event = { 0 };
	int bad = 0;

	if (check_path("path", path, err) < 0)
		return -1;
	bad |= wire_put_string(&message, TAG_PATH, path);
	bad |= wire_put_int(&message, TAG_DEPTH, depth ? depth : 1);
	if (check_arguments(bad, err) < 0)
		return -1;
	int result = call_start(husk, sandbox, METHOD_FILE_LIST, &message, &call, err);
	while (result == 0 && (result = call_next(call, &event, err)) == 0 && event.type != WIRE_END)
		if (event.type == WIRE_MSG)
			result = listing_add(&listing, &event, err);
	if (result == 0)
		result = wire_end_status(event.data, event.size, err);
	if (result < 0) {
		husk_file_list_free(listing.files, listing.count);
		return -1;
	}
	*out = listing.files;
	*count = listing.count;
	return 0;
}

/* ---- changes ---- */

int husk_file_mkdir(struct husk *husk, const char *sandbox, const char *path, uint32_t mode, const char *user,
		    struct husk_error *err)
{
	cleanup_buf struct buf message = { 0 };
	int bad = 0;

	if (check_path("path", path, err) < 0 || check_mode(mode, err) < 0)
		return -1;
	bad |= wire_put_string(&message, TAG_PATH, path);
	if (mode)
		bad |= wire_put_int(&message, TAG_MODE, mode);
	bad |= wire_put_string(&message, TAG_USER, user);
	if (check_arguments(bad, err) < 0)
		return -1;
	return husk_call(husk, sandbox, METHOD_FILE_MKDIR, &message, NULL, err);
}

int husk_file_move(struct husk *husk, const char *sandbox, const char *path, const char *target, struct husk_error *err)
{
	cleanup_buf struct buf message = { 0 };
	int bad = 0;

	if (check_path("path", path, err) < 0 || check_path("target", target, err) < 0)
		return -1;
	bad |= wire_put_string(&message, TAG_PATH, path);
	bad |= wire_put_string(&message, TAG_TARGET, target);
	if (check_arguments(bad, err) < 0)
		return -1;
	return husk_call(husk, sandbox, METHOD_FILE_MOVE, &message, NULL, err);
}

int husk_file_remove(struct husk *husk, const char *sandbox, const char *path, struct husk_error *err)
{
	cleanup_buf struct buf message = { 0 };

	if (check_path("path", path, err) < 0)
		return -1;
	if (check_arguments(wire_put_string(&message, TAG_PATH, path), err) < 0)
		return -1;
	return husk_call(husk, sandbox, METHOD_FILE_REMOVE, &message, NULL, err);
}

int husk_file_chmod(struct husk *husk, const char *sandbox, const char *path, uint32_t mode, struct husk_error *err)
{
	cleanup_buf struct buf message = { 0 };
	int bad = 0;

	if (check_path("path", path, err) < 0 || check_mode(mode, err) < 0)
		return -1;
	bad |= wire_put_string(&message, TAG_PATH, path);
	bad |= wire_put_int(&message, TAG_MODE, mode);
	if (check_arguments(bad, err) < 0)
		return -1;
	return husk_call(husk, sandbox, METHOD_FILE_CHMOD, &message, NULL, err);
}
