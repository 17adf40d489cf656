/*
 * `husk mcp`: the Model Context Protocol on stdin and stdout, one message per line, for an agent host that starts it.
 * src/mcp implements the protocol. This file has the lines, a thread for each long call, and the end: when the host
 * closes stdin or ends this process, the sandboxes made here are removed. If this process is killed, their TTL removes
 * them. Only messages may ever be written to stdout.
 */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>

#include "base/thread.h"
#include "cli/cli.h"
#include "cli/interrupt.h"
#include "mcp/mcp.h"

#define JOBS_MAX 64
#define LAST_ANSWERS_MS 1500 /* for running calls when stdin ends; hosts wait two seconds before they kill */
#define LAST_STEPS_MS 500    /* for cancelled calls to notice */
#define LAST_CALLS_MS 10000

struct mcp_arguments {
	struct create_arguments create;
	const char *sandbox;
	bool all;
};

static const struct option_spec mcp_options[] = {
	OPTION(0, "sandbox", OPTION_STRING, struct mcp_arguments, sandbox, "ID",
	       "use this sandbox, and do not remove it at the end"),
	OPTION(0, "all", OPTION_FLAG, struct mcp_arguments, all, NULL,
	       "allow every sandbox and snapshot of the instance, not only those made over MCP"),
	{ 0 },
};

struct stdio;

/* A running request: a call on its own thread, or a subscription, which needs no thread. */
struct job {
	struct stdio *stdio;
	struct job *next;
	json_t *document; /* a message, or a batch of them */
	struct mcp_message message;
	struct mcp_call call;
	int cancel_fd;
	bool threaded;
};

struct stdio {
	struct cli *cli;
	struct mcp_session session;
	pthread_mutex_t lock; /* guards stdout, the jobs and `broken` */
	pthread_cond_t done;
	struct job *jobs;
	size_t count;
	bool broken; /* the host does not read any more */
	pthread_mutex_t building;
	int over_fd; /* readable when everything has to stop */
	struct buf input;
	bool skipping; /* skipping the rest of a line that was too long */
};

/* ---- writing ---- */

/* Takes the message. */
static int say(struct stdio *stdio, json_t *message, struct husk_error *err)
{
	cleanup_json json_t *taken = message;
	cleanup_free char *text = message ? json_dumps(message, JSON_COMPACT) : NULL;
	cleanup_buf struct buf line = { 0 };

	if (!text || buf_append_string(&line, text) < 0 || buf_append_string(&line, "\n") < 0)
		return husk_fail_memory(err);
	pthread_mutex_lock(&stdio->lock);
	if (!stdio->broken)
		stdio->broken = write_full(STDOUT_FILENO, line.data, line.size) < 0;
	bool broken = stdio->broken;
	pthread_mutex_unlock(&stdio->lock);
	return broken ? husk_fail(err, HUSK_GONE, "the client no longer reads") : 0;
}

static void say_error(struct stdio *stdio, const json_t *id, enum mcp_error code, const char *text)
{
	say(stdio, mcp_error(id, code, text, NULL), NULL);
}

/* ---- callbacks for src/mcp ---- */

static int create(void *data, const struct husk_create_options *options, struct husk_sandbox **out,
		  struct husk_error *err)
{
	struct stdio *stdio = data;
	const char *template = options->template_name ? options->template_name : "base";
	int result = husk_create(stdio->cli->husk, options, out, err);

	if (result == 0 || err->code != HUSK_NOT_FOUND || options->snapshot)
		return result;
	pthread_mutex_lock(&stdio->building);
	int built = template_ensure(stdio->cli, template, options->isolation, err);
	pthread_mutex_unlock(&stdio->building);
	return built < 0 ? -1 : husk_create(stdio->cli->husk, options, out, err);
}

static int notify(void *data, json_t *message, struct husk_error *err)
{
	struct job *job = data;

	return say(job->stdio, message, err);
}

