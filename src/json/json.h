/*
 * The JSON form of the structures of husk.h, so that the command line and the server print the same keys. Bytes from a
 * guest are repaired to UTF-8 here and nowhere else. Every function returns a new document, which the caller frees, or
 * NULL without memory.
 */
#ifndef HUSK_JSON_H
#define HUSK_JSON_H

#include "base/jansson.h"
#include "husk.h"
#include "json/owned.h"

/* A string from untrusted bytes: invalid UTF-8 becomes U+FFFD. */
json_t *json_text(const char *bytes, size_t size);
json_t *json_text0(const char *text); /* NULL: null */
json_t *json_texts(char *const *list);
json_t *json_time(int64_t wall_ms); /* RFC 3339; 0: null */
json_t *json_base64(const char *bytes, size_t size);
/* Decodes base64 with padding, without other characters, and appends to `out`. INVALID names `field`. */
int base64_decode(const char *field, const char *text, size_t size, struct buf *out, struct husk_error *err);
/* Adds `key` as text. If the bytes are not UTF-8, also adds `key`_base64 with the exact bytes. */
int json_set_bytes(json_t *object, const char *key, const char *bytes, size_t size);
json_t *json_sandbox(const struct husk_sandbox *sandbox);
json_t *json_sandbox_list(struct husk_sandbox *const *list);
json_t *json_snapshot(const struct husk_snapshot *snapshot);
json_t *json_snapshots(struct husk_snapshot *const *list);
json_t *json_checkpoint(const struct husk_checkpoint *checkpoint);
json_t *json_checkpoints(struct husk_checkpoint *const *list);
/* "not_undone" has one sentence for each effect that was not undone. */
json_t *json_rewound(const struct husk_rewound *rewound);
json_t *json_effects(struct husk_effect *const *list); /* NULL: an empty array */
json_t *json_promoted(const struct husk_promoted *promoted);
/* Families of sandboxes and snapshots (json_tree.c) as an array of {"id", …, "children"}. `of`: only the family of this
 * id or name. NULL: every family with a live or kept member; with `all`, the others too. */
int json_tree(struct husk *husk, const char *of, bool all, json_t **out, struct husk_error *err);
json_t *json_file(const struct husk_file *file);
/* Each element is a file, with the kind of change in "change". */
json_t *json_changes(struct husk_change *const *list);
json_t *json_differences(const struct husk_difference *list, size_t count);
json_t *json_branches(const struct husk_branch *list, size_t count);
/* The result of an apply or a merge. */
json_t *json_merged(const struct husk_merged *merged);
json_t *json_volume(const struct husk_volume *volume);
json_t *json_volumes(struct husk_volume *const *list);
json_t *json_stats(const struct husk_stats *stats);
json_t *json_template(const struct husk_template *template);
json_t *json_templates(struct husk_template *const *list);
/* {"event": "step", "cached", "output", "done" or "note", "text", "stage", "step", "steps", "line", "stream", "duration_ms"} */
json_t *json_build_event(const struct husk_build_event *event);
json_t *json_image(const struct husk_image *image);
json_t *json_images(struct husk_image *const *list);
json_t *json_token(const struct husk_token *token);
json_t *json_tokens(struct husk_token *const *list);
json_t *json_checks(const struct husk_check *list, size_t count);
json_t *json_process_list(const struct husk_process_info *list, size_t count);
json_t *json_code_contexts(const struct husk_code_context *list, size_t count);

/* ---- the network (json_egress.c) ---- */

json_t *json_egress(const struct husk_egress *egress);
json_t *json_egress_event(const struct husk_egress_event *event);
/* Connections denied to a sandbox since then, each once, as events with a readable line in "text": "blocked: a.example
 * is not allowed; it requires --allow a.example". `errors`: the end of the program's stderr (NULL: unknown); in a sandbox
 * without network it is the only sign of a failed connection. NULL: out of memory. */
json_t *json_denied(struct husk *husk, const char *sandbox, int64_t since_ms, const char *errors, size_t size);
json_t *json_egress_traffic(const struct husk_egress_traffic *list, size_t count);

#endif
