/*
 * Who controls the desktop of a sandbox; see husk.h. The state is one small JSON file in the sandbox's directory, replaced
 * by rename and changed under a lock:
 *
 *     {"name":"Ada","holder":"k3…","since":1789…,"expires":1789…,"request":"taken","reason":"log in","requested":1789…}
 *
 * The state is a file, not memory of a server: a restart of huskd must not give the desktop back to an agent while a
 * person types a password, and programs that use libhusk without a server must see the same state. A fork has no such
 * file: nobody is in control of a child. Times are wall-clock times. Control lasts at most an hour, so a wrong clock
 * does limited harm.
 */
#include <fcntl.h>
#include <sys/file.h>

#include "base/jansson.h"
#include "instance/instance.h"

#define TTL_DEFAULT 600
#define TTL_MAX 3600
#define TEXT_MAX 64
#define REASON_MAX 500
#define FILE_MAX 8192u

static const char *const human_names[] = {
	[HUSK_HUMAN_NONE] = "none",
	[HUSK_HUMAN_WAITING] = "waiting",
	[HUSK_HUMAN_TAKEN] = "taken",
	[HUSK_HUMAN_DONE] = "done",
};

void husk_control_free(struct husk_control *control)
{
	if (!control)
		return;
	free(control->name);
	free(control->holder);
	free(control->reason);
	free(control);
}

static void drop_control(struct husk_control **control)
{
	husk_control_free(*control);
}
#define cleanup_control cleanup(drop_control)

/* ---- the file ---- */

/* Where the state of a sandbox is, and the lock on it. */
struct desk {
	char *id;
	char *path;
	int lock;
};

static void desk_close(struct desk *desk)
{
	free(desk->id);
	free(desk->path);
	fd_close(&desk->lock);
}
#define cleanup_desk cleanup(desk_close)

static int desk_lock(struct desk *desk, const char *directory, struct husk_error *err)
{
	cleanup_free char *path = str_format("%s/control.lock", directory);

	if (!path)
		return husk_fail_memory(err);
	desk->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (desk->lock < 0)
		return husk_fail_errno(err, "cannot open %s", path);
	while (flock(desk->lock, LOCK_EX) < 0)
		if (errno != EINTR)
			return husk_fail_errno(err, "cannot lock %s", path);
	return 0;
}

/* Finds the sandbox as the caller may see it. `changing`: takes the lock; a sandbox that has ended is GONE. */
static int desk_open(struct husk *husk, const char *sandbox, bool changing, struct desk *out, struct husk_error *err)
{
	struct husk_sandbox *found = NULL;

	*out = (struct desk){ .lock = -1 };
	if (husk_inspect(husk, sandbox, &found, err) < 0)
		return -1;
	bool ended = found->state == HUSK_ENDED;
	out->id = strdup(found->id);
	husk_sandbox_free(found);
	cleanup_free char *directory = out->id ? path_sandbox(&husk->paths, out->id) : NULL;
	out->path = directory ? str_format("%s/control", directory) : NULL;
	if (!out->path)
		return husk_fail_memory(err);
	if (!changing)
		return 0;
	if (ended)
		return husk_fail(err, HUSK_GONE, "sandbox %s has ended", out->id);
	return dir_make(directory, 0700, err) < 0 ? -1 : desk_lock(out, directory, err);
}

static char *text_of(const json_t *document, const char *key)
{
	const char *text = json_string_value(json_object_get(document, key));

	return text ? strdup(text) : NULL;
}

static int64_t time_of(const json_t *document, const char *key)
{
	return json_integer_value(json_object_get(document, key));
}

static enum husk_human human_of(const json_t *document)
{
	const char *text = json_string_value(json_object_get(document, "request"));

	for (size_t i = 0; i < ARRAY_SIZE(human_names); i++)
		if (str_equal(text, human_names[i]))
			return (enum husk_human)i;
	return HUSK_HUMAN_NONE;
}

static void forget_person(struct husk_control *control)
{
	free(steal_pointer(control->name));
	free(steal_pointer(control->holder));
	control->since_ms = control->expires_ms = 0;
	if (control->request == HUSK_HUMAN_TAKEN)
		control->request = HUSK_HUMAN_DONE;
}

