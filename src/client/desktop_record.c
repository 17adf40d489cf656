/*
 * Records the screen of a sandbox; see husk.h. A recording is a directory, recordings/<id>, in that of the sandbox:
 *
 *     screen    "FBS 001.001\n", then blocks: size (4 bytes, big-endian), that many bytes of the RFB stream, 0 to 3 bytes
 *               of padding, milliseconds since the beginning (4 bytes)
 *     actions   a line of JSON for each action of an agent
 *     about     the JSON document that husk_recording_list reads
 *     stop      present: the recorder is asked to end
 *
 * The recorder holds a lock on `screen` while it lives. If no process holds the lock and `about` has no end, the
 * recorder was killed: the recording is cut, and its complete blocks can be played. Bytes of the guest are written
 * without being parsed, within the limits.
 */
#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "client/desktop_files.h"
#include "client/rfb_client.h"

#define VNC_SOCKET "/run/husk/desktop/vnc.sock"
#define HANDSHAKE_MS 15000
#define ASK_MS 100 /* between two requests for what has changed */
#define PIECE (64u << 10)
#define SECONDS_DEFAULT 3600
#define SECONDS_MAX 86400
#define BYTES_DEFAULT (UINT64_C(256) << 20)
#define BYTES_MIN (UINT64_C(64) << 10)
#define BYTES_MAX (UINT64_C(4) << 30)
#define HEAD "FBS 001.001\n"

struct husk_recorder {
	struct husk_recording about;
	/* Of a server's: it is the server that records. */
	struct remote *remote;
	char *sandbox;
	char *home; /* of the instance: a recording may outlive the handle that began it */
	char *directory;
	int guest, screen;
	int64_t begun_ms, max_ms;
	uint64_t max_bytes;
};

const char *husk_recorder_id(const struct husk_recorder *recorder)
{
	return recorder->about.id;
}

void husk_recorder_free(struct husk_recorder *recorder)
{
	if (!recorder)
		return;
	fd_close(&recorder->guest);
	fd_close(&recorder->screen); /* and with it the lock */
	free(recorder->about.id);
	free(recorder->about.reason);
	free(recorder->directory);
	free(recorder->home);
	free(recorder->sandbox);
	free(recorder);
}

static void recorder_cleanup(struct husk_recorder **recorder)
{
	husk_recorder_free(*recorder);
}
#define cleanup_recorder cleanup(recorder_cleanup)

/* ---- the file ---- */

/* One block, whole or not at all. Returns -1 if the disk is full. */
static int put_block(struct husk_recorder *recorder, const void *bytes, size_t size)
{
	uint32_t ms = (uint32_t)(time_monotonic_ms() - recorder->begun_ms);
	size_t padding = -size & 3;
	uint8_t head[4] = { (uint8_t)(size >> 24), (uint8_t)(size >> 16), (uint8_t)(size >> 8), (uint8_t)size };
	uint8_t tail[7] = { 0 };

	for (size_t i = 0; i < 4; i++)
		tail[padding + i] = (uint8_t)(ms >> (24 - 8 * i));
	if (write_full(recorder->screen, head, sizeof(head)) == 0 && write_full(recorder->screen, bytes, size) == 0 &&
	    write_full(recorder->screen, tail, padding + 4) == 0) {
		recorder->about.bytes += sizeof(head) + size + padding + 4;
		recorder->about.duration_ms = ms;
		return 0;
	}
	if (ftruncate(recorder->screen, (off_t)recorder->about.bytes) < 0)
		log_line(LOG_WARN, "a recording ends with half a block: %s", strerror(errno));
	return -1;
}

static int open_screen(struct husk_recorder *recorder, struct husk_error *err)
{
	cleanup_free char *path = str_format("%s/screen", recorder->directory);

	if (!path)
		return husk_fail_memory(err);
	recorder->screen = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (recorder->screen < 0 || flock(recorder->screen, LOCK_EX | LOCK_NB) < 0 ||
	    write_full(recorder->screen, HEAD, strlen(HEAD)) < 0)
		return husk_fail_errno(err, "cannot write the recording %s", path);
	recorder->about.bytes = strlen(HEAD);
	return 0;
}

/* ---- beginning ---- */

static int check_options(const struct husk_record_options *options, struct husk_recorder *out, struct husk_error *err)
{
	int64_t seconds = options && options->max_seconds ? options->max_seconds : SECONDS_DEFAULT;
	uint64_t bytes = options && options->max_bytes ? options->max_bytes : BYTES_DEFAULT;

	if (seconds < 1 || seconds > SECONDS_MAX)
		return husk_fail_field(err, "max_seconds", "max_seconds is not within 1 to %d", SECONDS_MAX);
	if (bytes < BYTES_MIN || bytes > BYTES_MAX)
		return husk_fail_field(err, "max_bytes", "max_bytes is not within 64K and 4G");
	out->max_ms = seconds * 1000;
	out->max_bytes = bytes;
	return 0;
}

static int dial(struct husk *husk, const char *sandbox, struct husk_error *err)
{
	struct husk_error why = { 0 };
	int fd = husk_dial_unix(husk, sandbox, VNC_SOCKET, &why);

	if (fd < 0 && why.code == HUSK_NOT_FOUND)
		return husk_fail(err, HUSK_CONFLICT,
				 "sandbox %s has no desktop; create one from the template 'desktop'", sandbox);
	return fd < 0 ? husk_fail(err, why.code, "%s", why.message) : fd;
}

