/*
 * The libhusk side of the benchmarks: reads one command per line on stdin, does it, and answers with one line: the
 * microseconds it took, then what it made. bench/run starts one of these and interleaves its commands with those of the
 * peer, so that both meet the same machine. Only what a command's name says is inside the clock.
 *
 *   create TEMPLATE          a sandbox and `true` in it, to its end     -> us id
 *   leash TEMPLATE RULE N    the same under a policy of RULE and N names -> us id
 *   egress ID RULE N         another policy like that, from now on       -> us
 *   exec ID                  `true` in a sandbox that is there          -> us
 *   shell ID SECONDS LINE…   a shell line to its end, or a failure      -> us
 *   start ID LINE…           a shell line left running                  -> us
 *   fork ID N                N children, and `true` in each of them     -> us id…
 *   hibernate ID, kill ID                                               -> us
 *   wake ID                  awake, and `true` in it                    -> us
 *   put ID MIB, get ID       a file in, and out again                   -> us
 *
 * A failure is a line that begins with "error:"; the next command is read all the same.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

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

/* ---- the commands: each fills `made` with what it made, if anything ---- */

static int do_create(char *words, char *made, size_t size, struct husk_error *err)
{
	const struct husk_create_options options = { .template_name = words, .memory_bytes = UINT64_C(2) << 30 };
	struct husk_sandbox *sandbox = NULL;

	if (husk_create(husk, &options, &sandbox, err) < 0)
		return -1;
	snprintf(made, size, "%s", sandbox->id);
	husk_sandbox_free(sandbox);
	return answer(made, err);
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
	const struct husk_create_options options = { .template_name = template, .memory_bytes = UINT64_C(2) << 30,
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

static const struct command {
	const char *name;
	int (*run)(char *words, char *made, size_t size, struct husk_error *err);
} commands[] = {
	{ "create", do_create }, { "exec", do_exec }, { "shell", do_shell }, { "start", do_start },
	{ "fork", do_fork },     { "wake", do_wake }, { "kill", do_kill },   { "hibernate", do_hibernate },
	{ "put", do_put },       { "get", do_get },   { "leash", do_leash },  { "egress", do_egress },
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
