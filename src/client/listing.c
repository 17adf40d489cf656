/*
 * METHOD_CHANGES as a sorted list; see listing.h. The guest controls the agent: the list is bounded, and each entry is
 * checked.
 */
#include "client/listing.h"

#include "client/call.h"
#include "client/files.h"

#define CHANGES_MAX 1000000u
#define CHANGES_BYTES_MAX (256u * 1024u * 1024u)

void listing_free(struct listing *listing)
{
	for (size_t i = 0; i < listing->count; i++) {
		husk_file_free(&listing->entries[i].change.file);
		husk_file_free(&listing->entries[i].change.before);
	}
	free(listing->entries);
}

static int entry_read(const struct call_event *event, struct listed *out, struct husk_error *err)
{
	int64_t change = wire_get_int(event->data, event->size, TAG_CHANGE, 0);
	int64_t old_type = wire_get_int(event->data, event->size, TAG_OLD_TYPE, 0);

	if (change < CHANGE_ADDED || change > CHANGE_CHANGED)
		return husk_fail(err, HUSK_PROTOCOL, "the agent described a change of an unknown kind");
	*out = (struct listed){ .change.kind = (enum husk_change_kind)change,
				.inode = wire_get_int(event->data, event->size, TAG_INODE, 0),
				.ctime_ns = wire_get_int(event->data, event->size, TAG_CTIME_NS, 0) };
	out->change.before = (struct husk_file){
		.type = old_type ? file_type_of(old_type) : 0,
		.size = (uint64_t)MAX(0, wire_get_int(event->data, event->size, TAG_OLD_SIZE, 0)),
		.mode = (uint32_t)wire_get_int(event->data, event->size, TAG_OLD_MODE, 0) & 07777,
		.uid = (uint32_t)wire_get_int(event->data, event->size, TAG_OLD_UID, 0),
		.gid = (uint32_t)wire_get_int(event->data, event->size, TAG_OLD_GID, 0),
		.target = wire_get_string(event->data, event->size, TAG_OLD_TARGET),
	};
	if (file_from_fields(event->data, event->size, &out->change.file, err) == 0)
		return 0;
	husk_file_free(&out->change.before);
	return -1;
}

static int make_room(struct listing *listing, struct husk_error *err)
{
	if (listing->count == listing->room) {
		size_t room = listing->room ? listing->room * 2 : 64;
		struct listed *grown = reallocarray(listing->entries, room, sizeof(*grown));
		if (!grown)
			return husk_fail_memory(err);
		listing->entries = grown;
		listing->room = room;
	}
	return 0;
}

int listing_take(struct listing *listing, struct listed *entry, struct husk_error *err)
{
	if (make_room(listing, err) < 0)
		return -1;
	listing->entries[listing->count++] = *entry;
	*entry = (struct listed){ 0 };
	return 0;
}

static int listing_add(struct listing *listing, const struct call_event *event, struct husk_error *err)
{
	listing->bytes += event->size;
	if (listing->count == CHANGES_MAX || listing->bytes > CHANGES_BYTES_MAX)
		return husk_fail(err, HUSK_LIMIT,
				 "sandbox %s has more than %u changes or %u MiB of them; name a path to compare less",
				 listing->sandbox, CHANGES_MAX, CHANGES_BYTES_MAX >> 20);
	if (make_room(listing, err) < 0)
		return -1;
	if (entry_read(event, &listing->entries[listing->count], err) < 0)
		return -1;
	listing->count++;
	return 0;
}

int listing_compare(const char *a, const char *b)
{
	while (*a && *a == *b)
		a++, b++;
	int left = *a == '/' ? 1
		   : *a      ? (unsigned char)*a + 1
			     : 0,
	    right = *b == '/' ? 1
		    : *b      ? (unsigned char)*b + 1
			      : 0;
	return left - right;
}

/* An inode shows a file that was replaced. A machine with a cloned disk numbers its files anew when it is restored; there a time
 * from before the younger machine began shows the same: that one has not touched the file, so the time is older than both. */
bool listing_untouched(const struct listed *a, const struct listed *b)
{
	if (a->ctime_ns != b->ctime_ns)
		return false;
	return a->inode == b->inode || a->ctime_ns < MAX(a->began_ns, b->began_ns);
}

static int by_path(const void *a, const void *b)
{
	return listing_compare(((const struct listed *)a)->change.file.path,
			       ((const struct listed *)b)->change.file.path);
}

