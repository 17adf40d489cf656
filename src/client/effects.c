/*
 * Held effects for callers of libhusk: list, send, drop, and show the request of one. The catalog stores them. The
 * supervisor sends them, one effect per call, so that no call waits for more than one host. The first effect that cannot
 * be sent ends the sending, because later ones may depend on it.
 */
#include "base/jansson.h"
#include "instance/contact.h"
#include "instance/instance.h"
#include "wire/wire.h"

static void drop_rows(struct catalog_effect ***list)
{
	catalog_effect_list_free(*list);
}
#define cleanup_effects cleanup(drop_rows)

/* ---- results ---- */

void husk_effect_free(struct husk_effect *effect)
{
	if (!effect)
		return;
	free(effect->method);
	free(effect->url);
	free(effect->state);
	free(effect->detail);
	free(effect);
}

void husk_effect_list_free(struct husk_effect **list)
{
	for (size_t i = 0; list && list[i]; i++)
		husk_effect_free(list[i]);
	free(list);
}

static char *url_of(const struct catalog_effect *row)
{
	bool usual = row->port == (str_equal(row->scheme, "https") ? 443 : 80);
	char port[16] = "";

	if (!usual)
		snprintf(port, sizeof(port), ":%lld", (long long)row->port);
	return str_format("%s://%s%s%s", row->scheme, row->host, port, row->target);
}

/* `alive`: the sandbox has a supervisor, so what is being sent is. */
static struct husk_effect *effect_from_row(const struct catalog_effect *row, bool alive)
{
	struct husk_effect *out = calloc(1, sizeof(*out));
	bool cut = !alive && str_equal(row->state, "sending");

	if (!out)
		return NULL;
	*out = (struct husk_effect){ .number = row->number,
				     .method = strdup(row->method),
				     .url = url_of(row),
				     .state = strdup(cut ? "uncertain" : row->state),
				     .detail = row->detail ? strdup(row->detail) : NULL,
				     .status = (int)row->status,
				     .bytes = row->bytes,
				     .created_ms = row->created_ms,
				     .done_ms = row->done_ms };
	if (out->method && out->url && out->state && (out->detail || !row->detail))
		return out;
	husk_effect_free(out);
	return NULL;
}

static bool listed(const int64_t *numbers, size_t count, int64_t number)
{
	for (size_t i = 0; i < count; i++)
		if (numbers[i] == number)
			return true;
	return false;
}

/* `numbers` NULL: all of them. */
static int collect(struct husk *husk, const struct catalog_sandbox *row, const int64_t *numbers, size_t count,
		   struct husk_effect ***out, struct husk_error *err)
{
	cleanup_effects struct catalog_effect **rows = NULL;
	bool alive = row->state == CATALOG_RUNNING || row->state == CATALOG_PAUSED;
	size_t size = 0, used = 0;

	if (catalog_effect_list(husk->catalog, row->id, &rows, err) < 0)
		return -1;
	while (rows[size])
		size++;
	struct husk_effect **list = calloc(size + 1, sizeof(*list));
	for (size_t i = 0; list && i < size; i++) {
		if (numbers && !listed(numbers, count, rows[i]->number))
			continue;
		if (!(list[used++] = effect_from_row(rows[i], alive))) {
			husk_effect_list_free(list);
			list = NULL;
		}
	}
	*out = list;
	return list ? 0 : husk_fail_memory(err);
}

int husk_effects(struct husk *husk, const char *sandbox, struct husk_effect ***out, struct husk_error *err)
{
	if (husk->remote)
		return remote_effects(husk->remote, sandbox, out, err);
	cleanup_row struct catalog_sandbox *row = NULL;

	if (catalog_sandbox_get(husk->catalog, sandbox, &row, err) < 0)
		return -1;
	return collect(husk, row, NULL, 0, out, err);
}

int husk_effect_request(struct husk *husk, const char *sandbox, int64_t number, char **out, size_t *size,
			struct husk_error *err)
{
	if (husk->remote)
		return remote_effect_request(husk->remote, sandbox, number, out, size, err);
	cleanup_row struct catalog_sandbox *row = NULL;
	cleanup_buf struct buf request = { 0 }, text = { 0 };
	struct catalog_effect *effect = NULL;

	if (catalog_sandbox_get(husk->catalog, sandbox, &row, err) < 0 ||
	    catalog_effect_get(husk->catalog, row->id, number, &effect, &request, err) < 0)
		return -1;
	int bad = buf_printf(&text, "%s %s HTTP/1.1\r\nHost: %s\r\n", effect->method, effect->target, effect->host) |
		  buf_append(&text, request.size ? request.data : "", request.size);
	cleanup_free char *state = strdup(effect->state);
	catalog_effect_free(effect);
	if (request.size == 0)
		return husk_fail(err, HUSK_GONE, "effect %lld of %s is %s, and its request is no longer stored",
				 (long long)number, row->id, state ? state : "done");
	*size = text.size;
	*out = bad ? NULL : buf_steal(&text);
	return *out ? 0 : husk_fail_memory(err);
}

