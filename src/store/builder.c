/*
 * `husk builder`: one step of building a root image, in a cell. The caller (rootfs.c, through the steps at the end) may
 * be a server with threads and secrets in its memory. So a step is a separate program: it gets all arguments on its
 * command line and the tar as standard input. It enters its cell before it reads the first byte.
 *
 *     husk builder --uid N --directory TREE --name NAME --field tar [--limit BYTES] unpack   < root.tar
 *     husk builder --uid N --directory TREE --name NAME --digest HEX [--unpacked] layer      < layer.tar.gz
 *     husk builder --uid N --directory TREE --image FILE image
 *     husk builder --uid N --directory WORK --image SCRIPT packages mmdebstrap ARGUMENTS...
 *     husk builder --uid N --directory TREE describe                                         < machine.tar
 *     husk builder --uid N --directory TREE --digest HEX --field "root image" chunks         < machine.tar
 *     husk builder --uid N --directory / --image HUSK-FILM film                              < recording > pictures
 *     husk builder --uid N --directory / --image FFMPEG video -i pipe:0 ARGUMENTS...         < pictures > video
 *
 * An error is returned on standard output: the code, the field and the message, a line each. The steps of a video have their
 * result there, and return the message on standard error.
 */
#include "store/builder.h"

#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#include "jail/cell.h"
#include "jail/cgroup.h"
#include "store/portable.h"
#include "store/rootfs.h"

#define TREE "/tree"
#define IMAGE "/image"
#define MEMORY_MAX (4ull << 30)
#define FILE_MAX (256ull << 30)
#define CPU_SECONDS_MAX (20 * 60)
#define TOOL_TIMEOUT_MS (30 * 60 * 1000)
#define REPORT_MAX 2048
#define TOOL "mkfs.erofs"
#define FILES_MAX 64
#define INSTALL_CPU_SECONDS_MAX (60 * 60) /* of one process */
#define FILM_MEMORY_MAX (1ull << 30)
#define FILM_FILE_MAX (64ull << 10) /* its messages; the rest goes through pipes */

struct step {
	const char *kind, *directory, *name, *field, *digest, *image;
	char **argv; /* what follows the step */
	bool unpacked;
	uint32_t uid;
	uint64_t limit;
};

/* ---- inside the cell ---- */

static int report(const struct husk_error *err)
{
	dprintf(1, "%d\n%s\n%s\n", (int)err->code, err->field, err->message);
	return 1;
}

static int run_unpack(void *data)
{
	const struct step *step = data;
	struct husk_error err = { 0 };

	return unpack_tar(0, step->name, step->field, step->limit, TREE, &err) < 0 ? report(&err) : 0;
}

static int run_layer(void *data)
{
	const struct step *step = data;
	struct oci_layer layer = { .path = (char *)step->name, .unpacked = step->unpacked };
	struct husk_error err = { 0 };

	snprintf(layer.digest, sizeof(layer.digest), "%s", step->digest);
	if (oci_verify(0, step->name, &layer, &err) < 0 || unpack_layer(0, step->name, TREE, &err) < 0)
		return report(&err);
	return 0;
}

/* The signature of a portable machine, and its description as it was signed. The caller verifies them. */
static int run_describe(void *data)
{
	cleanup(portable_layout_free) struct portable_layout layout = { .fd = -1 };
	cleanup(portable_seal_free) struct portable_seal seal = { 0 };
	struct husk_error err = { 0 };
	size_t size = 0;

	(void)data;
	if (portable_scan(0, &layout, &err) < 0 || portable_open_seal(&layout, &seal, &err) < 0)
		return report(&err);
	cleanup_free char *text = portable_document(&layout, seal.config, &size, &err);
	if (!text)
		return report(&err);
	dprintf(1, "%s\n%s\n", seal.key, seal.signature);
	return write_full(1, text, size) < 0 ? 1 : 0;
}

