/*
 * What the hostile agent can break, a rule of the protocol in src/wire/wire.h each. A rule acts alone (victim->channel is
 * 0), or on a call of the host's that has just been opened and that the real agent never sees. Called by middle.c; the
 * table at the end is the list of names for `/.husk/break`.
 */
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>

#include "adversary.h"

#define PIECE (128u * 1024u) /* of DATA */
#define BATCH (64u * 1024u)  /* of a flood: what goes into a pipe at once */
#define TAGS 140
#define LATE_MS 40000 /* past every deadline that the host has for an answer */

static char filler[WIRE_PAYLOAD_MAX];

static enum verdict for_ever(void)
{
	for (;;)
		pause();
	return SWALLOW;
}

/* ---- messages ---- */

static void put_header(uint8_t *at, uint16_t tag, uint32_t size)
{
	at[0] = (uint8_t)tag;
	at[1] = (uint8_t)(tag >> 8);
	at[2] = at[3] = 0;
	for (int i = 0; i < 4; i++)
		at[4 + i] = (uint8_t)(size >> 8 * i);
}

static void end_with(uint32_t channel, int64_t status, const struct buf *results)
{
	cleanup_buf struct buf message = { 0 };

	wire_put_int(&message, TAG_STATUS, status);
	if (results && results->size)
		buf_append(&message, results->data, results->size);
	tell(channel, WIRE_END, 0, message.data, message.size);
}

static void end_well(uint32_t channel)
{
	end_with(channel, HUSK_OK, NULL);
}

/* The same value under every tag there is, but for the status. */
static void every_tag(struct buf *out, const void *value, size_t size)
{
	for (uint16_t tag = 1; tag < TAGS; tag++)
		if (tag != TAG_STATUS)
			wire_put_bytes(out, tag, value, size);
}

/* As a message, as output, and as the results. */
static enum verdict answer_with(const struct victim *victim, const void *value, size_t size)
{
	cleanup_buf struct buf fields = { 0 };

	every_tag(&fields, value, size);
	tell(victim->channel, WIRE_MSG, 0, fields.data, fields.size);
	tell(victim->channel, WIRE_MSG, 0, fields.data, fields.size);
	tell(victim->channel, WIRE_DATA, STREAM_OUT, value, size);
	tell(victim->channel, WIRE_EOF, STREAM_OUT, NULL, 0);
	end_with(victim->channel, HUSK_OK, &fields);
	return SWALLOW;
}

static enum verdict answer_number(const struct victim *victim, int64_t number)
{
	return answer_with(victim, &number, sizeof(number));
}

static enum verdict wrong_types(const struct victim *v)
{
	return answer_with(v, "\1\2\3", 3);
}

static enum verdict negative_numbers(const struct victim *v)
{
	return answer_number(v, -1);
}

static enum verdict smallest_numbers(const struct victim *v)
{
	return answer_number(v, INT64_MIN);
}

static enum verdict largest_numbers(const struct victim *v)
{
	return answer_number(v, INT64_MAX);
}

static enum verdict empty_fields(const struct victim *v)
{
	return answer_with(v, "", 0);
}

static enum verdict nul_bytes(const struct victim *v)
{
	return answer_with(v, "a\0b\0\0c", 6);
}

static enum verdict terminal_escapes(const struct victim *v)
{
	static const char text[] = "\x1b]0;owned\x07\x1b[2J\r\nhusk: all is well\xff\xfe\xc0\x80../../etc/passwd";

	return answer_with(v, text, sizeof(text) - 1);
}

static enum verdict giant_texts(const struct victim *victim)
{
	cleanup_buf struct buf fields = { 0 };

	memset(filler, 'A', sizeof(filler));
	wire_put_bytes(&fields, victim->method == METHOD_FILE_LIST ? TAG_PATH : TAG_MESSAGE, filler,
		       WIRE_PAYLOAD_MAX - 64);
	tell(victim->channel, WIRE_MSG, 0, fields.data, fields.size);
	end_with(victim->channel, HUSK_INTERNAL, &fields);
	return SWALLOW;
}