static int wait_for(void *data, int fd, int timeout_ms)
{
	struct job *job = data;
	struct pollfd fds[] = { { .fd = fd, .events = POLLIN },
				{ .fd = job->cancel_fd, .events = POLLIN },
				{ .fd = job->stdio->over_fd, .events = POLLIN } };
	int64_t deadline = time_monotonic_ms() + timeout_ms;

	for (;;) {
		int64_t left = timeout_ms < 0 ? -1 : MAX(deadline - time_monotonic_ms(), 0);
		int ready = poll(fds, ARRAY_SIZE(fds), (int)left);

		if (ready < 0 && errno == EINTR)
			continue;
		if (fds[2].revents) /* the end of this process ends its commands too */
			atomic_store(&job->call.cancelled, true);
		if (ready < 0 || fds[1].revents || fds[2].revents)
			return -1;
		return fds[0].revents ? 1 : 0;
	}
}

/* ---- jobs ---- */

static void job_free(struct job *job)
{
	fd_close(&job->cancel_fd);
	json_decref(job->document);
	free(job);
}

/* On success, takes ownership of the document. */
static struct job *job_new(struct stdio *stdio, json_t *document, const struct mcp_message *message)
{
	pthread_mutex_lock(&stdio->lock);
	struct job *job = stdio->count < JOBS_MAX ? calloc(1, sizeof(*job)) : NULL;
	pthread_mutex_unlock(&stdio->lock);
	if (!job)
		return NULL;
	job->stdio = stdio;
	job->cancel_fd = eventfd(0, EFD_CLOEXEC);
	job->call = (struct mcp_call){ .notify = notify, .wait = wait_for, .data = job };
	if (job->cancel_fd < 0) {
		job_free(job);
		return NULL;
	}
	job->document = document;
	if (message)
		job->message = *message;
	pthread_mutex_lock(&stdio->lock);
	job->next = stdio->jobs;
	stdio->jobs = job;
	stdio->count++;
	pthread_mutex_unlock(&stdio->lock);
	return job;
}

static void job_end(struct job *job)
{
	struct stdio *stdio = job->stdio;
	struct job **link = &stdio->jobs;

	pthread_mutex_lock(&stdio->lock);
	while (*link != job)
		link = &(*link)->next;
	*link = job->next;
	stdio->count--;
	job_free(job);
	pthread_cond_broadcast(&stdio->done);
	pthread_mutex_unlock(&stdio->lock);
}

/* Each request in turn; the answers together, as JSON-RPC requires. */
static json_t *answer_batch(struct job *job)
{
	cleanup_json json_t *answers = json_array();
	json_t *document;
	size_t i;

	json_array_foreach(job->document, i, document)
	{
		struct husk_error err = { 0 };
		struct mcp_message message;
		json_t *answer = NULL;

		if (mcp_message_read(document, &message, &err) < 0)
			answer = mcp_error(message.id, MCP_INVALID_REQUEST, err.message, NULL);
		else if (!message.version)
			answer = mcp_answer(&job->stdio->session, &job->call, &message);
		if (answer && json_array_append_new(answers, answer) < 0)
			return NULL;
	}
	return json_array_size(answers) ? steal_pointer(answers) : NULL;
}

static void *job_main(void *data)
{
	struct job *job = data;
	json_t *answer = json_is_array(job->document) ? answer_batch(job)
						      : mcp_answer(&job->stdio->session, &job->call, &job->message);

	if (answer)
		say(job->stdio, answer, NULL);
	job_end(job);
	return NULL;
}

static void job_start(struct stdio *stdio, json_t *document, const struct mcp_message *message)
{
	struct job *job = job_new(stdio, document, message);
	pthread_attr_t attributes;
	pthread_t thread;

	if (!job) {
		say_error(stdio, message ? message->id : NULL, MCP_INTERNAL_ERROR,
			  "too many requests are under way; wait for one");
		json_decref(document);
		return;
	}
	job->threaded = true;
	bool ready = pthread_attr_init(&attributes) == 0;
	if (ready)
		pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	if (ready && pthread_create(&thread, &attributes, job_main, job) == 0) {
		pthread_attr_destroy(&attributes);
		return;
	}
	say_error(stdio, message ? message->id : NULL, MCP_INTERNAL_ERROR,
		  "no thread left for this request; try again later");
	job_end(job);
}