/* The files of the portable machine with this description. */
static int run_chunks(void *data)
{
	const struct step *step = data;
	cleanup(portable_layout_free) struct portable_layout layout = { .fd = -1 };
	cleanup(portable_free) struct portable portable = { 0 };
	struct husk_error err = { 0 };
	size_t size = 0;

	if (portable_scan(0, &layout, &err) < 0)
		return report(&err);
	cleanup_free char *text = portable_document(&layout, step->digest, &size, &err);
	if (!text || portable_parse(text, size, &portable, &err) < 0 ||
	    portable_unpack(&layout, &portable, step->field, TREE, &err) < 0)
		return report(&err);
	return 0;
}

/* noinline_data: gVisor supports no other layout. Times are kept, because python recompiles a module if the time of its
 * source differs from the time in its compiled form. No extended attributes: a guest must not depend on the labels of
 * the host. */
static int run_image(void *data)
{
	const char *program = data;
	const char *const argv[] = { TOOL, "--quiet", "-Enoinline_data", "-x-1", IMAGE, TREE, NULL };
	static const char *const environment[] = { "PATH=/usr/bin:/bin", "LC_ALL=C", NULL };

	execve(program, (char *const *)argv, (char *const *)environment);
	dprintf(2, "cannot start %s: %s\n", program, strerror(errno));
	return 126;
}

/* ---- around it ---- */

static int run_in_cell(const struct step *step, const struct cell_file *files, int (*inside)(void *), void *data,
		       bool executes, struct husk_error *err)
{
	const struct cell cell = { .uid_base = step->uid,
				   .files = files,
				   .memory_bytes = MEMORY_MAX,
				   .file_bytes = FILE_MAX,
				   .cpu_seconds = CPU_SECONDS_MAX,
				   .executes = executes };

	return cell_run(&cell, inside, data, err);
}

/* libc loads this library when a thread ends, and aborts without it. The library is in the same directory as libc. */
static int add_unwinder(const char *library, char ***out)
{
	const char *name = strrchr(library, '/');

	if (!name || !str_equal(name, "/libc.so.6"))
		return 0;
	cleanup_free char *path = str_format("%.*s/libgcc_s.so.1", (int)(name - library), library);
	if (!path)
		return -1;
	return access(path, R_OK) == 0 ? strv_add(out, path) : 0;
}

/* Lists a program and every library that it loads, as reported by the loader. */
static int list_program(const char *program, char ***out, struct husk_error *err)
{
	cleanup_buf struct buf listing = { 0 };
	struct command command = {
		COMMAND_INIT,
		.argv = (const char *[]){ "ldd", program, NULL },
		.output = &listing,
		.timeout_ms = 60000,
	};
	char *rest = NULL;

	if (command_run(&command, err) < 0)
		return husk_wrap(err, "cannot find the libraries of %s", program);
	if (strv_add(out, program) < 0)
		return husk_fail_memory(err);
	for (char *line = listing.data ? strtok_r(listing.data, "\n", &rest) : NULL; line;
	     line = strtok_r(NULL, "\n", &rest)) {
		char *path = strchr(line, '/'), *end = path ? strstr(path, " (0x") : NULL;
		if (!end)
			continue;
		*end = '\0';
		if (strv_add(out, path) < 0 || add_unwinder(path, out) < 0)
			return husk_fail_memory(err);
	}
	return 0;
}

static char *find_tool(const char *name)
{
	static const char *const places[] = { "/usr/bin", "/usr/sbin", "/usr/local/bin", "/bin", "/sbin" };

	for (size_t i = 0; i < ARRAY_SIZE(places); i++) {
		cleanup_free char *path = str_format("%s/%s", places[i], name);
		if (path && access(path, X_OK) == 0)
			return steal_pointer(path);
	}
	return NULL;
}

