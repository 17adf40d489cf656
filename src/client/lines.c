/*
 * JSON lines to and from a process of the guest (lines.h).
 */
#include "client/lines.h"

#include <poll.h>

#include "instance/contact.h"

#define COMPLAINT_MAX 400
#define DEPTH_MAX 256 /* of a line's JSON: the parser is recursive, and the caller's thread may have a small stack */

void lines_close(struct lines *lines)
{
	husk_process_free(lines->process);
	buf_free(&lines->text);
	buf_free(&lines->complaint);
}

/* ---- finding ---- */

int lines_forget(const struct lines *lines, int64_t pid, struct husk_error *err)
{
	cleanup_buf struct buf message = { 0 };

	if (wire_put_int(&message, TAG_PID, pid) < 0)
		return husk_fail_memory(err);
	return husk_call(lines->husk, lines->sandbox, METHOD_PROCESS_FORGET, &message, NULL, err);
}

static bool is_older(const struct husk_process_info *a, const struct husk_process_info *b)
{
	return a->started_ms != b->started_ms ? a->started_ms < b->started_ms : a->pid < b->pid;
}

int lines_find(const struct lines *lines, bool (*matches)(const void *data, const char *label), const void *data,
	       struct husk_process_info *out, struct husk_error *err)
{
	struct husk_process_info *list = NULL;
	size_t count = 0;

	*out = (struct husk_process_info){ 0 };
	if (husk_process_list(lines->husk, lines->sandbox, &list, &count, err) < 0)
		return -1;
	for (size_t i = 0; i < count; i++) {
		if (!list[i].label || !matches(data, list[i].label))
			continue;
		if (!list[i].running)
			lines_forget(lines, list[i].pid, NULL);
		else if (!out->pid || is_older(&list[i], out))
			*out = list[i];
	}
	husk_process_list_free(list, count);
	/* Its strings are freed with the list. */
	out->label = out->cwd = out->user = NULL;
	out->argv = NULL;
	return 0;
}

/* ---- talking ---- */

static void complain(struct buf *complaint, const char *data, size_t size)
{
	if (size > COMPLAINT_MAX) {
		data += size - COMPLAINT_MAX;
		size = COMPLAINT_MAX;
	}
	if (complaint->size + size > COMPLAINT_MAX)
		buf_consume(complaint, complaint->size + size - COMPLAINT_MAX);
	buf_append(complaint, data, size); /* without memory only the message is shorter */
}

const char *lines_complaint(struct lines *lines)
{
	struct buf *complaint = &lines->complaint;

	while (complaint->size && strchr("\n\r ", complaint->data[complaint->size - 1]))
		complaint->data[--complaint->size] = '\0';
	if (!complaint->size)
		return "";
	const char *line = strrchr(complaint->data, '\n');
	for (size_t i = 0; i < complaint->size; i++)
		if ((unsigned char)complaint->data[i] < 0x20 || complaint->data[i] == 0x7f)
			complaint->data[i] = ' ';
	return line ? line + 1 : complaint->data;
}

/* Waits until the process may have sent something, or the time is up. -1: the caller gave up, or the wait failed. */
static int wait_for_process(struct lines *lines, int timeout_ms, struct husk_error *err)
{
	struct pollfd p = { .fd = husk_process_fd(lines->process), .events = POLLIN };

	if (lines->wait) {
		if (lines->wait(lines->wait_data, p.fd, timeout_ms) >= 0)
			return 0;
		return husk_fail(err, HUSK_GONE, "no client waits for %s '%s'; it continues", lines->what, lines->name);
	}
	if (poll(&p, 1, timeout_ms) < 0 && errno != EINTR)
		return husk_fail_errno(err, "cannot wait for %s '%s'", lines->what, lines->name);
	return 0;
}

/* Reads more bytes from the process: 1; 0: the deadline (-1: none) passed; -1: the process ended. */
static int read_more(struct lines *lines, int64_t deadline_ms, struct husk_error *err)
{
	struct husk_process_event event;

	while (!husk_process_pending(lines->process)) {
		int64_t left = deadline_ms < 0 ? -1 : deadline_ms - time_monotonic_ms();
		if (deadline_ms >= 0 && left <= 0)
			return 0;
		if (wait_for_process(lines, (int)MIN(left, 3600 * 1000), err) < 0)
			return -1;
	}
	if (husk_process_next(lines->process, &event, err) < 0)
		return -1;
	if (event.kind == HUSK_EXIT)
		return lines->ended(lines, &event, err);
	if (event.kind == HUSK_STDERR) {
		complain(&lines->complaint, event.data, event.size);
		return 1;
	}
	buf_consume(&lines->text, lines->start);
	lines->start = 0;
	if (lines->text.size + event.size > LINES_MAX_BYTES)
		return husk_fail(err, HUSK_LIMIT,
				 "%s '%s' sent a result of more than %u MiB; write it to a file instead", lines->what,
				 lines->name, LINES_MAX_BYTES >> 20);
	return buf_append(&lines->text, event.data, event.size) < 0 ? husk_fail_memory(err) : 1;
}

