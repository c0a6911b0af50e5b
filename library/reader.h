/* A store of the library, opened for reading by the program, without the tensors of the program that trains it. */
#ifndef SW_LIBRARY_READER_H
#define SW_LIBRARY_READER_H

#include "io/store/store.h"
#include "offload/plan/unit.h"

#include <stdbool.h>

struct sw_library_view {
    struct sw_units *units;  /* of the registered tensors, each of one dimension; owned */
    struct sw_store **store; /* [store_count]: those of all processes, at the newest step that all have; owned */
    int store_count;
};

/* Tells in *out whether a folder is that of a store: it has a tensors.json. */
sw_status sw_library_is_at(const char *folder, bool *out);

/* Opens a store. It locks and writes nothing, so another process may train on; reads then fail with SW_ERR_OVERTAKEN
 * once it has committed the next step. *out must be released, also after a failure. */
sw_status sw_library_open_to_read(const char *folder, struct sw_library_view *out);
void sw_library_view_release(struct sw_library_view *view);

#endif
