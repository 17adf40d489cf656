/*
 * The user's own terminal: its size, and raw mode while a guest's terminal is shown on it.
 */
#ifndef HUSK_CLI_TERMINAL_H
#define HUSK_CLI_TERMINAL_H

#include <termios.h>

#include "base/base.h"

struct terminal {
	bool raw;
	struct termios before;
};

/* The size of our terminal; 24x80 if there is none. */
void terminal_size(uint16_t *rows, uint16_t *columns);
/* Raw mode when stdin is a terminal; does nothing otherwise. */
int terminal_raw(struct terminal *terminal, struct husk_error *err);
void terminal_restore(struct terminal *terminal);
#define cleanup_terminal cleanup(terminal_restore)

#endif