static int make_image(const struct step *step, struct husk_error *err)
{
	struct cell_file files[FILES_MAX] = { { step->directory, TREE, CELL_READ },
					      { step->image, IMAGE, CELL_WRITE } };
	cleanup_free char *tool = find_tool(TOOL);
	cleanup_strv char **needed = NULL;
	size_t count = 2;

	if (!tool)
		return husk_fail(err, HUSK_UNAVAILABLE, TOOL " is not installed (package erofs-utils)");
	if (list_program(tool, &needed, err) < 0)
		return -1;
	for (char **each = needed; *each; each++) {
		if (count + 1 == ARRAY_SIZE(files))
			return husk_fail(err, HUSK_INTERNAL, "%s needs too many libraries", tool);
		files[count++] = (struct cell_file){ *each, *each, CELL_READ };
	}
	return run_in_cell(step, files, run_image, tool, true, err);
}

/* Files of the host that apt, dpkg, perl, npm and pip read, if they exist. None of them is a secret: root of the cell
 * has no rights on the host, and reads only what everybody can read. */
static const struct cell_file install_files[] = {
	{ "/usr", "/usr", CELL_READ },
	{ "/bin", "/bin", CELL_LINK },
	{ "/sbin", "/sbin", CELL_LINK },
	{ "/lib", "/lib", CELL_LINK },
	{ "/lib64", "/lib64", CELL_LINK },
	{ "/etc/alternatives", "/etc/alternatives", CELL_READ },
	{ "/etc/apt", "/etc/apt", CELL_READ },
	{ "/etc/dpkg", "/etc/dpkg", CELL_READ },
	{ "/etc/perl", "/etc/perl", CELL_READ },
	{ "/etc/ssl", "/etc/ssl", CELL_READ },
	{ "/etc/npmrc", "/etc/npmrc", CELL_READ },
	{ "/etc/pip.conf", "/etc/pip.conf", CELL_READ },
	{ "/etc/ld.so.cache", "/etc/ld.so.cache", CELL_READ },
	{ "/etc/debian_version", "/etc/debian_version", CELL_READ },
	{ "/etc/passwd", "/etc/passwd", CELL_READ },
	{ "/etc/group", "/etc/group", CELL_READ },
	{ "/etc/nsswitch.conf", "/etc/nsswitch.conf", CELL_READ },
	{ "/etc/host.conf", "/etc/host.conf", CELL_READ },
	{ "/etc/gai.conf", "/etc/gai.conf", CELL_READ },
	{ "/etc/hosts", "/etc/hosts", CELL_READ },
	{ "/etc/resolv.conf", "/etc/resolv.conf", CELL_READ },
	{ "/etc/services", "/etc/services", CELL_READ },
	{ "/etc/protocols", "/etc/protocols", CELL_READ },
	{ "/dev/null", "/dev/null", CELL_DEVICE },
	{ "/dev/zero", "/dev/zero", CELL_DEVICE },
	{ "/dev/full", "/dev/full", CELL_DEVICE },
	{ "/dev/random", "/dev/random", CELL_DEVICE },
	{ "/dev/urandom", "/dev/urandom", CELL_DEVICE },
	{ "/dev/tty", "/dev/tty", CELL_DEVICE },
};

static int run_packages(void *data)
{
	char *const *argv = data;

	(void)!chdir(BUILDER_WORK);
	execvp(argv[0], argv);
	dprintf(2, "error: cannot start %s: %s\n", argv[0], strerror(errno));
	return 126;
}

/* Debian packages, npm, pip and the definition's scripts: third-party programs, which need the network to be
 * downloaded. */
