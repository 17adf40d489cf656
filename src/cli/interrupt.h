/*
 * Signals sent to husk itself. By default they end it, as they end any program. A command with something to clean up
 * holds them, or, while it follows a process of a sandbox, takes them one by one to pass them on.
 */
#ifndef HUSK_CLI_INTERRUPT_H
#define HUSK_CLI_INTERRUPT_H

#include "base/base.h"

/* Called once by main: a broken pipe becomes an error of the write instead of sudden death. */
int interrupt_setup(struct husk_error *err);
/* From here on the first interrupt is only remembered (and ends the helper programs libhusk is waiting for, such as a
 * template's bake); a second one ends husk at once, and so does waiting for long. */
int interrupt_hold(struct husk_error *err);
/* The signal that was remembered, or 0. */
int interrupt_seen(void);
/* After this long husk ends as if by the signal, whatever it waits for; 0: not any more. */
void interrupt_deadline(int signal, unsigned seconds);
/* While on, signals (also window changes) queue for interrupt_take, and interrupt_fd is readable when one waits.
 * Turning it off goes back to holding. */
int interrupt_forward(bool on, struct husk_error *err);
int interrupt_fd(void);
int interrupt_take(void); /* the next signal, or 0 */

#endif