int lines_read(struct lines *lines, int64_t deadline_ms, json_t **out, struct husk_error *err)
{
	size_t searched = 0; /* so that a long line is not searched from its start for each piece */

	for (;;) {
		size_t from = lines->start + searched;
		char *newline =
			from < lines->text.size ? memchr(lines->text.data + from, '\n', lines->text.size - from) : NULL;
		if (!newline) {
			searched = lines->text.size - lines->start;
			/* The deadline also applies to a process that never stops sending. */
			if (deadline_ms >= 0 && time_monotonic_ms() >= deadline_ms)
				return 0;
			int more = read_more(lines, deadline_ms, err);
			if (more <= 0)
				return more;
			continue;
		}
		char *line = lines->text.data + lines->start;
		size_t size = (size_t)(newline - line);
		lines->start += size + 1;
		searched = 0;
		json_t *object =
			str_json_deeper(line, size, DEPTH_MAX) ? NULL : json_loadb(line, size, JSON_ALLOW_NUL, NULL);
		if (json_is_object(object)) {
			*out = object;
			return 1;
		}
		json_decref(object);
	}
}

const char *lines_text(const json_t *object, const char *key)
{
	const char *text = json_string_value(json_object_get(object, key));

	return text ? text : "";
}

int lines_send(struct lines *lines, const json_t *request, struct husk_error *err)
{
	cleanup_free char *line = request ? json_dumps(request, JSON_COMPACT | JSON_ENSURE_ASCII) : NULL;
	cleanup_buf struct buf text = { 0 };

	if (!line || buf_append_string(&text, line) < 0 || buf_append_string(&text, "\n") < 0)
		return husk_fail_memory(err);
	return husk_process_write(lines->process, text.data, text.size, err);
}

/* ---- opening ---- */

static int wait_ready(struct lines *lines, int limit_ms, struct husk_error *err)
{
	int64_t deadline = time_monotonic_ms() + limit_ms;

	for (;;) {
		cleanup_json json_t *object = NULL;
		int got = lines_read(lines, deadline, &object, err);
		if (got < 0)
			return -1;
		if (got == 0) {
			lines_forget(lines, lines->pid, NULL);
			return husk_fail(err, HUSK_TIMEOUT, "%s '%s' did not start within %d seconds", lines->what,
					 lines->name, limit_ms / 1000);
		}
		if (str_equal(lines_text(object, "type"), "stderr"))
			complain(&lines->complaint, lines_text(object, "text"), strlen(lines_text(object, "text")));
		if (str_equal(lines_text(object, "type"), "ready")) {
			lines->starting = false;
			return 0;
		}
	}
}

int lines_start(struct lines *lines, const struct husk_exec_options *exec, int limit_ms, struct husk_error *err)
{
	lines->starting = true;
	if (husk_exec(lines->husk, lines->sandbox, exec, &lines->process, &lines->pid, err) < 0)
		return -1;
	return wait_ready(lines, limit_ms, err);
}

int lines_attach(struct lines *lines, const struct husk_process_info *found, struct husk_error *err)
{
	struct husk_attach_options options = {
		.offset_stdout = found->stdout_bytes,
		.offset_stderr = found->stderr_bytes,
		.keep_stdin = true,
	};

	lines->pid = found->pid;
	return husk_attach(lines->husk, lines->sandbox, found->pid, &options, &lines->process, NULL, err);
}

int lines_open(struct lines *lines, bool (*matches)(const void *data, const char *label), const void *data,
	       const struct husk_exec_options *exec, int limit_ms, struct husk_error *err)
{
	struct husk_process_info found;

	if (lines_find(lines, matches, data, &found, err) < 0)
		return -1;
	if (found.pid)
		return lines_attach(lines, &found, err);
	if (lines_start(lines, exec, limit_ms, err) < 0 || lines_find(lines, matches, data, &found, err) < 0)
		return -1;
	if (!found.pid || found.pid == lines->pid)
		return 0;
	lines_forget(lines, lines->pid, NULL);
	husk_process_free(steal_pointer(lines->process));
	buf_consume(&lines->text, lines->text.size);
	lines->start = 0;
	return lines_attach(lines, &found, err);
}
