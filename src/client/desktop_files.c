/*
 * The recordings of a sandbox as files; desktop_record.c describes their content. Ids from callers become parts of paths
 * only after a check of their form.
 */
#include "client/desktop_files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "base/jansson.h"

#define ABOUT_MAX 4096u
#define STOP_MS 10000
#define STEP_MS 50
#define ACTION_MAX (64u << 10)
#define ACTIONS_MAX (16u << 20) /* of one recording */
#define ID_LETTERS 12
#define ALL_BYTES_DEFAULT (UINT64_C(64) << 30) /* of all recordings of an instance */

void husk_recording_free(struct husk_recording *recording)
{
	if (!recording)
		return;
	free(recording->id);
	free(recording->reason);
	free(recording);
}

void husk_recording_list_free(struct husk_recording **list)
{
	for (size_t i = 0; list && list[i]; i++)
		husk_recording_free(list[i]);
	free(list);
}

static void list_cleanup(struct husk_recording ***list)
{
	husk_recording_list_free(*list);
}

/* ---- where they are ---- */

/* "<sandbox's directory>/recordings", of a sandbox in any state; caller frees. */
static char *find_root(struct husk *husk, const char *sandbox, struct husk_error *err)
{
	struct husk_sandbox *found = NULL;

	if (husk_inspect(husk, sandbox, &found, err) < 0)
		return NULL;
	cleanup_free char *directory = path_sandbox(&husk->paths, found->id);
	char *root = directory ? str_format("%s/recordings", directory) : NULL;
	husk_sandbox_free(found);
	if (!root)
		husk_fail_memory(err);
	return root;
}

static bool is_id(const char *id)
{
	return str_starts(id, "rec-") && strlen(id) == 4 + ID_LETTERS &&
	       id[4 + strspn(id + 4, "abcdefghijklmnopqrstuvwxyz234567")] == '\0';
}

/* The directory of a recording that exists; caller frees. */
static char *find(struct husk *husk, const char *sandbox, const char *id, struct husk_error *err)
{
	cleanup_free char *root = find_root(husk, sandbox, err);
	char *directory = root && is_id(id) ? str_format("%s/%s", root, id) : NULL;

	if (!root || (directory && access(directory, F_OK) == 0))
		return directory;
	free(directory);
	husk_fail(err, HUSK_NOT_FOUND, "sandbox %s has no recording '%.40s'", sandbox, id);
	return NULL;
}

int recording_sandbox(struct husk *husk, const char *sandbox, char **id, struct husk_error *err)
{
	struct husk_sandbox *found = NULL;

	if (husk_inspect(husk, sandbox, &found, err) < 0)
		return -1;
	int result = 0;
	if (found->state == HUSK_ENDED)
		result = husk_fail(err, HUSK_GONE, "sandbox %s has ended", found->id);
	else if (!(*id = strdup(found->id)))
		result = husk_fail_memory(err);
	husk_sandbox_free(found);
	return result;
}

static size_t count_in(const char *root)
{
	cleanup_dir DIR *dir = opendir(root);
	size_t count = 0;

	for (const struct dirent *entry; dir && (entry = readdir(dir));)
		count += is_id(entry->d_name);
	return count;
}

/* $HUSK_RECORDINGS: what all recordings of the instance may take. */
static int limit_of_all(uint64_t *out, struct husk_error *err)
{
	const char *text = getenv("HUSK_RECORDINGS");

	*out = ALL_BYTES_DEFAULT;
	if (!text || !*text)
		return 0;
	return str_to_size(text, 1u << 20, out) < 0
		       ? husk_fail(err, HUSK_INVALID, "HUSK_RECORDINGS is not a size, such as 64G: '%.32s'", text)
		       : 0;
}

void recording_drop(struct husk *husk, const char *id, const char *directory)
{
	dir_remove(directory, NULL);
	catalog_recording_remove(husk->catalog, id, NULL);
}

int recording_make(struct husk *husk, const char *sandbox_id, uint64_t bytes, char **id, char **directory,
		   struct husk_error *err)
{
	cleanup_free char *root = find_root(husk, sandbox_id, err);
	char name[4 + ID_LETTERS + 1];
	uint64_t all_max = 0;

	if (!root || limit_of_all(&all_max, err) < 0)
		return -1;
	if (count_in(root) >= RECORDINGS_MAX)
		return husk_fail(err, HUSK_LIMIT, "sandbox %s has %d recordings; remove some first", sandbox_id,
				 RECORDINGS_MAX);
	if (random_id("rec-", ID_LETTERS, name) < 0)
		return husk_fail(err, HUSK_INTERNAL, "no random numbers");
	*id = strdup(name);
	*directory = str_format("%s/%s", root, name);
	if (!*id || !*directory)
		return husk_fail_memory(err);
	if (catalog_recording_add(husk->catalog, name, sandbox_id, bytes, all_max, err) < 0)
		return -1;
	if (dir_make(*directory, 0700, err) == 0)
		return 0;
	catalog_recording_remove(husk->catalog, name, NULL);
	return -1;
}

