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

/* Their flags, for the table of a command whose struct `owner` has them as its member `inference`. */
#define SW_INFERENCE_AT(owner, member) .offset = offsetof(struct owner, inference.member)
#define SW_INFERENCE_OPTIONS(owner)                                                                                    \
    {.name = "--precision",                                                                                            \
     .kind = SW_OPTION_CHOICE,                                                                                         \
     SW_INFERENCE_AT(owner, precision),                                                                                \
     .initial = "auto",                                                                                                \
     .choices = "auto|bf16|fp16|fp32",                                                                                 \
     .what = "type of weights and activations; auto: bf16 where the device has it"},                                   \
        {.name = "--device",                                                                                           \
         .kind = SW_OPTION_CHOICE,                                                                                     \
         SW_INFERENCE_AT(owner, device),                                                                               \
         .initial = "auto",                                                                                            \
         .choices = "auto|cpu|cuda",                                                                                   \
         .what = "what computes; auto: CUDA where there is one, else the CPU"},                                        \
        {.name = "--threads",                                                                                          \
         .kind = SW_OPTION_INT,                                                                                        \
         SW_INFERENCE_AT(owner, threads),                                                                              \
         .initial = "auto",                                                                                            \
         .value = "N",                                                                                                 \
         .what = "threads of the CPU device; auto: all cores",                                                         \
         .int_min = 1,                                                                                                 \
         .int_max = 4096,                                                                                              \
         .allow_auto = true},                                                                                          \
        {.name = "--device-memory",                                                                                    \
         .kind = SW_OPTION_SIZE,                                                                                       \
         SW_INFERENCE_AT(owner, device_memory),                                                                        \
         .initial = "auto",                                                                                            \
         .value = "SIZE",                                                                                              \
         .what = "budget of the device tier; auto: most of what the device has available",                             \
         .allow_auto = true},                                                                                          \
        {.name = "--host-memory",                                                                                      \
         .kind = SW_OPTION_SIZE,                                                                                       \
         SW_INFERENCE_AT(owner, host_memory),                                                                          \
         .initial = "auto",                                                                                            \
         .value = "SIZE",                                                                                              \
         .what = "budget of the host tier; auto: a tenth of the memory that is available",                             \
         .allow_auto = true},                                                                                          \
        {.name = "--scratch",                                                                                          \
         .kind = SW_OPTION_LIST,                                                                                       \
         SW_INFERENCE_AT(owner, scratch),                                                                              \
         .value = "FOLDER",                                                                                            \
         .what = "on a fast drive: where weights beyond the budgets are copied to, until the end (repeat for "         \
                 "several drives); not given: where a run's store is"},                                                \
    {                                                                                                                  \
        .name = "--allow-buffered", .kind = SW_OPTION_FLAG, SW_INFERENCE_AT(owner, allow_buffered),                    \
        .what = "accept a --scratch without O_DIRECT, through the page cache"                                          \
    }

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