/* An agent from before listings by time ignores that argument, and lists no directory that has lost a name. */
static int check_since(const struct call_event *end, int64_t since_ns, struct husk_error *err)
{
	if (since_ns < 0 || wire_get_int(end->data, end->size, TAG_CTIME_NS, -1) == since_ns)
		return 0;
	return husk_fail(
		err, HUSK_UNAVAILABLE,
		"the template of this sandbox was built by an older husk, whose agent has no workspaces; build it "
		"again (husk template build), and use a new sandbox");
}

/* What is asked. `since_ns` -1: not by time. */
struct question {
	struct buf arguments;
	int64_t since_ns;
};

static void question_free(struct question *question)
{
	buf_free(&question->arguments);
}
#define cleanup_question cleanup(question_free)

static int ask(struct listing *listing, const struct question *question, struct call **out, struct husk_error *err)
{
	return call_start(listing->husk, listing->sandbox, METHOD_CHANGES, &question->arguments, out, err);
}

/* The agent may list an entry twice, and a hostile one anything. */
static void sort_once(struct listing *listing)
{
	size_t kept = 0;

	if (listing->count)
		qsort(listing->entries, listing->count, sizeof(*listing->entries), by_path);
	for (size_t i = 0; i < listing->count; i++) {
		struct listed *entry = &listing->entries[i];
		if (kept && by_path(entry, &listing->entries[kept - 1]) == 0) {
			husk_file_free(&entry->change.file);
			husk_file_free(&entry->change.before);
		} else {
			listing->entries[kept++] = *entry;
		}
	}
	listing->count = kept;
}

static int hear(struct listing *listing, const struct question *question, struct call *call, struct husk_error *err)
{
	cleanup_row struct catalog_sandbox *row = NULL;
	struct call_event event = { 0 };
	int result = 0;

	if (!listing->husk->remote && catalog_sandbox_get(listing->husk->catalog, listing->sandbox, &row, err) < 0)
		return -1;
	while (result == 0 && (result = call_next(call, &event, err)) == 0 && event.type != WIRE_END)
		if (event.type == WIRE_MSG)
			result = listing_add(listing, &event, err);
	if (result == 0)
		result = wire_end_status(event.data, event.size, err);
	if (result == 0)
		result = check_since(&event, question->since_ns, err);
	if (result == 0)
		listing->exact = wire_get_int(event.data, event.size, TAG_FLAGS, 0) & CHANGES_PATHS;
	for (size_t i = 0; row && i < listing->count; i++)
		listing->entries[i].began_ns = row->created_ms * 1000000;
	sort_once(listing);
	return result;
}

static int load(struct listing *listing, const struct question *question, struct husk_error *err)
{
	cleanup_call struct call *call = NULL;

	return ask(listing, question, &call, err) < 0 ? -1 : hear(listing, question, call, err);
}

int listing_load(struct listing *listing, const char *path, bool all, struct husk_error *err)
{
	cleanup_question struct question question = { .since_ns = -1 };
	int bad = wire_put_string(&question.arguments, TAG_PATH, path);

	bad |= wire_put_int(&question.arguments, TAG_FLAGS, all ? CHANGES_ALL : 0);
	return check_arguments(bad, err) < 0 ? -1 : load(listing, &question, err);
}

int listing_load_since(struct listing *listing, const char *path, int64_t since_ns, struct husk_error *err)
{
	cleanup_question struct question question = { .since_ns = since_ns };
	int bad = wire_put_string(&question.arguments, TAG_PATH, path);

	bad |= wire_put_int(&question.arguments, TAG_FLAGS, CHANGES_ALL);
	bad |= wire_put_int(&question.arguments, TAG_CTIME_NS, since_ns);
	return check_arguments(bad, err) < 0 ? -1 : load(listing, &question, err);
}

int listing_load_both(struct listing *a, struct listing *b, char *const *paths, int64_t since_ns,
		      struct husk_error *err)
{
	cleanup_question struct question question = { .since_ns = since_ns };
	cleanup_call struct call *first = NULL, *second = NULL;
	int bad = wire_put_int(&question.arguments, TAG_FLAGS, CHANGES_ALL);

	for (; paths && *paths; paths++)
		bad |= wire_put_string(&question.arguments, TAG_PATH, *paths);
	if (since_ns >= 0)
		bad |= wire_put_int(&question.arguments, TAG_CTIME_NS, since_ns);
	if (check_arguments(bad, err) < 0 || ask(a, &question, &first, err) < 0 || ask(b, &question, &second, err) < 0)
		return -1;
	return hear(a, &question, first, err) < 0 ? -1 : hear(b, &question, second, err);
}
