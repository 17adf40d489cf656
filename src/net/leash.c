/*
 * The supervisor's side of the leash: starts the process, gives it policies, reads its messages on a thread of its own,
 * and starts it again when it dies. leash_record.c keeps its reports.
 *
 * A failure here must leave the guest with less reach, never with more: without the process there is no socket in the
 * gateway namespace, and nothing gets out.
 *
 * Example: a guest with the policy {"mode":"allow","allow":["example.com"]} runs `curl https://example.com`.
 *
 *     guest      asks 10.201.0.1 for example.com            leash_dns.c: allowed, asked of the host's resolver, and noted
 *     guest      SYN to the address, port 443               the gateway's tproxy rule hands it to the leash (rules.c)
 *     leash      peeks at the TLS hello: "example.com"      leash_flow.c: the rule allows the name, the address is its own
 *     leash      connects, and carries bytes both ways      leash_relay.c; leash_report.c counts them
 *     supervisor gets the event and the counters            this file; leash_record.c keeps them
 *
 * `curl https://1.2.3.4` gets as far as the hello. No rule allows it, so the connection is refused, and the event names
 * the rule that would have allowed it.
 */
#include "net/leash.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "base/log.h"
#include "base/thread.h"
#include "jail/cgroup.h"
#include "net/leash_parcel.h"
#include "net/leash_record.h"
#include "net/resolvers.h"
#include "net/secrets.h"

#define READY_MS 15000
#define APPLY_MS 10000
#define FLUSH_MS 500
#define RETRY_MIN_MS 50
#define RETRY_MAX_MS 5000
#define STABLE_MS 60000 /* after this time a process that dies is restarted quickly again */
#define MESSAGE_MAX (1u << 20)
#define RESOLV_CONF "/etc/resolv.conf"
#define AUTHORITIES "/etc/ssl/certs/ca-certificates.crt"

struct leash {
	struct leash_spec spec;
	char *program;
	pthread_t listener;
	int wake; /* eventfd: wakes the listener */

	pthread_mutex_t lock; /* guards everything below */
	pthread_cond_t changed;
	bool stopping, ready;
	int control, pidfd; /* -1: no process */
	pid_t pid;
	int64_t started_ms;
	uint32_t restarts;
	unsigned generation;    /* how many processes were started */
	char *policy, *secrets; /* in force, for the next process; NULL: none yet */
	uint64_t serial, applied, flush_serial, flushed;
	char failure[512]; /* of the last policy; "": none */
	struct leash_record *record;

	struct parcel parcel; /* a request to be held, as it arrives; of the listener */

	pthread_mutex_t setting; /* one leash_set at a time; taken before `lock` */
};

/* ---- the process ---- */

static int enter_cgroup(void *data)
{
	return cgroup_enter(data) < 0 ? 126 : 0;
}

static int launch(struct leash *leash, int control, struct husk_error *err)
{
	char resolver[INET_ADDRSTRLEN], uid[16];
	const char *authorities = getenv("SSL_CERT_FILE");
	const char *const argv[] = { leash->program,
				     "leash",
				     "--resolver",
				     inet_ntop(AF_INET, &leash->spec.resolver, resolver, sizeof(resolver)),
				     "--uid",
				     uid,
				     "--authorities",
				     authorities && *authorities ? authorities : AUTHORITIES,
				     NULL };
	cleanup_strv char **environment = log_environment();
	const struct command command = { .argv = argv,
					 .environment = (const char *const *)environment,
					 .stdin_fd = control,
					 .stdout_fd = leash->spec.gateway,
					 .stderr_fd = STDERR_FILENO,
					 .before_exec = leash->spec.cgroup ? enter_cgroup : NULL,
					 .data = leash->spec.cgroup };

	if (!environment)
		return husk_fail_memory(err);
	snprintf(uid, sizeof(uid), "%u", leash->spec.uid);
	return command_start(&command, err);
}

/* Starts a process; lock held. */
static int start_process(struct leash *leash, struct husk_error *err)
{
	const int room = MESSAGE_MAX;
	int ends[2];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0)
		return husk_fail_errno(err, "cannot make a socket for the leash");
	cleanup_close int ours = ends[0], theirs = ends[1];
	/* A policy of maximum size must fit one packet. */
	if (setsockopt(ours, SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof(room)) < 0)
		return husk_fail_errno(err, "cannot make room for the leash's policy");
	pid_t pid = launch(leash, theirs, err);
	if (pid < 0)
		return husk_wrap(err, "cannot start the leash");
	leash->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	if (leash->pidfd < 0) {
		husk_fail_errno(err, "cannot watch the leash");
		kill(pid, SIGKILL); /* not reaped yet, so the pid is still its own */
		waitpid(pid, NULL, 0);
		return -1;
	}
	leash->pid = pid;
	leash->control = steal_fd(&ours);
	leash->ready = false;
	leash->started_ms = time_monotonic_ms();
	leash->generation++;
	return 0;
}