/* A cancelled subscription is over at once; a call is notified and ends by itself. */
static void cancel(struct stdio *stdio, const json_t *id)
{
	struct job *listening = NULL;

	pthread_mutex_lock(&stdio->lock);
	for (struct job *job = stdio->jobs; job && id; job = job->next) {
		if (!job->message.id || !json_equal(job->message.id, id))
			continue;
		atomic_store(&job->call.cancelled, true);
		eventfd_write(job->cancel_fd, 1);
		if (!job->threaded)
			listening = job;
	}
	pthread_mutex_unlock(&stdio->lock);
	if (listening)
		job_end(listening);
}

/* ---- reading ---- */

/* Takes the document. */
static void take_listen(struct stdio *stdio, json_t *document, const struct mcp_message *message)
{
	json_t *refusal = mcp_refuse(message);

	if (!refusal && !job_new(stdio, document, message))
		refusal = mcp_error(message->id, MCP_INTERNAL_ERROR, "too many requests are under way; end one", NULL);
	say(stdio, refusal ? refusal : mcp_listen_begin(message), NULL);
	if (refusal)
		json_decref(document);
}

/* Takes the document. */
static void take_message(struct stdio *stdio, json_t *document)
{
	struct husk_error err = { 0 };
	struct mcp_message message;

	if (json_is_array(document) && json_array_size(document) > 0 && json_array_size(document) <= MCP_BATCH_MAX) {
		job_start(stdio, document, NULL);
		return;
	}
	cleanup_json json_t *taken = document;
	if (mcp_message_read(document, &message, &err) < 0) {
		say_error(stdio, message.id, MCP_INVALID_REQUEST, err.message);
	} else if (mcp_takes_long(&message)) {
		job_start(stdio, steal_pointer(taken), &message);
	} else if (mcp_is_listen(&message)) {
		take_listen(stdio, steal_pointer(taken), &message);
	} else if (message.kind == MCP_REQUEST) {
		say(stdio, mcp_answer(&stdio->session, NULL, &message), NULL);
	} else if (message.kind == MCP_NOTIFICATION && str_equal(message.method, "notifications/cancelled")) {
		cancel(stdio, json_object_get(message.params, "requestId"));
	}
}

static void take_line(struct stdio *stdio, const char *line, size_t size)
{
	struct husk_error err = { 0 };
	enum mcp_error code;

	while (size && (line[size - 1] == '\r' || line[size - 1] == ' '))
		size--;
	if (!size)
		return;
	json_t *document = mcp_parse(line, size, &code, &err);
	if (document)
		take_message(stdio, document);
	else
		say_error(stdio, NULL, code, err.message);
}

/* Handles complete lines. A line without an end is not kept for ever. */
static void take_lines(struct stdio *stdio, size_t fresh)
{
	struct buf *input = &stdio->input;
	size_t from = 0, look = input->size - fresh;
	char *end;

	while (look < input->size && (end = memchr(input->data + look, '\n', input->size - look))) {
		if (!stdio->skipping)
			take_line(stdio, input->data + from, (size_t)(end - input->data) - from);
		stdio->skipping = false;
		look = from = (size_t)(end - input->data) + 1;
	}
	buf_consume(input, from);
	if (!stdio->skipping && input->size > MCP_MESSAGE_MAX) {
		say_error(stdio, NULL, MCP_INVALID_REQUEST, "the message is larger than 16 MiB");
		stdio->skipping = true;
	}
	if (stdio->skipping)
		input->size = 0;
}

