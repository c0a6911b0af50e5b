#include "job/machine/gpu_trust.h"

#include "core/files/cache.h"
#include "core/log.h"
#include "core/ranks/comm.h"
#include "core/status.h"
#include "job/machine/devices.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KIND "products"
enum { KEY_CHARS = 640, WORD_CHARS = 17, CACHE_VERSION = 1, MOST_ALGORITHMS = 4096 };

void sw_algorithm_record_release(struct sw_algorithm_record *record) {
    sw_gemm_algorithms_release(&record->list);
    *record = (struct sw_algorithm_record){0};
}

static const char *const type_names[SW_DTYPES] = {[SW_F32] = "fp32", [SW_BF16] = "bf16", [SW_F16] = "fp16"};

/* Indexed by sw_fp8. Only products of 8-bit operands have these names. */
static const char *const code_names[] = {[SW_FP8_E4M3] = "e4m3", [SW_FP8_E5M2] = "e5m2"};

static json_t *algorithm_to_json(const struct sw_gemm_algorithm *a) {
    const struct sw_gemm *s = &a->shape;
    char words[SW_ALGORITHM_WORDS * WORD_CHARS] = "";
    json_t *object =
        json_pack("{s:I, s:I, s:I, s:I, s:I, s:s, s:s, s:b, s:b, s:b, s:b, s:b, s:b, s:I}", "m", (json_int_t)s->m, "n",
                  (json_int_t)s->n, "k", (json_int_t)s->k, "a_stride", (json_int_t)sw_gemm_a_stride(s), "c_stride",
                  (json_int_t)sw_gemm_c_stride(s), "in", type_names[s->in], "out", type_names[s->out], "transpose_a",
                  s->transpose_a, "transpose_b", s->transpose_b, "bias", s->bias, "accumulate", s->accumulate, "addend",
                  s->addend, "tf32", a->tf32, "workspace", (json_int_t)a->workspace_bytes);
    if (s->a_as != SW_FP8_NONE) {
        json_object_set_new(object, "a_as", json_string(code_names[s->a_as]));
        json_object_set_new(object, "b_as", json_string(code_names[s->b_as]));
    }
    for (int i = 0; i < SW_ALGORITHM_FIELDS; i++)
        json_object_set_new(object, sw_algorithm_field_names[i], json_integer((json_int_t)a->field[i]));
    for (int i = 0; i < SW_ALGORITHM_WORDS; i++)
        snprintf(words + strlen(words), WORD_CHARS, "%016" PRIx64, a->word[i]);
    json_object_set_new(object, "words", json_string(words));
    return object;
}

static bool read_type(const char *name, sw_dtype *out) {
    for (int type = 0; type < SW_DTYPES; type++)
        if (strcmp(type_names[type], name) == 0) {
            *out = (sw_dtype)type;
            return true;
        }
    return false;
}

static bool read_codes(const json_t *name, sw_fp8 *out) {
    *out = SW_FP8_NONE;
    for (int type = SW_FP8_E4M3; json_is_string(name) && type <= SW_FP8_E5M2; type++)
        if (strcmp(code_names[type], json_string_value(name)) == 0)
            *out = (sw_fp8)type;
    return name == NULL || *out != SW_FP8_NONE;
}

static bool read_words(const char *text, uint64_t out[SW_ALGORITHM_WORDS]) {
    enum { DIGITS = WORD_CHARS - 1 };
    if (strlen(text) != (size_t)SW_ALGORITHM_WORDS * DIGITS ||
        strspn(text, "0123456789abcdef") != (size_t)SW_ALGORITHM_WORDS * DIGITS)
        return false;
    for (int i = 0; i < SW_ALGORITHM_WORDS; i++) {
        char word[WORD_CHARS];
        snprintf(word, sizeof word, "%.*s", DIGITS, text + (size_t)i * DIGITS);
        out[i] = strtoull(word, NULL, 16);
    }
    return true;
}

