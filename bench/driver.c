/*
 * The libhusk side of the benchmarks: reads one command per line on stdin, does it, and answers with one line: the
 * microseconds it took, then what it made. bench/run starts one of these and interleaves its commands with those of the
 * peer, so that both meet the same machine. Only what a command's name says is inside the clock.
 *
 *   create TEMPLATE          a sandbox and `true` in it, to its end     -> us id
 *   leash TEMPLATE RULE N    the same under a policy of RULE and N names -> us id
 *   egress ID RULE N         another policy like that, from now on       -> us
 *   exec ID                  `true` in a sandbox that is there          -> us
 *   look TEMPLATE            a sandbox and a picture of its screen      -> us id
 *   fork-look ID             a child, and a picture of its screen       -> us id
 *   desktop ID REQUEST       a request to its desktop, as JSON          -> us
 *   shell ID SECONDS LINE…   a shell line to its end, or a failure      -> us
 *   start ID LINE…           a shell line left running                  -> us
 *   fork ID N                N children, and `true` in each of them     -> us id…
 *   hibernate ID, kill ID                                               -> us
 *   wake ID                  awake, and `true` in it                    -> us
 *   checkpoint ID, forget ID N                                          -> us N
 *   rewind ID                back at its last checkpoint, and `true`    -> us
 *   careful TEMPLATE         as create, with a checkpoint before each call -> us ID
 *   put ID MIB, get ID       a file in, and out again                   -> us
 *   http-exec SOCKET ID      as exec, through huskd on a kept connection -> us
 *   storm EACH ID…           `true`, EACH times in every one at once    -> us
 *   http-storm SOCKET EACH ID…  the same through huskd, a connection each -> us
 *   lag ID COUNT             how late lines of output come, each in us   -> us lag…
 *
 * A failure is a line that begins with "error:"; the next command is read all the same.
 */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <husk.h>

#define GUEST_FILE "/root/bench-file"
#define ANSWER_MS 60000

static struct husk *husk;

static int64_t now_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * INT64_C(1000000) + now.tv_nsec / 1000;
}

static int fail(struct husk_error *err, const char *text)
{
	err->code = HUSK_INTERNAL;
	snprintf(err->message, sizeof(err->message), "%s", text);
	return -1;
}

/* A command to its end; anything but exit code 0 is a failure. */
static int run(const char *sandbox, const struct husk_exec_options *options, struct husk_error *err)
{
	struct husk_result result = { 0 };

	if (husk_run(husk, sandbox, options, &result, err) < 0)
		return -1;
	int exit_code = result.exit_code;
	husk_result_free(&result);
	return exit_code ? fail(err, "the command in the sandbox failed") : 0;
}

static int answer(const char *sandbox, struct husk_error *err)
{
	static const char *const argv[] = { "true", NULL };
	const struct husk_exec_options options = { .argv = argv, .timeout_ms = ANSWER_MS };

	return run(sandbox, &options, err);
}

/* A request to the desktop; the answer is dropped. */
static int screen(const char *sandbox, const char *request, struct husk_error *err)
{
	const struct husk_desktop_options options = { .request = request };
	char *answer_text = NULL;

	if (husk_desktop_act(husk, sandbox, &options, &answer_text, err) < 0)
		return -1;
	free(answer_text);
	return 0;
}

static int look(const char *sandbox, struct husk_error *err)
{
	return screen(sandbox, "{\"screenshot\":true}", err);
}

/* ---- the commands: each fills `made` with what it made, if anything ---- */

static int make(const char *template, const char *checkpoints, char *made, size_t size, struct husk_error *err)
{
	const struct husk_create_options options = { .template_name = template,
						     .memory_bytes = UINT64_C(2) << 30,
						     .checkpoints = checkpoints };
	struct husk_sandbox *sandbox = NULL;

	if (husk_create(husk, &options, &sandbox, err) < 0)
		return -1;
	snprintf(made, size, "%s", sandbox->id);
	husk_sandbox_free(sandbox);
	return 0;
}

static int do_create(char *words, char *made, size_t size, struct husk_error *err)
{
	return make(words, NULL, made, size, err) < 0 ? -1 : answer(made, err);
}

static int do_careful(char *words, char *made, size_t size, struct husk_error *err)
{
	return make(words, "each-call", made, size, err) < 0 ? -1 : answer(made, err);
}

static int do_look(char *words, char *made, size_t size, struct husk_error *err)
{
	return make(words, NULL, made, size, err) < 0 ? -1 : look(made, err);
}

