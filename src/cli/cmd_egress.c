/*
 * The network options that run, create, code and fork share; and `husk egress`, which shows and changes the policy of an
 * existing sandbox and shows what it tried to reach. The value of a secret comes from the command line or, better, by name
 * from husk's own environment. It is never printed.
 */
#include "cli/cmd_egress.h"

#include <inttypes.h>
#include <openssl/pem.h>

#include "cli/cli.h"

#define KIBIBYTE (INT64_C(1) << 10)
#define EXBIBYTE (INT64_C(1) << 60)
#define TRUST_MAX (64u << 10)

static const char *const mode_names[] = { "off", "allow", "open", NULL };

#define RULE_HELP "a host (example.com, *.example.com:8443) or address range (10.1.2.0/24:5432)"
#define TRUST_HELP "certificates that its programs trust besides their own, PEM; none: no others (HUSK_TRUST)"
#define HOLD_HELP                                                                                                      \
	"answer requests to HOST that change something with 202, and hold them until husk effects or promote sends "   \
	"them"
#define SECRET_HELP "for requests to HOST only; inside, NAME is a placeholder. NAME@HOST uses your own value"

/* ---- from options to a policy ---- */

/* "NAME=VALUE@HOST[,HOST]" or "NAME@HOST" into one secret, whose strings share `storage`. */
static int read_secret(const char *text, struct husk_secret *out, char **storage, struct husk_error *err)
{
	char *copy = *storage = strdup(text), *at = copy ? strrchr(copy, '@') : NULL;
	size_t count = 1;

	if (!copy)
		return husk_fail_memory(err);
	/* The text is not shown: it may be the secret itself. */
	if (!at || at == copy || at[1] == '\0')
		return husk_fail(err, HUSK_INVALID,
				 "--secret wants NAME=VALUE@HOST, or NAME@HOST for a value of your environment");
	*at = '\0';
	char *equals = strchr(copy, '=');
	if (equals)
		*equals = '\0';
	out->name = copy;
	out->value = equals ? equals + 1 : getenv(copy);
	if (!out->value)
		return husk_fail(err, HUSK_INVALID, "--secret: '%s' is not set here; give %s=VALUE@HOST", copy, copy);
	for (const char *p = at + 1; *p; p++)
		count += *p == ',';
	const char **hosts = calloc(count, sizeof(*hosts));
	if (!hosts)
		return husk_fail_memory(err);
	out->hosts = hosts;
	char *rest = at + 1;
	for (char *host; (host = strsep(&rest, ","));)
		hosts[out->host_count++] = host;
	return 0;
}

/* The certificates of --trust. "none" is the empty text, and overrides the machine's setting. */
static int read_trust(const char *path, char **out, struct husk_error *err)
{
	size_t size = 0;

	if (!path)
		return 0;
	*out = str_equal(path, "none") ? strdup("") : file_read(path, TRUST_MAX, &size, err);
	if (!*out)
		return husk_wrap(err, "--trust");
	/* Only comments may have other bytes, and the API takes UTF-8. */
	for (size_t i = 0; i < size; i++)
		if ((unsigned char)(*out)[i] >= 0x80)
			(*out)[i] = '?';
	if (strstr(*out, "PRIVATE KEY-----")) /* it must not be sent to a server either */
		return husk_fail(err, HUSK_INVALID, "--trust: '%s' contains a private key; give the certificate alone",
				 path);
	if (size ? !strstr(*out, "-----BEGIN ") : !str_equal(path, "none"))
		return husk_fail(
			err, HUSK_INVALID,
			"--trust: '%s' has no certificate in PEM form; a DER file becomes PEM with: openssl x509 "
			"-inform DER -in '%s'",
			path, path);
	return 0;
}