/* ---- what they are ---- */

int recording_describe(const char *directory, const struct husk_recording *recording, struct husk_error *err)
{
	cleanup_free char *path = str_format("%s/about", directory);
	cleanup_json json_t *document =
		json_pack("{s:I, s:I, s:i, s:i, s:s?}", "started", (json_int_t)recording->started_ms, "duration",
			  (json_int_t)recording->duration_ms, "width", (int)recording->width, "height",
			  (int)recording->height, "reason", recording->reason);
	cleanup_free char *text = document ? json_dumps(document, JSON_COMPACT) : NULL;

	return path && text ? file_write_atomic(path, text, strlen(text), 0600, err) : husk_fail_memory(err);
}

/* Is a recorder at work? The kernel knows: it holds the lock. */
static bool is_running(const char *screen)
{
	cleanup_close int fd = open(screen, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);

	return fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) < 0 && errno == EWOULDBLOCK;
}

static int read_one(const char *directory, const char *id, struct husk_recording **out, struct husk_error *err)
{
	cleanup_free char *path = str_format("%s/about", directory), *screen = str_format("%s/screen", directory);
	struct husk_recording *recording = calloc(1, sizeof(*recording));
	struct stat status = { 0 };
	size_t size = 0;

	if (!path || !screen || !recording || !(recording->id = strdup(id))) {
		husk_recording_free(recording);
		return husk_fail_memory(err);
	}
	bool running = is_running(screen); /* before `about` is read: it is written before the lock is given up */
	cleanup_free char *text = file_read(path, ABOUT_MAX, &size, NULL);
	cleanup_json json_t *document = text ? json_loadb(text, size, 0, NULL) : NULL;
	const char *reason = json_string_value(json_object_get(document, "reason"));
	recording->started_ms = json_integer_value(json_object_get(document, "started"));
	recording->duration_ms = json_integer_value(json_object_get(document, "duration"));
	recording->width = (uint32_t)json_integer_value(json_object_get(document, "width"));
	recording->height = (uint32_t)json_integer_value(json_object_get(document, "height"));
	recording->reason = reason ? strdup(reason) : NULL;
	recording->state = reason ? HUSK_RECORDING_COMPLETE : running ? HUSK_RECORDING_RUNNING : HUSK_RECORDING_CUT;
	if (stat(screen, &status) == 0)
		recording->bytes = (uint64_t)status.st_size;
	if (recording->state == HUSK_RECORDING_RUNNING)
		recording->duration_ms = MAX(time_wall_ms() - recording->started_ms, 0);
	*out = recording;
	return 0;
}

int recording_get(struct husk *husk, const char *sandbox, const char *id, struct husk_recording **out,
		  struct husk_error *err)
{
	cleanup_free char *directory = find(husk, sandbox, id, err);

	return directory ? read_one(directory, id, out, err) : -1;
}

static int by_time(const void *a, const void *b)
{
	int64_t left = (*(struct husk_recording *const *)a)->started_ms;
	int64_t right = (*(struct husk_recording *const *)b)->started_ms;

	return left < right ? -1 : left > right;
}

int husk_recording_list(struct husk *husk, const char *sandbox, struct husk_recording ***out, struct husk_error *err)
{
	if (husk->remote)
		return remote_recording_list(husk->remote, sandbox, out, err);
	cleanup_free char *root = find_root(husk, sandbox, err);
	cleanup(list_cleanup) struct husk_recording **list = calloc(RECORDINGS_MAX + 1, sizeof(*list));
	cleanup_dir DIR *dir = root ? opendir(root) : NULL;
	size_t count = 0;

	if (!root)
		return -1;
	if (!list)
		return husk_fail_memory(err);
	for (const struct dirent *entry; dir && count < RECORDINGS_MAX && (entry = readdir(dir));) {
		cleanup_free char *directory = is_id(entry->d_name) ? str_format("%s/%s", root, entry->d_name) : NULL;
		if (directory && read_one(directory, entry->d_name, &list[count], err) < 0)
			return -1;
		/* A recorder that was killed gave nothing back of what it had reserved. */
		if (directory && list[count]->state == HUSK_RECORDING_CUT)
			catalog_recording_end(husk->catalog, list[count]->id, list[count]->bytes, NULL);
		count += directory != NULL;
	}
	qsort(list, count, sizeof(*list), by_time);
	*out = steal_pointer(list);
	return 0;
}

/* ---- what is done with them ---- */