static int do_desktop(char *words, char *made, size_t size, struct husk_error *err)
{
	const char *id = strsep(&words, " ");

	(void)made, (void)size;
	return words ? screen(id, words, err) : fail(err, "desktop ID REQUEST");
}

/* A policy of one rule and `count` names. */
#define NAMES_MAX 200
struct rules {
	const char *list[NAMES_MAX + 1];
	char names[NAMES_MAX][32];
	struct husk_egress egress;
};

static void make_rules(struct rules *rules, const char *rule, size_t count)
{
	static unsigned serial;

	serial++; /* never the same policy twice */
	count = count < NAMES_MAX ? count : NAMES_MAX;
	rules->list[0] = rule;
	for (size_t i = 0; i < count; i++) {
		snprintf(rules->names[i], sizeof(rules->names[i]), "n%zu.s%u.example.com", i, serial);
		rules->list[i + 1] = rules->names[i];
	}
	rules->egress = (struct husk_egress){ .mode = "allow", .allow = rules->list, .allow_count = count + 1 };
}

static int do_leash(char *words, char *made, size_t size, struct husk_error *err)
{
	const char *template = strsep(&words, " "), *rule = strsep(&words, " ");
	struct husk_sandbox *sandbox = NULL;
	struct rules rules;

	if (!words)
		return fail(err, "leash TEMPLATE RULE N");
	make_rules(&rules, rule, strtoul(words, NULL, 10));
	const struct husk_create_options options = { .template_name = template,
						     .memory_bytes = UINT64_C(2) << 30,
						     .egress = &rules.egress };
	if (husk_create(husk, &options, &sandbox, err) < 0)
		return -1;
	snprintf(made, size, "%s", sandbox->id);
	husk_sandbox_free(sandbox);
	return answer(made, err);
}

static int do_egress(char *words, char *made, size_t size, struct husk_error *err)
{
	const char *id = strsep(&words, " "), *rule = strsep(&words, " ");
	struct rules rules;

	(void)made, (void)size;
	if (!words)
		return fail(err, "egress ID RULE N");
	make_rules(&rules, rule, strtoul(words, NULL, 10));
	return husk_egress_set(husk, id, &rules.egress, err);
}

static int do_exec(char *words, char *made, size_t size, struct husk_error *err)
{
	(void)made, (void)size;
	return answer(words, err);
}

static int do_shell(char *words, char *made, size_t size, struct husk_error *err)
{
	const char *id = strsep(&words, " "), *seconds = strsep(&words, " ");
	(void)made, (void)size;
	if (!words)
		return fail(err, "shell ID SECONDS LINE");
	const struct husk_exec_options options = { .shell = words, .timeout_ms = atoll(seconds) * 1000 };
	return run(id, &options, err);
}

static int do_start(char *words, char *made, size_t size, struct husk_error *err)
{
	const char *id = strsep(&words, " ");
	const struct husk_exec_options options = { .shell = words, .detach = true };
	int64_t pid = 0;

	if (!words)
		return fail(err, "start ID LINE");
	if (husk_exec(husk, id, &options, NULL, &pid, err) < 0)
		return -1;
	snprintf(made, size, "%" PRId64, pid);
	return 0;
}

static int do_fork(char *words, char *made, size_t size, struct husk_error *err)
{
	const char *id = strsep(&words, " ");
	struct husk_sandbox **children = NULL;
	size_t used = 0;
	int result = 0;

	if (!words)
		return fail(err, "fork ID N");
	if (husk_fork(husk, id, strtoul(words, NULL, 10), NULL, &children, err) < 0)
		return -1;
	for (size_t i = 0; children[i]; i++) {
		if (result == 0)
			result = answer(children[i]->id, err);
		int written = snprintf(made + used, size - used, "%s%s", i ? " " : "", children[i]->id);
		used += written > 0 && (size_t)written < size - used ? (size_t)written : 0;
	}
	husk_sandbox_list_free(children);
	return result;
}

static int do_fork_look(char *words, char *made, size_t size, struct husk_error *err)
{
	struct husk_sandbox **children = NULL;

	if (husk_fork(husk, words, 1, NULL, &children, err) < 0)
		return -1;
	snprintf(made, size, "%s", children[0]->id);
	husk_sandbox_list_free(children);
	return look(made, err);
}

static int do_hibernate(char *words, char *made, size_t size, struct husk_error *err)
{
	(void)made, (void)size;
	return husk_hibernate(husk, words, err);
}

static int do_wake(char *words, char *made, size_t size, struct husk_error *err)
{
	(void)made, (void)size;
	return husk_wake(husk, words, err) < 0 ? -1 : answer(words, err);
}

