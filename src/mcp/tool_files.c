/*
 * read_file, write_file and list_files. Paths are in the sandbox, and the agent resolves them; this file opens no file
 * of the host. The size of a read is bounded in advance, because a model's context is small.
 */
#include "mcp/tools.h"

#define READ_DEFAULT 65536
#define IMAGE_MAX (4u << 20)
#define BINARY_MAX (256u << 10)
#define ENTRIES_MAX 1000u

static int check_path(const char *path, struct husk_error *err)
{
	if (path[0] == '/')
		return 0;
	return husk_fail_field(err, "path", "'path' must be absolute, like /root/notes.txt");
}

/* ---- read ---- */

struct reading {
	struct buf bytes;
	size_t limit;
};

static int keep(void *data, const void *bytes, size_t size)
{
	struct reading *reading = data;
	size_t room = reading->limit - reading->bytes.size;

	return buf_append(&reading->bytes, bytes, MIN(size, room)) < 0 || size > room;
}

static void reading_free(struct reading *reading)
{
	buf_free(&reading->bytes);
}

/* Decided by the first bytes, because a file's name may be wrong. */
static const char *picture_type(const char *bytes, size_t size)
{
	if (size >= 8 && memcmp(bytes, "\x89PNG\r\n\x1a\n", 8) == 0)
		return "image/png";
	if (size >= 3 && memcmp(bytes, "\xff\xd8\xff", 3) == 0)
		return "image/jpeg";
	if (size >= 6 && (memcmp(bytes, "GIF87a", 6) == 0 || memcmp(bytes, "GIF89a", 6) == 0))
		return "image/gif";
	if (size >= 12 && memcmp(bytes, "RIFF", 4) == 0 && memcmp(bytes + 8, "WEBP", 4) == 0)
		return "image/webp";
	return NULL;
}

static int read_bytes(struct tool_call *call, const char *path, uint64_t offset, size_t limit, struct reading *reading,
		      struct husk_error *err)
{
	reading->bytes.size = 0;
	reading->limit = limit;
	if (husk_file_read(call->session->husk, call->sandbox, path, offset, limit, keep, reading, err) < 0)
		return -1;
	return 0;
}

static int give_file(struct tool_call *call, const struct husk_file *file, const char *kind, json_t *text,
		     uint64_t next_offset, struct husk_error *err)
{
	bool more = next_offset < file->size;
	json_t *next = more ? json_integer((json_int_t)next_offset) : json_null();

	return tool_give(call,
			 json_pack("{s:o, s:s, s:o, s:I, s:b, s:o}", "path", json_text0(tool_string(call, "path")),
				   "kind", kind, "text", text, "size", (json_int_t)file->size, "truncated", more,
				   "next_offset", next),
			 err);
}

static int give_picture(struct tool_call *call, const struct husk_file *file, const char *path, const char *type,
			struct reading *reading, struct husk_error *err)
{
	if (file->size > IMAGE_MAX)
		return husk_fail(err, HUSK_LIMIT,
				 "the image has %llu bytes, and at most %u can be shown; make it smaller first",
				 (unsigned long long)file->size, IMAGE_MAX);
	if (read_bytes(call, path, 0, IMAGE_MAX, reading, err) < 0 ||
	    tool_show_image(call, type, json_base64(reading->bytes.data, reading->bytes.size), err) < 0)
		return -1;
	return give_file(call, file, "image", json_null(), file->size, err);
}

static int give_binary(struct tool_call *call, const struct husk_file *file, struct reading *reading, uint64_t offset,
		       struct husk_error *err)
{
	size_t size = MIN(reading->bytes.size, BINARY_MAX);
	cleanup_json json_t *encoded = json_base64(reading->bytes.data, size);

	if (!encoded)
		return husk_fail_memory(err);
	if (tool_sayf(call, err, "not text; %zu of %llu bytes from %llu as base64:\n%s", size,
		      (unsigned long long)file->size, (unsigned long long)offset, json_string_value(encoded)) < 0)
		return -1;
	return give_file(call, file, "binary", json_null(), offset + size, err);
}

/* How many bytes are whole characters: a piece may end inside one. 0: not text. */
static size_t text_size(const char *bytes, size_t size)
{
	for (size_t cut = 0; cut <= 3 && cut <= size; cut++)
		if (str_is_utf8(bytes, size - cut) && !memchr(bytes, 0, size - cut))
			return size - cut;
	return 0;
}

static int give_content(struct tool_call *call, const struct husk_file *file, const char *path, uint64_t offset,
			struct reading *reading, struct husk_error *err)
{
	const char *bytes = reading->bytes.data ? reading->bytes.data : "";
	const char *picture = offset == 0 ? picture_type(bytes, reading->bytes.size) : NULL;
	size_t size = text_size(bytes, reading->bytes.size);

	if (picture)
		return give_picture(call, file, path, picture, reading, err);
	if (!size && reading->bytes.size)
		return give_binary(call, file, reading, offset, err);
	if (tool_say(call, bytes, size, err) < 0)
		return -1;
	return give_file(call, file, "text", json_text(bytes, size), offset + size, err);
}

