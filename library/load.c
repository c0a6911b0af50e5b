/* The shared library as a guest in another program: it begins without messages, and leaves Jansson's allocator alone.
 * The program and the tests, which link the static library, have their own. */
#include "core/json.h"
#include "library/spillway.h"

#include <stdbool.h>
#include <stddef.h>

const bool sw_json_is_shared = true;

__attribute__((constructor)) static void begin_silent(void) {
    spillway_set_log(NULL, NULL);
}
