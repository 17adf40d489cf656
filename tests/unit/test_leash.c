/*
 * The supervisor's side of the leash, with the real process behind a real gateway namespace: start, policies, a process
 * that is killed, the end. And the parts that need no process: what is kept of reports, where resolvers are read.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>

#include "net/gateway.h"
#include "net/leash.h"
#include "net/leash_parcel.h"
#include "net/leash_record.h"
#include "net/leash_web.h"
#include "net/resolvers.h"
#include "net/secrets.h"
#include "scratch.h"

/* ---- reports ---- */

static json_t *event(const char *host)
{
	return json_pack("{s:I,s:s,s:s,s:s,s:i,s:s,s:s}", "at_ms", (json_int_t)1, "verdict", "denied", "kind", "dns",
			 "host", host, "port", 0, "reason", "no", "rule", "");
}

static void keeps_the_newest_events(void **state)
{
	struct leash_record *record = leash_record_new(NULL);
	char host[32];

	(void)state;
	for (int i = 0; i < LEASH_LOG_MAX + 10; i++) {
		snprintf(host, sizeof(host), "n%d.io", i);
		json_t *one = event(host);

		leash_record_event(record, one, 1);
		json_decref(one);
	}
	json_t *odd = json_pack("{s:s}", "verdict", "denied");
	leash_record_event(record, odd, 1);
	json_decref(odd);
	cleanup_free char *all = leash_record_log(record, 0), *last = leash_record_log(record, 1);
	assert_null(strstr(all, "\"n9.io\""));
	assert_non_null(strstr(all, "\"n10.io\""));
	assert_null(strstr(last, "\"n1008.io\""));
	assert_non_null(strstr(last, "\"n1009.io\""));
	leash_record_free(record);
}

/* ---- parcels ---- */

static bool receive(int fd, struct parcel *parcel)
{
	char packet[65536];
	ssize_t got = recv(fd, packet, sizeof(packet), MSG_DONTWAIT);

	assert_true(got > 0);
	if (packet[0] == '\0')
		return parcel_part(parcel, packet, (size_t)got);
	json_t *root = json_loadb(packet, (size_t)got, 0, NULL);
	assert_int_equal(parcel_begin(parcel, json_object_get(root, "hold")), 0);
	json_decref(root);
	return false;
}

static void carries_parcels(void **state)
{
	struct parcel parcel = { 0 };
	cleanup_free char *data = malloc(100000);
	json_t *head = json_pack("{s:s}", "method", "POST");
	int ends[2];

	(void)state;
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
	memset(data, 'x', 100000);
	assert_int_equal(parcel_send(ends[0], "hold", head, 7, data, 100000), 0);
	while (!receive(ends[1], &parcel))
		;
	assert_int_equal(parcel.key, 7);
	assert_int_equal(parcel.data.size, 100000);
	assert_string_equal(json_string_value(json_object_get(parcel.head, "method")), "POST");
	parcel_drop(&parcel);
	/* What a hostile sender may say: no size, too much, more than announced, an unknown key. */
	json_object_set_new(head, "key", json_integer(8));
	json_object_set_new(head, "size", json_integer(0));
	assert_int_equal(parcel_begin(&parcel, head), -1);
	json_object_set_new(head, "size", json_integer(PARCEL_MAX + 1));
	assert_int_equal(parcel_begin(&parcel, head), -1);
	json_object_set_new(head, "size", json_integer(1));
	assert_int_equal(parcel_begin(&parcel, head), 0);
	assert_false(parcel_part(&parcel, "\0\x08\0\0\0\0\0\0\0ab", 11));
	assert_false(parcel_part(&parcel, "\0\x08\0\0\0\0\0\0\0a", 10)); /* it was dropped */
	assert_false(parcel_part(&parcel, "\0\x08", 2));
	/* Parcels that were cut short do not add up: the next one takes their place. */
	for (int i = 1; i <= 20; i++) {
		json_object_set_new(head, "key", json_integer(100 + i));
		assert_int_equal(parcel_begin(&parcel, head), 0);
	}
	assert_false(parcel_part(&parcel, "\0\x70\0\0\0\0\0\0\0a", 10));
	assert_true(parcel_part(&parcel, "\0\x78\0\0\0\0\0\0\0a", 10));
	parcel_drop(&parcel);
	json_decref(head);
	close(ends[0]);
	close(ends[1]);
}

static void takes_chunks_apart(void **state)
{
	char body[] = "3\r\nabc\r\n0a\r\n0123456789\r\n0\r\n\r\n";

	(void)state;
	assert_int_equal(hold_unchunk(body, sizeof(body) - 1), 13);
	assert_memory_equal(body, "abc0123456789", 13);
	char none[] = "0\r\n\r\n";
	assert_int_equal(hold_unchunk(none, sizeof(none) - 1), 0);
}

