/* A model ready for forward passes: device, plan and engine put together from a source, with its weights loaded. */
#ifndef SW_TRAIN_INFERENCE_H
#define SW_TRAIN_INFERENCE_H

#include "core/status.h"
#include "offload/engine.h"
#include "train/model.h"
#include "train/source.h"

#include <stdint.h>

struct sw_inference_spec {
    struct sw_source *source; /* must outlive it */
    int precision;            /* SW_PRECISION_AUTO and its like */
    int64_t threads;          /* SW_OPTION_AUTO: all cores */
    int64_t batch, seq;       /* of a forward pass */
    bool documents;           /* as of struct sw_model_shape */
};

struct sw_inference {
    struct sw_device *device;
    struct sw_model *model;
    struct sw_plan *plan;
    struct sw_engine *engine;
};

/* Fills out, which must be zero. It is closed in any case, also after a failure. */
sw_status sw_inference_open(const struct sw_inference_spec *spec, struct sw_inference *out);
void sw_inference_close(struct sw_inference *inference);

#endif
