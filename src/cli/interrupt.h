/*
 * Signals sent to husk itself. By default they end it, like any program. A command that has to clean up holds them.
 * While a command follows a process of a sandbox, it takes them one by one and passes them on.
 */
#ifndef HUSK_CLI_INTERRUPT_H
#define HUSK_CLI_INTERRUPT_H

#include "base/base.h"

/* Called once by main: a broken pipe becomes an error of the write and does not kill the process. */
int interrupt_setup(struct husk_error *err);
/* From here on the first interrupt is only remembered (and ends the helper programs that libhusk is waiting for, such
 * as a template's bake). A second interrupt ends husk at once, and so does a long wait. */
int interrupt_hold(struct husk_error *err);
/* The signal that was remembered, or 0. */
int interrupt_seen(void);
/* After this time husk ends as if by the signal, whatever it waits for; 0: cancels the deadline. */
void interrupt_deadline(int signal, unsigned seconds);
/* While on, signals (also window changes) are queued for interrupt_take, and interrupt_fd is readable if one is queued.
 * Turning it off returns to holding. */
int interrupt_forward(bool on, struct husk_error *err);
int interrupt_fd(void);
int interrupt_take(void); /* the next signal, or 0 */

#endif
