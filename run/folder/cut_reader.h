/* Reads the part of every layer that a rank of a tensor group has, from a source of whole layers. */
#ifndef SW_RUN_FOLDER_CUT_READER_H
#define SW_RUN_FOLDER_CUT_READER_H

#include "core/status.h"
#include "offload/engine/engine.h"
#include "offload/plan/unit.h"

struct sw_cut_reader;

struct sw_cut_reader_spec {
    struct sw_load load;          /* the masters of `whole`; what its context points to must outlive the reader */
    const struct sw_units *whole; /* whole layers, or tiles of them; must outlive the reader */
    const struct sw_units *cut;   /* the rank's parts (sw_model_rank_units); must outlive the reader */
};

/* Opens a reader; the caller closes it, after the last use of what sw_cut_reader_load returns. */
sw_status sw_cut_reader_open(const struct sw_cut_reader_spec *spec, struct sw_cut_reader **out);
void sw_cut_reader_close(struct sw_cut_reader *self);

/* Returns the weights for an engine of the rank. Only elements that were prepared last can be filled. */
struct sw_load sw_cut_reader_load(struct sw_cut_reader *self);

#endif