int egress_read(const struct egress_arguments *arguments, struct egress_given *out, struct husk_error *err)
{
	size_t count = arguments->secrets.count;

	*out = (struct egress_given){ .count = count };
	out->secrets = calloc(count + 1, sizeof(*out->secrets));
	out->storage = calloc(count + 1, sizeof(*out->storage));
	if (!out->secrets || !out->storage)
		return husk_fail_memory(err);
	for (size_t i = 0; i < count; i++)
		if (read_secret(arguments->secrets.items[i], &out->secrets[i], &out->storage[i], err) < 0)
			return -1;
	if (read_trust(arguments->trust, &out->trust, err) < 0)
		return -1;
	out->egress = (struct husk_egress){
		.mode = arguments->mode                   ? arguments->mode
			: arguments->allow.count || count ? "allow"
							  : NULL,
		.hold = arguments->hold.items,
		.hold_count = arguments->hold.count,
		.allow = arguments->allow.items,
		.allow_count = arguments->allow.count,
		.secrets = out->secrets,
		.secret_count = count,
		.limit_bytes = arguments->bytes,
		.limit_rate = arguments->rate,
		.limit_connections = (uint32_t)arguments->connections,
		.trust = out->trust,
	};
	out->any = arguments->mode || arguments->allow.count || count || arguments->bytes || arguments->rate ||
		   arguments->connections || arguments->trust || arguments->hold.count;
	return 0;
}

void egress_given_free(struct egress_given *given)
{
	for (size_t i = 0; given->secrets && i < given->count; i++)
		free((void *)given->secrets[i].hosts);
	for (size_t i = 0; given->storage && i < given->count; i++)
		str_wipe(given->storage[i]);
	free(given->secrets);
	free(given->storage);
	free(given->trust);
	*given = (struct egress_given){ 0 };
}

/* ---- denials during a command ---- */

json_t *egress_denied(struct cli *cli, const char *sandbox, int64_t since_ms, const char *errors, size_t size)
{
	json_t *denied = json_denied(cli->husk, sandbox, since_ms, errors, size), *event;
	size_t i;

	if (!denied)
		return json_array();
	if (!cli->json)
		json_array_foreach(denied, i, event) output_error(json_string_value(json_object_get(event, "text")));
	return denied;
}

/* ---- husk egress ---- */

struct show_arguments {
	struct egress_arguments change;
	struct string_list remove, release;
	bool log;
	int64_t limit;
};

static const struct option_spec show_options[] = {
	OPTION(0, "mode", OPTION_CHOICE, struct show_arguments, change.mode, "MODE",
	       "off, allow (what the rules name), open (every public address)", .choices = mode_names),
	OPTION(0, "allow", OPTION_STRINGS, struct show_arguments, change.allow, "RULE", "add a rule: " RULE_HELP),
	OPTION(0, "remove", OPTION_STRINGS, struct show_arguments, remove, "RULE", "remove a rule"),
	OPTION(0, "secret", OPTION_STRINGS, struct show_arguments, change.secrets, "NAME=VALUE@HOST",
	       "add or change a secret"),
	OPTION(0, "hold", OPTION_STRINGS, struct show_arguments, change.hold, "HOST", HOLD_HELP),
	OPTION(0, "release", OPTION_STRINGS, struct show_arguments, release, "HOST",
	       "send later requests to HOST at once; held requests stay held"),
	OPTION(0, "net-bytes", OPTION_SIZE, struct show_arguments, change.bytes, "SIZE",
	       "limit on bytes of its whole life, both ways", .min = KIBIBYTE, .max = EXBIBYTE),
	OPTION(0, "net-rate", OPTION_SIZE, struct show_arguments, change.rate, "SIZE", "limit on bytes per second",
	       .min = KIBIBYTE, .max = EXBIBYTE),
	OPTION(0, "net-connections", OPTION_INTEGER, struct show_arguments, change.connections, "N",
	       "limit on connections at one time", .min = 1, .max = 4096),
	OPTION(0, "trust", OPTION_STRING, struct show_arguments, change.trust, "FILE", TRUST_HELP),
	OPTION(0, "log", OPTION_FLAG, struct show_arguments, log, NULL, "show what it reached and what was denied"),
	OPTION('n', "limit", OPTION_INTEGER, struct show_arguments, limit, "N", "only the newest N lines of the log",
	       .min = 1, .max = 1000),
	{ 0 },
};

/* The current policy with the change applied. Strings are borrowed from both. */
struct merged {
	struct husk_egress egress;
	const char **allow, **hold;
	struct husk_secret *secrets;
};

static void merged_free(struct merged *merged)
{
	free(merged->allow);
	free(merged->hold);
	free(merged->secrets);
}

