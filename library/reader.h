/* A store of the library, opened for reading by the program, without the tensors of the program that trains it. */
#ifndef SW_LIBRARY_READER_H
#define SW_LIBRARY_READER_H

#include "io/store/store.h"
#include "offload/plan/unit.h"

#include <stdbool.h>

struct tensor;
struct library_parts;

struct sw_library_view {
    struct sw_units *units; /* of the registered tensors, each whole and of one dimension; owned */
    int64_t step;           /* the newest that all processes have */
    /* The stores of all processes at that step, if each has shards of the same units, else NULL: [store_count]. Owned.
     */
    struct sw_store **store;
    int store_count;
    /* The stores of processes that each have parts of the tensors; else NULL. Owned, as the members below. */
    struct library_parts *parts;
    struct tensor *tensor; /* [tensor_count] */
    int64_t tensor_count;
    float *room; /* for a grain of `parts` */
};

/* Tells in *out whether a folder is that of a store: it has a tensors.json. */
sw_status sw_library_is_at(const char *folder, bool *out);

/* Opens a store. It locks and writes nothing, so another process may train on; reads then fail with SW_ERR_OVERTAKEN
 * once it has committed the next step. *out must be released, also after a failure. */
sw_status sw_library_open_to_read(const char *folder, struct sw_library_view *out);
/* Copies elements [first, first+count) of a tensor of `parts` in fp32. part: SPILLWAY_MASTER and so on. */
sw_status sw_library_view_read(const struct sw_library_view *view, const char *name, int part, int64_t first,
                               int64_t count, float *out);
void sw_library_view_release(struct sw_library_view *view);

#endif
