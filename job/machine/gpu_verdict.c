#include "job/machine/gpu_verdict.h"

#include "core/error_scope.h"
#include "core/files/cache.h"
#include "core/log.h"
#include "core/ranks/comm.h"
#include "job/machine/algorithms.h"
#include "job/machine/driver_version.h"

#include <math.h>
#include <stdio.h>

#define KIND "gpu"
enum { KEY_CHARS = 512, DEVICE_CHARS = 32, VERDICT_VERSION = 1 };

/* Writes the key of a verdict. It has the digest of the program, because programs of one digest have the same kernels.
 */
static sw_status key_of(const struct sw_device_info *gpu, char out[KEY_CHARS]) {
    unsigned char digest[SW_COMM_DIGEST_BYTES];
    char driver[SW_DRIVER_VERSION_CHARS];
    SW_TRY(sw_comm_program_digest(digest));
    sw_driver_version("", driver);
    int used = snprintf(out, KEY_CHARS, "verdict %d, %s (%s), driver %s for CUDA %d, cuBLASLt %lld, program ",
                        VERDICT_VERSION, gpu->model, gpu->isa, driver, gpu->driver, (long long)gpu->library);
    for (int i = 0; i < SW_COMM_DIGEST_BYTES && used < KEY_CHARS; i++)
        used += snprintf(out + used, (size_t)(KEY_CHARS - used), "%02x", digest[i]);
    return SW_OK;
}

/* Writes an infinite error as null, because JSON has no infinity. */
static json_t *op_to_json(const struct sw_self_test_op *op) {
    return json_pack("{s:s, s:b, s:b, s:I, s:o, s:s}", "op", op->name, "passed", !op->failed, "optional", op->optional,
                     "comparisons", (json_int_t)op->comparisons, "worst_of_tolerance",
                     isfinite(op->worst) ? json_real(op->worst) : json_null(), "failure", op->failure);
}

json_t *sw_gpu_verdict_to_json(const struct sw_self_test_report *report) {
    json_t *ops = json_array();
    for (int i = 0; i < report->count; i++)
        json_array_append_new(ops, op_to_json(&report->op[i]));
    return json_pack("{s:b, s:f, s:s, s:o}", "passed", sw_self_test_failed(report) == NULL, "seconds", report->seconds,
                     "attention", report->attention, "ops", ops);
}

static bool read_op(json_t *from, struct sw_self_test_op *op) {
    const char *name, *failure;
    json_int_t comparisons;
    int passed, optional;
    if (json_unpack(from, "{s:s, s:b, s:b, s:I, s:s}", "op", &name, "passed", &passed, "optional", &optional,
                    "comparisons", &comparisons, "failure", &failure) != 0 ||
        comparisons <= 0)
        return false;
    const json_t *worst = json_object_get(from, "worst_of_tolerance");
    *op = (struct sw_self_test_op){.comparisons = comparisons,
                                   .worst = json_is_number(worst) ? json_number_value(worst) : (double)INFINITY,
                                   .failed = passed == 0,
                                   .optional = optional != 0};
    snprintf(op->name, sizeof op->name, "%s", name);
    snprintf(op->failure, sizeof op->failure, "%s", failure);
    return true;
}

static bool read_report(json_t *root, struct sw_self_test_report *out) {
    const char *attention;
    json_t *ops;
    *out = (struct sw_self_test_report){0};
    if (json_unpack(root, "{s:F, s:s, s:o}", "seconds", &out->seconds, "attention", &attention, "ops", &ops) != 0 ||
        json_array_size(ops) == 0 || json_array_size(ops) > SW_SELF_TEST_OPS)
        return false;
    snprintf(out->attention, sizeof out->attention, "%s", attention);
    for (out->count = 0; out->count < (int)json_array_size(ops); out->count++)
        if (!read_op(json_array_get(ops, (size_t)out->count), &out->op[out->count]))
            return false;
    return true;
}

bool sw_gpu_verdict_read(const struct sw_device_info *gpu, struct sw_gpu_verdict *out) {
    SW_HANDLES_ERRORS();
    char key[KEY_CHARS];
    if (key_of(gpu, key) != SW_OK)
        return false;
    json_t *root = sw_cache_read(KIND, key);
    out->kept = root != NULL && read_report(root, &out->report);
    json_decref(root);
    return out->kept;
}

static void keep(const char *key, const struct sw_self_test_report *report) {
    SW_HANDLES_ERRORS();
    json_t *root = sw_gpu_verdict_to_json(report);
    const sw_status status = sw_cache_write(KIND, key, root);
    json_decref(root);
    if (status != SW_OK)
        sw_log_warn("the self-test's verdict cannot be kept, so the next start runs it again: %s",
                    sw_error_message(status));
}

/* Runs the self-test on a device of its own, so that the run's device has prepared nothing. */
static sw_status run_self_test(const char *name, bool tf32, struct sw_self_test_report *report) {
    struct sw_device *device;
    SW_TRY(sw_device_open(name, 0, &device));
    sw_status status = tf32 ? sw_device_use_tf32(device) : SW_OK;
    if (status == SW_OK)
        status = tf32 ? sw_self_test_run_tf32(device, report) : sw_self_test_run(device, report);
    sw_device_close(device);
    return status;
}

sw_status sw_gpu_verdict_make(const struct sw_device_info *gpu, struct sw_gpu_verdict *out) {
    char key[KEY_CHARS], name[DEVICE_CHARS];
    *out = (struct sw_gpu_verdict){0};
    SW_TRY(key_of(gpu, key));
    snprintf(name, sizeof name, "cuda:%d", gpu->number);
    SW_TRY(run_self_test(name, false, &out->report));
    SW_TRY(run_self_test(name, true, &out->report));
    keep(key, &out->report);
    return SW_OK;
}

static sw_status judge(const struct sw_device_info *gpu, struct sw_gpu_verdict *verdict) {
    /* A GPU that failed is tested again, because the failure may have come from chance or heat. */
    if (!sw_gpu_verdict_read(gpu, verdict) || sw_self_test_failed(&verdict->report) != NULL) {
        SW_TRY(sw_gpu_verdict_make(gpu, verdict));
        sw_log_info("self-test of %s: %d ops compared with the reference in %.1f s", gpu->model, verdict->report.count,
                    verdict->report.seconds);
    }
    const struct sw_self_test_op *failed = sw_self_test_failed(&verdict->report);
    return failed == NULL
               ? SW_OK
               : sw_fail(SW_ERR_DEVICE,
                         "%s computes wrongly: its %s failed the self-test (%s); use --device cpu, and report what "
                         "`spillway doctor --json` says",
                         gpu->model, failed->name, failed->failure);
}

sw_status sw_gpu_verdict_require(const struct sw_devices *devices) {
    const struct sw_device_info gpu = sw_device_info(devices->compute);
    if (gpu.host_memory || gpu.described)
        return SW_OK;
    struct sw_gpu_verdict verdict;
    SW_TRY(judge(&gpu, &verdict));
    return sw_self_test_use_attention(devices->compute, &verdict.report);
}

sw_status sw_gpu_as_in_training(const struct sw_devices *devices) {
    const struct sw_device_info gpu = sw_device_info(devices->compute);
    struct sw_gpu_verdict verdict;
    if (gpu.host_memory || gpu.described)
        return SW_OK;
    if (sw_gpu_verdict_read(&gpu, &verdict) && sw_self_test_failed(&verdict.report) == NULL)
        SW_TRY(sw_self_test_use_attention(devices->compute, &verdict.report));
    return sw_algorithms_begin(devices->compute, &(struct sw_algorithm_record){0});
}
