/*
 * The user's own terminal; see terminal.h. A caller that sets raw mode holds the structure in a cleanup variable, so
 * that the terminal is restored on every exit path.
 */
#include "cli/terminal.h"

#include <sys/ioctl.h>

void terminal_size(uint16_t *rows, uint16_t *columns)
{
	static const int candidates[] = { STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO };
	struct winsize size;

	*rows = 24;
	*columns = 80;
	for (size_t i = 0; i < ARRAY_SIZE(candidates); i++) {
		/* a serial line returns zeroes: the size is unknown */
		if (ioctl(candidates[i], TIOCGWINSZ, &size) == 0 && size.ws_row && size.ws_col) {
			*rows = size.ws_row;
			*columns = size.ws_col;
			return;
		}
	}
}

int terminal_raw(struct terminal *terminal, struct husk_error *err)
{
	struct termios raw;

	if (!isatty(STDIN_FILENO))
		return 0;
	if (tcgetattr(STDIN_FILENO, &terminal->before) < 0)
		return husk_fail_errno(err, "cannot read the terminal's settings");
	raw = terminal->before;
	cfmakeraw(&raw);
	if (tcsetattr(STDIN_FILENO, TCSADRAIN, &raw) < 0)
		return husk_fail_errno(err, "cannot put the terminal into raw mode");
	terminal->raw = true;
	return 0;
}

void terminal_restore(struct terminal *terminal)
{
	if (terminal->raw)
		tcsetattr(STDIN_FILENO, TCSADRAIN, &terminal->before);
	terminal->raw = false;
}
