/*
 * husk.h over a server's HTTP API (docs/api.md), for handles that husk_open made from a URL. Each function of husk.h
 * calls the function of the same name here if its handle has a `remote`.
 *
 * Two protocols are used. Answers of the catalog or a supervisor are one request and one JSON document each
 * (remote_sandboxes.c …). For the guest (processes, files, watches, ports, code) the wire protocol is used, on a
 * connection that the server relays to the supervisor: remote_tunnel opens it, and src/client/ uses it like a local
 * socket.
 *
 * The server is not trusted: its answers are parsed within bounds, like those of an attacker.
 */
#ifndef HUSK_REMOTE_H
#define HUSK_REMOTE_H

#include "base/base.h"
#include "husk.h"

struct remote;

#define REMOTE_SOCKET "/run/husk/huskd.sock" /* of the instance in /var/lib/husk */

/* ---- remote_open.c: where the server is ---- */

/* True if husk_open takes this text for a server and not for a directory: it begins with "unix:", "http://" or
 * "https://". */
bool remote_is_url(const char *text);
int remote_open(const struct husk_host *host, struct remote **out, struct husk_error *err);
/* Waits a moment until the bytes written to tunnels are sent. */
void remote_close(struct remote *remote);
const char *remote_url(const struct remote *remote);
/* For calls that the API does not offer: UNAVAILABLE, with the name of the call and an alternative. */
int remote_refuse(const struct remote *remote, const char *what, const char *instead, struct husk_error *err);

/* ---- remote_tunnel.c ---- */

/* A connection to the supervisor of a sandbox, for the methods that its agent answers. HELLO is done. */
int remote_tunnel(struct remote *remote, const char *sandbox, struct husk_error *err);

/* ---- remote_sandboxes.c ---- */

int remote_create(struct remote *remote, const struct husk_create_options *options, struct husk_sandbox **out,
		  struct husk_error *err);
int remote_inspect(struct remote *remote, const char *sandbox, struct husk_sandbox **out, struct husk_error *err);
int remote_list(struct remote *remote, const struct husk_filter *filter, struct husk_sandbox ***out,
		struct husk_error *err);
int remote_kill(struct remote *remote, const char *sandbox, struct husk_error *err);
int remote_extend(struct remote *remote, const char *sandbox, int64_t ttl_seconds, bool persistent, int64_t *expires_ms,
		  struct husk_error *err);
int remote_set_idle(struct remote *remote, const char *sandbox, int64_t idle_seconds, struct husk_error *err);
int remote_resize(struct remote *remote, const char *sandbox, uint32_t cpu_milli, uint64_t memory_bytes,
		  struct husk_error *err);
int remote_set_metadata(struct remote *remote, const char *sandbox, const struct husk_pair *pairs, size_t count,
			struct husk_error *err);
/* "pause", "resume", "hibernate", "wake" */
int remote_act(struct remote *remote, const char *sandbox, const char *action, struct husk_error *err);
int remote_fork(struct remote *remote, const char *sandbox, size_t count, const struct husk_create_options *options,
		struct husk_sandbox ***out, struct husk_error *err);
int remote_stats(struct remote *remote, const char *sandbox, struct husk_stats *out, struct husk_error *err);

/* ---- remote_network.c ---- */

int remote_egress_get(struct remote *remote, const char *sandbox, struct husk_egress **out, struct husk_error *err);
int remote_egress_set(struct remote *remote, const char *sandbox, const struct husk_egress *egress,
		      struct husk_error *err);
int remote_egress_log(struct remote *remote, const char *sandbox, size_t limit, struct husk_egress_event **out,
		      size_t *count, struct husk_error *err);
int remote_egress_traffic(struct remote *remote, const char *sandbox, struct husk_egress_traffic **out, size_t *count,
			  struct husk_error *err);

/* ---- remote_snapshots.c ---- */

int remote_snapshot_create(struct remote *remote, const char *sandbox, const char *name, struct husk_snapshot **out,
			   struct husk_error *err);
int remote_snapshot_list(struct remote *remote, struct husk_snapshot ***out, struct husk_error *err);
int remote_snapshot_remove(struct remote *remote, const char *snapshot, struct husk_error *err);
int remote_template_list(struct remote *remote, struct husk_template ***out, struct husk_error *err);
int remote_template_build(struct remote *remote, const struct husk_build_options *options, struct husk_template **out,
			  bool *fresh, struct husk_error *err);
int remote_template_remove(struct remote *remote, const char *name, struct husk_error *err);

/* ---- remote_portable.c ---- */

/* `family` is "snapshots" or "templates". */
int remote_export(struct remote *remote, const char *family, const char *name,
		  const struct husk_export_options *options, husk_sink sink, void *data, struct husk_error *err);
int remote_snapshot_import(struct remote *remote, const struct husk_import_options *options, struct husk_snapshot **out,
			   struct husk_error *err);
int remote_template_import(struct remote *remote, const struct husk_import_options *options, struct husk_template **out,
			   struct husk_error *err);

/* ---- remote_desktop_control.c ---- */

int remote_control_get(struct remote *remote, const char *sandbox, struct husk_control **out, struct husk_error *err);
int remote_control_take(struct remote *remote, const char *sandbox, const struct husk_control_options *options,
			struct husk_control **out, struct husk_error *err);
int remote_control_release(struct remote *remote, const char *sandbox, const char *holder, struct husk_error *err);
int remote_control_request(struct remote *remote, const char *sandbox, const char *reason, struct husk_control **out,
			   struct husk_error *err);