/* Records made before rows could have gaps have no strides. */
static bool read_shape(json_t *from, struct sw_gemm_algorithm *out) {
    const char *in, *to, *words;
    json_int_t m, n, k, a_stride = 0, c_stride = 0, workspace;
    int flags[6];
    if (json_unpack(from, "{s:I, s:I, s:I, s?I, s?I, s:s, s:s, s:b, s:b, s:b, s:b, s:b, s:b, s:I, s:s}", "m", &m, "n",
                    &n, "k", &k, "a_stride", &a_stride, "c_stride", &c_stride, "in", &in, "out", &to, "transpose_a",
                    &flags[0], "transpose_b", &flags[1], "bias", &flags[2], "accumulate", &flags[3], "addend",
                    &flags[4], "tf32", &flags[5], "workspace", &workspace, "words", &words) != 0)
        return false;
    out->shape = (struct sw_gemm){.m = m,
                                  .n = n,
                                  .k = k,
                                  .transpose_a = flags[0],
                                  .transpose_b = flags[1],
                                  .bias = flags[2],
                                  .accumulate = flags[3],
                                  .addend = flags[4],
                                  .a_stride = a_stride,
                                  .c_stride = c_stride};
    out->tf32 = flags[5];
    out->workspace_bytes = workspace;
    return m > 0 && n > 0 && k > 0 && read_type(in, &out->shape.in) && read_type(to, &out->shape.out) &&
           read_codes(json_object_get(from, "a_as"), &out->shape.a_as) &&
           read_codes(json_object_get(from, "b_as"), &out->shape.b_as) &&
           (out->shape.a_as == SW_FP8_NONE) == (out->shape.b_as == SW_FP8_NONE) && read_words(words, out->word);
}

static bool read_algorithm(json_t *from, struct sw_gemm_algorithm *out) {
    *out = (struct sw_gemm_algorithm){0};
    if (!read_shape(from, out))
        return false;
    for (int i = 0; i < SW_ALGORITHM_FIELDS; i++) {
        const json_t *field = json_object_get(from, sw_algorithm_field_names[i]);
        if (!json_is_integer(field))
            return false;
        out->field[i] = json_integer_value(field);
    }
    return true;
}

static json_t *list_to_json(const struct sw_gemm_algorithms *list) {
    json_t *array = json_array();
    for (int64_t i = 0; i < list->count; i++)
        json_array_append_new(array, algorithm_to_json(&list->item[i]));
    return array;
}

static bool read_list(const json_t *array, struct sw_gemm_algorithms *out) {
    struct sw_gemm_algorithm algorithm;
    if (!json_is_array(array) || json_array_size(array) > MOST_ALGORITHMS)
        return false;
    for (size_t i = 0; i < json_array_size(array); i++)
        if (!read_algorithm(json_array_get(array, i), &algorithm) || sw_gemm_algorithms_put(out, &algorithm) != SW_OK)
            return false;
    return true;
}

json_t *sw_algorithm_record_to_json(const struct sw_algorithm_record *record) {
    return json_pack("{s:I, s:s, s:b, s:o}", "cublaslt", (json_int_t)record->library, "gpu", record->gpu, "warpgroups",
                     record->warpgroups, "algorithms", list_to_json(&record->list));
}

sw_status sw_algorithm_record_from_json(const json_t *from, const char *path, struct sw_algorithm_record *out) {
    *out = (struct sw_algorithm_record){0};
    if (from == NULL)
        return SW_OK;
    const char *gpu = json_string_value(json_object_get(from, "gpu"));
    out->warpgroups = json_is_true(json_object_get(from, "warpgroups"));
    out->library = json_integer_value(json_object_get(from, "cublaslt"));
    if (gpu != NULL)
        snprintf(out->gpu, sizeof out->gpu, "%s", gpu);
    if (gpu != NULL && read_list(json_object_get(from, "algorithms"), &out->list))
        return SW_OK;
    sw_algorithm_record_release(out);
    return sw_fail(SW_ERR_CORRUPT, "%s: products must have cublaslt, gpu, and algorithms as a run writes them", path);
}

static void key_of(const struct sw_device_info *gpu, char out[KEY_CHARS]) {
    char driver[SW_DRIVER_VERSION_CHARS];
    sw_driver_version("", driver);
    snprintf(out, KEY_CHARS, "products %d, %s (%s), driver %s for CUDA %d, cuBLASLt %lld", CACHE_VERSION, gpu->model,
             gpu->isa, driver, gpu->driver, (long long)gpu->library);
}

/* Reads the algorithms of an entry of the cache. The list is empty if the entry has none or is damaged. */
static struct sw_gemm_algorithms read_entry(const json_t *entry) {
    SW_HANDLES_ERRORS();
    struct sw_gemm_algorithms list = {0};
    if (!read_list(json_object_get(entry, "algorithms"), &list))
        sw_gemm_algorithms_release(&list);
    return list;
}