static int install_packages(const struct step *step, struct husk_error *err)
{
	cleanup_free char *temporary = str_format("%s/tmp", step->directory);
	struct cell_file files[ARRAY_SIZE(install_files) + 4];
	size_t count = 0;

	if (!temporary)
		return husk_fail_memory(err);
	for (size_t i = 0; i < ARRAY_SIZE(install_files); i++)
		if (access(install_files[i].from, F_OK) == 0)
			files[count++] = install_files[i];
	files[count++] = (struct cell_file){ step->directory, BUILDER_WORK, CELL_WRITE };
	files[count++] = (struct cell_file){ temporary, "/tmp", CELL_WRITE };
	files[count++] = (struct cell_file){ step->image, BUILDER_SCRIPT, CELL_READ };
	files[count] = (struct cell_file){ 0 };
	const struct cell cell = { .uid_base = step->uid,
				   .files = files,
				   .file_bytes = FILE_MAX,
				   .cpu_seconds = INSTALL_CPU_SECONDS_MAX,
				   .installs = true };
	return cell_run(&cell, run_packages, (void *)step->argv, err);
}

/* ---- videos ---- */

static int run_program(void *data)
{
	char *const *argv = data;
	static const char *const environment[] = { "PATH=/usr/bin:/bin", "LC_ALL=C", "HOME=/", NULL };

	execve(argv[0], argv, (char *const *)environment);
	dprintf(2, "cannot start %s: %s\n", argv[0], strerror(errno));
	return 126;
}

/* The program is alone in its cell, or, with its libraries, below /usr. */
static int make_video(const struct step *step, bool alone, struct husk_error *err)
{
	static const char *const libraries[] = { "/usr", "/lib", "/lib64", "/etc/alternatives", "/etc/ld.so.cache" };
	struct cell_file files[ARRAY_SIZE(libraries) + 1] = { { step->image, step->image, CELL_READ } };
	size_t count = alone;

	for (size_t i = 0; i < ARRAY_SIZE(libraries) && !alone; i++)
		if (access(libraries[i], F_OK) == 0)
			files[count++] = (struct cell_file){ libraries[i], libraries[i],
							     str_starts(libraries[i], "/lib") ? CELL_LINK : CELL_READ };
	files[count] = (struct cell_file){ 0 };
	const struct cell cell = { .uid_base = step->uid,
				   .files = files,
				   .memory_bytes = alone ? FILM_MEMORY_MAX : MEMORY_MAX,
				   .file_bytes = FILM_FILE_MAX,
				   .cpu_seconds = CPU_SECONDS_MAX,
				   .executes = true };
	cleanup_free const char **argv = calloc(strv_length(step->argv) + 2, sizeof(*argv));
	if (!argv)
		return husk_fail_memory(err);
	argv[0] = step->image;
	for (size_t i = 0; step->argv[i]; i++)
		argv[i + 1] = step->argv[i];
	return cell_run(&cell, run_program, argv, err);
}

static bool is_video(const struct step *step)
{
	return str_equal(step->kind, "film") || str_equal(step->kind, "video");
}

static int run_step(const struct step *step, struct husk_error *err)
{
	const struct cell_file files[] = { { step->directory, TREE, CELL_WRITE }, { 0 } };
	const struct cell_file seen[] = { { step->directory, TREE, CELL_READ }, { 0 } };
	void *data = (void *)step;

	if (str_equal(step->kind, "image") && step->image)
		return make_image(step, err);
	if (str_equal(step->kind, "packages") && step->image && step->argv[0])
		return install_packages(step, err);
	if (is_video(step) && step->image)
		return make_video(step, str_equal(step->kind, "film"), err);
	if (str_equal(step->kind, "unpack") && step->name && step->field)
		return run_in_cell(step, files, run_unpack, data, false, err);
	if (str_equal(step->kind, "layer") && step->name && step->digest)
		return run_in_cell(step, files, run_layer, data, false, err);
	if (str_equal(step->kind, "describe")) /* reads unverified input: it leaves nothing behind */
		return run_in_cell(step, seen, run_describe, data, false, err);
	if (str_equal(step->kind, "chunks") && step->digest && step->field)
		return run_in_cell(step, files, run_chunks, data, false, err);
	return husk_fail(err, HUSK_INVALID, "husk builder is started by husk itself");
}

