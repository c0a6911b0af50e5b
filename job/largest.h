/* The largest model of a family that trains on a machine at a given speed. */
#ifndef SW_JOB_LARGEST_H
#define SW_JOB_LARGEST_H

#include "job/job.h"
#include "model/hf/config.h"

/* The limit that keeps the next size from training. */
typedef enum {
    SW_LIMIT_SPEED,
    SW_LIMIT_DEVICE,
    SW_LIMIT_HOST,
    SW_LIMIT_MEMORY, /* memory of device and host */
    SW_LIMIT_OPS,    /* a plan would have too many ops */
    SW_LIMIT_SIZE    /* limits of config.h */
} sw_size_limit;
const char *sw_size_limit_name(sw_size_limit limit);

struct sw_largest {
    /* Layers 0: not even a model of one layer trains, and the members below are not set. */
    struct sw_model_config config;
    int64_t parameters, disk_bytes;
    double tokens_per_s;
    struct sw_simulation step;
    sw_size_limit limit;
};

/* A machine for which models of several sizes are planned. */
struct sw_sizing;

/* Opens the machine that the settings name, or this one with its profile. Messages and budgets are those of `plan`. The
 * settings are unresolved, as on the command line; --model may be missing. They must outlive the search. */
sw_status sw_sizing_open(const struct sw_settings *settings, struct sw_sizing **out);
void sw_sizing_close(struct sw_sizing *sizing);

/* Returns the name of the machine's device. The search owns it. */
const char *sw_sizing_device_name(const struct sw_sizing *sizing);

/* Searches for the largest model with base's proportions (sw_config_scale) that fits and trains at least_tokens_per_s
 * or more. Plans each size as `plan` does. Halves the range of sizes, so a size that fails can hide larger ones that
 * would not. */
sw_status sw_sizing_find(struct sw_sizing *sizing, const struct sw_model_config *base, double least_tokens_per_s,
                         struct sw_largest *out);

#endif
