/* A model ready for forward passes: device, plan and engine put together from a source, with its weights loaded. What
 * of them memory cannot hold is copied to a drive, from where every pass reads it. */
#ifndef SW_TRAIN_RUN_INFERENCE_H
#define SW_TRAIN_RUN_INFERENCE_H

#include "core/status.h"
#include "io/store/store.h"
#include "offload/engine/engine.h"
#include "train/devices/devices.h"
#include "train/folder/source.h"
#include "train/model/model.h"
#include "train/settings/options.h"

#include <stdint.h>

/* What the commands that infer are told of the machine. */
struct sw_inference_options {
    int precision, device; /* of --device */
    int64_t threads, device_memory, host_memory;
    struct sw_option_list scratch;
    bool allow_buffered;
};

struct sw_inference_spec {
    struct sw_source *source; /* must outlive it */
    const struct sw_inference_options *options;
    int64_t batch, seq; /* of a forward pass */
    int64_t context;    /* of sw_model_shape */
    bool documents;     /* likewise */
};

struct sw_inference {
    struct sw_devices devices;
    struct sw_model *model;
    struct sw_plan *plan;
    struct sw_store *store; /* NULL: memory holds all weights */
    struct sw_engine *engine;
};

/* Fills out, which must be zero. It is closed in any case, also after a failure. */
sw_status sw_inference_open(const struct sw_inference_spec *spec, struct sw_inference *out);
void sw_inference_close(struct sw_inference *inference);

#endif
