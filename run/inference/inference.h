/* A model ready for forward passes: opens device, plan and engine for a source, and loads its weights. Weights that
 * memory cannot hold are copied to a drive, and every pass reads them from there. Several ranks each have the whole
 * model, or in groups a part of every layer. */
#ifndef SW_RUN_INFERENCE_INFERENCE_H
#define SW_RUN_INFERENCE_INFERENCE_H

#include "core/status.h"
#include "io/store/store.h"
#include "job/machine/devices.h"
#include "job/machine/ranks.h"
#include "job/settings/options.h"
#include "model/model.h"
#include "offload/engine/engine.h"
#include "run/folder/source.h"

#include <stdint.h>

/* The flags of eval and generate that are about the machine (cli/read_options.c). */
struct sw_inference_options {
    int precision, device;                       /* SW_PRECISION_..., sw_device_choice */
    int64_t threads, device_memory, host_memory; /* SW_OPTION_AUTO: chosen by the machine; memory in bytes */
    struct sw_option_list scratch;               /* folders for weights that memory cannot hold */
    bool allow_buffered;
    int64_t tensor;       /* ranks of a tensor group, each with its part of every layer; SW_OPTION_AUTO */
    int64_t rank_timeout; /* seconds after which a silent rank ends all */
};

struct sw_inference_spec {
    struct sw_source *source; /* whole layers, which sw_inference_open may cut; must outlive the inference */
    struct sw_ranks *ranks;   /* NULL: a process alone; else all ranks open the same model, together */
    int tensor_ranks;         /* ranks of a tensor group, which divide the ranks; 0 or 1: each rank has whole layers */
    const struct sw_inference_options *options;
    int64_t batch, seq; /* sequences of a forward pass, and their tokens */
    int64_t context;    /* tokens that the KV cache holds; 0: no cache (sw_model_shape) */
    bool documents;     /* texts are kept apart at document starts (sw_model_shape) */
};

struct sw_inference {
    struct sw_ranks *ranks; /* borrowed; may be NULL */
    struct sw_devices devices;
    struct sw_model *model;
    struct sw_plan *plan;
    struct sw_store *store; /* holds the weights that memory cannot; NULL: there are none */
    struct sw_engine *engine;
};

/* Opens a model into *out, which must be zero. The caller closes it, also after a failure. */
sw_status sw_inference_open(const struct sw_inference_spec *spec, struct sw_inference *out);
void sw_inference_close(struct sw_inference *inference);

#endif