static json_t *line(json_int_t at, const char *host)
{
	return json_pack("{s:I,s:s,s:s,s:s,s:i,s:s,s:s}", "at_ms", at, "verdict", "denied", "kind", "tls", "host", host,
			 "port", 443, "reason", "not allowed", "rule", host);
}

/* A line that is told again, with more of the same, stays one line in its place. */
static void keeps_each_line_once_and_in_order(void **state)
{
	static const struct {
		json_int_t at;
		const char *host;
		json_int_t count;
	} told[] = { { 10, "a", 1 }, { 20, "b", 1 }, { 10, "a", 4 }, { 15, "c", 2 }, { 20, "b", 0 }, { 20, "d", 1 } };
	struct leash_record *record = leash_record_new(NULL);

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(told); i++) {
		json_t *event = line(told[i].at, told[i].host);
		leash_record_event(record, event, told[i].count);
		json_decref(event);
	}
	cleanup_free char *text = leash_record_log(record, 0);
	json_t *log = json_loads(text, 0, NULL), *entry;
	cleanup_buf struct buf seen = { 0 };
	size_t i;
	json_array_foreach(log, i, entry) buf_printf(&seen, "%s%d ", json_string_value(json_object_get(entry, "host")),
						     (int)json_integer_value(json_object_get(entry, "count")));
	assert_string_equal(seen.data, "a5 c2 b2 d1 ");
	json_decref(log);
	leash_record_free(record);
}

static void adds_up_traffic(void **state)
{
	struct leash_record *record = leash_record_new("not json"), *again;
	struct leash_totals totals = { 0 };
	char host[32];

	(void)state;
	for (int i = 0; i < LEASH_DESTINATIONS_MAX + 5; i++) {
		snprintf(host, sizeof(host), "n%d.io", i);
		json_t *list = json_pack("[{s:s,s:i,s:i,s:i,s:i,s:i}]", "host", host, "port", 443, "sent", 1,
					 "received", 2, "connections", 1, "denied", 3);

		leash_record_traffic(record, list);
		leash_record_traffic(record, list);
		json_decref(list);
	}
	leash_record_totals(record, &totals);
	assert_int_equal(totals.sent, 2 * (LEASH_DESTINATIONS_MAX + 5));
	assert_int_equal(leash_record_bytes(record), 6 * (LEASH_DESTINATIONS_MAX + 5));
	cleanup_free char *text = leash_record_text(record);
	assert_non_null(strstr(text, "\"other\""));
	again = leash_record_new(text);
	cleanup_free char *twice = leash_record_text(again);
	assert_string_equal(twice, text);
	leash_record_free(again);
	leash_record_free(record);
}

static void assert_resolvers(const char *variable, const char *file, const char *wanted)
{
	struct husk_error err = { 0 };

	if (variable)
		setenv("HUSK_DNS", variable, 1);
	else
		unsetenv("HUSK_DNS");
	put(at("resolv.conf"), file);
	json_t *list = resolvers_list(at("resolv.conf"), &err);
	unsetenv("HUSK_DNS");
	if (!wanted) {
		assert_null(list);
		assert_int_equal(err.code, HUSK_INVALID);
		return;
	}
	cleanup_free char *text = json_dumps(list, JSON_COMPACT);
	json_decref(list);
	assert_string_equal(text, wanted);
}

static void finds_resolvers(void **state)
{
	(void)state;
	assert_resolvers(NULL, "", "[\"127.0.0.1:53\"]");
	assert_resolvers(NULL,
			 "# x\nnameserver 192.0.2.1\noptions y\n  nameserver 2001:db8::1\nnameserver fe80::1%eth0\n",
			 "[\"192.0.2.1:53\",\"[2001:db8::1]:53\"]");
	assert_resolvers("192.0.2.7", "nameserver 192.0.2.1\n", "[\"192.0.2.7:53\"]");
	assert_resolvers("192.0.2.7:5353,[2001:db8::1]:54", "", "[\"192.0.2.7:5353\",\"[2001:db8::1]:54\"]");
	assert_resolvers("dns.example.com", "", NULL);
	assert_resolvers("192.0.2.7:99999", "", NULL);
}

/* ---- the process ---- */

struct world {
	struct gateway gateway;
	struct leash *leash;
	atomic_int_fast32_t events;
	struct husk_error err;
};

static void count_event(void *data, const struct leash_event *seen)
{
	struct world *w = data;

	assert_non_null(seen->host);
	w->events++;
}

