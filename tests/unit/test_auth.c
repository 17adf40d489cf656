/*
 * Who a token makes of its bearer, with memory that runs out at each moment in turn: the tenant or nobody, and never the
 * instance; and who the peer of the unix socket is. A real instance in a directory of its own.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

/* Unit tests are linked with libhusk, which has nothing of the server; of it this file needs the headers alone. */
#include "server/auth.c"

static const char *token_sent;
static int copies_left = -1; /* before a copy fails; -1: none does */
static bool copy_failed;

/* In the place of the C library's, for every object of this program. */
char *strdup(const char *text)
{
	size_t size = strlen(text) + 1;

	if (copies_left == 0) {
		copies_left = -1;
		copy_failed = true;
		return NULL;
	}
	if (copies_left > 0)
		copies_left--;
	char *copy = malloc(size);
	return copy ? memcpy(copy, text, size) : NULL;
}

const char *request_header(const struct request *request, const char *name)
{
	(void)request;
	return str_equal(name, "X-Husk-Token") ? token_sent : NULL;
}

struct world {
	char directory[32];
	struct server server;
	struct listener listener;
	char *tenant, *admin; /* tokens */
};

static char *make_token(struct world *w, const char *name, bool admin)
{
	const struct husk_token_options options = { .name = name, .tenant = admin ? NULL : "red", .admin = admin };
	char *secret = NULL;

	assert_int_equal(husk_token_create(w->server.husk, &options, &secret, NULL, NULL), 0);
	return secret;
}

static int set_up(void **state)
{
	struct world *w = calloc(1, sizeof *w);

	assert_non_null(w);
	strcpy(w->directory, "/tmp/husk-auth-XXXXXX");
	assert_non_null(mkdtemp(w->directory));
	assert_int_equal(husk_open(w->directory, &w->server.husk, NULL), 0);
	w->listener.server = &w->server;
	w->tenant = make_token(w, "tenant", false);
	w->admin = make_token(w, "admin", true);
	*state = w;
	return 0;
}

static int tear_down(void **state)
{
	struct world *w = *state;

	husk_close(w->server.husk);
	free(w->tenant);
	free(w->admin);
	assert_int_equal(dir_remove(w->directory, NULL), 0);
	free(w);
	return 0;
}

/* Asks with the token while copy number `failing` fails. False: there was no such copy. */
static bool ask(struct world *w, const char *secret, int failing, int expected)
{
	static const struct route route = { .method = "GET", .path = "/" };
	struct request request = { .server = &w->server, .listener = &w->listener, .match = { .route = &route } };
	struct husk_error err = { 0 };

	token_sent = secret;
	copies_left = failing;
	copy_failed = false;
	int result = auth_request(&request, &err);
	copies_left = -1;
	if (result < 0) {
		assert_true(copy_failed);
		assert_int_equal(request.caller, CALLER_UNKNOWN);
		assert_null(request.tenant);
		assert_null(request.husk);
		return true;
	}
	assert_int_equal((int)request.caller, expected);
	assert_int_equal(request.caller == CALLER_TENANT, request.tenant != NULL);
	char *made = NULL;
	assert_int_equal(
		husk_token_create(request.husk, &(struct husk_token_options){ .name = "x" }, &made, NULL, &err),
		-1); /* for the instance alone */
	husk_close(request.husk);
	free(request.tenant);
	return copy_failed;
}

static void out_of_memory_makes_nobody_of_a_tenant(void **state)
{
	int failing = 0;

	while (ask(*state, ((struct world *)*state)->tenant, failing, CALLER_TENANT))
		failing++;
	assert_true(failing >= 3); /* the rows of the token, its tenant, the view's and the request's */
}

static void knows_the_instance(void **state)
{
	struct world *w = *state;
	struct husk_error err = { 0 };
	static const struct route route = { .method = "GET", .path = "/" };
	struct request request = { .server = &w->server, .listener = &w->listener, .match = { .route = &route } };

	token_sent = w->admin;
	assert_int_equal(auth_request(&request, &err), 0);
	assert_int_equal(request.caller, CALLER_INSTANCE);
	assert_null(request.tenant);
	husk_close(request.husk);
	request.husk = NULL;
	request.caller = CALLER_UNKNOWN;
	token_sent = "husk_no";
	assert_int_equal(auth_request(&request, &err), -1);
	assert_int_equal(request.caller, CALLER_UNKNOWN);
}

/* ---- peers of the unix socket ---- */

/* A connection that a process of this user made; -1 when it cannot be had. */
static int connection_of(struct world *w, uid_t user)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	snprintf(address.sun_path, sizeof(address.sun_path), "%s/s", w->directory);
	unlink(address.sun_path);
	assert_int_equal(bind(listener, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(chmod(address.sun_path, 0777) | chmod(w->directory, 0711), 0);
	assert_int_equal(listen(listener, 1), 0);
	pid_t child = fork();
	if (child == 0) {
		int fd = socket(AF_UNIX, SOCK_STREAM, 0);
		bool made = (!user || (setgid(user) == 0 && setuid(user) == 0)) &&
			    connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0;
		_exit(made ? 0 : 1);
	}
	int status = -1, fd = -1;
	assert_int_equal(waitpid(child, &status, 0), child);
	if (status == 0)
		fd = accept(listener, NULL, NULL);
	close(listener);
	chmod(w->directory, 0700);
	return fd;
}

static void a_peer_is_its_user_and_no_other(void **state)
{
	struct world *w = *state;
	const struct server_options options = { .user_sandboxes = 3 };
	static const struct route route = { .method = "GET", .path = "/" };
	const struct listener local = { .server = &w->server, .local = true };
	struct husk_error err = { 0 };
	struct husk *view = NULL;

	if (geteuid() != 0)
		skip();
	w->server.options = &options;
	token_sent = NULL;
	struct request request = { .server = &w->server, .listener = &local, .match = { .route = &route } };
	request.socket = connection_of(w, 54321);
	assert_true(request.socket >= 0);

	assert_int_equal(auth_request(&request, &err), -1); /* the socket is for no group */
	assert_int_equal(err.code, HUSK_DENIED);
	assert_int_equal(auth_view(&request, &view, &err), -1);
	assert_null(view);
	w->server.shared = true;
	assert_int_equal(auth_request(&request, &err), 0);
	assert_int_equal(request.caller, CALLER_TENANT);
	assert_string_equal(request.tenant, "uid-54321");
	struct husk_token **list = NULL;
	assert_int_equal(husk_token_list(request.husk, &list, &err), -1);
	/* What outlives the request is the user's as well, never the server's own (NULL). */
	assert_int_equal(auth_view(&request, &view, &err), 0);
	assert_non_null(view);
	assert_int_equal(husk_token_list(view, &list, &err), -1);
	husk_close(view);
	husk_close(request.husk);
	free(request.tenant);
	close(request.socket);

	request = (struct request){ .server = &w->server, .listener = &local, .match = { .route = &route } };
	request.socket = connection_of(w, 0);
	assert_int_equal(auth_request(&request, &err), 0);
	assert_int_equal(request.caller, CALLER_INSTANCE);
	assert_null(request.tenant);
	assert_int_equal(auth_view(&request, &view, &err), 0);
	assert_null(view);
	close(request.socket);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_peer_is_its_user_and_no_other),
		cmocka_unit_test(out_of_memory_makes_nobody_of_a_tenant),
		cmocka_unit_test(knows_the_instance),
	};

	return cmocka_run_group_tests_name("auth", tests, set_up, tear_down);
}
