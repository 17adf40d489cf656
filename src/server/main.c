/*
 * huskd, Husk's HTTP server: reads its settings and options, opens the instance and serves until it is told to stop. `husk serve`
 * starts this program. It holds no state of any sandbox and may be killed at any moment.
 */
#include <getopt.h>
#include <malloc.h>
#include <openssl/crypto.h>

#include "config/config.h"
#include "server/activation.h"
#include "server/core.h"
#include "store/paths.h"

#define ADDRESS_DEFAULT "127.0.0.1:7820"
#define STOP_SECONDS_DEFAULT 30

static bool serving; /* there are threads */

static const char usage[] =
	"usage: huskd [OPTIONS]\n\n"
	"Serve Husk over HTTP (see GET /openapi.json), until SIGTERM or SIGINT.\n\noptions:\n"
	"      --listen ADDRESS:PORT  the TCP address; 'none': no TCP (" ADDRESS_DEFAULT ")\n"
	"      --socket PATH          unix socket for this machine (huskd.sock in the run directory)\n"
	"      --group NAME           group whose users may use the socket, each as a tenant; 'none': only root\n"
	"                             (husk, if that group exists)\n"
	"      --user-sandboxes N     maximum number of sandboxes of each user (no limit)\n"
	"      --user-memory SIZE     maximum memory of all running sandboxes of a user (no limit)\n"
	"      --user-snapshots SIZE  maximum disk use of the snapshots of a user (no limit)\n"
	"      --cert FILE            TLS certificate, PEM; with --key\n"
	"      --key FILE             its private key, PEM\n"
	"      --log text|json        the format of the log on stderr (text)\n"
	"      --log-level LEVEL      error, warn, info or debug, also for its sandboxes; HUSK_LOG sets it too (info)\n"
	"      --stop-seconds N       how long streams may continue after a signal to stop (30)\n"
	"      --routes               print every route and exit\n"
	"  -h, --help                 show this page\n";

static int parse_log(const char *text, struct husk_error *err)
{
	bool json = str_equal(text, "json");

	log_set_json(json);
	if (json || str_equal(text, "text"))
		return 0;
	return husk_fail(err, HUSK_INVALID, "--log '%s'; give text or json", text);
}

/* Set in the environment, so that it also applies to supervisors that are started here. Not while other threads read
 * it. */
static int parse_log_level(const char *text, struct husk_error *err)
{
	enum log_level level;

	if (log_parse_level("--log-level", text, &level, err) < 0)
		return -1;
	log_set_level(level);
	return serving || setenv("HUSK_LOG", text, 1) == 0 ? 0 : husk_fail_memory(err);
}

static int parse_quota(int option, const char *text, struct server_options *options, struct husk_error *err)
{
	int64_t count = 0;
	uint64_t size = 0;

	if (option == 'S') {
		if (str_to_int64(text, 1, 1000000, &count) < 0)
			return husk_fail(err, HUSK_INVALID, "--user-sandboxes '%s'; give 1 to 1000000", text);
		options->user_sandboxes = (uint32_t)count;
		return 0;
	}
	if (str_to_size(text, 1u << 20, &size) < 0 || size == 0)
		return husk_fail(err, HUSK_INVALID, "--user-%s '%s'; give a size like 512M or 8G",
				 option == 'M' ? "memory" : "snapshots", text);
	*(option == 'M' ? &options->user_memory_bytes : &options->user_snapshot_bytes) = size;
	return 0;
}

static int print_routes(struct husk_error *err)
{
	if (routes_setup(err) < 0)
		return -1;
	for (size_t i = 0; i < routes_count(); i++)
		if (!routes_dialect(i)) /* a dialect is described by its own service */
			printf("%s %s\n", routes_at(i)->method, routes_at(i)->path);
	return 1;
}

static int take_option(int option, const char *text, struct server_options *options, struct husk_error *err)
{
	int64_t seconds;

	switch (option) {
	case 'l':
		options->address = str_equal(text, "none") ? NULL : text;
		return 0;
	case 's':
		options->socket_path = text;
		return 0;
	case 'g':
		options->group = text;
		return 0;
	case 'S':
	case 'M':
	case 'N':
		return parse_quota(option, text, options, err);
	case 'c':
		options->certificate = text;
		return 0;
	case 'k':
		options->key = text;
		return 0;
	case 'o':
		return parse_log(text, err);
	case 'L':
		return parse_log_level(text, err);
	default:
		if (str_to_int64(text, 0, 86400, &seconds) < 0)
			return husk_fail(err, HUSK_INVALID, "--stop-seconds '%s'; give 0 to 86400", text);
		options->stop_seconds = (int)seconds;
		return 0;
	}
}

/* The values of the files and the environment (config.h); an option on the command line overrides them. */
static int take_settings(const struct config_setting *settings, struct server_options *options, struct husk_error *err)
{
	static const struct {
		const char *key;
		int option;
	} known[] = { { "server.listen", 'l' },
		      { "server.socket", 's' },
		      { "server.group", 'g' },
		      { "server.user_sandboxes", 'S' },
		      { "server.user_memory", 'M' },
		      { "server.user_snapshots", 'N' },
		      { "server.cert", 'c' },
		      { "server.key", 'k' },
		      { "server.log", 'o' },
		      { "server.stop_seconds", 't' },
		      { "log", 'L' } };

	for (size_t i = 0; i < ARRAY_SIZE(known); i++) {
		const char *value = config_value(settings, known[i].key);

		if (value && take_option(known[i].option, value, options, err) < 0)
			return husk_wrap(err, "setting %s (husk config show)", known[i].key);
	}
	return 0;
}