int remote_desktop_link(struct remote *remote, const char *sandbox, bool view_only, int64_t seconds, char **url,
			struct husk_error *err);
/* Recordings. remote_recording_wait returns when it has ended. */
int remote_recording_list(struct remote *remote, const char *sandbox, struct husk_recording ***out,
			  struct husk_error *err);
int remote_recording_begin(struct remote *remote, const char *sandbox, const struct husk_record_options *options,
			   char **id, struct husk_error *err);
int remote_recording_wait(struct remote *remote, const char *sandbox, const char *id, struct husk_error *err);
int remote_recording_stop(struct remote *remote, const char *sandbox, const char *id, struct husk_recording **out,
			  struct husk_error *err);
int remote_recording_remove(struct remote *remote, const char *sandbox, const char *id, struct husk_error *err);
int remote_recording_export(struct remote *remote, const char *sandbox, const char *id, const char *format,
			    husk_sink sink, void *data, struct husk_error *err);

/* ---- remote_points.c ---- */

int remote_checkpoint(struct remote *remote, const char *sandbox, const char *label, struct husk_checkpoint **out,
		      struct husk_error *err);
int remote_history(struct remote *remote, const char *sandbox, bool files, struct husk_checkpoint ***out,
		   struct husk_error *err);
int remote_checkpoint_remove(struct remote *remote, const char *sandbox, const char *point, struct husk_error *err);
int remote_rewind(struct remote *remote, const char *sandbox, const char *point, bool drop_later,
		  struct husk_rewound **out, struct husk_error *err);
int remote_promote(struct remote *remote, const char *sandbox, bool keep, struct husk_promoted **out,
		   struct husk_error *err);

/* ---- remote_effects.c ---- */

int remote_effects(struct remote *remote, const char *sandbox, struct husk_effect ***out, struct husk_error *err);
int remote_effect_request(struct remote *remote, const char *sandbox, int64_t number, char **out, size_t *size,
			  struct husk_error *err);
int remote_effects_act(struct remote *remote, const char *sandbox, const char *action, const int64_t *numbers,
		       size_t count, struct husk_effect ***out, struct husk_error *err);

/* ---- remote_build.c ---- */

/* husk_build on the server. `text` is the Dockerfile, `context` a tar of its files. The options' dockerfile, text and context are not
 * used, except as the Dockerfile's name. */
int remote_build(struct remote *remote, const struct husk_dockerfile_options *options, const char *text, int context,
		 struct husk_image **out, bool *fresh, struct husk_error *err);

/* ---- remote_diff.c ---- */

int remote_merge(struct remote *remote, const char *from, const char *into, const char *base, const char *path,
		 const struct husk_merge_options *options, struct husk_merged **out, struct husk_error *err);

int remote_diff(struct remote *remote, const char *sandbox, const char *base, const char *path,
		struct husk_change ***out, struct husk_error *err);
int remote_diff_system(struct remote *remote, const char *sandbox, const char *base, unsigned what,
		       struct husk_difference **out, size_t *count, struct husk_error *err);

/* ---- remote_volumes.c ---- */

int remote_volume_create(struct remote *remote, const char *name, uint64_t limit_bytes, struct husk_volume **out,
			 struct husk_error *err);
int remote_volume_inspect(struct remote *remote, const char *volume, struct husk_volume **out, struct husk_error *err);
int remote_volume_list(struct remote *remote, struct husk_volume ***out, struct husk_error *err);
int remote_volume_remove(struct remote *remote, const char *volume, struct husk_error *err);
int remote_volume_file_stat(struct remote *remote, const char *volume, const char *path, struct husk_file *out,
			    struct husk_error *err);
int remote_volume_file_list(struct remote *remote, const char *volume, const char *path, uint32_t depth,
			    struct husk_file **out, size_t *count, struct husk_error *err);
int remote_volume_file_read(struct remote *remote, const char *volume, const char *path, uint64_t offset,
			    uint64_t length, husk_sink sink, void *data, struct husk_error *err);
int remote_volume_file_write(struct remote *remote, const char *volume, const char *path,
			     const struct husk_file_attributes *attributes, husk_source source, void *data,
			     struct husk_error *err);
int remote_volume_file_mkdir(struct remote *remote, const char *volume, const char *path,
			     const struct husk_file_attributes *attributes, bool parents, struct husk_error *err);
int remote_volume_file_change(struct remote *remote, const char *volume, const char *path,
			      const struct husk_file_attributes *attributes, struct husk_error *err);
int remote_volume_file_remove(struct remote *remote, const char *volume, const char *path, struct husk_error *err);

/* ---- remote_instance.c ---- */

int remote_events(struct remote *remote, const char *sandbox, int64_t after, size_t limit, int wait_ms,
		  struct husk_event **out, size_t *count, struct husk_error *err);
int remote_logs(struct remote *remote, const char *sandbox, enum husk_log_source source,
		struct husk_log_position *position, char **out, struct husk_error *err);
/* "doctor" and "leaks" */
int remote_checks(struct remote *remote, const char *which, struct husk_check **out, size_t *count,
		  struct husk_error *err);
int remote_gc(struct remote *remote, bool all, struct husk_gc_result *out, struct husk_error *err);
int remote_pool_drain(struct remote *remote, size_t *count, struct husk_error *err);
int remote_token_create(struct remote *remote, const struct husk_token_options *options, char **secret,
			struct husk_token **out, struct husk_error *err);
int remote_token_list(struct remote *remote, struct husk_token ***out, struct husk_error *err);
int remote_token_revoke(struct remote *remote, const char *id_or_name, struct husk_error *err);

#endif
