/*
 * The JSON form of checkpoints, of the effects that a rewind could not undo (as numbers, and in sentences for a person or
 * a model), and of merges. Names of hosts come from the guest.
 */
#include "json/json.h"

#define REQUESTS_TOLD 50 /* in sentences */

static json_t *changed_files(const struct husk_checkpoint *checkpoint)
{
	json_t *array = json_array();

	for (size_t i = 0; array && i < checkpoint->file_count; i++)
		json_array_append_new(array, json_pack("{s:o, s:s}", "path", json_text0(checkpoint->files[i].path),
						       "change", husk_change_name(checkpoint->files[i].kind)));
	return array;
}

json_t *json_checkpoint(const struct husk_checkpoint *checkpoint)
{
	json_t *parent = checkpoint->parent ? json_integer(checkpoint->parent) : json_null();

	json_t *changed = checkpoint->files_changed < 0 ? json_null() : json_integer(checkpoint->files_changed);

	return json_pack("{s:I, s:o, s:o, s:o, s:I, s:b, s:b, s:o, s:I, s:I, s:o, s:o}", "number",
			 (json_int_t)checkpoint->number, "label", json_text0(checkpoint->label), "parent", parent,
			 "created_at", json_time(checkpoint->created_ms), "bytes", (json_int_t)checkpoint->bytes,
			 "current", checkpoint->current, "automatic", checkpoint->automatic, "ran",
			 json_text0(checkpoint->ran), "sent", (json_int_t)checkpoint->sent, "requests",
			 (json_int_t)checkpoint->requests, "files_changed", changed, "files",
			 changed_files(checkpoint));
}

json_t *json_checkpoints(struct husk_checkpoint *const *list)
{
	json_t *array = json_array();

	for (size_t i = 0; array && list[i]; i++)
		json_array_append_new(array, json_checkpoint(list[i]));
	return array;
}

static json_t *left_sentence(const struct husk_egress_traffic *left)
{
	cleanup_free char *text = str_format(
		"%llu connection%s to %s:%u since the checkpoint sent %llu bytes and received %llu; what they "
		"did there stays done",
		(unsigned long long)left->connections, left->connections == 1 ? "" : "s", left->host, left->port,
		(unsigned long long)left->sent, (unsigned long long)left->received);

	return text ? json_text0(text) : NULL;
}

static json_t *volume_sentence(const char *name)
{
	cleanup_free char *text =
		str_format("volume '%s' is not part of a checkpoint; its files are as they were", name);

	return text ? json_text0(text) : NULL;
}

/* What only reads is left to the sentence about its host. */
static bool only_reads(const char *method)
{
	return str_equal(method, "GET") || str_equal(method, "HEAD") || str_equal(method, "OPTIONS") ||
	       str_equal(method, "TRACE");
}

static int add_text(json_t *array, char *text)
{
	int bad = text ? json_array_append_new(array, json_text0(text)) : -1;

	free(text);
	return bad;
}

/* A line for each request that changed something, as far as a reader wants to see them. */
static void request_sentences(const struct husk_rewound *rewound, json_t *array)
{
	size_t told = 0, more = 0;

	for (size_t i = 0; i < rewound->request_count; i++) {
		const struct husk_request *request = &rewound->requests[i];

		if (only_reads(request->method))
			continue;
		if (told++ >= REQUESTS_TOLD)
			more++;
		else if (request->count == 1)
			add_text(array, str_format("%s %s was sent", request->method, request->url));
		else
			add_text(array, str_format("%s %s was sent %llu times", request->method, request->url,
						   (unsigned long long)request->count));
	}
	if (more)
		add_text(array, str_format("%zu more requests that change something were sent; see requests", more));
	if (rewound->requests_more)
		add_text(array, str_format("%llu older requests were sent whose urls are not kept",
					   (unsigned long long)rewound->requests_more));
}

