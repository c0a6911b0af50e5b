/* The rates that predict a plan's step on this machine: measured now, or read from a file. */
#ifndef SW_JOB_RATES_H
#define SW_JOB_RATES_H

#include "core/status.h"
#include "job/machine/devices.h"
#include "job/machine/ranks.h"
#include "job/settings/settings.h"
#include "model/model.h"
#include "offload/plan/plan.h"
#include "offload/simulate/nodes.h"
#include "offload/simulate/rates.h"

#include <jansson.h>
#include <stdbool.h>

/* Measures one unit of each shape on random weights, in memory that is freed afterwards; a described device counts the
 * seconds instead. ranks (may be NULL): ranks that wait meanwhile. *out_cores: the cores that were busy. */
struct sw_long_work;

struct sw_machine_rates {
    struct sw_rates rates;         /* its `units` are these */
    struct sw_unit_seconds *units; /* one entry per unit of the model, owned; NULL: not measured */
    double products_flops_per_s;   /* the model's matrix products one after the other; 0: not measured */
};

/* The subject of a measurement. The settings are resolved. */
struct sw_rates_target {
    const struct sw_settings *settings;
    struct sw_model *model;
    const struct sw_devices *devices;
    int64_t ring_chunks;            /* staging buffers of each kind in the plan */
    const char *const *directories; /* where the store is, or would be */
    int directory_count;
    struct sw_ranks *ranks; /* ranks that wait meanwhile; NULL: none */
};

/* Measures everything in a few seconds; the drives only if `store` is set, which takes twice SW_MEASURE_STORE_BYTES on
 * disk. The caller releases the rates. */
sw_status sw_rates_measure(const struct sw_rates_target *target, bool store, struct sw_machine_rates *out);
void sw_rates_release(struct sw_machine_rates *rates);

/* The parts of the measurement. Copies, updates and handovers are sampled over the whole of it, because other machines
 * on the same memory change its rate within seconds; the median of the samples counts, at most SW_MEMORY_SAMPLES. Then
 * there are the drives of the directories, and rates of collectives, which are assumed from those of copies. */
enum { SW_MEMORY_SAMPLES = 9 };
struct sw_memory_samples {
    struct sw_rates sample[SW_MEMORY_SAMPLES];
    int count;
};
sw_status sw_rates_sample_memory(const struct sw_rates_target *target, struct sw_memory_samples *samples);
void sw_rates_settle_memory(const struct sw_memory_samples *samples, struct sw_rates *rates);
sw_status sw_rates_measure_drives(const struct sw_rates_target *target, struct sw_rates *rates);
void sw_rates_assume_ranks(struct sw_rates *rates);

/* Tells whether the drives' rates are known, without which a plan that uses NVMe has no step time. */
bool sw_rates_know_drives(const struct sw_rates *rates);

/* Writes rates to a file that sw_rates_load reads. */
sw_status sw_rates_keep(const char *path, const struct sw_rates_target *target, const struct sw_machine_rates *rates);

/* Returns a described machine's rates, with the seconds that its device (kernels/described.h) counts for the units. */
sw_status sw_rates_describe(const struct sw_rates *described, struct sw_model *model, struct sw_device *device,
                            struct sw_machine_rates *out);

/* Copies the rates of rank 0, with `units` entries an array, to all ranks. On the others `rates` is zero before. */
sw_status sw_rates_spread(struct sw_ranks *ranks, int64_t units, struct sw_machine_rates *rates);

/* Measures the collectives of these ranks, on all of them at once, and replaces the assumed rates. */
sw_status sw_rates_measure_ranks(struct sw_ranks *ranks, const struct sw_devices *devices, sw_dtype type,
                                 struct sw_rates *rates);

/* Returns where the ranks of a job are, as far as settings know their nodes. */
struct sw_node_ranks sw_rates_node_ranks(const struct sw_settings *settings);
/* Adds the rates between nodes and of tensor groups that follow from those of all ranks and of a node's, where ranks
 * have measured both. */
void sw_rates_fit_nodes(const struct sw_settings *settings, struct sw_rates *rates);

/* Reads rates from a file, or measures them and writes the file if it does not exist. A file belongs to the shape of
 * one model and to how it runs; with another it is refused. Users may edit its numbers to ask about another machine. */
sw_status sw_rates_load(const char *path, const struct sw_rates_target *target, struct sw_machine_rates *out);

/* Sets of rates, which may be joined by |. None has the units' seconds. */
typedef enum {
    SW_RATES_OF_MACHINE = 1,
    SW_RATES_OF_DRIVES = 2,
    SW_RATES_ALL = SW_RATES_OF_MACHINE | SW_RATES_OF_DRIVES
} sw_rate_set;

/* Adds a set of rates to the object. */
void sw_rates_to_json(const struct sw_rates *rates, sw_rate_set set, json_t *object);
/* Reads a set of rates, and leaves the others as they are. Errors name `path` and the rate that is missing or wrong. */
sw_status sw_rates_from_json(const json_t *object, sw_rate_set set, const char *path, struct sw_rates *out);
/* Tells whether a set of rates may be those of a machine: faster or slower than any by orders of magnitude, they are
 * damaged. */
bool sw_rates_are_plausible(const struct sw_rates *rates, sw_rate_set set);
/* Refuses an object with a field that sw_rates_from_json does not read. Errors name `path`. */
sw_status sw_rates_refuse_unknown(const json_t *object, const char *path);

/* Write the rates of some ranks' collectives, and read them. SW_ERR_ARG or SW_ERR_CORRUPT names `path`. */
json_t *sw_scope_rates_to_json(const struct sw_scope_rates *rates);
sw_status sw_scope_rates_from_json(const json_t *object, const char *path, struct sw_scope_rates *out);

/* Reads a member that must be a finite number above 0, or 0 if it may be. It is the number alone or, for a machine that
 * nobody measured, {"low", "expected", "high", "why"}, of which the expected number counts. */
sw_status sw_json_positive(const json_t *object, const char *name, const char *path, bool may_be_zero, double *out);

#endif
