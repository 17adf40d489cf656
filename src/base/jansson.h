/*
 * jansson with the kit's cleanup attribute. For the host only: the agent has no JSON.
 */
#ifndef HUSK_JANSSON_H
#define HUSK_JANSSON_H

#include <jansson.h>

#include "base/base.h"

static inline void json_cleanup(json_t **document)
{
	json_decref(*document);
}
#define cleanup_json cleanup(json_cleanup) /* jansson's own json_auto_t clashes with the kit's `cleanup` */

#endif