/* Makes sure that the process has ended; lock held. */
static void end_process(struct leash *leash)
{
	siginfo_t ended;

	fd_close(&leash->control);
	leash->ready = false;
	if (leash->pidfd >= 0) {
		syscall(SYS_pidfd_send_signal, leash->pidfd, SIGKILL, NULL, 0);
		while (waitid(P_PIDFD, (id_t)leash->pidfd, &ended, WEXITED) < 0 && errno == EINTR)
			;
	}
	fd_close(&leash->pidfd);
	leash->pid = 0;
}

/* ---- messages to the process ---- */

static char *policy_message(struct leash *leash, uint64_t serial, const char *policy, const char *secrets,
			    struct husk_error *err)
{
	json_t *resolvers = resolvers_list(RESOLV_CONF, err);

	if (!resolvers)
		return NULL;
	json_t *root = json_pack("{s:I,s:o?,s:o,s:I,s:o*}", "serial", (json_int_t)serial, "policy",
				 json_loads(policy, 0, NULL), "resolvers", resolvers, "used",
				 (json_int_t)leash_record_bytes(leash->record), "secrets",
				 secrets ? json_loads(secrets, 0, NULL) : NULL);
	char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;

	json_decref(root);
	if (!text)
		husk_fail_memory(err);
	return text;
}

/* Lock held. -1: there is no process to receive it. */
static int tell(struct leash *leash, const char *text)
{
	if (leash->control < 0)
		return -1;
	return send(leash->control, text, strlen(text), MSG_NOSIGNAL | MSG_DONTWAIT) < 0 ? -1 : 0;
}

/* Gives a new process the settings of the previous one; lock held. */
static void tell_again(struct leash *leash)
{
	struct husk_error err = { 0 };

	if (!leash->policy)
		return;
	char *text = policy_message(leash, leash->serial, leash->policy, leash->secrets, &err);
	if (!text || tell(leash, text) < 0)
		log_line(LOG_ERROR, "the new leash has no policy and lets nothing through: %s", err.message);
	str_wipe(text);
}

/* ---- messages from the process ---- */

static struct leash_event event_view(json_t *event, json_int_t count)
{
	return (struct leash_event){
		.at_ms = json_integer_value(json_object_get(event, "at_ms")),
		.verdict = json_string_value(json_object_get(event, "verdict")),
		.kind = json_string_value(json_object_get(event, "kind")),
		.host = json_string_value(json_object_get(event, "host")),
		.port = (uint16_t)json_integer_value(json_object_get(event, "port")),
		.reason = json_string_value(json_object_get(event, "reason")),
		.rule = json_string_value(json_object_get(event, "rule")),
		.count = count > 0 ? (uint64_t)count : 1,
	};
}

static void take_event(struct leash *leash, json_t *event, json_int_t count)
{
	struct leash_event view = event_view(event, count);

	pthread_mutex_lock(&leash->lock);
	leash_record_event(leash->record, event, count);
	pthread_mutex_unlock(&leash->lock);
	/* Without the lock: it may write to a database. */
	if (leash->spec.on_event && view.verdict && view.kind && view.host && view.reason && view.rule)
		leash->spec.on_event(leash->spec.data, &view);
}

/* What the process says of itself. */
static void take_state(struct leash *leash, const json_t *root)
{
	json_t *value;

	pthread_mutex_lock(&leash->lock);
	if ((value = json_object_get(root, "traffic"))) {
		leash_record_traffic(leash->record, value);
	} else if (json_object_get(root, "ready")) {
		leash->ready = true;
		tell_again(leash);
	} else if ((value = json_object_get(root, "applied"))) {
		leash->applied = (uint64_t)json_integer_value(value);
	} else if ((value = json_object_get(root, "flushed"))) {
		leash->flushed = (uint64_t)json_integer_value(value);
	} else if ((value = json_object_get(root, "failed"))) {
		const char *why = json_string_value(value);

		snprintf(leash->failure, sizeof(leash->failure), "%s", why && *why ? why : "no reason given");
	}
	pthread_cond_broadcast(&leash->changed);
	pthread_mutex_unlock(&leash->lock);
}

/* ---- requests that are held, and sent later ---- */