/* Back at its last checkpoint, and `true` in it. */
static int do_rewind(char *words, char *made, size_t size, struct husk_error *err)
{
	(void)made, (void)size;
	return husk_rewind(husk, words, NULL, false, NULL, err) < 0 ? -1 : answer(words, err);
}

static int do_checkpoint(char *words, char *made, size_t size, struct husk_error *err)
{
	struct husk_checkpoint *taken = NULL;

	if (husk_checkpoint(husk, words, NULL, &taken, err) < 0)
		return -1;
	snprintf(made, size, "%lld", (long long)taken->number);
	husk_checkpoint_free(taken);
	return 0;
}

static int do_forget(char *words, char *made, size_t size, struct husk_error *err)
{
	char *id = strsep(&words, " ");

	(void)made, (void)size;
	return husk_checkpoint_remove(husk, id, words, err);
}

static int do_kill(char *words, char *made, size_t size, struct husk_error *err)
{
	(void)made, (void)size;
	return husk_kill(husk, words, err);
}

/* Bytes that are not all alike, and cost nothing to make. */
static ssize_t give(void *data, void *bytes, size_t size)
{
	uint64_t *left = data;
	size_t count = size < *left ? size : (size_t)*left;

	memset(bytes, (int)(*left >> 20 & 0xff), count);
	*left -= count;
	return (ssize_t)count;
}

static int take(void *data, const void *bytes, size_t size)
{
	(void)bytes;
	*(uint64_t *)data += size;
	return 0;
}

static int do_put(char *words, char *made, size_t size, struct husk_error *err)
{
	const char *id = strsep(&words, " ");
	uint64_t left = words ? strtoull(words, NULL, 10) << 20 : 0;

	(void)made, (void)size;
	return husk_file_write(husk, id, GUEST_FILE, 0, NULL, give, &left, err);
}

static int do_get(char *words, char *made, size_t size, struct husk_error *err)
{
	uint64_t total = 0;

	if (husk_file_read(husk, words, GUEST_FILE, 0, 0, take, &total, err) < 0)
		return -1;
	snprintf(made, size, "%" PRIu64, total);
	return 0;
}

/* ---- through the server: HTTP in its plainest form, so that it is the server that is measured ---- */

static int http_connect(const char *path)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
	if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0)
		return fd;
	if (fd >= 0)
		close(fd);
	return -1;
}

/* Reads one answer with a Content-Length; 0 when it says 200 and exit code 0. */
static int http_answer(int fd)
{
	char text[8192];
	size_t size = 0, whole = 0;

	while (!whole || size < whole) {
		ssize_t count = size < sizeof(text) - 1 ? read(fd, text + size, sizeof(text) - 1 - size) : -1;
		if (count <= 0)
			return -1;
		size += (size_t)count;
		text[size] = '\0';
		const char *end = strstr(text, "\r\n\r\n"), *length = strcasestr(text, "\r\ncontent-length:");
		if (end && length)
			whole = (size_t)(end - text) + 4 + strtoul(length + 17, NULL, 10);
	}
	return strncmp(text, "HTTP/1.1 200", 12) == 0 && strstr(text, "\"exit_code\":0") ? 0 : -1;
}

static int http_true(int fd, const char *id)
{
	static const char body[] = "{\"argv\":[\"true\"]}";
	char text[512];
	int size =
		snprintf(text, sizeof(text),
			 "POST /v1/sandboxes/%s/exec HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
			 "Content-Length: %zu\r\n\r\n%s",
			 id, sizeof(body) - 1, body);

	return write(fd, text, (size_t)size) == size ? http_answer(fd) : -1;
}

static int do_http_exec(char *words, char *made, size_t size, struct husk_error *err)
{
	static int kept = -1;
	const char *path = strsep(&words, " ");

	(void)made, (void)size;
	if (!words)
		return fail(err, "http-exec SOCKET ID");
	if (kept < 0)
		kept = http_connect(path);
	return kept < 0 || http_true(kept, words) < 0 ? fail(err, "the server did not answer as it should") : 0;
}

struct storm {
	const char *id, *path; /* path NULL: libhusk */
	pthread_t thread;
	int result;
};

static void *storm_run(void *data)
{
	struct storm *storm = data;
	struct husk_error err;

	if (!storm->path) {
		storm->result = answer(storm->id, &err);
		return NULL;
	}
	int fd = http_connect(storm->path);
	storm->result = fd < 0 ? -1 : http_true(fd, storm->id);
	if (fd >= 0)
		close(fd);
	return NULL;
}