static enum verdict many_fields(const struct victim *victim)
{
	cleanup_buf struct buf fields = { 0 };

	while (fields.size < WIRE_PAYLOAD_MAX - 64 && wire_put_bytes(&fields, TAG_ARG, "", 0) == 0)
		;
	tell(victim->channel, WIRE_MSG, 0, fields.data, fields.size);
	end_with(victim->channel, HUSK_OK, &fields);
	return SWALLOW;
}

static enum verdict field_past_the_end(const struct victim *victim)
{
	uint8_t bytes[16] = { 0 };

	put_header(bytes, TAG_PID, 4096);
	tell(victim->channel, WIRE_MSG, 0, bytes, sizeof(bytes));
	return for_ever();
}

static enum verdict field_overflows(const struct victim *victim)
{
	uint8_t bytes[16] = { 0 };

	put_header(bytes, TAG_PID, 0xffffffffu);
	tell(victim->channel, WIRE_END, 0, bytes, sizeof(bytes));
	return for_ever();
}

static enum verdict field_cut_short(const struct victim *victim)
{
	uint8_t bytes[8];

	put_header(bytes, TAG_STATUS, 8);
	tell(victim->channel, WIRE_END, 0, bytes, 5);
	return for_ever();
}

static enum verdict end_without_status(const struct victim *victim)
{
	tell(victim->channel, WIRE_END, 0, NULL, 0);
	return SWALLOW;
}

static enum verdict end_absurd_status(const struct victim *victim)
{
	static const int64_t codes[] = { -1, INT64_MIN, INT64_MAX, 1 << 20 };
	static size_t next;

	end_with(victim->channel, codes[next++ % ARRAY_SIZE(codes)], NULL);
	return SWALLOW;
}

/* ---- order ---- */

static enum verdict end_twice(const struct victim *victim)
{
	end_well(victim->channel);
	end_well(victim->channel);
	return SWALLOW;
}

/* The host holds the link, and other calls wait to be opened: they have numbers that the guest can guess. */
static enum verdict end_before_open(const struct victim *victim)
{
	poll(NULL, 0, 700);
	for (uint32_t i = 1; i <= 3; i++)
		end_well(victim->channel + i);
	end_well(victim->channel);
	return SWALLOW;
}

/* As often as the number is used. */
static enum verdict end_again_later(const struct victim *victim)
{
	end_well(victim->channel);
	for (;;) {
		poll(NULL, 0, 100);
		end_well(victim->channel + 1);
	}
	return SWALLOW;
}

static enum verdict data_after_end(const struct victim *victim)
{
	end_well(victim->channel);
	tell(victim->channel, WIRE_DATA, STREAM_OUT, "late", 4);
	return SWALLOW;
}

static enum verdict eof_twice(const struct victim *victim)
{
	tell(victim->channel, WIRE_EOF, STREAM_OUT, NULL, 0);
	tell(victim->channel, WIRE_EOF, STREAM_OUT, NULL, 0);
	return for_ever();
}

static enum verdict eof_with_content(const struct victim *victim)
{
	tell(victim->channel, WIRE_EOF, STREAM_OUT, "more", 4);
	return for_ever();
}

static enum verdict data_after_eof(const struct victim *victim)
{
	tell(victim->channel, WIRE_EOF, STREAM_OUT, NULL, 0);
	tell(victim->channel, WIRE_DATA, STREAM_OUT, "late", 4);
	return for_ever();
}

static enum verdict data_on_the_hosts_stream(const struct victim *victim)
{
	tell(victim->channel, WIRE_DATA, STREAM_IN, "yours", 5);
	return for_ever();
}

static enum verdict open_from_the_guest(const struct victim *victim)
{
	cleanup_buf struct buf message = { 0 };

