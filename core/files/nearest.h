/* Finds the known name that a mistyped one was probably meant to be. */
#ifndef SW_CORE_FILES_NEAREST_H
#define SW_CORE_FILES_NEAREST_H

#include <stddef.h>

struct sw_nearest {
    const char *typed;
    int typed_chars;
    const char *name; /* the nearest name so far; NULL: none is near. Borrowed from sw_nearest_consider's caller */
    int distance;
};

/* Begins a search for the name nearest to the first `chars` characters of `typed`, which must outlive the search. */
struct sw_nearest sw_nearest_begin(const char *typed, size_t chars);
/* Considers a known name, and keeps it if it is nearer than those before. */
void sw_nearest_consider(struct sw_nearest *nearest, const char *name);

#endif
