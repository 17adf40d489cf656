/*
 * huskd, Husk's HTTP server: reads its options, opens the instance and serves until it is told to stop. `husk serve`
 * starts this program. It holds no state of any sandbox and may be killed at any moment.
 */
#include <getopt.h>
#include <malloc.h>

#include "server/core.h"
#include "store/paths.h"

#define ADDRESS_DEFAULT "127.0.0.1:7820"
#define STOP_SECONDS_DEFAULT 30

static const char usage[] =
	"usage: huskd [OPTIONS]\n\n"
	"Serve Husk over HTTP (see GET /openapi.json), until SIGTERM or SIGINT.\n\noptions:\n"
	"      --listen ADDRESS:PORT  where to listen for TCP; 'none': nowhere (" ADDRESS_DEFAULT ")\n"
	"      --socket PATH          unix socket for this machine's root (huskd.sock in the run directory)\n"
	"      --cert FILE            TLS certificate, PEM; with --key\n"
	"      --key FILE             its private key, PEM\n"
	"      --log text|json        how requests are logged on stderr (text)\n"
	"      --stop-seconds N       how long streams may go on once told to stop (30)\n"
	"      --routes               print every route it serves, and end\n"
	"  -h, --help                 show this page\n";

static int parse_log(const char *text, struct server_options *options, struct husk_error *err)
{
	options->json_log = str_equal(text, "json");
	if (options->json_log || str_equal(text, "text"))
		return 0;
	return husk_fail(err, HUSK_INVALID, "--log '%s'; give text or json", text);
}

static int print_routes(struct husk_error *err)
{
	if (routes_setup(err) < 0)
		return -1;
	for (size_t i = 0; i < routes_count(); i++)
		if (!(routes_at(i)->flags & ROUTE_E2B)) /* an API that is described elsewhere */
			printf("%s %s\n", routes_at(i)->method, routes_at(i)->path);
	return 1;
}

/* 1: only help, or the list of routes, was wanted. */
static int parse(int argc, char **argv, struct server_options *options, struct husk_error *err)
{
	static const struct option known[] = { { "listen", required_argument, NULL, 'l' },
					       { "socket", required_argument, NULL, 's' },
					       { "cert", required_argument, NULL, 'c' },
					       { "key", required_argument, NULL, 'k' },
					       { "log", required_argument, NULL, 'o' },
					       { "stop-seconds", required_argument, NULL, 't' },
					       { "routes", no_argument, NULL, 'r' },
					       { "help", no_argument, NULL, 'h' },
					       { 0 } };
	int64_t seconds = STOP_SECONDS_DEFAULT;
	int option, failed = 0;

	opterr = 0;
	while (!failed && (option = getopt_long(argc, argv, "h", known, NULL)) != -1) {
		switch (option) {
		case 'l':
			options->address = str_equal(optarg, "none") ? NULL : optarg;
			break;
		case 's':
			options->socket_path = optarg;
			break;
		case 'c':
			options->certificate = optarg;
			break;
		case 'k':
			options->key = optarg;
			break;
		case 'o':
			failed = parse_log(optarg, options, err);
			break;
		case 't':
			if (str_to_int64(optarg, 0, 86400, &seconds) < 0)
				failed = husk_fail(err, HUSK_INVALID, "--stop-seconds '%s'; give 0 to 86400", optarg);
			break;
		case 'r':
			return print_routes(err);
		case 'h':
			fputs(usage, stdout);
			return 1;
		default:
			failed = husk_fail(err, HUSK_INVALID, "unknown option '%s' (huskd --help)", argv[optind - 1]);
		}
	}
	options->stop_seconds = (int)seconds;
	if (!failed && optind < argc)
		failed = husk_fail(err, HUSK_INVALID, "unexpected '%s' (huskd --help)", argv[optind]);
	if (!failed && !options->certificate != !options->key)
		failed = husk_fail(err, HUSK_INVALID, "--cert and --key go together");
	return failed;
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
	cleanup_free char *path = options->socket_path ? strdup(options->socket_path) : default_socket(err);
	struct husk *husk = NULL;

	if (!path)
		return options->socket_path ? husk_fail_memory(err) : -1;
	options->socket_path = path;
	/* Thousands of threads that each do little: few arenas, and large blocks straight back to the kernel. */
	mallopt(M_ARENA_MAX, 4);
	mallopt(M_MMAP_THRESHOLD, 128 * 1024);
	if (husk_open(NULL, &husk, err) < 0)
		return -1;
	int result = server_run(husk, options, err);
	husk_close(husk);
	return result;
}

int main(int argc, char **argv)
{
	struct server_options options = { .address = ADDRESS_DEFAULT };
	struct husk_error err = { 0 };
	int result = parse(argc, argv, &options, &err);

	if (result == 0)
		result = serve(&options, &err);
	if (result >= 0)
		return 0;
	fprintf(stderr, "huskd: %s\n", err.message);
	return err.code == HUSK_INVALID ? 2 : 1;
}
