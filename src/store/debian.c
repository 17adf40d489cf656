/*
 * Stage 1 of a template: a Debian root filesystem from the host's release and package sources, made by mmdebstrap.
 * templates/customize.sh adds the definition's users, files, npm and PyPI packages and scripts. Called by rootfs.c. All
 * of this runs third-party programs as root, so it runs in a cell (builder.c), which has no rights outside its own
 * tree.
 *
 * Package sources are read from the host's apt configuration. Only Debian's own sources are used: a third party's
 * source on the host does not get into a template. Credentials in a source's address are left out.
 */
#include <fcntl.h>
#include <sys/wait.h>

#include "store/builder.h"
#include "store/rootfs.h"

#define SAY_EVERY_MS 1000 /* between lines that only show a count */
#define REASON_MAX 600    /* of the tool's own output, in the message */

/* Variables of the caller's environment that apt, npm, node and pip need to reach their servers. */
static const char *const passed_on[] = { "http_proxy",          "https_proxy",         "no_proxy",
					 "HTTP_PROXY",          "HTTPS_PROXY",         "NO_PROXY",
					 "NPM_CONFIG_REGISTRY", "npm_config_registry", "PIP_INDEX_URL" };

/* ---- package sources ---- */

/* Is this Debian's own archive, in this release? */
static bool source_wanted(const char *uri, const char *suite, const char *codename)
{
	static const char *const kinds[] = { "", "-updates", "-security" };
	const char *last = strrchr(uri, '/');
	size_t length = strlen(codename);

	/* A mirror of Debian keeps the last path component (debian, debian-security). A third party's archive that uses
	 * the name of a Debian suite does not have it. */
	if (!last || !str_starts(last + 1, "debian") || !str_starts(suite, codename))
		return false;
	for (size_t i = 0; i < ARRAY_SIZE(kinds); i++)
		if (str_equal(suite + length, kinds[i]))
			return true;
	return false;
}

/* Converts a line of apt ('<uri>/dists/<suite>/InRelease' and more) to a source line, if the source is wanted. */
static int source_add(char *line, const char *codename, struct buf *out)
{
	char *uri = strchr(line, '\''), *suite = uri ? strstr(uri, "/dists/") : NULL;
	char *end = suite ? strstr(suite, "/InRelease'") : NULL;

	if (!end)
		return 0;
	*suite = *end = '\0';
	suite += strlen("/dists/");
	return source_wanted(uri + 1, suite, codename) ? buf_printf(out, "deb %s %s main\n", uri + 1, suite) : 0;
}

/* The sources of this host. The command also answers on a machine that has not downloaded its package lists yet. */
static int sources_collect(const char *codename, struct buf *out, struct husk_error *err)
{
	cleanup_buf struct buf listing = { 0 };
	struct command command = {
		COMMAND_INIT,
		.argv = (const char *[]){ "apt-get", "-o", "Debug::NoLocking=true", "-o",
					  "APT::Get::List-Cleanup=false", "update", "--print-uris", NULL },
		.output = &listing,
		.timeout_ms = 60000,
	};
	char *rest = NULL;

	if (command_run(&command, err) < 0)
		return husk_wrap(err, "cannot read this host's package sources");
	for (char *line = listing.data ? strtok_r(listing.data, "\n", &rest) : NULL; line;
	     line = strtok_r(NULL, "\n", &rest))
		if (source_add(line, codename, out) < 0)
			return husk_fail_memory(err);
	if (out->size == 0)
		return husk_fail(err, HUSK_UNAVAILABLE,
				 "this host's apt has no source for Debian %s; add one to /etc/apt/sources.list.d",
				 codename);
	return 0;
}

/* This host's settings for its mirror (proxy, certificates, time checks), as --aptopt arguments. */
static int options_collect(char ***arguments, struct husk_error *err)
{
	static const char *const prefixes[] = { "Acquire::http", "Acquire::https", "Acquire::Check-",
						"Acquire::Retries", "Acquire::ForceIP" };
	cleanup_buf struct buf listing = { 0 };
	struct command command = {
		COMMAND_INIT,
		.argv = (const char *[]){ "apt-config", "dump", NULL },
		.output = &listing,
		.timeout_ms = 60000,
	};
	char *rest = NULL;

	if (command_run(&command, err) < 0)
		return husk_wrap(err, "cannot read this host's apt configuration");
	for (char *line = listing.data ? strtok_r(listing.data, "\n", &rest) : NULL; line;
	     line = strtok_r(NULL, "\n", &rest)) {
		for (size_t i = 0; i < ARRAY_SIZE(prefixes); i++) {
			cleanup_free char *argument = str_format("--aptopt=%s", line);
			if (!argument || (str_starts(line, prefixes[i]) && !str_ends(line, "\"\";") &&
					  strv_add(arguments, argument) < 0))
				return husk_fail_memory(err);
		}
	}
	return 0;
}

