/*
 * husk_build on a server: checks the Dockerfile here, and sends it with the files that a COPY, an ADD or a bind mount
 * names, without those that .dockerignore excludes. A word with a variable can mean any file, because only the server
 * knows the variables of base images; then all files are sent.
 */
#include <fcntl.h>
#include <sys/stat.h>

#include "build/work.h"
#include "remote/remote.h"

struct parcel {
	struct dockerfile file;
	struct context context;
	struct context_sources sources;
	bool whole;   /* every file */
	bool missing; /* a file that the Dockerfile names does not exist */
};

static void parcel_free(struct parcel *parcel)
{
	dockerfile_free(&parcel->file);
	context_end(&parcel->context);
	context_sources_free(&parcel->sources);
}

/* The server says what is missing, with the line. */
static void want(struct parcel *parcel, const char *word)
{
	size_t before = parcel->sources.count;

	if (strchr(word, '$'))
		parcel->whole = true;
	else if (context_find(&parcel->context, word, &parcel->sources, NULL) < 0)
		parcel->missing = true;
	for (size_t i = before; i < parcel->sources.count; i++)
		parcel->whole |= !*parcel->sources.items[i].path;
}

static void want_mounts(struct parcel *parcel, const struct dockerfile_step *step)
{
	for (size_t i = 0; i < step->flag_count; i++) {
		struct dockerfile_mount mount = { 0 };
		if (!str_equal(step->flags[i].key, "mount") ||
		    dockerfile_mount_parse(step->flags[i].value, &mount, NULL) < 0)
			continue;
		if (mount.type == MOUNT_BIND && !mount.from)
			want(parcel, mount.source ? mount.source : ".");
		dockerfile_mount_free(&mount);
	}
}

static void choose(struct parcel *parcel)
{
	for (size_t i = 0; i < parcel->file.step_count; i++) {
		const struct dockerfile_step *step = &parcel->file.steps[i];
		if (step->kind == STEP_RUN)
			want_mounts(parcel, step);
		if ((step->kind != STEP_COPY && step->kind != STEP_ADD) || dockerfile_flag(step, "from"))
			continue;
		for (size_t k = 0; step->words[k] && step->words[k + 1]; k++)
			if (!str_starts(step->words[k], "<<") && dockerfile_source(step->words[k]) == SOURCE_FILE)
				want(parcel, step->words[k]);
	}
}

/* The same path twice would be sent twice. */
static bool is_repeated(const struct context_sources *sources, size_t index)
{
	for (size_t i = 0; i < index; i++)
		if (str_equal(sources->items[i].path, sources->items[index].path))
			return true;
	return false;
}

static int write_files(const struct parcel *parcel, struct archive *archive, struct husk_error *err)
{
	static char none[] = "";
	const struct context_source all = { .path = none, .directory = true };

	if (parcel->context.root < 0)
		return 0;
	if (parcel->whole)
		return context_tar_send(&parcel->context, &all, archive, err);
	for (size_t i = 0; i < parcel->sources.count; i++)
		if (!is_repeated(&parcel->sources, i) &&
		    context_tar_send(&parcel->context, &parcel->sources.items[i], archive, err) < 0)
			return -1;
	return 0;
}

/* The files as a tar in an unnamed file. */
static int pack(const struct parcel *parcel, struct husk_error *err)
{
	const char *set = getenv("TMPDIR"), *place = set && *set ? set : "/var/tmp";
	cleanup_close int fd = open(place, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

	if (fd < 0)
		return husk_fail_errno(err, "cannot make a file in '%s'", place);
	struct archive *archive = context_tar_begin(fd, err);
	int result = archive ? write_files(parcel, archive, err) : -1;
	if (archive && context_tar_end(archive, result < 0 ? NULL : err) < 0)
		result = -1;
	return result < 0 ? -1 : steal_fd(&fd);
}

static int send_parcel(struct remote *remote, const struct husk_dockerfile_options *options,
		       const struct parcel *parcel, const char *text, struct husk_image **out, bool *fresh,
		       struct husk_error *err)
{
	cleanup_close int fd = pack(parcel, err);

	return fd < 0 ? -1 : remote_build(remote, options, text, fd, out, fresh, err);
}

int build_on_server(struct remote *remote, const struct husk_dockerfile_options *options, struct husk_image **out,
		    bool *fresh, struct husk_error *err)
{
	cleanup(parcel_free) struct parcel parcel = { .context = { .root = -1 } };
	cleanup_free char *text = NULL;
	struct husk_error why = { 0 };

	if (options->failed)
		return remote_refuse(remote, "a shell in the sandbox of a RUN that failed",
				     "build on the server's host to use --debug", err);
	if (!options->name)
		return husk_fail_field(err, "name", "the image needs a name: -t NAME");
	if (plan_read(options, &text, &parcel.file, err) < 0 ||
	    context_begin(options->context, options->text ? NULL : options->dockerfile, &parcel.context, err) < 0)
		return -1;
	choose(&parcel);
	int result = send_parcel(remote, options, &parcel, text, out, fresh, &why);
	/* A file that no word of the Dockerfile names is wanted by an ONBUILD of its base. */
	if (result < 0 && why.code == HUSK_INVALID && !parcel.whole && !parcel.missing &&
	    strstr(why.message, "context")) {
		parcel.whole = true;
		result = send_parcel(remote, options, &parcel, text, out, fresh, &why);
	}
	if (result == 0)
		return 0;
	husk_fail(err, why.code, "%s", why.message);
	if (err)
		snprintf(err->field, sizeof(err->field), "%s", why.field);
	return -1;
}