static int parse_arguments(int argc, char **argv, struct step *out)
{
	static const struct option options[] = { { "uid", required_argument, NULL, 'u' },
						 { "directory", required_argument, NULL, 'd' },
						 { "name", required_argument, NULL, 'n' },
						 { "field", required_argument, NULL, 'f' },
						 { "digest", required_argument, NULL, 's' },
						 { "image", required_argument, NULL, 'i' },
						 { "unpacked", no_argument, NULL, 'p' },
						 { "limit", required_argument, NULL, 'l' },
						 { 0 } };
	int64_t uid = 0, limit = 0;
	int option;

	while ((option = getopt_long(argc, argv, "+", options, NULL)) != -1) {
		if ((option == 'u' && str_to_int64(optarg, 1, UINT32_MAX - CELL_IDS, &uid) < 0) ||
		    (option == 'l' && str_to_int64(optarg, 0, INT64_MAX, &limit) < 0))
			return -1;
		const char **text = option == 'd'   ? &out->directory
				    : option == 'n' ? &out->name
				    : option == 'f' ? &out->field
				    : option == 's' ? &out->digest
				    : option == 'i' ? &out->image
						    : NULL;
		if (text)
			*text = optarg;
		else if (option == 'p')
			out->unpacked = true;
		else if (option != 'u' && option != 'l')
			return -1;
	}
	out->kind = optind < argc ? argv[optind] : NULL;
	out->argv = argv + MIN(optind + 1, argc);
	out->uid = (uint32_t)uid;
	out->limit = (uint64_t)limit;
	return out->kind && out->directory && uid ? 0 : -1;
}

int builder_main(int argc, char **argv)
{
	struct step step = { 0 };
	struct husk_error err = { 0 };

	if (parse_arguments(argc, argv, &step) < 0) {
		husk_fail(&err, HUSK_INVALID, "husk builder is started by husk itself");
		return report(&err);
	}
	int status = run_step(&step, &err);
	if (status < 0 && is_video(&step))
		dprintf(2, "%s\n", err.message);
	else if (status < 0)
		report(&err);
	return status < 0 ? 1 : status;
}

/* ---- the caller's side ---- */

/* Reads the report of the step. Its text is not trusted. */
static int take_report(struct buf *output, struct husk_error *err)
{
	char *rest = output->data;
	char *code = rest ? strsep(&rest, "\n") : NULL, *field = rest ? strsep(&rest, "\n") : NULL;
	int64_t number = 0;

	if (!rest || output->size > REPORT_MAX || str_to_int64(code, HUSK_INVALID, HUSK_INTERNAL, &number) < 0)
		return -1;
	rest[strcspn(rest, "\n")] = '\0';
	for (char *at = rest; *at; at++)
		if ((unsigned char)*at < ' ' || *at == 0x7f)
			*at = '?';
	husk_fail(err, (enum husk_code)number, "%s", rest);
	if (err)
		snprintf(err->field, sizeof(err->field), "%.*s", (int)strspn(field, "abcdefghijklmnopqrstuvwxyz_"),
			 field);
	return 0;
}

static int enter_cgroup(void *data)
{
	return data && cgroup_enter(data) < 0 ? 124 : 0;
}

/* The step ends with this process, also if this process is killed. */
static int enter_cell(void *data)
{
	return prctl(PR_SET_PDEATHSIG, SIGTERM) < 0 ? 124 : enter_cgroup(data);
}

/* `answer` gets what the step writes; NULL: nothing is expected. */
static int run_answering(const struct template_jail *jail, const char *const *argv, int input, struct buf *answer,
			 struct husk_error *err)
{
	cleanup_buf struct buf own = { 0 };
	struct buf *output = answer ? answer : &own;
	struct husk_error why = { 0 };
	const struct command command = { .argv = argv,
					 .stdin_fd = input,
					 .stdout_fd = -1,
					 .stderr_fd = -1,
					 .output = output,
					 .before_exec = enter_cgroup,
					 .data = jail->cgroup,
					 .timeout_ms = TOOL_TIMEOUT_MS };

