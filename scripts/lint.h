/*
 * Included before every file that scripts/lint analyses. Tells the analyzers, which see one file at a time, that the
 * functions that report a failure always return -1. Without it they would follow impossible paths, on which a failed
 * call succeeded.
 */
#include "base/base.h"

#define husk_fail(...) (husk_fail(__VA_ARGS__), -1)
#define husk_fail_field(...) (husk_fail_field(__VA_ARGS__), -1)
#define husk_fail_errno(...) (husk_fail_errno(__VA_ARGS__), -1)
#define husk_fail_memory(err) (husk_fail_memory(err), -1)
#define husk_wrap(...) (husk_wrap(__VA_ARGS__), -1)
