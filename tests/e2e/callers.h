/* The maker of a call that a preloaded library stands in front of: the innermost code on the stack that is neither that
 * library nor the C and C++ runtimes. So strdup in our code is ours, and what oneDNN allocates for itself is its own.
 */
#ifndef SW_TESTS_E2E_CALLERS_H
#define SW_TESTS_E2E_CALLERS_H

#include <stdbool.h>
#include <stdint.h>

enum { MOST_FRAMES = 24, PATH_CHARS = 256 };

struct object {
    char name[PATH_CHARS]; /* empty: the program */
    uintptr_t base, begin, end;
    bool runtime; /* its callers are asked instead */
};

/* Lists what is loaded now. Call this first, once: it also loads what looking at the stack needs. */
void callers_begin(void);

/* Writes the return addresses of the caller and of those that called it, innermost first, and returns their number; 0
 * where the stack shows no caller. `out_object` receives what the caller belongs to. Allocates nothing. */
int callers_find(uintptr_t out_address[MOST_FRAMES], const struct object **out_object);

/* Returns where an address is in the program; 0: it belongs to a library. */
uintptr_t callers_offset(uintptr_t address);

#endif
