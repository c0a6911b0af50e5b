/* Trust in a GPU: the verdict of its self-test, and the algorithms of a run's matrix products. Both are determined once
 * per machine and kept. */
#ifndef SW_JOB_MACHINE_GPU_TRUST_H
#define SW_JOB_MACHINE_GPU_TRUST_H

#include "job/machine/devices.h"
#include "job/machine/ranks.h"
#include "kernels/products.h"
#include "kernels/self_test.h"

#include <jansson.h>
#include <stdbool.h>

/* The algorithms of a run's matrix products and the method of its attention decide its bits. They are measured once on
 * a machine, kept there, recorded in run.json, and used again. */
enum { SW_ALGORITHM_GPU_CHARS = 256 };

/* The record of the algorithms in run.json. */
struct sw_algorithm_record {
    struct sw_gemm_algorithms list;
    int64_t library; /* version of the library that the algorithms belong to; 0: nothing was recorded */
    bool warpgroups; /* how attention was computed (sw_device_use_warpgroups) */
    char gpu[SW_ALGORITHM_GPU_CHARS];
};
void sw_algorithm_record_release(struct sw_algorithm_record *record);
json_t *sw_algorithm_record_to_json(const struct sw_algorithm_record *record);
/* Reads the record of run.json. `from` NULL: an older version wrote run.json; the record is then empty. */
sw_status sw_algorithm_record_from_json(const json_t *from, const char *path, struct sw_algorithm_record *out);

/* Gives the device the algorithms of the record, or else those that this machine keeps; the device measures all others.
 * Attention follows the record. Warns if the record cannot be used, because bits may then change. Call it before the
 * device prepares products and after its method of attention is chosen (sw_gpu_verdict_require). */
sw_status sw_algorithms_begin(struct sw_device *device, const struct sw_algorithm_record *record);
/* Keeps the algorithms that were measured on this machine, so that the next start computes the same bits. For processes
 * that do not train. Call it after products are prepared. */
void sw_algorithms_keep(const struct sw_device *device);
/* Records the algorithms of rank 0, keeps them on its machine, and gives them to the other ranks' devices. Rank 0 must
 * have prepared its products, the others must not. All ranks call it together. */
sw_status sw_algorithms_agree(struct sw_ranks *ranks, struct sw_device *device, struct sw_algorithm_record *record);

/* The verdict of the self-test (kernels/self_test.h): whether a GPU computes correctly. It is kept per GPU model,
 * driver, cuBLASLt and program. */
struct sw_gpu_verdict {
    struct sw_self_test_report report;
    bool kept; /* read from the cache, not made now */
};

/* Reads the kept verdict on a device. Returns false if there is none. */
bool sw_gpu_verdict_read(const struct sw_device_info *gpu, struct sw_gpu_verdict *out);
/* Runs the self-test on the GPU and keeps its verdict. */
sw_status sw_gpu_verdict_make(const struct sw_device_info *gpu, struct sw_gpu_verdict *out);
/* Returns the JSON object of a verdict as it is kept. The caller releases it. */
json_t *sw_gpu_verdict_to_json(const struct sw_self_test_report *report);

/* Refuses a GPU that fails the self-test, and lets one that passes use its fastest attention. Runs and logs the
 * self-test unless a passed verdict is kept. A CPU needs none. Call it before the device prepares products. */
sw_status sw_gpu_verdict_require(const struct sw_devices *devices);
/* Lets a GPU compute as it would in training: with the algorithms that this machine keeps, and the attention of a kept
 * verdict. Runs no self-test. For commands that only measure or plan. Call it before the device prepares products. */
sw_status sw_gpu_as_in_training(const struct sw_devices *devices);

#endif
