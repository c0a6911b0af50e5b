/* An error of the GPU's own work, which CUDA tells of at any later call: a training that it ends names the op and the
 * unit in which it was. */
#include "tests/e2e/same_bits.h"
#include "tests/equipment/must.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "kernels/device_ops.h"
#include "tests/equipment/cuda/runtime.h"

#define FAULT "an illegal memory access was encountered"
enum { FAULTY_UNIT = 3, FAULTY_MICRO = 1, PAUSE_NS = 20000000, TEXT_CHARS = 160 };

static struct sw_unit_ops model_ops;

static bool given;
static _Atomic bool broken;

static void pause_some(void) {
    nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
}

/* The error comes when all before the op has been counted, and the op ends some time after it. */
static void break_gpu(void *ignored) {
    (void)ignored;
    nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
    sw_emulation_break(FAULT);
    atomic_store(&broken, true);
    pause_some();
}

/* The error comes with the last work of an op. What is given next sees it before the op's end does. */
static sw_status backward(void *context, const struct sw_unit_call *call) {
    while (given && !atomic_load(&broken))
        pause_some();
    SW_TRY(model_ops.backward(context, call));
    if (call->unit != FAULTY_UNIT || call->micro != FAULTY_MICRO)
        return SW_OK;
    sw_emulation_give(call->stream->backend, break_gpu, NULL);
    given = true;
    return SW_OK;
}

static void wrap(void *context, struct sw_unit_ops *ops) {
    (void)context;
    model_ops = *ops;
    ops->backward = backward;
}

static void names_the_op_and_the_unit(void **state) {
    (void)state;
    struct harness_spec spec = same_spec(SW_BF16);
    struct harness harness;
    struct sw_step_result result;
    char named[TEXT_CHARS];
    spec.place = "weights=host,grads=host,optimizer=host";
    spec.wrap = wrap;
    must(harness_open(&spec, &harness));
    sw_status status = harness_begin(&harness, 1, SAME_CLIP);
    if (status == SW_OK)
        status = harness_wait(&harness, &result);
    const char *message = sw_error_message(status);
    snprintf(named, sizeof named, "%s (cudaErrorLaunchFailure), while waiting for the GPU", FAULT);
    if (status != SW_ERR_DEVICE || strstr(message, named) == NULL)
        fail_msg("not the GPU's error, waited for: %s", message);
    snprintf(named, sizeof named, "while running backward of unit %d in step 1", FAULTY_UNIT);
    if (strstr(message, named) == NULL)
        fail_msg("'%s' is not in: %s", named, message);
    sw_error_clear();
    harness_close(&harness);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(names_the_op_and_the_unit)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