/* A missing file is the state in which nothing has happened. */
static int desk_read(const struct desk *desk, struct husk_control **out, struct husk_error *err)
{
	struct husk_error why = { 0 };
	size_t size = 0;
	cleanup_control struct husk_control *control = calloc(1, sizeof(*control));
	cleanup_free char *text = file_read(desk->path, FILE_MAX, &size, &why);
	cleanup_json json_t *document = text ? json_loadb(text, size, 0, NULL) : NULL;

	if (!control)
		return husk_fail_memory(err);
	if (!text && why.code != HUSK_NOT_FOUND)
		return husk_fail(err, why.code, "%s", why.message);
	control->name = text_of(document, "name");
	control->holder = text_of(document, "holder");
	control->since_ms = time_of(document, "since");
	control->expires_ms = time_of(document, "expires");
	control->request = human_of(document);
	control->reason = text_of(document, "reason");
	control->requested_ms = time_of(document, "requested");
	if (!control->name || !control->holder || control->expires_ms <= time_wall_ms())
		forget_person(control);
	*out = steal_pointer(control);
	return 0;
}

static int desk_write(const struct desk *desk, const struct husk_control *control, struct husk_error *err)
{
	cleanup_json json_t *document =
		json_pack("{s:s?, s:s?, s:I, s:I, s:s, s:s?, s:I}", "name", control->name, "holder", control->holder,
			  "since", (json_int_t)control->since_ms, "expires", (json_int_t)control->expires_ms, "request",
			  human_names[control->request], "reason", control->reason, "requested",
			  (json_int_t)control->requested_ms);
	cleanup_free char *text = document ? json_dumps(document, JSON_COMPACT) : NULL;

	return text ? file_write_atomic(desk->path, text, strlen(text), 0600, err) : husk_fail_memory(err);
}

/* The state has been changed already: a failure to tell of it is no failure of the call. */
static void desk_event(struct husk *husk, const struct desk *desk, const char *kind, const char *key, const char *value)
{
	struct husk_error err = { 0 };
	cleanup_json json_t *detail = json_pack("{s:s?}", key, value);
	cleanup_free char *text = detail ? json_dumps(detail, JSON_COMPACT) : NULL;

	if (!text || catalog_event(husk->catalog, desk->id, kind, text, &err) < 0)
		log_line(LOG_WARN, "no event %s of %s: %s", kind, desk->id, err.message);
}

/* ---- what a caller gives ---- */

static int check_text(const char *field, const char *text, size_t most, struct husk_error *err)
{
	size_t size = text ? strlen(text) : 0;

	if (size == 0 || size > most)
		return husk_fail_field(err, field, "%s has 1 to %zu bytes", field, most);
	for (size_t at = 0, step; at < size; at += step)
		if ((step = str_printable(text + at, size - at)) == 0)
			return husk_fail_field(err, field, "%s holds control characters, or is not UTF-8", field);
	return 0;
}

static int check_options(const struct husk_control_options *options, struct husk_error *err)
{
	static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_";
	const char *holder = options->holder;

	if (check_text("name", options->name, TEXT_MAX, err) < 0)
		return -1;
	if (holder && (!*holder || strlen(holder) > TEXT_MAX || holder[strspn(holder, letters)]))
		return husk_fail_field(err, "holder", "holder has 1 to %d letters, digits, '-' and '_'", TEXT_MAX);
	if (options->ttl_seconds < 0 || options->ttl_seconds > TTL_MAX)
		return husk_fail_field(err, "ttl_seconds", "ttl_seconds is not within 1 to %d", TTL_MAX);
	return 0;
}

static int refuse(const struct husk_control *control, const char *id, struct husk_error *err)
{
	char until[25];

	time_format(control->expires_ms, until);
	return husk_fail(err, HUSK_CONFLICT,
			 "%s controls the desktop of sandbox %s until %s; wait until control is given back",
			 control->name, id, until);
}

/* ---- the calls ---- */

int husk_control_get(struct husk *husk, const char *sandbox, struct husk_control **out, struct husk_error *err)
{
	if (husk->remote)
		return remote_control_get(husk->remote, sandbox, out, err);
	cleanup_desk struct desk desk;

	return desk_open(husk, sandbox, false, &desk, err) < 0 ? -1 : desk_read(&desk, out, err);
}