static void answer_hold(struct leash *leash, uint64_t key, const struct leash_held *held)
{
	json_t *root = held->effect
			       ? json_pack("{s:I,s:I}", "held", (json_int_t)key, "effect", (json_int_t)held->effect)
			       : json_pack("{s:I,s:s,s:s}", "held", (json_int_t)key, "status", held->status, "reason",
					   held->reason);
	cleanup_free char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;

	json_decref(root);
	pthread_mutex_lock(&leash->lock);
	if (text)
		tell(leash, text);
	pthread_mutex_unlock(&leash->lock);
}

static void begin_hold(struct leash *leash, json_t *head)
{
	struct leash_held refused = { .status = "503 Service Unavailable",
				      .reason = "the request could not be taken; try again" };

	if (!leash->spec.on_hold || parcel_begin(&leash->parcel, head) < 0)
		answer_hold(leash, (uint64_t)json_integer_value(json_object_get(head, "key")), &refused);
}

static void take_part(struct leash *leash, const char *packet, size_t size)
{
	struct parcel *whole = &leash->parcel;
	struct leash_held held = { 0 };

	if (!parcel_part(whole, packet, size))
		return;
	leash->spec.on_hold(leash->spec.data, whole->head, whole->data.data, whole->data.size, &held);
	answer_hold(leash, whole->key, &held);
	parcel_drop(whole);
}

static void take_sent(struct leash *leash, const json_t *root)
{
	const char *failed = json_string_value(json_object_get(root, "failed"));
	json_int_t status = json_integer_value(json_object_get(root, "status"));
	struct leash_sent sent = { .key = (uint64_t)json_integer_value(json_object_get(root, "sent")),
				   .status = status >= 100 && status <= 999 ? (int)status : 0,
				   .maybe = !json_is_false(json_object_get(root, "maybe")) };

	snprintf(sent.reason, sizeof(sent.reason), "%s", failed ? failed : "");
	if (sent.key && leash->spec.on_sent)
		leash->spec.on_sent(leash->spec.data, &sent);
}

/* The process is gone, and with it what it was doing. */
static void forget(struct leash *leash)
{
	const struct leash_sent cut = { .maybe = true, .reason = "the leash died while it was being sent" };

	parcel_drop(&leash->parcel);
	if (leash->spec.on_sent)
		leash->spec.on_sent(leash->spec.data, &cut);
}

int leash_deliver(struct leash *leash, uint64_t key, json_t *head, const char *request, size_t size,
		  struct husk_error *err)
{
	pthread_mutex_lock(&leash->lock);
	cleanup_close int control = leash->ready ? fcntl(leash->control, F_DUPFD_CLOEXEC, 3) : -1;
	pthread_mutex_unlock(&leash->lock);
	/* A parcel that is cut short is never sent. */
	if (control < 0 || parcel_send(control, "send", head, key, request, size) < 0)
		return husk_fail(err, HUSK_UNAVAILABLE, "the leash does not take the request; try again");
	return 0;
}

static void take_message(struct leash *leash, const char *text, size_t size)
{
	if (text[0] == '\0') {
		take_part(leash, text, size);
		return;
	}
	json_t *root = json_loadb(text, size, 0, NULL);
	json_t *event = json_object_get(root, "event"), *value;

	if (json_is_object(event)) {
		take_event(leash, event, json_integer_value(json_object_get(root, "count")));
	} else if ((value = json_object_get(root, "request"))) {
		pthread_mutex_lock(&leash->lock);
		leash_record_request(leash->record, value, json_integer_value(json_object_get(root, "missed")));
		pthread_mutex_unlock(&leash->lock);
	} else if ((value = json_object_get(root, "hold"))) {
		begin_hold(leash, value);
	} else if (json_object_get(root, "sent")) {
		take_sent(leash, root);
	} else {
		take_state(leash, root);
	}
	json_decref(root);
}

/* ---- the listener ---- */

/* Waits, but returns early if the leash is stopped. */
static void rest(struct leash *leash, int64_t ms)
{
	struct pollfd wait = { .fd = leash->wake, .events = POLLIN };

	poll(&wait, 1, (int)ms);
}

/* The process has ended: starts another one, after a pause that grows while processes keep dying. */
static void restart(struct leash *leash, int64_t *pause_ms)
{
	struct husk_error err = { 0 };

	pthread_mutex_lock(&leash->lock);
	bool lived = time_monotonic_ms() - leash->started_ms >= STABLE_MS;
	end_process(leash);
	pthread_cond_broadcast(&leash->changed);
	bool stopping = leash->stopping;
	pthread_mutex_unlock(&leash->lock);
	forget(leash);
	if (stopping)
		return;
	*pause_ms = lived ? RETRY_MIN_MS : MIN(*pause_ms * 2, RETRY_MAX_MS);
	log_line(LOG_WARN, "the leash has died; nothing gets out until another one stands");
	rest(leash, *pause_ms);
	pthread_mutex_lock(&leash->lock);
	leash->restarts++;
	if (!leash->stopping && start_process(leash, &err) < 0)
		log_line(LOG_ERROR, "%s", err.message);
	pthread_mutex_unlock(&leash->lock);
}