static int set_up(void **state)
{
	const char *program = getenv("HUSK");
	struct world *w = calloc(1, sizeof(*w));
	struct address_pool pool;
	struct address_link link;

	*state = w;
	if (geteuid() != 0)
		return 0;
	w->gateway = (struct gateway)GATEWAY_NONE;
	if (address_parse("10.201.0.0/16", "test", &pool, &w->err) < 0 || address_link(&pool, 1, &link, &w->err) < 0 ||
	    gateway_make(&link, GATEWAY_SOCKET, &w->gateway, &w->err) < 0) {
		print_error("%s\n", w->err.message);
		return -1;
	}
	const struct leash_spec spec = { .program = program ? program : "build/husk",
					 .gateway = w->gateway.space,
					 .resolver = link.resolver,
					 .uid = LEASH_UID_BASE + 1,
					 .on_event = count_event,
					 .data = w };
	if (leash_start(&spec, NULL, &w->leash, &w->err) < 0) {
		print_error("%s\n", w->err.message);
		return -1;
	}
	return 0;
}

static int tear_down(void **state)
{
	struct world *w = *state;

	if (geteuid() == 0) {
		leash_stop(w->leash);
		gateway_close(&w->gateway);
	}
	free(w);
	/* Nothing of it is left to wait for. */
	return waitpid(-1, NULL, WNOHANG) < 0 && errno == ECHILD ? 0 : -1;
}

static struct world *root_world(void **state)
{
	if (geteuid() != 0)
		skip();
	return *state;
}

static void set_policy(struct world *w, const char *json)
{
	struct policy *policy = NULL;

	assert_int_equal(policy_parse(json, &policy, &w->err), 0);
	if (leash_set(w->leash, policy, NULL, &w->err) < 0)
		fail_msg("%s", w->err.message);
	policy_free(policy);
}

static void takes_policies(void **state)
{
	struct world *w = root_world(state);
	struct leash_totals totals;

	set_policy(w, "{\"allow\":[\"a.io\"]}");
	set_policy(w, "{\"mode\":\"open\"}");
	leash_totals(w->leash, &totals);
	assert_true(totals.pid > 0);
	assert_int_equal(totals.restarts, 0);
	cleanup_free char *log = leash_log(w->leash, 0), *traffic = leash_traffic(w->leash),
			  *saved = leash_save(w->leash);
	assert_string_equal(log, "[]");
	assert_non_null(strstr(traffic, "\"destinations\":[]"));
	assert_non_null(saved);
}

static void takes_long_policies_with_secrets(void **state)
{
	struct world *w = root_world(state);
	cleanup_buf struct buf json = { 0 };
	struct policy *policy = NULL;
	const struct husk_pair value = { "T", "hunter2hunter2" };

	buf_append_string(&json, "{\"allow\":[\"a.io\"");
	for (int i = 0; i < POLICY_RULES_MAX - 1; i++)
		buf_printf(&json, ",\"a-rather-long-name-to-fill-the-message-%d.example.com\"", i);
	buf_append_string(&json, "],\"secrets\":[{\"name\":\"T\",\"hosts\":[\"a.io\"]}]}");
	assert_int_equal(policy_parse(json.data, &policy, &w->err), 0);
	char *secrets = secrets_make(policy, &value, 1, NULL, &w->err);
	assert_non_null(secrets);
	if (leash_set(w->leash, policy, secrets, &w->err) < 0)
		fail_msg("%s", w->err.message);
	/* A policy that needs secrets and gets none changes nothing. */
	assert_int_equal(leash_set(w->leash, policy, NULL, &w->err), -1);
	assert_null(strstr(w->err.message, "hunter2"));
	str_wipe(secrets);
	policy_free(policy);
}

static void comes_back_when_killed(void **state)
{
	struct world *w = root_world(state);
	struct leash_totals before, after;

	set_policy(w, "{\"allow\":[\"a.io\"]}");
	leash_totals(w->leash, &before);
	assert_int_equal(kill(before.pid, SIGKILL), 0);
	for (int i = 0; i < 500; i++) {
		leash_totals(w->leash, &after);
		if (after.pid && after.pid != before.pid)
			break;
		usleep(10000);
	}
	assert_int_not_equal(after.pid, before.pid);
	assert_int_equal(after.restarts, 1);
	set_policy(w, "{\"mode\":\"open\"}");
}

static void says_why_it_does_not_start(void **state)
{
	struct world *w = root_world(state);
	struct leash *leash = NULL;
	struct leash_spec spec = { .program = "/nonexistent/husk",
				   .gateway = w->gateway.space,
				   .uid = LEASH_UID_BASE + 1 };

	assert_int_equal(leash_start(&spec, NULL, &leash, &w->err), -1);
	assert_non_null(strstr(w->err.message, "no such program"));
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(keeps_the_newest_events),
		cmocka_unit_test(keeps_each_line_once_and_in_order),
		cmocka_unit_test(adds_up_traffic),
		cmocka_unit_test(carries_parcels),
		cmocka_unit_test(takes_chunks_apart),
		cmocka_unit_test(finds_resolvers),
		TEST(takes_policies),
		TEST(takes_long_policies_with_secrets),
		TEST(comes_back_when_killed),
		TEST(says_why_it_does_not_start),
	};

	return cmocka_run_group_tests_name("leash", tests, make_scratch, remove_scratch);
}