/* ---- which ones ---- */

static int check_held(const struct catalog_sandbox *row, struct catalog_effect *const *rows, int64_t number,
		      struct husk_error *err)
{
	for (size_t i = 0; rows[i]; i++) {
		if (rows[i]->number != number)
			continue;
		if (str_equal(rows[i]->state, "held"))
			return 0;
		bool may = str_equal(rows[i]->state, "uncertain") || str_equal(rows[i]->state, "sending");
		return husk_fail(
			err, HUSK_CONFLICT,
			may ? "effect %lld of %s may have been sent already, and is not sent again; ask its host%s"
			    : "effect %lld of %s is not held: it was %s",
			(long long)number, row->id, may ? "" : rows[i]->state);
	}
	return husk_fail(err, HUSK_NOT_FOUND, "sandbox %s has no effect %lld (husk effects %s)", row->id,
			 (long long)number, row->id);
}

/* The numbers asked for, each of which must be held; NULL: those of all that are. Caller frees. */
static int choose(struct husk *husk, const struct catalog_sandbox *row, const int64_t *numbers, size_t count,
		  int64_t **out, size_t *chosen, struct husk_error *err)
{
	cleanup_effects struct catalog_effect **rows = NULL;
	size_t size = 0;

	if (numbers && count == 0) /* a list that a program has filtered to nothing must not mean all */
		return husk_fail_field(err, "effects",
				       "effects is empty; name some, or leave it out for all that are held");
	if (!numbers && count) /* nor one that it lost */
		return husk_fail_field(err, "effects",
				       "effects has a count of %zu, but no numbers; count must be 0 for all", count);
	if (catalog_effect_list(husk->catalog, row->id, &rows, err) < 0)
		return -1;
	for (size_t i = 0; numbers && i < count; i++)
		if (check_held(row, rows, numbers[i], err) < 0)
			return -1;
	while (rows[size])
		size++;
	*out = calloc(size + 1, sizeof(**out));
	if (!*out)
		return husk_fail_memory(err);
	for (size_t i = 0; i < size; i++)
		if (str_equal(rows[i]->state, "held") && (!numbers || listed(numbers, count, rows[i]->number)))
			(*out)[(*chosen)++] = rows[i]->number;
	return 0;
}

/* ---- sending and dropping ---- */

static int send_one(struct husk *husk, const char *id, int64_t number, struct husk_error *err)
{
	cleanup_buf struct buf arguments = { 0 };

	if (wire_put_int(&arguments, TAG_EFFECT, number) < 0)
		return husk_fail_memory(err);
	return husk_call(husk, id, METHOD_SANDBOX_EFFECT, &arguments, NULL, err);
}

int husk_effects_send(struct husk *husk, const char *sandbox, const int64_t *numbers, size_t count,
		      struct husk_effect ***out, struct husk_error *err)
{
	if (husk->remote)
		return remote_effects_act(husk->remote, sandbox, "send", numbers, count, out, err);
	cleanup_row struct catalog_sandbox *row = NULL, *after = NULL;
	cleanup_free int64_t *chosen = NULL;
	size_t size = 0, tried = 0;
	struct husk_error why = { 0 };
	int result = 0;

	if (catalog_sandbox_get(husk->catalog, sandbox, &row, err) < 0)
		return -1;
	if (row->state == CATALOG_ENDED)
		return husk_fail(err, HUSK_GONE, "sandbox %s has ended (%s); its effects can be read, but not sent",
				 row->id, row->end_reason);
	if (choose(husk, row, numbers, count, &chosen, &size, err) < 0)
		return -1;
	while (tried < size && result == 0)
		result = send_one(husk, row->id, chosen[tried++], &why);
	/* The state of an effect tells what became of it; anything else is an error of the call. */
	if (result < 0 && why.code != HUSK_UNAVAILABLE && why.code != HUSK_INTERNAL && tried == 1) {
		if (err)
			*err = why;
		return -1;
	}
	if (catalog_sandbox_get(husk->catalog, row->id, &after, err) < 0)
		return -1;
	return out ? collect(husk, after, chosen, tried, out, err) : 0;
}

int husk_effects_drop(struct husk *husk, const char *sandbox, const int64_t *numbers, size_t count,
		      struct husk_effect ***out, struct husk_error *err)
{
	if (husk->remote)
		return remote_effects_act(husk->remote, sandbox, "drop", numbers, count, out, err);
	cleanup_row struct catalog_sandbox *row = NULL;
	cleanup_free int64_t *chosen = NULL;
	size_t size = 0;

	if (catalog_sandbox_get(husk->catalog, sandbox, &row, err) < 0 ||
	    choose(husk, row, numbers, count, &chosen, &size, err) < 0)
		return -1;
	for (size_t i = 0; i < size; i++)
		if (catalog_effect_move(husk->catalog, row->id, chosen[i], "held", "dropped", 0, "on request", err) < 0)
			return -1;
	return out ? collect(husk, row, chosen, size, out, err) : 0;
}