static void *listen_to_process(void *argument)
{
	struct leash *leash = argument;
	char *text = malloc(MESSAGE_MAX);
	int64_t pause_ms = RETRY_MIN_MS / 2;

	for (;;) {
		pthread_mutex_lock(&leash->lock);
		int control = leash->control;
		bool stopping = leash->stopping || !text;
		pthread_mutex_unlock(&leash->lock);
		if (stopping)
			break;
		struct pollfd watched[] = { { .fd = control, .events = POLLIN },
					    { .fd = leash->wake, .events = POLLIN } };

		if (control >= 0 && poll(watched, ARRAY_SIZE(watched), -1) < 0)
			continue;
		if (watched[1].revents)
			continue;
		/* Only this thread closes the descriptor, so it is still the one that was polled. */
		ssize_t got = control < 0 ? 0 : recv(control, text, MESSAGE_MAX, MSG_DONTWAIT);
		if (got > 0)
			take_message(leash, text, (size_t)got);
		else if (got == 0 || (errno != EAGAIN && errno != EINTR))
			restart(leash, &pause_ms);
	}
	free(text);
	return NULL;
}

/* ---- the calls ---- */

static void leash_free(struct leash *leash)
{
	end_process(leash);
	parcel_drop(&leash->parcel);
	fd_close(&leash->spec.gateway);
	fd_close(&leash->wake);
	leash_record_free(leash->record);
	free(leash->program);
	free(leash->policy);
	str_wipe(leash->secrets);
	pthread_mutex_destroy(&leash->lock);
	pthread_mutex_destroy(&leash->setting);
	pthread_cond_destroy(&leash->changed);
	free(leash);
}

static struct leash *leash_new(const struct leash_spec *spec, const char *saved)
{
	struct leash *leash = calloc(1, sizeof(*leash));

	if (!leash)
		return NULL;
	leash->spec = *spec;
	leash->spec.gateway = fcntl(spec->gateway, F_DUPFD_CLOEXEC, 3);
	leash->program = strdup(spec->program);
	leash->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	leash->control = leash->pidfd = -1;
	leash->record = leash_record_new(saved);
	pthread_mutex_init(&leash->lock, NULL);
	pthread_mutex_init(&leash->setting, NULL);
	cond_open(&leash->changed);
	if (leash->program && leash->wake >= 0 && leash->record && leash->spec.gateway >= 0)
		return leash;
	leash_free(leash);
	return NULL;
}

int leash_start(const struct leash_spec *spec, const char *saved, struct leash **out, struct husk_error *err)
{
	struct leash *leash = leash_new(spec, saved);

	if (!leash)
		return husk_fail_errno(err, "cannot set up the leash");
	pthread_mutex_lock(&leash->lock);
	int result = start_process(leash, err);
	pthread_mutex_unlock(&leash->lock);
	if (result == 0 && pthread_create(&leash->listener, NULL, listen_to_process, leash) != 0)
		result = husk_fail(err, HUSK_INTERNAL, "cannot start the leash's thread");
	if (result < 0) {
		leash_free(leash);
		return -1;
	}
	*out = leash;
	return 0;
}

void leash_stop(struct leash *leash)
{
	uint64_t one = 1;

	if (!leash)
		return;
	pthread_mutex_lock(&leash->lock);
	leash->stopping = true;
	pthread_cond_broadcast(&leash->changed);
	pthread_mutex_unlock(&leash->lock);
	write_full(leash->wake, &one, sizeof(one));
	pthread_join(leash->listener, NULL);
	leash_free(leash);
}

/* Waits for a change; lock held. False: timeout. */
static bool wait_change(struct leash *leash, int64_t end_ms)
{
	return !leash->stopping && cond_wait_until(&leash->changed, &leash->lock, end_ms) != ETIMEDOUT;
}

/* Lock held. If a process dies during its start, the listener starts another. */
static int await_ready(struct leash *leash, struct husk_error *err)
{
	int64_t end = time_monotonic_ms() + READY_MS;

	while (!leash->ready) {
		/* A failure that the process reported will happen again. */
		if (*leash->failure)
			return husk_fail(err, HUSK_UNAVAILABLE, "the leash does not come up: %s", leash->failure);
		if (!wait_change(leash, end))
			return husk_fail(err, HUSK_TIMEOUT, "the leash did not come up within %d s", READY_MS / 1000);
	}
	return 0;
}