int husk_control_check(struct husk *husk, const char *sandbox, struct husk_error *err)
{
	cleanup_control struct husk_control *control = NULL;

	if (husk_control_get(husk, sandbox, &control, err) < 0)
		return -1;
	return control->name ? refuse(control, sandbox, err) : 0;
}

/* Fills the state with the new person. */
static int seat(struct husk_control *control, const struct husk_control_options *options, struct husk_error *err)
{
	char random[TEXT_MAX];
	int64_t now = time_wall_ms();

	if (!options->holder && random_id("", 26, random) < 0)
		return husk_fail(err, HUSK_INTERNAL, "no random numbers");
	cleanup_free char *holder = strdup(options->holder ? options->holder : random);
	cleanup_free char *name = strdup(options->name);
	if (!holder || !name)
		return husk_fail_memory(err);
	if (!control->name)
		control->since_ms = now;
	free(control->name);
	free(control->holder);
	control->name = steal_pointer(name);
	control->holder = steal_pointer(holder);
	control->expires_ms = now + (options->ttl_seconds ? options->ttl_seconds : TTL_DEFAULT) * 1000;
	if (control->request == HUSK_HUMAN_WAITING)
		control->request = HUSK_HUMAN_TAKEN;
	return 0;
}

int husk_control_take(struct husk *husk, const char *sandbox, const struct husk_control_options *options,
		      struct husk_control **out, struct husk_error *err)
{
	if (check_options(options, err) < 0)
		return -1;
	if (husk->remote)
		return remote_control_take(husk->remote, sandbox, options, out, err);
	cleanup_desk struct desk desk;
	cleanup_control struct husk_control *control = NULL;

	if (desk_open(husk, sandbox, true, &desk, err) < 0 || desk_read(&desk, &control, err) < 0)
		return -1;
	bool fresh = !control->name;
	if (!fresh && !str_equal(control->holder, options->holder))
		return refuse(control, desk.id, err);
	if (seat(control, options, err) < 0 || desk_write(&desk, control, err) < 0)
		return -1;
	if (fresh)
		desk_event(husk, &desk, "control_taken", "name", control->name);
	if (out)
		*out = steal_pointer(control);
	return 0;
}

int husk_control_release(struct husk *husk, const char *sandbox, const char *holder, struct husk_error *err)
{
	if (husk->remote)
		return remote_control_release(husk->remote, sandbox, holder, err);
	cleanup_desk struct desk desk;
	cleanup_control struct husk_control *control = NULL;

	if (desk_open(husk, sandbox, true, &desk, err) < 0 || desk_read(&desk, &control, err) < 0)
		return -1;
	if (!control->name)
		return 0;
	if (holder && !str_equal(control->holder, holder))
		return refuse(control, desk.id, err);
	cleanup_free char *name = strdup(control->name);
	forget_person(control);
	if (desk_write(&desk, control, err) < 0)
		return -1;
	desk_event(husk, &desk, "control_given_back", "name", name);
	return 0;
}

int husk_control_request(struct husk *husk, const char *sandbox, const char *reason, struct husk_control **out,
			 struct husk_error *err)
{
	if (check_text("reason", reason, REASON_MAX, err) < 0)
		return -1;
	if (husk->remote)
		return remote_control_request(husk->remote, sandbox, reason, out, err);
	cleanup_desk struct desk desk;
	cleanup_control struct husk_control *control = NULL;
	cleanup_free char *text = strdup(reason);

	if (!text)
		return husk_fail_memory(err);
	if (desk_open(husk, sandbox, true, &desk, err) < 0 || desk_read(&desk, &control, err) < 0)
		return -1;
	free(control->reason);
	control->reason = steal_pointer(text);
	control->requested_ms = time_wall_ms();
	control->request = control->name ? HUSK_HUMAN_TAKEN : HUSK_HUMAN_WAITING;
	if (desk_write(&desk, control, err) < 0)
		return -1;
	desk_event(husk, &desk, "human_requested", "reason", control->reason);
	if (out)
		*out = steal_pointer(control);
	return 0;
}