static bool listed(const struct string_list *list, const char *word, bool *seen)
{
	for (size_t i = 0; i < list->count; i++) {
		if (str_equal(list->items[i], word)) {
			seen[i] = true;
			return true;
		}
	}
	return false;
}

static int merge_rules(const struct show_arguments *arguments, const struct husk_egress *old, struct merged *out,
		       struct husk_error *err)
{
	cleanup_free bool *seen = calloc(arguments->remove.count + 1, sizeof(*seen));
	size_t count = 0;

	out->allow = calloc(old->allow_count + arguments->change.allow.count + 1, sizeof(*out->allow));
	if (!out->allow || !seen)
		return husk_fail_memory(err);
	for (size_t i = 0; i < old->allow_count && !arguments->change.mode; i++)
		if (!listed(&arguments->remove, old->allow[i], seen))
			out->allow[count++] = old->allow[i];
	for (size_t i = 0; i < arguments->remove.count; i++)
		if (!seen[i])
			return husk_fail(err, HUSK_NOT_FOUND, "--remove: the policy has no rule '%s'",
					 arguments->remove.items[i]);
	for (size_t i = 0; i < arguments->change.allow.count; i++)
		out->allow[count++] = arguments->change.allow.items[i];
	out->egress.allow = out->allow;
	out->egress.allow_count = count;
	return 0;
}

static int merge_holds(const struct show_arguments *arguments, const struct husk_egress *old, struct merged *out,
		       struct husk_error *err)
{
	cleanup_free bool *seen = calloc(arguments->release.count + 1, sizeof(*seen));
	size_t count = 0;

	out->hold = calloc(old->hold_count + arguments->change.hold.count + 1, sizeof(*out->hold));
	if (!out->hold || !seen)
		return husk_fail_memory(err);
	for (size_t i = 0; i < old->hold_count && !arguments->change.mode; i++)
		if (!listed(&arguments->release, old->hold[i], seen))
			out->hold[count++] = old->hold[i];
	for (size_t i = 0; i < arguments->release.count; i++)
		if (!seen[i])
			return husk_fail(err, HUSK_NOT_FOUND, "--release: '%s' is not held",
					 arguments->release.items[i]);
	for (size_t i = 0; i < arguments->change.hold.count; i++)
		out->hold[count++] = arguments->change.hold.items[i];
	out->egress.hold = out->hold;
	out->egress.hold_count = count;
	return 0;
}

/* A new secret replaces the one with its name. */
static int merge_secrets(const struct egress_given *given, const struct husk_egress *old, struct merged *out,
			 struct husk_error *err)
{
	size_t count = 0;

	out->secrets = calloc(old->secret_count + given->count + 1, sizeof(*out->secrets));
	if (!out->secrets)
		return husk_fail_memory(err);
	for (size_t i = 0; i < old->secret_count; i++) {
		bool replaced = false;
		for (size_t k = 0; k < given->count; k++)
			replaced |= str_equal(given->secrets[k].name, old->secrets[i].name);
		if (!replaced)
			out->secrets[count++] = old->secrets[i];
	}
	for (size_t i = 0; i < given->count; i++)
		out->secrets[count++] = given->secrets[i];
	out->egress.secrets = out->secrets;
	out->egress.secret_count = count;
	return 0;
}

static int change(struct cli *cli, const char *sandbox, const struct show_arguments *arguments,
		  const struct husk_egress *old, struct husk_error *err)
{
	cleanup(egress_given_free) struct egress_given given = { 0 };
	cleanup(merged_free) struct merged merged = { .egress = *old };
	bool adds = arguments->change.allow.count || arguments->change.secrets.count || arguments->change.hold.count;

	if (egress_read(&arguments->change, &given, err) < 0 || merge_rules(arguments, old, &merged, err) < 0 ||
	    merge_holds(arguments, old, &merged, err) < 0 || merge_secrets(&given, old, &merged, err) < 0)
		return -1;
	if (arguments->change.mode)
		merged.egress.mode = arguments->change.mode;
	else if (adds && str_equal(old->mode, "off"))
		merged.egress.mode = "allow";
	if (str_equal(arguments->change.mode, "off")) { /* its old rules have no use any more */
		merged.egress.secrets = given.secrets;
		merged.egress.secret_count = given.count;
	}
	if (arguments->change.bytes)
		merged.egress.limit_bytes = arguments->change.bytes;
	if (arguments->change.rate)
		merged.egress.limit_rate = arguments->change.rate;
	if (arguments->change.connections)
		merged.egress.limit_connections = (uint32_t)arguments->change.connections;
	if (given.trust)
		merged.egress.trust = given.trust;
	return husk_egress_set(cli->husk, sandbox, &merged.egress, err);
}

