/*
 * A sandbox from C, start to finish: create one, run a command in it, fork it into two while it holds state, see that
 * each child goes its own way, and throw everything away. Needs nothing but libhusk:
 *
 *     cc examples/fork.c -Iinclude -Lbuild -lhusk -o fork && ./fork
 *
 * (`make` builds it as build/examples/fork). A first argument names the template; "base" otherwise.
 */
#include <stdio.h>

#include <husk.h>

/* Runs a shell command and prints what it said; the exit code, or -1 when it could not be run at all. */
static int run(struct husk *husk, const char *sandbox, const char *shell)
{
	struct husk_exec_options options = { .shell = shell, .timeout_ms = 10000 };
	struct husk_result result;
	struct husk_error err;

	if (husk_run(husk, sandbox, &options, &result, &err) < 0) {
		fprintf(stderr, "fork: running '%s' in %s: %s\n", shell, sandbox, err.message);
		return -1;
	}
	printf("%s$ %s\n%s%s", sandbox, shell, result.output, result.error_output);
	int exit_code = result.exit_code;
	husk_result_free(&result);
	return exit_code;
}

/* The part with a parent in hand: state, two children, and the proof that they are apart. */
static int show_fork(struct husk *husk, const char *parent)
{
	struct husk_sandbox **children = NULL;
	struct husk_error err;
	int failed = 0;

	if (run(husk, parent, "echo written before the fork > /root/note") != 0)
		return -1;
	if (husk_fork(husk, parent, 2, NULL, &children, &err) < 0) {
		fprintf(stderr, "fork: cannot fork %s: %s\n", parent, err.message);
		return -1;
	}
	failed |= run(husk, children[0]->id, "echo changed in the first child > /root/note; cat /root/note");
	failed |= run(husk, children[1]->id, "cat /root/note; hostname");
	failed |= run(husk, parent, "cat /root/note; hostname");
	for (size_t i = 0; children[i]; i++) {
		if (husk_kill(husk, children[i]->id, &err) < 0) {
			fprintf(stderr, "fork: cannot kill %s: %s\n", children[i]->id, err.message);
			failed = 1;
		}
	}
	husk_sandbox_list_free(children);
	return failed ? -1 : 0;
}

int main(int argc, char **argv)
{
	struct husk_create_options options = { .template_name = argc > 1 ? argv[1] : "base", .ttl_seconds = 120 };
	struct husk_sandbox *sandbox = NULL;
	struct husk_error err;
	struct husk *husk;

	if (husk_open(NULL, &husk, &err) < 0 || husk_create(husk, &options, &sandbox, &err) < 0) {
		fprintf(stderr, "fork: %s\n", err.message);
		return 1;
	}
	printf("sandbox %s, behind %s\n", sandbox->id, sandbox->boundary);
	int result = show_fork(husk, sandbox->id);
	if (husk_kill(husk, sandbox->id, &err) < 0) {
		fprintf(stderr, "fork: cannot kill %s: %s\n", sandbox->id, err.message);
		result = -1;
	}
	husk_sandbox_free(sandbox);
	husk_close(husk);
	return result < 0 ? 1 : 0;
}
