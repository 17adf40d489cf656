/*
 * The logs of a sandbox: its supervisor's log, and the console of its guest. Both are in the sandbox's directory and
 * stay there after its end, until `husk gc --all`:
 *
 *   sandboxes/<id>/log, log.old           the supervisor's lines (base/log.h)
 *   machines/<slot>/console.log           the console of a machine that runs; the engine writes it, and bounds it
 *   sandboxes/<id>/console, console.old   the console of its last machine, and of the one before it
 */
#ifndef HUSK_CONSOLE_H
#define HUSK_CONSOLE_H

#include "base/log.h"
#include "instance/instance.h"

/* Makes standard error of this process the log of sandbox `id`; its lines carry that id. */
int sandbox_log_open(const struct paths *paths, const char *id, struct husk_error *err);
/* A machine of the pool becomes sandbox `to`: the log continues there, and nothing of `from` is left. */
int sandbox_log_move(const struct paths *paths, const char *from, const char *to, struct husk_error *err);

/* Called after the machine was stopped, before its directory is removed: its console becomes the sandbox's. This is a
 * rename, or otherwise a copy of at most CONSOLE_KEPT bytes; it never waits for a guest. On failure the console is
 * lost. */
#define CONSOLE_KEPT (64u << 10)
void console_keep(const struct paths *paths, uint32_t slot, const char *id);

#endif