static int storm_all(const char *path, char *words, struct husk_error *err)
{
	static struct storm storms[1024];
	const char *each_text = strsep(&words, " ");
	size_t each = strtoul(each_text, NULL, 10), count = 0;
	int result = 0;

	for (const char *id = strsep(&words, " "); id; id = strsep(&words, " "))
		for (size_t i = 0; i < each && count < sizeof(storms) / sizeof(*storms); i++)
			storms[count++] = (struct storm){ .id = id, .path = path, .result = -1 };
	size_t started = 0;
	while (started < count && pthread_create(&storms[started].thread, NULL, storm_run, &storms[started]) == 0)
		started++;
	for (size_t i = 0; i < started; i++) {
		pthread_join(storms[i].thread, NULL);
		result |= storms[i].result;
	}
	return result || started < count ? fail(err, "some of the storm failed") : 0;
}

static int do_storm(char *words, char *made, size_t size, struct husk_error *err)
{
	(void)made, (void)size;
	return storm_all(NULL, words, err);
}

static int do_http_storm(char *words, char *made, size_t size, struct husk_error *err)
{
	const char *path = strsep(&words, " ");

	(void)made, (void)size;
	return storm_all(path, words, err);
}

/* The guest writes the time; the clock is the host's, so the difference is how long it took to get here. */
static int do_lag(char *words, char *made, size_t size, struct husk_error *err)
{
	const char *id = strsep(&words, " ");
	char line[256];
	snprintf(line, sizeof(line),
		 "exec python3 -c 'import time\nfor i in range(%ld): print(time.time_ns(), flush=True); "
		 "time.sleep(0.05)'",
		 words ? strtol(words, NULL, 10) : 1);
	const struct husk_exec_options options = { .shell = line };
	struct husk_process *process = NULL;
	struct husk_process_event event = { 0 };
	size_t used = 0;
	int64_t pid;

	if (husk_exec(husk, id, &options, &process, &pid, err) < 0)
		return -1;
	int result;
	while ((result = husk_process_next(process, &event, err)) == 0 && event.kind != HUSK_EXIT) {
		struct timespec now;
		clock_gettime(CLOCK_REALTIME, &now);
		int64_t lag = (now.tv_sec * INT64_C(1000000000) + now.tv_nsec - strtoll(event.data, NULL, 10)) / 1000;
		int written = event.kind == HUSK_STDOUT
				      ? snprintf(made + used, size - used, "%s%" PRId64, used ? " " : "", lag)
				      : 0;
		used += written > 0 && (size_t)written < size - used ? (size_t)written : 0;
	}
	husk_process_free(process);
	return result;
}

static const struct command {
	const char *name;
	int (*run)(char *words, char *made, size_t size, struct husk_error *err);
} commands[] = {
	{ "create", do_create },   { "exec", do_exec },
	{ "shell", do_shell },     { "start", do_start },
	{ "fork", do_fork },       { "wake", do_wake },
	{ "kill", do_kill },       { "hibernate", do_hibernate },
	{ "put", do_put },         { "get", do_get },
	{ "storm", do_storm },     { "http-exec", do_http_exec },
	{ "lag", do_lag },         { "http-storm", do_http_storm },
	{ "leash", do_leash },     { "egress", do_egress },
	{ "rewind", do_rewind },   { "checkpoint", do_checkpoint },
	{ "forget", do_forget },   { "careful", do_careful },
	{ "look", do_look },       { "fork-look", do_fork_look },
	{ "desktop", do_desktop },
};

static void obey(char *line)
{
	struct husk_error err = { 0 };
	char made[8192] = "";
	char *name = strsep(&line, " ");

	for (size_t i = 0; line && i < sizeof(commands) / sizeof(*commands); i++) {
		if (strcmp(commands[i].name, name) != 0)
			continue;
		int64_t started = now_us();
		int result = commands[i].run(line, made, sizeof(made), &err);
		int64_t took = now_us() - started;
		if (result < 0)
			printf("error: %s: %s\n", name, err.message);
		else
			printf("%" PRId64 "%s%s\n", took, *made ? " " : "", made);
		return;
	}
	printf("error: '%s' is not a command with its arguments\n", name);
}

int main(void)
{
	struct husk_error err = { 0 };
	char *line = NULL;
	size_t room = 0;
	ssize_t size;

	if (husk_open(NULL, &husk, &err) < 0) {
		fprintf(stderr, "driver: %s\n", err.message);
		return 1;
	}
	while ((size = getline(&line, &room, stdin)) > 0) {
		line[strcspn(line, "\n")] = '\0';
		obey(line);
		if (fflush(stdout) != 0)
			break;
	}
	free(line);
	husk_close(husk);
	return 0;
}
