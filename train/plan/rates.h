/* The rates that price a plan on this machine: measured here and now, or kept in a file. */
#ifndef SW_TRAIN_PLAN_RATES_H
#define SW_TRAIN_PLAN_RATES_H

#include "offload/plan/plan.h"
#include "offload/simulate/rates.h"
#include "train/devices/devices.h"
#include "train/devices/ranks.h"
#include "train/model/model.h"
#include "train/settings/settings.h"

/* Seconds of one micro-batch through each unit, as struct sw_rates has them. The arrays have units->count entries. */
struct sw_unit_seconds {
    double *forward, *backward, *recompute, *derive;
};
sw_status sw_unit_seconds_alloc(int64_t units, struct sw_unit_seconds *out);
void sw_unit_seconds_free(struct sw_unit_seconds *seconds);

/* Runs one unit of each shape on random weights, in memory taken for that time. ranks: who may wait meanwhile (NULL:
 * nobody). out_cores: busy meanwhile. A described device's seconds are those that it counts. */
struct sw_long_work;
sw_status sw_measure_units(struct sw_model *model, struct sw_device *device, struct sw_ranks *ranks,
                           struct sw_long_work *progress, struct sw_unit_seconds *out, double *out_cores);

struct sw_machine_rates {
    struct sw_rates rates; /* its unit arrays are those of `units` */
    struct sw_unit_seconds units;
    double products_flops_per_s; /* of the model's matrix products, one after the other; 0: not measured */
};

/* Where rates are measured for. Settings are resolved. */
struct sw_rates_target {
    const struct sw_settings *settings;
    struct sw_model *model;
    const struct sw_devices *devices;
    int64_t ring_chunks;            /* of the plan */
    const char *const *directories; /* of the store */
    int directory_count;
    struct sw_ranks *ranks; /* who may wait meanwhile; NULL: nobody */
};

/* Measures everything: a few seconds, of the drives only where `store` is set (SW_MEASURE_STORE_BYTES twice on disk).
 * The caller releases the rates. */
sw_status sw_rates_measure(const struct sw_rates_target *target, bool store, struct sw_machine_rates *out);
void sw_rates_release(struct sw_machine_rates *rates);

/* Writes rates to the file that sw_rates_load reads. */
sw_status sw_rates_keep(const char *path, const struct sw_rates_target *target, const struct sw_machine_rates *rates);

/* The rates of a described machine, with what its device (kernels/described.h) counts for the units of the model. */
sw_status sw_rates_describe(const struct sw_rates *described, struct sw_model *model, struct sw_device *device,
                            struct sw_machine_rates *out);

/* Rank 0's rates, of so many units, to all ranks; on others `rates` is zero before. */
sw_status sw_rates_spread(struct sw_ranks *ranks, int64_t units, struct sw_machine_rates *rates);

/* What these ranks exchange, measured by all of them at once, in place of what was assumed. */
sw_status sw_rates_measure_ranks(struct sw_ranks *ranks, const struct sw_devices *devices, sw_dtype type,
                                 struct sw_rates *rates);

/* The same from a file, which is measured for and made where it is not there. It belongs to a model's shape and to how
 * it runs; another's is refused. Its numbers may be changed, to ask what another machine would do. */
sw_status sw_rates_load(const char *path, const struct sw_rates_target *target, struct sw_machine_rates *out);

#endif