/* ---- the command ---- */

static int join(char **list, const char *separator, struct buf *out)
{
	for (; list && *list; list++)
		if (buf_printf(out, "%s%s", *list, separator) < 0)
			return -1;
	return 0;
}

static bool listed(char **list, const char *word)
{
	for (; list && *list; list++)
		if (str_equal(*list, word))
			return true;
	return false;
}

static int add_include(const struct template_definition *definition, char ***arguments, struct husk_error *err)
{
	cleanup_buf struct buf words = { 0 };

	if (buf_append_string(&words, "--include=") < 0 || join(definition->packages, ",", &words) < 0 ||
	    (definition->npm && buf_append_string(&words, "nodejs,npm,ca-certificates,") < 0) ||
	    (definition->pip && buf_append_string(&words, "python3-pip,ca-certificates,") < 0))
		return husk_fail_memory(err);
	if (words.data[words.size - 1] != ',')
		return 0;
	words.data[words.size - 1] = '\0';
	return strv_add(arguments, words.data) < 0 ? husk_fail_memory(err) : 0;
}

static int add_excludes(const struct template_definition *definition, char ***arguments, struct husk_error *err)
{
	for (char **pattern = definition->exclude; pattern && *pattern; pattern++) {
		cleanup_free char *argument = str_format("--dpkgopt=path-exclude=%s", *pattern);
		if (!argument || strv_add(arguments, argument) < 0)
			return husk_fail_memory(err);
	}
	return 0;
}

static int arguments_collect(const struct build *build, const char *codename, char ***arguments, struct husk_error *err)
{
	/* Programs in a sandbox never read manuals and translations, which are large. Copyright files stay. */
	static const char *const fixed[] = {
		"mmdebstrap",
		"--verbose",
		"--mode=root", /* of its cell */
		"--skip=chroot/mount/sys",
		"--skip=cleanup/apt", /* customize.sh does that, for the new root only */
		"--variant=minbase",
		"--format=tar",
		"--aptopt=APT::Install-Recommends \"false\"",
		"--aptopt=Acquire::Languages \"none\"",
		"--dpkgopt=force-unsafe-io",
		"--dpkgopt=path-exclude=/usr/share/man/*",
		"--dpkgopt=path-exclude=/usr/share/info/*",
		"--dpkgopt=path-exclude=/usr/share/lintian/*",
		"--dpkgopt=path-exclude=/usr/share/locale/*",
		"--dpkgopt=path-include=/usr/share/locale/locale.alias",
		"--dpkgopt=path-exclude=/usr/share/doc/*",
		"--dpkgopt=path-include=/usr/share/doc/*/copyright",
		/* Java's packages link manuals in this directory, and fail if it is missing. */
		"--essential-hook=mkdir -p \"$1/usr/share/man/man1\"",
	};

	for (size_t i = 0; i < ARRAY_SIZE(fixed); i++)
		if (strv_add(arguments, fixed[i]) < 0)
			return husk_fail_memory(err);
	if (strv_add(arguments, "--customize-hook=" BUILDER_SCRIPT) < 0)
		return husk_fail_memory(err);
	if (options_collect(arguments, err) < 0 || add_excludes(build->definition, arguments, err) < 0 ||
	    add_include(build->definition, arguments, err) < 0)
		return -1;
	if (strv_add(arguments, codename) < 0 || strv_add(arguments, BUILDER_WORK "/root.tar") < 0 ||
	    strv_add(arguments, BUILDER_WORK "/debian.list") < 0)
		return husk_fail_memory(err);
	return 0;
}

static int add_variable(char ***environment, const char *name, const char *value)
{
	cleanup_free char *pair = str_format("%s=%s", name, value);

	return pair ? strv_add(environment, pair) : -1;
}