/* ---- showing ---- */

static void print_limit(const char *name, uint64_t value, const char *unit)
{
	char text[32];

	if (value == 0)
		return;
	output_size(value, text, sizeof(text));
	printf("%s %s%s\n", name, text, unit);
}

/* "trust   CN=Company Root CA, until Jan  1 00:00:00 2030 GMT" */
static void print_trust(const char *pem)
{
	BIO *bio = pem ? BIO_new_mem_buf(pem, -1) : NULL, *line = BIO_new(BIO_s_mem());
	X509 *certificate;

	while (bio && line && (certificate = PEM_read_bio_X509(bio, NULL, NULL, NULL))) {
		char *text = NULL;

		(void)BIO_reset(line);
		X509_NAME_print_ex(line, X509_get_subject_name(certificate), 0, XN_FLAG_ONELINE);
		BIO_puts(line, ", until ");
		ASN1_TIME_print(line, X509_get0_notAfter(certificate));
		BIO_write(line, "", 1);
		if (BIO_get_mem_data(line, &text) > 0) {
			fputs("trust   ", stdout);
			output_safe(stdout, text, false);
			putchar('\n');
		}
		X509_free(certificate);
	}
	BIO_free(bio);
	BIO_free(line);
}

static void print_policy(const struct husk_egress *egress)
{
	printf("mode    %s\n", egress->mode);
	for (size_t i = 0; i < egress->allow_count; i++)
		printf("allow   %s\n", egress->allow[i]);
	for (size_t i = 0; i < egress->secret_count; i++) {
		printf("secret  %s for", egress->secrets[i].name);
		for (size_t k = 0; k < egress->secrets[i].host_count; k++)
			printf(" %s", egress->secrets[i].hosts[k]);
		putchar('\n');
	}
	for (size_t i = 0; i < egress->hold_count; i++)
		printf("hold    %s\n", egress->hold[i]);
	print_trust(egress->trust);
	print_limit("bytes  ", egress->limit_bytes, " in its life");
	print_limit("rate   ", egress->limit_rate, " a second");
}

static int print_traffic(const struct husk_egress_traffic *list, size_t count, struct husk_error *err)
{
	static const char *const heading[] = { "HOST", "PORT", "SENT", "RECEIVED", "CONNECTIONS", "DENIED" };
	cleanup_table struct table table;

	table_begin(&table, heading, ARRAY_SIZE(heading));
	if (count == 0)
		return 0;
	for (size_t i = 0; i < count; i++) {
		table_cell(&table, list[i].host);
		table_cellf(&table, "%u", list[i].port);
		table_size(&table, list[i].sent);
		table_size(&table, list[i].received);
		table_cellf(&table, "%" PRIu64, list[i].connections);
		table_cellf(&table, "%" PRIu64, list[i].denied);
	}
	putchar('\n');
	return table_print(&table, err);
}

static int show_policy(struct cli *cli, const char *sandbox, struct husk_error *err)
{
	struct husk_egress *egress = NULL;
	struct husk_egress_traffic *traffic = NULL;
	size_t count = 0;
	int status = husk_egress_get(cli->husk, sandbox, &egress, err);

	if (status == 0)
		status = husk_egress_traffic(cli->husk, sandbox, &traffic, &count, err);
	if (status == 0 && cli->json) {
		json_t *object = json_egress(egress);
		if (object)
			json_object_set_new(object, "traffic", json_egress_traffic(traffic, count));
		status = output_json(object, err);
	} else if (status == 0) {
		print_policy(egress);
		status = print_traffic(traffic, count, err);
	}
	husk_egress_free(egress);
	husk_egress_traffic_list_free(traffic, count);
	return status;
}

