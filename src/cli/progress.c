/*
 * The line that shows that a slow call still runs. It has its own thread, because libhusk's calls block. It appears
 * after half a second, only if stderr is a terminal, and is erased when the call is over. It never uses stdout, and
 * blocks signals: the main thread handles them.
 */
#include <stdatomic.h>

#include "base/thread.h"
#include "cli/output.h"
#include "cli/terminal.h"

#define PROGRESS_DELAY_MS 500
#define LINE_REST 24 /* columns for the spinner, the bytes and the time */
#define PROGRESS_STEP_MS 100

struct progress {
	char text[256];
	_Atomic uint64_t bytes;
	int64_t started_ms;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t over;
	bool done;
};

static void progress_draw(struct progress *progress, size_t frame)
{
	static const char *const wheel[] = { "|", "/", "-", "\\" };
	uint64_t bytes = atomic_load(&progress->bytes);
	char size[32] = "";

	if (bytes)
		output_size(bytes, size, sizeof(size));
	/* One line: a text wider than the terminal would continue in the next line and stay there. */
	char text[sizeof(progress->text)];
	uint16_t rows, columns;
	terminal_size(&rows, &columns);
	snprintf(text, sizeof(text), "%.*s", MAX((int)columns - LINE_REST, 10), progress->text);
	fprintf(stderr, "\r%s ", wheel[frame % ARRAY_SIZE(wheel)]);
	output_safe(stderr, text, false);
	fprintf(stderr, " %s%s%.1f s\033[K", size, bytes ? ", " : "",
		(double)(time_monotonic_ms() - progress->started_ms) / 1000);
}

static void *progress_main(void *data)
{
	struct progress *progress = data;
	bool drawn = false;

	pthread_mutex_lock(&progress->lock);
	for (size_t frame = 0; !progress->done; frame++) {
		int64_t until = time_monotonic_ms() + (frame ? PROGRESS_STEP_MS : PROGRESS_DELAY_MS);
		if (cond_wait_until(&progress->over, &progress->lock, until) == 0)
			continue;
		progress_draw(progress, frame);
		drawn = true;
	}
	pthread_mutex_unlock(&progress->lock);
	if (drawn)
		fputs("\r\033[K", stderr);
	return NULL;
}

static int progress_start(struct progress *progress)
{
	if (pthread_mutex_init(&progress->lock, NULL) != 0)
		return -1;
	cond_open(&progress->over);
	return thread_quiet(&progress->thread, 0, progress_main, progress) ? -1 : 0;
}

struct progress *progress_begin(const char *format, ...)
{
	va_list arguments;

	if (!isatty(STDERR_FILENO))
		return NULL;
	struct progress *progress = calloc(1, sizeof(*progress));
	if (!progress) /* a missing spinner is no reason to fail the call */
		return NULL;
	va_start(arguments, format);
	vsnprintf(progress->text, sizeof(progress->text), format, arguments);
	va_end(arguments);
	progress->started_ms = time_monotonic_ms();
	if (progress_start(progress) < 0) {
		free(progress);
		return NULL;
	}
	return progress;
}

void progress_bytes(struct progress *progress, size_t more)
{
	if (progress)
		atomic_fetch_add(&progress->bytes, more);
}

void progress_text(struct progress *progress, const char *text)
{
	if (!progress)
		return;
	pthread_mutex_lock(&progress->lock);
	snprintf(progress->text, sizeof(progress->text), "%s", text);
	pthread_mutex_unlock(&progress->lock);
}

void progress_end(struct progress **held)
{
	struct progress *progress = steal_pointer(*held);

	if (!progress)
		return;
	pthread_mutex_lock(&progress->lock);
	progress->done = true;
	pthread_cond_signal(&progress->over);
	pthread_mutex_unlock(&progress->lock);
	pthread_join(progress->thread, NULL);
	pthread_cond_destroy(&progress->over);
	pthread_mutex_destroy(&progress->lock);
	free(progress);
}