int husk_recording_stop(struct husk *husk, const char *sandbox, const char *id, struct husk_recording **out,
			struct husk_error *err)
{
	if (husk->remote)
		return remote_recording_stop(husk->remote, sandbox, id, out, err);
	cleanup_free char *directory = find(husk, sandbox, id, err);
	cleanup_free char *stop = directory ? str_format("%s/stop", directory) : NULL;
	cleanup_free char *screen = directory ? str_format("%s/screen", directory) : NULL;
	int64_t until = time_monotonic_ms() + STOP_MS;

	if (!directory)
		return -1;
	if (!stop || !screen)
		return husk_fail_memory(err);
	if (is_running(screen) && file_write_atomic(stop, "", 0, 0600, err) < 0)
		return -1;
	while (is_running(screen)) {
		if (time_monotonic_ms() > until)
			return husk_fail(err, HUSK_TIMEOUT, "recording %s does not end; try again", id);
		usleep(STEP_MS * 1000);
	}
	return out ? read_one(directory, id, out, err) : 0;
}

int husk_recording_remove(struct husk *husk, const char *sandbox, const char *id, struct husk_error *err)
{
	if (husk->remote)
		return remote_recording_remove(husk->remote, sandbox, id, err);
	cleanup_free char *directory = find(husk, sandbox, id, err);
	cleanup_free char *screen = directory ? str_format("%s/screen", directory) : NULL;

	if (!directory)
		return -1;
	if (!screen)
		return husk_fail_memory(err);
	if (is_running(screen))
		return husk_fail(err, HUSK_CONFLICT, "recording %s is running; stop it first", id);
	return dir_remove(directory, err) < 0 ? -1 : catalog_recording_remove(husk->catalog, id, err);
}

int husk_recording_read(struct husk *husk, const char *sandbox, const char *id, enum husk_recording_part part,
			uint64_t *size, struct husk_error *err)
{
	if (husk->remote)
		return remote_refuse(husk->remote, "reading a recording", "GET …/desktop/recordings/{id}/screen", err);
	cleanup_free char *directory = find(husk, sandbox, id, err);
	const char *name = part == HUSK_RECORDING_ACTIONS ? "actions" : "screen";
	cleanup_free char *path = directory ? str_format("%s/%s", directory, name) : NULL;
	struct stat status;

	if (!directory)
		return -1;
	if (!path)
		return husk_fail_memory(err);
	/* Without any action there is no file. */
	cleanup_close int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0 && errno == ENOENT && part == HUSK_RECORDING_ACTIONS)
		fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &status) < 0)
		return husk_fail_errno(err, "cannot read recording %s", id);
	*size = S_ISREG(status.st_mode) ? (uint64_t)status.st_size : 0;
	return steal_fd(&fd);
}

/* ---- actions ---- */

/* One line, in one write: several programs may add lines. */
static int add_line(const char *directory, int64_t started_ms, const char *action, struct husk_error *err)
{
	cleanup_free char *path = str_format("%s/actions", directory);
	cleanup_buf struct buf line = { 0 };
	struct stat status;

	if (!path || buf_printf(&line, "{\"ms\":%lld,\"action\":%s}\n", (long long)MAX(time_wall_ms() - started_ms, 0),
				action) < 0)
		return husk_fail_memory(err);
	cleanup_close int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0 || fstat(fd, &status) < 0)
		return husk_fail_errno(err, "cannot write the actions of a recording");
	if (status.st_size + (off_t)line.size > (off_t)ACTIONS_MAX)
		return 0;
	return write(fd, line.data, line.size) == (ssize_t)line.size
		       ? 0
		       : husk_fail_errno(err, "cannot write the actions of a recording");
}

int husk_recording_note(struct husk *husk, const char *sandbox, const char *action, struct husk_error *err)
{
	if (husk->remote)
		return 0; /* the server notes what it is asked to do */
	cleanup(list_cleanup) struct husk_recording **list = NULL;
	cleanup_free char *root = find_root(husk, sandbox, err);

	if (!root)
		return -1;
	if (access(root, F_OK) < 0)
		return 0;
	size_t size = strlen(action);
	if (size > ACTION_MAX || memchr(action, '\n', size))
		return husk_fail_field(err, "action", "an action is one line of at most %u bytes", ACTION_MAX);
	if (husk_recording_list(husk, sandbox, &list, err) < 0)
		return -1;
	for (size_t i = 0; list[i]; i++) {
		cleanup_free char *directory = str_format("%s/%s", root, list[i]->id);
		if (!directory)
			return husk_fail_memory(err);
		if (list[i]->state == HUSK_RECORDING_RUNNING &&
		    add_line(directory, list[i]->started_ms, action, err) < 0)
			return -1;
	}
	return 0;
}
