/*
 * The end of a sandbox. life_end has already killed the machine; this file removes the parts of the machine and records
 * the end. Both steps may have to wait for a disk, so each has its own thread:
 *
 *     the gravedigger   waits for the thread that has the turn (its machine is dead, so it fails soon; but it may be in the middle of
 *                       writing an image), then stops, unmounts and removes
 *     the registrar     waits for the gravedigger, but only for a moment: then the row says "ended" while the remains are still being
 *                       removed. The row keeps its slot until they are gone, so that no other machine uses the slot
 *
 * Usually the gravedigger finishes within that moment, and then "ended" means that nothing is left.
 */
#include "supervisor/ending.h"

#include <jansson.h>

#include "base/thread.h"
#include "instance/console.h"
#include "instance/egress_policy.h"
#include "instance/instance.h"
#include "instance/points.h"
#include "instance/spawn.h"
#include "supervisor/relief.h"
#include "supervisor/supervisor.h"
#include "supervisor/volumes.h"

#define MOMENT_MS 800

void machine_dismantle(struct supervisor *s)
{
	pthread_mutex_lock(&s->parts);
	struct engine_machine *machine = steal_pointer(s->machine);
	struct cgroup *cgroup = steal_pointer(s->cgroup);
	pthread_mutex_unlock(&s->parts);

	if (machine)
		s->engine->stop(machine);
	if (s->link)
		link_close(
			s->link); /* before its descriptors are closed; sessions may still use the link, so it is never freed */
	relief_stop(s);
	volumes_end(s);
	pthread_mutex_lock(&s->looking);
	if (machine)
		s->engine->free(machine);
	pthread_mutex_unlock(&s->looking);
	network_end(s);
	if (cgroup) {
		struct husk_error err = { 0 };
		cgroup_free(cgroup);
		if (cgroup_destroy(s->husk.paths.scope, s->machine_name, &err) < 0)
			log_line(LOG_WARN, "%s", err.message);
	}
	if (s->machine_directory) {
		console_keep(&s->husk.paths, s->slot, life_id(&s->life));
		engine_remove(s->machine_directory, NULL);
	}
}

/* ---- a sandbox ---- */

static void *dig(void *argument)
{
	struct supervisor *s = argument;

	life_seize(&s->life);
	machine_dismantle(s);
	if (*life_look(&s->life).reason)
		images_discard(&s->husk, life_id(&s->life), NULL);
	pthread_mutex_lock(&s->parts);
	s->dug = true;
	pthread_cond_signal(&s->digging);
	pthread_mutex_unlock(&s->parts);
	return NULL;
}

/* True: the gravedigger has finished. */
static bool wait_for_digger(struct supervisor *s, int timeout_ms)
{
	int64_t end = timeout_ms < 0 ? -1 : time_monotonic_ms() + timeout_ms;
	int waited = 0;

	pthread_mutex_lock(&s->parts);
	while (!s->dug && waited == 0)
		waited = cond_wait_until(&s->digging, &s->parts, end);
	bool dug = s->dug;
	pthread_mutex_unlock(&s->parts);
	return dug;
}

static void register_end(struct supervisor *s, const char *reason, bool clean)
{
	cleanup_free char *detail = str_format("{\"reason\":\"%s\"}", reason);
	const char *id = life_id(&s->life);
	struct husk_error err = { 0 };

	if ((clean ? catalog_sandbox_end : catalog_sandbox_ending)(s->husk.catalog, id, reason, &err) < 0 ||
	    catalog_event(s->husk.catalog, id, "ended", detail, &err) < 0)
		log_line(LOG_ERROR, "%s", err.message);
}

static void end_sandbox(struct supervisor *s, const char *reason)
{
	bool clean = wait_for_digger(s, MOMENT_MS);

	egress_secrets_drop(&s->husk, life_id(&s->life));
	register_end(s, reason, clean);
	if (clean)
		return;
	wait_for_digger(s, -1);
	struct husk_error err = { 0 };
	if (catalog_sandbox_end(s->husk.catalog, life_id(&s->life), reason, &err) < 0)
		log_line(LOG_ERROR, "%s", err.message);
}

/* ---- a machine that never became a sandbox ---- */

/* For a pool entry that was not claimed or failed to start. A sandbox that was waking is hibernated as before. */
static void take_back(struct supervisor *s)
{
	const char *id = life_id(&s->life);
	cleanup_free char *directory = path_sandbox(&s->husk.paths, id);

	wait_for_digger(s, -1);
	if (sandbox_has_image(&s->husk, id)) {
		catalog_sandbox_move(s->husk.catalog, id, 1u << CATALOG_CREATING | 1u << CATALOG_RUNNING,
				     CATALOG_HIBERNATED, NULL);
		return;
	}
	catalog_sandbox_forget(s->husk.catalog, id, NULL);
	if (directory)
		engine_remove(directory, NULL);
}

static void *bury(void *argument)
{
	struct supervisor *s = argument;
	pthread_t digger;

	if (pthread_create(&digger, NULL, dig, s) == 0)
		pthread_detach(digger);
	else
		dig(s);
	struct life_view now = life_look(&s->life);
	if (*now.reason)
		end_sandbox(s, now.reason);
	else
		take_back(s);
	supervisor_unname(&s->husk, life_id(&s->life));
	life_set_over(&s->life);
	return NULL;
}

void ending_start(struct supervisor *s)
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, bury, s) == 0)
		pthread_detach(thread);
	else
		bury(s); /* no thread can be started, and no other thread waits here */
}

int machine_kill(struct supervisor *s, struct husk_error *err)
{
	if (!life_end(&s->life, "killed"))
		return husk_fail(err, HUSK_CONFLICT, "sandbox %s is going to sleep", life_id(&s->life));
	life_wait_over(&s->life, ENDING_ANSWER_MS);
	return 0;
}