/* "12:01:02.345  denied   tls  evil.example:443 (3)  evil.example is not allowed; …". Names come from the guest. */
static void print_event(const struct husk_egress_event *event)
{
	char at[25];

	time_format(event->at_ms, at);
	printf("%s  ", at);
	output_colored(stdout, str_equal(event->verdict, "allowed") ? COLOR_GREEN : COLOR_RED, event->verdict);
	printf("%*s %-5s", (int)(8 - MIN(strlen(event->verdict), 8u)), "", event->kind);
	output_safe(stdout, event->host, false);
	if (event->port)
		printf(":%u", event->port);
	if (event->count > 1)
		printf(" (%" PRIu64 " times)", event->count);
	if (*event->reason) {
		fputs("  ", stdout);
		output_safe(stdout, event->reason, false);
	}
	if (*event->rule) {
		fputs("; would need --allow ", stdout);
		output_safe(stdout, event->rule, false);
	}
	putchar('\n');
}

static int show_log(struct cli *cli, const char *sandbox, size_t limit, struct husk_error *err)
{
	struct husk_egress_event *list = NULL;
	size_t count = 0;
	cleanup_json json_t *array = json_array();

	if (husk_egress_log(cli->husk, sandbox, limit, &list, &count, err) < 0)
		return -1;
	for (size_t i = 0; i < count; i++) {
		if (!cli->json)
			print_event(&list[i]);
		else
			json_array_append_new(array, json_egress_event(&list[i]));
	}
	husk_egress_event_list_free(list, count);
	return cli->json ? output_json(json_incref(array), err) : 0;
}

static int egress_run(struct cli *cli, void *data, int argc, char **argv, struct husk_error *err)
{
	const struct show_arguments *arguments = data;
	const struct egress_arguments *asked = &arguments->change;
	bool changes = asked->mode || asked->allow.count || asked->secrets.count || arguments->remove.count ||
		       asked->bytes || asked->rate || asked->connections || asked->trust || asked->hold.count ||
		       arguments->release.count;

	(void)argc;
	if (changes) {
		struct husk_egress *old = NULL;
		int status = husk_egress_get(cli->husk, argv[0], &old, err);
		if (status == 0)
			status = change(cli, argv[0], arguments, old, err);
		husk_egress_free(old);
		if (status < 0)
			return -1;
	}
	if (arguments->log)
		return show_log(cli, argv[0], (size_t)arguments->limit, err);
	return show_policy(cli, argv[0], err);
}

const struct cli_command cli_egress = {
	.name = "egress",
	.operands = "SANDBOX",
	.summary = "Show or change what a sandbox may reach over the network",
	.details = "When the command returns, the change is in force; connections that are no longer allowed are cut.\n"
		   "--mode starts from an empty list of rules.\n",
	.groups = { { show_options, 0 } },
	.arguments_size = sizeof(struct show_arguments),
	.min = 1,
	.max = 1,
	.run = egress_run,
};

const struct option_spec egress_options[] = {
	OPTION(0, "egress", OPTION_CHOICE, struct egress_arguments, mode, "MODE",
	       "what it may reach: off (the default), allow (what the rules name), open (every public address)",
	       .choices = mode_names),
	OPTION(0, "allow", OPTION_STRINGS, struct egress_arguments, allow, "RULE", RULE_HELP "; may be repeated"),
	OPTION(0, "secret", OPTION_STRINGS, struct egress_arguments, secrets, "NAME=VALUE@HOST", SECRET_HELP),
	OPTION(0, "hold", OPTION_STRINGS, struct egress_arguments, hold, "HOST", HOLD_HELP),
	OPTION(0, "net-bytes", OPTION_SIZE, struct egress_arguments, bytes, "SIZE",
	       "limit on bytes of its whole life, both ways", .min = KIBIBYTE, .max = EXBIBYTE),
	OPTION(0, "net-rate", OPTION_SIZE, struct egress_arguments, rate, "SIZE", "limit on bytes per second",
	       .min = KIBIBYTE, .max = EXBIBYTE),
	OPTION(0, "net-connections", OPTION_INTEGER, struct egress_arguments, connections, "N",
	       "limit on connections at one time (512)", .min = 1, .max = 4096),
	OPTION(0, "trust", OPTION_STRING, struct egress_arguments, trust, "FILE", TRUST_HELP),
	{ 0 },
};