	wire_put_int(&message, TAG_METHOD, METHOD_SANDBOX_KILL);
	tell(victim->channel ? victim->channel : 7, WIRE_OPEN, 0, message.data, message.size);
	return for_ever();
}

static enum verdict cancel_from_the_guest(const struct victim *victim)
{
	tell(victim->channel ? victim->channel : 7, WIRE_CANCEL, 0, NULL, 0);
	return for_ever();
}

static enum verdict never_answer(const struct victim *victim)
{
	(void)victim;
	return SWALLOW; /* the rest of the agent works */
}

static enum verdict answer_late(const struct victim *victim)
{
	poll(NULL, 0, LATE_MS);
	end_well(victim->channel);
	return for_ever();
}

static enum verdict refuse(const struct victim *victim)
{
	end_with(victim->channel, HUSK_CONFLICT, NULL);
	return SWALLOW;
}

static enum verdict lie(const struct victim *victim)
{
	end_well(victim->channel);
	return SWALLOW;
}

/* ---- credit and floods ---- */

static enum verdict data_past_credit(const struct victim *victim)
{
	for (size_t sent = 0; sent < 2 * WIRE_WINDOW; sent += PIECE)
		tell(victim->channel, WIRE_DATA, STREAM_OUT, filler, PIECE);
	return for_ever();
}

static enum verdict data_for_ever(const struct victim *victim)
{
	for (uint64_t sent = 0;;) {
		if (credit_given() - sent < PIECE) {
			poll(NULL, 0, 1);
			continue;
		}
		tell(victim->channel, WIRE_DATA, STREAM_OUT, filler, PIECE);
		sent += PIECE;
	}
	return SWALLOW;
}

/* As many frames as fit one write: gVisor's system calls are dear, and a flood should be one. */
static struct buf frames_of(uint32_t channel, unsigned type, unsigned stream, const void *payload, size_t size)
{
	const struct wire_header header = { (uint32_t)size, channel, (uint8_t)type, (uint8_t)stream };
	uint8_t bytes[WIRE_HEADER_SIZE];
	struct buf out = { 0 };

	wire_header_encode(&header, bytes);
	do {
		if (buf_append(&out, bytes, sizeof(bytes)) < 0 || buf_append(&out, payload ? payload : "", size) < 0)
			_exit(4);
	} while (out.size + sizeof(bytes) + size <= BATCH);
	return out;
}

static enum verdict flood(uint32_t channel, unsigned type, unsigned stream, const void *payload, size_t size)
{
	cleanup_buf struct buf frames = frames_of(channel, type, stream, payload, size);

	for (;;)
		tell_bytes(frames.data, frames.size);
	return SWALLOW;
}

/* Byte by byte, within the credit: the most frames that it buys. */
static enum verdict crumbs_for_ever(const struct victim *victim)
{
	cleanup_buf struct buf frames = frames_of(victim->channel, WIRE_DATA, STREAM_OUT, "x", 1);
	uint64_t count = frames.size / (WIRE_HEADER_SIZE + 1);

	for (uint64_t sent = 0;; sent += count) {
		while (sent + count > credit_given())
			poll(NULL, 0, 1);
		tell_bytes(frames.data, frames.size);
	}
	return SWALLOW;
}

static enum verdict empty_data_flood(const struct victim *victim)
{
	return flood(victim->channel, WIRE_DATA, STREAM_OUT, NULL, 0);
}

static enum verdict eof_flood(const struct victim *victim)
{
	return flood(victim->channel, WIRE_EOF, STREAM_ERR, NULL, 0);
}

static enum verdict credit_huge(const struct victim *victim)
{
	tell(victim->channel, WIRE_CREDIT, STREAM_IN, "\xff\xff\xff\xff", 4);
	tell(victim->channel, WIRE_CREDIT, STREAM_IN, "\xff\xff\xff\xff", 4);
	return for_ever();
}

static enum verdict credit_flood(const struct victim *victim)
{
	return flood(victim->channel, WIRE_CREDIT, STREAM_IN, "\1\0\0\0", 4);
}