/* Reads the algorithms that this machine keeps. */
static struct sw_gemm_algorithms read_kept(const struct sw_device_info *gpu) {
    char key[KEY_CHARS];
    key_of(gpu, key);
    json_t *root = sw_cache_read(KIND, key);
    const struct sw_gemm_algorithms list = read_entry(root);
    json_decref(root);
    return list;
}

/* Adds the algorithms of new shapes to an entry of the cache. Known shapes keep theirs: a run that obeys its record may
 * use other algorithms than this machine would choose. */
static bool add_new(json_t *entry, void *context) {
    const struct sw_gemm_algorithms *list = context;
    struct sw_gemm_algorithms kept = read_entry(entry);
    const int64_t before = kept.count;
    sw_status status = SW_OK;
    for (int64_t i = 0; status == SW_OK && i < list->count; i++)
        if (kept.count < MOST_ALGORITHMS &&
            sw_gemm_algorithms_find(&kept, &list->item[i].shape, list->item[i].tf32) == NULL)
            status = sw_gemm_algorithms_put(&kept, &list->item[i]);
    const bool changed = status == SW_OK && kept.count > before;
    if (changed)
        json_object_set_new(entry, "algorithms", list_to_json(&kept));
    sw_gemm_algorithms_release(&kept);
    return changed;
}

/* Adds the algorithms to the cache. Other processes may do the same at the same time. */
static sw_status keep(const struct sw_device_info *gpu, struct sw_gemm_algorithms *list) {
    char key[KEY_CHARS];
    key_of(gpu, key);
    return sw_cache_update(KIND, key, add_new, list);
}

void sw_algorithms_keep(const struct sw_device *device) {
    SW_HANDLES_ERRORS();
    const struct sw_device_info gpu = sw_device_info(device);
    struct sw_gemm_algorithms list;
    int64_t refused;
    if (gpu.library != 0 && sw_device_algorithms(device, &list, &refused) == SW_OK) {
        (void)keep(&gpu, &list); /* algorithms that cannot be kept are measured again */
        sw_gemm_algorithms_release(&list);
    }
}

static bool usable(const struct sw_algorithm_record *record, const struct sw_device_info *gpu) {
    if (record->library == gpu->library && strcmp(record->gpu, gpu->model) == 0)
        return true;
    sw_log_warn("the run's matrix products were chosen on %s with cuBLASLt %lld, and this machine has %s and cuBLASLt "
                "%lld: the run continues with other algorithms, so bits may change",
                record->gpu, (long long)record->library, gpu->model, (long long)gpu->library);
    return false;
}

/* Computes attention as the run did. The slower way always works; the faster one needs a GPU that passed the self-test.
 */
static sw_status follow_attention(struct sw_device *device, bool warpgroups) {
    if (warpgroups && !sw_device_info(device).warpgroups)
        sw_log_warn("the run's attention was computed by products of warpgroups, which this GPU or its self-test does "
                    "not allow: the run continues without them, so bits may change");
    return warpgroups ? SW_OK : sw_device_use_warpgroups(device, false);
}

sw_status sw_algorithms_begin(struct sw_device *device, const struct sw_algorithm_record *record) {
    const struct sw_device_info gpu = sw_device_info(device);
    if (gpu.library == 0)
        return SW_OK;
    if (record->library != 0)
        SW_TRY(follow_attention(device, record->warpgroups));
    if (record->library != 0 && usable(record, &gpu))
        return sw_device_use_algorithms(device, &record->list, true);
    struct sw_gemm_algorithms kept = read_kept(&gpu);
    const sw_status status = sw_device_use_algorithms(device, &kept, true);
    sw_gemm_algorithms_release(&kept);
    return status;
}

/* On rank 0, records which algorithms the device uses, and keeps them on this machine. */
static sw_status note(struct sw_device *device, struct sw_algorithm_record *record) {
    const struct sw_device_info gpu = sw_device_info(device);
    const bool recorded = record->library == gpu.library && record->library != 0;
    int64_t refused = 0;
    sw_algorithm_record_release(record);
    if (gpu.library == 0)
        return SW_OK;
    SW_TRY(sw_device_algorithms(device, &record->list, &refused));
    record->library = gpu.library;
    record->warpgroups = gpu.warpgroups;
    snprintf(record->gpu, sizeof record->gpu, "%s", gpu.model);
    if (recorded && refused > 0)
        sw_log_warn("cuBLASLt does not accept %lld of the run's recorded algorithms of matrix products any more: the "
                    "run continues with others, so bits may change",
                    (long long)refused);
    if (keep(&gpu, &record->list) != SW_OK)
        sw_error_clear(); /* run.json has them; another run measures again */
    return SW_OK;
}