/* The variables of customize.sh, and those for the servers; no other variable of the caller. */
static int environment_collect(const struct build *build, char ***environment, struct husk_error *err)
{
	const struct template_definition *definition = build->definition;
	cleanup_buf struct buf npm = { 0 }, pip = { 0 }, users = { 0 }, scripts = { 0 }, excludes = { 0 };

	if (join(definition->npm, " ", &npm) < 0 || join(definition->pip, " ", &pip) < 0 ||
	    join(definition->users, "\n", &users) < 0 || join(definition->scripts, "\n", &scripts) < 0 ||
	    join(definition->exclude, "\n", &excludes) < 0 ||
	    add_variable(environment, "PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin") < 0 ||
	    add_variable(environment, "HOME", BUILDER_WORK) < 0 || add_variable(environment, "LC_ALL", "C.UTF-8") < 0 ||
	    add_variable(environment, "DEBIAN_FRONTEND", "noninteractive") < 0 ||
	    add_variable(environment, "TMPDIR", BUILDER_WORK) < 0 ||
	    add_variable(environment, "HUSK_DEFINITION", BUILDER_WORK "/definition") < 0 ||
	    add_variable(environment, "HUSK_NPM", npm.data ? npm.data : "") < 0 ||
	    add_variable(environment, "HUSK_KEEP_NPM", listed(definition->packages, "npm") ? "1" : "") < 0 ||
	    add_variable(environment, "HUSK_PIP", pip.data ? pip.data : "") < 0 ||
	    add_variable(environment, "HUSK_KEEP_PIP", listed(definition->packages, "python3-pip") ? "1" : "") < 0 ||
	    add_variable(environment, "HUSK_EXCLUDE", excludes.data ? excludes.data : "") < 0 ||
	    add_variable(environment, "HUSK_USERS", users.data ? users.data : "") < 0 ||
	    add_variable(environment, "HUSK_SCRIPTS", scripts.data ? scripts.data : "") < 0)
		return husk_fail_memory(err);
	for (size_t i = 0; i < ARRAY_SIZE(passed_on); i++) {
		const char *value = getenv(passed_on[i]);
		if (value && add_variable(environment, passed_on[i], value) < 0)
			return husk_fail_memory(err);
	}
	return 0;
}

/* ---- the working directory ---- */

/* The caller's npm settings, if any, in a file that the cell can read; the file is removed with the cell. */
static int stage_npm(const struct build *build, const char *stage, struct husk_error *err)
{
	const char *given = getenv("NPM_CONFIG_USERCONFIG"), *home = getenv("HOME");
	cleanup_free char *from = given && *given ? strdup(given) : str_format("%s/.npmrc", home ? home : "/root");
	cleanup_free char *to = str_format("%s/.npmrc", stage);
	size_t size = 0;
	cleanup_free char *text = from ? file_read(from, 1u << 20, &size, NULL) : NULL;

	if (!from || !to)
		return husk_fail_memory(err);
	if (!text)
		return 0;
	if (file_write_atomic(to, text, size, 0600, err) < 0)
		return -1;
	return chown(to, build->jail->uid_base, build->jail->uid_base) < 0
		       ? husk_fail_errno(err, "cannot hand '%s' over", to)
		       : 0;
}

/* Makes the working directory of the cell, with a copy of the definition over those of its parts. The cell may not be
 * able to read their own directories. */
static int stage_fill(const struct build *build, const char *stage, struct husk_error *err)
{
	cleanup_free char *definition = str_format("%s/definition", stage);

	if (!definition)
		return husk_fail_memory(err);
	if (build_directory(build, stage, err) < 0 || build_directory(build, definition, err) < 0)
		return -1;
	for (char **part = build->definition->parts; part && *part; part++)
		if (build_copy(build, *part, true, definition, err) < 0)
			return -1;
	if (build_copy(build, build->definition->source, true, definition, err) < 0)
		return -1;
	return build->definition->npm ? stage_npm(build, stage, err) : 0;
}

/* ---- following it ---- */

/* Converts the output of mmdebstrap and apt to progress lines for people. */
struct follower {
	const struct build *build;
	FILE *log;
	unsigned total, unpacked, configured;
	int64_t said_ms;
	char reason[REASON_MAX]; /* the first error, or otherwise the last line */
	bool complained;
};

static void follow_count(struct follower *follower)
{
	int64_t now = time_monotonic_ms();

	if (now - follower->said_ms < SAY_EVERY_MS)
		return;
	follower->said_ms = now;
	build_say(follower->build, "installing packages: %u unpacked, %u set up, of %u", follower->unpacked,
		  follower->configured, follower->total);
}

