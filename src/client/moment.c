/*
 * Moments: finds or starts a sandbox whose files can be read, for a word of the caller.
 *
 *     work          the sandbox itself, as it is
 *     work@3        a copy that continues from checkpoint 3 of it
 *     sn-…, clean   a copy that continues from a snapshot
 *     base          a copy of a template
 *
 * A copy is a sandbox like any other, made by husk_create, so this works the same over a server. Its processes stay
 * stopped, it has no network, no list shows it, and it ends at its TTL if the caller is killed.
 */
#include "base/base.h"
#include "husk.h"

#define COPY_TTL_SECONDS 600

static void drop_sandbox(struct husk_sandbox **sandbox)
{
	husk_sandbox_free(*sandbox);
}

static int make_copy(struct husk *husk, const char *snapshot, const char *template_name, struct husk_moment *out,
		     struct husk_error *err)
{
	static const struct husk_pair mark = { HUSK_MOMENT_KEY, "1" };
	static const struct husk_egress off = { .mode = "off" };
	const struct husk_create_options options = { .snapshot = snapshot,
						     .template_name = template_name,
						     .ttl_seconds = COPY_TTL_SECONDS,
						     .metadata = &mark,
						     .metadata_count = 1,
						     .egress = &off };
	cleanup(drop_sandbox) struct husk_sandbox *made = NULL;

	if (husk_create(husk, &options, &made, err) < 0)
		return -1;
	*out = (struct husk_moment){ .sandbox = steal_pointer(made->id), .is_copy = true };
	return 0;
}

/* A template that is built: a server would build one that is missing. */
static bool is_template(struct husk *husk, const char *word)
{
	struct husk_template **list = NULL;
	bool found = false;

	if (husk_template_list(husk, &list, NULL) < 0)
		return false;
	for (size_t i = 0; list[i] && !found; i++)
		found = str_equal(list[i]->name, word);
	husk_template_list_free(list);
	return found;
}

int husk_moment_open(struct husk *husk, const char *word, struct husk_moment *out, struct husk_error *err)
{
	cleanup(drop_sandbox) struct husk_sandbox *sandbox = NULL;
	struct husk_error why = { 0 };

	*out = (struct husk_moment){ 0 };
	if (strchr(word, '@'))
		return make_copy(husk, word, NULL, out, err);
	if (husk_inspect(husk, word, &sandbox, &why) == 0 && sandbox->state != HUSK_ENDED) {
		out->sandbox = steal_pointer(sandbox->id);
		return 0;
	}
	/* The name of a sandbox that has ended may be that of a snapshot or template too. */
	if ((sandbox || why.code == HUSK_NOT_FOUND) && make_copy(husk, word, NULL, out, &why) == 0)
		return 0;
	if (why.code == HUSK_NOT_FOUND && is_template(husk, word))
		return make_copy(husk, NULL, word, out, err);
	if (why.code == HUSK_NOT_FOUND && sandbox)
		return husk_fail(err, HUSK_GONE, "sandbox %s has ended", sandbox->id);
	if (why.code == HUSK_NOT_FOUND)
		return husk_fail(err, HUSK_NOT_FOUND,
				 "'%.80s' not found: name a sandbox (husk ls), a checkpoint of one (SANDBOX@NUMBER), a "
				 "snapshot (husk snapshot ls) or a template (husk template ls)",
				 word);
	return husk_fail(err, why.code, "%s", why.message);
}

void husk_moment_close(struct husk *husk, struct husk_moment *moment)
{
	if (moment->is_copy && husk_kill(husk, moment->sandbox, NULL) < 0)
		log_line(LOG_INFO, "the copy %s ends at its TTL", moment->sandbox);
	free(moment->sandbox);
	*moment = (struct husk_moment){ 0 };
}