sw_status sw_algorithms_agree(struct sw_ranks *ranks, struct sw_device *device, struct sw_algorithm_record *record) {
    struct sw_gemm_algorithms list = {0};
    SW_TRY(sw_ranks_first(ranks, note(device, record)));
    if (sw_ranks_count(ranks) == 1)
        return SW_OK;
    list.count = record->list.count;
    bool warpgroups = record->warpgroups;
    SW_TRY(sw_ranks_spread(ranks, "way of attention", &warpgroups, sizeof warpgroups));
    if (sw_ranks_rank(ranks) != 0)
        SW_TRY(follow_attention(device, warpgroups));
    SW_TRY(sw_ranks_spread(ranks, "number of algorithms", &list.count, sizeof list.count));
    const int64_t bytes = list.count * (int64_t)sizeof *list.item;
    if (list.count == 0)
        return SW_OK;
    list.item = malloc((size_t)bytes);
    sw_status status = sw_ranks_agree_on_error(
        ranks, list.item != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory for the table of algorithms"));
    assert(status != SW_OK || list.item != NULL);
    if (status == SW_OK && sw_ranks_rank(ranks) == 0)
        memcpy(list.item, record->list.item, (size_t)bytes);
    if (status == SW_OK)
        status = sw_ranks_spread(ranks, "algorithms", list.item, bytes);
    if (status == SW_OK && sw_ranks_rank(ranks) != 0)
        status = sw_device_use_algorithms(device, &list, false);
    sw_gemm_algorithms_release(&list);
    return status;
}

#define VERDICT_KIND "gpu"
enum { VERDICT_KEY_CHARS = 512, DEVICE_CHARS = 32, VERDICT_VERSION = 1 };

/* Writes the key of a verdict. It contains the digest of the program: programs of one digest have the same kernels. */
static sw_status verdict_key(const struct sw_device_info *gpu, char out[VERDICT_KEY_CHARS]) {
    unsigned char digest[SW_COMM_DIGEST_BYTES];
    char driver[SW_DRIVER_VERSION_CHARS];
    SW_TRY(sw_comm_program_digest(digest));
    sw_driver_version("", driver);
    int used = snprintf(out, VERDICT_KEY_CHARS, "verdict %d, %s (%s), driver %s for CUDA %d, cuBLASLt %lld, program ",
                        VERDICT_VERSION, gpu->model, gpu->isa, driver, gpu->driver, (long long)gpu->library);
    for (int i = 0; i < SW_COMM_DIGEST_BYTES && used < VERDICT_KEY_CHARS; i++)
        used += snprintf(out + used, (size_t)(VERDICT_KEY_CHARS - used), "%02x", digest[i]);
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
    char key[VERDICT_KEY_CHARS];
    if (verdict_key(gpu, key) != SW_OK)
        return false;
    json_t *root = sw_cache_read(VERDICT_KIND, key);
    out->kept = root != NULL && read_report(root, &out->report);
    json_decref(root);
    return out->kept;
}

static void keep_verdict(const char *key, const struct sw_self_test_report *report) {
    SW_HANDLES_ERRORS();
    json_t *root = sw_gpu_verdict_to_json(report);
    const sw_status status = sw_cache_write(VERDICT_KIND, key, root);
    json_decref(root);
    if (status != SW_OK)
        sw_log_warn("the self-test's verdict cannot be kept, so the next start runs it again: %s",
                    sw_error_message(status));
}

/* Runs the self-test on a device of its own, so that nothing is prepared on the run's device. */
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
    char key[VERDICT_KEY_CHARS], name[DEVICE_CHARS];
    *out = (struct sw_gpu_verdict){0};
    SW_TRY(verdict_key(gpu, key));
    snprintf(name, sizeof name, "cuda:%d", gpu->number);
    SW_TRY(run_self_test(name, false, &out->report));
    SW_TRY(run_self_test(name, true, &out->report));
    keep_verdict(key, &out->report);
    return SW_OK;
}

static sw_status judge(const struct sw_device_info *gpu, struct sw_gpu_verdict *verdict) {
    /* A GPU that failed is tested again: the failure may have come from chance or heat. */
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
