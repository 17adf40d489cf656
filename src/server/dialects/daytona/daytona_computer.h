/*
 * Shared by the files of Daytona's computer use: daytona_computer.c, daytona_keys.c, daytona_desktop.c, daytona_recordings.c.
 */
#ifndef HUSK_SERVER_DAYTONA_COMPUTER_H
#define HUSK_SERVER_DAYTONA_COMPUTER_H

#include "server/api_desktop.h"
#include "server/dialects/daytona/daytona.h"

/* As daytona_enter; 400 if the client has stopped the desktop. */
int daytona_computer_enter(struct request *request, struct daytona_box *box, struct husk_error *err);

/* ---- daytona_keys.c: Daytona's names of keys as those of docs/desktop.md; the caller frees *out ---- */

/* "ctrl+shift", or "" without modifiers (NULL: none). */
int daytona_modifiers(const char *const *modifiers, char **out, struct husk_error *err);
/* "ctrl+c" for the key and the modifiers. */
int daytona_chord(const char *key, const char *const *modifiers, char **out, struct husk_error *err);
/* The same for one text, as in "ctrl + c": the last part is the key. */
int daytona_hotkey(const char *keys, char **out, struct husk_error *err);

/* ---- daytona_desktop.c: scripts as root in a sandbox that has a desktop ---- */

/* Runs it with two arguments (NULL: none); 503 if there is no desktop. Its output is in *output, which the caller frees. */
int daytona_desktop_script(struct request *request, const struct daytona_box *box, const char *script,
			   const char *first, const char *second, struct daytona_output *output,
			   struct husk_error *err);

#endif