static void follow_line(struct follower *follower, const char *line)
{
	unsigned count;

	if (str_starts(line, "E: ") || str_starts(line, "error: ") || str_starts(line, "npm ERR!") ||
	    (strstr(line, "customize.sh: ") && !str_starts(line, "I: "))) {
		if (!follower->complained)
			snprintf(follower->reason, sizeof(follower->reason), "%s", line);
		follower->complained = true;
	} else if (!follower->complained && line[0] && !str_starts(line, "I: ")) {
		snprintf(follower->reason, sizeof(follower->reason), "%s", line);
	}
	if (str_starts(line, "husk: "))
		build_say(follower->build, "%s", line + strlen("husk: "));
	else if (str_starts(line, "I: running apt-get update"))
		build_say(follower->build, "reading package lists");
	else if (str_starts(line, "I: creating tarball"))
		build_say(follower->build, "packing the root");
	else if (sscanf(line, "%*u upgraded, %u newly installed", &count) == 1) {
		follower->total += count;
		build_say(follower->build, "downloading %u packages", count);
	} else if (str_starts(line, "Unpacking ")) {
		follower->unpacked++;
		follow_count(follower);
	} else if (str_starts(line, "Setting up ")) {
		follower->configured++;
		follow_count(follower);
	}
}

static void follow_output(struct follower *follower, int fd)
{
	cleanup_file FILE *stream = fdopen(fd, "r");
	char *line = NULL;
	size_t capacity = 0;

	if (!stream) {
		fd_close(&fd);
		return;
	}
	while (getline(&line, &capacity, stream) >= 0) {
		if (follower->log)
			fputs(line, follower->log);
		line[strcspn(line, "\r\n")] = '\0';
		follow_line(follower, line);
	}
	free(line);
}

static int wait_for(pid_t pid, const char *reason, const char *log, struct husk_error *err)
{
	int status;

	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return husk_fail_errno(err, "cannot wait for mmdebstrap");
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
		return 0;
	if (WIFSIGNALED(status))
		return husk_fail(err, HUSK_INTERNAL, "mmdebstrap was ended by signal %d", WTERMSIG(status));
	return husk_fail(
		err, HUSK_UNAVAILABLE,
		"mmdebstrap failed: %s (everything it said is in %s); a host without a network can take a prebuilt "
		"template (husk template import, husk template pull)",
		reason, log);
}

static int run_following(const struct build *build, const char *stage, const char *hook, char **arguments,
			 char **environment, const char *log, struct husk_error *err)
{
	struct follower follower = { .build = build };
	cleanup_file FILE *file = fopen(log, "we");
	int ends[2];
	pid_t pid;

	follower.log = file;
	if (pipe2(ends, O_CLOEXEC) < 0)
		return husk_fail_errno(err, "cannot make a pipe");
	int started = step_packages(build->jail, stage, hook, arguments, environment, ends[1], &pid, err);
	fd_close(&ends[1]);
	if (started < 0) {
		fd_close(&ends[0]);
		return -1;
	}
	follow_output(&follower, ends[0]);
	return wait_for(pid, follower.reason, log, err);
}

/* ---- all of it ---- */

int debian_build(const struct build *build, const char *out_tar, const char *log, struct husk_error *err)
{
	cleanup_free char *codename = host_codename(err);
	cleanup_free char *hook = template_libfile("templates/customize.sh");
	cleanup_free char *stage = str_format("%s/stage", build->work);
	cleanup_free char *made = str_format("%s/stage/root.tar", build->work);
	cleanup_free char *sources = str_format("%s/stage/debian.list", build->work);
	cleanup_strv char **arguments = NULL, **environment = NULL;
	cleanup_buf struct buf list = { 0 };

	if (!codename)
		return -1;
	if (!hook)
		return template_libfile_missing("templates/customize.sh", err);
	if (!stage || !made || !sources)
		return husk_fail_memory(err);
	if (stage_fill(build, stage, err) < 0 || sources_collect(codename, &list, err) < 0 ||
	    file_write_atomic(sources, list.data, list.size, 0644, err) < 0 ||
	    arguments_collect(build, codename, &arguments, err) < 0 ||
	    environment_collect(build, &environment, err) < 0 ||
	    run_following(build, stage, hook, arguments, environment, log, err) < 0)
		return -1;
	if (lchown(made, geteuid(), getegid()) < 0 || rename(made, out_tar) < 0)
		return husk_fail_errno(err, "cannot keep what mmdebstrap made");
	return 0;
}
