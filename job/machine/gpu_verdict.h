/* The verdict of the self-test (kernels/self_test.h) on whether a GPU computes rightly, kept for each GPU model,
 * driver, cuBLASLt and program. */
#ifndef SW_JOB_MACHINE_GPU_VERDICT_H
#define SW_JOB_MACHINE_GPU_VERDICT_H

#include "job/machine/devices.h"
#include "kernels/self_test.h"

#include <jansson.h>
#include <stdbool.h>

struct sw_gpu_verdict {
    struct sw_self_test_report report;
    bool kept; /* the verdict is from the cache, and was not made now */
};

/* Reads the kept verdict on a device. Returns false if there is none. */
bool sw_gpu_verdict_read(const struct sw_device_info *gpu, struct sw_gpu_verdict *out);
/* Runs the self-test on the GPU and keeps its verdict. */
sw_status sw_gpu_verdict_make(const struct sw_device_info *gpu, struct sw_gpu_verdict *out);
/* Returns the JSON object of a verdict as it is kept. The caller releases it. */
json_t *sw_gpu_verdict_to_json(const struct sw_self_test_report *report);

/* Refuses a GPU that fails the self-test, and lets one that passes use its fastest way of attention. Runs the
 * self-test, and logs it, unless a verdict that passed is kept. A CPU needs none. Call it before the device prepares
 * products. */
sw_status sw_gpu_verdict_require(const struct sw_devices *devices);
/* Lets a GPU compute as training would: with the algorithms that this machine keeps and the way of attention that a
 * kept verdict names. Runs no self-test. For commands that only measure or plan; call it before the device prepares
 * products. */
sw_status sw_gpu_as_in_training(const struct sw_devices *devices);

#endif
