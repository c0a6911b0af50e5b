/* Proves a device's arithmetic against the reference device before anything is trained on it: every op of device.h on
 * random data, at shapes of real models and at awkward ones, in every type, including the memory around the outputs. */
#ifndef SW_KERNELS_SELF_TEST_H
#define SW_KERNELS_SELF_TEST_H

#include "kernels/device.h"

enum { SW_SELF_TEST_OPS = 64, SW_SELF_TEST_NAME_CHARS = 48, SW_SELF_TEST_TEXT_CHARS = 256 };

struct sw_self_test_op {
    char name[SW_SELF_TEST_NAME_CHARS]; /* "attention backward" */
    int64_t comparisons;                /* trials, one per shape and type */
    double worst;                       /* the largest error as a share of its tolerance; 1 is the limit */
    bool failed;
    bool optional; /* a faster method that is left off if it fails; the device can be used without it */
    char failure[SW_SELF_TEST_TEXT_CHARS]; /* the numbers of the first failure; empty: none */
};

struct sw_self_test_report {
    struct sw_self_test_op op[SW_SELF_TEST_OPS];
    int count;
    double seconds;
    char attention[SW_SELF_TEST_NAME_CHARS]; /* the fastest method of attention that passed */
};

/* Runs all comparisons on a device that has prepared no product yet, and fills the report, which then has every op.
 * Returns the device's own errors and a lack of memory; a wrong result is not an error of the call. The device must not
 * be used for anything else afterwards, because it keeps the products of the comparisons. */
sw_status sw_self_test_run(struct sw_device *device, struct sw_self_test_report *out);

/* Adds to a report the products of a device that rounds fp32 to TF32 (sw_device_use_tf32). */
sw_status sw_self_test_run_tf32(struct sw_device *device, struct sw_self_test_report *report);

/* Returns the first op that failed and is not optional; NULL: none. */
const struct sw_self_test_op *sw_self_test_failed(const struct sw_self_test_report *report);

/* Makes a device compute attention by the method that the report names. */
sw_status sw_self_test_use_attention(struct sw_device *device, const struct sw_self_test_report *report);

#endif