static enum verdict credit_zero_flood(const struct victim *victim)
{
	return flood(victim->channel, WIRE_CREDIT, STREAM_IN, "\0\0\0\0", 4);
}

static enum verdict message_flood(const struct victim *victim)
{
	cleanup_buf struct buf message = { 0 };

	wire_put_int(&message, TAG_PID, 7);
	return flood(victim->channel, WIRE_MSG, 0, message.data, message.size);
}

static enum verdict empty_message_flood(const struct victim *victim)
{
	return flood(victim->channel, WIRE_MSG, 0, NULL, 0);
}

static enum verdict large_message_flood(const struct victim *victim)
{
	cleanup_buf struct buf message = { 0 };

	wire_put_bytes(&message, TAG_NAME, filler, WIRE_PAYLOAD_MAX - 64);
	return flood(victim->channel, WIRE_MSG, 0, message.data, message.size);
}

/* ---- frames ---- */

static enum verdict raw_header(uint32_t size, uint32_t channel, uint8_t type, uint8_t stream, uint8_t reserved)
{
	uint8_t bytes[WIRE_HEADER_SIZE];

	wire_header_encode(&(struct wire_header){ size, channel, type, stream }, bytes);
	bytes[11] = reserved;
	tell_bytes(bytes, sizeof(bytes));
	return for_ever();
}

static enum verdict frame_too_long(const struct victim *v)
{
	return raw_header(WIRE_PAYLOAD_MAX + 1, v->channel + 1, WIRE_DATA, STREAM_OUT, 0);
}

static enum verdict frame_of_4_gib(const struct victim *v)
{
	return raw_header(0xffffffffu, v->channel + 1, WIRE_DATA, STREAM_OUT, 0);
}

static enum verdict frame_of_type_zero(const struct victim *v)
{
	return raw_header(0, v->channel + 1, 0, 0, 0);
}

static enum verdict frame_of_unknown_type(const struct victim *v)
{
	return raw_header(0, v->channel + 1, 200, 0, 0);
}

static enum verdict frame_of_unknown_stream(const struct victim *v)
{
	return raw_header(0, v->channel + 1, WIRE_DATA, STREAM_COUNT, 0);
}

static enum verdict frame_with_reserved_bytes(const struct victim *v)
{
	return raw_header(0, v->channel + 1, WIRE_DATA, STREAM_OUT, 1);
}

static enum verdict credit_of_no_bytes(const struct victim *v)
{
	return raw_header(0, v->channel + 1, WIRE_CREDIT, STREAM_IN, 0);
}

static enum verdict data_on_channel_0(const struct victim *v)
{
	(void)v;
	return raw_header(0, 0, WIRE_DATA, STREAM_OUT, 0);
}

static enum verdict hello_on_a_channel(const struct victim *v)
{
	return raw_header(0, v->channel + 1, WIRE_HELLO, 0, 0);
}

static enum verdict channel_4095(const struct victim *v)
{
	(void)v;
	return raw_header(0, 4095, WIRE_DATA, STREAM_OUT, 0);
}

static enum verdict channel_4096(const struct victim *v)
{
	(void)v;
	return raw_header(0, 4096, WIRE_DATA, STREAM_OUT, 0);
}

static enum verdict channel_2_31(const struct victim *v)
{
	(void)v;
	return raw_header(0, 1u << 31, WIRE_END, 0, 0);
}

static enum verdict end_of_no_channel(const struct victim *v)
{
	(void)v;
	end_well(4000);
	return for_ever();
}

static enum verdict half_a_header(const struct victim *v)
{
	(void)v;
	tell_bytes("\4\0\0\0\1", 5);
	return for_ever();
}

static enum verdict half_a_frame(const struct victim *v)
{
	return raw_header(WIRE_PAYLOAD_MAX, v->channel + 1, WIRE_DATA, STREAM_OUT, 0);
}

