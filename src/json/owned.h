/*
 * Cleanup attributes for values that husk.h returns and the caller frees: a variable declared with one is freed at the
 * end of its block.
 *
 *     cleanup_volume struct husk_volume *volume = NULL;
 *     cleanup_volumes struct husk_volume **list = NULL;      a NULL-terminated list
 */
#ifndef HUSK_JSON_OWNED_H
#define HUSK_JSON_OWNED_H

#include "base/base.h"
#include "husk.h"

static inline void owned_sandbox(struct husk_sandbox **sandbox)
{
	husk_sandbox_free(*sandbox);
}

static inline void owned_sandboxes(struct husk_sandbox ***list)
{
	husk_sandbox_list_free(*list);
}

static inline void owned_snapshot(struct husk_snapshot **snapshot)
{
	husk_snapshot_free(*snapshot);
}

static inline void owned_snapshots(struct husk_snapshot ***list)
{
	husk_snapshot_list_free(*list);
}

static inline void owned_checkpoint(struct husk_checkpoint **checkpoint)
{
	husk_checkpoint_free(*checkpoint);
}

static inline void owned_checkpoints(struct husk_checkpoint ***list)
{
	husk_checkpoint_list_free(*list);
}

static inline void owned_rewound(struct husk_rewound **rewound)
{
	husk_rewound_free(*rewound);
}

static inline void owned_promoted(struct husk_promoted **promoted)
{
	husk_promoted_free(*promoted);
}

static inline void owned_effects(struct husk_effect ***list)
{
	husk_effect_list_free(*list);
}

static inline void owned_merged(struct husk_merged **merged)
{
	husk_merged_free(*merged);
}

static inline void owned_changes(struct husk_change ***list)
{
	husk_change_list_free(*list);
}

static inline void owned_template(struct husk_template **value)
{
	husk_template_free(*value);
}

static inline void owned_templates(struct husk_template ***list)
{
	husk_template_list_free(*list);
}

static inline void owned_image(struct husk_image **image)
{
	husk_image_free(*image);
}

static inline void owned_images(struct husk_image ***list)
{
	husk_image_list_free(*list);
}

static inline void owned_volume(struct husk_volume **volume)
{
	husk_volume_free(*volume);
}

static inline void owned_volumes(struct husk_volume ***list)
{
	husk_volume_list_free(*list);
}

static inline void owned_secret(struct husk_stored_secret **secret)
{
	husk_stored_secret_free(*secret);
}

static inline void owned_secrets(struct husk_stored_secret ***list)
{
	husk_stored_secret_list_free(*list);
}

static inline void owned_token(struct husk_token **token)
{
	husk_token_free(*token);
}

static inline void owned_tokens(struct husk_token ***list)
{
	husk_token_list_free(*list);
}

static inline void owned_control(struct husk_control **control)
{
	husk_control_free(*control);
}

#define cleanup_control cleanup(owned_control)
#define cleanup_sandbox cleanup(owned_sandbox)
#define cleanup_sandboxes cleanup(owned_sandboxes)
#define cleanup_snapshot cleanup(owned_snapshot)
#define cleanup_snapshots cleanup(owned_snapshots)
#define cleanup_checkpoint cleanup(owned_checkpoint)
#define cleanup_checkpoints cleanup(owned_checkpoints)
#define cleanup_rewound cleanup(owned_rewound)
#define cleanup_promoted cleanup(owned_promoted)
#define cleanup_effects cleanup(owned_effects)
#define cleanup_merged cleanup(owned_merged)
#define cleanup_changes cleanup(owned_changes)
#define cleanup_husk_template cleanup(owned_template) /* store/template.h has a cleanup_template */
#define cleanup_templates cleanup(owned_templates)
#define cleanup_image cleanup(owned_image)
#define cleanup_images cleanup(owned_images)
#define cleanup_volume cleanup(owned_volume)
#define cleanup_volumes cleanup(owned_volumes)
#define cleanup_stored_secret cleanup(owned_secret)
#define cleanup_stored_secrets cleanup(owned_secrets)
#define cleanup_token cleanup(owned_token)
#define cleanup_tokens cleanup(owned_tokens)

#endif
