/* Two things at once, for measurements of what the engine's lanes do at once. */
#ifndef SW_CORE_BOTH_H
#define SW_CORE_BOTH_H

#include "core/status.h"

/* Runs with `other` on a thread of its own and with `own` on this one, and waits for both. The error is own's or else
 * other's, with its message. */
sw_status sw_run_both(sw_status (*run)(void *context), void *own, void *other);

#endif