int tool_read_file(struct tool_call *call, struct husk_error *err)
{
	const char *path = tool_string(call, "path");
	uint64_t offset = (uint64_t)tool_int(call, "offset", 0);
	size_t limit = (size_t)tool_int(call, "limit", READ_DEFAULT);
	cleanup(reading_free) struct reading reading = { 0 };
	struct husk_file file = { 0 };

	if (check_path(path, err) < 0 || session_sandbox(call, NEED_EXISTING, 0, err) < 0 ||
	    husk_file_stat(call->session->husk, call->sandbox, path, true, &file, err) < 0)
		return -1;
	int result;
	if (file.type == HUSK_DIRECTORY)
		result = husk_fail_field(err, "path", "'%.200s' is a directory; use list_files", path);
	else if (offset > file.size)
		result = husk_fail_field(err, "offset", "'offset' is past the end: the file has %llu bytes",
					 (unsigned long long)file.size);
	else
		result = read_bytes(call, path, offset, limit, &reading, err);
	if (result == 0)
		result = give_content(call, &file, path, offset, &reading, err);
	husk_file_free(&file);
	return result;
}

/* ---- write ---- */

int tool_write_file(struct tool_call *call, struct husk_error *err)
{
	const char *path = tool_string(call, "path");
	const json_t *content = json_object_get(call->arguments, "content");
	const json_t *encoded = json_object_get(call->arguments, "content_base64");
	cleanup_buf struct buf decoded = { 0 };
	struct bytes writing = { json_string_value(content), json_string_length(content) };

	if (check_path(path, err) < 0)
		return -1;
	if (!content == !encoded)
		return husk_fail_field(err, "content", "give either 'content' or 'content_base64'");
	if (encoded) {
		if (base64_decode("content_base64", json_string_value(encoded), json_string_length(encoded), &decoded,
				  err) < 0)
			return -1;
		writing = (struct bytes){ decoded.data, decoded.size };
	}
	size_t size = writing.left;
	if (session_sandbox(call, NEED_ANY, 0, err) < 0 ||
	    husk_file_write(call->session->husk, call->sandbox, path, tool_bool(call, "executable") ? 0755 : 0,
			    tool_string(call, "user"), bytes_give, &writing, err) < 0 ||
	    tool_sayf(call, err, "wrote %zu bytes to %s in sandbox %s", size, path, call->sandbox) < 0)
		return -1;
	return tool_give(call, json_pack("{s:s, s:I}", "path", path, "size", (json_int_t)size), err);
}

/* ---- list ---- */

static const char *type_name(enum husk_file_type type)
{
	static const char *const names[] = { "other", "file", "directory", "symlink" };

	return (size_t)type < ARRAY_SIZE(names) ? names[type] : "other";
}

static json_t *entry_json(const struct husk_file *file)
{
	char mode[8];

	snprintf(mode, sizeof(mode), "%04o", file->mode & 07777);
	return json_pack("{s:o, s:s, s:I, s:s, s:o, s:o}", "path", json_text0(file->path), "type",
			 type_name(file->type), "size", (json_int_t)file->size, "mode", mode, "modified_at",
			 json_time(file->mtime_ms), "target", json_text0(file->target));
}

static int say_entries(struct tool_call *call, const struct husk_file *list, size_t count, size_t shown,
		       struct husk_error *err)
{
	cleanup_buf struct buf text = { 0 };
	int bad = 0;

	for (size_t i = 0; i < shown; i++) {
		bool folder = list[i].type == HUSK_DIRECTORY;
		bad |= buf_printf(&text, "%s%s", list[i].path, folder ? "/" : "");
		if (list[i].target)
			bad |= buf_printf(&text, " -> %s", list[i].target);
		else if (!folder)
			bad |= buf_printf(&text, " (%llu bytes)", (unsigned long long)list[i].size);
		bad |= buf_append_string(&text, "\n");
	}
	if (count > shown)
		bad |= buf_printf(&text, "[%zu more]\n", count - shown);
	if (!count)
		bad |= buf_append_string(&text, "(empty)\n");
	return bad ? husk_fail_memory(err) : tool_say(call, text.data, text.size, err);
}

int tool_list_files(struct tool_call *call, struct husk_error *err)
{
	const char *path = tool_string(call, "path") ? tool_string(call, "path") : "/root";
	cleanup_json json_t *entries = json_array();
	struct husk_file *list = NULL;
	size_t count = 0;

	if (!entries)
		return husk_fail_memory(err);
	if (check_path(path, err) < 0 || session_sandbox(call, NEED_EXISTING, 0, err) < 0 ||
	    husk_file_list(call->session->husk, call->sandbox, path, (uint32_t)tool_int(call, "depth", 1), &list,
			   &count, err) < 0)
		return -1;
	size_t shown = MIN(count, ENTRIES_MAX);
	int result = 0;
	for (size_t i = 0; i < shown && result == 0; i++)
		if (json_array_append_new(entries, entry_json(&list[i])) < 0)
			result = husk_fail_memory(err);
	if (result == 0)
		result = say_entries(call, list, count, shown, err);
	husk_file_list_free(list, count);
	if (result < 0)
		return -1;
	return tool_give(
		call,
		json_pack("{s:s, s:O, s:I}", "path", path, "entries", entries, "left_out", (json_int_t)(count - shown)),
		err);
}