static enum verdict garbage(const struct victim *v)
{
	(void)v;
	for (size_t i = 0; i < sizeof(filler); i++)
		filler[i] = (char)(i * 2654435761u >> 13);
	tell_bytes(filler, sizeof(filler));
	return for_ever();
}

static void hello(int64_t version)
{
	cleanup_buf struct buf message = { 0 };

	wire_put_int(&message, TAG_VERSION, version);
	tell(0, WIRE_HELLO, 0, message.data, message.size);
}

static enum verdict hello_again(const struct victim *v)
{
	(void)v;
	hello(WIRE_VERSION);
	return for_ever();
}

static enum verdict hello_other_version(const struct victim *v)
{
	(void)v;
	hello(WIRE_VERSION + 1);
	return for_ever();
}

static enum verdict hello_flood(const struct victim *v)
{
	(void)v;
	for (;;)
		hello(WIRE_VERSION);
	return SWALLOW;
}

/* ---- ends ---- */

static enum verdict close_the_link(const struct victim *v)
{
	(void)v;
	hang_up();
	return for_ever();
}

static enum verdict exit_now(const struct victim *v)
{
	(void)v;
	_exit(3);
}

/* The answer is true and the machine gone a moment later: in the middle of what the host does next. */
static enum verdict answer_and_exit(const struct victim *victim)
{
	pass_on(victim);
	poll(NULL, 0, 30);
	_exit(3);
}

static enum verdict stop_itself(const struct victim *v)
{
	(void)v;
	kill(getpid(), SIGSTOP);
	raise(SIGSTOP);
	return for_ever();
}

/* The agent's own process is not under the workload's limit on processes. */
static enum verdict fork_bomb(const struct victim *v)
{
	(void)v;
	for (;;)
		if (fork() < 0)
			poll(NULL, 0, 1);
	return SWALLOW;
}

static enum verdict eat_memory(const struct victim *v)
{
	(void)v;
	for (;;) {
		char *more = malloc(16u << 20);
		if (more)
			memset(more, 1, 16u << 20);
		poll(NULL, 0, more ? 5 : 100);
	}
	return SWALLOW;
}

/* ---- checkpoints ---- */

/* "Frozen", and the talk goes on. */
static enum verdict talk_while_frozen(const struct victim *victim)
{
	end_well(victim->channel);
	for (;;) {
		hello(WIRE_VERSION);
		poll(NULL, 0, 1);
	}
	return SWALLOW;
}

/* ---- volumes: FUSE requests on the volume's channel ---- */

struct fuse_in { /* the head of a request, as the kernel's protocol has it */
	uint32_t size, opcode;
	uint64_t unique, node;
	uint32_t uid, gid, pid, padding;
};

static void request(const void *bytes, size_t size)
{
	tell(volume_channel(), WIRE_DATA, STREAM_OUT, bytes, size);
}

static enum verdict volume_empty_request(const struct victim *v)
{
	(void)v;
	for (int i = 0; i < 1000; i++)
		request(NULL, 0);
	return for_ever();
}

static enum verdict volume_short_request(const struct victim *v)
{
	(void)v;
	request("short", 5);
	return for_ever();
}

static enum verdict volume_wrong_size(const struct victim *v)
{
	struct fuse_in in = { .size = 4096, .opcode = 26, .unique = 1, .node = 1 };

	(void)v;
	request(&in, sizeof(in));
	return for_ever();
}

static enum verdict volume_long_request(const struct victim *v)
{
	(void)v;
	request(filler, WIRE_PAYLOAD_MAX);
	return for_ever();
}

static enum verdict volume_nonsense(const struct victim *v)
{
	struct fuse_in in = { .size = sizeof(in), .unique = 1 };

	(void)v;
	for (uint32_t i = 0; i < 20000; i++) {
		in.opcode = i % 61;
		in.unique += 2;
		in.node = i % 3 ? i : UINT64_MAX - i;
		request(&in, sizeof(in));
	}
	return for_ever();
}

