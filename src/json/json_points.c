/*
 * The JSON form of checkpoints, of the effects that a rewind could not undo (as numbers, and in sentences for a person or
 * a model), and of merges. Names of hosts come from the guest.
 */
#include "json/json.h"

json_t *json_checkpoint(const struct husk_checkpoint *checkpoint)
{
	json_t *parent = checkpoint->parent ? json_integer(checkpoint->parent) : json_null();

	return json_pack("{s:I, s:o, s:o, s:o, s:I, s:b}", "number", (json_int_t)checkpoint->number, "label",
			 json_text0(checkpoint->label), "parent", parent, "created_at",
			 json_time(checkpoint->created_ms), "bytes", (json_int_t)checkpoint->bytes, "current",
			 checkpoint->current);
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

static json_t *sentences(const struct husk_rewound *rewound)
{
	json_t *array = json_array();

	for (size_t i = 0; array && i < rewound->left_count; i++)
		json_array_append_new(array, left_sentence(&rewound->left[i]));
	for (size_t i = 0; array && rewound->volumes && rewound->volumes[i]; i++)
		json_array_append_new(array, volume_sentence(rewound->volumes[i]));
	return array;
}

json_t *json_rewound(const struct husk_rewound *rewound)
{
	return json_pack("{s:I, s:o, s:I, s:o, s:o, s:o}", "checkpoint", (json_int_t)rewound->number, "label",
			 json_text0(rewound->label), "dropped", (json_int_t)rewound->dropped, "traffic",
			 json_egress_traffic(rewound->left, rewound->left_count), "volumes",
			 json_texts(rewound->volumes), "not_undone", sentences(rewound));
}

json_t *json_promoted(const struct husk_promoted *promoted)
{
	return json_pack("{s:s, s:I, s:o}", "sandbox", promoted->sandbox, "checkpoint",
			 (json_int_t)promoted->checkpoint, "ended", json_texts(promoted->ended));
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
