/* A scope that handles its own errors, such as a probe, a clean-up or a fallback. The first error of a thread, which
 * core/status.h keeps, must outlive it. */
#ifndef SW_CORE_ERROR_SCOPE_H
#define SW_CORE_ERROR_SCOPE_H

#include <stddef.h>

/* Opens such a scope: until the enclosing block is left, the functions of core/status.h see only what failed in it.
 * That is forgotten at its end, and an error from before, which not even sw_error_clear reaches meanwhile, is the
 * recorded one again. */
#define SW_HANDLES_ERRORS()                                                                                            \
    const size_t sw_error_before_ __attribute__((cleanup(sw_error_go_back), unused)) = sw_error_go_on()
size_t sw_error_go_on(void);
void sw_error_go_back(const size_t *before);

#endif
