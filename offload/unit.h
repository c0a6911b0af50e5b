/* Units: what is fetched, computed and updated at once, each one flat vector of parameters.
 *
 * Tensors lie one after the other at multiples of SW_TENSOR_ALIGN_ELEMS; the vector is padded with zeros to whole
 * grains. Padding has no gradient and no decay, so it stays zero. */
#ifndef SW_OFFLOAD_UNIT_H
#define SW_OFFLOAD_UNIT_H

#include "core/size.h"
#include "core/status.h"
#include "kernels/device.h"

#include <stdbool.h>
#include <stdint.h>

enum { SW_TENSOR_NAME_CHARS = 96, SW_TENSOR_MAX_DIMS = 4, SW_UNIT_NAME_CHARS = 32 };

struct sw_tensor {
    char name[SW_TENSOR_NAME_CHARS]; /* as in the checkpoint */
    int dims;
    int64_t dim[SW_TENSOR_MAX_DIMS];
    int64_t elems;
    int64_t offset; /* first element in the unit */
    bool decay;     /* weight decay applies */
};

struct sw_unit {
    char name[SW_UNIT_NAME_CHARS];
    struct sw_tensor *tensor;
    int64_t tensor_count;
    int64_t elems; /* with padding: grains · SW_GRAIN_ELEMS */
    int64_t grains;
    struct sw_decay_run *run; /* cover [0, elems) */
    int64_t run_count;
};

/* In forward order: the embedding, the blocks, the head. */
struct sw_units {
    struct sw_unit *unit;
    int64_t count;
    bool tied; /* the head multiplies by the embedding's first tensor and adds to its gradient */
};

sw_status sw_units_create(int64_t count, struct sw_units **out);
void sw_units_destroy(struct sw_units *units);

/* Adds a tensor at the end of a unit. Fails with SW_ERR_ARG when sizes overflow. */
sw_status sw_unit_add_tensor(struct sw_unit *unit, const char *name, int dims, const int64_t *dim, bool decay);

/* Pads the units and computes their decay runs; no tensor may be added afterwards. */
sw_status sw_units_seal(struct sw_units *units);

/* Parameters without padding. */
int64_t sw_units_parameters(const struct sw_units *units);

#endif