/* Good requests (GETATTR of the root), whose answers nobody reads: together with `deaf`. */
static enum verdict volume_flood(const struct victim *v)
{
	struct {
		struct fuse_in in;
		uint64_t arguments[2];
	} ask = { { sizeof(ask), 3, 1, 1, 0, 0, 1, 0 }, { 0 } };

	(void)v;
	for (;; ask.in.unique += 2)
		request(&ask, sizeof(ask));
	return SWALLOW;
}

static enum verdict volume_credit_flood(const struct victim *v)
{
	(void)v;
	return flood(volume_channel(), WIRE_CREDIT, STREAM_IN, "\xff\xff\xff\x7f", 4);
}

static enum verdict volume_message_flood(const struct victim *v)
{
	(void)v;
	return flood(volume_channel(), WIRE_MSG, 0, NULL, 0);
}

static enum verdict volume_ends(const struct victim *v)
{
	(void)v;
	end_well(volume_channel());
	return for_ever();
}

static enum verdict volume_no_messages(const struct wire_header *header, const char *payload)
{
	(void)payload;
	return header->channel == volume_channel() && header->type == WIRE_MSG ? SWALLOW : PASS;
}

static enum verdict nothing(const struct wire_header *header, const char *payload)
{
	(void)header;
	(void)payload;
	return SWALLOW;
}

static enum verdict no_ends(const struct wire_header *header, const char *payload)
{
	(void)payload;
	return header->type == WIRE_END ? SWALLOW : PASS;
}

static enum verdict no_credit(const struct wire_header *header, const char *payload)
{
	(void)payload;
	return header->type == WIRE_CREDIT ? SWALLOW : PASS;
}

/* ---- the table ---- */