/* 1: more input may come; 0: the host has closed stdin; -1: it cannot be read. */
static int read_some(struct stdio *stdio, struct husk_error *err)
{
	const size_t piece = 65536;

	if (buf_reserve(&stdio->input, piece) < 0)
		return husk_fail_memory(err);
	ssize_t size = read(STDIN_FILENO, stdio->input.data + stdio->input.size, piece);
	if (size < 0 && (errno == EINTR || errno == EAGAIN))
		return 1;
	if (size < 0)
		return husk_fail_errno(err, "cannot read from the client");
	stdio->input.size += (size_t)size;
	take_lines(stdio, (size_t)size);
	if (size == 0 && stdio->input.size && !stdio->skipping) /* a last line without a newline */
		take_line(stdio, stdio->input.data, stdio->input.size);
	return size > 0;
}

/* Runs until stdin ends, a signal arrives, or the host stops reading. */
static int serve(struct stdio *stdio, struct husk_error *err)
{
	struct pollfd fds[] = { { .fd = STDIN_FILENO, .events = POLLIN }, { .fd = interrupt_fd(), .events = POLLIN } };
	int renew_ms = (int)MIN(stdio->session.defaults.ttl_seconds * 250, 600000);
	int64_t renew_at = time_monotonic_ms() + renew_ms;

	for (;;) {
		int ready = poll(fds, ARRAY_SIZE(fds), (int)MAX(renew_at - time_monotonic_ms(), 0));
		if (ready < 0 && errno != EINTR)
			return husk_fail_errno(err, "cannot wait for the client");
		if (time_monotonic_ms() >= renew_at) {
			mcp_session_renew(&stdio->session);
			renew_at = time_monotonic_ms() + renew_ms;
		}
		if (ready > 0 && fds[1].revents)
			return 0;
		if (ready <= 0 || !fds[0].revents)
			continue;
		int more = read_some(stdio, err);
		pthread_mutex_lock(&stdio->lock);
		bool broken = stdio->broken;
		pthread_mutex_unlock(&stdio->lock);
		if (more <= 0 || broken)
			return broken ? 0 : more;
	}
}

/* ---- the end ---- */

static bool only_listening(const struct stdio *stdio)
{
	for (const struct job *job = stdio->jobs; job; job = job->next)
		if (job->threaded)
			return false;
	return true;
}

/* Waits for running calls, at most this long. */
static void drain(struct stdio *stdio, int64_t ms)
{
	int64_t until = time_monotonic_ms() + ms;

	pthread_mutex_lock(&stdio->lock);
	while (!only_listening(stdio) && cond_wait_until(&stdio->done, &stdio->lock, until) == 0)
		;
	pthread_mutex_unlock(&stdio->lock);
}

/* The helper programs that one thread waits for run in their own process groups. */
static void end_children_of(const char *thread)
{
	char path[64], text[4096];

	snprintf(path, sizeof(path), "/proc/self/task/%.20s/children", thread);
	cleanup_close int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t size = fd < 0 ? -1 : read_full(fd, text, sizeof(text) - 1);
	text[MAX(size, 0)] = '\0';
	for (char *rest = text, *word; (word = strsep(&rest, " "));) {
		int64_t pid;
		if (str_to_int64(word, 2, INT32_MAX, &pid) == 0 && kill(-(pid_t)pid, SIGTERM) < 0)
			kill((pid_t)pid, SIGTERM);
	}
}

/* The build of a template takes minutes and cannot be cancelled: without its helper programs it fails, and cleans up
 * after itself. */
static void end_builds(struct stdio *stdio)
{
	pthread_mutex_lock(&stdio->lock);
	bool busy = !only_listening(stdio);
	pthread_mutex_unlock(&stdio->lock);
	cleanup_dir DIR *threads = busy ? opendir("/proc/self/task") : NULL;
	for (struct dirent *entry; threads && (entry = readdir(threads));)
		if (entry->d_name[0] != '.')
			end_children_of(entry->d_name);
}

static void end_listening(struct stdio *stdio)
{
	for (;;) {
		pthread_mutex_lock(&stdio->lock);
		struct job *job = stdio->jobs;
		while (job && job->threaded)
			job = job->next;
		pthread_mutex_unlock(&stdio->lock);
		if (!job)
			return;
		say(stdio, mcp_listen_end(&job->message), NULL);
		job_end(job); /* subscriptions do not end by themselves */
	}
}