static json_t *sentences(const struct husk_rewound *rewound)
{
	json_t *array = json_array();

	if (array)
		request_sentences(rewound, array);
	for (size_t i = 0; array && i < rewound->visit_count; i++)
		add_text(array, str_format("%llu connection%s from outside to port %u got answers that stay given",
					   (unsigned long long)rewound->visits[i].count,
					   rewound->visits[i].count == 1 ? "" : "s", rewound->visits[i].port));
	for (size_t i = 0; array && i < rewound->left_count; i++)
		json_array_append_new(array, left_sentence(&rewound->left[i]));
	for (size_t i = 0; array && rewound->volumes && rewound->volumes[i]; i++)
		json_array_append_new(array, volume_sentence(rewound->volumes[i]));
	return array;
}

static json_t *json_effect(const struct husk_effect *effect)
{
	return json_pack("{s:I, s:s, s:o, s:o, s:I, s:o, s:o, s:o}", "number", (json_int_t)effect->number, "state",
			 effect->state, "method", json_text0(effect->method), "url", json_text0(effect->url), "bytes",
			 (json_int_t)effect->bytes, "status",
			 effect->status ? json_integer(effect->status) : json_null(), "detail",
			 json_text0(effect->detail), "at", json_time(effect->created_ms));
}

json_t *json_effects(struct husk_effect *const *list)
{
	json_t *array = json_array();

	for (size_t i = 0; array && list && list[i]; i++)
		json_array_append_new(array, json_effect(list[i]));
	return array;
}

static json_t *requests_json(const struct husk_rewound *rewound)
{
	json_t *array = json_array();

	for (size_t i = 0; array && i < rewound->request_count; i++)
		json_array_append_new(array,
				      json_pack("{s:o, s:o, s:I}", "method", json_text0(rewound->requests[i].method),
						"url", json_text0(rewound->requests[i].url), "count",
						(json_int_t)rewound->requests[i].count));
	return array;
}

static json_t *visits_json(const struct husk_rewound *rewound)
{
	json_t *array = json_array();

	for (size_t i = 0; array && i < rewound->visit_count; i++)
		json_array_append_new(array, json_pack("{s:i, s:I}", "port", rewound->visits[i].port, "connections",
						       (json_int_t)rewound->visits[i].count));
	return array;
}

json_t *json_rewound(const struct husk_rewound *rewound)
{
	return json_pack(
		"{s:I, s:o, s:I, s:o, s:o, s:o, s:o, s:I, s:o, s:o}", "checkpoint", (json_int_t)rewound->number,
		"label", json_text0(rewound->label), "dropped", (json_int_t)rewound->dropped, "traffic",
		json_egress_traffic(rewound->left, rewound->left_count), "volumes", json_texts(rewound->volumes),
		"effects", json_effects(rewound->effects), "requests", requests_json(rewound), "requests_more",
		(json_int_t)rewound->requests_more, "visits", visits_json(rewound), "not_undone", sentences(rewound));
}

json_t *json_promoted(const struct husk_promoted *promoted)
{
	return json_pack("{s:s, s:I, s:o, s:o}", "sandbox", promoted->sandbox, "checkpoint",
			 (json_int_t)promoted->checkpoint, "ended", json_texts(promoted->ended), "effects",
			 json_effects(promoted->effects));
}

static json_t *merge_entry(const struct husk_merge_entry *entry)
{
	return json_pack("{s:o, s:s, s:b, s:o, s:b}", "path", json_text0(entry->path), "change",
			 husk_change_name(entry->kind), "merged", entry->merged, "conflict",
			 json_text0(entry->conflict), "resolved", entry->resolved);
}

static json_t *left_out(const struct husk_merged *merged)
{
	json_t *array = json_array();

	for (size_t i = 0; array && merged->left_out && merged->left_out[i]; i++)
		json_array_append_new(array, json_pack("{s:o, s:s}", "path", json_text0(merged->left_out[i]), "reason",
						       merged->reasons[i]));
	return array;
}

json_t *json_merged(const struct husk_merged *merged)
{
	json_t *entries = json_array();

	for (size_t i = 0; entries && i < merged->count; i++)
		json_array_append_new(entries, merge_entry(&merged->entries[i]));
	return json_pack("{s:o, s:b, s:I, s:o, s:o, s:I}", "target", json_text0(merged->target), "written",
			 merged->written, "conflicts", (json_int_t)merged->conflicts, "changes", entries, "left_out",
			 left_out(merged), "ignored", (json_int_t)merged->ignored);
}