/* 1: only help, or the list of routes, was requested. */
static int parse(int argc, char **argv, struct server_options *options, struct husk_error *err)
{
	static const struct option known[] = { { "listen", required_argument, NULL, 'l' },
					       { "socket", required_argument, NULL, 's' },
					       { "group", required_argument, NULL, 'g' },
					       { "user-sandboxes", required_argument, NULL, 'S' },
					       { "user-memory", required_argument, NULL, 'M' },
					       { "user-snapshots", required_argument, NULL, 'N' },
					       { "cert", required_argument, NULL, 'c' },
					       { "key", required_argument, NULL, 'k' },
					       { "log", required_argument, NULL, 'o' },
					       { "log-level", required_argument, NULL, 'L' },
					       { "stop-seconds", required_argument, NULL, 't' },
					       { "routes", no_argument, NULL, 'r' },
					       { "help", no_argument, NULL, 'h' },
					       { 0 } };
	int option, failed = 0;

	opterr = 0;
	optind = 1;
	while (!failed && (option = getopt_long(argc, argv, "h", known, NULL)) != -1) {
		if (option == 'r')
			return print_routes(err);
		if (option == 'h') {
			fputs(usage, stdout);
			return 1;
		}
		failed = option == '?'
				 ? husk_fail(err, HUSK_INVALID, "unknown option '%s' (huskd --help)", argv[optind - 1])
				 : take_option(option, optarg, options, err);
	}
	if (!failed && optind < argc)
		failed = husk_fail(err, HUSK_INVALID, "unexpected '%s' (huskd --help)", argv[optind]);
	if (!failed && !options->certificate != !options->key)
		failed = husk_fail(err, HUSK_INVALID, "--cert and --key go together");
	return failed;
}

/* ---- SIGHUP ---- */

static int argument_count;
static char **arguments;

/* Collects all settings, from the files to the command line. `settings` holds the texts. */
static int gather(struct config_setting **settings, struct server_options *out, struct husk_error *err)
{
	*out = (struct server_options){ .address = ADDRESS_DEFAULT, .stop_seconds = STOP_SECONDS_DEFAULT };
	if (config_list(settings, err) < 0 || take_settings(*settings, out, err) < 0)
		return -1;
	return parse(argument_count, arguments, out, err);
}

/* Settings that can change while huskd serves: the level and format of the log, and the quotas of users. */
static int reload(struct server_options *out, struct husk_error *err)
{
	struct config_setting *settings = NULL;
	int result = gather(&settings, out, err);

	config_free(settings);
	out->address = out->socket_path = out->certificate = out->key = out->group = NULL; /* went with them */
	return result;
}

static char *default_socket(struct husk_error *err)
{
	struct paths paths = { 0 };

	if (paths_open(NULL, &paths, err) < 0)
		return NULL;
	char *path = str_format("%s/huskd.sock", paths.run);
	paths_close(&paths);
	if (!path)
		husk_fail_memory(err);
	return path;
}

static int serve(struct server_options *options, struct husk_error *err)
{
	struct activation sockets;
	struct husk *husk = NULL;

	if (activation_take(&sockets, err) < 0)
		return -1;
	if (sockets.local >= 0 && options->socket_path)
		return husk_fail(err, HUSK_INVALID, "systemd passed the socket '%s'; leave out --socket", sockets.path);
	const char *given = sockets.local >= 0 ? sockets.path : options->socket_path;
	options->local_fd = sockets.local;
	options->tcp_fd = sockets.tcp;
	cleanup_free char *path = given ? strdup(given) : default_socket(err);
	if (!path)
		return given ? husk_fail_memory(err) : -1;
	options->socket_path = path;
	/* huskd has thousands of threads that each do little: few arenas, and large blocks go directly back to the
	 * kernel. */
	mallopt(M_ARENA_MAX, 4);
	mallopt(M_MMAP_THRESHOLD, 128 * 1024);
	if (husk_open(NULL, &husk, err) < 0)
		return -1;
	options->reload = reload;
	serving = true;
	int result = server_run(husk, options, err);
	husk_close(husk);
	return result;
}

int main(int argc, char **argv)
{
	struct config_setting *settings = NULL; /* kept to the end: options point into it */
	struct server_options options;
	struct husk_error err = { 0 };

	/* HUSK_HOST is for clients; this process is the server. */
	unsetenv("HUSK_HOST");
	/* Threads of TLS connections may run to the very end. */
	OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, NULL);
	argument_count = argc;
	arguments = argv;
	int result = config_apply(&err);
	if (result == 0)
		result = log_setup("huskd", LOG_INFO, &err);
	if (result == 0)
		result = gather(&settings, &options, &err);
	if (result == 0)
		result = serve(&options, &err);
	config_free(settings);
	if (result >= 0)
		return 0;
	fprintf(stderr, "huskd: %s\n", err.message);
	return err.code == HUSK_INVALID ? 2 : 1;
}