/* Sends the policy and waits for the answer; lock held. 1: the process died. */
static int apply(struct leash *leash, const char *policy, const char *secrets, struct husk_error *err)
{
	int64_t end = time_monotonic_ms() + APPLY_MS;
	uint64_t serial = ++leash->serial;
	unsigned generation = leash->generation;
	char *text = policy_message(leash, serial, policy, secrets, err);

	if (!text)
		return -1;
	leash->failure[0] = '\0';
	int told = tell(leash, text);
	str_wipe(text);
	if (told < 0)
		return 1;
	while (leash->applied != serial) {
		if (*leash->failure) {
			husk_fail(err, HUSK_INVALID, "the leash refuses the policy: %s", leash->failure);
			leash->failure[0] = '\0';
			return -1;
		}
		if (leash->generation != generation || leash->control < 0)
			return 1;
		if (!wait_change(leash, end))
			return husk_fail(err, HUSK_TIMEOUT, "the leash did not take the policy within %d s",
					 APPLY_MS / 1000);
	}
	return 0;
}

static int set_locked(struct leash *leash, const char *policy, const char *secrets, struct husk_error *err)
{
	int result = 1;

	for (int attempt = 0; attempt < 3 && result == 1; attempt++) {
		if (await_ready(leash, err) < 0)
			return -1;
		result = apply(leash, policy, secrets, err);
	}
	if (result == 1)
		return husk_fail(err, HUSK_UNAVAILABLE, "the leash dies over the policy");
	return result;
}

int leash_set(struct leash *leash, const struct policy *policy, const char *secrets, struct husk_error *err)
{
	char *text = policy_text(policy), *values = secrets ? strdup(secrets) : NULL;

	if (!text || (secrets && !values)) {
		free(text);
		str_wipe(values);
		return husk_fail_memory(err);
	}
	pthread_mutex_lock(&leash->setting);
	pthread_mutex_lock(&leash->lock);
	int result = set_locked(leash, text, values, err);
	if (result == 0) {
		char *old_text = leash->policy, *old_values = leash->secrets;

		leash->policy = text;
		leash->secrets = values;
		text = old_text;
		values = old_values;
	}
	pthread_mutex_unlock(&leash->lock);
	pthread_mutex_unlock(&leash->setting);
	free(text);
	str_wipe(values);
	return result;
}

/* Asks the process to report its counters; lock held. The wait for the answer is short. */
static void flush(struct leash *leash)
{
	int64_t end = time_monotonic_ms() + FLUSH_MS;
	uint64_t serial = ++leash->flush_serial;
	cleanup_free char *text = str_format("{\"flush\":%llu}", (unsigned long long)serial);

	if (!text || !leash->ready || tell(leash, text) < 0)
		return;
	while (leash->flushed < serial && leash->ready)
		if (!wait_change(leash, end))
			return;
}

void leash_totals(struct leash *leash, struct leash_totals *out)
{
	*out = (struct leash_totals){ 0 };
	pthread_mutex_lock(&leash->lock);
	flush(leash);
	leash_record_totals(leash->record, out);
	out->restarts = leash->restarts;
	out->pid = leash->pid;
	pthread_mutex_unlock(&leash->lock);
}

char *leash_traffic(struct leash *leash)
{
	pthread_mutex_lock(&leash->lock);
	flush(leash);
	json_t *root = leash_record_traffic_json(leash->record);
	if (root)
		json_object_set_new(root, "restarts", json_integer(leash->restarts));
	pthread_mutex_unlock(&leash->lock);
	char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;
	json_decref(root);
	return text;
}

char *leash_log(struct leash *leash, size_t limit)
{
	pthread_mutex_lock(&leash->lock);
	flush(leash);
	char *text = leash_record_log(leash->record, limit);
	pthread_mutex_unlock(&leash->lock);
	return text;
}

char *leash_requests(struct leash *leash)
{
	pthread_mutex_lock(&leash->lock);
	flush(leash);
	json_t *root = leash_record_requests_json(leash->record);
	pthread_mutex_unlock(&leash->lock);
	char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;
	json_decref(root);
	return text;
}

char *leash_save(struct leash *leash)
{
	pthread_mutex_lock(&leash->lock);
	flush(leash);
	char *text = leash_record_text(leash->record);
	pthread_mutex_unlock(&leash->lock);
	return text;
}