	if (command_run(&command, &why) == 0)
		return 0;
	if (take_report(output, err) < 0)
		return husk_fail(err, why.code, "%s", why.message);
	return -1;
}

static int run_builder(const struct template_jail *jail, const char *const *argv, int input, struct husk_error *err)
{
	return run_answering(jail, argv, input, NULL, err);
}

int step_unpack(const struct template_jail *jail, int fd, const char *name, const char *field, uint64_t limit,
		const char *directory, struct husk_error *err)
{
	char uid[16], most[24];
	const char *const argv[] = { jail->program, "builder", "--uid", uid,       "--directory", directory, "--name",
				     name,          "--field", field,   "--limit", most,          "unpack",  NULL };

	snprintf(uid, sizeof(uid), "%u", jail->uid_base);
	snprintf(most, sizeof(most), "%llu", (unsigned long long)limit);
	return run_builder(jail, argv, fd, err);
}

int step_layer(const struct template_jail *jail, int fd, const char *name, const struct oci_layer *layer,
	       const char *directory, struct husk_error *err)
{
	char uid[16];
	const char *const argv[] = { jail->program,
				     "builder",
				     "--uid",
				     uid,
				     "--directory",
				     directory,
				     "--name",
				     name,
				     "--digest",
				     layer->digest,
				     layer->unpacked ? "--unpacked" : "--",
				     "layer",
				     NULL };

	snprintf(uid, sizeof(uid), "%u", jail->uid_base);
	return run_builder(jail, argv, fd, err);
}

int step_image(const struct template_jail *jail, const char *directory, const char *image, struct husk_error *err)
{
	char uid[16];
	const char *const argv[] = { jail->program, "builder", "--uid", uid,     "--directory",
				     directory,     "--image", image,   "image", NULL };

	snprintf(uid, sizeof(uid), "%u", jail->uid_base);
	return run_builder(jail, argv, -1, err);
}

int step_describe(const struct template_jail *jail, int fd, const char *directory, struct buf *answer,
		  struct husk_error *err)
{
	char uid[16];
	const char *const argv[] = {
		jail->program, "builder", "--uid", uid, "--directory", directory, "describe", NULL
	};

	snprintf(uid, sizeof(uid), "%u", jail->uid_base);
	return run_answering(jail, argv, fd, answer, err);
}

int step_chunks(const struct template_jail *jail, int fd, const char *digest, const char *folders,
		const char *directory, struct husk_error *err)
{
	char uid[16];
	const char *const argv[] = { jail->program, "builder", "--uid",   uid,     "--directory", directory,
				     "--digest",    digest,    "--field", folders, "chunks",      NULL };

	snprintf(uid, sizeof(uid), "%u", jail->uid_base);
	return run_builder(jail, argv, fd, err);
}

static int make_temporary(const struct template_jail *jail, const char *directory, struct husk_error *err)
{
	cleanup_free char *path = str_format("%s/tmp", directory);

	if (!path)
		return husk_fail_memory(err);
	if (dir_make(path, 0700, err) < 0)
		return -1;
	if (chmod(path, 01777) < 0 || chown(path, jail->uid_base, jail->uid_base) < 0)
		return husk_fail_errno(err, "cannot hand '%s' over", path);
	return 0;
}