static int finish(struct stdio *stdio, struct husk_error *err)
{
	drain(stdio, LAST_ANSWERS_MS);
	eventfd_write(stdio->over_fd, 1);
	drain(stdio, LAST_STEPS_MS);
	end_builds(stdio);
	drain(stdio, LAST_CALLS_MS);
	end_listening(stdio);
	return mcp_session_end(&stdio->session, err) < 0 ? -1 : 0;
}

static int setup(struct stdio *stdio, char *id, size_t size, struct husk_error *err)
{
	if (size < 26 || random_id("m", 24, id) < 0)
		return husk_fail_errno(err, "no random bytes for a session");
	stdio->over_fd = eventfd(0, EFD_CLOEXEC);
	if (stdio->over_fd < 0)
		return husk_fail_errno(err, "eventfd");
	if (pthread_mutex_init(&stdio->lock, NULL) || pthread_mutex_init(&stdio->building, NULL))
		return husk_fail(err, HUSK_INTERNAL, "cannot make a lock");
	cond_open(&stdio->done);
	return 0;
}

static int mcp_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	const struct mcp_arguments *arguments = data;
	const char *fixed = arguments->sandbox ? arguments->sandbox : getenv("HUSK_MCP_SANDBOX");
	cleanup_sandbox struct husk_sandbox *sandbox = NULL;
	char id[32];
	/* Threads may still use these when the process exits: they are never freed. */
	static struct egress_given egress;
	static struct stdio stdio;

	(void)argc, (void)argv;
	if (fixed && husk_inspect(cli->husk, fixed, &sandbox, err) < 0)
		return -1;
	stdio.cli = cli;
	stdio.session = (struct mcp_session){ .husk = cli->husk,
					      .id = id,
					      .fixed = sandbox ? sandbox->id : NULL,
					      .everything = arguments->all,
					      .create = create,
					      .data = &stdio };
	if (create_fill(&arguments->create, &egress, &stdio.session.defaults, err) < 0 ||
	    mcp_session_defaults(&stdio.session.defaults, err) < 0 || setup(&stdio, id, sizeof(id), err) < 0 ||
	    interrupt_forward(true, err) < 0)
		return -1;
	if (isatty(STDIN_FILENO))
		output_note("this is for an agent's host to start: husk mcp install claude (Ctrl-C ends it)");
	int result = serve(&stdio, err);
	int end = finish(&stdio, result < 0 ? NULL : err);
	pthread_mutex_lock(&stdio.lock);
	size_t left = stdio.count;
	pthread_mutex_unlock(&stdio.lock);
	if (left) /* a call that could not be stopped still uses what main would close */
		_exit(result < 0 || end < 0 ? EXIT_FAILED : 0);
	buf_free(&stdio.input);
	egress_given_free(&egress);
	return result < 0 || end < 0 ? -1 : 0;
}

const struct cli_command cli_mcp = {
	.name = "mcp",
	.operands = "",
	.summary = "Serve an agent over the Model Context Protocol on stdin and stdout",
	.details = "The host of an agent starts this command: husk mcp install HOST adds it to the configuration of "
		   "the host, husk mcp\n"
		   "uninstall HOST removes it. The first call that needs a sandbox creates one; it is removed when the "
		   "host exits.\n"
		   "The options apply to the sandboxes that are created, and so do HUSK_MCP_TEMPLATE, _SNAPSHOT, _TTL, "
		   "_IDLE, _MEMORY,\n"
		   "_CPUS and _SANDBOX in the environment. More: docs/mcp.md.\n",
	.groups = { { mcp_options, 0 },
		    { source_options, offsetof(struct mcp_arguments, create) },
		    { limit_options, offsetof(struct mcp_arguments, create) },
		    { egress_options, offsetof(struct mcp_arguments, create.egress) } },
	.arguments_size = sizeof(struct mcp_arguments),
	.run = mcp_run,
};