const struct rule rules[] = {
	/* what is read, what is answered */
	{ .name = "deaf", .read_pause_ms = -1 },
	{ .name = "sip", .read_pause_ms = 1000 },
	{ .name = "mute", .filter = nothing },
	{ .name = "deaf-and-mute", .read_pause_ms = -1, .filter = nothing },
	{ .name = "no-ends", .filter = no_ends },
	{ .name = "no-credit", .filter = no_credit },
	{ .name = "never-answer", .act = never_answer },
	{ .name = "answer-late", .act = answer_late, .aside = true },
	{ .name = "refuse", .act = refuse },
	{ .name = "lie", .act = lie },
	/* messages */
	{ .name = "wrong-types", .act = wrong_types },
	{ .name = "negative-numbers", .act = negative_numbers },
	{ .name = "smallest-numbers", .act = smallest_numbers },
	{ .name = "largest-numbers", .act = largest_numbers },
	{ .name = "empty-fields", .act = empty_fields },
	{ .name = "nul-bytes", .act = nul_bytes },
	{ .name = "terminal-escapes", .act = terminal_escapes },
	{ .name = "giant-texts", .act = giant_texts },
	{ .name = "many-fields", .act = many_fields },
	{ .name = "field-past-the-end", .act = field_past_the_end, .aside = true },
	{ .name = "field-overflows", .act = field_overflows, .aside = true },
	{ .name = "field-cut-short", .act = field_cut_short, .aside = true },
	{ .name = "end-without-status", .act = end_without_status },
	{ .name = "end-absurd-status", .act = end_absurd_status },
	/* order */
	{ .name = "end-twice", .act = end_twice },
	{ .name = "end-before-open", .act = end_before_open, .aside = true },
	{ .name = "end-again-later", .act = end_again_later, .aside = true },
	{ .name = "data-after-end", .act = data_after_end },
	{ .name = "eof-twice", .act = eof_twice, .aside = true },
	{ .name = "eof-with-content", .act = eof_with_content, .aside = true },
	{ .name = "data-after-eof", .act = data_after_eof, .aside = true },
	{ .name = "data-on-the-hosts-stream", .act = data_on_the_hosts_stream, .aside = true },
	{ .name = "open-from-the-guest", .act = open_from_the_guest, .aside = true },
	{ .name = "cancel-from-the-guest", .act = cancel_from_the_guest, .aside = true },
	/* credit and floods */
	{ .name = "data-past-credit", .act = data_past_credit, .aside = true },
	{ .name = "data-for-ever", .act = data_for_ever, .aside = true },
	{ .name = "crumbs-for-ever", .act = crumbs_for_ever, .aside = true },
	{ .name = "empty-data-flood", .act = empty_data_flood, .aside = true },
	{ .name = "eof-flood", .act = eof_flood, .aside = true },
	{ .name = "credit-huge", .act = credit_huge, .aside = true },
	{ .name = "credit-flood", .act = credit_flood, .aside = true },
	{ .name = "credit-zero-flood", .act = credit_zero_flood, .aside = true },
	{ .name = "message-flood", .act = message_flood, .aside = true },
	{ .name = "message-flood-deaf", .act = message_flood },
	{ .name = "empty-message-flood", .act = empty_message_flood, .aside = true },
	{ .name = "large-message-flood", .act = large_message_flood, .aside = true },
	/* frames */
	{ .name = "frame-too-long", .act = frame_too_long },
	{ .name = "frame-of-4-gib", .act = frame_of_4_gib },
	{ .name = "frame-of-type-zero", .act = frame_of_type_zero },
	{ .name = "frame-of-unknown-type", .act = frame_of_unknown_type },
	{ .name = "frame-of-unknown-stream", .act = frame_of_unknown_stream },
	{ .name = "frame-with-reserved-bytes", .act = frame_with_reserved_bytes },
	{ .name = "credit-of-no-bytes", .act = credit_of_no_bytes },
	{ .name = "data-on-channel-0", .act = data_on_channel_0 },
	{ .name = "hello-on-a-channel", .act = hello_on_a_channel },
	{ .name = "channel-4095", .act = channel_4095 },
	{ .name = "channel-4096", .act = channel_4096 },
	{ .name = "channel-2-31", .act = channel_2_31 },
	{ .name = "end-of-no-channel", .act = end_of_no_channel },
	{ .name = "half-a-header", .act = half_a_header },
	{ .name = "half-a-frame", .act = half_a_frame },
	{ .name = "garbage", .act = garbage },
	{ .name = "hello-again", .act = hello_again },
	{ .name = "hello-other-version", .act = hello_other_version },
	{ .name = "hello-flood", .act = hello_flood },
	/* ends */
	{ .name = "close-the-link", .act = close_the_link, .aside = true },
	{ .name = "exit", .act = exit_now },
	{ .name = "answer-and-exit", .act = answer_and_exit },
	{ .name = "stop-itself", .act = stop_itself, .aside = true },
	{ .name = "fork-bomb", .act = fork_bomb, .read_pause_ms = -1, .filter = nothing },
	{ .name = "eat-memory", .act = eat_memory, .read_pause_ms = -1, .filter = nothing },
	/* checkpoints */
	{ .name = "talk-while-frozen", .act = talk_while_frozen, .aside = true },
	/* volumes */
	{ .name = "volume-empty-request", .act = volume_empty_request },
	{ .name = "volume-short-request", .act = volume_short_request },
	{ .name = "volume-wrong-size", .act = volume_wrong_size },
	{ .name = "volume-long-request", .act = volume_long_request },
	{ .name = "volume-nonsense", .act = volume_nonsense },
	{ .name = "volume-flood", .act = volume_flood },
	{ .name = "volume-flood-deaf", .act = volume_flood, .read_pause_ms = -1 },
	{ .name = "volume-credit-flood", .act = volume_credit_flood },
	{ .name = "volume-message-flood", .act = volume_message_flood },
	{ .name = "volume-ends", .act = volume_ends },
	{ .name = "volume-no-messages", .filter = volume_no_messages },
	{ 0 },
};

const struct rule *rule_find(const char *name)
{
	for (const struct rule *rule = rules; rule->name; rule++)
		if (str_equal(rule->name, name))
			return rule;
	return NULL;
}