int step_packages(const struct template_jail *jail, const char *directory, const char *script, char *const *arguments,
		  char *const *environment, int output, pid_t *pid, struct husk_error *err)
{
	char uid[16];
	const char *const first[] = { jail->program, "builder", "--uid", uid,       "--directory",
				      directory,     "--image", script,  "packages" };
	cleanup_free const char **argv = calloc(ARRAY_SIZE(first) + strv_length(arguments) + 1, sizeof(*argv));
	size_t count = 0;

	if (!argv)
		return husk_fail_memory(err);
	if (make_temporary(jail, directory, err) < 0)
		return -1;
	snprintf(uid, sizeof(uid), "%u", jail->uid_base);
	for (size_t i = 0; i < ARRAY_SIZE(first); i++)
		argv[count++] = first[i];
	for (; *arguments; arguments++)
		argv[count++] = *arguments;
	const struct command command = { .argv = argv,
					 .environment = (const char *const *)environment,
					 .stdin_fd = -1,
					 .stdout_fd = output,
					 .stderr_fd = output,
					 .before_exec = enter_cell,
					 .data = jail->cgroup };
	*pid = command_start(&command, err);
	return *pid < 0 ? -1 : 0;
}

/* ---- the steps of a video ---- */

/* Sandboxes go first: a video can wait. */
static int enter_quietly(void *data)
{
	return nice(10) == -1 && errno == EPERM ? 124 : enter_cell(data);
}

static int start_video(const struct template_jail *jail, const char *program, const char *const *words,
		       const int fds[static 3], pid_t *pid, struct husk_error *err)
{
	char uid[16];
	const char *argv[FILES_MAX] = { jail->program, "builder", "--uid", uid,    "--directory",
					"/",           "--image", program, "film", NULL };
	size_t count = 8;

	for (; *words && count + 1 < ARRAY_SIZE(argv); words++)
		argv[count++] = *words;
	argv[count] = NULL;
	snprintf(uid, sizeof(uid), "%u", jail->uid_base);
	const struct command command = { .argv = argv,
					 .stdin_fd = fds[0],
					 .stdout_fd = fds[1],
					 .stderr_fd = fds[2],
					 .before_exec = enter_quietly,
					 .data = jail->cgroup };
	*pid = command_start(&command, err);
	return *pid < 0 ? -1 : 0;
}

int step_film(const struct template_jail *jail, int input, int output, int errors, pid_t *pid, struct husk_error *err)
{
	cleanup_free char *program = place_find("husk-film");
	static const char *const words[] = { "film", NULL };

	if (!program)
		return place_missing("husk-film", err);
	return start_video(jail, program, words, (int[]){ input, output, errors }, pid, err);
}

int step_video(const struct template_jail *jail, const char *format, int input, int output, int errors, pid_t *pid,
	       struct husk_error *err)
{
	/* Fragments: the result is a pipe, in which nothing can be written twice. */
	static const char *const mp4[] = { "video",       "-nostdin",
					   "-loglevel",   "error",
					   "-f",          "yuv4mpegpipe",
					   "-i",          "pipe:0",
					   "-c:v",        "libx264",
					   "-preset",     "veryfast",
					   "-crf",        "26",
					   "-threads",    "2",
					   "-pix_fmt",    "yuv420p",
					   "-g",          "100",
					   "-colorspace", "bt709",
					   "-color_trc",  "bt709",
					   "-movflags",   "+frag_keyframe+empty_moov+default_base_moof",
					   "-f",          "mp4",
					   "pipe:1",      NULL };
	static const char *const webm[] = { "video",        "-nostdin", "-loglevel",   "error",    "-f",
					    "yuv4mpegpipe", "-i",       "pipe:0",      "-c:v",     "libvpx-vp9",
					    "-deadline",    "realtime", "-cpu-used",   "8",        "-crf",
					    "32",           "-b:v",     "0",           "-threads", "2",
					    "-g",           "100",      "-colorspace", "bt709",    "-f",
					    "webm",         "pipe:1",   NULL };
	cleanup_free char *program = find_tool("ffmpeg");

	if (!program)
		return husk_fail(err, HUSK_UNAVAILABLE,
				 "ffmpeg is not installed on the host (apt install ffmpeg); without it, recordings are "
				 "exported as json only");
	return start_video(jail, program, str_equal(format, "mp4") ? mp4 : webm, (int[]){ input, output, errors }, pid,
			   err);
}