int husk_recorder_open(struct husk *husk, const char *sandbox, const struct husk_record_options *options,
		       struct husk_recorder **out, struct husk_error *err)
{
	cleanup_recorder struct husk_recorder *recorder = calloc(1, sizeof(*recorder));
	cleanup_free char *id = NULL;
	struct rfb_hello hello;

	if (!recorder)
		return husk_fail_memory(err);
	recorder->guest = recorder->screen = -1;
	if (husk->remote) {
		recorder->remote = husk->remote;
		recorder->sandbox = strdup(sandbox);
		if (!recorder->sandbox)
			return husk_fail_memory(err);
		if (remote_recording_begin(husk->remote, sandbox, options, &recorder->about.id, err) < 0)
			return -1;
		*out = steal_pointer(recorder);
		return 0;
	}
	if (check_options(options, recorder, err) < 0 || recording_sandbox(husk, sandbox, &id, err) < 0 ||
	    (recorder->guest = dial(husk, id, err)) < 0 ||
	    rfb_client_open(recorder->guest, HANDSHAKE_MS, &hello, err) < 0 ||
	    recording_make(husk, id, recorder->max_bytes, &recorder->about.id, &recorder->directory, err) < 0)
		return -1;
	recorder->sandbox = steal_pointer(id);
	recorder->home = strdup(husk->paths.home);
	recorder->about.started_ms = time_wall_ms();
	recorder->about.width = hello.width;
	recorder->about.height = hello.height;
	recorder->begun_ms = time_monotonic_ms();
	if (!recorder->home || open_screen(recorder, err) < 0 ||
	    recording_describe(recorder->directory, &recorder->about, err) < 0 ||
	    put_block(recorder, hello.bytes, hello.size) < 0) {
		recording_drop(husk, recorder->about.id, recorder->directory);
		return err && err->code ? -1 : husk_fail(err, HUSK_LIMIT, "the disk is full");
	}
	*out = steal_pointer(recorder);
	return 0;
}

/* ---- recording ---- */

/* Why it ends now; NULL: it does not. */
static const char *limit_reached(const struct husk_recorder *recorder, const char *stop)
{
	if (time_monotonic_ms() - recorder->begun_ms >= recorder->max_ms)
		return "time";
	if (recorder->about.bytes + PIECE + 16 > recorder->max_bytes)
		return "size";
	return access(stop, F_OK) == 0 ? "stopped" : NULL;
}

/* Waits for bytes of the guest until the time. Returns why the recording ends; NULL: it does not. */
static const char *record_until(struct husk_recorder *recorder, int64_t until_ms, char *piece)
{
	for (int64_t left; (left = until_ms - time_monotonic_ms()) > 0;) {
		struct pollfd wait = { .fd = recorder->guest, .events = POLLIN };
		if (poll(&wait, 1, (int)left) <= 0)
			continue;
		ssize_t count = recv(recorder->guest, piece, PIECE, MSG_DONTWAIT);
		if (count < 0 && (errno == EAGAIN || errno == EINTR))
			continue;
		if (count <= 0)
			return "ended";
		if (put_block(recorder, piece, (size_t)count) < 0)
			return "disk";
		if (recorder->about.bytes + PIECE + 16 > recorder->max_bytes)
			return "size";
	}
	return NULL;
}

/* Gives back what was reserved and not used, and tells why it ended. A full disk may have no room for either. */
static void tell_end(const struct husk_recorder *recorder)
{
	cleanup_free char *detail =
		str_format("{\"recording\":\"%s\",\"reason\":\"%s\",\"bytes\":%llu}", recorder->about.id,
			   recorder->about.reason, (unsigned long long)recorder->about.bytes);
	struct husk_error err = { 0 };
	struct husk *husk = NULL;

	if (!detail || husk_open(recorder->home, &husk, &err) < 0 ||
	    catalog_recording_end(husk->catalog, recorder->about.id, recorder->about.bytes, &err) < 0 ||
	    catalog_event(husk->catalog, recorder->sandbox, "recording_ended", detail, &err) < 0)
		log_line(LOG_WARN, "recording %s ended (%s): %s", recorder->about.id, recorder->about.reason,
			 err.message);
	husk_close(husk);
}

int husk_recorder_run(struct husk_recorder *recorder, struct husk_error *err)
{
	if (recorder->remote)
		return remote_recording_wait(recorder->remote, recorder->sandbox, recorder->about.id, err);
	cleanup_free char *piece = malloc(PIECE), *stop = str_format("%s/stop", recorder->directory);
	const char *reason = NULL;
	bool first = true;

	if (!piece || !stop)
		return husk_fail_memory(err);
	while (!reason) {
		reason = limit_reached(recorder, stop);
		if (!reason && rfb_client_ask(recorder->guest, first) < 0)
			reason = "ended";
		if (!reason)
			reason = record_until(recorder, time_monotonic_ms() + ASK_MS, piece);
		first = false;
	}
	/* An empty block has the time of the end: the screen may have been still for long. */
	if (!str_equal(reason, "disk"))
		put_block(recorder, "", 0);
	recorder->about.reason = strdup(reason);
	recorder->about.state = HUSK_RECORDING_COMPLETE;
	int result = recorder->about.reason ? recording_describe(recorder->directory, &recorder->about, err)
					    : husk_fail_memory(err);
	if (recorder->about.reason)
		tell_end(recorder);
	fd_close(&recorder->screen); /* and with it the lock: wakes the callers that wait for the end */
	return result;
}
