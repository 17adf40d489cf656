/*
 * Opens an address in the browser of the desktop (guest/husk-browser), and waits until it shows.
 */
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

#include "desktop.h"

#define OPEN_MS 45000
#define BROWSER "/usr/local/bin/husk-browser"
#define CHROMIUM "/usr/bin/chromium" /* what BROWSER starts; a desktop may be without */
#define BROWSER_CLASS "Chromium"
#define BROWSER_EMPTY "Untitled - Chromium" /* the title until a page comes */

static pid_t start_browser(const char *url, struct husk_error *err)
{
	pid_t child = fork();

	if (child < 0)
		return (pid_t)husk_fail_errno(err, "cannot start the browser");
	if (child > 0)
		return child;
	int nothing = open("/dev/null", O_RDWR);
	setsid();
	for (int fd = 0; fd < 3; fd++)
		dup2(nothing, fd);
	signal(SIGPIPE, SIG_DFL);
	execl(BROWSER, BROWSER, url, NULL);
	_exit(127);
}

/* A first browser has shown a page when its window has a title of that page. One that runs has been told when the second program ends. */
static bool is_open(struct display *d, bool first, pid_t child)
{
	if (!first)
		return waitpid(child, NULL, WNOHANG) == child;
	return windows_count(d, BROWSER_CLASS, NULL) > windows_count(d, BROWSER_CLASS, BROWSER_EMPTY);
}

int browser_open(struct display *d, const char *url, struct husk_error *err)
{
	if (*url == '-' || !*url || strlen(url) > 8192 || strpbrk(url, "\n\r\t "))
		return husk_fail_field(err, "url", "'url' is not an address, as in \"https://example.com/\"");
	if (access(BROWSER, X_OK) < 0 || access(CHROMIUM, X_OK) < 0)
		return husk_fail(err, HUSK_CONFLICT,
				 "this desktop has no browser; use -t desktop, or add chromium to the packages of its "
				 "template");
	bool first = windows_count(d, BROWSER_CLASS, NULL) == 0;
	pid_t child = start_browser(url, err);
	if (child < 0)
		return -1;
	int64_t deadline = time_monotonic_ms() + OPEN_MS;
	while (display_alive(d) && !is_open(d, first, child) && time_monotonic_ms() < deadline)
		display_sleep(d, 50);
	if (windows_count(d, BROWSER_CLASS, NULL) == 0)
		return husk_fail(err, HUSK_TIMEOUT, "the browser shows no window after %d seconds", OPEN_MS / 1000);
	display_settle(d, 400, 10000);
	return display_sync(d, err);
}
