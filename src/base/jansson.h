/*
 * jansson with a cleanup attribute as in base.h. For the host only: the agent uses no JSON.
 */
#ifndef HUSK_JANSSON_H
#define HUSK_JANSSON_H

#include <jansson.h>

#include "base/base.h"

static inline void json_cleanup(json_t **document)
{
	json_decref(*document);
}
#define cleanup_json cleanup(json_cleanup) /* jansson's own json_auto_t conflicts with base.h's `cleanup` */

#endif
