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

/* The rates of a machine with the seconds of a model's units. To measure these, one unit of each shape runs on random
 * weights, in memory that is freed afterwards; a described device counts them instead. */
struct sw_long_work;

struct sw_machine_rates {
    struct sw_rates rates;         /* its `units` points to the array below */
    struct sw_unit_seconds *units; /* one entry per unit of the model, owned; NULL: not measured */
    double products_flops_per_s;   /* the model's matrix products, one after the other; 0: not measured */
};

/* The subject of a measurement. The settings are resolved. */
struct sw_rates_target {
    const struct sw_settings *settings;
    struct sw_model *model;
    const struct sw_devices *devices;
    int64_t ring_chunks;            /* staging buffers per kind in the plan */
    const char *const *directories; /* where the store is, or would be */
    int directory_count;
    struct sw_ranks *ranks; /* the ranks that wait during the measurement, whose watchdogs it keeps fed; NULL: none */
};

/* Measures everything in a few seconds. If `store` is set, includes the drives, which takes twice
 * SW_MEASURE_STORE_BYTES on disk. The caller releases the rates. */
sw_status sw_rates_measure(const struct sw_rates_target *target, bool store, struct sw_machine_rates *out);
void sw_rates_release(struct sw_machine_rates *rates);

/* The parts of the measurement. Copies, updates and handovers are sampled from its beginning to its end, because other
 * programs on the same memory change its speed within seconds; the median of at most SW_MEMORY_SAMPLES samples counts.
 * The drives of the directories are measured; the rates of collectives are assumed from those of copies. */
enum { SW_MEMORY_SAMPLES = 9 };
struct sw_memory_samples {
    struct sw_rates sample[SW_MEMORY_SAMPLES];
    int count;
};
sw_status sw_rates_sample_memory(const struct sw_rates_target *target, struct sw_memory_samples *samples);
void sw_rates_settle_memory(const struct sw_memory_samples *samples, struct sw_rates *rates);
sw_status sw_rates_measure_drives(const struct sw_rates_target *target, struct sw_rates *rates);
void sw_rates_assume_ranks(struct sw_rates *rates);

/* Tells whether the drives' rates are known. Without them, a plan that uses NVMe has no step time. */
bool sw_rates_know_drives(const struct sw_rates *rates);

/* Writes rates to a file that sw_rates_load can read. */
sw_status sw_rates_keep(const char *path, const struct sw_rates_target *target, const struct sw_machine_rates *rates);

/* Returns a described machine's rates, with the units' seconds counted by its device (kernels/described.h). */
sw_status sw_rates_describe(const struct sw_rates *described, struct sw_model *model, struct sw_device *device,
                            struct sw_machine_rates *out);

/* Copies the rates of rank 0 to all ranks, with `units` entries per array. On the other ranks `rates` must be zero. */
sw_status sw_rates_spread(struct sw_ranks *ranks, int64_t units, struct sw_machine_rates *rates);

/* Measures the collectives of these ranks, on all ranks at once, and replaces the assumed rates. */
sw_status sw_rates_measure_ranks(struct sw_ranks *ranks, const struct sw_devices *devices, sw_dtype type,
                                 struct sw_rates *rates);

/* Returns where the ranks of a job are, as far as settings know their nodes. */
struct sw_node_ranks sw_rates_node_ranks(const struct sw_settings *settings);
/* Adds the rates between nodes and of tensor groups, derived from those of all ranks and of one node, if both were
 * measured. */
void sw_rates_fit_nodes(const struct sw_settings *settings, struct sw_rates *rates);

/* Reads rates from a file, or measures them and writes the file if it does not exist. A file belongs to one model's
 * shape and one way to run it; any other is refused. Users may edit its numbers to ask about another machine. */
sw_status sw_rates_load(const char *path, const struct sw_rates_target *target, struct sw_machine_rates *out);

/* Sets of rates, which | joins. None has the units' seconds. */
typedef enum {
    SW_RATES_OF_MACHINE = 1,
    SW_RATES_OF_DRIVES = 2,
    SW_RATES_ALL = SW_RATES_OF_MACHINE | SW_RATES_OF_DRIVES
} sw_rate_set;

/* Adds a set of rates to the object. */
void sw_rates_to_json(const struct sw_rates *rates, sw_rate_set set, json_t *object);
/* Reads a set of rates and leaves the others unchanged. Errors name `path` and the rate that is missing or wrong. */
sw_status sw_rates_from_json(const json_t *object, sw_rate_set set, const char *path, struct sw_rates *out);
/* Tells whether a set of rates is plausible. Rates orders of magnitude beyond any machine's are damaged. */
bool sw_rates_are_plausible(const struct sw_rates *rates, sw_rate_set set);
/* Refuses an object with a field that sw_rates_from_json does not read. Errors name `path`. */
sw_status sw_rates_refuse_unknown(const json_t *object, const char *path);

/* Write and read the rates of one scope's collectives. SW_ERR_ARG or SW_ERR_CORRUPT names `path`. */
json_t *sw_scope_rates_to_json(const struct sw_scope_rates *rates);
sw_status sw_scope_rates_from_json(const json_t *object, const char *path, struct sw_scope_rates *out);

/* Reads a finite number above 0, or 0 if may_be_zero. It is a plain number or, for a machine that nobody has measured,
 * {"low", "expected", "high", "why"}, from which the expected number is taken. */
sw_status sw_json_positive(const json_t *object, const char *name, const char *path, bool may_be_zero, double *out);

#endif
