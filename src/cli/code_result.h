/*
 * How `husk code` handles the events of a run: passes on or collects output, saves rich results, keeps errors.
 */
#ifndef HUSK_CLI_CODE_RESULT_H
#define HUSK_CLI_CODE_RESULT_H

#include "cli/cli.h"

struct code_view {
	bool json;
	const char *output_dir; /* NULL: nothing is saved */
	/* what was collected; output only for JSON */
	struct buf output, error_output;
	json_t *results, *files, *main_text, *error;
	size_t saved;
	struct husk_error failure; /* of this program, while an event was handled; code OK: none */
};

int code_view_begin(struct code_view *view, struct husk_error *err);
void code_view_free(struct code_view *view);
#define cleanup_code_view cleanup(code_view_free)
/* The callback of husk_code_run; data is the view. */
void code_view_event(void *data, const struct husk_code_event *event);
/* -1 with the reason if handling an event failed. */
int code_view_failed(const struct code_view *view, struct husk_error *err);
/* Prints the document: `head` (ownership is taken) with what was collected. */
int code_view_json(struct code_view *view, json_t *head, struct husk_error *err);

#endif
