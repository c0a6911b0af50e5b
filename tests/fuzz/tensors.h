/* The work that the targets of safetensors files do with a folder that opened. */
#ifndef SW_TESTS_FUZZ_TENSORS_H
#define SW_TESTS_FUZZ_TENSORS_H

#include "io/safetensors/safetensors.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>

enum { FUZZ_MOST_ELEMS = 1 << 20 };

/* Reads every tensor whole: its bytes must be there, and nothing beyond them. An opened file is not larger than the
 * input, so that no tensor is larger than this. */
static inline void fuzz_read_all(struct sw_safetensors *tensors) {
    for (int64_t i = 0; i < sw_safetensors_count(tensors); i++) {
        const struct sw_safetensor *tensor = sw_safetensors_at(tensors, i);
        const bool found = sw_safetensors_find(tensors, tensor->name) == tensor;
        assert(found);
        if (!tensor->supported)
            continue;
        assert(tensor->elems <= FUZZ_MOST_ELEMS);
        float *values = malloc((size_t)tensor->elems * sizeof *values + 1);
        const sw_status status = sw_safetensors_read_f32(tensors, tensor, 0, tensor->elems, values);
        assert(status == SW_OK);
        free(values);
    }
}

#endif
