/* The algorithms of a run's matrix products and the way of its attention, which set its bits: measured once on a
 * machine, kept there, recorded in run.json, and used again. */
#ifndef SW_TRAIN_DEVICES_ALGORITHMS_H
#define SW_TRAIN_DEVICES_ALGORITHMS_H

#include "kernels/algorithms.h"
#include "train/devices/ranks.h"

#include <jansson.h>

enum { SW_ALGORITHM_GPU_CHARS = 256 };

/* The record of the algorithms in run.json. */
struct sw_algorithm_record {
    struct sw_gemm_algorithms list;
    int64_t library; /* version of the library whose algorithms these are; 0: nothing was recorded */
    bool warpgroups; /* how attention was computed (sw_device_use_warpgroups) */
    char gpu[SW_ALGORITHM_GPU_CHARS];
};
void sw_algorithm_record_release(struct sw_algorithm_record *record);
json_t *sw_algorithm_record_to_json(const struct sw_algorithm_record *record);
/* Reads the record of run.json. `from` is NULL for a run.json of an older version, and the record is then empty. */
sw_status sw_algorithm_record_from_json(const json_t *from, const char *path, struct sw_algorithm_record *out);

/* Before the device prepares products, and once it computes attention in its fastest way: it takes the algorithms that
 * are recorded, else those that this machine keeps, and else measures; attention follows the record. Says where a
 * record cannot be used, as bits may then change. */
sw_status sw_algorithms_begin(struct sw_device *device, const struct sw_algorithm_record *record);
/* Once products are prepared, in a process that trains nothing: keeps those that were measured on this machine, so that
 * its next start computes the same bits. */
void sw_algorithms_keep(const struct sw_device *device);
/* Once rank 0's products are prepared: notes their algorithms in the record, keeps them on this machine, and has the
 * other ranks' devices, which have prepared none yet, use the same. All ranks. */
sw_status sw_algorithms_agree(struct sw_ranks *ranks, struct sw_device *device, struct sw_algorithm_record *record);

#endif
