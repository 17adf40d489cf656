/*
 * Snapshots and templates over the API. A template is built on the server: from a definition that the server has, or
 * from a root filesystem that is sent as a tar. The output of a build arrives as server-sent events.
 */
#include <fcntl.h>
#include <sys/stat.h>

#include "remote/remote_http.h"
#include "remote/remote_read.h"
#include "remote/remote_write.h"

static void *read_one_snapshot(const json_t *item, struct husk_error *err)
{
	return read_snapshot(item, err);
}

static void drop_snapshot(void *snapshot)
{
	husk_snapshot_free(snapshot);
}

int remote_snapshot_create(struct remote *remote, const char *sandbox, const char *name, struct husk_snapshot **out,
			   struct husk_error *err)
{
	cleanup_json json_t *document = NULL;
	struct writing w;

	write_begin(&w);
	write_text(&w, "name", name);
	struct exchange x = { .method = "POST", .body = write_done(&w, err) };
	if (!x.body)
		return -1;
	x.target = target_make("/v1/sandboxes/%s/snapshots", sandbox);
	if (exchange_run(remote, &x, &document, err) < 0)
		return -1;
	*out = read_snapshot(document, err);
	return *out ? 0 : -1;
}

int remote_snapshot_list(struct remote *remote, struct husk_snapshot ***out, struct husk_error *err)
{
	cleanup_json json_t *document = NULL;

	if (exchange_get(remote, target_make("/v1/snapshots"), &document, err) < 0)
		return -1;
	return read_list(document, "snapshots", read_one_snapshot, drop_snapshot, (void ***)out, err);
}

int remote_snapshot_remove(struct remote *remote, const char *snapshot, struct husk_error *err)
{
	struct exchange x = { .method = "DELETE", .target = target_make("/v1/snapshots/%s", snapshot) };

	return exchange_run(remote, &x, NULL, err);
}

/* ---- templates ---- */

int remote_template_list(struct remote *remote, struct husk_template ***out, struct husk_error *err)
{
	cleanup_json json_t *document = NULL;

	if (exchange_get(remote, target_make("/v1/templates"), &document, err) < 0)
		return -1;
	const json_t *array = read_array(document, "templates", err);
	struct husk_template **list = array ? calloc(json_array_size(array) + 1, sizeof(*list)) : NULL;
	size_t count = 0;
	if (!list)
		return array ? husk_fail_memory(err) : -1;
	for (size_t i = 0; i < json_array_size(array); i++) {
		const json_t *item = json_array_get(array, i);
		if (!json_is_true(json_object_get(item, "built"))) /* a definition that is not built yet */
			continue;
		list[count] = read_template(item, err);
		if (!list[count++]) {
			husk_template_list_free(list);
			return -1;
		}
	}
	*out = list;
	return 0;
}

int remote_template_remove(struct remote *remote, const char *name, struct husk_error *err)
{
	struct exchange x = { .method = "DELETE", .target = target_make("/v1/templates/%s", name) };

	return exchange_run(remote, &x, NULL, err);
}

/* The events of a build. */
struct build {
	const struct husk_build_options *options;
	json_t *done;
	struct husk_error failure;
	bool failed;
};

static void take_event(void *data, const char *name, json_t *document)
{
	struct build *build = data;
	const json_t *error = json_object_get(document, "error");
	const char *line = json_string_value(json_object_get(document, "line"));

	if (str_equal(name, "log") && line && build->options->progress)
		build->options->progress(build->options->data, line);
	if (str_equal(name, "done") && !build->done)
		build->done = json_incref(document);
	if (str_equal(name, "error")) {
		const char *message = json_string_value(json_object_get(error, "message"));
		const char *hint = json_string_value(json_object_get(error, "hint"));
		bool missing = str_equal(json_string_value(json_object_get(error, "code")), "not_found");
		husk_fail(&build->failure, missing ? HUSK_NOT_FOUND : HUSK_UNAVAILABLE, "%s%s%s",
			  message ? message : "the build failed", hint ? "; " : "", hint ? hint : "");
		build->failed = true;
	}
}

static ssize_t read_tar(void *data, void *bytes, size_t size)
{
	ssize_t count;

	do
		count = read(*(int *)data, bytes, size);
	while (count < 0 && errno == EINTR);
	return count;
}

static int run_build(struct remote *remote, struct exchange *x, struct build *build, struct husk_template **out,
		     bool *fresh, struct husk_error *err)
{
	struct events events = { .take = take_event, .data = build };

	x->sink = events_sink;
	x->sink_data = &events;
	int result = exchange_run(remote, x, NULL, err);
	if (result == 0 && build->failed)
		result = husk_fail(err, build->failure.code, "%s", build->failure.message);
	if (result == 0 && !build->done)
		result = http_lost(remote, err);
	if (result == 0) {
		struct husk_template *template = read_template(json_object_get(build->done, "template"), err);
		*fresh = json_is_true(json_object_get(build->done, "fresh"));
		result = template ? 0 : -1;
		if (template && out)
			*out = template;
		else if (template)
			husk_template_free(template);
	}
	json_decref(build->done);
	events_free(&events);
	return result;
}

static int build_tar(struct remote *remote, const struct husk_build_options *options, struct husk_template **out,
		     bool *fresh, struct husk_error *err)
{
	struct build build = { .options = options };
	cleanup_close int fd = open(options->tar, O_RDONLY | O_CLOEXEC);
	struct stat status;

	if (fd < 0 || fstat(fd, &status) < 0)
		return husk_fail_errno(err, "cannot read '%s'", options->tar);
	if (S_ISDIR(status.st_mode))
		return husk_fail_field(err, "tar", "'%s' is a directory; give a tar of it", options->tar);
	char *target = target_add(target_make("/v1/templates"), "name", options->name);
	target = target_add(target, "isolation", options->isolation);
	target = target_add(target, "warm", options->warm);
	target = target_add(target, "force", options->force ? "true" : NULL);
	struct exchange x = {
		.method = "POST", .target = target, .source = read_tar, .source_data = &fd, .type = "application/x-tar"
	};
	return run_build(remote, &x, &build, out, fresh, err);
}

int remote_template_build(struct remote *remote, const struct husk_build_options *options, struct husk_template **out,
			  bool *fresh, struct husk_error *err)
{
	struct build build = { .options = options };
	struct writing w;

	if (options->tar)
		return build_tar(remote, options, out, fresh, err);
	if (options->directory)
		return remote_refuse(remote, "a build from a directory",
				     "make a tar of it (tar -C DIR -cf rootfs.tar .) and give that with --tar", err);
	if (options->image)
		return remote_refuse(remote, "a build from a container image",
				     "build it on the server's host, or send its root filesystem with --tar", err);
	if (options->definition)
		return remote_refuse(remote, "a build from a definition of yours",
				     "build it on the server's host, name one that the server has (husk template build "
				     "NAME), or send a root filesystem with --tar",
				     err);
	write_begin(&w);
	write_text(&w, "name", options->name);
	write_text(&w, "isolation", options->isolation);
	write_bool(&w, "force", options->force);
	struct exchange x = { .method = "POST", .body = write_done(&w, err) };
	if (!x.body)
		return -1;
	x.target = target_make("/v1/templates");
	return run_build(remote, &x, &build, out, fresh, err);
}
